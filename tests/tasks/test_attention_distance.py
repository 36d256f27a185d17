"""How far back a language model attends is the mean of its weights over the whole text, token by token."""

from __future__ import annotations

import pytest
import torch

from regard.data.running_text import encode_text
from regard.data.vocabulary import BOS, EOS
from regard.errors import DataError
from regard.tasks.attention_distance import attention_by_distance
from tests.tasks.tiny_language import TEXTS, language_model

LINES = TEXTS * 3  # more than a chunk of tokens


@pytest.mark.parametrize("attention", ["plain", "key_value", "key_value_predict"])
def test_the_mean_is_that_of_every_token_with_a_full_window(attention: str) -> None:
    run = language_model(model={"attention": attention}).run
    tokens = encode_text(LINES, run.vocabulary).tokens
    # Each line begins with BOS in place of the end of the line before.
    inputs = torch.tensor([[BOS, *(BOS if token == EOS else token for token in tokens[:-1].tolist())]])
    with torch.no_grad():
        weights = run.model.decode(inputs, need_weights=True).weights
    assert weights is not None
    expected = [sum(float(weights[0, t, 3 + t - back]) for t in range(3, len(tokens))) / (len(tokens) - 3) for back in (1, 2, 3)]
    assert len(tokens) > 64
    found = attention_by_distance(run, LINES)
    assert found is not None
    assert found == pytest.approx(expected, abs=1e-6)
    assert sum(found) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("attention", ["none", "ngram"])
def test_a_model_without_attention_has_none(attention: str) -> None:
    assert attention_by_distance(language_model(model={"attention": attention}).run, LINES) is None


def test_a_text_shorter_than_the_window_has_none_and_an_empty_one_is_refused() -> None:
    run = language_model().run
    assert attention_by_distance(run, ["e"]) is None
    with pytest.raises(DataError, match="no lines"):
        attention_by_distance(run, [])
