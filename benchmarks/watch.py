"""Measure time and peak memory of a forward pass with `regard.watch`, and write docs/results/watch.json.

    python benchmarks/watch.py --out docs/results/watch.json

Eight families with random weights, nothing is downloaded: BERT base, GPT-2, a Llama with grouped queries, Marian, ViT base,
nn.Transformer, nn.TransformerEncoder alone and, if timm is installed, its ViT base. Each runs a forward pass without gradients in three
ways:

- plain: as it is, with fused attention;
- watch: the same model inside `regard.watch`;
- eager: the model's own way to return weights, `attn_implementation="eager"` with `output_attentions=True`.

Times are medians of interleaved runs in one process. Peak memory is that of the first pass in a process of its own, above what the process
held before it. `same` says whether the output under `regard.watch` is that of the plain model bit for bit, and `calls` how many calls of
attention were recorded, of how many there are; `difference` is the largest one between its weights and those of eager. Nothing
else may run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from harness import ROOT, Table, interleaved, machine, median, options, peak, seconds
from torch import nn

import regard

WAYS = ("plain", "watch", "eager")


class Family(NamedTuple):
    """A model, what it reads, how many calls of attention a forward pass has, and whether it has a way to return weights."""

    model: nn.Module
    inputs: dict[str, Any]
    calls: int
    eager: bool = True


def ids(batch: int, length: int, vocabulary: int) -> dict[str, Any]:
    tokens = torch.randint(3, vocabulary, (batch, length))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def bert(batch: int, length: int) -> Family:
    config = transformers.BertConfig()
    return Family(transformers.BertModel(config, add_pooling_layer=False), ids(batch, length, config.vocab_size), config.num_hidden_layers)


def gpt2(batch: int, length: int) -> Family:
    config = transformers.GPT2Config(use_cache=False)
    return Family(transformers.GPT2Model(config), ids(batch, length, config.vocab_size), config.n_layer)


def llama(batch: int, length: int) -> Family:
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16, "num_key_value_heads": 4}
    config = transformers.LlamaConfig(vocab_size=32_000, use_cache=False, **sizes)
    return Family(transformers.LlamaModel(config), ids(batch, length, config.vocab_size), config.num_hidden_layers)


def marian(batch: int, length: int) -> Family:
    sides = {"encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8}
    widths = {"d_model": 512, "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048}
    tokens = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    config = transformers.MarianConfig(vocab_size=32_000, use_cache=False, **sides, **widths, **tokens)
    inputs = ids(batch, length, config.vocab_size)
    return Family(transformers.MarianModel(config), {**inputs, "decoder_input_ids": inputs["input_ids"]}, 18)


def vit(batch: int, length: int) -> Family:
    config = transformers.ViTConfig()
    return Family(transformers.ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(batch, 3, 224, 224)}, 12)


def torch_transformer(batch: int, length: int) -> Family:
    model = nn.Transformer(512, 8, 6, 6, 2048, batch_first=True)
    states = torch.randn(batch, length, 512)
    return Family(model, {"src": states, "tgt": states}, 18, eager=False)


def torch_encoder(batch: int, length: int) -> Family:
    """On its fast path: no module of torch but the encoder is called."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return Family(nn.TransformerEncoder(layer, 6), {"src": torch.randn(batch, length, 512)}, 6, eager=False)


def timm_vit(batch: int, length: int) -> Family:
    sys.path.insert(0, str(ROOT))
    importlib.import_module("tests.observe.families").timm_works()  # beside a CPU build of torch, timm alone does not load
    model = importlib.import_module("timm").create_model("vit_base_patch16_224", pretrained=False)
    return Family(model, {"x": torch.randn(batch, 3, 224, 224)}, 12, eager=False)


FAMILIES: dict[str, Callable[[int, int], Family]] = {
    "BERT base": bert,
    "GPT-2": gpt2,
    "Llama, grouped queries": llama,
    "Marian": marian,
    "ViT base": vit,
    "nn.Transformer": torch_transformer,
    "nn.TransformerEncoder, fast path": torch_encoder,
}
if importlib.util.find_spec("timm") is not None:
    FAMILIES["ViT base of timm"] = timm_vit


def build(name: str, batch: int, length: int) -> Family:
    torch.manual_seed(1)
    family = FAMILIES[name](batch, length)
    family.model.eval()
    return family


