"""Area attention with the learned keys of Eq. 9 by the native library: `csrc/feature_body.h` makes what is left of an area's key,
`csrc/area_body.h` attends.

    key of an area   = W_d relu(W_mu mu + W_sigma sigma + W_e e)
    query . key      = (W_d^T query) . relu(mean of (W_mu key) over the area + W_sigma sigma + W_e e)

Li et al. 2018 (arXiv:1810.10126). W_mu is applied to items, W_d to queries; an area costs one product, with W_sigma, instead of three.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError
from regard.ops.area import AreaWeights
from regard.ops.area_windows import Size
from regard.ops.kernels import area_cpu, area_torch, native
from regard.ops.kernels.area_cpu import LONGEST
from regard.ops.matmul import _product
from regard.ops.shield import finite_rows

STEP = 16  # FEATURE_STEP of csrc/feature.h
EPSILON = 1e-6  # added to the variance, as `regard.ops.window_moments` does


class _FeatureCall(ctypes.Structure):
    # Mirrors FeatureCall of csrc/feature.h.
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("key", "projected", "matrix", "shape", "hidden")),
        *((name, ctypes.c_void_p) for name in ("grad_hidden", "grad_key", "grad_projected", "grad_matrix", "grad_shape")),
        *((name, ctypes.c_int64) for name in ("heads", "items", "size", "area")),
        ("epsilon", ctypes.c_double),
        *((name, ctypes.c_int32) for name in ("is_double", "threads")),
    ]


class Parts(NamedTuple):
    """The weights of Eq. 9, taken apart: W_mu, W_sigma, W_d, all (D, D), and what the size of an area adds, W_e e, (A, D)."""

    mean: Tensor
    deviation: Tensor
    output: Tensor
    shape: Tensor


def unsupported(query: Tensor, max_area: Size) -> str | None:
    """Say in words why the native library cannot compute Eq. 9 here; None where it can.

    Args:
        query: of the call, (B, H, T, D).
        max_area: of the call.

    Example:
        >>> unsupported(torch.ones(1, 1, 1, 5), 3)
        'the native kernel of key mode features takes head sizes that are multiples of 16, not 5'
    """
    if not isinstance(max_area, int) or max_area > LONGEST:
        return f"the native kernel of key mode features takes sequences with areas of up to {LONGEST} items, not {max_area}"
    if query.device.type != "cpu":
        return f"the native kernel runs on CPUs, the tensors are on {query.device.type}"
    if query.shape[-1] % STEP:
        return f"the native kernel of key mode features takes head sizes that are multiples of {STEP}, not {query.shape[-1]}"
    return None if native.library() is not None else native.status().reason


def attend(
    tensors: tuple[Tensor, Tensor, Tensor],
    weights: AreaWeights,
    mask: Tensor | None,
    *,
    max_area: int,
    causal: bool,
    mean_values: bool,
    scale: float,
) -> Tensor:
    """Attend to areas with keys by Eq. 9; half precision is computed in float32. Only for what `unsupported` lets pass.

    Args:
        tensors: query (B, H, T, D), key (B, H, S, D), value (B, H, S, Dv).
        weights: see `regard.ops.AreaWeights`.
        mask: bool, broadcastable to (B, H, T, S), or None.
        max_area: A.
        causal: also hide what stands after the query.
        mean_values: the value of an area is the mean, not the sum, of those of its items.
        scale: what products of query and key are multiplied with.

    Returns:
        (B, H, T, Dv).

    Example:
        >>> x, table = torch.ones(1, 1, 3, 16), torch.ones(2, 8)
        >>> weights = AreaWeights(table, table, torch.ones(16, 48), torch.ones(16, 16))
        >>> if unsupported(x, 2) is None:
        ...     context = attend((x, x, x), weights, None, max_area=2, causal=False, mean_values=False, scale=1.0)
    """
    dtype = tensors[0].dtype
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    columns = weights.hidden.split(weights.output.shape[0], dim=-1)
    sizes = area_torch.size_features(weights, max_area)
    # The output's bias adds the same to the scores of all areas: no weight depends on it.
    shape = torch.nn.functional.linear(sizes, columns[2], weights.hidden_bias)
    # Columns of a matrix would keep its row stride, with which oneDNN multiplies a hundred times slower.
    parts = [x.to(wide) for x in (*tensors, columns[0].contiguous(), columns[1].contiguous(), weights.output, shape)]
    return _attend(*parts, mask, causal, mean_values, scale)[0].to(dtype)


@torch.library.custom_op("regard::area_feature_attention", mutates_args=(), device_types="cpu")
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mean: Tensor,
    deviation: Tensor,
    output: Tensor,
    shape: Tensor,
    mask: Tensor | None,
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    parts = Parts(mean, deviation, output, shape[: key.shape[2]])
    if 0 in (key.numel(), query.numel(), value.numel()):
        out, sums = area_cpu.empty_output(query, value)
        return out.zero_(), sums.zero_()
    clean = _clean(key, mask)
    hidden = _hidden(clean, parts)
    extent = (1, key.shape[2]), (1, parts.shape.shape[0])
    moved = _moved(query, output, scale)
    return area_cpu.forward((moved, hidden, value, key), mask, extent, causal=causal, mean_values=mean_values, scale=1.0)


@_attend.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mean: Tensor,
    deviation: Tensor,
    output: Tensor,
    shape: Tensor,
    mask: Tensor | None,
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    return area_cpu.empty_output(query, value)


@torch.library.custom_op("regard::area_feature_attention_backward", mutates_args=(), device_types="cpu")
def _backward(
    grad: Tensor,
    sums: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mean: Tensor,
    deviation: Tensor,
    output: Tensor,
    shape: Tensor,
    mask: Tensor | None,
    causal: bool,
    mean_values: bool,
    scale: float,
) -> list[Tensor]:
    parts = Parts(mean, deviation, output, shape[: key.shape[2]])
    if 0 in (key.numel(), query.numel(), value.numel()):
        return [torch.zeros_like(x) for x in (query, key, value, mean, deviation, output, shape)]
    clean = _clean(key, mask)
    hidden = _hidden(clean, parts)  # once more, so that nothing of the size of all areas is kept between the passes
    moved = _moved(query, output, scale)
    extent = (1, key.shape[2]), (1, parts.shape.shape[0])
    options: dict[str, Any] = {"causal": causal, "mean_values": mean_values, "scale": 1.0}
    moved_grad, hidden_grad, value_grad = area_cpu.backward((moved, hidden, value, key), mask, extent, (grad, sums), **options)
    key_grad, projected_grad, deviation_grad, shape_grad = _hidden_backward(clean, parts, hidden, hidden_grad)
    flat = projected_grad.flatten(0, -2)
    key_grad += _product(flat, mean.t()).view_as(key)
    mean_grad = _product(flat.t(), clean.flatten(0, -2).t())
    flat, rows = moved_grad.flatten(0, -2) * scale, query.reshape(-1, query.shape[-1])
    # A query without anything to attend to has no gradient, whatever it holds.
    output_grad = _product(rows.masked_fill((flat == 0).all(-1, keepdim=True), 0.0).t(), flat.t())
    query_grad = _product(flat, output).view_as(moved_grad)
    padded = torch.zeros_like(shape, memory_format=torch.contiguous_format)
    padded[: shape_grad.shape[0]] = shape_grad
    return [query_grad, key_grad, value_grad, mean_grad, deviation_grad, output_grad, padded]


@_backward.register_fake
def _(
    grad: Tensor,
    sums: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mean: Tensor,
    deviation: Tensor,
    output: Tensor,
    shape: Tensor,
    mask: Tensor | None,
    causal: bool,
    mean_values: bool,
    scale: float,
) -> list[Tensor]:
    everything = (query, key, value, mean, deviation, output, shape)
    return [torch.empty_like(x, memory_format=torch.contiguous_format) for x in everything]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.mean_values, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, mask, sums = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise ConfigError("area_attention: the kernel of key mode features has no second derivative; REGARD_KERNELS=torch has")
    grads = _backward(grad, sums, *tensors, mask, ctx.causal, ctx.mean_values, ctx.scale)
    return *grads, None, None, None, None


_attend.register_autograd(_differentiate, setup_context=_keep)


def _clean(key: Tensor, mask: Tensor | None) -> Tensor:
    # As `regard.ops.shield` does; who may attend a row that is not finite is found out by the kernel.
    gone = ~finite_rows(key)
    if mask is not None:
        gone = gone | ~torch.atleast_2d(mask).any(-2)
    return key.masked_fill(gone.unsqueeze(-1), 0.0).contiguous()


def _moved(query: Tensor, output: Tensor, scale: float) -> Tensor:
    return _product(query.reshape(-1, query.shape[-1]) * scale, output.t()).view(query.shape)


def _hidden(clean: Tensor, parts: Parts) -> Tensor:
    batch, heads, items, size = clean.shape
    area = parts.shape.shape[0]
    projected = _product(clean.flatten(0, -2), parts.mean)
    hidden = clean.new_empty(batch, heads, area * items - area * (area - 1) // 2, size)
    kept = clean, projected, parts.deviation.t().contiguous(), parts.shape.contiguous(), hidden
    _run("regard_feature_forward", clean, area, dict(zip(("key", "projected", "matrix", "shape", "hidden"), kept, strict=True)))
    return hidden


def _hidden_backward(clean: Tensor, parts: Parts, hidden: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, _, size = clean.shape
    area = parts.shape.shape[0]
    matrices, shapes = clean.new_empty(batch * heads, size, size), clean.new_empty(batch * heads, area, size)
    results = {
        "grad_key": torch.empty_like(clean),
        "grad_projected": torch.empty_like(clean),
        "grad_matrix": matrices,
        "grad_shape": shapes,
    }
    given = {"key": clean, "matrix": parts.deviation.contiguous(), "hidden": hidden, "grad_hidden": grad.contiguous()}
    _run("regard_feature_backward", clean, area, given | results)
    # Summed here, in a fixed order, so that the result does not depend on which thread took which head.
    return results["grad_key"], results["grad_projected"], matrices.sum(0), shapes.sum(0)


def _run(name: str, clean: Tensor, area: int, tensors: dict[str, Tensor]) -> None:
    library = native.library()
    if library is None:
        raise ConfigError(f"area_attention: {native.status().reason}")
    batch, heads, items, size = clean.shape
    call = _FeatureCall(**{field: tensor.data_ptr() for field, tensor in tensors.items()})
    call.heads, call.items, call.size, call.area = batch * heads, items, size, area
    call.epsilon, call.is_double, call.threads = EPSILON, clean.dtype == torch.float64, torch.get_num_threads()
    if getattr(library, name)(ctypes.byref(call)):
        raise MemoryError("area_attention: no memory for the threads of the native kernel")
