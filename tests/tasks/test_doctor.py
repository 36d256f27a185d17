"""What the installation says of itself."""

from __future__ import annotations

import platform
import sys

import pytest
import torch

import regard
from regard.tasks.doctor import report


def test_the_report_names_versions_device_threads_and_the_product_in_use() -> None:
    lines = report()
    assert lines[0].startswith(f"regard {regard.__version__}, Python {platform.python_version()}")
    assert f"torch {torch.__version__}" in lines
    assert any(line.startswith(f"threads: {torch.get_num_threads()} ") for line in lines)
    assert any(line.startswith("float32 products on the CPU: ") for line in lines)
    assert f"interpreter: {sys.executable}" in lines
    assert [line for line in lines if "\n" in line] == []


def test_the_device_is_the_one_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    assert "device: cpu" in report()
