"""What came of a study, as tables: Markdown, HTML, CSV and JSON."""

from __future__ import annotations

import csv
import html
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.config.study import StudyConfig, cells
from regard.data.lines import write_files
from regard.errors import DataError
from regard.metrics.significance import approximate_randomisation, holm
from regard.study.run import failure_file, read_result, result_file

# Of these scores the lower is the better.
LOWER = ("perplexity",)
# What a test set with known alignments or regions tells of the attention.
ATTENTION_SCORES = ("AER", "pointing accuracy", "attention correctness")


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


class Report(NamedTuple):
    """All of a study.

    Attributes:
        study: the study.
        metric: the name of the main score.
        rows: a row for each data set and variant that has a run.
        runs: all results, as they were kept, without the counts of items.
        missing: names of runs that are not done, each with why it failed, or "".
    """

    study: StudyConfig
    metric: str
    rows: list[Row]
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
        ConfigError: a result is damaged.

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
            found.setdefault((cell.data, cell.variant), {})[cell.seed] = read_result(path)
        else:
            told = failure_file(folder, cell)
            missing[cell.name] = told.read_text(encoding="utf-8").strip() if told.exists() else ""
    if not found:
        raise DataError(f"{folder}: no run of the study {study.name} is done")
    order = [(data, variant) for data in study.data for variant in study.variants if (data, variant) in found]
    p_values: dict[tuple[str, str], tuple[float, float]] = {}
    for data, variant in order:
        base = found.get((data, study.compared_with), {})
        common = [seed for seed in found[data, variant] if seed in base]
        if variant != study.compared_with and common:
            ours, theirs = ([np.array(runs[seed]["counts"]) for seed in common] for runs in (found[data, variant], base))
            drawn = approximate_randomisation(base[common[0]]["metric"], ours, theirs, samples=samples)
            p_values[data, variant] = drawn.difference, drawn.p_value
    corrected = dict(zip(p_values, holm([p for _, p in p_values.values()]), strict=True))
    rows = [_row(study, *key, list(found[key].values()), p_values.get(key), corrected.get(key)) for key in order]
    runs = [{name: value for name, value in run.items() if name != "counts"} for key in order for run in found[key].values()]
    return Report(study, runs[0]["main"], rows, runs, missing)


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


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table as lines of text.

    Example:
        >>> aligned(["a", "b"], [["1", "22"], ["333", ""]])
        ['a    b', '1    22', '333']
    """
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [columns, *rows]]


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of the report as text; columns in which nothing stands are left out."""
    study = report.study
    head = [
        "data",
        "variant",
        "runs",
        report.metric,
        f"against {study.compared_with}",
        "p",
        "p, corrected",
        "published",
        "parameters",
        "updates",
    ]
    head += [
        "s an update",
        "tokens/s",
        "MiB",
        "lines/s",
        *ATTENTION_SCORES,
        "entropy, bits",
        "mass on areas by size",
        "chosen by validation",
    ]
    rows = []
    for row in report.rows:
        spread = "" if row.deviation is None else f" ± {row.deviation:.2f}"
        areas = ", ".join(f"{size}: {share:.0%}" for size, share in row.areas.items())
        cells_ = [study.data[row.data].title or row.data, study.variants[row.variant].title or row.variant, str(row.runs)]
        cells_ += [f"{row.score:.2f}{spread}", _number(row.difference, "+.2f"), _number(row.p_value, ".3f"), _number(row.corrected, ".3f")]
        cells_ += ["" if row.published is None else str(row.published), _number(row.figures["parameters"], ",.0f")]
        cells_ += [_number(row.figures["updates"], ",.0f"), _number(row.figures["seconds_per_update"], ".3f")]
        cells_ += [_number(row.figures[name], ",.0f") for name in ("tokens_per_second", "megabytes", "lines_per_second")]
        cells_ += [_number(row.scores.get(name), ".2f") for name in ATTENTION_SCORES]
        ranks = ", ".join(f"{rank} of {of}" for rank, of in row.ranks)
        rows.append([*cells_, _number(row.figures["entropy"], ".2f"), areas, ranks])
    kept = [number for number in range(len(head)) if number < 4 or any(row[number] for row in rows)]
    return [head[number] for number in kept], [[row[number] for number in kept] for row in rows]


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def by_length(report: Report) -> tuple[list[str], list[list[str]]] | None:
    """Return BLEU by the words of the source as columns and rows; None where nothing is known of it."""
    ranges = list(dict.fromkeys(words for row in report.rows for words in row.by_length))
    if not ranges:
        return None
    study = report.study
    rows = [
        [study.data[row.data].title or row.data, study.variants[row.variant].title or row.variant]
        + [_number(row.by_length.get(words), ".1f") for words in ranges]
        for row in report.rows
    ]
    return ["data", "variant", *ranges], rows


