"""Classification of sentences: training, and a trained run at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from regard.config import ClassificationConfig
from regard.tasks.chunking import in_chunks
from regard.tasks.classification_prediction import LabelPrediction, label_texts
from regard.tasks.classification_training import SentenceRun, open_sentence_run, train_sentence_classifier
from regard.training import TrainResult


def train_classification(config: ClassificationConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a model that labels sentences, or resume the run in `folder`.

    Args:
        config: what to train on what; `data.train` must be set.
        folder: the run folder.
        on_event: told what happens, before it does; see `regard.training.TrainingJob`.

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run.

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
    return train_sentence_classifier(config, folder, on_event=on_event)


class Classifier:
    """Label sentences with a trained run.

    Args:
        run: an opened run.
        poll: called before each batch; may raise to leave.

    Example:
        >>> Classifier.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    def __init__(self, run: SentenceRun, *, poll: Callable[[], None] | None = None) -> None:
        self.run = run
        self._poll = poll

    @classmethod
    def open(cls, folder: str | Path) -> Classifier:
        """Open a run folder.

        Raises:
            CheckpointError: see `regard.tasks.classification_training.open_sentence_run`.
        """
        return cls(open_sentence_run(folder, ClassificationConfig))

    def classify(self, lines: Sequence[str], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label lines; the result of one does not depend on the others.

        Args:
            lines: one sentence each.
            need_weights: what each hop looked at, too.

        Returns:
            One `LabelPrediction` a line, in order; an empty or blank line has the label "".
        """
        return label_texts(self.run, [(line,) for line in lines], need_weights=need_weights, poll=self._poll)

    def stream(self, lines: Iterable[str]) -> Iterator[LabelPrediction]:
        """Label any number of lines in constant memory, a chunk at a time; in order, one result a line."""
        for chunk in in_chunks(lines, len):
            yield from self.classify(chunk)
