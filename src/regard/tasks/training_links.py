"""Word links of the training text, for guided alignment: from files, or from another run's attention."""

from __future__ import annotations

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from regard.config import TranslationConfig
from regard.data.link_lines import format_links, parse_links
from regard.data.parallel import file_digest
from regard.data.shards import ParallelText
from regard.data.token_arrays import FlatTokens
from regard.data.token_cache import new_cache, open_cache
from regard.data.vocabulary import TokenizedText
from regard.progress import stage
from regard.tasks.translation_run import Vocabularies, open_translation_run
from regard.tasks.word_links import LinkUnit, check_links, link_pairs, linked_tokens
from regard.training.checkpoint import weights_file

FOLDER = "links"
"""Folder of a run for the links that another run gave. If deleted, the next start recreates it."""
_LINES = "all.links"
_BLOCK = 4096


class LinkedPair(NamedTuple):
    """A training pair with its line of links; `number` counts the pairs of the text from 0."""

    number: int
    source: str
    target: str
    links: str


class TrainingLinks(ABC):
    """Links of the training pairs, line by line with them.

    Args:
        unit: what the numbers of the links count.
        name: where the links come from, for errors.
        digest: sha256 of the files of links, or of the weights of the run that gives them.
    """

    def __init__(self, unit: LinkUnit, name: str, digest: str) -> None:
        self.unit: LinkUnit = unit
        self.name, self.digest = name, digest

    @classmethod
    def of(cls, config: TranslationConfig, text: ParallelText, folder: Path) -> TrainingLinks | None:
        """Return the links of a run's configuration; None without.

        Args:
            config: of the run.
            text: the training pairs.
            folder: the run folder.

        Raises:
            DataError: a file of links is missing, or has another number of lines than the sources.
            CheckpointError: `training.links_from` is not a run.
        """
        training = config.training
        if training.links is not None:
            return LinkFiles(text, training.links_unit, str(config.data.source), training.links)
        if training.links_from is not None:
            return LinksOfRun(text, training.links_unit, Path(training.links_from), folder / FOLDER)
        return None

    @abstractmethod
    def prepare(self) -> None:
        """Compute the links, unless they are there."""

    @abstractmethod
    def lines(self) -> Iterator[bytes]:
        """Yield the line of links of every pair.

        Raises:
            DataError: a file cannot be read, or has changed.
        """

    @abstractmethod
    def where(self, number: int) -> str:
        """Return file and line of the links of a pair, for errors."""

    def encode(self, pairs: Sequence[LinkedPair], vocabularies: Vocabularies) -> FlatTokens:
        """Convert links of words or characters to links of tokens: each token has the links of what it overlaps.

        Returns:
            Per pair its linked tokens, see `regard.data.batching.stack_links`.

        Raises:
            DataError: a line holds something else than links, or a number outside its pair.
        """
        _, sources, targets, _ = zip(*pairs, strict=True) if pairs else ((),) * 4
        tokens = zip(vocabularies.source.encode_batch(sources), vocabularies.target.encode_batch(targets), strict=True)
        return FlatTokens.of([self._token_links(pair, *sides) for pair, sides in zip(pairs, tokens, strict=True)])

    def _token_links(self, pair: LinkedPair, source: TokenizedText, target: TokenizedText) -> list[int]:
        where = self.where(pair.number)
        _, links = parse_links(pair.links, where)
        check_links(links, (pair.source, pair.target), self.unit, where, setting="training.links_unit=")
        return linked_tokens((pair.source, pair.target), links, (source, target), self.unit).reshape(-1).tolist()


class LinkFiles(TrainingLinks):
    """Links in files that correspond to the files of sources.

    Args:
        text: the training pairs.
        unit: what the numbers of the links count.
        source: `data.source`.
        links: a file, or a pattern for as many.

    Raises:
        DataError: a file is missing, or has another number of lines than its sources.
    """

    def __init__(self, text: ParallelText, unit: LinkUnit, source: str, links: str) -> None:
        self._files = ParallelText(source, links, known=text.facts)
        self._ends = list(accumulate(self._files.sizes))
        super().__init__(unit, links, self._files.digests["target"])

    def prepare(self) -> None:
        """Do nothing: the links are there."""

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of all files."""
        return self._files.side(1)

    def where(self, number: int) -> str:
        """Return the file and its line."""
        shard = bisect.bisect_right(self._ends, number)
        return f"{self._files.shards[shard][1]}, line {number + 1 - (self._ends[shard - 1] if shard else 0)}"


class LinksOfRun(TrainingLinks):
    """Links by the attention of another run, computed once and kept in the run folder.

    Args:
        text: the training pairs.
        unit: what the numbers of the links count.
        run: folder of the other run.
        folder: where the links are kept.

    Raises:
        CheckpointError: there is no such run.
    """

    def __init__(self, text: ParallelText, unit: LinkUnit, run: Path, folder: Path) -> None:
        super().__init__(unit, str(run), file_digest(weights_file(run)))
        self._text, self._run, self._folder = text, run, folder

    def prepare(self) -> None:
        """Link all pairs, unless they are linked."""
        about: dict[str, Any] = {"text": self._text.digests, "weights": self.digest, "unit": self.unit}
        if open_cache(self._folder, about) is not None:
            return
        run = open_translation_run(self._run)
        linking = stage(f"Linking words by {self._run}", total=self._text.pairs, unit="pairs")
        with new_cache(self._folder, about) as (folder, _), open(folder / _LINES, "w", encoding="utf-8") as out, linking:
            for _, sides in self._text.blocks(_BLOCK):
                sources, targets = ([line.decode("utf-8", errors="replace") for line in side] for side in sides)
                found = link_pairs(run, list(zip(sources, targets, strict=True)), unit=self.unit)
                out.writelines(format_links(links) + "\n" for links in found)
                linking.advance(len(found))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the file."""
        with open(self._folder / _LINES, "rb") as lines:
            yield from (line.rstrip(b"\n") for line in lines)

    def where(self, number: int) -> str:
        """Return the file and its line."""
        return f"{self._folder / _LINES}, line {number + 1}"
