"""The table of speeds in the README, each figure looked up in the table it comes from.

    python benchmarks/at_a_glance.py
    python benchmarks/fill_tables.py

Writes at_a_glance.json from the other files of docs/results. A row or a column that is no longer there is an error.
"""

from __future__ import annotations

import re

from harness import RESULTS, options, read, write
from which_attention import value

RECURRENT = "[table](docs/results.md#recurrent-model-speed)"
TRANSFORMER = "[table](docs/results.md#transformer-speed)"
BASE = "[table](docs/results.md#transformer-speed) of Base"
EOLE_AND_HF = "eole (pre-norm), Hugging Face"
AREAS = "[table](docs/performance.md#time)"
STEP = "[table](docs/performance.md#training-step)"
SEARCH = "[table](docs/performance.md#beam-search)"
FILES = {
    RECURRENT: ("rnn_speed",),
    TRANSFORMER: ("transformer_speed",),
    BASE: ("transformer_speed_base",),
    AREAS: ("area", "area_quick"),
    STEP: ("area_step",),
    SEARCH: ("area_search",),
}


def processor(name: str) -> str:
    """Return the processor that a file's note names, without marks and the word processor."""
    found = re.search(r"\b(AMD|Intel)\b[^,;]*", read(RESULTS / f"{name}.json")["note"])
    if found is None:
        raise SystemExit(f"{name}.json: the note names no processor")
    return re.sub(r"\(\w+\)| Processor.*", "", found[0])


def rows() -> list[list[str]]:
    """Return the rows: the task, the other toolkit or method, the speed-up, the link to the evidence."""

    def recurrent(what: str, peer: str) -> str:
        return value("rnn_speed", (what, "additive"), f"over {peer}").split()[0]

    def transformer(what: str, *peers: str, table: str = "transformer_speed") -> str:
        return ", ".join(f"{value(table, (what, 'Regard float32', peer), 'median ratio'):.2f}" for peer in peers)

    def area(column: str, *, power: int = 1) -> str:
        cell = ("(64, 256), d = 64, A = 5, causal", "forward + backward")
        return ", ".join(f"{value(table, cell, column) ** power:.1f}" for table in FILES[AREAS])

    training, greedy, beam_size, native = "training, target tokens/s", "greedy, sentences/s", "beam 5, sentences/s", "CTranslate2 float32"
    recurrent_peers = ", ".join(recurrent(training, peer) for peer in ("joeynmt", "eole"))
    toolkits = ("eole float32", "Hugging Face float32")
    workers = (native, f"{native}, two workers")
    return [
        ["training a recurrent model with additive attention", "JoeyNMT, eole", recurrent_peers, RECURRENT],
        ["beam search with it", "JoeyNMT", recurrent(beam_size, "joeynmt"), RECURRENT],
        ["training a Transformer, 3 + 3 layers of 256", EOLE_AND_HF, transformer(training, *toolkits), TRANSFORMER],
        ["beam search with it", "CTranslate2 with one worker, with two", transformer(beam_size, *workers), TRANSFORMER],
        ["beam search with it", "Hugging Face", transformer(beam_size, "Hugging Face float32"), TRANSFORMER],
        ["greedy decoding with it", "CTranslate2 with one worker, with two", transformer(greedy, *workers), TRANSFORMER],
        ["training Transformer Base", EOLE_AND_HF, transformer(training, *toolkits, table="transformer_speed_base"), BASE],
        [
            "area attention, areas of up to 5, 256 positions, causal, forward and backward",
            "materialized areas",
            area("materialized / cpu"),
            AREAS,
        ],
        ["the same", "standard attention (PyTorch)", area("cpu / SDPA", power=-1), AREAS],
        [
            "training step of a Transformer with areas",
            "without areas",
            f"{1 / value('area_step', 'areas, Eq. 3 and 4', 'ratio'):.2f}",
            STEP,
        ],
        ["beam search with it", "without areas", f"{1 / value('area_search', 'areas, Eq. 3 and 4', 'ratio'):.2f}", SEARCH],
    ]


def main() -> None:
    arguments = options(__doc__, out=RESULTS / "at_a_glance.json").parse_args()
    note = (
        "`python benchmarks/at_a_glance.py`: medians of pairs in one run on 2 cores, float32; below 1 the other is faster. "
        "The linked tables give versions and spread."
    )
    found = [[*row, ", ".join(processor(name) for name in FILES[evidence]), evidence] for *row, evidence in rows()]
    write(arguments.out, ["task", "compared with", "speed-up", "processor", "evidence"], found, note)


if __name__ == "__main__":
    main()
