"""Single-thread worker processes: data-parallel training on one machine.

Threads within operators synchronise thousands of times per update: next to another program on the same cores, training slows down 20 times
and more. Processes synchronise once per update. Every batch is divided into the same micro-batches; the processes (including this one) take
them from a queue, and gradients are summed in the order of the micro-batches. So the weights do not depend on the number of processes or
the schedule.

Workers are forked after loading. Parameters, gradients and carried state are in shared memory; small records use pipes, which the kernel
closes when a process dies, so that no process waits for a dead one.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import select
import signal
import struct
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard import errors
from regard.cores import torch_threads, usable_cores
from regard.errors import RegardError, TrainingError, out_of_memory
from regard.training.child_processes import wait_for

ALIGN = 64
DONE, FAILED = b".", b"!"


class UpdateRecord(NamedTuple):
    """Description of an update.

    Attributes:
        step: its number, from 1.
        epoch: from 0.
        start: position of its first batch in the epoch's plan.
        stop: position after its last one.
        tokens: target tokens of all its batches.
        scale: loss scale of the gradient scaler; 1 without one.
    """

    step: int
    epoch: int
    start: int
    stop: int
    tokens: int
    scale: float


# A record of the queue: an update and the number of a micro-batch.
_RECORD = struct.Struct("<5qdq")


class MicroBatchSums(NamedTuple):
    """Sums over one micro-batch as in `regard.ops.SequenceLoss`; `place` is its batch's position in the plan."""

    place: int
    loss: float
    nll: float
    tokens: float
    correct: float


class WorkerLost(Exception):
    """Raised when a worker process has died; the message says how."""


