"""How many cores this process may use (its CPU affinity, and the CPU quota of its container), and threads of torch."""

from __future__ import annotations

import functools
import math
import os
import platform
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

THREADS = "OMP_NUM_THREADS"
_GROUPS, _MOUNT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Return the number of cores that this process may use, at least 1: its affinity, and no more than `quota_cores`.

    Example:
        >>> usable_cores() >= 1
        True
    """
    return min(_affinity(), quota_cores() or _affinity())


def quota_cores(groups: Path = _GROUPS, mount: Path = _MOUNT) -> int | None:
    """Return the cores that the CPU quota of the control groups allows, rounded up; None without a quota.

    Containers have a quota (`docker run --cpus 2`, a CPU limit of Kubernetes). The system then stops all threads of the group as soon
    as they have used their share of a period, whatever number of cores `os.cpu_count` reports.

    Args:
        groups: the list of this process's control groups.
        mount: folder of the control groups, version 1 or 2.

    Example:
        >>> quota_cores(Path("/nowhere")) is None
        True
    """
    allowed = list[float]()
    for line in _read(groups).splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Inside a container the folder of its own group is often the mount itself, whatever name the group has outside.
        for folder in (PurePosixPath(name), *PurePosixPath(name).parents):
            group = mount / controllers / folder.relative_to("/")
            of_version_2 = _read(group / "cpu.max")
            of_version_1 = f"{_read(group / 'cpu.cfs_quota_us')} {_read(group / 'cpu.cfs_period_us')}"
            # -1 and "max" mean no quota.
            if found := re.match(r"\s*([1-9]\d*)\s+([1-9]\d*)\s*$", of_version_1 if controllers else of_version_2):
                allowed.append(int(found[1]) / int(found[2]))
    return max(1, math.ceil(min(allowed))) if allowed else None


def processor() -> str:
    """Return the name of the processor, as the system gives it.

    Example:
        >>> processor() != ""
        True
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor() or platform.machine())


@functools.cache
def limit_threads() -> bool:
    """Set the number of OpenMP threads to the CPU quota, for torch and for child processes; return whether it was set.

    It has an effect before torch is imported. A quota that allows as many cores as there are, and a number that the user has set, change
    nothing.

    Example:
        >>> limit_threads() in (False, True)
        True
    """
    # OpenMP takes the first of a list, and no value that it cannot read.
    if re.match(r"\s*[1-9]\d*\s*(,|$)", os.environ.get(THREADS, "")) or usable_cores() == _affinity():
        return False
    os.environ[THREADS] = str(usable_cores())
    return True


class _Blocks(threading.local):
    # How deep this thread is in blocks of `torch_threads`.
    depth = 0


_LOCK = threading.Lock()
_own = _Blocks()
_open: list[int] = []  # torch's threads outside all blocks, once for each block that any thread is in


def _after_fork() -> None:
    del _open[_own.depth :]  # the blocks of threads that the child does not have
    _LOCK.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_after_fork)


def current_threads() -> int:
    """Return the number of threads of torch's operators.

    A thread that is new to torch takes over the number that was set last, in whatever thread. If that is inside a block of `torch_threads`,
    the number outside counts.

    Example:
        >>> current_threads() >= 1
        True
    """
    import torch

    with _LOCK:
        return max([torch.get_num_threads(), *([] if _own.depth else _open[:1])])


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give operators of torch this many threads in a block; several threads may be in blocks of their own.

    Example:
        >>> import torch
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    import torch

    before = current_threads()
    with _LOCK:
        outside = _open[0] if _open else before
        _open.append(outside)
        _own.depth += 1
    torch.set_num_threads(count)
    try:
        yield
    finally:
        with _LOCK:
            # Last of all blocks: new threads take over what was set last.
            _open.pop()
            _own.depth -= 1
            torch.set_num_threads(before)


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # another system, or another version of control groups
        return ""
