"""What the tests of training run under: the processor, and no waiting for the disk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _on_the_cpu_without_waiting_for_the_disk() -> Iterator[None]:
    # Bringing files to disk matters when the machine stops, which no test can make happen; that it is done at all is tested by itself.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        patch.setattr("os.fsync", lambda descriptor: None)
        yield
