"""The paired bootstrap against sacrebleu's own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

import regard.metrics.significance as significance
from regard.errors import DataError
from regard.metrics import bleu, caption_scores, chrf, paired_bootstrap
from regard.metrics.caption import bleu_of_caption_counts, caption_bleu_counts

EPSILON = 1e-4  # sacrebleu sums its counts in float32
LINES, SAMPLES = 53, 101


def _outputs(noise: float, seed: int) -> list[str]:
    chooser = random.Random(seed)
    words = [f"w{i}" for i in range(19)]
    references = _references()
    return [" ".join(word if chooser.random() > noise else chooser.choice(words) for word in line.split()) for line in references]


def _references() -> list[str]:
    chooser = random.Random(7)
    words = [f"w{i}" for i in range(19)]
    return [" ".join(chooser.choices(words, k=chooser.randint(5, 17))) for _ in range(LINES)]


@pytest.mark.parametrize(("metric", "scorer"), [("bleu", BLEU), ("chrf", CHRF)])
@pytest.mark.parametrize("noises", [(0.2, 0.25), (0.1, 0.5), (0.4, 0.3)])
@pytest.mark.parametrize("seed", [12345, 11])
def test_scores_means_and_intervals_equal_sacrebleus(metric, scorer, noises, seed, monkeypatch):
    monkeypatch.setenv("SACREBLEU_SEED", str(seed))
    system, baseline, references = _outputs(noises[0], 1), _outputs(noises[1], 2), _references()
    test = PairedTest([("base", baseline), ("system", system)], {"M": scorer(references=[references])}, None, "bs", SAMPLES)
    signatures, scores = test()
    (name,) = signatures
    expected_base, expected = scores[name]
    found = paired_bootstrap(system, baseline, references, metric=metric, samples=SAMPLES, seed=seed)
    assert found.system.value == pytest.approx(expected.score, abs=1e-8)
    assert found.baseline.value == pytest.approx(expected_base.score, abs=1e-8)
    assert found.mean == pytest.approx(expected.mean, abs=EPSILON)
    assert (found.interval[1] - found.interval[0]) / 2 == pytest.approx(expected.ci, abs=EPSILON)
    assert found.baseline_mean == pytest.approx(expected_base.mean, abs=EPSILON)
    assert (found.baseline_interval[1] - found.baseline_interval[0]) / 2 == pytest.approx(expected_base.ci, abs=EPSILON)
    assert found.p_value >= expected.p_value
    assert found.system.signature == str(signatures[name])


def test_the_scores_are_those_of_the_plain_metrics():
    system, baseline, references = _outputs(0.2, 1), _outputs(0.3, 2), _references()
    found = paired_bootstrap(system, baseline, references, samples=5)
    assert (found.system.value, found.baseline.value) == (bleu(system, references).value, bleu(baseline, references).value)
    assert found.difference == found.system.value - found.baseline.value
    with_chrf = paired_bootstrap(system, baseline, references, metric="chrf", samples=5)
    assert with_chrf.system.value == pytest.approx(chrf(system, references).value)
    assert with_chrf.system.name == "chrF2"


def test_a_clear_difference_is_significant_and_its_interval_leaves_out_zero():
    found = paired_bootstrap(_outputs(0.05, 1), _outputs(0.6, 2), _references(), samples=199)
    assert found.p_value == pytest.approx(1 / 200)
    assert found.difference_interval[0] > 0
    assert found.interval[0] < found.mean < found.interval[1]


def test_a_system_compared_with_itself_is_never_significant():
    lines = _outputs(0.3, 1)
    found = paired_bootstrap(lines, lines, _references(), samples=53)
    assert (found.difference, found.p_value, found.difference_interval) == (0.0, 1.0, (0.0, 0.0))


def test_swapping_the_systems_mirrors_the_difference_and_keeps_the_p_value():
    system, baseline, references = _outputs(0.2, 1), _outputs(0.25, 2), _references()
    one, other = (paired_bootstrap(a, b, references, samples=97) for a, b in ((system, baseline), (baseline, system)))
    assert one.difference == -other.difference
    assert one.p_value == other.p_value
    assert one.difference_interval == pytest.approx((-other.difference_interval[1], -other.difference_interval[0]))


def test_equal_systems_seldom_differ_significantly():
    draw, low, middle = np.random.default_rng(1), 0, 0
    for _ in range(2000):
        difference = draw.normal()  # of two systems that are equal in the long run
        p = significance._p_value(difference + draw.normal(size=200), difference)
        low, middle = low + (p < 0.05), middle + (p < 0.5)
    assert 60 < low < 140
    assert 900 < middle < 1100


def test_drawing_in_small_chunks_changes_nothing(monkeypatch):
    system, baseline, references = _outputs(0.2, 1), _outputs(0.25, 2), _references()
    whole = paired_bootstrap(system, baseline, references, samples=SAMPLES)
    monkeypatch.setattr(significance, "CHUNK", 3 * LINES)
    assert paired_bootstrap(system, baseline, references, samples=SAMPLES) == whole


def test_another_seed_draws_other_sets():
    system, baseline, references = _outputs(0.2, 1), _outputs(0.25, 2), _references()
    means = {paired_bootstrap(system, baseline, references, samples=31, seed=seed).mean for seed in (1, 2, 3)}
    assert len(means) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hypotheses": ["a"]}, "hypotheses, baseline and references must have the same length, found 1, 2 and 2"),
        ({"baseline": ["a", "b", "c"]}, "hypotheses, baseline and references must have the same length, found 2, 3 and 2"),
        ({"hypotheses": [], "baseline": [], "references": []}, "hypotheses, baseline and references must not be empty"),
        ({"metric": "ter"}, "metric must be bleu or chrf, found 'ter'"),
        ({"tokenize": "moses"}, "tokenize must be one of 13a"),
        ({"samples": 0}, "samples must be at least 1, found 0"),
        ({"seed": -1}, "seed must be at least 0, found -1"),
    ],
)
def test_unusable_arguments_are_data_errors(changes, message):
    arguments = {"hypotheses": ["a", "b"], "baseline": ["a", "b"], "references": ["a", "b"], **changes}
    with pytest.raises(DataError, match=f"^paired_bootstrap: {message}"):
        paired_bootstrap(**arguments)


def test_item_counts_make_the_corpus_scores() -> None:
    outputs = _outputs(0.3, seed=4)
    for metric, score in (("bleu", bleu), ("chrf", chrf)):
        counts = significance.item_counts(metric, outputs, _references())
        assert counts.shape == (LINES, significance.COLUMNS[metric])
        assert significance.score_of_counts(metric, counts.sum(0)) == pytest.approx(score(outputs, _references()).value, abs=1e-9)


def test_counts_of_captions_make_the_corpus_score_and_not_the_mean_of_the_items() -> None:
    outputs, references = _outputs(0.3, seed=4), [[line, f"a {line}"] for line in _references()]
    scores, counts = caption_scores(references, outputs), caption_bleu_counts(references, outputs)
    assert significance.score_of_counts("caption-bleu", counts.sum(0)) == pytest.approx(scores.corpus["BLEU-4"].value, abs=1e-12)
    assert [significance.score_of_counts("caption-bleu", row) for row in counts] == pytest.approx(scores.items["BLEU-4"], abs=1e-12)
    assert abs(scores.corpus["BLEU-4"].value - sum(scores.items["BLEU-4"]) / LINES) > 1e-3


def test_holm_is_never_below_what_went_in_and_keeps_the_order() -> None:
    values = [0.2, 0.001, 0.03, 0.03, 0.9]
    assert significance.holm(values) == pytest.approx([0.4, 0.005, 0.12, 0.12, 0.9])
    assert significance.holm([]) == []
    assert significance.holm([0.7, 0.8]) == [1.0, 1.0]
    assert significance.holm(value for value in values) == significance.holm(np.array(values)) == significance.holm(values)  # type: ignore[arg-type]


ONES: Any = np.ones
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "no p-values": (lambda: significance.holm(0.5), "holm: p_values must be a list of numbers, found 0.5"),  # type: ignore[arg-type]
    "p-values in words": (lambda: significance.holm([0.5, "a"]), "holm: p_values must be a list of numbers, item 2 is 'a'"),  # type: ignore[list-item]
    "true": (lambda: significance.holm([True]), "holm: p_values must be a list of numbers, item 1 is True"),
    "nan": (lambda: significance.holm([0.01, math.nan]), "holm: p_values must be from 0 to 1, found nan at [1]"),
    "above 1": (lambda: significance.holm([2]), "holm: p_values must be from 0 to 1, found 2.0 at [0]"),
    "no metric": (lambda: significance.score_of_counts(1, ONES(2)), "score_of_counts: metric must be text, found 1"),  # type: ignore[arg-type]
    "another metric": (lambda: significance.score_of_counts("ter", ONES(2)), "score_of_counts: metric must be one of bleu, chrf,"),
    "a list of counts": (
        lambda: significance.score_of_counts("mean", [1, 2]),  # type: ignore[arg-type]
        "score_of_counts: counts must be an array of numbers (2,), found [1, 2]",
    ),
    "counts of another metric": (
        lambda: significance.score_of_counts("bleu", ONES(18)),
        "score_of_counts: counts must be an array of numbers (10,), found float64 (18,)",
    ),
    "counts in words": (lambda: significance.score_of_counts("mean", np.array(["a", "b"])), "score_of_counts: counts must be an array"),
    "counts of all items": (lambda: significance.score_of_counts("mean", ONES((3, 2))), "numbers (2,), found float64 (3, 2)"),
    "half a label": (lambda: significance.score_of_counts("macro-f1", ONES(3)), "numbers (2 C,), found float64 (3,)"),
    "counts of captions": (lambda: bleu_of_caption_counts(ONES(9)), "bleu_of_caption_counts: counts must be an array of numbers (10,)"),
    "counts of one item": (
        lambda: significance.bootstrap_interval("chrf", ONES(18)),
        "bootstrap_interval: counts must be an array of numbers (N, 18), found float64 (18,)",
    ),
    "no items": (lambda: significance.bootstrap_interval("mean", ONES((0, 2))), "bootstrap_interval: counts must be of at least one item"),
    "no samples": (
        lambda: significance.bootstrap_interval("mean", ONES((3, 2)), samples=0),
        "bootstrap_interval: samples must be at least 1",
    ),
    "half a sample": (
        lambda: significance.bootstrap_interval("mean", ONES((3, 2)), samples=2.5),  # type: ignore[arg-type]
        "bootstrap_interval: samples must be a whole number, found 2.5",
    ),
    "a negative seed": (
        lambda: significance.bootstrap_interval("mean", ONES((3, 2)), seed=-1),
        "bootstrap_interval: seed must be at least 0",
    ),
    "counts of no lines": (lambda: significance.item_counts("bleu", [], []), "item_counts: hypotheses and references must not be empty"),
    "counts of another name": (
        lambda: significance.item_counts("ter", ["a"], ["a"]),  # type: ignore[arg-type]
        "item_counts: metric must be bleu or chrf, found 'ter'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_helpers_name_what_they_cannot_use(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(DataError) as error:
        call()
    assert message in str(error.value)
