"""Where a request ends: what two readers could read differently is refused, and the answer arrives whatever the client still sends."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h11
import pytest

from regard.serve.http_parser import MAX_HEAD, NOT_HTTP, Refusal, StrictConnection
from regard.serve.lingering_close import MAX_BYTES, MAX_SILENCE
from tests.serve.driver import Answer, Server, serving

HOST = b"Host: 127.0.0.1\r\n"
POST = b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
BODY = b'{"text":"a"}'
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
# What a client would hide behind another request.
HIDDEN = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"

ONE_OF_THEM = "Content-Length and Transfer-Encoding: expected one of them"
ONCE = "Content-Length: expected once, and one number"
LAST = "Transfer-Encoding: expected chunked, once and last"
ONLY = "Transfer-Encoding: chunked is read, no other coding"
LINE_FEED = "the head of the request has a line that does not end in CR LF"
FOLDED = "the head of the request has a header over more than one line"
CHUNK_LINES = "the body has a chunk that is not a size in hexadecimal, CR LF, the data and CR LF"
TRAILERS = "the body ends in trailers, which are not read"
TOO_LARGE = f"the head of the request has more than {MAX_HEAD} bytes"
REFUSED = {
    "length beside coding": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, ONE_OF_THEM),
    "coding beside length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400, ONE_OF_THEM),
    "lengths that disagree": (POST + b"Content-Length: 12\r\nContent-Length: 0\r\n\r\n" + BODY, 400, ONCE),
    "lengths that agree": (POST + b"Content-Length: 12\r\nContent-Length: 12\r\n\r\n" + BODY, 400, ONCE),
    "a list of lengths": (POST + b"Content-Length: 12, 12\r\n\r\n" + BODY, 400, ONCE),
    "a length with a sign": (POST + b"Content-Length: +12\r\n\r\n" + BODY, 400, NOT_HTTP),
    "a negative length": (POST + b"Content-Length: -1\r\n\r\n", 400, NOT_HTTP),
    "a hexadecimal length": (POST + b"Content-Length: 0xc\r\n\r\n" + BODY, 400, NOT_HTTP),
    "an empty length": (POST + b"Content-Length:\r\n\r\n" + BODY, 400, NOT_HTTP),
    "a length with a blank inside": (POST + b"Content-Length: 1 2\r\n\r\n" + BODY, 400, NOT_HTTP),
    "a length of 30 digits": (POST + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n" + BODY, 413, "Content-Length: more than is read"),
    "a blank before the colon": (POST + b"Content-Length : 12\r\n\r\n" + BODY, 400, NOT_HTTP),
    "coding, a blank before the colon": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400, NOT_HTTP),
    "chunked not last": (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400, LAST),
    "chunked twice": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400, LAST),
    "chunked in two headers": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, LAST),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400, LAST),
    "an unknown coding": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400, LAST),
    "a quoted coding": (POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 400, LAST),
    "an empty coding": (POST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n", 400, LAST),
    "a vertical tab before the coding": (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400, NOT_HTTP),
    "another coding, then chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, ONLY),
    "another coding in a header of its own": (
        POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        501,
        ONLY,
    ),
    "HTTP/1.0 with chunks": (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", 400, "Transfer-Encoding: HTTP/1.0 has none"),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505, "HTTP/1.1 and HTTP/1.0 are read, no other version"),
    "HTTP/0.9": (b"GET /\r\n\r\n", 400, NOT_HTTP),
    "bare LF after the request line": (b"GET /health HTTP/1.1\n" + HOST + b"\r\n", 400, LINE_FEED),
    "bare LF after a header": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\nY: 2\r\n\r\n", 400, LINE_FEED),
    "bare LF at the end of the head": (POST + b"Content-Length: 12\r\n\n" + BODY, 400, LINE_FEED),
    "only bare LF": (b"GET /health HTTP/1.1\nHost: 127.0.0.1\n\n", 400, LINE_FEED),
    "bare CR in a header": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\rY: 2\r\n\r\n", 400, NOT_HTTP),
    "CR CR LF": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\r\r\n\r\n", 400, NOT_HTTP),
    "NUL in a header": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: \x00\r\n\r\n", 400, NOT_HTTP),
    "a folded header": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\r\n 2\r\n\r\n", 400, FOLDED),
    "a folded coding": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400, FOLDED),
    "a folded first header": (b"GET /health HTTP/1.1\r\n X: 1\r\n" + HOST + b"\r\n", 400, FOLDED),
    "a chunk size that is none": (CHUNKED + b"zz\r\n", 400, NOT_HTTP),
    "a blank behind a chunk size": (CHUNKED + b"c \r\n" + BODY + b"\r\n0\r\n\r\n", 400, CHUNK_LINES),
    "a tab behind the last chunk size": (CHUNKED + b"c\r\n" + BODY + b"\r\n0\t\r\n\r\n", 400, CHUNK_LINES),
    "a chunk size with a sign": (CHUNKED + b"+c\r\n" + BODY + b"\r\n0\r\n\r\n", 400, NOT_HTTP),
    "a chunk size with 0x": (CHUNKED + b"0xc\r\n" + BODY + b"\r\n0\r\n\r\n", 400, NOT_HTTP),
    "a chunk longer than its size": (CHUNKED + b"3\r\n" + BODY + b"\r\n0\r\n\r\n", 400, NOT_HTTP),
    "a chunk that ends in a bare LF": (CHUNKED + b"c\r\n" + BODY + b"\n0\r\n\r\n", 400, NOT_HTTP),
    "a chunk size that ends in a bare LF": (CHUNKED + b"c\n" + BODY + b"\r\n0\r\n\r\n", 400, NOT_HTTP),
    "chunks of bare LF alone": (CHUNKED + b"c\n" + BODY + b"\n0\n\n", 400, NOT_HTTP),
    "a bare LF in a chunk extension": (CHUNKED + b"c;x\n\r\n" + BODY + b"\r\n0\r\n\r\n", 400, NOT_HTTP),
    "a bare CR in a chunk extension": (CHUNKED + b"c;x\ry\r\n" + BODY + b"\r\n0\r\n\r\n", 400, CHUNK_LINES),
    "an end of chunks with a bare LF": (CHUNKED + b"c\r\n" + BODY + b"\r\n0\r\n\n", 400, CHUNK_LINES),
    "trailers": (CHUNKED + b"c\r\n" + BODY + b"\r\n0\r\nX: 1\r\n\r\n", 400, TRAILERS),
    "trailers with a bare LF": (CHUNKED + b"c\r\n" + BODY + b"\r\n0\r\nX: 1\nY: 2\r\n\r\n", 400, TRAILERS),
    "a head too large": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 60_000 + b"\r\n\r\n", 431, TOO_LARGE),
    "a head that does not end": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 60_000, 431, TOO_LARGE),
    "a head of many headers": (b"GET /health HTTP/1.1\r\n" + HOST + b"X: 1\r\n" * 5_000 + b"\r\n", 431, TOO_LARGE),
    "two empty lines before the request": (b"\r\n\r\n" + POST + b"Content-Length: 12\r\n\r\n" + BODY, 400, NOT_HTTP),
    "an empty line that is a bare LF": (b"\n" + POST + b"Content-Length: 12\r\n\r\n" + BODY, 400, LINE_FEED),
    "a path too long": (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431, TOO_LARGE),
}
READ = {
    "a length": POST + b"Content-Length: 12\r\n\r\n" + BODY,
    "HTTP/1.0 with a length": POST.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: 12\r\n\r\n" + BODY,
    "chunks": CHUNKED + b"c\r\n" + BODY + b"\r\n0\r\n\r\n",
    "the coding in capitals": POST + b"Transfer-Encoding: CHUNKED\r\n\r\nc\r\n" + BODY + b"\r\n0\r\n\r\n",
    "many chunks": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"000\r\n\r\n",
    "chunks with extensions": CHUNKED + b'C;name="a value";x\r\n' + BODY + b"\r\n0;x\r\n\r\n",
    "line ends within a chunk": CHUNKED + b"e\r\n\n" + BODY + b"\r\r\n0\r\n\r\n",
    "an empty line before the request": b"\r\n" + POST + b"Content-Length: 12\r\n\r\n" + BODY,
    "the absolute form of the target": POST.replace(b"/translate", b"HTTP://127.0.0.1/translate") + b"Content-Length: 12\r\n\r\n" + BODY,
    "the host of the target, not of the header": POST.replace(b"/translate", b"http://localhost/translate").replace(
        b"Host: 127", b"Host: 1"
    )
    + b"Content-Length: 12\r\n\r\n"
    + BODY,
    "a head of the largest size": POST + b"X: ".ljust(MAX_HEAD - len(POST) - 26, b"x") + b"\r\nContent-Length: 12\r\n\r\n" + BODY,
}


def conversation(server: Server, data: bytes, *, then: Callable[[socket.socket], None] = lambda _: None) -> bytes:
    """Send bytes and return all that comes until the server closes; a reset fails."""
    with server.connect() as connection:
        connection.sendall(data)
        then(connection)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def only_answer(data: bytes) -> Answer:
    assert len(re.findall(rb"HTTP/1.1 [0-9]", data)) == 1, data
    head, _, body = data.partition(b"\r\n\r\n")
    fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:])
    return Answer(int(head.split()[1]), {name.lower(): value for name, value in fields.items()}, body)


@pytest.mark.parametrize("name", REFUSED)
def test_what_another_reader_could_read_differently_is_refused_and_nothing_after_it_is_read(server: Server, name: str) -> None:
    data, status, error = REFUSED[name]
    answer = only_answer(conversation(server, data + HIDDEN))
    assert (answer.status, answer.error, answer.headers["connection"]) == (status, error, "close")


@pytest.mark.parametrize("name", READ)
def test_what_every_reader_reads_alike_is_answered(server: Server, name: str) -> None:
    found = conversation(server, READ[name] + HIDDEN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    # HTTP/1.0 keeps no connection.
    assert found.count(b"HTTP/1.1 200 OK\r\n") == (1 if "1.0" in name else 2)
    assert b'"translations":[' in found


def events(data: bytes, size: int) -> tuple[list[bytes], bytes, Refusal | None]:
    """Return the requests and the bytes of bodies of what is fed in portions, and why the rest is refused."""
    connection = StrictConnection(h11.SERVER)
    requests, body = [], b""
    for start in range(0, len(data), size):
        connection.receive_data(data[start : start + size])
        try:
            while (event := connection.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                if isinstance(event, h11.Request):
                    requests.append(event.target)
                elif isinstance(event, h11.Data):
                    body += event.data
        except h11.RemoteProtocolError:
            return requests, body, connection.refusal
    return requests, body, None


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_where_the_bytes_are_cut_changes_nothing(size: int) -> None:
    for name, (data, status, error) in REFUSED.items():
        assert events(data, size)[2] == (status, error), name
    for name, data in READ.items():
        assert events(data, size) == ([b"/translate"], BODY if "line ends" not in name else b"\n" + BODY + b"\r", None), name


@pytest.fixture
def burdened() -> Iterator[None]:
    """Keep every processor busy."""
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(10_000))

    threads = [threading.Thread(target=burn) for _ in range(os.cpu_count() or 1)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


MEGABYTE = 1_000_000
EARLY = {
    "no HTTP": (b"\x16\x03\x01\r\n\r\n", 400),
    "two framings": (REFUSED["length beside coding"][0], 400),
    "a chunk that is none": (CHUNKED + b"zz\r\n", 400),
    "a chunk size that ends in a bare LF": (CHUNKED + b"c\n", 400),
    "a head too large": (b"GET / HTTP/1.1\r\n" + HOST + b"X: ", 431),
    "a body too large": (POST + b"Content-Length: 1000000\r\n\r\n", 413),
    "another type": (POST.replace(b"json", b"xml") + b"Content-Length: 1000000\r\n\r\n", 415),
    "no such path": (POST.replace(b"translate", b"nothing") + b"Content-Length: 1000000\r\n\r\n", 404),
    "another host": (POST.replace(b"127.0.0.1", b"evil.com") + b"Content-Length: 1000000\r\n\r\n", 421),
    "another host in the target": (POST.replace(b"/translate", b"http://evil.com/translate") + b"Content-Length: 1000000\r\n\r\n", 421),
    "another method": (POST.replace(b"translate", b"health") + b"Content-Length: 1000000\r\n\r\n", 405),
}


@pytest.mark.parametrize("name", EARLY)
def test_an_answer_arrives_although_the_client_sends_a_megabyte_first(server: Server, burdened: None, name: str) -> None:
    data, status = EARLY[name]

    def client(_: int) -> tuple[int, str]:
        answer = only_answer(conversation(server, data, then=lambda connection: connection.sendall(b"x" * MEGABYTE)))
        return answer.status, answer.headers["connection"]

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(client, range(24))) == {(status, "close")}
    server.wait_until_idle()


def test_an_answer_arrives_although_the_client_sends_slowly(server: Server) -> None:
    def drip(connection: socket.socket) -> None:
        for _ in range(30):
            connection.sendall(b"x" * 1000)
            time.sleep(0.1)

    def client(name: str) -> int:
        return only_answer(conversation(server, EARLY[name][0], then=drip)).status

    names = list(EARLY)[:1] + list(EARLY)[5:]
    with ThreadPoolExecutor(len(names)) as pool:
        assert [*pool.map(client, names)] == [EARLY[name][1] for name in names]


def test_a_client_that_never_closes_is_not_waited_for(server: Server) -> None:
    server.wait_until_idle()
    before = server.descriptors()
    with server.connect() as connection:
        connection.sendall(b"x\r\n\r\n")
        assert only_answer(b"".join(iter(lambda: connection.recv(65536), b""))).status == 400
        started = time.monotonic()
        assert server.descriptors() > before  # it waits whether more comes
        server.wait_until_idle(seconds=MAX_SILENCE + 8)
        assert time.monotonic() - started > MAX_SILENCE / 2


def test_lingering_is_bounded_in_bytes_and_in_time(tmp_path: Path, run_folder: Path) -> None:
    with serving(tmp_path, "--write-timeout", 3, runs=[run_folder]) as server:
        with server.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(b"x\r\n\r\n")
            sent = 0
            while sent < 8 * MAX_BYTES:
                sent += connection.send(b"x" * 65536)
        assert MAX_BYTES / 2 < sent < 4 * MAX_BYTES  # the rest is in the buffers of the system
        started = time.monotonic()
        with server.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(b"x\r\n\r\n")
            while time.monotonic() - started < 30:
                connection.sendall(b"x")
                time.sleep(0.1)
        assert MAX_SILENCE < time.monotonic() - started < 15
        assert server.ask("GET", "/health").status == 200


def test_a_signal_does_not_wait_for_those_who_linger(tmp_path: Path, run_folder: Path) -> None:
    gone = threading.Event()
    with serving(tmp_path, "--write-timeout", 120, "--shutdown-timeout", 100, runs=[run_folder]) as server, server.connect() as connection:
        connection.sendall(b"x\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")

        def drip() -> None:  # as long as it sends, silence does not end it
            with contextlib.suppress(OSError):
                while not gone.wait(MAX_SILENCE / 10):
                    connection.sendall(b"x")

        sender = threading.Thread(target=drip)
        sender.start()
        time.sleep(2 * MAX_SILENCE)
        assert sender.is_alive()
        started = time.monotonic()
        assert server.stop(timeout=100) == 0
        assert time.monotonic() - started < 60  # of 120
        gone.set()
        sender.join()


def test_what_is_answered_before_it_was_read_is_the_last_of_its_connection(server: Server) -> None:
    """A body that nobody waits for cannot be taken for the next request."""
    data = POST.replace(b"json", b"xml") + b"Content-Length: %d\r\n\r\n" % len(HIDDEN)

    def late(connection: socket.socket) -> None:
        time.sleep(0.3)
        connection.sendall(HIDDEN * 2)

    answer = only_answer(conversation(server, data, then=late))
    assert (answer.status, answer.headers["connection"]) == (415, "close")
