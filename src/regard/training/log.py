"""Log of a run: one JSON line per event in `log.jsonl`, and progress messages (`regard.progress`)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from regard import progress as reporting
from regard.errors import WriteError, counted, missing_extra, os_reason
from regard.strict_json import dump_json, parse_json
from regard.training import training_job

FILE = "log.jsonl"
TIMED = (3, 13)
"""The updates between which the time of one is measured: before the first of them memory and caches are filled."""


class EventFile:
    """A file of lines that grows with a run; None writes nothing.

    Args:
        path: the file, or None.
        holds: which lines to keep on resume; the others are dropped on entering.

    Raises:
        WriteError: the file cannot be written.
    """

    def __init__(self, path: Path | None, holds: Callable[[bytes], bool]) -> None:
        self.path, self._holds = path, holds
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self.path is not None:
            with self._writing():
                keep_lines(self.path, self._holds)
                self._file = self.path.open("ab")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            with suppress(OSError):  # the write error was reported; closing would retry
                self._file.close()

    def append(self, lines: Iterable[str]) -> None:
        """Append lines."""
        if self._file is not None:
            with self._writing():
                for line in lines:
                    self._file.write(line.encode() + b"\n")
                self._file.flush()

    def to_disk(self) -> None:
        """Sync to disk, so that the file is never behind a checkpoint."""
        if self._file is not None:
            with self._writing():
                os.fsync(self._file.fileno())

    @contextmanager
    def _writing(self) -> Iterator[None]:
        path = cast(Path, self.path)  # there is one where there is a file to write
        try:
            yield
        except OSError as error:
            raise WriteError(f"{path}: cannot be written ({os_reason(path, error)})") from error


class RunLog(EventFile):
    """Write the events of a run.

    Args:
        folder: the run folder, or None to write nothing (processes other than the first).
        progress: where the run resumes; drops later lines of an earlier try, so that the log reads as one uninterrupted run.
        total: updates of the whole run.
        tensorboard: also write TensorBoard events to `folder/tensorboard`.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        WriteError: the log cannot be written.
    """

    def __init__(self, folder: Path | None, progress: training_job.Progress, *, total: int, tensorboard: bool = False) -> None:
        super().__init__(None if folder is None else folder / FILE, lambda line: _holds(line, progress))
        self._total = total
        self._stage = reporting.stage("Training", total=total, unit="updates", done=progress.step)
        self._first_step, self._timed_from = progress.step, 0.0  # the loop continues with the same object
        self._board = _summary_writer(folder / "tensorboard", progress.step) if tensorboard and folder is not None else None

    def __enter__(self) -> Self:
        super().__enter__()
        if self._file is not None:
            self._stage.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._file is not None:
            self._stage.__exit__(kind, error, trace)
        if self._board is not None:
            self._board.close()
        super().__exit__(kind, error, trace)

    def write(self, event: str, step: int, figures: Mapping[str, Any]) -> None:
        """Append one event; non-finite figures become null.

        Raises:
            WriteError: the line cannot be written.
        """
        if self._file is None:
            return
        line = {"event": event, "step": step, **{key: _finite(value) for key, value in figures.items()}}
        self.append([dump_json(line, allow_nan=False)])
        self._tell(event, step, figures)
        if self._board is not None and event in ("train", "evaluate"):
            for key, value in figures.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{event}/{key}", value, step)

    @contextmanager
    def telling(self, step: int) -> Iterator[None]:
        """Write what was begun and could not be written as an event, if a disk that may be full takes it."""
        try:
            yield
        except WriteError as error:
            with suppress(WriteError):
                self.write("error", step, {"what": str(error)})
            raise

    def advance(self, step: int) -> None:
        """Report progress after an update; after a few, the estimated total time."""
        if self._file is None:
            return
        self._stage.update(done=step)
        number, (first, last) = step - self._first_step, TIMED
        if number == first:
            self._timed_from = time.perf_counter()
        elif number == last and step < self._total:
            each = (time.perf_counter() - self._timed_from) / (last - first)
            left = reporting.clock(each * (self._total - step))
            more = counted(self._total - step, "more update", form=",")
            reporting.message(f"expected: {left} for {more}, at {each:.3g} s each, without evaluations and what follows")

    def skip(self, seconds: float) -> None:
        """Leave the time of an evaluation or of saving out of the estimated total time."""
        self._timed_from += seconds

    def _tell(self, event: str, step: int, figures: Mapping[str, Any]) -> None:
        if event == "train":
            rates = f"lr {figures['learning_rate']:.3g}, {figures['tokens_per_second']:,.0f} tokens/s"
            self._stage.update(figures=f"epoch {figures['epoch']}, loss {figures['loss']:.4f}, {rates}")
        else:
            reporting.message(f"step {step}  {event}" + "".join(f"  {key} {_short(value)}" for key, value in figures.items()))


def keep_lines(path: Path, holds: Callable[[bytes], bool]) -> None:
    """Rewrite a file, if it exists, atomically with only the lines to keep."""
    if not path.exists():
        return
    kept = [line for line in path.read_bytes().split(b"\n") if line and holds(line)]
    temporary = path.with_name(f".tmp-{path.name}")
    with temporary.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)


def _holds(line: bytes, progress: training_job.Progress) -> bool:
    try:
        entry = parse_json(line)
        step, event = int(entry["step"]), entry["event"]
    except (ValueError, KeyError, TypeError, OverflowError):
        return False
    if event in ("average", "done", "stop", "error"):
        return False
    if event == "evaluate" and step == progress.step:
        return progress.evaluated_step == step
    return step <= progress.step


def _summary_writer(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard.writer import SummaryWriter
    except ImportError as error:
        raise missing_extra("training.tensorboard needs TensorBoard", "tensorboard") from error
    return SummaryWriter(str(folder), purge_step=step + 1)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _short(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
