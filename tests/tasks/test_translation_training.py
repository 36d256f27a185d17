"""Training on parallel text: what is left out is told, what cannot work is refused before anything is written."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import TranslationConfig, load_config
from regard.errors import ConfigError, DataError, RegardError
from regard.ops import matmul_path
from regard.tasks import train_translation
from regard.tasks.translation_run import Vocabularies
from regard.tasks.translation_training import check_translation_settings, encode_corpus, translation_likelihood
from tests.tasks.tiny import FAMILIES, TEXTS, configuration, trained, translator, write_pairs

PAIRS = [("ein Hund", "Hund"), ("", "Haus"), ("Haus", "  "), ("Hund" * 7, "Haus"), ("Haus", "Hund" * 7), ("Haus", "ein Haus"), (" ", "")]


def vocabularies() -> Vocabularies:
    return translator().run.vocabularies


def test_pairs_that_cannot_be_trained_on_are_counted() -> None:
    corpus = encode_corpus(PAIRS, vocabularies(), max_length=11, name="training data")
    assert corpus.pairs == [PAIRS[0], PAIRS[5]]
    assert corpus.left_out == {"empty": 3, "too long": 2}
    assert [len(ids) for ids in corpus.source] == [8, 4]


def test_a_pair_of_just_the_greatest_length_is_kept() -> None:
    assert len(encode_corpus([("Hund", "Hundehaus")], vocabularies(), max_length=9, name="x").pairs) == 1


def test_no_pair_at_all_is_an_error_that_says_why() -> None:
    with pytest.raises(DataError, match=r"test data: no sentence pair can be used: 2 with an empty side, 2 longer than .* \(11 tokens\)"):
        encode_corpus(PAIRS[1:5], vocabularies(), max_length=11, name="test data")


def test_likelihood_is_the_mean_over_tokens_whatever_the_batches() -> None:
    run = translator().run
    corpus = encode_corpus([(text, text[::-1]) for text in TEXTS], run.vocabularies, max_length=100, name="x")
    total, correct, tokens = 0.0, 0, 0
    for source, target in zip(corpus.source, corpus.target, strict=True):
        with torch.no_grad():
            output = run.model.decode(torch.tensor([[*source, 3]]), torch.tensor([len(source) + 1]), torch.tensor([[2, *target]]))
            log_probs = run.model.output(output.readout)[0].log_softmax(-1)
        goal = torch.tensor([*target, 3])
        total -= log_probs.gather(1, goal[:, None]).sum().item()
        correct += int((log_probs.argmax(-1) == goal).sum())
        tokens += len(goal)
    expected = {"loss": total / tokens, "perplexity": math.exp(total / tokens), "token_accuracy": correct / tokens}
    for batch_tokens in (1, 60, 10**6):
        assert translation_likelihood(run.model, corpus, batch_tokens=batch_tokens) == pytest.approx(expected, rel=1e-5)


def test_likelihood_asks_before_each_batch_whether_to_go_on() -> None:
    run = translator().run
    corpus = encode_corpus([(text, text) for text in TEXTS], run.vocabularies, max_length=100, name="x")
    calls: list[int] = []
    translation_likelihood(run.model, corpus, poll=lambda: calls.append(1), batch_tokens=1)
    assert len(calls) == len(TEXTS)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": {"share_embeddings": True}, "vocabulary": {"shared": False}}, "needs vocabulary.shared true"),
        ({"model": {"attention": {"score": "dot"}}}, "decoder_dim is 11, the source states have 10"),
        ({"decoding": {"replace_unknown": True}}, "needs vocabulary.kind word"),
        ({"model": {"attention": None}, "decoding": {"coverage_penalty": 0.1}}, "no attention"),
        ({"training": {"metric": "macro_f1"}}, "training.metric: macro_f1; the task translation has loss, perplexity, "),
        ({"training": {"eval_metrics": ["bleu", "cider"]}}, "training.eval_metrics: cider; the task translation has loss, perplexity, "),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_before_anything_is_written(
    tmp_path: Path, parts: dict[str, Any], message: str
) -> None:
    files = write_pairs(tmp_path)
    with pytest.raises(ConfigError, match=message):
        train_translation(configuration(data=files, **parts), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_are_checked_without_building_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "regard.training.memory_check.total_memory", lambda: 2**60
    )  # else the model is refused as too large for the machine
    check_translation_settings(
        configuration(model={"decoder_dim": 10**6, "attention": {"score": "general"}})
    )  # 12 terabytes, were it built


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "no training data given"),
        ({"valid_target": "source"}, "valid_target: given without data.valid_source"),
        ({"valid_source": "blank", "valid_target": "blank"}, "validation data: no sentence pair can be used"),
        ({"valid_source": "nowhere", "valid_target": "source"}, "nowhere: no such file"),
        ({"source": "blank", "target": "blank"}, "blank: no text to train a vocabulary on"),
        ({"source": "long", "target": "long"}, "training data: no sentence pair can be used"),
        ({"source": "one", "target": "one"}, "at least 2 are needed"),
    ],
)
def test_data_that_cannot_be_trained_on_leaves_no_run_behind(tmp_path: Path, files: dict[str, str], message: str) -> None:
    given = write_pairs(tmp_path)
    for name, text in {"blank": "\n \n\n", "long": ("Hund" * 30 + "\n") * 3, "one": "Hund\n"}.items():
        (tmp_path / name).write_text(text)
    data = {**given, **{name: str(tmp_path / value) for name, value in files.items()}} if files else {}
    with pytest.raises(RegardError, match=message):
        train_translation(configuration(data=data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_left_out_is_told(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "source").write_text("ein Hund\n" * 15 + "\n" + "Hund" * 30 + "\n" + "Haus\n")
    (tmp_path / "target").write_text("ein Haus\n" * 15 + "Haus\n" * 3)
    (tmp_path / "valid").write_text("ein Hund\n\n")
    files = {"source": "source", "target": "target", "valid_source": "valid", "valid_target": "valid"}
    config = configuration(data={name: str(tmp_path / path) for name, path in files.items()}, training={"max_updates": 1})
    train_translation(config, tmp_path / "run")
    assert "16 training pairs, 1 validation pair" in messages[0]
    assert messages[1:3] == ["training pairs left out: 1 empty, 1 too long", "validation pairs left out: 1 empty"]


def test_pairs_can_come_from_one_file(tmp_path: Path) -> None:
    lines = [json.dumps({"source": text, "target": text[::-1]}) for text in TEXTS * 4]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    result = train_translation(configuration(data={"source": str(tmp_path / "pairs.jsonl")}, training={"max_updates": 1}), tmp_path / "run")
    assert result.step == 1


@pytest.mark.parametrize("metric", ["bleu", "chrf", "exact_match"])
def test_a_run_can_be_steered_by_what_it_translates(tmp_path: Path, metric: str) -> None:
    run = trained(tmp_path, training={"metric": metric})
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert all(0 <= event[metric] <= 100 for event in events if event["event"] == "evaluate")
    assert json.loads((run / "model" / "state.json").read_text())["metric"] == metric


def test_eval_metrics_are_logged_at_each_evaluation_and_change_nothing_else(tmp_path: Path, messages: list[str]) -> None:
    training = {"max_updates": 4, "evaluate_every": 2, "save_every": 1}
    plain = retrain(trained(tmp_path / "plain", training=training))
    training["eval_metrics"] = ["bleu", "chrf", "exact_match", "loss"]
    messages.clear()
    run = trained(tmp_path / "measured", training=training)
    events = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    evaluations = [event for event in events if event["event"] == "evaluate"]
    assert [event["step"] for event in evaluations] == [2, 4]
    assert all(0 <= event[name] <= 100 for event in evaluations for name in ("bleu", "chrf", "exact_match"))
    lines = [line for line in messages if "  evaluate  " in line]
    assert len(lines) == 2
    assert all(f"  {name} " in line for line in lines for name in ("bleu", "chrf", "exact_match"))
    # The weights, and which are best, are those of a run that does not measure this; nothing but the log holds a figure.
    assert retrain(run).weights_sha256 == plain.weights_sha256
    states = [json.loads((folder / "model" / "state.json").read_text()) for folder in (run, tmp_path / "plain" / "run")]
    assert states[0]["metric"] == "loss"
    assert [state["best_value"] for state in states] == [states[0]["best_value"]] * 2
    assert not [path for path in run.rglob("state.json") if "chrf" in path.read_text()]


def test_one_eval_metric_needs_no_brackets() -> None:
    assert load_config(None, ["training.eval_metrics=bleu"]).training.eval_metrics == ("bleu",)


def test_a_killed_run_with_eval_metrics_resumes_exactly_with_the_same_log(tmp_path: Path) -> None:
    training = {"max_updates": 4, "evaluate_every": 2, "save_every": 1, "eval_metrics": ["chrf"]}
    config = configuration(data={"max_length": 37, **write_pairs(tmp_path)}, training=training)
    straight = train_translation(config, tmp_path / "straight")

    class Killed(Exception):
        pass

    for moment in ("evaluate 2", "update 4"):

        def kill(event: str, moment: str = moment) -> None:
            if event == moment:
                raise Killed

        with pytest.raises(Killed):
            train_translation(config, tmp_path / "killed", on_event=kill)
    resumed = train_translation(config, tmp_path / "killed")
    assert (resumed.weights_sha256, resumed.metrics) == (straight.weights_sha256, straight.metrics)
    logs = [[json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()] for name in ("straight", "killed")]
    figures = [[event for event in log if event["event"] == "evaluate"] for log in logs]
    assert figures[0] == figures[1]


def retrain(run: Path, change: Callable[[TranslationConfig], TranslationConfig] = lambda config: config) -> Any:
    return train_translation(change(load_config(run / "config.yaml")), run)


@pytest.mark.parametrize("variable", ["REGARD_KERNELS", "REGARD_MATMUL"])
def test_a_variable_that_means_nothing_leaves_no_run_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    config = configuration(data=write_pairs(tmp_path))
    monkeypatch.setenv(variable, "cpux")
    matmul_path.cache_clear()
    try:
        with pytest.raises(ConfigError, match=f"{variable}: expected .*, found 'cpux'"):
            train_translation(config, tmp_path / "run")
    finally:
        matmul_path.cache_clear()
    assert not (tmp_path / "run").exists()


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    run = trained(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    first, second = retrain(run), retrain(run)
    assert (first.step, first.reason, first.interrupted) == (2, "max_updates", None)
    assert first.weights_sha256 == second.weights_sha256
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")} == before


@pytest.mark.parametrize(
    ("family", "precision", "r_drop"),
    [("gru", "fp32", 0.0), ("gru", "fp32", 3.0), ("transformer", "fp32", 3.0), *((family, "bf16", 0.0) for family in FAMILIES)],
)
def test_a_run_stopped_in_the_midst_ends_as_one_that_was_not(tmp_path: Path, family: str, precision: str, r_drop: float) -> None:
    model = {**FAMILIES[family], "dropout": 0.3}
    training = {"max_updates": 5, "batch_tokens": 300, "save_every": 2, "precision": precision, "r_drop": r_drop}
    whole = retrain(trained(tmp_path / "a", model=model, training=training))

    class Killed(Exception):
        pass

    def kill(event: str) -> None:
        if event == "update 4":
            raise Killed

    config = configuration(model=model, data={"max_length": 37, **write_pairs(tmp_path)}, training=training)
    with pytest.raises(Killed):
        train_translation(config, tmp_path / "run", on_event=kill)
    assert retrain(tmp_path / "run").weights_sha256 == whole.weights_sha256
