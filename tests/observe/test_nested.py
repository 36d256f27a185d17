"""Nested tensors: each example of a batch has a length of its own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard


class Ragged(nn.Module):
    """Two heads of 8 features: torch's nested kernels take multiples of 8 only."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = nn.Linear(5, 16), nn.Linear(5, 16), nn.Linear(5, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (2, 8)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_nested_tensors_give_the_map_of_each_example_padded_to_the_longest() -> None:
    model, rows = Ragged(), [torch.randn(length, 5) for length in (7, 3, 11)]
    whole = torch.nested.nested_tensor(rows, layout=torch.jagged)
    with torch.no_grad():
        plain = model(whole)
        with regard.watch(model) as seen:
            output = model(whole)
        with regard.watch(model, heads=1) as second:
            model(whole)
        for example, row in enumerate(rows):
            with regard.watch(model) as alone:
                model(row[None])
            expected = F.pad(alone[0].weights[0], (0, 11 - len(row), 0, 11 - len(row)))
            torch.testing.assert_close(seen[0].weights[example], expected)
    assert torch.equal(output.values(), plain.values())
    assert (len(seen), seen[0].weights.shape) == (1, (3, 2, 11, 11))
    assert torch.equal(second[0].weights, seen[0].weights[:, 1:])
