"""Examples for a server's page: validation examples of the run, if their file still exists."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from PIL import Image

from regard.data.lines import stream_lines
from regard.data.parallel import holds_pairs, stream_pairs
from regard.errors import DataError
from regard.tasks.captioning_data import build_preprocessing, read_caption_set
from regard.tasks.classification_data import read_labelled_file, read_parts
from regard.viewer import StartingPoint

COUNT = 4
"""Number of examples on an address that only this machine can reach."""
LOCAL = ("127.0.0.1", "::1", "localhost")
# Lines to scan, and the range of words of an example.
LINES = 1000
WORDS = (3, 20)


def starting_points(run: Any, count: int) -> list[StartingPoint]:
    """Return the first usable validation examples of a run; none if their file is gone.

    Without a validation file: sentences to classify are those held out of the training data, others are training examples.

    Args:
        run: a run of any task.
        count: maximum number.
    """
    read: dict[str, Callable[[Any], Iterator[StartingPoint]]] = {
        "translation": _sources,
        "lm": lambda run: _lines(run.config.data.valid_text or run.config.data.text),
        "classification": _labelled,
        "entailment": _labelled,
        "captioning": _images,
    }
    if not count:
        return []
    try:
        return list(islice(read[run.config.task](run), count))
    except DataError:
        return []


def _lines(path: str | None) -> Iterator[StartingPoint]:
    if path is None or holds_pairs(path):
        return
    for line in islice(stream_lines(path), LINES):
        if _usable(line):
            yield StartingPoint((line.strip(),))


def _sources(run: Any) -> Iterator[StartingPoint]:
    config, part = run.config, "valid_" if run.config.data.valid_source else ""
    source, target, second = (getattr(config.data, f"{part}{name}") for name in ("source", "target", "second_source"))
    if source is None or (config.second is not None and config.second.image is not None):  # the page needs its own image
        return
    pairs = stream_pairs(source, target, columns=config.pair_columns, languages=config.data.languages, apart=second)
    found = (pair[0].split("\t") if config.second is not None else [pair[0]] for pair in pairs)
    if second is not None:
        found = ([*texts, other] for texts, other in zip(found, stream_lines(second), strict=False))
    for texts in islice(found, LINES):
        if all(map(_usable, texts)):
            yield StartingPoint(tuple(text.strip() for text in texts))


def _labelled(run: Any) -> Iterator[StartingPoint]:
    data = run.config.data
    if data.valid or data.train:
        found = read_labelled_file(run.config, data.valid) if data.valid else read_parts(run.config)[1]
        for example in islice(found.examples, LINES):
            if all(map(_usable, example.texts)):
                yield StartingPoint(tuple(text.strip() for text in example.texts))


def _images(run: Any) -> Iterator[StartingPoint]:
    data, how = run.config.data, build_preprocessing(run.config.image)
    captions = data.valid_captions or data.captions
    if captions is None or data.features is not None:
        return
    split = data.valid_split or (None if data.valid_captions else data.split)
    for example in read_caption_set(captions, data.valid_images or data.images, split):
        picture = io.BytesIO()
        Image.fromarray(how.pixels(example.image)).save(picture, "PNG")
        yield StartingPoint(image="data:image/png;base64," + base64.b64encode(picture.getvalue()).decode(), name=example.id)


def _usable(text: str) -> bool:
    return WORDS[0] <= len(text.split()) <= WORDS[1]
