"""Settings without effect are named, and truly have none: for every rule, a training with the setting ends with the same weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner

from regard.cli import app
from regard.config import TASKS, LanguageConfig, RunConfig, changed_values, load_config, merge_configs, submodels, validate
from regard.config.study import StudyConfig, load_study
from regard.config.unused import unused_in_study, unused_settings
from regard.tasks.table import TASKS as TRAININGS
from regard.tasks.train import train_task
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

ROOT = Path(__file__).parents[2]
LUONG = {"type": "rnn", "embed_dim": 6, "encoder_dim": 3, "decoder_dim": 6, "readout_dim": 5}
GRID = {"type": "transformer", "embed_dim": 8, "ff_dim": 8, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
# Of each rule: task, the settings under which it holds, the setting, a value that is not its default.
CASES: list[tuple[str, dict[str, Any], str, Any]] = [
    ("lm", {"training": {"optimizer": "sgd"}}, "training.betas", [0.5, 0.6]),
    ("lm", {}, "training.rho", 0.5),
    ("lm", {"training": {"optimizer": "sgd"}}, "training.eps", 0.1),
    ("lm", {}, "training.final_fraction", 0.5),
    ("lm", {"vocabulary": {"kind": "bpe"}}, "vocabulary.min_count", 3),
    ("lm", {"model": {"attention": "none"}}, "model.order", 5),
    ("lm", {"model": {"attention": "none"}}, "model.window", 2),
    ("lm", {"model": {"attention": "ngram"}}, "model.normalizer", "sparsemax"),
    ("lm", {"model": {"attention": "ngram"}}, "model.attention_dropout", 0.5),
    ("lm", {"data": {"context": "separate"}}, "data.shuffle", True),
    ("lm", {"data": {"context": "continuous"}}, "training.batch_tokens", 9),
    ("lm", {"data": {"context": "separate"}}, "training.chunk_length", 4),
    ("lm", {"data": {"context": "separate"}}, "training.streams", 2),
    ("lm", {"data": {"context": "separate"}}, "training.stream_groups", 2),
    ("translation", {"model": {**LUONG, "attention": {"score": "dot"}}}, "model.attention.attention_dim", 3),
    ("translation", {"model": {**LUONG, "attention": {"score": "dot"}}}, "model.attention.radius", 1),
    ("translation", {"model": {**LUONG, "attention": {"score": "dot"}}}, "model.attention.max_source_length", 5),
    ("translation", {"model": {**GRID, "decoder": "recurrent", "recurrent": {"dim": 8}}}, "model.decoder_layers", 2),
    ("translation", {"model": GRID}, "model.recurrent.dim", 8),
    ("translation", {}, "training.links_unit", "character"),
    ("translation", {}, "training.links_weight", 0.5),
    ("translation", {}, "training.links_layer", 1),
    ("translation", {}, "training.links_head", 1),
    ("translation", {}, "training.links_step", "reads"),
    ("captioning", {}, "model.hard.half_soft", 0.9),
    ("captioning", {}, "model.penalty", "mean"),
    ("captioning", {"model": GRID}, "model.area_layers", 1),
    ("classification", {"model": {"pooling": "max"}}, "model.hops", 2),
    ("classification", {"model": {"pooling": "max"}}, "model.attention_dim", 3),
    ("classification", {"model": {"pooling": "max"}}, "model.normalizer", "sparsemax"),
    ("classification", {"model": {"pooling": "mean"}}, "model.penalty", 0.5),
    ("classification", {}, "model.penalty_reduction", "sum"),
    ("entailment", {"model": {"fusion": "features"}}, "model.fusion_dim", 3),
]


def rules(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each setting with a rule, and the rule."""
    for name, field in model.model_fields.items():
        if field.json_schema_extra is not None:
            yield prefix + name, str(field.json_schema_extra)
        for inner in submodels(field.annotation):
            yield from rules(inner, f"{prefix}{name}.")


def test_every_rule_has_a_case() -> None:
    known = {(task, path): rule for task, kind in TASKS.items() for path, rule in rules(kind)}
    cased = {known[task, next(key for key in (path, path.rpartition(".")[0]) if (task, key) in known)] for task, _, path, _ in CASES}
    assert set(known.values()) == cased


