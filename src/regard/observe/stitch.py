"""The steps of a generation, put together to one map for each layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.observe.call import AttentionCall

ALIKE = 1e-5
"""How far weights may be apart that a layer computes again: the rounding of products of other shapes."""


def stitched(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Put the calls of one generation together: the queries of each step under those of the step before.

    A call of self-attention goes on where it has the keys of the call before and one for each of its queries, as with a cache that grows;
    or as many keys as that call, and places for all queries so far, as with one of a fixed size; or a single query and no more keys than
    that, as with one that forgets. Any other begins anew, unless it has as many queries as keys, repeats all weights of the call before and
    has one more of both, as without a cache: then it stands in that one's place. A call of
    cross-attention with a single query goes on, unless the self-attention before it began anew. Where a cache forgets, a step's keys are
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
    before: str | None = None  # what the last self-attention did; None: there was none since the last cross-attention
    for call in calls:
        group = open_.get(call.layer)
        if call.kind == "self":
            before = found = _continues(group, call)
        else:
            found = _continues_across(group, call, before)
            before = None
        if group is not None and found == "on":
            group.append(call)
        elif group is not None and found == "again":
            group[:] = [call]
        else:
            open_[call.layer] = [call]
            groups.append(open_[call.layer])
    return groups


def _continues(group: list[AttentionCall] | None, call: AttentionCall) -> str:
    """Say whether a self-attention goes on, computes all again with more queries and keys, or begins anew."""
    if group is None or not _fits(group, call):
        return "anew"
    queries, keys = call.weights.shape[2:]
    if queries < keys and _has_cache(group, queries, keys):
        return "on"
    return "again" if _grows(group[-1], call) and _repeats(group[-1], call) else "anew"


def _has_cache(group: list[AttentionCall], queries: int, keys: int) -> bool:
    before = group[-1].weights.shape[3]
    if queries == 1:  # a step of a generation, whose cache may forget
        return keys <= before + 1
    return keys == before + queries or (keys == before and sum(each.weights.shape[2] for each in group) + queries <= keys)


def _continues_across(group: list[AttentionCall] | None, call: AttentionCall, before: str | None) -> str:
    if group is None or not _fits(group, call) or group[-1].weights.shape[3] != call.weights.shape[3]:
        return "anew"
    if before is None:
        return "on" if call.weights.shape[2] == 1 else "anew"
    return "anew" if before == "again" and not _repeats(group[-1], call) else before


def _grows(first: AttentionCall, second: AttentionCall) -> bool:
    # One token more, attending and attended to, as each step of a generation without a cache has.
    queries, keys = first.weights.shape[2:]
    return queries == keys and second.weights.shape[2:] == (queries + 1, keys + 1)


def _repeats(first: AttentionCall, second: AttentionCall) -> bool:
    queries, keys = first.weights.shape[2:]
    again = second.weights[:, :, :queries, :keys]
    return first.weights.shape == again.shape and bool(((first.weights - again).abs() <= ALIKE).all())


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
        ConfigError: the steps were run without a cache.
    """
    last: dict[str, AttentionCall] = {}
    for call in calls:
        if call.kind == "self" and call.layer in last and _grows(last[call.layer], call):
            raise ConfigError(f"beams: {call.layer} ran without a cache, each step anew; generate with use_cache=True")
        last[call.layer] = call
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
