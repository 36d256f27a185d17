"""The instruction sets of the native library, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from regard.ops.kernels import native

TARGETS = range(len(native.TARGETS))


@contextmanager
def instructions(target: int) -> Iterator[None]:
    """Compute by the native library with the instruction set of this number."""
    library = native.library()
    if library is None:
        pytest.skip("no native library here")
    best = library.regard_target()
    if target > best:
        pytest.skip(f"this processor has no {native.TARGETS[target]}")
    library.regard_limit(target)
    try:
        yield
    finally:
        library.regard_limit(best)
