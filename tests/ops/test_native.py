"""The native library: how it is loaded, what happens without it, and that an installation without a compiler works."""

from __future__ import annotations

import graphlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from regard.errors import ConfigError
from regard.ops.kernels import area_cpu, kernel, native, structures
from tests.ops import c_structures

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "regard" / "ops" / "kernels" / "csrc"
BUILT = sorted(Path(native.__file__).parent.glob("_cpu*.so"))
# The number of the interface, and a digest of all structs and constants of calls and exported functions.
INTERFACE = (20, "7fe5a1cfad8b9a5d")
needs_library = pytest.mark.skipif(not BUILT, reason="no native library here")


def c_text(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def test_a_missing_or_broken_library_is_a_reason_not_an_error(tmp_path: Path) -> None:
    assert native.load(tmp_path) == (None, "the native library was not built (no C compiler at installation?)")
    (tmp_path / "_cpu.abi3.so").write_bytes(b"not a library")
    library, reason = native.load(tmp_path)
    assert library is None
    assert reason.startswith("the native library _cpu.abi3.so cannot be loaded: ")


@needs_library
def test_a_library_of_another_interface_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "ABI", native.ABI + 1)
    library, reason = native.load(BUILT[0].parent)
    assert library is None
    assert f"has interface {native.ABI - 1}, this package needs {native.ABI}" in reason


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_library_of_another_interface_is_asked_nothing_else(tmp_path: Path) -> None:
    text = 'int regard_abi(void) { return 1; } int regard_target(void) { return 99; } const char *regard_threads(void) { return ""; }'
    (tmp_path / "newer.c").write_text(text, encoding="utf-8")
    subprocess.run(["cc", "-shared", "-fPIC", str(tmp_path / "newer.c"), "-o", str(tmp_path / "_cpu.abi3.so")], check=True)
    assert native.load(tmp_path) == (
        None,
        f"the native library _cpu.abi3.so has interface 1, this package needs {native.ABI}: install it again",
    )


def without_comments(name: str) -> str:
    return re.sub(r"/\*.*?\*/", "", c_text(name), flags=re.DOTALL)


def test_what_python_and_the_library_agree_on_does_not_change_without_a_new_number() -> None:
    structs = re.findall(r"typedef struct \{[^}]*\} \w+;|enum[^;(]*;", without_comments("calls.h"))
    text = without_comments("native.h") + without_comments("native.c") + without_comments("beam.c")
    functions = re.findall(r"^(?:EXPORT|ENTRY).*\)", text, flags=re.MULTILINE)
    assert len(structs) > 10
    assert len(functions) > 15
    digest = hashlib.sha256(" ".join("".join(structs + functions).split()).encode()).hexdigest()[:16]
    assert (native.ABI, digest) == INTERFACE, "raise ABI in native.py and REGARD_ABI in native.h, then write both down here"


def test_no_two_headers_include_each_other() -> None:
    includes = {path.name: set(re.findall(r'#include "(\w+\.h)"', c_text(path.name))) for path in SOURCES.glob("*.[ch]")}
    order = [*graphlib.TopologicalSorter(includes).static_order()]
    assert order.index("calls.h") < order.index("area_memory.h") < order.index("area.h") < order.index("bodies.h")


@needs_library
def test_the_status_names_instructions_and_threads() -> None:
    usable, reason = native.status()
    assert usable
    assert re.fullmatch(r"native library with .+, (OpenMP|POSIX threads|one thread)", reason)


@pytest.mark.parametrize("way", ["reference", "torch"])
def test_the_environment_forbids_the_library(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", way)
    assert native.library() is None
    assert native.status() == (False, f"REGARD_KERNELS={way}")


def test_an_unknown_way_is_an_error_that_names_the_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "fast")
    with pytest.raises(ConfigError, match="REGARD_KERNELS: expected one of reference, torch, cpu, triton, found 'fast'"):
        native.library()


def test_python_and_c_agree_on_constants() -> None:
    assert f"#define REGARD_ABI {native.ABI}\n" in c_text("native.h")
    assert f"REGARD_NO_MEMORY = {kernel.NO_MEMORY}," in c_text("native.h")
    assert f"REGARD_OUTSIDE = {kernel.OUTSIDE} " in c_text("native.h")
    assert f"enum {{ AREA_TILE = {area_cpu.TILE} }};" in c_text("calls.h")
    limits = f"MOST_LENGTH = {area_cpu.LONGEST}, MOST_SIDE = {area_cpu.TALLEST}, MOST_KEYED = {area_cpu.LONGEST_LEARNED}"
    assert limits in c_text("calls.h")


def test_the_structures_are_those_of_the_headers() -> None:
    found = c_structures.MIRROR.read_text(encoding="utf-8")
    assert "".join(found.split()) == "".join(c_structures.rendered().split()), "run: python -m tests.ops.c_structures"
    for name, fields in c_structures.structures().items():
        structure = getattr(structures, name)
        assert [field[0] for field in structure._fields_] == [field for field, _ in fields]


def test_every_c_file_reaches_the_source_distribution() -> None:
    assert "recursive-include src/regard/ops/kernels/csrc *.c *.h" in (ROOT / "MANIFEST.in").read_text(encoding="utf-8")
    assert {path.suffix for path in SOURCES.iterdir()} <= {".c", ".h", ".md"}
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["build-backend"] == "setuptools.build_meta"


def test_no_instruction_beyond_the_baseline_is_asked_for_outside_its_file() -> None:
    assert "-march" not in re.sub(r"#.*", "", (ROOT / "setup.py").read_text(encoding="utf-8"))
    with_target = {path.name for path in SOURCES.glob("*.h") if "GCC target" in path.read_text(encoding="utf-8")}
    assert with_target == {"target.h"}
    assert "!defined(__x86_64__)" in c_text("target.h")


@needs_library
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_there_is_one_openmp_runtime() -> None:
    code = (
        "import torch, regard.ops as ops; x = torch.randn(2, 2, 37, 8); torch.set_num_threads(2); ops.area_attention(x, x, x, max_area=2)\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line or 'libomp' in line or 'libiomp' in line})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count("omp") == 1, done.stdout


def copy_of_the_package(folder: Path) -> Path:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src" / "regard", folder / "src" / "regard", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    return folder


def build(folder: Path, compiler: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "setup.py", "build_ext", "--inplace"]
    environment = {**os.environ, "CC": compiler} if compiler else dict(os.environ)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not Path("/bin/false").exists(), reason="needs a compiler that always fails")
def test_an_installation_without_a_compiler_succeeds_without_the_library(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    done = build(copy_of_the_package(tmp_path), "/bin/false")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("_cpu*")) == []


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_installation_with_a_compiler_builds_the_library(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    done = build(copy_of_the_package(tmp_path), "")
    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "src").rglob("_cpu*.so")
    assert native.load(built.parent)[0] is not None
