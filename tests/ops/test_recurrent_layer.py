"""A recurrent layer as one node of autograd: the same numbers as its cells step by step, and their gradients."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.models.rnn_cells import RecurrentCell, RecurrentStack
from regard.ops.kernels import native
from regard.ops.recurrent_layer import supports

needs_library = pytest.mark.skipif(not native.status().usable, reason=f"needs the native library: {native.status().reason}")
BATCH, STEPS = 3, 7


def layer(
    kind: Literal["gru", "lstm"], size: int, *, masked: bool, backward: bool, dtype: torch.dtype = torch.float32, half: bool = False
) -> list[Tensor]:
    """Return outputs, the last state, and the gradients of gate inputs, weight, bias and first state, all of random numbers."""
    torch.manual_seed(1)
    cell = RecurrentCell(kind, size)
    if cell.bias is not None:
        torch.nn.init.normal_(cell.bias)
    cell = cell.to(dtype)
    projected = torch.randn(BATCH, STEPS, cell.weight.shape[0]).to(dtype).requires_grad_()
    state = tuple(torch.randn(BATCH, size).to(dtype).requires_grad_() for _ in cell.initial(BATCH))
    mask = torch.arange(STEPS) < torch.tensor([[STEPS], [1], [4]]) if masked else None
    factors = [torch.randn(BATCH, STEPS, size), *(torch.randn(BATCH, size) for _ in state)]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        output, last = cell.run(projected.to(torch.bfloat16) if half else projected, state, mask=mask, backward=backward)
    loss = sum((part * factor.to(dtype)).sum() for part, factor in zip((output, *last), factors, strict=True))
    assert isinstance(loss, Tensor)
    return [output, *last, *torch.autograd.grad(loss, [projected, *cell.parameters(), *state])]


@needs_library
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("size", [1, 5, 16, 37])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_a_layer_computes_what_its_cells_compute(
    kind: Literal["gru", "lstm"], size: int, masked: bool, backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = layer(kind, size, masked=masked, backward=backward)
    rounded = layer(kind, size, masked=masked, backward=backward, half=True)
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    exact = layer(kind, size, masked=masked, backward=backward, dtype=torch.float64)
    steps = layer(kind, size, masked=masked, backward=backward)
    for part, step, truth in zip(found, steps, exact, strict=True):
        # Rounded often differently, but no further from the truth than the steps of PyTorch, and a few roundings of the largest number.
        allowed = 2 * (step - truth).abs().max() + 8 * torch.finfo(torch.float32).eps * truth.abs().max()
        assert (part - truth).abs().max() <= allowed
    steps = layer(kind, size, masked=masked, backward=backward, half=True)
    for part, step, truth in zip(rounded, steps, exact, strict=True):
        assert part.dtype == step.dtype
        allowed = 2 * (step - truth).abs().max() + torch.finfo(torch.bfloat16).eps * truth.abs().max()
        assert (part - truth).abs().max() <= allowed


@needs_library
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_threads_and_strides_change_no_bit(kind: Literal["gru", "lstm"]) -> None:
    cell = RecurrentCell(kind, 21)
    projected = torch.randn(40, 6, cell.weight.shape[0])
    expected = cell.run(projected, cell.initial(40))[0]
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            assert torch.equal(cell.run(projected.transpose(0, 1).contiguous().transpose(0, 1), cell.initial(40))[0], expected)
    finally:
        torch.set_num_threads(before)


@needs_library
def test_nan_stays_in_its_row_and_masked_numbers_are_never_read() -> None:
    cell = RecurrentCell("lstm", 5)
    projected = torch.randn(3, 4, 20)
    expected = cell.run(projected, cell.initial(3), mask=torch.arange(4) < torch.tensor([[4], [2], [4]]))[0]
    projected[1, 2:] = torch.nan
    found = cell.run(projected, cell.initial(3), mask=torch.arange(4) < torch.tensor([[4], [2], [4]]))[0]
    assert torch.equal(found, expected)
    projected[0, 1] = torch.nan
    found = cell.run(projected, cell.initial(3))[0]
    assert found[0, 1:].isnan().all()
    assert found[2].isfinite().all()


@needs_library
def test_a_gradient_of_the_gradient_is_refused_by_name() -> None:
    cell = RecurrentCell("gru", 5)
    output, _ = cell.run(torch.randn(2, 3, 15), cell.initial(2))
    with pytest.raises(ConfigError, match="create_graph: Layer is differentiable once; float64 tensors or REGARD_KERNELS=torch"):
        torch.autograd.grad(output.sum(), cell.weight, create_graph=True)


def test_a_stack_runs_as_step_by_step() -> None:
    torch.manual_seed(2)
    stack = RecurrentStack("lstm", 3, 5, num_layers=2, extra_dim=4, dropout=0.0)
    gates, extra = stack.project(torch.randn(2, 6, 3)), torch.randn(2, 1, 4)
    layers = tuple(cell.initial(2) for cell in stack.cells)
    found, last = stack.run(gates, layers, extra)
    for step in range(6):
        layers = stack(gates[:, step], layers, extra[:, 0])
        torch.testing.assert_close(found[:, step], layers[-1][0])
    torch.testing.assert_close(last, layers)


def test_other_types_devices_and_transforms_are_left_to_the_steps() -> None:
    cell = RecurrentCell("gru", 5)
    state = cell.initial(2)

    def takes(projected: Tensor) -> bool:
        return supports(projected, cell.weight, cell.bias, state, None)

    assert takes(torch.randn(2, 3, 15)) == native.status().usable
    for other in (
        torch.randn(2, 3, 15).double(),
        torch.randn(2, 3, 15).half(),
        torch.randn(2, 0, 15),
        torch.randn(2, 3, 15, device="meta"),
    ):
        assert not takes(other)
    with torch.autocast("cpu", torch.bfloat16):
        assert not takes(torch.randn(2, 3, 15))
    each = torch.vmap(lambda x: cell.run(x, state)[0])(torch.randn(4, 2, 3, 15))
    assert each.shape == (4, 2, 3, 5)
