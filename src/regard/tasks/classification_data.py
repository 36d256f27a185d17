"""Labelled examples of a run: read, encoded into the run folder, and memory-mapped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from regard import progress
from regard.config import EntailmentConfig
from regard.data.batching import PlannedBatch
from regard.data.file_digests import DataFiles
from regard.data.labelled import (
    LabelledBatch,
    LabelledFile,
    hold_out_labelled,
    lowercase_text,
    pad_tokens,
    plan_labelled,
    read_entailment,
    read_sentences,
)
from regard.data.labelled_examples import ExampleList
from regard.data.parallel import file_digest
from regard.data.text_encoder import BLOCK, TextEncoder, usable_lines
from regard.data.token_arrays import FlatTokens, PackedTexts, TokenFile, write_tokens
from regard.data.token_cache import TOKENS, new_cache, open_cache, read_cache
from regard.data.vocabulary import Vocabulary
from regard.errors import DataError, listed, shown
from regard.tasks.classification_run import LABELS, SentenceConfig
from regard.tasks.run_folder import VOCABULARY

PARTS = ("train", "valid")


class LabelledCorpus(NamedTuple):
    """Encoded examples.

    Attributes:
        lines: N line numbers in the file, from 1.
        ids: token ids of all examples, per text (one or two).
        labels: (N,) class numbers.
        weights: (C,) class weights in the loss.
        left_out: numbers of skipped examples by reason.
    """

    lines: np.ndarray
    ids: tuple[FlatTokens, ...]
    labels: np.ndarray
    weights: np.ndarray
    left_out: dict[str, int]

    def plan(self, *, batch_tokens: int, seed: int, epoch: int) -> Sequence[PlannedBatch]:
        """Return an epoch's batches."""
        return plan_labelled([text.lengths for text in self.ids], batch_tokens=batch_tokens, seed=seed, epoch=epoch)

    def batch(self, planned: PlannedBatch) -> LabelledBatch:
        """Return the padded batch of the planned examples."""
        padded = [pad_tokens(text.rows(planned.indices)) for text in self.ids]
        classes = self.labels[list(planned.indices)]
        labels, weights = torch.from_numpy(classes), torch.from_numpy(self.weights[classes]).float()
        return LabelledBatch(tuple(ids for ids, _ in padded), tuple(count for _, count in padded), labels, weights, planned.indices)


def read_labelled_file(config: SentenceConfig, path: str | Path) -> LabelledFile:
    """Read a file of labelled examples with the settings of a run.

    Raises:
        DataError: see `regard.data.labelled.read_sentences`.
    """
    read = read_entailment if isinstance(config, EntailmentConfig) else read_sentences
    return read(path, encoding=config.data.encoding)


def read_parts(config: SentenceConfig) -> tuple[LabelledFile, LabelledFile]:
    """Read the training and validation examples of a run; without a validation file, those held out of the training data.

    Raises:
        DataError: see `regard.data.labelled.read_sentences` and `hold_out_labelled`.
    """
    data, train = config.data, read_labelled_file(config, str(config.data.train))
    if data.valid is not None:
        return train, read_labelled_file(config, data.valid)
    kept, held = hold_out_labelled(train.examples, data.valid_size, config.training.seed)
    return train._replace(examples=kept), train._replace(examples=held, dropped=0)


