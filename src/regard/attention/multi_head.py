"""Multi-head attention: several projections of the same query, key and value attend in parallel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention.areas import Areas, scored_area_length
from regard.attention.base import AttentionOutput, NeedWeights
from regard.attention.indexed_memory import IndexedMemory, has_gap, index_sources
from regard.attention.recorder import is_recording, record_call
from regard.attention.scores import LocationScore, ScoreModule, input_dims
from regard.attention.torch_adapter import build_from_torch, build_to_torch
from regard.constructor_checks import Dropout, Size, checked
from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_boolean, check_key_mask, check_mask
from regard.ops.nonfinite import finite_rows
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import check_states, may_need_gradients


class HeadMemory(NamedTuple):
    """Keys and values of a source, projected and split into heads. Passed as a value; no module stores it.

    Attributes:
        key: (B, H, S, D).
        value: (B, H, S, Dv); zeros where masked, like the keys.
        mask: (B, S) bool, True = may attend; None allows everything.
        of_areas: the S positions are materialized areas, from `MultiHeadAttention.areas_of`.
        never_empty: known of the mask: each sentence has a position that may be attended. Attending need not look.
    """

    key: Tensor
    value: Tensor
    mask: Tensor | None
    of_areas: bool = False
    never_empty: bool = False

    def append(self, other: HeadMemory) -> HeadMemory:
        """Append the positions of `other`, such as a decoding step's, to the cache."""
        mask = None
        if self.mask is not None or other.mask is not None:
            mask = torch.cat([_all(memory) if memory.mask is None else memory.mask for memory in (self, other)], 1)
        return self._replace(key=torch.cat([self.key, other.key], 2), value=torch.cat([self.value, other.value], 2), mask=mask)

    @property
    def batch(self) -> int:
        """B, the number of sentences."""
        return self.key.shape[0]

    def rows(self, index: Tensor) -> HeadMemory:
        """Keep only the sentences `index` (B',), in that order."""
        mask = None if self.mask is None else self.mask.index_select(0, index)
        return self._replace(key=self.key.index_select(0, index), value=self.value.index_select(0, index), mask=mask)


def _all(memory: HeadMemory) -> Tensor:
    return torch.ones(memory.key.shape[0], memory.key.shape[2], dtype=torch.bool, device=memory.key.device)


