"""Work in many pieces on many processes or machines: each piece done once, and again where its worker was lost.

Workers are processes that read jobs as JSON from a pipe. They run on this machine or, by Ray, on all machines of a cluster; what hands out
the jobs is the same.
"""

from regard.jobs.places import open_pool
from regard.jobs.pool import Pool, Worker, WorkerLost
from regard.jobs.process_worker import ProcessWorker

__all__ = ["Pool", "ProcessWorker", "Worker", "WorkerLost", "open_pool"]


def __dir__() -> list[str]:
    return sorted(__all__)
