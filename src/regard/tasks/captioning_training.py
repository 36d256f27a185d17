"""Captioning: training on images with captions."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from regard import progress
from regard.config.captioning import CaptioningConfig, FeaturesConfig, SmallCNNConfig
from regard.data.batching import SequenceBatch
from regard.data.captions import CaptionSet
from regard.data.image_cache import ImageCache
from regard.data.image_features import FeatureFile
from regard.data.subsample import sampled
from regard.data.vocabulary import Vocabulary
from regard.errors import CheckpointError, ConfigError
from regard.metrics.caption import caption_scores
from regard.models.captioning import CaptionModel, build_captioner
from regard.ops import SequenceLoss
from regard.tasks.captioning_data import (
    CaptionCorpus,
    FeatureRows,
    IndexedImages,
    build_preprocessing,
    encode_captions,
    normalize_caption,
    read_caption_data,
    resolve_config,
)
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.captioning_run import IMAGES, RUN_FILES, VOCABULARY, CaptionRun, open_caption_run
from regard.tasks.fine_tuning import initial_state, report_unknown, resolve_start
from regard.tasks.run_folder import check_metric, resolve_precision, start_or_resume
from regard.tasks.translation_training import translation_likelihood
from regard.tasks.watched_examples import Recorder, choose_examples, recorder
from regard.training import TrainingJob, TrainResult, automatic_micro_batches, processes, run_lock, train
from regard.training.memory_check import check_memory
from regard.viewer import AttentionRecord

_OF_CAPTIONS = {"bleu": "BLEU-4", "cider": "CIDEr-D"}
METRICS = ("loss", "perplexity", "token_accuracy", *_OF_CAPTIONS)
"""What `training.metric` and `training.eval_metrics` can name."""


class _Part(NamedTuple):
    examples: CaptionSet
    corpus: CaptionCorpus


def train_captioning(config: CaptioningConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a captioner, or resume the run in `folder`.

    Every caption is an example with its image. Images are decoded once, into a file in the run (or in `data.cache`).

    Args:
        config: what to train on what; `data.captions` must be set.
        folder: the run folder.
        on_event: told what happens, before it does; see `regard.training.TrainingJob`.

    Returns:
        How training ended (`regard.training.TrainResult`).

    Raises:
        RegardError: bad data, settings that do not fit, a damaged run; see `regard.tasks.captioning_data.read_caption_data`, `prepare_run`
            and `regard.training.train`.

    Example:
        >>> import tempfile
        >>> from regard.config import load_config
        >>> from regard.data.synthetic.scene_files import write_scenes
        >>> from regard.data.synthetic.scenes import generate_scenes
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     captions, _ = write_scenes(folder, "train", generate_scenes(12, seed=1))
        ...     settings = [f"data.captions={captions}", "image.size=16", "training.max_updates=2", "model.encoder.channels=[4]"]
        ...     settings += [f"model.{name}=5" for name in ("embed_dim", "decoder_dim", "attention_dim", "feature_dim")]
        ...     config = load_config(None, settings, kind=CaptioningConfig)
        ...     result = train_captioning(config, Path(folder, "run"))
        >>> result.step, result.reason
        (2, 'max_updates')
    """
    folder = Path(folder)
    config = resolve_config(config)
    check_captioning_settings(config)
    with processes() as world, run_lock(folder, world):
        config = resolve_start(resolve_precision(config, folder, world.device), folder)
        data = read_caption_data(config)
        with start_or_resume(world, folder, config, data.digests, lambda: _vocabulary(config, data.train), (*RUN_FILES, IMAGES)):
            vocabulary = Vocabulary.load(folder / VOCABULARY)
            report_unknown(config, vocabulary, (normalize_caption(text, config.data) for _, text in data.train.pairs))
            torch.manual_seed(config.training.seed)
            fresh = not any((folder / "checkpoints").glob("step-*"))
            if isinstance(config.model.encoder, SmallCNNConfig | FeaturesConfig):
                needs = config.training if world.device.type == "cpu" else None
                check_memory(lambda: build_captioner(config.model, image_size=config.image.size, vocab_size=len(vocabulary)), needs)
            model = build_captioner(
                config.model,
                image_size=config.image.size,
                vocab_size=len(vocabulary),
                pretrained=fresh and config.start is None and world.main,
            )
            if fresh and config.start is None:
                init_encoder_from(model, config)
            parts = []
            for examples, name in ((data.train, "training data"), (data.valid, "validation data")):
                world.on_main(lambda examples=examples: int(bool(len(_pictures(config, folder, examples)))))
                pictures, cells = _pictures(config, folder, examples), model.grid[0] * model.grid[1]
                corpus = encode_captions(examples, pictures, vocabulary, config, cells=cells, name=name)
                parts.append(_Part(examples, corpus))
        _report(config, parts[0], parts[1], vocabulary, model)
        job = _job(config, folder, parts[0].corpus, parts[1], vocabulary)
        job = replace(job, begin=initial_state(config), on_event=on_event or job.on_event)
        return train(model, job, config=config.training, folder=folder, run_files=RUN_FILES)


