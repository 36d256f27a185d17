"""A recurrent layer over whole sources by the native library: all positions in one call."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PanelLinear, Shelf


class _Call(ctypes.Structure):
    # Mirrors EncoderCall of csrc/encoder.h.
    _fields_ = [
        ("recurrent", PanelLinear),
        *((name, ctypes.c_void_p) for name in ("bias", "gates", "lengths", "states", "final")),
        *((name, ctypes.c_int64) for name in ("batch", "sources", "hidden", "state_row", "backward", "threads")),
    ]


class EncoderPlan:
    """A cell's recurrent weights as the native library wants them, copied once for many sources.

    Args:
        weight: (G H, H) float32 on the CPU.
        bias: (H,) of a GRU's new state; None: an LSTM.

    Example:
        >>> native.library() is None or EncoderPlan(torch.zeros(6, 2), torch.zeros(2)).hidden == 2
        True
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._shelf = Shelf()
        self._recurrent = self._shelf.linear(Affine(weight, None))
        self._bias = None if bias is None else self._shelf.keep(bias)
        self.hidden = weight.shape[1]

    def run(self, gates: Tensor, lengths: Tensor, states: Tensor, *, backward: bool) -> tuple[Tensor, ...]:
        """Read sources in one direction.

        Args:
            gates: (B, S, G H), from the input, biases included.
            lengths: (B,) long.
            states: (B, S, H), where the hidden states are written, zeros past the lengths.
            backward: from the last item to the first.

        Returns:
            The last state of each sentence: hidden (B, H), and for an LSTM its cell.
        """
        library = native.library()
        assert library is not None
        gates, lengths = gates.contiguous(), lengths.to(torch.long).contiguous()
        batch, sources, _ = gates.shape
        final = gates.new_empty(batch, self.hidden * (1 if self._bias is not None else 2))
        pointers = (part.data_ptr() for part in (gates, lengths, states, final))
        sizes = (batch, sources, self.hidden, states.stride(1), backward, torch.get_num_threads())
        if library.regard_encoder(ctypes.byref(_Call(self._recurrent, self._bias, *pointers, *sizes))):
            raise MemoryError("regard_encoder: no memory for the threads")
        return final.split(self.hidden, -1)
