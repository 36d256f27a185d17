"""Where later tokens are changed, what counts as rounding in a cast, and batches that hold nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.mask_check import Sequence, assert_no_leaks, check, runs

V, D = 23, 13
Keep = Callable[[int], Tensor]


class Seeing(nn.Module):
    """One layer of attention under the mask that `keep` makes, and what `end` makes of the logits."""

    def __init__(self, keep: Keep, end: Callable[[Tensor], Tensor] = lambda logits: logits) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.qkv, self.head = nn.Embedding(V, D), nn.Linear(D, 3 * D), nn.Linear(D, V)
        self.keep, self.end = keep, end

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.end(self.head(x + F.scaled_dot_product_attention(q, k, v, attn_mask=self.keep(tokens.shape[1]))))


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def all_seen(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool)


def first_sees_second(length: int) -> Tensor:
    return causal(length).index_put((torch.tensor([0]), torch.tensor([1])), torch.tensor(True))


def prefix(length: int) -> Tensor:
    return causal(length) | (torch.arange(length) < 3)


def last_seen(length: int) -> Tensor:
    return causal(length).index_put((torch.tensor([length - 2]), torch.tensor([length - 1])), torch.tensor(True))


def blocks(size: int) -> Keep:
    return lambda length: torch.arange(length)[:, None] // size >= torch.arange(length) // size


def tokens(length: int, rows: int = 5) -> Tensor:
    return torch.randint(1, V, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize(
    ("keep", "length", "position"),
    [
        (first_sees_second, 11, 0),
        (first_sees_second, 37, 0),
        (prefix, 11, 0),
        (last_seen, 11, 7),  # the longest row is two shorter than the batch is wide
        (last_seen, 37, 33),
        (blocks(2), 10, 0),
        (blocks(3), 9, 0),
        (blocks(4), 10, 0),
        (blocks(8), 34, 0),
    ],
)
def test_a_leak_at_any_position_is_found_and_the_first_is_named(keep: Keep, length: int, position: int) -> None:
    result = check(Seeing(keep), tokens(length), causal=True)["future tokens"]
    assert (result.verdict, result.positions[:1]) == ("leak", (position,))
    assert_no_leaks(Seeing(causal), tokens(length), causal=True)


def test_an_output_that_sees_its_own_first_token_is_found_where_it_may_not() -> None:
    def own_first(length: int) -> Tensor:
        keep = torch.ones(length, length, dtype=torch.bool).tril(-1)
        keep[0, 0] = True
        return keep

    class Before(Seeing):
        def forward(self, tokens: Tensor) -> Tensor:
            q, k, v = self.qkv(self.embedding(tokens)).chunk(3, -1)
            scores = (torch.ones_like(q) @ k.mT).masked_fill(~self.keep(tokens.shape[1]), -torch.inf)
            return self.head(scores.softmax(-1).nan_to_num() @ v)

    result = check(Before(own_first), tokens(11), causal="strict")["future tokens"]
    assert (result.verdict, result.positions) == ("leak", (0,))
    assert_no_leaks(Before(lambda length: causal(length).tril(-1)), tokens(11), causal="strict")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("computed_in", [None, torch.float32])
def test_a_cast_of_the_output_hides_no_leak(dtype: torch.dtype, computed_in: torch.dtype | None) -> None:
    result = check(Seeing(all_seen, lambda logits: logits.to(dtype)), tokens(11), causal=True, dtype=computed_in)["future tokens"]
    assert result.verdict == "leak"
    assert result.limit < 0.1
    assert_no_leaks(Seeing(causal, lambda logits: logits.to(dtype)), tokens(11), causal=True, dtype=computed_in)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_never_says_that_nothing_leaks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_no_leaks(Seeing(causal).to(dtype), tokens(11), causal=True)
    with pytest.raises(ConfigError, match=r"cannot be told in b?float16: .*; give dtype=torch.float32"):
        check(Seeing(causal).to(dtype), tokens(11), causal=True, dtype=dtype)
    monkeypatch.setattr(runs, "DOUBLE_UP_TO", {})  # a large model is computed in single precision
    report = check(Seeing(all_seen).to(dtype), tokens(11), causal=True)
    assert (report["future tokens"].verdict, report.dtype) == ("leak", "float32")
    assert check(Seeing(causal).to(dtype), tokens(11), causal=True).ok


def test_limits_as_wide_as_leaks_are_refused_in_single_precision_too() -> None:
    torch.manual_seed(0)
    rough = Seeing(all_seen, lambda logits: 1e6 + logits)  # rounding of the sum hides what is added
    with pytest.raises(ConfigError, match="cannot be told in float32"):
        check(rough, tokens(11), causal=True, dtype=torch.float32)


def test_a_model_of_no_numbers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Seeing holds no numbers \(meta device\)"):
        check(Seeing(causal).to("meta"), tokens(11), causal=True)


def test_a_model_that_refuses_other_sizes_is_not_said_to_leak() -> None:
    class Fixed(Seeing):
        def forward(self, tokens: Tensor) -> Tensor:
            if tokens.shape != (5, 11):
                raise ValueError("only 5 x 11")
            return super().forward(tokens)

    report = check(Fixed(causal), tokens(11), causal=True)
    assert "1 of 1 checks fail (" in str(report)
    assert report["batch size"].cause.startswith("the model refuses other sizes than the batch's, so it cannot be checked")
    assert report["batch size"].cause.endswith("ValueError: only 5 x 11")


def test_logits_without_an_axis_of_examples_are_taken() -> None:
    def flat(logits: Tensor) -> Tensor:
        return logits.view(-1, V)

    assert assert_no_leaks(Seeing(causal, flat), tokens(11), causal=True)["future tokens"].verdict == "ok"
    assert check(Seeing(all_seen, flat), tokens(11), causal=True)["future tokens"].verdict == "leak"


def test_outputs_that_belong_to_no_position_are_not_said_to_depend_on_nothing() -> None:
    def halved(logits: Tensor) -> Tensor:
        return logits[:, : logits.shape[1] // 2 * 2].unflatten(1, (-1, 2)).sum(2)

    with pytest.raises(ConfigError, match="no output has an axis of positions"):
        check(Seeing(all_seen, halved), tokens(18), causal=True)


@pytest.mark.parametrize("shape", [(0, 9), (4, 0)])
@pytest.mark.parametrize("pack", [lambda batch: batch, lambda batch: (batch,), lambda batch: {"tokens": batch}])
def test_a_batch_that_holds_nothing_is_refused(shape: tuple[int, int], pack: Callable[[Tensor], Any]) -> None:
    with pytest.raises(DataError, match=rf"batch\['tokens'\] has shape \({shape[0]}, {shape[1]}\) and holds nothing"):
        check(Seeing(causal), pack(torch.ones(shape, dtype=torch.long)), causal=True)


@pytest.mark.parametrize("value", ["yes", 1, "Strict"])
def test_a_causal_of_another_value_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="causal: expected True, False or 'strict', found"):
        check(Seeing(causal), tokens(11), causal=value)
    with pytest.raises(ConfigError, match=r"Sequence.causal: expected True, False or 'strict', found"):
        Sequence("tokens", causal=value)
