"""ALTI of Hugging Face models: what each layer's attention adds to its residual connection, found without names of modules."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explanations.gradients import outside_inference
from regard.explanations.rollout import LayerGraph, Shares, compose, nearness
from regard.observe.pretrained_batch import PretrainedBatch
from regard.observe.within import Call, Layer, Recorded, added_by_keys, call_of, eager, record

METHOD = "alti"
# Numbers in the vectors of one layer: 1 GiB.
MOST_NUMBERS = 2**28


class _Sum(NamedTuple):
    """Where the output of an attention is added to the stream (B, T, E).

    Attributes:
        projection: the number of the call that returns the output.
        source: the number of the call that has read the stream, and whether it is its output.
        stream: before the sum.
        norm: the next norm, which reads the sum.
        post: whether what the norm returns is the stream.
    """

    projection: int
    source: tuple[int, bool]
    stream: Tensor
    norm: Call
    post: bool


@outside_inference
def layer_shares(batch: PretrainedBatch) -> Tensor:
    """Attribute each layer's output to its inputs and compose all layers: `regard.explanations.alti` for Hugging Face models.

    No module is found by its name. The output of an attention is linear in its weights (see `norms_of_values`). The next norm reads its sum
    with the stream, and the residual connection behind tells whether the stream goes on before that norm or after it. Two more passes show
    that nothing but these sums mixes positions or goes around a layer.

    Args:
        batch: B examples; as many backward passes through each attention as its output has entries.

    Returns:
        (B, T, S) for T states of the last layer and S keys; of an encoder-decoder S of the encoder, and its rows sum to at most 1.

    Raises:
        ConfigError: the model returns no weights; their output is projected in an unknown way, or not added to what the layer has read, as
            with parallel layers; something else mixes positions, as convolutions do; the vectors of a layer take more than 1 GiB.
    """
    run, kind = record(batch, METHOD), type(batch.model).__name__
    both = "cross_attentions" in run.layers
    needed = ("encoder_attentions", "decoder_attentions", "cross_attentions") if both else ("attentions",)
    if not all(run.layers.get(field) for field in needed):
        raise ConfigError(f"{METHOD}: {kind} does not return the weights of all layers; take leave-one-out")
    if any(layer.weights.shape[2] != layer.weights.shape[3] for field in needed[:2] for layer in run.layers[field]):
        raise ConfigError(f"{METHOD}: the layers of {kind} attend to fewer places than they have; take leave-one-out")
    stacks = [[(layer, _sum(batch, run, layer)) for layer in run.layers[field]] for field in needed]
    if not _only_paths(batch, run, sorted((there for stack in stacks for _, there in stack), key=lambda there: there.projection)):
        raise ConfigError(f"{METHOD}: not only attention and residual connections mix positions and layers in {kind}; take leave-one-out")
    steps = [Shares({"source": {"source": _shares(batch, run, *each, own=True)}}) for each in stacks[0]]
    keys, queries = stacks[0][0][0].weights.shape[3], None
    if both:
        queries = stacks[1][0][0].weights.shape[2]
        for own, cross in zip(*stacks[1:], strict=True):
            found = _shares(batch, run, *cross, own=False)
            steps.append({"target": {"target": _shares(batch, run, *own, own=True)}})
            steps.append({"target": {"source": found[..., :-1], "target": found[..., -1].diag_embed()}})
    return compose(layer_graph(steps, keys, queries, len(batch.vectors)))[..., :keys]


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


def _shares(batch: PretrainedBatch, run: Recorded, layer: Layer, there: _Sum, *, own: bool) -> Tensor:
    """Return the shares of the keys in each query's state (B, T, S); of the state itself, too, in another column unless it is a key."""
    vectors, kind = torch.cat([*added_by_keys(batch, run, layer, METHOD)]).movedim(0, -1), type(batch.model).__name__
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


def _sum(batch: PretrainedBatch, run: Recorded, layer: Layer) -> _Sum:
    """Find the residual connection around an attention."""
    kind, shape = type(batch.model).__name__, tuple(layer.weights.shape)
    if layer.projection is None:
        raise ConfigError(f"{METHOD}: no output projection was found behind an attention of {kind}; take gradient-attention")
    if layer.weights[:, 0].numel() * run.calls[layer.projection].output.shape[-1] > MOST_NUMBERS:
        raise ConfigError(f"{METHOD}: {shape} weights of {kind} make vectors of more than 1 GiB, several times; take value-norms")
    found = _added_to(run, layer.projection)
    if found is None:
        raise ConfigError(f"{METHOD}: {kind} does not add what an attention found to what its layer has read; take leave-one-out")
    return found


