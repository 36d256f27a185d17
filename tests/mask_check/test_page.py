"""The mistakes of docs/check.md: each is found, and the page shows what the check says of it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[2] / "docs" / "check.md"
MISTAKE = re.compile(r"^### (?P<title>[^\n]+)\n\n```py\n(?P<code>.*?)^```\n\n```text\n(?P<told>.*?)^```$", re.MULTILINE | re.DOTALL)
TEXT = PAGE.read_text(encoding="utf-8")
MISTAKES = {match["title"]: match for match in MISTAKE.finditer(TEXT)}


def told(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what an example prints after the code that all share."""
    shared = next(block for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL) if "class Attention" in block)
    for name, content in (("shared.py", shared), ("example.py", code)):
        (folder / name).write_text(content, encoding="utf-8")
    names = runpy.run_path(str(folder / "shared.py"))
    torch.manual_seed(0)
    runpy.run_path(str(folder / "example.py"), init_globals=names)
    return capsys.readouterr().out


@pytest.mark.parametrize("title", MISTAKES)
def test_a_mistake_is_found_as_the_page_says(title: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(MISTAKES[title]["code"], tmp_path, capsys)
    assert found == MISTAKES[title]["told"]
    assert "cause" in found


def test_there_are_eight_and_each_has_few_lines() -> None:
    assert [title.split(".")[0] for title in MISTAKES] == [str(number) for number in range(1, 9)]
    assert TEXT.count("**Fix**") == 8
    assert all(match["code"].count("\n") < 12 for match in list(MISTAKES.values())[:7])
