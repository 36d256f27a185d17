"""What taking inputs away changes: one at a time, an area at a time, or greedily one after the other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard import ops
from regard.explanations.batches import ModelBatch

# Examples read together while inputs are taken away.
ROWS = 256


class AreaEffects(NamedTuple):
    """What leaving out areas does.

    Attributes:
        areas: (B, T, N) what each area takes, in nats, in the order of `regard.ops.area_spans`.
        inputs: (B, T, S) the same shared out to the inputs: the mean over the areas that hold an input of what each takes per input.
    """

    areas: Tensor
    inputs: Tensor


def kept_log_probs(batch: ModelBatch, rows: Tensor, kept: Tensor) -> Tensor:
    """Return the log-probabilities of outputs where inputs are taken away.

    Args:
        batch: B examples.
        rows: (N,) which of them.
        kept: (N, S) bool, False where an input is taken away.

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


def leave_one_out(batch: ModelBatch) -> Tensor:
    """Return what leaving out each input takes from the log-probability of each output.

        r[t, s] = log p(y_t | x) - log p(y_t | x without x_s)

    Li et al. 2016 (arXiv:1612.08220), "erasure". What is behind a token moves to the front; an image's cell becomes the mean cell.

    Args:
        batch: B examples; it takes S + 1 forward passes of each.

    Returns:
        (B, T, S), nats; positive where the input helped; 0 for inputs that are none.

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


def leave_one_area_out(batch: ModelBatch, max_area: int | tuple[int, int], *, grid: tuple[int, int] | None = None) -> AreaEffects:
    """Return what leaving out each area, a run of inputs or a rectangle of cells, takes from the log-probability of each output.

    The areas are those that area attention attends to (Li et al. 2018).

    Args:
        batch: B examples; it takes N + 1 forward passes of each, for N areas.
        max_area: the largest length of an area; with a grid, the largest (height, width).
        grid: (rows, columns) of the cells of an image; None for a sequence.

    Returns:
        `AreaEffects`. An area with an input that is none, such as padding, has effect 0 and is shared out to nothing.

    Raises:
        ConfigError: sizes that mean nothing.
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
    # The items of each area: what the area's weight alone gives to items.
    held = ops.item_weights(torch.eye(count, device=batch.inputs.device), max_area, grid) > 0  # (N, S)
    effects = _left_out(batch, ~held)
    real = (batch.inputs.unsqueeze(1) | ~held).all(2)  # (B, N)
    shares = held / held.sum(1, keepdim=True)  # (N, S)
    among = real.to(shares.dtype) @ held.to(shares.dtype)  # (B, S): areas that hold an input
    inputs = (effects @ shares.to(effects.dtype)) / among.clamp(min=1).unsqueeze(1)
    return AreaEffects(effects, inputs)


def greedy_order(batch: ModelBatch, output: Tensor, most: int) -> Tensor:
    """Order inputs by taking away, again and again, the one without which an output becomes least likely.

    It is the best order that one can find one input at a time: each step takes a forward pass for every input that is left.

    Args:
        batch: B examples.
        output: (B,) which output of each is looked at.
        most: inputs taken away, at most; an example with fewer of them takes all.

    Returns:
        (B, S) a score for each input: higher, the sooner it was taken; 0 for those that were not.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5, 6]])], [torch.tensor([3])], torch.tensor([1]))
        >>> sorted(greedy_order(batch, torch.tensor([0]), 2)[0].tolist())
        [0.0, 1.0, 2.0]
    """
    size = batch.inputs.shape[1]
    kept = torch.ones_like(batch.inputs)
    ranked = batch.inputs_of(output)
    scores = torch.zeros(batch.inputs.shape, device=kept.device)
    for step in range(most):
        example, place = (kept & ranked).nonzero(as_tuple=True)
        if not len(example):
            break
        left = kept[example]
        left[torch.arange(len(left)), place] = False
        found = kept_log_probs(batch, example, left)
        likely = torch.full((len(kept), size), torch.inf, device=kept.device)
        likely[example, place] = found.gather(1, output[example].unsqueeze(1)).squeeze(1).to(likely.dtype)
        some = likely.isfinite().any(1)
        chosen = likely.argmin(1)
        rows = torch.arange(len(kept), device=kept.device)[some]
        kept[rows, chosen[some]] = False
        scores[rows, chosen[some]] = float(most - step)
    return scores


def _left_out(batch: ModelBatch, variants: Tensor) -> Tensor:
    """Return (B, T, N): what each of the variants (N, S), True where an input is kept, takes; 0 where it would take what is no input."""
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
