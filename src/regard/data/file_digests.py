"""Cached digests of files, and whether they are still valid."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from regard.data.lines import scan_lines, stat_rereadable, write_files
from regard.progress import stage
from regard.strict_json import parse_json

FILES = "files.json"
"""The file of digests in a folder of encoded text."""
_SETTLED = 2_000_000_000
"""Nanoseconds after which another change of a file must have changed its time."""


class FileDigest(NamedTuple):
    """Digest of a file's content, and the file's state at that time.

    Attributes:
        state: size, times of the last change of content and of anything (nanoseconds), and number of the file.
        settled: whether the last change is old enough that a later one shows in `state`.
        sha256: of its bytes.
        lines: number of lines.
    """

    state: tuple[int, int, int, int]
    settled: bool
    sha256: str
    lines: int


def find_digest(
    path: Path, known: Mapping[str, FileDigest], scan: Callable[[Path, Callable[[int], None]], tuple[str, int]] = scan_lines
) -> FileDigest:
    """Return a file's sha256 and number of lines, without reading it if it has not changed.

    Args:
        path: the file.
        known: known digests by absolute path.
        scan: (path, progress function) -> sha256 and number of lines.

    Raises:
        DataError: the file cannot be read; see `scan`.

    Example:
        >>> import os
        >>> find_digest(Path(os.devnull), {}).lines
        0
    """
    found = stat_rereadable(path)
    state, now = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino), time.time_ns()
    before = known.get(os.path.abspath(path))
    if before is not None and before.settled and before.state == state:
        return before
    with stage(f"Counting {path}", unit="lines") as counting:
        return FileDigest(state, now - max(state[1:3]) > _SETTLED, *scan(path, counting.advance))


class DataFiles:
    """The data files of a run. Their digests are kept in a folder; files that have not changed since are not read again.

    Args:
        files: by name; None: not given.
        folder: for the digests.

    Attributes:
        paths: the given files by name.
        lines: their numbers of lines, by name.
        digests: their sha256, by name.

    Raises:
        DataError: a file cannot be read.

    Example:
        >>> import os
        >>> DataFiles({"text": os.devnull, "valid_text": None}, Path("no-such-run")).lines
        {'text': 0}
    """

    def __init__(self, files: Mapping[str, str | None], folder: Path) -> None:
        self._known = folder / FILES
        known = read_digests(self._known)
        self.paths = {name: Path(path) for name, path in files.items() if path is not None}
        self._facts = {name: find_digest(path, known) for name, path in self.paths.items()}
        self.lines = {name: facts.lines for name, facts in self._facts.items()}
        self.digests = {name: facts.sha256 for name, facts in self._facts.items()}

    def keep(self) -> None:
        """Write the digests, for a later start."""
        write_digests(self._known, {os.path.abspath(self.paths[name]): facts for name, facts in self._facts.items()})


def read_digests(path: Path) -> dict[str, FileDigest]:
    """Read the digests of `write_digests`; empty if missing or damaged.

    Example:
        >>> read_digests(Path("no-such-file"))
        {}
    """
    try:
        found = parse_json(path.read_bytes())
        return {name: FileDigest(tuple(state), settled, sha256, lines) for name, (state, settled, sha256, lines) in found.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def write_digests(path: Path, facts: Mapping[str, FileDigest]) -> None:
    """Write digests for a later start, unless unchanged.

    Raises:
        DataError: the file cannot be written.
    """
    if read_digests(path) != facts:
        write_files({path: (json.dumps({name: list(known) for name, known in facts.items()}, indent=1) + "\n").encode()})
