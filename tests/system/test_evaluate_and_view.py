"""`regard evaluate` and `regard view` on a run of every task: each takes what its task reads, and says so when given anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.ops.kernels import native
from regard.viewer import read_records
from tests.tasks import tiny_captions, tiny_language, tiny_sentences

TEST_TEXT = {
    "classification": ["a joy to see", "", "dull"],
    "entailment": ["a dog runs\tan animal runs"],
    "lm": ["a dog runs", "two"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run of every task but translation, named after its task, and what they can be measured on."""
    folder = tmp_path_factory.mktemp("tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        for task in ("classification", "entailment"):
            config = tiny_sentences.configuration(folder / f"{task} data", task=task, training={"max_updates": 2})
            tiny_sentences.train(config, folder / task)
        tiny_language.run(folder / "language", training={"max_updates": 2})
        (folder / "language" / "run").rename(folder / "lm")
        (folder / "scenes").mkdir()
        tiny_captions.trained(folder / "scenes").rename(folder / "captioning")
    return folder


def measured_on(runs: Path, task: str) -> list[object]:
    match task:
        case "lm":
            return ["--text", runs / "language" / "valid_text"]
        case "captioning":
            return ["--captions", runs / "scenes" / "train.tsv"]
    return ["--examples", runs / f"{task} data" / "valid.tsv"]


@pytest.mark.parametrize(
    ("task", "scores"),
    [
        ("classification", {"accuracy", "macro-F1"}),
        ("entailment", {"accuracy", "macro-F1"}),
        ("captioning", {"BLEU-4", "ROUGE-L", "CIDEr-D", "perplexity"}),
        ("lm", {"perplexity, continuous", "perplexity, separate", "bits per byte, continuous"}),
    ],
)
def test_a_run_is_measured_by_the_scores_of_its_task(
    call: Callable[..., Any], runs: Path, tmp_path: Path, task: str, scores: set[str]
) -> None:
    answer = call("evaluate", runs / task, *measured_on(runs, task), "--json", tmp_path / "figures.json")
    assert (answer.code, answer.err) == (0, "")
    report = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    found = {score["name"]: score["value"] for score in report["scores"]}
    assert scores <= found.keys()
    assert report["run"] == str(runs / task)
    told = answer.out.decode()
    for name in scores:
        assert name in told


@pytest.mark.parametrize("task", ["classification", "entailment"])
def test_two_runs_that_label_are_compared_and_the_labels_written(call: Callable[..., Any], runs: Path, tmp_path: Path, task: str) -> None:
    words = ["--baseline", runs / task, "--output", tmp_path / "labels", "--json", tmp_path / "figures.json"]
    answer = call("evaluate", runs / task, *measured_on(runs, task), *words)
    assert answer.code == 0
    assert b"+0.00" in answer.out
    assert json.loads((tmp_path / "figures.json").read_text())["against"]["difference"] == 0
    examples = (runs / f"{task} data" / "valid.tsv").read_text().splitlines()
    assert len((tmp_path / "labels").read_text().splitlines()) == len(examples)


def test_captions_are_written_one_a_line(call: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    answer = call("evaluate", runs / "captioning", *measured_on(runs, "captioning"), "--beam-size", 2, "--output", tmp_path / "captions")
    assert answer.code == 0
    images = {line.split("\t")[0] for line in (runs / "scenes" / "train.tsv").read_text().splitlines()}
    assert len((tmp_path / "captions").read_text().splitlines()) == len(images)


@pytest.mark.skipif(native.library() is None, reason="the native library is not built")
def test_the_precision_of_the_captions_can_be_chosen(call: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    image, scores = next((runs / "scenes").rglob("*.png")), list[float]()
    for precision in ("float32", "int8"):
        words = ["--precision", precision, "--json", tmp_path / "figures.json"]
        assert call("evaluate", runs / "captioning", *measured_on(runs, "captioning"), *words).code == 0
        assert json.loads((tmp_path / "figures.json").read_text())["decoding"]["precision"] == precision
        line = call("caption", runs / "captioning", image, "--json", "--precision", precision).out
        scores.append(json.loads(line)["hypotheses"][0]["score"])
    assert scores[0] != scores[1]


@pytest.mark.parametrize("task", list(TEST_TEXT))
def test_text_is_looked_at(call: Callable[..., Any], runs: Path, tmp_path: Path, task: str) -> None:
    page, records = tmp_path / "page.html", tmp_path / "records.json"
    texts = [word for line in TEST_TEXT[task] for word in ("--text", line)]
    assert call("view", runs / task, *texts, "-o", page).code == 0
    assert call("view", runs / task, "-o", records, stdin="".join(line + "\n" for line in TEST_TEXT[task]).encode()).code == 0
    assert len(list(read_records(records))) == sum(1 for line in TEST_TEXT[task] if line)
    assert page.stat().st_size > 10_000


def test_an_image_is_looked_at_with_its_own_or_a_given_caption(call: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    image = next((runs / "scenes").rglob("*.png"))
    records = tmp_path / "records.json"
    assert call("view", runs / "captioning", "--image", image, "--image", image, "-o", records).code == 0
    assert len(list(read_records(records))) == 2
    assert call("view", runs / "captioning", "--image", image, "--target", "a red circle", "-o", records).code == 0
    (record,) = read_records(records)
    assert len(record.weights) == 4
    words = ["view", runs / "captioning", "--image", image, "--target", "a red circle"]
    assert call(*words, "-o", tmp_path / "figure.svg").code == 0
    assert len(re.findall('<use xlink:href="#image', (tmp_path / "figure.svg").read_text())) == 5 + 4  # five times the image
    lines = call(*words).out.decode().splitlines()
    assert [word for line in lines for word in line.split() if word in ("a", "red", "circle", "</s>")] == ["a", "red", "circle", "</s>"]
    assert "1,1" not in "".join(lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "{runs}/lm"], "--text: needed, to measure a run of the task lm"),
        (["evaluate", "{runs}/captioning", "--text", "a"], "--text: not for a run of the task captioning"),
        (["evaluate", "{runs}/lm", "--text", "a", "--output", "b"], "--output: not for a run of the task lm"),
        (
            ["evaluate", "{runs}/classification", "--examples", "a", "--beam-size", 3],
            "--beam-size: not for a run of the task classification",
        ),
        (["view", "{runs}/captioning", "--text", "a"], "a captioner reads images (--image FILE), not text"),
        (["view", "{runs}/lm", "--image", "a.png"], "is a run of the task lm, which reads text"),
        (["view", "{runs}/lm", "--image", "a.png", "--text", "a"], "/lm does not read both"),
        (["view", "{runs}/lm", "--text", "a", "--beam-size", 3], "--target, --beam-size: not for a run of the task lm"),
        (["view", "{runs}/captioning", "--image", "nowhere.png"], "nowhere.png"),
        (["translate", "{runs}/lm"], "a run of the task lm; expected a run of the task translation"),
    ],
)
def test_what_does_not_go_with_a_task_is_named(call: Callable[..., Any], runs: Path, words: list[object], message: str) -> None:
    answer = call(*(str(word).format(runs=runs) for word in words))
    assert answer.code in (1, 2)
    assert message in answer.err
    assert answer.err.count("\n") == 1
