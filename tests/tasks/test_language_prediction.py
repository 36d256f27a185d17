"""Scoring and continuing lines: one result a line whatever it holds, the same in any batch, and records of what was looked at."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from regard.data.running_text import encode_text
from regard.data.vocabulary import BOS, EOS
from regard.decoding import SamplingOptions
from regard.errors import ConfigError, DataError
from regard.tasks.language_prediction import MAX_PROMPT, LanguageModel, language_records
from regard.tasks.language_training import text_likelihood
from tests.tasks.tiny_language import ATTENDING, ATTENTIONS, TEXTS, language_model, run

HOSTILE = [
    "",
    " ",
    "\t",
    "a\rb",
    "</s>",
    "<pad> <s>",
    "\u2028",
    "\x00\x85",
    "\ud800",
    "日本語",
    "a" * 700,
    "e\u0301\U0001f468\u200d\U0001f469",
    "🐕",
]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_every_line_has_a_score(kind: str) -> None:
    model = language_model(kind)
    scores = model.score(HOSTILE)
    assert [item.line for item in scores] == HOSTILE
    for item in scores:
        assert len(item.log_probs) == len(item.pieces) >= 1
        assert item.pieces[-1] == "</s>"
        assert all(log_prob <= 1e-6 and math.isfinite(log_prob) for log_prob in item.log_probs)
        assert item.total == pytest.approx(item.mean * len(item.pieces))
        json.dumps(item.to_json(), ensure_ascii=True)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_score_does_not_depend_on_other_lines(attention: str) -> None:
    lines = [*TEXTS, "ein Hund " * 40, *HOSTILE]

    def scored(model: LanguageModel) -> list[list[list[float]]]:
        results = model.score(lines), model.score(lines, batch_size=2), [model.score([line])[0] for line in lines]
        return [[item.log_probs for item in result] for result in results]

    model = language_model(model={"attention": attention})
    rounded = scored(model)
    model.run.model.double()
    exact, *others = scored(model)
    for other in others:
        for one, another in zip(exact, other, strict=True):
            assert one == pytest.approx(another, abs=1e-9)

    # In float32 products of other shapes round otherwise: a batch is as near to the exact score as the line alone.
    def error(found: list[list[float]]) -> float:
        return max(abs(x - y) for one, known in zip(found, exact, strict=True) for x, y in zip(one, known, strict=True))

    *batched, alone = map(error, rounded)
    assert max(batched) <= 2 * alone + 1e-5


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_score_is_the_model_s_own_log_probability(attention: str) -> None:
    model = language_model(model={"attention": attention})
    ids = model.run.vocabulary.encode("bellt der Hund").ids
    with torch.no_grad():
        logits = model.run.model.logits(model.run.model.decode(torch.tensor([[BOS, *ids]])).readout[0])
    expected = logits.log_softmax(-1).gather(1, torch.tensor([*ids, EOS]).unsqueeze(1)).squeeze(1)
    assert model.score(["bellt der Hund"])[0].log_probs == pytest.approx(expected.tolist(), abs=1e-5)


def test_no_lines_give_no_scores_and_no_continuations() -> None:
    model = language_model()
    assert model.score([]) == []
    assert model.generate([]) == []


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
@pytest.mark.parametrize("sampling", [None, SamplingOptions(temperature=0.9, top_p=0.9)])
def test_every_prompt_is_continued_on_one_line(kind: str, sampling: SamplingOptions | None) -> None:
    model = language_model(kind)
    found = model.generate(HOSTILE, max_length=5, sampling=sampling)
    assert len(found) == len(HOSTILE)
    for prompt, item in zip(HOSTILE, found, strict=True):
        assert item.text.startswith(item.prompt)
        assert len(item.prompt) == len(prompt)
        assert len(item.text.splitlines() or [""]) == 1
        assert item.truncated == max(0, len(model.run.vocabulary.encode_ids([prompt])[0]) - MAX_PROMPT)
        json.dumps(item.to_json())


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_greedy_takes_the_best_token_and_a_beam_finds_no_worse(attention: str) -> None:
    model = language_model(model={"attention": attention})
    (item,) = model.generate(["ein "], max_length=4)
    ids = model.run.vocabulary.encode("ein ").ids
    tokens = item.hypotheses[0].tokens
    assert tokens[: len(ids)] == ids
    for length in range(len(ids), len(tokens)):
        with torch.no_grad():
            logits = model.run.model.logits(model.run.model.decode(torch.tensor([[BOS, *tokens[:length]]])).readout[0, -1])
        logits[:3] = -math.inf  # padding, the unknown and the begin sign are never written
        assert tokens[length] == int(logits.argmax())
    assert model.generate(["ein "], max_length=4, beam_size=7)[0].hypotheses[0].score >= item.hypotheses[0].score - 1e-5


@pytest.mark.parametrize("sampling", [None, SamplingOptions(num_samples=2)])
def test_a_continuation_does_not_depend_on_other_prompts(sampling: SamplingOptions | None) -> None:
    model, prompts = language_model(), ["ein", "", "der Hund sieht", "Häuser " * 9]
    torch.manual_seed(5)
    together = model.generate(prompts, max_length=9, sampling=sampling)
    torch.manual_seed(5)
    few = model.generate(prompts, max_length=9, sampling=sampling, batch_size=1)
    assert [item.texts for item in together] == [item.texts for item in few]
    assert len(together[0].texts) == (2 if sampling else 1)


def test_other_seeds_draw_other_lines() -> None:
    model, drawn = language_model(), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append([item.text for item in model.generate([""] * 7, sampling=SamplingOptions())])
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > 1


def test_an_option_out_of_range_is_named() -> None:
    with pytest.raises(ConfigError, match="beam_size"):
        language_model().generate(["ein"], beam_size=0)


@pytest.mark.parametrize("attention", ATTENDING)
def test_a_record_holds_what_every_token_looked_at(attention: str) -> None:
    model = language_model("word", model={"attention": attention})
    record = model.record("der Hund sieht ein Haus")
    assert record is not None
    words = ["der", "Hund", "sieht", "ein", "Haus"]
    assert (record.items["text"].tokens, record.items["read"].tokens) == ([*words, "</s>"], ["<s>", *words])
    (window,) = record.maps
    assert (window.kind, window.query, window.key) == ("self", "text", "read")
    weights = window.weights[0]
    assert not np.triu(weights).any(), "the last token read, which does the looking, cannot be looked at"
    assert np.allclose(weights.sum(1), [0, 1, 1, 1, 1, 1], atol=1e-5)
    assert (np.tril(weights, -4) == 0).all(), "nothing is seen beyond the window"
    assert record.scores["text"] == pytest.approx(model.score(["der Hund sieht ein Haus"])[0].log_probs, abs=1e-5)


def test_an_empty_line_has_a_record_and_a_model_without_attention_has_none() -> None:
    record = language_model().record("")
    assert record is not None
    assert record.items["text"].tokens == ["</s>"]
    assert language_model(model={"attention": "none"}).record("ein") is None


def test_of_a_very_long_line_the_beginning_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = language_model().record("ein Haus")
    monkeypatch.setattr("regard.tasks.language_prediction.MAX_RECORD_TOKENS", 5)
    record = language_model().record("ein Haus")
    assert whole is not None
    assert record is not None
    assert (record.items["text"].tokens, record.items["read"].tokens) == (list("ein H"), ["<s>", *"ein "])
    assert np.allclose(record.maps[0].weights, whole.maps[0].weights[:, :5, :5])
    assert record.meta == {"left out": "the last 4 tokens, too many for one page"}


def test_records_are_made_of_a_run_that_attends(tmp_path: Path) -> None:
    for attention in ("key_value", "none"):
        run(tmp_path / attention, training={"max_updates": 1}, model={"attention": attention})
    assert len(language_records(tmp_path / "key_value" / "run", ["ein", ""])) == 2
    with pytest.raises(ConfigError, match="no attention to show"):
        language_records(tmp_path / "none" / "run", ["ein"])
    with pytest.raises(DataError, match="holds no lines"):
        language_records(tmp_path / "key_value" / "run", [])


def test_a_trained_run_is_opened_and_used(tmp_path: Path) -> None:
    run(tmp_path, training={"max_updates": 3})
    model = LanguageModel.open(tmp_path / "run")
    assert model.generate(["ein"], max_length=3)[0].text.startswith("ein")


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_lines_of_one_text_are_scored_as_if_they_were_one(attention: str) -> None:
    model = language_model(model={"attention": attention})
    found = model.score(TEXTS, context="continuous")
    apart = model.score(TEXTS)
    assert [line[:2] for line in found] == [line[:2] for line in apart]
    assert found[0].log_probs == pytest.approx(apart[0].log_probs, abs=1e-5), "nothing comes before the first line"
    assert found[1].log_probs != pytest.approx(apart[1].log_probs, abs=1e-3)
    expected = text_likelihood(model.run.model, encode_text(TEXTS, model.run.vocabulary), lines="continuous")
    total, count = sum(line.total for line in found), sum(len(line.pieces) for line in found)
    assert -total / count == pytest.approx(expected["loss"], rel=1e-5)
    assert model.score([], context="continuous") == []


def test_what_is_no_list_of_texts_is_refused() -> None:
    model = language_model()
    for call in (model.score, model.generate):
        with pytest.raises(ConfigError, match=r"(score: lines|generate: prompts): expected a list of texts, found one text"):
            call("abc")
        with pytest.raises(ConfigError, match=r"(score: lines|generate: prompts)\[1\]: expected a text, found 1"):
            call(["a", 1])
    with pytest.raises(ConfigError, match="context: expected separate or continuous, found 'both'"):
        model.score(["a"], context="both")
    for length in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="max_length: expected a whole number of 1 or more"):
            model.generate(["a"], max_length=length)
        for call in (model.score, model.generate):
            with pytest.raises(ConfigError, match="batch_size: expected a whole number of 1 or more, found"):
                call(["a"], batch_size=length)
