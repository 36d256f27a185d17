"""Input that nobody vouches for: one answer a line whatever the line holds, constant memory, and one line of advice for a mistake."""

from __future__ import annotations

import itertools
import random
import re
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tests.conftest import Answer
from tests.data.test_images import KINDS, hostile, png_chunk, quarters
from tests.tasks.tiny import TEXTS
from tests.trust.conftest import FULL, Check
from tests.trust.golden import make
from tests.trust.measure import MEGABYTE, answered, attempt, environment, memory, python, refused, spending

Checks = Callable[..., Check]
Call = Callable[..., Answer]
VERSION = make.versions()[-1]
RUNS = {task: make.golden(VERSION, task) / "run" for task in make.ASKED}


class Stream(NamedTuple):
    """A verb that reads standard input line by line.

    Attributes:
        task: of the run it takes.
        words: that keep its answers short.
        separator: what a line needs in its midst.
        blank: whether nothing is said of a line without text.
        long: how many lines of a megabyte there are in a full check.
    """

    task: str
    words: tuple[str, ...] = ()
    separator: bytes = b""
    blank: bool = True
    long: int = 7


STREAMS = {
    "translate": Stream("translation", ("--beam-size", "1", "--max-length", "8")),
    "classify": Stream("classification"),
    "entail": Stream("entailment", separator=b"\t"),
    "score": Stream("lm", blank=False, long=1),  # it reads all of a line, token by token
    "generate": Stream("lm", ("--max-length", "3"), blank=False, long=3),
}
BLANK = [b"", b" ", b"\t", b"\r", b"   ", b"\xe3\x80\x80", b"\x0b", b"\xc2\x85", b"\xe2\x80\xa8", b"\x1c"]


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")


def random_lines(count: int, *, separator: bytes = b"", seed: int = 7) -> list[bytes]:
    """Return lines of up to 40 random bytes, none of them a line feed."""
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        line = draw.randbytes(draw.randrange(41)).replace(b"\n", b"\r")
        middle = len(line) // 2
        lines.append(line[:middle].replace(b"\t", b" ") + separator + line[middle:].replace(b"\t", b" ") if separator else line)
    return lines


def words_of(verb: str) -> list[str]:
    return [verb, str(RUNS[STREAMS[verb].task]), *STREAMS[verb].words]


def answers_to(call: Call, verb: str, lines: Sequence[bytes], *more: str) -> Answer:
    return attempt(call, *words_of(verb), *more, stdin=b"".join(line + b"\n" for line in lines))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", STREAMS)
def test_every_line_of_random_bytes_gets_its_own_answer(check: Checks, call: Call, verb: str) -> None:
    c = check("input", f"{verb}: lines of random bytes, an answer each", cases=10_000, quick=100)
    lines = random_lines(c.wanted, separator=STREAMS[verb].separator)
    answer = answers_to(call, verb, lines)
    wrong = answered(answer, len(lines))
    found = answer.out.split(b"\n")
    # What a line is answered does not depend on those around it: some of them again, by themselves.
    alone: dict[int, bytes] = {}
    for place in random.Random(3).sample(range(len(lines)), 20 if FULL else 3):
        alone[place] = answers_to(call, verb, [lines[place]]).out.removesuffix(b"\n")
    for place, line in enumerate(lines):
        differs = place in alone and not close(alone[place], found[place])
        told = f"{found[place]!r} among others, {alone[place]!r} alone" if differs else None
        c.case(f"line {place}", happened=b"\n" not in line, wrong=wrong or told)
    c.note(f"{len(set(found))} different answers, {len(alone)} lines asked again alone")


def close(one: bytes, other: bytes) -> bool:
    """Compare two answers: figures may differ in their last digits."""
    try:
        return bool(np.allclose([float(word) for word in one.split()], [float(word) for word in other.split()], atol=2e-3))
    except ValueError:
        return one == other


