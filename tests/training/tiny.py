"""A sequence model small enough to be trained hundreds of times, with all that makes resuming hard: dropout, recurrence, uneven epochs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from regard.config import TrainingConfig
from regard.data.batching import split_batch
from regard.ops import SequenceLoss
from regard.training import StopSignal, TrainingJob, TrainResult, train

VOCABULARY, DIMENSION, EXAMPLES = 13, 7, 37
BATCHES = 7  # odd, so that two processes or accumulated batches leave one over at the end of an epoch
CONFIG = TrainingConfig(
    seed=3,
    epochs=3,
    learning_rate=0.02,
    schedule="cosine",
    warmup_updates=2,
    weight_decay=0.01,
    log_every=2,
    save_every=2,
    evaluate_every=3,
)


class Planned(NamedTuple):
    indices: tuple[int, ...]
    tokens: int


class Killed(BaseException):
    """Stands for a process that ends here: nothing in the training code may catch it."""


class TinyModel(nn.Module):
    def __init__(self, dimension: int = DIMENSION, dropout: float = 0.3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dimension)
        self.recurrence = nn.Linear(2 * dimension, dimension)
        self.norm = nn.LayerNorm(dimension)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dimension, VOCABULARY)

    def forward(self, tokens: Tensor) -> SequenceLoss:
        state = torch.zeros(tokens.shape[0], self.norm.normalized_shape[0], device=tokens.device)
        states = []
        for inputs in self.dropout(self.embedding(tokens[:, :-1])).unbind(1):
            state = torch.tanh(self.recurrence(torch.cat([inputs, state], -1)))
            states.append(state)
        logits = self.output(self.dropout(self.norm(torch.stack(states, 1)))).float().flatten(0, 1)
        goal = tokens[:, 1:].flatten()
        nll = nn.functional.cross_entropy(logits, goal, reduction="sum")
        correct = (logits.argmax(-1) == goal).sum()
        return SequenceLoss(nll, nll.detach(), torch.tensor(goal.numel(), device=tokens.device), correct)


def model(**sizes: float) -> TinyModel:
    torch.manual_seed(11)
    return TinyModel(**sizes)


def sequences() -> list[list[int]]:
    draw = random.Random(5)
    return [[(start + draw.choice([2, 3]) * i) % VOCABULARY for i in range(6)] for start in range(EXAMPLES)]


def plan(epoch: int) -> list[Planned]:
    draw = random.Random(f"plan {epoch}")
    order = draw.sample(range(EXAMPLES), EXAMPLES)
    cuts = [0, *sorted(draw.sample(range(1, EXAMPLES), BATCHES - 1)), EXAMPLES]
    return [Planned(tuple(order[a:b]), 5 * (b - a)) for a, b in itertools.pairwise(cuts)]


def job(on_event: Callable[[str], None] | None = None) -> TrainingJob:
    data, stop = torch.tensor(sequences()), StopSignal()

    def evaluate(model: nn.Module) -> dict[str, float]:
        total = 0.0
        for batch in data.split(17):
            stop.poll()
            torch.rand(3)  # an evaluation may draw numbers
            total += model(batch.to(next(model.parameters()).device)).nll.item()
        return {"loss": total / (5 * EXAMPLES)}

    extra = {} if on_event is None else {"on_event": on_event}
    return TrainingJob(
        plan=plan,
        collate=lambda planned: data[list(planned.indices)],
        loss=lambda model, batch: model(batch),
        evaluate=evaluate,
        stop=stop,
        split=split_batch,
        **extra,
    )


def config(**changes: object) -> TrainingConfig:
    return TrainingConfig.model_validate({**CONFIG.model_dump(), **changes})


def run(folder: Path, at: str | None = None, act: Callable[[], None] | None = None, **changes: object) -> TrainResult:
    """Train the tiny model in a folder; when event `at` comes, call `act`, which kills by default."""

    def on_event(name: str) -> None:
        if name == at:
            if act is None:
                raise Killed
            act()

    return train(model(), job(on_event), config=config(**changes), folder=folder)


@contextmanager
def device(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", name)
        yield
