"""Parallel text: read sentence pairs from one or two files, write them to two."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from regard.data.language_tags import OF_A_RUN, language_names
from regard.data.lines import read_lines, stat_rereadable, stream_lines, unreadable, whole_characters, write_files
from regard.data.tables import CARRIAGE_RETURNS, ENDINGS, as_json, ending_of, find_key, is_csv, read_table, refuse_empty
from regard.data.tmx import Languages, check_languages, is_tmx, stream_tmx
from regard.errors import ConfigError, DataError, counted, listed, shown
from regard.progress import stage
from regard.strict_json import kind_of

SentencePair = tuple[str, str]

PAIR_ENDINGS = (".jsonl", ".tsv", ".csv", ".tmx")
"""Files that hold both sides."""
# Columns of source, target and second input in a header, where none has the name of a language.
COLUMNS, SECOND = (("source", "src"), ("target", "tgt")), ("second", "second_source")


def read_pairs(
    source: str | Path,
    target: str | Path | None = None,
    second: str | Path | None = None,
    *,
    columns: Sequence[int] = (2,),
    languages: Languages | None = None,
) -> list[SentencePair]:
    r"""Read sentence pairs from two text files, or from one `.jsonl`, `.tsv`, `.csv` or `.tmx` file.

    With two files, line i of one belongs to line i of the other. A `.jsonl` line is an object with the keys "source" and "target", or with
    those of `languages`, also within "translation" (others are ignored). A `.tsv` line is two columns with a tab between them, without
    quoting. A `.csv` file begins with a header of the columns "source" (or "src") and "target" (or "tgt"), or those of `languages`, if it
    has any of these; a `.tsv` file may (`regard.data.tables.read_table`). For `.tmx` see `regard.data.tmx.stream_tmx`. Any of them may be
    compressed by gzip. Lines as in `read_lines`; none is skipped.

    Args:
        source: the file of source sentences, or the one file of pairs.
        target: the file of target sentences; None when `source` holds both.
        second: a file of second inputs, line by line with the sources; a source is then a line of both, with a tab between them
            (`regard.data.input_pairs`).
        columns: see `stream_pairs`.
        languages: of a `.tmx` file, source and target; in a header, names of the columns.

    Returns:
        At least one (source, target) pair.

    Raises:
        DataError: a file is missing or unreadable, the two have different numbers of lines, there is no line at all,
            or a line is not what its format asks for; the message names the file and the line.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("ein Hund\ta dog\n")
        ...     read_pairs(Path(folder, "a.tsv"))
        [('ein Hund', 'a dog')]
    """
    check_languages(languages)
    if target is not None:
        refuse_pairs(source, target, columns)
        sources, targets = read_lines(source), read_lines(target)
        if len(sources) != len(targets):
            raise unequal_lines(target, len(targets), source, len(sources))
        pairs = list(zip(sources, targets, strict=True))
    else:
        with stage(f"Reading {source}", unit="pairs") as reading:
            pairs = list(reading.track(stream_pairs(source, columns=columns, languages=languages, apart=second)))
    if not pairs:
        raise DataError(f"{source}: no lines, expected at least one sentence pair")
    if second is None:
        return pairs
    joined = join_file([pair[0] for pair in pairs], source, second)
    return [(both, pair[1]) for both, pair in zip(joined, pairs, strict=True)]


def join_file(firsts: Sequence[str], source: str | Path, second: str | Path) -> list[str]:
    r"""Return the lines of the file `source`, each joined with its line of the file of second inputs.

    Raises:
        DataError: it cannot be read, or has another number of lines.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "b.txt").write_text("un chien\n")
        ...     join_file(["a dog"], "a.txt", Path(folder, "b.txt"))
        ['a dog\tun chien']
    """
    seconds = read_lines(second)
    if len(seconds) != len(firsts):
        raise unequal_lines(second, len(seconds), source, len(firsts))
    return [join_inputs(*both) for both in zip(firsts, seconds, strict=True)]


def join_inputs(first: str, second: str) -> str:
    r"""Join two inputs with a tab; tabs within them become spaces.

    Example:
        >>> join_inputs("a dog", "un\tchien")
        'a dog\tun chien'
    """
    return first.replace("\t", " ") + "\t" + second.replace("\t", " ")


def stream_pairs(
    source: str | Path,
    target: str | Path | None = None,
    *,
    columns: Sequence[int] = (2,),
    languages: Languages | None = None,
    apart: str | Path | None = None,
) -> Iterator[SentencePair]:
    """Yield the pairs that `read_pairs` returns, without holding them in memory.

    Args:
        source: as for `read_pairs`.
        target: as for `read_pairs`.
        columns: of one file of pairs, how many are allowed; the second of three is the second input, in JSON the key "second".
        languages: as for `read_pairs`.
        apart: the file of second inputs, if they have one: then JSON objects may have none.

    Raises:
        ConfigError: the languages are not two different names.
        DataError: see `read_pairs`; raised when the iteration comes there. Of two files the shorter one ends the iteration: compare
            their lines before (`regard.data.lines.scan_lines`). Files without any pair yield none.

    Example:
        >>> import os
        >>> list(stream_pairs(os.devnull, os.devnull))
        []
    """
    if target is not None:
        refuse_pairs(source, target, columns)
        yield from zip(stream_lines(source), stream_lines(target), strict=False)
        return
    if is_tmx(source):
        if 2 not in columns:
            raise DataError(f"{source}: a translation memory has one input, the model reads two")
        yield from stream_tmx(source, languages)
        return
    ending = ending_of(source)
    if ending in ENDINGS:
        yield from _from_table(source, columns, languages, apart)
    elif ending == ".jsonl":
        for number, line in enumerate(stream_lines(source), start=1):
            where = f"{source}, line {number}"
            item = _object(line, where)
            if number == 1 and languages is not None and not any(find_key(item, [name], where) for name in languages):
                named = any(key in item for key in _own_keys(item, where))
                languages = None if named else languages
            yield _from_object(item, where, columns, languages=languages, apart=apart)
    else:
        endings = f"{listed(PAIR_ENDINGS[:-1])} or {PAIR_ENDINGS[-1]}"
        raise DataError(f"{source}: expected a {endings} file of pairs, or a second file with the targets (--target)")


def holds_pairs(path: str | Path) -> bool:
    """Return whether a file's name is that of a file of pairs, not of one side.

    Example:
        >>> holds_pairs("a.csv"), holds_pairs("a.TSV.gz"), holds_pairs("a.en")
        (True, True, False)
    """
    return ending_of(path) in PAIR_ENDINGS


def refuse_pairs(source: str | Path, target: str | Path, columns: Sequence[int] = (2,)) -> None:
    """Refuse files of pairs where each file should hold one side.

    Args:
        source: of the sources; of two inputs it may hold both, with a tab between them.
        target: of the targets.
        columns: as for `stream_pairs`.

    Raises:
        DataError: a name is that of a file of pairs.

    Example:
        >>> refuse_pairs("a.en", "a.de")
    """
    for path, what in ((source, "targets"), (target, "sources")):
        if holds_pairs(path) and not (path is source and 3 in columns):
            raise DataError(f"{path}: a file of pairs by its name; give it alone, without a file of {what}")


def write_parallel(folder: str | Path, name: str, pairs: Iterable[SentencePair]) -> tuple[Path, Path]:
    r"""Write pairs as NAME.source and NAME.target, one sentence a line, so that `read_pairs` gives them back.

    Both files are written atomically.

    Args:
        folder: created if needed.
        name: the start of both file names; no folder in it.
        pairs: (source, target) sentences, at least one.

    Returns:
        The paths of the two files.

    Raises:
        DataError: there are no pairs, a sentence could not be read back as one line (the message names the pair and
            the side), or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in write_parallel(folder, "toy", [("a b", "b a")])]
        ['toy.source', 'toy.target']
    """
    if not name or Path(name).name != name:
        raise ConfigError(f"name: {shown(name)}, expected the start of a file name without a folder")
    lines: tuple[list[str], list[str]] = ([], [])
    for number, pair in enumerate(pairs, start=1):
        for side, text, column in zip(("source", "target"), pair, lines, strict=True):
            column.append(_as_line(text, number, side))
    if not lines[0]:
        raise DataError(f"{Path(folder) / name}: no pairs to write")
    paths = (Path(folder) / f"{name}.source", Path(folder) / f"{name}.target")
    write_files({path: "".join(column).encode("utf-8") for path, column in zip(paths, lines, strict=True)})
    return paths


def hold_out(pairs: Sequence[SentencePair], count: int, seed: int) -> tuple[list[SentencePair], list[SentencePair]]:
    """Split off validation pairs: at most a tenth, at least one; both parts keep the order of `pairs`.

    A pure function of its arguments. Pairs that occur twice may end up in both parts.

    Args:
        pairs: at least two.
        count: number to hold out, >= 1, capped at a tenth.
        seed: another seed holds out other pairs.

    Returns:
        (training pairs, held-out pairs).

    Raises:
        DataError: there are fewer than two pairs.
        ConfigError: `count` is below 1.

    Example:
        >>> train, held = hold_out([(str(i), str(i)) for i in range(50)], count=500, seed=1)
        >>> len(train), len(held)
        (45, 5)
    """
    chosen = set(held_out_indices(len(pairs), count, seed))
    train = [pair for number, pair in enumerate(pairs) if number not in chosen]
    return train, [pairs[number] for number in sorted(chosen)]


def held_out_indices(pairs: int, count: int, seed: int) -> list[int]:
    """Return the sorted indices of the pairs that `hold_out` holds out.

    Args:
        pairs: number of pairs.
        count: as for `hold_out`.
        seed: as for `hold_out`.

    Raises:
        DataError: see `hold_out`.
        ConfigError: see `hold_out`.

    Example:
        >>> len(held_out_indices(50, count=500, seed=1))
        5
    """
    if count < 1:
        raise ConfigError(f"held_out: {count}, expected at least 1")
    if pairs < 2:
        raise DataError(f"{counted(pairs, 'sentence pair')}: at least 2 are needed to hold one out for validation")
    return sorted(random.Random(f"held out {seed}").sample(range(pairs), max(1, min(count, pairs // 10))))


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file's bytes as 64 hexadecimal digits.

    Raises:
        DataError: the file is missing or cannot be read.

    Example:
        >>> import os
        >>> file_digest(os.devnull)[:8]
        'e3b0c442'
    """
    stat_rereadable(path)
    try:
        with stage(f"Checksum of {path}"), open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unequal_lines(path: str | Path, lines: int, other: str | Path, expected: int) -> DataError:
    """Return the error for files with unequal numbers of lines.

    Example:
        >>> unequal_lines("a.de", 2, "a.en", 3)
        DataError('a.de: 2 lines, but a.en has 3; line 3 is missing')
    """
    missing = f"; line {lines + 1} is missing" if lines < expected else ""
    return DataError(f"{path}: {counted(lines, 'line')}, but {other} has {expected}{missing}")