@pytest.mark.parametrize("verb", STREAMS)
def test_blank_lines_are_lines(check: Checks, call: Call, verb: str) -> None:
    c = check("input", f"{verb}: blank lines, an answer each", cases=1_000, quick=100)
    lines = [BLANK[place % len(BLANK)] for place in range(c.wanted)]
    answer = answers_to(call, verb, lines)
    wrong = answered(answer, len(lines))
    found = answer.out.split(b"\n")
    for place, line in enumerate(lines):
        said = f"{line!r} was answered {found[place]!r}" if STREAMS[verb].blank and found[place].strip() else None
        c.case(f"line {place}", happened=not line.decode().strip(), wrong=wrong or said)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("verb", STREAMS)
def test_lines_of_a_megabyte_are_answered_in_little_memory(check: Checks, call: Call, verb: str) -> None:
    c = check("input", f"{verb}: lines of 1 MB", cases=STREAMS[verb].long, quick=1)
    size = 2**20 if FULL else 2**16 if STREAMS[verb].blank else 2**13
    bodies = [b"ab " * (size // 3), b"\xc3\xa4" * (size // 2), b"x" * size, b"\xff" * size, b" " * size, b"a" * size, b"\0" * size]
    for place, body in enumerate(bodies[: c.wanted]):
        line = body[: size // 2] + STREAMS[verb].separator + body[size // 2 :]
        lines = [b"ein Hund", line, b"ein Haus"] if not STREAMS[verb].separator else [b"a\tb", line, b"b\ta"]
        with spending() as spent:
            answer = answers_to(call, verb, lines)
        wrong = answered(answer, 3)
        if wrong is None and spent.megabytes > 1500:
            wrong = f"{spent.megabytes:.0f} MB"
        c.case(f"line {place}", happened=len(line) >= 0.99 * size, wrong=wrong)
        c.note(f"{spent.megabytes:.0f} MB, {spent.seconds:.1f} s")


def feed(process: subprocess.Popen[bytes], lines: Sequence[bytes], count: int, sent: list[int]) -> None:
    assert process.stdin
    block = 1000
    try:
        for start in range(0, count, block):
            process.stdin.write(b"".join(lines[place % len(lines)] + b"\n" for place in range(start, min(start + block, count))))
            sent[0] = min(start + block, count)
        process.stdin.close()
    except BrokenPipeError:
        pass


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.skipif(not FULL and verb != "classify", reason="make trust")) for verb in STREAMS]
)
def test_a_million_lines_go_through_in_constant_memory(check: Checks, call: Call, verb: str) -> None:
    c = check("input", f"{verb}: a stream in constant memory, each line its own answer", cases=1_000_000, quick=4_500)
    lines = [line.encode() for line in stream_lines(verb)]
    # A million are many: of what is generated, the first token.
    short = ["--max-length", "1"] if "--max-length" in words_of(verb) else []
    known = answers_to(call, verb, lines, *short).out.split(b"\n")
    sent, early = [0], 0
    with subprocess.Popen(python(*words_of(verb), *short), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        feeder = threading.Thread(target=feed, args=(process, lines, c.wanted, sent))
        feeder.start()
        assert process.stdout
        for place in range(c.wanted):
            found = process.stdout.readline().removesuffix(b"\n")
            expected = known[place % len(lines)]
            wrong = None if found == expected or close(found, expected) else f"{found!r}, expected {expected!r}"
            c.case("line", wrong=wrong)
            if place == c.wanted // 10:
                early = memory("VmHWM", process.pid)
            if place == c.wanted - 2:
                late = memory("VmHWM", process.pid)
        rest = process.stdout.read()
        feeder.join()
        code = process.wait(60)
    grown = (late - early) / MEGABYTE
    c.case("the end", happened=sent[0] == c.wanted and early > 0, wrong=None if (code, rest) == (0, b"") else f"{code}, {rest[:80]!r}")
    c.case("memory", happened=early > 0, wrong=None if grown < 32 else f"grew by {grown:.0f} MB")
    c.note(f"{late / MEGABYTE:.0f} MB at most, {grown:.1f} MB more than after a tenth")


def stream_lines(verb: str) -> list[str]:
    """Return a few hundred different short lines."""
    words = sorted({word for text in TEXTS for word in text.split()})
    pairs = [" ".join(pair) for pair in itertools.product(words, words)]
    if STREAMS[verb].separator:
        return [f"{one}\t{other}" for one, other in zip(pairs, reversed(pairs), strict=True)]
    return [*pairs, *[""] * len(pairs)] if "--max-length" in STREAMS[verb].words else [*pairs, ""]


TRAIN = ["training.max_updates=1", "training.batch_tokens=400", "vocabulary.kind=character", "--out", "{out}"]
SMALL = ["model.embed_dim=4", "model.encoder_dim=4", "model.decoder_dim=8", "model.readout_dim=4"]
FILE_VERBS: dict[str, list[str]] = {
    "evaluate translation": [
        "evaluate",
        "{translation}",
        "--source",
        "{file}",
        "--target",
        "{file}",
        "--beam-size",
        "1",
        "--max-length",
        "3",
    ],
    "evaluate lm": ["evaluate", "{lm}", "--text", "{file}"],
    "evaluate classification": ["evaluate", "{classification}", "--examples", "{file}"],
    "evaluate entailment": ["evaluate", "{entailment}", "--examples", "{file}"],
    "explain": ["explain", "{classification}", "--examples", "{file}"],
    "evaluate links": ["evaluate", "{translation}", "--source", "{file}", "--target", "{file}", "--links", "{file}"],
    "evaluate captions": ["evaluate", "{captioning}", "--captions", "{file}"],
    "classify files": ["classify", "{classification}", "{file}"],
    "caption a list": ["caption", "{captioning}", "--list", "{file}"],
    "view records": ["view", "{file}"],
    "parameters": ["parameters", "{file}"],
    "compare": ["compare", "{file}", "--out", "{out}"],
    "train translation": ["train", "translation", "--source", "{file}", "--target", "{file}", *SMALL, *TRAIN],
    "train lm": ["train", "lm", "--text", "{file}", "model.embed_dim=4", "model.hidden_size=4", "data.context=separate", *TRAIN],
    "train classification": ["train", "classification", "--train", "{file}", *TRAIN],
    "train entailment": ["train", "entailment", "--train", "{file}", *TRAIN],
    "train captioning": ["train", "captioning", "--captions", "{file}", *TRAIN],
}
ENDINGS = ("", ".tsv", ".jsonl", ".json", ".gz", ".yaml")


def content(kind: str) -> bytes:
    """Return a file of so many lines."""
    draw = random.Random(kind)
    match kind:
        case "random bytes":
            return b"\n".join(random_lines(10_000 if FULL else 60))
        case "blank lines":
            return b"".join(draw.choice(BLANK) + b"\n" for _ in range(1_000))
        case "a line of 1 MB":
            return b"a " * (2**19 if FULL else 2**14) + b"\nb\n"
        case "deep JSON":
            depth = 20_000 if FULL else 3_000
            return b"[" * depth + b"]" * depth
        case "columns of random bytes":
            return b"\n".join(random_lines(300, separator=b"\t"))
        case _:
            return b""


def without_warnings(answer: Answer, path: Path) -> Answer:
    """Remove the warning of the first line that is not UTF-8, and that of their number; each comes once at most."""
    err = answer.err
    for told in (r", line \d+: not UTF-8; each invalid byte is read as U\+FFFD", r": \d+ of \d+ lines are not UTF-8"):
        err = re.sub(f"^regard: {re.escape(str(path))}{told}\n", "", err, count=1, flags=re.MULTILINE)
    return answer._replace(err=err)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["random bytes", "blank lines", "a line of 1 MB", "deep JSON", "columns of random bytes", "nothing"])