def encode_texts(vocabulary: Vocabulary, config: SentenceConfig, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts under a configuration."""
    return vocabulary.encode_ids([lowercase_text(text) for text in texts] if config.vocabulary.lowercase else texts)


def encode_labelled(file: LabelledFile, config: SentenceConfig, vocabulary: Vocabulary, labels: Sequence[str]) -> LabelledCorpus:
    """Encode examples, skipping and counting unusable ones.

    Raises:
        DataError: an example has a label that is not among `labels`, or none is left; names file and line, or why.
    """
    numbers, examples = {label: number for number, label in enumerate(labels)}, ExampleList.of(file.examples)
    # Class of each label of the file, or none.
    classes = np.array([numbers.get(name, -1) for name in examples.names])[examples.codes]
    if (classes < 0).any():
        unknown = examples[int(np.argmax(classes < 0))]
        raise DataError(f"{file.path}, line {unknown.line}: label {shown(unknown.label)}, the training data has {listed(labels)}")
    encoder, usable, left_out = TextEncoder(vocabulary), list[np.ndarray](), {"empty": 0, "too long": 0}
    blocks: list[list[FlatTokens]] = [[] for _ in examples.texts]
    with progress.stage(f"Encoding {file.path}", total=len(examples), unit="lines") as encoding:
        for start in range(0, len(examples), BLOCK):
            texts = [examples.side(number, start, start + BLOCK) for number in range(len(blocks))]
            if config.vocabulary.lowercase:
                texts = [[lowercase_text(text.decode()).encode() for text in side] for side in texts]
            sides = [encoder.encode_bytes(side) for side in texts]
            kept, reasons = usable_lines(sides, config.data.max_length)
            left_out = {reason: count + reasons[reason] for reason, count in left_out.items()}
            for found, side in zip(blocks, sides, strict=True):
                found.append(side.tokens.chosen(kept))
            usable.append(kept)
            encoding.advance(len(kept))
    kept = np.concatenate(usable)
    if not kept.any():
        long = f"{left_out['too long']} longer than data.max_length ({config.data.max_length} tokens)"
        raise DataError(f"{file.path}: no example can be used: {left_out['empty']} with an empty text, {long}")
    classes = classes[kept]
    weights = np.array(_class_weights(config, labels, np.bincount(classes, minlength=len(labels)).tolist()))
    return LabelledCorpus(examples.lines[kept], tuple(map(FlatTokens.joined, blocks)), classes, weights, left_out)


class LabelledText:
    """Labelled examples of a run: read from their files, unless an earlier start has kept them encoded in the run folder.

    Args:
        config: configuration of the run.
        folder: of the run.

    Attributes:
        digests: sha256 of each data file, by the key of `data` that names it.
        parts: examples to train and to validate on; none if they are kept.

    Raises:
        DataError: no examples are named, or a file cannot be read; see `read_labelled_file`.
    """

    def __init__(self, config: SentenceConfig, folder: Path) -> None:
        data = config.data
        if data.train is None:
            raise DataError("data.train: no training data given (--train FILE)")
        self._config, self._run, self._folder = config, folder, folder / TOKENS
        self._files = DataFiles({"train": data.train, "valid": data.valid, "vectors": data.vectors}, self._folder)
        self.digests = self._files.digests
        self.parts: list[LabelledFile] = []
        own = (folder / VOCABULARY, folder / LABELS)
        if not all(path.exists() for path in own) or open_cache(self._folder, self._about()) is None:
            self.parts = self._read()

    def _read(self) -> list[LabelledFile]:
        return list(read_parts(self._config))

    def _about(self) -> dict[str, Any]:
        data = self._config.data
        return {
            "format": 1,
            "text": {name: self.digests[name] for name in PARTS if name in self.digests},
            "run": [file_digest(self._run / name) for name in (VOCABULARY, LABELS)],
            "settings": [data.encoding, data.max_length, self._config.vocabulary.lowercase],
            "held_out": None if data.valid is not None else [data.valid_size, self._config.training.seed],
        }

    def encode(self, vocabulary: Vocabulary, labels: Sequence[str]) -> None:
        """Encode the examples into the run folder, unless they are kept; then let go of their text.

        Raises:
            DataError: see `encode_labelled`; or the folder cannot be written.
        """
        if self.parts:
            with new_cache(self._folder, self._about()) as (folder, kept):
                for part, file in zip(PARTS, self.parts, strict=True):
                    kept[part] = self._write(folder, part, file, encode_labelled(file, self._config, vocabulary, labels))
            self.parts = []
        self._files.keep()

    def _write(self, folder: Path, part: str, file: LabelledFile, corpus: LabelledCorpus) -> dict[str, Any]:
        for side, tokens in enumerate(corpus.ids):
            write_tokens(folder / f"{part}-{side}", tokens)
        for name, numbers in (("lines", corpus.lines), ("labels", corpus.labels)):
            (folder / f"{part}.{name}").write_bytes(numbers.astype(np.int64).tobytes())
        if part == "valid":
            examples = ExampleList.of(file.examples)
            for side, texts in enumerate(examples.chosen(np.isin(examples.lines, corpus.lines)).texts):
                write_tokens(folder / f"text-{side}", texts.utf8)
        return {"weights": corpus.weights.tolist(), "left_out": corpus.left_out, "dropped": file.dropped}


class KeptExamples(NamedTuple):
    """Encoded examples of a run folder.

    Attributes:
        train: examples to train on.
        valid: examples to validate on.
        texts: the latter's texts, per text of an example.
        dropped: pairs without annotator agreement that were dropped, of both.
    """

    train: LabelledCorpus
    valid: LabelledCorpus
    texts: tuple[PackedTexts, ...]
    dropped: tuple[int, int]


def open_labelled(folder: Path, sides: int) -> KeptExamples:
    """Open the encoded examples of a run folder; `sides`: texts of an example.

    Raises:
        DataError: they are not there, or damaged.
    """
    folder = folder / TOKENS
    kept, corpora = read_cache(folder), []
    for part in PARTS:
        lines, labels = (np.fromfile(folder / f"{part}.{name}", np.int64) for name in ("lines", "labels"))
        ids = tuple(TokenFile(folder / f"{part}-{side}", "int32").whole() for side in range(sides))
        corpora.append(LabelledCorpus(lines, ids, labels, np.array(kept[part]["weights"]), kept[part]["left_out"]))
    texts = tuple(PackedTexts(TokenFile(folder / f"text-{side}", "uint8").whole()) for side in range(sides))
    return KeptExamples(corpora[0], corpora[1], texts, (kept["train"]["dropped"], kept["valid"]["dropped"]))


def _class_weights(config: SentenceConfig, labels: Sequence[str], counts: Sequence[int]) -> list[float]:
    chosen = config.model.class_weights
    if chosen == "none":
        return [1.0] * len(labels)
    if chosen == "balanced":  # N / (C n_c): on average 1 over the examples
        return [sum(counts) / (len(labels) * max(1, count)) for count in counts]
    return [chosen[label] for label in labels]
