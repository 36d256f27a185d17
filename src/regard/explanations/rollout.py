"""Attribution through all layers of a Transformer: rollout, ALTI, and the layer graph that both multiply."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.attention.areas import Areas
from regard.errors import ConfigError
from regard.explanations.attention_based import attention_weights, mapped_values
from regard.explanations.batches import LabelBatch, ModelBatch
from regard.explanations.input_pairs import TwoInputBatch
from regard.explanations.layers import SECOND, SOURCE, TARGET, Sublayer, record_layers
from regard.explanations.method_arguments import takes_batch
from regard.models.cross_attention import mean_head_weights

LABEL = "label"
Shares = dict[str, dict[str, Tensor]]
"""For each updated stream, its composition by streams: (B, N, M), rows sum to 1."""


class LayerGraph(NamedTuple):
    """A model's layers as steps from inputs to outputs.

    Attributes:
        start: per stream, which of the I inputs each position holds at first: (B, N, I). I counts the inputs of the batch and, with a
            decoder, then its target input tokens.
        steps: from the bottom up.
        end: the output stream.
    """

    start: Mapping[str, Tensor]
    steps: Sequence[Shares]
    end: str


@takes_batch
def attention_rollout(batch: ModelBatch) -> Tensor:
    """Multiply the attention of all layers, residual connections included.

        R_l = (A_l / 2 + I / 2) R_(l-1)

    Abnar and Zuidema 2020 (arXiv:2005.00928), section 3; A_l is the mean over heads. They treat encoders only. In a decoder, self-attention
    is such a step on the target; cross-attention halves the target's composition and adds half of A times the encoder's R (composed as in
    Ferrando et al. 2022, arXiv:2205.11631). Two encoder branches have a quarter each. Weights of areas go to their items, and each row is
    divided by its sum. A classifier's pooling is a last step without residual connection.

    Args:
        batch: B examples of a Transformer.

    Returns:
        (B, T, I): S inputs, then with a decoder its T input tokens; rows sum to 1.

    Raises:
        ConfigError: the model is not a Transformer.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.explanations import TranslationBatch
        >>> from regard.models import build
        >>> model = build(TransformerConfig(encoder_layers=1, decoder_layers=1), source_size=11, target_size=11).eval()
        >>> pair = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2])
        >>> attention_rollout(TranslationBatch(model, *pair)).shape  # three inputs, two target tokens
        torch.Size([1, 2, 5])
    """
    return compose(attention_graph(batch, "rollout")) * batch.outputs.unsqueeze(2)


@takes_batch
def alti(batch: ModelBatch) -> Tensor:
    """Attribute each layer's output to its inputs and compose all layers (ALTI; ALTI+ for encoder-decoders).

        y_i = L(x_i + sum over j of F_i(x_j) + b),  T_i(x_j) = L_i(F_i(x_j) + [i = j] x_i),  F_i(x_j) = sum over h of a_h[i, j] f_h(x_j)
        c[i, j] = max(0, ||y_i||_1 - ||y_i - T_i(x_j)||_1), divided by its sum over j;  R_l = C_l R_(l-1)

    Ferrando et al. 2022 (arXiv:2203.04212), Eq. 6 to 10; for cross-attention the residual connection is one more column (Ferrando et al.
    2022, arXiv:2205.11631, section 3). L_i is the linear part of the LayerNorm at its observed variance, or the identity with pre-norm,
    whose first norm is part of f. The feed-forward layer works on each position alone and is omitted, as in the papers. Areas with summed
    values are sums over items, hence exact.

    Differs from the papers: if no input is closer to y than zero, all allowed inputs share equally.

    Args:
        batch: B examples of a Transformer.

    Returns:
        (B, T, I): S inputs, then with a decoder its T input tokens; rows sum to 1.

    Raises:
        ConfigError: the model is not a Transformer, or no linear map follows its attention: a crossed decoder, areas of largest values.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.explanations import TranslationBatch
        >>> from regard.models import build
        >>> model = build(TransformerConfig(encoder_layers=1, decoder_layers=1), source_size=11, target_size=11).eval()
        >>> pair = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2])
        >>> alti(TranslationBatch(model, *pair)).shape  # three inputs, two target tokens
        torch.Size([1, 2, 5])
    """
    with torch.no_grad():
        graph = _graph(batch, "ALTI", contributions)
    return compose(graph) * batch.outputs.unsqueeze(2)


def attention_graph(batch: ModelBatch, method: str) -> LayerGraph:
    """Return the layers, each with one half for attention and one half for the residual connection.

    Raises:
        ConfigError: the model is not a Transformer; the message names the method.
    """
    return _graph(batch, method, halves)


def compose(graph: LayerGraph) -> Tensor:
    """Multiply the steps: the share of each input in each output, (B, T, I).

    Example:
        >>> half = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])
        >>> compose(LayerGraph({"source": torch.eye(2)[None]}, [{"source": {"source": half}}] * 2, "source"))[0].tolist()
        [[0.25, 0.75], [0.0, 1.0]]
    """
    streams = dict(graph.start)
    for step in graph.steps:
        streams |= {
            into: torch.stack([part @ streams[name].to(part) for name, part in parts.items()]).sum(0) for into, parts in step.items()
        }
    return streams[graph.end]


def halves(sublayer: Sublayer) -> dict[str, Tensor]:
    """Return the shares of rollout and flow: half for the residual connection, half for the mean attention over heads."""
    same = torch.eye(sublayer.states.shape[1]).to(sublayer.states).expand(len(sublayer.states), -1, -1)
    parts = {sublayer.into: same / 2}
    for branch in sublayer.branches:
        found = mean_head_weights(branch.weights) / (2 * len(sublayer.branches))
        parts[branch.stream] = parts[branch.stream] + found if branch.stream in parts else found
    return parts


def contributions(sublayer: Sublayer) -> dict[str, Tensor]:
    """Return the shares of ALTI; see `alti`.

    Raises:
        ConfigError: more than a linear map follows the attention's sum.
    """
    if sublayer.mapped:
        raise ConfigError(
            "ALTI: more than a linear map follows the attentions of this decoder, which adds two of them or sends each through a "
            "feed-forward layer; take weights, input-gradient, integrated-gradients or leave-one-out"
        )
    (branch,) = sublayer.branches
    areas = branch.attention.areas
    if isinstance(areas, Areas) and areas.value_mode == "max":
        raise ConfigError("ALTI: the value of an area is the largest of its items (value_mode max), not their sum")
    mapped = mapped_values(branch.attention, branch.values)
    own = branch.stream == sublayer.into
    # One example at a time: there is a vector per pair of positions.
    rows = [_example_contributions(sublayer, branch.weights[number], mapped[number], number, own) for number in range(len(mapped))]
    none = mapped.new_zeros(0, sublayer.states.shape[1], mapped.shape[2] + (not own))
    found = torch.stack(rows) if rows else none  # (B, N, M), with attention to another stream (B, N, M + 1)
    return {branch.stream: found} if own else {branch.stream: found[..., :-1], sublayer.into: found[..., -1].diag_embed()}


def _example_contributions(sublayer: Sublayer, weights: Tensor, mapped: Tensor, number: int, own: bool) -> Tensor:
    states, change, norm = sublayer.states[number], sublayer.change[number], sublayer.norm
    vectors = torch.einsum("hts,hse->tse", weights, mapped)  # (N, M, E)
    allowed = weights.sum(0) > 0
    if own:
        same = torch.eye(len(states), device=states.device)
        vectors = vectors + same.to(states).unsqueeze(-1) * states.unsqueeze(1)
        allowed = allowed | same.bool()
    else:
        vectors = torch.cat([vectors, states.unsqueeze(1)], 1)
        allowed = F.pad(allowed, (0, 1), value=True)
    result = norm.after(states, change)
    if not norm.pre:
        scale = ((states + change).var(-1, unbiased=False) + norm.eps).sqrt()[:, None, None]
        vectors = (vectors - vectors.mean(-1, keepdim=True)) / scale * norm.weight
    return nearness(result, vectors, allowed)


def nearness(result: Tensor, vectors: Tensor, allowed: Tensor) -> Tensor:
    """Return the shares of vectors in their sum, by how near each is to it: Eq. 8 and 9 of `alti`.

    Args:
        result: (..., N, E), the sum.
        vectors: (..., N, M, E).
        allowed: (..., N, M) bool: vectors that may have a share; they share equally if none is nearer than zero.

    Returns:
        (..., N, M); rows sum to 1.

    Example:
        >>> nearness(torch.tensor([[3.0, 1.0]]), torch.tensor([[[3.0, 0.0], [0.0, 1.0]]]), torch.tensor([[True, True]])).tolist()
        [[0.75, 0.25]]
    """
    near = (result.abs().sum(-1, keepdim=True) - (result.unsqueeze(-2) - vectors).abs().sum(-1)).clamp(min=0)
    near = near.masked_fill(~allowed, 0.0)
    total = near.sum(-1, keepdim=True)
    return torch.where(total > 0, near / total.clamp(min=torch.finfo(near.dtype).tiny), allowed / allowed.sum(-1, keepdim=True))


def _graph(batch: ModelBatch, method: str, shares: Callable[[Sublayer], dict[str, Tensor]]) -> LayerGraph:
    layers = record_layers(batch, method)
    sizes = dict[str, int]()
    for sublayer in itertools.chain.from_iterable(layers):
        sizes[sublayer.into] = sublayer.states.shape[1]
        sizes |= {branch.stream: branch.values.shape[2] for branch in sublayer.branches}
    steps: list[Shares] = [{sublayer.into: shares(sublayer) for sublayer in together} for together in layers]
    inputs = batch.inputs
    if isinstance(batch, LabelBatch):
        widths = [part.shape[1] for part in batch.tokens]
        weights = attention_weights(batch).split(widths, 2)
        # Encoder inputs may be longer by padding.
        names = (SOURCE, SECOND)[: len(widths)]
        pooled = {name: F.pad(part, (0, sizes[name] - part.shape[2])) for name, part in zip(names, weights, strict=True)}
        start = {name: _places(inputs, sizes[name], sum(widths[:i]), widths[i]) for i, name in enumerate(names)}
        return LayerGraph(start, [*steps, {LABEL: pooled}], LABEL)
    count, target = inputs.shape[1], sizes[TARGET]
    if isinstance(batch, TwoInputBatch):
        start = {name: F.pad(part, (0, target)) for name, part in _places_of_two(batch, sizes).items()}
    else:
        start = {name: F.pad(_places(inputs, count, 0, count), (0, target)) for name in (SOURCE, SECOND)}
    start[TARGET] = F.pad(torch.eye(target, device=inputs.device), (count, 0)).expand(len(inputs), -1, -1)
    return LayerGraph(start, steps, TARGET)


def _places(inputs: Tensor, size: int, first: int, width: int) -> Tensor:
    # Position i of a stream of `size` holds input first + i; positions from `width` on hold none.
    found = torch.zeros(size, inputs.shape[1], device=inputs.device)
    found[:width, first : first + width] = torch.eye(width, device=inputs.device)
    return found.expand(len(inputs), -1, -1)


def _places_of_two(batch: TwoInputBatch, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    # Position i of each stream of two inputs, by its column in the row of both.
    count, ends = batch.inputs.shape[1], batch.split.first_lengths.unsqueeze(1)
    places = {name: torch.arange(sizes[name], device=ends.device).expand(len(ends), -1) for name in (SOURCE, SECOND) if name in sizes}
    if SECOND in places:
        places[SECOND] = (places[SECOND] + ends).clamp(max=count - 1)
    return {name: F.one_hot(columns, count).float() for name, columns in places.items()}
