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
PRODUCT = {"matmul", "linalg_matmul", "bmm", "mm", "einsum", "__matmul__", "baddbmm"}
TURNED = {"mT", "mH", "T", "H"}
DROPOUT = {"dropout", "dropout_"}
# What leaves weights weights: another shape, another type, or a factor for each of them.
FOLLOWED = {
    *("unsqueeze", "squeeze", "view", "reshape", "flatten", "unflatten", "expand", "expand_as", "contiguous", "clone", "detach"),
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "__getitem__", "transpose", "swapaxes", "permute"),
    *("masked_fill", "masked_fill_", "mul", "mul_", "__mul__", "__rmul__", "div", "div_", "__truediv__", "where", "nan_to_num"),
    *DROPOUT,
    *PRODUCT,
    *TURNED,
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
        lost: why it is no longer known which of its axes is that of the keys; empty: it is the last.
    """

    tensor: Tensor
    weights: Tensor
    scope: Scope
    depth: int
    chain: int
    lead: tuple[int, int] | None
    lost: str


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
        lost = ""
        if not isinstance(dim, int) or dim % out.dim() != out.dim() - 1:
            scope.lost = lost = "its softmax runs over another axis than the last"
        self._chains += 1
        lead = (out.shape[0], out.shape[1]) if out.dim() == 4 else batch_and_heads(scopes, out.shape)
        self._held[id(out)] = _Held(out, out, scope, len(scopes), self._chains, lead, lost)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare for a call of a function of torch: one that drops in place would drop from the weights that are held."""
        held = self._held_among(args, kwargs) if name in DROPOUT and _in_place(name, args, kwargs) else None
        if held is not None and held.weights is held.tensor:
            held.weights = held.weights.clone()

    def after(self, func: Callable[..., Any], name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow what is held through a function of torch that was called."""
        if name in PRODUCT:
            self._product(name, args, kwargs)
            return
        held = self._held_among(args, kwargs)
        if held is None or not isinstance(out, Tensor) or not out.is_floating_point() or out.dim() < 2:
            return
        lost, turns = held.lost, name in ("transpose", "swapaxes", "permute")
        if name in TURNED or (turns and not _keeps_last(name, held.tensor.dim(), args[1:], kwargs)):
            held.scope.lost = lost = lost or f"its weights go through {name}, which puts their keys elsewhere"
        weights = out
        if name in DROPOUT:
            weights = held.weights
        elif held.weights is not held.tensor:  # behind a dropout: the same once more, without it, and in no tensor of the model's
            changes = name.endswith("_") and not name.endswith("__")
            with torch.no_grad():
                own = held.weights.clone() if changes else held.weights
                more = {key: own if arg is held.tensor else arg for key, arg in kwargs.items() if key != "out"}
                weights = func(*(own if arg is held.tensor else arg for arg in args), **more)
        lead = None if turns else _lead_behind(held.lead, out)
        self._held[id(out)] = _Held(out, weights, held.scope, held.depth, held.chain, lead, lost)

    def leave(self, depth: int) -> None:
        """Let go of what was begun more than one module below: nobody is left who could use it."""
        if self._held:
            self._held = {key: held for key, held in self._held.items() if held.depth <= depth}

    def clear(self) -> None:
        """Let go of everything."""
        self._held = {}

    def _held_among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Held | None:
        return next((self._held[id(arg)] for arg in (*args, *kwargs.values()) if id(arg) in self._held), None)

    def _product(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        equation, operands = "", (*args, *(kwargs[key] for key in ("input", "batch1", "mat2", "other", "batch2") if key in kwargs))
        if name == "baddbmm" and "input" not in kwargs:
            operands = operands[1:]
        if name == "einsum":
            equation = args[0] if args and isinstance(args[0], str) else ""
            operands = tuple(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        for place, each in [(place, self._held.get(id(operand))) for place, operand in enumerate(operands)]:
            if each is None:
                continue
            weights = _with_queries_behind(equation, place, each.weights) if name == "einsum" else each.weights if place == 0 else None
            if each.lost or weights is None:
                each.scope.lost, each.scope.missed = each.lost or f"its weights are the second factor of {name}", True
                continue
            folded = each.lead if weights is each.weights and weights.dim() == 3 else None
            self._record(each.scope, weights if folded is None else weights.unflatten(0, folded))
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


def _with_queries_behind(equation: str, place: int, weights: Tensor) -> Tensor | None:
    """Return weights with their queries in the axis before the keys; None where an einsum does not sum over the last axis, the keys.

    Queries are the axis that values lack: (B, T, H, S) of "bthk,bkhd->bthd" become (B, H, T, S). Where they lack none, there is one query.
    """
    match = re.fullmatch(r"([a-zA-Z.,]+)->([a-zA-Z.]*)", equation.replace(" ", ""))
    operands = match[1].split(",") if match else []
    if match is None or len(operands) != 2:
        return None
    own, other, kept = operands[place].removeprefix("..."), operands[1 - place], match[2]
    whole = own.isalpha() and (len(own) == weights.dim() or own != operands[place])
    if not whole or own[-1] in kept or own[-1] not in other or any(axis not in kept + other for axis in own):
        return None
    queries = [axis for axis in own[:-1] if axis not in other]
    if own[-2:-1] in queries:
        return weights
    if len(queries) > 1:
        return None
    return weights.movedim(own.index(queries[0]) - len(own), -2) if queries else weights.unsqueeze(-2)
