"""Firefox by its own protocol (Marionette), which needs nothing but Firefox: a port, and lines of JSON with their length in front."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
# Every request goes to a port that nobody listens on; a file is no request.
PREFERENCES = {
    "network.proxy.type": 1,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
}


class Session:
    """A page in Firefox."""

    def __init__(self, port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            self._stream = connection.makefile("rwb")  # keeps it open
        self._number = 0
        self._read()  # its greeting
        self.do("WebDriver:NewSession")

    def do(self, command: str, **values: Any) -> Any:
        self._number += 1
        content = json.dumps([0, self._number, command, values]).encode()
        self._stream.write(b"%d:%s" % (len(content), content))
        self._stream.flush()
        _, _, error, found = self._read()
        assert error is None, error
        return found

    def script(self, body: str, *given: Any) -> Any:
        return self.do("WebDriver:ExecuteScript", script=body, args=list(given))["value"]

    def close(self) -> None:
        self._stream.close()

    def _read(self) -> Any:
        size = b""
        while not size.endswith(b":"):
            size += self._stream.read(1)
        return json.loads(self._stream.read(int(size[:-1])))


@contextmanager
def firefox(folder: Path) -> Iterator[Session]:
    """Start Firefox with a profile in this folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lines = [f'user_pref("{name}", {json.dumps(value)});' for name, value in {**PREFERENCES, "marionette.port": port}.items()]
    (folder / "user.js").write_text("\n".join(lines) + "\n")
    command = [str(FIREFOX), "--headless", "--marionette", "--no-remote", "--profile", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                session = Session(port)
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise AssertionError("Firefox does not answer")
        try:
            yield session
        finally:
            session.close()
    finally:
        process.terminate()
        process.wait(30)
