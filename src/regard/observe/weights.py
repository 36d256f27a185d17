"""Computes the weights of a `F.scaled_dot_product_attention` call separately, a block of queries at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.call_checks import takes_tensors
from regard.ops.number_checks import LARGEST_SCALE, check_number

BLOCK = 1 << 20
"""Max number of scores in memory, but at least those of one query: 4 MiB in float32."""


@takes_tensors
def attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    heads: Sequence[int] | None = None,
) -> Tensor:
    """Compute the weights with which `F.scaled_dot_product_attention` multiplies the values.

        softmax(scale query key^T + mask)

    Args:
        query: (B, H, T, D); the axes H and B may be missing; further leading axes count as batch.
        key: (B, G, S, D), where G divides H: consecutive heads share one (grouped queries).
        mask: broadcastable to (B, H, T, S); bool, True = may attend, or floating, added to the scores.
        causal: mask keys after the query of the same index, both counted from the start.
        scale: None: 1 / sqrt(D).
        heads: head indices; None: all.

    Returns:
        (B, number of heads, T, S) float32 on the CPU; zeros in a row with nothing to attend to.

    Raises:
        ConfigError: a head index out of range.

    Example:
        >>> query = torch.zeros(1, 2, 3, 4)
        >>> attention_weights(query, query, causal=True)[0, 0].tolist()[1]
        [0.5, 0.5, 0.0]
    """
    if scale is not None:
        check_number("attention_weights", "scale", scale, -LARGEST_SCALE, LARGEST_SCALE)
    with _aside(query.device.type):
        query, key, mask = _with_four_axes(query, key, mask)
        batch, num_heads, targets, width = query.shape
        sources = key.shape[-2]
        query, key, mask = _select(query, key, mask, check_heads(heads, num_heads))
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32
        factor = width**-0.5 if scale is None else scale
        key = key.to(exact).transpose(-1, -2)  # (B, H, D, S)
        places = torch.arange(sources, device=query.device)
        found = torch.zeros(batch, query.shape[1], targets, sources, dtype=torch.float32, device="cpu")
        rows = max(1, BLOCK // max(1, batch * query.shape[1] * sources))
        for start in range(0, targets if sources else 0, rows):
            block = slice(start, min(start + rows, targets))
            scores = (query[:, :, block].to(exact) * factor) @ key  # (B, H, rows, S)
            if mask is not None:
                own = mask if mask.shape[-2] == 1 else mask[:, :, block]
                scores = scores.masked_fill(~own, -torch.inf) if own.dtype == torch.bool else scores + own.to(exact)
            if causal:
                scores.masked_fill_(places > torch.arange(block.start, block.stop, device=query.device).unsqueeze(-1), -torch.inf)
            empty = scores.amax(-1, keepdim=True) == -torch.inf
            found[:, :, block] = scores.softmax(-1).masked_fill_(empty, 0.0)
        return found


def nested_attention_weights(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """Compute the weights of a call with nested tensors (B, H, *, D): `attention_weights` of each example.

    Args:
        query: (B, H, T, D), nested or not.
        key: (B, H, S, D), nested or not.
        options: those of `attention_weights`.

    Returns:
        (B, number of heads, T, S) float32 on the CPU; T and S are the longest lengths, and weights beyond an example's own are zero.

    Example:
        >>> states = torch.nested.nested_tensor([torch.zeros(3, 8), torch.zeros(2, 8)], layout=torch.jagged)
        >>> heads = states.unflatten(-1, (2, 4)).transpose(1, 2)
        >>> nested_attention_weights(heads, heads)[1, 0].tolist()
        [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    with _aside(query.device.type):
        pairs = zip(query.detach().unbind(), key.detach().unbind(), strict=True)
        parts = [attention_weights(own.unsqueeze(0), others.unsqueeze(0), **options) for own, others in pairs]
        targets, sources = (max(part.shape[axis] for part in parts) for axis in (-2, -1))
        return torch.cat([F.pad(part, (0, sources - part.shape[-1], 0, targets - part.shape[-2])) for part in parts])


@contextmanager
def _aside(device: str) -> Iterator[None]:
    """Compute without gradients, outside any mode, in full precision."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False), torch._C.DisableTorchFunction():
        yield


def check_heads(heads: Sequence[int] | None, count: int) -> Sequence[int] | None:
    """Return the requested head indices.

    Raises:
        ConfigError: an index is not below `count`; the message names it.
    """
    if heads is not None and (wrong := [head for head in heads if head >= count]):
        raise ConfigError(f"watch: heads: {wrong[0]}: a layer has {count} heads, counted from 0; leave it out, or say which `layers`")
    return heads


def _with_four_axes(query: Tensor, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    # All as (B, H, ...), the mask with singleton axes.
    axes = query.dim()
    while query.dim() < 4:
        # (T, D): one sequence; (B, T, D): a batch without heads
        at = 0 if query.dim() == 2 else 1
        query, key = query.unsqueeze(at), key.unsqueeze(at)
    if mask is not None:
        while mask.dim() < axes:
            mask = mask.unsqueeze(0)
        mask = mask.unsqueeze(0).unsqueeze(0) if axes == 2 else mask.unsqueeze(1) if axes == 3 else mask
    front = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], mask.shape[:-3] if mask is not None else ())

    def flat(tensor: Tensor) -> Tensor:
        return tensor.expand(*front, *tensor.shape[-3:]).flatten(0, len(front) - 1)

    return flat(query), flat(key), None if mask is None else flat(mask)


def _select(query: Tensor, key: Tensor, mask: Tensor | None, heads: Sequence[int] | None) -> tuple[Tensor, Tensor, Tensor | None]:
    # The requested heads, each with the key that it shares.
    num_heads, groups = query.shape[1], key.shape[1]
    if num_heads % groups == 0 and num_heads != groups:
        chosen = range(num_heads) if heads is None else heads
        key = key[:, [head // (num_heads // groups) for head in chosen]]
    elif heads is not None:
        key = key[:, list(heads)]
    if heads is None:
        return query, key, mask
    return query[:, list(heads)], key, mask if mask is None or mask.shape[1] == 1 else mask[:, list(heads)]
