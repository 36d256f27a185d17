"""The doctor finds every planted fault in the module where it is, and nothing in models that are right."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import regard
from regard.mask_check import assert_no_leaks
from tests.mask_check.zoo import CAUSAL, FAULTS, RIGHT, Case, SelfAttention, tokens


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_is_found_in_the_right_module_with_its_cause(case: Case) -> None:
    report = regard.check(case.build(), case.batch(), **case.options)
    found = {result.name: result for result in report.leaks}
    assert case.check in found, str(report)
    assert found[case.check].module == case.module, str(report)
    assert case.cause in found[case.check].cause, str(report)
    assert all(result.module == case.module for result in report.leaks), str(report)
    assert not report.ok


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_a_right_model_raises_no_alarm(case: Case) -> None:
    assert_no_leaks(case.build(), case.batch(), **case.options)


@pytest.mark.parametrize("case", RIGHT.values(), ids=RIGHT)
def test_a_right_model_raises_none_in_single_precision_and_stays_far_from_the_limit(case: Case) -> None:
    report = assert_no_leaks(case.build(), case.batch(), **case.options, dtype=torch.float32)
    assert max(result.change / result.limit for result in report.results if result.limit) < 0.3


@pytest.mark.parametrize("name", ["padding forgotten", "diagonal one too high", "mean pooling over padding", "cache one step off"])
def test_faults_are_found_in_single_precision_too(name: str) -> None:
    case = FAULTS[name]
    result = regard.check(case.build(), case.batch(), **case.options, dtype=torch.float32)[case.check]
    assert (result.verdict, result.module) == ("leak", case.module)


def test_the_zoo_is_as_large_as_promised() -> None:
    assert len(FAULTS) >= 20
    assert len(RIGHT) >= 15
    assert len({case.check for case in FAULTS.values()}) >= 10
    assert max(Counter(case.module for case in FAULTS.values()).values()) < len(FAULTS) // 2


def test_the_lines_of_a_leak_are_those_of_the_wrong_code() -> None:
    result = regard.check(FAULTS["diagonal one too high"].build(), tokens(), causal=True)["future tokens"]
    file, _, span = result.lines.partition(":")
    first, last = map(int, span.split("-"))
    begin = SelfAttention.forward.__code__.co_firstlineno
    assert file == "zoo.py"
    assert begin < first < last <= begin + 27
    assert result.between == "after `qkv`, before `proj`"
    assert result.positions == (3,)  # tokens 4 and later were changed


def test_a_fault_behind_a_weight_of_zero_is_found() -> None:
    model = FAULTS["causal mask forgotten"].build()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attn.proj.weight)
    report = regard.check(model, tokens(), **CAUSAL)
    assert report["future tokens"].module == "blocks.0.attn"
    assert report.filled == 2


@pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("name", ["causal mask forgotten", "diagonal one too high", "padding forgotten"])
def test_a_leak_that_is_scaled_down_is_found_inside(name: str, scale: float) -> None:
    case, right = FAULTS[name], RIGHT["language model" if name != "padding forgotten" else "encoder, mean"]
    for build, wrong in ((case.build, True), (right.build, False)):
        model = build()
        for block in model.blocks:
            block.attn.proj.register_forward_hook(lambda module, args, output: scale * output)
        report = regard.check(model, case.batch(), **case.options)
        assert report.ok != wrong, str(report)
        if wrong:
            found = report[case.check]
            assert (found.verdict, found.module) == ("leak", case.module)
            assert case.cause in found.cause
            assert (found.reaches > 0) == (scale < 1e-4)
            assert not found.reaches or found.change > 0.01 > found.reaches
            assert not found.reaches or "scaled down behind it, of the output" in str(found)


class Gated(nn.Module):
    """Attention and a gate of its result in one module."""

    def __init__(self, gate: float, causal: bool, precision: torch.dtype | None) -> None:
        super().__init__()
        self.embedding, self.qkv, self.gate = nn.Embedding(23, 12), nn.Linear(12, 36), nn.Parameter(gate * torch.ones(12))
        self.causal, self.precision = causal, precision

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        parts = self.qkv(x).to(self.precision or x.dtype).chunk(3, -1)
        return x + self.gate * F.scaled_dot_product_attention(*parts, is_causal=self.causal).to(x.dtype)


@pytest.mark.parametrize("gate", [1e-4, 1e-5, 1e-6, 1e-8])
def test_a_leak_that_is_scaled_down_where_it_begins_is_found(gate: float) -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        found = regard.check(Gated(gate, False, None), tokens(), causal=True)["future tokens"]
        assert (found.verdict, found.module) == ("leak", ""), found
        assert "there is no causal mask here" in found.cause or "as by LayerScale" in found.cause
        right = regard.check(Gated(gate, True, None), tokens(), causal=True)
        assert right.ok
        assert "cannot be told" not in str(right)


def test_a_scaled_leak_is_found_behind_a_part_in_single_precision() -> None:
    torch.manual_seed(0)
    assert regard.check(Gated(1e-7, False, torch.float32), tokens(), causal=True)["future tokens"].verdict == "leak"
    right = regard.check(Gated(1e-7, True, torch.float32), tokens(), causal=True)
    assert right.ok
    assert "cannot be told" not in str(right)


class OfMean(nn.Module):
    """Adds the mean over all columns, or over tokens, scaled down."""

    def __init__(self, gate: float, over: str) -> None:
        super().__init__()
        self.embedding, self.head, self.gate, self.over = nn.Embedding(23, 12), nn.Linear(12, 5), gate, over

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        kept = x * mask[..., None]
        y = kept.sum(1, keepdim=True) / (mask.sum(1)[:, None, None] if self.over == "tokens" else mask.shape[1])
        return self.head(x + self.gate * (torch.full_like(x, x.shape[1]) if self.over == "width" else y))


@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.parametrize("gate", [1.0, 1e-6, 1e-8])
@pytest.mark.parametrize("over", ["columns", "width", "tokens"])
def test_a_scaled_dependence_on_the_amount_of_padding_is_found(over: str, gate: float, floating: bool) -> None:
    torch.manual_seed(0)
    mask = torch.arange(9) < torch.tensor([[9], [7], [5], [4]])
    batch = {"tokens": torch.randint(1, 23, (4, 9)) * mask, "mask": mask.float() if floating else mask}
    found = regard.check(OfMean(gate, over), batch, causal=False)
    assert found["padding amount"].verdict == ("ok" if over == "tokens" else "leak")
    assert "cannot be told" not in str(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_scaled_leak_of_inputs_in_any_precision_is_found(dtype: torch.dtype) -> None:
    class Leaking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(x) + 1e-7 * x.mean(1, keepdim=True)

    torch.manual_seed(0)
    assert regard.check(Leaking().to(dtype), torch.randn(3, 7, 5, dtype=dtype), causal=True)["future tokens"].verdict == "leak"


@pytest.mark.parametrize("leak", [0.0, 1e-7])
def test_a_scaled_leak_beside_flex_attention_is_found(leak: float) -> None:
    def causal(score: torch.Tensor, batch: object, head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return torch.where(query >= key, score, -torch.inf)

    class Flexible(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.qkv = nn.Embedding(23, 12), nn.Linear(12, 36)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embedding(tokens)
            query, key, value = (part.unsqueeze(1) for part in self.qkv(x).chunk(3, -1))
            return x + flex_attention(query, key, value, score_mod=causal).squeeze(1) + leak * x.mean(1, keepdim=True)

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is not compiled here
        assert regard.check(Flexible(), tokens(), causal=True)["future tokens"].verdict == ("leak" if leak else "ok")


def test_a_model_whose_rounding_cannot_be_measured_is_told() -> None:
    class Unwatched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(23, 12)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            if torch._C._len_torch_dispatch_stack():
                raise RuntimeError("not here")
            x = self.embedding(tokens)
            return x + 1e-7 * x.mean(1, keepdim=True)

    report = regard.check(Unwatched(), tokens(), causal=True)
    assert "what rounding may do cannot be measured: RuntimeError: not here" in str(report)


def test_a_scaled_change_between_runs_is_no_matter_of_rounding() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.runs = nn.Embedding(23, 12), 0

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return self.embedding(tokens) + 1e-9 * self.runs

    assert regard.check(Counting(), tokens(), causal=True)["repeated run"].verdict == "leak"


class LongConvolution(nn.Module):
    """A causal convolution over all tokens by FFT, as in Hyena; one token has a large embedding."""

    def __init__(self, large: float, leak: float) -> None:
        super().__init__()
        self.embedding, self.out, self.norm = nn.Embedding(23, 12), nn.Linear(12, 12), nn.LayerNorm(12)
        self.embedding.weight.data[1] *= large
        self.filter, self.leak = nn.Parameter(torch.randn(64, 12)), leak

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        width = 2 * x.shape[1]
        spectrum = torch.fft.rfft(x, n=width, dim=1) * torch.fft.rfft(self.filter[: x.shape[1]], n=width, dim=0)
        mixed = torch.fft.irfft(spectrum, n=width, dim=1)[:, : x.shape[1]]
        return self.norm(x + self.out(mixed) + self.leak * x.mean(1, keepdim=True))


@pytest.mark.parametrize("large", [1.0, 1e2, 1e3, 1e5])
def test_rounding_of_an_fft_is_no_leak(large: float) -> None:
    torch.manual_seed(1)
    assert regard.check(LongConvolution(large, 0), torch.randint(1, 23, (4, 64)), causal=True).ok


def test_a_leak_beside_the_rounding_of_an_fft_is_found() -> None:
    torch.manual_seed(1)
    found = regard.check(LongConvolution(1e2, 1e-7), torch.randint(1, 23, (4, 64)), causal=True)
    assert found["future tokens"].verdict == "leak"


def test_a_leak_that_reaches_no_output_is_told() -> None:
    model = FAULTS["causal mask forgotten"].build()
    model.blocks[0].attn.proj.register_forward_hook(lambda module, args, output: 0.0 * output)
    found = regard.check(model, tokens(), **CAUSAL)
    assert found.ok
    assert "cannot be told: future tokens (blocks.0.attn follows what was changed, and no output does" in str(found)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_loop_from_the_end_is_read_from_the_end(keeps: bool) -> None:
    class Backward(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.cell = torch.nn.Embedding(19, 8), torch.nn.GRUCell(8, 8)

        def forward(self, input_ids, attention_mask):
            embedded = self.embedding(input_ids)
            state, outputs = torch.zeros_like(embedded[:, 0]), []
            for place in reversed(range(embedded.shape[1])):
                new, real = self.cell(embedded[:, place], state), attention_mask[:, place, None].bool()
                outputs.insert(0, new * real)
                state = torch.where(real, new, state) if keeps else new
            return torch.stack(outputs, 1)

    lengths = torch.tensor([[9], [6], [4]])
    batch = {"input_ids": torch.randint(1, 19, (3, 9)), "attention_mask": (torch.arange(9) < lengths).long()}
    found = regard.check(Backward(), batch, causal=False)
    assert found.ok == keeps
    assert "cannot be told" not in str(found)
    assert keeps or found["padding content"].module == "cell"


def test_a_soft_mask_is_found() -> None:
    class Soft(SelfAttention):
        def forward(self, x, mask=None):
            q, k, v = self.qkv(x).chunk(3, -1)
            scores = (q @ k.transpose(1, 2)) - 8 * torch.ones(x.shape[1], x.shape[1], dtype=x.dtype).triu(1)
            return self.proj(scores.softmax(-1) @ v)

    model = RIGHT["language model"].build()
    model.blocks[0].attn = Soft(causal=True)
    result = regard.check(model, tokens(), causal=True)["future tokens"]
    assert result.module == "blocks.0.attn"
    assert result.change < 1e-3
