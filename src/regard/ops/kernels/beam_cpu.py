"""What a step of a beam search keeps of its candidates, by the native library."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from regard.ops.kernels import native


class _Call(ctypes.Structure):
    # Mirrors BeamCall of csrc/beam.h.
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("rows", "max_length", "ceiling", "totals", "log_probs", "tokens", "scores", "count")),
        *((f"end_{name}", ctypes.c_void_p) for name in ("rows", "places", "nodes", "tokens", "scores", "log_probs")),
        *((name, ctypes.c_void_p) for name in ("kept", "kept_scores", "kept_count")),
        *((f"going_{name}", ctypes.c_void_p) for name in ("totals", "log_probs", "tokens", "beams", "nodes")),
        *((name, ctypes.c_int64) for name in ("sentences", "hypotheses", "width", "beam", "going", "best", "length", "eos")),
        ("enough", ctypes.c_double),
        ("penalty", ctypes.c_double),
        *((name, ctypes.c_int64) for name in ("ended", "left", "bad")),
    ]


class Searched(NamedTuple):
    """B sentences still searched, K hypotheses of each, C candidates of each of those.

    Attributes:
        rows: (B,) which of all sentences each is.
        max_length: (A,) long, of all sentences: the length at which all ends.
        ceiling: (A,) float32, of all sentences: the length penalty at that length.
        totals: (B, K) float32, sums of log-probabilities; -inf where there is no hypothesis.
        log_probs: (B, K, C) float32, of the candidates; -inf where there is none.
        tokens: (B, K, C) long, likewise.
        scores: (B, N) float32, the best hypotheses that have ended, descending; -inf where there are fewer.
        count: (B,) long, how many have ended.
    """

    rows: Tensor
    max_length: Tensor
    ceiling: Tensor
    totals: Tensor
    log_probs: Tensor
    tokens: Tensor
    scores: Tensor
    count: Tensor


class Kept(NamedTuple):
    """What a step leaves.

    Attributes:
        ends: of the E hypotheses that end now: rows, places among their sentence's candidates, flat places (B * K) of what they
            extend, tokens, scores, log-probabilities, (E,) each.
        rows: (B',) places among the B of the sentences that are searched on.
        scores: (B', N), as before, with what has ended now.
        count: (B',), likewise.
        going: their hypotheses, best first: totals, log-probabilities, tokens, which of K each extends, and its flat place, (B', G) each.
        bad: the first of the B whose candidates hold NaN; -1: none does.
    """

    ends: tuple[Tensor, ...]
    rows: Tensor
    scores: Tensor
    count: Tensor
    going: tuple[Tensor, ...]
    bad: int


def supports(log_probs: Tensor) -> bool:
    """Tell whether the native library can do it: on a CPU, with the library there.

    Example:
        >>> supports(torch.zeros(1, 2, 3, device="meta"))
        False
    """
    return log_probs.device.type == "cpu" and native.library() is not None


def keep(searched: Searched, *, beam: int, length: int, eos: int, enough: float, penalty: float) -> Kept:
    """Decide which candidates of a step end, which go on, and which sentences are done; `regard.decoding` says by which rules.

    Only for what `supports` accepts.

    Args:
        searched: the sentences, all on the CPU.
        beam: hypotheses of a sentence that go on, at most.
        length: of the candidates, in tokens.
        eos: the token that ends a hypothesis.
        enough: a sentence is done when so many of its hypotheses have ended.
        penalty: by which totals are divided at this length.

    Example:
        >>> one, log_probs, tokens = torch.ones(1, dtype=torch.long), torch.tensor([[[-1.0, -2.0]]]), torch.tensor([[[7, 3]]])
        >>> best = torch.tensor([[-9.0]])
        >>> searched = Searched(one - 1, one * 9, torch.ones(1), torch.zeros(1, 1), log_probs, tokens, best, one)
        >>> keep(searched, beam=1, length=1, eos=3, enough=5.0, penalty=1.0).going[2].tolist() if supports(log_probs) else [[7]]
        [[7]]
    """
    library = native.library()
    assert library is not None
    given = tuple(part.contiguous() for part in searched)
    batch, hypotheses, width = searched.log_probs.shape
    best, going, most = searched.scores.shape[1], min(beam, hypotheses * width), batch * min(2 * beam, hypotheses * width)
    ends = (*(_whole(most) for _ in range(4)), torch.empty(most), torch.empty(most))
    rows, scores, count = _whole(batch), torch.empty(batch, best), _whole(batch)
    on = (torch.empty(batch, going), torch.empty(batch, going), *(_whole(batch, going) for _ in range(3)))
    pointers = (part.data_ptr() for part in (*given, *ends, rows, scores, count, *on))
    call = _Call(*pointers, batch, hypotheses, width, beam, going, best, length, eos, enough, penalty)
    if library.regard_beam(ctypes.byref(call)):
        raise MemoryError("regard_beam: no memory")
    left = call.left
    return Kept(
        tuple(part[: call.ended] for part in ends), rows[:left], scores[:left], count[:left], tuple(part[:left] for part in on), call.bad
    )


def _whole(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.long)
