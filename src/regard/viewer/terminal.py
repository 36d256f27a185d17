"""Attention in a terminal, shades as weights: a matrix of target and source tokens, or the cells of an image for each target token."""

from __future__ import annotations

from collections.abc import Sequence

from regard.arguments import takes_arguments
from regard.errors import DataError, counted
from regard.viewer.items import Grid
from regard.viewer.record import AttentionRecord, Matrix
from regard.viewer.text import clusters, display_width, fit_width, isolated, plain_text

SHADES = "·░▒▓█"
# Lower bound of each shade, relative to the largest weight.
STEPS = (0.0, 0.1, 0.3, 0.5, 0.75)
# Entries of the 256-color palette, dark blue to yellow-green: distinct in lightness, visible on dark and light backgrounds.
COLORS = (245, 67, 37, 35, 106)
MAX_HEADER = 12
MAX_LABEL = 20
CELL = 3
GAP = "  "
"""Between images side by side."""


@takes_arguments
def render_alignment(
    record: AttentionRecord, *, width: int, color: bool, height: int = 100, map: str | None = None, head: int | None = None
) -> str:
    """Draw one matrix of weights as text.

    Source tokens are written above their columns, vertically if they do not fit horizontally. Each row ends with its strongest source token
    and weight if there is room. Attention over an image is a block of rows x columns of shades for each target token, which is written
    above; as many blocks are side by side as fit. A text with an image has both; see `AttentionRecord.matrices`.

    Args:
        record: the record.
        width: columns of the terminal, at least 20.
        color: add color (256-color escape sequences); shades alone are readable, too.
        height: max number of target tokens, and of rows of an image, at least 1.
        map: name of a map; None: the main one.
        head: index of a head; None: the mean over heads.

    Returns:
        Lines joined by newlines, without a trailing one, none wider than `width`. A record without tokens on one side gives a sentence that
        says so. A last line says what was cut.

    Raises:
        DataError: there is no record, `width` is below 20 or `height` below 1; or see `AttentionRecord.matrix`.

    Example:
        >>> record = AttentionRecord.alignment(["das", "Haus"], ["the", "house"], [[0.9, 0.1], [0.2, 0.7]])
        >>> print(render_alignment(record, width=60, color=False))
              das Haus
          the  ██  ░░   das 0.90
        house  ░░  ██   Haus 0.70
        <BLANKLINE>
        ·  below 0.09  ░░ from 0.09  ▒▒ from 0.27  ▓▓ from 0.45
        ██ from 0.67
    """
    if not isinstance(record, AttentionRecord):  # `record` of a model without attention gives None
        raise DataError(
            f"render_alignment: record: expected an AttentionRecord, found {type(record).__name__}; without attention there is none"
        )
    if width < 20 or height < 1:
        raise DataError(f"render_alignment: width {width}, height {height}: expected at least 20 columns and 1 row")
    lines = [fit_width(plain_text(record.title), width), ""] if record.title.strip() else []
    for number, matrix in enumerate(record.matrices(map, head)):
        lines += [""] if number else []
        if not matrix.key or not matrix.query:
            side = "source" if not matrix.key else "target"
            lines.append(fit_width(f"(no {side} tokens: nothing to draw)", width))
        elif matrix.grid is None:
            lines += _matrix(matrix, width, height, color)
        else:
            lines += _images(matrix, matrix.grid, width, height, color)
    return "\n".join(line.rstrip() for line in lines)


