from __future__ import annotations

import pytest
import torch

from regard.decoding.candidates import BLOCK, top_tokens


@pytest.mark.parametrize("size", [1, 4, 127, 1009, 7919, 7936])
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("levels", [3, 17, 10**6])
def test_top_tokens_are_those_of_a_stable_sort(size: int, count: int, levels: int) -> None:
    values = -torch.randint(0, levels, (3, 5, size)).float()
    values[0, :, ::2] = -torch.inf
    values[1, 2] = -torch.inf
    expected = values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    assert torch.equal(top_tokens(values, count), expected)


def test_top_tokens_are_ordered_among_tiny_and_huge_values() -> None:
    values = -torch.tensor([3e38, 1e-45, 1.0, 0.0, 1.0 + 2**-23, torch.inf, 1e-30])
    assert top_tokens(values[None, None], 7).tolist() == [[[3, 1, 6, 2, 4, 0, 5]]]


def test_top_tokens_are_different_where_few_are_allowed() -> None:
    values = torch.full((1, 1, 31 * BLOCK + 1), -torch.inf)
    values[..., -1] = -1.0
    values[..., 0] = -2.0
    assert top_tokens(values, 5).tolist() == [[[31 * BLOCK, 0, 1, 2, 3]]]
