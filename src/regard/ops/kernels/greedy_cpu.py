"""A greedy search by the native library: many steps in one call, without Python's lock and without Python between them."""

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

# Steps of a call. Between calls Python can be interrupted.
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
    results=[
        Argument("tokens", "sentences most", "int64"),
        Argument("log_probs", "sentences most", "float32"),
        Argument("lengths", "sentences", "int64"),
        Argument("places", "2 sentences most", "int64"),
    ],
    operation="greedy search",
)


class GreedyRules(NamedTuple):
    """What a greedy search may generate.

    Attributes:
        limits: (B,) long, most tokens of each sentence; 1 or more.
        bos: what the first step is given.
        early: (n,) long, tokens that are never generated; the last of them, EOS, may be once there are `min_length` others.
        min_length: see there.
        least: the lowest log-probability of an EOS that is generated because there is nothing else.
        highest: the greatest token of these.
    """

    limits: Tensor
    bos: int
    early: Tensor
    min_length: int
    least: float
    highest: int


class GreedyTokens(NamedTuple):
    """What a greedy search found.

    Attributes:
        tokens: (B, T) long; what stands behind the length of a sentence means nothing.
        log_probs: (B, T) float32, of each.
        totals: (B,) float32, their sums, added up in their order.
        lengths: (B,) long.
        bad: the first sentence whose logits were no distribution ; -1: none.
        steps: how many there were.
    """

    tokens: Tensor
    log_probs: Tensor
    totals: Tensor
    lengths: Tensor
    bad: int
    steps: int


class Words(NamedTuple):
    """How a Transformer embeds: table (V, E) times `scale`, plus positions (T, E), T the most tokens of a sentence."""

    table: Tensor
    scale: float
    positions: Tensor


def search(
    step: DecoderCall | RecurrentCall, hidden: Tensor, output: OutputPlan, rules: GreedyRules, *, words: Words | None, kept: Tensor
) -> GreedyTokens | None:
    """Do all steps.

    Args:
        step: the first, prepared by a plan: its tables are changed, so they must be nobody else's.
        hidden: (B, R), where the step leaves what the output layer sees.
        output: the output layer.
        rules: what may be generated.
        words: of a Transformer; `step` is given x (B, E).
        kept: (B,) long, changed likewise: which row of its past each sentence continues.

    Returns:
        What was found; None where a token of the rules is outside the output layer.

    Raises:
        RangeError: a token is outside the table.
    """
    if rules.highest >= output.size:
        return None
    batch, most = len(rules.limits), int(rules.limits.max())
    best = output.prepared(hidden, rules.early, instead=int(rules.early[-1]), least=rules.least)
    last, totals, now = torch.full_like(rules.limits, rules.bos), torch.zeros(batch), torch.tensor([batch, 0, -1])
    given: dict[str, Any] = {"most": most, "output": ctypes.pointer(best), "forbidden": len(rules.early), "min_length": rules.min_length}
    tensors: list[Tensor | None] = [rules.limits, torch.arange(batch), last, kept, totals, now]
    if words is None:
        step.tokens, step.parents = last.data_ptr(), kept.data_ptr()
        given |= {"recurrent": ctypes.pointer(step), "without": ("places",)}
        tensors += [None] * 3
    else:
        x = hidden.new_empty(batch, words.table.shape[1])
        step.x, step.rows = x.data_ptr(), 0  # no step has been done
        given |= {"decoder": ctypes.pointer(step), "scale": words.scale}
        tensors += [words.table, words.positions, x]
    call, (tokens, log_probs, lengths, _) = _GREEDY.make(*tensors, turns=_TURNS, **given)
    while int(now[0]) and int(now[2]) < 0:
        if invoke(_GREEDY.name, call, "greedy search") == OUTSIDE:
            raise RangeError(f"greedy search: a token, place or length names nothing, after {int(now[1])} steps")
    return GreedyTokens(tokens, log_probs, totals, lengths, int(now[2]), int(now[1]))
