"""Runs on labelled sentences: learned, resumed, opened, asked; an answer does not depend on what else is asked."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config import ClassificationConfig, EntailmentConfig, load_config
from regard.data.labelled import LabelledExample, LabelledFile
from regard.errors import CheckpointError, ConfigError, DataError, NoAttentionError, RegardError
from regard.tasks.classification_data import encode_labelled, read_labelled_file
from regard.tasks.classification_evaluation import describe_label_comparison, describe_labels, evaluate_labels
from regard.tasks.classification_prediction import Classifier, Entailer, label_texts, split_pair
from regard.tasks.classification_run import RUN_FILES, open_sentence_run
from regard.tasks.classification_training import measure_labels
from regard.tasks.classifier_attention import describe_explanation, explain_run
from regard.tasks.classifier_faithfulness import measure_faithfulness
from regard.tasks.hop_attention import example_records, hop_overlap, label_records, line_records, words_by_label
from tests.tasks.tiny_sentences import CLASSIFIERS, DECIDING, ENTAILERS, configuration, pairs, sentences, train, untrained, write

KINDS = [("classification", name) for name in CLASSIFIERS] + [("entailment", name) for name in ENTAILERS]
CONFIGS = Path(__file__).parents[2] / "configs"
LEARNING = {"model": {"embed_dim": 32, "encoder": {"hidden_size": 12}, "dropout": 0.4, "embed_dropout": 0.0}}


def models(task: str, name: str) -> dict[str, Any]:
    return (CLASSIFIERS if task == "classification" else ENTAILERS)[name]


def examples(task: str, count: int, seed: int = 11) -> list[tuple[str, ...]]:
    rows: Any = sentences(count, seed) if task == "classification" else pairs(count, seed)
    return [tuple(row[1:]) for row in rows]


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a classification run that has learned its words, with its files beside it."""
    folder = tmp_path_factory.mktemp("learned")
    settings = {**LEARNING, "training": {"epochs": 6, "learning_rate": 0.02, "metric": "loss"}}
    train(configuration(folder, count=300, **settings), folder / "run")
    write(folder / "test.tsv", sentences(101, 7))
    return folder


def test_the_deciding_word_is_learned_and_looked_at(learned: Path) -> None:
    classifier = Classifier.open(learned / "run")
    rows = sentences(101, 7)
    found = classifier.classify([text for _, text in rows], need_weights=True)
    assert [item.label for item in found] == [label for label, _ in rows]
    deciding = {word for both in DECIDING.values() for word in both}
    hits = 0
    for (_, text), item in zip(rows, found, strict=True):
        assert item.weights is not None
        hits += text.split()[int(item.weights[0].sum(0).argmax())] in deciding
        assert sum(item.probabilities.values()) == pytest.approx(1)
        assert item.probabilities[item.label] == max(item.probabilities.values())
    assert hits >= 95


def test_what_was_looked_at_is_what_counts(learned: Path) -> None:
    found = explain_run(learned / "run", learned / "test.tsv", max_words=3, random_draws=2)
    for point in found.faithfulness.points:
        assert point.comprehensiveness > point.comprehensiveness_random + 0.2
        assert point.change > point.change_random + 0.2
        assert point.sufficiency < point.sufficiency_random - 0.2
        assert point.flips > point.flips_random
    assert found.faithfulness.examples + found.faithfulness.left_out == 101
    best = {row.label: row.words[0][0] for row in found.words if row.hop == 0 and row.words}
    assert all(word in DECIDING[label] for label, word in best.items())
    assert [record.title for record in found.records] == [f"texts predicted as {label}" for label in ("bad", "good", "odd")]
    told: list[str] = []
    describe_explanation(found, told.append)
    assert any(line.startswith("k = 3: without +") for line in told)
    assert json.loads(json.dumps(found.to_json()))["overlap"]["hops"] == 3