def choose(family: Family, way: str) -> None:
    if family.eager:
        family.model.set_attn_implementation("eager" if way == "eager" else "sdpa")  # type: ignore[operator]


def forward(family: Family, way: str) -> tuple[Any, Any]:
    """Run one pass; return the output, and the recording or None."""
    with torch.no_grad():
        if way == "watch":
            with regard.watch(family.model) as seen:
                return family.model(**family.inputs), seen
        options = {"output_attentions": True} if way == "eager" else {}
        return family.model(**family.inputs, **options), None


def states(output: Any) -> torch.Tensor:
    return output if isinstance(output, torch.Tensor) else output[0]


def eager_weights(output: Any) -> list[torch.Tensor]:
    """Return the weights of a pass in the order of the calls: a decoder attends to itself and to the encoder alternately."""
    if "encoder_attentions" not in output:
        return list(output.attentions)
    pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
    return [*output.encoder_attentions, *(weights for pair in pairs for weights in pair)]


def times(family: Family, repeats: int) -> dict[str, Any]:
    """Return milliseconds by way, whether outputs are the same, the calls recorded, and the largest difference of weights."""
    ways = [way for way in WAYS if way != "eager" or family.eager]
    outputs: dict[str, Any] = {}

    def measure(way: str) -> float:
        choose(family, way)
        return 1000 * seconds(lambda: outputs.update({way: forward(family, way)}))

    spent = interleaved({way: lambda _, way=way: measure(way) for way in ways}, repeats, warm_up=1)
    seen = outputs["watch"][1]
    difference = None
    if family.eager:
        pairs = zip(seen, eager_weights(outputs["eager"][0]), strict=True)
        difference = max((call.weights - weights).abs().max().item() for call, weights in pairs)
    same = torch.equal(states(outputs["watch"][0]), states(outputs["plain"][0]))
    return {
        "ms": {way: median(found, 3) for way, found in spent.items()},
        "same": same,
        "calls": len(seen),
        "difference": difference,
    }


def memory(family: Family, way: str) -> float:
    """Return the MiB that a pass needs above what the process holds before it; the process has run nothing else."""
    choose(family, way)
    return peak(lambda: forward(family, way))


def child(name: str, arguments: argparse.Namespace, way: str | None = None) -> Any:
    command = [sys.executable, __file__, "--family", name, "--batch", str(arguments.batch), "--length", str(arguments.length)]
    command += ["--repeats", str(arguments.repeats), *([] if way is None else ["--memory", way])]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def row(name: str, arguments: argparse.Namespace) -> list[Any]:
    timed = child(name, arguments)
    cells: list[Any] = [name]
    peaks = {way: child(name, arguments, way) for way in timed["ms"]}
    cells += [round(timed["ms"][way]) if way in timed["ms"] else None for way in WAYS]
    cells += [round(peaks[way]) if way in peaks else None for way in WAYS]
    cells += ["yes" if timed["same"] else "no", f"{timed['calls']} of {timed['expected']}"]
    return [*cells, None if timed["difference"] is None else f"{timed['difference']:.0e}"]


def main() -> None:
    parser = options(__doc__, batch=8, length=128, repeats=7)
    parser.add_argument("--only", nargs="*", choices=FAMILIES, default=list(FAMILIES), help="families")
    parser.add_argument("--family", choices=FAMILIES, help=argparse.SUPPRESS)
    parser.add_argument("--memory", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.family:
        family = build(arguments.family, arguments.batch, arguments.length)
        found = memory(family, arguments.memory) if arguments.memory else {**times(family, arguments.repeats), "expected": family.calls}
        print(json.dumps(found))
        return
    columns = ["model", *(f"{way}, ms" for way in WAYS), *(f"{way}, MB" for way in WAYS)]
    columns += ["output the same, bit for bit", "calls seen", "largest difference from eager weights"]
    note = (
        f"`python benchmarks/watch.py`: a forward pass of {arguments.batch} x {arguments.length} tokens (ViT: 224 x 224 pixels), "
        f"random weights, float32, medians of {arguments.repeats}. MB are peak memory above that of the process before the pass, "
        f"with what is returned. {machine(None, 'transformers')}."
    )
    table = Table(arguments.out, columns, note)
    for name in arguments.only:
        table.add(row(name, arguments))


if __name__ == "__main__":
    main()
