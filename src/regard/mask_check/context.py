"""Checks that attention sees what it may: a mask that hides too much leaks nothing, but outputs do not follow its inputs."""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention.recorder import RecordedWeights, recording
from regard.mask_check.adapter import Sequence
from regard.mask_check.examples import Batch, collate, cut, with_other
from regard.mask_check.layout import Match, same_rows
from regard.mask_check.locate import inside
from regard.mask_check.probes import GENERATOR, Probe
from regard.mask_check.recording import Recorder
from regard.mask_check.report import Result
from regard.mask_check.survey import Survey

MIN_LENGTH = 2
SIDE = {"earlier": "later", "later": "earlier"}
CAUSE = {
    "earlier": "the mask hides too much: no position sees an earlier one; it is inverted, keeps the diagonal alone, or hides all",
    "later": "the mask hides too much: no position sees a later one; it is causal or inverted, keeps the diagonal, or hides all",
}
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax)


def sees_context(survey: Survey, sequence: Sequence, changed: Literal["earlier", "later"]) -> Result:
    """Change the tokens on one side of a position; if no output on the other side changes for any position, the mask hides too much.

    Any change of one output suffices: a window, a document or a stride may hide the rest. A model without visible attention may
    legitimately mix nothing.
    """
    check, about = "sees context", "" if changed == "earlier" else ", later tokens"
    name = f"{check}{about}" if len(survey.template.sequences) == 1 else f"{check}{about}: {sequence.name}"
    row = max(range(len(survey.examples)), key=lambda one: survey.examples[one].length(sequence.name))
    length = survey.examples[row].length(sequence.name)
    if length < MIN_LENGTH:
        return Result(check, name, "not checked", cause=f"no row has {MIN_LENGTH} positions")
    says = f"row {row}: {changed} tokens changed; an output at {SIDE[changed]} tokens must change"
    middle = length // 2
    for place in dict.fromkeys((middle, max(middle - 1, 1), min(middle + 1, length - 1), 1, length - 1)):
        halves = range(place), range(place, length)
        touched, seen = halves if changed == "earlier" else halves[::-1]
        follows = _follows(survey, sequence, row, touched, seen)
        if follows is None:
            return Result(check, name, "not checked", cause="no output has an axis of positions")
        if follows:
            return Result(check, name, "ok", says)
    module = _attends(survey, sequence.name)
    if module is None:
        return Result(check, name, "not checked", cause="no attention of a sequence to itself is seen in the model")
    touched, seen = (range(middle), range(middle, length)) if changed == "earlier" else (range(middle, length), range(middle))
    if (origin := inside(survey, _probe(survey, sequence, row, touched, seen))) is not None:
        follows = f"{origin.module or 'the model itself'} follows the {changed} tokens, and no output does"
        return Result(check, name, "ok", says, cause=f"{follows}: later layers multiply it by zero, or do not use it")
    kind = type(survey.runs.model.get_submodule(module)).__name__
    return Result(check, name, "blind", says, module, kind, cause=CAUSE[changed])


def _follows(survey: Survey, sequence: Sequence, row: int, touched: range, seen: range) -> bool | None:
    """Return whether an output at the observed tokens changes with the modified ones; None if no output has positions."""
    before = survey.base_outputs(train=False)
    probe = _probe(survey, sequence, row, touched, seen)
    after = survey.runs.run(probe.second)
    match, sizes = probe.match, (survey.sizes, survey.sizes)
    names = [name for name in survey.comparable() if name in before and name in after]
    found = [survey.compare_outputs(name, (before[name], after[name]), match, sizes) for name in names]
    if not any(one.compared for one in found):
        return None
    return any(one.compared and one.size > 0 for one in found)


def _probe(survey: Survey, sequence: Sequence, row: int, touched: range, seen: range) -> Probe:
    """Return the probe that changes some tokens of a row and compares the positions of others."""
    examples = list(survey.examples)
    generator = torch.Generator().manual_seed(GENERATOR)
    examples[row] = with_other(survey.template, examples[row], sequence.name, touched, generator)
    batch = collate(survey.template, examples, survey.widths, side=survey.template.side)
    whole = same_rows(survey.sizes.rows, survey.base.positions)
    positions = {key: [pairs[row]] for key, pairs in whole.positions.items()}
    part = survey.base.positions[sequence.name][row][seen.start : seen.stop]
    match = Match([(row, row)], positions | {sequence.name: [(part, part)]}, sequence.name)
    return Probe("sees context", "sees context", sequence.name, survey.base, batch, match, "")


def _attends(survey: Survey, name: str) -> str | None:
    """Return the first module in which positions of a sequence attend to each other, at two lengths; None if there is none."""
    found = _attends_in(survey, survey.base, survey.widths[name])
    if found is None or name in survey.fixed:
        return found
    width = survey.widths[name] - 1
    examples = cut(survey.template, survey.examples, name, width)
    shorter = collate(survey.template, examples, survey.widths | {name: width}, side=survey.template.side)
    return None if _attends_in(survey, shorter, width) is None else found


def _attends_in(survey: Survey, batch: Batch, width: int) -> str | None:
    recorder = Recorder(keep=False)
    names = {part: name for name, part in survey.runs.model.named_modules()}
    own: list[str] = []

    def note(recorded: RecordedWeights) -> None:
        if list(recorded.weights.shape[-2:]) == [width, width] and recorded.attention in names:
            own.append(names[recorded.attention])

    # Regard's attention modules are recorded, because their CPU kernels call no function of torch.
    with _Listener(recorder, width) as listener, recording(note):
        survey.runs.run(batch, recorder)
    for event in recorder.events:
        kind = type(survey.runs.model.get_submodule(event.key.call.module))
        if event.key.side == "in" and issubclass(kind, nn.MultiheadAttention):
            return event.key.call.module
    return own[0] if own else listener.module


class _Listener(TorchFunctionMode):
    """Records the active module at the first attention: as many queries as keys, or a softmax over scores of this shape."""

    def __init__(self, recorder: Recorder, width: int) -> None:
        super().__init__()
        self.recorder, self.width = recorder, width
        self.module: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.module is None and (func is F.scaled_dot_product_attention or func in SOFTMAX):
            tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            if func is F.scaled_dot_product_attention:
                sizes = [tensor.shape[-2] for tensor in tensors[:2]]
            else:
                sizes = list(tensors[0].shape[-2:]) if tensors else []
            if sizes == [self.width, self.width]:
                call = self.recorder.innermost
                self.module = "" if call is None else call.module
        return func(*args, **kwargs)
