"""Arguments of metrics and the viewer: lists, arrays and tensors are taken, anything else is named."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from regard import metrics, viewer
from regard.arguments import is_raw, takes_arguments
from regard.errors import DataError, RegardError
from regard.metrics.seeds import RunScore, compare_seeds, run_score

MODULES = [import_module(f"regard.metrics.{each.name}") for each in pkgutil.iter_modules(metrics.__path__) if each.name != "checks"]
FUNCTIONS = {
    name: found
    for module in MODULES
    for name, found in inspect.getmembers(module, inspect.isfunction)
    if found.__module__ == module.__name__ and not name.startswith("_") and "operation" not in inspect.signature(found).parameters
}
GIVEN = [None, 3, 2.5, True, {"a": 1}, object(), [None], [3.5], ["a", 2.5], [["a", None]], np.zeros((2, 3, 4, 5))]


@pytest.mark.parametrize("given", GIVEN, ids=lambda given: type(given).__name__)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_metric_fails_in_other_words(name: str, given: Any) -> None:
    function = FUNCTIONS[name]
    asked = [each for each in inspect.signature(function).parameters.values() if each.default is each.empty]
    for wrong in asked:  # this one alone, and all of them
        usual = {each.name: {"int": 1, "float": 1.0}.get(str(each.annotation), ["a"]) for each in asked}
        for call in (usual | {wrong.name: given}, dict.fromkeys(usual, given)):
            with suppress(RegardError):
                function(**call)


UNCOUNTED: Any = [[1], [0]]
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no list": (lambda: metrics.accuracy(None, ["a"]), "accuracy: predicted must be a list of labels, text or whole numbers, found None"),  # type: ignore[arg-type]
    "one text": (lambda: metrics.macro_f1("a", ["a"]), "macro_f1: predicted must be a list of labels, text or whole numbers, found 'a'"),
    "no texts": (lambda: metrics.bleu([None], ["a"]), "bleu: hypotheses must be a list of texts, item 1 is None"),  # type: ignore[list-item]
    "no references": (lambda: metrics.chrf(["a"], [None]), "chrf: references must be a list of texts, item 1 is None"),  # type: ignore[list-item]
    "two kinds": (lambda: metrics.accuracy([1, 2], ["a", "c"]), "accuracy: labels must be all text or all whole numbers, found both"),
    "half a sample": (
        lambda: metrics.paired_bootstrap(["a b c d"], ["a"], ["a"], samples=2.5),  # type: ignore[arg-type]
        "paired_bootstrap: samples must be a whole number, found 2.5",
    ),
    "no boxes": (lambda: metrics.box_region(None, 4, 4), "box_region: cannot be computed of boxes None, height 4, width 4: "),  # type: ignore[arg-type]
    "half a token": (lambda: metrics.perplexity(3.0, 2.5), "perplexity: tokens must be a whole number, found 2.5"),  # type: ignore[arg-type]
    "a caption of bytes": (lambda: metrics.caption_tokens(b"a"), "caption_tokens: text must be text, found b'a'"),  # type: ignore[arg-type]
    "no samples": (
        lambda: compare_seeds(RUNS, RUNS, samples=0),
        "expected samples of 1 to 100,000,000 and a seed of 0 or more, found 0",
    ),
    "too many samples": (lambda: compare_seeds(RUNS, RUNS, samples=10**12), "expected samples of 1 to 100,000,000"),
    "a negative seed": (lambda: compare_seeds(RUNS, RUNS, seed=-1), "a seed of 0 or more, found 100000 and -1"),
    "samples in words": (lambda: compare_seeds(RUNS, RUNS, samples="5"), "compare_seeds: samples must be a whole number, found '5'"),  # type: ignore[arg-type]
    "power in words": (lambda: compare_seeds(RUNS, RUNS).seeds_needed("x"), "seeds_needed: power must be a number, found 'x'"),  # type: ignore[arg-type]
}
REFUSED |= {
    "a title of a record": (lambda: viewer.view([], title="a"), "title, grid and query_tokens go with a recording, or with weights"),
    "a set": (lambda: metrics.accuracy({"a", "b"}, ["a", "b"]), "accuracy: predicted must be a list of labels"),  # type: ignore[arg-type]
    "labels that repeat": (
        lambda: metrics.confusion_matrix(["a"], ["a"], ["a", "a"]),
        "confusion_matrix: labels must be one or more, all different and none of them empty, found a, a",
    ),
    "counts as a list": (lambda: run_score("mean", UNCOUNTED), "run_score: counts must be an array of numbers (N, 2), found [[1], [0]]"),
    "a tensor of references": (
        lambda: metrics.caption_scores(torch.ones(1, 2), ["a"]),  # type: ignore[arg-type]
        "caption_scores: references of image 1, caption 1 must be a list of tokens, or one text, found tensor(1.)",
    ),
    "the height of a page": (lambda: viewer.Page("<p>", height=-1), "Page: height must be at least 1, found -1"),
    "half a pixel": (lambda: viewer.Page("<p>", height=2.5), "Page: height must be a whole number, found 2.5"),  # type: ignore[arg-type]
    "no page": (lambda: viewer.Page(None), "Page: html must be text, found None"),  # type: ignore[arg-type]
    "no records": (lambda: viewer.render_page(None), "cannot be computed of records None"),  # type: ignore[arg-type]
    "an open file": (lambda: viewer.read_records(3), "read_records: path must be the name of a file, found 3"),  # type: ignore[arg-type]
    "no name": (lambda: viewer.save_page([], None), "save_page: path must be the name of a file, found None"),  # type: ignore[arg-type]
    "no width": (lambda: viewer.render_alignment(None, width=None, color=False), "width must be a whole number, found None"),  # type: ignore[arg-type]
    "a head in words": (
        lambda: viewer.render_alignment(None, width=80, color=False, head="x"),  # type: ignore[arg-type]
        "head must be a whole number, found 'x'",
    ),
}
RUNS = [run_score("mean", np.array([[value, 1.0]] * 9)) for value in (1.0, 2.0)]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_named(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(DataError) as error:
        call()
    assert message in str(error.value)


def test_a_flag_of_a_comparison_is_true_or_false() -> None:
    runs = [RunScore(score, np.array([1.0, -1.0] * 60)) for score in (30, 33, 36)]
    with pytest.raises(RegardError, match="compare_seeds: paired may be True or False, found 'false'"):
        compare_seeds(runs, runs, paired="false")  # type: ignore[arg-type]


def test_arrays_and_tensors_are_lists() -> None:
    words, ids = ["a", "b", "b"], [1, 2, 2]
    array: Any = np.array
    tensor: Any = torch.tensor
    for function in (metrics.accuracy, metrics.macro_f1):
        expected = function(words, ["a", "a", "b"])
        assert function(array(words), array(["a", "a", "b"])) == expected
        assert function(tensor(ids), array([1, 1, 2])) == function(ids, (1, 1, 2))
        assert function(ids, [1, 1, 2]).value == expected.value
        assert function(iter(words), ["a", "a", "b"]) == expected  # type: ignore[arg-type]
    assert metrics.compare_accuracy(array(words), array(words), array(words)).difference == 0
    lines = ["a b c d e", "f g h i"]
    assert metrics.bleu(array(lines), lines) == metrics.bleu(lines, lines)
    assert metrics.accuracy([1, ""], [1, 2]).value == 50  # type: ignore[list-item]  # "" is no label


@takes_arguments
def largest(numbers: Any) -> float:
    return np.max(numbers)


@pytest.mark.parametrize("given", [["abcd", "e"], np.array(["a", "b"])], ids=["list", "array"])
def test_errors_of_numpy_are_explained(given: Any) -> None:
    with pytest.raises(DataError, match=r"^largest: cannot be computed of numbers "):
        largest(given)


@pytest.mark.parametrize(
    "error",
    [DataError("line 3"), UnicodeError("byte 3"), RecursionError(), torch.OutOfMemoryError()],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_are_not_about_arguments_pass(error: Exception) -> None:
    @takes_arguments
    def fail(number: int) -> None:
        raise error

    with pytest.raises(type(error)) as found:
        fail(1)
    assert found.value is error
    assert not is_raw(error)


KINDS: dict[str, tuple[Any, Any, str]] = {
    "texts of an iterator": ("Iterable[str]", iter(["a", None]), "a list of texts, item 2 is None"),
    "whole numbers": ("Sequence[int]", [1, 2.0], "a list of whole numbers, item 2 is 2.0"),
    "no truth as a whole number": ("Sequence[int] | None", [True], "a list of whole numbers, item 1 is True"),
    "an array of floats": ("Sequence[int]", np.ones(2), "a list of whole numbers, item 1 is 1.0"),
    "numbers": ("Sequence[float]", [0.5, "1"], "a list of numbers, item 2 is '1'"),
    "no truth as a number": ("Sequence[float]", np.array([True]), "a list of numbers, item 1 is True"),
    "bytes": ("Sequence[float]", memoryview(b"12"), "a list of numbers, found <memory"),
}


@pytest.mark.parametrize("name", KINDS)
def test_lists_of_each_kind_are_checked(name: str) -> None:
    kind, given, message = KINDS[name]

    def first(items: Any) -> Any:
        return items[0]

    first.__annotations__["items"] = kind
    with pytest.raises(DataError) as error:
        takes_arguments(first)(given)
    assert f": items must be {message}" in str(error.value)
