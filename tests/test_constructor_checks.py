"""Errors at construction: every module refuses what its signature does not allow, and names it."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import re
import typing
from typing import Any

import pytest
from torch import nn

import regard.attention
import regard.integrations.torch
import regard.models
from regard.attention import (
    AdditiveScore,
    Areas,
    Attention,
    DotScore,
    GeneralScore,
    HardChoice,
    KeyValueAttention,
    MultiHeadAttention,
    NonLocal,
)
from regard.constructor_checks import Count, Share, Size, checked
from regard.errors import ConfigError
from tests.attention.mechanisms import MECHANISMS


def constructors() -> dict[str, type[nn.Module]]:
    """Every module class of `regard.attention` and `regard.models` that has a constructor of its own."""
    found = {}
    for package in (regard.attention, regard.models):
        for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for name, thing in vars(importlib.import_module(info.name)).items():
                if inspect.isclass(thing) and issubclass(thing, nn.Module) and thing.__module__ == info.name and "__init__" in vars(thing):
                    found[f"{info.name.removeprefix('regard.')}.{name}"] = thing
    return found | {"TorchAttention": regard.integrations.torch.TorchAttention}


CONSTRUCTORS = constructors()
EVERY = pytest.mark.parametrize("name", CONSTRUCTORS)


def parts(hint: Any) -> list[Any]:
    """The types that a value may have, those in tuples and sequences left out."""
    if typing.get_origin(hint) in (typing.Union, type(int | str)):
        return [part for each in typing.get_args(hint) for part in parts(each)]
    if any(isinstance(text, str) for text in getattr(hint, "__metadata__", ())):  # a message of its own
        return parts(typing.get_args(hint)[0])
    return [hint]


def wrong_values(hint: Any) -> list[Any]:
    """What a parameter of this type must refuse."""
    allowed = parts(hint)
    values: list[Any] = [object()]
    if not any(part in (str,) or typing.get_origin(part) is typing.Literal for part in allowed):
        values.append("3")
    if typing.Literal in map(typing.get_origin, allowed):
        values += ["nothing like it", 7]
    if int in allowed or Size in allowed or Count in allowed:
        values += [True, 2.5, *([] if int in allowed else [-1, 10**12]), *([0] if Size in allowed else [])]
    elif any(part is float or typing.get_args(part)[:1] == (float,) for part in allowed):
        values += [True, *([-0.5, 2.0, math.nan] if Share in allowed else [])]
    elif bool in allowed:
        values += [1, 0.0]
    elif typing.Literal not in map(typing.get_origin, allowed):
        values += [3, True]
    return values if type(None) in allowed else [*values, None]


@EVERY
def test_every_parameter_refuses_what_its_type_does_not_allow(name):
    thing = CONSTRUCTORS[name]
    hints = typing.get_type_hints(thing.__init__, include_extras=True)
    names = [parameter for parameter in inspect.signature(thing).parameters]
    assert names
    assert set(names) <= set(hints), "every parameter has a type"
    for parameter in names:
        for wrong in wrong_values(hints[parameter]):
            given = dict.fromkeys(names, object()) | {parameter: wrong}
            with pytest.raises(ConfigError) as error:
                thing(**given)
            assert str(error.value).startswith(f"{thing.__name__}: ")
            shown = re.sub(r"0x[0-9a-f.]+", "", repr(wrong))[:12]
            assert re.search(rf"\b{parameter} [^;]*found {re.escape(shown)}", str(error.value)), (parameter, wrong, str(error.value))


@EVERY
def test_what_the_signature_does_not_know_stays_pythons_own_error(name):
    thing = CONSTRUCTORS[name]
    with pytest.raises(TypeError, match="no_such_argument"):
        thing(no_such_argument=1)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_of_the_table_is_built_by_a_checked_constructor(name):
    module = MECHANISMS[name].build()
    for part in module.modules():
        if type(part).__module__.startswith(("regard.attention", "regard.models")):
            assert hasattr(type(part).__init__, "__wrapped__"), type(part)


PLAIN = r"max_area should be a whole number of at least 1, or a pair \(height, width\) of them for a grid"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Areas(areas=3), "unexpected keyword argument 'areas'"),
        (lambda: MultiHeadAttention(6, 2, areas=3), "MultiHeadAttention: areas should be an instance of Areas, found 3"),
        (lambda: MultiHeadAttention(6, 2, dropout=1.0), "dropout should be less than 1, found 1.0"),
        (lambda: MultiHeadAttention(6, 4), "embed_dim 6 is not a multiple of num_heads 4"),
        (lambda: MultiHeadAttention(6, 0), "num_heads should be greater than or equal to 1, found 0"),
        (lambda: MultiHeadAttention(True, 1), "embed_dim should be a valid integer, found True"),
        (lambda: MultiHeadAttention(6, 2, score=[DotScore()]), "1 scores for 2 heads"),
        (lambda: Attention(DotScore), "score should be an instance of AdditiveScore, .* or LocationScore, found <class"),
        (
            lambda: MultiHeadAttention(6, 2, score="additive"),
            "score should be an instance of AdditiveScore, ConcatScore, .*GeneralScore or LocationScore, found 'additive'",
        ),
        (
            lambda: MultiHeadAttention(6, 2, score=AdditiveScore(6, 6, 4)),
            "score: AdditiveScore takes query of size 6, expected 3, the size of a head",
        ),
        (lambda: MultiHeadAttention(6, 2, score=[DotScore(), GeneralScore(3, 6)]), "score: GeneralScore takes key of size 6, expected 3"),
        (lambda: Attention("dot"), "score should be .*found 'dot'"),
        (lambda: Areas(0), rf"^Areas: {PLAIN}, found 0$"),
        (lambda: Areas("x"), rf"^Areas: {PLAIN}, found 'x'$"),
        (lambda: Areas((0, 2), (3, 3)), rf"^Areas: {PLAIN}, found \(0, 2\)$"),
        (lambda: Areas((1, 2, 3), (3, 3)), rf"^Areas: {PLAIN}, found \(1, 2, 3\)$"),
        (lambda: Areas((2, 3)), "grid"),
        (lambda: Areas(3, key_mode="features"), "dim"),
        (lambda: HardChoice("best"), "mode should be 'sample', 'argmax' or 'expected', found 'best'"),
        (lambda: KeyValueAttention(7, 3, parts=3), "multiple of parts = 3, found 7"),
        (lambda: NonLocal(6, form="gaussian", other_dim=5), "other_dim must be dim = 6, found 5"),
        (lambda: NonLocal(6, form="cosine"), "form should be 'gaussian'"),
    ],
)
def test_settings_that_cannot_work_fail_where_they_are_written(call, message):
    with pytest.raises((ConfigError, TypeError), match=message):
        call()


def test_a_long_value_is_shown_short_and_several_errors_at_once():
    class Thing:
        @checked
        def __init__(self, first: Size, second: Share = 0.0, *, third: bool = False) -> None:
            self.values = first, second, third

    with pytest.raises(ConfigError) as error:
        Thing("9" * 10_000, 3.0, third="no")
    assert len(str(error.value)) < 300
    assert all(f"{name} should" in str(error.value) for name in ("first", "second", "third"))
    assert Thing(2, 1, third=True).values == (2, 1, True)
