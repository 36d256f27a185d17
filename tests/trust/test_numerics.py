"""Every operation, kernel and mechanism over thousands of drawn cases: its error beside that of the plain computation, and what masks hide.

The rule: the largest error against float64 is at most twice that of the plain computation in the same type (thrice for a gradient), and a
few units in the last place. Where it is broken at once, the worst of eight neighbours of the case is held to it, ours and plain alike: of
two numbers that nearly tie, either may win by luck.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from regard import ops
from regard.config import AreaConfig, DecodingConfig
from regard.ops.kernels import native
from regard.tasks import Translation, Translator
from tests.attention.mechanisms import MECHANISMS, B, Mechanism, Uniform, build, inputs
from tests.attention.test_contract import Run, assert_same, over_heads, run
from tests.decoding import test_selection
from tests.models import test_rnn_native_step, test_transformer_native_step
from tests.ops import test_area_attention, test_area_features
from tests.ops.error_rule import FLOOR
from tests.ops.test_gradients import NOT_DIFFERENTIABLE
from tests.tasks.tiny import FAMILIES, TEXTS, translator
from tests.trust.conftest import FULL, Check
from tests.trust.operations import OPERATIONS, POISON, Call, Draw, inside

Checks = Callable[..., Check]
LONG = pytest.mark.timeout(1500 if FULL else 120)
needs_library = pytest.mark.skipif(native.library() is None, reason="not run: the native library is not built")

# Public names that are not in the table of operations, each with its reason.
ELSEWHERE = {
    **{name: why for name, why in NOT_DIFFERENTIABLE.items() if why in ("a record", "the name of a path", "whole numbers")},
    **dict.fromkeys(("Linear", "joint_linear", "cached_by_owner"), "in the cases of packed_weights"),
    "Dropout": "a module around dropout",
    "recurrent_steps": "in the cases of linear",
    **dict.fromkeys(("RunningTotals", "LazyLogits"), "in the cases of lazy_logits"),
    **dict.fromkeys(("area_mask", "block_mask", "causal_mask", "length_mask", "window_mask"), "whole answers, compared below"),
    **dict.fromkeys(("greedy_positions", "sample_positions", "top_tokens"), "whole answers, compared below"),
    "area_attention": "a kernel, below",
    "dropout": "a draw; tests/ops/test_residual.py",
    "OutputShortlist": "rows of an output layer; tests/tasks/test_shortlist.py",
    **dict.fromkeys(("copy_log_probs", "copy_loss", "coverage_loss"), "beside loops in tests/ops/test_copying.py"),
    **dict.fromkeys(("sparsemax", "entmax15", "normalize"), "beside a bisection, in each precision, in tests/ops/test_sparsemax.py"),
    "link_loss": "beside loops in tests/ops/test_link_loss.py",
    "ngram_parts": "copies only; tests/attention/test_ngram.py",
}


def drawing(count: int) -> settings:
    """Return settings that draw so many cases, the same every time."""
    every = cast("list[Any]", list(HealthCheck))
    return settings(
        max_examples=count, deadline=None, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=every
    )


def draw_cases(check: Check, one: Callable[[st.DataObject], tuple[str, str | None]]) -> None:
    """Draw as many cases as a check wants; `one` makes one and returns its name and what is wrong."""

    @drawing(check.wanted)
    @given(st.data())
    def every(data: st.DataObject) -> None:
        name, wrong = one(data)
        check.case(name, wrong=wrong)

    every()


# The error rule.


def outputs(found: Any) -> list[Tensor]:
    """Return the tensors of what a call gave."""
    parts = [found] if isinstance(found, Tensor) else list(found)
    return [part for part in parts if part is not None]


def results(function: Callable[..., Any], leaves: Sequence[Tensor], *, values: bool) -> list[Tensor]:
    """Return outputs and the gradients of the leaves, for a fixed gradient of the outputs."""
    if values:
        with torch.no_grad():
            return outputs(function(*leaves))
    leaves = [x.detach().requires_grad_() for x in leaves]
    found = outputs(function(*leaves))
    moving = [x for x in found if x.requires_grad]  # the deviation of single items does not
    backs = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view_as(x) for x in moving]
    gradients = torch.autograd.grad(moving, leaves, backs, allow_unused=True)
    return [*(x.detach() for x in found), *(torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients, strict=True))]


def distance(found: Tensor, exact: Tensor) -> float:
    """Return the largest error; inf where one of them is no finite number and the other is another."""
    found = found.double()
    if found.shape != exact.shape:
        return torch.inf
    same = (found == exact) | (found.isnan() & exact.isnan())
    return float((found - exact).abs().masked_fill(same, 0.0).nan_to_num(nan=torch.inf).max()) if exact.numel() else 0.0


def errors(call: Call, scale: float, dtype: torch.dtype, arrange: Callable[[int, Tensor], Tensor]) -> list[tuple[float, float, float]]:
    """Return of every output and gradient our error, the plain computation's, and what is mere rounding."""
    leaves = [(leaf * scale).to(dtype) for leaf in call.leaves]
    exact = results(call.plain, [leaf.double() for leaf in leaves], values=call.values)
    plain = results(call.plain, leaves, values=call.values)
    ours = results(call.ours, [arrange(number, leaf) for number, leaf in enumerate(leaves)], values=call.values)
    if not len(ours) == len(plain) == len(exact):
        return [(torch.inf, 0.0, 0.0)]
    found = []
    for mine, usual, right in zip(ours, plain, exact, strict=True):
        finite = right.masked_fill(~right.isfinite(), 0.0)
        room = FLOOR * torch.finfo(dtype).eps * max(1.0, call.unit, float(finite.abs().max()) if finite.numel() else 0.0)
        found.append((distance(mine, right), distance(usual, right), room))
    return found


