"""`regard serve` as a process: its start and its end, names and origins, slow and rude clients, many at once."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from regard import progress
from regard.progress import display
from regard.serve import routes
from regard.serve import server as server_module
from regard.serve.endpoints import ServedModel
from regard.serve.middleware import accepts_host, host_names
from regard.serve.routes import open_models
from regard.serve.server import addresses_for_others, listen, run_server
from tests.serve.driver import JSON, Answer, Held, Server, Site, received, serving
from tests.tasks.tiny import TEXTS, trained, translator

HOST = b"Host: 127.0.0.1\r\n"


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("second"), kind="word", model={"attention": None})


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, run_folder: Path, second: Path) -> Iterator[Server]:
    """Return a server of two runs for few connections, which the last test ends."""
    options = ["--max-connections", 5, "--write-timeout", 0.5]
    with serving(tmp_path_factory.mktemp("strict"), *options, runs=[run_folder, second]) as started:
        yield started


def sources(count: int) -> list[str]:
    """Return different lines of the run's own letters."""
    generator = random.Random(5)
    letters = sorted(set("".join(TEXTS)) - {"\n"})
    return [f"{''.join(generator.choices(letters, k=3 + number % 17))}".strip() or "a" for number in range(count)]


def request(body: bytes, *headers: bytes) -> bytes:
    lines = [
        b"POST /translate HTTP/1.1",
        HOST.strip(),
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        *headers,
        b"",
        b"",
    ]
    return b"\r\n".join(lines) + body


def parsed(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in rest)}
    return Answer(int(first.split()[1]), headers, body)


def test_it_says_where_it_is_and_works_there(server: Server) -> None:
    assert server.line == f"run: http://127.0.0.1:{server.port}/\n"
    assert server.ask("GET", "/health").json["models"] == [{"name": "run", "task": "translation", "attends": True}]
    page = server.ask("GET", "/")
    assert page.status == 200
    assert b'"live":true' in page.body
    assert "server" not in page.headers


def test_thirty_clients_at_once_get_what_the_command_line_gives_each_its_own(
    server: Server, run_folder: Path, call: Callable[..., Any]
) -> None:
    lines = sources(120)
    done = call("translate", run_folder, "--json", stdin="".join(line + "\n" for line in lines).encode())
    known = [json.loads(line) for line in done.out.splitlines()]
    # A score is a number of its own for each line, more than the text; in its last digits it may differ with the batch: by some
    # roundings of a probability of 1, whatever is left of its logarithm.
    expected = [(item["text"], pytest.approx(item["hypotheses"][0]["score"], rel=1e-4, abs=1e-6)) for item in known]
    assert len({f"{item['hypotheses'][0]['score']:.3g}" for item in known}) > 80
    gate = threading.Barrier(30)

    def client(number: int) -> list[tuple[int, tuple[str, float]]]:
        gate.wait(60)
        found = []
        for first in range(number, 120, 30):
            # One line, then two that another client asks for, too: answers must not change places within a request either.
            for chosen in ([first], [first, (first + 7) % 120]):
                answer = server.post("/translate", {"text": [lines[i] for i in chosen]})
                assert answer.status == 200, answer
                found += [(i, (item["text"], item["score"])) for i, item in zip(chosen, answer.json["translations"], strict=True)]
        return found

    with ThreadPoolExecutor(30) as pool:
        found = [pair for pairs in pool.map(client, range(30)) for pair in pairs]
    assert len(found) == 360
    assert [pair for pair in found if pair[1] != expected[pair[0]]] == []
    metrics = server.ask("GET", "/metrics").body.decode()
    batches = int(metrics.partition("regard_batch_lines_count ")[2].split()[0])
    assert batches < 240  # so some were taken together


def test_it_answers_to_its_own_names_only(server: Server) -> None:
    assert server.ask("GET", "/health", headers={"Host": "box.lan"}).status == 200
    assert server.ask("GET", "/health", headers={"Host": "evil.com"}).status == 421
    own = f"http://127.0.0.1:{server.port}"
    assert server.ask("POST", "/translate", b'{"text": "a"}', {**JSON, "Origin": own}).status == 200
    assert server.ask("POST", "/translate", b'{"text": "a"}', {**JSON, "Origin": "http://evil.com"}).status == 403


def test_a_head_that_does_not_come_is_not_waited_for(server: Server) -> None:
    silent, slow, second = server.connect(), server.connect(), server.connect()
    slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.")
    second.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
    assert second.recv(65536).startswith(b"HTTP/1.1 200 ")
    second.sendall(b"GET /hea")
    assert received(silent) == b""
    for connection in (slow, second):
        answer = parsed(received(connection))
        assert (answer.status, answer.error) == (408, "the head of the request did not arrive within 1 seconds")


