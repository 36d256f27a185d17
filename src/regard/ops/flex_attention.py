"""Attention with `score_mod` and `mask_mod` functions: FlexAttention's signature, with training on CPUs.

PyTorch's FlexAttention (Dong et al. 2024, arXiv:2412.05496) has no CPU backward pass. On CPUs this module computes both directions in
tiles, in memory linear in the length (`regard.ops.flex_tiles`). CUDA tensors go to FlexAttention.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from regard.errors import ConfigError, ShapeError, shortened
from regard.ops.area_windows import check_areas
from regard.ops.call_checks import takes_tensors
from regard.ops.flex_tiles import TiledCall, attend_by_tiles, with_same_scores
from regard.ops.materialized_attention import FULL, PARTIAL, Blocks, FlexRequest, MaterializedResult, compute_dtype, materialized_attention
from regard.ops.mod_calls import (
    Mod,
    captured_tensors,
    check_kind,
    check_sizes,
    frozen,
    index_tensors,
    over_tiles,
    over_traced_tiles,
    with_float_sums,
)
from regard.ops.nonfinite import finite_rows
from regard.ops.number_checks import check_factor
from regard.ops.tensor_checks import autocast_together, is_plain, no_autocast, with_learned_scale

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

BLOCK = 128
AREA_SCORES = 2**21  # area scores in memory at a time, 8 MiB


@takes_tensors
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Mod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | Tensor | None = None,
    enable_gqa: bool = False,
    *,
    mask_mod: Mod | None = None,
    max_area: int | None = None,
    need_weights: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, ...]:
    """Attend with any score change and any mask, both given as functions; trains on CPUs.

        weights = softmax over allowed s of score_mod(scale q_t . k_s, b, h, t, s),   context = weights v

    Accepts the functions and block masks of FlexAttention (Dong et al. 2024, arXiv:2412.05496). On a CPU neither direction holds a T x S
    tensor, and fully masked blocks are skipped. `regard.ops.mods` has ready functions.

    Differs from the paper: tensors that `score_mod` captures get gradients on CPUs, too; weights and areas are optional.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D), or with `enable_gqa` (B, K, S, D), H a multiple of K.
        value: (B, H or K, S, Dv).
        score_mod: `score_mod(score, b, h, q_idx, kv_idx) -> score`; the indices are int32 tensors that broadcast to the scores of a tile.
            -inf hides a key. No `if` on an index: use `torch.where`.
        block_mask: torch's `BlockMask`, from `attention_blocks` or `create_block_mask`; pays where a mask is reused.
        scale: multiplies the dot products; None: 1 / sqrt(D). A tensor that broadcasts to (B, H, T, 1), such as (H, 1, 1), may be learned.
        enable_gqa: H / K query heads share each key-value head.
        mask_mod: `mask_mod(b, h, q_idx, kv_idx) -> bool`, True = may attend. In place of `block_mask`.
        max_area: attend to runs of up to `max_area` adjacent keys (Li et al. 2018, Eq. 1 to 4): an area's score is the mean of its modified
            scores, its value the sum of its values; all its keys must be allowed.
        need_weights: also return the weights (B, H, T, S), per key even with areas. Materializes all scores.
        return_lse: also return the log-sum-exp of each query's scores, (B, H, T).

    Returns:
        Context (B, H, T, Dv), or a tuple of context, weights and log-sum-exp as requested. A query with nothing to attend to gives zeros,
        with log-sum-exp -inf. Masked keys have no influence; a query that may attend a non-finite key or value gives NaN. On
        CUDA PyTorch's kernels compute, in which a masked NaN or infinity also reaches the queries of its block.

    Raises:
        ShapeError: incompatible shapes, also of tensors in a ready function, or a mask that is not boolean.
        ConfigError: arguments that exclude each other, or a function that does not work on tensors.

    Example:
        >>> x = torch.randn(1, 2, 5, 4, requires_grad=True)
        >>> slopes = torch.tensor([0.5, 0.25], requires_grad=True)
        >>> context = attention(
        ...     x, x, x, lambda score, b, h, q, kv: score - slopes[h] * (q - kv), mask_mod=lambda b, h, q, kv: q >= kv
        ... )
        >>> context.sum().backward()
        >>> context.shape, slopes.grad.shape
        (torch.Size([1, 2, 5, 4]), torch.Size([2]))
    """
    _check_tensors(query, key, value, scale)
    if not torch.compiler.is_compiling() and has_torch_function((query, key, value)):
        # A torch function mode, such as that of `regard.watch`, receives the call and not its tiles.
        more: dict[str, Any] = {"mask_mod": mask_mod, "max_area": max_area, "need_weights": need_weights, "return_lse": return_lse}
        whole = query, key, value, score_mod, block_mask, scale, enable_gqa
        return handle_torch_function(attention, (query, key, value), *whole, **more)
    query, key, value = autocast_together(query, key, value)
    _check_shapes(query, key, value, enable_gqa)
    _check_options(score_mod, block_mask, mask_mod, max_area, return_lse)
    max_area = None if max_area is None else int(max_area)
    sizes = (*query.shape[:3], key.shape[2])
    if block_mask is not None:
        _check_blocks(block_mask, sizes, query.device)
    own_mask = mask_mod if block_mask is None else block_mask.mask_mod
    for mod in (score_mod, own_mask):
        check_sizes(mod, sizes)
    # Scores stay in float32: autocast would round them in the forward or backward pass only.
    with no_autocast(query):
        query, scale = with_learned_scale("attention", query, 1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale)
        if _is_fused(query) and all(sizes) and not need_weights and max_area is None:
            return _by_flex_attention((query, key, value), score_mod, block_mask, mask_mod, scale, enable_gqa, return_lse)
        blocks = None if block_mask is None else _blocks(block_mask)
        request = FlexRequest(scale, score_mod, own_mask, blocks, max_area)
        if not is_plain(query, key, value) or query.is_meta or not all(sizes):
            request = _over_traced_tiles(request, query, sizes)
            bad = _bad_keys(key, value)
            result = materialized_attention(query, _without(key, bad), _without(value, bad), request, bad)
        else:
            result = _by_tiles(query, key, value, _over_tiles(request, query, sizes), need_weights=need_weights)
    extra = [x for x, asked in ((result.weights, need_weights), (result.lse, return_lse)) if asked and x is not None]
    return (result.context, *extra) if extra else result.context


@takes_tensors
def attention_blocks(
    mask_mod: Mod,
    batch: int,
    num_heads: int,
    target_size: int,
    source_size: int,
    *,
    block_size: int = BLOCK,
    device: torch.device | str | None = None,
) -> BlockMask:
    """Classify blocks of queries and keys as masked, partial or full.

    Like `torch.nn.attention.flex_attention.create_block_mask`, in memory linear in the lengths. Call it once for a mask that several layers
    or training steps use.

    Args:
        mask_mod: `mask_mod(b, h, q_idx, kv_idx) -> bool`, True = may attend.
        batch: B.
        num_heads: H, of the queries.
        target_size: T.
        source_size: S.
        block_size: queries and keys per block.
        device: device of the result.

    Returns:
        torch's `BlockMask`, with size 1 in B and H where the mask does not depend on them.

    Raises:
        ConfigError: a size below 1, or `mask_mod` does not work on tensors.
        ShapeError: `mask_mod` does not return booleans, or is a ready function made for other sizes.

    Example:
        >>> blocks = attention_blocks(lambda b, h, q, kv: q >= kv, 2, 4, 512, 512)
        >>> blocks.shape, blocks.sparsity()  # percent of the blocks that are skipped
        ((1, 1, 512, 512), 37.5)
    """
    from torch.nn.attention.flex_attention import BlockMask

    sizes = (batch, num_heads, target_size, source_size)
    if not all(hasattr(size, "__index__") and size > 0 for size in (*sizes, block_size)):
        raise ConfigError(f"attention_blocks: sizes must be whole numbers of at least 1, found {sizes} and block_size {block_size}")
    try:
        place = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # an unknown device, or one that this build of torch lacks
        raise ConfigError(f"attention_blocks: device {device!r} cannot be used: {shortened(str(error))}") from error
    if not callable(mask_mod):
        raise ConfigError(f"attention_blocks: mask_mod must be a function (b, h, q_idx, kv_idx) -> bool, found {type(mask_mod).__name__}")
    check_kind(mask_mod, "mask_mod", "attention_blocks")
    check_sizes(mask_mod, sizes, "attention_blocks")
    mod = over_tiles(mask_mod, "mask_mod", sizes, place)
    kinds = _find_kinds(mod, sizes, block_size, place)
    chosen = [kinds == PARTIAL, kinds == FULL]
    counts = [x.sum(-1, dtype=torch.int32) for x in chosen]
    order = [x.to(torch.int8).argsort(dim=-1, descending=True, stable=True).int() for x in chosen]
    return BlockMask.from_kv_blocks(
        counts[0], order[0], counts[1], order[1], BLOCK_SIZE=block_size, mask_mod=mask_mod, seq_lengths=(target_size, source_size)
    )


def _find_kinds(mask_mod: Mod, sizes: tuple[int, ...], block_size: int, device: torch.device) -> Tensor:
    """Evaluate a tile-wise mask for all pairs, one block of queries at a time."""
    batch, heads, target, source = sizes
    batches = torch.arange(batch, dtype=torch.int32, device=device)
    all_heads = torch.arange(heads, dtype=torch.int32, device=device).expand(1, heads)
    found = []
    for start in range(0, target, block_size):
        rows = range(start, min(start + block_size, target))
        allowed = mask_mod(*index_tensors(batches, all_heads, rows, range(source)))
        allowed = allowed.expand(*(1,) * (4 - allowed.dim()), *allowed.shape[:-2], len(rows), source).to(torch.uint8)
        some, every = allowed.amax(-2), allowed.amin(-2)
        more = -source % block_size
        some = F.pad(some, (0, more)).unflatten(-1, (-1, block_size)).amax(-1)
        found.append(some + F.pad(every, (0, more), value=1).unflatten(-1, (-1, block_size)).amin(-1))
    return torch.stack(found, dim=-2)


def _blocks(block_mask: BlockMask) -> Blocks:
    """Read the kinds of the blocks of torch's block mask."""

    def dense(counts: Tensor, indices: Tensor) -> Tensor:
        columns = indices.shape[-1]
        used = torch.arange(columns, device=indices.device) < counts.unsqueeze(-1)
        marks = torch.zeros(*indices.shape[:-1], columns + 1, dtype=torch.uint8, device=indices.device)
        return marks.scatter_(-1, torch.where(used, indices, columns).long(), 1)[..., :columns]

    kinds = dense(block_mask.kv_num_blocks, block_mask.kv_indices) * PARTIAL
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        kinds = torch.maximum(kinds, dense(block_mask.full_kv_num_blocks, block_mask.full_kv_indices) * FULL)
    rows, columns = block_mask.BLOCK_SIZE
    return Blocks(kinds, (rows, columns), binding=True)


