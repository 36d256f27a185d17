"""Hooks that track which module is active."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import FunctionType
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

Enter = Callable[[str, nn.Module, tuple[Any, ...], dict[str, Any]], None]


class Hooks:
    """Hooks on the wanted modules while the context is open.

    `nn.TransformerEncoderLayer` avoids its fused path if it or a part of it has hooks. Such modules are tracked by two global module hooks,
    which it does not check; these receive no keyword arguments.

    Args:
        model: the model.
        names: names of the wanted modules, by identity.
        enter: called before each forward with the name and the arguments.
        leave: called after it, also on errors.

    Attributes:
        ran: whether the model was called.
    """

    def __init__(self, model: nn.Module, names: dict[int, str], enter: Enter, leave: Callable[[nn.Module], None]) -> None:
        self.ran = False
        self._model, self._enter, self._leave = model, enter, leave
        self._handles: list[RemovableHandle] = []
        self._apart: dict[int, str] = {}
        self._hooked: list[tuple[str, nn.Module]] = []
        self._copies: list[tuple[nn.Module, Any]] = []
        fused: set[int] = set()
        for name, module in model.named_modules():
            if isinstance(module, nn.TransformerEncoderLayer):
                inside = {id(part) for part in module.modules()}
                fused |= inside
                if inside & names.keys():
                    self._apart[id(module)] = names.get(id(module), name)
            if id(module) not in names:
                continue
            if id(module) in fused:
                if isinstance(module, nn.MultiheadAttention):
                    self._apart[id(module)] = names[id(module)]
            elif not _plain(module):
                self._hooked.append((names[id(module)], module))

    def __enter__(self) -> Hooks:
        for name, module in self._hooked:
            self._handles.append(module.register_forward_pre_hook(partial(self._before, name, id(module)), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._behind, always_call=True))
        if self._apart:
            self._handles.append(register_module_forward_pre_hook(self._before_any))
            self._handles.append(register_module_forward_hook(self._behind_any, always_call=True))
        if id(self._model) not in self._apart:
            self._handles.append(self._model.register_forward_pre_hook(self._see_run))
        for module in {id(module): module for _, module in (*self._hooked, ("", self._model))}.values():
            before = module.__dict__.get("__deepcopy__")  # of another context, on other layers
            module.__dict__["__deepcopy__"] = partial(self._copy, module, before)
            self._copies.append((module, before))
        return self

    def __exit__(self, *error: object) -> None:
        for module, before in self._copies:
            _set_copy(module, before)
        self._copies.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _copy(self, module: nn.Module, before: Any, memo: dict[int, Any]) -> nn.Module:
        """Copy a module without the hooks of this context."""
        own = module.__dict__["__deepcopy__"]
        _set_copy(module, before)
        try:
            twin = copy.deepcopy(module, memo)
        finally:
            _set_copy(module, own)
        for name, hooks in vars(twin).items():
            if name.startswith("_forward_") and isinstance(hooks, dict):
                for handle in self._handles:
                    hooks.pop(handle.id, None)
        return twin

    def __deepcopy__(self, memo: object) -> Hooks:
        return self  # a copy of the model is another model and not watched

    def _before(self, name: str, own: int, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(module) == own:  # not of a copy
            self._enter(name, module, args, kwargs)

    def _see_run(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.ran = self.ran or module is self._model

    def _behind(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self._leave(module)

    def _before_any(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if id(module) in self._apart:
            self._enter(self._apart[id(module)], module, args, {})

    def _behind_any(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if id(module) in self._apart:
            self._leave(module)


def _set_copy(module: nn.Module, function: Any) -> None:
    """Set how `copy.deepcopy` copies a module; None: the default."""
    if function is None:
        module.__dict__.pop("__deepcopy__", None)
    else:
        module.__dict__["__deepcopy__"] = function


Around = Callable[[FunctionType, nn.Module, tuple[Any, ...], dict[str, Any]], Any]
FOREIGN = ("torch", "transformers", "regard", "builtins")
"""Packages whose modules attend in `forward` only."""
_around: list[tuple[set[int], Around]] = []
_methods: dict[tuple[type, str], FunctionType] = {}


@contextmanager
def methods_told(modules: Iterable[nn.Module], around: Around) -> Iterator[None]:
    """Wrap with `around` the methods that users call besides `forward`, such as `encode`; hooks do not see them."""
    modules = list(modules)
    for kind in {kind for module in modules for kind in type(module).__mro__ if kind.__module__.split(".")[0] not in FOREIGN}:
        for name, own in list(vars(kind).items()):
            if isinstance(own, FunctionType) and name != "forward" and not name.startswith("_") and (kind, name) not in _methods:
                _methods[kind, name] = own
                setattr(kind, name, _told(own))
    entry = ({id(module) for module in modules}, around)
    _around.append(entry)
    try:
        yield
    finally:
        _around.remove(entry)
        while not _around and _methods:
            (kind, name), own = _methods.popitem()
            setattr(kind, name, own)


def _told(own: FunctionType) -> Callable[..., Any]:
    @wraps(own)
    def method(module: Any, *args: Any, **kwargs: Any) -> Any:
        found = next((around for known, around in _around if id(module) in known), None)
        return own(module, *args, **kwargs) if found is None else found(own, module, args, kwargs)

    return method


def _plain(module: nn.Module) -> bool:
    """Return whether a module is one of torch's without attention: linear, norm, dropout."""
    own = type(module).__module__.startswith("torch.nn.modules.") and not isinstance(module, nn.MultiheadAttention)
    return own and next(module.children(), None) is None