def test_a_file_that_is_none_is_told_in_a_line(check: Checks, call: Call, tmp_path: Path, kind: str) -> None:
    """Every verb that reads a file either does its work or says in one line why not, by the name of the file."""
    pairs = [(verb, ending) for verb in FILE_VERBS for ending in ENDINGS]
    if kind == "a line of 1 MB":
        pairs = [pair for pair in pairs if pair[0] != "evaluate lm"]  # as `regard score`: a million tokens one after another
    if not FULL:
        pairs = [(verb, ENDINGS[number % len(ENDINGS)]) for number, verb in enumerate(FILE_VERBS)]
        pairs = pairs[:: 1 if kind == "random bytes" else 4]
    c = check("input", f"files of {kind}: done, or one line of advice", cases=len(pairs), quick=len(pairs))
    data, done, slowest = content(kind), 0, (0.0, "")
    for number, (verb, ending) in enumerate(pairs):
        started = time.perf_counter()
        path = tmp_path / f"file{ending}"
        path.write_bytes(data)
        places = {"file": str(path), "out": str(tmp_path / f"out{number}"), **{task: str(run) for task, run in RUNS.items()}}
        answer = without_warnings(attempt(call, *(word.format(**places) for word in FILE_VERBS[verb])), path)
        done, slowest = done + (answer.code == 0), max(slowest, (time.perf_counter() - started, verb))
        wrong = None if answer.code == 0 else refused(answer)
        if wrong is not None and verb == "caption a list" and answer.code == 1:  # an error for each image
            wrong = None if all(line.startswith("regard: error: ") for line in answer.err.splitlines()) else answer.err[:300]
        c.case(f"{verb} {ending}", happened=path.read_bytes() == data, wrong=wrong)
    c.note(f"{done} could be read; the slowest, {slowest[1]}, took {slowest[0]:.1f} s")


