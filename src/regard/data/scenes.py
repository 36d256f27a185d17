"""Scenes: coloured shapes on a canvas with captions of them; truth and regions are known. Seeded and endless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 50, 47),
    "green": (60, 170, 60),
    "blue": (50, 90, 220),
    "yellow": (235, 215, 60),
    "purple": (150, 60, 180),
    "cyan": (70, 210, 220),
    "orange": (240, 140, 40),
    "white": (245, 245, 245),
}
SHAPES = ("circle", "square", "triangle", "cross")
RELATIONS = ("left of", "right of", "above", "below")


@dataclass(frozen=True)
class SceneSettings:
    """What scenes are drawn from: canvas `size`, least and greatest number of `objects` and `radius`, captions an image."""

    size: int = 64
    objects: tuple[int, int] = (2, 3)
    radius: tuple[int, int] = (6, 8)
    captions: int = 1
    colours: tuple[str, ...] = tuple(COLOURS)
    shapes: tuple[str, ...] = SHAPES


class SceneObject(NamedTuple):
    """A shape of a colour; centre (x, y) and radius in pixels."""

    colour: str
    shape: str
    x: int
    y: int
    radius: int


@dataclass(frozen=True)
class Scene:
    """Objects of unique colours on a canvas, and `captions` that are true of them."""

    size: int
    objects: tuple[SceneObject, ...]
    captions: tuple[str, ...] = ()

    def image(self) -> np.ndarray:
        """Draw the scene: uint8 (size, size, 3)."""
        raise NotImplementedError

    def mask(self, number: int) -> np.ndarray:
        """Return where object `number` is: bool (size, size)."""
        raise NotImplementedError

    def box(self, number: int) -> tuple[float, float, float, float]:
        """Return left, top, right, bottom of object `number` as parts of the canvas."""
        raise NotImplementedError

    def is_true(self, caption: str) -> bool:
        """Say whether a caption is true of the scene; one outside the grammar is not. (`is_grammatical(caption)` is a function.)"""
        raise NotImplementedError

    def grounding(self, caption: str) -> tuple[int | None, ...]:
        """Return for each word of a caption the number of the object it speaks of: colour and shape words of colours present; else None."""
        raise NotImplementedError


def is_grammatical(caption: str) -> bool:
    """Say whether a caption is `a COLOUR SHAPE` or `a COLOUR SHAPE RELATION a COLOUR SHAPE`."""
    raise NotImplementedError


def generate_scenes(count: int, *, seed: int, start: int = 0, settings: SceneSettings | None = None) -> list[Scene]:
    """Generate scenes `start` to `start + count - 1`; scene i depends on (seed, i) and the settings only."""
    raise NotImplementedError
