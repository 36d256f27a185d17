"""Word links as text: one line per sentence pair, in the format of fast_align and of Pharaoh."""

from __future__ import annotations

import re
from collections.abc import Iterable

from regard.errors import DataError, shown


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


def format_links(links: Iterable[tuple[int, int]]) -> str:
    """Return (target, source) links in the format of fast_align and of Pharaoh: `source-target`, numbers from 0, by target.

    Example:
        >>> format_links({(0, 0), (1, 2)})
        '0-0 2-1'
    """
    return " ".join(f"{source}-{target}" for target, source in sorted(links))
