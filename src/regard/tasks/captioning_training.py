"""Captioning: training on images with captions."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from regard import progress
from regard.config.captioning import CaptioningConfig, FeaturesConfig, ShowConfig, SmallCNNConfig
from regard.data.batching import PlannedBatch
from regard.data.captions import CaptionSet
from regard.data.image_archive import ImageArchive
from regard.data.image_cache import ImageCache
from regard.data.image_features import FeatureFile
from regard.data.subsample import sampled
from regard.data.token_cache import TOKENS
from regard.data.vocabulary import Vocabulary
from regard.errors import CheckpointError, ConfigError, counted
from regard.metrics.caption import caption_scores
from regard.models.captioning import CaptionModel, build_captioner
from regard.tasks.captioning_data import (
    PARTS,
    CaptionCorpus,
    CaptionText,
    FeatureRows,
    IndexedImages,
    build_preprocessing,
    normalize_caption,
    open_caption_sets,
    open_encoded,
    resolve_config,
)
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.captioning_run import IMAGES, RUN_FILES, CaptionRun, open_caption_run
from regard.tasks.fine_tuning import report_unknown
from regard.tasks.run_folder import VOCABULARY, check_metric, on_first_process
from regard.tasks.train import TaskTraining, make_vocabulary, report_left_out, train_task
from regard.tasks.translation_training import translation_likelihood
from regard.training import TrainResult
from regard.training.memory_check import check_memory
from regard.training.micro_batch import why_alone
from regard.viewer import AttentionRecord

_OF_CAPTIONS = {"bleu": "BLEU-4", "cider": "CIDEr-D"}
METRICS = ("loss", "perplexity", "token_accuracy", *_OF_CAPTIONS)
"""Values of `training.metric` and `training.eval_metrics`."""


def train_captioning(config: CaptioningConfig, folder: str | Path, *, on_event: Callable[[str], None] | None = None) -> TrainResult:
    """Train a captioner, or resume the run in `folder`: `regard.tasks.train.train_task`; `data.captions` must be set.

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
    return train_task(CaptioningTraining, config, folder, on_event=on_event)


def check_captioning_settings(config: CaptioningConfig) -> None:
    """Check the settings before reading or writing anything.

    Raises:
        ConfigError: incompatible settings.

    Example:
        >>> check_captioning_settings(CaptioningConfig())
    """
    if config.decoding.shortlist:
        raise ConfigError("decoding.shortlist: a caption has no source words to choose tokens by")
    if config.decoding.replace_unknown:
        raise ConfigError("decoding.replace_unknown: there is no source word to take in a caption")
    data = config.data
    if data.valid_split is not None and data.split is None and data.valid_captions is None:
        raise ConfigError(f"data.valid_split={data.valid_split}: without data.split all parts are trained on, this one too; name both")
    check_metric(config, METRICS)
    build_preprocessing(config.image)
    if isinstance(config.model.encoder, SmallCNNConfig | FeaturesConfig):
        check_memory(lambda: build_captioner(config.model, image_size=config.image.size, vocab_size=8))


