"""Tiny Hugging Face models with random weights; sizes are small primes where the model allows it."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 37
LAYERS = 2


def marian(**options: Any) -> Any:
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY,
        d_model=15,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=11,
        decoder_ffn_dim=11,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        max_position_embeddings=32,
        **options,
    )
    return _noisy(transformers.MarianMTModel(config))


def bert(**options: Any) -> Any:
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=15,
        num_attention_heads=3,
        num_hidden_layers=LAYERS,
        intermediate_size=11,
        max_position_embeddings=32,
        **options,
    )
    return _noisy(transformers.BertModel(config))


def gpt2(**options: Any) -> Any:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=15,
        n_head=3,
        n_layer=LAYERS,
        n_inner=11,
        n_positions=32,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
        **options,
    )
    return _noisy(transformers.GPT2LMHeadModel(config))


def llama(**options: Any) -> Any:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=36,
        num_attention_heads=6,
        num_key_value_heads=2,
        num_hidden_layers=LAYERS,
        intermediate_size=11,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=1,
        **options,
    )
    return _noisy(transformers.LlamaForCausalLM(config))


def t5(**options: Any) -> Any:
    config: Any = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=15,
        d_kv=5,
        d_ff=11,
        num_heads=3,
        num_layers=LAYERS,
        relative_attention_num_buckets=8,
        pad_token_id=0,
        eos_token_id=1,
        **options,
    )
    config.decoder_start_token_id = 0
    return _noisy(transformers.T5ForConditionalGeneration(config))


def gemma2(**options: Any) -> Any:
    """Scores are capped (softcap), and every other layer has a sliding window."""
    config = transformers.Gemma2Config(
        vocab_size=VOCABULARY,
        hidden_size=12,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        num_hidden_layers=LAYERS,
        intermediate_size=11,
        sliding_window=3,
        attn_logit_softcapping=0.5,
        pad_token_id=0,
        **options,
    )
    return _noisy(transformers.Gemma2ForCausalLM(config))


def gpt_oss(**options: Any) -> Any:
    """Every head has a sink: a score without a value."""
    config = transformers.GptOssConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        num_hidden_layers=LAYERS,
        intermediate_size=16,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=3,
        pad_token_id=0,
        **options,
    )
    return _noisy(transformers.GptOssForCausalLM(config))


def vit(**options: Any) -> Any:
    """A grid of 3 x 5 patches after one class token."""
    config = transformers.ViTConfig(
        hidden_size=15,
        num_attention_heads=3,
        num_hidden_layers=LAYERS,
        intermediate_size=11,
        image_size=(6, 10),
        patch_size=2,
        **options,
    )
    return _noisy(transformers.ViTModel(config))


def registers(**options: Any) -> Any:
    """A grid of 3 x 3 patches after one class token and two registers."""
    config = transformers.Dinov2WithRegistersConfig(
        hidden_size=15,
        num_attention_heads=3,
        num_hidden_layers=LAYERS,
        mlp_ratio=1,
        image_size=6,
        patch_size=2,
        num_register_tokens=2,
        **options,
    )
    return _noisy(transformers.Dinov2WithRegistersModel(config))


def _noisy(model: Any) -> Any:
    """Make attention matter: initial weights are so small that every row of weights is flat."""
    with torch.no_grad():
        for parameter in (parameter for parameter in model.parameters() if parameter.requires_grad):  # not fixed positions
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(3, VOCABULARY, (rows, length))


def padded(rows: int, length: int) -> dict[str, Tensor]:
    """Token ids, row i ending in i padded places."""
    ids = tokens(rows, length)
    mask = torch.arange(length) < length - torch.arange(rows).unsqueeze(1)
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def inputs(name: str) -> dict[str, Tensor]:
    """What the model of that name reads, padded at the end where it knows padding."""
    if name == "vit":
        return {"pixel_values": torch.randn(2, 3, 6, 10)}
    if name == "registers":
        return {"pixel_values": torch.randn(2, 3, 6, 6)}
    given = padded(3, 7)
    return given if name not in ("marian", "t5") else {**given, "decoder_input_ids": tokens(3, 5)}


MODELS = {f.__name__: f for f in (marian, bert, llama, t5, gemma2, gpt_oss, vit, registers)}


def output(model: Any, **given: Any) -> Tensor:
    """The first output of the model: its logits or last states."""
    with torch.no_grad():
        return model(**given)[0]
