"""Tensors that a call alone holds: a kernel reads their addresses, so they must live until it returns."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F

from regard import ops
from regard.ops.kernels import beam_cpu, native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import BestCall
from regard.ops.tensor_checks import Argument

pytestmark = pytest.mark.skipif(not native.status().usable, reason="there is no native library")


def scattered(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same numbers with another number behind each: every call makes a copy."""
    return torch.stack([tensor, tensor], -1)[..., 0]


def test_the_structure_of_a_call_owns_its_tensors() -> None:
    kernel = Kernel("best", BestCall, Argument("logits", "rows size", "float32"), results=[Argument("values", "rows count", "float32")])
    call, _ = kernel.make(torch.full((3, 5), 7.0), count=1)
    gc.collect()
    assert [tensor.sum().item() for tensor in call.tensors] == [105.0]


@pytest.mark.parametrize("rows", [5, 20_011])
def test_scattered_targets_have_the_loss_and_gradient_of_a_copy(rows: int) -> None:
    hidden, weight = torch.randn(rows, 3, requires_grad=True), torch.randn(7, 3, requires_grad=True)
    target = torch.randint(7, (rows,))
    for _ in range(20):
        found = ops.linear_cross_entropy(hidden, weight, None, scattered(target)).loss
        expected = F.cross_entropy(hidden @ weight.t(), target, reduction="sum")
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(torch.autograd.grad(found, weight), torch.autograd.grad(expected, weight), rtol=1e-3, atol=1e-3)


def test_scattered_forbidden_tokens_are_those_of_a_copy() -> None:
    layer, hidden = ops.Linear(5, 53), torch.randn(2, 5)
    forbidden = torch.arange(3_000_000) % 47
    with torch.no_grad(), ops.packed_weights():
        logits = ops.lazy_logits(hidden, layer)
        if logits is None:
            pytest.skip("the native library does not read the output layer here")
        found = [logits.best(3, each, instead=0, least=-9.0) for each in (forbidden, scattered(forbidden))]
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].min() >= 47


def test_scattered_candidates_of_a_beam_are_those_of_a_copy() -> None:
    log_probs = torch.randn(1, 2, 3).log_softmax(-1)
    tokens = torch.tensor([[[3, 4, 5], [6, 7, 8]]])

    def kept(log_probs: torch.Tensor, tokens: torch.Tensor) -> beam_cpu.BeamCandidates:
        lengths = torch.zeros(1, dtype=torch.long), torch.full((1,), 9)
        none = torch.full((1, 2), -torch.inf), torch.zeros(1, dtype=torch.long)
        candidates = beam_cpu.BeamCandidates(*lengths, torch.ones(1), torch.zeros(1, 2), log_probs, tokens, *none)
        return beam_cpu.keep(candidates, beam=2, length=1, eos=0, enough=5.0, penalty=1.0).going

    for _ in range(20):
        for one, other in zip(kept(log_probs, tokens), kept(scattered(log_probs), scattered(tokens)), strict=True):
            assert torch.equal(one, other)
