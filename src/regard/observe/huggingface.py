"""What has to be known of `transformers` to read its calls of `F.scaled_dot_product_attention` right."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tell = Callable[[tuple[int, int] | None], None]

_told: list[Tell] = []


@contextmanager
def layouts_told(tell: Tell) -> Iterator[None]:
    """Tell the (heads, queries) of each call of its attention function "sdpa", where transformers is in use, and None behind it.

    With grouped heads and a single query it folds the heads that share a key into the axis of queries: the kernel is called with (B, G,
    H / G, D) in place of (B, H, 1, D).
    """
    modeling = sys.modules.get("transformers.modeling_utils")
    interface: Any = getattr(modeling, "AttentionInterface", None)
    if interface is None:
        yield
        return
    original = interface()["sdpa"]

    def sdpa(module: Any, query: Any, *args: Any, **options: Any) -> Any:
        layout = (query.shape[1], query.shape[2])
        for each in _told:
            each(layout)
        try:
            return original(module, query, *args, **options)
        finally:
            for each in _told:
                each(None)

    _told.append(tell)
    if len(_told) == 1:
        interface.register("sdpa", sdpa)
        sdpa.original = original  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _told.remove(tell)
        if not _told:
            interface.register("sdpa", getattr(interface()["sdpa"], "original", original))
