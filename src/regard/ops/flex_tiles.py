"""Attention with a `score_mod` and a `mask_mod` by tiles of queries and keys, with PyTorch's own operators, forward and backward.

No T x S tensor exists. Forward keeps each query's log-sum-exp, backward recomputes every tile from it, as in FlashAttention (Dao et al.
2022, arXiv:2205.14135). Both skip fully masked tiles.

Keys are (N, S, D), N = batch x key heads, and queries (N, G, T, D), G query heads per key head.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor  # pyright: ignore[reportPrivateUsage]

from regard.errors import ConfigError
from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.materialized_attention import EMPTY, FULL, Blocks, FlexRequest, compute_dtype, materialized_attention, modify_scores
from regard.ops.mod_calls import Captured, Mod, index_tensors
from regard.ops.tensor_checks import no_autocast

# Measured with AVX-512: products of this size run at full speed, and their scores, 512 KiB, stay in the second-level cache.
ROWS, COLUMNS = 256, 512
FUSED = 512 * 512
"""Scores of a head up to which PyTorch's fused kernel computes forward: as it reads masks it skips nothing, but there is little to skip."""
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


class Tile(NamedTuple):
    """Keys that a strip attends to, and whether to apply the `mask_mod`."""

    columns: range
    partial: bool


class Strip(NamedTuple):
    """Consecutive queries of some heads, and the key tiles that they may attend."""

    rows: range
    heads: range
    tiles: list[Tile]


