"""Small models of other toolkits: random weights under the names that these toolkits give them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HEADS, DIM, HIDDEN = 3, 18, 23
ENCODER_LAYERS, DECODER_LAYERS = 2, 1


def affine(state: dict[str, Tensor], name: str, rows: int, columns: int, draw: torch.Generator) -> None:
    state[f"{name}.weight"] = torch.randn(rows, columns, generator=draw) / columns**0.5
    state[f"{name}.bias"] = torch.randn(rows, generator=draw) / 5


def norm(state: dict[str, Tensor], name: str, draw: torch.Generator) -> None:
    state[f"{name}.weight"] = 1 + torch.randn(DIM, generator=draw) / 5
    state[f"{name}.bias"] = torch.randn(DIM, generator=draw) / 5


def table(size: int, draw: torch.Generator) -> Tensor:
    return 3 * torch.randn(size, DIM, generator=draw) / DIM**0.5  # large, so that what follows depends on what came before


def fairseq_state(*, pre: bool, source_size: int, target_size: int, shared: bool = False, tied: bool = True) -> dict[str, Tensor]:
    """Return the weights of a fairseq Transformer."""
    state: dict[str, Tensor] = {}
    draw = torch.Generator().manual_seed(7)
    for side, layers in (("encoder", ENCODER_LAYERS), ("decoder", DECODER_LAYERS)):
        for number in range(layers):
            name = f"{side}.layers.{number}"
            for attention in ["self_attn"] if side == "encoder" else ["self_attn", "encoder_attn"]:
                for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    affine(state, f"{name}.{attention}.{part}", DIM, DIM, draw)
                norm(state, f"{name}.{attention}_layer_norm", draw)
            affine(state, f"{name}.fc1", HIDDEN, DIM, draw)
            affine(state, f"{name}.fc2", DIM, HIDDEN, draw)
            norm(state, f"{name}.final_layer_norm", draw)
        if pre:
            norm(state, f"{side}.layer_norm", draw)
        state[f"{side}.version"] = torch.tensor([3.0])
        state[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    source, target = table(source_size, draw), table(target_size, draw)
    state["encoder.embed_tokens.weight"] = target if shared else source
    state["decoder.embed_tokens.weight"] = target
    state["decoder.output_projection.weight"] = target if tied else table(target_size, draw)
    return state


def joeynmt_state(*, pre: bool, source_size: int, target_size: int, shared: bool = False, tied: bool = True) -> dict[str, Tensor]:
    """Return the weights of a JoeyNMT Transformer."""
    state: dict[str, Tensor] = {}
    draw = torch.Generator().manual_seed(8)
    kinds: dict[str, Any] = {
        "encoder": (ENCODER_LAYERS, {"src_src_att": "layer_norm"}),
        "decoder": (DECODER_LAYERS, {"trg_trg_att": "x_layer_norm", "src_trg_att": "dec_layer_norm"}),
    }
    for side, (layers, attentions) in kinds.items():
        for number in range(layers):
            name = f"{side}.layers.{number}"
            for attention, its_norm in attentions.items():
                for part in ("k_layer", "v_layer", "q_layer", "output_layer"):
                    affine(state, f"{name}.{attention}.{part}", DIM, DIM, draw)
                norm(state, f"{name}.{its_norm}", draw)
            norm(state, f"{name}.feed_forward.layer_norm", draw)
            affine(state, f"{name}.feed_forward.pwff_layer.0", HIDDEN, DIM, draw)
            affine(state, f"{name}.feed_forward.pwff_layer.3", DIM, HIDDEN, draw)
        if pre:
            norm(state, f"{side}.layer_norm", draw)
        state[f"{side}.pe.pe"] = torch.zeros(1, 2, DIM)
    target = table(target_size, draw)
    state["src_embed.lut.weight"] = target if shared else table(source_size, draw)
    state["trg_embed.lut.weight"] = target
    state["decoder.output_layer.weight"] = target if tied else table(target_size, draw)
    return state


def batch(source_size: int, target_size: int, *, pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return sources (B, S), their lengths, and target inputs (B, T); the sources are padded."""
    draw = torch.Generator().manual_seed(9)
    source = torch.randint(4, source_size - 1, (3, 7), generator=draw)
    lengths = torch.tensor([7, 5, 2])
    source = source.masked_fill(torch.arange(7) >= lengths[:, None], pad)
    return source, lengths, torch.randint(4, target_size - 1, (3, 5), generator=draw)
