"""Element-wise part of recurrent cells with hand-written gradients: one pass in the native library, else a quarter of autograd's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import native
from regard.ops.kernels.kernel import address, invoke, solid
from regard.ops.kernels.second_order import differentiable_gradients, once_differentiable
from regard.ops.kernels.structures import GatesCall
from regard.ops.tensor_checks import Argument, Signature, is_plain

_GRU = Signature(
    "gru_gates", Argument("projected", "... G"), Argument("recurrent", "... G"), Argument("bias", "H"), Argument("hidden", "... H")
)
_LSTM = Signature("lstm_gates", Argument("gates", "... G"), Argument("cell", "... H"))


class _GRUGates(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
        size = hidden.shape[-1]
        gates = projected[..., : 2 * size].add(recurrent[..., : 2 * size]).sigmoid_()
        reset, update = gates.chunk(2, -1)
        inner = recurrent[..., 2 * size :] + bias
        new = torch.addcmul(projected[..., 2 * size :], reset, inner).tanh_()
        ctx.save_for_backward(reset, update, inner, new, hidden)
        return torch.lerp(new, hidden, update)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        reset, update, inner, new, hidden = ctx.saved_tensors
        size = hidden.shape[-1]
        projected_grad = torch.empty(*grad.shape[:-1], 3 * size, dtype=grad.dtype, device=grad.device)
        reset_grad, update_grad, new_grad = projected_grad.chunk(3, -1)
        hidden_grad = grad * update
        # d tanh: (1 - new^2); d sigmoid: s (1 - s)
        torch.mul(grad - hidden_grad, torch.addcmul(torch.ones((), dtype=new.dtype, device=new.device), new, new, value=-1), out=new_grad)
        torch.mul((hidden - new).mul_(hidden_grad), 1 - update, out=update_grad)
        recurrent_grad = torch.empty_like(projected_grad)
        torch.mul(new_grad, reset, out=recurrent_grad[..., 2 * size :])
        torch.mul(recurrent_grad[..., 2 * size :] * inner, 1 - reset, out=reset_grad)
        recurrent_grad[..., : 2 * size] = projected_grad[..., : 2 * size]
        bias_grad = recurrent_grad[..., 2 * size :].reshape(grad.shape[:-1].numel(), size).sum(0)
        return projected_grad, recurrent_grad, bias_grad, hidden_grad


class _NativeGates(torch.autograd.Function):
    # A GRU's have no `cell`; an LSTM's have no `recurrent`, bias and hidden state.
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, recurrent: Tensor | None, bias: Tensor | None, hidden: Tensor | None, cell: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        given, projected = projected, projected.contiguous()
        recurrent, bias, hidden, cell = (None if x is None else x.contiguous() for x in (recurrent, bias, hidden, cell))
        state = hidden if cell is None else cell
        assert state is not None
        next_hidden, next_cell = torch.empty_like(state), None if cell is None else torch.empty_like(cell)
        active = state.new_empty(*state.shape[:-1], 4 * state.shape[-1])
        call = _gates_call(projected, bias=bias, hidden=hidden, cell=cell, next_cell=next_cell, active=active)
        invoke("regard_gates_forward", _fill(call, projected=projected, recurrent=recurrent, next_hidden=next_hidden), "gates")
        ctx.save_for_backward(given if recurrent is None else None, bias, hidden, cell, next_cell, active)
        ctx.dtype = projected.dtype
        return next_hidden, next_cell

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_cell: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gates, *_, cell, _, _ = ctx.saved_tensors
        if gates is None or grad_cell is None or not torch.is_grad_enabled():
            return _NativeGates._gradients(ctx, grad, grad_cell)
        needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[4])
        of_gates, of_cell = differentiable_gradients(_both_states, (gates, cell), needed, torch.cat([grad, grad_cell], -1))
        return of_gates, None, None, None, of_cell

    @staticmethod
    @once_differentiable
    def _gradients(ctx: Any, grad: Tensor, grad_cell: Tensor | None) -> tuple[Tensor | None, ...]:
        _, bias, hidden, cell, next_cell, active = ctx.saved_tensors
        size = active.shape[-1] // 4
        of_hidden = solid(grad).clone()
        of_cell = None if cell is None or grad_cell is None else solid(grad_cell).clone()
        of_projected = active.new_empty(*active.shape[:-1], (4 if bias is None else 3) * size, dtype=ctx.dtype)
        of_recurrent = None if bias is None else torch.empty_like(of_projected)
        call = _gates_call(of_projected, bias=bias, hidden=hidden, cell=cell, next_cell=next_cell, active=active)
        _fill(call, grad_hidden=of_hidden, grad_cell=of_cell, grad_projected=of_projected, grad_recurrent=of_recurrent)
        invoke("regard_gates_backward", call, "gates")
        if bias is None or of_recurrent is None:
            return of_projected, None, None, None, of_cell
        return of_projected, of_recurrent, of_recurrent[..., 2 * size :].reshape(-1, size).sum(0, dtype=bias.dtype), of_hidden, None


def _both_states(gates: Tensor, cell: Tensor) -> Tensor:
    return torch.cat(_lstm(gates, cell), -1)


def _lstm(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    # Half precision in float32: rounded after each of these, the error is over twice that of torch.nn.LSTM.
    kind, exact = cell.dtype, torch.promote_types(cell.dtype, torch.float32)
    i, f, g, o = gates.to(exact).chunk(4, -1)
    cell = torch.sigmoid(f) * cell.to(exact) + torch.sigmoid(i) * torch.tanh(g)
    return (torch.sigmoid(o) * torch.tanh(cell)).to(kind), cell.to(kind)


def _gates_call(projected: Tensor, *, active: Tensor, **saved: Tensor | None) -> GatesCall:
    size, gates = active.shape[-1] // 4, projected.shape[-1]
    numbers = {"projected_row": gates, "rows": projected.numel() // gates, "size": size, "half": projected.dtype == torch.bfloat16}
    return _fill(GatesCall(**numbers, threads=torch.get_num_threads()), active=active, **saved)


def _fill(call: GatesCall, **tensors: Tensor | None) -> GatesCall:
    for name, tensor in tensors.items():
        if tensor is not None:
            setattr(call, name, address(tensor, "gates", name))
    return call


def _is_native(kind: torch.dtype, gates: Tensor, *others: Tensor) -> bool:
    return kind == torch.float32 and gates.dtype in (torch.float32, torch.bfloat16) and gates.numel() > 0 and native.takes(gates, *others)


@takes_tensors
def gru_gates(projected: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
    """Combine a GRU's gate inputs into the next hidden state.

        r = sig(p_r + u_r);  z = sig(p_z + u_z);  n = tanh(p_n + r * (u_n + b));  h' = (1 - z) n + z h

    Cho et al. 2014, with the reset after the product as in torch and cuDNN. Gates stand in torch's order r, z, n. Computed in the
    hidden state's dtype, so that autocast does not round the state.

    Args:
        projected: (..., 3H) the input's part, biases included.
        recurrent: (..., 3H) the state's part, `hidden @ U.T`.
        bias: (H,) added to u_n.
        hidden: (..., H).

    Returns:
        (..., H).

    Raises:
        ShapeError: incompatible shapes.

    Example:
        >>> gru_gates(torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1), torch.ones(1, 1)).item()
        0.5
    """
    _check_gates("gru_gates", _GRU.check(projected, recurrent, bias, hidden), 3)
    kind = hidden.dtype
    bias = bias.to(kind)
    if projected.dtype == recurrent.dtype and _is_native(kind, projected, recurrent, bias, hidden):
        return _NativeGates.apply(projected, recurrent, bias, hidden, None)[0]
    projected, recurrent = projected.to(kind), recurrent.to(kind)
    if kind == torch.float64 or native.forced_path() in ("reference", "torch") or not is_plain(projected, recurrent, bias, hidden):
        # Plain operations: the compiler fuses them, and float64 keeps second derivatives for checks.
        size = hidden.shape[-1]
        reset, update = torch.sigmoid(projected[..., : 2 * size] + recurrent[..., : 2 * size]).chunk(2, -1)
        new = torch.tanh(projected[..., 2 * size :] + reset * (recurrent[..., 2 * size :] + bias))
        return new + update * (hidden - new)
    return _GRUGates.apply(projected, recurrent, bias, hidden)


@takes_tensors
def lstm_gates(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Combine an LSTM's gate inputs into the next hidden and cell state.

        c' = sig(f) c + sig(i) tanh(g);  h' = sig(o) tanh(c')

    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. Gates stand in torch's order i, f, g, o.

    Args:
        gates: (..., 4H), biases included.
        cell: (..., H).

    Returns:
        hidden and cell, each (..., H), in the cell's dtype.

    Raises:
        ShapeError: incompatible shapes.

    Example:
        >>> lstm_gates(torch.zeros(1, 4), torch.ones(1, 1))[1].item()
        0.5
    """
    _check_gates("lstm_gates", _LSTM.check(gates, cell), 4)
    if _is_native(cell.dtype, gates, cell):
        return _NativeGates.apply(gates, None, None, None, cell)
    return _lstm(gates, cell)


def _check_gates(operation: str, sizes: dict[str, int], count: int) -> None:
    if sizes["G"] != count * sizes["H"]:
        raise ShapeError(f"{operation}: gates (..., {count} H) for a state (..., H): found {sizes['G']} and {sizes['H']}")
