"""The shortlist of a run: learned from the word links of given pairs, stored with the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from regard.data.lines import write_files
from regard.data.parallel import SentencePair
from regard.data.shortlist import Shortlist, digests
from regard.errors import ConfigError
from regard.metrics.alignment import Links
from regard.tasks.translation_run import TranslationRun, vocabulary_files
from regard.tasks.word_links import link_pairs, linked_tokens

FILE = "shortlist.json"


class ShortlistFigures(NamedTuple):
    """What a shortlist holds for given pairs.

    Attributes:
        pairs: number of pairs.
        tokens: mean number of candidates of a sentence alone.
        covered: share of the target tokens that are candidates of their sentence.
    """

    pairs: int
    tokens: float
    covered: float


class ShortlistCounts:
    """Counts of linked tokens, for a shortlist.

    Args:
        run: a loaded run, whose vocabularies the shortlist is of.

    Raises:
        ConfigError: a model of two inputs, or one that copies source words.
    """

    def __init__(self, run: TranslationRun) -> None:
        if run.config.second is not None:
            raise ConfigError("shortlist: the model reads two inputs; it needs one")
        if run.config.model.copy_attention:
            raise ConfigError("shortlist: not with model.copy_attention, which needs the probabilities of all tokens")
        self._run = run
        self._linked: Counter[tuple[int, int]] = Counter()
        self._targets: Counter[int] = Counter()

    def add(self, pairs: Sequence[SentencePair], links: Sequence[Links] | None = None) -> None:
        """Count pairs.

        Args:
            pairs: (source, target).
            links: word links of each; None: by the run's attention.

        Raises:
            ConfigError: the model has no attention to link by.
        """
        links = link_pairs(self._run, pairs) if links is None else links
        sides = [vocabulary.encode_batch([pair[side] for pair in pairs]) for side, vocabulary in enumerate(self._run.vocabularies)]
        for pair, own, source, target in zip(pairs, links, *sides, strict=True):
            self._targets.update(target.ids)
            places = linked_tokens(pair, own, (source, target))
            self._linked.update((source.ids[column], target.ids[row]) for row, column in places)

    def shortlist(self, *, candidates: int, frequent: int) -> Shortlist:
        """Return the shortlist.

        Args:
            candidates: target tokens per source token, those linked most often.
            frequent: tokens of every shortlist, the most frequent targets.
        """
        found: dict[int, list[int]] = {}
        for (source, target), _ in sorted(self._linked.items(), key=lambda item: (-item[1], item[0])):
            own = found.setdefault(source, [])
            if len(own) < candidates:
                own.append(target)
        always = [token for token, _ in sorted(self._targets.items(), key=lambda item: (-item[1], item[0]))[:frequent]]
        tokens = {source: sorted(targets) for source, targets in found.items()}
        return Shortlist(always, tokens, digests(_files(self._run)))


def measure_shortlist(run: TranslationRun, shortlist: Shortlist, pairs: Iterable[SentencePair]) -> ShortlistFigures:
    """Measure a shortlist on pairs it was not learned from."""
    covered, sizes, total = 0, [], 0
    for source, target in pairs:
        ids = [run.vocabularies.source.encode(source).ids, run.vocabularies.target.encode(target).ids]
        own = shortlist.candidates([ids[0]])
        sizes.append(len(own))
        total += len(ids[1])
        covered += int(np.isin(ids[1], own).sum())
    return ShortlistFigures(len(sizes), float(np.mean(sizes)) if sizes else 0.0, covered / max(1, total))


def write_shortlist(folder: Path, shortlist: Shortlist) -> None:
    """Store the shortlist of a run."""
    write_files({folder / FILE: shortlist.to_bytes()})


def read_shortlist(run: TranslationRun) -> Shortlist:
    """Return the stored shortlist of a run.

    Raises:
        ConfigError: there is none, or the run is an ensemble.
        CheckpointError: it is damaged, or was learned with other vocabularies.
    """
    if hasattr(run.model, "models"):
        raise ConfigError("decoding.shortlist: not in an ensemble, which averages the probabilities of all tokens")
    return load_shortlist(run.folder, sizes=(len(run.vocabularies.source), len(run.vocabularies.target)), vocabularies=_files(run))


def _files(run: TranslationRun) -> list[Path]:
    return [run.folder / name for name in vocabulary_files(run.config)]


def load_shortlist(folder: Path, *, sizes: tuple[int, int], vocabularies: Sequence[Path]) -> Shortlist:
    """Return the shortlist stored in a run folder; arguments as in `Shortlist.load`.

    Raises:
        ConfigError: there is none.
        CheckpointError: it is damaged, or was learned with other vocabularies.
    """
    if not (folder / FILE).exists():
        raise ConfigError(f"decoding.shortlist: {folder} has none; `regard shortlist {folder} --source FILE --target FILE` learns it")
    return Shortlist.load(folder / FILE, sizes=sizes, vocabularies=vocabularies)
