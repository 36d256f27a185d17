"""Runs a module as `python -m` does, in a process that ends with its parent: `python -m regard.jobs.child MODULE ARGUMENTS`.

Standard input is a pipe from the parent. It is watched from the start, because the module may take seconds to import.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import sys
import threading

INTERVAL = 1000
"""Milliseconds between two looks for the parent, for systems that report a closed pipe to those who read it only."""


def _watch(parent: int) -> None:
    """Wait until the parent is gone or has closed the pipe, then end this process, with its group if it leads one."""
    poll = select.poll()
    poll.register(os.dup(0), select.POLLHUP)
    while not poll.poll(INTERVAL) and os.getppid() == parent:
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=_watch, args=(os.getppid(),), name="regard-parent", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
