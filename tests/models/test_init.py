"""How recurrent models start: what each module does to its input, for every `init`, not what its tables hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveScore, ConcatScore
from regard.config import AttentionConfig, RNNConfig
from regard.models import RecurrentCell, RecurrentEncoderDecoder, build

Init = Literal["scaled", "bahdanau", "luong"]
INITS: tuple[Init, ...] = ("scaled", "bahdanau", "luong")
SOURCE, TARGET, EMBED, HIDDEN = 499, 503, 101, 103
ADDITIVE = AttentionConfig(score="additive", attention_dim=97)
GENERAL = AttentionConfig(score="general", query_state="current", input_feeding=True)
CONCAT = AttentionConfig(score="concat", query_state="current", attention_dim=97)


def model_of(
    init: Init, *, cell: Literal["gru", "lstm", "tanh"] = "gru", attention: AttentionConfig = ADDITIVE, **changes: bool
) -> RecurrentEncoderDecoder:
    torch.default_generator.manual_seed(31)
    sizes = {"embed_dim": EMBED, "encoder_dim": HIDDEN, "decoder_dim": HIDDEN, "readout_dim": EMBED}
    config = RNNConfig.model_validate({"cell": cell, "init": init, "attention": attention, "dropout": 0.0, **sizes, **changes})
    return build(config, source_size=SOURCE, target_size=TARGET)


class Spread(NamedTuple):
    """How numbers lie around 0."""

    deviation: float
    largest: float
    kurtosis: float


def spread(values: Tensor) -> Spread:
    values = values.detach().double().flatten()
    variance = (values**2).mean()
    return Spread(float(variance.sqrt()), float(values.abs().max()), float((values**4).mean() / variance**2))


def is_normal(values: Tensor, deviation: float) -> bool:
    found = spread(values)
    return abs(found.deviation / deviation - 1) < 0.05 and 2.8 < found.kurtosis < 3.2


def is_uniform(values: Tensor, bound: float) -> bool:
    found = spread(values)
    return 0.97 * bound < found.largest <= bound and 1.7 < found.kurtosis < 1.9


def embedded(model: RecurrentEncoderDecoder) -> dict[str, Tensor]:
    return {
        "source": model.source_embedding(torch.arange(SOURCE)),
        "target": model.decoder.embedding(torch.arange(TARGET)),
    }


def responses(module: nn.Linear) -> tuple[Tensor, Tensor]:
    """What a linear layer adds to a zero input, and what it makes of each unit vector."""
    offset = module(torch.zeros(1, module.in_features))
    return offset, module(torch.eye(module.in_features)) - offset


def linears(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    return ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear))


@pytest.mark.parametrize("tied", [{}, {"tie_embeddings": True}], ids=["apart", "tied"])
@pytest.mark.parametrize("init", INITS)
def test_embedded_words_have_the_distribution_that_is_published(init: Init, tied: dict[str, bool]) -> None:
    expected: dict[Init, Callable[[Tensor], bool]] = {
        "scaled": lambda words: is_normal(words, 1.0),
        "bahdanau": lambda words: is_normal(words, 0.01),
        "luong": lambda words: is_uniform(words, 0.1),
    }
    for side, words in embedded(model_of(init, **tied)).items():
        assert expected[init](words), (side, spread(words))


@pytest.mark.parametrize("attention", [ADDITIVE, GENERAL, CONCAT], ids=["additive", "general", "concat"])
@pytest.mark.parametrize("init", ["bahdanau", "luong"])
def test_every_linear_layer_answers_with_the_published_distribution(init: Init, attention: AttentionConfig) -> None:
    model = model_of(init, attention=attention)
    score = getattr(model.decoder.attention, "score", None)
    of_score = [score.query, score.key] if isinstance(score, AdditiveScore) else []
    names = [name for name, _ in linears(model)]
    assert {"output", "bridge.hidden.0", "decoder.stack.inputs.0", "encoder.inputs.1"} <= set(names)
    for name, module in linears(model):
        offset, answers = responses(module)
        if init == "luong":
            assert is_uniform(answers, 0.1 * (1 + 1e-5)), (name, spread(answers))  # sums with a bias round
            assert spread(offset).largest <= 0.1
        else:
            assert is_normal(answers, 0.001 if any(module is part for part in of_score) else 0.01), (name, spread(answers))
            assert not offset.any(), name


def test_the_scaled_start_of_gates_is_uniform_in_one_over_the_root_of_the_state() -> None:
    model = model_of("scaled", cell="lstm")
    for module in (*model.encoder.inputs, *model.decoder.stack.inputs):
        assert isinstance(module, nn.Linear)
        offset, answers = responses(module)
        assert is_uniform(answers, HIDDEN**-0.5 * (1 + 1e-5))
        forget = offset[0, HIDDEN : 2 * HIDDEN]
        assert bool((forget == 1).all())
        assert int(offset.count_nonzero()) == HIDDEN


def recurrent_answer(cell: RecurrentCell) -> Tensor:
    """What a cell's candidate makes of its last state, from the derivative of a step at rest: all gates are half open."""
    rest = cell.initial(1)
    projected = torch.zeros(1, cell.weight.shape[0])

    def step(hidden: Tensor) -> Tensor:
        return cell(projected, (hidden, *rest[1:]))[0]

    found = torch.autograd.functional.jacobian(step, rest[0])
    assert isinstance(found, Tensor)
    slope = found[0, :, 0]
    if cell.kind == "gru":  # (1 - z) tanh(r U h) + z h
        return (slope - 0.5 * torch.eye(cell.hidden_size)) / 0.25
    return slope / 0.25 if cell.kind == "lstm" else slope  # o tanh(i tanh(U h))


