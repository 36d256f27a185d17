"""Training of the unigram sub-word model (Kudo 2018, "Subword Regularization", section 3.2).

The tokenizers library also trains such models, but in the order of a randomly seeded hash table: the same text gives different entries at
every run. This trainer is deterministic.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np

Number = TypeVar("Number", int, float)

_SPACE = "\u2581"  # replaces a space and begins every word
_WORD = re.compile(f"{_SPACE}[^{_SPACE}]*")
_LONGEST_PIECE = 16
_LONGEST_WORD = 32  # characters; longer words are cut in training, to avoid underflow
_MAX_CHARACTERS = 1_000_000  # of distinct words, most frequent first: more text adds time but hardly any piece
_SEEDS = 5  # times the requested size
_SHRINK = 0.75
_FLOOR = 1e-3  # count of a character that no best path uses


class Tell(Protocol):
    """Called after each round of the EM algorithm."""

    def __call__(self, *, done: int, total: int) -> None:
        """Report finished rounds, and how many there are in all, at most."""


def _silent(*, done: int, total: int) -> None:
    pass


def train_unigram(texts: Iterable[str], *, size: int, specials: Sequence[str], tell: Tell = _silent) -> list[tuple[str, float]]:
    """Learn pieces and their log-probabilities: at most `size`, the specials first with 0.0, then by falling score.

    Start from the substrings that fill the most text, estimate their probabilities by EM over all segmentations of
    every word, drop the quarter whose loss costs the likelihood least, and repeat until `size` are left. Characters are
    never dropped, unless there are more than `size` of them; then the most frequent stay.

    Returns:
        (piece, log-probability) pairs, probabilities summing to one; without any text only the specials.

    Example:
        >>> [piece for piece, _ in train_unigram(["aha aha", "aha"], size=5, specials=["?"])]
        ['?', '▁aha', 'a', 'h', '▁']
    """
    words = _count_words(texts)
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in word:
            characters[character] += count
    room = max(0, size - len(specials))
    alphabet = [character for character, _ in _ranked(characters)[:room]]
    words = _most_frequent(words)
    found = _ranked({piece: count * len(piece) for piece, count in _substrings(words).items()})
    pieces = alphabet + [piece for piece, _ in found[: max(0, _SEEDS * (room - len(alphabet)))]]
    if not pieces:
        return [(special, 0.0) for special in specials]
    counts = np.array(
        [float(characters[piece]) for piece in alphabet] + [score / len(piece) for piece, score in found][: len(pieces) - len(alphabet)]
    )
    numbers = {piece: number for number, piece in enumerate(pieces)}
    corpus = [_Lattice(chunk, numbers, weights) for chunk, weights in _by_length(words)]
    themselves = [_Lattice(chunk, numbers, weights) for chunk, weights in _by_length(dict.fromkeys(pieces[len(alphabet) :], 1))]
    alive = np.ones(len(pieces), dtype=bool)
    for done in itertools.count(1):
        for _ in range(2):
            expected = sum((lattice.expected_counts(_normal(counts)) for lattice in corpus), np.zeros(len(pieces)))
            alive[len(alphabet) :] &= expected[len(alphabet) :] >= 0.5  # half an occurrence, as in SentencePiece
            # Minus a half: the digamma of the variational Bayes step, which starves rare pieces.
            counts = np.where(alive, np.maximum(expected - 0.5, _FLOOR), 0.0)
        tell(done=done, total=done + _rounds(int(alive.sum()), room))
        if alive.sum() <= room:
            break
        keep = max(room, int(_SHRINK * alive.sum()))
        losses = _losses(themselves, _normal(counts), counts, numbers)
        losses[: len(alphabet)] = np.inf
        losses[~alive] = -np.inf
        alive[np.argsort(-losses, kind="stable")[keep:]] = False
        counts = np.where(alive, counts, 0.0)
    scored = {pieces[number]: float(np.log(_normal(counts)[number])) for number in np.flatnonzero(alive)}
    return [(special, 0.0) for special in specials] + [(piece, round(score, 6)) for piece, score in _ranked(scored)]


def _rounds(pieces: int, room: int) -> int:
    """Return how many more rounds reduce the pieces to those that there is room for, at most."""
    rounds = 0
    while pieces > room:
        pieces, rounds = max(room, int(_SHRINK * pieces)), rounds + 1
    return rounds


class _Lattice:
    """All segmentations of the words of length n, vectorized.

    `numbers[w, j - 1, k - 1]` is the piece of k characters that ends after character j of word w; if there is none, it is one past the last
    piece, with probability 0.
    """

    def __init__(self, words: list[str], numbers: dict[str, int], weights: Sequence[int]) -> None:
        self.words = words
        self._weights = np.array(weights, dtype=float)
        self._length = len(words[0])
        self._none = len(numbers)
        span = min(_LONGEST_PIECE, self._length)
        get, none = numbers.get, self._none
        self._numbers = np.array(
            [
                [
                    [get(word[end - size : end], none) if size <= end else none for size in range(1, span + 1)]
                    for end in range(1, self._length + 1)
                ]
                for word in words
            ],
            dtype=np.int32,
        )

    def expected_counts(self, probabilities: np.ndarray) -> np.ndarray:
        """Return how often each piece is used, over all segmentations by their probability (forward-backward)."""
        edges = np.append(probabilities, 0.0)[self._numbers]
        rows, length, span = edges.shape
        before, behind = np.zeros((rows, length + 1)), np.zeros((rows, length + 1))
        before[:, 0] = behind[:, length] = 1.0
        for end in range(1, length + 1):
            for size in range(1, min(span, end) + 1):
                before[:, end] += before[:, end - size] * edges[:, end - 1, size - 1]
        for end in range(length, 0, -1):
            for size in range(1, min(span, end) + 1):
                behind[:, end - size] += behind[:, end] * edges[:, end - 1, size - 1]
        # A word with a character outside the alphabet has no segmentation at all.
        total = before[:, length]
        scale = np.divide(self._weights, total, out=np.zeros(rows), where=total > 0)
        for end in range(1, length + 1):
            for size in range(1, span + 1):
                edges[:, end - 1, size - 1] *= before[:, end - size] * behind[:, end] * scale if size <= end else 0.0
        return np.bincount(self._numbers.ravel(), weights=edges.ravel(), minlength=self._none + 1)[: self._none]

    def best_without_itself(self, probabilities: np.ndarray) -> np.ndarray:
        """Return the probability of the best segmentation of each word into two pieces or more."""
        edges = np.append(probabilities, 0.0)[self._numbers]
        rows, length, span = edges.shape
        best = np.zeros((rows, length + 1))
        best[:, 0] = 1.0
        for end in range(1, length + 1):
            for size in range(1, min(span, end) + 1):
                if size < length:
                    np.maximum(best[:, end], best[:, end - size] * edges[:, end - 1, size - 1], out=best[:, end])
        return best[:, length]


def _losses(themselves: list[_Lattice], probabilities: np.ndarray, counts: np.ndarray, numbers: dict[str, int]) -> np.ndarray:
    """Return what each piece's removal costs in log-likelihood: count * (log p - log p of its best replacement)."""
    losses = np.zeros(len(counts))
    for lattice in themselves:
        rows = [numbers[word] for word in lattice.words]
        used = np.maximum(probabilities[rows], 1e-300)
        losses[rows] = counts[rows] * (np.log(used) - np.log(np.maximum(lattice.best_without_itself(probabilities), 1e-300)))
    return losses


