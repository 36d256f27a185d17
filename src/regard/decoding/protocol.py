"""The interface between decoding and models.

Decoding needs a `Step`, which maps the last tokens to logits, and a `State`, which can be reordered. Axis letters: B active sentences, K
hypotheses of each, V vocabulary, S source positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

from regard import ops
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens


class State(Protocol):
    """A model's state between steps, for B sentences with K hypotheses each; K is 1 initially."""

    def select(self, rows: Tensor, beams: Tensor) -> Self:
        """Return the state of the kept sentences with reordered hypotheses; the old state is not used again.

        Args:
            rows: (B',) long, ascending: the sentences to keep.
            beams: (B', K') long: per kept sentence, the old hypothesis each new one continues. K' may differ from K.
        """
        ...


AnyState = TypeVar("AnyState", bound=State)


class Step(Protocol[AnyState]):
    """One decoding step of a model: last tokens in, next-token logits out."""

    def __call__(self, tokens: Tensor, state: AnyState, /) -> tuple[Tensor | ops.LazyLogits, Tensor | None, AnyState]:
        """Return logits (B, K, V), possibly lazy, attention (B, K, S) or None, and the new state, for tokens (B, K) long.

        S may shrink after the longest sentences have left, by padding only. Decoding does not write to the results.
        """
        ...


GreedySearch = Callable[[AnyState, GreedyRules], GreedyTokens | None]
"""A model's own greedy search, from a state before the first token: what step by step would find, sooner. None where it cannot."""


class Hypothesis(NamedTuple):
    """One finished output.

    `tokens` has no BOS, but EOS if reached. `score` ranks hypotheses (higher is better): sum(log_probs) / length_penalty +
    coverage_penalty. `log_probs` are the model's log-probabilities of all tokens, forced ones included. `attention` is (len(tokens), S)
    float32 on the CPU, S as wide as the batch's padded sources, or None.
    """

    tokens: list[int]
    score: float
    log_probs: list[float]
    attention: Tensor | None
