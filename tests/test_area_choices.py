"""What the measurements of areas count, on cases worked out by hand."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def area_borders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("area_borders")


@pytest.fixture
def area_sizes(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("area_sizes")


def test_areas_are_compared_with_all_of_their_length(area_borders: ModuleType) -> None:
    text = "ab cd"
    extents = np.array([[start, length] for length in (1, 2) for start in range(6 - length)])
    heaviest = np.array([5, 8])  # "ab", " c", "cd" ... of length 2 begin at 5
    observed, expected, number = area_borders.sentence_counts(extents, heaviest, text)
    # "ab" begins and ends a word; the area at 3 is "cd".
    assert [tuple(each) for each in (extents[5], extents[8])] == [(0, 2), (3, 2)]
    np.testing.assert_allclose(observed, [2, 2, 2])
    np.testing.assert_allclose(expected, [1, 1, 1])  # two of four: "ab" and "cd"
    np.testing.assert_allclose(number, [2, 2, 2])


def test_an_area_over_the_end_of_the_text_is_left_out(area_borders: ModuleType) -> None:
    assert area_borders.sentence_counts(np.array([[0, 2], [1, 2]]), np.array([1]), "ab") is None


def test_the_larger_object_of_a_scene_is_compared_with_the_smaller(area_sizes: ModuleType) -> None:
    found = [area_sizes.Choice(0, 4, 4.5, 9, 0.1), area_sizes.Choice(0, 6, 5.5, 9, 0.1), area_sizes.Choice(0, 2, 2.0, 1, 0.1)]
    large, small = area_sizes.contrast(found, 2)
    assert large.tolist() == [[10, 2], [0, 0]]
    assert small.tolist() == [[2, 1], [0, 0]]
