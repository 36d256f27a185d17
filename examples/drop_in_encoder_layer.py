"""Put Regard's multi-head attention into a torch.nn.TransformerEncoderLayer, weights and all.

Run it: `python examples/drop_in_encoder_layer.py`
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.attention import Areas, MultiHeadAttention


class DropIn(nn.Module):
    """Stand in the place of `self_attn` of a torch.nn.TransformerEncoderLayer with `batch_first=True`.

    torch's masks mean the opposite of Regard's: there, True hides.
    """

    batch_first = False  # the layer reads it: False keeps it from torch's own fused inference, which would go past this module

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = False,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Take what torch's layer passes, return what it expects."""
        mask = None if attn_mask is None else _allowed(attn_mask)  # (T, S); `is_causal` only says that it is the causal one
        if key_padding_mask is not None:
            padding = _allowed(key_padding_mask).unsqueeze(1)  # (B, 1, S)
            mask = padding if mask is None else mask & padding
        return self.attention(query, key, value, mask=mask, need_weights=need_weights)


def _allowed(hidden: Tensor) -> Tensor:
    # The layer turns boolean masks into numbers to add: 0 where allowed, -inf where not.
    return ~hidden if hidden.dtype == torch.bool else hidden == 0


@torch.no_grad()
def drop_in(theirs: nn.MultiheadAttention, areas: Areas | None = None) -> DropIn:
    """Build Regard's attention with the weights of torch's, attending to areas if given."""
    ours = MultiHeadAttention(theirs.embed_dim, theirs.num_heads, dropout=theirs.dropout, areas=areas)
    for part, weight, bias in zip(
        (ours.query, ours.key, ours.value), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    ):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    ours.output.load_state_dict(theirs.out_proj.state_dict())
    return DropIn(ours).train(theirs.training)


def main() -> None:
    """Compare a layer with its own attention, with Regard's, and with Regard's over areas of up to 3 tokens."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(d_model=32, nhead=4, dim_feedforward=64, batch_first=True).eval()
    states = torch.randn(2, 7, 32)
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
    original = layer(states, src_key_padding_mask=padding)
    theirs = layer.self_attn
    layer.set_submodule("self_attn", drop_in(theirs))
    difference = (layer(states, src_key_padding_mask=padding) - original)[~padding].abs().max().item()
    print(f"largest difference, same weights: {difference:.0e}")
    layer.set_submodule("self_attn", drop_in(theirs, Areas(3)))
    difference = (layer(states, src_key_padding_mask=padding) - original)[~padding].abs().max().item()
    print(f"largest difference, with areas:   {difference:.0e}")


if __name__ == "__main__":
    main()
