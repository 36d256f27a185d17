"""Native greedy search: many steps in one call, without Python in between."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import RangeError
from regard.ops.kernels.kernel import OUTSIDE, Kernel, invoke
from regard.ops.kernels.structures import DecoderCall, GreedyCall, RecurrentCall
from regard.ops.kernels.vocabulary_cpu import OutputPlan
from regard.ops.tensor_checks import Argument

# Steps per call. Between calls Python can be interrupted.
_TURNS = 16
_GREEDY = Kernel(
    "greedy",
    GreedyCall,
    Argument("limits", "sentences", "int64"),
    *(Argument(name, "sentences", "int64") for name in ("live", "last", "kept")),
    Argument("totals", "sentences", "float32"),
    Argument("now", "3", "int64"),
    Argument("table", "vocabulary width", "float32", optional=True),
    Argument("positions", "most width", "float32", optional=True),
    Argument("x", "sentences width", "float32", optional=True),
    Argument("names", "outputs", "int64", optional=True),
    results=[
        Argument("tokens", "sentences most", "int64"),
        Argument("log_probs", "sentences most", "float32"),
        Argument("lengths", "sentences", "int64"),
        Argument("places", "2 sentences most", "int64"),
    ],
    operation="greedy search",
)


class GreedyRules(NamedTuple):
    """Constraints of a greedy search.

    Attributes:
        limits: (B,) long, max tokens of each sentence; at least 1.
        bos: first input token.
        early: (n,) long, tokens that are never generated; the last one, EOS, is allowed after `min_length` tokens.
        min_length: see `early`.
        least: min log-probability of an EOS generated because nothing else is allowed.
        highest: largest of these token ids.
    """

    limits: Tensor
    bos: int
    early: Tensor
    min_length: int
    least: float
    highest: int


class GreedyTokens(NamedTuple):
    """Result of a greedy search.

    Attributes:
        tokens: (B, T) long; arbitrary after a sentence's length.
        log_probs: (B, T) float32, per token.
        totals: (B,) float32, their sums, in order.
        lengths: (B,) long.
        bad: the first sentence with invalid logits; -1: none.
        steps: number of steps.
    """

    tokens: Tensor
    log_probs: Tensor
    totals: Tensor
    lengths: Tensor
    bad: int
    steps: int


class Words(NamedTuple):
    """Token embedding of a Transformer: table (V, E) times `scale`, plus positions (T, E) for max T tokens."""

    table: Tensor
    scale: float
    positions: Tensor


def search(
    step: DecoderCall | RecurrentCall, hidden: Tensor, output: OutputPlan, rules: GreedyRules, *, words: Words | None, kept: Tensor
) -> GreedyTokens | None:
    """Run all steps.

    Args:
        step: the first step, prepared by a plan: its tables are modified, so they must not be shared.
        hidden: (B, R), output buffer of the step.
        output: the output layer.
        rules: the constraints.
        words: embedding of a Transformer; `step` reads x (B, E).
        kept: (B,) long, also modified: cache row that each sentence continues.

    Returns:
        The result; None if a token of the rules is none of the outputs.

    Raises:
        RangeError: a token is outside the embedding table.
    """
    early = output.places(rules.early)
    if rules.highest >= output.vocabulary or not len(output.places(rules.early[-1:])):
        return None
    batch, most = len(rules.limits), int(rules.limits.max())
    best = output.prepared(hidden, early, instead=int(early[-1]), least=rules.least)
    last, totals, now = torch.full_like(rules.limits, rules.bos), torch.zeros(batch), torch.tensor([batch, 0, -1])
    given: dict[str, Any] = {"most": most, "output": ctypes.pointer(best), "forbidden": len(early), "min_length": rules.min_length}
    tensors: list[Tensor | None] = [rules.limits, torch.arange(batch), last, kept, totals, now]
    if words is None:
        step.tokens, step.parents = last.data_ptr(), kept.data_ptr()
        given |= {"recurrent": ctypes.pointer(step), "without": ("places",)}
        tensors += [None] * 3
    else:
        x = hidden.new_empty(batch, words.table.shape[1])
        step.x, step.rows = x.data_ptr(), 0  # no step yet
        given |= {"decoder": ctypes.pointer(step), "scale": words.scale}
        tensors += [words.table, words.positions, x]
    tensors.append(output.names)
    call, (tokens, log_probs, lengths, _) = _GREEDY.make(*tensors, turns=_TURNS, **given)
    while int(now[0]) and int(now[2]) < 0:
        if invoke(_GREEDY.name, call, "greedy search") == OUTSIDE:
            raise RangeError(f"greedy search: a token, slot or length is out of range, after {int(now[1])} steps")
    return GreedyTokens(tokens, log_probs, totals, lengths, int(now[2]), int(now[1]))