def _over_tiles(request: FlexRequest, query: Tensor, sizes: tuple[int, ...]) -> FlexRequest:
    """Make the functions of a request tile-wise, and compute missing mask blocks."""
    score_mod, mask_mod, blocks = request.score_mod, request.mask_mod, request.blocks
    if score_mod is not None:
        score_mod = over_tiles(frozen(score_mod), "score_mod", sizes, query.device, compute_dtype(query.dtype))
    if mask_mod is not None:
        mask_mod = over_tiles(frozen(mask_mod), "mask_mod", sizes, query.device)
        blocks = blocks or Blocks(_find_kinds(mask_mod, sizes, BLOCK, query.device), (BLOCK, BLOCK))
    return request._replace(score_mod=score_mod, mask_mod=mask_mod, blocks=blocks)


def _over_traced_tiles(request: FlexRequest, query: Tensor, sizes: tuple[int, ...]) -> FlexRequest:
    score_mod, mask_mod = request.score_mod, request.mask_mod
    if score_mod is not None:
        score_mod = over_traced_tiles(score_mod, "score_mod", sizes, compute_dtype(query.dtype))
    if mask_mod is not None:
        mask_mod = over_traced_tiles(mask_mod, "mask_mod", sizes)
    return request._replace(score_mod=score_mod, mask_mod=mask_mod)


