"""Comparisons over seeds and test items: the parts against hand-made cases, the whole against studies drawn with equal variants."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from regard.errors import DataError
from regard.metrics.caption import caption_bleu_counts
from regard.metrics.classification import macro_f1, macro_f1_counts
from regard.metrics.seeds import RunScore, SeedComparison, compare_seeds, run_score
from regard.metrics.significance import item_counts, score_of_counts

ROOT = Path(__file__).parents[2]
STUDIES = 1000
WORDS = ("the", "cat", "dog", "sat", "ran", "on", "under", "a", "red", "mat", "bridge")


@pytest.fixture(scope="module")
def drawn() -> Iterator[ModuleType]:
    """The script that draws studies of equal variants."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        import seed_test

        yield seed_test


def lines(count: int, noise: float, seed: int) -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(seed)
    words = generator.choice(WORDS, (count, 9))
    found = np.where(generator.random((count, 9)) < noise, generator.choice(WORDS, (count, 9)), words)
    return [" ".join(row) for row in found], [" ".join(row) for row in words]


def plain(*scores: float, items: int = 40) -> list[RunScore]:
    """Runs whose test items do nothing to the score."""
    return [RunScore(score, np.zeros(items)) for score in scores]


def test_an_item_moves_a_mean_by_its_distance_from_it() -> None:
    values = np.array([3.0, 1.0, 4.0, 1.0, 6.0])
    found = run_score("mean", np.stack([values, np.ones(5)], 1))
    assert found.score == 3
    assert found.influence == pytest.approx(values - 3)


@pytest.mark.parametrize("metric", ["bleu", "chrf", "caption-bleu", "perplexity"])
def test_an_item_moves_a_corpus_score_by_what_the_score_is_without_it(metric: str) -> None:
    found, references = lines(23, 0.3, seed=3)
    if metric == "perplexity":
        counts = np.random.default_rng(5).random((23, 2)) + np.array([0.5, 3.0])
    elif metric == "caption-bleu":
        counts = caption_bleu_counts([[line] for line in references], found)
    else:
        counts = item_counts("bleu" if metric == "bleu" else "chrf", found, references)
    without = [score_of_counts(metric, np.delete(counts, number, 0).sum(0)) for number in range(23)]
    run = run_score(metric, counts)
    assert run.score == pytest.approx(score_of_counts(metric, counts.sum(0)))
    assert run.influence == pytest.approx([22 * (sum(without) / 23 - each) for each in without], rel=1e-6, abs=1e-9)


def test_the_interval_of_one_run_each_is_that_of_a_paired_bootstrap_of_bleu() -> None:
    (good, references), (bad, _) = lines(400, 0.2, seed=1), lines(400, 0.3, seed=1)
    counts = [item_counts("bleu", outputs, references) for outputs in (good, bad)]
    found = compare_seeds(*([run_score("bleu", each)] for each in counts))
    generator = np.random.default_rng(2)
    weights = generator.multinomial(400, np.full(400, 1 / 400), 1500)
    gaps = [score_of_counts("bleu", row @ counts[0]) - score_of_counts("bleu", row @ counts[1]) for row in weights]
    assert (found.over, found.spreads) == ("items", None)
    assert found.interval == pytest.approx(np.quantile(gaps, [0.025, 0.975]), abs=0.4)  # quantiles of 1,500 draws
    assert found.item_error == pytest.approx(np.std(gaps), rel=0.08)


def test_without_items_it_is_welchs_test() -> None:
    found = compare_seeds(plain(7, 8, 9), plain(1, 2, 3))
    assert found.difference == 6
    assert found.spreads == (1, 1)
    assert found.p_value == pytest.approx(0.001826, abs=4e-4)  # t = 7.348, 4 degrees of freedom
    assert found.interval == pytest.approx((6 - 2.776 * math.sqrt(2 / 3), 6 + 2.776 * math.sqrt(2 / 3)), rel=0.03)
    # One variant that does not spread leaves the two degrees of freedom of the other: t = 1.5 sqrt(3).
    assert compare_seeds(plain(1, 2, 3), plain(0.5, 0.5, 0.5)).p_value == pytest.approx(0.1217, abs=0.004)


