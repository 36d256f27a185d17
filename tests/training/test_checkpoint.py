"""Checkpoints are whole or absent, verified before use, and refused by name when they do not fit."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.errors import CheckpointError, ConfigError, WriteError
from regard.training import latest_checkpoint, load_weights, train, weights_sha256
from regard.training.atomic_folder import MANIFEST, remove_leftovers, verify_folder, write_folder
from regard.training.weights import named_tensors, read_weights
from tests.training import tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    tiny.run(folder, max_updates=9, keep_checkpoints=3)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 4
    path.write_bytes(data)


def rewrite(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Replace the weights of a checkpoint by others, with a manifest that matches."""
    state = json.loads((path / "state.json").read_text())
    files = {"model.safetensors": tensors, "optimizer.safetensors": load_file(path / "optimizer.safetensors")}
    write_folder(path, files, state=state, run_files={}, on_event=lambda _: None)


def write(path: Path, **tensors: torch.Tensor) -> None:
    write_folder(path, {"a.safetensors": tensors}, state={"n": 1}, run_files={}, on_event=lambda _: None)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_checkpoint_holds_tensors_and_json_and_a_sum_of_each(trained: Path) -> None:
    newest = checkpoints(trained)[-1]
    assert sorted(path.name for path in newest.iterdir()) == ["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert sorted(verify_folder(newest)["files"]) == ["model.safetensors", "optimizer.safetensors", "state.json"]


def test_others_may_read_weights_as_they_may_any_new_file(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    modes = {path.name: path.stat().st_mode for path in trained.rglob("*") if path.is_file()}
    assert modes == dict.fromkeys(modes, (tmp_path / "any").stat().st_mode)
    before = os.umask(0o027)
    try:
        write(tmp_path / "a", x=torch.ones(1))
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "a.safetensors").stat().st_mode & 0o777 == 0o640


def test_the_newest_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    result = tiny.run(tmp_path, learning_rate=1e-9, max_updates=9, keep_checkpoints=2, schedule="constant", precision="fp32")
    # At this rate the loss hardly moves; whichever evaluation was best, its checkpoint stands beside the newest two.
    names = {path.name for path in checkpoints(tmp_path)}
    assert names == {"step-00000008", "step-00000009", f"step-{result.best_step:08d}"}


def test_checkpoints_to_be_averaged_outlive_newer_ones(tmp_path: Path) -> None:
    tiny.run(tmp_path, max_updates=15, keep_checkpoints=1, average_checkpoints=4)
    assert {path.name for path in checkpoints(tmp_path)} == {f"step-{step:08d}" for step in (6, 9, 12, 15)}


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("position", [3, 211, -29])
def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_taken(
    run: Path, caplog: pytest.LogCaptureFixture, name: str, position: int
) -> None:
    before, newest = checkpoints(run)[-2:]
    flip(newest / name, position)
    with caplog.at_level(logging.WARNING):
        assert latest_checkpoint(run) == before
    assert str(newest / name) in caplog.text
    assert before.name in caplog.text


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_a_missing_or_cut_file_is_found(run: Path, name: str) -> None:
    before, newest = checkpoints(run)[-2:]
    whole = (newest / name).read_bytes()
    (newest / name).write_bytes(whole[: len(whole) // 2])
    assert latest_checkpoint(run) == before
    (newest / name).unlink()
    assert latest_checkpoint(run) == before


def test_training_goes_on_from_the_checkpoint_before_a_damaged_one(trained: Path, run: Path) -> None:
    newest = checkpoints(run)[-1]
    flip(newest / "model.safetensors", 500)
    (run / "model" / MANIFEST).unlink()
    result = tiny.run(run, max_updates=9, keep_checkpoints=3)
    assert result.step == 9
    assert (run / "checkpoints" / f"damaged-{newest.name}").is_dir()
    assert (run / "model" / "model.safetensors").read_bytes() == (trained / "model" / "model.safetensors").read_bytes()


def test_when_every_checkpoint_is_damaged_each_reason_is_told_and_nothing_is_moved(run: Path) -> None:
    for path in checkpoints(run):
        flip(path / "state.json", 40)
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    with pytest.raises(CheckpointError, match="every checkpoint is damaged") as caught:
        tiny.run(run, max_updates=9)
    assert all(path.name in str(caught.value) for path in checkpoints(run))
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == names


def test_a_tensor_of_another_shape_is_refused_by_name(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"checkpoint tensor embedding.weight is \(13, 7\), the model has \(13, 11\)"):
        load_weights(run, tiny.model(dimension=11))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"norm.weight": None}, "the checkpoint lacks tensor norm.weight, the model has it with shape"),
        ({"more": torch.zeros(2)}, "checkpoint tensor more is not in the model"),
        ({"norm.weight": torch.zeros(7, dtype=torch.float64)}, "checkpoint tensor norm.weight is F64, the model has torch.float32"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name_and_the_model_stays(run: Path, change: dict[str, Any], message: str) -> None:
    newest = checkpoints(run)[-1]
    changed = {**load_file(newest / "model.safetensors"), **change}
    rewrite(newest, {name: tensor for name, tensor in changed.items() if tensor is not None})
    model = tiny.model()
    before = weights_sha256(model)
    with pytest.raises(CheckpointError, match=message):
        load_weights(newest, model)
    assert weights_sha256(model) == before
    with pytest.raises(CheckpointError, match=message):
        tiny.run(run, max_updates=11)


def test_another_optimizer_precision_or_average_is_refused(run: Path) -> None:
    with pytest.raises(CheckpointError, match=r"training\.optimizer has changed"):
        tiny.run(run, optimizer="sgd", max_updates=11)
    with pytest.raises(CheckpointError, match=r"training\.precision has changed"):
        tiny.run(run, precision="fp16", max_updates=11)
    with pytest.raises(CheckpointError, match=r"training\.ema_decay has changed"):
        tiny.run(run, ema_decay=0.5, max_updates=11)


def test_a_changed_run_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.json").write_text("{}")
    train(tiny.model(), tiny.job(), config=tiny.config(max_updates=3), folder=tmp_path, run_files=["vocabulary.json"])
    train(tiny.model(), tiny.job(), config=tiny.config(max_updates=5), folder=tmp_path, run_files=["vocabulary.json"])
    (tmp_path / "vocabulary.json").write_text("{ }")
    with pytest.raises(CheckpointError, match=r"vocabulary\.json: has changed"):
        train(tiny.model(), tiny.job(), config=tiny.config(max_updates=7), folder=tmp_path, run_files=["vocabulary.json"])


def test_other_training_data_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tiny.plan
    monkeypatch.setattr(tiny, "plan", lambda epoch: whole(epoch)[:-1])
    with pytest.raises(CheckpointError, match=r"epoch 2 had 7 batches when this was saved, now it has 6"):
        tiny.run(run, max_updates=11)


def test_a_state_of_another_schema_is_refused_with_the_key(run: Path) -> None:
    newest = checkpoints(run)[-1]
    state = json.loads((newest / "state.json").read_text())
    state["progress"]["step"] = "nine"
    files = {name: load_file(newest / name) for name in ("model.safetensors", "optimizer.safetensors")}
    write_folder(newest, files, state=state, run_files={}, on_event=lambda _: None)
    with pytest.raises(CheckpointError, match=r"state\.json: progress\.step: "):
        tiny.run(run, max_updates=11)


def test_a_full_disk_stops_the_run_in_one_line_and_loses_nothing(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "log.jsonl"}
    with files_no_larger_than(3500), pytest.raises(WriteError, match=r"step-00000010: cannot be saved \(.*too large") as caught:
        tiny.run(run, max_updates=11, keep_checkpoints=3)
    assert "\n" not in str(caught.value)
    *_, last = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    assert (last["event"], last["step"], last["what"]) == ("error", 10, str(caught.value))
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name != "log.jsonl"} == before


@pytest.mark.parametrize("failing", ["fsync", "mkdir", "rename"])
def test_any_failing_call_leaves_the_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    target = tmp_path / "a"
    write(target, x=torch.ones(3))

    def fail(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    owner = "os.fsync" if failing == "fsync" else f"pathlib.Path.{failing}"
    with monkeypatch.context() as patch:
        patch.setattr(owner, fail)
        with pytest.raises(WriteError, match=r"cannot be saved \(Read-only file system\)"):
            write(target, x=torch.zeros(3))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    verify_folder(target)
    assert load_file(target / "a.safetensors")["x"].tolist() == [1, 1, 1]


def test_every_file_and_folder_is_on_disk_before_the_rename_and_the_rename_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: done.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
    write_folder(tmp_path / "a", {"b.safetensors": {}}, state={}, run_files={}, on_event=done.append)
    assert done == [
        *("b.safetensors", "b.safetensors", "state.json", "state.json", "manifest.json", "manifest.json"),
        *(".tmp-a", "rename", tmp_path.name),
    ]


def test_a_run_folder_that_cannot_be_made_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file/run: cannot be made \(.*/file is not a folder\)"):
        tiny.run(tmp_path / "file" / "run")


def test_a_replacement_interrupted_between_its_renames_is_undone(tmp_path: Path) -> None:
    write(tmp_path / "a", x=torch.ones(3))
    (tmp_path / "a").rename(tmp_path / ".old-a")
    shutil.copytree(tmp_path / ".old-a", tmp_path / ".tmp-a")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    verify_folder(tmp_path / "a")


def test_a_manifest_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "a", x=torch.ones(3))
    manifest = json.loads((tmp_path / "a" / MANIFEST).read_text())
    tree = {"format": 1, "files": {**manifest["files"], "../b": "0"}, "run_files": {}}
    own = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    (tmp_path / "a" / MANIFEST).write_text(json.dumps({**tree, "sha256": own}))
    with pytest.raises(CheckpointError, match="expected names of files in this folder"):
        verify_folder(tmp_path / "a")


def test_weights_are_read_from_a_run_a_checkpoint_and_a_model_folder(run: Path) -> None:
    assert load_weights(run, tiny.model()) == run / "model" / "model.safetensors"
    assert load_weights(run / "model", tiny.model()) == run / "model" / "model.safetensors"
    newest = checkpoints(run)[-1]
    assert load_weights(newest, tiny.model()) == newest / "model.safetensors"
    shutil.rmtree(run / "model")
    assert load_weights(run, tiny.model()) == newest / "model.safetensors", "the last evaluation was the best here"


def test_only_the_weights_are_needed_to_use_a_model(run: Path) -> None:
    newest = checkpoints(run)[-1]
    (newest / "optimizer.safetensors").unlink()
    load_weights(newest, tiny.model())


def test_damaged_weights_are_refused(run: Path) -> None:
    flip(run / "model" / "model.safetensors", -9)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is damaged"):
        load_weights(run, tiny.model())


def test_tied_weights_are_saved_once_and_loaded(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.output = nn.Embedding(5, 3), nn.Linear(3, 5)
            self.output.weight = self.embedding.weight

    one, other = Tied(), Tied()
    assert sorted(named_tensors(one)) == ["embedding.weight", "output.bias"]
    save_file(named_tensors(one), tmp_path / "x.safetensors")
    read_weights(tmp_path / "x.safetensors", other)
    assert other.output.weight is other.embedding.weight
    assert weights_sha256(one) == weights_sha256(other)


@pytest.mark.parametrize("change", ["value", "name", "dtype", "shape"])
def test_the_hash_of_weights_sees_every_change(change: str) -> None:
    class Holder(nn.Module):
        def __init__(self, name: str, tensor: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer(name, tensor)

    value = torch.zeros(2, 3)
    changed = {
        "value": Holder("a", value + 1e-45),
        "name": Holder("b", value),
        "dtype": Holder("a", value.int()),
        "shape": Holder("a", value.view(3, 2)),
    }
    assert weights_sha256(Holder("a", value)) == weights_sha256(Holder("a", value.clone()))
    assert weights_sha256(Holder("a", value)) != weights_sha256(changed[change])
