"""From torch and back: the same numbers under torch's masks and Regard's, for every setting of torch's modules."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveScore, Areas, MultiHeadAttention
from regard.errors import ConfigError, ShapeError
from regard.integrations.torch import (
    Stacks,
    TorchAttention,
    from_torch,
    masks_from_torch,
    masks_to_torch,
    replace_attention,
    state_from_torch,
    state_to_torch,
    to_torch,
)
from regard.models import DecoderLayer, EncoderLayer, FeedForward, Source
from regard.models.crossed import CrossedSourceAttention

B, T, S, E, H, K, V, W = 2, 5, 7, 6, 2, 11, 13, 17
KEY_MASK = torch.tensor([[True] * S, [True] * 3 + [False] * 4])
PAIRS = torch.rand(T, S, generator=torch.Generator().manual_seed(3)) < 0.7
PAIRS[:, 0] = True
PER_HEAD = torch.rand(B * H, T, S, generator=torch.Generator().manual_seed(5)) < 0.7
PER_HEAD[..., 0] = True


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def randomised(module: Any) -> Any:
    """No parameter at its first value: biases are not zeros, norms not ones."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return module.double().eval()


def numbers(hidden: Tensor | None) -> Tensor | None:
    """A boolean mask of torch's as numbers to add."""
    return None if hidden is None else torch.zeros(hidden.shape, dtype=torch.float64).masked_fill(hidden, -torch.inf)


def attention(**settings: Any) -> nn.MultiheadAttention:
    return randomised(nn.MultiheadAttention(E, H, **{"batch_first": True} | settings))


def equal_states(one: Any, other: Any) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": K, "vdim": K}, {"kdim": K, "vdim": V}, {"vdim": V}], ids=str)
@pytest.mark.parametrize("pairs", [None, ~PAIRS, ~PER_HEAD, numbers(~PAIRS)], ids=["none", "pairs", "heads", "numbers"])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_equals_torchs_with_its_masks_converted_and_comes_back_equal(bias, sizes, pairs, padded):
    theirs = attention(bias=bias, **sizes)
    ours = MultiHeadAttention.from_torch(theirs)
    query, key, value = draw(B, T, E), draw(B, S, sizes.get("kdim", E)), draw(B, S, sizes.get("vdim", E))
    padding = ~KEY_MASK if padded else None
    masks = masks_from_torch(pairs, padding, num_heads=H)
    found = ours(query, key, value, **masks._asdict(), need_weights=True)
    given = {"attn_mask": pairs, "key_padding_mask": padding if pairs is None or pairs.dtype == torch.bool else numbers(padding)}
    context, weights = theirs(query, key, value, **given, average_attn_weights=False)
    torch.testing.assert_close(found.context, context)
    torch.testing.assert_close(found.weights, weights)
    back = masks_to_torch(masks.mask, masks.key_mask, num_heads=H)
    torch.testing.assert_close(theirs(query, key, value, **back)[0], context)
    for batch_first in (True, False):
        again = ours.to_torch(batch_first=batch_first)
        equal_states(again, theirs)
        assert again.batch_first == batch_first
    wrapped = TorchAttention(ours, batch_first=True)(query, key, value, **given)
    torch.testing.assert_close(wrapped, theirs(query, key, value, **given))


def test_a_mask_for_each_sentence_goes_to_torch_once_for_each_head():
    theirs = attention()
    ours = MultiHeadAttention.from_torch(theirs)
    query, key, mask = draw(B, T, E), draw(B, S, E), PER_HEAD[:B]
    expected = ours(query, key, key, mask=mask).context
    torch.testing.assert_close(theirs(query, key, key, **masks_to_torch(mask, num_heads=H))[0], expected)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_the_wrapper_has_torchs_layout_weights_and_unbatched_inputs(batch_first, average, same):
    theirs = attention(batch_first=batch_first)
    ours = TorchAttention(MultiHeadAttention.from_torch(theirs), batch_first=batch_first)
    query = draw(B, S, E) if batch_first else draw(S, B, E)
    key = query if same else draw(*query.shape) + 1
    hidden = {"key_padding_mask": ~KEY_MASK, "attn_mask": ~ops.causal_mask(S, S), "average_attn_weights": average, "is_causal": True}
    torch.testing.assert_close(ours(query, key, key, **hidden), theirs(query, key, key, **hidden))
    assert ours(query, key, key, need_weights=False)[1] is None
    alone = {"key_padding_mask": ~KEY_MASK[1], "average_attn_weights": average}
    found = ours(draw(T, E), draw(S, E), draw(S, E), **alone)
    torch.testing.assert_close(found, theirs(draw(T, E), draw(S, E), draw(S, E), **alone))


