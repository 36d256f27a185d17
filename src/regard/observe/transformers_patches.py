"""Layouts in which `transformers` calls `F.scaled_dot_product_attention`, and tokens that it removes from a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tell = Callable[[tuple[int, int] | None], None]

_told: list[Tell] = []
_removed: list[Callable[[], None]] = []


@contextmanager
def layouts_told(tell: Tell) -> Iterator[None]:
    """Report (heads, queries) before each call of the attention function "sdpa" of transformers, if imported, and None after it.

    With grouped heads and a single query it folds the heads that share a key into the query axis: the kernel gets (B, G, H / G, D) instead
    of (B, H, 1, D).
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


@contextmanager
def removals_told(tell: Callable[[], None]) -> Iterator[None]:
    """Report each removal of tokens from a cache of transformers, if imported: speculative decoding takes back what it rejects."""
    kind: Any = getattr(sys.modules.get("transformers.cache_utils"), "Cache", None)
    if kind is None:
        yield
        return
    original = kind.crop

    def crop(cache: Any, count: int, *args: Any, **options: Any) -> Any:
        for each in _removed if count else ():
            each()
        return original(cache, count, *args, **options)

    _removed.append(tell)
    if len(_removed) == 1:
        kind.crop = crop
        crop.original = original  # type: ignore[attr-defined]
    try:
        yield
    finally:
        _removed.remove(tell)
        if not _removed:
            kind.crop = getattr(kind.crop, "original", original)
