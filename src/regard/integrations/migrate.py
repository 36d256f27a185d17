"""Converts Transformer weights of other toolkits to Regard's names; the logits stay the same.

Three things differ besides names; only the last needs settings:

- Marian and fairseq concatenate sines and cosines of a position, Regard interleaves them. Nothing else in a Transformer depends on the
  order of the E features, so all weights are permuted.
- Embeddings without the factor sqrt(E) are divided by it, and no longer tied to the output layer.
- `activation`, `norm_eps`, `positions` and `output_bias` of `regard.config.TransformerConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple, cast

import torch
from torch import Tensor

from regard.config import TransformerConfig
from regard.errors import CheckpointError, ConfigError, shown
from regard.models import Transformer, build, sinusoidal_positions
from regard.training.memory_check import meta_device

ToolkitName = Literal["marian", "fairseq", "joeynmt"]
ActivationName = Literal["relu", "swish", "gelu"]


class Naming(NamedTuple):
    """Parameter names of a toolkit, and facts that its weights do not tell.

    Attributes:
        encoder: prefix of encoder names.
        decoder: prefix of decoder names.
        source_embedding: candidate names of the table, in order; a tied one may be stored under another's name.
        target_embedding: likewise.
        output: likewise.
        output_bias: its name, or "".
        encoder_layer: our name -> its name of each part of a layer with weight and bias.
        decoder_layer: likewise.
        tables: names of position tables without prefix; they are checked.
        unused: parameters that do not affect the output.
        halves: sines and cosines are concatenated.
        positions: see `regard.models.sinusoidal_positions`.
        norm_eps: of its LayerNorm.
    """

    encoder: str
    decoder: str
    source_embedding: tuple[str, ...]
    target_embedding: tuple[str, ...]
    output: tuple[str, ...]
    output_bias: str
    encoder_layer: dict[str, str]
    decoder_layer: dict[str, str]
    tables: tuple[str, ...]
    unused: tuple[str, ...]
    halves: bool
    positions: Literal["paper", "fairseq"]
    norm_eps: float


def _attention(ours: str, theirs: str, projections: str) -> dict[str, str]:
    return {f"{ours}.{name}": f"{theirs}.{projections.format(name[0])}" for name in ("query", "key", "value")}


_BART_ENCODER = {
    **_attention("attention", "self_attn", "{}_proj"),
    "attention.output": "self_attn.out_proj",
    "attention_norm": "self_attn_layer_norm",
    "feed_forward.hidden": "fc1",
    "feed_forward.output": "fc2",
    "feed_forward_norm": "final_layer_norm",
}
_BART_DECODER = {
    **_BART_ENCODER,
    **_attention("cross_attention.attention", "encoder_attn", "{}_proj"),
    "cross_attention.attention.output": "encoder_attn.out_proj",
    "cross_attention_norm": "encoder_attn_layer_norm",
}
_JOEY_FEED_FORWARD = {
    "feed_forward.hidden": "feed_forward.pwff_layer.0",
    "feed_forward.output": "feed_forward.pwff_layer.3",
    "feed_forward_norm": "feed_forward.layer_norm",
}

NAMINGS: dict[str, Naming] = {
    "marian": Naming(
        encoder="model.encoder",
        decoder="model.decoder",
        source_embedding=("model.encoder.embed_tokens.weight", "model.shared.weight", "lm_head.weight"),
        target_embedding=("model.decoder.embed_tokens.weight", "model.shared.weight", "lm_head.weight"),
        output=("lm_head.weight", "model.decoder.embed_tokens.weight", "model.shared.weight"),
        output_bias="final_logits_bias",
        encoder_layer=_BART_ENCODER,
        decoder_layer=_BART_DECODER,
        tables=("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"),
        unused=(),
        halves=True,
        positions="paper",
        norm_eps=1e-5,
    ),
    "fairseq": Naming(
        encoder="encoder",
        decoder="decoder",
        source_embedding=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "decoder.output_projection.weight"),
        target_embedding=("decoder.embed_tokens.weight", "decoder.output_projection.weight", "encoder.embed_tokens.weight"),
        output=("decoder.output_projection.weight", "decoder.embed_out", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight"),
        output_bias="",
        encoder_layer=_BART_ENCODER,
        decoder_layer=_BART_DECODER,
        tables=(),
        unused=(
            "encoder.version",
            "decoder.version",
            "encoder.embed_positions._float_tensor",
            "decoder.embed_positions._float_tensor",
        ),
        halves=True,
        positions="fairseq",
        norm_eps=1e-5,
    ),
    "joeynmt": Naming(
        encoder="encoder",
        decoder="decoder",
        source_embedding=("src_embed.lut.weight", "trg_embed.lut.weight", "decoder.output_layer.weight"),
        target_embedding=("trg_embed.lut.weight", "decoder.output_layer.weight", "src_embed.lut.weight"),
        output=("decoder.output_layer.weight", "trg_embed.lut.weight", "src_embed.lut.weight"),
        output_bias="",
        encoder_layer={
            **_attention("attention", "src_src_att", "{}_layer"),
            "attention.output": "src_src_att.output_layer",
            "attention_norm": "layer_norm",
            **_JOEY_FEED_FORWARD,
        },
        decoder_layer={
            **_attention("attention", "trg_trg_att", "{}_layer"),
            "attention.output": "trg_trg_att.output_layer",
            "attention_norm": "x_layer_norm",
            **_attention("cross_attention.attention", "src_trg_att", "{}_layer"),
            "cross_attention.attention.output": "src_trg_att.output_layer",
            "cross_attention_norm": "dec_layer_norm",
            **_JOEY_FEED_FORWARD,
        },
        tables=(),
        unused=("encoder.pe.pe", "decoder.pe.pe"),
        halves=False,
        positions="paper",
        norm_eps=1e-6,
    ),
}


class Converted(NamedTuple):
    """A converted Transformer.

    Attributes:
        config: of the model.
        weights: its full `state_dict` in float32; tied tensors under each of their names.
    """

    config: TransformerConfig
    weights: dict[str, Tensor]

    def build(self) -> Transformer:
        """Return the model in evaluation mode. Its token ids are those of its toolkit."""
        sizes = {f"{side}_size": self.weights[f"{side}_embedding.weight"].shape[0] for side in ("source", "target")}
        model = build(self.config, **sizes)
        model.load_state_dict(self.weights)
        return cast(Transformer, model.eval())


def convert(
    state: Mapping[str, Tensor], kind: ToolkitName, *, num_heads: int, activation: ActivationName = "relu", scaled: bool = True
) -> Converted:
    """Convert the weights of a Transformer to Regard's names, layout and settings, with the same logits.

    Args:
        state: the `state_dict` of the model alone.
        kind: "marian": `MarianMTModel` of Hugging Face; "fairseq": its Transformer with positions that are not learned; "joeynmt": that of
            JoeyNMT 2.
        num_heads: number of heads of every attention; not in the weights.
        activation: activation of the feed-forward layers; not in the weights.
        scaled: whether embeddings are multiplied by sqrt(E); not in the weights.

    Returns:
        Settings and weights. Pre-norm or post-norm and shared tables are read from the weights.

    Raises:
        CheckpointError: a weight is missing, unknown or of another shape; the message names it.
        ConfigError: the kind is unknown, or `num_heads` does not divide E.

    Example:
        >>> convert({}, "fairseq", num_heads=4)
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: fairseq: the weights have no layers encoder.layers.0, .1, ...
    """
    if kind not in NAMINGS:
        raise ConfigError(f"kind: {shown(kind)}, expected one of {', '.join(NAMINGS)}")
    naming = NAMINGS[kind]
    names = _names(state, kind)
    tables = {"source_embedding": naming.source_embedding, "target_embedding": naming.target_embedding, "output": naming.output}
    found = {name: next((each for each in candidates if each in state), candidates[0]) for name, candidates in tables.items()}
    names = {**{f"{name}.weight": theirs for name, theirs in found.items()}, **names}
    for theirs in names.values():
        if theirs not in state:
            raise CheckpointError(f"{kind}: the weights lack {theirs}")
    known = {*names.values(), *naming.unused, *naming.tables, naming.output_bias, *(name for group in tables.values() for name in group)}
    for theirs in sorted(state.keys() - known):
        raise CheckpointError(f"{kind}: {theirs} has no place in our Transformer")
    weights = {ours: state[theirs].detach().float() for ours, theirs in names.items()}
    if naming.output_bias and naming.output_bias in state and state[naming.output_bias].any():
        weights["output.bias"] = state[naming.output_bias].detach().float().flatten()
    _check_positions(state, naming)
    if naming.halves:
        weights = _interleaved(weights)
    return _settled(weights, naming, num_heads=num_heads, activation=activation, scaled=scaled)


def _names(state: Mapping[str, Tensor], kind: ToolkitName) -> dict[str, str]:
    # Our name -> theirs, except for the embedding tables.
    naming = NAMINGS[kind]
    names: dict[str, str] = {}
    last = []
    for ours, theirs, parts in (("encoder", naming.encoder, naming.encoder_layer), ("decoder", naming.decoder, naming.decoder_layer)):
        pattern = re.compile(re.escape(theirs) + r"\.layers\.(\d+)\.")
        numbers = {int(match[1]) for match in map(pattern.match, state) if match}
        if not numbers or numbers != set(range(len(numbers))):
            raise CheckpointError(f"{kind}: the weights have no layers {theirs}.layers.0, .1, ...")
        modules = {f"layers.{i}.{a}": f"layers.{i}.{b}" for i in sorted(numbers) for a, b in parts.items()}
        if f"{theirs}.layer_norm.weight" in state:
            modules["norm"] = "layer_norm"
        last.append("norm" in modules)
        names |= {f"{ours}.{a}.{end}": f"{theirs}.{b}.{end}" for a, b in modules.items() for end in ("weight", "bias")}
    if last[0] != last[1]:
        raise CheckpointError(f"{kind}: only one of encoder and decoder ends with a LayerNorm; ours are both pre-norm or both post-norm")
    return names


def _check_positions(state: Mapping[str, Tensor], naming: Naming) -> None:
    for name in naming.tables:
        if name in state:
            table = state[name].float()
            expected = sinusoidal_positions(torch.arange(table.shape[0]), table.shape[1], kind=naming.positions)
            # Angles of far positions are rounded differently in each toolkit's table.
            if not torch.allclose(table[:, _order(table.shape[1])] if naming.halves else table, expected, atol=1e-3):
                raise CheckpointError(f"{name}: holds learned positions, ours are sines")


def _order(dim: int) -> Tensor:
    # Index of sine and cosine of each wavelength when all sines come first.
    if dim % 2:
        raise CheckpointError(f"states of size {dim}: expected an even size")
    return torch.arange(dim).view(2, dim // 2).t().flatten()


def _interleaved(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Permute features to Regard's order: columns of matrices that read a state, rows of those that write one."""
    order = _order(weights["source_embedding.weight"].shape[1])
    changed = {}
    for name, tensor in weights.items():
        module = name.rpartition(".")[0]
        if module == "output" and name.endswith(".bias"):  # one per vocabulary entry
            changed[name] = tensor
        elif module.endswith(("norm", ".output")):
            changed[name] = tensor[order]
        elif name.endswith(".weight"):
            changed[name] = tensor[:, order]
        else:  # biases of queries, keys, values and hidden units
            changed[name] = tensor
    return changed


