"""A program that writes one line and waits is answered: the lines of every command, from pipes, files and terminals."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import runpy
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.commands.streaming import PATIENCE_SECONDS, PAUSE_SECONDS, InputItem, answer_lines, input_chunks, text_reader
from regard.data import lines
from regard.data.lines import iter_lines
from regard.errors import DataError
from regard.tasks.chunking import CHUNK_CHARACTERS, CHUNK_ITEMS
from tests.tasks.tiny import translator
from tests.trust.golden import make

VERSION = make.versions()[-1]
IMAGES = sorted(make.images(VERSION).glob("*.png"))
# For each command: its task, further words, two lines, and the fields of a JSON object that say the first of them.
COMMANDS: dict[str, tuple[str, list[str], list[str], dict[str, str]]] = {
    "translate": ("translation", [], ["ein Hund schläft", "das Haus"], {"text": "ein Hund schläft"}),
    "score": ("lm", [], ["ein Hund schläft", "das Haus"], {"text": "ein Hund schläft"}),
    "generate": ("lm", ["--max-length", "7"], ["ein Hund", "das"], {"text": "ein Hund"}),
    "classify": ("classification", [], ["a good film", "bad"], {"text": "a good film"}),
    "entail": ("entailment", [], ["a dog\tan animal", "a cat\ta dog"], {"premise": "a dog", "hypothesis": "an animal"}),
    "caption": ("captioning", ["--list", "-", "--names"], [str(path) for path in IMAGES[:2]], {"image": str(IMAGES[0])}),
}
# Tasks and commands that answer lines.
LISTED = [*((task, command) for command, (task, *_) in COMMANDS.items()), ("translation", "score"), ("translation", "align")]
# From the start of a process; an answer afterwards takes a fraction of it.
START_SECONDS = 120
ANSWER_SECONDS = 20


def words_of(command: str) -> list[str]:
    task, more, _, _ = COMMANDS[command]
    return [command, str(make.golden(VERSION, task) / "run"), *more]


def told_otherwise(stderr: bytes) -> list[bytes]:
    """Return the lines of standard error that are no warning of unknown words, which the tiny models have many of."""
    return [line for line in stderr.splitlines() if b"unknown to the " not in line]


class Partner:
    """A command as a process that is talked to line by line."""

    def __init__(self, *words: str, stdin: Any = subprocess.PIPE) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "regard", *words],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "REGARD_DEVICE": "cpu"},
        )
        self._read = b""

    def send(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def line(self, seconds: float) -> str:
        """Return the next line, or fail when it does not come in time."""
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._read:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no answer within {seconds} s"
            block = os.read(self.process.stdout.fileno(), 65536)
            assert block, self.process.stderr.read().decode() if self.process.stderr else ""
            self._read += block
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def silent(self, seconds: float) -> bool:
        return not self._read and not select.select([cast(IO[bytes], self.process.stdout)], [], [], seconds)[0]

    def end(self) -> tuple[str, int, str]:
        """Close the input; return what still comes, the exit code and standard error."""
        out, err = self.process.communicate(timeout=ANSWER_SECONDS)
        return (self._read + out).decode(), self.process.returncode, err.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@contextlib.contextmanager
def talking(*words: str, **options: Any) -> Iterator[Partner]:
    partner = Partner(*words, **options)
    try:
        yield partner
    finally:
        partner.close()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_line_is_answered_while_the_input_is_open(command: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    first, second = COMMANDS[command][2]
    expected = call(*words_of(command), stdin=f"{first}\n{second}\n".encode()).out.decode().splitlines()
    with talking(*words_of(command)) as partner:
        partner.send(f"{first}\n".encode())
        assert partner.line(START_SECONDS) == expected[0]
        partner.send(f"{second}\n{first}\n".encode())
        assert [partner.line(ANSWER_SECONDS), partner.line(ANSWER_SECONDS)] == [expected[1], expected[0]]
        partner.send(f"{second}\n".encode() + first[:3].encode())  # stops in the middle of a line
        assert partner.line(ANSWER_SECONDS) == expected[1]
        assert partner.silent(0.5)
        partner.send(f"{first[3:]}\n".encode())
        assert partner.line(ANSWER_SECONDS) == expected[0]
        partner.send(second.encode())  # a last line without an end
        assert partner.silent(0.3)
        out, code, err = partner.end()
        assert (out, code, told_otherwise(err.encode())) == (f"{expected[1]}\n", 0, [])


@pytest.mark.parametrize("command", COMMANDS)
def test_json_lines_keep_their_id(command: str, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    _, _, lines, fields = COMMANDS[command]
    alone = json.loads(call(*words_of(command), "--json", stdin=f"{lines[0]}\n".encode()).out)
    ids: list[Any] = [7, "a", None, {"part": ["\ud800", "\udfff", "é\u2028\u2029\x85"]}]
    given = [json.dumps({"id": identity, **fields}) for identity in ids] + [json.dumps(fields), "{", '{"id": 9}']
    words = [word for word in words_of(command) if word not in ("--list", "-")]  # of captions: objects come from standard input only
    code, out, err = call(*words, "--json-input", stdin="\n".join(given).encode())
    found = [json.loads(line) for line in out.decode().splitlines()]
    for item, identity in zip(found, ids, strict=False):
        assert item.pop("id") == identity
        assert item == pytest.approx(alone) if not nested(item) else item.keys() == alone.keys()
    assert found[4].keys() == alone.keys()
    wanted = ", ".join(f'"{name}": "..."' for name in fields)
    assert found[5:] == [
        {"error": f"line 6: expected a JSON object with {wanted}, found '{{'"},
        {"id": 9, "error": f"line 7: expected a JSON object with {wanted}, found '{{\"id\": 9}}'"},
    ]
    assert code == 1
    assert err.count("regard: error: line ") == 2


def nested(item: dict[str, Any]) -> bool:
    return any(isinstance(value, list | dict) for value in item.values())


@pytest.mark.parametrize(
    ("task", "command", "line", "code"),
    [
        *(
            (task, command, line, code)
            for task, command in LISTED
            for line, code in (("{}", 1), ('{"text": 2}', 1), ('{"x": "\\ud800"', 1))
        ),
        ("translation", "translate", "", 0),
        ("translation", "score", "no column", 1),
        ("translation", "align", "a\tb\tc", 1),
        ("lm", "score", "", 0),
        ("lm", "generate", "", 0),
        ("classification", "classify", "", 0),
        ("entailment", "entail", "", 0),
        ("entailment", "entail", "no column", 1),
        ("entailment", "entail", "a\tb\tc", 1),
        ("captioning", "caption", "no-such.png", 1),
        ("captioning", "caption", "", 1),
    ],
)
def test_a_line_that_cannot_be_read_has_an_empty_answer_and_ends_in_exit_code_1(
    task: str, command: str, line: str, code: int, call: Callable[..., Any]
) -> None:
    more = ["--json-input"] if line.startswith("{") else ["--list", "-"] if command == "caption" else []
    found, out, err = call(command, make.golden(VERSION, task) / "run", *more, stdin=f"{line}\n".encode())
    assert found == code, err
    assert out.count(b"\n") == 1
    assert err.count("regard: error: ") == code
    if code:
        assert "error" in json.loads(out) if more == ["--json-input"] else out == b"\n"


def test_a_slow_writer_sees_each_answer_before_its_next_line_and_a_reader_that_has_gone_ends_the_command() -> None:
    with talking(*words_of("classify")) as partner:
        partner.send(b"good\n")
        partner.line(START_SECONDS)
        for _ in range(5):
            time.sleep(3 * PAUSE_SECONDS)
            partner.send(b"good\n")
            partner.line(ANSWER_SECONDS)
        assert partner.process.stdout is not None
        partner.process.stdout.close()
        partner.send(b"bad\n")
        assert partner.process.wait(ANSWER_SECONDS) == 141
        assert partner.process.stderr is not None
        assert not told_otherwise(partner.process.stderr.read())


def test_a_terminal_is_told_what_to_type() -> None:
    master, slave = pty.openpty()
    try:
        with talking(*words_of("translate"), stdin=slave) as partner:
            os.close(slave)
            assert partner.process.stderr is not None
            assert partner.process.stderr.readline() == b"regard: Type a sentence and press Enter; Ctrl-D ends.\n"
            os.write(master, "ein Hund schläft\n".encode())
            assert partner.line(ANSWER_SECONDS)
            os.write(master, b"\x04")
            assert partner.process.wait(ANSWER_SECONDS) == 0
            assert not told_otherwise(partner.process.stderr.read())
    finally:
        os.close(master)


@contextlib.contextmanager
def standard_input(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Make standard input a pipe of this process; gives its other end."""
    end, begin = os.pipe()
    with open(end, encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        try:
            yield begin
        finally:
            with contextlib.suppress(OSError):
                os.close(begin)


def test_what_has_come_is_given_when_the_input_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_input(monkeypatch) as pipe:
        chunks = input_chunks("a line")
        os.write(pipe, b"\xef\xbb\xbfone\r\ntwo\nthr")
        assert next(chunks) == ["one", "two"]
        os.write(pipe, b"ee\n\n\xef\xbb\xbffour")
        assert next(chunks) == ["three", ""]
        os.close(pipe)
        assert [*chunks] == [["\ufefffour"]]


def test_a_pipe_that_does_not_block_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_input(monkeypatch) as pipe:
        os.set_blocking(sys.stdin.fileno(), False)
        chunks = input_chunks("a line")
        threading.Timer(0.2, os.write, [pipe, b"one\n"]).start()
        assert next(chunks) == ["one"]
        os.close(pipe)
        assert [*chunks] == []


def test_a_writer_that_never_pauses_is_answered_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_input(monkeypatch) as pipe:
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(PAUSE_SECONDS / 5):
                os.write(pipe, b"line\n")

        writer = threading.Thread(target=trickle)
        writer.start()
        started = time.monotonic()
        assert next(input_chunks("a line"))
        assert time.monotonic() - started < 5 * PATIENCE_SECONDS
        stop.set()
        writer.join()


def test_a_file_comes_in_full_chunks_as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\n" * (2 * CHUNK_ITEMS + 5))
    with open(tmp_path / "lines", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        assert [len(chunk) for chunk in input_chunks("a line")] == [CHUNK_ITEMS, CHUNK_ITEMS, 5]


def test_a_full_pipe_comes_in_full_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    with standard_input(monkeypatch) as pipe:
        os.write(pipe, b"a\n" * (2 * CHUNK_ITEMS + 5))
        os.close(pipe)
        assert [len(chunk) for chunk in input_chunks("a line")] == [CHUNK_ITEMS, CHUNK_ITEMS, 5]


def test_a_pipe_that_is_written_while_the_model_works_comes_in_full_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40 * CHUNK_ITEMS
    with standard_input(monkeypatch) as pipe:

        def write() -> None:
            with open(pipe, "wb", closefd=False) as stream:
                stream.writelines(b"line %d\n" % number for number in range(count))
            os.close(pipe)

        writer = threading.Thread(target=write)
        writer.start()
        sizes = []
        for chunk in input_chunks("a line"):
            sizes.append(len(chunk))
            time.sleep(0.05)  # the model's work on it
        writer.join()
    assert sum(sizes) == count
    assert max(sizes) == CHUNK_ITEMS
    assert len(sizes) < 1.5 * count / CHUNK_ITEMS  # a pause of the writer's own costs a chunk


def test_a_line_that_does_not_end_is_an_error_after_the_answers_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20_000)
    (tmp_path / "text").write_bytes(b"a\n" + b"x" * 19_999 + b"\n" + b"x" * 20_011)
    answered: list[int] = []

    def read(*files: Path) -> None:
        answered.clear()
        for chunk in input_chunks("a line", files):
            answered.extend(map(len, chunk))

    why = "line 3: longer than 20,000 bytes, the maximum; is it text with line feeds?"
    with standard_input(monkeypatch) as pipe:
        os.write(pipe, (tmp_path / "text").read_bytes())
        os.close(pipe)
        with pytest.raises(DataError, match=f"standard input, {why}"):
            read()
        for thread in [thread for thread in threading.enumerate() if thread.name == "regard-input"]:
            thread.join()  # before the number of its file is that of another
    assert answered == [1, 19_999]
    with pytest.raises(DataError, match=rf"/text, {why}"):
        read(tmp_path / "text")
    assert answered == [1, 19_999]
    with (tmp_path / "text").open() as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        with pytest.raises(DataError, match=f"standard input, {why}"):
            read()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_without_an_end_is_an_error(command: str) -> None:
    with open("/dev/zero", "rb") as zeros:
        words = [sys.executable, "-m", "regard", *words_of(command)]
        done = subprocess.run(
            words, stdin=zeros, capture_output=True, check=False, timeout=START_SECONDS, env={**os.environ, "REGARD_DEVICE": "cpu"}
        )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"error: standard input, line 1: longer than 67,108,864 bytes" in done.stderr


def test_long_lines_fill_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    line = b"x" * (CHUNK_CHARACTERS // 3)
    with standard_input(monkeypatch) as pipe:

        def write() -> None:
            with open(pipe, "wb", closefd=False) as stream:
                stream.write((line + b"\n") * 7)
            os.close(pipe)

        writer = threading.Thread(target=write)
        writer.start()
        sizes = []
        for chunk in input_chunks("a line"):
            assert {len(text) for text in chunk} == {len(line)}
            sizes.append(len(chunk))
        writer.join()
    assert sum(sizes) == 7
    assert max(sizes) <= 4


@example([b"PK\x03\x04"])  # a zip archive
@example([b"\xff\xfe"])  # UTF-16
@given(st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"x", b"\n")), max_size=12))
def test_lines_from_a_pipe_are_those_of_a_file(pieces: list[bytes]) -> None:
    def lines_or_error(read: Callable[[], Iterator[str]]) -> list[str] | str:
        try:
            return list(read())
        except DataError as error:
            return str(error)

    with pytest.MonkeyPatch.context() as patch, standard_input(patch) as pipe:
        for piece in pieces:
            os.write(pipe, piece)
        os.close(pipe)
        found = lines_or_error(lambda: (line for chunk in input_chunks("a line") for line in chunk))
    assert found == lines_or_error(lambda: iter_lines(io.BytesIO(b"".join(pieces))))


