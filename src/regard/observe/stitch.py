"""Joins the steps of a generation into one map per layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.observe.call import AttentionCall

ALIKE = 1e-5
"""Tolerance for weights that a layer recomputes: rounding of products of other shapes."""


def stitched(calls: Sequence[AttentionCall]) -> list[AttentionCall]:
    """Join the calls of each generation: the queries of each step below those of the previous one.

    A self-attention call continues the previous one if it has one more key per query (growing cache); the same keys, with slots for all
    queries so far (static cache); or a single query and no more keys (sliding cache, cut behind the prompt). A generation begins with a
    prompt of several queries, with a single key, or with a static cache whose other slots have weight 0; each step fills its next slots.
    Calls of one query to several keys, as in attention pooling, stay separate, and so do steps whose prompt was not recorded; pooling over
    1, 2, 3 ... keys in this order looks like a generation.

    Without a cache, a call with as many queries as keys that repeats all previous weights and has one more of both replaces the previous
    call. Any other call starts anew. A cross-attention call with a single query continues unless the self-attention before it started anew.
    In a sliding cache a step's keys are the last ones.

    Args:
        calls: of any layers, in order.

    Raises:
        ConfigError: a layer ran several times in each step of a generation.

    Returns:
        One call per layer and generation, in order of their starts, with weights (B, H, T, S) over all T queries and S keys; a key that did
        not exist yet has weight 0.

    Example:
        >>> steps = [AttentionCall("0", "self", torch.ones(1, 1, count, 2 + step)) for step, count in enumerate((2, 1, 1))]
        >>> [tuple(call.weights.shape) for call in stitched(steps)]
        [(1, 1, 4, 4)]
    """
    return [_joined(group) for group in grouped(calls)]


def grouped(calls: Sequence[AttentionCall]) -> list[list[AttentionCall]]:
    """Split the calls of each layer into generations."""
    groups: list[list[AttentionCall]] = []
    open_: dict[str, list[AttentionCall]] = {}
    before: str | None = None  # result of the last self-attention; None: none since the last cross-attention
    for call in calls:
        group = open_.get(call.layer)
        if call.kind == "self":
            before = found = _continues(group, call)
            if group is not None:
                _check_once_per_step(group, call, found)
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
    """Return whether a self-attention continues, recomputes all with more queries and keys, or starts anew."""
    if group is None or not _fits(group, call):
        return "anew"
    queries, keys = call.weights.shape[2:]
    if queries < keys and _has_cache(group, call):
        return "on"
    return "again" if _grows(group[-1], call) and _repeats(group[-1], call) else "anew"


def _has_cache(group: list[AttentionCall], call: AttentionCall) -> bool:
    (queries, keys), (rows, before) = call.weights.shape[2:], group[-1].weights.shape[2:]
    done = sum(each.weights.shape[2] for each in group)
    begun = group[0].weights.shape[2] > 1 or group[0].weights.shape[3] == 1
    if keys == before and _reach(call) <= queries:  # a prompt in a static cache
        return False
    if not begun:  # one query of several keys, as in pooling, unless the keys are empty slots of a static cache
        return keys == before and _leaves_rest(group[0], 1) and _leaves_rest(call, done + queries)
    if keys > before + queries:  # from a prompt without slots to a static cache
        return _leaves_rest(call, done + queries)
    if queries == 1:  # a step of a generation; a sliding cache is cut once, behind a prompt
        return keys >= before or rows > 1
    return keys == before + queries or (keys == before and done + queries <= keys and _reach(group[-1]) <= done)


def _check_once_per_step(group: list[AttentionCall], call: AttentionCall, found: str) -> None:
    """Refuse a layer that a step runs twice: its growing cache has as many keys as before, or its static cache no new slot filled."""
    several = "it runs several times in a step, as a layer that is shared, and its calls make no one map; look at `calls`"
    keys = [each.weights.shape[3] for each in (*group[-2:], call) if each.weights.shape[2] == 1]
    if found == "on" and len(keys) == 3 and keys[0] == keys[1] < keys[2]:
        raise ConfigError(f"{call.layer}: the steps of this generation have {keys[0]}, {keys[1]} and {keys[2]} keys: {several}")
    last = (*group[-3:], call)
    if found == "on" and len(last) == 4 and all(each.weights.shape[2:] == call.weights.shape[2:] for each in last) and keys[0] > 1:
        first, second, third, fourth = map(_reach, last)
        if first == second == third - 1 == fourth - 1 < keys[0]:
            raise ConfigError(f"{call.layer}: two calls each fill slots {first - 1} and {first} of a static cache: {several}")


def _leaves_rest(call: AttentionCall, count: int) -> bool:
    """Return whether a call attends to its first keys only."""
    return count <= call.weights.shape[3] and not call.weights[..., count:].any()


def _reach(call: AttentionCall) -> int:
    """Return how many of its first keys the last query of a call attends to, in any example and head."""
    used = call.weights[:, :, -1].flatten(0, 1).any(0).nonzero()  # other queries may be padding, which may attend to all
    return int(used.max()) + 1 if used.numel() else 0


def _continues_across(group: list[AttentionCall] | None, call: AttentionCall, before: str | None) -> str:
    if group is None or not _fits(group, call) or group[-1].weights.shape[3] != call.weights.shape[3]:
        return "anew"
    if before is None:
        return "on" if call.weights.shape[2] == 1 else "anew"
    return "anew" if before == "again" and not _repeats(group[-1], call) else before


def _grows(first: AttentionCall, second: AttentionCall) -> bool:
    # One more query and key, as in each step of a generation without a cache.
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
    # Steps of self-attention: row r of the whole may attend to keys up to its own.
    rows = sum(part.shape[2] for part in parts)
    begun = 0
    places = []
    for part in parts:
        begun += part.shape[2]
        places.append(max(0, begun - part.shape[3]))  # more rows than keys: the first keys were dropped
    columns = max(place + part.shape[3] for place, part in zip(places, parts, strict=True))
    found = parts[0].new_zeros(*parts[0].shape[:2], rows, columns)
    begun = 0
    for place, part in zip(places, parts, strict=True):
        found[:, :, begun : begun + part.shape[2], place : place + part.shape[3]] = part
        begun += part.shape[2]
    return found


def of_beams(calls: Sequence[AttentionCall], beams: Tensor) -> list[AttentionCall]:
    """Join steps, following each output's rows through the beam.

    Args:
        calls: of a beam search, in order.
        beams: (B', steps), the row of each step that holds the output; negative after its end.

    Returns:
        As `stitched`. Layers that ran once, such as an encoder's, keep their batch.

    Raises:
        ShapeError: fewer steps than a layer ran; the message holds both numbers.
        ConfigError: the steps ran without a cache, or a layer several times in each.
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
