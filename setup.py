"""Builds the native CPU kernels: every C file of `ops/kernels/csrc` into one library beside the package. All else is in pyproject.toml.

Optional by design: without a C compiler the package installs all the same, and computes with PyTorch alone.
REGARD_PURE=1 leaves them out, for a wheel that every platform takes.
To add native code, put a C file into the folder; its README says how the files are cut.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = Path("src/regard/ops/kernels/csrc")
# No -march: what a processor has is found at run time. No -ffast-math: NaN must stay NaN, and others' arithmetic as it is.
# Contraction only joins a * b + c; the vector code is written for it.
COMPILE = ["-O3", "-std=gnu11", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden", "-Wno-psabi", "-g0"]
OPENMP = (["-fopenmp"], ["-fopenmp"])
POSIX_THREADS = (["-DREGARD_PTHREADS", "-pthread"], ["-pthread"])


class BuildKernels(build_ext):
    """Take OpenMP where the compiler has it, else POSIX threads."""

    def build_extension(self, ext: Extension) -> None:
        """Compile with the flags that the compiler knows."""
        compile_flags, link_flags = (
            OPENMP if self._links("#include <omp.h>\nint f(void) { return omp_get_max_threads(); }", OPENMP) else POSIX_THREADS
        )
        ext.extra_compile_args = [*COMPILE, *compile_flags]
        ext.extra_link_args = [*link_flags, "-lm"]
        super().build_extension(ext)

    def _links(self, text: str, flags: tuple[list[str], list[str]]) -> bool:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.c"
            source.write_text(text, encoding="utf-8")
            try:
                objects = self.compiler.compile([str(source)], output_dir=folder, extra_postargs=flags[0])
                self.compiler.link_shared_object(objects, os.path.join(folder, "probe.so"), extra_postargs=flags[1])
            except Exception:  # the compilers of setuptools share no base of their errors
                return False
        return True


KERNELS = Extension(
    "regard.ops.kernels._cpu",
    sources=sorted(path.as_posix() for path in FOLDER.glob("*.c")),
    depends=sorted(path.as_posix() for path in FOLDER.glob("*.h")),
    py_limited_api=True,  # nothing of Python's is used: one file for every Python version
    optional=True,
)

if os.environ.get("REGARD_PURE") == "1":
    setup()
else:
    setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildKernels}, options={"bdist_wheel": {"py_limited_api": "cp311"}})
