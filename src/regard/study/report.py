"""What came of a study."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.config.study import HypothesisConfig, StudyConfig, cells
from regard.errors import DataError
from regard.metrics.significance import Randomisation, approximate_randomisation, holm
from regard.study.run import failure_file, read_result, result_file

# A difference is more than chance where its corrected p-value is below.
LEVEL = 0.05
# Of these scores the lower is the better.
LOWER = ("perplexity",)


class Row(NamedTuple):
    """A variant on a data set.

    Attributes:
        data: the data set.
        variant: the variant.
        runs: how many seeds there are.
        score: mean of the main score.
        deviation: its standard deviation over the seeds; None for one.
        difference: to the baseline's mean, on the seeds that both have; None for the baseline itself.
        p_value: of that difference.
        corrected: the p-value corrected for all comparisons of the study (Holm).
        figures: medians over the runs: parameters, seconds_per_update, tokens_per_second, megabytes, lines_per_second, updates; entropy.
        scores: means of all scores, by name.
        areas: share of the attention on areas of each size, mean over the runs.
        ranks: for each run the test rank of the checkpoint that validation would choose, and of how many.
        by_length: translations: mean BLEU by the words of the source.
        published: a figure to stand beside ours.
        command: that trains the first run.
    """

    data: str
    variant: str
    runs: int
    score: float
    deviation: float | None
    difference: float | None
    p_value: float | None
    corrected: float | None
    figures: dict[str, float | None]
    scores: dict[str, float]
    areas: dict[str, float]
    ranks: list[tuple[int, int]]
    by_length: dict[str, float]
    published: float | str | None
    command: str


class Finding(NamedTuple):
    """A hypothesis of a study on one of its data sets.

    Attributes:
        says: what it says.
        data: the data set.
        published: the difference in a paper.
        runs: how many seeds both of its variants have; 0: it was not tested.
        gain: by how much the one said to be better is better; below 0 where it is worse.
        p_value: of that difference; None without runs.
        corrected: the p-value corrected for all hypotheses of the study (Holm).
    """

    says: str
    data: str
    published: str | None
    runs: int
    gain: float | None
    p_value: float | None
    corrected: float | None

    @property
    def verdict(self) -> str:
        """What came of it: "holds", "the opposite holds", "not shown" (a corrected p-value of 0.05 or more) or "not tested"."""
        if self.gain is None or self.corrected is None:
            return "not tested"
        if self.corrected >= LEVEL:
            return "not shown"
        return "holds" if self.gain > 0 else "the opposite holds"


class Report(NamedTuple):
    """All of a study.

    Attributes:
        study: the study.
        metric: the name of the main score.
        rows: a row for each data set and variant that has a run.
        findings: a row for each hypothesis and data set.
        runs: all results, as they were kept, without the counts of items.
        missing: names of runs that are not done, each with why it failed, or "".
    """

    study: StudyConfig
    metric: str
    rows: list[Row]
    findings: list[Finding]
    runs: list[dict[str, Any]]
    missing: dict[str, str]


FIGURES = ("parameters", "updates", "seconds_per_update", "tokens_per_second", "megabytes", "lines_per_second")


def build_report(study: StudyConfig, folder: Path, *, samples: int = 1000) -> Report:
    """Read the results of a study and compare them.

    A difference is between the means over the seeds that both variants have; its p-value comes from approximate randomisation over test
    items and seeds, and is corrected for how many comparisons the study makes.

    Args:
        study: the study.
        folder: of its results.
        samples: exchanges drawn for each comparison.

    Raises:
        DataError: there is no result yet.
        ConfigError: a result is damaged, or measured by another metric.

    Example:
        >>> from regard.config import validate
        >>> tree = {"name": "s", "task": "lm", "data": {"a": {"test": {"text": "a.txt"}}}, "variants": {"x": {}}}
        >>> study = validate(tree, "here", kind=StudyConfig)
        >>> build_report(study, Path("no-such-folder"))
        Traceback (most recent call last):
            ...
        regard.errors.DataError: no-such-folder: no run of the study s is done
    """
    found: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    missing: dict[str, str] = {}
    for cell in cells(study):
        path = result_file(folder, cell)
        if path.exists():
            found.setdefault((cell.data, cell.variant), {})[cell.seed] = read_result(path, study.compared_by)
        else:
            told = failure_file(folder, cell)
            missing[cell.name] = told.read_text(encoding="utf-8").strip() if told.exists() else ""
    if not found:
        raise DataError(f"{folder}: no run of the study {study.name} is done")
    order = [(data, variant) for data in study.data for variant in study.variants if (data, variant) in found]

    @cache
    def compared(data: str, variant: str, other: str) -> tuple[Randomisation | None, int]:
        return _compared(found, data, variant, other, samples)

    p_values: dict[tuple[str, str], tuple[float, float]] = {}
    for data, variant in order:
        drawn = compared(data, variant, study.compared_with)[0] if variant != study.compared_with else None
        if drawn is not None:
            p_values[data, variant] = drawn.difference, drawn.p_value
    corrected = dict(zip(p_values, holm([p for _, p in p_values.values()]), strict=True))
    rows = [_row(study, *key, list(found[key].values()), p_values.get(key), corrected.get(key)) for key in order]
    runs = [{name: value for name, value in run.items() if name != "counts"} for key in order for run in found[key].values()]
    return Report(study, study.compared_by, rows, _findings(study, compared, study.compared_by), runs, missing)


Found = Mapping[tuple[str, str], Mapping[int, dict[str, Any]]]
Compare = Callable[[str, str, str], tuple[Randomisation | None, int]]


def _compared(found: Found, data: str, variant: str, other: str, samples: int) -> tuple[Randomisation | None, int]:
    # Two variants on the seeds that both have, and how many these are.
    ours, theirs = found.get((data, variant), {}), found.get((data, other), {})
    common = [seed for seed in ours if seed in theirs]
    if not common:
        return None, 0
    counts = ([np.array(runs[seed]["counts"]) for seed in common] for runs in (ours, theirs))
    return approximate_randomisation(ours[common[0]]["metric"], *counts, samples=samples), len(common)


def _published(hypothesis: HypothesisConfig, figures: Mapping[str, float | str]) -> str | None:
    # What the hypothesis says of it, or else the difference of the two figures that stand beside ours.
    one, other = figures.get(hypothesis.better), figures.get(hypothesis.than)
    if hypothesis.published is None and isinstance(one, float | int) and isinstance(other, float | int):
        return f"{round(one - other, 6):+g}"
    return hypothesis.published


def _findings(study: StudyConfig, compared: Compare, metric: str) -> list[Finding]:
    rows = []
    for hypothesis in study.hypotheses:
        for data in hypothesis.data or study.data:
            drawn, runs = compared(data, hypothesis.better, hypothesis.than)
            gain = None if drawn is None else drawn.difference * (-1 if metric in LOWER else 1)
            rows.append(
                Finding(
                    hypothesis.says, data, _published(hypothesis, study.data[data].published), runs, gain, drawn and drawn.p_value, None
                )
            )
    corrected = iter(holm([row.p_value for row in rows if row.p_value is not None]))
    return [row if row.p_value is None else row._replace(corrected=next(corrected)) for row in rows]


def _row(
    study: StudyConfig,
    data: str,
    variant: str,
    runs: Sequence[dict[str, Any]],
    compared: tuple[float, float] | None,
    corrected: float | None,
) -> Row:
    scores = [run["scores"][run["main"]] for run in runs]
    sizes = {size for run in runs for size in run["attention"].get("areas", {})}
    entropies = [run["attention"]["entropy"] for run in runs if "entropy" in run["attention"]]
    figures = {name: _median([run.get(name) for run in runs]) for name in FIGURES}
    return Row(
        data,
        variant,
        len(runs),
        statistics.mean(scores),
        statistics.stdev(scores) if len(scores) > 1 else None,
        None if compared is None else compared[0],
        None if compared is None else compared[1],
        corrected,
        figures | {"entropy": statistics.mean(entropies) if entropies else None},
        {
            name: statistics.mean(run["scores"][name] for run in runs)
            for name in runs[0]["scores"]
            if all(name in run["scores"] for run in runs)
        },
        {size: statistics.mean(run["attention"].get("areas", {}).get(size, 0.0) for run in runs) for size in sorted(sizes, key=int)},
        [(run["selection"]["rank"], run["selection"]["of"]) for run in runs if run.get("selection")],
        {words: statistics.mean(dict(zip(*_lengths(run), strict=True))[words] for run in runs) for words in _lengths(runs[0])[0]},
        study.data[data].published.get(variant),
        runs[0]["command"],
    )


def _lengths(run: dict[str, Any]) -> tuple[list[str], list[float]]:
    # One test set for all runs of a row: the same lengths, the same sentences.
    found = run.get("by_length") or []
    return [words for words, _, _ in found], [score for _, _, score in found]


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None
