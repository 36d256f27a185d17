"""Conversion from and to torch's attention: layers and stacks, state dicts, masks; and Regard's attention inside torch modules."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import Areas, MultiHeadAttention
from regard.attention.torch_adapter import (
    Masks,
    check_methods,
    check_untied,
    freeze_like,
    heads_from_torch,
    heads_to_torch,
    masks_from_torch,
    masks_to_torch,
    trained_parts,
)
from regard.constructor_checks import checked
from regard.errors import ConfigError, ShapeError
from regard.models import Decoder, DecoderLayer, Encoder, EncoderLayer, FeedForward, SourceAttention
from regard.models.transformer_layers import Activation
from regard.ops.call_checks import takes_tensors

__all__ = [
    "Masks",
    "Stacks",
    "TorchAttention",
    "from_torch",
    "masks_from_torch",
    "masks_to_torch",
    "replace_attention",
    "state_from_torch",
    "state_to_torch",
    "to_torch",
]

HEADS = {"self_attn": "attention", "multihead_attn": "cross_attention.attention"}
MAPS = {"linear1": "feed_forward.hidden", "linear2": "feed_forward.output"}
ENCODER_NORMS = {"norm1": "attention_norm", "norm2": "feed_forward_norm"}
DECODER_NORMS = {"norm1": "attention_norm", "norm2": "cross_attention_norm", "norm3": "feed_forward_norm"}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu, "swish": F.silu}
FUNCTIONS: dict[Callable[..., Tensor], Activation] = {F.relu: "relu", torch.relu: "relu", F.gelu: "gelu", F.silu: "swish"}
OWN = (Encoder, Decoder, EncoderLayer, DecoderLayer)
CONVERTED = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
MODULES: dict[type[nn.Module], Activation] = {nn.ReLU: "relu", nn.GELU: "gelu", nn.SiLU: "swish"}


class Stacks(NamedTuple):
    """Both halves of a `torch.nn.Transformer`.

    Attributes:
        encoder: called with states (B, S, E) and a key_mask (B, S).
        decoder: called with states (B, T, E) and the sources, `[Source(states, key_mask)]`; it is causal.
    """

    encoder: Encoder
    decoder: Decoder


Ours = MultiHeadAttention | EncoderLayer | DecoderLayer | Encoder | Decoder | Stacks


@overload
def from_torch(theirs: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(theirs: nn.TransformerEncoderLayer) -> EncoderLayer: ...
@overload
def from_torch(theirs: nn.TransformerDecoderLayer) -> DecoderLayer: ...
@overload
def from_torch(theirs: nn.TransformerEncoder) -> Encoder: ...
@overload
def from_torch(theirs: nn.TransformerDecoder) -> Decoder: ...
@overload
def from_torch(theirs: nn.Transformer) -> Stacks: ...
def from_torch(theirs: nn.Module) -> Ours:
    """Build the equivalent Regard module with torch's weights, dropout, norms and activation.

    Inputs are (B, length, E) regardless of `batch_first`, and masks are Regard's: see `masks_from_torch`. A decoder is causal; torch's only
    with a `tgt_mask`. Without biases in torch (`bias=False`), those of feed-forward layers and norms are zeros and not trained.

    Args:
        theirs: a `MultiheadAttention`, `TransformerEncoderLayer`, `TransformerDecoderLayer`, a stack of them, or a `Transformer`.

    Raises:
        ConfigError: something cannot be converted; the message names it: another class, an activation other than ReLU, GELU and SiLU,
            `add_bias_kv`, `add_zero_attn`, a norm other than LayerNorm with weight, a linear layer or dropout of another class, a subclass
            with its own `forward`, weights that several parts share.

    Example:
        >>> theirs = nn.TransformerEncoderLayer(6, 2, 7, batch_first=True).eval()
        >>> x, key_mask = torch.ones(1, 3, 6), torch.tensor([[True, True, False]])
        >>> torch.allclose(from_torch(theirs)(x, key_mask)[0, 0], theirs(x, src_key_padding_mask=~key_mask)[0, 0], atol=1e-6)
        True
    """
    if isinstance(theirs, nn.MultiheadAttention):
        return MultiHeadAttention.from_torch(theirs)
    if not isinstance(theirs, CONVERTED):
        raise ConfigError(f"from_torch: {type(theirs).__name__} cannot be converted; expected nn.MultiheadAttention or nn.Transformer*")
    check_methods(theirs, *CONVERTED)
    check_untied(theirs)
    if isinstance(theirs, nn.Transformer):
        return Stacks(from_torch(theirs.encoder), from_torch(theirs.decoder))
    if isinstance(theirs, nn.TransformerEncoder):
        return Encoder([from_torch(cast(nn.TransformerEncoderLayer, layer)) for layer in theirs.layers], _norm(theirs)).train(
            theirs.training
        )
    if isinstance(theirs, nn.TransformerDecoder):
        return Decoder([from_torch(cast(nn.TransformerDecoderLayer, layer)) for layer in theirs.layers], _norm(theirs)).train(
            theirs.training
        )
    _check_parts(theirs)
    attention = MultiHeadAttention.from_torch(theirs.self_attn)
    sizes = theirs.linear1.in_features, theirs.linear1.out_features
    feed_forward = FeedForward(*sizes, dropout=theirs.dropout.p, activation=_activation(theirs))
    settings = {"pre": theirs.norm_first, "dropout": theirs.dropout1.p}
    if isinstance(theirs, nn.TransformerEncoderLayer):
        ours, norms = EncoderLayer(attention, feed_forward, **settings), ENCODER_NORMS
    else:
        cross_attention = SourceAttention(MultiHeadAttention.from_torch(theirs.multihead_attn))
        ours, norms = DecoderLayer(attention, cross_attention, feed_forward, **settings), DECODER_NORMS
    for number, (other, own) in enumerate(norms.items(), start=1):
        norm = ours.get_submodule(own)
        norm.eps, norm.dropout = theirs.get_submodule(other).eps, theirs.get_submodule(f"dropout{number}").p  # type: ignore[assignment]
    ours = ours.to(theirs.linear1.weight)
    state = state_from_torch(theirs.state_dict())
    for name, parameter in ours.named_parameters():
        if name.endswith(".bias") and name not in state:
            state[name] = torch.zeros_like(parameter)
            parameter.requires_grad_(False)
    ours.load_state_dict(state)
    freeze_like(ours, state_from_torch(trained_parts(theirs)))
    return ours.train(theirs.training)


def _check_parts(layer: nn.Module) -> None:
    # A replaced submodule computes something else, whatever its parameter names.
    wanted = {"linear": nn.Linear, "norm": nn.LayerNorm, "dropout": nn.Dropout}
    for name, part in layer.named_children():
        kind = wanted.get(name.rstrip("0123456789"))
        if kind is None:
            continue
        names = set(dict(part.named_parameters()))
        if type(part) is not kind or (kind is not nn.Dropout and not {"weight"} <= names <= {"weight", "bias"}):
            without = " without a weight" if type(part) is kind else ""
            raise ConfigError(
                f"{type(layer).__name__}: its {name} {type(part).__name__}{without} cannot be converted; expected a {kind.__name__}"
            )


def _norm(stack: nn.Module) -> nn.LayerNorm | None:
    norm = stack.norm
    if norm is not None and (type(norm) is not nn.LayerNorm or norm.weight is None):
        raise ConfigError(f"{type(stack).__name__}: its norm {type(norm).__name__} cannot be converted; expected a LayerNorm or None")
    return copy.deepcopy(norm)


def _activation(layer: nn.Module) -> Activation:
    found: Any = layer.activation
    name = MODULES.get(type(found)) if isinstance(found, nn.Module) else FUNCTIONS.get(found)
    if name is None or (isinstance(found, nn.GELU) and found.approximate != "none"):
        shown = getattr(found, "__name__", None) or repr(found)
        raise ConfigError(f"{type(layer).__name__}: its activation {shown} cannot be converted; expected ReLU, GELU or SiLU")
    return name


@overload
def to_torch(ours: MultiHeadAttention, *, batch_first: bool = True) -> nn.MultiheadAttention: ...
@overload
def to_torch(ours: EncoderLayer, *, batch_first: bool = True) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch(ours: DecoderLayer, *, batch_first: bool = True) -> nn.TransformerDecoderLayer: ...
@overload
def to_torch(ours: Encoder, *, batch_first: bool = True) -> nn.TransformerEncoder: ...
@overload
def to_torch(ours: Decoder, *, batch_first: bool = True) -> nn.TransformerDecoder: ...
@overload
def to_torch(ours: Stacks, *, batch_first: bool = True) -> nn.Transformer: ...
@takes_tensors
def to_torch(ours: Ours, *, batch_first: bool = True) -> nn.Module:
    """Build the equivalent torch module with these weights; the inverse of `from_torch`.

    Raises:
        ConfigError: torch has no counterpart; the message names it: areas, other scores, cross-attention to several sources.

    Example:
        >>> layer = EncoderLayer(MultiHeadAttention(6, 2), FeedForward(6, 7), pre=True, dropout=0.0)
        >>> to_torch(layer).norm_first
        True
    """
    if isinstance(ours, MultiHeadAttention):
        return ours.to_torch(batch_first=batch_first)
    if isinstance(ours, OWN):
        check_methods(ours, *OWN)
        check_untied(ours)
    if isinstance(ours, Stacks):
        encoder, decoder = (to_torch(half, batch_first=batch_first) for half in ours)
        own = ours.decoder.layers[0].get_submodule("attention")
        assert isinstance(own, MultiHeadAttention)
        sizes = own.output.out_features, own.num_heads
        theirs = nn.Transformer(*sizes, custom_encoder=encoder, custom_decoder=decoder, batch_first=batch_first)
        # Its constructor initializes all weights anew.
        states = (half.state_dict(prefix=f"{name}.") for name, half in ours._asdict().items())
        theirs.load_state_dict(state_to_torch({key: x for state in states for key, x in state.items()}))
        return theirs.train(ours.encoder.training)
    if isinstance(ours, Encoder | Decoder):
        layers = [to_torch(layer, batch_first=batch_first) for layer in ours.layers]  # type: ignore[call-overload]
        norm = copy.deepcopy(ours.norm)
        stack = (
            nn.TransformerEncoder(layers[0], 0, norm, enable_nested_tensor=False)
            if isinstance(ours, Encoder)
            else nn.TransformerDecoder(layers[0], 0, norm)
        )
        stack.layers, stack.num_layers = nn.ModuleList(layers), len(layers)
        return stack.train(ours.training)
    if not isinstance(ours, EncoderLayer | DecoderLayer):
        raise ConfigError(f"to_torch: {type(ours).__name__} cannot be converted; expected what from_torch returns")
    ours.attention.to_torch()  # names what it cannot convert
    settings = {"activation": ACTIVATIONS[ours.feed_forward.activation], "norm_first": ours.attention_norm.pre, "batch_first": batch_first}
    sizes = ours.attention.output.out_features, ours.attention.num_heads, ours.feed_forward.hidden.out_features
    if isinstance(ours, EncoderLayer):
        theirs, norms = nn.TransformerEncoderLayer(*sizes, **settings), ENCODER_NORMS
    else:
        if not isinstance(ours.cross_attention, SourceAttention):
            raise ConfigError(
                f"DecoderLayer: its cross_attention {type(ours.cross_attention).__name__} cannot be converted; expected a SourceAttention"
            )
        theirs, norms = nn.TransformerDecoderLayer(*sizes, **settings), DECODER_NORMS
        theirs.multihead_attn = ours.cross_attention.attention.to_torch(batch_first=batch_first)
    theirs.self_attn = ours.attention.to_torch(batch_first=batch_first)
    theirs.dropout.p = ours.feed_forward.dropout
    for number, (other, own) in enumerate(norms.items(), start=1):
        norm = ours.get_submodule(own)
        theirs.get_submodule(other).eps = norm.eps
        theirs.get_submodule(f"dropout{number}").p = norm.dropout
    theirs = theirs.to(ours.feed_forward.hidden.weight)
    theirs.load_state_dict(state_to_torch(ours.state_dict()))
    freeze_like(theirs, state_to_torch(trained_parts(ours)))
    return theirs.train(ours.training)


def state_from_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the state dict of a `torch.nn.MultiheadAttention`, a layer, a stack or a `Transformer` to Regard's names.

    Raises:
        ConfigError: names a parameter that has no counterpart.

    Example:
        >>> sorted(state_from_torch(nn.MultiheadAttention(4, 2).state_dict()))[:2]
        ['key.bias', 'key.weight']
    """
    found: dict[str, Tensor] = {}
    heads: dict[str, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        match = re.fullmatch(r"(|.*\.)(self_attn|multihead_attn|linear1|linear2|norm1|norm2|norm3)\.(.*)", name)
        if match is None and re.fullmatch(r"(|.*\.)norm\.(weight|bias)", name):
            found[name] = tensor
        elif match is None:
            heads.setdefault("", {})[name] = tensor
        elif (part := match[2]) in HEADS:
            heads.setdefault(f"{match[1]}{HEADS[part]}.", {})[match[3]] = tensor
        else:
            norms = DECODER_NORMS if any(other.startswith(f"{match[1]}multihead_attn.") for other in state) else ENCODER_NORMS
            found[f"{match[1]}{(MAPS | norms)[part]}.{match[3]}"] = tensor
    for prefix, own in heads.items():
        found |= {prefix + name: tensor for name, tensor in heads_from_torch(own).items()}
    return found


def state_to_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a state dict of modules from `from_torch` to torch's names.

    Raises:
        ConfigError: names a parameter that has no counterpart: of areas, scores, cross_attentions of several sources.

    Example:
        >>> sorted(state_to_torch(MultiHeadAttention(4, 2).state_dict()))[:2]
        ['in_proj_bias', 'in_proj_weight']
    """
    found: dict[str, Tensor] = {}
    heads: dict[str, dict[str, Tensor]] = {}
    parts = r"(?:cross_attention\.)?attention|feed_forward\.(?:hidden|output)|(?:attention|cross_attention|feed_forward)_norm"
    theirs = {own: other for other, own in (HEADS | MAPS).items()}
    for name, tensor in state.items():
        match = re.fullmatch(rf"(|(?:.*?\.)??)({parts})\.(.*)", name)
        if match is None and re.fullmatch(r"(|.*\.)norm\.(weight|bias)", name):
            found[name] = tensor
        elif match is None:
            heads.setdefault("", {})[name] = tensor
        elif (part := match[2]) in HEADS.values():
            heads.setdefault(f"{match[1]}{theirs[part]}.", {})[match[3]] = tensor
        else:
            norms = DECODER_NORMS if any(other.startswith(f"{match[1]}cross_attention.") for other in state) else ENCODER_NORMS
            found[f"{match[1]}{(theirs | {own: other for other, own in norms.items()})[part]}.{match[3]}"] = tensor
    for prefix, own in heads.items():
        found |= {prefix + name: tensor for name, tensor in heads_to_torch(own).items()}
    return found


class TorchAttention(nn.Module):
    """Drop-in replacement for `torch.nn.MultiheadAttention`: its arguments, masks and results, with Regard's attention.

    `replace_attention` inserts it into whole modules.

    Args:
        attention: the attention.
        batch_first: inputs and outputs are (B, length, E), else (length, B, E), as in torch.

    Parameters: `attention.*`.

    Example:
        >>> theirs = nn.MultiheadAttention(6, 2, batch_first=True)
        >>> attention = TorchAttention(MultiHeadAttention.from_torch(theirs, areas=Areas(3)), batch_first=True)
        >>> x, padding = torch.ones(1, 3, 6), torch.tensor([[False, False, True]])
        >>> attention(x, x, x, key_padding_mask=padding)[1].shape
        torch.Size([1, 3, 3])
    """

    # torch's layers read it: if it is False they do not bypass this module through a fused path with their own attention's weights.
    batch_first = False

    @checked
    def __init__(self, attention: MultiHeadAttention, *, batch_first: bool = False) -> None:
        super().__init__()
        self.attention = attention
        self.transposed = not batch_first

    @takes_tensors
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend like `torch.nn.MultiheadAttention.forward`: return context and weights (B, T, S), or (B, H, T, S) if not averaged.

        A query with nothing to attend to gets zero weights; torch returns NaN.

        Raises:
            ShapeError: see `masks_from_torch`; or `is_causal` without attn_mask for different numbers of queries and keys.
        """
        batched = query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif self.transposed:
            # Keep identity: equal inputs can share a product.
            same_key, same_value = key is query, value is key
            query = query.transpose(0, 1)
            key = query if same_key else key.transpose(0, 1)
            value = key if same_value else value.transpose(0, 1)
        masks = masks_from_torch(attn_mask, key_padding_mask, is_causal=is_causal, num_heads=self.attention.num_heads)
        if masks.causal and query.shape[1] != key.shape[1]:
            raise ShapeError(f"is_causal: without an attn_mask {query.shape[1]} queries cannot be placed among {key.shape[1]} keys")
        context, weights = self.attention(query, key, value, **masks._asdict(), need_weights=need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return context.squeeze(0), None if weights is None else weights.squeeze(0)
        return context.transpose(0, 1) if self.transposed else context, weights


def replace_attention(module: nn.Module, *, areas: Callable[[], Areas] | None = None) -> nn.Module:
    """Replace every `torch.nn.MultiheadAttention` in a module by Regard's attention with torch's weights, in place.

    Args:
        module: any module; its layers are called as before, with torch's masks.
        areas: returns the areas of each attention, such as `lambda: Areas(3)`; None: none.

    Returns:
        The module.

    Raises:
        ConfigError: there is nothing to replace, something cannot be converted (a subclass with its own `forward`, hooks, weights shared
            with another part), or `areas` is not callable; the module is as it was.

    Example:
        >>> layer = replace_attention(nn.TransformerEncoderLayer(6, 2, 7), areas=lambda: Areas(3))
        >>> type(layer.self_attn).__name__, layer(torch.ones(5, 1, 6)).shape
        ('TorchAttention', torch.Size([5, 1, 6]))
    """
    if areas is not None and (isinstance(areas, nn.Module) or not callable(areas)):
        raise ConfigError(f"replace_attention: areas {areas!r}: expected a function that makes areas, such as lambda: Areas(3)")
    found = [(name, part) for name, part in module.named_modules(remove_duplicate=False) if isinstance(part, nn.MultiheadAttention)]
    if not found or found[0][0] == "":
        raise ConfigError(f"replace_attention: {type(module).__name__} holds no torch.nn.MultiheadAttention; for one alone see from_torch")
    parts = dict.fromkeys(part for _, part in found)
    check_untied(module, parts=parts)
    made = {
        part: TorchAttention(
            MultiHeadAttention.from_torch(part, areas=None if areas is None else areas()), batch_first=part.batch_first
        ).train(part.training)
        for part in parts
    }
    for name, part in found:
        module.set_submodule(name, made[part])
    for part in module.modules():
        if isinstance(part, nn.TransformerEncoder):
            part.use_nested_tensor = False  # a fused path with weights that no longer exist
    return module
