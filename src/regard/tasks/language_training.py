"""Language model training and evaluation."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from regard import progress
from regard.config import LanguageConfig
from regard.data.batching import split_batch
from regard.data.lines import write_files
from regard.data.running_text import EncodedText, SeparateLines, TextBatch, TextStreams, encode_text
from regard.data.token_cache import TOKENS
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError, counted
from regard.metrics import Score
from regard.models import RecurrentLanguageModel, StreamState, build_language_model
from regard.ops import SequenceLoss
from regard.tasks.batch_threads import map_batches
from regard.tasks.fine_tuning import report_unknown
from regard.tasks.language_data import TrainingLines, open_texts
from regard.tasks.run_folder import (
    CONFIG,
    DATA,
    VOCABULARY,
    Run,
    check_metric,
    device_of,
    load_model,
    on_first_process,
    read_config,
    run_path,
)
from regard.tasks.train import TaskTraining, make_vocabulary, train_task
from regard.tasks.watched_examples import check_watch
from regard.training import TrainResult
from regard.training.memory_check import check_memory
from regard.viewer import AttentionRecord

RUN_FILES = (CONFIG, DATA, VOCABULARY)
METRICS = ("loss", "perplexity", "token_accuracy")

# Tokens per chunk in evaluation.
CHUNK = 64
# Number of parallel parts in evaluation, constant so that rounding is the same on every machine.
SIDES = 2


LanguageRun = Run[LanguageConfig, RecurrentLanguageModel]


def open_language_run(folder: str | Path) -> LanguageRun:
    """Open a trained run: configuration, vocabulary, verified weights.

    Raises:
        CheckpointError: the folder is not a run of this task, or a file is missing or damaged.
        DataError: the vocabulary is damaged.

    Example:
        >>> open_language_run("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = run_path(folder)
    config = read_config(folder, LanguageConfig)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    model, weights = load_model(folder, lambda: build_language_model(config.model, vocab_size=len(vocabulary)), RUN_FILES)
    return LanguageRun(folder, config, vocabulary, model, weights)


def train_language(config: LanguageConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    r"""Train a language model, or resume the run in `folder`: `regard.tasks.train.train_task`; `data.text` must be set.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> settings = ["vocabulary.kind=word", "model.embed_dim=4", "model.hidden_size=8", "training.max_updates=2", "training.streams=2"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text").write_text("a dog runs\na dog sleeps\n" * 20)
        ...     config = load_config(None, [*settings, f"data.text={folder}/text"], kind=LanguageConfig)
        ...     result = train_language(config, Path(folder, "run"))
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    return train_task(LanguageTraining, config, folder, on_event=on_event)


def check_language_settings(config: LanguageConfig) -> None:
    """Check the settings before reading or writing anything.

    Raises:
        ConfigError: incompatible settings.

    Example:
        >>> check_language_settings(LanguageConfig())
    """
    training = config.training
    if training.compile:
        raise ConfigError("training.compile: not for the task lm: each chunk would be unrolled, step by step, into one program")
    if training.distributed == "fsdp":
        raise ConfigError("training.distributed: fsdp is not for the task lm, whose models are small; ddp trains with several processes")
    check_metric(config, METRICS)
    check_watch(training, config.model.attends, "model.attention none")
    check_memory(lambda: build_language_model(config.model, vocab_size=8))


def bytes_undefined(config: LanguageConfig, lines: Iterable[str]) -> str:
    r"""Return why bits per byte of lines are undefined with the vocabulary that a training has, or will learn; "" where they are not.

    Raises:
        DataError: the training text cannot be read, or the vocabulary of `start.run`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text").write_text("a dog\na cat\n" * 9)
        ...     config = LanguageConfig.model_validate({"data": {"text": f"{folder}/text"}, "vocabulary": {"kind": "word"}})
        ...     bytes_undefined(config, ["a bird", "a cat"]), bytes_undefined(config, ["a  cat"]), bytes_undefined(config, ["a cat"])
        ('1 token the vocabulary does not have', '1 byte of white space that no token predicts', '')
    """
    if config.vocabulary.kind == "bpe":
        return ""
    with tempfile.TemporaryDirectory() as name:
        file = Path(config.start.run if config.start else name) / VOCABULARY
        if config.start is None:
            write_files({file: _learn_vocabulary(config, TrainingLines(config, Path(name)))})
        return encode_text(lines, Vocabulary.load(file)).undefined


def _learn_vocabulary(config: LanguageConfig, text: TrainingLines) -> bytes:
    settings = config.vocabulary
    texts, total = text.sample(settings.sample), min(settings.sample, text.size)
    return make_vocabulary(settings, texts, total, file=str(config.data.text))


class LanguageTraining(TaskTraining[LanguageConfig]):
    """The training of a language model."""

    watched = "validation line"
    check = staticmethod(check_language_settings)
    files, folders = RUN_FILES, (TOKENS,)

    def read(self) -> None:
        """Count the text, in the first process."""
        self._lines: list[TrainingLines] = []
        on_first_process(self.world, lambda: self._lines.append(TrainingLines(self.config, self.folder)))
        self.digests = self._lines[0].digests if self.world.main else {}

    def make(self) -> dict[str, bytes]:
        """Train the vocabulary."""
        return {VOCABULARY: _learn_vocabulary(self.config, self._lines[0])}

    def encode(self) -> None:
        """Encode the text, and build the model, which defines the carried state."""
        config, training, self.vocabulary = self.config, self.config.training, Vocabulary.load(self.folder / VOCABULARY)

        def encode() -> None:
            report_unknown(config, self.vocabulary, self._lines[0].sample(config.vocabulary.sample))
            self._lines[0].encode(self.vocabulary, self.folder / VOCABULARY)

        on_first_process(self.world, encode)
        self.text, self.valid = open_texts(self.folder)
        self.model = self.build()
        if config.data.context == "separate":
            self._check_lengths()
            self.corpus = SeparateLines(self.text, batch_tokens=training.batch_tokens, seed=training.seed)
            return
        sizes = {"streams": training.streams, "chunk": training.chunk_length, "stream_groups": training.stream_groups}
        past = self.model.past(training.streams)._asdict().items()
        self.carried = {name: part.new_zeros(training.stream_groups, *part.shape).to(self.world.device) for name, part in past}
        self.corpus = TextStreams(self.text, **sizes, shuffle=config.data.shuffle, seed=training.seed)

    def _check_lengths(self) -> None:
        lengths, most = np.diff(self.text.starts), self.config.training.batch_tokens
        if lengths.max() > most:
            raise DataError(
                f"{self.config.data.text}: line {lengths.argmax() + 1} has {lengths.max():,} tokens, more than a batch has "
                f"(training.batch_tokens={most}): divide the line, or set data.context=continuous, which divides it in training"
            )

    def network(self) -> RecurrentLanguageModel:
        """Build the model."""
        return build_language_model(self.config.model, vocab_size=len(self.vocabulary))

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of lines to train and to validate on."""
        return len(self.text.starts) - 1, len(self.valid.starts) - 1

    def report(self, model: nn.Module) -> None:
        """Report the numbers of lines and tokens, and what the vocabulary does not know."""
        counts, names = list(zip(self.sizes, (len(self.text.tokens), len(self.valid.tokens)), strict=True)), ("training", "validation")
        lines = [counted(count, f"{name} line") for name, (count, _) in zip(names, counts, strict=True)]
        tokens = [counted(count, f"{name} token", form=",") for name, (_, count) in zip(names, counts, strict=True)]
        progress.message(f"{time.strftime('%H:%M:%S')} {lines[0]}, {lines[1]}")
        progress.message(f"{tokens[0]}, {tokens[1]}, ends of lines included")
        named = self.vocabulary.kind in ("word", "character")
        unknown = f"; unknown in validation text: {self.valid.unknown / counts[1][1]:.2%}" if named else ""
        progress.message(f"vocabulary: {len(self.vocabulary)} entries{unknown}")

    def plan(self, epoch: int) -> Sequence[Any]:
        """Return the batches of an epoch."""
        return self.corpus.plan(epoch)

    def loss(self, model: nn.Module, batch: TextBatch) -> SequenceLoss:
        """Return the sums over a batch, and carry the stream state to the next chunk."""
        carried, smoothing = self.carried, self.config.training.label_smoothing
        own = StreamState(*(carried[name][batch.stream_group] for name in StreamState._fields)).rows(batch.rows) if carried else None
        # A copy: the backward pass still needs the overwritten values.
        past = None if own is None or batch.first else StreamState(*(part.clone() for part in own))
        sums, after = model(*batch[:3], past, label_smoothing=smoothing)
        if own is not None:
            for part, new in zip(own, after, strict=True):
                part.copy_(new.detach())
        return sums

    @property
    def batch_tokens(self) -> int:
        """About how many tokens a batch has."""
        training = self.config.training
        return training.batch_tokens if self.config.data.context == "separate" else training.streams * training.chunk_length

    def evaluate(self, model: RecurrentLanguageModel) -> dict[str, float]:
        """Evaluate on the validation text."""
        return text_likelihood(model, self.valid, lines=self.config.data.context, streams=self.config.training.streams, poll=self.stop.poll)

    def lengths(self) -> list[int]:
        """Return the tokens of each validation line, without its end."""
        return (np.diff(self.valid.starts) - 1).tolist()

    def record(self, model: RecurrentLanguageModel, number: int) -> AttentionRecord | None:
        """Record the attention of the predictions in a line."""
        from regard.tasks.language_prediction import LanguageModel  # which itself reads runs

        ids = self.valid.line(number)[:-1].tolist()
        run = LanguageRun(self.folder, self.config, self.vocabulary, model, self.folder)
        return LanguageModel(run).record_tokens(ids, self.vocabulary.decode(ids))


def text_likelihood(
    model: RecurrentLanguageModel,
    text: EncodedText,
    *,
    lines: Literal["continuous", "separate"],
    streams: int = 1,
    poll: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Compute loss and accuracy of a text, line ends included.

    Args:
        model: in evaluation mode.
        text: encoded lines.
        lines: "continuous": carry the state across lines; "separate": reset it at each line.
        streams: for "continuous", the number of parallel streams, each with an empty initial state; 1 reads the text in order.
        poll: called once per batch.

    Returns:
        loss (nats per token), perplexity, token_accuracy (0 to 1), and, where the tokens are the text (`EncodedText.undefined`),
        bits_per_byte: the text's negative log-likelihood in bits over its bytes in UTF-8, one for the end of each line.

    Raises:
        DataError: the text is empty.
    """
    if not len(text.tokens):
        raise DataError("the text has no lines")
    examples: Any
    if lines == "continuous":
        examples = TextStreams(text, streams=min(streams, len(text.tokens)), chunk=CHUNK)
    else:
        examples = SeparateLines(text, batch_tokens=4096)
    device, plan = device_of(model), examples.plan(0)

    @torch.no_grad()
    def measure(chunks: Sequence[Any]) -> tuple[float, float]:
        nll, correct, past = 0.0, 0.0, None
        for planned in chunks:
            if poll is not None and lines == "continuous":
                poll()
            sums, past = model(*examples.batch(planned).to(device)[:3], past)
            nll, correct = nll + sums.nll.item(), correct + sums.correct.item()
            stage.advance()
        return nll, correct

    # Streams run in parallel: each depends on its previous chunks only.
    sides = zip(*(split_batch(chunk, SIDES) for chunk in plan), strict=True) if lines == "continuous" else [[chunk] for chunk in plan]
    sides = [list(side) for side in sides]
    with progress.stage("Predicting the text", total=sum(map(len, sides)), unit="chunks") as stage:
        nll, correct = map(sum, zip(*map_batches(measure, sides, device=device, poll=poll), strict=True))
    count = len(text.tokens)
    loss = nll / count
    figures = {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf, "token_accuracy": correct / count}
    return figures if text.undefined else {**figures, "bits_per_byte": nll / math.log(2) / text.size}


def evaluate_language(run: LanguageRun, lines: Sequence[str]) -> list[Score]:
    """Evaluate a run on lines of text, continuous and separate.

    Perplexity is per token of the run's vocabulary, line ends included. Bits per byte are comparable between vocabularies; they are
    undefined for text with unknown words or characters, or with white space that no token predicts.

    Returns:
        Perplexity, token accuracy and bits per byte, continuous and separate, each with what was counted.

    Raises:
        DataError: there are no lines.
    """
    with progress.stage("Encoding the text"):
        text = encode_text(lines, run.vocabulary)
    counted = f"tokens:{len(text.tokens)}|lines:{len(lines)}|unknown:{text.unknown}|eos:yes"
    scores = []
    for how in ("continuous", "separate"):
        figures = text_likelihood(run.model, text, lines=how)
        signature = f"{counted}|text:{how}"
        scores.append(Score(f"perplexity, {how}", figures["perplexity"], "per token", signature))
        scores.append(Score(f"token accuracy, {how}", 100 * figures["token_accuracy"], "%", signature))
        if "bits_per_byte" in figures:
            scores.append(Score(f"bits per byte, {how}", figures["bits_per_byte"], "bits", f"{signature}|bytes:{text.size}|newlines:yes"))
    return scores
