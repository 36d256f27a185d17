"""Draws weights into a picture file with matplotlib: a matrix of tokens, or an image once for each word."""

from __future__ import annotations

import base64
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.arguments import takes_arguments
from regard.errors import DataError
from regard.viewer.atomic_write import write_atomically
from regard.viewer.items import Grid
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
# Panels, the images of a figure: how many in a row; in inches the width of one, the space between two and that for a word
# above, and that for the line below all.
PANELS = 5
PANEL, PANEL_GAP, WORD = 1.6, 0.14, 0.3
LEGEND = 0.3
MAX_WORD = 18
# Over an image: the darker a cell, the lower its weight; the page does the same.
DARK, DARKEST = "#0b0d10", 0.78
# Pixels of the longer side of an image in a picture, and the formats that records hold: Pillow starts programs for some others.
MAX_PHOTOGRAPH = 480
PHOTOGRAPHS = ("PNG", "JPEG", "GIF", "WEBP", "AVIF")


@takes_arguments
def save_picture(record: AttentionRecord, path: str | Path, *, map: str | None = None, head: int | None = None) -> None:
    """Draw one matrix of weights into a PNG, SVG or PDF file; deterministic.

    Attention over an image is drawn as panels: the image, then for each word the image with the cells as bright as their weight. Without a
    picture in the record the cells alone are drawn. A text with an image has both; see `AttentionRecord.matrices`.

    Args:
        record: the record; 1 x 1 up to a few hundred tokens per side.
        path: the file; its extension chooses the format.
        map: name of a map; None: the main one.
        head: index of a head; None: the mean over heads.

    Raises:
        DataError: another extension (the message lists the known ones), no tokens on one side, no such map or head, an image that cannot
            be read, or the file cannot be written.

    Example:
        >>> save_picture(AttentionRecord.alignment(["a"], ["b"], [[1.0]]), "a.gif")
        Traceback (most recent call last):
        regard.errors.DataError: a.gif: expected a name that ends in .png, .svg or .pdf
    """
    ending = Path(path).suffix.lower()
    if ending not in ENDINGS:
        raise DataError(f"{path}: expected a name that ends in .png, .svg or .pdf")
    matrices = record.matrices(map, head)
    if empty := next((own for own in matrices if not own.key or not own.query), None):
        raise DataError(f"{path}: the record has no {'source' if not empty.key else 'target'} tokens, so there is nothing to draw")
    named = map is not None or head is not None
    title = " · ".join(plain_text(part) for part in (record.title, matrices[0].name if named else "") if part.strip())
    import matplotlib

    # A date or a random id would make each file differ.
    metadata: dict[str, Any] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[ending]
    picture = io.BytesIO()
    with quiet_fonts(), matplotlib.rc_context({"svg.hashsalt": "regard", "image.composite_image": False, "svg.image_inline": True}):
        figure = draw(matrices, title, vector=ending != ".png").figure
        figure.savefig(picture, format=ending[1:], dpi=DPI, metadata=metadata, bbox_inches="tight", pad_inches=0.2)
    content = picture.getvalue()
    repeats = ending == ".svg" and any(own.grid is not None and own.grid.image is not None for own in matrices)
    write_atomically(path, _shared_images(content) if repeats else content)


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


@dataclass
class Drawing:
    """A figure of what `AttentionRecord.matrices` returns; the saved file is cropped to all that is drawn, which may lie outside of it.

    Attributes:
        figure: the figure.
        title: its title.
        right: inches from the left of the figure to the right end of the weights.
        bottom: inches from the top of the figure to the lower end of the weights and their legend.
        photograph: whether a photograph is drawn.
        shows: for each drawn matrix what draws other weights (T, S) in its place.
    """

    figure: Figure
    title: Any
    right: float = 0.0
    bottom: float = 0.0
    photograph: bool = False
    shows: list[Callable[[np.ndarray], None]] = field(default_factory=list)


