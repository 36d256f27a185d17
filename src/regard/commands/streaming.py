"""Line-by-line processing of standard input or files, with answers as soon as the input pauses."""

from __future__ import annotations

import json
import os
import queue
import select
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard import progress
from regard.commands.terminal import write_message, write_text
from regard.errors import ConfigError, DataError, counted, shown
from regard.strict_json import dump_json, kind_of, parse_json

if TYPE_CHECKING:
    from regard.data.vocabulary import Vocabulary

# Input pauses if nothing arrives for this long: a program that waits for an answer has sent its whole line.
PAUSE_SECONDS = 0.02
# Slow continuous input never pauses that long: after this time the received lines are processed anyway.
PATIENCE_SECONDS = 0.2
BLOCK_BYTES = 65_536
# Blocks read ahead while the model computes: several chunks of ordinary lines.
BLOCKS_AHEAD = 64
SHOWN = 80
SECOND, PREFIX = "second", "prefix"
# Bytes of a file whose lines are counted in advance for the progress bar.
MAX_COUNTED = 2**30
# Environment variable that makes a command a worker, which receives shards from its parent process.
WORKER = "REGARD_WORKER"
END = "Ctrl-Z and Enter end" if os.name == "nt" else "Ctrl-D ends"


class InputItem(NamedTuple):
    """One line of input.

    Attributes:
        item: the model's input; None if the line is unreadable.
        head: fields of the answer from the line: its "id", if any, and "error" if it is unreadable.
    """

    item: Any
    head: dict[str, Any]


def input_chunks(awaited: str, files: Sequence[Path] | None = None, *, most: int | None = None) -> Iterator[list[str]]:
    """Yield the lines of files or of standard input in chunks of at most `most`, fewer if the input pauses.

    Files are read in full chunks. On a terminal a prompt asks for input.

    Args:
        awaited: expected input for the prompt, "a sentence".
        files: read one after another; `.gz` too.
        most: max lines per chunk; None: `regard.tasks.chunking.CHUNK_ITEMS`.

    Raises:
        DataError: standard input is closed, or it or a file cannot be read.
    """
    from regard.data.lines import LineDecoder, iter_lines, stream_lines, strip_ends
    from regard.tasks.chunking import CHUNK_CHARACTERS, CHUNK_ITEMS, in_chunks

    most = most or CHUNK_ITEMS
    if files:
        yield from in_chunks((line for path in files for line in stream_lines(path)), len, most=most)
        return
    if sys.stdin is None:
        raise DataError("standard input: closed; give it lines")
    if sys.stdin.isatty():
        write_message(f"Type {awaited} and press Enter; {END}.")
    stream = sys.stdin.buffer
    try:
        descriptor = stream.fileno()
        waits = not stat.S_ISREG(os.fstat(descriptor).st_mode)
    except OSError:  # not a system file: no waiting
        descriptor, waits = -1, False
    if not waits:
        yield from in_chunks(iter_lines(stream), len, most=most)
        return
    progress.hide()  # from here on the command waits for others
    decoder, mark = LineDecoder("standard input"), True
    for chunk in _raw_chunks(_blocks(descriptor), most, CHUNK_CHARACTERS):
        yield list(decoder.decode(strip_ends(chunk, mark=mark)))
        mark = False  # only the first line can start with a byte order mark
    decoder.summarize()


def input_lines(awaited: str) -> Iterator[str]:
    """Yield the lines of standard input one by one; see `input_chunks`."""
    return chain.from_iterable(input_chunks(awaited))


def paired_chunks(chunks: Iterable[list[str]], files: Sequence[Path] | None, second: Path) -> Iterator[list[str]]:
    """Yield the lines of chunks, each with its second input, see `regard.data.input_pairs`.

    Args:
        chunks: chunks of first inputs.
        files: their files; None: standard input.
        second: a file, or "-": standard input.

    Raises:
        ConfigError: both are standard input.
        DataError: the numbers of lines differ; the message names the line.
    """
    from regard.data.lines import iter_lines, stream_lines
    from regard.data.parallel import join_inputs
    from regard.tasks.chunking import take

    standard = str(second) == "-"
    if standard and files is None:
        raise ConfigError("--second-source -: the first inputs are standard input already; give a FILE of these")
    if standard and sys.stdin is None:
        raise DataError("standard input: closed; give it lines")
    others, number = iter_lines(sys.stdin.buffer) if standard else stream_lines(second), 0
    for chunk in chunks:
        found, failure = take(others, len(chunk))
        number += len(found)
        if found:
            yield [join_inputs(*pair) for pair in zip(chunk, found, strict=False)]
        if len(found) < len(chunk):
            lines = counted(number, "line")
            raise failure or DataError(f"{second}: {lines}, but there are more first inputs; line {number + 1} is missing")
    if next(others, None) is not None:
        raise DataError(f"{second}: more than {counted(number, 'line')}, but there is no first input for line {number + 1}")


