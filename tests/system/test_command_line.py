"""What every command has: help, completion, progress on standard error, a width that fits."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from regard import cli, progress
from regard.commands import info
from regard.config import load_config
from regard.tasks import generate
from regard.tasks.run_folder import resolve_precision
from regard.tasks.translation_training import train_translation

COMMAND = [sys.executable, "-m", "regard"]
SMALL = ["vocabulary.kind=word", "model.embed_dim=8", "model.encoder_dim=8", "model.decoder_dim=16", "model.readout_dim=8", "recipe=none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a generated set and a run trained on it for two updates."""
    path = tmp_path_factory.mktemp("line")
    source, target, *_ = generate("copy", path, train=60, test=7, seed=5)
    train_translation(load_config(None, [f"data.source={source}", f"data.target={target}", *SMALL, "training.max_updates=2"]), path / "run")
    return path


def loud(**values: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "REGARD_QUIET"}
    return {**kept, "REGARD_DEVICE": "cpu", "TERM": "xterm", **values}


def commands(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    command = typer.main.get_command(cli.app) if command is None else command
    yield words
    for name, part in getattr(command, "commands", {}).items():
        yield from commands(part, (*words, name))


@pytest.mark.parametrize("words", [*commands()], ids=" ".join)
def test_every_command_has_short_help_and_can_be_quiet(words: tuple[str, ...], call: Callable[..., Any]) -> None:
    code, out, err = call(*words, "-h")
    assert (code, err) == (0, "")
    assert out.decode().startswith(f"Usage: {' '.join(('regard', *words))} ")
    if words and words != ("train",):
        assert b"--quiet" in out


@pytest.mark.parametrize("words", [(), ("train",)], ids=" ".join)
def test_without_a_command_the_help_is_the_answer(words: tuple[str, ...], call: Callable[..., Any]) -> None:
    code, out, err = call(*words)
    assert (code, out) == (2, b"")  # as click has it: a use that does not fit, so nothing that a pipe would take for output
    assert err.startswith(f"Usage: {' '.join(('regard', *words))} ")
    assert len(err.splitlines()) > 10


def test_a_shell_completes_commands() -> None:
    words = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": "regard tr", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, capture_output=True, check=True, env=loud(**words), text=True)
    assert done.stdout.split() == ["train", "translate"]


@pytest.mark.parametrize("table", ["mechanisms", "settings", "tasks"])
def test_a_list_fits_a_terminal_and_is_whole_in_a_pipe(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(info, "write_line", found.append)
    monkeypatch.setattr(info, "terminal_width", lambda: 80)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    info.list_(table)
    assert max(map(len, found)) <= 80
    narrow = " ".join(" ".join(found).replace("# ", "").split())
    found.clear()
    info.list_(table, wide=True)
    if table == "settings":
        assert " ".join(" ".join(found).replace("# ", "").split()) == narrow
        assert max(map(len, found)) > 80


def test_the_device_is_an_option_of_what_trains(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    code, _, err = call("train", "lm", "--device", "tpu", "--out", "r")
    assert (code, "'tpu' is not one of 'cpu', 'cuda'" in err) == (2, True)
    code, out, _ = call("doctor", "--device", "cpu")
    assert (code, b"cpu" in out) == (0, True)
    if not torch.cuda.is_available():
        code, _, err = call("train", "lm", "--device", "cuda", "--out", "r", "--text", "t")
        assert (code, "torch finds no CUDA device" in err) == (2, True)


@pytest.mark.parametrize(
    ("precision", "flags", "warned"), [("fp16", {"avx512f"}, True), ("fp16", {"avx512_fp16"}, False), ("fp32", set(), False)]
)
def test_a_precision_that_is_slower_than_none_says_so(
    precision: str, flags: set[str], warned: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("regard.training.precision.cpu_flags", lambda: flags)
    warnings: list[str] = []
    with progress.listening(lambda event: warnings.append(event.text) if event.warning else None):
        resolve_precision(load_config(None, [f"training.precision={precision}"]), tmp_path, torch.device("cpu"))
    assert [text.partition(":")[0] for text in warnings] == [f"training.precision={precision}"] * warned


def slowly(*words: object, stdin: bytes = b"", quiet: bool = False) -> tuple[list[tuple[float, str]], bytes, int]:
    """Run a command on a pipe; return its lines on standard error with their times, its output and exit code."""
    process = subprocess.Popen(
        [*COMMAND, *map(str, words), *(["--quiet"] if quiet else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=loud(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    begun = time.monotonic()
    process.stdin.write(stdin)
    process.stdin.close()
    told = [(time.monotonic() - begun, line.decode()) for line in process.stderr]
    out = process.stdout.read()
    process.stdout.close()
    process.stderr.close()
    return told, out, process.wait(60)


def test_a_pipe_gets_clean_output_and_news_on_standard_error(folder: Path) -> None:
    told, out, code = slowly("translate", folder / "run", "--beam-size", "1", stdin=b"a b c\n" * 300)
    assert code == 0
    assert out.count(b"\n") == 300
    assert all(line.startswith("regard: ") and "\x1b" not in line for _, line in told)
    # The first line of a stage comes at once; of one stage there is no second within ten seconds.
    stages = [(at, line.split(":")[1]) for at, line in told]
    for at, name in stages:
        assert not [other for other, same in stages if same == name and 0 < other - at < progress.display.LINE_INTERVAL - 1]
    told, quiet_out, code = slowly("translate", folder / "run", "--beam-size", "1", stdin=b"a b c\n" * 300, quiet=True)
    assert (code, told, quiet_out) == (0, [], out)


def test_a_training_tells_on_standard_error_what_it_is_about_and_its_result_on_standard_output(folder: Path, tmp_path: Path) -> None:
    files = ["--source", folder / "train.source", "--target", folder / "train.target", "--out", tmp_path / "run"]
    told, out, code = slowly("train", "translation", *files, *SMALL, "training.max_updates=2")
    assert code == 0
    text = "".join(line for _, line in told)
    for expected in (r"training pairs", r"[\d,]+ parameters", r"\d+ updates? per epoch, 2 in all on cpu", r"step 2  evaluate  loss"):
        assert re.search(expected, text), expected
    assert re.fullmatch(rb"2 updates \(training\.max_updates\); model in .*; sha256 of the last weights [0-9a-f]{64}\n", out)


def test_a_terminal_sees_a_bar_while_a_file_is_translated(folder: Path, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a b c d e f\n" * 12_000)
    main, side = pty.openpty()
    with lines.open("rb") as source, (tmp_path / "out").open("wb") as target:
        process = subprocess.Popen(
            [*COMMAND, "translate", str(folder / "run")], stdin=source, stdout=target, stderr=side, env=loud(COLUMNS="120")
        )
    os.close(side)
    found = b""
    while True:
        try:
            data = os.read(main, 65536)
        except OSError:
            break
        if not data:
            break
        found += data
    os.close(main)
    assert process.wait(60) == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.decode())
    assert re.search(r"Answering .*of 12,000 lines \(\d+%\), \d:\d\d:\d\d left, [\d,]+/s", plain)
    assert (tmp_path / "out").read_bytes().count(b"\n") == 12_000