def _settled(weights: dict[str, Tensor], naming: Naming, *, num_heads: int, activation: ActivationName, scaled: bool) -> Converted:
    source, target, output = (weights[f"{name}.weight"] for name in ("source_embedding", "target_embedding", "output"))
    dim = target.shape[1]
    if num_heads < 1 or dim % num_heads:
        raise ConfigError(f"num_heads: {num_heads}, expected a number that divides the size of a state, {dim}")
    if not scaled:
        weights |= {f"{side}_embedding.weight": table / dim**0.5 for side, table in (("source", source), ("target", target))}
    config = TransformerConfig(
        embed_dim=dim,
        ff_dim=weights["encoder.layers.0.feed_forward.hidden.bias"].shape[0],
        num_heads=num_heads,
        encoder_layers=_count(weights, "encoder"),
        decoder_layers=_count(weights, "decoder"),
        norm="pre" if "encoder.norm.weight" in weights else "post",
        norm_eps=naming.norm_eps,
        activation=activation,
        positions=naming.positions,
        output_bias="output.bias" in weights,
        tie_embeddings=scaled and _same(output, target),
        share_embeddings=_same(source, target),
    )
    with meta_device():
        model = build(config, source_size=source.shape[0], target_size=target.shape[0])
    for name, expected in model.state_dict().items():
        if weights[name].shape != expected.shape:
            raise CheckpointError(f"{name}: is {tuple(weights[name].shape)} there, expected {tuple(expected.shape)}")
    return Converted(config, weights)


