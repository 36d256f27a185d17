"""The tables of targets in docs/growth.md, docs/performance.md and docs/translation.md, each figure looked up in its benchmark's file.

`fill_tables.py` calls `long_work`, `speed` and `translation`. A target whose file, row or column is missing has no figure, and so no state.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

COLUMNS = ["work", "target", "measured", "state", "command"]
Rows = list[list[Any]]
ARGUMENTS = {"int8": " --multi30k DATA --runs RUN ...", "start": " RUN"}
"""Arguments without which a script does not run."""


class Results:
    """The files of results in a folder.

    Args:
        folder: docs/results, or another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = cache(self._rows)

    def _rows(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / f"{name}.json"
        if not path.exists():
            return []
        table = json.loads(path.read_text(encoding="utf-8"))
        return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]

    def value(self, name: str, first: tuple[Any, ...], column: str) -> Any:
        """Return a cell of the row that begins with these cells; None where there is none."""
        found = [row for row in self.rows(name) if tuple(row.values())[: len(first)] == first]
        return found[0].get(column) if found else None


class Targets:
    """Rows of a table of targets."""

    def __init__(self) -> None:
        self.rows: Rows = []

    def most(self, work: str, bound: float, measured: float | None, script: str, unit: str = "") -> None:
        """Add a target that a figure must not exceed."""
        self._add(work, f"at most {bound:,g} {unit}", measured, script, lambda value: operator.le(value, bound))

    def least(self, work: str, bound: float, measured: float | None, script: str, unit: str = "") -> None:
        """Add a target that a figure must reach."""
        self._add(work, f"at least {bound:,g} {unit}", measured, script, lambda value: operator.ge(value, bound))

    def same(self, work: str, measured: str | None, script: str) -> None:
        """Add the target of equal bytes, which a table answers by yes."""
        self._add(work, "the same bytes", measured, script, lambda value: value == "yes")

    def _add(self, work: str, target: str, measured: Any, script: str, met: Callable[[Any], bool]) -> None:
        state = "not measured" if measured is None else "met" if met(measured) else "missed"
        self.rows.append([work, target.rstrip(), measured, state, f"`python benchmarks/{script}.py{ARGUMENTS.get(script, '')}`"])

    def table(self) -> dict[str, Any]:
        """Return the table for `fill_tables.render`."""
        return {"columns": COLUMNS, "rows": self.rows}


def long_work(folder: Path) -> dict[str, Any]:
    """Return the targets of large data, many machines, pipes and progress."""
    results, targets = Results(folder), Targets()
    for pairs, what, bound, unit in (
        ("2,000,000", "first start: seconds to the first update", 90, "s"),
        ("2,000,000", "first start: peak memory, MB", 1200, "MB"),
        ("20,000,000", "first start: peak memory, MB", 1500, "MB"),
        ("2,000,000", "restart: seconds to the next update", 5, "s"),
    ):
        targets.most(f"{pairs} pairs, {what.partition(',')[0]}", bound, results.value("corpus", (what,), pairs), "corpus", unit)
    again, own = (
        results.value("corpus", (f"restart: {what}",), "2,000,000") for what in ("seconds to the next update", "of these, the update")
    )
    before = None if again is None or own is None else round(again - own, 1)
    targets.most("2,000,000 pairs, restart: seconds until this update begins", 5, before, "corpus", "s")
    for row in results.rows("cluster"):
        work, killed = f"{row['work']} on Ray, {row['workers']} workers", row["workers killed"]
        if row["by"] == "Ray" and not killed:
            targets.most(f"{work}: time over processes", 1.05, row["over processes"], "cluster")
        elif row["by"] == "Ray":
            targets.same(f"{work}, {killed} killed", row["same bytes"], "cluster")
    for slow, fast, what in (
        ("full pipe", "file", "a full pipe: time over a file"),
        ("full pipe, progress shown", "full pipe", "progress: time over --quiet"),
    ):
        rates = [results.value("pipe", (name,), "lines per second") for name in (fast, slow)]
        targets.most(what, 1.01, None if None in rates else round(rates[0] / rates[1], 3), "pipe")
    return targets.table()


