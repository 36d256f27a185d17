"""Masks: what each of them lets be seen, position by position."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from regard import ops
from regard.errors import RangeError, ShapeError
from regard.ops.masks import check_mask

SIZES = [(0, 0), (0, 5), (5, 0), (1, 1), (1, 7), (3, 7), (7, 7), (7, 3)]


@pytest.mark.parametrize(("target", "source"), SIZES)
def test_a_causal_mask_lets_the_last_query_see_all_and_each_one_before_it_one_less(target, source):
    mask = ops.causal_mask(target, source)
    assert mask.shape == (target, source)
    assert mask.dtype == torch.bool
    for t in range(target):
        assert mask[t].tolist() == [s <= t + source - target for s in range(source)]


def test_a_causal_mask_lies_where_it_is_asked_for():
    assert ops.causal_mask(3, 5, "meta").device.type == "meta"


def test_positions_of_one_block_see_each_other_and_nobody_else():
    target, source = torch.tensor([[3, 3, 1], [2, 5, 2]]), torch.tensor([[3, 1, 1, 0, 3], [7, 2, 7, 7, 7]])
    mask = ops.block_mask(target, source)
    assert mask.shape == (2, 3, 5)
    for b in range(2):
        for t in range(3):
            assert mask[b, t].tolist() == [bool(target[b, t] == source[b, s]) for s in range(5)]
    assert not mask[1, 1].any()  # no key of block 5


def test_masks_combine_with_each_other():
    packed = ops.block_mask(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 1, 1])) & ops.causal_mask(5, 5)
    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert packed.int().tolist() == expected


@pytest.mark.parametrize("lengths", [[0, 3, 5], []])
def test_a_length_mask_marks_what_stands_before_the_length(lengths):
    mask = ops.length_mask(torch.tensor(lengths, dtype=torch.long), 5)
    assert mask.tolist() == [[s < n for s in range(5)] for n in lengths]


@pytest.mark.parametrize("lengths", [[0, 6], [-1, 5]])
def test_a_length_that_no_row_has_is_refused(lengths):
    with pytest.raises(RangeError, match="length_mask: lengths"):
        ops.length_mask(torch.tensor(lengths), 5)


@pytest.mark.parametrize("shape", [(7,), (1,), (3, 5, 7), (3, 1, 7), (1, 5, 1), (1, 1, 1), ()])
def test_a_mask_that_broadcasts_to_the_scores_passes(shape):
    check_mask(torch.ones(shape, dtype=torch.bool), (3, 5, 7), "here")


@pytest.mark.parametrize("shape", [(5,), (2, 5, 7), (3, 7, 5), (3, 5, 7, 1), (1, 3, 5, 7)])
def test_a_mask_that_does_not_is_refused_with_both_shapes(shape):
    with pytest.raises(ShapeError) as error:
        check_mask(torch.ones(shape, dtype=torch.bool), (3, 5, 7), "here")
    assert str(error.value).startswith("here: ")
    assert str(shape) in str(error.value)
    assert "(3, 5, 7)" in str(error.value)


def test_a_mask_of_numbers_is_refused_with_its_type():
    with pytest.raises(ShapeError, match=r"boolean.*torch\.float32"):
        check_mask(torch.zeros(5, 7), (5, 7), "here")


N = 5  # B, H, T and S alike: every way to read a mask of fewer axes broadcasts
SQUARE, CUBE = torch.ones(N, N, dtype=torch.bool), torch.ones(N, N, N, dtype=torch.bool)
THREE, FOUR = torch.zeros(N, N, N), torch.zeros(N, N, N, N)
MASKED_OPS = {
    "masked_softmax": (lambda mask: ops.masked_softmax(THREE, mask), 3),
    "masked_softmax, heads": (lambda mask: ops.masked_softmax(FOUR, mask), 4),
    "sparsemax": (lambda mask: ops.sparsemax(THREE, mask), 3),
    "entmax15": (lambda mask: ops.entmax15(THREE, mask), 3),
    "area_softmax": (lambda mask: ops.area_softmax(THREE, mask, top_k=2), 3),
    "nonlocal_attention": (lambda mask: ops.nonlocal_attention(THREE, THREE, THREE, mask=mask), 3),
    "area_attention": (lambda mask: ops.area_attention(FOUR, FOUR, FOUR, max_area=2, mask=mask), 4),
    "area_attention, weights": (lambda mask: ops.area_attention(FOUR, FOUR, FOUR, max_area=2, mask=mask, need_weights=True), 4),
    "mask_nonfinite": (lambda mask: ops.mask_nonfinite(THREE, THREE, mask), 3),
    "shield, heads": (lambda mask: ops.mask_nonfinite(FOUR, FOUR, mask), 4),
}


@pytest.mark.parametrize("name", MASKED_OPS)
def test_a_mask_that_lacks_axes_is_refused_with_both_ways_to_complete_it(name):
    call, axes = MASKED_OPS[name]
    new = ", ".join(["None"] * (axes - 2))
    with pytest.raises(ShapeError) as error:
        call(SQUARE)
    message = str(error.value)
    assert f"one mask per query, write mask[{new}]" in message
    assert f"padding, write mask[:, {new}]" in message
    call(eval_index(SQUARE, new, first=True))
    call(eval_index(SQUARE, new, first=False))
    call(torch.ones(N, dtype=torch.bool))
    if axes == 4:
        with pytest.raises(ShapeError, match=r"first axis is B, write mask\[:, None\]; if it is H, write mask\[None\]"):
            call(CUBE)


def eval_index(mask, new, *, first):
    """What the message says to write."""
    axes = (None,) * new.count("None")
    return mask[axes] if first else mask[(slice(None), *axes)]


@pytest.mark.parametrize("name", MASKED_OPS)
@pytest.mark.parametrize("numbers", [torch.zeros, lambda *shape: torch.ones(*shape, dtype=torch.long)], ids=["float", "int"])
def test_no_op_takes_a_mask_of_numbers(name, numbers):
    call, axes = MASKED_OPS[name]
    for shape in ((N,), (N,) * axes):
        with pytest.raises(ShapeError, match=r"boolean \(True = may be attended\), found torch\.(float32|int64); if (it|1) is"):
            call(numbers(*shape))


def test_flags_that_are_no_tensor_are_refused():
    with pytest.raises(ShapeError, match=r"boolean tensor .* found list"):
        ops.masked_softmax(THREE, [True] * N)


@pytest.mark.parametrize(
    "call",
    [
        lambda mask: ops.area_mask(mask, 2),
        lambda mask: ops.doubly_stochastic_penalty(THREE, query_mask=mask),
        lambda mask: ops.doubly_stochastic_penalty(THREE, key_mask=mask),
        lambda mask: ops.score_function_loss(THREE[0], THREE[0], THREE[0], mask),
        lambda mask: ops.score_function_loss(THREE[0], THREE[0], THREE[0], None, mask),
    ],
)
def test_flags_of_positions_are_boolean_too(call):
    call(SQUARE)
    for numbers in (SQUARE.float(), SQUARE.long()):
        with pytest.raises(ShapeError, match="must be boolean"):
            call(numbers)


@pytest.mark.parametrize("lengths", [[1.0, math.nan], [3.5], [True]])
def test_lengths_are_whole_numbers(lengths: list[Any]) -> None:
    with pytest.raises(ShapeError, match="length_mask: lengths must hold whole numbers, found torch"):
        ops.length_mask(torch.tensor(lengths), 5)
