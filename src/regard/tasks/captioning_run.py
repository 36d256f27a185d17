"""A captioning run: its vocabulary and model beside what every run folder has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.config.captioning import CaptioningConfig, FeaturesConfig, SmallCNNConfig
from regard.data.vocabulary import Vocabulary
from regard.models.captioning import CaptionModel, build_captioner
from regard.tasks.run_folder import CONFIG, DATA, VOCABULARY, Run, load_model, read_config, run_path

IMAGES = "images"
RUN_FILES = (CONFIG, DATA, VOCABULARY)


CaptionRun = Run[CaptioningConfig, CaptionModel[Any]]


def open_caption_run(folder: str | Path) -> CaptionRun:
    """Open a trained captioner: configuration, vocabulary, verified weights.

    Args:
        folder: a run folder as `regard train captioning` leaves it, finished or not.

    Raises:
        CheckpointError: the folder is not such a run, or a file in it is missing, damaged or does not fit.
        MissingExtraError: its encoder needs timm, which is not installed.

    Example:
        >>> open_caption_run("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    folder = run_path(folder)
    config = read_config(folder, CaptioningConfig)
    vocabulary = Vocabulary.load(folder / VOCABULARY)

    def build() -> CaptionModel[Any]:
        return build_captioner(config.model, image_size=config.image.size, vocab_size=len(vocabulary))

    ours = isinstance(config.model.encoder, SmallCNNConfig | FeaturesConfig)
    model, weights = load_model(folder, build, RUN_FILES, sizes_first=ours)
    return CaptionRun(folder, config, vocabulary, model, weights)
