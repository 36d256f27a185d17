"""Records the inputs and outputs of every module of a model in execution order."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

Change = Callable[[str, Tensor], Tensor]
"""Maps a tensor and its name to the tensor that replaces it."""
TORCH = str(Path(torch.__file__).parent)
HERE = str(Path(__file__).parent)
LIBRARIES = TORCH + os.sep, str(Path(__file__).parents[1]) + os.sep
"""Folders whose code is not the user's: torch and Regard."""


class Call(NamedTuple):
    """The n-th call of a module within one run."""

    module: str
    number: int


class Key(NamedTuple):
    """An event: the input or output side of a call."""

    call: Call
    side: Literal["in", "out"]


class Line(NamedTuple):
    """A line of source code."""

    file: str
    number: int
    function: str


class Event(NamedTuple):
    """The inputs or outputs of one module call.

    Attributes:
        key: call and side.
        parent: the enclosing call; None for the outermost.
        tensors: copies by name: the parameter of `forward`, or the path in the output.
        line: the calling line, outside torch.
        user_line: the innermost active line outside torch and Regard; None if no such code runs in the model.
    """

    key: Key
    parent: Call | None
    tensors: dict[str, Tensor]
    line: Line | None
    user_line: Line | None = None


def tensors_of(structure: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Return the tensors in tuples, lists, dictionaries and dataclasses by their path; "" for a single tensor."""
    if isinstance(structure, Tensor):
        if not structure.is_nested:
            yield name, structure
    elif isinstance(structure, PackedSequence):
        yield name, pad_packed_sequence(structure)[0]
    else:
        for key, part in _parts(structure):
            yield from tensors_of(part, f"{name}.{key}" if name else str(key))


def _parts(structure: Any) -> list[tuple[Any, Any]]:
    if isinstance(structure, Mapping):
        return list(structure.items())
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return list(zip(structure._fields, structure, strict=True))  # type: ignore[attr-defined]
    if isinstance(structure, tuple | list):
        return list(enumerate(structure))
    if dataclasses.is_dataclass(structure) and not isinstance(structure, type):
        return [(field.name, getattr(structure, field.name, None)) for field in dataclasses.fields(structure)]
    return []


def replaced(structure: Any, change: Change, name: str = "") -> Any:
    """Return a structure like the given one with changed tensors; unknown types are kept."""
    if isinstance(structure, Tensor):
        return structure if structure.is_nested else change(name, structure)
    if isinstance(structure, PackedSequence):
        return _repacked(structure, change, name)
    parts = {key: replaced(part, change, f"{name}.{key}" if name else str(key)) for key, part in _parts(structure)}
    if isinstance(structure, Mapping):
        again = copy.copy(structure)
        for key, part in parts.items():
            again[key] = part  # type: ignore[index]
        return again
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*parts.values())
    if isinstance(structure, tuple | list):
        return type(structure)(parts.values())
    if parts:
        again = copy.copy(structure)
        for key, part in parts.items():
            object.__setattr__(again, key, part)
        return again
    return structure


def _repacked(packed: PackedSequence, change: Change, name: str) -> PackedSequence:
    """Change a packed sequence in the shape (T, B, ...) in which it is recorded."""
    padded, lengths = pad_packed_sequence(packed)
    changed, order = change(name, padded), packed.sorted_indices
    if order is not None:
        changed, lengths = changed.index_select(1, order), lengths.index_select(0, order.cpu())
    return packed._replace(data=pack_padded_sequence(changed, lengths).data)


@cache
def _parameters(kind: type[nn.Module]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(kind.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))[1:]


def named_arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Name the arguments of a call by the parameters of the module's `forward`."""
    names = _parameters(type(module))
    return {(names[i] if i < len(names) else f"arg{i}"): value for i, value in enumerate(args)} | dict(kwargs)


def changed_arguments(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Change
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with changed tensors, named as by `named_arguments`."""
    names = list(named_arguments(module, args, {}))
    changed = tuple(replaced(value, change, name) for name, value in zip(names, args, strict=True))
    return changed, {name: replaced(value, change, name) for name, value in kwargs.items()}


class Recorder:
    """Records every module of a model during one run.

    Args:
        keep: copy the tensors.
        changes: replacements for the tensors of some events.
        every: replaces the floating outputs of every module.

    Attributes:
        events: all events, in order.
        arguments: of the calls named in `wanted`, (args, kwargs), copied.
        unfinished: the innermost active call when the run failed, or None.
    """

    def __init__(
        self, *, keep: bool = True, changes: Mapping[Key, Change] | None = None, every: Change | None = None, wanted: Call | None = None
    ) -> None:
        self.keep, self.changes, self.every, self.wanted = keep, changes or {}, every, wanted
        self.events: list[Event] = []
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.unfinished: Call | None = None
        self.unfinished_line: Line | None = None
        self._open: list[tuple[Call, tuple[Line | None, Line | None]]] = []
        self._counts: dict[str, int] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Number of calls of each module."""
        return self._counts

    @property
    def innermost(self) -> Call | None:
        """The innermost active call, or None."""
        return self._open[-1][0] if self._open else None

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[Recorder]:
        """Record a model while the block runs."""
        handles = []
        for name, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(self._after(name), with_kwargs=True))
        try:
            yield self
        except BaseException:
            if self._open:
                self.unfinished, (self.unfinished_line, _) = self._open[-1]
            raise
        finally:
            for handle in handles:
                handle.remove()

    def _before(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            call = Call(name, self._counts.get(name, 0))
            self._counts[name] = call.number + 1
            lines = _callers()
            named = named_arguments(module, args, kwargs)
            self._note(Key(call, "in"), named, lines)
            self._open.append((call, lines))
            if call == self.wanted:
                self.arguments = replaced(args, _copied), replaced(kwargs, _copied)
            change = self.changes.get(Key(call, "in"))
            if change is None:
                return None
            return changed_arguments(module, args, kwargs, change)

        return hook

    def _after(self, name: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            call, lines = self._open.pop()
            key = Key(call, "out")
            self._note(key, output, lines)
            change = self.changes.get(key, self.every)
            return None if change is None else replaced(output, change)

        return hook

    def _note(self, key: Key, structure: Any, lines: tuple[Line | None, Line | None]) -> None:
        tensors = {name: tensor.detach().clone() for name, tensor in tensors_of(structure)} if self.keep else {}
        self.events.append(Event(key, self._open[-1][0] if self._open else None, tensors, *lines))


def _copied(_: str, tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _callers() -> tuple[Line | None, Line | None]:
    """Return the innermost active line outside torch, and the innermost one of the model outside torch and Regard."""
    frame, line, inside = sys._getframe(2), None, True
    while frame is not None and (inside or line is None):
        file = frame.f_code.co_filename
        inside = inside and not file.startswith(HERE)  # the check runs the model
        here = Line(file, frame.f_lineno, frame.f_code.co_name)
        if line is None and not file.startswith((TORCH, HERE)):
            line = here
        if inside and not file.startswith(LIBRARIES):
            return line, here
        frame = frame.f_back
    return line, None
