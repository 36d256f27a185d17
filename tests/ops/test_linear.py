"""The linear map, the products of recurrent loops, the gates and the fused loss against torch's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

from regard import ops
from regard.errors import ConfigError, ShapeError


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(17)


def gradients(output, *inputs):
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(3), dtype=output.dtype)
    return torch.autograd.grad((output * weights).sum(), inputs)


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5), (0, 5), (1, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_and_its_gradients_equal_torch(shape, bias):
    x, weight = torch.randn(shape, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    b = torch.randn(11, requires_grad=True) if bias else None
    inputs = [x, weight] + ([b] if b is not None else [])
    found, expected = ops.linear(x, weight, b), F.linear(x, weight, b)
    torch.testing.assert_close(found, expected)
    for one, other in zip(gradients(found, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(one, other)


def test_linear_takes_expanded_and_strided_inputs():
    x = torch.randn(5, 7).t()
    weight = torch.randn(22, 5)[::2]
    torch.testing.assert_close(ops.linear(x, weight), F.linear(x, weight))
    torch.testing.assert_close(ops.linear(torch.randn(1, 5).expand(3, 5), weight).shape, torch.Size([3, 11]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_go_through_torch(dtype):
    x, weight = torch.randn(3, 5).to(dtype), torch.randn(7, 5).to(dtype)
    torch.testing.assert_close(ops.linear(x, weight), F.linear(x, weight))


@pytest.mark.parametrize("amp", [False, True])
def test_a_recurrent_loop_gives_the_gradients_of_separate_products(amp):
    x = torch.randn(3, 5, requires_grad=True)
    weight, bias = torch.randn(5, 5).div(3).requires_grad_(), torch.randn(5, requires_grad=True)

    def loop():
        h = x
        with torch.autocast("cpu", torch.bfloat16, enabled=amp):
            for _ in range(4):
                h = torch.tanh(ops.linear(h, weight, bias))
        return h.float()

    expected = gradients(loop(), x, weight, bias)
    with ops.recurrent_steps():
        output = loop()
    found = gradients(output, x, weight, bias)
    for one, other in zip(found, expected, strict=True):
        tolerance = {"rtol": 0.05, "atol": 0.05} if amp else {}  # bfloat16 keeps 8 bits, through four steps
        torch.testing.assert_close(one, other, **tolerance)


def test_a_recurrent_loop_accumulates_over_backward_passes():
    weight = torch.eye(3, requires_grad=True)
    for _ in range(2):
        with ops.recurrent_steps():
            total = ops.linear(torch.ones(2, 3), weight) + ops.linear(torch.ones(2, 3), weight)
        total.sum().backward()
    assert weight.grad is not None
    assert (weight.grad == 8).all()


@pytest.mark.parametrize("block", [ops.recurrent_steps, ops.packed_weights])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_a_block_compiles_into_one_graph_and_asks_for_nothing(block):
    def steps(x, weight):
        with block():
            return ops.linear(torch.tanh(ops.linear(x, weight)), weight)

    x, weight = torch.randn(2, 3), torch.randn(3, 3, requires_grad=True)
    compiled = torch.compile(steps, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, weight), steps(x, weight))


@pytest.mark.parametrize("choice", ["blas", "onednn"])
def test_the_library_can_be_forced(choice):
    code = "from regard.ops import matmul_path; print(matmul_path()[0])"
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "REGARD_MATMUL": choice}, capture_output=True, text=True, check=False
    )
    if choice == "onednn" and not torch.backends.mkldnn.is_available():
        assert "no oneDNN" in result.stderr
    else:
        assert result.stdout.strip() == choice


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gru_gates_and_their_gradients_equal_the_formula(dtype):
    projected, recurrent, hidden = (torch.randn(7, n, dtype=dtype, requires_grad=True) for n in (15, 15, 5))
    bias = torch.randn(5, dtype=dtype, requires_grad=True)
    r = torch.sigmoid(projected[:, :5] + recurrent[:, :5])
    z = torch.sigmoid(projected[:, 5:10] + recurrent[:, 5:10])
    n = torch.tanh(projected[:, 10:] + r * (recurrent[:, 10:] + bias))
    expected = (1 - z) * n + z * hidden
    found = ops.gru_gates(projected, recurrent, bias, hidden)
    torch.testing.assert_close(found, expected)
    inputs = (projected, recurrent, bias, hidden)
    for one, other in zip(gradients(found, *inputs), gradients(expected, *inputs), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [3, 1100])  # 1100: more than two chunks
def test_the_fused_loss_and_its_gradients_equal_torch(smoothing, bias, rows):
    hidden, weight = torch.randn(rows, 5, requires_grad=True), torch.randn(13, 5, requires_grad=True)
    b = torch.randn(13, requires_grad=True) if bias else None
    target = torch.randint(13, (rows,))
    inputs = [hidden, weight] + ([b] if b is not None else [])
    out = ops.linear_cross_entropy(hidden, weight, b, target, label_smoothing=smoothing)
    logits = F.linear(hidden, weight, b)
    expected = F.cross_entropy(logits, target, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(out.loss, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(out.nll, F.cross_entropy(logits, target, reduction="sum").detach(), rtol=1e-5, atol=1e-4)
    assert out.correct == (logits.argmax(1) == target).sum()
    assert out.tokens == rows
    found = torch.autograd.grad(out.loss / 3, inputs)
    for one, other in zip(found, torch.autograd.grad(expected / 3, inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_fused_loss_in_half_precision_errs_no_more_than_plain_autocast(dtype):
    hidden, weight = torch.randn(101, 16), torch.randn(53, 16)
    target = torch.randint(53, (101,))
    exact_in = [hidden.double().requires_grad_(), weight.double().requires_grad_()]
    exact = torch.autograd.grad(F.cross_entropy(F.linear(*exact_in), target, reduction="sum"), exact_in)

    def errors(function):
        inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        with torch.autocast("cpu", dtype):
            loss = function(*inputs)
        return [(g.double() - e).abs().max().item() for g, e in zip(torch.autograd.grad(loss, inputs), exact, strict=True)]

    plain = errors(lambda h, w: F.cross_entropy(F.linear(h, w).float(), target, reduction="sum"))
    fused = errors(lambda h, w: ops.linear_cross_entropy(h, w, None, target).loss)
    for one, other in zip(fused, plain, strict=True):
        assert one <= 3 * other


def test_the_fused_loss_of_no_rows_is_zero_with_zero_gradients():
    hidden, weight = torch.randn(0, 5, requires_grad=True), torch.randn(13, 5, requires_grad=True)
    out = ops.linear_cross_entropy(hidden, weight, None, torch.zeros(0, dtype=torch.long), label_smoothing=0.1)
    out.loss.backward()
    assert out.loss == 0
    assert weight.grad is not None
    assert (weight.grad == 0).all()


@pytest.mark.parametrize("block", [contextlib.nullcontext, ops.packed_weights, ops.recurrent_steps])
def test_what_has_no_numbers_on_the_cpu_is_refused(block) -> None:
    x, weight, bias = torch.randn(3, 5), torch.nn.Parameter(torch.randn(7, 5)), torch.randn(7)
    with torch.set_grad_enabled(block is ops.recurrent_steps), block():
        for meta in ((x, weight.to("meta"), None), (x.to("meta"), weight, None)):
            with pytest.raises(ConfigError, match=r"linear: x is on .*, weight on .*; expected one device"):
                ops.linear(*meta)
        with pytest.raises(ConfigError, match="bias on meta; expected one device"):
            ops.linear(x, weight, bias.to("meta"))
    assert ops.linear(x.to("meta"), weight.to("meta")).shape == (3, 7)


@pytest.mark.parametrize("block", [contextlib.nullcontext, ops.packed_weights, ops.recurrent_steps])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_types_that_differ_are_refused_everywhere(block, dtype) -> None:
    x, weight, bias = torch.randn(3, 5), torch.nn.Parameter(torch.randn(7, 5)), torch.randn(7)
    with torch.set_grad_enabled(block is ops.recurrent_steps), block():
        for wrong in ((x, weight, bias.to(dtype)), *([(x, torch.nn.Parameter(weight.to(dtype)), bias)] if dtype.is_floating_point else [])):
            with pytest.raises(ShapeError, match=r"linear: x is torch.float32, weight torch.*, bias torch.*; expected one dtype"):
                ops.linear(*wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_that_make_no_one_product_are_applied_one_by_one(dtype) -> None:
    x = torch.randn(3, 5)
    layers = [ops.Linear(5, 7), ops.Linear(5, 11, bias=False), ops.Linear(5, 2)]
    layers[2].weight, layers[2].bias = torch.nn.Parameter(torch.empty(0, 5)), torch.nn.Parameter(torch.empty(0))
    with torch.no_grad(), ops.packed_weights(dtype):
        assert ops.joint_linear(x, []) == ()
        for found, layer in zip(ops.joint_linear(x, layers), layers, strict=True):
            torch.testing.assert_close(found, F.linear(x, layer.weight, layer.bias), rtol=2e-2, atol=2e-2)  # bfloat16 has 8 bits
        mixed = [ops.Linear(5, 7), ops.Linear(5, 7).double()]
        with pytest.raises(ShapeError, match="expected one dtype"):
            ops.joint_linear(x, mixed)


def test_packed_weights_give_the_same_products_and_are_met_once() -> None:
    layer = ops.Linear(67, 131)
    x = torch.randn(5, 7, 67)
    with torch.no_grad(), ops.packed_weights():
        packed = layer(x), layer(x[:1, :1])
    with torch.no_grad():
        torch.testing.assert_close(packed, (layer(x), layer(x[:1, :1])), rtol=1e-5, atol=1e-5)
    with ops.packed_weights():  # where a gradient is asked for, nothing is packed
        layer(x).sum().backward()
    assert layer.weight.grad is not None


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_products_in_bfloat16_are_those_of_rounded_inputs_and_weights(has_bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    path, reason = ops.bfloat16_path()
    if has_bfloat16 and path == "float32":
        pytest.skip(reason)
    monkeypatch.setattr(
        sys.modules["regard.ops.linear"], "bfloat16_path", lambda: ("onednn" if has_bfloat16 else "float32", "the test says so")
    )
    layer = ops.Linear(67, 131)
    for rows in (1, 3, 16, 17, 33):
        x = torch.randn(rows, 67)
        with torch.no_grad(), ops.packed_weights(torch.bfloat16):
            found = layer(x)
        rounded = [part.detach().bfloat16().double() for part in (x, layer.weight, layer.bias)]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), F.linear(*rounded), rtol=2**-7, atol=2**-7)
        assert not torch.equal(found, F.linear(x, layer.weight, layer.bias))


def test_a_slice_of_columns_takes_no_path_that_is_a_hundred_times_slower():
    x, weight = torch.randn(320, 256), torch.randn(256, 512)

    def best(part):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            ops.linear(x, part)
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(weight[:, 256:]) < 20 * best(weight[:, :256].contiguous())


def test_a_pass_for_other_gradients_leaves_nothing_to_a_weight_s():
    x, weight, bias = torch.randn(5, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=True)

    def loss() -> torch.Tensor:
        with ops.recurrent_steps():
            return ops.linear(torch.tanh(ops.linear(x, weight, bias)), weight, bias).square().sum()

    (expected,) = torch.autograd.grad(loss(), weight)
    total = loss()
    for others in (x, bias, (x, bias)):
        torch.autograd.grad(total, others, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(total, weight, retain_graph=True)[0], expected)
    total.backward(inputs=[x], retain_graph=True)
    total.backward(retain_graph=True)
    total.backward()
    torch.testing.assert_close(weight.grad, 2 * expected)


def recurrent(x: torch.Tensor, weight: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """Return the products of a loop, each of the one before."""
    found = []
    for _ in range(steps):
        found.append(ops.linear(x, weight))
        x = torch.tanh(found[-1])
    return found


@pytest.mark.parametrize("other", ["x", "weight"])
def test_a_pass_within_a_pass_takes_nothing_from_a_weight_s_gradient(other: str) -> None:
    leaves = {"x": torch.randn(2, 3, requires_grad=True), "weight": torch.randn(3, 3, requires_grad=True)}
    results = []
    for context in (contextlib.nullcontext(), ops.recurrent_steps()):
        with context:
            products = recurrent(leaves["x"], leaves["weight"], 3)
        inner = []

        def look(_: torch.Tensor, products: list[torch.Tensor] = products, inner: list[torch.Tensor] = inner) -> None:
            inner.extend(torch.autograd.grad(products[0], leaves[other], torch.ones_like(products[0]), retain_graph=True))

        products[1].register_hook(look)
        results.append([*torch.autograd.grad(products[2].sum(), [*leaves.values()], retain_graph=True), *inner])
    assert len(results[0]) == 3
    torch.testing.assert_close(*results)


def test_threads_may_differentiate_the_same_loop() -> None:
    x, weight = torch.randn(2, 3), torch.nn.Parameter(torch.randn(3, 3) / 2)
    with ops.recurrent_steps():
        total = recurrent(x, weight, 200)[-1].sum()

    def gradient(_: int = 0) -> torch.Tensor:
        return torch.autograd.grad(total, weight, retain_graph=True)[0]

    expected = gradient()
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(gradient, range(8)):
            torch.testing.assert_close(found, expected)


def nodes(node: torch.autograd.graph.Node | None) -> Iterator[torch.autograd.graph.Node]:
    """Yield a node and what it leads to."""
    if node is not None:
        yield node
        for following, _ in node.next_functions:
            yield from nodes(following)


def test_a_pass_that_a_weight_has_no_part_in_leaves_nothing_behind() -> None:
    x, weight = torch.randn(2, 3, requires_grad=True), torch.nn.Parameter(torch.randn(3, 3))
    with ops.recurrent_steps():
        total = recurrent(x, weight, 3)[-1].sum()
    tape = next(node for node in nodes(total.grad_fn) if hasattr(node, "tape")).tape
    torch.autograd.grad(total, x, retain_graph=True)
    assert tape.take() == [] == [*tape._passes]


@pytest.mark.parametrize("loop", [contextlib.nullcontext, ops.recurrent_steps])
@pytest.mark.parametrize("library", ["blas", "onednn"])
def test_linear_has_second_derivatives_by_either_library(loop, library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["regard.ops.linear"], "matmul_path", lambda: (library, ""))
    leaves = [torch.randn(4, 3), torch.randn(3, 3), torch.randn(3)]

    def second(dtype: torch.dtype, plain: bool) -> list[torch.Tensor]:
        x, weight, bias = (leaf.to(dtype).requires_grad_() for leaf in leaves)
        linear = F.linear if plain else ops.linear
        with loop():
            total = linear(torch.tanh(linear(x, weight, bias)), weight, bias).square().sum()
        first = torch.autograd.grad(total, (x, weight, bias), create_graph=True)
        return list(torch.autograd.grad(sum(part.square().sum() for part in first), (x, weight, bias)))

    for found, expected in zip(second(torch.float32, plain=False), second(torch.float64, plain=True), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
