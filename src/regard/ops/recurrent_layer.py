"""A recurrent layer over whole sequences as one node of autograd.

The element-wise part of a step is one pass of the native library, the products with the recurrent weight are PyTorch's. The gradients of
all gates lie side by side, so that the weight's is one product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.kernels import native
from regard.ops.kernels.kernel import address, invoke, solid
from regard.ops.kernels.second_order import once_differentiable
from regard.ops.kernels.structures import GatesCall
from regard.ops.linear import compute_dtype, matmul, outer_product
from regard.ops.tensor_checks import Argument, Signature

_ARGUMENTS = Signature(
    "recurrent layer",
    Argument("projected", "B T G"),
    Argument("weight", "G H", dtype="float32"),
    Argument("bias", "H", dtype="float32", optional=True),
    Argument("hidden", "B H", dtype="float32"),
    Argument("cell", "B H", dtype="float32", optional=True),
    Argument("kept", "B T", dtype="bool", optional=True),
)
State = tuple[Tensor, ...]
"""(hidden,) of a GRU, (hidden, cell) of an LSTM, each (B, H)."""


def supports(projected: Tensor, weight: Tensor, bias: Tensor | None, state: State, kept: Tensor | None) -> bool:
    """Return whether the native library runs a layer: on a CPU in float32, or under autocast in bfloat16.

    Args:
        projected: (B, T, G), gate inputs.
        weight: (G, H).
        bias: (H,) of a GRU, or None.
        state: before the first step.
        kept: (B, T) bool, or None.

    Example:
        >>> supports(torch.ones(1, 0, 4), torch.ones(4, 1), None, (torch.ones(1, 1), torch.ones(1, 1)), None)
        False
    """
    wide = all(part is None or part.dtype == torch.float32 for part in (weight, bias, *state))
    kind = compute_dtype(projected)
    if not wide or projected.dtype != kind or kind not in (torch.float32, torch.bfloat16) or not projected.numel():
        return False
    return projected.stride(-1) == 1 and native.takes(projected, weight, bias, *state, kept)


def run_layer(
    projected: Tensor, weight: Tensor, bias: Tensor | None, state: State, kept: Tensor | None, *, backward: bool
) -> tuple[Tensor, State]:
    """Run a layer that `supports` accepts over whole sequences; differentiable once.

    Args:
        projected: (B, T, G), gate inputs with biases, in torch's order.
        weight: (G, H), of the hidden state.
        bias: (H,) added within a GRU's reset; None for an LSTM.
        state: before the first step.
        kept: (B, T) bool; where False the state stays and the output is 0; None: all True.
        backward: from the last position to the first.

    Returns:
        The hidden states (B, T, H), and the last state.

    Raises:
        ShapeError: the tensors do not fit each other.

    Example:
        >>> layer = torch.zeros(2, 3, 4), torch.ones(4, 1), None, (torch.ones(2, 1), torch.ones(2, 1)), None
        >>> run_layer(*layer, backward=False)[0].shape if supports(*layer) else torch.Size([2, 3, 1])
        torch.Size([2, 3, 1])
    """
    hidden, cell = state if len(state) > 1 else (*state, None)
    sizes = _ARGUMENTS.check(projected, weight, bias, hidden, cell, kept)
    if (bias is None) != (cell is not None) or sizes["G"] != (4 if bias is None else 3) * sizes["H"]:
        raise ShapeError(
            f"recurrent layer: a GRU has 3 H gates, a bias and one state, an LSTM 4 H gates and two states; "
            f"found {sizes['G']} gates, {'no' if bias is None else 'a'} bias, {len(state)} states of H = {sizes['H']}"
        )
    learns = any(part is not None and part.requires_grad for part in (projected, weight, bias, hidden, cell))
    settings = (kept, backward, learns and torch.is_grad_enabled())
    output, hidden, cell = _Layer.apply(projected, weight.to(projected.dtype), bias, hidden, cell, settings)
    return output, (hidden,) if cell is None else (hidden, cell)


class _Walk:
    """The structure of a step, and where the numbers of each step lie.

    Args:
        shape: rows, steps and size of the layer.
        bias: of a GRU.
        half: bfloat16 numbers.
        backward: positions are taken from the last to the first.
    """

    def __init__(self, shape: tuple[int, int, int], bias: Tensor | None, *, half: bool, backward: bool) -> None:
        rows, self._count, size = shape
        self._backward = backward
        self._parts: list[tuple[str, int, int]] = []
        given = None if bias is None else address(bias, "recurrent layer", "bias")
        self.call = GatesCall(bias=given, half=half, rows=rows, size=size, threads=torch.get_num_threads())

    def take(self, **tensors: Tensor | None) -> None:
        """Take tensors of which entry i, along the first axis, belongs to the i-th step."""
        for name, tensor in tensors.items():
            if tensor is not None:
                self._parts.append((name, address(tensor, "recurrent layer", name), tensor.stride(0) * tensor.element_size()))

    def take_positions(self, axis: int, **tensors: Tensor | None) -> None:
        """Take tensors with an axis of positions."""
        for name, tensor in tensors.items():
            if tensor is not None:
                start, distance = address(tensor, "recurrent layer", name), tensor.stride(axis) * tensor.element_size()
                last = start + (self._count - 1) * distance
                self._parts.append((name, last, -distance) if self._backward else (name, start, distance))

    def at(self, step: int) -> GatesCall:
        """Return the structure of a step."""
        for name, start, distance in self._parts:
            setattr(self.call, name, start + step * distance)
        return self.call


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        projected: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        hidden: Tensor,
        cell: Tensor | None,
        settings: tuple[Tensor | None, bool, bool],
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        kept, backward, differentiable = settings
        (batch, steps, _), size, half = projected.shape, hidden.shape[-1], projected.dtype == torch.bfloat16
        # States before each step in the order of the steps, and behind them the last one.
        hiddens, cells = (None if part is None else part.new_empty(steps + 1, batch, size) for part in (hidden, cell))
        assert hiddens is not None
        hiddens[0] = hidden
        if cell is not None and cells is not None:
            cells[0] = cell
        inputs = hiddens.to(projected.dtype)  # what is multiplied with the weight
        output = hidden.new_empty(batch, steps, size)
        active = hidden.new_empty(steps, batch, 4 * size) if differentiable else None
        kept = None if kept is None else kept.t().contiguous()
        bias = None if bias is None else bias.contiguous()
        walk = _Walk((batch, steps, size), bias, half=half, backward=backward)
        walk.call.projected_row, walk.call.output_row = projected.stride(0), output.stride(0)
        walk.take(hidden=hiddens, next_hidden=hiddens[1:], cell=cells, next_cell=None if cells is None else cells[1:], active=active)
        walk.take(half_hidden=inputs[1:] if half else None)
        walk.take_positions(1, projected=projected, output=output)
        walk.take_positions(0, kept=kept)
        recurrent = None  # one memory for all steps: to find a free one takes glibc long in a training that frees many
        for step in range(steps):
            recurrent = matmul(inputs[step], weight, out=recurrent)
            walk.call.recurrent = recurrent.data_ptr()
            invoke("regard_gates_forward", walk.at(step), "recurrent layer")
        if differentiable:
            ctx.save_for_backward(weight, bias, hiddens, cells, inputs, active, kept)
            ctx.backward_order = backward
        return output, hiddens[steps].clone(), None if cells is None else cells[steps].clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor, grad_hidden: Tensor, grad_cell: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        weight, bias, hiddens, cells, inputs, active, kept = ctx.saved_tensors
        (steps, batch, size), gates = active[..., : hiddens.shape[-1]].shape, weight.shape[0]
        grad, grad_hidden = solid(grad), solid(grad_hidden).clone()
        grad_cell = None if cells is None or grad_cell is None else solid(grad_cell).clone()
        grad_projected = inputs.new_empty(batch, steps, gates)
        grad_recurrent = inputs.new_empty(steps, batch, gates)
        walk = _Walk((batch, steps, size), bias, half=inputs.dtype == torch.bfloat16, backward=ctx.backward_order)
        walk.call.projected_row, walk.call.output_row = grad_projected.stride(0), grad.stride(0)
        walk.call.grad_hidden = grad_hidden.data_ptr()
        walk.call.grad_cell = None if grad_cell is None else grad_cell.data_ptr()
        walk.take(hidden=hiddens, cell=cells, next_cell=None if cells is None else cells[1:], active=active, grad_recurrent=grad_recurrent)
        walk.take_positions(1, grad_projected=grad_projected, grad_output=grad)
        walk.take_positions(0, kept=kept)
        turned, through = weight.t(), None
        for step in reversed(range(steps)):
            walk.call.recurrent = None if through is None else through.data_ptr()
            invoke("regard_gates_backward", walk.at(step), "recurrent layer")
            through = matmul(grad_recurrent[step], turned, out=through)
        assert through is not None
        flat = grad_recurrent.flatten(0, 1)
        return (
            grad_projected,
            outer_product(flat, inputs[:-1].flatten(0, 1)) if ctx.needs_input_grad[1] else None,
            None if bias is None else flat[:, 2 * size :].sum(0, dtype=bias.dtype),
            grad_hidden + through if ctx.needs_input_grad[3] else None,
            grad_cell,
            None,
        )
