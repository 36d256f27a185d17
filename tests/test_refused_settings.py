"""Whatever is wrong with a setting is told in plain words, as YAML names it and not as Python does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from regard.config import TASKS, ClassificationConfig, submodels, validate
from regard.config.base import Frozen
from regard.config.problems import problems
from regard.config.study import StudyConfig
from regard.errors import ConfigError

WRONG: tuple[Any, ...] = (
    3,
    "x",
    "",
    [1],
    {},
    {"a": "b"},
    {1: 2},
    None,
    1.5,
    10**30,
    -1,
    True,
    [[]],
    float("inf"),
    float("nan"),
    [],
    [1, 2, 3],
    "3x",
)
# Words of pydantic and of Python.
STRANGE = re.compile(
    r"\b(input|valid|should|field|parse|instance|tuple|dict|string|integer|boolean|literal|another value)\b", re.IGNORECASE
)


def fields(model: type[BaseModel], prefix: tuple[str, ...], above: tuple[type[BaseModel], ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return the path of every setting and section."""
    for name, field in model.model_fields.items():
        yield (*prefix, name)
        for inner in submodels(field.annotation):
            if inner not in above:
                yield from fields(inner, (*prefix, name), (*above, inner))


@pytest.mark.parametrize("kind", [*TASKS.values(), StudyConfig], ids=lambda kind: kind.__name__)
def test_every_setting_is_refused_in_plain_words(kind: type[Frozen]) -> None:
    strange, refused = list[str](), 0
    for path in fields(kind, ()):
        for value in WRONG:
            tree: Any = value
            for key in reversed(path):
                tree = {key: tree}
            try:
                kind.model_validate(tree)
            except ValidationError as error:
                for problem in problems(error, kind):
                    refused += 1
                    expected, _, found = problem.message.rpartition(", found ")
                    told = problem.path.count("[") or STRANGE.search(expected) or found in ("None", "True", "False")
                    strange += [f"{problem.path}: {problem.message}"] * (bool(told) and problem.error is None)
    assert refused > 100
    assert strange == []


@pytest.mark.parametrize(
    ("kind", "tree", "message"),
    [
        (StudyConfig, {"seeds": 3}, "seeds: expected a list, such as [1, 2, 3], found 3"),
        (StudyConfig, {"seeds": ["x"]}, "seeds.0: expected a whole number, found 'x'"),
        (StudyConfig, {"data": {1: {"test": {}}}}, "data.1: expected text as a key, such as '1' in quotes"),
        (StudyConfig, {"variants": {True: {}}}, "variants.true: expected text as a key, such as 'true' in quotes"),
        (
            ClassificationConfig,
            {"training": {"learning_rate": float("nan")}},
            "learning_rate: expected a finite number, found .nan",
        ),
        (ClassificationConfig, {"model": {"class_weights": {0: 1.0}}}, "class_weights.0: expected text as a key, such as '0' in quotes"),
        (StudyConfig, {"methods": "all"}, "methods: expected a list, such as [a, b, c], found 'all'"),
        (StudyConfig, {"title": 3}, "title: expected text, found 3"),
        (StudyConfig, {"data": {"a": {}}}, "data.a.test: missing"),
        (StudyConfig, {"data": {"a": {"tests": {}}}}, "data.a.tests: unknown key; did you mean data.a.test?"),
        (StudyConfig, {"data": {}}, "data: expected at least 1 value, found {}"),
        (StudyConfig, {"data": {"int": {"test": 3}}}, "data.int.test: expected keys and values, found 3"),
        (
            StudyConfig,
            {"data": {"a": {"test": {}, "published": {"x": [1]}}}},
            "data.a.published.x: expected a number, or text, found [1]",
        ),
        (ClassificationConfig, {"training": {"tensorboard": None}}, "training.tensorboard: expected true or false, found null"),
        (ClassificationConfig, {"training": {"betas": 3}}, "training.betas: expected a list, such as [0.1, 0.2], found 3"),
        (ClassificationConfig, {"training": {"learning_rate": 0}}, "training.learning_rate: expected more than 0, found 0"),
        (ClassificationConfig, {"training": {"learning_rate": 1e9}}, "training.learning_rate: expected at most 1,000,000, found"),
        (
            ClassificationConfig,
            {"model": {"class_weights": 3}},
            "model.class_weights: expected none or balanced, or keys and values, found 3",
        ),
        (ClassificationConfig, {"model": {"class_weights": {"a": "x"}}}, "model.class_weights.a: expected a number, found 'x'"),
        (
            ClassificationConfig,
            {"model": {"class_weights": "balance"}},
            "expected none or balanced, or keys and values, found 'balance'; did you mean model.class_weights=balanced?",
        ),
    ],
)
def test_a_refused_value_says_what_is_expected(kind: type[Frozen], tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        validate(tree, "here", kind=kind)
    assert message in str(refused.value)
    assert "at least 1 value" not in str(refused.value) or "at least 1 value" in message
