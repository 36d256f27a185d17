"""A run folder: begun once, the same settings ever after, and not believed when a byte of it has changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.config import TranslationConfig, load_config
from regard.errors import CheckpointError, ConfigError, DataError
from regard.tasks.run_folder import discard_run, prepare_run, read_config
from regard.tasks.translation_run import make_vocabularies, open_translation_run, run_files
from tests.tasks.tiny import configuration

PAIRS = [("ein Hund", "a dog"), ("ein Haus", "a house")]
DIGESTS = {"source": "11", "target": "13"}


def sample(side: int, count: int) -> list[str]:
    return [pair[side] for pair in PAIRS][:count]


def vocabularies() -> dict[str, bytes]:
    return make_vocabularies(configuration(), sample, len(PAIRS))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def remove(path: Path) -> None:
    path.unlink()


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [flip, cut, empty, remove, become_a_folder])
@pytest.mark.parametrize("name", ["config.yaml", "vocabulary.json", "model/model.safetensors", "model/manifest.json"])
def test_a_damaged_run_is_refused_by_the_name_of_the_file(
    run_folder: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    damage(run / name)
    if name == "model/manifest.json" and not (run / name).is_file():  # as if training had not ended: the best checkpoint is taken
        assert open_translation_run(run).weights.parent.parent == run / "checkpoints"
        return
    with pytest.raises((CheckpointError, DataError)) as refused:
        open_translation_run(run)
    assert Path(name).name in str(refused.value)
    assert str(run) in str(refused.value)


def test_a_vocabulary_of_another_run_is_refused(run_folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    text = (run / "vocabulary.json").read_text(encoding="utf-8")
    (run / "vocabulary.json").write_text(text.replace('"H"', '"X"'), encoding="utf-8")  # as good a vocabulary, with other letters
    with pytest.raises(CheckpointError, match=r"vocabulary\.json: has changed since"):
        open_translation_run(run)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: &a\n  model: *a\n", "more than 6 levels deep"),
        ("[" * 700, "not valid YAML"),
        ("model: 2001-99-99\n", "model: expected keys and values"),
        ("!!python/object/apply:os.getcwd []\n", "line 1: not valid YAML"),
        ("- 3\n", "expected keys and values, found [3]"),
        ("modle: {}\n", "did you mean model?"),
    ],
)
def test_a_configuration_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(CheckpointError) as refused:
        read_config(tmp_path, TranslationConfig)
    assert message in str(refused.value)
    assert "config.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_run_without_final_weights_can_be_opened(run_folder: Path, tmp_path: Path, messages: list[str]) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_folder, run)
    shutil.rmtree(run / "model")
    assert open_translation_run(run).weights == run / "checkpoints" / "step-00000002" / "model.safetensors"
    why = "without final weights in model/ (not trained to its end, or they were removed)"
    assert messages == [f"{run}: {why}; these are the weights of step-00000002, the latest"]
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="no trained weights here"):
        open_translation_run(run)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such run folder"):
        open_translation_run(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"not a run folder, it has no config\.yaml"):
        open_translation_run(tmp_path)


@pytest.mark.parametrize(("shared", "names"), [(True, ["vocabulary.json"]), (False, ["source.vocabulary.json", "target.vocabulary.json"])])
def test_a_run_begins_with_its_settings_its_data_and_its_vocabularies(tmp_path: Path, shared: bool, names: list[str]) -> None:
    config = configuration(vocabulary={"shared": shared})
    assert prepare_run(tmp_path / "a" / "run", config, DIGESTS, lambda: make_vocabularies(config, sample, len(PAIRS))) is True
    assert sorted(path.name for path in (tmp_path / "a" / "run").iterdir()) == sorted(["config.yaml", "data.json", *names])
    assert set(run_files(config)) == {"config.yaml", "data.json", *names}
    assert load_config(tmp_path / "a" / "run" / "config.yaml") == config
    assert prepare_run(tmp_path / "a" / "run", config, DIGESTS, vocabularies) is False


def test_a_fresh_file_system_takes_a_run(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    assert prepare_run(tmp_path, configuration(), DIGESTS, vocabularies) is True
    assert {"lost+found", "config.yaml"} <= {path.name for path in tmp_path.iterdir()}


def begin(folder: Path) -> TranslationConfig:
    config = configuration(data={"source": "here/source", "target": "here/target"})
    prepare_run(folder, config, DIGESTS, vocabularies)
    return config


def test_the_same_data_may_lie_elsewhere_and_decoding_may_change(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    config = configuration(data={"source": "there/source", "target": "there/target"}, decoding={"beam_size": 7})
    assert prepare_run(tmp_path / "run", config, DIGESTS, vocabularies) is False


def test_other_settings_are_named(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"holds a run with other settings \(model\.cell: gru -> lstm; training\.seed: 1 -> 5\)"):
        prepare_run(tmp_path / "run", configuration(model={"cell": "lstm"}, training={"seed": 5}), DIGESTS, vocabularies)
    with pytest.raises(ConfigError, match=r"choose another --out; it has no weights yet, and may be removed$"):
        prepare_run(tmp_path / "run", configuration(training={"seed": 5}), DIGESTS, vocabularies)


def test_other_data_is_named(tmp_path: Path) -> None:
    config = begin(tmp_path / "run")
    with pytest.raises(ConfigError, match="the target file has other content"):
        prepare_run(tmp_path / "run", config, {**DIGESTS, "target": "17"}, vocabularies)
    with pytest.raises(ConfigError, match="it was trained without a valid_source file"):
        prepare_run(tmp_path / "run", config, {**DIGESTS, "valid_source": "17"}, vocabularies)
    with pytest.raises(ConfigError, match="it was trained with a target file"):
        prepare_run(tmp_path / "run", config, {name: digest for name, digest in DIGESTS.items() if name != "target"}, vocabularies)


@pytest.mark.parametrize("text", ["", "[3]", "3", "{", '{"a": 1}', "\udcff"])
def test_damaged_notes_on_the_data_are_named(tmp_path: Path, text: str) -> None:
    config = begin(tmp_path / "run")
    (tmp_path / "run" / "data.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError, match=r"data\.json: missing or damaged"):
        prepare_run(tmp_path / "run", config, DIGESTS, vocabularies)


def test_what_is_not_a_run_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    for folder in (tmp_path, tmp_path / "notes"):
        with pytest.raises(ConfigError, match="exists and is not a run"):
            prepare_run(folder, configuration(), DIGESTS, vocabularies)
    with pytest.raises(ConfigError, match="cannot be made"):
        prepare_run(tmp_path / "notes" / "run", configuration(), DIGESTS, vocabularies)
    assert [path.name for path in tmp_path.iterdir()] == ["notes"]


def test_text_that_gives_no_vocabulary_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text to train a vocabulary on"):
        prepare_run(
            tmp_path / "run", configuration(), DIGESTS, lambda: make_vocabularies(configuration(), lambda side, count: ["", " ", "\t"], 3)
        )
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_trained_is_taken_back(tmp_path: Path) -> None:
    config = begin(tmp_path / "run")
    discard_run(tmp_path / "run", run_files(config))
    assert list(tmp_path.iterdir()) == []


def test_the_notes_on_the_data_are_the_digests(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "data.json").read_text()) == DIGESTS
