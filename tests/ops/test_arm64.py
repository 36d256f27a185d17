"""The native library is compiled for arm64 from the same sources; `benchmarks/arm64.py` also runs its tests there, emulated."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import arm64
import pytest

from regard.ops.kernels import native

EM_AARCH64 = 183  # e_machine of an ELF file
SOURCES = Path(native.__file__).parent / "csrc"


@pytest.mark.slow
@pytest.mark.skipif(arm64.COMPILER in arm64.missing_tools(), reason=f"needs {arm64.COMPILER}")
def test_every_function_is_compiled_for_arm64_without_a_warning(tmp_path: Path) -> None:
    library = arm64.compile_library(tmp_path)
    assert int.from_bytes(library.read_bytes()[18:20], "little") == EM_AARCH64
    symbols = subprocess.run(["aarch64-linux-gnu-nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    text = (SOURCES / "native.c").read_text(encoding="utf-8") + (SOURCES / "beam.c").read_text(encoding="utf-8")
    named = {f"regard_{name}" for name in re.findall(r"^ENTRY\w*\((\w+),", text, flags=re.MULTILINE)}
    named |= set(re.findall(r"^EXPORT [\w *]+?(regard_\w+)\(", text, flags=re.MULTILINE))
    assert {"regard_abi", "regard_area_forward", "regard_vocabulary"} <= named
    assert set(re.findall(r" T (\w+)", symbols)) == named


def test_the_emulated_tests_exist_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Path(__file__).parents[2]
    assert [name for name in arm64.TESTS if not (root / "tests" / f"{name}.py").exists()] == []
    monkeypatch.setattr("sys.argv", ["arm64.py", "--folder", "nowhere", "ops/test_lost"])
    with pytest.raises(SystemExit):
        arm64.main()
    assert "no tests of the native library: ops/test_lost" in capsys.readouterr().err
