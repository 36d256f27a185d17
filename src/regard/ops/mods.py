"""Ready functions for `regard.ops.attention` and FlexAttention: score biases and caps, masks, and combinations.

Each returns a function of indices. `and_masks` and `or_masks` combine masks, `in_order` scores.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.ops.mod_calls import Mod, Wanted, with_sizes


def alibi(slopes: Tensor) -> Mod:
    """Add a linear distance penalty (ALiBi): score - slope_h |q - kv|.

    Press et al. 2022 (arXiv:2108.12409), section 3. With a causal mask the distance is q - kv, as published.

    Args:
        slopes: (H,), such as from `alibi_slopes`; may be learned.

    Example:
        >>> alibi(torch.tensor([0.5]))(torch.zeros(()), 0, 0, torch.tensor(3), torch.tensor([1, 3])).tolist()
        [-1.0, 0.0]
    """
    _check_axes("alibi", "slopes", slopes, "(H,)", 1)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score - slopes[h] * (q_idx - kv_idx).abs()

    return with_sizes(score_mod, Wanted("alibi", "slopes", tuple(slopes.shape), ("H",)))


def alibi_slopes(num_heads: int, *, device: torch.device | str | None = None) -> Tensor:
    """Make the slopes of ALiBi: 2^(-8/H), 2^(-16/H), ... if H is a power of two.

    For other numbers, those of the next lower power P, then every other one of 2 P.

    Press et al. 2022 (arXiv:2108.12409), section 3, and the authors' code for other numbers of heads.

    Args:
        num_heads: H.
        device: device of the result.

    Returns:
        (H,) float32.

    Example:
        >>> alibi_slopes(3).tolist()
        [0.0625, 0.00390625, 0.25]
    """
    _check_count("alibi_slopes", "num_heads", num_heads)
    if num_heads < 1:
        raise ConfigError(f"alibi_slopes: num_heads must be at least 1, found {num_heads}")
    lower = 2 ** (num_heads.bit_length() - 1)
    steps = [8 * n / lower for n in range(1, lower + 1)] + [4 * n / lower for n in range(1, 2 * (num_heads - lower), 2)]
    return torch.tensor([2.0**-step for step in steps], device=device)


def relative_bias(table: Tensor) -> Mod:
    """Add a learned bias per head and clipped distance.

        score + table[h, clamp(kv - q, -R, R) + R]

    Clipped as in Shaw et al. 2018 (arXiv:1803.02155), scalars as in Raffel et al. 2020 (arXiv:1910.10683), section 2.1.

    Args:
        table: (H, 2 R + 1).

    Example:
        >>> mod = relative_bias(torch.tensor([[1.0, 2.0, 3.0]]))
        >>> mod(torch.zeros(()), torch.tensor(0), torch.tensor(0), torch.tensor(5), torch.tensor([1, 5, 6])).tolist()
        [1.0, 2.0, 3.0]
    """
    _check_axes("relative_bias", "table", table, "(H, 2 R + 1)", 2)
    if table.shape[1] % 2 == 0:
        raise ShapeError(f"relative_bias: table must be (H, 2 R + 1), an odd number of distances, found {tuple(table.shape)}")
    reach = table.shape[1] // 2

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return score + table[h, (kv_idx - q_idx).clamp(-reach, reach) + reach]

    return with_sizes(score_mod, Wanted("relative_bias", "table", tuple(table.shape), ("H", "")))


def soft_cap(cap: float) -> Mod:
    """Keep scores within -cap and cap: cap tanh(score / cap).

    Gemma Team 2024 (arXiv:2408.00118), section 2.

    Args:
        cap: above 0.

    Example:
        >>> soft_cap(2.0)(torch.tensor([0.0, 100.0]), 0, 0, 0, 0).tolist()
        [0.0, 2.0]
    """
    if isinstance(cap, bool) or not hasattr(cap, "__float__") or not cap > 0:
        raise ConfigError(f"soft_cap: cap must be a number above 0, found {cap!r}")

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return score_mod


def in_order(*score_mods: Mod) -> Mod:
    """Apply several score changes in order.

    Example:
        >>> in_order(soft_cap(2.0), alibi(torch.tensor([0.5])))(torch.zeros(()), 0, 0, torch.tensor(3), torch.tensor([1])).tolist()
        [-1.0]
    """
    _check_some("in_order", score_mods, "change of scores")

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        for mod in score_mods:
            score = mod(score, b, h, q_idx, kv_idx)
        return score

    return score_mod


def causal(offset: int = 0) -> Mod:
    """Allow the query's own and earlier positions: kv <= q + offset.

    Args:
        offset: S - T aligns the last query with the last key, as `regard.ops.causal_mask` does.

    Example:
        >>> causal()(0, 0, torch.tensor(1), torch.arange(3)).tolist()
        [True, True, False]
    """
    _check_count("causal", "offset", offset)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx <= q_idx + offset

    return mask_mod


def sliding_window(left: int, right: int = 0) -> Mod:
    """Allow a window around the query: -left <= kv - q <= right.

    Beltagy et al. 2020 (arXiv:2004.05150), section 3.1.

    Args:
        left: at least 0.
        right: at least 0; 0 makes the window causal.

    Example:
        >>> sliding_window(1)(0, 0, torch.tensor(2), torch.arange(4)).tolist()
        [False, True, True, False]
    """
    for name, size in (("left", left), ("right", right)):
        _check_count("sliding_window", name, size)
    if min(left, right) < 0:
        raise ConfigError(f"sliding_window: left and right must be at least 0, found {left} and {right}")

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        distance = kv_idx - q_idx
        return (distance >= -left) & (distance <= right)

    return mask_mod


def document(targets: Tensor, sources: Tensor | None = None) -> Mod:
    """Allow keys of the query's own document: several documents packed into one row.

    Args:
        targets: (B, T) integers, the document of each query.
        sources: (B, S), the document of each key; None: `targets`.

    Example:
        >>> document(torch.tensor([[0, 0, 1]]))(torch.tensor(0), 0, torch.tensor(1), torch.arange(3)).tolist()
        [True, True, False]
    """
    keys = targets if sources is None else sources
    _check_axes("document", "targets", targets, "(B, T)", 2)
    _check_axes("document", "sources", keys, "(B, S)", 2)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return targets[b, q_idx] == keys[b, kv_idx]

    wanted = [Wanted("document", "targets", tuple(targets.shape), ("B", "T")), Wanted("document", "sources", tuple(keys.shape), ("B", "S"))]
    return with_sizes(mask_mod, *wanted)


def prefix_lm(lengths: Tensor) -> Mod:
    """Allow the prefix of each row to every query, and causal attention beyond it.

    Raffel et al. 2020 (arXiv:1910.10683), section 3.2.1.

    Args:
        lengths: (B,) integers, prefix length of each row.

    Example:
        >>> prefix_lm(torch.tensor([2]))(torch.tensor(0), 0, torch.tensor(0), torch.arange(3)).tolist()
        [True, True, False]
    """
    _check_axes("prefix_lm", "lengths", lengths, "(B,)", 1)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return (kv_idx <= q_idx) | (kv_idx < lengths[b])

    return with_sizes(mask_mod, Wanted("prefix_lm", "lengths", tuple(lengths.shape), ("B",)))


def padding(lengths: Tensor) -> Mod:
    """Allow the keys before each row's length.

    Args:
        lengths: (B,) integers.

    Example:
        >>> padding(torch.tensor([2]))(torch.tensor(0), 0, torch.tensor(0), torch.arange(3)).tolist()
        [True, True, False]
    """
    _check_axes("padding", "lengths", lengths, "(B,)", 1)

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return kv_idx < lengths[b]

    return with_sizes(mask_mod, Wanted("padding", "lengths", tuple(lengths.shape), ("B",)))


def and_masks(*mask_mods: Mod) -> Mod:
    """Allow pairs that every mask allows.

    Example:
        >>> and_masks(causal(), sliding_window(1, 1))(0, 0, torch.tensor(1), torch.arange(4)).tolist()
        [True, True, False, False]
    """

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        allowed = mask_mods[0](b, h, q_idx, kv_idx)
        for mod in mask_mods[1:]:
            allowed = allowed & mod(b, h, q_idx, kv_idx)
        return allowed

    _check_some("and_masks", mask_mods)
    return mask_mod


def or_masks(*mask_mods: Mod) -> Mod:
    """Allow pairs that at least one mask allows.

    Example:
        >>> or_masks(causal(), sliding_window(0, 1))(0, 0, torch.tensor(1), torch.arange(4)).tolist()
        [True, True, True, False]
    """

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        allowed = mask_mods[0](b, h, q_idx, kv_idx)
        for mod in mask_mods[1:]:
            allowed = allowed | mod(b, h, q_idx, kv_idx)
        return allowed

    _check_some("or_masks", mask_mods)
    return mask_mod


def _check_some(what: str, mods: tuple[object, ...], kind: str = "mask") -> None:
    if not mods:
        raise ConfigError(f"{what}: give at least one {kind}")
    for mod in mods:
        if not callable(mod):
            raise ConfigError(f"{what}: expected functions, found {type(mod).__name__}")


def _check_count(what: str, name: str, x: object) -> None:
    if isinstance(x, bool) or not hasattr(x, "__index__"):
        raise ConfigError(f"{what}: {name} must be a whole number, found {x!r}")


def _check_axes(what: str, name: str, x: object, axes: str, count: int) -> None:
    if not isinstance(x, Tensor):
        raise ShapeError(f"{what}: {name} must be a tensor {axes}, found {type(x).__name__}")
    if x.dim() != count:
        raise ShapeError(f"{what}: {name} must be {axes}, found {tuple(x.shape)}")
