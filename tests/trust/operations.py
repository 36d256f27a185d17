"""Every operation of `regard.ops` beside the formula it stands for, in plain PyTorch, and how its inputs are drawn.

The formulas compute in whatever type they are given: in float64 they are the truth, in the type of a case they are the plain computation
whose error ours is measured by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor

from regard import ops
from regard.ops.materialized_areas import LEARNED_KEY_MODES, VALUE_MODES, AreaWeights, hidden_parts
from tests.ops.test_additive import plain as plain_additive
from tests.ops.test_cached_attention import by_areas
from tests.ops.test_cached_attention import plain as plain_indexed
from tests.ops.test_residual import plain as plain_residual
from tests.reference import area as area_loops

SPREADS = {
    torch.float32: (1e-3, 1.0, 1.0, 30.0, 1e3),
    torch.bfloat16: (1e-3, 1.0, 1.0, 30.0, 1e3),
    torch.float16: (1e-2, 1.0, 1.0, 8.0),  # more and products overflow
}
POISON = (math.nan, math.inf, -math.inf, 1e20, -1e30, 3e38, -3e38)
EPSILON = 1e-6


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "is_plain": lambda x: x,
    "turned": lambda x: x.mT.contiguous().mT if x.dim() > 1 else x,
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
    "offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),  # it begins at an odd place, which no vector unit likes
    "wide": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]] if x.dim() else x,  # a slice of a wider one
}


@dataclass
class Call:
    """An operation with its inputs.

    Attributes:
        ours: takes the leaves.
        plain: likewise; the formula.
        leaves: the inputs, in float64 but exact in the type of the case.
        hidden: which elements of a leaf are masked: what they hold must not matter.
        values: no gradient is asked for.
        unit: the size of the numbers that small outputs are the differences of.
    """

    ours: Callable[..., Any]
    plain: Callable[..., Any]
    leaves: list[Tensor]
    hidden: dict[int, Tensor] = field(default_factory=dict)
    values: bool = False
    unit: float = 1.0


class Draw:
    """Where inputs come from: choices from Hypothesis, numbers from a generator that it seeds."""

    def __init__(self, data: st.DataObject, dtype: torch.dtype | None = None) -> None:
        self._data = data
        self.dtype = self.pick(*SPREADS) if dtype is None else dtype
        self.generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**40)))
        self.spread = self.pick(*SPREADS.get(self.dtype, SPREADS[torch.float32]))

    def pick(self, *choices: Any) -> Any:
        """Choose one."""
        return self._data.draw(st.sampled_from(choices))

    def size(self, most: int = 17) -> int:
        """Choose a length from 1 on."""
        return self._data.draw(st.integers(1, most))

    def rounded(self, x: Tensor) -> Tensor:
        """Round to the type of the case; float64 still."""
        return x.to(self.dtype).double()

    def numbers(self, *shape: int, spread: float | None = None) -> Tensor:
        """Draw normal numbers."""
        x = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return self.rounded(x * (self.spread if spread is None else spread))

    def moderate(self, *shape: int) -> Tensor:
        """Draw numbers of the usual size."""
        return self.numbers(*shape, spread=min(self.spread, 1.0))

    def distinct(self, *shape: int) -> Tensor:
        """Draw numbers of which no two along the last axis but one are equal, for what takes the greatest."""
        ranks = torch.rand(shape, generator=self.generator).argsort(-2)
        return self.rounded((ranks - shape[-2] // 2).double() * self.pick(2.0**-9, 1.0, 8.0))

    def rows(self, *shape: int) -> Tensor:
        """Draw weights: rows that add up to about one, some exact zeros among them, the first never."""
        weights = torch.randn(shape, generator=self.generator, dtype=torch.float64).softmax(-1)
        gone = torch.rand(shape, generator=self.generator) < 0.2
        gone[..., 0] = False
        return self.rounded(weights.masked_fill(gone, 0.0))

    def flags(self, *shape: int, share: float = 0.7) -> Tensor:
        """Draw a mask."""
        return torch.rand(shape, generator=self.generator) < share

    def mask(self, batch: int, target: int, source: int) -> Tensor | None:
        """Draw a mask of one of the usual kinds, with rows that are empty, or none."""
        kind = self.pick("none", "keys", "all", "all", "causal", "rows", "queries")
        if kind == "none":
            return None
        if kind == "causal":
            return ops.causal_mask(target, source)[None]
        shape = {"keys": (batch, 1, source), "all": (batch, target, source), "rows": (1, target, source), "queries": (batch, target, 1)}[
            kind
        ]
        mask = self.flags(*shape, share=self.pick(0.5, 0.9))
        if kind == "all":
            mask[:, 0] = False
        return mask.expand(*mask.shape[:-1], source)

    def memory(self) -> tuple[int, Any, tuple[int, int] | None]:
        """Choose a memory: its size, the largest area, the grid."""
        grid = self.pick(None, None, (1, 5), (2, 3), (4, 3), (3, 7))
        if grid is None:
            return self.size(19), self.pick(1, 2, 3, 5, 8), None
        return grid[0] * grid[1], self.pick((1, 1), (2, 2), (1, 3), (3, 2)), grid

    def layout(self) -> Callable[[Tensor], Tensor]:
        """Choose a layout in memory: what returns equal numbers in it."""
        return LAYOUTS[self.pick(*LAYOUTS)]


def softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """PyTorch's softmax, and zeros for a row with nothing to attend to."""
    if mask is None:
        return scores.softmax(-1)
    empty = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(~mask & ~empty, -torch.inf).softmax(-1).masked_fill(empty, 0.0)


