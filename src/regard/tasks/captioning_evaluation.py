"""Evaluate a captioner against all references, and its attention against known regions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import progress
from regard.config import DecodingConfig
from regard.config.captioning import FeaturesConfig
from regard.data.captions import CaptionSet
from regard.data.image_features import FeatureFile
from regard.data.images import Preprocessing
from regard.errors import DataError
from regard.metrics.caption import DocumentFrequencies, caption_scores
from regard.metrics.meteor import find_meteor, meteor
from regard.metrics.pointing import attention_correctness, attention_entropy, box_region, cell_coverage, cell_hits, pointing_accuracy
from regard.metrics.score import Score
from regard.tasks.captioning_data import IndexedImages, build_preprocessing, encode_captions
from regard.tasks.captioning_prediction import Caption, Captioner
from regard.tasks.captioning_training import caption_likelihood


class CaptionEvaluation(NamedTuple):
    """Test results of a captioner.

    Attributes:
        scores: each with its signature.
        captions: one for each image.
        items: scores per image, by name.
        seconds: decoding time.
    """

    scores: list[Score]
    captions: list[Caption]
    items: dict[str, tuple[float, ...]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        return {"scores": [{"name": s.name, "value": s.value, "unit": s.unit, "signature": s.signature} for s in self.scores]}


class FileImages:
    """Images read on access: a test set is used once.

    Args:
        captioner: how images are read.
        examples: the captioned images.
    """

    def __init__(self, captioner: Captioner, examples: CaptionSet) -> None:
        self.how, self.examples = build_preprocessing(captioner.run.config.image), examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        pixels = [self.how.pixels(self.examples[index].image) for index in indices]
        return self.how.normalize(np.stack(pixels))


def evaluate_captioning(
    captioner: Captioner,
    examples: CaptionSet,
    *,
    decoding: DecodingConfig | None = None,
    features: FeatureFile | None = None,
    frequencies: DocumentFrequencies | None = None,
    with_meteor: bool = False,
) -> CaptionEvaluation:
    """Caption images and compare with all references; with known regions of words, measure how often attention points there.

    Args:
        captioner: an opened run.
        examples: images with their references.
        decoding: decoding settings; None: the run's.
        features: the images' features, for a run that reads these.
        frequencies: document frequencies for CIDEr; None counts the references given.
        with_meteor: METEOR, too (`regard.metrics.meteor`).

    Returns:
        BLEU-1 to 4, ROUGE-L, CIDEr-D, CIDEr, perplexity and token accuracy of the references; with regions pointing accuracy with its
        chance, attention correctness with that of uniform attention, and entropy, on the words generated.

    Raises:
        DataError: an image cannot be read, or no reference can be used.
        MissingExtraError: METEOR is wanted, but not installed.

    Example:
        >>> evaluate_captioning(Captioner.open("no-such-run"), CaptionSet.of([]))
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    if with_meteor:
        find_meteor()  # fail before the work, not after it
    config = captioner.run.config
    if isinstance(config.model.encoder, FeaturesConfig) != (features is not None):
        raise DataError(f"{captioner.run.folder}: features are given to a run that reads features, images to one that reads images")
    pictures: IndexedImages = captioner.feature_rows(features, examples.ids) if features is not None else FileImages(captioner, examples)
    begun = time.perf_counter()
    captions = captioner.describe(pictures, decoding=decoding, need_attention=True)
    seconds = time.perf_counter() - begun
    captions = [item._replace(source=each.image) for item, each in zip(captions, examples, strict=True)]
    with progress.stage("Scoring the captions"):
        found = caption_scores(examples.references, [item.text for item in captions], frequencies=frequencies)
        extra = [meteor(examples.references, [item.text for item in captions])[0]] if with_meteor else []
    grid = captioner.run.model.grid
    straight = config.model_copy(update={"data": config.data.model_copy(update={"shuffle_images": False})})
    corpus = encode_captions(examples, pictures, captioner.run.vocabulary, straight, cells=grid[0] * grid[1], name="test data")
    with torch.inference_mode():
        figures = caption_likelihood(captioner.run.model, corpus)
    used = f"captions:{len(corpus.targets)}/{len(examples.captions)}|eos:yes"
    scores = [*found.corpus.values(), *extra, Score("perplexity", figures["perplexity"], "per word", f"{used}|smoothing:none")]
    scores.append(Score("token accuracy", 100 * figures["token_accuracy"], "%", f"{used}|teacher forcing"))
    with_regions = any(example.regions is not None for example in examples)
    if (kind := captioner.run.vocabulary.kind) == "word":
        how = None if features is not None else build_preprocessing(config.image)
        scores += (pointing := attention_scores(captions, examples, grid, how=how))
        if not pointing and with_regions:
            progress.message("no generated word has a region that its image shows: pointing accuracy is not measured")
    elif with_regions:
        progress.message(f"pointing accuracy is of words, which a vocabulary of kind {kind} has none of: not measured")
    return CaptionEvaluation(scores, captions, dict(found.items), seconds)


def attention_scores(
    captions: Sequence[Caption],
    examples: CaptionSet,
    grid: tuple[int, int],
    *,
    how: Preprocessing | None = None,
    resolution: int = 8,
) -> list[Score]:
    """Score the attention at generated words whose regions are known.

    A word counts where its image has regions for it (`CaptionExample.regions`, by the word) that the model sees.

    Args:
        captions: with attention.
        examples: their images, some with regions.
        grid: rows and columns of the cells.
        how: what the model sees of an image; None: all of it, as of precomputed features.
        resolution: pixels to the side of a cell that boxes are drawn with; a hit may be half a cell away.

    Returns:
        Pointing accuracy, that of a random cell, attention correctness, that of uniform attention, entropy; nothing without such words.

    Example:
        >>> attention_scores([], CaptionSet.of([]), (2, 2))
        []
    """
    weights, hits, coverage = [], [], []
    height, width = grid[0] * resolution, grid[1] * resolution
    for item, example in zip(captions, examples, strict=True):
        if example.regions is None or not item.hypotheses:
            continue
        attention = item.hypotheses[0].attention
        words = item.text.split()
        if attention is None or len(words) > len(attention):
            continue
        for word, row in zip(words, attention, strict=False):
            boxes = example.regions.get(word, ())
            if boxes := boxes if how is None else how.visible_boxes(boxes, example.image):
                region = box_region(boxes, height, width)
                weights.append(row.numpy())
                hits.append(cell_hits(region, grid, tolerance=resolution / 2))
                coverage.append(cell_coverage(region, grid))
    if not weights:
        return []
    pointing = pointing_accuracy(np.stack(weights), np.stack(hits))
    inside = attention_correctness(np.stack(weights), np.stack(coverage))
    return [pointing.accuracy, pointing.random_cell, inside.correctness, inside.uniform, attention_entropy(np.stack(weights))]


def describe_captions(evaluation: CaptionEvaluation, say: Callable[[str], None]) -> None:
    """Report the scores, one a line."""
    for score in evaluation.scores:
        say(f"{score.name:<22}{score.number:>9} {score.unit:<10}{score.signature}")
