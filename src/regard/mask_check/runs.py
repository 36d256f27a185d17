"""Runs a copy of the model: in double precision, without gradients, from one seed, with fixed or disabled dropout."""

from __future__ import annotations

import copy
import functools
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from regard.errors import ConfigError
from regard.mask_check.adapter import Adapter, Inputs
from regard.mask_check.examples import Batch
from regard.mask_check.recording import Recorder, tensors_of

DOUBLE_UP_TO = {"cpu": 2**26, "cuda": 2**29}
"""Largest number of parameters copied in double precision by default: seconds on a CPU, up to 4 GiB elsewhere."""
FILL = 0.1
"""Standard deviation of the noise that replaces all-zero parameters: a closed gate would hide leaks behind it."""
SEED = 20170612


HALVES = (torch.float16, torch.bfloat16)


def precisions_of(model: nn.Module) -> list[torch.dtype | None]:
    """Return the precisions to try, best first: float64 if the model is not too large, float32 for half precision, its own."""
    parameters = list(model.parameters())
    most = DOUBLE_UP_TO.get(parameters[0].device.type, 0) if parameters else 1
    double = sum(parameter.numel() for parameter in parameters) <= most
    return [*([torch.float64] if double else []), *exact_of(model)]


def exact_of(model: nn.Module) -> list[torch.dtype | None]:
    """Return the precisions to try without float64: float32 in place of half precision, whose rounding hides leaks, and the model's own."""
    return [torch.float32, None] if any(parameter.dtype in HALVES for parameter in model.parameters()) else [None]


def model_copy(model: nn.Module, dtype: torch.dtype | None) -> tuple[nn.Module, int]:
    """Copy a model, so that the user's is not modified.

    Args:
        model: the user's model.
        dtype: dtype of the copy; None: the model's own.

    Returns:
        The copy, and how many all-zero parameters were filled with noise.

    Raises:
        ConfigError: it cannot be copied.
    """
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        raise ConfigError(f"check: {type(model).__name__} holds no numbers (meta device); build or load it on a device")
    try:
        memo = _kept(model)
        twin = copy.deepcopy(model, memo)
        _rebind(twin, memo)
        if dtype is not None:
            twin = twin.to(dtype)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ConfigError(f"{type(model).__name__}: it cannot be copied ({error}); give a model as it is built or loaded") from error
    return twin, _fill(twin)


def _kept(model: nn.Module) -> dict[int, Any]:
    """Return copies of what modules keep of an earlier pass, such as attention weights with a gradient, which deepcopy refuses."""
    values = [value for module in model.modules() for value in vars(module).values()]
    kept: dict[int, Any] = {}
    seen = set[int]()  # a list may hold itself
    while values:
        value = values.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple):
            values += value
        elif isinstance(value, dict):
            values += value.values()
        elif isinstance(value, Tensor) and not value.is_leaf:
            kept[id(value)] = value.detach().clone()
    return kept


def _rebind(model: nn.Module, memo: dict[int, Any]) -> None:
    """Let functions set on modules, as `module.forward = function`, and hooks use the copies: deepcopy leaves functions as they are."""
    for module in model.modules():
        places: list[dict[Any, Any]] = [vars(module), module._forward_hooks, module._forward_pre_hooks]
        for attributes in places:
            for name, value in list(attributes.items()):
                if isinstance(value, types.FunctionType):
                    attributes[name] = _moved(value, memo)


def _parts(value: Any, memo: dict[int, Any]) -> dict[str, Any]:
    """Return what a function or a bound method refers to: what it encloses, its defaults, and parts of the model among its globals."""
    if isinstance(value, types.MethodType):
        return {"self": value.__self__}
    if not isinstance(value, types.FunctionType):
        return {}
    cells = {f"cell {number}": cell.cell_contents for number, cell in enumerate(value.__closure__ or ()) if cell != types.CellType()}
    defaults = {f"default {number}": default for number, default in enumerate(value.__defaults__ or ())}
    named = {name: value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__}
    used = {name: one for name, one in named.items() if id(one) in memo or id(getattr(one, "__self__", None)) in memo}
    keywords = {f"keyword {name}": default for name, default in (value.__kwdefaults__ or {}).items()}
    return used | cells | defaults | keywords


