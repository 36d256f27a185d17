"""Alignment matrix in a terminal: target tokens as rows, source tokens as columns, shades as weights."""

from __future__ import annotations

from regard.errors import DataError
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


def render_alignment(
    record: AttentionRecord, *, width: int, color: bool, height: int = 100, map: str | None = None, head: int | None = None
) -> str:
    """Draw one matrix of weights as text.

    Source tokens are written above their columns, vertically if they do not fit horizontally. Each row ends with its strongest source token
    and weight if there is room.

    Args:
        record: the record.
        width: columns of the terminal, at least 20.
        color: add color (256-color escape sequences); shades alone are readable, too.
        height: max number of target tokens, at least 1.
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
        raise DataError(f"record: expected an AttentionRecord, found {type(record).__name__}; a model without attention has none")
    if width < 20 or height < 1:
        raise DataError(f"width {width}, height {height}: expected at least 20 columns and 1 row")
    title = [fit_width(plain_text(record.title), width), ""] if record.title.strip() else []
    matrix = record.matrix(map, head)
    source, target = matrix.key, matrix.query[:height]
    if not source or not target:
        side = "source" if not source else "target"
        return "\n".join([*title, fit_width(f"(no {side} tokens: nothing to draw)", width)])
    label = min(max(display_width(token) for token in target), MAX_LABEL, width // 3)
    room = width - label - 1
    cells = _cell_widths(source, room)
    shown = source[: len(cells)]
    top = max(float(matrix.weights.max()), 0.0) or 1.0
    lines = [*title, *_header(shown, cells, label)]
    for row, name in enumerate(target):
        lines.append(_row(matrix, row, (name, label), cells, top=top, width=width, color=color))
    lines += ["", *_legend(top, width, color), *_cut_note(matrix, len(cells), len(target), width)]
    return "\n".join(line.rstrip() for line in lines)


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


def _shade(weight: float, top: float, color: bool) -> str:
    step = max(sum(weight >= part * top for part in STEPS) - 1, 0)  # negative scores have the lightest shade
    block = SHADES[step] * 2 if step else f"{SHADES[0]} "
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


def _cut_note(matrix: Matrix, columns: int, rows: int, width: int) -> list[str]:
    left_out = [(len(matrix.key) - columns, "source"), (len(matrix.query) - rows, "target")]
    parts = [f"{number} {side} token{'s' if number > 1 else ''}" for number, side in left_out if number]
    return [fit_width("not shown: " + ", ".join(parts), width)] if parts else []
