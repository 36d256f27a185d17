"""The native cross-entropy against PyTorch's and against float64, over sizes that do not fill a vector, ties and large logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard import ops
from regard.errors import RangeError
from regard.ops import cross_entropy
from regard.ops.kernels import loss_cpu, native
from tests.ops.targets import TARGETS, instructions

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
@pytest.mark.parametrize("size", [1, 3, 15, 16, 17, 131, 8009])
@pytest.mark.parametrize("gradient", [True, False])
def test_bfloat16_logits_are_computed_in_float32_and_only_their_gradient_rounded(size: int, gradient: bool) -> None:
    generator = torch.Generator().manual_seed(size)
    half = (torch.randn(2, 7, size, generator=generator) * 3).bfloat16()
    target = torch.randint(size, (7,), generator=generator)
    wide = half[0].float()
    expected = loss_cpu.cross_entropy_(wide, target, smoothing=0.1, gradient=gradient)
    found = half[0].clone()
    assert all(map(torch.equal, loss_cpu.cross_entropy_(found, target, smoothing=0.1, gradient=gradient), expected))
    assert torch.equal(found, wide.bfloat16())
    wide_pair, pair = half.float(), half.clone()
    losses, apart = loss_cpu.consistent_cross_entropy_(wide_pair, target, smoothing=0.1, alpha=5.0)
    half_losses, half_apart = loss_cpu.consistent_cross_entropy_(pair, target, smoothing=0.1, alpha=5.0)
    assert all(map(torch.equal, (*half_losses, half_apart), (*losses, apart)))
    assert torch.equal(pair, wide_pair.bfloat16())


@needs_library
def test_bad_bfloat16_logits_stay_bad() -> None:
    logits = torch.tensor([[float("nan"), 1.0, 2.0], [float("inf"), 1.0, 2.0], [1.0, 2.0, 3.0]]).bfloat16()
    found = loss_cpu.cross_entropy_(logits, torch.tensor([0, 1, 2]), smoothing=0.0, gradient=True)
    assert found.nll.isfinite().tolist() == [False, False, True]
    assert logits.isfinite().all(1).tolist() == [False, False, True]


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


def test_the_place_of_a_wrong_target_is_its_own_beyond_the_first_chunk() -> None:
    target = torch.zeros(1300, dtype=torch.long)
    target[1200] = 17
    with pytest.raises(RangeError, match=r"target\[1200\] is 17"):
        ops.linear_cross_entropy(torch.ones(1300, 2), torch.ones(17, 2), None, target)


def agreement(hidden: Tensor, weight: Tensor, bias: Tensor, target: Tensor, *, label_smoothing: float) -> ops.SequenceLoss:
    """R-Drop's loss, the second pass with half of the numbers."""
    return ops.consistent_cross_entropy(hidden, hidden / 2, weight, bias, target, consistency=5.0, label_smoothing=label_smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [2, 16, 131])  # fewer than a vector, whole vectors, a rest
