"""Active hypotheses of a step, and back-pointers to finished ones."""

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
    """The hypotheses being extended, of active sentences."""

    rows: Tensor  # (B,) which sentence of the whole batch
    tokens: Tensor  # (B, K) the last token of each
    totals: Tensor  # (B, K) sum of log-probabilities; -inf: empty slot
    length: int  # tokens so far
    history: Tensor | None  # (B, K, length) all tokens so far, kept for n-gram blocking only
    coverage: Tensor | None  # (B, K, S) attention so far, kept for the coverage penalty only
    progress: PhraseProgress | None = None  # progress with forced phrases


class ExtendedHypotheses(NamedTuple):
    """Hypotheses one token longer than the active ones, all (B, C)."""

    totals: Tensor
    tokens: Tensor
    log_probs: Tensor  # of the last token
    beams: Tensor  # the active hypothesis each extends

    def take(self, rows: Tensor) -> ExtendedHypotheses:
        """Select the sentences at `rows` (B',)."""
        return ExtendedHypotheses(*(column[rows] for column in self))


def initial_hypotheses(state: AnyState, rules: BatchedOptions, width: int = 1) -> tuple[ActiveHypotheses, AnyState]:
    """Return `width` empty hypotheses for each sentence with max_length > 0, and their state."""
    device = rules.max_length.device
    rows = torch.tensor([row for row, limit in enumerate(rules.limits) if limit], dtype=torch.long, device=device)
    tokens = torch.full((len(rows), width), rules.options.bos, dtype=torch.long, device=device)
    if len(rows) and (len(rows) < len(rules.limits) or width > 1):
        state = state.select(rows.to(rules.device), torch.zeros_like(tokens, device=rules.device))
    history = tokens.new_zeros(len(rows), width, 0) if rules.options.no_repeat_ngram_size else None
    progress = None if rules.progress is None else rules.progress.select(rows, torch.zeros_like(tokens))
    return ActiveHypotheses(rows, tokens, torch.zeros(tokens.shape, device=device), 0, history, None, progress), state


def add_coverage(live: ActiveHypotheses, attention: Tensor | None, rules: BatchedOptions) -> Tensor | None:
    """Add this step's attention to the coverage (B, K, S); None without a penalty.

    Raises:
        ConfigError: a coverage penalty for a model without attention.
    """
    if not rules.options.coverage_penalty:
        return None
    if attention is None:
        raise ConfigError("coverage_penalty needs a model with attention, but the step returns none")
    return attention.float() if live.coverage is None else live.coverage[..., : attention.size(-1)] + attention


def ranking_score(extended: ExtendedHypotheses, live: ActiveHypotheses, coverage: Tensor | None, rules: BatchedOptions) -> Tensor:
    """Return the ranking score (B, C) of extended hypotheses; `coverage` (B, K, S) is that of the active ones."""
    scores = extended.totals / length_penalty(live.length + 1, rules.options.length_penalty)
    if coverage is None or rules.source_lengths is None:
        return scores
    penalty = coverage_penalty(coverage, rules.source_lengths[live.rows], beta=rules.options.coverage_penalty)
    return scores + penalty.gather(1, extended.beams)


def advance_hypotheses(
    live: ActiveHypotheses, rows: Tensor, going: ExtendedHypotheses, coverage: Tensor | None, progress: PhraseProgress | None = None
) -> ActiveHypotheses:
    """Return the active hypotheses after a step: `going` (B', K') of the kept sentences `rows` (B',), with their progress."""
    beams = going.beams[..., None]
    history = None
    if live.history is not None:
        history = torch.cat([torch.take_along_dim(live.history[rows], beams, 1), going.tokens[..., None]], -1)
    coverage = None if coverage is None else torch.take_along_dim(coverage[rows], beams, 1)
    return ActiveHypotheses(live.rows[rows], going.tokens, going.totals, live.length + 1, history, coverage, progress)


def reorder_state(state: AnyState, rows: Tensor, beams: Tensor, live: ActiveHypotheses, device: torch.device) -> AnyState:
    """Return the state, on `device`, of `rows` (B',) and `beams` (B', K'), unchanged if nothing moved or continues."""
    same = len(rows) == len(live.rows) and beams.shape == live.tokens.shape
    if not len(rows) or (same and (beams.size(1) == 1 or beams.equal(torch.arange(beams.size(1), device=beams.device).expand_as(beams)))):
        return state
    return state.select(rows.to(device), beams.to(device))


def flat_indices(beams: Tensor, live: ActiveHypotheses) -> Tensor:
    """Return flat indices into the active hypotheses (B, K) for per-sentence `beams` (B, C)."""
    return torch.arange(len(live.rows), device=beams.device)[:, None] * live.tokens.size(1) + beams


def check_finite(totals: Tensor, live: ActiveHypotheses) -> None:
    """Raise an error if any of the totals (B, C) of a step is NaN.

    Raises:
        RegardError: invalid logits; names the step, from 1, and the first such sentence, from 0.
    """
    bad = totals.isnan().any(1)
    if bad.any():
        raise not_finite(live.length + 1, int(live.rows[bad][0]))


