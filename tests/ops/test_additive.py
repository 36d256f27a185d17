"""The fused additive scores: against float64 and against plain PyTorch, forward and backward."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from regard import ops
from regard.ops.kernels import additive_cpu, native

needs_library = pytest.mark.skipif(native.library() is None, reason="the native library is not built")


def plain(query, key, vector):
    return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ vector


def inputs(batch, targets, sources, width, *, spread=1.0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(batch * 1000 + width)
    shapes = (batch, targets, width), (batch, sources, width), (width,)
    return [(torch.randn(shape, generator=generator, dtype=dtype) * spread).requires_grad_() for shape in shapes]


def errors(function, parts, exact):
    out = function(*parts)
    grads = torch.autograd.grad(out, parts, torch.ones_like(out))
    return [(mine.double() - right).abs().max().item() if right.numel() else 0.0 for mine, right in zip((out, *grads), exact, strict=True)]


@needs_library
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("shape", [(3, 5, 7, 19), (2, 1, 11, 512), (1, 3, 1, 16), (2, 2, 3, 1), (5, 2, 3, 67), (0, 2, 3, 5), (2, 0, 3, 5)])
def test_the_error_is_at_most_that_of_plain_operations(shape, spread) -> None:
    parts = inputs(*shape, spread=spread)
    assert additive_cpu.supports(*parts)
    doubles = [part.detach().double().requires_grad_() for part in parts]
    out = plain(*doubles)
    exact = [out, *torch.autograd.grad(out, doubles, torch.ones_like(out))]
    fused, usual = errors(ops.additive_scores, parts, exact), errors(plain, parts, exact)
    # Where tanh is nearly 1, 1 - tanh^2 is all rounding: a few units in the last place of 1, times the vector.
    unit = 1 + parts[2].abs().max().item()
    floor = [1e-6 * (unit + (right.abs().max().item() if right.numel() else 0)) for right in exact]
    assert [mine <= max(3 * theirs, least) for mine, theirs, least in zip(fused, usual, floor, strict=True)] == [True] * 4


@needs_library
def test_leading_axes_strides_and_repeats_do_not_matter() -> None:
    query, key, vector = inputs(6, 5, 7, 19)
    expected = ops.additive_scores(query, key, vector)
    folded = ops.additive_scores(query.unflatten(0, (2, 3)), key.unflatten(0, (2, 3)), vector)
    assert torch.equal(folded.flatten(0, 1), expected)
    strided = ops.additive_scores(query.transpose(0, 1).contiguous().transpose(0, 1), key, vector)
    assert torch.equal(strided, expected)
    assert all(torch.equal(ops.additive_scores(query, key, vector), expected) for _ in range(20))


@needs_library
def test_the_gradient_has_a_gradient() -> None:
    parts = inputs(2, 3, 5, 7)

    def second(function, parts):
        first = torch.autograd.grad(function(*parts).pow(2).sum(), parts, create_graph=True)
        return torch.autograd.grad(sum(grad.pow(2).sum() for grad in first), parts)

    for mine, right in zip(second(ops.additive_scores, parts), second(plain, parts), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-4)


@needs_library
def test_nan_and_infinity_go_where_they_belong() -> None:
    query, key, vector = (part.detach() for part in inputs(2, 3, 5, 7))
    query[0, 1, 6], key[1, 2, 0] = float("nan"), float("inf")
    scores = ops.additive_scores(query, key, vector)
    assert torch.equal(scores.isnan(), plain(query, key, vector).isnan())
    torch.testing.assert_close(scores[1, :, 2], plain(query, key, vector)[1, :, 2])


@needs_library
def test_it_is_registered_with_torch_as_it_behaves() -> None:
    torch.library.opcheck(additive_cpu._SCORING.traced, tuple(inputs(2, 3, 5, 7)))
    compiled = torch.compile(ops.additive_scores, fullgraph=True, backend="eager")
    parts = inputs(2, 3, 5, 7)
    scores = compiled(*parts)
    assert torch.equal(scores, ops.additive_scores(*parts))
    expected = torch.autograd.grad(ops.additive_scores(*parts).sum(), parts)
    for mine, right in zip(torch.autograd.grad(scores.sum(), parts), expected, strict=True):
        assert torch.equal(mine, right)


@needs_library
def test_a_call_does_not_load_the_compiler() -> None:
    code = "import sys, torch; from regard import ops; ops.additive_scores(torch.ones(1, 2, 3), torch.ones(1, 5, 3), torch.ones(3))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; print('torch._dynamo' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_other_types_and_shapes_take_plain_operations() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        parts = inputs(2, 3, 5, 7, dtype=dtype)
        assert not additive_cpu.supports(*parts)
        assert torch.equal(ops.additive_scores(*parts), plain(*parts))
    query, key, vector = inputs(2, 3, 5, 7)
    assert not additive_cpu.supports(query[:1], key, vector)
    assert ops.additive_scores(query[:1], key, vector).shape == (2, 3, 5)
