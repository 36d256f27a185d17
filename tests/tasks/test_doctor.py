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
    assert any(line.startswith("training on the CPU, workers: 1 process of one thread each (1 core, 4 micro-batches") for line in lines)
    assert any(line.startswith("float32 products on the CPU: ") for line in lines)
    assert any(line.startswith("bfloat16 products on the CPU: ") for line in lines)
    assert f"interpreter: {sys.executable}" in lines
    assert [line for line in lines if "\n" in line] == []


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
