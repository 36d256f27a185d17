"""HTTP errors."""

from __future__ import annotations

from collections.abc import Mapping


class HTTPError(Exception):
    """Raised to answer a request with a status of 400 or more.

    Args:
        status: the status.
        message: one line for the client; names the field, the header or the limit.
        headers: additional headers.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """Raised when the client has closed the connection."""


class ModelFailed(Exception):
    """Raised when the model failed; the message is for the log, not for the client."""
