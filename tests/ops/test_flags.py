"""Text for a flag, as from a file of settings, would count as true: every public operation, module and function refuses it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import attention, explanations, metrics, observe, ops, tasks, viewer
from regard.attention import MultiHeadAttention
from regard.errors import ConfigError
from regard.integrations import torch as regard_torch
from regard.metrics.seeds import compare_seeds


def functions() -> Iterator[Callable[..., Any]]:
    yield compare_seeds
    for package in (regard, ops, attention, regard_torch, metrics, observe, viewer, explanations, tasks):
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isfunction(found):
                yield found
            elif inspect.isclass(found):  # constructors have checks of their own
                yield from (each for method, each in vars(found).items() if inspect.isfunction(each) and not method.startswith("_"))


CASES = {
    f"{function.__qualname__}-{name}": (function, name)
    for function in functions()
    for name, parameter in inspect.signature(function).parameters.items()
    if str(parameter.annotation).startswith(("bool", "<class 'bool'>", "NeedWeights"))
}


@pytest.mark.parametrize(("function", "flag"), CASES.values(), ids=CASES)
def test_text_is_no_flag(function: Callable[..., Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} may be True(,| or) False.*, found 'false'"):
        function(**{flag: "false"})


def test_a_flag_given_by_place_is_checked_too() -> None:
    x = torch.ones(1, 1, 2, 4)
    with pytest.raises(ConfigError, match=r"attention: enable_gqa may be True or False, found 'no'"):
        ops.attention(x, x, x, None, None, None, "no")  # type: ignore[arg-type]


class Word(StrEnum):
    no = "false"


@pytest.mark.parametrize("wrong", [np.str_("false"), b"false", Word.no, None, [], 2, 1.0, torch.ones(2, dtype=torch.bool)])
def test_what_is_no_truth_is_no_flag(wrong: Any) -> None:
    x = torch.ones(1, 2, 4)
    for call in (MultiHeadAttention(4, 2), attention.Attention(attention.DotScore())):
        with pytest.raises(ConfigError, match="causal may be True or False, found"):
            call(x, x, x, causal=wrong)
    with pytest.raises(ConfigError, match="area_attention: causal may be True or False, found"):
        ops.area_attention(x[None], x[None], x[None], max_area=2, causal=wrong)


def test_every_kind_of_truth_is_a_flag() -> None:
    module, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    for causal in (1, torch.tensor(True), np.bool_(True)):
        assert torch.equal(module(x, x, x, causal=causal).context, module(x, x, x, causal=True).context)
    assert torch.equal(module(x, x, x, causal=np.bool_(False)).context, module(x, x, x).context)