def test_is_causal_alone_asks_for_a_causal_mask_of_squares():
    assert masks_from_torch(is_causal=True) == (None, None, True)
    ours = TorchAttention(MultiHeadAttention.from_torch(attention()), batch_first=True)
    x = draw(B, S, E)
    torch.testing.assert_close(ours(x, x, x, is_causal=True), ours(x, x, x, attn_mask=~ops.causal_mask(S, S)))
    with pytest.raises(ShapeError, match="5 queries cannot be placed among 7 keys"):
        ours(draw(B, T, E), x, x, is_causal=True)


def test_masks_that_cannot_be_converted_say_so():
    with pytest.raises(ShapeError, match="attn_mask: numbers other than 0 and -inf"):
        masks_from_torch(torch.full((T, S), -1.5))
    with pytest.raises(ShapeError, match=r"key_padding_mask: expected bool .* found torch.int64"):
        masks_from_torch(key_padding_mask=torch.ones(B, S, dtype=torch.long))
    with pytest.raises(ShapeError, match=r"attn_mask: expected 2 or 3 axes, found \(7,\)"):
        masks_from_torch(torch.ones(S, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"num_heads = 3, found \(4, 5, 7\)"):
        masks_from_torch(PER_HEAD, num_heads=3)
    with pytest.raises(ShapeError, match=r"\(B, T, S\) or \(B, H, T, S\), found torch.bool \(5, 7\)"):
        masks_to_torch(PAIRS)


def encoder_layer(**settings: Any) -> nn.TransformerEncoderLayer:
    return randomised(nn.TransformerEncoderLayer(E, H, W, **{"batch_first": True, "dropout": 0.3} | settings))


def decoder_layer(**settings: Any) -> nn.TransformerDecoderLayer:
    return randomised(nn.TransformerDecoderLayer(E, H, W, **{"batch_first": True, "dropout": 0.3} | settings))


SETTINGS = {
    "as published": {},
    "pre-norm": {"norm_first": True},
    "gelu": {"activation": "gelu"},
    "silu": {"activation": F.silu},
    "modules": {"activation": nn.GELU(), "norm_first": True},
    "no bias": {"bias": False},
    "no bias, pre-norm": {"bias": False, "norm_first": True},
    "another eps": {"layer_norm_eps": 0.1},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_layer_equals_torchs_and_comes_back(name, batch_first):
    theirs = encoder_layer(**SETTINGS[name], batch_first=batch_first)
    ours, x = from_torch(theirs), draw(B, S, E)
    given = x if batch_first else x.transpose(0, 1)
    expected = theirs(given, src_key_padding_mask=~KEY_MASK)
    expected = expected if batch_first else expected.transpose(0, 1)
    torch.testing.assert_close(ours(x, KEY_MASK)[KEY_MASK], expected[KEY_MASK])
    again = to_torch(ours, batch_first=batch_first)
    found = again(given, src_key_padding_mask=~KEY_MASK)
    found = found if batch_first else found.transpose(0, 1)
    torch.testing.assert_close(found[KEY_MASK], expected[KEY_MASK])
    assert [again.dropout.p, again.dropout1.p, again.dropout2.p, again.self_attn.dropout] == [0.3] * 4
    if "bias" not in SETTINGS[name]:
        equal_states(again, theirs)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_decoder_layer_equals_torchs_and_comes_back(name):
    theirs = decoder_layer(**SETTINGS[name])
    ours, x, source = from_torch(theirs), draw(B, T, E), draw(B, S, E)
    hidden = {"tgt_mask": ~ops.causal_mask(T, T), "memory_key_padding_mask": ~KEY_MASK}
    expected = theirs(x, source, **hidden)
    memories = ours.cross_attention.memories([Source(source, KEY_MASK)], for_decoding=False)
    torch.testing.assert_close(ours(x, memories)[0], expected)
    torch.testing.assert_close(to_torch(ours)(x, source, **hidden), expected)
    if "bias" not in SETTINGS[name]:
        equal_states(to_torch(ours), theirs)


def test_biases_that_torch_has_not_are_zeros_that_no_training_moves():
    ours = from_torch(encoder_layer(bias=False)).train()
    frozen = {name for name, parameter in ours.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"{part}.bias" for part in ("attention_norm", "feed_forward.hidden", "feed_forward.output", "feed_forward_norm")}
    ours(draw(B, S, E), None).sum().backward()
    assert all(parameter.grad is not None for name, parameter in ours.named_parameters() if name not in frozen)


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_stacks_and_whole_transformers_equal_torchs_and_come_back(norm, first):
    encoder = nn.TransformerEncoder(encoder_layer(norm_first=first), 2, nn.LayerNorm(E) if norm else None, enable_nested_tensor=False)
    decoder = nn.TransformerDecoder(decoder_layer(norm_first=first), 3, nn.LayerNorm(E) if norm else None)
    theirs = nn.Transformer(E, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    theirs = randomised(theirs)
    ours = from_torch(theirs)
    source, x = draw(B, S, E), draw(B, T, E)
    hidden = {"tgt_mask": ~ops.causal_mask(T, T), "src_key_padding_mask": ~KEY_MASK, "memory_key_padding_mask": ~KEY_MASK}
    expected = theirs(source, x, **hidden)
    states = ours.encoder(source, KEY_MASK)
    torch.testing.assert_close(ours.decoder(x, [Source(states, KEY_MASK)])[0], expected)
    again = to_torch(ours)
    torch.testing.assert_close(again(source, x, **hidden), expected)
    equal_states(again, theirs)
    assert isinstance(ours, Stacks)


def test_state_dicts_convert_without_modules():
    theirs = nn.Transformer(E, H, 2, 3, W, batch_first=True)
    state = theirs.state_dict()
    found = state_from_torch(state)
    ours = from_torch(theirs)
    expected = {f"{half}.{name}": x for half, part in ours._asdict().items() for name, x in part.state_dict().items()}
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    back = state_to_torch(found)
    assert set(back) == set(state)
    assert all(torch.equal(back[name], state[name]) for name in state)


REPLACED = [
    ("norm1", nn.GroupNorm(1, E)),
    ("norm2", nn.RMSNorm(E, eps=1e-5)),
    ("norm1", nn.RMSNorm(E)),
    ("norm2", nn.Identity()),
    ("norm1", nn.LayerNorm(E, elementwise_affine=False)),
    ("norm1", nn.BatchNorm1d(E)),
    ("linear1", nn.utils.parametrizations.weight_norm(nn.Linear(E, W))),
    ("linear2", nn.Sequential(nn.Linear(W, E))),
    ("dropout", nn.Identity()),
    ("dropout1", nn.AlphaDropout(0.5)),
]


@pytest.mark.parametrize(("name", "part"), REPLACED)
def test_a_part_that_computes_something_else_is_named(name, part):
    layer = encoder_layer()
    setattr(layer, name, part)
    with pytest.raises(ConfigError, match=f"TransformerEncoderLayer: its {name} {type(part).__name__}.* cannot be converted; expected a "):
        from_torch(layer)


def test_what_has_no_counterpart_is_named():
    layer = encoder_layer()
    layer.activation = torch.tanh
    tanh = encoder_layer()
    tanh.activation = nn.GELU(approximate="tanh")
    cross_attention = CrossedSourceAttention(MultiHeadAttention(E, H), MultiHeadAttention(E, H), FeedForward(E, W), FeedForward(E, W))
    for call, message in [
        (lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, add_bias_kv=True)), r"bias_k \(add_bias_kv=True\)"),
        (lambda: MultiHeadAttention.from_torch(nn.MultiheadAttention(E, H, add_zero_attn=True)), "add_zero_attn"),
        (lambda: MultiHeadAttention.from_torch(nn.Linear(E, E)), "found Linear"),
        (lambda: from_torch(nn.Linear(E, E)), "Linear cannot be converted"),
        (lambda: from_torch(layer), "activation tanh"),
        (lambda: from_torch(tanh), "activation GELU"),
        (lambda: from_torch(nn.TransformerEncoder(encoder_layer(), 1, nn.RMSNorm(E))), "norm RMSNorm"),
        (lambda: from_torch(nn.TransformerEncoder(encoder_layer(), 1, nn.LayerNorm(E, elementwise_affine=False))), "norm LayerNorm"),
        (lambda: MultiHeadAttention(E, H, areas=Areas(2)).to_torch(), "areas"),
        (lambda: MultiHeadAttention(E, H, score=AdditiveScore(3, 3, 5)).to_torch(), "score"),
        (lambda: MultiHeadAttention(E, H, head_dim=5).to_torch(), "heads of 10 numbers"),
        (
            lambda: to_torch(DecoderLayer(MultiHeadAttention(E, H), cross_attention, FeedForward(E, W), pre=False, dropout=0.0)),
            "cross_attention CrossedSourceAttention",
        ),
        (lambda: to_torch(EncoderLayer(MultiHeadAttention(E, H, areas=Areas(2)), FeedForward(E, W), pre=False, dropout=0.0)), "areas"),
        (lambda: to_torch(nn.Linear(E, E)), "Linear"),
        (lambda: state_from_torch({"linear3.weight": torch.ones(1)}), "linear3.weight"),
        (lambda: state_to_torch({"areas.width": torch.ones(1)}), "areas.width"),
        (lambda: state_to_torch({"layers.0.cross_attention.left.query.weight": torch.ones(1)}), "cross_attention.left"),
        (lambda: replace_attention(nn.Linear(E, E)), "holds no torch.nn.MultiheadAttention"),
        (lambda: replace_attention(encoder_layer(), areas=3), r"areas 3: expected a function that makes areas, such as lambda: Areas\(3\)"),
        (lambda: replace_attention(encoder_layer(), areas=Areas(3)), "expected a function that makes areas"),
    ]:
        with pytest.raises(ConfigError, match=message):
            call()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_it_stands_in_whole_torch_models_with_the_same_result_and_with_areas(training, nested):
    stack = nn.TransformerEncoder(encoder_layer(dropout=0.0), 2, enable_nested_tensor=nested).train(training)
    x = draw(B, S, E)
    for hidden in ({}, {"src_key_padding_mask": ~KEY_MASK}, {"mask": ~ops.causal_mask(S, S), "is_causal": True}):
        expected = stack(x, **hidden)
        found = replace_attention(copy.deepcopy(stack))(x, **hidden)
        torch.testing.assert_close(found[KEY_MASK], expected[KEY_MASK])
        other = replace_attention(copy.deepcopy(stack), areas=lambda: Areas(3))(x, **hidden)
        assert not torch.allclose(other[KEY_MASK], expected[KEY_MASK], atol=1e-2)


class OwnAttention(nn.MultiheadAttention):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        context, weights = super().forward(*inputs, **named)
        return 2 * context, weights


class OwnLayer(nn.TransformerEncoderLayer):
    def _ff_block(self, x: Tensor) -> Tensor:
        return 2 * super()._ff_block(x)


def test_what_computes_something_else_than_its_class_is_named():
    for kind, layer, name in [("OwnAttention", OwnAttention(E, H), "forward"), ("OwnLayer", OwnLayer(E, H, W), "_ff_block")]:
        with pytest.raises(ConfigError, match=f"{kind}: its own {name} cannot be converted; expected a plain "):
            from_torch(layer)
    patched = encoder_layer()
    patched.forward = lambda x: x
    with pytest.raises(ConfigError, match="its own forward"):
        from_torch(patched)
    with pytest.raises(ConfigError, match=r"TransformerEncoder: layers\.0: hooks and patched methods would be lost"):
        from_torch(nn.TransformerEncoder(patched, 1))
    model = nn.ModuleList([nn.MultiheadAttention(E, H), OwnAttention(E, H)])
    with pytest.raises(ConfigError, match="OwnAttention"):
        replace_attention(model)
    assert type(model[0]) is nn.MultiheadAttention
    hooked = nn.ModuleList([nn.MultiheadAttention(E, H)])
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="MultiheadAttention: hooks and patched methods would be lost"):
        replace_attention(hooked)
    layer = encoder_layer()
    layer.linear1.register_full_backward_pre_hook(lambda *_: None)
    with pytest.raises(ConfigError, match="TransformerEncoderLayer: linear1: hooks and patched methods would be lost"):
        from_torch(layer)
    inner = encoder_layer()
    inner.linear2.forward = lambda x: x
    with pytest.raises(ConfigError, match="linear2: hooks and patched methods"):
        from_torch(inner)


