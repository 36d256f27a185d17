"""The checks in order, with a second opinion in the model's own precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.mask_check.adapter import Inputs
from regard.mask_check.cache import CHUNK
from regard.mask_check.context import sees_context
from regard.mask_check.judge import cached, finite, judge, own_token
from regard.mask_check.labels import shifted
from regard.mask_check.probes import Missing, Probe, probes, training_probes
from regard.mask_check.report import Result
from regard.mask_check.runs import Runs, exact_of, model_copy
from regard.mask_check.survey import Survey

CLEARLY = 4
"""A change above this many times the limit of the model's own precision must be visible there, too."""

ANY = ("any",)
DRAWN_ANEW = ("row order", "row alone")
"""Checks that give other rows the random numbers of a row, so that they repeat what "repeated run" finds."""


class Step(NamedTuple):
    """One check, ready to be made on a survey.

    Attributes:
        make: runs it; with False, without locating the leak.
        after: names of the checks that must pass for this one to add anything, or ANY for all before it.
        name: its name if that one failed.
        needs: name of the check that must be possible for this one to mean anything, or "".
    """

    make: Callable[[Survey, bool], Result]
    after: tuple[str, ...] = ()
    name: str = ""
    needs: str = ""


def steps(survey: Survey, inputs: Inputs, *, sees_all: bool = False) -> Iterator[Step]:
    """Return the checks of a model, without those its adapter skips, in the order of `regard.mask_check.CHECKS`."""
    skip = survey.runs.adapter.skip
    if "finite values" not in skip:
        yield Step(lambda seen, explain: finite(seen))
    for probe in probes(survey):
        if probe.check not in skip:
            before = _before(probe.name)
            # Without known positions nothing can be said of how many follow.
            needs = before[0] if probe.check == "number of later tokens" else ""
            yield _probe(probe)._replace(after=before, name=probe.name, needs=needs)
        if probe.check == "labels" and probe.check not in skip and (found := shifted(survey, inputs)) is not None:
            yield Step(lambda seen, explain, found=found: found)
    for sequence in survey.template.sequences:
        if sequence.causal is True and "own token" not in skip:
            yield Step(lambda seen, explain, sequence=sequence: own_token(seen, sequence))
    if "cache" not in skip:
        last = survey.template.sequences[-1].name
        suffix = f": {last}" if len(survey.template.sequences) > 1 else ""
        after = f"future tokens{suffix}", f"number of later tokens{suffix}"
        # In one call the model sees later tokens, which single steps cannot.
        yield Step(lambda seen, explain: cached(seen, explain=explain), after, "cache")
        window, width = survey.runs.adapter.window, survey.widths[last]
        if window is not None and window >= width:
            why = f"the cache keeps {window} positions and the rows have {width}, so it never forgets one; give longer rows"
            yield _probe(Missing("cache", "cache, forgetting", why))
        if survey.runs.adapter.chunked:
            yield Step(lambda seen, explain: cached(seen, size=CHUNK, explain=explain), ("cache",), "cache, in chunks")
    if "training mode" not in skip:
        yield from _training(survey)
    if "sees context" not in skip:
        yield from _context(survey, sees_all=sees_all)


def _context(survey: Survey, *, sees_all: bool) -> Iterator[Step]:
    """Return the checks for masks that hide too much; later tokens must be visible only if the user says that they may be."""
    for sequence in survey.template.sequences:
        yield Step(lambda seen, explain, sequence=sequence: sees_context(seen, sequence, "earlier"), ANY, "sees context")
    if sees_all and not (last := survey.template.sequences[-1]).causal:
        yield Step(lambda seen, explain: sees_context(seen, last, "later"), ANY, "sees context, later tokens")


def _before(name: str) -> tuple[str, ...]:
    # If more padding changes something, so does none.
    if "no padding" in name:
        return (name.replace("no padding", "padding amount"),)
    if name in DRAWN_ANEW:
        return ("repeated run",)
    if name.startswith(number := "number of later tokens"):
        return name.replace(number, "future tokens"), name.replace(number, "padding amount"), "repeated run"
    return ()


