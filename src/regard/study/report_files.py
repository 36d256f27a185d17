"""Study reports as Markdown, HTML, CSV and JSON."""

from __future__ import annotations

import csv
import html
import io
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regard.config.base import LOWER_IS_BETTER
from regard.data.lines import write_files
from regard.errors import counted, listed
from regard.metrics.seeds import LEVEL, MAX_SEEDS
from regard.strict_json import dump_json
from regard.study.explained import method_table
from regard.study.findings import POWER, SEEDS, p_text, same_training
from regard.study.report import Report, planned_comparisons, run_name
from regard.study.training_section import most_frequent_notes, run_table, training_notes, training_table
from regard.viewer.picture import quiet_fonts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D

# Attention scores of test sets with known alignments or regions.
ATTENTION_SCORES = ("AER", "pointing accuracy", "attention correctness")
# What columns of medians are.
MEDIANS = {
    "parameters": "parameters",
    "updates": "updates",
    "s per update": "seconds per update",
    "tokens/s": "training tokens per second",
    "MiB": "MiB (peak memory of the training process)",
    "lines/s": "test lines per second",
}
OF_ATTENTION = {"entropy, bits": "entropy (low: few positions)", "mass on areas by size": "mass on areas"}
# Decimals of the main score: caption scores are about 1, others up to 100.
DECIMALS = {"captioning": 3}
LINES = ("-", "--", ":", "-.")  # number of curves: there are ten colors
# What Markdown would not show as it is: an escape, and the start of a tag or an entity. "p < 0.001" starts none.
ESCAPE = re.compile(r"\\(?=[!-/:-@\[-`{-~])")
MARKUP = re.compile(r"<(?=[A-Za-z/!?])|&(?=#?\w+;)")


