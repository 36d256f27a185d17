"""Lock of a run folder, released by the kernel when its process dies."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from regard.errors import ConfigError, TrainingError, WriteError, os_reason
from regard.strict_json import parse_json
from regard.training.distributed import ProcessGroup

log = logging.getLogger("regard")

LOCK = ".lock"
"""The file in a run folder that is locked; it names machine and process, and is removed when the lock is released."""
# Errors of file systems without locks: some network file systems, and FUSE.
UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# A leaving holder removes the file, possibly after we opened it: number of attempts to open it again.
TRIES = 100


@dataclass
class _Held:
    descriptor: int
    thread: int


# By the folder's real path: a thread may take its own lock again, as a task does around `train`.
_HELD: dict[Path, _Held] = {}
_GUARD = threading.Lock()


@contextmanager
def run_lock(folder: str | Path, world: ProcessGroup | None = None) -> Iterator[None]:
    """Lock a run folder in a block; under `torchrun` the first process holds the lock.

    Creates the folder if needed, and removes it if it stays empty. The lock is `flock` on `RUN/.lock`: it ends with its process, also after
    SIGKILL, and works across machines on network file systems with locks. On file systems without locks the block runs unprotected, with a
    warning. Reading a run, such as evaluation during training, needs no lock.

    Args:
        folder: the run folder.
        world: the processes of this training; None: this process alone.

    Raises:
        TrainingError: another process or thread holds the lock; the message names process and machine.
        ConfigError: the folder is a file, or cannot be created.
        WriteError: the folder cannot be written to.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with run_lock(folder):
        ...     [path.name for path in Path(folder).iterdir()]
        ['.lock']
        >>> list(Path(folder).iterdir())
        []
    """
    with ExitStack() as stack:

        def take() -> int:
            stack.enter_context(_lock(Path(folder)))
            return 0

        (world or ProcessGroup()).on_main(take)
        yield


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    place, me = folder.resolve(), threading.get_ident()
    with _GUARD:
        held = _HELD.get(place)
        if held is None:
            made = _make(folder)
            _HELD[place] = _Held(_open(folder), me)
        elif held.thread != me:
            raise _in_use(folder, _holder(folder / LOCK))
    if held is not None:  # released by the outermost holder
        yield
        return
    try:
        yield
    finally:
        with _GUARD:
            _release(place, _HELD.pop(place).descriptor)
            if made:
                with suppress(OSError):  # a run uses the folder now
                    place.rmdir()


def _make(folder: Path) -> bool:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder}: exists and is not a folder; choose another")
    if folder.is_dir():
        return False
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({os_reason(folder, error)})") from error
    return True


def _open(folder: Path) -> int:
    """Return the descriptor of the locked file."""
    path = folder / LOCK
    for _ in range(TRIES):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # the previous holder removed its folder
            folder.mkdir(parents=True, exist_ok=True)
            continue
        except OSError as error:
            raise WriteError(f"{folder}: cannot be written ({os_reason(folder, error)})") from error
        if _locked(folder, descriptor) and _still_there(path, descriptor):
            with suppress(OSError):  # on a full disk the lock has no holder's name, but works
                os.ftruncate(descriptor, 0)
                os.write(descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode())
            return descriptor
        os.close(descriptor)
    raise _in_use(folder, {})


def _locked(folder: Path, descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise _in_use(folder, _holder(folder / LOCK)) from error
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            os.close(descriptor)
            raise WriteError(f"{folder}: cannot be locked ({error.strerror})") from error
        log.warning(
            "%s: this file system has no locks (%s); make sure that no other training writes to this folder", folder, error.strerror
        )
    return True


def _still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _release(folder: Path, descriptor: int) -> None:
    # Removed while locked: a process that opened it meanwhile notices, and opens a new one.
    with suppress(OSError):
        if _still_there(folder / LOCK, descriptor):
            (folder / LOCK).unlink()
    os.close(descriptor)


def _holder(path: Path) -> dict[str, object]:
    try:
        found = parse_json(path.read_bytes()[:1000])
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _in_use(folder: Path, holder: dict[str, object]) -> TrainingError:
    pid, host = holder.get("pid"), holder.get("host")
    who = f" (process {pid} on {host})" if isinstance(pid, int) and isinstance(host, str) and host.isprintable() else ""
    return TrainingError(f"{folder}: another process uses this folder{who}; wait until it ends, or choose another")


def _forget() -> None:
    # A forked child shares the locked file and would keep the lock after its parent's death.
    for held in _HELD.values():
        os.close(held.descriptor)
    _HELD.clear()


os.register_at_fork(after_in_child=_forget)
