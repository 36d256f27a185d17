"""Data of a captioning run: images or features, encoded captions, and settings from timm models or feature files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from regard.config.captioning import CaptionDataConfig, CaptioningConfig, FeaturesConfig, ImageConfig, TimmConfig
from regard.data.batching import PlannedBatch, SequenceBatch, collate, plan_batches, split_batch
from regard.data.caption_formats import read_entries
from regard.data.captions import CaptionExample, CaptionSet, read_captions
from regard.data.image_archive import ArchivedImage
from regard.data.image_features import FeatureFile
from regard.data.images import ImageSource, Preprocessing
from regard.data.parallel import file_digest
from regard.data.text_encoder import TextEncoder
from regard.data.token_arrays import FlatTokens
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError
from regard.models.image_encoder import import_timm


class IndexedImages(Protocol):
    """Images by index, (n, 3, H, W), or features (n, L, D)."""

    def __len__(self) -> int: ...

    def __getitem__(self, indices: Sequence[int], /) -> Tensor: ...


class FeatureRows:
    """Features of named images by number.

    Args:
        file: the features.
        ids: image names, all present in the file.

    Raises:
        DataError: an id is not in the file.
    """

    def __init__(self, file: FeatureFile, ids: Sequence[str]) -> None:
        missing = [name for name in ids if name not in file]
        if missing:
            raise DataError(f"{file.path}: no features of {missing[0]} ({len(missing)} of {len(ids)} images have none)")
        self.file, self.ids = file, list(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, indices: Sequence[int]) -> Tensor:
        return self.file[[self.ids[index] for index in indices]]


class CaptionData(NamedTuple):
    """Training and validation images with captions, and the sha256 of their files by `data` key."""

    train: CaptionSet
    valid: CaptionSet
    digests: dict[str, str]


class CaptionCorpus(NamedTuple):
    """Encoded captions with image indices.

    Attributes:
        pictures: the images.
        picks: image index of each caption.
        targets: token ids of each caption, without EOS.
        cells: L, cells of an image.
        left_out: number of skipped, too long captions.
        together: captions per image in a batch.
    """

    pictures: IndexedImages
    picks: list[int]
    targets: FlatTokens
    cells: int
    left_out: int
    together: int

    def batch(self, planned: PlannedBatch) -> SequenceBatch:
        """Return the batch of the planned captions; consecutive captions of an image share one source."""
        rows = planned.indices
        text = collate([()] * len(rows), [self.targets[row] for row in rows], range(len(rows)))  # type: ignore[arg-type]
        picks = _once([self.picks[row] for row in rows], self.together)
        return text._replace(source=self.pictures[picks], source_lengths=torch.full((len(picks),), self.cells), indices=tuple(rows))

    def split(self, planned: PlannedBatch, count: int) -> list[PlannedBatch]:
        """Divide a planned batch; captions that share an image stay together."""
        images = _once([self.picks[row] for row in planned.indices], self.together)
        return split_batch(planned, count, multiple=len(planned.indices) // len(images))

    def plan(self, *, batch_tokens: int, seed: int, epoch: int) -> Sequence[PlannedBatch]:
        """Return an epoch's batches, each with equally many captions per image; `batch_tokens` counts padded caption tokens."""
        lengths = self.targets.lengths
        if self.together == 1:
            return plan_batches(np.zeros_like(lengths), lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
        generator = random.Random(f"captions together {seed} {epoch}")
        groups: dict[int, list[list[int]]] = {}
        for own in _by_image(self.picks):
            generator.shuffle(own)
            for start in range(0, len(own), self.together):
                group = own[start : start + self.together]
                groups.setdefault(len(group), []).append(group)
        batches = []
        for size, found in sorted(groups.items()):
            longest = np.array([max(lengths[group]) for group in found])
            budget = max(1, batch_tokens // size)
            for planned in plan_batches(np.zeros_like(longest), longest, batch_tokens=budget, seed=seed, epoch=epoch, part=size):
                rows = [row for group in planned.indices for row in found[group]]
                batches.append(PlannedBatch(tuple(rows), int(lengths[rows].sum()) + len(rows)))
        generator.shuffle(batches)
        return batches


def encode_captions(
    examples: CaptionSet, pictures: IndexedImages, vocabulary: Vocabulary, config: CaptioningConfig, *, cells: int, name: str
) -> CaptionCorpus:
    """Encode captions, skipping and counting those that are too long.

    Args:
        examples: the captioned images.
        pictures: their images, in the same order.
        vocabulary: vocabulary of the run.
        config: configuration of the run; `data.shuffle_images` pairs captions with other images.
        cells: L, cells of an image.
        name: name of the captions in errors.

    Raises:
        DataError: no caption is left.
    """
    pairs = examples.pairs
    targets = TextEncoder(vocabulary).encode_all([normalize_caption(text, config.data) for _, text in pairs], f"the {name}")
    kept = np.flatnonzero((targets.lengths > 0) & (targets.lengths <= config.data.max_length))
    if not len(kept):
        raise DataError(f"{name}: all {len(pairs)} captions are longer than data.max_length ({config.data.max_length} tokens)")
    image_of = derangement(len(examples), config.training.seed) if config.data.shuffle_images else range(len(examples))
    picks = [image_of[pairs[number][0]] for number in kept]
    return CaptionCorpus(pictures, picks, targets.chosen(kept), cells, len(pairs) - len(kept), config.data.captions_per_image)


def _once(picks: list[int], together: int) -> list[int]:
    # Groups of up to `together` captions that all images of a batch have.
    for size in range(min(together, len(picks)), 1, -1):
        heads = picks[::size]
        if len(picks) % size == 0 and picks == [pick for pick in heads for _ in range(size)]:
            return heads
    return picks


def _by_image(picks: Sequence[int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for row, pick in enumerate(picks):
        found.setdefault(pick, []).append(row)
    return list(found.values())


def normalize_caption(caption: str, data: CaptionDataConfig) -> str:
    """Normalise a caption for the vocabulary.

    Example:
        >>> normalize_caption("A dog", CaptionDataConfig())
        'a dog'
    """
    return caption.lower() if data.lowercase else caption


def derangement(count: int, seed: int) -> list[int]:
    """Return a random permutation of `count` numbers without fixed points (for count > 1).

    Example:
        >>> found = derangement(5, seed=1)
        >>> sorted(found), any(number == other for number, other in enumerate(found))
        ([0, 1, 2, 3, 4], False)
    """
    order = random.Random(f"shuffled images {seed}").sample(range(count), count)
    found = [0] * count
    for place, number in enumerate(order):
        found[number] = order[(place + 1) % count]
    return found


def read_caption_data(config: CaptioningConfig) -> CaptionData:
    """Read the captions of a run and locate their images or features.

    Raises:
        DataError: no captions are named; also see `regard.data.captions.read_captions`.
    """
    data = config.data
    if data.captions is None:
        raise DataError("data.captions: no training data given (--captions FILE --images FOLDER)")
    train = read_caption_set(data.captions, data.images, data.split, features=data.features)
    if data.valid_captions is None and data.valid_split is None:
        train, valid = _held_out(train, data.valid_size, config.training.seed)
    else:
        images = data.valid_images or data.images
        valid = read_caption_set(data.valid_captions or data.captions, images, data.valid_split, features=data.features)
    files = {"captions": data.captions, "valid_captions": data.valid_captions, "features": data.features}
    files |= {name: getattr(data, name) for name in ("split", "valid_split") if _is_file(getattr(data, name))}
    digests = {name: file_digest(path) for name, path in files.items() if path is not None}
    if data.features is None:
        digests["images"] = _listing(train, valid)
    return CaptionData(train, valid, digests)


def read_caption_set(captions: str, images: str | None, split: str | None, *, features: str | None = None) -> CaptionSet:
    """Read captioned images; with features, the images may be missing.

    Raises:
        DataError: see `regard.data.captions.read_captions`.
    """
    if features is None:
        return read_captions(captions, images, split=split)
    entries = read_entries(Path(captions), "auto", split)
    return CaptionSet(tuple(CaptionExample(entry.name, Path(entry.name), tuple(entry.captions)) for entry in entries))


def resolve_config(config: CaptioningConfig) -> CaptioningConfig:
    """Complete settings from a feature file or a timm model: grid and features, or preprocessing.

    Raises:
        ConfigError: settings that contradict each other.
        DataError: the features cannot be read.
        MissingExtraError: timm is needed but not installed.

    Example:
        >>> resolve_config(CaptioningConfig()) == CaptioningConfig()
        True
    """
    encoder = config.model.encoder
    if isinstance(encoder, FeaturesConfig) != (config.data.features is not None):
        raise ConfigError("data.features and model.encoder.type=features: one goes with the other")
    if isinstance(encoder, FeaturesConfig) and config.data.features is not None:
        file = FeatureFile(config.data.features)
        found = {"grid": file.grid, "dim": file.shape[2]}
        for name, value in found.items():
            if getattr(encoder, name) not in (None, value):
                raise ConfigError(f"model.encoder.{name}: {getattr(encoder, name)}, but {file.path} has {value}")
        return config.model_copy(update={"model": config.model.model_copy(update={"encoder": encoder.model_copy(update=found)})})
    if isinstance(encoder, TimmConfig) and "image" not in config.model_fields_set:
        return config.model_copy(update={"image": _image_of(encoder)})
    return config


def build_preprocessing(image: ImageConfig) -> Preprocessing:
    """Return the configured preprocessing.

    Example:
        >>> build_preprocessing(ImageConfig(size=64)).size
        64
    """
    return Preprocessing(**image.model_dump())


def _image_of(encoder: TimmConfig) -> ImageConfig:
    timm = import_timm()
    try:
        wanted = timm.data.resolve_model_data_config(timm.create_model(encoder.name, pretrained=False))
    except RuntimeError as error:
        raise ConfigError(f"model.encoder.name {encoder.name}: timm knows no such model") from error
    resample = wanted["interpolation"] if wanted["interpolation"] in ("bilinear", "bicubic", "lanczos") else "bicubic"
    numbers = {"mean": wanted["mean"], "std": wanted["std"], "keep": wanted["crop_pct"]}
    return ImageConfig(size=wanted["input_size"][-1], fit="crop", resample=resample, **numbers)


def _held_out(examples: CaptionSet, count: int, seed: int) -> tuple[CaptionSet, CaptionSet]:
    if len(examples) < 2:
        raise DataError(f"{len(examples)} captioned images: at least 2 are needed to hold one out for validation")
    chosen = set(random.Random(f"held out {seed}").sample(range(len(examples)), max(1, min(count, len(examples) // 10))))
    parts = [[each for number, each in enumerate(examples) if (number in chosen) == held] for held in (False, True)]
    return CaptionSet(tuple(parts[0])), CaptionSet(tuple(parts[1]))


def _is_file(split: str | None) -> bool:
    return split is not None and Path(split).is_file()


def _listing(*sets: CaptionSet) -> str:
    # Hash names and sizes, not pixels: images are read only once, when they are decoded.
    digest = hashlib.sha256()
    for examples in sets:
        for example in examples:
            digest.update(f"{example.id}\0{_length(example.image)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _length(image: ImageSource) -> int:
    return image.length if isinstance(image, ArchivedImage) else Path(image).stat().st_size