@pytest.mark.parametrize("name", ["gated", pytest.param("crossed", marks=pytest.mark.slow)])
def test_whether_two_texts_agree_is_learned(tmp_path: Path, name: str) -> None:
    model = {**models("entailment", name), "embed_dim": 16, "penalty": 0.0, "dropout": 0.0, "embed_dropout": 0.0, "mlp_dim": 16}
    if name == "crossed":
        model["encoder"] = {**model["encoder"], "shared": False}
    settings = {"epochs": 12, "learning_rate": 0.01, "metric": "loss", "patience": 4, "batch_tokens": 160}
    train(configuration(tmp_path, task="entailment", count=400, model=model, training=settings), tmp_path / "run")
    rows = pairs(61, 7)
    found = Entailer.open(tmp_path / "run").entail([row[1:] for row in rows])
    assert sum(item.label == row[0] for item, row in zip(found, rows, strict=True)) >= 55


@pytest.mark.parametrize(("task", "name"), KINDS)
def test_every_kind_is_trained_opened_and_asked(tmp_path: Path, task: str, name: str) -> None:
    config = configuration(tmp_path, task=task, model=models(task, name), training={"max_updates": 2})
    train(config, tmp_path / "run")
    run = open_sentence_run(tmp_path / "run", type(config))
    assert run.config == config.model_copy(update={"training": config.training.model_copy(update={"micro_batches": 1})})  # of 100 tokens
    assert run.labels == (("bad", "good", "odd") if task == "classification" else ("no", "yes"))
    evaluation = evaluate_labels(run, read_labelled_file(config, str(config.data.valid)))
    assert [score.name for score in evaluation.scores] == ["accuracy", "macro-F1", "calibration error", "log loss"]
    assert evaluation.confusion.counts.sum() == 17


@pytest.mark.parametrize(("task", "name"), KINDS)
def test_the_batch_never_changes_an_answer(tmp_path: Path, task: str, name: str) -> None:
    run = untrained(tmp_path, task=task, model=models(task, name))
    lines = [*examples(task, 80), ("",) * (1 + (task == "entailment")), ("strange words",) * (1 + (task == "entailment"))]
    random.Random(3).shuffle(lines)
    together = label_texts(run, lines, need_weights=True)
    for line, item in zip(lines, together, strict=True):
        (alone,) = label_texts(run, [line], need_weights=True)
        assert alone.label == item.label
        assert alone.probabilities == pytest.approx(item.probabilities, abs=1e-5)
        for one, other in zip(alone.weights or (), item.weights or (), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    assert len({tuple(item.probabilities.values()) for item in together}) > 60
    assert sum(not item.label for item in together) == 1


@pytest.mark.parametrize("at", ["update 3", "saved 4", "evaluate 5", "save 5 rename"])
@pytest.mark.parametrize(("task", "name"), [("classification", "structured"), ("classification", "transformer"), ("entailment", "gated")])
def test_a_killed_run_resumes_exactly(tmp_path: Path, task: str, name: str, at: str) -> None:
    model = {**models(task, name), "word_dropout": 0.2}
    training = {"max_updates": 7, "save_every": 2, "evaluate_every": 5, "ema_decay": 0.9, "batch_tokens": 130}
    config = configuration(tmp_path, task=task, model=model, training=training)
    straight = train(config, tmp_path / "straight")

    class Killed(BaseException):
        pass

    def kill(event: str) -> None:
        if event == at:
            raise Killed

    with pytest.raises(Killed):
        train(config, tmp_path / "killed", on_event=kill)
    resumed = train(config, tmp_path / "killed")
    assert resumed.weights_sha256 == straight.weights_sha256
    assert resumed.metrics == straight.metrics
    final = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("straight", "killed")]
    assert final[0] == final[1]


def test_training_in_half_precision_works(tmp_path: Path) -> None:
    config = configuration(tmp_path, model=CLASSIFIERS["structured"], training={"max_updates": 2, "precision": "bf16"})
    assert train(config, tmp_path / "run").step == 2


