"""Key-value attention against the loops, its window, its memory, its masks."""

from __future__ import annotations

import pytest
import torch

from regard.attention import KeyValueAttention
from regard.errors import ConfigError, ShapeError
from tests.reference import key_value as reference

B, T, D, L = 2, 11, 5, 3
PARTS = pytest.mark.parametrize("parts", [1, 2, 3])


def build(parts, dtype=torch.float64, window=L):
    torch.default_generator.manual_seed(29)
    return KeyValueAttention(parts * D, window, parts=parts).to(dtype)


def inputs(parts, dtype=torch.float64):
    generator = torch.Generator().manual_seed(31)
    states = torch.randn(B, T, parts * D, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[1, 7:] = False
    mask[1, 2] = False
    return states, mask


def letters(attention):
    p = {name: value.detach().double().numpy() for name, value in attention.named_parameters()}
    names = {"W_Y": "key.weight", "W_h": "query.weight", "w": "vector", "W_r": "read.weight", "W_x": "predict.weight"}
    return {letter: p[name] for letter, name in names.items()}


@PARTS
@pytest.mark.parametrize("window", [1, L, T, 2 * T])
def test_output_and_weights_equal_the_loops(parts, window):
    attention = build(parts, window=window)
    states, mask = inputs(parts)
    context, weights = attention(states, key_mask=mask, need_weights=True)
    for b in range(B):
        expected, table = reference.attend(states[b].numpy(), mask[b].tolist(), parts, window, letters(attention))
        torch.testing.assert_close(context[b], torch.tensor(expected), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(weights[b], torch.tensor(table), rtol=1e-12, atol=1e-12)


@PARTS
def test_weights_lie_on_the_last_positions_only_and_sum_to_one(parts):
    states, _ = inputs(parts)
    weights = build(parts)(states, need_weights=True).weights
    inside = torch.ones(T, T, dtype=torch.bool).tril(-1) & torch.ones(T, T, dtype=torch.bool).triu(-L)
    assert (weights[:, ~inside] == 0).all()
    assert (weights[:, inside] > 0).all()
    assert (weights[:, 0] == 0).all()
    torch.testing.assert_close(weights[:, 1:].sum(-1), torch.ones(B, T - 1, dtype=torch.float64))


def test_weights_come_only_when_asked_for_and_change_nothing():
    states, mask = inputs(2)
    attention = build(2)
    assert attention(states, key_mask=mask).weights is None
    assert torch.equal(attention(states, key_mask=mask).context, attention(states, key_mask=mask, need_weights=True).context)


@PARTS
def test_what_comes_later_or_lies_further_back_than_the_window_is_not_seen(parts):
    attention = build(parts)
    states, _ = inputs(parts)
    before = attention(states).context
    changed = states.clone()
    changed[:, 5] += 1.0
    differs = (attention(changed).context != before).any(-1).any(0)
    assert differs.tolist() == [5 <= t <= 5 + L for t in range(T)]


@PARTS
@pytest.mark.parametrize("sizes", [[1] * T, [0, 4, 1, 6], [T]])
def test_step_by_step_equals_all_at_once(parts, sizes):
    attention = build(parts)
    states, mask = inputs(parts)
    whole = attention(states, key_mask=mask, need_weights=True)
    memory = attention.memory(states[:, :0])
    contexts, start = [], 0
    for size in sizes:
        piece = slice(start, start + size)
        output, memory = attention.step(states[:, piece], memory, key_mask=mask[:, piece], need_weights=True)
        contexts.append(output.context)
        first = max(0, start - L)
        seen = output.weights[..., L - (start - first) :]
        torch.testing.assert_close(seen, whole.weights[:, piece, first : start + size])
        assert memory.key.shape == (B, L, D)
        start += size
    torch.testing.assert_close(torch.cat(contexts, 1), whole.context)


@PARTS
@pytest.mark.parametrize("seen", [0, 2, 7])
def test_a_memory_of_a_prefix_continues_it(parts, seen):
    attention = build(parts)
    states, mask = inputs(parts)
    whole = attention(states, key_mask=mask).context
    memory = attention.memory(states[:, :seen], key_mask=mask[:, :seen])
    output, _ = attention.step(states[:, seen:], memory, key_mask=mask[:, seen:])
    torch.testing.assert_close(output.context, whole[:, seen:])


def test_a_memory_is_a_value_and_its_rows_can_be_chosen():
    attention = build(2)
    states, _ = inputs(2)
    memory = attention.memory(states[:, :4])
    kept = [part.clone() for part in memory]
    whole, _ = attention.step(states[:, 4:5], memory)
    assert all(torch.equal(a, b) for a, b in zip(memory, kept, strict=True))
    order = torch.tensor([1, 1, 0])
    chosen, _ = attention.step(states[order, 4:5], memory.rows(order))
    torch.testing.assert_close(chosen.context, whole.context[order])


@PARTS
def test_what_is_masked_changes_nothing_and_gets_no_gradient(parts):
    attention = build(parts)
    states, mask = inputs(parts)
    clean = attention(states, key_mask=mask, need_weights=True)
    for poison in (float("nan"), float("inf"), 1e300):
        spoiled = states.clone().masked_fill(~mask.unsqueeze(-1), poison).requires_grad_()
        found = attention(spoiled, key_mask=mask, need_weights=True)
        assert torch.equal(found.context, clean.context)
        assert torch.equal(found.weights, clean.weights)
        attention.zero_grad()
        found.context.sum().backward()
        assert (spoiled.grad[~mask] == 0).all()
        assert all(p.grad.isfinite().all() for p in attention.parameters())
    assert (clean.weights.masked_select(~mask.unsqueeze(1)) == 0).all()


@PARTS
def test_a_sequence_masked_whole_reads_nothing_and_has_finite_gradients(parts):
    attention = build(parts)
    states, mask = inputs(parts)
    mask[0] = False
    states.requires_grad_()
    context, weights = attention(states, key_mask=mask, need_weights=True)
    assert (context[0] == 0).all()  # tanh(W_r 0 + W_x 0)
    assert (weights[0] == 0).all()
    (gradient,) = torch.autograd.grad(context.sum() + weights.square().sum(), states)
    assert (gradient[0] == 0).all()
    assert gradient.isfinite().all()


def test_a_nan_that_may_be_attended_to_stays_loud():
    attention = build(2)
    states, _ = inputs(2)
    states[0, 4] = float("nan")
    bad = attention(states).context.isnan().any(-1)
    assert bad[0].tolist() == [4 <= t <= 4 + L for t in range(T)]
    assert not bad[1].any()


@PARTS
def test_gradients_equal_finite_differences(parts):
    attention = build(parts)
    states, mask = inputs(parts)
    states = states[:, :5].requires_grad_()
    names, values = zip(*attention.named_parameters(), strict=True)

    def run(states, *values):
        parameters = dict(zip(names, values, strict=True))
        output = torch.func.functional_call(attention, parameters, (states,), {"key_mask": mask[:, :5], "need_weights": True})
        return output.context, output.weights

    assert torch.autograd.gradcheck(run, (states, *values))


@PARTS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_stays_close_to_float64(parts, dtype):
    states, mask = inputs(parts)
    rough = build(parts, dtype)(states.to(dtype), key_mask=mask, need_weights=True)
    expected = build(parts)(states, key_mask=mask, need_weights=True)
    assert rough.context.dtype == rough.weights.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]  # a few units in the last place of numbers below 1
    torch.testing.assert_close(rough.context.double(), expected.context, atol=tolerance, rtol=0)
    torch.testing.assert_close(rough.weights.double(), expected.weights, atol=tolerance, rtol=0)


def test_autocast_steps_equal_autocast_all_at_once():
    attention = build(3, torch.float32)
    states, mask = inputs(3, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        whole = attention(states, key_mask=mask).context
        memory = attention.memory(states[:, :4], key_mask=mask[:, :4])
        rest, _ = attention.step(states[:, 4:], memory, key_mask=mask[:, 4:])
    torch.testing.assert_close(rest.context.float(), whole[:, 4:].float(), atol=2e-2, rtol=0)


@PARTS
def test_strided_and_expanded_states_give_the_same(parts):
    attention = build(parts)
    states, mask = inputs(parts)
    expected = attention(states, key_mask=mask).context
    turned = states.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(attention(turned, key_mask=mask).context, expected)
    torch.testing.assert_close(attention(states[:1].expand(7, -1, -1)).context[6], attention(states[:1]).context[0])


@pytest.mark.parametrize("shape", [(0, T), (B, 0), (B, 1), (1, 1)])
def test_no_or_one_sequence_or_position_is_fine(shape):
    context, weights = build(3)(torch.ones(*shape, 3 * D, dtype=torch.float64), need_weights=True)
    assert context.shape == (*shape, D)
    assert weights.shape == (*shape, shape[1])


@PARTS
def test_compiled_whole_and_step_equal_the_plain_ones(parts):
    attention = build(parts, torch.float32)
    states, mask = inputs(parts, torch.float32)
    whole = torch.compile(attention, fullgraph=True, backend="eager")(states, key_mask=mask, need_weights=True)
    torch.testing.assert_close(whole, attention(states, key_mask=mask, need_weights=True))
    step = torch.compile(attention.step, fullgraph=True, backend="eager")
    with torch.no_grad():
        memory = attention.memory(states[:, :4])
        torch.testing.assert_close(step(states[:, 4:5], memory), attention.step(states[:, 4:5], memory))


def test_exported_with_a_free_length_it_computes_the_same():
    attention = build(3, torch.float32)
    states, mask = inputs(3, torch.float32)
    length = torch.export.Dim("length", min=L, max=97)  # torch compares the two lengths when it orders the strides of a window
    program = torch.export.export(attention, (states,), {"key_mask": mask}, dynamic_shapes={"states": {1: length}, "key_mask": {1: length}})
    for size in (L, 7, T):
        found = program.module()(states[:, :size], key_mask=mask[:, :size]).context
        torch.testing.assert_close(found, attention(states[:, :size], key_mask=mask[:, :size]).context)


def test_dropout_acts_in_training_only_and_not_on_the_weights_returned():
    attention = build(2)
    attention.dropout = 0.5
    states, _ = inputs(2)
    torch.default_generator.manual_seed(37)
    trained = attention(states, need_weights=True)
    attention.eval()
    calm = attention(states, need_weights=True)
    assert torch.equal(trained.weights, calm.weights)
    assert not torch.equal(trained.context, calm.context)
    assert torch.equal(calm.context, build(2)(states).context)


def test_wrong_settings_and_shapes_are_refused_with_what_was_found():
    with pytest.raises(ConfigError, match="parts should be 1, 2 or 3, found 4"):
        KeyValueAttention(8, 3, parts=4)
    with pytest.raises(ConfigError, match="multiple of parts = 3, found 7"):
        KeyValueAttention(7, 3, parts=3)
    with pytest.raises(ConfigError, match="window should be greater than or equal to 1, found 0"):
        KeyValueAttention(6, 0)
    with pytest.raises(ShapeError, match=r"\(B, T, 10\), found \(2, 11, 7\)"):
        build(2)(torch.zeros(B, T, 7))
    with pytest.raises(ShapeError, match=r"\(B, S\) = \(2, 11\), found \(2, 7\)"):
        build(2)(torch.zeros(B, T, 2 * D), key_mask=torch.ones(B, 7, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"boolean .*torch.float32"):
        build(2)(torch.zeros(B, T, 2 * D), key_mask=torch.ones(B, T))


def test_parameter_names_and_shapes_are_frozen():
    assert {name: tuple(value.shape) for name, value in build(3).state_dict().items()} == {
        "key.weight": (D, D),
        "query.weight": (D, D),
        "vector": (D,),
        "read.weight": (D, D),
        "predict.weight": (D, D),
    }
    assert "window=3, parts=3" in repr(build(3))
