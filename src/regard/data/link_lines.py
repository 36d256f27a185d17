"""Word links as text: one line per sentence pair, in the format of fast_align and of Pharaoh."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regard.errors import DataError, counted, shown


def parse_links(line: str, where: str) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Parse a line of links: `source-target` sure and `source?target` possible, numbers from 0.

    Args:
        line: links separated by white space; may be empty.
        where: file and line, for errors.

    Returns:
        The sure and the possible links as sets of (target, source); sure links are possible, too.

    Raises:
        DataError: an item is not a link.

    Example:
        >>> sure, possible = parse_links("0-0 2?1", "test.links, line 1")
        >>> sure, sorted(possible)
        ({(0, 0)}, [(0, 0), (1, 2)])
    """
    sure, possible = set(), set()
    for item in line.split():
        match = re.fullmatch(r"([0-9]{1,9})([-?])([0-9]{1,9})", item)
        if match is None:
            raise DataError(f"{where}: expected links like 3-4 or 3?4, found {shown(item)}")
        link = (int(match[3]), int(match[1]))
        possible.add(link)
        if match[2] == "-":
            sure.add(link)
    return sure, possible


def check_links(links: Iterable[tuple[int, int]], counts: tuple[int, int], unit: str, where: str) -> None:
    """Check that links are within their pair.

    Args:
        links: (target, source) numbers from 0.
        counts: number of units of the target and of the source.
        unit: what the numbers count, for errors.
        where: file and line, for errors.

    Raises:
        DataError: a number is outside.

    Example:
        >>> check_links({(0, 2)}, (1, 2), "word", "test.links, line 1")
        Traceback (most recent call last):
            ...
        regard.errors.DataError: test.links, line 1: 2-0, but the source has 2 words, numbered from 0
    """
    for link in sorted(links):
        for place, side, count in zip(link, ("target", "source"), counts, strict=True):
            if place >= count:
                raise DataError(f"{where}: {link[1]}-{link[0]}, but the {side} has {counted(count, unit)}, numbered from 0")
