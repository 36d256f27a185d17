"""Parallel text in one or more shards: found, counted, and streamed."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar

from regard.data.file_digests import FileDigest, find_digest
from regard.data.lines import scan_lines, stream_bytes
from regard.data.parallel import SentencePair, file_digest, join_inputs, refuse_pairs, stream_pairs, unequal_lines
from regard.data.tmx import Languages
from regard.errors import DataError, counted

Item = TypeVar("Item")
Shard = tuple[Path, ...]
"""The source file and the target file, or the one file of both."""


class ParallelText:
    r"""A parallel text of one or more shards: files, number of pairs, and digests.

    Args:
        source: a file of source sentences or, without `target`, of pairs (see `regard.data.read_pairs`); or a pattern for several, with
            `*`, `?` or `[...]`. Files are taken in the order of their names. Any may end in `.gz`.
        target: likewise for target sentences; files correspond in order.
        second: likewise for second inputs: a source is then a line of both (`regard.data.input_pairs`).
        known: earlier `facts`. Unchanged files are not read again.
        languages: of `.tmx` files, source and target.

    Attributes:
        shards: the files.
        pairs: number of pairs in all shards, at least one.
        digests: of "source" and, if any, "target" and "second_source": the sha256 of the file, or of the files' sha256.
        facts: digests of all files by absolute path.

    Raises:
        DataError: a file is missing or unreadable, the numbers of files or of their lines differ, there is no pair, or a line of a file of
            pairs is not what its format asks for.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name, text in {"a.en": "one\n", "b.en": "two\n", "a.de": "eins\n", "b.de": "zwei\n"}.items():
        ...         _ = Path(folder, name).write_text(text)
        ...     text = ParallelText(f"{folder}/*.en", f"{folder}/*.de")
        ...     text.pairs, list(text)
        (2, [('one', 'eins'), ('two', 'zwei')])
    """

    def __init__(
        self,
        source: str,
        target: str | None = None,
        second: str | None = None,
        *,
        known: Mapping[str, FileDigest] | None = None,
        languages: Languages | None = None,
    ) -> None:
        if target is not None:
            refuse_pairs(source, target)
        self.shards, self._languages = find_shards(source, target), languages
        self._seconds = None if second is None else [files[1] for files in find_shards(source, second)]
        self.facts: dict[str, FileDigest] = {}
        for number, shard in enumerate(self.shards):
            found = {path: self._scan(path, known or {}, of_pairs=len(shard) == 1) for path in shard}
            if self._seconds is not None:
                found[self._seconds[number]] = self._scan(self._seconds[number], known or {}, of_pairs=False)
            for path, lines in found.items():
                if lines != found[shard[0]]:
                    raise unequal_lines(path, lines, shard[0], found[shard[0]])
        self.sizes = [self.facts[os.path.abspath(shard[0])].lines for shard in self.shards]
        self.pairs = sum(self.sizes)
        if not self.pairs:
            raise DataError(f"{self.shards[0][0]}: no lines, expected at least one sentence pair")
        sides = ("source", "target")[: len(self.shards[0])]
        self.digests = {side: self._digest([shard[number] for shard in self.shards]) for number, side in enumerate(sides)}
        if self._seconds is not None:
            self.digests["second_source"] = self._digest(self._seconds)

    @property
    def inputs(self) -> int:
        """Number of inputs: 1 or 2."""
        return 1 if self._seconds is None else 2

    def __iter__(self) -> Iterator[SentencePair]:
        """Yield all pairs, shard after shard.

        Raises:
            DataError: a file cannot be read, or has changed since it was counted.
        """
        if self._seconds is None:
            yield from self._pairs()
            return
        for (source, target), second in zip(self._pairs(), self.side(2), strict=True):
            yield join_inputs(source, second.decode("utf-8", errors="replace")), target

    def _pairs(self) -> Iterator[SentencePair]:
        for shard, size in zip(self.shards, self.sizes, strict=True):
            yield from self._whole(shard, stream_pairs(*shard, languages=self._languages), size)

    def blocks(self, size: int) -> Iterator[tuple[int, tuple[list[bytes], list[bytes]]]]:
        """Yield blocks of sources and targets of up to `size` pairs in UTF-8, with the index of the first pair.

        Raises:
            DataError: see `__iter__`.
        """
        if self._seconds is None:
            yield from self._blocks(size)
            return
        seconds = self.side(2)
        for first, (sources, targets) in self._blocks(size):
            both = zip(sources, islice(seconds, len(sources)), strict=True)
            yield first, ([b"\t".join(part.replace(b"\t", b" ") for part in parts) for parts in both], targets)
        for _ in seconds:  # changes show at the end
            pass

    def _blocks(self, size: int) -> Iterator[tuple[int, tuple[list[bytes], list[bytes]]]]:
        first = 0
        if len(self.shards[0]) == 2:
            sources, targets = self.side(0), self.side(1)
            while block := list(islice(sources, size)):
                yield first, (block, list(islice(targets, len(block))))
                first += len(block)
            for _ in targets:  # changes show at the end
                pass
        else:
            pairs = self._pairs()
            while found := list(islice(pairs, size)):
                yield first, ([source.encode() for source, _ in found], [target.encode() for _, target in found])
                first += len(found)

    def side(self, number: int) -> Iterator[bytes]:
        """Yield the sources (0), the targets (1) or the second inputs (2), in UTF-8; of two inputs 0 is the first.

        Raises:
            DataError: see `__iter__`.
        """
        for place, (shard, size) in enumerate(zip(self.shards, self.sizes, strict=True)):
            if number == 2:
                assert self._seconds is not None
                yield from self._whole((self._seconds[place],), stream_bytes(self._seconds[place]), size)
            elif len(shard) == 1:
                yield from (pair[number].encode() for pair in self._whole(shard, stream_pairs(shard[0], languages=self._languages), size))
            else:
                yield from self._whole((shard[number],), stream_bytes(shard[number]), size)

    @staticmethod
    def _whole(files: Shard, items: Iterator[Item], size: int) -> Iterator[Item]:
        """Yield the first `size` items; at the end raise if there were more or fewer."""
        found = 0
        for item in items:
            if found < size:
                yield item
            found += 1
        if found != size:
            raise DataError(f"{files[-1]}: changed while it was read, {counted(found, 'line')} where {size} were")

    def _scan(self, path: Path, known: Mapping[str, FileDigest], *, of_pairs: bool) -> int:
        name = os.path.abspath(path)
        if name not in self.facts:
            self.facts[name] = find_digest(path, known, self._scan_pairs if of_pairs else partial(scan_lines, text=True))
        return self.facts[name].lines

    def _scan_pairs(self, path: Path, advance: Callable[[int], None]) -> tuple[str, int]:
        lines = 0
        for _ in stream_pairs(path, languages=self._languages):
            lines += 1
            advance(1)
        return file_digest(path), lines

    def _digest(self, files: list[Path]) -> str:
        found = [self.facts[os.path.abspath(path)].sha256 for path in files]
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()


def find_shards(source: str, target: str | None) -> list[Shard]:
    r"""Find the files of a parallel text, sorted by name; those of both sides belong together whose wildcards stand for the same.

    Where the names of the two sides differ in more than the pattern, they are matched in order.

    Args:
        source: a file, or a pattern with `*`, `?` or `[...]` in the name of folders or files.
        target: likewise for targets; None: the files of `source` hold both.

    Returns:
        The files of each shard: source and target, or one file of both.

    Raises:
        DataError: a pattern finds nothing, or there are unequal numbers of files.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("a.en", "b.en", "a.de", "b.de"):
        ...         _ = Path(folder, name).write_text("x\n")
        ...     [(source.name, target.name) for source, target in find_shards(f"{folder}/*.en", f"{folder}/*.de")]
        [('a.en', 'a.de'), ('b.en', 'b.de')]
    """
    sides = []
    for pattern in (source, target):
        if pattern is None:
            continue
        if not pattern:  # Path("") is the current folder
            raise DataError("'': no such file")
        # A file name may look like a pattern.
        plain = glob.escape(pattern) == pattern or Path(pattern).exists()
        found = [Path(pattern)] if plain else sorted(map(Path, glob.glob(pattern, recursive=True)))
        if not found:
            raise DataError(f"{pattern}: no such file, and no file has a name like this")
        sides.append(found)
    if len(sides[0]) != len(sides[-1]):
        raise DataError(f"{source}: {len(sides[0])} files, but {target}: {len(sides[1])}; expected as many")
    if len(sides) == 2:
        keys = [[_wildcards(pattern, path) for path in found] for pattern, found in zip((source, target or ""), sides, strict=True)]
        places = {key: number for number, key in enumerate(keys[1])}
        if keys[0] != keys[1] and places.keys() == set(keys[0]) and len(places) == len(keys[0]) > 1:
            sides[1] = [sides[1][places[key]] for key in keys[0]]  # `a.dev.de` is behind `a.de`, but `a.dev.en` before `a.en`
    return list(zip(*sides, strict=True))


def _wildcards(pattern: str, path: Path) -> tuple[str, ...]:
    # What the wildcards of a pattern stand for in a path.
    parts = re.split(r"(\*+|\?|\[!?\]?[^\]]*\])", str(Path(pattern)))
    written = (re.escape(part) if number % 2 == 0 else "(.*)" if "*" in part else "(.)" for number, part in enumerate(parts))
    found = re.fullmatch("".join(written), str(path), re.DOTALL)
    return () if found is None else found.groups()
