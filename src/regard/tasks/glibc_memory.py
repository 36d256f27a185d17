"""Limit the memory that glibc keeps after it is freed."""

from __future__ import annotations

import ctypes
import os

# From malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
# Larger allocations are separate mappings, returned when freed.
MMAP_BYTES = 1_048_576
# More free memory than this at the end of the arena is returned.
TRIM_BYTES = 1_048_576
SETTINGS = {
    M_ARENA_MAX: ("MALLOC_ARENA_MAX", 1),
    M_MMAP_THRESHOLD: ("MALLOC_MMAP_THRESHOLD_", MMAP_BYTES),
    M_TRIM_THRESHOLD: ("MALLOC_TRIM_THRESHOLD_", TRIM_BYTES),
}


def bound_free_memory() -> bool:
    """Keep memory constant over many requests or batches of different sizes; call it before the first thread starts.

    By default each thread has its own arena, which keeps freed memory up to a growing threshold: used bytes are constant while the process
    grows. The environment (`MALLOC_ARENA_MAX`, `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`) takes precedence.

    Returns:
        Whether the allocator is glibc's; otherwise (musl, macOS, Windows) nothing changes.

    Example:
        >>> isinstance(bound_free_memory(), bool)
        True
    """
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version
    except (AttributeError, OSError, TypeError):  # no glibc; Windows has no library of the process
        return False
    for parameter, (variable, value) in SETTINGS.items():
        if variable not in os.environ:
            library.mallopt(parameter, value)
    return True
