"""Area attention with the learned keys of Eq. 9 by the native library: `csrc/area_features.h` makes what is left of an area's key,
`csrc/area_keyed.h` attends, head by head, so that nothing of the size of all areas leaves the cache.

    key of an area   = W_d relu(W_mu mu + W_sigma sigma + W_e e)
    query . key      = (W_d^T query) . relu(mean of (W_mu key) over the area + W_sigma sigma + W_e e)

Li et al. 2018 (arXiv:1810.10126). W_mu is applied to items, W_d to queries; an area costs one product, with W_sigma, instead of three.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.area_windows import AreaSize
from regard.ops.kernels import area_cpu, area_torch, native
from regard.ops.kernels.area_cpu import LONGEST
from regard.ops.kernels.kernel import solid
from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.kernels.structures import AreaCall, AreaFeatures
from regard.ops.materialized_areas import AreaWeights
from regard.ops.tensor_checks import Argument, Signature

STEP = 16  # FEATURE_STEP of csrc/calls.h
EPSILON = 1e-6  # added to the variance, as `regard.ops.window_moments` does
LONE = math.sqrt(EPSILON)  # the deviation of a single item


class Parts(NamedTuple):
    """The weights of Eq. 9, taken apart: W_mu, W_sigma, W_d, all (D, D), and what the size of an area adds, W_e e, (A, D)."""

    mean: Tensor
    deviation: Tensor
    output: Tensor
    shape: Tensor


_PARTS = Signature(
    "area_attention, key mode features",
    Argument("query", "B H T D"),
    *(Argument(name, "D D", dtype="query") for name in ("W_mu", "W_sigma", "W_d")),
    Argument("sizes", "A D", dtype="query"),
)


def unsupported(query: Tensor, max_area: AreaSize) -> str | None:
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
    parts = [x.to(wide) for x in (*tensors, columns[0], columns[1], weights.output, shape)]
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
    parts, tensors = Parts(mean, deviation, output, shape[: key.shape[2]]), tuple(area_cpu._rows(x) for x in (query, key, value))
    out, sums = area_cpu.empty_output(query, value)
    if 0 in (key.numel(), query.numel(), value.numel()):
        return out.zero_(), sums.zero_()
    call = _call(tensors, parts, mask)
    call.causal, call.mean_values, call.scale = causal, mean_values, scale
    call.output, call.sums = area_cpu._view(out), sums.data_ptr()
    area_cpu._run("regard_area_forward", call)
    return out, sums


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
        return [_room(x).zero_() for x in (query, key, value, mean, deviation, output, shape)]
    tensors = tuple(area_cpu._rows(x) for x in (query, key, value))
    grad, sums = solid(grad), sums.contiguous()
    grads = [_room(x) for x in (query, key, value)]
    weight_grads = [torch.empty_like(x, memory_format=torch.contiguous_format) for x in parts]
    call = _call(tensors, parts, mask)
    call.causal, call.mean_values, call.scale = causal, mean_values, scale
    call.sums, call.grad_output = sums.data_ptr(), area_cpu._view(grad)
    call.grad_query, call.grad_key, call.grad_value = (area_cpu._view(x) for x in grads)
    features = call.features.contents
    features.grad_mean, features.grad_deviation, features.grad_output, features.grad_shape = (x.data_ptr() for x in weight_grads)
    area_cpu._run("regard_area_backward", call)
    mean_grad, deviation_grad, output_grad, shape_grad = weight_grads
    deviation_grad += LONE * shape_grad[:1].t()
    padded = torch.zeros_like(shape, memory_format=torch.contiguous_format)
    padded[: shape_grad.shape[0]] = shape_grad
    return [*grads, mean_grad, deviation_grad, output_grad, padded]


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
    weights = (mean, deviation, output, shape)
    return [*(_room(x) for x in (query, key, value)), *(torch.empty_like(x, memory_format=torch.contiguous_format) for x in weights)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.mean_values, ctx.scale = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    *tensors, mask, sums = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        value_mode = "mean" if ctx.mean_values else "sum"
        request = area_torch.Request(tensors[6].shape[0], causal=ctx.causal, value_mode=value_mode, scale=ctx.scale)
        grads = differentiable_gradients(lambda *parts: _plain(parts, mask, request), tensors, ctx.needs_input_grad[: len(tensors)], grad)
    else:
        grads = _backward(grad, sums, *tensors, mask, ctx.causal, ctx.mean_values, ctx.scale)
    return *grads, None, None, None, None


def _plain(parts: tuple[Tensor, ...], mask: Tensor | None, request: area_torch.Request) -> Tensor:
    query, key, value, mean, deviation, output, shape = parts
    # W_e is applied to the embeddings of the sizes already: what is left is taken as it is.
    whole = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)
    weights = AreaWeights(shape.new_zeros(1, 0), shape, torch.cat([mean, deviation, whole], -1), output)
    return area_torch.attend(query, key, value, mask, request, weights).context


_attend.register_autograd(_differentiate, setup_context=_keep)


def _room(x: Tensor) -> Tensor:
    # For a gradient, laid out as what it belongs to: the heads of a query lie side by side, as the projection before left them.
    return torch.empty_like(area_cpu._rows(x))


def _call(tensors: tuple[Tensor, ...], parts: Parts, mask: Tensor | None) -> AreaCall:
    _PARTS.check(tensors[0], *parts)
    # The deviation of a single item is the same for all; it joins what only the size adds.
    shape = parts.shape.clone(memory_format=torch.contiguous_format)
    shape[0] += LONE * parts.deviation.sum(1)
    given = {
        "mean": parts.mean.contiguous(),
        "mean_turned": parts.mean.t().contiguous(),
        "deviation": parts.deviation.contiguous(),
        "deviation_turned": parts.deviation.t().contiguous(),
        "output": parts.output.contiguous(),
        "shape": shape,
    }
    call = area_cpu._call(tensors, mask, ((1, tensors[1].shape[2]), (1, shape.shape[0])))
    call.given = given  # a reference, so that the memory stays
    call.features = ctypes.pointer(AreaFeatures(**{name: x.data_ptr() for name, x in given.items()}, epsilon=EPSILON))
    return call