def broken(found: list[tuple[float, float, float]], count: int) -> str | None:
    """Say what breaks the rule; the first `count` are outputs, the rest gradients."""
    for number, (mine, plain, room) in enumerate(found):
        # An error of the plain computation that is not finite allows no other.
        if not mine <= (2 if number < count else 3) * min(plain, 1e300) + room:
            return f"{'output' if number < count else 'gradient'} {number}: {mine:.3g}, plain {plain:.3g}, rounding {room:.3g}"
    return None


def obeys(call: Call, dtype: torch.dtype, arrange: Callable[[int, Tensor], Tensor]) -> str | None:
    """Say what breaks the rule in a case and in the worst of its neighbours; None: nothing."""
    found = errors(call, 1.0, dtype, arrange)
    count = len(found) - (0 if call.values else len(call.leaves))
    if broken(found, count) is None:
        return None
    near = [errors(call, 1 + n / 64, dtype, arrange) for n in range(1, 9)]
    worst = [(max(m for m, _, _ in part), max(p for _, p, _ in part), max(r for _, _, r in part)) for part in zip(*near, strict=True)]
    return broken(worst, count)


@LONG
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_obeys_the_error_rule(check: Checks, name: str) -> None:
    c = check("numerics", f"{name}: error rule", cases=2000, quick=6)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data)
        call, poison = OPERATIONS[name](draw), draw.pick(*POISON)

        def arrange(number: int, leaf: Tensor) -> Tensor:
            if number in call.hidden:
                leaf = leaf.masked_fill(call.hidden[number], torch.tensor(poison).to(leaf.dtype))
            return layouts[number](leaf)

        layouts = [draw.layout() for _ in call.leaves]
        return f"{draw.dtype}, {[tuple(leaf.shape) for leaf in call.leaves]}, {draw.spread}", obeys(call, draw.dtype, arrange)

    draw_cases(c, one)


def test_every_public_operation_is_in_the_table_or_says_where_it_is(check: Checks) -> None:
    c = check("numerics", "every public name of regard.ops is checked, or says why not", cases=len(ops.__all__), quick=len(ops.__all__))
    for name in ops.__all__:
        c.case(name, wrong=None if (name in OPERATIONS) != (name in ELSEWHERE) else "in neither table, or in both")


# Kernels.


@contextmanager
def kernels(way: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_KERNELS", way)
        yield


def failed(assertion: Callable[..., None], *given: Any) -> str | None:
    """Return the message of an assertion that does not hold."""
    try:
        assertion(*given)
    except AssertionError as error:
        return str(error).splitlines()[0] if str(error) else "not so"
    return None


@LONG
@pytest.mark.parametrize("way", ["cpu", "torch"])
def test_area_attention_obeys_the_error_rule(check: Checks, way: str) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("not run: the native library is not built")
    c = check(
        "numerics",
        f"area_attention by {way}: error rule, logits to 1e4, non-finite values where masked, strides, grids",
        cases=2000,
        quick=4,
    )

    def one(data: st.DataObject) -> tuple[str, str | None]:
        seed, dtype = data.draw(st.integers(0, 2**40)), data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64]))
        with kernels(way):
            return f"{seed}, {dtype}", failed(test_area_attention.assert_error_rule, test_area_attention.make_case(seed, dtype))

    draw_cases(c, one)


