"""Copying and coverage against loops, with words that occur twice, unknown ones, padding, and attention that is exactly zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.errors import RangeError, ShapeError
from tests.reference import copying

B, T, S, V = 3, 5, 7, 11
SOURCE = torch.tensor([[4, 900, 5, 900, 4, 3, 0], [700, 6, 700, 800, 9, 3, 0], [10, 10, 10, 2, 900, 800, 3]])
TARGET = torch.tensor([[900, 4, 8, 3, 0], [800, 700, 900, 6, 3], [10, 900, 1, 800, 3]])
REAL = torch.tensor([[True] * 4 + [False], [True] * 5, [True] * 5])
FOUND = pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])


def inputs(sparse: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits, gate, scores = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((B, T, V), (B, T), (B, T, S)))
    normalize = ops.sparsemax if sparse else ops.masked_softmax
    return logits, gate, normalize(scores, (SOURCE != 0).unsqueeze(1))


def expected(sparse: bool) -> Tensor:
    logits, gate, weights = inputs(sparse)
    places, out = ops.copy_places(SOURCE, V), torch.zeros(B, T, V + S, dtype=torch.float64)
    for b in range(B):
        for t in range(T):
            found = copying.distribution(logits[b, t].tolist(), gate[b, t].item(), weights[b, t].tolist(), SOURCE[b].tolist(), V)
            for word, chance in found.items():
                out[b, t, word if word < V else places[b, SOURCE[b].tolist().index(word)]] = chance
    return out


def test_places_number_an_unknown_word_by_its_first_position():
    assert ops.copy_places(SOURCE, V).tolist() == [
        [4, V + 1, 5, V + 1, 4, 3, 0],
        [V, 6, V, V + 3, 9, 3, 0],
        [10, 10, 10, 2, V + 4, V + 5, 3],
    ]
    assert ops.copy_goals(TARGET, SOURCE, V, unknown=1).tolist() == [
        [V + 1, 4, 8, 3, 0],
        [V + 3, V, 1, 6, 3],  # 900 is no word of its source
        [10, V + 4, 1, V + 5, 3],
    ]
    assert ops.copy_goals(TARGET, SOURCE[:, :0], V, unknown=1)[0].tolist() == [1, 4, 8, 3, 0]


@FOUND
def test_the_distribution_is_that_of_loops_and_sums_to_one(sparse):
    found = ops.copy_log_probs(*inputs(sparse), ops.copy_places(SOURCE, V))
    torch.testing.assert_close(found.exp(), expected(sparse), atol=1e-14, rtol=1e-12)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(B, T, dtype=torch.float64))


@FOUND
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_whole_distribution(sparse, smoothing):
    logits, gate, weights = inputs(sparse)
    places, goals = ops.copy_places(SOURCE, V), ops.copy_goals(TARGET, SOURCE, V, unknown=1)
    sums = ops.copy_loss(logits, gate, weights, places, goals, real=REAL, label_smoothing=smoothing)
    table = expected(sparse).log()
    rows = table.gather(-1, goals.unsqueeze(-1)).squeeze(-1)
    nll = -torch.where(rows > -math.inf, rows, math.log(1e-10))[REAL].sum()
    torch.testing.assert_close(sums.nll, nll)
    smooth = -table[..., :V].mean(-1)[REAL].sum()
    torch.testing.assert_close(sums.loss, (1 - smoothing) * nll + smoothing * smooth)
    assert int(sums.tokens) == 14
    assert int(sums.correct) == int((table.argmax(-1) == goals)[REAL].sum())


@FOUND
def test_gradients_equal_finite_differences_and_are_finite_where_nothing_is_copied(sparse):
    places, goals = ops.copy_places(SOURCE, V), ops.copy_goals(TARGET, SOURCE, V, unknown=1)
    leaves = [part.detach().requires_grad_() for part in inputs(sparse)]
    total = ops.copy_loss(*leaves, places, goals, real=REAL, label_smoothing=0.1).loss
    assert all(part.isfinite().all() for part in torch.autograd.grad(total, leaves))
    if not sparse:  # at a weight of 0 the loss has a corner
        hidden = (SOURCE != 0).unsqueeze(1)

        def loss(logits: Tensor, gate: Tensor, scores: Tensor) -> Tensor:
            weights = ops.masked_softmax(scores, hidden)
            whole = ops.copy_log_probs(logits, gate, weights, places)
            return ops.copy_loss(logits, gate, weights, places, goals, real=REAL, label_smoothing=0.1).loss + whole.exp().square().sum()

        leaves = [*(part.detach().requires_grad_() for part in inputs()[:2]), torch.randn(B, T, S, dtype=torch.float64, requires_grad=True)]
        assert torch.autograd.gradcheck(loss, leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(loss, leaves, fast_mode=True)


def test_rows_that_attend_to_nothing_copy_nothing():
    logits, gate, weights = inputs()
    found = ops.copy_log_probs(logits, gate, torch.zeros_like(weights), ops.copy_places(SOURCE, V))
    torch.testing.assert_close(found[..., :V], logits.log_softmax(-1) + torch.nn.functional.logsigmoid(gate).unsqueeze(-1))
    assert (found[..., V:] == -math.inf).all()


def test_what_does_not_fit_is_refused():
    logits, gate, weights = inputs()
    with pytest.raises(ShapeError, match=r"copy_log_probs.*S"):
        ops.copy_log_probs(logits, gate, weights[..., :-1], ops.copy_places(SOURCE, V))
    with pytest.raises(RangeError, match=r"places\[0, 1\] is 900; allowed are numbers from 0 to 17"):
        ops.copy_log_probs(logits, gate, weights, SOURCE)


def test_the_coverage_loss_is_that_of_loops():
    weights = inputs()[2]
    wanted = sum(copying.coverage_loss(weights[b, : int(REAL[b].sum())].numpy()) for b in range(B))
    found = ops.coverage_loss(weights.masked_fill(~REAL.unsqueeze(-1), math.nan), query_mask=REAL)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=torch.float64))
    with pytest.raises(ShapeError, match="coverage_loss"):
        ops.coverage_loss(weights, query_mask=REAL[:, :-1])


def test_autocast_does_not_round_what_is_copied():
    logits, gate, weights = (part.float() for part in inputs())
    places = ops.copy_places(SOURCE, V)
    expected = ops.copy_log_probs(logits, gate, weights, places)
    with torch.autocast("cpu", torch.bfloat16):
        found = ops.copy_log_probs(logits, gate, weights, places)
    assert torch.equal(found, expected)
