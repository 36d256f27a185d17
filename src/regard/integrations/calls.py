"""One attention call of a Hugging Face model: its arguments, their checks, and area attention as its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import Areas
from regard.errors import ConfigError, ShapeError

# Options that change the result and are not supported: they are refused, never dropped.
REFUSED = ("cache", "head_mask", "sinks")


class AttentionCall(NamedTuple):
    """Arguments of an attention layer's call, in transformers' terms.

    Attributes:
        query: (B, H, T, D).
        key: (B, H, S, D), repeated for heads that share keys.
        value: (B, H, S, Dv), likewise.
        mask: bool, (B, H, T, S), any axis may be 1, True = may attend; None: everything.
        bias: broadcastable to (B, H, T, S), added to the scores of items; None: nothing.
        sinks: (H,), a score per head that joins the softmax without a value; None: none.
        scale: factor of the dot products.
        dropout: probability of dropping a weight, 0 outside training.
        softcap: scores are capped to (-softcap, softcap) before the bias; None: not capped.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    bias: Tensor | None
    sinks: Tensor | None
    scale: float
    dropout: float
    softcap: float | None

    @property
    def plain(self) -> bool:
        """Whether this is masked scaled dot-product attention and nothing else."""
        return self.bias is None and self.sinks is None and self.softcap is None


class AttentionResult(NamedTuple):
    """Context (B, H, T, Dv), weights of items (B, H, T, S) and, with areas, of areas (B, H, T, N)."""

    context: Tensor
    items: Tensor
    areas: Tensor | None


NOTICE = "area_attention_is_lost_without_regard_restore"
"""Notice in transformers' loading report for a model with areas that is loaded as a plain one."""


class AreaLayer(nn.Module):
    """The areas of one attention layer, a submodule of it, so that area features are trained and saved with the model.

    Parameters: those of `regard.attention.Areas` under the layer's number, which is unique in the model ("3.width"). Files stay readable if
    the model's names change.

    Buffers: the first layer has one number under the name of `NOTICE`. Every saved model then holds a weight unknown to a model without
    areas, even if nothing is learned: transformers reports it by name, a strict `load_state_dict` refuses it.

    Args:
        number: index of this attention layer in the model.
        areas: None: the layer attends to items.
        own: number of items at the (front, back) of every memory that are areas of their own, outside the sequence or grid.
    """

    def __init__(self, number: int, areas: Areas | None, own: tuple[int, int] = (0, 0)) -> None:
        super().__init__()
        self.number, self.own = number, own
        self.reached = False
        if number == 0:
            self.register_buffer(NOTICE, torch.ones(1, dtype=torch.uint8))
        if areas is not None:
            self.add_module(str(number), areas)

    @property
    def areas(self) -> Areas | None:
        """Settings and weights of the areas; None if the layer attends to items."""
        areas = self._modules.get(str(self.number))
        return areas if isinstance(areas, Areas) else None

    def lift(self, items: Tensor, make: Callable[[Tensor], Tensor], dim: int) -> Tensor:
        """Build the areas of the items along `dim`, except for items that are areas of their own.

        Raises:
            ShapeError: the memory length differs from own items plus grid; the message holds all numbers.
        """
        front, back = self.own
        size = items.shape[dim]
        middle = size - front - back
        grid = self.areas.grid if self.areas else None
        if middle < 0 or (grid is not None and middle != math.prod(grid)):
            inside = "a sequence" if grid is None else f"a grid of {grid[0]} x {grid[1]} = {math.prod(grid)}"
            raise ShapeError(
                f"area attention: {size} keys are not {front} class tokens, {inside} and {back} tokens after it; "
                f"say `grid` and `class_tokens` to enable_area"
            )
        if not front and not back:
            return make(items)
        before, inner, after = items.split((front, middle, back), dim)
        return torch.cat([before, make(inner), after], dim)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"number={self.number}, own={self.own}"


def read_call(module: nn.Module, tensors: tuple[Tensor, Tensor, Tensor], mask: Tensor | None, options: Mapping[str, Any]) -> AttentionCall:
    """Convert the arguments of an attention function of transformers.

    Args:
        module: the calling attention layer; its `is_causal` applies if there is no mask.
        tensors: query (B, H, T, D), key (B, G, S, D), value (B, G, S, Dv), where G divides H.
        mask: bool (True = may attend), or floating, added to the scores, where the lowest values mask out. None: everything, or only
            earlier positions if the layer is causal.
        options: scaling, dropout, position_bias, softcap, s_aux, sliding_window, is_causal, ...

    Raises:
        ConfigError: an option that changes the result is not supported; the message names it.
        ShapeError: a causal layer without a mask has different numbers of keys and queries.
    """
    query, key, value = tensors
    for name in REFUSED:
        if options.get(name) is not None:
            raise ConfigError(f"{type(module).__name__}: area attention does not support {name!r}, which changes the result")
    allowed, bias = _read_mask(mask, query.dtype)
    if allowed is None:
        allowed = _missing_mask(module, query.shape[-2], key.shape[-2], options)
        allowed = None if allowed is None else allowed.to(query.device)
    position_bias = options.get("position_bias")
    if position_bias is not None:
        bias = position_bias if bias is None else bias + position_bias
    groups = query.shape[1] // max(key.shape[1], 1)
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scale, dropout = options.get("scaling"), options.get("dropout") or 0.0
    return AttentionCall(
        query,
        key,
        value,
        allowed,
        bias,
        options.get("s_aux"),
        query.shape[-1] ** -0.5 if scale is None else scale,
        dropout if module.training else 0.0,
        options.get("softcap"),
    )


