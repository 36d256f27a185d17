"""Opens pools: on this machine's cores, or on a Ray cluster; how many threads and which device each worker has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from regard.cores import THREADS, limit_threads, usable_cores
from regard.errors import ConfigError
from regard.jobs.pool import Pool, Worker
from regard.jobs.process_worker import ProcessWorker
from regard.jobs.ray_pool import open_ray_pool


def open_pool(
    words: Sequence[str],
    *,
    on: str | None = None,
    workers: int | None = None,
    cpus: int | None = None,
    gpus: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Pool:
    """Return workers that run a command which calls `answer_jobs`.

    Args:
        words: the command, see `ProcessWorker`.
        on: None for this machine; "ray" for this machine's Ray cluster, or a temporary one; or the address of a cluster, HOST:PORT or
            ray://HOST:PORT. Its machines need this installation, and these folders at the same paths.
        workers: number of workers; None: one here, on Ray as many as currently fit.
        cpus: threads per worker; None: all cores here, divided among them; one on Ray.
        gpus: devices that Ray reserves per worker; local workers share the available ones.
        environment: variables to set in the workers.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster at this address.

    Example:
        >>> open_pool(["regard", "--version"], workers=3).count
        3
    """
    environment = {"REGARD_QUIET": "1", **(environment or {})}
    if on is not None:
        needs = {"num_cpus": cpus or 1, "num_gpus": gpus or 0}
        return open_ray_pool(words, on, workers, needs, {THREADS: str(needs["num_cpus"]), **environment})
    if gpus is not None:
        raise ConfigError("--gpus: only with --on; without it the workers divide the GPUs of this machine")
    count = workers or 1
    chosen = THREADS in os.environ and not limit_threads()
    threads = {THREADS: str(cpus)} if cpus else {} if chosen else {THREADS: str(max(1, usable_cores() // count))}

    def start(number: int) -> Worker:
        return ProcessWorker(words, {**environment, **threads, **(_device(number) if count > 1 else {})})

    return Pool(start, count)


def _device(number: int) -> dict[str, str]:
    """Return the environment that assigns a device to a worker, if there are any."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = [str(each) for each in range(torch.cuda.device_count())] if visible is None else visible.split(",")
    return {"CUDA_VISIBLE_DEVICES": devices[number % len(devices)]} if any(devices) else {}
