"""Batches side by side: several of them with a thread each are done sooner than one after another with all threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

# Python's own part of a step is done by one thread at a time, so more would wait for each other.
MOST_WORKERS = 4


def map_batches(
    function: Callable[[Item], Result], items: Sequence[Item], *, device: torch.device, poll: Callable[[], None] | None = None
) -> list[Result]:
    """Return `function` of each item, in order, several at a time on a CPU.

    A step of a small model is too short to be shared out among threads well; whole batches are. PyTorch's threads are divided among
    the workers, and given back.

    Args:
        function: called in other threads; must not depend on what other calls do.
        items: what to call it with.
        device: where the work is done; elsewhere than on a CPU it is one item after another.
        poll: called by this thread before an item is begun; may raise to leave.

    Example:
        >>> map_batches(lambda item: item + 1, [1, 2, 3], device=torch.device("cpu"))
        [2, 3, 4]
    """
    threads = torch.get_num_threads()
    workers = min(threads, MOST_WORKERS, len(items)) if device.type == "cpu" else 1
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
