"""Text for language models: streams cut into chunks, or separate lines; both are deterministic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.data.batching import PlannedBatch, plan_batches
from regard.data.text_encoder import TextEncoder
from regard.data.token_arrays import FlatTokens, sequence_offsets
from regard.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from regard.errors import DataError, counted

_NO_SPACE = re.compile("[\t\x0b\x0c\r\x1c-\x1f]")
"""White space of one byte, like a space, but none."""
_RELEASE = 64
"""Chunks of a stream after which what was mapped of the files is let go of."""


class EncodedText(NamedTuple):
    """A text as tokens, EOS at the end of every line.

    Attributes:
        tokens: (N,) integers.
        starts: (lines + 1,) start of each line, and N.
        size: bytes of the text in UTF-8, with one per line end.
        unknown: number of UNK tokens.
        lost: bytes of white space that decoding the tokens does not give back; of no meaning where tokens are unknown.
    """

    tokens: np.ndarray
    starts: np.ndarray
    size: int
    unknown: int
    lost: int = 0

    @property
    def undefined(self) -> str:
        """Why bits per byte of the text are undefined: its tokens are not the text; "" where they are."""
        if self.unknown:
            return f"{counted(self.unknown, 'token')} the vocabulary does not have"
        return f"{counted(self.lost, 'byte')} of white space that no token predicts" if self.lost else ""

    def line(self, number: int) -> np.ndarray:
        """Return the tokens of a line, EOS last."""
        return self.tokens[self.starts[number] : self.starts[number + 1]]

    def between(self, start: int, stop: int) -> np.ndarray:
        """Return tokens `start` to `stop`, counted through all lines."""
        return self.tokens[start:stop]


class ReorderedText:
    """A text with reordered lines, assembled on access.

    Args:
        text: the text.
        order: (lines,) the new order of lines.

    Attributes:
        starts: (lines + 1,) start of each line, and the number of tokens.

    Example:
        >>> text = EncodedText(np.array([5, 3, 6, 3]), np.array([0, 2, 4]), 4, 0)
        >>> ReorderedText(text, np.array([1, 0])).between(1, 3)
        array([3, 5])
    """

    def __init__(self, text: EncodedText, order: np.ndarray) -> None:
        self._text, self._order, self.starts = text, order, sequence_offsets(np.diff(text.starts)[order])

    def between(self, start: int, stop: int) -> np.ndarray:
        """Return tokens `start` to `stop`, counted through all lines in their new order."""
        first = max(0, int(np.searchsorted(self.starts, start, side="right")) - 1)
        last = int(np.searchsorted(self.starts, stop))
        lines = [self._text.line(number) for number in self._order[first:last]]
        joined = np.concatenate(lines) if lines else self._text.tokens[:0]
        return joined[start - self.starts[first] : stop - self.starts[first]]


class TextBatch(NamedTuple):
    """B rows of text, padded with PAD.

    Attributes:
        inputs: (B, T) previous tokens; BOS where a line begins.
        goals: (B, T) the tokens to predict; EOS where a line ends.
        lengths: (B,) unpadded lengths.
        stream_group: index of the stream group.
        first: whether it is the first batch of the stream group.
        rows: indices of the streams.
    """

    inputs: Tensor
    goals: Tensor
    lengths: Tensor
    stream_group: int
    first: bool
    rows: slice = slice(None)

    def to(self, device: torch.device | str) -> TextBatch:
        """Return the batch with its tensors on `device`."""
        return self._replace(**{name: getattr(self, name).to(device, non_blocking=True) for name in ("inputs", "goals", "lengths")})


class PlannedChunk(NamedTuple):
    """A planned chunk: `indices` are the streams, `tokens` counts the tokens to predict."""

    indices: tuple[int, ...]
    tokens: int
    epoch: int
    stream_group: int
    number: int


def encode_text(lines: Iterable[str], vocabulary: Vocabulary) -> EncodedText:
    r"""Encode lines; an empty line is EOS only.

    Example:
        >>> vocabulary = Vocabulary.train(["a b"], kind="word", size=9)
        >>> encode_text(["b a", ""], vocabulary)
        EncodedText(tokens=array([5, 4, 3, 3], dtype=int32), starts=array([0, 3, 4]), size=5, unknown=0, lost=0)
    """
    lines = list(lines)
    tokens = append_eos(TextEncoder(vocabulary).encode(lines))
    unknown = int((tokens.ids == UNK).sum())
    return EncodedText(tokens.ids, tokens.offsets, text_size(lines), unknown, lost_size(lines, tokens, vocabulary))


def append_eos(tokens: FlatTokens) -> FlatTokens:
    """Append EOS to each line.

    Example:
        >>> append_eos(FlatTokens.of([[5, 6], []])).ids.tolist()
        [5, 6, 3, 3]
    """
    places = tokens.offsets - tokens.offsets[0]
    return FlatTokens(np.insert(tokens.ids, places[1:], EOS), places + np.arange(len(places)))


def text_size(lines: Iterable[str]) -> int:
    """Return the bytes of lines in UTF-8, with one per line end.

    Example:
        >>> text_size(["a", ""])
        3
    """
    return sum(len(line.encode("utf-8", errors="replace")) + 1 for line in lines)


def lost_size(lines: Sequence[str], tokens: FlatTokens, vocabulary: Vocabulary) -> int:
    r"""Return the bytes of white space in lines that decoding their tokens does not give back; of no meaning where tokens are unknown.

    Args:
        lines: the lines.
        tokens: of each line, EOS last.
        vocabulary: of the tokens.

    Example:
        >>> vocabulary = Vocabulary.train(["a b"], kind="word", size=9)
        >>> lost_size(["b   a", ""], FlatTokens.of([[5, 4, EOS], [EOS]]), vocabulary)  # one space is between any words
        2
        >>> lost_size(["b\ta"], FlatTokens.of([[5, 4, EOS]]), vocabulary)
        1
    """
    sizes = vocabulary.sizes()
    sizes[EOS] = 1
    lost = text_size(lines) - int(sizes[tokens.ids].sum())
    if vocabulary.kind == "word":
        return lost - int(np.maximum(tokens.lengths - 2, 0).sum()) + sum(len(_NO_SPACE.findall(line)) for line in lines)
    if vocabulary.kind == "unigram":
        starts = (tokens.offsets - tokens.offsets[0])[:-1]
        return lost + int(vocabulary.spaced()[tokens.ids[starts]].sum())
    return lost


class TextStreams:
    """A text as `stream_groups * streams` parallel streams, cut into chunks.

    Chunk n of stream group l is batch `n * stream_groups + l` of the plan, so that a stream group's chunks are consecutive. Every token is
    in exactly one chunk. Streams begin at a nearby line start, if any; they differ in length by a few tokens, and the last chunks are
    shorter.

    Args:
        text: the text.
        streams: rows of a batch.
        chunk: T, maximum tokens per row.
        stream_groups: number of batches with separate streams.
        shuffle: shuffle the lines in every epoch, by `seed` and epoch.
        seed: seed of the order.

    Raises:
        DataError: there are fewer tokens than streams.

    Example:
        >>> vocabulary = Vocabulary.train(["a b c d e f g"], kind="word", size=20)
        >>> streams = TextStreams(encode_text(["a b c d", "e f g"], vocabulary), streams=2, chunk=3)
        >>> [(batch.number, batch.tokens) for batch in streams.plan(0)]
        [(0, 6), (1, 3)]
        >>> streams.batch(streams.plan(0)[0]).inputs
        tensor([[2, 4, 5],
                [2, 8, 9]])
    """

    def __init__(
        self, text: EncodedText, *, streams: int, chunk: int, stream_groups: int = 1, shuffle: bool = False, seed: int = 0
    ) -> None:
        if len(text.tokens) < stream_groups * streams:
            raise DataError(
                f"the text has {len(text.tokens)} tokens, "
                f"too few for training.stream_groups x training.streams = {stream_groups * streams} streams"
            )
        self._text, self._count, self._chunk, self._lanes, self._streams = text, stream_groups * streams, chunk, stream_groups, streams
        self._shuffle, self._seed = shuffle, seed
        self._epoch = -1
        self._now: EncodedText | ReorderedText = text
        self._bounds = np.zeros(0, dtype=np.int64)

    def plan(self, epoch: int) -> list[PlannedChunk]:
        """Return an epoch's chunks in order."""
        self._turn_to(epoch)
        lengths = np.diff(self._bounds).reshape(self._lanes, self._streams)
        planned = []
        for number in range(-(-int(lengths.max()) // self._chunk)):
            left = np.clip(lengths - number * self._chunk, 0, self._chunk).sum(1)
            for stream_group in range(self._lanes):
                rows = tuple(range(stream_group * self._streams, (stream_group + 1) * self._streams))
                planned.append(PlannedChunk(rows, int(left[stream_group]), epoch, stream_group, number))
        return planned

    def batch(self, planned: PlannedChunk) -> TextBatch:
        """Return the tokens of a planned chunk."""
        self._turn_to(planned.epoch)
        skipped = planned.number * self._chunk
        goals, before = [], []
        for row in planned.indices:
            end = int(self._bounds[row + 1])
            start = min(int(self._bounds[row]) + skipped, end)
            stop = min(start + self._chunk, end)
            read = self._now.between(max(0, start - 1), stop)
            goals.append(read[min(start, 1) :])
            before.append(int(read[0]) if start else EOS)
        if planned.number % _RELEASE == _RELEASE - 1:
            FlatTokens(self._text.tokens, self._text.starts).release()
        place = planned.indices[0] - planned.stream_group * self._streams
        batch = pad_rows(goals, before, stream_group=planned.stream_group, first=planned.number == 0)
        return batch._replace(rows=slice(place, place + len(planned.indices)))

    def _turn_to(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        if self._shuffle:
            # Only `random` and stable sorts: numpy keeps their streams more stable than `permutation`.
            generator = np.random.default_rng([self._seed, epoch])
            self._now = ReorderedText(self._text, np.argsort(generator.random(len(self._text.starts) - 1), kind="stable"))
        self._bounds = _cut(self._now.starts, self._count, self._chunk)
        self._epoch = epoch


class SeparateLines:
    """Every line as a separate example, batched by similar length.

    Args:
        text: the text.
        batch_tokens: maximum padded tokens of a batch.
        seed: seed of the batches.

    Example:
        >>> vocabulary = Vocabulary.train(["a b c"], kind="word", size=20)
        >>> lines = SeparateLines(encode_text(["a b c", "c"], vocabulary), batch_tokens=20, seed=1)
        >>> lines.batch(lines.plan(0)[0]).goals
        tensor([[6, 3, 0, 0],
                [4, 5, 6, 3]])
    """

    def __init__(self, text: EncodedText, *, batch_tokens: int, seed: int = 0) -> None:
        self._lines, self._batch_tokens, self._seed = FlatTokens(text.tokens, text.starts), batch_tokens, seed
        self._lengths = self._lines.lengths - 1

    def plan(self, epoch: int) -> Sequence[PlannedBatch]:
        """Return an epoch's batches in order."""
        return plan_batches(self._lengths, self._lengths, batch_tokens=self._batch_tokens, seed=self._seed, epoch=epoch)

    def batch(self, planned: PlannedBatch) -> TextBatch:
        """Return the tokens of planned lines."""
        return pad_rows(self._lines.rows(planned.indices), [EOS] * len(planned.indices))


def pad_rows(goals: Sequence[np.ndarray], before: Sequence[int], *, stream_group: int = 0, first: bool = True) -> TextBatch:
    """Make a batch from rows of tokens to predict and the token before each row; EOS if it begins a line.

    Example:
        >>> pad_rows([np.array([5, 3, 6]), np.array([7])], [EOS, 8]).inputs
        tensor([[2, 5, 2],
                [8, 0, 0]])
    """
    lengths = [len(row) for row in goals]
    # At least one column: an empty batch has no gradient, and other processes would wait for it.
    padded = np.full((len(goals), max([1, *lengths])), PAD, dtype=np.int64)
    inputs = padded.copy()
    for number, (row, last) in enumerate(zip(goals, before, strict=True)):
        if len(row):
            padded[number, : len(row)] = row
            inputs[number, 0], inputs[number, 1 : len(row)] = last, row[:-1]
    inputs[inputs == EOS] = BOS
    return TextBatch(torch.from_numpy(inputs), torch.from_numpy(padded), torch.tensor(lengths, dtype=torch.long), stream_group, first)


def _cut(starts: np.ndarray, count: int, chunk: int) -> np.ndarray:
    """Return stream bounds of nearly equal length, moved to a line start if one is near."""
    total = int(starts[-1])
    places = np.arange(1, count) * total // count
    # Less than half a stream, to keep the order.
    reach = min(chunk // 2, total // (4 * count))
    after = np.searchsorted(starts, places).clip(1)
    below, above = starts[after - 1], starts[after]
    nearest = np.where(places - below <= above - places, below, above)
    moved = np.where(np.abs(nearest - places) <= reach, nearest, places)
    return np.concatenate([[0], moved, [total]])
