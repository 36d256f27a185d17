"""Classification of sentences and sentence pairs: training and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Self

from regard.config import ClassificationConfig, EntailmentConfig
from regard.tasks.chunking import in_chunks
from regard.tasks.classification_prediction import LabelPrediction, label_texts
from regard.tasks.classification_training import SentenceRun, SentenceTraining, open_sentence_run
from regard.tasks.predict import Predictor
from regard.tasks.train import train_task
from regard.training import TrainResult

Pair = tuple[str, str]


def train_classification(config: ClassificationConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a model that labels sentences, or resume the run in `folder`: `regard.tasks.train.train_task`; `data.train` must be set.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("good\\ta joy\\nbad\\ta bore\\n" * 10)
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
    """Train a model that labels pairs of a premise and a hypothesis, or resume the run in `folder`; see `train_classification`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("yes\\ta dog\\tan animal\\nno\\ta dog\\ta cat\\n" * 10)
        ...     settings = [f"data.train={folder}/a.tsv", "training.max_updates=2", "model.embed_dim=4", "model.encoder.hidden_size=3"]
        ...     config = load_config(None, settings, kind=EntailmentConfig)
        ...     result = train_entailment(config, Path(folder, "run"))
        ...     len(Entailer.open(Path(folder, "run")).entail([("a dog", "a cat")]))
        1
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_task(SentenceTraining, config, folder, on_event=on_event)


class Labeller(Predictor[SentenceRun]):
    """Base of `Classifier` and `Entailer`.

    Args:
        run: a loaded run.
        poll: called before each batch; may raise to stop.
    """

    kind: ClassVar[type[ClassificationConfig] | type[EntailmentConfig]]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a run folder.

        Raises:
            CheckpointError: see `regard.tasks.classification_training.open_sentence_run`.
        """
        return cls(open_sentence_run(folder, cls.kind))

    def label(self, examples: Sequence[Sequence[str]], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label examples of one or two texts; see `regard.tasks.classification_prediction.label_texts`."""
        return label_texts(self.run, examples, need_weights=need_weights, poll=self._poll)

    def label_stream(self, examples: Iterable[Sequence[str]]) -> Iterator[LabelPrediction]:
        """Label any number of examples in constant memory, a chunk at a time; in order."""
        for chunk in in_chunks(examples, lambda texts: sum(map(len, texts))):
            yield from self.label(chunk)


class Classifier(Labeller):
    """Label sentences with a trained run; see `Labeller`.

    Example:
        >>> Classifier.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    kind = ClassificationConfig

    def classify(self, lines: Sequence[str], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label lines; results do not depend on the other items.

        Args:
            lines: one sentence each.
            need_weights: also return the weights of each hop.

        Returns:
            One `LabelPrediction` per line, in order; an empty or blank line has the label "".
        """
        return self.label([(line,) for line in lines], need_weights=need_weights)

    def stream(self, lines: Iterable[str]) -> Iterator[LabelPrediction]:
        """Label any number of lines in constant memory, a chunk at a time; in order, one result per line."""
        return self.label_stream((line,) for line in lines)


class Entailer(Labeller):
    """Label pairs of a premise and a hypothesis with a trained run; see `Labeller`.

    Example:
        >>> Entailer.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    kind = EntailmentConfig

    def entail(self, pairs: Sequence[Pair], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label pairs of (premise, hypothesis); results do not depend on the other items.

        Args:
            pairs: premise and hypothesis of each.
            need_weights: also return the weights of each hop.

        Returns:
            One `LabelPrediction` per pair, in order; a pair with an empty or blank side has the label "".
        """
        return self.label(pairs, need_weights=need_weights)

    def stream(self, pairs: Iterable[Pair]) -> Iterator[LabelPrediction]:
        """Label any number of pairs in constant memory, a chunk at a time; in order, one result per pair."""
        return self.label_stream(pairs)


def split_pair(line: str) -> Pair | None:
    r"""Return premise and hypothesis of a line of two columns with a tab between them; None for any other line.

    Example:
        >>> split_pair("a dog\tan animal"), split_pair("a dog")
        (('a dog', 'an animal'), None)
    """
    columns = line.split("\t")
    return (columns[0], columns[1]) if len(columns) == 2 else None