def _added_to(run: Recorded, projection: int) -> _Sum | None:
    like = run.calls[projection].output.detach()
    # Some models put all positions in one row for a while.
    calls = [call._replace(given=_shaped(call.given, like), output=_shaped(call.output, like)) for call in run.calls]
    norms = [number for number in range(projection + 1, len(calls)) if _is_norm(calls[number], like)]
    if len(norms) < 2:
        return None
    read, follows = calls[norms[0]], calls[norms[1]]
    size = read.given.abs() + like.abs()
    places = [(number, output) for number in range(projection) for output in (False, True)]
    source = next((place for place in reversed(places) if _same(read.given - like, _part(calls, place), size)), None)
    if source is None:
        return None
    for call in reversed(calls[norms[0] + 1 : norms[1]]):
        if call.output.shape == like.shape:
            size = follows.given.abs() + call.output.abs()
            for post, part in enumerate((read.given, read.output)):
                if _same(follows.given - call.output, part, size):
                    return _Sum(projection, source, _part(calls, source), read, bool(post))
    return None


def _part(calls: list[Call], place: tuple[int, bool]) -> Tensor:
    number, output = place
    return calls[number].output if output else calls[number].given


def _only_paths(batch: PretrainedBatch, run: Recorded, sums: list[_Sum]) -> bool:
    """Tell whether each sum depends on nothing but the one before it, position by position, and on its attention.

    Every other sum is changed at one position, and its attention's output is set so that the others keep their values. What the layers
    behind those read must keep its value, too, and what is read behind a changed one may change at that position only.
    """
    generator = torch.Generator().manual_seed(1)

    def changed(x: Tensor) -> Tensor:
        noise = torch.zeros(x.shape)
        noise[:, x.shape[1] // 2] = torch.randn(x.shape[2], generator=generator)
        return x + noise.to(x) * x.square().mean().sqrt()

    with torch.no_grad():
        logits = batch.logits_of(run.output)
        for parity in (0, 1):
            moved = [number % 2 == parity for number in range(len(sums))]
            wanted = [changed(one.norm.given) if move else one.norm.given for one, move in zip(sums, moved, strict=True)]
            vectors = changed(batch.vectors) if parity else batch.vectors
            found = _with_sums(batch, run, sums, wanted, vectors)
            if found is None or not (moved[-1] or _near(found[1], logits)):
                return False
            for one, stream, before in zip(sums, found[0], [bool(parity), *moved], strict=False):
                rows = (stream - one.stream).abs().amax((0, 2)) > 1e-3 * one.stream.abs().max()
                if rows.sum() > int(before):
                    return False
    return True


def _with_sums(
    batch: PretrainedBatch, run: Recorded, sums: list[_Sum], wanted: list[Tensor], vectors: Tensor
) -> tuple[list[Tensor], Tensor] | None:
    """Run a model with other outputs of its attentions, so that its sums are these; return the streams before them, and the logits."""
    calls, streams, at = list[Call](), list[Tensor](), {one.projection: number for number, one in enumerate(sums)}

    def after(module: nn.Module, given: tuple[Any, ...], output: Any) -> Tensor | None:
        if (call := call_of(module, given, output)) is None:
            return None
        number, changed = at.get(len(calls)), None
        if number is not None:
            streams.append(_part(calls, sums[number].source).reshape(wanted[number].shape))
            changed = (wanted[number] - streams[-1]).reshape(call.output.shape)
            call = call._replace(output=changed)
        calls.append(call)
        return changed

    with ExitStack() as hooks, eager(batch.model):
        for module in batch.model.modules():
            hooks.callback(module.register_forward_hook(after).remove)
        logits = batch.logits_of(batch.output(vectors, output_attentions=True))
    return (streams, logits) if len(calls) == len(run.calls) else None


def _shaped(x: Tensor, like: Tensor) -> Tensor:
    return x.detach().reshape(like.shape) if x.numel() == like.numel() and x.shape[-1] == like.shape[-1] else x.detach()


def _is_norm(call: Call, like: Tensor) -> bool:
    return call.weight.dim() == 1 and call.given.shape == call.output.shape == like.shape


def _same(one: Tensor, other: Tensor, size: Tensor) -> bool:
    """Tell whether a difference is another tensor but for rounding; `size`: of what was subtracted."""
    return one.shape == other.shape and bool(((one - other).abs() <= 1e-5 * size + 1e-7).all())


def _near(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0.0, atol=1e-3 * float(other.abs().max()))


def _linear_part(norm: Call, vectors: Tensor) -> Tensor | None:
    """Apply a norm to vectors (B, T, S, E), without its bias, at the observed variance; None for another kind of norm."""
    weight, output = norm.weight.detach(), norm.output if norm.bias is None else norm.output - norm.bias.detach()

    def centred(x: Tensor) -> Tensor:
        return x - x.mean(-1, keepdim=True)

    for prepare in (centred, torch.clone):
        found = prepare(norm.given) * weight
        scale = output.abs().sum(-1, keepdim=True) / found.abs().sum(-1, keepdim=True)
        if torch.allclose(found * scale, output, rtol=1e-3, atol=1e-4 * float(output.abs().max())):
            return prepare(vectors) * weight * scale.unsqueeze(2)
    return None
