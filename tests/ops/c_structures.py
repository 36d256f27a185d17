"""Write `regard.ops.kernels.structures`, the ctypes of all structures of native calls, from the header that defines them.

python -m tests.ops.c_structures
"""

from __future__ import annotations

import itertools
import re
import textwrap
from pathlib import Path

from regard.ops.kernels import native

SOURCES = Path(native.__file__).parent / "csrc"
MIRROR = Path(native.__file__).parent / "structures.py"
NUMBERS = {"double": "REAL", "int64_t": "INT64", "int32_t": "INT32", "uint64_t": "UINT64"}
HEAD = '''"""The structures of native calls, as `csrc/calls.h` defines them. Written by `python -m tests.ops.c_structures`; a test compares.

A pointer to numbers is an address, one to structures an array of them.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

ADDRESS, REAL = ctypes.c_void_p, ctypes.c_double
INT32, INT64, UINT64 = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64


def _of(kind: Any, names: str) -> Iterator[tuple[str, Any]]:
    return ((name, kind) for name in names.split())
'''


def structures() -> dict[str, list[tuple[str, str]]]:
    """Return the fields (name, ctypes expression) of every structure that Python sees, each after those it holds."""
    text = re.sub(r"/\*.*?\*/", "", (SOURCES / "calls.h").read_text(encoding="utf-8"), flags=re.DOTALL)
    found: dict[str, list[tuple[str, str]]] = {}
    for body, structure in re.findall(r"typedef struct \{([^}]*)\} (\w+);", text):
        fields = []
        for declaration in filter(None, (" ".join(line.split()) for line in body.split(";"))):
            kind, rest = re.fullmatch(r"(?:const )?(\w+) (.*)", declaration).groups()  # type: ignore[union-attr]
            fields += [(name.strip("* ").split("[")[0], expression(kind, name.strip(), found)) for name in rest.split(",")]
        found[structure] = fields
    return found


def expression(kind: str, name: str, found: dict[str, list[tuple[str, str]]]) -> str:
    """Say what a field is in ctypes; `name` with its star or number of elements."""
    if name.startswith("*"):
        return f"ctypes.POINTER({kind})" if kind in found else "ADDRESS"
    one = kind if kind in found else NUMBERS[kind]
    many = re.search(r"\[(\d+)\]", name)
    return f"{one} * {many[1]}" if many else one


def rendered() -> str:
    """Return the text of the module."""
    parts = [HEAD]
    for name, fields in structures().items():
        runs = [(kind, " ".join(field for field, _ in run)) for kind, run in itertools.groupby(fields, lambda field: field[1])]
        lines = "".join(f'        *_of({kind}, "{part}"),\n' for kind, names in runs for part in textwrap.wrap(names, 100))
        parts.append(f'\n\nclass {name}(ctypes.Structure):\n    """{name} of csrc."""\n\n    _fields_ = [\n{lines}    ]\n')
    return "".join(parts)


if __name__ == "__main__":
    MIRROR.write_text(rendered(), encoding="utf-8")
