"""The parts of a Transformer: layers, encoder, decoder. The same code with and without areas, for one source or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import HeadMemory, MultiHeadAttention
from regard.errors import ConfigError
from regard.models.transformer_state import Cache, TransformerState, extend


class Source(NamedTuple):
    """What an encoder made: states (B, S, E), and which of them are no padding, (B, S) bool or None for all."""

    states: Tensor
    mask: Tensor | None


class Reading(NamedTuple):
    """What a decoder's layer found in the sources: (B, T, E), and for each source the weights (B, H, T, S) if they were asked for."""

    context: Tensor
    weights: tuple[Tensor, ...] | None


class ResidualNorm(nn.LayerNorm):
    """What stands around a part f of a layer: a residual connection and a LayerNorm.

        post   y = norm(x + dropout(f(x)))          Vaswani et al. 2017, 3.1 and 5.4
        pre    y = x + dropout(f(norm(x)))

    Args:
        dim: E.
        pre: which of the two.
        dropout: probability with which an element of f(x) is dropped in training.

    Parameters: `weight` and `bias` (E,).

    Example:
        >>> norm = ResidualNorm(4, pre=True, dropout=0.0)
        >>> x = torch.ones(4)
        >>> norm.after(x, 2 * norm.before(x)).tolist()
        [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, dim: int, *, pre: bool, dropout: float) -> None:
        super().__init__(dim)
        self.pre, self.dropout = pre, dropout

    def before(self, x: Tensor) -> Tensor:
        """Return what f is given."""
        return self(x) if self.pre else x

    def after(self, x: Tensor, change: Tensor) -> Tensor:
        """Return y, `change` being f of what `before` gave."""
        y = x + F.dropout(change, self.dropout, self.training)
        return y if self.pre else self(y)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{super().extra_repr()}, pre={self.pre}, dropout={self.dropout}"


class FeedForward(nn.Module):
    """Transform each place on its own: `W_2 relu(W_1 x + b_1) + b_2`. Vaswani et al. 2017, Eq. 2.

    Args:
        dim: E.
        hidden_dim: F.
        dropout: on the hidden units.

    Parameters: `hidden.*` (F, E), `output.*` (E, F), each with weight and bias; weights start Xavier-uniform, biases at zero.

    Example:
        >>> FeedForward(3, 7)(torch.ones(2, 5, 3)).shape
        torch.Size([2, 5, 3])
    """

    def __init__(self, dim: int, hidden_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.hidden = ops.Linear(dim, hidden_dim)
        self.output = ops.Linear(hidden_dim, dim)
        self.dropout = dropout
        for part in (self.hidden, self.output):
            nn.init.xavier_uniform_(part.weight)
            nn.init.zeros_(part.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., E) to (..., E)."""
        return self.output(F.dropout(torch.relu(self.hidden(x)), self.dropout, self.training))


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward, each with a residual connection and a LayerNorm. Vaswani et al. 2017, section 3.1.

    Args:
        attention: of the states to themselves, with or without areas.
        feed_forward: its size is E, too.
        pre: LayerNorm before each part instead of after each residual.
        dropout: on what is added to a residual.

    Parameters: `attention.*`, `attention_norm.*`, `feed_forward.*`, `feed_forward_norm.*`, as these name them.

    Example:
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0)
        >>> layer(torch.randn(2, 5, 6), None).shape
        torch.Size([2, 5, 6])
    """

    def __init__(self, attention: MultiHeadAttention, feed_forward: FeedForward, *, pre: bool, dropout: float) -> None:
        super().__init__()
        dim = attention.output.out_features
        self.attention = attention
        self.attention_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.feed_forward = feed_forward
        self.feed_forward_norm = ResidualNorm(dim, pre=pre, dropout=dropout)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map states (B, S, E); `mask` (B, S) bool, True = no padding."""
        given = self.attention_norm.before(x)
        allowed = None if mask is None else mask.unsqueeze(1)
        x = self.attention_norm.after(x, self.attention(given, given, given, mask=allowed).context)
        return self.feed_forward_norm.after(x, self.feed_forward(self.feed_forward_norm.before(x)))


