"""Regard's recurrent translation model beside JoeyNMT's and eole's: training target tokens/s, decoding sentences/s.

    python benchmarks/rnn_peers.py --multi30k data/multi30k --joeynmt-python joey/bin/python --eole-python eole/bin/python

Run it with Regard's own Python on a machine that does nothing else. Every contender runs in a process and an environment
of its own, with the same threads, on the same token files, in turns (A B C A B C ...), each window a fresh process whose
first updates are not counted. The result file holds every window, the medians, and the ratios round by round.

The peers, each in an environment of its own (torch pinned in the same command):
    pip install torch==2.13.0 joeynmt==2.3.0 importlib_metadata sentencepiece==0.2.0
    pip install torch==2.13.0 eole==0.6.4 aiohttp
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rnn_contenders as contenders
from rnn_contenders import KINDS, SPECIALS, Amount, Setting

VOCABULARY = 8000
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


def read_text(path: Path) -> list[str]:
    """Return the lines of a gzipped text file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        return [" ".join(line.split()) for line in stream]


def prepare_data(corpus: Path, data: Path) -> None:
    """Write the token files that all contenders read.

    One byte-level BPE vocabulary over both sides of the training set; a sentence becomes a line of token numbers between
    blanks, so that no toolkit's own idea of a word or a line can change it, and all three see them as whole words.
    The vocabulary is what occurs in the training set, with the special tokens 8,000 at most.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    splits = {"train": "train", "dev": "val", "test": "test_2016_flickr"}
    texts = {(split, side): read_text(corpus / f"{name}.{side}.gz") for split, name in splits.items() for side in ("en", "de")}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - len(SPECIALS), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts["train", "en"] + texts["train", "de"], trainer)
    data.mkdir(parents=True, exist_ok=True)
    seen: Counter[str] = Counter()
    for (split, side), lines in texts.items():
        tokens = [[str(number) for number in encoding.ids] for encoding in tokenizer.encode_batch(lines)]
        name = f"{split}.{side}" if (split, side) != ("test", "de") else "reference.de"
        (data / name).write_text("".join(" ".join(line) + "\n" for line in tokens), encoding="utf-8")
        if split == "train":
            seen.update(token for line in tokens for token in line)
    words = sorted(seen, key=lambda token: (-seen[token], int(token)))
    (data / "vocabulary.joeynmt").write_text("".join(f"{word}\n" for word in (*SPECIALS, *words)), encoding="utf-8")
    (data / "vocabulary.eole").write_text("".join(f"{word}\t{seen[word]}\n" for word in words), encoding="utf-8")
    tokenizer.save(str(data / "tokenizer.json"))


def describe(settings: dict[str, Setting]) -> dict[str, Any]:
    """Return the machine, the versions and the command, without any path of this machine."""
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {}
    for name, setting in settings.items():
        code = f"import importlib.metadata as m; print(m.version('torch')); print(m.version('{name}'))"
        done = subprocess.run([setting.python, "-c", code], capture_output=True, text=True, check=False)
        torch, *own = done.stdout.split() or ["unknown"]
        versions[name] = {"version": own[0] if own else "source tree", "torch": torch}
    words = [f"{Path(word).name.upper()}" if word.startswith("/") else word for word in sys.argv[1:]]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", "benchmarks/rnn_peers.py", *words]),
        "machine": {"cpu": cpu, "cores": os.cpu_count(), "memory_gib": round(memory, 1), "system": platform.platform(terse=True)},
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": versions,
    }


def summary(windows: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians, ranges, and Regard's ratio to every peer, round by round; that of bfloat16 apart."""
    result: dict[str, Any] = {"median": {}, "range": {}, "ratio": {}, "bfloat16_ratio": {}}
    for name, values in windows.items():
        result["median"][name] = round(statistics.median(values), 1)
        result["range"][name] = [round(min(values), 1), round(max(values), 1)]
    for ours, ratios in (("regard", result["ratio"]), (BFLOAT16, result["bfloat16_ratio"])):
        for name in (windows.keys() - {"regard", BFLOAT16}) if ours in windows else ():
            pairs = [round(mine / theirs, 3) for mine, theirs in zip(windows[ours], windows[name], strict=True)]
            ratios[name] = {"pairs": pairs, "median": round(statistics.median(pairs), 3), "least": min(pairs)}
    return result