def table(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return the columns and rows of the report as text, without empty columns."""
    study = report.study
    head = [
        "data",
        "variant",
        "runs",
        report.metric,
        f"difference from {study.variants[study.compared_with].title or study.compared_with}",
        "95 % interval",
        "p",
        "p, corrected",
        "published",
        "parameters",
        "updates",
    ]
    head += [
        "s per update",
        "tokens/s",
        "MiB",
        "lines/s",
        *ATTENTION_SCORES,
        "entropy, bits",
        "mass on areas by size",
        "chosen by validation",
    ]
    rows, decimals = [], DECIMALS.get(study.task, 2)
    for row in report.rows:
        spread = "" if row.deviation is None else f" ± {row.deviation:.{decimals}f}"
        areas = ", ".join(f"{size}: {share:.0%}" for size, share in row.areas.items())
        cells_ = [study.data[row.data].title or row.data, study.variants[row.variant].title or row.variant, str(row.runs)]
        cells_ += [f"{row.score:.{decimals}f}{spread}", _number(row.difference, f"+z.{decimals}f"), _interval(row.interval, decimals)]
        cells_ += [_p_value(value, row.over, row.paired) for value in (row.p_value, row.corrected)]
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


def _interval(interval: tuple[float, float] | None, decimals: int) -> str:
    return "" if interval is None else f"{interval[0]:+z.{decimals}f} to {interval[1]:+z.{decimals}f}"


def _p_value(value: float | None, over: str | None, paired: bool) -> str:
    text = "" if value is None else p_text(value).removeprefix("= ")
    marks = [over or ""] * (over != "seeds and items") + ["paired"] * paired
    return f"{text} ({', '.join(marks)})" if text and marks else text


def by_length(report: Report) -> tuple[list[str], list[list[str]]] | None:
    """Return BLEU by source length in words as columns and rows, after a row with the numbers of sentences; or None."""
    ranges = list(dict.fromkeys(words for row in report.rows for words in row.by_length))
    if not ranges:
        return None
    study, rows = report.study, list[list[str]]()
    for name, found in groupby(report.rows, lambda row: row.data):
        data, measured = study.data[name].title or name, list(found)
        counts = [{str(row.by_length[words][0]) for row in measured if words in row.by_length} for words in ranges]
        rows.append([data, SENTENCES, *(", ".join(sorted(each, key=int)) for each in counts)])
        for row in measured:
            scores = [f"{row.by_length[words][1]:.1f}" if words in row.by_length else "" for words in ranges]
            rows.append([data, study.variants[row.variant].title or row.variant, *scores])
    return ["data", "variant", *ranges], rows


def findings(report: Report) -> tuple[list[str], list[list[str]]] | None:
    """Return the study's findings as columns and rows, or None."""
    if not report.findings:
        return None
    study = report.study
    rows, decimals = [], DECIMALS.get(study.task, 2)
    for row in report.findings:
        needed = "" if row.over != "seeds and items" else f"over {MAX_SEEDS:,}" if row.needed is None else str(row.needed)
        own = [row.says, study.data[row.data].title or row.data, row.published or "", _number(row.gain, f"+z.{decimals}f")]
        own += [_interval(row.interval, decimals), *(_p_value(value, row.over, row.paired) for value in (row.p_value, row.corrected))]
        rows.append([*own, str(row.runs), needed, row.verdict])
    columns = ["hypothesis", "data", "published", f"gain, {report.metric}", "95 % interval", "p", "p, corrected", "seeds"]
    columns += ["seeds needed", "verdict"]
    kept = [number for number, column in enumerate(columns) if column != "published" or any(row[number] for row in rows)]
    return [columns[number] for number in kept], [[row[number] for number in kept] for row in rows]


def conclusions(report: Report) -> list[str]:
    """Return a sentence per hypothesis and data set."""
    study = report.study
    return [
        row.sentence(report.metric, data=study.data[row.data].title or row.data, decimals=DECIMALS.get(study.task, 2))
        for row in report.findings
    ]


def _literal(text: str) -> str:
    # Titles come from the study's file, and must not act as HTML or escape what follows.
    return MARKUP.sub(lambda found: html.escape(found[0]), ESCAPE.sub(r"\\\\", text))


def _as_markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    head, *body = ["| " + " | ".join(_literal(cell).replace("|", "\\|") for cell in row) + " |" for row in (columns, *rows)]
    return [head, "|" + " --- |" * len(columns), *body]


def markdown(report: Report) -> str:
    """Return the report as Markdown."""
    study = report.study
    columns, rows = table(report)
    lines = [f"# {_literal(study.title or study.name)}", ""]
    if study.source:
        lines += [_literal(study.source), ""]
    lines += [*_as_markdown(columns, rows), "", *map(_literal, _notes(report)), ""]
    if (lengths := by_length(report)) is not None:
        lines += [f"{LENGTHS}:", "", *_as_markdown(*lengths), ""]
    if (methods := method_table(report.study, report.runs)) is not None:
        lines += ["Explanation methods:", "", *_as_markdown(*methods), "", METHODS_NOTE, ""]
    if (found := findings(report)) is not None:
        lines += ["Hypotheses:", "", *(f"- {_literal(line)}" for line in conclusions(report)), "", *_as_markdown(*found), ""]
        for note in _verdict_notes(report):
            lines += [note, ""]
    if (training := training_table(report)) is not None:
        lines += ["Training:", "", *_as_markdown(*training), ""]
        for note in training_notes(report):
            lines += [_literal(note), ""]
    lines += ["Command of the first run of each row:", "", "```console"]
    lines += [row.command for row in report.rows]
    return "\n".join([*lines, "```", "", CITE, ""])


METHODS_NOTE = (
    "Comprehensiveness: probability lost without the inputs that a method ranks first, high is faithful. Sufficiency: with these alone, "
    "low is faithful. Both are means over the first 10 to 50 % of the inputs. With shuffled weights: rank correlation with the same method "
    "on a model of shuffled weights, near 0 is good. Mean ± standard deviation over the seeds."
)
RUNS_NOTE = "Scores of each run: runs.csv beside this report; the files in results have more."
CITE = "To cite: Regard (its CITATION.cff), and the papers of the mechanisms, which `regard list` names."
LENGTHS = "BLEU by source length in words, mean over the runs (few sentences vary much)"
SENTENCES = "number of sentences"
VERDICTS = (
    f"Gain: of the variant that the hypothesis calls better. The verdict rests on a p-value below {LEVEL}, corrected for all hypotheses of "
    f'the study (Holm). From {SEEDS} seeds on it is "holds" or "the opposite holds", with fewer "suggests" or "suggests the opposite". '
    "From two seeds on, interval and p-value are over seeds and test items. With one seed they are over test items alone: another training "
    f"may differ by more. Seeds needed: of each variant, for a chance of {POWER:.0%} to find such a difference, if it is real and seeds "
    f'spread as these do (of pairs, their differences). "over {MAX_SEEDS:,}": more test items may be needed instead. "no verdict": scores '
    "of the items are missing, and the interval is over seeds alone."
)


def _verdict_notes(report: Report) -> list[str]:
    tested, planned = sum(row.gain is not None for row in report.findings), len(report.findings)
    left = f"{tested} of {planned} hypotheses tested so far (each data set counts). In the correction the others have p = 1."
    return [left, VERDICTS] if tested < planned else [VERDICTS]


def _corrected_for(report: Report) -> str:
    planned, measured = planned_comparisons(report.study), {(row.data, row.variant) for row in report.rows}
    tested = sum({(data, variant), (data, report.study.compared_with)} <= measured for data, variant in planned)
    if tested == len(planned):
        return "for all comparisons of the table (Holm)"
    return f"for all {len(planned)} comparisons that the study plans (Holm), {tested} of them tested so far"


def _about_columns(head: Sequence[str]) -> str:
    """Explain the columns that a table has of the cost of runs, and of their attention."""
    medians = [meaning for column, meaning in MEDIANS.items() if column in head]
    told = [f"{' and '.join(filter(None, (', '.join(medians[:-1]), *medians[-1:])))} are medians over the runs"] if medians else []
    if {"s per update", "tokens/s", "MiB", "lines/s"} & {*head}:
        told.append("times and memory are those of the machine as it was: compare variants by them only if it did nothing else")
    if attention := [meaning for column, meaning in OF_ATTENTION.items() if column in head]:
        told.append(f"{' and '.join(attention)} {'are' if len(attention) > 1 else 'is'} of the attention on the first test examples")
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in told)


