"""Methods based on the gradient of an output's log-probability."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.explanations.batches import ModelBatch

# Interpolated examples per forward pass.
ROWS = 64


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
        ConfigError: `steps` is below 1.

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
    if steps < 1:
        raise ConfigError(f"integrated_gradients: steps {steps}: expected 1 or more")
    vectors = batch.embed().detach()
    start = torch.zeros_like(vectors) if baseline is None else baseline.expand_as(vectors)
    points, weights = np.polynomial.legendre.leggauss(steps)
    places = torch.tensor((points + 1) / 2, dtype=vectors.dtype, device=vectors.device)
    shares = torch.tensor(weights / 2, dtype=vectors.dtype, device=vectors.device)
    size = len(vectors)
    total = None
    for some, share in zip(*(part.split(max(1, ROWS // size)) for part in (places, shares)), strict=True):
        repeated = torch.arange(size, device=vectors.device).repeat(len(some))  # point by point
        between = (start + some[:, None, None, None] * (vectors - start)).flatten(0, 1)
        found = input_gradients(batch.select(repeated), between).unflatten(0, (len(some), size))
        part = torch.tensordot(share, found, dims=1)  # (B, T, S, E)
        total = part if total is None else total + part
    assert total is not None
    return (total * (vectors - start).unsqueeze(1)).sum(-1)


def input_gradients(batch: ModelBatch, vectors: Tensor) -> Tensor:
    """Return the gradient of each output's log-probability with respect to each input vector, at given vectors.

    Args:
        batch: B examples.
        vectors: (B, S, E), used instead of the inputs' own.

    Returns:
        (B, T, S, E).

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(embed_dim=7), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))
        >>> input_gradients(batch, batch.embed()).shape
        torch.Size([1, 1, 2, 7])
    """
    with torch.enable_grad():
        read = vectors.detach().requires_grad_()
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
    last = log_probs.shape[1] - 1
    return torch.stack([gradient(log_probs[:, number].sum(), number < last) for number in range(last + 1)], 1)
