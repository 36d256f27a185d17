"""Caption images with a trained run, with attention."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard import progress
from regard.config import DecodingConfig
from regard.config.captioning import FeaturesConfig
from regard.data.batching import collate
from regard.data.image_features import FeatureFile
from regard.data.images import ImageSource
from regard.data.vocabulary import EOS
from regard.decoding import Hypothesis, SamplingOptions
from regard.errors import ConfigError, DataError, ShapeError
from regard.explanations import CaptionBatch
from regard.models import LayerAttention
from regard.models.captioning import ShowAttendTell
from regard.ops.tensor_checks import check_floating
from regard.tasks.argument_types import takes_inputs
from regard.tasks.captioning_data import FeatureRows, IndexedImages, build_preprocessing, normalize_caption
from regard.tasks.captioning_run import CaptionRun, open_caption_run
from regard.tasks.explained_records import add_methods, token_alternatives
from regard.tasks.predict import Generation, Predictor, hypotheses_json, predict
from regard.tasks.record_layers import MAX_WEIGHTS, WRITTEN, drawn_over, hypothesis_records, layer_areas
from regard.tasks.run_folder import device_of
from regard.viewer import AttentionMap, AttentionRecord, Grid, Tokens
from regard.viewer.items import kind_marks


class Caption(NamedTuple):
    """Result for one image.

    Attributes:
        text: the best caption, one line; empty on error.
        texts: all returned hypotheses as text, best first.
        hypotheses: their tokens, scores and attention (T, L).
        source: the image, or the id of features.
        error: reading error of the image, or None.
    """

    text: str
    texts: list[str]
    hypotheses: list[Hypothesis]
    source: ImageSource
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return texts and scores, or the error, as a JSON value."""
        if self.error is not None:
            return {"image": str(self.source), "error": self.error}
        return {"image": str(self.source), "text": self.text, "hypotheses": hypotheses_json(self.texts, self.hypotheses)}


class CaptionMap(NamedTuple):
    """Name and sides of an attention map of a captioner; fields as of `AttentionMap`."""

    name: str
    kind: str
    query: str
    key: str


MAIN = CaptionMap("image", "image", "caption", "image")
"""The map of the output itself."""


def shown_as(layer: LayerAttention) -> CaptionMap:
    """Return name and sides of the map of one attention."""
    if layer.kind == "alignment":
        return MAIN
    stack = "cross" if layer.kind == "cross" else "encoder self" if layer.query == "source" else "decoder self"
    query, key = "image" if layer.query == "source" else "caption", "image" if layer.key == "source" else WRITTEN
    return CaptionMap(f"{stack} {(layer.layer or 0) + 1}", "image" if layer.kind == "cross" else "self", query, key)


