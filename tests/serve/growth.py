"""How much a server's memory grows while it answers requests of many sizes.

python -m tests.serve.growth RUN [--requests 20000]
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import tempfile
import threading
import time
from pathlib import Path

from tests.serve.driver import JSON, Server, serving
from tests.serve.load import sources

CLIENTS = 4
SAMPLES = 10


class Asking:
    """Clients that ask one thing after another: mostly translations, of 1 to 4 lines, now and then attention or nonsense."""

    def __init__(self, server: Server, letters: str, requests: int) -> None:
        self.done = 0
        self._server = server
        self._texts = sources(300, letters)
        self._threads = [threading.Thread(target=self._ask, args=(number, requests // CLIENTS)) for number in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def _ask(self, number: int, requests: int) -> None:
        draw = random.Random(number)
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port)
        for _ in range(requests):
            kind = draw.randrange(10)
            path, body = "/translate", json.dumps({"text": draw.choices(self._texts, k=draw.randrange(1, 5))}).encode()
            if kind == 8:
                path, body = "/attention", json.dumps({"text": draw.choice(self._texts)}).encode()
            elif kind == 9:
                body = draw.randbytes(500)
            connection.request("POST", path, body, JSON)
            connection.getresponse().read()
            self.done += 1
        connection.close()


def growth(server: Server, letters: str, requests: int) -> list[float]:
    """Return the resident memory after each tenth of the requests, in MB."""
    asking, found = Asking(server, letters, requests), []
    while asking.running() or len(found) < SAMPLES:
        if asking.done >= (len(found) + 1) * (requests // SAMPLES // CLIENTS * CLIENTS):
            found.append(round(server.resident() / 2**20, 1))
        time.sleep(0.02)
    return found


def main() -> None:
    """Measure a run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--letters", default="abcdefghik ")
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), runs=[given.run]) as server:
        print(json.dumps({"requests": given.requests, "megabytes": growth(server, given.letters, given.requests)}))


if __name__ == "__main__":
    main()
