"""Entailment: does a hypothesis follow from a premise? Training, and a trained run at work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from regard.config import EntailmentConfig
from regard.tasks.chunking import in_chunks
from regard.tasks.classification_prediction import LabelPrediction, label_texts
from regard.tasks.classification_training import SentenceRun, open_sentence_run, train_sentence_classifier
from regard.training import TrainResult

Pair = tuple[str, str]


def train_entailment(config: EntailmentConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a model that labels pairs of a premise and a hypothesis, or resume the run in `folder`.

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
        ...     _ = Path(folder, "a.tsv").write_text("yes\\ta dog\\tan animal\\nno\\ta dog\\ta cat\\n" * 10)
        ...     settings = [f"data.train={folder}/a.tsv", "training.max_updates=2", "model.embed_dim=4", "model.encoder.hidden_size=3"]
        ...     config = load_config(None, settings, kind=EntailmentConfig)
        ...     result = train_entailment(config, Path(folder, "run"))
        ...     len(Entailer.open(Path(folder, "run")).entail([("a dog", "a cat")]))
        1
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_sentence_classifier(config, folder, on_event=on_event)


class Entailer:
    """Label pairs of a premise and a hypothesis with a trained run.

    Args:
        run: an opened run.
        poll: called before each batch; may raise to leave.

    Example:
        >>> Entailer.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    def __init__(self, run: SentenceRun, *, poll: Callable[[], None] | None = None) -> None:
        self.run = run
        self._poll = poll

    @classmethod
    def open(cls, folder: str | Path) -> Entailer:
        """Open a run folder.

        Raises:
            CheckpointError: see `regard.tasks.classification_training.open_sentence_run`.
        """
        return cls(open_sentence_run(folder, EntailmentConfig))

    def entail(self, pairs: Sequence[Pair], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label pairs of (premise, hypothesis); the result of one does not depend on the others.

        Args:
            pairs: premise and hypothesis of each.
            need_weights: what each hop looked at, too.

        Returns:
            One `LabelPrediction` a pair, in order; a pair with an empty or blank side has the label "".
        """
        return label_texts(self.run, pairs, need_weights=need_weights, poll=self._poll)

    def stream(self, pairs: Iterable[Pair]) -> Iterator[LabelPrediction]:
        """Label any number of pairs in constant memory, a chunk at a time; in order, one result a pair."""
        for chunk in in_chunks(pairs, lambda pair: len(pair[0]) + len(pair[1])):
            yield from self.entail(chunk)


def split_pair(line: str) -> Pair | None:
    r"""Return premise and hypothesis of a line of two columns with a tab between them; None for any other line.

    Example:
        >>> split_pair("a dog\tan animal"), split_pair("a dog")
        (('a dog', 'an animal'), None)
    """
    columns = line.split("\t")
    return (columns[0], columns[1]) if len(columns) == 2 else None