def test_pairs_are_compared_by_their_differences() -> None:
    found = compare_seeds(plain(7, 4, 12), plain(6, 2, 9), paired=True)
    assert (found.difference, found.runs, found.spreads) == (2, (3,), (1,))
    assert found.p_value == pytest.approx(0.0742, abs=0.004)  # Student's t of 1, 2 and 3: 3.464, 2 degrees of freedom
    assert compare_seeds(plain(7, 4, 12), plain(6, 2, 9)).p_value > 0.4
    pattern = np.tile([1.0, -1.0], 50)
    alike = [[RunScore(score, scale * pattern) for score in scores] for scores, scale in (((5, 8, 6), 3.0), ((4, 6, 3), 2.0))]
    assert compare_seeds(*alike, paired=True).item_error == pytest.approx(1 / math.sqrt(99))
    alone = compare_seeds(*([side[0]] for side in alike), paired=True)
    assert (alone.over, alone.p_value) == ("items", compare_seeds(*([side[0]] for side in alike)).p_value)


def test_with_one_run_each_it_is_the_normal_test_of_items() -> None:
    gap = np.tile([1.0, -1.0], 50)
    found = compare_seeds([RunScore(0.25, gap)], [RunScore(0.0, np.zeros(100))])
    assert found.item_error == pytest.approx(1 / math.sqrt(99))
    assert found.p_value == pytest.approx(2 * 0.00643, abs=0.001)  # z = 2.487
    assert found.interval == pytest.approx((0.25 - 1.96 / math.sqrt(99), 0.25 + 1.96 / math.sqrt(99)), abs=0.004)
    assert found.seeds_needed() is None
    # The spread at which the difference is just as large as chance makes one in twenty.
    assert math.sqrt(2 * (found.tolerated() or 0.0) ** 2 + 1 / 99) == pytest.approx(0.25 / 1.96, rel=1e-3)
    # At a corrected level less is tolerated: 2.326 standard errors.
    assert math.sqrt(2 * (found.tolerated(0.02) or 0.0) ** 2 + 1 / 99) == pytest.approx(0.25 / 2.326, rel=1e-3)
    assert found.tolerated(0.01) is None
    assert compare_seeds([RunScore(0.1, gap)], [RunScore(0.0, np.zeros(100))]).tolerated() is None


def test_scores_that_never_vary_have_no_interval() -> None:
    right = [run_score("mean", np.ones((1000, 2)))] * 3
    found = compare_seeds(right, right)
    assert (found.difference, found.p_value, found.interval) == (0, 1, None)
    once = np.ones((1000, 2))
    once[0, 0] = 0
    assert compare_seeds(right, [run_score("mean", once)] * 3).interval is not None


def test_what_is_no_number_is_refused() -> None:
    good, gap = plain(1.0, 2.0), np.zeros(9)
    for value in (math.nan, math.inf, 1e141):  # the square of the last is infinite
        with pytest.raises(
            DataError, match=re.escape(f"compare_seeds: systems must have finite scores up to 1e+140, run 2: found {value}")
        ):
            compare_seeds(plain(1.0, value), good)
        with pytest.raises(DataError, match=r"compare_seeds: baselines must have finite scores up to 1e\+140, run 1: found"):
            compare_seeds([RunScore(1.0, gap)] * 2, [RunScore(2.0, gap + value), RunScore(2.0, gap)])
    with pytest.raises(DataError, match="mean without test item 2: nan, expected a finite number"):
        run_score("mean", np.array([[0.0, 0.0], [5.0, 1.0], [0.0, 0.0]]))
    with pytest.raises(DataError, match=r"SeedComparison\.tolerated: level must be between 0 and 1, found 1\.0"):
        compare_seeds(good, good).tolerated(1.0)
    with pytest.raises(DataError, match=r"SeedComparison\.tolerated: level must be a number, found 'x'"):
        compare_seeds(good, good).tolerated("x")  # type: ignore[arg-type]


