"""What a process has freed goes back to the system."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import pytest

# Threads allocate side by side; then malloc_info tells of the arenas.
SCRIPT = """
import ctypes, os, sys, threading
from regard.tasks.glibc_memory import SERVER_BYTES, bound_free_memory
if sys.argv[1] == "bound":
    assert bound_free_memory(SERVER_BYTES)
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes = [ctypes.c_void_p]
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    blocks = [library.malloc(500) for _ in range(1000)]
    barrier.wait()
    for block in blocks:
        library.free(block)
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
library.fdopen.restype = ctypes.c_void_p
library.malloc_info.argtypes = [ctypes.c_int, ctypes.c_void_p]
library.fflush.argtypes = [ctypes.c_void_p]
out = library.fdopen(1, b"w")
library.malloc_info(0, out)
library.fflush(out)
"""


def arenas(how: str, **environment: str) -> int:
    words = [sys.executable, "-c", SCRIPT, how]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return len(re.findall(r"<heap nr=", done.stdout))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory is not glibc's")
def test_threads_share_one_arena_unless_the_environment_says_otherwise() -> None:
    assert arenas("free") > 2  # as it is by default
    assert arenas("bound") == 1
    assert arenas("bound", MALLOC_ARENA_MAX="4") > 2
    assert arenas("bound", GLIBC_TUNABLES="glibc.malloc.arena_max=4") > 2
    assert arenas("bound", MALLOC_ARENA_MAX="") == 1


FAULTS = """
import ctypes, resource, sys
from regard.tasks import glibc_memory
assert glibc_memory.bound_free_memory(getattr(glibc_memory, sys.argv[1]))
library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
library.free.argtypes, library.memset.argtypes = [ctypes.c_void_p], [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
size, steps = 8 << 20, 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(steps):
    tensors = [library.malloc(size) for _ in range(4)]
    for each in tensors:
        library.memset(each, 1, size)
    for each in tensors:
        library.free(each)
pages = 4 * size / resource.getpagesize()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / pages / steps)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory is not glibc's")
def test_a_training_reuses_the_memory_of_its_last_step() -> None:
    """Pages of each step that are new, as a part of all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | {"GLIBC_TUNABLES": ""}
    new = {
        name: float(
            subprocess.run([sys.executable, "-c", FAULTS, name], capture_output=True, text=True, check=True, env=environment).stdout
        )
        for name in ("SERVER_BYTES", "TRAINING_BYTES")
    }
    assert 5 * new["TRAINING_BYTES"] < new["SERVER_BYTES"]
