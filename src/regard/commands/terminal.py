"""Standard input, output and error of the commands."""

from __future__ import annotations

import os
import shutil
import sys

from regard.progress import hide, message


def write_message(text: str) -> None:
    """Write a message to standard error, also with `--quiet`."""
    message(text, warning=True)


def write_line(line: str) -> None:
    """Write a line to standard output, flushed at once."""
    write_text(line)
    sys.stdout.flush()


def write_text(line: str) -> None:
    """Write a line to standard output; a progress bar on the same terminal is cleared first."""
    if sys.stdout.isatty():
        hide()
    # UTF-8 whatever the locale: other tools must be able to read it.
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def uses_color() -> bool:
    """Return whether standard output takes colors: a terminal, and NO_COLOR is not set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def terminal_width() -> int:
    """Return the width of the terminal in columns; 120 without one."""
    return max(20, shutil.get_terminal_size((120, 40)).columns) if sys.stdout.isatty() else 120
