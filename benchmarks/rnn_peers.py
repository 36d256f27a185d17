"""Regard's recurrent translation model beside JoeyNMT's and eole's: training target tokens/s, decoding sentences/s.

    python benchmarks/rnn_peers.py --multi30k data/multi30k --joeynmt-python joey/bin/python --eole-python eole/bin/python

Run it with Regard's own Python on a machine that does nothing else. Every contender runs in a process and an environment
of its own, with the same threads, on the same token files, interleaved (A B C A B C ...), each window a fresh process whose
first updates are not counted. The result file holds every window, the medians, and the ratios round by round.

The peers, each in an environment of its own (torch pinned in the same command):
    pip install torch==2.13.0 joeynmt==2.3.0 importlib_metadata sentencepiece==0.2.0
    pip install torch==2.13.0 eole==0.6.4 aiohttp
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rnn_contenders as contenders
from harness import RESULTS, interleaved, options
from peers import DATA, Amount, Setting, describe, ensure_data, ratio, spread, updates_of, write_result
from rnn_contenders import KINDS

TRAINERS: dict[str, Callable[[Setting, Path, Amount], dict[str, Any]]] = {
    "regard": contenders.regard_train,
    "joeynmt": contenders.joeynmt_train,
    "eole": contenders.eole_train,
}
BFLOAT16 = "regard in bfloat16"
DECODERS: dict[str, Callable[..., float]] = {
    "regard": contenders.regard_decode,
    BFLOAT16: functools.partial(contenders.regard_decode, precision="bfloat16"),
    "joeynmt": contenders.joeynmt_decode,
}


def summary(windows: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, ranges, and Regard's ratio to every peer, round by round; that of bfloat16 apart."""
    result: dict[str, Any] = spread(windows) | {"ratio": {}, "bfloat16_ratio": {}}
    for ours, ratios in (("regard", result["ratio"]), (BFLOAT16, result["bfloat16_ratio"])):
        for name in (windows.keys() - {"regard", BFLOAT16}) if ours in windows else ():
            ratios[name] = ratio(windows[ours], windows[name])
    return result