@pytest.mark.parametrize("function", [ops.linear_cross_entropy, agreement])
def test_both_ways_give_the_same(
    function: Callable[..., ops.SequenceLoss], classes: int, smoothing: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden, weight, bias = torch.randn(600, 7), torch.randn(classes, 7), torch.randn(classes)
    target = torch.randint(classes, (600,))
    found = []
    for way in ("cpu", "torch"):
        if way == "cpu" and native.library() is None:
            continue
        monkeypatch.setenv("REGARD_KERNELS", way)
        leaves = [part.clone().requires_grad_() for part in (hidden, weight, bias)]
        out = function(*leaves, target, label_smoothing=smoothing)
        found.append([out.loss.detach(), out.nll, out.correct.float(), *torch.autograd.grad(out.loss, leaves)])
    for one, other in zip(found[0], found[-1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", [ops.linear_cross_entropy, agreement])
def test_every_instruction_set_is_as_exact(function: Callable[..., ops.SequenceLoss], target: int) -> None:
    leaves = [torch.randn(600, 7), torch.randn(131, 7), torch.randn(131)]
    goal, found = torch.randint(131, (600,)), []
    with instructions(target):
        for dtype in (torch.float32, torch.float64):
            own = [part.to(dtype).requires_grad_() for part in leaves]
            loss = function(*own, goal, label_smoothing=0.1).loss
            found.append([part.double() for part in (loss.detach(), *torch.autograd.grad(loss, own))])
    for ours, exact in zip(*found, strict=True):
        assert (ours - exact).norm() < 2e-6 * exact.norm()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("rows", [0, 3, 600])  # 600: more than two chunks
def test_two_passes_have_the_mean_loss_and_their_divergences(smoothing: float, rows: int) -> None:
    passes = [torch.randn(rows, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    leaves = [
        *passes,
        torch.randn(13, 5, dtype=torch.float64, requires_grad=True),
        torch.randn(13, dtype=torch.float64, requires_grad=True),
    ]
    target = torch.randint(13, (rows,))
    weight, bias = leaves[2:]
    out = ops.consistent_cross_entropy(passes[0], passes[1], weight, bias, target, consistency=3.0, label_smoothing=smoothing)
    p, q = (F.linear(part, weight, bias).log_softmax(-1) for part in passes)
    one, other = (F.cross_entropy(part, target, reduction="sum", label_smoothing=smoothing) for part in (p, q))
    apart = F.kl_div(q, p, log_target=True, reduction="sum") + F.kl_div(p, q, log_target=True, reduction="sum")
    expected = (one + other) / 2 + 3 / 4 * apart
    torch.testing.assert_close(out.loss, expected)
    torch.testing.assert_close(out.nll, F.nll_loss(torch.cat((p, q)), target.repeat(2), reduction="sum").detach() / 2)
    assert (out.tokens, out.correct) == (rows, (torch.cat((p, q)).argmax(1) == target.repeat(2)).sum() / 2)
    torch.testing.assert_close(torch.autograd.grad(out.loss, leaves), torch.autograd.grad(expected, leaves))


@pytest.mark.parametrize("way", ["cpu", "torch"])
def test_the_divergence_of_near_passes_far_from_zero_is_exact(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("no native library")
    monkeypatch.setenv("REGARD_KERNELS", way)
    near = torch.randn(50, 300) * 0.01  # divergences of 1e-4 each
    logits, target = torch.randn(50, 300), torch.randint(300, (50,))
    losses = []
    for dtype in (torch.float32, torch.float64):
        first, second = ((part + far).to(dtype) for part, far in ((logits, 500.0), (logits + near, -300.0)))
        weight = torch.eye(300, dtype=dtype, requires_grad=True)
        found = [ops.consistent_cross_entropy(first, second, weight, None, target, consistency=alpha).loss.item() for alpha in (0.0, 100.0)]
        losses.append(found[1] - found[0])
    torch.testing.assert_close(losses[0], losses[1], rtol=0.01, atol=0.0)


@pytest.mark.parametrize("way", ["cpu", "torch", "plain"])
def test_a_class_that_a_bias_excludes_changes_nothing(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch" if way == "torch" or native.library() is None else "cpu")
    monkeypatch.setattr(cross_entropy, "is_plain", lambda *_: way != "plain")
    hidden, target = torch.randn(2, 6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    found = []
    for bias in (torch.tensor([0.0, 1.0, 0.0, float("-inf")]), torch.tensor([0.0, 1.0, 0.0])):
        weight = torch.eye(4)[: len(bias)].requires_grad_()
        out = [
            ops.linear_cross_entropy(hidden[0], weight, bias, target),
            ops.consistent_cross_entropy(hidden[0], hidden[1], weight, bias, target, consistency=5.0),
        ]
        found.append([x for each in out for x in (each.loss.detach(), each.nll, torch.autograd.grad(each.loss, weight)[0][:3])])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("way", ["cpu", "torch"])
def test_large_logits_are_as_exact_as_in_plain_operations(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("no native library")
    monkeypatch.setenv("REGARD_KERNELS", way)
    passes, weight, target = torch.randn(2, 200, 8) * 100, torch.randn(500, 8), torch.randint(500, (200,))
    grads = []
    for dtype, plain in ((torch.float32, False), (torch.float32, True), (torch.float64, True)):
        leaf = weight.to(dtype).requires_grad_()
        monkeypatch.setattr(cross_entropy, "is_plain", lambda *_, plain=plain: not plain)
        first, second = passes.to(dtype)
        out = ops.consistent_cross_entropy(first, second, leaf, None, target, consistency=5.0)
        grads.append(torch.autograd.grad(out.loss, leaf)[0].double())
    ours, plainly = ((found - grads[2]).norm() for found in grads[:2])
    assert ours < 2 * plainly


@pytest.mark.parametrize("way", ["cpu", "torch", "plain"])
@pytest.mark.parametrize("offset", [1e4, 1e15, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_all_logits_have_in_common_changes_nothing(
    way: str, offset: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch" if way == "torch" or native.library() is None else "cpu")
    monkeypatch.setattr(cross_entropy, "is_plain", lambda *_: way != "plain")
    hidden, target = torch.zeros(2, 3, dtype=dtype), torch.tensor([1, 16])
    bias = torch.full((17,), offset, dtype=dtype, requires_grad=True)
    weight = torch.zeros(17, 3, dtype=dtype, requires_grad=True)
    for found in (
        ops.linear_cross_entropy(hidden, weight, bias, target, label_smoothing=0.1),
        ops.consistent_cross_entropy(hidden, hidden, weight, bias, target, consistency=5.0, label_smoothing=0.1),
    ):
        assert found.loss.item() == pytest.approx(2 * math.log(17), rel=1e-6)
        (gradient,) = torch.autograd.grad(found.loss, bias)
        expected = torch.full_like(gradient, 2 / 17 - 0.2 / 17)
        expected[target] -= 0.9
        torch.testing.assert_close(gradient, expected)


def test_in_float16_a_row_that_overflows_spoils_no_other() -> None:
    hidden = torch.tensor([[60000.0, 0.0], [1.0, 2.0]], dtype=torch.float16, requires_grad=True)
    weight = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float16)
    (found,) = torch.autograd.grad(ops.linear_cross_entropy(hidden, weight, None, torch.tensor([0, 1])).loss, hidden)
    (expected,) = torch.autograd.grad(plain(F.linear(hidden, weight).float(), torch.tensor([0, 1]), 0.0), hidden)
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1], expected[1])
    nothing = torch.ones(4, 0, dtype=torch.float16, requires_grad=True)
    loss = ops.linear_cross_entropy(nothing, torch.ones(5, 0, dtype=torch.float16), None, torch.zeros(4, dtype=torch.int64)).loss
    loss.backward()
    assert loss.item() == pytest.approx(4 * math.log(5), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_half_weights_are_summed_in_float32(dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(20_000, 4).to(dtype), torch.randn(33, 4).to(dtype)
    target, bias, found = torch.randint(33, (20_000,)), torch.zeros(33), []
    for kind in (dtype, torch.float64):
        leaves = weight.to(kind).requires_grad_(), bias.to(kind).requires_grad_()
        found.append(torch.autograd.grad(ops.linear_cross_entropy(hidden.to(kind), leaves[0], leaves[1], target).loss, leaves))
    for ours, exact in zip(*found, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - exact).norm() < torch.finfo(dtype).eps / 2 * exact.norm()


def test_equal_passes_have_the_loss_of_one() -> None:
    hidden, weight, target = torch.randn(7, 5, requires_grad=True), torch.randn(13, 5, requires_grad=True), torch.randint(13, (7,))
    once = ops.linear_cross_entropy(hidden, weight, None, target)
    twice = ops.consistent_cross_entropy(hidden, hidden, weight, None, target, consistency=5.0)
    torch.testing.assert_close(twice.loss, once.loss)
    torch.testing.assert_close(torch.autograd.grad(twice.loss, (hidden, weight)), torch.autograd.grad(once.loss, (hidden, weight)))
