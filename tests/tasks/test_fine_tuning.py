"""Going on from a trained run: what is kept, what begins anew, what may change, and what it says."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from regard.config import TASKS, RunConfig, TranslationConfig, load_config
from regard.errors import CheckpointError, ConfigError, DataError
from regard.progress import listening
from regard.tasks import train_captioning, train_translation
from regard.tasks.fine_tuning import data_files, settings_from_run
from regard.tasks.language_training import train_language
from regard.tasks.run_folder import read_config
from regard.tasks.translation_run import open_translation_run
from regard.training.atomic_folder import file_sha256
from regard.training.checkpoint import checkpoint_path, weights_file
from tests.conftest import Answer
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences
from tests.tasks.test_creation import Begun, begun, imported

Call = Callable[..., Answer]
TRAIN: dict[str, Callable[..., Any]] = {
    "translation": train_translation,
    "captioning": train_captioning,
    "classification": tiny_sentences.train,
    "entailment": tiny_sentences.train,
    "lm": train_language,
}
# A rate that changes no weight: what a run begins with can be seen in what it ends with.
STILL = 1e-30


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "cpu")
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def first(folder: Path, task: str, **training: Any) -> Path:
    """Train a small run of a task in `folder`/run, for three updates."""
    folder.mkdir(parents=True, exist_ok=True)
    training = {"max_updates": 3, "batch_tokens": 100, "log_every": 1, **training}
    if task == "translation":
        return tiny.trained(folder, training=training)
    if task == "captioning":
        return tiny_captions.trained(folder, training=training)
    if task == "lm":
        tiny_language.run(folder, training=training)
        return folder / "run"
    tiny_sentences.train(tiny_sentences.configuration(folder, task=task, training=training), folder / "run")
    return folder / "run"


def going_on(run: Path, task: str, *overrides: str, keep_data: bool = True) -> Any:
    """Return the settings of a run that goes on from another."""
    kind: type[RunConfig] = TASKS[task]
    return load_config(None, overrides, base=settings_from_run(run, kind, keep_data=keep_data), kind=kind)


def lines(run: Path, event: str) -> list[dict[str, Any]]:
    return [entry for entry in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if entry["event"] == event]


def same(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Say whether the parameters are the same; what a norm has seen of batches is none of them."""
    names = [name for name in before if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    return before.keys() == after.keys() and all(torch.allclose(before[name], after[name], rtol=0, atol=10 * STILL) for name in names)


@pytest.mark.parametrize("task", TRAIN)
def test_weights_and_files_are_kept_and_schedule_and_epochs_begin_anew(tmp_path: Path, task: str) -> None:
    run, new = first(tmp_path, task), tmp_path / "new"
    config = going_on(run, task, f"training.learning_rate={STILL}", "training.warmup_updates=2", "training.max_updates=1")
    told = list[str]()
    with listening(lambda event: told.append(event.text)):
        result = TRAIN[task](config, new)
    # Kept: the weights and the vocabularies and labels, to the byte.
    before, after = load_file(weights_file(run)), load_file(weights_file(new))
    assert same(before, after)
    own = [path.name for path in run.glob("*.json") if path.name != "data.json"]
    assert own
    assert all((new / name).read_bytes() == (run / name).read_bytes() for name in own)
    # Kept: the settings of the model; noted: which run it was, and its weights.
    found = read_config(new, type(config))
    assert found.model == read_config(run, type(config)).model
    assert found.start is not None
    assert (found.start.run, found.start.weights) == (str(run), file_sha256(weights_file(run)))
    # Begun anew: updates, epochs, and the schedule, in whose warm-up the first update is.
    assert result.step == 1
    trained = lines(new, "train")
    assert [(entry["step"], entry["epoch"]) for entry in trained] == [(1, 1)]
    assert trained[0]["learning_rate"] == pytest.approx(STILL / 2)
    assert [line for line in told if line.startswith(f"from {run}: weights (sha256 {found.start.weights[:12]}) and vocabulary")]


@pytest.mark.parametrize("task", TRAIN)
def test_the_state_of_the_optimizer_goes_on(tmp_path: Path, task: str) -> None:
    run, new = first(tmp_path, task, evaluate_every=3), tmp_path / "new"
    TRAIN[task](going_on(run, task, "training.max_updates=1"), new)
    before = load_file(checkpoint_path(run, 3) / "optimizer.safetensors")
    after = load_file(checkpoint_path(new, 1) / "optimizer.safetensors")
    steps = [name for name in before if name.endswith(".step")]
    assert steps
    assert all(after[name] == before[name] + 1 for name in steps)
    # A running mean of squares that keeps 0.999 of what was there.
    for name in (name for name in before if name.endswith(".exp_avg_sq")):
        assert (after[name] >= 0.99 * before[name]).all()


@pytest.mark.parametrize(
    ("first_settings", "overrides", "reason"),
    [
        ({}, ["start.optimizer=false"], "start.optimizer is false"),
        ({}, ["training.optimizer=adam"], "adam, before adamw"),
        ({"average_checkpoints": 2, "evaluate_every": 1, "metric": "exact_match"}, [], "the weights are of no single checkpoint"),
        ({"ema_decay": 0.5}, [], "the weights are of no single checkpoint"),
    ],
)
def test_where_the_state_of_the_optimizer_does_not_fit_it_begins_anew(
    tmp_path: Path, first_settings: dict[str, Any], overrides: list[str], reason: str
) -> None:
    run, new, told = first(tmp_path, "translation", **first_settings), tmp_path / "new", list[str]()
    with listening(lambda event: told.append(event.text)):
        train_translation(going_on(run, "translation", "training.max_updates=1", *overrides), new)
    steps = [value for name, value in load_file(checkpoint_path(new, 1) / "optimizer.safetensors").items() if name.endswith(".step")]
    assert steps
    assert all(step == 1 for step in steps)
    assert [line for line in told if line.endswith(f"the optimizer starts anew: {reason}")]


def test_a_moving_average_begins_with_the_weights(tmp_path: Path) -> None:
    run, new = first(tmp_path, "translation"), tmp_path / "new"
    train_translation(
        going_on(run, "translation", "training.ema_decay=0.9", f"training.learning_rate={STILL}", "training.max_updates=1"), new
    )
    before, after = load_file(weights_file(run)), load_file(weights_file(new))
    assert all(torch.allclose(before[name], after[name], rtol=1e-6) for name in before)


def test_killed_before_its_first_checkpoint_it_begins_with_the_same_weights(tmp_path: Path) -> None:
    run, new = first(tmp_path, "translation"), tmp_path / "new"
    config = going_on(run, "translation", "training.max_updates=2")
    with pytest.raises(Begun):
        train_translation(config, new, on_event=begun)
    killed = train_translation(config, new)
    assert killed.weights_sha256 == train_translation(config, tmp_path / "undisturbed").weights_sha256
    # Once it has a checkpoint of its own, the run it went on from may go.
    shutil.rmtree(run)
    assert train_translation(config, new).weights_sha256 == killed.weights_sha256


def test_other_weights_than_those_it_was_begun_with_are_refused(tmp_path: Path) -> None:
    run, new = first(tmp_path / "a", "translation"), tmp_path / "new"
    config = going_on(run, "translation", "training.max_updates=2")
    with pytest.raises(Begun):
        train_translation(config, new, on_event=begun)
    other = first(tmp_path / "b", "translation", seed=5)
    shutil.rmtree(run / "model")
    shutil.copytree(other / "model", run / "model")
    with pytest.raises(CheckpointError, match="but this run was begun with"):
        train_translation(config, new)
    with pytest.raises(ConfigError, match="start"):
        train_translation(going_on(other, "translation", "training.max_updates=2"), new)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["model.embed_dim=9"], "model.embed_dim: 7 -> 9"),
        (["model.type=transformer"], "model.type: rnn -> transformer"),
        (["vocabulary.size=99"], "vocabulary.size: 300 -> 99"),
        (["model.cell=lstm", "model.decoder_layers=2"], "model.cell: gru -> lstm, model.decoder_layers: 1 -> 2"),
    ],
)
def test_another_model_or_vocabulary_is_refused_by_name(tmp_path: Path, overrides: list[str], named: str) -> None:
    run = first(tmp_path, "translation")
    base = settings_from_run(run, TASKS["translation"])
    with pytest.raises(ConfigError) as error:
        train_translation(load_config(None, overrides, base=base), tmp_path / "new")
    assert named in str(error.value)
    assert not (tmp_path / "new").exists()