@LONG
@pytest.mark.parametrize("way", ["cpu", "torch"])
def test_area_attention_with_learned_keys_obeys_the_error_rule(check: Checks, way: str) -> None:
    if way == "cpu" and native.library() is None:
        pytest.skip("not run: the native library is not built")
    c = check("numerics", f"area_attention with the keys of Eq. 9 by {way}: error rule", cases=2000, quick=4)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        seed, size = data.draw(st.integers(0, 2**40)), data.draw(st.sampled_from([16, 32]))
        with kernels(way):
            return f"{seed}, {size}", failed(test_area_features.assert_error_rule, test_area_features.make_case(seed, torch.float32, size))

    draw_cases(c, one)


def steps_obey(model: nn.Module, walk: Callable[[Any], list[tuple[Tensor, Tensor]]]) -> str | None:
    """Say where the steps of a decoder by the native library break the rule."""
    with ops.packed_weights():
        ours = walk(model)
    with kernels("torch"):
        plain = walk(model)
        exact = walk(model.double())
    model.float()
    for number, (mine, usual, right) in enumerate(zip(ours, plain, exact, strict=True)):
        for a, b, c in zip(mine, usual, right, strict=True):
            room = FLOOR * torch.finfo(torch.float32).eps * max(1.0, float(c.abs().max()))
            if not distance(a, c) <= 2 * distance(b, c) + room:
                return f"step {number}: {distance(a, c):.3g}, plain {distance(b, c):.3g}, rounding {room:.3g}"
    return None