class Encoder(nn.Module):
    """A stack of layers, and with pre-norm a last LayerNorm. Vaswani et al. 2017, section 3.1.

    Args:
        layers: from the bottom up.
        norm: of what comes out, or None.

    Parameters: `layers.0.*`, ..., `norm.*`.

    Example:
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0)
        >>> Encoder([layer], None)(torch.randn(2, 5, 6)).shape
        torch.Size([2, 5, 6])
    """

    def __init__(self, layers: Sequence[EncoderLayer], norm: nn.LayerNorm | None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map states (B, S, E); `mask` (B, S) bool, True = no padding. What padding becomes means nothing."""
        for layer in self.layers:
            x = layer(x, mask)
        return x if self.norm is None else self.norm(x)


class Reader(Protocol):
    """How a decoder's layer looks at the sources."""

    def memories(self, sources: Sequence[Source], *, ready: bool) -> tuple[HeadMemory, ...]:
        """Project the sources once; `ready`: for many calls, so that what is costly is made now."""
        ...

    def __call__(self, query: Tensor, memories: Sequence[HeadMemory], *, need_weights: bool) -> Reading:
        """Read with queries (B, T, E)."""
        ...


class SourceReader(nn.Module):
    """Attend to one source. Vaswani et al. 2017, section 3.2.3.

    Args:
        attention: of the decoder to the source.

    Parameters: `attention.*`.

    Example:
        >>> reader = SourceReader(MultiHeadAttention(6, 2))
        >>> memories = reader.memories([Source(torch.randn(3, 5, 6), None)], ready=True)
        >>> reader(torch.randn(3, 7, 6), memories, need_weights=True).weights[0].shape
        torch.Size([3, 2, 7, 5])
    """

    def __init__(self, attention: MultiHeadAttention) -> None:
        super().__init__()
        self.attention = attention

    def memories(self, sources: Sequence[Source], *, ready: bool) -> tuple[HeadMemory, ...]:
        """Project the only source; `ready`: make keys of areas now, for many calls."""
        (source,) = sources
        return (remember(self.attention, source, ready=ready),)

    def forward(self, query: Tensor, memories: Sequence[HeadMemory], *, need_weights: bool) -> Reading:
        """Attend with queries (B, T, E)."""
        found = self.attention.attend(query, memories[0], need_weights=need_weights)
        return Reading(found.context, None if found.weights is None else (found.weights,))


def remember(attention: MultiHeadAttention, source: Source, *, ready: bool) -> HeadMemory:
    """Project a source for an attention; `ready`: with areas whose keys have to be made, make them once.

    Example:
        >>> from regard.attention import Areas
        >>> attention = MultiHeadAttention(6, 2, areas=Areas(2, key_mode="max"))
        >>> remember(attention, Source(torch.ones(3, 5, 6), None), ready=True).key.shape  # 5 items and 4 pairs
        torch.Size([3, 2, 9, 3])
    """
    memory = attention.memory(source.states, source.states, mask=source.mask)
    return attention.areas_of(memory) if ready and attention.areas is not None and not attention.areas.fused else memory


class DecoderLayer(nn.Module):
    """Self-attention to what was written, a look at the sources, a feed-forward. Vaswani et al. 2017, section 3.1.

    Args:
        attention: of the states to themselves.
        reader: looks at the sources.
        feed_forward: its size is E, too.
        pre: LayerNorm before each part instead of after each residual.
        dropout: on what is added to a residual.

    Parameters: `attention.*`, `attention_norm.*`, `reader.*`, `reader_norm.*`, `feed_forward.*`, `feed_forward_norm.*`.

    Example:
        >>> reader = SourceReader(MultiHeadAttention(6, 2))
        >>> layer = DecoderLayer(MultiHeadAttention(6, 2), reader, FeedForward(6, 7), pre=False, dropout=0.0)
        >>> memories = reader.memories([Source(torch.randn(3, 5, 6), None)], ready=False)
        >>> layer(torch.randn(3, 2, 6), memories)[0].shape
        torch.Size([3, 2, 6])
    """

    def __init__(self, attention: MultiHeadAttention, reader: Reader, feed_forward: FeedForward, *, pre: bool, dropout: float) -> None:
        super().__init__()
        dim = attention.output.out_features
        self.attention = attention
        self.attention_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.reader = reader
        self.reader_norm = ResidualNorm(dim, pre=pre, dropout=dropout)
        self.feed_forward = feed_forward
        self.feed_forward_norm = ResidualNorm(dim, pre=pre, dropout=dropout)

    def forward(self, x: Tensor, memories: Sequence[HeadMemory], *, need_weights: bool = False) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Map states (B, T, E) of whole targets: the new ones, and the weights on each source if asked for."""
        given = self.attention_norm.before(x)
        x = self.attention_norm.after(x, self.attention(given, given, given, causal=True).context)
        return self._read(x, memories, need_weights)

    def step(
        self, x: Tensor, cache: Cache | None, memories: Sequence[HeadMemory], *, need_weights: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, Cache]:
        """Map the state of one token of each hypothesis, (B, K, E), each with a past of its own and all with the same sources."""
        given = self.attention_norm.before(x)
        token = given.flatten(0, 1).unsqueeze(1)  # (B K, 1, E)
        cache = extend(cache, self.attention.memory(token, token), self.attention)
        x = self.attention_norm.after(x, self.attention.attend(token, cache.seen).context.view_as(x))
        return *self._read(x, memories, need_weights), cache

    def _read(self, x: Tensor, memories: Sequence[HeadMemory], need_weights: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        reading = self.reader(self.reader_norm.before(x), memories, need_weights=need_weights)
        x = self.reader_norm.after(x, reading.context)
        return self.feed_forward_norm.after(x, self.feed_forward(self.feed_forward_norm.before(x))), reading.weights


class Decoder(nn.Module):
    """A stack of layers that reads any number of sources. Vaswani et al. 2017, section 3.1.

    Args:
        layers: from the bottom up.
        norm: of what comes out, or None.
        shown_layer: whose weights are returned, from 0; -1 is the last.

    Parameters: `layers.0.*`, ..., `norm.*`.

    Example:
        >>> reader = SourceReader(MultiHeadAttention(6, 2))
        >>> layer = DecoderLayer(MultiHeadAttention(6, 2), reader, FeedForward(6, 7), pre=False, dropout=0.0)
        >>> Decoder([layer], None)(torch.randn(3, 2, 6), [Source(torch.randn(3, 5, 6), None)])[0].shape
        torch.Size([3, 2, 6])
    """

    def __init__(self, layers: Sequence[DecoderLayer], norm: nn.LayerNorm | None, *, shown_layer: int = -1) -> None:
        super().__init__()
        if not -len(layers) <= shown_layer < len(layers):
            raise ConfigError(f"shown_layer: {shown_layer} is none of {len(layers)} layers")
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.shown_layer = shown_layer % len(layers)

    def forward(self, x: Tensor, sources: Sequence[Source], *, need_weights: bool = False) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Map states (B, T, E) of whole targets: the new ones, and the shown layer's weights (B, H, T, S) on each source if asked for."""
        shown = None
        for number, layer in enumerate(self._layers()):
            asked = need_weights and number == self.shown_layer
            x, weights = layer(x, layer.reader.memories(sources, ready=False), need_weights=asked)
            shown = weights if asked else shown
        return x if self.norm is None else self.norm(x), shown

    def start(self, sources: Sequence[Source]) -> TransformerState:
        """Return the state before the first token: every layer's own projection of the sources, made once."""
        memories = tuple(layer.reader.memories(sources, ready=True) for layer in self._layers())
        return TransformerState((None,) * len(memories), memories)

    def step(self, x: Tensor, state: TransformerState) -> tuple[Tensor, tuple[Tensor, ...] | None, TransformerState]:
        """Map the state of one token of each hypothesis, (B, K, E): the new one, the shown layer's weights, and what is remembered."""
        shown, caches = None, []
        for number, (layer, past, memories) in enumerate(zip(self._layers(), state.caches, state.memories, strict=True)):
            x, weights, cache = layer.step(x, past, memories, need_weights=number == self.shown_layer)
            shown = weights if number == self.shown_layer else shown
            caches.append(cache)
        state = replace(state, caches=tuple(caches), position=state.position + 1)
        return x if self.norm is None else self.norm(x), shown, state

    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.layers))
