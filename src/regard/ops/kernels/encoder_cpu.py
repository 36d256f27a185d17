"""Native recurrent layer over whole sources in one call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.panels import Affine, PackedWeights
from regard.ops.kernels.structures import EncoderCall
from regard.ops.tensor_checks import Argument, Signature

_ENCODER = Kernel(
    "encoder",
    EncoderCall,
    Argument("gates", "batch sources numbers", "float32"),
    Argument("lengths", "batch", "int64", most="sources"),
    Argument("states", "batch sources hidden", "float32"),
    results=[Argument("final", "batch parts", "float32")],
    loose=["states"],
    operation="encoder",
)
_CELL = Signature("encoder", Argument("weight", "gates hidden", "float32"), Argument("bias", "hidden", "float32", optional=True))


class EncoderPlan:
    """Recurrent weights of a cell in the native library's layout, copied once for many sources.

    Args:
        weight: (G H, H) float32 on the CPU.
        bias: (H,) of a GRU's candidate state; None: an LSTM.
        dtype: of the packed products; see `PackedWeights`.

    Example:
        >>> from regard.ops.kernels import native
        >>> native.library() is None or EncoderPlan(torch.zeros(6, 2), torch.zeros(2)).hidden == 2
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> None:
        sizes = _CELL.check(weight, bias)
        if sizes["gates"] != sizes["hidden"] * (4 if bias is None else 3):
            raise ShapeError(f"encoder: a recurrent weight is (3 H, H) with a bias (H,) and (4 H, H) without, found {tuple(weight.shape)}")
        self._shelf = PackedWeights(dtype)
        self._recurrent = self._shelf.linear(Affine(weight, None))
        self._bias = None if bias is None else self._shelf.keep(bias)
        self.hidden = weight.shape[1]

    def run(self, gates: Tensor, lengths: Tensor, states: Tensor, *, backward: bool) -> tuple[Tensor, ...]:
        """Encode sources in one direction.

        Args:
            gates: (B, S, G H), input projections with biases.
            lengths: (B,) long, 0 to S.
            states: (B, S, H), output buffer of hidden states, zeros after the lengths; items are contiguous.
            backward: run from the last item to the first.

        Returns:
            The last state of each sentence: hidden (B, H), and for an LSTM its cell.

        Raises:
            ShapeError: a tensor is not of these shapes, or not float32.
            RangeError: a length is out of range; the message holds it.
        """
        gates, lengths = gates.contiguous(), lengths.to(torch.long).contiguous()
        if gates.shape[-1] != self._recurrent.outputs or states.shape[-1] != self.hidden:
            wanted = f"gates (B, S, {self._recurrent.outputs}) and states (B, S, {self.hidden})"
            raise ShapeError(f"encoder: expected {wanted}, found {tuple(gates.shape)} and {tuple(states.shape)}")
        if states.stride(0) != states.shape[1] * states.stride(1) and states.shape[0] > 1:
            raise ShapeError(f"encoder: the positions of states must follow each other, found strides {states.stride()}")
        parts = self.hidden * (1 if self._bias is not None else 2)
        given: dict[str, Any] = {"recurrent": self._recurrent, "bias": self._bias, "state_row": states.stride(1), "backward": backward}
        (final,) = _ENCODER(gates, lengths, states, parts=parts, **given)
        return final.split(self.hidden, -1)
