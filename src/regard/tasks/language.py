"""The language model: training on text, and measuring."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from regard.config import LanguageConfig
from regard.data.lines import read_lines
from regard.data.parallel import file_digest
from regard.data.stream import EncodedText, SeparateLines, TextBatch, TextStreams, encode_text
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError
from regard.metrics import Score
from regard.models import Past, RecurrentLanguageModel, build_language_model
from regard.ops import SequenceLoss
from regard.tasks.run_folder import CONFIG, DATA, begun, check_metric, device_of, load_model, read_config, silent
from regard.training import Job, TrainResult, World, processes, train

VOCABULARY = "vocabulary.json"
RUN_FILES = (CONFIG, DATA, VOCABULARY)
METRICS = ("loss", "perplexity", "token_accuracy")

# Tokens that are read at once where nothing is trained.
CHUNK = 64


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
    model, weights = load_model(folder, lambda: build_language_model(config.model, vocabulary_size=len(vocabulary)), RUN_FILES)
    return LanguageRun(folder, config, vocabulary, model, weights)


def train_language(
    config: LanguageConfig, folder: str | Path, *, say: Callable[[str], None] = print, on_event: Callable[[str], None] | None = None
) -> TrainResult:
    """Train a language model, or resume the run in `folder`.

    Args:
        config: what to train on what; `data.text` must be set.
        folder: the run folder.
        say: takes one line of news at a time; called by the first process only.
        on_event: told what happens, before it does; see `regard.training.Job`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `check_language_settings`, `prepare_run` and
            `regard.training.train`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> settings = ["vocabulary.kind=word", "model.embed_dim=4", "model.hidden_dim=8", "training.max_updates=2", "training.streams=2"]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "text").write_text("a dog runs\\na dog sleeps\\n" * 20)
        ...     config = load_config(None, [*settings, f"data.text={folder}/text"], kind=LanguageConfig)
        ...     result = train_language(config, Path(folder, "run"), say=lambda line: None)
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    folder = Path(folder)
    check_language_settings(config)
    with processes() as world:
        tell = say if world.main else silent
        lines, held, digests = _read_data(config)
        settings = config.vocabulary

        def make() -> dict[str, bytes]:
            made = Vocabulary.train(lines, kind=settings.kind, size=settings.size, min_count=settings.min_count)
            return {VOCABULARY: made.to_bytes()}

        with begun(world, folder, config, digests, make, RUN_FILES):
            vocabulary = Vocabulary.load(folder / VOCABULARY)
            text, valid = encode_text(lines, vocabulary), encode_text(held, vocabulary)
            torch.manual_seed(config.training.seed)
            model = build_language_model(config.model, vocabulary_size=len(vocabulary))
            job = _job(config, text, valid, _carried(config, model, world))
        _report(tell, text, valid, vocabulary, model)
        if on_event is not None:
            job = replace(job, on_event=on_event)
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


def _carried(config: LanguageConfig, model: RecurrentLanguageModel, world: World) -> dict[str, Tensor]:
    # What each lane remembers between its chunks; nothing where lines are read for themselves.
    if config.data.lines == "separate":
        return {}
    past, lanes = model.past(config.training.streams), config.training.lanes
    return {name: part.new_zeros(lanes, *part.shape).to(world.device) for name, part in past._asdict().items()}


def _job(config: LanguageConfig, text: EncodedText, valid: EncodedText, carried: dict[str, Tensor]) -> Job:
    training = config.training
    examples: TextStreams | SeparateLines
    if config.data.lines == "running":
        sizes = {"streams": training.streams, "chunk": training.chunk, "lanes": training.lanes}
        examples = TextStreams(text, **sizes, shuffle=config.data.shuffle, seed=training.seed)
    else:
        examples = SeparateLines(text, batch_tokens=training.batch_tokens, seed=training.seed)

    def loss(model: nn.Module, batch: TextBatch) -> SequenceLoss:
        past = None
        if carried and not batch.first:
            # A copy: the backward pass still needs what is overwritten below.
            past = Past(*(carried[name][batch.lane].clone() for name in Past._fields))
        sums, after = model(*batch[:3], past, label_smoothing=training.label_smoothing)
        for name, tensor in carried.items():
            tensor[batch.lane].copy_(getattr(after, name).detach())
        return sums

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, RecurrentLanguageModel)
        return text_likelihood(model, valid, lines=config.data.lines, streams=training.streams, poll=job.stop.poll)

    # `evaluate` polls the job's own stop signal, which is looked up when it runs.
    plan: Callable[[int], Sequence[Any]] = examples.plan
    job = Job(plan=plan, collate=examples.batch, loss=loss, evaluate=evaluate, carried=carried)
    return job


