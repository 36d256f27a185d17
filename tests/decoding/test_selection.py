from __future__ import annotations

import pytest
import torch

from regard.decoding import DecodingOptions
from regard.decoding.beam_search import FinishedScores, StepSelection, select_candidates
from regard.decoding.constraints import Candidates
from regard.decoding.hypotheses import ActiveHypotheses
from regard.decoding.options import BatchedOptions
from regard.errors import RegardError
from regard.ops.kernels import native

EOS = 1


def drawn(seed: int) -> tuple[Candidates, ActiveHypotheses, FinishedScores, BatchedOptions]:
    """Return a step in the middle of a search, with many ties, dead places, sentences at their limit and such as are nearly done."""
    chance = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=chance)

    batch, beams, beam_size, best = (int(whole(1, high, 1)) for high in (9, 7, 7, 4))
    width, length = int(whole(1, beam_size + 2, 1)), int(whole(0, 5, 1))
    options = DecodingOptions(
        bos=0, eos=EOS, beam_size=max(beam_size, best), n_best=best, max_length=whole(length + 1, 9, 11).tolist(),
        length_penalty=0.3 * seed % 1.2,
        patience=[1.0, 0.4, float("inf")][seed % 3],
    )  # fmt: skip
    totals = (-whole(0, 5, batch, beams) / 4).sort(descending=True).values
    totals[whole(0, 4, batch, beams) == 0] = -torch.inf
    log_probs = (-whole(0, 9, batch, beams, width) / 4).sort(descending=True).values
    log_probs[whole(0, 5, batch, beams, width) == 0] = -torch.inf
    log_probs = log_probs.sort(descending=True).values
    # Of one hypothesis no two candidates are the same token.
    tokens = torch.stack([torch.randperm(9, generator=chance)[:width] for _ in range(batch * beams)]).view(batch, beams, width)
    tally = FinishedScores((-whole(0, 9, batch, best) / 4).sort(descending=True).values, whole(0, 4, batch))
    tally.scores[tally.ended[:, None] <= torch.arange(best)] = -torch.inf
    rows = torch.randperm(11, generator=chance)[:batch].sort().values
    live = ActiveHypotheses(rows, torch.zeros(batch, beams, dtype=torch.long), totals, length, None, None)
    return Candidates(tokens, log_probs), live, tally, BatchedOptions.build(options, 11, "cpu")


def both(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[StepSelection, StepSelection]:
    candidates, live, tally, rules = drawn(seed)
    ours = select_candidates(candidates, live, None, tally, rules)
    with monkeypatch.context() as patch:
        patch.setenv("REGARD_KERNELS", "torch")
        return ours, select_candidates(candidates, live, None, tally, rules)


@pytest.mark.skipif(native.library() is None, reason=native.status().reason)
def test_the_native_library_selects_what_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    for seed in range(400):
        ours, reference = both(seed, monkeypatch)
        for name, one, other in zip(ours.ends._fields, ours.ends, reference.ends, strict=True):
            assert one.equal(other), (seed, name)
        assert ours.rows.equal(reference.rows), seed
        assert ours.tally.scores.equal(reference.tally.scores), seed
        assert ours.tally.ended.equal(reference.tally.ended), seed
        there = reference.going.totals > -torch.inf
        assert ours.going.totals.equal(reference.going.totals), seed
        for one, other in zip((*ours.going, ours.parents), (*reference.going, reference.parents), strict=True):
            assert one.shape == other.shape
            assert one[there].equal(other[there]), seed
        sizes.append((len(ours.ends.rows), len(ours.rows), int((~there).sum())))
    # The draws hold what they are meant to: ends, sentences that go on, and places without a hypothesis.
    assert all(sum(size) > 100 for size in zip(*sizes, strict=True))


@pytest.mark.parametrize("path", ["cpu", "torch"])
def test_nan_is_refused_by_step_and_sentence(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    candidates, live, tally, rules = drawn(2)
    candidates.log_probs[-1, 0] = torch.nan
    if path == "torch":
        monkeypatch.setenv("REGARD_KERNELS", "torch")
    with pytest.raises(RegardError, match=rf"step {live.length + 1}: the logits of sentence {live.rows[-1]} hold NaN"):
        select_candidates(candidates, live, None, tally, rules)
