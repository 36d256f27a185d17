"""The confidence of a translation: fitted to what is known, stored with the run, and said with each translation."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config import DecodingConfig, TranslationConfig, dump_config
from regard.errors import CheckpointError
from regard.tasks import Translator, run_folder, train_translation, translation_training
from regard.tasks.confidence import (
    FEATURES,
    FILE,
    MIN_PAIRS,
    Calibration,
    calibrate,
    figures,
    read_calibration,
    rising_curve,
    write_calibration,
)
from regard.tasks.confidence_training import calibrate_on, observed
from regard.tasks.run_folder import change_decoding, read_config
from tests.serve.driver import Site
from tests.tasks.tiny import FAMILIES, TEXTS, configuration, trained, translator, write_pairs

FLAT = Calibration([0.0] * 6, [1.0] * 6, [1.0, 0, 0, 0, 0, 0], 0.0, [(-9.0, 10.0), (0.0, 90.0)], 101)


def test_the_figures_are_those_of_the_log_probabilities() -> None:
    half = float(np.log(0.5))
    found = figures([-0.1, -3.0, half, -0.2, -1.0], 2)
    assert found == pytest.approx([(-4.3 + half) / 5, -3.0, -2.0, 2 / 5, np.log(5), np.log(5 / 2)])


def test_a_calibration_is_right_where_scores_follow_the_figures() -> None:
    draw = np.random.default_rng(3)
    rows = draw.normal(size=(700, 6))
    true = 100 / (1 + np.exp(-rows[:, 0] - 2 * rows[:, 3]))
    scores = np.clip(true + draw.normal(scale=7, size=700), 0, 100)
    found = calibrate(rows[:500], scores[:500])
    assert found.pairs == 500
    expected = found.expect_all(rows[500:])
    assert np.abs(expected - true[500:]).mean() < 4
    # The mean of the scores alone would be off by 24.
    assert np.abs(true - true.mean()).mean() > 20


def test_a_curve_rises_and_keeps_the_mean() -> None:
    draw = np.random.default_rng(5)
    places = np.arange(101.0)
    values = places + draw.normal(scale=20, size=101)
    curve = rising_curve(places, values)
    assert all(low < high and a < b for (low, a), (high, b) in itertools.pairwise(curve))
    assert 3 < len(curve) < 60
    assert rising_curve(-places, np.ones(101)) == [(-50.0, 1.0)]
    steps = rising_curve(places, places, 20)
    assert (steps[0], steps[1], steps[-2], steps[-1]) == ((9.5, 9.5), (20.0, 20.0), (80.0, 80.0), (90.5, 90.5))
    assert rising_curve(places[:30], places[:30], 20) == [(14.5, 14.5)]


def test_one_sentence_does_not_decide_for_all_sure_ones() -> None:
    rows = np.zeros((200, len(FEATURES)))
    rows[:, 0] = np.linspace(-2, -0.1, 200)
    scores = 60 + 10 * rows[:, 0]
    scores[-1] = 100.0
    found = calibrate(rows, scores)
    rows[:, 0] = 0.0  # surer than all
    assert 58 < found.expect_all(rows[:1])[0] < 62


def test_a_run_says_it_with_each_translation_and_a_blank_line_has_none(tmp_path: Path) -> None:
    run = trained(tmp_path)
    assert not (run / FILE).exists()  # too few validation pairs
    assert "confidence" not in Translator.open(run).translate(TEXTS)[0].to_json()
    write_calibration(run, FLAT)
    opened = Translator.open(run)
    found = opened.translate([*TEXTS, " "])
    for item in found[:-1]:
        mean = float(np.mean(item.hypotheses[0].log_probs))
        assert item.confidence == pytest.approx(FLAT.expect_all(np.array([[mean, 0, 0, 0, 0, 0]]))[0])
    assert found[-1].confidence is None
    assert found[0].to_json()["confidence"] == round(found[0].confidence or 0, 2)
    served = Site(opened).post("/translate", {"text": [*TEXTS, " "]}).json["translations"]
    assert [item["confidence"] for item in served] == [item.confidence for item in found]
    assert Translator.open(run, run).translate(TEXTS)[0].confidence is None


def test_a_training_with_enough_validation_pairs_stores_it(tmp_path: Path) -> None:
    files = {}
    for side, lines in zip(("valid_source", "valid_target"), (TEXTS, TEXTS[::-1]), strict=True):
        (tmp_path / side).write_text("\n".join(lines * (MIN_PAIRS // len(lines) + 1)) + "\n", encoding="utf-8")
        files[side] = str(tmp_path / side)
    run = trained(tmp_path, data=files)
    stored = read_calibration(run)
    assert stored is not None
    assert stored.pairs >= MIN_PAIRS
    rows, scores = observed(Translator.open(run), list(zip(TEXTS, TEXTS[::-1], strict=True)))
    assert stored.expect_all(rows).mean() == pytest.approx(scores.mean(), abs=5)


def test_other_decoding_settings_need_another_calibration_and_no_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, data=validated(tmp_path), training={"keep_checkpoints": 2})
    before, weights = read_calibration(run), (run / "model" / "model.safetensors").read_bytes()
    shorter = read_config(run, TranslationConfig).model_copy(update={"decoding": DecodingConfig(min_length=3, max_length=3)})
    calls, seal = 0, run_folder.seal_run_files

    def dies(*given: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        seal(*given)

    monkeypatch.setattr(run_folder, "seal_run_files", dies)
    with pytest.raises(CheckpointError, match=r"run: its decoding settings cannot be changed \(.*No space left"):
        change_decoding(run, shorter, made_by_decoding=(FILE,))
    change_decoding(run, shorter, made_by_decoding=(FILE,))
    assert read_calibration(run) is None
    assert train_translation(shorter, run).step == 2
    assert (run / "model" / "model.safetensors").read_bytes() == weights
    assert read_config(run, TranslationConfig).decoding.max_length == 3
    assert read_calibration(run) not in (None, before)
    once = read_calibration(run)
    change_decoding(run, shorter, made_by_decoding=(FILE,))
    assert read_calibration(run) == once


def validated(folder: Path) -> dict[str, str]:
    """Write as many validation pairs as a calibration needs; return the `data` part of a configuration."""
    files = {side: folder / side for side in ("valid_source", "valid_target")}
    for path in files.values():
        path.write_text("\n".join(TEXTS * (MIN_PAIRS // len(TEXTS) + 1)) + "\n", encoding="utf-8")
    return {side: str(path) for side, path in files.items()}


@pytest.mark.parametrize("step", ["choose_attention", "calibrate_on"])
def test_a_signal_while_a_trained_run_is_measured_is_told_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    data = {**write_pairs(tmp_path), **validated(tmp_path)}
    config = configuration(model=FAMILIES["transformer"], data={"max_length": 37, **data}, training={"max_updates": 2, "batch_tokens": 300})
    measure = getattr(translation_training, step)

    def interrupted(*given: Any, **named: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return measure(*given, **named)

    monkeypatch.setattr(translation_training, step, interrupted)
    result = train_translation(config, tmp_path / "run")
    assert (result.reason, result.interrupted, result.step) == ("interrupted", signal.SIGTERM, 2)
    assert read_calibration(tmp_path / "run") is None
    monkeypatch.undo()
    assert train_translation(config, tmp_path / "run").weights_sha256 == result.weights_sha256
    assert read_calibration(tmp_path / "run") is not None


def test_two_processes_of_which_one_calibrates(tmp_path: Path) -> None:
    data = {**write_pairs(tmp_path), **validated(tmp_path)}
    config = configuration(data={"max_length": 37, **data}, training={"max_updates": 2, "batch_tokens": 300})
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "regard"]
    command += ["train", "translation", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]
    settings = {"REGARD_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert read_calibration(tmp_path / "run") is not None


def test_too_few_pairs_are_no_calibration() -> None:
    assert calibrate_on(translator(), list(zip(TEXTS, TEXTS, strict=True))) is None


WRONG: list[dict[str, Any]] = [
    {"curve": []},
    {"mean": "x"},
    {"scale": [0.0] * 6},
    {"mean": [0.0]},
    {"bias": None},
    {"weights": [1e999] * 6},
]


@pytest.mark.parametrize("text", ["{", "[]", '{"mean": []}', *(json.dumps({**FLAT._asdict(), **part}) for part in WRONG)])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(CheckpointError, match=r"confidence\.json: damaged"):
        read_calibration(tmp_path)
