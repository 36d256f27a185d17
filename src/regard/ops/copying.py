"""The pointer-generator distribution: words of the vocabulary, or copied from the source by its attention weights."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.cross_entropy import SequenceLoss
from regard.ops.number_checks import check_count, check_number, check_share
from regard.ops.tensor_checks import Argument, Signature, check_range, no_autocast

LEAST = 1e-10
"""Probability of a target word that is in neither the vocabulary nor the attended source: a loss of 23 nats instead of infinity."""

_ARGUMENTS = (
    Argument("logits", "B T V"),
    Argument("gate", "B T"),
    Argument("weights", "B T S"),
    Argument("places", "B S", dtype="int64"),
)
_MIXTURE = Signature("copy_log_probs", *_ARGUMENTS)
_LOSS = Signature("copy_loss", *_ARGUMENTS, Argument("goals", "B T", dtype="int64"), Argument("real", "B T", dtype="bool"))


@takes_tensors
def copy_places(source: Tensor, vocab_size: int) -> Tensor:
    """Number the words of a source in its extended vocabulary: V entries, and one for each source position.

    A word of the vocabulary keeps its id. Any other id stands for an unknown word; it becomes V plus the first position with that id, so
    that the same unknown word is one entry wherever it stands.

    Args:
        source: (B, S) token ids; those of V and more are names of unknown words.
        vocab_size: V.

    Returns:
        (B, S) long, below V + S.

    Raises:
        ConfigError: `vocab_size` is no whole number of at least 0.
        ShapeError: the source is not (B, S), or holds no whole numbers.
        RangeError: on a CPU, an id is negative.

    Example:
        >>> copy_places(torch.tensor([[4, 900, 5, 700, 900]]), 7).tolist()
        [[4, 8, 5, 10, 8]]
    """
    check_count("copy_places", "vocab_size", vocab_size)
    _check_ids("copy_places", source=source)
    if not source.shape[1]:
        return source
    first = (source.unsqueeze(2) == source.unsqueeze(1)).to(torch.uint8).argmax(-1)
    return torch.where(source < vocab_size, source, vocab_size + first)


@takes_tensors
def copy_goals(target: Tensor, source: Tensor, vocab_size: int, *, unknown: int) -> Tensor:
    """Number the words of a target in the extended vocabulary of its source; an unknown word that the source lacks is `unknown`.

    Args:
        target: (B, T) token ids; those of V and more are names of unknown words.
        source: (B, S) token ids, likewise.
        vocab_size: V.
        unknown: id of the unknown word.

    Returns:
        (B, T) long, below V + S.

    Raises:
        ConfigError: `vocab_size` is no whole number of at least 0, or `unknown` none below it.
        ShapeError: ids are not (B, T) and (B, S), or no whole numbers.
        RangeError: on a CPU, an id is negative.

    Example:
        >>> copy_goals(torch.tensor([[900, 4, 800]]), torch.tensor([[4, 900]]), 7, unknown=1).tolist()
        [[8, 4, 1]]
    """
    check_count("copy_goals", "vocab_size", vocab_size)
    check_count("copy_goals", "unknown", unknown)
    check_number("copy_goals", "unknown", unknown, 0, vocab_size - 1)
    _check_ids("copy_goals", target=target, source=source)
    if not source.shape[1]:
        return target.masked_fill(target >= vocab_size, unknown)
    same = target.unsqueeze(2) == source.unsqueeze(1)
    found = torch.where(same.any(-1), vocab_size + same.to(torch.uint8).argmax(-1), unknown)
    return torch.where(target < vocab_size, target, found)


def _check_ids(operation: str, **ids: Tensor) -> None:
    for name, tensor in ids.items():
        check_range(operation, name, tensor, 0, 2**63 - 1)
        if tensor.dim() != 2:
            raise ShapeError(
                f"{operation}: {name} must have two axes, (B, {'T' if name == 'target' else 'S'}), found {tuple(tensor.shape)}"
            )


class _Parts(NamedTuple):
    """Log-probabilities of the two ways to produce a word, without their sum."""

    generated: Tensor  # (B, T, V) log p_gen + log P_vocab
    copied: Tensor  # (B, T, S) (1 - p_gen) * the weights of all positions that hold the word of this one


@takes_tensors
def copy_log_probs(logits: Tensor, gate: Tensor, weights: Tensor, places: Tensor) -> Tensor:
    """Mix the distribution of the vocabulary with a copy distribution.

        p(w) = p_gen P_vocab(w) + (1 - p_gen) sum over s with source_s = w of a_s,   p_gen = sigmoid(gate)

    See et al. 2017 (arXiv:1704.04368), Eq. 9, over the vocabulary extended by the unknown words of each source. Weights are normalized
    first; rows of zeros copy nothing. A weight of exactly 0 gets no gradient, as from a normalizer that gave it.

    Args:
        logits: (B, T, V), of P_vocab.
        gate: (B, T), the log-odds of generating.
        weights: (B, T, S) attention over the source, a.
        places: (B, S) from `copy_places`.

    Returns:
        (B, T, V + S) nats, float32 at least; -inf for entries of the extension that the source lacks or that get no weight.

    Raises:
        ShapeError: shapes that do not agree.

    Example:
        >>> places = copy_places(torch.tensor([[1, 900]]), 2)
        >>> copy_log_probs(torch.zeros(1, 1, 2), torch.zeros(1, 1), torch.tensor([[[0.5, 0.5]]]), places).exp().tolist()
        [[[0.25, 0.5, 0.0, 0.25]]]
    """
    _MIXTURE.check(logits, gate, weights, places)
    check_range("copy_log_probs", "places", places, 0, logits.shape[-1] + places.shape[1] - 1)
    generated, copied = _parts(logits, gate, weights, places)
    size, source = logits.shape[-1], places.shape[1]
    first = _firsts(places)
    mass = torch.zeros_like(generated[..., :1]).expand(*generated.shape[:2], size + source)
    index = places.unsqueeze(1).expand_as(copied)
    mass = mass.scatter_add(-1, index, copied.masked_fill(~first.unsqueeze(1), 0.0))
    extended = F.pad(generated, (0, source), value=-torch.inf)
    return _joined(extended, mass)


@takes_tensors
def copy_loss(
    logits: Tensor, gate: Tensor, weights: Tensor, places: Tensor, goals: Tensor, *, real: Tensor, label_smoothing: float = 0.0
) -> SequenceLoss:
    """Sum the negative log-likelihood of goals under `copy_log_probs`, without its (B, T, V + S) result.

    Args:
        logits: (B, T, V).
        gate: (B, T).
        weights: (B, T, S).
        places: (B, S).
        goals: (B, T) from `copy_goals`, 0 to V + S - 1; any number at padding.
        real: (B, T) bool, False at padding.
        label_smoothing: eps, 0 <= eps < 1: the loss is (1 - eps) nll + eps times the mean of -log p over the V words of the vocabulary.

    Returns:
        Sums over the real goals. A goal of probability 0, such as an unknown word that sparse attention gives no weight, counts as
        `LEAST`, without a gradient.

    Raises:
        ShapeError: shapes that do not agree.
        RangeError: on a CPU, a place or a goal is out of range.
        ConfigError: a label smoothing outside of 0 <= eps < 1.

    Example:
        >>> places = copy_places(torch.tensor([[1, 900]]), 2)
        >>> gate, weights, goals = torch.zeros(1, 1), torch.tensor([[[0.5, 0.5]]]), torch.tensor([[3]])
        >>> loss = copy_loss(torch.zeros(1, 1, 2), gate, weights, places, goals, real=torch.tensor([[True]]))
        >>> loss.nll.exp().item()
        4.0
    """
    _LOSS.check(logits, gate, weights, places, goals, real)
    check_share("copy_loss", "label_smoothing", label_smoothing)
    most = logits.shape[-1] + places.shape[1] - 1
    check_range("copy_loss", "places", places, 0, most)
    goals = goals.masked_fill(~real, 0)
    check_range("copy_loss", "goals", goals, 0, most)
    generated, copied = _parts(logits, gate, weights, places)
    size, first = logits.shape[-1], _firsts(places).unsqueeze(1)
    # Log-probability of the word at each source position, and of the goals.
    inside = places < size
    own = generated.gather(-1, places.masked_fill(~inside, 0).unsqueeze(1).expand_as(copied))
    own = own.masked_fill(~inside.unsqueeze(1), -torch.inf)
    at_source = _joined(own, copied)
    same = goals.unsqueeze(2) == places.unsqueeze(1)
    alone = generated.gather(-1, goals.clamp(max=size - 1).unsqueeze(2)).squeeze(2).masked_fill(goals >= size, -torch.inf)
    found = alone
    if places.shape[1]:
        at = same.to(torch.uint8).argmax(-1, keepdim=True)
        found = torch.where(same.any(-1), at_source.gather(-1, at).squeeze(2), alone)
    certain = found > -torch.inf
    nll = -torch.where(certain, found, 0.0).masked_fill(~real, 0.0).sum()
    nll = nll - (~certain & real).sum() * torch.log(nll.new_tensor(LEAST))
    loss = nll
    if label_smoothing:
        more = torch.where(inside.unsqueeze(1) & first & (copied > 0), at_source - own, 0.0)
        smooth = -(generated.mean(-1) + more.sum(-1) / size)
        loss = (1 - label_smoothing) * nll + label_smoothing * smooth.masked_fill(~real, 0.0).sum()
    with torch.no_grad():
        best = generated.amax(-1)
        if places.shape[1]:
            best = torch.maximum(best, at_source.amax(-1))
        correct = (certain & real & (found >= best)).sum().to(nll.dtype)
    return SequenceLoss(loss, nll.detach(), real.sum(), correct)


def _parts(logits: Tensor, gate: Tensor, weights: Tensor, places: Tensor) -> _Parts:
    logits, gate, weights = (part if part.dtype == torch.float64 else part.float() for part in (logits, gate, weights))
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    same = (places.unsqueeze(2) == places.unsqueeze(1)).to(weights.dtype)
    with no_autocast(weights):
        copied = torch.sigmoid(-gate).unsqueeze(-1) * (weights @ same)
    return _Parts(logits.log_softmax(-1) + F.logsigmoid(gate).unsqueeze(-1), copied)


def _joined(generated: Tensor, mass: Tensor) -> Tensor:
    # log(exp(generated) + mass); where the mass is 0 its logarithm would have an infinite gradient.
    some = mass > 0
    log_mass = torch.where(some, mass, 1.0).log()
    both = generated > -torch.inf
    return torch.where(some, torch.where(both, torch.logaddexp(torch.where(both, generated, 0.0), log_mass), log_mass), generated)


def _firsts(places: Tensor) -> Tensor:
    # (B, S): the first position of each word.
    if not places.shape[1]:
        return torch.zeros_like(places, dtype=torch.bool)
    first = (places.unsqueeze(2) == places.unsqueeze(1)).to(torch.uint8).argmax(-1)
    return first == torch.arange(places.shape[1], device=places.device)
