"""The contenders of `rnn_peers.py`: for each toolkit its configuration, its command, and how its own log is read.

All read the same token files (see `prepare_data` in `rnn_peers.py`), in processes of their own, and report target
tokens per second: padding not counted, the end-of-sentence token counted.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

EMBED, ENCODER, DECODER, DROPOUT = 256, 256, 512, 0.2
LEARNING_RATE, SMOOTHING, CLIP = 1e-3, 0.1, 1.0
BATCH_TOKENS = 4096
BEAM, DECODING_BATCH, LENGTH_PENALTY, MAX_LENGTH = 5, 64, 1.0, 30
EXPORT = Path(__file__).with_name("rnn_export.py")
SPECIALS = ("<unk>", "<pad>", "<s>", "</s>")

# The two attention kinds under each toolkit's own name. In all three the query is the decoder's new state.
KINDS = {
    "additive": {"regard": "additive", "joeynmt": "bahdanau", "eole": "mlp"},
    "general": {"regard": "general", "joeynmt": "luong", "eole": "general"},
}


@dataclass(frozen=True)
class Setting:
    """What a contender needs to run: where the data lie, its Python, the attention kind, and how many threads."""

    work: Path
    python: str
    kind: str
    threads: int

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
        time, rate = re.search(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3})", line), re.search(pattern, line)
        if time is None or rate is None:
            raise SystemExit(f"no time or rate in the log line {line!r}")
        times.append(datetime.strptime(time[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(time[2]) / 1000)
        rates.append(float(rate[1]))
    spans = [later - earlier for earlier, later in itertools.pairwise(times)]
    return window(sum(rate * span for rate, span in zip(rates[1:], spans, strict=True)), sum(spans), updates)


# JoeyNMT ---------------------------------------------------------------------------------------------------------------


def joeynmt_model(kind: str) -> dict[str, Any]:
    """Return the model part of JoeyNMT's configuration."""
    embeddings = {"embedding_dim": EMBED, "scale": False, "dropout": DROPOUT}
    recurrent = {"type": "recurrent", "rnn_type": "gru", "embeddings": embeddings, "num_layers": 1, "dropout": DROPOUT}
    attention = {"attention": KINDS[kind]["joeynmt"], "input_feeding": True, "init_hidden": "bridge", "hidden_dropout": DROPOUT}
    return {
        "tied_embeddings": False,
        "tied_softmax": False,
        "encoder": {**recurrent, "hidden_size": ENCODER, "bidirectional": True},
        "decoder": {**recurrent, "hidden_size": DECODER, **attention},
    }


