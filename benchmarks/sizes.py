"""How large the project is, before and now: docs/results/sizes.json; and five pages side by side: docs/results/pages.json;
and what the three largest rearrangements of code saved: docs/results/rearrangements.json.

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
PAGES = ("README.md", "docs/which-attention.md", "docs/studies.md", "docs/results.md", "docs/log.md")
REARRANGEMENTS = ("c1dbf2c", "0334755", "7678734")
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
    prose = [prose_of(text) for text in documents]
    words, told = (sum(len(text.split()) for text in kind) for kind in (documents, prose))
    code, documented, comments = (sum(part) for part in zip(*source, strict=True))
    return [len(source), code, documented, comments, len(native), sum(native), tests, len(benchmarks), sum(benchmarks), words, told]


def prose_of(text: str) -> str:
    """Return a document without its code, tables and comments."""
    return re.sub(r"(?ms)^```.*?^```$|^\|[^\n]*$|<!--.*?-->", "", text)


def page_cells(path: Path) -> list[Any]:
    """Return a page's words outside tables and code, its words per sentence, and its first paragraph."""
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose_of(path.read_text(encoding="utf-8")))
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", prose)]
    told = [part for part in paragraphs if part and not part.startswith(("#", "-", "!"))]
    sentences = [sentence for part in told for sentence in re.split(r"(?<=[.!?:]) ", part)]
    return [len(prose.split()), round(sum(len(one.split()) for one in sentences) / len(sentences), 1), told[0]]


def compare_pages(before: Path) -> list[list[Any]]:
    """Return two rows for each of PAGES, before and now."""
    rows: list[list[Any]] = []
    for name in PAGES:
        rows += [[name, when, *page_cells(root / name)] for when, root in (("before", before), ("now", ROOT))]
    return rows


def unpack(commit: str, folder: str) -> Path:
    """Write the files of a commit into a folder; return the folder."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
    return Path(folder)


def rearranged(commit: str) -> list[Any]:
    """Return a commit's subject, and its lines of code in src and in benchmarks, before and after."""
    subject = subprocess.run(["git", "log", "-1", "--format=%s", commit], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as before, tempfile.TemporaryDirectory() as after:
        figures = [measure(unpack(state, folder)) for state, folder in ((f"{commit}^", before), (commit, after))]
    places = (ROWS.index("src: lines of code"), ROWS.index("benchmarks: lines"))
    return [subject.strip(), *(state[place] for place in places for state in figures)]


def main() -> None:
    parser = options(__doc__, out=RESULTS)
    parser.add_argument("--before", default="4df2b91", help="the commit to stand beside")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = unpack(arguments.before, folder)
        before, pages = measure(root), compare_pages(root)
    rows = [[name, old, new, f"{100 * (new / old - 1):+.0f} %"] for name, old, new in zip(ROWS, before, measure(ROOT), strict=True)]
    for row in rows:
        print(*row, sep="\t")
    note = f"`python benchmarks/sizes.py`; before: commit {arguments.before}."
    write(arguments.out / "sizes.json", ["", "before", "now", "change"], rows, note)
    columns = ["page", "state", "words outside tables and code", "words per sentence", "first paragraph"]
    write(arguments.out / "pages.json", columns, pages, note)
    columns = ["commit", "src, before", "src, after", "benchmarks, before", "benchmarks, after"]
    changed = [rearranged(commit) for commit in REARRANGEMENTS]
    write(
        arguments.out / "rearrangements.json", columns, changed, "`python benchmarks/sizes.py`: lines of code in src, lines in benchmarks."
    )


if __name__ == "__main__":
    main()