def test_it_stops_when_accuracy_no_longer_grows(tmp_path: Path) -> None:
    config = configuration(tmp_path, count=300, **{**LEARNING, "training": {"epochs": 40, "learning_rate": 0.02, "patience": 2}})
    result = train(config, tmp_path / "run")
    assert result.reason == "patience"
    assert result.best_value == 1.0
    assert set(result.metrics) == {"loss", "accuracy", "macro_f1"}


def test_examples_that_cannot_be_used_are_counted_and_strange_labels_named(tmp_path: Path) -> None:
    run = untrained(tmp_path)
    rows = [
        LabelledExample("good", ("a joy",), 1),
        LabelledExample("bad", (" ",), 2),
        LabelledExample("bad", ("a " * 24,), 3),
        LabelledExample("bad", ("a " * 23,), 4),
    ]
    corpus = encode_labelled(LabelledFile("x.tsv", rows, 0), run.config, run.vocabulary, run.labels)
    assert corpus.lines.tolist() == [1, 4]
    assert corpus.left_out == {"empty": 1, "too long": 1}
    with pytest.raises(
        DataError, match=r"x\.tsv: no example can be used: 1 with an empty text, 1 longer than data\.max_length \(23 tokens\)"
    ):
        encode_labelled(LabelledFile("x.tsv", rows[1:3], 0), run.config, run.vocabulary, run.labels)
    for use in (lambda f: encode_labelled(f, run.config, run.vocabulary, run.labels), lambda f: evaluate_labels(run, f)):
        with pytest.raises(DataError, match=r"x\.tsv, line 9: label 'great', .* bad, good, odd"):
            use(LabelledFile("x.tsv", [LabelledExample("great", ("a",), 9)], 0))


def test_class_weights_count_the_examples_that_are_used(tmp_path: Path) -> None:
    some = [("bad", "a")] * 2 + [("good", "a")] * 2 + [("good", "")] * 3 + [("odd", "a")] * 2
    file = LabelledFile("x", [LabelledExample(label, (text,), n) for n, (label, text) in enumerate(some)], 0)
    run = untrained(tmp_path, model={"class_weights": "balanced"})
    assert set(encode_labelled(file, run.config, run.vocabulary, run.labels).weights) == {1.0}


@pytest.mark.parametrize("task", ["classification", "entailment"])
def test_the_speed_of_a_training_is_in_tokens(tmp_path: Path, task: str) -> None:
    config = configuration(tmp_path, task=task, training={"epochs": 1, "log_every": 1, "workers": 1})
    train(config, tmp_path / "run")
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    counted = sum(event["tokens_per_second"] * event["seconds_per_update"] for event in events if event["event"] == "train")
    rows = [line.split("\t")[1:] for line in (tmp_path / "train.tsv").read_text().splitlines()]
    ids = open_sentence_run(tmp_path / "run").vocabulary.encode_ids
    assert counted == pytest.approx(sum(max(map(len, ids(texts))) for texts in rows))


def test_class_weights_count_rare_labels_for_more(tmp_path: Path) -> None:
    file = LabelledFile(
        "x",
        [LabelledExample("bad", ("a",), n) for n in range(6)] + [LabelledExample("good", ("a",), 7), LabelledExample("odd", ("a",), 8)],
        0,
    )
    for chosen, expected in (("none", {1.0}), ("balanced", {8 / 18, 8 / 3}), ({"bad": 3.0, "good": 1.0, "odd": 0.5}, {3.0, 1.0, 0.5})):
        run = untrained(tmp_path, model={"class_weights": chosen})
        corpus = encode_labelled(file, run.config, run.vocabulary, run.labels)
        assert set(corpus.weights) == expected
    assert corpus.batch(corpus.plan(batch_tokens=99, seed=1, epoch=0)[0]).weights.sum() == 6 * 3 + 1.5


