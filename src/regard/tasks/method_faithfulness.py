"""Faithfulness of `regard.explanations` methods for a run: erasure, known links, random weights, with intervals."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import progress
from regard.errors import ConfigError, DataError, counted
from regard.explanations import METHODS, ModelBatch, explain, greedy_order
from regard.explanations.faithfulness import SHARES, erasure_curves, randomized, rank_correlation, with_model
from regard.explanations.methods import Method
from regard.metrics.significance import bootstrap_interval
from regard.tasks.batch_threads import few_threads
from regard.tasks.explained_examples import ExplainedBatch, finite_scores, links_of_scores
from regard.tasks.translation_evaluation import KnownLinks, check_known_links
from regard.tasks.word_links import judged_links
from regard.viewer.text import aligned

RANDOM, GREEDY = "random order", "greedy leave-one-out"
"""Reference rows: a random order, and the greedy order."""


COLUMNS = ("method", "comprehensiveness", "sufficiency", "alignment error, %", "pointing", "shuffled weights", "s per example")
"""Columns of the printed table."""


class Figure(NamedTuple):
    """A mean over examples with its 95 % interval, by bootstrap over examples."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class MethodFigures(NamedTuple):
    """Faithfulness figures of a method.

    Attributes:
        method: its name, or `RANDOM`, or `GREEDY`.
        comprehensiveness: mean loss of an output's probability without the top inputs; high is faithful.
        sufficiency: mean loss with these inputs only; low is faithful.
        alignment_error: alignment error rate in percent; None without known links.
        random_weights: Spearman's correlation with the method's scores for shuffled weights; should be near 0.
        seconds: per example.
        pointing: share of words whose best cell is on the named region; None without known regions.
        refused: reason if the method is not defined for this model, otherwise None.
    """

    method: str
    comprehensiveness: Figure | None = None
    sufficiency: Figure | None = None
    alignment_error: Figure | None = None
    random_weights: Figure | None = None
    seconds: float | None = None
    pointing: Figure | None = None
    refused: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        return {name: part._asdict() if isinstance(part, Figure) else part for name, part in self._asdict().items()}


class FaithfulnessTable(NamedTuple):
    """Comparison of methods.

    Attributes:
        methods: their figures.
        examples: number of examples.
        outputs: number of measured outputs.
        shares: shares of removed inputs.
        seed: seed of the outputs, the random order, the order of equal scores, and the shuffled weights.
        agreement: mean rank correlation of scores per pair of methods.
    """

    methods: list[MethodFigures]
    examples: int
    outputs: int
    shares: tuple[float, ...]
    seed: int
    agreement: dict[Method, dict[Method, float]] = {}  # noqa: RUF012 - never changed

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        return {**self._asdict(), "methods": [figures.to_json() for figures in self.methods]}


class _Chosen(NamedTuple):
    # Measured outputs of a batch: example and column of each.
    rows: Tensor
    outputs: Tensor


@few_threads()
def measure_methods(
    batches: Sequence[ExplainedBatch],
    methods: Sequence[Method] = METHODS,
    *,
    links: KnownLinks | None = None,
    outputs: int = 3,
    seed: int = 1,
    samples: int = 1000,
) -> FaithfulnessTable:
    """Measure the faithfulness of methods, compared with a random and a greedy order.

    Args:
        batches: examples of one run.
        methods: names.
        links: known alignments of the pairs of a translation run, in order.
        outputs: number of random outputs per example, without EOS.
        seed: random seed.
        samples: resampled sets for the intervals.

    Raises:
        ConfigError: `outputs` or `samples` is below 1, a method does not exist, or links are given for a run that is no translation.
        DataError: no example, no output with two inputs or more, not as many links as pairs, or a score is NaN or infinite.

    Example:
        >>> measure_methods([])
        Traceback (most recent call last):
            ...
        regard.errors.DataError: faithfulness: no example with an output of two inputs or more
    """
    if outputs < 1 or samples < 1:
        raise ConfigError(f"faithfulness: outputs {outputs} and samples {samples} must be 1 or more")
    generator = torch.Generator().manual_seed(seed)
    chosen = [_choose(item.batch, outputs, generator) for item in batches]
    if not sum(len(part.rows) for part in chosen):
        raise DataError("faithfulness: no example with an output of two inputs or more")
    count = sum(len(item.inputs) for item in batches)
    if links is not None and not any(item.pairs for item in batches):
        raise ConfigError(f"{links.name}: only for a translation run, which has sentence pairs")
    if links is not None:
        links = _links_of(batches, links)
    shuffled = randomized(batches[0].batch.model, seed=seed)  # type: ignore[arg-type]
    found, said = [], dict[Method, list[Tensor]]()
    with progress.stage("Measuring methods", total=len(methods) + 2, unit="methods") as stage:
        for name in (*methods, RANDOM, GREEDY):
            stage.update(figures=f"now {name}")
            try:
                measurement = _Measurement(name, batches, chosen, samples, seed)
                found.append(measurement.run(links, shuffled, generator))
                if name in METHODS:
                    said[name] = measurement.scores
            except ConfigError as error:
                if name not in METHODS:
                    raise
                found.append(MethodFigures(name, refused=str(error)))
            stage.advance(1)
    return FaithfulnessTable(found, count, sum(len(part.rows) for part in chosen), SHARES, seed, _agreement(batches, chosen, said))