def measure_training(settings: dict[str, Setting], updates: dict[str, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the training windows of one attention kind interleaved; a round's seed is the same for every contender."""

    def train(name: str, setting: Setting, turn: int) -> dict[str, Any]:
        return TRAINERS[name](setting, setting.work / "runs" / f"window-{name}", Amount(arguments.warmup, updates[name], seed=turn))

    kind = next(iter(settings.values())).kind
    trainers = {name: functools.partial(train, name, setting) for name, setting in settings.items()}
    windows = interleaved(trainers, arguments.rounds, title=f"train {kind:8}")
    rates = {name: [found["tokens_per_second"] for found in list_] for name, list_ in windows.items()}
    return {"unit": "target tokens/s, end of sentence counted, padding not", "windows": windows, **summary(rates)}


def measure_decoding(settings: dict[str, Setting], model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Decode the test set interleaved, both with the weights of the Regard run `model`."""
    outputs = model.parent.parent / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    reference = [line.split() for line in (outputs.parent / "data" / "reference.de").read_text("utf-8").splitlines()]
    settings = {**settings, BFLOAT16: settings["regard"]}
    names = [name for name in DECODERS if name in settings]
    weights = {"regard": model, BFLOAT16: model, "joeynmt": contenders.regard_weights(settings["regard"], model)}
    hypotheses: dict[str, list[list[str]]] = {}

    def decode(name: str, turn: int) -> dict[str, Any]:
        output = outputs / f"{name.replace(' ', '-')}-{settings[name].kind}.de"
        seconds = DECODERS[name](settings[name], weights[name], output)
        hypotheses[name] = [line.split() for line in output.read_text("utf-8").splitlines()]
        lengths = [len(words) for words in hypotheses[name]]
        if len(lengths) != len(reference):
            raise SystemExit(f"{output}: {len(lengths)} lines, expected {len(reference)}")
        tokens = sum(min(length + 1, contenders.MAX_LENGTH) for length in lengths)
        found = {"sentences": len(lengths), "seconds": round(seconds, 3), "sentences_per_second": round(len(lengths) / seconds, 2)}
        return found | {"tokens_per_second": round(tokens / seconds, 1), "mean_length": round(statistics.mean(lengths), 2)}

    title = f"decode {settings['regard'].kind:8}"
    windows = interleaved({name: functools.partial(decode, name) for name in names}, arguments.decoding_rounds, title=title)
    result: dict[str, Any] = {"windows": windows, "mean_reference_length": round(statistics.mean(map(len, reference)), 2)}
    for name in names[1:]:  # the share of translations that are Regard's in float32, word for word
        same = sum(ours == theirs for ours, theirs in zip(hypotheses["regard"], hypotheses[name], strict=True))
        result.setdefault("same_hypotheses", {})[name] = same / len(reference)
    for unit in ("sentences_per_second", "tokens_per_second"):
        result[unit] = summary({name: [found[unit] for found in windows[name]] for name in names})
    return result


def decoding_model(setting: Setting, updates: int) -> Path:
    """Return the Regard run to decode with, trained before any window unless it lies there from an earlier try; not timed."""
    folder = setting.work / "runs" / f"model-{setting.kind}"
    if not (folder / "model").exists():
        contenders.regard_train(setting, folder, Amount(updates // 2, updates // 2))
    return folder


def parse(words: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = options(__doc__, out=RESULTS / "rnn_speed.json", threads=2)
    parser.add_argument("--multi30k", type=Path, help="folder with train.en.gz, val.de.gz, test_2016_flickr.en.gz, ... (raw text)")
    parser.add_argument("--regard-python", default=sys.executable, help="the Python that has regard")
    parser.add_argument("--joeynmt-python", help="the Python that has joeynmt; absent: left out")
    parser.add_argument("--eole-python", help="the Python that has eole; absent: left out")
    parser.add_argument("--work", type=Path, default=Path("runs/rnn_peers"), help="folder for data, configurations, runs, logs")
    parser.add_argument("--rounds", type=int, default=5, help="training windows of each contender and attention kind; 0: none")
    parser.add_argument("--decoding-rounds", type=int, default=5, help="decoding windows of each; 0: none")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--decoding-kinds", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--contenders", nargs="+", choices=sorted(TRAINERS), default=list(TRAINERS))
    parser.add_argument("--warmup", type=int, default=3, help="updates of a window that are not counted, and updates between log lines")
    parser.add_argument("--updates", nargs="+", default=["regard=21", "joeynmt=15", "eole=15"], help="counted updates of a window")
    parser.add_argument("--model-updates", type=int, default=240, help="updates of the models to decode with, about 120 an epoch")
    parser.add_argument("--prepare-only", action="store_true", help="write the data and train the models to decode with, measure nothing")
    return parser.parse_args(words)


def main() -> None:
    """Prepare what is missing, measure, and write the result file."""
    arguments = parse()
    arguments.work = arguments.work.resolve()
    ensure_data(arguments.multi30k, arguments.work / "data")
    pythons = {"regard": arguments.regard_python, "joeynmt": arguments.joeynmt_python, "eole": arguments.eole_python}
    updates = updates_of(arguments.updates, arguments.warmup)
    make = functools.partial(Setting, work=arguments.work, threads=arguments.threads)
    settings = {
        kind: {name: make(python=python, kind=kind) for name, python in pythons.items() if python and name in arguments.contenders}
        for kind in sorted(KINDS)
    }
    models = {}
    if arguments.decoding_rounds:
        models = {kind: decoding_model(settings[kind]["regard"], arguments.model_updates) for kind in arguments.decoding_kinds}
    if arguments.prepare_only:
        return
    packages = {name: setting.python for name, setting in settings["additive"].items()}
    result = describe("rnn_peers.py", packages) | {"threads": arguments.threads, "warmup_updates": arguments.warmup}
    result |= {"configuration": CONFIGURATION, "training": {}, "decoding": {}}
    for kind in arguments.kinds if arguments.rounds else []:
        result["training"][kind] = measure_training(settings[kind], updates, arguments)
        write_result(arguments.out, result, table)
    for kind, model in models.items():
        result["decoding"][kind] = measure_decoding(settings[kind], model, arguments)
        write_result(arguments.out, result, table)


def table(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result as the table of the documents: ratios only, the median of the pairs and the least of them."""
    peers = [name for name in TRAINERS if name != "regard"]
    parts = [("training, target tokens/s", kind, part) for kind, part in result["training"].items()]
    parts += [("beam 5, sentences/s", kind, part["sentences_per_second"]) for kind, part in result["decoding"].items()]
    decoding = [(kind, part["sentences_per_second"]) for kind, part in result["decoding"].items()]
    parts += [
        ("beam 5, Regard in bfloat16", kind, {"ratio": part["bfloat16_ratio"]}) for kind, part in decoding if "bfloat16_ratio" in part
    ]
    rows = []
    for what, kind, part in parts:
        ratios = [part["ratio"].get(name) for name in peers]
        rows.append([what, kind, *(None if ratio is None else f"{ratio['median']:.2f} (min {ratio['least']:.2f})" for ratio in ratios)])
    machine = result["machine"]
    facts = [
        f"{name}: mean length {part['windows'][name][0]['mean_length']}"
        + (f", {100 * part['same_hypotheses'][name]:.0f} % as Regard in float32" if name in part.get("same_hypotheses", {}) else "")
        for part in result["decoding"].values()
        for name in part["windows"]
    ]
    # Training and decoding may be measured by two calls, whose results one file holds.
    commands = " and ".join(f"`{result[key]}`" for key in ("command", "command_of_decoding") if key in result)
    note = (
        f"{commands}: Regard over the peer, pair by pair in one run; {machine['cpu']}, {result['threads']} threads, "
        "float32 unless stated otherwise. "
        f"{result['configuration']['model']}; {result['configuration']['decoding']}. {'; '.join(facts)}."
    )
    return {"columns": ["task", "score", *(f"over {name}" for name in peers)], "rows": rows, "note": note}


CONFIGURATION = {
    "data": DATA,
    "model": "bidirectional GRU 1 x 256, GRU decoder 512 with input feeding, the new state as query, embeddings 256, output from 512",
    "training": "dropout 0.2, Adam 1e-3, label smoothing 0.1, gradient norm 1.0, float32, own batches of 4,096 padded tokens",
    "decoding": "beam 5, batches of 64, length penalty 1.0, at most 30 tokens, test_2016_flickr (1,000), the same weights",
}


if __name__ == "__main__":
    main()
