"""Encoded parallel text: streamed, stored in the run folder, and planned in arrays, so that memory does not grow with its size."""

from __future__ import annotations

import bisect
import json
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from regard.config import TranslationConfig
from regard.data.batching import PlannedBatch, SequenceBatch, collate, count_batches, plan_batches, stack_links
from regard.data.file_digests import FILES, read_digests, write_digests
from regard.data.image_tokens import find_images, images_digest
from regard.data.input_pairs import PairEncoder, PairVocabulary, line_encoder
from regard.data.lines import whole_characters
from regard.data.parallel import SentencePair, file_digest, held_out_indices, read_pairs
from regard.data.shards import ParallelText, find_shards
from regard.data.subsample import in_sample
from regard.data.text_encoder import TextEncoder, usable_lines
from regard.data.token_arrays import FlatTokens, TokenFile, TokenSource, TokenWriter, smallest_dtype
from regard.data.token_cache import TOKENS, new_cache, open_cache, read_cache
from regard.data.vocabulary import EOS, NAMES, Vocabulary
from regard.errors import DataError
from regard.progress import stage
from regard.strict_json import parse_json
from regard.tasks.forked_processes import can_fork, in_forks
from regard.tasks.training_links import LinkedPair, TrainingLinks
from regard.tasks.translation_run import Vocabularies

HELD_OUT = "held_out.jsonl"
BLOCK = 16384
"""Number of pairs read and encoded together."""
_BLOCKS_EACH, _MAX_PROCESSES = 4, 16
"""Blocks per additional process to be worth its start, and max number of processes: each reads the whole text."""
_SUMMARY = "summary.json"