def stirred(model: nn.Module, seed: int) -> nn.Module:
    """Add small numbers to all weights."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.05)
    return model


@LONG
@needs_library
def test_the_steps_of_a_recurrent_decoder_obey_the_error_rule(check: Checks) -> None:
    c = check("numerics", "the native step of a recurrent decoder, GRU and LSTM, every score: error rule", cases=2000, quick=3)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, torch.float32)
        way, cell, layers = draw.pick(*test_rnn_native_step.WAYS), draw.pick("gru", "lstm"), draw.pick(1, 2)
        count, beam_size, seed = draw.size(7), draw.size(5), draw.size(10**6)
        model = stirred(test_rnn_native_step.model_of(way, cell=cell, encoder_layers=layers, decoder_layers=layers), seed)
        return f"{way}, {cell}, {layers}, {count}, {beam_size}, {seed}", steps_obey(
            model, lambda model: test_rnn_native_step.walk(model, count, beam_size=beam_size, steps=4)
        )

    draw_cases(c, one)


@LONG
@needs_library
def test_the_steps_of_a_transformer_obey_the_error_rule(check: Checks) -> None:
    c = check("numerics", "the native encoder and step of a Transformer: error rule", cases=2000, quick=3)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, torch.float32)
        size, norm, count, beam_size = draw.pick(*test_transformer_native_step.SIZES), draw.pick("pre", "post"), draw.size(7), draw.size(5)
        seed, sizes, longest = draw.size(10**6), dict[str, Any](test_transformer_native_step.SIZES[size]), draw.pick(1, 2, 5)
        mode = draw.pick("mean", "features")
        area = AreaConfig(max_area=longest, layers=1, key_mode=mode) if longest > 1 else None
        model = stirred(test_transformer_native_step.model_of(norm=norm, decoder_layers=2, area=area, **sizes), seed)
        return f"{size}, {norm}, {count}, {beam_size}, {longest} {mode}, {seed}", steps_obey(
            model, lambda model: test_transformer_native_step.walk(model, count, beam_size=beam_size, steps=4)
        )

    draw_cases(c, one)


@LONG
@needs_library
def test_the_selection_of_hypotheses_is_that_of_torch(check: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    c = check("numerics", "the native selection of a beam search: exactly PyTorch's", cases=2000, quick=10)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        seed = data.draw(st.integers(0, 2**40))
        ours, reference = test_selection.both(seed, monkeypatch)
        same = ours.rows.equal(reference.rows) and ours.tally.scores.equal(reference.tally.scores)
        return str(seed), None if same and all(map(torch.equal, ours.ends, reference.ends)) else "another selection"

    draw_cases(c, one)


# Whole answers.


@LONG
def test_masks_and_choices_are_those_of_a_loop(check: Checks) -> None:
    c = check("numerics", "masks and choices: equal to a loop, and never a position of weight zero", cases=2000, quick=10)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, torch.float32)
        kind, target, source = (
            draw.pick("length", "window", "causal", "block", "area", "greedy", "sample", "top"),
            draw.size(9),
            draw.size(),
        )
        places, steps = range(source), range(target)
        if kind == "length":
            lengths = [min(source, draw.size(18) - 1) for _ in steps]
            right = ops.length_mask(torch.tensor(lengths), source).tolist() == [[s < n for s in places] for n in lengths]
        elif kind == "window":
            radius, centers = draw.size(4) - 1, (torch.rand(target, generator=draw.generator) * source).tolist()
            found = ops.window_mask(torch.tensor(centers), source, radius).tolist()
            right = found == [[abs(s - center) <= radius for s in places] for center in centers]
        elif kind == "causal":
            right = ops.causal_mask(target, source).tolist() == [[s <= t + source - target for s in places] for t in steps]
        elif kind == "block":
            own, other = ([draw.size(4) for _ in each] for each in (steps, places))
            right = ops.block_mask(torch.tensor(own), torch.tensor(other)).tolist() == [[a == b for b in other] for a in own]
        elif kind == "area":
            memory = draw.memory()
            mask = draw.flags(target, memory[0])
            wanted = [[all(row[i] for i in items) for items in inside(*memory)] for row in mask.tolist()]
            right = ops.area_mask(mask, *memory[1:]).tolist() == wanted
        elif kind == "top":
            logits = -torch.randint(0, draw.pick(3, 1000), (2, target, draw.pick(5, 700)), generator=draw.generator).float()
            count = draw.pick(1, 2, 5)
            right = torch.equal(
                ops.top_tokens(logits, count), torch.sort(logits, dim=-1, descending=True, stable=True).indices[..., :count]
            )
        else:
            weights = draw.rows(target, source).float().roll(draw.size(), -1)
            weights[0] = 0.0
            empty = [-1] + [0] * (target - 1)
            if kind == "greedy":
                wanted = [-1 if not any(row) else row.index(max(row)) for row in weights.tolist()]
                right = ops.greedy_positions(weights).tolist() == wanted
            else:
                found = ops.sample_positions(weights, draw.generator).tolist()
                right = all(
                    place == -1 if gone else weights[t, place] > 0 for t, (place, gone) in enumerate(zip(found, empty, strict=True))
                )
        return f"{kind}, {target}, {source}", None if right else "another answer"

    draw_cases(c, one)


# Mechanisms.


def drawn(draw: Draw, *, hide: bool = False) -> tuple[Mechanism, Uniform, tuple[Tensor, ...], Tensor, Tensor]:
    """Draw a mechanism, its inputs and a mask, as it is passed and as (B, T, S); with `hide` one key of each sentence is nobody's."""
    name = draw.pick(*MECHANISMS)
    mechanism = MECHANISMS[name]
    target, source = mechanism.target or mechanism.source, mechanism.source
    mask = draw.flags(B, 1 if mechanism.padding_only else target, source, share=draw.pick(0.4, 0.8))
    mask[2] &= draw.pick(True, False)  # a sentence without anything to attend to
    if not mechanism.padding_only:
        mask[0, 1] = False
    if hide:
        mask[torch.arange(B), :, torch.randint(source, (B,), generator=draw.generator)] = False
    return mechanism, build(mechanism, draw.dtype), inputs(mechanism, draw.dtype), mask, mask.expand(B, target, source)


@LONG
def test_what_a_mask_hides_reaches_nobody(check: Checks) -> None:
    c = check("numerics", "every mechanism: NaN, inf, -inf where masked change no bit of output, weights, gradients", cases=2000, quick=25)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])))
        mechanism, module, tensors, mask, allowed = drawn(draw, hide=True)
        hidden, need = ~allowed.any(1), draw.pick(True, False)
        assert hidden.any(), "there is something to hide"
        query, key, value = (x.clone() for x in tensors)
        key[hidden], value[hidden] = draw.pick(*POISON), draw.pick(*POISON)
        clean, spoilt = run(module, tensors, mask, need), run(module, (query, key, value), mask, need)
        return f"{type(module.module).__name__}, {draw.dtype}", failed(assert_same, spoilt, clean) or empty_rows(
            mechanism, module, clean, allowed
        )

    draw_cases(c, one)


