"""How large the project is, before and now: docs/results/sizes.json.

    python benchmarks/sizes.py                      beside commit 4df2b91, the state that the review of the house describes
    python benchmarks/sizes.py --before COMMIT

Code: lines of Python with something other than a comment or a docstring on them.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT, options, write

ROWS = (
    "src: files",
    "src: lines of code",
    "src: lines of docstrings",
    "src: lines of comments alone",
    "C: files",
    "C: lines",
    "tests: lines",
    "benchmarks: files",
    "benchmarks: lines",
    "docs: words",
    "docs: words outside tables and code",
)
EMPTY = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}


def lines_of(text: str) -> tuple[int, int, int]:
    """Return the lines of code, of docstrings, and of comments alone."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        body: list[Any] = (
            getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) else []
        )
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
            documented |= set(range(body[0].lineno, (body[0].end_lineno or 0) + 1))
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        (comments if token.type == tokenize.COMMENT else set() if token.type in EMPTY else code).update(
            range(token.start[0], token.end[0] + 1)
        )
    return len(code - documented), len(documented), len(comments - code)


def measure(root: Path) -> list[int]:
    """Return the figures of a tree, in the order of ROWS."""

    def texts(folder: str, *suffixes: str) -> Iterator[str]:
        paths = sorted(path for path in (root / folder).rglob("*") if path.suffix in suffixes)
        return (path.read_text(encoding="utf-8") for path in paths if "__pycache__" not in path.parts)

    source = [lines_of(text) for text in texts("src", ".py")]
    native = [text.count("\n") for text in texts("src", ".c", ".h")]
    benchmarks = [text.count("\n") for text in texts("benchmarks", ".py")]
    tests = sum(text.count("\n") for text in texts("tests", ".py"))
    documents = [path.read_text(encoding="utf-8") for path in (root / "docs").glob("*.md")]
    prose = [re.sub(r"(?ms)^```.*?^```$|^\|[^\n]*$", "", text) for text in documents]
    words, told = (sum(len(text.split()) for text in kind) for kind in (documents, prose))
    code, documented, comments = (sum(part) for part in zip(*source, strict=True))
    return [len(source), code, documented, comments, len(native), sum(native), tests, len(benchmarks), sum(benchmarks), words, told]


def main() -> None:
    parser = options(__doc__, out=RESULTS / "sizes.json")
    parser.add_argument("--before", default="4df2b91", help="the commit to stand beside")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", arguments.before], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        before = measure(Path(folder))
    rows = [[name, old, new, f"{100 * (new / old - 1):+.0f} %"] for name, old, new in zip(ROWS, before, measure(ROOT), strict=True)]
    for row in rows:
        print(*row, sep="\t")
    write(arguments.out, ["", "before", "now", "change"], rows, f"`python benchmarks/sizes.py`; before: commit {arguments.before}.")


if __name__ == "__main__":
    main()
