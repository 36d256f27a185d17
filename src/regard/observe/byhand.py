"""Hand-written attention: follows a softmax until its result multiplies the values and is summed over the keys.

Nothing is recomputed: the factor of the values is the weights. Labels travel along and show where the key axis ends up. Exponents are
followed in the same way, and become weights once their rows sum to 1. A factor from no known softmax whose rows sum to 1 over the summed
axis is also taken as weights. Other uses of weights are reported by name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.observe.call import AttentionCall
from regard.observe.folded import Context
from regard.observe.functions import ADD, CAST, CHOOSE, DIVIDE, DROPOUT, EACH, EXPERTS, MULTIPLY, OTHER_SUMS, PICK, STATE_SPACES, SUM
from regard.observe.held import Held, Weighted
from regard.observe.labels import JOINED, MOVED, PARTS, TURNED, Entries, labels_behind, same_along, tells_keys
from regard.observe.parts import Parts, own_keys
from regard.observe.products import PRODUCT, Factor, factors, has_numbers, is_learned
from regard.observe.scopes import Scope, around_of, batch_and_heads, kind_of, order_of, states_of

UNTOLD = "its examples and heads are in an order that does not show; a batch of one can be seen"
IN_PARTS = "its weights are used in parts, which cannot be joined"
EPS = torch.finfo(torch.float32).eps
FEW_ROWS = 3
FOLLOWED = {*PRODUCT, *MULTIPLY, *DROPOUT}
"""Functions that may use weights from no known softmax."""


class Follower:
    """Follows softmax results to the sums that use them.

    Args:
        record: called with the softmax's module and the weights when they multiply values; returns the recorded call.
        retract: called with a recorded call if more of its weights follow.
        lose: called with the module if weights multiply values and cannot be recorded, once the module may have ended.
        foreign: whether to follow the calling code.
    """

    def __init__(
        self,
        record: Callable[[Scope, Tensor], AttentionCall | None],
        retract: Callable[[AttentionCall], None],
        lose: Callable[[Scope], None],
        foreign: Callable[[], bool],
    ) -> None:
        self._record, self._retract, self._lose, self._foreign = record, retract, lose, foreign
        self._held: dict[int, Held] = {}
        self._contexts: dict[int, Context[Held]] = {}
        self._weighted: dict[int, Weighted] = {}
        self._chosen: dict[int, tuple[Tensor, Held]] = {}
        self._done: dict[int, weakref.ref[Tensor]] = {}  # derived from recorded weights
        self._before: Tensor | None = None
        self._chains = 0

    def __bool__(self) -> bool:
        return bool(self._held or self._contexts or self._weighted or self._chosen or self._done)

    def begin(self, out: Any, scopes: Sequence[Scope], axis: int, *, exponents: bool = False) -> Held | None:
        """Follow the result of a softmax over an axis, or exponents, for the innermost watched module."""
        scope = scopes[-1]
        if not isinstance(out, Tensor) or out.dim() < 1 or (exponents and not out.numel()) or _is_other(scope, softmax=not exponents):
            return None
        self._chains += 1
        scope.kind, scope.states, scope.around, scope.lacking = kind_of(scopes), states_of(scopes), around_of(scopes), ()
        shape = list(out.shape)
        shape.append(shape.pop(axis))
        keys = torch.arange(out.shape[axis], device=out.device).view([-1 if at == axis % out.dim() else 1 for at in range(out.dim())])
        lead = (out.shape[0], out.shape[1]) if out.dim() == 4 else batch_and_heads(scopes, shape)
        raw, guessed = exponents and not _sum_to_one(out), out.dim() == 3 and scope.num_heads is None
        parts = Parts(out.numel(), out.shape[axis])
        labels = keys.expand(out.shape) if out.numel() else None  # without entries shapes must tell
        held = Held(out, out, labels, scope, len(scopes), self._chains, parts, lead, guessed, "", raw)
        held.whole = held
        self._held[id(out)] = held
        return held

    def multiplied(self, weights: Tensor, out: Tensor, scopes: Sequence[Scope]) -> None:
        """Record the weights (N, T, S) of a kernel that returned `out` (N, T, D), or follow `out` until the order of N is known."""
        held = self.begin(weights, scopes, -1)
        if held is not None:
            self._give(held, weights, out)

    def before(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], scopes: Sequence[Scope] | None) -> None:
        """Prepare for a call of a torch function: dropout would change weights, which must be checked before."""
        self._before = None
        if name in ("mul_", "__imul__") and isinstance(args[0], Tensor) and next(self._held_among(args[1:], kwargs), None) is not None:
            self._before = args[0].detach().clone()  # values that may be weighted next
        if name not in DROPOUT:
            return
        held = next(self._held_among(args, kwargs), None)
        given = args[0] if args else kwargs.get("input")
        if held is None and scopes and isinstance(given, Tensor) and self._are_weights(given, -1, scopes[-1]):
            held = self.begin(given, scopes, -1)
        if held is not None and held.weights is held.tensor and _in_place(name, args, kwargs):
            held.weights = held.weights.clone()

    def after(
        self, func: Callable[..., Any], name: str, out: Any, call: tuple[tuple[Any, ...], dict[str, Any]], scopes: Sequence[Scope] | None
    ) -> None:
        """Follow derived tensors through a torch function after its call; `scopes` are the active modules if the innermost is watched."""
        args, kwargs = call
        if name in PRODUCT:
            self._product(name, out, factors(name, args, kwargs), scopes)
            return
        several = _flat((*args, *kwargs.values()))
        if self._done and any(self._is_done(arg) for arg in several):
            self._note_done(out)
        if self._chosen:
            self._choose(name, out, several, scopes)
        if any(id(arg) in self._weighted for arg in several) and self._go_on(func, name, out, args, kwargs):
            return
        if name in MULTIPLY and self._multiply(out, [arg for arg in several if isinstance(arg, Tensor)], scopes):
            return
        context = next((self._contexts[id(arg)] for arg in several if id(arg) in self._contexts), None)
        if context is not None:
            self._unfold(context, func, name, out, args, kwargs)
            return
        held = next((self._held[id(arg)] for arg in several if id(arg) in self._held), None)
        if held is None:
            return
        if name in CHOOSE and not held.raw:
            for each in out if isinstance(out, tuple) else (out,):
                if isinstance(each, Tensor) and not each.is_floating_point():
                    self._chosen[id(each)] = (each, held)
        elif held.summed:
            self._behind_product(held, name, out, args)
        else:
            self._follow(held, func, name, out, args, kwargs)

    def _follow(self, held: Held, func: Callable[..., Any], name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow the result of a function that sums nothing."""
        outs = list(out) if name in PARTS else [out]
        if not all(isinstance(each, Tensor) and each.is_floating_point() for each in outs):
            return
        lost, given = held.lost, [arg for arg in _flat(args) if isinstance(arg, Tensor)]
        if name not in EACH and name not in MOVED and name not in JOINED:
            lost = lost or f"its weights go through {name}"
            values = any(arg.is_floating_point() and id(arg) not in self._held for arg in given)
            if held.raw or any(is_learned(arg) for arg in given):
                return  # a layer
            if name in OTHER_SUMS and values:
                self._miss(held, lost)
            if name in OTHER_SUMS or out.numel() < held.tensor.numel():
                return  # a statistic of the weights
        keys, weights = held.keys, out
        if name in JOINED:
            keys = None
            if all(id(arg) in self._held for arg in args[0]) and all(self._held[id(arg)].keys is not None for arg in args[0]):
                keys = func([self._held[id(arg)].keys for arg in args[0]], *args[1:], **kwargs)
        elif keys is not None:
            keys = labels_behind(func, name, keys, held.tensor, (out, args, kwargs))
        if name in DROPOUT:
            weights = held.weights
        elif held.weights is not held.tensor:  # after dropout: also the same without dropout, in a tensor of our own
            weights = self._without_dropout(held, func, name, args, kwargs)
        for number, each in enumerate(outs):
            own, labels = (weights[number], keys and keys[number]) if name in PARTS else (weights, keys)
            lead = None if name in TURNED else _lead_behind(held.lead, each, labels)
            raw = held.raw and not _sum_to_one(own)
            guessed = held.guessed and each.dim() != 4
            whole = held.whole if name in MOVED or name in CAST or name in DROPOUT else None
            made = replace(held, tensor=each, weights=own, keys=labels, lead=lead, guessed=guessed, lost=lost, raw=raw, whole=whole)
            self._held[id(each)] = made

    def _without_dropout(self, held: Held, func: Callable[..., Any], name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        def own(arg: Any) -> Any:
            found = self._held.get(id(arg))
            return arg if found is None else found.weights.clone() if _changes(name) and arg is held.tensor else found.weights

        with torch.no_grad():
            if name in JOINED:
                return func([own(arg) for arg in args[0]], *args[1:], **kwargs)
            return func(*map(own, args), **{key: own(arg) for key, arg in kwargs.items() if key != "out"})

    def _product(self, name: str, out: Any, given: Iterator[Factor], scopes: Sequence[Scope] | None) -> None:
        """Record weights that are a factor of a product; report those that are not summed over the keys."""
        for factor in given:
            held, axis = self._held.get(id(factor.tensor)), factor.axis
            values = any(not is_learned(other) for other in factor.others)
            weighted = self._weighted.get(id(factor.tensor)) if held is None else None
            if weighted is not None and values and weighted.sums(axis):
                self._miss(weighted.held, f"its weighted values go through {name}")
            if (
                held is None
                and weighted is None
                and axis is not None
                and values
                and scopes
                and self._are_weights(factor.tensor, axis, scopes[-1])
            ):
                held = self.begin(factor.tensor, scopes, axis)
            if held is None or held.summed:
                continue
            if name == "linear" and not values:
                self._note_beside(held)
                continue
            whole = axis is not None and _over_keys(held, axis)
            if held.raw:  # as in many layers without attention
                if isinstance(out, Tensor) and whole:
                    self._held[id(out)] = replace(held, tensor=out, weights=factor.arranged(held.weights), summed=True)
            elif whole:
                plain = factor.query == -2 and axis == -1
                held.scope.lacking = factor.lacking
                self._give(held if plain else replace(held, lead=None), factor.arranged(held.weights), out)
            elif not values and isinstance(out, Tensor) and out.shape == factor.tensor.shape:  # heads are mixed
                self._held[id(out)] = replace(held, tensor=out, weights=out)
            elif not values:
                self._note_beside(held)
            else:
                self._miss(held, held.lost or f"{name} sums its weights over another axis than their softmax runs over")

    def _multiply(self, out: Any, pair: list[Tensor], scopes: Sequence[Scope] | None) -> bool:
        """Follow an entrywise product of weights and values; return whether the factors cannot be the product of weights."""
        if len(pair) != 2 or not isinstance(out, Tensor):
            return False
        for given, values in (pair, pair[::-1]):
            if not values.is_floating_point() or not values.dim() or id(given) in self._weighted:
                continue
            held = self._held.get(id(given))
            if is_learned(values):
                if held is not None and out.numel() > given.numel():
                    self._note_beside(held)
                continue
            if held is None and scopes and given.numel() < out.numel() and given.dim() == out.dim():
                axes = [axis for axis in range(given.dim()) if given.shape[axis] > 1 and self._are_weights(given, axis, scopes[-1])]
                held = self.begin(given, scopes, axes[-1]) if axes else None
            other = self._held.get(id(values))
            if held is None or held.summed or (other is not None and other.chain == held.chain):
                continue
            entries = Entries.of(held.weights, values if self._before is None or values is not out else self._before, out.shape)
            wide = entries.lack(0)
            if not (wide or entries.lack(1)) or _is_mask(values):
                continue
            self._weighted[id(out)] = Weighted(out, entries, held, values.untyped_storage().data_ptr(), not wide)
            return wide
        return False

    def _go_on(self, func: Callable[..., Any], name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Follow weights times values to the sum over the keys; return whether nothing else has to be followed."""
        several = args[0] if name in JOINED else args
        found = [self._weighted[id(arg)] for arg in several if id(arg) in self._weighted]
        if not found:
            return False
        one = found[0]
        apart = any(each is not one and each.held.chain == one.held.chain and each.values == one.values for each in found[1:])
        if apart and (name in ADD or name in JOINED):
            self._miss(one.held, "its weights multiply values one key at a time")
        elif name in ADD and isinstance(out, Tensor):
            self._weighted[id(out)] = replace(one, tensor=out, entries=None)
        elif one.entries is not None and name in SUM:
            self._sum(one, out, args, kwargs)
        elif one.entries is not None and name in OTHER_SUMS:
            if not one.lone:
                self._miss(one.held, f"its weighted values go through {name}")
        elif one.entries is not None and not one.lone and not any(isinstance(arg, Tensor) and is_learned(arg) for arg in args):
            pairs = one.entries.behind(func, name, one.tensor, (out, args, kwargs))
            kept = name in EACH or name in MOVED
            for each, entries in zip(out if name in PARTS else (out,), pairs or (), strict=False):
                if isinstance(each, Tensor) and each.is_floating_point():
                    lost = one.lost if kept else one.lost or f"its weighted values go through {name}"
                    self._weighted[id(each)] = replace(one, tensor=each, entries=entries, lost=lost)
        return id(one.tensor) not in self._held

    def _sum(self, weighted: Weighted, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record weights whose products with values are summed over the keys."""
        entries, held = weighted.entries, weighted.held
        held = held if weighted.tensor.numel() else held.whole or held
        dims = kwargs.get("dim", kwargs.get("axis", args[1] if len(args) > 1 else None))
        keep = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
        if entries is None or not isinstance(out, Tensor) or (weighted.lone and keep):
            return
        count = weighted.tensor.dim()
        axes = list(range(count)) if dims is None else [axis % count for axis in ([dims] if isinstance(dims, int) else dims)]
        found = entries.arranged(held.weights, held.keys, axes) if weighted.tensor.numel() else (held.weights, ())
        if found is None:
            return
        weights, held.scope.lacking = found
        if held.raw:
            self._held[id(out)] = replace(held, tensor=out, weights=weights, summed=True)
        elif weighted.lost or (held.lost and not _sum_to_one(weights)):
            self._miss(held, weighted.lost or held.lost)
        else:
            self._give(held if weights.dim() == 3 and held.tensor.dim() > 2 else replace(held, lead=None), weights, out)

    def _choose(self, name: str, out: Any, given: Sequence[Any], scopes: Sequence[Scope] | None) -> None:
        """Follow keys selected by their weights; report a function that selects values by them."""
        found = next((self._chosen[id(arg)][1] for arg in given if id(arg) in self._chosen), None)
        if found is None:
            return
        source = next((arg for arg in given if isinstance(arg, Tensor) and arg.is_floating_point()), None)
        if name in PICK and source is not None:
            if not is_learned(source) and id(source) not in self._held and not self._is_done(source):
                self._miss(found, "it selects values by the largest of its weights")
        elif isinstance(out, Tensor) and not out.is_floating_point():
            self._chosen[id(out)] = (out, found)
        elif isinstance(out, Tensor) and scopes and source is None and out.dim() and _sum_to_one(out):
            self.begin(out, scopes, -1)  # one-hot of the selected keys

    def _behind_product(self, held: Held, name: str, out: Tensor, args: tuple[Any, ...]) -> None:
        """Record exponents whose product with values is divided by their sum."""
        if not isinstance(out, Tensor) or not out.is_floating_point():
            return
        if name not in DIVIDE or args[0] is not held.tensor:
            self._held[id(out)] = replace(held, tensor=out)
            return
        total = args[1]
        weights = held.weights / total if isinstance(total, Tensor) and total.shape == (*held.weights.shape[:-1], 1) else held.weights
        if _sum_to_one(weights):
            self._give(held, weights, out)
        elif isinstance(total, Tensor) and total.dim():
            self._miss(held, "its exponents are divided by a sum behind the product")

    def leave(self, depth: int) -> None:
        """Drop tensors of modules more than one level below: no active module can use them."""
        for each in [each for each in self._weighted.values() if each.held.depth > depth and each.held.parts.given]:
            with torch._C.DisableTorchFunction():
                self._note_beside(each.held)
        if self._contexts:
            for held in {id(each.held): each.held for each in self._contexts.values() if each.held.depth > depth}.values():
                self._miss(held, UNTOLD)
            self._contexts = {key: each for key, each in self._contexts.items() if each.held.depth <= depth}
        if self._held:
            self._held = {key: held for key, held in self._held.items() if held.depth <= depth}
        self._weighted = {key: each for key, each in self._weighted.items() if each.held.depth <= depth}
        self._done = {key: each for key, each in self._done.items() if each() is not None}
        self._chosen = {key: each for key, each in self._chosen.items() if each[1].depth <= depth}

    def clear(self) -> None:
        """Drop all tensors."""
        self.leave(0)
        self._done.clear()

    def _held_among(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Held]:
        return (self._held[id(arg)] for arg in (*args, *kwargs.values()) if id(arg) in self._held)

    def _is_done(self, tensor: Any) -> bool:
        found = self._done.get(id(tensor))
        return found is not None and found() is tensor

    def _note_done(self, made: Any) -> None:
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, Tensor) and each.is_floating_point():
                self._done[id(each)] = weakref.ref(each)

    def _are_weights(self, tensor: Tensor, axis: int, scope: Scope) -> bool:
        """Return whether values of unknown origin are weights: neither learned nor selected, with rows that sum to 1."""
        plain = tensor.is_floating_point() and tensor.dim() > 0 and tensor.shape[axis] > 1 and not is_learned(tensor)
        few = plain and tensor.numel() <= FEW_ROWS * tensor.shape[axis]  # these may almost sum to 1 by chance
        if (
            not plain
            or _is_other(scope, softmax=False)
            or not has_numbers(tensor)
            or self._is_done(tensor)
            or not _sum_to_one(tensor, axis, least=64 * EPS if few else 1e-3)
        ):
            return False
        return bool((tensor >= 0).all()) and not _is_mask(tensor) and self._foreign()

    def _note_beside(self, held: Held) -> None:
        """Note that the weights of some keys multiply values in a way that records nothing."""
        if held.parts.are_new(held.keys):
            held.parts.beside |= own_keys(held.keys)
            if held.parts.given:
                self._miss(held, IN_PARTS)

    def _miss(self, held: Held, reason: str) -> None:
        scope, parts = held.scope, held.parts
        if parts.recorded is not None:
            if not parts.are_new(held.keys):
                return  # all that multiplied values is recorded
            reason = IN_PARTS
            self._take_back(parts)
            self._drop(held, all_keys=True)
        scope.lost, scope.missed = scope.lost or reason, True
        self._lose(scope)

    def _take_back(self, parts: Parts) -> None:
        if parts.recorded is not None:
            self._retract(parts.recorded)
        parts.recorded = None

    def _give(self, held: Held, weights: Tensor, out: Any) -> None:
        whole = held.whole
        if whole is not None and 1 < weights.numel() < whole.weights.numel() and weights.shape[-1] == _count(whole):
            axis = next(axis for axis in range(whole.weights.dim()) if tells_keys(whole.keys, axis))
            held, weights, out = (
                replace(whole, guessed=False),
                whole.weights.movedim(axis, -1),
                None,
            )  # one of several slices, such as a head
        held.scope.product = tuple(out.shape) if isinstance(out, Tensor) else ()
        parts, columns = held.parts, held.parts.columns(held.keys, weights)
        if columns is not None and set(columns) <= parts.known:
            return
        some = weights.numel() * parts.count < parts.size * len(columns) if columns else 1 < weights.numel() < parts.size
        joined = None if some else weights if columns is None else parts.join(columns, weights)
        self._take_back(parts)
        self._drop(held, all_keys=columns is None or joined is None)
        if joined is None:
            parts.given.clear()
            self._miss(held, IN_PARTS)
            return
        weights = joined
        held.scope.three |= weights.dim() == 3 and held.guessed
        folded = held.lead if weights.dim() == 3 and held.lead and held.lead[0] * held.lead[1] == len(weights) else None
        if weights.dim() == 4 and order_of(held.scope, weights.shape) == "unclear":
            if isinstance(out, Tensor) and out.shape[:3] == weights.shape[:3] and out.dim() == 4:
                own = replace(held, weights=weights.flatten(0, 1), lead=(weights.shape[0], weights.shape[1]))
                self._contexts[id(out)] = Context.of(out, own)
            else:
                self._miss(held, UNTOLD)
        elif folded is None or not held.guessed or min(folded) == 1:
            parts.recorded = self._record(held.scope, weights if folded is None else weights.unflatten(0, folded))
        elif isinstance(out, Tensor) and out.dim() == 3 and len(out) == len(weights):
            self._contexts[id(out)] = Context.of(out, replace(held, weights=weights))
        else:
            self._miss(held, UNTOLD)

    def _drop(self, held: Held, *, all_keys: bool) -> None:
        """Follow the weights of a softmax no more; of some keys only, those of the other keys still are."""

        def stays(other: Held) -> bool:
            return other.chain != held.chain or (not all_keys and not other.parts.are_given(other.keys))

        self._note_done([other.tensor for other in self._held.values() if other.chain == held.chain and not other.summed])
        self._held = {key: other for key, other in self._held.items() if stays(other)}
        self._weighted = {key: other for key, other in self._weighted.items() if stays(other.held)}
        self._contexts = {key: other for key, other in self._contexts.items() if other.held.chain != held.chain}

    def _unfold(self, context: Context[Held], func: Callable[..., Any], name: str, out: Any, args: Any, kwargs: dict[str, Any]) -> None:
        weights, more = context.behind(self._contexts, func, name, (out, args, kwargs))
        if weights is not None:
            context.held.parts.recorded = self._record(context.held.scope, weights)
            self._contexts = {key: other for key, other in self._contexts.items() if other.held is not context.held}
        self._contexts |= {id(each.tensor): each for each in more}


def _is_other(scope: Scope, *, softmax: bool) -> bool:
    """Return whether the softmax, or other factors, of a module are no attention, by its class name."""
    name = type(scope.module).__name__
    return not scope.attends and bool(EXPERTS.search(name) or (not softmax and STATE_SPACES.search(name)))


def _flat(args: Sequence[Any]) -> list[Any]:
    return [part for arg in args for part in (arg if isinstance(arg, tuple | list) else (arg,))]


def _sum_to_one(weights: Tensor, axis: int = -1, *, least: float = 1e-3) -> bool:
    """Return whether all rows are weights: they sum to 1 within a least tolerance, or to 0 with nothing to attend to."""
    sums = weights.detach().sum(axis, dtype=torch.float32)
    exact = torch.finfo(weights.dtype).eps if weights.is_floating_point() else 0.0
    rounding = max(least, 4 * exact)  # in half precision also of the logarithms of weights
    return bool((((sums - 1).abs() < rounding) | (sums == 0)).all() and sums.any())


def _count(held: Held) -> int:
    """Return the number of keys of a softmax."""
    return 0 if held.keys is None else int(held.keys.max()) + 1


def _over_keys(held: Held, axis: int) -> bool:
    """Return whether an axis is the key axis, or one without labels over which rows were normalized again."""
    if not held.tensor.numel():
        return held.tensor.shape[axis] == held.parts.count
    if held.keys is None:
        return False
    keys = tells_keys(held.keys, axis)
    if keys and not held.lost:
        return True
    return not held.raw and (keys or same_along(held.keys, axis)) and _sum_to_one(held.weights, axis)


def _is_mask(numbers: Tensor) -> bool:
    return bool(((numbers == 0) | (numbers == 1)).all()) and numbers.numel() > 0


def _lead_behind(lead: tuple[int, int] | None, out: Tensor, keys: Tensor | None) -> tuple[int, int] | None:
    """Return (B, H) of a tensor derived from weights with `lead`, if their order is unchanged."""
    if out.dim() == 4:
        return (out.shape[0], out.shape[1]) if keys is None or tells_keys(keys, -1) else lead
    return lead if lead is not None and out.dim() == 3 and out.shape[0] == lead[0] * lead[1] else None


def _changes(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _in_place(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return name.endswith("_") or bool(kwargs.get("inplace", args[3] if len(args) > 3 else False))
