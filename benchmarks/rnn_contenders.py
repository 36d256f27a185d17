"""The contenders of `rnn_peers.py`: for each toolkit its configuration, its command, and how its own log is read."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from peers import (
    Amount,
    Setting,
    eole_run,
    eole_tree,
    eole_window,
    regard_run,
    regard_translate,
    regard_tree,
    run,
    window_of_events,
    window_of_lines,
    write_config,
)

EMBED, ENCODER, DECODER, DROPOUT = 256, 256, 512, 0.2
LEARNING_RATE, SMOOTHING, CLIP = 1e-3, 0.1, 1.0
BEAM, DECODING_BATCH, LENGTH_PENALTY, MAX_LENGTH = 5, 64, 1.0, 30
EXPORT = Path(__file__).with_name("rnn_export.py")

# The two attention kinds under each toolkit's own name. In all three the query is the decoder's new state.
KINDS = {
    "additive": {"regard": "additive", "joeynmt": "bahdanau", "eole": "mlp"},
    "general": {"regard": "general", "joeynmt": "luong", "eole": "general"},
}


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


def eole_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with eole; return the window."""
    recurrent = {"rnn_type": "GRU", "layers": 1, "hidden_size": DECODER}
    tree = eole_tree(setting, folder, amount)
    tree["model"] = {
        "architecture": "custom",
        "input_feed": 1,
        "share_embeddings": False,
        "share_decoder_embeddings": False,
        "embeddings": {"src_word_vec_size": EMBED, "tgt_word_vec_size": EMBED, "position_encoding_type": None},
        "encoder": {"encoder_type": "brnn", **recurrent},
        "decoder": {"decoder_type": "rnn", "global_attention": KINDS[setting.kind]["eole"], **recurrent},
    }
    tree["training"] |= {
        "learning_rate": LEARNING_RATE,
        "decay_method": "none",
        "max_grad_norm": CLIP,
        "label_smoothing": SMOOTHING,
        "dropout": [DROPOUT],
    }
    return eole_window(eole_run(setting, folder, tree), amount.updates)


# Regard ----------------------------------------------------------------------------------------------------------------


def regard_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with Regard; return the window."""
    score = {"score": KINDS[setting.kind]["regard"], "attention_dim": DECODER, "query_state": "current", "input_feeding": True}
    tree = regard_tree(setting, amount)
    tree["model"] = {"type": "rnn", "cell": "gru", "embed_dim": EMBED, "encoder_dim": ENCODER, "decoder_dim": DECODER}
    tree["model"] |= {"attention": score, "readout": "tanh", "readout_dim": DECODER, "dropout": DROPOUT}
    tree["training"] |= {"learning_rate": LEARNING_RATE, "label_smoothing": SMOOTHING, "clip_norm": CLIP}
    tree["decoding"] = {"beam_size": BEAM, "batch_size": DECODING_BATCH, "length_penalty": LENGTH_PENALTY, "max_length": MAX_LENGTH}
    return window_of_events(regard_run(setting, folder, tree), amount.updates)


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
    """Decode the test set with the run in `folder`, as its configuration says; return the seconds."""
    return regard_translate(setting, folder, (setting.data / "test.en", output), ["--beam-size", str(BEAM), "--precision", precision])
