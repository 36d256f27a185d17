"""Native step of a Transformer decoder: all layers in one call, without the GIL and other threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import RangeError, ShapeError
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.panels import Affine, PackedWeights
from regard.ops.kernels.structures import DecoderCall, DecoderKeys, DecoderLayer, DecoderNorm
from regard.ops.tensor_checks import Argument, Signature, check_range


class AreaKeyWeights(NamedTuple):
    """Weights of area keys by Eq. 9 for heads of size D: W_d relu(W_mu mean + W_sigma deviation + shape).

    Attributes:
        moments: W_mu and W_sigma concatenated, (D, 2 D).
        output: W_d.
        shape: (A, D), the size embedding W_e e.
    """

    moments: Affine
    output: Affine
    shape: Tensor


class DecoderLayerWeights(NamedTuple):
    """Weights of a decoder layer.

    Attributes:
        project: projection of self-attention's queries, keys and values.
        join: output projection of self-attention.
        ask: query projection of cross-attention.
        answer: output projection of cross-attention.
        hidden: first layer of the feed-forward network, before relu.
        output: its second layer.
        norms: norms of self-attention, cross-attention and feed-forward network.
        areas: max area of self-attention and of cross-attention; 1: items only, or materialized areas.
        learned: key weights of self-attention with Eq. 9, A areas per item.
    """

    project: tuple[Affine, Affine, Affine]
    join: Affine
    ask: Affine
    answer: Affine
    hidden: Affine
    output: Affine
    norms: tuple[Affine, Affine, Affine]
    areas: tuple[int, int] = (1, 1)
    learned: AreaKeyWeights | None = None


class DecoderMemory(NamedTuple):
    """Memory of a layer, with contiguous items.

    Attributes:
        key: (M, H, D) self-attention cache, contiguous; the current items are written into it.
        value: (M, H, D), likewise.
        area_key: (M A, H, D), the same for learned area keys: those that end at an item, shortest first.
        area_value: (M A, H, D), likewise.
        source_key: (N, H, D).
        source_value: (N, H, D).
        places: (G, S) long, attended source slots, for R / G rows each.
        lengths: (G,) long, or None: all S.
    """

    key: Tensor
    value: Tensor
    area_key: Tensor | None
    area_value: Tensor | None
    source_key: Tensor
    source_value: Tensor
    places: Tensor
    lengths: Tensor | None


_STEP = Kernel(
    "decoder",
    DecoderCall,
    Argument("x", "rows width", "float32"),
    Argument("places", "rows steps", "int64"),
    results=[Argument("out", "rows width", "float32"), Argument("weights", "groups share heads sources", "float32")],
    operation="decoder step",
)
# A layer's tensors, checked and passed like those of a call.
_MEMORY = Kernel(
    "decoder",
    DecoderLayer,
    Argument("keys", "items heads size", "float32"),
    Argument("values", "items heads size", "float32"),
    Argument("area_keys", "made heads size", "float32", optional=True),
    Argument("area_values", "made heads size", "float32", optional=True),
    Argument("source_keys", "source_items heads size", "float32"),
    Argument("source_values", "source_items heads size", "float32"),
    Argument("source_places", "groups sources", "int64"),
    Argument("source_lengths", "groups", "int64", optional=True),
    loose=["source_keys", "source_values"],
    operation="decoder step",
)
_WEIGHTS = Signature(
    "decoder layer",
    *(Argument(name, "E E", "float32") for name in ("query", "key", "value", "join", "ask", "answer")),
    Argument("hidden", "F E", "float32"),
    Argument("output", "E F", "float32"),
    *(Argument(name, "E", "float32") for name in ("norm of self-attention", "norm of the source", "norm of the feed-forward")),
)
_LEARNED = Signature(
    "decoder layer, keys of areas",
    Argument("moments", "D D2", "float32"),
    Argument("output", "D D", "float32"),
    Argument("shape", "A D", "float32"),
)


class DecoderPlan:
    """Weights of a decoder in the native library's layout, copied once for many steps.

    Args:
        layers: float32 on the CPU.
        norm: final norm, or None.
        heads: H of every attention.
        pre: pre-norm layers.
        eps: of the norms.
        shown: layer whose cross-attention weights are returned.
        dtype: of the packed products; see `PackedWeights`.

    Attributes:
        shown: as passed.
        learned: per layer the number of areas with area features (Eq. 9) that end at an item; 0 without.

    Example:
        >>> one = lambda *shape: Affine(torch.zeros(shape), torch.zeros(shape[:1]))
        >>> project, norm = (one(2, 2), one(2, 2), one(2, 2)), one(2)
        >>> layer = DecoderLayerWeights(project, one(2, 2), one(2, 2), one(2, 2), one(3, 2), one(2, 3), (norm, norm, norm))
        >>> from regard.ops.kernels import native
        >>> native.library() is None or DecoderPlan([layer], None, heads=1, pre=False, eps=1e-5, shown=0).width == 2
        True
    """

    def __init__(
        self,
        layers: Sequence[DecoderLayerWeights],
        norm: Affine | None,
        *,
        heads: int,
        pre: bool,
        eps: float,
        shown: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self._shelf = PackedWeights(dtype)
        self.width, self._heads = layers[0].join.weight.shape[0], heads
        self._pre, self._eps, self.shown = pre, eps, shown
        self._norm = DecoderNorm() if norm is None else self._point(norm)
        self._layers = (DecoderLayer * len(layers))(*(self._layer(layer) for layer in layers))
        self.learned = [0 if layer.learned is None else len(layer.learned.shape) for layer in layers]

    @property
    def heads_and_size(self) -> tuple[int, int]:
        """H and D."""
        return self._heads, self.width // self._heads

    def step(self, x: Tensor, memories: Sequence[DecoderMemory], places: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Run all layers on the current token of each row.

        Args:
            x: (R, E), embedded.
            memories: one per layer.
            places: (R, T) long, cache slots of each row, the current item last.
            first: cache slot of the current item of row 0; those of the other rows follow.

        Returns:
            (R, E), and the weights of layer `shown` (G, R / G, H, S).
        """
        x, places = x.contiguous(), places.contiguous()
        given, kept = self._given(len(x), memories)
        if x.shape[1:] != (self.width,):
            raise ShapeError(f"decoder step: x (R, {self.width}), found {tuple(x.shape)}")
        try:
            out, weights = _STEP(x, places, first=first, shown=self.shown, **given)
        except RangeError:
            self._check_indices(memories, places, (first, len(x)))
            raise
        del kept  # alive until here
        return out, weights

    def prepared(self, rows: int, memories: Sequence[DecoderMemory]) -> tuple[DecoderCall, Tensor]:
        """Return a prepared call for a search that updates the slots; it returns no weights.

        Args:
            rows: R, one per row of the memories' tables, which are modified.
            memories: one per layer, with capacity for all future items.

        Returns:
            The call, and its output buffer (R, E).
        """
        given, kept = self._given(rows, memories)
        x, places = torch.zeros(rows, self.width), torch.zeros(rows, 1, dtype=torch.long)
        call, (out, _) = _STEP.make(x, places, without=("weights",), first=0, shown=-1, **given)
        call.kept = kept
        return call, out

    def _given(self, rows: int, memories: Sequence[DecoderMemory]) -> tuple[dict[str, Any], object]:
        # The other fields of a step's call, and objects that must stay alive.
        groups, length = memories[self.shown].places.shape
        if not groups or rows % groups or any(len(each.places) != groups for each in memories):
            tables = ", ".join(str(tuple(each.places.shape)) for each in memories)
            raise ShapeError(f"decoder step: x (R, {self.width}) for tables (G, S) with G dividing R: found {rows} rows and {tables}")
        layers = type(self._layers).from_buffer_copy(self._layers)  # threads with separate caches share the weights
        kept = [self._point_to(layer, memory, areas) for layer, memory, areas in zip(layers, memories, self.learned, strict=True)]
        given: dict[str, Any] = {"layers": layers, "norm": self._norm, "count": len(layers), "wide": self._shelf.widest}
        given |= {"pre": self._pre, "eps": self._eps}
        return given | {"groups": groups, "share": rows // groups, "heads": self._heads, "sources": length}, kept

    def _check_indices(self, memories: Sequence[DecoderMemory], places: Tensor, current: tuple[int, int]) -> None:
        # Report an index out of range: the memories are not in the table of the call.
        first, rows = current
        for memory in memories:
            room = memory.key.shape[0]
            if first < 0 or first + rows > room:
                raise RangeError(f"decoder step: the current step needs slots {first} to {first + rows - 1}, but the cache has {room}")
            check_range("decoder step", "places", places, 0, room - 1)
            check_range("decoder step", "places of the source", memory.places, 0, memory.source_key.shape[0] - 1)
            if memory.lengths is not None:
                check_range("decoder step", "lengths of the source", memory.lengths, 0, memory.places.shape[1])

    def _layer(self, layer: DecoderLayerWeights) -> DecoderLayer:
        parts = (*layer.project, layer.join, layer.ask, layer.answer, layer.hidden, layer.output, *layer.norms)
        if _WEIGHTS.check(*(part.weight for part in parts))["E"] != self.width or self.width % self._heads:
            raise ShapeError(f"decoder layer: expected weights of {self.width} features in {self._heads} heads")
        biases = [part.bias for part in layer.project if part.bias is not None]
        project = Affine(torch.cat([part.weight for part in layer.project]), torch.cat(biases) if biases else None)
        products = (project, layer.join, layer.ask, layer.answer, layer.hidden, layer.output)
        norms = (DecoderNorm * 3)(*map(self._point, layer.norms))
        made = DecoderLayer(*map(self._shelf.linear, products), norms, areas=layer.areas[0], source_areas=layer.areas[1])
        if layer.learned is not None:
            moments, output, shape = layer.learned
            sizes = _LEARNED.check(moments.weight, output.weight, shape)
            if (sizes["D"], sizes["D2"]) != (self.width // self._heads, 2 * sizes["D"]):
                raise ShapeError(f"decoder layer: keys of areas for heads of {self.width // self._heads} features, found {sizes}")
            made.areas, made.learned = (
                len(shape),
                DecoderKeys(self._shelf.linear(moments), self._shelf.linear(output), self._shelf.keep(shape)),
            )
        return made

    def _point(self, part: Affine) -> DecoderNorm:
        if part.bias is None or part.bias.shape != part.weight.shape or part.weight.shape != (self.width,):
            found = tuple(part.weight.shape), None if part.bias is None else tuple(part.bias.shape)
            raise ShapeError(f"decoder layer: a norm has weight and bias ({self.width},), found {found[0]} and {found[1]}")
        return DecoderNorm(self._shelf.keep(part.weight), self._shelf.keep(part.bias))

    def _point_to(self, layer: DecoderLayer, memory: DecoderMemory, areas: int) -> tuple[Tensor | None, ...]:
        # Returns the objects that must stay alive with the pointers.
        kept = (*memory[:6], memory.places.contiguous(), None if memory.lengths is None else memory.lengths.contiguous())
        found, _ = _MEMORY.make(*kept)
        made = 0 if memory.area_key is None or memory.area_value is None else len(memory.area_key)
        if memory.key.shape[1:] != self.heads_and_size or made < areas * len(memory.key):
            raise ShapeError(
                f"decoder step: keys (M, {self._heads}, {self.width // self._heads}) and {areas} M of areas, "
                f"found {tuple(memory.key.shape)} and {made}"
            )
        for name in _POINTERS:
            setattr(layer, name, getattr(found, name))
        layer.source_key_row, layer.source_value_row = memory.source_key.stride(0), memory.source_value.stride(0)
        return kept


_POINTERS = (
    *("keys", "values", "area_keys", "area_values", "source_keys", "source_values", "source_places", "source_lengths"),
    *("items", "source_items", "sources"),
)
