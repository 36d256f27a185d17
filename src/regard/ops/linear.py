"""Linear maps: the faster of two matrix libraries, and one weight-gradient product for many recurrent steps.

`linear` is `torch.nn.functional.linear`. MKL uses the widest vector units on Intel CPUs only. On others, float32 products use oneDNN, also
part of torch's CPU builds: about twice as fast (`benchmarks/matmul.py`). The choice depends on the processor alone, never on a timing, so
that runs repeat bit by bit. `REGARD_MATMUL=blas|onednn` forces one.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _current_graph_task_id  # pyright: ignore[reportPrivateUsage]  # torch has no public name for it
from torch.autograd import Variable

from regard.errors import ConfigError, ShapeError
from regard.flags import takes_flags
from regard.ops.call_checks import takes_tensors
from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PackedLinear
from regard.ops.kernels.second_order import differentiable_gradients
from regard.ops.number_checks import check_count
from regard.ops.tensor_checks import Argument, Signature, autocasts, is_plain

_ARGUMENTS = Signature("linear", Argument("x", "* I"), Argument("weight", "O I"), Argument("bias", "O", optional=True))


@functools.cache
def matmul_path() -> tuple[str, str]:
    """Return the library that multiplies float32 matrices on this CPU, and the reason.

    Returns:
        ("onednn" or "blas", reason).

    Raises:
        ConfigError: `REGARD_MATMUL` is not blas or onednn, or onednn is forced but absent.

    Example:
        >>> matmul_path()[0] in ("blas", "onednn")
        True
    """
    forced = os.environ.get("REGARD_MATMUL", "")
    if forced not in ("", "blas", "onednn"):
        raise ConfigError(f"REGARD_MATMUL: expected blas or onednn, found {forced!r}")
    available = _has_onednn()
    if forced == "onednn" and not available:
        raise ConfigError("REGARD_MATMUL=onednn: this build of torch has no oneDNN linear")
    if forced:
        return forced, "forced by REGARD_MATMUL"
    if not available:
        return "blas", "this build of torch has no oneDNN linear"
    if platform.machine().lower() not in ("x86_64", "amd64") or _is_intel():
        return "blas", "torch's BLAS is the fast one on this processor"
    return "onednn", "an x86-64 processor on which MKL does not use the widest vector units"


@functools.cache
def bfloat16_path() -> tuple[str, str]:
    """Return what multiplies bfloat16 numbers of `packed_weights` on this CPU, and the reason.

    Returns:
        ("onednn" or "float32", reason).

    Example:
        >>> bfloat16_path()[0] in ("onednn", "float32")
        True
    """
    if not _has_onednn():
        return "float32", "this build of torch has no oneDNN linear"
    # Elsewhere oneDNN refuses such weights, and torch's product is several times slower than float32.
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "float32", "oneDNN multiplies no bfloat16 on this processor"
    return "onednn", "oneDNN multiplies bfloat16 on this processor"


def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _is_intel() -> bool:
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "intel" in platform.processor().lower()


def _use_onednn(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.numel() > 0 and matmul_path()[0] == "onednn" and is_plain()


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor | None = None) -> Tensor:
    # x (N, I) @ weight (O, I)^T + bias (O,), both any strides. `out` (N, O), without a bias, may be what is returned.
    if _use_onednn(x):
        if weight.stride(1) == 1 and weight.stride(0) != weight.shape[1]:
            weight = weight.contiguous()  # a slice of columns: oneDNN has no fast product for it; a copy costs 1 %
        elif weight.stride(0) == 1 and weight.shape[1] > 1 and weight.stride(1) != weight.shape[0]:
            weight = weight.t().contiguous().t()  # such a slice, transposed: 0.1 %
        return _onednn(x, weight, bias)
    return F.linear(x, weight, bias) if out is None else torch.mm(x, weight.t(), out=out)


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # oneDNN assumes a contiguous bias.
    return torch.ops.mkldnn._linear_pointwise(x, weight, None if bias is None else bias.contiguous(), "none", [], "")


def compute_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type  # float64 stays what it is, as in torch
    return torch.get_autocast_dtype(kind) if autocasts(kind) and x.dtype != torch.float64 else x.dtype


def outer_product(grad: Tensor, x: Tensor) -> Tensor:
    """Return `grad.T @ x`, the gradient (O, I) of a weight, for grad (N, O) and x (N, I).

    Example:
        >>> outer_product(torch.ones(5, 2), torch.ones(5, 3)).tolist()
        [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]
    """
    # oneDNN copies a transposed left factor, so make it the smaller one.
    return matmul(x.t(), grad.t()).t() if grad.shape[1] > x.shape[1] else matmul(grad.t(), x.t())


def _flat(x: Tensor) -> Tensor:
    return x.reshape(x.shape[:-1].numel(), x.shape[-1])


def _differentiable(ctx: Any, x: Tensor, weight: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Return the gradients of a product's input, weight and bias under `create_graph=True`."""
    needed = ctx.needs_input_grad[:2]
    found = differentiable_gradients(F.linear, (x, weight), needed, grad) if any(needed) else (None, None)
    return *found, _flat(grad).sum(0) if ctx.bias else None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = bias is not None
        return matmul(_flat(x), weight, bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable(ctx, x, weight, grad)
        flat, grad = _flat(x), _flat(grad)
        # For a wide weight a transposed copy costs less than oneDNN loses without it.
        turned = weight.t().contiguous() if weight.shape[0] > weight.shape[1] and grad.shape[0] > weight.shape[0] else weight.t()
        x_grad = matmul(grad, turned).view(x.shape) if ctx.needs_input_grad[0] else None
        weight_grad = outer_product(grad, flat) if ctx.needs_input_grad[1] else None
        return x_grad, weight_grad, grad.sum(0) if ctx.bias else None


class StepTape:
    """The steps of a weight in backward passes that are running: one may start within another, or in another thread."""

    def __init__(self) -> None:
        self._passes: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def add(self, grad: Tensor, x: Tensor) -> None:
        """Add a step of the current pass: the gradient (N, O) of its product, and its input (N, I)."""
        number = _current_graph_task_id()
        if number not in self._passes:
            self._passes[number] = []
            # A pass for other gradients only, such as an input's, runs the steps but not the collector behind them.
            Variable._execution_engine.queue_callback(partial(self._forget, number))  # pyright: ignore[reportPrivateUsage]
        self._passes[number].append((grad, x))

    def _forget(self, number: int) -> None:
        self._passes.pop(number, None)

    def take(self) -> list[tuple[Tensor, Tensor]]:
        """Return the steps of the current pass, and forget them."""
        return self._passes.pop(_current_graph_task_id(), [])


class _Collect(torch.autograd.Function):
    # Stands between a parameter and the steps that use it. The engine runs it after all of them: one product over all steps.
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tape: StepTape) -> Tensor:
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        # `grad` is of steps under `create_graph=True`, or of their derivatives.
        steps = ctx.tape.take()
        if not steps:
            return grad, None
        grads, inputs = zip(*steps, strict=True)
        found = outer_product(torch.cat(grads), torch.cat(inputs))
        return found if grad is None else found + grad, None


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tape: StepTape) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tape, ctx.bias = tape, bias is not None
        return matmul(_flat(x), weight, bias).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, weight = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_differentiable(ctx, x, weight, grad), None
        grad = _flat(grad)
        ctx.tape.add(grad, _flat(x))
        return matmul(grad, weight.t()).view(x.shape), None, grad.sum(0) if ctx.bias else None, None