def unseen(mask: Tensor | None, shape: Sequence[int]) -> Tensor | None:
    """Return the keys (..., S, 1) that no query may look at."""
    return None if mask is None else ~mask.expand(*shape).any(-2).unsqueeze(-1)


# Scores.


def three(draw: Draw, *, same: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    batch, size = draw.size(3), draw.size(67)
    target, source = draw.size(), draw.size()
    return draw.numbers(batch, target, size), draw.numbers(batch, source, size), draw.moderate(batch, source, size if same else draw.size())


def dot_scores(draw: Draw) -> Call:
    return Call(ops.dot_scores, lambda q, k: q @ k.mT, [*three(draw)[:2]])


def scaled_dot_scores(draw: Draw) -> Call:
    return Call(ops.scaled_dot_scores, lambda q, k: q @ k.mT / math.sqrt(q.shape[-1]), [*three(draw)[:2]])


def additive_scores(draw: Draw) -> Call:
    query, key, _ = three(draw)
    return Call(ops.additive_scores, plain_additive, [query, key, draw.moderate(query.shape[-1])])


def cosine_scores(draw: Draw) -> Call:
    def plain(query: Tensor, key: Tensor, sharpness: Tensor) -> Tensor:
        return sharpness * (query @ key.mT / (query.norm(dim=-1).unsqueeze(-1) * key.norm(dim=-1).unsqueeze(-2)))

    # Of a single feature the cosine is 1 or -1, and its gradient all rounding.
    batch, size = draw.size(3), draw.pick(5, 16, 31, 67)
    leaves = [draw.numbers(batch, draw.size(), size), draw.numbers(batch, draw.size(), size), draw.moderate(1).squeeze(0)]
    return Call(ops.cosine_scores, plain, leaves)


def location_scores(draw: Draw) -> Call:
    size, reach = draw.size(), draw.size()

    def plain(x: Tensor) -> Tensor:
        return torch.cat([x, x.new_full((*x.shape[:-1], size), -torch.inf)], -1)[..., :size]

    return Call(lambda x: ops.location_scores(x, size), plain, [draw.numbers(draw.size(3), draw.size(), reach)])


# Weights.


def masked_softmax(draw: Draw) -> Call:
    shape = draw.size(3), draw.size(), draw.size(131)
    mask = draw.mask(*shape)
    hidden = {} if mask is None else {0: ~mask.expand(shape)}
    return Call(lambda x: ops.masked_softmax(x, mask), lambda x: softmax(x, mask), [draw.numbers(*shape)], hidden)


def gaussian_window(draw: Draw) -> Call:
    size, radius = draw.size(), draw.pick(1, 2, 5)

    def plain(center: Tensor) -> Tensor:
        places = torch.arange(size, dtype=center.dtype)
        return torch.exp(-((places - center.unsqueeze(-1)) ** 2) / (2 * (radius / 2) ** 2))

    center = draw.rounded(torch.rand(draw.size(3), draw.size(), generator=draw.generator, dtype=torch.float64) * size)
    return Call(lambda center: ops.gaussian_window(center, size, radius), plain, [center])


def area_softmax(draw: Draw) -> Call:
    shape = draw.size(3), draw.size(), draw.size(67)
    mask, top_k, temperature = draw.mask(*shape), draw.pick(None, 1, 3), draw.pick(0.5, 1.0, 4.0)

    def plain(x: Tensor) -> Tensor:
        allowed = torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)
        if top_k is not None and top_k < shape[-1]:
            least = x.masked_fill(~allowed, -torch.inf).detach().topk(top_k).values[..., -1:]
            allowed = allowed & (x >= least)
        return softmax(x / temperature, allowed)

    hidden = {} if mask is None else {0: ~mask.expand(shape)}
    return Call(lambda x: ops.area_softmax(x, mask, top_k=top_k, temperature=temperature), plain, [draw.numbers(*shape)], hidden)


