"""Freed memory that the C library holds between blocks that stay."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from regard.training import process_memory
from regard.training.process_memory import FreedMemory

HOLES = """
import torch
from regard.training.process_memory import FreedMemory, resident_bytes

blocks = [torch.ones(250_000) for _ in range(200)]  # 200 MB
kept = blocks[::20]
del blocks
before = resident_bytes()
FreedMemory(least=1).bound()
print(before - resident_bytes(), sum(block.sum().item() for block in kept))
"""


@pytest.mark.skipif(not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="needs glibc")
def test_holes_are_returned_and_what_is_in_use_stays() -> None:
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "1073741824"}
    found = subprocess.run([sys.executable, "-c", HOLES], env=environment, capture_output=True, text=True, check=True)
    returned, total = found.stdout.split()
    assert int(returned) > 100_000_000
    assert float(total) == 2_500_000


def test_it_waits_until_the_process_has_grown_by_half(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, returned = iter([90, 101, 100, 149, 151, 80, 119, 121, 70]), list[int]()
    monkeypatch.setattr(process_memory, "resident_bytes", lambda: next(sizes))
    monkeypatch.setattr(process_memory, "return_freed_memory", lambda: returned.append(1) or True)
    freed, seen = FreedMemory(least=100), list[int]()
    for _ in range(6):
        freed.bound()
        seen.append(len(returned))
    assert seen == [0, 1, 1, 2, 2, 3]
