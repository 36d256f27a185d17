"""Models of the Transformer family, and LSTMs with its attention, through all that a run is: trained, opened, used, measured, looked at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.config import CrossedConfig, TransformerConfig, TranslationConfig, load_config, validate
from regard.data import read_pairs
from regard.errors import ConfigError
from regard.tasks import Translator, evaluate_translation, generate, train_translation
from regard.tasks.attention_records import translation_records
from regard.tasks.translation_evaluation import read_links
from regard.tasks.translation_run import open_translation_run
from regard.tasks.translation_training import check_translation_settings
from tests.tasks.tiny import FAMILIES, TEXTS, write_pairs

CONFIGS = Path(__file__).parents[2] / "configs"
FAMILY = ("lstm area", "transformer", "area", "area features", "crossed")


def configuration(folder: Path, model: dict[str, Any], **training: Any) -> TranslationConfig:
    tree = {
        "data": {"max_length": 37, **write_pairs(folder)},
        "vocabulary": {"kind": "character"},
        "model": model,
        "training": {"batch_tokens": 300, "save_every": 1, **training},
        "decoding": {"max_length": 13, "beam_size": 3, "batch_size": 5},
    }
    return validate(tree, "test")


@pytest.mark.parametrize("name", FAMILY)
def test_a_trained_run_translates_and_shows_where_it_looked(tmp_path: Path, name: str) -> None:
    train_translation(configuration(tmp_path, FAMILIES[name], max_updates=2), tmp_path / "run")
    run = open_translation_run(tmp_path / "run")
    assert run.config.model.type == FAMILIES[name].get("type", "rnn")
    translator = Translator(run)
    lines = [*TEXTS, "", "ein Hund"]
    together = translator.translate(lines, need_attention=True)
    assert together[5].text == ""
    for line, item in zip(lines, together, strict=True):
        (alone,) = translator.translate([line])
        assert alone.text == item.text
    for record in translation_records(tmp_path / "run", ["ein Hund bellt"]) + translation_records(
        tmp_path / "run", ["Haus"], target="sieht"
    ):
        assert record.weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    greedy = run.config.decoding.model_copy(update={"beam_size": 1, "coverage_penalty": 0.2, "precision": "bfloat16"})
    assert len(translator.translate(TEXTS, decoding=greedy)) == len(TEXTS)


@pytest.mark.parametrize(
    ("model", "epochs"),
    [
        pytest.param({"type": "transformer"}, 8, id="regular"),
        pytest.param({"type": "transformer", "area": {"max_area": 3}}, 8, id="area"),
        pytest.param({"type": "crossed", "swap_probability": 0.05}, 12, id="crossed", marks=pytest.mark.slow),
    ],
)
def test_copying_is_learned_and_attended_to(tmp_path: Path, model: dict[str, Any], epochs: int) -> None:
    generate("copy", tmp_path, train=3000, test=100, seed=11)
    config = validate(
        {
            "data": {"source": str(tmp_path / "train.source"), "target": str(tmp_path / "train.target"), "valid_size": 50},
            "vocabulary": {"kind": "word"},
            "model": {"embed_dim": 48, "ff_dim": 96, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, **model},
            "training": {"epochs": epochs, "batch_tokens": 600, "learning_rate": 0.008, "schedule": "cosine", "warmup_updates": 50},
            "decoding": {"beam_size": 2},
        },
        "test",
    )
    train_translation(config, tmp_path / "run")
    pairs = read_pairs(tmp_path / "test.source", tmp_path / "test.target")
    evaluation = evaluate_translation(Translator.open(tmp_path / "run"), pairs, links=read_links(tmp_path / "test.links", "character"))
    scores = {score.name: score.value for score in evaluation.scores}
    assert scores["exact match"] >= 90
    assert scores["AER"] <= 20


def test_a_run_folder_of_before_the_families_is_read_as_recurrent(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("model: {cell: lstm, attention: null}\n")
    (tmp_path / "typed.yaml").write_text("model: {type: rnn, cell: lstm, attention: null}\n")
    old = load_config(tmp_path / "old.yaml")
    assert old == load_config(tmp_path / "typed.yaml")
    assert old.model.type == "rnn"
    assert not old.model.attends


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.type=transformer", "model.cell=gru"], "model.cell: unknown key: a setting of model.type=rnn"),
        (["model.type=crossed", "model.area.max_are=3"], "model.area.max_are: unknown key; did you mean model.area.max_area?"),
        (["model.type=lstm"], "expected rnn, transformer or crossed"),
        (["model.type=transformer", "model.embed_dim=9"], "model: embed_dim (9) must be a multiple of num_heads (4)"),
        (["model.type=transformer", "model.area.max_area=0"], "model.area.max_area: expected at least"),
    ],
)
def test_a_wrong_setting_of_a_family_is_named_by_its_key(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("model", [TransformerConfig(), CrossedConfig()])
def test_shared_tables_need_a_shared_vocabulary(model: TransformerConfig | CrossedConfig) -> None:
    check_translation_settings(TranslationConfig(model=model))
    apart = TranslationConfig(model=model).vocabulary.model_copy(update={"shared": False})
    with pytest.raises(ConfigError, match=r"model\.share_embeddings: needs vocabulary\.shared true"):
        check_translation_settings(TranslationConfig(model=model, vocabulary=apart))


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("multi30k_*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_fits_together(path: Path) -> None:
    config = load_config(path)
    check_translation_settings(config)
    assert (config.model.type == "transformer") == ("transformer" in path.stem)
    assert path.read_text().startswith(f"# regard train translation --config configs/{path.name} ")
