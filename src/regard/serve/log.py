"""The server's log: one JSON object a line, and never what a client wrote to be read or translated."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TextIO


class Log:
    """Write events as lines of JSON.

    Args:
        stream: where to; a stream that cannot be written to loses lines and disturbs nobody.

    Example:
        >>> import io
        >>> stream = io.StringIO()
        >>> Log(stream).write({"event": "ready"})
        >>> json.loads(stream.getvalue())["event"]
        'ready'
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write one line: the time in UTC, then the fields; all in ASCII, so that nothing can end the line or steer a terminal."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(json.dumps({"time": now, **fields}) + "\n")
            self._stream.flush()


class Forward(logging.Handler):
    """Write the errors that the libraries log in the same form; their warnings tell nothing that a request's own line does not."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line; an exception as its class and message."""
        fields = {"event": "library", "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = explain(record.exc_info[1])
        self._log.write(fields)


def explain(error: BaseException) -> str:
    """Return an exception as one line: its class, its message, and where it was raised.

    Example:
        >>> explain(ValueError("a\\nb"))
        'ValueError: a b'
    """
    place, traceback = "", error.__traceback__
    while traceback is not None:
        place = f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{place}"
