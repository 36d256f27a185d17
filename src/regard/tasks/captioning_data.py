"""Data of a captioning run: images or features, encoded captions, and settings from timm models or feature files."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from regard.config.captioning import CaptionDataConfig, CaptioningConfig, FeaturesConfig, ImageConfig, TimmConfig
from regard.data.batching import BatchPlan, PlannedBatch, SequenceBatch, collate, plan_batches, split_batch
from regard.data.caption_formats import read_entries
from regard.data.captions import CaptionSet, pack_entries, read_captions, read_regions
from regard.data.file_digests import DataFiles
from regard.data.image_archive import ArchivedImage, ImageArchive
from regard.data.image_features import FeatureFile
from regard.data.images import ImageSource, Preprocessing
from regard.data.parallel import file_digest
from regard.data.text_encoder import BLOCK, TextEncoder
from regard.data.token_arrays import FlatTokens, PackedTexts, TokenFile, write_tokens
from regard.data.token_cache import TOKENS, new_cache, open_cache, read_cache
from regard.data.vocabulary import Vocabulary
from regard.errors import ConfigError, DataError, counted
from regard.models.image_encoder import import_timm
from regard.progress import stage
from regard.tasks.run_folder import VOCABULARY

PARTS = ("training", "validation")


@runtime_checkable
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


class EncodedCaptions(NamedTuple):
    """Captions as tokens.

    Attributes:
        picks: (N,) image index of each caption.
        targets: token ids of each caption, without EOS.
        left_out: number of skipped, too long captions.
    """

    picks: np.ndarray
    targets: FlatTokens
    left_out: int


class CaptionCorpus(NamedTuple):
    """Encoded captions with image indices.

    Attributes:
        pictures: the images.
        picks: (N,) image index of each caption; those of an image follow each other.
        targets: token ids of each caption, without EOS.
        left_out: number of skipped, too long captions.
        cells: L, cells of an image.
        together: captions per image in a batch.
    """

    pictures: IndexedImages
    picks: np.ndarray
    targets: FlatTokens
    left_out: int
    cells: int
    together: int

    def batch(self, planned: PlannedBatch) -> SequenceBatch:
        """Return the batch of the planned captions; consecutive captions of an image share one source."""
        rows = planned.indices
        text = collate([()] * len(rows), self.targets.rows(rows), range(len(rows)))  # type: ignore[arg-type]
        picks = _once(self.picks[list(rows)].tolist(), self.together)
        return text._replace(source=self.pictures[picks], source_lengths=torch.full((len(picks),), self.cells), indices=tuple(rows))

    def split(self, planned: PlannedBatch, count: int) -> list[PlannedBatch]:
        """Divide a planned batch; captions that share an image stay together."""
        images = _once(self.picks[list(planned.indices)].tolist(), self.together)
        return split_batch(planned, count, multiple=len(planned.indices) // len(images))

    def plan(self, *, batch_tokens: int, seed: int, epoch: int) -> Sequence[PlannedBatch]:
        """Return an epoch's batches, each with equally many captions per image; `batch_tokens` counts padded caption tokens."""
        lengths = self.targets.lengths
        if self.together == 1:
            return plan_batches(np.zeros_like(lengths), lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
        generator = random.Random(f"captions together {seed} {epoch}")
        order, sizes = self._groups(generator)
        plans, groups = [], []
        for size in np.unique(sizes).tolist():
            groups.append(order[sizes == size].reshape(-1, size))
            longest, budget = lengths[groups[-1]].max(1), max(1, batch_tokens // size)
            plans.append(plan_batches(np.zeros_like(longest), longest, batch_tokens=budget, seed=seed, epoch=epoch, part=size))
        places = list(range(sum(map(len, plans))))
        generator.shuffle(places)
        return BatchPlan.of_groups(plans, groups, lengths, np.array(places))

    def _groups(self, generator: random.Random) -> tuple[np.ndarray, np.ndarray]:
        """Return the captions, shuffled within each image, and for each of them how many of its image come together with it."""
        starts = np.flatnonzero(np.diff(self.picks, prepend=-1))
        counts = np.diff(starts, append=len(self.picks))
        order = np.arange(len(self.picks))
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            own = list(range(start, start + count))
            generator.shuffle(own)
            order[start : start + count] = own
        places, counts = np.arange(len(order)) - np.repeat(starts, counts), np.repeat(counts, counts)
        return order, np.minimum(self.together, counts - places // self.together * self.together)


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
    encoded = _encoded(examples, vocabulary, config, name)
    return CaptionCorpus(pictures, *encoded, cells, config.data.captions_per_image)


def _encoded(examples: CaptionSet, vocabulary: Vocabulary, config: CaptioningConfig, name: str) -> EncodedCaptions:
    encoder, texts, data = TextEncoder(vocabulary), examples.captions, config.data
    blocks, usable = list[FlatTokens](), list[np.ndarray]()
    with stage(f"Encoding the {name}", total=len(texts), unit="captions") as encoding:
        for start in range(0, max(1, len(texts)), BLOCK):
            tokens = encoder.encode([normalize_caption(text, data) for text in texts[start : start + BLOCK]])
            usable.append((tokens.lengths > 0) & (tokens.lengths <= data.max_length))
            blocks.append(tokens.chosen(usable[-1]))
            encoding.advance(len(tokens))
    picks, targets = examples.owners[np.concatenate(usable)], FlatTokens.joined(blocks)
    if not len(targets):
        which = "the caption is" if len(texts) == 1 else f"all {len(texts)} captions are"
        raise DataError(f"{name}: {which} longer than data.max_length ({data.max_length} tokens)")
    if data.shuffle_images:
        picks = np.array(derangement(len(examples), config.training.seed))[picks]
    return EncodedCaptions(picks, targets, len(texts) - len(targets))


def _once(picks: list[int], together: int) -> list[int]:
    # Groups of up to `together` captions that all images of a batch have.
    for size in range(min(together, len(picks)), 1, -1):
        heads = picks[::size]
        if len(picks) % size == 0 and picks == [pick for pick in heads for _ in range(size)]:
            return heads
    return picks


def normalize_caption(caption: str, data: CaptionDataConfig) -> str:
    """Normalize a caption for the vocabulary.

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


class CaptionText:
    """Captioned images of a run: read from their files, unless an earlier start has kept them in the run folder.

    Args:
        config: configuration of the run.
        folder: of the run.

    Attributes:
        train: images to train on.
        valid: images to validate on.
        digests: sha256 of each data file, and of the names and sizes of the images, by the key of `data` that names them.

    Raises:
        DataError: no captions are named; also see `regard.data.captions.read_captions`.
    """

    def __init__(self, config: CaptioningConfig, folder: Path) -> None:
        data = config.data
        if data.captions is None:
            raise DataError("data.captions: no training data given (--captions FILE --images FOLDER)")
        self._config, self._run, self._folder = config, folder, folder / TOKENS
        files = {"captions": data.captions, "valid_captions": data.valid_captions, "features": data.features}
        files |= {name: split for name in ("split", "valid_split") if _is_file(split := getattr(data, name))}
        self._files = DataFiles(files, self._folder)
        self._kept = (folder / VOCABULARY).exists() and open_cache(self._folder, self._about()) is not None
        try:
            found = open_caption_sets(config, folder) if self._kept else None
            images = None if found is None or data.features is not None else caption_images_digest(*found)
        except (OSError, DataError):  # an image is not where it was: the files are read, which says so
            self._kept, found, images = False, None, None
        self.train, self.valid = found or self._read()
        self.digests = dict(self._files.digests)
        if data.features is None:
            self.digests["images"] = images or caption_images_digest(self.train, self.valid)

    def _read(self) -> tuple[CaptionSet, CaptionSet]:
        data = self._config.data
        train = read_caption_set(str(data.captions), data.images, data.split, features=data.features)
        if data.valid_captions is None and data.valid_split is None:
            return _held_out(train, data.valid_size, self._config.training.seed)
        captions, images = data.valid_captions or str(data.captions), data.valid_images or data.images
        return train, read_caption_set(captions, images, data.valid_split, features=data.features)

    def _about(self) -> dict[str, Any]:
        data = self._config.data
        settings = [data.split, data.valid_split, data.lowercase, data.max_length, data.shuffle_images]
        return {
            "format": 1,
            "text": {name: digest for name, digest in self._files.digests.items() if name != "features"},
            "vocabulary": file_digest(self._run / VOCABULARY),
            "settings": [*settings, data.valid_size, self._config.training.seed],
        }

    def encode(self, vocabulary: Vocabulary) -> None:
        """Keep the captions and their tokens in the run folder, unless they are kept.

        Raises:
            DataError: no caption is left, or the folder cannot be written.
        """
        if not self._kept:
            with new_cache(self._folder, self._about()) as (folder, kept):
                for part, examples in zip(PARTS, (self.train, self.valid), strict=True):
                    encoded = _encoded(examples, vocabulary, self._config, f"{part} data")
                    kept[part] = {"left_out": encoded.left_out}
                    texts = {"names": examples.names, "files": examples.files, "captions": examples.captions}
                    tokens = {"tokens": encoded.targets, **{name: packed.utf8 for name, packed in texts.items()}}
                    for name, found in tokens.items():
                        write_tokens(folder / f"{part}-{name}", found)
                    for name, numbers in (("picks", encoded.picks), ("starts", examples.starts)):
                        (folder / f"{part}.{name}").write_bytes(numbers.astype(np.int64).tobytes())
        self._files.keep()


def open_caption_sets(config: CaptioningConfig, folder: Path, places: Sequence[Path | ImageArchive] = ()) -> tuple[CaptionSet, CaptionSet]:
    """Open the captioned images kept in a run folder, to train and to validate on; `places`: of their images, where already opened.

    Raises:
        DataError: they are not there; or the archive of the images cannot be read.
    """
    sets, folder = [], folder / TOKENS
    for part, place in zip(PARTS, places or _places(config.data), strict=True):
        texts = [TokenFile(folder / f"{part}-{name}", "uint8").whole() for name in ("names", "files", "captions")]
        names, files, captions = map(PackedTexts, texts)
        starts = np.fromfile(folder / f"{part}.starts", np.int64)
        sets.append(CaptionSet(names, files, captions, starts, place, {}))
    return sets[0], sets[1]


def _places(data: CaptionDataConfig) -> list[Path | ImageArchive]:
    """Return the folders or archives of the training and validation images."""
    captions = str(data.captions)
    paths = [Path(data.images or Path(captions).parent)] * 2
    if data.valid_captions is not None or data.valid_split is not None:
        paths[1] = Path(data.valid_images or data.images or Path(data.valid_captions or captions).parent)
    archives = {path: ImageArchive(path) for path in set(paths) if data.features is None and path.is_file()}
    return [archives.get(path, path) for path in paths]


def open_encoded(folder: Path, part: str) -> EncodedCaptions:
    """Open the tokens of the captions kept in a run folder; `part`: "training" or "validation".

    Raises:
        DataError: they are not there.
    """
    kept, folder = read_cache(folder / TOKENS), folder / TOKENS
    picks, targets = np.fromfile(folder / f"{part}.picks", np.int64), TokenFile(folder / f"{part}-tokens", "int32").whole()
    return EncodedCaptions(picks, targets, kept[part]["left_out"])


def read_caption_set(
    captions: str, images: str | None, split: str | None, *, features: str | None = None, regions: str | None = None
) -> CaptionSet:
    """Read captioned images; with features, the images may be missing.

    Raises:
        DataError: see `regard.data.captions.read_captions`.
    """
    if features is None:
        return read_captions(captions, images, split=split, regions=regions)
    entries = read_entries(Path(captions), "auto", split)
    return pack_entries(entries, [entry.name for entry in entries], Path(), None if regions is None else read_regions(regions))


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
        raise DataError(f"{counted(len(examples), 'captioned image')}: at least 2 are needed to hold one out for validation")
    chosen = random.Random(f"held out {seed}").sample(range(len(examples)), max(1, min(count, len(examples) // 10)))
    held = np.isin(np.arange(len(examples)), chosen)
    return examples.chosen(~held), examples.chosen(held)


def _is_file(split: str | None) -> bool:
    return split is not None and Path(split).is_file()


def caption_images_digest(*sets: CaptionSet) -> str:
    """Return the sha256 of names and sizes of captioned images, to identify the sets without reading the images.

    Raises:
        OSError: an image is missing.

    Example:
        >>> caption_images_digest()[:8]
        'e3b0c442'
    """
    # Hash names and sizes, not pixels: images are read only once, when they are decoded.
    digest = hashlib.sha256()
    for examples in sets:
        for number, name in enumerate(examples.names):
            digest.update(f"{name}\0{_length(examples.image(number))}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _length(image: ImageSource) -> int:
    return image.length if isinstance(image, ArchivedImage) else Path(image).stat().st_size
