"""The most probable outputs of an output layer by the native library: the logits are never written down."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PanelLinear, Shelf


class _Call(ctypes.Structure):
    # Mirrors VocabularyCall of csrc/vocabulary.h.
    _fields_ = [
        ("output", PanelLinear),
        *((name, ctypes.c_void_p) for name in ("x", "forbidden", "log_probs", "places")),
        *((name, ctypes.c_int64) for name in ("rows", "width", "count", "forbidden_count", "instead")),
        ("least", ctypes.c_double),
        ("totals", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("share", "need", "threads")),
    ]


class Sums(NamedTuple):
    """What log-probabilities are added to, (B, K), descending; only the `need` greatest sums over the K of a sentence matter.

    Beside them what is as great of the output that may come `instead`: it is not counted.
    """

    totals: Tensor
    need: int


class OutputPlan:
    """An output layer's weights as the native library wants them, copied once for many steps.

    Args:
        output: float32 on the CPU, (V, R) and (V,) or None.

    Example:
        >>> output = Affine(torch.eye(3), None)
        >>> hidden, forbidden = torch.ones(2, 3), torch.tensor([0])
        >>> native.library() is None or OutputPlan(output).best(hidden, 1, forbidden, instead=2, least=-9.0)[1].tolist() == [[1], [1]]
        True
    """

    def __init__(self, output: Affine) -> None:
        self._shelf = Shelf()
        # The bias as the weight of one input more, which is 1: one pass over the logits less.
        whole = output.weight if output.bias is None else torch.cat([output.weight, output.bias.unsqueeze(1)], 1)
        self._output = self._shelf.linear(Affine(whole, None))

    @property
    def size(self) -> int:
        """V."""
        return self._output.outputs

    def best(
        self, hidden: Tensor, count: int, forbidden: Tensor, *, instead: int, least: float, sums: Sums | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the greatest log-probabilities of the outputs, and their places.

        Args:
            hidden: (..., R) float32.
            count: C, 1 to V.
            forbidden: (n,) long, outputs that are not among the best; they stay in the sum of probabilities.
            instead: the output that comes first where none is left or possible.
            least: the lowest log-probability that this one may have.
            sums: for hidden (B, K, R), what else is known; where nothing of a hypothesis matters it gets `least` throughout.

        Returns:
            Log-probabilities (..., C), descending, and places (..., C), equal ones ascending; -inf behind the last.
        """
        library = native.library()
        assert library is not None
        assert 1 <= count <= self.size
        hidden, forbidden = hidden.contiguous(), forbidden.contiguous()
        log_probs = hidden.new_empty(*hidden.shape[:-1], count)
        places = torch.empty(log_probs.shape, dtype=torch.long)
        pointers = (part.data_ptr() for part in (hidden, forbidden, log_probs, places))
        sizes = (hidden.shape[:-1].numel(), hidden.shape[-1], count, len(forbidden), instead)
        totals = None if sums is None else sums.totals.contiguous()
        share, need = (1, 0) if sums is None else (hidden.shape[-2], sums.need)
        address = None if totals is None else totals.data_ptr()
        call = _Call(self._output, *pointers, *sizes, least, address, share, need, torch.get_num_threads())
        if library.regard_vocabulary(ctypes.byref(call)):
            raise MemoryError("regard_vocabulary: no memory for the threads")
        return log_probs, places