def _notes(report: Report) -> list[str]:
    direction = "lower is better" if report.metric in LOWER_IS_BETTER else "higher is better"
    notes = [
        f"{report.metric} ({direction}): mean ± standard deviation over the seeds. Difference: of the means over the seeds that both have. "
        "Its interval and p-value are over seeds and test items (a mixed model), or over what the brackets name. Corrected: "
        f"{_corrected_for(report)}. Where scores vary over neither, there is no interval.",
        "",
        _about_columns(table(report)[0]),
    ]
    if any(row.ranks for row in report.rows):
        notes += [
            "",
            "Chosen by validation: for each run, the rank on the test set of the checkpoint with the best validation score.",
        ]
    if any(row.paired for row in [*report.rows, *report.findings]):
        notes += ["", "Paired: with every seed both variants have the weights of the same training, so they are compared seed by seed."]
    known = {run_name(run): run for run in report.runs}
    copies = [(name, run["equal_to"]) for name, run in known.items() if run.get("equal_to")]
    # A run may have been trained anew after it was copied.
    if equal := [f"{name} = {other}" for name, other in copies if other not in known or same_training(known[name], known[other])]:
        notes += ["", f"Runs of the same training, trained once: {'; '.join(equal)}."]
    for note in most_frequent_notes(report):
        notes += ["", note]
    if found := items_of(report, "items"):
        notes += ["", f"Test items: {found}."]
    if found := items_of(report, "seen"):
        notes += ["", f"Test items whose input is a training input, too: {found}."]
    if found := trained_on(report):
        notes += ["", f"Trained on: {found}."]
    if report.missing:
        notes += ["", f"Not done: {'; '.join(f'{name} ({why})' if why else name for name, why in report.missing.items())}."]
    if report.unknown:
        notes += ["", f"Their results do not name the test set: {listed(report.unknown, most=3)}."]
    return [*notes, "", RUNS_NOTE]


def items_of(report: Report, which: Literal["items", "seen"]) -> str:
    """Return the number of test items of each data set: all, or those that are training items, too; empty if there are none."""
    counts = {run["cell"]["data"]: run[which] for run in report.runs if run.get(which)}
    return ", ".join(f"{count:,} ({report.study.data[name].title or name})" for name, count in counts.items())


def trained_on(report: Report) -> str:
    """Return the devices, versions and precisions that trained the runs, with the number of runs of each."""
    counts = Counter(run.get("trained_on") or "not recorded" for run in report.runs if not run.get("equal_to"))
    return "; ".join(f"{name} ({counted(count, 'run')})" for name, count in counts.most_common())


def write_report(report: Report, folder: Path, *, style: str | None = None) -> list[Path]:
    """Write report.md, report.html, report.csv, report.json, and runs.csv with a row per run; return their paths.

    Args:
        report: report of a study.
        folder: output folder.
        style: URL of a shared style sheet, see `write_style`; None: the page is a single file.

    Raises:
        DataError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> from regard.config import validate
        >>> from regard.config.study import StudyConfig
        >>> tree = {"name": "s", "task": "lm", "data": {"a": {"test": {"text": "a.txt"}}}, "variants": {"x": {}}}
        >>> study = validate(tree, "here", kind=StudyConfig)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in write_report(Report(study, "perplexity", [], [], [], {"a-x-1": ""}), Path(folder))]
        ['report.md', 'report.html', 'report.csv', 'report.json', 'runs.csv']
    """
    columns, rows = table(report)
    whole = {
        "study": report.study.model_dump(mode="json"),
        "rows": [row._asdict() for row in report.rows],
        "findings": [
            row._asdict() | {"verdict": row.verdict, "sentence": sentence}
            for row, sentence in zip(report.findings, conclusions(report), strict=True)
        ],
        "runs": report.runs,
        "missing": report.missing,
        "test_items": items_of(report, "items"),
        "trained_on": trained_on(report),
    }
    contents = {
        folder / "report.md": markdown(report),
        folder / "report.html": page(report, style=style),
        folder / "report.csv": _as_csv([columns, *rows]),
        folder / "report.json": dump_json(whole, indent=1) + "\n",
        folder / "runs.csv": _as_csv(run_table(report)),
    }
    write_files({path: part.encode() for path, part in contents.items()})
    return list(contents)