def normalized_weights(draw: Draw) -> Call:
    return Call(ops.normalized_weights, lambda w: w / w.sum(-1, keepdim=True), [draw.rows(draw.size(), draw.size(67))])


def position_log_prob(draw: Draw) -> Call:
    weights = draw.rows(draw.size(), draw.size(67))
    # A place that was never drawn has no logarithm.
    position = weights.argmax(-1)

    def plain(weights: Tensor) -> Tensor:
        return (weights.gather(-1, position.unsqueeze(-1)).squeeze(-1) / weights.sum(-1)).log()

    return Call(lambda w: ops.position_log_prob(w, position), plain, [weights])


def weights_entropy(draw: Draw) -> Call:
    def plain(weights: Tensor) -> Tensor:
        share = weights / weights.sum(-1, keepdim=True)
        gone = weights == 0
        return -(share * share.masked_fill(gone, 1.0).log()).masked_fill(gone, 0.0).sum(-1)

    return Call(ops.weights_entropy, plain, [draw.rows(draw.size(), draw.size(67))])


def score_function_loss(draw: Draw) -> Call:
    shape = draw.size(5), draw.size()
    mask, sampled, advantage = draw.flags(*shape), draw.flags(*shape), draw.moderate(*shape)

    def plain(log_prob: Tensor, entropy: Tensor) -> Tensor:
        reward = (advantage.to(log_prob.dtype) * log_prob).masked_fill(~(mask & sampled), 0.0)
        return -(0.5 * reward + 0.25 * entropy.masked_fill(~mask, 0.0)).sum() / shape[0]

    def ours(log_prob: Tensor, entropy: Tensor) -> Tensor:
        given = advantage.to(log_prob.dtype)
        return ops.score_function_loss(given, log_prob, entropy, sampled, mask, reward_weight=0.5, entropy_weight=0.25)

    return Call(ours, plain, [draw.numbers(*shape), draw.numbers(*shape)], {0: ~mask, 1: ~mask})


def doubly_stochastic_penalty(draw: Draw) -> Call:
    batch, target, source = draw.size(5), draw.size(), draw.size()
    mask, places = draw.flags(batch, target), draw.flags(batch, source)
    places[0, 0] = True
    reduction = draw.pick("paper", "mean")

    def plain(weights: Tensor) -> Tensor:
        missing = ((1 - weights.masked_fill(~mask.unsqueeze(-1), 0.0).sum(1)) ** 2).masked_fill(~places, 0.0)
        return missing.sum() / (batch if reduction == "paper" else places.sum())

    ours = lambda weights: ops.doubly_stochastic_penalty(weights, query_mask=mask, key_mask=places, reduction=reduction)  # noqa: E731
    return Call(ours, plain, [draw.rows(batch, target, source)], {0: ~mask.unsqueeze(-1)})


