"""Files and folders that users name: opened without an endless wait or an endless device; what is in a folder."""

from __future__ import annotations

import errno
import io
import os
import stat
import threading
from pathlib import Path

from regard.errors import CheckpointError
from regard.progress import message

LOST_AND_FOUND = "lost+found"
PATIENCE_SECONDS = 1.0
"""Seconds to wait for the writer of a pipe before a message says so."""


def open_input(path: str | Path) -> io.BufferedReader:
    """Open a file to read it once from beginning to end.

    A pipe, such as `<(...)` of a shell, is waited for until a program writes to it; after `PATIENCE_SECONDS` a message says so.

    Raises:
        OSError: it cannot be opened, or is a device, which has no end; `/dev/null` and terminals have one.

    Example:
        >>> with open_input(os.devnull) as file:
        ...     file.read()
        b''
    """
    check_name(path)
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
        if is_device(os.fstat(file.fileno())) and not file.isatty():
            file.close()
            raise OSError(errno.EINVAL, "is a device, expected a file")
        return file
    told = threading.Timer(PATIENCE_SECONDS, message, (f"{path}: waiting for a program that writes to this pipe",), {"warning": True})
    told.daemon = True
    told.start()
    try:
        return open(path, "rb")
    finally:
        told.cancel()


def check_name(path: object) -> None:
    """Refuse what is no name of a file; a number would be taken for a file that is already open.

    Raises:
        OSError: it is none.

    Example:
        >>> check_name("a.txt")
    """
    if not isinstance(path, str | os.PathLike):
        raise OSError(errno.EINVAL, "expected the name of a file")


def folder_names(folder: Path) -> set[str]:
    """Return the names in a folder, but for `lost+found`, which a new ext4 file system has: a fresh mount point is empty.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Path(folder, "lost+found").mkdir()
        ...     folder_names(Path(folder))
        set()
    """
    return {path.name for path in folder.iterdir() if path.name != LOST_AND_FOUND or not path.is_dir()}


def check_run_exists(folder: Path) -> Path:
    """Return the folder of a run.

    Raises:
        CheckpointError: there is no such folder.

    Example:
        >>> check_run_exists(Path("no-such-run"))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such run folder")
    return folder


def is_device(found: os.stat_result) -> bool:
    """Return whether a file is a device other than `/dev/null`.

    Example:
        >>> is_device(os.stat(os.devnull)), is_device(os.stat("."))
        (False, False)
    """
    special = stat.S_ISCHR(found.st_mode) or stat.S_ISBLK(found.st_mode)
    return special and found.st_rdev != os.stat(os.devnull).st_rdev
