"""Lazy imports for packages: a name is imported on first use, so that a command loads only what it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: name of the package.
        modules: for each of its modules the public names, separated by blanks.

    Example:
        >>> get, names = lazy_names("regard", {"errors": "ConfigError DataError"})
        >>> get("DataError").__module__, names()
        ('regard.errors', ['ConfigError', 'DataError'])
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return get, lambda: sorted(homes)
