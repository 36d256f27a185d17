"""Area attention: one function that dispatches to four implementations.

- `cpu`: the native library. Scores, window pass and products in one pass along the keys, so that areas cost about as much as standard
  attention (`docs/performance.md`). Mean keys, sum or mean values, no weights returned.
- `triton`: CUDA; with mean keys sum values only. Area features (Eq. 9) are one attention for each size of areas, whose keys and values
  are in memory.
- `torch`: PyTorch only, on area scores instead of area keys; everything with mean keys, on any device.
- `reference`: materializes keys and values of all areas; supports every option.

The choice depends on the arguments alone, never on a timing. `REGARD_KERNELS=reference|torch|cpu|triton` forces one.
"""

from __future__ import annotations

import math
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops import reference, tensor_checks
from regard.ops.area_windows import AreaSpec, check_areas
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import area_cpu, area_op, area_torch, native
from regard.ops.masks import check_mask
from regard.ops.materialized_areas import KEY_MODES, LEARNED_KEY_MODES, VALUE_MODES, AreaWeights, check_area_weights, check_mode
from regard.ops.number_checks import LARGEST_SCALE, check_count, check_factor, check_share, check_temperature
from regard.ops.sparsemax import Normalizer
from regard.ops.tensor_checks import autocast_together, refuse_others, with_learned_scale


