"""The notebooks of examples/ run from top to bottom, and are kept without outputs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
# All cells in one namespace, and `!regard` in the same process: nearly all the time of another one goes into importing torch.
RUN = """
import runpy, shlex, sys
from regard.cli import main

def command(line):
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as leaving:
        assert not leaving.code, f"{line} ended with {leaving.code}"

runpy.run_path(sys.argv[1], init_globals={"command": command}, run_name="__main__")
"""


def cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def run(notebook: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the code of a notebook in a folder, as a script."""
    code = "\n".join("".join(cell["source"]) for cell in cells(notebook, "code"))
    script = folder / "cells.py"
    script.write_text(re.sub(r"^!(regard .*)$", lambda line: f"command({line[1]!r})", code, flags=re.MULTILINE), encoding="utf-8")
    return subprocess.run([sys.executable, "-c", RUN, str(script)], cwd=folder, capture_output=True, text=True, check=False)


def test_there_are_notebooks() -> None:
    assert [notebook.stem for notebook in NOTEBOOKS] == ["area_vit_bert", "compare_and_explain", "own_model"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    if notebook.stem == "area_vit_bert":
        pytest.importorskip("transformers")
    done = run(notebook, tmp_path)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_a_notebook_begins_with_a_title_and_holds_no_outputs(notebook: Path) -> None:
    assert cells(notebook, "markdown")[0]["source"][0].startswith("# ")
    assert [cell["id"] for cell in cells(notebook, "code") if cell["outputs"] or cell["execution_count"]] == []


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_the_links_of_a_notebook_lead_somewhere(notebook: Path) -> None:
    links = [link for cell in cells(notebook, "markdown") for link in re.findall(r"\]\(([^)]+)\)", "".join(cell["source"]))]
    assert links
    assert [link for link in links if not (notebook.parent / link).is_file()] == []


def test_a_cell_that_fails_is_found(tmp_path: Path) -> None:
    notebook = tmp_path / "bad.ipynb"
    sources = [["x = 1\n", "x"], ["!regard list no-such-table"]]
    notebook.write_text(json.dumps({"cells": [{"cell_type": "code", "source": source} for source in sources]}))
    assert "ended with 2" in run(notebook, tmp_path).stderr
