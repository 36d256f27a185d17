"""Decoding with an ONNX export: its outputs and its speed beside those of Regard and CTranslate2.

    python benchmarks/export_onnx.py --multi30k DATA --runs RUN ... --out docs/results/onnx.json

RUN: a Transformer on Multi30k English to German (configs/multi30k_transformer.yaml). Each contender translates the test set of 2016 in a
process of its own, interleaved, after a warm-up, without a length penalty. onnxruntime runs the steps, the search is Regard's, one batch
per thread in both; CTranslate2 with both threads in one worker and with one thread in each of two. Regard and CTranslate2 compute as the
export does: with int8 weights in int8, else in float32. What is measured again takes the place of its row.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from harness import Table, interleaved, machine, median, options, ratio
from int8 import OURS, PEERS, decoding_name, shape
from peers import Setting
from transformer_contenders import Decoding

EXPORTS = {"float32": "onnx", "float16": "onnx-float16", "int8": "onnx-int8"}
COMPUTED = {"float32": "float32", "float16": "float32", "int8": "int8"}
COLUMNS = [
    "model",
    "decoding",
    "weights",
    "sentences",
    "same text",
    "BLEU",
    "BLEU, Regard",
    "onnxruntime, sentences/s",
    "Regard",
    "CTranslate2",
]
COLUMNS += ["onnxruntime / Regard", "range", "onnxruntime / CTranslate2"]


def rows(decoding: Decoding, beam_size: int, rounds: int) -> list[list[Any]]:
    """Measure a model in one kind of decoding: a row for each kind of weights."""
    names = [*OURS.values(), *(name for pair in PEERS.values() for name in pair), *EXPORTS.values()]
    contenders = {name: functools.partial(lambda name, _: decoding.measure(name, beam_size), name) for name in names}
    windows = interleaved(contenders, rounds)
    rates = {name: [window["sentences_per_second"] for window in each] for name, each in windows.items()}
    expected, found = decoding.output(OURS["float32"], beam_size), list[list[Any]]()
    for weights, name in EXPORTS.items():
        kind = COMPUTED[weights]
        ours, peers = rates[OURS[kind]], [max(pair) for pair in zip(*(rates[each] for each in PEERS[kind]), strict=True)]
        same = sum(one == other for one, other in zip(decoding.output(name, beam_size), expected, strict=True))
        facts = [shape(decoding.model), decoding_name(beam_size), weights, len(expected), same]
        scores = [windows[each][0]["bleu"] for each in (name, OURS[kind])]
        speeds, share = [median(each, 0) for each in (rates[name], ours, peers)], ratio(rates[name], ours)
        found.append([*facts, *scores, *speeds, share.median, f"{share.least}-{share.most}", ratio(rates[name], peers).median])
    return found


def main() -> None:
    """Measure every run, greedily and with a beam of 5."""
    parser = options(__doc__, rounds=5, threads=2)
    parser.add_argument("--multi30k", type=Path, required=True, help="folder with test_2016_flickr.en.gz and .de.gz")
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/onnx"), help="folder for exports and outputs")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--sentences", type=int, help="only the first so many")
    arguments = parser.parse_args()
    note = (
        f"`python benchmarks/export_onnx.py`, {arguments.rounds} interleaved rounds, medians, batches of 64, no length penalty; "
        f'"same text": outputs equal to Regard\'s in float32; CTranslate2 with one worker or two, the faster in each round; '
        f"{machine(arguments.threads, 'ctranslate2', 'onnxruntime')}."
    )
    table = Table(arguments.out, COLUMNS, note, key=3)
    setting = Setting(work=arguments.work.resolve(), python=sys.executable, kind="fp32", threads=arguments.threads)
    for run in arguments.runs:
        decoding = Decoding(setting, run.resolve(), (arguments.multi30k, arguments.sentences))
        for beam_size in arguments.beams:
            for row in rows(decoding, beam_size, arguments.rounds):
                table.add(row)


if __name__ == "__main__":
    main()
