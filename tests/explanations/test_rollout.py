"""Rollout against plain matrix products, flow against networkx, ALTI against a loop; and a model that copies, which all must get right."""

from __future__ import annotations

from typing import Any, cast

import networkx
import pytest
import torch
from torch import Tensor

from regard.attention import record_weights
from regard.config import EntailmentModelConfig
from regard.errors import ConfigError
from regard.explanations import METHODS, LabelBatch, TranslationBatch, alti, attention_flow, attention_rollout, explain, leave_one_area_out
from regard.models import build_classifier
from tests.explanations.models import batch_of, pairs, sorter


def test_rollout_of_an_encoder_is_a_product_of_matrices() -> None:
    batch = cast(LabelBatch, batch_of("label transformer"))
    with record_weights() as recorded, torch.no_grad():
        batch.log_probs()
    product = torch.eye(7, dtype=torch.float64).expand(3, -1, -1)
    for each in recorded[:-1]:
        product = (each.weights.mean(1) / 2 + torch.eye(7, dtype=torch.float64) / 2) @ product
    pooled = recorded[-1].weights[:, 0].mean(1, keepdim=True)
    torch.testing.assert_close(attention_rollout(batch), pooled @ product)


def test_explanations_of_a_crossed_encoder_take_the_weights_that_it_computed() -> None:
    encoder = {"type": "crossed", "num_layers": 1, "num_heads": 1, "ff_dim": 8, "norm": "post", "residual": "own"}
    config = EntailmentModelConfig.model_validate(
        {"embed_dim": 8, "pooling": "mean", "mlp_dim": None, "fusion": "features", "encoder": encoder}
    )
    torch.manual_seed(3)
    model = build_classifier(config, vocab_size=19, classes=3, unknown=1).double().eval()
    texts = [torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]]), torch.tensor([[10, 11, 12, 13], [14, 15, 0, 0]])]
    lengths, labels = [torch.tensor([5, 3]), torch.tensor([4, 2])], torch.tensor([0, 1])
    together = LabelBatch(model, texts, lengths, labels)
    alone = LabelBatch(model, [texts[0][1:, :3], texts[1][1:, :2]], [each[1:] for each in lengths], labels[1:])
    for method in (attention_rollout, alti):
        torch.testing.assert_close(method(together)[1:, :, [0, 1, 2, 5, 6]], method(alone))


def test_rollout_of_a_decoder_is_a_product_of_matrices() -> None:
    batch = cast(TranslationBatch, batch_of("transformer"))
    model: Any = batch.model
    with record_weights() as recorded, torch.no_grad():
        batch.log_probs()
    mean = {id(each.attention): each.weights.mean(1) for each in recorded}
    columns, rows = batch.source.shape[1], batch.target_input.shape[1]
    source = torch.eye(columns, columns + rows, dtype=torch.float64).expand(3, -1, -1)
    for layer in model.encoder.layers:
        source = mean[id(layer.attention)] @ source / 2 + source / 2
    target = torch.cat([torch.zeros(rows, columns), torch.eye(rows)], 1).double().expand(3, -1, -1)
    for layer in model.decoder.layers:
        target = mean[id(layer.attention)] @ target / 2 + target / 2
        target = mean[id(layer.cross_attention.attention)] @ source / 2 + target / 2
    torch.testing.assert_close(attention_rollout(batch), target * batch.outputs.unsqueeze(2))


@pytest.mark.parametrize("method", [attention_rollout, alti])
@pytest.mark.parametrize("name", ["transformer", "area", "area features", "label transformer", "entailment crossed", "caption transformer"])
def test_rows_sum_to_one_and_hold_no_padding(name: str, method: Any) -> None:
    batch = batch_of(name)
    found = method(batch)
    torch.testing.assert_close(found.sum(2), batch.outputs.double())
    assert (found >= 0).all()
    if isinstance(batch, TranslationBatch):
        ends = torch.arange(batch.source.shape[1]) >= batch.source_lengths.unsqueeze(1)
        assert (found[..., : batch.source.shape[1]] * ends.unsqueeze(1)).abs().max() == 0