@takes_tensors
def area_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    max_area: int | tuple[int, int],
    grid: tuple[int, int] | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    key_mode: str = "mean",
    value_mode: str = "sum",
    need_weights: bool | Literal["areas"] = False,
    top_k: int | None = None,
    temperature: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    dropout: float = 0.0,
    normalizer: Normalizer = "softmax",
    key_weights: AreaWeights | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attend to every run of up to A items, or to every rectangle of a grid, with the fastest implementation.

        context = sum over areas r of softmax(query . k_r / sqrt(D))_r v_r,   k_r the mean of the keys, v_r the sum of the values in r

    Li et al. 2018 (arXiv:1810.10126), section 3, Eq. 1 to 4. An area may be attended iff every item in it may. With areas of one item this
    is standard attention.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        max_area: A, maximum area length, or with a grid the maximum (height, width); clipped to the memory.
        grid: (rows, columns) of a memory in raster order, rows * columns = S; None for a sequence.
        mask: bool, (S,) or (B, H, T, S), any axis 1 for all; True = may attend. Fewer axes are refused: (B, S) and (T, S) look alike.
        causal: also hide later positions, aligned bottom-right: key s iff s <= t + S - T.
        key_mode: see `regard.ops.area_keys`. "features", Eq. 9, costs one product an area, with W_sigma, instead of three: W_mu is applied
            to items, W_d to queries.
        value_mode: see `regard.ops.area_values`.
        need_weights: True: also return item weights; "areas": area weights, in the order of `regard.ops.area_spans`.
        top_k: attend to the k best areas of each query only; None: to all.
        temperature: divides the scores; a one-element tensor may be learned.
        scale: multiplies the dot products; None: 1 / sqrt(D). A tensor that broadcasts to (B, H, T, 1) may be learned.
        dropout: probability of dropping an area, applied whenever > 0.
        normalizer: how scores of areas become weights: "softmax", "sparsemax" or "entmax15"; see `regard.ops.normalize`.
        key_weights: the weights of the learned key modes, such as `regard.attention.Areas` holds.

    Returns:
        Context (B, H, T, Dv); with weights the pair of context and (B, H, T, S) or (B, H, T, N) weights before dropout. A query with
        nothing to attend to, or an empty memory, gives zeros. Masked items have no influence; a query that may attend a non-finite item
        gives NaN.

    Raises:
        ShapeError: incompatible shapes.
        ConfigError: an unknown mode, invalid area sizes, or `REGARD_KERNELS` forces an implementation that cannot compute this call.

    Example:
        >>> import torch
        >>> memory = torch.tensor([[[[1.0], [2.0], [4.0]]]])
        >>> area_attention(torch.zeros(1, 1, 1, 1), memory, memory, max_area=2).item()  # areas 1, 2, 4, 1 + 2, 2 + 4
        3.200000047683716
    """
    query, key, value = autocast_together(query, key, value)
    _check_shapes(query, key, value, mask)
    check_mode("key_mode", key_mode, KEY_MODES)
    check_mode("value_mode", value_mode, VALUE_MODES)
    max_area, grid = check_areas(max_area, grid)
    _check_weights(key, key_mode, key_weights)
    check_share("area_attention", "dropout", dropout)
    check_temperature("area_attention", temperature)
    check_factor("area_attention", "scale", 1.0 if scale is None else scale)
    if top_k is not None:
        check_count("area_attention", "top_k", top_k, 1)
    if need_weights not in (True, False, "areas"):
        raise ConfigError(f"area_attention: need_weights may be True, False or 'areas', found {need_weights!r}")
    if not query.shape[-1]:  # D = 0: all scores are 0
        query, key, key_mode = F.pad(query, (0, 1)), F.pad(key, (0, 1)), "mean"
    scale = (1 / math.sqrt(query.shape[-1] or 1) if scale is None else scale) / temperature
    most = torch.finfo(torch.float16).max
    if query.dtype == torch.float16 and not isinstance(scale, Tensor) and most < abs(scale) <= LARGEST_SCALE:
        raise ConfigError(f"area_attention: scale / temperature must be at most {most:g} in torch.float16, found {scale:g}")
    query, scale = with_learned_scale("area_attention", query, scale)
    spec = AreaSpec(max_area, grid, causal, key_mode, value_mode, top_k, scale, dropout, normalizer)
    weights = key_weights if key_mode == "features" else None
    plain = not (need_weights or dropout) and top_k is None and normalizer == "softmax"
    path, _ = _choose((query, key, value, mask), spec, plain=plain)
    if path in ("cpu", "triton"):
        return area_op.attend(query, key, value, mask, spec, weights)
    if path == "torch":
        parts = None if weights is None else area_torch.key_parts(weights, max_area)
        if not need_weights:
            return area_torch.attend_in_chunks(query, key, value, mask, spec, parts)
        result = area_torch.attend(query, key, value, mask, spec, parts)
    else:
        result = reference.area_attention(query, key, value, mask=mask, key_weights=key_weights, **spec._asdict())
    if need_weights:
        return result.context, result.area_weights if need_weights == "areas" else result.item_weights
    return result.context


@takes_tensors
def area_path(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    max_area: int | tuple[int, int],
    grid: tuple[int, int] | None = None,
    modes: tuple[str, str] = ("mean", "sum"),
    plain: bool = True,
) -> tuple[str, str]:
    """Return the implementation that `area_attention` chooses for a call, and the reason.

    Args:
        query: (B, H, T, D); only device, dtype and sizes count.
        key: (B, H, S, D), likewise.
        value: (B, H, S, Dv), likewise.
        max_area: as in the call, like the rest.
        grid: None for a sequence.
        modes: `key_mode` and `value_mode` of the call.
        plain: the call uses a softmax, no weights, no `top_k` and no dropout.

    Returns:
        "cpu", "triton", "torch" or "reference", and the reason as text.

    Raises:
        ConfigError: `REGARD_KERNELS` is unknown or forces an implementation that cannot compute this call.

    Example:
        >>> import torch
        >>> x = torch.zeros(1, 1, 5, 2)
        >>> area_path(x, x, x, max_area=3, modes=("max", "sum"))[0]
        'reference'
    """
    spec = AreaSpec(max_area, grid, key_mode=modes[0], value_mode=modes[1])
    path, reason = _choose((query, key, value), spec, plain=plain)
    return path, reason or native.status().reason


@takes_tensors
def native_takes_items(query: Tensor, key: Tensor) -> bool:
    """Return whether the native library computes standard attention (areas of one item) for these tensors.

    False while a graph is traced: the traced graph must run elsewhere, too.

    Args:
        query: (B, H, T, D); only device, dtype and sizes count.
        key: (B, H, S, D), likewise.

    Example:
        >>> import torch
        >>> native_takes_items(torch.zeros(1, 1, 2, 4).half(), torch.zeros(1, 1, 3, 4).half())
        False
    """
    if not tensor_checks.is_plain(query, key) or native.forced_path() not in (None, "cpu"):
        return False
    return area_cpu.unsupported(query, key.shape[-2], AreaSpec(1)) is None


def _choose(tensors: tuple[Tensor | None, ...], spec: AreaSpec, *, plain: bool) -> tuple[str, str]:
    # The only dispatch: the first that supports the call, of the device's kernel, PyTorch and the reference.
    forced, query, key = native.forced_path(), cast(Tensor, tensors[0]), cast(Tensor, tensors[1])
    if forced == "reference":
        return forced, "forced by REGARD_KERNELS"
    made = spec.key_mode not in ("mean", "features") or spec.value_mode == "max"
    lacking = f"key mode {spec.key_mode!r} with value mode {spec.value_mode!r}: only the reference supports these areas" if made else ""
    reasons = {"torch": lacking}
    if not lacking and not plain:
        lacking = "kernels compute a softmax only, return no weights and support no top_k or dropout"
    if not lacking and not (tensor_checks.is_plain(*tensors) or tensor_checks.is_tracing(*tensors)):
        lacking = "kernels take plain tensors, none that torch.vmap wraps, no subclasses and no negative views"
    fused = forced if forced in ("cpu", "triton") else "triton" if query.is_cuda else "cpu"
    if not lacking and forced != "torch":
        lacking = area_cpu.unsupported(query, key.shape[-2], spec) if fused == "cpu" else _triton_lacks(tensors, spec)
    reasons[fused] = lacking or ""
    if forced:
        if reasons[forced]:
            raise ConfigError(f"REGARD_KERNELS={forced}: {reasons[forced]}")
        return forced, "forced by REGARD_KERNELS"
    if not reasons[fused]:
        return fused, "" if fused == "cpu" else "Triton kernels for CUDA"
    return ("reference", reasons["torch"]) if reasons["torch"] else ("torch", reasons[fused])


def _triton_lacks(tensors: tuple[Tensor | None, ...], spec: AreaSpec) -> str:
    query, key, value = cast(tuple[Tensor, Tensor, Tensor], tensors[:3])
    features = spec.key_mode == "features"
    if not features and spec.value_mode != "sum":
        return f"the Triton kernels take sum values with mean keys, not {spec.value_mode!r}"
    try:
        from regard.ops.kernels import area_triton
    except ImportError as error:
        return f"the Triton kernels cannot be imported: {error}"
    largest, room = (1, None) if features else (spec.max_area, spec.grid)  # with features every area is an item of its size
    return area_triton.supports(query, key, value, max_area=largest, grid=room)[1]


def _check_weights(key: Tensor, key_mode: str, weights: AreaWeights | None) -> None:
    if weights is not None and key_mode not in LEARNED_KEY_MODES:
        raise ConfigError(f"key_weights: only the learned key modes have weights, found some for {key_mode!r}")
    if weights is not None and not isinstance(weights, AreaWeights):
        raise ConfigError(f"key_weights: expected AreaWeights, found {type(weights).__name__}")
    if key_mode != "features":
        return
    if weights is None:
        raise ConfigError("key_mode: 'features' has learned weights (AreaWeights); regard.attention.Areas holds them")
    check_area_weights(weights, key, "features")


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    wrong = ""
    refuse_others("area_attention", query=query, key=key, value=value, mask=mask)
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4:
        wrong = "query, key and value must be (B, H, length, D)"
    elif query.shape[:2] != key.shape[:2] or key.shape[:2] != value.shape[:2]:
        wrong = "the axes B and H differ"
    elif query.shape[-1] != key.shape[-1]:
        wrong = "the feature axis D of query and key differs"
    elif key.shape[-2] != value.shape[-2]:
        wrong = "the length S of key and value differs"
    elif not (query.dtype == key.dtype == value.dtype and query.is_floating_point()):
        wrong = f"expected one floating dtype, found {query.dtype}, {key.dtype} and {value.dtype}"
    elif not (query.device == key.device == value.device == (query if mask is None else mask).device):
        wrong = f"the tensors are on different devices: {', '.join(str(x.device) for x in (query, key, value, mask) if x is not None)}"
    if wrong:
        found = f"query {tuple(query.shape)}, key {tuple(key.shape)}, value {tuple(value.shape)}"
        raise ShapeError(f"area_attention: {wrong}: {found}")
    if mask is not None:
        check_mask(mask, (*query.shape[:-1], key.shape[-2]), "area_attention")