def test_input_that_cannot_be_read_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[..., Any]) -> None:
    class Folder(io.RawIOBase):
        def fileno(self) -> int:
            return descriptor

        def isatty(self) -> bool:
            return False

    descriptor = os.open(tmp_path, os.O_RDONLY)
    folder: Any = Folder()
    folder.buffer = folder
    monkeypatch.setattr("sys.stdin", folder)
    with pytest.raises(DataError, match=r"^standard input: cannot be read \(Is a directory\)$"):
        list(input_chunks("a line"))
    os.close(descriptor)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(DataError, match=r"^standard input: closed; give it lines$"):
        list(input_chunks("a line"))


def test_files_are_read_where_standard_input_is_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Answer(NamedTuple):
        text: str

        def to_json(self) -> dict[str, str]:
            return {"text": self.text}

    path = tmp_path / "a.txt"
    path.write_text("a\nb\n", encoding="utf-8")
    monkeypatch.setattr("sys.stdin", None)
    given: dict[str, Any] = {"json_lines": False, "files": [path]}
    found = answer_lines(
        input_chunks("a line", [path]), text_reader(None), lambda lines: map(Answer, lines), lambda _, item: item.text, **given
    )
    assert found == (2, 0)


def test_a_chunk_is_written_before_the_next_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    class Out(io.BytesIO):
        flushed = 0

        def flush(self) -> None:
            self.flushed = len(self.getvalue())

    raw = Out()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw))
    seen = []

    def chunks() -> Iterator[list[str]]:
        for chunk in (["a", "b"], [], ["c"]):
            yield chunk
            seen.append(raw.flushed)

    assert answer_lines(chunks(), text_reader(None), lambda items: items, lambda number, item: f"{number}{item}", json_lines=False) == (
        3,
        0,
    )
    assert seen == [6, 6, 9]
    assert raw.getvalue() == b"1a\n2b\n3c\n"


