"""A worker that is a process of its own on this machine: one line of JSON in for each job, one out for each answer."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from regard.errors import RegardError, TrainingError
from regard.jobs.pool import Answer, Job, WorkerLost
from regard.strict_json import parse_json

PREFIX = "regard: "
LAST_BYTES = 2000


class ProcessWorker:
    """A Python process that calls `answer_jobs`.

    It has a session of its own, so that Ctrl-C on the terminal does not reach it, and so that no process it started outlives it.

    Args:
        words: of its command, without the interpreter and `-m`: a module and its arguments.
        environment: variables to set in it.
        folder: to start it in; None: this process's.

    Example:
        >>> worker = ProcessWorker(["regard", "no-such-command"])
        >>> worker.call({})
        Traceback (most recent call last):
            ...
        regard.errors.TrainingError: error: No such command 'no-such-command'.
        >>> worker.close()
    """

    def __init__(self, words: Sequence[str], environment: Mapping[str, str] | None = None, folder: Path | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._told, self._killed, self._ending = 0, False, threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            start_new_session=True,
        )

    def ready(self, seconds: float) -> bool:
        """Say that it is there: it is started at once."""
        return True

    def call(self, job: Job) -> Answer:
        """Do a job; what the process writes to standard error meanwhile is under "said" in the answer.

        Raises:
            WorkerLost: the process was killed.
            TrainingError: it ended of itself; holds its last words, and its exit code.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = b""
        with suppress(OSError, ValueError):  # it has ended, or been closed
            self._process.stdin.write(json.dumps(dict(job)).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._why()
        answer = parse_json(line)
        if said := self._new_words():
            answer["said"] = said
        return answer

    def stop(self) -> None:
        """Send SIGTERM."""
        self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """Kill the process and all that it has started."""
        with self._ending:
            self._kill()
            for stream in (self._process.stdin, self._process.stdout, self._said):
                assert stream is not None
                with suppress(OSError):  # what the dead will not read any more
                    stream.close()

    def _kill(self) -> None:
        if not self._killed:  # once: later the number may be that of another group
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._killed = True
        self._process.wait()

    def _why(self) -> WorkerLost | TrainingError:
        with suppress(subprocess.TimeoutExpired):  # it has closed its output, and may still be about to end
            self._process.wait(timeout=10)
        with self._ending:
            if self._said.closed:
                return WorkerLost("closed")
            code = self._process.poll()
            self._kill()
            said = self._new_words()
        if code is None or code < 0:
            return WorkerLost("killed" if code is None else f"signal {-code}")
        error = TrainingError(said[-1] if said else f"a worker ended with {code}")
        error.exit_code = code or 1
        return error

    def _new_words(self) -> list[str]:
        size = os.fstat(self._said.fileno()).st_size
        start = max(self._told, size - LAST_BYTES)
        found, self._told = os.pread(self._said.fileno(), size - start, start), size
        return [line.removeprefix(PREFIX) for line in found.decode("utf-8", errors="replace").splitlines() if line.strip()]


def answer_jobs(work: Callable[[Job], Answer]) -> NoReturn:
    """Do the jobs that the process which started this one sends, until it ends or has no more; then this process ends, too.

    Args:
        work: does one, in the main thread. A `RegardError` is the answer {"error": its message}; any other exception ends the process.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what is printed is no answer
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        with suppress(OSError), os.fdopen(os.dup(0), "rb") as lines:
            for line in lines:
                jobs.put(line)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)  # with what it has started
        os._exit(0)

    threading.Thread(target=read, name="regard-jobs", daemon=True).start()
    while True:
        job = parse_json(jobs.get())
        try:
            answer = work(job)
        except RegardError as error:
            answer = {"error": str(error)}
        answers.write(json.dumps(answer).encode() + b"\n")