def _links_of(batches: Sequence[ExplainedBatch], links: KnownLinks) -> KnownLinks:
    """Check known links, a line per pair given, and return those of the pairs that were not left out."""
    pairs = {number: pair for item in batches for number, (pair, *_) in zip(item.numbers, item.pairs, strict=True)}
    check_known_links([pairs.get(number) for number in range(1, batches[0].given + 1)], links)
    kept = [number - 1 for number in pairs]
    return links._replace(sure=[links.sure[place] for place in kept], possible=[links.possible[place] for place in kept])


def _agreement(
    batches: Sequence[ExplainedBatch], chosen: Sequence[_Chosen], said: Mapping[Method, Sequence[Tensor]]
) -> dict[Method, dict[Method, float]]:
    """Return the mean rank correlation of each pair of methods over the outputs, without pairs that no output distinguishes."""
    ranked = [item.batch.select(part.rows).inputs_of(part.outputs) for item, part in zip(batches, chosen, strict=True)]
    found: dict[Method, dict[Method, float]] = {name: {} for name in said}
    for one, other in itertools.combinations(said, 2):
        parts = [rank_correlation(a, b, inputs) for a, b, inputs in zip(said[one], said[other], ranked, strict=True)]
        value = float(torch.cat(parts).double().nanmean())
        if not math.isnan(value):
            found[one][other] = found[other][one] = value
    return found


