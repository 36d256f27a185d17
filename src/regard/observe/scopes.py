"""The active module: its name, its arguments, and whether it attends to its own sequence or to another one."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

Kind = Literal["self", "cross"]

ATTENDS = re.compile(r"[Aa]tt(?:en(?:tion|d)|n)")
"""Class names of attention modules."""
HELPS = re.compile(r"Norm|Bias|Mask|Output|Drop|Embed|Position")
"""Class names of their helpers."""
# Parts of argument names that are no sequence to attend to.
ASIDE = {"mask", "bias", "pos", "position", "rope", "rotary", "cos", "sin", "freqs", "past", "cache", "alibi", "residual"}
ASIDE |= {"r"}  # XLNet's relative positions


@dataclass(slots=True, eq=False)
class Scope:
    """A module during its forward.

    Attributes:
        name: of the module in the model.
        module: the module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        kind: kind of its attention, if known without its arguments.
        num_heads: number of heads folded into the batch of three-dimensional weights; None: none.
        layout: (H, T) of the weights, if a kernel was called with heads and queries folded.
        lost: why its softmax could not be followed to the values.
        missed: whether that softmax still is a factor of a product.
        windows: whether each query has keys of its own, as in a dynamic convolution: no map, and perhaps no attention.
        seen: whether a call inside it was recorded.
        method: whether a method other than `forward` is running.
        states: shapes of the states that tell the batch of its weights, see `states_of`.
        around: shapes of the first two arguments of the modules around its weights, see `around_of`.
        lacking: axes that its values lack, counted from the end of its weights: those of queries, and of heads that share keys.
        three: whether three-dimensional weights were recorded, whose first axis counts examples, or the heads of one example.
        calls: its recorded calls.
        product: shape of its weights times values, before anything else; () if unknown.
    """

    name: str
    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    kind: Kind | None = None
    num_heads: int | None = None
    layout: tuple[int, int] | None = None
    lost: str = ""
    missed: bool = False
    windows: bool = False
    seen: bool = False
    method: bool = False
    states: list[tuple[int, ...]] = field(default_factory=list)
    around: list[list[tuple[int, ...]]] = field(default_factory=list)
    lacking: tuple[int, ...] = ()
    three: bool = False
    calls: list[Any] = field(default_factory=list)
    product: tuple[int, ...] = ()

    @property
    def attends(self) -> bool:
        """Whether its class name says that it attends."""
        return _says_attention(type(self.module))


@cache
def _says_attention(kind: type) -> bool:
    return bool(ATTENDS.search(kind.__name__)) and not HELPS.search(kind.__name__)


def kind_of(scopes: Sequence[Scope]) -> Kind:
    """Return whether attention is self or cross, from the arguments of the active modules, innermost last.

    A module with one input sequence attends to it; with two, the first attends to the second. A part of an attention module, called with
    projected queries, keys and values, does not tell: then the enclosing module decides.
    """
    for place in range(len(scopes) - 1, -1, -1):
        scope = scopes[place]
        if scope.kind is not None:
            return scope.kind
        given = [id(tensor) for tensor in _sequences(scope)][:3]
        if len(given) < 2 or given[1] == given[0]:
            if given:
                return "self"
            continue
        inside = place > 0 and scopes[place - 1].attends
        if not inside and len(set(given)) < 3:
            return "cross"
    return "cross" if any(_sequences(scope) for scope in scopes) else "self"


def batch_and_heads(scopes: Sequence[Scope], shape: Sequence[int]) -> tuple[int, int] | None:
    """Return (B, H) of weights (B * H, T, S) from the states (B, L, D) or (L, B, D) passed to the innermost module.

    A part of an attention module gets projected, folded states: then the enclosing module decides. The order of the first axis is assumed
    to be b * H + h.
    """
    if len(shape) != 3:
        return None
    start = len(scopes) - 1
    while start > 0 and scopes[start - 1].attends:
        start -= 1
    for scope in scopes[start:]:
        batches = [batch for tensor in _sequences(scope) if tensor.dim() == 3 for batch in _batches(tensor.shape, shape)]
        if batches:
            return max(batches), shape[0] // max(batches)
    given = next((each[0] for each in around_of(scopes[-1:])), ())
    if len(given) != 4 or not given[0]:
        return None
    batch, *axes = given[:3]  # queries (B, H, T, D) or (B, T, H, D)
    heads = {heads for heads, queries in (axes, axes[::-1]) if queries == shape[1] and batch * heads == shape[0]}
    return (batch, next(iter(heads))) if len(heads) == 1 else None


def states_of(scopes: Sequence[Scope]) -> list[tuple[int, ...]]:
    """Return the shapes of the states (B, L, D), (L, B, D) or (L, D) passed to the innermost attention, not to a part of it."""
    start = len(scopes) - 1
    while start > 0 and scopes[start - 1].attends:
        start -= 1
    with torch._C.DisableTorchFunction():
        shapes = [[tuple(tensor.shape) for tensor in _sequences(scope) if tensor.dim() in (2, 3)] for scope in scopes[start:]]
    return next((found for found in shapes if found), [])


def batches_of(scope: Scope, shape: Sequence[int]) -> set[int]:
    """Return the batch sizes that weights (..., T, S) of a module can have: of its states (B, L, D) or (L, B, D), L being T or S."""
    sequences, lengths = [states for states in scope.states if len(states) == 3], shape[-2:]
    return {states[0] for states in sequences if states[1] in lengths} | {states[1] for states in sequences if states[0] in lengths}


def order_of(scope: Scope, shape: Sequence[int]) -> Literal["examples", "heads", "unclear"]:
    """Return what the first axis of weights (B, H, T, S), (H, B, T, S), (B, T, S) or (H, T, S) counts, from the states of their module."""
    if scope.num_heads is not None:
        return "examples"
    if len(shape) == 3:
        lengths = {states[0] for states in scope.states if len(states) == 2} & set(shape[1:])
        alone = bool(lengths) and all(len(states) == 2 for states in scope.states)
        return "examples" if not alone or shape[0] == 1 else "unclear" if shape[0] in lengths else "heads"
    if not scope.states and scope.around and len(scope.around[0][0]) == 4:
        return "heads" if _has_heads_first(shape, scope.around[0][0]) else "examples"
    batches = batches_of(scope, shape)
    if shape[1] not in batches or shape[0] == 1:  # one of several examples, or one head, see `is_one_head`
        return "examples"
    return "examples" if shape[0] in batches and shape[0] != shape[1] else "unclear" if shape[0] == shape[1] else "heads"


def _has_heads_first(shape: Sequence[int], given: Sequence[int]) -> bool:
    """Return whether weights can be (H, B, T, S) alone, given queries (B, T, H, D), (B, H, T, D) or (T, B, H, D)."""
    first, second, third = given[:3]
    turned = shape[1] == first and tuple(shape[axis] for axis in (0, 2)) in ((second, third), (third, second))
    return turned and shape[0] != first and tuple(shape[:3]) != (second, third, first)


def query_axis(scope: Scope, shape: Sequence[int]) -> int | None:
    """Return the axis that counts queries in weights of grouped heads, (B, G, R, T, S) or (B, T, G, R, S); None if several may.

    The innermost module whose arguments leave one axis tells; if none leaves any, the axis is as long as that of the keys.
    """
    several, groups = False, math.prod(shape[axis] for axis in range(1 - len(shape), -1) if axis not in scope.lacking)
    for given in scope.around:
        found = [axis for axis in scope.lacking if given[0][0] == shape[0] and _counts_queries(axis, shape, given, groups)]
        if found and (
            len(found) == 1 or all(shape[axis] == 1 for axis in found)
        ):  # any axis of length 1 is the query's, or as good as that
            return -2 if -2 in found else found[0]
        several |= bool(found)
    found = [axis for axis in scope.lacking if shape[axis] == shape[-1]]
    return found[0] if len(found) == 1 and not several else None


def _counts_queries(axis: int, shape: Sequence[int], given: Sequence[Sequence[int]], groups: int) -> bool:
    """Return whether an axis of weights (..., S) counts the queries (B, T), (B, T, D), (B, T, H, D) or (B, H, T, D).

    Args:
        axis: of the weights.
        shape: of the weights.
        given: shapes of the first two sequences; keys of four axes tell which of these the order is, unless they are those of a step.
        groups: number of heads of the keys.
    """
    first, *others = given
    if len(first) < 4:
        return shape[axis] == first[1]
    heads, keys = math.prod(shape[1:-1]) // max(1, shape[axis]), next((tuple(other) for other in others if len(other) == 4), ())
    orders = [order for order in (1, 2) if keys and (keys[order], keys[3 - order]) == (shape[-1], groups)] or [1, 2]
    return any((shape[axis], heads) == (first[order], first[3 - order]) for order in orders)


def around_of(scopes: Sequence[Scope]) -> list[list[tuple[int, ...]]]:
    """Return the shapes of the first two sequences, of states or tokens, passed to each active module, innermost first."""
    with torch._C.DisableTorchFunction():
        given = ([tuple(value.shape) for name, value in _named(scope) if _may_be_sequence(name, value)][:2] for scope in reversed(scopes))
        return [shapes for shapes in given if shapes]


def is_one_head(scope: Scope) -> bool:
    """Return whether the only call of a module holds one head of all examples (1, B, T, S), not one example of a loop."""
    if len(scope.calls) != 1 or scope.num_heads is not None:
        return False
    with torch._C.DisableTorchFunction():
        shape = scope.calls[0].weights.shape
    return shape[0] == 1 < shape[1] and batches_of(scope, shape) == {shape[1]}


def have_own_keys(scopes: Sequence[Scope], shape: Sequence[int], lacking: Sequence[int], product: Sequence[int]) -> bool:
    """Return whether weights (..., 1, S) belong to single queries with keys of their own: the axes before count queries, too.

    Args:
        scopes: active modules, innermost last.
        shape: of the weights.
        lacking: see `Scope`.
        product: shape of weights times values; () if unknown.
    """
    lead, keys = shape[:-2], shape[-1]
    if shape[-2] != 1 or any(shape[axis] > 1 for axis in lacking) or not scopes or scopes[-1].num_heads is not None:
        return False
    with torch._C.DisableTorchFunction():
        given = [tuple(tensor.shape) for tensor in _sequences(scopes[-1]) if tensor.dim() in (3, 4)]
    if not given or not given[0][0]:
        return False
    batch, length, last = given[0][0], given[0][1], given[0][-1]
    if len(given[0]) == 4:  # queries (B, H, T, D) or (B, T, H, D), and keys
        known = {size for each in given[1:] or given for size in each[1:-1]}
        counts = (batch, *sorted(given[0][1:3]))
        return len(lead) == 3 and min(counts[1:]) > 1 and keys not in known and (lead[0], *sorted(lead[1:])) == counts
    if length < 2 or math.prod(lead) % (batch * length):
        return False
    if math.prod(lead[1:]) == 1 and lead:  # unless the states (1, B, D) of a recurrent decoder attend to a memory (S, B, D)
        return lead[0] > 0 and (keys, length) not in {each[:2] for each in given[1:]}
    if lead[0] != batch or length not in lead[1:] or keys in {each[1] for each in given}:
        return False
    return len(lead) > 2 or product[-1:] == (last,)  # as wide as the states: the second axis is none of heads


def in_blocks(scopes: Sequence[Scope], shape: Sequence[int], product: Sequence[int]) -> bool:
    """Return whether weights (B', N, T, S) belong to blocks of T queries of a longer sequence: B' or N then counts blocks, too.

    Args:
        scopes: active modules, innermost last; its states (B, L, D), (L, B, D), (B, H, L, D) or (B, L, H, D) tell the length L.
        shape: of the weights; neither T nor S is a length of the states.
        product: shape of weights times values; () if unknown.
    """
    if len(shape) != 4 or not scopes:
        return False
    with torch._C.DisableTorchFunction():
        states = [tuple(tensor.shape) for tensor in _sequences(scopes[-1]) if tensor.dim() in (3, 4)]
    if not states or shape[2] < 2:
        return False
    first, second, third = states[0][:3]
    if len(states[0]) == 4:
        lengths = {size for each in states for size in each[1:3]}
        pairs = ((first * second, third), (first * third, second))
        return not lengths & {shape[2], shape[3]} and any(_fills(shape, rows, length) == 1 for rows, length in pairs)
    if any(_is_whole(shape, *axes) for each in states if len(each) == 3 for axes in ((each[0], each[1]), (each[1], each[0]))):
        return False
    return any(_are_blocks(shape, product, *axes, third) for axes in ((first, second), (second, first)))


def _is_whole(shape: Sequence[int], batch: int, length: int) -> bool:
    """Return whether weights can be those of all queries or keys of states (batch, length, features)."""
    return length in shape[2:] and bool(batch) and (shape[0] % batch == 0 or shape[1] % batch == 0)


def _are_blocks(shape: Sequence[int], product: Sequence[int], batch: int, length: int, features: int) -> bool:
    """Return whether weights are those of blocks of states (batch, length, features)."""
    if not _fills(shape, batch, length):
        return False
    if shape[0] > batch:
        return shape[0] % batch == 0
    # Pooled queries give a smaller product, (B, H, T, D) with fewer T; of attention over features it is as wide as the sequence is long.
    return math.prod(product) == batch * _padded(length, shape[2]) * features and product[-1] != length


def _fills(shape: Sequence[int], rows: int, length: int) -> int:
    """Return how many times blocks (B', N, T, S) hold the positions of all rows; 0 if not a whole number of times, or in one block."""
    total, one = shape[0] * shape[1] * shape[2], rows * _padded(length, shape[2])
    return total // one if length > shape[2] and one and total % one == 0 else 0


def _padded(length: int, size: int) -> int:
    return -(-length // size) * size


def in_blocks_of(shape: Sequence[int]) -> str:
    """Describe weights (B', N, T, S) of blocks."""
    return (
        f"it attends in windows of {shape[2]} queries and {shape[3]} keys (weights {tuple(shape)}), which make no map; "
        "a window as long as the input makes one"
    )


def in_fragments(scope: Scope) -> bool:
    """Return whether the calls of one attention hold blocks of its queries: they form no map.

    One query at a time is a step of a recurrent decoder.
    """
    if len(scope.calls) < 2 or not scope.attends:
        return False
    with torch._C.DisableTorchFunction():
        lengths = {size for tensor in _sequences(scope) if tensor.dim() == 3 for size in tensor.shape[:2]}
    queries = {call.weights.shape[2] for call in scope.calls}
    return bool(lengths) and not queries & lengths and queries != {1}


def parts_of_batch(scope: Scope) -> Literal["none", "examples", "unclear"]:
    """Return whether the calls of one attention hold single examples of a batch: together they form one map.

    "unclear": as many calls as examples, with equally many maps each: one head of each example, or all heads of one.
    """
    if len(scope.calls) < 2:
        return "none"
    with torch._C.DisableTorchFunction():
        states = [tensor.shape for tensor in _sequences(scope) if tensor.dim() == 3]
        calls = [call.weights.shape for call in scope.calls]
    lengths = calls[0][2:]
    if not states or len({shape[1:] for shape in calls}) > 1 or lengths[0] == 1:
        return "none"
    if states[0][1] not in lengths and states[0][0] not in lengths:
        return "none"
    batch = states[0][0] if states[0][1] in lengths else states[0][1]
    if not scope.three:
        total = sum(shape[0] for shape in calls)
        several = batch > 1 and total == len(calls) and total % batch == 0  # and likewise for each head
        return "examples" if total == batch else "unclear" if several else "none"
    count = calls[0][0]
    if len(calls) != batch or len(set(calls)) > 1 or count == 1:
        return "examples" if len(calls) == batch and count == 1 else "none"
    return "unclear" if count == batch else "examples"


def _batches(states: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Return the batch sizes of states as long as the queries or keys of some weights that divide theirs."""
    found = [states[0]] if states[1] in weights[1:] else [states[1]] if states[0] in weights[1:] else []
    return [batch for batch in found if batch and weights[0] % batch == 0]


def _sequences(scope: Scope) -> list[Tensor]:
    """Return the tensor arguments with as many axes as the first: sequences of states, in signature order."""
    found: list[Tensor] = []
    for name, value in _named(scope):
        if not _may_be_sequence(name, value) or not value.is_floating_point():
            continue
        # A single state (B, D) may query a sequence (B, S, D), as in a recurrent decoder.
        if not found or value.dim() == found[0].dim() or (value.dim(), found[0].dim()) == (3, 2):
            found.append(value)
    return found


def _may_be_sequence(name: str, value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() > 1 and not ASIDE & set(name.lower().split("_"))


def _named(scope: Scope) -> Iterator[tuple[str, Any]]:
    names = _parameters(type(scope.module).forward)
    for number, value in enumerate(scope.args):
        yield names[number] if number < len(names) else "", value
    yield from sorted(scope.kwargs.items(), key=lambda pair: names.index(pair[0]) if pair[0] in names else len(names))


@cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the positional parameters of a forward, without self."""
    try:
        found = inspect.signature(forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in found if parameter.kind in kinds)[1:]


def in_backward() -> bool:
    """Return whether autograd is running: checkpointed activations are recomputed and were recorded before."""
    return torch._C._current_graph_task_id() != -1
