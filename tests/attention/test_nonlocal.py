"""The non-local operation and block against the loops, with one input and with two."""

from __future__ import annotations

import math

import pytest
import torch

from regard import ops
from regard.attention import Attention, DotScore, NonLocal
from regard.errors import ConfigError, ShapeError
from tests.reference import nonlocal_op as reference

B, T, S, D, DS, C = 2, 3, 7, 6, 10, 5
FORMS = ["gaussian", "embedded_gaussian", "dot", "concat"]
EVERY = pytest.mark.parametrize("form", FORMS)
LETTERS = {"theta": "query.weight", "phi": "key.weight", "g": "value.weight", "W_z": "output.weight", "w_f": "vector"}


def build(form, dtype=torch.float64, other_dim=None, residual=True):
    torch.default_generator.manual_seed(41)
    block = NonLocal(D, C, form=form, other_dim=None if form == "gaussian" else other_dim, residual=residual)
    torch.nn.init.normal_(block.output.weight, std=0.5)
    return block.to(dtype)


def inputs(form="dot", dtype=torch.float64, other_dim=D):
    generator = torch.Generator().manual_seed(43)
    states = torch.randn(B, T, D, generator=generator, dtype=torch.float64).to(dtype)
    other = torch.randn(B, S, D if form == "gaussian" else other_dim, generator=generator, dtype=torch.float64).to(dtype)
    mask = torch.ones(B, S, dtype=torch.bool)
    mask[1, 4:] = False
    mask[1, 1] = False
    return states, other, mask


def parameters(block):
    p = {name: value.detach().double().numpy() for name, value in block.named_parameters()}
    return {letter: p[name] for letter, name in LETTERS.items() if name in p}


def operands(form, generator):
    query, key, value = (torch.randn(B, n, d, generator=generator, dtype=torch.float64) for n, d in ((T, D), (S, D), (S, C)))
    return query, key, value, torch.randn(2 * D, generator=generator, dtype=torch.float64) if form == "concat" else None


