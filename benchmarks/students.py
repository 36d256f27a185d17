"""Students beside their teacher: sentences a second and BLEU in greedy search, with shortlists and 8-bit weights, and beside CTranslate2.

    python benchmarks/students.py --teacher RUN --multi30k DATA --work FOLDER --out docs/results/students.json

RUN: a Transformer on Multi30k English to German (configs/multi30k_transformer.yaml). It translates the training sources (`regard distill`);
each student trains on these translations with the teacher's settings, but a smaller decoder, and each model gets a shortlist. Each
contender then translates the test set of 2016 in a process of its own, interleaved, after a warm-up; CTranslate2 with both threads in one
worker or one in each of two, the faster in each round. It has no recurrent decoders. What FOLDER holds is not made again.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple

from harness import ROOT, Table, interleaved, machine, median, options, ratio, regard
from peers import Setting
from transformer_contenders import Decoding

CONFIG = ROOT / "configs" / "multi30k_transformer.yaml"
STUDENTS = {
    "recurrent": ["model.decoder=recurrent"],
    "recurrent, 2 encoder layers": ["model.decoder=recurrent", "model.encoder_layers=2"],
    "Transformer, 1 decoder layer": ["model.decoder_layers=1"],
}
SEARCHES = {
    "Regard": ("regard-warm",),
    "Regard, shortlist": ("regard-warm-shortlist",),
    "Regard int8": ("regard-warm-int8",),
    "Regard int8, shortlist": ("regard-warm-int8-shortlist",),
    "CTranslate2 int8": ("ctranslate2-int8", "ctranslate2-int8-workers"),
    "CTranslate2 int8, vocabulary map": ("ctranslate2-int8-vmap", "ctranslate2-int8-vmap-workers"),
}
COLUMNS = [
    *("model", "decoding", "sentences/s", "over the teacher", "range"),
    *("over no shortlist", "over the teacher in CTranslate2", "BLEU"),
]
TEACHER, PLAIN, FASTEST = "teacher", "Regard", "CTranslate2 int8, vocabulary map"


class Key(NamedTuple):
    """A model and how it is searched."""

    model: str
    search: str


def students(teacher: Path, raw: Path, work: Path, names: list[str]) -> dict[str, Path]:
    """Train the students that are not there, on what the teacher says; return the folders of all models."""
    taught = work / "taught"
    regard("distill", str(teacher), "--source", str(raw / "train.en.gz"), "--out", str(taught))
    runs = {TEACHER: teacher}
    for name in names:
        runs[name] = work / name.replace(",", "").replace(" ", "-")
        if not (runs[name] / "model").exists():
            text = ["--source", f"{taught}/source/*.txt", "--target", f"{taught}/target/*.txt"]
            valid = ["--valid-source", str(raw / "val.en.gz"), "--valid-target", str(raw / "val.de.gz")]
            regard("train", "translation", "--config", str(CONFIG), *text, *valid, "--out", str(runs[name]), *STUDENTS[name])
    for run in runs.values():
        if not (run / "shortlist.json").exists():
            regard("shortlist", str(run), "--source", f"{taught}/source/*.txt", "--target", f"{taught}/target/*.txt")
    return runs


def measure(decodings: dict[str, Decoding], rounds: int) -> dict[Key, list[dict[str, Any]]]:
    """Decode with every contender in every round; return their windows, of several ways of one contender the faster."""
    ways = {
        (Key(model, search), way): functools.partial(lambda decoding, way, _: decoding.measure(way, 1), decoding, way)
        for model, decoding in decodings.items()
        for search, names in SEARCHES.items()
        if model == TEACHER or not search.startswith("CTranslate2")
        for way in names
    }
    found = interleaved({" ".join([*key, way]): action for (key, way), action in ways.items()}, rounds, title="students")
    best: dict[Key, list[dict[str, Any]]] = {}
    for key, way in ways:
        windows = found[" ".join([*key, way])]
        best[key] = [max(pair, key=speed) for pair in zip(best.get(key, windows), windows, strict=True)]
    return best


def speed(window: dict[str, Any]) -> float:
    """Return a window's sentences per second."""
    return window["sentences_per_second"]


def main() -> None:
    parser = options(__doc__, rounds=5, threads=2)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--multi30k", type=Path, required=True, help="folder of the raw text")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--students", nargs="+", choices=STUDENTS, default=list(STUDENTS))
    parser.add_argument("--train-only", action="store_true", help="measure nothing")
    given = parser.parse_args()
    runs = students(given.teacher, given.multi30k, given.work, given.students)
    if given.train_only:
        return
    setting = Setting(work=given.work.resolve(), python=sys.executable, kind="fp32", threads=given.threads)
    decodings = {name: Decoding(setting, run.resolve(), (given.multi30k, None)) for name, run in runs.items()}
    best = measure(decodings, given.rounds)
    rates = {key: [speed(window) for window in windows] for key, windows in best.items()}
    note = (
        f"`python benchmarks/students.py`: Multi30k, test_2016_flickr, greedy, one seed, {given.rounds} interleaved rounds; medians, "
        f"ratios round by round. *In CTranslate2*: int8 with its vocabulary map. "
        f"{machine(given.threads, 'ctranslate2')}."
    )
    table = Table(given.out, COLUMNS, note, key=2)
    for key, own in rates.items():
        plain = rates.get(Key(key.model, key.search.removesuffix(", shortlist").removesuffix(", vocabulary map")), own)
        of_teacher = ratio(own, rates[Key(TEACHER, PLAIN)])
        shown = [
            median(own, 0),
            of_teacher.median,
            f"{of_teacher.least}-{of_teacher.most}",
            None if plain is own else ratio(own, plain).median,
        ]
        table.add([*key, *shown, ratio(own, rates[Key(TEACHER, FASTEST)]).median, best[key][0]["bleu"]], best[key])


if __name__ == "__main__":
    main()
