"""A step of a Transformer's decoder by the native library: all layers in one call, without Python's lock and without other threads."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PanelLinear, Shelf


class AreaKeyWeights(NamedTuple):
    """What makes keys of areas by Eq. 9, for heads of size D: W_d relu(W_mu mean + W_sigma deviation + shape).

    Attributes:
        moments: W_mu and W_sigma side by side, (D, 2 D).
        output: W_d.
        shape: (A, D), what the size of an area adds, W_e e.
    """

    moments: Affine
    output: Affine
    shape: Tensor


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
        areas: the most items of an area, of self-attention and of the attention to the source; 1: items alone, or areas that are made.
        learned: of self-attention, where its areas have keys by Eq. 9, A of them for each item.
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


class Memory(NamedTuple):
    """What a layer attends to; an item's numbers stand side by side.

    Attributes:
        key: (M, H, D) of its past, contiguous; those of the newest items are written into it.
        value: (M, H, D), likewise.
        area_key: (M A, H, D), likewise, where keys of areas are learned: those that end at an item, the shortest first.
        area_value: (M A, H, D), likewise.
        source_key: (N, H, D).
        source_value: (N, H, D).
        places: (G, S) long, what is attended to of the sources, R / G rows each.
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


class _Norm(ctypes.Structure):
    # Mirrors DecoderNorm.
    _fields_ = [("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p)]


class _Keys(ctypes.Structure):
    # Mirrors DecoderKeys.
    _fields_ = [("moments", PanelLinear), ("output", PanelLinear), ("shape", ctypes.c_void_p)]


class _Layer(ctypes.Structure):
    # Mirrors DecoderLayer.
    _fields_ = [
        *((name, PanelLinear) for name in ("project", "join", "ask", "answer", "hidden", "output")),
        ("norms", _Norm * 3),
        *((name, ctypes.c_void_p) for name in ("keys", "values", "area_keys", "area_values", "source_keys", "source_values")),
        *((name, ctypes.c_void_p) for name in ("source_places", "source_lengths")),
        *((name, ctypes.c_int64) for name in ("sources", "source_key_row", "source_value_row", "areas", "source_areas")),
        ("learned", _Keys),
    ]


class _Call(ctypes.Structure):
    # Mirrors DecoderCall.
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        ("norm", _Norm),
        *((name, ctypes.c_void_p) for name in ("x", "out", "weights", "places")),
        *((name, ctypes.c_int64) for name in ("count", "shown", "rows", "share", "width", "heads", "wide", "steps", "first", "pre")),
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

    Attributes:
        shown: likewise.
        learned: for each layer how many areas with learned keys end at an item, 0 where there are none.

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
        self._pre, self._eps, self.shown = pre, eps, shown
        self._norm = _Norm() if norm is None else self._point(norm)
        self._layers = (_Layer * len(layers))(*(self._layer(layer) for layer in layers))
        self.learned = [0 if layer.learned is None else len(layer.learned.shape) for layer in layers]

    @property
    def heads_and_size(self) -> tuple[int, int]:
        """H and D."""
        return self._heads, self.width // self._heads

    def step(self, x: Tensor, memories: Sequence[Memory], places: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Map the newest token of each row through all layers.

        Args:
            x: (R, E), embedded.
            memories: for each layer.
            places: (R, T) long, the past of each row in the stores, with the newest item last.
            first: where the newest item of row 0 will stand in the stores; those of the others follow.

        Returns:
            (R, E), and the shown layer's weights (G, R / G, H, S).
        """
        library = native.library()
        assert library is not None
        x, places = x.contiguous(), places.contiguous()
        rows, (groups, length) = x.shape[0], memories[self.shown].places.shape
        out, weights = torch.empty_like(x), x.new_empty(groups, rows // groups, self._heads, length)
        layers = type(self._layers).from_buffer_copy(self._layers)  # threads with stores of their own share the weights
        kept = [_point_to(layer, memory) for layer, memory in zip(layers, memories, strict=True)]
        pointers = (part.data_ptr() for part in (x, out, weights, places))
        sizes = (len(layers), self.shown, rows, rows // groups, self.width, self._heads, self._shelf.widest, places.shape[1])
        call = _Call(layers, self._norm, *pointers, *sizes, first, int(self._pre), self._eps, torch.get_num_threads())
        if library.regard_decoder(ctypes.byref(call)):
            raise MemoryError("regard_decoder: no memory for the threads")
        del kept  # until here
        return out, weights

    def _layer(self, layer: LayerWeights) -> _Layer:
        biases = [part.bias for part in layer.project if part.bias is not None]
        project = Affine(torch.cat([part.weight for part in layer.project]), torch.cat(biases) if biases else None)
        products = (project, layer.join, layer.ask, layer.answer, layer.hidden, layer.output)
        norms = (_Norm * 3)(*map(self._point, layer.norms))
        made = _Layer(*map(self._shelf.linear, products), norms, areas=layer.areas[0], source_areas=layer.areas[1])
        if layer.learned is not None:
            moments, output, shape = layer.learned
            made.areas, made.learned = len(shape), _Keys(self._shelf.linear(moments), self._shelf.linear(output), self._shelf.keep(shape))
        return made

    def _point(self, part: Affine) -> _Norm:
        assert part.bias is not None
        return _Norm(self._shelf.keep(part.weight), self._shelf.keep(part.bias))


def _point_to(layer: _Layer, memory: Memory) -> tuple[Tensor | None, ...]:
    # Returns what must live as long as the pointers.
    kept = (*memory[:6], memory.places.contiguous(), None if memory.lengths is None else memory.lengths.contiguous())
    names = ("keys", "values", "area_keys", "area_values", "source_keys", "source_values", "source_places", "source_lengths")
    for name, part in zip(names, kept, strict=True):
        setattr(layer, name, None if part is None else part.data_ptr())
    layer.sources = memory.places.shape[1]
    layer.source_key_row, layer.source_value_row = memory.source_key.stride(0), memory.source_value.stride(0)
    return kept
