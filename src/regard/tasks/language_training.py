"""The language model: training on text, and measuring."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard import progress
from regard.config import LanguageConfig
from regard.data.batching import split_batch
from regard.data.running_text import EncodedText, SeparateLines, TextBatch, TextStreams, encode_text
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError
from regard.metrics import Score
from regard.models import RecurrentLanguageModel, StreamState, build_language_model
from regard.ops import SequenceLoss
from regard.tasks.batch_threads import map_batches
from regard.tasks.fine_tuning import initial_state, report_unknown, resolve_start
from regard.tasks.language_data import TOKENS, TrainingLines, open_texts
from regard.tasks.run_folder import (
    CONFIG,
    DATA,
    check_metric,
    device_of,
    load_model,
    on_first_process,
    read_config,
    resolve_precision,
    start_or_resume,
)
from regard.tasks.watched_examples import Recorder, check_watch, choose_examples, recorder
from regard.training import ProcessGroup, TrainingJob, TrainResult, automatic_micro_batches, processes, run_lock, train
from regard.training.memory_check import build_with_memory_check, check_memory
from regard.viewer import AttentionRecord

VOCABULARY = "vocabulary.json"
RUN_FILES = (CONFIG, DATA, VOCABULARY)
METRICS = ("loss", "perplexity", "token_accuracy")

# Tokens that are read at once where nothing is trained.
CHUNK = 64
# Parts of the streams that are measured side by side: always as many, so that the rounding is the same on every machine.
SIDES = 2


class LanguageRun(NamedTuple):
    """A trained run of the language model, opened for use.

    Attributes:
        folder: where it is.
        config: how it was made.
        vocabulary: of the text.
        model: with the trained weights, in evaluation mode.
        weights: the file these came from.
    """

    folder: Path
    config: LanguageConfig
    vocabulary: Vocabulary
    model: RecurrentLanguageModel
    weights: Path


def open_language_run(folder: str | Path) -> LanguageRun:
    """Open a trained run: configuration, vocabulary, verified weights.

    Raises:
        CheckpointError: the folder is not a run of this task, or a file is missing or damaged; names it.
        DataError: the vocabulary is damaged.

    Example:
        >>> open_language_run("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = Path(folder)
    config = read_config(folder, LanguageConfig)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    model, weights = load_model(folder, lambda: build_language_model(config.model, vocab_size=len(vocabulary)), RUN_FILES)
    return LanguageRun(folder, config, vocabulary, model, weights)


def train_language(config: LanguageConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a language model, or resume the run in `folder`.

    Args:
        config: what to train on what; `data.text` must be set.
        folder: the run folder.
        on_event: told what happens, before it does; see `regard.training.TrainingJob`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `check_language_settings`, `prepare_run` and
            `regard.training.train`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> settings = ["vocabulary.kind=word", "model.embed_dim=4", "model.hidden_size=8", "training.max_updates=2", "training.streams=2"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text").write_text("a dog runs\\na dog sleeps\\n" * 20)
        ...     config = load_config(None, [*settings, f"data.text={folder}/text"], kind=LanguageConfig)
        ...     result = train_language(config, Path(folder, "run"))
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    folder = Path(folder)
    check_language_settings(config)
    with processes() as world, run_lock(folder, world):
        config = resolve_start(resolve_precision(config, folder, world.device), folder)
        read: list[TrainingLines] = []  # in the first process
        settings = config.vocabulary
        on_first_process(world, lambda: read.append(TrainingLines(config, folder)))

        def make() -> dict[str, bytes]:
            lines = read[0].sample(settings.sample)
            made = Vocabulary.train(lines, kind=settings.kind, size=settings.size, min_count=settings.min_count)
            return {VOCABULARY: made.to_bytes()}

        digests = read[0].digests if world.main else {}
        with start_or_resume(world, folder, config, digests, make, (*RUN_FILES, TOKENS)):
            vocabulary = Vocabulary.load(folder / VOCABULARY)

            def encode() -> None:
                report_unknown(config, vocabulary, read[0].sample(settings.sample))
                read[0].encode(vocabulary, folder / VOCABULARY)

            on_first_process(world, encode)
            text, valid = open_texts(folder)
            torch.manual_seed(config.training.seed)
            size = len(vocabulary)
            model = build_with_memory_check(lambda: build_language_model(config.model, vocab_size=size), config.training, world.device)
            job = _job(config, text, valid, _carried(config, model, world))
        _report(text, valid, vocabulary, model)
        record_attention = _recorder(config, folder, valid, vocabulary)
        job = replace(job, begin=initial_state(config), on_event=on_event or job.on_event, record_attention=record_attention)
        return train(model, job, config=config.training, folder=folder, run_files=RUN_FILES)


def check_language_settings(config: LanguageConfig) -> None:
    """Refuse settings that do not fit together, before anything is read or written.

    Raises:
        ConfigError: names the setting and what it needs.

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


def _carried(config: LanguageConfig, model: RecurrentLanguageModel, world: ProcessGroup) -> dict[str, Tensor]:
    # What each stream group remembers between its chunks; nothing where lines are read for themselves.
    if config.data.context == "separate":
        return {}
    past, stream_groups = model.past(config.training.streams), config.training.stream_groups
    return {name: part.new_zeros(stream_groups, *part.shape).to(world.device) for name, part in past._asdict().items()}


def _job(config: LanguageConfig, text: EncodedText, valid: EncodedText, carried: dict[str, Tensor]) -> TrainingJob:
    training = config.training
    examples: TextStreams | SeparateLines
    if config.data.context == "continuous":
        sizes = {"streams": training.streams, "chunk": training.chunk_length, "stream_groups": training.stream_groups}
        examples = TextStreams(text, **sizes, shuffle=config.data.shuffle, seed=training.seed)
    else:
        examples = SeparateLines(text, batch_tokens=training.batch_tokens, seed=training.seed)

    def loss(model: nn.Module, batch: TextBatch) -> SequenceLoss:
        own = StreamState(*(carried[name][batch.stream_group] for name in StreamState._fields)).rows(batch.rows) if carried else None
        # A copy: the backward pass still needs what is overwritten below.
        past = None if own is None or batch.first else StreamState(*(part.clone() for part in own))
        sums, after = model(*batch[:3], past, label_smoothing=training.label_smoothing)
        if own is not None:
            for part, new in zip(own, after, strict=True):
                part.copy_(new.detach())
        return sums

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, RecurrentLanguageModel)
        return text_likelihood(model, valid, lines=config.data.context, streams=training.streams, poll=job.stop.poll)

    # `evaluate` polls the job's own stop signal, which is looked up when it runs.
    plan: Callable[[int], Sequence[Any]] = examples.plan
    size = training.streams * training.chunk_length if config.data.context == "continuous" else training.batch_tokens
    job = TrainingJob(
        plan=plan,
        collate=examples.batch,
        loss=loss,
        evaluate=evaluate,
        carried=carried,
        split=split_batch,
        micro_batches=automatic_micro_batches(size),
    )
    return job


def _recorder(config: LanguageConfig, folder: Path, valid: EncodedText, vocabulary: Vocabulary) -> Recorder | None:
    from regard.tasks.language_prediction import LanguageModel  # which itself reads runs

    def record(model: nn.Module, number: int) -> AttentionRecord | None:
        assert isinstance(model, RecurrentLanguageModel)
        ids = valid.line(number)[:-1].tolist()
        return LanguageModel(LanguageRun(folder, config, vocabulary, model, folder)).record_tokens(ids, vocabulary.decode(ids))

    lengths = np.diff(valid.starts) - 1  # without the end of the line
    return recorder("validation line", choose_examples(lengths.tolist(), config.training.watch), record)


def text_likelihood(
    model: RecurrentLanguageModel,
    text: EncodedText,
    *,
    lines: Literal["continuous", "separate"],
    streams: int = 1,
    poll: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Measure how well a model predicts a text, the end of every line included.

    Args:
        model: in evaluation mode.
        text: encoded lines.
        lines: "continuous": what was read is remembered from line to line; "separate": each line from the beginning.
        streams: running: so many places of the text at once, which is faster; each begins with nothing remembered. 1 reads it in order.
        poll: called once a batch.

    Returns:
        loss (nats per token), perplexity, token_accuracy (0 to 1), and, where no token is unknown, bits_per_byte: the text's negative
        log-likelihood in bits over its bytes in UTF-8, one for the end of each line.

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

    # The streams side by side: what is read of one depends on what was read of it before.
    sides = zip(*(split_batch(chunk, SIDES) for chunk in plan), strict=True) if lines == "continuous" else [[chunk] for chunk in plan]
    sides = [list(side) for side in sides]
    with progress.stage("Predicting the text", total=sum(map(len, sides)), unit="chunks") as stage:
        nll, correct = map(sum, zip(*map_batches(measure, sides, device=device, poll=poll), strict=True))
    count = len(text.tokens)
    loss = nll / count
    figures = {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf, "token_accuracy": correct / count}
    return figures if text.unknown else {**figures, "bits_per_byte": nll / math.log(2) / text.size}


def evaluate_language(run: LanguageRun, lines: Sequence[str]) -> list[Score]:
    """Measure a run on lines of text, both as a running text and each line for itself.

    Perplexity is per token of the run's own vocabulary, ends of lines included. Bits per byte can be compared between vocabularies; there
    are none where the text holds unknown words or characters, for these are not predicted.

    Args:
        run: an opened run.
        lines: the text.

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


def _report(text: EncodedText, valid: EncodedText, vocabulary: Vocabulary, model: nn.Module) -> None:
    counts = [(len(part.starts) - 1, len(part.tokens)) for part in (text, valid)]
    progress.message(f"{time.strftime('%H:%M:%S')} {counts[0][0]} training lines, {counts[1][0]} validation lines")
    progress.message(f"{counts[0][1]:,} training tokens, {counts[1][1]:,} validation tokens, ends of lines included")
    unknown = f"; unknown in validation text: {valid.unknown / counts[1][1]:.2%}" if vocabulary.kind in ("word", "character") else ""
    progress.message(f"vocabulary: {len(vocabulary)} entries{unknown}")
    progress.message(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