def empty_rows(mechanism: Mechanism, module: Uniform, found: Run, allowed: Tensor) -> str | None:
    """Say what is not zero in a row with nothing to attend to, or of the weights where a mask hides."""
    rows = ~allowed.any(-1)
    offset = torch.zeros(()) if mechanism.offset is None else module.module.get_parameter(mechanism.offset).detach()
    if (found.context[rows] != offset.to(found.context)).any():
        return "an empty row has a context"
    if found.weights is not None and found.weights[over_heads(~allowed, found.weights)].any():
        return "a masked place has a weight"
    if not all(gradient.isfinite().all() for gradient in found.gradients.values()):
        return "a gradient is not finite"
    return None if mechanism.alone or not found.gradients["query"][rows].any() else "the query of an empty row has a gradient"


@LONG
def test_large_logits_stay_finite(check: Checks) -> None:
    c = check("numerics", "every mechanism: logits up to 1e4 and beyond stay finite, rows sum to one", cases=2000, quick=25)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float32])))
        mechanism, module, (query, key, value), mask, allowed = drawn(draw)
        spread = draw.pick(10.0, 30.0) if draw.dtype == torch.float16 else draw.pick(1e2, 1e3)
        query, key = query * spread, key * (spread if not mechanism.shared else 1.0)
        found = run(module, (query, key, value), mask, True)
        name = f"{type(module.module).__name__}, {draw.dtype}, {spread}"
        assert found.weights is not None
        if not found.context.isfinite().all() or not found.weights.isfinite().all():
            return name, "an output is not finite"
        within = allowed if mechanism.reach is None else allowed & mechanism.reach(*allowed.shape[1:])
        off = (found.weights.double().sum(-1) - over_heads(within.any(-1), found.weights).double()).abs().max()
        if mechanism.sums == "one" and off > 8 * torch.finfo(draw.dtype).eps:
            return name, f"rows are off one by {off:.2g}"
        return name, empty_rows(mechanism, module, found, allowed)

    draw_cases(c, one)


@LONG
def test_layout_in_memory_does_not_matter(check: Checks) -> None:
    c = check("numerics", "every mechanism: odd strides and offsets give the same to rounding", cases=2000, quick=25)

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, data.draw(st.sampled_from([torch.float32, torch.float64])))
        mechanism, module, tensors, mask, _ = drawn(draw)
        straight = run(module, tensors, mask, True)
        torch.default_generator.manual_seed(43)
        found = module(*(draw.layout()(x) for x in tensors), draw.layout()(mask), True)
        close = 1e-4 if draw.dtype == torch.float32 else 1e-10
        name, wanted = f"{type(module.module).__name__}, {draw.dtype}", (straight.context, straight.weights)
        if mechanism.rough and draw.dtype == torch.float32:  # a choice may fall to another place where two all but tie
            wanted = found
        return name, failed(lambda: torch.testing.assert_close(tuple(found), tuple(wanted), atol=close, rtol=close))

    draw_cases(c, one)


# Repeats.


def one_call(name: str, seed: int) -> tuple[Call, list[Tensor]]:
    """Return a call of an operation in float32, always the same."""
    made: list[tuple[Call, list[Tensor]]] = []

    @drawing(seed + 1)
    @given(st.data())
    def every(data: st.DataObject) -> None:
        draw = Draw(data, torch.float32)
        call = OPERATIONS[name](draw)
        made.append((call, [leaf.float() for leaf in call.leaves]))

    every()
    return made[-1]


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@LONG
def test_repeats_are_bitwise_equal(check: Checks) -> None:
    repeats = 250 if FULL else 25
    subjects: list[tuple[str, int]] = [(name, count) for name in OPERATIONS for count in (1, 2, 3)]
    c = check("numerics", "every operation, 1 to 3 threads: 250 repeats bitwise equal, forward and backward", cases=len(subjects), quick=4)
    for name, count in random.Random(3).sample(subjects, c.wanted):
        call, leaves = one_call(name, 6)
        with threads(count):
            first = results(call.ours, leaves, values=call.values)
            again = (results(call.ours, leaves, values=call.values) for _ in range(repeats))
            # Two NaN are equal bits here.
            wrong = next(
                (
                    n
                    for n, found in enumerate(again)
                    if not all(torch.equal(a.nan_to_num(1.5), b.nan_to_num(1.5)) for a, b in zip(first, found, strict=True))
                ),
                None,
            )
        c.case(f"{name}, {count} threads", wrong=None if wrong is None else f"repeat {wrong} differs")


