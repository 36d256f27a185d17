"""Learning rates, and which weights decay."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from regard.config import TrainingConfig
from regard.training import build_optimizer, learning_rate
from regard.training.optimizer import STATE_KEYS
from tests.training import tiny

PEAK = 0.3


def rate(step: int, **changes: Any) -> float:
    return learning_rate(step, TrainingConfig(learning_rate=PEAK, **changes), total=110)


@pytest.mark.parametrize("schedule", ["constant", "inverse_sqrt", "cosine", "linear"])
def test_warm_up_is_linear_and_reaches_the_peak(schedule: str) -> None:
    assert [rate(step, schedule=schedule, warmup_updates=10) for step in (1, 5, 10)] == pytest.approx([PEAK / 10, PEAK / 2, PEAK])


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [PEAK, PEAK, PEAK]),
        ("inverse_sqrt", [PEAK * math.sqrt(10 / 60), PEAK * math.sqrt(10 / 110), PEAK * math.sqrt(10 / 200)]),
        ("cosine", [PEAK * 0.6, PEAK * 0.2, PEAK * 0.2]),
        ("linear", [PEAK * 0.6, PEAK * 0.2, PEAK * 0.2]),
    ],
)
def test_after_warm_up_the_rate_falls_as_the_schedule_says(schedule: str, expected: list[float]) -> None:
    found = [rate(step, schedule=schedule, warmup_updates=10, final_fraction=0.2) for step in (60, 110, 200)]
    assert found == pytest.approx(expected)


def test_cosine_and_linear_differ_off_the_middle() -> None:
    quarter = [rate(35, schedule=schedule, warmup_updates=10) / PEAK for schedule in ("cosine", "linear")]
    assert quarter == pytest.approx([0.5 * (1 + math.cos(math.pi / 4)), 0.75])


def test_without_warm_up_the_first_update_has_the_full_rate() -> None:
    assert rate(1, schedule="inverse_sqrt") == PEAK


KINDS: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"betas": (0.9, 0.999), "fused": True}),
    "adam": (torch.optim.Adam, {"betas": (0.9, 0.999), "fused": True}),
    "sgd": (torch.optim.SGD, {"fused": True}),
    "adadelta": (torch.optim.Adadelta, {"rho": 0.7}),
    "rmsprop": (torch.optim.RMSprop, {"alpha": 0.7}),
    "adagrad": (torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_those_of_torch(kind: Any) -> None:
    config = TrainingConfig(optimizer=kind, weight_decay=0.1, rho=0.7, eps=1e-6)
    own = nn.Linear(3, 2)
    other = copy.deepcopy(own)
    optimizer = build_optimizer(own, config)
    groups = [{"params": [other.weight], "weight_decay": 0.1}, {"params": [other.bias], "weight_decay": 0.0}]
    make, settings = KINDS[kind]
    reference = make(groups, **{"lr": config.learning_rate} | ({} if kind == "sgd" else {"eps": 1e-6}) | settings)
    for _ in range(3):
        for model, steps in ((own, optimizer), (other, reference)):
            steps.zero_grad()
            assert all(parameter.grad is None for parameter in model.parameters())
            (model(torch.tensor([1.0, -2.0, 3.0])) - 1).square().sum().backward()
            steps.step()
    assert torch.equal(own.weight, other.weight)
    assert torch.equal(own.bias, other.bias)


@pytest.mark.parametrize("kind", KINDS)
def test_the_named_state_is_that_of_torch(kind: Any) -> None:
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, TrainingConfig(optimizer=kind))
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    assert set(optimizer.state[model.weight]) == set(STATE_KEYS[kind])


def test_a_rate_is_halved_after_some_updates_and_then_again_and_again() -> None:
    found = [rate(step, schedule="halving", halve_after=8, halve_every=3) for step in (1, 8, 9, 11, 12, 14, 15)]
    assert found == [PEAK, PEAK, PEAK / 2, PEAK / 2, PEAK / 4, PEAK / 4, PEAK / 8]


@pytest.mark.parametrize("changes", [{"schedule": "halving"}, {"schedule": "halving", "halve_after": 3}, {"halve_every": 3}])
def test_halving_needs_both_of_its_settings_and_others_neither(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="halving needs halve_after and halve_every"):
        TrainingConfig(**changes)


LIGHT = """
import sys, torch
from torch import nn
from regard.config import TrainingConfig
from regard.training import build_optimizer
from regard.training.memory_check import check_memory
check_memory(lambda: nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2), nn.LSTM(2, 2)))
for kind in ("adamw", "adam", "sgd", "adadelta", "rmsprop", "adagrad"):
    model = nn.Linear(3, 2)
    optimizer = build_optimizer(model, TrainingConfig(optimizer=kind))
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
sys.exit("torch._dynamo" in sys.modules)
"""


def test_a_training_does_not_import_the_compiler_of_torch() -> None:
    assert subprocess.run([sys.executable, "-c", LIGHT], check=False).returncode == 0


@pytest.mark.parametrize("kind", KINDS)
def test_matrices_and_embeddings_decay_and_vectors_do_not(kind: Any) -> None:
    model = tiny.model()
    optimizer = build_optimizer(model, TrainingConfig(optimizer=kind, weight_decay=0.1))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    named = {name: decay[id(p)] for name, p in model.named_parameters()}
    assert {name for name, value in named.items() if value} == {"embedding.weight", "recurrence.weight", "output.weight"}
    assert set(named.values()) == {0.0, 0.1}


def test_frozen_weights_are_left_out() -> None:
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    optimizer = build_optimizer(model, TrainingConfig())
    assert [len(group["params"]) for group in optimizer.param_groups] == [1]


def test_settings_reach_the_optimizer() -> None:
    group = build_optimizer(nn.Linear(3, 2), TrainingConfig(betas=(0.7, 0.8), eps=1e-5)).param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.7, 0.8), 1e-5)
