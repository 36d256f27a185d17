"""Hypotheses: the active ones of a step, and the back-pointers from which finished ones are read."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from regard.decoding.options import BatchedOptions
from regard.decoding.penalties import coverage_penalty, length_penalty
from regard.decoding.phrases import PhraseProgress
from regard.decoding.protocol import AnyState, Hypothesis
from regard.errors import ConfigError, RegardError


class ActiveHypotheses(NamedTuple):
    """The hypotheses being extended, of the sentences still searched."""

    rows: Tensor  # (B,) which sentence of the whole batch
    tokens: Tensor  # (B, K) the last token of each
    totals: Tensor  # (B, K) sum of log-probabilities; -inf: no hypothesis in this place
    length: int  # tokens so far
    history: Tensor | None  # (B, K, length) all tokens so far, kept for n-gram blocking only
    coverage: Tensor | None  # (B, K, S) attention so far, kept for the coverage penalty only
    progress: PhraseProgress | None = None  # with the phrases that they must hold


class ExtendedHypotheses(NamedTuple):
    """Hypotheses one token longer than the live ones, all (B, C)."""

    totals: Tensor
    tokens: Tensor
    log_probs: Tensor  # of the last token
    beams: Tensor  # which live hypothesis each extends

    def take(self, rows: Tensor) -> ExtendedHypotheses:
        """Return those of the sentences at `rows` (B',)."""
        return ExtendedHypotheses(*(column[rows] for column in self))


def initial_hypotheses(state: AnyState, rules: BatchedOptions, width: int = 1) -> tuple[ActiveHypotheses, AnyState]:
    """Return `width` empty hypotheses for each sentence that may have a token at all, and the state that goes with them."""
    device = rules.max_length.device
    rows = torch.tensor([row for row, limit in enumerate(rules.limits) if limit], dtype=torch.long, device=device)
    tokens = torch.full((len(rows), width), rules.options.bos, dtype=torch.long, device=device)
    if len(rows) and (len(rows) < len(rules.limits) or width > 1):
        state = state.select(rows, torch.zeros_like(tokens))
    history = tokens.new_zeros(len(rows), width, 0) if rules.options.no_repeat_ngram_size else None
    progress = None if rules.progress is None else rules.progress.select(rows, torch.zeros_like(tokens))
    return ActiveHypotheses(rows, tokens, torch.zeros(tokens.shape, device=device), 0, history, None, progress), state


def add_coverage(live: ActiveHypotheses, attention: Tensor | None, rules: BatchedOptions) -> Tensor | None:
    """Return coverage (B, K, S) with this step's attention, or None where no penalty asks for it.

    Raises:
        ConfigError: a coverage penalty is asked of a model without attention.
    """
    if not rules.options.coverage_penalty:
        return None
    if attention is None:
        raise ConfigError("coverage_penalty needs a model with attention, but the step returns none")
    return attention.float() if live.coverage is None else live.coverage[..., : attention.size(-1)] + attention


def ranking_score(extended: ExtendedHypotheses, live: ActiveHypotheses, coverage: Tensor | None, rules: BatchedOptions) -> Tensor:
    """Return the ranking score (B, C) of extended hypotheses; `coverage` (B, K, S) is that of the live ones."""
    scores = extended.totals / length_penalty(live.length + 1, rules.options.length_penalty)
    if coverage is None or rules.source_lengths is None:
        return scores
    penalty = coverage_penalty(coverage, rules.source_lengths[live.rows], beta=rules.options.coverage_penalty)
    return scores + penalty.gather(1, extended.beams)


def advance_hypotheses(live: ActiveHypotheses, rows: Tensor, going: ExtendedHypotheses, coverage: Tensor | None) -> ActiveHypotheses:
    """Return the live hypotheses after a step: `going` (B', K') already are those of the kept sentences, `rows` (B',)."""
    beams = going.beams[..., None]
    history = None
    if live.history is not None:
        history = torch.cat([torch.take_along_dim(live.history[rows], beams, 1), going.tokens[..., None]], -1)
    coverage = None if coverage is None else torch.take_along_dim(coverage[rows], beams, 1)
    progress = None if live.progress is None else live.progress.select(rows, going.beams).after(going.tokens[..., None])
    return ActiveHypotheses(live.rows[rows], going.tokens, going.totals, live.length + 1, history, coverage, progress)


def reorder_state(state: AnyState, rows: Tensor, beams: Tensor, live: ActiveHypotheses) -> AnyState:
    """Return the state that goes with `rows` (B',) and `beams` (B', K'): as it is if nothing moved, or nothing goes on."""
    same = len(rows) == len(live.rows) and beams.shape == live.tokens.shape
    if not len(rows) or (same and (beams.size(1) == 1 or beams.equal(torch.arange(beams.size(1), device=beams.device).expand_as(beams)))):
        return state
    return state.select(rows, beams)


def flat_indices(beams: Tensor, live: ActiveHypotheses) -> Tensor:
    """Return the flat places among all live hypotheses (B, K) of those that `beams` (B, C) names sentence by sentence."""
    return torch.arange(len(live.rows), device=beams.device)[:, None] * live.tokens.size(1) + beams


def check_finite(totals: Tensor, live: ActiveHypotheses) -> None:
    """Raise an error if any of the totals (B, C) of a step is NaN.

    Raises:
        RegardError: logits were no distribution; names the step, counted from 1, and the first bad sentence, from 0.
    """
    bad = totals.isnan().any(1)
    if bad.any():
        raise RegardError(f"step {live.length + 1}: the logits of sentence {live.rows[bad][0].item()} hold NaN or +inf, or are all -inf")


class HypothesisNode(NamedTuple):
    """The end of a hypothesis: its last token, and which hypothesis of the step before it extends."""

    score: float
    length: int
    place: int  # which of its sentence's candidates it was
    node: int  # flat place among the hypotheses given to the step that generated the last token
    token: int
    log_prob: float


class StepNodes(NamedTuple):
    """The hypotheses that go into a step, flattened (B * K,): last token, its log-probability, flat place of the parent."""

    tokens: Tensor
    log_probs: Tensor
    parents: Tensor


class FinishedHypotheses(NamedTuple):
    """Hypotheses that end in a step, all (E,), in order of sentence and place."""

    rows: Tensor  # which sentence of the whole batch
    places: Tensor  # which of its sentence's candidates each is
    scores: Tensor
    nodes: Tensor  # flat places of their parents
    tokens: Tensor
    log_probs: Tensor


def finished_hypotheses(ended: Tensor, rows: Tensor, *columns: Tensor) -> FinishedHypotheses:
    """Return those that `ended` (B, C) says of sentences `rows` (B,); `columns` (B, C) are the other fields of `FinishedHypotheses`."""
    row, place = ended.nonzero(as_tuple=True)
    return FinishedHypotheses(rows[row], place, *(column[row, place] for column in columns))


class BackPointers:
    """Remembers the steps of one search. A sentence that may have no token at all has ended before the first.

    Nothing is reordered while the search runs: a step appends its arrays, and `best` follows the pointers from the last
    token to the first, all returned hypotheses at once.
    """

    def __init__(self, limits: list[int], device: torch.device | str) -> None:
        self._device = device
        self._layers: list[StepNodes] = []
        self._attention: list[Tensor] = []
        self._leaves: list[list[HypothesisNode]] = [
            [] if limit else [HypothesisNode(0.0, 0, 0, row, 0, 0.0)] for row, limit in enumerate(limits)
        ]

    def attend(self, attention: Tensor | None) -> None:
        """Keep the attention (B, K, S) of a step, as given; None keeps nothing."""
        if attention is not None:
            self._attention.append(attention.flatten(0, 1))

    def extend(self, tokens: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """Keep what goes on, all (B, K); `parents` are flat places among the hypotheses given to this step."""
        self._layers.append(StepNodes(tokens.flatten(), log_probs.flatten(), parents.flatten()))

    def finish(self, ends: FinishedHypotheses, length: int) -> None:
        """Keep the hypotheses that end with `length` tokens."""
        if len(ends.rows):
            for row, place, score, node, token, log_prob in zip(*(column.tolist() for column in ends), strict=True):
                self._leaves[row].append(HypothesisNode(score, length, place, node, token, log_prob))

    def best(self, count: int) -> list[list[Hypothesis]]:
        """Return the `count` best of each sentence by score; a tie goes to the one that ended first, then to the better place."""
        return self._follow([sorted(leaves, key=lambda leaf: -leaf.score)[:count] for leaves in self._leaves])

    def by_place(self) -> list[list[Hypothesis]]:
        """Return all hypotheses of each sentence in the order of their places."""
        return self._follow([sorted(leaves, key=lambda leaf: leaf.place) for leaves in self._leaves])

    def _follow(self, chosen: list[list[HypothesisNode]]) -> list[list[Hypothesis]]:
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

    def _hypothesis(self, leaf: HypothesisNode, tokens: list[int], log_probs: list[float], attention: Tensor) -> Hypothesis:
        inner = max(leaf.length - 1, 0)
        return Hypothesis(
            tokens=[*tokens[:inner], leaf.token][: leaf.length],
            score=leaf.score,
            log_probs=[*log_probs[:inner], leaf.log_prob][: leaf.length],
            # Cloned, so that one kept hypothesis does not hold the attention of all.
            attention=attention[: leaf.length].clone() if self._attention else None,
        )
