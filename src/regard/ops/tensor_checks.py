"""Argument checks of operations: shapes, dtypes, devices and ranges, before dispatch.

A wrong call gets the same message for PyTorch, the native library and Triton, and no kernel reads out of bounds.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, NoReturn, ParamSpec, TypeVar

import torch
from torch import Tensor

# torch has no public names for these.
from torch._C import _dispatch_keys, _is_tracing, _len_torch_dispatch_stack  # pyright: ignore[reportPrivateUsage]
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

from regard.errors import RangeError, ShapeError
from regard.ops.number_checks import check_scale

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "bool": torch.bool,
    "uint8": torch.uint8,
}
_TYPES = (Tensor, torch.nn.Parameter)
# Per device type the dispatch keys of ordinary tensors: with a gradient, and made in inference mode.
_ORDINARY: dict[str, tuple[int, int]] = {}


_MAX_SEEN = 1024

P = ParamSpec("P")
R = TypeVar("R")


class Argument(NamedTuple):
    """A tensor argument of an operation.

    Attributes:
        name: its name in the signature.
        axes: a name or number per axis, equal names having equal sizes; `...` for leading axes shared by all arguments with it, `...rows`
            where their product is named `rows`, `*` for any leading axes.
        dtype: "float" for any floating dtype, one of `DTYPES`, or the name of an argument of the same dtype.
        optional: whether None is allowed.
        below: for integers: the size that each is below, 0 to that size - 1.
        most: for integers: the size that each is at most, 0 to that size.
    """

    name: str
    axes: str
    dtype: str = "float"
    optional: bool = False
    below: str = ""
    most: str = ""


class Signature:
    """The tensor arguments of an operation.

    Args:
        operation: name that begins messages.
        arguments: in order.

    Example:
        >>> pair = Signature("dot", Argument("query", "* D"), Argument("key", "* D"))
        >>> pair.check(torch.ones(2, 3), torch.ones(3))
        {'D': 3}
    """

    def __init__(self, operation: str, *arguments: Argument) -> None:
        self.operation, self.arguments = operation, arguments
        places = {argument.name: number for number, argument in enumerate(arguments)}
        # Axes that are numbers; per argument: leading axes, other axes, its dtype or the position of the argument with the same dtype.
        self._constants = {axis: int(axis) for argument in arguments for axis in argument.axes.split() if axis.isdigit()}
        self._seen: dict[tuple[object, ...], dict[str, int]] = {}
        self._wanted = []
        for name, axes, dtype, optional, *_ in arguments:
            first, *rest = axes.split() or [""]
            leading = first if first.startswith(("...", "*")) else ""
            named = [first, *rest] if first and not leading else rest
            self._wanted.append((name, leading, tuple(named), DTYPES.get(dtype), places.get(dtype, -1), optional))

    def check(self, *tensors: Tensor | None) -> dict[str, int]:
        """Check the tensors.

        Returns:
            The size of every named axis.

        Raises:
            ShapeError: an argument is missing, no tensor, or has other axes, another dtype or device.
        """
        if torch.compiler.is_compiling():
            return self._check(tensors)
        # Most calls repeat an earlier one and are only looked up.
        try:
            seen = tuple([None if x is None else (x.shape, x.dtype, x.device) for x in tensors])
        except AttributeError:
            refuse_others(self.operation, **dict(zip((argument.name for argument in self.arguments), tensors, strict=True)))
            raise
        try:
            sizes = self._seen.get(seen)
        except TypeError:  # symbolic sizes
            return self._check(tensors)
        if sizes is None:
            # Arrays have the same attributes.
            refuse_others(self.operation, **dict(zip((argument.name for argument in self.arguments), tensors, strict=True)))
            sizes = self._check(tensors)
            if len(self._seen) >= _MAX_SEEN:
                self._seen.clear()
            self._seen[seen] = sizes
        return sizes

    def _check(self, tensors: tuple[Tensor | None, ...]) -> dict[str, int]:
        sizes = dict(self._constants)
        first = leading = None
        for (_, free, axes, dtype, like, optional), tensor in zip(self._wanted, tensors, strict=True):
            if tensor is None:
                if not optional:
                    self._refuse(tensors)
                continue
            shape, count = tensor.shape, len(axes)
            more = len(shape) - count
            if more if not free else more < 0:
                self._refuse(tensors)
            if free.startswith("..."):
                leading = shape[:more] if leading is None else leading
                if leading != shape[:more]:
                    self._refuse(tensors)
                if free != "...":
                    sizes[free[3:]] = leading.numel()
            for axis, size in zip(axes, shape[more:] if more else shape, strict=True):
                if sizes.setdefault(axis, size) != size:
                    self._refuse(tensors)
            other = tensors[like] if like >= 0 else None
            wanted = dtype if other is None else other.dtype
            if not (tensor.dtype == wanted if wanted is not None else tensor.is_floating_point()):
                self._refuse(tensors)
            first = tensor if first is None else first
            if tensor.device != first.device:
                self._refuse(tensors)
        return sizes

    def _refuse(self, tensors: tuple[Tensor | None, ...]) -> NoReturn:
        given = list(zip(self.arguments, tensors, strict=True))
        missing = [argument.name for argument, tensor in given if tensor is None and not argument.optional]
        if missing:
            raise ShapeError(f"{self.operation}: {missing[0]} is missing; {self.expected()}")
        wrong = _wrong_dtype(self.arguments, tensors)
        if wrong:
            raise ShapeError(f"{self.operation}: {wrong}")
        devices = {str(tensor.device): argument.name for argument, tensor in given if tensor is not None}
        if len(devices) > 1:
            places = " and ".join(f"{name} on {device}" for device, name in devices.items())
            raise ShapeError(f"{self.operation}: found {places}; move all tensors to one device")
        found = ", ".join(f"{argument.name} {tuple(tensor.shape)}" for argument, tensor in given if tensor is not None)
        raise ShapeError(f"{self.operation}: {self.expected()}; found {found}")

    def expected(self) -> str:
        """Describe the expected shapes.

        Example:
            >>> Signature("scale", Argument("x", "... E"), Argument("bias", "E", optional=True)).expected()
            'expected x (..., E), bias (E,) or None'
        """
        return "expected " + ", ".join(f"{a.name} {_axes(a.axes)}{' or None' if a.optional else ''}" for a in self.arguments)


def _axes(axes: str) -> str:
    names = ["..." if axis.startswith(("*", "...")) else axis for axis in axes.split()]
    return f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"


def _wrong_dtype(arguments: tuple[Argument, ...], tensors: tuple[Tensor | None, ...]) -> str:
    by_name = {argument.name: tensor for argument, tensor in zip(arguments, tensors, strict=True)}
    for name, _, dtype, *_ in arguments:
        tensor, other = by_name[name], by_name.get(dtype)
        if tensor is None:
            continue
        wanted = DTYPES.get(dtype) if other is None else other.dtype
        if wanted is None and not tensor.is_floating_point():
            return f"{name} must hold floating-point numbers, found {tensor.dtype}"
        if wanted is not None and tensor.dtype != wanted:
            as_other = "" if other is None else f", the dtype of {dtype}"
            return f"{name} must be {wanted}{as_other}, found {tensor.dtype}; convert it with {name}.to({wanted})"
    return ""


def refuse_others(operation: str, **arguments: object) -> None:
    """Refuse an argument that is not a tensor, after an attribute error; None passes.

    Raises:
        ShapeError: an argument is not a tensor.

    Example:
        >>> refuse_others("dot_scores", query=torch.ones(2, 3), key=None)
    """
    for name, value in arguments.items():
        if value is not None and not isinstance(value, Tensor):
            raise ShapeError(f"{operation}: {name} must be a tensor, found {type(value).__name__}")


def check_scores(operation: str, scores: object) -> None:
    """Refuse scores that no weights can be made of.

    Raises:
        ShapeError: no tensor, of no floating dtype, or without an axis.

    Example:
        >>> check_scores("sparsemax", torch.ones(2, 3))
    """
    refuse_others(operation, scores=scores)
    if not isinstance(scores, Tensor) or not scores.is_floating_point() or not scores.ndim:
        found = f"{scores.dtype} {tuple(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise ShapeError(f"{operation}: scores must be floating and have an axis, found {found}")


def check_states(module: str, name: str, states: object, length: str, features: int | str) -> None:
    """Check that an input is a floating tensor (B, length, features).

    Args:
        module: name that begins the message.
        name: of the input.
        states: the input.
        length: letter of the second axis.
        features: size of the third axis, or its letter if any size will do.

    Raises:
        ShapeError: it is not.

    Example:
        >>> check_states("NonLocal", "states", torch.ones(2, 3), "T", 4)
        Traceback (most recent call last):
            ...
        regard.errors.ShapeError: NonLocal: states must be (B, T, 4), found (2, 3)
    """
    if not isinstance(states, Tensor):
        raise ShapeError(f"{module}: {name} must be a tensor (B, {length}, {features}), found {type(states).__name__}")
    if states.dim() != 3 or (isinstance(features, int) and states.shape[-1] != features):
        hint = f"; {name}.unsqueeze(1) makes one of each example" if states.dim() == 2 and name == "query" else ""
        raise ShapeError(f"{module}: {name} must be (B, {length}, {features}), found {tuple(states.shape)}{hint}")
    if not states.is_floating_point():
        raise ShapeError(f"{module}: {name} must hold floating-point numbers, found {states.dtype}")


def check_range(operation: str, name: str, numbers: Tensor, low: int, high: int) -> None:
    """Check that integers are in `low` to `high`.

    Only ordinary CPU tensors are checked: elsewhere the values are unknown, or waiting for them would cost more than the operation, and
    PyTorch's indexing checks them.

    Raises:
        ShapeError: no tensor, or of no integer dtype.
        RangeError: a number is outside; the message states its position.

    Example:
        >>> check_range("pick", "places", torch.tensor([0, 2]), 0, 2)
    """
    refuse_others(operation, **{name: numbers})
    if numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise ShapeError(f"{operation}: {name} must hold whole numbers, found {numbers.dtype}; convert it with {name}.to(torch.int64)")
    if not numbers.is_cpu or not numbers.numel() or not is_plain(numbers):
        return
    least, most = torch.aminmax(numbers)
    if least >= low and most <= high:
        return
    place = ((numbers < low) | (numbers > high)).nonzero()[0].tolist()
    where = f"{name}[{', '.join(map(str, place))}]" if place else name
    bounds = f"allowed are numbers from {low} to {high}" if low <= high else "there is nothing to name"
    if low <= -(2**63) < high:
        bounds = f"allowed are numbers up to {high}"
    raise RangeError(f"{operation}: {where} is {numbers[tuple(place)].item()}; {bounds}")


def check_floating(operation: str, **tensors: Tensor) -> None:
    """Check that tensors, by the names of their arguments, hold floating-point numbers.

    Raises:
        ShapeError: no tensor, or of another dtype.

    Example:
        >>> check_floating("redundancy_penalty", weights=torch.ones(2))
    """
    refuse_others(operation, **tensors)
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise ShapeError(f"{operation}: {name} must hold floating-point numbers, found {tensor.dtype}; convert with .float()")


def check_not_negative(operation: str, name: str, numbers: Tensor, *, finite: bool = False) -> None:
    """Check that numbers of any dtype but bool are at least 0, and finite if asked; otherwise NaN and infinity may pass.

    Only ordinary CPU tensors are checked, as by `check_range`.

    Raises:
        ShapeError: no tensor, or a boolean one.
        RangeError: a number is negative, or not finite; the message states the first.

    Example:
        >>> check_not_negative("choose", "weights", torch.tensor([0.0, 0.5]))
    """
    refuse_others(operation, **{name: numbers})
    if numbers.dtype == torch.bool:
        raise ShapeError(f"{operation}: {name} must hold numbers, found {numbers.dtype}")
    if not numbers.is_cpu or not is_plain(numbers):
        return
    wrong = ~((numbers >= 0) & numbers.isfinite()) if finite else numbers < 0
    if wrong.any():
        what = "finite and at least 0" if finite else "at least 0"
        raise RangeError(f"{operation}: {name} must be {what}, found {numbers[wrong][0].item()}")


def with_learned_scale(operation: str, query: Tensor, scale: float | Tensor) -> tuple[Tensor, float]:
    """Multiply queries by a tensor scale, so that it gets a gradient; leave a number to the kernels.

    Args:
        operation: name that begins the message.
        query: (..., D).
        scale: a number, or a floating tensor that broadcasts to (..., 1), such as one number per head.

    Returns:
        The queries, and the remaining scale of the scores.

    Raises:
        ConfigError: no number, or one that is not finite in float32.
        ShapeError: the tensor does not broadcast.

    Example:
        >>> with_learned_scale("attention", torch.ones(2), torch.tensor(3.0))
        (tensor([3., 3.]), 1.0)
    """
    check_scale(operation, scale)
    if not isinstance(scale, Tensor):
        return query, scale
    wanted = (1, *reversed(query.shape[:-1]))
    if scale.dim() > query.dim() or any(one not in (1, size) for one, size in zip(reversed(scale.shape), wanted, strict=False)):
        raise ShapeError(
            f"{operation}: a scale that is a tensor must broadcast to {(*query.shape[:-1], 1)}, that is query without its features; "
            f"found scale {tuple(scale.shape)}, query {tuple(query.shape)}"
        )
    return query * scale.to(query), 1.0


def autocast_together(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast as `F.scaled_dot_product_attention` does under autocast: all to autocast's dtype, unless one is float64.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16):
        ...     [x.dtype for x in autocast_together(torch.ones(1), torch.ones(2))]
        [torch.bfloat16, torch.bfloat16]
    """
    kind = tensors[0].device.type
    if not autocasts(kind) or any(x.dtype == torch.float64 for x in tensors):
        return tensors
    return tuple(x.to(torch.get_autocast_dtype(kind)) for x in tensors)


