"""Reads the body of a request within limits, as JSON only."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import ClientDisconnect, Request

from regard.serve.http_errors import ClientGone, HTTPError
from regard.serve.json_schema import parse_json
from regard.serve.limits import Limits


class BodyMemory:
    """Memory held by the bodies of all requests, until they are answered.

    Args:
        most: max bytes; a single body may exceed it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts received bytes; it raises HTTPError (429) if memory is full."""
        own = 0

        def add(size: int) -> None:
            nonlocal own
            if self._bytes > own and self._bytes + size > self._most:
                raise HTTPError(429, "too much is being read; try again later", {"Retry-After": "1"})
            own += size
            self._bytes += size

        try:
            yield add
        finally:
            self._bytes -= own


async def read_json(request: Request, limits: Limits, most: int, came: Callable[[int], None]) -> Any:
    """Return the body as a JSON value.

    Args:
        request: the request.
        limits: time limits.
        most: max bytes.
        came: see `BodyMemory.hold`.

    Raises:
        HTTPError: 415, another type or a compressed body; 413, too large; 408, too slow; 422, not JSON; 429, no memory.
        ClientGone: the client has disconnected.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json" or parameters.strip().lower() not in ("", "charset=utf-8", 'charset="utf-8"'):
        # Every type that a form of another site can send is refused.
        raise HTTPError(
            415, f"Content-Type: expected application/json in UTF-8, found {request.headers.get('content-type', '').strip()[:80] or 'none'}"
        )
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPError(415, "Content-Encoding: compressed bodies are not read", {"Accept-Encoding": "identity"})
    too_large = HTTPError(413, f"body: expected at most {most} bytes")
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_timeout):
            async for chunk in request.stream():
                if len(body) + len(chunk) > most:
                    raise too_large
                came(len(chunk))
                body += chunk
    except TimeoutError as error:
        raise HTTPError(408, f"body: did not arrive within {limits.body_timeout:g} seconds", {"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return parse_json(bytes(body))