class _Steps:
    # Weights used so far in a recurrent loop, each with its collector and the tape its steps write in the backward pass.
    def __init__(self) -> None:
        # Keeps the weight alive so that its id stays unique during the loop.
        self._weights: dict[int, tuple[Tensor, Tensor, StepTape]] = {}

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = compute_dtype(x)
        if id(weight) not in self._weights:
            self._weights[id(weight)] = (weight, _Collect.apply(weight.to(dtype), tape := StepTape()), tape)
        _, collector, tape = self._weights[id(weight)]
        return _Step.apply(x.to(dtype), collector, None if bias is None else bias.to(dtype), tape)


_steps: ContextVar[_Steps | None] = ContextVar("_steps", default=None)


@contextmanager
def recurrent_steps() -> Generator[None, None, None]:
    """Compute the gradient of each weight that `linear` uses in this block as one product over all uses.

    For recurrent loops: autograd alone would compute and add a full weight gradient at every step. Results agree up to summation order.

    `torch.utils.checkpoint` inside the block needs `use_reentrant=True`: otherwise it computes again outside the block, where other tensors
    are saved, and raises its CheckpointError.

    Example:
        >>> weight = torch.nn.Parameter(torch.eye(3))
        >>> with recurrent_steps():
        ...     total = linear(torch.ones(2, 3), weight) + linear(torch.ones(2, 3), weight)
        >>> total.sum().backward()
        >>> weight.grad[0].tolist()
        [4.0, 4.0, 4.0]
    """
    if torch.compiler.is_compiling():  # no recurrent steps are open
        yield
        return
    token = _steps.set(_Steps())
    try:
        yield
    finally:
        _steps.reset(token)


Made = TypeVar("Made")


class _Packs(NamedTuple):
    dtype: torch.dtype
    # Keeps the weights alive so that their ids stay unique in the block.
    weights: dict[tuple[int, ...], tuple[tuple[Tensor, ...], Any]]
    prepared: dict[int, tuple[object, Any]]


