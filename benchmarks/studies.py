"""From the reports of finished studies to the tables of docs/studies.md.

    regard compare studies/generated.yaml --data FOLDER --out runs/generated
    python benchmarks/studies.py --runs runs generated
    python benchmarks/fill_tables.py

Writes docs/results/study_NAME.json for each name, study_NAME_length.json where a study has BLEU by source length in words, and
study_NAME_loss.json, the validation loss by evaluation, where a study measures checkpoints, and
study_findings.json: the verdict on each hypothesis of all studies whose results are there. Times and memory stay in the study's own report:
the machine may have run other programs. docs/results/studies/NAME keeps that report with the settings and the results of
every run; its pages share one style sheet. This rewrites reports and tables without training, for instance with other published
figures:

    python benchmarks/studies.py --kept generated

To add runs to a kept study, copy its folder to runs/NAME and start `regard compare` with the same settings and data paths.
"""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from harness import RESULTS, ROOT, not_done, options, read, write
from seed_test import out_of_date

from regard.config.study import load_study
from regard.metrics.seeds import MAX_SEEDS
from regard.study import build_report, write_report
from regard.study.findings import POWER, SEEDS, p_text
from regard.study.report import Report
from regard.study.report_files import by_length, write_style

STYLE = "report.css"
LEFT_OUT = ("p", "s per update", "tokens/s", "MiB", "lines/s")