class OwnHeads(MultiHeadAttention):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return super().forward(*inputs, **named)


def test_so_is_what_would_not_come_back() -> None:
    with pytest.raises(ConfigError, match="OwnHeads: its own forward cannot be converted"):
        OwnHeads(E, H).to_torch()
    tied = nn.MultiheadAttention(E, H, kdim=5, vdim=7)
    tied.v_proj_weight = tied.k_proj_weight
    with pytest.raises(ConfigError, match=r"k_proj_weight and .*v_proj_weight are one weight"):
        from_torch(tied)
    encoder = from_torch(nn.TransformerEncoder(encoder_layer(), 2))
    encoder.layers[1] = encoder.layers[0]
    with pytest.raises(ConfigError, match="are one weight: the conversion would untie them"):
        to_torch(encoder)


def test_shared_weights_stay_shared_or_are_named():
    attention = nn.MultiheadAttention(E, H)
    shared = nn.ModuleDict({"a": attention, "b": nn.ModuleList([attention, nn.MultiheadAttention(E, H)]), "c": nn.Linear(E, E)})
    replace_attention(shared)
    assert shared["a"] is shared["b"][0]
    assert shared["a"] is not shared["b"][1]
    assert not any(isinstance(part, nn.MultiheadAttention) for part in shared.modules())
    tied = nn.ModuleDict({"a": nn.MultiheadAttention(E, H), "c": nn.Linear(E, E)})
    tied["a"].out_proj.weight = tied["c"].weight
    with pytest.raises(ConfigError, match=r"ModuleDict: a\.out_proj\.weight and c\.weight are one weight: the conversion would untie them"):
        replace_attention(tied)
    others = nn.ModuleDict({"a": nn.MultiheadAttention(E, H), "c": nn.Linear(E, E), "d": nn.Linear(E, E)})
    others["c"].weight = others["d"].weight
    assert replace_attention(others)["c"].weight is others["d"].weight
    stack = nn.TransformerEncoder(encoder_layer(), 2)
    stack.layers[1] = stack.layers[0]
    with pytest.raises(ConfigError, match=r"layers\.0\.self_attn\.in_proj_weight and layers\.1\.self_attn\.in_proj_weight are one weight"):
        from_torch(stack)


def test_frozen_weights_stay_frozen():
    theirs = nn.TransformerEncoderLayer(6, 2, 7, batch_first=True).requires_grad_(False)
    theirs.linear1.weight.requires_grad_(True)
    ours = from_torch(theirs)
    assert [name for name, own in ours.named_parameters() if own.requires_grad] == ["feed_forward.hidden.weight"]
    assert [name for name, own in to_torch(ours).named_parameters() if own.requires_grad] == ["linear1.weight"]
    replaced = replace_attention(nn.TransformerEncoderLayer(6, 2, 7, batch_first=True).requires_grad_(False))
    assert not any(own.requires_grad for own in replaced.parameters())
    partly = nn.MultiheadAttention(6, 2, batch_first=True)
    partly.out_proj.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(partly)
    assert (ours.query.weight.requires_grad, ours.output.weight.requires_grad) == (True, False)
