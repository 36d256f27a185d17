"""Draws a matrix of weights into a picture file with matplotlib."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.errors import DataError
from regard.viewer.atomic_write import write_atomically
from regard.viewer.record import AttentionRecord, Matrix
from regard.viewer.text import display_width, fit_width, plain_text

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
# matplotlib takes each glyph from the first of these fonts that has it; missing fonts are dropped.
FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans Arabic",
    "Noto Sans Hebrew",
    "Noto Sans Devanagari",
    "Hiragino Sans",
    "Yu Gothic",
    "Microsoft YaHei",
    "Arial Unicode MS",
    "Noto Emoji",
)
# From grey to dark violet, monotonic in lightness; the page uses the same.
COLORS = ("#eff1ec", "#cbe4c6", "#84c9ab", "#3f9d96", "#31688e", "#3b2560")
MAX_LABEL = 24
# Vector formats store a path per cell; above this many, the cells become an image.
VECTOR_CELLS = 10_000
DPI = 150


def save_picture(record: AttentionRecord, path: str | Path, *, map: str | None = None, head: int | None = None) -> None:
    """Draw one matrix of weights into a PNG, SVG or PDF file; deterministic.

    Args:
        record: the record; 1 x 1 up to a few hundred tokens per side.
        path: the file; its extension chooses the format.
        map: name of a map; None: the main one.
        head: index of a head; None: the mean over heads.

    Raises:
        DataError: another extension (the message lists the known ones), no tokens on one side, no such map or head, or the file cannot be
            written.

    Example:
        >>> save_picture(AttentionRecord.alignment(["a"], ["b"], [[1.0]]), "a.gif")
        Traceback (most recent call last):
        regard.errors.DataError: a.gif: expected a name that ends in .png, .svg or .pdf
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    matrix = record.matrix(map, head)
    if not matrix.key or not matrix.query:
        raise DataError(f"{path}: the record has no {'source' if not matrix.key else 'target'} tokens, so there is nothing to draw")
    named = map is not None or head is not None
    title = " · ".join(plain_text(part) for part in (record.title, matrix.name if named else "") if part.strip())
    import matplotlib

    # A date or a random id would make each file differ.
    metadata: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[ending]
    picture = io.BytesIO()
    with quiet_fonts(), matplotlib.rc_context({"svg.hashsalt": "regard"}):
        figure, _ = draw_matrix(matrix, title)
        figure.savefig(picture, format=ending[1:], dpi=DPI, metadata=metadata, bbox_inches="tight", pad_inches=0.2)
    write_atomically(path, picture.getvalue())


@contextmanager
def quiet_fonts() -> Iterator[None]:
    """Draw glyphs that no installed font has as boxes, without a warning for each."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from", category=UserWarning)
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


def colors_of() -> LinearSegmentedColormap:
    """Return the colors of weights from 0 to the largest."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("regard", COLORS)


def draw_matrix(matrix: Matrix, title: str, *, limit: float | None = None) -> tuple[Figure, Any]:
    """Draw a matrix; return the figure and its color mesh.

    Args:
        matrix: with at least one token per side.
        title: title; "" for none.
        limit: weight of the darkest color; None: the largest.
    """
    from matplotlib.figure import Figure

    rows, columns = len(matrix.query), len(matrix.key)
    longest = max(rows, columns)
    cell = 0.36 if longest <= 24 else max(0.085, 0.36 * 24 / longest)  # inches; 0.085 still fits a label of 4 points
    width, height = columns * cell, rows * cell
    # The matrix fills the figure; labels lie outside, and the saved file is cropped to everything.
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    limit = limit or max(float(matrix.weights.max()), 0.0) or 1.0
    large = rows * columns > VECTOR_CELLS
    mesh = axes.pcolormesh(matrix.weights, cmap=colors_of(), vmin=0.0, vmax=limit, rasterized=large)
    if longest <= 60:  # white lines between cells, unless they would dominate
        mesh.set(edgecolor="white", linewidth=0.8)
    axes.invert_yaxis()
    source = [fit_width(token, MAX_LABEL) for token in matrix.key]
    target = [fit_width(token, MAX_LABEL) for token in matrix.query]
    font: dict[str, Any] = {"fontfamily": _fonts(), "fontsize": min(11.0, max(4.0, cell * 72 * 0.62)), "parse_math": False}
    axes.xaxis.tick_top()
    turned = 90 if any(display_width(token) > 2 for token in source) else 0
    axes.set_xticks([column + 0.5 for column in range(columns)], source, rotation=turned, **font)
    axes.set_yticks([row + 0.5 for row in range(rows)], target, **font)
    axes.tick_params(length=0, pad=4)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _add_bar(figure, mesh, limit)
    if title:
        axes.set_title(title, loc="left", pad=14, fontfamily=_fonts(), fontsize=12, parse_math=False)
    return figure, mesh


def _add_bar(figure: Figure, mesh: Any, limit: float) -> None:
    width, height = figure.get_size_inches()
    tall = min(max(height, 1.0), 4.0)  # inches: room for its numbers beside one row, and no taller than useful
    axes = figure.add_axes((1 + 0.25 / width, 1 - tall / height, 0.11 / width, tall / height))
    bar = figure.colorbar(mesh, cax=axes, ticks=[0.0, limit / 2, limit])
    bar.ax.set_yticklabels(["0", f"{limit / 2:.2g}", f"{limit:.2g}"], fontsize=8)
    bar.ax.tick_params(length=0)
    for spine in (*bar.ax.spines.values(), bar.outline):
        spine.set_visible(False)  # type: ignore[operator]


def _fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in FONTS if name in installed]
