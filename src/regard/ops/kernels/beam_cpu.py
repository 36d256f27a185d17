"""What a step of a beam search keeps of its candidates, by the native library."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ShapeError
from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import BeamCall
from regard.ops.tensor_checks import Argument

_BEAM = Kernel(
    "beam",
    BeamCall,
    Argument("rows", "sentences", "int64", below="all"),
    Argument("max_length", "all", "int64"),
    Argument("ceiling", "all", "float32"),
    Argument("totals", "sentences hypotheses", "float32"),
    Argument("log_probs", "sentences hypotheses width", "float32"),
    Argument("tokens", "sentences hypotheses width", "int64"),
    Argument("scores", "sentences best", "float32"),
    Argument("count", "sentences", "int64"),
    results=[
        *(Argument(f"end_{name}", "most", "int64") for name in ("rows", "places", "nodes", "tokens")),
        *(Argument(f"end_{name}", "most", "float32") for name in ("scores", "log_probs")),
        Argument("kept", "sentences", "int64"),
        Argument("kept_scores", "sentences best", "float32"),
        Argument("kept_count", "sentences", "int64"),
        *(Argument(f"going_{name}", "sentences going", "float32") for name in ("totals", "log_probs")),
        *(Argument(f"going_{name}", "sentences going", "int64") for name in ("tokens", "beams", "nodes")),
    ],
    operation="beam search",
)


class BeamCandidates(NamedTuple):
    """B sentences still searched, K hypotheses of each, C candidates of each of those.

    Attributes:
        rows: (B,) which of all sentences each is.
        max_length: (A,) long, of all sentences: the length at which all ends.
        ceiling: (A,) float32, of all sentences: the length penalty at that length.
        totals: (B, K) float32, sums of log-probabilities; -inf where there is no hypothesis.
        log_probs: (B, K, C) float32, of the candidates; -inf where there is none.
        tokens: (B, K, C) long, likewise.
        scores: (B, N) float32, the best hypotheses that have ended, descending; -inf where there are fewer.
        ended: (B,) long, how many have ended.
    """

    rows: Tensor
    max_length: Tensor
    ceiling: Tensor
    totals: Tensor
    log_probs: Tensor
    tokens: Tensor
    scores: Tensor
    ended: Tensor


class BeamSelection(NamedTuple):
    """What a step leaves.

    Attributes:
        ends: of the E hypotheses that end now: rows, places among their sentence's candidates, flat places (B * K) of what they
            extend, tokens, scores, log-probabilities, (E,) each.
        rows: (B',) places among the B of the sentences that are searched on.
        scores: (B', N), as before, with what has ended now.
        ended: (B',), likewise.
        going: their hypotheses, best first: totals, log-probabilities, tokens, which of K each extends, and its flat place, (B', G) each.
        bad: the first of the B whose candidates hold NaN; -1: none does.
    """

    ends: tuple[Tensor, ...]
    rows: Tensor
    scores: Tensor
    ended: Tensor
    going: tuple[Tensor, ...]
    bad: int


def supports(searched: BeamCandidates) -> bool:
    """Tell whether the native library can do it: plain tensors on a CPU, log-probabilities in float32.

    Example:
        >>> supports(BeamCandidates(*[torch.zeros(1, 2, 3, device="meta")] * 8))
        False
    """
    return searched.log_probs.dtype == torch.float32 and native.takes(*searched)


def keep(searched: BeamCandidates, *, beam: int, length: int, eos: int, enough: float, penalty: float) -> BeamSelection:
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
        >>> searched = BeamCandidates(one - 1, one * 9, torch.ones(1), torch.zeros(1, 1), log_probs, tokens, best, one)
        >>> ready = supports(searched)
        >>> keep(searched, beam=1, length=1, eos=3, enough=5.0, penalty=1.0).going[2].tolist() if ready else [[7]]
        [[7]]
    """
    batch, hypotheses, width = searched.log_probs.shape
    best, going, most = searched.scores.shape[1], min(beam, hypotheses * width), batch * min(2 * beam, hypotheses * width)
    if min(best, going) < 1:
        raise ShapeError(f"beam search: {beam} hypotheses of {hypotheses} x {width} candidates, {best} of them kept: at least 1 of each")
    given: dict[str, Any] = {"beam": beam, "length": length, "eos": eos, "enough": enough, "penalty": penalty, "going": going, "most": most}
    call, found = _BEAM.run(*(part.contiguous() for part in searched), **given)
    rows, scores, count, *on = (part[: call.left] for part in found[6:])
    return BeamSelection(tuple(part[: call.ended] for part in found[:6]), rows, scores, count, tuple(on), call.bad)
