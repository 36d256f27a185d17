"""The way a search went: arrays a step and back-pointers, followed only for the hypotheses that are returned."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.protocol import Hypothesis


class Leaf(NamedTuple):
    """The end of a hypothesis: its last token, and which hypothesis of the step before it extends."""

    score: float
    length: int
    place: int  # which of its sentence's candidates it was
    node: int  # flat place among the hypotheses given to the step that generated the last token
    token: int
    log_prob: float


class Layer(NamedTuple):
    """The hypotheses that go into a step, flattened (B * K,): last token, its log-probability, flat place of the parent."""

    tokens: Tensor
    log_probs: Tensor
    parents: Tensor


class Ends(NamedTuple):
    """Hypotheses that end in a step, all (E,), in order of sentence and place."""

    rows: Tensor  # which sentence of the whole batch
    places: Tensor  # which of its sentence's candidates each is
    scores: Tensor
    nodes: Tensor  # flat places of their parents
    tokens: Tensor
    log_probs: Tensor


def ending(ended: Tensor, rows: Tensor, *columns: Tensor) -> Ends:
    """Return those that `ended` (B, C) says of sentences `rows` (B,); `columns` (B, C) are the other fields of `Ends`."""
    row, place = ended.nonzero(as_tuple=True)
    return Ends(rows[row], place, *(column[row, place] for column in columns))


class Trail:
    """Remembers the steps of one search. A sentence that may have no token at all has ended before the first.

    Nothing is reordered while the search runs: a step appends its arrays, and `best` follows the pointers from the last
    token to the first, all returned hypotheses at once.
    """

    def __init__(self, limits: list[int], device: torch.device | str) -> None:
        self._device = device
        self._layers: list[Layer] = []
        self._attention: list[Tensor] = []
        self._leaves: list[list[Leaf]] = [[] if limit else [Leaf(0.0, 0, 0, row, 0, 0.0)] for row, limit in enumerate(limits)]

    def attend(self, attention: Tensor | None) -> None:
        """Keep the attention (B, K, S) of a step, as given; None keeps nothing."""
        if attention is not None:
            self._attention.append(attention.flatten(0, 1))

    def extend(self, tokens: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """Keep what goes on, all (B, K); `parents` are flat places among the hypotheses given to this step."""
        self._layers.append(Layer(tokens.flatten(), log_probs.flatten(), parents.flatten()))

    def finish(self, ends: Ends, length: int) -> None:
        """Keep the hypotheses that end with `length` tokens."""
        if len(ends.rows):
            for row, place, score, node, token, log_prob in zip(*(column.tolist() for column in ends), strict=True):
                self._leaves[row].append(Leaf(score, length, place, node, token, log_prob))

    def best(self, count: int) -> list[list[Hypothesis]]:
        """Return the `count` best of each sentence by score; a tie goes to the one that ended first, then to the better place."""
        return self._follow([sorted(leaves, key=lambda leaf: -leaf.score)[:count] for leaves in self._leaves])

    def by_place(self) -> list[list[Hypothesis]]:
        """Return all hypotheses of each sentence in the order of their places."""
        return self._follow([sorted(leaves, key=lambda leaf: leaf.place) for leaves in self._leaves])

    def _follow(self, chosen: list[list[Leaf]]) -> list[list[Hypothesis]]:
        # Longest first: the hypotheses that are under way at a time are then always the first so many.
        leaves = sorted({leaf for own in chosen for leaf in own}, key=lambda leaf: -leaf.length)
        longest = leaves[0].length if leaves else 0
        node = torch.tensor([leaf.node for leaf in leaves], dtype=torch.long, device=self._device)
        tokens = torch.zeros(len(leaves), longest, dtype=torch.long, device=self._device)
        log_probs = torch.zeros(len(leaves), longest, device=self._device)
        width = max((weights.size(-1) for weights in self._attention), default=0)
        attention = torch.zeros(len(leaves), longest, width, device=self._device)
        going = 0
        for time in reversed(range(longest)):
            while going < len(leaves) and leaves[going].length > time:
                going += 1
            nodes = node[:going]
            if self._attention:
                weights = self._attention[time]
                attention[:going, time, : weights.size(-1)] = weights[nodes]
            if time:
                layer = self._layers[time - 1]
                tokens[:going, time - 1], log_probs[:going, time - 1] = layer.tokens[nodes], layer.log_probs[nodes]
                node[:going] = layer.parents[nodes]
        rows = zip(leaves, tokens.tolist(), log_probs.tolist(), attention.cpu(), strict=True)
        found = {leaf: self._hypothesis(leaf, spoken, chances, weights) for leaf, spoken, chances, weights in rows}
        return [[found[leaf] for leaf in own] for own in chosen]

    def _hypothesis(self, leaf: Leaf, tokens: list[int], log_probs: list[float], attention: Tensor) -> Hypothesis:
        inner = max(leaf.length - 1, 0)
        return Hypothesis(
            tokens=[*tokens[:inner], leaf.token][: leaf.length],
            score=leaf.score,
            log_probs=[*log_probs[:inner], leaf.log_prob][: leaf.length],
            # Cloned, so that one kept hypothesis does not hold the attention of all.
            attention=attention[: leaf.length].clone() if self._attention else None,
        )
