"""Models of Hugging Face that leak by their own code: the check says so, and why; docs/check.md has the reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from regard.errors import ConfigError
from regard.mask_check import check

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

LENGTHS = torch.tensor([[12], [9], [7], [5]])


def funnel() -> Any:
    sizes = {"block_sizes": [1, 1], "n_head": 2, "d_model": 24, "d_head": 12, "d_inner": 32}
    return transformers.FunnelModel(transformers.FunnelConfig(vocab_size=53, pad_token_id=0, **sizes))


def yoso() -> Any:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
    return transformers.YosoModel(transformers.YosoConfig(vocab_size=53, pad_token_id=0, **sizes))


def rwkv() -> Any:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "attention_hidden_size": 24, "intermediate_size": 32}
    return transformers.RwkvModel(transformers.RwkvConfig(vocab_size=53, pad_token_id=0, **sizes))


def reformer(layers: str, *, decoder: bool) -> Any:
    sizes = {"hidden_size": 24, "num_attention_heads": 2, "attention_head_size": 12, "feed_forward_size": 32, "max_position_embeddings": 64}
    chunks = {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 4, "num_hashes": 2, "hash_seed": 0}
    kind = transformers.ReformerModelWithLMHead if decoder else transformers.ReformerModel
    config = transformers.ReformerConfig(
        vocab_size=53, pad_token_id=0, attn_layers=[layers] * 2, axial_pos_embds=False, is_decoder=decoder, **sizes, **chunks
    )
    return kind(config)


def clip() -> Any:
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 64}
    return transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=53, pad_token_id=1, bos_token_id=0, eos_token_id=2, **sizes))


ALARMS: dict[str, tuple[Callable[[], Any], set[str], str]] = {
    "Funnel": (funnel, {"padding content", "padding amount"}, "real positions see padding"),
    "YOSO": (yoso, {"padding content", "padding amount"}, "a mask arrives (attention_mask, int64 (3, 10)) and is not used"),
    "RWKV": (rwkv, {"left padding"}, "earlier positions are carried on, by a shift, a convolution or a recurrence"),
    "Reformer, encoder of lsh": (lambda: reformer("lsh", decoder=False), set(), ""),
    "Reformer, encoder of local": (lambda: reformer("local", decoder=False), set(), ""),
    "Reformer, decoder of lsh": (lambda: reformer("lsh", decoder=True), {"future tokens", "left padding"}, "tokens are sorted or grouped"),
    "Reformer, decoder of local": (lambda: reformer("local", decoder=True), {"left padding"}, "it says: RuntimeError"),
}


@pytest.mark.parametrize("name", ALARMS)
def test_a_model_that_leaks_by_its_own_code_is_told(name: str) -> None:
    make, leaks, cause = ALARMS[name]
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    mask = (torch.arange(12) < LENGTHS).long()
    report = check(model, {"input_ids": torch.randint(3, 50, (4, 12)) * mask, "attention_mask": mask})
    assert {result.name for result in report.leaks} == leaks, str(report)
    assert not leaks or any(cause in result.cause for result in report.leaks)


def test_the_largest_token_of_a_padded_text_is_looked_for_in_its_padding_too() -> None:
    torch.manual_seed(0)
    model = clip().eval()
    mask = (torch.arange(12) < LENGTHS).long()
    tokens = torch.where(torch.arange(4)[:, None] == 0, torch.randint(30, 50, (4, 12)), torch.randint(3, 9, (4, 12)))
    report = check(model, {"input_ids": torch.where(mask > 0, tokens, 1), "attention_mask": mask})
    assert [result.name for result in report.leaks] == ["padding content"], str(report)
    assert report["padding content"].output == "pooler_output"
    with pytest.raises(ConfigError, match=r"no check 'padding'; there are .*padding content"):
        report["padding"]
