"""Translation: training on parallel text."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard import progress
from regard.config import RECIPES, TranslationConfig, with_recipe
from regard.data.batching import PlannedBatch, SequenceBatch, split_batch
from regard.data.token_arrays import FlatTokens
from regard.data.vocabulary import IMPORTED
from regard.errors import ConfigError
from regard.metrics import bleu, chrf, exact_match
from regard.models import EncoderDecoder, build
from regard.ops import SequenceLoss
from regard.tasks.batch_threads import map_batches
from regard.tasks.fine_tuning import initial_state, report_unknown, resolve_start
from regard.tasks.run_folder import CONFIG, check_metric, device_of, on_first_process, read_config, resolve_precision, start_or_resume
from regard.tasks.translation_data import TOKENS, Corpus, TrainingText, encode_corpus, open_corpus, validation_pairs
from regard.tasks.translation_prediction import Translator, check_decoding
from regard.tasks.translation_run import (
    TranslationRun,
    Vocabularies,
    load_vocabularies,
    make_vocabularies,
    open_translation_run,
    run_files,
    vocabulary_files,
)
from regard.tasks.watched_examples import MAX_WEIGHTS, Recorder, check_watch, choose_examples, recorder
from regard.tasks.word_links import FILE as ALIGNMENT
from regard.tasks.word_links import choose_attention, write_choice
from regard.training import TrainingJob, TrainResult, automatic_micro_batches, processes, run_lock, train
from regard.training.memory_check import build_with_memory_check, check_memory
from regard.viewer import AttentionRecord

_OF_TRANSLATIONS = {"bleu": bleu, "chrf": chrf, "exact_match": exact_match}
METRICS = ("loss", "perplexity", "token_accuracy", *_OF_TRANSLATIONS)
"""What `training.metric` and `training.eval_metrics` can name."""


def train_translation(config: TranslationConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a translation model, or resume the run in `folder`.

    Args:
        config: what to train on what; `data.source` must be set.
        folder: the run folder.
        on_event: told what happens, before it does; see `regard.training.TrainingJob`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `regard.tasks.translation_data.TrainingText`, `prepare_run` and
            `regard.training.train`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.tasks import generate
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source, target, *_ = generate("copy", folder, train=40, test=1, seed=1)
        ...     settings = [f"data.source={source}", f"data.target={target}", "vocabulary.kind=word", "training.max_updates=2"]
        ...     settings += ["model.embed_dim=4", "model.encoder_dim=4", "model.decoder_dim=8", "model.readout_dim=4"]
        ...     result = train_translation(load_config(None, settings), Path(folder, "run"))
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    folder = Path(folder)
    check_translation_settings(config)
    with processes() as world, run_lock(folder, world):
        config = resolve_start(resolve_precision(config, folder, world.device), folder)
        text: list[TrainingText] = []  # in the first process

        def read() -> int:
            text.append(TrainingText(config, folder))
            return text[0].size

        config = resolve_recipe(config, folder, on_first_process(world, read))
        check_translation_settings(config)
        digests = text[0].digests if world.main else {}
        with start_or_resume(
            world, folder, config, digests, lambda: make_vocabularies(config, text[0].sample), (*run_files(config), TOKENS)
        ):
            vocabularies = load_vocabularies(folder, config)
            # Before an hour of encoding: the files of a held-out set may be of no use.
            held = _validation(config, folder, vocabularies) if config.data.valid_source is not None else None

            def encode() -> None:
                for number, (side, vocabulary) in enumerate(zip(("source", "target"), vocabularies, strict=True)):
                    report_unknown(config, vocabulary, text[0].sample(number, config.vocabulary.sample), name=f"{side} vocabulary")
                text[0].encode(vocabularies, [folder / name for name in vocabulary_files(config)])

            on_first_process(world, encode)
            corpus = open_corpus(config, folder)
            held = held or _validation(config, folder, vocabularies)
        torch.manual_seed(config.training.seed)
        sizes = {"source_size": len(vocabularies.source), "target_size": len(vocabularies.target)}
        model = build_with_memory_check(lambda: build(config.model, **sizes), config.training, world.device)
        _report(config, corpus, held, vocabularies, model)
        job = _job(config, folder, corpus, held, vocabularies)
        job = replace(job, begin=initial_state(config), on_event=on_event or job.on_event)
        result = train(model, job, config=config.training, folder=folder, run_files=run_files(config))
        on_first_process(world, lambda: _choose_links(result, folder, held))
        return result


def _choose_links(result: TrainResult, folder: Path, held: Corpus) -> None:
    if result.model is None or (folder / ALIGNMENT).exists():
        return
    run = open_translation_run(folder)
    # A model with one attention has nothing to choose: its own alignment is that of the step that predicts.
    if run.config.model.type != "rnn" and (choice := choose_attention(run, held.pairs)) is not None:
        write_choice(folder, choice)


def _validation(config: TranslationConfig, folder: Path, vocabularies: Vocabularies) -> Corpus:
    return encode_corpus(validation_pairs(config, folder), vocabularies, max_length=config.data.max_length, name="validation data")


def check_translation_settings(config: TranslationConfig) -> None:
    """Refuse settings that do not fit together, before anything is read or written.

    Raises:
        ConfigError: names the setting and what it needs.

    Example:
        >>> check_translation_settings(TranslationConfig())
    """
    # An imported model may split the text of each side by a model of its own, and have the same entries for both.
    if config.model.share_embeddings and not config.vocabulary.shared and config.vocabulary.kind != IMPORTED:
        raise ConfigError("model.share_embeddings: needs vocabulary.shared true, a row of the table is one entry of both sides")
    check_decoding(config, config.decoding)
    check_watch(config.training, config.model.attends, "model.attention null")
    check_metric(config, METRICS)
    check_memory(lambda: build(config.model, source_size=8, target_size=8))


def resolve_recipe(config: TranslationConfig, folder: Path, pairs: int) -> TranslationConfig:
    """Complete the settings that nobody has set with those of the recipe named by `config.recipe`.

    Args:
        config: what is asked for.
        folder: the run folder. If there is a run, "auto" means its recipe.
        pairs: sentence pairs to train on.

    Raises:
        ConfigError: see `regard.config.with_recipe`.
        CheckpointError: the run's configuration is damaged, or of another task.
    """
    if config.recipe == "auto" and (folder / CONFIG).exists():
        config = config.model_copy(update={"recipe": read_config(folder, TranslationConfig).recipe})
    return with_recipe(config, pairs)


def _job(config: TranslationConfig, folder: Path, corpus: Corpus, held: Corpus, vocabularies: Vocabularies) -> TrainingJob:
    training = config.training

    def loss(model: nn.Module, batch: SequenceBatch) -> SequenceLoss:
        return model(*batch[:5], label_smoothing=training.label_smoothing)

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, EncoderDecoder)
        figures = translation_likelihood(model, held, poll=job.stop.poll)
        if scores := {name: score for name, score in _OF_TRANSLATIONS.items() if name in training.measured}:
            translator = Translator(TranslationRun(folder, config, vocabularies, model, folder), poll=job.stop.poll)
            greedy = config.decoding.model_copy(update={"beam_size": 1})
            outputs = [item.text for item in translator.translate([pair[0] for pair in held.pairs], decoding=greedy)]
            references = [pair[1] for pair in held.pairs]
            figures |= {name: score(outputs, references).value for name, score in scores.items()}
        return figures

    # `evaluate` polls the job's own stop signal, which is looked up when it runs.
    job = TrainingJob(
        plan=lambda epoch: corpus.plan(batch_tokens=training.batch_tokens, seed=training.seed, epoch=epoch),
        collate=corpus.batch,
        loss=loss,
        evaluate=evaluate,
        split=split_batch,
        micro_batches=automatic_micro_batches(training.batch_tokens),
        record_attention=_recorder(config, folder, held, vocabularies),
    )
    return job


def _recorder(config: TranslationConfig, folder: Path, held: Corpus, vocabularies: Vocabularies) -> Recorder | None:
    def record(model: nn.Module, number: int) -> AttentionRecord | None:
        assert isinstance(model, EncoderDecoder)
        # Of the reference, which stays the same: what differs between two updates is what the model has learned.
        translator = Translator(TranslationRun(folder, config, vocabularies, model, folder))
        return translator.align_layers(*held.pairs[number][:2], max_weights=MAX_WEIGHTS)

    assert isinstance(held.source, FlatTokens)
    assert isinstance(held.target, FlatTokens)
    lengths = np.maximum(held.source.lengths, held.target.lengths)
    return recorder("validation sentence", choose_examples(lengths.tolist(), config.training.watch), record)


def translation_likelihood(
    model: EncoderDecoder[Any], corpus: Corpus, *, poll: Callable[[], None] | None = None, batch_tokens: int = 4096
) -> dict[str, float]:
    """Measure how well a model predicts given targets.

    Args:
        model: in evaluation mode.
        corpus: encoded pairs.
        poll: called once a batch.
        batch_tokens: padded tokens of a batch at most.

    Returns:
        loss (nats per target token, EOS included, not smoothed), perplexity, and token_accuracy (0 to 1).
    """
    device = device_of(model)

    @torch.no_grad()
    def measure(batches: Sequence[PlannedBatch]) -> tuple[float, float]:
        sums = model(*corpus.batch(batches[0]).to(device)[:5])
        return sums.nll.item(), sums.correct.item()

    plan = corpus.plan(batch_tokens=batch_tokens, seed=0, epoch=0)
    stage = progress.stage("Predicting the references", total=len(plan), unit="batches")
    found = map_batches(measure, [[planned] for planned in plan], device=device, poll=poll, stage=stage)
    nll, correct = map(sum, zip(*found, strict=True))
    tokens = sum(planned.tokens for planned in plan)
    loss = nll / tokens
    return {"loss": loss, "perplexity": math.exp(loss) if loss < 700 else math.inf, "token_accuracy": correct / tokens}


def _report(
    config: TranslationConfig,
    corpus: Corpus,
    held: Corpus,
    vocabularies: Vocabularies,
    model: nn.Module,
) -> None:
    if chosen := [recipe.evidence for recipe in RECIPES if recipe.name == config.recipe]:
        progress.message(f"recipe {config.recipe} (from {chosen[0]}) fills in the settings you did not give; recipe=none turns it off")
    started = time.strftime("%H:%M:%S")
    progress.message(f"{started} {corpus.size} training pairs, {held.size} validation pairs")
    for left_out, name in ((corpus.left_out, "training"), (held.left_out, "validation")):
        if left := ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count):
            progress.message(f"{name} pairs left out: {left}")
    for side, vocabulary, index in zip(("source", "target"), vocabularies, (0, 1), strict=True):
        if config.vocabulary.kind in ("word", "character", IMPORTED):
            rate = vocabulary.unknown_rate([pair[index] for pair in held.pairs])
            progress.message(f"{side} vocabulary: {len(vocabulary)} entries; unknown in validation text: {rate:.2%}")
        else:
            progress.message(f"{side} vocabulary: {len(vocabulary)} entries")
    progress.message(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
