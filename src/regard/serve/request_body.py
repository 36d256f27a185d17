"""Reading the body of a request: within its limits, as JSON and nothing else."""

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
    """How much of the bodies of all requests is in memory: a request holds its own until it is answered.

    Args:
        most: bytes; a body is read beyond that only where it is the only one.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Give what is to be told of each piece that has come; it raises Refused (429) when there is no room."""
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
        limits: for how long it is waited for.
        most: bytes that are read.
        came: see `BodyMemory.hold`.

    Raises:
        Refused: 415, another type or a compressed body; 413, too large; 408, too slow; 422, not JSON; 429, no room.
        ClientGone: the client left.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json" or parameters.strip().lower() not in ("", "charset=utf-8", 'charset="utf-8"'):
        # What a form of another site can send is among the types refused.
        raise HTTPError(415, "Content-Type: expected application/json")
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
