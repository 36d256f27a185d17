"""The commands `regard shortlist` and `regard distill`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Answer
from tests.tasks.tiny import FAMILIES, TEXTS, trained

Run = Callable[..., Answer]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trained Transformer, with its training text beside it."""
    return trained(tmp_path_factory.mktemp("teacher"), kind="word", model=FAMILIES["transformer"])


def test_a_shortlist_is_learned_stored_and_measured(call: Run, teacher: Path) -> None:
    source, target = teacher.parent / "source", teacher.parent / "target"
    answer = call("shortlist", teacher, "--source", source, "--target", target, "--candidates", 3, "--frequent", 2)
    assert answer.code == 0
    assert "measured on 1 pair held out:" in answer.err
    tree = json.loads((teacher / "shortlist.json").read_text(encoding="utf-8"))
    assert len(tree["always"]) == 5
    assert max(map(len, tree["tokens"].values())) <= 3
    plain, short = (call("translate", teacher, flag, stdin=source.read_bytes()) for flag in ("--no-shortlist", "--shortlist"))
    assert (plain.code, short.code) == (0, 0)
    assert len(short.out.splitlines()) == len(plain.out.splitlines())


def test_a_model_without_attention_needs_links(call: Run, tmp_path: Path) -> None:
    run = trained(tmp_path, kind="word", model=FAMILIES["no attention"])
    files = ["--source", tmp_path / "source", "--target", tmp_path / "target"]
    answer = call("shortlist", run, *files)
    assert answer.code == 2
    assert f"--links FILE: needed, because {run} has no attention over the source to link words by" in answer.err
    (tmp_path / "all.links").write_text("0-0\n" * 20, encoding="utf-8")
    assert call("shortlist", run, *files, "--links", tmp_path / "all.links").code == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0:0", "all.links, line 2: expected links"),
        (None, "19 lines, but"),
        ("0-0 9-0", "all.links, line 2: 9-0, but the source has 5 words, numbered from 0"),
        ("0?9", "all.links, line 2: 0-9, but the target has 5 words, numbered from 0"),
    ],
)
def test_bad_links_are_named(call: Run, teacher: Path, tmp_path: Path, line: str | None, message: str) -> None:
    lines = ["0-0"] * 20
    lines[1:2] = [] if line is None else [line]
    (tmp_path / "all.links").write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = ["--source", teacher.parent / "source", "--target", teacher.parent / "target", "--links", tmp_path / "all.links"]
    answer = call("shortlist", teacher, *files)
    assert answer.code == 2
    assert message in answer.err


def test_a_distillation_is_what_the_teacher_translates_and_resumes(call: Run, teacher: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "all.txt.gz", tmp_path / "out"
    text = "".join(line + "\n" for line in [*TEXTS, "", *TEXTS]).encode()
    source.write_bytes(gzip.compress(text))
    given = ["distill", teacher, "--source", source, "--out", out, "--beam-size", 2, "--shard-lines", 4]
    (tmp_path / "file").write_text("")
    for taken, error in (("file", "expected a folder, found a file"), ("file/x", f"{tmp_path}/file is not a folder")):
        code, _, err = call(*given[:4], "--out", tmp_path / taken)
        assert code == 2
        assert error in err
    assert call(*given).code == 0
    found = b"".join(path.read_bytes() for path in sorted((out / "target").glob("*.txt")))
    assert found == call("translate", teacher, "--beam-size", 2, stdin=text).out
    assert b"".join(path.read_bytes() for path in sorted((out / "source").glob("*.txt"))) == text
    (out / "target" / "000001.txt").unlink()
    kept = (out / "target" / "000000.txt").stat().st_mtime_ns
    assert call(*given).code == 0
    assert b"".join(path.read_bytes() for path in sorted((out / "target").glob("*.txt"))) == found
    assert (out / "target" / "000000.txt").stat().st_mtime_ns == kept
    other = call(*given[:-1], 5)
    assert other.code == 2
    assert "holds translations of other sources" in other.err
    other = call(*given[:-3], 3, *given[-2:])
    assert other.code == 2
    assert "target/manifest.jsonl: written with other options (beam-size); choose another --out, or remove it" in other.err