def test_how_a_model_trains_may_change(tmp_path: Path) -> None:
    run = first(tmp_path, "translation")
    config = going_on(run, "translation", "model.dropout=0.5", "training.max_updates=1", "training.label_smoothing=0.1")
    assert train_translation(config, tmp_path / "new").step == 1


def test_a_run_cannot_go_on_from_itself_or_from_nothing_or_from_another_task(tmp_path: Path) -> None:
    run = first(tmp_path, "translation")
    with pytest.raises(ConfigError, match="named by both --from and --out"):
        train_translation(going_on(run, "translation"), tmp_path / "x" / ".." / "run")
    with pytest.raises(CheckpointError, match="no-such: no such run folder"):
        going_on(tmp_path / "no-such", "translation")
    with pytest.raises(CheckpointError, match="a run of the task translation; expected a run of the task lm"):
        going_on(run, "lm")


def test_the_vocabulary_is_that_of_the_first_run_and_unknown_words_are_told(tmp_path: Path) -> None:
    run, told = tiny.trained(tmp_path, kind="word"), list[str]()
    (tmp_path / "new.tsv").write_text("".join(f"der Hund schnurrt\tschnurrt{n} Hund der\n" for n in range(20)), encoding="utf-8")
    config = going_on(run, "translation", f"data.source={tmp_path / 'new.tsv'}", "training.max_updates=1", keep_data=False)
    assert config.data.target is None
    with listening(lambda event: told.append(event.text)):
        train_translation(config, tmp_path / "new")
    assert f"source vocabulary: that of {run}; unknown in training text: 33.33%" in told
    assert f"target vocabulary: that of {run}; unknown in training text: 33.33%" in told


