"""Run work in forked processes that share this one's memory."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress

from regard.training.child_processes import wait_for

_INTERVAL = 0.1


def can_fork() -> bool:
    """Whether `in_forks` may be called here: on Linux, in the main thread.

    Example:
        >>> isinstance(can_fork(), bool)
        True
    """
    return sys.platform == "linux" and threading.current_thread() is threading.main_thread()


def in_forks(work: Callable[[int], object], count: int, poll: Callable[[], object]) -> bool:
    """Call `work` with each number below `count`, each in its own process.

    The processes end with this one. They have a single thread: `work` must not use torch or the display.

    Args:
        work: writes its results to files.
        count: number of processes.
        poll: called periodically in this process; an exception ends all.

    Returns:
        Whether every call finished; if not, call `work` here to see why.

    Example:
        >>> in_forks(lambda number: None, 2, lambda: None)
        True
    """
    parent, children = os.getpid(), set()
    try:
        for number in range(count):
            with warnings.catch_warnings():
                # Python warns of forks of a process with threads. None of their locks is needed in these.
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if child == 0:
                _serve(work, number, parent)
            children.add(child)
        whole = True
        while children:
            poll()
            time.sleep(_INTERVAL)
            for child in list(children):
                ended, code = wait_for(child, os.WNOHANG)
                if ended:
                    children.remove(child)
                    whole = whole and code == 0
        return whole
    finally:
        for child in children:
            with suppress(ProcessLookupError):  # it has ended, and the system has forgotten it
                os.kill(child, signal.SIGKILL)
            wait_for(child)


def _serve(work: Callable[[int], object], number: int, parent: int) -> None:
    """Do the work in a new process, and end it."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        set_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL))
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parent's threads do not exist here
        if os.getppid() == parent:
            work(number)
            code = 0
    finally:
        os._exit(code)
