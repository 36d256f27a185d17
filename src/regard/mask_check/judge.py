"""Runs one probe: both runs, the comparison, and for a leak its origin and cause."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import listed
from regard.mask_check.adapter import Sequence
from regard.mask_check.cache import cache_probe, cause_of_cache, cause_of_chunks, locate_in_steps, step_through
from regard.mask_check.causes import cause_of, of_experts
from regard.mask_check.dependence import Module
from regard.mask_check.evidence import attends, computes_softmax
from regard.mask_check.examples import collate, with_other
from regard.mask_check.layout import NOTHING, Difference, Match, same_rows, spread
from regard.mask_check.locate import Origin, describe, fused_nan, inside, locate
from regard.mask_check.probes import GENERATOR, Missing, Probe
from regard.mask_check.recording import LIBRARIES, TORCH, Key, Recorder
from regard.mask_check.report import Result
from regard.mask_check.runs import Runs
from regard.mask_check.survey import SAFETY, Place, Survey, sizes_of

PACKAGE = str(Path(__file__).parent)
_Outputs = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


def judge(survey: Survey, probe: Probe | Missing, *, explain: bool = True) -> Result:
    """Run a probe and return its result; for a leak, unless `explain` is False, with origin and cause."""
    if isinstance(probe, Missing):
        return Result(probe.check, probe.name, "not checked", cause=probe.reason)
    result = _judged(survey, probe, explain=explain)
    for elsewhere in probe.more() if probe.more is not None and result.verdict == "ok" else ():
        found = _judged(survey, elsewhere, explain=explain and elsewhere.apart is None)
        if found.verdict == "leak" and elsewhere.apart is not None:
            found = _in_one_row(survey, elsewhere, explain=explain) or result
        if found.bad:
            return found
        if found.verdict == "ok" and found.change * result.limit > result.change * found.limit:
            result = replace(found, cause=result.cause)
    return replace(result, cause=result.cause or probe.untried) if result.verdict == "ok" else result


def _in_one_row(survey: Survey, probe: Probe, *, explain: bool) -> Result | None:
    """Return the first leak that remains if one row is changed alone; None if none does: rows that depend on each other."""
    assert probe.apart is not None
    for row, _ in probe.match.rows:
        found = _judged(survey, probe.apart(row), explain=explain)
        if found.bad:
            return found
    return None


def _judged(survey: Survey, probe: Probe, *, explain: bool) -> Result:
    seeds = probe.seeds
    try:
        first = _run(survey, probe, first=True)
        second = _run(survey, probe, first=False)
    except Exception as error:  # an exception of the model is a finding
        if "sort" in str(error):
            return Result(probe.check, probe.name, "not checked", cause=f"the model wants its rows in an order: {_told(error)}")
        if probe.may_fail:
            return Result(probe.check, probe.name, "not checked", cause=f"the model cannot run so few columns: {_told(error)}")
        return failed(survey.runs, probe.check, probe.name, probe.says, error, _failing(survey, probe))
    worst, found = _worst(survey, probe, (first, second))
    if not found.compared:
        reason = "no output has an axis of positions" if probe.match.changed else "no output can be compared"
        if probe.sequence in survey.fixed:
            reason += f" that is known, for the model runs at one length of {probe.sequence} only: {survey.fixed[probe.sequence]}"
        return Result(probe.check, probe.name, "not checked", cause=reason)
    deviation = spread(survey.outputs[worst])
    result = Result(
        probe.check,
        probe.name,
        "ok",
        probe.says,
        output=worst,
        change=found.size / deviation,
        limit=survey.limit(worst) / deviation,
    )
    if found.size > survey.limit(worst):
        if not explain:
            return replace(result, verdict="leak")
        origin = locate(survey, probe, worst)
        cause = _unlocated(survey) if origin is None else cause_of(survey, probe, origin)
        return _leak(result, survey, origin, found, cause)
    if (hidden := _scaled_down(survey, probe, result, found, (first, second))) is not None:
        return hidden
    if probe.vacuous is not None and seeds is None:
        _, moved = _worst(survey, probe._replace(match=probe.vacuous), (first, second), farthest=True)
        if moved.compared and moved.size == 0:
            return Result(probe.check, probe.name, "not checked", cause=f"no output depends on {probe.sequence or 'the batch'} at all")
    looked = (probe.check == "future tokens" and probe.more) or (probe.check == "padding content" and not probe.train)
    if looked and not found.size and (origin := inside(survey, probe)) is not None:
        why = "later layers multiply it by zero, or do not use it"
        return replace(result, cause=f"{origin.module or 'the model itself'} follows what was changed, and no output does: {why}")
    return result


def _scaled_down(survey: Survey, probe: Probe, result: Result, found: Difference, outputs: _Outputs) -> Result | None:
    """Judge a change of an output below a float32 rounding: the leak may be scaled down, as by LayerScale.

    It is a leak if rounding each result of the model's operations changes the output by far less. Where tokens move to other columns,
    rotary embeddings of tables in float32 change it, too.
    """
    limit = survey.exact_limit(result.output)
    if found.size <= limit or _shifted(probe.match):
        return None
    try:
        rounding, why = _rounding(survey, probe, result.output, outputs), "no more than rounding in the model's operations may do"
    except Exception as error:  # operations that run only where nothing watches them
        rounding, why = torch.inf, f"and what rounding may do cannot be measured: {_told(error)}"
    if found.size <= SAFETY * rounding:
        return replace(result, cause=f"an output changes by {result.change:.0e} of its deviation, {why}")
    if (origin := locate(survey, probe, result.output, limit=limit)) is None:  # the module that attends scales it down itself
        with survey.limits_of_double():
            origin = locate(survey, probe, result.output)
            cause = _unlocated(survey) if origin is None else cause_of(survey, probe, origin)
            return _leak(replace(result, limit=limit / spread(survey.outputs[result.output])), survey, origin, found, cause)
    tensor, place = survey.views[Place(origin.event.key, origin.tensor)], Place(origin.event.key, origin.tensor)
    inside = replace(
        result,
        reaches=result.change,
        change=origin.found.size / spread(tensor),
        limit=survey.limit_at(place) / spread(tensor),
    )
    return _leak(inside, survey, origin, origin.found, cause_of(survey, probe, origin), survey.limit_at(place))


def _shifted(match: Match) -> bool:
    """Return whether positions are compared that stand in other columns of the second run."""
    return any(not torch.equal(one, other) for pairs in match.positions.values() for one, other in pairs)


def _rounding(survey: Survey, probe: Probe, name: str, outputs: _Outputs) -> float:
    """Return how far rounding moves an output in either run of a probe, where the probe compares it."""
    most = 0.0
    if probe.first is probe.second:
        return most  # the same operations on the same numbers
    for side, batch in enumerate((probe.first, probe.second)):
        rows = [(pair[side], pair[side]) for pair in probe.match.rows]
        positions = {key: [(pair[side], pair[side]) for pair in pairs] for key, pairs in probe.match.positions.items()}
        moved = survey.runs.rounded(batch, train=probe.train)
        pair, sizes = (outputs[side][name], moved[name]), sizes_of(batch)
        most = max(most, survey.compare_outputs(name, pair, Match(rows, positions, probe.match.changed), (sizes, sizes)).size)
    return most


def _run(survey: Survey, probe: Probe, *, first: bool) -> dict[str, Tensor]:
    batch = probe.first if first else probe.second
    if not first and probe.between is not None:
        survey.runs.run(probe.between, train=probe.train)
    if probe.seeds is not None:
        return survey.runs.run(batch, train=probe.train, seed=probe.seeds[0 if first else 1])
    if first and probe.of_base:
        return survey.base_outputs(train=probe.train)
    return survey.outputs_for(batch, train=probe.train) if first else survey.runs.run(batch, train=probe.train)


def _failing(survey: Survey, probe: Probe) -> Recorder:
    """Repeat a failing run with a recorder to find the module that fails."""
    recorder = Recorder(keep=False)
    with suppress(Exception):
        survey.runs.run(probe.second, recorder, train=probe.train)
    return recorder


def _worst(survey: Survey, probe: Probe, outputs: _Outputs, *, farthest: bool = False) -> tuple[str, Difference]:
    """Return the output that exceeds its limit most, and its difference; `farthest`: see `difference`."""
    sizes = sizes_of(probe.first), sizes_of(probe.second)
    worst, most = "", NOTHING
    for name in survey.comparable():
        if name not in outputs[0] or name not in outputs[1]:
            continue
        found = survey.compare_outputs(name, (outputs[0][name], outputs[1][name]), probe.match, sizes, farthest=farthest)
        if found.compared and (not most.compared or found.size * survey.limit(worst) > most.size * survey.limit(name)):
            worst, most = name, found
    return worst, most


def _leak(result: Result, survey: Survey, origin: Origin | None, found: Difference, cause: str, limit: float | None = None) -> Result:
    limit = survey.limit(result.output) if limit is None else limit
    positions = tuple(sorted(column for column, size in found.positions.items() if size > limit))
    told = replace(result, verdict="leak", module="", kind=type(survey.runs.model).__name__, positions=positions, cause=cause)
    if origin is None:
        return told
    return replace(told, module=origin.module, kind=origin.kind, between=origin.between, lines=origin.lines)


def _unlocated(survey: Survey) -> str:
    if len(list(survey.runs.model.modules())) == 1:
        return "the model is a single module: see its forward"
    return "gone while the modules are recorded: without hooks torch takes a fused path, and only that leaks"


def failed(runs: Runs, check: str, name: str, says: str, error: Exception, recorder: Recorder, cause: str = "") -> Result:
    """Return the result of a run that raised an error, with the failing module."""
    module, kind = None, ""
    if recorder.unfinished is not None:
        module = recorder.unfinished.module
        kind = type(runs.model.get_submodule(module)).__name__
    told = f"{cause}; " if cause else ""
    return Result(check, name, "error", says, module, kind, lines=_place(error), cause=f"{told}it says: {_told(error)}")


def _told(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _place(error: Exception) -> str:
    outside = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((TORCH, PACKAGE))]
    frames = [f for f in outside if not f.filename.startswith(LIBRARIES)] or outside
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def finite(survey: Survey) -> Result:
    """Check real positions of the outputs for NaN."""
    check, says = "finite values", "the batch as it is; no output may be NaN at a real position"
    match = same_rows(survey.sizes.rows, survey.base.positions)
    sizes = (survey.sizes, survey.sizes)
    plain = survey.base_outputs(train=False)  # without hooks torch may take a fused path, in which a row without any key is NaN
    for name in survey.comparable():
        tensor = survey.outputs[name].isnan() | plain[name].isnan()
        found = survey.compare_outputs(name, (tensor.double(), torch.zeros_like(tensor)), match, sizes)
        if not found.size:
            continue
        base = Result(check, check, "leak", says, output=name, change=float("inf"), limit=0.0)
        for place, inner in survey.views.items():
            one = (
                survey.compare_at(place, (inner.isnan().double(), torch.zeros_like(inner)), match) if inner.is_floating_point() else NOTHING
            )
            if one.size:
                origin = describe(survey, survey.events, place, one)
                return _leak(base, survey, origin, _marked(found, survey.limit(name)), _why_nan(survey, origin))
        module = fused_nan(survey)
        where = "outside of the modules" if module is None else "in torch's fused path alone, without gradients"
        told = _leak(base, survey, None, _marked(found, survey.limit(name)), f"NaN arises {where}; {_why_nan(survey, None)}")
        return told if module is None else replace(told, module=module, kind="MultiheadAttention")
    return Result(check, check, "ok", says)


def _why_nan(survey: Survey, origin: Origin | None) -> str:
    """Name parameters that are NaN, or explain a softmax without any key: if inverted masks give no NaN, the masks are inverted."""
    model = survey.runs.model
    if broken := [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor.isnan().any()]:
        return f"the model itself holds NaN, in {listed(broken, most=3)}; load or initialise it again"
    module = None if origin is None else Module(survey, origin, survey.base, train=False)
    if not computes_softmax(survey, module):
        place = "the model" if origin is None or module is None or not module.named else origin.module or "it"
        return f"{place} computes no softmax: a division by zero, a logarithm or root of a wrong number, or an overflow"
    cause = "a position has nothing to attend to: the softmax of a row that is masked everywhere is NaN"
    masks = {key: values._replace(real=values.padding, padding=values.real) for key, values in survey.template.masks.items()}
    if not masks:
        return f"{cause}; see whether a padding mask is inverted" if any(s.paddable for s in survey.template.sequences) else cause
    template = replace(survey.template, masks=masks)
    try:
        outputs = survey.runs.run(collate(template, survey.examples, survey.widths, side=template.side))
    except Exception:  # a mask that cannot be inverted gives no evidence
        return cause
    right = all(not outputs[name].isnan().any() for name in survey.comparable() if name in outputs)
    return f"inverted mask: {listed(masks)} turned round leaves no NaN; as it is, {cause}" if right else cause


def _marked(found: Difference, limit: float) -> Difference:
    return found._replace(positions={column: float("inf") if size else 0.0 for column, size in found.positions.items()})


def own_token(survey: Survey, sequence: Sequence) -> Result:
    """Find a module in which a position cannot see itself: the first depends on nothing, while later ones depend on the first."""
    name = "own token" if len(survey.template.sequences) == 1 else f"own token: {sequence.name}"
    says = "token 0 changed; the attention of position 0 must change, because it may attend to nothing else"
    row = max(range(len(survey.examples)), key=lambda one: survey.examples[one].length(sequence.name))
    examples = list(survey.examples)
    examples[row] = with_other(survey.template, examples[row], sequence.name, range(1), torch.Generator().manual_seed(GENERATOR))
    recorder = Recorder()
    survey.runs.run(collate(survey.template, examples, survey.widths, side=survey.template.side), recorder)
    views = survey.view(recorder.events)
    whole = same_rows(survey.sizes.rows, survey.base.positions)
    columns = survey.base.positions[sequence.name][row]

    others = {other.name for other in survey.template.sequences} - {sequence.name}

    def match(part: slice) -> Match:
        positions = {key: [pairs[row]] for key, pairs in whole.positions.items()}
        return Match([(row, row)], positions | {sequence.name: [(columns[part], columns[part])]}, sequence.name)

    def moved(place: Place, part: slice) -> bool:
        found = survey.compare_at(place, (survey.views[place], views[place]), match(part))
        return found.size > survey.limit_at(place)

    for place in survey.views:
        call, side = place.key
        layout = survey.layout(place)
        if side == "in" or place not in views or layout is None or sum(axis.label == sequence.name for axis in layout) != 1:
            continue
        if any(axis.label == sequence.name and axis.offset for axis in layout) or not survey.learns(call.module):
            continue
        entered = [other for other in survey.views if other.key == Key(call, "in") and other in views]
        if any(axis.label in others for other in entered for axis in survey.layout(other) or ()):
            continue  # attention to another sequence: a query that may attend to one position only does not count
        if moved(place, slice(1, None)) and not moved(place, slice(0, 1)) and any(moved(other, slice(0, 1)) for other in entered):
            found = survey.compare_at(place, (survey.views[place], views[place]), match(slice(0, 1)))
            origin = describe(survey, survey.events, place, found)
            if attends(Module(survey, origin, survey.base, train=False), survey.widths[sequence.name]) is False:
                continue  # a shift or an exclusive sum, beside which a residual connection may carry the token itself
            cause = "the mask leaves out its own diagonal, as tril(diagonal=-1) or triu(diagonal=0): position t does not attend to itself"
            base = Result("own token", name, "leak", says, output=next(iter(survey.comparable())))
            return _leak(base, survey, origin, found._replace(positions={}), cause)
    return Result("own token", name, "ok", says)


def cached(survey: Survey, *, size: int = 1, explain: bool = True) -> Result:
    """Compare steps of this many tokens with the full sequence."""
    probe = cache_probe(survey, size=size)
    name = probe.name
    if survey.runs.adapter.step is None:
        return Result("cache", name, "not checked", cause="the adapter has no start and step")
    try:
        whole = survey.runs.run(probe.first)
        stepped = step_through(survey, probe.second, record=False, size=size).outputs
    except Exception as error:
        return failed(survey.runs, "cache", name, probe.says, error, Recorder(keep=False))
    worst, found = _worst(survey, probe, (whole, stepped))
    if not found.compared:
        return Result("cache", name, "not checked", cause="what step returns has no counterpart in what call returns")
    deviation = spread(survey.outputs[worst])
    limit = survey.limit(worst) / deviation
    result = Result("cache", name, "ok", probe.says, output=worst, change=found.size / deviation, limit=limit)
    if found.size <= survey.limit(worst):
        return result
    if not explain:
        return replace(result, verdict="leak")
    origin = locate_in_steps(survey, probe, size=size)
    cause = of_experts(origin) or (cause_of_cache(survey, origin) if size == 1 else cause_of_chunks(survey, origin))
    return _leak(result, survey, origin, found, cause)
