"""One request and its answer, as the log and the metrics see it."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"}
SHOWN_PATH = 200


@dataclass
class Exchange:
    """What is known of a request.

    Attributes:
        id: the client's own X-Request-Id if it is sane, else one made up.
        method: as sent.
        path: as sent, decoded.
        client: address and port of the other end.
        status: of the answer; 0 as long as there is none, 499 when the client left before.
        lines: how many lines it asked for.
        error: what went wrong inside, for the log.
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
    def of(cls, scope: Any) -> Exchange:
        """Begin the exchange of an ASGI scope."""
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-request-id"]
        identity = given[0] if len(given) == 1 and SANE_ID.fullmatch(given[0]) else secrets.token_hex(8)
        client = ":".join(map(str, scope.get("client") or ()))
        return cls(identity, scope["method"], scope["path"], client)

    @property
    def seconds(self) -> float:
        """How long ago it began."""
        return time.monotonic() - self.started

    def known_method(self) -> str:
        """Return the method, or "other": labels of metrics must not be of the client's making."""
        return self.method if self.method in METHODS else "other"

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the log; nothing of the text is in it."""
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