def _from_table(
    source: str | Path, columns: Sequence[int], languages: Languages | None, apart: str | Path | None
) -> Iterator[SentencePair]:
    both = [SECOND] if 3 in columns or apart is not None else []
    optional, advice = len(both) if 2 in columns else 0, f"; data.languages=[A, B] takes columns A and B{OF_A_RUN}"
    names = [*COLUMNS, *both]
    table = read_table(
        stream_lines(source), str(source), names, quoted=is_csv(source), optional=optional, advice=advice, instead=languages or ()
    )
    wanted = f", but data.languages is [{', '.join(languages)}]" if languages else ""
    for number, row in table.rows:
        where = f"{source}, line {number}"
        if not table.named:
            if number == 1 and (told := language_names([cell or "" for cell in row])):
                advice = f"data.languages=[{', '.join(told)}] takes them as columns{OF_A_RUN}; if this line is a pair, move it down"
                raise DataError(f"{where}: names languages{wanted}; {advice}")
            if languages:
                raise DataError(f"{where}: names no columns{wanted}; name these in the first line, or source and target")
            yield _from_columns([cell for cell in row if cell is not None], where, columns)
            continue
        first, target, second = (*row, None)[:3]
        if apart is not None and second is not None:
            raise DataError(f"{where}: has a second input, and so has {apart}; give one of them")
        assert first is not None
        assert target is not None
        yield first if second is None else join_inputs(first, second), target