def test_word_vectors_are_the_start_of_the_words_they_have(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "vectors.txt").write_text("joy 1 2 3 4 5 6\nTHE 9 9 9 9 9 9\nbore 6 5 4 3 2 1\n")
    model = {"tune_embeddings": False}
    config = configuration(tmp_path, data={"vectors": str(tmp_path / "vectors.txt")}, model=model, training={"max_updates": 1})
    from regard.tasks.classification_training import train_classification

    assert isinstance(config, ClassificationConfig)
    train_classification(config, tmp_path / "run")
    run = open_sentence_run(tmp_path / "run", ClassificationConfig)
    words = run.vocabulary.pieces(range(len(run.vocabulary)))
    assert run.model.embedding.weight[words.index("joy")].tolist() == [1, 2, 3, 4, 5, 6]
    assert run.model.embedding.weight[words.index("bore")].tolist() == [6, 5, 4, 3, 2, 1]
    assert run.model.embedding.weight[words.index("the")].abs().max() < 9
    (line,) = [line for line in messages if "vectors.txt" in line]
    assert f"vectors for 2 of {len(words) - 4} words of the vocabulary" in line


def test_faithfulness_takes_away_what_it_says(tmp_path: Path) -> None:
    run = untrained(tmp_path)
    text = "the joy film with plot riddle"
    (item,) = label_texts(run, [(text,)], need_weights=True)
    assert item.weights is not None
    order = np.argsort(-item.weights[0].sum(0), kind="stable")
    words = text.split()
    found = measure_faithfulness(run, [(text,), ("too short",)], max_words=5, random_draws=3)
    assert (found.examples, found.left_out) == (1, 1)
    for k, point in enumerate(found.points, start=1):
        without = " ".join(word for at, word in enumerate(words) if at not in order[:k])
        only = " ".join(word for at, word in enumerate(words) if at in order[:k])
        (gone, left) = label_texts(run, [(without,), (only,)])
        assert point.comprehensiveness == pytest.approx(item.probabilities[item.label] - gone.probabilities[item.label], abs=1e-6)
        assert point.sufficiency == pytest.approx(item.probabilities[item.label] - left.probabilities[item.label], abs=1e-6)
        assert point.flips == float(gone.label != item.label)
    assert measure_faithfulness(run, [(text,)], max_words=5, random_draws=3).points == found.points
    pairs_found = measure_faithfulness(untrained(tmp_path, task="entailment"), [(text, text)], max_words=5, random_draws=1)
    assert len(pairs_found.points) == 5
    with pytest.raises(DataError, match="no example has more than 5 tokens"):
        measure_faithfulness(run, [("too short",)])
    with pytest.raises(ConfigError, match="most 0"):
        measure_faithfulness(run, [(text,)], max_words=0)
    with pytest.raises(DataError, match=r"no attention to measure \(model\.pooling last\)"):
        measure_faithfulness(untrained(tmp_path, model=CLASSIFIERS["last"]), [(text,)])


def test_hop_overlap_is_the_off_diagonal_of_a_a_t(tmp_path: Path) -> None:
    run = untrained(tmp_path)
    found = label_texts(run, examples("classification", 9), need_weights=True)
    expected, cosine = [], []
    for item in found:
        assert item.weights is not None
        rows = item.weights[0]
        both = [(i, j) for i in range(3) for j in range(3) if i != j]
        expected.append(np.mean([rows[i] @ rows[j] for i, j in both]))
        cosine.append(np.mean([rows[i] @ rows[j] / np.linalg.norm(rows[i]) / np.linalg.norm(rows[j]) for i, j in both]))
    overlap = hop_overlap(found)
    assert overlap.overlap == pytest.approx(np.mean(expected), rel=1e-5)
    assert overlap.cosine == pytest.approx(np.mean(cosine), rel=1e-5)
    assert (overlap.texts, overlap.hops) == (9, 3)
    with pytest.raises(DataError, match="at least 2 hops"):
        hop_overlap(label_texts(untrained(tmp_path, model=CLASSIFIERS["max"]), [("a joy",)], need_weights=True))


