"""A study from its file to its report: stopped, resumed, shared."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from regard import __version__, progress
from regard.config import load_config
from regard.config.study import StudyConfig, VariantConfig, load_study, study_cells
from regard.errors import ConfigError, DataError, TrainingError
from regard.jobs import WorkerLost
from regard.study import build_report, run_study, write_report
from regard.study.cost import ESTIMATE_NOTE
from regard.study.grid import StudyStopped, check_study, train_apart
from regard.study.report_files import markdown
from regard.study.results import UNKNOWN, Outdated
from regard.tasks import generate, train_translation
from regard.tasks.translation_prediction import Translator

SMALL = {
    "vocabulary": {"kind": "word"},
    "model": {"embed_dim": 6, "encoder_dim": 5, "decoder_dim": 8, "readout_dim": 6},
    "training": {"batch_tokens": 300, "learning_rate": 0.01, "evaluate_every": 5, "log_every": 2},
    "decoding": {"beam_size": 1, "max_length": 12},
}
VARIANTS = {
    "none": {"settings": {"model": {"attention": None}}},
    "additive": {"settings": {"model": {"attention": {"attention_dim": 4}}}},
}
STUDY: dict[str, Any] = {"name": "reversing", "settings": SMALL, "variants": VARIANTS, "seeds": [1], "budget": {"updates": 10}}
ALONE = {"variants": {"none": VARIANTS["none"]}}


def train_here(command: Sequence[str], log: Path) -> float | None:
    """Train in this process, which takes a second less than in one of its own."""
    train_translation(load_config(Path(command[command.index("--config") + 1])), Path(command[-1]))
    return 123.0


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate("reverse", folder, train=80, test=9, seed=2)
    return folder


def written(folder: Path, data: Path, **changes: Any) -> Path:
    settings = {"data": {"source": f"{data}/train.source", "target": f"{data}/train.target", "valid_size": 8}}
    test = {"source": f"{data}/test.source", "target": f"{data}/test.target", "links": f"{data}/test.links", "link_unit": "character"}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "data": {"letters": {"settings": settings, "test": test}}, **changes}, sort_keys=False))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, data: Path) -> tuple[StudyConfig, Path]:
    """Return a study that has been done."""
    folder = tmp_path_factory.mktemp("study")
    study, told = load_study(written(folder, data, seeds=[1, 2])), list[str]()
    before = progress.set_listener(lambda event: told.append(event.text))
    assert run_study(study, folder / "out", beside=folder, train=train_here) == 0
    progress.set_listener(before)
    runs = ["letters-none-1", "letters-additive-1", "letters-none-2", "letters-additive-2"]
    assert [line for line in told if " of 4" in line] == [f"{name}: done, {number} of 4" for number, name in enumerate(runs, start=1)]
    return study, folder / "out"


def test_the_report_tells_every_run(finished: tuple[StudyConfig, Path]) -> None:
    study, folder = finished
    report = build_report(study, folder, samples=50)
    none, additive = report.rows
    assert (none.variant, none.runs, none.difference, none.p_value) == ("none", 2, None, None)
    assert additive.difference == pytest.approx(additive.score - none.score)
    assert additive.p_value == additive.corrected
    assert additive.figures["updates"] == 10
    assert (additive.figures["parameters"] or 0) > (none.figures["parameters"] or 0) > 0
    assert additive.figures["megabytes"] == 123.0
    for name in ("seconds_per_update", "tokens_per_second", "lines_per_second", "entropy"):
        assert (additive.figures[name] or 0) > 0, name
    assert none.figures["entropy"] is None
    assert list(additive.by_length) == ["0-8", "9-11"]
    assert "BLEU by source length in words" in markdown(report)
    assert additive.ranks == []
    assert "AER" in additive.scores
    assert "AER" not in none.scores
    assert [point["step"] for point in report.runs[0]["curve"]] == [5, 10]
    assert report.missing == {}
    assert [run["seen"] for run in report.runs] == [0] * 4
    assert "is a training input" not in markdown(report)
    seen = [{**run, "seen": 3} for run in report.runs]
    assert "Test items whose input is a training input, too: 3 (letters)." in markdown(report._replace(runs=seen))
    paths = {path.name: path.read_text(encoding="utf-8") for path in write_report(report, folder)}
    assert set(paths) == {"report.md", "report.html", "report.csv", "report.json", "runs.csv"}
    rows = list(csv.reader(paths["report.csv"].splitlines()))
    assert [row[1] for row in rows] == ["variant", "none", "additive"]
    assert len(json.loads(paths["report.json"])["runs"]) == 4
    runs = list(csv.DictReader(paths["runs.csv"].splitlines()))
    assert [float(run["validation_score"]) for run in runs] == pytest.approx([min(p["loss"] for p in run["curve"]) for run in report.runs])
    assert {run["scored_update"] for run in runs} <= {"5", "10"}
    assert all(float(run["seconds"]) > 0 and run["updates"] == "10" for run in runs)
    assert "Training and validation pairs: 72 and 8 (letters)." in paths["report.md"]
    for run in report.runs:
        assert run["command"] in paths["report.html"]
        assert (folder / "configs" / f"{run['cell']['data']}-{run['cell']['variant']}-{run['cell']['seed']}.yaml").is_file()
    assert paths["report.html"].count("<path") > 4, "learning curves"
    assert "http" not in paths["report.html"].replace("http://www.w3.org", ""), "names of XML and nothing else"


def test_the_command_line_tells_the_report(
    finished: tuple[StudyConfig, Path], data: Path, call: Callable[..., tuple[int, bytes, str]]
) -> None:
    _, folder = finished
    said = {"says": "attention helps", "better": "additive", "than": "none"}
    path = written(folder, data, seeds=[1, 2, 7], hypotheses=[said])
    code, told, err = call("compare", path, "--out", folder, "--report")
    assert code == 0, err
    lines = told.decode().splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["variant", "none", "additive"]
    assert lines[3] == ""
    gain = r"[+-][\d.]+ BLEU \[[+-][\d.]+, [+-][\d.]+\], corrected p [<=] [\d.]+ over seeds and items"
    assert re.match(rf"attention helps \(letters\): [a-z ]+ \(2 seeds\): {gain}", lines[4]), lines[4]
    assert "Not done: letters-none-7; letters-additive-7." in (folder / "report.md").read_text(encoding="utf-8")
    assert "not in the report" not in err
    err = call("compare", written(folder, data, seeds=[1], hypotheses=[said]), "--out", folder, "--report")[2]
    left = "2 finished runs are not in the report, as the study no longer has them: letters-additive-2, letters-none-2"
    assert left in err
    (folder / "report.md").unlink()  # as if the command had been killed before its last report
    code, again, err = call("compare", written(folder, data, seeds=[1, 2], hypotheses=[said]), "--out", folder)
    assert code == 0, err
    assert again.decode().splitlines()[4] == lines[4]
    assert (folder / "report.md").exists()
    code, told, err = call("compare", path, "--estimate")
    assert (code, err) == (0, "")
    table, _, note = told.decode().partition("\n\n")
    assert [line.split()[1] for line in table.splitlines()] == ["variant", "none", "additive"]
    assert note == f"{ESTIMATE_NOTE}\n"
    code, _, err = call("compare", folder / "no.yaml")
    assert (code, err) == (2, f"regard: error: {folder}/no.yaml: no such configuration file\n")


def test_a_study_that_is_done_trains_nothing_and_a_seed_more_is_one_run_a_variant(
    finished: tuple[StudyConfig, Path], tmp_path: Path, messages: list[str]
) -> None:
    study, folder = finished
    assert run_study(study, folder, beside=tmp_path) == 0
    assert messages == []
    more = study.model_copy(update={"seeds": (1, 2, 3)})
    assert build_report(more, folder, samples=1).missing == {"letters-none-3": "", "letters-additive-3": ""}


def test_runs_of_equal_settings_are_trained_once(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    once = load_study(written(tmp_path, data, variants=ALONE["variants"]))
    twice = once.model_copy(update={"data": {"letters": once.data["letters"], "again": once.data["letters"]}})
    trained: list[tuple[str, bool]] = []

    def train(command: Sequence[str], log: Path) -> float | None:
        run = Path(command[-1])
        trained.append((run.name, (run / "model").exists()))
        return train_here(command, log)

    monkeypatch.chdir(tmp_path)
    assert run_study(twice, Path("out"), beside=tmp_path, train=train) == 0
    assert trained == [("letters-none-1", False), ("again-none-1", True)]
    found = [json.loads((tmp_path / "out" / "results" / f"{name}.json").read_text()) for name, _ in trained]
    assert found[0]["command"] == "regard train translation --config out/configs/letters-none-1.yaml --out out/runs/letters-none-1"
    assert [found[0][key] for key in ("scores", "counts", "curve")] == [found[1][key] for key in ("scores", "counts", "curve")]
    assert [each["equal_to"] for each in found] == [None, "letters-none-1"]
    write_report(build_report(twice, Path("out"), samples=1), Path("out"))
    told = Path("out", "report.md").read_text(encoding="utf-8")
    assert "Runs of the same training, trained once: again-none-1 = letters-none-1." in told
    assert re.search(rf"Trained on: .*, torch .*, regard {__version__}, fp32 \(1 run\)\.", told)
    # A copy that fails is trained, and leaves nothing.
    for part in ("runs/again-none-1", "results/again-none-1.json"):
        shutil.rmtree(Path("out", part)) if Path("out", part).is_dir() else Path("out", part).unlink()
    Path("out", "runs", "letters-none-1", "notes").symlink_to("nowhere")
    Path("out", "runs", ".killed.copy").mkdir()
    trained.clear()
    assert run_study(twice, Path("out"), beside=tmp_path, train=train) == 0
    assert trained == [("again-none-1", False)]
    assert not list(Path("out", "runs").glob(".*"))


LONGER = {"longer": {"settings": {"decoding": {"min_length": 9}}}, "none": {}}


def result_of(folder: Path, name: str) -> dict[str, Any]:
    return json.loads((folder / "results" / f"{name}.json").read_text())


@pytest.fixture
def decoded(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StudyConfig, list[bool]]:
    """Return a finished study of one training decoded in two ways, in the folder `out`, and for each training whether it was there."""
    trained: list[bool] = []

    def train(command: Sequence[str], log: Path) -> float | None:
        trained.append((Path(command[-1]) / "model").exists())
        return train_here(command, log)

    monkeypatch.chdir(tmp_path)
    study = load_study(written(tmp_path, data, variants=LONGER, baseline="none", seeds=[1, 2]))
    assert run_study(study, Path("out"), beside=tmp_path, train=train) == 0
    return study, trained


def test_variants_that_differ_in_decoding_are_trained_once_each_run_with_its_own_settings(decoded: tuple[StudyConfig, list[bool]]) -> None:
    study, trained = decoded
    assert trained == [False, False, True, True]  # both seeds are trained before what is copied
    for seed in (1, 2):
        runs = [Path("out", "runs", f"letters-{name}-{seed}") for name in LONGER]
        assert [Translator.open(run).run.config.decoding.min_length for run in runs] == [9, 0]
        weights = [(run / "model" / "model.safetensors").read_bytes() for run in runs]
        assert weights[0] == weights[1]
        found = [result_of(Path("out"), run.name) for run in runs]
        assert found[0]["counts"] != found[1]["counts"]
        assert [each["equal_to"] for each in found] == [None, runs[0].name]
    assert run_study(study, Path("out"), beside=Path(), train=lambda *_: pytest.fail("trained")) == 0


def test_a_copy_is_known_as_one_whatever_is_removed(decoded: tuple[StudyConfig, list[bool]]) -> None:
    study, _ = decoded
    Path("out", "results", "letters-none-1.json").unlink()
    assert run_study(study, Path("out"), beside=Path(), train=train_here) == 0
    assert result_of(Path("out"), "letters-none-1")["equal_to"] == "letters-longer-1"
    shutil.rmtree("out/runs/letters-longer-1")
    Path("out", "results", "letters-longer-1.json").unlink()
    assert run_study(study, Path("out"), beside=Path(), train=train_here) == 0
    assert [result_of(Path("out"), f"letters-{name}-1")["equal_to"] for name in LONGER] == [None, "letters-longer-1"]


def test_a_run_that_was_trained_anew_after_it_was_copied_is_no_pair(decoded: tuple[StudyConfig, list[bool]]) -> None:
    study, _ = decoded
    report = build_report(study, Path("out"), samples=10)
    assert [row.paired for row in report.rows] == [True, False]  # of the baseline itself: nothing
    assert "trained once: letters-none-1 = letters-longer-1; letters-none-2 = letters-longer-2." in markdown(report)
    path = Path("out", "results", "letters-longer-2.json")
    anew = json.loads(path.read_text())
    anew["curve"][-1]["loss"] += 1e-12
    path.write_text(json.dumps(anew))
    report = build_report(study, Path("out"), samples=10)
    assert [row.paired for row in report.rows] == [False, False]
    assert "trained once: letters-none-1 = letters-longer-1." in markdown(report)


def test_other_decoding_settings_need_the_result_removed_but_not_the_weights(decoded: tuple[StudyConfig, list[bool]]) -> None:
    study, _ = decoded
    before = result_of(Path("out"), "letters-longer-1")["counts"]
    other = study.model_copy(update={"variants": {**study.variants, "longer": VariantConfig(settings={"decoding": {"min_length": 3}})}})
    with pytest.raises(ConfigError, match=r"min_length: 9 -> 3; take another folder, or remove out/results/letters-longer-1\.json$"):
        run_study(other, Path("out"), beside=Path())
    for seed in (1, 2):
        Path("out", "results", f"letters-longer-{seed}.json").unlink()
    seen: list[bool] = []

    def train(command: Sequence[str], log: Path) -> float | None:
        seen.append((Path(command[-1]) / "model").exists())
        return train_here(command, log)

    assert run_study(other, Path("out"), beside=Path(), train=train) == 0
    assert seen == [True, True]
    assert result_of(Path("out"), "letters-longer-1")["counts"] != before
    assert Translator.open("out/runs/letters-longer-1").run.config.decoding.min_length == 3


def test_a_training_that_measures_outputs_is_shared_by_beams_alone(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    by_bleu = {**SMALL, "training": {**SMALL["training"], "metric": "bleu"}}
    variants = {**LONGER, "beam": {"settings": {"decoding": {"beam_size": 2}}}}
    study = load_study(written(tmp_path, data, variants=variants, baseline="none", seeds=[1], settings=by_bleu))
    assert run_study(study, Path("out"), beside=tmp_path, train=train_here) == 0
    found = [result_of(Path("out"), f"letters-{name}-1")["equal_to"] for name in variants]
    assert found == [None, None, "letters-none-1"]


@pytest.mark.parametrize("budget", [{"tokens": 3000}, {"seconds": 1.0}])
def test_one_trial_serves_all_variants_of_a_training(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = load_study(written(tmp_path, data, variants=LONGER, baseline="none", seeds=[1], budget=budget))
    assert run_study(study, Path("out"), beside=tmp_path, train=train_here) == 0
    found = [result_of(Path("out"), f"letters-{name}-1") for name in LONGER]
    assert found[0]["updates"] == found[1]["updates"]
    assert found[1]["equal_to"] == "letters-longer-1"
    assert len(list(Path("out", "trials").glob("*.json"))) == 1


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"checkpoints": True}, r"the run letters-none-1: checkpoints: true needs data\.valid_source and data\.valid_target"),
        ({"settings": {**SMALL, "vocabulary": {"size": 60}}}, r"the run letters-none-1: vocabulary\.size: 60, bpe needs at least 260"),
    ],
)
def test_what_no_run_could_do_is_named_before_anything_is_trained(
    tmp_path: Path, data: Path, changes: dict[str, Any], expected: str
) -> None:
    study = load_study(written(tmp_path, data, **{**ALONE, **changes}))
    with pytest.raises(ConfigError, match=expected):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda *_: pytest.fail("trained"))


def test_a_test_set_without_an_input_of_a_model_is_named_before_anything_is_trained(tmp_path: Path, data: Path) -> None:
    model = {"type": "transformer", "embed_dim": 12, "ff_dim": 13, "num_heads": 2, "second": {"kind": "serial"}}
    variants = {"two": {"settings": {"model": model, "data": {"second_source": str(data / "train.source")}}}}
    others = {name: value for name, value in SMALL.items() if name != "model"}
    study = load_study(written(tmp_path, data, variants=variants, baseline="two", settings=others))
    with pytest.raises(ConfigError, match=r"data\.letters\.test: line 1 lacks one of its two inputs \(source: .*second_source: None\)"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda *_: pytest.fail("trained"))
    set_of = study.data["letters"]
    (tmp_path / "short").write_text("a\n")
    test = {**set_of.test, "second_source": str(tmp_path / "short")}
    short = study.model_copy(update={"data": {"letters": set_of.model_copy(update={"test": test})}})
    with pytest.raises(DataError, match="short: 1 line"):
        run_study(short, tmp_path / "out", beside=tmp_path, train=lambda *_: pytest.fail("trained"))
    assert not (tmp_path / "out" / "results").exists()


def test_other_settings_do_not_mix_with_what_is_there(finished: tuple[StudyConfig, Path], tmp_path: Path) -> None:
    study, folder = finished
    other = study.model_copy(update={"settings": {**study.settings, "decoding": {"beam_size": 3}}})
    with pytest.raises(
        ConfigError, match=r"the run letters-none-1 was done with other settings: decoding\.beam_size: 1 -> 3; .*take another folder"
    ):
        run_study(other, folder, beside=tmp_path)
    more = study.model_copy(update={"variants": {**study.variants, "more": study.variants["none"]}})
    check_study(more, folder, beside=tmp_path)


def test_a_study_goes_on_with_data_that_moved(tmp_path: Path, data: Path) -> None:
    shutil.copytree(data, tmp_path / "own")
    study = load_study(written(tmp_path, tmp_path / "own", **ALONE))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    longer = study.model_copy(update={"budget": study.budget and study.budget.model_copy(update={"updates": 30})})
    with pytest.raises(ConfigError, match=r"training\.epochs: 10 -> 30; training\.max_updates: 10 -> 30"):
        check_study(longer, tmp_path / "out", beside=tmp_path)
    (tmp_path / "own").rename(tmp_path / "moved")
    moved = load_study(written(tmp_path, tmp_path / "moved", **ALONE))
    assert run_study(moved, tmp_path / "out", beside=tmp_path, train=lambda *_: pytest.fail("trained again")) == 0
    configs = [path.read_text() for path in (tmp_path / "out" / "configs").iterdir()]
    assert configs
    assert all(str(tmp_path / "moved") in text and str(tmp_path / "own") not in text for text in configs)
    with pytest.raises(ConfigError, match=r"done with other settings: data\.source: .*moved.* -> .*gone"):
        check_study(load_study(written(tmp_path, tmp_path / "gone", **ALONE)), tmp_path / "out", beside=tmp_path)
    shutil.rmtree(tmp_path / "out" / "runs")
    with pytest.raises(ConfigError, match=r"done with other settings: data\.source: .*moved.* -> .*own"):
        check_study(study, tmp_path / "out", beside=tmp_path)


def test_runs_do_not_mix_with_those_of_other_training_files(tmp_path: Path, data: Path, messages: list[str]) -> None:
    shutil.copytree(data, tmp_path / "own")
    study = load_study(written(tmp_path, tmp_path / "own", **ALONE))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    target = tmp_path / "own" / "train.target"
    target.write_text(target.read_text().upper())
    more = study.model_copy(update={"seeds": (1, 2)})
    with pytest.raises(ConfigError, match=r"own/train\.target: changed since the run letters-none-1 was trained; restore it, take another"):
        run_study(more, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("trained"))
    Outdated(more, tmp_path / "out", beside=tmp_path).warn()
    assert any("letters-none-1" in message and "changed since it was trained" in message for message in messages)


def language_study(folder: Path, **changes: Any) -> StudyConfig:
    (folder / "train.txt").write_text("a b c\nb c a\nc a b\n" * 20)
    (folder / "test.txt").write_text("a b\nb a\n")
    settings = {
        "vocabulary": {"kind": "word"},
        "model": {"embed_dim": 4, "hidden_size": 4, "attention": "none"},
        "training": {"streams": 2},
    }
    data = {"letters": {"settings": {"data": {"text": f"{folder}/train.txt", "valid_size": 3}}, "test": {"text": f"{folder}/test.txt"}}}
    tree = {"name": "letters", "task": "lm", "settings": settings, "data": data, "seeds": [1], "budget": {"updates": 2}, **changes}
    (folder / "lm.yaml").write_text(yaml.safe_dump({"variants": {"x": {}}, **tree}))
    return load_study(folder / "lm.yaml")


@pytest.mark.parametrize(
    "settings",
    [{"vocabulary": {"min_count": 2}}, {"data": {"text": "other.txt"}}, {"data": {"valid_size": 9}}, {"start": {"run": "other"}}],
)
def test_perplexities_of_two_vocabularies_are_not_compared(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "other.txt").write_text("a b c\n" * 30)
    variants = {"variants": {"x": {}, "y": {"settings": settings}}}
    with pytest.raises(
        ConfigError, match=r"the runs letters-x-1 and letters-y-1 differ in vocabulary, training text or start\.run; perplexity per token"
    ):
        check_study(language_study(tmp_path, **variants), tmp_path / "out", beside=tmp_path)
    check_study(language_study(tmp_path, metric="bits per byte", **variants), tmp_path / "out", beside=tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("a b\nb d\n", "1 token the vocabulary does not have"), ("a b\n  b  a\n", "3 bytes of white space that no token predicts")],
)
def test_bits_of_bytes_that_no_token_predicts_are_refused_before_anything_is_trained(tmp_path: Path, text: str, reason: str) -> None:
    variants = {"words": {}, "bytes": {"settings": {"vocabulary": {"kind": "bpe", "size": 300}}}}
    study = language_study(tmp_path, metric="bits per byte", variants=variants)
    (tmp_path / "test.txt").write_text(text)
    with pytest.raises(ConfigError, match=rf"test\.txt: {reason} \(a vocabulary of kind word learned from .*train\.txt\): bits per byte"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("trained"))
    only_bytes = language_study(tmp_path, metric="bits per byte", variants={"bytes": variants["bytes"]})
    (tmp_path / "test.txt").write_text(text)
    run_study(only_bytes, tmp_path / "out", beside=tmp_path)


def test_an_empty_test_text_is_named_before_anything_is_trained(tmp_path: Path) -> None:
    study = language_study(tmp_path)
    (tmp_path / "test.txt").write_text("")
    with pytest.raises(ConfigError, match=r"data\.letters\.test\.text: .*test\.txt: no lines, expected one or more"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


def with_test_of(study: StudyConfig, folder: Path, *, lines: int) -> StudyConfig:
    """Return the study with the first lines of its test set."""
    folder.mkdir(exist_ok=True)
    test = dict(study.data["letters"].test)
    for key in ("source", "target", "links"):
        (folder / key).write_text("".join(Path(test[key]).read_text().splitlines(keepends=True)[:lines]))
        test[key] = str(folder / key)
    return study.model_copy(update={"data": {"letters": study.data["letters"].model_copy(update={"test": test})}})


def without(path: Path, field: str) -> None:
    """Take a field out of a result."""
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != field}))


PLACES = ("results", "earlier_results")


def counted_items(folder: Path) -> list[int]:
    return [len(json.loads(path.read_text())["counts"]) for path in sorted((folder / "results").glob("*.json"))]


def test_a_changed_test_set_is_measured_again_from_the_weights(
    finished: tuple[StudyConfig, Path], tmp_path: Path, messages: list[str], call: Callable[..., tuple[int, bytes, str]]
) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    same = with_test_of(study, tmp_path / "same", lines=9)
    assert run_study(same, out, beside=tmp_path, train=lambda command, log: pytest.fail("trained")) == 0
    assert messages == []  # other paths, the same content
    fewer = with_test_of(study, tmp_path / "fewer", lines=5)
    weights = out / "runs" / "letters-none-1" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(fewer.model_dump(mode="json"), sort_keys=False))
    code, _, err = call("compare", tmp_path / "study.yaml", "--out", out, "--report")
    assert code == 0
    names = "letters-none-1, letters-additive-1, letters-none-2 and 1 more"
    what = "data.letters.test (links, source, target): changed"
    assert f"{what} since 4 finished runs were measured ({names}); without --report, the command measures again" in err
    assert run_study(fewer, out, beside=tmp_path, train=train_here) == 0
    assert f"{what}; measuring 4 finished runs again; earlier results: {out}/earlier_results" in messages
    assert counted_items(out) == [5, 5, 5, 5]
    assert weights.stat().st_mtime_ns == before
    assert {row.figures["megabytes"] for row in build_report(fewer, out, samples=1).rows} == {123.0}
    seconds = [[json.loads(path.read_text())["seconds"] for path in sorted((out / place).glob("*.json"))] for place in PLACES]
    assert seconds[0] == seconds[1]  # of the trainings, not of the starts that found them done
    assert len(list((out / "earlier_results").glob("*.json"))) == 4
    messages.clear()
    assert run_study(fewer, out, beside=tmp_path) == 0
    assert messages == []
    unnamed = out / "results" / "letters-none-2.json"
    for missing in ("tested", "signatures"):
        messages.clear()
        without(unnamed, missing)
        assert run_study(fewer, out, beside=tmp_path, train=train_here) == 0
        why = f"{UNKNOWN}; measuring 1 finished run again"
        assert messages[0] == f"data.letters.test: {why}; earlier results: {out}/earlier_results"
        assert json.loads(unnamed.read_text())[missing]


def test_runs_are_measured_again_by_another_metric(finished: tuple[StudyConfig, Path], tmp_path: Path, messages: list[str]) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    by_characters = study.model_copy(update={"metric": "chrF2"})
    assert run_study(by_characters, out, beside=tmp_path, train=train_here) == 0
    assert messages[0] == f"metric: changed; measuring 4 finished runs again; earlier results: {out}/earlier_results"
    assert build_report(by_characters, out, samples=1).metric == "chrF2"
    shutil.rmtree(out / "runs")
    with pytest.raises(ConfigError, match=r"^metric: changed since the run letters-none-1 was measured, and its weights are not in"):
        run_study(study, out, beside=tmp_path, train=lambda command, log: pytest.fail("trained"))
    fewer = with_test_of(study, tmp_path / "fewer", lines=5)
    with pytest.raises(ConfigError, match=r"^metric and data\.letters\.test \(links, source, target\): changed since the run"):
        run_study(fewer, out, beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


def test_an_interrupted_measurement_is_told_and_loses_nothing(
    finished: tuple[StudyConfig, Path], tmp_path: Path, messages: list[str], call: Callable[..., tuple[int, bytes, str]]
) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    kept = {path.name: path.read_text() for path in (out / "results").glob("*.json")}
    for number, metric in enumerate(("chrF2", "exact match", "BLEU")):
        other = study.model_copy(update={"metric": metric})
        Outdated(other, out, beside=tmp_path).set_aside()  # as a command did that was killed before it measured
        if not number:
            assert run_study(other, out, beside=tmp_path, only="letters-none-2", train=train_here) == 0
    assert {path.name: path.read_text() for path in (out / "earlier_results").glob("*-?.json")} == kept
    assert len(list((out / "earlier_results").glob("*.2.json"))) == 4
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False))
    code, _, err = call("compare", tmp_path / "study.yaml", "--out", out, "--report")
    names = "letters-none-1, letters-additive-1, letters-none-2 and 1 more"
    assert (code, f"4 trained runs wait to be measured again ({names}); without --report, the command measures" in err) == (2, True)
    (out / "runs").rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"letters-none-1: is to be measured again, and .* with its weights is missing; bring it back"):
        run_study(study, out, beside=tmp_path, train=lambda command, log: pytest.fail("trained"))
    (tmp_path / "elsewhere").rename(out / "runs")
    assert run_study(study, out, beside=tmp_path, train=train_here) == 0
    assert counted_items(out) == [9, 9, 9, 9]


def test_every_run_of_a_changed_test_set_is_measured_again(finished: tuple[StudyConfig, Path], tmp_path: Path) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    fewer = with_test_of(study, tmp_path / "fewer", lines=5)
    Outdated(fewer, out, beside=tmp_path).set_aside()  # as a command did that was killed before it measured
    assert run_study(fewer, out, beside=tmp_path, only="letters-none-2", train=train_here) == 0
    assert counted_items(out) == [5, 5, 5, 5]


def test_methods_are_not_added_to_runs_without_weights(finished: tuple[StudyConfig, Path], tmp_path: Path) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    shutil.rmtree(out / "runs" / "letters-none-2")
    more = study.model_copy(update={"methods": ("weights",)})
    with pytest.raises(ConfigError, match=r"the run letters-none-2 is done, but its weights are not in .*; take another folder, or remove"):
        run_study(more, out, beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


def test_checkpoints_asked_for_later_are_measured_without_training(tmp_path: Path, data: Path) -> None:
    valid = {"valid_source": f"{data}/test.source", "valid_target": f"{data}/test.target"}
    study = load_study(written(tmp_path, data, **ALONE, settings={**SMALL, "data": valid}))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    more = study.model_copy(update={"checkpoints": True})
    for _ in range(2):
        assert run_study(more, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    [row] = build_report(more, tmp_path / "out", samples=1).rows
    [(rank, of)] = row.ranks
    assert 1 <= rank <= of


def test_a_changed_test_set_is_refused_without_the_weights(finished: tuple[StudyConfig, Path], tmp_path: Path, messages: list[str]) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    shutil.rmtree(out / "runs")
    fewer = with_test_of(study, tmp_path / "fewer", lines=5)
    where = r"its weights are not in .*letters-none-1; restore it, take another folder, or remove"
    with pytest.raises(ConfigError, match=f"since the run letters-none-1 was measured, and {where}"):
        run_study(fewer, out, beside=tmp_path)
    assert counted_items(out) == [9, 9, 9, 9]
    for path in (out / "results").glob("*.json"):  # as if kept before results named their test sets
        without(path, "tested")
    assert run_study(fewer, out, beside=tmp_path) == 0
    names = "letters-none-1, letters-additive-1, letters-none-2 and 1 more"
    assert [f"{names}: kept; {UNKNOWN}, and the weights are not there"] == messages


def test_runs_are_not_added_to_those_whose_way_of_measuring_is_unknown(finished: tuple[StudyConfig, Path], tmp_path: Path) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    shutil.rmtree(out / "runs")
    without(out / "results" / "letters-none-1.json", "signatures")
    (out / "results" / "letters-none-2.json").unlink()
    with pytest.raises(ConfigError, match=rf"letters-none-1: {UNKNOWN}, and the weights are not in .*cannot be averaged with them"):
        run_study(study, out, beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


def test_results_of_different_test_sets_make_no_report(finished: tuple[StudyConfig, Path], tmp_path: Path) -> None:
    study, folder = finished
    shutil.copytree(folder, out := tmp_path / "out")
    changed = out / "results" / "letters-additive-2.json"
    result = json.loads(changed.read_text())
    assert set(result["tested"]) == {"source", "target", "links", "link_unit"}
    changed.write_text(json.dumps({**result, "tested": {**result["tested"], "target": "0" * 64}}))
    with pytest.raises(ConfigError, match=r"letters-additive-2 and letters-none-1 were measured on different test sets \(target\)"):
        build_report(study, out, samples=1)
    changed.write_text(json.dumps({**result, "tested": None}))
    assert "Their results do not name the test set: letters-additive-2." in markdown(build_report(study, out, samples=1))


def test_a_test_set_that_changes_during_a_study_fails_the_later_runs(tmp_path: Path, data: Path) -> None:
    study = with_test_of(load_study(written(tmp_path, data)), tmp_path / "test", lines=5)

    def changing(command: Sequence[str], log: Path) -> float | None:
        if command[-1].endswith("additive-1"):
            with (tmp_path / "test" / "source").open("a") as file:
                file.write("a b\n")
        return train_here(command, log)

    with pytest.raises(TrainingError, match="1 of 2 runs failed: letters-additive-1"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=changing)
    why = build_report(study, tmp_path / "out", samples=1).missing["letters-additive-1"]
    assert why == "data.letters.test: source changed during the study, whose runs need one test set"


def test_a_training_file_that_cannot_be_read_starts_no_run(tmp_path: Path, data: Path) -> None:
    shutil.copytree(data, tmp_path / "own")
    with (tmp_path / "own" / "train.target").open("a") as file:
        file.write("more\n")
    study = load_study(written(tmp_path, tmp_path / "own"))
    with pytest.raises(DataError, match=r"train\.target: 81 lines, but .*train\.source has 80"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda *_: pytest.fail("trained"))


def test_a_run_that_fails_stops_no_other_and_stands_in_the_report(tmp_path: Path, data: Path, messages: list[str]) -> None:
    def often(command: Sequence[str], log: Path) -> float | None:
        if command[-1].endswith("additive-1"):
            raise TrainingError("no luck")
        return train_here(command, log)

    study, reported = load_study(written(tmp_path, data)), list[int]()
    with pytest.raises(TrainingError, match="1 of 2 runs failed: letters-additive-1; the same command tries them again"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=often, on_result=lambda: reported.append(1))
    assert "letters-additive-1: no luck" in messages
    assert len(reported) == 2
    report = build_report(study, tmp_path / "out", samples=1)
    assert report.missing == {"letters-additive-1": "no luck"}
    assert "Not done: letters-additive-1 (no luck)." in markdown(report)
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    assert build_report(study, tmp_path / "out", samples=1).missing == {}


def test_nothing_is_reported_before_a_run_is_done(tmp_path: Path, data: Path) -> None:
    def fail(command: Sequence[str], log: Path) -> float | None:
        raise TrainingError("no luck")

    with pytest.raises(TrainingError, match="1 of 1 runs failed"):
        run_study(load_study(written(tmp_path, data, **ALONE)), tmp_path / "out", beside=tmp_path, train=fail, on_result=pytest.fail)


def test_nothing_to_report_and_a_damaged_result_are_told(finished: tuple[StudyConfig, Path], tmp_path: Path) -> None:
    study, folder = finished
    with pytest.raises(DataError, match="no run of the study reversing is done"):
        build_report(study, tmp_path)
    (tmp_path / "results").mkdir()
    whole = (folder / "results" / "letters-none-1.json").read_text()
    (tmp_path / "results" / "letters-none-1.json").write_text(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"letters-none-1\.json: damaged result"):
        build_report(study, tmp_path)
    for change, field in (
        ({"scores": {}}, "scores.BLEU"),
        ({"scores": {"BLEU": "high"}}, "scores.BLEU"),
        ({"counts": 3, "attention": None}, "attention, counts"),
        ({"counts": [[1.0], [1.0, 2.0]]}, "counts"),
        ({"cell": None}, "cell"),
        ({"cell": {"data": "letters", "variant": "none"}}, "cell.seed"),
        ({"curve": [{"loss": 1.0}]}, "curve.0.step"),
        ({"by_length": [["1-9", 3]]}, "by_length.0.2"),
        ({"scored": {"metric": "loss", "updates": [3]}}, "scored.value"),
        ({"scored": {"metric": "loss", "value": 1.0, "updates": []}}, "scored.updates"),
        ({"parameters": "many"}, "parameters"),
        ({"scores": {"BLEU": 99.0}}, "scores.BLEU, counts"),
        ({"counts": [[1.0, 2.0], [1.0, 2.0]]}, "metric, counts"),
        ({"attention": {"entropy": -1.0}}, "attention.entropy"),
        ({"attention": {"areas": {"x": 0.5}}}, r"attention.areas.x.\[key\]"),
        ({"training_examples": None}, "training_examples"),
        ({"trained_on": [1]}, "trained_on"),
        ({"epochs": []}, "epochs"),
        ({"most_frequent": [1]}, "most_frequent"),
    ):
        (tmp_path / "results" / "letters-none-1.json").write_text(json.dumps({**json.loads(whole), **change}))
        with pytest.raises(ConfigError, match=rf"letters-none-1\.json: damaged result: {field} missing or wrong; remove it"):
            build_report(study, tmp_path)
    other = {**json.loads(whole), "cell": {"data": "letters", "variant": "none", "seed": 2}}
    (tmp_path / "results" / "letters-none-1.json").write_text(json.dumps(other))
    with pytest.raises(ConfigError, match=r"letters-none-1\.json: damaged result: cell is that of another run; remove it"):
        build_report(study, tmp_path)
    (tmp_path / "results" / "letters-none-1.json").unlink()
    (tmp_path / "results" / "letters-none-1.json").mkdir()
    with pytest.raises(ConfigError, match=r"letters-none-1\.json: cannot be read \(.*\)$"):  # nothing to remove without a look
        build_report(study, tmp_path)
    (tmp_path / "results" / "letters-none-1.json").rmdir()
    (tmp_path / "results" / "letters-none-1.json").write_text(whole)
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "letters-none-2.txt").write_bytes(b"\xff: no such file\n")  # names of files may be anything
    assert build_report(study, tmp_path).missing["letters-none-2"] == "\ufffd: no such file"
    with pytest.raises(ConfigError, match=r"letters-.*-1\.json: its main score is BLEU, the study compares by chrF2; without --report"):
        build_report(study.model_copy(update={"metric": "chrF2"}), folder)


@pytest.mark.slow
def test_a_signal_saves_the_run_and_the_same_command_goes_on(
    tmp_path: Path, data: Path, call: Callable[..., tuple[int, bytes, str]]
) -> None:
    path, out = written(tmp_path, data, budget={"updates": 60}, **ALONE), tmp_path / "out"
    words = ["compare", str(path), "--out", str(out)]
    log = out / "runs" / "letters-none-1" / "log.jsonl"
    with subprocess.Popen([sys.executable, "-m", "regard", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while not (log.exists() and log.read_bytes().count(b'"train"') >= 2) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143, err
    assert "stopped by signal 15; the same command resumes it" in err
    assert not list((out / "results").glob("*"))
    assert not (out / ".lock").exists()
    assert json.loads(log.read_text().splitlines()[-1])["event"] == "stop"
    code, told, err = call(*words)
    assert code == 0, err
    assert b"report.html" in told
    [row] = build_report(load_study(path), out, samples=1).rows
    assert row.figures["updates"] == 60
    assert (row.figures["megabytes"] or 0) > 50
    assert '"event": "resume"' in log.read_text()
    assert row.command in (out / "report.md").read_text(encoding="utf-8")


def test_a_run_that_fails_is_named_with_its_last_word(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"regard train poetry: ended with 2: .*poetry.*run\.log"):
        train_apart(["regard", "train", "poetry"], tmp_path / "run.log")


@pytest.mark.parametrize("code", [130, 143])
def test_a_signal_to_all_processes_stops_the_study_though_the_training_ends_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "ending.py").write_text(f"raise SystemExit({code})\n")
    monkeypatch.chdir(tmp_path)
    stopped, leave = threading.Event(), subprocess.Popen.__exit__

    def ended(process: subprocess.Popen[bytes], *why: Any) -> None:
        threading.Timer(0.3, stopped.set).start()
        leave(process, *why)

    monkeypatch.setattr(subprocess.Popen, "__exit__", ended)
    with pytest.raises(StudyStopped):
        train_apart(["ending"], tmp_path / "run.log", stop=stopped.is_set)
    stopped.clear()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WorkerLost, match="its training ended by SIG"):  # the training alone was stopped
        train_apart(["ending"], tmp_path / "run.log")


def test_bleu_of_targets_without_four_words_is_refused_before_anything_is_trained(tmp_path: Path, data: Path) -> None:
    study = load_study(written(tmp_path, data, metric="BLEU"))
    (tmp_path / "short").write_text("a b c\n" * len((data / "test.target").read_text().splitlines()))
    test = {**study.data["letters"].test, "target": str(tmp_path / "short")}
    study = study.model_copy(update={"data": {"letters": study.data["letters"].model_copy(update={"test": test})}})
    with pytest.raises(ConfigError, match=r"data\.letters\.test: no target has four words, so BLEU is 0 whatever the output; set metric"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


def test_a_file_of_a_test_set_that_is_not_there_is_named_before_anything_is_trained(tmp_path: Path, data: Path) -> None:
    study = load_study(written(tmp_path, data))
    (changed := dict(study.data["letters"].test))["links"] = str(tmp_path / "no.links")
    study = study.model_copy(update={"data": {"letters": study.data["letters"].model_copy(update={"test": changed})}})
    with pytest.raises(ConfigError, match=r"data\.letters\.test\.links: .*no\.links: no such file"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


@pytest.mark.parametrize(
    ("lines", "message"),
    [(1, r"test\.links: 1 line, but \d+ sentence pairs"), (0, r"test\.links, line 2: 0-99, but the target has \d+ characters?, numbered")],
)
def test_links_that_do_not_fit_are_named_before_anything_is_trained(tmp_path: Path, data: Path, lines: int, message: str) -> None:
    shutil.copytree(data, tmp_path / "own")
    file = tmp_path / "own" / "test.links"
    own = file.read_text().splitlines(keepends=True)
    file.write_text("".join(own[:lines] or [own[0], "0-99\n", *own[2:]]))
    study = load_study(written(tmp_path, tmp_path / "own"))
    with pytest.raises(DataError, match=message):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("trained"))


def test_settings_that_do_not_fit_together_are_named_before_anything_is_trained(tmp_path: Path, data: Path) -> None:
    wrong = {"variants": {**VARIANTS, "dot": {"settings": {"model": {"attention": {"score": "dot"}}}}}}
    study = load_study(written(tmp_path, data, **wrong))
    with pytest.raises(ConfigError, match=r"reversing: the run letters-dot-1: .*decoder_dim is 8"):
        run_study(study, tmp_path / "out", beside=tmp_path, train=lambda command, log: pytest.fail("a run was trained"))


def test_a_transformer_runs_beside_others_on_two_vocabularies(tmp_path: Path, data: Path) -> None:
    model = {"type": "transformer", "embed_dim": 8, "num_heads": 2, "ff_dim": 8, "encoder_layers": 1, "decoder_layers": 1}
    settings = {name: part for name, part in SMALL.items() if name != "model"} | {"vocabulary": {"kind": "word", "shared": False}}
    changes = {"settings": settings, "variants": {"transformer": {"settings": {"model": model}}}}
    study = load_study(written(tmp_path, data, **changes))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    assert not load_config(tmp_path / "out" / "configs" / "letters-transformer-1.yaml").model.share_embeddings


@pytest.mark.slow
@pytest.mark.parametrize(
    ("killed", "number", "why"),
    [
        ("training", signal.SIGKILL, "signal 9"),
        ("training", signal.SIGTERM, "signal 9"),
        ("worker", signal.SIGTERM, "signal 15"),  # as its machine does when it shuts down
    ],
)
def test_workers_share_a_study_and_a_killed_one_is_replaced(
    tmp_path: Path, data: Path, call: Callable[..., tuple[int, bytes, str]], killed: str, number: int, why: str
) -> None:
    path = written(tmp_path, data, budget={"updates": 60})
    assert call("compare", path, "--out", tmp_path / "alone")[0] == 0
    out, words = tmp_path / "out", ["--workers", "2", "--cpus", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "regard", "compare", str(path), "--out", str(out), *words], stderr=subprocess.PIPE, text=True
    ) as process:
        first = out / "runs" / "letters-none-1"
        deadline = time.monotonic() + 60
        while not list(first.glob("checkpoints/step-*/manifest.json")) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        training = json.loads((first / ".lock").read_text())["pid"]
        parent = int(subprocess.check_output(["ps", "-o", "ppid=", "-p", str(training)]))
        os.kill(training if killed == "training" else parent, number)
        _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert f"letters-none-1: its worker was lost ({why}); another worker takes it" in err
    for name in ("letters-none-1", "letters-additive-1"):
        files = [tmp_path / each / "runs" / name / "model" / "model.safetensors" for each in ("alone", "out")]
        assert files[0].read_bytes() == files[1].read_bytes()
    assert '"resume"' in (first / "log.jsonl").read_text()


def test_torchrun_is_told_of_workers(
    tmp_path: Path, data: Path, call: Callable[..., tuple[int, bytes, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    code, _, err = call("compare", written(tmp_path, data), "--out", tmp_path / "out")
    assert (code, err) == (2, "regard: error: compare: torchrun starts it several times; give it --workers N instead\n")


def test_a_line_of_a_log_that_was_cut_off_does_not_stop_a_study(tmp_path: Path, data: Path) -> None:
    study, out = load_study(written(tmp_path, data, **ALONE)), tmp_path / "out"
    assert run_study(study, out, beside=tmp_path, train=train_here) == 0
    [run] = (out / "runs").glob("*/")
    [result] = (out / "results").glob("*.json")
    expected = json.loads(result.read_text())["scores"]
    result.unlink()
    shutil.rmtree(run / "model")
    log = [line for line in (run / "log.jsonl").read_text().splitlines() if '"done"' not in line]
    (run / "log.jsonl").write_text("\n".join([*log, '{"event": "save",']))  # as a full disk leaves it
    assert run_study(study, out, beside=tmp_path, train=train_here) == 0
    assert json.loads(result.read_text())["scores"] == expected
    assert json.loads(result.read_text())["seconds_per_update"] > 0
    # A log that does not name the time of an update is one of a version that did not.
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    text = "".join(json.dumps({key: value for key, value in line.items() if key != "seconds_per_update"}) + "\n" for line in log)
    (run / "log.jsonl").write_text(text)
    result.unlink()
    assert run_study(study, out, beside=tmp_path, train=train_here) == 0
    assert json.loads(result.read_text()).get("seconds_per_update") is None


def test_a_report_that_fails_does_not_stop_the_runs_that_are_left(tmp_path: Path, data: Path) -> None:
    study, out = load_study(written(tmp_path, data, budget={"updates": 1}, seeds=[1, 2])), tmp_path / "out"
    reported = list[int]()

    def report() -> None:
        reported.append(1)
        raise ConfigError("two ways")

    with pytest.raises(ConfigError, match="two ways"):
        run_study(study, out, beside=tmp_path, train=train_here, on_result=report)
    assert len(reported) == len(list((out / "results").glob("*.json"))) == len(study_cells(study)) > 1


def test_some_runs_can_be_done_before_the_others(
    tmp_path: Path, data: Path, call: Callable[..., tuple[int, bytes, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.study.grid.train_apart", lambda command, log, stop: train_here(command, log))
    path, out = written(tmp_path, data, budget={"updates": 1}, seeds=[1, 2]), tmp_path / "out"
    words = ["compare", path, "--out", out]
    code, told, err = call(*words, "--only", "*-2")
    assert code == 0, err
    assert [line.split()[1] for line in told.decode().splitlines()[:4] if line] == ["variant", "none", "additive"]
    assert told.count(b"variant ") == 1
    assert sorted(file.name for file in (out / "results").iterdir()) == ["letters-additive-2.json", "letters-none-2.json"]
    assert "Not done: letters-none-1; letters-additive-1." in (out / "report.md").read_text(encoding="utf-8")
    assert call(*words)[0] == 0
    assert len(list((out / "results").iterdir())) == 4
    code, told, err = call(*words, "--only", "*-additive-*", "--estimate")
    assert (code, [line.split()[1] for line in told.decode().splitlines()[:2]]) == (0, ["variant", "additive"]), err
    code, _, err = call(*words, "--only", "*-3")
    assert (code, "no run is named '*-3'; a run's name is DATA-VARIANT-SEED, such as letters-none-1" in err) == (2, True), err
    assert call(*words, "--only", "*", "--report")[0] == 2


def test_a_budget_of_tokens_becomes_updates(tmp_path: Path, data: Path) -> None:
    study = load_study(written(tmp_path, data, budget={"tokens": 2000}, **ALONE))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    [trial] = (tmp_path / "out" / "trials").glob("*.json")
    a_batch = json.loads(trial.read_text())["tokens_per_update"]
    assert 100 < a_batch <= 300  # batches of at most 300 padded tokens
    [row] = build_report(study, tmp_path / "out", samples=1).rows
    assert row.figures["updates"] == round(2000 / a_batch)
    # Another seed, also in front, has as many updates.
    more = study.model_copy(update={"seeds": [0, *study.seeds]})
    check_study(more, tmp_path / "out", beside=tmp_path)


def test_a_budget_of_seconds_becomes_updates(tmp_path: Path, data: Path) -> None:
    study = load_study(written(tmp_path, data, budget={"seconds": 0.5}, **ALONE))
    assert run_study(study, tmp_path / "out", beside=tmp_path, train=train_here) == 0
    [trial] = (tmp_path / "out" / "trials").glob("*.json")
    expected = max(1, int(0.5 / json.loads(trial.read_text())["seconds_per_update"]))
    [row] = build_report(study, tmp_path / "out", samples=1).rows
    assert row.figures["updates"] == expected
