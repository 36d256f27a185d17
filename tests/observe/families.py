"""Tiny models of eight families, with random weights, and what they read; nothing is downloaded. Sizes are small primes where they may."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.integrations import tiny

EMBED, HEADS, DROPOUT = 22, 2, 0.25  # an even number of heads: torch's fused ways take no other


class Family(NamedTuple):
    """A model, what it is called with, and the calls of attention of one forward pass: (layer, kind, H, T, S)."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    calls: list[tuple[str, str, int, int, int]]

    def __call__(self) -> Tensor:
        found = self.model(*self.args, **self.kwargs)
        return found if isinstance(found, Tensor) else found[0]


def noisy(model: Any) -> Any:
    """Make attention matter: initial weights are so small that every row of weights is flat."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def transformer() -> Family:
    model = noisy(nn.Transformer(EMBED, HEADS, 2, 2, 13, dropout=DROPOUT, batch_first=True))
    source, target = torch.randn(3, 7, EMBED), torch.randn(3, 5, EMBED)
    padding = torch.arange(7) >= torch.tensor([7, 6, 4])[:, None]
    kwargs = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5).isinf(),
        "src_key_padding_mask": padding,
        "memory_key_padding_mask": padding,
    }
    calls = [(f"encoder.layers.{layer}.self_attn", "self", HEADS, 7, 7) for layer in range(2)]
    for layer in range(2):
        calls.append((f"decoder.layers.{layer}.self_attn", "self", HEADS, 5, 5))
        calls.append((f"decoder.layers.{layer}.multihead_attn", "cross", HEADS, 5, 7))
    return Family(model, (source, target), kwargs, calls)


def encoder() -> Family:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 13, dropout=DROPOUT, batch_first=True)
    model = noisy(nn.TransformerEncoder(layer, 3))
    padding = torch.arange(7) >= torch.tensor([6, 5, 4])[:, None]  # the longest, too: the fused way cuts the batch to 6
    calls = [(f"layers.{number}.self_attn", "self", HEADS, 7, 7) for number in range(3)]
    return Family(model, (torch.randn(3, 7, EMBED),), {"src_key_padding_mask": padding}, calls)


def bert(implementation: str) -> Family:
    model = tiny.bert(attn_implementation=implementation, attention_probs_dropout_prob=DROPOUT)
    return Family(model, (), tiny.inputs("bert"), [(f"encoder.layer.{n}.attention.self", "self", 3, 7, 7) for n in range(2)])


def gpt2(implementation: str) -> Family:
    model = tiny.gpt2(attn_implementation=implementation, attn_pdrop=DROPOUT)
    return Family(model, (), tiny.inputs("gpt2"), [(f"transformer.h.{n}.attn", "self", 3, 7, 7) for n in range(2)])


def llama(implementation: str) -> Family:
    model = tiny.llama(attn_implementation=implementation, attention_dropout=DROPOUT)
    return Family(model, (), tiny.inputs("llama"), [(f"model.layers.{n}.self_attn", "self", 6, 7, 7) for n in range(2)])


def marian(implementation: str) -> Family:
    model = tiny.marian(attn_implementation=implementation, attention_dropout=DROPOUT)
    calls = [(f"model.encoder.layers.{n}.self_attn", "self", 3, 7, 7) for n in range(2)]
    for n in range(2):
        calls += [(f"model.decoder.layers.{n}.self_attn", "self", 3, 5, 5), (f"model.decoder.layers.{n}.encoder_attn", "cross", 3, 5, 7)]
    return Family(model, (), tiny.inputs("marian"), calls)


def vit(implementation: str) -> Family:
    model = tiny.vit(attn_implementation=implementation, attention_probs_dropout_prob=DROPOUT)
    return Family(model, (), tiny.inputs("vit"), [(f"layers.{n}.attention", "self", 3, 16, 16) for n in range(2)])


class VisionAttention(nn.Module):
    """What the attention of timm 1.0's VisionTransformer calls, call by call: one product for three, idle norms, fused or not."""

    def __init__(self, dim: int, num_heads: int, *, fused: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.fused_attn = num_heads, dim // num_heads, fused
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm, self.k_norm = nn.Identity(), nn.Identity()
        self.attn_drop = nn.Dropout(DROPOUT)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, dim = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=dropout, is_causal=False)
        else:
            q = q * self.head_dim**-0.5
            attn = q @ k.transpose(-2, -1)
            attn = attn.softmax(dim=-1)
            attn = self.attn_drop(attn)
            x = attn @ v
        return self.proj(x.transpose(1, 2).reshape(batch, count, dim))


class VisionBlock(nn.Module):
    def __init__(self, dim: int, num_heads: int, *, fused: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = VisionAttention(dim, num_heads, fused=fused)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbedding(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.grid_size = (3, 5)
        self.proj = nn.Conv2d(3, dim, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """A ViT as timm builds it: patches, a class token, blocks."""

    def __init__(self, dim: int, num_heads: int, depth: int, *, fused: bool) -> None:
        super().__init__()
        self.patch_embed = PatchEmbedding(dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 16, dim))
        self.blocks = nn.Sequential(*(VisionBlock(dim, num_heads, fused=fused) for _ in range(depth)))
        self.head = nn.Linear(dim, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.blocks(x)[:, 0])


def vision(*, fused: bool) -> Family:
    model = noisy(VisionTransformer(21, 3, 2, fused=fused))
    return Family(model, (torch.randn(2, 3, 6, 10),), {}, [(f"blocks.{n}.attn", "self", 3, 16, 16) for n in range(2)])


_operators: list[torch.library.Library] = []


def timm_works() -> bool:
    """Whether timm can be imported.

    It imports torchvision, whose usual wheel is built for CUDA: on a CPU build of torch its C extension does not load, and its import fails
    at the two operators that it describes to the compiler. Their declarations are enough; a ViT calls neither.
    """
    if importlib.util.find_spec("timm") is None or importlib.util.find_spec("torchvision") is None:
        return False
    if not _operators and torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
        _operators.append(torch.library.Library("torchvision", "FRAGMENT"))
        for name in ("nms", "qnms"):
            _operators[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    try:
        importlib.import_module("timm")
    except (ImportError, RuntimeError):
        return False
    return True


def timm(*, fused: bool) -> Family:
    import timm

    settings = {"img_size": (6, 10), "patch_size": 2, "embed_dim": 21, "depth": 2, "num_heads": 3, "num_classes": 11}
    model = noisy(timm.models.VisionTransformer(**settings, attn_drop_rate=DROPOUT))
    for block in model.blocks:
        block.attn.fused_attn = fused
    return Family(model, (torch.randn(2, 3, 6, 10),), {}, [(f"blocks.{n}.attn", "self", 3, 16, 16) for n in range(2)])


FAMILIES: dict[str, Callable[[], Family]] = {"nn.Transformer": transformer, "nn.TransformerEncoder": encoder}
for make in (bert, gpt2, llama, marian, vit):
    FAMILIES |= {f"{make.__name__} {implementation}": partial(make, implementation) for implementation in ("sdpa", "eager")}
for build in (vision, timm):
    FAMILIES |= {f"{build.__name__} {name}": partial(build, fused=fused) for name, fused in (("fused", True), ("by hand", False))}
