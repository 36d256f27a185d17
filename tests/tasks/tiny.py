"""Runs with untrained weights, held in memory or written as `regard train` would: made in milliseconds, and different for each line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from regard.config import TranslationConfig, validate
from regard.data import Vocabulary
from regard.models import build
from regard.tasks import Translator, train_translation
from regard.tasks.translation_run import TranslationRun, Vocabularies

TEXTS = ["ein Hund bellt", "der Hund sieht ein Haus", "ein grünes Haus", "Häuser sehen Hunde", "bellt der Hund ?"]
KINDS = ("bpe", "unigram", "word", "character")
MODEL: dict[str, Any] = {"embed_dim": 7, "encoder_dim": 5, "decoder_dim": 11, "readout_dim": 7, "attention": {"attention_dim": 3}}
RECURRENT: dict[str, Any] = {**MODEL, "encoder_dim": 6, "decoder_dim": 12, "decoder_layers": 2}
ATTENTIVE: dict[str, Any] = {"embed_dim": 12, "ff_dim": 13, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 2}
# Every kind of model, small: what holds for one holds for all.
FAMILIES: dict[str, dict[str, Any]] = {
    "gru": MODEL,
    "no attention": {**MODEL, "attention": None},
    "luong": {**RECURRENT, "attention": {"score": "general", "query_state": "current", "input_feeding": True, "window": "local_p"}},
    "lstm area": {
        **RECURRENT,
        "cell": "lstm",
        "attention": {"score": "scaled_dot", "num_heads": 2, "query_state": "current", "area": {"max_area": 2}},
    },
    "transformer": {**ATTENTIVE, "type": "transformer", "norm": "pre"},
    "area": {**ATTENTIVE, "type": "transformer", "area": {"max_area": 3}, "norm": "pre"},
    "area features": {**ATTENTIVE, "type": "transformer", "area": {"max_area": 3, "key_mode": "features"}},
    "student": {**ATTENTIVE, "type": "transformer", "decoder": "recurrent", "recurrent": {"dim": 11, "attention": {"attention_dim": 3}}},
    "crossed": {**ATTENTIVE, "type": "crossed", "swap_probability": 0.5},
}
_TRANSFORMER = {**ATTENTIVE, "type": "transformer"}
_LATER = {"attention_dim": 3, "query_state": "current"}
_MODES = ("max", "sample", "concat", "max_concat", "sum", "sample_concat", "sample_sum")
# What those have not: every key mode, score, window, cell and activation.
FURTHER: dict[str, dict[str, Any]] = {
    **{f"key {mode}": {**_TRANSFORMER, "area": {"max_area": 3, "key_mode": mode}} for mode in _MODES},
    "value max": {**_TRANSFORMER, "area": {"max_area": 2, "value_mode": "max"}},
    "value mean": {**_TRANSFORMER, "area": {"max_area": 3, "value_mode": "mean", "temperature": 2.0}},
    "areas of one layer": {**_TRANSFORMER, "area": {"max_area": 3, "layers": 1}},
    "gelu": {**_TRANSFORMER, "activation": "gelu", "positions": "fairseq", "output_bias": True},
    "swish": {**_TRANSFORMER, "activation": "swish", "tie_embeddings": False},
    **{f"score {score}": {**RECURRENT, "attention": {**_LATER, "score": score}} for score in ("additive", "concat", "cosine", "dot")},
    "local m": {**RECURRENT, "attention": {**_LATER, "score": "scaled_dot", "window": "local_m", "radius": 2}},
    "location": {**RECURRENT, "attention": {**_LATER, "score": "location", "max_source_length": 5}},
    "window of areas": {
        **{**RECURRENT, "cell": "tanh", "readout": "tanh"},
        "attention": {"attention_dim": 3, "window": "local_p", "radius": 2, "area": {"max_area": 3, "key_mode": "features"}},
    },
    "one direction": {**RECURRENT, "bidirectional": False, "encoder_layers": 2, "attention": None},
    "reversed": {**RECURRENT, "bidirectional": False, "encoder_layers": 2, "reverse_source": True},
}
# From random weights the same few tokens come again and again; larger ones differ by line.
SPREAD = 4.0


def configuration(*, kind: str = "character", **parts: Any) -> TranslationConfig:
    """Return small settings; each keyword is a part of the configuration, merged into them, but for a model that says its `type`."""
    tree: dict[str, Any] = {
        "vocabulary": {"kind": kind, "size": 300},
        "model": {} if "type" in parts.get("model", {}) else MODEL,
        "data": {"max_length": 23},
        "decoding": {"max_length": 13, "beam_size": 3, "batch_size": 5},
    }
    return validate({**tree, **{name: {**tree.get(name, {}), **values} for name, values in parts.items()}}, "test")


def translator(kind: str = "character", **parts: Any) -> Translator:
    """Return a translator with random weights."""
    config = configuration(kind=kind, **parts)
    vocabulary = Vocabulary.train(TEXTS, kind=kind, size=config.vocabulary.size)
    torch.manual_seed(3)
    model = build(config.model, source_size=len(vocabulary), target_size=len(vocabulary)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SPREAD)
    return Translator(TranslationRun(Path("in memory"), config, Vocabularies(vocabulary, vocabulary), model, Path("none")))


def write_pairs(folder: Path, *, repeats: int = 4) -> dict[str, str]:
    """Write texts and their words in reverse as parallel files; returns the `data` part of a configuration."""
    files = {"source": TEXTS * repeats, "target": [" ".join(text.split()[::-1]) for text in TEXTS] * repeats}
    for name, lines in files.items():
        (folder / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {name: str(folder / name) for name in files}


def trained(folder: Path, *, kind: str = "character", **parts: Any) -> Path:
    """Train for two updates in `folder`/run, on files beside it, and return the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    training = {"max_updates": 2, "batch_tokens": 300, **parts.pop("training", {})}
    data = {"max_length": 37, **write_pairs(folder), **parts.pop("data", {})}
    config = configuration(kind=kind, data=data, training=training, **parts)
    train_translation(config, folder / "run")
    return folder / "run"
