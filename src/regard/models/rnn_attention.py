"""Attention of a recurrent decoder: one attention to one source, or two attentions to two sources, combined."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from regard import ops
from regard.attention import AdditiveScore, Attention, HeadMemory, IndexedMemory, Memory, MultiHeadAttention
from regard.constructor_checks import Size, checked
from regard.models.cross_attention import Source, cache_source, cross_attend, mean_head_weights
from regard.models.input_rows import join_weights
from regard.models.rnn_encoder import EncoderOutput
from regard.models.rnn_state import DecoderMemory, PairMemory

SourceAttending = Attention | MultiHeadAttention
Combination = Literal["serial", "parallel", "hierarchical"]


class TwoAttentions(nn.Module):
    """Attend from a recurrent decoder's state s to two sources, and combine the contexts c1 and c2.

        parallel       context = [c1; c2],  c1 = attend_1(s),  c2 = attend_2(s)
        serial         context = [c1; c2],  c1 = attend_1(s),  c2 = attend_2(s + W c1)
        hierarchical   context = sum_k b_k U_k c_k,  b = softmax_k(v . tanh(W s + V U_k c_k))

    Parallel: Zoph and Knight 2016 (arXiv:1601.00710), section 3.2, whose attentional state reads both contexts; Libovický and Helcl 2017
    (arXiv:1704.06567), section 3, "concatenation". Hierarchical: their section 3.2, except that V is shared by both contexts. Serial: as in
    the Transformer of Libovický et al. 2018, section 3.

    Args:
        left: attention of the decoder to the first source; its normalizer is that of the shares, too.
        right: attention to the second.
        query_dim: H, size of s.
        context_dim: C, size of each context.
        combine: see above.
        attention_dim: size of v, for hierarchical.

    Parameters: `left.*`, `right.*`; serial: `found.weight` (H, C); hierarchical: `inputs.K.weight` (C, C) and `share.*`.

    Example:
        >>> pair = TwoAttentions(*(Attention(AdditiveScore(5, 6, 7)) for _ in range(2)), 5, 6, combine="hierarchical", attention_dim=7)
        >>> first, second = (EncoderOutput(torch.randn(3, size, 6), torch.tensor([size] * 3), []) for size in (4, 2))
        >>> memory = attention_memory(pair, first._replace(second=second), for_decoding=True)
        >>> context, weights = attend_memory(pair, torch.randn(3, 2, 5), memory, position=0, need_weights=True)
        >>> context.shape, weights.shape, torch.allclose(weights.sum(-1), torch.ones(3, 2))
        (torch.Size([3, 2, 6]), torch.Size([3, 2, 6]), True)
    """

    @checked
    def __init__(
        self,
        left: SourceAttending,
        right: SourceAttending,
        query_dim: Size,
        context_dim: Size,
        *,
        combine: Combination,
        attention_dim: Size,
    ) -> None:
        super().__init__()
        self.left = left
        self.right = right
        self.combine = combine
        self.output_dim = context_dim if combine == "hierarchical" else 2 * context_dim
        self.found = ops.Linear(context_dim, query_dim, bias=False) if combine == "serial" else None
        self.inputs, self.share = None, None
        if combine == "hierarchical":
            self.inputs = nn.ModuleList(ops.Linear(context_dim, context_dim, bias=False) for _ in range(2))
            self.share = Attention(AdditiveScore(query_dim, context_dim, attention_dim), normalizer=left.normalizer)

    def attend(self, query: Tensor, memory: PairMemory, *, position: int | Tensor, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Attend with queries (B, T, H): contexts (B, T, `output_dim`), and weights (B, T, S) of both inputs, concatenated."""
        left, left_weights = attend_memory(self.left, query, memory.first, position=position, need_weights=need_weights)
        asking = query if self.found is None else query + self.found(left)
        right, right_weights = attend_memory(self.right, asking, memory.second, position=position, need_weights=need_weights)
        shares = None
        if self.inputs is None or self.share is None:
            context = torch.cat([left, right], -1)
        else:
            both = torch.stack([project(one) for project, one in zip(self.inputs, (left, right), strict=True)], 2).flatten(0, 1)
            found = self.share.attend(query.reshape(-1, 1, query.shape[-1]), self.share.memory(both), need_weights=need_weights)
            context, shares = found.context.view(*query.shape[:2], found.context.shape[-1]), found.weights
        if left_weights is None or right_weights is None:
            return context, None
        if shares is not None:
            one, other = shares.view(*query.shape[:2], 2).split(1, -1)
            left_weights, right_weights = left_weights * one, right_weights * other
        return context, mean_head_weights(join_weights(left_weights, right_weights, memory.lengths))

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"combine={self.combine!r}"


