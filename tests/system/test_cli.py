"""The command line as a process among others: pipes, signals, closed and full outputs, exit codes. The verbs are in test_verbs.py."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic_core import SchemaError

from regard import __version__, cli
from regard.commands import terminal
from regard.config import load_config
from regard.tasks import generate, train_translation
from regard.viewer import write_records
from tests.tasks.tiny import FAMILIES

SMALL = ["vocabulary.kind=character", "model.embed_dim=8", "model.encoder_dim=8", "model.decoder_dim=16", "model.readout_dim=8"]
SMALL += ["model.attention.attention_dim=8", "training.batch_tokens=300"]
TRAINING = ["training.max_updates=30", "training.epochs=99", "training.evaluate_every=15", "training.save_every=12"]
TRAINING += ["training.log_every=1", "model.dropout=0.3"]
PYTHON = [sys.executable, "-m", "regard"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a generated set and a run trained on it for two updates."""
    path = tmp_path_factory.mktemp("cli")
    generate("copy", path, train=60, test=7, seed=5)
    files = [f"data.source={path}/train.source", f"data.target={path}/train.target"]
    train_translation(load_config(None, [*files, *SMALL, "training.max_updates=2"]), path / "run")
    return path


def environment(**values: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}, "REGARD_DEVICE": "cpu", **values}


def in_shell(redirection: str, *words: object, **values: str) -> subprocess.CompletedProcess[bytes]:
    """Run `regard` with a redirection that only a shell can make."""
    command = shlex.join([*PYTHON, *map(str, words)])
    return subprocess.run(
        ["bash", "-c", f"{command} {redirection}"], capture_output=True, check=False, env=environment(**values), stdin=subprocess.DEVNULL
    )


# Two ways of buffering: a broken pipe shows at the first line, or when all that was kept back is written at the end.
@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.parametrize("words", [["list"], ["--help"], ["--version"]])
def test_a_reader_that_has_gone_ends_a_verb_quietly(words: list[str], buffering: dict[str, str]) -> None:
    with subprocess.Popen([*PYTHON, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(**buffering)) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, b"")


