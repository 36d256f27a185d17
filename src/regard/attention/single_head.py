"""Attention of queries over keys and values: any score, any window, over items or areas, soft or hard."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention.areas import Areas
from regard.attention.base import AttentionOutput, HardOutput, Memory, NeedWeights
from regard.attention.hard import HardChoice
from regard.attention.recorder import is_recording, record_call
from regard.attention.scores import LocationScore, ScoreModule, input_dims
from regard.attention.windows import WindowModule, check_position
from regard.constructor_checks import Dropout, checked
from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask, check_mask
from regard.ops.nonfinite import finite_rows
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import autocasts, check_states, may_need_gradients


class Attention(nn.Module):
    """Attention: scores, a softmax (or a sparse normalizer) under mask and window, an optional hard choice, a weighted sum.

        weights = normalizer(score(query, key)) * factor;  context = weights . value

    Bahdanau et al. 2015, Eq. 5 and 6; Luong et al. 2015, section 3. With no window this is their global attention, with `areas` that of Li
    et al. 2018, with a `choice` the hard attention of Xu et al. 2015.

    Scores, windows, areas and choices combine freely, with two exceptions: a `LocationScore` has no keys to form areas, and windows do not
    support areas of a grid (distances would be measured along rows only).

    Args:
        score: the score function.
        window: `MonotonicWindow`, `PredictiveWindow`, or None for the whole source. An area is allowed if all its items are inside; the
            Gaussian of a predicted window uses the area's centre.
        areas: attend to runs or rectangles of items instead of single ones.
        choice: select one position instead of the weighted sum; renormalizes weights after a window's factor. Tosses the half-soft coin at
            every call; in stepwise decoding toss it once with `choice.soft_rows` and pass it as `soft`.
        dropout: probability with which a weight is dropped in training, at least 0 and less than 1.
        normalizer: how scores become weights: "softmax", "sparsemax" or "entmax15" (`regard.ops.normalize`).

    Parameters: `score.*`, `window.*` and `areas.*`.

    Example:
        >>> from regard.attention import AdditiveScore
        >>> attention = Attention(AdditiveScore(3, 5, 7))
        >>> source = torch.ones(2, 11, 5)
        >>> attention(torch.ones(2, 1, 3), source, source).context.shape
        torch.Size([2, 1, 5])
        >>> memory = attention.memory(source, key_mask=ops.length_mask(torch.tensor([11, 4]), 11))
        >>> attention.attend(torch.ones(2, 1, 3), memory, need_weights=True).weights[1, 0, :5].tolist()
        [0.25, 0.25, 0.25, 0.25, 0.0]
    """

    @checked
    def __init__(
        self,
        score: ScoreModule,
        *,
        window: WindowModule | None = None,
        areas: Areas | None = None,
        choice: HardChoice | None = None,
        dropout: Dropout = 0.0,
        normalizer: Normalizer = "softmax",
    ) -> None:
        super().__init__()
        if areas is not None and isinstance(score, LocationScore):
            raise ConfigError("Attention: LocationScore scores positions without their keys; areas have keys but no positions")
        if areas is not None and window is not None and areas.grid is not None:
            raise ConfigError(
                f"Attention: {type(window).__name__} measures distance along one axis; for areas of a grid "
                f"({areas.grid[0]}, {areas.grid[1]}) that is the raster order, not the distance in the grid"
            )
        self.score = score
        self.window = window
        self.areas = areas
        self.choice = choice
        self.dropout = ops.Dropout(dropout)
        self.normalizer: Normalizer = normalizer

    def memory(self, key: Tensor, value: Tensor | None = None, *, key_mask: Tensor | None = None) -> Memory:
        """Prepare a source: project its keys once, and zero masked positions.

        Args:
            key: (B, S, Dk).
            value: (B, S, Dv); None: the keys are the values.
            key_mask: (B, S) bool, True = may attend, such as from `ops.length_mask`; None allows everything.

        Raises:
            ShapeError: key or value do not have three axes, the score takes keys of another size, or value or key_mask do not fit the keys.
        """
        value = key if value is None else value
        check_states("Attention", "key", key, "S", input_dims(self.score)[1])
        check_states("Attention", "value", value, "S", "Dv")
        if value.shape[:2] != key.shape[:2]:
            raise ShapeError(f"memory: value {tuple(value.shape)} must agree with key {tuple(key.shape)} in (B, S)")
        if value.dtype != key.dtype and not autocasts(key.device.type):
            raise ShapeError(
                f"memory: value must be {key.dtype}, the dtype of key, found {value.dtype}; convert it with value.to({key.dtype})"
            )
        mask = torch.ones(key.shape[:2], dtype=torch.bool, device=key.device) if key_mask is None else key_mask
        check_key_mask(mask, key.shape[:2], "Attention.memory")
        same = value is key
        key = key.masked_fill(~mask.unsqueeze(-1), 0.0)
        value = key if same else value.masked_fill(~mask.unsqueeze(-1), 0.0)
        if self.areas is None and not may_need_gradients():
            return Memory(self.score.project(key), value, mask, _reach(mask))
        # A non-finite key is projected as zeros, so that it does not reach weight gradients, and becomes NaN after the projection. With
        # areas likewise: an item must not reach areas that do not contain it.
        bad = ~finite_rows(key)
        key = key.masked_fill(bad.unsqueeze(-1), 0.0)
        if self.areas is not None:
            bad = bad | ~finite_rows(value)
            value = self.areas.values(value.masked_fill(bad.unsqueeze(-1), 0.0))
            key = self.areas.keys(key)
            bad = ~self.areas.mask(~bad)
            value = value.masked_fill(bad.unsqueeze(-1), torch.nan)
        return Memory(self.score.project(key).masked_fill(bad.unsqueeze(-1), torch.nan), value, mask, _reach(mask))

    @takes_tensors
    def attend(
        self,
        query: Tensor,
        memory: Memory,
        *,
        mask: Tensor | None = None,
        position: int | Tensor = 0,
        need_weights: NeedWeights = False,
        soft: Tensor | None = None,
    ) -> AttentionOutput | HardOutput:
        """Attend with queries to a memory. Hypotheses of one sentence are queries of one source, which is never copied.

        Args:
            query: (B, T, Dq).
            memory: from `memory`.
            mask: bool, (S,) or (B, T, S), any axis 1 for all; True = may attend. Combined with the memory's own.
            position: target position of the queries, from 0; used by `MonotonicWindow` only. One number is that of all, as of several
                hypotheses of one sentence; or (T,).
            need_weights: also return weights: True per item, "areas" per area.
            soft: (B,) bool, with a `choice` only: examples with expected weights.

        Returns:
            `AttentionOutput`, with a `choice` `HardOutput`; a row with nothing to attend to is all zeros.

        Raises:
            ShapeError: the query does not have three axes, the score takes queries of another size, or memory or mask do not fit the query.
            ConfigError: area weights without areas, or `soft` without a choice.
        """
        if is_recording():

            def weigh(need: NeedWeights) -> Tensor | None:
                return self.attend(query, memory, mask=mask, position=position, need_weights=need, soft=soft).weights

            record_call(self, self.areas, weigh)
        if need_weights == "areas" and self.areas is None:
            raise ConfigError('attend: need_weights="areas" needs an attention with areas; True gives the weights of the items')
        if soft is not None and self.choice is None:
            raise ConfigError("attend: soft says which examples are not chosen for; this attention has no choice")
        check_states("Attention", "query", query, "T", input_dims(self.score)[0])
        if query.shape[0] != memory.mask.shape[0]:
            raise ShapeError(f"attend: query {tuple(query.shape)} and memory {tuple(memory.key.shape)} must agree in B, the first axis")
        key, value, tainted = memory.key, memory.value, None
        allowed = memory.mask.unsqueeze(1)
        if mask is not None:
            check_mask(mask, (*query.shape[:2], memory.mask.shape[1]), "Attention", key_mask=True)
            allowed = allowed & mask
        factor = None
        if self.window is not None:
            places = None if self.areas is None else self.areas.center(memory.mask.shape[1], query.device)
            window, factor = self.window(query, memory.lengths, memory.mask.shape[1], position, places=places)
            allowed = allowed & window
        else:
            check_position("attend", position)
        if self.areas is not None:
            allowed = self.areas.mask(allowed)
        if mask is not None:
            key, value, tainted = ops.mask_nonfinite(key, value, allowed)
        scores = self.score(query, key)
        normalize = ops.normalize if self.areas is None else self.areas.weights
        weights = normalize(scores, allowed, normalizer=self.normalizer)
        if factor is not None:
            weights = weights * factor.to(weights.dtype)
        if self.choice is None:
            return _tainted(AttentionOutput(*self._output(weights, value, need_weights)), tainted)
        chosen = self.choice(weights, soft=soft)
        output = self._output(chosen.weights, value, need_weights)
        return _tainted(HardOutput(*output, chosen.log_prob, chosen.entropy, chosen.sampled), tainted)

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
        position: int | Tensor | None = None,
        need_weights: NeedWeights = False,
        soft: Tensor | None = None,
    ) -> AttentionOutput | HardOutput:
        """Attend with queries (B, T, Dq) to keys (B, S, Dk) and values (B, S, Dv): `memory` and `attend` in one.

        Both masks are bool, True = may attend: `key_mask` (B, S) hides padding, `mask`, (S,) or (B, T, S) with any axis 1 for all, hides
        pairs of query and key. `causal` hides later positions, too, aligned so that the last query attends to all. Positions that no query
        may attend to are padding, also those of `mask`: a `PredictiveWindow` counts them out of the source's length, where `attend` takes
        the length of its memory. `position` is one number, that of the first query, or (T,); None: 0, or with `causal` such that the last
        query is at S - 1. Other arguments, results and errors as in `attend`.
        """
        # Otherwise a query (B, Dq) would be read as B queries to each of B examples.
        query_dim, key_dim = input_dims(self.score)
        for name, states, length, size in (("query", query, "T", query_dim), ("key", key, "S", key_dim), ("value", value, "S", "Dv")):
            check_states("Attention", name, states, length, size)
        if position is None:
            position = key.shape[1] - query.shape[1] if causal else 0
        else:
            check_position("Attention", position)
        if not isinstance(position, Tensor) or not position.dim():
            position = position + torch.arange(query.shape[1], device=query.device)
        if mask is not None:
            check_mask(mask, (*query.shape[:2], key.shape[1]), "Attention", key_mask=True)
            mask = mask[(None,) * (3 - mask.dim())]
        if causal:
            earlier = ops.causal_mask(query.shape[1], key.shape[1], query.device)[None]
            mask = earlier if mask is None else mask & earlier
        if mask is None and key_mask is None:
            return self.attend(query, self.memory(key, value), position=position, need_weights=need_weights, soft=soft)
        seen = key_mask  # by any query
        if mask is not None:
            some = mask.any(-2).expand(key.shape[:2])
            if key_mask is not None:
                check_key_mask(key_mask, key.shape[:2], "Attention")
                some = some & key_mask
            seen = some
        memory = self.memory(key, value, key_mask=seen)
        # In self-attention a query may be padding, too: zeros send no NaN into the gradients of others.
        bad = ~finite_rows(query)
        query = query.masked_fill(bad.unsqueeze(-1), 0.0)
        per_query = None if mask is None or mask.shape[-2] == 1 else mask  # one row for all queries is entirely in the memory
        return _tainted(self.attend(query, memory, mask=per_query, position=position, need_weights=need_weights, soft=soft), bad)

    def _output(self, weights: Tensor, value: Tensor, need_weights: NeedWeights) -> tuple[Tensor, Tensor | None]:
        context = torch.bmm(self.dropout(weights), value.to(weights.dtype))
        if not need_weights:
            return context, None
        return context, weights if self.areas is None or need_weights == "areas" else self.areas.project(weights)


def _tainted(output: AttentionOutput | HardOutput, tainted: Tensor | None) -> AttentionOutput | HardOutput:
    # Queries that may attend non-finite values give NaN.
    if tainted is None:
        return output
    rows = tainted.unsqueeze(-1)
    weights = None if output.weights is None else output.weights.masked_fill(rows, torch.nan)
    output = output._replace(context=output.context.masked_fill(rows, torch.nan), weights=weights)
    if isinstance(output, AttentionOutput):
        return output
    return output._replace(log_prob=output.log_prob.masked_fill(tainted, torch.nan), entropy=output.entropy.masked_fill(tainted, torch.nan))


def _reach(mask: Tensor) -> Tensor:
    # (B, S) -> (B,): the index of the last True plus one.
    size = mask.shape[1]
    if size == 0:
        return torch.zeros(mask.shape[0], dtype=torch.long, device=mask.device)
    return (mask * torch.arange(1, size + 1, device=mask.device)).amax(-1)