def _matrix(matrix: Matrix, width: int, height: int, color: bool) -> list[str]:
    source, target = matrix.key, matrix.query[:height]
    label = min(max(display_width(token) for token in target), MAX_LABEL, width // 3)
    room = width - label - 1
    cells = _cell_widths(source, room)
    shown = source[: len(cells)]
    top = matrix.limit
    lines = _header(shown, cells, label)
    for row, name in enumerate(target):
        lines.append(_row(matrix, row, (name, label), cells, top=top, width=width, color=color))
    left_out = [(len(source) - len(cells), "source token"), (len(matrix.query) - len(target), "target token")]
    return [*lines, "", *_legend(top, width, color), *_cut_note(left_out, width)]


def _images(matrix: Matrix, grid: Grid, width: int, height: int, color: bool) -> list[str]:
    words, top = matrix.query[:height], matrix.limit
    cell = 2 if 2 * grid.columns <= width else 1
    rows, columns = min(grid.rows, height), min(grid.columns, width // cell)
    slot = max(columns * cell, min(max(display_width(word) for word in words), MAX_LABEL))
    words = [fit_width(word, slot) for word in words]
    weights = matrix.weights.reshape(-1, grid.rows, grid.columns)[:, :rows, :columns]
    across = (width + len(GAP)) // (slot + len(GAP))
    lines = []
    for start in range(0, len(words), across):
        some = range(start, min(start + across, len(words)))
        lines.append(GAP.join(isolated(words[step]) + " " * (slot - display_width(words[step])) for step in some))
        for row in range(rows):
            shades = ("".join(_shade(float(weight), top, color, cell) for weight in weights[step, row]) for step in some)
            lines.append(GAP.join(each + " " * (slot - columns * cell) for each in shades))
        lines.append("")
    left_out = [(grid.rows - rows, "row"), (grid.columns - columns, "column"), (len(matrix.query) - len(words), "target token")]
    return [*lines, *_legend(top, width, color), *_cut_note(left_out, width)]


def _cell_widths(source: list[str], room: int) -> list[int]:
    across = [max(CELL, display_width(token) + 1) for token in source]
    if sum(across) <= room:
        return across
    if len(source) * CELL <= room:
        return [CELL] * len(source)
    return [2] * min(len(source), room // 2)


def _header(tokens: list[str], cells: list[int], label: int) -> list[str]:
    indent = " " * (label + 1)
    if all(display_width(token) < cell for token, cell in zip(tokens, cells, strict=True)):
        return [indent + "".join(_centre(token, cell) for token, cell in zip(tokens, cells, strict=True))]
    stacks = [clusters(token) for token in tokens]
    stacks = [stack if len(stack) <= MAX_HEADER else [*stack[: MAX_HEADER - 1], "…"] for stack in stacks]
    depth = max(map(len, stacks))
    lines = []
    for level in range(depth):
        # Vertical words are bottom-aligned: the last letter is next to its column.
        letters = [stack[level - depth + len(stack)] if level >= depth - len(stack) else "" for stack in stacks]
        lines.append(indent + "".join(_centre(letter, cell) for letter, cell in zip(letters, cells, strict=True)))
    return lines


def _row(matrix: Matrix, row: int, name: tuple[str, int], cells: list[int], *, top: float, width: int, color: bool) -> str:
    text, label = fit_width(*name), name[1]
    weights = matrix.weights[row]
    line = " " * (label - display_width(text)) + isolated(text) + " "
    used = label + 1 + sum(cells)
    for weight, cell in zip(weights, cells, strict=False):
        left = (cell - 2) // 2
        line += " " * left + _shade(float(weight), top, color) + " " * (cell - left - 2)
    best = int(weights.argmax())
    number = f" {weights[best]:.2f}" if weights[best] >= 0.01 else f" {weights[best]:.2g}"
    room = width - used - 1 - len(number)
    if room >= 3 and weights[best] > 0:
        line += " " + isolated(fit_width(matrix.key[best], min(room, MAX_LABEL))) + number
    return line


def _shade(weight: float, top: float, color: bool, cell: int = 2) -> str:
    step = max(sum(weight >= part * top for part in STEPS) - 1, 0)  # negative scores have the lightest shade
    block = SHADES[step] * cell if step else SHADES[0].ljust(cell)
    return f"\x1b[38;5;{COLORS[step]}m{block}\x1b[0m" if color else block


def _centre(text: str, cell: int) -> str:
    left = max(0, (cell - max(1, display_width(text))) // 2)
    return " " * left + isolated(text) + " " * (cell - left - display_width(text))


def _legend(top: float, width: int, color: bool) -> list[str]:
    words = [f"below {STEPS[1] * top:.2g}", *(f"from {part * top:.2g}" for part in STEPS[1:])]
    entries = [(_shade(part * top, top, color), word) for part, word in zip(STEPS, words, strict=True)]
    lines, used = [""], 0
    for shade, word in entries:
        needed = 3 + len(word)
        if used and used + 2 + needed > width:
            lines, used = [*lines, ""], 0
        lines[-1] += ("  " if used else "") + f"{shade} {word}"
        used += needed + (2 if used else 0)
    return lines


def _cut_note(left_out: Sequence[tuple[int, str]], width: int) -> list[str]:
    parts = [counted(number, what) for number, what in left_out if number]
    return [fit_width("not shown: " + ", ".join(parts), width)] if parts else []
