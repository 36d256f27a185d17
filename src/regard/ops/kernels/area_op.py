"""The PyTorch operator of the area attention kernels: CPU tensors use the native library, CUDA tensors Triton."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.ops.area_windows import AreaSpec
from regard.ops.kernels import area_cpu, area_features_triton, area_torch, native
from regard.ops.kernels.operator import Forms, Operator
from regard.ops.materialized_areas import AreaWeights


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spec: AreaSpec, weights: AreaWeights | None = None) -> Tensor:
    """Attend by a kernel, with mean keys or Eq. 9; for Eq. 9 the native library computes half precision in float32.

        key of an area   = W_d relu(W_mu mu + W_sigma sigma + W_e e)
        query . key      = (W_d^T query) . relu(mean of (W_mu key) over the area + W_sigma sigma + W_e e)

    Li et al. 2018 (arXiv:1810.10126). W_mu is applied to items, W_d to queries; an area costs one product, with W_sigma, instead of three.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        spec: the settings from `regard.ops.area_path`.
        weights: key weights of Eq. 9.

    Returns:
        (B, H, T, Dv).

    Example:
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> if area_cpu.unsupported(x, 3, AreaSpec(2)) is None:
        ...     context = attend(x, x, x, None, AreaSpec(2))
    """
    sides = [spec.max_area] if isinstance(spec.max_area, int) else list(spec.max_area)
    settings = (mask, sides, list(spec.grid or ()), spec.causal, spec.value_mode == "mean", spec.scale)
    if weights is None:
        return _AREAS(query, key, value, None, None, None, None, *settings)
    parts, dtype = area_torch.key_parts(weights, spec.max_area), query.dtype
    if _by_triton(query):
        return area_features_triton.attend(query, key, value, mask, spec, parts)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return _AREAS(*(x.to(wide) for x in (query, key, value, *parts)), *settings).to(dtype)


def _by_triton(query: Tensor) -> bool:
    return query.device.type == "cuda" or native.forced_path() == "triton"


def _is_of_triton(found: tuple[Tensor, ...]) -> bool:
    return found[1].dim() == 3  # one log-sum per row; the native library returns two numbers


def _spec(sides: list[int], grid: list[int], causal: bool, mean_values: bool, scale: float) -> AreaSpec:
    size, room = ((sides[0], sides[1]), (grid[0], grid[1])) if grid else (sides[0], None)
    return AreaSpec(size, room, causal, value_mode="mean" if mean_values else "sum", scale=scale)


def _triton_options(mask: Tensor | None, spec: AreaSpec) -> dict[str, Any]:
    return {"max_area": spec.max_area, "grid": spec.grid, "mask": mask, "causal": spec.causal, "scale": spec.scale}


def _forward(*inputs: Any) -> tuple[Tensor, Tensor]:
    if not _by_triton(inputs[0]):
        return area_cpu.forward(*inputs)
    from regard.ops.kernels.area_triton import area_attention_triton

    query, key, value, *_, mask = inputs[:8]
    return area_attention_triton(query, key, value, **_triton_options(mask, _spec(*inputs[8:])))


def _backward(grad: Tensor, out: Tensor | None, others: list[Tensor], *inputs: Any) -> list[Tensor]:
    if out is None:
        return area_cpu.backward(grad, others[0], *inputs)
    from regard.ops.kernels.area_triton import area_attention_triton_backward

    query, key, value, *_, mask = inputs[:8]
    return list(area_attention_triton_backward(grad, query, key, value, out, others[0], **_triton_options(mask, _spec(*inputs[8:]))))


def _plain(*inputs: Any) -> Tensor:
    query, key, value, mean, deviation, output, shape, mask, *settings = inputs
    parts = None if mean is None else area_torch.KeyParts(mean, deviation, output, shape)
    return area_torch.attend(query, key, value, mask, _spec(*settings), parts).context


def _shapes(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    if _by_triton(query):
        return area_features_triton.empty_output(query, value)
    return area_cpu.empty_output(query, value)


def _room(x: Tensor) -> Tensor:
    return area_features_triton.room(x) if _by_triton(x) else area_cpu.room(x)


_AREAS = Operator(
    "area_attention",
    "Tensor query, Tensor key, Tensor value, Tensor? mean, Tensor? deviation, Tensor? output, Tensor? shape, Tensor? mask, "
    "SymInt[] max_area, SymInt[] grid, bool causal, bool mean_values, float scale",
    Forms(_forward, _backward, _plain, _shapes, _room, keeps_result=_is_of_triton),
    results=2,
    gradients=7,
)
