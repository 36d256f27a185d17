"""Attention written by hand: a softmax is followed until its result multiplies the values.

Nothing is computed again here: what multiplies the values are the weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.observe.scopes import Scope, batch_and_heads

SOFTMAX = {"softmax", "special_softmax", "_softmax"}
PRODUCT = {"matmul", "bmm", "mm", "einsum", "__matmul__"}
DROPOUT = {"dropout", "dropout_"}
# What leaves weights weights: another shape, another type, or a factor for each of them.
FOLLOWED = {
    *("unsqueeze", "squeeze", "view", "reshape", "flatten", "unflatten", "expand", "expand_as", "contiguous", "clone", "detach"),
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "__getitem__", "transpose", "swapaxes", "permute"),
    *("masked_fill", "masked_fill_", "mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__", "where", "nan_to_num"),
    *DROPOUT,
    *PRODUCT,
}


@dataclass(slots=True, eq=False)
class _Held:
    """A tensor made of a softmax.

    Attributes:
        tensor: itself; held, so that its identity stays its own.
        weights: what it would be without dropout.
        scope: where the softmax was computed.
        depth: how many modules were at work there.
        chain: the same number for all that was made of one softmax.
        lead: (B, H), which a tensor (B * H, T, S) folds into its first axis; None: not known.
    """

    tensor: Tensor
    weights: Tensor
    scope: Scope
    depth: int
    chain: int
    lead: tuple[int, int] | None


class Follower:
    """Follows softmaxes to the products that use them.

    Args:
        record: called with the module in which the softmax was computed and the weights, when they multiply values.
    """

    def __init__(self, record: Callable[[Scope, Tensor], None]) -> None:
        self._record = record
        self._held: dict[int, _Held] = {}
        self._chains = 0

    def __bool__(self) -> bool:
        return bool(self._held)

    def begin(self, out: Tensor, scopes: Sequence[Scope], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Hold the result of a softmax over its last axis, in a module that is watched: the last of those at work."""
        scope = scopes[-1]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not isinstance(out, Tensor) or out.dim() < 2:
            return
        if not isinstance(dim, int) or dim % out.dim() != out.dim() - 1:
            scope.lost = "its softmax runs over another axis than the last"
            return
        self._chains += 1
        lead = (out.shape[0], out.shape[1]) if out.dim() == 4 else batch_and_heads(scopes, out.shape)
        self._held[id(out)] = _Held(out, out, scope, len(scopes), self._chains, lead)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare for a call of a function of torch: one that drops in place would drop from the weights that are held."""
        held = self._held_among(args, kwargs) if name in DROPOUT and _in_place(name, args, kwargs) else None
        if held is not None and held.weights is held.tensor:
            held.weights = held.weights.clone()

    def after(self, func: Callable[..., Any], name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow what is held through a function of torch that was called."""
        if name in PRODUCT:
            self._product(name, args)
            return
        held = self._held_among(args, kwargs)
        if held is None or not isinstance(out, Tensor) or not out.is_floating_point() or out.dim() < 2:
            return
        turns = name in ("transpose", "swapaxes", "permute")
        if turns and not _keeps_last(name, held.tensor.dim(), args[1:], kwargs):
            held.scope.lost = f"its weights go through {name}, which puts their keys elsewhere"
            return
        weights = out
        if name in DROPOUT:
            weights = held.weights
        elif held.weights is not held.tensor:  # behind a dropout: the same once more, without it
            with torch.no_grad():
                weights = func(*(held.weights if arg is held.tensor else arg for arg in args), **kwargs)
        lead = None if turns else _lead_behind(held.lead, out)
        self._held[id(out)] = _Held(out, weights, held.scope, held.depth, held.chain, lead)

    def leave(self, depth: int) -> None:
        """Let go of what was begun more than one module below: nobody is left who could use it."""
        if self._held:
            self._held = {key: held for key, held in self._held.items() if held.depth <= depth}

    def clear(self) -> None:
        """Let go of everything."""
        self._held = {}

    def _held_among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Held | None:
        return next((self._held[id(arg)] for arg in (*args, *kwargs.values()) if id(arg) in self._held), None)

    def _product(self, name: str, args: tuple[Any, ...]) -> None:
        equation, operands = "", args
        if name == "einsum":
            equation = args[0] if args and isinstance(args[0], str) else ""
            operands = tuple(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        for place, each in [(place, self._held.get(id(operand))) for place, operand in enumerate(operands)]:
            if each is None:
                continue
            if not (_sums_keys(equation, place, each.tensor) if name == "einsum" else place == 0):
                each.scope.lost = f"its weights are the second factor of {name}"
                continue
            folded = each.lead if each.weights.dim() == 3 else None
            self._record(each.scope, each.weights if folded is None else each.weights.unflatten(0, folded))
            self._held = {key: other for key, other in self._held.items() if other.chain != each.chain}


def _lead_behind(lead: tuple[int, int] | None, out: Tensor) -> tuple[int, int] | None:
    """Return (B, H) of what was made of weights with `lead`, where their order stayed."""
    if out.dim() == 4:
        return out.shape[0], out.shape[1]
    return lead if lead is not None and out.dim() == 3 and out.shape[0] == lead[0] * lead[1] else None


def _in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return name.endswith("_") or bool(kwargs.get("inplace", args[3] if len(args) > 3 else False))


def _keeps_last(name: str, dims: int, places: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if kwargs:
        return False
    if name == "permute":
        order = places[0] if len(places) == 1 else places
        return order[-1] % dims == dims - 1
    return all(place % dims != dims - 1 for place in places)


def _sums_keys(equation: str, place: int, weights: Tensor) -> bool:
    """Say whether an einsum sums over the last axis of an operand, and the axis before it stays."""
    match = re.fullmatch(r"([a-zA-Z.,]+)->([a-zA-Z.]*)", equation.replace(" ", ""))
    operands = match[1].split(",") if match else []
    if match is None or len(operands) != 2:
        return False
    own, other = operands[place].replace("...", ""), operands[1 - place]
    whole = len(own) == weights.dim() or "..." in operands[place]
    return whole and len(own) > 1 and own[-1] not in match[2] and own[-1] in other and own[-2] in match[2]
