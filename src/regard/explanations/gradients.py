"""Methods based on the gradient of an output's log-probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import ConfigError, ShapeError
from regard.explanations.batches import ModelBatch, changed
from regard.explanations.method_arguments import takes_batch
from regard.ops.tensor_checks import check_floating

P = ParamSpec("P")
T = TypeVar("T")
Batch = TypeVar("Batch", bound=ModelBatch)

# Interpolated examples per forward pass.
ROWS = 64


def outside_inference(method: Callable[Concatenate[Batch, P], T]) -> Callable[Concatenate[Batch, P], T]:
    """Let a method that differentiates run inside `torch.inference_mode`, which records no graph.

    Tensors of a batch that were made there are copied. Weights that were made there are refused.
    """

    @wraps(method)
    def run(batch: Batch, *args: P.args, **settings: P.kwargs) -> T:
        if any(parameter.is_inference() for parameter in batch.model.parameters()):
            raise ConfigError(
                f"explanations: the weights of {type(batch.model).__name__} were made inside torch.inference_mode and have no gradient; "
                "build or load the model outside it"
            )
        with torch.inference_mode(False):
            return method(_recordable(batch), *args, **settings)

    return run


def _recordable(batch: Batch) -> Batch:
    names = [each.name for each in fields(batch)] if is_dataclass(batch) else []
    return changed(batch, **{name: _copied(getattr(batch, name)) for name in names}) if names else batch


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if isinstance(value, Mapping):
        return {name: _copied(part) for name, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


@contextmanager
def recording(model: nn.Module) -> Iterator[None]:
    """Record the graph of a forward pass, of a model with frozen parameters as well, which are frozen again afterwards.

    Example:
        >>> layer = nn.Linear(3, 2).requires_grad_(False)
        >>> with torch.no_grad(), recording(layer):
        ...     found = layer(torch.ones(3))
        >>> found.requires_grad, layer.weight.requires_grad
        (True, False)
    """
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad and parameter.is_floating_point()]
    with torch.enable_grad():
        try:
            for parameter in frozen:
                parameter.requires_grad_(True)
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(False)


@takes_batch
@outside_inference
def input_times_gradient(batch: ModelBatch) -> Tensor:
    """Return the product of each input vector with the gradient of each output's log-probability.

        r[t, s] = e_s . d log p(y_t | x) / d e_s

    Shrikumar et al. 2016 (arXiv:1605.01713); for words Denil et al. 2014 (arXiv:1412.6815).

    Args:
        batch: B examples; it takes T backward passes.

    Returns:
        (B, T, S), nats; signed.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> input_times_gradient(LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))).shape
        torch.Size([1, 1, 2])
    """
    vectors = batch.embed().detach()
    return (input_gradients(batch, vectors) * vectors.unsqueeze(1)).sum(-1)


@takes_batch
@outside_inference
def integrated_gradients(batch: ModelBatch, *, steps: int = 32, baseline: Tensor | None = None) -> Tensor:
    """Integrate the gradient along the straight line from a baseline to the input vectors.

        r[t, s] = (e_s - e'_s) . integral over a from 0 to 1 of d log p(y_t | e' + a (e - e')) / d e_s

    Sundararajan et al. 2017 (arXiv:1703.01365). Complete: a row sums to log p(y_t | e) - log p(y_t | e'), up to the integration error.
    Points and weights are Gauss-Legendre, as in captum.

    Args:
        batch: B examples; it takes `steps` forward and `steps` times T backward passes.
        steps: number of points, at least 1.
        baseline: e', (B, S, E), or with 1 for any axis; None: zeros.

    Returns:
        (B, T, S), nats; signed.

    Raises:
        ConfigError: `steps` is no whole number of at least 1.
        ShapeError: `baseline` is no floating tensor of this shape.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))
        >>> found, nothing = integrated_gradients(batch), torch.zeros_like(batch.embed())
        >>> torch.allclose(found.sum(2), batch.log_probs() - batch.log_probs(nothing), atol=1e-2)
        True
    """
    vectors = batch.embed().detach()
    start = torch.zeros_like(vectors)
    if baseline is not None:
        check_floating("integrated_gradients", baseline=baseline)
        shape = tuple(baseline.shape)
        if len(shape) != 3 or any(size not in (1, own) for size, own in zip(shape, vectors.shape, strict=True)):
            wanted = f"{tuple(vectors.shape)}, or with 1 for any axis"
            raise ShapeError(f"integrated_gradients: baseline must be (B, S, E) = {wanted}, found {shape}")
        start = baseline.expand_as(vectors)
    points, weights = np.polynomial.legendre.leggauss(steps)
    places = torch.tensor((points + 1) / 2, dtype=vectors.dtype, device=vectors.device)
    shares = torch.tensor(weights / 2, dtype=vectors.dtype, device=vectors.device)
    size = len(vectors)
    total = None
    for some, share in zip(*(part.split(max(1, ROWS // max(1, size))) for part in (places, shares)), strict=True):
        repeated = torch.arange(size, device=vectors.device).repeat(len(some))  # point by point
        between = (start + some[:, None, None, None] * (vectors - start)).flatten(0, 1)
        found = input_gradients(batch.select(repeated), between).unflatten(0, (len(some), size))
        part = torch.tensordot(share, found, dims=1)  # (B, T, S, E)
        total = part if total is None else total + part
    assert total is not None
    return (total * (vectors - start).unsqueeze(1)).sum(-1)


@takes_batch
@outside_inference
def input_gradients(batch: ModelBatch, vectors: Tensor) -> Tensor:
    """Return the gradient of each output's log-probability with respect to each input vector, at given vectors.

    Args:
        batch: B examples.
        vectors: (B, S, E), used instead of the inputs' own.

    Returns:
        (B, T, S, E).

    Raises:
        ShapeError: `vectors` are no floating tensor of this shape.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(embed_dim=7), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))
        >>> input_gradients(batch, batch.embed()).shape
        torch.Size([1, 1, 2, 7])
    """
    check_floating("input_gradients", vectors=vectors)
    if vectors.ndim != 3 or vectors.shape[:2] != batch.inputs.shape:
        raise ShapeError(
            f"input_gradients: vectors must be (B, S, E) with (B, S) = {tuple(batch.inputs.shape)}, found {tuple(vectors.shape)}"
        )
    with torch.enable_grad():
        read = vectors.detach().clone().requires_grad_()
        log_probs = batch.log_probs(read)
        return each_output(log_probs, lambda total, keep: torch.autograd.grad(total, read, retain_graph=keep)[0])


def each_output(log_probs: Tensor, gradient: Callable[[Tensor, bool], Tensor]) -> Tensor:
    """Call `gradient` with each output's log-probability summed over the examples: (B, T) to (B, T, ...).

    Its second argument tells whether the graph is needed again.

    Example:
        >>> x = torch.ones(2, 3, requires_grad=True)
        >>> each_output((2 * x).cumsum(1), lambda total, keep: torch.autograd.grad(total, x, retain_graph=keep)[0])[0].tolist()
        [[2.0, 0.0, 0.0], [2.0, 2.0, 0.0], [2.0, 2.0, 2.0]]
    """
    last, found = log_probs.shape[1] - 1, []
    for number in range(last + 1):
        with torch.enable_grad():  # the caller may have left the block that computed them
            total = log_probs[:, number].sum()
        found.append(gradient(total, number < last))
    return torch.stack(found, 1)
