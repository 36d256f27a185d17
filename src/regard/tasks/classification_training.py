"""Runs of classification and entailment: training, loading and evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from regard import progress
from regard.config import ClassificationConfig, EntailmentConfig
from regard.data.batching import PlannedBatch
from regard.data.file_digests import DataFiles
from regard.data.labelled import (
    LabelledBatch,
    LabelledExample,
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
from regard.data.subsample import sampled
from regard.data.text_encoder import BLOCK, TextEncoder, usable_lines
from regard.data.token_arrays import FlatTokens, PackedTexts, TokenFile, write_tokens
from regard.data.token_cache import TOKENS, new_cache, open_cache, read_cache
from regard.data.vocabulary import SPECIALS, UNK, Vocabulary
from regard.data.word_vectors import WordVectors, read_vectors
from regard.errors import CheckpointError, ConfigError, DataError, listed, shown
from regard.metrics.classification import macro_f1
from regard.models.classifier import SentenceClassifier, build_classifier
from regard.ops import SequenceLoss
from regard.strict_json import parse_json
from regard.tasks.batch_threads import map_batches
from regard.tasks.fine_tuning import report_unknown
from regard.tasks.run_folder import (
    CONFIG,
    DATA,
    VOCABULARY,
    check_metric,
    device_of,
    load_model,
    on_first_process,
    read_config,
    run_task,
)
from regard.tasks.train import TaskTraining, make_vocabulary, report_left_out
from regard.tasks.watched_examples import check_watch
from regard.training.memory_check import check_memory
from regard.viewer import AttentionRecord

LABELS = "labels.json"
# Maximum file size: enough for the names of a hundred thousand labels.
MAX_LABEL_BYTES = 2**22
RUN_FILES = (CONFIG, DATA, VOCABULARY, LABELS)
PARTS = ("train", "valid")
METRICS = ("loss", "accuracy", "macro_f1")
SentenceConfig = ClassificationConfig | EntailmentConfig


class SentenceRun(NamedTuple):
    """A loaded run.

    Attributes:
        folder: the run folder.
        config: the run's configuration.
        vocabulary: of its texts.
        labels: C names, in class order.
        model: the trained model, in evaluation mode.
        weights: the weight file.
    """

    folder: Path
    config: SentenceConfig
    vocabulary: Vocabulary
    labels: tuple[str, ...]
    model: SentenceClassifier
    weights: Path


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


def open_sentence_run(folder: str | Path, kind: type[ClassificationConfig] | type[EntailmentConfig] | None = None) -> SentenceRun:
    """Open a trained run: configuration, vocabulary, labels, verified weights.

    Args:
        folder: a run folder as training leaves it, finished or not.
        kind: configuration class of the task; None: either.

    Raises:
        CheckpointError: the folder is not a run of this task, or a file in it is missing, damaged or does not fit.

    Example:
        >>> open_sentence_run("no-such-run", EntailmentConfig)
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = Path(folder)
    if kind is None:
        pairs = run_task(folder) == EntailmentConfig.model_fields["task"].default
        kind = EntailmentConfig if pairs else ClassificationConfig
    config = read_config(folder, kind)
    vocabulary, labels = Vocabulary.load(folder / VOCABULARY), _load_labels(folder / LABELS)
    sizes = {"vocab_size": len(vocabulary), "classes": len(labels), "unknown": UNK}
    model, weights = load_model(folder, lambda: build_classifier(config.model, **sizes), RUN_FILES)
    return SentenceRun(folder, config, vocabulary, labels, model, weights)


def read_labelled_file(config: SentenceConfig, path: str | Path) -> LabelledFile:
    """Read a file of labelled examples with the settings of a run.

    Raises:
        DataError: see `regard.data.labelled.read_sentences`.
    """
    read = read_entailment if isinstance(config, EntailmentConfig) else read_sentences
    return read(path, encoding=config.data.encoding)


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
    weights = np.array(_class_weights(config, labels, np.bincount(classes, minlength=len(labels)).tolist()))
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
    return LabelledCorpus(examples.lines[kept], tuple(map(FlatTokens.joined, blocks)), classes[kept], weights, left_out)


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
        data, train = self._config.data, read_labelled_file(self._config, str(self._config.data.train))
        if data.valid is not None:
            return [train, read_labelled_file(self._config, data.valid)]
        kept, held = hold_out_labelled(train.examples, data.valid_size, self._config.training.seed)
        return [train._replace(examples=kept), train._replace(examples=held, dropped=0)]

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