class MultiHeadAttention(nn.Module):
    """Attend with several heads: project, attend in each head, join, project.

        head_h = attention(W_q,h query, W_k,h key, W_v,h value);  context = W_o [head_1; ...; head_H]

    Vaswani et al. 2017, section 3.2.2. Equal query, key and value give self-attention. Uses `F.scaled_dot_product_attention` unless
    weights, areas or another score are requested.

    Args:
        embed_dim: E, size of a query and of the output.
        num_heads: H.
        head_dim: D, size of a head; None: E / H, an integer.
        memory_dim: size of keys and values; None: E.
        value_dim: size of values; None: memory_dim.
        dropout: probability of dropping a weight in training, at least 0 and less than 1.
        bias: whether the four projections have biases.
        score: None for the paper's scaled dot product; one score for all heads, or a list of one per head, for queries and keys of size D.
        areas: attend to runs or rectangles of items (Li et al. 2018), in every head.
        normalizer: how scores become weights: "softmax", "sparsemax" or "entmax15" (`regard.ops.normalize`).

    Parameters: `query.weight` (H D, E), `key.weight` (H D, memory_dim), `value.weight` (H D, value_dim), `output.weight` (E, H D), each
    with `.bias`; `score.*` (of head h in a list: `score.h.*`) and `areas.*`. Heads are contiguous in H D. Initialised as
    torch.nn.MultiheadAttention: uniform weights, zero biases.

    Raises:
        ConfigError: E is not a multiple of H without `head_dim`; the number of scores is not H; a score of other sizes than D; a
            `LocationScore` with areas.

    Example:
        >>> attention = MultiHeadAttention(6, 2)
        >>> source = torch.ones(3, 5, 6)
        >>> attention(source, source, source, causal=True, need_weights=True).weights[0, 0, 1].tolist()
        [0.5, 0.5, 0.0, 0.0, 0.0]
    """

    @checked
    def __init__(
        self,
        embed_dim: Size,
        num_heads: Size,
        *,
        head_dim: Size | None = None,
        memory_dim: Size | None = None,
        value_dim: Size | None = None,
        dropout: Dropout = 0.0,
        bias: bool = True,
        score: ScoreModule | Sequence[ScoreModule] | None = None,
        areas: Areas | None = None,
        normalizer: Normalizer = "softmax",
    ) -> None:
        super().__init__()
        if head_dim is None and embed_dim % num_heads:
            raise ConfigError(f"MultiHeadAttention: embed_dim {embed_dim} is not a multiple of num_heads {num_heads}; give head_dim")
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout = dropout
        self.score: ScoreModule | nn.ModuleList | None = _scores(score, num_heads, self.head_dim, areas)
        self.areas = areas
        self.normalizer: Normalizer = normalizer
        width = self.num_heads * self.head_dim
        memory_dim = embed_dim if memory_dim is None else memory_dim
        self.query = ops.Linear(embed_dim, width, bias=bias)
        self.key = ops.Linear(memory_dim, width, bias=bias)
        self.value = ops.Linear(memory_dim if value_dim is None else value_dim, width, bias=bias)
        self.output = ops.Linear(width, embed_dim, bias=bias)
        for part in (self.query, self.key, self.value, self.output):
            # torch.nn.MultiheadAttention initialises the three as one matrix of three times the height.
            nn.init.xavier_uniform_(part.weight, gain=1.0 if part is self.output else 1 / math.sqrt(2))
            if part.bias is not None:
                nn.init.zeros_(part.bias)

    @classmethod
    def from_torch(cls, theirs: nn.MultiheadAttention, *, areas: Areas | None = None) -> MultiHeadAttention:
        """Convert torch's module (weights, dropout, sizes), with areas if given. Inputs are always (B, length, E).

        `regard.integrations.torch` converts torch's layers and stacks, state dicts and masks.

        Raises:
            ConfigError: `add_bias_kv` or `add_zero_attn`, which cannot be converted.

        Example:
            >>> theirs, x = nn.MultiheadAttention(6, 2, batch_first=True), torch.ones(1, 3, 6)
            >>> torch.allclose(MultiHeadAttention.from_torch(theirs)(x, x, x).context, theirs(x, x, x)[0], atol=1e-6)
            True
        """
        return build_from_torch(cls, theirs, areas)

    @takes_tensors
    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """Build torch's module with these weights.

        Raises:
            ConfigError: torch has no areas, no scores, the softmax only, and only heads of size E / H.

        Example:
            >>> MultiHeadAttention(6, 2).to_torch().embed_dim
            6
        """
        return build_to_torch(self, batch_first=batch_first)

    @takes_tensors
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_mask: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        need_weights: NeedWeights = False,
        finite: bool = False,
    ) -> AttentionOutput:
        """Attend with queries (B, T, E) to keys and values (B, S, memory_dim).

        Args:
            query: (B, T, E).
            key: (B, S, memory_dim).
            value: (B, S, memory_dim).
            key_mask: (B, S) bool, True = may attend: the padding mask, such as from `ops.length_mask`.
            mask: bool, True = may attend: (S,), (B, T, S) or per head (B, H, T, S), any axis 1 for all; combined with key_mask. Two axes
                are refused because (T, S) and (B, S) are ambiguous.
            causal: hide later positions, aligned so that the last query attends to all; combined with both masks.
            need_weights: also return weights (B, H, T, S), or with "areas" (B, H, T, N).
            finite: the caller guarantees that masked inputs are finite; skips the check.

        Returns:
            `AttentionOutput` with context (B, T, E); a row with nothing to attend to has zero weights and the output bias as context.

        Raises:
            ShapeError: key, value or a mask do not fit, or a mask is not boolean.
            ConfigError: area weights without areas.
        """
        if is_recording():

            def weigh(need: NeedWeights) -> Tensor | None:
                return self.forward(query, key, value, key_mask=key_mask, mask=mask, causal=causal, need_weights=need).weights

            record_call(self, self.areas, weigh)
        self._check(key, value)
        self._check_query(query, key)
        allowed = self._allowed(query, key.shape[1], mask, causal)
        if key_mask is not None:
            check_key_mask(key_mask, key.shape[:2], "MultiHeadAttention")
            padding = key_mask[:, None, None]
            allowed = padding if allowed is None else allowed & padding
        tainted = None
        if allowed is not None and not finite:
            # Before the projections, so that masked values do not reach the gradients of their weights. In self-attention a query may be
            # padding, too: zeros send no NaN into the gradients of others.
            bad = ~finite_rows(query)
            masked = ops.mask_nonfinite(key, value, allowed.any(1))
            assert masked.tainted is not None
            query, key, value, tainted = query.masked_fill(bad.unsqueeze(-1), 0.0), masked.key, masked.value, masked.tainted | bad
        only_causal = causal and mask is None and key_mask is None
        context, weights = self._heads(*self._project(query, key, value), _Allowed(allowed, only_causal), need_weights)
        return self._join(context, weights, tainted)

    @takes_tensors
    def memory(self, key: Tensor, value: Tensor, *, key_mask: Tensor | None = None, finite: bool = False) -> HeadMemory:
        """Project keys and values (B, S, memory_dim) once, for all steps; `key_mask` (B, S) bool, True = may attend.

        With `finite` the caller guarantees finite inputs, and the check is skipped.
        """
        self._check(key, value)
        if key_mask is not None:
            check_key_mask(key_mask, key.shape[:2], "MultiHeadAttention.memory")
        if key_mask is not None and not finite:
            key, value = (part.masked_fill(~key_mask.unsqueeze(-1), 0.0) for part in (key, value))
        if finite or not may_need_gradients():
            return HeadMemory(self._split(self.key(key)), self._split(self.value(value)), key_mask)
        # A non-finite row is projected as zeros, so that it does not reach weight gradients, and becomes NaN after the projection.
        bad = [~finite_rows(part).unsqueeze(-1) for part in (key, value)]
        key = self.key(key.masked_fill(bad[0], 0.0)).masked_fill(bad[0], torch.nan)
        value = self.value(value.masked_fill(bad[1], 0.0)).masked_fill(bad[1], torch.nan)
        return HeadMemory(self._split(key), self._split(value), key_mask)

    def items(self, states: Tensor, key_mask: Tensor | None = None) -> IndexedMemory:
        """Project states (B, S, E) to keys and values of a cache for decoding; `key_mask` (B, S) bool, True = may attend.

        With areas, the positions of a row that may be attended are without a gap, as with padding: the table of the cache holds only these,
        and its neighbours form areas. `memory` and `attend` take any mask.

        Raises:
            ConfigError: the attention has its own scores; or it has areas, and the mask a gap.
        """
        if self.score is not None:
            raise ConfigError("items: a key-value cache needs scaled dot products, not another score")
        check_states("MultiHeadAttention.items", "states", states, "S", self.key.in_features)
        if key_mask is not None:
            check_key_mask(key_mask, states.shape[:2], "MultiHeadAttention.items")
            if self.areas is not None and has_gap(key_mask):
                raise ConfigError("items: areas need a key_mask without a gap, as with padding; `memory` and `attend` take any")
            states = states.masked_fill(~key_mask.unsqueeze(-1), 0.0)
        return index_sources(*self.project_items(states), key_mask)

    def project_items(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Project states (B, S, E) to the keys and values of `items`, both (B, S, H, D).

        Example:
            >>> [part.shape for part in MultiHeadAttention(8, 2).project_items(torch.ones(1, 3, 8))]
            [torch.Size([1, 3, 2, 4]), torch.Size([1, 3, 2, 4])]
        """
        key, value = ops.joint_linear(states, (self.key, self.value))
        return key.unflatten(-1, (self.num_heads, self.head_dim)), value.unflatten(-1, (self.num_heads, self.head_dim))

    @takes_tensors
    def attend_items(self, query: Tensor, memory: IndexedMemory, *, need_weights: bool = False) -> AttentionOutput:
        """Attend with query groups (G, K, E) to a cache: context (G, K, E) and, if requested, weights (G, H, K, L).

        Weights are in the order of the group's table. Where areas need not be materialized (`scored_area_length`), the cache may hold
        items: adjacent table entries are neighbours.

        Raises:
            ConfigError: materialized areas with a cache of items, or no areas with a cache of areas.
        """
        areas = self.areas
        longest = 1 if memory.of_areas else scored_area_length(areas)
        if longest is None or (memory.of_areas and areas is None):
            raise ConfigError(f"attend_items: areas are {areas}, and the store is one of {'areas' if memory.of_areas else 'items'}")
        if is_recording() and not memory.of_areas:
            whole = HeadMemory(*memory.gathered())
            record_call(self, areas, lambda need: self.attend(query, whole, need_weights=need).weights)
        if areas is not None and areas.top_k is not None:
            return self.attend(query, HeadMemory(*memory.gathered(), True), need_weights="areas" if need_weights else False)
        scale = None if areas is None else 1 / (math.sqrt(self.head_dim) * areas.temperature)
        heads = self.query(query).unflatten(-1, (self.num_heads, self.head_dim))
        context, weights = ops.cached_attention(
            *(heads, memory.key, memory.value, memory.places),
            lengths=memory.lengths,
            scale=scale,
            max_area=longest,
            normalizer=self.normalizer,
            need_weights=need_weights,
        )
        return AttentionOutput(self.output(context.flatten(2)), None if weights is None else weights.transpose(1, 2))

    def areas_of(self, memory: HeadMemory) -> HeadMemory:
        """Materialize keys and values of all areas of a memory once, for many steps.

        Otherwise `attend` recomputes them at each call, except where the areas are `fused` and never materialized. Areas are in the order
        of `regard.ops.area_spans`; after appending or selecting, only "areas" weights are available.

        Returns:
            A memory whose positions are the N areas. `attend` then accepts no mask but the memory's own.

        Raises:
            ConfigError: no areas, or the memory already holds areas.
        """
        if self.areas is None or memory.of_areas:
            raise ConfigError("areas_of: needs an attention with areas, and a memory of items")
        mask = None if memory.mask is None else self.areas.mask(memory.mask)
        return HeadMemory(self.areas.keys(memory.key), self.areas.values(memory.value), mask, True)

    @takes_tensors
    def attend(
        self,
        query: Tensor,
        memory: HeadMemory,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        need_weights: NeedWeights = False,
    ) -> AttentionOutput:
        """Attend with queries (B, T, E) to a memory; arguments, results and errors are those of `forward`, the memory has the key_mask.

        A decoding step first appends its keys to the memory: with `causal`, the last query attends to all of it.
        """
        if is_recording():
            record_call(self, self.areas, lambda need: self.attend(query, memory, mask=mask, causal=causal, need_weights=need).weights)
        self._check_query(query, memory.key)
        if memory.of_areas:
            if mask is not None or causal:
                raise ConfigError("MultiHeadAttention: a memory of areas is masked as it is made, not as it is attended to")
            allowed = None if memory.mask is None else memory.mask[:, None, None]
            heads = self._split(self.query(query)), memory.key, memory.value
            return self._join(*self._weigh(*heads, allowed, need_weights), None)
        allowed = self._allowed(query, memory.key.shape[2], mask, causal)
        key, value, tainted = ops.mask_nonfinite(memory.key, memory.value, allowed)
        seen = _Allowed(allowed, causal and mask is None)
        if memory.mask is not None:
            padding = memory.mask[:, None, None]
            seen = _Allowed(padding, never_empty=memory.never_empty) if allowed is None else _Allowed(allowed & padding)
        context, weights = self._heads(self._split(self.query(query)), key, value, seen, need_weights)
        return self._join(context, weights, None if tainted is None else tainted.any(1))

    def _check(self, key: Tensor, value: Tensor) -> None:
        check_states("MultiHeadAttention", "key", key, "S", self.key.in_features)
        check_states("MultiHeadAttention", "value", value, "S", self.value.in_features)
        if key.shape[:2] != value.shape[:2]:
            raise ShapeError(f"MultiHeadAttention: value {tuple(value.shape)} must agree with key {tuple(key.shape)} in (B, S)")

    def _check_query(self, query: Tensor, key: Tensor) -> None:
        check_states("MultiHeadAttention", "query", query, "T", self.query.in_features)
        if query.shape[0] != key.shape[0]:
            raise ShapeError(f"MultiHeadAttention: query {tuple(query.shape)} and key {tuple(key.shape)} must agree in B, the first axis")

    def _allowed(self, query: Tensor, size: int, mask: Tensor | None, causal: bool) -> Tensor | None:
        # One mask of four axes, each of its true size or 1, or None where everything is allowed.
        batch, target = query.shape[:2]
        if mask is not None:
            check_boolean(mask, "MultiHeadAttention: the mask")
            shape = (batch, target, size) if mask.dim() < 4 else (batch, self.num_heads, target, size)
            check_mask(mask, shape, "MultiHeadAttention", key_mask=True)
            mask = mask[(None,) * (3 - mask.dim())]
            mask = mask.unsqueeze(1) if mask.dim() == 3 else mask  # the same for all heads
        if not causal or target == 1:  # a single query is the last one and attends to everything
            return mask
        past = ops.causal_mask(target, size, query.device)[None, None]
        return past if mask is None else mask & past

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        # Projections of the same input may be one product.
        if query is key and key is value:
            found = ops.joint_linear(query, (self.query, self.key, self.value))
        elif key is value:
            found = self.query(query), *ops.joint_linear(key, (self.key, self.value))
        else:
            found = self.query(query), self.key(key), self.value(value)
        q, k, v = (self._split(part) for part in found)
        return q, k, v

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # (B, N, H D) -> (B, H, N, D)

    def _join(self, context: Tensor, weights: Tensor | None, tainted: Tensor | None) -> AttentionOutput:
        context = self.output(context.transpose(1, 2).flatten(2))  # (B, H, T, D) -> (B, T, E)
        if tainted is not None:
            context = context.masked_fill(tainted.unsqueeze(-1), torch.nan)
            weights = None if weights is None else weights.masked_fill(tainted[:, None, :, None], torch.nan)
        return AttentionOutput(context, weights)

    def _heads(self, query: Tensor, key: Tensor, value: Tensor, seen: _Allowed, need_weights: NeedWeights) -> tuple[Tensor, Tensor | None]:
        # (B, H, T, D) on (B, H, S, D) twice: context and, if requested, weights of every head.
        if need_weights == "areas" and self.areas is None:
            raise ConfigError('MultiHeadAttention: need_weights="areas" needs areas; True gives the weights of the items')
        dropout = self.dropout if self.training else 0.0
        areas, allowed = self.areas, seen.mask
        if areas is not None and areas.direct and self.score is None:
            found = ops.area_attention(
                query,
                key,
                value,
                max_area=areas.max_area,
                grid=areas.grid,
                mask=None if seen.only_causal else allowed,
                causal=seen.only_causal,
                key_mode=areas.key_mode,
                value_mode=areas.value_mode,
                need_weights=need_weights,
                top_k=areas.top_k,
                temperature=areas.temperature,
                dropout=dropout,
                normalizer=self.normalizer,
                key_weights=areas.key_weights,
            )
            return found if isinstance(found, tuple) else (found, None)
        standard = areas is None and self.score is None and self.normalizer == "softmax"
        if standard and not need_weights and query.numel() and key.numel():
            dtype = query.dtype
            if dtype == torch.float16 and query.device.type == "cpu":  # there PyTorch's kernel hides keys that are all NaN
                query, key, value = query.float(), key.float(), value.float()
            if not dropout and ops.native_takes_items(query, key):  # half the time of PyTorch's kernel
                found = cast(Tensor, ops.area_attention(query, key, value, max_area=1, mask=allowed, causal=seen.only_causal))
            else:
                found = _fused(query, key, value, seen, dropout)
            return found.to(dtype), None
        if areas is not None:
            items, key, value = key.shape[2], areas.keys(key), areas.values(value)
            allowed = None if allowed is None else areas.mask(allowed.expand(*allowed.shape[:-1], items))
        return self._weigh(query, key, value, allowed, need_weights)

    def _weigh(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, need_weights: NeedWeights
    ) -> tuple[Tensor, Tensor | None]:
        # As `_heads`, in separate operations; with areas, on area keys and values.
        areas, dropout = self.areas, self.dropout if self.training else 0.0
        scores = self._scores(query, key)
        normalize = ops.normalize if areas is None else areas.weights
        weights = normalize(scores, allowed, normalizer=self.normalizer)
        context = F.dropout(weights, dropout) @ value.to(weights.dtype)
        if not need_weights:
            return context, None
        return context, areas.project(weights) if areas is not None and need_weights != "areas" else weights

    def _scores(self, query: Tensor, key: Tensor) -> Tensor:
        if self.score is None:
            return ops.scaled_dot_scores(query, key)
        if not isinstance(self.score, nn.ModuleList):
            return self.score(query, self.score.project(key))
        scores = cast(list[ScoreModule], list(self.score))
        return torch.stack([score(query[:, h], score.project(key[:, h])) for h, score in enumerate(scores)], 1)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}, dropout={self.dropout}, normalizer={self.normalizer!r}"


def _scores(
    score: ScoreModule | Sequence[ScoreModule] | None, num_heads: int, head_dim: int, areas: Areas | None
) -> ScoreModule | nn.ModuleList | None:
    each = list(score) if isinstance(score, Sequence) else [] if score is None else [score]
    if isinstance(score, Sequence) and len(score) != num_heads:
        raise ConfigError(f"MultiHeadAttention: {len(score)} scores for {num_heads} heads; give one for all, or one for each")
    if areas is not None and any(isinstance(one, LocationScore) for one in each):
        raise ConfigError("MultiHeadAttention: LocationScore scores positions without their keys; areas have keys but no positions")
    for one in each:
        for name, size in zip(("query", "key"), input_dims(one), strict=True):
            if size not in (head_dim, "Dq", "Dk"):
                raise ConfigError(
                    f"MultiHeadAttention: score: {type(one).__name__} takes {name} of size {size}, expected {head_dim}, the size of a head"
                )
    return nn.ModuleList(score) if isinstance(score, Sequence) else score


class _Allowed(NamedTuple):
    """A mask of four axes, or None for everything; that it is the causal one alone; that no row of it is empty."""

    mask: Tensor | None
    only_causal: bool = False
    never_empty: bool = False


def _fused(query: Tensor, key: Tensor, value: Tensor, seen: _Allowed, dropout: float) -> Tensor:
    allowed, only_causal = seen.mask, seen.only_causal
    if only_causal and query.shape[2] == key.shape[2]:  # is_causal aligns top-left: right only for equal lengths
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
    if allowed is None or seen.never_empty or (only_causal and query.shape[2] < key.shape[2]):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout)
    # Backends differ on fully masked rows: let these attend to everything, and zero them after.
    empty = ~allowed.any(-1, keepdim=True)
    context = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed | empty, dropout_p=dropout)
    return context.masked_fill(empty, 0.0)