def test_head_takes_the_first_translation_and_no_more(folder: Path) -> None:
    with subprocess.Popen(
        [*PYTHON, "translate", str(folder / "run"), "--max-length", "2", "--beam-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED="1"),
        pipesize=4096,  # what is written does not fit in: it waits for the reader, however late that is on a busy machine
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"a b c\n" * 4096)  # a whole chunk
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")
        process.stdout.close()
        process.stdin.close()
        assert process.wait(60) == 141
        assert process.stderr.read() == b""


@pytest.mark.parametrize("buffering", [{}, {"PYTHONUNBUFFERED": "1"}])
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_one_line_and_exit_code_2(buffering: dict[str, str]) -> None:
    done = in_shell("> /dev/full", "--version", **buffering)
    assert (done.returncode, done.stderr) == (2, b"regard: error: standard output: No space left on device\n")


def test_a_closed_output_is_one_line_and_exit_code_2() -> None:
    done = in_shell(">&-", "list")
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert done.stderr.startswith(b"regard: error: standard output: closed")


def test_what_would_go_to_a_closed_error_output_does_not_go_among_the_results() -> None:
    done = in_shell("2>&-", "nonsense")
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_closed_input_is_one_line_and_exit_code_2(folder: Path) -> None:
    done = in_shell("<&-", "translate", folder / "run")
    assert (done.returncode, done.stderr) == (2, b"regard: error: standard input: closed; give it lines\n")


def test_bytes_go_in_and_out_whatever_the_locale(folder: Path) -> None:
    done = subprocess.run(
        [*PYTHON, "translate", str(folder / "run"), "--max-length", "3"],
        input="\ufeffäöü\n\x85\nno end".encode() + b"\xff",
        capture_output=True,
        check=False,
        env=environment(LC_ALL="C", PYTHONIOENCODING="ascii"),
    )
    assert done.returncode == 0
    warned, *others = [line for line in done.stderr.splitlines() if b"unknown to the source vocabulary" not in line]
    assert (warned, others) == (b"regard: standard input, line 3: not UTF-8; each invalid byte is read as U+FFFD", [])
    assert done.stdout.count(b"\n") == 3


@pytest.fixture
def _interruptible() -> Iterator[None]:
    # A suite started in the background has SIGINT ignored, and so would every process it starts; a handler here is reset in them.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_ctrl_c_ends_a_translation_quietly(folder: Path) -> None:
    with subprocess.Popen(
        [*PYTHON, "translate", str(folder / "run"), "--max-length", "2", "--beam-size", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED="1"),
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.write(b"a b c\n" * 4096)
        process.stdin.flush()
        assert process.stdout.readline().endswith(b"\n")  # it is at work
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130
        assert process.stderr.read() == b""
        assert rest == b"" or rest.endswith(b"\n")


def training(folder: Path, out: Path, small: list[str] = SMALL) -> list[str]:
    files = ["--source", str(folder / "train.source"), "--target", str(folder / "train.target")]
    return ["train", "translation", *files, "--out", str(out), *small, *TRAINING]


def of_family(name: str) -> list[str]:
    return ["vocabulary.kind=character", f"model={json.dumps(FAMILIES[name])}", "training.batch_tokens=300"]


def digest(out: bytes) -> bytes:
    return out.rsplit(b"sha256 of the last weights ", 1)[1]


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> str:
    """Return the hash of the last weights of the training that nothing interrupts."""
    files = ["recipe=auto", f"data.source={folder}/train.source", f"data.target={folder}/train.target"]  # auto: as the command line does
    return train_translation(load_config(None, [*files, *SMALL, *TRAINING]), folder / "whole").weights_sha256


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_training_and_the_same_command_resumes_it(
    folder: Path, tmp_path: Path, undisturbed: str, call: Callable[..., tuple[int, bytes, str]], number: signal.Signals, code: int
) -> None:
    interrupt_and_resume(training(folder, tmp_path / "run"), tmp_path / "run", undisturbed, call, number, code)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_signal_and_the_same_command_do_no_harm_to_any_model(
    folder: Path, tmp_path: Path, call: Callable[..., tuple[int, bytes, str]], family: str
) -> None:
    finished, out, err = call(*training(folder, tmp_path / "whole", of_family(family)))
    assert finished == 0, err
    words = training(folder, tmp_path / "run", of_family(family))
    interrupt_and_resume(words, tmp_path / "run", digest(out).decode().strip(), call, signal.SIGTERM, 143)


def interrupt_and_resume(
    words: list[str], run: Path, undisturbed: str, call: Callable[..., tuple[int, bytes, str]], number: signal.Signals, code: int
) -> None:
    log = run / "log.jsonl"
    with subprocess.Popen([*PYTHON, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        while process.poll() is None and not (log.exists() and log.read_bytes().count(b'"train"') >= 3):
            time.sleep(0.002)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert f"stopped by signal {number.value} after update".encode() in err
    assert b"sha256" not in out
    assert not (run / "model").exists()
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert events[-1]["event"] == "stop"
    assert 3 <= events[-1]["step"] < 30
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("REGARD_QUIET")
        resumed, out, err = call(*words)
    assert (resumed, digest(out).decode().strip()) == (0, undisturbed)
    assert f"step {events[-1]['step']}  resume" in err
    finished, out, err = call(*words)  # once more: nothing is left to do, and it says so
    assert (finished, digest(out).decode().strip()) == (0, undisturbed)
    assert "  train" not in err
    assert "loss was best at the last evaluation: training.max_updates above 30 may give a better model" in err
    assert b"30 updates (training.max_updates)" in out


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (SchemaError("Error building ...:\n  KeyboardInterrupt: "), 130, ""),
        (MemoryError(), 1, "regard: error: not enough memory; "),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), 1, "regard: error: not enough memory; "),
        (PermissionError(13, "Permission denied", "a.txt"), 2, "regard: error: a.txt: Permission denied\n"),
    ],
)
def test_what_goes_wrong_inside_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, call: Callable[..., tuple[int, bytes, str]], error: BaseException, code: int, told: str
) -> None:
    def fail() -> Iterator[str]:
        raise error

    monkeypatch.setattr("regard.tasks.doctor.report", fail)
    found, out, err = call("doctor")
    assert (found, out) == (code, b"")
    assert err.startswith(told)
    assert err.count("\n") == bool(told)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> Iterator[str]:
        raise ZeroDivisionError

    monkeypatch.setattr("regard.tasks.doctor.report", fail)
    monkeypatch.setattr("sys.argv", ["regard", "doctor"])
    with pytest.raises(ZeroDivisionError):
        cli.main()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "{run}", "--temperature", "0.5"], "--temperature, --top-k, --top-p, --seed: only with --sample"),
        (["translate", "{run}", "--sample", "--temperature", "0"], "temperature must be greater than 0"),
        (["translate", "{run}", "--sample", "--seed", 2**64], "--seed"),
        (["translate", "{run}", "--length-penalty", "nan"], "--length-penalty"),
        (["translate", "{run}", "--n-best", "0"], "--n-best"),
        (["translate", "{run}", "--beam-size", "100000"], "--beam-size: expected at most 10,000"),
        (["translate", "{run}", "--max-length", "-1"], "--max-length"),
        (["translate", "{run}", "more"], "more: no such file"),
        (["score", "{run}", "more"], "unexpected extra argument"),
        (["view", "records.json", "--text", "a"], "--text: not with records.json, a file of records"),
        (["view", "none.json"], "none.json: holds no records"),
        (["view", "{run}", "--text", "a", "--text", "b", "--target", "c"], "--target: goes with one sentence, found 2"),
        (["evaluate", "{run}", "--source", "a", "--target", "a", "--json", "x", "--output", "x"], "--json and --output: both name x"),
        (["check", "{run}", "--json", "loop"], "--json loop: a link that leads back to itself"),
        (["evaluate", "{run}", "--source", "a", "--target", "a", "--baseline", "nowhere"], "nowhere: no such run folder"),
        (["evaluate", "{run}", "--source", "a", "--target", "a", "--link-unit", "letter"], "'letter' is not one of 'word', 'character'"),
        (["generate", "copy", "--out", "a"], "a/train.source: cannot be written"),
        (["parameters", "nowhere.yaml"], "nowhere.yaml: no such configuration file"),
        (["train", "translation", "--out", "x", "--source", "", "--target", "a"], "'': no such file"),
        (["train", "translation", "--epochs", "3"], "No such option: --epochs; settings are given as training.epochs=3"),
        (
            ["train", "translation", "--learning-rate=0.1"],
            "No such option: --learning-rate; settings are given as training.learning_rate=0.1",
        ),
        (["train", "translation", "--frobnicate", "3"], "No such option: --frobnicate"),
        (["--nonsense"], "--nonsense"),
    ],
)
def test_a_mistake_gets_one_line_of_advice(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[..., tuple[int, bytes, str]],
    words: list[Any],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").write_text("a\nb\n")
    Path("loop").symlink_to("loop")
    write_records("none.json", [])
    write_records("records.json", [])
    code, out, err = call(*(str(word).replace("{run}", str(folder / "run")) for word in words), stdin=b"a\n")
    assert (code, out) == (2, b"")
    assert err.startswith("regard: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "loop", "none.json", "records.json"]


def test_the_version_is_printed(call: Callable[..., tuple[int, bytes, str]]) -> None:
    assert call("--version") == (0, f"regard {__version__}\n".encode(), "")


def test_the_speed_goes_to_standard_error_as_json(folder: Path, call: Callable[..., tuple[int, bytes, str]]) -> None:
    code, out, err = call("translate", folder / "run", "--timing", "--max-length", 3, stdin=b"a b\n\nc\n")
    figures = json.loads(err)
    assert (code, out.count(b"\n"), figures["lines"]) == (0, 3, 3)
    assert figures["sentences_per_second"] == pytest.approx(3 / figures["seconds"])


def test_several_examples_are_drawn_apart_and_a_narrow_terminal_is_enough(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., tuple[int, bytes, str]]
) -> None:
    one, other = (call("view", folder / "run", "--text", text)[1] for text in ("a b", "c"))
    assert call("view", folder / "run", stdin=b"a b\n\nc\n")[1] == one + b"\n" + other
    monkeypatch.setenv("COLUMNS", "3")
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(io.BytesIO()))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert terminal.terminal_width() == 20


