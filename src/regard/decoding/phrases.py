"""Forced phrases of hypotheses: their progress, and the tokens that continue them (Post and Vilar, 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
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


class PhraseProgress(NamedTuple):
    """Phrase progress of B sentences with K hypotheses and P phrases, each with A rows of at most L tokens."""

    tokens: Tensor  # (B, P, A, L) -1 after the end of a row; row 0 matches anywhere, the others at the beginning only
    lengths: Tensor  # (B, P, A) 0: no row
    follow: Tensor | None  # (V,) bool
    matched: Tensor  # (B, K, P, A, L + 1) bool: the last n tokens are the first n of the row
    met: Tensor  # (B, K, P) bool: the phrase is complete and followed

    @classmethod
    def start(cls, phrases: ForcedPhrases, device: torch.device | str) -> PhraseProgress:
        """Return the progress of one empty hypothesis per sentence; requires at least one phrase."""
        rows = [[phrase.rows for phrase in own] for own in phrases.sentences]
        count, most = max(map(len, rows)), max(len(own) for each in rows for own in each)
        width = max(len(row) for each in rows for own in each for row in own)
        tokens = torch.full((len(rows), count, most, width), -1)
        for b, each in enumerate(rows):
            for p, own in enumerate(each):
                for a, row in enumerate(own):
                    tokens[b, p, a, : len(row)] = torch.tensor(row)
        tokens = tokens.to(device)
        lengths = (tokens >= 0).sum(-1)
        matched = torch.zeros(len(rows), 1, count, most, width + 1, dtype=torch.bool, device=device)
        matched[..., 0] = lengths[:, None] > 0
        follow = None if phrases.follow is None else torch.tensor(phrases.follow, device=device)
        return cls(tokens, lengths, follow, matched, ~matched.any(-1).any(-1))

    def select(self, rows: Tensor, beams: Tensor) -> PhraseProgress:
        """Keep sentences `rows` (B',) and their hypotheses `beams` (B', K')."""
        own = rows[:, None]
        tokens, lengths, matched = self.tokens[rows], self.lengths[rows], self.matched[own, beams]
        if matched.size(-2) > 1 and not matched[..., 1:, :].any():
            # No hypothesis can still begin with another row, nor has just completed one: the next steps need not look at them.
            tokens, lengths, matched = tokens[:, :, :1], lengths[:, :, :1], matched[..., :1, :]
        return PhraseProgress(tokens, lengths, self.follow, matched, self.met[own, beams])

    def after(self, tokens: Tensor) -> PhraseProgress:
        """Return the progress after each next token (B, K, C), as K * C hypotheses."""
        hits = (self.tokens[:, None, None] == tokens[..., None, None, None]) & self.matched[:, :, None, ..., :-1]
        anywhere = (self.lengths > 0) & (torch.arange(self.lengths.size(-1), device=tokens.device) == 0)
        matched = torch.cat([anywhere[:, None, None, ..., None].expand(*hits.shape[:-1], 1), hits], -1)
        followed = self.complete().any(-1)[:, :, None]
        if self.follow is not None:
            followed = followed & self.follow[tokens][..., None]
        met = (self.met[:, :, None] | followed).expand(*tokens.shape, -1)
        return self._replace(matched=matched.flatten(1, 2), met=met.flatten(1, 2))

    def complete(self) -> Tensor:
        """Return which rows (B, K, P, A) the hypotheses end with."""
        last = self.lengths[:, None, :, :, None].expand(*self.matched.shape[:-1], 1)
        return self.matched.gather(-1, last).squeeze(-1) & (last.squeeze(-1) > 0)

    def missing(self) -> Tensor:
        """Return the minimum number of missing tokens (B, K), summed over phrases."""
        places = torch.arange(1, self.matched.size(-1) + 1, dtype=torch.int16, device=self.met.device)
        reached = (self.matched * places).amax(-1)  # one more than tokens; 0: not begun, cannot begin
        left = (self.lengths[:, None] + 1 - reached).masked_fill(reached == 0, self.matched.size(-1))
        fewest = reduce(torch.minimum, left.unbind(-1))  # far faster than a reduction over so short an axis
        return fewest.masked_fill(self.met, 0).sum(-1)

    def next_tokens(self) -> Tensor:
        """Return the tokens (B, K, P * A) that continue missing phrases; -1: none."""
        places = torch.arange(self.matched.size(-1) - 1, device=self.met.device)
        done = (self.met | self.complete().any(-1))[..., None]
        reached = (self.matched[..., :-1] * places).amax(-1, keepdim=True)
        found = self.tokens[:, None].expand(*self.matched.shape[:-1], -1).gather(-1, reached).squeeze(-1)
        return found.masked_fill(done | ~self.matched.any(-1), -1).flatten(-2)

    def word_ends(self) -> Tensor:
        """Return which hypotheses (B, K) end with a phrase that counts only if an allowed token follows."""
        return (self.complete().any(-1) & ~self.met).any(-1)
