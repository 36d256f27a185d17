"""METEOR: what is missing is said; with Java and pycocoevalcap there, the official numbers."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.errors import DataError, MissingExtraError
from regard.metrics import meteor

# Answers like the jar: counts for SCORE, and for EVAL a line for each image and one for all.
PROGRAM = """#!{python}
import sys
for line in sys.stdin:
    parts = line.rstrip("\\n").split(" ||| ")
    if parts[0] == "SCORE":
        print(len(parts[1:]), flush=True)
    else:
        print(*[float(part) / 10 for part in parts[1:]], 0.25, sep="\\n", flush=True)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay a package with an empty jar on the path; return the folder that is the whole PATH."""
    folder = tmp_path / "packages" / "pycocoevalcap" / "meteor"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "meteor-1.5.jar").touch()
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "packages")])
    monkeypatch.delitem(sys.modules, "pycocoevalcap", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    importlib.invalidate_caches()
    return tmp_path / "bin"


def write_java(folder: Path, text: str) -> None:
    program = folder / "java"
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "pycocoevalcap", raising=False)
    with pytest.raises(MissingExtraError, match=r"\[coco\]"):
        meteor([["a"]], ["a"])


def test_without_java_java_is_named(installed: Path) -> None:
    with pytest.raises(MissingExtraError, match="Java"):
        meteor([["a"]], ["a"])


def test_without_the_jar_the_jar_is_named(installed: Path) -> None:
    (installed.parent / "packages" / "pycocoevalcap" / "meteor" / "meteor-1.5.jar").unlink()
    with pytest.raises(MissingExtraError, match=r"meteor-1\.5\.jar"):
        meteor([["a"]], ["a"])


def test_each_image_has_its_answer_and_the_corpus_the_last(installed: Path) -> None:
    write_java(installed, PROGRAM.format(python=sys.executable))
    score, items = meteor([[["a", "dog"], ["one", "|||", "dog"]], [["a", "cat"]]], [["the", "dog"], ["the\ncat"]])
    assert items == (0.3, 0.2)  # captions in the line, over ten
    assert str(score) == "METEOR 0.2500 [nimgs:2|lang:en|norm:yes|tok:none|version:1.5]"
    assert "|tok:regard-ptb|" in meteor([["A dog."]], ["the dog"])[0].signature


def test_a_program_that_stops_is_a_data_error(installed: Path) -> None:
    write_java(installed, "#!/bin/sh\nexit 1\n")
    with pytest.raises(DataError, match="stopped"):
        meteor([["a"]], ["a"])


@pytest.mark.parametrize(
    ("references", "hypotheses", "message"),
    [
        ([], [], "references must be a list with captions of at least one image"),
        ([["a"]], [], "references and hypotheses must have the same length, found 1 and 0"),
        ([[]], ["a"], "references of image 1 must be a list of one caption or more"),
        ([["a"]], [["a"]], "captions must be all texts or all lists of tokens"),
        ([[3]], [3], "references of image 1, caption 1 must be a list of tokens, or one text, found 3"),
    ],
    ids=["nothing", "no hypothesis", "no reference", "texts and tokens", "numbers"],
)
def test_what_cannot_be_scored_is_a_data_error(references: Any, hypotheses: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^meteor: {message}"):
        meteor(references, hypotheses)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("pycocoevalcap") is None, reason="needs the extra coco")
@pytest.mark.skipif(not any(Path(folder, "java").exists() for folder in os.get_exec_path()), reason="needs Java")
def test_the_real_program_gives_the_official_number() -> None:
    score, items = meteor([["a brown dog runs across the wet grass"]], ["the dog is running on the grass"])
    assert items == (score.value,)
    assert score.value == pytest.approx(0.19811189086333822, abs=1e-9)  # of pycocoevalcap 1.2 with Java 17
