"""Explanation methods inside the attention of Hugging Face models: gradients of its weights, and norms of the values that it sums."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explanations.gradients import each_output, outside_inference, recording
from regard.observe.pretrained_batch import PretrainedBatch

# Weights of attention in memory at once, for the norms of values.
MOST_WEIGHTS = 2**24
# Of an output: what holds weights.
FIELDS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


class Call(NamedTuple):
    """A module with a weight that has run: its class, its first argument, and its output."""

    kind: str
    weight: Tensor
    bias: Tensor | None
    given: Tensor
    output: Tensor


class Layer(NamedTuple):
    """Weights (B, H, T, S) of an attention, and the number of the call that projects its output; None where it was not found."""

    weights: Tensor
    projection: int | None


class Recorded(NamedTuple):
    """The output of a model; its layers by the field of the output that holds their weights; calls of modules with a weight, in order."""

    output: Any
    layers: dict[str, list[Layer]]
    calls: list[Call]


@outside_inference
def gradient_times_weights(batch: PretrainedBatch) -> Tensor:
    """Return the product of the weights of the last layer with their gradient, summed over heads and queries.

        r[t, s] = sum over heads h and queries q of a_h[q, s] d log p(y_t | x) / d a_h[q, s]

    Serrano and Smith 2019 (arXiv:1906.03731), section 3. The layer is the last one, of an encoder-decoder the last cross-attention. Where
    output t is predicted from query t, no other query counts.

    Args:
        batch: B examples; T backward passes.

    Returns:
        (B, T, S'), nats, for the keys of the attention.

    Raises:
        ConfigError: the model returns no weights.
    """
    run = record(batch, "gradient-attention")
    weights = last_layers(run)[-1].weights

    def shares(total: Tensor, keep: bool) -> Tensor:
        (found,) = torch.autograd.grad(total, weights, retain_graph=keep, allow_unused=True)
        return weights.new_zeros(len(weights), weights.shape[3]) if found is None else (weights * found).sum((1, 2))

    return each_output(batch.log_probs_of(run.output), shares).detach()


@outside_inference
def norms_of_values(batch: PretrainedBatch, *, every_layer: bool = False) -> Tensor:
    """Return the norm of what each key adds to each query's output of the last layer.

        r[t, s] = || sum over heads h of a_h[t, s] f_h(x_s) ||, with f_h(x) = (x W_V,h + b_V,h) W_O,h

    Kobayashi et al. 2020 (EMNLP), Eq. 3. The output is linear in the weights, so its derivative by a weight is f_h(x_s): no projection need
    be found by name.

    Args:
        batch: B examples; as many backward passes through one attention as its output has entries.
        every_layer: sum over all layers (of an encoder-decoder: of the decoder) instead of the last one.

    Returns:
        (B, T', S'), for the queries and keys of the attention.

    Raises:
        ConfigError: the model returns no weights, or their output is projected in an unknown way.
    """
    run, found = record(batch, "value-norms"), list[Tensor]()
    for layer in last_layers(run) if every_layer else last_layers(run)[-1:]:
        squares = [part.square().sum(0) for part in added_by_keys(batch, run, layer, "value-norms")]
        found.append(torch.stack(squares).sum(0).sqrt())
    return torch.stack(found).sum(0)


def added_by_keys(batch: PretrainedBatch, run: Recorded, layer: Layer, method: str) -> Iterator[Tensor]:
    """Return what each key adds to the projected output (B, T, E) of an attention: parts (entries, B, T, S) of all E entries.

    Raises:
        ConfigError: at the end, if the output is not the sum of what the keys add, and a bias; the message names the method.
    """
    rest, output = list[Tensor](), None
    if layer.projection is not None:
        output = run.calls[layer.projection].output
        size = output.shape[-1]
        for entries in torch.arange(size).split(max(1, MOST_WEIGHTS // layer.weights.numel())):
            chosen = nn.functional.one_hot(entries, size).to(output)[:, None, None].expand(-1, *output.shape)
            (found,) = torch.autograd.grad(output, layer.weights, chosen, retain_graph=True, is_grads_batched=True)
            added = (layer.weights * found).sum(2).detach()
            rest.append((output[..., entries].movedim(-1, 0).detach() - added.sum(-1)).flatten(1))
            yield added
    left = torch.cat(rest) if rest else None
    if output is None or left is None or not torch.allclose(left, left[:, :1], rtol=1e-3, atol=1e-3 * float(output.detach().abs().max())):
        kind = type(batch.model).__name__
        raise ConfigError(f"{method}: no output projection was found behind an attention of {kind}; take gradient-attention")


def call_of(module: nn.Module, given: tuple[Any, ...], output: Any) -> Call | None:
    """Return a call, if it is one of a module with a weight from a tensor to a tensor."""
    weight = getattr(module, "weight", None)
    if isinstance(output, Tensor) and given and isinstance(given[0], Tensor) and isinstance(weight, Tensor):
        return Call(type(module).__name__, weight, getattr(module, "bias", None), given[0], output)
    return None


def last_layers(run: Recorded) -> list[Layer]:
    """Return the layers that attend to the inputs, of an encoder-decoder the cross-attentions."""
    return run.layers.get("cross_attentions") or run.layers["attentions"]


def record(batch: PretrainedBatch, method: str) -> Recorded:
    """Run a model, with gradients.

    Raises:
        ConfigError: it returns no weights; the message names the method.
    """
    kind, seen, calls = type(batch.model).__name__, list[tuple[Tensor, Tensor]](), list[Call]()
    if batch.vectors.dtype in (torch.float16, torch.bfloat16) and method != "gradient-attention":
        raise ConfigError(f"{method}: {kind} computes in {batch.vectors.dtype}, too roughly for this; load it with dtype=torch.float32")

    def after(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[0], Tensor):
            seen.extend((output[0], part) for part in output[1:] if isinstance(part, Tensor) and part.dim() == 4)
        if (call := call_of(module, given, output)) is not None:
            calls.append(call)

    with ExitStack() as hooks, eager(batch.model), recording(batch.model):
        for module in batch.model.modules():
            hooks.callback(module.register_forward_hook(after).remove)
        output = batch.output(output_attentions=True)
    layers = dict[str, list[Layer]]()
    for field in FIELDS:
        for weights in getattr(output, field, None) or ():
            inner = next((own for own, found in seen if found is weights), None)
            if inner is None:  # a stack is whole, or not there
                layers.pop(field, None)
                break
            # Some modules leave the output projection to the module around them.
            maps = [number for number, call in enumerate(calls) if call.weight.dim() == 2]
            near = [number for number in maps if calls[number].output is inner]
            near = near or [number for number in maps if calls[number].given is inner]
            # The last one: a module around a projection adds to it.
            layers.setdefault(field, []).append(Layer(weights, near[-1] if near else None))
    if not layers.keys() & {"cross_attentions", "attentions"}:
        raise ConfigError(f"{method}: {kind} returns no attention weights, also with attn_implementation='eager'; take leave-one-out")
    return Recorded(output, layers, calls)


@contextmanager
def eager(model: Any) -> Iterator[None]:
    """Let a model compute its weights, which fused kernels do not return."""
    before = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if before in (None, "eager") or not callable(getattr(model, "set_attn_implementation", None)):
        yield
        return
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)
