"""Checks decoding with a cache, one or a few tokens at a time, against the full sequence in one call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import counted
from regard.mask_check.adapter import BATCH, Sequence
from regard.mask_check.examples import Batch, Example, collate, cut, with_other
from regard.mask_check.layout import Layout, Match
from regard.mask_check.locate import Origin, describe, leaking
from regard.mask_check.probes import GENERATOR, Probe, changed_at
from regard.mask_check.recording import Call, Key, Recorder, tensors_of
from regard.mask_check.survey import Place, Survey, Views, sizes_of

LONGEST = 13
"""Longest row in which each key of a step is changed."""
CHUNK = 2
"""Tokens per chunk of a prompt: the smallest number that needs a causal mask within the chunk."""


class Stepped(NamedTuple):
    """Results of a model that was run step by step.

    Attributes:
        outputs: those of one run, concatenated over positions.
        recorders: of the part before the first token, and of each step.
    """

    outputs: dict[str, Tensor]
    recorders: list[Recorder]


def cache_probe(survey: Survey, rows: int | None = None, *, size: int = 1) -> Probe:
    """Return the cache probe: rows of one length without padding, the same batch in both runs.

    Args:
        survey: of the model.
        rows: number of rows; None: all.
        size: tokens per step.
    """
    *others, last = survey.template.sequences
    examples = [_as_long(survey, example, last) for example in survey.examples[:rows]]
    for sequence in others:
        examples = cut(survey.template, examples, sequence.name, min(example.length(sequence.name) for example in examples))
    widths = {s.name: examples[0].length(s.name) for s in survey.template.sequences}
    batch = collate(survey.template, examples, widths, side=survey.template.side)
    positions = {name: [(at, at) for at in each] for name, each in batch.positions.items()}
    name = survey.template.sequences[-1].name
    match = Match([(row, row) for row in range(len(examples))], positions)
    shown, each = ("cache", "one token") if size == 1 else ("cache, in chunks", f"{size} tokens")
    return Probe("cache", shown, name, batch, batch, match, f"{each} at a time with the cache, against all at once")


def _as_long(survey: Survey, example: Example, sequence: Sequence) -> Example:
    """Extend an example with other tokens to the length of the longest one."""
    longest = max(survey.examples, key=lambda one: one.length(sequence.name))
    if example.length(sequence.name) == longest.length(sequence.name):
        return example
    generator = torch.Generator().manual_seed(GENERATOR + example.length(sequence.name))
    other = with_other(survey.template, longest, sequence.name, range(longest.length(sequence.name)), generator)
    keys = {key: other.along[key] for key in sequence.along}
    return replace(example, sequences=example.sequences | {sequence.name: other.sequences[sequence.name]}, along=example.along | keys)


def step_through(survey: Survey, batch: Batch, *, record: bool, size: int = 1) -> Stepped:
    """Read the last sequence of a batch step by step.

    Args:
        survey: of the model; its adapter has `start` and `step`.
        batch: the batch.
        record: record the modules, too.
        size: tokens per step; the last step may have fewer.
    """
    runs, sequence = survey.runs, survey.template.sequences[-1]
    start, step = runs.adapter.start, runs.adapter.step
    if start is None or step is None:  # the caller has checked it
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
        for at in range(0, tokens.shape[1], size):
            token = tokens[:, at : at + size]
            output, state = listened(lambda token=token, state=state: step(runs.model, token, state))
            parts.append({name: tensor.detach().clone() for name, tensor in tensors_of(output) if tensor.is_floating_point()})
    outputs, sizes = {}, steps_of(tokens.shape[1], size)
    names = list(parts[0])
    for name in names:
        # With one tensor each, the two belong together whatever their names.
        own = name if name in survey.layouts else survey.comparable()[0] if len(names) == 1 else None
        layout = None if own is None else survey.layouts[own]
        joined = None if layout is None else _joined([part[name] for part in parts], sizes, layout, sequence.name)
        if own is not None and joined is not None:
            outputs[own] = joined
    return Stepped(outputs, recorders)


def steps_of(length: int, size: int) -> list[int]:
    """Return the number of tokens of each step.

    Example:
        >>> steps_of(5, 2)
        [2, 2, 1]
    """
    return [min(size, length - at) for at in range(0, length, size)]


def _joined(parts: list[Tensor], sizes: list[int], layout: Layout, name: str) -> Tensor | None:
    at = [number for number, axis in enumerate(layout) if axis.label == name]
    if len(at) != 1 or layout[at[0]].offset:
        return None
    # A single position may come without its axis.
    parts = [part.unsqueeze(at[0]) if size == 1 and part.ndim == len(layout) - 1 else part for part, size in zip(parts, sizes, strict=True)]
    if any(part.ndim != len(layout) or part.shape[at[0]] != size for part, size in zip(parts, sizes, strict=True)):
        return None
    if len({part.narrow(at[0], 0, 1).shape for part in parts}) > 1:
        return None
    return torch.cat(parts, at[0])


def locate_in_steps(survey: Survey, probe: Probe, *, size: int = 1) -> Origin | None:
    """Find the first module whose output differs when it reads this many tokens per step."""
    whole = Recorder()
    survey.runs.run(probe.first, whole)
    stepped = step_through(survey, probe.second, record=True, size=size)
    assert probe.sequence is not None
    read = steps_of(sizes_of(probe.first).widths[probe.sequence], size)
    views = survey.view(whole.events), _step_views(survey, stepped.recorders, read)
    sizes = sizes_of(probe.first)
    suspects = leaking(survey, views, probe.match, (sizes, sizes))
    if not suspects:
        return None
    return describe(survey, whole.events, *suspects[0])


def _step_views(survey: Survey, recorders: list[Recorder], sizes: list[int]) -> Views:
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
            joined = _joined(parts, sizes, layout, name)
            if joined is not None:
                found[place] = joined
        elif not own and place in first:
            found[place] = first[place]
    return found


POSITIONS = "positions do not continue from the cache: every step is embedded as position 0, or one off"


def cause_of_cache(survey: Survey, origin: Origin | None) -> str:
    """Return the most likely cause of a wrong cache."""
    single = cache_probe(survey, rows=1)
    whole = survey.runs.run(single.first)
    stepped = step_through(survey, single.second, record=False).outputs
    sizes = sizes_of(single.first)
    name = next(iter(stepped))
    alone = survey.compare_outputs(name, (whole[name], stepped[name]), single.match, (sizes, sizes))
    if alone.size <= survey.limit(name):
        return "a single row is right: rows share a cache, or get that of another row"
    if origin is not None and _embeds(origin):
        return POSITIONS
    first = min((column for column, size in alone.positions.items() if size > survey.limit(name)), default=0)
    if first == 0:
        return "the first step is wrong already: it does not see its own token, its position is another, or it sees an earlier call's cache"
    if origin is not None and (told := _unseen(survey, single, origin)):
        return told
    return f"right up to step {first - 1}: keys and values are cached one step off, overwritten, or masked"


def _unseen(survey: Survey, probe: Probe, origin: Origin) -> str:
    """Name the keys that the last step does not see where a leak begins; "" if unknown."""
    sequence, place = survey.template.sequences[-1], Place(origin.event.key, origin.tensor)
    length = probe.first.examples[0].length(sequence.name)
    at = next((n for n, axis in enumerate(survey.layout(place) or ()) if axis.label == sequence.name), None)
    if at is None or length > LONGEST:
        return ""

    def last(batch: Batch) -> tuple[Tensor, Tensor] | None:
        whole = Recorder()
        survey.runs.run(batch, whole)
        steps = _step_views(survey, step_through(survey, batch, record=True).recorders, steps_of(length, 1))
        both = survey.view(whole.events).get(place), steps.get(place)
        return None if both[0] is None or both[1] is None else (both[0].select(at, -1), both[1].select(at, -1))

    base, seen, unseen = last(probe.first), list[int](), list[int]()
    for column in range(length):
        found = last(changed_at(survey.template, probe.first, sequence.name, column))
        if base is None or found is None:
            return ""
        whole, steps = ((one - other).abs().max() > survey.limit_at(place) for one, other in zip(base, found, strict=True))
        seen += [column] * bool(whole)
        unseen += [column] * bool(whole and not steps)
    older = seen[:-1]
    if unseen == [length - 1]:
        return "a step does not see its own key and value: they are cached one step off, appended after they are read"
    if not older and not unseen:  # before any token is mixed with another
        return POSITIONS
    if unseen == older:
        return "a step sees its own token alone: the cache is not read"
    if unseen == older[-1:]:
        return "the cache is one key short: a step does not see the token before it"
    if unseen and unseen == older[: len(unseen)]:
        return f"the cache is {counted(len(unseen), 'key')} short: a step does not see the oldest, as after past[:, 1:]"
    return ""


def cause_of_chunks(survey: Survey, origin: Origin | None) -> str:
    """Return the most likely cause if chunks are wrong but single tokens right."""
    before = f"one token at a time is right, {CHUNK} at a time are not:"
    corner = (
        "there is no causal mask (T, S) of a chunk, or it lies in the upper left corner, as is_causal=True lays it; it belongs in the "
        "lower right one"
    )
    positions = "the positions of a chunk do not continue from the cache"
    if origin is None or not origin.module or _reads_tokens(survey, origin):
        return f"{before} {corner}, as tril(S - T); or {positions}"
    return f"{before} {positions}" if _embeds(origin) else f"{before} {corner}, as tril(S - T)"


def _embeds(origin: Origin) -> bool:
    """Return whether a leak begins in the embeddings of tokens and positions, before any mixing of positions."""
    return "embed" in origin.kind.lower() or "position" in origin.kind.lower()


def _reads_tokens(survey: Survey, origin: Origin) -> bool:
    """Return whether a leak begins in a module that embeds tokens and may mix positions, too."""
    place = Place(Key(Call(origin.module, 0), "in"), "input")
    layout, tensor = survey.layout(place), survey.views.get(place)
    ids = tensor is not None and not tensor.is_floating_point()
    return ids and not _embeds(origin) and layout is not None and any(axis.label == BATCH for axis in layout)
