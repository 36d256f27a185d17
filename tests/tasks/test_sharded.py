"""Training on shards: every pair once an epoch, the same batches whoever makes the tokens, exact after a kill, index kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config import TranslationConfig
from regard.data.vocabulary import EOS, Vocabulary
from regard.errors import ConfigError, DataError
from regard.tasks import train_translation
from regard.tasks.sharded import INDEX, LENGTHS, ShardedCorpus, ShardedText
from tests.tasks.tiny import TEXTS, configuration

LINES = [TEXTS[number % 5] + " Hund" * (number % 4) for number in range(83)]
LINES[7], LINES[30], LINES[82] = "", " \t", "Haus " * 60


def write_shards(folder: Path, sizes: tuple[int, ...] = (40, 1, 42)) -> dict[str, Any]:
    """Write three shards of pairs and a validation set; returns the `data` part of a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, size in enumerate(sizes):
        for side in ("source", "target"):
            lines = [line if side == "source" else " ".join(line.split()[::-1]) for line in LINES[start : start + size]]
            (folder / f"{number}.{side}").write_text("".join(line + "\n" for line in lines))
        start += size
    for side in ("valid_source", "valid_target"):
        (folder / side).write_text("".join(line + "\n" for line in TEXTS))
    files = {"source": f"{folder}/*.source", "target": f"{folder}/*.target"}
    return {
        **files,
        **{side: str(folder / side) for side in ("valid_source", "valid_target")},
        "sharded": True,
        "max_length": 100,
        "block": 16,
    }


def corpus(folder: Path, *, workers: int = 0, block: int = 16, max_length: int = 100) -> ShardedCorpus:
    data = write_shards(folder / "text")
    Vocabulary.train(LINES, kind="character", size=100).save(folder / "vocabulary.json")
    text = ShardedText.scan(data["source"], data["target"], block)
    files = (folder / "vocabulary.json", folder / "vocabulary.json")
    return ShardedCorpus(text, vocabularies=files, max_length=max_length, workers=workers, folder=folder / "index")


def test_an_epoch_holds_every_usable_pair_once_and_its_own_text(tmp_path: Path) -> None:
    subject = corpus(tmp_path)
    assert subject.advance(seconds=60) == 0
    assert (subject.left_out, subject.size) == ({"empty": 2, "too long": 1}, 80)
    vocabulary = Vocabulary.load(tmp_path / "vocabulary.json")
    plans = [subject.plan(batch_tokens=150, seed=3, epoch=epoch) for epoch in (0, 0, 1)]
    assert list(plans[0]) == list(plans[1])
    assert list(plans[0]) != list(plans[2])
    assert len(plans[0]) == len(plans[2])
    for plan in plans[1:]:
        drawn = [index for planned in plan for index in planned.indices]
        assert sorted(drawn) == [number for number in range(83) if number not in (7, 30, 82)]
        for planned in plan:
            batch = subject.batch(planned)
            assert batch.source.numel() <= 150 or len(planned.indices) == 1
            assert planned.tokens == int(batch.target_lengths.sum())
            for row, index in enumerate(planned.indices):
                expected = vocabulary.encode_ids([LINES[index]])[0]
                assert batch.source[row, : batch.source_lengths[row]].tolist() == [*expected, EOS]
    assert plans[0][2:4] == [plans[0][2], plans[0][3]]
    assert plans[0][-1] == list(plans[0])[-1]


def test_processes_make_the_same_tokens(tmp_path: Path) -> None:
    alone, helped = corpus(tmp_path / "a"), corpus(tmp_path / "b", workers=2)
    try:
        for each in (alone, helped):
            assert each.advance(seconds=60) == 0
        assert (tmp_path / "a" / "index" / LENGTHS).read_bytes() == (tmp_path / "b" / "index" / LENGTHS).read_bytes()
        plans = [each.plan(batch_tokens=150, seed=1, epoch=0) for each in (alone, helped)]
        assert list(plans[0]) == list(plans[1])
        for planned in plans[0]:
            batches = [each.batch(planned) for each in (alone, helped)]
            assert all(bool((one == other).all()) for one, other in zip(batches[0][:5], batches[1][:5], strict=True))
    finally:
        helped.close()


def test_a_helper_that_dies_is_told_of_and_changes_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    alone, helped = corpus(tmp_path / "a"), corpus(tmp_path / "b", workers=1)
    helped.tell = said.append
    try:
        for each in (alone, helped):
            assert each.advance(seconds=60) == 0
        plans = [each.plan(batch_tokens=150, seed=1, epoch=0) for each in (alone, helped)]
        helped.batch(plans[1][0])
        assert helped._pool is not None
        for helper in list(helped._pool._processes):
            os.kill(helper, signal.SIGKILL)
        for planned in plans[0]:
            assert bool((alone.batch(planned).source == helped.batch(planned).source).all())
        assert len(said) == 1
        assert "has died" in said[0]
    finally:
        helped.close()


