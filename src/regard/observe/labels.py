"""Labels that follow the entries of a tensor through functions that move them, to show where each came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

RESHAPED = {"view", "reshape", "flatten", "unflatten", "view_as", "reshape_as"}
TURNED = {"mT", "mH", "T", "H", "t", "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "adjoint"}
PARTS = {"chunk", "split", "tensor_split", "unbind"}
JOINED = {"cat", "concat", "stack"}
MOVED = {
    *("unsqueeze", "squeeze", "expand", "expand_as", "__getitem__", "select", "narrow", "repeat", "tile", "repeat_interleave"),
    *("flip", "roll", "contiguous", "clone", "detach"),
    *RESHAPED,
    *TURNED,
    *PARTS,
}


def labels_behind(func: Callable[..., Any], name: str, labels: Tensor, tensor: Tensor, call: tuple[Any, Any, Any]) -> Any:
    """Return the labels of a function's result; None if unknown.

    Args:
        func: the function; it moves entries if `name` is in MOVED, otherwise it maps each entry in its position.
        name: its name.
        labels: of the tensor, in its shape.
        tensor: the argument.
        call: the result, and the positional and keyword arguments.

    Example:
        >>> x, labels = torch.randn(2, 3), torch.arange(3).expand(2, 3)
        >>> labels_behind(Tensor.t, "t", labels, x, (x.t(), (x,), {})).tolist()
        [[0, 0], [1, 1], [2, 2]]
    """
    out, args, kwargs = call
    if name in MOVED:
        if name in RESHAPED and isinstance(out, Tensor) and out.numel() == labels.numel():
            return labels.reshape(out.shape)
        own = labels.detach()
        return func(*(own if arg is tensor else arg for arg in args), **{k: own if v is tensor else v for k, v in kwargs.items()})
    if not isinstance(out, Tensor):
        return None
    if name == "pad" and kwargs.get("mode", "constant") == "constant":
        return F.pad(labels, kwargs["pad"] if "pad" in kwargs else args[1], value=-1)
    try:
        return labels.expand(out.shape)
    except RuntimeError:
        return None


def narrowed(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """Keep one entry of each axis along which a tensor of this shape was expanded.

    Example:
        >>> narrowed(torch.arange(3).expand(5, 3)).shape
        torch.Size([1, 3])
    """
    strides = (tensor if like is None else like).stride()
    for axis, stride in enumerate(strides):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def tells_keys(labels: Tensor | None, axis: int) -> bool:
    """Return whether key labels change along this axis only.

    Example:
        >>> labels = torch.arange(3).expand(2, 3)
        >>> tells_keys(labels, -1), tells_keys(labels, -2)
        (True, False)
    """
    if labels is None:
        return False
    rows = narrowed(labels.movedim(axis, -1)).reshape(-1, labels.shape[axis] if labels.stride(axis) else 1)
    if rows.shape[1] < labels.shape[axis] or not bool((rows == rows[:1]).all()):
        return False
    return rows.shape[1] == 1 or bool((rows[0].sort()[0].diff() > 0).all())


def _alike_once(values: Tensor, weights: Tensor) -> Tensor:
    """Keep one entry of each axis along which values were expanded or repeated."""
    values = narrowed(values)
    if values.dim() != weights.dim() or any(own == 1 < other for own, other in zip(values.shape, weights.shape, strict=True)):
        return values
    for axis in range(1, values.dim()):  # equal examples remain examples
        if weights.shape[axis] > 1 and same_along(values, axis):
            values = values.narrow(axis, 0, 1)
    return values


class Entries(NamedTuple):
    """Origin of the entries of weights times values, before their sum.

    Attributes:
        weights: index of each entry's weight.
        values: index of each entry's value.
    """

    weights: Tensor
    values: Tensor

    @staticmethod
    def of(weights: Tensor, values: Tensor, shape: Sequence[int]) -> Entries:
        """Number the entries of a factor of this shape."""
        own = (narrowed(weights), _alike_once(values, weights))
        return Entries(*(torch.arange(x.numel(), device=x.device).view(x.shape).expand(shape) for x in own))

    def lack(self, which: int) -> bool:
        """Return whether the weights (0) or the values (1) lack an axis along which the other factor changes."""
        own, other = self[which], self[1 - which]
        return any(own.shape[axis] > 1 and own.stride(axis) == 0 and other.stride(axis) != 0 for axis in range(own.dim()))

    def behind(self, func: Callable[..., Any], name: str, tensor: Tensor, call: tuple[Any, Any, Any]) -> list[Entries] | None:
        """Return the entries of a function's result."""
        found = [labels_behind(func, name, labels, tensor, call) for labels in self]
        if found[0] is None:
            return None
        pairs = [found] if isinstance(found[0], Tensor) else zip(*found, strict=True)
        return [Entries(*pair) for pair in pairs]

    def arranged(self, weights: Tensor, keys: Tensor | None, axes: Sequence[int]) -> tuple[Tensor, tuple[int, ...]] | None:
        """Return the weights (..., T, S) whose keys are summed over by some axes, and axes that values lack or have once.

        Axes that weights lack are features; an axis that values lack is the query axis. None: none of the axes is the key axis.
        """
        if keys is None:
            return None
        features = [same_along(self.weights, axis) and self.weights.shape[axis] > 1 for axis in range(self.weights.dim())]
        queries = [same_along(self.values, axis) and self.values.shape[axis] > 1 for axis in range(self.values.dim())]
        own = self.weights
        for axis, feature in enumerate(features):
            own = own.narrow(axis, 0, 1) if feature else own
        labels = narrowed(keys, like=weights).flatten()[own]
        found = [axis for axis in axes if not features[axis] and tells_keys(labels, axis) and (own.shape[axis] > 1 or len(axes) == 1)]
        if len(found) != 1:
            return None
        key, rest = found[0], [axis for axis in range(own.dim()) if own.shape[axis] > 1 or (axis < found[0] and not features[axis])]
        rest = [axis for axis in rest if axis != key]
        asked = [axis for axis in rest if queries[axis]] or [axis for axis in rest if axis and own.shape[axis] == 1]
        order = [axis for axis in rest if axis not in asked[-1:]] + asked[-1:] + [key]
        gone = [axis for axis in range(own.dim()) if axis not in order]
        picked = narrowed(weights).flatten()[own.permute(*gone, *order)[(0,) * len(gone)]]  # removed axes have one entry
        lacking = tuple(place - len(order) for place, axis in enumerate(order[:-1]) if place and same_along(self.values, axis))
        return (picked, lacking) if asked else (picked.unsqueeze(-2), ())


def same_along(labels: Tensor, axis: int) -> bool:
    """Return whether labels are constant along an axis.

    Example:
        >>> same_along(torch.arange(3).expand(2, 3), 0)
        True
    """
    return labels.shape[axis] == 1 or labels.stride(axis) == 0 or bool((labels == labels.narrow(axis, 0, 1)).all())
