"""What a user hears while workers are started."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from regard import progress
from regard.errors import ConfigError
from regard.jobs import open_pool, ray_pool


def test_starting_ray_is_a_stage_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    heard: list[str] = []

    def refuse(*_: object, **__: object) -> None:
        assert heard == ["Starting Ray"]
        raise ConnectionError("no room")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=refuse))
    with (
        progress.listening(lambda event: heard.append(event.stage.name) if event.stage and event.kind == "start" else None),
        pytest.raises(ConfigError, match=r"--on ray: no Ray cluster there \(no room\)"),
    ):
        open_pool(["regard"], on="ray")
    assert heard == ["Starting Ray"]


@pytest.fixture
def listener() -> Iterator[Callable[[bytes], str]]:
    """Start a program that answers each connection with given bytes and waits; return its address."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        ended = threading.Event()

        def answer(data: bytes) -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(data)
                ended.wait(30)

        def start(data: bytes) -> str:
            pool.submit(answer, data)
            return f"127.0.0.1:{server.getsockname()[1]}"

        yield start
        ended.set()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no answer in 1 s"),
        (b"\0\0", "no answer in 1 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Ray's protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak Ray's protocol"),
    ],
)
def test_a_port_of_another_program_is_no_cluster(
    listener: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch, data: bytes, why: str
) -> None:
    def never(*_: object, **__: object) -> None:
        pytest.fail("Ray would wait for minutes")

    monkeypatch.setattr(ray_pool, "CONNECT_SECONDS", 1.0)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=never))
    address = listener(data)
    with pytest.raises(ConfigError, match=rf"--on {address}: no Ray cluster there \(another program listens there.*{why}\)"):
        open_pool(["regard"], on=address)


def test_a_cluster_of_this_machine_that_has_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=lambda *_, **__: pytest.fail("Ray waits")))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text(address)
    file = f"{tmp_path}/ray/ray_current_cluster, which `ray stop` removes"
    with pytest.raises(ConfigError, match=f"--on ray: no Ray cluster at {address}, of {file} \\(.*refused\\)"):
        open_pool(["regard"], on="ray")
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ConfigError, match=f"{address}, of RAY_ADDRESS .*refused"):
        open_pool(["regard"], on="ray")


def test_a_program_that_speaks_the_protocol_is_asked_by_ray(listener: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Ray was asked")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=refuse))
    with pytest.raises(ConfigError, match="Ray was asked"):
        open_pool(["regard"], on=listener(b"\0\0\6\4\0\0\0\0\0\0\5\0\0\x40\0"))
