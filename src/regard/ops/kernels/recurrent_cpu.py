"""Native step of a recurrent decoder: from tokens to the output layer's input in one call, without the GIL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.panels import Affine, PackedWeights
from regard.ops.kernels.structures import RecurrentCall, RecurrentLayer
from regard.ops.tensor_checks import Argument, Signature

_MAX_WORD_GATES = 1 << 26  # numbers, for all words of a vocabulary


class CellWeights(NamedTuple):
    """Weights of a layer with G gates: input (G H, I), hidden state (G H, H), and the GRU bias inside the reset."""

    input: Affine
    recurrent: Affine
    bias: Tensor | None


@dataclass(frozen=True)
class RecurrentWeights:
    """Weights of a recurrent decoder; missing parts are None.

    Attributes:
        table: (V, E) the embedding.
        scale: factor of the embedding.
        layers: from the bottom up, all GRU or all LSTM.
        extra: weights from the context or the last readout to the first layer's gates.
        query: query projection of an additive score.
        vector: (A,) of an additive score; None: dot product.
        score_scale: factor of the dot product.
        readout: its weights for state, embedded word (or None) and context (None: values are already projected).
        attend_first: Bahdanau's order, in which `extra` reads the context.
        deep: maxout readout; otherwise tanh.
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
        tokens: (B, K) long, last token of each.
        past: (N, W) states to continue: per layer hidden, and cell for an LSTM; then the last readout for input feeding.
        parents: (B, K) long, row of each in `past`.
        sentences: (B,) long, source of each sentence.
    """

    tokens: Tensor
    past: Tensor
    parents: Tensor
    sentences: Tensor


_STEP = Kernel(
    "recurrent",
    RecurrentCall,
    Argument("keys", "batch sources attended", "float32"),
    Argument("values", "batch sources depth", "float32"),
    Argument("lengths", "batch", "int64", most="sources"),
    Argument("past", "states width", "float32"),
    Argument("tokens", "sentences share", "int64", below="vocabulary"),
    Argument("parents", "sentences share", "int64", below="states"),
    Argument("sentences", "sentences", "int64", below="batch"),
    results=[
        Argument("readout", "sentences share read", "float32"),
        Argument("weights", "sentences share sources", "float32"),
        Argument("next", "rows width", "float32"),
    ],
    operation="recurrent step",
)
_WEIGHTS = Signature(
    "recurrent decoder",
    Argument("table", "V E", "float32"),
    Argument("input", "G E", "float32"),
    Argument("recurrent", "G H", "float32"),
    Argument("bias", "H", "float32", optional=True),
    Argument("extra", "G X", "float32", optional=True),
    Argument("query", "A H", "float32", optional=True),
    Argument("vector", "A", "float32", optional=True),
    Argument("state", "O H", "float32"),
    Argument("word", "O E", "float32", optional=True),
    Argument("context", "O C", "float32", optional=True),
)
_UPPER = Signature(
    "recurrent decoder",
    Argument("input", "G H", "float32"),
    Argument("recurrent", "G H", "float32"),
    Argument("bias", "H", "float32", optional=True),
    Argument("bottom", "G H", "float32"),
)


def _check(weights: RecurrentWeights) -> dict[str, int]:
    # Returns the sizes for `_WEIGHTS`.
    bottom, *upper = weights.layers
    parts = (bottom.input, bottom.recurrent, weights.extra, weights.query, *weights.readout)
    of_input, recurrent, extra, query, *readout = (None if part is None else part.weight for part in parts)
    sizes = _WEIGHTS.check(weights.table, of_input, recurrent, bottom.bias, extra, query, weights.vector, *readout)
    for layer in upper:
        _UPPER.check(layer.input.weight, layer.recurrent.weight, layer.bias, bottom.recurrent.weight)
    read = sizes["O"] // (2 if weights.deep else 1)
    gates, added = (4 if bottom.bias is None else 3) * sizes["H"], sizes.get("C") if weights.attend_first else read
    cells = {layer.bias is None for layer in weights.layers}
    if sizes["G"] != gates or sizes.get("X", added) != added or len(cells) > 1 or sizes["O"] % (2 if weights.deep else 1):
        raise ShapeError(f"recurrent decoder: weights of these sizes do not fit together: {sizes}")
    return sizes


class RecurrentPlan:
    """Weights of a recurrent decoder in the native library's layout, copied once for many steps.

    Args:
        weights: float32 on the CPU.
        dtype: of the packed products; see `PackedWeights`.

    Example:
        >>> one = lambda *shape: Affine(torch.zeros(shape), None)
        >>> layer = CellWeights(Affine(torch.zeros(6, 3), torch.zeros(6)), one(6, 2), torch.zeros(2))
        >>> weights = RecurrentWeights(
        ...     torch.zeros(7, 3), 1.0, [layer], None, None, None, 1.0, (one(5, 2), None, one(5, 2)), attend_first=False, deep=False
        ... )
        >>> from regard.ops.kernels import native
        >>> native.library() is None or RecurrentPlan(weights).read == 5
        True
    """

    def __init__(self, weights: RecurrentWeights, dtype: torch.dtype = torch.float32) -> None:
        sizes = _check(weights)
        self._shelf = shelf = PackedWeights(dtype)
        self._weights = weights
        layers = [RecurrentLayer(shelf.linear(one.input), shelf.linear(one.recurrent), _kept(shelf, one.bias)) for one in weights.layers]
        self._layers = (RecurrentLayer * len(layers))(*layers)
        self.hidden, self.read = sizes["H"], sizes["O"] // (2 if weights.deep else 1)
        fed = weights.extra is not None and not weights.attend_first
        # Sizes of the keys, values and states of a step.
        self._attended, self._depth = sizes.get("A", self.hidden), sizes.get("C", sizes["O"])
        self._width = len(layers) * self.hidden * (2 if weights.layers[0].bias is None else 1) + (self.read if fed else 0)
        word_gates, word_known = self._words(shelf)
        parts = zip(("extra", "query", "state", "word", "context"), (weights.extra, weights.query, *weights.readout), strict=True)
        self._constants: dict[str, Any] = {
            **{name: shelf.linear(part) for name, part in parts if part is not None},
            **{"layers": self._layers, "vector": _kept(shelf, weights.vector), "table": shelf.keep(weights.table)},
            **{"word_gates": word_gates, "word_known": word_known},
            **{"count": len(layers), "hidden": self.hidden, "embedded": sizes["E"], "read": self.read, "vocabulary": sizes["V"]},
            **{"first": weights.attend_first, "fed": fed, "deep": weights.deep},
            **{"embedding_scale": weights.scale, "score_scale": weights.score_scale},
        }

    def _words(self, shelf: PackedWeights) -> tuple[int | None, int | None]:
        # Cache of the first layer's projection per word, filled on use; pages are allocated only when written.
        vocabulary, gates = self._weights.table.shape[0], shelf.whole(self._layers[0].recurrent.outputs)
        if self._weights.readout[1] is not None or vocabulary * gates > _MAX_WORD_GATES:
            return None, None
        return shelf.keep(torch.empty(vocabulary, gates, dtype=torch.float32)), shelf.keep(torch.zeros(vocabulary, dtype=torch.int32))

    def step(self, hypotheses: Hypotheses, sources: Sources) -> tuple[Tensor, Tensor, Tensor]:
        """Decode the last token of each hypothesis.

        Returns:
            The readouts (B, K, R), the weights on the source (B, K, S), and the new states (B K, W).

        Raises:
            ShapeError: a tensor has another shape or dtype than the weights require.
            RangeError: a token, parent, sentence or length is out of range; the message holds it.
        """
        tokens, past, parents, sentences = self._checked(hypotheses, sources)
        readout, weights, new = _STEP(*sources, past, tokens, parents, sentences, rows=tokens.numel(), **self._constants)
        return readout, weights, new

    def prepared(self, hypotheses: Hypotheses, sources: Sources) -> tuple[RecurrentCall, Tensor]:
        """Return a prepared call for a search that modifies its inputs: copies of the states, one hypothesis per sentence.

        Returns:
            The call, and its output buffer of readouts (B, R).

        Raises:
            ShapeError: see `step`.
        """
        tokens, past, parents, sentences = self._checked(hypotheses, sources)
        given = (*sources, past.clone(), tokens, parents, sentences.clone())
        call, call.results = _STEP.make(*given, rows=tokens.numel(), **self._constants)
        return call, call.results[0].squeeze(1)

    def _checked(self, hypotheses: Hypotheses, sources: Sources) -> Hypotheses:
        tokens, past, parents, sentences = (part.contiguous() for part in hypotheses)
        found = sources.keys.shape[2:], sources.values.shape[2:], past.shape[1:]
        if found != ((self._attended,), (self._depth,), (self._width,)):
            wanted = f"keys (N, S, {self._attended}), values (N, S, {self._depth}) and states (N, {self._width})"
            given = ", ".join(str(tuple(part.shape)) for part in (sources.keys, sources.values, past))
            raise ShapeError(f"recurrent step: the weights ask for {wanted}, found {given}")
        return Hypotheses(tokens, past, parents, sentences)


def _kept(shelf: PackedWeights, part: Tensor | None) -> int | None:
    return None if part is None else shelf.keep(part)