def check_captioning_settings(config: CaptioningConfig) -> None:
    """Refuse settings that do not fit together, before anything is read or written.

    Raises:
        ConfigError: names the setting and what it needs.

    Example:
        >>> check_captioning_settings(CaptioningConfig())
    """
    if config.decoding.replace_unknown:
        raise ConfigError("decoding.replace_unknown: there is no source word to take in a caption")
    check_metric(config, METRICS)
    build_preprocessing(config.image)
    if isinstance(config.model.encoder, SmallCNNConfig | FeaturesConfig):
        check_memory(lambda: build_captioner(config.model, image_size=config.image.size, vocab_size=8))


def init_encoder_from(model: CaptionModel[Any], config: CaptioningConfig) -> None:
    """Give a new model the image encoder of the trained run that `model.encoder.start` names, if it does.

    Args:
        model: of `config`, not trained yet.
        config: of the new run.

    Raises:
        ConfigError: there is no such run, it is damaged, or the two encoders, or the images they are made for, are not alike; names the
            file or the settings.

    Example:
        >>> init_encoder_from(build_captioner(CaptioningConfig().model, image_size=96, vocab_size=8), CaptioningConfig())
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
    return translation_likelihood(model, cast(Any, corpus), poll=poll, batch_tokens=1024)


def _pictures(config: CaptioningConfig, folder: Path, examples: CaptionSet) -> IndexedImages:
    if config.data.features is not None:
        return FeatureRows(FeatureFile(config.data.features), examples.ids)
    cache = Path(config.data.cache) if config.data.cache is not None else folder / IMAGES
    return ImageCache(examples.images, build_preprocessing(config.image), cache)


def _vocabulary(config: CaptioningConfig, examples: CaptionSet) -> dict[str, bytes]:
    settings = config.vocabulary
    texts = [normalize_caption(text, config.data) for _, text in sampled(examples.pairs, settings.sample)]
    return {VOCABULARY: Vocabulary.train(texts, kind=settings.kind, size=settings.size, min_count=settings.min_count).to_bytes()}


def _job(config: CaptioningConfig, folder: Path, corpus: CaptionCorpus, held: _Part, vocabulary: Vocabulary) -> TrainingJob:
    training = config.training

    def loss(model: nn.Module, batch: SequenceBatch) -> SequenceLoss:
        return model(*batch[:5], label_smoothing=training.label_smoothing)

    def evaluate(model: nn.Module) -> dict[str, float]:
        assert isinstance(model, CaptionModel)
        figures = caption_likelihood(model, held.corpus, poll=job.stop.poll)
        if names := [name for name in _OF_CAPTIONS if name in training.measured]:
            captioner = Captioner(CaptionRun(folder, config, vocabulary, model, folder), poll=job.stop.poll)
            found = captioner.describe(held.corpus.pictures, decoding=config.decoding.model_copy(update={"beam_size": 1}))
            scores = caption_scores(held.examples.references, [item.text for item in found])
            figures |= {name: scores.corpus[_OF_CAPTIONS[name]].value for name in names}
        return figures

    # `evaluate` polls the job's own stop signal, which is looked up when it runs.
    job = TrainingJob(
        plan=lambda epoch: corpus.plan(batch_tokens=training.batch_tokens, seed=training.seed, epoch=epoch),
        collate=corpus.batch,
        loss=loss,
        evaluate=evaluate,
        split=corpus.split,
        micro_batches=automatic_micro_batches(training.batch_tokens),
        record_attention=_recorder(config, folder, held, vocabulary),
    )
    return job


def _recorder(config: CaptioningConfig, folder: Path, held: _Part, vocabulary: Vocabulary) -> Recorder | None:
    images, corpus = held.examples.images, held.corpus
    # Of each image the first caption that was not too long.
    captions = {image: row for row, image in reversed(list(enumerate(corpus.picks)))}
    lengths = [int(corpus.targets.lengths[captions[image]]) if image in captions else 0 for image in range(len(images))]

    def record(model: nn.Module, number: int) -> AttentionRecord | None:
        assert isinstance(model, CaptionModel)
        captioner = Captioner(CaptionRun(folder, config, vocabulary, model, folder))
        has_pixels = not isinstance(config.model.encoder, FeaturesConfig)
        pixels = build_preprocessing(config.image).pixels(images[number]) if has_pixels else None
        return captioner.align(corpus.pictures[[number]], corpus.targets[captions[number]].tolist(), pixels=pixels)

    return recorder("validation image", choose_examples(lengths, config.training.watch), record)


def _report(config: CaptioningConfig, own: _Part, held: _Part, vocabulary: Vocabulary, model: CaptionModel[Any]) -> None:
    sizes = [f"{len(part.corpus.targets)} captions of {len(part.examples)}" for part in (own, held)]
    progress.message(f"{time.strftime('%H:%M:%S')} {sizes[0]} training images, {sizes[1]} validation images")
    for part, name in ((own, "training"), (held, "validation")):
        if part.corpus.left_out:
            progress.message(f"{name} captions left out: {part.corpus.left_out} too long")
    if config.data.shuffle_images:
        progress.message("image-blind control: every image's captions go with another image")
    rows, columns = model.grid
    encoder = config.model.encoder
    sees = f", each of which sees {encoder.receptive_field} pixels" if isinstance(encoder, SmallCNNConfig) else ""
    progress.message(f"image: {rows} x {columns} cells{sees}; vocabulary: {len(vocabulary)} entries")
    progress.message(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
