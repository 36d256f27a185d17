"""Where later tokens are changed, what counts as rounding in a cast, and batches that hold nothing."""

from __future__ import annotations

import math
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


def single(position: int) -> Keep:
    return lambda length: causal(length) | ((torch.arange(length)[:, None] == position) & (torch.arange(length) == position + 1))


def borders(size: int) -> Keep:
    """Windows of which each last position sees the first of the next."""
    at = torch.arange(10_000)
    return lambda length: causal(length) | (((at[:length, None] + 1) % size == 0) & (at[:length] == at[:length, None] + 1))


def tokens(length: int, rows: int = 5) -> Tensor:
    return torch.randint(1, V, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize(
    ("keep", "length", "position"),
    [
        (first_sees_second, 11, 0),
        (first_sees_second, 37, 0),
        (prefix, 11, 0),
        (last_seen, 11, 9),
        (last_seen, 37, 35),
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


@pytest.mark.parametrize("position", range(15))
def test_one_position_that_sees_the_next_is_found_wherever_it_is(position: int) -> None:
    result = check(Seeing(single(position)), tokens(16, 4), causal=True)["future tokens"]
    assert (result.verdict, result.positions) == ("leak", (position,))


@pytest.mark.parametrize(("size", "length"), [(8, 16), (8, 32), (16, 32), (16, 64), (64, 130)])
def test_a_leak_at_the_borders_of_windows_is_found(size: int, length: int) -> None:
    result = check(Seeing(borders(size)), tokens(length, 4), causal=True)["future tokens"]
    assert result.verdict == "leak"
    assert all((position + 1) % size == 0 for position in result.positions)
    assert "hole" in result.cause or "off by one" in result.cause


def test_positions_of_a_long_row_that_were_not_tried_are_named() -> None:
    report = check(Seeing(causal), tokens(421, 3), causal=True)
    assert report.ok
    assert "cannot be told: future tokens (tokens were changed from 149 of 420 positions on, positions 1 to 5, 8, " in str(report)
    assert "cannot be told" not in str(check(Seeing(causal), tokens(256, 3), causal=True))


@pytest.mark.parametrize("row", [0, 3, 6])
def test_a_leak_in_one_row_is_found_in_that_row(row: int) -> None:
    class Rows(Seeing):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            q, k, v = self.qkv(x).chunk(3, -1)
            keep = causal(tokens.shape[1]).repeat(len(tokens), 1, 1)
            keep[row : row + 1] = True
            return self.head(x + F.scaled_dot_product_attention(q, k, v, attn_mask=keep))

    result = check(Rows(causal), tokens(11, 7), causal=True)["future tokens"]
    assert result.verdict == "leak"
    assert result.says.startswith(f"row {row}: ")


def test_rows_that_are_not_run_are_named() -> None:
    report = check(Seeing(causal), tokens(7, 37), causal=True)
    assert report["future tokens"].cause == "rows 32 to 36 of the batch were not run"


def test_rows_that_depend_on_each_other_are_no_leak_of_later_tokens() -> None:
    class Mixed(Seeing):
        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embedding(tokens)
            others = x.sum(0, keepdim=True) - x  # of all positions of the other rows
            return self.head(x.cumsum(1) + others.sum(1, keepdim=True))

    report = check(Mixed(causal), tokens(11, 4), causal=True)
    assert report["future tokens"].verdict == "ok"
    assert report["other rows"].verdict == "leak"


class Counted(nn.Module):
    """Every position sees itself and those before it, and `scale` makes the states of them."""

    def __init__(self, scale: Callable[[Counted, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.positions, self.head = nn.Embedding(V, D), nn.Embedding(64, D), nn.Linear(D, V)
        self.scale = scale

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.scale(self, self.embedding(tokens)))


@pytest.mark.parametrize(
    "scale",
    [
        lambda model, x: x + model.positions(torch.arange(x.shape[1]).flip(0)),
        lambda model, x: x.cumsum(1) / x.shape[1],
        lambda model, x: x * math.log(x.shape[1]),
    ],
    ids=["positions from the end", "divided by the length", "times log of the length"],
)
def test_outputs_that_depend_on_how_many_tokens_follow_are_found(scale: Callable[[Counted, Tensor], Tensor]) -> None:
    report = check(Counted(scale), tokens(9, 4), causal=True)
    result = report["number of later tokens"]
    assert [leak.name for leak in report.leaks] == ["number of later tokens"]
    assert result.between == "after `embedding`, before `head`" or "positions" in result.between
    assert result.cause.startswith("outputs depend on how many tokens follow, not on which")


def test_the_number_of_later_tokens_is_no_matter_for_a_right_model_and_not_checked_at_one_length() -> None:
    def up_to_here(model: Counted, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None] + model.positions(torch.arange(x.shape[1]))

    assert assert_no_leaks(Counted(up_to_here), tokens(9, 4), causal=True)["number of later tokens"].verdict == "ok"
    fixed = check(Counted(lambda model, x: x * torch.ones(9, 1)), tokens(9, 4), causal=True)["number of later tokens"]
    assert fixed.verdict == "not checked"
    assert fixed.cause.startswith("runs at one length only: ")


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