def _from_columns(cells: Sequence[str], where: str, columns: Sequence[int]) -> SentencePair:
    *inputs, target = cells
    if len(cells) not in columns:
        refuse_empty("".join(cells), where)
        found = counted(len(cells), "column")
        wanted = "the source, its second input and the target, with tabs between them" if 3 in columns else "the source, a tab, the target"
        advice = CARRIAGE_RETURNS if any("\r" in cell for cell in cells) else ""
        raise DataError(f"{where}: {found}, expected {' or '.join(map(str, columns))}: {wanted}{advice}")
    return "\t".join(inputs), target


def _object(line: str, where: str) -> dict[str, Any]:
    refuse_empty(line, where)
    item = as_json(line, where, '{"source": ..., "target": ...}')
    if not isinstance(item, dict):
        raise DataError(f'{where}: expected an object {{"source": ..., "target": ...}}, found {kind_of(item)}')
    inner = item.get("translation")
    if not isinstance(inner, dict):
        return item
    outer = {key: value for key, value in item.items() if key != "translation"}
    known = {*map(str.lower, inner), *chain(*COLUMNS)}
    if twice := [key for key in outer if key.lower() in known]:
        raise DataError(f'{where}: has texts under "translation", and {listed(twice)} beside it; keep one of them')
    return {**outer, **inner}