def measure_training(settings: dict[str, Setting], updates: dict[str, int], arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the training windows of one attention kind in turns; a round's seed is the same for every contender."""
    windows: dict[str, list[dict[str, Any]]] = {name: [] for name in settings}
    for turn in range(arguments.rounds):
        for name, setting in settings.items():
            amount = Amount(arguments.warmup, updates[name], seed=turn + 1)
            found = TRAINERS[name](setting, setting.work / "runs" / f"window-{name}", amount)
            windows[name].append(found)
            print(f"train {setting.kind:8} round {turn + 1} {name:8} {found}", flush=True)
    rates = {name: [found["tokens_per_second"] for found in list_] for name, list_ in windows.items()}
    return {"unit": "target tokens/s, end of sentence counted, padding not", "windows": windows, **summary(rates)}


def measure_decoding(settings: dict[str, Setting], model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Decode the test set in turns, both with the weights of the Regard run `model`."""
    outputs = model.parent.parent / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    reference = [line.split() for line in (outputs.parent / "data" / "reference.de").read_text("utf-8").splitlines()]
    settings = {**settings, BFLOAT16: settings["regard"]}
    names = [name for name in DECODERS if name in settings]
    weights = {"regard": model, BFLOAT16: model, "joeynmt": contenders.regard_weights(settings["regard"], model)}
    windows: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    hypotheses: dict[str, list[list[str]]] = {}
    for turn in range(arguments.decoding_rounds):
        for name in names:
            output = outputs / f"{name.replace(' ', '-')}-{settings[name].kind}.de"
            seconds = DECODERS[name](settings[name], weights[name], output)
            hypotheses[name] = [line.split() for line in output.read_text("utf-8").splitlines()]
            lengths = [len(words) for words in hypotheses[name]]
            if len(lengths) != len(reference):
                raise SystemExit(f"{output}: {len(lengths)} lines, expected {len(reference)}")
            tokens = sum(min(length + 1, contenders.MAX_LENGTH) for length in lengths)
            found = {"sentences": len(lengths), "seconds": round(seconds, 3), "sentences_per_second": round(len(lengths) / seconds, 2)}
            found |= {"tokens_per_second": round(tokens / seconds, 1), "mean_length": round(statistics.mean(lengths), 2)}
            windows[name].append(found)
            print(f"decode {settings[name].kind:8} round {turn + 1} {name:8} {found}", flush=True)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--multi30k", type=Path, help="folder with train.en.gz, val.de.gz, test_2016_flickr.en.gz, ... (raw text)")
    parser.add_argument("--regard-python", default=sys.executable, help="the Python that has regard")
    parser.add_argument("--joeynmt-python", help="the Python that has joeynmt; absent: left out")
    parser.add_argument("--eole-python", help="the Python that has eole; absent: left out")
    parser.add_argument("--work", type=Path, default=Path("runs/rnn_peers"), help="folder for data, configurations, runs, logs")
    parser.add_argument("--out", type=Path, default=Path("docs/results/rnn_speed.json"), help="the result file")
    parser.add_argument("--threads", type=int, default=2)
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
    if not (arguments.work / "data" / "tokenizer.json").exists():
        if arguments.multi30k is None:
            raise SystemExit("--multi30k is needed to prepare the data")
        prepare_data(arguments.multi30k, arguments.work / "data")
    pythons = {"regard": arguments.regard_python, "joeynmt": arguments.joeynmt_python, "eole": arguments.eole_python}
    updates = {name: int(number) for name, _, number in (word.partition("=") for word in arguments.updates)}
    if any(number % arguments.warmup for number in updates.values()):
        raise SystemExit("--updates must be multiples of --warmup, for the logs are read in steps of it")
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
    result = describe(settings["additive"]) | {"threads": arguments.threads, "warmup_updates": arguments.warmup}
    result |= {"configuration": CONFIGURATION, "training": {}, "decoding": {}}
    for kind in arguments.kinds if arguments.rounds else []:
        result["training"][kind] = measure_training(settings[kind], updates, arguments)
        write_result(arguments.out, result)
    for kind, model in models.items():
        result["decoding"][kind] = measure_decoding(settings[kind], model, arguments)
        write_result(arguments.out, result)


def table(result: dict[str, Any]) -> dict[str, Any]:
    """Return the result as the table of the documents: ratios only, the median of the pairs and the least of them."""
    peers = [name for name in TRAINERS if name != "regard"]
    parts = [("training, target tokens/s", kind, part) for kind, part in result["training"].items()]
    parts += [("beam 5, sentences/s", kind, part["sentences_per_second"]) for kind, part in result["decoding"].items()]
    decoding = [(kind, part["sentences_per_second"]) for kind, part in result["decoding"].items()]
    parts += [("beam 5, ours in bfloat16", kind, {"ratio": part["bfloat16_ratio"]}) for kind, part in decoding if "bfloat16_ratio" in part]
    rows = []
    for what, kind, part in parts:
        ratios = [part["ratio"].get(name) for name in peers]
        rows.append([what, kind, *(None if ratio is None else f"{ratio['median']:.2f} (least {ratio['least']:.2f})" for ratio in ratios)])
    machine = result["machine"]
    facts = [
        f"{name}: mean length {part['windows'][name][0]['mean_length']}"
        + (f", {100 * part['same_hypotheses'][name]:.0f} % as ours in float32" if name in part.get("same_hypotheses", {}) else "")
        for part in result["decoding"].values()
        for name in part["windows"]
    ]
    # Training and decoding may be measured by two calls, whose results one file holds.
    commands = " and ".join(f"`{result[key]}`" for key in ("command", "command_of_decoding") if key in result)
    note = (
        f"{commands}: Regard over the peer, pair by pair in one run; {machine['cpu']}, {result['threads']} threads, "
        "float32 where nothing else is said. "
        f"{result['configuration']['model']}; {result['configuration']['decoding']}. {'; '.join(facts)}."
    )
    return {"columns": ["what", "score", *(f"over {name}" for name in peers)], "rows": rows, "note": note}


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write the result file; after every part, so that an interrupted benchmark keeps what it has."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result |= table(result)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


CONFIGURATION = {
    "data": "Multi30k en-de, one shared byte-level BPE vocabulary of 8,000, the same token files for all",
    "model": "bidirectional GRU 1 x 256, GRU decoder 512 with input feeding, the new state as query, embeddings 256, output from 512",
    "training": "dropout 0.2, Adam 1e-3, label smoothing 0.1, gradient norm 1.0, float32, own batches of 4,096 padded tokens",
    "decoding": "beam 5, batches of 64, length penalty 1.0, at most 30 tokens, test_2016_flickr (1,000), the same weights",
}


if __name__ == "__main__":
    main()
