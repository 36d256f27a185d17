"""The command line's progress display on standard error: a bar on a terminal, periodic lines elsewhere."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, Self, TextIO, cast

from regard.progress.stages import Event, Stage, current_listener, is_worker, set_listener, stage

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

DELAY = 0.5
"""Seconds before anything is shown of a stage: what is over sooner needs no word."""
LINE_INTERVAL = 10.0
"""Seconds between two lines about stages, but for the first line of each."""
FRAME = 0.25
"""Seconds between two drawings of the bars; a drawing takes some 2 milliseconds."""
WORTH_A_LINE = 2.0
"""Seconds from which on an outermost stage leaves a line on the terminal when it ends."""
BAR = range(4, 21)
"""Widths of a bar, in columns: as wide as the figures leave room for."""
BETWEEN = "working"
"""Name of what a command does between its stages."""


class Display:
    """Show stages on standard error; a listener, and a context manager that restores the previous listener.

    A thread draws, so that stages appear even during calls that take minutes.

    Args:
        stream: where to write; None for standard error.
        mode: "bars", "lines", "quiet" (warnings only), or "auto": bars on a terminal, lines elsewhere.

    Example:
        >>> from regard.progress import stage
        >>> with Display(sys.stdout, mode="lines"), stage("over before a word is said"):
        ...     pass
    """

    def __init__(self, stream: TextIO | None = None, *, mode: Literal["auto", "bars", "lines", "quiet"] = "auto") -> None:
        found = sys.stderr if stream is None else stream
        self._stream = cast(TextIO, _Lasting(found))
        self._mode = _mode_of(found) if mode == "auto" else mode
        self._changed = threading.Condition(threading.RLock())
        self._stages: list[Stage] = []
        self._tasks: dict[Stage, TaskID] = {}
        self._bars: Progress | None = None
        self._told: set[tuple[Stage | None, str]] = set()
        self._line_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._before: Any = None
        self._write_line: Callable[[str], object] = self._to_stream
        self._own: Stage | None = None  # of the command itself, shown while there is no other

    def __enter__(self) -> Self:
        self._before = set_listener(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_listener(self._before)
        self.close()

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        if self._mode == "quiet" and not event.warning:
            return
        with self._changed:
            if self._own in self._stages:
                self._stages.remove(self._own)
                self._end(self._own)
            if event.kind == "message":
                self._write(event.text)
            elif event.kind == "start" and event.stage is not None:
                self._stages.append(event.stage)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._watch, name="regard-progress", daemon=True)
                    self._thread.start()
                self._changed.notify()
            elif event.kind == "end" and event.stage in self._stages:
                self._stages.remove(event.stage)
                self._end(event.stage)
            if self._own is not None and not self._stages:
                self._own = stage(BETWEEN)
                self._stages.append(self._own)
                self._changed.notify()

    def start_up(self, name: str) -> None:
        """Show a stage while libraries are loaded, until another starts; from then on, until `hide`, one between other stages."""
        if is_worker():
            return
        starting = stage(name)
        self(Event("start", starting))
        self._own = starting
        self._told.add((None, BETWEEN))  # no line before it takes as long as between any two

    def quiet(self) -> None:
        """Show nothing but warnings from now on."""
        self.hide()
        self._mode = "quiet"

    def redirect(self, write: Callable[[str], object]) -> Callable[[str], object]:
        """Give every line to `write` from now on; bars stay on the terminal. Returns what lines were given to before."""
        with self._changed:
            before, self._write_line = self._write_line, write
        return before

    def hide(self) -> None:
        """Permanently remove the current stages before the program writes to the terminal itself, or waits for input."""
        with self._changed:
            if self._bars is not None:
                self._bars.stop()
                self._bars = None
            self._stages.clear()
            self._tasks.clear()
            self._own = None

    def close(self) -> None:
        """Remove the drawing and end the thread."""
        with self._changed:
            self.hide()
            thread, self._thread = self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        if self._mode == "bars":
            importlib.import_module("rich.progress")  # slow, so do not hold the lock
        with self._changed:
            while self._thread is threading.current_thread():
                if not self._stages:
                    self._changed.wait()
                    continue
                if self._mode == "bars":
                    self._draw()
                else:
                    self._tell()
                self._changed.wait(FRAME)

    def _tell(self) -> None:
        now = monotonic()
        for shown in self._stages:
            # A repeated stage, such as an evaluation, writes its first line once.
            part = (shown.parent, shown.name)
            if part not in self._told and now - shown.started >= DELAY:
                self._told.add(part)
                self._line(shown, now)
        # Short inner stages that follow each other have no line of their own: then the stage around them says that work goes on.
        known = [shown for shown in self._stages if (shown.parent, shown.name) in self._told]
        if known and now - max(self._line_at, known[-1].started) >= LINE_INTERVAL and not self._stages[-1].waiting:
            self._line(known[-1], now)

    def _line(self, shown: Stage, now: float) -> None:
        self._line_at = now
        chain = [shown]
        while (outer := chain[-1].parent) is not None:
            chain.append(outer)
        self._write("; ".join(str(each) for each in reversed(chain)))

    def _draw(self) -> None:
        now = monotonic()
        for shown in self._stages:
            if shown not in self._tasks and now - shown.started >= DELAY:
                self._bars = self._bars or _make_bars(self._stream)
                self._tasks[shown] = self._bars.add_task(_indented(shown), total=None, figures="")
        if self._bars is None:
            return
        figures = {shown: str(shown).partition(f"{shown.name}: ")[2] for shown in self._tasks}
        _fit(self._bars, figures)
        for shown, task in self._tasks.items():
            self._bars.update(task, total=shown.total, completed=shown.done, figures=figures[shown])
        self._bars.refresh()

    def _end(self, ended: Stage) -> None:
        self._told = {part for part in self._told if part[0] is not ended}
        if (task := self._tasks.pop(ended, None)) is None or self._bars is None:
            return
        self._bars.remove_task(task)
        if not self._tasks:
            self._bars.stop()
            self._bars = None
        if ended.parent is None and ended.ended is not None and not ended.failed and ended.seconds >= WORTH_A_LINE:
            self._write(str(ended))

    def _write(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(f"regard: {text}", markup=False, highlight=False, soft_wrap=True)
            return
        self._write_line(text)

    def _to_stream(self, text: str) -> None:
        self._stream.write(f"regard: {text}\n")
        self._stream.flush()


class _Lasting:
    """A stream whose reader may leave (a closed terminal or pipe, a full disk): the work continues, without its messages."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def show(stream: TextIO | None = None, *, mode: Literal["auto", "bars", "lines", "quiet"] = "auto") -> Display:
    """Show progress like the command line: a bar with rate and time left on a terminal, a line every 10 s elsewhere.

    Args:
        stream: where to write; None for standard error.
        mode: "bars", "lines", "quiet" (warnings only), or "auto": bars on a terminal, lines elsewhere.

    Returns:
        The `Display`; `close` removes the drawing. Use `Display` in a `with` block to limit it to the block.

    Example:
        >>> from regard.progress import log_events, message, set_listener
        >>> display = show(sys.stdout, mode="lines")
        >>> message("2,000 training pairs")
        regard: 2,000 training pairs
        >>> display.close()
        >>> set_listener(log_events) is display  # as it was at the start
        True
    """
    display = Display(stream, mode=mode)
    set_listener(display)
    return display


