"""What operations refuse: the same wrong call gets the same error, whichever way would compute it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard import attention, ops
from regard.attention import Areas, Attention, DotScore, MultiHeadAttention
from regard.errors import ConfigError, RegardError, ShapeError
from regard.ops import tensor_checks
from regard.ops.kernels import native
from regard.ops.kernels.kernel import Kernel
from regard.ops.kernels.structures import BestCall
from regard.ops.tensor_checks import Argument, Signature, check_range
from tests.ops.invalid import OPERATIONS, STEPS, VALID

WAYS = ("cpu", "torch")
needs_library = pytest.mark.skipif(native.library() is None, reason="the native library is not built")


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_wrong_call_gets_the_same_error_on_every_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, error, message = OPERATIONS[name]
    said = []
    for way in WAYS:
        if way == "cpu" and native.library() is None:
            continue
        monkeypatch.setenv("REGARD_KERNELS", way)
        for mode in (torch.enable_grad, torch.inference_mode):
            with mode(), pytest.raises(error, match=message) as caught:
                call()
            assert issubclass(error, RegardError)
            said.append(str(caught.value))
    assert len(set(said)) == 1, said


@needs_library
@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_step_of_a_model_is_refused(name: str) -> None:
    call, error, message = STEPS[name]
    with pytest.raises(error, match=message):
        call()


@needs_library
@pytest.mark.parametrize("name", VALID)
def test_the_call_that_was_made_wrong_is_right_itself(name: str) -> None:
    VALID[name]()


def test_every_operation_with_a_kernel_is_called_wrongly() -> None:
    with_kernels = {
        "residual",
        "dropout",
        "cached_attention",
        "linear_cross_entropy",
        "consistent_cross_entropy",
        "area_attention",
        "additive_scores",
        "top_log_probs",
    }
    assert {*with_kernels, "top_log_probs"} <= {name.split(",")[0] for name in OPERATIONS} <= {*ops.__all__, "recurrent layer"}


def test_a_residual_without_a_bias_has_all_its_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    x, change, weight, grad = torch.randn(3, 5), torch.randn(3, 5), torch.rand(5), torch.randn(3, 5)
    found = []
    for way in WAYS:
        monkeypatch.setenv("REGARD_KERNELS", way)
        leaves = [part.clone().requires_grad_() for part in (x, change, weight)]
        y = ops.residual(*leaves)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, grad)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_number_outside_is_named_with_its_place() -> None:
    with pytest.raises(RegardError, match=r"pick: places\[1, 0\] is 9; allowed are numbers from 0 to 3"):
        check_range("pick", "places", torch.tensor([[0, 1], [9, -1]]), 0, 3)
    check_range("pick", "places", torch.tensor([], dtype=torch.long), 0, -1)
    check_range("pick", "places", torch.tensor([9], device="meta"), 0, 3)  # nobody knows yet


def test_a_signature_names_sizes_and_what_is_missing() -> None:
    signature = Signature("f", Argument("x", "... E"), Argument("y", "... 2", "int64", optional=True))
    assert signature.check(torch.ones(5, 3), torch.ones(5, 2, dtype=torch.long))["E"] == 3
    assert signature.check(torch.ones(3), None)["E"] == 3
    for wrong in ((torch.ones(5, 3), torch.ones(4, 2, dtype=torch.long)), (torch.ones(5, 3), torch.ones(5, 3, dtype=torch.long))):
        with pytest.raises(ShapeError, match=r"f: expected x \(..., E\), y \(..., 2\) or None; found x \(5, 3\), y"):
            signature.check(*wrong)
    with pytest.raises(ShapeError, match="f: x is missing"):
        signature.check(None, None)
    with pytest.raises(ShapeError, match="f: found x on cpu and y on meta; move all tensors to one device"):
        signature.check(torch.ones(5, 3), torch.ones(5, 2, dtype=torch.long, device="meta"))


@needs_library
def test_no_address_is_taken_of_what_has_no_numbers_or_gaps() -> None:
    kernel = Kernel("best", BestCall, Argument("logits", "rows size", "float32"))
    with pytest.raises(RegardError, match="logits has no numbers in memory"):
        kernel.make(torch.ones(2, 3, device="meta"))
    with pytest.raises(ShapeError, match="logits is not contiguous"):
        kernel.make(torch.ones(3, 2).t())


def test_the_predicate_is_asked_by_every_way_to_the_library() -> None:
    from regard.ops.kernels import additive_cpu, beam_cpu, best_cpu, indexed_cpu, loss_cpu, residual_cpu

    for module in (additive_cpu, beam_cpu, best_cpu, indexed_cpu, loss_cpu, residual_cpu):
        assert "native.takes(" in inspect.getsource(module.supports)
    assert "plain(" in inspect.getsource(native.takes)
    assert tensor_checks.is_plain(torch.ones(1))


def test_shapes_are_computed_without_numbers() -> None:
    x = torch.ones(1, 2, 3, 4, device="meta")
    assert ops.area_attention(x, x, x, max_area=2).shape == x.shape
    assert ops.redundancy_penalty(x[0]).shape == ()
    loss = ops.linear_cross_entropy(x[0, 0], torch.ones(5, 4, device="meta"), None, torch.zeros(3, dtype=torch.long, device="meta"))
    assert loss.loss.is_meta
    heads = MultiHeadAttention(8, 2, areas=Areas(2)).to("meta")
    sequence = torch.ones(1, 3, 8, device="meta")
    assert heads(sequence, sequence, sequence).context.shape == sequence.shape


KEYS = torch.randn(1, 1, 3, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.linear([[1.0]], KEYS), "linear: x must be a tensor, found list"),
        (lambda: ops.dot_scores(KEYS, [[1.0]]), "dot_scores: key must be a tensor, found list"),
        (lambda: ops.cosine_scores(1.0, KEYS, 1.0), "cosine_scores: query must be a tensor, found float"),
        (lambda: ops.additive_scores(KEYS, KEYS, (1.0,)), "additive_scores: vector must be a tensor, found tuple"),
        (lambda: ops.area_attention(KEYS, KEYS, KEYS.tolist(), max_area=2), "area_attention: value must be a tensor, found list"),
        (lambda: ops.area_attention(KEYS, KEYS, KEYS, max_area=2, mask=[True]), "area_attention: mask must be a tensor, found list"),
        (lambda: ops.attention(KEYS.tolist(), KEYS, KEYS), "attention: query must be a tensor, found list"),
        (
            lambda: ops.linear_cross_entropy(KEYS[0, 0], KEYS[0, 0], None, [0, 1, 2]),
            "linear_cross_entropy: target must be a tensor, found list",
        ),
        (lambda: ops.length_mask([1, 2], 3), "length_mask: lengths must be a tensor, found list"),
        (lambda: ops.masked_softmax([1.0, 2.0]), "masked_softmax: scores must be a tensor, found list"),
        (lambda: Attention(DotScore())(KEYS[0].tolist(), KEYS[0], KEYS[0]), r"Attention: query must be a tensor \(B, T, Dq\), found list"),
        (
            lambda: MultiHeadAttention(5, 1)(KEYS[0], KEYS[0].tolist(), KEYS[0]),
            r"MultiHeadAttention: key must be a tensor \(B, S, 5\), found list",
        ),
    ],
)
def test_what_is_no_tensor_is_named_with_its_type(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


def takes(function: Any) -> dict[str, inspect.Parameter]:
    return {name: each for name, each in inspect.signature(function).parameters.items() if str(each.annotation).startswith("Tensor")}


PUBLIC = [getattr(module, name) for module in (ops, attention) for name in module.__all__]
# Only the first tensor of these counts, or none is read.
SIZES_ONLY = ("area_path", "native_takes_items")


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        pytest.param(function, name, id=f"{function.__name__}, {name}")
        for function in PUBLIC
        if callable(function) and not inspect.isclass(function) and function.__name__ not in SIZES_ONLY
        for name in takes(function)
    ],
)
def test_a_list_in_place_of_a_tensor_is_an_error_of_ours(function: Callable[..., object], wrong: str) -> None:
    given: dict[str, Any] = {name: 1 for name, each in inspect.signature(function).parameters.items() if each.default is each.empty}
    given |= {name: torch.ones(1, 1, 2, 2) for name, each in takes(function).items() if each.default is each.empty}
    with pytest.raises(RegardError):
        function(**{**given, wrong: [[1.0]]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ops.causal_mask(-1, 3), "causal_mask: target_size must be a whole number of at least 0, found -1"),
        (lambda: ops.causal_mask(2, 2.5), "causal_mask: source_size must be a whole number of at least 0, found 2.5"),
        (lambda: ops.length_mask(torch.tensor([3]), -1), "length_mask: size must be a whole number of at least 0, found -1"),
        (lambda: ops.window_mask(torch.tensor([1.0]), 3, -1), "window_mask: radius must be a whole number of at least 0, found -1"),
        (lambda: ops.gaussian_window(torch.tensor([1.0]), 3, 0), "gaussian_window: radius must be a whole number of at least 1, found 0"),
        (lambda: ops.top_tokens(torch.zeros(1, 1, 3), 2.5), "top_tokens: count must be a whole number of at least 1, found 2.5"),
    ],
)
def test_a_size_that_is_none_is_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


@pytest.mark.parametrize("weigh", [ops.masked_softmax, ops.sparsemax, ops.entmax15])
@pytest.mark.parametrize("scores", [torch.tensor([[1, 2]]), torch.tensor(1.0), torch.tensor([True])])
def test_scores_without_an_axis_or_a_floating_dtype_are_refused(weigh: Callable[..., object], scores: torch.Tensor) -> None:
    with pytest.raises(ShapeError, match="scores must be floating and have an axis, found"):
        weigh(scores)