def _count(weights: Mapping[str, Tensor], side: str) -> int:
    return len({name.split(".")[2] for name in weights if name.startswith(f"{side}.layers.")})


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and bool(torch.equal(first, second))


def reorder_vocabulary(
    converted: Converted, embedding: Sequence[Sequence[int]], output: Sequence[int], *, never: Collection[int] = ()
) -> Converted:
    """Renumber the vocabulary entries.

    Args:
        converted: weights in the toolkit's numbering.
        embedding: for source and target, the old id of each new one.
        output: the same for the output layer; a repeated id, which would count twice, gets probability 0.
        never: old ids of entries of the output layer that get probability 0.

    Returns:
        The weights, tied and shared only where still possible.

    Example:
        >>> from regard.models import build
        >>> config = TransformerConfig(embed_dim=4, ff_dim=5, num_heads=2, encoder_layers=1, decoder_layers=1)
        >>> whole = Converted(config, build(config, source_size=7, target_size=7).state_dict())
        >>> reorder_vocabulary(whole, [[2, 1], [2, 1]], [2, 1]).weights["output.weight"].shape
        torch.Size([2, 4])
    """
    weights, config = dict(converted.weights), converted.config
    for side, numbers in zip(("source", "target"), embedding, strict=True):
        weights[f"{side}_embedding.weight"] = weights[f"{side}_embedding.weight"][torch.tensor(numbers)]
    weights["output.weight"] = weights["output.weight"][torch.tensor(output)]
    first = {number: place for place, number in reversed(list(enumerate(output)))}
    again = torch.tensor([first[number] != place or number in never for place, number in enumerate(output)])
    if "output.bias" in weights or bool(again.any()):
        bias = weights["output.bias"][torch.tensor(output)] if "output.bias" in weights else torch.zeros(len(output))
        weights["output.bias"] = bias.masked_fill(again, NO_CHANCE)
    shared = config.share_embeddings and list(embedding[0]) == list(embedding[1])
    tied = config.tie_embeddings and list(embedding[1]) == list(output)
    changes = {"share_embeddings": shared, "tie_embeddings": tied, "output_bias": "output.bias" in weights}
    return Converted(config.model_copy(update=changes), weights)


# A logit of probability 0 in any precision, float16 included.
NO_CHANCE = -1e4
