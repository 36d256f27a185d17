"""What a study says of a finished run is what its task's own evaluation says, item by item, for every task."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from regard.config import CaptioningConfig, ClassificationConfig, TranslationConfig, validate
from regard.data.captions import read_captions
from regard.data.image_features import write_features
from regard.data.lines import read_lines
from regard.errors import ConfigError, DataError
from regard.metrics.significance import score_of_counts
from regard.study.measure import RunMeasures, attention_of, checkpoint_selection, measure_run, most_frequent_class, seen_items
from regard.study.training_figures import training_figures
from regard.tasks.captioning_data import open_caption_sets
from regard.tasks.captioning_training import train_captioning
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.language_training import evaluate_language, open_language_run
from regard.tasks.run_folder import read_config
from regard.tasks.synthetic_data import generate
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

AREA = {"type": "show", "embed_dim": 7, "decoder_dim": 11, "attention_dim": 5, "feature_dim": 6, "area": {"height": 2, "width": 2}}


def named(found: RunMeasures) -> dict[str, float]:
    """Return the scores by name; each has a signature."""
    assert all(score.signature for score in found.scores)
    return {score.name: score.value for score in found.scores}


def check(found: RunMeasures, lines: int) -> None:
    """The counts of the items make the main score, which is one of the scores."""
    assert len(found.counts) == found.lines == lines
    assert score_of_counts(found.metric, found.counts.sum(0)) == pytest.approx(named(found)[found.main], abs=1e-9)
    assert found.seconds > 0


def sizes(run: Path) -> list[int]:
    """Return the numbers of training and validation examples of a run."""
    figures = training_figures(run)
    assert figures["seconds"] > 0
    return [figures["training_examples"], figures["validation_examples"]]


def test_translation(tmp_path: Path) -> None:
    run = tiny.trained(tmp_path / "one")
    test = tiny.write_pairs(tmp_path, repeats=1)
    found = measure_run("translation", run, test)
    check(found, len(Path(test["source"]).read_text().splitlines()))
    assert {"BLEU", "chrF2", "perplexity"} <= set(named(found))
    assert attention_of("translation", run, test)["entropy"] > 0
    assert sum(count for _, count, _ in found.by_length) == found.lines
    other = measure_run("translation", run, test, metric="chrF2")
    check(other, found.lines)
    assert (found.main, other.main) == ("BLEU", "chrF2")
    check(measure_run("translation", run, test, metric="exact match"), found.lines)


def test_what_validation_would_choose_is_ranked_among_all_checkpoints(tmp_path: Path) -> None:
    test = tiny.write_pairs(tmp_path, repeats=1)
    valid = {"valid_source": test["source"], "valid_target": test["target"]}
    limits = {"max_updates": 40, "epochs": 40, "evaluate_every": 10, "keep_checkpoints": 9, "learning_rate": 0.02}
    run = tiny.trained(tmp_path / "one", kind="word", data=valid, training=limits)
    passing = shutil.copytree(run / "checkpoints" / "step-00000030", run / "checkpoints" / "step-00000035") / "state.json"
    state = json.loads(passing.read_text())
    passing.write_text(json.dumps({**state, "progress": {**state["progress"], "step": 35}}))  # as a signal saves it
    found = checkpoint_selection(run, test, metric="chrF2")
    assert [step for step, _, _ in found.points] == [10, 20, 30, 40]
    assert all(on_valid == on_test for _, on_valid, on_test in found.points), "one set for both"
    assert len({on_test for _, _, on_test in found.points}) > 1, "the checkpoints differ"
    assert (found.rank, found.of) == (1, 4)
    exact = checkpoint_selection(run, test, metric="exact match").points
    assert all(score in (0.0, 20.0, 40.0, 60.0, 80.0, 100.0) for _, score, _ in exact), "of five sentences"
    with pytest.raises(ConfigError, match=r"needs data\.valid_source"):
        checkpoint_selection(tiny.trained(tmp_path / "two"), test)


def test_captioning_with_areas(tmp_path: Path) -> None:
    run = tiny_captions.trained(tmp_path / "one", AREA)
    generate("scenes", tmp_path / "scenes", train=1, test=5, seed=3)
    test = {"captions": str(tmp_path / "scenes" / "test.tsv")}
    check(measure_run("captioning", run, test), 5)
    check(measure_run("captioning", run, test, metric="ROUGE-L"), 5)
    check(measure_run("captioning", run, test, metric="BLEU-4"), 5)
    assert sizes(run) == [len(part) for part in open_caption_sets(read_config(run, CaptioningConfig), run)]
    figures = attention_of("captioning", run, test)
    assert figures["entropy"] > 0
    assert set(figures["areas"]) == {"1", "2", "4"}  # cells, pairs, squares
    assert sum(figures["areas"].values()) == pytest.approx(1)


def test_captions_of_features_need_no_images(tmp_path: Path) -> None:
    captions, _ = tiny_captions.write_set(tmp_path)
    ids = read_captions(captions).ids
    shutil.rmtree(tmp_path / "train")
    write_features(tmp_path / "f.safetensors", ids, (np.full((4, 5), place, np.float32) for place in range(len(ids))), grid=(2, 2))
    test = {"captions": str(captions), "features": str(tmp_path / "f.safetensors")}
    model = {**AREA, "encoder": {"type": "features"}}
    run = tmp_path / "run"
    train_captioning(tiny_captions.configuration(captions, model, data={"features": test["features"]}), run)
    check(measure_run("captioning", run, test), len(ids))
    assert attention_of("captioning", run, test) == {}


def test_test_items_that_were_trained_on_are_counted(tmp_path: Path) -> None:
    def file(name: str, *lines: str) -> str:
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(tmp_path / name)

    config = validate({"data": {"source": file("train.tsv", "a b\tx", "c\ty", "c\tz")}}, "test", kind=TranslationConfig)
    test = {"source": file("a", "c", "c", "A b", "d"), "target": file("b", "1", "2", "3", "4")}
    assert seen_items(config, test) == 2
    second = {**test, "second_source": file("c", "1", "2", "3", "4")}
    model = {"type": "transformer", "second": {"kind": "serial"}}
    both = validate({"data": second, "model": model}, "test", kind=TranslationConfig)
    assert seen_items(both, {**second, "second_source": file("d", "2", "1", "3", "5")}) == 3, "both inputs must be the same"
    examples, labelled = file("train.labels.tsv", "no\tbad film", "yes\tgood film"), file("test.tsv", "yes\tbad film", "no\tother")
    labels = validate({"data": {"train": examples}}, "test", kind=ClassificationConfig)
    assert seen_items(labels, {"examples": labelled}) == 1
    Path(examples).unlink()
    assert seen_items(labels, {"examples": labelled}) is None, "measured again from its weights alone"


def test_the_most_frequent_class_is_that_of_the_training_data(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("no\ta\nyes\tb\nyes\tc\nno\td\nyes\te\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("no\ta\nno\tb\nno\tc\nyes\td\n", encoding="utf-8")
    config = validate({"data": {"train": str(tmp_path / "train.tsv")}}, "test", kind=ClassificationConfig)
    test = {"examples": str(tmp_path / "test.tsv")}
    assert most_frequent_class(config, test) == {"label": "yes", "accuracy": 25.0}
    (tmp_path / "train.tsv").unlink()
    assert most_frequent_class(config, test) is None
    assert most_frequent_class(validate({}, "test", kind=TranslationConfig), {"source": "a", "target": "b"}) is None


@pytest.mark.parametrize(("task", "pooling"), [("classification", "structured"), ("entailment", "max"), ("classification", "last")])
def test_labels(tmp_path: Path, task: str, pooling: str) -> None:
    config = tiny_sentences.configuration(tmp_path, task=task, model={"pooling": pooling}, training={"max_updates": 2})
    tiny_sentences.train(config, tmp_path / "run")
    assert config.data.valid is not None
    test = {"examples": config.data.valid}
    found = measure_run(task, tmp_path / "run", test)
    check(found, found.lines)
    other = measure_run(task, tmp_path / "run", test, metric="macro-F1")
    check(other, found.lines)
    assert (other.main, other.scores) == ("macro-F1", found.scores)
    read = [read_labelled_file(config, str(path)).examples for path in (config.data.train, config.data.valid)]
    assert sizes(tmp_path / "run") == list(map(len, read))
    assert (attention_of(task, tmp_path / "run", test) == {}) == (pooling == "last")


@pytest.mark.parametrize("attention", ["key_value", "none"])
def test_language(tmp_path: Path, attention: str) -> None:
    tiny_language.run(tmp_path, model={"attention": attention}, training={"max_updates": 2})
    test = {"text": str(tmp_path / "valid_text")}
    check(measure_run("lm", tmp_path / "run", test), 3)
    assert sizes(tmp_path / "run") == [len((tmp_path / name).read_text().splitlines()) for name in ("text", "valid_text")]
    figures = attention_of("lm", tmp_path / "run", test)
    assert (figures == {}) == (attention == "none")


@pytest.mark.parametrize("context", ["continuous", "separate"])
def test_a_language_model_reads_the_test_text_as_in_training(tmp_path: Path, context: str) -> None:
    tiny_language.run(tmp_path, data={"context": context}, training={"max_updates": 2})
    test = {"text": str(tmp_path / "valid_text")}
    run = open_language_run(tmp_path / "run")
    expected = {score.name: score.value for score in evaluate_language(run, list(read_lines(test["text"])))}
    for metric in ("perplexity", "bits per byte"):
        found = measure_run("lm", tmp_path / "run", test, metric=metric)
        check(found, 3)
        assert named(found)[metric] == pytest.approx(expected[f"{metric}, {context}"], rel=1e-5)


def test_a_diverged_language_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_language.run(tmp_path, training={"max_updates": 2})
    monkeypatch.setattr("regard.study.measure.MOST_NATS", 0.1)
    with pytest.raises(DataError, match=r"run: .* nats per token on .*valid_text, over 0\.1; the training has diverged"):
        measure_run("lm", tmp_path / "run", {"text": str(tmp_path / "valid_text")})


def test_a_score_that_is_not_finite_is_a_training_that_diverged(tmp_path: Path) -> None:
    run = tiny.trained(tmp_path, training={"learning_rate": 1e6, "warmup_updates": 0, "max_updates": 5})
    with pytest.raises(DataError, match=r"run: perplexity is inf on the test set; the training has diverged"):
        measure_run("translation", run, tiny.write_pairs(tmp_path, repeats=1), metric="chrF2")


def test_bits_per_byte_of_unknown_words_are_refused(tmp_path: Path) -> None:
    tiny_language.run(tmp_path, kind="word", training={"max_updates": 2})
    (tmp_path / "new").write_text("never-seen\n")
    measured = measure_run("lm", tmp_path / "run", {"text": str(tmp_path / "new")})
    assert list(named(measured)) == ["perplexity"]
    with pytest.raises(DataError, match=r"new: 1 token the vocabulary does not have \(.*run\): bits per byte are not defined"):
        measure_run("lm", tmp_path / "run", {"text": str(tmp_path / "new")}, metric="bits per byte")
