"""Request middleware: id, host check, headers, log, and error handling."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serve.http_errors import ClientGone, HTTPError, ModelFailed
from regard.serve.metrics import Metrics
from regard.serve.request_log import RequestLog, RequestRecord, describe_error

LOCAL = ("localhost", "127.0.0.1", "::1")
WILDCARDS = ("", "0.0.0.0", "::")
"""Addresses to listen on that stand for all of the machine."""
# Set by the connection if too many are open.
REFUSED = "regard.refused"
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
# The page contains its own policy; this one applies to all responses.
POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
PAGE_POLICY = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"


def host_names(bound: str, allowed: Iterable[str]) -> frozenset[str]:
    """Return the accepted host names of a server.

    Without a list of them any web page could reach it, by giving its own name the address of this machine (DNS rebinding).

    Args:
        bound: the address it listens on; a wildcard address stands for every address (not name), and adds the name of this machine.
        allowed: further names.

    Example:
        >>> sorted(host_names("192.0.2.7", ["Box.lan"]))
        ['127.0.0.1', '192.0.2.7', '::1', 'box.lan', 'localhost']
    """
    own = [WILDCARDS[1], socket.gethostname()] if bound in WILDCARDS else [bound]
    return frozenset({*LOCAL, *(_plain(name) for name in (*own, *allowed))})


def accepts_host(hosts: frozenset[str], name: str) -> bool:
    """Return whether a server answers to a host name.

    Args:
        hosts: see `host_names`.
        name: as in the `Host` header, without the port, in lower case.

    Example:
        >>> hosts = host_names("0.0.0.0", [])
        >>> accepts_host(hosts, "192.0.2.7"), accepts_host(hosts, "evil.com")
        (True, False)
    """
    if name in hosts:
        return True
    try:
        ipaddress.ip_address(name)  # no page of another site can give itself an address for a name
    except ValueError:
        return False
    return not hosts.isdisjoint(WILDCARDS)


class RequestMiddleware:
    """ASGI middleware around the application.

    Args:
        app: the application.
        hosts: see `host_names`.
        paths: known paths; others count as "other".
        log: request log, one line per request.
        metrics: request counters.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], paths: frozenset[str], log: RequestLog, metrics: Metrics) -> None:
        self._app = app
        self._hosts = hosts
        self._paths = paths
        self._log = log
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, also after errors."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = RequestRecord.of(scope)
        scope.setdefault("state", {})["exchange"] = exchange

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                _complete(MutableHeaders(scope=message), exchange)
            await send(message)

        try:
            try:
                self._admit(scope)
                await self._app(scope, receive, answer)
            except HTTPError as error:
                await _refusal(error, exchange)(scope, receive, answer)
            except ClientGone:
                exchange.status = 499
            except asyncio.CancelledError:  # the shutdown time is over
                if exchange.status:
                    raise
                await _refusal(HTTPError(503, "the server has stopped", {"Retry-After": "5"}), exchange)(scope, receive, answer)
            except Exception as error:
                exchange.error = str(error) if isinstance(error, ModelFailed) else describe_error(error)
                if not exchange.status:
                    failed = HTTPError(503, "the request failed; the server log has the reason under this request_id")
                    await _refusal(failed, exchange)(scope, receive, answer)
        finally:
            exchange.status = exchange.status or 499  # cancelled
            path = exchange.path if exchange.path in self._paths else "other"
            self._metrics.requests.add(path, exchange.known_method(), str(exchange.status))
            self._metrics.seconds.observe(exchange.seconds, path)
            self._log.write(exchange.to_json())

    def _admit(self, scope: Scope) -> None:
        if REFUSED in scope:
            raise HTTPError(503, "too many connections", {"Retry-After": "1", "Connection": "close"})
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        name = _host_name(hosts[0]) if len(hosts) == 1 else None
        if name is None or not accepts_host(self._hosts, name):
            raise HTTPError(421, "Host: not a name of this server; --allowed-host adds one")
        for origin in headers.getlist("origin"):
            if not _same_origin(origin, hosts[0]):
                raise HTTPError(403, "Origin: requests from other sites are refused")
        if scope["method"] != "GET" and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise HTTPError(403, "Sec-Fetch-Site: requests from other sites are refused")


def _complete(headers: MutableHeaders, exchange: RequestRecord) -> None:
    headers["X-Request-Id"] = exchange.id
    page = headers.get("content-type", "").startswith("text/html")
    headers["Content-Security-Policy"] = PAGE_POLICY if page else POLICY
    for name, value in SECURITY.items():
        headers[name] = value


def _refusal(error: HTTPError, exchange: RequestRecord) -> JSONResponse:
    return JSONResponse({"error": error.message, "request_id": exchange.id}, error.status, error.headers)


def _plain(name: str) -> str:
    name = name.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name


def _host_name(host: str) -> str | None:
    # name, name:port, [address], [address]:port
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if not parts.hostname or parts.username is not None or parts.path or parts.query or parts.fragment or host != parts.netloc:
        return None
    return _plain(parts.hostname)


def _same_origin(origin: str, host: str) -> bool:
    try:
        theirs = urlsplit(origin)
        default: Any = {"http": 80, "https": 443}.get(theirs.scheme)
        ours = urlsplit(f"//{host}")
        if default is None or not theirs.hostname or theirs.path:
            return False
        # A proxy in front may speak https: the Host header has no scheme, so the default port is that of the origin.
        return (_plain(theirs.hostname), theirs.port or default) == (_plain(ours.hostname or ""), ours.port or default)
    except ValueError:
        return False