def measure_labels(
    model: SentenceClassifier, corpus: LabelledCorpus, labels: Sequence[str], *, poll: Callable[[], None] | None = None
) -> dict[str, float]:
    """Evaluate a model on examples: loss (nats per example), accuracy and macro_f1 (both 0 to 1)."""
    device, nll = device_of(model), 0.0
    predicted = np.zeros_like(corpus.labels)

    @torch.no_grad()
    def measure(planned: PlannedBatch) -> tuple[float, np.ndarray]:
        batch = corpus.batch(planned).to(device)
        logits = model.classify(batch.tokens, batch.lengths, need_weights=False).logits.float()
        return F.cross_entropy(logits, batch.labels, reduction="sum").item(), logits.argmax(-1).cpu().numpy()

    plan = corpus.plan(batch_tokens=4096, seed=0, epoch=0)
    stage = progress.stage("Predicting the labels", total=len(plan), unit="batches")
    found = map_batches(measure, plan, device=device, poll=poll, stage=stage)
    for planned, (own, numbers) in zip(plan, found, strict=True):
        nll += own
        predicted[list(planned.indices)] = numbers
    f1 = macro_f1([labels[int(number)] for number in predicted], [labels[int(number)] for number in corpus.labels])
    return {"loss": nll / len(predicted), "accuracy": float((predicted == corpus.labels).mean()), "macro_f1": f1.value / 100}


def check_sentence_settings(config: SentenceConfig) -> None:
    """Check the settings before reading or writing anything.

    Raises:
        ConfigError: incompatible settings.

    Example:
        >>> from regard.config import ClassificationConfig
        >>> check_sentence_settings(ClassificationConfig())
    """
    check_metric(config, METRICS)
    check_watch(config.training, config.model.attends, "model.pooling last of a recurrent encoder")
    if config.data.vectors is not None and config.vocabulary.kind != "word":
        raise ConfigError(f"data.vectors: word vectors need vocabulary.kind word, found {config.vocabulary.kind}")
    if not config.vocabulary.shared:
        raise ConfigError("vocabulary.shared: must be true, labelled sentences have one vocabulary")
    check_memory(lambda: build_classifier(config.model, vocab_size=8, classes=2, unknown=UNK))


class SentenceTraining(TaskTraining[SentenceConfig]):
    """The training of a model of labelled examples."""

    watched = "validation example"
    check = staticmethod(check_sentence_settings)
    files, folders = RUN_FILES, (TOKENS,)
    corpus: LabelledCorpus

    def read(self) -> None:
        """Read the examples, in the first process; hold some out if there are no validation examples."""
        self._files: list[LabelledText] = []
        on_first_process(self.world, lambda: self._files.append(LabelledText(self.config, self.folder)))
        self.digests = self._files[0].digests if self.world.main else {}

    def make(self) -> dict[str, bytes]:
        """Train the vocabulary, and collect the labels."""
        config, packed = self.config, ExampleList.of(self._files[0].parts[0].examples)
        names = {packed.names[code] for code in np.unique(packed.codes).tolist()}
        labels = sorted(names, key=lambda label: (len(label), label) if label.isdecimal() else (0, label))
        if len(labels) < 2:
            raise DataError(f"{config.data.train}: every example has the label {shown(labels[0])}, expected at least two labels")
        weights = config.model.class_weights
        if isinstance(weights, Mapping) and (strange := sorted(set(weights) ^ set(labels))):
            raise ConfigError(f"model.class_weights: expected a number for each of {listed(labels)}; {shown(strange[0])} does not fit")
        vocabulary = make_vocabulary(config.vocabulary, self._texts(sampled(packed, config.vocabulary.sample)))
        return {VOCABULARY: vocabulary, LABELS: (json.dumps(labels, ensure_ascii=False) + "\n").encode()}

    def _texts(self, examples: Iterable[LabelledExample]) -> Iterator[str]:
        lower = self.config.vocabulary.lowercase
        return (lowercase_text(text) if lower else text for example in examples for text in example.texts)

    def encode(self) -> None:
        """Encode the examples, and read word vectors."""
        self.vocabulary, self.labels = Vocabulary.load(self.folder / VOCABULARY), _load_labels(self.folder / LABELS)

        def encode() -> None:
            if parts := self._files[0].parts:
                report_unknown(self.config, self.vocabulary, self._texts(parts[0].examples))
            self._files[0].encode(self.vocabulary, self.labels)

        on_first_process(self.world, encode)
        self.corpus, self.held, self.valid, self.dropped = open_labelled(self.folder, _sides(self.config))
        # A checkpoint has embeddings of its own.
        begun = any((self.folder / "checkpoints").glob("step-*"))
        self.vectors = None if begun else _read_vectors(self.config, self.vocabulary)

    def network(self) -> SentenceClassifier:
        """Build the model."""
        return build_classifier(self.config.model, vocab_size=len(self.vocabulary), classes=len(self.labels), unknown=UNK)

    def report(self, model: SentenceClassifier) -> None:
        """Report the numbers of examples and unknown words, and load the word vectors into the model."""
        corpora = (self.corpus, self.held)
        sizes = [len(part.labels) for part in corpora]
        progress.message(f"{time.strftime('%H:%M:%S')} {sizes[0]} training examples, {sizes[1]} validation examples")
        counts = np.bincount(self.corpus.labels, minlength=len(self.labels))
        progress.message("labels: " + ", ".join(f"{label} ({count})" for label, count in zip(self.labels, counts, strict=True)))
        for dropped, part, name in zip(self.dropped, corpora, ("training", "validation"), strict=True):
            if dropped:
                progress.message(f"{name} pairs without an agreed label dropped: {dropped}")
            report_left_out(part.left_out, f"{name} examples")
        known = np.concatenate([text.ids for text in self.held.ids])
        unknown = f"; unknown in validation text: {(known == UNK).mean():.2%}" if self.vocabulary.kind in ("word", "character") else ""
        progress.message(f"vocabulary: {len(self.vocabulary)} entries{unknown}")
        if self.vectors is not None:
            progress.message(_start_from(model.embedding, self.vectors, self.vocabulary, self.corpus))

    def loss(self, model: nn.Module, batch: LabelledBatch) -> SequenceLoss:
        """Return the sums over a batch."""
        smoothing = self.config.training.label_smoothing
        return model(batch.tokens, batch.lengths, batch.labels, batch.weights, label_smoothing=smoothing)

    def evaluate(self, model: SentenceClassifier) -> dict[str, float]:
        """See `measure_labels`."""
        return measure_labels(model, self.held, self.labels, poll=self.stop.poll)

    def lengths(self) -> list[int]:
        """Return the tokens of each validation example's longest text."""
        return np.max([text.lengths for text in self.held.ids], axis=0).tolist()

    def record(self, model: SentenceClassifier, number: int) -> AttentionRecord | None:
        """Record the attention in an example."""
        from regard.tasks.hop_attention import attention_record  # which itself reads runs

        texts = tuple(side[number] for side in self.valid)
        return attention_record(SentenceRun(self.folder, self.config, self.vocabulary, self.labels, model, self.folder), texts)


