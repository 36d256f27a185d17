"""Records the attention of any PyTorch model without changing the model."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from regard.errors import ConfigError, listed, shown
from regard.flags import takes_flags
from regard.observe.call import Unseen
from regard.observe.images import find_patches
from regard.observe.observer import Observer
from regard.observe.recording import Recording
from regard.observe.scopes import Scope

ADVICE = (
    "call F.scaled_dot_product_attention, or multiply torch.softmax(scores, -1) with the values; switch off kernels outside PyTorch "
    "(FlashAttention, xFormers, FlexAttention) and compiled functions"
)


class _Block(AbstractContextManager[Recording]):
    """Records a model each time the context is entered."""

    def __init__(self, begin: Callable[[], AbstractContextManager[Recording]]) -> None:
        self._begin = begin
        self._open: list[AbstractContextManager[Recording]] = []

    def __enter__(self) -> Recording:
        block = self._begin()
        recording = block.__enter__()
        self._open.append(block)
        return recording

    def __exit__(self, *error: Any) -> bool | None:
        return self._open.pop().__exit__(*error)


@takes_flags
def watch(
    model: nn.Module,
    *,
    layers: str | Collection[str] | None = None,
    heads: int | Sequence[int] | None = None,
    areas: bool = False,
    strict: bool = True,
) -> AbstractContextManager[Recording]:
    """Record every attention of a model while it runs in this block. Works for any PyTorch model, unchanged.

    Recorded are `nn.MultiheadAttention` and `nn.Transformer` (also their fused paths), every call of `F.scaled_dot_product_attention`,
    every softmax over the last axis that multiplies values (hand-written attention, "eager" in Hugging Face models), and Regard's own
    modules. Weights are those before dropout. Weights of fused kernels are computed separately, a block of queries at a time. Outputs,
    gradients and random numbers of the model stay bit-identical; only decoding with Regard's own models leaves the native step, which
    changes last digits.

    Args:
        model: any module, in training or evaluation mode; it may run any number of times, also through `generate`.
        layers: module names or patterns with `*`, as in `model.named_modules()`; a name includes all modules inside. Only these cost time
            and memory. None: all.
        heads: index of a head, or several; None: all.
        areas: also keep the weights of areas, for Regard's area attention.
        strict: raise an error at the end if a module that attends was not recorded. False: list it in `Recording.unseen`.

    Returns:
        A context manager that returns a `Recording`: the calls and their maps; `regard.view(seen, tokens)` shows them.

    Raises:
        ConfigError: no module has such a name, the model is compiled, or it is already being recorded. At the end, if `strict`: modules
            that attend ran and were not recorded; the message names them and says what to do.

    Example:
        >>> model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3, enable_nested_tensor=False)
        >>> with watch(model, layers="layers.2") as seen:
        ...     output = model(torch.ones(1, 5, 8))
        >>> [(call.layer, call.kind, tuple(call.weights.shape)) for call in seen]
        [('layers.2.self_attn', 'self', (1, 2, 5, 5))]
    """
    return _Block(lambda: _watched(model, layers, heads, areas=areas, strict=strict))


@contextmanager
def _watched(
    model: nn.Module, layers: str | Collection[str] | None, heads: int | Sequence[int] | None, *, areas: bool, strict: bool
) -> Iterator[Recording]:
    _check_model(model)
    names = chosen_modules(model, layers)
    observer = Observer(model, names, heads=_read_heads(heads), areas=areas)
    recording = Recording(type(model).__name__, observer.calls, patches=find_patches(model), removals=observer.removals)
    observer.start()
    try:
        yield recording
    finally:
        observer.stop()
    recording.unseen = _unseen(observer.missed)
    if strict:
        _check_seen(model, observer, recording, layers)


def _check_model(model: Any) -> None:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"watch: expected a torch.nn.Module, found {type(model).__name__}; name the module that it calls")
    eager = _compiles_nothing()
    for name, module in model.named_modules():
        where = f"watch: {name or type(model).__name__}"
        if isinstance(module, torch.jit.ScriptModule):
            raise ConfigError(f"{where} is TorchScript, which cannot be seen into; watch the model it was made from")
        if not eager and (type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None):
            raise ConfigError(
                f"{where} is compiled, and a compiled graph cannot be seen into; put the block inside "
                'torch.compiler.set_stance("force_eager"), or watch the model before torch.compile'
            )


def _compiles_nothing() -> bool:
    """Return whether compiled code currently runs uncompiled."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return getattr(getattr(frames, "_stance", None), "stance", "default") == "force_eager"


