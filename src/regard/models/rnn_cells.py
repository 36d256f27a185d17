"""Recurrent cells: GRU, LSTM and tanh, one step at a time."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

# torch has no public name for it.
from torch.nn.modules.module import _has_any_global_hook  # pyright: ignore[reportPrivateUsage]

from regard import ops
from regard.constructor_checks import Count, Dropout, Size, checked
from regard.errors import ShapeError, counted
from regard.flags import takes_flags
from regard.ops.call_checks import takes_tensors
from regard.ops.number_checks import check_count
from regard.ops.recurrent_layer import run_layer, supports
from regard.ops.tensor_checks import Argument, Signature, autocasts, is_plain

CellKind = Literal["gru", "lstm", "tanh"]
Layers = tuple[tuple[Tensor, ...], ...]
"""The state of stacked layers: for each its parts, (hidden,) or (hidden, cell)."""

GATES = {"gru": 3, "lstm": 4, "tanh": 1}
_STEP = Signature("RecurrentCell", Argument("projected", "... G"), Argument("hidden", "... H"), Argument("cell", "... H", optional=True))
_STEPS = Signature(
    "RecurrentCell.run",
    Argument("projected", "B T G"),
    Argument("hidden", "B H"),
    Argument("cell", "B H", optional=True),
    Argument("mask", "B T", dtype="bool", optional=True),
)


class RecurrentCell(nn.Module):
    """One step of a recurrent layer, from inputs that are already projected to the gates.

        gru:  r = sig(x_r + U_r h); z = sig(x_z + U_z h); n = tanh(x_n + r * (U_n h + b)); h' = (1 - z) n + z h
        lstm: i, f, g, o = x + U h;  c' = sig(f) c + sig(i) tanh(g);  h' = sig(o) tanh(c')
        tanh: h' = tanh(x + U h)

    Cho et al. 2014 (arXiv:1406.1078); Hochreiter and Schmidhuber 1997. Gates are in torch's order, so weights are interchangeable with
    `torch.nn.GRUCell`, `LSTMCell` and `RNNCell`. Differs from the paper: the GRU resets after the product, as torch and cuDNN do. Recurrent
    weights start orthogonal (Bahdanau et al. 2015, B.1), gate by gate.

    Args:
        kind: "gru", "lstm" or "tanh".
        hidden_size: H.

    Example:
        >>> cell = RecurrentCell("gru", 5)
        >>> cell(torch.zeros(2, 15), cell.initial(2))[0].shape
        torch.Size([2, 5])
    """

    @checked
    def __init__(self, kind: CellKind, hidden_size: Size) -> None:
        super().__init__()
        self.kind: CellKind = kind
        self.hidden_size = hidden_size
        self.weight = nn.Parameter(torch.empty(GATES[kind] * hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(hidden_size)) if kind == "gru" else None
        for gate in self.weight.data.split(hidden_size):
            nn.init.orthogonal_(gate)

    def initial(self, batch_size: int) -> tuple[Tensor, ...]:
        """Return the zero state: (hidden,) or (hidden, cell), each (N, H)."""
        check_count("RecurrentCell.initial", "batch_size", batch_size)
        zero = self.weight.new_zeros(batch_size, self.hidden_size)
        return (zero, zero) if self.kind == "lstm" else (zero,)

    def forward(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Take one step: gate inputs (N, G H) with biases, state of (N, H) parts -> new state; its first part is the output.

        Raises:
            ShapeError: the tensors do not fit each other or the cell.
        """
        self._check(_STEP, projected, state)
        recurrent = ops.linear(state[0], self.weight)
        if self.kind == "gru":
            assert self.bias is not None
            return (ops.gru_gates(projected, recurrent, self.bias, state[0]),)
        if self.kind == "lstm":
            return ops.lstm_gates(projected + recurrent, state[1])
        return (torch.tanh(projected + recurrent),)

    @takes_flags
    def run(
        self, projected: Tensor, state: tuple[Tensor, ...], *, mask: Tensor | None = None, backward: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Take all steps: gate inputs (B, T, G H), the state before them -> the outputs (B, T, H) and the state behind them.

        Where `mask` (B, T) bool is False, the state stays and the output is 0. `backward` begins at the last position. In the native
        library if it supports the cell and no hook asks for its steps: one node of autograd, differentiable once in float32.

        Raises:
            ShapeError: the tensors do not fit each other or the cell.
        """
        self._check(_STEPS, projected, state, mask)
        size = projected.shape[1]
        # Which positions all rows have; while a graph is traced none counts as such.
        full = [mask is None] * size if mask is None or not is_plain(mask) or mask.is_meta else mask.all(0).tolist()
        mask = None if all(full) else mask
        if self.kind != "tanh" and self._is_usual() and supports(projected, self.weight, self.bias, state, mask):
            return run_layer(projected, self.weight, self.bias, state, mask, backward=backward)
        if mask is not None:  # a gradient of 0 times what may stand there is not always 0
            projected = projected.masked_fill(~mask.unsqueeze(-1), 0.0)
        steps = projected.unbind(1)
        outputs: list[Tensor] = [state[0]] * size
        keep = None if mask is None else mask.unsqueeze(-1).unbind(1)
        with ops.recurrent_steps():
            for position in reversed(range(size)) if backward else range(size):
                new = self(steps[position], state)
                if keep is None or full[position]:
                    state = new
                    outputs[position] = new[0]
                else:
                    state = tuple(torch.where(keep[position], n, s) for n, s in zip(new, state, strict=True))
                    outputs[position] = new[0].masked_fill(~keep[position], 0.0)
        return torch.stack(outputs, 1) if size else projected[..., : self.hidden_size], state

    def _is_usual(self) -> bool:
        hooks = (self._forward_hooks, self._forward_pre_hooks, self._backward_hooks, self._backward_pre_hooks)
        own = type(self).forward is RecurrentCell.forward and "forward" not in vars(self)
        return own and not any(hooks) and not _has_any_global_hook()

    def _check(self, signature: Signature, projected: Tensor, state: tuple[Tensor, ...], *mask: Tensor | None) -> None:
        parts = 2 if self.kind == "lstm" else 1
        if not isinstance(state, tuple | list) or len(state) != parts:
            found = type(state).__name__ if not isinstance(state, tuple | list) else counted(len(state), "tensor")
            raise ShapeError(f"{signature.operation}: state must be {('(hidden,)', '(hidden, cell)')[parts - 1]}, found {found}")
        sizes = signature.check(projected, *state, *[None] * (2 - parts), *mask)
        if not autocasts(projected.device.type) and any(part.dtype != self.weight.dtype for part in (projected, *state)):
            found = ", ".join(str(part.dtype) for part in (projected, *state))
            raise ShapeError(f"{signature.operation}: projected and state must be {self.weight.dtype} as the cell is, found {found}")
        gates, hidden = GATES[self.kind] * self.hidden_size, self.hidden_size
        if (sizes["G"], sizes["H"]) != (gates, hidden):
            raise ShapeError(
                f"{signature.operation}: a {self.kind} of {hidden} reads {gates} gate inputs and states of {hidden}, "
                f"found {sizes['G']} and {sizes['H']}"
            )

    def extra_repr(self) -> str:
        """Show kind and size."""
        return f"{self.kind}, hidden_size={self.hidden_size}"


class GateInput(ops.Linear):
    """Projection of an input to a cell's gates; initialised as in torch, uniform in 1 / sqrt(H).

    Args:
        input_dim: size of the input.
        kind: the cell's kind.
        hidden_size: H of the cell.
        bias: whether to add a bias; one projection per cell has it. An LSTM's forget gate starts at 1.

    Example:
        >>> GateInput(3, "lstm", 5).bias[5:10].tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0]
    """

    @checked
    def __init__(self, input_dim: Size, kind: CellKind, hidden_size: Size, *, bias: bool = True) -> None:
        super().__init__(input_dim, GATES[kind] * hidden_size, bias=bias)
        bound = 1 / math.sqrt(hidden_size)
        nn.init.uniform_(self.weight, -bound, bound)
        if bias:
            nn.init.zeros_(self.bias)
            if kind == "lstm":
                nn.init.ones_(self.bias.data[hidden_size : 2 * hidden_size])


class RecurrentStack(nn.Module):
    """Stacked recurrent layers, one step at a time, with an optional second input.

    Args:
        kind: cell.
        input_dim: E, size of the embedded word.
        hidden_size: H of every layer.
        num_layers: layers.
        extra_dim: size of a second input of the first layer (a context or a fed-back state); 0 for none.
        dropout: between layers.

    Example:
        >>> stack = RecurrentStack("lstm", 3, 5, num_layers=2, extra_dim=0, dropout=0.0)
        >>> state = tuple(cell.initial(2) for cell in stack.cells)
        >>> stack(stack.project(torch.ones(2, 3)), state)[-1][0].shape
        torch.Size([2, 5])
    """

    @checked
    def __init__(self, kind: CellKind, input_dim: Size, hidden_size: Size, *, num_layers: Size, extra_dim: Count, dropout: Dropout) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        layers = range(num_layers)
        self.inputs = nn.ModuleList(GateInput(hidden_size if layer else input_dim, kind, hidden_size) for layer in layers)
        self.cells = nn.ModuleList(RecurrentCell(kind, hidden_size) for _ in layers)
        self.extra = GateInput(extra_dim, kind, hidden_size, bias=False) if extra_dim else None
        self.dropout = ops.Dropout(dropout)

    def project(self, embedded: Tensor) -> Tensor:
        """Map embedded words (..., E) to the first layer's gates (..., G H); can be done for all steps at once."""
        return self.inputs[0](embedded)

    @takes_tensors
    def forward(self, gates: Tensor, layers: Layers, extra: Tensor | None = None) -> Layers:
        """Take one step: gates (..., G H) from `project`, the layers' states, and the second input (..., extra_dim) if it has one, whose
        last axis but one may be 1.

        Raises:
            ShapeError: the states are not one for each layer, or the second input is missing or not expected.
        """
        gates = self._with_extra(gates, layers, extra)
        new: list[tuple[Tensor, ...]] = []
        for index, cell in enumerate(self.cells):
            projected = gates if index == 0 else self.inputs[index](self.dropout(new[-1][0]))
            new.append(cell(projected, layers[index]))
        return tuple(new)

    @takes_tensors
    def run(self, gates: Tensor, layers: Layers, extra: Tensor | None = None) -> tuple[Tensor, Layers]:
        """Take all steps, layer by layer, so that each layer's gate inputs are one product.

        Args:
            gates: (B, T, G H) from `project`.
            layers: the states before them, of parts (B, H).
            extra: (B, 1 or T, extra_dim), or None without a second input.

        Returns:
            The outputs of the last layer (B, T, H), and the states behind them.

        Raises:
            ShapeError: see `forward`.
        """
        gates = self._with_extra(gates, layers, extra)
        last: list[tuple[Tensor, ...]] = []
        outputs = gates
        for index, cell in enumerate(self.cells):
            assert isinstance(cell, RecurrentCell)
            outputs, state = cell.run(gates if index == 0 else self.inputs[index](self.dropout(outputs)), layers[index])
            last.append(state)
        return outputs, tuple(last)

    def _with_extra(self, gates: Tensor, layers: Layers, extra: Tensor | None) -> Tensor:
        if not isinstance(layers, tuple | list) or len(layers) != len(self.cells):
            found = len(layers) if isinstance(layers, tuple | list) else type(layers).__name__
            raise ShapeError(f"RecurrentStack: expected a state for each of {counted(len(self.cells), 'layer')}, found {found}")
        if self.extra is None or extra is None:
            if self.extra is not extra:
                wanted = "None without extra_dim" if self.extra is None else "a tensor, found None"
                raise ShapeError(f"RecurrentStack: extra must be {wanted}")
            return gates
        size, found = self.extra.in_features, tuple(extra.shape)
        if found not in ((*gates.shape[:-1], size), (*gates.shape[:-2], 1, size)):
            raise ShapeError(
                f"RecurrentStack: extra must be {(*gates.shape[:-1], size)}, beside gates {tuple(gates.shape)}, "
                f"or 1 in its last axis but one, found {found}"
            )
        return gates + self.extra(extra)
