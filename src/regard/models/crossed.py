"""Crossed co-attention networks: a Transformer with two encoder branches that attend to each other, and a decoder that attends to both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import CrossedAttention, MultiHeadAttention
from regard.constructor_checks import Dropout, Share, checked
from regard.errors import ShapeError
from regard.models.cross_attention import Source, SourceMemory, SourcePairAttention, weights_of
from regard.models.transformer import Transformer
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import CrossAttentionOutput, FeedForward, ResidualNorm

Residual = Literal["own", "asking"]


class CrossedEncoderLayer(nn.Module):
    """Encoder layer with two branches that attend to each other, each with its own feed-forward layer, residual connections and LayerNorms.

        left = attention_left(query=x2, key=x1, value=x1);  right = attention_right(query=x1, key=x2, value=x2)
        own      x1 <- norm(x1 + left),  x2 <- norm(x2 + right): the result stays in the branch of its values
        asking   x2 <- norm(x2 + left),  x1 <- norm(x1 + right): the result goes to the querying branch, so lengths may differ

    Li et al. 2019 (arXiv:1911.03897), section 2.2, written here for post-norm. The paper does not specify its residual connections; "own"
    follows its intent that branches "relatively keep the information in their own domains".

    Args:
        attention: left attends to x1, right to x2; both are `MultiHeadAttention`.
        left: feed-forward layer after the left attention.
        right: feed-forward layer after the right attention.
        pre: LayerNorm before each sub-layer instead of after each residual.
        dropout: on sub-layer outputs.
        residual: see above.

    Parameters: `attention.left.*`, `attention.right.*`; per branch `left_norm.*`, `left.*` (its feed-forward layer), `left_last_norm.*`,
    and the same with `right`.

    Example:
        >>> attention = CrossedAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2))
        >>> layer = CrossedEncoderLayer(attention, FeedForward(6, 7), FeedForward(6, 7), pre=False, dropout=0.0, residual="asking")
        >>> first, second = layer(torch.randn(2, 3, 6), torch.randn(2, 5, 6))
        >>> first.shape, second.shape
        (torch.Size([2, 3, 6]), torch.Size([2, 5, 6]))
    """

    @checked
    def __init__(
        self, attention: CrossedAttention, left: FeedForward, right: FeedForward, *, pre: bool, dropout: Dropout, residual: Residual = "own"
    ) -> None:
        super().__init__()
        dim = left.output.out_features
        self.attention = attention
        self.left_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.right_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.left = left
        self.right = right
        self.left_last_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.right_last_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.residual = residual

    def forward(
        self, first: Tensor, second: Tensor, first_key_mask: Tensor | None = None, second_key_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Map both streams, (B, T1, E) and (B, T2, E); masks (B, T1) and (B, T2) bool, True = no padding.

        Raises:
            ShapeError: the lengths differ, but results stay in their own branch; the message holds both shapes.
        """
        own = self.residual == "own"
        if own and first.shape != second.shape:
            raise ShapeError(
                f"CrossedEncoderLayer: residual 'own' needs streams of one shape, found {tuple(first.shape)} and {tuple(second.shape)}; "
                "'asking' takes any two lengths"
            )
        # The left norms belong to the stream that receives the left output.
        kept, other = (first, second) if own else (second, first)
        kept_given, other_given = self.left_norm.before(kept), self.right_norm.before(other)
        asked = (kept_given, other_given) if own else (other_given, kept_given)
        left, right = self.attention(*asked, first_key_mask=first_key_mask, second_key_mask=second_key_mask)
        kept = self.left_norm.after(kept, left.context)
        other = self.right_norm.after(other, right.context)
        kept = self.left_last_norm.after(kept, self.left(self.left_last_norm.before(kept)))
        other = self.right_last_norm.after(other, self.right(self.right_last_norm.before(other)))
        return (kept, other) if own else (other, kept)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"residual={self.residual!r}"