def configured(folder: Path, task: str, settings: dict[str, Any]) -> RunConfig:
    """Return small settings of a task, on files written to a folder."""
    match task:
        case "lm":
            base = tiny_language.configuration(data=tiny_language.write_text(folder))
        case "translation":
            base = tiny.configuration(data=tiny.write_pairs(folder), training={"batch_tokens": 300})
        case "captioning":
            base = tiny_captions.configuration(tiny_captions.write_set(folder)[0])
        case _:
            base = tiny_sentences.configuration(folder, task=task)
    tree = base.model_dump(mode="json", exclude_unset=True)
    if "type" in settings.get("model", {}):
        tree.pop("model")
    return validate(merge_configs(tree, {"training": {"max_updates": 2}}, settings), "test", kind=TASKS[task])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what trains a configuration and returns its weights, once per configuration."""

    @cache
    def trained(task: str, settings: str) -> dict[str, Tensor]:
        folder = tmp_path_factory.mktemp("unused")
        train_task(TRAININGS[task].training, configured(folder, task, json.loads(settings)), folder / "run")
        return load_file(folder / "run" / "model" / "model.safetensors")

    return lambda task, settings: trained(task, json.dumps(settings))


@pytest.mark.parametrize(("task", "settings", "path", "value"), CASES, ids=[f"{task}-{path}" for task, _, path, _ in CASES])
def test_an_unused_setting_is_named_and_changes_nothing(
    tmp_path: Path, weights: Any, task: str, settings: dict[str, Any], path: str, value: Any
) -> None:
    given: Any = value
    for key in reversed(path.split(".")):
        given = {key: given}
    both = merge_configs(settings, given)
    config = configured(tmp_path, task, both)
    assert list(changed_values(configured(tmp_path, task, settings), config)) == [path]
    (note,) = (note for key, note in unused_settings(config).items() if f"{path}.".startswith(f"{key}."))
    assert note.startswith((f"{path}=", f"{path.rpartition('.')[0]} has no effect: "))
    plain, changed = weights(task, settings), weights(task, both)
    assert plain.keys() == changed.keys()
    assert all(plain[name].equal(changed[name]) for name in plain)


def test_a_used_or_default_setting_is_not_named() -> None:
    assert not unused_settings(load_config(None, ["model.attention.window=local_p", "model.attention.radius=3"]))
    assert not unused_settings(load_config(None, ["training.rho=0.95"], kind=LanguageConfig))
    hierarchical = ["model.attention.score=dot", "model.attention.attention_dim=3", "model.second.kind=hierarchical"]
    assert not unused_settings(load_config(None, hierarchical))


def test_training_names_unused_settings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = tiny_language.write_text(tmp_path)
    command = ["train", "lm", "--text", files["text"], "--out", str(tmp_path / "run"), "model.embed_dim=4", "model.hidden_size=4"]
    command += ["vocabulary.kind=character", "training.max_updates=1", "training.batch_tokens=64"]
    found = CliRunner().invoke(app, command)
    assert found.exit_code == 0
    assert "training.batch_tokens=64 has no effect: data.context=continuous" in caplog.messages


def test_only_what_a_variant_says_is_named() -> None:
    tree: dict[str, Any] = {"name": "s", "task": "lm", "data": {"a": {"settings": {}, "test": {"text": "a.txt"}}}, "seeds": [1, 2]}
    order = {"settings": {"model": {"order": 3}}}
    common = {"settings": {"model": {"attention": "none"}, "training": {"rho": 0.5}}}
    study = validate({**tree, **common, "variants": {"x": {}, "y": order}}, "here", kind=StudyConfig)
    assert unused_in_study(study, beside=Path()) == ["a-y-1: model.order=3 has no effect: model.attention=none"]
    study = validate({**tree, **common, "variants": {"x": {}, "y": {**order, "seeds": [2]}}}, "here", kind=StudyConfig)
    assert unused_in_study(study, beside=Path()) == ["a-y-2: model.order=3 has no effect: model.attention=none"]
    own = {"settings": {"training": {"max_updates": 7, "epochs": 3, "seed": 5}}}
    study = validate({**tree, "budget": {"updates": 2}, "variants": {"x": own}}, "here", kind=StudyConfig)
    assert unused_in_study(study, beside=Path()) == [
        "a-x-1: training.seed=5 has no effect: seeds=[1, 2]",
        "a-x-1: training.max_updates=7 has no effect: budget.updates=2",
        "a-x-1: training.epochs=3 has no effect: budget.updates=2",
    ]
    study = validate({**tree, "variants": {"x": own}}, "here", kind=StudyConfig)
    assert unused_in_study(study, beside=Path()) == ["a-x-1: training.seed=5 has no effect: seeds=[1, 2]"]


@pytest.mark.parametrize("path", sorted((ROOT / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_all_settings_of_the_variants_of_the_projects_studies_count(path: Path) -> None:
    for scale in (None, *load_study(path, data="/sets").scales):
        assert not unused_in_study(load_study(path, data="/sets", scale=scale), beside=path.parent)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_all_settings_of_the_projects_configurations_count(path: Path) -> None:
    task = path.read_text().partition("regard train ")[2].split()[0]
    assert not unused_settings(load_config(path, [], kind=TASKS[task]))
