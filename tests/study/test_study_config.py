"""A study is read whole before anything is trained: a wrong key, name or setting is told with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from regard.config import TranslationConfig, merge_configs
from regard.config.study import cell_config, load_study, study_cells
from regard.errors import ConfigError
from regard.study.cost import estimate
from regard.study.grid import check_study

STUDY: dict[str, Any] = {
    "name": "letters",
    "settings": {"training": {"batch_tokens": 100}, "model": {"embed_dim": 8}},
    "data": {"copy": {"settings": {"data": {"source": "a", "target": "b"}}, "test": {"source": "c", "target": "d"}}},
    "variants": {"plain": {}, "wide": {"settings": {"model": {"embed_dim": 16}}}},
    "seeds": [1, 5],
    "budget": {"updates": 7},
    "scales": {"large": {"settings": {"model": {"embed_dim": 32, "encoder_dim": 64}}, "variants": {"deep": {}}, "seeds": [7]}},
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(merge_configs(STUDY, changes)))
    return path


def test_a_run_has_the_settings_of_the_study_the_scale_the_data_and_the_variant(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("model: {embed_dim: 4, decoder_dim: 12}\ntraining: {learning_rate: 0.5}\n")
    study = load_study(written(tmp_path, config="base.yaml"))
    assert [cell.name for cell in study_cells(study)] == ["copy-plain-1", "copy-wide-1", "copy-plain-5", "copy-wide-5"]
    plain, wide = (cell_config(study, cell, folder=tmp_path) for cell in study_cells(study)[2:])
    assert isinstance(plain, TranslationConfig)
    assert isinstance(wide, TranslationConfig)
    assert (plain.model.embed_dim, wide.model.embed_dim, plain.data.source) == (8, 16, "a")
    assert (plain.training.seed, plain.training.max_updates, plain.training.learning_rate) == (5, 7, 0.5)
    scaled = load_study(tmp_path / "study.yaml", scale="large")
    assert [cell.name for cell in study_cells(scaled)] == ["copy-deep-7"]
    large = cell_config(scaled, study_cells(scaled)[0], folder=tmp_path)
    assert isinstance(large, TranslationConfig)
    assert (large.model.embed_dim, large.model.decoder_dim, large.training.batch_tokens) == (32, 12, 100)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nam": "x"}, "nam: unknown key; did you mean name?"),
        ({"name": "a/b"}, "name: 'a/b', expected letters"),
        ({"task": "poetry"}, "task: 'poetry', expected one of translation, "),
        ({"baseline": "narrow"}, "baseline: 'narrow', expected one of plain, wide"),
        ({"variants": {"../x": {}}}, "'../x': expected letters"),
        ({"seeds": 3}, "seeds: expected a list, such as [1, 2, 3], found 3"),
        ({"metric": "macro_f1"}, "metric: 'macro-F1', expected one of BLEU, chrF2, exact match"),
        ({"metric": "TER"}, "metric: 'TER', expected one of BLEU, chrF2, exact match"),
        ({"scales": {"small": {"model": {}}}}, "scales.small: 'model', expected some of title, "),
        ({"seeds": [3, 3]}, "seeds: 3 is there twice"),
        ({"hypotheses": [{"says": "x", "better": "narrow", "than": "wide"}]}, "hypotheses.0.better: 'narrow', expected one of plain, wide"),
        ({"hypotheses": [{"says": "x", "better": "wide", "than": "flat"}]}, "hypotheses.0.than: 'flat', expected one of plain, wide"),
        ({"hypotheses": [{"says": "x", "better": "wide", "than": "wide"}]}, "hypotheses.0: 'wide' cannot be better than itself"),
        (
            {"hypotheses": [{"says": "x", "better": "wide", "than": "plain", "data": ["no"]}]},
            "hypotheses.0.data: 'no', expected some of copy",
        ),
        (
            {"hypotheses": [{"says": "x", "better": "wide", "than": "plain", "published": "about 9"}]},
            "hypotheses.0.published: 'about 9': expected a number, which words may follow",
        ),
        ({"variants": {"wide": {"seeds": [1, 7]}}, "seeds": [1, 2]}, "variants.wide.seeds: 7, expected some of 1, 2"),
        ({"budget": {"seconds": 9}}, "give updates, tokens or seconds, one of them"),
        (
            {"data": {"copy": {"test": {"source": "x", "link_unit": "line"}}}},
            "data.copy.test.link_unit: 'line', expected word or character",
        ),
        ({"data": {"copy": {"test": {"text": "x"}}}}, "data.copy.test: unknown key 'text'; known keys: source"),
        ({"data": {"other": {"test": {"target": "b"}}}}, "data.other.test: source is missing"),
    ],
)
def test_a_study_that_does_not_fit_is_refused_by_the_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_study(written(tmp_path, **changes))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_setting_that_does_not_fit_names_the_run(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, variants={"wide": {"settings": {"model": {"embed_dimm": 3}}}}))
    with pytest.raises(ConfigError, match=r"letters, run copy-wide-1: model\.embed_dimm: unknown key"):
        [cell_config(study, cell, folder=tmp_path) for cell in study_cells(study)]


@pytest.mark.parametrize("value", [None, "none", 5])
def test_an_empty_section_of_a_variant_does_not_drop_the_shared_settings(tmp_path: Path, value: Any) -> None:
    study = load_study(written(tmp_path, variants={"plain": {}, "lr": {"settings": {"training": value}}}))
    with pytest.raises(
        ConfigError, match=r"letters, run copy-lr-1: training: settings within it replace (null|none|'none'|5), expected keys"
    ):
        [cell_config(study, cell, folder=tmp_path) for cell in study_cells(study)]


def test_published_figures_are_of_variants(tmp_path: Path) -> None:
    data = {"copy": {"settings": {}, "test": {"source": "c", "target": "d"}, "published": {"plian": 3.0}}}
    with pytest.raises(ConfigError, match=r"data\.copy\.published: 'plian', expected some of "):
        load_study(written(tmp_path, data=data))


def test_sizes_that_do_not_fit_name_the_run_in_an_estimate_too(tmp_path: Path) -> None:
    settings = {"model": {"attention": {"score": "dot"}, "decoder_dim": 7}}
    study = load_study(written(tmp_path, variants={"plain": {}, "dot": {"settings": settings}}))
    with pytest.raises(ConfigError, match=r"letters: the run copy-dot-1: model\.attention\.score: dot needs equal sizes"):
        estimate(study, beside=tmp_path)


def test_a_scale_with_other_variants_has_the_hypotheses_it_names(tmp_path: Path) -> None:
    said = {"says": "width helps", "better": "wide", "than": "plain"}
    few = {"seeds": [1]}
    own = {"variants": {"plain": {}, "deep": {}}, "hypotheses": [{"says": "depth helps", "better": "deep", "than": "plain"}]}
    path = written(tmp_path, hypotheses=[said], scales={"few": few, "own": own})
    for scale, expected in ((None, ["width helps"]), ("few", ["width helps"]), ("large", []), ("own", ["depth helps"])):
        assert [each.says for each in load_study(path, scale=scale).hypotheses] == expected


def test_a_variant_that_costs_much_may_have_fewer_seeds(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, seeds=[1, 2], variants={"plain": {}, "wide": {"seeds": [2]}}))
    assert [cell.name for cell in study_cells(study)] == ["copy-plain-1", "copy-plain-2", "copy-wide-2"]
    _, rows = estimate(study, beside=tmp_path)
    assert [row[1] for row in rows] == ["plain", "wide"]


def test_an_estimate_counts_runs_of_equal_settings_once(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, variants={"plain": {}, "same": {}, "wide": {"settings": {"model": {"embed_dim": 12}}}}))
    columns, rows = estimate(study, beside=tmp_path)
    data = study.data["copy"].title or "copy"
    assert [row[columns.index("updates of each")].startswith(f"trained once, as {data}: plain") for row in rows] == [False, True, False]
    assert rows[1][-3:] == ["0", "0", "0"]


def test_an_unknown_scale_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--scale huge: the study letters has large"):
        load_study(written(tmp_path), scale="huge")


def test_the_folder_of_the_data_is_said_outside_the_study(tmp_path: Path) -> None:
    path = written(tmp_path, data={"copy": {"settings": {"data": {"source": "{data}/a.gz"}}, "test": {"source": "{data}/c"}}})
    with pytest.raises(ConfigError, match=r"\{data\}/a\.gz: name the folder of the data sets, by --data FOLDER or as REGARD_DATA"):
        load_study(path)
    load_study(written(tmp_path, scales={"large": {}, "huge": {"data": {"copy": {"test": {"source": "{data}/c"}}}}}), scale="large")
    path = written(tmp_path, data={"copy": {"settings": {"data": {"source": "{data}/a.gz"}}, "test": {"source": "{data}/c"}}})
    study = load_study(path, data="/sets")
    assert study.data["copy"].test["source"] == "/sets/c"
    assert study.data["copy"].settings["data"]["source"] == "/sets/a.gz"


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "studies").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_studies_that_come_with_the_project_are_whole(path: Path) -> None:
    for scale in (None, *load_study(path, data="/sets").scales):
        check_study(load_study(path, data="/sets", scale=scale), Path("no-such-folder"), beside=path.parent)


def test_the_study_of_the_document_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(text.partition("```yaml\n")[2].partition("```")[0])
    (tmp_path / "base.yaml").write_text("vocabulary: {kind: word}\n")
    for scale, updates in ((None, 2000), ("small", 100)):
        study = load_study(tmp_path / "mine.yaml", scale=scale)
        configs = [cell_config(study, cell, folder=tmp_path) for cell in study_cells(study)]
        assert {config.vocabulary.kind for config in configs} == {"word"}
        assert {config.training.max_updates for config in configs} == {updates}
