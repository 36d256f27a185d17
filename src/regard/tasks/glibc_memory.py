"""Bound the memory that glibc keeps after it is freed."""

from __future__ import annotations

import ctypes
import os

# From malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST_THRESHOLD = 33_554_432
"""glibc takes no larger M_MMAP_THRESHOLD."""
SERVER_BYTES, TRAINING_BYTES = 1_048_576, 1_073_741_824
"""What a server and a training keep. A training frees and allocates the tensors of a step at every step; each new page costs a fault."""


def bound_free_memory(kept: int) -> bool:
    """Keep memory constant over many requests or batches of different sizes; call it before the first thread starts.

    By default each thread has its own arena, which keeps freed memory up to a growing threshold: used bytes are constant while the process
    grows. The environment (`MALLOC_ARENA_MAX`, `MALLOC_MMAP_THRESHOLD_`, `MALLOC_TRIM_THRESHOLD_`, and the same in `GLIBC_TUNABLES`) takes
    precedence.

    Args:
        kept: bytes. More free memory at the end of the one arena is returned to the system; so are, when freed, allocations larger than it
            or than `LARGEST_THRESHOLD`.

    Returns:
        Whether the allocator is glibc's; otherwise (musl, macOS, Windows) nothing changes.

    Example:
        >>> isinstance(bound_free_memory(SERVER_BYTES), bool)
        True
    """
    try:
        library = ctypes.CDLL(None)
        _ = library.gnu_get_libc_version
    except (AttributeError, OSError, TypeError):  # no glibc; Windows has no library of the process
        return False
    settings = {
        M_ARENA_MAX: ("arena_max", 1),
        M_MMAP_THRESHOLD: ("mmap_threshold", min(kept, LARGEST_THRESHOLD)),
        M_TRIM_THRESHOLD: ("trim_threshold", kept),
    }
    for parameter, (name, value) in settings.items():
        variable = f"MALLOC_{name.upper()}" + ("" if name == "arena_max" else "_")
        if not os.environ.get(variable) and f"glibc.malloc.{name}=" not in os.environ.get("GLIBC_TUNABLES", ""):
            library.mallopt(parameter, value)
    return True
