"""Reading the body of a request: within its limits, as JSON and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import ClientDisconnect, Request

from regard.serve.limits import Limits
from regard.serve.refusal import ClientGone, Refused
from regard.serve.schema import parse_json


async def read_json(request: Request, limits: Limits) -> Any:
    """Return the body as a JSON value.

    Raises:
        Refused: 415, another type or a compressed body; 413, too large; 408, too slow; 422, not JSON.
        ClientGone: the client left.
    """
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json" or parameters.strip().lower() not in ("", "charset=utf-8", 'charset="utf-8"'):
        # What a form of another site can send is among the types refused.
        raise Refused(415, "Content-Type: expected application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Refused(415, "Content-Encoding: compressed bodies are not read", {"Accept-Encoding": "identity"})
    too_large = Refused(413, f"body: expected at most {limits.max_body} bytes")
    length = request.headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > limits.max_body:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.max_body:
                    raise too_large
    except TimeoutError as error:
        raise Refused(408, f"body: did not arrive within {limits.body_seconds:g} seconds", {"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return parse_json(bytes(body))
