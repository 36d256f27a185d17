"""Matrices of weights as SVG, for the pages of this repository: small files, the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from torch import Tensor

from regard.viewer.picture import COLORS

CELL, GAP, LETTER, LINE = 24, 1, 6.8, 16  # pixels; LETTER is the width of one at the size of the labels


class Panel(NamedTuple):
    """One matrix: its heading, its labels, its weights (rows, columns)."""

    heading: str
    rows: Sequence[str]
    columns: Sequence[str]
    weights: Tensor


class Picture(NamedTuple):
    """What stands in one file: a sentence on what is seen, and the matrices."""

    description: str
    panels: Sequence[Panel]


def color(share: float) -> str:
    """Return the viewer's colour of a share of the largest weight, 0 to 1."""
    at = min(max(share, 0.0), 1.0) * (len(COLORS) - 1)
    low = min(int(at), len(COLORS) - 2)
    first, second = ([int(name[i : i + 2], 16) for i in (1, 3, 5)] for name in (COLORS[low], COLORS[low + 1]))
    return "#" + "".join(f"{round(a + (b - a) * (at - low)):02x}" for a, b in zip(first, second, strict=True))


def draw(name: str, picture: Picture) -> str:
    """Return a picture as SVG; up to two panels in a column, more in rows of three, each with a scale up to its largest weight."""
    side_by_side = 3 if len(picture.panels) > 2 else 1
    body, top, width = [], 0.0, 0.0
    for start in range(0, len(picture.panels), side_by_side):
        left = tall = 0.0
        for panel in picture.panels[start : start + side_by_side]:
            lines, size = _panel(panel, left, top)
            body += lines
            left, tall = left + size[0] + CELL, max(tall, size[1])
        top, width = top + tall + CELL, max(width, left)
    height = top - CELL
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 -8 {width + 16:.0f} {height + 16:.0f}" width="{width + 16:.0f}" role="img"'
    description = escape(f"{picture.description[0].upper()}{picture.description[1:]} ({name}; darker is more)", quote=False)
    font = 'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222222"'
    ground = f'<rect x="-8" y="-8" width="{width + 16:.0f}" height="{height + 16:.0f}" fill="#ffffff"/>'
    return "\n".join([f"{head} {font}>", f"<title>{name}</title>", f"<desc>{description}</desc>", ground, *body, "</svg>", ""])


def _panel(panel: Panel, left: float, top: float) -> tuple[list[str], tuple[float, float]]:
    x = left + LETTER * max(len(label) for label in panel.rows) + 8
    turned = max(len(label) for label in panel.columns) > 2
    y = top + (LINE if panel.heading else 0) + (LETTER * max(len(label) for label in panel.columns) + 8 if turned else LINE)
    lines = [f'<text x="{left:g}" y="{top + 10:g}" font-weight="bold">{escape(panel.heading)}</text>'] if panel.heading else []
    for row, label in enumerate(panel.rows):
        lines.append(f'<text x="{x - 6:.0f}" y="{y + row * CELL + 16:.0f}" text-anchor="end">{escape(label)}</text>')
    for column, label in enumerate(panel.columns):
        if turned:
            place = f'transform="translate({x + column * CELL + 16:.0f} {y - 6:.0f}) rotate(-90)"'
        else:
            place = f'x="{x + column * CELL + CELL / 2:.0f}" y="{y - 4:.0f}" text-anchor="middle"'
        lines.append(f"<text {place}>{escape(label)}</text>")
    largest = round(panel.weights.max().item(), 4)
    for row, weights in enumerate(panel.weights.tolist()):
        for column, weight in enumerate(weights):
            # Four digits: the last bits of a sum differ between processors, and must not choose a colour.
            shade = color(round(weight, 4) / largest)
            place = f'x="{x + column * CELL:.0f}" y="{y + row * CELL:.0f}"'
            lines.append(f'<rect {place} width="{CELL - GAP}" height="{CELL - GAP}" fill="{shade}"/>')
    below = y + len(panel.rows) * CELL + 8
    lines += _scale(x, below, largest)
    return lines, (x - left + max(len(panel.columns) * CELL, 120), below + LINE - top)


def _scale(left: float, top: float, largest: float) -> list[str]:
    lines = [f'<text x="{left:.0f}" y="{top + 11:.0f}">0</text>']
    lines += [f'<rect x="{left + 12 + 7 * i:.0f}" y="{top:.0f}" width="7" height="13" fill="{color(i / 9)}"/>' for i in range(10)]
    return [*lines, f'<text x="{left + 88:.0f}" y="{top + 11:.0f}">{largest:.2g}</text>']
