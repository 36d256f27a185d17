"""What is given to a view as tokens, and is none, is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import regard
from regard.errors import DataError


class SignedAttention(nn.Module):
    """Attention whose weights are softmaxes with the sign of the score."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(1, 2)
        return (scores.abs().softmax(-1) * scores.sign()) @ x


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ("abcde", "key_tokens: expected a list of texts, found a string"),
        ([2, 7, 9, 4, 3], "key_tokens: expected texts, found numbers"),
        ([[2, 7, 9, 4, 3]], "key_tokens: expected texts, found numbers"),
        (list("abcdef"), "6 key_tokens, but the model attended with 5; the last token of a generation"),
    ],
)
def test_what_is_no_list_of_texts_is_named(tokens: Any, message: str) -> None:
    model = nn.MultiheadAttention(12, 3, batch_first=True)
    x = torch.randn(1, 5, 12)
    with regard.watch(model) as seen, torch.no_grad():
        model(x, x, x)
    with pytest.raises(DataError, match=message):
        regard.view(seen, tokens)


def test_the_list_that_does_not_fit_is_named() -> None:
    model = nn.Transformer(12, 2, 1, 1, 24, batch_first=True).train()
    with regard.watch(model) as seen, torch.no_grad():
        model(torch.randn(1, 9, 12), torch.randn(1, 6, 12))
    with pytest.raises(DataError, match="5 query_tokens for 6 keys"):
        regard.view(seen, list("abcdefghi"), list("vwxyz"))
    model = nn.MultiheadAttention(12, 3, batch_first=True)
    with regard.watch(model) as seen, torch.no_grad():
        model(x := torch.randn(1, 6, 12), x, x)
    with pytest.raises(DataError, match="9 key_tokens and 7 query_tokens, but the model attended with 6"):
        regard.view(seen, list("abcdefghi"), list("tuvwxyz"))


def test_negative_weights_are_said_to_have_no_picture() -> None:
    model = SignedAttention()
    with regard.watch(model) as seen, torch.no_grad():
        model(torch.randn(1, 5, 7))
    with pytest.raises(DataError, match="negative weights"):
        regard.view(seen, list("abcde"))


def test_the_first_layer_whose_weights_are_nan_is_named() -> None:
    model = nn.Sequential(*(nn.TransformerEncoderLayer(12, 3, 5, batch_first=True) for _ in range(3))).eval()
    with torch.no_grad():
        model[1].self_attn.in_proj_weight.fill_(float("nan"))
        with regard.watch(model) as seen:
            model(torch.randn(1, 5, 12))
    with pytest.raises(DataError, match=r"^1\.self_attn: the weights are NaN"):
        regard.view(seen, list("abcde"))


class Tokenizer:
    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(each) for each in ids]

    def __call__(self, texts: list[str], **options: Any) -> dict[str, Tensor]:
        return {"input_ids": torch.ones(len(texts), 3, dtype=torch.long)}


@pytest.mark.parametrize(
    ("tokenizer", "texts", "message"),
    [
        (Tokenizer(), 3, "text: expected a text or a pair of texts, found 3"),
        (Tokenizer(), ["a", 3], "text: expected a text or a pair of texts, found 3"),
        (Tokenizer(), [("a", 3)], "text: expected a text or a pair"),
        (Tokenizer(), [], "text: expected one text or several, found none"),
        ("bert", "a", "tokenizer: expected one of Hugging Face, found 'bert'"),
        (str.split, "a", "tokenizer: expected one of Hugging Face"),
        (Tokenizer(), "a", "MultiheadAttention: its forward takes no input_ids"),
    ],
)
def test_what_a_model_cannot_be_run_on_is_named(tokenizer: Any, texts: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        regard.view(nn.MultiheadAttention(12, 3), tokenizer, texts)


def test_a_path_that_is_none_and_weights_without_numbers_are_named() -> None:
    with pytest.raises(DataError, match="path: expected the name of a file, found 3"):
        regard.view([[1.0]], ["a"], path=3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="weights: expected numbers"):
        regard.view(torch.ones(1, 1, device="meta"), ["a"])
