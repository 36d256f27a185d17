"""Every command says on standard error what it does, and writes nothing but data to standard output.

Each stage counts as slow: a clock goes on by a second when it starts. So a step that says nothing of itself is missed here, however small
the input.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from regard import cli
from regard.progress import Display, Event, display, stages
from regard.study.grid import run_study
from regard.tasks import demo
from tests.integrations.test_migrate_run import joeynmt_folder
from tests.study.test_grid import STUDY, train_here
from tests.system.test_captioning import SMALL as SMALL_CAPTIONER
from tests.system.test_classification import SMALL as SMALL_LABELLER
from tests.system.test_command_line import commands
from tests.system.test_commands import SMALL as SMALL_TRANSLATOR
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

LINES = b"ein Hund\nein Haus\n"
LOADING = "Loading "


class Case(NamedTuple):
    """A command: what follows its name, with {} for the folder, the stages it must name, and what it reads."""

    words: str
    stages: tuple[str, ...]
    stdin: bytes = b""
    lines: int | None = None


TRAINING = ("Learning the ", "Choosing entries of the ", "Training", "Evaluating")
CASES = {
    "train translation": Case(
        f"--source {{}}/source --target {{}}/target --out {{}}/new-translation vocabulary.kind=word {' '.join(SMALL_TRANSLATOR)}"
        " training.eval_metrics=[bleu]",
        ("Counting ", "Encoding the training text", "Encoding the validation data", *TRAINING, "Predicting the references", "Translating"),
    ),
    "train classification": Case(
        f"--train {{}}/labels/train.tsv --valid {{}}/labels/valid.tsv --out {{}}/new-labels {' '.join(SMALL_LABELLER)}",
        ("Counting ", "Reading ", "Encoding ", *TRAINING, "Predicting the labels"),
    ),
    "train entailment": Case(
        f"--train {{}}/pairs/train.tsv --valid {{}}/pairs/valid.tsv --out {{}}/new-pairs {' '.join(SMALL_LABELLER)}",
        ("Counting ", "Reading ", "Encoding ", *TRAINING, "Predicting the labels"),
    ),
    "train lm": Case(
        "--text {}/language/text --valid-text {}/language/valid_text --out {}/new-lm vocabulary.kind=character model.hidden_size=8 "
        "model.embed_dim=4 training.streams=2 training.max_updates=2",
        ("Counting ", "Encoding the train text", "Encoding the valid text", *TRAINING, "Predicting the text"),
    ),
    "train captioning": Case(
        "--captions {}/scenes/train.tsv --out {}/new-captions vocabulary.kind=word "
        + " ".join(word.replace(" ", "") for word in SMALL_CAPTIONER),
        (
            *("Counting ", "Reading the captions of ", "Finding images in ", "Decoding images", "Encoding the training data"),
            *(*TRAINING, "Predicting the references"),
        ),
    ),
    "translate": Case("{}/run", (LOADING, "Answering", "Translating"), LINES, 2),
    "classify": Case("{}/labels-run", (LOADING, "Answering", "Labelling"), LINES, 2),
    "entail": Case("{}/pairs-run", (LOADING, "Answering", "Labelling"), b"a dog\ta cow\na saw\ta dog\n", 2),
    "score": Case("{}/language/run", (LOADING, "Answering", "Scoring"), LINES, 2),
    "align": Case("{}/run --source {}/source --target {}/target", (LOADING, "Counting lines", "Answering", "Aligning"), lines=20),
    "generate": Case("{}/language/run --max-length 3", (LOADING, "Answering", "Continuing"), LINES, 2),
    "caption": Case("{}/scenes/run {}/scenes/train", (LOADING, "Finding images", "Answering", "Captioning"), lines=13),
    "evaluate": Case(
        "{}/run --source {}/source --target {}/target --baseline {}/run",
        (
            "Reading ",
            LOADING,
            "Translating",
            "Scoring the translations",
            "Encoding the test data",
            "Evaluating the baseline ",
            "Significance test",
        ),
    ),
    "explain": Case(
        "{}/labels-run --examples {}/labels/valid.tsv --max-words 1 --random-draws 1", (LOADING, "Reading ", "Measuring faithfulness")
    ),
    "shortlist": Case("{}/run --source {}/source --target {}/target", (LOADING, "Counting linked words", "Measuring the shortlist")),
    "distill": Case("{}/run --source {}/source --out {}/taught --beam-size 1", ("Checking finished shards", "Answering shards")),
    "view": Case("{}/run --text ein --output {}/page.html", ("Recording attention", "Writing "), lines=1),
    "check": Case("{}/run", (LOADING, "Checking ")),
    "compare": Case("{}/study.yaml --out {}/study", ("Run ", "Translating", "Writing the report", "Significance test")),
    "serve": Case("{}/run --port 0", (LOADING,), lines=1),
    "export": Case("{}/run --format ctranslate2 --out {}/exported", ("Exporting ",), lines=1),
    "import": Case("{}/joey --from joeynmt --out {}/imported", ("Importing ",), lines=1),
    "demo": Case("--out {}/demo", ("Generating dates", "Training", "Translating", "Aligning", "Writing the pictures")),
    "parameters": Case("{}/run/config.yaml", ("Building the model",)),
    "list": Case("tasks", ("starting",), lines=5),
    "doctor": Case("", ("Inspecting the installation",)),
}


class Clock:
    """Goes on only when it is told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Slow(Display):
    """A display to which every stage seems to take a second."""

    clock = Clock()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        with self._changed:
            if event.kind == "start" and self._stages:
                self.clock.now += 1.0
                self._tell()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small runs of every task, and the files they and the commands need."""
    place = tmp_path_factory.mktemp("commands")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        tiny.trained(place, kind="word", model=tiny.FAMILIES["transformer"])
        for task, name in (("classification", "labels"), ("entailment", "pairs")):
            tiny_sentences.train(tiny_sentences.configuration(place / name, task=task, training={"max_updates": 2}), place / f"{name}-run")
        tiny_language.run(place / "language", training={"max_updates": 2})
        (place / "scenes").mkdir()
        tiny_captions.trained(place / "scenes")
        joeynmt_folder(place / "joey")
        tiny.write_pairs(place)
        files = {name: str(place / name) for name in ("source", "target")}
        (place / "study.yaml").write_text(yaml.safe_dump({**STUDY, "data": {"texts": {"settings": {"data": files}, "test": files}}}))
    return place


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REGARD_QUIET", raising=False)
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    for module in (stages, display):
        monkeypatch.setattr(module, "monotonic", Slow.clock)
    monkeypatch.setattr(cli, "Display", Slow)


def shorten(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """Leave of commands that take long, or never end, what says something of itself."""
    match command:
        case "demo":
            config, generate = demo.demo_config, demo.generate
            quick = {"max_updates": 2, "batch_tokens": 200}
            monkeypatch.setattr(demo, "generate", lambda *words, seed, **_: generate(*words, train=60, test=5, seed=seed))
            monkeypatch.setattr(
                demo,
                "demo_config",
                lambda data: (found := config(data)).model_copy(update={"training": found.training.model_copy(update=quick)}),
            )
        case "compare":
            monkeypatch.setattr("regard.study.grid.run_study", functools.partial(run_study, train=train_here))
        case "serve":
            pytest.importorskip("uvicorn")
            monkeypatch.setattr("regard.serve.server.run_server", lambda service, listening, ready: ready() or True)


def test_every_command_is_here() -> None:
    leaves = {" ".join(words) for words in commands()} - {"", "train"}
    assert leaves == set(CASES)


@pytest.mark.parametrize("command", CASES)
def test_a_command_in_a_pipe_names_its_stages_and_writes_only_data(
    command: str, folder: Path, call: Callable[..., Any], slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[command]
    shorten(monkeypatch, command)
    code, out, err = call(*command.split(), *case.words.replace("{}", str(folder)).split(), stdin=case.stdin)
    assert code == 0, err
    lines = [json.loads(line)["message"] if line.startswith("{") else line.removeprefix("regard: ") for line in err.splitlines()]
    told = [part for line in lines for part in line.split("; ")]
    missing = [name for name in case.stages if not any(part.startswith(name) for part in told)]
    assert not missing, err
    data = out.decode()
    assert data
    assert "regard: " not in data
    assert case.lines is None or len(data.splitlines()) == case.lines
