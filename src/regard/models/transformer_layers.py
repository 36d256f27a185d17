"""Transformer layers and encoder, with and without areas, for one or several sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import MultiHeadAttention
from regard.constructor_checks import Dropout, Size, checked
from regard.models.cross_attention import Source, SourceMemory, cache_source, cross_attend
from regard.models.transformer_cache import CurrentStep, LayerCache, append_step

Activation = Literal["relu", "swish", "gelu"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "swish": F.silu, "gelu": F.gelu}


class CrossAttentionOutput(NamedTuple):
    """Output of cross-attention: (B, T, E), and weights (B, H, T, S) per source if requested."""

    context: Tensor
    weights: tuple[Tensor, ...] | None


class ResidualNorm(nn.LayerNorm):
    """Residual connection and LayerNorm around a sub-layer f.

        post   y = norm(x + dropout(f(x)))          Vaswani et al. 2017, 3.1 and 5.4
        pre    y = x + dropout(f(norm(x)))

    Args:
        dim: E.
        pre: pre-norm instead of post-norm.
        dropout: probability of dropping an element of f(x) in training.

    Parameters: `weight` and `bias` (E,).

    Example:
        >>> norm = ResidualNorm(4, pre=True, dropout=0.0)
        >>> x = torch.ones(4)
        >>> norm.after(x, 2 * norm.before(x)).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    @checked
    def __init__(self, dim: Size, *, pre: bool, dropout: Dropout) -> None:
        super().__init__(dim)
        self.pre, self.dropout = pre, dropout

    def before(self, x: Tensor) -> Tensor:
        """Return the input of f."""
        return self(x) if self.pre else x

    def after(self, x: Tensor, change: Tensor) -> Tensor:
        """Return y for `change` = f(before(x))."""
        norm = (None, None) if self.pre else (self.weight, self.bias)
        return ops.residual(x, change, *norm, dropout=self.dropout if self.training else 0.0, eps=self.eps)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{super().extra_repr()}, pre={self.pre}, dropout={self.dropout}"


class FeedForward(nn.Module):
    """Position-wise feed-forward network: `W_2 relu(W_1 x + b_1) + b_2`. Vaswani et al. 2017, Eq. 2.

    Args:
        dim: E.
        hidden_size: F.
        dropout: on the hidden units.
        activation: "relu", "swish" (x sigmoid(x)) or "gelu" (x Phi(x)).

    Parameters: `hidden.*` (F, E), `output.*` (E, F), each with weight and bias; weights start Xavier-uniform, biases at zero.

    Example:
        >>> FeedForward(3, 7)(torch.ones(2, 5, 3)).shape
        torch.Size([2, 5, 3])
    """

    @checked
    def __init__(self, dim: Size, hidden_size: Size, *, dropout: Dropout = 0.0, activation: Activation = "relu") -> None:
        super().__init__()
        self.activation = activation
        self.hidden = ops.Linear(dim, hidden_size)
        self.output = ops.Linear(hidden_size, dim)
        self.dropout = dropout
        for part in (self.hidden, self.output):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., E) to (..., E)."""
        hidden = ACTIVATIONS[self.activation](self.hidden(x))
        return self.output(F.dropout(hidden, self.dropout, self.training))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward, each with a residual connection and a LayerNorm. Vaswani et al. 2017, section 3.1.

    Args:
        attention: self-attention, with or without areas.
        feed_forward: of size E.
        pre: LayerNorm before each sub-layer instead of after each residual.
        dropout: on sub-layer outputs.

    Parameters: `attention.*`, `attention_norm.*`, `feed_forward.*`, `feed_forward_norm.*`.

    Example:
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0)
        >>> layer(torch.randn(2, 5, 6), None).shape
        torch.Size([2, 5, 6])
    """

    @checked
    def __init__(self, attention: MultiHeadAttention, feed_forward: FeedForward, *, pre: bool, dropout: Dropout) -> None:
        super().__init__()
        dim = attention.output.out_features
        self.attention = attention
        self.attention_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.feed_forward = feed_forward
        self.feed_forward_norm = ResidualNorm(dim, pre=pre, dropout=dropout)

    def forward(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Map states (B, S, E); `key_mask` (B, S) bool, True = no padding."""
        given = self.attention_norm.before(x)
        x = self.attention_norm.after(x, self.attention(given, given, given, key_mask=key_mask, finite=True).context)
        return self.feed_forward_norm.after(x, self.feed_forward(self.feed_forward_norm.before(x)))


class Encoder(nn.Module):
    """A stack of encoder layers, and with pre-norm a final LayerNorm. Vaswani et al. 2017, section 3.1.

    Args:
        layers: from the bottom up.
        norm: final norm, or None.

    Parameters: `layers.0.*`, ..., `norm.*`.

    Example:
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0)
        >>> Encoder([layer], None)(torch.randn(2, 5, 6)).shape
        torch.Size([2, 5, 6])
    """

    @checked
    def __init__(self, layers: Sequence[EncoderLayer], norm: nn.LayerNorm | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Map states (B, S, E); `key_mask` (B, S) bool, True = no padding. States of padding are arbitrary."""
        for layer in self.layers:
            x = layer(x, key_mask)
        return x if self.norm is None else self.norm(x)


