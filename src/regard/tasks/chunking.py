"""Process any number of items in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from regard.errors import DataError

Item = TypeVar("Item")

# Size of a chunk: enough to sort by length, small enough for memory.
CHUNK_ITEMS = 4096
CHUNK_CHARACTERS = 4_000_000


def in_chunks(items: Iterable[Item], size: Callable[[Item], int], *, most: int | None = None) -> Iterator[list[Item]]:
    """Yield items in lists of at most `most` items (default: `CHUNK_ITEMS`) and about `CHUNK_CHARACTERS` characters.

    If the items end with a `DataError`, such as damaged gzip data, those before it are yielded first.

    Example:
        >>> list(in_chunks(["a", "b"], len))
        [['a', 'b']]
    """
    most, iterator = CHUNK_ITEMS if most is None else most, iter(items)
    failure: DataError | None = None
    while failure is None:
        chunk, failure = take(iterator, most, size, characters=CHUNK_CHARACTERS)
        if chunk:
            yield chunk
        elif failure is None:
            return
    raise failure


def take(
    items: Iterator[Item], most: int, size: Callable[[Item], int] = lambda _: 0, *, characters: int = 1
) -> tuple[list[Item], DataError | None]:
    """Take items until there are `most`, they have `characters` characters, or they end; with the `DataError` by which they ended, if any.

    Example:
        >>> take(iter("abc"), 2)
        (['a', 'b'], None)
    """
    taken: list[Item] = []
    total = 0
    try:
        for item in items:
            taken.append(item)
            total += size(item)
            if len(taken) == most or total >= characters:
                break
    except DataError as error:
        return taken, error
    return taken, None
