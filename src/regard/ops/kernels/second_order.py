"""Backward passes under `create_graph=True`: differentiable gradients of a native operation, or a refusal."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import ConfigError


def differentiable_gradients(
    function: Callable[..., Tensor], tensors: Sequence[Tensor | None], needed: Sequence[bool], grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Differentiate the PyTorch form of an operation with respect to each argument.

    These are partial derivatives. Every argument is first made a separate view: if a tensor is passed twice, is a view of another or was
    computed from another, `torch.autograd.grad` would follow all paths, and the engine, which follows them too, would count them twice. The
    views belong to the graph, so that second derivatives reach the caller's tensors.

    Args:
        function: the operation in operations of PyTorch.
        tensors: its arguments, as passed by the caller; None for missing ones.
        needed: which gradients are needed, `ctx.needs_input_grad`.
        grad: the gradient of the result.

    Returns:
        A gradient per argument, None if not needed.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> [part.item() for part in differentiable_gradients(torch.mul, (x, x), (True, True), torch.tensor(1.0))]
        [3.0, 3.0]
    """
    # In the tensors' own dtypes: autocast was applied in the forward pass.
    with torch.enable_grad(), torch.autocast(grad.device.type, enabled=False):
        own = [None if x is None else x.view_as(x) if wanted else x.detach() for x, wanted in zip(tensors, needed, strict=True)]
        asked = [x for x, wanted in zip(own, needed, strict=True) if x is not None and wanted]
        found = iter(torch.autograd.grad(function(*own), asked, grad, create_graph=True, materialize_grads=True))
    return tuple(next(found) if wanted else None for wanted in needed)


def once_differentiable(backward: Callable[..., tuple[Tensor | None, ...]]) -> Callable[..., tuple[Tensor | None, ...]]:
    """Refuse to run a backward pass under `create_graph=True`.

    PyTorch's decorator of this name leaves out second derivatives without a word where the incoming gradient is a constant, as that of a
    sum, or where the arguments are used elsewhere, too.

    Raises:
        ConfigError: in the backward pass, when a graph of it is to be made.

    Example:
        >>> class Double(torch.autograd.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         return x * 2
        ...
        ...     @staticmethod
        ...     @once_differentiable
        ...     def backward(ctx, grad):
        ...         return (grad * 2,)
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> torch.autograd.grad(Double.apply(x), x)
        (tensor(2.),)
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise ConfigError(
                f"create_graph: {backward.__qualname__.split('.')[0].strip('_')} is differentiable once; "
                "float64 tensors or REGARD_KERNELS=torch have second derivatives"
            )
        return backward(ctx, *grads)

    return wrapper
