"""Label sentences, or pairs of premise and hypothesis, with a trained run, each independent of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch

from regard import progress
from regard.config import ClassificationConfig, EntailmentConfig
from regard.data.labelled import lowercase_text, pad_tokens
from regard.data.vocabulary import TokenizedText
from regard.errors import ConfigError, counted
from regard.tasks.argument_types import takes_inputs
from regard.tasks.classification_data import encode_texts
from regard.tasks.classification_run import SentenceRun, open_sentence_run
from regard.tasks.predict import Predictor, longest_first, predict
from regard.tasks.run_folder import device_of
from regard.tasks.unknown_tokens import tell_unknown

Pair = tuple[str, str]
BATCH_SIZE = 64
# More digits would depend on the batch.
DIGITS = 6


class LabelPrediction(NamedTuple):
    """Result for one example.

    Attributes:
        label: the most probable label; "" for an empty or blank text.
        probabilities: of each label; empty without one.
        weights: (R, S) token weights of each hop, per text; None if not requested, or without a label.
        truncated: number of tokens cut off (`data.max_length`).
    """

    label: str
    probabilities: dict[str, float]
    weights: tuple[np.ndarray, ...] | None
    truncated: int

    def to_json(self) -> dict[str, Any]:
        """Return label (null for an empty text) and probabilities as a JSON value."""
        return {"label": self.label or None, "probabilities": {name: round(p, DIGITS) for name, p in self.probabilities.items()}}


class ExampleScores(NamedTuple):
    """Probabilities (C,) and, if requested, weights (R, S) per text of an example."""

    probabilities: np.ndarray
    weights: tuple[np.ndarray, ...] | None


def predict_labels(
    run: SentenceRun, examples: Sequence[tuple[list[int], ...]], *, need_weights: bool = False, poll: Callable[[], None] | None = None
) -> list[ExampleScores]:
    """Predict labels of encoded examples; results are independent, up to rounding.

    Args:
        run: a loaded run.
        examples: token ids of the text, or of premise and hypothesis.
        need_weights: also return the weights of its hops.
        poll: called before each batch; may raise to stop.
    """
    device = device_of(run.model)
    order = longest_first([max(map(len, texts)) for texts in examples])

    def read(rows: list[int]) -> list[ExampleScores]:
        padded = [pad_tokens([examples[row][side] for row in rows]) for side in range(len(examples[rows[0]]))]
        tokens, lengths = [ids.to(device) for ids, _ in padded], [count.to(device) for _, count in padded]
        with torch.inference_mode():
            reading = run.model.classify(tokens, lengths, need_weights=need_weights)
            probabilities = reading.logits.double().softmax(-1).cpu().numpy()
        looked = [None if text.weights is None else text.weights.float().cpu().numpy() for text in reading.pooled]
        answers = []
        for place, row in enumerate(rows):
            own = [part[place, :, : len(ids)] for part, ids in zip(looked, examples[row], strict=True) if need_weights and part is not None]
            answers.append(ExampleScores(probabilities[place], tuple(own) or None))
        return answers

    stage = progress.stage("Labelling", total=len(order), unit="examples")
    found = predict(run.model, read, order, BATCH_SIZE, stage=stage, poll=poll)
    return [found[row] for row in range(len(examples))]


def encode_example(run: SentenceRun, texts: Sequence[str]) -> tuple[tuple[list[int], ...], int]:
    """Return the token ids of an example's texts, and how many tokens were cut off."""
    limit = run.config.data.max_length
    whole = encode_texts(run.vocabulary, run.config, texts)
    return tuple(ids[:limit] for ids in whole), sum(max(0, len(ids) - limit) for ids in whole)


def token_texts(run: SentenceRun, text: str) -> list[str]:
    """Return readable tokens of a text: whole words in their original spelling."""
    encoded = run.vocabulary.encode(lowercase_text(text) if run.config.vocabulary.lowercase else text)
    pieces = [text[slice(*span)] for span in encoded.offsets] if run.vocabulary.kind == "word" else encoded.pieces
    return pieces[: run.config.data.max_length]


