"""Residual connections: against PyTorch's own dropout and layer norm, and what is dropped."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from regard import ops
from regard.errors import ShapeError
from regard.ops.kernels import native, residual_cpu

needs_library = pytest.mark.skipif(native.library() is None, reason="the native library is not built")


def inputs(shape, *, spread=1.0, offset=0.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(shape[-1])
    size = shape[-1]
    sizes = (shape, shape, (size,), (size,))
    parts = [torch.randn(each, generator=generator, dtype=torch.float64) * spread + offset for each in sizes]
    return [part.to(dtype).requires_grad_() for part in parts]


def plain(x, change, weight, bias):
    return F.layer_norm(x + change, x.shape[-1:], weight, bias, 1e-5)


def results(function, parts):
    out = function(*parts)
    grad = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, parts, grad)]


@needs_library
@pytest.mark.parametrize(("spread", "offset"), [(1.0, 0.0), (1e-3, 0.0), (50.0, 0.0), (1.0, 100.0)])
@pytest.mark.parametrize("shape", [(3, 5, 7), (37, 256), (1, 1), (2, 129), (19, 64), (16, 16), (17, 3)])
def test_the_error_is_at_most_that_of_plain_operations(shape, spread, offset):
    parts = inputs(shape, spread=spread, offset=offset)
    assert residual_cpu.supports(*parts[:3])
    exact = results(plain, [part.detach().double().requires_grad_() for part in parts])
    usual, found = results(plain, parts), results(ops.residual, parts)
    for factor, right, theirs, mine in zip((2, 3, 3, 3, 3), exact, usual, found, strict=True):
        floor = 4e-6 * max(1.0, right.abs().max().item())
        assert (mine.double() - right).abs().max() <= factor * (theirs.double() - right).abs().max() + floor


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_norm_it_is_the_sum(dtype):
    x, change, *_ = inputs((5, 3, 19), dtype=dtype)
    out, *grads = results(ops.residual, [x, change])
    torch.testing.assert_close(out, (x + change).detach())
    assert torch.equal(grads[0], grads[1])


def dropped(p, *, seed=1, shape=(40, 257), weight=None):
    torch.manual_seed(seed)
    x, change = torch.zeros(shape, requires_grad=True), torch.ones(shape, requires_grad=True)
    return ops.residual(x, change, weight, None if weight is None else torch.zeros(shape[-1]), dropout=p), x, change


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_much_is_dropped_as_asked_for(p):
    out = dropped(p, shape=(400, 257))[0]
    kept = out != 0
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 1 / (1 - p)))
    # 102,800 draws: six standard deviations.
    room = 6 * (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(kept.double().mean() - (1 - p)) < room
    # No row, column or neighbour tells of another.
    for axis in (0, 1):
        share = kept.double().mean(axis)
        assert (share - (1 - p)).abs().max() < 6 * (p * (1 - p) / kept.shape[axis]) ** 0.5
    for one, other in ((kept[:, 1:], kept[:, :-1]), (kept[1:], kept[:-1])):
        both = (one & other).double().mean()
        assert abs(both - (1 - p) ** 2) < 6 * ((1 - p) ** 2 / one.numel()) ** 0.5


def test_what_is_dropped_comes_from_torchs_generator():
    first, again, other = (dropped(0.3, seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(1)
    x = torch.zeros(40, 257)
    one, two = (ops.residual(x, torch.ones_like(x), dropout=0.3) for _ in range(2))
    assert torch.equal(one, first)
    assert not torch.equal(one, two)


@pytest.mark.parametrize("normed", [False, True])
def test_the_gradient_goes_where_nothing_was_dropped(normed):
    weight = torch.rand(257) if normed else None
    out, x, change = dropped(0.4, weight=weight)
    # The same draw again, without a norm, shows what was kept.
    kept = dropped(0.4)[0] != 0
    grad = torch.randn(out.shape)
    x_grad, change_grad = torch.autograd.grad(out, (x, change), grad)
    torch.testing.assert_close(change_grad, x_grad * kept / 0.6)
    if normed:
        total = (torch.ones_like(out) * kept / 0.6).requires_grad_()
        expected = torch.autograd.grad(F.layer_norm(total, (257,), weight, torch.zeros(257)), total, grad)[0]
        torch.testing.assert_close(x_grad, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dropout_alone_is_torchs(dtype):
    x = torch.full((40, 257), 2.0, dtype=dtype, requires_grad=True)
    out = ops.dropout(x, 0.25)
    kept = out != 0
    assert out.dtype == dtype
    assert abs(kept.double().mean() - 0.75) < 0.03
    assert torch.equal(out.detach(), torch.where(kept, torch.tensor(2 / 0.75, dtype=dtype), torch.tensor(0.0, dtype=dtype)))
    out.sum().backward()
    torch.testing.assert_close(x.grad, kept.to(dtype) / 0.75)
    assert ops.dropout(x, 0.0) is x


@pytest.mark.parametrize("added", [False, True])
def test_without_a_norm_dropout_has_second_derivatives(added):
    x = torch.randn(7, 19, requires_grad=True)
    change = torch.randn(7, 19, requires_grad=True)
    out = ops.residual(x, change, dropout=0.3) if added else ops.dropout(change, 0.3)
    kept = out != x if added else out != 0
    assert 0 < kept.sum() < kept.numel()
    scale = kept / 0.7
    first, *others = torch.autograd.grad((out**3).sum(), [change, *([x] if added else [])], create_graph=True)
    torch.testing.assert_close(first, 3 * out**2 * scale)
    second = torch.autograd.grad(first.sum() + sum(part.sum() for part in others), change)[0]
    torch.testing.assert_close(second, 6 * out * scale**2 + (6 * out * scale if added else 0))


def test_the_module_drops_in_training_mode_alone():
    module, x = ops.Dropout(0.25), torch.full((40, 257), 2.0)
    torch.manual_seed(3)
    found = module(x)
    torch.manual_seed(3)
    assert torch.equal(found, ops.dropout(x, 0.25))
    assert (found == 0).any()
    assert module.eval()(x) is x


def test_under_autocast_the_change_may_be_narrower():
    x, change, weight, bias = inputs((5, 3, 19))
    narrow = change.detach().bfloat16().requires_grad_()
    out, *grads = results(ops.residual, [x, narrow, weight, bias])
    torch.testing.assert_close(out, plain(x, narrow.float(), weight, bias).detach())
    assert grads[1].dtype == torch.bfloat16


def test_strides_threads_and_repeats_do_not_matter():
    parts = inputs((23, 19))
    expected = results(ops.residual, parts)
    turned = [part.detach().t().contiguous().t().requires_grad_() for part in parts[:2]]
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            for found in (results(ops.residual, parts), results(ops.residual, [*turned, *parts[2:]])):
                assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    finally:
        torch.set_num_threads(before)


def test_it_compiles_without_a_break():
    parts = inputs((5, 7))
    torch.testing.assert_close(torch.compile(ops.residual, fullgraph=True, backend="aot_eager")(*parts), plain(*parts))


def test_an_empty_batch_gives_an_empty_result():
    empty = torch.zeros(0, 5)
    assert ops.residual(empty, empty, torch.ones(5), torch.zeros(5), dropout=0.1).shape == (0, 5)


def test_shapes_that_do_not_agree_are_refused():
    x = torch.zeros(3, 5)
    for wrong in ((x, x[1:]), (x, x, torch.ones(3), torch.ones(3)), (x, x, torch.ones(5), torch.ones(3))):
        with pytest.raises(ShapeError, match=r"residual: expected x \(\.\.\., E\), change"):
            ops.residual(*wrong)
