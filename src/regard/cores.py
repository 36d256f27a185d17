"""How many cores this process may use (its CPU affinity, and the CPU quota of its container), and threads of torch."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

THREADS = "OMP_NUM_THREADS"
PRODUCTS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
_KEPT = "256"
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


def limit_products(entries: str = _KEPT) -> None:
    """Set how many products of matrices in bfloat16 oneDNN keeps ready; a number that the user has set stays.

    Every batch has its own shapes of products, and what is kept of them divides the heap: with 1,024 entries a process grows to
    gigabytes, mostly free (docs/log.md). With 256 instead of 512, two workers hold a quarter less and train as fast; recurrent models,
    whose single steps need many products, lose 3 to 5 % with fewer. Transformers lose nothing.

    Args:
        entries: has an effect before the first product.

    Example:
        >>> limit_products()
    """
    if os.environ.get(PRODUCTS, _KEPT) == _KEPT:
        os.environ[PRODUCTS] = entries


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give operators of torch this many threads in a block, in this thread only; several threads may be in blocks of their own.

    `torch.set_num_threads` also changes the number that threads new to torch take over, so overlapping blocks could leave them with few
    threads for good. Here only the number of this thread changes, in OpenMP and in MKL. Where torch uses another library, as on Windows,
    it is `torch.set_num_threads`.

    Example:
        >>> import torch
        >>> with torch_threads(1):
        ...     torch.get_num_threads()
        1
    """
    import torch

    before = torch.get_num_threads()  # a thread that is new to torch takes over its number here, not later in the block
    openmp, mkl = _thread_setters()
    openmp(count)
    outside = mkl(count)  # 0: MKL follows OpenMP
    try:
        yield
    finally:
        openmp(before)
        mkl(outside)


@functools.cache
def _thread_setters() -> tuple[Callable[[int], None], Callable[[int], int]]:
    # The functions of OpenMP and MKL that set the number of the calling thread; the second returns the one before. Else torch's own.
    import torch

    name = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib"}.get(sys.platform, "")

    def nothing(count: int) -> int:
        return 0

    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))  # loaded already; also finds what it is linked to
        openmp = library.omp_set_num_threads
    except (OSError, AttributeError):
        return torch.set_num_threads, nothing
    openmp.restype = None
    mkl = getattr(library, "MKL_Set_Num_Threads_Local", None)
    if mkl is None and torch.backends.mkl.is_available():
        return torch.set_num_threads, nothing
    return openmp, mkl or nothing


def _affinity() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # another system, or another version of control groups
        return ""