def test_rollout_of_two_branches_sums_to_one() -> None:
    batch = batch_of("crossed")
    torch.testing.assert_close(attention_rollout(batch).sum(2), batch.outputs.double())


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_alti_of_a_layer_is_a_loop_over_vectors(norm: str) -> None:
    torch.manual_seed(7)
    batch = cast(LabelBatch, batch_of("label transformer" if norm == "pre" else "label post"))
    model: Any = batch.model
    layer = model.encoder.encoder.layers[0]
    model.encoder.encoder.layers = model.encoder.encoder.layers[:1]
    attention, inputs = layer.attention, []
    handle = layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    with record_weights() as recorded, torch.no_grad():
        batch.log_probs()
    handle.remove()
    weights, pooled = recorded[0].weights, recorded[1].weights[:, 0].mean(1)
    row, size = 1, 3  # an example of three words
    states = inputs[0][row, :size]
    given = layer.attention_norm(states) if norm == "pre" else states
    shares = torch.zeros(size, size, dtype=torch.float64)
    for i in range(size):
        parts = [_part(attention, weights[row, :, i, j], given[j]) + (states[i] if i == j else 0) for j in range(size)]
        result = sum(parts) + attention.output.bias
        if norm == "post":
            scale = (result.var(unbiased=False) + layer.attention_norm.eps).sqrt()
            result = layer.attention_norm(result)
            parts = [(part - part.mean()) / scale * layer.attention_norm.weight for part in parts]
        near = torch.stack([(result.abs().sum() - (result - part).abs().sum()).clamp(min=0) for part in parts])
        shares[i] = near / near.sum()
    torch.testing.assert_close(alti(batch)[row, 0, :size], (pooled[row, :size] @ shares).detach())


def _part(attention: Any, weights: Tensor, given: Tensor) -> Tensor:
    value = attention.value(given).unflatten(0, (2, -1))
    return attention.output.weight @ (weights.unsqueeze(1) * value).flatten()


@pytest.mark.parametrize("name", ["transformer", "crossed", "entailment crossed"])
def test_flow_is_that_of_networkx(name: str) -> None:
    from regard.explanations.rollout import attention_graph

    batch = batch_of(name)
    found, graph = attention_flow(batch), attention_graph(batch, "flow")
    network = networkx.DiGraph()
    stage = dict.fromkeys(graph.start, 0)
    for stream, start in graph.start.items():
        for row, column in start[0].nonzero().tolist():
            network.add_edge((stream, 0, row), column, capacity=start[0][row, column].item())
    for number, step in enumerate(graph.steps, start=1):
        for into, parts in step.items():
            for stream, shares in parts.items():
                for row, column in shares[0].nonzero().tolist():
                    network.add_edge((into, number, row), (stream, stage[stream], column), capacity=shares[0][row, column].item())
        stage |= dict.fromkeys(step, number)
    for output in range(min(2, found.shape[1])):
        for place in batch.inputs[0].nonzero().flatten().tolist():
            expected = networkx.maximum_flow_value(network, (graph.end, stage[graph.end], output), place)
            assert found[0, output, place].item() == pytest.approx(expected, abs=1e-4)  # pipes under 1e-6 are left out


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_on_a_model_that_copies_every_method_points_right(method: Any, norm: str) -> None:
    layers = 2 if method == "value-norms-layers" else 1  # the norms of one layer are `value-norms`
    batch = pairs(sorter(norm=norm, layers=layers), [[6, 4, 8, 5, 7], [8, 7, 6, 5, 4]], [[4, 5, 6, 7, 8]] * 2)
    assert batch.log_probs().exp().min() > 0.5
    found = leave_one_area_out(batch, 2).inputs if method == "leave-one-area-out" else explain(batch, method)
    assert found[:, :5].argmax(2).tolist() == [[1, 3, 0, 4, 2], [4, 3, 2, 1, 0]]


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("gru", "rollout", "rollout: RecurrentEncoderDecoder is no Transformer"),
        ("language", "flow", "flow: RecurrentLanguageModel is no Transformer"),
        *[("student", method, "the recurrent decoder of TransformerRecurrent has one attention") for method in ("rollout", "flow", "alti")],
        ("crossed", "alti", "ALTI: more than a linear map follows the attentions of this decoder"),
        ("transformer", "leave-one-area-out", "Transformer attends to single items, not to areas"),
        ("gru", "lime", "method 'lime': expected one of weights, rollout"),
    ],
)
def test_what_is_not_defined_is_refused_with_the_reason(name: str, method: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        explain(batch_of(name), method)
