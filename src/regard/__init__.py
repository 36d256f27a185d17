"""Regard: attention mechanisms, the models built on them, and a page to look at what they attended to."""

__version__ = "0.1.0"
