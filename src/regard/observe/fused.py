"""The fused functions of `torch.nn`: what they are called with, and how their attention is seen without a change of what they return."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from regard.observe.weights import attention_weights


@cache
def open_multi_head() -> Callable[..., Any]:
    """Return `F.multi_head_attention_forward` as a function whose parts can be seen.

    The function itself asks first whether a mode wants to take its place, and would ask again. This is its code with the answer no: each
    function that it calls is then seen by itself.

    Example:
        >>> open_multi_head().__name__
        'multi_head_attention_forward'
    """
    whole = F.multi_head_attention_forward
    names = {**whole.__globals__, "has_torch_function": lambda args: False}
    opened = types.FunctionType(whole.__code__, names, whole.__name__, whole.__defaults__, whole.__closure__)
    opened.__kwdefaults__ = whole.__kwdefaults__
    return opened


class Packed(NamedTuple):
    """The self-attention of a fused function.

    Attributes:
        states: (B, T, E), perhaps nested: what queries are made of.
        keys: (B, S, E), likewise, of keys.
        num_heads: H.
        weight: (3 E, E), that of queries, keys and values; also tells which module it is.
        bias: (3 E,).
        mask: bool, True = hidden: (T, S), (B, S) or (B, H, T, S), as `mask_type` 0, 1 and 2 say.
        mask_type: see there.
    """

    states: Tensor
    keys: Tensor
    num_heads: int
    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None
    mask_type: int | None

    def weights(self, heads: Sequence[int] | None) -> Tensor:
        """Compute the weights (B, H, T, S) float32 on the CPU; T and S are those of the longest example where the states are nested."""
        with torch.inference_mode(False), torch.no_grad():
            (states, rows), (keys, real) = _padded(self.states), _padded(self.keys)
            allowed = None if real is None else real[:, None, None]  # (B, 1, 1, S)
            if self.mask is not None:
                hidden = self.mask.bool()
                allowed = ~(hidden[:, None, None] if self.mask_type == 1 else hidden)
            width = states.shape[-1]
            biases = (None, None) if self.bias is None else self.bias[: 2 * width].chunk(2)
            parts = zip((states, keys), self.weight[: 2 * width].chunk(2), biases, strict=True)
            query, key = (F.linear(x, weight, bias).unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x, weight, bias in parts)
            found = attention_weights(query, key, mask=allowed, heads=heads)  # of (B, H, T, D) and (B, H, S, D)
            return found if rows is None else found.masked_fill_(~rows[:, None, :, None].cpu(), 0.0)


def _padded(states: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return states (B, T, E) and, where they were nested, which places are real (B, T)."""
    if not states.is_nested:
        return states, None
    lengths = torch.tensor([len(each) for each in states.unbind()], device=states.device)
    states = torch.nested.to_padded_tensor(states, 0.0)
    return states, torch.arange(states.shape[1], device=states.device) < lengths.unsqueeze(1)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_heads: int, weight: Tensor, bias: Tensor | None, *rest: Any, **more: Any
) -> Packed:
    """Read the arguments of `torch._native_multi_head_attention`, which `nn.MultiheadAttention` calls when nothing is to be learned."""
    names = ("proj_weight", "proj_bias", "mask", "need_weights", "average_attn_weights", "mask_type")
    given = {**dict(zip(names, rest, strict=False)), **more}
    return Packed(query, key, num_heads, weight, bias, given.get("mask"), given.get("mask_type"))


def encoder_layer(src: Tensor, embed_dim: int, num_heads: int, weight: Tensor, bias: Tensor, *rest: Any, **more: Any) -> Packed:
    """Read the arguments of `torch._transformer_encoder_layer_fwd`, a whole `nn.TransformerEncoderLayer` when nothing is to be learned."""
    names = ("proj_weight", "proj_bias", "use_gelu", "norm_first", "eps", "norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2")
    names += ("ffn_weight_1", "ffn_bias_1", "ffn_weight_2", "ffn_bias_2", "mask", "mask_type")
    given = {**dict(zip(names, rest, strict=False)), **more}
    states = src
    if given["norm_first"]:
        with torch.no_grad():
            states = F.layer_norm(src, (embed_dim,), given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    return Packed(states, states, num_heads, weight, bias, given.get("mask"), given.get("mask_type"))


FUSED: dict[str, Callable[..., Packed]] = {
    "_native_multi_head_attention": packed_attention,
    "_transformer_encoder_layer_fwd": encoder_layer,
}

_has_torch_function = torch.overrides.has_torch_function
_kept: list[type[TorchFunctionMode]] = []


@contextmanager
def fast_path_kept(mode: type[TorchFunctionMode]) -> Iterator[None]:
    """Let torch's modules take the fused way as they would without a mode of this class.

    They leave it wherever a mode is active, for most modes could not see inside. Ours can; and the fused way gives other outputs than the
    slow one: other last digits, and zeros for padding.
    """

    def asks(args: Any) -> bool:
        if all(isinstance(active, mode) for active in _get_current_function_mode_stack()):
            return any(_overrides(type(arg)) for arg in args)
        return _has_torch_function(args)

    if not _kept:
        torch.overrides.has_torch_function = asks
    _kept.append(mode)
    try:
        yield
    finally:
        _kept.remove(mode)
        if not _kept:
            torch.overrides.has_torch_function = _has_torch_function


def _overrides(kind: type) -> bool:
    # Whether a class of tensors takes the place of torch's functions, as a parameter does not.
    own = getattr(kind, "__torch_function__", None)
    return kind is not Tensor and own is not None and own is not torch._C._disabled_torch_function_impl


def names_of_weights(model: nn.Module, names: dict[int, str]) -> dict[int, str]:
    """Name every `nn.MultiheadAttention` that is wanted by the identity of the weights that the functions it calls are given.

    Args:
        model: the model.
        names: the modules that are wanted, by identity.
    """
    found: dict[int, str] = {}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention) and id(module) in names:
            # A weight that is computed at each access has no identity.
            for own in (module._parameters.get("in_proj_weight"), module.out_proj._parameters.get("weight")):
                if own is not None:
                    found[id(own)] = names[id(module)]
    return found
