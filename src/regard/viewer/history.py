"""Attention during training: records of the same examples at several updates, and an animation of them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError
from regard.viewer.atomic_write import write_atomically
from regard.viewer.items import Grid
from regard.viewer.outputs import TrainingPoint
from regard.viewer.picture import DPI, Drawing, colors_of, draw, place_axes, quiet_fonts
from regard.viewer.record import AttentionRecord, Matrix, parse_records, record_list
from regard.viewer.text import plain_text

# Milliseconds: each update, and the last one before the loop.
FRAME, LAST_FRAME = 400, 2400
# Inches: the loss curve, and the space above it.
CURVE, GAP = 0.8, 0.45
# Pixels of the longer side of an animation, which holds a picture per update: of cells, and of photographs, which take far more bytes.
MAX_PIXELS, MAX_PHOTOGRAPHS = 1200, 800


@takes_arguments
def read_history(path: str | Path) -> list[AttentionRecord]:
    """Read the attention recorded during training (`training.watch`), also of a running training.

    Args:
        path: the run folder, or its file `attention.jsonl`.

    Returns:
        The records in order, each with its `point`; every record of an example has its image.

    Raises:
        DataError: the file is missing, or a line is not a record; the message names file and line.

    Example:
        >>> read_history("no-such-run")
        Traceback (most recent call last):
        regard.errors.DataError: no-such-run: no attention was recorded in training; train with training.watch=3 for three examples
    """
    file = Path(path) / "attention.jsonl" if not Path(path).is_file() else Path(path)
    try:
        content = file.read_bytes()
    except FileNotFoundError as error:
        advice = "no attention was recorded in training; train with training.watch=3 for three examples"
        raise DataError(f"{path}: {advice}") from error
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror or error})") from error
    # A running training may be writing the last line.
    return share_images(parse_records(content[: content.rfind(b"\n") + 1], file))


def share_images(records: Sequence[AttentionRecord]) -> list[AttentionRecord]:
    """Return records with their images; a file stores an image only in the first record of an example.

    Example:
        >>> share_images([AttentionRecord({"image": Grid(2, 3)})])[0].items["image"].image is None
        True
    """
    known: dict[tuple[str, str, str], Grid] = {}
    found = []
    for record in records:
        items = dict(record.items)
        for name, own in items.items():
            if record.point is None or not isinstance(own, Grid):
                continue
            key = (record.model, record.title, name)
            if own.image is not None:
                known.setdefault(key, own)
            elif key in known and (known[key].rows, known[key].columns) == (own.rows, own.columns):
                items[name] = known[key]
        found.append(replace(record, items=items) if items != record.items else record)
    return found


@takes_arguments
def group_by_example(records: Iterable[AttentionRecord]) -> list[list[AttentionRecord]]:
    """Group records of one model and title at several points of a training, ordered by update; any other record is its own group.

    Raises:
        DataError: see `regard.viewer.record.record_list`.

    Example:
        >>> made = [AttentionRecord({}, title=title, point=TrainingPoint(update)) for update in (0, 7) for title in "ab"]
        >>> [[(each.title, each.point.update) for each in group] for group in group_by_example(made)]
        [[('a', 0), ('a', 7)], [('b', 0), ('b', 7)]]
    """
    groups: dict[object, list[AttentionRecord]] = {}
    for number, record in enumerate(record_list("group_by_example", records)):
        groups.setdefault(number if record.point is None else (record.model, record.title), []).append(record)
    return [sorted(group, key=lambda record: record.point.update if record.point else 0) for group in groups.values()]


@takes_arguments
def save_animation(records: Iterable[AttentionRecord], path: str | Path, *, map: str | None = None, head: int | None = None) -> None:
    """Draw the weights at each update into an animated GIF, above the loss curve; deterministic.

    A frame shows what `save_picture` draws. All frames share one scale, from 0 to the largest weight.

    Args:
        records: of one example, each with its `point`; see `group_by_example`.
        path: the file; its name ends in .gif.
        map: name of a map; None: the main one.
        head: index of a head; None: the mean over heads.

    Raises:
        DataError: the file does not end in .gif; fewer than two records; records of several examples or without a point; changing items; no
            such map or head; or the file cannot be written. Or see `regard.viewer.record.record_list`.

    Example:
        >>> save_animation([], "a.gif")
        Traceback (most recent call last):
        regard.errors.DataError: a.gif: an animation needs an example at two updates or more, found 0
    """
    if Path(path).suffix.lower() != ".gif":
        raise DataError(f"{path}: expected a name that ends in .gif")
    records = record_list("save_animation", records)
    if len(records) < 2:
        raise DataError(f"{path}: an animation needs an example at two updates or more, found {len(records)}")
    points = [record.point for record in records if record.point is not None]
    if len(points) < len(records) or len({(record.model, record.title) for record in records}) > 1:
        raise DataError(f"{path}: an animation shows one example at several updates; these records are of several, or of no training")
    matrices = [record.matrices(map, head) for record in records]
    first = matrices[0]
    if any([(own.key, own.query) for own in found] != [(own.key, own.query) for own in first] for found in matrices):
        raise DataError(f"{path}: the items of {first[0].name} change from update to update, so they cannot be one animation")
    if not all(own.key and own.query for own in first):
        raise DataError(f"{path}: the record has no tokens on one side, so there is nothing to draw")
    name = " · ".join(part for part in (plain_text(records[0].title), first[0].name if map or head is not None else "") if part)
    with quiet_fonts():
        frames = _frames(matrices, points, name)
    stream = io.BytesIO()
    durations = [FRAME] * (len(frames) - 1) + [LAST_FRAME]
    # One palette for all frames: the color of a weight must not change.
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=False)
    write_atomically(path, stream.getvalue())


def _frames(matrices: Sequence[Sequence[Matrix]], points: Sequence[TrainingPoint], name: str) -> list[Any]:
    from matplotlib.transforms import Bbox
    from PIL import Image

    limits = [max(float(own.weights.max()) for own in each) or 1.0 for each in zip(*matrices, strict=True)]
    titles = ["\n".join(filter(None, (name, point.name))) for point in points]
    drawing = draw(matrices[0], max(titles, key=len), limits=limits)
    figure, mark = drawing.figure, _add_curve(drawing, points)
    figure.canvas.draw()
    inches = figure.get_tightbbox()
    assert inches is not None
    box = Bbox.from_extents(inches.x0 - 0.2, inches.y0 - 0.2, inches.x1 + 0.2, inches.y1 + 0.2)
    dpi = min(DPI, int((MAX_PHOTOGRAPHS if drawing.photograph else MAX_PIXELS) / max(box.width, box.height)))

    def frame(number: int) -> Any:
        for show, own in zip(drawing.shows, matrices[number], strict=True):
            show(own.weights)
        drawing.title.set_text(titles[number])
        if mark is not None:
            mark(number)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=dpi, bbox_inches=box, pad_inches=0)
        return Image.open(picture).convert("RGB")

    palette = _palette_of([frame(0), frame(len(points) - 1)]) if drawing.photograph else _palette()
    return [frame(number).quantize(palette=palette, dither=Image.Dither.NONE) for number in range(len(points))]


def _palette_of(frames: Sequence[Any]) -> Any:
    """Return an image with the 256 colors that suit some frames of one size."""
    from PIL import Image

    width, height = frames[0].size
    both = Image.new("RGB", (width, height * len(frames)))
    for number, own in enumerate(frames):
        both.paste(own, (0, height * number))
    return both.quantize(256)


def _palette() -> Any:
    """Return an image with 256 colors: 200 for weights and 56 greys for text."""
    from PIL import Image

    weights = np.array(colors_of()(np.linspace(0, 1, 200)))[:, :3]
    greys = np.repeat(np.linspace(0, 1, 56)[:, None], 3, axis=1)
    found = Image.new("P", (1, 1))
    found.putpalette((np.concatenate([weights, greys]) * 255).round().astype(np.uint8).ravel().tolist())
    return found


def _add_curve(drawing: Drawing, points: Sequence[TrainingPoint]) -> Any:
    """Draw the loss below the weights; return a function that marks a point, or None if no loss is known."""
    known = [(point.update, point.loss) for point in points if point.loss is not None]
    if not known:
        return None
    axes = place_axes(drawing.figure, 0, drawing.bottom + GAP, max(drawing.right, 2.4), CURVE)
    axes.plot(*zip(*known, strict=True), color="#31688e", linewidth=1.2)
    (dot,) = axes.plot([], [], "o", color="#3b2560", markersize=5)
    line = axes.axvline(points[0].update, color="#3b2560", linewidth=0.8, alpha=0.5)
    axes.set_xlim(points[0].update, points[-1].update)
    axes.tick_params(labelsize=7, length=2)
    axes.locator_params(nbins=4)
    axes.set_ylabel("validation loss", fontsize=7)
    axes.set_xlabel("update", fontsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)

    def mark(number: int) -> None:
        point = points[number]
        line.set_xdata([point.update, point.update])
        dot.set_data(([], []) if point.loss is None else ([point.update], [point.loss]))

    return mark
