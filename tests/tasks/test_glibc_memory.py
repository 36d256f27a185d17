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
from regard.tasks.glibc_memory import bound_free_memory
if sys.argv[1] == "bound":
    assert bound_free_memory()
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