def pictures(folder: Path) -> tuple[list[Path], list[Path]]:
    """Write odd pictures of the golden scene; return those that show it exactly, and those that are only like it."""
    scene = Image.open(make.images(VERSION) / "1.png").convert("RGB")
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    exact, like = [folder / "plain.png"], []
    scene.save(exact[0])
    for number, turn in turns.items():
        exif = Image.Exif()
        exif[0x0112] = number
        exact.append(folder / f"exif{number}.png")
        scene.transpose(turn).save(exact[-1], exif=exif)

    def write(name: str, image: Image.Image, form: str, into: list[Path], **options: Any) -> None:
        into.append(folder / name)
        image.save(into[-1], form, **options)

    write("alpha.png", scene.convert("RGBA"), "PNG", exact)
    write("palette.png", scene.quantize(256), "PNG", like)
    write("palette.gif", scene.quantize(256), "GIF", like)
    write("animated.gif", scene, "GIF", like, save_all=True, append_images=[quarters(32, 32)] * 5)
    write("animated.png", scene, "PNG", exact, save_all=True, append_images=[quarters(32, 32)] * 5)
    write("animated.webp", scene, "WEBP", exact, save_all=True, append_images=[quarters(32, 32)] * 5, lossless=True)
    write("wrong-name.jpg", scene, "PNG", exact)
    write("no-name", scene, "BMP", exact)
    write("cmyk.jpg", scene.convert("CMYK"), "JPEG", like)
    write("progressive.jpg", scene, "JPEG", like, progressive=True, quality=95)
    write("grey.png", scene.convert("L"), "PNG", like)
    write("bits.png", scene.convert("1"), "PNG", like)
    write("grey-alpha.png", scene.convert("LA"), "PNG", like)
    write("deep.png", Image.fromarray(np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16), "PNG", like)
    write("float.tif", Image.fromarray(np.linspace(0, 1, 4096, dtype=np.float32).reshape(64, 64)), "TIFF", like)
    write("wide.png", Image.new("RGB", (60_000, 2), (9, 200, 9)), "PNG", like)
    write("tall.jpg", Image.new("RGB", (3, 60_000), (9, 200, 9)), "JPEG", like)
    write("one.png", Image.new("RGB", (1, 1)), "PNG", like)
    exact.append(folder / "garbage.png")
    exact[-1].write_bytes((folder / "plain.png").read_bytes() + b"garbage" * 1000)
    return exact, like


