"""What is no tensor of states is refused by every module, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from regard import attention
from regard.attention import (
    Areas,
    Attention,
    CrossedAttention,
    DotScore,
    KeyValueAttention,
    MultiHeadAttention,
    NGramReadout,
    NonLocal,
    StructuredAttention,
)
from regard.errors import ShapeError

X = torch.ones(2, 3, 6)
MODULES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "Attention": (lambda: Attention(DotScore()), 3),
    "Attention, areas": (lambda: Attention(DotScore(), areas=Areas(2)), 3),
    "CrossedAttention": (lambda: CrossedAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2)), 2),
    "KeyValueAttention": (lambda: KeyValueAttention(6, 2), 1),
    "MultiHeadAttention": (lambda: MultiHeadAttention(6, 2), 3),
    "MultiHeadAttention, areas": (lambda: MultiHeadAttention(6, 2, areas=Areas(2)), 3),
    "NGramReadout": (lambda: NGramReadout(6, 2), 1),
    "NonLocal": (lambda: NonLocal(6), 1),
    "StructuredAttention": (lambda: StructuredAttention(6, 4, 2), 1),
}
WRONG = {"a list": X.tolist(), "a number": 3, "None": None, "integers": X.long(), "a batch less": X[0], "an axis more": X[None]}


def test_every_mechanism_is_tried() -> None:
    mechanisms = {name for name in vars(attention) if inspect.isclass(found := getattr(attention, name)) and issubclass(found, nn.Module)}
    parts = {name for name in mechanisms if name.endswith(("Score", "Window"))} | {"Areas", "HardChoice", "ScoreFunctionEstimator"}
    assert {name.split(",")[0] for name in MODULES} == mechanisms - parts


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", MODULES)
def test_what_is_no_tensor_of_states_is_named(name: str, wrong: str) -> None:
    make, count = MODULES[name]
    module = make()
    for place in range(count):
        inputs: list[Any] = [X] * count
        inputs[place] = WRONG[wrong]
        with pytest.raises(ShapeError, match=rf"^{name.split(',')[0]}: \w+ must (be|hold) .*found "):
            module(*inputs)
    module(*[X] * count)


@pytest.mark.parametrize("mask", [[[True] * 3] * 2, 3, torch.ones(2, 1, 3)], ids=["a list", "a number", "numbers"])
@pytest.mark.parametrize("name", MODULES)
def test_what_is_no_boolean_mask_is_named(name: str, mask: Any) -> None:
    make, count = MODULES[name]
    module = make()
    names = [key for key in inspect.signature(module.forward).parameters if key.endswith("mask")]
    assert names
    for key in names:
        with pytest.raises(ShapeError, match=r"mask must be (a )?boolean"):
            module(*[X] * count, **{key: mask})
