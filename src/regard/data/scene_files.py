"""Scenes as files: PNG images, captions a line, and what is where."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from regard.data.scenes import Scene


def write_scenes(folder: str | Path, name: str, scenes: Iterable[Scene]) -> list[Path]:
    """Write NAME/00000.png ..., NAME.tsv (`image<TAB>caption`) and NAME.regions.jsonl; return [tsv, jsonl]."""
    raise NotImplementedError


def read_scenes(path: str | Path) -> list[Scene]:
    """Read NAME.regions.jsonl back as scenes (with captions), so that truth can be checked from files."""
    raise NotImplementedError
