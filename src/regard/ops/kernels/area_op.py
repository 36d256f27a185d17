"""The two operators through which PyTorch sees the kernels of area attention: `regard::area_attention` and its backward.

Registered with shapes (fake) and gradient, so that `torch.compile` and `torch.export` take them as they are. CPU tensors go to the native
library, CUDA tensors to Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.ops.area_windows import Extent, Size, area_extent
from regard.ops.kernels import area_cpu, area_torch, native


class _Settings:
    # The arguments that are not tensors, taken apart into what an operator's schema allows: grid [] and one number in max_area for a sequence.
    def __init__(self, max_area: Sequence[int], grid: Sequence[int]) -> None:
        self.grid = (int(grid[0]), int(grid[1])) if grid else None
        self.max_area: Size = (int(max_area[0]), int(max_area[1])) if grid else int(max_area[0])

    def extent(self, key: Tensor) -> Extent:
        return area_extent(key.shape[2], self.max_area, self.grid)


def _by_triton(query: Tensor) -> bool:
    return query.device.type == "cuda" or native.forced_path() == "triton"


@torch.library.custom_op("regard::area_attention", mutates_args=())
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    max_area: Sequence[int],
    grid: Sequence[int],
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return context and the rows' log-sums, in the form of the kernel that made them; see `regard.ops.area_attention`.

    Example:
        >>> from regard.ops.kernels.area_cpu import unsupported
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> if unsupported(x, ((1, 3), (1, 2))) is None:
        ...     context, lse = attend(x, x, x, None, [2], [], False, False, 1.0)
    """
    settings = _Settings(max_area, grid)
    if _by_triton(query):
        from regard.ops.kernels.area_triton import area_attention_triton

        return area_attention_triton(
            query, key, value, max_area=settings.max_area, grid=settings.grid, mask=mask, causal=causal, scale=scale
        )
    return area_cpu.forward(
        (query, key, value), mask, settings.extent(key), causal=causal, mean_values=mean_values, scale=scale
    )


@attend.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    max_area: Sequence[int],
    grid: Sequence[int],
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    if _by_triton(query):
        return value.new_empty(*query.shape[:3], value.shape[-1]), query.new_empty(query.shape[:3], dtype=torch.float32)
    return area_cpu.empty_output(query, value)


@torch.library.custom_op("regard::area_attention_backward", mutates_args=())
def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    max_area: Sequence[int],
    grid: Sequence[int],
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value; see `attend`.

    Example:
        >>> attend_backward._qualname
        'regard::area_attention_backward'
    """
    settings = _Settings(max_area, grid)
    if _by_triton(query):
        from regard.ops.kernels.area_triton import area_attention_triton_backward

        return area_attention_triton_backward(
            grad, query, key, value, out, lse, max_area=settings.max_area, grid=settings.grid, mask=mask, causal=causal, scale=scale
        )
    return area_cpu.backward(
        (query, key, value), mask, settings.extent(key), (grad, lse), causal=causal, mean_values=mean_values, scale=scale
    )


@attend_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    max_area: Sequence[int],
    grid: Sequence[int],
    causal: bool,
    mean_values: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value))  # type: ignore[return-value]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, *ctx.settings = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    query, key, value, mask, out, lse = ctx.saved_tensors
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        grads = _twice(ctx, grad, query, key, value, mask)
    else:
        grads = attend_backward(grad, query, key, value, mask, out, lse, *ctx.settings)
    return *grads, None, None, None, None, None, None


def _twice(ctx: Any, grad: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    # A gradient of the gradient is asked for: by plain operations, which autograd can follow once more.
    max_area, grid, causal, mean_values, scale = ctx.settings
    settings = _Settings(max_area, grid)
    parts = [x if x.requires_grad else x.detach().requires_grad_() for x in (query, key, value)]
    value_mode = "mean" if mean_values else "sum"
    request = area_torch.Request(settings.max_area, settings.grid, causal=causal, value_mode=value_mode, scale=scale)
    return torch.autograd.grad(area_torch.attend(*parts, mask, request).context, parts, grad, create_graph=True)


attend.register_autograd(_differentiate, setup_context=_keep)