def test_a_label_that_the_first_run_did_not_know_is_refused(tmp_path: Path) -> None:
    run = first(tmp_path, "classification")
    (tmp_path / "other.tsv").write_text("new\ta joy\nold\ta bore\n" * 10)
    config = going_on(run, "classification", f"data.train={tmp_path / 'other.tsv'}", keep_data=False)
    with pytest.raises(DataError, match=r"other\.tsv, line \d+: label 'new', the training data has bad, good, odd"):
        TRAIN["classification"](config, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_an_imported_model_is_trained_on(tmp_path: Path) -> None:
    imported(tmp_path)(tmp_path / "run", print)
    (tmp_path / "new.tsv").write_text("ein Hund\tHund ein\nHund bellt\tbellt Hund\n" * 10)
    still = ["training.max_updates=1", f"training.learning_rate={STILL}"]
    train_translation(going_on(tmp_path / "run", "translation", f"data.source={tmp_path / 'new.tsv'}", *still), tmp_path / "still")
    assert same(open_translation_run(tmp_path / "run").model.state_dict(), open_translation_run(tmp_path / "still").model.state_dict())
    more = ["training.epochs=30", "training.warmup_updates=0", "training.log_every=1", "training.learning_rate=0.01", "model.dropout=0"]
    train_translation(going_on(tmp_path / "run", "translation", f"data.source={tmp_path / 'new.tsv'}", *more), tmp_path / "new")
    losses = [entry["nll"] for entry in lines(tmp_path / "new", "train")]
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("task", TRAIN)
def test_the_files_of_a_task_are_known(task: str) -> None:
    assert data_files(TASKS[task])


# Asked for in place.


def test_more_epochs_of_a_finished_run_are_advised_with_a_command_that_works(tmp_path: Path, call: Call) -> None:
    run = tiny.trained(tmp_path, training={"max_updates": None, "epochs": 2})
    config = read_config(run, TranslationConfig)
    weights = file_sha256(weights_file(run))
    asked = config.model_copy(update={"training": config.training.model_copy(update={"epochs": 5, "learning_rate": 0.002})})
    with pytest.raises(ConfigError) as error:
        train_translation(asked, run)
    message = str(error.value)
    assert "training.epochs: 2 -> 5; training.learning_rate: 0.001 -> 0.002" in message
    command = message.split("to fine-tune it: ")[1]
    expected = f"regard train translation --from {run} --out {run}-2 training.epochs=3 training.learning_rate=0.002"
    assert command == expected
    answer = call(*shlex.split(command)[1:])
    assert answer.code == 0, answer.err
    made = read_config(Path(f"{run}-2"), TASKS["translation"])
    assert (made.training.epochs, made.training.learning_rate, made.data) == (3, 0.002, config.data)
    assert file_sha256(weights_file(run)) == weights  # the first run is as it was
    assert call(*shlex.split(command)[1:]).code == 0  # the same command goes on with the new one


def test_another_model_in_place_is_not_advised_to_go_on(tmp_path: Path) -> None:
    run = first(tmp_path, "translation")
    config = read_config(run, TranslationConfig)
    with pytest.raises(ConfigError) as error:
        train_translation(config.model_copy(update={"vocabulary": config.vocabulary.model_copy(update={"size": 99})}), run)
    assert "--from" not in str(error.value)
    assert "choose another --out" in str(error.value)


@pytest.mark.parametrize("task", TRAIN)
def test_every_task_takes_it_on_the_command_line(tmp_path: Path, task: str, call: Call) -> None:
    run = first(tmp_path, task)
    answer = call("train", task, "--from", run, "--out", tmp_path / "new", "training.max_updates=1")
    assert answer.code == 0, answer.err
    assert json.loads(json.dumps(read_config(tmp_path / "new", TASKS[task]).model_dump()["start"]["run"])) == str(run)
    refused = call("train", task, "--from", tmp_path / "nothing", "--out", tmp_path / "other")
    assert refused.code == 2
    assert "no such run folder" in refused.err


def test_relative_paths_of_the_first_run_are_named_where_they_lead_nowhere(tmp_path: Path, call: Call) -> None:
    run = first(tmp_path, "lm")
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(f"text: {tmp_path}/", "text: elsewhere/", 1))
    answer = call("train", "lm", "--from", run, "--print-config")
    assert answer.code == 2
    assert f"{run}: its data.text, elsewhere/" in answer.err
    (tmp_path / "more").write_text("ein Hund\n" * 30)
    assert call("train", "lm", "--from", run, "--print-config", "--text", tmp_path / "more").code == 0