def _load_labels(path: Path) -> tuple[str, ...]:
    try:
        if path.stat().st_size > MAX_LABEL_BYTES:
            raise CheckpointError(f"{path}: more than {MAX_LABEL_BYTES:,} bytes, expected a list of labels")
        labels = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: missing or damaged") from error
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels) or len(set(labels)) < max(2, len(labels)):
        raise CheckpointError(f"{path}: damaged, expected a list of at least two labels, none twice")
    return tuple(labels)


def _class_weights(config: SentenceConfig, labels: Sequence[str], counts: Sequence[int]) -> list[float]:
    chosen = config.model.class_weights
    if chosen == "none":
        return [1.0] * len(labels)
    if chosen == "balanced":  # N / (C n_c): on average 1 over the examples
        return [sum(counts) / (len(labels) * max(1, count)) for count in counts]
    return [chosen[label] for label in labels]


def _sides(config: SentenceConfig) -> int:
    return 2 if isinstance(config, EntailmentConfig) else 1


def _read_vectors(config: SentenceConfig, vocabulary: Vocabulary) -> WordVectors | None:
    if config.data.vectors is None:
        return None
    words = vocabulary.pieces(range(len(SPECIALS), len(vocabulary)))
    found = read_vectors(config.data.vectors, words)
    if found.dim != config.model.embed_dim:
        raise ConfigError(f"model.embed_dim: {config.model.embed_dim}, but the vectors of {found.path} have {found.dim} numbers")
    return found


@torch.no_grad()
def _start_from(embedding: nn.Embedding, found: WordVectors, vocabulary: Vocabulary, corpus: LabelledCorpus) -> str:
    """Initialise embeddings from vectors, and report their coverage of the training text."""
    words = vocabulary.pieces(range(len(vocabulary)))
    rows = [number for number, word in enumerate(words) if number >= len(SPECIALS) and word in found.vectors]
    if rows:
        vectors = torch.from_numpy(np.stack([found.vectors[words[number]] for number in rows]))
        # Words without a vector start with the same scale.
        embedding.weight.normal_(std=vectors.std().item() if vectors.numel() > 1 else 1.0)
        embedding.weight[rows] = vectors.to(embedding.weight.dtype)
    known = np.concatenate([text.ids for text in corpus.ids])
    tokens = int(np.isin(known, rows).sum())
    entries = max(1, len(vocabulary) - len(SPECIALS))
    return (
        f"{found.path}: vectors for {len(rows)} of {entries} words of the vocabulary ({len(rows) / entries:.1%}), "
        f"{tokens / max(1, len(known)):.1%} of the words of the training text"
    )
