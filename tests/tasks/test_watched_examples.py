"""`training.watch`: every task records the attention of the same validation examples, and the file survives a kill."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import validate
from regard.errors import ConfigError, RegardError
from regard.models import EncoderDecoder
from regard.tasks import train_translation
from regard.tasks.attention_records import save_records
from regard.tasks.captioning_training import train_captioning
from regard.tasks.language_training import train_language
from regard.tasks.watched_examples import MAX_WEIGHTS, choose_examples
from regard.training import TrainResult
from regard.viewer import group_by_example, read_history
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

TRAINING: dict[str, Any] = {"max_updates": 6, "evaluate_every": 2, "save_every": 2, "watch": 2}


class Killed(BaseException):
    """Stands for a process that ends here."""


Train = Callable[..., TrainResult]


def killer(at: str | None) -> dict[str, Any]:
    def on_event(name: str) -> None:
        if name == at:
            raise Killed

    return {"on_event": on_event}


def translation(folder: Path, at: str | None = None, *, model: str = "gru", **training: Any) -> TrainResult:
    folder.mkdir(exist_ok=True)
    settings = {"batch_tokens": 300, **TRAINING, **training}
    data = {"max_length": 37, **tiny.write_pairs(folder), "valid_size": 5}
    return train_translation(tiny.configuration(model=tiny.FAMILIES[model], data=data, training=settings), folder / "run", **killer(at))


def captioning(folder: Path, at: str | None = None, *, model: str = "soft", **training: Any) -> TrainResult:
    captions, _ = tiny_captions.write_set(folder, count=31)
    settings = {"batch_tokens": 60, **TRAINING, **training}
    config = tiny_captions.configuration(captions, tiny_captions.FAMILIES[model], training=settings, data={"valid_size": 4})
    return train_captioning(config, folder / "run", **killer(at))


def sentences(folder: Path, at: str | None = None, *, task: str, model: str, **training: Any) -> TrainResult:
    models = tiny_sentences.CLASSIFIERS if task == "classification" else tiny_sentences.ENTAILERS
    config = tiny_sentences.configuration(folder, task=task, model=models[model], training={**TRAINING, **training})
    return tiny_sentences.train(config, folder / "run", **killer(at))


def language(folder: Path, at: str | None = None, *, model: str = "key_value_predict", **training: Any) -> TrainResult:
    if not (folder / "text").exists():
        tiny_language.write_text(folder)
    data = {name: str(folder / name) for name in ("text", "valid_text")}
    config = tiny_language.configuration(data=data, model={"attention": model}, training={**TRAINING, **training})
    return train_language(config, folder / "run", **killer(at))


RUNS: dict[str, tuple[Train, dict[str, Any]]] = {
    "translation gru": (translation, {"model": "gru"}),
    "translation area": (translation, {"model": "area"}),
    "translation crossed": (translation, {"model": "crossed"}),
    "captioning soft": (captioning, {"model": "soft"}),
    "captioning hard": (captioning, {"model": "hard"}),
    "captioning non-local": (captioning, {"model": "non-local"}),
    "captioning transformer": (captioning, {"model": "transformer areas"}),
    "classification": (sentences, {"task": "classification", "model": "structured"}),
    "classification transformer": (sentences, {"task": "classification", "model": "transformer"}),
    "entailment": (sentences, {"task": "entailment", "model": "gated"}),
    "entailment crossed": (sentences, {"task": "entailment", "model": "crossed"}),
    "lm": (language, {}),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_task_records_the_same_examples_at_each_evaluation_and_a_kill_changes_no_byte(tmp_path: Path, name: str) -> None:
    run, parts = RUNS[name]
    result = run(tmp_path / "one", **parts)
    history = read_history(tmp_path / "one" / "run")
    groups = group_by_example(history)
    assert len(groups) == 2
    for group in groups:
        points = [record.point for record in group]
        assert [point and point.update for point in points] == [0, 2, 4, 6]
        assert [point is not None and point.loss is not None for point in points] == [False, True, True, True]
        assert len({tuple(record.matrix().key) for record in group}) == 1
        assert len({record.matrix().weights.shape for record in group}) == 1
        weights = [record.matrix().weights for record in group]
        assert all(matrix.sum() > 0 for matrix in weights)
        changed = any((a != b).any() for a, b in itertools.pairwise(weights))
        assert changed or name == "captioning hard", "nothing was learned; a hard choice may stay in a few updates"
    with pytest.raises(Killed):
        run(tmp_path / "two", "record 4", **parts)
    assert run(tmp_path / "two", **parts).weights_sha256 == result.weights_sha256
    files = [(tmp_path / folder / "run" / "attention.jsonl").read_bytes() for folder in ("one", "two")]
    assert files[0] == files[1]


def test_recording_changes_no_weight(tmp_path: Path) -> None:
    watched, plain = translation(tmp_path / "watched"), translation(tmp_path / "plain", watch=0)
    assert watched.weights_sha256 == plain.weights_sha256
    assert not (tmp_path / "plain" / "run" / "attention.jsonl").exists()


def test_workers_change_no_byte(tmp_path: Path) -> None:
    found = []
    for workers in (1, 2):
        translation(tmp_path / str(workers), model="transformer", workers=workers, micro_batches=2)
        found.append((tmp_path / str(workers) / "run" / "attention.jsonl").read_bytes())
    assert found[0] == found[1]


def test_the_image_is_stored_once_and_shown_at_every_update(tmp_path: Path) -> None:
    captioning(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "run" / "attention.jsonl").read_text().splitlines()]
    assert [line["items"]["image"]["image"] is not None for line in lines] == [True] * 2 + [False] * 6
    images = [record.items["image"].image for record in read_history(tmp_path / "run")]
    assert images == images[:2] * 4
    assert len(set(images)) == 2


def test_one_forward_pass_per_example_and_evaluation_is_all_it_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    run = EncoderDecoder.alignment_and_maps

    def counted(self: EncoderDecoder[Any], *args: torch.Tensor) -> Any:
        calls.append((args, torch.get_num_threads()))
        return run(self, *args)

    monkeypatch.setattr(EncoderDecoder, "alignment_and_maps", counted)
    threads = torch.get_num_threads()
    translation(tmp_path)
    assert len(calls) == 2 * 4
    assert {count for _, count in calls} == {1}
    assert torch.get_num_threads() == threads


def test_a_history_becomes_a_page_an_animation_and_a_picture_of_the_last_update(tmp_path: Path) -> None:
    translation(tmp_path)
    history = read_history(tmp_path / "run")
    save_records(history, tmp_path / "a.html")
    first = group_by_example(history)[0]
    for name in ("a.gif", "a.png"):
        save_records(first, tmp_path / name)
    assert (tmp_path / "a.gif").read_bytes()[:6] == b"GIF89a"
    with pytest.raises(RegardError, match="found 2; choose one by --example"):
        save_records(history, tmp_path / "b.gif")


@pytest.mark.parametrize(
    ("train", "parts", "message"),
    [
        (translation, {"model": "no attention"}, "model.attention null"),
        (sentences, {"task": "classification", "model": "last"}, "model.pooling last"),
        (language, {"model": "none"}, "model.attention none"),
    ],
)
def test_a_model_without_attention_is_refused_before_anything_is_written(
    tmp_path: Path, train: Train, parts: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"training\.watch: this model has no attention to record \({message}"):
        train(tmp_path, **parts)
    assert not (tmp_path / "run").exists()
    train(tmp_path, **parts, watch=0)


def test_a_number_that_cannot_be_is_refused() -> None:
    for number in (-1, 65, "all"):
        with pytest.raises(ConfigError, match=r"training\.watch"):
            validate({"training": {"watch": number}}, "test")


def test_examples_of_a_fit_length_are_taken_in_their_order() -> None:
    assert choose_examples([5, 24, 25, 4, 7], 3) == [0, 1, 4]
    assert choose_examples([5, 24, 25, 4, 7], 5) == [0, 1, 2, 3, 4]
    assert choose_examples([200, 100, 50], 2) == [1, 2]
    assert choose_examples([0, 0], 2) == []


def test_maps_beyond_the_limit_are_left_out_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_WEIGHTS == 32_768
    monkeypatch.setattr("regard.tasks.translation_training.MAX_WEIGHTS", 1500)
    translation(tmp_path, model="transformer")
    record = read_history(tmp_path / "run")[-1]
    assert sum(found.weights.size for found in record.maps) <= 1500
    assert "too large for one page" in record.meta["left out"]
