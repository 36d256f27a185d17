"""The native cross-entropy against PyTorch's and against float64, over sizes that do not fill a vector, ties and large logits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard import ops
from regard.errors import RangeError
from regard.ops.kernels import loss_cpu, native

needs_library = pytest.mark.skipif(native.library() is None, reason="the native library is not built")


def plain(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    return F.cross_entropy(logits, target, reduction="sum", label_smoothing=smoothing)


def gradient(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
    leaf = logits.clone().requires_grad_()
    return torch.autograd.grad(plain(leaf, target, smoothing), leaf)[0]


@needs_library
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("spread", [1.0, 1e4])
@pytest.mark.parametrize("size", [1, 3, 15, 16, 17, 131, 8009])
def test_the_error_is_at_most_that_of_plain_operations(size: int, spread: float, smoothing: float) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(11, size, generator=generator) * spread
    target = torch.randint(size, (11,), generator=generator)
    exact, usual = gradient(logits.double(), target, smoothing), gradient(logits, target, smoothing)
    found = logits.clone()
    losses = loss_cpu.cross_entropy_(found, target, smoothing=smoothing, gradient=True)
    assert (found - exact).abs().max() <= 3 * (usual - exact).abs().max() + 4e-7
    per_row = F.cross_entropy(logits.double(), target, reduction="none")
    torch.testing.assert_close(losses.nll.double(), per_row, rtol=2e-6, atol=2e-6)
    uniform = -logits.double().log_softmax(-1).mean(-1)
    torch.testing.assert_close(losses.uniform.double(), uniform, rtol=2e-5, atol=2e-5)
    assert torch.equal(losses.correct.bool(), logits.argmax(-1) == target)


@needs_library
def test_without_a_gradient_the_logits_stay_as_they_are() -> None:
    logits = torch.randn(3, 37)
    kept = logits.clone()
    loss_cpu.cross_entropy_(logits, torch.tensor([1, 36, 0]), smoothing=0.1, gradient=False)
    assert torch.equal(logits, kept)


@needs_library
def test_of_equal_logits_the_first_is_the_answer() -> None:
    logits = torch.zeros(3, 20)
    found = loss_cpu.cross_entropy_(logits, torch.tensor([0, 1, 19]), smoothing=0.0, gradient=False)
    assert found.correct.tolist() == [1, 0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_logits_give_a_loss_that_shows_it(bad: float) -> None:
    hidden = torch.tensor([[bad, 1.0], [1.0, 1.0]], requires_grad=True)
    out = ops.linear_cross_entropy(hidden, torch.ones(17, 2), None, torch.tensor([3, 4]))
    assert not out.loss.isfinite()


@pytest.mark.parametrize("target", [-1, 17])
def test_a_target_that_is_no_class_is_refused(target: int) -> None:
    with pytest.raises(RangeError, match=rf"target\[0\] is {target}; allowed are numbers from 0 to 16"):
        ops.linear_cross_entropy(torch.ones(1, 2, requires_grad=True), torch.ones(17, 2), None, torch.tensor([target]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_both_ways_give_the_same(smoothing: float, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, bias = torch.randn(600, 7), torch.randn(131, 7), torch.randn(131)
    target = torch.randint(131, (600,))
    found = []
    for way in ("cpu", "torch"):
        if way == "cpu" and native.library() is None:
            continue
        monkeypatch.setenv("REGARD_KERNELS", way)
        leaves = [part.clone().requires_grad_() for part in (hidden, weight, bias)]
        out = ops.linear_cross_entropy(leaves[0], leaves[1], leaves[2], target, label_smoothing=smoothing)
        found.append([out.loss.detach(), out.nll, out.correct.float(), *torch.autograd.grad(out.loss, leaves)])
    for one, other in zip(found[0], found[-1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
