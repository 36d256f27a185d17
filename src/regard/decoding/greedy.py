"""Greedy search over a step function."""

from __future__ import annotations

import torch

from regard.decoding.options import Rules, SearchOptions
from regard.decoding.protocol import AnyState, Hypothesis, Step
from regard.decoding.walk import walk


@torch.inference_mode()
def greedy_search(
    step: Step[AnyState], state: AnyState, *, batch_size: int, options: SearchOptions, device: torch.device | str = "cpu"
) -> list[list[Hypothesis]]:
    """Return for each sentence the hypothesis that takes the most probable token at every step, the lower one in a tie.

    The result is that of `beam_search` with a beam of 1. `beam`, `n_best` and `patience` are not used.

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
        ShapeError: the step's results or the options do not fit the batch; the message holds both sizes.
        ConfigError: a prefix does not fit, or a token id is outside the vocabulary; the message names it.

    Example:
        >>> class Nothing:
        ...     def select(self, rows, beams):
        ...         return self
        >>> table = torch.tensor([[0.0, 0.3, 0.7], [0.0, 0.4, 0.6], [0.0, 0.0, 1.0]]).log()
        >>> def step(tokens, state):
        ...     return table[tokens], None, state
        >>> options = SearchOptions(bos=0, eos=2, min_length=1)
        >>> greedy_search(step, Nothing(), batch_size=1, options=options)[0][0].tokens
        [1, 2]
    """
    return walk(step, state, 1, rules=Rules.build(options, batch_size, device))