def tables(name: str, found: Report, reports: Path, out: Path) -> None:
    """Write the tables of a study from its report and from the files of it."""
    folder = reports / name
    report = read(folder / "report.json")
    with (folder / "report.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = list(csv.reader(file))
    one = len({row[0] for row in rows}) == 1
    kept = [number for number, column in enumerate(head) if column not in LEFT_OUT and not (one and column == "data")]
    source = report["study"]["source"]
    data = ", ".join(dict.fromkeys(row[0] for row in rows))
    precision = _precisions(out / "studies" / name / "configs")
    where = f"Test items: {report['test_items']}. Trained on: {report['trained_on']}; training.precision: {precision}"
    note = (
        f"`regard compare studies/{name}.yaml`: {data}; {source}.{not_done(report['missing'])} {where}. "
        f"[Report](results/studies/{name}/report.md), [page](results/studies/{name}/report.html)."
    )
    shown = [[row[number] for number in kept] for row in rows]
    write(out / f"study_{name}.json", [head[number] for number in kept], shown, note, findings=report["findings"])
    lengths = by_length(found)
    if lengths is not None and report["study"]["metric"] in (None, "BLEU"):
        columns, cells = lengths
        numbers = [[data, variant, *map(_number, rest)] for data, variant, *rest in cells]
        write(out / f"study_{name}_length.json", columns, numbers, "BLEU by source length in words, mean over the runs.")


def _number(cell: str) -> float | str | None:
    try:
        return json.loads(cell)
    except ValueError:  # none, or the numbers of sentences of two test sets
        return cell or None


def _precisions(configs: Path) -> str:
    found = {yaml.safe_load(path.read_text(encoding="utf-8"))["training"]["precision"] for path in sorted(configs.glob("*.yaml"))}
    return " or ".join(sorted(found))


def loss_table(name: str, kept: Path, out: Path) -> None:
    """Write the validation loss of each variant at each evaluation, and its difference from the baseline, for the seeds that both have."""
    study = load_study(ROOT / "studies" / f"{name}.yaml", data="data")
    baseline = study.compared_with
    others = [variant for variant in study.variants if variant != baseline]
    rows: list[list[Any]] = []
    for data in study.data:
        curves = {
            (variant, seed): _losses(kept / name / "results" / f"{data}-{variant}-{seed}.json")
            for variant in study.variants
            for seed in study.seeds
        }
        for variant in others:
            seeds = [seed for seed in study.seeds if curves[variant, seed] and curves[baseline, seed]]
            for number in range(min((len(curves[each, seed]) for each in (variant, baseline) for seed in seeds), default=0)):
                pairs = [(curves[baseline, seed][number], curves[variant, seed][number]) for seed in seeds]
                means = [round(sum(values) / len(values), 3) for values in zip(*pairs, strict=True)]
                apart = ", ".join(f"{other - own:+.3f}" for own, other in pairs)
                rows.append([study.data[data].title or data, number + 1, study.variants[variant].title or variant, *means, apart])
    note = "`python benchmarks/studies.py`: loss per token on the validation set, in nats, the mean over the seeds that both have."
    named = study.variants[baseline].title or baseline
    columns = ["data", "epoch", "variant", f"loss of {named}", "loss of the variant", "difference, by seed"]
    write(out / f"study_{name}_loss.json", columns, rows, note)


def _losses(path: Path) -> list[float]:
    return [point["loss"] for point in read(path)["curve"]] if path.exists() else []


def report_again(name: str, kept: Path, reports: Path) -> Report:
    """Write and return the report of a study from its kept results, the study's file as it is now, and keep it."""
    report = build_report(load_study(ROOT / "studies" / f"{name}.yaml", data="data"), kept / name)
    (reports / name).mkdir()
    write_report(report, reports / name, style=f"../{STYLE}")
    write_style(kept / STYLE)
    for part in ("report.md", "report.html", "runs.csv"):
        shutil.copy(reports / name / part, kept / name / part)
    return report


def keep(name: str, runs: Path, kept: Path) -> None:
    """Keep the settings and the results of a study's runs.

    Raises:
        SystemExit: there are none; names the command that makes them.
    """
    folder = runs / name
    if not (folder / "results").exists():
        raise SystemExit(f"{folder}: no results there; first: regard compare studies/{name}.yaml --data FOLDER --out {folder}")
    for part in ("configs", "results"):
        shutil.copytree(folder / part, kept / name / part, dirs_exist_ok=True)


def false_discovery_rates(p_values: Sequence[float]) -> list[float]:
    """Correct p-values by the procedure of Benjamini and Hochberg (1995).

    Example:
        >>> false_discovery_rates([0.01, 0.04, 0.03])
        [0.03, 0.04, 0.04]
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    found, least = [1.0] * len(order), 1.0
    for rank, place in reversed(list(enumerate(order, start=1))):
        least = min(least, p_values[place] * len(order) / rank)
        found[place] = least
    return found


def write_findings(out: Path) -> None:
    """Write the table of all hypotheses, from the tables of the studies."""
    rows: list[list[Any]] = []
    findings = [(path, found) for path in sorted(out.glob("study_*.json")) for found in read(path).get("findings", [])]
    tested = [number for number, (_, found) in enumerate(findings) if found["over"] == "seeds and items" and found["runs"] >= SEEDS]
    rates = dict(zip(tested, false_discovery_rates([findings[number][1]["p_value"] for number in tested]), strict=True))
    for number, (path, found) in enumerate(findings):
        gain = None if found["gain"] is None else round(found["gain"], 3)
        corrected = None if found["corrected"] is None else p_text(found["corrected"]).removeprefix("= ")
        interval = None
        if (ends := found["interval"]) is not None:
            decimals = 3 if max(map(abs, ends)) < 0.5 else 2  # captions are scored up to about 1
            interval = " to ".join(f"{end:+.{decimals}f}" for end in ends)
        needed = None
        if found["over"] == "seeds and items":
            needed = f"over {MAX_SEEDS:,}" if found["needed"] is None else str(found["needed"])
        rate = p_text(rates[number]).removeprefix("= ") if number in rates else None
        row = [path.stem.removeprefix("study_"), found["says"], found["data"], found["published"], gain, interval, corrected, rate]
        over = f"{found['over']}, paired" if found["paired"] and found["over"] != "items" else found["over"]
        rows.append([*row, over, found["runs"], needed, found["verdict"]])
    note = (
        "`python benchmarks/studies.py`. Gain: of the variant that the hypothesis calls better, in the study's main score. p: corrected "
        "for all hypotheses of the study (Holm). q: p corrected for the false discovery rate (Benjamini and Hochberg 1995) over all "
        f"studies, of the {len(tested)} hypotheses of this table with {SEEDS} seeds or more; verdicts do not use it. Over: what interval "
        "and p cover; one seed says nothing about seeds. Below 0.05, three seeds *hold*, one or two *suggest*. Seeds needed: of each "
        "variant, to find "
        f"such a gain with a power of {POWER:.0%}, if seeds spread as these do."
    )
    columns = ["study", "hypothesis", "data", "published gain", "measured gain", "95 % interval", "p, corrected", "q", "over", "seeds"]
    columns += ["seeds needed", "verdict"]
    write(out / "study_findings.json", columns, rows, note)


def main() -> None:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("names", nargs="+", help="studies")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--kept", action="store_true", help="make the reports again from docs/results/studies; trains nothing")
    arguments = parser.parse_args()
    kept = arguments.out / "studies"
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.names:
            if not arguments.kept:
                keep(name, arguments.runs, kept)
            report = report_again(name, kept, Path(folder))
            tables(name, report, Path(folder), arguments.out)
            if load_study(ROOT / "studies" / f"{name}.yaml", data="data").checkpoints:
                loss_table(name, kept, arguments.out)
    write_findings(arguments.out)
    if (arguments.out / "seed_test.json").exists() and out_of_date(arguments.out):
        print("the kept studies have grown: now run benchmarks/seed_test.py, which draws from their spreads")


if __name__ == "__main__":
    main()
