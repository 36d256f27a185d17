"""Imports point one way, and nothing heavy is imported before it is needed."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "regard"

# A part may import the parts named here, and itself. Configurations stop at the builders, so `ops` and `attention` see none.
LEAVES = {"data", "metrics", "viewer"}
LIBRARY = {"errors", "progress", "config", "ops", "attention", "models", "decoding", "training"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "lazy_names": set(),
    "flags": {"errors"},
    "arguments": {"errors", "flags"},
    "strict_json": set(),
    "constructor_checks": {"errors"},
    "progress": set(),
    "input_files": {"errors", "progress"},
    "cores": set(),
    "jobs": {"errors", "strict_json", "progress", "cores"},
    "config": {"errors", "input_files", "mechanisms"},
    "ops": {"errors", "flags", "arguments"},
    "aliases": {"errors", "mechanisms"},
    "attention": {"errors", "flags", "constructor_checks", "aliases", "ops"},
    "models": {"errors", "flags", "constructor_checks", "config", "ops", "attention"},
    "decoding": {"arguments", "errors", "ops"},
    "training": {"errors", "lazy_names", "strict_json", "progress", "cores", "config", "ops"},
    "integrations": {
        "errors",
        "flags",
        "constructor_checks",
        "input_files",
        "strict_json",
        "progress",
        "config",
        "ops",
        "attention",
        "models",
        "training",
        "data",
        "viewer",
        "tasks",
    },
    "data": {"errors", "flags", "input_files", "lazy_names", "strict_json", "progress"},
    "metrics": {"errors", "flags", "arguments", "lazy_names", "progress"},
    "viewer": {"errors", "flags", "arguments", "input_files", "strict_json"},
    "mask_check": {"errors", "attention", "models"},
    "observe": {"errors", "flags", "ops", "attention", "models", "viewer", "explanations"},
    "explanations": {"arguments", "errors", "flags", "ops", "attention", "models"},
    "tasks": LIBRARY | LEAVES | {"arguments", "flags", "cores", "input_files", "lazy_names", "strict_json", "mask_check", "explanations"},
    "study": {"errors", "strict_json", "progress", "jobs", "config", "models", "explanations", "training", "tasks"} | LEAVES,
    "serve": {"errors", "strict_json", "progress", "config", "tasks"} | LEAVES,
    "mechanisms": set(),
    "commands": LIBRARY
    | LEAVES
    | {"input_files", "strict_json", "jobs", "mask_check", "observe", "explanations", "tasks", "study", "integrations", "mechanisms"},
    "cli": {"errors", "progress", "cores", "commands", "integrations", "serve"},
    "__main__": {"cli"},
    "__init__": {
        "attention",
        "mask_check",
        "models",
        "observe",
        "ops",
        "tasks",
        "viewer",
    },  # for type checkers; a test holds that nothing is imported,
}


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_parts(tree: ast.Module, path: Path) -> list[tuple[int, str]]:
    """Return (line, part) of every import from regard, function bodies included; a relative one counts as `.`."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level:
            found.append((node.lineno, "regard.<relative>"))
        elif isinstance(node, ast.ImportFrom) and node.module == "regard":
            found += [(node.lineno, f"regard.{alias.name}") for alias in node.names if not alias.name.startswith("__")]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.lineno, node.module or ""))
    return [(line, name.split(".")[1]) for line, name in found if name.startswith("regard.")]


def violations(path: Path, text: str) -> list[str]:
    part = part_of(path)
    allowed = MAY_IMPORT.get(part)
    if allowed is None:
        return [f"{path.name}: {part} has no place in MAY_IMPORT"]
    wrong = [(line, other) for line, other in imported_parts(ast.parse(text), path) if other != part and other not in allowed]
    return [f"{path.relative_to(ROOT)}:{line}: {part} may not import {other}" for line, other in wrong]


def test_every_part_imports_only_the_parts_to_its_left() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert paths
    assert [v for path in paths for v in violations(path, path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    "line",
    [
        "from regard.models import build",
        "import regard.tasks.translation_training",
        "from regard import cli",
        "def f():\n    from regard.data.lines import read_lines",
        "from . import beam",
    ],
)
def test_a_wrong_import_is_found(line: str) -> None:
    assert len(violations(PACKAGE / "decoding" / "beam.py", line)) == 1


@pytest.mark.parametrize("module", ["regard", "regard.errors", "regard.config", "regard.progress", "regard.cli"])
def test_heavy_libraries_are_not_imported_before_they_are_needed(module: str) -> None:
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "numpy", "matplotlib", "tokenizers", "sacrebleu", "babel", "safetensors"}
    assert heavy & set(json.loads(done.stdout)) == set()


def user_seconds_of(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    subprocess.run(command, capture_output=True, check=True)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def test_help_answers_within_a_third_of_a_second_of_processor_time() -> None:
    # Processor time, the best of five: other work on the machine must not decide.
    assert min(user_seconds_of([sys.executable, "-m", "regard", "--help"]) for _ in range(5)) < 0.33
