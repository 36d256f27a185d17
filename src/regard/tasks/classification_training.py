"""Runs of classification and entailment: training, loading and evaluation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from regard import progress
from regard.config import ClassificationConfig, EntailmentConfig
from regard.data.batching import PlannedBatch
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
from regard.data.text_encoder import BLOCK, EncodedLines, TextEncoder, usable_lines
from regard.data.token_arrays import FlatTokens
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
        padded = [pad_tokens([text[index] for index in planned.indices]) for text in self.ids]
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
    encoder = TextEncoder(vocabulary)
    sides = [_encode_side(examples, number, config, encoder, file.path) for number in range(_sides(config))]
    kept, left_out = usable_lines(sides, config.data.max_length)
    if not kept.any():
        reasons = (
            f"{left_out['empty']} with an empty text, {left_out['too long']} longer than data.max_length ({config.data.max_length} tokens)"
        )
        raise DataError(f"{file.path}: no example can be used: {reasons}")
    return LabelledCorpus(examples.lines[kept], tuple(side.tokens.chosen(kept) for side in sides), classes[kept], weights, left_out)


def _encode_side(examples: ExampleList, number: int, config: SentenceConfig, encoder: TextEncoder, name: str) -> EncodedLines:
    """Encode one text of all examples, block by block; return tokens, and which are blank."""
    blocks = []
    with progress.stage(f"Encoding {name}", total=len(examples), unit="lines") as encoding:
        for start in range(0, len(examples), BLOCK):
            texts = examples.side(number, start, start + BLOCK)
            if config.vocabulary.lowercase:
                texts = [lowercase_text(text.decode()).encode() for text in texts]
            blocks.append(encoder.encode_bytes(texts))
            encoding.advance(len(texts))
    return EncodedLines.of(FlatTokens.joined([block.tokens for block in blocks]), np.concatenate([block.blank for block in blocks]))


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
    files = RUN_FILES
    corpus: LabelledCorpus

    def read(self) -> None:
        """Read the examples; hold some out if there are no validation examples."""
        config, data = self.config, self.config.data
        if data.train is None:
            raise DataError("data.train: no training data given (--train FILE)")
        files = {"train": data.train, "valid": data.valid, "vectors": data.vectors}
        self.digests = {name: file_digest(path) for name, path in files.items() if path is not None}
        self.train = read_labelled_file(config, data.train)
        if data.valid is not None:
            self.valid = read_labelled_file(config, data.valid)
            return
        kept, held = hold_out_labelled(self.train.examples, data.valid_size, config.training.seed)
        self.train, self.valid = self.train._replace(examples=kept), self.train._replace(examples=held, dropped=0)

    def make(self) -> dict[str, bytes]:
        """Train the vocabulary, and collect the labels."""
        config, packed = self.config, ExampleList.of(self.train.examples)
        names = {packed.names[code] for code in np.unique(packed.codes).tolist()}
        labels = sorted(names, key=lambda label: (len(label), label) if label.isdecimal() else (0, label))
        if len(labels) < 2:
            raise DataError(f"{config.data.train}: every example has the label {shown(labels[0])}, expected at least two labels")
        weights = config.model.class_weights
        if isinstance(weights, Mapping) and (strange := sorted(set(weights) ^ set(labels))):
            raise ConfigError(f"model.class_weights: expected a number for each of {listed(labels)}; {shown(strange[0])} does not fit")
        vocabulary = make_vocabulary(config.vocabulary, self._texts(sampled(self.train.examples, config.vocabulary.sample)))
        return {VOCABULARY: vocabulary, LABELS: (json.dumps(labels, ensure_ascii=False) + "\n").encode()}

    def _texts(self, examples: Iterable[LabelledExample]) -> Iterator[str]:
        lower = self.config.vocabulary.lowercase
        return (lowercase_text(text) if lower else text for example in examples for text in example.texts)

    def encode(self) -> None:
        """Encode the examples, and read word vectors."""
        self.vocabulary, self.labels = Vocabulary.load(self.folder / VOCABULARY), _load_labels(self.folder / LABELS)
        report_unknown(self.config, self.vocabulary, self._texts(self.train.examples))
        parts = (self.train, self.valid)
        self.corpus, self.held = (encode_labelled(part, self.config, self.vocabulary, self.labels) for part in parts)
        self.vectors = _read_vectors(self.config, self.vocabulary)

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
        for file, part, name in zip((self.train, self.valid), corpora, ("training", "validation"), strict=True):
            if file.dropped:
                progress.message(f"{name} pairs without an agreed label dropped: {file.dropped}")
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

        packed = ExampleList.of(self.valid.examples)
        texts = packed[int(np.argmax(packed.lines == self.held.lines[number]))].texts
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