def more_hostile(folder: Path) -> list[Path]:
    """Write files that are no pictures, beside those of the tests of images."""
    files: dict[str, bytes] = {
        "zero.png": b"",
        "text-of-bytes.jpg": bytes(range(256)) * 40,
        "page.png": b"<html><script>alert(1)</script></html>",
        "vector.svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "gif-of-2-to-32-pixels.gif": b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x02\x02D\x01\x00;",
        "bmp-of-2-to-62-pixels.bmp": b"BM" + b"\0" * 8 + b"\x36\0\0\0(\0\0\0" + b"\xff\xff\xff\x7f" * 2 + b"\x01\0\x18\0" + b"\0" * 24,
        "tiff-that-goes-in-circles.tif": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
        "jpeg-of-markers.jpg": b"\xff\xd8" + b"\xff\xe0\x00\x02" * 5000,
        "ppm-of-letters.ppm": b"P6\n99999999999999999999 1\n255\n",
    }
    header = (20).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
    bomb = b"Comment\0\0" + zlib.compress(b"\0" * 50_000_000)
    start = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header)
    files["text-bomb.png"] = start + png_chunk(b"zTXt", bomb) + png_chunk(b"IEND", b"")
    files["pixel-bomb.png"] = start + png_chunk(b"IDAT", zlib.compress(b"\0" * 50_000_000)[: 2**17]) + png_chunk(b"IEND", b"")
    files["two-headers.png"] = start + png_chunk(b"IHDR", (60_000).to_bytes(4, "big") * 2 + b"\x08\x06\0\0\0") + png_chunk(b"IEND", b"")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return [folder / name for name in files]


@pytest.mark.timeout(600)
def test_hostile_images_are_one_line_each_and_odd_ones_show_what_they_show(check: Checks, call: Call, tmp_path: Path) -> None:
    (tmp_path / "odd").mkdir()
    exact, like = pictures(tmp_path / "odd")
    (tmp_path / "no").mkdir()
    # An empty folder is refused as a whole.
    hostiles = [hostile(tmp_path / "no", kind) for kind in KINDS if kind != "folder"] + more_hostile(tmp_path / "no")
    if not FULL:
        exact, like, hostiles = exact[::4], like[::4], hostiles[::3]
    count = len(exact) + len(like) + len(hostiles)
    c = check("input", "odd and hostile images, each by itself", cases=count, quick=count)
    together = check("input", "odd and hostile images in one call, each in its place", cases=count, quick=count)
    expected = attempt(call, "caption", RUNS["captioning"], exact[0]).out
    assert expected.strip()
    answers: dict[Path, bytes] = {}
    largest = slowest = 0.0
    for path in [*exact, *like, *hostiles]:
        with spending() as spent:
            answer = attempt(call, "caption", RUNS["captioning"], path)
        largest, slowest = max(largest, spent.megabytes), max(slowest, spent.seconds)
        if path in hostiles and answer.code == 0 and path.name in ("text-bomb.png", "pixel-bomb.png", "two-headers.png"):
            wrong = answered(answer, 1)  # what is left of it may be read, in little memory
        elif path in hostiles:
            wrong = not_read(answer, path)
        else:
            wrong = answered(answer, 1)
            if wrong is None and path in exact and answer.out != expected:
                wrong = f"seen as {answer.out!r}, expected {expected!r}"
        if wrong is None and (spent.megabytes > 500 or spent.seconds > 20):
            wrong = f"took {spent.megabytes:.0f} MB and {spent.seconds:.1f} s"
        answers[path] = answer.out
        c.case(path.name, happened=path.name == "missing.jpg" or path.exists(), wrong=wrong)
    c.note(f"largest {largest:.0f} MB, slowest {slowest:.1f} s")
    mixed = random.Random(5).sample(sorted(answers), count)
    answer = attempt(call, "caption", RUNS["captioning"], *mixed)
    lines = answer.out.split(b"\n")
    for place, path in enumerate(mixed):
        own = answers[path].removesuffix(b"\n")
        wrong = None if len(lines) == count + 1 and lines[place] == own else f"another answer than alone: {lines[place : place + 1]}"
        together.case(path.name, wrong=wrong if answer.code == 1 else f"exit code {answer.code}: {answer.err[-200:]}")


def not_read(answer: Answer, path: Path) -> str | None:
    """Return what is wrong where an image cannot be read: an empty line, one line that names it, exit code 1."""
    if (answer.code, answer.out) != (1, b"\n"):
        return f"exit code {answer.code}, wrote {answer.out!r}: {answer.err[-300:]}"
    return refused(answer._replace(out=b""), code=1, about=str(path))


