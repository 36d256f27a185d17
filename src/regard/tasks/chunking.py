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
    chunk: list[Item] = []
    characters = 0
    most = CHUNK_ITEMS if most is None else most
    failure = None
    iterator = iter(items)
    while True:
        try:
            item = next(iterator)
        except StopIteration:
            break
        except DataError as error:
            failure = error
            break
        chunk.append(item)
        characters += size(item)
        if len(chunk) == most or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
    if failure is not None:
        raise failure
