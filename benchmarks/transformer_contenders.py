"""The contenders of `transformer_peers.py`: for each toolkit its configuration, its command, and how its own log is read."""

from __future__ import annotations

import functools
import json
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from peers import (
    Amount,
    Setting,
    eole_run,
    eole_tree,
    eole_window,
    last_line,
    read_text,
    regard_run,
    regard_translate,
    regard_tree,
    run,
    window,
    window_of_events,
)


class Size(NamedTuple):
    """The sizes of a model: features, those within the feed-forward layers, heads, layers of each side."""

    embed: int
    feed_forward: int
    heads: int
    layers: int


SIZES = {"small": Size(256, 1024, 4, 3), "base": Size(512, 2048, 8, 6)}
DROPOUT = 0.1
LEARNING_RATE, SCHEDULE_WARMUP, SMOOTHING, CLIP = 1e-3, 200, 0.1, 1.0
DECODING_BATCH, MAX_LENGTH = 64, 60
LOOP, EOLE, DECODE = (Path(__file__).with_name(f"{name}.py") for name in ("marian_loop", "transformer_eole", "transformer_decode"))


def model_of(setting: Setting) -> dict[str, Any]:
    """Return Regard's settings of the model."""
    size = SIZES[setting.size]
    return {
        "embed_dim": size.embed,
        "ff_dim": size.feed_forward,
        "num_heads": size.heads,
        "encoder_layers": size.layers,
        "decoder_layers": size.layers,
        "norm": "post",
        "tie_embeddings": True,
        "share_embeddings": True,
        "dropout": DROPOUT,
    }


# Training --------------------------------------------------------------------------------------------------------------


def regard_tree_of(setting: Setting, amount: Amount, *, validated: bool = False) -> dict[str, Any]:
    """Return Regard's configuration."""
    tree = regard_tree(setting, amount, validated=validated) | {"model": {"type": "transformer", **model_of(setting)}}
    tree["training"] |= {"learning_rate": LEARNING_RATE, "schedule": "inverse_sqrt", "warmup_updates": SCHEDULE_WARMUP}
    tree["training"] |= {"label_smoothing": SMOOTHING, "clip_norm": CLIP, "precision": setting.kind}
    return tree


def regard_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with Regard; return the window."""
    return window_of_events(regard_run(setting, folder, regard_tree_of(setting, amount)), amount.updates)


def regard_loss(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with Regard; return the loss of its last `evaluate` event, and the tokens that it is the mean of."""
    tree = regard_tree_of(setting, amount, validated=True)
    tree["training"]["evaluate_every"] = amount.total
    events = regard_run(setting, folder, tree)
    lines = (setting.data / "dev.de").read_text("utf-8").splitlines()
    return {
        "loss": next(event["loss"] for event in reversed(events) if event["event"] == "evaluate"),
        "loss_tokens": sum(len(line.split()) + 1 for line in lines),
    }


