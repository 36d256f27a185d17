"""The documentation as a site: does it build without a warning and a network, and how fast does its front page open.

    make docs && python benchmarks/documentation_site.py --python .venv/bin/python --out docs/results/site.json

Builds the site of this tree with the Python that has the extra docs, without a network, and opens its front page in headless Chromium from
a server on this machine. The live model is given a date.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from first_look import SENTENCE, TYPE
from harness import ROOT, Table, machine, median, options
from view_pictures import browser

# Read before the build: a connection or the address of a host is an error.
NO_NETWORK = """import socket
def refuse(*where, **_):
    raise AssertionError(f"the build asks for {where}")
socket.getaddrinfo = socket.create_connection = socket.socket.connect = socket.socket.connect_ex = refuse
"""
LOADED = "return performance.getEntriesByType('navigation')[0].loadEventEnd"


def build(python: Path, site: Path) -> int:
    """Build the site and return the number of warnings."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(NO_NETWORK, encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": folder, "NO_MKDOCS_2_WARNING": "1"}
        command = [str(python), "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"site: {done.stderr[-2000:]}")
    return len(re.findall(r"^(?:WARNING|ERROR)", done.stderr, re.MULTILINE))


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve the site to this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def opened(address: str, rounds: int) -> tuple[float, str]:
    """Return the median milliseconds until the front page is loaded, and what its live model says of the date."""
    driver: Any = browser()
    try:
        times = list[float]()
        for _ in range(rounds):
            driver.get("about:blank")
            driver.get(f"{address}/index.html")
            times.append(driver.execute_script(LOADED))
        driver.get(f"{address}/model.html")
        driver.execute_async_script(TYPE, SENTENCE)
        said = driver.execute_script("return [...document.querySelectorAll('#texts bdi, #texts dd')].map((each) => each.innerText)")
    finally:
        driver.quit()
    return median(times, 0), said[-1]


def main() -> None:
    """Build, open, and write the table."""
    parser = options(__doc__, rounds=9)
    parser.add_argument("--python", type=Path, required=True, help="a Python with the extra docs")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        warnings = build(arguments.python.absolute(), site)
        with served(site) as address:
            milliseconds, said = opened(address, arguments.rounds)
        pages = len(list(site.rglob("*.html")))
        size = round(sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) / 1e6, 1)
    note = (
        f"`python benchmarks/documentation_site.py`, medians of {arguments.rounds}; the live model was given {SENTENCE!r}; "
        f"{machine(1, 'selenium')}."
    )
    table = Table(arguments.out, ["what", "measured"], note)
    for row in (
        ["warnings of the build, without a network", warnings],
        ["pages", pages],
        ["size, MB", size],
        ["front page loaded, ms", milliseconds],
        ["the live model's output", said],
    ):
        table.add(row)


if __name__ == "__main__":
    main()
