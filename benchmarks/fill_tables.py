"""Write every `table:NAME` block of README.md, ARCHITECTURE.md, CONTRIBUTING.md and docs/*.md from docs/results/NAME.json.

    python benchmarks/fill_tables.py            write them
    python benchmarks/fill_tables.py --check    change nothing; exit 1 and name the files that would change

A figure is never typed into a document: a benchmark writes the JSON file, this writes the table. The file holds
{"columns": [names], "rows": [[cells]], "note": text}; `note` may be left out, other keys (machine, versions, command) are not
shown. A cell that is a number is written as it stands in the file. `table:targets` and `table:targets-...` are computed from several of
these files by targets.py. The blocks `table:mechanisms`, `table:mechanisms-selected` and, for each mechanism, `table:mechanism-NAME` have
no file: they are what `regard list` prints. `table:recipes` is `regard.config.RECIPES`.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import targets

from regard.commands.info import COLUMNS, mechanism_cells
from regard.config import RECIPES
from regard.mechanisms import MECHANISMS, Mechanism

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?P<start>^<!-- table:(?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end>^<!-- /table -->$)", re.MULTILINE | re.DOTALL)
EMPTY = "*Not measured yet.*"
TARGETS = {"targets": targets.long_work, "targets-speed": targets.speed, "targets-translation": targets.translation}


def cell(value: Any) -> str:
    """Return a cell's text; null is an en dash, and a bar does not end the cell."""
    return "\u2013" if value is None else str(value).replace("|", "\\|").replace("\n", " ")


def read_table(path: Path) -> dict[str, Any]:
    """Read a table's file.

    Raises:
        ValueError: it is not JSON, or lacks `columns` or `rows`; the message names the file.
    """
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    if not isinstance(table, dict) or not {"columns", "rows"} <= set(table):
        raise ValueError(f"{path}: a table needs `columns` and `rows`")
    return table


def render(table: dict[str, Any], where: str) -> str:
    """Return the Markdown of a table; a column that holds only numbers stands on the right.

    Raises:
        ValueError: a row is not as long as `columns`; the message holds `where` and the row's number.
    """
    columns, rows = table["columns"], table["rows"]
    for number, row in enumerate(rows, 1):
        if len(row) != len(columns):
            raise ValueError(f"{where}: row {number} has {len(row)} cells, but there are {len(columns)} columns")
    numeric = [all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(columns))]
    lines = [columns, ["--:" if right else "---" for right in numeric], *rows]
    text = "\n".join("| " + " | ".join(cell(value) for value in line) + " |" for line in lines)
    return f"{text}\n\n{table['note']}" if table.get("note") else text


def code(text: str) -> str:
    """Set text as code; nothing stays nothing."""
    return f"`{text}`" if text else ""


SELECTED = ("additive-score", "scaled-dot-score", "general-score", "multi-head-attention", "area-attention", "crossed-co-attention")
"""The mechanisms that the README shows."""


def mechanisms(*, selected: bool) -> dict[str, Any]:
    """Return the table at the head of docs/mechanisms.md, with links to the sections, or the README's selection of it."""
    home = "docs/mechanisms.md" if selected else ""
    shown = [m for m in MECHANISMS if not selected or m.slug in SELECTED]
    rows = [[f"[{m.name}]({home}#{m.slug})", m.aliases, code(m.where), code(m.setting), m.source] for m in shown]
    return {"columns": list(COLUMNS[:5]), "rows": rows}


def recipes() -> dict[str, Any]:
    """Return the table of recipes in docs/translation.md."""

    def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
        for key, value in tree.items():
            if isinstance(value, Mapping):
                yield from flat(value, f"{prefix}{key}.")
            else:
                yield f"`{prefix}{key}={value}`"

    rows = []
    for recipe in RECIPES:
        if recipe.model == "crossed":  # the same settings as of a Transformer
            continue
        pairs = f"fewer than {int(recipe.below):,}" if math.isfinite(recipe.below) else "any number"
        rows.append([f"`{recipe.name}`", pairs, " ".join(flat(recipe.settings)), recipe.evidence])
    return {"columns": ["recipe", "training pairs", "settings", "chosen by"], "rows": rows}


def facts(row: Mechanism, pictures: Path) -> str:
    """Return what docs/mechanisms.md says of one mechanism; its picture's alternative text is the picture's own description."""
    picture = pictures / f"{row.slug}.svg"
    found = re.search(r"<desc>(.*?)</desc>", picture.read_text(encoding="utf-8"), re.DOTALL) if picture.exists() else None
    named = dict(zip(COLUMNS, mechanism_cells(row), strict=True))
    equation = re.sub(r";\s+(?![^\[]*\])", "\n", row.equation)  # not inside of brackets, where it stacks vectors
    named |= {"in the library": code(row.where), "setting": code(row.setting)}
    lines = [f"- {column}: {named[column]}" for column in COLUMNS if named[column] and column not in ("mechanism", "equation")]
    alternative = html.unescape(found[1]) if found else EMPTY
    return f"```text\n{equation}\n```\n\n" + "\n".join(lines) + f"\n\n![{alternative}](pictures/{picture.name})"


def fill(text: str, results: Path) -> str:
    """Return a document with each of its blocks written anew; a block without a file says that nothing was measured."""
    sections = {f"mechanism-{row.slug}": row for row in MECHANISMS}

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        path = results / f"{name}.json"
        if name in sections:
            body = facts(sections[name], results.parent / "pictures")
        elif name in TARGETS:
            body = render(TARGETS[name](results), name)
        elif name == "recipes":
            body = render(recipes(), name)
        elif name in ("mechanisms", "mechanisms-selected"):
            body = render(mechanisms(selected=name != "mechanisms"), name)
        else:
            body = render(read_table(path), path.name) if path.exists() else EMPTY
        return f"{match['start']}{body}\n{match['end']}"

    return BLOCK.sub(block, text)


def stale_documents(root: Path, *, write: bool) -> list[Path]:
    """Return the documents whose blocks differ from the files, after writing them where `write` says so.

    Raises:
        ValueError: a block is not closed, or a table's file cannot be used; the message names the file.
    """
    stale = []
    heads = [path for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md") if (path := root / name).exists()]
    for path in [*heads, *sorted((root / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if text.count("<!-- table:") != len(BLOCK.findall(text)):
            raise ValueError(f"{path}: a table block lacks its closing <!-- /table --> or its name is malformed")
        filled = fill(text, root / "docs" / "results")
        if filled != text:
            stale.append(path)
            if write:
                path.write_text(filled, encoding="utf-8")
    return stale


def main() -> int:
    """Fill or check the documents of this repository; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a table is not what its file holds")
    check = parser.parse_args().check
    try:
        stale = stale_documents(ROOT, write=not check)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'differs from docs/results; run make tables' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
