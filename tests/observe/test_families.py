"""Eight families in training and in eval: each call is seen, its weights explain its output, and the model does what it would unwatched."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.observe import Recording
from tests.observe.families import DROPOUT, FAMILIES, Family, timm_works
from tests.observe.spy import Spy, assert_explained

# torch says so of the batches without padding that its encoder makes.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    if request.param.startswith("timm") and not timm_works():
        pytest.skip("timm is not installed, or does not load (pip install '.[vision]'); the family `vision` makes the same calls")
    return FAMILIES[request.param]()


def run(family: Family, *, training: bool) -> tuple[Tensor, Tensor, list[Tensor | None]]:
    """Run a model from one state of the random numbers: its output, the state it leaves, and in training its gradients."""
    family.model.train(training).zero_grad()
    torch.manual_seed(7)
    with torch.set_grad_enabled(training):
        output = family()
        state = torch.get_rng_state()
        if training:
            output.square().mean().backward()
    return output.detach(), state, [parameter.grad for parameter in family.model.parameters()]


def watched(family: Family, *, training: bool, **options: Any) -> tuple[Recording, tuple[Tensor, Tensor, list[Tensor | None]]]:
    with regard.watch(family.model, **options) as seen:
        found = run(family, training=training)
    return seen, found


@MODES
def test_each_call_is_recorded_and_the_model_is_the_same_to_the_bit(family: Family, training: bool) -> None:
    before, state, gradients = run(family, training=training)
    seen, (output, left, same) = watched(family, training=training)
    assert [(call.layer, call.kind, *call.weights.shape[1:]) for call in seen] == family.calls
    assert seen.unseen == []
    assert torch.equal(output, before)
    assert torch.equal(left, state)
    for own, expected in zip(same, gradients, strict=True):
        assert (own is None and expected is None) or torch.equal(own, expected)
    assert not any(hooks for module in family.model.modules() for hooks in (module._forward_hooks, module._forward_pre_hooks))


@MODES
def test_weights_times_values_are_the_output_of_each_call(family: Family, training: bool) -> None:
    with Spy() as spy:
        seen, _ = watched(family, training=training)
    assert len(spy.calls) == len(seen) == len(family.calls)
    for call, told in zip(seen, spy.calls, strict=True):
        assert_explained(call.weights, told, DROPOUT if training else 0.0)
        assert call.weights.dtype == torch.float32
        assert not call.weights.requires_grad


def context_of(attention: nn.MultiheadAttention, states: Tensor, weights: Tensor) -> Tensor:
    """What an attention makes of weights (B, H, T, S): values of `states`, summed, and projected."""
    _, _, value = torch.nn.functional.linear(states, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    context = weights @ value.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
    return attention.out_proj(context.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("mask", ["padding", "pairs", "both", "none"])
def test_the_fused_way_of_an_encoder_layer_is_explained(mask: str, norm_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.TransformerEncoderLayer(22, 2, 13, batch_first=True, norm_first=norm_first).eval()
    states, masks = torch.randn(3, 7, 22), {}
    if mask in ("padding", "both"):
        masks["src_key_padding_mask"] = torch.arange(7) >= torch.tensor([7, 6, 4])[:, None]
    if mask in ("pairs", "both"):
        masks["src_mask"] = nn.Transformer.generate_square_subsequent_mask(7).isinf()
    fused: list[Any] = []
    original = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: fused.append(args) or original(*args))
    with torch.no_grad():
        before = layer(states, **masks)
        with regard.watch(layer) as seen:
            output = layer(states, **masks)
        assert len(fused) == 2  # it was called, and called inside the block
        assert torch.equal(output, before)
        first = layer.norm1(states) if norm_first else states
        middle = states + context_of(layer.self_attn, first, seen.map("self_attn").weights)
        last = middle if norm_first else layer.norm1(middle)
        last = last + layer._ff_block(layer.norm2(last) if norm_first else last)
        torch.testing.assert_close(output, last if norm_first else layer.norm2(last), atol=1e-6, rtol=1e-6)


def test_an_encoder_that_leaves_padding_out_keeps_its_zeros_and_gives_maps_of_the_whole_batch() -> None:
    family = FAMILIES["nn.TransformerEncoder"]()
    _, (output, _, _) = watched(family, training=False)
    real = ~family.kwargs["src_key_padding_mask"]
    assert output[~real].eq(0).all()  # the slow way would put numbers there
    seen, _ = watched(family, training=False)
    weights = seen.map("layers.1.self_attn").weights
    torch.testing.assert_close(weights.sum(-1), real[:, None].expand(3, 2, 7).float(), atol=1e-6, rtol=1e-6)
    assert weights.masked_select(~real[:, None, None]).eq(0).all()


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("case", ["fused", "mask", "lengths", "sequence first", "unbatched", "sizes", "added"])
def test_multi_head_attention_is_explained_however_it_is_called(case: str, need_weights: bool) -> None:
    settings: dict[str, Any] = {"sizes": {"kdim": 5, "vdim": 3}, "added": {"add_bias_kv": True, "add_zero_attn": True}}.get(case, {})
    attention = nn.MultiheadAttention(22, 2, batch_first=case != "sequence first", **settings).eval()
    x = torch.randn(7, 22) if case == "unbatched" else torch.randn(3, 7, 22)
    given: tuple[Tensor, ...] = (x, torch.randn(3, 5, 5), torch.randn(3, 5, 3)) if case == "sizes" else (x, x, x)
    options: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False}
    if case == "mask":
        options["attn_mask"] = torch.randn(7, 7)
    if case == "lengths":
        options["key_padding_mask"] = torch.arange(7) >= torch.tensor([7, 6, 4])[:, None]
    with torch.no_grad():
        expected, expected_weights = attention(*given, **options)
        with regard.watch(attention) as seen:
            output, weights = attention(*given, **options)
    assert torch.equal(output, expected)
    assert [(call.layer, call.kind) for call in seen] == [("MultiheadAttention", "cross" if case == "sizes" else "self")]
    if need_weights:
        assert torch.equal(weights, expected_weights)
        torch.testing.assert_close(seen[0].weights, weights if weights.dim() == 4 else weights[None], atol=1e-6, rtol=1e-6)
    elif case in ("fused", "mask", "lengths"):
        torch.testing.assert_close(context_of(attention, x, seen[0].weights), output, atol=1e-6, rtol=1e-6)
