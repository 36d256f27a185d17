"""Every public operation under what traces it, transforms it or only pretends: right numbers or an error, never uninitialised memory.

`make_fx`, `torch.jit.trace`, `torch.export`, `torch.compile`, `FakeTensorMode`, `torch.vmap`, forward mode, batched gradients, negative
views and tensors of a class of one's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from regard import ops
from regard.errors import ConfigError
from regard.ops.kernels.kernel import solid
from regard.ops.tensor_checks import is_ordinary, is_plain
from tests.ops.test_gradients import CASES, NOT_DIFFERENTIABLE, H, T

PLACES, LENGTHS = torch.tensor([[4, 0, 1], [2, 2, 3]]), torch.tensor([3, 2])
HEADS = ((1, H, T, 16), (1, H, 6, 16), (1, H, 6, 5))


def numbers(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(7)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


def learned(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor) -> Any:
    return ops.area_attention(q, k, v, max_area=2, key_mode="features", key_weights=ops.AreaWeights(*weights))


def in_float(case: tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    torch.manual_seed(5)
    return case[0], tuple(leaf.float() for leaf in case[1]())


# Every differentiable operation in float32, where the kernels are, and what takes none of those gradients.
EVERY: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    **{name: in_float(case) for name, case in CASES.items()},
    "area_attention, learned keys": (learned, numbers(*HEADS, (1, 8), (2, 8), (16, 48), (16, 16))),
    "area_mask": (lambda x: ops.area_mask(x > 0, 2), numbers((3, 5))),
    "block_mask": (lambda x: ops.block_mask((x > 0).long(), (x > 1).long()), numbers((3, 5))),
    "dropout": (lambda x: ops.dropout(x, 0.0), numbers((3, 5))),
    "greedy_positions": (ops.greedy_positions, (torch.rand(3, 5),)),
    "cached_attention, areas": (
        lambda q, k, v: ops.cached_attention(q, k, v, PLACES, lengths=LENGTHS, max_area=2, need_weights=True),
        numbers((2, T, 1, 3), (5, 1, 3), (5, 1, 3)),
    ),
    "joint_linear": (lambda x: ops.joint_linear(x, [JOINT, JOINT]), numbers((3, 5))),
    "length_mask": (lambda x: ops.length_mask((x > 0).sum(-1), 5), numbers((3, 5))),
    "linear_cross_entropy, no bias": (
        lambda h, w: ops.linear_cross_entropy(h, w, None, torch.tensor([0, 4, 1])).loss,
        numbers((3, 5), (7, 5)),
    ),
    "residual, no bias": (ops.residual, numbers((3, 5), (3, 5), (5,))),
    "residual, no norm": (ops.residual, numbers((3, 5), (3, 5))),
    "top_log_probs": (lambda x: ops.top_log_probs(x, 2), numbers((3, 70))),
    "top_tokens": (lambda x: ops.top_tokens(-x.abs(), 2), numbers((3, 70))),
    "window_mask": (lambda x: ops.window_mask(x, 5, 2), numbers((3, 5))),
}
JOINT = ops.Linear(5, 2).requires_grad_(False)
# Without tensors to trace, or nothing of their own to compute, or random.
LEFT = {
    *(name for name, why in NOT_DIFFERENTIABLE.items() if why in ("a record", "the name of a path", "whole numbers")),
    *(
        "Dropout",
        "Linear",
        "RunningTotals",
        "LazyLogits",
        "OutputShortlist",
        "causal_mask",
        "packed_weights",
        "cached_by_owner",
        "recurrent_steps",
        "sample_positions",
        "lazy_logits",
    ),
}


def flat(found: Any) -> list[Tensor]:
    return [found] if isinstance(found, Tensor) else [part for part in found if isinstance(part, Tensor)]


def same(found: Any, expected: Any) -> None:
    found, expected = flat(found), flat(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def of_tensors(function: Callable[..., Any]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda *leaves: tuple(flat(function(*leaves)))


def other(leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Other numbers of the same shapes: a program must not have kept those that it was traced with."""
    return tuple(leaf.flip(0) * 0.5 + 0.1 for leaf in leaves)


def computed(function: Callable[..., Any], leaves: tuple[Tensor, ...]) -> list[Tensor]:
    return flat(function(*leaves))


