"""Regard: attention mechanisms, models built on them, and a viewer for their attention.

All names are imported on first use, so `import regard` is fast: the classes of `regard.attention` and functions of `regard.ops`,
`regard.watch` to record the attention of any PyTorch model, `regard.view` to show it, `regard.check` to find wrong masks, and `regard.open`
to load a trained run.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard import attention, models, ops
    from regard.attention import *  # noqa: F403
    from regard.mask_check import check
    from regard.observe import view, watch
    from regard.tasks import open_any as open

    __all__ = ["attention", "check", "models", "open", "ops", "view", "watch"]

__version__ = "0.1.0"

_PACKAGES = ("attention", "models", "ops")
_NAMES = {
    "check": ("regard.mask_check", "check"),
    "open": ("regard.tasks", "open_any"),
    "view": ("regard.observe", "view"),
    "watch": ("regard.observe", "watch"),
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        module, there = _NAMES[name]
        return getattr(importlib.import_module(module), there)
    if name == "__all__":
        return sorted({*_PACKAGES, *_NAMES, *importlib.import_module("regard.attention").__all__})
    if name.startswith("_"):
        raise AttributeError(f"module 'regard' has no attribute {name!r}")
    # `from regard import progress` calls this before it imports; that must not import torch.
    if importlib.util.find_spec(f"regard.{name}") is not None:
        return importlib.import_module(f"regard.{name}")
    attention = importlib.import_module("regard.attention")
    if name in attention.__all__:
        return getattr(attention, name)
    raise importlib.import_module("regard.aliases").unknown_name("regard", name, __getattr__("__all__"))


def __dir__() -> list[str]:
    return ["__version__", *__getattr__("__all__")]