_packs: ContextVar[_Packs | None] = ContextVar("_packs", default=None)

# oneDNN compiles a product per number of rows, in 0.2 to 2 ms. Decoding uses every number up to its maximum.
_ROWS = 16


@contextmanager
def packed_weights(dtype: torch.dtype = torch.float32) -> Generator[None, None, None]:
    """Pack each weight that `linear` uses on a CPU in this block once, for many products with constant weights.

    float32, where `matmul_path` is oneDNN, keeps weights in oneDNN's layout: a product with few rows takes half the time. bfloat16 rounds
    inputs and weights to 8 bits of precision and halves the time again where `bfloat16_path` is oneDNN; elsewhere it computes in float32
    and saves nothing. int8 rounds each output of a weight and each row of inputs to 8 bits with its own scale, in the native library
    (weights to 7 bits on x86 processors without VNNI). Results are float32. No effect under autocast, where gradients are required and
    on inputs or weights of another dtype than float32. Threads share packed weights if they run in a copy of the context.

    Args:
        dtype: torch.float32, torch.bfloat16 or torch.int8.

    Raises:
        ConfigError: int8 without the native library.

    Example:
        >>> with torch.no_grad(), packed_weights(torch.bfloat16):
        ...     linear(torch.ones(2, 3), torch.nn.Parameter(torch.ones(5, 3))).sum().item()
        30.0
    """
    if torch.compiler.is_compiling():  # no `packed_weights` block is open
        yield
        return
    if dtype == torch.int8 and not native.status().usable:
        raise ConfigError(f"8-bit products need the native library: {native.status().reason}")
    token = _packs.set(_Packs(dtype, {}, {}))
    try:
        yield
    finally:
        _packs.reset(token)


def cached_by_owner(owner: object, make: Callable[[torch.dtype], Made]) -> Made | None:
    """Cache `make(dtype)` per owner within a `packed_weights` block in float32 or int8; None outside of one.

    None also under autocast and where gradients are required, as for `packed_weights` itself.

    Example:
        >>> with torch.no_grad(), packed_weights():
        ...     [cached_by_owner(linear, lambda _: [1]) is cached_by_owner(linear, lambda _: [1]), cached_by_owner(linear, lambda _: [2])]
        [True, [1]]
    """
    packs = None if torch.compiler.is_compiling() else _packs.get()
    if packs is None or packed_dtype() not in (torch.float32, torch.int8):
        return None
    if id(owner) not in packs.prepared:
        packs.prepared[id(owner)] = (owner, make(packs.dtype))
    return packs.prepared[id(owner)][1]


def packed_dtype() -> torch.dtype | None:
    """Return the dtype of the enclosing `packed_weights` block; None outside of one, under autocast and where gradients are required.

    Example:
        >>> packed_dtype() is None
        True
    """
    packs = None if torch.compiler.is_compiling() else _packs.get()
    return None if packs is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") else packs.dtype


def _packed(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> _Packs | None:
    packs = _packs.get()
    if packs is None or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return None
    if not all(isinstance(weight, torch.nn.Parameter) and weight.numel() for weight in weights) or not x.numel():
        return None
    return packs if _all_float32(x, *weights, *biases) and (packs.dtype != torch.float32 or _use_onednn(x)) else None


def _all_float32(*tensors: Tensor | None) -> bool:
    # oneDNN interprets its input's memory as this dtype.
    return all(x is None or (x.dtype == torch.float32 and x.is_cpu) for x in tensors)


def _packed_product(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor, ...], packs: _Packs) -> Tensor:
    # Several weights are stacked by rows; each has a bias, or none has.
    if packs.dtype == torch.int8:
        return _int8_product(x, weights, biases, packs)
    bias = _stacked(biases)
    packed = packs.dtype == torch.float32 or bfloat16_path()[0] == "onednn"
    name = tuple(map(id, weights))
    if name not in packs.weights:
        kept = torch.cat([weight.detach().to(packs.dtype) for weight in weights])
        packs.weights[name] = (weights, torch.ops.mkldnn._reorder_linear_weight(kept) if packed else kept.float())
    rows, kept = x.shape[0], packs.weights[name][1]
    if not packed:
        return matmul(x.to(packs.dtype).float(), kept, None if bias is None else bias.to(packs.dtype).float())
    whole = -(-rows // _ROWS) * _ROWS if rows > _ROWS else 1 << (rows - 1).bit_length()
    if whole > rows:
        x = F.pad(x, (0, 0, 0, whole - rows))
    if packs.dtype == torch.float32:
        product = _onednn(x, kept, bias)
        return product[:rows] if whole > rows else product
    x, bias = x.to(packs.dtype), None if bias is None else bias.to(packs.dtype)
    return _onednn(x, kept, bias)[:rows].float()


def _int8_product(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor, ...], packs: _Packs) -> Tensor:
    parts = (*weights, *biases)
    name = tuple(map(id, parts))
    if name not in packs.weights:
        packs.weights[name] = (
            parts,
            PackedLinear(Affine(torch.cat([weight.detach() for weight in weights]), _stacked(biases)), packs.dtype),
        )
    return packs.weights[name][1](x)


