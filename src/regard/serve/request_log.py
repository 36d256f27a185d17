"""The request log: one JSON object per request (id, status, time), never the text of a request."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TextIO

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
SHOWN_PATH = 200


@dataclass
class RequestRecord:
    """Log record of a request.

    Attributes:
        id: the client's X-Request-Id if valid, else a random one.
        method: as sent.
        path: decoded.
        client: the client's address and port.
        status: status of the response; 0 before it, 499 if the client disconnected first.
        lines: number of lines in the request.
        error: internal error.
    """

    id: str
    method: str
    path: str
    client: str
    status: int = 0
    lines: int | None = None
    error: str | None = None
    started: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, scope: Any) -> RequestRecord:
        """Start the record of a request from its ASGI scope."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"]
        identity = given[0] if len(given) == 1 and SANE_ID.fullmatch(given[0]) else secrets.token_hex(8)
        client = ":".join(map(str, scope.get("client") or ()))
        return cls(identity, scope["method"], scope["path"], client)

    @property
    def seconds(self) -> float:
        """Seconds since the request began."""
        return time.monotonic() - self.started

    def known_method(self) -> str:
        """Return the method, or "other": clients must not create metric labels."""
        return self.method if self.method in METHODS else "other"

    def to_json(self) -> dict[str, Any]:
        """Return the log entry, which contains no text of the request."""
        fields = {
            "event": "request",
            "id": self.id,
            "client": self.client,
            "method": self.method[:SHOWN_PATH],
            "path": self.path[:SHOWN_PATH],
            "status": self.status,
            "seconds": round(self.seconds, 6),
            "lines": self.lines,
            "error": self.error,
        }
        return {name: value for name, value in fields.items() if value is not None}


class RequestLog:
    """Writes events as JSON lines.

    Args:
        stream: destination; write errors are ignored.

    Example:
        >>> import io
        >>> stream = io.StringIO()
        >>> RequestLog(stream).write({"event": "ready"})
        >>> json.loads(stream.getvalue())["event"]
        'ready'
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write one line: UTC time, then the fields, in ASCII, so that no value can break the line or control a terminal."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(json.dumps({"time": now, **fields}) + "\n")
            self._stream.flush()


class LibraryLogHandler(logging.Handler):
    """Writes the libraries' errors in the same format; their warnings add nothing to the request's own line."""

    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.ERROR)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record as one line; an exception as its class and message."""
        fields = {"event": "library", "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = describe_error(record.exc_info[1])
        self._log.write(fields)


def describe_error(error: BaseException) -> str:
    r"""Return an exception as one line: its class, its message, and where it was raised.

    Example:
        >>> describe_error(ValueError("a\nb"))
        'ValueError: a b'
    """
    place, traceback = "", error.__traceback__
    while traceback is not None:
        place = f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{place}"