@EVERY
@pytest.mark.parametrize("kind", ["none", "padding", "each query its own", "one row"])
def test_operation_equals_the_loops(form, kind):
    generator = torch.Generator().manual_seed(47)
    query, key, value, vector = operands(form, generator)
    wide = torch.rand(B, T, S, generator=generator) < 0.6
    mask = {"none": None, "padding": wide[:, :1], "each query its own": wide, "one row": wide[0, 0]}[kind]
    asked = ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask, need_weights=True)
    unasked = ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask)
    assert unasked.weights is None
    torch.testing.assert_close(unasked.context, asked.context)
    full = torch.ones(B, T, S, dtype=torch.bool) if mask is None else mask.expand(B, T, S)
    for b in range(B):
        pair = None if vector is None else vector.numpy()
        arrays = (part[b].numpy() for part in (query, key, value))
        expected, table = reference.operation(*arrays, form, full[b].tolist(), pair)
        torch.testing.assert_close(asked.context[b], torch.tensor(expected), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(asked.weights[b], torch.tensor(table), rtol=1e-12, atol=1e-12)


@EVERY
@pytest.mark.parametrize("residual", [True, False])
def test_block_equals_the_loops_with_one_input_and_with_two(form, residual):
    block = build(form, other_dim=DS, residual=residual)
    states, other, mask = inputs(form, other_dim=DS)
    found = block(states, other, key_mask=mask, need_weights=True)
    for b in range(B):
        expected, table = reference.block(states[b].numpy(), other[b].numpy(), form, mask[b].tolist(), parameters(block), residual)
        torch.testing.assert_close(found.context[b], torch.tensor(expected), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found.weights[b], torch.tensor(table), rtol=1e-12, atol=1e-12)
    alone = build(form, residual=residual)
    expected, table = reference.block(states[0].numpy(), states[0].numpy(), form, [True] * T, parameters(alone), residual)
    found = alone(states, need_weights=True)
    torch.testing.assert_close(found.context[0], torch.tensor(expected), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.weights[0], torch.tensor(table), rtol=1e-12, atol=1e-12)


@EVERY
def test_co_attention_with_both_inputs_equal_is_self_attention(form):
    block = build(form)
    states, _, _ = inputs()
    alone, both = block(states, need_weights=True), block(states, states, need_weights=True)
    assert torch.equal(alone.context, both.context)
    assert torch.equal(alone.weights, both.weights)


@EVERY
def test_co_attention_and_its_mirror_image_differ(form):
    block = build(form)
    states, other, _ = inputs()
    there, back = block(states, other).context, block(other, states).context
    assert there.shape == (B, T, D)
    assert back.shape == (B, S, D)
    assert not torch.allclose(there, back[:, :T])


def test_embedded_gaussian_is_attention_with_dot_scores_of_the_projections():
    block = build("embedded_gaussian", residual=False)
    states, other, mask = inputs()
    attention = Attention(DotScore())
    expected = attention(block.query(states), block.key(other), block.value(other), mask=mask.unsqueeze(1), need_weights=True)
    found = block(states, other, key_mask=mask, need_weights=True)
    torch.testing.assert_close(found.weights, expected.weights)
    torch.testing.assert_close(found.context, block.output(expected.context))


def test_embedded_gaussian_with_scaled_projections_is_scaled_dot_product_attention():
    block = build("embedded_gaussian", residual=False)
    states, _, _ = inputs()
    q, k, v = block.query(states), block.key(states), block.value(states)
    expected = block.output(torch.nn.functional.scaled_dot_product_attention(q, k, v))
    with torch.no_grad():
        block.query.weight /= math.sqrt(C)
    torch.testing.assert_close(block(states).context, expected)


def test_gaussian_is_embedded_gaussian_with_identities():
    plain = build("gaussian")
    embedded = NonLocal(D, D, form="embedded_gaussian").double()
    with torch.no_grad():
        embedded.query.weight.copy_(torch.eye(D))
        embedded.key.weight.copy_(torch.eye(D))
    states, other, mask = inputs()
    torch.testing.assert_close(
        plain(states, other, key_mask=mask, need_weights=True).weights, embedded(states, other, key_mask=mask, need_weights=True).weights
    )


@EVERY
def test_a_new_block_returns_its_input_and_learns(form):
    block = NonLocal(D, form=form).double()
    states, other, _ = inputs()
    context = block(states, other).context
    assert torch.equal(context, states)
    context.square().sum().backward()
    assert (block.output.weight.grad != 0).any()
    assert (NonLocal(D, form=form, residual=False)(states.float()).context != 0).any()


@EVERY
@pytest.mark.parametrize("asked", [True, False])
def test_what_is_masked_changes_nothing_and_gets_no_gradient(form, asked):
    block = build(form)
    states, other, mask = inputs()
    clean = block(states, other, key_mask=mask, need_weights=asked)
    alone = block(other, key_mask=mask, need_weights=asked)
    for poison in (float("nan"), float("inf"), 1e300):
        spoiled = other.masked_fill(~mask.unsqueeze(-1), poison).requires_grad_()
        found, self_found = block(states, spoiled, key_mask=mask, need_weights=asked), block(spoiled, key_mask=mask, need_weights=asked)
        assert torch.equal(found.context, clean.context)
        assert torch.equal(self_found.context, alone.context)
        if asked:
            assert torch.equal(found.weights, clean.weights)
            assert (found.weights.masked_select(~mask.unsqueeze(1)) == 0).all()
        block.zero_grad()
        (found.context.sum() + self_found.context.sum()).backward()
        assert (spoiled.grad[~mask] == 0).all()
        assert spoiled.grad.isfinite().all()
        assert all(p.grad.isfinite().all() for p in block.parameters())


@EVERY
@pytest.mark.parametrize("asked", [True, False])
def test_masked_keys_and_values_of_the_operation_change_nothing(form, asked):
    generator = torch.Generator().manual_seed(53)
    query, key, value, vector = operands(form, generator)
    _, _, mask = inputs()
    clean = ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask.unsqueeze(1), need_weights=asked)
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e300, -1e300], dtype=torch.float64)[:C]
    key = torch.where(mask.unsqueeze(-1), key, bad[0]).requires_grad_()
    value = torch.where(mask.unsqueeze(-1), value, bad).requires_grad_()
    found = ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask.unsqueeze(1), need_weights=asked)
    assert torch.equal(found.context, clean.context)
    for gradient in torch.autograd.grad(found.context.square().sum(), (key, value)):
        assert (gradient[~mask] == 0).all()
        assert gradient.isfinite().all()


@EVERY
@pytest.mark.parametrize("asked", [True, False])
def test_a_nan_that_may_be_attended_to_stays_loud(form, asked):
    generator = torch.Generator().manual_seed(59)
    query, key, value, vector = operands(form, generator)
    value[0, 2] = float("nan")
    mask = torch.ones(B, 1, S, dtype=torch.bool)
    found = ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask, need_weights=asked)
    assert found.context[0].isnan().all()
    assert found.context[1].isfinite().all()


