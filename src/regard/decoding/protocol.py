"""What decoding asks of a model, and what it gives back.

A search knows two things: a `Step` that turns the last tokens into logits, and a `State` that can be reordered. Axis
letters: B sentences still searched, K hypotheses of each, V vocabulary, S source positions.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, Self, TypeVar

from torch import Tensor

from regard import ops


class State(Protocol):
    """What a model remembers between steps, for B sentences with K hypotheses each; K is 1 at the start of a search."""

    def select(self, rows: Tensor, beams: Tensor) -> Self:
        """Return the state of the kept sentences, their hypotheses reordered; the old state is not used again.

        Args:
            rows: (B',) long, ascending: which sentences stay.
            beams: (B', K') long: for each kept sentence, which of its K hypotheses each new one continues. K' may differ from K.
        """
        ...


AnyState = TypeVar("AnyState", bound=State)


class Step(Protocol[AnyState]):
    """One step of a model: the last token of every hypothesis in, the scores of the next one out."""

    def __call__(self, tokens: Tensor, state: AnyState, /) -> tuple[Tensor | ops.LazyLogits, Tensor | None, AnyState]:
        """Return logits (B, K, V), computed or not, attention (B, K, S) or None, and the new state, for tokens (B, K) long.

        S may shrink once the longest sentences have left; what is cut must be padding. The search does not write to the results.
        """
        ...


class Hypothesis(NamedTuple):
    """One finished output.

    `tokens` has no BOS; EOS is kept if it was reached. `score` is what hypotheses are ranked by (higher is better):
    sum(log_probs) / length_penalty + coverage_penalty. `log_probs` holds the model's log-probability of each token, forced
    ones included. `attention` is (len(tokens), S) float32 on the CPU, S as wide as the batch's padded sources, or None.
    """

    tokens: list[int]
    score: float
    log_probs: list[float]
    attention: Tensor | None
