"""Run batches in parallel, one thread per batch: faster than one after another with all threads, and much faster on a busy machine.

Threads within an operator wait for the slowest; one delayed by another program delays all. So a single batch has few threads, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from regard import progress
from regard.cores import torch_threads

Item = TypeVar("Item")
Result = TypeVar("Result")

# Python's part of a step runs in one thread at a time, so more would wait for each other.
MAX_WORKERS = 4
# A batch of a few rows costs almost what a larger one does.
MIN_ROWS = 8


def cut_batches(rows: list[Item], size: int, *, device: torch.device) -> list[list[Item]]:
    """Split rows into batches of at most `size`, and at least as many as run in parallel, if there are enough rows.

    Args:
        rows: row indices, in processing order.
        size: maximum rows per batch.
        device: device of the model; batches run in parallel on CPUs only.

    Example:
        >>> cut_batches([3, 1, 4, 1, 5], 2, device=torch.device("cpu"))
        [[3, 1], [4, 1], [5]]
    """
    shares = min(torch.get_num_threads(), MAX_WORKERS) if device.type == "cpu" else 1
    size = max(1, min(size, max(MIN_ROWS, -(-len(rows) // shares))))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def map_batches(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    *,
    device: torch.device,
    poll: Callable[[], None] | None = None,
    stage: progress.Stage | None = None,
    size: Callable[[Any], int] = lambda item: 1,
) -> list[Result]:
    """Map `function` over items, in order, several at a time on a CPU.

    Steps of small models are too short to divide among threads; whole batches are not. Each batch has the threads of `few_threads`.

    Args:
        function: called in other threads; calls must be independent.
        items: its arguments.
        device: device of the model; sequential except on CPUs.
        poll: called by this thread before each item; may raise to stop.
        stage: progress stage.
        size: units per item.

    Example:
        >>> map_batches(lambda item: item + 1, [1, 2, 3], device=torch.device("cpu"))
        [2, 3, 4]
    """
    if stage is not None:
        with stage:
            return map_batches(_counted(function, stage, size), items, device=device, poll=poll)
    threads = torch.get_num_threads()
    # Under torchrun `poll` and a sharded model communicate with other processes in a fixed order.
    alone = not (dist.is_available() and dist.is_initialized())
    workers = min(threads, MAX_WORKERS, len(items)) if device.type == "cpu" and alone else 1
    poll = poll or (lambda: None)
    results: list[Result] = []
    if workers <= 1:
        with few_threads() if device.type == "cpu" and alone else nullcontext():
            for item in items:
                poll()
                results.append(function(item))
        return results

    def work(item: Item) -> Result:
        with torch_threads(_share(threads)):
            return function(item)

    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for item in items:
            if len(waiting) == 2 * workers:  # one waiting item per running one, so that no worker idles
                results.append(waiting.popleft().result())
            poll()
            # A context can be entered only once at a time: copy it.
            context = copy_context()
            waiting.append(pool.submit(lambda context=context, item=item: context.run(work, item)))
        results += [future.result() for future in waiting]
    return results


@contextmanager
def few_threads() -> Iterator[None]:
    """Give operators a part of torch's threads in a block, or in each call of a decorated function: one of up to 7, a quarter of more.

    Example:
        >>> with few_threads():
        ...     torch.get_num_threads() >= 1
        True
    """
    with torch_threads(_share(torch.get_num_threads())):
        yield


def _share(threads: int) -> int:
    return max(1, threads // MAX_WORKERS)


def _counted(function: Callable[[Item], Result], stage: progress.Stage, size: Callable[[Any], int]) -> Callable[[Item], Result]:
    def count(item: Item) -> Result:
        result = function(item)
        stage.advance(size(item))
        return result

    return count
