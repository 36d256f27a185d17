"""Regard: attention mechanisms, the models built on them, and a page to look at what they attended to."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `regard.view` brings NumPy with it, which a program that only wants the version or the help need not wait for.
    if name == "view":
        return importlib.import_module("regard.viewer").view
    raise AttributeError(f"module 'regard' has no attribute {name!r}")