class CrossedEncoder(nn.Module):
    """A stack of layers over two inputs: two views of one sentence, two languages, a caption and an image. Li et al. 2019, section 2.2.

    Args:
        layers: from the bottom up.
        norms: final norm of each branch, or None.

    Parameters: `layers.0.*`, ..., `norms.0.*`, `norms.1.*`.

    Example:
        >>> attention = CrossedAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2))
        >>> layer = CrossedEncoderLayer(attention, FeedForward(6, 7), FeedForward(6, 7), pre=False, dropout=0.0, residual="asking")
        >>> [source.states.shape[1] for source in CrossedEncoder([layer])(torch.randn(2, 3, 6), torch.randn(2, 5, 6))]
        [3, 5]
    """

    @checked
    def __init__(self, layers: Sequence[CrossedEncoderLayer], norms: tuple[nn.LayerNorm, nn.LayerNorm] | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = None if norms is None else nn.ModuleList(norms)

    def forward(
        self, first: Tensor, second: Tensor, first_key_mask: Tensor | None = None, second_key_mask: Tensor | None = None
    ) -> tuple[Source, Source]:
        """Map both inputs, (B, T1, E) and (B, T2, E), to two sources of a `Decoder`; masks bool, True = no padding."""
        for layer in self.layers:
            first, second = layer(first, second, first_key_mask, second_key_mask)
        if self.norms is not None:
            first, second = self.norms[0](first), self.norms[1](second)
        return Source(first, first_key_mask), Source(second, second_key_mask)


class CrossedSourceAttention(SourcePairAttention):
    """Attend to two sources and join the results: `W [ff_1(attention_1(q, x1)); ff_2(attention_2(q, x2))] + b`.

    Li et al. 2019, section 2.2: "concatenation, linear transformation". The feed-forward layer before it is not in the text; the published
    parameter counts include it.

    Args:
        left: attention of the decoder to the first source.
        right: attention to the second.
        left_feed_forward: feed-forward layer after the left attention.
        right_feed_forward: feed-forward layer after the right attention.
        two_inputs: the sources are two inputs, whose contributions are recorded.

    Parameters: `left.*`, `right.*`, `left_feed_forward.*`, `right_feed_forward.*`, `join.weight` (E, 2 E), `join.bias` (E,).

    Example:
        >>> attention = CrossedSourceAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2), FeedForward(6, 7), FeedForward(6, 7))
        >>> sources = [Source(torch.randn(3, 5, 6), None), Source(torch.randn(3, 2, 6), None)]
        >>> found = attention(torch.randn(3, 7, 6), attention.memories(sources, for_decoding=True), need_weights=True)
        >>> [one.shape[-1] for one in found.weights]
        [5, 2]
    """

    @checked
    def __init__(
        self,
        left: MultiHeadAttention,
        right: MultiHeadAttention,
        left_feed_forward: FeedForward,
        right_feed_forward: FeedForward,
        *,
        two_inputs: bool = False,
    ) -> None:
        super().__init__(left, right)
        self.two_inputs = two_inputs
        dim = left.output.out_features
        self.left_feed_forward = left_feed_forward
        self.right_feed_forward = right_feed_forward
        self.join = ops.Linear(2 * dim, dim)
        nn.init.xavier_uniform_(self.join.weight)
        nn.init.zeros_(self.join.bias)

    def forward(self, query: Tensor, memories: Sequence[SourceMemory], *, need_weights: bool) -> CrossAttentionOutput:
        """Attend with queries (B, T, E)."""
        left, right = both = self.attend(query, memories, need_weights=need_weights)
        first, second = self.left_feed_forward(left.context), self.right_feed_forward(right.context)
        if self.two_inputs:
            own, other = self.join.weight.chunk(2, 1)
            self.note_contributions(lambda: (ops.linear(first, own), ops.linear(second, other)))
        return CrossAttentionOutput(self.join(torch.cat([first, second], -1)), weights_of(both))


class CrossedTransformer(Transformer):
    """Translate with two encoder branches that read the same sentence, each with its own dropout and corruption.

    Li et al. 2019, section 2.2. For two different inputs: `regard.models.TwoInputTransformer`.

    Args:
        source_embedding: (V_source, E), scaled; shared by both branches.
        target_embedding: (V_target, E), scaled; may be the same.
        encoder: encoder with two branches.
        decoder: decoder with two sources.
        output: E to vocabulary (V_target), without bias.
        dropout: on the sums of embeddings and positions.
        swap_probability: p, see `swap_tokens`; in training only.

    Parameters: those of `Transformer`.

    Example:
        >>> from regard.config import CrossedConfig
        >>> from regard.models import build
        >>> model = build(CrossedConfig(), source_size=11, target_size=11)
        >>> source, lengths, target = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]])
        >>> model.decode(source, lengths, target).weights.shape
        torch.Size([1, 2, 3])
    """

    @checked
    def __init__(
        self,
        source_embedding: nn.Embedding,
        target_embedding: nn.Embedding,
        encoder: CrossedEncoder,
        decoder: Decoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
        swap_probability: Share,
    ) -> None:
        super().__init__(source_embedding, target_embedding, encoder, decoder, output, dropout=dropout)
        self.swap_probability = swap_probability

    def encode(self, source: Tensor, source_lengths: Tensor) -> tuple[Source, ...]:
        """Encode sources (B, S) in both branches."""
        mask = ops.length_mask(source_lengths, source.shape[1])
        views = [source, source]
        if self.training and self.swap_probability:
            views = [swap_tokens(source, source_lengths, self.swap_probability) for _ in views]
        first, second = (self.embed(self.source_embedding, view) for view in views)
        return self.encoder(first, second, mask, mask)


def swap_tokens(tokens: Tensor, lengths: Tensor, probability: float) -> Tensor:
    """Swap two random tokens in some of the sentences.

    Li et al. 2019, section 2.2: "we randomly select and swap two sub-word tokens at a probability of" p. EOS, the last token, is not
    swapped; sentences with fewer than two other tokens are unchanged.

    Args:
        tokens: (B, S).
        lengths: (B,), EOS included.
        probability: p, per sentence.

    Returns:
        (B, S). Draws three numbers per sentence from torch's generator.

    Example:
        >>> swap_tokens(torch.tensor([[5, 6, 3]]), torch.tensor([3]), 1.0).tolist()
        [[6, 5, 3]]
    """
    batch, size = tokens.shape
    chance, one, other = torch.rand(3, batch, device=tokens.device, dtype=torch.float64)
    count = lengths - 1
    # Two different positions: the second is drawn among the others.
    one = (one * count).long()
    other = (other * (count - 1)).long()
    other = other + (other >= one)
    places = torch.arange(size, device=tokens.device).expand(batch, size)
    swap = ((chance < probability) & (count >= 2)).unsqueeze(1)
    one, other = one.unsqueeze(1), other.unsqueeze(1)
    moved = torch.where(places == one, other, torch.where(places == other, one, places))
    return tokens.gather(1, torch.where(swap, moved, places))