def _refers(value: Any, memo: dict[int, Any], seen: set[int]) -> bool:
    """Return whether a value is a part of the model, or a function that refers to one."""
    if id(value) in memo:
        return True
    if id(value) in seen:
        return False
    seen.add(id(value))
    return any(_refers(part, memo, seen) for part in _parts(value, memo).values())


def _moved(value: Any, memo: dict[int, Any]) -> Any:
    """Return a value with the copies in place of the parts of the model that it refers to."""
    if id(value) in memo or not _refers(value, memo, set()):
        return memo.get(id(value), value)
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, _moved(value.__self__, memo))
    used = [name for name in _parts(value, memo) if name in value.__globals__]
    seen = dict(value.__globals__) if used else value.__globals__
    cells = tuple(types.CellType() for _ in value.__closure__ or ())
    made = types.FunctionType(value.__code__, seen, value.__name__, None, cells)
    memo[id(value)] = made  # before its parts, which may refer to it
    seen.update({name: _moved(seen[name], memo) for name in used})
    made.__defaults__ = value.__defaults__ and tuple(_moved(part, memo) for part in value.__defaults__)
    made.__kwdefaults__ = value.__kwdefaults__ and {name: _moved(part, memo) for name, part in value.__kwdefaults__.items()}
    for cell, old in zip(cells, value.__closure__ or (), strict=True):
        if old != types.CellType():  # an empty cell
            cell.cell_contents = _moved(old.cell_contents, memo)
    return functools.update_wrapper(made, value)


@torch.no_grad()
def _fill(model: nn.Module) -> int:
    generator = torch.Generator().manual_seed(SEED)
    filled = 0
    for name, parameter in model.named_parameters():
        # A bias of zero hides nothing.
        if parameter.ndim < 2 and name.endswith("bias"):
            continue
        if parameter.is_floating_point() and parameter.numel() and not parameter.any():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.copy_(FILL * noise)
            filled += 1
    return filled


