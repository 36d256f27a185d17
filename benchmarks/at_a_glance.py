"""The table of speeds in the README, each figure looked up in the table it comes from.

    python benchmarks/at_a_glance.py
    python benchmarks/fill_tables.py

Writes at_a_glance.json from the other files of docs/results. A row or a column that is no longer there is an error.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from harness import RESULTS, options, read, write
from kept_tables import value

RECURRENT = "[table](docs/results.md#recurrent-model-speed)"
TRANSFORMER = "[table](docs/results.md#transformer-speed)"
AREAS = "[table](docs/performance.md#time)"
STEP = "[table](docs/performance.md#training-step)"
SEARCH = "[table](docs/performance.md#beam-search)"
BY_PROCESSOR = ("", "_intel")
"""Endings of the tables of Transformers, one for each processor they were measured on."""
AREA_TABLES = ("area", "area_quick")


class Row(NamedTuple):
    """A row of the table, and the files of docs/results that it is of, one for each processor."""

    task: str
    peer: str
    speed_up: str
    files: tuple[str, ...]
    evidence: str


def processor(name: str) -> str:
    """Return the processor that a file's note names, without marks and the word processor."""
    found = re.search(r"\b(AMD|Intel)\b[^,;]*", read(RESULTS / f"{name}.json")["note"])
    if found is None:
        raise SystemExit(f"{name}.json: the note names no processor")
    return re.sub(r"\(\w+\)| Processor.*", "", found[0])


def of_transformers(task: str, cell: str, peers: dict[str, str], table: str = "transformer_speed") -> Row:
    """Return a row on a Transformer.

    Args:
        task: in words.
        cell: the task, as the tables name it.
        peers: column cells of the other toolkits, and how they are called here.
        table: name of the first table; those of other processors are read where they have the task.
    """
    files = [table + ending for ending in BY_PROCESSOR]
    files = [name for name in files if any(row[0] == cell for row in read(RESULTS / f"{name}.json")["rows"])]
    figures = [", ".join(f"{value(name, (cell, 'Regard float32', peer), 'median ratio'):.2f}" for peer in peers) for name in files]
    return Row(task, ", ".join(peers.values()), "; ".join(figures), tuple(files), TRANSFORMER)


def rows() -> list[Row]:
    """Return the rows."""

    def recurrent(what: str, peer: str) -> str:
        return value("rnn_speed", (what, "additive"), f"over {peer}").split()[0]

    def area(column: str, *, power: int = 1) -> str:
        cell = ("(64, 256), d = 64, A = 5, causal", "forward + backward")
        return "; ".join(f"{value(table, cell, column) ** power:.1f}" for table in AREA_TABLES)

    training, greedy, beam_size, native = "training, target tokens/s", "greedy, sentences/s", "beam 5, sentences/s", "CTranslate2 float32"
    toolkits = {"eole float32": "eole (pre-norm)", "Hugging Face float32": "Hugging Face"}
    workers = {native: "CTranslate2 with one worker", f"{native}, two workers": "with two"}
    one = {"Hugging Face float32": "Hugging Face"}
    of_areas = "area attention, areas of up to 5, 256 positions, causal, forward and backward"
    step, search = (1 / value(table, "areas, Eq. 3 and 4", "ratio") for table in ("area_step", "area_search"))
    recurrent_peers = ", ".join(recurrent(training, peer) for peer in ("joeynmt", "eole"))
    return [
        Row("training a recurrent model with additive attention", "JoeyNMT, eole", recurrent_peers, ("rnn_speed",), RECURRENT),
        Row("beam search with it", "JoeyNMT", recurrent(beam_size, "joeynmt"), ("rnn_speed",), RECURRENT),
        of_transformers("training a Transformer, 3 + 3 layers of 256", training, toolkits),
        of_transformers("beam search with it", beam_size, workers),
        of_transformers("beam search with it", beam_size, one),
        of_transformers("greedy decoding with it", greedy, workers),
        of_transformers("training Transformer Base", training, toolkits, "transformer_speed_base"),
        Row(of_areas, "materialized areas", area("materialized / cpu"), AREA_TABLES, AREAS),
        Row("the same", "standard attention (PyTorch)", area("cpu / SDPA", power=-1), AREA_TABLES, AREAS),
        Row("training step of a Transformer with areas", "without areas", f"{step:.2f}", ("area_step",), STEP),
        Row("beam search with it", "without areas", f"{search:.2f}", ("area_search",), SEARCH),
    ]


def main() -> None:
    arguments = options(__doc__, out=RESULTS / "at_a_glance.json").parse_args()
    note = (
        "`python benchmarks/at_a_glance.py`: medians of pairs in one run on 2 cores, float32; below 1 the other is faster; a semicolon "
        "between processors. The linked tables give versions and spread."
    )
    found = [[*row[:3], "; ".join(processor(name) for name in row.files), row.evidence] for row in rows()]
    write(arguments.out, ["task", "compared with", "speed-up", "processor", "evidence"], found, note)


if __name__ == "__main__":
    main()
