"""Multi-head cross-attention to a source that is projected once and used at many steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import Areas, AttentionOutput, HeadMemory, IndexedMemory, MultiHeadAttention
from regard.attention.areas import scored_area_length
from regard.attention.indexed_memory import index_sources
from regard.attention.recorder import is_recording, note_weights
from regard.constructor_checks import checked
from regard.errors import ShapeError
from regard.ops.kernels import indexed_cpu
from regard.ops.tensor_checks import is_plain

SourceMemory = HeadMemory | IndexedMemory
"""Memory of a source: for whole targets, or for the steps of a search."""


class Source(NamedTuple):
    """Encoder output: states (B, S, E), and their padding mask (B, S) bool, True = real, or None for all."""

    states: Tensor
    mask: Tensor | None


def cache_source(attention: MultiHeadAttention, source: Source, *, for_decoding: bool) -> SourceMemory:
    """Project a source for an attention; `for_decoding`: for the steps of a search, with area keys precomputed.

    Example:
        >>> import torch
        >>> from regard.attention import Areas
        >>> attention = MultiHeadAttention(6, 2, areas=Areas(2, key_mode="max"))
        >>> cache_source(attention, Source(torch.ones(3, 5, 6, requires_grad=True), None), for_decoding=True).key.shape  # 5 items, 4 pairs
        torch.Size([3, 2, 9, 3])
    """
    areas = attention.areas
    # The cache is for searches in the native library: elsewhere, and with gradients, each step would copy its items from it.
    stored = for_decoding and indexed_cpu.takes_items(source.states)
    if stored and (areas is None or (scored_area_length(areas) and _begins(source.mask))):
        return attention.items(source.states, source.mask)
    memory = attention.memory(source.states, source.states, key_mask=source.mask, finite=True)
    if for_decoding and source.mask is not None and is_plain(source.mask):
        memory = memory._replace(never_empty=bool(source.mask.any(1).all()))
    if not for_decoding or areas is None or areas.fused:
        return memory
    made = attention.areas_of(memory)
    # Materialized areas are kept as they are where each step would copy all of them, and where all are displayed.
    if not stored or not indexed_cpu.takes_items(made.key) or areas.top_k is not None or attention.score is not None or is_recording():
        return made
    key, value = (part.transpose(1, 2).contiguous() for part in (made.key, made.value))
    return index_sources(key, value, made.mask)._replace(of_areas=True)


class SourcePairAttention(nn.Module):
    """Base of cross-attention to two sources, with one attention each; subclasses combine the results.

    Args:
        left: attention of the decoder to the first source.
        right: attention to the second.

    Parameters: `left.*`, `right.*`.

    Example:
        >>> pair = SourcePairAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2))
        >>> memories = pair.memories([Source(torch.ones(3, 5, 6), None), Source(torch.ones(3, 2, 6), None)], for_decoding=True)
        >>> [one.weights.shape[-1] for one in pair.attend(torch.ones(3, 7, 6), memories, need_weights=True)]
        [5, 2]
    """

    @checked
    def __init__(self, left: MultiHeadAttention, right: MultiHeadAttention) -> None:
        super().__init__()
        self.left = left
        self.right = right

    def memories(self, sources: Sequence[Source], *, for_decoding: bool) -> tuple[SourceMemory, ...]:
        """Project both sources; `for_decoding`: for the steps of a search."""
        pairs = zip((self.left, self.right), sources, strict=True)
        return tuple(cache_source(attention, source, for_decoding=for_decoding) for attention, source in pairs)

    def attend(self, query: Tensor, memories: Sequence[SourceMemory], *, need_weights: bool) -> list[AttentionOutput]:
        """Attend to each source with queries (B, T, E); the weights of a source sum to 1, with areas, too."""
        pairs = zip((self.left, self.right), memories, strict=True)
        return [pair_attend(attention, query, memory, need_weights=need_weights) for attention, memory in pairs]

    def note_contributions(self, contributions: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """Record the shares (B, 1, T, 2) of two contributions (B, T, E) to a residual stream, as weights of this module."""
        if is_recording():
            note_weights(self, lambda _: (norm_shares(*contributions()).unsqueeze(1), None))


def norm_shares(first: Tensor, second: Tensor) -> Tensor:
    """Return the shares (..., 2) of two vectors (..., E) in the sum of their norms; 0 and 0 of zeros.

    The norm of what an attention adds says how much it counts where its weights do not. Kobayashi et al. 2020 (arXiv:2004.10102).

    Example:
        >>> norm_shares(torch.tensor([3.0, 0.0]), torch.tensor([0.0, -1.0])).tolist()
        [0.75, 0.25]
    """
    norms = torch.stack([first.norm(dim=-1), second.norm(dim=-1)], -1)
    return norms / norms.sum(-1, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)


def weights_of(found: Sequence[AttentionOutput]) -> tuple[Tensor, ...] | None:
    """Return the weights of several attentions; None if not requested.

    Example:
        >>> weights_of([AttentionOutput(torch.ones(1), None)]) is None
        True
    """
    weights = tuple(one.weights for one in found if one.weights is not None)
    return weights or None


def source_weights(areas: Areas | None, memory: IndexedMemory, weights: Tensor) -> Tensor:
    """Convert weights (G, H, K, L) over the cache slots of a source to weights of its items, (G, H, K, S).

    Example:
        >>> import torch
        >>> memory = IndexedMemory(torch.ones(3, 1, 1), torch.ones(3, 1, 1), torch.tensor([[2, 0, 1]]), of_areas=True)
        >>> source_weights(Areas(2, key_mode="max"), memory, torch.tensor([[[[0.5, 0.25, 0.25]]]])).tolist()  # the pair, and each item
        [[[[0.75, 0.75]]]]
    """
    if areas is None or not memory.of_areas:
        return weights
    places = memory.places - memory.places.amin(1, keepdim=True)  # the table contains all areas of a source
    return areas.project(torch.zeros_like(weights).scatter(-1, places[:, None, None].expand_as(weights), weights))


def _begins(mask: Tensor | None) -> bool:
    # Attended slots come first: a cache without other slots has the same neighbours.
    return mask is None or not bool((mask[:, 1:] & ~mask[:, :-1]).any())


def cross_attend(attention: MultiHeadAttention, query: Tensor, memory: SourceMemory, *, need_weights: bool) -> AttentionOutput:
    """Attend with queries (B, T, E) to the memory of B sources, or of B / G sources with G consecutive rows each.

    Raises:
        ShapeError: B is not a multiple of the number of sources.

    Example:
        >>> import torch
        >>> attention, source = MultiHeadAttention(6, 2), Source(torch.ones(3, 5, 6), None)
        >>> cache = cache_source(attention, source, for_decoding=True)
        >>> cross_attend(attention, torch.ones(3, 7, 6), cache, need_weights=True).weights.shape
        torch.Size([3, 2, 7, 5])
    """
    sources = memory.batch if isinstance(memory, IndexedMemory) else len(memory.key)
    if len(query) != sources:
        # Rows of one source are queries to it: keys and values are not copied.
        each = queries_per_source(len(query), sources)
        found = cross_attend(attention, query.reshape(sources, -1, query.shape[-1]), memory, need_weights=need_weights)
        context = found.context.view(*query.shape[:2], -1)
        if found.weights is None:
            return found._replace(context=context)
        weights = found.weights.unflatten(2, (each, -1)).transpose(1, 2).flatten(0, 1)
        return found._replace(context=context, weights=weights)
    if isinstance(memory, IndexedMemory):
        found = attention.attend_items(query, memory, need_weights=need_weights)
        return found if found.weights is None else found._replace(weights=source_weights(attention.areas, memory, found.weights))
    return attention.attend(query, memory, need_weights=need_weights)


def pair_attend(attention: MultiHeadAttention, query: Tensor, memory: SourceMemory, *, need_weights: bool) -> AttentionOutput:
    """Attend as `cross_attend`, with weights that sum to 1 so that those of two sources can be compared.

    With summed values each item of an area has the area's whole weight: large areas would outweigh the other source.

    Example:
        >>> import torch
        >>> from regard.attention import Areas
        >>> attention = MultiHeadAttention(6, 2, areas=Areas(3))
        >>> cache = cache_source(attention, Source(torch.ones(3, 5, 6), None), for_decoding=True)
        >>> found = pair_attend(attention, torch.ones(3, 7, 6), cache, need_weights=True)
        >>> torch.allclose(found.weights.sum(-1), torch.ones(3, 2, 7))
        True
    """
    found = cross_attend(attention, query, memory, need_weights=need_weights)
    if found.weights is None or attention.areas is None:
        return found
    total = found.weights.sum(-1, keepdim=True).clamp(min=torch.finfo(found.weights.dtype).tiny)
    return found._replace(weights=found.weights / total)


def mean_head_weights(weights: Tensor) -> Tensor:
    """Average item weights (B, T, S) or (B, H, T, S) over heads and normalize the rows: (B, T, S).

    Each item of an area gets the area's weight, so rows may sum to more than 1. Rows of zeros stay zeros.

    Example:
        >>> import torch
        >>> mean_head_weights(torch.tensor([[[[0.5, 0.5]], [[1.0, 2.0]]]])).tolist()
        [[[0.375, 0.625]]]
    """
    mean = weights.mean(1) if weights.dim() == 4 else weights
    return mean / mean.sum(-1, keepdim=True).clamp(min=torch.finfo(mean.dtype).tiny)


def queries_per_source(rows: int, sources: int) -> int:
    """Return G, the number of consecutive rows per source.

    Raises:
        ShapeError: the rows cannot be divided equally; the message holds both numbers.

    Example:
        >>> queries_per_source(6, 2)
        3
    """
    if not sources or rows % sources:
        if rows == sources:
            return 1
        raise ShapeError(f"{rows} targets of {sources} sources: expected a multiple, the same number for each")
    return rows // sources
