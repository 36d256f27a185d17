"""What a user hears while workers are started."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from regard import progress
from regard.errors import ConfigError
from regard.jobs import open_pool


def test_starting_ray_is_a_stage_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
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
