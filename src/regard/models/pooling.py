"""Modules of sentence classifiers: encoders, pooling, fusion and label head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.constructor_checks import Count, Dropout, Size, checked
from regard.models.crossed import CrossedEncoder
from regard.models.embedding import sinusoidal_positions
from regard.models.rnn_encoder import RecurrentEncoder
from regard.models.transformer_layers import Encoder
from regard.ops.masks import check_key_mask


class PoolingOutput(NamedTuple):
    """A text as R vectors.

    Attributes:
        context: (B, R, D), R hops, or R = 1 without; zeros for a text without words.
        weights: (B, R, S) word weights, or None if undefined.
    """

    context: Tensor
    weights: Tensor | None


class SentenceEncoder(Protocol):
    """Interface of encoders of one or two texts."""

    def __call__(self, embedded: Sequence[Tensor], lengths: Sequence[Tensor]) -> list[Tensor]:
        """Map embedded words (B, S, E) of each text to states (B, S, D); states of padding are arbitrary."""
        ...


class RecurrentSentenceEncoder(nn.Module):
    """Encode each text with the same recurrent layers.

    Args:
        encoder: the layers.

    Parameters: `encoder.*`.

    Example:
        >>> encoder = RecurrentSentenceEncoder(RecurrentEncoder("lstm", 3, 5, num_layers=1, bidirectional=True, dropout=0.0))
        >>> texts, lengths = [torch.ones(2, 7, 3), torch.ones(2, 4, 3)], [torch.tensor([7, 2]), torch.tensor([4, 1])]
        >>> [states.shape for states in encoder(texts, lengths)]
        [torch.Size([2, 7, 10]), torch.Size([2, 4, 10])]
    """

    @checked
    def __init__(self, encoder: RecurrentEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, embedded: Sequence[Tensor], lengths: Sequence[Tensor]) -> list[Tensor]:
        """See `SentenceEncoder`."""
        if len(embedded) == 1:
            return [self.encoder(embedded[0], lengths[0]).states]
        sizes = [words.shape[1] for words in embedded]
        together = torch.cat([F.pad(words, (0, 0, 0, max(sizes) - size)) for words, size in zip(embedded, sizes, strict=True)])
        states = self.encoder(together, torch.cat(list(lengths))).states
        return [own[:, :size] for own, size in zip(states.chunk(len(sizes)), sizes, strict=True)]


class TransformerSentenceEncoder(nn.Module):
    """Encode each text with the same Transformer layers, or both with crossed attention.

    Args:
        encoder: `Encoder` for each text on its own; `CrossedEncoder` for two.
        dropout: on the sums of embeddings and positions.
        same_length: pad two texts to one length, for contexts that stay with their own text.

    Parameters: `encoder.*`.

    Example:
        >>> from regard.attention import MultiHeadAttention
        >>> from regard.models import EncoderLayer, FeedForward
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=False, dropout=0.0)
        >>> TransformerSentenceEncoder(Encoder([layer], None), dropout=0.0)([torch.ones(2, 5, 6)], [torch.tensor([5, 3])])[0].shape
        torch.Size([2, 5, 6])
    """

    @checked
    def __init__(self, encoder: Encoder | CrossedEncoder, *, dropout: Dropout, same_length: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.dropout = dropout
        self.same_length = same_length

    def forward(self, embedded: Sequence[Tensor], lengths: Sequence[Tensor]) -> list[Tensor]:
        """See `SentenceEncoder`."""
        sizes = [words.shape[1] for words in embedded]
        lengthened = [max(sizes) if self.same_length else size for size in sizes]
        places = [F.pad(self._placed(words), (0, 0, 0, new - words.shape[1])) for words, new in zip(embedded, lengthened, strict=True)]
        masks = [ops.length_mask(count, new) for count, new in zip(lengths, lengthened, strict=True)]
        if isinstance(self.encoder, CrossedEncoder):
            first, second = self.encoder(places[0], places[1], masks[0], masks[1])
            return [first.states[:, : sizes[0]], second.states[:, : sizes[1]]]
        return [self.encoder(words, mask) for words, mask in zip(places, masks, strict=True)]

    def _placed(self, words: Tensor) -> Tensor:
        positions = torch.arange(words.shape[1], device=words.device)
        words = words + sinusoidal_positions(positions, words.shape[-1], dtype=words.dtype)
        return ops.dropout(words, self.dropout) if self.training else words


class StatePooling(nn.Module):
    """Pool states without parameters.

        max    c_d = max over s of h_sd       the weight of a word: the share of the features that are taken from it
        mean   c = 1/S sum over s of h_s      the weight of a word: 1/S
        last   c = final states: the last state of the forward, the first of the backward direction; no weights

    Args:
        kind: "max", "mean" or "last".
        backward_dim: number of last features from the backward direction; for "last" only.

    Example:
        >>> StatePooling("max")(torch.tensor([[[1.0, 5.0], [3.0, 2.0]]]), torch.tensor([[True, True]]))
        PoolingOutput(context=tensor([[[3., 5.]]]), weights=tensor([[[0.5000, 0.5000]]]))
    """

    @checked
    def __init__(self, kind: Literal["max", "mean", "last"], backward_dim: Count = 0) -> None:
        super().__init__()
        self.kind: Literal["max", "mean", "last"] = kind
        self.backward_dim = backward_dim

    def forward(self, states: Tensor, key_mask: Tensor) -> PoolingOutput:
        """Map states (B, S, D) where key_mask, (B, S) bool, is True to (B, 1, D).

        Raises:
            ShapeError: the key_mask is not boolean or not (B, S).
        """
        batch, size, dim = states.shape
        check_key_mask(key_mask, (batch, size), "StatePooling")
        if not size:
            return PoolingOutput(states.new_zeros(batch, 1, dim), states.new_zeros(batch, 1, 0))
        real = key_mask.unsqueeze(-1)
        count = key_mask.sum(1)
        if self.kind == "mean":
            share = key_mask.to(states.dtype) / count.clamp_min(1).unsqueeze(1)
            return PoolingOutput(
                states.masked_fill(~real, 0.0).sum(1, keepdim=True) / count.clamp_min(1)[:, None, None], share.unsqueeze(1)
            )
        if self.kind == "max":
            best, place = states.masked_fill(~real, torch.finfo(states.dtype).min).max(1)
            share = F.one_hot(place, size).sum(1).to(states.dtype) / dim
            some = (count > 0)[:, None, None]
            return PoolingOutput(best.unsqueeze(1).masked_fill(~some, 0.0), share.unsqueeze(1).masked_fill(~some, 0.0))
        states = states.masked_fill(~real, 0.0)
        ends = states[torch.arange(batch, device=states.device), (count - 1).clamp_min(0)]
        forward = dim - self.backward_dim
        return PoolingOutput(torch.cat([ends[:, :forward], states[:, 0, forward:]], -1).unsqueeze(1), None)

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{self.kind!r}, backward_dim={self.backward_dim}"


class GatedFusion(nn.Module):
    """Join premise and hypothesis hop by hop.

        f_i = (p_i W_i) * (h_i V_i)

    Lin et al. 2017 (arXiv:1703.03130), section 4.3 and appendix B: p_i and h_i are rows of M_p and M_h, * is element-wise. As in the
    authors' code, no bias and no non-linearity; each hop has its own two matrices.

    Args:
        hops: R.
        dim: D of a hop.
        output_dim: F of a joined hop.

    Parameters: `premise` (R, D, F), `hypothesis` (R, D, F).

    Example:
        >>> GatedFusion(3, 5, 7)(torch.ones(2, 3, 5), torch.ones(2, 3, 5)).shape
        torch.Size([2, 21])
    """

    @checked
    def __init__(self, hops: Size, dim: Size, output_dim: Size) -> None:
        super().__init__()
        self.premise = nn.Parameter(torch.empty(hops, dim, output_dim))
        self.hypothesis = nn.Parameter(torch.empty(hops, dim, output_dim))
        for weight in (self.premise, self.hypothesis):
            nn.init.normal_(weight, std=dim**-0.5)

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """Join (B, R, D) and (B, R, D): (B, R F)."""
        left = torch.einsum("brd,rdf->brf", premise, self.premise)
        return (left * torch.einsum("brd,rdf->brf", hypothesis, self.hypothesis)).flatten(1)


class FeatureFusion(nn.Module):
    """Join premise and hypothesis as `[p; h; |p - h|; p * h]`, each flattened (Mou et al. 2016, arXiv:1512.08422, and `p`, `h` themselves).

    Example:
        >>> FeatureFusion()(torch.ones(2, 3, 5), torch.ones(2, 3, 5)).shape
        torch.Size([2, 60])
    """

    def forward(self, premise: Tensor, hypothesis: Tensor) -> Tensor:
        """Join (B, R, D) and (B, R, D): (B, 4 R D)."""
        p, h = premise.flatten(1), hypothesis.flatten(1)
        return torch.cat([p, h, (p - h).abs(), p * h], -1)


class LabelHead(nn.Module):
    """Multi-layer perceptron: `W_2 dropout(relu(W_1 dropout(x)))`; an affine map without hidden units.

    Args:
        input_dim: D.
        hidden_size: M, or None.
        classes: C.
        dropout: before and after the hidden units.

    Parameters: optional `hidden.*` (M, D), `output.*` (C, M or D), with biases.

    Example:
        >>> LabelHead(5, 7, 3, dropout=0.0)(torch.ones(2, 5)).shape
        torch.Size([2, 3])
    """

    @checked
    def __init__(self, input_dim: Size, hidden_size: Size | None, classes: Size, *, dropout: Dropout) -> None:
        super().__init__()
        self.hidden = None if hidden_size is None else ops.Linear(input_dim, hidden_size)
        self.output = ops.Linear(input_dim if hidden_size is None else hidden_size, classes)
        self.dropout = ops.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, D) to logits (B, C)."""
        x = self.dropout(x)
        if self.hidden is not None:
            x = self.dropout(torch.relu(self.hidden(x)))
        return self.output(x)
