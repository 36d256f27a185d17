"""Records the attention of every Transformer layer, with its residual connection, during the model's forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from regard.attention import HeadMemory, MultiHeadAttention
from regard.attention.crossed import hide_masked
from regard.errors import ConfigError
from regard.explanations.batches import ModelBatch
from regard.explanations.patches import hooked
from regard.models import (
    CrossedEncoderLayer,
    Decoder,
    DecoderLayer,
    EncoderLayer,
    ResidualNorm,
    SerialDecoderLayer,
    SourceAttention,
    TwoEncoders,
    cross_attend,
)

SOURCE, SECOND, TARGET = "source", "second", "target"
"""The streams that layers update: source (or first text), its second branch (or text), target."""


class Branch(NamedTuple):
    """The keys and values of an attention.

    Attributes:
        stream: the stream attended to.
        attention: the module.
        weights: (B, H, T, S) of items; rows sum to 1 without areas.
        values: (B, H, S, D).
    """

    stream: str
    attention: MultiHeadAttention
    weights: Tensor
    values: Tensor


class Sublayer(NamedTuple):
    """An attention sublayer with its residual connection and norm.

    Attributes:
        into: the updated stream.
        branches: what it attends to; two for a decoder over two encoder branches.
        norm: its LayerNorm.
        states: (B, T, E) of the stream before it.
        change: (B, T, E) the update added to them.
        mapped: whether more than a linear map lies between attention and residual connection.
    """

    into: str
    branches: tuple[Branch, ...]
    norm: ResidualNorm
    states: Tensor
    change: Tensor
    mapped: bool = False


def record_layers(batch: ModelBatch, method: str) -> list[tuple[Sublayer, ...]]:
    """Run a model and return the attention of its layers in execution order.

    Args:
        batch: B examples.
        method: name of the method for error messages.

    Returns:
        Lists of sublayers that update their streams together: both branches of a crossed encoder, else one.

    Raises:
        ConfigError: the model is not a Transformer, or its decoder is recurrent.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.explanations import TranslationBatch
        >>> from regard.models import build
        >>> model = build(TransformerConfig(encoder_layers=1, decoder_layers=1), source_size=11, target_size=11).eval()
        >>> pair = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2])
        >>> [(one.into, one.branches[0].stream) for (one,) in record_layers(TranslationBatch(model, *pair), "rollout")]
        [('source', 'source'), ('target', 'target'), ('target', 'source')]
    """
    _check_decoder(batch.model, method)
    encoder = getattr(batch.model, "encoder", None)
    of_second = {id(module) for module in encoder.second.modules()} if isinstance(encoder, TwoEncoders) else set[int]()
    calls: list[tuple[nn.Module, tuple[Any, ...]]] = []
    with ExitStack() as stack, torch.no_grad():
        for module in batch.model.modules():
            if isinstance(module, EncoderLayer | CrossedEncoderLayer | DecoderLayer):
                stack.enter_context(hooked(module, lambda args, _, called=module: calls.append((called, args))))
        batch.log_probs()
    written = hasattr(batch.model, "decoder")
    if not calls or (written and not any(isinstance(module, DecoderLayer) for module, _ in calls)):
        what = f"the recurrent decoder of {type(batch.model).__name__} has" if calls else f"{type(batch.model).__name__} is no Transformer:"
        raise ConfigError(
            f"{method}: {what} one attention without layers and residual connections around it; "
            "take weights, input-gradient, integrated-gradients or leave-one-out"
        )
    found: list[tuple[Sublayer, ...]] = []
    times: dict[int, int] = {}
    with torch.no_grad():
        for module, args in calls:
            times[id(module)] = times.get(id(module), 0) + 1
            match module:
                case EncoderLayer():
                    # Two texts of a classifier pass through the same layers, one after the other.
                    second = times[id(module)] > 1 or id(module) in of_second
                    found.append((_encoder(module, *args, stream=SECOND if second else SOURCE),))
                case CrossedEncoderLayer():
                    found.append(_crossed(module, *args))
                case DecoderLayer():
                    found += [(each,) for each in _decoder(module, args[0], args[1])]
    return found


def _check_decoder(model: Any, method: str) -> None:
    """Refuse a decoder that reads two encoders in another way than both at once."""
    if not isinstance(getattr(model, "encoder", None), TwoEncoders) or not isinstance(model.decoder, Decoder):
        return
    layer = model.decoder.layers[0]
    share = getattr(layer.cross_attention, "share", None)
    if model.encoder.flat or isinstance(layer, SerialDecoderLayer) or share is not None:
        raise ConfigError(
            f"{method}: not for a decoder that reads two encoders in series, as one source or under a third attention; take weights, "
            "input-gradient, integrated-gradients or leave-one-out"
        )


def _encoder(layer: EncoderLayer, states: Tensor, key_mask: Tensor | None, *, stream: str) -> Sublayer:
    given = layer.attention_norm.before(states)
    found = layer.attention(given, given, given, key_mask=key_mask, finite=True, need_weights=True)
    assert found.weights is not None
    branch = Branch(stream, layer.attention, found.weights, _values(layer.attention, given))
    return Sublayer(stream, (branch,), layer.attention_norm, states, found.context)


def _crossed(
    layer: CrossedEncoderLayer, first: Tensor, second: Tensor, first_mask: Tensor | None, second_mask: Tensor | None
) -> tuple[Sublayer, ...]:
    own = layer.residual == "own"
    # As in the layer: the left norm belongs to the stream that receives the left output.
    norms = (layer.left_norm, layer.right_norm) if own else (layer.right_norm, layer.left_norm)
    streams = zip(norms, ((first, first_mask), (second, second_mask)), strict=True)
    given = [hide_masked(norm.before(states), mask) for norm, (states, mask) in streams]
    found = []
    for side, (mask, name) in enumerate(((first_mask, SOURCE), (second_mask, SECOND))):
        attention = cast(MultiHeadAttention, layer.attention.left if side == 0 else layer.attention.right)
        keys, query = given[side], given[1 - side]
        answer = attention(query, keys, keys, key_mask=mask, need_weights=True)
        assert answer.weights is not None
        into = side if own else 1 - side
        branch = Branch(name, attention, answer.weights, _values(attention, keys))
        found.append(Sublayer((SOURCE, SECOND)[into], (branch,), norms[into], (first, second)[into], answer.context))
    return tuple(found)


def _decoder(layer: DecoderLayer, states: Tensor, memories: Sequence[HeadMemory]) -> list[Sublayer]:
    given = layer.attention_norm.before(states)
    own = layer.attention(given, given, given, causal=True, finite=True, need_weights=True)
    assert own.weights is not None
    branch = Branch(TARGET, layer.attention, own.weights, _values(layer.attention, given))
    first = Sublayer(TARGET, (branch,), layer.attention_norm, states, own.context)
    states = layer.attention_norm.after(states, own.context)
    query, cross = layer.cross_attention_norm.before(states), layer.cross_attention
    attentions = [cross.attention] if isinstance(cross, SourceAttention) else [cross.left, cross.right]  # pyright: ignore
    branches = []
    for attention, memory, name in zip(attentions, memories, (SOURCE, SECOND), strict=False):
        weights = cross_attend(attention, query, memory, need_weights=True).weights
        assert weights is not None
        branches.append(Branch(name, attention, weights, memory.value))
    change = cross(query, memories, need_weights=False).context
    mapped = not isinstance(cross, SourceAttention)
    return [first, Sublayer(TARGET, tuple(branches), layer.cross_attention_norm, states, change, mapped)]


def _values(attention: MultiHeadAttention, states: Tensor) -> Tensor:
    return attention.value(states).unflatten(-1, (attention.num_heads, attention.head_dim)).transpose(1, 2)
