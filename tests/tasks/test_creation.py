"""A run that is killed at any write of its creation: the same command, given again, works."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from regard.config import TransformerConfig
from regard.errors import ConfigError, RegardError
from regard.integrations.migrate import Converted
from regard.integrations.migrate_files import Imported, ToolkitVocabulary
from regard.integrations.migrate_run import write_run
from regard.models import build
from regard.tasks import train_captioning, train_translation
from regard.tasks.language_training import train_language
from regard.tasks.run_folder import STAGING, create_run, discard_run, prepare_run
from regard.tasks.translation_run import open_translation_run
from regard.training.lock import LOCK
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

KILLED, WRONG = 9, 3
Start = Callable[[Path, Callable[[str], None]], object]


def fork(action: Callable[[], object]) -> int:
    """Do something in a forked process, which leaves with 0 where that returns, and return the number of the process."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    try:
        action()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(WRONG)


def in_child(action: Callable[[], object]) -> int:
    """Do something in a forked process and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(action), 0)[1])


def leave(event: str) -> None:
    """End the process, as if by SIGKILL, at the first update: by then a run has been created."""
    if event == "update 1":
        os._exit(0)


class Begun(Exception):
    """Says that the first update is about to be made."""


def begun(event: str) -> None:
    if event == "update 1":
        raise Begun


def kill_at(number: int, folder: Path) -> None:
    """End this process, as if by SIGKILL, before its write number `number` (from 0) to what lies in a folder."""
    left = number

    def writes(event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "open":
            return bool(isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        return event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if not writes(event, arguments):
            return
        paths = [os.fsdecode(path) for path in arguments if isinstance(path, str | bytes | os.PathLike)]
        # A path relative to a descriptor comes from shutil.rmtree, which only this folder is cleaned with.
        if any(str(folder) in path or not os.path.isabs(path) for path in paths[:2]):
            if left == 0:
                os._exit(KILLED)
            left -= 1

    sys.addaudithook(hook)


def translation(folder: Path) -> Start:
    config = tiny.configuration(data={**tiny.write_pairs(folder), "max_length": 37}, training={"max_updates": 2})
    return lambda run, on_event: train_translation(config, run, on_event=on_event)


def blocks(folder: Path) -> Start:
    pairs = tiny.write_pairs(folder)
    data = {"source": pairs["source"], "target": pairs["target"], "valid_source": pairs["source"], "valid_target": pairs["target"]}
    config = tiny.configuration(
        data={**data, "max_length": 37, "block_size": 3},
        vocabulary={"shared": False},
        training={"max_updates": 2},
    )
    return lambda run, on_event: train_translation(config, run, on_event=on_event)


def captioning(folder: Path) -> Start:
    config = tiny_captions.configuration(tiny_captions.write_set(folder, count=8)[0])
    return lambda run, on_event: train_captioning(config, run, on_event=on_event)


def sentences(task: str) -> Callable[[Path], Start]:
    def make(folder: Path) -> Start:
        config = tiny_sentences.configuration(folder, task=task, count=20)
        return lambda run, on_event: tiny_sentences.train(config, run, on_event=on_event)

    return make


def language(folder: Path) -> Start:
    config = tiny_language.configuration(data=tiny_language.write_text(folder))
    return lambda run, on_event: train_language(config, run, on_event=on_event)


def imported(folder: Path) -> Start:
    config = TransformerConfig(embed_dim=6, ff_dim=7, num_heads=2, encoder_layers=1, decoder_layers=1)
    model = build(config, source_size=7, target_size=7)
    tokens = ToolkitVocabulary(["<pad>", "<unk>", "</s>", "<s>", "ein", "Hund", "bellt"], pad=0, unk=1, eos=2, start=3, bos=3)
    found = Imported(Converted(config, dict(model.state_dict())), tokens, tokens)
    return lambda run, on_event: write_run(found, run, origin="a test")


KINDS: dict[str, Callable[[Path], Start]] = {
    "translation": translation,
    "blocks": blocks,
    "captioning": captioning,
    "classification": sentences("classification"),
    "entailment": sentences("entailment"),
    "lm": language,
    "import": imported,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_at_any_write_of_its_creation_is_started_by_the_same_command(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each try finds what the one before left, and is killed one write later."""
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    (tmp_path / "data").mkdir()
    start, run = KINDS[kind](tmp_path / "data"), tmp_path / "out" / "run"
    with contextlib.suppress(Begun):  # what is imported when a model is first trained is imported here, not in every process again
        start(tmp_path / "first", begun)

    def begin(number: int) -> None:
        kill_at(number, run.parent)
        start(run, leave)

    number, made = 0, 0
    while (code := in_child(lambda number=number: begin(number))) == KILLED:
        number += 1
        if not made and (run / "config.yaml").exists():  # from here on it is a run, and its writes are others
            number, made = 0, number
            if kind == "import":
                break
    assert made > 20
    if kind == "import":  # it does not go on: it is done
        open_translation_run(run)
        return
    assert code == 0
    assert number > 0
    assert not (run / STAGING).exists()


@pytest.mark.parametrize("number", range(40))
def test_a_run_killed_while_it_is_taken_back_can_be_started_again(tmp_path: Path, number: int) -> None:
    config, run = tiny.configuration(), tmp_path / "run"
    files = {"vocabulary.json": b"{}"}
    prepare_run(run, config, {}, lambda: files)
    (run / "tokens").mkdir()
    (run / "tokens" / "manifest.json").write_text("{}")

    def discard() -> NoReturn:
        kill_at(number, tmp_path)
        discard_run(run, ["config.yaml", "data.json", "vocabulary.json", "tokens"])
        os._exit(0)

    code = in_child(discard)
    assert code in (0, KILLED)
    assert prepare_run(run, config, {}, lambda: files) in ((True,) if code == 0 else (True, False))
    assert (run / "vocabulary.json").is_file()


def test_a_creation_removes_nothing_that_it_did_not_write(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / STAGING).mkdir(parents=True)
    (run / STAGING / "moved.json").write_text(json.dumps(["../mine", "/etc/mine", 3, "vocabulary.json"]))
    (tmp_path / "mine").write_text("mine")
    (run / "thesis.txt").write_text("mine")
    (run / "vocabulary.json").write_text("{}")
    with pytest.raises(ConfigError, match="exists and is not a run"):
        create_run(run, dict)
    assert sorted(path.name for path in run.iterdir()) == ["thesis.txt"]
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_folder_with_nothing_but_a_lock_is_empty(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("")
    assert prepare_run(tmp_path, tiny.configuration(), {}, lambda: {"vocabulary.json": b"{}"})


def test_a_creation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(staging: Path) -> None:
        raise RegardError("no")

    with pytest.raises(RegardError, match="no"):
        create_run(tmp_path, lambda: {"config.yaml": b"", "data.json": b""}, complete=fail)
    assert list(tmp_path.iterdir()) == []