def complete_reader(read: Callable[[int, str], InputItem], vocabulary: Vocabulary, *how: str) -> Callable[[int, str], InputItem]:
    """Return a reader that marks lines without one of the model's two inputs as unreadable.

    Args:
        read: reads a line.
        vocabulary: source vocabulary.
        how: expected format of the two inputs; none: columns. See `regard.data.input_pairs.PairVocabulary.missing`.
    """

    def checked(number: int, line: str) -> InputItem:
        found = read(number, line)
        text = found.item[0] if isinstance(found.item, tuple) else found.item
        missing = "" if text is None else vocabulary.missing(text, *how)
        if not missing:
            return found
        error = f"line {number}: {missing}"
        write_message(f"error: {error}")
        return InputItem(None, {**found.head, "error": error})

    return checked


def answer_lines(
    chunks: Iterable[list[Any]],
    read: Callable[[int, Any], InputItem],
    work: Callable[[list[Any]], Iterable[Any]],
    show: Callable[[int, Any], str],
    *,
    json_lines: bool,
    total: int | None = None,
    files: Sequence[Path] | None = None,
) -> tuple[int, int]:
    """Write one answer per line, in order, a chunk at a time.

    Args:
        chunks: lines, see `input_chunks`, or other items with one answer each.
        read: converts a line and its number (from 1) to an `InputItem`; see `text_reader`. An unreadable line gets an empty line, or an
            object with its "error".
        work: returns the results of a chunk's items, in order; each has `to_json`, and `error` if its item turned out to be unreadable.
        show: prints warnings about a result to standard error, and returns it as text.
        json_lines: write JSON objects instead of text.
        total: expected number of answers; None: the number of lines, if they come from standard input and that is a file.
        files: of the lines; None: they come from standard input, unless there is a total.

    Returns:
        The number of lines read, and of unreadable ones. A worker of `--input` does not return: it processes shard after shard.
    """

    def answer(chunks: Iterable[list[Any]], total: int | None) -> tuple[int, int]:
        return _answer_chunks(chunks, read, work, show, json_lines=json_lines, total=total, standard=not files)

    if WORKER in os.environ:
        from regard.commands.batch import answer_shards

        answer_shards(lambda _, chunks, total: answer(chunks, total))
    return answer(chunks, total)


def _answer_chunks(
    chunks: Iterable[list[Any]],
    read: Callable[[int, Any], InputItem],
    work: Callable[[list[Any]], Iterable[Any]],
    show: Callable[[int, Any], str],
    *,
    json_lines: bool,
    total: int | None,
    standard: bool,
) -> tuple[int, int]:
    number = bad = 0
    standard = standard and total is None
    with ExitStack() as leaving:
        stage = None
        for chunk in chunks:
            if stage is not None:
                stage.waiting = False
            if not number and not (standard and sys.stdin.isatty()):  # no bar for interactive input
                total = _lines_waiting() if standard else total
                stage = leaving.enter_context(progress.stage("Answering", total=total, unit="lines"))
            questions = [read(number + place, line) for place, line in enumerate(chunk, start=1)]
            items = [question.item for question in questions if question.item is not None]
            found = iter(work(items) if items else ())
            for question in questions:
                number += 1
                if question.item is None:
                    bad += 1
                    write_text(dump_json(question.head) if json_lines else "")
                    continue
                result = next(found)
                bad += getattr(result, "error", None) is not None
                text = show(number, result)
                write_text(dump_json({**question.head, **result.to_json()}) if json_lines else text)
            sys.stdout.flush()
            if stage is not None:
                stage.advance(len(chunk))
                stage.waiting = True
    return number, bad


def _lines_waiting() -> int | None:
    # For a file of ordinary size, from its beginning (some is already read): counting takes a second per gigabyte.
    try:
        descriptor = sys.stdin.buffer.fileno()
        found = os.fstat(descriptor)
    except (OSError, ValueError, AttributeError):  # not a system file
        return None
    if not stat.S_ISREG(found.st_mode) or found.st_size > MAX_COUNTED:
        return None
    lines, place, last = 0, 0, b"\n"
    while block := os.pread(descriptor, 2**20, place):
        place, lines, last = place + len(block), lines + block.count(b"\n"), block[-1:]
    return lines + (last != b"\n")


def text_reader(fields: tuple[str, ...] | None, *, optional: tuple[str, ...] = (), breaks: bool = False) -> Callable[[int, str], InputItem]:
    """Return the line reader of a command, for `answer_lines`.

    Args:
        fields: JSON fields of the texts, one string or a tuple; None: lines are plain text.
        optional: fields that objects may have: "second", a second input, which is joined to the first text, and "prefix", the last of the
            tuple, "" without.
        breaks: keep line feeds inside a text of an object.

    Example:
        >>> text_reader(("text",))(1, '{"id": 7, "text": "a dog"}')
        InputItem(item='a dog', head={'id': 7})
    """
    if fields is None:
        return lambda _, line: InputItem(line, {})
    from regard.data.lines import whole_characters
    from regard.data.parallel import join_inputs

    def read(number: int, line: str) -> InputItem:
        value, wrong = _parse(line.removeprefix("\ufeff") if number == 1 else line)
        head = {"id": value["id"]} if isinstance(value, dict) and "id" in value else {}
        if wrong := wrong or _wrong(value, line, fields, optional):
            error = f"line {number}: {wrong}"
            write_message(f"error: {error}")
            return InputItem(None, {**head, "error": error})
        if "second" in value:
            value[fields[0]] = join_inputs(value[fields[0]], value["second"])
        # Other line separators inside a line become spaces.
        texts = [value[name] for name in fields] + [value.get(name, "") for name in optional if name == PREFIX]
        whole = [whole_characters(text).replace("\n", "\n" if breaks else " ") for text in texts]
        return InputItem(whole[0] if len(whole) == 1 else tuple(whole), head)

    return read