@pytest.mark.parametrize(("task", "name"), KINDS)
def test_what_was_looked_at_is_a_record_the_viewer_takes(tmp_path: Path, task: str, name: str) -> None:
    run = untrained(tmp_path, task=task, model=models(task, name))
    lines = [*examples(task, 3), ("",) * (1 + (task == "entailment"))]
    if name == "last":
        with pytest.raises(NoAttentionError, match=r"no attention to show \(model\.pooling last\)"):
            example_records(run, lines)
        return
    records = example_records(run, lines)
    assert len(records) == 3
    kinds = {found.kind for found in records[0].maps}
    assert "hops" in kinds
    assert ("co-attention" in kinds) == name.startswith("crossed")
    assert ("self" in kinds) == (name in ("transformer", "post"))
    for record, texts in zip(records, lines, strict=False):
        assert record.prediction is not None
        assert record.prediction.label in run.labels
        sides = ("text",) if task == "classification" else ("premise", "hypothesis")
        assert [list(record.items[side].tokens) for side in sides] == [text.split() for text in texts]
        for found in record.maps:
            np.testing.assert_allclose(found.weights.sum(-1), 1.0, atol=1e-5)


def test_lines_of_either_task_can_be_looked_at(tmp_path: Path, learned: Path) -> None:
    assert [record.prediction.label for record in line_records(learned / "run", ["a joy", "", "the bore"]) if record.prediction] == [
        "good",
        "bad",
    ]
    train(configuration(tmp_path, task="entailment", training={"max_updates": 1}), tmp_path / "run")
    assert len(line_records(tmp_path / "run", ["a dog\ta cat", " ", "the saw\tan axe"])) == 2
    with pytest.raises(DataError, match="line 2: expected a premise, a tab and a hypothesis, found 1 column"):
        line_records(tmp_path / "run", ["a dog\ta cat", "a dog"])
    with pytest.raises(DataError, match="no attention to show"):
        line_records(tmp_path / "run", [""])


def test_words_are_gathered_by_label_and_hop(tmp_path: Path) -> None:
    run = untrained(tmp_path)
    lines = [("a joy",), ("A joy",), ("the mess",)]
    found = label_texts(run, lines, need_weights=True)
    same = [item._replace(label="good") for item in found]
    rows = words_by_label(run, lines, same, top=2, least=2)
    assert [(row.label, row.hop) for row in rows] == [("good", 0), ("good", 1), ("good", 2)]
    for row in rows:
        assert {(word, count) for word, _, count in row.words} == {("a", 2), ("joy", 2)}
        for word, weight, _ in row.words:
            place = ["a", "joy"].index(word)
            means = [item.weights[0][row.hop, place] for item in found[:2] if item.weights is not None]
            assert weight == pytest.approx(np.mean(means), abs=1e-5)
    assert label_records(run, lines, same) == []  # no word is seen five times


