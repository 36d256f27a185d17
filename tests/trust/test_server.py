"""A server among clients that are foreign, rude, slow or far too many: nobody else notices, and each answer belongs to its request."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import math
import os
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from regard.serve.limits import Limits
from tests.serve.driver import JSON, Server, serving
from tests.serve.load import LINES, Load, known_lines, slope, sources
from tests.serve.test_schemathesis import TOOL
from tests.tasks.tiny import TEXTS
from tests.trust import probe
from tests.trust.conftest import FULL, Check
from tests.trust.golden import make
from tests.trust.measure import MEGABYTE, memory

Checks = Callable[..., Check]
VERSION = make.versions()[-1]
RUN = make.golden(VERSION, "translation") / "run"
LETTERS = "".join(sorted(set("".join(TEXTS))))
PATIENCE = 2
FACTOR = 10
SOAK = float(os.environ.get("REGARD_SOAK_SECONDS") or (1800 if FULL else 3))
# A slice runs among other tests; the limit holds where the machine is the server's own.
HEALTH_SECONDS = 0.2 if FULL else 1.0


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, _on_the_cpu: None) -> Iterator[Server]:
    # Small batches: a model that is slow beside what clients can ask for, so that ten times as much can be asked.
    options = ["--header-timeout", PATIENCE, "--body-timeout", PATIENCE, "--batch-size", 4]
    with serving(tmp_path_factory.mktemp("server"), *options, runs=[RUN]) as started:
        yield started


@pytest.fixture(scope="module")
def known(_on_the_cpu: None) -> dict[str, tuple[str, float]]:
    """Return lines, and the text and score that the command line gives each."""
    return known_lines(RUN, sources(300, LETTERS))


@contextlib.contextmanager
def watched(check: Checks, server: Server, what: str, *, cases: int, quick: int) -> Iterator[None]:
    """Ask for the server's health all the time: each answer is a case, and none may take long."""
    c = check("server", f"/health within {HEALTH_SECONDS * 1000:.0f} ms {what}", cases=cases, quick=quick)
    words = [sys.executable, probe.__file__, str(server.port), str(server.process.pid)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield
        finally:
            found = json.loads(process.communicate(timeout=60)[0])
    for status, seconds, waited in found:
        wrong = f"status {status}" if status != 200 else None
        if seconds - waited > HEALTH_SECONDS:
            wrong = f"{seconds:.3f} s, {waited:.3f} s of them without a processor"
        c.case("answer", wrong=wrong)
    worst = sorted(seconds for _, seconds, _ in found) or [0.0]
    own = max((seconds - waited for _, seconds, waited in found), default=0.0)
    c.note(f"99 of 100 within {1000 * worst[int(0.99 * (len(worst) - 1))]:.0f} ms, the slowest {1000 * worst[-1]:.0f} ms")
    c.note(f"{1000 * own:.0f} ms without the time that other processes used the CPUs")


def lines_done(server: Server) -> int:
    """Return how many lines the model has worked on."""
    found = re.search(r"^regard_lines_total ([0-9]+)", server.ask("GET", "/metrics").body.decode(), re.MULTILINE)
    assert found
    return int(found[1])


def right(server: Server, known: dict[str, tuple[str, float]], line: str) -> str | None:
    """Return what is wrong with a line's translation."""
    answer = server.post("/translate", {"text": line})
    if answer.status != 200:
        return f"status {answer.status}"
    item = answer.json["translations"][0]
    text, score = known[line]
    return None if item["text"] == text and math.isclose(item["score"], score, rel_tol=1e-3) else f"{item} for {known[line]}"


def raw(server: Server, data: bytes) -> int:
    """Send bytes and return the status of the answer, 0 where there is none."""
    with server.connect() as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        try:
            found = b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionResetError:
            return 0
    return int(found.split()[1]) if found.startswith(b"HTTP/1.1 ") else 0


FOREIGN = ["evil.com", "evil.com:80", "127.0.0.1.evil.com", "localhost.evil.com", "evil.com#127.0.0.1", "evil.com/127.0.0.1", "0.0.0.0"]
FOREIGN += [
    "user@127.0.0.1",
    "127.0.0.1@evil.com",
    "[::ffff:203.0.113.7]",
    "2130706433",
    "127.1",
    "localhost:99999",
    "localhost:x",
    "[",
    " ",
]
ORIGINS = ["http://evil.com", "https://127.0.0.1.evil.com", "null", "file://", "http://127.0.0.1:1", "http://localhost", "ftp://127.0.0.1"]
ORIGINS += ["http://127.0.0.1:{port}/x", "http://[", "http://127.0.0.1:{port}.evil.com", "chrome-extension://abc", ""]
ASKS = [("GET", "/health", b""), ("GET", "/", b""), ("POST", "/translate", b'{"text": "a"}'), ("POST", "/attention", b'{"text": "a"}')]


def test_foreign_names_and_origins_are_refused(check: Checks, server: Server) -> None:
    count = (len(FOREIGN) + len(ORIGINS)) * len(ASKS) + 6
    c = check("server", "foreign Host, Origin and Sec-Fetch-Site", cases=count, quick=count)
    before = lines_done(server)
    for name, (method, path, body) in itertools.product(FOREIGN, ASKS):
        answer = server.ask(method, path, body, {**JSON, "Host": name})
        c.case(f"{method} {path} of {name}", happened=answer.status > 0, wrong=None if answer.status in (400, 421) else str(answer))
    for origin, (method, path, body) in itertools.product(ORIGINS, ASKS):
        answer = server.ask(method, path, body, {**JSON, "Origin": origin.format(port=server.port)})
        c.case(f"{method} {path} from {origin!r}", happened=answer.status > 0, wrong=None if answer.status == 403 else str(answer)[:200])
    for site in ("cross-site", "same-site", "x"):
        for path in ("/translate", "/attention"):
            answer = server.ask("POST", path, b'{"text": "a"}', {**JSON, "Sec-Fetch-Site": site})
            c.case(f"{path} {site}", wrong=None if answer.status == 403 else str(answer)[:200])
    two = b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.com\r\n\r\n"
    c.case("two names", wrong=None if raw(server, two) == 400 else "answered")
    c.case("nothing was done", happened=before == lines_done(server))


def test_nothing_but_a_post_lets_the_model_work(check: Checks, server: Server) -> None:
    paths = ["/", "/health", "/metrics", "/openapi.json", "/translate", "/attention", "/translate?text=a", "/attention?text=a&model=0"]
    paths += ["/shutdown", "/reload", "/unload_model", "/translate/", "//translate", "/translate/../health", "/%2e%2e/etc/passwd"]
    ways = [("GET", {}), ("HEAD", {}), ("PUT", JSON), ("DELETE", {}), ("PATCH", JSON), ("OPTIONS", {}), ("TRACE", {}), ("FOO", JSON)]
    ways += [
        ("GET", {"X-HTTP-Method-Override": "POST"}),
        ("GET", {**JSON, "X-Method-Override": "POST"}),
        ("POST", {"Content-Type": "text/plain"}),
    ]
    c = check("server", "GET and other methods change no state", cases=len(paths) * len(ways), quick=len(paths) * len(ways))
    done, page = lines_done(server), server.ask("GET", "/").body
    for path, (method, headers) in itertools.product(paths, ways):
        answer = server.ask(method, path, b'{"text": "a"}' if headers else b"", headers)
        expected = {200, 404, 405} if method in ("GET", "HEAD") else {404, 405, 415}
        wrong = None if answer.status in expected else f"status {answer.status}"
        if answer.status == 200 and path.partition("?")[0] not in paths[:4]:
            wrong = "answered"
        c.case(f"{method} {path}", happened=answer.status > 0, wrong=wrong)
    same = lines_done(server) == done and server.ask("GET", "/").body == page
    c.case("the state", wrong=None if same else "has changed")


def bodies() -> list[tuple[str, bytes, dict[str, str], set[int]]]:
    """Return hostile bodies: name, bytes, headers, and the statuses they may get."""
    most = Limits().max_body
    zeros = gzip.compress(b"\0" * 200 * MEGABYTE, 9)
    assert len(zeros) < most < 200 * MEGABYTE // 500
    inner = gzip.compress(zeros, 9)
    deep = 100_000
    bad = {400, 413, 415, 422}
    found: list[tuple[str, bytes, dict[str, str], set[int]]] = [
        ("one byte over the limit", b" " * (most + 1), JSON, {413}),
        ("twenty times the limit", b" " * (20 * most), JSON, {413}),
        ("a gzip bomb", zeros, {**JSON, "Content-Encoding": "gzip"}, {415}),
        ("a gzip bomb in another", inner, {**JSON, "Content-Encoding": "gzip, gzip"}, {415}),
        ("a gzip bomb that says it is none", zeros, JSON, {422}),
        ("a deflate bomb", zeros, {**JSON, "Content-Encoding": "deflate"}, {415}),
        ("brotli", b"x", {**JSON, "Content-Encoding": "br"}, {415}),
        ("a form", b"text=a", {"Content-Type": "application/x-www-form-urlencoded"}, {415}),
        ("a form of parts", b"--x\r\n", {"Content-Type": "multipart/form-data; boundary=x"}, {415}),
        ("plain text", b'{"text": "a"}', {"Content-Type": "text/plain"}, {415}),
        ("another alphabet", '{"text": "a"}'.encode("utf-16"), {"Content-Type": "application/json; charset=utf-16"}, {415}),
        ("lists within lists", b"[" * deep + b"]" * deep, JSON, {422}),
        ("lists without end", b"[" * deep, JSON, {422}),
        ("keys within keys", b'{"text":' * 20_000 + b"1" + b"}" * 20_000, JSON, {422}),
        ("deep in a known field", b'{"text": ' + b"[" * deep + b"]" * deep + b"}", JSON, {422}),
        ("a number of 200,000 digits", b'{"text": "a", "beam_size": ' + b"9" * 200_000 + b"}", JSON, {422}),
        ("1e999", b'{"text": "a", "length_penalty": 1e999}', JSON, {422}),
        ("NaN", b'{"text": "a", "length_penalty": NaN}', JSON, {422}),
        ("a key twice", b'{"text": "a", "text": "b"}', JSON, {422}),
        ("fifty thousand keys", json.dumps({str(i): 1 for i in range(20_000)}).encode(), JSON, bad),
        ("ten thousand lines", json.dumps({"text": ["a"] * 10_000}).encode(), JSON, {422, 429}),
        ("a line of 200,000 characters", json.dumps({"text": "a" * 200_000}).encode(), JSON, {422}),
        ("a beam of a million", b'{"text": "a", "beam_size": 1000000}', JSON, {422}),
        ("a length of a million", b'{"text": "a", "max_length": 1000000}', JSON, {422}),
        ("no bytes", b"", JSON, {422}),
        ("bytes of no text", bytes(range(256)), JSON, {422}),
        ("half a character", b'{"text": "\xc3"}', JSON, {422}),
        ("NUL", b"\0" * 1000, JSON, {422}),
        ("a pickle", b"\x80\x04cos\nsystem\n(S'true'\ntR.", JSON, {422}),
        ("another kind of value", b'{"text": {"a": 1}}', JSON, {422}),
        ("a field there is not", b'{"text": "a", "__class__": 1}', JSON, {422}),
        ("half a pair of surrogates", b'{"text": "\\ud800"}', JSON, {200}),
        ("zero width and line ends", '{"text": "a\u200bb\u2028c\u0085"}'.encode(), JSON, {200}),
    ]
    return found


def test_bodies_over_any_limit_are_refused_in_little_memory(check: Checks, server: Server, known: dict[str, tuple[str, float]]) -> None:
    wicked = bodies()
    again = 10 if FULL else 1
    heads = [
        b"Content-Length: 99999999999999999999999\r\n\r\n",
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n" + b"2710\r\n" + b" " * 10_000 + b"\r\n" + (b"2710\r\n" + b" " * 10_000 + b"\r\n") * 40,
        b"X: " + b"x" * 100_000 + b"\r\n\r\n",
        b"".join(b"X%d: x\r\n" % i for i in range(5_000)) + b"\r\n",
    ]
    cases = len(wicked) + len(heads)
    c = check("server", "bodies over the limit, gzip bombs, deep JSON: refused, no 5xx", cases=10 * cases, quick=cases)
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    before = server.resident()
    for _ in range(again):
        for name, body, headers, expected in wicked:
            answer = server.ask("POST", "/translate", body, headers)
            c.case(name, happened=len(body) > 0 or name == "no bytes", wrong=None if answer.status in expected else str(answer)[:200])
        for head in heads:
            status = raw(server, b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + head)
            # One that ends its side in the midst of a request has left.
            left = head.endswith(b"ffff\r\n") and status == 0
            c.case(repr(head[:40]), wrong=None if left or status in (400, 408, 413, 422, 431) else f"status {status}")
    grown = (memory("VmHWM", server.process.pid) - before) / MEGABYTE
    c.case("memory", wrong=None if grown < 100 else f"grew by {grown:.0f} MB")
    line = next(iter(known))
    c.case("afterwards", wrong=right(server, known, line))
    c.note(f"{grown:.0f} MB more at most")


def drip(connection: socket.socket, data: bytes, stop: threading.Event) -> None:
    """Send a byte now and then."""
    with contextlib.suppress(OSError):
        for place in itertools.cycle(range(len(data))):
            if stop.wait(0.1):
                return
            connection.sendall(data[place : place + 1])


@pytest.mark.timeout(300)
def test_slow_clients_wait_for_themselves(check: Checks, server: Server, known: dict[str, tuple[str, float]]) -> None:
    count = 200 if FULL else 30
    c = check("server", "slow sockets: cut off, others answered", cases=200, quick=30)
    answers = check("server", "answers to others during slow sockets are right", cases=100, quick=5)
    head = b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n"
    server.wait_until_idle()
    stop, opened, open_most = threading.Event(), [], 0
    started = time.monotonic()
    with watched(check, server, "during slow sockets", cases=20, quick=5), ThreadPoolExecutor(count) as pool:
        for number in range(count):
            connection = server.connect()
            opened.append(connection)
            if number % 4 == 0:  # in the midst of its head
                pool.submit(drip, connection, head, stop)
            elif number % 4 == 1:  # in the midst of its body
                connection.sendall(head)
                pool.submit(drip, connection, b" ", stop)
            elif number % 4 == 2:  # half a head, then nothing
                connection.sendall(head[:50])
        lines = iter(itertools.cycle(known))
        for _ in range(answers.wanted):
            open_most = max(open_most, len(os.listdir(f"/proc/{server.process.pid}/fd")))
            answers.case("beside", wrong=right(server, known, next(lines)))
        for number, connection in enumerate(opened):
            connection.settimeout(PATIENCE * 5)
            said = b""
            try:
                said = b"".join(iter(lambda connection=connection: connection.recv(65536), b""))
                wrong = None if not said or b" 408 " in said.split(b"\r\n")[0] else repr(said[:60])
            except ConnectionResetError:
                wrong = None
            except TimeoutError:
                wrong = "still open"
            c.case(f"socket {number}", happened=open_most > count, wrong=wrong)
        stop.set()
    for connection in opened:
        connection.close()
    c.note(f"all cut {time.monotonic() - started:.1f} s after the first was opened; {open_most} descriptors at most")
    server.wait_until_idle()


@pytest.mark.timeout(300)
def test_clients_that_leave_in_the_midst_of_a_request_leave_nothing(
    check: Checks, server: Server, known: dict[str, tuple[str, float]]
) -> None:
    count = 1000 if FULL else 60
    c = check("server", "disconnects in mid-request: others' answers are right, nothing is kept", cases=1000, quick=60)
    body = json.dumps({"text": list(known)[:20]}).encode()
    lines = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    whole = lines.encode() + body
    draw, texts = random.Random(3), itertools.cycle(known)
    server.wait_until_idle()
    gone = sum(line.get("status") == 499 for line in server.logged())
    with watched(check, server, "during disconnects", cases=20, quick=3):
        for number in range(count):
            connection = server.connect()
            sent = whole if number % 2 else whole[: draw.randrange(1, len(whole))]
            connection.sendall(sent)
            if number % 2:
                time.sleep(draw.random() * 0.02)  # some while the model works for it
            if number % 3:  # a reset instead of an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            connection.close()
            wrong = right(server, known, next(texts)) if number % 5 == 0 else None
            # A model that is kept busy by those who left may refuse for the moment.
            c.case(f"client {number}", wrong=None if wrong in ("status 429", "status 503") else wrong)
        server.wait_until_idle()
    until = time.monotonic() + 30
    while (waiting := server.ask("GET", "/health").json["waiting"]) and time.monotonic() < until:
        time.sleep(0.1)
    c.case("the queue", wrong=f"{waiting} lines still wait" if waiting else None)
    left = sum(line.get("status") == 499 for line in server.logged()) - gone
    c.case("seen by the server", happened=left > count // 10)
    c.note(f"{left} were seen to leave in the midst of a request")


@pytest.mark.timeout(400)
def test_ten_times_too_much_is_refused_in_part_and_nothing_is_swapped(
    check: Checks, server: Server, known: dict[str, tuple[str, float]]
) -> None:
    seconds = 60 if FULL else 2
    c = check("server", f"{FACTOR}x overload: 200, 429 or 503, each answer its request's own", cases=2_000, quick=10)
    server.wait_until_idle()
    few = Limits().queue // LINES

    async def measure() -> tuple[Load, float]:
        await Load(server, known).run(seconds / 12, clients=few)
        calm = Load(server, known)
        await calm.run(seconds / 6, clients=few)
        sustained = max(calm.statuses[200] / (seconds / 6), 1.0)
        load = Load(server, known)
        await load.run(seconds, 1.25 * FACTOR * sustained)
        load.wrong += calm.wrong
        return load, sustained

    samples: list[tuple[float, int]] = []
    with watched(check, server, f"in {FACTOR}x overload", cases=300, quick=10), sampled(server, samples):
        load, sustained = asyncio.run(measure())
    offered = load.statuses.total() / seconds
    for status, count in load.statuses.items():
        for _ in range(count):
            c.case(f"status {status}", wrong=None if status in (200, 429, 503) else "not one of 200, 429, 503")
    c.case("overload", happened=load.statuses[429] > 0 and (not FULL or offered > FACTOR * sustained))
    c.case("answers", happened=load.statuses[200] > 0, wrong=f"{load.wrong} lines were wrong or swapped" if load.wrong else None)
    c.case("memory", wrong=None if not FULL or slope(samples) < 5 * MEGABYTE else f"grows by {slope(samples) / MEGABYTE:.0f} MB a minute")
    server.wait_until_idle()
    shown = ", ".join(f"{count} x {status}" for status, count in sorted(load.statuses.items()))
    c.note(f"sustained {sustained:.1f}, offered {offered:.1f} requests of {LINES} lines a second; {shown}")


@contextlib.contextmanager
def sampled(server: Server, samples: list[tuple[float, int]]) -> Iterator[None]:
    """Note the server's memory every half a second."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            samples.append((time.monotonic(), server.resident()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_in_all_of_it_there_was_no_5xx_but_503(check: Checks, server: Server) -> None:
    """The server's own log of everything above; run by itself, of a few requests."""
    for number in range(20):
        server.post("/translate", {"text": f"ein {number}"} if number % 2 else {"txt": 1})
    requests = [line for line in server.logged() if line["event"] == "request"]
    alone = len(requests) < 100
    c = check("server", "the log of all requests: no 5xx but 503, no traceback", cases=20 if alone else 3_000, quick=20)
    for line in requests:
        c.case(str(line)[:200], wrong=None if line["status"] < 500 or line["status"] == 503 else f"status {line['status']}")
    c.case("what stands in the log", wrong="a traceback" if "Traceback" in server.errors() else None)
    c.case("what libraries say", wrong=next((str(line)[:300] for line in server.logged() if line["event"] == "library"), None))
    # An answer of 503 that was no refusal is one that the model could not give.
    c.case("the model", wrong=next((str(line)[:300] for line in requests if line["status"] == 503 and "error" in line), None))
    c.note(", ".join(f"{count} x {status}" for status, count in sorted(Counter(line["status"] for line in requests).items())))


@pytest.mark.timeout(int(SOAK) + 300)
def test_a_server_that_works_for_long_stays_as_it_was(check: Checks, tmp_path: Path, known: dict[str, tuple[str, float]]) -> None:
    """Half an hour of ordinary and of wrong requests; REGARD_SOAK_SECONDS says how long."""
    c = check("server", f"soak of {SOAK:.0f} s: right answers, flat memory and descriptors", cases=int(SOAK * 2), quick=10)
    texts = list(known)
    samples: list[tuple[float, int]] = []

    def client(number: int, ends: float) -> list[str | None]:
        draw, found = random.Random(number), []
        while time.monotonic() < ends:
            kind = draw.randrange(10)
            if kind < 6:
                found.append(right(server, known, draw.choice(texts)))
            elif kind == 6:
                found.append(expect(server.post("/attention", {"text": draw.choice(texts)}).status, 200))
            elif kind == 7:
                found.append(expect(server.ask("POST", "/translate", draw.randbytes(500), JSON).status, 422))
            elif kind == 8:
                found.append(expect(server.ask("GET", "/" + "x" * draw.randrange(99)).status, 404, 200))
            else:
                with server.connect() as connection:
                    connection.sendall(b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n")
                found.append(None)
            time.sleep(draw.random() * 0.05)
        return found

    with serving(tmp_path, runs=[RUN]) as server:
        assert right(server, known, texts[0]) is None
        descriptors = server.descriptors()
        with watched(check, server, "in the soak", cases=int(SOAK * 4), quick=5), sampled(server, samples), ThreadPoolExecutor(4) as pool:
            for found in pool.map(client, range(4), itertools.repeat(time.monotonic() + SOAK)):
                for wrong in found:
                    c.case("request", wrong=wrong)
        server.wait_until_idle()
        left = server.descriptors() - descriptors
        c.case("descriptors", wrong=f"{left} more are open" if left > 0 else None)
        third = len(samples) // 3
        grown = (max(size for _, size in samples[-third:]) - max(size for _, size in samples[: 2 * third])) / MEGABYTE
        # What a process needs is there after two thirds of the time, if that is long enough.
        c.case(
            "memory", happened=len(samples) > SOAK, wrong=f"{grown:.1f} MB more in the last third" if grown > (2 if FULL else 64) else None
        )
        assert server.stop() == 0
    c.note(f"{samples[-1][1] / MEGABYTE:.0f} MB, in the last third {grown:+.1f} MB, {60 * slope(samples) / MEGABYTE:+.2f} MB an hour")


def expect(status: int, *statuses: int) -> str | None:
    return None if status in statuses else f"status {status}"


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not FULL, reason="make trust")
@pytest.mark.skipif(TOOL is None, reason="schemathesis is not on PATH")
@pytest.mark.parametrize("task", make.ASKED)
def test_whatever_a_tool_makes_of_the_description_is_answered_as_described(check: Checks, tmp_path: Path, task: str) -> None:
    c = check("server", f"schemathesis, {task}: examples answered as described, no 5xx", cases=1_000, quick=1_000)
    # What lets an image through may still be refused; a caption of a small model goes on to its limit.
    captions = task == "captioning"
    excluded = ["--exclude-checks", "positive_data_acceptance"] if captions else []
    options = ["--max-output", 20, "--max-body", 4_000_000]
    with serving(tmp_path, *options, runs=[make.golden(VERSION, task) / "run"]) as server:
        address = f"http://127.0.0.1:{server.port}/openapi.json"
        words = [
            "--checks",
            "all",
            "--phases",
            "examples,coverage,fuzzing",
            "--max-examples",
            "480",
            "--seed",
            "1",
            "--request-timeout",
            "300",
        ]
        done = subprocess.run([str(TOOL), "run", address, *words, *excluded], capture_output=True, text=True, check=False, cwd=tmp_path)
        requests = [line for line in server.logged() if line["event"] == "request"]
    made = int(found[1]) if (found := re.search(r"(\d+) generated", done.stdout)) else 0
    for line in requests:
        c.case(str(line)[:200], wrong=None if line["status"] < 500 or line["status"] == 503 else f"status {line['status']}")
    c.case("the tool", happened=made >= 1_000, wrong=None if done.returncode == 0 else done.stdout[-1500:])
    c.note(f"{made} examples made, {len(requests)} requests")
