"""Dividing a batch into micro-batches changes neither its loss nor its gradient, whatever the model; where it would, it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from regard.config import TrainingConfig
from regard.errors import ConfigError
from regard.tasks import train as train_module
from regard.tasks.translation_training import train_translation
from regard.training import TrainingJob
from regard.training.micro_batch import micro_batches_of
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

STILL = {"dropout": 0.0}
WORDS = {**STILL, "embed_dropout": 0.0}


class Job(NamedTuple):
    """What `train` was called with."""

    model: nn.Module
    job: TrainingJob


class Captured(BaseException):
    """Ends a training before its first update."""


def translation(folder: Path, model: dict[str, Any]) -> Any:
    files = tiny.write_pairs(folder)
    config = tiny.configuration(model={**model, **STILL}, data={"max_length": 37, **files}, training={"batch_tokens": 300})
    return train_translation(config, folder / "run")


def sentences(folder: Path, task: str, model: dict[str, Any]) -> Any:
    encoder = {**model.get("encoder", tiny_sentences.RECURRENT), **STILL}
    return tiny_sentences.train(
        tiny_sentences.configuration(folder, task=task, model={**model, **WORDS, "encoder": encoder}), folder / "run"
    )


def captions(folder: Path, model: dict[str, Any]) -> Any:
    return tiny_captions.trained(folder, {**model, **STILL})


CASES: dict[str, Callable[[Path], Any]] = {
    **{
        f"translation, {name}": lambda folder, model=tiny.FAMILIES[name]: translation(folder, model)
        for name in ("gru", "luong", "lstm area", "transformer", "area features", "student")
    },
    "translation, coverage": lambda folder: translation(
        folder, {**tiny.MODEL, "attention": {"attention_dim": 3, "coverage": True, "coverage_loss": 1.0}}
    ),
    "translation, copying": lambda folder: translation(folder, {**tiny.MODEL, "copy_attention": True}),
    **{
        f"classification, {name}": lambda folder, model=model: sentences(folder, "classification", model)
        for name, model in tiny_sentences.CLASSIFIERS.items()
    },
    "classification, sum of the penalty": lambda folder: sentences(folder, "classification", {"penalty": 0.3, "penalty_reduction": "sum"}),
    "classification, rare labels": lambda folder: sentences(folder, "classification", {"class_weights": "balanced"}),
    **{
        f"entailment, {name}": lambda folder, model=model: sentences(folder, "entailment", model)
        for name, model in tiny_sentences.ENTAILERS.items()
    },
    **{
        f"captioning, {name}": lambda folder, model=tiny_captions.FAMILIES[name]: captions(folder, model)
        for name in ("soft", "soft areas", "transformer areas")
    },
    "captioning, mean penalty": lambda folder: captions(folder, {**tiny_captions.SHOW, "doubly_stochastic": 0.5, "penalty": "mean"}),
    "language, lines": lambda folder: tiny_language.run(folder, model=STILL, data={"context": "separate"}),
}


@pytest.fixture
def capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], Any]], Job]:
    found: list[Job] = []

    def train(model: nn.Module, job: TrainingJob, **_: Any) -> None:
        found.append(Job(model, job))
        raise Captured

    def captured(start: Callable[[Path], Any]) -> Job:
        with pytest.raises(Captured):
            start(tmp_path)
        return found.pop()

    monkeypatch.setattr(train_module, "train", train)
    return captured


@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_batch_add_up(case: str, capture: Callable[[Callable[[Path], Any]], Job]) -> None:
    model, job = capture(CASES[case])
    model.double().train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # its means are those of micro-batches, as documented
            module.eval()
    assert job.split is not None
    planned = max(job.plan(0), key=lambda batch: len(batch.indices))
    sums = []
    for count in (1, 2, 3):
        model.zero_grad()
        parts = [planned] if count == 1 else job.split(planned, count)
        assert len(parts) == count
        losses = []
        for part in parts:
            batch = job.collate(part)
            losses.append(job.loss(model, type(batch)(*(_double(field) for field in batch))).loss)
            losses[-1].backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
        sums.append((torch.stack(losses).sum(), gradient))
    for loss, gradient in sums[1:]:
        torch.testing.assert_close(loss, sums[0][0])
        torch.testing.assert_close(gradient, sums[0][1])


@pytest.mark.parametrize("settings", [{"scaling": "code"}, {"half_soft_per": "batch"}], ids=str)
def test_hard_attention_of_whole_batches_is_not_divided(settings: dict[str, Any], capture: Any) -> None:
    _, job = capture(lambda folder: captions(folder, {**tiny_captions.SHOW, "attention": "hard", "hard": settings}))
    with pytest.raises(ConfigError, match=r"training.micro_batches: 2, but the batches of this job cannot be divided"):
        micro_batches_of(job, TrainingConfig(micro_batches=2))


def _double(field: Any) -> Any:
    return field.double() if isinstance(field, torch.Tensor) and field.is_floating_point() else field
