"""Element-wise part of recurrent cells with hand-written gradients: a quarter of autograd's memory passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.kernels import native
from regard.ops.kernels.second_order import once_differentiable
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
    projected, recurrent, bias = projected.to(kind), recurrent.to(kind), bias.to(kind)
    if kind == torch.float64 or native.forced_path() in ("reference", "torch") or not is_plain(projected, recurrent, bias, hidden):
        # Plain operations: the compiler fuses them, and float64 keeps second derivatives for checks.
        size = hidden.shape[-1]
        reset, update = torch.sigmoid(projected[..., : 2 * size] + recurrent[..., : 2 * size]).chunk(2, -1)
        new = torch.tanh(projected[..., 2 * size :] + reset * (recurrent[..., 2 * size :] + bias))
        return new + update * (hidden - new)
    return _GRUGates.apply(projected, recurrent, bias, hidden)


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
    i, f, g, o = gates.to(cell.dtype).chunk(4, -1)
    cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def _check_gates(operation: str, sizes: dict[str, int], count: int) -> None:
    if sizes["G"] != count * sizes["H"]:
        raise ShapeError(f"{operation}: gates (..., {count} H) for a state (..., H): found {sizes['G']} and {sizes['H']}")