@EVERY
@pytest.mark.parametrize("asked", [True, False])
def test_an_empty_row_finds_nothing_and_keeps_its_residual(form, asked):
    block = build(form)
    states, other, mask = inputs()
    mask[0] = False
    other.requires_grad_()
    context, weights = block(states, other, key_mask=mask, need_weights=asked)
    assert torch.equal(context[0], states[0])
    if weights is not None:
        assert (weights[0] == 0).all()
    (gradient,) = torch.autograd.grad(context.square().sum(), other)
    assert (gradient[0] == 0).all()
    assert gradient.isfinite().all()


@EVERY
def test_padding_changes_nothing(form):
    block = build(form)
    states, other, _ = inputs()
    alone = block(states[1:], other[1:, :4], need_weights=True)
    padded = block(states, other, key_mask=ops.length_mask(torch.tensor([S, 4]), S), need_weights=True)
    torch.testing.assert_close(padded.context[1], alone.context[0])
    torch.testing.assert_close(padded.weights[1, :, :4], alone.weights[0])


@EVERY
def test_permuting_the_places_permutes_the_output(form):
    block = build(form)
    _, other, _ = inputs()
    order = torch.tensor([3, 1, 0, 2, 6, 5, 4])
    torch.testing.assert_close(block(other[:, order]).context, block(other).context[:, order])


@EVERY
@pytest.mark.parametrize("asked", [True, False])
def test_first_and_second_gradients_equal_finite_differences(form, asked):
    generator = torch.Generator().manual_seed(61)
    query, key, value, vector = operands(form, generator)
    parts = [part[:, :4].clone().requires_grad_() for part in (query, key, value)]
    parts += [] if vector is None else [vector.requires_grad_()]
    mask = torch.tensor([[[True, True, False, True]], [[False, False, False, False]]])

    def run(query, key, value, vector=None):
        found = ops.nonlocal_attention(query, key, value, vector, form=form, mask=mask, need_weights=asked)
        return (found.context, found.weights) if found.weights is not None else found.context

    assert torch.autograd.gradcheck(run, parts)
    assert torch.autograd.gradgradcheck(run, parts)


@EVERY
def test_gradients_of_the_block_equal_finite_differences(form):
    block = build(form)
    states, other, mask = inputs()
    assert torch.autograd.gradcheck(lambda x, y: block(x, y, key_mask=mask).context, (states.requires_grad_(), other.requires_grad_()))


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("asked", [True, False])
def test_lower_precision_stays_close_to_float64(form, dtype, asked):
    states, other, mask = inputs()
    exact = build(form)(states, other, key_mask=mask, need_weights=asked)
    rough = build(form, dtype)(states.to(dtype), other.to(dtype), key_mask=mask, need_weights=asked)
    assert rough.context.dtype == dtype
    # scores of size about 5 are rounded to 2**-8 (bfloat16) of themselves before the exponential
    torch.testing.assert_close(rough.context.double(), exact.context, atol={torch.float32: 1e-5}.get(dtype, 0.15), rtol=0)


def test_a_sum_over_many_places_stays_in_the_range_of_float16():
    ones = torch.full((1, 4099, 1), 8.0, dtype=torch.float16)
    context = ops.nonlocal_attention(ones[:, :1], ones, ones, form="dot").context
    torch.testing.assert_close(context.float(), torch.full((1, 1, 1), 512.0), rtol=1e-2, atol=0)


@EVERY
def test_autocast_and_strided_and_expanded_inputs_work(form):
    block = build(form, torch.float32)
    states, other, mask = inputs(dtype=torch.float32)
    expected = block(states, other, key_mask=mask).context
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = block(states, other, key_mask=mask).context
    torch.testing.assert_close(rough.float(), expected, atol=0.2, rtol=0)
    turned = other.transpose(1, 2).contiguous().transpose(1, 2)
    torch.testing.assert_close(block(states, turned, key_mask=mask).context, expected)
    torch.testing.assert_close(block(states, other[:1].expand(B, -1, -1)).context[0], block(states[:1], other[:1]).context[0])