def hide() -> None:
    """Remove the current bars from the terminal before the program writes there itself.

    Example:
        >>> hide()
    """
    if isinstance(listener := current_listener(), Display):
        listener.hide()


def quiet() -> None:
    """Show nothing but warnings from now on.

    Example:
        >>> quiet()
    """
    if isinstance(listener := current_listener(), Display):
        listener.quiet()


@contextmanager
def redirected(write: Callable[[str], object]) -> Iterator[None]:
    """Give every line of progress to a function within the block, as a server does whose log has a format; bars stay on the terminal.

    Args:
        write: called with the text of a line, by one thread at a time.

    Example:
        >>> from regard.progress import message
        >>> with Display(sys.stdout, mode="lines"), redirected(lambda text: print({"message": text})):
        ...     message("2,000 training pairs")
        {'message': '2,000 training pairs'}
    """
    listener = current_listener()
    if not isinstance(listener, Display):
        yield
        return
    before = listener.redirect(write)
    try:
        yield
    finally:
        listener.redirect(before)


def _mode_of(stream: TextIO) -> Literal["bars", "lines"]:
    try:
        return "bars" if stream.isatty() and os.environ.get("TERM") != "dumb" else "lines"
    except ValueError:  # closed
        return "lines"


def _indented(shown: Stage) -> str:
    depth, outer = 0, shown.parent
    while outer is not None:
        depth, outer = depth + 1, outer.parent
    return "  " * depth + shown.name


def _fit(bars: Progress, figures: dict[Stage, str]) -> None:
    """Share a line of the terminal: names in full, then the time left, then the bar; other figures are cut at the end."""
    from rich.cells import cell_len

    _, bar, text = bars.columns
    room = bars.console.width - max(cell_len(_indented(shown)) for shown in figures) - 2  # and a space between two columns
    needed = max(cell_len(figure.removesuffix(f", {shown.figures}")) for shown, figure in figures.items())
    bar.bar_width = min(max(room - needed, BAR[0]), BAR[-1])  # pyright: ignore[reportAttributeAccessIssue] - a BarColumn
    text.get_table_column().max_width = max(room - bar.bar_width, 1)  # pyright: ignore[reportAttributeAccessIssue]


def _make_bars(stream: TextIO) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # Without rich's thread and redirection of standard output and error: the thread here draws, and messages use `Display`.
    bars = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False, table_column=Column(no_wrap=True)),
        console=Console(file=stream),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bars.start()
    return bars