def tell_unknown_words(run: SentenceRun, examples: Sequence[Sequence[str]]) -> None:
    """Warn of tokens that the model does not know; their attention looks like that of any other word."""

    def joined(texts: Sequence[str]) -> TokenizedText:
        ids = [index for side in encode_example(run, texts)[0] for index in side]
        return TokenizedText(ids, [piece for text in texts for piece in token_texts(run, text)], [])

    tell_unknown(run.vocabulary.kind, "vocabulary", list(map(joined, examples)))


def label_texts(
    run: SentenceRun, examples: Sequence[Sequence[str]], *, need_weights: bool = False, poll: Callable[[], None] | None = None
) -> list[LabelPrediction]:
    """Label examples: texts, or pairs of premise and hypothesis.

    Args:
        run: a loaded run.
        examples: a text, or premise and hypothesis, each.
        need_weights: also return the weights of its hops.
        poll: called before each batch; may raise to stop.

    Returns:
        One `LabelPrediction` per example, in order; of an empty or blank text there is none to tell ("").
    """
    # One at a time: the tokens of a line take a hundred times its size.
    encoded = [encode_example(run, texts) for texts in progress.track(examples, "Encoding the examples", unit="examples", block=256)]
    # Blank texts are never labelled.
    usable = [row for row, texts in enumerate(examples) if all(encoded[row][0]) and all(text.strip() for text in texts)]
    answers = predict_labels(run, [encoded[row][0] for row in usable], need_weights=need_weights, poll=poll)
    found = [LabelPrediction("", {}, None, 0)] * len(examples)
    for row, answer in zip(usable, answers, strict=True):
        probabilities = dict(zip(run.labels, answer.probabilities.tolist(), strict=True))
        found[row] = LabelPrediction(run.labels[int(answer.probabilities.argmax())], probabilities, answer.weights, encoded[row][1])
    return found


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
            CheckpointError: see `regard.tasks.classification_run.open_sentence_run`.
        """
        return cls(open_sentence_run(folder, cls.kind))

    @takes_inputs
    def label(self, examples: Sequence[Sequence[str]], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label examples; see `label_texts`.

        Args:
            examples: a list with the text of each, or with premise and hypothesis.
            need_weights: also return the weights of its hops.

        Raises:
            ConfigError: an example is no list of one text, or of two for a run of entailment.
        """
        count = 2 if isinstance(self.run.config, EntailmentConfig) else 1
        for number, texts in enumerate(examples):
            if len(texts) != count:
                raise ConfigError(f"label: examples[{number}]: expected {counted(count, 'text')}, found {len(texts)}")
        return label_texts(self.run, examples, need_weights=need_weights, poll=self._poll)


class Classifier(Labeller):
    """Label sentences with a trained run; see `Labeller`.

    Example:
        >>> Classifier.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    kind = ClassificationConfig

    @takes_inputs
    def classify(self, lines: Sequence[str], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label lines; results do not depend on the other items.

        Args:
            lines: one sentence each.
            need_weights: also return the weights of each hop.

        Returns:
            One `LabelPrediction` per line, in order; an empty or blank line has the label "".

        Raises:
            ConfigError: one text instead of several, or an item that is no text.
        """
        return self.label([(line,) for line in lines], need_weights=need_weights)


class Entailer(Labeller):
    """Label pairs of a premise and a hypothesis with a trained run; see `Labeller`.

    Example:
        >>> Entailer.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    kind = EntailmentConfig

    @takes_inputs
    def entail(self, pairs: Sequence[Pair], *, need_weights: bool = False) -> list[LabelPrediction]:
        """Label pairs of (premise, hypothesis); results do not depend on the other items.

        Args:
            pairs: premise and hypothesis of each.
            need_weights: also return the weights of each hop.

        Returns:
            One `LabelPrediction` per pair, in order; a pair with an empty or blank side has the label "".

        Raises:
            ConfigError: an item is no pair of texts.
        """
        return self.label(pairs, need_weights=need_weights)


def split_pair(line: str) -> Pair | None:
    r"""Return premise and hypothesis of a line of two columns with a tab between them; None for any other line.

    Example:
        >>> split_pair("a dog\tan animal"), split_pair("a dog")
        (('a dog', 'an animal'), None)
    """
    columns = line.split("\t")
    return (columns[0], columns[1]) if len(columns) == 2 else None