def marian_run(setting: Setting, folder: Path, amount: Amount, options: list[str]) -> dict[str, Any]:
    """Run the plain loop; return what it tells."""
    log = setting.work / "logs" / f"{folder.name}.marian.log"
    settings = {
        "updates": amount.updates,
        "warmup": amount.warmup,
        "seed": amount.seed,
        "batch-tokens": amount.batch_tokens,
        "learning-rate": LEARNING_RATE,
        "schedule-warmup": SCHEDULE_WARMUP,
        "label-smoothing": SMOOTHING,
        "clip": CLIP,
        "model": json.dumps(model_of(setting)),
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    precision = ["--bf16"] if setting.kind == "bf16" else []
    run([setting.python, str(LOOP), str(setting.data), *words, *precision, *options], setting.threads, log)
    return last_line(log)


def marian_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train Hugging Face's model; return the window."""
    found = marian_run(setting, folder, amount, [])
    return window(found["tokens"], found["seconds"], amount.updates)


def marian_loss(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train Hugging Face's model; return its loss."""
    found = marian_run(setting, folder, amount, ["--evaluate"])
    return {name: found[name] for name in ("loss", "loss_tokens")}


def eole_tree_of(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Return eole's configuration.

    Its decoder knows pre-norm only, so both sides have it: two LayerNorms more than post-norm. Its `noam` schedule is the others' with the
    rate times sqrt(warm-up * size).
    """
    tree, size = eole_tree(setting, folder, amount), SIZES[setting.size]
    tree["model"] = {
        "architecture": "transformer",
        "layers": size.layers,
        "hidden_size": size.embed,
        "transformer_ff": size.feed_forward,
        "heads": size.heads,
        "add_qkvbias": True,
        "add_ffnbias": True,
        "generator_bias": False,
        "share_embeddings": True,
        "share_decoder_embeddings": True,
        "embeddings": {"word_vec_size": size.embed, "position_encoding": True, "position_encoding_type": "SinusoidalInterleaved"},
    }
    tree["training"] |= {
        "learning_rate": LEARNING_RATE * (SCHEDULE_WARMUP * size.embed) ** 0.5,
        "decay_method": "noam",
        "warmup_steps": SCHEDULE_WARMUP,
        "param_init": 0.0,
        "param_init_method": "xavier_uniform",
        "max_grad_norm": CLIP,
        "label_smoothing": SMOOTHING,
        "dropout": [DROPOUT],
        "log_attention_entropy": False,
    }
    return tree


def eole_train(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with eole; return the window."""
    lines = eole_run(setting, folder, eole_tree_of(setting, folder, amount), (str(EOLE),))
    return eole_window(lines, amount.updates)


def eole_loss(setting: Setting, folder: Path, amount: Amount) -> dict[str, Any]:
    """Train with eole; return its loss."""
    tree = eole_tree_of(setting, folder, amount)
    tree["data"]["valid"] = {"path_src": str(setting.data / "dev.en"), "path_tgt": str(setting.data / "dev.de"), "transforms": []}
    tree["training"] |= {"valid_steps": amount.total, "valid_batch_size": amount.batch_tokens}
    eole_run(setting, folder, tree, (str(EOLE),))
    return last_line(setting.work / "logs" / f"{folder.name}.eole.log")


Train = Callable[[Setting, Path, Amount], dict[str, Any]]
# Name, precision: how a window is measured, and how the validation loss after a number of updates.
TRAINERS: dict[str, tuple[str, Train, Train]] = {
    "regard": ("fp32", regard_train, regard_loss),
    "regard-bf16": ("bf16", regard_train, regard_loss),
    "eole": ("fp32", eole_train, eole_loss),
    "marian": ("fp32", marian_train, marian_loss),
    "marian-bf16": ("bf16", marian_train, marian_loss),
}

# Decoding --------------------------------------------------------------------------------------------------------------


class Decoding:
    """What is decoded: the run, its export for CTranslate2, the sources; and how its outputs are read.

    A run on token files (vocabulary.kind: word) reads token numbers and is turned into text here; any other reads the raw text.
    """

    def __init__(self, setting: Setting, model: Path, corpus: tuple[Path | None, int | None]) -> None:
        from tokenizers import Tokenizer

        from regard.config import TranslationConfig
        from regard.tasks.run_folder import read_config

        self.setting, self.model = setting, model
        self.export = setting.work / "exports" / model.name
        self.outputs = setting.work / "outputs"
        self.outputs.mkdir(parents=True, exist_ok=True)
        self.tokens = (
            Tokenizer.from_file(str(setting.data / "tokenizer.json"))
            if read_config(model, TranslationConfig).vocabulary.kind == "word"
            else None
        )
        folder, limit = corpus
        if self.tokens is not None:
            sources, references = ((setting.data / name).read_text("utf-8").splitlines() for name in ("test.en", "reference.de"))
        elif folder is None:
            raise SystemExit("--multi30k is needed to decode with a model of raw text")
        else:
            sources, references = (read_text(folder / f"test_2016_flickr.{side}.gz") for side in ("en", "de"))
        self.references = self.text(references[:limit])
        self.source = self.outputs / "source.en"
        self.source.write_text("".join(f"{line}\n" for line in sources[:limit]), encoding="utf-8")
        for old in (self.export, *self.export.parent.glob(f"{model.name}-onnx-*")):
            shutil.rmtree(old, ignore_errors=True)

    def text(self, lines: list[str]) -> list[str]:
        """Return lines of a run's output as text."""
        if self.tokens is None:
            return lines
        return [self.tokens.decode([int(word) for word in line.split() if word.isdigit()]).strip() for line in lines]

    def measure(self, name: str, beam_size: int) -> dict[str, Any]:
        """Decode the test set once in a process of its own; return the window, with facts of the output."""
        from regard.metrics import bleu

        output = self.outputs / f"{name}-{beam_size}.de"
        found = DECODERS[name](self, beam_size, output)
        lines = self.text(output.read_text("utf-8").splitlines())
        if len(lines) != len(self.references):
            raise SystemExit(f"{output}: {len(lines)} lines, expected {len(self.references)}")
        found |= {"sentences_per_second": round(len(lines) / found["seconds"], 2), "seconds": round(found["seconds"], 3)}
        score = round(bleu(lines, self.references).value, 2)
        return found | {"bleu": score, "mean_words": round(statistics.mean(len(line.split()) for line in lines), 2)}

    def output(self, name: str, beam_size: int) -> list[str]:
        """Return the lines that a contender wrote."""
        return (self.outputs / f"{name}-{beam_size}.de").read_text("utf-8").splitlines()


def regard_decode(decoding: Decoding, beam_size: int, output: Path, precision: str = "float32") -> dict[str, Any]:
    """Decode with Regard's command; its clock spans reading, tokenization and writing, too, and there is no warm-up."""
    options = {"beam-size": beam_size, "length-penalty": 0, "max-length": MAX_LENGTH, "batch-size": DECODING_BATCH, "precision": precision}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return {"seconds": regard_translate(decoding.setting, decoding.model, (decoding.source, output), words)}


def engine_decode(decoding: Decoding, beam_size: int, output: Path, engine: str = "ctranslate2", **options: Any) -> dict[str, Any]:
    """Decode in a program that warms up before its clock starts, which spans no tokenization but that of Regard."""
    setting = decoding.setting
    log = setting.work / "logs" / f"{output.stem}.decode.log"
    options = {"beam_size": beam_size, "batch_size": DECODING_BATCH, "max_length": MAX_LENGTH, "export": decoding.export} | options
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    run([setting.python, str(DECODE), engine, str(decoding.model), str(decoding.source), str(output), *words], setting.threads, log)
    return last_line(log)


def ctranslate2_decode(decoding: Decoding, beam_size: int, output: Path, workers: int = 1, **options: Any) -> dict[str, Any]:
    """Decode with CTranslate2, all threads in one worker or one thread in each of as many workers; the first call exports."""
    setting = decoding.setting
    if not decoding.export.exists():
        command = [setting.python, "-m", "regard", "export", str(decoding.model), "--format", "ctranslate2", "--out", str(decoding.export)]
        run(command, setting.threads, setting.work / "logs" / "export.log")
    return engine_decode(decoding, beam_size, output, workers=workers, threads=max(1, setting.threads // workers), **options)


def onnx_decode(decoding: Decoding, beam_size: int, output: Path, weights: str = "float32") -> dict[str, Any]:
    """Decode with onnxruntime, one batch per thread; the first call exports."""
    setting = decoding.setting
    export = setting.work / "exports" / f"{decoding.model.name}-onnx-{weights}"
    if not export.exists():
        command = [
            setting.python,
            "-m",
            "regard",
            "export",
            str(decoding.model),
            "--format",
            "onnx",
            "--weights",
            weights,
            "--out",
            str(export),
        ]
        run(command, setting.threads, setting.work / "logs" / f"export-{weights}.log")
    return engine_decode(decoding, beam_size, output, engine="onnx", export=export)


DECODERS: dict[str, Callable[[Decoding, int, Path], dict[str, Any]]] = {
    "regard": regard_decode,
    "regard-bf16": functools.partial(regard_decode, precision="bfloat16"),
    "regard-warm": functools.partial(engine_decode, engine="regard"),
    "regard-int8": functools.partial(regard_decode, precision="int8"),
    "regard-warm-int8": functools.partial(engine_decode, engine="regard", compute_type="int8"),
    "regard-warm-shortlist": functools.partial(engine_decode, engine="regard", shortlist=1),
    "regard-warm-int8-shortlist": functools.partial(engine_decode, engine="regard", compute_type="int8", shortlist=1),
    "regard-warm-bf16": functools.partial(engine_decode, engine="regard", compute_type="bfloat16"),
    "ctranslate2": ctranslate2_decode,
    "ctranslate2-workers": functools.partial(ctranslate2_decode, workers=2),
    "ctranslate2-int8": functools.partial(ctranslate2_decode, compute_type="int8"),
    "ctranslate2-int8-workers": functools.partial(ctranslate2_decode, compute_type="int8", workers=2),
    "ctranslate2-int8-vmap": functools.partial(ctranslate2_decode, compute_type="int8", shortlist=1),
    "ctranslate2-int8-vmap-workers": functools.partial(ctranslate2_decode, compute_type="int8", shortlist=1, workers=2),
    "onnx": onnx_decode,
    "onnx-float16": functools.partial(onnx_decode, weights="float16"),
    "onnx-int8": functools.partial(onnx_decode, weights="int8"),
    "marian": functools.partial(engine_decode, engine="marian"),
}