def plan_strips(blocks: Blocks | None, batch: int, key_heads: int, group: int, target: int, source: int) -> list[Strip]:
    """Split attention into strips of tiles, without fully masked tiles.

    Example:
        >>> kinds = torch.tensor([[[[1, 0], [2, 1]]]], dtype=torch.uint8)
        >>> [len(strip.tiles) for strip in plan_strips(Blocks(kinds, (256, 256)), 1, 1, 1, 512, 512)]
        [1, 2]
    """
    rows = max(min(ROWS // group, target), 16)
    kinds, size, _ = blocks or Blocks(torch.full((1, 1, 1, 1), FULL), (target, source))
    alike, strips = kinds.shape[:2] == (1, 1), []
    # One tile per thread, so that each thread has its own heads; but heads with different masks skip less together.
    tiles_at_once = torch.get_num_threads() if alike else 1
    chunk = max(1, tiles_at_once * ROWS * COLUMNS // (group * rows * min(COLUMNS, source)))
    for start in range(0, target, rows):
        stop = min(start + rows, target)
        part = kinds[:, :, start // size[0] : -(-stop // size[0])]
        shared = _tiles(part[:1, :1], size[1], source) if alike else []
        for first in range(0, batch * key_heads, chunk):
            heads = range(first, min(first + chunk, batch * key_heads))
            tiles = shared if alike else _tiles(part[first : heads.stop], size[1], source)
            strips.append(Strip(range(start, stop), heads, tiles))
    return strips


def _tiles(kinds: Tensor, width: int, source: int) -> list[Tile]:
    """Join adjacent blocks of one kind, and split those wider than a tile."""
    some, every = kinds.amax((0, 1, 2)), kinds.amin((0, 1, 2))
    found, start = [], 0
    for kind, run in groupby(torch.where(every == FULL, FULL, some.clamp(max=1)).tolist()):
        stop = min(start + width * len(list(run)), source)
        if kind != EMPTY:
            found += [Tile(range(n, min(n + COLUMNS, stop)), kind != FULL) for n in range(start, stop, COLUMNS)]
        start = stop
    return found


class TiledCall:
    """A call by tiles: its sizes, strips, and the scores of a tile.

    Args:
        request: the call's settings.
        query: (B, H, T, D).
        key: (B, K, S, D).
        bad: see `materialized_attention`.
        captured: tensors that the `score_mod` captures and that require gradients.
    """

    def __init__(self, request: FlexRequest, query: Tensor, key: Tensor, bad: Tensor | None, captured: tuple[Tensor, ...]) -> None:
        self.request, self.bad, self.captured = request, bad, captured
        self.dtype = compute_dtype(query.dtype)
        batch, key_heads, source = key.shape[:3]
        self.group, self.shape = query.shape[1] // key_heads, query.shape
        self.blocks = request.blocks
        if self.blocks is not None and self.blocks.kinds.shape[:2] != (1, 1):
            kinds = self.blocks.kinds.expand(batch, query.shape[1], -1, -1)
            self.blocks = self.blocks._replace(kinds=kinds.reshape(-1, self.group, *kinds.shape[2:]))
        self.strips = plan_strips(self.blocks, batch, key_heads, self.group, query.shape[2], source)
        numbers = torch.arange(batch * key_heads, dtype=torch.int32)
        self.batches = numbers // key_heads
        self.heads = (numbers % key_heads * self.group).unsqueeze(-1) + torch.arange(self.group, dtype=torch.int32)
        self._shared = False
        if request.mask_mod is not None:  # two values per index: the result has size 1 along axes it does not depend on
            ones, pair = torch.zeros(2, dtype=torch.int32), range(1)
            self._shared = request.mask_mod(*index_tensors(ones, ones.expand(2, 2), pair, pair)).shape[:-2].numel() == 1
        alike = self.blocks is None or self.blocks.kinds.shape[:2] == (1, 1)
        self._alike = self._shared and (alike or not cast(Blocks, self.blocks).binding)
        self._kept: dict[Tile, tuple[Tensor, Tensor]] = {}
        self._kept_rows = range(0)

    def is_small(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Return whether PyTorch's kernel can compute the forward pass: short, one mask for all heads, unmodified scores."""
        request, shape = self.request, query.shape
        alike = request.mask_mod is None or (self._shared and self.blocks is not None and self.blocks.kinds.shape[:2] == (1, 1))
        plain = request.score_mod is None and self.bad is None and query.dtype == self.dtype and alike
        return plain and shape[2] * key.shape[2] <= FUSED and shape[-1] == value.shape[-1] and bool(query.sum().isfinite())

    def split(self, x: Tensor) -> Tensor:
        """View a tensor with query axes as (N, G, T, ...)."""
        return x.reshape(x.shape[0] * (x.shape[1] // self.group), self.group, *x.shape[2:])

    def modified(self, scores: Tensor, strip: Strip, tile: Tile, stand_ins: Captured | None) -> Tensor:
        """Apply the `score_mod` to a tile."""
        if self.request.score_mod is None:
            return scores
        indices = self._indices(strip, tile)
        captured = stand_ins or Captured({}, None)
        return modify_scores(scores, lambda *x: captured.run(self.request.score_mod, *x), *indices)  # type: ignore[arg-type]

    def hidden(self, scores: Tensor, strip: Strip, tile: Tile) -> Tensor:
        """Set masked scores to -inf, and scores of visible non-finite keys to NaN."""
        if tile.partial:
            keep, low = self.tile_mask(strip, tile)
            # Bitwise: exact for any masked score, and many times faster than torch.where on a mask without long runs.
            scores = scores.view(keep.dtype).bitwise_and(keep).bitwise_or_(low).view(scores.dtype)
        if self.bad is None:
            return scores
        bad = self.bad.flatten(0, 1)[strip.heads.start : strip.heads.stop, None, None, tile.columns.start : tile.columns.stop]
        return torch.where(bad & ~torch.isneginf(scores), torch.nan, scores)

    def _indices(self, strip: Strip, tile: Tile) -> tuple[Tensor, ...]:
        part = slice(strip.heads.start, strip.heads.stop)
        return index_tensors(self.batches[part], self.heads[part], strip.rows, tile.columns)

    def tile_mask(self, strip: Strip, tile: Tile) -> tuple[Tensor, Tensor]:
        """Make the bits that keep a score and those that make -inf; a mask shared by all heads is made once per strip."""
        if strip.rows != self._kept_rows:
            self._kept, self._kept_rows = {}, strip.rows
        if tile in self._kept:
            return self._kept[tile]
        assert self.request.mask_mod is not None
        assert self.blocks is not None
        allowed, kind = self.request.mask_mod(*self._indices(strip, tile)), _INTEGERS[self.dtype]
        if self.blocks.binding:
            kinds = self.blocks.kinds
            kinds = kinds if kinds.shape[:2] == (1, 1) else kinds[strip.heads.start : strip.heads.stop]
            allowed = self.blocks._replace(kinds=kinds).overrule(allowed, strip.rows, tile.columns)
        low = torch.tensor(-torch.inf, dtype=self.dtype).view(kind)
        keep = allowed.to(kind).neg_()
        bits = keep, keep.bitwise_not().bitwise_and_(low)
        if self._alike:  # one mask for all heads
            self._kept[tile] = bits
        return bits


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: TiledCall, *captured: Tensor) -> tuple[Tensor, Tensor]:
        found = _fused(call, query, key, value) if call.is_small(query, key, value) else None
        out, lse = _by_strips(call, query, key, value) if found is None else found
        ctx.call = call
        ctx.save_for_backward(query, key, value, out, lse, *captured)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, lse_grad = grads
        query, key, value, out, lse, *captured = ctx.saved_tensors
        needs = ctx.needs_input_grad[:3] + ctx.needs_input_grad[4:]
        if torch.is_grad_enabled() or is_legacy_batchedtensor(grad) or is_legacy_batchedtensor(lse_grad):  # of `is_grads_batched`
            both = torch.cat([grad, lse_grad.to(grad.dtype).unsqueeze(-1)], -1)
            found = differentiable_gradients(_plain(ctx.call), (query, key, value, *captured), needs, both)
        else:
            with no_autocast(query):  # autocast where backward is called
                found = _backward(ctx.call, (query, key, value), (out, lse), (grad, lse_grad))
        return (*found[:3], None, *found[3:])


def _by_strips(call: TiledCall, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    out = query.new_zeros(*call.split(query).shape[:-1], value.shape[-1])
    lse = query.new_full(out.shape[:-1], -torch.inf, dtype=call.dtype)
    keys, values = (x.flatten(0, 1).to(call.dtype) for x in (key, value))
    for strip, q in _strips(call, query):
        if strip.tiles:
            place = slice(strip.heads.start, strip.heads.stop), slice(None), slice(strip.rows.start, strip.rows.stop)
            context, total = _attend_strip(call, strip, q, keys, values)
            out[place] = context.view(out[place].shape)
            lse[place] = total.view(lse[place].shape)
    return out.view(*query.shape[:-1], value.shape[-1]), lse.view(query.shape[:-1])


def _fused(call: TiledCall, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Compute a small call, with log-sum-exp, by PyTorch's kernel; None where a score is not finite."""
    mask, (target, source) = None, (query.shape[2], key.shape[2])
    if call.request.mask_mod is not None:
        _, low = call.tile_mask(Strip(range(target), range(1), []), Tile(range(source), True))
        mask = _adjacent(low.view(call.dtype).reshape(1, 1, *low.shape[-2:]))  # 0, or -inf where masked
    queries, keys, values = map(_adjacent, (call.split(query), key.flatten(0, 1), value.flatten(0, 1)))
    keys, values = (x.unsqueeze(1).expand(-1, call.group, -1, -1) for x in (keys, values))
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = attend(queries, keys, values, 0.0, False, attn_mask=mask, scale=call.request.scale)
    if not lse.isfinite().all():
        return None
    if mask is not None:  # the kernel's log-sum-exp of an empty row is 0
        lse = lse.masked_fill(torch.isneginf(mask).all(-1).expand(1, 1, target), -torch.inf)
    return out.reshape(query.shape), lse.reshape(query.shape[:-1])


def _adjacent(x: Tensor) -> Tensor:
    """Return a tensor whose rows are adjacent numbers, one after another; PyTorch's kernel reads them so whatever the strides are."""
    return x if x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] else x.clone(memory_format=torch.contiguous_format)


def attend_by_tiles(query: Tensor, key: Tensor, value: Tensor, call: TiledCall) -> tuple[Tensor, Tensor]:
    """Return context (B, H, T, Dv) and log-sum-exp (B, H, T) of plain CPU tensors; no axis but the features may be empty.

    Example:
        >>> x = torch.zeros(1, 1, 2, 1)
        >>> attend_by_tiles(x, x, x, TiledCall(FlexRequest(1.0), x, x, None, ()))[1].exp()
        tensor([[[2., 2.]]])
    """
    return _Attend.apply(query, key, value, call, *call.captured)


def _strips(call: TiledCall, query: Tensor) -> Iterator[tuple[Strip, Tensor]]:
    """Yield every strip with its queries (N, G rows, D), scaled."""
    queries = call.split(query)
    for strip in call.strips:
        part = queries[strip.heads.start : strip.heads.stop, :, strip.rows.start : strip.rows.stop]
        yield strip, (part.to(call.dtype) * call.request.scale).flatten(1, 2)


def _tile(x: Tensor, strip: Strip, tile: Tile) -> Tensor:
    """Cut the keys or values (N, S, D) of a tile."""
    return x[strip.heads.start : strip.heads.stop, tile.columns.start : tile.columns.stop]


def _scores(call: TiledCall, strip: Strip, tile: Tile, q: Tensor, key: Tensor) -> Tensor:
    scores = torch.bmm(q, _tile(key, strip, tile).mT)
    return scores.view(len(strip.heads), call.group, len(strip.rows), len(tile.columns))


def _attend_strip(call: TiledCall, strip: Strip, q: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the softmax online: keep the maximum score and the sum of exp(score - maximum) across tiles."""
    context = top = total = None
    for tile in strip.tiles:
        scores = call.hidden(call.modified(_scores(call, strip, tile, q, key), strip, tile, None), strip, tile).flatten(1, 2)
        highest = scores.amax(-1, keepdim=True)
        empty = torch.isneginf(highest)
        if empty.any():  # the softmax of an all -inf row is NaN; its factor here is exp(-inf) = 0
            scores = scores.masked_fill(empty, 0.0)
        weights = torch.softmax(scores, -1)
        size = weights.amax(-1, keepdim=True).reciprocal_()  # the largest weight is 1 / sum
        part = torch.bmm(weights, _tile(value, strip, tile))
        if context is None or top is None or total is None:
            context, top, total = part, highest, size
            continue
        joined = torch.maximum(top, highest)
        shift = joined.masked_fill(torch.isneginf(joined), 0.0)
        old, new = total * (top - shift).exp_(), size * (highest - shift).exp_()
        top, total = joined, (old + new).clamp_(min=0.5)  # at least 1, except where nothing is allowed yet
        context.mul_(old / total).addcmul_(part, new / total)
    assert context is not None
    assert top is not None
    assert total is not None
    return context.masked_fill_(torch.isneginf(top), 0.0), top + total.log_()


def _backward(call: TiledCall, inputs: tuple[Tensor, ...], results: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Compute dS = P (dO V^T - rowsum(dO O) + dlse), tile by tile, and from it all gradients."""
    query, key, value = inputs
    keys, values = (x.flatten(0, 1).to(call.dtype) for x in (key, value))
    grad, out, lse = (call.split(x.to(call.dtype)) for x in (grads[0], results[0], results[1]))
    delta = ((grad * out).sum(-1) - call.split(grads[1].to(call.dtype))).unsqueeze(-1)
    odd = bool(lse.isnan().any())
    lse = lse.masked_fill(torch.isneginf(lse), torch.inf).unsqueeze(-1)  # exp(-inf - inf) = 0: no gradient of an empty row
    dq, dk, dv = (torch.zeros(x.shape, dtype=call.dtype) for x in (call.split(query), keys, values))
    # In float32: sums of many looked-up entries saturate in half precision.
    leaves = {id(x): x.detach().to(compute_dtype(x.dtype)).requires_grad_() for x in call.captured}
    sums = {id(leaf): torch.zeros_like(leaf, requires_grad=False) for leaf in leaves.values()}
    stand_ins = Captured(leaves, sums)
    changing = call.request.score_mod is not None or call.request.mask_mod is not None
    shares = torch.zeros_like(lse)  # per query: the recomputed sum of weights, 1
    for strip, q in _strips(call, query):
        place = slice(strip.heads.start, strip.heads.stop), slice(None), slice(strip.rows.start, strip.rows.stop)
        g, of_query = grad[place].flatten(1, 2), torch.zeros_like(q)
        for tile in strip.tiles:
            scores = _scores(call, strip, tile, q, keys)
            if call.request.score_mod is not None:
                scores.requires_grad_()
            with torch.enable_grad():
                modified = call.modified(scores, strip, tile, stand_ins)
            seen = call.hidden(modified.detach(), strip, tile)
            weights = torch.sub(seen, lse[place]).exp_()
            if odd:  # NaN would spread to hidden keys, too
                weights.masked_fill_(torch.isneginf(seen), 0.0)
            if changing:
                shares[place] += weights.sum(-1, keepdim=True)
            flat = weights.flatten(1, 2)
            _tile(dv, strip, tile).baddbmm_(flat.mT, g)
            ds = torch.bmm(g, _tile(values, strip, tile).mT).view(weights.shape).sub_(delta[place]).mul_(weights)
            if odd:
                ds.masked_fill_(torch.isneginf(seen), 0.0)
            if call.request.score_mod is not None:
                ds = _through_mod(modified, scores, leaves, sums, ds)
            ds = ds.flatten(1, 2)
            of_query.baddbmm_(ds, _tile(keys, strip, tile))
            _tile(dk, strip, tile).baddbmm_(ds.mT, q)
        dq[place] = of_query.mul_(call.request.scale).view(dq[place].shape)
    if changing:
        _check_shares(shares, lse)
    shaped = (x.view(like.shape).to(like.dtype) for x, like in zip((dq, dk, dv), inputs, strict=True))
    return (*shaped, *(sums[id(leaves[id(x)])].to(x.dtype) for x in call.captured))


def _check_shares(shares: Tensor, lse: Tensor) -> None:
    """Refuse functions whose scores differ from the forward pass: gradients would be silently wrong."""
    _check_same((shares - (~torch.isinf(lse)).to(shares.dtype)).abs(), lse)


def _check_same(off: Tensor, lse: Tensor) -> None:
    rounding = 1e-2 + 8 * torch.finfo(lse.dtype).eps * lse.abs().masked_fill(torch.isinf(lse), 0.0)
    if (off > rounding).any():  # false beside NaN
        raise ConfigError(
            "attention: score_mod or mask_mod gives other scores in the backward pass than in the forward pass; it must not depend on "
            "chance, nor on attributes or lists that change meanwhile: pass what it needs as default arguments, such as bias=self.bias"
        )


def with_same_scores(score_mod: Mod) -> Mod:
    """Return a `score_mod` that refuses to give a query scores of another log-sum-exp when recomputed than in its first call.

    Example:
        >>> with_same_scores(lambda score, *indices: score * 2)(torch.ones(1, 3)).tolist()
        [[2.0, 2.0, 2.0]]
    """
    first: list[Tensor] = []

    def call(score: Tensor, *indices: Tensor) -> Tensor:
        modified = score_mod(score, *indices)
        lse = modified.detach().to(score.dtype).expand(score.shape).logsumexp(-1)
        if first:
            _check_same((lse - first[0]).abs(), lse)
        else:
            first.append(lse)
        return modified

    return call


def _through_mod(modified: Tensor, scores: Tensor, leaves: dict[int, Tensor], sums: dict[int, Tensor], grad: Tensor) -> Tensor:
    """Return the gradient of the scores before the `score_mod`, and add those of captured tensors to their sums."""
    if not modified.requires_grad:
        return torch.zeros_like(grad)
    found = torch.autograd.grad(modified, [scores, *leaves.values()], grad, allow_unused=True)
    for leaf, part in zip(leaves.values(), found[1:], strict=True):
        if part is not None:
            sums[id(leaf)].add_(part)
    return torch.zeros_like(grad) if found[0] is None else found[0]


def _plain(call: TiledCall) -> Any:
    """Return a function of query, key, value and captured tensors that materializes all scores: context and log-sum-exp concatenated."""

    def compute(query: Tensor, key: Tensor, value: Tensor, *captured: Tensor) -> Tensor:
        own = Captured({id(x): mine.to(compute_dtype(mine.dtype)) for x, mine in zip(call.captured, captured, strict=True)}, None)
        request, mod = call.request, call.request.score_mod
        if mod is not None:
            request = request._replace(score_mod=lambda *x: own.run(mod, *x))
        result = materialized_attention(query, key, value, request, call.bad)
        assert result.lse is not None
        return torch.cat([result.context, result.lse.to(query.dtype).unsqueeze(-1)], -1)

    return compute