class Runs:
    """Runs a model repeatedly under equal conditions.

    Args:
        model: a copy of the user's model.
        adapter: how to call it.
        dtype: floating inputs are cast to it; None: unchanged.

    Attributes:
        passes: number of runs so far.
        lists: names of outputs that are a list with one tensor per position; they are stacked.
    """

    def __init__(self, model: nn.Module, adapter: Adapter, dtype: torch.dtype | None) -> None:
        self.model, self.adapter, self.dtype = model, adapter, dtype
        self.passes = 0
        self.lists: set[str] = set()
        first = next((tensor for tensor in (*model.parameters(), *model.buffers())), None)
        self.device = torch.device("cpu") if first is None else first.device

    def inputs(self, batch: Inputs) -> Inputs:
        """Copy a batch in the precision of the model, on the user's device, where lengths may be on another one than tokens."""

        def copied(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            floating = value.is_floating_point() and self.dtype is not None
            return value.detach().to(self.dtype if floating else value.dtype, copy=True)

        return {key: copied(value) for key, value in batch.items()}

    def run(self, batch: Batch, recorder: Recorder | None = None, *, train: bool = False, seed: int = SEED) -> dict[str, Tensor]:
        """Run the model on a batch and return copies of its floating outputs by name.

        Args:
            batch: the batch.
            recorder: records the modules.
            train: run in training mode, without dropout; otherwise in evaluation mode.
            seed: random seed.
        """
        return self.apply(self.adapter.run, batch.inputs, recorder, train=train, seed=seed)

    def apply(
        self, function: Any, inputs: Inputs, recorder: Recorder | None = None, *, train: bool = False, seed: int = SEED
    ) -> dict[str, Tensor]:
        """Call `function(model, inputs)` under the conditions of a run and return its floating tensors by name."""
        self.passes += 1
        listening = nullcontext() if recorder is None else recorder.listening(self.model)
        with self.conditions(train=train, seed=seed), listening:
            output = function(self.model, self.inputs(inputs))
        return self.stacked({name: tensor.detach().clone() for name, tensor in tensors_of(output) if tensor.is_floating_point()})

    def rounded(self, batch: Batch, *, train: bool = False) -> dict[str, Tensor]:
        """Run the model on a batch, each result of an operation rounded up or down at random."""
        with torch.compiler.set_stance("force_eager"), _Rounding():  # `flex_attention` compiles, which no such mode allows
            return self.run(batch, train=train)

    def stacked(self, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return outputs with each of the `lists` stacked into one tensor, positions first."""
        for name in self.lists:
            parts = [outputs.pop(key) for key in parts_of(outputs, name)]
            if parts:
                outputs[name] = torch.stack(parts)
        return outputs

    @contextmanager
    def conditions(self, *, train: bool = False, seed: int = SEED) -> Iterator[None]:
        """Fix everything but the inputs: mode, seed, default precision, and state that training mode changes."""
        devices = [self.device] if self.device.type == "cuda" else []
        before = torch.get_default_dtype()
        with warnings.catch_warnings(), torch.random.fork_rng(devices), _full_precision(), torch.no_grad(), self._mode(train):
            warnings.simplefilter("ignore")  # the user has seen the model's warnings before
            if self.device.type == "cpu":
                torch.default_generator.manual_seed(seed)  # `torch.manual_seed` records its caller if there is no GPU
            else:
                torch.manual_seed(seed)
            if self.dtype is not None:
                torch.set_default_dtype(self.dtype)
            try:
                yield
            finally:
                torch.set_default_dtype(before)

    @contextmanager
    def _mode(self, train: bool) -> Iterator[None]:
        if not train:
            self.model.eval()
            yield
            return
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        self.model.train()
        restored: list[tuple[nn.Module, str, float]] = []
        for module in self.model.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
            for name, value in vars(module).items():
                if "drop" in name and isinstance(value, float) and value:
                    restored.append((module, name, value))
        for module, name, _ in restored:
            setattr(module, name, 0.0)
        try:
            with _NoDropout():
                yield
        finally:
            for module, name, value in restored:
                setattr(module, name, value)
            for buffer, values in buffers:
                buffer.copy_(values)
            self.model.eval()


def parts_of(outputs: dict[str, Tensor], name: str) -> list[str]:
    """Return the names of equally shaped tensors that form a list; empty if there is none."""
    keys = [key for key in outputs if key.rpartition(".")[0] == name and key.rpartition(".")[2].isdigit()]
    return keys if len({outputs[key].shape for key in keys}) == 1 else []


@contextmanager
def _full_precision() -> Iterator[None]:
    """Disable TF32: the limits assume float32 rounding."""
    cudnn: Any = torch.backends.cudnn
    places = [torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn]
    before = [place.fp32_precision for place in places]
    try:
        for place in places:
            place.fp32_precision = "ieee"
        yield
    finally:
        for place, precision in zip(places, before, strict=True):
            place.fp32_precision = precision


class _Rounding(TorchDispatchMode):
    """Moves each number that an operation computes by one rounding. Whole numbers stay, which may be counts or indices."""

    supports_higher_order_operators = True  # such as `flex_attention`, which make new tensors

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(SEED)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        several = isinstance(made, tuple | list)
        results = list(made) if several else [made]
        kinds = [result.alias_info for result in func._schema.returns] if isinstance(func, torch._ops.OpOverload) else [None]
        for number, tensor in enumerate(results):
            kind = kinds[min(number, len(kinds) - 1)]
            if not isinstance(tensor, Tensor) or not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            if kind is None:
                results[number] = self._moved(tensor)
            elif kind.is_write:  # otherwise a view
                tensor.copy_(self._moved(tensor))
        return type(made)(results) if several else results[0]

    def _moved(self, tensor: Tensor) -> Tensor:
        real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        if bool((real == real.round()).all()):
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=self.generator).to(tensor) * 2 - 1
        moved = tensor * (1 + torch.finfo(tensor.dtype).eps * signs)
        return torch.where(moved.isfinite(), moved, tensor)


class _NoDropout(TorchFunctionMode):
    """Replaces random dropout functions by the identity."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout):
            return args[0] if args else kwargs["input"]
        if func is F.scaled_dot_product_attention:
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        return func(*args, **kwargs)