@runtime_checkable
class CrossAttention(Protocol):
    """Interface of a decoder layer's cross-attention."""

    def memories(self, sources: Sequence[Source], *, for_decoding: bool) -> tuple[SourceMemory, ...]:
        """Project the sources once; `for_decoding`: precompute costly parts for many steps."""
        ...

    def __call__(self, query: Tensor, memories: Sequence[SourceMemory], *, need_weights: bool) -> CrossAttentionOutput:
        """Attend with queries (B, T, E)."""
        ...


class SourceAttention(nn.Module):
    """Attend to one source. Vaswani et al. 2017, section 3.2.3.

    Args:
        attention: multi-head attention to the source.

    Parameters: `attention.*`.

    Example:
        >>> cross_attention = SourceAttention(MultiHeadAttention(6, 2))
        >>> memories = cross_attention.memories([Source(torch.randn(3, 5, 6), None)], for_decoding=True)
        >>> cross_attention(torch.randn(3, 7, 6), memories, need_weights=True).weights[0].shape
        torch.Size([3, 2, 7, 5])
    """

    @checked
    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def memories(self, sources: Sequence[Source], *, for_decoding: bool) -> tuple[SourceMemory, ...]:
        """Project the only source; see `CrossAttention.memories`."""
        (source,) = sources
        return (cache_source(self.attention, source, for_decoding=for_decoding),)

    def forward(self, query: Tensor, memories: Sequence[SourceMemory], *, need_weights: bool) -> CrossAttentionOutput:
        """Attend with queries (B, T, E)."""
        found = cross_attend(self.attention, query, memories[0], need_weights=need_weights)
        return CrossAttentionOutput(found.context, None if found.weights is None else (found.weights,))


class DecoderLayer(nn.Module):
    """Self-attention, cross-attention and feed-forward network. Vaswani et al. 2017, section 3.1.

    Args:
        attention: self-attention.
        cross_attention: attention to the sources.
        feed_forward: of size E.
        pre: LayerNorm before each sub-layer instead of after each residual.
        dropout: on sub-layer outputs.

    Parameters: `attention.*`, `attention_norm.*`, `cross_attention.*`, `cross_attention_norm.*`, `feed_forward.*`, `feed_forward_norm.*`.

    Example:
        >>> cross_attention = SourceAttention(MultiHeadAttention(6, 2))
        >>> layer = DecoderLayer(MultiHeadAttention(6, 2), cross_attention, FeedForward(6, 7), pre=False, dropout=0.0)
        >>> memories = cross_attention.memories([Source(torch.randn(3, 5, 6), None)], for_decoding=False)
        >>> layer(torch.randn(3, 2, 6), memories)[0].shape
        torch.Size([3, 2, 6])
    """

    @checked
    def __init__(
        self, attention: MultiHeadAttention, cross_attention: CrossAttention, feed_forward: FeedForward, *, pre: bool, dropout: Dropout
    ) -> None:
        super().__init__()
        dim = attention.output.out_features
        self.attention = attention
        self.attention_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.cross_attention = cross_attention
        self.cross_attention_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.feed_forward = feed_forward
        self.feed_forward_norm = ResidualNorm(dim, pre=pre, dropout=dropout)

    def forward(
        self, x: Tensor, memories: Sequence[SourceMemory], *, need_weights: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Map states (B, T, E) of whole targets to new ones; also return weights on each source if requested."""
        given = self.attention_norm.before(x)
        x = self.attention_norm.after(x, self.attention(given, given, given, causal=True, finite=True).context)
        return self._read(x, memories, need_weights)

    def step(
        self, x: Tensor, past: LayerCache | None, current: CurrentStep, memories: Sequence[SourceMemory], *, need_weights: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, LayerCache]:
        """Map one state per hypothesis (B, K, E), each with its own cache and all with the same sources."""
        given = self.attention_norm.before(x)
        token = given.flatten(0, 1).unsqueeze(1)  # (B K, 1, E)
        past, memory = append_step(past, token, current, self.attention)
        found = self.attention.attend_items(token, memory)
        x = self.attention_norm.after(x, found.context.view_as(x))
        return *self._read(x, memories, need_weights), past

    def _read(self, x: Tensor, memories: Sequence[SourceMemory], need_weights: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        reading = self.cross_attention(self.cross_attention_norm.before(x), memories, need_weights=need_weights)
        x = self.cross_attention_norm.after(x, reading.context)
        return self.feed_forward_norm.after(x, self.feed_forward(self.feed_forward_norm.before(x))), reading.weights