def autocasts(kind: str) -> bool:
    """Return whether autocast is on for a device type; False for types without autocast, such as "meta".

    Example:
        >>> autocasts("meta")
        False
    """
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def no_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on the tensor's device.

    Example:
        >>> with torch.autocast("cpu", torch.bfloat16), no_autocast(torch.ones(1)):
        ...     (torch.ones(2, 2) @ torch.ones(2, 2)).dtype
        torch.float32
    """
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def is_plain(*tensors: Tensor | None) -> bool:
    """Return whether tensors are plain memory and nothing is traced, so that a kernel may use their addresses.

    False for fake and functional tensors, subclasses, tensors wrapped by `torch.vmap` and other transforms, forward-mode tangents, negative
    and conjugate views, and sparse, nested or quantized tensors; also while a graph is traced (`torch.compile`, `torch.export`, `make_fx`,
    `torch.jit.trace`) or a dispatch mode is on.

    Example:
        >>> is_plain(torch.ones(2), None), is_plain(torch._neg_view(torch.ones(2)))
        (True, False)
    """
    # An allow list, so that unknown kinds of tensors are not plain.
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack() or _is_tracing() or peek_interpreter_stack() is not None:
        return False
    if forward_ad._current_level >= 0:  # pyright: ignore[reportPrivateUsage]
        return False
    for tensor in tensors:  # noqa: SIM110 (a generator takes as long as the rest)
        if tensor is not None and not is_ordinary(tensor):
            return False
    return True


def is_ordinary(tensor: Tensor) -> bool:
    """Return whether a tensor itself is plain, see `is_plain`; ignores tracing and modes.

    Example:
        >>> is_ordinary(torch.ones(2)), is_ordinary(torch.ones(2).to_sparse())
        (True, False)
    """
    if type(tensor) not in _TYPES:
        return False
    kind = "cpu" if tensor.is_cpu else tensor.device.type  # reading a device's name creates a new string
    return _dispatch_keys(tensor).raw_repr() in (_ORDINARY.get(kind) or _ordinary(kind))


def _ordinary(kind: str) -> tuple[int, int]:
    with _disable_current_modes():
        with torch.inference_mode():
            inference = torch.empty(0, device=kind)
        with torch.inference_mode(False):
            usual = torch.empty(0, device=kind)
        _ORDINARY[kind] = (_dispatch_keys(usual).raw_repr(), _dispatch_keys(inference).raw_repr())
    return _ORDINARY[kind]


def may_need_gradients() -> bool:
    """Return whether gradients are on, or a graph is traced, which must hold with and without: `torch.jit.trace` checks its own without.

    Example:
        >>> with torch.no_grad():
        ...     may_need_gradients()
        False
    """
    return torch.is_grad_enabled() or _is_tracing()


def is_tracing(*tensors: Tensor | None) -> bool:
    """Return whether a graph is traced or only shapes are computed: registered operators then replace kernels.

    Example:
        >>> from torch._subclasses.fake_tensor import FakeTensorMode
        >>> with FakeTensorMode():
        ...     is_tracing()
        True
    """
    if torch.compiler.is_compiling():  # first: the compiler supports this one only
        return True
    if peek_interpreter_stack() is not None:
        return False
    if _is_tracing() or _len_torch_dispatch_stack():
        return True
    for tensor in tensors:
        kind = type(tensor)
        if kind is not Tensor and kind.__name__ in ("FakeTensor", "FunctionalTensor"):
            return True
    return False
