"""What the loop does in one process: losses, stops, averages, precisions, and what it says when it cannot go on."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from regard.errors import ConfigError, DataError, MissingExtraError, TrainingError
from regard.ops import SequenceLoss
from regard.training import TrainingJob, TrainResult, load_weights, train
from tests.training import tiny
from tests.training.test_resume import lines


def run(folder: Path, job: TrainingJob, **changes: Any) -> TrainResult:
    return train(tiny.model(), job, config=tiny.config(**changes), folder=folder)


def spoiled(step: int, spoil: Callable[[SequenceLoss], SequenceLoss]) -> TrainingJob:
    """Return the tiny job, whose loss is changed in the given call."""
    calls = iter(range(1, 10**6))
    job = tiny.job()

    def loss(model: nn.Module, batch: torch.Tensor) -> SequenceLoss:
        result = job.loss(model, batch)
        return spoil(result) if next(calls) == step else result

    return replace(job, loss=loss)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    tiny.run(tmp_path, epochs=12, schedule="constant")
    losses = [line["loss"] for line in lines(tmp_path) if line["event"] == "evaluate"]
    assert losses[-1] < 0.7 * losses[0]


def test_an_update_is_the_gradient_of_the_mean_over_all_its_tokens(tmp_path: Path) -> None:
    changes = {
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "schedule": "constant",
        "warmup_updates": 0,
        "weight_decay": 0.0,
        "clip_norm": None,
    }
    train(tiny.model(dropout=0), tiny.job(), config=tiny.config(**changes, gradient_accumulation_steps=3, max_updates=3), folder=tmp_path)
    model = tiny.model(dropout=0)
    data = torch.tensor(tiny.sequences())
    for batches in (tiny.plan(0)[:3], tiny.plan(0)[3:6], tiny.plan(0)[6:]):
        examples = [index for planned in batches for index in planned.indices]
        loss = model(data[examples]).loss / (5 * len(examples))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.5 * gradient)
    trained = load_file(tmp_path / "checkpoints" / "step-00000003" / "model.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(trained[name], parameter.detach())


def test_gradients_are_clipped_to_the_norm_and_the_norm_before_it_is_logged(tmp_path: Path) -> None:
    changes = {
        "optimizer": "sgd",
        "learning_rate": 1.0,
        "schedule": "constant",
        "warmup_updates": 0,
        "weight_decay": 0.0,
        "max_updates": 1,
        "log_every": 1,
    }
    start = dict(tiny.model().named_parameters())
    tiny.run(tmp_path, clip_norm=0.001, **changes)
    trained = load_file(tmp_path / "checkpoints" / "step-00000001" / "model.safetensors")
    moved = torch.sqrt(sum((trained[name] - start[name].detach()).square().sum() for name in trained))
    assert moved.item() == pytest.approx(0.001, rel=1e-3)
    [line] = [line for line in lines(tmp_path) if line["event"] == "train"]
    assert line["gradient_norm"] > 0.1


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    often, seldom = tiny.run(tmp_path / "often", evaluate_every=1), tiny.run(tmp_path / "seldom", evaluate_every=20)
    assert often.weights_sha256 == seldom.weights_sha256


def test_the_seed_decides_the_run(tmp_path: Path) -> None:
    results = [tiny.run(tmp_path / str(i), seed=seed, max_updates=4) for i, seed in enumerate([3, 3, 4])]
    assert results[0].weights_sha256 == results[1].weights_sha256 != results[2].weights_sha256


@pytest.mark.parametrize(("event", "steps"), [("evaluate", [7, 14, 21]), ("save", [7, 14, 21])])
def test_by_default_a_run_is_evaluated_and_saved_once_an_epoch(tmp_path: Path, event: str, steps: list[int]) -> None:
    tiny.run(tmp_path, evaluate_every=None, save_every=None)
    found = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in found if line["event"] == event] == steps


def test_patience_ends_a_run_and_the_best_weights_are_final(tmp_path: Path) -> None:
    values = iter([5.0, 3.0, 4.0, 3.0, 9.0])
    job = replace(tiny.job(), evaluate=lambda model: {"loss": next(values)})
    result = run(tmp_path, job, patience=2, evaluate_every=2, epochs=9, keep_checkpoints=1)
    assert (result.reason, result.step, result.best_step, result.best_value) == ("patience", 8, 4, 3.0)
    best = tmp_path / "checkpoints" / "step-00000004" / "model.safetensors"
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == best.read_bytes()
    state = json.loads((tmp_path / "model" / "state.json").read_text())
    assert (state["weights"], list(state["sources"])) == ("best by loss, weights", ["step-00000004"])


def test_higher_is_better_for_bleu(tmp_path: Path) -> None:
    values = iter([5.0, 7.0, 6.0])
    job = replace(tiny.job(), evaluate=lambda model: {"loss": 1.0, "bleu": next(values)})
    result = run(tmp_path, job, metric="bleu", evaluate_every=2, max_updates=6)
    assert (result.best_step, result.best_value, result.metrics) == (4, 7.0, {"loss": 1.0, "bleu": 6.0})


def test_an_evaluation_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    values = iter([float("nan"), 7.0, float("-inf")])
    job = replace(tiny.job(), evaluate=lambda model: {"loss": next(values)})
    assert run(tmp_path, job, evaluate_every=2, max_updates=6).best_step == 4
    assert [line["loss"] for line in lines(tmp_path) if line["event"] == "evaluate"] == [None, 7.0, None]


def test_a_missing_metric_is_an_error_that_names_what_there_is(tmp_path: Path) -> None:
    job = replace(tiny.job(), evaluate=lambda model: {"loss": 1.0, "chrf": 2.0})
    with pytest.raises(ConfigError, match=r"training\.metric: the evaluation gives chrf, loss, but not bleu"):
        run(tmp_path, job, metric="bleu")
    with pytest.raises(ConfigError, match=r"training\.eval_metrics: the evaluation gives chrf, loss, but not cider"):
        run(tmp_path / "other", job, metric="chrf", eval_metrics=("loss", "cider"))


def test_the_mean_of_the_last_evaluations_is_final(tmp_path: Path) -> None:
    # From a high rate to none: the weights swing around their mean.
    tiny.run(tmp_path, max_updates=8, evaluate_every=2, average_checkpoints=4, keep_checkpoints=1, learning_rate=0.3, schedule="linear")
    files = [load_file(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors") for step in (2, 4, 6, 8)]
    final = load_file(tmp_path / "model" / "model.safetensors")
    for name, tensor in final.items():
        expected = torch.stack([file[name].double() for file in files]).mean(0).float()
        torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-8)
    assert json.loads((tmp_path / "model" / "state.json").read_text())["weights"] == "mean of weights"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_mean_without_a_finite_value_is_not_final(tmp_path: Path, value: float) -> None:
    job, seen = tiny.job(), list[float]()

    def evaluate(model: nn.Module) -> dict[str, float]:
        seen.append(value if len(seen) == 4 else job.evaluate(model)["loss"])
        return {"loss": seen[-1]}

    run(tmp_path, replace(job, evaluate=evaluate), max_updates=8, evaluate_every=2, average_checkpoints=4)
    state = json.loads((tmp_path / "model" / "state.json").read_text())
    assert (state["mean_value"], state["best_value"]) == (None, min(seen[:4]))
    assert state["weights"] != "mean of weights"


def test_a_mean_worse_than_the_best_evaluation_is_not_final(tmp_path: Path, messages: list[str]) -> None:
    # At a low rate each evaluation is better than the one before, and the mean is behind the last.
    result = tiny.run(tmp_path, max_updates=8, evaluate_every=2, average_checkpoints=4, learning_rate=0.01, schedule="constant")
    events = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    values = {event["step"]: event["loss"] for event in events if event["event"] == "evaluate"}
    (mean,) = [event for event in events if event["event"] == "average"]
    assert mean["of"] == sorted(values)
    state = json.loads((tmp_path / "model" / "state.json").read_text())
    assert (state["mean_value"], state["best_value"]) == (mean["loss"], min(values.values()))
    best = load_file(tmp_path / "checkpoints" / f"step-{result.best_step:08d}" / "model.safetensors")
    final = load_file(tmp_path / "model" / "model.safetensors")
    assert (mean["loss"] > min(values.values())) == all(torch.equal(final[name], best[name]) for name in best)
    assert mean["loss"] > min(values.values())
    assert state["weights"] == "best by loss, weights"
    told = f"final weights: those of step {result.best_step} (loss of the mean over 4 evaluations "
    assert any(text.startswith(told) for text in messages)


def test_more_updates_than_the_epochs_have_are_told(tmp_path: Path, messages: list[str]) -> None:
    result = tiny.run(tmp_path, max_updates=100_000)
    (note,) = [text for text in messages if text.startswith("training.max_updates=100000 has no effect: training.epochs=")]
    assert note.endswith(f" ends the run after {result.step} updates")


def test_a_warm_up_that_is_longer_than_the_run_is_told(tmp_path: Path, messages: list[str]) -> None:
    tiny.run(tmp_path, max_updates=3, warmup_updates=3)
    assert any(text.startswith("training.warmup_updates is 3, the run has 3 updates: its learning rate only rises") for text in messages)
    messages.clear()
    tiny.run(tmp_path / "other", max_updates=4, warmup_updates=3)
    assert not any("warmup_updates" in text for text in messages)


def test_the_moving_average_is_evaluated_and_final(tmp_path: Path) -> None:
    history: list[dict[str, torch.Tensor]] = []
    job = tiny.job()

    def evaluate(model: nn.Module) -> dict[str, float]:
        history.append({name: p.detach().clone() for name, p in model.named_parameters()})
        return job.evaluate(model)

    changes = {"ema_decay": 0.5, "evaluate_every": 1, "save_every": 1, "max_updates": 4, "keep_checkpoints": 9}
    run(tmp_path, replace(job, evaluate=evaluate), **changes)
    plain = [load_file(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors") for step in (1, 2, 3, 4)]
    average = {name: p.detach() for name, p in tiny.model().named_parameters()}
    for step, (weights, seen) in enumerate(zip(plain, history, strict=True), start=1):
        decay = min(0.5, (1 + step) / (10 + step))
        average = {name: decay * average[name] + (1 - decay) * weights[name] for name in average}
        for name in average:
            torch.testing.assert_close(seen[name], average[name])
    model = tiny.model()
    load_weights(tmp_path, model)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, history[-1][name])
    load_weights(tmp_path / "checkpoints" / "step-00000004", model)
    assert torch.equal(model.norm.weight, history[-1]["norm.weight"])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_keeps_float32_weights_and_learns_nearly_the_same(tmp_path: Path, precision: str) -> None:
    half, full = tmp_path / "half", tmp_path / "full"
    tiny.run(half, precision=precision)
    tiny.run(full)
    weights = load_file(half / "model" / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
    losses, norms = (
        [[line.get(key) for line in lines(f) if line["event"] == "train"] for f in (half, full)] for key in ("loss", "gradient_norm")
    )
    assert losses[0] != losses[1]
    assert norms[0][1:] == pytest.approx(norms[1][1:], rel=0.5), "of the gradient itself, not of the scaled one"
    assert losses[0] == pytest.approx(losses[1], rel=0.05)  # fp16 starts with updates left out, until the scale fits


def test_a_gradient_that_overflows_in_fp16_lowers_the_scale_and_training_goes_on(tmp_path: Path) -> None:
    run(
        tmp_path,
        spoiled(3, lambda sums: sums._replace(loss=sums.loss * 1e36)),
        precision="fp16",
        max_updates=5,
        save_every=1,
        keep_checkpoints=9,
    )
    states = [json.loads((tmp_path / "checkpoints" / f"step-{step:08d}" / "state.json").read_text()) for step in (2, 3, 4)]
    scales = [state["scaler"]["scale"] for state in states]
    assert scales == [scales[0], scales[0] / 2, scales[0] / 2]
    weights = [(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors").read_bytes() for step in (2, 3, 4)]
    assert weights[0] == weights[1] != weights[2]


@pytest.mark.parametrize("updates", [3, 40])
def test_a_training_in_fp16_that_cannot_update_is_an_error(tmp_path: Path, updates: int) -> None:
    """At once where no scale fits, at the end where there were too few updates to find one."""

    def loss(model: nn.Module, batch: torch.Tensor) -> SequenceLoss:
        sums = tiny.job().loss(model, batch)
        return sums._replace(loss=sums.loss * 1e36)

    ended = r"step 30, .*multiplied by 0\.000122;" if updates == 40 else r"step 3, .*no update was made: .* multiplied by 1\.64e\+04;"
    with pytest.raises(TrainingError, match=ended + r" train .*training\.precision=bf16 or fp32;"):
        run(tmp_path, replace(tiny.job(), loss=loss), precision="fp16", max_updates=updates, epochs=40)
    assert not (tmp_path / "model").exists()
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["event"] == "error"


@pytest.mark.parametrize("spoil", [lambda s: s._replace(loss=s.loss * float("nan")), lambda s: s._replace(loss=s.loss + float("inf"))])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_batch(tmp_path: Path, spoil: Callable[[SequenceLoss], SequenceLoss]) -> None:
    events: list[str] = []
    with pytest.raises(TrainingError) as caught:
        run(tmp_path, replace(spoiled(11, spoil), on_event=events.append))
    assert events[-1] == "update 11", "the weights are not even changed"
    examples = ", ".join(str(index) for index in tiny.plan(1)[3].indices)
    assert str(caught.value) == (
        f"step 11, epoch 2, batch 4: the loss is not finite (examples {examples}); step-00000010 is the last checkpoint"
    )
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir())[-1] == "step-00000010"
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["examples"] == list(tiny.plan(1)[3].indices)
    assert tiny.run(tmp_path).reason == "epochs", "the checkpoint is good"


def test_a_gradient_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    def spoil(sums: SequenceLoss) -> SequenceLoss:
        zero = sums.loss - sums.loss.detach()
        return sums._replace(loss=sums.loss + torch.sqrt(zero))  # finite, with an infinite slope

    with pytest.raises(TrainingError, match="step 5, epoch 1, batch 5: the norm of the gradient is not finite"):
        run(tmp_path, spoiled(5, spoil))


def test_an_epoch_without_batches_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="epoch 1 has no batches"):
        run(tmp_path, replace(tiny.job(), plan=lambda epoch: []))


def test_an_unknown_device_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_DEVICE", "abacus")
    with pytest.raises(ConfigError, match="REGARD_DEVICE is 'abacus', expected cpu or cuda"):
        tiny.run(tmp_path)


def test_a_model_the_processor_cannot_train_in_half_precision_is_an_error_that_says_so(tmp_path: Path) -> None:
    def loss(model: nn.Module, batch: torch.Tensor) -> SequenceLoss:
        raise RuntimeError("could not create a primitive descriptor")

    with pytest.raises(ConfigError, match=r"training\.precision: this processor cannot train this model in fp16"):
        run(tmp_path, replace(tiny.job(), loss=loss), precision="fp16")


def test_a_missing_tensorboard_is_told_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard.writer", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[tensorboard\]'"):
        tiny.run(tmp_path, tensorboard=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler uses what torch deprecates
def test_a_compiled_model_trains_as_the_plain_one(tmp_path: Path) -> None:
    plain, compiled = tmp_path / "plain", tmp_path / "compiled"
    model = tiny.model(dropout=0)
    train(model, tiny.job(), config=tiny.config(max_updates=4), folder=plain)
    model = tiny.model(dropout=0)
    train(model, tiny.job(), config=tiny.config(max_updates=4, compile=True), folder=compiled)
    losses = [[line["loss"] for line in lines(folder) if "loss" in line] for folder in (plain, compiled)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_compiler_that_fails_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo.exc import TorchDynamoException

    def loss(model: nn.Module, batch: torch.Tensor) -> SequenceLoss:
        raise TorchDynamoException("no compiler\nand more")

    monkeypatch.setattr(torch, "compile", lambda model: model)
    with pytest.raises(TrainingError, match=r"^torch\.compile failed on this model: no compiler; train with training\.compile=false$"):
        run(tmp_path, replace(tiny.job(), loss=loss), compile=True)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_on_a_gpu_a_killed_run_resumes_exactly(tmp_path: Path, precision: str) -> None:
    with tiny.device("cuda"):
        expected = tiny.run(tmp_path / "straight", precision=precision)
        with pytest.raises(tiny.Killed):
            tiny.run(tmp_path / "killed", "update 6", precision=precision)
        assert tiny.run(tmp_path / "killed", precision=precision).weights_sha256 == expected.weights_sha256


@pytest.mark.gpu
def test_on_a_gpu_a_loss_that_is_not_finite_is_found_before_the_next_save(tmp_path: Path) -> None:
    with tiny.device("cuda"), pytest.raises(TrainingError, match="step 11, epoch 2, batch 4: the loss is not finite"):
        run(
            tmp_path,
            spoiled(11, lambda sums: sums._replace(loss=sums.loss * float("nan"))),
            log_every=100,
            evaluate_every=15,
            save_every=13,
        )
