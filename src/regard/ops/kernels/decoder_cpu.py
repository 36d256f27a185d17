"""A step of a Transformer's decoder by the native library: all layers in one call, without Python's lock and without other threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PanelLinear, Shelf


class LayerWeights(NamedTuple):
    """The weights of a decoder's layer.

    Attributes:
        project: of self-attention's queries, keys and values.
        join: of its output.
        ask: of the queries to the source.
        answer: of the output of the attention to the source.
        hidden: of the feed-forward, before relu.
        output: behind it.
        norms: of self-attention, of the attention to the source, of the feed-forward.
        areas: the most items of an area, of self-attention and of the attention to the source; 1: items alone.
    """

    project: tuple[Affine, Affine, Affine]
    join: Affine
    ask: Affine
    answer: Affine
    hidden: Affine
    output: Affine
    norms: tuple[Affine, Affine, Affine]
    areas: tuple[int, int] = (1, 1)


class Source(NamedTuple):
    """Keys and values (N, H, D) that a layer has of the sources; an item's numbers stand side by side."""

    key: Tensor
    value: Tensor


class Tables(NamedTuple):
    """Which items a step attends to.

    Attributes:
        places: (R, T) long, the past of each row in the stores, with the newest item last.
        first: where the newest item of row 0 will stand in the stores; those of the others follow.
        source_places: (G, S) long, R / G rows each.
        source_lengths: (G,) long, or None: all S.
    """

    places: Tensor
    first: int
    source_places: Tensor
    source_lengths: Tensor | None


class _Norm(ctypes.Structure):
    # Mirrors DecoderNorm.
    _fields_ = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p)]


class _Layer(ctypes.Structure):
    # Mirrors DecoderLayer.
    _fields_ = [
        *((name, PanelLinear) for name in ("project", "join", "ask", "answer", "hidden", "output")),
        ("norms", _Norm * 3),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "source_keys", "source_values")),
        *((name, ctypes.c_int64) for name in ("areas", "source_areas")),
    ]


class _Call(ctypes.Structure):
    # Mirrors DecoderCall.
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        ("norm", _Norm),
        *((name, ctypes.c_void_p) for name in ("x", "out", "weights", "places", "source_places", "source_lengths")),
        *((name, ctypes.c_int64) for name in ("count", "shown", "rows", "share", "width", "heads", "wide", "steps", "sources", "areas")),
        *((name, ctypes.c_int64) for name in ("first", "pre", "source_key_row", "source_value_row")),
        ("eps", ctypes.c_double),
        ("threads", ctypes.c_int64),
    ]


class DecoderPlan:
    """The weights of a decoder as the native library wants them, copied once for many steps.

    Args:
        layers: float32 on the CPU.
        norm: of what comes out, or None.
        heads: H of every attention.
        pre: norms stand before the parts of a layer.
        eps: of the norms.
        shown: the layer whose weights on the source are returned.

    Example:
        >>> one = lambda *shape: Affine(torch.zeros(shape), torch.zeros(shape[:1]))
        >>> project, norm = (one(2, 2), one(2, 2), one(2, 2)), one(2)
        >>> layer = LayerWeights(project, one(2, 2), one(2, 2), one(2, 2), one(3, 2), one(2, 3), (norm, norm, norm))
        >>> native.library() is None or DecoderPlan([layer], None, heads=1, pre=False, eps=1e-5, shown=0).width == 2
        True
    """

    def __init__(self, layers: Sequence[LayerWeights], norm: Affine | None, *, heads: int, pre: bool, eps: float, shown: int) -> None:
        self._shelf = Shelf()
        self.width, self._heads = layers[0].join.weight.shape[0], heads
        self._pre, self._eps, self._shown = pre, eps, shown
        self._norm = _Norm() if norm is None else self._point(norm)
        self._layers = (_Layer * len(layers))(*(self._layer(layer) for layer in layers))
        self._areas = max(size for layer in layers for size in layer.areas)

    @property
    def heads_and_size(self) -> tuple[int, int]:
        """H and D."""
        return self._heads, self.width // self._heads

    def step(self, x: Tensor, stores: Sequence[Source], sources: Sequence[Source], tables: Tables) -> tuple[Tensor, Tensor]:
        """Map the newest token of each row through all layers.

        Args:
            x: (R, E), embedded.
            stores: for each layer keys and values (M, H, D), contiguous; those of the newest items are written into them.
            sources: for each layer; all have the same strides.
            tables: who attends to what.

        Returns:
            (R, E), and the shown layer's weights (G, R / G, H, S).
        """
        library = native.library()
        assert library is not None
        x, places, source_places = x.contiguous(), tables.places.contiguous(), tables.source_places.contiguous()
        lengths = None if tables.source_lengths is None else tables.source_lengths.contiguous()
        rows, (groups, length) = x.shape[0], source_places.shape
        out, weights = torch.empty_like(x), x.new_empty(groups, rows // groups, self._heads, length)
        layers = type(self._layers).from_buffer_copy(self._layers)  # threads with stores of their own share the weights
        for layer, store, source in zip(layers, stores, sources, strict=True):
            layer.keys, layer.values = store.key.data_ptr(), store.value.data_ptr()
            layer.source_keys, layer.source_values = source.key.data_ptr(), source.value.data_ptr()
        pointers = (None if part is None else part.data_ptr() for part in (x, out, weights, places, source_places, lengths))
        sizes = (len(layers), self._shown, rows, rows // groups, self.width, self._heads, self._shelf.widest, places.shape[1], length)
        strides = (self._areas, tables.first, int(self._pre), sources[0].key.stride(0), sources[0].value.stride(0))
        call = _Call(layers, self._norm, *pointers, *sizes, *strides, self._eps, torch.get_num_threads())
        if library.regard_decoder(ctypes.byref(call)):
            raise MemoryError("regard_decoder: no memory for the threads")
        return out, weights

    def _layer(self, layer: LayerWeights) -> _Layer:
        biases = [part.bias for part in layer.project if part.bias is not None]
        project = Affine(torch.cat([part.weight for part in layer.project]), torch.cat(biases) if biases else None)
        products = (project, layer.join, layer.ask, layer.answer, layer.hidden, layer.output)
        norms = (_Norm * 3)(*map(self._point, layer.norms))
        return _Layer(*map(self._shelf.linear, products), norms, areas=layer.areas[0], source_areas=layer.areas[1])

    def _point(self, part: Affine) -> _Norm:
        assert part.bias is not None
        return _Norm(self._shelf.keep(part.weight), self._shelf.keep(part.bias))
