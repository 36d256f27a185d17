"""What a run attended to at each evaluation is in one file, the same bytes after any kill."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from regard.errors import WriteError
from regard.training import Progress, TrainResult, train
from regard.training.attention_history import FILE, AttentionHistory
from tests.training import tiny


def recorded(model: nn.Module, updates: int) -> Sequence[dict[str, Any]]:
    """Two records that tell of every weight, and of chance, which must be the same at an update whenever it is computed."""
    assert not model.training
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    return [{"number": number, "total": total, "chance": torch.rand(1).item(), "first": updates == 0} for number in range(2)]


def run(folder: Path, at: str | None = None, act: Callable[[], None] | None = None, **changes: object) -> TrainResult:
    def on_event(name: str) -> None:
        if name == at:
            if act is None:
                raise tiny.Killed
            act()

    job = replace(tiny.job(on_event), record_attention=recorded)
    return train(tiny.model(), job, config=tiny.config(**changes), folder=folder)


@pytest.fixture(scope="module", params=[{}, {"ema_decay": 0.9}], ids=["plain", "averaged"])
def undisturbed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], bytes]:
    folder = tmp_path_factory.mktemp("run")
    run(folder, **request.param)
    return request.param, (folder / FILE).read_bytes()


def test_there_is_a_line_for_each_example_before_training_and_at_each_evaluation(undisturbed: tuple[dict[str, Any], bytes]) -> None:
    lines = [json.loads(line) for line in undisturbed[1].splitlines()]
    assert [line["point"]["update"] for line in lines] == [step for step in (0, 3, 6, 9, 12, 15, 18, 21) for _ in range(2)]
    assert [line["number"] for line in lines] == [0, 1] * 8
    assert [line["point"]["loss"] for line in lines[:2]] == [None, None]
    losses = [line["point"]["loss"] for line in lines[2::2]]
    assert losses == sorted(losses, reverse=True)
    assert len({line["total"] for line in lines}) == 8
    assert [line["first"] for line in lines] == [True] * 2 + [False] * 14


def test_the_losses_are_those_of_the_log(tmp_path: Path) -> None:
    run(tmp_path)
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    lines = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    logged = {line["step"]: line["loss"] for line in log if line["event"] == "evaluate"}
    assert {line["point"]["update"]: line["point"]["loss"] for line in lines[2:]} == logged


@pytest.mark.parametrize(
    "moment",
    [
        "record 0",
        "update 1",
        "update 2",
        "evaluate 3",
        "record 3",
        "save 3",
        "update 4",
        "record 6",
        "save 6 rename",
        "saved 6",
        "update 8",
        "record 21",
    ],
)
def test_after_a_kill_the_file_is_the_same_byte_for_byte(tmp_path: Path, undisturbed: tuple[dict[str, Any], bytes], moment: str) -> None:
    changes, expected = undisturbed
    with pytest.raises(tiny.Killed):
        run(tmp_path, moment, **changes)
    run(tmp_path, **changes)
    assert (tmp_path / FILE).read_bytes() == expected


@pytest.mark.parametrize("moment", ["update 5", "evaluate 9", "record 9", "save 6"])
def test_after_a_signal_too(tmp_path: Path, undisturbed: tuple[dict[str, Any], bytes], moment: str) -> None:
    changes, expected = undisturbed
    run(tmp_path, moment, lambda: os.kill(os.getpid(), signal.SIGTERM), **changes)
    assert (tmp_path / FILE).read_bytes() != expected
    run(tmp_path, **changes)
    assert (tmp_path / FILE).read_bytes() == expected


def test_a_line_that_was_not_finished_is_written_again(tmp_path: Path, undisturbed: tuple[dict[str, Any], bytes]) -> None:
    changes, expected = undisturbed
    with pytest.raises(tiny.Killed):
        run(tmp_path, "update 8", **changes)
    with (tmp_path / FILE).open("ab") as file:
        file.write(b'{"number": 0, "total": 1')
    run(tmp_path, **changes)
    assert (tmp_path / FILE).read_bytes() == expected


def test_recording_changes_no_weight(tmp_path: Path) -> None:
    assert run(tmp_path / "watched").weights_sha256 == tiny.run(tmp_path / "plain").weights_sha256
    assert not (tmp_path / "plain" / FILE).exists()


def test_a_run_that_is_done_keeps_its_file(tmp_path: Path) -> None:
    run(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    run(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


def test_another_process_than_the_first_writes_nothing(tmp_path: Path) -> None:
    with AttentionHistory(None, Progress()) as history:
        history.write(3, 0.5, [{"a": 1}])
        history.to_disk()
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_is_not_finite_is_null(tmp_path: Path) -> None:
    with AttentionHistory(tmp_path, Progress()) as history:
        history.write(3, float("inf"), [{"a": 1}])
    assert json.loads((tmp_path / FILE).read_text()) == {"a": 1, "point": {"update": 3, "loss": None}}


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with pytest.raises(WriteError, match=r"attention\.jsonl: cannot be written"), AttentionHistory(tmp_path, Progress()):
        pass