def _as_csv(rows: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()


def write_style(path: Path) -> None:
    """Write the shared style sheet of reports.

    Raises:
        DataError: the file cannot be written.
    """
    write_files({path: f"{STYLE}\n".encode()})


STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;color:#1f2328;background:#fff}"
    "table{border-collapse:collapse}td,th{padding:.3rem .7rem;border-bottom:1px solid #d0d7de;text-align:left;white-space:nowrap}"
    ".wide{overflow-x:auto}pre{overflow-x:auto;background:#f6f8fa;padding:1rem}svg{max-width:100%;height:auto}"
)


def page(report: Report, *, style: str | None = None) -> str:
    """Return the report as an offline HTML page with learning curves; `style` as for `write_report`."""
    study = report.study
    columns, rows = table(report)
    escape = html.escape
    parts = [f"<h1>{escape(study.title or study.name)}</h1>", f"<p>{escape(study.source or '')}</p>" if study.source else ""]
    parts.append(_as_html(columns, rows))
    parts += [f"<p>{escape(note)}</p>" for note in _notes(report) if note]
    if (lengths := by_length(report)) is not None:
        parts += [f"<h2>{LENGTHS}</h2>", _as_html(*lengths)]
    if (methods := method_table(report.study, report.runs)) is not None:
        parts += ["<h2>Explanation methods</h2>", _as_html(*methods), f"<p>{escape(METHODS_NOTE)}</p>"]
    if (found := findings(report)) is not None:
        lines = "".join(f"<li>{escape(line)}</li>" for line in conclusions(report))
        parts += ["<h2>Hypotheses</h2>", f"<ul>{lines}</ul>", _as_html(*found)]
        parts += [f"<p>{escape(note)}</p>" for note in _verdict_notes(report)]
    if (training := training_table(report)) is not None:
        parts += ["<h2>Training</h2>", _as_html(*training), *(f"<p>{escape(note)}</p>" for note in training_notes(report))]
    parts += [
        curves(report),
        "<h2>Commands</h2>",
        f"<pre>{escape(chr(10).join(run['command'] for run in report.runs))}</pre>",
        f"<p>{escape(CITE)}</p>",
    ]
    title = f"<title>{escape(study.title or study.name)}</title>"
    title += f"<style>{STYLE}</style>" if style is None else f'<link rel="stylesheet" href="{escape(style)}">'
    return f'<!doctype html><html lang="en"><head><meta charset="utf-8">{title}</head><body>{"".join(parts)}</body></html>\n'


def _as_html(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def curves(report: Report) -> str:
    """Return validation loss curves of all runs, one SVG per data set, as HTML."""
    import matplotlib
    from matplotlib.figure import Figure

    parts = []
    for data, chosen in report.study.data.items():
        runs = [run for run in report.runs if run["cell"]["data"] == data and any(point.get("loss") is not None for point in run["curve"])]
        if not runs:
            continue
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        axes = figure.subplots()
        named_lines: list[tuple[Line2D, str]] = []
        for number, (variant, named) in enumerate(report.study.variants.items()):
            style = LINES[number // 10 % len(LINES)]
            lines: list[Line2D] = []
            for run in runs:
                if run["cell"]["variant"] == variant:
                    points = [(point["step"], point["loss"]) for point in run["curve"] if point.get("loss") is not None]
                    lines += axes.plot(*zip(*points, strict=True), style, color=f"C{number % 10}", linewidth=1.2, marker=".")
            named_lines += [(line, named.title or variant) for line in lines[:1]]  # once per variant
        axes.set(xlabel="updates", ylabel="validation loss, a line per seed")
        axes.set_title(chosen.title or data, parse_math=False)
        _plain_legend(axes, named_lines)
        axes.spines[["top", "right"]].set_visible(False)
        drawn = io.StringIO()
        with quiet_fonts(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "regard"}):
            figure.savefig(drawn, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        parts.append(drawn.getvalue()[drawn.getvalue().index("<svg") :])
    return "".join(parts)


def _plain_legend(axes: Axes, named_lines: Sequence[tuple[Line2D, str]]) -> None:
    # matplotlib leaves out labels that begin with "_", and reads "$" as mathematics: so the titles are set afterwards.
    legend = axes.legend([line for line, _ in named_lines], ["title"] * len(named_lines), frameon=False, fontsize=8)
    for text, (_, title) in zip(legend.get_texts(), named_lines, strict=True):
        text.set_text(title)
        text.set_parse_math(False)