def test_new_files_on_the_command_line_replace_all_of_the_old_ones(tmp_path: Path, call: Call) -> None:
    run = first(tmp_path, "lm")
    (tmp_path / "more").write_text("ein Hund\n" * 30)
    for words in (["--text", tmp_path / "more"], [f"data.text={tmp_path / 'more'}"], [f"data={{text: {tmp_path / 'more'}}}"]):
        answer = call("train", "lm", "--from", run, "--print-config", *words)
        assert answer.code == 0, answer.err
        assert f"text: {tmp_path / 'more'}" in answer.out.decode()
        assert "valid_text: null" in answer.out.decode()


def test_a_part_of_the_old_files_replaces_none(tmp_path: Path, call: Call) -> None:
    run = first(tmp_path, "captioning")
    answer = call("train", "captioning", "--from", run, "--print-config", "--split", "val")
    assert answer.code == 0, answer.err
    assert f"captions: {read_config(run, TASKS['captioning']).data.captions}" in answer.out.decode()
    assert "  split: val" in answer.out.decode()


def test_from_names_the_run_whatever_a_file_or_an_override_says(tmp_path: Path, call: Call) -> None:
    run, other = first(tmp_path, "classification"), tmp_path / "other"
    shutil.copytree(run, other)
    assert "start: null" in (run / "config.yaml").read_text()
    answer = call(
        "train", "classification", "--from", run, "--config", run / "config.yaml", "--out", tmp_path / "new", "training.max_updates=1"
    )
    assert answer.code == 0, answer.err
    assert read_config(tmp_path / "new", TASKS["classification"]).start.run == str(run)
    for words, told in ((["start=null"], "start=null"), ([f"start.run={other}"], f"start.run={other}")):
        refused = call("train", "classification", "--from", run, "--out", tmp_path / "refused", *words)
        assert refused.code == 2
        assert f"--from {run} and {told} contradict each other; give one of them" in refused.err
    assert not (tmp_path / "refused").exists()


