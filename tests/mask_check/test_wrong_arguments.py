"""Wrong arguments of `regard.check`, `Adapter` and `Sequence`, and files that cannot be loaded, are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError
from regard.mask_check import Adapter, Sequence, check, load_folder

V, E = 23, 6


def model() -> nn.Module:
    return nn.Sequential(nn.Embedding(V, E), nn.Linear(E, V))


def tokens() -> Tensor:
    return torch.randint(V, (4, 7), generator=torch.Generator().manual_seed(3))


WRONG: list[tuple[str, Callable[[Any], object]]] = [
    ("Sequence.name", Sequence),
    ("Sequence.mask", lambda wrong: Sequence("tokens", mask=wrong)),
    ("Sequence.companions", lambda wrong: Sequence("tokens", companions=(wrong,))),
    ("Sequence.lengths", lambda wrong: Sequence("tokens", lengths=wrong)),
    ("Sequence.labels", lambda wrong: Sequence("tokens", labels=wrong)),
    ("Sequence.documents", lambda wrong: Sequence("tokens", documents=wrong)),
    ("Adapter.sequences", Adapter),
    ("Adapter.sequences", lambda wrong: Adapter((wrong,))),
    ("Adapter.call", lambda wrong: Adapter((Sequence("tokens"),), call=wrong)),
    ("Adapter.start", lambda wrong: Adapter((Sequence("tokens"),), start=wrong, step=wrong)),
    ("Adapter.outputs", lambda wrong: Adapter((Sequence("tokens"),), outputs=wrong)),
    ("Adapter.outputs", lambda wrong: Adapter((Sequence("tokens"),), outputs={"": wrong})),
    ("adapter", lambda wrong: check(model(), tokens(), adapter=wrong)),
]


@pytest.mark.parametrize(("name", "make"), WRONG)
def test_an_attribute_of_another_type_is_named(name: str, make: Callable[[Any], object]) -> None:
    with pytest.raises(ConfigError, match=rf"^{name}: .*found \(?3"):
        make(3)


@pytest.mark.parametrize(
    ("message", "make"),
    [
        ("Sequence.mask: expected keys .* found 'mask'", lambda: Sequence("tokens", mask="mask")),  # type: ignore[arg-type]
        ("Sequence.pad: .* found 'x'", lambda: Sequence("tokens", pad="x")),  # type: ignore[arg-type]
        ("Adapter.skip: .* found 'caches'", lambda: Adapter((Sequence("tokens"),), skip="caches")),  # type: ignore[arg-type]
        ("Adapter.window: .* at least 1, found 0", lambda: Adapter((Sequence("tokens"),), window=0)),
        ("Adapter.outputs: '': .* None, batch, tokens", lambda: Adapter((Sequence("tokens"),), outputs={"": ("batch", "time")})),
    ],
)
def test_an_attribute_with_another_value_is_named(message: str, make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_lengths_with_more_than_one_axis_are_named() -> None:
    adapter = Adapter((Sequence("tokens", lengths="tokens"),), call=lambda model, batch: model(batch["tokens"]))
    with pytest.raises(DataError, match=r"lengths are \(B,\), here \(4,\); found \(4, 7\)"):
        check(model(), {"tokens": tokens()}, adapter=adapter)


@pytest.mark.parametrize("pad", [-1, V])
def test_a_padding_token_that_the_model_has_not_is_named(pad: int) -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(tokens)

    with pytest.raises(ConfigError, match=f"pad: the model has no token {pad}"):
        check(Tagger(), tokens(), causal=True, pad=pad)


def test_images_alone_cannot_be_causal() -> None:
    images = nn.Sequential(nn.Flatten(), nn.Linear(3 * 5 * 5, 2))
    assert check(images, torch.randn(4, 3, 5, 5), causal=False).ok
    with pytest.raises(ConfigError, match="causal: the batch of Sequential holds no tokens"):
        check(images, torch.randn(4, 3, 5, 5), causal=True)


def test_a_call_that_asks_for_a_missing_key_says_so() -> None:
    with pytest.raises(DataError, match="KeyError: 'mask'"):
        check(model(), {"tokens": tokens()}, causal=True, call=lambda model, batch: model(batch["mask"]))


def test_a_damaged_file_of_weights_is_named(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
    small = transformers.GPT2Config(vocab_size=V, n_embd=6, n_head=1, n_layer=1, n_positions=7)
    transformers.GPT2LMHeadModel(small).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    with pytest.raises(DataError, match="cannot be loaded as a Hugging Face model"):
        load_folder(tmp_path)


@pytest.mark.parametrize("wrong", [[[1, 2], [3, 4]], np.ones((2, 2), dtype=np.int64)])
def test_tokens_that_are_no_tensor_are_told(wrong: Any) -> None:
    adapter = Adapter((Sequence("tokens"),))
    with pytest.raises(ConfigError, match=r"batch\['tokens'\]: expected a tensor, found (list|ndarray); torch.tensor makes one"):
        check(model(), {"tokens": wrong}, adapter=adapter)


def test_tokens_of_one_row_without_its_axis_are_told() -> None:
    with pytest.raises(DataError, match=r"batch\['tokens'\]: expected tokens \(B, T\) or features .*, found \(7,\); unsqueeze"):
        check(model(), {"tokens": tokens()[0]}, adapter=Adapter((Sequence("tokens"),)))