def test_each_sentence_drawn_is_the_same_whatever_the_batch(folder: Path, call: Callable[..., tuple[int, bytes, str]]) -> None:
    source = (folder / "test.source").read_bytes()
    one, other = (
        call("translate", folder / "run", "--sample", "--seed", 3, "--max-length", 9, "--batch-size", size, stdin=source)[1]
        for size in (1, 5)
    )
    assert one.count(b"\n") == 7
    assert one == other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family"), [*((kind, "gru") for kind in ("bpe", "unigram", "word")), *(("character", family) for family in FAMILIES)]
)
def test_ten_thousand_lines_of_random_bytes_give_as_many(
    tmp_path: Path, call: Callable[..., tuple[int, bytes, str]], kind: str, family: str
) -> None:
    generator = random.Random(7)
    lines = [bytes(generator.randrange(256) for _ in range(generator.randrange(40))).replace(b"\n", b"\r") for _ in range(10_000)]
    (tmp_path / "text").write_bytes(b"\n".join(lines[:500]))
    files = [f"data.source={tmp_path}/text", f"data.target={tmp_path}/text", "data.max_length=60"]
    settings = [*of_family(family), f"vocabulary.kind={kind}", "vocabulary.size=500", "training.max_updates=2"]
    config = load_config(None, [*files, *settings])
    train_translation(config, tmp_path / "run")
    options = ["--beam-size", 1, "--max-length", 8, *(["--replace-unknown"] if kind == "word" else [])]
    code, out, err = call("translate", tmp_path / "run", *options, stdin=b"\n".join(lines))
    assert code == 0, err
    assert out.count(b"\n") == len(out.decode().splitlines()) == 10_000


@pytest.mark.slow
def test_lines_of_a_hundred_kilobytes_are_translated_in_parts_and_named_in_little_memory(folder: Path) -> None:
    import resource

    line = b"a b " * 25_000 + b"\n"
    done = subprocess.run(
        [*PYTHON, "translate", str(folder / "run"), "--max-length", "3"],
        input=line * 7,
        capture_output=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stdout.count(b"\n")) == (0, 7)
    told = [line.partition(": longer than ") for line in done.stderr.decode().splitlines()]
    assert [line for line, _, _ in told] == [f"regard: line {number}" for number in range(1, 8)]
    assert all(re.search(r"in \d{4} parts$", rest) for _, _, rest in told)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2_500_000  # kilobytes


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    assert torch.get_num_threads() == 1  # as in the processes started here, so that hashes can be compared