def shared_zeros(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return zero tensors of the same shapes and dtypes in memory shared with forked processes.

    The memory is anonymous and freed with the last process.

    Example:
        >>> shared_zeros([torch.ones(2, 3)])[0].sum().item()
        0.0
    """
    starts, size = [], 0
    for tensor in tensors:
        starts.append(size)
        size += -(-tensor.nbytes // ALIGN) * ALIGN
    memory = torch.frombuffer(mmap.mmap(-1, max(size, ALIGN)), dtype=torch.uint8)
    return [memory[start : start + each.nbytes].view(each.dtype).view(each.shape) for each, start in zip(tensors, starts, strict=True)]


class Workers:
    """Processes that compute the gradients of an update: this one and `count - 1` workers.

    A context manager that starts and stops the workers. Inside it torch has one thread; `threads_for_evaluation` gives it one per process.

    Args:
        model: on the CPU; its parameters move to shared memory.
        compute: (update, number of a micro-batch) -> sums; leaves the micro-batch's gradients in the parameters.
        micro_batches: of each batch.
        batches: of an update, at most.
        count: number of processes.
        carried: see `regard.training.TrainingJob`; moves to shared memory.
    """

    def __init__(
        self,
        model: nn.Module,
        compute: Callable[[UpdateRecord, int], list[MicroBatchSums]],
        *,
        micro_batches: int,
        batches: int,
        count: int,
        carried: Mapping[str, Tensor],
    ) -> None:
        self.count, self._compute, self._parts = count, compute, micro_batches
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kept = model.state_dict(keep_vars=True)
        # Running means, which a forward pass changes. Each micro-batch starts from the previous update's; their mean is kept.
        self._buffers = [buffer for name, buffer in model.named_buffers() if name in kept]
        self._one_thread = torch_threads(1)
        self._children: dict[int, int] = {}  # process by the descriptor of its answers
        self._queue: tuple[int, int] | None = None
        if count > 1:
            for tensor in (*self._parameters, *carried.values()):
                home = shared_zeros([tensor])[0]
                home.copy_(tensor.detach())
                tensor.data = home
        # A single process adds each micro-batch's gradients before computing the next.
        own = [shared_zeros(self._parameters) for _ in range(micro_batches if count > 1 else 1)]
        self._gradients = own if count > 1 else own * micro_batches
        self._states = [shared_zeros(self._buffers) for _ in range(micro_batches + 1)]  # the last: those of the update before
        self._has, self._sums = shared_zeros(
            [
                torch.empty(micro_batches, len(self._parameters), dtype=torch.bool),
                torch.empty(micro_batches, batches, len(MicroBatchSums._fields), dtype=torch.float64),
            ]
        )

    def __enter__(self) -> Workers:
        self._one_thread.__enter__()
        if self.count > 1:
            try:
                self._start()
            except OSError as error:
                self.__exit__()
                raise TrainingError(f"training.workers: {self.count} processes cannot be started ({error.strerror}); try fewer") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._one_thread.__exit__(None, None, None)
        if self._queue is not None:
            gc.unfreeze()
            for descriptor in self._queue:
                os.close(descriptor)
        self._queue = None
        for descriptor, process in self._children.items():
            os.close(descriptor)
            # This process has the same data: no need to wait.
            with suppress(ProcessLookupError):  # it has ended, and the system has forgotten it
                os.kill(process, signal.SIGKILL)
            wait_for(process)
        self._children.clear()

    def gradients(self, update: UpdateRecord) -> list[MicroBatchSums]:
        """Set the gradients of an update, summed in the order of the micro-batches; return their sums.

        Raises:
            WorkerLost: a worker process has died.
            MemoryError: a worker ran out of memory.
            RegardError: raised by a worker; any other exception becomes a RuntimeError with its traceback.
        """
        for own, state in zip(self._buffers, self._states[-1], strict=True):
            state.copy_(own)
        self._sums.fill_(-1)
        totals: list[Tensor | None] = [None] * len(self._parameters)
        if self._queue is not None:
            os.write(self._queue[1], b"".join(_RECORD.pack(*update, part) for part in range(self._parts)))
            left = self._parts - self._wait(0)  # also detects idle workers that died
            while left:
                if record := _take(self._queue[0]):
                    self._run(record)
                    left -= 1
                else:
                    left -= self._wait()
        for part in range(self._parts):
            if self._queue is None:
                self._run(_RECORD.pack(*update, part))
            self._add(part, totals)
        for parameter, total in zip(self._parameters, totals, strict=True):
            parameter.grad = total  # None: the optimizer skips it
        self._merge_buffers()
        rows = [row for part in self._sums.tolist() for row in part if row[0] >= 0]
        return [
            MicroBatchSums(int(place), *row) for place, *row in sorted(rows, key=lambda row: row[0])
        ]  # stable: in the order of micro-batches

    def threads_for_evaluation(self) -> AbstractContextManager[None]:
        """Give torch one thread per process, but no more than there are cores, for a `with` block in which workers wait."""
        return torch_threads(min(self.count, usable_cores()))

    @torch.no_grad()
    def _run(self, record: bytes) -> None:
        *numbers, part = _RECORD.unpack(record)
        for own, state in zip(self._buffers, self._states[-1], strict=True):
            own.copy_(state)
        for parameter in self._parameters:
            parameter.grad = None
        with torch.enable_grad():
            found = self._compute(UpdateRecord(*numbers), part)
        for row, sums in zip(self._sums[part], found, strict=False):
            row.copy_(torch.tensor(sums, dtype=torch.float64))
        self._has[part].copy_(torch.tensor([parameter.grad is not None for parameter in self._parameters]))
        for parameter, gradient in zip(self._parameters, self._gradients[part], strict=True):
            if parameter.grad is not None:
                gradient.copy_(parameter.grad)
            parameter.grad = None
        for own, state in zip(self._buffers, self._states[part], strict=True):
            state.copy_(own)

    @torch.no_grad()
    def _add(self, part: int, totals: list[Tensor | None]) -> None:
        for number, (has, gradient) in enumerate(zip(self._has[part].tolist(), self._gradients[part], strict=True)):
            total = totals[number]
            if has and total is not None:
                total.add_(gradient)
            elif has:
                totals[number] = gradient.clone() if self._queue is None else gradient

    @torch.no_grad()
    def _merge_buffers(self) -> None:
        # An empty micro-batch changes nothing.
        used = [part for part in range(self._parts) if self._sums[part, 0, 0] >= 0]
        for number, own in enumerate(self._buffers):
            values = [self._states[part][number] for part in used]
            own.copy_(torch.stack(values).mean(0) if own.is_floating_point() else values[0])

    def _wait(self, milliseconds: int | None = None) -> int:
        """Wait for answers of the workers; return the number of finished micro-batches."""
        poll = select.poll()
        for descriptor in self._children:
            poll.register(descriptor, select.POLLIN)
        done = 0
        for descriptor, _ in poll.poll(milliseconds):
            answer = os.read(descriptor, 65536)
            if not answer or FAILED in answer:
                self._fail(descriptor, answer)
            done += len(answer)
        return done

    def _fail(self, descriptor: int, answer: bytes) -> None:
        while more := os.read(descriptor, 65536):
            answer += more
        process = self._children.pop(descriptor)
        os.close(descriptor)
        code = wait_for(process)[1]
        if FAILED not in answer:
            how = "ended" if code is None else f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            hint = "; the system does so when memory runs out" if code in (None, -signal.SIGKILL) else ""
            raise WorkerLost(f"worker process {process} {how}{hint}")
        kind, _, text = answer.partition(FAILED)[2].decode(errors="replace").partition("\n")
        if kind == "memory":
            raise MemoryError(text)
        raised = getattr(errors, kind, None) if kind else None
        if raised is None:
            raise RuntimeError(f"in worker process {process}:\n{text}")
        raise raised(text)

    def _start(self) -> None:
        self._queue = os.pipe()
        os.set_blocking(self._queue[0], False)
        # Freeze existing objects: garbage collection would write to them, and so copy their memory.
        gc.collect()
        gc.freeze()
        # Release freed heap pages, which would be copied as soon as a worker reuses them.
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
        parent = os.getpid()
        for _ in range(self.count - 1):
            incoming, outgoing = os.pipe()
            try:
                process = _fork()
            except OSError:
                os.close(incoming)
                os.close(outgoing)
                raise
            if process == 0:
                self._serve(parent, self._queue, outgoing)
            os.close(outgoing)
            self._children[incoming] = process

    def _serve(self, parent: int, queue: tuple[int, int], answers: int) -> None:
        """Run a worker: process the queue until it is closed."""
        try:
            _follow(parent)
            torch.set_num_threads(1)
            os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the parent's threads do not exist here
            os.close(queue[1])
            poll = select.poll()
            poll.register(queue[0], select.POLLIN)
            while True:
                poll.poll()
                record = _take(queue[0])
                if record == b"":
                    break
                if record is not None:  # otherwise another worker was faster
                    self._run(record)
                    os.write(answers, DONE)
        except BaseException as error:
            _write_all(answers, FAILED + _description(error).encode())
        finally:
            os._exit(0)


def _fork() -> int:
    with warnings.catch_warnings():
        # Python warns of forks with threads. These are torch's, and a worker uses none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _take(queue: int) -> bytes | None:
    """Return a record of the queue, None if it is empty, b"" if it is closed."""
    try:
        return os.read(queue, _RECORD.size)
    except BlockingIOError:
        return None


def _follow(parent: int) -> None:
    """Leave signals to the parent process, and end when it ends, even during a computation."""

    def forward(number: int, frame: FrameType | None) -> None:
        if os.getppid() == parent:
            os.kill(parent, number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, forward)
    set_death_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
    ctypes.CDLL(None).prctl(set_death_signal, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def _description(error: BaseException) -> str:
    if out_of_memory(error):
        return f"memory\n{error}"
    if isinstance(error, RegardError):
        return f"{type(error).__name__}\n{error}"
    return "\n" + "".join(traceback.format_exception(error))


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
