"""Give JoeyNMT the weights of a Regard run of `rnn_peers.py`, so that both decode the same model.

    REGARD_PYTHON benchmarks/rnn_export.py unpack RUN weights.npz      plain arrays under JoeyNMT's names, and weights.txt, its vocabulary
    JOEYNMT_PYTHON benchmarks/rnn_export.py decode config.yaml OUTPUT   JoeyNMT's `test` on them, OUTPUT.test

The two models are the same function but for three things, of which the first two change nothing and the last one little:
- JoeyNMT's bridge reads both directions of the encoder: the weights of the forward one become zero.
- JoeyNMT's output layer has no bias: the attentional unit of the least weight is made the constant 1 and carries it, so
  that one of 512 units is lost.
- JoeyNMT's additive score has no bias in its hidden layer: it is dropped.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")
ROWS = [1, 0, 2, 3]  # JoeyNMT's special tokens as rows of Regard's tables (padding, unknown, begin, end)


def recurrent(weights: dict[str, np.ndarray], inputs: str, cell: str, feed: str | None = None) -> dict[str, np.ndarray]:
    """Return the four arrays of a torch GRU from Regard's input projection and cell."""
    weight = weights[f"{inputs}.weight"]
    hidden = weights[f"{cell}.bias"]
    return {
        "weight_ih_l0": weight if feed is None else np.concatenate([weight, weights[f"{feed}.weight"]], 1),
        "bias_ih_l0": weights[f"{inputs}.bias"],
        "weight_hh_l0": weights[f"{cell}.weight"],
        "bias_hh_l0": np.concatenate([np.zeros(2 * len(hidden), hidden.dtype), hidden]),
    }


def translate(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the arrays under JoeyNMT's names."""
    rows = np.concatenate([ROWS, np.arange(len(ROWS), len(weights["output.bias"]))])
    # Regard's embeddings come out times sqrt(E); JoeyNMT's as they are.
    scale = np.float32(weights["source_embedding.weight"].shape[1] ** 0.5)
    found = {
        "src_embed.lut.weight": weights["source_embedding.weight"][rows] * scale,
        "trg_embed.lut.weight": weights["decoder.embedding.weight"][rows] * scale,
    }
    for direction, ending in enumerate(("", "_reverse")):
        arrays = recurrent(weights, f"encoder.inputs.{direction}", f"encoder.cells.{direction}")
        found |= {f"encoder.rnn.{name}{ending}": array for name, array in arrays.items()}
    bridge = weights["bridge.hidden.0.weight"]
    found["decoder.bridge_layer.weight"] = np.concatenate([np.zeros_like(bridge), bridge], 1)
    found["decoder.bridge_layer.bias"] = weights["bridge.hidden.0.bias"]
    readout, output = weights["decoder.readout.linear.weight"].copy(), weights["output.weight"].copy()
    unit = int(np.square(output).sum(0).argmin())
    context = readout.shape[1] - weights["decoder.stack.cells.0.weight"].shape[1]
    readout[unit], output[:, unit] = 0.0, weights["output.bias"]
    constant = np.zeros(len(readout), readout.dtype)
    constant[unit] = 20.0
    found["decoder.att_vector_layer.weight"] = np.concatenate([readout[:, context:], readout[:, :context]], 1)
    found["decoder.att_vector_layer.bias"] = constant
    found["decoder.output_layer.weight"] = output[rows]
    feed = weights["decoder.stack.extra.weight"].copy()
    feed[:, unit] = 0.0
    arrays = recurrent(
        weights | {"decoder.stack.extra.weight": feed}, "decoder.stack.inputs.0", "decoder.stack.cells.0", "decoder.stack.extra"
    )
    found |= {f"decoder.rnn.{name}": array for name, array in arrays.items()}
    score = "decoder.attention.score"
    found["decoder.attention.key_layer.weight"] = weights[f"{score}.key.weight"]
    if f"{score}.vector" in weights:
        found["decoder.attention.query_layer.weight"] = weights[f"{score}.query.weight"]
        found["decoder.attention.energy_layer.weight"] = weights[f"{score}.vector"][None]
    return found


def unpack(run: Path, path: Path) -> None:
    """Write the arrays and the vocabulary of a Regard run; runs in Regard's environment."""
    from safetensors.numpy import load_file

    from regard.data.vocabulary import Vocabulary

    vocabulary = Vocabulary.load(next(run.glob("*vocabulary*.json")))
    words = [*SPECIALS, *vocabulary.pieces(range(len(SPECIALS), len(vocabulary)))]
    weights = next((run / "model").glob("*.safetensors"))
    np.savez(path, **translate(load_file(weights)))  # pyright: ignore[reportArgumentType]
    path.with_suffix(".txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")


def decode(config: Path, output: Path) -> None:
    """Run JoeyNMT's `test` command on unpacked weights; runs in JoeyNMT's environment.

    JoeyNMT reads its checkpoints through one function; it is replaced by one that reads plain arrays. All the rest, the
    search and its clock included, is JoeyNMT's.
    """
    import joeynmt.prediction  # pyright: ignore[reportMissingImports]
    import torch
    from joeynmt.config import load_config  # pyright: ignore[reportMissingImports]
    from joeynmt.helpers_for_ddp import get_logger  # pyright: ignore[reportMissingImports]

    def load_arrays(path: Path, map_location: object) -> dict[str, dict[str, torch.Tensor]]:
        with np.load(path) as arrays:
            return {"model_state": {name: torch.from_numpy(arrays[name]) for name in arrays.files}}

    get_logger("")
    joeynmt.prediction.load_checkpoint = load_arrays
    joeynmt.prediction.test(load_config(config), output_path=str(output))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in ("unpack", "decode"):
        raise SystemExit(__doc__)
    {"unpack": unpack, "decode": decode}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
