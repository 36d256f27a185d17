"""Batches side by side, a thread each: sooner done than one after another with all threads, and far sooner on a busy machine.

Threads that share an operator wait for the last of them at its end; one that another program holds up holds up all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from regard import progress

Item = TypeVar("Item")
Result = TypeVar("Result")

# Python's own part of a step is done by one thread at a time, so more would wait for each other.
MAX_WORKERS = 4
# A batch of a few rows costs almost what a larger one does.
MIN_ROWS = 8


def cut_batches(rows: list[Item], size: int, *, device: torch.device) -> list[list[Item]]:
    """Cut rows into batches of at most `size`, and into no fewer than are worked on at a time where there are rows enough for that.

    Args:
        rows: in the order they are to be worked on.
        size: rows of a batch at most.
        device: where the work is done; only on a CPU are several worked on at a time.

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
    """Return `function` of each item, in order, several at a time on a CPU.

    A step of a small model is too short to be shared out among threads well; whole batches are. PyTorch's threads are divided among
    the workers, and given back.

    Args:
        function: called in other threads; must not depend on what other calls do.
        items: what to call it with.
        device: where the work is done; elsewhere than on a CPU it is one item after another.
        poll: called by this thread before an item is begun; may raise to leave.
        stage: open while it lasts.
        size: how many of its units an item counts.

    Example:
        >>> map_batches(lambda item: item + 1, [1, 2, 3], device=torch.device("cpu"))
        [2, 3, 4]
    """
    if stage is not None:
        with stage:
            return map_batches(_counted(function, stage, size), items, device=device, poll=poll)
    threads = torch.get_num_threads()
    # Under torchrun `poll` and the hooks of a sharded model talk to the other processes, in one order.
    alone = not (dist.is_available() and dist.is_initialized())
    workers = min(threads, MAX_WORKERS, len(items)) if device.type == "cpu" and alone else 1
    poll = poll or (lambda: None)
    results: list[Result] = []
    if workers <= 1:
        for item in items:
            poll()
            results.append(function(item))
        return results

    def work(item: Item) -> Result:
        torch.set_num_threads(threads // workers)
        return function(item)

    waiting: deque[Future[Result]] = deque()
    try:
        with ThreadPoolExecutor(workers) as pool:
            for item in items:
                if len(waiting) == 2 * workers:  # one waits for each that runs: nobody idles until the oldest is done
                    results.append(waiting.popleft().result())
                poll()
                # A context can be entered once at a time: a copy for each.
                context = copy_context()
                waiting.append(pool.submit(lambda context=context, item=item: context.run(work, item)))
            results += [future.result() for future in waiting]
    finally:
        # A worker's setting is also what threads not yet born begin with.
        torch.set_num_threads(threads)
    return results


def _counted(function: Callable[[Item], Result], stage: progress.Stage, size: Callable[[Any], int]) -> Callable[[Item], Result]:
    def count(item: Item) -> Result:
        result = function(item)
        stage.advance(size(item))
        return result

    return count
