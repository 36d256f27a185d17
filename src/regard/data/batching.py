"""Batches by length under a token budget: a pure function of the lengths, the seed and the epoch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from regard.data.vocabulary import BOS, EOS, PAD
from regard.errors import ConfigError, DataError, ShapeError

_JITTER = 2.0  # tokens: mixes the pairs anew each epoch; on 29,000 captions 4.1 % padding, against 3.3 % with 1 and 5.4 % with 4


class PlannedBatch(NamedTuple):
    """Pair indices of a batch; `tokens` counts the target tokens with EOS, the denominator of the loss."""

    indices: tuple[int, ...]
    tokens: int


if TYPE_CHECKING:
    from regard.data.running_text import PlannedChunk

Planned = TypeVar("Planned", "PlannedBatch", "PlannedChunk")


class BatchPlan(Sequence[PlannedBatch]):
    """Batches in training order, as arrays: a few bytes per pair instead of forty for tuples of Python integers.

    Args:
        order: indices of all pairs, batch after batch.
        bounds: (batches + 1,) start of each batch in `order`, and the end of the last.
        tokens: target tokens of each batch.
        places: order of these batches.

    Example:
        >>> plan = BatchPlan(np.array([7, 8, 9]), np.array([0, 2, 3]), np.array([5, 4]), np.array([1, 0]))
        >>> plan[0], len(plan)
        (PlannedBatch(indices=(9,), tokens=4), 2)
    """

    def __init__(self, order: np.ndarray, bounds: np.ndarray, tokens: np.ndarray, places: np.ndarray) -> None:
        self._order, self._bounds, self._tokens, self._places = order, bounds, tokens, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> PlannedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[PlannedBatch]: ...
    def __getitem__(self, index: int | slice) -> PlannedBatch | list[PlannedBatch]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        place = self._places[index]
        rows = self._order[self._bounds[place] : self._bounds[place + 1]]
        return PlannedBatch(tuple(rows.tolist()), int(self._tokens[place]))

    def counting_rows(self) -> BatchPlan:
        """Return the same batches with the number of pairs as `tokens`."""
        return BatchPlan(self._order, self._bounds, np.diff(self._bounds), self._places)

    @classmethod
    def of_groups(cls, plans: Sequence[BatchPlan], groups: Sequence[np.ndarray], lengths: np.ndarray, order: np.ndarray) -> BatchPlan:
        """Return one plan of several whose items are groups of examples.

        Args:
            plans: each over the groups of one size.
            groups: (G, size) examples of each group, per plan.
            lengths: tokens of each example, without EOS.
            order: order of all batches, counted through the plans in their own order.
        """
        rows = np.concatenate([found[plan._order].reshape(-1) for plan, found in zip(plans, groups, strict=True)])
        counts = [np.diff(plan._bounds) * found.shape[1] for plan, found in zip(plans, groups, strict=True)]
        bounds = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
        first = np.cumsum([0, *map(len, plans)])
        places = np.concatenate([plan._places + start for plan, start in zip(plans, first[:-1], strict=True)])
        return cls(rows, bounds, np.add.reduceat(lengths[rows] + 1, bounds[:-1]), places[order])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class SequenceBatch(NamedTuple):
    """One padded batch (axes B, S, T); the lengths count EOS, and `indices` are the rows' numbers in the data.

    `links` (L, 3) are linked tokens, if any: row, target token and source token, from 0.
    """

    source: Tensor
    source_lengths: Tensor
    target_input: Tensor
    target_output: Tensor
    target_lengths: Tensor
    indices: tuple[int, ...]
    links: Tensor | None = None

    def to(self, device: torch.device | str) -> SequenceBatch:
        """Return the batch with its tensors on `device`."""
        tensors = (tensor.to(device, non_blocking=True) for tensor in self[:5])
        links = None if self.links is None else self.links.to(device, non_blocking=True)
        return SequenceBatch(*tensors, indices=self.indices, links=links)


def plan_batches(
    source_lengths: Sequence[int] | np.ndarray,
    target_lengths: Sequence[int] | np.ndarray,
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    part: int = 0,
) -> BatchPlan:
    """Group pairs of similar length into batches, in random order; deterministic.

    Pairs are sorted by their longer side, then by source minus target length, plus seeded noise of up to two tokens, so that batches differ
    between epochs. They are cut so that `len(indices) * longest <= batch_tokens`, with `longest` the longest side with EOS, and the batches
    are shuffled.

    Equal work per rank: with W processes, rank r takes batch k*W + r at step k. Nearly all batches have close to `batch_tokens` padded
    tokens, so the ranks of a step do similar work and the plan does not depend on W.

    Args:
        source_lengths: tokens of each source, without EOS.
        target_lengths: tokens of each target, without BOS and EOS.
        batch_tokens: maximum padded tokens of the longer side of a batch; a longer pair forms its own batch.
        seed: seed of the run.
        epoch: counted from 0 or 1; another epoch gives other batches in another order.
        part: index of these pairs in a larger set; 0 if they are all.

    Returns:
        The batches in training order; no pairs give none.

    Raises:
        ShapeError: unequal numbers of sources and targets.
        ConfigError: `batch_tokens` is below 1, or seed or epoch below 0.
        DataError: a length is below 0.

    Example:
        >>> [batch.indices for batch in plan_batches([3, 9, 3, 9], [3, 9, 3, 9], batch_tokens=20, seed=1, epoch=0)]
        [(0, 2), (1, 3)]
    """
    source, target = _with_eos(source_lengths, target_lengths)
    if batch_tokens < 1 or seed < 0 or epoch < 0:
        raise ConfigError(f"batch_tokens {batch_tokens}, seed {seed}, epoch {epoch}: expected at least 1, 0 and 0")
    # Only `random` and stable sorts: numpy keeps their streams more stable than `permutation`, and a resumed run needs the same batches.
    generator = np.random.default_rng([seed, epoch, part] if part else [seed, epoch])
    longest = np.maximum(source, target)
    lean = source - target + generator.random(len(longest)) * _JITTER
    # Alternate the order, so that pairs on either side of a length step are similar.
    np.negative(lean, out=lean, where=longest % 2 == 0)
    order = _sorted_by_length(lean, longest).astype(np.int32)
    bounds = _cut(longest, batch_tokens)
    tokens = np.add.reduceat(target[order], bounds[:-1]) if len(order) else np.zeros(0, np.int64)
    return BatchPlan(order, bounds, tokens, np.argsort(generator.random(len(tokens)), kind="stable"))


def split_batch(planned: Planned, count: int, *, multiple: int = 1) -> list[Planned]:
    """Divide a planned batch into at most `count` non-empty batches of similar size, in order.

    Args:
        planned: a batch; its `tokens` stay those of the whole.
        count: maximum parts, at least 1.
        multiple: runs of `multiple` examples stay together.

    Example:
        >>> [part.indices for part in split_batch(PlannedBatch((3, 1, 4, 1, 5), 9), 2)]
        [(3, 1), (4, 1, 5)]
        >>> [part.indices for part in split_batch(PlannedBatch((3, 3, 4, 4, 5, 5), 9), 4, multiple=2)]
        [(3, 3), (4, 4), (5, 5)]
    """
    groups = len(planned.indices) // multiple
    count = max(1, min(count, groups))
    bounds = [groups * part // count * multiple for part in range(count)] + [len(planned.indices)]
    return [planned._replace(indices=planned.indices[start:stop]) for start, stop in itertools.pairwise(bounds)]


def count_batches(source_lengths: Sequence[int] | np.ndarray, target_lengths: Sequence[int] | np.ndarray, *, batch_tokens: int) -> int:
    """Return the number of batches of `plan_batches`, the same in every epoch.

    Args:
        source_lengths: as for `plan_batches`.
        target_lengths: as for `plan_batches`.
        batch_tokens: as for `plan_batches`.

    Example:
        >>> count_batches([3, 9, 3, 9], [3, 9, 3, 9], batch_tokens=20)
        2
    """
    source, target = _with_eos(source_lengths, target_lengths)
    return len(_cut(np.maximum(source, target), batch_tokens)) - 1


def collate(source_ids: Sequence[Sequence[int]], target_ids: Sequence[Sequence[int]], indices: Sequence[int]) -> SequenceBatch:
    """Collate the pairs `indices` into a padded batch; sources get EOS, targets BOS and EOS.

    Args:
        source_ids: token ids of all sources, without EOS.
        target_ids: token ids of all targets, without BOS and EOS.
        indices: B pair indices, in row order.

    Returns:
        The batch, padded with PAD to its longest sequences.

    Example:
        >>> collate([[5], [6, 7]], [[8], [9]], [1]).target_input
        tensor([[2, 9]])
    """
    sources, targets = [source_ids[index] for index in indices], [target_ids[index] for index in indices]
    source, source_lengths = _pad(sources, end=EOS)
    target_input, target_lengths = _pad(targets, begin=BOS)
    target_output, _ = _pad(targets, end=EOS)
    return SequenceBatch(source, source_lengths, target_input, target_output, target_lengths, tuple(int(index) for index in indices))


def stack_links(rows: Sequence[np.ndarray]) -> Tensor:
    """Return the links of a batch, (L, 3): row, target token and source token.

    Args:
        rows: per row its linked tokens in one array: target, source, target, source ...

    Example:
        >>> stack_links([np.array([0, 1, 2, 0]), np.array([], int), np.array([1, 1])]).tolist()
        [[0, 0, 1], [0, 2, 0], [2, 1, 1]]
    """
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *(row.reshape(-1, 2) for row in rows)])
    numbers = np.repeat(np.arange(len(rows)), [len(row) // 2 for row in rows])
    return torch.from_numpy(np.concatenate([numbers[:, None], pairs], 1).astype(np.int64))


def _with_eos(source_lengths: Sequence[int] | np.ndarray, target_lengths: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    source, target = (np.asarray(lengths, dtype=np.int64) for lengths in (source_lengths, target_lengths))
    if source.shape != target.shape or source.ndim != 1:
        raise ShapeError(f"source_lengths {source.shape} and target_lengths {target.shape}: expected one length per pair in both")
    if len(source) and min(source.min(), target.min()) < 0:
        raise DataError(f"a length of {min(source.min(), target.min())} tokens: expected 0 or more")
    return source + 1, target + 1


def _sorted_by_length(lean: np.ndarray, longest: np.ndarray) -> np.ndarray:
    """Return `np.lexsort((lean, longest))`, several times faster by radix sort of few lengths."""
    order = np.argsort(longest.astype(np.uint16) if longest.max(initial=0) < 2**16 else longest, kind="stable")
    lean, start = lean[order], 0
    for count in np.bincount(longest).tolist() if len(longest) else []:
        if count > 1:
            own = lean[start : start + count]
            places = np.argsort(own)
            ranked = own[places]
            if (ranked[1:] == ranked[:-1]).any():  # stable
                places = np.argsort(own, kind="stable")
            order[start : start + count] = order[start : start + count][places]
        start += count
    return order


def _cut(longest: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Return batch bounds for pairs sorted by length, each as large as the budget allows."""
    counts = np.bincount(longest) if len(longest) else np.zeros(0, np.int64)
    bounds, begun, done = [np.zeros(1, np.int64)], 0, 0
    for length in np.flatnonzero(counts).tolist():
        # `begun`: where the batch that is being filled begins; `done`: where the pairs of this length end.
        room, done = max(1, batch_tokens // length), done + int(counts[length])
        if done - begun < room:
            continue
        first = done - int(counts[length])
        # A batch of shorter pairs that takes none of this length ends before it.
        if first - begun >= room:
            bounds.append(np.array([first]))
            begun = first
        full = np.arange(begun + room, done + 1, room)
        bounds.append(full)
        begun = int(full[-1]) if len(full) else begun
    if begun < done:
        bounds.append(np.array([done]))
    return np.concatenate(bounds)


def _pad(rows: Sequence[Sequence[int]], *, begin: int | None = None, end: int | None = None) -> tuple[Tensor, Tensor]:
    """Return rows (B, S) padded with PAD, and their lengths, with one token before or behind each."""
    lengths = np.fromiter((len(row) + 1 for row in rows), np.int64, len(rows))
    padded = np.full((len(rows), int(lengths.max(initial=0))), PAD, dtype=np.int64)
    start = 0 if begin is None else 1
    for line, row in zip(padded, rows, strict=True):
        line[start : start + len(row)] = row
    if begin is not None and len(rows):
        padded[:, 0] = begin
    if end is not None:
        padded[np.arange(len(rows)), lengths - 1] = end
    return torch.from_numpy(padded), torch.from_numpy(lengths)
