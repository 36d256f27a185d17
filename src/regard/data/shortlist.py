"""Shortlists: for each source token the target tokens that may translate it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from regard.data.vocabulary import BOS, EOS, UNK
from regard.errors import CheckpointError
from regard.strict_json import parse_json

_FORMAT = 1


class Shortlist:
    """The target tokens that may translate each source token, and those that any sentence may have.

    Jean et al. 2015 (arXiv:1412.2007), section 3.2; the "vocabulary map" of CTranslate2, the "shortlist" of Marian.

    Args:
        always: tokens of every shortlist; UNK, BOS and EOS always belong to it.
        tokens: target tokens by source token.

    Example:
        >>> shortlist = Shortlist([9], {5: [7, 6], 8: [6]})
        >>> shortlist.candidates([[5, 4], [8]]).tolist()
        [1, 2, 3, 6, 7, 9]
    """

    def __init__(self, always: Iterable[int], tokens: Mapping[int, Sequence[int]]) -> None:
        self.always = sorted({UNK, BOS, EOS, *always})
        self.tokens = {source: list(targets) for source, targets in tokens.items()}

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
        tree = {"format": _FORMAT, "always": self.always, "tokens": {str(source): found for source, found in sorted(self.tokens.items())}}
        return (json.dumps(tree, separators=(",", ":")) + "\n").encode()

    @classmethod
    def load(cls, path: Path, *, source_size: int, target_size: int) -> Shortlist:
        """Read a file of `to_bytes`.

        Args:
            path: the file.
            source_size: entries of the source vocabulary.
            target_size: entries of the target vocabulary.

        Raises:
            CheckpointError: the file is damaged, or of other vocabularies.
        """
        try:
            tree: Any = parse_json(path.read_bytes())
            found = cls(tree["always"], {int(source): targets for source, targets in tree["tokens"].items()})
            wrong = tree["format"] != _FORMAT
            targets = [*found.always, *(token for row in found.tokens.values() for token in row)]
            wrong |= not all(type(token) is int and 0 <= token < target_size for token in targets)
            wrong |= not all(0 <= token < source_size for token in found.tokens)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            wrong = True
        if wrong:
            raise CheckpointError(f"{path}: damaged, or of another vocabulary; `regard shortlist` makes it again")
        return found
