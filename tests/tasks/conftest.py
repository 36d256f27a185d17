"""What the tests of tasks run under: the processor, no waiting for the disk, and one trained run that nobody changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.tiny import trained


@pytest.fixture(scope="package", autouse=True)
def _on_the_cpu_without_waiting_for_the_disk() -> Iterator[None]:
    # Bringing files to disk is tested where it is done, in regard.training.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="package")
def run_folder(tmp_path_factory: pytest.TempPathFactory, _on_the_cpu_without_waiting_for_the_disk: None) -> Path:
    """Return a run of two updates with a character vocabulary; copy it before you change it."""
    return trained(tmp_path_factory.mktemp("trained"))