def test_the_figures_of_the_largest_scores_are_finite() -> None:
    items = np.random.default_rng(1).standard_normal(50) * 1e139
    for runs in (1, 2):
        found = compare_seeds([RunScore(9e139, items)] * runs, [RunScore(1e139, -items)] * runs)
        assert 0 < found.p_value < 0.05
        assert np.isfinite(found.interval or math.nan).all()
        assert found.tolerated() if runs == 1 else found.seeds_needed()
    diverged = np.stack([np.full(5, 355.0), np.ones(5)], 1)  # e^355 is finite, its square is not
    with pytest.raises(DataError, match=r"perplexity without test item 1: .*e\+154, expected a finite number up to 1e\+140"):
        run_score("perplexity", diverged)


def test_few_items_do_not_make_a_small_p_value() -> None:
    for items in (2, 6, 20):
        better, worse = ([run_score("mean", np.array([[value, 1.0]] * items)) for value in values] for values in ((7, 8, 9), (1, 2, 3)))
        assert compare_seeds(better[:1], worse[:1]).p_value == pytest.approx(2.0 ** (1 - items), abs=1e-5)  # all agree
        several = compare_seeds(better, worse)
        assert several.p_value >= 2.0 ** (1 - items)
        above = several.interval is not None and several.interval[0] > 0
        assert (several.p_value < 0.05) == above == (several.seeds_needed() is not None)
    # Of studies whose items differ by chance alone, at most one in twenty finds a difference.
    generator = np.random.default_rng(5)
    for items in (3, 5, 10):
        drawn = [np.stack([generator.standard_normal(items), np.ones(items)], 1) for _ in range(400)]
        none = run_score("mean", np.stack([np.zeros(items), np.ones(items)], 1))
        found = [compare_seeds([run_score("mean", counts)], [none], samples=5000).p_value < 0.05 for counts in drawn]
        assert sum(found) <= 400 * 0.05 + 2 * math.sqrt(400 * 0.05 * 0.95)


def test_what_items_do_to_each_run_alone_counts_once() -> None:
    # Two runs of each variant; an item moves both runs of the first alike, and those of the second against each other.
    alike, against = np.tile([3.0, -3.0], 50), np.tile([2.0, 2.0, -2.0, -2.0], 25)
    first, second = [RunScore(5.0, alike), RunScore(5.4, alike)], [RunScore(4.0, against), RunScore(4.0, -against)]
    found = compare_seeds(first, second)
    assert found.item_error == pytest.approx(math.sqrt((900 - 400) / 9900))  # less the half of 2 * 4 * 100 / 9900 that is the second's own
    assert found.spreads == pytest.approx((0.4 / math.sqrt(2), math.sqrt(800 / 9900)))  # of equal scores, what the items do


def test_it_is_the_same_from_both_sides_and_repeats() -> None:
    generator = np.random.default_rng(4)
    sides = [[RunScore(score, generator.standard_normal(50)) for score in scores] for scores in ((3.0, 4.0, 4.5), (2.0, 3.5, 2.5))]
    there, back = compare_seeds(*sides), compare_seeds(*reversed(sides))
    assert (there.difference, there.p_value) == (-back.difference, back.p_value)
    low, high = back.interval or (0.0, 0.0)
    assert there.interval == pytest.approx((-high, -low))
    assert compare_seeds(*sides) == there
    assert 0 < there.p_value <= 1


def test_no_difference_is_chance_and_a_certain_one_is_not() -> None:
    assert compare_seeds(plain(1, 2), plain(2, 1)).p_value == 1
    assert compare_seeds(plain(1, 1), plain(1, 1)).p_value == 1
    assert compare_seeds(plain(2, 2), plain(1, 1), samples=999).p_value == 0.001