def _read_mask(mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """Split a mask of transformers into (what may be attended, what is added to the scores)."""
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise ConfigError(f"attention_mask: a boolean or floating mask is expected, found {mask.dtype}")
    # Models mask with the lowest value of a dtype or with -inf. Half of it: some add two such masks, or other numbers to them.
    lowest = max(torch.finfo(mask.dtype).min, torch.finfo(dtype).min) / 2
    allowed = mask > lowest
    return allowed, mask.masked_fill(~allowed, 0.0)


def _missing_mask(module: nn.Module, target: int, source: int, options: Mapping[str, Any]) -> Tensor | None:
    """Return the meaning of a missing mask: it must never expose the future, or what a sliding window hides."""
    window = options.get("sliding_window")
    if window is not None and source > window:
        raise ConfigError(f"{type(module).__name__}: a sliding window of {window} over {source} keys, but the model passed no mask for it")
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    if not causal or target <= 1:
        return None
    if target != source:
        raise ShapeError(f"{type(module).__name__}: causal, but without a mask {target} queries cannot be placed among {source} keys")
    return ops.causal_mask(target, source)[None, None]


def attend_to_areas(call: AttentionCall, layer: AreaLayer) -> Tensor:
    """Compute a call by the fastest path; return the context (B, H, T, Dv).

    Raises:
        ShapeError: the memory does not fit the grid.
    """
    areas = layer.areas
    if areas is None and call.plain:
        return F.scaled_dot_product_attention(
            call.query, call.key, call.value, attn_mask=call.mask, dropout_p=call.dropout, scale=call.scale
        )
    if areas is None or not (areas.fused and call.plain and layer.own == (0, 0)):
        return attend_with_weights(call, layer).context
    layer.lift(call.key, lambda key: key, -2)  # the check of the grid
    context = ops.area_attention(
        call.query,
        call.key,
        call.value,
        max_area=areas.max_area,
        grid=areas.grid,
        mask=call.mask,
        key_mode=areas.key_mode,
        value_mode=areas.value_mode,
        temperature=areas.temperature,
        scale=call.scale,
        dropout=call.dropout,
    )
    return context if isinstance(context, Tensor) else context[0]


def attend_with_weights(call: AttentionCall, layer: AreaLayer) -> AttentionResult:
    """Compute a call with all weights, like a model's own "eager" attention, over areas.

    The score of an area is the capped product of the query with the area's key, plus the mean bias of its items.

    Raises:
        ShapeError: the memory does not fit the grid.
    """
    areas = layer.areas
    key, value, tainted = ops.mask_nonfinite(call.key, call.value, call.mask)
    mask, bias = call.mask, call.bias
    if areas is not None:
        key, value = layer.lift(key, areas.keys, -2), layer.lift(value, areas.values, -2)
        mask = None if mask is None else layer.lift(mask, areas.mask, -1)
        bias = None if bias is None else layer.lift(bias, lambda items: _area_means(items, areas), -1)
    # Once more: finite items may sum to an infinite area, which must not reach queries that cannot attend to it.
    key, value, overflown = ops.mask_nonfinite(key, value, mask)
    weights = _weights(call, key, mask, bias, areas)
    dropped = F.dropout(weights, call.dropout) if call.dropout else weights
    context = dropped.to(value.dtype) @ value
    if tainted is not None and overflown is not None:
        bad = (tainted | overflown).unsqueeze(-1)
        context, weights = context.masked_fill(bad, torch.nan), weights.masked_fill(bad, torch.nan)
    weights = weights.to(call.query.dtype)
    if areas is None:
        return AttentionResult(context, weights, None)
    front, back = layer.own
    before, inner, after = weights.split((front, weights.shape[-1] - front - back, back), -1)
    return AttentionResult(context, torch.cat([before, areas.project(inner), after], -1), weights)


def _area_means(items: Tensor, areas: Areas) -> Tensor:
    means = ops.window_sums(items.transpose(-1, -2), areas.max_area, areas.grid, mean=True)
    return means.transpose(-1, -2)


def _weights(call: AttentionCall, key: Tensor, mask: Tensor | None, bias: Tensor | None, areas: Areas | None) -> Tensor:
    scores = (call.query * call.scale) @ key.transpose(-1, -2)
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()  # as the models' own attention does
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if bias is not None:
        scores = scores + bias
    if call.sinks is not None:
        sinks = call.sinks.to(scores.dtype).reshape(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
        if mask is not None:
            mask = F.pad(mask, (0, 1), value=True)
    weights = ops.masked_softmax(scores, mask) if areas is None else areas.weights(scores, mask)
    return weights if call.sinks is None else weights[..., :-1]