def joeynmt_config(setting: Setting, folder: Path, amount: Amount) -> Path:
    """Write JoeyNMT's configuration; validation lies beyond the last update.

    JoeyNMT has no constant schedule that works on a new torch: an exponential one with factor 1 is one.
    """
    side = {"max_length": -1, "level": "word", "voc_file": str(setting.data / "vocabulary.joeynmt")}
    never = (amount.total // amount.warmup + 2) * amount.warmup
    tree = {
        "name": "rnn",
        "joeynmt_version": "2.3.0",
        "model_dir": str(folder),
        "use_cuda": False,
        "num_workers": 0,
        "random_seed": amount.seed,
        "normalization": "tokens",
        "data": {
            "train": str(setting.data / "train"),
            "dev": str(setting.data / "dev"),
            "test": str(setting.data / "test"),
            "dataset_type": "plain",
            "src": {"lang": "en", **side},
            "trg": {"lang": "de", **side},
        },
        "training": {
            "optimizer": "adam",
            "learning_rate": LEARNING_RATE,
            "scheduling": "exponential",
            "decrease_factor": 1.0,
            "learning_rate_min": 0.0,
            "clip_grad_norm": CLIP,
            "label_smoothing": SMOOTHING,
            "loss": "crossentropy",
            "normalization": "tokens",
            "batch_size": amount.batch_tokens,
            "batch_type": "token",
            "epochs": 1000,
            "updates": amount.total,
            "logging_freq": amount.warmup,
            "validation_freq": never,
            "keep_best_ckpts": 1,
            "overwrite": True,
        },
        "testing": {
            "beam_size": BEAM,
            "beam_alpha": LENGTH_PENALTY,
            "batch_size": DECODING_BATCH,
            "batch_type": "sentence",
            "max_output_length": MAX_LENGTH,
            "eval_metrics": [],
        },
        "model": joeynmt_model(setting.kind),
    }
    return write_config(setting.work / "configs" / f"{folder.name}.joeynmt.yaml", tree)


def joeynmt_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with JoeyNMT; return the window read from its `Tokens per Sec` lines, which leave out validation.

    JoeyNMT forgets what it counted since the last line when an epoch ends, so a window may not cross one.
    """
    config = joeynmt_config(setting, folder, amount)
    log = setting.work / "logs" / f"{folder.name}.joeynmt.log"
    run([setting.python, "-m", "joeynmt", "train", str(config), "--skip-test"], setting.threads, log)
    lines = [line for line in log.read_text("utf-8").splitlines() if "Tokens per Sec" in line]
    if any("Epoch   1," not in line for line in lines):
        raise SystemExit(f"{log}: the window crosses an epoch's end, ask for fewer updates")
    return window_of_lines(lines, r"Tokens per Sec: +(\d+)", amount.updates)


def joeynmt_decode(setting: Setting, weights: Path, output: Path) -> float:
    """Decode the test set with the arrays of `rnn_export.py unpack`; return the seconds of JoeyNMT's `Generation took` line.

    The line spans making the batches and the search, nothing of start-up, loading or writing.
    """
    config = joeynmt_config(setting, setting.work / "runs" / weights.stem, Amount(1, 1))
    tree = json.loads(config.read_text("utf-8"))
    tree["data"]["dev"] = None
    tree["testing"]["load_model"] = str(weights)
    for side in ("src", "trg"):
        tree["data"][side]["voc_file"] = str(weights.with_suffix(".txt"))
    write_config(config, tree)
    log = setting.work / "logs" / f"decode-{weights.stem}.joeynmt.log"
    run([setting.python, str(EXPORT), "decode", str(config), str(output)], setting.threads, log)
    shutil.move(f"{output}.test", output)
    return float(re.findall(r"Generation took ([\d.]+)", log.read_text("utf-8"))[-1])


# eole ------------------------------------------------------------------------------------------------------------------


def eole_config(setting: Setting, folder: Path, amount: Amount) -> Path:
    """Write eole's configuration: one bucket is one epoch, no validation set, no worker processes."""
    vocabulary = str(setting.data / "vocabulary.eole")
    size = len((setting.data / "vocabulary.eole").read_text("utf-8").splitlines()) + len(SPECIALS)
    recurrent = {"rnn_type": "GRU", "layers": 1, "hidden_size": DECODER}
    tree = {
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
        "model": {
            "architecture": "custom",
            "input_feed": 1,
            "share_embeddings": False,
            "share_decoder_embeddings": False,
            "embeddings": {"src_word_vec_size": EMBED, "tgt_word_vec_size": EMBED, "position_encoding_type": None},
            "encoder": {"encoder_type": "brnn", **recurrent},
            "decoder": {"decoder_type": "rnn", "global_attention": KINDS[setting.kind]["eole"], **recurrent},
        },
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
            "learning_rate": LEARNING_RATE,
            "decay_method": "none",
            "max_grad_norm": CLIP,
            "label_smoothing": SMOOTHING,
            "dropout": [DROPOUT],
            "attention_dropout": [0.0],
            "compute_dtype": "fp32",
            "train_steps": amount.total,
            "valid_steps": 10**6,
            "save_checkpoint_steps": 10**6,
        },
    }
    return write_config(setting.work / "configs" / f"{folder.name}.eole.yaml", tree)