# What torch is told of our operators, and what it makes of all of them.


def registered() -> dict[str, Callable[[Draw], tuple[Any, tuple[Any, ...]]]]:
    """Return the operators registered with torch, each with drawn arguments."""

    def numbers(draw: Draw, *shape: int) -> Tensor:
        return draw.numbers(*shape, spread=1.0).float().requires_grad_()

    def additive(draw: Draw) -> tuple[Any, tuple[Any, ...]]:
        width = draw.size()
        parts = numbers(draw, 2, draw.size(5), width), numbers(draw, 2, draw.size(7), width), numbers(draw, width)
        return torch.ops.regard.additive_scores.default, parts

    def additive_backward(draw: Draw) -> tuple[Any, tuple[Any, ...]]:
        query, key, vector = (x.detach() for x in additive(draw)[1])
        grad = torch.ones(2, query.shape[1], key.shape[1])
        return torch.ops.regard.additive_scores_backward.default, (grad, None, [], query, key, vector)

    def area(draw: Draw) -> tuple[Any, tuple[Any, ...]]:
        target, source, size = draw.size(7), draw.size(11), draw.size()
        parts = numbers(draw, 2, 3, target, size), numbers(draw, 2, 3, source, size), numbers(draw, 2, 3, source, draw.size())
        mask = draw.pick(None, draw.flags(2, 1, target, source))
        return torch.ops.regard.area_attention.default, (
            *(*parts, None, None, None, None, mask),
            [draw.size(5)],
            [],
            draw.pick(True, False),
            draw.pick(True, False),
            0.3,
        )

    def area_backward(draw: Draw) -> tuple[Any, tuple[Any, ...]]:
        query, key, value, *rest = area(draw)[1]
        out, sums = torch.ops.regard.area_attention(query, key, value, *rest)
        parts = [x.detach() for x in (query, key, value)]
        return torch.ops.regard.area_attention_backward.default, (torch.ones_like(out).detach(), None, [sums.detach()], *parts, *rest)

    def features(draw: Draw) -> tuple[Any, tuple[Any, ...]]:
        target, source = draw.size(7), draw.size(11)
        parts = [numbers(draw, 2, 3, n, 16) for n in (target, source, source)] + [numbers(draw, 16, 16) for _ in range(3)]
        shape, mask = numbers(draw, draw.size(4), 16), draw.pick(None, draw.flags(2, 1, target, source))
        settings = [len(shape)], [], draw.pick(True, False), draw.pick(True, False), 0.25
        return torch.ops.regard.area_attention.default, (*parts, shape, mask, *settings)

    return {f.__name__: f for f in (additive, additive_backward, area, area_backward, features)}


@LONG
@needs_library
def test_registered_operators_keep_their_contract(check: Checks) -> None:
    c = check("numerics", "torch.library.opcheck of every registered operator", cases=50, quick=1)
    makers = registered()

    def one(data: st.DataObject) -> tuple[str, str | None]:
        draw = Draw(data, torch.float32)
        name = draw.pick(*makers)
        operator, given = makers[name](draw)
        try:
            torch.library.opcheck(operator, given)
        except Exception as error:  # whatever torch has against it
            return name, str(error).splitlines()[0]
        return name, None

    draw_cases(c, one)


# For decoding, with weights that are laid out anew: nothing to trace.
UNTRACED = {"packed_weights", "lazy_logits"}