def speed(folder: Path) -> dict[str, Any]:
    """Return the targets of training beside other programs, int8, larger models, the start and the GPU."""
    results, targets = Results(folder), Targets()
    _busy(results, targets)
    for row, where in ((row, where) for name, where in (("int8", ""), ("int8_intel", ", Intel")) for row in results.rows(name)):
        work = f"{row['decoding']}, {row['model']}{where}"
        targets.least(f"int8 over CTranslate2's int8: {work}", 1.0, row["Regard / CTranslate2, int8"], "int8")
        lost = round(row["BLEU, Regard float32"] - row["BLEU, Regard int8"], 2)
        targets.most(f"BLEU that int8 loses: {work}", 0.2, lost, "int8")
        if row["decoding"] == "greedy":
            targets.least(f"float32 over CTranslate2's float32: {work}", 1.0, row["Regard / CTranslate2, float32"], "int8")
    training = "training, target tokens/s"
    for kind, peer in (("float32", "eole float32"), ("float32", "Hugging Face float32"), ("bfloat16", "Hugging Face bfloat16")):
        for name, where in (("transformer_speed_base", ""), ("transformer_speed_base_intel", ", Intel")):
            found = results.value(name, (training, f"Regard {kind}", peer), "median ratio")
            targets.least(f"training of Transformer Base: {kind} over {peer}{where}", 1.5, found, "transformer_peers")
    for command, bound in (("`regard translate`, one line", 1.5),):
        targets.most(f"start: {command}, over `import torch`", bound, results.value("start", (command,), "of `import torch`"), "start")
    targets.most("start: `regard --help`", 0.3, results.value("start", ("`regard --help`",), "processor time, s"), "start", "s")
    _gpu(results, targets)
    return targets.table()


def translation(folder: Path) -> dict[str, Any]:
    """Return the targets of markup, confidence, forced words, guided alignment, copying and students."""
    results, targets = Results(folder), Targets()
    for row in results.rows("tags"):
        work = f"{row['model']}, links in training: {row['links in training']}"
        targets.least(f"tags in the right place, {work}", 98, mean_of(row["right place, tags, %"]), "tags", "%")
    for row in results.rows("confidence"):
        targets.most("confidence: calibration error", 0.05, row["calibration error, chrF / 100"], "confidence")
        own, other = row["rank correlation"], row["rank correlation of the mean log-probability"]
        targets.least("confidence: rank correlation above that of the mean log-probability, by", 0, round(own - other, 3), "confidence")
    slower = results.value("forced_words", (3,), "time over none")
    targets.most("three terms a line: time over none", 2, None if slower is None else mean_of(slower), "forced_words")
    for row in results.rows("pointing"):
        if row["links in training"] == "known":
            bound = 5 if "areas" in row["model"] else 1
            targets.most(f"alignment error, {row['data']}, {row['model']}", bound, mean_of(row["alignment error, %"]), "pointing", "%")
    scores = [results.value("pointing_multi30k", ("Transformer", links), "BLEU") for links in ("none", "of the recurrent model")]
    lost = None if None in scores else round(mean_of(scores[0]) - mean_of(scores[1]), 2)
    targets.most("guided alignment on Multi30k: BLEU that it loses", 0.3, lost, "pointing")
    for row in results.rows("copying"):
        if "copies" in row["model"]:
            targets.least(f"new words copied, {row['model']}", 99, mean_of(row["unknown words copied, %"]), "copying", "%")
    _students(results, targets)
    return targets.table()


def mean_of(cell: str) -> float:
    """Return the mean in a cell such as `3.4 (3.1 to 3.6)`.

    Example:
        >>> mean_of("3.4 (3.1 to 3.6)")
        3.4
    """
    return float(cell.split()[0])


