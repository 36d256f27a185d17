"""Standard input, output and error, as the verbs use them."""

from __future__ import annotations

import shutil
import sys

from regard.progress import hide, message


def write_message(text: str) -> None:
    """Tell something on standard error, `--quiet` or not."""
    message(text, warning=True)


def write_line(line: str) -> None:
    """Write a line to standard output, to be seen at once."""
    write_text(line)
    sys.stdout.flush()


def write_text(line: str) -> None:
    """Write a line to standard output; what shows progress on the same terminal gives way."""
    if sys.stdout.isatty():
        hide()
    # UTF-8 whatever the locale says: what is written must be readable by every other tool.
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def terminal_width() -> int:
    """Return the columns of the terminal; 120 where there is none."""
    return max(20, shutil.get_terminal_size((120, 40)).columns) if sys.stdout.isatty() else 120
