"""Releases and the workflows that build and test them: source distribution, pure wheel, actions, Makefile targets, Python versions."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What tests and builds leave behind, and what no release may hold.
PLANTED = (
    ".git/config",
    ".hypothesis/examples/one",
    ".pytest_cache/README.md",
    ".venv/bin/python",
    "runs/demo/config.yaml",
    "src/regard/ops/kernels/_cpu.abi3.so",
    "src/regard/ops/__pycache__/linear.cpython-311.pyc",
    "tests/__pycache__/test_house.cpython-311.pyc",
)
# In one process: nearly all the time of one goes into importing torch.
RUN_ALL = """
import json, sys
import regard.cli

assert regard.__file__.startswith(sys.argv[1]), regard.__file__
for words in json.loads(sys.argv[2]):
    sys.argv = ["regard", *words]
    try:
        regard.cli.main()
    except SystemExit as leaving:
        assert not leaving.code, words
"""


def parsed(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def jobs() -> list[tuple[str, dict[str, Any]]]:
    return [(f"{path.name}: {name}", job) for path in WORKFLOWS for name, job in parsed(path)["jobs"].items()]


def commands() -> list[str]:
    """Return what the workflows run: the steps' commands, and the settings that are commands."""
    found = [str(step["run"]) for _, job in jobs() for step in job["steps"] if "run" in step]
    return found + [str(value) for path in WORKFLOWS for value in parsed(path).get("env", {}).values()]


def python_versions() -> set[str]:
    """Return every Python version that a workflow names."""
    found: set[str] = set()
    for _, job in jobs():
        found |= set(job.get("strategy", {}).get("matrix", {}).get("python-version", ()))
        found |= {step["with"]["python-version"] for step in job["steps"] if "python-version" in step.get("with", {})}
    return {version for version in found if not version.startswith("${{")}


def test_make_gpu_installs_nothing_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nif [ "$1" = -c ]; then exit 1; fi\necho "$@" >> {tmp_path / "called"}\n')
    python.chmod(0o755)
    done = subprocess.run(["make", "-C", ROOT, "gpu", f"PYTHON={python}"], check=False, capture_output=True, text=True)
    assert done.returncode != 0
    assert f"{python} has no torch that finds a CUDA device; nothing was installed or run." in done.stderr
    assert "--rehearse" not in done.stderr, "a Python without torch can run nothing"
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_make_gpu_fills_the_tables_even_if_a_stage_failed_and_says_so_in_its_exit_code(tmp_path: Path, code: int) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$1" >> {tmp_path / "called"}\ncase "$1" in */gpu.py) exit {code};; esac\n')
    python.chmod(0o755)
    done = subprocess.run(["make", "-C", ROOT, "gpu", f"PYTHON={python}"], check=False, capture_output=True, text=True)
    assert bool(done.returncode) == bool(code)
    assert (tmp_path / "called").read_text().split() == ["-c", "-m", "benchmarks/gpu.py", "benchmarks/fill_tables.py"]


def test_workflows_ask_for_no_secret_and_no_right_but_to_read() -> None:
    assert {path.name for path in WORKFLOWS} >= {"ci.yml", "docs.yml", "wheels.yml"}
    for path in WORKFLOWS:
        assert parsed(path)["permissions"] == {"contents": "read"}, path.name
        assert "secrets." not in path.read_text(encoding="utf-8"), path.name
    assert [where for where, job in jobs() if "permissions" in job] == []


def test_actions_are_pinned_by_their_major_version_and_jobs_end() -> None:
    used = {step["uses"] for _, job in jobs() for step in job["steps"] if "uses" in step}
    assert used
    assert [name for name in used if not re.fullmatch(r"actions/[a-z-]+@v\d+", name)] == []
    assert [where for where, job in jobs() if not 0 < job["timeout-minutes"] <= 60] == []


def test_only_linux_on_x86_64_is_required() -> None:
    required = {name for name, job in parsed(ROOT / ".github/workflows/ci.yml")["jobs"].items() if not job.get("continue-on-error", False)}
    assert required == {"check", "test"}
    assert {job["runs-on"] for where, job in jobs() if where in {"ci.yml: check", "ci.yml: test"}} == {"ubuntu-24.04"}


