"""Attention written by hand: a softmax is followed until its result multiplies the values.

Nothing is computed again here: what multiplies the values are the weights. Exponents are followed likewise, and are weights once their rows
sum to one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from regard.observe.scopes import Scope, batch_and_heads

SOFTMAX = {"softmax", "special_softmax", "_softmax", "softmin"}
EXP = {"exp", "exp_"}
DIVIDE = {"div", "div_", "__truediv__", "divide", "true_divide"}
PRODUCT = {"matmul", "linalg_matmul", "bmm", "mm", "einsum", "__matmul__", "baddbmm"}
TURNED = {"mT", "mH", "T", "H"}
DROPOUT = {"dropout", "dropout_"}
SHAPED = {"unsqueeze", "squeeze", "view", "reshape", "flatten", "unflatten", "contiguous", "transpose", "swapaxes", "permute", "movedim"}
PARTS = {"chunk", "split", "tensor_split"}
JOINED = {"cat", "concat", "stack"}
UNTOLD = "examples and heads share an axis of its weights, in an order that does not show; a batch of one can be seen"
# What leaves weights weights: another shape, another type, or a factor for each of them.
FOLLOWED = {
    *("unsqueeze", "squeeze", "view", "reshape", "flatten", "unflatten", "expand", "expand_as", "contiguous", "clone", "detach"),
    *("to", "type", "type_as", "float", "half", "bfloat16", "double", "__getitem__", "transpose", "swapaxes", "permute"),
    *("masked_fill", "masked_fill_", "mul", "mul_", "multiply", "__mul__", "__rmul__", "where", "nan_to_num", "normalize"),
    *DIVIDE,
    *PARTS,
    *JOINED,
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
        guessed: whether only the order of a tensor with more axes, or what is made of the product, tells what `lead` stands for.
        lost: why it is no longer known which of its axes is that of the keys; empty: it is the last.
        raw: whether it is made of exponents whose rows do not sum to one yet.
        summed: whether it is such exponents times values; `weights` are the exponents.
    """

    tensor: Tensor
    weights: Tensor
    scope: Scope
    depth: int
    chain: int
    lead: tuple[int, int] | None
    guessed: bool
    lost: str
    raw: bool = False
    summed: bool = False


@dataclass(slots=True, eq=False)
class _Context:
    """What is made of a product whose weights (B * H, T, S) have examples and heads in one axis, the order of which is not known.

    Attributes:
        tensor: itself.
        labels: like it, the number in that axis that each of its entries comes from.
        held: the weights.
    """

    tensor: Tensor
    labels: Tensor
    held: _Held