class Corpus:
    """Encoded sentence pairs.

    Args:
        source: tokens of each source, without EOS.
        target: tokens of each target, without EOS.
        left_out: numbers of skipped pairs by reason.
        pairs: the texts, if kept.
        block: pairs that are shuffled together; only a few blocks of a larger corpus are in memory.
        links: linked tokens of each pair, see `regard.data.batching.stack_links`; None: without.

    Example:
        >>> corpus = Corpus(FlatTokens.of([[5], [6, 7]]), FlatTokens.of([[8], [9]]), {})
        >>> [corpus.batch(planned).target_input.tolist() for planned in corpus.plan(batch_tokens=8, seed=1, epoch=0)]
        [[[2, 8], [2, 9]]]
    """

    def __init__(
        self,
        source: TokenSource,
        target: TokenSource,
        left_out: dict[str, int],
        *,
        pairs: Sequence[SentencePair] = (),
        block: int = 2**22,
        links: TokenSource | None = None,
    ) -> None:
        self.source, self.target, self.left_out, self.pairs, self.block = source, target, left_out, list(pairs), block
        self.links = links
        self._parts: OrderedDict[int, list[FlatTokens]] = OrderedDict()
        self._counts: dict[int, list[int]] = {}

    @property
    def size(self) -> int:
        """Number of pairs."""
        return len(self.source)

    def plan(self, *, batch_tokens: int, seed: int, epoch: int) -> Sequence[PlannedBatch]:
        """Return an epoch's batches; deterministic."""
        if self.size > self.block:
            return BlockPlan(self, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
        return plan_batches(*self.lengths(0), batch_tokens=batch_tokens, seed=seed, epoch=epoch)

    def batch(self, planned: PlannedBatch) -> SequenceBatch:
        """Return the padded batch of the planned pairs."""
        number = planned.indices[0] // self.block if planned.indices else 0
        rows = [index - number * self.block for index in planned.indices]
        source, target, *links = (side.rows(rows) for side in self.part(number))
        batch = collate(source, target, range(len(rows)))  # type: ignore[arg-type]
        return batch._replace(indices=planned.indices, links=stack_links(links[0]) if links else None)

    def part(self, number: int) -> list[FlatTokens]:
        """Return both sides of a block, and its links if there are any."""
        if number not in self._parts:
            self._parts[number] = self._opened(number)
            if len(self._parts) > 2:  # processes of a run may be in different blocks
                self._parts.popitem(last=False)
        return self._parts[number]

    def lengths(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of each pair of a block, of both sides."""
        sides = self._opened(number)[:2]
        source, target = (side.lengths for side in sides)
        for side in sides:
            side.release()
        return source, target

    def one_input(self) -> tuple[int, int]:
        """Return the numbers of pairs without the first and without the second of two inputs.

        Example:
            >>> Corpus(FlatTokens.of([[5, 3, 6], [3, 7], [8, 3]]), FlatTokens.of([[9]] * 3), {}).one_input()
            (1, 1)
        """
        first = second = 0
        for number in range(-(-self.size // self.block)):
            source = self._opened(number)[0]
            places = source.offsets - source.offsets[0]
            first += int((source.ids[places[:-1]] == EOS).sum())
            second += int((source.ids[places[1:] - 1] == EOS).sum())
            source.release()
        return first, second

    def batches_of_blocks(self, batch_tokens: int) -> list[int]:
        """Return the number of batches per block, the same in all epochs."""
        if batch_tokens not in self._counts:
            numbers = range(-(-self.size // self.block))
            self._counts[batch_tokens] = [count_batches(*self.lengths(number), batch_tokens=batch_tokens) for number in numbers]
        return self._counts[batch_tokens]

    def _opened(self, number: int) -> list[FlatTokens]:
        start, stop = number * self.block, min((number + 1) * self.block, self.size)
        return [side.part(start, stop) for side in (self.source, self.target, self.links) if side is not None]


class BlockPlan(Sequence[PlannedBatch]):
    """The batches of an epoch of a corpus of several blocks: blocks in random order, within a block those of `plan_batches`.

    Args:
        corpus: the text.
        batch_tokens: see `plan_batches`.
        seed: seed of the run.
        epoch: from 0.
    """

    def __init__(self, corpus: Corpus, *, batch_tokens: int, seed: int, epoch: int) -> None:
        self.corpus, self.batch_tokens, self.seed, self.epoch = corpus, batch_tokens, seed, epoch
        counts = corpus.batches_of_blocks(batch_tokens)
        self.order: list[int] = np.argsort(np.random.default_rng([seed, epoch]).random(len(counts)), kind="stable").tolist()
        self.ends = list(accumulate(counts[number] for number in self.order))
        self._made: OrderedDict[int, Sequence[PlannedBatch]] = OrderedDict()

    def __len__(self) -> int:
        return self.ends[-1]

    @overload
    def __getitem__(self, index: int) -> PlannedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[PlannedBatch]: ...
    def __getitem__(self, index: int | slice) -> PlannedBatch | list[PlannedBatch]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        place = bisect.bisect_right(self.ends, index)
        number = self.order[place]
        planned = self._block(number)[index - (self.ends[place - 1] if place else 0)]
        return PlannedBatch(tuple(row + number * self.corpus.block for row in planned.indices), planned.tokens)

    def _block(self, number: int) -> Sequence[PlannedBatch]:
        if number not in self._made:
            lengths = self.corpus.lengths(number)
            self._made[number] = plan_batches(*lengths, batch_tokens=self.batch_tokens, seed=self.seed, epoch=self.epoch, part=number + 1)
            if len(self._made) > 2:
                self._made.popitem(last=False)
        return self._made[number]


def encode_corpus(pairs: Sequence[SentencePair], vocabularies: Vocabularies, *, max_length: int, name: str) -> Corpus:
    """Encode pairs in memory, skipping and counting unusable ones.

    Raises:
        DataError: no pair is left.
    """
    encoders = tuple(map(line_encoder, vocabularies))
    left_out = {"empty": 0, "too long": 0}
    with stage(f"Encoding the {name}"):
        texts = [[whole_characters(pair[side]).encode() for pair in pairs] for side in (0, 1)]
        kept, sides = _usable(texts, encoders, max_length, left_out)
    if not kept.any():
        raise _nothing_left(name, left_out, f"data.max_length ({max_length} tokens)")
    chosen = [pairs[number] for number in np.flatnonzero(kept).tolist()]
    return Corpus(sides[0].chosen(kept), sides[1].chosen(kept), left_out, pairs=chosen)


def training_images(config: TranslationConfig) -> dict[str, Path]:
    """Return the image files of second inputs, for training and for validation, by name; empty for a text model.

    Raises:
        DataError: an image is missing; the message names list and line.
    """
    data = config.data
    if config.second is None or config.second.image is None or data.source is None:
        return {}
    lists = [files[1] for files in find_shards(data.source, data.second_source)]
    lists += [] if data.valid_second_source is None else [Path(data.valid_second_source)]
    return find_images(lists, None if data.images is None else Path(data.images), optional=config.second.drop > 0)


class TrainingText:
    """Training text of a run: counted, sampled for the vocabularies, encoded into the run folder.

    Args:
        config: of the run, its recipe not yet resolved.
        folder: the run folder; files of an earlier start are reused.

    Attributes:
        digests: sha256 of each data file, by the key of `data` that names it.
        size: number of training pairs, unusable ones included.

    Raises:
        DataError: see `regard.data.shards.ParallelText`; or there are too few pairs to hold one out.
    """

    def __init__(self, config: TranslationConfig, folder: Path) -> None:
        data, self._folder, self._seed = config.data, folder / TOKENS, config.training.seed
        if data.source is None:
            raise DataError("data.source: no training data given (--source FILE --target FILE)")
        if data.valid_target is not None and data.valid_source is None:
            raise DataError("data.valid_target: given without data.valid_source")
        self._data = data
        self._text = ParallelText(
            data.source, data.target, data.second_source, known=read_digests(self._folder / FILES), languages=data.languages
        )
        valid = {name: getattr(data, name) for name in ("valid_source", "valid_target", "valid_second_source")}
        self.digests = {**self._text.digests, **{name: file_digest(path) for name, path in valid.items() if path is not None}}
        if images := training_images(config):
            self.digests["images"] = images_digest(images)
        self._links = TrainingLinks.of(config, self._text, folder)
        if self._links is not None:
            self.digests["links"] = self._links.digest
        self._held = [] if data.valid_source is not None else held_out_indices(self._text.pairs, data.valid_size, self._seed)
        self.size = self._text.pairs - len(self._held)

    def sample(self, side: int, count: int) -> Iterator[str]:
        """Yield about `count` sources (0), targets (1) or second inputs (2), spread over the training pairs; deterministic."""
        held, total = set(self._held), self._text.pairs
        share = -(-count * total // self.size)  # of all pairs, so that the rest of it is `count` pairs
        chosen = np.zeros(0, bool)
        for number, line in enumerate(self._text.side(side)):
            place = number % BLOCK
            if place == 0:
                chosen = in_sample(total, share, number, min(BLOCK, total - number))
            if chosen[place] and number not in held:
                yield line.decode("utf-8", errors="replace")

    def encode(self, vocabularies: Vocabularies, files: Sequence[Path]) -> None:
        """Encode the training pairs into the run folder, unless done.

        Raises:
            DataError: no pair can be used, a file has changed meanwhile, or the folder cannot be written.
        """
        data = self._data
        about = {
            "format": 2,
            "text": self._text.digests,
            "vocabularies": [file_digest(path) for path in files],
            "max_length": data.longest_trained,
            "held_out": [data.valid_size, self._seed] if self._held else None,
        }
        if data.languages is not None:
            about["languages"] = list(data.languages)
        if vocabularies.source.names_unknown:
            about["unknown"] = "named"
        if isinstance(vocabularies.source, PairVocabulary):
            about["inputs"] = "either" if vocabularies.source.optional else "both"
        if vocabularies.images is not None:
            about["cells"] = vocabularies.images.cells
        if self._links is not None:
            about["links"] = [self._links.digest, self._links.unit]
        if open_cache(self._folder, about) is None:
            if self._links is not None:
                self._links.prepare()
            with new_cache(self._folder, about) as (folder, kept):
                self._write(folder, vocabularies, kept)
        write_digests(self._folder / FILES, self._text.facts)

    def _write(self, folder: Path, vocabularies: Vocabularies, kept: dict[str, Any]) -> None:
        count = min(torch.get_num_threads(), _MAX_PROCESSES, self._text.pairs // (_BLOCKS_EACH * BLOCK)) if can_fork() else 1
        parts = [folder / f"part-{number}" for number in range(count)]
        with stage("Encoding the training text", total=self._text.pairs, unit="pairs") as encoding:

            def encode(number: int) -> None:
                parts[number].mkdir()
                self._encode(parts[number], vocabularies, number, count)

            def poll() -> None:
                encoding.update(done=sum(path.stat().st_size // 8 for part in parts for path in part.glob("target.offsets")))

            if count < 2 or not in_forks(encode, count, poll):
                for part in parts:
                    shutil.rmtree(part, ignore_errors=True)
                parts = [folder / "part-0"]
                parts[0].mkdir()
                self._encode(parts[0], vocabularies, 0, 1, advance=encoding.advance)
            _join(folder, parts, self._token_files(vocabularies), kept)
        if not kept["pairs"]:
            key = "max_length" if self._data.longest_trained == self._data.max_length else "max_training_length"
            raise _nothing_left("training data", kept["left_out"], f"data.{key} ({self._data.longest_trained} tokens)")
        if self._links is not None and not (folder / "links.ids").stat().st_size:
            raise DataError(f"{self._links.name}: links no words of any pair that can be used")

    def _token_files(self, vocabularies: Vocabularies) -> dict[str, str]:
        """Return the dtype of each token file by its name."""
        return {**_dtypes(vocabularies), **({} if self._links is None else {"links": "int32"})}

    def _blocks(self) -> Iterator[tuple[int, list[list[bytes]]]]:
        """Yield blocks of sources, targets and, if any, links, with the number of the first pair."""
        links = None if self._links is None else self._links.lines()
        for first, texts in self._text.blocks(BLOCK):
            yield first, [*texts] if links is None else [*texts, list(islice(links, len(texts[0])))]
        for _ in links or ():  # changes show at the end
            pass

    def _encode(
        self, folder: Path, vocabularies: Vocabularies, part: int, parts: int, *, advance: Callable[[int], None] = lambda pairs: None
    ) -> None:
        """Encode every `parts`-th block of the text into two token files and statistics."""
        encoders = tuple(map(line_encoder, vocabularies))
        left_out, sizes, chosen, held = {"empty": 0, "too long": 0}, [], [], set(self._held)
        with ExitStack() as stack:
            writers = [stack.enter_context(TokenWriter(folder / name, dtype)) for name, dtype in self._token_files(vocabularies).items()]
            for first, texts in self._blocks():
                size = len(texts[0])
                if first // BLOCK % parts != part:
                    continue
                if numbers := [number - first for number in range(first, first + size) if number in held] if held else []:
                    pairs = [[side[number].decode("utf-8", errors="replace") for side in texts[:2]] for number in numbers]
                    chosen += [(first + number, *pair) for number, pair in zip(numbers, pairs, strict=True)]
                kept = [[line for number, line in enumerate(side, first) if number not in held] for side in texts] if numbers else texts
                usable, sides = _usable(kept[:2], encoders, self._data.longest_trained, left_out)
                sides = [tokens if usable.all() else tokens.chosen(usable) for tokens in sides]
                if self._links is not None:
                    pairs_left = [number for number in range(first, first + size) if number not in held]
                    sides.append(self._links.encode(_linked_pairs(pairs_left, kept, usable), vocabularies))
                for writer, tokens in zip(writers, sides, strict=True):
                    writer.append(tokens)
                sizes.append(int(usable.sum()))
                advance(size)
        (folder / _SUMMARY).write_text(json.dumps({"sizes": sizes, "left_out": left_out, "held_out": chosen}), encoding="utf-8")


def _linked_pairs(numbers: Sequence[int], texts: Sequence[Sequence[bytes]], usable: np.ndarray) -> list[LinkedPair]:
    """Return the usable pairs of a block: their numbers, sources, targets and links."""
    rows = np.flatnonzero(usable).tolist()
    sides = ([side[row].decode("utf-8", errors="replace") for row in rows] for side in texts)
    return list(map(LinkedPair, [numbers[row] for row in rows], *sides))


def _dtypes(vocabularies: Vocabularies) -> dict[str, str]:
    return {side: _dtype(vocabulary) for side, vocabulary in zip(("source", "target"), vocabularies, strict=True)}


def _dtype(vocabulary: Vocabulary) -> str:
    return smallest_dtype(2 * NAMES if vocabulary.names_unknown else len(vocabulary))


def _join(folder: Path, parts: Sequence[Path], dtypes: Mapping[str, str], kept: dict[str, Any]) -> None:
    """Merge the blocks of all parts in order."""
    found = [parse_json((part / _SUMMARY).read_bytes()) for part in parts]
    sizes = [found[number % len(parts)]["sizes"][number // len(parts)] for number in range(sum(len(part["sizes"]) for part in found))]
    for side, dtype in dtypes.items():
        files = [TokenFile(part / side, dtype) for part in parts]
        done = [0] * len(parts)
        with TokenWriter(folder / side, dtype) as writer:
            for number, size in enumerate(sizes):
                part = number % len(parts)
                writer.append(files[part].part(done[part], done[part] + size))
                done[part] += size
    held = sorted(tuple(pair) for part in found for pair in part["held_out"])
    lines = [json.dumps({"source": source, "target": target}) + "\n" for _, source, target in held]
    (folder / HELD_OUT).write_text("".join(lines), encoding="utf-8")
    for part in parts:
        shutil.rmtree(part)
    left_out = {reason: sum(part["left_out"][reason] for part in found) for reason in ("empty", "too long")}
    kept.update({"pairs": sum(sizes), "left_out": left_out, "dtypes": dict(dtypes)})


def open_corpus(config: TranslationConfig, folder: Path) -> Corpus:
    """Open the encoded training text in a run folder.

    Raises:
        DataError: it is missing or damaged.
    """
    kept = read_cache(folder / TOKENS)
    files = {side: TokenFile(folder / TOKENS / side, dtype) for side, dtype in kept["dtypes"].items()}
    return Corpus(files["source"], files["target"], kept["left_out"], block=config.data.block_size, links=files.get("links"))


def validation_pairs(config: TranslationConfig, folder: Path) -> list[SentencePair]:
    """Return the validation pairs of a run: from its files, or held out.

    Raises:
        DataError: see `regard.data.read_pairs`.
    """
    data = config.data
    if data.valid_source is not None:
        return read_pairs(data.valid_source, data.valid_target, data.valid_second_source, languages=data.languages)
    return read_pairs(folder / TOKENS / HELD_OUT)


def _usable(
    texts: Sequence[Sequence[bytes]], encoders: tuple[TextEncoder | PairEncoder, ...], max_length: int, left_out: dict[str, int]
) -> tuple[np.ndarray, list[FlatTokens]]:
    """Encode sources and targets; return which pairs are usable, and add the others to `left_out`."""
    sides = [encoder.encode_bytes(lines) for encoder, lines in zip(encoders, texts, strict=True)]
    kept, reasons = usable_lines(sides, max_length)
    for reason, count in reasons.items():
        left_out[reason] += count
    return kept, [side.tokens for side in sides]


def _nothing_left(name: str, left_out: dict[str, int], limit: str) -> DataError:
    reasons = f"{left_out['empty']} with an empty side, {left_out['too long']} longer than {limit}"
    return DataError(f"{name}: no sentence pair can be used: {reasons}")
