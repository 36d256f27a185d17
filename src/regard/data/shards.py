"""Parallel text too large for memory: shards of lines, found, counted and read block by block."""

from __future__ import annotations

import glob
import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from regard.data.lines import iter_lines, unreadable
from regard.data.parallel import Pair
from regard.errors import DataError

Shard = tuple[Path, Path]


class Block(NamedTuple):
    """Consecutive pairs of one shard.

    Attributes:
        shard: number of the shard.
        first: number of its first pair in the whole text.
        pairs: how many.
        source: where its lines begin and end in the source file, in bytes.
        target: and in the target file.
    """

    shard: int
    first: int
    pairs: int
    source: tuple[int, int]
    target: tuple[int, int]


def find_shards(source: str, target: str) -> list[Shard]:
    """Find the files of a parallel text: sorted by name, the first of one side belongs to the first of the other.

    Args:
        source: a file, or a pattern with `*`, `?` or `[...]` in the name of folders or files.
        target: the same of the other side.

    Returns:
        At least one pair of files.

    Raises:
        DataError: nothing is found, unequal numbers of files, or one is compressed, in which no block could be found; names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.en", "b.en", "a.de", "b.de"):
        ...         _ = Path(folder, name).write_text("x\\n")
        ...     [(source.name, target.name) for source, target in find_shards(f"{folder}/*.en", f"{folder}/*.de")]
        [('a.en', 'a.de'), ('b.en', 'b.de')]
    """
    sides = []
    for pattern in (source, target):
        found = [Path(pattern)] if Path(pattern).exists() else sorted(map(Path, glob.glob(pattern, recursive=True)))
        if not found:
            raise DataError(f"{pattern}: no such file, and no file has a name like this")
        if compressed := next((path for path in found if path.suffix == ".gz"), None):
            raise DataError(f"{compressed}: compressed; shards are read from any place in them, so decompress them first")
        sides.append(found)
    if len(sides[0]) != len(sides[1]):
        raise DataError(f"{source}: {len(sides[0])} files, but {target}: {len(sides[1])}; expected as many, in the same order of names")
    return list(zip(*sides, strict=True))


def scan_shards(shards: Sequence[Shard], block: int) -> tuple[list[Block], str]:
    """Read all shards once, a block at a time: where blocks begin, and a hash of everything.

    Args:
        shards: as `find_shards` gives them.
        block: pairs of a block; the last one of a shard may have fewer.

    Returns:
        The blocks in order, at least one, and the sha256 of all bytes in order.

    Raises:
        DataError: a file cannot be read, or the two files of a shard have different numbers of lines; names both.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = Path(folder, "a.en"), Path(folder, "a.de")
        ...     for path in files:
        ...         _ = path.write_text("one\\ntwo\\nthree\\n")
        ...     [(found.first, found.pairs) for found in scan_shards([files], 2)[0]]
        [(0, 2), (2, 1)]
    """
    blocks: list[Block] = []
    digest = hashlib.sha256()
    first = 0
    for number, shard in enumerate(shards):
        sides = [_line_ends(path, block, digest) for path in shard]
        lines = [side[-1][0] for side in sides]
        if lines[0] != lines[1]:
            raise DataError(f"{shard[1]}: {lines[1]} lines, but {shard[0]} has {lines[0]}")
        for (begun, source), (_, target), (ended, source_end), (_, target_end) in zip(
            sides[0], sides[1], sides[0][1:], sides[1][1:], strict=False
        ):
            blocks.append(Block(number, first + begun, ended - begun, (source, source_end), (target, target_end)))
        first += lines[0]
    if not blocks:
        raise DataError(f"{shards[0][0]}: no lines in any shard, expected at least one sentence pair")
    return blocks, digest.hexdigest()


def _line_ends(path: Path, block: int, digest: hashlib._Hash) -> list[tuple[int, int]]:
    """Return (lines before, bytes before) at the start, after each `block` lines, and at the end."""
    places = [(0, 0)]
    lines, place, last = 0, 0, b"\n"
    try:
        with open(path, "rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                found = chunk.count(b"\n")
                at = 0
                while lines + found >= places[-1][0] + block:
                    for _ in range(places[-1][0] + block - lines):
                        at = chunk.index(b"\n", at) + 1
                        found -= 1
                    lines = places[-1][0] + block
                    places.append((lines, place + at))
                lines, place, last = lines + found, place + len(chunk), chunk
    except OSError as error:
        raise unreadable(path, error) from error
    lines += not last.endswith(b"\n")
    if places[-1][0] != lines:
        places.append((lines, place))
    return places


def read_block(shards: Sequence[Shard], block: Block) -> list[Pair]:
    """Read the pairs of a block, by the rules of `read_lines`.

    Raises:
        DataError: a file cannot be read, or has changed since it was scanned; names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = Path(folder, "a.en"), Path(folder, "a.de")
        ...     for path, text in zip(files, ("one\\ntwo\\n", "eins\\nzwei\\n")):
        ...         _ = path.write_text(text)
        ...     read_block([files], scan_shards([files], 1)[0][1])
        [('two', 'zwei')]
    """
    sides = []
    for path, (start, end) in zip(shards[block.shard], (block.source, block.target), strict=True):
        try:
            with open(path, "rb") as stream:
                stream.seek(start)
                content = stream.read(end - start)
        except OSError as error:
            raise unreadable(path, error) from error
        # A byte order mark is one at the start of a file only.
        lines = list(iter_lines(io.BytesIO(content if start == 0 else b"\n" + content)))[start > 0 :]
        if len(lines) != block.pairs:
            raise DataError(f"{path}: changed while it was read, {len(lines)} lines where {block.pairs} were")
        sides.append(lines)
    return list(zip(*sides, strict=True))


def sample_pairs(shards: Sequence[Shard], blocks: Sequence[Block], count: int) -> list[Pair]:
    """Read about `count` pairs, in whole blocks spread evenly over the text; all of it where it has no more.

    Raises:
        DataError: see `read_block`.

    Example:
        >>> sample_pairs([], [], 3)
        []
    """
    whole = sum(block.pairs for block in blocks)
    wanted = len(blocks) if whole <= count else max(1, round(len(blocks) * count / whole))
    chosen = [blocks[number * len(blocks) // wanted] for number in range(min(wanted, len(blocks)))]
    return [pair for block in chosen for pair in read_block(shards, block)]
