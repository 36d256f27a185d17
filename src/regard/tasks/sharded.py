"""A parallel text that is never in memory as a whole: tokens are made block by block, by processes of their own, as training goes on."""

from __future__ import annotations

import bisect
import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property, lru_cache
from itertools import accumulate
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from regard.data.batching import PlannedBatch, SequenceBatch, collate, count_batches, plan_batches
from regard.data.lines import unreadable, write_files
from regard.data.parallel import Pair, file_digest
from regard.data.shards import Block, Shard, find_shards, read_block, sample_pairs, scan_shards
from regard.data.vocabulary import Vocabulary
from regard.errors import DataError
from regard.tasks.run_folder import silent

Result = TypeVar("Result")
INDEX, LENGTHS = "index.json", "lengths.bin"
MOST_TOKENS = 2**16 - 1
"""Of either side of a pair: lengths are kept in two bytes."""


class ShardedText(NamedTuple):
    """A parallel text of many files, scanned.

    Attributes:
        shards: its files.
        blocks: where blocks begin in them.
        digest: sha256 of everything in them.
    """

    shards: list[Shard]
    blocks: list[Block]
    digest: str

    @classmethod
    def scan(cls, source: str, target: str, block: int) -> ShardedText:
        """Find and read the files once; see `regard.data.shards`.

        Raises:
            DataError: see `find_shards` and `scan_shards`.
        """
        shards = find_shards(source, target)
        return cls(shards, *scan_shards(shards, block))

    def sample(self, count: int) -> list[Pair]:
        """Read about `count` pairs from all over the text."""
        return sample_pairs(self.shards, self.blocks, count)


class EncodedBlock(NamedTuple):
    """The tokens of a block's pairs.

    Attributes:
        first: number of its first pair in the whole text.
        tokens: of sources and of targets, one pair after the other, int32.
        starts: where each begins in these, and the end of the last.
    """

    first: int
    tokens: tuple[np.ndarray, np.ndarray]
    starts: tuple[np.ndarray, np.ndarray]


class _Side:
    """The ids of one side by the pair's number in the whole text."""

    def __init__(self, block: EncodedBlock, side: int) -> None:
        self.first, self.tokens, self.starts = block.first, block.tokens[side], block.starts[side]

    def __getitem__(self, index: int) -> list[int]:
        place = index - self.first
        return self.tokens[self.starts[place] : self.starts[place + 1]].tolist()


class ShardedPlan(Sequence[PlannedBatch]):
    """The batches of an epoch: blocks in random order, within a block those of `plan_batches`; made when they are asked for.

    Args:
        corpus: the text.
        batch_tokens: see `plan_batches`.
        seed: of the run.
        epoch: from 0.
    """

    def __init__(self, corpus: ShardedCorpus, *, batch_tokens: int, seed: int, epoch: int) -> None:
        self.corpus, self.batch_tokens, self.seed, self.epoch = corpus, batch_tokens, seed, epoch
        drawn = np.random.default_rng([seed, epoch]).random(len(corpus.blocks))
        counts = corpus.batches_of_blocks(batch_tokens)
        self.order = [number for number in np.argsort(drawn, kind="stable").tolist() if counts[number]]
        self.ends = list(accumulate(counts[number] for number in self.order))
        self._made: OrderedDict[int, list[PlannedBatch]] = OrderedDict()

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, index: int) -> PlannedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[PlannedBatch]: ...
    def __getitem__(self, index: int | slice) -> PlannedBatch | list[PlannedBatch]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        place = bisect.bisect_right(self.ends, index)
        return self._block(self.order[place])[index - (self.ends[place - 1] if place else 0)]

    def _block(self, number: int) -> list[PlannedBatch]:
        if number not in self._made:
            kept, lengths = self.corpus.usable(number)
            rows = plan_batches(*lengths.T, batch_tokens=self.batch_tokens, seed=self.seed, epoch=self.epoch, part=number + 1)
            self._made[number] = [PlannedBatch(tuple(kept[list(row.indices)].tolist()), row.tokens) for row in rows]
            if len(self._made) > 2:  # the processes of a run may stand on both sides of a border
                self._made.popitem(last=False)
        return self._made[number]


