"""Run jobs on many processes or machines: each once, and again if its worker was lost.

Workers are processes that read jobs as JSON from a pipe, on this machine or, with Ray, on all machines of a cluster.
"""

from regard.jobs.opening import open_pool
from regard.jobs.pool import Pool, Worker, WorkerLost
from regard.jobs.process_worker import ProcessWorker

__all__ = ["Pool", "ProcessWorker", "Worker", "WorkerLost", "open_pool"]


def __dir__() -> list[str]:
    return sorted(__all__)