def _bad_keys(key: Tensor, value: Tensor) -> Tensor:
    """Mark (B, K, S) where a key or its value is not finite."""
    return ~(finite_rows(key) & finite_rows(value))


def _without(x: Tensor, bad: Tensor) -> Tensor:
    """Zero marked rows: 0 * NaN is NaN."""
    return x.masked_fill(bad.unsqueeze(-1), 0.0)


def _by_tiles(query: Tensor, key: Tensor, value: Tensor, request: FlexRequest, *, need_weights: bool) -> MaterializedResult:
    """Compute with concrete tensors: in tiles; areas in strips of queries; weights all at once."""
    bad = _bad_keys(key, value)
    if bad.any():
        key, value = _without(key, bad), _without(value, bad)
    else:
        bad = None
    one = torch.zeros(1, 1, dtype=torch.int32, device=query.device)
    tried = query.new_zeros(1, 1, 1, 1, dtype=compute_dtype(query.dtype)), *index_tensors(one[0], one, range(1), range(1))
    if need_weights or request.max_area is not None:
        if request.score_mod is not None and torch.is_grad_enabled():
            request = request._replace(score_mod=with_float_sums(request.score_mod, *tried))
        if need_weights:
            return materialized_attention(query, key, value, request, bad)
        return MaterializedResult(_area_context(query, key, value, request, bad), query.new_empty(0), None)
    captured: tuple[Tensor, ...] = ()
    if request.score_mod is not None and torch.is_grad_enabled():
        captured = captured_tensors(request.score_mod, *tried)
    context, lse = attend_by_tiles(query, key, value, TiledCall(request, query, key, bad, captured))
    return MaterializedResult(context, query.new_empty(0), lse)


