"""The steps of a generation, put together to one map for each layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.observe.call import AttentionCall


def stitched(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Put the calls of one generation together: the queries of each step under those of the step before.

    A call of self-attention goes on where it has fewer queries than keys, as with a cache; one that has as many of both begins anew. A call
    of cross-attention with a single query goes on, unless the self-attention before it began anew. Where a cache forgets, a step's keys are
    the last ones.

    Args:
        calls: of any layers, in their order.

    Returns:
        One call for each layer and generation, in the order of their beginnings, with weights (B, H, T, S) of all T queries and all S keys;
        a key that was not there yet has weight 0.

    Example:
        >>> steps = [AttentionCall("0", "self", torch.ones(1, 1, count, 2 + step)) for step, count in enumerate((2, 1, 1))]
        >>> [tuple(call.weights.shape) for call in stitched(steps)]
        [(1, 1, 4, 4)]
    """
    return [_joined(group) for group in grouped(calls)]


def grouped(calls: Sequence[AttentionCall]) -> list[list[AttentionCall]]:
    """Split calls into generations: of each layer, those that go on from one another."""
    groups: list[list[AttentionCall]] = []
    open_: dict[str, list[AttentionCall]] = {}
    went_on: bool | None = None  # whether the last self-attention did; None: there was none since the last cross-attention
    for call in calls:
        group = open_.get(call.layer)
        if call.kind == "self":
            went_on = goes_on = group is not None and _fits(group, call) and call.weights.shape[2] < call.weights.shape[3]
        else:
            same = group is not None and _fits(group, call) and group[-1].weights.shape[3] == call.weights.shape[3]
            goes_on = same and (call.weights.shape[2] == 1 if went_on is None else went_on)
            went_on = None
        if group is not None and goes_on:
            group.append(call)
        else:
            open_[call.layer] = [call]
            groups.append(open_[call.layer])
    return groups


def _fits(group: list[AttentionCall], call: AttentionCall) -> bool:
    return group[-1].kind == call.kind and group[-1].weights.shape[:2] == call.weights.shape[:2]


def _joined(group: list[AttentionCall]) -> AttentionCall:
    if len(group) == 1:
        return group[0]
    weights = [call.weights for call in group]
    areas = [call.areas for call in group]
    if group[0].kind == "cross":
        known = [part for part in areas if part is not None]
        return group[0]._replace(weights=torch.cat(weights, 2), areas=torch.cat(known, 2) if len(known) == len(group) else None)
    # Areas of a growing sequence have no common order: their number and meaning change with each step.
    return group[0]._replace(weights=_under_each_other(weights), areas=None)


def _under_each_other(parts: Sequence[Tensor]) -> Tensor:
    # Steps of self-attention: row r of the whole may attend to the keys up to its own.
    rows = sum(part.shape[2] for part in parts)
    begun = 0
    places = []
    for part in parts:
        begun += part.shape[2]
        places.append(max(0, begun - part.shape[3]))  # more rows than keys: the first keys were forgotten
    columns = max(place + part.shape[3] for place, part in zip(places, parts, strict=True))
    found = parts[0].new_zeros(*parts[0].shape[:2], rows, columns)
    begun = 0
    for place, part in zip(places, parts, strict=True):
        found[:, :, begun : begun + part.shape[2], place : place + part.shape[3]] = part
        begun += part.shape[2]
    return found


def of_beams(calls: Sequence[AttentionCall], beams: Tensor) -> list[AttentionCall]:
    """Put steps together, each output with the rows that it came from.

    Args:
        calls: of a beam search, in their order.
        beams: (B', steps), the row of each step that an output was in; below 0 behind its end.

    Returns:
        As `stitched`. Layers that ran once, as an encoder's, keep their batch.

    Raises:
        ShapeError: fewer steps than a layer ran; the message holds both.
    """
    found = []
    for group in grouped(calls):
        if len(group) == 1:
            found.append(group[0])
            continue
        if beams.dim() != 2 or beams.shape[1] < len(group):
            raise ShapeError(f"beams: expected (outputs, steps) with {len(group)} steps for {group[0].layer}, found {tuple(beams.shape)}")
        steps = []
        for step, call in enumerate(group):
            rows = beams[:, step].cpu()
            weights = call.weights[rows.clamp(min=0)]
            steps.append(call._replace(weights=weights.masked_fill((rows < 0)[:, None, None, None], 0.0), areas=None))
        found.append(_joined(steps))
    return found
