"""What goes on from batch to batch is read back only into the shapes it was saved in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from regard.config import TrainingConfig
from regard.errors import CheckpointError, ConfigError
from regard.training import ProcessGroup, TrainingState, build_optimizer, load_checkpoint, save_checkpoint
from regard.training.stream_state import check_stream_groups, read_stream_state
from regard.training.training_job import Progress
from tests.training import tiny


def carried(value: float = 0.0, stream_groups: int = 3) -> dict[str, torch.Tensor]:
    return {"hidden": torch.full((stream_groups, 5), value), "mask": torch.full((stream_groups, 2), value > 0)}


def state(held: dict[str, torch.Tensor]) -> TrainingState:
    model, config = tiny.model(), TrainingConfig()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return TrainingState(model, build_optimizer(model, config), config.optimizer, scaler, Progress(step=7), carried=held)


def test_a_checkpoint_brings_back_what_was_carried_in_place(tmp_path: Path) -> None:
    path = save_checkpoint(state(carried(2.5)), tmp_path, world=ProcessGroup())
    assert (path / "carried.safetensors").is_file()
    held = carried()
    kept = dict(held)
    load_checkpoint(state(held), path)
    assert all(held[name] is kept[name] for name in held), "the job holds these very tensors"
    assert all(torch.equal(held[name], value) for name, value in carried(2.5).items())


def test_a_job_that_carries_nothing_saves_nothing_more(tmp_path: Path) -> None:
    path = save_checkpoint(state({}), tmp_path, world=ProcessGroup())
    assert not (path / "carried.safetensors").exists()
    with pytest.raises(CheckpointError, match=r"lacks carried\.safetensors"):
        load_checkpoint(state(carried()), path)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (carried(stream_groups=2), r"tensor hidden is \(2, 5\), the model has \(3, 5\)"),
        ({"hidden": torch.zeros(3, 5)}, "tensor mask does not fit"),
        ({**carried(), "cell": torch.zeros(3, 5)}, "tensor cell does not fit"),
        ({**carried(), "mask": torch.zeros(3, 2)}, "tensor mask is F32"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_read(tmp_path: Path, other: dict[str, torch.Tensor], message: str) -> None:
    save_file({name: tensor + 1 if tensor.dtype != torch.bool else tensor for name, tensor in other.items()}, tmp_path / "c.safetensors")
    held = carried()
    with pytest.raises(CheckpointError, match=message):
        read_stream_state(tmp_path / "c.safetensors", held)
    assert not held["hidden"].any()


def test_one_process_takes_any_number_of_lanes() -> None:
    check_stream_groups(carried(stream_groups=1), ProcessGroup())
    check_stream_groups(carried(stream_groups=6), ProcessGroup(size=3))
    with pytest.raises(ConfigError, match="2 processes cannot share 1 stream group"):
        check_stream_groups(carried(stream_groups=1), ProcessGroup(size=2))
