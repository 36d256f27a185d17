"""Attention metrics, worked by hand, and their baselines."""

from __future__ import annotations

import math

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
    with pytest.raises(DataError, match="left, top, right and bottom"):
        box_region([(0.0, 1.0)], 4, 4)


@pytest.mark.parametrize("weights", [[], [[]], [0.5, 0.5], [[-0.1, 1.1]], [[math.nan, 1.0]], [[1.0], [1.0, 2.0]], [["a"]]])
def test_what_is_not_attention_is_a_data_error(weights) -> None:
    for score in (lambda: attention_entropy(weights), lambda: pointing_accuracy(weights, weights)):
        with pytest.raises(DataError, match="weights"):
            score()


def test_shapes_that_differ_are_both_named() -> None:
    weights = np.ones((2, 3))
    with pytest.raises(DataError, match=r"hits \(3, 2\), but weights \(2, 3\)"):
        pointing_accuracy(weights, np.ones((3, 2)))
    with pytest.raises(DataError, match=r"objects \(1,\): expected 2"):
        pointing_accuracy(weights, weights, objects=[1])
    with pytest.raises(DataError, match="parts of 0 to 1"):
        attention_correctness(weights, weights * 2)
    with pytest.raises(DataError, match="grid"):
        cell_coverage(np.ones((2, 3)), (0, 1))
    with pytest.raises(DataError, match="tolerance"):
        cell_hits(np.ones((2, 3)), (1, 1), tolerance=-1.0)