def init_encoder_from(model: CaptionModel[Any], config: CaptioningConfig) -> None:
    """Initialise a new model's image encoder from the run `model.encoder.start`, if set.

    Args:
        model: the untrained model of `config`.
        config: configuration of the new run.

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
    for key in (key for key in SmallCNNConfig.model_fields if key not in ("dropout", "augment", "start")):
        pairs.append((f"model.encoder.{key}", getattr(first.config.model.encoder, key, None), getattr(encoder, key)))
    if unlike := [f"{key} {old} instead of {new}" for key, old, new in pairs if old != new]:
        raise ConfigError(f"model.encoder.start: {encoder.start} was trained with {', '.join(unlike)}")
    model.image_encoder.load_state_dict(first.model.image_encoder.state_dict())


def caption_likelihood(model: CaptionModel[Any], corpus: CaptionCorpus, *, poll: Callable[[], None] | None = None) -> dict[str, float]:
    """Compute loss (nats per word, EOS included), perplexity and token_accuracy of given captions."""
    # A caption corpus has the interface of a sentence corpus. Small batches: an image takes more memory than a sentence.
    return translation_likelihood(model, cast(Any, corpus), poll=poll, batch_tokens=1024)


class CaptioningTraining(TaskTraining[CaptioningConfig]):
    """The training of a captioner."""

    watched = "validation image"
    check = staticmethod(check_captioning_settings)
    resolve = staticmethod(resolve_config)
    files, folders = RUN_FILES, (IMAGES, TOKENS)
    corpus: CaptionCorpus
    _places: tuple[Path | ImageArchive, ...] = ()

    def read(self) -> None:
        """Read the captions, and locate their images, in the first process."""
        self._text: list[CaptionText] = []
        on_first_process(self.world, lambda: self._text.append(CaptionText(self.config, self.folder)))
        self.digests = self._text[0].digests if self.world.main else {}

    def make(self) -> dict[str, bytes]:
        """Train the vocabulary."""
        settings, captions = self.config.vocabulary, self._text[0].train.captions
        texts = (normalize_caption(text, self.config.data) for text in sampled(captions, settings.sample))
        return {VOCABULARY: make_vocabulary(settings, texts, min(settings.sample, len(captions)), file=str(self.config.data.captions))}

    def encode(self) -> None:
        """Build the model (for its grid), and encode the captions."""
        config, self.vocabulary = self.config, Vocabulary.load(self.folder / VOCABULARY)
        on_first_process(self.world, self._keep)
        self.train, self.valid = open_caption_sets(config, self.folder, self._places)
        torch.manual_seed(config.training.seed)
        new = config.start is None and not any((self.folder / "checkpoints").glob("step-*"))
        if isinstance(config.model.encoder, SmallCNNConfig | FeaturesConfig):
            check_memory(self.network, config.training if self.world.device.type == "cpu" else None)
        self.model = self.network(pretrained=new and self.world.main)
        if new:
            init_encoder_from(self.model, config)
        self.corpus, self.held = (self._open(part, name) for part, name in zip((self.train, self.valid), PARTS, strict=True))
        # The first caption of each validation image that is not too long.
        self._first = dict(zip(*(found.tolist() for found in np.unique(self.held.picks, return_index=True)), strict=True))

    def _keep(self) -> None:
        text, data = self._text.pop(), self.config.data
        report_unknown(self.config, self.vocabulary, (normalize_caption(caption, data) for caption in text.train.captions))
        text.encode(self.vocabulary)
        self._places = (text.train.place, text.valid.place)  # an archive is indexed once

    def _open(self, examples: CaptionSet, part: str) -> CaptionCorpus:
        self.world.on_main(lambda: int(bool(len(self._pictures(examples)))))
        pictures, cells = self._pictures(examples), self.model.grid[0] * self.model.grid[1]
        return CaptionCorpus(pictures, *open_encoded(self.folder, part), cells, self.config.data.captions_per_image)

    def _pictures(self, examples: CaptionSet) -> IndexedImages:
        data = self.config.data
        if data.features is not None:
            return FeatureRows(FeatureFile(data.features), examples.ids)
        cache = Path(data.cache) if data.cache is not None else self.folder / IMAGES
        return ImageCache(examples.images, build_preprocessing(self.config.image), cache)

    def network(self, *, pretrained: bool = False) -> CaptionModel[Any]:
        """Build the model."""
        size, entries = self.config.image.size, len(self.vocabulary)
        return build_captioner(self.config.model, image_size=size, vocab_size=entries, pretrained=pretrained)

    def report(self, model: CaptionModel[Any]) -> None:
        """Report the numbers of captions and images, the grid and the receptive field."""
        named = zip(("training image", "validation image"), self.sizes, (self.corpus, self.held), strict=True)
        sizes = [f"{counted(len(corpus.targets), 'caption')} of {counted(images, name)}" for name, images, corpus in named]
        progress.message(f"{time.strftime('%H:%M:%S')} {sizes[0]}, {sizes[1]}")
        report_left_out({"too long": self.corpus.left_out}, "training captions")
        report_left_out({"too long": self.held.left_out}, "validation captions")
        if self.config.data.shuffle_images:
            progress.message("image-blind control: captions are shuffled between images")
        settings = self.config.model
        hard = settings.hard if isinstance(settings, ShowConfig) and settings.attention == "hard" else None
        if hard is not None and not hard.soft_batches and self.config.start is None:
            progress.message("model.hard.soft_batches=0: hard attention seldom learns without first batches of soft attention")
        (rows, columns), encoder = model.grid, settings.encoder
        sees = ""
        if isinstance(encoder, SmallCNNConfig):
            sees = f", each of which sees {'the whole image' if encoder.non_local else f'{encoder.receptive_field} pixels'}"
        progress.message(f"image: {rows} x {columns} cells{sees}; vocabulary: {len(self.vocabulary)} entries")

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of images to train and to validate on."""
        return len(self.train), len(self.valid)

    @property
    def divisible(self) -> bool:
        """Not by hard attention with a loss or a coin of the whole batch, nor where no worker keeps its counts of batches."""
        model = self.config.model
        if not isinstance(model, ShowConfig) or model.attention == "soft":
            return True
        whole = model.hard.scaling == "code" or model.hard.half_soft_per == "batch"
        return not whole and not why_alone(self.config.training, self.world)

    def split(self, planned: PlannedBatch, count: int) -> list[PlannedBatch]:
        """Divide a planned batch; captions that share an image stay together."""
        return self.corpus.split(planned, count)

    def evaluate(self, model: CaptionModel[Any]) -> dict[str, float]:
        """Evaluate given captions and, if configured, greedy ones."""
        figures = caption_likelihood(model, self.held, poll=self.stop.poll)
        if names := [name for name in _OF_CAPTIONS if name in self.config.training.measured]:
            greedy = self.config.decoding.model_copy(update={"beam_size": 1})
            found = self._captioner(model).describe(self.held.pictures, decoding=greedy)
            scores = caption_scores(self.valid.references, [item.text for item in found])
            figures |= {name: scores.corpus[_OF_CAPTIONS[name]].value for name in names}
        return figures

    def _captioner(self, model: CaptionModel[Any]) -> Captioner:
        return Captioner(CaptionRun(self.folder, self.config, self.vocabulary, model, self.folder), poll=self.stop.poll)

    def lengths(self) -> list[int]:
        """Return the tokens of each validation image's first caption, or 0."""
        lengths = self.held.targets.lengths
        return [int(lengths[self._first[image]]) if image in self._first else 0 for image in range(len(self.valid))]

    def record(self, model: CaptionModel[Any], number: int) -> AttentionRecord | None:
        """Record the attention for the first caption of an image."""
        has_pixels = not isinstance(self.config.model.encoder, FeaturesConfig)
        pixels = build_preprocessing(self.config.image).pixels(self.valid.image(number)) if has_pixels else None
        ids = self.held.targets[self._first[number]].tolist()
        return self._captioner(model).align(self.held.pictures[[number]], ids, pixels=pixels)
