"""Transformer decoder, for whole targets and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import IndexedMemory
from regard.attention.recorder import is_recording
from regard.constructor_checks import checked
from regard.errors import ConfigError
from regard.models.cross_attention import Source
from regard.models.transformer_cache import TransformerState
from regard.models.transformer_layers import DecoderLayer
from regard.models.transformer_native_step import native_greedy, native_step, plan_of
from regard.ops.kernels.decoder_cpu import DecoderPlan
from regard.ops.kernels.greedy_cpu import GreedyRules, GreedyTokens, Words
from regard.ops.kernels.vocabulary_cpu import OutputPlan


class Decoder(nn.Module):
    """A stack of decoder layers with any number of sources. Vaswani et al. 2017, section 3.1.

    Args:
        layers: from the bottom up.
        norm: final norm, or None.
        alignment_layer: layer whose weights are returned, from 0; -1 is the last.

    Parameters: `layers.0.*`, ..., `norm.*`.

    Example:
        >>> from regard.attention import MultiHeadAttention
        >>> from regard.models import FeedForward, SourceAttention
        >>> cross_attention = SourceAttention(MultiHeadAttention(6, 2))
        >>> layer = DecoderLayer(MultiHeadAttention(6, 2), cross_attention, FeedForward(6, 7), pre=False, dropout=0.0)
        >>> Decoder([layer], None)(torch.randn(3, 2, 6), [Source(torch.randn(3, 5, 6), None)])[0].shape
        torch.Size([3, 2, 6])
    """

    @checked
    def __init__(self, layers: Sequence[DecoderLayer], norm: nn.LayerNorm | None, *, alignment_layer: int = -1) -> None:
        super().__init__()
        if not -len(layers) <= alignment_layer < len(layers):
            raise ConfigError(f"alignment_layer: {alignment_layer} is not one of {len(layers)} layers")
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.alignment_layer = alignment_layer % len(layers)

    def forward(self, x: Tensor, sources: Sequence[Source], *, weights_of: int | None = None) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Map states (B, T, E) of whole targets to new ones; also return the weights (B, H, T, S) of a layer, from 0, on each source if
        requested.
        """
        shown = None
        for number, layer in enumerate(self._layers()):
            asked = number == weights_of
            x, weights = layer(x, layer.cross_attention.memories(sources, for_decoding=False), need_weights=asked)
            shown = weights if asked else shown
        return x if self.norm is None else self.norm(x), shown

    def start(self, sources: Sequence[Source]) -> TransformerState:
        """Return the initial state: every layer's projection of the sources."""
        memories = tuple(layer.cross_attention.memories(sources, for_decoding=True) for layer in self._layers())
        states = sources[0].states
        places = torch.empty(states.shape[0], 0, dtype=torch.long, device=states.device)
        return TransformerState((None,) * len(memories), memories, places)

    def step(self, x: Tensor, state: TransformerState) -> tuple[Tensor, tuple[Tensor, ...] | None, TransformerState]:
        """Map one state per hypothesis (B, K, E): the new one, the alignment layer's weights, and the caches.

        Within `regard.ops.packed_weights`, one native call if the library supports the layers.
        """
        current, plan = state.current(), self._plan(state)
        if plan is not None:
            found, weights, caches = native_step(plan, self._layers(), x, state, current)
            return found, (weights,), state.advanced(current, caches)
        shown, caches = None, []
        for number, (layer, past, memories) in enumerate(zip(self._layers(), state.caches, state.memories, strict=True)):
            x, weights, longer = layer.step(x, past, current, memories, need_weights=number == self.alignment_layer)
            shown = weights if number == self.alignment_layer else shown
            caches.append(longer)
        return x if self.norm is None else self.norm(x), shown, state.advanced(current, caches)

    def greedy(self, state: TransformerState, output: OutputPlan, words: Words, rules: GreedyRules) -> GreedyTokens | None:
        """Run a greedy search in the native library; None if it does not support the layers."""
        plan = self._plan(state)
        return None if plan is None or state.position else native_greedy(plan, output, state, words, rules)

    def _plan(self, state: TransformerState) -> DecoderPlan | None:
        if is_recording() or not all(isinstance(memory, IndexedMemory) for layer in state.memories for memory in layer):
            return None
        return ops.cached_by_owner(self, lambda dtype: plan_of(self._layers(), self.norm, self.alignment_layer, dtype))

    def _layers(self) -> list[DecoderLayer]:
        return cast(list[DecoderLayer], list(self.layers))
