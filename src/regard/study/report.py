"""Results of a study."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from regard import progress
from regard.config.load import flatten, read_yaml
from regard.config.study import StudyCell, StudyConfig, study_cells
from regard.errors import ConfigError, DataError, counted
from regard.metrics.seeds import SeedComparison
from regard.study.findings import Finding, Found, comparer, corrected_for, find
from regard.study.results import CONFIGS, RESULTS, check_one_test_set, failure_file, read_result, result_file


class Row(NamedTuple):
    """A variant on a data set.

    Attributes:
        data: the data set.
        variant: the variant.
        runs: number of seeds.
        score: mean of the main score.
        deviation: its standard deviation over the seeds; None for one.
        difference: to the baseline's mean on common seeds; None for the baseline.
        interval: the 95 % interval of that difference.
        p_value: p-value of that difference; None without item scores.
        over: the variation they cover, see `regard.study.findings.Finding`.
        paired: they are over pairs of runs, see `regard.study.findings.Finding`.
        corrected: the p-value corrected for all comparisons of the study with its baseline, see `regard.study.findings.corrected_for`.
        figures: medians over the runs: parameters, seconds_per_update, tokens_per_second, megabytes, lines_per_second, updates; entropy.
        scores: means of all scores, by name.
        areas: share of the attention on areas of each size, mean over the runs.
        ranks: per run the test rank of the checkpoint selected by validation, and the number of checkpoints.
        by_length: translations: sentences and mean BLEU by source length in words.
        published: published figure for comparison.
        command: training command of the first run.
    """

    data: str
    variant: str
    runs: int
    score: float
    deviation: float | None
    difference: float | None
    interval: tuple[float, float] | None
    p_value: float | None
    over: str | None
    paired: bool
    corrected: float | None
    figures: dict[str, float | None]
    scores: dict[str, float]
    areas: dict[str, float]
    ranks: list[tuple[int, int]]
    by_length: dict[str, tuple[int, float]]
    published: float | str | None
    command: str


class Report(NamedTuple):
    """All of a study.

    Attributes:
        study: the study.
        metric: the name of the main score.
        rows: one per data set and variant with a run.
        findings: one per hypothesis and data set.
        runs: all results, without item counts.
        missing: missing runs by name, with the reason of failure or "".
        unknown: runs whose results do not name their test set, if others do.
        settings: by the name of a run, its settings by key path; without runs whose settings were not kept.
    """

    study: StudyConfig
    metric: str
    rows: list[Row]
    findings: list[Finding]
    runs: list[dict[str, Any]]
    missing: dict[str, str]
    unknown: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = MappingProxyType({})

    def data_title(self, run: Mapping[str, Any]) -> str:
        """Return the title of the data set of a result."""
        name = run["cell"]["data"]
        return self.study.data[name].title or name

    def variant_title(self, run: Mapping[str, Any]) -> str:
        """Return the title of the variant of a result."""
        name = run["cell"]["variant"]
        return self.study.variants[name].title or name


def run_name(run: Mapping[str, Any]) -> str:
    """Return the name of the run of a result.

    Example:
        >>> run_name({"cell": {"data": "a", "variant": "x", "seed": 1}})
        'a-x-1'
    """
    return StudyCell(**run["cell"]).name


USED = re.compile(r"^(pairs:|captions:)\d+/(\d+)$")
"""How many of the test items a run of its own vocabulary reads whole."""
FIGURES = ("parameters", "updates", "seconds_per_update", "tokens_per_second", "megabytes", "lines_per_second")


def build_report(study: StudyConfig, folder: Path, *, samples: int = 100_000) -> Report:
    """Read the results of a study and compare them.

    A difference is between means over common seeds; its interval and p-value cover seeds and test items, see
    `regard.metrics.seeds.compare_seeds`. P-values are corrected for the number of planned comparisons.

    Args:
        study: the study.
        folder: folder of its results.
        samples: draws of each comparison.

    Raises:
        DataError: there is no result yet.
        ConfigError: a result is damaged or uses another metric, or two were measured in different ways: those of one data set on
            different test sets, or those of one variant with scores of different signatures.

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
    for cell in study_cells(study):
        path = result_file(folder, cell)
        if path.exists():
            result = read_result(path, study.compared_by)
            if result["cell"] != cell.model_dump():
                raise ConfigError(f"{path}: damaged result: cell is that of another run; remove it to measure the run again")
            found.setdefault((cell.data, cell.variant), {})[cell.seed] = result
        else:
            told = failure_file(folder, cell)
            missing[cell.name] = told.read_text(encoding="utf-8", errors="replace").strip() if told.exists() else ""
    if not found:
        raise DataError(f"{folder}: no run of the study {study.name} is done")
    unknown = _check_test_sets(study, found)
    _check_items(folder, found)
    for key, seeds in found.items():
        _check_signatures("-".join(key), seeds)
    order = [(data, variant) for data in study.data for variant in study.variants if (data, variant) in found]

    compare = comparer(found, samples)
    against = study.compared_with
    compared = {
        key: compare(*key, against)[0] if key[1] != against else None
        for key in progress.track(order, "Significance test", unit="comparisons")
    }
    p_values = {key: each.p_value for key, each in compared.items() if each is not None and each.over != "seeds"}
    corrected = dict(zip(p_values, corrected_for(list(p_values.values()), planned=len(planned_comparisons(study))), strict=True))
    rows = [_row(study, *key, list(found[key].values()), _Against(compared[key], p_values.get(key), corrected.get(key))) for key in order]
    runs = [
        {name: value for name, value in run.items() if name != "counts"} | {"items": len(run.get("counts") or ())}
        for key in order
        for run in found[key].values()
    ]
    files = {name: folder / CONFIGS / f"{name}.yaml" for name in map(run_name, runs)}
    settings = {name: flatten(read_yaml(path)) for name, path in files.items() if path.exists()}
    return Report(study, study.compared_by, rows, find(study, found, compare), runs, missing, unknown, settings)


