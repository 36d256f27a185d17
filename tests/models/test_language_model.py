"""The language model: chunks add up to the whole, steps to chunks, padding changes nothing, and the published form is what is computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from regard.config import LanguageConfig, LanguageModelConfig, validate
from regard.errors import ConfigError
from regard.models import RecurrentLanguageModel, StreamState, build_language_model
from tests.reference.key_value import attend, ngram

ATTENTIONS = {"none": 1, "plain": 1, "key_value": 2, "key_value_predict": 3, "ngram": 3}
SIZE = 19


def model(attention: str = "key_value", **settings: Any) -> RecurrentLanguageModel:
    torch.manual_seed(7)
    tree = {"attention": attention, "embed_dim": 5, "hidden_size": 12, "window": 4, "num_layers": 2, **settings}
    return build_language_model(LanguageModelConfig.model_validate(tree), vocab_size=SIZE).double().eval()


def text(rows: int = 3, size: int = 11) -> torch.Tensor:
    return torch.randint(4, SIZE, (rows, size), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_model_is_that_of_the_paper(attention: str, tied: bool) -> None:
    built, tokens = model(attention, tie_embeddings=tied), text(1)
    lstm = nn.LSTM(5, 12, num_layers=2, batch_first=True).double()
    for layer in range(2):
        part, cell = built.stack.inputs[layer], built.stack.cells[layer]
        values = {"weight_ih": part.weight, "bias_ih": part.bias, "weight_hh": cell.weight, "bias_hh": torch.zeros(48)}
        lstm.load_state_dict({**lstm.state_dict(), **{f"{name}_l{layer}": value for name, value in values.items()}})
    states, _ = lstm(built.embedding.weight[tokens] * 5**0.5)
    expected = states[0].detach().numpy()
    if built.attention is not None:
        names = {"W_Y": built.attention.key, "W_h": built.attention.query, "W_r": built.attention.read, "W_x": built.attention.predict}
        weights = {name: part.weight.detach().numpy() for name, part in names.items()}
        weights["w"] = built.attention.vector.detach().numpy()
        expected, table = attend(expected, np.ones(11, bool), ATTENTIONS[attention], 4, weights)
        found = built.decode(tokens, need_weights=True).weights
        assert found is not None
        np.testing.assert_allclose(found[0, :, 4:].detach().numpy(), table, atol=1e-12)
    if built.ngram is not None:
        expected = ngram(expected, 4, built.ngram.output.weight.detach().numpy())
    if built.project is not None:
        expected = expected @ built.project.weight.detach().numpy().T
    np.testing.assert_allclose(built.decode(tokens).readout[0].detach().numpy(), expected, atol=1e-12)
    assert (built.output.weight is built.embedding.weight) == tied


@pytest.mark.parametrize("cuts", [(1, 10), (5, 6), (2, 2, 7), (11, 0), (0, 11)])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_chunks_add_up_to_the_whole(attention: str, cuts: tuple[int, ...]) -> None:
    built, tokens = model(attention), text()
    whole = built.decode(tokens)
    past, readouts = None, []
    for part in tokens.split(cuts, 1):
        found = built.decode(part, past)
        past, _ = found.past, readouts.append(found.readout)
    assert past is not None
    torch.testing.assert_close(torch.cat(readouts, 1), whole.readout)
    for one, other in zip(past, whole.past, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_steps_add_up_to_the_whole(attention: str) -> None:
    built, tokens = model(attention), text()
    state, logits = built.start(3), []
    for token in tokens.unsqueeze(2).unbind(1):
        found, weights, state = built.step(token, state)
        logits.append(found)
        assert weights is None
    torch.testing.assert_close(torch.cat(logits, 1), built.logits(built.decode(tokens).readout))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_state_follows_the_hypotheses_that_are_kept(attention: str) -> None:
    built, tokens = model(attention), text(6, 5).view(2, 3, 5)
    state = built.start(2).select(torch.tensor([0, 1]), torch.zeros(2, 3, dtype=torch.long))
    for column in tokens.unbind(2):
        _, _, state = built.step(column, state)
    kept, _, _ = built.step(torch.full((1, 2), 8), state.select(torch.tensor([1]), torch.tensor([[2, 0]])))
    for place, beam_size in enumerate((2, 0)):
        whole = built.decode(torch.cat([tokens[1, beam_size], torch.tensor([8])]).unsqueeze(0))
        torch.testing.assert_close(kept[0, place], built.logits(whole.readout[0, -1]))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_changes_nothing(attention: str) -> None:
    built, tokens = model(attention), text()
    lengths = torch.tensor([11, 3, 0])
    padded = torch.where(torch.arange(11) < lengths.unsqueeze(1), tokens, 0)
    sums, _ = built(padded, tokens, lengths)
    alone = [built(tokens[row : row + 1, :size], tokens[row : row + 1, :size], torch.tensor([size]))[0] for row, size in ((0, 11), (1, 3))]
    assert int(sums.tokens) == 14
    torch.testing.assert_close(sums.nll, alone[0].nll + alone[1].nll)
    gradients = torch.autograd.grad(sums.loss, list(built.parameters()), retain_graph=True)
    other = torch.autograd.grad(alone[0].loss + alone[1].loss, list(built.parameters()))
    for one, two in zip(gradients, other, strict=True):
        torch.testing.assert_close(one, two)


def test_the_attention_reaches_into_the_chunk_before_and_its_keys_are_made_anew() -> None:
    built, tokens = model(num_layers=1), text(1, 6)
    past = StreamState(*(part.detach() for part in built.decode(tokens[:, :5]).past))
    found = built.decode(tokens[:, 5:], past, need_weights=True)
    assert found.weights is not None
    assert found.weights.shape == (1, 1, 5)
    assert bool((found.weights[0, 0, :4] > 0).all())
    assert found.weights[0, 0, 4] == 0
    found.readout.sum().backward()
    assert built.attention is not None
    assert built.attention.key.weight.grad is not None
    assert bool(built.attention.key.weight.grad.any()), "W_Y learns from states of the chunk before"


def test_nothing_is_remembered_before_the_beginning() -> None:
    past = model().past(3)
    assert [tuple(part.shape) for part in past] == [(2, 3, 12), (2, 3, 12), (3, 4, 12), (3, 4)]
    assert not past.mask.any()
    assert model("none").past(3).outputs.shape == (3, 0, 12)
    assert model("ngram").past(3).outputs.shape == (3, 2, 12)
    assert model("ngram", order=2).past(3).outputs.shape == (3, 0, 12)


def test_rows_of_the_past_are_those_of_the_text() -> None:
    built, tokens = model(), text()
    past = built.decode(tokens[:, :7]).past.rows(torch.tensor([2, 0]))
    torch.testing.assert_close(built.decode(tokens[[2, 0], 7:], past).readout, built.decode(tokens).readout[[2, 0], 7:])


def test_the_names_of_the_parameters_are_fixed() -> None:
    expected = {
        "embedding.weight": (SIZE, 5),
        "stack.inputs.0.weight": (48, 5),
        "stack.inputs.0.bias": (48,),
        "stack.cells.0.weight": (48, 12),
        "attention.vector": (6,),
        "attention.key.weight": (6, 6),
        "attention.query.weight": (6, 6),
        "attention.read.weight": (6, 6),
        "attention.predict.weight": (6, 6),
        "project.weight": (5, 6),
        "output.weight": (SIZE, 5),
        "output.bias": (SIZE,),
    }
    assert {name: tuple(tensor.shape) for name, tensor in model(num_layers=1).state_dict().items()} == expected


@pytest.mark.parametrize(("attention", "parts"), [("key_value", 2), ("key_value_predict", 3), ("ngram", 3)])
def test_a_hidden_size_that_cannot_be_split_is_refused(attention: str, parts: int) -> None:
    tree = {"model": {"attention": attention, "hidden_size": 7}}
    with pytest.raises(ConfigError, match=rf"model: hidden_size \(7\) must be a multiple of {parts} for attention {attention}"):
        validate(tree, "here", kind=LanguageConfig)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_it_computes_in_bfloat16_and_remembers_in_float32(attention: str) -> None:
    built, tokens = model(attention).float(), text()
    lengths = torch.tensor([11, 7, 2])
    with torch.autocast("cpu", torch.bfloat16):
        first, past = built(tokens, tokens, lengths)
        second, _ = built(tokens, tokens, lengths, past)
    (first.loss + second.loss).backward()
    assert past.hidden.dtype == past.cell.dtype == past.outputs.dtype == torch.float32
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in built.parameters())
