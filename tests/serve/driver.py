"""Calls the application without a socket, and servers through one."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import uvicorn

from regard.serve.app import Service
from regard.serve.endpoints import ServedModel
from regard.serve.limits import Limits
from regard.serve.middleware import host_names
from regard.serve.request_log import RequestLog
from regard.serve.server import address_of, listen
from regard.tasks import Translator
from tests.tasks.tiny import translator

Result = TypeVar("Result")
JSON = {"Content-Type": "application/json"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert set(self.json) == {"error", "request_id"}
        assert self.json["request_id"] == self.headers["x-request-id"]
        return self.json["error"]


class Held(Translator):
    """Translates when it is let; tells what it was given together."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(translator(**parts).run)
        self.batches: list[list[str]] = []
        self.begun = threading.Semaphore(0)
        self.let = threading.Event()
        self.broken: Callable[[Sequence[str]], bool] = lambda lines: False

    def translate(self, lines: Sequence[str], **settings: Any) -> Any:
        self.batches.append(list(lines))
        self.begun.release()
        assert self.let.wait(60)
        if self.broken(lines):
            raise ValueError("secret of the model")
        return super().translate(lines, **settings)


class Site:
    """A service in this process with a log to read."""

    def __init__(self, *workers: Any, examples: int = 0, **limits: Any) -> None:
        self._examples = examples
        self._models = [ServedModel(f"model{number}", each) for number, each in enumerate(workers or [translator()])]
        self._limits = Limits(**limits)
        self._fresh = True
        self.log = io.StringIO()
        self.service = self._make()

    def _make(self) -> Service:
        return Service(
            self._models, self._limits, hosts=host_names("127.0.0.1", ["box.lan"]), log=RequestLog(self.log), examples=self._examples
        )

    def run(self, conversation: Callable[[Site], Awaitable[Result]]) -> Result:
        """Run a conversation while the service runs."""

        async def main() -> Result:
            async with self.running():
                return await conversation(self)

        return asyncio.run(main())

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        if not self._fresh:  # a service runs once
            self.service = self._make()
        self._fresh = False
        async with self.service.app.router.lifespan_context(self.service.app):
            yield

    def ask(self, method: str, path: str, body: Any = b"", headers: dict[str, str] | None = None) -> Answer:
        """Send one request to a service that runs only for it."""
        return self.run(lambda site: site.send(method, path, body, headers))

    def post(self, path: str, value: Any) -> Answer:
        return self.ask("POST", path, json.dumps(value).encode(), JSON)

    async def send(
        self, method: str, path: str, body: bytes | list[bytes] = b"", headers: dict[str, str] | None = None, *, gone: Any = None
    ) -> Answer:
        """Send one request. A list is a body in pieces, of which b"..." never ends; `gone` is when the client leaves."""
        pieces = [body] if isinstance(body, bytes) else list(body)
        given = {"Host": "127.0.0.1:8000", **({"Content-Length": str(len(body))} if isinstance(body, bytes) else {}), **(headers or {})}
        sent: list[Any] = []
        done = asyncio.Event()

        async def receive() -> Any:
            if pieces:
                piece = pieces.pop(0)
                if piece == b"...":
                    await asyncio.sleep(60)
                return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
            waits = [asyncio.ensure_future(event.wait()) for event in (done, gone) if event is not None]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                done.set()

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8000),
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given.items() if value is not None],
        }
        await self.service.app(scope, receive, send)
        if not sent:
            return Answer(0, {}, b"")
        headers_back = {name.decode("latin-1"): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return Answer(sent[0]["status"], headers_back, b"".join(message.get("body", b"") for message in sent[1:]))

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@contextlib.contextmanager
def hosted(site: Site) -> Iterator[str]:
    """Answer under an address from a thread of this process; quicker to start than `serving`, without its signals and connections."""
    listening = listen("127.0.0.1", 0)
    host = uvicorn.Server(uvicorn.Config(site.service.app, log_config=None, access_log=False, ws="none", lifespan="on"))
    thread = threading.Thread(target=host.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield address_of(listening)
    finally:
        host.should_exit = True
        thread.join()
        listening.close()


class Server:
    """`regard serve` as a process."""

    def __init__(self, folder: Path, *options: object, runs: Sequence[Path]) -> None:
        self._errors = open(folder / "log", "w+b")  # noqa: SIM115 - closed in `close`
        words = [sys.executable, "-m", "regard", "serve", *map(str, runs), "--port", "0", *map(str, options)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self._errors, env={**os.environ, "REGARD_DEVICE": "cpu"})
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode()
        assert "http://127.0.0.1:" in self.line, self.errors()
        self.port = int(self.line.rstrip("/\n").rpartition(":")[2])
        self._idle = self.descriptors()

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, *, timeout: float = 60) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body or None, headers or {})
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, value: Any) -> Answer:
        return self.ask("POST", path, json.dumps(value).encode(), JSON)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_until_idle(self, *, seconds: float = 30) -> None:
        """Wait until no more is open than at the start; fail if that does not come."""
        until = time.monotonic() + seconds
        while self.descriptors() > self._idle:
            assert time.monotonic() < until, f"{self.descriptors() - self._idle} descriptors are still open"
            time.sleep(0.02)

    def resident(self) -> int:
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def errors(self) -> str:
        self._errors.flush()
        return Path(self._errors.name).read_text()

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.errors().splitlines()]

    def stop(self, number: int = signal.SIGTERM, *, timeout: float = 30) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()


def received(connection: socket.socket) -> bytes:
    """Return everything the other end sends until it closes."""
    with connection, contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: connection.recv(65536), b""))
    return b""


@contextlib.contextmanager
def serving(folder: Path, *options: object, runs: Sequence[Path]) -> Iterator[Server]:
    server = Server(folder, *options, runs=runs)
    try:
        yield server
    finally:
        server.close()