def draw(matrices: Sequence[Matrix], title: str, *, limits: Sequence[float] | None = None, vector: bool = False) -> Drawing:
    """Draw a matrix, panels, or panels below a matrix.

    Args:
        matrices: as `AttentionRecord.matrices` returns them, with at least one item per side.
        title: title; "" for none.
        limits: for each matrix the weight of the darkest color, or of full light; None: the largest of its weights.
        vector: whether the file will be a vector format.
    """
    from matplotlib.figure import Figure

    first, last = matrices[0], matrices[-1]
    most = [own.limit for own in matrices] if limits is None else limits
    if first.grid is None:
        drawing = _draw_matrix(first, title, most[0])
    else:
        figure = Figure(figsize=(1, 1))
        drawing = Drawing(figure, figure.text(0, 1 + 0.1, title, fontfamily=_fonts(), fontsize=12, parse_math=False))
    if last.grid is not None:
        _add_panels(drawing, last, last.grid, most[-1], vector=vector)
    return drawing


def _draw_matrix(matrix: Matrix, title: str, limit: float) -> Drawing:
    from matplotlib.figure import Figure

    rows, columns = len(matrix.query), len(matrix.key)
    longest = max(rows, columns)
    cell = 0.36 if longest <= 24 else max(0.085, 0.36 * 24 / longest)  # inches; 0.085 still fits a label of 4 points
    width, height = columns * cell, rows * cell
    # The matrix fills the figure; labels lie outside.
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    # White lines between cells, unless they would dominate.
    mesh = _draw_cells(axes, matrix.weights, limit, line=0.8 if longest <= 60 else 0.0, large=rows * columns > VECTOR_CELLS)
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
    _add_bar(figure, mesh, limit, (width, 0.0), height)
    heading = axes.set_title(title, loc="left", pad=14, fontfamily=_fonts(), fontsize=12, parse_math=False)
    return Drawing(figure, heading, width, height, shows=[mesh.set_array])


def _add_panels(drawing: Drawing, matrix: Matrix, grid: Grid, limit: float, *, vector: bool) -> None:
    """Draw, below what is drawn, the image, and the image with the weights of each query item."""
    figure, photograph, top = drawing.figure, _photograph(grid), drawing.bottom
    wide, high = grid.size or (grid.columns, grid.rows)
    height = PANEL * min(max(high / wide, 0.1), 3.0)
    area: dict[str, Any] = {"extent": (0, grid.columns, grid.rows, 0), "aspect": "auto"}
    panels: list[tuple[str, np.ndarray | None]] = [] if photograph is None else [("", None)]
    panels += zip(matrix.query, _cells(matrix.weights, grid), strict=True)
    shown = []
    for number, (word, weights) in enumerate(panels):
        row, column = divmod(number, PANELS)
        axes = place_axes(figure, column * (PANEL + PANEL_GAP), top + WORD + row * (height + WORD), PANEL, height)
        axes.set_axis_off()
        axes.set_title(fit_width(word, MAX_WORD), pad=4, fontfamily=_fonts(), fontsize=10, parse_math=False)
        if photograph is not None:
            # A vector format holds the pixels as they are; what shows the file scales them.
            axes.imshow(photograph, interpolation="none" if vector else "hanning", **area)
        if weights is not None and photograph is not None:
            shown.append(axes.imshow(_shadow(weights, limit), interpolation="nearest", **area))
        elif weights is not None:
            line = 0.4 if max(weights.shape) <= 30 else 0.0
            shown.append(_draw_cells(axes, weights, limit, line=line, large=matrix.weights.size > VECTOR_CELLS))

    def show(weights: np.ndarray) -> None:
        for artist, own in zip(shown, _cells(weights, grid), strict=True):
            artist.set_array(own if photograph is None else _shadow(own, limit))

    end = top + -(-len(panels) // PANELS) * (height + WORD)
    right = min(len(panels), PANELS) * (PANEL + PANEL_GAP) - PANEL_GAP
    if photograph is None:
        _add_bar(figure, shown[0], limit, (right, top + WORD), end - top - WORD)
    else:
        less = " or less" if matrix.weights.min() < 0 else ""
        text = f"a cell in full light: {limit:.2g}, in the dark: 0{less}"
        figure.text(0, 1 - (end + 0.12) / figure.get_size_inches()[1], text, va="top", fontfamily=_fonts(), fontsize=8)
        end += LEGEND
    drawing.right, drawing.bottom, drawing.photograph = max(drawing.right, right), end, photograph is not None
    drawing.shows.append(show)


def _cells(weights: np.ndarray, grid: Grid) -> np.ndarray:
    return weights.reshape(-1, grid.rows, grid.columns)


def _draw_cells(axes: Any, weights: np.ndarray, limit: float, *, line: float, large: bool) -> Any:
    """Draw weights as cells, the first row on top, with white lines between them; return the color mesh."""
    mesh = axes.pcolormesh(weights, cmap=colors_of(), vmin=0.0, vmax=limit, rasterized=large)
    if line:
        mesh.set(edgecolor="white", linewidth=line)
    axes.invert_yaxis()
    return mesh


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Any:
    """Add axes at a place in inches from the upper left corner of the figure; it may lie outside."""
    across, down = figure.get_size_inches()
    return figure.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))


