"""What the comparisons with other toolkits share: the data, a process for each window, what the toolkits log, medians and ratios.

`rnn_peers.py` and `transformer_peers.py` use it. All contenders read the same token files, in processes of their own, and report
target tokens per second: padding not counted, the end-of-sentence token counted.
"""

from __future__ import annotations

import gzip
import itertools
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import harness

from regard.cores import processor

VOCABULARY = 8000
BATCH_TOKENS = 4096
SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")
DATA = "Multi30k en-de, one shared byte-level BPE vocabulary of 8,000, the same token files for all"


@dataclass(frozen=True)
class Setting:
    """What a contender needs to run: where the data lie, its Python, which of its variants, how many threads, and the size of the model."""

    work: Path
    python: str
    kind: str
    threads: int
    size: str = "small"

    @property
    def data(self) -> Path:
        return self.work / "data"


@dataclass(frozen=True)
class Amount:
    """How much a training run does: `warmup` updates that are not counted, then `updates` that are."""

    warmup: int
    updates: int
    batch_tokens: int = BATCH_TOKENS
    seed: int = 1

    @property
    def total(self) -> int:
        return self.warmup + self.updates


# Data ------------------------------------------------------------------------------------------------------------------


def read_text(path: Path) -> list[str]:
    """Return the lines of a gzipped text file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        return [" ".join(line.split()) for line in stream]


def prepare_data(corpus: Path, data: Path) -> None:
    """Write the token files that all contenders read.

    One byte-level BPE vocabulary over both sides of the training set; a sentence becomes a line of token numbers between
    blanks, so that no toolkit's own idea of a word or a line can change it, and all see them as whole words.
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


def ensure_data(corpus: Path | None, data: Path) -> None:
    """Write the token files unless they lie there from an earlier call."""
    if (data / "tokenizer.json").exists():
        return
    if corpus is None:
        raise SystemExit("--multi30k is needed to prepare the data")
    prepare_data(corpus, data)


def updates_of(words: list[str], warmup: int) -> dict[str, int]:
    """Read the counted updates of a window of each contender: `regard=21 eole=15`, or with commas between."""
    pairs = (word.partition("=") for word in ",".join(words).split(",") if word)
    updates = {name: int(number) for name, _, number in pairs}
    if any(number % warmup for number in updates.values()):
        raise SystemExit("--updates must be multiples of --warmup, for the logs are read in steps of it")
    return updates


# Processes -------------------------------------------------------------------------------------------------------------


def run(command: list[str], threads: int, log: Path, **streams: Any) -> None:
    """Run `command` with `threads` threads, its messages in `log`; a failure ends the benchmark with the log's tail."""
    log.parent.mkdir(parents=True, exist_ok=True)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads)), "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""}
    with log.open("wb") as messages:
        streams = {"stdin": subprocess.DEVNULL, "stdout": messages, **streams}
        done = subprocess.run(command, env=environment, stderr=messages, check=False, **streams)
    if done.returncode:
        tail = "\n".join(log.read_text("utf-8", "replace").splitlines()[-15:])
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}; the end of {log}:\n{tail}")


