"""Greedy decoding and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import ops
from regard.decoding.beam_search import beam_search
from regard.decoding.constraints import IMPOSSIBLE, Candidates, Pick, check_step, next_candidates
from regard.decoding.hypotheses import (
    ActiveHypotheses,
    BackPointers,
    ExtendedHypotheses,
    add_coverage,
    advance_hypotheses,
    check_finite,
    finished_hypotheses,
    flat_indices,
    initial_hypotheses,
    not_finite,
    ranking_score,
    reorder_state,
)
from regard.decoding.options import BatchedOptions, DecodingOptions, check_number, whole_number
from regard.decoding.penalties import length_penalty
from regard.decoding.protocol import AnyState, GreedySearch, Hypothesis, Step
from regard.errors import ConfigError, ShapeError
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens

COLDEST = 1e-30
"""Lower temperatures are counted as this one: the most probable token."""


@torch.inference_mode()
def greedy_search(
    step: Step[AnyState],
    state: AnyState,
    *,
    batch_size: int,
    options: DecodingOptions,
    device: torch.device | str = "cpu",
    at_once: GreedySearch[AnyState] | None = None,
) -> list[list[Hypothesis]]:
    """Decode greedily: take the most probable token at every step; ties go to the lower token.

    Equal to `beam_search` with a beam of 1. Ignores `beam_size`, `n_best` and `patience`.

    Args:
        step: the model's step.
        state: initial state, one hypothesis per sentence.
        batch_size: B; 0 returns an empty list.
        options: decoding options.
        device: device of the model.
        at_once: the model's own search, which is asked first where nothing but lengths, penalty and banned tokens is given.

    Returns:
        A list of one hypothesis per sentence.

    Raises:
        RegardError: logits hold NaN or infinity; the message names the step and the sentence.
        ShapeError: the step's results or the options do not fit the batch.
        ConfigError: a prefix does not fit, or a token id is outside the vocabulary.

    Example:
        >>> class Nothing:
        ...     def select(self, rows, beams):
        ...         return self
        >>> table = torch.tensor([[0.0, 0.3, 0.7], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]]).log()
        >>> def step(tokens, state):
        ...     return table[tokens], None, state
        >>> options = DecodingOptions(bos=0, eos=2, min_length=1)
        >>> greedy_search(step, Nothing(), batch_size=1, options=options)[0][0].tokens
        [1, 2]
    """
    if options.phrases is not None:
        options = replace(options, beam_size=1, n_best=1, patience=1.0)
        return beam_search(step, state, batch_size=batch_size, options=options, device=device)
    rules = BatchedOptions.build(options, batch_size, device)
    found = None if at_once is None or not _is_plain(rules) else at_once(state, _greedy_rules(rules))
    return decode_stepwise(step, state, 1, rules=rules) if found is None else _greedy_hypotheses(found, options)


def _is_plain(rules: BatchedOptions) -> bool:
    # What a search at once does; all else goes step by step.
    options = rules.options
    others = options.coverage_penalty or options.no_repeat_ngram_size or options.need_attention or rules.prefix.size(1)
    return not others and all(rules.limits) and bool(rules.limits)


def _greedy_rules(rules: BatchedOptions) -> GreedyRules:
    options = rules.options
    return GreedyRules(rules.max_length, options.bos, rules.early, options.min_length, IMPOSSIBLE, rules.highest)


def _greedy_hypotheses(found: GreedyTokens, options: DecodingOptions) -> list[list[Hypothesis]]:
    if found.bad >= 0:
        raise not_finite(found.steps, found.bad)
    lengths = found.lengths.tolist()
    scores = found.totals / torch.tensor([length_penalty(length, options.length_penalty) for length in lengths])
    rows = zip(lengths, found.tokens.tolist(), scores.tolist(), found.log_probs.tolist(), strict=True)
    return [[Hypothesis(tokens[:length], score, log_probs[:length], None)] for length, tokens, score, log_probs in rows]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Sampling options.

    Attributes:
        temperature: > 0, divides log-probabilities; 1 leaves the distribution unchanged.
        top_k: sample from the k most probable tokens; 0: from all.
        top_p: > 0, sample from the smallest set of tokens with this total probability (Holtzman et al., 2020), after `top_k` and
            temperature; 1 keeps all.
        num_samples: hypotheses per sentence.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> SamplingOptions(temperature=0.7, top_p=0.9).top_k
        0
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1

    def __post_init__(self) -> None:
        for name in ("top_k", "num_samples"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("temperature", "top_p"):
            check_number(name, getattr(self, name))
        if not 0 < self.temperature < math.inf:
            raise ConfigError(f"temperature must be greater than 0, found {self.temperature} (greedy search is the limit at 0)")
        if self.top_k < 0:
            raise ConfigError(f"top_k must be at least 0, found {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p must be greater than 0 and at most 1, found {self.top_p}")
        if self.num_samples < 1:
            raise ConfigError(f"num_samples must be at least 1, found {self.num_samples}")


@torch.inference_mode()
def sample(
    step: Step[AnyState],
    state: AnyState,
    *,
    batch_size: int,
    options: DecodingOptions,
    sampling: SamplingOptions,
    generator: torch.Generator | Sequence[torch.Generator] | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Sample hypotheses token by token from the model's distribution.

    Each token uses one uniform number. All are drawn before the first step, sentence by sentence, so that with one generator per sentence
    its samples do not depend on the others.

    Args:
        step: the model's step.
        state: initial state, one hypothesis per sentence.
        batch_size: B; 0 returns an empty list.
        options: decoding options; ignores `beam_size`, `n_best` and `patience`.
        sampling: sampling options.
        generator: one for all, one per sentence, or None for torch's global one.
        device: device of the model.

    Returns:
        `num_samples` hypotheses per sentence, in order of sampling, possibly equal; one if `max_length` is 0. Log-probabilities and scores
        are the model's, without temperature, `top_k` and `top_p`.

    Raises:
        RegardError: logits hold NaN or infinity; the message names the step and the sentence.
        ShapeError: the step's results, the options or the generators do not fit the batch.
        ConfigError: phrases are given, a prefix does not fit, or a token id is outside the vocabulary.

    Example:
        >>> class Nothing:
        ...     def select(self, rows, beams):
        ...         return self
        >>> table = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]).log()
        >>> def step(tokens, state):
        ...     return table[tokens], None, state
        >>> options, sampling = DecodingOptions(bos=0, eos=2, max_length=7), SamplingOptions(num_samples=3)
        >>> drawn = sample(step, Nothing(), batch_size=1, options=options, sampling=sampling)[0]
        >>> len(drawn), {hypothesis.tokens[-1] for hypothesis in drawn} <= {1, 2}
        (3, True)
    """
    if options.phrases is not None:
        raise ConfigError("phrases: need beam search; samples may not contain them")
    rules = BatchedOptions.build(options, batch_size, device, reads_all=True)
    generators = list(generator) if isinstance(generator, Sequence) else [generator] * batch_size
    if len(generators) != batch_size:
        raise ShapeError(f"generator has {len(generators)} entries, but the batch has {batch_size} sentences")
    uniform = torch.zeros(batch_size, max(rules.limits, default=0), sampling.num_samples)
    for row, (limit, source) in enumerate(zip(rules.limits, generators, strict=True)):
        where = "cpu" if source is None else source.device
        uniform[row, :limit] = torch.rand(limit, sampling.num_samples, generator=source, device=where)
    uniform = uniform.to(device)

    def pick(log_probs: Tensor, live: ActiveHypotheses) -> Tensor:
        return draw_token(log_probs, uniform[live.rows, live.length], sampling)

    return decode_stepwise(step, state, pick, rules=rules, width=sampling.num_samples)


