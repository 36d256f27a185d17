"""Shortlists: for each source token the target tokens that may translate it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.vocabulary import BOS, EOS, UNK
from regard.errors import CheckpointError
from regard.strict_json import parse_json

_FORMAT = 1


def digests(files: Iterable[Path]) -> list[str]:
    """Return the sha256 of each vocabulary file."""
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


class Shortlist:
    """The target tokens that may translate each source token, and those that any sentence may have.

    Jean et al. 2015 (arXiv:1412.2007), section 3.2; the "vocabulary map" of CTranslate2, the "shortlist" of Marian.

    Args:
        always: tokens of every shortlist; UNK, BOS and EOS always belong to it.
        tokens: target tokens by source token.
        vocabularies: sha256 of the files of the source and the target vocabulary; empty: not known.

    Example:
        >>> shortlist = Shortlist([9], {5: [7, 6], 8: [6]})
        >>> shortlist.candidates([[5, 4], [8]]).tolist()
        [1, 2, 3, 6, 7, 9]
    """

    def __init__(self, always: Iterable[int], tokens: Mapping[int, Sequence[int]], vocabularies: Sequence[str] = ()) -> None:
        self.always = sorted({UNK, BOS, EOS, *always})
        self.tokens = {source: list(targets) for source, targets in tokens.items()}
        self.vocabularies = list(vocabularies)

    def candidates(self, sources: Iterable[Sequence[int]], more: Iterable[int] = ()) -> np.ndarray:
        """Return the tokens that a batch may generate, ascending.

        Args:
            sources: the source tokens of each sentence.
            more: tokens that are needed anyway, such as forced ones.
        """
        found = {*self.always, *more}
        for source in {token for row in sources for token in row}:
            found.update(self.tokens.get(source, ()))
        return np.array(sorted(found), np.int64)

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        tokens = {str(source): found for source, found in sorted(self.tokens.items())}
        tree = {"format": _FORMAT, "vocabularies": self.vocabularies, "always": self.always, "tokens": tokens}
        return (json.dumps(tree, separators=(",", ":")) + "\n").encode()

    @classmethod
    def load(cls, path: Path, *, sizes: tuple[int, int], vocabularies: Sequence[Path]) -> Shortlist:
        """Read a file of `to_bytes`.

        Args:
            path: the file.
            sizes: entries of the source and of the target vocabulary.
            vocabularies: their files.

        Raises:
            CheckpointError: the file is damaged, or of other vocabularies.
        """
        try:
            tree: Any = parse_json(path.read_bytes())
            found = cls(tree["always"], {int(source): targets for source, targets in tree["tokens"].items()}, tree["vocabularies"])
            wrong = tree["format"] != _FORMAT
            targets = [*found.always, *(token for row in found.tokens.values() for token in row)]
            wrong |= not all(type(token) is int and 0 <= token < sizes[1] for token in targets)
            wrong |= not all(0 <= token < sizes[0] for token in found.tokens)
            wrong |= bool(found.vocabularies) and found.vocabularies != digests(vocabularies)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            wrong = True
        if wrong:
            raise CheckpointError(f"{path}: damaged, or of another vocabulary; `regard shortlist` makes it again")
        return found