class _Measurement:
    """One method over all batches."""

    def __init__(self, name: str, batches: Sequence[ExplainedBatch], chosen: Sequence[_Chosen], samples: int, seed: int) -> None:
        self.name, self.batches, self.chosen, self.samples, self.seed = name, batches, chosen, samples, seed
        self.scores: list[Tensor] = []  # measured outputs, once known

    def run(self, links: KnownLinks | None, shuffled: Any, generator: torch.Generator) -> MethodFigures:
        started = time.perf_counter()
        tables = [self._scores(item, part, generator) for item, part in zip(self.batches, self.chosen, strict=True)]
        self.scores = [own for _, own in tables]
        examples = sum(len(item.inputs) for item in self.batches)
        seconds = (time.perf_counter() - started) / examples
        kinds: list[list[np.ndarray]] = [[], [], []]
        for item, part, (_, scores) in zip(self.batches, self.chosen, tables, strict=True):
            batch = item.batch.select(part.rows)
            areas = erasure_curves(batch, part.outputs, scores, seed=self.seed).areas
            parts = [*areas, self._random_weights(item.batch, part, scores, shuffled)]
            for kind, values in zip(kinds, parts, strict=True):
                kind.append(_by_example(values, part.rows, len(item.inputs)))
        errors = None if links is None or self.name not in METHODS else self._errors(links, [whole for whole, _ in tables])
        figures = [self._figure(np.concatenate(kind)) for kind in kinds]
        return MethodFigures(
            self.name, figures[0], figures[1], self._figure(errors), figures[2], seconds, self._figure(self._pointing(tables))
        )

    def _scores(self, item: ExplainedBatch, part: _Chosen, generator: torch.Generator) -> tuple[Tensor | None, Tensor]:
        # (B, T, S) of a method, and (N, S) of the measured outputs.
        batch = item.batch
        if self.name == RANDOM:
            return None, torch.rand(len(part.rows), batch.inputs.shape[1], generator=generator).to(batch.inputs.device)
        if self.name == GREEDY:
            some = batch.select(part.rows)
            size = int(batch.inputs.sum(1).max())
            # The grid of an image has hundreds of cells; one at a time, its order would cost thousands of forward passes per cell.
            return None, greedy_order(some, part.outputs, math.ceil(max(SHARES) * size), at_once=max(1, size // 32))
        found = finite_scores(item, self.name)  # type: ignore[arg-type]
        return found, found[part.rows, part.outputs]

    def _random_weights(self, batch: ModelBatch, part: _Chosen, scores: Tensor, shuffled: Any) -> Tensor:
        if self.name not in METHODS:
            return torch.full((len(scores),), torch.nan)
        other = explain(with_model(batch, shuffled), self.name)[part.rows, part.outputs]  # type: ignore[arg-type]
        return rank_correlation(scores, other, batch.select(part.rows).inputs_of(part.outputs))

    def _errors(self, links: KnownLinks, tables: Sequence[Tensor | None]) -> np.ndarray:
        counts, number = [], 0
        for item, table in zip(self.batches, tables, strict=True):
            assert table is not None
            for found in links_of_scores(item, table.double().cpu().numpy(), links.unit):
                sure, possible = links.sure[number], links.possible[number] | links.sure[number]
                judged = judged_links(found, possible, links.unit)
                total = len(judged) + len(sure)
                counts.append((100.0 * (total - len(judged & sure) - len(judged & possible)), total))
                number += 1
        return np.array(counts)

    def _pointing(self, tables: Sequence[tuple[Tensor | None, Tensor]]) -> np.ndarray | None:
        # Expected value for a random order: the share of hit cells.
        counts = []
        for item, (table, _) in zip(self.batches, tables, strict=True):
            for number, words in enumerate(item.regions):
                start = item.starts[number] + 1 if item.starts else 0  # the cells come after the sentence and its end
                hits = [
                    float(cells.mean()) if table is None else float(cells[int(table[number, place, start : start + len(cells)].argmax())])
                    for place, cells in words.items()
                ]
                counts.append((sum(hits), len(hits)))
        return np.array(counts, dtype=float) if counts and self.name != GREEDY else None

    def _figure(self, counts: np.ndarray | None) -> Figure | None:
        if counts is None or not counts[:, 1].any():
            return None
        counts = counts[counts[:, 1] > 0]
        return Figure(float(counts[:, 0].sum() / counts[:, 1].sum()), *bootstrap_interval("mean", counts, samples=self.samples))


def _choose(batch: ModelBatch, most: int, generator: torch.Generator) -> _Chosen:
    rows, columns = [], []
    there = batch.outputs.clone()
    if there.shape[1] > 1:  # the end of a sentence
        there &= torch.arange(there.shape[1], device=there.device) < batch.outputs.sum(1, keepdim=True) - 1
    for row, own in enumerate(there):
        usable = own.nonzero().flatten()
        each = batch.select(torch.full((len(usable),), row, device=there.device)).inputs_of(usable).sum(1) if len(usable) else usable
        usable = usable[each > 1]
        drawn = usable[torch.randperm(len(usable), generator=generator)[:most].to(usable.device)]
        rows += [row] * len(drawn)
        columns += drawn.tolist()
    device = there.device
    return _Chosen(torch.tensor(rows, dtype=torch.long, device=device), torch.tensor(columns, dtype=torch.long, device=device))


def _by_example(values: Tensor, rows: Tensor, size: int) -> np.ndarray:
    # (size, 2): per example the sum over its outputs and their number, without NaN.
    found = np.zeros((size, 2))
    for value, row in zip(values.double().cpu().tolist(), rows.tolist(), strict=True):
        if not math.isnan(value):
            found[row] += (value, 1.0)
    return found


def describe_table(table: FaithfulnessTable, say: Callable[[str], None]) -> None:
    """Write the figures as a table, methods that are not defined and why, and the agreement of the methods as a second table."""
    numbers = f"{counted(table.examples, 'example')}, {counted(table.outputs, 'output')}"
    say(f"{numbers}; without, or with only, the first {_percent(table.shares)} of the inputs; [95 % interval]")
    cells = [_cells(figures) for figures in table.methods if figures.refused is None]
    columns = [name for name in COLUMNS if any(row[name] for row in cells)]
    for line in aligned(columns, [[row[name] for name in columns] for row in cells]):
        say(line)
    for line in undefined_lines({figures.method: figures.refused for figures in table.methods if figures.refused is not None}):
        say(line)
    names: list[Method] = [name for name, others in table.agreement.items() if others]
    if not names:
        return
    say("")
    rows = []
    for number, name in enumerate(names, start=1):
        own = table.agreement[name]
        rows.append([f"{number} {name}", *(f"{own[other]:.2f}" if other in own else "" for other in names)])
    for line in aligned(["rank correlation with", *(str(number) for number in range(1, len(names) + 1))], rows):
        say(line)


def undefined_lines(refused: Mapping[Any, str]) -> list[str]:
    """Return a line for each method that is not defined for the model, with the reason.

    Example:
        >>> undefined_lines({"alti": "alti: the model has no layers"})
        ['not defined: alti: the model has no layers']
    """
    return [f"not defined: {name}: {why.removeprefix(f'{name}: ')}" for name, why in refused.items()]


def _cells(figures: MethodFigures) -> dict[str, str]:
    error, error_cell = figures.alignment_error, ""
    if error is not None:
        error_cell = f"{error.value:.2f} [{error.low:.2f}, {error.high:.2f}]"
    shown = [_cell(part) for part in (figures.comprehensiveness, figures.sufficiency, figures.pointing, figures.random_weights)]
    seconds = "" if figures.seconds is None else f"{figures.seconds:.3f}"
    return dict(zip(COLUMNS, [figures.method, *shown[:2], error_cell, *shown[2:], seconds], strict=True))


def _cell(figure: Figure | None) -> str:
    return "" if figure is None else str(figure)


def _percent(shares: Sequence[float]) -> str:
    return ", ".join(f"{100 * share:.0f}" for share in shares) + " %"
