"""What the installation says of itself."""

from __future__ import annotations

import platform
import sys

import pytest
import torch

import regard
from regard.ops.kernels import native
from regard.tasks.doctor import report


def test_the_report_names_versions_device_threads_and_the_product_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    lines = report()
    assert lines[0].startswith(f"regard {regard.__version__}, Python {platform.python_version()}")
    assert f"torch {torch.__version__}" in lines
    assert any(line.startswith(f"threads: {torch.get_num_threads()} ") for line in lines)
    assert any(line.startswith("training on the CPU, workers: 1 process of one thread (1 core, 2 micro-batches") for line in lines)
    assert any(line.startswith("float32 products on the CPU: ") for line in lines)
    assert any(line.startswith("bfloat16 products on the CPU: ") for line in lines)
    assert f"interpreter: {sys.executable}" in lines
    assert [line for line in lines if "\n" in line] == []


@pytest.mark.skipif(native.library() is None, reason="needs the native library")
def test_the_bits_of_int8_weights_follow_the_processor() -> None:
    library = native.library()
    assert library is not None
    x86, vnni = platform.machine() in ("x86_64", "AMD64"), native.TARGETS.index("AVX-512 with VNNI")
    try:
        for target in range(len(native.TARGETS)):
            library.regard_limit(target)
            bits = 7 if x86 and 0 < library.regard_target() < vnni else 8
            assert any(line.startswith(f"int8 products on the CPU: native (weights of {bits} bits") for line in report()), target
    finally:
        library.regard_limit(len(native.TARGETS) - 1)


def test_the_device_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    assert "device: cpu" in report()


def test_the_kernels_in_use_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    expected = "used" if native.library() is not None else "not used"
    assert any(line.startswith(f"native kernels: {expected} (") for line in report())
    monkeypatch.setenv("REGARD_KERNELS", "reference")
    assert "native kernels: not used (REGARD_KERNELS=reference)" in report()
    assert "area attention on cpu: reference (forced by REGARD_KERNELS)" in report()
