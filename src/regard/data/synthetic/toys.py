"""Copy, reverse and sort: sequences of letters whose answers and alignments are known. For tests of whole systems."""

from __future__ import annotations

import random
from typing import Literal, NamedTuple

from regard.errors import ConfigError, shown

Toy = Literal["copy", "reverse", "sort"]
TOYS: tuple[Toy, ...] = ("copy", "reverse", "sort")


class ToyExample(NamedTuple):
    """Letters with spaces between them; `links[i]` is the source span of target character i, None for a space."""

    source: str
    target: str
    links: tuple[tuple[int, int] | None, ...]


def generate_toys(
    kind: Toy,
    count: int,
    *,
    seed: int,
    start: int = 0,
    symbols: str = "abcdefghijk",
    lengths: tuple[int, int] = (1, 12),
) -> list[ToyExample]:
    """Generate examples `start` to `start + count - 1` of a toy task; example i depends on (seed, i) and the settings only.

    Args:
        kind: "copy", "reverse", or "sort" (in the order of `symbols`; equal letters keep their order).
        count: examples, >= 0.
        seed: any integer.
        start: number of the first example, >= 0.
        symbols: the letters to draw from, each one character that is no white space, none twice.
        lengths: least and greatest number of letters, >= 1; uniform between them.

    Returns:
        The examples; an empty list for a count of 0.

    Raises:
        ConfigError: an argument is outside its range.

    Example:
        >>> generate_toys("reverse", 1, seed=7, lengths=(3, 3))[0]
        ToyExample(source='e i c', target='c i e', links=((4, 5), None, (2, 3), None, (0, 1)))
    """
    if kind not in TOYS:
        raise ConfigError(f"kind {shown(kind)}: expected one of {', '.join(TOYS)}")
    if count < 0 or start < 0:
        raise ConfigError(f"count {count}, start {start}: expected 0 or more")
    if not symbols or len(set(symbols)) < len(symbols) or any(symbol.isspace() for symbol in symbols):
        raise ConfigError(f"symbols {shown(symbols)}: expected at least one letter, no white space, none twice")
    if not 1 <= lengths[0] <= lengths[1]:
        raise ConfigError(f"lengths {lengths}: expected at least 1, the greatest behind the least")
    generator = random.Random()
    examples = []
    for number in range(start, start + count):
        generator.seed(f"{kind} {seed} {number}")
        drawn = [generator.randrange(len(symbols)) for _ in range(generator.randint(*lengths))]
        examples.append(_example(kind, drawn, symbols))
    return examples


def _example(kind: Toy, drawn: list[int], symbols: str) -> ToyExample:
    order = list(range(len(drawn)))
    if kind == "reverse":
        order.reverse()
    elif kind == "sort":
        order.sort(key=drawn.__getitem__)
    links: list[tuple[int, int] | None] = []
    for place in order:  # letter number p stands at character 2p
        links += [(2 * place, 2 * place + 1), None]
    letters = [symbols[index] for index in drawn]
    return ToyExample(" ".join(letters), " ".join(letters[place] for place in order), tuple(links[:-1]))