DecoderAttention = Attention | MultiHeadAttention | TwoAttentions


def attention_memory(attention: DecoderAttention, encoded: EncoderOutput, *, for_decoding: bool) -> DecoderMemory:
    """Project an encoder's output for an attention; `for_decoding`: for many steps.

    Example:
        >>> attention = Attention(AdditiveScore(5, 6, 7))
        >>> attention_memory(attention, EncoderOutput(torch.ones(2, 3, 6), torch.tensor([3, 1]), []), for_decoding=True).mask.tolist()
        [[True, True, True], [True, False, False]]
    """
    if isinstance(attention, TwoAttentions):
        assert encoded.second is not None
        first, second = (
            attention_memory(own, part, for_decoding=for_decoding)
            for own, part in ((attention.left, encoded), (attention.right, encoded.second))
        )
        assert not isinstance(first, PairMemory)
        assert not isinstance(second, PairMemory)
        return PairMemory(first, second, torch.stack([encoded.lengths, encoded.second.lengths], 1))
    size = encoded.states.shape[1]
    mask = ops.length_mask(encoded.lengths.clamp(max=size), size)
    if isinstance(attention, Attention):
        return attention.memory(encoded.states, key_mask=mask)
    return cache_source(attention, Source(encoded.states, mask), for_decoding=for_decoding)


def covers(attention: DecoderAttention | None) -> bool:
    """Return whether an attention scores by coverage, step by step.

    Example:
        >>> covers(Attention(AdditiveScore(5, 6, 7, coverage=True))), covers(Attention(AdditiveScore(5, 6, 7)))
        (True, False)
    """
    score = attention.score if isinstance(attention, Attention) else None
    return isinstance(score, AdditiveScore) and score.coverage is not None


def attend_covered(
    attention: DecoderAttention, query: Tensor, memory: DecoderMemory, coverage: Tensor, *, position: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Attend with one step of hypotheses (B, K, H) of coverage (B, K, S): contexts (B, K, C), and weights (B, K, S).

    Example:
        >>> attention = Attention(AdditiveScore(5, 6, 7, coverage=True))
        >>> memory = attention_memory(attention, EncoderOutput(torch.ones(2, 3, 6), torch.tensor([3, 1]), []), for_decoding=True)
        >>> attend_covered(attention, torch.ones(2, 4, 5), memory, torch.zeros(2, 4, 3), position=0)[1].shape
        torch.Size([2, 4, 3])
    """
    assert isinstance(attention, Attention)
    assert isinstance(attention.score, AdditiveScore)
    assert isinstance(memory, Memory)
    batch, beams = query.shape[:2]
    if beams > 1:  # each hypothesis has its own keys
        memory = memory.rows(torch.arange(batch, device=query.device).repeat_interleave(beams))
    memory = memory._replace(key=attention.score.covered(memory.key, coverage.flatten(0, 1)))
    found = attention.attend(query.reshape(batch * beams, 1, -1), memory, position=position, need_weights=True)
    assert found.weights is not None
    return found.context.view(batch, beams, found.context.shape[-1]), found.weights.view(batch, beams, found.weights.shape[-1])


def attend_memory(
    attention: DecoderAttention, query: Tensor, memory: DecoderMemory, *, position: int | Tensor, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """Attend with queries (B, T, H) to the result of `attention_memory`: contexts (B, T, C), and weights (B, T, S) if requested.

    Example:
        >>> attention = Attention(AdditiveScore(5, 6, 7))
        >>> memory = attention_memory(attention, EncoderOutput(torch.ones(2, 3, 6), torch.tensor([3, 1]), []), for_decoding=True)
        >>> attend_memory(attention, torch.ones(2, 4, 5), memory, position=0, need_weights=True)[1].shape
        torch.Size([2, 4, 3])
    """
    match attention, memory:
        case TwoAttentions(), PairMemory():
            return attention.attend(query, memory, position=position, need_weights=need_weights)
        case Attention(), Memory():
            attended = attention.attend(query, memory, position=position, need_weights=need_weights)
        case MultiHeadAttention(), HeadMemory() | IndexedMemory():
            attended = cross_attend(attention, query, memory, need_weights=need_weights)
        case _:
            raise TypeError(f"{type(attention).__name__} cannot attend to {type(memory).__name__}")
    weights = attended.weights
    if weights is not None and (weights.dim() == 4 or attention.areas is not None):
        weights = mean_head_weights(weights)
    return attended.context, weights
