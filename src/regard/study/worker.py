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
            return do_run(job, partial(train_apart, stop=lambda: bool(stop.received)))
        except WorkerLost:  # a silently killed training is reported as a lost worker
            os.kill(os.getpid(), signal.SIGKILL)
            raise


if __name__ == "__main__":
    answer_jobs(_work)
