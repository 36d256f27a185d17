"""Greedy decoding and sampling: one token after another, never revised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard import ops
from regard.decoding.beam_search import beam_search
from regard.decoding.constraints import Candidates, Pick, check_step, next_candidates
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
    ranking_score,
    reorder_state,
)
from regard.decoding.options import BatchedOptions, DecodingOptions
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.errors import ConfigError, ShapeError


@torch.inference_mode()
def greedy_search(
    step: Step[AnyState], state: AnyState, *, batch_size: int, options: DecodingOptions, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Return for each sentence the hypothesis that takes the most probable token at every step, the lower one in a tie.

    The result is that of `beam_search` with a beam of 1. `beam_size`, `n_best` and `patience` are not used.

    Args:
        step: the model's step.
        state: its state before the first token, one hypothesis a sentence.
        batch_size: B; 0 returns an empty list.
        options: how to search.
        device: where the model is.

    Returns:
        One hypothesis a sentence, each in a list of its own.

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
    return decode_stepwise(step, state, 1, rules=BatchedOptions.build(options, batch_size, device))


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How to draw a token.

    Attributes:
        temperature: log-probabilities are divided by it; greater than 0, 1 leaves the distribution as it is.
        top_k: draw from so many of the most probable tokens; 0: from all.
        top_p: draw from the fewest tokens that hold this part of the probability (Holtzman et al., 2020), after `top_k` and
            temperature; greater than 0, 1 keeps all.
        num_samples: hypotheses drawn for each sentence.

    Raises:
        ConfigError: a value is out of range; the message holds its name and its range.

    Example:
        >>> SamplingOptions(temperature=0.7, top_p=0.9).top_k
        0
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    num_samples: int = 1

    def __post_init__(self) -> None:
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
    """Return hypotheses drawn token by token from the model's distribution.

    One uniform number a token decides. All are drawn before the first step, sentence by sentence, so that with one generator
    for each sentence its samples do not depend on the others.

    Args:
        step: the model's step.
        state: its state before the first token, one hypothesis a sentence.
        batch_size: B; 0 returns an empty list.
        options: what may be generated; `beam_size`, `n_best` and `patience` are not used.
        sampling: how to draw.
        generator: one for all, one for each sentence, or None for torch's own.
        device: where the model is.

    Returns:
        `num_samples` hypotheses a sentence, in the order drawn; the same one may come twice. Their log-probabilities and
        scores are the model's own: temperature, `top_k` and `top_p` do not enter. One where `max_length` is 0.

    Raises:
        RegardError: logits hold NaN or infinity; the message names the step and the sentence.
        ShapeError: the step's results, the options or the generators do not fit the batch.
        ConfigError: phrases are asked for, a prefix does not fit, or a token id is outside the vocabulary.

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
        raise ConfigError("phrases: need a search; what is drawn may not come to hold them")
    rules = BatchedOptions.build(options, batch_size, device)
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
    # The greatest taken off before the division: a low temperature then cannot push all of them to -inf.
    probs = ((log_probs - log_probs.amax(-1, keepdim=True)) / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        probs = probs.masked_fill(probs.cumsum(-1) - probs >= sampling.top_p, 0.0)
    passed = probs.cumsum(-1)
    # right=True finds the first place *beyond* the number: a token of probability 0 is never that. NaN (a row without any
    # allowed token) may run over the end; what is drawn there is replaced.
    place = torch.searchsorted(passed, uniform[..., None] * passed[..., -1:], right=True).clamp(max=probs.size(-1) - 1)
    return place if tokens is None else tokens.gather(-1, place)


def decode_stepwise(
    step: Step[AnyState], state: AnyState, pick: int | Pick, *, rules: BatchedOptions, width: int = 1
) -> list[list[Hypothesis]]:
    """Return `width` hypotheses for each sentence, in order, each token the one that `pick` chooses (B, K, 1), or the best for 1.

    A sentence leaves the batch when all its hypotheses have ended; until then those that have are fed padding.
    """
    options = rules.options
    live, state = initial_hypotheses(state, rules, width)
    trail = BackPointers(rules.limits, rules.max_length.device)
    done = torch.zeros_like(live.tokens, dtype=torch.bool)
    while len(live.rows):
        logits, attention, state = step(live.tokens, state)
        check_step(logits, attention, live, rules)
        coverage = add_coverage(live, attention, rules)
        longer = append_candidate(next_candidates(logits, live, rules, pick), live)
        check_finite(longer.totals.masked_fill(done, 0.0), live)
        at_limit = rules.max_length[live.rows] == live.length + 1
        ended = ((longer.tokens == options.eos) | at_limit[:, None]) & ~done
        parents = flat_indices(longer.beams, live)
        ends = finished_hypotheses(ended, live.rows, ranking_score(longer, live, coverage, rules), parents, longer.tokens, longer.log_probs)
        trail.attend(attention if options.need_attention else None)
        trail.finish(ends, live.length + 1)
        done = done | ended
        rows = (~done.all(1)).nonzero().squeeze(1)
        trail.extend(longer.tokens[rows], longer.log_probs[rows], parents[rows])
        going = longer._replace(tokens=longer.tokens.masked_fill(done, options.pad)).take(rows)
        done = done[rows]
        state = reorder_state(state, rows, going.beams, live)
        live = advance_hypotheses(live, rows, going, coverage)
    return trail.by_place()


def append_candidate(candidates: Candidates, live: ActiveHypotheses) -> ExtendedHypotheses:
    """Return each live hypothesis with its one candidate (B, K, 1)."""
    tokens, log_probs = candidates.tokens.squeeze(-1), candidates.log_probs.squeeze(-1)
    beams = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    return ExtendedHypotheses(live.totals + log_probs, tokens, log_probs, beams)
