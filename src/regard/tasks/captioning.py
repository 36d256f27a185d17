"""Captioning: training on images with captions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from regard.config.captioning import CaptioningConfig, FeaturesConfig, SmallCNNConfig
from regard.data.batching import SequenceBatch
from regard.data.captions import CaptionSet
from regard.data.features import FeatureFile
from regard.data.image_store import ImageStore
from regard.data.vocabulary import Vocabulary
from regard.errors import CheckpointError, ConfigError
from regard.metrics.caption import caption_scores
from regard.models.captioning import CaptionModel, build_captioner
from regard.ops import SequenceLoss
from regard.tasks.caption import Captioner
from regard.tasks.caption_data import (
    CaptionCorpus,
    FeatureRows,
    Pictures,
    as_learned,
    encode_captions,
    preprocessing,
    read_data,
    settled,
)
from regard.tasks.caption_run import IMAGES, RUN_FILES, VOCABULARY, CaptionRun, open_caption_run
from regard.tasks.run_folder import begun, check_metric, silent
from regard.tasks.translation import likelihood
from regard.training import Job, TrainResult, processes, train

METRICS = ("loss", "perplexity", "token_accuracy", "bleu", "cider")
"""What `training.metric` can be."""


class _Part(NamedTuple):
    examples: CaptionSet
    corpus: CaptionCorpus


def train_captioning(
    config: CaptioningConfig, folder: str | Path, *, say: Callable[[str], None] = print, on_event: Callable[[str], None] | None = None
) -> TrainResult:
    """Train a captioner, or resume the run in `folder`.

    Every caption is an example with its image. Images are decoded once, into a file in the run (or in `data.cache`).

    Args:
        config: what to train on what; `data.captions` must be set.
        folder: the run folder.
        say: takes one line of news at a time; called by the first process only.
        on_event: told what happens, before it does; see `regard.training.Job`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `regard.tasks.caption_data.read_data`, `prepare_run` and
            `regard.training.train`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.data.scene_files import write_scenes
        >>> from regard.data.scenes import generate_scenes
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     captions, _ = write_scenes(folder, "train", generate_scenes(12, seed=1))
        ...     settings = [f"data.captions={captions}", "image.size=16", "training.max_updates=2", "model.encoder.channels=[4]"]
        ...     settings += [f"model.{name}=5" for name in ("embed_dim", "decoder_dim", "attention_dim", "feature_dim")]
        ...     config = load_config(None, settings, kind=CaptioningConfig)
        ...     result = train_captioning(config, Path(folder, "run"), say=lambda line: None)
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    folder = Path(folder)
    config = settled(config)
    check_settings(config)
    with processes() as world:
        tell = say if world.main else silent
        data = read_data(config)
        with begun(world, folder, config, data.digests, lambda: _vocabulary(config, data.train), (*RUN_FILES, IMAGES)):
            vocabulary = Vocabulary.load(folder / VOCABULARY)
            torch.manual_seed(config.training.seed)
            fresh = not any((folder / "checkpoints").glob("step-*"))
            model = build_captioner(
                config.model, image_size=config.image.size, vocabulary_size=len(vocabulary), pretrained=fresh and world.main
            )
            if fresh:
                take_encoder(model, config)
            parts = []
            for examples, name in ((data.train, "training data"), (data.valid, "validation data")):
                world.on_main(lambda examples=examples: int(bool(len(_pictures(config, folder, examples, tell)))))
                pictures, cells = _pictures(config, folder, examples, silent), model.grid[0] * model.grid[1]
                corpus = encode_captions(examples, pictures, vocabulary, config, cells=cells, name=name)
                parts.append(_Part(examples, corpus))
        _report(tell, config, parts[0], parts[1], vocabulary, model)
        job = _job(config, folder, parts[0].corpus, parts[1], vocabulary)
        if on_event is not None:
            job = replace(job, on_event=on_event)
        return train(model, job, config=config.training, folder=folder, run_files=RUN_FILES)


def check_settings(config: CaptioningConfig) -> None:
    """Refuse settings that do not fit together, before anything is read or written.

    Raises:
        ConfigError: names the setting and what it needs.

    Example:
        >>> check_settings(CaptioningConfig())
    """
    if config.decoding.replace_unknown:
        raise ConfigError("decoding.replace_unknown: there is no source word to take in a caption")
    check_metric(config, METRICS)
    preprocessing(config.image)
    if isinstance(config.model.encoder, SmallCNNConfig | FeaturesConfig):
        with torch.device("meta"):  # shapes without numbers: it takes neither time nor memory
            build_captioner(config.model, image_size=config.image.size, vocabulary_size=8)