@pytest.mark.parametrize("cell", ["gru", "lstm", "tanh"])
@pytest.mark.parametrize("init", INITS)
def test_recurrent_steps_are_orthogonal_or_uniform(init: Init, cell: Literal["gru", "lstm", "tanh"]) -> None:
    model = model_of(init, cell=cell, attention=ADDITIVE)
    cells = [module for module in model.modules() if isinstance(module, RecurrentCell)]
    assert len(cells) == 3
    for each in cells:
        if init == "luong" and each.bias is not None:
            nn.init.zeros_(each.bias)  # else the state at rest would not be zero
        answer = recurrent_answer(each)
        if init == "luong":
            assert is_uniform(answer, 0.1 * (1 + 1e-4)), spread(answer)
        else:
            torch.testing.assert_close(answer @ answer.T, torch.eye(HIDDEN), rtol=0, atol=1e-4)
        for gate in each.weight.split(HIDDEN):
            if init == "luong":
                assert is_uniform(gate, 0.1)
            else:
                torch.testing.assert_close(gate @ gate.T, torch.eye(HIDDEN), rtol=0, atol=1e-4)


@pytest.mark.parametrize("attention", [ADDITIVE, CONCAT], ids=["additive", "concat"])
def test_bahdanaus_scores_are_all_equal_at_first_and_so_are_its_weights(attention: AttentionConfig) -> None:
    model = model_of("bahdanau", attention=attention)
    score = getattr(model.decoder.attention, "score", None)
    assert isinstance(score, AdditiveScore | ConcatScore)
    query, keys = torch.randn(1, 2, HIDDEN), torch.randn(1, 5, 2 * HIDDEN)
    assert not score(query, score.project(keys)).any()  # v is zero
    if isinstance(score, ConcatScore):
        answers = score.project(torch.eye(2 * HIDDEN)[None])
        assert is_normal(answers, 0.001)
        assert is_normal(ops.linear(torch.eye(HIDDEN), score.weight[:, :HIDDEN]), 0.001)


def test_only_the_default_multiplies_by_the_root_of_the_size() -> None:
    for init in INITS:
        model = model_of(init)
        factor = EMBED**0.5 if init == "scaled" else 1.0
        for embedding in (model.source_embedding, model.decoder.embedding):
            torch.testing.assert_close(embedding(torch.arange(7)), embedding.weight[:7] * factor)
