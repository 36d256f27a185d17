"""Scenes: coloured shapes on a canvas with captions of them. Truth and regions are known; seeded and endless.

    caption = phrase | phrase relation phrase        phrase = "a" colour shape        relation = left of, right of, above, below

The colours of a scene differ, so a colour word names one object, and a caption about two speaks of two objects.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from regard.errors import ConfigError, DataError

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 50, 47),
    "green": (60, 170, 60),
    "blue": (50, 90, 220),
    "yellow": (235, 215, 60),
    "purple": (150, 60, 180),
    "cyan": (70, 210, 220),
    "pink": (240, 150, 185),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "cross")
# What the first object's centre is from the second's: the axis (0 across, 1 down) and the direction.
RELATIONS: dict[str, tuple[int, int]] = {"left of": (0, -1), "right of": (0, 1), "above": (1, -1), "below": (1, 1)}
BACKGROUND = 40
# Pixels between the squares around two objects, so that no mask touches another.
GAP = 2
# Squares dropped at random jam when they cover about half of the canvas; to draw fast, at most this part may be covered.
MAX_COVER = 0.4
WordKind = Literal["colour", "shape", "other"]

_PHRASE = rf"a ({'|'.join(COLOURS)}) ({'|'.join(SHAPES)})"
_CAPTION = re.compile(rf"{_PHRASE}(?: ({'|'.join(RELATIONS)}) {_PHRASE})?")


@dataclass(frozen=True)
class SceneSettings:
    """Settings of generated scenes.

    Args:
        size: height and width of the canvas in pixels.
        objects: least and greatest number of objects; each number between them is as likely.
        radius: least and greatest radius in pixels; an object of radius r fills a square of 2r + 1 pixels.
        cells: sizes in cells of a grid instead: an object of size k covers k x k whole cells but for a row and a column of pixels at most.
            The objects of a scene differ in size. Empty: sizes and places are drawn by `radius`.
        cell: pixels of a cell, 5 or more, a divisor of `size`.
        captions: different true captions for each scene, or as many as there are.
        colours: to draw from, names of `COLOURS`, at least as many as objects.
        shapes: to draw from, names of `SHAPES`; they may repeat within a scene.

    Raises:
        ConfigError: a setting is outside its range, or the objects would crowd the canvas.

    Example:
        >>> SceneSettings(size=64, objects=(9, 9))
        Traceback (most recent call last):
        regard.errors.ConfigError: colours ('red', 'green', 'blue', 'yellow', 'purple', 'cyan', 'pink', 'white'): expected 9 or more
    """

    size: int = 64
    objects: tuple[int, int] = (2, 3)
    radius: tuple[int, int] = (5, 8)
    captions: int = 1
    colours: tuple[str, ...] = tuple(COLOURS)
    shapes: tuple[str, ...] = SHAPES
    cells: tuple[int, ...] = ()
    cell: int = 8

    def __post_init__(self) -> None:
        # A configuration read from JSON or YAML has lists here.
        for name in ("objects", "radius", "colours", "shapes", "cells"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, known in (("colours", COLOURS), ("shapes", SHAPES)):
            chosen = getattr(self, name)
            if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(known):
                raise ConfigError(f"{name} {chosen}: expected some of {', '.join(known)}, none twice")
        if not 1 <= self.objects[0] <= self.objects[1]:
            raise ConfigError(f"objects {self.objects}: expected 1 or more, the greatest behind the least")
        if not 2 <= self.radius[0] <= self.radius[1]:
            raise ConfigError(f"radius {self.radius}: expected 2 or more, the greatest behind the least")
        if self.objects[1] > len(self.colours):
            raise ConfigError(f"colours {self.colours}: expected {self.objects[1]} or more")
        if self.captions < 1:
            raise ConfigError(f"captions {self.captions}: expected 1 or more")
        if self.cells:
            self._check_cells()
            return
        needed = self.objects[1] * (2 * self.radius[1] + 1 + GAP) ** 2
        if needed > MAX_COVER * self.size**2 and not (self.objects[1] == 1 and 2 * self.radius[1] < self.size):
            least = int(np.ceil((needed / MAX_COVER) ** 0.5))
            raise ConfigError(f"size {self.size}: expected {least} or more for {self.objects[1]} objects of radius {self.radius[1]}")

    def _check_cells(self) -> None:
        if self.cell < 5 or self.size % self.cell:
            raise ConfigError(f"cell {self.cell}: expected 5 or more, a divisor of size {self.size}")
        if min(self.cells) < 1 or len(set(self.cells)) < max(len(self.cells), self.objects[1]):
            raise ConfigError(f"cells {self.cells}: expected {self.objects[1]} or more sizes of 1 or more cells, none twice")
        needed = sum(side**2 for side in sorted(self.cells)[-self.objects[1] :])
        if needed > MAX_COVER * (self.size // self.cell) ** 2:
            raise ConfigError(
                f"cells {self.cells}: {self.objects[1]} objects cover {needed} of {(self.size // self.cell) ** 2} cells, too many"
            )


class SceneObject(NamedTuple):
    """A shape of a colour; centre (x, y) and radius in pixels, from the top left corner."""

    colour: str
    shape: str
    x: int
    y: int
    radius: int


@dataclass(frozen=True)
class Scene:
    """Objects of different colours on a canvas.

    Args:
        size: height and width of the canvas in pixels.
        objects: what is on it; no colour twice.
        captions: different true captions.

    Raises:
        DataError: an object has an unknown colour or shape, a colour twice, or lies outside the canvas.

    Example:
        >>> scene = Scene(31, (SceneObject("red", "circle", 7, 9, 5), SceneObject("blue", "square", 23, 11, 5)))
        >>> scene.is_true("a red circle left of a blue square"), scene.is_true("a red circle below a blue square")
        (True, False)
        >>> scene.grounding("a blue square right of a red circle")
        (None, 1, 1, None, None, None, 0, 0)
    """

    size: int
    objects: tuple[SceneObject, ...]
    captions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, (colour, shape, x, y, radius) in enumerate(self.objects):
            inside = min(x, y) >= radius >= 2 and max(x, y) + radius < self.size
            if colour not in COLOURS or shape not in SHAPES or not inside:
                raise DataError(f"object {number}, {self.objects[number]}: expected a known colour and shape inside {self.size} pixels")
        if len({thing.colour for thing in self.objects}) < len(self.objects):
            raise DataError(f"{len(self.objects)} objects with a colour twice: expected different colours")

    def image(self) -> np.ndarray:
        """Draw the scene: uint8 (size, size, 3)."""
        canvas = np.full((self.size, self.size, 3), BACKGROUND, np.uint8)
        for colour, shape, x, y, radius in self.objects:
            place = canvas[y - radius : y + radius + 1, x - radius : x + radius + 1]
            place[_stencil(shape, radius)] = COLOURS[colour]
        return canvas

    def mask(self, number: int) -> np.ndarray:
        """Return which pixels an object covers: bool (size, size)."""
        _, shape, x, y, radius = self.objects[number]
        mask = np.zeros((self.size, self.size), bool)
        mask[y - radius : y + radius + 1, x - radius : x + radius + 1] = _stencil(shape, radius)
        return mask

    def box(self, number: int) -> tuple[float, float, float, float]:
        """Return the square around an object: left, top, right and bottom as parts of the canvas."""
        _, _, x, y, radius = self.objects[number]
        left, top, right, bottom = ((place + end) / self.size for end in (-radius, radius + 1) for place in (x, y))
        return left, top, right, bottom

    def holds(self, first: int, relation: str, second: int) -> bool:
        """Return whether a relation holds between two objects.

        Their centres must differ on the relation's axis by at least the smaller radius, so that no truth hangs on a pixel.
        Of two objects side by side on a slant both relations hold; of an object and itself none.
        """
        axis, direction = RELATIONS[relation]
        one, other = self.objects[first], self.objects[second]
        return direction * ((one.x, one.y)[axis] - (other.x, other.y)[axis]) >= min(one.radius, other.radius)

    def is_true(self, caption: str) -> bool:
        """Return whether a caption is grammatical, its objects are in the scene, and their relation holds."""
        found = _CAPTION.fullmatch(caption)
        if found is None:
            return False
        colour, shape, relation, second_colour, second_shape = found.groups()
        first = self._find(colour, shape)
        if relation is None or first is None:
            return first is not None
        second = self._find(second_colour, second_shape)
        return second is not None and self.holds(first, relation, second)

    def true_captions(self) -> list[str]:
        """Return every true caption: one for each object, then those about two."""
        phrases = [f"a {thing.colour} {thing.shape}" for thing in self.objects]
        numbers = range(len(phrases))
        pairs = [(i, relation, j) for i in numbers for j in numbers for relation in RELATIONS if self.holds(i, relation, j)]
        return phrases + [f"{phrases[i]} {relation} {phrases[j]}" for i, relation, j in pairs]

    def grounding(self, caption: str) -> tuple[int | None, ...]:
        """Say for each word of a caption which object it speaks of; attention is scored on the words that have one.

        Args:
            caption: any words, divided by single spaces; it may be false or outside the grammar.

        Returns:
            For each word the number of an object or None. A colour word has the object of that colour. A shape word right
            after a colour word has that object too, also when the object has another shape: it is what the caption speaks of.
            Words without such a colour, colours that are not in the scene and all other words have None.
        """
        numbers = {thing.colour: number for number, thing in enumerate(self.objects)}
        words = caption.split(" ")
        found: list[int | None] = []
        for place, word in enumerate(words):
            named = words[place - 1] if word_kind(word) == "shape" and place else word
            found.append(numbers.get(named))
        return tuple(found)

    def _find(self, colour: str, shape: str) -> int | None:
        return next((i for i, thing in enumerate(self.objects) if (thing.colour, thing.shape) == (colour, shape)), None)


def is_grammatical(caption: str) -> bool:
    """Return whether a caption follows the grammar: one object, or two and their relation.

    Example:
        >>> is_grammatical("a red circle above a red circle"), is_grammatical("red circle a")
        (True, False)
    """
    return _CAPTION.fullmatch(caption) is not None


def word_kind(word: str) -> WordKind:
    """Return whether a word of a caption names a colour or a shape.

    Example:
        >>> [word_kind(word) for word in "a red circle above".split()]
        ['other', 'colour', 'shape', 'other']
    """
    return "colour" if word in COLOURS else "shape" if word in SHAPES else "other"


def generate_scenes(count: int, *, seed: int, start: int = 0, settings: SceneSettings | None = None) -> list[Scene]:
    """Generate scenes `start` to `start + count - 1`; scene i depends on (seed, i) and the settings only.

    Captions are drawn from those about two objects, each true one as likely; in a scene of one object, it alone is the caption.

    Args:
        count: scenes, >= 0.
        seed: any integer.
        start: number of the first scene, >= 0.
        settings: None takes `SceneSettings()`.

    Returns:
        The scenes; an empty list for a count of 0.

    Raises:
        ConfigError: count or start is below 0.

    Example:
        >>> generate_scenes(1, seed=7)[0].captions
        ('a cyan square below a pink square',)
    """
    if count < 0 or start < 0:
        raise ConfigError(f"count {count}, start {start}: expected 0 or more")
    settings = settings or SceneSettings()
    generator = random.Random()
    scenes = []
    for number in range(start, start + count):
        generator.seed(f"scenes {seed} {number}")
        scene = Scene(settings.size, _objects(generator, settings))
        captions = scene.true_captions()
        relational = captions[len(scene.objects) :] or captions
        chosen = generator.sample(relational, min(settings.captions, len(relational)))
        scenes.append(Scene(scene.size, scene.objects, tuple(chosen)))
    return scenes


def _objects(generator: random.Random, settings: SceneSettings) -> tuple[SceneObject, ...]:
    number = generator.randint(*settings.objects)
    colours = generator.sample(settings.colours, number)
    shapes = [generator.choice(settings.shapes) for _ in colours]
    if settings.cells:
        return _on_cells(generator, settings, colours, shapes)
    radii = [generator.randint(*settings.radius) for _ in colours]
    while True:
        places: list[tuple[int, int, int]] = []
        for radius in radii:
            x, y = (generator.randint(radius, settings.size - 1 - radius) for _ in range(2))
            if any(max(abs(x - a), abs(y - b)) <= radius + other + GAP for a, b, other in places):
                break
            places.append((x, y, radius))
        else:
            return tuple(SceneObject(c, s, *place) for c, s, place in zip(colours, shapes, places, strict=True))


def _on_cells(generator: random.Random, settings: SceneSettings, colours: list[str], shapes: list[str]) -> tuple[SceneObject, ...]:
    sides, count = generator.sample(settings.cells, len(colours)), settings.size // settings.cell
    while True:
        taken: set[tuple[int, int]] = set()
        corners = [(generator.randint(0, count - side), generator.randint(0, count - side)) for side in sides]
        for (left, top), side in zip(corners, sides, strict=True):
            taken |= {(left + x, top + y) for x in range(side) for y in range(side)}
        if len(taken) == sum(side**2 for side in sides):
            break
    objects = []
    for colour, shape, (left, top), side in zip(colours, shapes, corners, sides, strict=True):
        radius = (side * settings.cell - 1) // 2
        objects.append(SceneObject(colour, shape, left * settings.cell + radius, top * settings.cell + radius, radius))
    return tuple(objects)


@cache
def _stencil(shape: str, radius: int) -> np.ndarray:
    """Return which pixels of its square a shape covers: bool (2r + 1, 2r + 1), read only."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    if shape == "circle":
        mask = x**2 + y**2 <= (radius + 0.5) ** 2
    elif shape == "square":
        mask = np.ones_like(x, bool)
    elif shape == "triangle":
        mask = 2 * np.abs(x) <= y + radius
    else:
        mask = np.minimum(np.abs(x), np.abs(y)) <= radius // 3
    mask.flags.writeable = False
    return mask