def take_encoder(model: CaptionModel[Any], config: CaptioningConfig) -> None:
    """Give a new model the image encoder of the trained run that `model.encoder.start` names, if it does.

    Args:
        model: of `config`, not trained yet.
        config: of the new run.

    Raises:
        ConfigError: there is no such run, it is damaged, or the two encoders, or the images they are made for, are not alike; names the
            file or the settings.

    Example:
        >>> take_encoder(build_captioner(CaptioningConfig().model, image_size=96, vocabulary_size=8), CaptioningConfig())
    """
    encoder = config.model.encoder
    if not isinstance(encoder, SmallCNNConfig) or encoder.start is None:
        return
    try:
        first = open_caption_run(encoder.start)
    except CheckpointError as error:
        raise ConfigError(f"model.encoder.start: {error}") from error
    pairs = [(f"image.{key}", value, getattr(config.image, key)) for key, value in first.config.image]
    for key in ("type", "channels", "depth", "coordinates"):
        pairs.append((f"model.encoder.{key}", getattr(first.config.model.encoder, key, None), getattr(encoder, key)))
    if unlike := [f"{key} {old} instead of {new}" for key, old, new in pairs if old != new]:
        raise ConfigError(f"model.encoder.start: {encoder.start} was trained with {', '.join(unlike)}")
    model.image_encoder.load_state_dict(first.model.image_encoder.state_dict())


def caption_likelihood(model: CaptionModel[Any], corpus: CaptionCorpus, *, poll: Callable[[], None] | None = None) -> dict[str, float]:
    """Measure how well a captioner predicts given captions: loss (nats per word, EOS included), perplexity and token_accuracy.

    Args:
        model: in evaluation mode.
        corpus: captions and their images.
        poll: called once a batch.
    """
    # A corpus of captions plans and collates as one of sentences does. Few at a time: an image takes more room than a sentence.
    return likelihood(model, cast(Any, corpus), poll=poll, batch_tokens=1024)


def _pictures(config: CaptioningConfig, folder: Path, examples: CaptionSet, tell: Callable[[str], None]) -> Pictures:
    if config.data.features is not None:
        return FeatureRows(FeatureFile(config.data.features), examples.ids)
    cache = Path(config.data.cache) if config.data.cache is not None else folder / IMAGES

    def report(done: int, of: int) -> None:
        if done % 10000 == 0:
            tell(f"{done} of {of} images decoded")

    return ImageStore(examples.images, preprocessing(config.image), cache, report=report)


def _vocabulary(config: CaptioningConfig, examples: CaptionSet) -> dict[str, bytes]:
    settings = config.vocabulary
    texts = [as_learned(text, config.data) for _, text in examples.pairs]
    return {VOCABULARY: Vocabulary.train(texts, kind=settings.kind, size=settings.size, min_count=settings.min_count).to_bytes()}


def _job(config: CaptioningConfig, folder: Path, corpus: CaptionCorpus, held: _Part, vocabulary: Vocabulary) -> Job:
    training = config.training

    def loss(model: nn.Module, batch: SequenceBatch) -> SequenceLoss:
        return model(*batch[:5], label_smoothing=training.label_smoothing)

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, CaptionModel)
        figures = caption_likelihood(model, held.corpus, poll=job.stop.poll)
        if training.metric in ("bleu", "cider"):
            captioner = Captioner(CaptionRun(folder, config, vocabulary, model, folder), poll=job.stop.poll)
            found = captioner.describe(held.corpus.pictures, decoding=config.decoding.model_copy(update={"beam": 1}))
            scores = caption_scores(held.examples.references, [item.text for item in found])
            name = {"bleu": "BLEU-4", "cider": "CIDEr-D"}[training.metric]
            figures[training.metric] = scores.corpus[name].value
        return figures

    # `evaluate` polls the job's own stop signal, which is looked up when it runs.
    job = Job(
        plan=lambda epoch: corpus.plan(batch_tokens=training.batch_tokens, seed=training.seed, epoch=epoch),
        collate=corpus.batch,
        loss=loss,
        evaluate=evaluate,
    )
    return job


def _report(
    tell: Callable[[str], None], config: CaptioningConfig, own: _Part, held: _Part, vocabulary: Vocabulary, model: CaptionModel[Any]
) -> None:
    sizes = [f"{len(part.corpus.targets)} captions of {len(part.examples)}" for part in (own, held)]
    tell(f"{time.strftime('%H:%M:%S')} {sizes[0]} training images, {sizes[1]} validation images")
    for part, name in ((own, "training"), (held, "validation")):
        if part.corpus.left_out:
            tell(f"{name} captions left out: {part.corpus.left_out} too long")
    if config.data.shuffle_images:
        tell("image-blind control: every image's captions go with another image")
    rows, columns = model.grid
    encoder = config.model.encoder
    sees = f", each of which sees {encoder.receptive_field} pixels" if isinstance(encoder, SmallCNNConfig) else ""
    tell(f"image: {rows} x {columns} cells{sees}; vocabulary: {len(vocabulary)} entries")
    tell(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
