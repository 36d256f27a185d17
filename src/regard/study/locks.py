"""Who works on what: processes of one or many machines that share a folder take work from it, each piece once.

A claim is a file, made by an operation that fails if it is there. Who holds it touches it every few seconds; one that nobody has touched
for long was left by a process that died. It is taken over by making the next one, NAME.1.claim after NAME.0.claim: of several who try, one
can.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.strict_json import parse_json

HEARTBEAT_SECONDS = 5.0  # seconds between touches
STALE_SECONDS = 60.0  # seconds without one after which the holder is given up


@contextmanager
def hold_lock(folder: Path, name: str, *, beat: float = HEARTBEAT_SECONDS, lost: float = STALE_SECONDS) -> Iterator[bool]:
    """Hold a claim while the block runs, and give it back.

    Times are compared as the file system of the folder tells them, so the clocks of machines need not agree.

    Args:
        folder: of the claims; made if it is not there.
        name: of the work.
        beat: seconds between touches.
        lost: seconds without one after which another's claim is taken over; on the same machine one of a process that is gone is at once.

    Yields:
        Whether the claim is ours; False: another holds it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder), "a") as ours, hold_lock(Path(folder), "a") as again:
        ...     ours, again
        (True, False)
    """
    folder.mkdir(parents=True, exist_ok=True)
    newest = _newest(folder, name)
    if newest is not None and not _is_lost(newest, lost):
        yield False
        return
    number = 0 if newest is None else _number(newest) + 1
    path = folder / f"{name}.{number}.claim"
    if not _take(path):
        yield False
        return
    ended = threading.Event()
    thread = threading.Thread(target=_touch, args=(path, ended, beat), daemon=True)
    thread.start()
    try:
        yield True
    finally:
        ended.set()
        thread.join()
        for each in range(number + 1):  # ours last: until then it is held
            (folder / f"{name}.{each}.claim").unlink(missing_ok=True)


def lock_holders(folder: Path) -> dict[str, str]:
    """Return who holds which claim, as machine and process, by the name of the work.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(Path(folder), "a"):
        ...     list(lock_holders(Path(folder)))
        ['a']
    """
    names = {path.name.rsplit(".", 2)[0] for path in folder.glob("*.claim")}
    newest = {name: _newest(folder, name) for name in sorted(names)}
    found = {name: _holder(path) for name, path in newest.items() if path is not None}
    return {name: f"{held.get('host')}:{held.get('pid')}" for name, held in found.items() if held}


def _number(path: Path) -> int:
    return int(path.name.rsplit(".", 2)[1])


def _newest(folder: Path, name: str) -> Path | None:
    found = folder.glob(f"{glob.escape(name)}.*.claim")
    return max((path for path in found if path.name.rsplit(".", 2)[0] == name), key=_number, default=None)


def _take(path: Path) -> bool:
    # Whole from the first moment on: a link, unlike a file opened for writing, is never seen empty.
    draft = path.with_name(f".{uuid.uuid4().hex}")
    draft.write_text(json.dumps({"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid()}), encoding="utf-8")
    try:
        os.link(draft, path)
        return True
    except FileExistsError:
        return False
    finally:
        draft.unlink()


def _holder(path: Path) -> dict[str, object]:
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _machine() -> str:
    # Where process numbers mean the same: two containers may have one name.
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def _is_lost(path: Path, lost: float) -> bool:
    held = _holder(path)
    pid = held.get("pid")
    if held.get("machine") == _machine() and isinstance(pid, int) and pid != os.getpid():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
    probe = path.with_name(f".{uuid.uuid4().hex}")
    try:
        probe.touch()
        return probe.stat().st_mtime - path.stat().st_mtime > lost
    except FileNotFoundError:
        return False
    finally:
        probe.unlink(missing_ok=True)


def _touch(path: Path, ended: threading.Event, beat: float) -> None:
    while not ended.wait(beat):
        with suppress(OSError):
            os.utime(path)
