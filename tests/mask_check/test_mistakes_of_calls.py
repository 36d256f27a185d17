"""What a first use of the check gets wrong is told, or understood: inverted masks that leave NaN, Hugging Face models with options."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.mask_check import check

V, E, T = 29, 14, 9


def padding(rows: int = 4) -> Tensor:
    """Return (B, T) bool, True where there is a token."""
    return torch.arange(T) < torch.tensor([9, 7, 5, 4])[:rows, None]


def padded() -> dict[str, Tensor]:
    mask = padding()
    return {"tokens": torch.randint(1, V, mask.shape, generator=torch.Generator().manual_seed(3)) * mask, "mask": mask}


class TorchAttention(nn.Module):
    """`nn.MultiheadAttention` with a causal mask and a padding mask, which holds True at tokens where it should at padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.attention = nn.Embedding(V, E), nn.MultiheadAttention(E, 2, batch_first=True)
        self.head = nn.Linear(E, V)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.head(x + self.attention(x, x, x, attn_mask=later, key_padding_mask=mask, need_weights=False)[0])


@pytest.mark.parametrize("causal", [True, False])
def test_an_inverted_mask_that_leaves_nothing_but_nan_is_named(causal: bool) -> None:
    report = check(TorchAttention(), padded(), causal=causal)
    found = report["finite values"]
    assert (found.verdict, found.module) == ("leak", "attention")
    assert "inverted mask: mask turned round leaves no NaN" in found.cause


transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
LAYERS = {"hidden_size": 14, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 22}


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(vocab_size=V, pad_token_id=0, **LAYERS))


def xlnet(**settings: Any) -> nn.Module:
    return transformers.XLNetModel(transformers.XLNetConfig(vocab_size=V, d_model=14, n_layer=1, n_head=2, d_inner=22, **settings))


def test_xlm_is_causal_if_its_configuration_says_so() -> None:
    both, one = (transformers.XLMConfig(vocab_size=V, emb_dim=16, n_layers=1, n_heads=2, causal=causal) for causal in (False, True))
    assert check(transformers.XLMWithLMHeadModel(both).eval()).ok
    assert check(transformers.XLMWithLMHeadModel(one).eval())["future tokens"].verdict == "ok"


def test_mamba_is_checked_as_it_generates() -> None:
    config = transformers.MambaConfig(vocab_size=V, hidden_size=16, num_hidden_layers=2, state_size=4)
    report = check(transformers.MambaForCausalLM(config).eval())
    assert report.ok
    assert report["cache"].verdict == "ok"


def test_xlnet_sees_all_unless_told_otherwise() -> None:
    for report in (check(xlnet()), check(xlnet(), causal=False)):
        assert report.ok, str(report)
        assert "future tokens" not in {result.name for result in report.results}
    assert check(xlnet(), causal=True)["future tokens"].verdict == "leak"


@pytest.mark.parametrize("options", [{}, {"pad": 0}, {"causal": False}])
def test_a_forgotten_mask_is_found_by_the_pad_token_of_the_configuration(options: dict[str, Any]) -> None:
    report = check(bert(), {"input_ids": padded()["tokens"]}, **options)
    assert report["padding amount"].verdict == "leak", str(report)


def test_a_call_of_ones_own_leaves_a_hugging_face_model_known() -> None:
    def call(model: nn.Module, batch: dict[str, Tensor]) -> Any:
        return model(batch["input_ids"], attention_mask=(batch["input_ids"] != 0).long()).last_hidden_state

    report = check(bert(), {"input_ids": padded()["tokens"]}, call=call)
    assert report.ok, str(report)
    assert report["padding amount"].verdict == "ok"


def test_a_model_of_images_takes_them_and_asks_for_them() -> None:
    config = transformers.ViTConfig(image_size=8, patch_size=4, **LAYERS)
    model = transformers.ViTModel(config)
    assert check(model, torch.randn(5, 3, 8, 8)).ok
    with pytest.raises(ConfigError, match=r"give one in Python: regard.check\(model, \{'pixel_values': ...\}\)"):
        check(model)
