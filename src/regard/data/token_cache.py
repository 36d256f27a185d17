"""An atomic folder of encoded text, verified on opening."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from regard.data.parallel import file_digest
from regard.errors import DataError, os_reason
from regard.strict_json import parse_json

TOKENS = "tokens"
"""Folder of a run for its encoded training text. If deleted, the next start recreates it."""
MANIFEST = "manifest.json"


@contextmanager
def new_cache(folder: Path, about: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Create or replace a cache: yield a folder for files and a dictionary for other values.

    On exit the files are synced and listed with their sha256, and the folder is renamed. A killed process leaves a temporary folder that
    the next call removes.

    Args:
        folder: the cache folder, or a link to where it shall be; a file of this name is replaced.
        about: everything that determines the content, as a JSON value.

    Raises:
        DataError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     with new_cache(Path(name, "cache"), {"text": "a"}) as (files, kept):
        ...         _ = (files / "ids").write_bytes(b"123")
        ...         kept["pairs"] = 3
        ...     open_cache(Path(name, "cache"), {"text": "a"}), open_cache(Path(name, "cache"), {"text": "b"})
        ({'pairs': 3}, None)
    """
    folder = folder.resolve()  # a link to another disk stays
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in folder.parent.glob(f".{folder.name}.*"):
            shutil.rmtree(left)
        files = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}")
        files.mkdir()
        try:
            kept: dict[str, Any] = {}
            yield files, kept
            found = {path.name: file_digest(path) for path in sorted(files.iterdir())}
            content = {"about": about, "kept": kept, "files": found}
            (files / MANIFEST).write_text(json.dumps({**content, "sha256": _digest(content)}, indent=1) + "\n", encoding="utf-8")
            for path in (*files.iterdir(), files):
                _to_disk(path)
            if folder.is_file():
                folder.unlink()
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(files, folder)
            _to_disk(folder.parent)
        except BaseException:
            shutil.rmtree(files, ignore_errors=True)
            raise
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({os_reason(folder, error)})") from error


def open_cache(folder: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the stored values of a cache; None if it is missing, different or damaged.

    Example:
        >>> open_cache(Path("no-such-cache"), {}) is None
        True
    """
    try:
        found = parse_json((folder / MANIFEST).read_bytes())
        if found.pop("sha256") != _digest(found) or found["about"] != parse_json(json.dumps(about)):
            return None
        with ThreadPoolExecutor() as threads:  # each hashes on its own core
            digests = threads.map(file_digest, [folder / name for name in found["files"]])
            if list(digests) != list(found["files"].values()):
                return None
        return dict(found["kept"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, DataError):
        return None


def read_cache(folder: Path) -> dict[str, Any]:
    """Return the stored values of a cache that another process has just created or verified.

    Raises:
        DataError: there is none.

    Example:
        >>> read_cache(Path("no-such-cache"))
        Traceback (most recent call last):
            ...
        regard.errors.DataError: no-such-cache: no encoded text, which the first process makes; all processes need the same folder
    """
    try:
        return dict(parse_json((folder / MANIFEST).read_bytes())["kept"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{folder}: no encoded text, which the first process makes; all processes need the same folder") from error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
