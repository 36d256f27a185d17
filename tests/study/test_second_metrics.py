"""What the studies page says of other metrics than the one a study compares by, and of validation curves."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from regard.metrics.seeds import compare_seeds, run_score

ROOT = Path(__file__).parents[2]
SEEDS = (1, 2, 3)


@pytest.fixture(scope="module")
def page() -> str:
    return " ".join((ROOT / "docs" / "studies.md").read_text(encoding="utf-8").split())


def runs_of(study: str) -> dict[str, dict[str, Any]]:
    files = (ROOT / "docs" / "results" / "studies" / study / "results").glob("*.json")
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in files}


def test_a_lower_perplexity_is_not_more_bleu(page: str) -> None:
    study, control = runs_of("li2018_small"), runs_of("li2018_small_rate")
    small, tiny = ([study[f"characters-{name}-{seed}"]["scores"] for seed in SEEDS] for name in ("small", "tiny"))
    lower = [run["scores"] for name, run in control.items() if run["cell"]["variant"] == "small"]
    assert "has less BLEU than the Tiny one's with all three seeds, though a lower perplexity" in page
    assert max(one["BLEU"] for one in small) < min(one["BLEU"] for one in tiny)
    assert max(one["perplexity"] for one in small) < min(one["perplexity"] for one in tiny)
    assert "Single positions do not learn less at 0.003: their perplexity is lower there, with each seed." in page
    assert max(one["perplexity"] for one in small) < min(one["perplexity"] for one in lower)


def perplexities(data: str) -> list[tuple[str, list[float], list[float]]]:
    """The perplexities by seed of single positions and of area features, of each model of `li2018_small` that has both."""
    found: dict[str, list[float]] = {}
    for _, run in sorted(runs_of("li2018_small").items()):
        if run["cell"]["data"] == data:
            found.setdefault(run["cell"]["variant"], []).append(run["scores"]["perplexity"])
    return [(name, found[name], found[f"{name}_features"]) for name in found if f"{name}_features" in found]


def test_area_features_lower_the_perplexity_of_every_model_by_characters(page: str) -> None:
    assert "with every seed, in all models but the LSTM of 256 cells with four heads, also where BLEU shows no gain." in page
    both = perplexities("characters")
    assert len(both) == 6
    assert [name for name, single, features in both if max(features) >= min(single)] == ["lstm_256_4"]
    assert "By tokens it is lower in three of the six models, and higher with every seed in both Transformers." in page
    both = perplexities("tokens")
    assert len(both) == 6
    assert sum(max(features) < min(single) for _, single, features in both) == 3
    assert [name for name, single, features in both if max(single) < min(features)] == ["small", "tiny"]


def test_the_loss_in_three_languages_is_no_matter_of_items_that_share_a_sentence(page: str) -> None:
    assert "with sentences as items the loss of area features keeps a corrected p below 0.05" in page
    runs = runs_of("li2018_tagged")
    one, other = (
        [run_score("bleu", np.array(runs[f"multi30k_tagged-{name}-{seed}"]["counts"]).reshape(3, 1000, -1).sum(0)) for seed in SEEDS]
        for name in ("area_features", "regular")
    )
    assert 2 * compare_seeds(one, other).p_value < 0.05


def test_r_drop_loses_bleu_and_no_perplexity(page: str) -> None:
    runs = runs_of("r_drop")
    once, twice = ([runs[f"multi30k_3000-{name}-{seed}"]["scores"]["perplexity"] for seed in SEEDS] for name in ("plain", "r_drop"))
    assert "Its perplexity on the test set is lower with every seed" in page
    assert max(twice) < min(once)
    table = json.loads((ROOT / "docs" / "results" / "multi30k_r_drop.json").read_text(encoding="utf-8"))
    bleu = next(column for column in table["columns"] if column.startswith("BLEU"))
    scores = {row[1]: row[table["columns"].index(bleu)] for row in table["rows"] if row[0] == "German"}
    assert "On all pairs, with one seed each, R-Drop scores more with [a lower dropout](translation.md#r-drop) than with the 0.3" in page
    high = float(scores["R-Drop, dropout 0.3, 45 epochs"])
    assert all(float(scores[f"R-Drop, dropout {rate}, 45 epochs"]) > high for rate in ("0.15", "0.1"))


def test_both_fusions_overfit_and_the_gated_one_is_behind_from_the_first_epoch(page: str) -> None:
    runs = runs_of("lin2017_entailment")
    curves = {name: [runs[f"sick-{name}-{seed}"]["curve"] for seed in SEEDS] for name in ("hops_4", "hops_4_gated")}
    assert "It overfits SICK's 4,500, but so do the features, and it is behind them from the first epoch on, with each seed." in page
    for each in curves.values():
        assert all(curve[-1]["loss"] > 1.5 * min(point["loss"] for point in curve) for curve in each)
    firsts = {name: [curve[0]["accuracy"] for curve in each] for name, each in curves.items()}
    assert max(firsts["hops_4_gated"]) < min(firsts["hops_4"])
    for points in zip(*(curves["hops_4_gated"] + curves["hops_4"]), strict=False):
        assert max(point["accuracy"] for point in points[:3]) < min(point["accuracy"] for point in points[3:])


def test_the_spread_beside_one_seed_is_that_of_the_next_study(page: str) -> None:
    study = runs_of("li2018_small")
    spreads = [
        statistics.stdev(study[f"characters-{name}-{seed}"]["scores"]["BLEU"] for seed in SEEDS)
        for name in ("lstm_128_4", "lstm_128_4_area")
    ]
    assert "LSTMs with four heads by characters spread by 0.6 and 0.8 in [the next study]" in page
    assert [f"{each:.1f}" for each in spreads] == ["0.6", "0.8"]


def test_a_sampled_cell_points_less_often_than_the_best_one(page: str) -> None:
    assert "A sampled cell points at the object less often, and after a soft start fewer of its captions are true." in page
    table = json.loads((ROOT / "docs" / "results" / "hard_attention.json").read_text(encoding="utf-8"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    ways = {(row["trained"], row["decoded"]): row for row in rows if row["decoded"] != "weights"}
    trainings = {trained for trained, _ in ways}
    assert len(trainings) == 5
    for trained in trainings:
        best, sampled = ways[trained, "best cell"], ways[trained, "sampled cell"]
        middle = [[float(row[name].split()[0]) for row in (best, sampled)] for name in ("pointing, %", "true captions, %")]
        assert middle[0][1] < middle[0][0]
        assert middle[1][1] < middle[1][0] or "no soft start" in trained


def test_what_other_corrections_say_is_counted(page: str) -> None:
    table = json.loads((ROOT / "docs" / "results" / "study_findings.json").read_text(encoding="utf-8"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    low = [row for row in rows if row["verdict"] == "not shown" and float(str(row["q"] or math.inf).removeprefix("< ")) < 0.05]
    assert (
        "Four gains that their study does not show have a q below 0.05, all of `li2018_small`: mean areas in Transformer Small by "
        "characters, and area features in the LSTMs with one head by tokens and in that of 256 cells by characters." in page
    )
    assert "LSTM 256, " in low[-1]["hypothesis"]
    assert all("Eq. 9" in row["hypothesis"] for row in low[1:])
    assert [(row["study"], row["data"], row["hypothesis"].rpartition(", ")[2]) for row in low] == [
        ("li2018_small", "characters", "Transformer Small"),
        ("li2018_small", "tokens", "1 head"),
        ("li2018_small", "tokens", "1 head"),
        ("li2018_small", "characters", "1 head"),
    ]


def test_what_the_papers_optimizers_reach_on_dates(page: str) -> None:
    found: dict[str, list[float]] = {}
    for run in runs_of("optimizers").values():
        found.setdefault(run["cell"]["variant"], []).append(run["scores"]["exact match"])
    assert {len(scores) for scores in found.values()} == {3}
    table = json.loads((ROOT / "docs" / "results" / "study_optimizers.json").read_text(encoding="utf-8"))
    p_of = {row[0]: row[table["columns"].index("p, corrected")] for row in table["rows"]}
    assert "Adadelta is behind Adam. SGD has far less with each seed, but its seeds spread so much that this is not shown" in page
    assert float(p_of["Adadelta, 1, rho 0.95 (Bahdanau)"]) < 0.05 < float(p_of["SGD, 1, halved from two thirds on (Luong)"])
    assert max(found["sgd"]) < min(found["adam"]) - 40
    assert "RMSProp and Adagrad at their better rates have more with each seed than Adam on average; neither is shown" in page
    for fast in ("rmsprop_fast", "adagrad"):
        assert min(found[fast]) > statistics.mean(found["adam"])
    assert min(float(p_of[name]) for name in ("RMSProp, 0.003", "Adagrad, 0.03")) > 0.05
    assert "loses 13 points without attention, where the paper gains 1.3 BLEU on sentences. With attention no difference is shown." in page
    assert round(statistics.mean(found["none_reversed"]) - statistics.mean(found["none"])) == -13
    assert float(p_of["Adam, reversed source"]) > 0.05


def test_a_second_language_makes_up_for_half_of_the_loss(page: str) -> None:
    assert "with 40 % of them hidden, about half of the loss is made up for" in page
    table = json.loads((ROOT / "docs" / "results" / "two_inputs.json").read_text(encoding="utf-8"))
    rows = {row[1]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"] if "French" in row[0]}
    whole, hidden, helped = (
        float(rows[name][column].split()[0])
        for name, column in (("English alone", "BLEU"), ("English alone", "40% hidden"), ("both in one sequence", "40% hidden"))
    )
    assert 0.45 < (helped - hidden) / (whole - hidden) < 0.55


def test_no_run_on_a_cpu_takes_longer_than_is_said(page: str) -> None:
    assert "A run takes up to 100 minutes on a CPU" in page
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs" / "results" / "studies").glob("*/results/*.json")]
    taken = [run["updates"] * run["seconds_per_update"] / 60 for run in runs if run.get("seconds_per_update")]
    assert 90 < max(taken) <= 100


def test_general_is_ahead_of_none_in_one_of_two_studies(page: str) -> None:
    assert "General has less BLEU than no attention; in the first study it has 6 more." in page
    gains = []
    for study in ("luong2015_scores", "luong2015"):
        table = json.loads((ROOT / "docs" / "results" / f"study_{study}.json").read_text(encoding="utf-8"))
        scores = {row[0]: float(row[table["columns"].index("BLEU")].split()[0]) for row in table["rows"]}
        general = next(name for name in scores if name in ("general, input feeding", "global (general), input feeding"))
        gains.append(scores[general] - scores["no attention"])
    assert gains[0] < 0
    assert round(gains[1]) == 6


def test_scaled_dot_beats_dot_at_another_rate_too(page: str) -> None:
    assert "In a control at half the learning rate, where both learn less in as many updates, it does by 6.0." in page
    settings = [
        yaml.safe_load((ROOT / "studies" / f"luong2015_scores{control}.yaml").read_text(encoding="utf-8")) for control in ("", "_rate")
    ]
    rates = [each["settings"]["training"].pop("learning_rate") for each in settings]
    assert rates[0] == 2 * rates[1]
    settings[0]["data"]["multi30k"].pop("published")
    assert all(settings[0][part] == settings[1][part] for part in ("settings", "budget", "config", "data"))
    runs, control = runs_of("luong2015_scores"), runs_of("luong2015_scores_rate")
    means = {
        name: statistics.mean(control[f"multi30k-{name}-{seed}"]["scores"]["BLEU"] for seed in SEEDS) for name in ("dot", "scaled_dot")
    }
    assert round(means["scaled_dot"] - means["dot"], 1) == 6.0
    for name, mean in means.items():
        assert settings[0]["variants"][name] == settings[1]["variants"][name]
        assert mean < min(runs[f"multi30k-{name}-{seed}"]["scores"]["BLEU"] for seed in SEEDS)


def table_of(name: str) -> list[dict[str, Any]]:
    found = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    return [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]


@pytest.mark.parametrize(
    ("study", "words"),
    [
        ("li2019_plateau", "At 28 of the thirty its"),
        ("li2019_plateau_long", "(results/study_li2019_plateau_long_loss.json) at 27, by up to 0.06."),
    ],
)
def test_the_crossed_network_has_a_higher_loss_over_the_last_checkpoints(page: str, study: str, words: str) -> None:
    rows = [[float(each) for each in row["difference, by seed"].split(", ")] for row in table_of(f"study_{study}_loss")][-30:]
    assert words in page
    behind = sum(min(row) > 0 for row in rows)
    assert f"{behind} of the thirty" in words or f"at {behind}," in words
    assert round(max(map(max, rows)), 2) == {"li2019_plateau": 0.05, "li2019_plateau_long": 0.06}[study]


def test_what_a_choice_among_checkpoints_loses(page: str) -> None:
    rows = table_of("checkpoint_choice")
    figures = {
        (row["updates"], row["variant"].split()[0], what): [float(each) for each in row[what].split(", ")]
        for row in rows
        for what in ("lost, BLEU", "range, BLEU", "rise, BLEU", "agreement")
    }
    short, long = "3,800", "9,000"
    assert "That validation chooses better among its checkpoints is not shown either." in page
    assert all(float(row["p, corrected"]) > 0.05 for row in rows if row["difference"] is not None)
    assert "they gain about 1 BLEU from the first third to the last, less than single checkpoints differ" in page
    rise, apart = (
        np.array([figures[long, variant, what] for variant in ("Transformer", "crossed")]) for what in ("rise, BLEU", "range, BLEU")
    )
    assert rise.min() > 0.5
    assert rise.max() < 1.5
    assert (rise < apart).all()
    assert min(figures[short, "Transformer", "rise, BLEU"] + figures[short, "crossed", "rise, BLEU"]) >= 2
    assert "loses 1.2 BLEU with one seed of the Transformer and nothing with the others, and 0.2 to 0.7 with the crossed network." in page
    assert sorted(figures[long, "Transformer", "lost, BLEU"]) == [0, 0, pytest.approx(1.2, abs=0.05)]
    crossed = figures[long, "crossed", "lost, BLEU"]
    assert (round(min(crossed), 1), round(max(crossed), 1)) == (0.2, 0.7)
    assert "Validation ranks the checkpoints of either less reliably than after fewer updates" in page
    for variant in ("Transformer", "crossed"):
        assert max(figures[long, variant, "agreement"]) < min(figures[short, variant, "agreement"])


def test_non_local_co_attention_beside_multi_head_attention(page: str) -> None:
    held = json.loads((ROOT / "docs" / "results" / "co_attention.json").read_text(encoding="utf-8"))
    right: dict[str, list[np.ndarray]] = {}
    for run in held["runs"]:
        right.setdefault(run["attention"], []).append(np.array([[100.0 * int(each), 1.0] for each in run["right"]]))
    scores = {name: [run_score("mean", run) for run in runs] for name, runs in right.items()}
    multi = scores.pop("multi-head, 4 heads")
    rows = {row["attention"]: row for row in table_of("co_attention")}
    assert {len(runs) for runs in right.values()} == {5}
    assert "Multi-head attention answers nearly all questions with every seed." in page
    assert min(run.score for run in multi) > 99
    for name, runs in scores.items():
        assert compare_seeds(runs, multi).difference == pytest.approx(rows[name]["difference"], abs=0.051)
        assert rows[name]["difference"] < 0
    forms = [row for name, row in rows.items() if name.startswith("non-local")]
    assert "for three of the four forms the difference is shown, for dot products it is not." in page
    assert [row["attention"] for row in forms if float(row["p, corrected"]) >= 0.05] == ["non-local dot"]
    assert len(forms) == 4
    assert "with dot products one is as good as multi-head attention." in page
    assert max(run.score for run in scores["non-local dot"]) >= min(run.score for run in multi)
    assert "by the mean of the other input, it is just under a half." in page
    assert all(40 < run.score < 50 for run in scores["mean of the other input"])