@EVERY
@pytest.mark.parametrize(("batch", "target", "source"), [(0, T, S), (B, 0, S), (B, T, 0), (1, 1, 1)])
@pytest.mark.parametrize("masked", [True, False])
def test_empty_and_single_axes_are_fine(form, batch, target, source, masked):
    mask = torch.ones(batch, source, dtype=torch.bool) if masked else None
    states, other = torch.ones(batch, target, D).double(), torch.ones(batch, source, D).double()
    for asked in (True, False):
        context, weights = build(form)(states, other, key_mask=mask, need_weights=asked)
        assert context.shape == (batch, target, D)
        assert (weights is not None) == asked
        if source == 0:
            assert torch.equal(context, states)


@pytest.mark.parametrize(
    ("form", "asked"), [("gaussian", False), ("embedded_gaussian", True), ("dot", False), ("dot", True), ("concat", False)]
)
def test_compiled_and_exported_it_computes_the_same(form, asked):
    block = build(form, torch.float32)
    states, other, mask = inputs(dtype=torch.float32)
    expected = block(states, other, key_mask=mask, need_weights=asked)
    torch.compiler.reset()
    compiled = torch.compile(block, fullgraph=True, backend="eager")(states, other, key_mask=mask, need_weights=asked)
    torch.testing.assert_close(compiled.context, expected.context)
    place = torch.export.Dim("place", min=2, max=97)
    program = torch.export.export(
        block,
        (states, other),
        {"key_mask": mask, "need_weights": asked},
        dynamic_shapes={"states": None, "other": {1: place}, "key_mask": {1: place}, "need_weights": None},
    )
    for size in (2, S):
        found = program.module()(states, other[:, :size], key_mask=mask[:, :size], need_weights=asked)
        torch.testing.assert_close(found.context, block(states, other[:, :size], key_mask=mask[:, :size]).context)


def test_wrong_settings_and_shapes_are_refused_with_what_was_found():
    x, v = torch.zeros(B, T, D), torch.zeros(B, T, C)
    for match, call in (
        (r"form must be one of gaussian, .*found 'cosine'", lambda: ops.nonlocal_attention(x, x, v, form="cosine")),
        (r"\(2, 3, 6\) and key \(2, 3, 5\)", lambda: ops.nonlocal_attention(x, v, v)),
        (r"key \(2, 3, 6\) and value \(2, 2, 5\)", lambda: ops.nonlocal_attention(x, x, v[:, :2])),
        (r"\(12,\), found none", lambda: ops.nonlocal_attention(x, x, v, form="concat")),
        (r"\(12,\), found \(6,\)", lambda: ops.nonlocal_attention(x, x, v, torch.zeros(D), form="concat")),
        (r"only form='concat' takes a vector", lambda: ops.nonlocal_attention(x, x, v, torch.zeros(2 * D), form="dot")),
        (r"boolean .*torch.float32", lambda: ops.nonlocal_attention(x, x, v, mask=torch.ones(T, T))),
        (r"\(7,\).*\(2, 3, 3\)", lambda: ops.nonlocal_attention(x, x, v, mask=torch.ones(7, dtype=torch.bool))),
        (r"\(B, T, 6\), found \(2, 3, 5\)", lambda: NonLocal(D)(v)),
        (r"\(2, S, 6\), found \(1, 3, 6\)", lambda: NonLocal(D)(x, x[:1])),
        (r"\(B, S\) = \(2, 3\), found \(2, 7\)", lambda: NonLocal(D)(x, key_mask=torch.ones(B, 7, dtype=torch.bool))),
    ):
        with pytest.raises(ShapeError, match=match):
            call()
    for match, call in (
        (r"form should be .*found 'cosine'", lambda: NonLocal(D, form="cosine")),
        (r"inner_dim should be greater than or equal to 1, found 0", lambda: NonLocal(D, 0)),
        (r"other_dim must be dim = 6, found 10", lambda: NonLocal(D, form="gaussian", other_dim=DS)),
    ):
        with pytest.raises(ConfigError, match=match):
            call()


def test_parameter_names_and_shapes_are_frozen():
    found = {form: {name: tuple(v.shape) for name, v in NonLocal(D, C, form=form).state_dict().items()} for form in FORMS}
    plain = {"value.weight": (C, D), "output.weight": (D, C)}
    embedded = plain | {"query.weight": (C, D), "key.weight": (C, D)}
    assert found == {"gaussian": plain, "embedded_gaussian": embedded, "dot": embedded, "concat": embedded | {"vector": (2 * C,)}}
    assert NonLocal(D).inner_dim == D // 2
    assert "form='dot'" in repr(NonLocal(D, form="dot"))