def redundancy_penalty(draw: Draw) -> Call:
    shape, reduction = (draw.size(5), draw.size(9), draw.size(31)), draw.pick("sum", "mean")

    def plain(weights: Tensor) -> Tensor:
        squares = (weights @ weights.mT - torch.eye(shape[1], dtype=weights.dtype)) ** 2
        return squares.sum() / (shape[0] if reduction == "sum" else squares.numel())

    return Call(lambda weights: ops.redundancy_penalty(weights, reduction=reduction), plain, [draw.rows(*shape)])


# Areas.


def inside(size: int, max_area: Any, grid: tuple[int, int] | None) -> list[list[int]]:
    """Return the items of every area."""
    return [items for _, items in area_loops.areas(*area_loops.sized(size, max_area, grid))]


def over(x: Tensor, memory: tuple[int, Any, tuple[int, int] | None], take: Callable[[Tensor], Tensor]) -> Tensor:
    """Take something of the items (..., n, D) of every area."""
    return torch.stack([take(x[..., items, :]) for items in inside(*memory)], -2)


def deviation(items: Tensor) -> Tensor:
    return ((items - items.mean(-2, keepdim=True)).square().mean(-2) + EPSILON).sqrt()


def of_memory(draw: Draw, *, distinct: bool = False) -> tuple[tuple[int, Any, tuple[int, int] | None], Tensor]:
    memory = draw.memory()
    shape = draw.size(3), memory[0], draw.size(9)
    return memory, draw.distinct(*shape) if distinct else draw.numbers(*shape)


def window_sums(draw: Draw) -> Call:
    memory, x = of_memory(draw)
    mean = draw.pick(True, False)
    plain = lambda x: over(x, memory, lambda items: items.mean(-2) if mean else items.sum(-2))  # noqa: E731
    return Call(lambda x: ops.window_sums(x, *memory[1:], mean=mean), plain, [x])


def window_maxima(draw: Draw) -> Call:
    memory, x = of_memory(draw, distinct=True)
    return Call(lambda x: ops.window_maxima(x, *memory[1:]), lambda x: over(x, memory, lambda items: items.amax(-2)), [x])


def window_moments(draw: Draw) -> Call:
    memory, x = of_memory(draw)

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        return over(x, memory, lambda items: items.mean(-2)), over(x, memory, deviation)

    return Call(lambda x: ops.window_moments(x, *memory[1:]), plain, [x])


def area_values(draw: Draw) -> Call:
    mode = draw.pick(*VALUE_MODES)
    memory, x = of_memory(draw, distinct=mode == "max")
    take = {"sum": lambda items: items.sum(-2), "mean": lambda items: items.mean(-2), "max": lambda items: items.amax(-2)}[mode]
    return Call(lambda x: ops.area_values(x, *memory[1:], mode=mode), lambda x: over(x, memory, take), [x])