class Wrapped(nn.Module):
    """An operation as a module, for export."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *leaves: Tensor) -> list[Tensor]:
        return outputs(self.call.ours(*leaves))


@LONG
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_operations_compile_and_export(check: Checks) -> None:
    names = [name for name in OPERATIONS if name not in UNTRACED]
    c = check("numerics", "every operation compiles into one graph and is exported, with the same result", cases=2 * len(names), quick=2)
    for number in range(c.wanted):
        name, exported = names[number // 2 * 5 % len(names)], bool(number % 2)
        call, leaves = one_call(name, 3)
        expected = results(call.ours, leaves, values=True)
        torch._dynamo.reset()
        module = Wrapped(call)
        try:
            with torch.no_grad():
                traced = (
                    torch.export.export(module, tuple(leaves)).module()
                    if exported
                    else torch.compile(module, fullgraph=True, backend="aot_eager")
                )
                found = traced(*leaves)
            wrong = failed(lambda: torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5, equal_nan=True))  # noqa: B023
        except Exception as error:  # whatever the compiler has against it
            wrong = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        c.case(f"{name}, {'exported' if exported else 'compiled'}", wrong=wrong)


# Decoding.


def sentences(count: int) -> list[str]:
    """Return different sentences of known words."""
    words, chance, found = sorted({word for text in TEXTS for word in text.split()}), random.Random(41), {}
    while len(found) < count:
        found[" ".join(chance.choices(words, k=chance.randint(1, 6)))] = None
    return list(found)


def best(item: Translation) -> tuple[str, float]:
    """Return the text of a translation and its score; of an empty one nothing."""
    return item.text, item.hypotheses[0].score if item.hypotheses else 0.0


def told_apart(subject: Translator, count: int) -> list[str]:
    """Return sentences of whose translation the model is not sure: those of which it is all have the score 0."""
    lines = sentences(2 * count)
    found = subject.translate(lines, decoding=DecodingConfig(beam_size=1, max_length=13))
    return [line for line, item in zip(lines, found, strict=True) if best(item)[1] < 0][:count]


# Scores are as near as this whatever the batch, or float64 is asked.
NEAR = 1e-3


class Exactly:
    """The same translator in float64: asked where a score in float32 seems to depend on the batch, since rounding does."""

    def __init__(self, family: str, lines: Sequence[str], alone: dict[str, tuple[str, float]], decoding: DecodingConfig) -> None:
        self.subject, self.lines, self.in_float32, self.decoding = translator(model=FAMILIES[family]), lines, alone, decoding
        self.subject.run.model.double()

    @cached_property
    def alone(self) -> dict[str, tuple[str, float]]:
        """Each line by itself."""
        return dict(zip(self.lines, map(best, self.subject.translate(self.lines, decoding=self.decoding)), strict=True))

    @cached_property
    def rounding(self) -> float:
        """The largest error of a line by itself in float32."""
        return max(abs(self.in_float32[line][1] - score) for line, (_, score) in self.alone.items())

    def wrong(self, line: str, score: float, batch: Sequence[str], size: int) -> bool:
        """Whether the batch changes the line's score in float64, or by far more in float32 than rounding does to single lines."""
        text, known = self.alone[line]
        found = self.subject.translate(batch, decoding=self.decoding.model_copy(update={"batch_size": size}))[batch.index(line)]
        together = best(found)
        return (
            together[0] != text or abs(together[1] - known) > 1e-9 or abs(score - known) > 2 * self.rounding + NEAR * max(1.0, abs(known))
        )


@LONG
@pytest.mark.parametrize("family", FAMILIES)
def test_the_batch_does_not_change_a_translation(check: Checks, family: str) -> None:
    c = check("numerics", f"decoding, {family}: identical text in random batches", cases=1000, quick=8)
    subject, chance = translator(model=FAMILIES[family]), random.Random(43)
    lines = told_apart(subject, c.wanted)
    wrong: dict[str, str] = {}
    for beam_size, share in ((3, lines), (1, lines[::4])):
        decoding = DecodingConfig(beam_size=beam_size, max_length=13, batch_size=1)
        alone = dict(zip(share, map(best, subject.translate(share, decoding=decoding)), strict=True))
        exactly = Exactly(family, share, alone, decoding)
        # Random weights write few texts, but no two sentences have a score in common: it shows whose state was used.
        assert len({score for _, score in alone.values()}) > 0.9 * len(share), "else the comparison says nothing"
        for _ in range(2):
            rest = chance.sample(share, len(share))
            while rest:
                size, rows = chance.randint(1, 64), chance.randint(1, 128)
                batch, rest = rest[:rows], rest[rows:]
                found = map(best, subject.translate(batch, decoding=decoding.model_copy(update={"batch_size": size})))
                for line, (text, score) in zip(batch, found, strict=True):
                    far = abs(score - alone[line][1]) > NEAR * max(1.0, abs(score))
                    if text != alone[line][0] or (far and exactly.wrong(line, score, batch, size)):
                        wrong[line] = f"beam {beam_size}, batches of {size}: {text!r} {score}, alone {alone[line]}"
    for line in lines:
        c.case(line, wrong=wrong.get(line))
