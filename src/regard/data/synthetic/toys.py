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


def split_toys(kind: Toy, train: int, held_out: int, seed: int) -> tuple[list[ToyExample], list[ToyExample]]:
    """Generate a training set and a held-out set that share no source.

    The training examples are the first of the set; the held-out ones are those after them whose source occurs neither in the training set
    nor among the held-out ones already. Training sources may repeat: of the short ones there are few.

    Args:
        kind: as of `generate_toys`, whose symbols and lengths hold.
        train: training examples, >= 0.
        held_out: held-out examples, >= 0.
        seed: any integer.

    Returns:
        (training examples, held-out examples), as many as asked for.

    Raises:
        ConfigError: an argument is outside its range.

    Example:
        >>> train, held_out = split_toys("sort", 500, 50, seed=1)
        >>> len(train), len(held_out), {item.source for item in train} & {item.source for item in held_out}
        (500, 50, set())
    """
    if train < 0 or held_out < 0:
        raise ConfigError(f"train {train}, held_out {held_out}: expected 0 or more")
    kept = generate_toys(kind, train, seed=seed)
    seen, found, start = {item.source for item in kept}, dict[str, ToyExample](), train
    while missing := held_out - len(found):
        drawn = generate_toys(kind, missing, seed=seed, start=start)
        found |= {item.source: item for item in drawn if item.source not in seen}
        start += missing
    return kept, list(found.values())


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
