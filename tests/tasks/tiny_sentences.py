"""Labelled sentences that one word decides, pairs that one word decides, and runs on them: made and trained in seconds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from regard.config import ClassificationConfig, EntailmentConfig, validate
from regard.data.vocabulary import UNK, Vocabulary
from regard.models.classifier import build_classifier
from regard.tasks.classification_run import SentenceConfig, SentenceRun
from regard.tasks.classification_training import train_classification, train_entailment
from regard.training import TrainResult

FILLERS = ["the", "a", "film", "with", "and", "one", "of", "it", "is", "was", "seen", "that", "plot", "scene", "actor", "story"]
DECIDING = {"good": ("joy", "gem"), "bad": ("bore", "mess"), "odd": ("riddle", "dream")}
ANIMALS, TOOLS = ("dog", "cat", "cow"), ("saw", "axe", "plane")
RECURRENT: dict[str, Any] = {"hidden_size": 7}
# Every kind of reader and pooling, small: what holds for one holds for all.
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "structured": {"penalty": 0.3},
    "max": {"pooling": "max"},
    "mean": {"pooling": "mean", "encoder": {"cell": "gru", "hidden_size": 5, "num_layers": 2, "dropout": 0.2}},
    "last": {"pooling": "last", "mlp_dim": None},
    "transformer": {"encoder": {"type": "transformer", "num_heads": 2, "ff_dim": 13}},
    "post": {"pooling": "max", "encoder": {"type": "transformer", "num_heads": 2, "ff_dim": 13, "norm": "post"}},
}
ENTAILERS: dict[str, dict[str, Any]] = {
    "gated": {"penalty": 0.3, "fusion_dim": 5},
    "features": {"fusion": "features", "pooling": "max"},
    "crossed": {"fusion": "features", "encoder": {"type": "crossed", "num_heads": 2, "ff_dim": 13}},
    "crossed own": {
        "fusion": "features",
        "encoder": {"type": "crossed", "num_heads": 2, "ff_dim": 13, "residual": "own", "shared": False, "norm": "post"},
    },
    "transformer": {"encoder": {"type": "transformer", "num_heads": 2, "ff_dim": 13, "norm": "post"}},
}


def sentence(generator: random.Random, label: str) -> str:
    """Return a sentence of 3 to 11 words, one of which decides."""
    words = [generator.choice(FILLERS) for _ in range(generator.randint(2, 10))]
    words.insert(generator.randrange(len(words) + 1), generator.choice(DECIDING[label]))
    return " ".join(words)


def sentences(count: int, seed: int) -> list[tuple[str, str]]:
    """Return (label, sentence) of `count` examples."""
    generator = random.Random(seed)
    labels = [generator.choice(list(DECIDING)) for _ in range(count)]
    return [(label, sentence(generator, label)) for label in labels]


def pairs(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Return (label, premise, hypothesis): "yes" when both speak of an animal or both of a tool."""
    generator = random.Random(seed)
    found = []
    for _ in range(count):
        kinds = generator.choice((ANIMALS, TOOLS)), generator.choice((ANIMALS, TOOLS))
        texts = [" ".join([*generator.sample(FILLERS, generator.randint(1, 5)), generator.choice(kind)]) for kind in kinds]
        found.append(("yes" if kinds[0] is kinds[1] else "no", *texts))
    return found


def write(path: Path, rows: list[Any]) -> str:
    """Write rows as columns with tabs between them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def configuration(folder: Path, *, task: str = "classification", count: int = 60, **parts: Any) -> SentenceConfig:
    """Return small settings on files written to `folder`; each keyword is a part of the configuration, merged into them."""
    make: Any = sentences if task == "classification" else pairs
    tree: dict[str, Any] = {
        "data": {"train": write(folder / "train.tsv", make(count, 3)), "valid": write(folder / "valid.tsv", make(17, 5)), "max_length": 23},
        "vocabulary": {"size": 300},
        "model": {
            "embed_dim": 6,
            "hops": 3,
            "attention_dim": 5,
            "mlp_dim": 11,
            "dropout": 0.2,
            "embed_dropout": 0.1,
            "encoder": RECURRENT,
        },
        "training": {"batch_tokens": 100, "learning_rate": 0.01, "log_every": 2},
    }
    merged = {name: {**tree.get(name, {}), **parts.get(name, {})} for name in {**tree, **parts}}
    return validate(merged, "test", kind=ClassificationConfig if task == "classification" else EntailmentConfig)


def train(config: SentenceConfig, folder: Path, **more: Any) -> TrainResult:
    """Train without a word."""
    if isinstance(config, EntailmentConfig):
        return train_entailment(config, folder, **more)
    return train_classification(config, folder, **more)


def untrained(folder: Path, *, task: str = "classification", **parts: Any) -> SentenceRun:
    """Return a run with random weights, large enough that its answers differ from example to example."""
    config = configuration(folder, task=task, **parts)
    words = [*FILLERS, *(word for both in DECIDING.values() for word in both), *ANIMALS, *TOOLS]
    vocabulary = Vocabulary.train([" ".join(words)], kind=config.vocabulary.kind, size=300)
    labels = ("bad", "good", "odd") if task == "classification" else ("no", "yes")
    torch.manual_seed(3)
    model = build_classifier(config.model, vocab_size=len(vocabulary), classes=len(labels), unknown=UNK).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    return SentenceRun(Path("in memory"), config, vocabulary, labels, model, Path("none"))
