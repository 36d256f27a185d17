"""Results of a study's hypotheses: comparisons over seeds and test items, verdicts, and sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from regard.config.base import LOWER_IS_BETTER
from regard.config.study import HypothesisConfig, StudyConfig
from regard.errors import DataError
from regard.metrics.seeds import LEVEL, RunScore, SeedComparison, compare_seeds, run_score
from regard.metrics.significance import holm

SEEDS = 3
"""With fewer seeds nothing holds, whatever the p-value: their spread is hardly known, or not at all."""
POWER = 0.8
"""Power of the recommended number of seeds."""
SAID = {"suggests": "suggested", "suggests the opposite": "the opposite is suggested"}
"""Verdicts as `Finding.sentence` says them, where the words differ."""
Over = Literal["seeds and items", "items", "seeds"]


class Finding(NamedTuple):
    """Result of a hypothesis on one data set.

    Attributes:
        says: text of the hypothesis.
        data: the data set.
        published: published difference.
        runs: number of seeds that both variants have; 0: not tested.
        gain: advantage of the variant claimed to be better; negative if worse.
        interval: its 95 % interval, or None.
        p_value: p-value of that difference; None without runs or item scores.
        corrected: the p-value corrected for all hypotheses of the study, see `corrected_for`.
        over: variation that interval and p-value cover: both levels, test items only (one seed), or seeds only (no item scores).
        needed: seeds per variant, at least `SEEDS`, to detect this gain with power `POWER`, with the same correction; None: unknown or
            above the maximum.
        tolerated: with one seed, the maximum standard deviation over seeds at which the gain stays significant, with the correction of its
            rank; if paired, of differences.
        paired: with every seed both variants have the weights of the same training, and are compared seed by seed.
    """

    says: str
    data: str
    published: str | None
    runs: int
    gain: float | None = None
    interval: tuple[float, float] | None = None
    p_value: float | None = None
    corrected: float | None = None
    over: Over | None = None
    needed: int | None = None
    tolerated: float | None = None
    paired: bool = False

    @property
    def verdict(self) -> str:
        """The result in words.

        "holds" or "the opposite holds": from three seeds on, over seeds and test items. "suggests" or "suggests the opposite": two seeds,
        or one, over test items alone. "not shown": a corrected p-value of 0.05 or more. "no verdict": the scores of at least two test items
        are missing. "not tested": no run.
        """
        if self.gain is None:
            return "not tested"
        if self.corrected is None:
            return "no verdict"
        if self.corrected >= LEVEL:
            return "not shown"
        if self.runs < SEEDS or self.over != "seeds and items":
            return "suggests" if self.gain > 0 else "suggests the opposite"
        return "holds" if self.gain > 0 else "the opposite holds"

    def sentence(self, metric: str, *, data: str, decimals: int = 2) -> str:
        """Return the conclusion in one sentence.

        Example:
            >>> found = Finding("it helps", "a", None, 2, 1.5, (-0.5, 3.5), 0.09, 0.18, "seeds and items", needed=4)
            >>> print(*found.sentence("BLEU", data="set a").split("; "), sep=chr(10))
            it helps (set a): not shown (2 seeds): +1.50 BLEU [-0.50, +3.50], corrected p = 0.180 over seeds and items
            about 4 seeds of each would show such a difference, if it is real.
        """
        start = f"{self.says} ({data}): {SAID.get(self.verdict, self.verdict)}"
        if self.gain is None:
            return f"{start}."
        form = f"+z.{decimals}f"
        start += f" ({self.runs} seed{'s' if self.runs > 1 else ''}): {self.gain:{form}} {metric}"
        if self.interval is not None:
            start += " [{:{form}}, {:{form}}]".format(*self.interval, form=form)
        if self.corrected is None:
            over = f" over seeds alone{', paired' if self.paired else ''}"
            return f"{start}{'' if self.interval is None else over}; it needs the scores of at least two test items."
        start += f", corrected p {p_text(self.corrected)} over {'test items alone' if self.over == 'items' else self.over}"
        start += ", paired by seed" if self.paired and self.over != "items" else ""
        if self.over == "items":
            if self.corrected >= LEVEL or self.tolerated is None:
                return f"{start}."
            spread = "differences of paired seeds" if self.paired else "seeds"
            return f"{start}; not shown if {spread} have a standard deviation above {self.tolerated:.{decimals}f} {metric}."
        if self.interval == (0.0, 0.0):
            return f"{start}; all test items score the same, as where nothing is learned."
        if self.corrected < LEVEL or not self.gain:
            return f"{start}."
        if self.needed is None:
            return f"{start}; over 1,000 seeds of each, or more test items, would show such a difference, if it is real."
        return f"{start}; about {self.needed} seeds of each would show such a difference, if it is real."


def p_text(p_value: float) -> str:
    """Format a p-value.

    Example:
        >>> p_text(0.0312), p_text(0.00001)
        ('= 0.031', '< 0.001')
    """
    return f"= {p_value:.3f}" if p_value >= 0.0005 else "< 0.001"


Found = Mapping[tuple[str, str], Mapping[int, dict[str, Any]]]
Compared = tuple[SeedComparison | None, list[int]]
Compare = Callable[[str, str, str], Compared]


def comparer(found: Found, samples: int) -> Compare:
    """Return a cached function that compares two variants of a data set on their common seeds, and returns these.

    Args:
        found: the results, by data set and variant, then by seed.
        samples: draws of each comparison.
    """

    @cache
    def scored(data: str, variant: str, seed: int) -> RunScore:
        run = found[data, variant][seed]
        counts = np.array(run.get("counts") or [], dtype=np.float64)
        try:
            return RunScore(run["scores"][run["main"]], None) if len(counts) < 2 else run_score(run["metric"], counts)
        except DataError as error:
            raise DataError(f"{data}-{variant}-{seed}: {error}") from error

    @cache
    def compare(data: str, variant: str, other: str) -> Compared:
        ours, theirs = found.get((data, variant), {}), found.get((data, other), {})
        common = [seed for seed in ours if seed in theirs]
        one, another = ([scored(data, name, seed) for seed in common] for name in (variant, other))
        if not common or (len(common) == 1 and any(run.influence is None for run in (*one, *another))):
            return None, common
        paired = all(same_training(ours[seed], theirs[seed]) for seed in common)
        return compare_seeds(one, another, paired=paired, samples=samples), common

    return compare


def same_training(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two results are of the same weights: others have another loss in some digit of some evaluation.

    Example:
        >>> same_training({"curve": [{"step": 5, "loss": 2.0625}]}, {"curve": [{"step": 5, "loss": 2.0626}]})
        False
    """
    return bool(one.get("curve")) and one["curve"] == other.get("curve")


