"""Standard input, output and error, as the verbs use them."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

from regard.errors import DataError


def note(message: str) -> None:
    """Tell something on standard error."""
    print(f"regard: {message}", file=sys.stderr)


def say(line: str) -> None:
    """Write a line to standard output, to be seen at once."""
    write(line)
    sys.stdout.flush()


def write(line: str) -> None:
    """Write a line to standard output."""
    # UTF-8 whatever the locale says: what is written must be readable by every other tool.
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def read_input() -> Iterator[str]:
    """Return the lines of standard input.

    Raises:
        DataError: it is closed.
    """
    from regard.data.lines import iter_lines

    if sys.stdin is None:
        raise DataError("standard input: closed; give it lines")
    return iter_lines(sys.stdin.buffer)


def width() -> int:
    """Return the columns of the terminal; 120 where there is none."""
    return max(20, shutil.get_terminal_size((120, 40)).columns) if sys.stdout.isatty() else 120
