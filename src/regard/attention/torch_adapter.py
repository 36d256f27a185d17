"""Convert masks and weights from and to `torch.nn.MultiheadAttention`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention.areas import Areas
from regard.errors import ConfigError, ShapeError
from regard.ops.call_checks import takes_tensors
from regard.ops.masks import check_key_mask

if TYPE_CHECKING:
    from regard.attention.multi_head import MultiHeadAttention

PARTS = ("query", "key", "value")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks", "_state_dict_pre_hooks")


class Masks(NamedTuple):
    """The masks of one call in Regard's convention, named as the arguments of `MultiHeadAttention.forward`.

    Attributes:
        key_mask: (B, S) bool, True = may attend, or None.
        mask: (1, T, S) or (B, H, T, S) bool, likewise.
        causal: hide later positions.

    Example:
        >>> Masks(causal=True)._asdict()
        {'key_mask': None, 'mask': None, 'causal': True}
    """

    key_mask: Tensor | None = None
    mask: Tensor | None = None
    causal: bool = False


@takes_tensors
def masks_from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, *, is_causal: bool = False, num_heads: int = 1
) -> Masks:
    """Convert masks of `torch.nn.MultiheadAttention` (True = hidden) to Regard's (True = may attend).

    Args:
        attn_mask: (T, S), or (B * num_heads, T, S). Boolean, or additive with values 0 and -inf only.
        key_padding_mask: (B, S), likewise.
        is_causal: attn_mask is causal; without attn_mask, `causal` is set, in which the last of T queries is the last of S keys. Torch's
            kernel places the first ones together, which differs unless T = S.
        num_heads: H, for an attn_mask of three axes.

    Returns:
        `Masks`, for `MultiHeadAttention.forward(query, key, value, **masks._asdict())`.

    Raises:
        ShapeError: axes that torch does not accept, or additive values other than 0 and -inf.

    Example:
        >>> masks_from_torch(key_padding_mask=torch.tensor([[False, False, True]])).key_mask
        tensor([[ True,  True, False]])
        >>> masks_from_torch(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]])).mask
        tensor([[[ True, False],
                 [ True,  True]]])
    """
    key_mask = None if key_padding_mask is None else _shown(key_padding_mask, "key_padding_mask", (2,))
    if attn_mask is None:
        return Masks(key_mask, None, is_causal)
    mask = _shown(attn_mask, "attn_mask", (2, 3))
    if mask.dim() == 2:
        return Masks(key_mask, mask[None])
    if mask.shape[0] % num_heads:
        raise ShapeError(f"attn_mask: expected (B * num_heads, T, S) with num_heads = {num_heads}, found {tuple(mask.shape)}")
    return Masks(key_mask, mask.unflatten(0, (-1, num_heads)))


def masks_to_torch(mask: Tensor | None = None, key_mask: Tensor | None = None, *, num_heads: int = 1) -> dict[str, Tensor | None]:
    """Convert Regard's masks to those of `torch.nn.MultiheadAttention`.

    Args:
        mask: (T, S) as mask[None], (B, T, S) or (B, H, T, S) bool, True = may attend.
        key_mask: (B, S) bool, likewise.
        num_heads: H, to repeat a mask (B, T, S).

    Returns:
        `attn_mask` and `key_padding_mask`, True = hidden.

    Raises:
        ShapeError: a mask that is not boolean, or has other axes.

    Example:
        >>> masks_to_torch(key_mask=torch.tensor([[True, True, False]]))["key_padding_mask"]
        tensor([[False, False,  True]])
    """
    if key_mask is not None:
        check_key_mask(key_mask, key_mask.shape if key_mask.dim() == 2 else (-1, -1), "masks_to_torch")
    if mask is None:
        return {"attn_mask": None, "key_padding_mask": None if key_mask is None else ~key_mask}
    if mask.dtype != torch.bool or mask.dim() not in (3, 4):
        raise ShapeError(f"masks_to_torch: mask must be boolean, (B, T, S) or (B, H, T, S), found {mask.dtype} {tuple(mask.shape)}")
    if mask.dim() == 3 and mask.shape[0] == 1:
        hidden = ~mask[0]
    else:
        heads = mask.unsqueeze(1).expand(-1, num_heads, -1, -1) if mask.dim() == 3 else mask
        hidden = ~heads.flatten(0, 1)
    return {"attn_mask": hidden, "key_padding_mask": None if key_mask is None else ~key_mask}


def _shown(hidden: Tensor, name: str, axes: tuple[int, ...]) -> Tensor:
    if hidden.dim() not in axes:
        raise ShapeError(f"{name}: expected {' or '.join(map(str, axes))} axes, found {tuple(hidden.shape)}")
    if hidden.dtype == torch.bool:
        return ~hidden
    if not hidden.is_floating_point():
        raise ShapeError(f"{name}: expected bool (True = hidden) or numbers that are added to the scores, found {hidden.dtype}")
    if not ((hidden == 0) | hidden.isneginf()).all():
        raise ShapeError(f"{name}: numbers other than 0 and -inf would be added to the scores, which these attentions cannot do")
    return hidden == 0


def heads_from_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the state dict of a `torch.nn.MultiheadAttention` to that of a `MultiHeadAttention`.

    Raises:
        ConfigError: a weight without counterpart: `bias_k` and `bias_v` (of `add_bias_kv=True`), or an unknown name.

    Example:
        >>> sorted(heads_from_torch(nn.MultiheadAttention(4, 2, bias=False).state_dict()))
        ['key.weight', 'output.weight', 'query.weight', 'value.weight']
    """
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in ("in_proj_weight", "in_proj_bias"):
            kind = name.removeprefix("in_proj_")
            found |= {f"{part}.{kind}": each.clone() for part, each in zip(PARTS, tensor.chunk(3), strict=True)}
        elif name in ("q_proj_weight", "k_proj_weight", "v_proj_weight"):
            found[f"{PARTS['qkv'.index(name[0])]}.weight"] = tensor
        elif name in ("out_proj.weight", "out_proj.bias"):
            found[name.replace("out_proj", "output")] = tensor
        else:
            extra = " (add_bias_kv=True)" if name in ("bias_k", "bias_v") else ""
            raise ConfigError(f"torch.nn.MultiheadAttention: {name}{extra} cannot be converted, MultiHeadAttention has nothing like it")
    return found


