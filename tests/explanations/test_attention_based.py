"""The shown attention: its weights, norms of weighted values against loops, gradients of weights against changed weights."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch

from regard.attention import record_weights
from regard.errors import ConfigError
from regard.explanations import LabelBatch, TranslationBatch, attention_weights, gradient_times_attention, value_norms
from tests.explanations.models import NAMES, batch_of

# No attention; the first token has nothing to look back to; a local window takes some away.
NOT_ONE = ("no attention", "language without attention", "language", "luong")


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_ONE])
def test_weights_sum_to_one_at_each_output(name: str) -> None:
    batch = batch_of(name)
    torch.testing.assert_close(attention_weights(batch).sum(2), batch.outputs.double())


@pytest.mark.parametrize(("name", "layers"), [("transformer", 2), ("area", 2)])
def test_norms_are_those_of_a_loop_over_heads_and_positions(name: str, layers: int) -> None:
    batch = cast(TranslationBatch, batch_of(name))
    model: Any = batch.model
    attention = model.decoder.layers[layers - 1].cross_attention.attention
    with record_weights() as recorded, torch.no_grad():
        batch.log_probs()
        states = model.encode(batch.source, batch.source_lengths)[0].states
    weights = next(each.weights for each in recorded if each.attention is attention)
    found, size = value_norms(batch), attention.head_dim
    for row, target, source in ((0, 2, 4), (2, 1, 0)):
        total = torch.zeros(12, dtype=torch.float64)
        for head in range(2):
            part = slice(head * size, (head + 1) * size)
            value = attention.value.weight[part] @ states[row, source] + attention.value.bias[part]
            total = total + weights[row, head, target, source] * (attention.output.weight[:, part] @ value)
        torch.testing.assert_close(found[row, target, source], total.norm().detach())


@pytest.mark.parametrize("name", ["transformer", "area", "crossed", "caption transformer"])
def test_norms_of_all_layers_are_the_sum_of_those_of_each(name: str) -> None:
    batch = batch_of(name)
    model: Any = batch.model
    if len(model.decoder.layers) < 2:
        with pytest.raises(ConfigError, match="shows the only attention it has; take value-norms"):
            value_norms(batch, every_layer=True)
        return
    expected = torch.zeros_like(value_norms(batch))
    for layer in range(len(model.decoder.layers)):
        model.decoder.alignment_layer = layer
        expected += value_norms(batch)
    torch.testing.assert_close(value_norms(batch, every_layer=True), expected)


def test_norms_without_projections_are_those_of_the_encoder_states() -> None:
    batch = cast(TranslationBatch, batch_of("gru"))
    model: Any = batch.model
    states = model.encoder(model.source_embedding(batch.source), batch.source_lengths).states
    torch.testing.assert_close(value_norms(batch), (attention_weights(batch) * states.norm(dim=-1).unsqueeze(1)).detach())


def test_norms_of_hops_are_those_of_all_of_them_joined() -> None:
    batch = cast(LabelBatch, batch_of("label lstm"))
    found = batch.model.classify(batch.tokens, batch.lengths).pooled[0]
    assert found.weights is not None
    states = batch.model.encoder([batch.model.embedding(batch.tokens[0])], batch.lengths)[0]
    joined = (found.weights.unsqueeze(-1) * states.unsqueeze(1)).transpose(1, 2).flatten(2)  # (B, S, hops times D)
    torch.testing.assert_close(value_norms(batch)[:, 0], joined.norm(dim=-1).detach())


@pytest.mark.parametrize("name", ["lstm area", "area features", "crossed", "show soft", "language", "entailment crossed"])
def test_gradients_are_there_for_outputs_and_inputs_alone(name: str) -> None:
    batch = batch_of(name)
    found = gradient_times_attention(batch)
    assert found.shape == (*batch.outputs.shape, batch.inputs.shape[1])
    assert (found[~batch.outputs] == 0).all()
    assert found[batch.outputs].abs().max() > 1e-6


@pytest.mark.parametrize(("name", "target", "source"), [("gru", 2, 3), ("show soft", 1, 5)])
def test_gradients_of_a_recurrent_model_are_those_of_a_small_step(name: str, target: int, source: int) -> None:
    batch = batch_of(name)
    model: Any = batch.model
    step, calls, before = 1e-6, [], batch.log_probs()

    def grow(_module: Any, _args: Any, weights: torch.Tensor) -> torch.Tensor:
        calls.append(weights)
        if len(calls) - 1 != target:
            return weights
        grown = weights.clone()
        grown[0, 0, source] *= 1 + step
        return grown

    handle = model.decoder.attention.dropout.register_forward_hook(grow)
    change = (batch.log_probs() - before)[0, target] / step
    handle.remove()
    torch.testing.assert_close(gradient_times_attention(batch)[0, target, source], change.detach(), atol=1e-6, rtol=1e-4)  # a finite step


def test_gradients_of_hops_are_those_of_a_small_step() -> None:
    batch = cast(LabelBatch, batch_of("label lstm"))
    pooling, step = batch.model.pooling, 1e-6
    found = gradient_times_attention(batch)
    ask = type(pooling).forward

    def grown(hop: int, place: int) -> torch.Tensor:
        def forward(states: torch.Tensor, **settings: Any) -> Any:
            out = ask(pooling, states, key_mask=settings["key_mask"], need_weights=True)
            assert out.weights is not None
            context = out.context.clone()
            context[:, hop] += step * out.weights[:, hop, place].unsqueeze(1) * states[:, place]
            return out._replace(context=context)

        pooling.__dict__["forward"] = forward
        try:
            return (batch.log_probs() - before) / step
        finally:
            del pooling.__dict__["forward"]

    before = batch.log_probs()
    for place in (0, 2):
        change = torch.stack([grown(hop, place) for hop in range(3)]).sum(0)
        torch.testing.assert_close(found[:, :, place], change.detach(), atol=1e-6, rtol=1e-4)  # a finite step


@pytest.mark.parametrize("name", ["transformer", "area"])
def test_gradients_of_a_transformer_are_those_of_a_small_step(name: str) -> None:
    batch = cast(TranslationBatch, batch_of(name))
    model: Any = batch.model
    attention, step, (row, target, source) = model.decoder.layers[1].cross_attention.attention, 1e-6, (0, 1, 3)
    with record_weights() as recorded, torch.no_grad():
        batch.log_probs()
        states = model.encode(batch.source, batch.source_lengths)[0].states
    weights = next(each.weights for each in recorded if each.attention is attention)[row, :, target, source]
    values = attention.value(states)[row, source].unflatten(0, (2, -1))
    extra = (step * weights.unsqueeze(1) * values).flatten()

    def add(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        context = args[0].clone()
        context[row, target] += extra
        return (context,)

    before = batch.log_probs()
    handle = attention.output.register_forward_pre_hook(add)
    change = (batch.log_probs() - before)[row, target] / step
    handle.remove()
    torch.testing.assert_close(gradient_times_attention(batch)[row, target, source], change.detach(), atol=1e-6, rtol=1e-4)  # a finite step


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("no attention", attention_weights, "weights: RecurrentEncoderDecoder has no attention to show"),
        ("no attention", value_norms, "value norms: RecurrentEncoderDecoder has no attention"),
        ("label mean", gradient_times_attention, "gradient x attention: mean-pooling has no weights"),
        ("show hard", gradient_times_attention, "hard attention selects one position, which has no gradient"),
        ("gru", partial(value_norms, every_layer=True), "RecurrentEncoderDecoder shows the only attention it has; take value-norms"),
        ("language without attention", value_norms, "value norms: RecurrentLanguageModel has no attention"),
    ],
)
def test_what_is_not_defined_is_refused_with_the_reason(name: str, method: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        method(batch_of(name))
