"""Explanation methods inside the attention of Hugging Face models: gradients of its weights, and norms of the values it sums."""

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


class _Layer(NamedTuple):
    """Weights (B, H, T, S) of an attention, and its projected output (B, T, E); None where the projection was not found."""

    weights: Tensor
    output: Tensor | None


class _Run(NamedTuple):
    """Log-probabilities (B, T) of the goals, and the layers that attend to the inputs."""

    log_probs: Tensor
    layers: list[_Layer]


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
    run = _run(batch, "gradient-attention")
    weights = run.layers[-1].weights

    def shares(total: Tensor, keep: bool) -> Tensor:
        (found,) = torch.autograd.grad(total, weights, retain_graph=keep, allow_unused=True)
        return weights.new_zeros(len(weights), weights.shape[3]) if found is None else (weights * found).sum((1, 2))

    return each_output(run.log_probs, shares).detach()


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
    run, found = _run(batch, "value-norms"), list[Tensor]()
    for layer in run.layers if every_layer else run.layers[-1:]:
        norms = None if layer.output is None else _norms(layer.weights, layer.output)
        if norms is None:
            kind = type(batch.model).__name__
            raise ConfigError(f"value-norms: no output projection was found behind an attention of {kind}; take gradient-attention")
        found.append(norms)
    return torch.stack(found).sum(0)


def _norms(weights: Tensor, output: Tensor) -> Tensor | None:
    """Return the norms; None if the output is something else than the sum of what the keys add, and a bias."""
    size, squares, rest = output.shape[-1], weights.new_zeros(len(weights), *weights.shape[2:]), list[Tensor]()
    for entries in torch.arange(size).split(max(1, MOST_WEIGHTS // weights.numel())):
        chosen = nn.functional.one_hot(entries, size).to(output)[:, None, None].expand(-1, *output.shape)
        (found,) = torch.autograd.grad(output, weights, chosen, retain_graph=True, is_grads_batched=True)
        added = (weights * found).sum(2)  # (entries, B, T, S)
        squares = squares + added.square().sum(0).detach()
        rest.append((output[..., entries].movedim(-1, 0) - added.sum(-1)).flatten(1).detach())
    left = torch.cat(rest)
    return squares.sqrt() if torch.allclose(left, left[:, :1], rtol=1e-3, atol=1e-3 * float(output.detach().abs().max())) else None


def _run(batch: PretrainedBatch, method: str) -> _Run:
    kind, seen = type(batch.model).__name__, list[tuple[Tensor, Tensor]]()
    projected = list[tuple[Tensor, Tensor]]()

    def after(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[0], Tensor):
            seen.extend((output[0], part) for part in output[1:] if isinstance(part, Tensor) and part.dim() == 4)
        weight = getattr(module, "weight", None)
        if isinstance(output, Tensor) and given and isinstance(weight, Tensor) and weight.dim() == 2:
            projected.append((given[0], output))

    with ExitStack() as hooks, _eager(batch.model), recording(batch.model):
        for module in batch.model.modules():
            hooks.callback(module.register_forward_hook(after).remove)
        output = batch.output(output_attentions=True)
    layers = list[_Layer]()
    for weights in getattr(output, "cross_attentions", None) or getattr(output, "attentions", None) or ():
        inner = next((own for own, found in seen if found is weights), None)
        if inner is None:
            break
        # Some modules leave the output projection to the module around them.
        layers.append(_Layer(weights, next((after for before, after in projected if before is inner or after is inner), None)))
    if not layers:
        raise ConfigError(f"{method}: {kind} returns no attention weights, also with attn_implementation='eager'; take leave-one-out")
    return _Run(batch.log_probs_of(output), layers)


@contextmanager
def _eager(model: Any) -> Iterator[None]:
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
