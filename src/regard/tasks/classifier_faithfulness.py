"""Faithfulness of a classifier's attention: predictions without the most attended words, or with only these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.errors import ConfigError, DataError
from regard.tasks.classification_prediction import encode_example, predict_labels
from regard.tasks.classification_run import SentenceRun

WordPosition = tuple[int, int]
"""A token of an example: of which text, and where in it."""


class FaithfulnessPoint(NamedTuple):
    """Effect of removing k words on the probability of the predicted label; means over examples.

    Attributes:
        removed: k.
        comprehensiveness: loss without the k most attended words.
        comprehensiveness_random: without k random ones.
        change: absolute change without the k most attended words.
        change_random: without k random ones.
        flips: share of examples whose label changes without the k most attended words.
        flips_random: without k random ones.
        sufficiency: loss with only the k most attended words.
        sufficiency_random: with only k random ones.
    """

    removed: int
    comprehensiveness: float
    comprehensiveness_random: float
    change: float
    change_random: float
    flips: float
    flips_random: float
    sufficiency: float
    sufficiency_random: float


class Faithfulness(NamedTuple):
    """The curve over k = 1, 2, ...

    Attributes:
        points: one for each k.
        examples: number of measured examples.
        left_out: number of examples with too few tokens (or an empty text).
        random_draws: random choices per example and k.
        seed: seed of these.
    """

    points: list[FaithfulnessPoint]
    examples: int
    left_out: int
    random_draws: int
    seed: int

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON value."""
        return {**self._asdict(), "points": [point._asdict() for point in self.points]}


class _Seen(NamedTuple):
    ids: tuple[list[int], ...]
    order: list[WordPosition]
    label: int
    probability: float


def measure_faithfulness(
    run: SentenceRun,
    examples: Sequence[Sequence[str]],
    *,
    max_words: int = 5,
    random_draws: int = 5,
    seed: int = 1,
    poll: Callable[[], None] | None = None,
) -> Faithfulness:
    """Measure comprehensiveness and sufficiency of a classifier's attention (DeYoung et al. 2020, arXiv:1911.03429, section 4).

        comprehensiveness(k) = p(label | all words) - p(label | all but the k most attended)
        sufficiency(k)       = p(label | all words) - p(label | only the k most attended)

    and the same for k random words. A word's attention is the sum of its weights over hops; the words of a pair are ranked together.
    Removed words leave no gap; words of equal attention are ranked at random. High comprehensiveness and low sufficiency are faithful.

    Args:
        run: a run whose pooling has weights.
        examples: texts or pairs.
        max_words: max k; examples without a text of more tokens are skipped, so that all points cover the same examples.
        random_draws: random choices per example and k; their mean is reported.
        seed: seed of these, and of the order of equal words.
        poll: called before each batch; may raise to stop.

    Raises:
        DataError: no example has enough tokens, or the run has no attention.
        ConfigError: `max_words` or `random_draws` is below 1.
    """
    if max_words < 1 or random_draws < 1:
        raise ConfigError(f"faithfulness: most {max_words} and draws {random_draws} must be 1 or more")
    seen = _look(run, examples, max_words, np.random.default_rng(seed), poll)
    points = []
    for count in range(1, max_words + 1):
        generator = np.random.default_rng([seed, count])
        top = [set(item.order[:count]) for item in seen]
        chance = [_drawn(item.order, count, generator) for _ in range(random_draws) for item in seen]
        without, without_random = _lost(run, seen, top, poll, keep=False), _lost(run, seen * random_draws, chance, poll, keep=False)
        only, only_random = _lost(run, seen, top, poll, keep=True), _lost(run, seen * random_draws, chance, poll, keep=True)
        points.append(
            FaithfulnessPoint(
                count,
                *(float(part[:, 0].mean()) for part in (without, without_random)),
                *(float(np.abs(part[:, 0]).mean()) for part in (without, without_random)),
                *(
                    float(part[:, 1].mean())
                    for part in (
                        without,
                        without_random,
                    )
                ),
                *(float(part[:, 0].mean()) for part in (only, only_random)),
            )
        )
    return Faithfulness(points, len(seen), len(examples) - len(seen), random_draws, seed)


def _look(
    run: SentenceRun, examples: Sequence[Sequence[str]], max_words: int, ties: np.random.Generator, poll: Callable[[], None] | None
) -> list[_Seen]:
    encoded = [encode_example(run, texts)[0] for texts in examples]
    # Every text keeps at least one token.
    usable = [ids for ids in encoded if min(map(len, ids)) > max_words]
    if not usable:
        raise DataError(f"faithfulness: no example has more than {max_words} tokens in each of its texts; they need a smaller --max-words")
    seen = []
    for ids, answer in zip(usable, predict_labels(run, usable, need_weights=True, poll=poll), strict=True):
        if answer.weights is None:
            raise DataError(f"{run.folder}: this model has no attention to measure (model.pooling {run.config.model.pooling})")
        sums = {(side, at): float(w) for side, part in enumerate(answer.weights) for at, w in enumerate(part.sum(0))}
        draws = dict(zip(sums, ties.random(len(sums)), strict=True))  # by place, the first of equal words would look important
        order = sorted(sums, key=lambda place: (-sums[place], draws[place]))
        label = int(answer.probabilities.argmax())
        seen.append(_Seen(ids, order, label, float(answer.probabilities[label])))
    return seen


def _drawn(order: list[WordPosition], count: int, generator: np.random.Generator) -> set[WordPosition]:
    places = sorted(order)
    return {places[number] for number in generator.choice(len(places), size=count, replace=False)}


def _lost(
    run: SentenceRun, seen: Sequence[_Seen], chosen: Sequence[set[WordPosition]], poll: Callable[[], None] | None, *, keep: bool
) -> np.ndarray:
    """Return for each example (N, 2) the lost probability of its label, and whether the label changed."""
    changed = [
        tuple([token for at, token in enumerate(ids) if ((side, at) in places) == keep] for side, ids in enumerate(item.ids))
        for item, places in zip(seen, chosen, strict=True)
    ]
    answers = predict_labels(run, changed, poll=poll)
    rows = [
        (item.probability - answer.probabilities[item.label], float(answer.probabilities.argmax() != item.label))
        for item, answer in zip(seen, answers, strict=True)
    ]
    return np.array(rows)
