from __future__ import annotations

import pytest
import torch

from regard import ops
from regard.ops.kernels import best_cpu, native
from regard.ops.kernels.panels import Affine
from regard.ops.kernels.vocabulary_cpu import OutputPlan
from regard.ops.topk import BLOCK, top_tokens


@pytest.mark.parametrize("size", [1, 4, 127, 1009, 7919, 7936])
@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("levels", [3, 17, 10**6])
def test_top_tokens_are_those_of_a_stable_sort(size: int, count: int, levels: int) -> None:
    values = -torch.randint(0, levels, (3, 5, size)).float()
    values[0, :, ::2] = -torch.inf
    values[1, 2] = -torch.inf
    expected = values.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    assert torch.equal(top_tokens(values, count), expected)


def test_top_tokens_are_ordered_among_tiny_and_huge_values() -> None:
    values = -torch.tensor([3e38, 1e-45, 1.0, 0.0, 1.0 + 2**-23, torch.inf, 1e-30])
    assert top_tokens(values[None, None], 7).tolist() == [[[3, 1, 6, 2, 4, 0, 5]]]


def test_top_tokens_are_different_where_few_are_allowed() -> None:
    values = torch.full((1, 1, 31 * BLOCK + 1), -torch.inf)
    values[..., -1] = -1.0
    values[..., 0] = -2.0
    assert top_tokens(values, 5).tolist() == [[[31 * BLOCK, 0, 1, 2, 3]]]


def plain(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    log_probs = logits.double().log_softmax(-1)
    order = logits.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return log_probs.gather(-1, order), order


@pytest.mark.parametrize("native_library", [True, False])
@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 7639])
@pytest.mark.parametrize("levels", [3, 10**6])
def test_the_best_of_logits_are_those_of_a_stable_sort_of_log_probabilities(
    size: int, levels: int, native_library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native_library and native.library() is None:
        pytest.skip("the native library is not built")
    if not native_library:
        monkeypatch.setattr(best_cpu, "supports", lambda logits, count: False)
    generator = torch.Generator().manual_seed(size)
    logits = torch.randint(levels, (2, 3, size), generator=generator) * (20.0 / levels)
    logits[0, 0, : size // 2] = -torch.inf
    found = ops.top_log_probs(logits, 7)
    log_probs, tokens = plain(logits, 7)
    assert torch.equal(found.tokens, tokens)
    torch.testing.assert_close(found.log_probs, log_probs.float(), rtol=1e-6, atol=2e-6)


def sure(size: int) -> torch.Tensor:
    """Return large logits (40, size) of which one is far above the others: its log-probability is smaller than a logit's last digit."""
    generator = torch.Generator().manual_seed(size)
    logits = torch.rand(40, 1, generator=generator) * 300 - torch.rand(40, size, generator=generator) * 6 - 9
    return logits.scatter_add(1, torch.randint(size, (40, 1), generator=generator), torch.full((40, 1), 13.0))


@pytest.mark.parametrize("size", [2, 7, 65, 523])
def test_log_probabilities_of_large_logits_are_as_exact_as_those_of_small_ones(size: int) -> None:
    logits = sure(size)
    right = logits.double().log_softmax(-1).float()
    found = {"list": ops.top_log_probs(logits, 2)}
    if native.library() is not None:
        plan, forbidden = OutputPlan(Affine(torch.eye(size), None)), torch.tensor([], dtype=torch.long)
        found["plan"] = ops.TopLogProbs(*plan.best(logits, 2, forbidden, instead=0, least=-1e9))
    for log_probs, tokens in found.values():
        torch.testing.assert_close(log_probs, right.gather(-1, tokens), rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(native.library() is None, reason="the native library is not built")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, 70, 129])
def test_logits_that_are_no_distribution_give_nan_in_their_row_only(bad: float, place: int) -> None:
    logits = torch.zeros(2, 130)
    logits[0, place] = bad
    found = ops.top_log_probs(logits, 3)
    assert found.log_probs[0].isnan().all()
    assert found.log_probs[1].isfinite().all()
    assert ops.top_log_probs(torch.full((1, 130), -torch.inf), 3).log_probs.isnan().all()


def test_long_lists_other_types_and_gradients_take_plain_operations() -> None:
    logits = torch.arange(300.0).requires_grad_()
    assert not best_cpu.supports(logits, 3)
    assert not best_cpu.supports(logits.detach().double(), 3)
    assert not best_cpu.supports(logits.detach(), best_cpu.MOST + 1)
    assert ops.top_log_probs(logits.detach(), best_cpu.MOST + 1).tokens.tolist() == list(range(299, 299 - best_cpu.MOST - 1, -1))
    assert ops.top_log_probs(logits.detach().double(), 2).tokens.tolist() == [299, 298]