def test_without_the_scores_of_items_it_is_over_seeds_alone() -> None:
    unknown = [RunScore(score, None) for score in (7.0, 8.0, 9.0)]
    found = compare_seeds(unknown, plain(1, 2, 3))
    assert (found.over, found.item_error, found.seeds_needed()) == ("seeds", None, None)
    assert found.p_value == compare_seeds(plain(7, 8, 9), plain(1, 2, 3)).p_value
    with pytest.raises(DataError, match="single run can be compared only by the scores of its test items"):
        compare_seeds(unknown[:1], plain(1))


def test_what_cannot_be_compared_is_refused() -> None:
    for paired in (False, True):
        with pytest.raises(DataError, match="compare_seeds: systems and baselines must have the same length, found 3 and 2"):
            compare_seeds(plain(1, 2, 3), plain(1, 2), paired=paired)
    with pytest.raises(DataError, match="compare_seeds: systems and baselines must have the same length, found 1 and 0"):
        compare_seeds(plain(1), [])
    with pytest.raises(DataError, match="compare_seeds: all runs must be on the same items, found runs on 3, 4 items"):
        compare_seeds(plain(1, items=3), plain(1, items=4))
    with pytest.raises(DataError, match="run_score: counts must be of at least 2 test items, found 1"):
        run_score("mean", np.ones((1, 2)))
    with pytest.raises(DataError, match=r"SeedComparison\.seeds_needed: power must be between 0 and 1, found 1\.5"):
        compare_seeds(plain(1, 2), plain(1, 2)).seeds_needed(1.5)


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(
    ("kind", "items", "spread"),
    [
        ("mean of items", 200, "as observed"),
        ("mean of items", 1000, "as observed"),
        ("mean of items", 200, "5 points"),
        ("accuracy", 1000, "as observed"),
    ],
)
def test_at_most_one_study_of_equal_variants_in_twenty_finds_a_difference(
    drawn: ModuleType, kind: str, items: int, spread: str, seeds: int
) -> None:
    studies = drawn.null_studies(drawn.Setting(kind, items, spread, seeds), STUDIES, seed=41 + seeds, spreads=drawn.observed_spreads())
    found = [compare_seeds(*study, samples=2000).p_value < 0.05 for study in studies]
    assert len(found) == STUDIES
    assert sum(found) <= STUDIES // 20


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_so_do_pairs_that_share_the_effect_of_their_seed(drawn: ModuleType, seeds: int) -> None:
    studies = drawn.null_studies(drawn.Setting("accuracy", 200, "as observed", seeds), STUDIES, seed=5, spreads=drawn.observed_spreads())
    generator, found = np.random.default_rng(6), 0
    for study in studies:
        shifts = 5 * generator.standard_normal(seeds)
        pairs = [[RunScore(run.score + shift, run.influence) for run, shift in zip(side, shifts, strict=True)] for side in study]
        found += compare_seeds(*pairs, paired=True, samples=2000).p_value < 0.05
    assert found <= STUDIES // 20


@pytest.mark.parametrize("seeds", [2, 3])
def test_so_do_scores_of_a_corpus(drawn: ModuleType, seeds: int) -> None:
    studies = drawn.null_studies(drawn.Setting("BLEU", 200, "as observed", seeds), 100, seed=43, spreads=drawn.observed_spreads())
    assert sum(compare_seeds(*study, samples=2000).p_value < 0.05 for study in studies) <= 5


def test_the_drawn_studies_would_show_a_test_that_knows_no_seeds(drawn: ModuleType) -> None:
    studies = drawn.null_studies(drawn.Setting("mean of items", 1000, "as observed", 3), 300, seed=7, spreads=drawn.observed_spreads())
    assert sum(drawn.items_alone(study) < 0.05 for study in studies) > 300 * 0.08