def test_workflows_call_targets_and_files_that_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    called = {target for command in commands() for target in re.findall(r"\bmake ([a-z]+)", command)}
    assert called == {"check", "docs", "test"}
    assert called <= targets
    named = {name for command in commands() for name in re.findall(r"(?<![\w.-])(?:tests|src|benchmarks)/[\w/.-]+", command)}
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_workflows_run_the_python_versions_that_the_project_names() -> None:
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert [version for version in python_versions() if version not in allowed] == []
    matrix = parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python-version"]
    named = [line.rpartition(" :: ")[2] for line in PROJECT["classifiers"] if line.startswith("Programming Language :: Python :: 3.")]
    assert matrix == named
    assert not SpecifierSet(PROJECT["requires-python"]).contains("3.10")
    assert matrix[0] == "3.11"


def test_issue_forms_are_whole_and_a_bug_comes_with_the_output_of_doctor() -> None:
    forms = {path.stem: parsed(path) for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"}
    assert set(forms) == {"bug", "feature"}
    for form in forms.values():
        assert set(form) == {"name", "description", "labels", "body"}
        fields = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in fields}) == len(fields)
        assert {part["type"] for part in fields} == {"textarea"}
    (doctor,) = (part for part in forms["bug"]["body"] if part.get("id") == "doctor")
    assert "`regard doctor`" in doctor["attributes"]["label"]
    assert doctor["validations"] == {"required": True}


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the working tree with what tests and builds leave behind; building writes into the tree."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("packaging") / "tree"
    left_out = shutil.ignore_patterns(
        ".git", ".venv", "runs", "build", "dist", "*.egg-info", "__pycache__", "*.so", ".*cache", ".hypothesis"
    )
    shutil.copytree(ROOT, folder, ignore=left_out)
    for name in PLANTED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"planted")
    return folder


def build(folder: Path, kind: str, **environment: str) -> Path:
    """Build a distribution with the project's backend, without a network, and return its file."""
    command = [sys.executable, "setup.py", "-q", kind]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = (folder / "dist").glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return found


def test_the_source_distribution_holds_tests_configurations_and_c_sources_and_no_leavings(copied: Path) -> None:
    with tarfile.open(build(copied, "sdist")) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    folders = (".github", "benchmarks", "configs", "docs", "examples", "src/regard", "studies", "tests")
    wanted = {path.relative_to(copied).as_posix() for folder in folders for path in (copied / folder).rglob("*") if path.is_file()}
    wanted |= {
        "Makefile",
        "conftest.py",
        "mkdocs.yml",
        "pyproject.toml",
        "setup.py",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "CITATION.cff",
    }
    assert {"tests/test_packaging.py", "src/regard/ops/kernels/csrc/area.h", "src/regard/viewer/page/page.html"} <= wanted
    assert sorted(wanted - held - set(PLANTED)) == []
    assert sorted(held & set(PLANTED)) == []
    assert [name for name in sorted(held) if re.search(r"__pycache__|\.py[cod]$|\.so$|^\.git/|^\.(venv|hypothesis)|cache/", name)] == []


def test_tests_run_from_the_source_distribution(copied: Path, tmp_path: Path) -> None:
    with tarfile.open(build(copied, "sdist")) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2
        archive.extractall(tmp_path)
    (folder,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/metrics/test_alignment.py", "tests/test_recipes.py"]
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


def test_a_pure_wheel_fits_every_platform_holds_no_library_and_runs(copied: Path) -> None:
    (copied / "src/regard/ops/kernels/_cpu.abi3.so").unlink()  # what lies there would be taken along
    wheel = build(copied, "bdist_wheel", REGARD_PURE="1")
    assert wheel.name.endswith("-py3-none-any.whl")
    held = zipfile.ZipFile(wheel).namelist()
    assert "regard/ops/kernels/native.py" in held
    assert [name for name in held if name.endswith((".so", ".pyd", ".dylib"))] == []
    # Unpacked, it runs in an empty folder, with all that a training and its page need.
    where, empty = copied.parent / "wheel", copied.parent / "empty"
    zipfile.ZipFile(wheel).extractall(where)
    empty.mkdir()
    small = ["vocabulary.kind=word", "model.embed_dim=4", "model.encoder_dim=4", "model.decoder_dim=8", "training.max_updates=2"]
    commands = [
        ["--help"],
        ["generate", "copy", "--out", "words", "--count", "40", "--test", "3"],
        ["train", "translation", "--source", "words/train.source", "--target", "words/train.target", "--out", "run", *small],
        ["view", "run", "--text", "a b", "-o", "page.html"],
    ]
    environment = {**os.environ, "PYTHONPATH": str(where), "REGARD_DEVICE": "cpu"}
    program = [sys.executable, "-c", RUN_ALL, str(where), json.dumps(commands)]
    done = subprocess.run(program, cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: regard" in done.stdout
    assert "<!doctype html>" in (empty / "page.html").read_text(encoding="utf-8")
