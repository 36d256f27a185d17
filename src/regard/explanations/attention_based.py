"""Methods based on the attention that a model shows: its weights, value norms, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.attention import Attention, KeyValueAttention, MultiHeadAttention, StructuredAttention, record_weights
from regard.attention.areas import Areas
from regard.errors import ConfigError
from regard.explanations.batches import CaptionBatch, LabelBatch, LanguageBatch, ModelBatch, TranslationBatch
from regard.explanations.gradients import each_output, outside_inference, recording
from regard.explanations.input_pairs import TwoInputBatch
from regard.explanations.method_arguments import takes_batch
from regard.explanations.patches import hooked, patched
from regard.models import CrossedSourceAttention, Decoder, DecoderLayer, SourceAttention
from regard.models.cross_attention import SourcePairAttention
from regard.models.rnn_attention import TwoAttentions


@takes_batch
def attention_weights(batch: ModelBatch) -> Tensor:
    """Return the displayed attention weights, unchanged.

    A Transformer shows the mean over heads of its alignment layer (crossed: also over both encoder branches); a classifier the mean over
    hops, and with max-pooling the share of the maxima. Weights of areas go to their items, and each row is then normalized.

    Args:
        batch: B examples.

    Returns:
        (B, T, S).

    Raises:
        ConfigError: the model has no attention to show.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> weights = attention_weights(LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1])))
        >>> round(weights.sum().item(), 4)
        1.0
    """
    with torch.no_grad():
        match batch:
            case TranslationBatch():
                weights = batch.model.decode(batch.source, batch.source_lengths, batch.target_input).weights
            case CaptionBatch():
                weights = batch.decode(need_weights=True).weights
            case LanguageBatch():
                weights = batch.model.decode(batch.read, need_weights=True).weights
                weights = None if weights is None else weights[..., -batch.read.shape[1] :]
            case LabelBatch():
                weights = _pooling_weights(batch)
            case _:
                raise ConfigError(f"attention weights: {type(batch).__name__} shows none")
    if weights is None:
        raise ConfigError(f"weights: {type(batch.model).__name__} has no attention to show; take input gradients or leave-one-out")
    return weights * batch.outputs.unsqueeze(2)


@takes_batch
@outside_inference
def value_norms(batch: ModelBatch, *, every_layer: bool = False) -> Tensor:
    """Return the norm of each weighted value that the displayed attention sums.

        r[t, s] = || sum over heads h of a_h[t, s] f_h(x_s) ||,  f_h(x) = (x W_V,h + b_V,h) W_O,h

    Kobayashi et al. 2020 (arXiv:2004.10102), Eq. 5 to 7. Without such projections f(x) = x. With several hops it is the norm of their
    concatenation; for the crossed model the mean over both branches.

    Args:
        batch: B examples.
        every_layer: for a Transformer the sum over all decoder layers, instead of the displayed one alone.

    Returns:
        (B, T, S), non-negative.

    Raises:
        ConfigError: the model has no attention, or no weighted sum: mean and max-pooling, areas of largest values. With `every_layer`: no
            decoder with several layers.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> value_norms(LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))).shape
        torch.Size([1, 1, 2])
    """
    model = cast(Any, batch.model)
    layers: list[int | None] = [None]
    if every_layer:
        layers = [*range(len(model.decoder.layers))] if isinstance(getattr(model, "decoder", None), Decoder) else []
        if isinstance(getattr(getattr(model, "decoder", None), "attention", None), TwoAttentions):
            raise _apart("value norms of all layers")
        if len(layers) < 2:
            raise ConfigError(f"value norms of all layers: {type(model).__name__} shows the only attention it has; take value-norms")
    found = []
    for layer in layers:
        with recording(batch.model):
            attentions = shown_attentions(batch, "value norms", layer=layer)
            found.append(torch.stack([_read(batch, attention, "value norms").norms() for attention in attentions]).mean(0))
    return torch.stack(found).sum(0).detach() * batch.outputs.unsqueeze(2)


@takes_batch
@outside_inference
def gradient_times_attention(batch: ModelBatch) -> Tensor:
    """Return the product of each displayed weight with the gradient of each output's log-probability.

        r[t, s] = sum over heads h of a_h[t, s] d log p(y_t | x) / d a_h[t, s]

    Serrano and Smith 2019 (arXiv:1906.03731), section 3. Weights are those of the step that predicts the output. The gradient of a weight
    is the gradient of the sum times the value.

    Args:
        batch: B examples; T backward passes.

    Returns:
        (B, T, S), nats; signed.

    Raises:
        ConfigError: the model has no attention, no weighted sum, or hard attention, which has no gradient.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.explanations import LabelBatch
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> gradient_times_attention(LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))).shape
        torch.Size([1, 1, 2])
    """
    found = []
    for reading in _readings(batch, "gradient x attention"):
        rows = each_output(reading.log_probs, lambda total, keep, of=reading: of.shares(_gradients(total, of.probes, keep)))
        # (B, T outputs, T rows, S): the row of the step that predicts the output; a label has one row for all its hops.
        found.append(rows.diagonal(dim1=1, dim2=2).transpose(1, 2))
    return torch.stack(found).mean(0).detach() * batch.outputs.unsqueeze(2)


class _Reading(NamedTuple):
    """One forward pass: log-probabilities (B, T), tensors to differentiate, and functions that map gradients and values to (B, T, S)."""

    log_probs: Tensor
    probes: list[Tensor]
    shares: Callable[[list[Tensor]], Tensor]
    norms: Callable[[], Tensor]


def _gradients(total: Tensor, probes: list[Tensor], keep: bool) -> list[Tensor]:
    found = torch.autograd.grad(total, probes, retain_graph=keep, allow_unused=True)
    return [torch.zeros_like(probe) if one is None else one for one, probe in zip(found, probes, strict=True)]


def _readings(batch: ModelBatch, method: str) -> list[_Reading]:
    with recording(batch.model):
        return [_read(batch, attention, method) for attention in shown_attentions(batch, method)]


def shown_attentions(batch: ModelBatch, method: str, *, layer: int | None = None) -> list[nn.Module]:
    """Return the attention modules that a model shows, or those of a decoder layer; two for a crossed model.

    Raises:
        ConfigError: there is none; the message names the method.
    """
    model = cast(Any, batch.model)
    found: Any = None
    match batch:
        case LabelBatch():
            found = model.pooling if isinstance(model.pooling, StructuredAttention) else None
            if found is None:
                raise ConfigError(f"{method}: {model.pooling.kind}-pooling has no weights that values are multiplied by")
        case LanguageBatch():
            found = model.attention
        case _ if isinstance(model.decoder, Decoder):
            chosen = model.decoder.alignment_layer if layer is None else layer
            cross = cast(DecoderLayer, model.decoder.layers[chosen]).cross_attention
            if isinstance(batch, TwoInputBatch) and isinstance(cross, SourcePairAttention):
                raise _apart(method)
            if isinstance(cross, CrossedSourceAttention):
                return [cross.left, cross.right]
            found = cross.attention if isinstance(cross, SourceAttention) else None
        case _:
            found = model.decoder.attention
            if isinstance(found, TwoAttentions):
                raise _apart(method)
    if found is None:
        raise ConfigError(f"{method}: {type(model).__name__} has no attention; input gradients and leave-one-out need none")
    areas = getattr(found, "areas", None)
    if isinstance(areas, Areas) and areas.value_mode == "max":
        raise ConfigError(f"{method}: the value of an area is the largest of its items (value_mode max), not their sum")
    return [found]


def _apart(method: str) -> ConfigError:
    others = "take weights, input-gradient, integrated-gradients or leave-one-out"
    return ConfigError(f"{method}: this decoder attends to each of its inputs by itself; {others}")


def _read(batch: ModelBatch, attention: nn.Module, method: str) -> _Reading:
    match attention:
        case MultiHeadAttention():
            return _read_heads(batch, attention)
        case Attention():
            return _read_single(batch, attention, method)
        case StructuredAttention():
            return _read_hops(cast(LabelBatch, batch), attention)
        case KeyValueAttention():
            return _read_past(cast(LanguageBatch, batch), attention)
    raise ConfigError(f"{method}: not known for {type(attention).__name__}")


def _read_heads(batch: ModelBatch, attention: MultiHeadAttention) -> _Reading:
    values, contexts = [], []
    with ExitStack() as stack:
        stack.enter_context(hooked(attention.value, lambda args, out: values.append(out)))
        stack.enter_context(hooked(attention.output, lambda args, out: contexts.append(args[0])))
        recorded = stack.enter_context(record_weights())
        log_probs = batch.log_probs()
    weights = torch.cat([each.weights for each in recorded if each.attention is attention], 2)  # (B, H, T, S)
    contexts = [context for context in contexts if context.requires_grad]  # not those that only returned weights
    heads = values[0].detach().unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)  # (B, H, S, D)

    def shares(gradients: list[Tensor]) -> Tensor:
        found = torch.cat(gradients, 1).unflatten(-1, (attention.num_heads, attention.head_dim))  # (B, T, H, D)
        return (torch.einsum("bthd,bhsd->bhts", found, heads) * weights).sum(1)

    def norms() -> Tensor:
        mapped = mapped_values(attention, heads)  # (B, H, S, E)
        # The squared norm of a sum as products of pairs of heads, to avoid a (B, T, S, E) tensor.
        products = torch.einsum("bhse,bgse->bshg", mapped, mapped)
        return torch.einsum("bhts,bgts,bshg->bts", weights, weights, products).clamp(min=0).sqrt()

    return _Reading(log_probs, contexts, shares, norms)


def mapped_values(attention: MultiHeadAttention, values: Tensor) -> Tensor:
    """Apply the output projection without bias to the values of each head: (B, H, S, D) to (B, H, S, E).

    Example:
        >>> attention = MultiHeadAttention(6, 2)
        >>> mapped_values(attention, torch.ones(3, 2, 5, 3)).shape
        torch.Size([3, 2, 5, 6])
    """
    per_head = attention.output.weight.detach().unflatten(1, (attention.num_heads, attention.head_dim))  # (E, H, D)
    return torch.einsum("bhsd,ehd->bhse", values, per_head.to(values.dtype))


def _read_single(batch: ModelBatch, attention: Attention, method: str) -> _Reading:
    areas, given, weights = attention.areas, [], []

    def noting(memory: Callable[..., Any]) -> Callable[..., Any]:
        def noted(key: Tensor, value: Tensor | None = None, *, key_mask: Tensor | None = None) -> Any:
            given.append(key if value is None else value)
            return memory(key, value, key_mask=key_mask)

        return noted

    with patched(attention, "memory", noting), hooked(attention.dropout, lambda args, out: weights.append(args[0])):
        log_probs = batch.log_probs()
    if method.startswith("gradient") and not all(one.requires_grad for one in weights):
        raise ConfigError(f"{method}: hard attention selects one position, which has no gradient; take another method")
    found, values = torch.cat(weights, 1).detach(), given[0].detach()  # (B, T, N), (B, S, Dv)

    def to_items(parts: Tensor) -> Tensor:
        # An area's weight is shared equally among its items.
        return parts if areas is None else _project(areas, parts, "mean")

    return _Reading(
        log_probs,
        weights,
        lambda gradients: to_items(torch.cat(gradients, 1) * found),
        lambda: (found if areas is None else areas.project(found)) * values.norm(dim=-1).unsqueeze(1),
    )


def _project(areas: Areas, weights: Tensor, mode: str) -> Tensor:
    from regard import ops

    return ops.item_weights(weights, areas.max_area, areas.grid, value_mode=mode)


def _read_hops(batch: LabelBatch, attention: StructuredAttention) -> _Reading:
    states: list[Tensor] = []
    with hooked(attention, lambda args, out: states.append(args[0].detach())):
        found = batch.model.classify(batch.tokens, batch.lengths, need_weights=True)
    log_probs = found.logits.log_softmax(-1).gather(1, batch.labels.unsqueeze(1))
    weights = [cast(Tensor, text.weights) for text in found.pooled]  # (B, R, S) of each text
    hops = [part.detach() for part in weights]

    def shares(gradients: list[Tensor]) -> Tensor:
        return torch.cat([(own * part).sum(1, keepdim=True) for own, part in zip(gradients, hops, strict=True)], 2)

    def norms() -> Tensor:
        return torch.cat(
            [part.norm(dim=1, keepdim=True) * own.norm(dim=-1).unsqueeze(1) for part, own in zip(hops, states, strict=True)], 2
        )

    return _Reading(log_probs, weights, shares, norms)


def _read_past(batch: LanguageBatch, attention: KeyValueAttention) -> _Reading:
    states, sums = list[Tensor](), list[Tensor]()

    def noting(step: Callable[..., Any]) -> Callable[..., Any]:
        def noted(new: Tensor, memory: Any, **settings: Any) -> Any:
            states.append(new.detach())
            return step(new, memory, **settings)

        return noted

    with patched(attention, "step", noting), hooked(attention.read, lambda args, out: sums.append(args[0])):
        log_probs = batch.log_probs()
    weights = attention_weights(batch)  # (B, T, T)
    size = attention.input_dim // attention.parts
    value = states[0].split(size, -1)[min(1, attention.parts - 1)]  # the second part, or the only one
    return _Reading(
        log_probs,
        sums,
        lambda gradients: torch.einsum("btd,bsd->bts", gradients[0], value) * weights,
        lambda: weights * (value @ attention.read.weight.detach().T).norm(dim=-1).unsqueeze(1),
    )


def _pooling_weights(batch: LabelBatch) -> Tensor | None:
    found = [text.weights for text in batch.model.classify(batch.tokens, batch.lengths).pooled]
    parts = [part.mean(1, keepdim=True) for part in found if part is not None]
    # Of two texts both have weights or neither; each of their rows sums to 1.
    return torch.cat(parts, 2) / len(parts) if parts else None
