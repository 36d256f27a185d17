"""Batches: each family's own forward pass, and what is left of it when inputs are taken away."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, cast

import pytest
import torch

from regard import explanations
from regard.config import EntailmentModelConfig, TransformerConfig
from regard.data.batching import collate
from regard.errors import ConfigError, DataError, RangeError, RegardError, ShapeError
from regard.explanations import CaptionBatch, LabelBatch, LanguageBatch, TranslationBatch, TwoInputBatch, input_times_gradient
from regard.models import Ensemble, build, build_classifier
from regard.tasks.pair_scores import target_log_probs
from tests.explanations.models import BOS, EOS, NAMES, SOURCES, TARGETS, batch_of, padded, pairs


@pytest.mark.parametrize("name", NAMES)
def test_vectors_of_its_own_change_nothing(name: str) -> None:
    batch = batch_of(name)
    torch.testing.assert_close(batch.log_probs(batch.embed()), batch.log_probs())


def test_one_tensor_as_both_texts_has_two_embeddings() -> None:
    config = EntailmentModelConfig.model_validate({"embed_dim": 8, "encoder": {"type": "transformer", "num_heads": 2}})
    model = build_classifier(config, vocab_size=19, classes=3, unknown=1).eval()
    text, length, label = torch.tensor([[5, 6, 7, 8]]), torch.tensor([4]), torch.tensor([1])
    once, twice = (LabelBatch(model, [text, second], [length, length], label) for second in (text, text.clone()))
    found = input_times_gradient(once)
    torch.testing.assert_close(found, input_times_gradient(twice))
    assert found[0, 0, 4:].abs().min() > 0


def test_one_tensor_as_source_and_target_has_two_embeddings() -> None:
    config = TransformerConfig(embed_dim=8, ff_dim=8, num_heads=2, encoder_layers=1, decoder_layers=1)
    model = build(config, source_size=19, target_size=19).eval()
    text, length, goal = torch.tensor([[5, 6, 7, 8]]), torch.tensor([4]), torch.tensor([[6, 7, 8, EOS]])
    once, twice = (TranslationBatch(model, text, length, first, goal, length) for first in (text, text.clone()))
    assert once.word_embedding() is model.get_submodule("target_embedding")
    torch.testing.assert_close(input_times_gradient(once), input_times_gradient(twice))
    nothing = torch.zeros_like(once.embed())
    torch.testing.assert_close(once.log_probs(nothing), twice.log_probs(nothing))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_alone_is_what_it_is_among_others(name: str) -> None:
    batch = batch_of(name)
    alone = batch.select(torch.tensor([1]))
    torch.testing.assert_close(alone.log_probs(), batch.log_probs()[1:2])
    assert alone.inputs.tolist() == batch.inputs[1:2].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_other_vectors_are_read_and_the_model_is_as_before(name: str) -> None:
    batch = batch_of(name)
    before = batch.log_probs()
    assert (batch.log_probs(torch.zeros_like(batch.embed())) - before).abs().max() > 1e-4
    assert torch.equal(batch.log_probs(), before)


def test_log_probabilities_of_pairs_are_those_of_scoring() -> None:
    batch = cast(TranslationBatch, batch_of("transformer"))
    torch.testing.assert_close(batch.log_probs(), target_log_probs(batch.model, collate(SOURCES, TARGETS, range(3))))


@pytest.mark.parametrize("name", ["gru", "transformer", "crossed"])
def test_tokens_taken_away_are_as_if_never_written(name: str) -> None:
    batch = cast(TranslationBatch, batch_of(name))
    kept = torch.ones_like(batch.inputs)
    kept[0, 1] = kept[0, 3] = kept[2, 0] = False
    kept[1, 5] = False  # padding: nothing to take
    shorter = pairs(batch.model, [[4, 6, 8], [9, 10, 4], [12, 13, 14, 15, 16, 17]])
    torch.testing.assert_close(batch.keep(kept).log_probs(), shorter.log_probs())


def test_the_end_of_a_source_stays() -> None:
    batch = cast(TranslationBatch, batch_of("gru"))
    assert batch.keep(torch.zeros_like(batch.inputs)).source[:, 0].tolist() == [EOS] * 3


def test_a_cell_taken_away_becomes_the_mean_cell() -> None:
    batch = cast(CaptionBatch, batch_of("show soft"))
    kept = torch.ones_like(batch.inputs)
    kept[1, 4] = False
    cells = batch.embed().clone()
    cells[1, 4] = cells[1].mean(0)
    torch.testing.assert_close(batch.keep(kept).log_probs(), batch.log_probs(cells))


def test_words_of_a_second_text_are_taken_from_it() -> None:
    batch = cast(LabelBatch, batch_of("entailment crossed"))
    first, second = (part.shape[1] for part in batch.tokens)
    kept = torch.ones(3, first + second, dtype=torch.bool)
    kept[0, first + 1] = False
    tokens, lengths = padded([[6, 7], *TARGETS[1:]])
    expected = LabelBatch(batch.model, [batch.tokens[0], tokens], [batch.lengths[0], lengths], batch.labels)
    torch.testing.assert_close(batch.keep(kept).log_probs(), expected.log_probs())


def test_a_token_of_a_line_is_predicted_by_what_is_left_before_it() -> None:
    batch = cast(LanguageBatch, batch_of("language"))
    kept = torch.ones_like(batch.inputs)
    kept[0, 2] = False
    found = batch.keep(kept).log_probs()[0]  # the line is 4 5 6 7 8, read as BOS 4 5 6 7 8; the 5 is taken away
    logits = batch.model.logits(batch.model.decode(torch.tensor([[BOS, 4, 6, 7, 8]])).readout)[0].log_softmax(-1)
    expected = torch.stack([logits[0, 4], logits[1, 5], logits[1, 6], logits[2, 7], logits[3, 8], logits[4, EOS]])
    torch.testing.assert_close(found[:6], expected)


def test_a_model_in_training_and_an_ensemble_are_refused() -> None:
    batch = cast(TranslationBatch, batch_of("gru"))
    rest: list[Any] = [batch.source, batch.source_lengths, batch.target_input, batch.target_output, batch.target_lengths]
    with pytest.raises(ConfigError, match="several models that decode together"):
        TranslationBatch(Ensemble([batch.model, batch.model]).eval(), *rest)
    with pytest.raises(ConfigError, match=r"training mode.*call model.eval\(\)"):
        TranslationBatch(batch.model.train(), *rest)


def two_inputs() -> TwoInputBatch:
    """Return a batch of two texts for each of its two examples."""
    config = TransformerConfig.model_validate({"embed_dim": 8, "num_heads": 2, "ff_dim": 9, "second": {"kind": "serial"}})
    model = build(config, source_size=19, target_size=19).eval()
    source, lengths = torch.tensor([[4, 5, EOS, 7, EOS, 0], [6, EOS, 8, 9, 10, EOS]]), torch.tensor([5, 6])
    target = torch.tensor([[BOS, 6], [BOS, 7]]), torch.tensor([[6, EOS], [7, EOS]])
    return TwoInputBatch(model, source, lengths, *target, torch.tensor([2, 2]))


def made(kind: str) -> Any:
    """Return a batch of a class."""
    names = {"TranslationBatch": "gru", "CaptionBatch": "show soft", "LabelBatch": "entailment crossed", "LanguageBatch": "language"}
    return two_inputs() if kind == "TwoInputBatch" else batch_of(names[kind])


KINDS = ("TranslationBatch", "CaptionBatch", "LabelBatch", "LanguageBatch", "TwoInputBatch")
NO_TENSORS = {"none": None, "a list": [1, 2], "a number": 5, "text": "x", "a module": torch.nn.Linear(2, 2)}


@pytest.mark.parametrize("what", NO_TENSORS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_what_is_no_tensor_is_refused_where_it_is_made(kind: str, what: str) -> None:
    batch = made(kind)
    for each in fields(batch):
        if what == "none" and getattr(batch, each.name) is None:
            continue
        with pytest.raises(RegardError, match=rf"^{kind}: {each.name}(\[0\])? must be "):
            replace(batch, **{each.name: NO_TENSORS[what]})
        if each.name in ("tokens", "lengths") and kind == "LabelBatch":
            with pytest.raises(ShapeError, match=rf"^{kind}: {each.name}\[1\] must be a tensor"):
                replace(batch, **{each.name: [getattr(batch, each.name)[0], NO_TENSORS[what]]})


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_other_axes_dtypes_or_numbers_is_refused_where_it_is_made(kind: str) -> None:
    batch = made(kind)
    for each in fields(batch):
        given = getattr(batch, each.name)
        first = given[0] if isinstance(given, list) else given
        if not isinstance(first, torch.Tensor):
            continue
        whole = not first.is_floating_point()
        wrong = [(first.unsqueeze(-1).unsqueeze(-1), ShapeError), (first.new_zeros(()), ShapeError)]
        wrong += (
            [(first.double(), ShapeError), (first + 99, RangeError), (-first - 9, RangeError)] if whole else [(first.long(), ShapeError)]
        )
        for value, error in wrong:
            with pytest.raises(error, match=rf"^{kind}: {each.name}"):
                replace(batch, **{each.name: [value, *given[1:]] if isinstance(given, list) else value})
        with pytest.raises(ShapeError, match=rf"^{kind}: \S+ must be .* with .*B = \d"):
            replace(batch, **{each.name: [first[:1], *given[1:]] if isinstance(given, list) else first[:1]})


def test_the_model_of_another_batch_is_refused() -> None:
    for kind, name in zip(
        KINDS, ("EncoderDecoder", "CaptionModel", "SentenceClassifier", "RecurrentLanguageModel", "EncoderDecoder"), strict=True
    ):
        other = made("LabelBatch" if kind == "LanguageBatch" else "LanguageBatch").model
        with pytest.raises(ConfigError, match=rf"^{kind}: model must be of the class {name}, found {type(other).__name__}"):
            replace(made(kind), model=other)


def test_a_compiled_model_is_taken_for_what_it_is() -> None:
    batch = made("TranslationBatch")
    compiled = replace(batch, model=torch.compile(batch.model, backend="eager"))
    torch.testing.assert_close(compiled.log_probs(), batch.log_probs())


def test_a_batch_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [made(kind) for kind in KINDS]

    def fail(*_: Any) -> None:
        raise AssertionError("a copy was checked again")

    for module in ("batches", "input_pairs"):
        monkeypatch.setattr(f"regard.explanations.{module}.check_model", fail)
    for batch in batches:
        copy = batch.select(torch.tensor([1, 0])).keep(batch.inputs[[1, 0]])
        torch.testing.assert_close(copy.log_probs(), batch.log_probs()[[1, 0]])
        assert input_times_gradient(batch).shape == (*batch.outputs.shape, batch.inputs.shape[1])


METHODS = (
    *("explain", "alti", "attention_flow", "attention_rollout", "attention_weights", "gradient_times_attention", "greedy_order"),
    *(
        "input_gradients",
        "input_times_gradient",
        "integrated_gradients",
        "leave_one_area_out",
        "leave_one_out",
        "replace_one",
        "value_norms",
    ),
)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_what_is_no_batch(name: str) -> None:
    more = {
        "explain": ("weights",),
        "greedy_order": (torch.tensor([0]), 1),
        "input_gradients": (torch.ones(1, 1, 1),),
        "leave_one_area_out": (2,),
    }
    for wrong in (None, "x", 5, torch.ones(2), made("LabelBatch").model):
        with pytest.raises(DataError, match=f"^{name}: batch must be a batch of examples, such as a TranslationBatch, found "):
            getattr(explanations, name)(wrong, *more.get(name, ()))
