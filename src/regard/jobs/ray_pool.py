"""A pool of workers on a Ray cluster, each a process there."""

from __future__ import annotations

import importlib
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from regard import progress
from regard.errors import ConfigError, RegardError, TrainingError, missing_extra
from regard.jobs.pool import Answer, Job, Pool, WorkerLost
from regard.jobs.process_worker import ProcessWorker

CONNECT_SECONDS = 10.0
"""Seconds to wait for a connection, and for the first bytes of the program that listens."""
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP2_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""An empty SETTINGS frame: three bytes of length, type 4, flags, four bytes of stream; both sides begin with one."""
RAY_TOKEN = "~/.ray/auth_token"


def open_ray_pool(words: Sequence[str], on: str, workers: int | None, needs: dict[str, int], environment: dict[str, str]) -> Pool:
    """Return workers on a Ray cluster; see `regard.jobs.open_pool`.

    Args:
        words: see `ProcessWorker`.
        on: "ray", or the address of a cluster.
        workers: number of workers; None: as many as currently fit.
        needs: "num_cpus" and "num_gpus" that Ray reserves per worker.
        environment: variables to set in the workers.

    Raises:
        MissingExtraError: Ray is not installed.
        ConfigError: no cluster at this address, or no room for a worker.
    """
    # Before importing Ray: no usage reports, and no changes to devices that were not requested.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with progress.stage("Starting Ray" if on == "ray" else f"Connecting to Ray at {on}"):
        ray = _connect(on)
    there = ray.cluster_resources()
    room = [int(there.get(kind, 0) // need) for kind, need in zip(("CPU", "GPU"), needs.values(), strict=True) if need]
    if not min(room) and workers is None:
        raise ConfigError(f"--on {on}: no machine has room for a worker of {needs['num_cpus']} cores and {needs['num_gpus']} GPUs")
    remote = ray.remote(RemoteWorker).options(max_concurrency=2, **needs)
    return Pool(lambda number: RayWorker(ray, remote.remote(list(words), environment, str(Path.cwd()))), workers or min(room))


def _connect(on: str) -> Any:
    """Import Ray and join or start its cluster."""
    # `ray start` asks for the token of this file if there is one; Ray itself sends it only where it looks for a cluster without an address.
    if on != "ray" and os.path.isfile(os.path.expanduser(RAY_TOKEN)):
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError as error:
        raise missing_extra(f"--on {on} needs ray", "ray") from error
    if on != "ray" and _split(on) is None:
        raise ConfigError(f'--on {on}: expected "ray" or the address of a Ray cluster, HOST:PORT or ray://HOST:PORT')
    if not ray.is_initialized():
        address, origin = _own_cluster() if on == "ray" else (on, "")
        try:
            if (place := _split(address)) is not None:  # Ray itself would wait for minutes
                check_listener(*place)
            ray.init(None if on == "ray" else on, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            where = f"at {address}, of {origin}" if origin else "there"
            raise ConfigError(f"--on {on}: no Ray cluster {where} ({' '.join(str(error).split())[:200]})") from error
    return ray


def _split(address: str) -> tuple[str, int] | None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() and int(port) < 2**16 else None


def _own_cluster() -> tuple[str, str]:
    """Return the address of the cluster that this machine belongs to, as Ray finds it, and where it is named; empty if there is none."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address, "RAY_ADDRESS"
    file = Path(os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp", "ray", "ray_current_cluster")
    try:
        return file.read_text(encoding="utf-8").strip(), f"{file}, which `ray stop` removes"
    except (OSError, ValueError):
        return "", ""


def check_listener(host: str, port: int) -> None:
    """Check that the program at an address speaks HTTP/2, as Ray does (gRPC).

    Raises:
        OSError: nobody listens there, or another program, or it does not answer.
    """
    with socket.create_connection((host, port), timeout=CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "1":  # encrypted: Ray itself must say hello
            return
        connection.sendall(HTTP2_PREFACE + HTTP2_SETTINGS)
        found, until = b"", time.monotonic() + CONNECT_SECONDS
        while len(found) < len(HTTP2_SETTINGS):
            connection.settimeout(max(until - time.monotonic(), 0.001))
            try:
                more = connection.recv(len(HTTP2_SETTINGS) - len(found))
            except TimeoutError as error:
                raise OSError(f"another program listens there: no answer in {CONNECT_SECONDS:.0f} s") from error
            if not more:
                break
            found += more
    if found[3:4] != HTTP2_SETTINGS[3:4] or found[5:] != HTTP2_SETTINGS[5:]:
        raise OSError("another program listens there, which does not speak Ray's protocol")


class RemoteWorker:
    """The Ray actor of a worker: runs the process that does the work.

    Args:
        words: see `ProcessWorker`.
        environment: environment of the process.
        folder: working directory of the process.
    """

    def __init__(self, words: list[str], environment: dict[str, str], folder: str) -> None:
        self._worker = ProcessWorker(words, environment, Path(folder))

    def host(self) -> str:
        """Return the machine's name."""
        return socket.gethostname()

    def call(self, job: Job) -> Answer:
        """Do a job; the answer reports a lost worker or a refusal."""
        try:
            return {"answer": self._worker.call(job)}
        except WorkerLost as lost:
            return {"lost": str(lost)}
        except RegardError as error:
            return {"refused": str(error), "exit_code": error.exit_code}

    def stop(self) -> None:
        """Ask the worker to stop its job."""
        self._worker.stop()


class RayWorker:
    """A worker in a Ray cluster.

    Args:
        ray: the module.
        actor: a `RemoteWorker`, possibly not yet scheduled.
    """

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray, self._actor, self._host = ray, actor, actor.host.remote()

    def ready(self, seconds: float) -> bool:
        """Wait up to `seconds` to be scheduled."""
        found, _ = self._ray.wait([self._host], timeout=seconds)
        if found:
            self._get(self._host)
        return bool(found)

    def call(self, job: Job) -> Answer:
        """Do a job."""
        found = self._get(self._actor.call.remote(dict(job)))
        if "lost" in found:
            raise WorkerLost(found["lost"])
        if "refused" in found:
            error = TrainingError(found["refused"])
            error.exit_code = found["exit_code"]
            raise error
        return found["answer"]

    def stop(self) -> None:
        """Ask the worker to stop its job."""
        with suppress(Exception):  # it may have ended
            self._actor.stop.remote()

    def close(self) -> None:
        """Release its resources."""
        with suppress(Exception):  # it may have ended, and so may the cluster
            self._ray.kill(self._actor)

    def _get(self, reference: Any) -> Any:
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            # Of a lost process the first line says so, of an error in it the last one.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            lost = isinstance(error, self._ray.exceptions.RayActorError)
            raise WorkerLost(lines[0 if lost else -1].strip().rstrip(".")) from error
