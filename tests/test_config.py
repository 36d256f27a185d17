"""Configurations: what is wrong is named by its key, and nothing in a file can run code, hang or exhaust the reader."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import yaml

from regard.config import CaptioningConfig, LanguageConfig, RunConfig, TranslationConfig, describe_changes, dump_config, load_config
from regard.config.load import read_yaml
from regard.config.strict_yaml import dump_yaml, parse_yaml
from regard.errors import ConfigError


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.cell"], "override 'model.cell' is not of the form key.sub=value"),
        (["=gru"], "is not of the form"),
        (["model.cel=gru"], "model.cel: unknown key; did you mean model.cell?"),
        (["modle.cell=gru"], "modle: unknown key; did you mean model?"),
        (["nonsense=3"], "known keys: task, data"),
        (["model.cell=rnn"], "model.cell: expected gru, lstm or tanh, found 'rnn'"),
        (["model.type=transfomer"], "model.type: expected rnn, transformer or crossed, found 'transfomer'; did you mean "),
        (["model.type=3", "model.dropout=0"], "configuration: model.type: expected rnn, transformer or crossed, found 3"),
        (["model.cell.x=3"], "model.cell: "),
        (["model=3"], "model: "),
        (["model.dropout=[a"], "the value is not YAML"),
        (["model={cell: gru, cell: lstm}"], "the value is not YAML: duplicate key 'cell'"),
        (["training.seed=2001-99-99"], "training.seed: expected a whole number"),
        (["training.epochs=true"], "training.epochs: true is neither a number nor a name"),
        (["training.patience=none"], "found 'none'; did you mean training.patience=null?"),
        (["training.patience=false"], "training.patience: false is neither a number nor a name; did you mean null?"),
        (["model.attention=off"], "found 'off'; did you mean model.attention=null?"),
        (["training.epochs=none"], "training.epochs: expected a whole number, found 'none'"),
        (["training.epochs=yes"], "training.epochs: expected a whole number"),
        (["training.epochs=1:30"], "training.epochs: expected a whole number"),
        (["model.dropout=false"], "model.dropout: false is neither a number nor a name"),
        (["training.max_updates=true"], "training.max_updates: true is neither a number nor a name"),
        (["model.cell=true"], "model.cell: true is neither a number nor a name"),
        (["training.seed=" + "[" * 700], "the value is not YAML"),
        (["training.seed=9223372036854775808"], "training.seed: expected less than"),
        (["training.learning_rate=.inf"], "finite"),
        (["training.learning_rate=.nan"], "training.learning_rate"),
        (["training.epochs=-1"], "training.epochs: expected at least 1, found -1"),
        (["a.b.c.d.e.f.g=1"], "more than 6 levels deep"),
        (["model.tie_embeddings=true", "model.readout_dim=7"], "model: tie_embeddings needs readout_dim (7) = embed_dim (256)"),
        (["model.attention.input_feeding=true"], "input_feeding needs query_state: current"),
        (["model.attention.num_heads=4"], "num_heads needs score: scaled_dot and window: global, found additive and global"),
        (["model.attention={score: scaled_dot, num_heads: 2, window: local_m}"], "found scaled_dot and local_m"),
        (["model.attention.num_heads=0"], "model.attention.num_heads: expected at least 1"),
        (["model.attention={score: location, area: {max_area: 2}}"], "area: a location score has no keys"),
        (["model.attention.area.layers=2"], "model.attention.area.layers: unknown key; known keys: max_area, key_mode"),
    ],
)
def test_a_wrong_override_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "overrides", "message"),
    [
        (
            TranslationConfig,
            "model.type=transformer model.attention.score=dot",
            "model.attention: unknown key: a setting of model.type=rnn",
        ),
        (TranslationConfig, "model.num_heads=2", ": a setting of model.type=transformer or model.type=crossed"),
        (CaptioningConfig, "model.encoder.name=x", "model.encoder.name: unknown key: a setting of model.encoder.type=timm"),
    ],
)
def test_a_setting_of_another_model_family_is_named_as_such(kind: type[RunConfig], overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides.split(), kind=kind)
    assert str(refused.value).endswith(message)


@pytest.mark.parametrize(
    ("text", "override", "where"),
    [
        ("model: {type: transformer}", "model.attention.score=general", "configuration: model.attention: "),
        ("model: {cell: 3}", "model.cell=4", "configuration: model.cell: "),
        ("model: {cell: gru}", "model={cell: 4}", "configuration: model.cell: "),
        ("model: {cell: 3}", "model.dropout=0.5", "a.yaml: model.cell: "),
        ("model: {attention: {query_state: previous}}", "model.attention.input_feeding=true", "a.yaml: model.attention: "),
        ("model: 3", "training.seed=1", "a.yaml: model: "),
    ],
)
def test_a_wrong_override_is_no_error_of_the_file(tmp_path: Path, text: str, override: str, where: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.yaml", [override])
    assert str(refused.value).removeprefix(f"{tmp_path}/").startswith(where)


@pytest.mark.parametrize(
    ("kind", "override", "message"),
    [
        (LanguageConfig, "training.r_drop=5", "training.r_drop: unknown key: a setting of the task translation"),
        (TranslationConfig, "training.streams=5", "training.streams: unknown key: a setting of the task lm"),
        (TranslationConfig, "data.captions_per_image=5", "data.captions_per_image: unknown key: a setting of the task captioning"),
        (LanguageConfig, "training.r_dropp=5", "training.r_dropp: unknown key; known keys: "),
    ],
)
def test_a_setting_of_another_task_is_named_as_such(kind: type[RunConfig], override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(None, [override], kind=kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"model: {cell: gru\n", "line 2: not valid YAML: expected ',' or '}'"),
        (b"model:\n  cell: gru\n  dropout: 0.1\n  cell: lstm\n", "line 4: not valid YAML: duplicate key 'cell'"),
        (b"model: &a\n  model: *a\n", "more than 6 levels deep"),
        (b"[" * 700, "not valid YAML"),
        (b"a: \0", "not valid YAML"),
        (b"\xff\xfe\xff", "a.yaml, line 1: not UTF-8; save the file in UTF-8"),
        ("model:\n  cell: gru  # caf\u00e9\n".encode("latin-1"), "a.yaml, line 2: not UTF-8; save the file in UTF-8"),
        (b"!!python/object/apply:os.getcwd []\n", "line 1: not valid YAML"),
        (b"3: 4\n", "3: "),
        (b"- a\n", "expected keys and values, found ['a']"),
        (b"".join(b"key%d: 1\n" % number for number in range(9)), "and 4 more"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    (tmp_path / "a.yaml").write_bytes(text)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.yaml")
    assert message in str(refused.value)
    assert "a.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_a_value_of_a_billion_parts_is_named_in_a_few_letters(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (tmp_path / "a.yaml").write_text("\n".join([*levels, "model: {cell: *a8}", "training: {betas: *a8}"]))
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "a.yaml")
    assert len(str(refused.value)) < 1000


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: no such configuration file"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="is a folder, expected a configuration file"):
        load_config(tmp_path)


def test_later_settings_win(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {cell: tanh, embed_dim: 7}\ntraining: {seed: 5}\n")
    config = load_config(tmp_path / "a.yaml", ["model.cell=lstm", "model.cell=gru"], base={"training": {"seed": 3, "epochs": 2}})
    assert (config.model.cell, config.model.embed_dim, config.training.seed, config.training.epochs) == ("gru", 7, 5, 2)


def test_an_attention_can_be_taken_away_and_given_back() -> None:
    assert load_config(None, ["model.attention=null"]).model.attention is None
    attention = load_config(None, ["model.attention=null", "model.attention.score=general"]).model.attention
    assert attention is not None
    assert attention.score == "general"


def test_a_written_configuration_reads_back(tmp_path: Path) -> None:
    config = load_config(None, ["model.attention=null", "training.ema_decay=0.5", "data.source=a b.txt"])
    (tmp_path / "a.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "a.yaml") == config
    assert describe_changes(config, config) == []
    assert {"data.source: a b.txt -> None", "training.ema_decay: 0.5 -> None"} < set(describe_changes(config, TranslationConfig()))


def test_numbers_and_words_are_those_of_yaml_1_2() -> None:
    values = "[010, 0o17, 0x1F, 1_000, 1e-3, 1E3, .5, -.inf, 1:30, 2001-01-01, yes, off, No, true, FALSE, ~, null, 1.2.3, -, 0b1]"
    assert parse_yaml(values) == [
        *(10, 15, 31, 1000, 0.001, 1000.0, 0.5, -math.inf, "1:30", "2001-01-01", "yes", "off", "No", True, False, None, None),
        *("1.2.3", "-", "0b1"),
    ]


@pytest.mark.parametrize(
    "text", ["1e3", "010", "yes", "true", "null", "~", "", "1_0", "<<", "=", ".5", "- a", "a: b", "#", "2001-01-01", "ö"]
)
def test_a_written_string_reads_back_as_one(text: str) -> None:
    assert parse_yaml(dump_yaml({"files": [text], text: text})) == {"files": [text], text: text}
    assert parse_yaml(dump_yaml([text], flow=True)) == [text]


def test_parts_of_a_file_may_be_taken_in_elsewhere_and_changed_there(tmp_path: Path) -> None:
    text = "one: &one {a: 1, b: 2}\nmany: [{deep: &two {<<: *one, b: 3}}]\nlast: {<<: *two, c: 4}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert read_yaml(tmp_path / "a.yaml")["last"] == {"a": 1, "b": 3, "c": 4}
    assert parse_yaml("one: &one {a: 1, b: 2}\ntwo: &two {b: 3, c: 4}\nall: {<<: [*one, *two], c: 5}")["all"] == {"a": 1, "b": 2, "c": 5}
    with pytest.raises(yaml.YAMLError, match="expected mappings to merge"):
        parse_yaml("one: &one [1]\ntwo: {<<: *one}")


def test_settings_within_a_value_replace_no_number(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: 5\n")
    with pytest.raises(ConfigError, match=r"override 'model\.dropout=0': model: settings within it replace 5, expected keys and values"):
        load_config(tmp_path / "a.yaml", ["model.dropout=0"])
    for value in ("null", "none", "[]", "rnn"):
        with pytest.raises(ConfigError, match=r"override 'training\.seed=1': training: settings within it replace"):
            load_config(None, [f"training={value}", "training.seed=1"])
    (tmp_path / "a.yaml").write_text("training: {epochs: 0}\n")
    with pytest.raises(ConfigError, match=r"a\.yaml and overrides: training\.seed: expected a whole number, found 'x'; training\.epochs: "):
        load_config(tmp_path / "a.yaml", ["training.seed=x"])
    assert load_config(None, ["model.attention.area=null", "model.attention.area.max_area=2"]).model.attention.area.max_area == 2
