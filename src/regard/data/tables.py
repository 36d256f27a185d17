"""Tables of text: rows of `.csv` and `.tsv` files, their columns by the names in the first line, and lines of JSON."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from regard.data.lines import MAX_LINE_BYTES, single_line
from regard.errors import DataError, counted, listed, shown
from regard.progress import message
from regard.strict_json import parse_json

DELIMITERS = (",", ";", "\t", "|")
"""What may separate the cells of a `.csv` file; the header says which."""
ENDINGS = (".csv", ".tsv")
csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))  # its own is 131,072 characters
CARRIAGE_RETURNS = "; its lines end in carriage returns (old Macintosh): end them in line feeds"
_SPACED_QUOTE = re.compile(' +"')
_BREAK = re.compile("\r\n|\r|\n")
# Spreadsheets write a quote within quotes twice.
_QUOTED = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')


class Table(NamedTuple):
    """Rows of a table.

    Attributes:
        named: whether the first line names the columns.
        rows: for each row the number of its first line, from 1, and its cells: with names those that were asked for, in that order, None
            for a missing column; else all of them.
    """

    named: bool
    rows: Iterator[tuple[int, list[str | None]]]


def read_table(
    lines: Iterator[str],
    path: str,
    names: Sequence[Sequence[str]],
    *,
    quoted: bool,
    optional: int = 0,
    advice: str = "",
    instead: Sequence[str] = (),
) -> Table:
    r"""Read the rows of a table.

    - Quoted (`.csv`): cells as in RFC 4180. The first line names the columns, and its names tell the separator: comma, semicolon, tab or
      bar. A line `sep=;` may precede it. Each row has as many cells. A line break in a cell becomes a space.
    - Else: cells with tabs between them, no quotes. The first line may name the columns; each row then has as many cells.

    Args:
        lines: of the file.
        path: its name, for errors.
        names: for each column its possible names; in other letter case where none is exact.
        quoted: whether it is a CSV file.
        optional: how many of the last of them a table need not have.
        advice: end of the error for a CSV file without them.
        instead: the first columns, if the first line has one of these names; it then has all of them.

    Raises:
        DataError: a CSV file names no such columns, or any file only some of them; two columns have one name; or, during iteration, a row
            is not of the format.

    Example:
        >>> lines = iter(['text;label', '"not ""bad"";"";fine";good'])
        >>> list(read_table(lines, "a.csv", [["label"], ["text", "sentence"]], quoted=True).rows)
        [(2, ['good', 'not "bad";";fine'])]
    """
    head, number = next(lines, None), 1
    if head is None:
        return Table(named=False, rows=iter(()))
    delimiters: Sequence[str] = DELIMITERS if quoted else ("\t",)
    if told := re.fullmatch('"?sep=(.)"?', head, re.IGNORECASE):
        if not quoted and told[1] != "\t":
            raise DataError(f"{path}, line 1: {shown(head)}, but cells of a .tsv file have tabs between them: name the file .csv")
        delimiters, head, number = [told[1]], next(lines, ""), 2
    where = f"{path}, line {number}"
    if chosen := _names_any(head, instead, quoted=quoted):
        names = [*([name] for name in instead), *names[len(instead) :]]
    for delimiter in delimiters:
        cells = _header(head, delimiter) if quoted else head.split("\t")
        columns = find_columns(cells, names, where)
        if None not in columns[: len(columns) - optional]:
            break
    else:
        if not quoted:
            _refuse_quoted_names(head, names[: len(names) - optional], where)
        if quoted or chosen:
            advice = CARRIAGE_RETURNS if "\r" in head else advice if quoted else "; if this line is no header, move it down"
            raise DataError(f"{where}: expected a header that names the columns {_wanted(names, optional)}, found {shown(head)}{advice}")
        if named := [at for at in columns[: len(columns) - optional] if at is not None]:
            missing = next(known for known, at in zip(names, columns, strict=True) if at is None)
            header = f"{where}: a column is named {cells[named[0]].strip()}, but none {' or '.join(missing)}"
            raise DataError(f"{header}; if this line is no header, move it down")
        whole = _told_quotes(chain([head], lines), path, number)
        return Table(named=False, rows=((line, list(row.split("\t"))) for line, row in enumerate(whole, number)))
    tell_others(cells, names, columns, where)
    found = (
        _csv_rows(lines, path, delimiter, number, len(cells))
        if quoted
        else _tab_rows(_told_quotes(lines, path, number + 1), path, number, len(cells))
    )
    return Table(named=True, rows=((line, [None if at is None else row[at] for at in columns]) for line, row in found))


def as_json(text: str | bytes, where: str, expected: str = "") -> Any:
    """Parse JSON of a file.

    Args:
        text: a document.
        where: file and line, for errors.
        expected: what it should be, for errors.

    Raises:
        DataError: it is not JSON, or beyond the limits of `regard.strict_json.parse_json`.

    Example:
        >>> as_json('{"a": 1}', "a.json")
        {'a': 1}
    """
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        wanted = f", expected {expected}" if expected else f" ({single_line(str(error))[:120]})"
        raise DataError(f"{where}: not JSON{wanted}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {single_line(str(error))[:120]}") from error


def ending_of(path: str | Path) -> str:
    """Return the ending of a file's name in lower case, without `.gz`.

    Example:
        >>> ending_of("a.TSV.gz"), ending_of("a")
        ('.tsv', '')
    """
    return os.path.splitext(str(path).lower().removesuffix(".gz"))[1]


def is_csv(path: str | Path) -> bool:
    """Return whether a file's name is that of a CSV file.

    Example:
        >>> is_csv("a.CSV"), is_csv("a.csv.gz"), is_csv("a.tsv")
        (True, True, False)
    """
    return ending_of(path) == ".csv"


def _refuse_quoted_names(head: str, names: Sequence[Sequence[str]], where: str) -> None:
    bare = head.replace('"', "")
    if bare != head and None not in find_columns(bare.split("\t"), names, where):
        raise DataError(f"{where}: names columns in quotes; name the file .csv to have the quotes of all cells removed")


def _names_any(line: str, names: Sequence[str], *, quoted: bool) -> bool:
    """Return whether a cell of a header is one of these names, see `spelled`."""
    tables = [_header(line, delimiter) for delimiter in DELIMITERS] if quoted else [line.replace('"', "").split("\t")]
    wanted = set(map(spelled, names))
    return any(spelled(cell) in wanted for cells in tables for cell in cells)


def names_columns(line: str, names: Sequence[Sequence[str]]) -> bool:
    """Return whether a line is the header of a CSV file with some columns.

    Example:
        >>> names_columns("image,caption", [["image"], ["caption"]]), names_columns("a dog, a cat", [["image"], ["caption"]])
        (True, False)
    """
    return any(None not in find_columns(_header(line, delimiter), names, "") for delimiter in DELIMITERS)


def find_columns(cells: Sequence[str], names: Sequence[Sequence[str]], where: str) -> list[int | None]:
    """Return the place of each named column, None for one that a header does not have.

    Args:
        cells: of the header.
        names: for each column its possible names, which count in another spelling (`spelled`) where none is exact.
        where: file and line, for errors.

    Raises:
        DataError: two columns have the same name.

    Example:
        >>> find_columns(["Text", "id"], [["label"], ["sentence", "text"]], "a.tsv, line 1")
        [None, 0]
    """
    exact = [cell.strip() for cell in cells]
    loose = list(map(spelled, cells))
    found: list[int | None] = []
    for known in names:
        named = [(exact, name) for name in known if name in exact] or [(loose, one) for one in map(spelled, known) if one in loose]
        if not named:
            found.append(None)
            continue
        own, name = named[0]
        if own.count(name) > 1:
            raise DataError(f"{where}: {own.count(name)} columns are named {name}")
        found.append(own.index(name))
    return found


def refuse_empty(line: str, where: str) -> None:
    """Refuse a line of white space alone, for what it is.

    Args:
        line: of a file.
        where: file and line, for the error.

    Raises:
        DataError: it is empty.

    Example:
        >>> refuse_empty("a line", "a.txt, line 1")
    """
    if not line.strip():
        raise DataError(f"{where}: an empty line; remove it")


def find_key(item: Mapping[str, Any], known: Sequence[str], where: str) -> str | None:
    """Return the key of an object that has one of these names, in any letter case, `-` for `_` or not; None if there is none.

    Raises:
        DataError: two keys are spellings of the same name.

    Example:
        >>> find_key({"Text": "a", "id": 1}, ["sentence", "text"], "a.jsonl, line 1")
        'Text'
    """
    for name in known:
        found = [key for key in item if spelled(key) == spelled(name)]
        if len(found) > 1:
            raise DataError(f"{where}: has the keys {listed(found)}; keep one of them")
        if found:
            return found[0]
    return None


def spelled(name: str) -> str:
    """Return a name as it is compared: without regard to letter case, and to `-` or `_` between its parts.

    Example:
        >>> spelled(" pt_BR")
        'pt-br'
    """
    return name.strip().lower().replace("_", "-")


def tell_others(cells: Sequence[str], names: Sequence[Sequence[str]], columns: Sequence[int | None], where: str) -> None:
    """Tell of columns that have another name of one that is read.

    Example:
        >>> tell_others(["label", "text"], [["label"], ["text"]], [0, 1], "a.csv, line 1")
    """
    for known, at in zip(names, columns, strict=True):
        wanted = set(map(spelled, known))
        named = [cell.strip() for cell in cells if spelled(cell) in wanted]
        if at is not None and len(named) > 1:
            message(f"{where}: of the columns {listed(named)}, {cells[at].strip()} is read", warning=True)


def _told_quotes(lines: Iterable[str], path: str, first: int) -> Iterator[str]:
    """Yield the lines, and tell how many have cells as a spreadsheet quotes them."""
    found, count = 0, 0
    for number, line in enumerate(lines, first):
        if '"' in line and any(_QUOTED.fullmatch(cell) for cell in line.split("\t")):
            found, count = found or number, count + 1
        yield line
    if count:
        lines_are = f"line {found} has a cell" if count == 1 else f"{count} lines, the first is line {found}, have cells"
        message(
            f"{path}: {lines_are} quoted as in CSV; these quotes are read as text: name the file .csv to have them removed", warning=True
        )


def _wanted(names: Sequence[Sequence[str]], optional: int) -> str:
    return " and ".join(known[0] + (f" (or {listed(known[1:])})" if known[1:] else "") for known in names[: len(names) - optional])


def _header(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # such as a NUL: it names no columns
        return []


def _csv_rows(lines: Iterator[str], path: str, delimiter: str, header: int, width: int) -> Iterator[tuple[int, list[str]]]:
    row = list[str]()  # its lines

    def kept() -> Iterator[str]:
        for line in lines:
            row.append(line + "\n")
            yield row[-1]

    reader = csv.reader(kept(), delimiter=delimiter, strict=True)
    while True:
        number = header + reader.line_num + 1
        row.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}, line {number}: not CSV: {_problem(str(error))}") from error
        if any(map(_SPACED_QUOTE.match, cells)) and _has_spaced_quote(row, cells, delimiter):
            raise DataError(f"{path}, line {number}: a space before the quote that begins a cell; remove it")
        if len(cells) != width:
            if not cells:
                raise DataError(f"{path}, line {number}: an empty line, expected {width} columns as in line {header}")
            advice = f"; a text with {shown(delimiter)} stands in double quotes" if len(cells) > width else ""
            raise DataError(f"{path}, line {number}: {counted(len(cells), 'column')}, expected {width} as in line {header}{advice}")
        yield number, [_BREAK.sub(" ", cell) for cell in cells]


def _has_spaced_quote(row: Sequence[str], cells: Sequence[str], delimiter: str) -> bool:
    """Return whether a cell of a row that begins with a space and a quote stands so in the file, not in quotes of its own."""
    try:
        others = next(csv.reader(row, delimiter=delimiter, skipinitialspace=True))
    except csv.Error:
        return True
    return len(others) != len(cells) or any(_SPACED_QUOTE.match(cell) and cell != other for cell, other in zip(cells, others, strict=True))


def _problem(error: str) -> str:
    if "end of data" in error:
        return "a quote is not closed"
    if "field limit" in error:
        return f"a cell of more than {MAX_LINE_BYTES:,} characters; perhaps a quote is not closed"
    if "new-line character" in error:
        return "a carriage return within a line; such a cell stands in double quotes"
    return f"{error}; a quote within quotes is written twice"


def _tab_rows(lines: Iterator[str], path: str, header: int, width: int) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, header + 1):
        cells = line.split("\t")
        if len(cells) != width:
            refuse_empty(line, f"{path}, line {number}")
            advice = "; a text has no tab" if len(cells) > width else ""
            raise DataError(f"{path}, line {number}: {counted(len(cells), 'column')}, but the first line names {width}{advice}")
        yield number, cells
