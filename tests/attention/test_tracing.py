"""Every mechanism of the table traces into one graph, is exported, and runs under autocast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from regard import ops
from tests.attention.mechanisms import MECHANISMS, B, Mechanism, Uniform, build, inputs

EVERY = pytest.mark.parametrize("name", MECHANISMS)
FREE = torch.export.Dim.DYNAMIC


def prepared(name: str) -> tuple[Mechanism, Uniform, tuple[Tensor, ...], Tensor]:
    """A mechanism, its inputs, and a mask of keys with an empty sentence."""
    mechanism = MECHANISMS[name]
    mask = ops.length_mask(torch.tensor([mechanism.source, 4, 0]), mechanism.source).unsqueeze(1)
    return mechanism, build(mechanism, torch.float32), inputs(mechanism, torch.float32), mask


def seeded(function, *arguments):
    """Call from the same random state, for what is drawn."""
    torch.default_generator.manual_seed(43)
    return function(*arguments)


@EVERY
def test_it_compiles_into_one_graph_and_is_exported_with_the_same_result(name):
    _, module, tensors, mask = prepared(name)
    expected = seeded(module, *tensors, mask, True)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(seeded(compiled, *tensors, mask, True), expected)
    program = torch.export.export(module, (*tensors, mask, True)).module()
    torch.testing.assert_close(seeded(program, *tensors, mask, True), expected)


def exported_with_free_sizes(name: str) -> None:
    """Export with B, T and S free, call with others; what fills a grid keeps its S."""
    mechanism, module, tensors, mask = prepared(name)
    keys = {0: FREE} if mechanism.fixed else {0: FREE, 1: FREE}
    queries = {0: FREE} if mechanism.alone and mechanism.target else {0: FREE, 1: FREE}
    across = {0: FREE} if mechanism.fixed else {0: FREE, 2: FREE}
    free = (queries, keys, keys, across, None)
    program = torch.export.export(module, (*tensors, mask, False), dynamic_shapes=free).module()
    target = mechanism.target if mechanism.alone else 3
    source = mechanism.source if mechanism.fixed else 11
    others = inputs(mechanism, torch.float32, (2, source if target is None else target, source))
    mask = ops.length_mask(torch.tensor([source, 2]), source).unsqueeze(1)
    found = seeded(program, *others, mask, False)
    torch.testing.assert_close(found, seeded(module, *others, mask, False))


TRICKY = ("additive", "areas_local_p", "multi_head", "key_value")  # a kernel of our own; areas to count; a kernel of torch's; a window


@pytest.mark.parametrize("name", TRICKY)
def test_the_sizes_of_an_exported_program_are_free(name):
    exported_with_free_sizes(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MECHANISMS if name not in TRICKY])
def test_the_sizes_of_every_exported_program_are_free(name):
    exported_with_free_sizes(name)


@EVERY
def test_autocast_stays_close_and_keeps_what_a_mask_promises(name):
    mechanism, module, tensors, mask = prepared(name)
    exact = seeded(module, *tensors, mask, True)
    leaves = [x.clone().requires_grad_() for x in tensors]
    with torch.autocast("cpu", torch.bfloat16):
        context, weights = seeded(module, *leaves, mask, True)
    assert weights.masked_fill(mask if weights.dim() == 3 else mask.unsqueeze(1), 0.0).count_nonzero() == 0
    offset = 0.0 if mechanism.offset is None else module.module.get_parameter(mechanism.offset).detach().to(context.dtype)
    assert (context[2] == offset).all()
    if not mechanism.rough:
        # bfloat16 has 8 bits; scores of up to about 10 are off by up to 0.04, and so are their weights.
        torch.testing.assert_close(context.float(), exact[0], atol=0.15, rtol=0.02)
    gradients = torch.autograd.grad(context.float().sum(), [*leaves, *module.parameters()], allow_unused=True)
    for leaf, gradient in zip([*leaves, *module.parameters()], gradients, strict=True):
        assert gradient is None or (gradient.dtype == leaf.dtype and gradient.isfinite().all())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # the compiler's own
@pytest.mark.parametrize(
    "name", ["additive", "local_p", "areas", "multi_head", "multi_head_features", "key_value", "structured", "nonlocal_concat"]
)
def test_it_compiles_to_machine_code_with_the_same_result_and_gradients(name):
    _, module, tensors, mask = prepared(name)
    back = torch.linspace(-1, 1, 7)

    def trained(function):
        leaves = [x.clone().requires_grad_() for x in tensors]
        context, weights = function(*leaves, mask, True)
        loss = (context.flatten()[: len(back)] * back).sum() + context.square().sum()
        found = torch.autograd.grad(loss, [*leaves, *module.parameters()], allow_unused=True)
        return context.detach(), weights.detach(), [g for g in found if g is not None]

    torch._dynamo.reset()
    torch.testing.assert_close(trained(torch.compile(module, fullgraph=True)), trained(module), atol=1e-5, rtol=1e-4)


def test_a_mechanism_that_looks_at_its_numbers_is_found():
    class Peeking(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.sum() > 0 else x

    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(Peeking(), fullgraph=True, backend="eager")(torch.ones(B))