def test_the_kept_table_says_the_same(drawn: ModuleType) -> None:
    kept = json.loads((ROOT / "docs" / "results" / "seed_test.json").read_text(encoding="utf-8"))
    ours = kept["columns"].index("seeds and items")
    *rows, looked = kept["rows"]
    assert [tuple(row[:4]) for row in rows] == [*drawn.SETTINGS, *drawn.UNFIT]
    fit, unfit = rows[: len(drawn.SETTINGS)], rows[len(drawn.SETTINGS) :]
    assert all(row[ours] is None or row[ours] <= 5 for row in fit)
    failing, grouped = [row[ours] for row in unfit[:2]], unfit[-1][ours]
    assert min(failing) > 20  # docs/compare.md: far too often
    assert grouped > 5
    assert looked[ours] > 5  # docs/compare.md: do not look and add seeds
    assert not drawn.out_of_date()  # its spreads are still about those of the kept studies


@pytest.mark.parametrize("level", [0.05, 0.05 / 24])
@pytest.mark.parametrize(("gain", "spread"), [(1.8, 2.0), (1.8, 0.5), (4.0, 0.5), (20.0, 2.0)])
def test_as_many_seeds_as_are_said_to_be_needed_find_the_difference(gain: float, spread: float, level: float) -> None:
    planned = SeedComparison(gain, (0.0, 0.0), 1.0, (3, 3), (spread, spread), 0.4, 1000)
    needed = planned.seeds_needed(level=level) or 0
    assert needed >= 2
    generator = np.random.default_rng(9)

    def share(seeds: int) -> float:
        found = 0
        for _ in range(400):
            # Items that do to all runs of a variant alike what gives an error of 0.4.
            pattern = np.tile([0.4, -0.4], 200) * math.sqrt(399)
            shift = 0.4 * generator.standard_normal()
            one = [RunScore(gain + shift + spread * generator.standard_normal(), pattern) for _ in range(seeds)]
            other = [RunScore(spread * generator.standard_normal(), np.zeros(400)) for _ in range(seeds)]
            found += compare_seeds(one, other, samples=4000).p_value < level
        return found / 400

    assert share(needed) > 0.74  # 0.8, and what 400 studies may be off by
    assert needed < 4 or share(needed - 2) < 0.8


def test_seeds_are_planned_where_they_do_not_spread_at_all() -> None:
    assert SeedComparison(1.8, (0.0, 0.0), 1.0, (3, 3), (0.0, 0.0), 0.4, 1000).seeds_needed() == 2
    assert SeedComparison(0.8, (0.0, 0.0), 1.0, (3, 3), (0.0, 0.0), 0.4, 1000).seeds_needed() is None


def test_macro_f1_without_an_item_is_that_of_all_others() -> None:
    labels = ["a", "b", "c", "a", "b", "c", "a", "a", "b", "c", "d"]
    predicted = ["a", "b", "a", "a", "c", "c", "a", "b", "b", "c", "d"]  # without the last item, d is no label
    run = run_score("macro-f1", macro_f1_counts(predicted, labels))
    assert run.score == pytest.approx(macro_f1(predicted, labels).value)
    assert run.influence is not None
    others = [macro_f1(*([side[:j] + side[j + 1 :] for side in (predicted, labels)])).value for j in range(len(labels))]
    assert run.influence == pytest.approx((len(labels) - 1) * (np.mean(others) - np.array(others)))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int8, np.bool_])
def test_counts_of_any_type_are_added_up_as_float64(dtype: type) -> None:
    counts = np.stack([np.random.default_rng(0).random(5000) < 0.7, np.ones(5000)], 1).astype(float)
    exact, found = (run_score("mean", counts.astype(kind)) for kind in (np.float64, dtype))
    assert found.score == exact.score
    assert np.array_equal(found.influence, exact.influence)
    halves = [RunScore(one.score, one.influence.astype(np.float16)) for one in (exact, found)]
    assert compare_seeds(halves, [exact, exact]).p_value > 0