def _as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    study = report.study
    columns, rows = table(report)
    lines = [f"# {study.title or study.name}", ""]
    if study.source:
        lines += [study.source, ""]
    lines += [*_as_markdown(columns, rows), "", *_notes(report), ""]
    if (lengths := by_length(report)) is not None:
        lines += ["BLEU by the words of the source:", "", *_as_markdown(*lengths), ""]
    lines += ["Each row's first run:", "", "```console"]
    lines += [row.command for row in report.rows]
    return "\n".join([*lines, "```", ""])


def _notes(report: Report) -> list[str]:
    study = report.study
    direction = "lower is better" if report.metric in LOWER else "higher is better"
    notes = [
        f"{report.metric} ({direction}): mean ± standard deviation over the seeds. Against {study.compared_with}: the difference of the "
        "means; p: by approximate randomisation over test items and seeds; corrected: for all comparisons of the table (Holm).",
        "",
        "Medians over the runs: parameters, updates, seconds an update, training tokens a second, largest memory of the training process, "
        "test lines a second. Entropy and the mass on areas: of the attention on the first test examples.",
    ]
    if any(row.ranks for row in report.rows):
        notes += [
            "",
            "Chosen by validation: the rank on the test set of the checkpoint with the best validation score, among all, run by run.",
        ]
    if report.missing:
        notes += ["", f"Not done: {'; '.join(f'{name} ({why})' if why else name for name, why in report.missing.items())}."]
    return notes


def write_report(report: Report, folder: Path) -> list[Path]:
    """Write report.md, report.html, report.csv and report.json; return their paths.

    Raises:
        DataError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from regard.config import validate
        >>> tree = {"name": "s", "task": "lm", "data": {"a": {"test": {"text": "a.txt"}}}, "variants": {"x": {}}}
        >>> study = validate(tree, "here", kind=StudyConfig)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in write_report(Report(study, "perplexity", [], [], {"a-x-1": ""}), Path(folder))]
        ['report.md', 'report.html', 'report.csv', 'report.json']
    """
    columns, rows = table(report)
    text = io.StringIO(newline="")
    csv.writer(text).writerows([columns, *rows])
    whole = {
        "study": report.study.model_dump(mode="json"),
        "rows": [row._asdict() for row in report.rows],
        "runs": report.runs,
        "missing": report.missing,
    }
    contents = {
        folder / "report.md": markdown(report),
        folder / "report.html": page(report),
        folder / "report.csv": text.getvalue(),
        folder / "report.json": json.dumps(whole, indent=1, ensure_ascii=False) + "\n",
    }
    write_files({path: part.encode() for path, part in contents.items()})
    return list(contents)


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1f2328;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.3rem .7rem;border-bottom:1px solid #d0d7de;text-align:left;white-space:nowrap}"
    ".wide{overflow-x:auto}pre{overflow-x:auto;background:#f6f8fa;padding:1rem}svg{max-width:100%;height:auto}"
)


def page(report: Report) -> str:
    """Return the report as one page of HTML that needs no network, with the learning curves."""
    study = report.study
    columns, rows = table(report)
    escape = html.escape
    parts = [f"<h1>{escape(study.title or study.name)}</h1>", f"<p>{escape(study.source or '')}</p>" if study.source else ""]
    parts.append(_as_html(columns, rows))
    parts += [f"<p>{escape(note)}</p>" for note in _notes(report) if note]
    if (lengths := by_length(report)) is not None:
        parts += ["<h2>BLEU by the words of the source</h2>", _as_html(*lengths)]
    parts += [curves(report), "<h2>Commands</h2>", f"<pre>{escape(chr(10).join(run['command'] for run in report.runs))}</pre>"]
    title = f"<title>{escape(study.title or study.name)}</title><style>{STYLE}</style>"
    return f'<!doctype html><html lang="en"><head><meta charset="utf-8">{title}</head><body>{"".join(parts)}</body></html>\n'


def _as_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def curves(report: Report) -> str:
    """Return the validation loss of every run over its updates, a drawing for each data set, as SVG within HTML."""
    import matplotlib
    from matplotlib.figure import Figure

    parts = []
    for data, chosen in report.study.data.items():
        runs = [run for run in report.runs if run["cell"]["data"] == data and any("loss" in point for point in run["curve"])]
        if not runs:
            continue
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.subplots()
        for number, (variant, named) in enumerate(report.study.variants.items()):
            label: str | None = named.title or variant
            for run in runs:
                if run["cell"]["variant"] == variant:
                    points = [(point["step"], point["loss"]) for point in run["curve"] if "loss" in point]
                    axes.plot(*zip(*points, strict=True), color=f"C{number % 10}", linewidth=1.2, marker=".", label=label)
                    label = None  # once a variant
        axes.set(title=chosen.title or data, xlabel="updates", ylabel="validation loss")
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        drawn = io.StringIO()
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}):
            figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        parts.append(drawn.getvalue()[drawn.getvalue().index("<svg") :])
    return "".join(parts)
