"""Classification and entailment: training on labelled texts or text pairs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from regard import progress
from regard.config import ClassificationConfig, EntailmentConfig
from regard.data.batching import PlannedBatch
from regard.data.labelled import LabelledBatch, LabelledExample, lowercase_text
from regard.data.labelled_examples import ExampleList
from regard.data.subsample import sampled
from regard.data.token_cache import TOKENS
from regard.data.vocabulary import SPECIALS, UNK, Vocabulary
from regard.data.word_vectors import WordVectors, read_vectors
from regard.errors import ConfigError, DataError, counted, listed, shown
from regard.metrics.classification import macro_f1
from regard.models.classifier import SentenceClassifier, build_classifier
from regard.ops import SequenceLoss
from regard.strict_json import dump_json
from regard.tasks.batch_threads import map_batches
from regard.tasks.classification_data import LabelledCorpus, LabelledText, open_labelled
from regard.tasks.classification_run import LABELS, RUN_FILES, SentenceConfig, SentenceRun, load_labels
from regard.tasks.fine_tuning import report_unknown
from regard.tasks.run_folder import VOCABULARY, check_metric, device_of, on_first_process
from regard.tasks.train import TaskTraining, make_vocabulary, report_left_out, train_task
from regard.tasks.watched_examples import check_watch
from regard.training import TrainResult
from regard.training.memory_check import check_memory
from regard.viewer import AttentionRecord

METRICS = ("loss", "accuracy", "macro_f1")

FEW = 20
"""Number of examples from which on labels that most examples have for themselves are taken for texts."""


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
    if config.data.vectors is not None and config.start is not None:
        raise ConfigError(f"data.vectors: without effect, since the embeddings of {config.start.run} are taken over")
    if not config.vocabulary.shared:
        raise ConfigError("vocabulary.shared: must be true, labelled sentences have one vocabulary")
    check_memory(lambda: build_classifier(config.model, vocab_size=8, classes=2, unknown=UNK))


def _check_class_weights(config: SentenceConfig, labels: Sequence[str]) -> None:
    weights = config.model.class_weights
    if isinstance(weights, Mapping) and (strange := sorted(set(weights) ^ set(labels))):
        raise ConfigError(f"model.class_weights: expected a number for each of {listed(labels)}; {shown(strange[0])} does not fit")
    if isinstance(weights, Mapping) and not any(weights.values()):
        raise ConfigError("model.class_weights: all are 0, expected a positive number for a label")


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
            held = " that is not held out for validation" if config.data.valid is None else ""
            raise DataError(f"{config.data.train}: every example{held} has the label {shown(labels[0])}, expected at least two labels")
        if len(packed) >= FEW and 2 * len(labels) > len(packed):
            found = f"{len(labels)} labels in {len(packed)} examples, such as {shown(labels[0])}"
            raise DataError(f"{config.data.train}: {found}; most examples must share theirs: is the label the first column, or `label`?")
        _check_class_weights(config, labels)
        texts, count = self._texts(sampled(packed, config.vocabulary.sample)), min(config.vocabulary.sample, len(packed))
        vocabulary = make_vocabulary(config.vocabulary, texts, count * len(packed[0].texts), file=str(config.data.train))
        return {VOCABULARY: vocabulary, LABELS: (dump_json(labels) + "\n").encode()}

    def _texts(self, examples: Iterable[LabelledExample]) -> Iterator[str]:
        lower = self.config.vocabulary.lowercase
        return (lowercase_text(text) if lower else text for example in examples for text in example.texts)

    def encode(self) -> None:
        """Encode the examples, and read word vectors."""
        self.vocabulary, self.labels = Vocabulary.load(self.folder / VOCABULARY), load_labels(self.folder / LABELS)
        _check_class_weights(self.config, self.labels)

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
        sizes = (counted(size, f"{name} example") for size, name in zip(self.sizes, ("training", "validation"), strict=True))
        progress.message(f"{time.strftime('%H:%M:%S')} {', '.join(sizes)}")
        counts = np.bincount(self.corpus.labels, minlength=len(self.labels))
        progress.message("labels: " + ", ".join(f"{label} ({count})" for label, count in zip(self.labels, counts, strict=True)))
        if (rare := int((counts == 1).sum())) > len(self.labels) / 2:
            progress.message(
                f"{rare} of {len(self.labels)} labels stand at one example; is the column of labels the right one?", warning=True
            )
        for dropped, part, name in zip(self.dropped, corpora, ("training", "validation"), strict=True):
            if dropped:
                progress.message(f"{name} pairs without an agreed label dropped: {dropped}")
            report_left_out(part.left_out, f"{name} examples")
        known = np.concatenate([text.ids for text in self.held.ids])
        unknown = f"; unknown in validation text: {(known == UNK).mean():.2%}" if self.vocabulary.kind in ("word", "character") else ""
        progress.message(f"vocabulary: {len(self.vocabulary)} entries{unknown}")
        if self.vectors is not None:
            progress.message(_start_from(model.embedding, self.vectors, self.vocabulary, self.corpus))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of examples to train and to validate on."""
        return len(self.corpus.labels), len(self.held.labels)

    def loss(self, model: nn.Module, batch: LabelledBatch) -> SequenceLoss:
        """Return the sums over a batch."""
        smoothing = self.config.training.label_smoothing
        return model(batch.tokens, batch.lengths, batch.labels, batch.weights, label_smoothing=smoothing)

    def evaluate(self, model: SentenceClassifier) -> dict[str, float]:
        """See `measure_labels`."""
        return measure_labels(model, self.held, self.labels, poll=self.stop.poll)

    @property
    def tokens_per_unit(self) -> float:
        """The mean length of the training examples' longest texts."""
        return float(np.max([text.lengths for text in self.corpus.ids], axis=0).mean())

    def lengths(self) -> list[int]:
        """Return the tokens of each validation example's longest text."""
        return np.max([text.lengths for text in self.held.ids], axis=0).tolist()

    def record(self, model: SentenceClassifier, number: int) -> AttentionRecord | None:
        """Record the attention in an example."""
        from regard.tasks.hop_attention import attention_record  # which itself reads runs

        texts = tuple(side[number] for side in self.valid)
        return attention_record(SentenceRun(self.folder, self.config, self.vocabulary, self.labels, model, self.folder), texts)