def test_a_recipe_beside_from_is_refused(tmp_path: Path, call: Call) -> None:
    run = first(tmp_path, "translation")
    for recipe in ("auto", "rnn-3k"):
        refused = call("train", "translation", "--from", run, "--print-config", f"recipe={recipe}")
        assert refused.code == 2
        assert f"recipe={recipe}: --from keeps the settings of its run" in refused.err


def test_the_advised_command_names_all_files_if_one_is_another(tmp_path: Path, call: Call) -> None:
    run = first(tmp_path, "translation")
    config = read_config(run, TranslationConfig)
    assert config.data.target is not None
    (tmp_path / "targets").write_text(Path(config.data.target).read_text().replace("e", "a"))
    with pytest.raises(ConfigError, match="to fine-tune it: ") as error:
        train_translation(config.model_copy(update={"data": config.data.model_copy(update={"target": str(tmp_path / "targets")})}), run)
    answer = call(*shlex.split(str(error.value).split("to fine-tune it: ")[1])[1:])
    assert answer.code == 0, answer.err
    made = read_config(Path(f"{run}-2"), TranslationConfig)
    assert (made.data.source, made.data.target) == (config.data.source, str(tmp_path / "targets"))


def test_class_weights_and_vectors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    run = first(tmp_path, "classification")
    for weights in ("{good: 2.0}", "{good: 2.0, bad: 1.0, odd: 1.0, new: 3.0}"):
        with pytest.raises(ConfigError, match=r"model\.class_weights: expected a number for each of bad, good(,| and) odd"):
            TRAIN["classification"](going_on(run, "classification", f"model.class_weights={weights}"), tmp_path / "new")
        assert not (tmp_path / "new").exists()
    (tmp_path / "vectors.txt").write_text("joy 1 2 3 4 5 6\n")
    with pytest.raises(ConfigError, match=r"data\.vectors: without effect, since the embeddings of .*run are taken over"):
        TRAIN["classification"](going_on(run, "classification", f"data.vectors={tmp_path / 'vectors.txt'}"), tmp_path / "new")


@pytest.mark.parametrize(("task", "drawn"), [("translation", True), ("captioning", True), ("lm", False)])
def test_examples_that_the_first_run_was_trained_on_are_told(tmp_path: Path, task: str, drawn: bool, messages: list[str]) -> None:
    run = first(tmp_path, task)
    for number, changes in enumerate([(), ("training.seed=9",), ("data.valid_size=1",)]):
        messages.clear()
        TRAIN[task](going_on(run, task, "training.max_updates=1", *changes), tmp_path / f"new{number}")
        assert any("was trained on most of them" in line for line in messages) == (drawn and number > 0)
