"""The two operators through which PyTorch sees the kernels of area attention: `regard::area_attention` and its backward.

Registered with shapes (fake) and gradient, so that `torch.compile` and `torch.export` take them as they are. CPU tensors go to the native
library, CUDA tensors to Triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.ops.area_windows import AreaSize, area_extent
from regard.ops.kernels import area_cpu, area_torch, native
from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.tensor_checks import is_plain


class Settings(NamedTuple):
    """The arguments that are not tensors, as an operator's schema allows them: for a sequence, one number in max_area and grid []."""

    max_area: Sequence[int]
    grid: Sequence[int]
    causal: bool
    mean_values: bool
    scale: float

    @property
    def size(self) -> AreaSize:
        """The largest area, as `regard.ops.area_attention` takes it."""
        return (int(self.max_area[0]), int(self.max_area[1])) if self.grid else int(self.max_area[0])

    @property
    def shape(self) -> tuple[int, int] | None:
        """The grid, as `regard.ops.area_attention` takes it."""
        return (int(self.grid[0]), int(self.grid[1])) if self.grid else None


def _by_triton(query: Tensor) -> bool:
    return query.device.type == "cuda" or native.forced_path() == "triton"


def _forward(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Settings) -> tuple[Tensor, Tensor]:
    _, _, causal, mean_values, scale = settings
    if _by_triton(query):
        from regard.ops.kernels.area_triton import area_attention_triton

        options: dict[str, Any] = {"max_area": settings.size, "grid": settings.shape, "mask": mask, "causal": causal, "scale": scale}
        return area_attention_triton(query, key, value, **options)
    extent = area_extent(key.shape[2], settings.size, settings.shape)
    return area_cpu.forward((query, key, value), mask, extent, causal=causal, mean_values=mean_values, scale=scale)


def _backward(grad: Tensor, saved: Sequence[Any], settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, mask, out, lse = saved
    _, _, causal, mean_values, scale = settings
    if _by_triton(query):
        from regard.ops.kernels.area_triton import area_attention_triton_backward

        options: dict[str, Any] = {"max_area": settings.size, "grid": settings.shape, "mask": mask, "causal": causal, "scale": scale}
        return area_attention_triton_backward(grad, query, key, value, out, lse, **options)
    extent = area_extent(key.shape[2], settings.size, settings.shape)
    return area_cpu.backward((query, key, value), mask, extent, (grad, lse), causal=causal, mean_values=mean_values, scale=scale)


class _Direct(torch.autograd.Function):
    # What the operator does, without its way through the dispatcher, which takes longer than a small attention.
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
        out, lse = _forward(query, key, value, mask, settings)
        ctx.save_for_backward(query, key, value, mask, out if _by_triton(query) else None, lse)
        ctx.settings = settings
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return *_twice(grad, ctx.saved_tensors, ctx.settings, ctx.needs_input_grad), None, None
        return *_backward(grad, ctx.saved_tensors, ctx.settings), None, None


def area_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, settings: Settings) -> Tensor:
    """Attend by a kernel: through the operator when a program is traced, directly otherwise.

    Args:
        query: (B, H, T, D).
        key: (B, H, S, D).
        value: (B, H, S, Dv).
        mask: bool, broadcastable to (B, H, T, S), or None.
        settings: the rest.

    Returns:
        (B, H, T, Dv).

    Example:
        >>> from regard.ops.kernels.area_cpu import unsupported
        >>> x = torch.zeros(1, 1, 3, 2)
        >>> if unsupported(x, ((1, 3), (1, 2))) is None:
        ...     context = area_attention(x, x, x, None, Settings([2], [], False, False, 1.0))
    """
    if is_plain(query, key, value, mask):
        return _Direct.apply(query, key, value, mask, settings)
    return attend(query, key, value, mask, *settings)[0]


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
    return _forward(query, key, value, mask, Settings(max_area, grid, causal, mean_values, scale))


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
    return _backward(grad, (query, key, value, mask, out, lse), Settings(max_area, grid, causal, mean_values, scale))


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
    query, key, value, mask, *settings = inputs
    ctx.settings = Settings(*settings)
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        grads = _twice(grad, ctx.saved_tensors, ctx.settings, ctx.needs_input_grad)
    else:
        query, key, value, mask, out, lse = ctx.saved_tensors
        grads = attend_backward(grad, query, key, value, mask, out, lse, *ctx.settings)
    return *grads, *(None for _ in range(1 + len(ctx.settings)))


def _twice(grad: Tensor, saved: Sequence[Any], settings: Settings, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    value_mode = "mean" if settings.mean_values else "sum"
    request = area_torch.Request(settings.size, settings.shape, causal=settings.causal, value_mode=value_mode, scale=settings.scale)

    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return area_torch.attend(query, key, value, saved[3], request).context

    return differentiable_gradients(plain, saved[:3], needed[:3], grad)


attend.register_autograd(_differentiate, setup_context=_keep)
