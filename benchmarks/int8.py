"""Decoding with 8-bit weights: Regard beside CTranslate2, both in int8 and float32, and what the rounding costs in BLEU.

    python benchmarks/int8.py --multi30k DATA --runs RUN ... --out docs/results/int8.json

RUN: a Transformer on Multi30k English to German (configs/multi30k_transformer.yaml, with more layers or wider). Each contender translates
the test set of 2016 in a process of its own, interleaved, after a warm-up; CTranslate2 with both threads in one worker and with one
thread in each of two. The ratio is to the faster of the two in each round. What is measured again takes the place of its row.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from harness import Table, interleaved, machine, median, options, ratio
from peers import Setting
from transformer_contenders import Decoding

from regard.config import TransformerConfig, TranslationConfig
from regard.tasks.run_folder import read_config

OURS = {"int8": "regard-warm-int8", "float32": "regard-warm"}
PEERS = {"int8": ("ctranslate2-int8", "ctranslate2-int8-workers"), "float32": ("ctranslate2", "ctranslate2-workers")}
COLUMNS = [
    "model",
    "decoding",
    "sentences",
    "Regard int8, sentences/s",
    "Regard float32",
    "CTranslate2 int8",
    "CTranslate2 float32",
    "Regard / CTranslate2, int8",
]
COLUMNS += [
    "range",
    "Regard / CTranslate2, float32",
    "Regard int8 / float32",
    "BLEU, Regard int8",
    "BLEU, Regard float32",
    "BLEU, CTranslate2 int8",
]


def shape(run: Path) -> str:
    """Describe a run's model."""
    model = read_config(run, TranslationConfig).model
    assert isinstance(model, TransformerConfig)
    return f"{model.encoder_layers} + {model.decoder_layers} layers, {model.embed_dim}, {model.ff_dim}, {model.num_heads} heads"


def decoding_name(beam_size: int) -> str:
    """Return what decoding is called in the table."""
    return "greedy" if beam_size == 1 else f"beam {beam_size}"


def row(decoding: Decoding, beam_size: int, rounds: int) -> tuple[list[Any], dict[str, Any]]:
    """Measure a model in one kind of decoding; return the row, and all rates."""
    names = [*OURS.values(), *PEERS["int8"], *PEERS["float32"]]
    contenders = {name: functools.partial(lambda name, _: decoding.measure(name, beam_size), name) for name in names}
    windows = interleaved(contenders, rounds)
    rates = {name: [window["sentences_per_second"] for window in each] for name, each in windows.items()}
    best = {kind: [max(pair) for pair in zip(*(rates[name] for name in PEERS[kind]), strict=True)] for kind in PEERS}
    ours, plain = rates[OURS["int8"]], rates[OURS["float32"]]
    found = ratio(ours, best["int8"])
    bleu = [windows[name][0]["bleu"] for name in (OURS["int8"], OURS["float32"], PEERS["int8"][0])]
    figures = [median(each, 0) for each in (ours, plain, best["int8"], best["float32"])]
    return [
        shape(decoding.model),
        decoding_name(beam_size),
        len(decoding.references),
        *figures,
        found.median,
        f"{found.least}-{found.most}",
        ratio(plain, best["float32"]).median,
        ratio(ours, plain).median,
        *bleu,
    ], rates


def main() -> None:
    parser = options(__doc__, rounds=5, threads=2)
    parser.add_argument("--multi30k", type=Path, required=True, help="folder with test_2016_flickr.en.gz and .de.gz")
    parser.add_argument("--runs", type=Path, nargs="+", required=True)
    parser.add_argument("--work", type=Path, default=Path("runs/int8"), help="folder for exports and outputs")
    parser.add_argument("--beams", nargs="+", type=int, default=[1, 5])
    parser.add_argument("--sentences", type=int, help="only the first so many")
    arguments = parser.parse_args()
    note = (
        f"`python benchmarks/int8.py --multi30k DATA --runs RUN ...`, {arguments.rounds} interleaved rounds, sentences per second, "
        f"medians; CTranslate2 with one worker or two, the faster in each round; {machine(arguments.threads, 'ctranslate2')}."
    )
    table = Table(arguments.out, COLUMNS, note, key=2)
    setting = Setting(work=arguments.work.resolve(), python=sys.executable, kind="fp32", threads=arguments.threads)
    for run in arguments.runs:
        decoding = Decoding(setting, run.resolve(), (arguments.multi30k, arguments.sentences))
        for beam_size in arguments.beams:
            table.add(*row(decoding, beam_size, arguments.rounds))


if __name__ == "__main__":
    main()