def _area_context(query: Tensor, key: Tensor, value: Tensor, request: FlexRequest, bad: Tensor | None) -> Tensor:
    """Attend to areas with the scores of a few queries in memory at a time, recomputed in the backward pass."""
    from torch.utils.checkpoint import checkpoint  # and much of torch that nothing else needs

    (batch, heads, target), source = query.shape[:3], key.shape[2]
    size = max(1, AREA_SCORES // (batch * heads * source * min(request.max_area or 1, source)))
    found = []
    for start in range(0, target, size):
        rows, span = range(start, min(start + size, target)), range(source)
        if request.blocks is not None:  # the keys from the first to the last that any of these queries may attend
            kinds, (height, width), _ = request.blocks
            used = kinds[:, :, start // height : -(-rows.stop // height)].amax((0, 1, 2)).nonzero().flatten().tolist()
            span = range(used[0] * width, min((used[-1] + 1) * width, source)) if used else range(0)

        own = request if request.score_mod is None else request._replace(score_mod=with_same_scores(request.score_mod))

        def part(query: Tensor, key: Tensor, value: Tensor, own: FlexRequest = own, rows: range = rows, span: range = span) -> Tensor:
            seen = None if bad is None else bad[:, :, span.start : span.stop]
            return materialized_attention(query, key, value, own, seen, rows, span.start).context

        places = slice(span.start, span.stop)
        parts = query[:, :, rows.start : rows.stop], key[:, :, places], value[:, :, places]
        found.append(checkpoint(part, *parts, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(found, dim=2)


def _is_fused(query: Tensor) -> bool:
    return query.is_cuda


@functools.cache
def _flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _by_flex_attention(
    tensors: tuple[Tensor, Tensor, Tensor],
    score_mod: Mod | None,
    block_mask: BlockMask | None,
    mask_mod: Mod | None,
    scale: float,
    enable_gqa: bool,
    return_lse: bool,
) -> Tensor | tuple[Tensor, ...]:
    """Call PyTorch's kernels."""
    from torch.nn.attention.flex_attention import AuxRequest

    query, key = tensors[:2]
    if mask_mod is not None:
        batch, heads, target = query.shape[:3]
        block_mask = attention_blocks(mask_mod, batch, heads, target, key.shape[2], device=query.device)
    options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if return_lse:
        context, more = _flex_attention()(*tensors, score_mod, block_mask, return_aux=AuxRequest(lse=True), **options)
        return context, more.lse
    return _flex_attention()(*tensors, score_mod, block_mask, **options)


def _check_tensors(query: object, key: object, value: object, scale: object) -> None:
    """Refuse what is no dense tensor, before anything reads its shape."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise ShapeError(f"attention: {name} must be a tensor, found {type(x).__name__}")
        if x.is_nested or x.layout != torch.strided:
            raise ShapeError(f"attention: {name} must be a dense tensor, found a {'nested' if x.is_nested else 'sparse'} one")
        if x.is_floating_point() and x.dtype.itemsize < 2:
            raise ShapeError(f"attention: {name} holds {x.dtype}, which PyTorch does not compute with; convert it, as by {name}.float()")
    if scale is not None:
        check_factor("attention", "scale", scale)


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> None:
    wrong = ""
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        wrong = "query, key and value must be (B, H, length, D)"
    elif query.shape[0] != key.shape[0] or key.shape[:2] != value.shape[:2]:
        wrong = "the axes B and H differ"
    elif enable_gqa and (not key.shape[1] or query.shape[1] % key.shape[1]):
        wrong = "with enable_gqa the heads of the query must be a multiple of those of the key"
    elif not enable_gqa and query.shape[1] != key.shape[1]:
        wrong = "the axis H differs; enable_gqa=True shares heads of keys"
    elif query.shape[-1] != key.shape[-1]:
        wrong = "the feature axis D of query and key differs"
    elif key.shape[-2] != value.shape[-2]:
        wrong = "the length S of key and value differs"
    elif not (query.dtype == key.dtype == value.dtype and query.is_floating_point()):
        wrong = f"expected one floating dtype, found {query.dtype}, {key.dtype} and {value.dtype}"
    elif not query.device == key.device == value.device:
        wrong = f"the tensors are on different devices: {query.device}, {key.device}, {value.device}"
    if wrong:
        found = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ShapeError(f"attention: {wrong}: {found}")


def _check_options(score_mod: object, block_mask: object, mask_mod: object, max_area: int | None, return_lse: bool) -> None:
    shapes = {"score_mod": "(score, b, h, q_idx, kv_idx) -> score", "mask_mod": "(b, h, q_idx, kv_idx) -> bool"}
    for (name, shape), found in zip(shapes.items(), (score_mod, mask_mod), strict=True):
        if found is not None and not callable(found):
            raise ConfigError(f"attention: {name} must be a function {shape}, found {type(found).__name__}")
        check_kind(found, name)
    if block_mask is not None and mask_mod is not None:
        raise ConfigError("attention: give block_mask or mask_mod, not both: a block mask has a mask_mod of its own")
    if max_area is not None:
        check_areas(max_area)
        if return_lse:
            raise ConfigError("attention: return_lse is for keys; with max_area give need_weights=True")


def _check_blocks(block_mask: BlockMask, sizes: tuple[int, ...], device: torch.device) -> None:
    from torch.nn.attention.flex_attention import BlockMask

    if not isinstance(block_mask, BlockMask):
        found = type(block_mask).__name__
        raise ConfigError(f"attention: block_mask must be a BlockMask, such as attention_blocks makes, found {found}")
    shape = tuple(block_mask.shape)
    if shape[2:] != sizes[2:] or any(one not in (1, wanted) for one, wanted in zip(shape[:2], sizes[:2], strict=True)):
        raise ShapeError(
            f"attention: the block mask is for (B, H, T, S) = {shape}, found query and key of {sizes}; make one for these sizes"
        )
    if block_mask.kv_num_blocks.device != device:
        raise ShapeError(
            f"attention: the block mask is on {block_mask.kv_num_blocks.device}, the query on {device}; use block_mask.to({str(device)!r})"
        )