def _stacked(biases: tuple[Tensor, ...]) -> Tensor | None:
    if len(biases) < 2:
        return biases[0].detach() if biases else None
    return torch.cat([bias.detach() for bias in biases])


@takes_tensors
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `x @ weight.T + bias` as `torch.nn.functional.linear` does, with the faster library.

    Args:
        x: (..., I).
        weight: (O, I).
        bias: (O,) or None.

    Returns:
        (..., O); under autocast in autocast's dtype.

    Raises:
        ShapeError: incompatible shapes or dtypes.
        ConfigError: only some tensors are on the meta device.

    Example:
        >>> linear(torch.ones(2, 3), torch.ones(5, 3)).shape
        torch.Size([2, 5])
    """
    fits = isinstance(x, Tensor) and isinstance(weight, Tensor) and x.dim() >= 1 and weight.dim() == 2 and x.shape[-1] == weight.shape[1]
    if not fits or (bias is not None and bias.shape != weight.shape[:1]):
        _ARGUMENTS.check(x, weight, bias)
    if not _one_type(x, weight, bias):
        types = f"weight {weight.dtype}" + ("" if bias is None else f", bias {bias.dtype}")
        raise ShapeError(f"linear: x is {x.dtype}, {types}; expected one dtype")
    if weight.is_meta != x.is_meta or (bias is not None and bias.is_meta != x.is_meta):  # meta tensors are left to torch
        places = f"weight on {weight.device}" + ("" if bias is None else f", bias on {bias.device}")
        raise ConfigError(f"linear: x is on {x.device}, {places}; expected one device")
    if not is_plain(x, weight, bias):
        return F.linear(x, weight, bias)  # a compiler traces no context variable, and plans its own products
    steps = _steps.get()
    if steps is not None and torch.is_grad_enabled() and weight.requires_grad:
        return steps.linear(x, weight, bias)
    packs = _packed(x, (weight,), (bias,))
    if packs is not None:
        biases = () if bias is None else (bias,)
        return _packed_product(x.reshape(-1, x.shape[-1]), (weight,), biases, packs).reshape(*x.shape[:-1], weight.shape[0])
    if _use_onednn(x) and _all_float32(weight, bias) and not torch.is_autocast_enabled("cpu"):
        return _Linear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def _one_type(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    # torch refuses mixed dtypes; under autocast they become one.
    return (weight.dtype == x.dtype and (bias is None or bias.dtype == x.dtype)) or autocasts(x.device.type)


class Linear(torch.nn.Linear):
    """`torch.nn.Linear` computed by `linear`; same parameters, same initialisation, same names.

    Example:
        >>> Linear(3, 5)(torch.ones(2, 3)).shape
        torch.Size([2, 5])
    """

    @takes_flags
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_count("Linear", "in_features", in_features)
        check_count("Linear", "out_features", out_features)
        super().__init__(in_features, out_features, bias, device, dtype)

    def forward(self, input: Tensor) -> Tensor:
        """Map (..., I) to (..., O)."""
        return linear(input, self.weight, self.bias)


@takes_tensors
def joint_linear(x: Tensor, layers: Sequence[Linear]) -> tuple[Tensor, ...]:
    """Apply several affine maps to one input; with `packed_weights` as one product.

    For many rows one wide product is no faster, and its gradient is slower.

    Args:
        x: (..., I).
        layers: each from I features, all with a bias or all without.

    Returns:
        One (..., O) per layer.

    Raises:
        ShapeError: the last axis of x is not I.

    Example:
        >>> [part.shape for part in joint_linear(torch.ones(2, 3), [Linear(3, 5), Linear(3, 7)])]
        [torch.Size([2, 5]), torch.Size([2, 7])]
    """
    weights, given = tuple(layer.weight for layer in layers), [layer.bias for layer in layers]
    biases = tuple(bias for bias in given if bias is not None)
    together = x.dim() and all(weight.shape[1:] == x.shape[-1:] for weight in weights) and len(biases) in (0, len(layers))
    packs = _packed(x, weights, biases) if layers and together and is_plain(x, *weights, *biases) else None
    if packs is None:
        return tuple(layer(x) for layer in layers)
    sizes = [weight.shape[0] for weight in weights]
    return _packed_product(x.reshape(-1, x.shape[-1]), weights, biases, packs).reshape(*x.shape[:-1], sum(sizes)).split(sizes, -1)
