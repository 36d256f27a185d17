"""Attention metrics, worked by hand, and their baselines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import DataError
from regard.metrics import attention_correctness, attention_entropy, box_region, cell_coverage, cell_hits, pointing_accuracy

HITS = [[True, False, False, True, False], [False, True, False, False, False], [False, False, False, False, True]]


def test_accuracy_counts_the_words_whose_largest_weight_is_a_hit() -> None:
    weights = [[0.1, 0.2, 0.1, 0.5, 0.1], [0.4, 0.3, 0.1, 0.1, 0.1], [0.0, 0.0, 0.0, 0.1, 0.9]]
    scores = pointing_accuracy(weights, HITS, objects=[2, 4, 1])
    assert scores.accuracy.value == pytest.approx(100 * 2 / 3)
    assert scores.random_cell.value == pytest.approx(100 * 4 / 15)
    assert scores.random_object is not None
    assert scores.random_object.value == pytest.approx(100 * (1 / 2 + 1 / 4 + 1) / 3)
    assert pointing_accuracy(weights, HITS).random_object is None


def test_uniform_weights_point_as_well_as_a_random_cell() -> None:
    scores = pointing_accuracy(np.full((3, 5), 0.2), HITS)
    assert scores.accuracy.value == pytest.approx(scores.random_cell.value)


def test_a_row_of_zeros_is_a_miss_with_nothing_inside() -> None:
    assert pointing_accuracy(np.zeros((3, 5)), HITS).accuracy.value == 0.0
    assert attention_correctness(np.zeros((3, 5)), HITS).correctness.value == 0.0
    assert attention_entropy(np.zeros((3, 5))).value == 0.0


def test_correctness_is_the_mass_inside_whatever_the_weights_sum_to() -> None:
    coverage = [[1.0, 0.5, 0.0], [0.0, 0.0, 0.25]]
    scores = attention_correctness([[2.0, 4.0, 4.0], [0.0, 0.0, 0.5]], coverage)
    assert scores.correctness.value == pytest.approx(100 * (0.4 + 0.25) / 2)
    assert scores.uniform.value == pytest.approx(100 * (0.5 + 0.25 / 3) / 2)
    even = attention_correctness(np.ones((2, 3)), coverage)
    assert even.correctness.value == pytest.approx(even.uniform.value)


def test_entropy_runs_from_none_for_one_cell_to_log_l_for_all() -> None:
    assert attention_entropy([[0.0, 3.0, 0.0]]).value == 0.0
    assert attention_entropy(np.ones((2, 7))).value == pytest.approx(math.log(7))
    mixed = attention_entropy([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert mixed.value == pytest.approx(math.log(2) / 2)
    assert mixed.signature.endswith(f"max:{math.log(3):.4f}")


def test_tensors_with_gradients_and_of_half_precision_are_read() -> None:
    weights = torch.tensor([[0.25, 0.75]], dtype=torch.bfloat16, requires_grad=True)
    assert pointing_accuracy(weights, torch.tensor([[False, True]])).accuracy.value == 100.0


def test_coverage_is_the_part_of_each_cell_that_the_region_takes() -> None:
    region = np.zeros((6, 10), bool)
    region[:4, 5:8] = True
    assert cell_coverage(region, (3, 2)).tolist() == pytest.approx([0, 0.6, 0, 0.6, 0, 0])


def test_coverage_of_cells_that_cut_pixels_sums_to_the_area() -> None:
    region = np.random.default_rng(3).random((7, 11)) < 0.4
    coverage = cell_coverage(region, (3, 5))
    assert coverage.mean() == pytest.approx(region.mean())
    assert cell_coverage(np.ones((7, 11)), (3, 5)).tolist() == pytest.approx([1.0] * 15)
    # The first cell holds two whole rows and a third of the next, two whole columns and a fifth of the next.
    rows, columns = np.array([1, 1, 1 / 3]) * 3 / 7, np.array([1, 1, 1 / 5]) * 5 / 11
    assert coverage[0] == pytest.approx(rows @ region[:3, :3] @ columns)


def test_a_cell_is_hit_when_its_centre_is_in_the_region_or_near_enough() -> None:
    region = np.zeros((8, 8), bool)
    region[2:4, 2:4] = True  # the square from 2 to 4 a side; centres of the cells are at 1, 3, 5 and 7
    hit = cell_hits(region, (4, 4)).reshape(4, 4)
    assert np.argwhere(hit).tolist() == [[1, 1]]
    near = cell_hits(region, (4, 4), tolerance=1.0).reshape(4, 4)
    assert np.argwhere(near).tolist() == [[0, 1], [1, 0], [1, 1], [1, 2], [2, 1]]
    corners = cell_hits(region, (4, 4), tolerance=2**0.5).reshape(4, 4)
    assert corners.sum() == 9
    assert not cell_hits(np.zeros((8, 8)), (4, 4), tolerance=100.0).any()


def test_a_box_covers_the_pixels_whose_centres_it_holds() -> None:
    region = box_region([(0.0, 0.0, 0.5, 0.25), (0.75, 0.5, 1.0, 1.0)], 4, 4)
    assert region.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 1]]
    assert not box_region([], 4, 4).any()
    assert not box_region([(0.5, 0.0, 0.5, 1.0)], 4, 4).any()  # of no width


NO_BOXES = {
    "two numbers": (0.0, 1.0),
    "nan": (0.0, 0.0, math.nan, 1.0),
    "swapped sides": (0.75, 0.0, 0.25, 1.0),
    "swapped ends": (0.0, 1.0, 1.0, 0.0),
    "pixels": (0, 0, 50, 60),
    "below 0": (-0.25, 0.0, 0.5, 1.0),
    "four rows": [[0.0]] * 4,
}


@pytest.mark.parametrize("name", NO_BOXES)
def test_what_is_no_box_is_named_with_its_position(name: str) -> None:
    box: Any = NO_BOXES[name]
    with pytest.raises(DataError, match=r"^box_region: box 2 must be left, top, right and bottom, increasing from 0 to 1, found "):
        box_region([(0.0, 0.0, 1.0, 1.0), box], 4, 4)


def test_texts_are_no_boxes_and_an_image_has_pixels() -> None:
    for box in ("abcd", ["0", "0", "1", "1"]):
        with pytest.raises(DataError, match="box_region: box 1 must be numbers"):
            box_region([box], 2, 2)  # type: ignore[list-item]
    with pytest.raises(DataError, match="box_region: height must be at least 1, found -1"):
        box_region([], -1, 2)
    with pytest.raises(DataError, match="box_region: width must be at least 1, found 0"):
        box_region([], 2, 0)


@pytest.mark.parametrize("grid", [(1.5, 2), (True, 2), (0, 1), (2,), (1, 2, 3), 2, "12", None], ids=str)
@pytest.mark.parametrize("score", [cell_coverage, cell_hits])
def test_a_grid_is_two_whole_numbers(score: Callable[..., Any], grid: Any) -> None:
    with pytest.raises(DataError, match=f"^{score.__name__}: grid must be .*two whole numbers"):
        score([[1, 0.0]], grid)


@pytest.mark.parametrize("grid", [[1, 2], np.array([1, 2]), torch.tensor([1, 2])], ids=["list", "array", "tensor"])
def test_a_grid_may_be_a_list_an_array_or_a_tensor(grid: Any) -> None:
    assert cell_coverage([[1, 0.0]], grid).tolist() == [1.0, 0.0]
    assert cell_hits([[1, 0.0]], grid).tolist() == [True, False]


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.3, -1, 255], ids=str)
def test_regions_and_hits_are_true_or_false(wrong: float) -> None:
    message = rf"must be True or False \(1 or 0\), found {wrong} at \[0, 1\]"
    for score in (cell_coverage, cell_hits):
        with pytest.raises(DataError, match=f"^{score.__name__}: region {message}"):
            score([[0, wrong]], (1, 2))
    with pytest.raises(DataError, match=f"^pointing_accuracy: hits {message}"):
        pointing_accuracy([[0.9, 0.1]], [[0, wrong]])


@pytest.mark.parametrize("wrong", [math.nan, 1.5, True, "2", 2.0], ids=str)
def test_numbers_of_objects_are_whole(wrong: Any) -> None:
    with pytest.raises(DataError, match=r"^pointing_accuracy: objects must be a list of whole numbers, item 2 is "):
        pointing_accuracy(np.ones((2, 3)), np.ones((2, 3)), objects=[1, wrong])


@pytest.mark.parametrize("tolerance", [-1.0, math.nan, math.inf])
def test_a_tolerance_is_finite_and_not_negative(tolerance: float) -> None:
    with pytest.raises(DataError, match="cell_hits: tolerance must be finite and at least 0 pixels, found "):
        cell_hits(np.zeros((2, 3)), (1, 1), tolerance=tolerance)
    assert not cell_hits(np.zeros((2, 3)), (1, 1), tolerance=1e200).any()


@pytest.mark.parametrize("weights", [[], [[]], [0.5, 0.5], [[-0.1, 1.1]], [[math.nan, 1.0]], [[1.0], [1.0, 2.0]], [["a"]], [["0.5"]]])
@pytest.mark.parametrize("score", [attention_entropy, pointing_accuracy, attention_correctness])
def test_what_is_not_attention_is_a_data_error(score: Callable[..., Any], weights: Any) -> None:
    with pytest.raises(DataError, match=f"^{score.__name__}: weights must be "):
        score(*[weights] * (1 if score is attention_entropy else 2))


def test_shapes_that_differ_are_both_named() -> None:
    weights = np.ones((2, 3))
    with pytest.raises(DataError, match=r"pointing_accuracy: hits must have the shape of weights, found \(3, 2\) and \(2, 3\)"):
        pointing_accuracy(weights, np.ones((3, 2)))
    with pytest.raises(DataError, match="pointing_accuracy: objects must be 2, one number for each word, found 1"):
        pointing_accuracy(weights, weights, objects=[1])
    with pytest.raises(DataError, match=r"pointing_accuracy: objects must be at least 1, found 0 at \[1\]"):
        pointing_accuracy(weights, weights, objects=[1, 0])
    with pytest.raises(DataError, match=r"attention_correctness: coverage must be from 0 to 1, found 2\.0 at \[0, 0\]"):
        attention_correctness(weights, weights * 2)
    with pytest.raises(DataError, match=r"cell_coverage: region must be \(H, W\), at least one pixel, found shape \(3,\)"):
        cell_coverage(np.ones(3), (1, 1))
