"""Writes a file completely or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from regard.errors import DataError, os_reason, shown


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write `content` to a temporary file beside `path`, then rename it: readers see the old file or the new one.

    Links are followed, and special files (a pipe, `/dev/stdout`) are written to directly.

    Args:
        path: the file; its folder must exist.
        content: the whole content; may be empty.

    Raises:
        DataError: the file cannot be written; the message names it and the reason. Nothing is left behind.

    Example:
        >>> write_atomically("/no/such/folder/page.html", b"")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/page.html: cannot be written (No such file or directory)
    """
    try:
        place = Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, or a name that no file can have
        raise DataError(f"{shown(str(path))}: cannot be written ({error})") from error
    try:
        if place.is_dir():
            raise DataError(f"{path}: cannot be written (it is a folder)")
        if place.exists() and not place.is_file():
            place.write_bytes(content)
            return
        temporary = place.with_name(f".{place.name[:60]}.{secrets.token_hex(4)}")  # names have at most 255 bytes, a character up to 4
        try:
            with temporary.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(place)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({os_reason(path, error)})") from error