def _students(results: Results, targets: Targets) -> None:
    rows = results.rows("students")
    bleu = {(row["model"], row["decoding"]): row["BLEU"] for row in rows}
    for row in rows:
        if row["over no shortlist"] is not None and "CTranslate2" not in row["decoding"]:
            work = f"{row['model']}, {row['decoding']}"
            lost = bleu[row["model"], row["decoding"].removesuffix(", shortlist")] - row["BLEU"]
            targets.least(f"shortlist, speed: {work}", 1.2, row["over no shortlist"], "students")
            targets.most(f"shortlist, BLEU that it loses: {work}", 0.2, round(lost, 2), "students")
    fastest: dict[str, Any] = {}
    for row in sorted(rows, key=operator.itemgetter("sentences/s")):
        if row["model"] != "teacher":
            fastest[row["model"]] = row
    for model, row in fastest.items():
        work = f"{model}, {row['decoding']}"
        targets.least(f"student, speed over the teacher: {work}", 3, row["over the teacher"], "students")
        targets.most(f"student, BLEU below the teacher: {work}", 0.5, round(bleu["teacher", "Regard"] - row["BLEU"], 2), "students")
        name = "student, speed over the teacher in CTranslate2 int8 with its vocabulary map"
        targets.least(f"{name}: {work}", 1.5, row["over the teacher in CTranslate2"], "students")


def _busy(results: Results, targets: Targets) -> None:
    raw = results.folder / "busy.json"
    seconds = json.loads(raw.read_text(encoding="utf-8")).get("demo", {}).get("1") if raw.exists() else None
    for model in ("Transformer", "recurrent", "classifier, batches of 500 tokens"):
        rows = {row["beside"]: row for row in results.rows("busy") if row["model"] == model}
        idle, nice = rows.get("nothing", {}), rows.get("4 at nice 19", {})
        for bound, aim in ((1.0, ""), (1.15, " (aim)")):
            targets.least(f"{model} on two idle cores: workers over threads{aim}", bound, idle.get("workers / threads"), "busy")
        targets.least(f"{model} beside one program, over threads on idle cores", 0.45, rows.get("1", {}).get("of idle"), "busy")
        alone, beside = idle.get("one thread, tokens/s"), nice.get("workers, tokens/s")
        found = round(beside / alone, 2) if alone and beside else None
        targets.least(f"{model} beside four programs at nice 19, over one thread on an idle core", 0.8, found, "busy")
        shares = [rows[company]["workers / one thread"] for company in ("1", "2", "4") if company in rows]
        lowest = min(shares) if len(shares) == 3 else None
        targets.least(f"{model} beside one, two or four programs, over one thread there: the lowest", 0.9, lowest, "busy")
        memory = [row["MiB, workers / threads"] for row in rows.values()]
        targets.most(f"{model}: memory of workers over threads, at the start", 1.6, idle.get("MiB, workers / threads"), "busy")
        targets.most(f"{model}: memory of workers over threads, the highest", 1.6, max(memory) if memory else None, "busy")
    targets.most("the demonstration beside one program", 150, seconds, "busy", "s")


def _gpu(results: Results, targets: Targets) -> None:
    for areas, what in (("5, mean", "areas of up to 5"), ("3 x 3", "areas of 3 x 3 in a grid"), ("5, Eq. 9", "area features (Eq. 9)")):
        rows = [row for row in results.rows("gpu_area") if row["areas"] == areas and row["pass"] == "forward + backward"]
        over, under = ([row[name] for row in rows if row[name] is not None] for name in ("Regard / SDPA", "materialized / Regard"))
        work = f"{what} on a GPU, forward and backward"
        targets.most(f"{work}: time over attention without areas, the highest", 2.0, max(over, default=None), "gpu")
        targets.least(f"{work}: materialized areas' time over theirs, the lowest", 3.0, min(under, default=None), "gpu")
        # The number of tokens is the same at each length.
        memory = [row["Regard MiB"] for row in rows if row["Regard MiB"] is not None and row["dtype"] == "bfloat16"]
        growth = round(max(memory) / min(memory), 2) if memory else None
        targets.most(f"{work}, bfloat16: memory per token, the highest over the lowest", 1.1, growth, "gpu")
    failed = [row["failed"] for row in results.rows("gpu_tests")]
    targets.most("tests and random cases of the kernels on a GPU that failed", 0, sum(failed) if failed else None, "gpu")
    peer = results.value("gpu_decoding", ("greedy",), "Regard / Hugging Face")
    targets.least("greedy decoding on a GPU: speed over Hugging Face", 1.0, peer, "gpu")
    for precision in ("fp32", "bf16"):
        found = [row["weights after kill and resume"] for row in results.rows("gpu_resume") if row["precision"] == precision]
        same = {"equal": "yes"}.get(found[0], found[0]) if found else None
        targets.same(f"a training on a GPU killed and resumed, {precision}", same, "gpu")
