"""Methods that remove inputs: one at a time, an area at a time, or greedily."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from regard import ops
from regard.errors import ShapeError
from regard.explanations.batches import ModelBatch
from regard.explanations.method_arguments import takes_batch
from regard.ops.tensor_checks import check_range

# Examples per forward pass.
ROWS = 256


class AreaEffects(NamedTuple):
    """Effects of removing areas.

    Attributes:
        areas: (B, T, N) log-probability lost without each area, in nats, in the order of `regard.ops.area_spans`.
        inputs: (B, T, S) the same per input: the mean, over the areas that contain it, of the loss per input.
    """

    areas: Tensor
    inputs: Tensor


@takes_batch
def kept_log_probs(batch: ModelBatch, rows: Tensor, kept: Tensor) -> Tensor:
    """Return the log-probabilities of outputs after removing inputs.

    Args:
        batch: B examples.
        rows: (N,) example indices.
        kept: (N, S) bool, False to remove an input.

    Returns:
        (N, T), nats.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))
        >>> kept_log_probs(batch, torch.tensor([0, 0]), torch.tensor([[True, True], [False, True]])).shape
        torch.Size([2, 1])
    """
    with torch.no_grad():
        parts = zip(rows.split(ROWS), kept.split(ROWS), strict=True)
        return torch.cat([batch.select(chosen).keep(left).log_probs() for chosen, left in parts])


@takes_batch
def leave_one_out(batch: ModelBatch) -> Tensor:
    """Return the log-probability that each output loses without each input.

        r[t, s] = log p(y_t | x) - log p(y_t | x without x_s)

    Li et al. 2016 (arXiv:1612.08220), "erasure". Gaps are closed; an image's cell becomes the mean cell.

    Args:
        batch: B examples; S + 1 forward passes each.

    Returns:
        (B, T, S), nats; positive if the input helped; 0 where `batch.inputs` is False.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> leave_one_out(LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))).shape
        torch.Size([1, 1, 2])
    """
    size = batch.inputs.shape[1]
    return _left_out(batch, ~torch.eye(size, dtype=torch.bool, device=batch.inputs.device))


@takes_batch
def replace_one(batch: ModelBatch, *, draws: int = 8, seed: int = 1) -> Tensor:
    """Return the log-probability that each output loses when each input becomes another word.

        r[t, s] = log p(y_t | x) - log mean over words w of p(y_t | x with w in place of x_s)

    Kim et al. 2020 (arXiv:2010.13984), "input marginalization", with words drawn uniformly from the vocabulary. Unlike `leave_one_out` no
    other input moves, and a repeated word does not take the place of the removed one.

    Args:
        batch: B examples; S times `draws` forward passes each.
        draws: words in place of each input; the same ones for all.
        seed: of the draws.

    Returns:
        (B, T, S), nats; positive if the input helped; 0 where `batch.inputs` is False.

    Raises:
        ConfigError: `draws` is no whole number of at least 1, or the inputs are not words.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> replace_one(LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))).shape
        torch.Size([1, 1, 2])
    """
    with torch.no_grad():
        words = batch.words(draws, torch.Generator().manual_seed(seed))
        vectors, (example, place) = batch.embed(), batch.inputs.nonzero(as_tuple=True)
        found = []
        for rows, places in zip(example.repeat_interleave(draws).split(ROWS), place.repeat_interleave(draws).split(ROWS), strict=True):
            if not len(rows):
                continue  # a batch without inputs to explain
            changed = vectors[rows].clone()
            first = sum(map(len, found))
            changed[torch.arange(len(rows)), places] = words[torch.arange(first, first + len(rows), device=words.device) % draws]
            found.append(batch.select(rows).log_probs(changed))
        whole = batch.log_probs()
        effects = whole.new_zeros(*batch.inputs.shape, whole.shape[1])
        if found:
            mean = torch.cat(found).unflatten(0, (-1, draws)).logsumexp(1) - math.log(draws)
            effects[example, place] = whole[example] - mean
    return effects.transpose(1, 2)


@takes_batch
def leave_one_area_out(batch: ModelBatch, max_area: int | tuple[int, int], *, grid: tuple[int, int] | None = None) -> AreaEffects:
    """Return the log-probability that each output loses without each area (a span of inputs or a rectangle of cells).

    The areas are those of area attention (Li et al. 2018).

    Args:
        batch: B examples; N + 1 forward passes each, for N areas.
        max_area: max length of an area; with a grid, its max (height, width).
        grid: (rows, columns) of the cells of an image; None for a sequence.

    Returns:
        `AreaEffects`. An area with a position outside `batch.inputs`, such as padding, has effect 0 and contributes to no input.

    Raises:
        ConfigError: a size is out of range.
        ShapeError: the grid does not hold S inputs.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5, 6]])], [torch.tensor([3])], torch.tensor([1]))
        >>> leave_one_area_out(batch, 2).areas.shape
        torch.Size([1, 1, 5])
    """
    size = batch.inputs.shape[1]
    count = ops.area_count(size if grid is None else grid, max_area)
    # The items of each area.
    held = ops.item_weights(torch.eye(count, device=batch.inputs.device), max_area, grid) > 0  # (N, S)
    effects = _left_out(batch, ~held)
    real = (batch.inputs.unsqueeze(1) | ~held).all(2)  # (B, N)
    shares = held / held.sum(1, keepdim=True)  # (N, S)
    among = real.to(shares.dtype) @ held.to(shares.dtype)  # (B, S): areas that hold an input
    inputs = (effects @ shares.to(effects.dtype)) / among.clamp(min=1).unsqueeze(1)
    return AreaEffects(effects, inputs)


@takes_batch
def greedy_order(batch: ModelBatch, output: Tensor, most: int, *, at_once: int = 1) -> Tensor:
    """Rank inputs by greedy removal: each step removes the input without which the output becomes least likely.

    The best ranking found one input at a time; each step costs a forward pass per remaining input.

    Args:
        batch: B examples.
        output: (B,) the output index of each example.
        most: max number of removed inputs.
        at_once: inputs removed per step: the most harmful ones, each alone; for many inputs.

    Returns:
        (B, S) scores: higher, the earlier removed; 0 for inputs that were not.

    Raises:
        ConfigError: `most` or `at_once` is no whole number, or too small.
        ShapeError: `output` is no tensor of whole numbers (B,).
        RangeError: on a CPU, there is no such output.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5, 6]])], [torch.tensor([3])], torch.tensor([1]))
        >>> sorted(greedy_order(batch, torch.tensor([0]), 2)[0].tolist())
        [0.0, 1.0, 2.0]
    """
    check_range("greedy_order", "output", output, 0, batch.outputs.shape[1] - 1)
    size = batch.inputs.shape[1]
    if output.shape != (len(batch.inputs),):
        raise ShapeError(f"greedy_order: output must be (B,) = ({len(batch.inputs)},), found {tuple(output.shape)}")
    kept = torch.ones_like(batch.inputs)
    ranked = batch.inputs_of(output)
    scores = torch.zeros(batch.inputs.shape, device=kept.device)
    for removed in range(0, most, at_once):
        example, place = (kept & ranked).nonzero(as_tuple=True)
        if not len(example):
            break
        left = kept[example]
        left[torch.arange(len(left)), place] = False
        found = kept_log_probs(batch, example, left)
        likely = torch.full((len(kept), size), torch.inf, device=kept.device)
        likely[example, place] = found.gather(1, output[example].unsqueeze(1)).squeeze(1).to(likely.dtype)
        least, chosen = likely.topk(min(at_once, most - removed, size), largest=False)
        rows, ranks = least.isfinite().nonzero(as_tuple=True)
        kept[rows, chosen[rows, ranks]] = False
        scores[rows, chosen[rows, ranks]] = (most - removed - ranks).to(scores.dtype)
    return scores


def _left_out(batch: ModelBatch, variants: Tensor) -> Tensor:
    """Return (B, T, N) the loss of each variant (N, S), True for kept inputs; 0 if it would remove a position that is no input."""
    inputs = batch.inputs
    usable = (inputs.unsqueeze(1) | variants).all(2)  # (B, N)
    example, variant = usable.nonzero(as_tuple=True)
    everything = torch.arange(len(inputs), device=inputs.device)
    rows = torch.cat([everything, example])
    kept = torch.cat([torch.ones_like(inputs), variants[variant]])
    found = kept_log_probs(batch, rows, kept)
    whole, rest = found[: len(inputs)], found[len(inputs) :]
    effects = whole.new_zeros(len(inputs), len(variants), whole.shape[1])
    effects[example, variant] = whole[example] - rest
    return effects.transpose(1, 2)
