"""Close connections without losing the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

# Maximum bytes to read and discard after an answer.
MAX_BYTES = 33_554_432
# Maximum silence in seconds.
MAX_SILENCE = 2.0


class LingeringTransport(asyncio.Transport):
    """A transport whose `close` waits for a client that is still sending (lingering close).

    Closing a socket with unread bytes resets the connection, and the client loses an answer it has not read. So the transport half-closes,
    then reads and discards data until the client closes, is silent for `MAX_SILENCE` seconds, or a limit is reached. RFC 9112, section 9.6.

    Args:
        transport: the connection's transport.
        unread: returns whether unread data may exist; called at `close`.
        seconds: maximum total time.

    Attributes:
        seconds: may be set before `close`.
    """

    def __init__(self, transport: asyncio.Transport, unread: Callable[[], bool], *, seconds: float) -> None:
        super().__init__()
        self._transport = transport
        self._unread = unread
        self.seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._left = MAX_BYTES
        self._ends = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lingering(self) -> bool:
        """Whether the transport waits for the client to close."""
        return self._timer is not None

    def close(self) -> None:
        """Send what is buffered, then close, at once or after lingering."""
        if self.is_closing():
            return
        if not self._unread():
            self._transport.close()
            return
        with contextlib.suppress(OSError):  # the client has reset the connection
            self._transport.write_eof()
        self._transport.resume_reading()
        self._ends = self._loop.time() + self.seconds
        self._timer = self._loop.call_later(min(MAX_SILENCE, self.seconds), self.end)

    def forget(self, data: bytes) -> None:
        """Discard data received while lingering."""
        self._left -= len(data)
        if self._timer is None or self._transport.is_closing():
            return
        self._timer.cancel()
        left = self._ends - self._loop.time()
        if self._left < 0 or left <= 0:
            self.end()
        else:
            self._timer = self._loop.call_later(min(MAX_SILENCE, left), self.end)

    def end(self) -> None:
        """Close now, whatever is unread."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether nothing more can be sent."""
        return self.lingering or self._transport.is_closing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; after `close` they are dropped."""
        if not self.is_closing():
            self._transport.write(data)

    def abort(self) -> None:
        """Close at once, without sending what is buffered."""
        self._transport.abort()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return information about the socket."""
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are not sent yet."""
        return self._transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Pause reading, unless lingering."""
        if not self.lingering:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._transport.resume_reading()