@torch.no_grad()
def text_likelihood(
    model: RecurrentLanguageModel,
    text: EncodedText,
    *,
    lines: Literal["running", "separate"],
    streams: int = 1,
    poll: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Measure how well a model predicts a text, the end of every line included.

    Args:
        model: in evaluation mode.
        text: encoded lines.
        lines: "running": what was read is remembered from line to line; "separate": each line from the beginning.
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
    if lines == "running":
        examples = TextStreams(text, streams=min(streams, len(text.tokens)), chunk=CHUNK)
    else:
        examples = SeparateLines(text, batch_tokens=4096)
    nll, correct, past = 0.0, 0.0, None
    device = device_of(model)
    for planned in examples.plan(0):
        if poll is not None:
            poll()
        sums, after = model(*examples.batch(planned).to(device)[:3], past)
        nll, correct = nll + sums.nll.item(), correct + sums.correct.item()
        past = after if lines == "running" else None
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
        Perplexity, token accuracy and bits per byte, running and separate, each with what was counted.

    Raises:
        DataError: there are no lines.
    """
    text = encode_text(lines, run.vocabulary)
    counted = f"tokens:{len(text.tokens)}|lines:{len(lines)}|unknown:{text.unknown}|eos:yes"
    scores = []
    for how in ("running", "separate"):
        figures = text_likelihood(run.model, text, lines=how)
        signature = f"{counted}|text:{how}"
        scores.append(Score(f"perplexity, {how}", figures["perplexity"], "per token", signature))
        scores.append(Score(f"token accuracy, {how}", 100 * figures["token_accuracy"], "%", signature))
        if "bits_per_byte" in figures:
            scores.append(Score(f"bits per byte, {how}", figures["bits_per_byte"], "bits", f"{signature}|bytes:{text.size}|newlines:yes"))
    return scores


def _read_data(config: LanguageConfig) -> tuple[list[str], list[str], dict[str, str]]:
    data = config.data
    if data.text is None:
        raise DataError("data.text: no training text given (--text FILE)")
    lines = read_lines(data.text)
    digests = {name: file_digest(path) for name, path in (("text", data.text), ("valid_text", data.valid_text)) if path is not None}
    if data.valid_text is not None:
        held = read_lines(data.valid_text)
    else:
        if len(lines) < 2:
            raise DataError(f"{data.text}: {len(lines)} lines: at least 2 are needed to hold one out for validation")
        count = max(1, min(data.held_out, len(lines) // 10))
        lines, held = lines[:-count], lines[-count:]
    for name, found in ((data.text, lines), (data.valid_text, held)):
        if not found:
            raise DataError(f"{name}: no lines, expected at least one")
    return lines, held, digests


def _report(tell: Callable[[str], None], text: EncodedText, valid: EncodedText, vocabulary: Vocabulary, model: nn.Module) -> None:
    counts = [(len(part.starts) - 1, len(part.tokens)) for part in (text, valid)]
    tell(f"{time.strftime('%H:%M:%S')} {counts[0][0]} training lines, {counts[1][0]} validation lines")
    tell(f"{counts[0][1]:,} training tokens, {counts[1][1]:,} validation tokens, ends of lines included")
    unknown = f"; unknown in validation text: {valid.unknown / counts[1][1]:.2%}" if vocabulary.kind in ("word", "character") else ""
    tell(f"vocabulary: {len(vocabulary)} entries{unknown}")
    tell(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