def find(study: StudyConfig, found: Found, compare: Compare) -> list[Finding]:
    """Return the finding of each hypothesis on each data set."""
    rows, known = [], list[SeedComparison | None]()
    sign = -1 if study.compared_by in LOWER_IS_BETTER else 1
    for hypothesis in study.hypotheses:
        for data in hypothesis.data or study.data:
            compared, seeds = compare(data, hypothesis.better, hypothesis.than)
            row = Finding(hypothesis.says, data, _published(hypothesis, study.data[data].published, sign), len(seeds))
            if compared is not None:
                row = _with(row, compared, sign)
            elif seeds:  # one, without scores of items
                one, other = (found[data, name][seeds[0]] for name in (hypothesis.better, hypothesis.than))
                row = row._replace(gain=sign * (one["scores"][one["main"]] - other["scores"][other["main"]]))
            rows.append(row)
            known.append(compared)
    p_values = sorted(row.p_value for row in rows if row.p_value is not None)
    corrected = dict(zip(p_values, corrected_for(p_values, planned=len(rows)), strict=True))
    for number, (row, compared) in enumerate(zip(rows, known, strict=True)):
        if row.p_value is not None and compared is not None:
            needed = compared.seeds_needed(POWER, level=LEVEL / len(rows))  # as the smallest p-value is corrected
            needed = needed and max(needed, SEEDS)
            tolerated = compared.tolerated(LEVEL / (len(rows) - p_values.index(row.p_value))) if row.over == "items" else None
            rows[number] = row._replace(corrected=corrected[row.p_value], needed=needed, tolerated=tolerated)
    return rows


def corrected_for(p_values: Sequence[float], *, planned: int) -> list[float]:
    """Correct p-values for all planned comparisons (Holm).

    Those without a p-value yet count as p = 1. So a comparison that is tested later never raises the corrected p-value of another.

    Example:
        >>> corrected_for([0.01, 0.5], planned=3), corrected_for([0.01, 0.5, 0.02], planned=3)
        ([0.03, 1.0], [0.03, 0.5, 0.04])
    """
    return holm([*p_values, *[1.0] * (planned - len(p_values))])[: len(p_values)]


def _with(row: Finding, compared: SeedComparison, sign: int) -> Finding:
    ends = sorted(sign * end for end in compared.interval or ())
    alone = compared.over == "seeds"  # another test set may differ by more: no p-value
    return row._replace(
        gain=sign * compared.difference,
        interval=(ends[0], ends[1]) if ends else None,
        p_value=None if alone else compared.p_value,
        over=compared.over,
        paired=len(compared.runs) == 1,
    )


def _published(hypothesis: HypothesisConfig, figures: Mapping[str, float | str], sign: int) -> str | None:
    # The published difference of the hypothesis, otherwise of the two published figures; positive if it is better.
    one, other = figures.get(hypothesis.better), figures.get(hypothesis.than)
    published = hypothesis.published
    if published is None and isinstance(one, float | int) and isinstance(other, float | int):
        published = sign * round(one - other, 6)
    return f"{published:+g}" if isinstance(published, float | int) else published
