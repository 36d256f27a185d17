"""`regard train lm`, `score` and `generate` from the outside: one line out for each line in, and errors in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.tiny_language import run

LINES = ["ein Hund", "", "\u2028 a\rb", "</s>", "x" * 300, "Häuser"]
STDIN = "".join(line + "\n" for line in LINES).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        place = tmp_path_factory.mktemp("lm")
        run(place, training={"max_updates": 3})
        return place


def test_training_starts_and_resumes_from_the_command_line(call: Callable[..., Any], folder: Path, tmp_path: Path) -> None:
    words = ["train", "lm", "--text", folder / "text", "--valid-text", folder / "valid_text", "--out", tmp_path / "run"]
    words += ["vocabulary.kind=character", "model.hidden_size=8", "model.embed_dim=4", "training.streams=2", "training.max_updates=2"]
    first, again = call(*words), call(*words)
    assert (first.code, again.code) == (0, 0)
    assert b"2 updates (training.max_updates); model in" in first.out
    assert first.out.splitlines()[-1] == again.out.splitlines()[-1]


def test_settings_can_be_printed_and_listed(call: Callable[..., Any]) -> None:
    assert b"chunk_length: 35" in call("train", "lm", "--print-config").out
    assert b"model.attention = key_value" in call("list", "settings", "--task", "lm").out


def test_a_score_for_each_line(call: Callable[..., Any], folder: Path) -> None:
    answer = call("score", folder / "run", stdin=STDIN)
    assert answer.code == 0
    assert all("unknown to the vocabulary" in line for line in answer.err.splitlines())
    rows = [[float(cell) for cell in line.split("\t")] for line in answer.out.decode().split("\n")[:-1]]
    assert len(rows) == len(LINES)
    assert all(total < 0 and mean < 0 for total, mean in rows)
    assert rows[0][0] == pytest.approx(9 * rows[0][1], abs=1e-3)


def test_characters_that_the_model_does_not_know_are_told(call: Callable[..., Any], folder: Path) -> None:
    answer = call("score", folder / "run", stdin="ein Hund\n\u2603\n".encode())
    assert "1 of 9 characters unknown to the vocabulary, in 1 of 2 lines; most often '\u2603'" in answer.err


def test_scores_as_json(call: Callable[..., Any], folder: Path) -> None:
    found = [json.loads(line) for line in call("score", folder / "run", "--json", stdin=STDIN).out.decode().split("\n")[:-1]]
    assert [item["text"] for item in found] == LINES
    assert all(len(item["tokens"]) == len(item["log_probs"]) for item in found)


@pytest.mark.parametrize("options", [[], ["--sample", "--top-k", 5, "--seed", 7], ["--beam-size", 3], ["--sample", "--temperature", 0.5]])
def test_every_prompt_is_continued(call: Callable[..., Any], folder: Path, options: list[object]) -> None:
    answer = call("generate", folder / "run", "--max-length", 4, *options, stdin=STDIN)
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.decode().split("\n")[:-1]
    assert len(lines) == len(LINES)
    assert lines[0].startswith("ein Hund")
    assert lines[4].startswith("x" * 300)
    assert call("generate", folder / "run", "--max-length", 4, *options, stdin=STDIN).out == answer.out


def test_continuations_as_json(call: Callable[..., Any], folder: Path) -> None:
    answer = call("generate", folder / "run", "--n-best", 2, "--max-length", 3, stdin=STDIN)
    found = [json.loads(line) for line in answer.out.decode().split("\n")[:-1]]
    assert [len(item["hypotheses"]) for item in found] == [2] * len(LINES)
    assert found[0]["prompt"] == "ein Hund"


def test_a_prompt_too_long_is_read_from_behind_with_a_warning(call: Callable[..., Any], folder: Path) -> None:
    answer = call("generate", folder / "run", "--max-length", 1, stdin=b"ein\n" + b"ein " * 200 + b"\n")
    assert answer.err == "regard: line 2: left out the first 288 tokens of the prompt\n"
    assert answer.out.decode().split("\n")[1].startswith("ein " * 200)


def test_no_input_gives_no_output(call: Callable[..., Any], folder: Path) -> None:
    assert call("score", folder / "run").out == call("generate", folder / "run").out == b""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["score", "nowhere"], "nowhere: no such run folder"),
        (["generate", "nowhere"], "nowhere: expected a run folder or one of the sets dates, copy, reverse, sort, scenes"),
        (["generate", "copy"], "--out FOLDER: needed"),
        (["generate", "copy", "--out", "x", "--sample"], "--sample: copy is a set"),
        (["generate", "copy", "--out", "x", "--beam-size", "2", "--top-k", "3"], "--top-k, --beam-size: copy is a set"),
        (["generate", "RUN", "--count", "3"], "--count: RUN is a run, not a set"),
        (["generate", "RUN", "--top-p", "0.5"], "--top-p: only with --sample"),
        (["generate", "RUN", "--seed", "5"], "--seed: only with --sample"),
        (["generate", "RUN", "--sample", "--beam-size", "2"], "--beam-size: not with --sample"),
        (["generate", "RUN", "--sample", "--top-p", "1.5"], "top_p must be greater than 0 and at most 1, found 1.5"),
        (["generate", "RUN", "--sample", "--seed", "-1"], "--seed: expected 0 to 2^63 - 1, found -1"),
        (["generate", ".", "--max-length", "3"], "not a run folder"),
        (["translate", "RUN"], "a run of the task lm; expected a run of the task translation"),
        (["train", "lm", "--out", "x"], "data.text: no training text given"),
        (["train", "lm", "--out", "x", "model.attention=area"], "model.attention"),
        (["train", "lm", "--out", "x", "model.hidden_size=7"], "hidden_size (7) must be a multiple of 2"),
    ],
)
def test_an_error_is_one_line(
    call: Callable[..., Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").symlink_to(folder / "run")
    answer = call(*words, stdin=b"ein\n")
    assert answer.code != 0
    assert answer.err.startswith("regard: error: ")
    assert answer.err.count("\n") == 1
    assert message in answer.err


def test_the_sets_are_still_generated(call: Callable[..., Any], tmp_path: Path) -> None:
    answer = call("generate", "sort", "--out", tmp_path / "sort", "--count", 5, "--test", 2, "--seed", 3)
    assert answer.code == 0
    assert len(answer.out.splitlines()) == 6  # three files of each part: sources, targets, links
    assert len((tmp_path / "sort" / "train.source").read_text().splitlines()) == 5


def test_a_set_replaces_no_file(call: Callable[..., Any], tmp_path: Path) -> None:
    mine = tmp_path / "sort" / "train.source"
    mine.parent.mkdir()
    mine.write_text("precious\n")
    answer = call("generate", "sort", "--out", mine.parent, "--count", 5, "--test", 2)
    assert answer == (2, b"", f"regard: error: {mine}: exists, and a set may have a file of that name; choose another --out\n")
    assert mine.read_text() == "precious\n"