FORM = 'expected a JSON object with "text": "...", found '
WRONG = {
    "": FORM,
    "[]": FORM,
    '"text"': FORM,
    '{"id": 5}': FORM,
    "[" * 100_000: "more than 64 levels",
    "9" * 5000: "an integer of 5000 digits",
}
WRONG |= {'{"text": "a", "id": NaN}': "NaN is not JSON", '{"text": "a", "id": 1e999}': "1e999 is too large"}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_no_question_gets_an_answer_of_its_own(line: str, caplog: pytest.LogCaptureFixture) -> None:
    item, head = text_reader(("text",))(3, line)
    assert item is None
    assert head["error"].startswith(f"line 3: {WRONG[line]}")
    assert len(head["error"]) < 200
    assert caplog.messages == [f"error: {head['error']}"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"text": 5}', "text: expected text, found a whole number"),
        ('{"text": null}', "text: expected text, found null"),
        ('{"text": "a", "second": 3.5}', "second: expected text, found a number"),
        ('{"text": "a", "second": null}', "second: expected text, found null"),
        ('{"text": ["a"], "second": "b"}', "text: expected text, found a list"),
        ('{"text": "a", "secnd": "b"}', "'secnd': unknown field; known ones: id, text, second"),
        ('{"text": "a", "prefix": "b"}', "'prefix': unknown field; known ones: id, text, second"),
        ('{"text": "a\\tb", "second": "c"}', 'text: found 2 columns, expected 1; the two inputs are in "text" and "second"'),
        ('{"text": "a", "second": "b\\tc\\td"}', 'second: found 3 columns, expected 1; the two inputs are in "text" and "second"'),
        ('{"text": "a", "second": "b\\nc"}', "second: expected one line of text, without a line feed"),
    ],
)
def test_a_field_that_is_wrong_is_named(line: str, told: str) -> None:
    read = text_reader(("text",), optional=("second",))
    assert read(3, line[:-1] + ', "id": 7}') == InputItem(None, {"id": 7, "error": f"line 3: {told}"})


