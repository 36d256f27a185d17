"""Native selection of the candidates of a beam search step."""

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
    Argument("states", "sentences hypotheses phrases", "int64", optional=True, below="known"),
    Argument("alphabet", "sentences phrases letters", "int64", optional=True),
    Argument("following", "known entries", "int64", optional=True, below="known"),
    Argument("missing", "known", "int64", optional=True),
    Argument("follow", "vocabulary", "bool", optional=True),
    results=[
        *(Argument(f"end_{name}", "most", "int64") for name in ("rows", "places", "nodes", "tokens")),
        *(Argument(f"end_{name}", "most", "float32") for name in ("scores", "log_probs")),
        Argument("kept", "sentences", "int64"),
        Argument("kept_scores", "sentences best", "float32"),
        Argument("kept_count", "sentences", "int64"),
        *(Argument(f"going_{name}", "sentences going", "float32") for name in ("totals", "log_probs")),
        *(Argument(f"going_{name}", "sentences going", "int64") for name in ("tokens", "beams", "nodes")),
        Argument("going_states", "sentences going phrases", "int64"),
    ],
    operation="beam search",
)


class BeamCandidates(NamedTuple):
    """Candidates of B active sentences with K hypotheses each and C continuations per hypothesis.

    Attributes:
        rows: (B,) index of each sentence in the whole batch.
        max_length: (A,) long, for the whole batch: maximum length.
        ceiling: (A,) float32, for the whole batch: length penalty at that length.
        totals: (B, K) float32, sums of log-probabilities; -inf for unused slots.
        log_probs: (B, K, C) float32, of the candidates; -inf for unused slots.
        tokens: (B, K, C) long, their tokens.
        scores: (B, N) float32, the best finished hypotheses, descending; -inf for unused slots.
        ended: (B,) long, number of finished hypotheses.
    """

    rows: Tensor
    max_length: Tensor
    ceiling: Tensor
    totals: Tensor
    log_probs: Tensor
    tokens: Tensor
    scores: Tensor
    ended: Tensor


class BeamPhrases(NamedTuple):
    """Forced phrases of the candidates, as states of automata: see `regard.decoding.phrases.PhraseProgress`.

    Attributes:
        states: (B, K, P) long, below N.
        alphabet: (B, P, Z) long, tokens with an entry of their own; -1: none.
        following: (N, 2 + Z) long, the next state after another token that may not follow a phrase, one that may, each of the alphabet.
        missing: (N,) long, number of tokens that a state lacks.
        follow: (V,) bool, whether a token may follow a phrase; None: all may.
    """

    states: Tensor
    alphabet: Tensor
    following: Tensor
    missing: Tensor
    follow: Tensor | None


class BeamSelection(NamedTuple):
    """Result of a step.

    Attributes:
        ends: the E hypotheses that finish: sentences, indices among their sentence's candidates, flat indices (B * K) of their parents,
            tokens, scores, log-probabilities, (E,) each.
        rows: (B',) indices of the sentences that stay active.
        scores: (B', N), updated.
        ended: (B',), updated.
        going: their hypotheses, best first: totals, log-probabilities, tokens, index and flat index of the parent, (B', G) each.
        states: (B', G, P), of their phrases.
        bad: the first sentence with NaN among its candidates; -1: none.
    """

    ends: tuple[Tensor, ...]
    rows: Tensor
    scores: Tensor
    ended: Tensor
    going: tuple[Tensor, ...]
    states: Tensor
    bad: int


def supports(searched: BeamCandidates) -> bool:
    """Return whether the native library supports this call: plain CPU tensors, log-probabilities in float32.

    Example:
        >>> supports(BeamCandidates(*[torch.zeros(1, 2, 3, device="meta")] * 8))
        False
    """
    return searched.log_probs.dtype == torch.float32 and native.takes(*searched)


def keep(
    searched: BeamCandidates, phrases: BeamPhrases | None = None, *, beam: int, length: int, eos: int, enough: float, penalty: float
) -> BeamSelection:
    """Select the candidates that finish and those that continue, and the finished sentences; see `regard.decoding` for the rules.

    Only for calls that `supports` accepts.

    Args:
        searched: the candidates, on the CPU.
        phrases: the forced phrases.
        beam: max number of continuing hypotheses per sentence.
        length: length of the candidates in tokens.
        eos: EOS.
        enough: number of finished hypotheses that completes a sentence.
        penalty: length penalty at this length.

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
    forced = (None,) * 5 if phrases is None else (part if part is None else part.contiguous() for part in phrases)
    given["phrases"] = 0 if phrases is None else phrases.states.size(-1)
    call, found = _BEAM.run(*(part.contiguous() for part in searched), *forced, **given)
    rows, scores, count, *on, states = (part[: call.left] for part in found[6:])
    return BeamSelection(tuple(part[: call.ended] for part in found[:6]), rows, scores, count, tuple(on), states, call.bad)
