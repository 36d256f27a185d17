"""The measurement beside other programs leaves none of them behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
sys.path.insert(0, sys.argv[1])
import busy
with busy.beside("2") as loops:
    print(*loops, flush=True)
    time.sleep(600)
"""


def alive(process: int) -> bool:
    """Whether a process is at work; one that nobody has waited for yet is not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_other_programs_end_with_the_measurement(number: signal.Signals) -> None:
    folder = Path(__file__).parents[2] / "benchmarks"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdout=subprocess.PIPE, text=True) as measurement:
        assert measurement.stdout is not None
        loops = [int(word) for word in measurement.stdout.readline().split()]
        try:
            assert len(loops) == 2
            assert all(map(alive, loops))
            measurement.send_signal(number)
            measurement.wait()
            deadline = time.monotonic() + 30
            while any(map(alive, loops)) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not any(map(alive, loops))
        finally:
            measurement.kill()
            for loop in filter(alive, loops):
                os.kill(loop, signal.SIGKILL)
