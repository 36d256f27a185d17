"""Forced phrases of hypotheses: their progress, and the tokens that continue them (Post and Vilar, 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import NamedTuple

import torch
from torch import Tensor


class Phrase(NamedTuple):
    """Tokens that must appear consecutively.

    Attributes:
        tokens: one or more.
        first: alternative token rows at the beginning of a hypothesis, such as a word without the space before it.
    """

    tokens: Sequence[int]
    first: Sequence[Sequence[int]] = ()

    @property
    def rows(self) -> list[Sequence[int]]:
        """All accepted token rows."""
        return [self.tokens, *self.first]

    def within(self, tokens: Sequence[int], follow: Sequence[bool] | None = None) -> bool:
        """Return whether a hypothesis contains the phrase, followed by a token that `follow` allows.

        Example:
            >>> Phrase([5, 7]).within([4, 5, 7]), Phrase([5, 7]).within([5, 4, 7]), Phrase([5]).within([5, 6], [False] * 8)
            (True, False, False)
        """
        starts = [(start, self.tokens) for start in range(len(tokens))] + [(0, other) for other in self.first]
        found = (start + len(row) for start, row in starts if list(tokens[start : start + len(row)]) == list(row))
        return any(follow is None or end == len(tokens) or follow[tokens[end]] for end in found)


@dataclass(frozen=True)
class ForcedPhrases:
    """Phrases that the hypotheses of each sentence must contain.

    Attributes:
        sentences: phrases per sentence. Occurrences may overlap.
        follow: whether each token may follow a phrase: tokens that would continue its last word may not, EOS may. None: all may.
    """

    sentences: Sequence[Sequence[Phrase]]
    follow: Sequence[bool] | None = None


class _Automaton(NamedTuple):
    """The states of one phrase, from 0: complete and followed. State 1 is that of an empty hypothesis."""

    alphabet: list[int]  # the different tokens of its rows
    following: list[list[int]]  # per state: after another token that may not follow, after one that may, after each of the alphabet
    missing: list[int]  # min number of missing tokens
    wanted: list[list[int]]  # tokens that continue each row, -1: none
    ends: list[bool]  # complete, but followed by nothing yet


@lru_cache(maxsize=4096)
def _automaton(rows: tuple[tuple[int, ...], ...], inner: frozenset[int]) -> _Automaton:
    """Return the automaton of the rows, of whose tokens the `inner` may not follow a phrase. The first row matches anywhere, others at the
    beginning only.

    A state is the set of all begun rows, each with its number of matched tokens (subset construction, as in Knuth, Morris and Pratt 1977).
    """
    alphabet = list(dict.fromkeys(token for row in rows for token in row))
    begin = frozenset((number, 0) for number in range(len(rows)))
    numbers, waiting = {frozenset[tuple[int, int]](): 0, begin: 1}, [begin]
    found = _Automaton(alphabet, [[0] * (2 + len(alphabet))], [0], [[-1] * len(rows)], [False])
    for state in waiting:  # grows
        complete = any(count == len(rows[number]) for number, count in state)
        following = [frozenset({(0, 0)}), frozenset() if complete else frozenset({(0, 0)})]
        for token in alphabet:
            on = {(number, count + 1) for number, count in state if count < len(rows[number]) and rows[number][count] == token}
            following.append(frozenset() if complete and token not in inner else frozenset(on | {(0, 0)}))
        for other in following:
            if other not in numbers:
                numbers[other] = len(numbers)
                waiting.append(other)
        reached = dict(sorted(state))  # the longest match of each row
        found.following.append([numbers[other] for other in following])
        found.missing.append(min(len(rows[number]) - count for number, count in reached.items()))
        found.wanted.append([-1 if complete else row[reached[n]] if n in reached else -1 for n, row in enumerate(rows)])
        found.ends.append(complete)
    return found


def _inner(rows: tuple[tuple[int, ...], ...], follow: Sequence[bool] | None) -> frozenset[int]:
    return frozenset(() if follow is None else (token for row in rows for token in row if not follow[token]))


class PhraseTable(NamedTuple):
    """The states of all phrases of a batch; state 0 is that of a complete phrase."""

    following: Tensor  # (N, 2 + Z) long: the next state, see `_Automaton`
    missing: Tensor  # (N,) long
    wanted: Tensor  # (N, A) long
    ends: Tensor  # (N,) bool
    follow: Tensor | None  # (V,) bool


class PhraseProgress(NamedTuple):
    """Phrase progress of B sentences with K hypotheses and P phrases of at most Z different tokens each, as states of automata."""

    states: Tensor  # (B, K, P) long: rows of the table
    alphabet: Tensor  # (B, P, Z) long, -1 after the last
    table: PhraseTable

    @classmethod
    def start(cls, phrases: ForcedPhrases, device: torch.device | str) -> PhraseProgress:
        """Return the progress of one empty hypothesis per sentence; requires at least one phrase."""
        rows = [[tuple(map(tuple, phrase.rows)) for phrase in own] for own in phrases.sentences]
        known = {row: _automaton(row, _inner(row, phrases.follow)) for own in rows for row in own}
        count, most = max(map(len, rows)), max(len(row) for row in known)
        size = max(len(one.alphabet) for one in known.values())
        first, following, missing, wanted, ends = {}, [[0] * (2 + size)], [0], [[-1] * most], [False]
        for row, one in known.items():
            # Its state 0 is the first of all.
            first[row] = before = len(missing) - 1
            for own in one.following[1:]:
                following.append([state and state + before for state in own] + [0] * (size - len(one.alphabet)))
            missing += one.missing[1:]
            wanted += [[*own, *[-1] * (most - len(own))] for own in one.wanted[1:]]
            ends += one.ends[1:]
        states = [[first[row] + 1 for row in own] + [0] * (count - len(own)) for own in rows]
        letters = [[known[row].alphabet + [-1] * (size - len(known[row].alphabet)) for row in own] for own in rows]
        letters = [own + [[-1] * size] * (count - len(own)) for own in letters]
        follow = None if phrases.follow is None else torch.tensor(phrases.follow, device=device)
        table = PhraseTable(
            torch.tensor(following, device=device),
            torch.tensor(missing, device=device),
            torch.tensor(wanted, device=device),
            torch.tensor(ends, device=device),
            follow,
        )
        return cls(torch.tensor(states, device=device)[:, None], torch.tensor(letters, device=device), table)

    def select(self, rows: Tensor, beams: Tensor) -> PhraseProgress:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        return self._replace(states=self.states[rows[:, None], beams], alphabet=self.alphabet[rows])

    def after(self, tokens: Tensor) -> PhraseProgress:
        """Return the progress after each next token (B, K, C), as K * C hypotheses."""
        row, following = tokens.flatten(1), self.table.following
        entry = torch.ones_like(row) if self.table.follow is None else self.table.follow[row].long()
        entries = entry[..., None].expand(*row.shape, self.states.size(-1))
        for number, letters in enumerate(self.alphabet.unbind(-1), start=2):
            entries = torch.where(row[..., None] == letters[:, None], number, entries)
        before = self.states[:, :, None].expand(-1, -1, tokens.size(-1), -1).flatten(1, 2)
        return self._replace(states=following.view(-1)[before * following.size(1) + entries])

    def missing(self) -> Tensor:
        """Return the minimum number of missing tokens (B, K), summed over phrases."""
        # Far faster than a reduction over so short an axis.
        return reduce(torch.add, self.table.missing[self.states].unbind(-1))

    def next_tokens(self) -> Tensor:
        """Return the tokens (B, K, E) that continue missing phrases; -1: none. At least one per phrase."""
        found = self.table.wanted[self.states]
        if found.size(-1) > 1 and not (found[..., 1:] >= 0).any():
            found = found[..., :1]  # no hypothesis can still begin with another row
        return found.flatten(-2)

    def word_ends(self) -> Tensor:
        """Return which hypotheses (B, K) end with a phrase that counts only if an allowed token follows."""
        return self.table.ends[self.states].any(-1)
