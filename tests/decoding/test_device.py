from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from regard.decoding import DecodingOptions, Hypothesis, SamplingOptions, beam_search, greedy_search, sample
from regard.ops import top_tokens
from tests.decoding.history import BOS, EOS, HistoryStep

pytestmark = pytest.mark.gpu

SOURCES = [5, 2, 3, 7, 1, 5, 2]
OPTIONS = DecodingOptions(
    bos=BOS,
    eos=EOS,
    beam_size=5,
    n_best=3,
    max_length=[11, 7, 13, 0, 5, 11, 2],
    coverage_penalty=0.3,
    source_lengths=SOURCES,
    no_repeat_ngram_size=2,
    banned=(BOS,),
    prefix=[None, [1], None, None, [2, 4], None, []],
    need_attention=True,
)


# Hypotheses are kept on the device only where a step reads all logits or the attention.
PLAIN = replace(OPTIONS, coverage_penalty=0.0, no_repeat_ngram_size=0)


def found(kind: str, options: DecodingOptions, device: str) -> list[list[Hypothesis]]:
    step = HistoryStep(seed=1, vocabulary=1009, source_lengths=SOURCES[:5], end_bonus=4.0, device=device)
    common: Any = {"batch_size": 7, "options": options, "device": device}
    if kind == "sample":
        generator = torch.Generator().manual_seed(1)
        return sample(step, step.start(range(7)), sampling=SamplingOptions(num_samples=3, top_p=0.9), generator=generator, **common)
    return {"beam_size": beam_search, "greedy": greedy_search}[kind](step, step.start(range(7)), **common)


@pytest.mark.parametrize("options", [OPTIONS, PLAIN], ids=["kept there", "kept on the cpu"])
@pytest.mark.parametrize("kind", ["beam_size", "greedy", "sample"])
def test_a_gpu_finds_what_the_cpu_finds(kind: str, options: DecodingOptions) -> None:
    for ours, expected in zip(found(kind, options, "cuda"), found(kind, options, "cpu"), strict=True):
        for one, other in zip(ours, expected, strict=True):
            assert one.tokens == other.tokens
            assert one.score == pytest.approx(other.score, rel=1e-5)
            torch.testing.assert_close(one.attention, other.attention)


@pytest.mark.parametrize("size", [4, 1009, 7919, 7936, 50_000])
def test_top_tokens_and_argmax_prefer_the_lower_of_equal_tokens(size: int) -> None:
    values = -torch.randint(0, 17, (3, 5, size)).float()
    expected = values.sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(top_tokens(values.cuda(), 7).cpu(), expected[..., :7])
    assert torch.equal(values.cuda().argmax(-1).cpu(), expected[..., 0])