def _normal(counts: np.ndarray) -> np.ndarray:
    return counts / counts.sum()


def _ranked(counts: Mapping[str, Number]) -> list[tuple[str, Number]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _count_words(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        if text:
            marked = text.replace(" ", _SPACE)
            counts.update(_WORD.findall(marked if marked[0] == _SPACE else _SPACE + marked))
    return counts


def _most_frequent(counts: Counter[str]) -> dict[str, int]:
    chosen: Counter[str] = Counter()
    characters = 0
    for word, count in _ranked(counts):
        characters += len(word)
        if characters > _MAX_CHARACTERS and chosen:
            break
        for start in range(0, min(len(word), _MAX_CHARACTERS), _LONGEST_WORD):
            chosen[word[start : start + _LONGEST_WORD]] += count
    return chosen


def _substrings(words: dict[str, int]) -> dict[str, int]:
    """Count the substrings of 2 to 16 characters that occur at least twice; one that grows from a rarer one cannot."""
    result: dict[str, int] = {}
    places = [(word, count, start) for word, count in words.items() for start in range(len(word))]
    for length in range(2, _LONGEST_PIECE + 1):
        counts: Counter[str] = Counter()
        places = [place for place in places if place[2] + length <= len(place[0])]
        for word, count, start in places:
            counts[word[start : start + length]] += count
        frequent = {piece: count for piece, count in counts.items() if count >= 2}
        result |= frequent
        places = [place for place in places if place[0][place[2] : place[2] + length] in frequent]
    return result


def _by_length(words: dict[str, int]) -> list[tuple[list[str], list[int]]]:
    groups: dict[int, tuple[list[str], list[int]]] = {}
    for word, count in sorted(words.items()):
        group = groups.setdefault(len(word), ([], []))
        group[0].append(word)
        group[1].append(count)
    return [groups[length] for length in sorted(groups)]
