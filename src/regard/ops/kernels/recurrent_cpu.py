"""A step of a recurrent decoder by the native library: from tokens to what the output layer sees, in one call, without Python's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PanelLinear, Shelf

_MOST_WORD_GATES = 1 << 26  # numbers, of all words of a vocabulary
OUTSIDE = 2  # RECURRENT_OUTSIDE of csrc/recurrent.h


class CellWeights(NamedTuple):
    """The weights of a layer of G gates: of its input (G H, I), of its hidden state (G H, H), and of a GRU the bias behind the reset."""

    input: Affine
    recurrent: Affine
    bias: Tensor | None


@dataclass(frozen=True)
class RecurrentWeights:
    """The weights of a recurrent decoder; None for what it has not.

    Attributes:
        table: (V, E) the embedding.
        scale: of what comes out of it.
        layers: from the bottom up, all GRU or all LSTM.
        extra: to the first layer's gates, of the context or of the last readout.
        query: of an additive score.
        vector: (A,) of an additive score; None: the inner product.
        score_scale: of the inner product.
        readout: its parts, of state, embedded word (perhaps None) and context (None: the values hold what it makes of them).
        attend_first: Bahdanau's order, in which `extra` is of the context.
        deep: the readout takes the greater of two neighbours; otherwise it is tanh.
    """

    table: Tensor
    scale: float
    layers: Sequence[CellWeights]
    extra: Affine | None
    query: Affine | None
    vector: Tensor | None
    score_scale: float
    readout: tuple[Affine, Affine | None, Affine | None]
    attend_first: bool
    deep: bool


class Sources(NamedTuple):
    """The sources of a batch: projected keys (N, S, A), values (N, S, C), lengths (N,) long; all contiguous."""

    keys: Tensor
    values: Tensor
    lengths: Tensor


class Hypotheses(NamedTuple):
    """The hypotheses (B, K) of a step.

    Attributes:
        tokens: (B, K) long, the last of each.
        past: (N, W) the states that they continue: of each layer hidden, and cell of an LSTM; then the last readout if it is fed back.
        parents: (B, K) long, which of the N each continues.
        sentences: (B,) long, which source each sentence has.
    """

    tokens: Tensor
    past: Tensor
    parents: Tensor
    sentences: Tensor


class _Layer(ctypes.Structure):
    # Mirrors RecurrentLayer of csrc/recurrent.h.
    _fields_ = [("input", PanelLinear), ("recurrent", PanelLinear), ("bias", ctypes.c_void_p)]


class _Call(ctypes.Structure):
    # Mirrors RecurrentCall.
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        *((name, PanelLinear) for name in ("extra", "query", "state", "word", "context")),
        *(
            (name, ctypes.c_void_p)
            for name in ("vector", "table", "word_gates", "word_known", "keys", "values", "past", "next", "readout", "weights")
        ),
        *((name, ctypes.c_void_p) for name in ("tokens", "parents", "sentences", "lengths")),
        *((name, ctypes.c_int64) for name in ("count", "hidden", "embedded", "attended", "depth", "read", "vocabulary")),
        *((name, ctypes.c_int64) for name in ("rows", "share", "sources", "width", "first", "fed", "deep")),
        *((name, ctypes.c_double) for name in ("embedding_scale", "score_scale")),
        ("threads", ctypes.c_int64),
    ]


class RecurrentPlan:
    """The weights of a recurrent decoder as the native library wants them, copied once for many steps.

    Args:
        weights: float32 on the CPU.

    Example:
        >>> one = lambda *shape: Affine(torch.zeros(shape), None)
        >>> layer = CellWeights(Affine(torch.zeros(6, 3), torch.zeros(6)), one(6, 2), torch.zeros(2))
        >>> weights = RecurrentWeights(
        ...     torch.zeros(7, 3), 1.0, [layer], None, None, None, 1.0, (one(5, 2), None, one(5, 2)), attend_first=False, deep=False
        ... )
        >>> native.library() is None or RecurrentPlan(weights).read == 5
        True
    """

    def __init__(self, weights: RecurrentWeights) -> None:
        self._shelf = shelf = Shelf()
        self._weights = weights
        layers = [_Layer(shelf.linear(one.input), shelf.linear(one.recurrent), _kept(shelf, one.bias)) for one in weights.layers]
        self._layers = (_Layer * len(layers))(*layers)
        parts = (weights.extra, weights.query, *weights.readout)
        self._parts = [PanelLinear() if part is None else shelf.linear(part) for part in parts]
        self._vector, self._table = _kept(shelf, weights.vector), shelf.keep(weights.table)
        self._word_gates, self._word_known = self._words(shelf)
        self.hidden = weights.layers[0].recurrent.weight.shape[1]
        self.read = weights.readout[0].weight.shape[0] // (2 if weights.deep else 1)

    def _words(self, shelf: Shelf) -> tuple[int | None, int | None]:
        # Room for what the first layer makes of each word, filled by the steps; memory is taken only where one writes.
        vocabulary, gates = self._weights.table.shape[0], shelf.whole(self._layers[0].recurrent.outputs)
        if self._weights.readout[1] is not None or vocabulary * gates > _MOST_WORD_GATES:
            return None, None
        return shelf.keep(torch.empty(vocabulary, gates, dtype=torch.float32)), shelf.keep(torch.zeros(vocabulary, dtype=torch.int32))

    def step(self, hypotheses: Hypotheses, sources: Sources) -> tuple[Tensor, Tensor, Tensor]:
        """Read the last token of each hypothesis.

        Returns:
            The readouts (B, K, R), the weights on the source (B, K, S), and the new states (B K, W).

        Raises:
            IndexError: a token is outside the vocabulary.
        """
        library = native.library()
        assert library is not None
        tokens, past, parents, sentences = (part.contiguous() for part in hypotheses)
        (batch, beam), (_, length, attended), depth = tokens.shape, sources.keys.shape, sources.values.shape[-1]
        readout, weights = past.new_empty(batch, beam, self.read), past.new_empty(batch, beam, length)
        new = past.new_empty(batch * beam, past.shape[1])
        tensors = (sources.keys, sources.values, past, new, readout, weights, tokens, parents, sentences, sources.lengths)
        own = self._weights
        vocabulary, embedded = own.table.shape
        sizes = (
            len(self._layers),
            self.hidden,
            embedded,
            attended,
            depth,
            self.read,
            vocabulary,
            batch * beam,
            beam,
            length,
            past.shape[1],
        )
        fed = own.extra is not None and not own.attend_first
        flags = (own.attend_first, fed, own.deep)
        call = _Call(
            self._layers,
            *self._parts,
            self._vector,
            self._table,
            self._word_gates,
            self._word_known,
            *(tensor.data_ptr() for tensor in tensors),
            *sizes,
            *flags,
            own.scale,
            own.score_scale,
            torch.get_num_threads(),
        )
        result = library.regard_recurrent(ctypes.byref(call))
        if result == OUTSIDE:
            raise IndexError(f"a token is outside the vocabulary of {vocabulary}")
        if result:
            raise MemoryError("regard_recurrent: no memory for the threads")
        return readout, weights, new


def _kept(shelf: Shelf, part: Tensor | None) -> int | None:
    return None if part is None else shelf.keep(part)
