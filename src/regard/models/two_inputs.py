"""Transformers with two inputs: as one sequence, with two encoders, or with two encoders that attend to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import MultiHeadAttention
from regard.constructor_checks import Dropout, checked
from regard.models.cross_attention import Source, SourceMemory, SourcePairAttention, pair_attend, weights_of
from regard.models.crossed import swap_tokens
from regard.models.image_embedding import ImageEmbedding
from regard.models.input_rows import join_sources, split_inputs
from regard.models.transformer import Transformer
from regard.models.transformer_decoder import Decoder
from regard.models.transformer_layers import CrossAttentionOutput, DecoderLayer, Encoder, FeedForward, ResidualNorm


class Corruption(NamedTuple):
    """Corruption of the inputs in training.

    Attributes:
        drop: probability of hiding one of the two inputs of an example.
        swap: see `swap_tokens`; per example and input.
    """

    drop: float = 0.0
    swap: float = 0.0


class JoinedEncoder(nn.Module):
    """Encode two inputs as one sequence with segment embeddings, as in BERT (Devlin et al. 2019).

    Positions count from the start of each input.

    Args:
        encoder: encoder of the sequence.
        embed_dim: E.

    Parameters: `encoder.*`, `segments` (2, E), normal with standard deviation E^-0.5.

    Example:
        >>> from regard.models import EncoderLayer
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0)
        >>> mask = torch.ones(2, 3, dtype=torch.bool)
        >>> [source.states.shape for source in JoinedEncoder(Encoder([layer], None), 6)(*torch.randn(2, 2, 3, 6), mask, mask)]
        [torch.Size([2, 6, 6])]
    """

    @checked
    def __init__(self, encoder: Encoder, embed_dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.segments = nn.Parameter(torch.randn(2, embed_dim) * embed_dim**-0.5)

    def forward(self, first: Tensor, second: Tensor, first_key_mask: Tensor, second_key_mask: Tensor) -> tuple[Source, ...]:
        """Map both inputs, (B, T1, E) and (B, T2, E), to one source of a `Decoder`; masks bool, True = no padding."""
        joined = join_sources(Source(first + self.segments[0], first_key_mask), Source(second + self.segments[1], second_key_mask))
        return (Source(self.encoder(*joined), joined.mask),)


class TwoEncoders(nn.Module):
    """Encode each of two inputs with its own encoder.

    Args:
        first: encoder of the first input.
        second: encoder of the second.
        flat: concatenate the states to one source, so that a decoder divides its attention between the inputs (Libovický and Helcl 2017,
            section 3.1; 2018, section 3, "flat"); otherwise two sources.

    Parameters: `first.*`, `second.*`.

    Example:
        >>> from regard.models import EncoderLayer
        >>> layers = [EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0) for _ in range(2)]
        >>> encoders, mask = TwoEncoders(*(Encoder([layer], None) for layer in layers), flat=False), torch.ones(2, 3, dtype=torch.bool)
        >>> [source.states.shape for source in encoders(*torch.randn(2, 2, 3, 6), mask, mask)]
        [torch.Size([2, 3, 6]), torch.Size([2, 3, 6])]
    """

    @checked
    def __init__(self, first: Encoder, second: Encoder, *, flat: bool) -> None:
        super().__init__()
        self.first = first
        self.second = second
        self.flat = flat

    def forward(self, first: Tensor, second: Tensor, first_key_mask: Tensor, second_key_mask: Tensor) -> tuple[Source, ...]:
        """Map both inputs, (B, T1, E) and (B, T2, E), to the sources of a `Decoder`; masks bool, True = no padding."""
        sources = (
            Source(self.first(first, first_key_mask), first_key_mask),
            Source(self.second(second, second_key_mask), second_key_mask),
        )
        return (join_sources(*sources),) if self.flat else sources

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"flat={self.flat}"


class TwoSourceAttention(SourcePairAttention):
    """Cross-attention to two separate sources. Libovický et al. 2018 (arXiv:1811.04716), section 3.

        parallel       context = attention_1(q, x1) + attention_2(q, x2)
        hierarchical   context = share(q, [c1; c2]),  c1 = attention_1(q, x1),  c2 = attention_2(q, x2)

    Args:
        left: attention of the decoder to the first source.
        right: attention to the second.
        share: attention to the two contexts; None: parallel.

    Parameters: `left.*`, `right.*`, and `share.*` if hierarchical.

    Example:
        >>> attention = TwoSourceAttention(*(MultiHeadAttention(6, 2) for _ in range(3)))
        >>> sources = [Source(torch.randn(3, 5, 6), None), Source(torch.randn(3, 2, 6), None)]
        >>> found = attention(torch.randn(3, 7, 6), attention.memories(sources, for_decoding=True), need_weights=True)
        >>> torch.allclose(sum(one.sum(-1) for one in found.weights), torch.ones(3, 2, 7))  # the two divide 1 among themselves
        True
    """

    @checked
    def __init__(self, left: MultiHeadAttention, right: MultiHeadAttention, share: MultiHeadAttention | None = None) -> None:
        super().__init__(left, right)
        self.share = share

    def forward(self, query: Tensor, memories: Sequence[SourceMemory], *, need_weights: bool) -> CrossAttentionOutput:
        """Attend with queries (B, T, E)."""
        left, right = each = self.attend(query, memories, need_weights=need_weights)
        weights = weights_of(each)
        if self.share is None:
            self.note_contributions(lambda: (left.context, right.context))
            return CrossAttentionOutput(left.context + right.context, weights)
        both = torch.stack([left.context, right.context], 2).flatten(0, 1)  # (B T, 2, E)
        found = self.share(query.flatten(0, 1).unsqueeze(1), both, both, need_weights=need_weights)
        if weights is not None:
            shares = found.weights.squeeze(2).unflatten(0, query.shape[:2]).transpose(1, 2)  # (B, H, T, 2)
            weights = tuple(one * shares[..., side : side + 1] for side, one in enumerate(weights))
        return CrossAttentionOutput(found.context.view_as(query), weights)


class SerialDecoderLayer(DecoderLayer):
    """Decoder layer that attends to two sources in turn, each with a residual connection and a LayerNorm.

    Libovický et al. 2018 (arXiv:1811.04716), section 3, "serial".

    Args:
        attention: self-attention.
        cross_attention: left attends to the first source, right, with the result, to the second.
        feed_forward: of size E.
        pre: LayerNorm before each sub-layer instead of after each residual.
        dropout: on sub-layer outputs.

    Parameters: those of `DecoderLayer`, and `second_norm.*`.

    Example:
        >>> both = TwoSourceAttention(MultiHeadAttention(6, 2), MultiHeadAttention(6, 2))
        >>> layer = SerialDecoderLayer(MultiHeadAttention(6, 2), both, FeedForward(6, 7), pre=False, dropout=0.0)
        >>> sources = [Source(torch.randn(3, 5, 6), None), Source(torch.randn(3, 2, 6), None)]
        >>> layer(torch.randn(3, 7, 6), both.memories(sources, for_decoding=False))[0].shape
        torch.Size([3, 7, 6])
    """

    @checked
    def __init__(
        self, attention: MultiHeadAttention, cross_attention: TwoSourceAttention, feed_forward: FeedForward, *, pre: bool, dropout: Dropout
    ) -> None:
        super().__init__(attention, cross_attention, feed_forward, pre=pre, dropout=dropout)
        self.second_norm = ResidualNorm(attention.output.out_features, pre=pre, dropout=dropout)

    def _read(self, x: Tensor, memories: Sequence[SourceMemory], need_weights: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        both, norms = cast(TwoSourceAttention, self.cross_attention), (self.cross_attention_norm, self.second_norm)
        weights: list[Tensor] = []
        contexts: list[Tensor] = []
        for attention, norm, memory in zip((both.left, both.right), norms, memories, strict=True):
            found = pair_attend(attention, norm.before(x), memory, need_weights=need_weights)
            x = norm.after(x, found.context)
            contexts.append(found.context)
            weights += [] if found.weights is None else [found.weights]
        both.note_contributions(lambda: (contexts[0], contexts[1]))
        x = self.feed_forward_norm.after(x, self.feed_forward(self.feed_forward_norm.before(x)))
        return x, tuple(weights) if weights else None


class TwoInputTransformer(Transformer):
    """Translate two inputs into one sequence: two languages, a sentence and its keywords, or a sentence and an image.

    A row of the source holds both inputs, each with EOS, see `split_inputs`, so training, decoding and attention maps need no special case.
    The returned alignment has the same layout. It weights both inputs equally, unless the decoder divides its attention between them
    (joined, flat, hierarchical).

    Args:
        source_embeddings: embeddings of the first and the second input, scaled; may be the same. The second may embed images.
        target_embedding: (V_target, E), scaled; may be the same.
        encoder: `CrossedEncoder`, `TwoEncoders` or `JoinedEncoder`.
        decoder: attends to the encoder's output.
        output: E to vocabulary (V_target).
        dropout: on the sums of embeddings and positions.
        corruption: in training only.

    Parameters: those of `Transformer`, and `second_embedding.*`.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.models import build
        >>> model = build(TransformerConfig(second={"kind": "serial"}), source_size=11, target_size=11)
        >>> source, lengths, target = torch.tensor([[4, 5, 3, 7, 3]]), torch.tensor([5]), torch.tensor([[2, 6]])
        >>> model.decode(source, lengths, target).weights.shape
        torch.Size([1, 2, 5])
    """

    @checked
    def __init__(
        self,
        source_embeddings: tuple[nn.Embedding, nn.Embedding | ImageEmbedding],
        target_embedding: nn.Embedding,
        encoder: nn.Module,
        decoder: Decoder,
        output: ops.Linear,
        *,
        dropout: Dropout,
        corruption: Corruption,
    ) -> None:
        super().__init__(source_embeddings[0], target_embedding, encoder, decoder, output, dropout=dropout)
        self.second_embedding = source_embeddings[1]
        self.corruption = corruption

    def encode(self, source: Tensor, source_lengths: Tensor) -> tuple[Source, ...]:
        """Encode rows (B, S) with two inputs each."""
        inputs = split_inputs(source, source_lengths)
        if self.training and self.corruption.drop:
            inputs = inputs.hidden(self.corruption.drop)
        masks, embedded = [], []
        for embedding, tokens, lengths in (
            (self.source_embedding, inputs.first, inputs.first_lengths),
            (self.second_embedding, inputs.second, inputs.second_lengths),
        ):
            if isinstance(embedding, ImageEmbedding):
                cells = embedding(tokens, lengths)
                embedded.append(ops.dropout(cells, self.dropout) if self.training else cells)
            else:
                view = swap_tokens(tokens, lengths, self.corruption.swap) if self.training and self.corruption.swap else tokens
                embedded.append(self.embed(embedding, view))
            masks.append(ops.length_mask(lengths.clamp(max=embedded[-1].shape[1]), embedded[-1].shape[1]))
        return self.encoder(*embedded, *masks)

    def input_lengths(self, source: Tensor, source_lengths: Tensor) -> Tensor | None:
        """Return the lengths (B, 2) of two inputs that the decoder attends to separately; None for one source."""
        if not isinstance(cast(DecoderLayer, self.decoder.layers[0]).cross_attention, SourcePairAttention):
            return None
        inputs = split_inputs(source, source_lengths)
        return torch.stack([inputs.first_lengths, inputs.second_lengths], 1)

    def side_lengths(self, source: Tensor, source_lengths: Tensor) -> dict[str, Tensor]:
        """Return the lengths (B,) of the "source", a whole row, and of its "first" and "second" input."""
        inputs = split_inputs(source, source_lengths)
        return {"source": source_lengths, "first": inputs.first_lengths, "second": inputs.second_lengths}