def test_what_is_counted_stays_counted_unless_it_is_of_something_else(tmp_path: Path) -> None:
    first = corpus(tmp_path)
    left = [first.advance(seconds=0)]
    while left[-1]:
        left.append(corpus(tmp_path).advance(seconds=0))
    assert left == list(range(len(first.blocks) - 1, -1, -1))  # a block a call, each by a process that knows of the others from the disk
    whole = (tmp_path / "index" / LENGTHS).read_bytes()
    assert np.frombuffer(whole, np.uint16).shape == (166,)
    assert corpus(tmp_path).advance(seconds=0) == 0
    assert corpus(tmp_path, max_length=50).advance(seconds=0) == len(first.blocks) - 1  # other settings: from the start
    (tmp_path / "index" / INDEX).write_text("{")
    again = corpus(tmp_path)
    assert again.advance(seconds=60) == 0
    assert (tmp_path / "index" / LENGTHS).read_bytes() == whole
    assert again.left_out == {"empty": 2, "too long": 1}
    with pytest.raises(DataError, match=r"index\.json: expected the whole index"):
        corpus(tmp_path, max_length=50).open_index()
    again = corpus(tmp_path)
    again.open_index()
    assert again.size == 80


def settings(folder: Path, **data: Any) -> TranslationConfig:
    return configuration(data={**write_shards(folder), **data}, training={"batch_tokens": 150, "max_updates": 9, "save_every": 2})


@pytest.mark.parametrize("event", ["update 5", "update 8"])
def test_a_killed_training_goes_on_as_if_it_never_was(tmp_path: Path, event: str) -> None:
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == event:
            raise Killed

    config = settings(tmp_path / "text", workers=0)
    whole = train_translation(config, tmp_path / "whole", say=lambda line: None)
    with pytest.raises(Killed):
        train_translation(config, tmp_path / "run", say=lambda line: None, on_event=kill)
    found = train_translation(settings(tmp_path / "text", workers=1), tmp_path / "run", say=lambda line: None)
    assert (found.step, found.weights_sha256) == (whole.step, whole.weights_sha256)


def test_what_does_not_fit_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "text")
    for change, message in (
        ({"valid_source": None, "valid_target": None}, r"data\.valid_source: needed with data\.sharded"),
        ({"target": None}, r"data\.target: needed with data\.sharded"),
        ({"max_length": 70_000}, r"data\.max_length: 70000; at most 65535"),
    ):
        with pytest.raises(ConfigError, match=message):
            train_translation(configuration(data={**data, **change}), tmp_path / "run", say=lambda line: None)
    for side in ("valid_source", "valid_target"):
        (tmp_path / "text" / side).write_text("a\n")
    with pytest.raises(DataError, match=r"no sentence pair of any shard can be used \(2 empty, 81 too long\)"):
        train_translation(configuration(data={**data, "max_length": 1, "workers": 0}), tmp_path / "run", say=lambda line: None)
    assert not (tmp_path / "run").exists()


def test_other_blocks_or_another_text_are_another_run(tmp_path: Path) -> None:
    train_translation(settings(tmp_path / "text", workers=0), tmp_path / "run", say=lambda line: None)
    with pytest.raises(ConfigError, match=r"data\.block: 16 -> 32"):
        train_translation(settings(tmp_path / "text", workers=0, block=32), tmp_path / "run", say=lambda line: None)
    config = settings(tmp_path / "text", workers=0)
    (tmp_path / "text" / "1.source").write_text("ein anderer Hund\n")
    with pytest.raises(ConfigError, match="the source file has other content"):
        train_translation(config, tmp_path / "run", say=lambda line: None)


PROGRAM = """
import sys, time
from pathlib import Path
from tests.tasks.test_sharded import corpus
if __name__ == "__main__":
    subject = corpus(Path(sys.argv[1]), workers=2)
    subject.advance(seconds=60)
    print(*(process for process in subject._pool._processes), flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_processes_that_make_tokens_leave_with_a_killed_training(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(root / "src"), str(root)])
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "text")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, text=True) as program:
        assert program.stdout is not None
        helpers = [int(word) for word in program.stdout.readline().split()]
        assert len(helpers) == 2
        program.send_signal(signal.SIGKILL)
    end = time.monotonic() + 20
    while any(Path(f"/proc/{helper}").exists() and "Z" not in Path(f"/proc/{helper}/stat").read_text().split()[2] for helper in helpers):
        assert time.monotonic() < end, "a process outlived the one it works for"
        time.sleep(0.05)


def test_the_log_of_a_run_says_how_many_were_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    train_translation(settings(tmp_path / "text", workers=0), tmp_path / "run", say=said.append)
    assert any("80 training pairs, 5 validation pairs" in line for line in said)
    assert "training pairs left out: 2 empty, 1 too long" in said
    assert Counter(json.loads((tmp_path / "run" / "shards" / INDEX).read_text())["left_out"]) == {"empty": 2, "too long": 1}