def _photograph(grid: Grid) -> np.ndarray | None:
    """Return the pixels of an image, uint8 (H, W, 3), of at most `MAX_PHOTOGRAPH` a side; None if the record has none."""
    if grid.image is None:
        return None
    from PIL import Image, ImageOps

    try:
        Image.init()
        stream = io.BytesIO(base64.b64decode(grid.image.partition(",")[2]))
        with Image.open(stream, formats=[form for form in PHOTOGRAPHS if form in Image.OPEN]) as opened:
            image = ImageOps.exif_transpose(opened).convert("RGB")
    except Exception as error:  # decoders raise many kinds
        raise DataError(f"the image of the record cannot be read ({type(error).__name__})") from error
    image.thumbnail((MAX_PHOTOGRAPH, MAX_PHOTOGRAPH))
    return np.asarray(image)


def _shadow(weights: np.ndarray, limit: float) -> np.ndarray:
    """Return the color (rows, columns, RGBA) that covers each cell of an image."""
    from matplotlib.colors import to_rgb

    opacity = DARKEST * (1 - np.sqrt(np.clip(weights / limit, 0.0, 1.0)))
    return np.concatenate([np.broadcast_to(to_rgb(DARK), (*weights.shape, 3)), opacity[..., None]], axis=-1)


def _shared_images(svg: bytes) -> bytes:
    """Store each image of an SVG file once, however often it is drawn, and let a program that shows it smooth it."""
    known: set[str] = set()

    def share(found: re.Match[str]) -> str:
        tag, name = found[0], found["name"]
        place = "".join(re.findall(r' (?:x|y|transform)="[^"]*"', tag))
        plain = re.sub(r' (?:x|y|transform|style)="[^"]*"', "", tag)
        stored = "" if name in known else f"<defs>{plain}</defs>\n"
        known.add(name)
        return f'{stored}<use xlink:href="#{name}"{place}/>'

    return re.sub(r'<image [^>]*\bid="(?P<name>[^"]*)"[^>]*/>', share, svg.decode("utf-8")).encode("utf-8")


def _add_bar(figure: Figure, mesh: Any, limit: float, corner: tuple[float, float], height: float) -> None:
    """Add the legend of the colors, right of a corner in inches from the upper left of the figure, beside something of this height."""
    tall = min(max(height, 1.0), 4.0)  # inches: room for its numbers beside one row, and no taller than useful
    bar = figure.colorbar(mesh, cax=place_axes(figure, corner[0] + 0.25, corner[1], 0.11, tall), ticks=[0.0, limit / 2, limit])
    bar.ax.set_yticklabels(["0", f"{limit / 2:.2g}", f"{limit:.2g}"], fontsize=8)
    bar.ax.tick_params(length=0)
    for spine in (*bar.ax.spines.values(), bar.outline):
        spine.set_visible(False)  # type: ignore[operator]


def _fonts() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in FONTS if name in installed]
