"""Asks a server for its health until standard input ends, in a process of its own that imports next to nothing.

python tests/trust/probe.py PORT PROCESS

Writes a JSON list of [status, seconds, waited]: how long the answer took, and how long in that time the server or this process could have
worked and other processes had the processor.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from pathlib import Path

EVERY = 0.05


def waited(process: str) -> float:
    """Return the seconds for which threads of a process have waited for a processor so far; 0 where the system does not say."""
    total = 0
    try:
        for thread in Path(f"/proc/{process}/task").iterdir():
            total += int((thread / "schedstat").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return total / 1e9


def ask(port: int) -> int:
    """Return the status of one answer, 0 without one."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/health")
        response = connection.getresponse()
        response.read()
        return response.status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def main() -> None:
    """Ask until standard input ends."""
    port, process = int(sys.argv[1]), sys.argv[2]
    found = []
    while not select.select([sys.stdin], [], [], EVERY)[0]:
        before, started = waited(process) + waited("self"), time.perf_counter()
        status = ask(port)
        seconds = time.perf_counter() - started
        found.append([status, seconds, waited(process) + waited("self") - before])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