def heads_to_torch(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the state dict of a `MultiHeadAttention` to that of a `torch.nn.MultiheadAttention`.

    Raises:
        ConfigError: a weight without counterpart: `areas.*`, `score.*`, or heads that are not E / H wide.

    Example:
        >>> from regard.attention import MultiHeadAttention
        >>> sorted(heads_to_torch(MultiHeadAttention(4, 2, memory_dim=6, bias=False).state_dict()))
        ['k_proj_weight', 'out_proj.weight', 'q_proj_weight', 'v_proj_weight']
    """
    known = {f"{part}.{kind}" for part in (*PARTS, "output") for kind in ("weight", "bias")}
    if unknown := sorted(set(state) - known):
        raise ConfigError(f"MultiHeadAttention: {unknown[0]} cannot be converted, torch.nn.MultiheadAttention has nothing like it")
    weights = [state[f"{part}.weight"] for part in PARTS]
    width, embed_dim = weights[0].shape
    if width != embed_dim:
        raise ConfigError(
            f"MultiHeadAttention: heads of {width} numbers together cannot be converted, torch's have embed_dim = {embed_dim}"
        )
    found = {name.replace("output", "out_proj"): tensor for name, tensor in state.items() if name.startswith("output.")}
    if all(weight.shape == weights[0].shape for weight in weights):
        found["in_proj_weight"] = torch.cat(weights)
    else:
        found |= {f"{letter}_proj_weight": weight for letter, weight in zip("qkv", weights, strict=True)}
    if "query.bias" in state:
        found["in_proj_bias"] = torch.cat([state[f"{part}.bias"] for part in PARTS])
    return found


@torch.no_grad()
def build_from_torch(kind: type[MultiHeadAttention], theirs: nn.MultiheadAttention, areas: Areas | None) -> MultiHeadAttention:
    """Implement `MultiHeadAttention.from_torch`."""
    if not isinstance(theirs, nn.MultiheadAttention):
        raise ConfigError(f"from_torch: expected a torch.nn.MultiheadAttention, found {type(theirs).__name__}")
    check_methods(theirs, nn.MultiheadAttention)
    check_untied(theirs)
    if theirs.add_zero_attn:
        raise ConfigError("torch.nn.MultiheadAttention: add_zero_attn=True cannot be converted, MultiHeadAttention has nothing like it")
    state = heads_from_torch(theirs.state_dict())
    sizes: dict[str, Any] = {"memory_dim": theirs.kdim, "value_dim": theirs.vdim, "bias": theirs.in_proj_bias is not None}
    ours = kind(theirs.embed_dim, theirs.num_heads, **sizes, dropout=theirs.dropout, areas=areas).to(theirs.out_proj.weight)
    own = {name: tensor for name, tensor in ours.state_dict().items() if name.startswith("areas.")}
    ours.load_state_dict(state | own)
    freeze_like(ours, heads_from_torch(trained_parts(theirs)))
    return ours.train(theirs.training)


def check_methods(theirs: nn.Module, *kinds: type[nn.Module]) -> None:
    """Check that a module computes what its class does.

    Args:
        theirs: an instance of one of the classes.
        kinds: classes that can be converted, the nearest first.

    Raises:
        ConfigError: a subclass, or the module itself, has another `forward` or another block that `forward` calls; or a part of it has a
            `forward` of its own, or hooks.
    """
    kind = next(kind for kind in kinds if isinstance(theirs, kind))
    for name in ("forward", "_sa_block", "_mha_block", "_ff_block"):
        if getattr(type(theirs), name, None) is not getattr(kind, name, None) or name in vars(theirs):
            raise ConfigError(f"{type(theirs).__name__}: its own {name} cannot be converted; expected a plain {kind.__name__}")
    for name, part in theirs.named_modules():
        if "forward" in vars(part) or any(vars(part).get(hooks) for hooks in HOOKS):
            where = f"{name}: " if name else ""
            raise ConfigError(f"{type(theirs).__name__}: {where}hooks and patched methods would be lost; set them after the conversion")


def check_untied(module: nn.Module, *, parts: Container[nn.Module] | None = None) -> None:
    """Check that no conversion unties weights.

    Args:
        module: the module.
        parts: the submodules that are converted, each once; None: all are, each time they occur.

    Raises:
        ConfigError: a weight of a part that is converted is shared with another; the message names both.
    """
    owners: dict[int, tuple[str, nn.Module]] = {}
    converted = {id(inner) for part in module.modules() if parts is not None and part in parts for inner in part.modules()}
    for name, part in module.named_modules(remove_duplicate=parts is not None):
        for own, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            other, owner = owners.setdefault(id(parameter), (f"{name}.{own}", part))
            touched = parts is None or bool({id(part), id(owner)} & converted)
            if touched and other != f"{name}.{own}":
                raise ConfigError(f"{type(module).__name__}: {other} and {name}.{own} are one weight: the conversion would untie them")


def trained_parts(module: nn.Module) -> dict[str, Tensor]:
    """Return for each parameter a tensor of its shape: True where it is trained, False where it is frozen."""
    return {name: torch.full_like(own, own.requires_grad, dtype=torch.bool) for name, own in module.named_parameters()}


def freeze_like(module: nn.Module, trained: Mapping[str, Tensor]) -> None:
    """Freeze the parameters that `trained_parts` of another module, converted, has as frozen."""
    for name, own in module.named_parameters():
        if name in trained:
            own.requires_grad_(bool(trained[name].any()))


@torch.no_grad()
def build_to_torch(ours: MultiHeadAttention, *, batch_first: bool) -> nn.MultiheadAttention:
    """Implement `MultiHeadAttention.to_torch`."""
    from regard.attention.multi_head import MultiHeadAttention

    check_methods(ours, MultiHeadAttention)
    check_untied(ours)
    for name, part in (("areas", ours.areas), ("score", ours.score)):
        if part is not None:
            raise ConfigError(f"MultiHeadAttention: {name} cannot be converted, torch.nn.MultiheadAttention has nothing like it")
    if ours.normalizer != "softmax":
        raise ConfigError(
            f"MultiHeadAttention: normalizer {ours.normalizer!r} cannot be converted, torch.nn.MultiheadAttention has the softmax only"
        )
    state = heads_to_torch(ours.state_dict())
    sizes: dict[str, Any] = {"kdim": ours.key.in_features, "vdim": ours.value.in_features, "bias": ours.query.bias is not None}
    made = nn.MultiheadAttention(ours.output.out_features, ours.num_heads, ours.dropout, **sizes, batch_first=batch_first)
    theirs = made.to(ours.output.weight)
    theirs.load_state_dict(state)
    freeze_like(theirs, heads_to_torch(trained_parts(ours)))
    return theirs.train(ours.training)