def draw_token(log_probs: Tensor, uniform: Tensor, sampling: SamplingOptions) -> Tensor:
    """Return the token (B, K, 1) at which the distribution of log_probs (B, K, V) passes `uniform` (B, K) in [0, 1).

    Example:
        >>> draw_token(torch.tensor([[[0.2, 0.5, 0.3]]]).log(), torch.tensor([[0.6]]), SamplingOptions()).item()
        1
    """
    tokens = None
    if sampling.top_k:
        tokens = ops.top_tokens(log_probs, sampling.top_k)
        log_probs = log_probs.gather(-1, tokens)
    elif sampling.top_p < 1:
        log_probs, tokens = log_probs.sort(dim=-1, descending=True, stable=True)
    # Subtract the maximum before the division, so that a low temperature cannot push all of them to -inf, nor be 0 in single precision.
    probs = ((log_probs - log_probs.amax(-1, keepdim=True)) / max(sampling.temperature, COLDEST)).softmax(-1)
    if sampling.top_p < 1:
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= sampling.top_p, 0.0)
    passed = probs.cumsum(-1)
    # right=True finds the first index *beyond* the number, never a token of probability 0. NaN (a row without allowed tokens) may exceed
    # the range and is replaced later.
    place = torch.searchsorted(passed, uniform[..., None] * passed[..., -1:], right=True).clamp(max=probs.size(-1) - 1)
    return place if tokens is None else tokens.gather(-1, place)


def decode_stepwise(
    step: Step[AnyState], state: AnyState, pick: int | Pick, *, rules: BatchedOptions, width: int = 1
) -> list[list[Hypothesis]]:
    """Return `width` hypotheses per sentence; `pick` selects each token (B, K, 1), 1 for the best.

    A sentence leaves the batch when all its hypotheses have ended; until then finished ones are fed padding.
    """
    options = rules.options
    live, state = initial_hypotheses(state, rules, width)
    back_pointers = BackPointers(rules.limits, rules.max_length.device)
    done = torch.zeros_like(live.tokens, dtype=torch.bool)
    while len(live.rows):
        logits, attention, state = step(live.tokens.to(rules.device), state)
        check_step(logits, attention, live, rules)
        coverage = add_coverage(live, attention, rules)
        longer = append_candidate(next_candidates(logits, live, rules, pick), live)
        check_finite(longer.totals.masked_fill(done, 0.0), live)
        at_limit = rules.max_length[live.rows] == live.length + 1
        ended = ((longer.tokens == options.eos) | at_limit[:, None]) & ~done
        parents = flat_indices(longer.beams, live)
        ends = finished_hypotheses(ended, live.rows, ranking_score(longer, live, coverage, rules), parents, longer.tokens, longer.log_probs)
        back_pointers.attend(attention if options.need_attention else None)
        back_pointers.finish(ends, live.length + 1)
        done = done | ended
        rows = (~done.all(1)).nonzero().squeeze(1)
        back_pointers.extend(longer.tokens[rows], longer.log_probs[rows], parents[rows])
        going = longer._replace(tokens=longer.tokens.masked_fill(done, options.pad)).take(rows)
        done = done[rows]
        state = reorder_state(state, rows, going.beams, live, rules.device)
        live = advance_hypotheses(live, rows, going, coverage)
    return back_pointers.by_place()


def append_candidate(candidates: Candidates, live: ActiveHypotheses) -> ExtendedHypotheses:
    """Return each live hypothesis with its one candidate (B, K, 1)."""
    tokens, log_probs = candidates.tokens.squeeze(-1), candidates.log_probs.squeeze(-1)
    beams = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    return ExtendedHypotheses(live.totals + log_probs, tokens, log_probs, beams)
