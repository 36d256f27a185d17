"""Wait for forked processes, also where the system forgets how they ended."""

from __future__ import annotations

import os


def wait_for(process: int, options: int = 0) -> tuple[bool, int | None]:
    """Wait for a child process of this one.

    A program may be started with SIGCHLD ignored. The system then forgets a child process as soon as it ends.

    Args:
        process: its number.
        options: of `os.waitpid`, such as os.WNOHANG.

    Returns:
        Whether it has ended; its exit code, negative for a signal, None if it is still there or the code is forgotten.

    Example:
        >>> process = os.fork()
        >>> if process == 0:
        ...     os._exit(3)
        >>> wait_for(process), wait_for(process)
        ((True, 3), (True, None))
    """
    try:
        ended, status = os.waitpid(process, options)
    except ChildProcessError:
        return True, None
    return bool(ended), os.waitstatus_to_exitcode(status) if ended else None
