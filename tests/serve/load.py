"""Clients by the dozen: what a server sustains, and what it does with several times as much.

python -m tests.serve.load RUN [--seconds 60] [--write docs/results/serve.json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from regard.serve.limits import Limits
from regard.tasks import Translator
from tests.serve.driver import Server, serving

CLIENTS = 64
FACTOR = 4
LINES = 40  # of a request: enough work that clients on the same processors can ask for four times as much as is done
ALLOWED = {200, 429, 503}


class Client:
    """One connection that is kept, and asks one thing after another."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{'GET' if body is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        if body is not None:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(head.encode() + b"\r\n" + (body or b""))
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
        answer = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.close()
        return int(lines[0].split()[1]), answer

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()
            self._streams = None


class Load:
    """Requests with lines whose translations are known.

    Args:
        server: to be asked.
        known: the text and the score of each line.
    """

    def __init__(self, server: Server, known: dict[str, tuple[str, float]]) -> None:
        self.server = server
        self.statuses: Counter[int] = Counter()
        self.accepted: list[float] = []
        self.health: list[float] = []
        self.wrong = 0
        self._known = known
        self._lines = list(known)

    async def once(self, client: Client, generator: random.Random) -> None:
        lines = generator.choices(self._lines, k=LINES)
        started = time.monotonic()
        status, body = await client.ask("/translate", json.dumps({"text": lines}).encode())
        self.statuses[status] += 1
        if status == 200:
            self.accepted.append(time.monotonic() - started)
            found = json.loads(body)["translations"]
            for line, item in zip(lines, found, strict=True):
                text, score = self._known[line]
                self.wrong += item["text"] != text or not math.isclose(item["score"], score, rel_tol=1e-3)

    async def run(self, seconds: float, rate: float = math.inf, clients: int = CLIENTS) -> None:
        """Let clients ask for so long, together `rate` times a second; as often as they can without one."""
        start = time.monotonic()

        async def work(number: int) -> None:
            client, generator = Client(self.server.port), random.Random(number)
            turn = number
            while (now := time.monotonic() - start) < seconds:
                due = turn / rate
                if due > now:
                    await asyncio.sleep(min(due, seconds) - now)
                    continue
                await self.once(client, generator)
                turn += clients
            await client.close()

        async def probe() -> None:
            client = Client(self.server.port)
            while time.monotonic() - start < seconds:
                asked = time.monotonic()
                status, _ = await client.ask("/health")
                self.health.append(time.monotonic() - asked)
                assert status == 200
                await asyncio.sleep(0.1)
            await client.close()

        await asyncio.gather(probe(), *(work(number) for number in range(clients)))


def known_lines(run: Path, lines: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Return what the run makes of each line, as `regard translate --json` does."""
    found = Translator.open(run).translate(lines)
    return {line: (item.text, item.hypotheses[0].score) for line, item in zip(lines, found, strict=True)}


def sources(count: int, letters: str) -> list[str]:
    """Return different lines of 3 to 19 letters."""
    generator = random.Random(5)
    found: dict[str, None] = {}
    while len(found) < count:
        found[" ".join("".join(generator.choices(letters, k=3 + len(found) % 17)).split()) or letters[0]] = None
    return list(found)


def slope(samples: Sequence[tuple[float, int]]) -> float:
    """Return how much memory grows in a minute, in bytes, by a line through the samples of the second half."""
    late = samples[len(samples) // 2 :]
    return 60 * statistics.linear_regression([at for at, _ in late], [size for _, size in late]).slope


def overload(server: Server, known: dict[str, tuple[str, float]], seconds: float) -> dict[str, Any]:
    """Measure what the server sustains, ask for `FACTOR` times as much, and return the figures."""

    async def main() -> dict[str, Any]:
        before = server.descriptors()
        few = Limits().queue // LINES  # as many as can wait, so that none is refused
        await Load(server, known).run(seconds / 12, clients=few)
        calm = Load(server, known)
        await calm.run(seconds / 6, clients=few)
        sustained = calm.statuses[200] / (seconds / 6)
        memory: list[tuple[float, int]] = []
        load = Load(server, known)

        async def watch() -> None:
            while True:
                memory.append((time.monotonic(), server.resident()))
                await asyncio.sleep(0.5)

        watching = asyncio.create_task(watch())
        await load.run(seconds, FACTOR * sustained)
        watching.cancel()
        await asyncio.sleep(1)
        return {
            "sustained_requests_per_second": round(sustained, 1),
            "offered_requests_per_second": round(load.statuses.total() / seconds, 1),
            "statuses": {str(status): count for status, count in sorted(load.statuses.items())},
            "wrong_answers": load.wrong + calm.wrong,
            "accepted_p50_seconds": round(statistics.median(load.accepted), 3),
            "accepted_p99_seconds": round(statistics.quantiles(load.accepted, n=100)[98], 3),
            "health_worst_seconds": round(max(load.health), 3),
            "memory_megabytes": round(memory[-1][1] / 2**20, 1),
            "memory_growth_megabytes_per_minute": round(slope(memory) / 2**20, 2),
            "descriptors_left": server.descriptors() - before,
        }

    return asyncio.run(main())


def table(figures: dict[str, Any], command: str, seconds: float) -> dict[str, Any]:
    """Return the figures as the file of a table in docs/."""
    statuses = ", ".join(f"{count} x {status}" for status, count in figures["statuses"].items())
    rows = [
        [f"sustained requests of {LINES} lines per second", figures["sustained_requests_per_second"]],
        ["offered requests per second", figures["offered_requests_per_second"]],
        ["responses", statuses],
        ["lost, swapped or wrong", figures["wrong_answers"]],
        ["accepted requests: median latency, seconds", figures["accepted_p50_seconds"]],
        ["accepted requests: 99th percentile of latency, seconds", figures["accepted_p99_seconds"]],
        ["/health: slowest response, seconds", figures["health_worst_seconds"]],
        ["memory growth, MB per minute", figures["memory_growth_megabytes_per_minute"]],
        ["file descriptors left open", figures["descriptors_left"]],
    ]
    note = f"{CLIENTS} clients for {seconds:g} s at {FACTOR} times the sustained rate; clients and server share {os.cpu_count()} cores."
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "torch": torch.__version__}
    return {"columns": ["quantity", "measured"], "rows": rows, "note": note, "command": command, "machine": machine, "figures": figures}


def main() -> None:
    """Measure a run and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--letters", default="abcdefghik ")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    known = known_lines(given.run, sources(500, given.letters))
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), runs=[given.run]) as server:
        figures = overload(server, known, given.seconds)
        assert server.stop() == 0
    print(json.dumps(figures, indent=1))
    if given.write is not None:
        command = f"python -m tests.serve.load RUN --seconds {given.seconds:g}"
        given.write.write_text(json.dumps(table(figures, command, given.seconds), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