def _wrong(value: Any, line: str, fields: tuple[str, ...], optional: tuple[str, ...]) -> str:
    # The error in a line's object; "" if none.
    if isinstance(value, dict) and "second" in value and "second" in optional:
        value.setdefault(fields[0], "")
    if not isinstance(value, dict) or not value.keys() >= set(fields):
        wanted = ", ".join(f'"{name}": "..."' for name in fields)
        return f"expected a JSON object with {wanted}, found {line if len(line) <= SHOWN else f'{line[:SHOWN]}...'!r}"
    known = ("id", *fields, *optional)
    for name, text in value.items():
        if name not in known:
            return f"{shown(name)}: unknown field; known ones: {', '.join(known)}"
        if name != "id" and not isinstance(text, str):
            return f"{name}: expected text, found {kind_of(text)}"
    for name in (fields[0], "second") if "second" in optional else ():
        if columns := value.get(name, "").count("\t"):
            return f'{name}: found {columns + 1} columns, expected 1; the two inputs are in "{fields[0]}" and "second"'
    broken = [name for name in optional if "\n" in value.get(name, "")]
    return f"{broken[0]}: expected one line of text, without a line feed" if broken else ""


def _parse(line: str) -> tuple[Any, str]:
    # The value of a line, and what is wrong with its JSON beyond its form.
    try:
        return parse_json(line, allow_nan=False), ""
    except json.JSONDecodeError:
        return None, ""
    except ValueError as error:
        return None, str(error)


def _blocks(descriptor: int) -> queue.Queue[bytes | OSError]:
    # A thread reads ahead while the model computes; b"" is the end. It may still be blocked when the command ends, so it holds no Python
    # lock (`sys.stdin` has one).
    blocks: queue.Queue[bytes | OSError] = queue.Queue(BLOCKS_AHEAD)

    def read() -> None:
        block: bytes | OSError = b"more"
        while block and not isinstance(block, OSError):
            try:
                block = os.read(descriptor, BLOCK_BYTES)
            except BlockingIOError:  # the other program has made the pipe non-blocking
                select.select([descriptor], [], [])
                continue
            except OSError as error:
                block = error
            blocks.put(block)

    threading.Thread(target=read, name="regard-input", daemon=True).start()
    return blocks


def _raw_chunks(blocks: queue.Queue[bytes | OSError], most: int, most_bytes: int) -> Iterator[list[bytes]]:
    # Lists of complete lines; an incomplete line waits for its rest or for the end of the input.
    from regard.data.lines import MAX_LINE_BYTES, line_too_long

    lines: list[bytes] = []
    rest: list[bytes] = []
    deadline, number, size = 0.0, 1, 0
    while True:
        try:
            wait = min(PAUSE_SECONDS, deadline - time.monotonic()) if lines else None
            block = blocks.get(timeout=None if wait is None else max(wait, 0.0))
        except queue.Empty:
            yield lines
            lines = []
            continue
        if isinstance(block, OSError):
            raise DataError(f"standard input: cannot be read ({block.strerror})") from block
        if not block:
            break
        if not lines:
            deadline = time.monotonic() + PATIENCE_SECONDS
        *whole, last = block.split(b"\n")
        if whole:
            whole[0] = b"".join([*rest, whole[0]])
            rest, size, number = [], 0, number + len(whole)
        lines += [line + b"\n" for line in whole]
        rest.append(last)
        if (size := size + len(last)) > MAX_LINE_BYTES:
            if lines:  # answered before the error
                yield lines
            raise line_too_long("standard input", number)
        while full := _full(lines, most, most_bytes):
            yield lines[:full]
            lines = lines[full:]
    if tail := b"".join(rest):
        lines.append(tail)
    while lines:
        full = _full(lines, most, most_bytes) or len(lines)
        yield lines[:full]
        lines = lines[full:]


def _full(lines: list[bytes], most: int, most_bytes: int) -> int:
    # Number of lines that complete a chunk; 0 if not yet.
    if sum(map(len, lines)) < most_bytes:
        return most if len(lines) >= most else 0
    size = 0
    for count, line in enumerate(lines[:most], start=1):
        size += len(line)
        if size >= most_bytes:
            return count
    return most if len(lines) >= most else 0
