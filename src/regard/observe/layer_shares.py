"""ALTI of Hugging Face models: what each layer's attention adds to its residual connection, found without names of modules."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explanations.gradients import outside_inference
from regard.explanations.rollout import LayerGraph, Shares, compose, nearness
from regard.observe.pretrained_batch import PretrainedBatch
from regard.observe.within import Call, Layer, Recorded, added_by_keys, record

METHOD = "alti"
# Numbers in the vectors of one layer: 1 GiB.
MOST_NUMBERS = 2**28


class _Sum(NamedTuple):
    """Where the output of an attention is added to the stream (B, T, E); `norm` follows, and what it returns is the stream if `post`."""

    stream: Tensor
    norm: Call
    post: bool


@outside_inference
def layer_shares(batch: PretrainedBatch) -> Tensor:
    """Attribute each layer's output to its inputs and compose all layers: `regard.explanations.alti` for Hugging Face models.

    No module is found by its name. The output of an attention is linear in its weights (see `norms_of_values`). The next norm reads its sum
    with the stream, and the residual connection behind tells whether the stream goes on before that norm or after it.

    Args:
        batch: B examples; as many backward passes through each attention as its output has entries.

    Returns:
        (B, T, S) for T states of the last layer and S keys; of an encoder-decoder S of the encoder, and its rows sum to at most 1.

    Raises:
        ConfigError: the model returns no weights; their output is projected in an unknown way, or not added to what the layer has read, as
            with parallel layers; the vectors of a layer take more than 1 GiB.
    """
    run = record(batch, METHOD)
    if "cross_attentions" not in run.layers:
        own = run.layers["attentions"]
        steps = [Shares({"source": {"source": _shares(batch, run, layer, own=True)}}) for layer in own]
        return compose(layer_graph(steps, own[0].weights.shape[3], None, len(batch.vectors))).detach()
    pairs = zip(run.layers["decoder_attentions"], run.layers["cross_attentions"], strict=True)
    steps = [Shares({"source": {"source": _shares(batch, run, layer, own=True)}}) for layer in run.layers["encoder_attentions"]]
    for own, cross in pairs:
        found = _shares(batch, run, cross, own=False)
        steps.append({"target": {"target": _shares(batch, run, own, own=True)}})
        steps.append({"target": {"source": found[..., :-1], "target": found[..., -1].diag_embed()}})
    queries, keys = run.layers["cross_attentions"][0].weights.shape[2:]
    return compose(layer_graph(steps, keys, queries, len(batch.vectors)))[..., :keys].detach()


def layer_graph(steps: list[Shares], keys: int, queries: int | None, count: int) -> LayerGraph:
    """Return the graph of a stack over S keys, "source"; with T queries, of an encoder and of a decoder, "target", which reads T tokens.

    Args:
        steps: from the bottom up.
        keys: S.
        queries: T; None without a decoder.
        count: B.
    """
    places = torch.eye(keys + (queries or 0)).expand(count, -1, -1)
    if queries is None:
        return LayerGraph({"source": places}, steps, "source")
    return LayerGraph({"source": places[:, :keys], "target": places[:, keys:]}, steps, "target")


def _shares(batch: PretrainedBatch, run: Recorded, layer: Layer, *, own: bool) -> Tensor:
    """Return the shares of the keys in each query's state (B, T, S); of the state itself, too, in another column unless it is a key."""
    kind, numbers = type(batch.model).__name__, layer.weights[:, 0].numel()
    if numbers * batch.vectors.shape[-1] > MOST_NUMBERS:
        raise ConfigError(f"{METHOD}: {tuple(layer.weights.shape)} weights of {kind} make vectors of more than 1 GiB; take value-norms")
    vectors = torch.cat([*added_by_keys(batch, run, layer, METHOD)]).movedim(0, -1)
    assert layer.projection is not None
    there = _added_to(run, layer.projection)
    if there is None:
        raise ConfigError(f"{METHOD}: {kind} does not add what an attention found to what its layer has read; take value-norms or rollout")
    stream, allowed = there.stream, layer.weights.detach().sum(1) > 0
    if own:
        same = torch.eye(stream.shape[1], device=stream.device)
        vectors, allowed = vectors + same[..., None] * stream.unsqueeze(2), allowed | same.bool()
    else:
        vectors, allowed = torch.cat([vectors, stream.unsqueeze(2)], 2), nn.functional.pad(allowed, (0, 1), value=True)
    if not there.post:
        return nearness(there.norm.given, vectors, allowed)
    linear = _linear_part(there.norm, vectors)
    if linear is None:
        raise ConfigError(f"{METHOD}: {there.norm.kind} of {kind} is no layer norm; take value-norms or rollout")
    return nearness(there.norm.output, linear, allowed)


def _added_to(run: Recorded, projection: int) -> _Sum | None:
    """Find the residual connection around an attention."""
    like = run.calls[projection].output
    # Some models put all positions in one row for a while.
    calls = [call._replace(given=_shaped(call.given, like), output=_shaped(call.output, like)) for call in run.calls]
    norms = [number for number in range(projection + 1, len(calls)) if _is_norm(calls[number], like)]
    if len(norms) < 2:
        return None
    read, follows = calls[norms[0]], calls[norms[1]]
    stream = read.given - like
    if not any(_same(stream, part) for call in calls[:projection] for part in (call.given, call.output)):
        return None
    for call in reversed(calls[norms[0] + 1 : norms[1]]):
        if call.output.shape == like.shape:
            rest = follows.given - call.output
            for post, part in enumerate((read.given, read.output)):
                if _same(rest, part):
                    return _Sum(stream, read, bool(post))
    return None


def _shaped(x: Tensor, like: Tensor) -> Tensor:
    return x.detach().reshape(like.shape) if x.numel() == like.numel() and x.shape[-1] == like.shape[-1] else x.detach()


def _is_norm(call: Call, like: Tensor) -> bool:
    return call.weight.dim() == 1 and call.given.shape == call.output.shape == like.shape


def _same(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-4, atol=1e-4 * float(other.abs().max()))


def _linear_part(norm: Call, vectors: Tensor) -> Tensor | None:
    """Apply a norm to vectors (B, T, S, E), without its bias, at the observed variance; None for another kind of norm."""
    weight, output = norm.weight.detach(), norm.output if norm.bias is None else norm.output - norm.bias.detach()

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    for prepare in (centred, torch.clone):
        found = prepare(norm.given) * weight
        scale = output.abs().sum(-1, keepdim=True) / found.abs().sum(-1, keepdim=True)
        if _same(found * scale, output):
            return prepare(vectors) * weight * scale.unsqueeze(2)
    return None