def planned_comparisons(study: StudyConfig) -> set[tuple[str, str]]:
    """Return the data set and variant of each comparison with the baseline, whether it is tested yet or not."""
    return {(cell.data, cell.variant) for cell in study_cells(study) if cell.variant != study.compared_with}


def _check_test_sets(study: StudyConfig, found: Found) -> tuple[str, ...]:
    """Refuse results on different test sets; return the runs of unknown ones, if others are known."""
    unknown, runs = list[str](), 0
    for data in study.data:
        results = {f"{data}-{key[1]}-{seed}": run for key, seeds in found.items() if key[0] == data for seed, run in seeds.items()}
        unknown += check_one_test_set(results)
        runs += len(results)
    return tuple(unknown) if len(unknown) < runs else ()


def _check_items(folder: Path, found: Found) -> None:
    """Refuse runs of a data set that were measured on different numbers of items."""
    for data in dict.fromkeys(data for data, _ in found):
        runs = [run for (name, _), seeds in found.items() if name == data for run in seeds.values()]
        sizes = {run_name(run): len(run["counts"]) for run in runs if run.get("counts")}
        usual = Counter(sizes.values()).most_common(1)
        for name, size in sizes.items():
            if size != usual[0][0]:
                raise ConfigError(
                    f"{folder / RESULTS / name}.json: counts of {counted(size, 'item')}, others of {data} have {usual[0][0]}; "
                    "remove it to measure the run again"
                )


def _check_signatures(name: str, runs: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse runs of a variant whose scores were measured in different ways, as by two versions: their mean would mean nothing."""
    first, *others = [(seed, run.get("signatures", {})) for seed, run in runs.items()]
    for seed, signatures in others:
        for score in first[1] | signatures:
            ways = [_way(each.get(score)) for each in (first[1], signatures)]
            if ways[0] != ways[1]:
                raise ConfigError(
                    f"the results of {name}-{first[0]} and {name}-{seed} differ in how {score} was measured ({ways[0]} and {ways[1]}); "
                    "remove the older ones to measure their runs again"
                )


def _way(signature: str | None) -> str:
    # Without the values that each run has for itself.
    if signature is None:
        return "not known"
    parts = (part.partition(":")[0] if part.startswith(("ci95:", "attention:")) else part for part in signature.split("|"))
    return "|".join(USED.sub(r"\1/\2", part) for part in parts)


class _Against(NamedTuple):
    # A variant beside the baseline.
    compared: SeedComparison | None
    p_value: float | None
    corrected: float | None


def _row(study: StudyConfig, data: str, variant: str, runs: Sequence[dict[str, Any]], against: _Against) -> Row:
    scores = [run["scores"][run["main"]] for run in runs]
    sizes = {size for run in runs for size in run["attention"].get("areas", {})}
    entropies = [run["attention"]["entropy"] for run in runs if "entropy" in run["attention"]]
    figures = {name: _median([run.get(name) for run in runs]) for name in FIGURES}
    compared = against.compared
    return Row(
        data,
        variant,
        len(runs),
        statistics.mean(scores),
        statistics.stdev(scores) if len(scores) > 1 else None,
        None if compared is None else compared.difference,
        None if compared is None else compared.interval,
        against.p_value,
        None if compared is None else compared.over,
        compared is not None and len(compared.runs) == 1,
        against.corrected,
        figures | {"entropy": statistics.mean(entropies) if entropies else None},
        {
            name: statistics.mean(run["scores"][name] for run in runs)
            for name in runs[0]["scores"]
            if all(name in run["scores"] for run in runs)
        },
        {size: statistics.mean(run["attention"].get("areas", {}).get(size, 0.0) for run in runs) for size in sorted(sizes, key=int)},
        [(run["selection"]["rank"], run["selection"]["of"]) for run in runs if run.get("selection")],
        _by_length(runs),
        study.data[data].published.get(variant),
        runs[0]["command"],
    )


def _by_length(runs: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, float]]:
    # Rows that all runs have, of as many sentences: another version may have measured some of the runs.
    found = [{(words, count): score for words, count, score in run.get("by_length") or []} for run in runs]
    shared = [row for row in found[0] if all(row in each for each in found)]
    return {words: (count, statistics.mean(each[words, count] for each in found)) for words, count in shared}


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None
