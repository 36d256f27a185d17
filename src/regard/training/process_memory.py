"""Memory that a process has freed and the C library still holds."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

LEAST_BYTES = 2 << 30
"""A process below this size keeps all of it."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class FreedMemory:
    """Returns freed memory to the system whenever a process has grown by half.

    Batches of other sizes leave holes between small blocks that stay, and a C library returns only memory behind the last block: a training
    by characters grew to 4.9 GB for 0.7 GB in use (docs/log.md).

    Args:
        least: bytes; a smaller process keeps what it has freed.

    Example:
        >>> FreedMemory().bound()
    """

    def __init__(self, least: int = LEAST_BYTES) -> None:
        self._least = self._limit = least

    def bound(self) -> None:
        """Call it after each step."""
        if resident_bytes() > self._limit and return_freed_memory():
            self._limit = max(self._least, resident_bytes() * 3 // 2)


def resident_bytes() -> int:
    """Return the memory of this process that is in RAM, 0 where the system does not tell (it has no `/proc`).

    Example:
        >>> resident_bytes() >= 0
        True
    """
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return 0


def return_freed_memory() -> bool:
    """Return freed memory to the system; False where the C library is not glibc.

    Example:
        >>> isinstance(return_freed_memory(), bool)
        True
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return trim is not None
