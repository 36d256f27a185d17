"""A sequence read one token at a time, with what the model keeps, beside the same sequence read at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.mask_check.adapter import BATCH
from regard.mask_check.examples import Batch, collate, cut
from regard.mask_check.layout import Layout, Match
from regard.mask_check.locate import Origin, describe, leaking
from regard.mask_check.probes import Probe
from regard.mask_check.recording import Call, Key, Recorder, tensors_of
from regard.mask_check.survey import Place, Survey, Views, sizes_of


class Stepped(NamedTuple):
    """What a model gave one token at a time.

    Attributes:
        outputs: as of one run, positions joined again.
        recorders: of what came before the first token, and of each step.
    """

    outputs: dict[str, Tensor]
    recorders: list[Recorder]


def cache_probe(survey: Survey, rows: int | None = None) -> Probe:
    """Return the probe of a cache: rows of one length without padding, the same batch twice.

    Args:
        survey: of the model.
        rows: how many; None: all.
    """
    examples = survey.examples[:rows]
    for sequence in survey.template.sequences:
        examples = cut(survey.template, examples, sequence.name, min(example.length(sequence.name) for example in examples))
    widths = {s.name: examples[0].length(s.name) for s in survey.template.sequences}
    batch = collate(survey.template, examples, widths, side=survey.template.side)
    positions = {name: [(at, at) for at in each] for name, each in batch.positions.items()}
    name = survey.template.sequences[-1].name
    match = Match([(row, row) for row in range(len(examples))], positions)
    return Probe("cache", "cache", name, batch, batch, match, "one token at a time with the cache, against all at once")


def step_through(survey: Survey, batch: Batch, *, record: bool) -> Stepped:
    """Read the last sequence of a batch one token at a time.

    Args:
        survey: of the model, whose adapter has `start` and `step`.
        batch: what to read.
        record: listen to the modules as well.
    """
    runs, sequence = survey.runs, survey.template.sequences[-1]
    start, step = runs.adapter.start, runs.adapter.step
    if start is None or step is None:  # whoever calls has looked
        raise ValueError("the adapter has no start and step")
    inputs = runs.inputs(batch.inputs)
    tokens = inputs[sequence.name].transpose(0, 1) if sequence.time_first else inputs[sequence.name]
    recorders: list[Recorder] = []
    parts: list[dict[str, Tensor]] = []

    def listened(function: Callable[[], Any]) -> Any:
        recorder = Recorder(keep=record)
        recorders.append(recorder)
        if not record:
            return function()
        with recorder.listening(runs.model):
            return function()

    with runs.conditions():
        runs.passes += 1
        state = listened(lambda: start(runs.model, inputs))
        for at in range(tokens.shape[1]):
            token = tokens[:, at : at + 1]
            output, state = listened(lambda token=token, state=state: step(runs.model, token, state))
            parts.append({name: tensor.detach().clone() for name, tensor in tensors_of(output) if tensor.is_floating_point()})
    outputs = {}
    names = list(parts[0])
    for name in names:
        # One tensor each way belongs together, whatever it is called.
        own = name if name in survey.layouts else survey.comparable()[0] if len(names) == 1 else None
        layout = None if own is None else survey.layouts[own]
        joined = None if layout is None else _joined([part[name] for part in parts], layout, sequence.name)
        if own is not None and joined is not None:
            outputs[own] = joined
    return Stepped(outputs, recorders)


def _joined(parts: list[Tensor], layout: Layout, name: str) -> Tensor | None:
    at = [number for number, axis in enumerate(layout) if axis.label == name]
    if len(at) != 1 or layout[at[0]].offset:
        return None
    if all(part.ndim == len(layout) - 1 for part in parts):
        parts = [part.unsqueeze(at[0]) for part in parts]
    if any(part.ndim != len(layout) or part.shape[at[0]] != 1 for part in parts):
        return None
    return torch.cat(parts, at[0])


def locate_in_steps(survey: Survey, probe: Probe) -> Origin | None:
    """Find the first module that gives something else one token at a time."""
    whole = Recorder()
    survey.runs.run(probe.first, whole)
    stepped = step_through(survey, probe.second, record=True)
    views = survey.view(whole.events), _step_views(survey, stepped.recorders)
    sizes = sizes_of(probe.first)
    suspects = leaking(survey, views, probe.match, (sizes, sizes))
    if not suspects:
        return None
    return describe(survey, whole.events, *suspects[0])


def _step_views(survey: Survey, recorders: list[Recorder]) -> Views:
    first, *steps = [survey.view(recorder.events) for recorder in recorders]
    name = survey.template.sequences[-1].name
    found: Views = {}
    for place in survey.views:
        layout = survey.layout(place)
        if layout is None:
            continue
        parts = [step[place] for step in steps if place in step]
        own = [axis for axis in layout if axis.label == name]
        if len(parts) == len(steps) and own:
            joined = _joined(parts, layout, name)
            if joined is not None:
                found[place] = joined
        elif not own and place in first:
            found[place] = first[place]
    return found


def cause_of_cache(survey: Survey, origin: Origin | None) -> str:
    """Return the likeliest cause of a cache that is off."""
    single = cache_probe(survey, rows=1)
    whole = survey.runs.run(single.first)
    stepped = step_through(survey, single.second, record=False).outputs
    sizes = sizes_of(single.first)
    name = next(iter(stepped))
    alone = survey.compare_outputs(name, (whole[name], stepped[name]), single.match, (sizes, sizes))
    if alone.size <= survey.limit(name):
        return "one row alone is right: the rows share what is kept, or are given that of another row"
    if origin is not None and _before_attention(survey, origin):
        return "positions do not go on from what is kept: every step is embedded as position 0, or one off"
    first = min((column for column, size in alone.positions.items() if size > survey.limit(name)), default=0)
    if first == 0:
        return "the first step is wrong already: it does not see its own token, or sees what was kept from an earlier call"
    return f"right up to step {first - 1}: keys and values are kept one step off, are overwritten, or the mask does not know of them"


def _before_attention(survey: Survey, origin: Origin) -> bool:
    """Tell whether a leak begins before anything reads other positions: where tokens and positions are embedded."""
    if not origin.module or "embed" in origin.kind.lower() or "position" in origin.kind.lower():
        return True
    place = Place(Key(Call(origin.module, 0), "in"), "input")
    layout = survey.layout(place)
    tensor = survey.views.get(place)
    return tensor is not None and not tensor.is_floating_point() and layout is not None and any(axis.label == BATCH for axis in layout)