def eole_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with eole; return the window read from the second of its two `tok/s` figures, the target's."""
    config = eole_config(setting, folder, amount)
    log = setting.work / "logs" / f"{folder.name}.eole.log"
    run([setting.python, "-m", "eole.bin.main", "train", "-config", str(config)], setting.threads, log)
    lines = [line for line in log.read_text("utf-8").splitlines() if "tok/s" in line]
    return window_of_lines(lines, r"/ *(\d+) tok/s", amount.updates)


# Regard ----------------------------------------------------------------------------------------------------------------


def regard_config(setting: Setting, folder: Path, amount: Amount) -> Path:
    """Write Regard's configuration; evaluation and checkpoints lie beyond the last update."""
    score = {"score": KINDS[setting.kind]["regard"], "attention_dim": DECODER, "query_state": "current", "input_feeding": True}
    tree = {
        "data": {"valid_source": str(setting.data / "dev.en"), "valid_target": str(setting.data / "dev.de"), "max_length": 1000},
        "vocabulary": {"kind": "word", "size": 8000, "shared": True},
        "model": {"type": "rnn", "cell": "gru", "embed_dim": EMBED, "encoder_dim": ENCODER, "decoder_dim": DECODER, "attention": score}
        | {"readout": "tanh", "readout_dim": DECODER, "dropout": DROPOUT},
        "training": {
            "seed": amount.seed,
            "epochs": 1000,
            "max_updates": amount.total,
            "batch_tokens": amount.batch_tokens,
            "optimizer": "adam",
            "learning_rate": LEARNING_RATE,
            "label_smoothing": SMOOTHING,
            "clip_norm": CLIP,
            "evaluate_every": 10**6,
            "log_every": amount.warmup,
        },
        "decoding": {"beam": BEAM, "batch_size": DECODING_BATCH, "length_penalty": LENGTH_PENALTY, "max_length": MAX_LENGTH},
    }
    return write_config(setting.work / "configs" / f"{folder.name}.regard.yaml", tree)


def regard_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with Regard; return the window read from the `train` events of its `log.jsonl`.

    An event holds the rate since the event before and the run's seconds so far.
    """
    config = regard_config(setting, folder, amount)
    shutil.rmtree(folder, ignore_errors=True)
    log = setting.work / "logs" / f"{folder.name}.regard.log"
    files = ["--source", str(setting.data / "train.en"), "--target", str(setting.data / "train.de"), "--out", str(folder)]
    run([setting.python, "-m", "regard", "train", "translation", *files, "--config", str(config)], setting.threads, log)
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text("utf-8").splitlines()]
    pairs = list(itertools.pairwise(event for event in events if event["event"] == "train"))
    if not pairs:
        raise SystemExit(f"{folder / 'log.jsonl'}: no training event after update {amount.warmup}")
    spans = [(after["seconds"] - before["seconds"], after["tokens_per_second"]) for before, after in pairs]
    return window(sum(span * rate for span, rate in spans), sum(span for span, _ in spans), amount.updates)


def regard_weights(setting: Setting, folder: Path) -> Path:
    """Write the weights of a Regard run for JoeyNMT and return the file."""
    path = folder.with_suffix(".npz")
    run(
        [setting.python, str(EXPORT), "unpack", str(folder), str(path)],
        setting.threads,
        setting.work / "logs" / f"{folder.name}.unpack.log",
    )
    return path


def regard_decode(setting: Setting, folder: Path, output: Path, precision: str = "float32") -> float:
    """Decode the test set with the run in `folder`, as its configuration says; return the seconds of the timing line, start-up left out."""
    log = setting.work / "logs" / f"decode-{folder.name}.regard.log"
    command = [setting.python, "-m", "regard", "translate", str(folder), "--beam", str(BEAM), "--precision", precision, "--timing"]
    with (setting.data / "test.en").open("rb") as source, output.open("wb") as target:
        run(command, setting.threads, log, stdin=source, stdout=target)
    timings = [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.startswith("{")]
    return float(timings[-1]["seconds"])
