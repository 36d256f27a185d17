"""Text for a flag, as from a file of settings, would count as true: every public operation and module refuses it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard import attention, ops
from regard.attention import MultiHeadAttention
from regard.errors import ConfigError
from regard.integrations import torch as regard_torch


def functions() -> Iterator[Callable[..., Any]]:
    for package in (regard, ops, attention, regard_torch):
        for name in package.__all__:
            found = getattr(package, name)
            if inspect.isfunction(found):
                yield found
            elif inspect.isclass(found) and issubclass(found, nn.Module):  # their constructors have checks of their own
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


def test_every_kind_of_truth_but_text_is_a_flag() -> None:
    module, x = MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    for causal in (1, torch.tensor(True)):
        assert torch.equal(module(x, x, x, causal=causal).context, module(x, x, x, causal=True).context)
