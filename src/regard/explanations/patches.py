"""Changes to a model's modules while an explanation reads them, for one thread at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

_ONE_AT_A_TIME = [threading.RLock()]
"""Held while a module is changed: explanations of other threads wait."""


def _renew() -> None:
    # In a forked process no thread is left that would let go of it.
    _ONE_AT_A_TIME[0] = threading.RLock()


if hasattr(os, "register_at_fork"):  # Windows forks no process
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def patched(module: nn.Module, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace a method of a module for the calls of this thread.

    Args:
        module: the module.
        name: of the method.
        make: given the method, returns what takes its place.

    Example:
        >>> double = nn.Identity()
        >>> with patched(double, "forward", lambda original: lambda x: 2 * original(x)):
        ...     double(3)
        6
        >>> double(3)
        3
    """
    owner = threading.get_ident()
    with _ONE_AT_A_TIME[0]:
        original, own = getattr(module, name), module.__dict__.get(name)
        replacement = make(original)

        def chosen(*args: Any, **kwargs: Any) -> Any:
            return (replacement if threading.get_ident() == owner else original)(*args, **kwargs)

        module.__dict__[name] = chosen
        try:
            yield
        finally:
            if own is None:
                del module.__dict__[name]
            else:
                module.__dict__[name] = own


@contextmanager
def hooked(module: nn.Module, note: Callable[[tuple[Any, ...], Any], Any]) -> Iterator[None]:
    """Call `note` with the arguments and the output of each call of a module in this thread.

    Example:
        >>> seen, module = [], nn.Identity()
        >>> with hooked(module, lambda args, output: seen.append(output)):
        ...     _ = module(3)
        >>> seen
        [3]
    """
    owner = threading.get_ident()

    def hook(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if threading.get_ident() == owner:
            note(args, output)

    with _ONE_AT_A_TIME[0]:
        handle = module.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()
