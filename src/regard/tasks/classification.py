"""Classification of sentences: training, and a trained run at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from regard.config import ClassificationConfig
from regard.tasks.chunks import in_chunks
from regard.tasks.labelling import Labelling, label_texts
from regard.tasks.sentences import SentenceRun, open_sentences, train_sentences
from regard.training import TrainResult


def train_classification(
    config: ClassificationConfig, folder: str | Path, *, say: Callable[[str], None] = print, on_event: Callable[[str], None] | None = None
) -> TrainResult:
    """Train a model that labels sentences, or resume the run in `folder`.

    Args:
        config: what to train on what; `data.train` must be set.
        folder: the run folder.
        say: takes one line of news at a time; called by the first process only.
        on_event: told what happens, before it does; see `regard.training.Job`.

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "a.tsv").write_text("good\\ta joy\\nbad\\ta bore\\n" * 10)
        ...     settings = [f"data.train={folder}/a.tsv", "training.max_updates=2", "model.embed_dim=4", "model.encoder.hidden_dim=3"]
        ...     config = load_config(None, settings, kind=ClassificationConfig)
        ...     result = train_classification(config, Path(folder, "run"), say=lambda line: None)
        ...     len(Classifier.open(Path(folder, "run")).classify(["a joy", ""]))
        2
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_sentences(config, folder, say=say, on_event=on_event)


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
            CheckpointError: see `regard.tasks.sentences.open_sentences`.
        """
        return cls(open_sentences(folder, ClassificationConfig))

    def classify(self, lines: Sequence[str], *, need_weights: bool = False) -> list[Labelling]:
        """Label lines; the result of one does not depend on the others.

        Args:
            lines: one sentence each.
            need_weights: what each hop looked at, too.

        Returns:
            One `Labelling` a line, in order; an empty or blank line has the label "".
        """
        return label_texts(self.run, [(line,) for line in lines], need_weights=need_weights, poll=self._poll)

    def stream(self, lines: Iterable[str]) -> Iterator[Labelling]:
        """Label any number of lines in constant memory, a chunk at a time; in order, one result a line."""
        for chunk in in_chunks(lines, len):
            yield from self.classify(chunk)
