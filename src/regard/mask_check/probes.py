"""The probes: each changes one thing that a correct model must ignore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from regard.mask_check.adapter import Sequence, Side
from regard.mask_check.cuts import rounds
from regard.mask_check.examples import ROOM, Batch, Example, Template, collate, cut, other, widths_of, with_other
from regard.mask_check.layout import Match
from regard.mask_check.survey import Survey

GENERATOR = 7
SHORT = 2
"""Length of rows that run without padding: short enough that one padding position would change the output visibly."""


class Probe(NamedTuple):
    """Two runs, and what must be equal in them.

    Attributes:
        check: one of `regard.mask_check.CHECKS`.
        name: its name in the report, with the sequence if there are several.
        sequence: the changed sequence, or None.
        first: batch of the first run.
        second: batch of the second run.
        match: what must be equal.
        says: a description of the change.
        vacuous: what should differ if the model reads the changed part at all; or None.
        train: both runs use training mode.
        seeds: seeds of both runs, if they differ.
        between: a batch that the model runs on between the two, or None.
        of_base: whether the first run is the base run.
        may_fail: whether the model may refuse the second run, as for an unsupported length.
        more: returns the same probe elsewhere, run if this one finds nothing; the first finding counts.
        apart: returns the same change in one row alone, for a probe that changes several; or None.
        untried: what the probes leave out, or "".
    """

    check: str
    name: str
    sequence: str | None
    first: Batch
    second: Batch
    match: Match
    says: str
    vacuous: Match | None = None
    train: bool = False
    seeds: tuple[int, int] | None = None
    between: Batch | None = None
    of_base: bool = True
    may_fail: bool = False
    more: Callable[[], Iterable[Probe]] | None = None
    apart: Callable[[int], Probe] | None = None
    untried: str = ""


class Missing(NamedTuple):
    """A check that was skipped, and why."""

    check: str
    name: str
    reason: str


def probes(survey: Survey) -> Iterator[Probe | Missing]:
    """Return the probes in evaluation mode, in the order of `regard.mask_check.CHECKS`."""
    maker = _Maker(survey)
    base = survey.base
    says, between = "the same batch, run again after another; the outputs must stay", maker.other_rows().second
    yield Probe("repeated run", "repeated run", None, base, base, maker.same(base), says, seeds=(1, 2), between=between)
    sequences = survey.template.sequences
    for sequence in sequences:
        if sequence.causal:
            yield maker.future(sequence)
    for sequence in sequences:
        if sequence.labels is not None:
            yield maker.labels(sequence, sequence.labels)
    for sequence in sequences:
        if sequence.documents is not None:
            yield maker.documents(sequence, sequence.documents)
    for make in (maker.content, maker.amount):
        for sequence in sequences:
            yield make(sequence)
    for sequence in sequences:
        if sequence.paddable and sequence.name not in survey.fixed:
            yield maker.without(sequence)
    for sequence in sequences:
        if sequence.causal:
            yield maker.number(sequence)
    yield maker.other_side()
    yield maker.other_rows()
    yield maker.order()
    yield maker.alone()


def training_probes(survey: Survey) -> Iterator[Probe]:
    """Return the probes that also run in training mode."""
    made = {"future tokens", "padding content", "padding amount"} - set(survey.runs.adapter.skip)
    for probe in probes(survey):
        if isinstance(probe, Probe) and probe.check in made:
            yield probe._replace(check="training mode", name=f"training mode, {probe.name}", train=True, more=None, untried="")


class _Maker:
    def __init__(self, survey: Survey) -> None:
        self.survey = survey
        self.template: Template = survey.template
        self.base, self.examples, self.widths = survey.base, survey.examples, survey.widths
        self.several = len(self.template.sequences) > 1
        self.padded = [
            s for s in self.template.sequences if s.paddable and any(e.length(s.name) < self.widths[s.name] for e in self.examples)
        ]

    def same(self, other: Batch) -> Match:
        rows = range(len(self.examples))
        return self.pairs([(row, row) for row in rows], other)

    def pairs(self, rows: list[tuple[int, int]], other: Batch, changed: str | None = None) -> Match:
        positions = {
            s.name: [(self.base.positions[s.name][a], other.positions[s.name][b]) for a, b in rows] for s in self.template.sequences
        }
        return Match(rows, positions, changed)

    def name(self, check: str, sequence: Sequence) -> str:
        return f"{check}: {sequence.name}" if self.several else check

    def written(
        self, examples: list[Example], *, widths: dict[str, int] | None = None, side: Side | None = None, junk: str | None = None
    ) -> Batch:
        generator = torch.Generator().manual_seed(GENERATOR)
        used = self.template.side if side is None else side
        return collate(self.template, examples, widths or self.widths, side=used, junk=junk, generator=generator)

    def longest(self, sequence: Sequence) -> int:
        return max(range(len(self.examples)), key=lambda row: self.examples[row].length(sequence.name))

    def future(self, sequence: Sequence) -> Probe:
        row = self.longest(sequence)
        length = self.examples[row].length(sequence.name)
        made, untried = rounds(self.survey.given, sequence)
        probe = self.future_in(sequence, self.base, {row: length // 2})

        def more() -> Iterator[Probe]:
            # A leak at the border of a block or window, or in one row, shows only from its own position on, and in that row.
            first = self.base
            for number, one in enumerate(made):
                if not number or one.examples is not made[number - 1].examples:
                    first = self.written(one.examples, widths=widths_of(self.template, one.examples))
                yield self.future_in(sequence, first, dict(enumerate(one.starts)), copied=one.copied)

        last = length // 2 + (sequence.causal == "strict")
        return probe._replace(of_base=True, vacuous=self.only(row, sequence, slice(last, None)), more=more, untried=untried)

    def future_in(self, sequence: Sequence, first: Batch, starts: Mapping[int, int], *, copied: int | None = None) -> Probe:
        """Change the tokens of some rows of a batch, each from its own position on; the rows may be copies of one of the user's."""
        examples, kept = list(first.examples), list[Tensor]()
        rows = sorted(starts, key=lambda one: starts[one])
        for row in rows:
            start, length = starts[row], examples[row].length(sequence.name)
            generator = torch.Generator().manual_seed(GENERATOR)
            examples[row] = with_other(self.template, examples[row], sequence.name, range(start, length), generator)
            kept.append(first.positions[sequence.name][row][: start + (sequence.causal == "strict")])
        positions = {s.name: [(at, at) for at in (first.positions[s.name][row] for row in rows)] for s in self.template.sequences}
        match = Match([(row, row) for row in rows], positions | {sequence.name: [(at, at) for at in kept]}, sequence.name)
        row, start = rows[0], starts[rows[0]]
        last = start + (sequence.causal == "strict")
        which = f"row {row}" if copied is None else f"row {copied}, run as row {row} of its copies"
        says = f"{which}: tokens {start} to {examples[row].length(sequence.name) - 1} changed; outputs 0 to {last - 1} must stay"
        return Probe(
            "future tokens",
            self.name("future tokens", sequence),
            sequence.name,
            first,
            self.written(examples, widths=first.widths),
            match,
            says,
            of_base=False,
            apart=None if len(rows) == 1 else lambda one: self.future_in(sequence, first, {one: starts[one]}, copied=copied),
        )

    def number(self, sequence: Sequence) -> Probe | Missing:
        check = "number of later tokens"
        name = self.name(check, sequence)
        if sequence.name in self.survey.fixed:
            return Missing(check, name, f"runs at one length only: {self.survey.fixed[sequence.name]}")
        length = self.widths[sequence.name]
        return self.fewer(sequence, name, length - 1)._replace(more=lambda: [self.fewer(sequence, name, length // 2)])

    def fewer(self, sequence: Sequence, name: str, length: int) -> Probe:
        examples = cut(self.template, self.examples, sequence.name, length)
        # A model that is told its padding keeps the width, which is the matter of "padding amount".
        second = self.written(examples, widths=self.widths if sequence.paddable else self.widths | {sequence.name: length})
        rows = [(row, row) for row in range(len(examples))]
        match = self.pairs(rows, second, sequence.name)
        both = [(one[: len(two)], two) for one, two in match.positions[sequence.name]]
        match = match._replace(positions=match.positions | {sequence.name: both})
        says = f"rows cut to their first {length} tokens; the outputs at these must stay"
        return Probe("number of later tokens", name, sequence.name, self.base, second, match, says, may_fail=True)

    def only(self, row: int, sequence: Sequence, where: slice) -> Match:
        match = self.pairs([(row, row)], self.base, sequence.name)
        kept = [(a[where], b[where]) for a, b in match.positions[sequence.name]]
        return match._replace(positions=match.positions | {sequence.name: kept})

    def labels(self, sequence: Sequence, key: str) -> Probe:
        generator = torch.Generator().manual_seed(GENERATOR)
        everywhere = [range(example.length(sequence.name)) for example in self.examples]
        examples = [with_other(self.template, e, sequence.name, r, generator, key) for e, r in zip(self.examples, everywhere, strict=True)]
        says = f"all of {key} changed; every output must stay"
        return Probe("labels", "labels", sequence.name, self.base, self.written(examples), self.same(self.base), says)

    def documents(self, sequence: Sequence, key: str) -> Probe | Missing:
        check, name = "other documents", self.name("other documents", sequence)
        row = max(range(len(self.examples)), key=lambda one: len(self.examples[one].along[key].unique()))
        numbers = self.examples[row].along[key].cpu()
        if len(numbers.unique()) == 1:
            return Missing(check, name, "no row holds two documents")
        made = []
        for number in (numbers[0], numbers[-1]):
            where = (numbers == number).nonzero().flatten()
            others = numbers != number
            if sequence.causal == "strict":  # the first output of a document follows the last token of the previous one
                others[(where + 1)[where + 1 < len(others)]] = False
            examples = list(self.examples)
            generator = torch.Generator().manual_seed(GENERATOR)
            examples[row] = with_other(self.template, examples[row], sequence.name, where.tolist(), generator)
            batch = self.written(examples)
            columns = self.base.positions[sequence.name][row][others]
            match = self.pairs([(row, row)], batch, sequence.name)
            match.positions[sequence.name] = [(columns, columns)]
            says = f"row {row}: the document at tokens {int(where[0])} to {int(where[-1])} changed; outputs of other documents must stay"
            made.append(Probe(check, name, sequence.name, self.base, batch, match, says))
        return made[0] if sequence.causal else made[0]._replace(more=lambda: made[1:])

    def content(self, sequence: Sequence) -> Probe | Missing:
        name = self.name("padding content", sequence)
        if not sequence.paddable:
            return Missing("padding content", name, "the batch has no mask, lengths or pad token")
        if not sequence.told:
            return Missing("padding content", name, "the model finds padding by its token")
        if sequence not in self.padded:
            return Missing("padding content", name, "no row is padded")
        batch = self.written(self.examples, junk=sequence.name)
        says = "other tokens in the padding; outputs at real positions must stay"
        return Probe("padding content", name, sequence.name, self.base, batch, self.same(batch), says)

    def amount(self, sequence: Sequence) -> Probe | Missing:
        name = self.name("padding amount", sequence)
        if not sequence.paddable:
            return Missing("padding amount", name, "the batch has no mask, lengths or pad token")
        if sequence.name in self.survey.fixed:
            return Missing("padding amount", name, f"runs at one length only: {self.survey.fixed[sequence.name]}")
        batch = self.written(self.examples, widths=self.widths | {sequence.name: self.widths[sequence.name] + ROOM})
        says = f"{ROOM} more columns of padding; outputs at real positions must stay"
        return Probe("padding amount", name, sequence.name, self.base, batch, self.same(batch), says)

    def without(self, sequence: Sequence) -> Probe:
        length = min(SHORT, *(example.length(sequence.name) for example in self.examples))
        examples = cut(self.template, self.examples, sequence.name, length)
        first, second = self.written(examples), self.written(examples, widths=self.widths | {sequence.name: length})
        positions = {name: list(zip(first.positions[name], second.positions[name], strict=True)) for name in first.positions}
        match = Match([(row, row) for row in range(len(examples))], positions)
        says = f"rows of {length} tokens without padding; outputs must be those with {self.widths[sequence.name] - length} columns of it"
        name = self.name("no padding", sequence)
        return Probe("padding amount", name, sequence.name, first, second, match, says, of_base=False, may_fail=True)

    def other_side(self) -> Probe | Missing:
        side: Side = "left" if self.template.side == "right" else "right"
        check = "left padding"
        if not self.padded:
            return Missing(check, check, "no row is padded")
        if side not in self.survey.runs.adapter.sides:
            return Missing(check, check, f"the batch is padded on the {self.template.side}; Adapter(sides=...) asks for both")
        batch = self.written(self.examples, side=side)
        says = f"padding on the {side} instead of the {self.template.side}; outputs at real positions must stay"
        return Probe(check, check, self.padded[-1].name, self.base, batch, self.same(batch), says)

    def other_rows(self) -> Probe:
        kept = 1 if self.padded else 0
        generator = torch.Generator().manual_seed(GENERATOR)
        examples = []
        for row, example in enumerate(self.examples):
            if row == kept:
                examples.append(example)
                continue
            changed = example
            for sequence in self.template.sequences:
                changed = with_other(self.template, changed, sequence.name, range(changed.length(sequence.name)), generator)
                if row > kept and sequence.paddable:
                    changed = shortened_by_one(changed, sequence)
            examples.append(changed)
        batch = self.written(examples)
        says = f"all rows but row {kept} changed; its outputs must stay"
        changed = [(row, row) for row in range(len(examples)) if row != kept]
        moved = self.pairs(changed, batch)
        # Rows may be shorter now: the common part is compared.
        both = {name: [(a[: len(b)], b[: len(a)]) for a, b in pairs] for name, pairs in moved.positions.items()}
        match = self.pairs([(kept, kept)], batch)
        return Probe("other rows", "other rows", None, self.base, batch, match, says, moved._replace(positions=both))

    def order(self) -> Probe:
        batch = self.written(self.examples[::-1])
        last = len(self.examples) - 1
        rows = [(row, last - row) for row in range(last + 1)]
        says = "the rows in reverse order; the outputs must follow"
        return Probe("row order", "row order", None, self.base, batch, self.pairs(rows, batch), says)

    def alone(self) -> Probe:
        kept = 1 if self.padded else 0
        batch = self.written([self.examples[kept]])
        says = f"row {kept} as a batch of its own, as wide as before; its outputs must stay"
        return Probe("row alone", "row alone", None, self.base, batch, self.pairs([(kept, 0)], batch), says)


def shortened_by_one(example: Example, sequence: Sequence) -> Example:
    """Remove the last position of a sequence if at least one is left."""
    length = example.length(sequence.name) - 1
    if length < 1:
        return example
    sequences = example.sequences | {sequence.name: example.sequences[sequence.name][:length]}
    along = example.along | {key: example.along[key][:length] for key in sequence.along}
    return Example(sequences, along, example.constants)


def changed_at(template: Template, batch: Batch, name: str, column: int) -> Batch:
    """Return a batch with another token in one column of every row, padding or not."""
    sequence = next(s for s in template.sequences if s.name == name)
    tokens: Tensor = batch.inputs[name].clone()
    own = tokens.transpose(0, 1) if sequence.time_first else tokens
    own[:, column] = other(own[:, column], template.pools[name], torch.Generator().manual_seed(GENERATOR))
    return batch._replace(inputs=batch.inputs | {name: tokens})
