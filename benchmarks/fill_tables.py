"""Write every `table:NAME` block of README.md and docs/*.md from docs/results/NAME.json.

    python benchmarks/fill_tables.py            write them
    python benchmarks/fill_tables.py --check    change nothing; exit 1 and name the files that would change

A figure is never typed into a document: a benchmark writes the JSON file, this writes the table. The file holds
{"columns": [names], "rows": [[cells]], "note": text}; `note` may be left out, other keys (machine, versions, command) are not
shown. A cell that is a number is written as it stands in the file. The block `table:mechanisms` has no file: it is what
`regard list` prints.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from regard.listing import MECHANISMS

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?P<start>^<!-- table:(?P<name>[\w-]+) -->\n)(?P<body>.*?)(?P<end>^<!-- /table -->$)", re.MULTILINE | re.DOTALL)
EMPTY = "*Not measured yet.*"


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


def mechanisms() -> dict[str, Any]:
    """Return the table of all mechanisms, with code set as code."""
    rows = [[m.name, m.aliases, f"`{m.where}`" if m.where else "", f"`{m.setting}`", m.source] for m in MECHANISMS]
    return {"columns": ["mechanism", "also known as", "in the library", "setting", "source"], "rows": rows}


def fill(text: str, results: Path) -> str:
    """Return a document with each of its blocks written anew; a block without a file says that nothing was measured."""

    def block(match: re.Match[str]) -> str:
        path = results / f"{match['name']}.json"
        if match["name"] == "mechanisms":
            body = render(mechanisms(), "mechanisms")
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
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
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
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/*.md from docs/results/*.json.")
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