MISUSES: list[list[str]] = [
    ["translate"],
    ["translate", "nowhere"],
    ["translate", "one"],
    ["translate", "{lm}"],
    ["translate", "{translation}", "--beam-size", "0"],
    ["translate", "{translation}", "--beam-size", "many"],
    ["translate", "{translation}", "--nonsense"],
    ["translate", "{translation}", "--ensemble", "{lm}"],
    ["translate", "{translation}", "--sample", "--top-p", "3"],
    ["translate", "{translation}", "--precision", "double"],
    ["tranlsate", "{translation}"],
    ["classify", "{classification}", "nowhere.txt"],
    ["classify", "{classification}", "{images}"],
    ["entail", "{classification}"],
    ["score", "{classification}"],
    ["score", "{lm}", "--batch-size", "-1"],
    ["generate", "{lm}", "--temperature", "0.5"],
    ["generate", "{lm}", "--sample", "--beam-size", "3"],
    ["generate", "{lm}", "--sample", "--seed", "-1"],
    ["generate", "sets"],
    ["generate", "copy"],
    ["caption", "{captioning}"],
    ["caption", "{captioning}", "--list", "nowhere"],
    ["caption", "{translation}", "{images}"],
    ["evaluate", "{translation}"],
    ["evaluate", "{translation}", "--source", "one", "--target", "two"],
    ["evaluate", "{lm}", "--examples", "one"],
    ["evaluate", "{classification}", "--examples", "one"],
    ["evaluate", "{translation}", "--source", "one", "--target", "one", "--json", "no/such/../\0/x"],
    ["explain", "{translation}", "--examples", "one"],
    ["view", "{translation}", "--text", "a", "-o", "x.gif"],
    ["view", "one"],
    ["view", "{translation}", "{lm}", "--text", "a", "--image", "one"],
    ["compare", "nowhere.yaml"],
    ["train", "translation", "--out", "x"],
    ["train", "translation", "--source", "one", "--target", "one", "--out", "x", "modle.embed_dim=3"],
    ["train", "translation", "--source", "one", "--target", "one", "--out", "x", "training.batch_tokens=many"],
    ["train", "translation", "--source", "one", "--target", "one", "--out", "one"],
    ["train", "translation", "--source", "one", "--target", "two", "--out", "x"],
    ["train", "translation", "--config", "nowhere.yaml", "--out", "x"],
    ["train", "cooking"],
    ["parameters", "one"],
    ["list", "everything"],
    ["list", "settings", "--task", "cooking"],
    ["serve", "nowhere", "--port", "0"],
    ["serve", "{translation}", "--port", "99999"],
    ["serve", "{translation}", "{lm}", "--port", "0"],
]


def test_a_mistake_on_the_command_line_is_one_line_of_advice(
    check: Checks, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = check(
        "input", "ways to misuse the command line: one line, exit code 2, nothing written", cases=len(MISUSES), quick=len(MISUSES[::2])
    )
    assert len({tuple(words) for words in MISUSES}) == len(MISUSES) >= 25
    misuses = MISUSES if FULL else MISUSES[::2]
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("a\nb\n")
    Path("two").write_text("a\n")
    places = {**{task: str(run) for task, run in RUNS.items()}, "images": str(make.images(VERSION))}
    for words in misuses:
        given = [word.format(**places) if word.startswith("{") else word for word in words]
        wrong = refused(attempt(call, *given, stdin=b"a\n"))
        left = sorted(path.name for path in tmp_path.iterdir())
        c.case(" ".join(words), wrong=wrong or (None if left == ["one", "two"] else f"left {left}"))


def test_a_mistake_in_a_process_of_its_own_is_the_same(check: Checks, tmp_path: Path) -> None:
    """A few of them as a user makes them: through the interpreter, with real pipes."""
    chosen = MISUSES[:3] if FULL else MISUSES[:1]
    c = check("input", "the same through a process: no traceback, exit code 2", cases=3, quick=1)
    for words in chosen:
        given = [word.format(**{task: str(run) for task, run in RUNS.items()}) for word in words]
        done = subprocess.run(python(*given), capture_output=True, input=b"a\n", check=False, env=environment(), cwd=tmp_path)
        c.case(" ".join(words), wrong=refused(Answer(done.returncode, done.stdout, done.stderr.decode())))


assert PngImagePlugin.MAX_TEXT_CHUNK < 50_000_000  # so that a bomb of text is one