def test_evaluation_tells_what_was_taken_for_what(learned: Path) -> None:
    run = open_sentence_run(learned / "run", ClassificationConfig)
    file = read_labelled_file(run.config, learned / "test.tsv")
    evaluation = evaluate_labels(run, file._replace(examples=[*file.examples, LabelledExample("bad", ("",), 102)]))
    assert evaluation.scores[0].value == pytest.approx(100 * 101 / 102)  # an empty text gets no label, which is wrong
    assert evaluation.confusion.counts.sum() == 101
    corpus = encode_labelled(file, run.config, run.vocabulary, run.labels)
    assert measure_labels(run.model, corpus, run.labels)["accuracy"] == 1.0
    told: list[str] = []
    describe_labels(evaluation, told.append)
    assert len(told) == 4 + 2 + 3
    better = describe_label_comparison(
        evaluation, evaluation._replace(outputs=["odd"] * 102), [*[e.label for e in file.examples], "bad"], "x", told.append
    )
    assert better["p_value"] < 0.001
    assert json.loads(json.dumps(evaluation.to_json()))["labels"] == ["bad", "good", "odd"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"data": {"train": None}}, "data.train: no training data given"),
        ({"data": {"train": "same"}}, "every example has the label 'good'"),
        ({"data": {"train": "two", "valid": None}}, "every example that is not held out for validation has the label '(good|bad)'"),
        ({"data": {"valid": "strange"}}, "strange, line 1: label 'great'"),
        ({"data": {"vectors": "small"}}, "model.embed_dim: 6, but the vectors of .*small have 2 numbers"),
        ({"data": {"vectors": "small"}, "vocabulary": {"kind": "bpe"}}, "data.vectors: word vectors need vocabulary.kind word, found bpe"),
        ({"vocabulary": {"shared": False}}, "vocabulary.shared: must be true"),
        ({"training": {"metric": "bleu"}}, "training.metric: bleu; the task classification has loss, accuracy, macro_f1"),
        ({"model": {"class_weights": {"bad": 1.0, "good": 2.0}}}, "model.class_weights: .*'odd' does not fit"),
        ({"model": {"class_weights": {"bad": 0.0, "good": 0.0, "odd": 0.0}}}, "model.class_weights: all are 0"),
        ({"model": {"class_weights": {"bad": -1.0, "good": 2.0, "odd": 1.0}}}, "model.class_weights.*expected at least 0"),
    ],
)
def test_what_cannot_be_trained_leaves_no_run_behind(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    for name, text in {"same": "good a\ngood b\n", "two": "good a\nbad b\n", "strange": "great a\n", "small": "joy 1 2\n"}.items():
        (tmp_path / name).write_text(text)
    if "data" in parts:
        parts = {**parts, "data": {key: value and str(tmp_path / value) for key, value in parts["data"].items()}}
    with pytest.raises(RegardError, match=message):
        train(configuration(tmp_path, **parts), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_of_the_other_task_or_with_other_settings_is_refused(tmp_path: Path) -> None:
    config = configuration(tmp_path, training={"max_updates": 1})
    train(config, tmp_path / "run")
    with pytest.raises(CheckpointError, match="a run of the task classification; expected a run of the task entailment"):
        open_sentence_run(tmp_path / "run", EntailmentConfig)
    with pytest.raises(ConfigError, match=r"model\.hops: 3 -> 2"):
        train(configuration(tmp_path, model={"hops": 2}, training={"max_updates": 1}), tmp_path / "run")


@pytest.mark.parametrize("name", [name for name in RUN_FILES if name != "data.json"])
def test_a_damaged_run_is_refused_by_file(tmp_path: Path, name: str) -> None:
    train(configuration(tmp_path, training={"max_updates": 1}), tmp_path / "run")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RegardError, match=name.replace(".", r"\.")):
        open_sentence_run(tmp_path / "run", ClassificationConfig)


def test_validation_examples_are_held_out_where_there_are_none(tmp_path: Path, messages: list[str]) -> None:
    config = configuration(tmp_path, count=60, data={"valid": None}, training={"max_updates": 1})
    from regard.tasks.classification_training import train_classification

    assert isinstance(config, ClassificationConfig)
    train_classification(config, tmp_path / "run")
    assert "54 training examples, 6 validation examples" in messages[0]


def test_texts_in_place_of_labels_are_told(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    rows = [line.split("\t")[::-1] for line in Path(str(config.data.train)).read_text(encoding="utf-8").splitlines()]
    write(tmp_path / "train.tsv", rows)
    with pytest.raises(
        DataError, match=r"train.tsv: \d+ labels in 60 examples, such as '.*'; most examples must share theirs: is the label"
    ):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_line_of_two_columns_is_a_pair() -> None:
    assert split_pair("a\tb") == ("a", "b")
    assert split_pair("a\t") == ("a", "")
    assert split_pair("a\tb\tc") is None


@pytest.mark.parametrize(
    "path", sorted([*CONFIGS.glob("si*.yaml"), *CONFIGS.glob("ss*.yaml"), *CONFIGS.glob("trec*.yaml")]), ids=lambda path: path.stem
)
def test_a_shipped_configuration_fits_together(path: Path) -> None:
    from regard.config import TASKS, task_of
    from regard.tasks.classification_training import check_sentence_settings

    config = load_config(path, kind=TASKS[task_of(path)])
    assert isinstance(config, ClassificationConfig | EntailmentConfig)
    check_sentence_settings(config)
    assert path.read_text().startswith(f"# regard train {config.task} --config configs/{path.name} ")
