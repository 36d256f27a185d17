"""One connection: uvicorn's protocol with timeouts for slow clients and a limit on connections."""

from __future__ import annotations

import asyncio
import http
import json
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from regard.serve.http_parser import MAX_HEAD, StrictConnection
from regard.serve.limits import Limits
from regard.serve.lingering_close import MAX_SILENCE, LingeringTransport
from regard.serve.middleware import REFUSED
from regard.serve.request_log import RequestLog, RequestRecord

# Check interval of a connection, as a share of its shortest timeout.
PART = 0.25
# Beyond this multiple of the limit, connections are dropped without an answer, which would also need memory.
CUT = 2


class Connection(H11Protocol):
    """A connection with timeouts for reading a request's head and for sending an answer.

    A request answered before it is fully read is the last of its connection.

    Args:
        limits: times and number of connections.
        log: log of unreadable requests.
        config: uvicorn's.
        server_state: uvicorn's.
        app_state: uvicorn's.
        _loop: uvicorn's.
    """

    def __init__(
        self,
        limits: Limits,
        log: RequestLog,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn: StrictConnection = StrictConnection(h11.SERVER)
        self.transport: LingeringTransport
        self.app = self._closing_early(self.app)
        self._limits = limits
        self._log = log
        self._interval = min(1.0, PART * min(limits.header_timeout, limits.write_timeout))
        self._heard = False
        self._head_since: float | None = None
        self._unread_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Open; beyond the limit answer with an error, far beyond it drop the connection."""
        super().connection_made(LingeringTransport(transport, self._unread, seconds=self._limits.write_timeout))
        if len(self.connections) > CUT * self._limits.max_connections:
            transport.abort()
            return
        if len(self.connections) > self._limits.max_connections:
            self.app = _refusing(self.app)
        self._head_since = self.loop.time()
        self._timer = self.loop.call_later(self._interval, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read data; the timeout for the head runs until it is complete."""
        self._heard = True
        # Small portions: the parser scans its unread data once per chunk.
        for start in range(0, len(data), MAX_HEAD):
            portion = data[start : start + MAX_HEAD]
            if self.transport.lingering:
                self.transport.forget(portion)
            elif not self.transport.is_closing():
                super().data_received(portion)
        if not self._idle():
            self._head_since = None
        elif self._head_since is None:
            self._head_since = self.loop.time()

    def send_400_response(self, msg: str) -> None:
        """Answer non-HTTP data in the form of all other answers."""
        self._refuse(*self.conn.refusal)

    def shutdown(self) -> None:
        """Close after sending the current answer."""
        if self.transport.lingering:
            self.transport.end()
        else:
            super().shutdown()

    def _unread(self) -> bool:
        return self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or bool(self.conn.trailing_data[0])

    def _closing_early(self, app: Any) -> Any:
        async def answer(scope: Any, receive: Any, send: Any) -> None:
            async def send_on(message: Any) -> None:
                if message["type"] == "http.response.start" and self.conn.their_state is h11.SEND_BODY:
                    others = [(name, value) for name, value in message["headers"] if name != b"connection"]
                    message["headers"] = [*others, (b"connection", b"close")]
                await send(message)

            await app(scope, receive, send_on)

        return answer

    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _look(self) -> None:
        now = self.loop.time()
        unread = self.transport.get_write_buffer_size() > 0
        self._unread_since = (self._unread_since or now) if unread else None
        if self._unread_since is not None and now - self._unread_since > self._limits.write_timeout:
            self.transport.abort()
            return
        if self._head_since is not None and now - self._head_since > self._limits.header_timeout and not self.transport.is_closing():
            if self._heard and self._idle():
                self._refuse(408, f"the head of the request did not arrive within {self._limits.header_timeout:g} seconds")
            else:  # opened and never used, as browsers do
                self.transport.close()
        self._timer = self.loop.call_later(self._interval, self._look)

    def _refuse(self, status: int, message: str) -> None:
        exchange = RequestRecord.of({"headers": [], "method": "", "path": "", "client": self.client})
        body = json.dumps({"error": message, "request_id": exchange.id}).encode("ascii")
        head = [
            f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            f"X-Request-Id: {exchange.id}",
            "X-Content-Type-Options: nosniff",
            "Connection: close",
        ]
        # No answer can be sent in the middle of another one.
        if self._idle() or not self.cycle.response_started:
            self.transport.write("\r\n".join((*head, "", "")).encode("ascii") + body)
        if status == 408:  # does not extend the timeout
            self.transport.seconds = MAX_SILENCE
        self.transport.close()
        if not self._idle():  # its body is never read
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        exchange.status = status
        exchange.error = message
        self._log.write(exchange.to_json())


def _refusing(app: Any) -> Any:
    async def refused(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, REFUSED: True}, receive, send)

    return refused
