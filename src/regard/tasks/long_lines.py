"""Divides lines that are longer than a model was trained for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from regard.data.vocabulary import TokenizedText, Vocabulary
from regard.decoding import Hypothesis

# Preferred split points: after the end of a sentence, after other punctuation, else at a space.
PAUSES = (re.compile(r"[;:.!?\u2026\u3002\uff01\uff1f][\"')\u201d]?\s"), re.compile(r"[,)\u2014\u2013]\s"), re.compile(r"\s"))
# No token has so many characters on average: a longer line is split without encoding it, which takes a hundred times its memory.
MOST_CHARACTERS = 50


def divide_line(line: str, vocabulary: Vocabulary, limit: int) -> list[str]:
    """Divide a line into parts of at most `limit` tokens, at the best split points near their middles.

    A word that is longer is divided, too, a character is not.

    Args:
        line: a line with text.
        vocabulary: the source vocabulary.
        limit: `data.max_length` of the run.

    Returns:
        One or more parts; joined, they are the line. None is blank; the limit holds without surrounding white space.

    Example:
        >>> divide_line("a dog, a cat", Vocabulary.train(["a dog, cat"], kind="word", size=20), 2)
        ['a dog, ', 'a cat']
    """
    text = line.strip()
    if len(text) < 2 or (not surely_long(line, limit) and len(vocabulary.encode(text).ids) <= limit):
        return [line]
    start, middle = line.index(text), len(text) / 2
    for pause in PAUSES:
        # Not near the ends, where a part would hardly be shorter.
        ends = [found.end() for found in pause.finditer(text, len(text) // 5, len(text) - len(text) // 5)]
        if ends:
            break
    else:
        ends = [int(middle)]
    end = start + min(ends, key=lambda end: abs(end - middle))
    return [*divide_line(line[:end], vocabulary, limit), *divide_line(line[end:], vocabulary, limit)]


def surely_long(line: str, limit: int) -> bool:
    """Return whether a line has more than `limit` tokens by its characters alone.

    Example:
        >>> surely_long("a" * 101, 2), surely_long("a dog", 2)
        (True, False)
    """
    return len(line.strip()) > MOST_CHARACTERS * limit


def first_words(parts: list[str]) -> list[int]:
    """Return the number, from 0, of the first word of each part in the line; a part may begin inside a word.

    Example:
        >>> first_words(["a dog, ", "a c", "at"])
        [0, 2, 3]
    """
    found, words, last = [], 0, ""
    for part in parts:
        words -= bool(last.strip() and part[:1].strip())  # a word goes on
        found.append(words)
        words, last = words + len(part.split()), part[-1:]
    return found


def joined_hypothesis(parts: Sequence[Hypothesis]) -> Hypothesis:
    """Return the hypothesis of a line from those of its parts: all tokens, the sum of the scores, and no attention.

    Example:
        >>> joined_hypothesis([Hypothesis([4, 3], -1.5, [-1.0, -0.5], None), Hypothesis([3], -1.0, [-1.0], None)])
        Hypothesis(tokens=[4, 3, 3], score=-2.5, log_probs=[-1.0, -0.5, -1.0], attention=None)
    """
    tokens, log_probs = [token for part in parts for token in part.tokens], [value for part in parts for value in part.log_probs]
    return Hypothesis(tokens, sum(part.score for part in parts), log_probs, None)


def joined_source(parts: Sequence[TokenizedText], lines: Sequence[str]) -> TokenizedText:
    """Return the tokens of a line from those of its parts, which are `lines` with surrounding white space."""
    found, start = TokenizedText([], [], []), 0
    for part, line in zip(parts, lines, strict=True):
        own = start + len(line) - len(line.lstrip())
        found.ids.extend(part.ids)
        found.pieces.extend(part.pieces)
        found.offsets.extend((own + first, own + last) for first, last in part.offsets)
        start += len(line)
    return found
