"""The demonstration, with a hundredth of its data and none of its training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.errors import TrainingError
from regard.models import build
from regard.tasks import demo, generate
from regard.tasks.demo import demo_config, run_demo
from regard.training import TrainResult


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    def few(kind: Any, folder: Path, *, train: int, test: int, seed: int) -> list[Path]:
        return generate(kind, folder, train=train // 300, test=test // 100, seed=seed)

    def short(folder: Path) -> Any:
        config = demo_config(folder)
        return config.model_copy(update={"training": config.training.model_copy(update={"max_updates": 1})})

    monkeypatch.setattr(demo, "generate", few)
    monkeypatch.setattr(demo, "demo_config", short)


def test_its_model_is_additive_attention_of_a_size_for_two_minutes() -> None:
    config = demo_config(Path("data"))
    assert config.model.attention is not None
    assert config.model.attention.score == "additive"
    assert sum(parameter.numel() for parameter in build(config.model, source_size=300, target_size=15).parameters()) < 500_000


def test_it_leaves_a_run_a_score_a_picture_and_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    told: list[str] = []
    summary = run_demo(tmp_path / "demo", say=told.append, width=80)
    names = {"data", "run", "alignment.png", "alignment.svg", "page.html", "result.json"}
    assert {path.name for path in (tmp_path / "demo").iterdir()} == names
    assert json.loads((tmp_path / "demo" / "result.json").read_text()) == summary
    assert 0 <= summary["exact_match"] <= 100
    assert any(line.startswith("exact match on 20 held-out dates: ") for line in told)


def test_interrupted_it_leaves_with_the_signals_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)
    stopped = TrainResult(1, "interrupted", 15, {}, None, None, "", None)
    monkeypatch.setattr(demo, "train_translation", lambda config, folder: stopped)
    with pytest.raises(TrainingError, match="the same command resumes it") as left:
        run_demo(tmp_path, say=lambda line: None)
    assert left.value.exit_code == 143
