"""From the reports of finished studies to the tables of docs/studies.md.

    regard compare studies/generated.yaml --data FOLDER --out runs/generated
    python benchmarks/studies.py --runs runs generated
    python benchmarks/fill_tables.py

Writes docs/results/study_NAME.json for each name, study_NAME_length.json where a study has BLEU by the words of the source, and
study_findings.json: what became of the hypotheses of all studies whose results are there. Times and memory stay in the study's own report:
they are of a machine that may have done other things. It is kept in docs/results/studies/NAME, with what every run has given, so that all
of it can be made again without a training:

    cp -r docs/results/studies/generated runs/generated
    regard compare studies/generated.yaml --data FOLDER --out runs/generated --report

Without --report a copy goes on with the runs that are not done yet.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from multi30k import ROOT, write

import regard

LEFT_OUT = ("p", "s an update", "tokens/s", "MiB", "lines/s")


def tables(name: str, runs: Path, out: Path) -> None:
    """Write the tables of a study.

    Raises:
        SystemExit: it has no report; names the command that makes it.
    """
    folder = runs / name
    if not (folder / "report.json").exists():
        raise SystemExit(f"{folder}: no report there; first: regard compare studies/{name}.yaml --data FOLDER --out {folder}")
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    with (folder / "report.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = list(csv.reader(file))
    one = len({row[0] for row in rows}) == 1
    kept = [number for number, column in enumerate(head) if column not in LEFT_OUT and not (one and column == "data")]
    source = report["study"]["source"]
    data = ", ".join(dict.fromkeys(row[0] for row in rows))
    missing = f" Not done: {', '.join(report['missing'])}." if report["missing"] else ""
    note = (
        f"`regard compare studies/{name}.yaml`: {data}; {source}. Mean ± standard deviation over the seeds; p by approximate "
        f"randomisation, corrected for all comparisons of the table (Holm).{missing} "
        f"torch {torch.__version__}, regard {regard.__version__}. With times, memory, speeds and commands: the "
        f"[report](results/studies/{name}/report.md); with learning curves, too: the [page](results/studies/{name}/report.html)."
    )
    shown = [[row[number] for number in kept] for row in rows]
    write(out / f"study_{name}.json", [head[number] for number in kept], shown, note, findings=report["findings"])
    ranges = list(dict.fromkeys(words for row in report["rows"] for words in row["by_length"]))
    if ranges:
        lengths = [
            [named[0], named[1], *(round(row["by_length"][words], 1) if words in row["by_length"] else None for words in ranges)]
            for named, row in zip(rows, report["rows"], strict=True)
        ]
        note = "BLEU by the words of the source, mean over the runs."
        write(out / f"study_{name}_length.json", ["data", "variant", *ranges], lengths, note)


def keep(name: str, runs: Path, out: Path) -> None:
    """Keep the report of a study, and the settings and the results of its runs."""
    for part in ("configs", "results"):
        shutil.copytree(runs / name / part, out / "studies" / name / part, dirs_exist_ok=True)
    for part in ("report.md", "report.html"):
        shutil.copy(runs / name / part, out / "studies" / name / part)


def write_findings(out: Path) -> None:
    """Write the table of all hypotheses, from the tables of the studies."""
    rows: list[list[Any]] = []
    for path in sorted(out.glob("study_*.json")):
        for found in json.loads(path.read_text(encoding="utf-8")).get("findings", []):
            gain, corrected = (None if found[name] is None else round(found[name], 3) for name in ("gain", "corrected"))
            study = path.stem.removeprefix("study_")
            rows.append([study, found["says"], found["data"], found["published"], gain, corrected, found["runs"], found["verdict"]])
    note = (
        "`python benchmarks/studies.py`: by how much the one said to be better is better, in the study's main score; p by approximate "
        "randomisation over test items and seeds, corrected for all hypotheses of the study (Holm); it holds below 0.05."
    )
    columns = ["study", "hypothesis", "data", "published", "here", "p, corrected", "seeds", "verdict"]
    write(out / "study_findings.json", columns, rows, note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="studies")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    arguments = parser.parse_args()
    for name in arguments.names:
        tables(name, arguments.runs, arguments.out)
        keep(name, arguments.runs, arguments.out)
    write_findings(arguments.out)


if __name__ == "__main__":
    main()
