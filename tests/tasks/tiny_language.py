"""Runs of the language model with untrained weights, in memory or written as `regard train lm` would."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from regard.config import LanguageConfig, validate
from regard.data import Vocabulary
from regard.models import build_language_model
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.language_training import LanguageRun, train_language
from regard.training import TrainResult

ATTENDING = ("plain", "key_value", "key_value_predict")
ATTENTIONS = ("none", "ngram", *ATTENDING)
TEXTS = ["ein Hund bellt", "der Hund sieht ein Haus", "", "ein grünes Haus", "Häuser sehen Hunde", "bellt der Hund ?"]
# From random weights all tokens are about as likely; larger ones tell lines apart.
SPREAD = 3.0


class Killed(BaseException):
    """Stands for a process that ends here."""


def configuration(*, kind: str = "character", **parts: Any) -> LanguageConfig:
    """Return small settings; each keyword is a part of the configuration, merged into them."""
    tree: dict[str, Any] = {
        "vocabulary": {"kind": kind, "size": 300},
        "model": {"embed_dim": 7, "hidden_size": 12, "window": 3, "num_layers": 2, "dropout": 0.2},
        "training": {"streams": 3, "chunk_length": 5, "learning_rate": 0.02, "log_every": 2},
    }
    names = {**tree, **parts}
    return validate({name: {**tree.get(name, {}), **parts.get(name, {})} for name in names}, "test", kind=LanguageConfig)


def language_model(kind: str = "character", **parts: Any) -> LanguageModel:
    """Return a language model with random weights."""
    config = configuration(kind=kind, **parts)
    vocabulary = Vocabulary.train(TEXTS, kind=kind, size=config.vocabulary.size)
    torch.manual_seed(3)
    model = build_language_model(config.model, vocab_size=len(vocabulary)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SPREAD)
    return LanguageModel(LanguageRun(Path("in memory"), config, vocabulary, model, Path("none")))


def write_text(folder: Path, *, lines: int = 13) -> dict[str, str]:
    """Write training and validation text; returns the `data` part of a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(5)
    for name, count in (("text", lines), ("valid_text", 3)):
        content = "".join(draw.choice(TEXTS) + "\n" for _ in range(count))
        (folder / name).write_text(content, encoding="utf-8")
    return {name: str(folder / name) for name in ("text", "valid_text")}


def run(folder: Path, at: str | None = None, act: Callable[[], None] | None = None, **parts: Any) -> TrainResult:
    """Train in `folder`/run on files beside it; when event `at` comes, call `act`, which kills by default."""

    def on_event(name: str) -> None:
        if name == at:
            if act is None:
                raise Killed
            act()

    files = {name: str(folder / name) for name in ("text", "valid_text")}
    if not (folder / "text").exists():
        write_text(folder)
    config = configuration(**{**parts, "data": {**files, **parts.get("data", {})}})
    return train_language(config, folder / "run", on_event=on_event)
