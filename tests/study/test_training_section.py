"""What a report says of trainings and of single runs: from results and settings that are known, also those of earlier versions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from regard.config.study import StudyCell
from regard.study import build_report, write_report
from regard.study.report import Report
from regard.study.report_files import markdown, page
from regard.study.results import CONFIGS, result_file
from regard.study.training_section import Scored, most_frequent_notes, run_table, scored_weights, training_notes, training_table
from tests.study.test_report import put, right, study_of

TRAINING = {"metric": "accuracy", "average_checkpoints": 1, "ema_decay": None, "optimizer": "adamw", "epochs": 9, "max_updates": None}
CURVE = [{"step": 5, "loss": 1.0, "accuracy": 0.5}, {"step": 9, "loss": 3.0, "accuracy": 0.75}, {"step": 14, "loss": 4.0, "accuracy": 0.75}]


def keep(folder: Path, data: str, variant: str, seed: int, number: int = 20, **more: Any) -> None:
    """Keep a result with more figures, and the settings of its run: `training` changes these."""
    cell = StudyCell(data=data, variant=variant, seed=seed)
    put(folder, "classification", data, variant, seed, right(number))
    result = json.loads(result_file(folder, cell).read_text())
    training = TRAINING | more.pop("training", {})
    scores = {"accuracy": number / 0.6, "a": 1.5}
    result_file(folder, cell).write_text(json.dumps({**result, "scores": scores, "curve": CURVE, **more}))
    (folder / CONFIGS).mkdir(exist_ok=True)
    tree = {"model": {"encoder": {"type": "rnn"}}, "training": training}
    (folder / CONFIGS / f"{cell.name}.yaml").write_text(json.dumps(tree))


def report_of(folder: Path) -> Report:
    return build_report(study_of("classification", seeds=(1, 2)), folder, samples=10)


def test_every_run_is_a_row_of_plain_numbers(tmp_path: Path) -> None:
    keep(tmp_path, "a", "plain", 2, parameters=123456, updates=14, seconds=1.25)
    keep(tmp_path, "a", "plain", 1, scored={"metric": "loss", "value": 0.5, "updates": [5, 9]})
    put(tmp_path, "classification", "b", "good", 1, right(3))
    paths = {path.name: path for path in write_report(report_of(tmp_path), tmp_path)}
    head, *rows = list(csv.reader(paths["runs.csv"].read_text(encoding="utf-8").splitlines()))
    assert head[:8] == ["data", "variant", "seed", "accuracy", "a", "parameters", "updates", "seconds"]
    assert head[8:] == ["validation_metric", "validation_score", "scored_update", "averaged_evaluations"]
    assert rows == [
        ["a", "plain", "1", repr(20 / 0.6), "1.5", "", "", "", "loss", "0.5", "9", "2"],
        ["a", "plain", "2", repr(20 / 0.6), "1.5", "123456", "14", "1.25", "accuracy", "0.75", "9", "1"],
        ["b", "good", "1", "5.0", *[""] * 8],
    ]
    for text in (markdown(report_of(tmp_path)), page(report_of(tmp_path))):
        assert "runs.csv" in text


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"training.metric": "accuracy"}, Scored("accuracy", 0.75, 9, 1)),
        ({"training.metric": "loss"}, Scored("loss", 1.0, 5, 1)),
        ({"training.metric": "loss", "training.average_checkpoints": 3}, None),
        ({"training.metric": "bleu"}, None),
        ({}, None),
    ],
)
def test_earlier_results_tell_the_scored_weights_by_their_evaluations(training: dict[str, Any], expected: Scored | None) -> None:
    assert scored_weights({"curve": CURVE}, training) == expected


def test_a_report_describes_the_training(tmp_path: Path) -> None:
    for variant, rate in (("plain", 0.5), ("good", 0.25)):
        for seed in (1, 2):
            keep(tmp_path, "a", variant, seed, training={"learning_rate": rate}, training_examples=5000, validation_examples=452)
    report = report_of(tmp_path)
    assert training_table(report) == (
        ["setting, or variant", "value, or settings of its own"],
        [
            ["model.encoder.type", "rnn"],
            ["training.optimizer", "adamw"],
            ["training.learning_rate", "0.5 (plain); 0.25 (good)"],
            ["training.epochs", "9"],
            ["plain", "no settings of its own"],
            ["good", "no settings of its own"],
        ],
    )
    notes = training_notes(report)
    assert notes == [
        "Seeds: 1, 2.",
        "Scored weights: those of the best evaluation by validation accuracy.",
        "Training and validation examples: 5,000 and 452 (a).",
    ]
    for text in (markdown(report), page(report)):
        assert text.index("Training") > text.index("mean ± standard deviation")
        assert all(note in text for note in notes)
        assert "0.5 (plain); 0.25 (good)" in text
        assert "CITATION.cff" in text


def test_a_report_says_what_a_variant_sets_and_how_the_score_is_computed(tmp_path: Path) -> None:
    keep(tmp_path, "a", "good", 2, signatures={"accuracy": "n:60", "other": "x"})
    study = study_of("classification", seeds=(1, 2))
    settings = {"model": {"encoder": {"type": "bow"}, "hops": 4000}, "training": {"tensorboard": True}}
    changed = study.variants["good"].model_copy(update={"settings": settings, "title": "Four hops"})
    report = build_report(study.model_copy(update={"variants": {**study.variants, "good": changed}}), tmp_path, samples=10)
    assert ["Four hops", "model.encoder.type=bow, model.hops=4000, training.tensorboard=true"] in (training_table(report) or ([], []))[1]
    assert training_notes(report)[:2] == ["Seeds: 2.", "accuracy: n:60."]


def test_a_report_says_what_a_study_sets_for_all(tmp_path: Path) -> None:
    for variant, decay in (("plain", 0.5), ("good", 0.75)):
        keep(tmp_path, "a", variant, 1, training={"ema_decay": decay, "betas": [0.5, 0.9], "tensorboard": True, "workers": 3})
    shared = {"training": {"ema_decay": 0.5, "betas": [0.5, 0.9], "tensorboard": True, "workers": 3}, "data": {"max_length": 9}}
    study = study_of("classification", seeds=(1,)).model_copy(update={"settings": shared})
    rows = dict((training_table(build_report(study, tmp_path, samples=10)) or ([], []))[1])
    told = {
        name: value for name, value in rows.items() if name.removeprefix("training.") in ("ema_decay", "betas", "tensorboard", "workers")
    }
    assert told == {"training.ema_decay": "0.5 (plain); 0.75 (good)", "training.betas": "[0.5, 0.9]", "training.tensorboard": "true"}
    assert "data.max_length" not in rows


def test_a_report_says_how_many_runs_were_best_at_their_last_evaluation(tmp_path: Path) -> None:
    rising = [{"step": 4, "loss": 2.0, "accuracy": 0.5}, {"step": 8, "loss": 2.5, "accuracy": 0.75}]
    equal = [{"step": 4, "loss": 2.0, "accuracy": 0.5}, {"step": 8, "loss": 1.5, "accuracy": 0.5}]
    falling = [{"step": 4, "loss": 2.0, "accuracy": 0.5}, {"step": 8, "loss": 1.5, "accuracy": 0.25}]
    for count, curve in enumerate((rising, equal, falling), start=1):
        for seed, own in ((1, curve), (2, CURVE)):
            keep(tmp_path, "a", "plain", seed, curve=own, epochs=1.02 * seed)
        notes = training_notes(report_of(tmp_path))
        assert "Best at the last evaluation, in its metric or loss: 1 of 2 runs. Longer training may improve their scores." in notes, count
        assert f"Each run: 1.0 to 2.0 epochs, 2 to {len(CURVE)} evaluations (a)." in notes


def test_settings_that_differ_are_told_by_data_set_where_they_can_be(tmp_path: Path) -> None:
    for data, updates in (("a", 50), ("b", 80)):
        for seed in (1, 2):
            changes = {"epochs": updates, "max_updates": updates, "warmup_updates": seed, "ema_decay": 0.5, "average_checkpoints": seed}
            averaged = {"metric": "accuracy", "value": 0.5, "updates": [5, 9][:seed]}
            keep(tmp_path, data, "plain", seed, training=changes, scored=averaged)
    rows = dict((training_table(report_of(tmp_path)) or ([], []))[1])
    assert rows["training.max_updates"] == "50 (a); 80 (the other)"
    assert rows["training.warmup_updates"] == "differs between runs: 1, 2"
    assert "training.epochs" not in rows, "the budget in updates says it"
    best, moving = "those of the best evaluation by validation accuracy", "each a moving average with decay 0.5"
    mean = f"the mean of the last 2 evaluations, or {best} if it is better"
    assert training_notes(report_of(tmp_path))[1:] == [f"Scored weights: {best}, {moving}; or {mean}, {moving} (a mean in 2 of 4 runs)."]


def test_without_settings_a_report_says_nothing_of_the_training(tmp_path: Path) -> None:
    put(tmp_path, "classification", "a", "plain", 1, right(3))
    report = report_of(tmp_path)
    assert (training_table(report), training_notes(report), most_frequent_notes(report)) == (None, ["Seeds: 1."], [])
    assert len(run_table(report)) == 2
    assert "Training:" not in markdown(report)
    assert "Most frequent" not in markdown(report)


def test_a_variant_that_is_not_above_the_most_frequent_class_is_named(tmp_path: Path) -> None:
    frequent = {"label": "yes", "accuracy": 50.0}
    for seed, number in ((1, 30), (2, 31)):
        keep(tmp_path, "a", "good", seed, number, most_frequent=frequent)
    for seed, number in ((1, 29), (2, 31)):
        keep(tmp_path, "a", "plain", seed, number, most_frequent=frequent)
    keep(tmp_path, "b", "plain", 1, 30, most_frequent={"label": "no", "accuracy": 27.56})
    assert most_frequent_notes(report_of(tmp_path)) == [
        "Most frequent class: 50.0 % (a), 27.6 % (the other) (the accuracy of always giving the most frequent label of the training data).",
        "The mean accuracy does not exceed that of the most frequent class: plain (a).",
    ]
    assert "does not exceed that of the most frequent class: plain (a)." in markdown(report_of(tmp_path))