def last_line(log: Path) -> dict[str, Any]:
    """Return the last line of JSON in a log."""
    lines = [line for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{log}: holds no line of JSON")
    return json.loads(lines[-1])


def write_config(path: Path, tree: dict[str, Any]) -> Path:
    """Write a configuration as JSON, which every YAML reader reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
    return path


def window(tokens: float, seconds: float, updates: int) -> dict[str, Any]:
    """Return one measured window."""
    return {"tokens_per_second": round(tokens / seconds, 1), "tokens": round(tokens), "seconds": round(seconds, 3), "updates": updates}


def window_of_lines(lines: list[str], pattern: str, updates: int) -> dict[str, Any]:
    """Return the window that log lines tell of, each with its time (`2025-01-31 12:00:00,250`) and the rate since the line before.

    Rate times time gives back each line's tokens, so that the lines are weighted right. The first line, over the warm-up
    and the start of the data loader, only gives the beginning.
    """
    times, rates = [], []
    for line in lines:
        moment, rate = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})", line), re.search(pattern, line)
        if moment is None or rate is None:
            raise SystemExit(f"no time or rate in the log line {line!r}")
        times.append(datetime.strptime(moment[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(moment[2]) / 1000)
        rates.append(float(rate[1]))
    spans = [later - earlier for earlier, later in itertools.pairwise(times)]
    return window(sum(rate * span for rate, span in zip(rates[1:], spans, strict=True)), sum(spans), updates)


# Regard and eole, which both comparisons train -------------------------------------------------------------------------


def regard_tree(setting: Setting, amount: Amount, *, validated: bool = False) -> dict[str, Any]:
    """Return what Regard's configurations share; evaluation and checkpoints lie beyond the last update.

    A run that is not to be validated has two pairs for it: at its end Regard measures its translations of the validation set, and
    chooses the attention for word links by them, which takes longer than a window.
    """
    held = "dev" if validated else "few"
    for side in ("en", "de") if not validated else ():
        lines = (setting.data / f"dev.{side}").read_text("utf-8").splitlines(keepends=True)
        (setting.data / f"few.{side}").write_text("".join(lines[:2]), encoding="utf-8")
    return {
        "data": {"valid_source": str(setting.data / f"{held}.en"), "valid_target": str(setting.data / f"{held}.de"), "max_length": 1000},
        "vocabulary": {"kind": "word", "size": VOCABULARY, "shared": True},
        "training": {
            "seed": amount.seed,
            "epochs": 1000,
            "max_updates": amount.total,
            "batch_tokens": amount.batch_tokens,
            "optimizer": "adam",
            "evaluate_every": 10**6,
            "log_every": amount.warmup,
        },
    }


def regard_run(setting: Setting, folder: Path, tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Train with Regard from the beginning; return the events of its `log.jsonl`."""
    config = write_config(setting.work / "configs" / f"{folder.name}.regard.yaml", tree)
    shutil.rmtree(folder, ignore_errors=True)
    log = setting.work / "logs" / f"{folder.name}.regard.log"
    files = ["--source", str(setting.data / "train.en"), "--target", str(setting.data / "train.de"), "--out", str(folder)]
    run([setting.python, "-m", "regard", "train", "translation", *files, "--config", str(config)], setting.threads, log)
    return [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]


def window_of_events(events: list[dict[str, Any]], updates: int) -> dict[str, Any]:
    """Return the window of Regard's `train` events, each of which holds the rate since the one before and the run's seconds so far."""
    pairs = list(itertools.pairwise(event for event in events if event["event"] == "train"))
    if not pairs:
        raise SystemExit("no training event after the first updates")
    spans = [(after["seconds"] - before["seconds"], after["tokens_per_second"]) for before, after in pairs]
    return window(sum(span * rate for span, rate in spans), sum(span for span, _ in spans), updates)


def regard_translate(setting: Setting, folder: Path, files: tuple[Path, Path], options: list[str]) -> float:
    """Translate a file with the run in `folder`; return the seconds of the timing line, start-up left out."""
    log = setting.work / "logs" / f"decode-{folder.name}.regard.log"
    command = [setting.python, "-m", "regard", "translate", str(folder), *options, "--timing"]
    with files[0].open("rb") as source, files[1].open("wb") as target:
        run(command, setting.threads, log, stdin=source, stdout=target)
    return float(last_line(log)["seconds"])


def eole_tree(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Return what eole's configurations share: one bucket is one epoch, no validation set, no worker processes."""
    vocabulary = str(setting.data / "vocabulary.eole")
    size = len((setting.data / "vocabulary.eole").read_text("utf-8").splitlines()) + len(SPECIALS)
    return {
        "seed": amount.seed,
        "src_vocab": vocabulary,
        "tgt_vocab": vocabulary,
        "share_vocab": True,
        "src_vocab_size": size,
        "tgt_vocab_size": size,
        "vocab_size_multiple": 1,
        "overwrite": True,
        "report_every": amount.warmup,
        "data": {"corpus": {"path_src": str(setting.data / "train.en"), "path_tgt": str(setting.data / "train.de"), "transforms": []}},
        "training": {
            "model_path": str(folder),
            "world_size": 1,
            "gpu_ranks": [],
            "num_workers": 0,
            "bucket_size": 29000,
            "batch_type": "tokens",
            "batch_size": amount.batch_tokens,
            "accum_count": [1],
            "normalization": "tokens",
            "optim": "adam",
            "attention_dropout": [0.0],
            "compute_dtype": "fp32",
            "train_steps": amount.total,
            "valid_steps": 10**6,
            "save_checkpoint_steps": 10**6,
        },
    }


def eole_run(setting: Setting, folder: Path, tree: dict[str, Any], program: tuple[str, ...] = ("-m", "eole.bin.main")) -> list[str]:
    """Train with eole; return the lines of its log."""
    config = write_config(setting.work / "configs" / f"{folder.name}.eole.yaml", tree)
    log = setting.work / "logs" / f"{folder.name}.eole.log"
    run([setting.python, *program, "train", "-config", str(config)], setting.threads, log)
    return log.read_text("utf-8").splitlines()


def eole_window(lines: list[str], updates: int) -> dict[str, Any]:
    """Return the window read from the second of the two `tok/s` figures of eole's lines, the target's."""
    return window_of_lines([line for line in lines if "tok/s" in line], r"/ *(\d+) tok/s", updates)


# Results ---------------------------------------------------------------------------------------------------------------


def describe(script: str, packages: Mapping[str, str]) -> dict[str, Any]:
    """Return the machine, the versions of packages (name: its Python) and the command, without any path of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = {}
    for name, python in packages.items():
        code = f"import importlib.metadata as m; print(m.version('torch')); print(m.version('{name}'))"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
        torch, *own = done.stdout.split() or ["unknown"]
        versions[name] = {"version": own[0] if own else "source tree", "torch": torch}
    words = [f"{Path(word).name.upper()}" if word.startswith("/") else word for word in sys.argv[1:]]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(["python", f"benchmarks/{script}", *words]),
        "machine": {"cpu": processor(), "cores": os.cpu_count(), "memory_gib": round(memory, 1), "system": platform.platform(terse=True)},
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": versions,
    }


def spread(values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Return median and range of every contender's windows."""
    return {
        "median": {name: round(statistics.median(each), 1) for name, each in values.items()},
        "range": {name: [round(min(each), 1), round(max(each), 1)] for name, each in values.items()},
    }


def ratio(ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Return our rate over a peer's, round by round, with the median and the ends."""
    pairs = [round(mine / other, 3) for mine, other in zip(ours, theirs, strict=True)]
    return {"pairs": pairs, **harness.ratio(ours, theirs, 3)._asdict()}


def write_result(path: Path, result: dict[str, Any], table: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write the result file with its table; after every part, so that an interrupted benchmark keeps what it has."""
    result |= table(result)
    harness.write(path, **result)