def test_a_client_that_sends_its_head_letter_by_letter_gains_no_time(server: Server) -> None:
    started = time.monotonic()
    with server.connect() as connection:
        try:
            for _ in range(100):
                connection.sendall(b"G")
                time.sleep(0.1)
        except OSError:
            pass
    assert time.monotonic() - started < 8


def test_a_body_that_does_not_come_is_not_waited_for(server: Server) -> None:
    connection = server.connect()
    connection.sendall(request(b"x" * 50)[:-7])
    answer = parsed(received(connection))
    assert (answer.status, answer.error) == (408, "body: did not arrive within 1 seconds")


def test_a_body_too_large_is_refused_with_and_without_a_length(server: Server) -> None:
    assert server.ask("POST", "/translate", b" " * 100_001, JSON).status == 413
    connection = server.connect()
    connection.sendall(b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(11):
        connection.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")
    connection.close()


def test_what_waits_for_permission_to_send_its_body_is_given_it_or_refused(server: Server) -> None:
    body = b'{"text": "a"}'
    with server.connect() as connection:
        connection.sendall(request(body, b"Expect: 100-continue")[: -len(body)])
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
    with server.connect() as connection:
        connection.sendall(request(b" " * 100_001, b"Expect: 100-continue")[:-100_001])
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
        b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_what_is_no_http_is_told_so(server: Server, raw: bytes) -> None:
    connection = server.connect()
    connection.sendall(raw)
    answer = parsed(received(connection))
    assert (answer.status, answer.error) == (400, "this is not HTTP/1.1 as this server reads it")


def test_a_request_for_a_web_socket_is_an_ordinary_one(server: Server) -> None:
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAA"}
    assert server.ask("GET", "/health", headers=headers).status == 200


def test_clients_that_leave_in_the_midst_of_a_request_disturb_nobody(server: Server) -> None:
    whole = request(json.dumps({"text": sources(20)}).encode())
    generator = random.Random(3)
    for number in range(60):
        connection = server.connect()
        connection.sendall(whole[: generator.randrange(1, len(whole))] if number % 2 else whole)
        if number % 3:  # a reset instead of an end
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        connection.close()
    assert server.post("/translate", {"text": "ein Hund"}).status == 200
    server.wait_until_idle()
    assert server.ask("GET", "/health").json["waiting"] == 0


def test_the_log_is_json_and_holds_neither_text_nor_traceback(server: Server) -> None:
    server.post("/translate", {"text": "ein sehr geheimer Satz"})
    lines = server.logged()  # every line of it
    assert {"time", "event"} <= set.intersection(*(set(line) for line in lines))
    assert [line for line in lines if line["event"] == "library"] == []
    assert "geheim" not in server.errors()
    assert "Traceback" not in server.errors()


def test_two_runs_are_served_side_by_side(strict: Server, run_folder: Path, second: Path, call: Callable[..., Any]) -> None:
    names = [str(run_folder), str(second)]  # both folders are called run
    assert [model["name"] for model in strict.ask("GET", "/health").json["models"]] == names
    for number, folder in enumerate((run_folder, second)):
        expected = call("translate", folder, stdin=TEXTS[0].encode()).out.decode().rstrip("\n")
        assert strict.post("/translate", {"text": TEXTS[0], "model": number}).json["translations"][0]["text"] == expected
    assert strict.post("/attention", {"text": TEXTS[0], "model": 1}).status == 422


def test_connections_too_many_are_told_so_and_far_too_many_are_cut(strict: Server) -> None:
    held = [strict.connect() for _ in range(5)]
    answer = strict.ask("GET", "/health")
    assert (answer.status, answer.error, answer.headers["connection"]) == (503, "too many connections", "close")
    held += [strict.connect() for _ in range(5)]
    cut = strict.connect()
    cut.settimeout(5)  # less than the time it has for its head
    assert received(cut) == b""
    for connection in held:
        connection.close()
    until = time.monotonic() + 20
    while strict.ask("GET", "/health").status != 200 and time.monotonic() < until:
        time.sleep(0.05)
    assert strict.ask("GET", "/health").status == 200


def test_an_answer_that_nobody_reads_is_not_kept(strict: Server) -> None:
    strict.wait_until_idle()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", strict.port))
        connection.sendall((b"GET / HTTP/1.1\r\n" + HOST + b"\r\n") * 200)  # pages of a hundred kilobytes and more
        while not [line for line in strict.logged() if line.get("path") == "/"]:
            time.sleep(0.01)
        strict.wait_until_idle()
    assert strict.ask("GET", "/health").status == 200


def test_a_signal_ends_it_when_what_is_running_is_done(strict: Server) -> None:
    idle = strict.connect()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(strict.post, "/translate", {"text": ["der Hund sieht ein Haus"] * 64, "beam_size": 10})
        while "regard_connections 3" not in strict.ask("GET", "/metrics").body.decode():  # this one, the idle one, the running one
            assert not running.done()
        assert strict.stop(signal.SIGINT) == 0
        assert (running.result().status, len(running.result().json["translations"])) == (200, 64)
    assert received(idle) == b""
    events = [line["event"] for line in strict.logged()]
    assert events[-1] == "stopped"
    assert "stopping" in events


@pytest.mark.parametrize("again", [False, True])
def test_what_takes_too_long_to_finish_or_is_signalled_again_is_refused_and_ends(again: bool) -> None:
    held = Held()
    site = Site(held, shutdown_timeout=30 if again else 0.3)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    answers = []

    def converse() -> None:
        connection = socket.create_connection(("127.0.0.1", port), timeout=30)
        connection.sendall(request(b'{"text": "a"}'))
        held.begun.acquire()
        os.kill(os.getpid(), signal.SIGTERM)
        while again and not [line for line in site.logged() if line["event"] == "stopping"]:
            time.sleep(0.01)
        if again:
            os.kill(os.getpid(), signal.SIGTERM)
        answers.append(parsed(received(connection)))

    client = threading.Thread(target=converse)
    assert not run_server(site.service, listening, client.start)
    held.let.set()
    client.join()
    assert (answers[0].status, answers[0].error) == (503, "the server has stopped")
    assert [line["event"] for line in site.logged()] == ["stopping", "request", "stopped"]
    assert site.logged()[-1]["finished"] is False


def test_a_model_still_at_work_does_not_keep_the_process(monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    def leave(code: int) -> None:
        raise SystemExit(code + 7)

    monkeypatch.setattr("regard.serve.routes.open_models", lambda runs, precision: [ServedModel("x", translator())])
    monkeypatch.setattr("regard.serve.server.run_server", lambda *_: False)
    monkeypatch.setattr("os._exit", leave)
    assert call("serve", "x", "--port", 0) == (7, b"", "")


def test_a_port_that_is_taken_is_told_at_once(server: Server, run_folder: Path, call: Callable[..., Any]) -> None:
    message = f"regard: error: --host 127.0.0.1 --port {server.port}: cannot listen there (Address already in use)\n"
    assert call("serve", run_folder, "--port", server.port) == (2, b"", message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-run", "--port", 0], "no-such-run: no such run folder"),
        (["x", "--host", "203.0.113.7", "--port", 0], "--host 203.0.113.7 --port 0: cannot listen there (Cannot assign requested address)"),
        (["x", "--max-lines", 9, "--queue", 8], "--max-lines 9: must not be more than --queue 8, it could never be taken"),
    ],
)
def test_a_wrong_command_line_gets_one_line(words: list[Any], message: str, call: Callable[..., Any]) -> None:
    assert call("serve", *words) == (2, b"", f"regard: error: {message}\n")


def test_a_start_that_takes_long_leaves_the_log_json(run_folder: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    def slow(*given: Any, **options: Any) -> Any:
        with progress.stage("Loading"):
            time.sleep(display.DELAY + 2 * display.FRAME)
        return open_models(*given, **options)

    monkeypatch.delenv("REGARD_QUIET")
    monkeypatch.setattr(routes, "open_models", slow)
    monkeypatch.setattr(server_module, "run_server", lambda service, listening, ready: ready() is None)
    answer = call("serve", run_folder, "--port", 0)
    assert answer.code == 0, answer.err
    assert "Loading" in [json.loads(line)["message"] for line in answer.err.splitlines()]


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(missing: str, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> None:
    for name in [*sys.modules]:
        if name.startswith(("regard.serve.app", "regard.serve.server", missing)):
            monkeypatch.setitem(sys.modules, name, None)
    for name in ("regard.serve.app", "regard.serve.server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    hint = "pip install '.[serve]' in the clone of Regard, or 'FILE.whl[serve]' with its wheel"
    assert call("serve", "x") == (2, b"", f"regard: error: serving needs {missing}, which is not installed: {hint}\n")


def test_on_all_addresses_it_answers_to_addresses_and_tells_them_to_others() -> None:
    for bound in ("0.0.0.0", "::", ""):
        hosts = host_names(bound, ["box.lan"])
        for name in ("192.0.2.7", "10.0.0.1", "2001:db8::1", "localhost", "box.lan", socket.gethostname().lower()):
            assert accepts_host(hosts, name), name
        for name in ("evil.com", "192.0.2.7.evil.com", "1", ""):
            assert not accepts_host(hosts, name), name
    assert not accepts_host(host_names("192.0.2.7", []), "192.0.2.8")
    with listen("127.0.0.1", 0) as alone:
        assert addresses_for_others(alone) == []
    with listen("0.0.0.0", 0) as everywhere:
        port = everywhere.getsockname()[1]
        told = addresses_for_others(everywhere)
        assert told
        assert all(address.startswith("http://") and address.endswith(f":{port}/") for address in told)
