"""Faithfulness of an explanation: the effect of removing its top inputs, and of randomized weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explanations.batches import ModelBatch
from regard.explanations.method_arguments import takes_batch
from regard.explanations.occlusion import kept_log_probs

SHARES = (0.1, 0.2, 0.3, 0.4, 0.5)
"""Shares of the inputs that are removed or kept."""

AnyModule = TypeVar("AnyModule", bound=nn.Module)


class ErasureCurves(NamedTuple):
    """Effect of removing or keeping the top-ranked inputs on the probability of N outputs.

    Attributes:
        comprehensiveness: (N, K) probability lost without the top inputs, for each of K shares; high is faithful.
        sufficiency: (N, K) probability lost with the top inputs alone; low is faithful.
    """

    comprehensiveness: Tensor
    sufficiency: Tensor

    @property
    def areas(self) -> tuple[Tensor, Tensor]:
        """Mean of both over the shares, (N,) each: the area over the perturbation curve (AOPC)."""
        return self.comprehensiveness.mean(1), self.sufficiency.mean(1)


@takes_batch
def erasure_curves(batch: ModelBatch, outputs: Tensor, scores: Tensor, *, shares: Sequence[float] = SHARES, seed: int = 1) -> ErasureCurves:
    """Measure comprehensiveness and sufficiency of a ranking of inputs.

        comprehensiveness(q) = p(y | x) - p(y | x without its first q inputs)
        sufficiency(q)       = p(y | x) - p(y | its first q inputs alone)

    DeYoung et al. 2020 (arXiv:1911.03429), section 4; their AOPC is the mean over the shares q. Of n inputs the first q are ceil(q n). They
    remove 1, 5, 10, 20 and 50 % of the tokens; sentences here are short, so the shares are evenly spaced.

    Args:
        batch: N examples, one per output.
        outputs: (N,) the output index of each example.
        scores: (N, S), higher ranks earlier. Inputs with equal scores are ranked at random: by place, weights that are all equal would
            look faithful wherever the first word matters most.
        shares: q, above 0 and up to 1.
        seed: seed of the order of equal scores.

    Raises:
        ConfigError: a share is out of range.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5, 6]])], [torch.tensor([3])], torch.tensor([1]))
        >>> curves = erasure_curves(batch, torch.tensor([0]), torch.tensor([[0.5, 0.1, 0.2]]), shares=[0.3, 1.0])
        >>> curves.sufficiency[0, 1].item()  # with all inputs nothing is lost
        0.0
    """
    if not shares or min(shares) <= 0 or max(shares) > 1:
        raise ConfigError(f"faithfulness: shares {list(shares)}: expected numbers above 0 and up to 1")
    ranked = batch.inputs_of(outputs)  # (N, S)
    mixed = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)).argsort(1).to(scores.device)
    order = mixed.gather(1, scores.masked_fill(~ranked, -torch.inf).gather(1, mixed).argsort(dim=1, descending=True, stable=True))
    place = order.argsort(dim=1)  # (N, S): from 0, the first
    count = ranked.sum(1, keepdim=True).double()  # in float32 30 % of 50 are more than 15
    rows = torch.arange(len(scores), device=scores.device)
    masks = [torch.ones_like(ranked)]
    for share in shares:
        first = (place < torch.ceil(share * count - 1e-9)) & ranked
        masks += [~first, first | ~ranked]
    found = kept_log_probs(batch, rows.repeat(len(masks)), torch.cat(masks))
    found = found.gather(1, outputs.repeat(len(masks)).unsqueeze(1)).exp().unflatten(0, (len(masks), -1)).squeeze(2)
    whole, without, only = found[0], found[1::2], found[2::2]
    return ErasureCurves((whole - without).T, (whole - only).T)


def rank_correlation(one: Tensor, other: Tensor, ranked: Tensor) -> Tensor:
    """Return Spearman's rank correlation of two scores of the same inputs.

    Args:
        one: (N, S) scores.
        other: (N, S).
        ranked: (N, S) bool, the inputs that count.

    Returns:
        (N,) float64, -1 to 1; NaN with fewer than two inputs or constant scores.

    Example:
        >>> rank_correlation(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.3, 0.2, 0.1]]), torch.ones(1, 3, dtype=torch.bool)).item()
        -1.0
    """
    found = []
    for row, other_row, real in zip(one, other, ranked, strict=True):
        a, b = (_ranks(part[real].double()) for part in (row, other_row))
        a, b = a - a.mean(), b - b.mean()
        size = (a.square().sum() * b.square().sum()).sqrt()
        found.append((a * b).sum() / size if len(a) > 1 and size > 0 else torch.tensor(torch.nan, dtype=torch.float64))
    return torch.stack(found).clamp(-1.0, 1.0) if found else torch.zeros(0, dtype=torch.float64)


def _ranks(values: Tensor) -> Tensor:
    # Ties share their mean rank.
    _, group, counts = values.unique(sorted=True, return_inverse=True, return_counts=True)
    last = counts.cumsum(0)
    return ((2 * last - counts - 1).double() / 2)[group]


def randomized(model: AnyModule, *, seed: int = 1) -> AnyModule:
    """Return a copy of a model with the entries of each weight matrix shuffled.

    For the sanity check of Adebayo et al. 2018 (arXiv:1810.03292): an explanation that stays the same for random weights does not explain
    the model. Differs from the paper: entries are shuffled, not redrawn, to keep their scale; vectors such as biases and norms are
    unchanged.

    Args:
        model: not modified.
        seed: seed of the shuffling.

    Example:
        >>> layer = nn.Linear(3, 2)
        >>> other = randomized(layer)
        >>> torch.equal(other.weight.flatten().sort().values, layer.weight.flatten().sort().values), torch.equal(other.bias, layer.bias)
        (True, True)
    """
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.dim() > 1:
                shuffled = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
                parameter.copy_(parameter.flatten()[shuffled].view_as(parameter))
    return other


def with_model(batch: ModelBatch, model: Any) -> ModelBatch:
    """Return the same examples and outputs for another model of the same kind."""
    return replace(batch, model=model)  # type: ignore[type-var]
