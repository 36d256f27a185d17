"""Worker process of studies: `python -m regard.study.worker`, started by `regard compare` with several workers."""

from __future__ import annotations

import os
import signal
from functools import partial

from regard.jobs import WorkerLost
from regard.jobs.pool import Answer, Job
from regard.jobs.process_worker import answer_jobs
from regard.study.grid import do_run, train_apart
from regard.training import StopSignal


def _work(job: Job) -> Answer:
    with StopSignal() as stop:
        try:
            answer = do_run(job, partial(train_apart, stop=lambda: bool(stop.received)))
            # A lost worker, unlike an answer, lets another one resume the run, unless the study itself was stopped.
            ended = signal.SIGTERM if answer.get("stopped") else None
        except WorkerLost:  # a silently killed training is reported as a lost worker
            answer, ended = {}, signal.SIGKILL
    if ended is not None:
        os.kill(os.getpid(), ended)
    return answer


if __name__ == "__main__":
    answer_jobs(_work)