def area_keys(draw: Draw) -> Call:
    """By the list in its docstring."""
    mode = draw.pick("mean", "max", "sample", *LEARNED_KEY_MODES)
    memory, x = of_memory(draw, distinct="max" in mode)
    if mode not in LEARNED_KEY_MODES:
        take = (lambda items: items.amax(-2)) if mode == "max" else (lambda items: items.mean(-2))
        return Call(lambda x: ops.area_keys(x, *memory[1:], mode=mode), lambda x: over(x, memory, take), [x])
    size = x.shape[-1] + x.shape[-1] % 2
    x = draw.distinct(*x.shape[:-1], size) if "max" in mode else draw.numbers(*x.shape[:-1], size)
    rows, columns = (1, memory[1]) if memory[2] is None else memory[1]
    parts = [draw.moderate(rows, size // 2), draw.moderate(columns, size // 2), draw.moderate(size, size * hidden_parts(mode))]
    parts += [draw.moderate(size, size)] + ([] if mode == "features" else [draw.moderate(size), draw.moderate(size)])
    spans = [shape for (_, _, *shape), _ in area_loops.areas(*area_loops.sized(*memory))]

    def plain(x: Tensor, heights: Tensor, widths: Tensor, hidden: Tensor, output: Tensor, *biases: Tensor) -> Tensor:
        tall = heights[[height - 1 for height, _ in spans]]
        wide = widths[[width - 1 for _, width in spans]]
        mean, std = over(x, memory, lambda items: items.mean(-2)), over(x, memory, deviation)
        shape = torch.cat([wide, tall] if mode == "features" else [tall, wide], -1).expand_as(mean)
        features = {
            "features": [mean, std, shape],
            "concat": [mean, std, shape],
            "max_concat": [over(x, memory, lambda items: items.amax(-2)), shape],
            "sum": [mean + std + shape],
            "sample_concat": [mean, shape],
            "sample_sum": [mean + shape],
        }[mode]
        first, last = biases or (None, None)
        return F.linear(F.linear(torch.cat(features, -1), hidden, first).relu(), output, last)

    ours = lambda x, *w: ops.area_keys(x, *memory[1:], mode=mode, weights=AreaWeights(*w))  # noqa: E731
    # The gradient jumps where the rectifier opens, and half precision opens it elsewhere.
    return Call(ours, plain, [x, *parts], values=draw.dtype != torch.float32)


def item_weights(draw: Draw) -> Call:
    memory, mode = draw.memory(), draw.pick("sum", "mean")
    areas = inside(*memory)

    def plain(weights: Tensor) -> Tensor:
        share = [1.0 if mode == "sum" else 1.0 / len(items) for items in areas]
        holds = [[item in items for item in range(memory[0])] for items in areas]
        return (weights * torch.tensor(share, dtype=weights.dtype)) @ torch.tensor(holds, dtype=weights.dtype)

    # From the number of areas alone a sequence's length cannot be told where all areas are the whole of it.
    ours = lambda weights: ops.item_weights(weights, *memory[1:], value_mode=mode)  # noqa: E731
    return Call(ours, plain, [draw.rows(draw.size(3), draw.size(), len(areas))])


def tables(x: Tensor, memory: tuple[int, Any, tuple[int, int] | None]) -> Tensor:
    """Algorithm 1: sums of all areas by differences of a table."""
    grid, largest = area_loops.sized(*memory)
    table = F.pad(x.unflatten(-2, grid).cumsum(-2).cumsum(-3), (0, 0, 1, 0, 1, 0))
    found = []
    for (top, left, height, width), _ in area_loops.areas(grid, largest):
        bottom, right = top + height, left + width
        found.append(table[..., bottom, right, :] + table[..., top, left, :] - table[..., top, right, :] - table[..., bottom, left, :])
    return torch.stack(found, -2)


def summed_area_table(draw: Draw) -> Call:
    memory, x = of_memory(draw)
    grid, _ = area_loops.sized(*memory)
    plain = lambda x: F.pad(x.unflatten(-2, grid).cumsum(-2).cumsum(-3), (0, 0, 1, 0, 1, 0))  # noqa: E731
    return Call(lambda x: ops.summed_area_table(x, memory[2]), plain, [x])


def area_sums(draw: Draw) -> Call:
    memory, x = of_memory(draw)
    return Call(lambda x: ops.area_sums(x, *memory[1:]), lambda x: tables(x, memory), [x])


def area_features(draw: Draw) -> Call:
    """Algorithm 2. The deviations' gradients are left out: where all items are one the root of Eq. 12 has none to speak of."""
    memory, x = of_memory(draw)
    sizes = torch.tensor([len(items) for items in inside(*memory)])

    def plain(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = sizes.to(x.dtype).unsqueeze(-1)
        mean, square = tables(x, memory) / count, tables(x * x, memory) / count
        return mean, (square - mean * mean).clamp_min(0) + EPSILON, tables(x, memory)

    def ours(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = ops.area_features(x, *memory[1:])
        # The square: near zero a root makes a great error of a small one.
        return found.mean, found.std**2, found.sum

    return Call(ours, plain, [x], values=True)


# Whole attentions.


def nonlocal_attention(draw: Draw) -> Call:
    form, need = draw.pick("gaussian", "embedded_gaussian", "dot", "concat"), draw.pick(True, False)
    query, key, value = three(draw, same=False)
    mask = draw.mask(len(query), query.shape[1], key.shape[1])
    leaves = [query, key, value] + ([draw.moderate(2 * query.shape[-1])] if form == "concat" else [])

    def plain(query: Tensor, key: Tensor, value: Tensor, vector: Tensor | None = None) -> tuple[Tensor, ...]:
        if vector is not None:
            first, second = vector.chunk(2)
            scores = ((query @ first).unsqueeze(-1) + (key @ second).unsqueeze(-2)).relu()
        else:
            scores = query @ key.mT
        if "gaussian" in form:
            weights = softmax(scores, mask)
        else:
            allowed = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
            weights = (scores / allowed.sum(-1, keepdim=True).clamp_min(1)).masked_fill(~allowed, 0.0)
        return (weights @ value, weights) if need else (weights @ value,)

    def ours(*leaves: Tensor) -> Any:
        found = ops.nonlocal_attention(*leaves[:3], *leaves[3:], form=form, mask=mask, need_weights=need)
        return tuple(found) if need else (found.context,)

    gone = unseen(mask, (len(query), query.shape[1], key.shape[1]))
    return Call(ours, plain, leaves, {} if gone is None else {1: gone, 2: gone})


def attention(draw: Draw) -> Call:
    batch, heads, target, source, size = draw.size(3), draw.size(3), draw.size(67), draw.size(67), draw.size()
    mask = draw.flags(batch, target, source)
    leaves = [draw.numbers(batch, heads, target, size), *(draw.moderate(batch, heads, source, size) for _ in range(2))]
    leaves.append(draw.moderate(heads, target + source))
    distances = torch.arange(source) - torch.arange(target).unsqueeze(-1) + target

    def plain(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        scores = (query * size**-0.5) @ key.mT + table[:, distances]
        return softmax(scores, mask[:, None]) @ value

    def ours(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Any:
        return ops.attention(
            query, key, value, lambda s, b, h, q, kv: s + table[h, kv - q + target], mask_mod=lambda b, h, q, kv: mask[b, q, kv]
        )

    gone = ~mask.any(1)[:, None, :, None]
    return Call(ours, plain, leaves, {1: gone, 2: gone})


def cached_attention(draw: Draw) -> Call:
    groups, share, heads, size, length, items = draw.size(5), draw.size(5), draw.size(3), draw.size(67), draw.size(), draw.size(31)
    places = torch.randint(items, (groups, length), generator=draw.generator)
    lengths = draw.pick(None, torch.randint(length + 1, (groups,), generator=draw.generator))
    longest = draw.pick(1, 1, 2, 3, 5)
    leaves = [draw.numbers(groups, share, heads, size), draw.moderate(items, heads, size), draw.moderate(items, heads, size)]

    def plain(query: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if longest > 1:
            return by_areas(query, keys, values, places, lengths, longest, size**-0.5)
        return plain_indexed(query, keys, values, places, lengths)

    def ours(query: Tensor, keys: Tensor, values: Tensor) -> Any:
        return ops.cached_attention(query, keys, values, places, lengths=lengths, max_area=longest, need_weights=True)

    counted = places if lengths is None else places[torch.arange(length) < lengths.unsqueeze(1)]
    gone = torch.ones(items, dtype=torch.bool).index_fill(0, counted.flatten(), False)[:, None, None]
    return Call(ours, plain, leaves, {1: gone, 2: gone}, values=True)


def mask_nonfinite(draw: Draw) -> Call:
    _, key, value = three(draw, same=False)
    target = draw.size()
    mask = draw.mask(len(key), target, key.shape[1])
    gone = unseen(mask, (len(key), target, key.shape[1]))

    def plain(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        return (key, value) if gone is None else (key.masked_fill(gone, 0.0), value.masked_fill(gone, 0.0))

    return Call(
        lambda key, value: ops.mask_nonfinite(key, value, mask)[:2], plain, [key, value], {} if gone is None else {0: gone, 1: gone}
    )


# Parts of models.


def gru_gates(draw: Draw) -> Call:
    rows, size = draw.size(), draw.size(67)

    def plain(projected: Tensor, recurrent: Tensor, bias: Tensor, hidden: Tensor) -> Tensor:
        (pr, pz, pn), (ur, uz, un) = projected.chunk(3, -1), recurrent.chunk(3, -1)
        reset, update = torch.sigmoid(pr + ur), torch.sigmoid(pz + uz)
        return (1 - update) * torch.tanh(pn + reset * (un + bias)) + update * hidden

    return Call(
        ops.gru_gates, plain, [draw.numbers(rows, 3 * size), draw.numbers(rows, 3 * size), draw.numbers(size), draw.moderate(rows, size)]
    )


def lstm_gates(draw: Draw) -> Call:
    rows, size = draw.size(), draw.size(67)

    def plain(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        i, f, g, o = gates.chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell

    return Call(ops.lstm_gates, plain, [draw.numbers(rows, 4 * size), draw.moderate(rows, size)])


def linear(draw: Draw) -> Call:
    """Alone, and in recurrent steps."""
    inputs, outputs = draw.size(67), draw.size(67)
    if draw.pick(True, False):
        leaves = [draw.numbers(draw.size(), inputs), draw.moderate(outputs, inputs), draw.moderate(outputs)]
        return Call(ops.linear, F.linear, leaves[: draw.pick(2, 3)])

    def steps(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with ops.recurrent_steps():
            return ops.linear(torch.tanh(ops.linear(x, weight, bias)), weight, bias)

    leaves = [draw.moderate(draw.size(), inputs), draw.moderate(inputs, inputs), draw.moderate(inputs)]
    return Call(steps, lambda x, w, b: F.linear(torch.tanh(F.linear(x, w, b)), w, b), leaves)


def packed_weights(draw: Draw) -> Call:
    """A layer alone, and two of them at once."""
    joint, inputs, outputs = draw.pick(True, False), draw.size(67), draw.size(67)

    def ours(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        layer = ops.Linear(inputs, outputs, dtype=x.dtype)
        layer.weight, layer.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
        with torch.no_grad(), ops.packed_weights():
            return ops.joint_linear(x, [layer, layer]) if joint else layer(x)

    plain = (lambda *given: (F.linear(*given),) * 2) if joint else F.linear
    leaves = [draw.numbers(draw.size(), inputs), draw.moderate(outputs, inputs), draw.moderate(outputs)]
    return Call(ours, plain, leaves, values=True)


def linear_cross_entropy(draw: Draw) -> Call:
    rows, size, classes, smoothing = draw.size(31), draw.size(31), draw.size(131), draw.pick(0.0, 0.1)
    target = torch.randint(classes, (rows,), generator=draw.generator)
    spread = min(draw.spread, 8.0)

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        logits = F.linear(hidden, weight, bias)
        return F.cross_entropy(
            logits.to(torch.promote_types(logits.dtype, torch.float32)), target, reduction="sum", label_smoothing=smoothing
        )

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return ops.linear_cross_entropy(hidden, weight, bias, target, label_smoothing=smoothing).loss

    leaves = [draw.numbers(rows, size, spread=spread), draw.moderate(classes, size), draw.moderate(classes)]
    return Call(ours, plain, leaves[: draw.pick(2, 3)])


def consistent_cross_entropy(draw: Draw) -> Call:
    rows, size, classes, smoothing, alpha = draw.size(31), draw.size(31), draw.size(131), draw.pick(0.0, 0.1), draw.pick(0.0, 5.0)
    target = torch.randint(classes, (rows,), generator=draw.generator)
    spread = min(draw.spread, 8.0)

    def plain(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        logits = [F.linear(rows, weight, bias) for rows in (first, second)]
        p, q = (part.to(torch.promote_types(part.dtype, torch.float32)).log_softmax(-1) for part in logits)
        one, other = (F.cross_entropy(part, target, reduction="sum", label_smoothing=smoothing) for part in (p, q))
        return (one + other) / 2 + alpha / 4 * ((p.exp() - q.exp()) * (p - q)).sum()

    def ours(first: Tensor, second: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        given = {"consistency": alpha, "label_smoothing": smoothing}
        return ops.consistent_cross_entropy(first, second, weight, bias, target, **given).loss

    passes = [draw.numbers(rows, size, spread=spread) for _ in range(2)]
    return Call(ours, plain, [*passes, draw.moderate(classes, size), draw.moderate(classes)][: draw.pick(3, 4)])


def residual(draw: Draw) -> Call:
    shape = draw.size(5), draw.size(), draw.size(131)
    if draw.pick(True, False):
        return Call(ops.residual, lambda x, change: x + change, [draw.numbers(*shape), draw.numbers(*shape)])
    # Of one number, or of nearly equal ones, the variance is all rounding.
    shape, spread = (*shape[:2], shape[2] + 4), max(draw.spread, 1.0)
    leaves = [draw.numbers(*shape, spread=spread), draw.numbers(*shape, spread=spread), draw.moderate(shape[-1]), draw.moderate(shape[-1])]
    # The bias may be left out.
    return Call(ops.residual, lambda x, c, w, *b: plain_residual(x, c, w, *(b or [torch.zeros_like(w)])), leaves[: draw.pick(3, 4)])


def top_log_probs(draw: Draw) -> Call:
    size, count = draw.pick(1, 5, 63, 64, 65, 700), draw.pick(1, 2, 7)
    logits = draw.numbers(draw.size(3), draw.size(5), size)
    if size > 5:
        logits[..., : size // 3] = -torch.inf

    def plain(logits: Tensor) -> Tensor:
        return logits.log_softmax(-1).sort(-1, descending=True).values[..., :count]

    return Call(lambda logits: ops.top_log_probs(logits, count).log_probs, plain, [logits], values=True)


def lazy_logits(draw: Draw) -> Call:
    size, width, count = draw.pick(13, 83, 1031), draw.size(67), draw.pick(1, 6)
    leaves = [draw.moderate(draw.size(3), draw.size(5), width), draw.moderate(size, width), draw.moderate(size)]
    forbidden = torch.tensor([0, 2])

    def plain(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return (
            F.linear(hidden, weight, bias)
            .log_softmax(-1)
            .index_fill(-1, forbidden, -torch.inf)
            .sort(-1, descending=True)
            .values[..., :count]
        )

    def ours(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        layer = ops.Linear(width, size, dtype=hidden.dtype)
        layer.weight, layer.bias = torch.nn.Parameter(weight.detach()), torch.nn.Parameter(bias.detach())
        with torch.no_grad(), ops.packed_weights():
            found = ops.lazy_logits(hidden, layer)
            return plain(hidden, weight, bias) if found is None else found.best(count, forbidden, instead=3, least=-1e9)[0]

    # A log-probability is the difference of a logit and the logarithm of a sum.
    return Call(ours, plain, leaves, values=True, unit=float(F.linear(leaves[0], leaves[1], leaves[2]).abs().max()))


OPERATIONS: dict[str, Callable[[Draw], Call]] = {
    function.__name__: function
    for function in (
        *(dot_scores, scaled_dot_scores, additive_scores, cosine_scores, location_scores),
        *(masked_softmax, gaussian_window, area_softmax, normalized_weights, position_log_prob, weights_entropy, score_function_loss),
        *(doubly_stochastic_penalty, redundancy_penalty),
        *(window_sums, window_maxima, window_moments, area_values, area_keys, item_weights, summed_area_table, area_sums, area_features),
        *(nonlocal_attention, attention, cached_attention, mask_nonfinite),
        *(
            gru_gates,
            lstm_gates,
            linear,
            packed_weights,
            linear_cross_entropy,
            consistent_cross_entropy,
            residual,
            top_log_probs,
            lazy_logits,
        ),
    )
}