def train_classification(config: ClassificationConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    r"""Train a model that labels sentences, or resume the run in `folder`: `regard.tasks.train.train_task`; `data.train` must be set.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.tasks import Classifier
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("good\ta joy\nbad\ta bore\n" * 10)
        ...     settings = [f"data.train={folder}/a.tsv", "training.max_updates=2", "model.embed_dim=4", "model.encoder.hidden_size=3"]
        ...     config = load_config(None, settings, kind=ClassificationConfig)
        ...     result = train_classification(config, Path(folder, "run"))
        ...     len(Classifier.open(Path(folder, "run")).classify(["a joy", ""]))
        2
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_task(SentenceTraining, config, folder, on_event=on_event)


def train_entailment(config: EntailmentConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    r"""Train a model that labels pairs of a premise and a hypothesis, or resume the run in `folder`; see `train_classification`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.tasks import Entailer
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("yes\ta dog\tan animal\nno\ta dog\ta cat\n" * 10)
        ...     settings = [f"data.train={folder}/a.tsv", "training.max_updates=2", "model.embed_dim=4", "model.encoder.hidden_size=3"]
        ...     config = load_config(None, settings, kind=EntailmentConfig)
        ...     result = train_entailment(config, Path(folder, "run"))
        ...     len(Entailer.open(Path(folder, "run")).entail([("a dog", "a cat")]))
        1
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_task(SentenceTraining, config, folder, on_event=on_event)


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
