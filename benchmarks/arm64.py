"""Cross-compile the native library for Linux on arm64 and run its tests there, emulated by QEMU: a check of results, never of speed.

    dpkg --add-architecture arm64 && apt-get update && apt-get install gcc-aarch64-linux-gnu qemu-user   (once, as root, on Debian)
    python benchmarks/arm64.py --folder FOLDER                  all of TESTS; minutes to half an hour
    python benchmarks/arm64.py --folder FOLDER ops/test_loss    some of them; the other rows of the table stay
    python benchmarks/fill_tables.py

FOLDER is filled once: an arm64 Python from Debian, and wheels of torch and of what the tests need. The tests are those of this repository,
unchanged, with the same error rule.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src" / "regard" / "ops" / "kernels" / "csrc"
RESULT = ROOT / "docs" / "results" / "arm64.json"
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
PROCESSOR = "neoverse-n1"  # of common servers
# Those that call the native library, the shortest first.
TESTS = (
    "decoding/test_selection",
    "ops/test_native",
    "ops/test_loss",
    "ops/test_topk",
    "ops/test_residual",
    "ops/test_additive",
    "models/test_rnn_native_step",
    "models/test_transformer_native_step",
    "ops/test_cached_attention",
    "ops/test_area_features",
    "ops/test_area_attention",
)
# Of what is no C function: how torch 2.10 compiles the Python around it.
LEFT_OUT = {"torch.compile": "it_compiles"}
# Later ones need CUDA on arm64, which is not here to be loaded.
TORCH = "2.10.0"
PACKAGES = (
    "annotated-doc annotated-types babel click filelock fsspec hypothesis iniconfig jinja2 markdown-it-py markupsafe mdurl mpmath networkx "
    "numpy packaging pluggy portalocker pydantic pydantic-core pygments pytest pytest-timeout pytest-xdist execnet pyyaml regex rich "
    "sacrebleu safetensors shellingham sortedcontainers sympy tabulate colorama lxml tokenizers typer typing-extensions typing-inspection "
    "huggingface-hub tqdm"
)
DEBIAN = (
    "libc6 libgcc-s1 libstdc++6 libgomp1 zlib1g libexpat1 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libssl3 libffi8 "
    "libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libncursesw6 libtinfo6 libreadline8 libdb5.3 libcrypt1 libnsl2 libtirpc3"
)
# Of tests that start a Python: what they start must be the emulator.
SITE = "import os, sys\nsys.executable = os.environ['REGARD_ARM64_PYTHON']\n"


def run(*command: str | Path, **options: Any) -> str:
    """Run a command and return its output; end with its errors if it fails."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, **options)
    if done.returncode:
        sys.exit(f"arm64: {' '.join(map(str, command))[:200]}: {done.stderr[-2000:]}")
    return done.stdout


def missing_tools() -> list[str]:
    """Return what is needed and not on the path."""
    return [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]


def compile_library(folder: Path) -> Path:
    """Compile the native library for arm64 with the flags of `setup.py`; a warning is an error."""
    tree = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8"))
    (flags,) = (node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILE")
    library = folder / "_cpu.abi3.so"
    options = [*ast.literal_eval(flags), "-Wall", "-Wextra", "-Werror", "-fopenmp", "-fPIC", "-shared"]
    run(COMPILER, *options, *sorted(SOURCES.glob("*.c")), "-lm", "-o", library)
    return library


def prepare(folder: Path) -> None:
    """Fill a folder with an arm64 Python and packages, once."""
    if (folder / "ready").exists():
        return
    for name in ("debs", "root", "site"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    run("apt-get", "download", "-q", *[f"{name}:arm64" for name in DEBIAN.split()], cwd=folder / "debs")
    for package in sorted((folder / "debs").glob("*.deb")):
        run("dpkg", "-x", package, folder / "root")
    versions = [f"{name}=={importlib.metadata.version(name)}" for name in PACKAGES.split()]
    platforms = [f"--platform=manylinux{suffix}_aarch64" for suffix in ("_2_28", "_2_27", "_2_17", "2014")]
    abis = [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
    options = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--implementation=cp", *platforms, *abis]
    run(sys.executable, "-m", "pip", "install", "-q", "--target", folder / "site", *options, f"torch=={TORCH}", *versions)
    (folder / "site" / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec {EMULATOR} -L {folder}/root {folder}/root/usr/bin/python3.11 "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    (folder / "ready").touch()


def copy_tree(tree: Path) -> Path:
    """Copy the package and the tests, with the library for arm64 in the copy, and return where it is."""
    left_out = shutil.ignore_patterns(".git*", ".venv", "runs", "build", "docs", "*.egg-info", "__pycache__", "*.so", ".*cache")
    shutil.copytree(ROOT, tree, ignore=left_out)
    compile_library(tree / "src" / "regard" / "ops" / "kernels")
    return tree


def test(folder: Path, tree: Path, name: str) -> list[Any]:
    """Run a file of tests in the emulator and return its row."""
    environment = {
        "HOME": str(folder),
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join(map(str, (folder / "site", tree / "src", tree))),
        "QEMU_CPU": PROCESSOR,
        "REGARD_ARM64_PYTHON": str(folder / "python"),
    }
    left_out = " and ".join(f"not ({words})" for words in LEFT_OUT.values())
    command = [folder / "python", "-m", "pytest", "-q", "-o", "timeout=900", "-p", "no:cacheprovider", "-k", left_out, f"tests/{name}.py"]
    done = subprocess.run([str(word) for word in command], cwd=tree, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout[-3000:], done.stderr[-2000:], flush=True)
    last = done.stdout.strip().split("\n")[-1]
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", last)}
    return [f"`tests/{name}.py`", counts.get("passed", 0), counts.get("skipped", 0), counts.get("failed", 0) + counts.get("error", 0)]


def write(row: list[Any]) -> None:
    """Put a row into the table, with today's date: other rows may be older."""
    old = json.loads(RESULT.read_text(encoding="utf-8"))["rows"] if RESULT.exists() else []
    rows = {found[0]: found for found in [*old, [*row, datetime.date.today().isoformat()]]}
    order = [f"`tests/{name}.py`" for name in TESTS]
    versions = [run(COMPILER, "--version").split("\n")[0], run(EMULATOR, "--version").split("\n")[0]]
    note = (
        f"`python benchmarks/arm64.py`: {versions[0]}; {versions[1]} as {PROCESSOR}; torch {TORCH}; "
        f"each file was last run on its date. Skipped tests are those of other instruction sets, or lack a package there. "
        f"Tests of {', '.join(LEFT_OUT)} are left out."
    )
    table = {
        "columns": ["tests", "passed", "skipped", "failed", "date"],
        "rows": [rows[name] for name in order if name in rows],
        "note": note,
    }
    RESULT.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Prepare, compile, and run the tests that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for the emulated Python and its packages, about 1 GB")
    parser.add_argument("tests", nargs="*", default=TESTS, help="files of tests; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.tests) - set(TESTS):
        parser.error(f"no tests of the native library: {', '.join(sorted(unknown))}; there are {', '.join(TESTS)}")
    if missing := missing_tools():
        sys.exit(f"arm64: not on the path: {', '.join(missing)}; install gcc-aarch64-linux-gnu and qemu-user")
    folder = arguments.folder.resolve()
    prepare(folder)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        tree = copy_tree(Path(scratch) / "tree")
        for name in arguments.tests:
            write(test(folder, tree, name))


if __name__ == "__main__":
    main()
