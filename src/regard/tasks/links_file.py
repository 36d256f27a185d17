"""Writes word links to a file while lines are translated."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from regard.data.link_lines import format_links
from regard.errors import DataError, os_reason

if TYPE_CHECKING:
    from regard.metrics.alignment import Links


class LinksFile:
    """Context manager that writes links to a file, one line per line of the input, each as it is found.

    Args:
        path: the file; existing content is replaced when the first links are there. None: nothing is written.

    Raises:
        DataError: the file cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._lines, self._kept = 0, True
        self._file: TextIO | None = None
        if path is None:
            return
        try:
            self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 - closed by `__exit__`
        except OSError as error:
            raise DataError(f"{path}: cannot be written ({os_reason(path, error)})") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if self._file is not None:
            with suppress(OSError):  # what could not be written is an error already
                if error is None:
                    self._replace(self._file)
                self._file.close()

    def _replace(self, file: TextIO) -> None:
        # Not before there are links: an error of the input keeps the old ones.
        if self._kept and stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.truncate(0)
        self._kept = False

    def write(self, number: int, links: Links | None) -> None:
        """Write the links of line `number`, from 1; lines that were left out since the last call, which have no answer, are empty.

        Raises:
            DataError: the file cannot be written.
        """
        self._write("\n" * (number - 1 - self._lines) + format_links(links or set()) + "\n")
        self._lines = number

    def finish(self, lines: int) -> None:
        """Write the empty lines that are missing at the end of so many.

        Raises:
            DataError: the file cannot be written.
        """
        self._write("\n" * (lines - self._lines))
        self._lines = lines

    def _write(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._replace(self._file)
            self._file.write(text)
        except OSError as error:
            raise DataError(f"{self._file.name}: cannot be written ({os_reason(self._file.name, error)})") from error
