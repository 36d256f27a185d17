"""What is checked before a commit is what `make check` checks; a commit's subject is short."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def hooks() -> list[dict[str, Any]]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in config["repos"]] == ["local"]  # others would have to be downloaded
    return config["repos"][0]["hooks"]


def commands_of_make_check(makefile: str) -> list[str]:
    """Return the commands of the target `check`, with the values of its variables."""
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    lines = [line.strip().replace("$(RUN)", "$(VENV)/bin/python -m") for line in recipe[1].splitlines()]
    return [line.replace("$(VENV)", ".venv") for line in lines]


def test_the_hooks_run_the_commands_of_make_check() -> None:
    found = [hook["entry"] for hook in hooks() if hook["language"] == "system"]
    assert found == commands_of_make_check((ROOT / "Makefile").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("message", "refused"),
    [("x" * 72, False), ("x" * 73, True), ("Mend the padding\n\n" + "x" * 100, False), ("x" * 60 + "\n" + "x" * 60, False)],
)
def test_a_subject_of_more_than_72_characters_is_refused(message: str, refused: bool) -> None:
    (hook,) = (hook for hook in hooks() if hook.get("stages") == ["commit-msg"])
    assert hook["args"] == ["--multiline"]
    assert bool(re.search(hook["entry"], message, re.MULTILINE | re.DOTALL)) == refused  # as pre-commit's pygrep reads it
