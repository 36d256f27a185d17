"""Synthetic data sets with known alignments: dates, scenes, and toy sequences."""

from typing import Literal

GeneratedSet = Literal["dates", "copy", "reverse", "sort", "scenes", "scene-sizes", "scene-sentences"]
"""The sets that `regard generate` writes."""