def chosen_modules(model: nn.Module, layers: str | Collection[str] | None) -> dict[int, str]:
    """Return the names of the wanted modules by identity: those matched by name, and the modules inside them.

    Raises:
        ConfigError: a pattern matches nothing; the message lists modules that attend.

    Example:
        >>> model = nn.Sequential(nn.MultiheadAttention(4, 2), nn.MultiheadAttention(4, 2))
        >>> list(chosen_modules(model, "1").values())
        ['1', '1.out_proj']
    """
    # A compiled model that runs uncompiled has its original names.
    found = model.named_modules(remove_duplicate=layers is None)  # a module that is used twice is found by each of its names
    names = [(id(module), name.replace("_orig_mod.", "").removesuffix("_orig_mod")) for name, module in found]
    if layers is None:
        return {key: name or type(model).__name__ for key, name in names}
    patterns: list[Any] = [layers] if isinstance(layers, str) or not isinstance(layers, Iterable) else list(layers)
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ConfigError(f"watch: layers: expected names of modules such as 'decoder.*', found {shown(pattern)}")
        if not any(fnmatchcase(name, pattern) for _, name in names if name):
            known = listed(_attending(model), most=6) or "none by name"
            raise ConfigError(f"watch: layers: {shown(pattern)} is the name of no module; modules that attend: {known}")
    chosen: dict[int, str] = {}
    for key, name in names:
        if any(_matches(name, pattern) for pattern in patterns):
            chosen.setdefault(key, name)
    return chosen


def _attending(model: nn.Module) -> list[str]:
    """Return the modules whose class names say that they attend."""
    names = ((name.replace("_orig_mod.", ""), module) for name, module in model.named_modules())
    return [name for name, module in names if name and Scope("", module).attends]


def _matches(name: str, pattern: str) -> bool:
    parts = name.split(".")
    return bool(name) and any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _read_heads(heads: int | Sequence[int] | None) -> list[int] | None:
    if heads is None:
        return None
    try:
        given: list[Any] = list(heads) if isinstance(heads, Iterable) and getattr(heads, "ndim", 1) else [heads]
        found = [-1 if isinstance(head, bool | str) else operator.index(head) for head in given]
    except TypeError:  # a head that is no whole number
        found = []
    if not found or min(found) < 0:
        raise ConfigError(f"watch: heads: expected numbers of heads from 0 on, found {shown(heads)}")
    return found


def _unseen(missed: list[Scope]) -> list[Unseen]:
    """Return the innermost modules that should have been recorded and were not, each once."""
    names = list(dict.fromkeys(scope.name for scope in missed))
    inner = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    first = {scope.name: scope for scope in reversed(missed)}
    return [Unseen(name, _reason(first[name])) for name in inner]


def _reason(scope: Scope) -> str:
    implementation = getattr(getattr(scope.module, "config", None), "_attn_implementation", None)
    if isinstance(implementation, str) and implementation not in ("eager", "sdpa"):
        return f'its attention is {implementation!r}, a kernel of its own; model.set_attn_implementation("sdpa") can be seen'
    found = scope.lost or "no scaled_dot_product_attention, and no softmax that multiplies values"
    return f"{type(scope.module).__name__}: {found}" + ("" if scope.windows else f"; {ADVICE}")


def _check_seen(model: nn.Module, observer: Observer, recording: Recording, layers: Any) -> None:
    name = type(model).__name__
    if recording.unseen:
        more = f" and {len(recording.unseen) - 1} more modules" if len(recording.unseen) > 1 else ""
        first = recording.unseen[0]
        raise ConfigError(
            f"watch: {name}: {len(observer.calls)} calls were recorded, but the attention of {first.layer}{more} was not seen "
            f"({first.reason}); with strict=False the block records the rest and lists these in `unseen`"
        )
    if observer.calls or not observer.ran:
        return
    if layers is not None and not observer.reached:
        raise ConfigError(f"watch: {name} ran, but the modules of layers={shown(layers)} were not called, or attend to nothing")
    if layers is not None:
        known = listed(_attending(model), most=6) or "none by name"
        raise ConfigError(
            f"watch: {name} ran, and no attention was seen in layers={shown(layers)}, the only modules watched; "
            f"modules that attend: {known}"
        )
    raise ConfigError(f"watch: {name} ran, and no attention was seen in it: no module says it attends, and nothing was recorded; {ADVICE}")