class Follower:
    """Follows softmaxes to the products that use them.

    Args:
        record: called with the module in which the softmax was computed and the weights, when they multiply values.
        lose: called with the module where they do and are not recorded, when it may have been left.
    """

    def __init__(self, record: Callable[[Scope, Tensor], None], lose: Callable[[Scope], None]) -> None:
        self._record, self._lose = record, lose
        self._held: dict[int, _Held] = {}
        self._contexts: dict[int, _Context] = {}
        self._chains = 0

    def __bool__(self) -> bool:
        return bool(self._held or self._contexts)

    def begin(
        self, out: Tensor, scopes: Sequence[Scope], args: tuple[Any, ...], kwargs: dict[str, Any], *, exponents: bool = False
    ) -> None:
        """Hold the result of a softmax over its last axis, or exponents, in a module that is watched: the last of those at work."""
        scope = scopes[-1]
        if not isinstance(out, Tensor) or out.dim() < 2:
            return
        lost = ""
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if not exponents and (not isinstance(dim, int) or dim % out.dim() != out.dim() - 1):
            scope.lost = lost = "its softmax runs over another axis than the last"
        self._chains += 1
        lead = (out.shape[0], out.shape[1]) if out.dim() == 4 else batch_and_heads(scopes, out.shape)
        raw, guessed = exponents and not _sum_to_one(out), out.dim() == 3 and scope.num_heads is None
        self._held[id(out)] = _Held(out, out, scope, len(scopes), self._chains, lead, guessed, lost, raw)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Prepare for a call of a function of torch: one that drops in place would drop from the weights that are held."""
        held = self._held_among(args, kwargs) if name in DROPOUT and _in_place(name, args, kwargs) else None
        if held is not None and held.weights is held.tensor:
            held.weights = held.weights.clone()

    def after(self, func: Callable[..., Any], name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow what is held through a function of torch that was called."""
        if name in PRODUCT:
            self._product(name, out, args, kwargs)
            return
        several = args[0] if name in JOINED and args else args
        context = next((self._contexts[id(arg)] for arg in several if id(arg) in self._contexts), None)
        if context is not None:
            self._unfold(context, func, name, out, args, kwargs)
            return
        held = self._held_among(args, kwargs)
        if held is None or not isinstance(out, Tensor) or not out.is_floating_point() or out.dim() < 2:
            return
        if held.summed:
            self._behind_product(held, name, out, args)
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
        raw = held.raw and not _sum_to_one(weights)
        self._held[id(out)] = _Held(out, weights, held.scope, held.depth, held.chain, lead, held.guessed and out.dim() != 4, lost, raw)

    def _behind_product(self, held: _Held, name: str, out: Tensor, args: tuple[Any, ...]) -> None:
        """Record exponents whose product with values is divided by their sum."""
        if name not in DIVIDE or args[0] is not held.tensor:
            self._held[id(out)] = replace(held, tensor=out)
            return
        total = args[1]
        weights = held.weights / total if isinstance(total, Tensor) and total.shape == (*held.weights.shape[:-1], 1) else held.weights
        if _sum_to_one(weights):
            self._give(held, weights, out)
        elif isinstance(total, Tensor) and total.dim():
            held.scope.lost, held.scope.missed = "its exponents are divided by a sum behind the product", True

    def leave(self, depth: int) -> None:
        """Let go of what was begun more than one module below: nobody is left who could use it."""
        if self._held:
            self._held = {key: held for key, held in self._held.items() if held.depth <= depth}
        if self._contexts:
            for held in {id(each.held): each.held for each in self._contexts.values() if each.held.depth > depth}.values():
                self._give_up(held)
            self._contexts = {key: each for key, each in self._contexts.items() if each.held.depth <= depth}

    def clear(self) -> None:
        """Let go of everything."""
        self.leave(0)

    def _held_among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Held | None:
        return next((self._held[id(arg)] for arg in (*args, *kwargs.values()) if id(arg) in self._held), None)

    def _give(self, held: _Held, weights: Tensor, out: Any) -> None:
        self._held = {key: other for key, other in self._held.items() if other.chain != held.chain}
        folded = held.lead if weights.dim() == 3 else None
        if folded is None or not held.guessed or min(folded) == 1:
            self._record(held.scope, weights if folded is None else weights.unflatten(0, folded))
        elif isinstance(out, Tensor) and out.dim() == 3 and len(out) == len(weights):
            labels = torch.arange(len(out), device=out.device).view(-1, 1, 1).repeat(1, *out.shape[1:])
            self._contexts[id(out)] = _Context(out, labels, replace(held, weights=weights))
        else:
            self._give_up(held)

    def _unfold(self, context: _Context, func: Callable[..., Any], name: str, out: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Record weights once it shows whether their first axis counts heads of each example, or examples of each head."""
        labels: Any = context.labels
        if name in JOINED:
            found = [self._contexts.get(id(arg)) for arg in args[0]]
            if any(each is None or each.held is not context.held for each in found):
                return
            labels = func([each.labels for each in found if each is not None], *args[1:], **kwargs)
        elif name in SHAPED or name in PARTS:
            labels = func(*(labels if arg is context.tensor else arg for arg in args), **kwargs)
        elif not isinstance(out, Tensor) or out.shape != labels.shape:
            return
        held, parts, outs = context.held, [labels] if isinstance(labels, Tensor) else list(labels), out if isinstance(out, tuple) else [out]
        batch, heads = held.lead or (1, 1)
        orders = [_are_examples([part // heads for part in parts]), _are_examples([part % batch for part in parts])]
        if orders[0] != orders[1]:
            folded = held.weights.unflatten(0, (batch, heads)) if orders[0] else held.weights.unflatten(0, (heads, batch)).transpose(0, 1)
            self._record(held.scope, folded)
            self._contexts = {key: other for key, other in self._contexts.items() if other.held is not held}
            return
        for each, part in zip(outs, parts, strict=True):
            self._contexts[id(each)] = _Context(each, part, held)

    def _give_up(self, held: _Held) -> None:
        held.scope.lost, held.scope.missed = UNTOLD, True
        self._lose(held.scope)

    def _product(self, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        equation, operands = "", (*args, *(kwargs[key] for key in ("input", "batch1", "mat2", "other", "batch2") if key in kwargs))
        if name == "baddbmm" and "input" not in kwargs:
            operands = operands[1:]
        if name == "einsum":
            equation = args[0] if args and isinstance(args[0], str) else ""
            operands = tuple(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
        for place, each in [(place, self._held.get(id(operand))) for place, operand in enumerate(operands)]:
            if each is None or each.summed:
                continue
            weights = _with_queries_behind(equation, place, each.weights) if name == "einsum" else each.weights if place == 0 else None
            if each.raw:  # as in many a layer without attention
                if isinstance(out, Tensor) and weights is not None and not each.lost:
                    self._held[id(out)] = replace(each, tensor=out, weights=weights, summed=True)
                continue
            if each.lost or weights is None:
                each.scope.lost, each.scope.missed = each.lost or f"its weights are the second factor of {name}", True
                continue
            self._give(each if weights is each.weights else replace(each, lead=None), weights, out)


def _are_examples(parts: Sequence[Tensor]) -> bool:
    """Say whether numbers can be those of examples: they change along one axis only, not that of the features; alike in all parts."""
    apart = all(bool((part == part.flatten()[0]).all()) for part in parts)
    if len(parts) > 1 and not apart and any(not torch.equal(part, parts[0]) for part in parts):
        return False
    return all(any(_changes_along(part, axis) for axis in range(part.dim() - 1)) for part in parts)


def _changes_along(numbers: Tensor, axis: int) -> bool:
    rows = numbers.movedim(axis, 0).flatten(1)
    return bool((rows == rows[:, :1]).all())


def _sum_to_one(weights: Tensor) -> bool:
    """Say whether rows are weights: each sums to one, or has nothing to attend to."""
    sums = weights.detach().float().sum(-1)
    return bool((((sums - 1).abs() < 1e-3) | (sums == 0)).all() and sums.any())


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