class ShardedCorpus:
    """Pairs of shards as `regard.tasks.translation.Corpus` gives them, with a few blocks of them in memory.

    Before it can be used its index is made: the tokens of every pair are counted once, `advance` by `advance`; what has been counted is
    kept on disk, so that an interruption loses a few seconds, and another start nothing.

    Args:
        text: the files; an index of another text is not used.
        vocabularies: the files of both sides' vocabularies; the same twice where they are shared.
        max_length: tokens of either side at most; longer pairs are left out.
        workers: processes that make tokens, as many blocks ahead of training.
        folder: of the index.
        tell: takes a line of news.

    Attributes:
        left_out: pairs that are not taken, by reason.

    Raises:
        DataError: see `regard.data.shards.read_block`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as name:
        ...     files = [str(Path(name, side)) for side in ("a.en", "a.de", "words.json")]
        ...     for file in files[:2]:
        ...         _ = Path(file).write_text("a b\\nb\\n\\n")
        ...     Vocabulary.train(["a b"], kind="word", size=9).save(files[2])
        ...     settings = {"max_length": 5, "workers": 0, "folder": Path(name, "index")}
        ...     corpus = ShardedCorpus(ShardedText.scan(*files[:2], 2), vocabularies=(Path(files[2]), Path(files[2])), **settings)
        ...     while corpus.advance(seconds=1):
        ...         pass
        ...     corpus.left_out, len(corpus.plan(batch_tokens=8, seed=1, epoch=0))
        ({'empty': 1, 'too long': 0}, 1)
    """

    def __init__(
        self,
        text: ShardedText,
        *,
        vocabularies: tuple[Path, Path],
        max_length: int,
        workers: int,
        folder: Path,
        tell: Callable[[str], None] = silent,
    ) -> None:
        self.shards, self.blocks, self.folder, self.workers = text.shards, text.blocks, folder, workers
        self.pairs = sum(block.pairs for block in text.blocks)
        self.left_out = {"empty": 0, "too long": 0}
        self._firsts = [block.first for block in self.blocks]
        self.tell = tell
        contents = [file_digest(path) for path in vocabularies]
        self._words = tuple(zip(vocabularies, contents, strict=True))
        self._longest = min(max_length, MOST_TOKENS)
        cut = [len(self.blocks), self.blocks[0].pairs]
        self._about = {"text": text.digest, "blocks": cut, "max_length": max_length, "vocabularies": contents}
        self._counts: dict[int, list[int]] = {}
        self._encoded: OrderedDict[int, Future[EncodedBlock] | EncodedBlock] = OrderedDict()
        self._ahead: dict[int, Future[tuple[np.ndarray, dict[str, int]]]] = {}  # by the first pair of a block
        self._order: list[int] = []

    @property
    def size(self) -> int:
        """How many pairs are taken."""
        return self.pairs - sum(self.left_out.values())

    def close(self) -> None:
        """End the processes that make tokens."""
        if "_pool" in self.__dict__ and self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def advance(self, *, seconds: float) -> int:
        """Count tokens for about so long; return how many blocks are left to count.

        Raises:
            DataError: the index cannot be written, or no pair of the whole text can be used.
        """
        done = self._begin_index()
        begun = time.monotonic()
        try:
            with open(self.folder / LENGTHS, "r+b") as file:
                file.truncate(done["bytes"])
                file.seek(done["bytes"])
                left = self.blocks[done["done"] :]
                for found, reasons in self._lengths(left):
                    file.write(found.tobytes())
                    done["done"] += 1
                    done["bytes"] += found.nbytes
                    done["left_out"] = dict(Counter(done["left_out"]) + Counter(reasons))
                    if time.monotonic() - begun > seconds:
                        break
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise unreadable(self.folder / LENGTHS, error) from error
        self._write_index(done)
        self.left_out = {reason: done["left_out"].get(reason, 0) for reason in self.left_out}
        if done["done"] == len(self.blocks) and sum(self.left_out.values()) == self.pairs:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())
            raise DataError(f"{self.shards[0][0]}: no sentence pair of any shard can be used ({reasons})")
        return len(self.blocks) - done["done"]

    def open_index(self) -> None:
        """Read what another process has counted, in this one.

        Raises:
            DataError: it is not in the folder.
        """
        found = self._read_index()
        if found is None or found["done"] < len(self.blocks):
            raise DataError(f"{self.folder / INDEX}: expected the whole index, which the first process has made; all need the same folder")
        self.left_out = {reason: found["left_out"].get(reason, 0) for reason in self.left_out}

    def plan(self, *, batch_tokens: int, seed: int, epoch: int) -> ShardedPlan:
        """Return an epoch's batches."""
        plan = ShardedPlan(self, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
        self._order = plan.order
        return plan

    def batch(self, planned: PlannedBatch) -> SequenceBatch:
        """Return the padded batch of the planned pairs; blocks that come next are begun meanwhile."""
        block = self._take(bisect.bisect_right(self._firsts, planned.indices[0]) - 1)
        return collate(_Side(block, 0), _Side(block, 1), planned.indices)  # type: ignore[arg-type]

    def usable(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers (N,) of a block's pairs that are taken, and their lengths (N, 2)."""
        block = self.blocks[number]
        lengths = self._all_lengths[block.first : block.first + block.pairs]
        kept = np.flatnonzero(lengths[:, 0])
        return kept + block.first, lengths[kept].astype(np.int64)

    def batches_of_blocks(self, batch_tokens: int) -> list[int]:
        """Return how many batches each block makes, in any epoch."""
        if batch_tokens not in self._counts:
            sizes = (self.usable(number)[1] for number in range(len(self.blocks)))
            self._counts[batch_tokens] = [count_batches(*lengths.T, batch_tokens=batch_tokens) for lengths in sizes]
        return self._counts[batch_tokens]

    @cached_property
    def _all_lengths(self) -> np.ndarray:
        return np.memmap(self.folder / LENGTHS, dtype=np.uint16, mode="r", shape=(self.pairs, 2))

    @cached_property
    def _pool(self) -> ProcessPoolExecutor | None:
        if not self.workers:
            return None
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, mp_context=context, initializer=_begin_worker)

    def _take(self, number: int) -> EncodedBlock:
        if number not in self._encoded:
            self._begin(number)
        found = self._encoded[number]
        if isinstance(found, Future):
            found = self._result(found, _encode, self._words, self.shards, self.blocks[number])
            self._encoded[number] = found
            place = self._order.index(number) if number in self._order else len(self._order)
            for following in self._order[place + 1 : place + 1 + self.workers]:
                if following not in self._encoded:
                    self._begin(following)
            while len(self._encoded) > self.workers + 2:
                self._encoded.popitem(last=False)
        return found

    def _begin(self, number: int) -> None:
        self._encoded[number] = self._submit(_encode, self._words, self.shards, self.blocks[number])

    def _submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Begin a call in a helper, or, without any, make it now."""
        if self._pool is not None:
            try:
                return self._pool.submit(function, *arguments)
            except BrokenProcessPool:
                self._lose_helpers()
        done: Future[Result] = Future()
        done.set_result(function(*arguments))
        return done

    def _result(self, begun: Future[Result], function: Callable[..., Result], *arguments: Any) -> Result:
        """Return what a call gives; where its helper has died, make it in this process."""
        try:
            return begun.result()
        except (BrokenProcessPool, CancelledError):
            self._lose_helpers()
            return function(*arguments)

    def _lose_helpers(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            self.tell("a process that makes tokens has died (too little memory?): this one makes them now, and training is slower")

    def _lengths(self, blocks: Sequence[Block]) -> Iterator[tuple[np.ndarray, dict[str, int]]]:
        for number, block in enumerate(blocks):
            for following in blocks[number : number + max(1, 2 * self.workers)]:
                if following.first not in self._ahead:
                    self._ahead[following.first] = self._submit(_count, self._words, self._longest, self.shards, following)
            yield self._result(self._ahead.pop(block.first), _count, self._words, self._longest, self.shards, block)

    def _read_index(self) -> dict[str, Any] | None:
        """Return what is counted already, of this text, with these vocabularies; None where there is none, or it is damaged."""
        try:
            found = json.loads((self.folder / INDEX).read_bytes())
            whole = found["about"] == self._about and (self.folder / LENGTHS).stat().st_size >= found["bytes"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return found if whole else None

    def _begin_index(self) -> dict[str, Any]:
        if found := self._read_index():
            return found
        write_files({self.folder / LENGTHS: b""})
        return {"about": self._about, "done": 0, "bytes": 0, "left_out": {}}

    def _write_index(self, done: dict[str, Any]) -> None:
        write_files({self.folder / INDEX: (json.dumps(done, indent=1) + "\n").encode()})


def _begin_worker() -> None:
    """Leave Ctrl-C to the process that trains, and leave with it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


# A file of words and its sha256, of both sides.
Words = tuple[tuple[Path, str], ...]


@lru_cache(maxsize=2)
def _vocabulary(path: Path, digest: str) -> Vocabulary:
    return Vocabulary.load(path)


def _ids(words: Words, shards: Sequence[Shard], block: Block) -> tuple[list[list[int]], list[list[int]], list[bool]]:
    pairs = read_block(shards, block)
    source, target = (_vocabulary(*file).encode_ids([pair[side] for pair in pairs]) for side, file in enumerate(words))
    return source, target, [all(map(str.strip, pair)) for pair in pairs]


def _count(words: Words, longest: int, shards: Sequence[Shard], block: Block) -> tuple[np.ndarray, dict[str, int]]:
    """Return the lengths (pairs, 2) of a block, 0 for what is left out, and how much that is by reason."""
    source, target, filled = _ids(words, shards, block)
    lengths = np.array([[len(ids) for ids in side] for side in (source, target)], dtype=np.int64).T.reshape(-1, 2)
    empty = ~np.array(filled, dtype=bool) | (lengths == 0).any(1)
    long = ~empty & (lengths.max(1, initial=0) > longest)
    lengths[empty | long] = 0
    return lengths.astype(np.uint16), {"empty": int(empty.sum()), "too long": int(long.sum())}


def _encode(words: Words, shards: Sequence[Shard], block: Block) -> EncodedBlock:
    sides = _ids(words, shards, block)[:2]
    starts = [np.concatenate([[0], np.cumsum([len(ids) for ids in side])]).astype(np.int64) for side in sides]
    tokens = [
        np.fromiter((token for ids in side for token in ids), np.int32, int(ends[-1])) for side, ends in zip(sides, starts, strict=True)
    ]
    return EncodedBlock(block.first, (tokens[0], tokens[1]), (starts[0], starts[1]))
