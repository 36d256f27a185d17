"""A greedy search in native code: bit for bit what the same steps find one by one, and what it leaves to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.attention import record_weights
from regard.config import AreaConfig, CaptionTransformerConfig, RNNConfig, TransformerConfig
from regard.decoding import DecodingOptions, ForcedPhrases, Hypothesis, Phrase, greedy_search
from regard.errors import ConfigError, RangeError, RegardError
from regard.models import build
from regard.models.captioning import build_captioner
from regard.models.encoder_decoder import EncoderDecoder
from regard.ops.kernels import native
from tests.ops.targets import TARGETS, instructions

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native library is not built")
COUNT, VOCABULARY = 37, 19
SIZES: dict[str, Any] = {"embed_dim": 20, "ff_dim": 23, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 3}
RECURRENT: dict[str, Any] = {"embed_dim": 7, "encoder_dim": 9, "decoder_dim": 18, "readout_dim": 13, "attention": {"attention_dim": 11}}
CONFIGS = {
    "transformer": TransformerConfig(**SIZES),
    "pre-norm": TransformerConfig(**SIZES, norm="pre", tie_embeddings=False),
    "areas": TransformerConfig(**SIZES, area=AreaConfig(max_area=3, layers=2)),
    "learned areas": TransformerConfig(**SIZES, area=AreaConfig(max_area=3, layers=2, key_mode="features")),
    "gru": RNNConfig(**RECURRENT, cell="gru"),
    "lstm": RNNConfig(**RECURRENT, cell="lstm", decoder_layers=2),
    "captions": CaptionTransformerConfig(**SIZES),
}
OPTIONS = DecodingOptions(bos=2, eos=3, beam_size=1, max_length=[1 + 3 * n % 41 for n in range(COUNT)], banned=(0, 2), length_penalty=0.7)


def model_of(name: str) -> EncoderDecoder[Any]:
    torch.manual_seed(7)
    config = CONFIGS[name]
    if isinstance(config, CaptionTransformerConfig):
        model = build_captioner(config, image_size=16, vocab_size=VOCABULARY)
    else:
        model = build(config, source_size=VOCABULARY, target_size=VOCABULARY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def sources(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    if name == "captions":
        return torch.randn(COUNT, 3, 16, 16, generator=generator), torch.full((COUNT,), 4)
    return torch.randint(4, VOCABULARY, (COUNT, 11), generator=generator), torch.randint(1, 12, (COUNT,), generator=generator)


class Asked:
    """A model's own search, and how often it found something."""

    def __init__(self, model: EncoderDecoder[Any]) -> None:
        self.model, self.found = model, 0

    def __call__(self, state: Any, rules: Any) -> Any:
        found = self.model.greedy(state, rules)
        self.found += found is not None
        return found


def both(name: str, options: DecodingOptions, dtype: torch.dtype = torch.float32) -> tuple[list[Hypothesis], list[Hypothesis], int]:
    """Search step by step and at once; return both, and how often the model searched."""
    model = model_of(name)
    asked = Asked(model)
    with torch.inference_mode(), ops.packed_weights(dtype):
        results = [
            greedy_search(model.decoding_step, model.start(*sources(name)), batch_size=COUNT, options=options, at_once=at_once)
            for at_once in (None, asked)
        ]
    steps, once = ([hypothesis for (hypothesis,) in found] for found in results)
    return steps, once, asked.found


def ending_token(name: str) -> int:
    """Return the token that would end the sentences of an untrained model after the most different lengths."""
    found = [hypothesis.tokens for hypothesis in both(name, replace(OPTIONS, max_length=40))[0]]
    return max(range(4, VOCABULARY), key=lambda token: len({tokens.index(token) for tokens in found if token in tokens}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_what_the_steps_find_one_by_one(name: str, dtype: torch.dtype) -> None:
    eos, lengths = ending_token(name), set[int]()
    for change in ({}, {"max_length": 40}, {"min_length": 5, "max_length": 40, "banned": ()}, {"banned": (0, 1, 2), "length_penalty": 0.0}):
        options = replace(OPTIONS, eos=eos, **change)
        steps, once, count = both(name, options, dtype)
        assert count == 1
        assert once == steps
        lengths |= {len(hypothesis.tokens) for hypothesis in steps if hypothesis.tokens[-1] == eos}
    assert len(lengths) > 1


@pytest.mark.parametrize("target", TARGETS)
def test_every_instruction_set_finds_it(target: int) -> None:
    with instructions(target):
        steps, once, count = both("transformer", OPTIONS)
    assert count == (target > 0)  # without vector units the output layer is PyTorch's
    assert once == steps


@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_threads_do_not_matter(name: str) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        steps, once, count = both(name, OPTIONS)
    finally:
        torch.set_num_threads(before)
    assert (once, count) == (steps, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"need_attention": True},
        {"no_repeat_ngram_size": 2},
        {"coverage_penalty": 0.3, "source_lengths": [11] * COUNT},
        {"prefix": [[5]] * COUNT, "max_length": 9},
        {"phrases": ForcedPhrases([[Phrase([5, 6])]] * COUNT), "max_length": 9},
        {"max_length": [0] + [7] * (COUNT - 1)},
    ],
)
def test_other_options_go_step_by_step(change: dict[str, Any]) -> None:
    steps, once, count = both("transformer", replace(OPTIONS, **change))
    assert count == 0
    assert [one.tokens for one in once] == [one.tokens for one in steps]


def test_an_empty_batch_finds_nothing() -> None:
    model = model_of("transformer")
    assert greedy_search(model.decoding_step, None, batch_size=0, options=replace(OPTIONS, max_length=7), at_once=model.greedy) == []  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_without_packed_weights_or_while_weights_are_recorded_there_is_none(name: str) -> None:
    model = model_of(name)
    asked = Asked(model)

    def search() -> Any:
        return greedy_search(model.decoding_step, model.start(*sources(name)), batch_size=COUNT, options=OPTIONS, at_once=asked)

    with torch.inference_mode():
        search()
        with ops.packed_weights(torch.bfloat16):
            search()
        with record_weights(), ops.packed_weights():
            search()
    assert asked.found == 0


@pytest.mark.parametrize("name", ["transformer", "gru"])
def test_logits_that_are_no_distribution_are_named(name: str) -> None:
    model = model_of(name)
    messages = []
    with torch.inference_mode(), ops.packed_weights():
        embedding = model.target_embedding if name == "transformer" else model.decoder.embedding  # type: ignore[union-attr]
        embedding.weight[5:] = torch.nan
        for at_once in (None, model.greedy):
            with pytest.raises(RegardError, match="hold NaN") as error:
                greedy_search(model.decoding_step, model.start(*sources(name)), batch_size=COUNT, options=OPTIONS, at_once=at_once)
            messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_a_token_outside_the_vocabulary_is_named() -> None:
    model, options = model_of("transformer"), replace(OPTIONS, banned=(VOCABULARY,))
    with torch.inference_mode(), ops.packed_weights(), pytest.raises(ConfigError, match="token 19 of the search options"):
        greedy_search(model.decoding_step, model.start(*sources("transformer")), batch_size=COUNT, options=options, at_once=model.greedy)


def test_a_token_outside_the_table_is_refused() -> None:
    model = model_of("pre-norm")
    model.target_embedding = torch.nn.Embedding(2, 20)  # type: ignore[assignment]
    with torch.inference_mode(), ops.packed_weights(), pytest.raises(RangeError, match="after 0 steps"):
        greedy_search(model.decoding_step, model.start(*sources("pre-norm")), batch_size=COUNT, options=OPTIONS, at_once=model.greedy)
