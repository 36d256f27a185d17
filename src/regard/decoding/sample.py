"""Sampling from a step function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard import ops
from regard.decoding.live import Live
from regard.decoding.options import Rules, SearchOptions
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.decoding.walk import walk
from regard.errors import ConfigError, ShapeError


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
    options: SearchOptions,
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
        options: what may be generated; `beam`, `n_best` and `patience` are not used.
        sampling: how to draw.
        generator: one for all, one for each sentence, or None for torch's own.
        device: where the model is.

    Returns:
        `num_samples` hypotheses a sentence, in the order drawn; the same one may come twice. Their log-probabilities and
        scores are the model's own: temperature, `top_k` and `top_p` do not enter. One where `max_length` is 0.

    Raises:
        RegardError: logits hold NaN or infinity; the message names the step and the sentence.
        ShapeError: the step's results, the options or the generators do not fit the batch; the message holds both sizes.
        ConfigError: a prefix does not fit, or a token id is outside the vocabulary; the message names it.

    Example:
        >>> class Nothing:
        ...     def select(self, rows, beams):
        ...         return self
        >>> table = torch.tensor([[0.0, 0.5, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]).log()
        >>> def step(tokens, state):
        ...     return table[tokens], None, state
        >>> options, sampling = SearchOptions(bos=0, eos=2, max_length=7), SamplingOptions(num_samples=3)
        >>> drawn = sample(step, Nothing(), batch_size=1, options=options, sampling=sampling)[0]
        >>> len(drawn), {hypothesis.tokens[-1] for hypothesis in drawn} <= {1, 2}
        (3, True)
    """
    rules = Rules.build(options, batch_size, device)
    generators = list(generator) if isinstance(generator, Sequence) else [generator] * batch_size
    if len(generators) != batch_size:
        raise ShapeError(f"generator has {len(generators)} entries, but the batch has {batch_size} sentences")
    uniform = torch.zeros(batch_size, max(rules.limits, default=0), sampling.num_samples)
    for row, (limit, source) in enumerate(zip(rules.limits, generators, strict=True)):
        where = "cpu" if source is None else source.device
        uniform[row, :limit] = torch.rand(limit, sampling.num_samples, generator=source, device=where)
    uniform = uniform.to(device)

    def pick(log_probs: Tensor, live: Live) -> Tensor:
        return draw(log_probs, uniform[live.rows, live.length], sampling)

    return walk(step, state, pick, rules=rules, width=sampling.num_samples)


def draw(log_probs: Tensor, uniform: Tensor, sampling: SamplingOptions) -> Tensor:
    """Return the token (B, K, 1) at which the distribution of log_probs (B, K, V) passes `uniform` (B, K) in [0, 1).

    Example:
        >>> draw(torch.tensor([[[0.2, 0.5, 0.3]]]).log(), torch.tensor([[0.6]]), SamplingOptions()).item()
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