class Captioner(Predictor[CaptionRun]):
    """Caption images with a trained run.

    Args:
        run: a loaded run.
        poll: called before each batch; may raise to stop.

    Example:
        >>> Captioner.open("no-such-run")
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """

    @classmethod
    def open(cls, folder: str | Path) -> Captioner:
        """Open a run folder.

        Raises:
            CheckpointError: see `regard.tasks.captioning_run.open_caption_run`.
        """
        return cls(open_caption_run(folder))

    def choose(self, mode: str | None) -> None:
        """Set the mode of hard attention: "sample", "argmax" or "expected"; None keeps the run's.

        Raises:
            ConfigError: the run's attention is not hard.
        """
        if mode is None:
            return
        model = self.run.model
        choice = model.decoder.attention.choice if isinstance(model, ShowAttendTell) else None
        if choice is None or mode not in ("sample", "argmax", "expected"):
            raise ConfigError(f"attention {mode}: expected sample, argmax or expected, with a run of model.attention=hard")
        choice.mode = mode

    @takes_inputs
    def caption(
        self,
        images: Sequence[ImageSource],
        *,
        decoding: DecodingConfig | None = None,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        need_attention: bool = False,
    ) -> list[Caption]:
        """Caption images; results do not depend on the other items.

        (Except with sampled hard attention; `torch.manual_seed` makes it repeatable.)

        Args:
            images: image files, or images in an archive.
            decoding: decoding settings; None: the run's.
            n_best: hypotheses per image; with sampling, see `SamplingOptions.num_samples`.
            sampling: sample instead of beam search.
            need_attention: return attention with the hypotheses.

        Returns:
            One `Caption` per image, in order; an unreadable one has an `error` instead of a text.

        Raises:
            ConfigError: the run reads features, not images; one image instead of several, or an item that is none.
        """
        return list(self.stream(images, decoding=decoding, n_best=n_best, sampling=sampling, need_attention=need_attention))

    @takes_inputs
    def stream(
        self,
        images: Iterable[ImageSource],
        *,
        decoding: DecodingConfig | None = None,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        need_attention: bool = False,
    ) -> Iterator[Caption]:
        """Caption any number of images in constant memory, a batch at a time; see `caption`."""
        if isinstance(self.run.config.model.encoder, FeaturesConfig):
            raise ConfigError(f"{self.run.folder}: reads precomputed features, not images; give it a feature file")
        decoding = decoding or self.run.config.decoding
        waiting = iter(images)
        while chunk := list(islice(waiting, decoding.batch_size)):
            pixels, errors = self._read(chunk)
            found = self.describe(pixels, decoding=decoding, n_best=n_best, sampling=sampling, need_attention=need_attention)
            good = iter(found)
            for source, error in zip(chunk, errors, strict=True):
                yield next(good)._replace(source=source) if error is None else Caption("", [], [], source, error)

    @takes_inputs
    def caption_features(
        self, file: FeatureFile, ids: Sequence[str] | None = None, *, decoding: DecodingConfig | None = None, n_best: int = 1
    ) -> list[Caption]:
        """Caption images from features; `ids` selects rows of the file, None takes all; `n_best` as in `describe`.

        Raises:
            ConfigError: the run does not read such features.
            DataError: an id is not in the file.
        """
        rows = self.feature_rows(file, file.ids if ids is None else ids)
        found = self.describe(rows, decoding=decoding, n_best=n_best)
        return [item._replace(source=name) for item, name in zip(found, rows.ids, strict=True)]

    @takes_inputs
    def feature_rows(self, file: FeatureFile, ids: Sequence[str]) -> FeatureRows:
        """Return the features of some images, for `describe`.

        Raises:
            ConfigError: the run does not read features of this grid and size.
            DataError: an id is not in the file.
        """
        encoder = self.run.config.model.encoder
        if not isinstance(encoder, FeaturesConfig) or (encoder.grid, encoder.dim) != (file.grid, file.shape[2]):
            raise ConfigError(f"{self.run.folder}: does not read features like those of {file.path}, {file.grid} cells of {file.shape[2]}")
        return FeatureRows(file, ids)

    @takes_inputs
    def describe(
        self,
        pictures: IndexedImages | Tensor,
        *,
        decoding: DecodingConfig | None = None,
        n_best: int = 1,
        sampling: SamplingOptions | None = None,
        need_attention: bool = False,
    ) -> list[Caption]:
        """Caption preprocessed images (n, 3, H, W) or features (n, L, D); `source` is the index.

        Raises:
            ConfigError: `pictures` are neither a tensor nor `IndexedImages`, such as a list.
            ShapeError: a tensor of no floating dtype, or of another shape than the run reads.
        """
        if isinstance(pictures, Tensor):
            check_floating("describe", pictures=pictures)
        elif isinstance(pictures, Sequence | np.ndarray):
            raise ConfigError(f"describe: pictures: expected a tensor (n, ...), found {type(pictures).__name__}")
        decoding = decoding or self.run.config.decoding
        model, generation = self.run.model, Generation.of(sampling, len(pictures), decoding.precision)

        def search(rows: list[int]) -> list[list[Hypothesis]]:
            device, lengths = device_of(model), [model.grid[0] * model.grid[1]] * len(rows)
            most = decoding.max_length
            options = generation.options(decoding, n_best, max_length=most, source_lengths=lengths, need_attention=need_attention)
            start = partial(model.start, pictures[rows].to(device), torch.tensor(lengths, device=device))
            return generation.run(start, model.decoding_step, rows, options, device=device, at_once=model.greedy)

        stage = progress.stage("Captioning", total=len(pictures), unit="images")
        rows = list(range(len(pictures)))
        found = predict(model, search, rows, decoding.batch_size, stage=stage, poll=self._poll, precision=decoding.precision)
        captions = []
        for number, hypotheses in found.items():
            texts = [self.run.vocabulary.decode([token for token in item.tokens if token != EOS]) for item in hypotheses]
            captions.append(Caption(texts[0], texts, hypotheses, str(number)))
        return captions

    @takes_inputs
    def record(
        self,
        image: ImageSource,
        *,
        text: str | None = None,
        decoding: DecodingConfig | None = None,
        methods: Sequence[str] = (),
        features: FeatureFile | None = None,
    ) -> AttentionRecord:
        """Return the attention per word as a record over the image.

        Args:
            image: an image file.
            text: use this caption instead of the model's own.
            decoding: decoding settings; None: the run's.
            methods: explanation methods to add; see `regard.tasks.explained_records.add_methods`.
            features: of a run that reads features, a file that has those of the image (`FeatureFile.id_of`). Their cells are drawn over the
                whole image.

        Returns:
            A record of the items "image" and "caption". Its first map holds the weights of each word (with boxes for areas); then follow
            all other attention maps, the scores of the methods, the alternatives of each word, and the hypotheses.

        Raises:
            DataError: the image cannot be read, or the caption has no words.
            ConfigError: the run reads features and there are none, or the other way round.
        """
        if isinstance(self.run.config.model.encoder, FeaturesConfig) and features is None:
            raise ConfigError(f"{self.run.folder}: reads precomputed features; give their file, too (--features FILE)")
        how = build_preprocessing(self.run.config.image)
        if features is None:
            pixels = how.pixels(image)
            picture = how.normalize(pixels).unsqueeze(0)
        else:
            picture = self.feature_rows(features, [features.id_of(str(image))])[[0]]
            pixels = replace(how, fit="stretch", keep=1.0).pixels(image)
        found = None
        if text is None:
            decoding = decoding or self.run.config.decoding
            (found,) = self.describe(picture, decoding=decoding, n_best=decoding.beam_size, need_attention=True)
            ids = [token for token in found.hypotheses[0].tokens if token != EOS]
            rows = len(found.hypotheses[0].tokens)
        else:
            (ids,) = self.run.vocabulary.encode_ids([normalize_caption(text, self.run.config.data)])
            ids = ids[: self.run.config.data.max_length]
            rows = len(ids) + 1
            if not ids:
                raise DataError("no attention to show: the caption holds no words")
        cells = drawn_over(self.run.model.grid, pixels)
        record = replace(self._record(cells, picture, ids, rows, found, alternatives=True), title=str(image))
        if not methods:
            return record
        given = collate([()], [ids], (0,)).to(device_of(self.run.model))
        batch = CaptionBatch(
            self.run.model, picture.to(device_of(self.run.model)), given.target_input, given.target_output, given.target_lengths
        )
        return add_methods(record, batch, methods, query="caption", keys=["image"], kind="image")

    @takes_inputs
    def align(self, picture: Tensor, ids: Sequence[int], *, pixels: np.ndarray | None = None) -> AttentionRecord:
        """Return the attention over the image for a given caption.

        Args:
            picture: (1, 3, H, W) as preprocessed, or features (1, L, D).
            ids: tokens of the caption, without EOS.
            pixels: (H, W, 3) uint8, the image to draw over; None draws over empty cells.

        Raises:
            ConfigError: an argument of another type.
            DataError: a token is not in the vocabulary, or `pixels` are no such image.
            ShapeError: `picture` is no floating tensor of one image as the run reads them.
        """
        check_floating("align", picture=picture)
        if len(picture) != 1:
            raise ShapeError(f"align: picture has shape {tuple(picture.shape)}, expected one image (1, ...)")
        if ids and max(ids) >= len(self.run.vocabulary):
            raise DataError(f"align: ids: found {max(ids)}, the vocabulary has {len(self.run.vocabulary):,} entries")
        cells = Grid(*self.run.model.grid) if pixels is None else drawn_over(self.run.model.grid, pixels)
        return self._record(cells, picture, list(ids), len(ids) + 1, None)

    def _record(
        self, image: Grid, picture: Tensor, ids: list[int], rows: int, found: Caption | None, *, alternatives: bool = False
    ) -> AttentionRecord:
        model, pieces = self.run.model, self.run.vocabulary.pieces(ids)
        tokens = [*pieces, "</s>"][:rows]
        batch = collate([()], [ids[: rows - 1]], (0,))
        cells = torch.tensor([model.grid[0] * model.grid[1]])
        arguments = [part.to(device_of(model)) for part in (picture, cells, batch.target_input)]
        with torch.inference_mode():
            output = model.decode(*arguments)
            shown = output.weights
            layers = model.attention_maps(*arguments, areas=True)
        assert shown is not None
        searched = found.hypotheses[0].attention if found is not None else None
        weights = shown[0] if searched is None else searched
        marks = kind_marks(self.run.vocabulary.kind)
        items: dict[str, Any] = {"image": image, "caption": Tokens(tokens, self.run.vocabulary.decode(ids), marks)}
        maps, left_out = self._maps(weights, layers)
        if any(each.key == WRITTEN for each in maps):
            items[WRITTEN] = Tokens(["<s>", *tokens][:rows], marks=marks)
        hypotheses = [] if found is None else hypothesis_records(self.run.vocabulary, found.hypotheses, found.texts, key="image")
        scores = {"caption": found.hypotheses[0].log_probs[:rows]} if found is not None else {}
        meta = {"left out": f"{left_out} of {len(layers)} maps, too large for one page"} if left_out else {}
        record = AttentionRecord(items, maps, scores=scores, hypotheses=hypotheses, model=self.run.folder.name, meta=meta)
        if not alternatives:
            return record
        return replace(record, alternatives={"caption": token_alternatives(model, output.readout[0, :rows], self.run.vocabulary)})

    def _maps(self, weights: Tensor, layers: Sequence[LayerAttention]) -> tuple[list[AttentionMap], int]:
        total, left_out = 0, 0
        first = AttentionMap(*MAIN, weights)
        maps: list[AttentionMap] = []
        for layer in layers:
            areas = layer_areas(layer, self.run.model.grid)
            if layer.kind == "alignment":  # the record's own, here with its areas
                first = replace(first, areas=areas)
                continue
            total += math.prod(layer.weights.shape) + (0 if layer.area_weights is None else layer.area_weights.numel())
            if total > MAX_WEIGHTS:
                left_out += 1
                continue
            maps.append(AttentionMap(*shown_as(layer), layer.weights[0].cpu(), layer=layer.layer, areas=areas))
        return [first, *maps], left_out

    def _read(self, sources: Sequence[ImageSource]) -> tuple[Tensor, list[str | None]]:
        how = build_preprocessing(self.run.config.image)
        pixels, errors = [], []
        for source in sources:
            try:
                if isinstance(source, str) and not source.strip():
                    raise DataError("a blank line, expected the path of an image")
                pixels.append(how.pixels(source))
                errors.append(None)
            except DataError as error:
                errors.append(" ".join(str(error).splitlines()))
        stacked = np.stack(pixels) if pixels else np.zeros((0, how.size, how.size, 3), np.uint8)
        return how.normalize(stacked), errors
