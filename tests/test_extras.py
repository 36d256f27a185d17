"""What is imported is declared: as a dependency, or in the extra that the message about it names."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from regard.tasks.doctor import report

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Where the module has another name than what is installed.
DISTRIBUTIONS = {"yaml": "pyyaml", "PIL": "pillow", "markdown_it": "markdown_it_py"}
# Brought by torch or looked for and done without.
OPTIONAL = {"torchvision", "IPython"}


def declared(lines: list[str]) -> set[str]:
    return {Requirement(line).name.replace("-", "_").lower() for line in lines}


def imported(text: str) -> set[str]:
    """The top-level modules that Python code imports, function bodies included."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - {"regard", "tests", "benchmarks"}


def python_blocks() -> list[str]:
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    return [block for path in documents for block in re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.S)]


def test_everything_that_code_examples_and_documents_import_is_declared():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "examples").glob("*.ipynb")]
    cells = [cell["source"] for notebook in notebooks for cell in notebook["cells"] if cell["cell_type"] == "code"]
    texts += ["".join(line for line in cell if not line.startswith("!")) for cell in cells]
    found = {DISTRIBUTIONS.get(name, name).lower() for text in (*texts, *python_blocks()) for name in imported(text)} - {
        x.lower() for x in OPTIONAL
    }
    extras = [line for name, lines in PROJECT["optional-dependencies"].items() if name != "dev" for line in lines]
    assert found - declared([*PROJECT["dependencies"], *extras]) == set()


def test_the_extra_hf_holds_what_transformers_asks_for_to_train():
    from transformers.dependency_versions_table import deps

    line = next(line for line in PROJECT["optional-dependencies"]["hf"] if line.startswith("accelerate"))
    assert str(Requirement(line).specifier).removesuffix(".0") == str(Requirement(deps["accelerate"]).specifier).removesuffix(".0")


def test_every_hint_to_install_names_an_extra_there_is_and_the_clone():
    texts = {
        path: path.read_text(encoding="utf-8")
        for folder in ("src", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
    }
    texts[ROOT / "README.md"] = (ROOT / "README.md").read_text(encoding="utf-8")
    calls = [extra for text in texts.values() for extra in re.findall(r'missing_extra\(.*, "(\w+)"\)', text)]
    shown = [extra for text in texts.values() for extra in re.findall(r"pip install '?\.\[(\w+)\]", text)]
    assert calls
    assert shown
    assert set(calls) | set(shown) <= set(PROJECT["optional-dependencies"])
    assert [str(path) for path, text in texts.items() if re.search(r"pip install '?regard(?!\S*\.whl)", text)] == []


def test_the_doctor_tells_what_each_extra_lacks(monkeypatch):
    monkeypatch.setattr("regard.tasks.doctor._installed", lambda name: name not in ("starlette", "h11"))
    lines = [line for line in report() if line.startswith("extra ")]
    assert [line.split(":")[0].removeprefix("extra ") for line in lines] == [
        name for name in PROJECT["optional-dependencies"] if name != "dev"
    ]
    lacking = [line for line in lines if not line.endswith(": installed")]
    assert lacking == ["extra serve: lacks starlette, h11 (pip install '.[serve]' in the clone)"]