def test_a_second_input_is_a_field_only_for_models_that_read_two() -> None:
    assert text_reader(("text",), optional=("second",))(1, '{"text": "a", "second": "b"}') == InputItem("a\tb", {})
    assert text_reader(("source", "target"), optional=("second",))(1, '{"source": "a", "second": "b", "target": "c"}').item == ("a\tb", "c")
    found = text_reader(("source", "target"))(1, '{"source": "a", "second": "b", "target": "c"}')
    assert found.head == {"error": "line 1: 'second': unknown field; known ones: id, source, target"}


def test_an_optional_prefix_stands_beside_the_text() -> None:
    read = text_reader(("text",), optional=("second", "prefix"))
    assert read(1, '{"text": "a", "prefix": "b\\ud800", "second": "c"}') == InputItem(("a\tc", "b\ufffd"), {})
    assert read(1, '{"text": "a"}') == InputItem(("a", ""), {})
    assert read(2, '{"text": "a", "prefix": 3}').head == {"error": "line 2: prefix: expected text, found a whole number"}


def test_a_text_is_one_line_of_whole_characters() -> None:
    assert text_reader(("text",))(1, '{"text": "a\\nb\\ud800"}') == InputItem("a b\ufffd", {})


def test_what_is_drawn_for_a_line_does_not_depend_on_how_the_lines_came(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from regard.decoding import SamplingOptions

    made, lines = translator(), [f"a{number} b c" for number in range(20)]

    def drawn(sizes: list[int]) -> list[str]:
        torch.manual_seed(3)
        found, start = [], 0
        for size in sizes:
            found += [item.text for item in made.translate(lines[start : start + size], sampling=SamplingOptions())]
            start += size
        return found

    assert drawn([20]) == drawn([1] * 20) == drawn([3, 17])


def documented(language: str, begins: str) -> str:
    document = (Path(__file__).parents[2] / "docs" / "translation.md").read_text(encoding="utf-8")
    (body,) = [body for body in re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL) if body.startswith(begins)]
    return body


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put `regard` of this interpreter on the path."""
    program = tmp_path / "regard"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m regard "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("REGARD_DEVICE", "cpu")


def test_the_documented_shell_talks_to_it(on_path: None, call: Callable[..., Any]) -> None:
    run = make.golden(VERSION, "translation") / "run"
    script = documented("bash", "coproc").replace("RUN", str(run))
    done = subprocess.run(["bash", "-eu", "-c", script], capture_output=True, check=False, timeout=START_SECONDS)
    assert done.stdout == call("translate", run, stdin=b"a red ball falls\n").out
    assert not told_otherwise(done.stderr)


def test_the_documented_program_talks_to_it(on_path: None, call: Callable[..., Any], tmp_path: Path) -> None:
    run = make.golden(VERSION, "translation") / "run"
    (tmp_path / "block.py").write_text(documented("python", "import json\nimport subprocess"), encoding="utf-8")
    program = runpy.run_path(str(tmp_path / "block.py"))["Translating"](str(run))
    lines = ["ein Hund schläft", "a b"]
    found = [program.ask(line, number) for number, line in enumerate(lines)]
    assert program.close() == 0
    program.process.stdout.close()
    assert [item["id"] for item in found] == [0, 1]
    assert [item["text"] for item in found] == call("translate", run, stdin="\n".join(lines).encode()).out.decode().splitlines()