def test_every_public_operation_is_here() -> None:
    assert {name.split(",")[0] for name in EVERY} | LEFT == set(ops.__all__)
    assert {name.split(",")[0] for name in EVERY}.isdisjoint(LEFT)


@pytest.mark.parametrize("mode", ["real", pytest.param("symbolic", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", EVERY)
def test_make_fx_writes_down_what_is_computed(name: str, mode: str) -> None:
    function, leaves = EVERY[name]
    expected = computed(function, leaves)
    program = make_fx(of_tensors(function), tracing_mode=mode, _allow_non_fake_inputs=True)(*leaves)
    same(program(*leaves), expected)
    same(program(*other(leaves)), computed(function, other(leaves)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EVERY)
def test_jit_trace_writes_down_what_is_computed(name: str) -> None:
    function, leaves = EVERY[name]
    computed(function, leaves)  # draws the masks: drawn in the trace, they would be drawn anew by each run of the program
    program = torch.jit.trace(of_tensors(function), leaves, check_trace=False)
    same(program(*other(leaves)), computed(function, other(leaves)))


class Module(torch.nn.Module):
    """An operation as a module, which is what `torch.export` takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = of_tensors(function)

    def forward(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        return self.function(*leaves)


KERNELS = [name for name in EVERY if name.split(",")[0] in ("residual", "linear_cross_entropy", "area_attention", "additive_scores")]
KERNELS += ["top_log_probs", "cached_attention", "linear", "gru_gates"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in KERNELS else pytest.mark.slow) for name in EVERY])
def test_an_exported_program_computes_the_same(name: str) -> None:
    function, leaves = EVERY[name]
    computed(function, leaves)
    program = torch.export.export(Module(function), leaves, strict=False).module()
    same(program(*other(leaves)), computed(function, other(leaves)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_compiled_operation_computes_the_same(name: str) -> None:
    function, leaves = EVERY[name]
    expected = computed(function, leaves)
    torch.compiler.reset()
    same(torch.compile(of_tensors(function), backend="aot_eager")(*leaves), expected)


@pytest.mark.parametrize("name", EVERY)
def test_fake_tensors_have_the_shapes_of_results(name: str) -> None:
    function, leaves = EVERY[name]
    expected = computed(function, leaves)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        found = flat(function(*(mode.from_tensor(leaf) for leaf in leaves)))
    assert all(isinstance(part, FakeTensor) for part in found)
    assert [(part.shape, part.dtype) for part in found] == [(part.shape, part.dtype) for part in expected]


@pytest.mark.parametrize("name", EVERY)
def test_vmap_is_a_loop(name: str) -> None:
    function, leaves = EVERY[name]
    pairs = [torch.stack([one, two]) for one, two in zip(leaves, other(leaves), strict=True)]
    loop = [of_tensors(function)(*leaves), of_tensors(function)(*other(leaves))]
    same(torch.vmap(of_tensors(function))(*pairs), [torch.stack(parts) for parts in zip(*loop, strict=True)])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in EVERY if name in CASES and "recurrent" not in name])
def test_functional_gradients_are_those_of_autograd(name: str) -> None:
    function, leaves = EVERY[name]

    def total(*parts: Tensor) -> Tensor:
        return sum((part.square().sum() for part in flat(function(*parts))), torch.zeros(()))

    expected = torch.autograd.grad(total(*(asked := [leaf.clone().requires_grad_() for leaf in leaves])), asked)
    same(torch.func.grad(total, argnums=tuple(range(len(leaves))))(*leaves), expected)
    _, along = torch.func.jvp(total, leaves, tuple(torch.ones_like(leaf) for leaf in leaves))
    torch.testing.assert_close(along, sum((part.sum() for part in expected), torch.zeros(())), rtol=1e-3, atol=1e-3, check_dtype=False)


@pytest.mark.parametrize("name", EVERY)
def test_a_negative_view_keeps_its_sign(name: str) -> None:
    function, leaves = EVERY[name]
    views = tuple(torch._neg_view(-leaf) for leaf in leaves)
    assert all(view.is_neg() and view.is_contiguous() for view in views)
    same(function(*views), computed(function, leaves))


class Mine(Tensor):
    """A tensor of a class of one's own."""


@pytest.mark.parametrize("name", EVERY)
def test_a_class_of_ones_own_is_computed(name: str) -> None:
    function, leaves = EVERY[name]
    found = flat(function(*(leaf.as_subclass(Mine) for leaf in leaves)))
    same([part.as_subclass(Tensor) for part in found], computed(function, leaves))


class Watch(TorchDispatchMode):
    """Sees every operation, and lets it be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", EVERY)
def test_a_mode_that_watches_changes_nothing(name: str) -> None:
    function, leaves = EVERY[name]
    expected = computed(function, leaves)
    with Watch():
        same(function(*leaves), expected)


@pytest.mark.parametrize("name", ["area_attention", "additive_scores", "residual", "area_attention, learned keys", "linear", "gru_gates"])
def test_batched_gradients_are_right_or_refused(name: str) -> None:
    function, leaves = EVERY[name]
    asked = [leaf.clone().requires_grad_() for leaf in leaves]
    (out,) = flat(function(*asked))
    grads = torch.stack([torch.ones_like(out), torch.arange(float(out.numel())).view_as(out)])
    expected = [
        torch.stack(parts) for parts in zip(*(torch.autograd.grad(out, asked, one, retain_graph=True) for one in grads), strict=True)
    ]
    try:
        found = torch.autograd.grad(out, asked, grads, is_grads_batched=True)
    except (ConfigError, RuntimeError) as error:
        found, said = None, str(error)
    if found is None:
        assert "vmap" in said or "Batching rule not implemented" in said
    else:
        same(found, expected)


@pytest.mark.parametrize("name", ["area_attention", "additive_scores", "residual", "residual, no norm", "area_attention, learned keys"])
def test_a_gradient_that_is_a_negative_view_keeps_its_sign(name: str) -> None:
    function, leaves = EVERY[name]
    asked = [leaf.clone().requires_grad_() for leaf in leaves]
    (out,) = flat(function(*asked))
    expected = torch.autograd.grad(out, asked, torch.ones_like(out), retain_graph=True)
    same(torch.autograd.grad(out, asked, torch._neg_view(-torch.ones_like(out))), expected)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_gradient_of_dropout_may_be_a_negative_view_or_a_batch(create_graph: bool) -> None:
    x = torch.ones(4, 7, requires_grad=True)
    out = ops.dropout(x, 0.5)
    assert 0 < out.sum() < 56
    found = torch.autograd.grad(out, x, torch._neg_view(torch.ones(4, 7)), retain_graph=True, create_graph=create_graph)[0]
    assert torch.equal(found, -out)
    many = torch.autograd.grad(out, x, torch.ones(3, 4, 7), is_grads_batched=True, create_graph=create_graph)[0]
    assert torch.equal(many, out.expand(3, 4, 7))
    second = torch.autograd.functional.hessian(lambda x: ops.dropout(x**3, 0.5).sum(), torch.ones(5), vectorize=True)
    assert set(second.diagonal().tolist()) <= {0.0, 12.0}


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:.*quantize")
def test_what_is_plain() -> None:
    x = torch.ones(2, 3)
    assert is_plain(x, None, x.t(), torch.nn.Parameter(x), x.double(), x > 0)
    with torch.inference_mode():
        assert is_plain(torch.ones(2))
    odd = [torch._neg_view(x), x.to_sparse(), x.as_subclass(Mine), torch.ones(2, dtype=torch.cfloat).conj(), x.to_mkldnn()]
    odd += [torch.nested.nested_tensor([x, x]), torch._efficientzerotensor((2, 3)), torch._to_functional_tensor(x)]
    odd.append(torch.quantize_per_tensor(x, 0.1, 0, torch.quint8))
    assert not any(is_ordinary(part) for part in odd)
    with Watch():
        assert not is_plain(x)
        assert is_ordinary(x)
    asked: list[bool] = []

    def ask(part: Tensor) -> Tensor:
        asked.append(is_plain(part))
        return part

    torch.vmap(ask)(x)
    assert asked == [False]
    with torch.autograd.forward_ad.dual_level():
        assert not is_plain(x)
    assert torch.equal(solid(torch._neg_view(x)), -x)


def test_a_default_device_does_not_leave_kernels_without_memory() -> None:
    x = torch.randn(3, 70)
    expected = ops.top_log_probs(x, 2)
    with torch.device("meta"):
        found = ops.top_log_probs(x, 2)
        ops.residual(x.requires_grad_(), x, dropout=0.5)
    assert torch.equal(found.tokens, expected.tokens)