def _probe(probe: Probe | Missing) -> Step:
    return Step(lambda seen, explain: judge(seen, probe, explain=explain))


def _training(survey: Survey) -> Iterator[Step]:
    """Return the probes in training mode, where the model is deterministic once dropout is off."""
    found = list(training_probes(survey))
    name = "training mode"
    if not found:
        return
    reason = ""
    try:
        one = survey.base_outputs(train=True)
        two = survey.runs.run(survey.base, train=True, seed=1)
        if any(_far(survey, key, one[key], two[key]) for key in survey.comparable() if key in one and key in two):
            reason = "the model draws at random in training, beyond dropout"
    except Exception as error:  # many models need labels then
        reason = f"the model does not run so: {' '.join(str(error).split()) or type(error).__name__}"
    if reason:
        yield _probe(Missing(name, name, reason))
        return
    for probe in found:
        yield _probe(probe)._replace(after=(probe.name.removeprefix(f"{name}, "),), name=probe.name)


def _far(survey: Survey, name: str, one: Tensor, two: Tensor) -> bool:
    return one.shape != two.shape or bool((one - two).abs().nan_to_num().max() > survey.limit(name))


class SecondOpinion:
    """Repeats a finding of double precision in the model's own precision.

    A mask filled with the lowest float64 becomes -inf where a softmax computes in float32, as in many Hugging Face models: an artifact of
    double precision, not an error of the model.

    Args:
        model: the user's model.
        survey: of the checked copy.
    """

    def __init__(self, model: nn.Module, survey: Survey) -> None:
        self.model, self.survey = model, survey
        types = {p.dtype for p in model.parameters() if p.is_floating_point()}
        self.other = survey.runs.dtype == torch.float64 and types != {torch.float64}
        self._own: Survey | None = None

    @property
    def passes(self) -> int:
        """Number of its forward passes."""
        return 0 if self._own is None else self._own.runs.passes

    def all(self, steps: Iterable[Step]) -> list[Result]:
        """Run the checks in order, without those that could only repeat an earlier finding."""
        results: dict[str, Result] = {}
        doubtful: dict[str, str] = {}  # failed checks, or checks skipped because of one: by that one's name
        for step in steps:
            earlier = next((one for one in (doubtful if step.after == ANY else step.after) if one in doubtful), None)
            if earlier is not None:
                result = Result(step.name.split(",")[0], step.name, "not checked", cause=f"see {doubtful[earlier]}")
                doubtful[step.name] = doubtful[earlier]
            elif step.needs in results and results[step.needs].verdict == "not checked":
                result = Result(step.name.split(":")[0], step.name, "not checked", cause=results[step.needs].cause)
            else:
                result = self.ask(step)
                if result.bad:
                    doubtful[result.name] = result.name
            results[result.name] = result
        return list(results.values())

    def ask(self, step: Step) -> Result:
        """Run a check; if its leak does not exist in the model's own precision, return the result in that."""
        if not self.other:
            return step.make(self.survey, True)
        found = step.make(self.survey, False)
        if not found.bad:
            return found
        if found.verdict == "leak" and found.limit and (own := self._in_own_precision()) is not None:
            try:
                again = step.make(own, False)
            except Exception:  # then there is no second opinion
                again = found
            if again.verdict == "ok" and (found.reaches or found.change) > CLEARLY * again.limit:
                return again
        return step.make(self.survey, True)

    def _in_own_precision(self) -> Survey | None:
        if self._own is None:
            precision = exact_of(self.model)[0]
            twin, _ = model_copy(self.model, precision)
            try:
                runs = Runs(twin, self.survey.runs.adapter, precision)
                self._own = Survey(runs, self.survey.template, self.survey.examples, self.survey.given)
            except Exception:
                self.other = False
        return self._own
