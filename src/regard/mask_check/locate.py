"""Locates a leak: the first tensor in execution order that differs where it must not, and that the outputs depend on."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from regard.mask_check.adapter import BATCH
from regard.mask_check.layout import Difference, Match, Sizes, difference, gaps
from regard.mask_check.probes import Probe
from regard.mask_check.recording import LIBRARIES, TORCH, Call, Change, Event, Key, Line, Recorder
from regard.mask_check.runs import SEED
from regard.mask_check.survey import Place, Survey, Views, sizes_of

TRIED = 8
"""Max number of suspects tried before the first one is reported."""


class Origin(NamedTuple):
    """Where a leak begins.

    Attributes:
        module: the module whose own code introduces it; "" for the model itself.
        kind: the module's class.
        call: the call; None if another method than `forward` was called.
        event: the first event that differs.
        tensor: its tensor.
        found: how much it differs, and at which positions.
        between: a description of the calls between which it begins.
        lines: file and lines, or "".
    """

    module: str
    kind: str
    call: Call | None
    event: Event
    tensor: str
    found: Difference
    between: str
    lines: str


def locate(survey: Survey, probe: Probe, worst: str, *, limit: float | None = None) -> Origin | None:
    """Find where the leak of a probe begins.

    Args:
        survey: of the model.
        probe: the probe that found it.
        worst: the output with the largest leak.
        limit: allowed difference of the output; None: its rounding. With a limit, only a tensor that certainly changes the output is an
        origin.
    Returns:
        The origin; None if no module shows it, as in a model that is a single function, or if it disappears with hooks.
    """
    (before, outputs), (after, changed) = _both(survey, probe)
    sizes = sizes_of(probe.first), sizes_of(probe.second)
    least = survey.limit(worst) if limit is None else limit
    if survey.compare_outputs(worst, (outputs[worst], changed[worst]), probe.match, sizes).size <= least:
        return None
    views = survey.view(before), survey.view(after)
    suspects = leaking(survey, views, probe.match, sizes) if probe.seeds is None else drawn(survey, views)
    chosen = suspects[0] if suspects and limit is None else None
    for place, found in suspects[:TRIED]:
        known = (place, probe.sequence) in survey.confirmed or place.key.call.module in survey.stacked
        change = mended(survey, probe, place, views)
        if (change is None and limit is None) or known or (change and _matters(survey, probe, place, change, (worst, changed, least))):
            survey.confirmed.add((place, probe.sequence))
            chosen = place, found
            break
    return None if chosen is None else describe(survey, before, chosen[0], chosen[1])


def inside(survey: Survey, probe: Probe) -> Origin | None:
    """Return an inner tensor that differs and must not, whether or not an output follows."""
    (before, _), (after, _) = _both(survey, probe)
    suspects = leaking(survey, (survey.view(before), survey.view(after)), probe.match, (sizes_of(probe.first), sizes_of(probe.second)))
    for place, found in suspects:
        # Tensors with more padding, or sorted by expert, hold other positions.
        layout = survey.layout(place) or ()
        plain = all(axis.factor == 1 and axis.joined is None and not axis.offset for axis in layout)
        if plain and any(axis.label == probe.sequence for axis in layout) and survey.views[place].is_floating_point():
            return describe(survey, before, place, found)
    return None


def fused_nan(survey: Survey) -> str | None:
    """Return the first `nn.MultiheadAttention` in whose fused path, which hooks would turn off, a number becomes NaN; None: none."""
    found: list[tuple[Tensor, int]] = []
    calls: Counter[int] = Counter()

    def noting(whole: Callable[..., Any], weight: int) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            out = whole(*args, **kwargs)
            if _is_nan(out[0] if isinstance(out, tuple) else out) and not _is_nan(args[0]):
                found.append((args[weight], calls[id(args[weight])]))
            calls[id(args[weight])] += 1
            return out

        return call

    with ExitStack() as stack:
        for name, weight in {"_transformer_encoder_layer_fwd": 3, "_native_multi_head_attention": 5}.items():
            stack.enter_context(patch.object(torch, name, noting(getattr(torch, name), weight)))
        survey.runs.run(survey.base)
    if not found:
        return None
    weight, before = found[0]
    named = survey.runs.model.named_parameters(remove_duplicate=False)  # modules that share weights take turns
    names = [name.removesuffix(".in_proj_weight") for name, each in named if each is weight]
    return names[before % len(names)] if names else None


def _is_nan(tensor: Tensor) -> bool:
    return any(bool(part.isnan().any()) for part in (tensor.unbind() if tensor.is_nested else (tensor,)))


def _both(survey: Survey, probe: Probe) -> tuple[tuple[list[Event], dict[str, Tensor]], tuple[list[Event], dict[str, Tensor]]]:
    """Run a probe twice with recorders and return events and outputs."""
    first, second = Recorder(), Recorder()
    if probe.seeds is None:
        changed = survey.runs.run(probe.second, second, train=probe.train)
        if probe.of_base:
            return survey.base_run(train=probe.train), (second.events, changed)
        outputs = survey.runs.run(probe.first, first, train=probe.train)
        return (first.events, outputs), (second.events, changed)
    outputs = survey.runs.run(probe.first, first, train=probe.train, seed=probe.seeds[0])
    if probe.between is not None:
        survey.runs.run(probe.between, train=probe.train)
    changed = survey.runs.run(probe.second, second, train=probe.train, seed=probe.seeds[1])
    return (first.events, outputs), (second.events, changed)


def leaking(survey: Survey, views: tuple[Views, Views], match: Match, sizes: tuple[Sizes, Sizes]) -> list[tuple[Place, Difference]]:
    """Return the tensors that differ and must not, in execution order."""
    found = []
    for place, tensor in views[0].items():
        if place not in views[1] or place not in survey.views or place.key == Key(Call("", 0), "in"):
            continue
        pair = tensor, views[1][place]
        one = difference(pair, survey.layout(place), match, sizes)
        if one.size > survey.limit_at(place) and place.key.call.module in survey.stacked:  # a loop may run from the end
            back = difference((pair[0].flip(0), pair[1].flip(0)), survey.layout(place), match, sizes)
            one = min(one, back, key=lambda way: way.size)
        if one.compared and one.size > survey.limit_at(place):
            found.append((place, one))
    return _by_step(survey, views, match, sizes, found)


def _by_step(
    survey: Survey, views: tuple[Views, Views], match: Match, sizes: tuple[Sizes, Sizes], found: list[tuple[Place, Difference]]
) -> list[tuple[Place, Difference]]:
    """Order tensors of modules that run once per position by the first step that differs: the next inputs of a loop differ, too."""
    ordered: list[tuple[Place, Difference]] = []
    for looped, group in itertools.groupby(found, lambda pair: pair[0].key.call.module in survey.stacked):
        pairs = list(group)
        ordered += sorted(pairs, key=lambda pair: _first_step(survey, views, match, sizes, pair)) if looped else pairs
    return ordered


def _first_step(
    survey: Survey, views: tuple[Views, Views], match: Match, sizes: tuple[Sizes, Sizes], pair: tuple[Place, Difference]
) -> float:
    place, found = pair
    layout, limit = survey.layout(place), survey.limit_at(place)
    if layout is None or layout[0].label in (None, BATCH) or layout[0].label == match.changed:
        return min((column for column, size in found.positions.items() if size > limit), default=float("inf"))
    for step, both in enumerate(zip(views[0][place], views[1][place], strict=False)):
        if difference(both, layout[1:], match, sizes).size > limit:
            return step
    return float("inf")


def drawn(survey: Survey, views: tuple[Views, Views]) -> list[tuple[Place, Difference]]:
    """Return the tensors that differ in two runs on the same batch, in execution order; a random draw may change their shapes, too."""
    found = []
    for place, tensor in views[0].items():
        again = views[1].get(place)
        if again is None or place.key == Key(Call("", 0), "in"):
            continue
        if again.shape != tensor.shape:
            found.append((place, Difference(float("inf"), True, {}, [])))
            continue
        size = float(gaps(tensor, again).max()) if tensor.numel() else 0.0
        known = place in survey.views
        if size > (survey.limit_at(place) if known else 0.0):
            found.append((place, Difference(size, True, {}, [])))
    return found


def _matters(survey: Survey, probe: Probe, place: Place, change: Change, worst: tuple[str, Mapping[str, Tensor], float]) -> bool:
    """Return whether an output depends on the leak in a tensor: it changes by more than its limit once the tensor is corrected."""
    name, outputs, limit = worst
    seed = SEED if probe.seeds is None else probe.seeds[1]
    again = survey.runs.run(probe.second, Recorder(keep=False, changes={place.key: change}), train=probe.train, seed=seed)
    rows = [(b, b) for _, b in probe.match.rows]
    match = Match(rows, {name: [(b, b) for _, b in pairs] for name, pairs in probe.match.positions.items()}, probe.match.changed)
    sizes = sizes_of(probe.second)
    return survey.compare_outputs(name, (outputs[name], again[name]), match, (sizes, sizes)).size > limit


def mended(survey: Survey, probe: Probe, place: Place, views: tuple[Views, Views]) -> Change | None:
    """Return a change that writes the values of the first run into the second, where they must be equal."""
    layout = survey.layout(place)
    good, bad = views[0][place], views[1][place]
    if layout is None or any(axis.offset or axis.factor != 1 or axis.joined for axis in layout) or not good.is_floating_point():
        return None
    target = bad.clone()
    batch = next(at for at, axis in enumerate(layout) if axis.label == BATCH)
    for number, (a, b) in enumerate(probe.match.rows):
        source, into = good.select(batch, a), target.select(batch, b)
        left = [axis for at, axis in enumerate(layout) if at != batch]
        index_a: list[Tensor] = []
        index_b: list[Tensor] = []
        for at, axis in enumerate(left):
            pair = None if axis.label in (None, BATCH) else probe.match.positions[axis.label][number]
            index_a.append(torch.arange(source.shape[at]) if pair is None else pair[0])
            index_b.append(torch.arange(into.shape[at]) if pair is None else pair[1])
        if any(len(a) != len(b) for a, b in zip(index_a, index_b, strict=True)) or any(
            len(index) and int(index.max()) >= size
            for tensor, indices in ((source, index_a), (into, index_b))
            for index, size in zip(indices, tensor.shape, strict=True)
        ):
            return None
        into[torch.meshgrid(*index_b, indexing="ij")] = source[torch.meshgrid(*index_a, indexing="ij")] if left else source

    def change(name: str, tensor: Tensor) -> Tensor:
        return target.to(tensor) if name == place.name and tensor.shape == target.shape else tensor

    return change


def describe(survey: Survey, events: list[Event], place: Place, found: Difference) -> Origin:
    """Return the module responsible for the first tensor that differs, and the lines of its code."""
    at = next(i for i, event in enumerate(events) if event.key == place.key)
    event = events[at]
    call = event.parent if place.key.side == "in" else event.key.call
    module = survey.runs.model.get_submodule(call.module) if call is not None else survey.runs.model
    before = next((other for other in reversed(events[:at]) if other.parent == call and other.key.side == "out"), None)
    inside = [other for other in events[:at] if other.parent == call]
    if place.key.side == "out" and not inside:
        between = ""
    else:
        start = f"after `{_short(before.key.call.module, call)}`" if before is not None else "at its beginning"
        end = f"before `{_short(place.key.call.module, call)}`" if place.key.side == "in" else "before its end"
        between = f"{start}, {end}"
    called = next((other.user_line for other in events if call is not None and other.key == Key(call, "in")), None)
    lines = _lines(module, None if before is None else before.line, event, call, called)
    return Origin(call.module if call is not None else "", type(module).__name__, call, event, place.name, found, between, lines)


def _short(name: str, parent: Call | None) -> str:
    prefix = "" if parent is None or not parent.module else parent.module + "."
    return name.removeprefix(prefix) or "forward"


def _lines(module: nn.Module, before: Line | None, event: Event, call: Call | None, called: Line | None) -> str:
    """Return the lines of the module's own code between two calls; for a module of torch or Regard, the user's line that called it."""
    if call is None:
        return "" if event.line is None else f"{Path(event.line.file).name}:{event.line.number}"
    span = span_of(type(module).forward)
    if called is not None and (span is None or span[0].startswith(LIBRARIES)):
        return f"{Path(called.file).name}:{called.number}"
    if span is None or span[0].startswith(TORCH):
        line = event.line if event.key.call == call else None
        return "" if line is None else f"{Path(line.file).name}:{line.number}"
    file, first, last = span
    start, end = first, last
    if before is not None and before.file == file and first <= before.number <= last:
        start = before.number
    line = event.line
    if event.key.side == "in" and line is not None and line.file == file and start <= line.number <= last:
        end = line.number
    return f"{Path(file).name}:{start}" + (f"-{end}" if end > start else "")


def span_of(function: Callable[..., object]) -> tuple[str, int, int] | None:
    """Return the file, the first and the last line of a function; None if its source is not available."""
    function = inspect.unwrap(function)
    try:
        lines, first = inspect.getsourcelines(function)
        file = inspect.getsourcefile(function)
    except (OSError, TypeError):
        return None
    return None if file is None else (file, first, first + len(lines) - 1)
