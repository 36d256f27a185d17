"""The N-gram RNN against the loops: its parts, its memory, its masks, its gradients."""

from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.attention import NGramReadout
from regard.errors import ConfigError, ShapeError
from tests.reference.key_value import ngram

B, T, D = 3, 7, 5
ORDERS = pytest.mark.parametrize("order", [2, 3, 4, 8])


def build(order: int) -> tuple[NGramReadout, torch.Tensor]:
    torch.manual_seed(29)
    return NGramReadout((order - 1) * D, order).double(), torch.randn(B, T, (order - 1) * D, dtype=torch.float64)


@ORDERS
def test_the_readout_equals_the_loops(order: int) -> None:
    readout, states = build(order)
    context, weights = readout(states)
    assert weights is None
    for row in range(B):
        expected = ngram(states[row].numpy(), order, readout.output.weight.detach().numpy())
        torch.testing.assert_close(context[row], torch.tensor(expected))


@ORDERS
@pytest.mark.parametrize("cut", [0, 1, 3, 7])
def test_steps_add_up_to_the_whole(order: int, cut: int) -> None:
    readout, states = build(order)
    found, memory = readout.step(states[:, :cut], readout.memory(states[:, :0]))
    contexts = [found.context]
    for state in states[:, cut:].split(1, 1):
        found, memory = readout.step(state, memory)
        contexts.append(found.context)
    torch.testing.assert_close(torch.cat(contexts, 1), readout(states).context)
    kept, expected = memory.rows(torch.tensor([2, 0])).states, readout.memory(states).states[[2, 0]]
    torch.testing.assert_close(kept, expected)


def test_masked_states_count_as_zeros_whatever_they_hold() -> None:
    readout, states = build(4)
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1, 2] = mask[1, 6] = False
    broken = states.clone()
    broken[1, 2] = broken[1, 6] = torch.nan
    found = readout(broken, key_mask=mask).context
    torch.testing.assert_close(found, readout(states.masked_fill(~mask.unsqueeze(2), 0.0)).context)
    memory = readout.memory(broken, key_mask=mask).states[1]
    torch.testing.assert_close(memory, torch.stack([states[1, 5], torch.zeros(15, dtype=torch.float64)]))


def test_gradients_reach_the_states_and_the_weight() -> None:
    readout, states = build(3)
    assert torch.autograd.gradcheck(lambda x: readout(x).context, states[:1, :3].requires_grad_())
    readout(states).context.sum().backward()
    assert readout.output.weight.grad is not None


def test_wrong_shapes_and_settings_are_named() -> None:
    with pytest.raises(ShapeError, match=r"states must be \(B, T, 15\), found \(3, 7, 5\)"):
        NGramReadout(15, 4)(torch.zeros(B, T, D))
    with pytest.raises(ShapeError, match=r"one B and D; found \(3, 7, 5\) and \(3, 2, 6\)"):
        ops.ngram_parts(torch.zeros(B, T, D), torch.zeros(B, 2, 6))
    with pytest.raises(ShapeError, match="must split into 3 parts"):
        ops.ngram_parts(torch.zeros(B, T, D), torch.zeros(B, 2, D))
    with pytest.raises(ConfigError, match="multiple of order - 1 = 3, found 7"):
        NGramReadout(7, 4)
    with pytest.raises(ConfigError, match="order must be 2 or more, found 1"):
        NGramReadout(7, 1)
