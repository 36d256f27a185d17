"""The server process: socket, signals and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from regard.errors import ConfigError
from regard.serve.app import Service
from regard.serve.connection import Connection
from regard.serve.middleware import WILDCARDS
from regard.serve.request_log import LibraryLogHandler

BACKLOG = 512
KEEP_ALIVE_SECONDS = 15
# Seconds between the request to stop and the cancellation of tasks.
SLACK_SECONDS = 5


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Args:
        host: name or address.
        port: 0 selects a free one.

    Raises:
        ConfigError: it cannot listen there; the message says why.

    Example:
        >>> with listen("127.0.0.1", 0) as listening:
        ...     address_of(listening).startswith("http://127.0.0.1:")
        True
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        reason = "not a name"
        if isinstance(error, OSError):  # an unknown host has a negative error number and its own message
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error.strerror)
        raise ConfigError(f"--host {host} --port {port}: cannot listen there ({reason})") from error


def address_of(listening: socket.socket) -> str:
    """Return the address to open in a browser on this machine."""
    bound, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bound, str(bound))
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def addresses_for_others(listening: socket.socket) -> list[str]:
    """Return the addresses to open on other machines; none where the server listens on this machine alone."""
    bound, port = listening.getsockname()[:2]
    if bound not in WILDCARDS:
        return []
    found = [socket.gethostname()]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: it names the address that other machines see
        found.insert(0, probe.getsockname()[0])
    return [f"http://{host}:{port}/" for host in found]


def run_server(service: Service, listening: socket.socket, ready: Callable[[], None]) -> bool:
    """Serve until SIGTERM or SIGINT, then finish running requests within the limit.

    Args:
        service: the application.
        listening: see `listen`; closed at the end.
        ready: called when requests are accepted.

    Returns:
        Whether all requests were finished; False if the model is still running.
    """
    forward = LibraryLogHandler(service.log)
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "PIL")]
    for logger in loggers:
        logger.addHandler(forward)
        logger.propagate = False
    config = uvicorn.Config(
        service.app,
        http=functools.partial(Connection, service.limits, service.log),  # pyright: ignore[reportArgumentType]
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(service.limits.shutdown_timeout) + SLACK_SECONDS,
    )
    server = _Server(config, service, ready)
    service.connections = lambda: len(server.server_state.connections)
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
        for logger in loggers:
            logger.removeHandler(forward)
            logger.propagate = True
    service.log.write({"event": "stopped", "finished": not service.batcher.busy})
    return not service.batcher.busy


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._service = service
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        batcher = self._service.batcher
        batcher.stopping = True
        self._service.log.write({"event": "stopping", "waiting": batcher.waiting})
        late = asyncio.get_running_loop().call_later(self._service.limits.shutdown_timeout, batcher.abandon)
        await super().shutdown(sockets)
        late.cancel()
        if self.force_exit:  # after a second signal uvicorn cancels the application, which would log a traceback
            await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # Not stored, or it would be raised again after the end and change the exit code.
        self.force_exit = self.should_exit
        self.should_exit = True