def not_finite(step: int, sentence: int) -> RegardError:
    """Return the error of logits that were no distribution: at a step, counted from 1, of a sentence, from 0."""
    return RegardError(f"step {step}: the logits of sentence {sentence} hold NaN or +inf, or are all -inf")


class HypothesisNode(NamedTuple):
    """The last token of a hypothesis, and a pointer to its parent."""

    score: float
    length: int
    place: int  # its index among its sentence's candidates
    node: int  # flat index among the hypotheses of the step that generated the last token
    token: int
    log_prob: float


class StepNodes(NamedTuple):
    """The hypotheses of a step, flattened (B * K,): last token, its log-probability, flat index of the parent."""

    tokens: Tensor
    log_probs: Tensor
    parents: Tensor


class FinishedHypotheses(NamedTuple):
    """Hypotheses that end in a step, all (E,), in order of sentence and rank."""

    rows: Tensor  # which sentence of the whole batch
    places: Tensor  # index of each among its sentence's candidates
    scores: Tensor
    nodes: Tensor  # flat indices of their parents
    tokens: Tensor
    log_probs: Tensor


def finished_hypotheses(ended: Tensor, rows: Tensor, *columns: Tensor) -> FinishedHypotheses:
    """Return the `ended` (B, C) hypotheses of sentences `rows` (B,); `columns` (B, C) are the other fields of `FinishedHypotheses`."""
    row, place = ended.nonzero(as_tuple=True)
    return FinishedHypotheses(rows[row], place, *(column[row, place] for column in columns))


class BackPointers:
    """Back-pointers of one decoding. A sentence with max_length 0 has ended before the first step.

    Each step appends its arrays without reordering; `best` follows the pointers from the last token to the first, for all hypotheses at
    once.
    """

    def __init__(self, limits: list[int], device: torch.device | str) -> None:
        self._device = device
        self._layers: list[StepNodes] = []
        self._attention: list[Tensor] = []
        self._leaves: list[list[HypothesisNode]] = [
            [] if limit else [HypothesisNode(0.0, 0, 0, row, 0, 0.0)] for row, limit in enumerate(limits)
        ]

    def attend(self, attention: Tensor | None) -> None:
        """Store the attention (B, K, S) of a step; None stores nothing."""
        if attention is not None:
            self._attention.append(attention.flatten(0, 1))

    def extend(self, tokens: Tensor, log_probs: Tensor, parents: Tensor) -> None:
        """Store the continuing hypotheses, all (B, K); `parents` are flat indices into this step's hypotheses."""
        self._layers.append(StepNodes(tokens.flatten(), log_probs.flatten(), parents.flatten()))

    def finish(self, ends: FinishedHypotheses, length: int) -> None:
        """Store the hypotheses that end with `length` tokens."""
        if len(ends.rows):
            for row, place, score, node, token, log_prob in zip(*(column.tolist() for column in ends), strict=True):
                self._leaves[row].append(HypothesisNode(score, length, place, node, token, log_prob))

    def best(self, count: int) -> list[list[Hypothesis]]:
        """Return the `count` best of each sentence by score; ties go to the one that ended first, then to the better rank."""
        return self._follow([sorted(leaves, key=lambda leaf: -leaf.score)[:count] for leaves in self._leaves])

    def by_place(self) -> list[list[Hypothesis]]:
        """Return all hypotheses of each sentence in the order of their slots."""
        return self._follow([sorted(leaves, key=lambda leaf: leaf.place) for leaves in self._leaves])

    def _follow(self, chosen: list[list[HypothesisNode]]) -> list[list[Hypothesis]]:
        # Longest first, so that the hypotheses active at a step are always a prefix.
        leaves = sorted({leaf for own in chosen for leaf in own}, key=lambda leaf: -leaf.length)
        longest = leaves[0].length if leaves else 0
        node = torch.tensor([leaf.node for leaf in leaves], dtype=torch.long, device=self._device)
        tokens = torch.zeros(len(leaves), longest, dtype=torch.long, device=self._device)
        log_probs = torch.zeros(len(leaves), longest, device=self._device)
        width = max((weights.size(-1) for weights in self._attention), default=0)
        # Attention is on the model's device, until all of a hypothesis is together.
        attention = torch.zeros(len(leaves), longest, width, device=self._attention[0].device if self._attention else self._device)
        going = 0
        for time in reversed(range(longest)):
            while going < len(leaves) and leaves[going].length > time:
                going += 1
            nodes = node[:going]
            if self._attention:
                weights = self._attention[time]
                attention[:going, time, : weights.size(-1)] = weights[nodes.to(weights.device)]
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
            # Cloned, so that one hypothesis does not keep the attention of all in memory.
            attention=attention[: leaf.length].clone() if self._attention else None,
        )
