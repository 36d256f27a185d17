"""The fused functions of `torch.nn`: their arguments, and how their attention is recorded without changing their result."""

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
    """Return `F.multi_head_attention_forward` as a function whose inner calls can be recorded.

    The function itself first checks for an active mode and would repeat that check. This copy answers it with no, so that each function it
    calls is recorded.

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
    """Self-attention of a fused function.

    Attributes:
        states: (B, T, E), nested or not: the inputs of the queries.
        keys: (B, S, E), likewise: the inputs of the keys.
        num_heads: H.
        weight: (3 E, E), projections of queries, keys and values; also identifies the module.
        bias: (3 E,).
        mask: bool, True = hidden: (T, S), (B, S) or (B, H, T, S) for `mask_type` 0, 1 and 2.
        mask_type: see `mask`.
    """

    states: Tensor
    keys: Tensor
    num_heads: int
    weight: Tensor
    bias: Tensor | None
    mask: Tensor | None
    mask_type: int | None

    def weights(self, heads: Sequence[int] | None) -> Tensor:
        """Compute the weights (B, H, T, S) float32 on the CPU; for nested states T and S are the longest lengths."""
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
    """Return states (B, T, E) and, if they were nested, which positions are real (B, T)."""
    if not states.is_nested:
        return states, None
    lengths = torch.tensor([len(each) for each in states.unbind()], device=states.device)
    states = torch.nested.to_padded_tensor(states, 0.0)
    return states, torch.arange(states.shape[1], device=states.device) < lengths.unsqueeze(1)


def packed_attention(
    query: Tensor, key: Tensor, value: Tensor, embed_dim: int, num_heads: int, weight: Tensor, bias: Tensor | None, *rest: Any, **more: Any
) -> Packed:
    """Read the arguments of `torch._native_multi_head_attention`, which `nn.MultiheadAttention` calls in inference."""
    names = ("proj_weight", "proj_bias", "mask", "need_weights", "average_attn_weights", "mask_type")
    given = {**dict(zip(names, rest, strict=False)), **more}
    return Packed(query, key, num_heads, weight, bias, given.get("mask"), given.get("mask_type"))


def encoder_layer(src: Tensor, embed_dim: int, num_heads: int, weight: Tensor, bias: Tensor, *rest: Any, **more: Any) -> Packed:
    """Read the arguments of `torch._transformer_encoder_layer_fwd`, a whole `nn.TransformerEncoderLayer` in inference."""
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
    """Let torch's modules use their fused path as they would without a mode of this class.

    Torch avoids that path under any active mode, because most modes cannot look inside. The fused path returns slightly different values:
    other last digits, and zeros for padding.
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
    # Whether a tensor class overrides torch functions; parameters do not.
    own = getattr(kind, "__torch_function__", None)
    return kind is not Tensor and own is not None and own is not torch._C._disabled_torch_function_impl


def names_of_weights(model: nn.Module, names: dict[int, str]) -> dict[int, list[str]]:
    """Map the identity of the weights that each `nn.MultiheadAttention` passes to its functions to its name.

    Several modules may share weights: their names are in order.

    Args:
        model: the model.
        names: names of the wanted modules, by identity; others keep those of the model.
    """
    found: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            # A weight computed at each access has no identity.
            for own in (module._parameters.get("in_proj_weight"), module.out_proj._parameters.get("weight")):
                if own is not None:
                    found.setdefault(id(own), []).append(names.get(id(module), name))
    return found