def _from_object(
    item: Mapping[str, Any], where: str, columns: Sequence[int], *, languages: Languages | None, apart: str | Path | None
) -> SentencePair:
    second = find_key(item, SECOND, where)
    if apart is not None and second is not None:
        raise DataError(f'{where}: has a "{second}" input, and so has {apart}; give one of them')
    two, second = 3 in columns and (2 not in columns or second is not None), second or SECOND[0]
    one, other = [find_key(item, [name], where) or name for name in languages] if languages else _own_keys(item, where)
    for key in (one, second, other) if two else (one, other):
        if not isinstance(item.get(key), str):
            found = f"found {kind_of(item[key])}" if key in item else f"found the keys {listed(item) or 'none'}"
            advice = "" if key in item or languages else f"; data.languages=[A, B] takes keys A and B{OF_A_RUN}"
            raise DataError(f'{where}: expected a text under "{key}", {found}{advice}')
    source = join_inputs(item[one], item[second]) if two else item[one]
    return whole_characters(source), whole_characters(item[other])


def _own_keys(item: Mapping[str, Any], where: str) -> list[str]:
    """Return the keys of an object that hold source and target; the usual ones where it has none."""
    keys = []
    for known in COLUMNS:
        found = [key for key in item if key.lower() in known]
        if len(found) > 1:
            raise DataError(f"{where}: has the keys {listed(found)}; keep one of them")
        keys.append(found[0] if found else known[0])
    return keys


def _as_line(text: str, number: int, side: str) -> str:
    if "\n" in text or text.endswith("\r") or (number == 1 and text.startswith("\ufeff")) or whole_characters(text) != text:
        raise DataError(f"pair {number}, {side}: holds a line break or what is no character, so it cannot be one line")
    return text + "\n"
