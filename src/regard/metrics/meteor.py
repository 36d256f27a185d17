"""METEOR 1.5 by its authors' program through pycocoevalcap; requires an extra and Java."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from regard.arguments import takes_arguments
from regard.errors import DataError, MissingExtraError, missing_extra
from regard.metrics.caption import tokenized_captions
from regard.metrics.caption_tokens import TOKENIZER
from regard.metrics.score import Score

JAR = "meteor-1.5.jar"
# The program reads one line per image and splits it at this sign.
DIVIDER = "|||"


@takes_arguments
def meteor(
    references: Sequence[Sequence[str | Sequence[str]]], hypotheses: Sequence[str | Sequence[str]]
) -> tuple[Score, tuple[float, ...]]:
    """Compute METEOR 1.5 (Denkowski and Lavie, 2014) for English, with stems, synonyms and paraphrases.

    The program takes about ten seconds to start and up to 2 GB of memory.

    Args:
        references: as for `caption_scores`.
        hypotheses: as for `caption_scores`.

    Returns:
        The corpus `Score`, 0 to 1, and a number per image, equal to pycocoevalcap's.

    Raises:
        MissingExtraError: Java or pycocoevalcap is not installed; says how to install it.
        DataError: as for `caption_scores`, or the program fails.

    Example:
        >>> meteor([["a dog"]], [])
        Traceback (most recent call last):
        regard.errors.DataError: meteor: references and hypotheses must have the same length, found 1 and 0
    """
    tokens, guesses, text = tokenized_captions("meteor", references, hypotheses)
    command, folder = find_meteor()
    lines = [[_line(caption) for caption in (*item, guess)] for item, guess in zip(tokens, guesses, strict=True)]
    try:
        items = _scores(command, folder, lines)
    except (OSError, ValueError) as error:
        raise DataError(f"meteor: {JAR} stopped, expected a score for each image (it runs with 2 GB of memory)") from error
    signature = f"nimgs:{len(lines)}|lang:en|norm:yes|tok:{TOKENIZER if text else 'none'}|version:1.5"
    return Score("METEOR", items[-1], "0-1", signature), items[:-1]


def find_meteor() -> tuple[list[str], Path]:
    """Return the program's command and working directory.

    Raises:
        MissingExtraError: Java or pycocoevalcap is not installed; says how to install it.
    """
    package = find_spec("pycocoevalcap")
    if package is None or not package.submodule_search_locations:
        raise missing_extra("METEOR needs pycocoevalcap", "coco")
    folder = Path(next(iter(package.submodule_search_locations))) / "meteor"
    if not (folder / JAR).is_file():
        raise missing_extra(f"METEOR needs pycocoevalcap 1.2 with {JAR}, which is not in {folder}", "coco")
    java = shutil.which("java")
    if java is None:
        raise MissingExtraError("METEOR needs Java, and there is no `java` on the PATH: install a Java runtime, version 8 or newer")
    return [java, "-jar", "-Xmx2G", JAR, "-", "-", "-stdio", "-l", "en", "-norm"], folder


def _line(tokens: Sequence[str]) -> str:
    return " ".join(" ".join(tokens).replace(DIVIDER, "").split())


def _scores(command: list[str], folder: Path, lines: list[list[str]]) -> tuple[float, ...]:
    """Return the scores of all images, then of the corpus."""
    with subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8"
    ) as program:
        try:
            # First counts per image, then all of them in one request.
            counts = [_ask(program, f"SCORE {DIVIDER} " + f" {DIVIDER} ".join(item)) for item in lines]
            first = _ask(program, f"EVAL {DIVIDER} " + f" {DIVIDER} ".join(counts))
            return tuple(float(value) for value in (first, *(_answer(program) for _ in lines)))
        finally:
            program.kill()


def _ask(program: subprocess.Popen[str], line: str) -> str:
    if program.stdin is None:
        raise OSError("no pipe")
    program.stdin.write(line + "\n")
    program.stdin.flush()
    return _answer(program)


def _answer(program: subprocess.Popen[str]) -> str:
    line = program.stdout.readline() if program.stdout else ""
    if not line.endswith("\n"):
        raise OSError("no answer")
    return line.strip()
