"""Native code under the address and undefined-behaviour sanitizers: wrong calls, right calls at odd sizes, and whole decodings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.ops.kernels import native
from tests.trust.conftest import FULL, Check

ROOT = Path(__file__).parents[2]
SOURCES = Path(native.__file__).parent / "csrc"
# Not optimised: what is read and written is the same, and it compiles in a quarter of the time.
FLAGS = ["-O0", "-g", "-std=gnu11", "-ffp-contract=fast", "-fvisibility=hidden", "-Wno-psabi", "-fopenmp", "-fPIC", "-shared"]
SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


def runtime(compiler: str, name: str) -> str:
    """Return where a compiler keeps a library; its bare name where it has none."""
    return subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def preload() -> str:
    """What must be loaded before Python is."""
    compiler = shutil.which("gcc")
    if sys.platform != "linux" or compiler is None or native.library() is None:
        pytest.skip("not run: needs Linux, gcc and the native library")
    found = [runtime(compiler, name) for name in ("libasan.so", "libubsan.so")]
    if not all(os.path.isabs(path) for path in found):
        pytest.skip("not run: this gcc has no sanitizers")
    return " ".join(found)


def build(folder: Path, *, whole: bool) -> Path:
    """Compile the kernels with sanitizers; not `whole`: without area attention, for the instructions that every processor has."""
    files = sorted(path.as_posix() for path in SOURCES.glob("*.c"))
    options = [*FLAGS, *SANITIZE, *([] if whole else ["-DREGARD_BASELINE", "-DREGARD_WITHOUT_AREA"])]
    done = subprocess.run(["gcc", *options, *files, "-lm", "-o", str(folder / "_cpu.san.so")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, preload: str, *parts: str) -> subprocess.CompletedProcess[str]:
    """Run parts of `tests.trust.sanitized` with the library of a folder."""
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1", "LD_PRELOAD": preload}
    command = [sys.executable, "-m", "tests.trust.sanitized", str(folder), *parts]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **options}, capture_output=True, text=True, check=False)


@pytest.mark.timeout(1500 if FULL else 300)
def test_no_call_reads_or_writes_where_it_must_not(tmp_path: Path, preload: str, check: Callable[..., Check]) -> None:
    c = check(
        "numerics", "native code under address and undefined-behaviour sanitizers: wrong calls, odd sizes, decodings", cases=500, quick=90
    )
    build(tmp_path, whole=FULL)
    parts = ["refused", "operations", "decodings", "least", "operations"] if FULL else ["refused"]
    done = run(tmp_path, preload, *parts, "planted")
    lines = done.stdout.split("\n")
    said = [line.split() for line in lines if line.split(" ")[0] in (*parts, "planted")]
    # The last part reads one number too many, which must be seen, and nothing before it.
    for part, line in zip(parts, [*said, *([] for _ in parts)], strict=False):
        right = line[:1] == [part]
        for number in range(int(line[1]) if right else 1):
            c.case(f"{part} {number}", wrong=None if right else done.stderr[:2000])
    assert [line[0] for line in said] == parts
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
