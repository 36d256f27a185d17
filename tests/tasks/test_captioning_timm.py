"""Encoders of timm, with a stand-in that has its interface: the real one needs a torchvision made for this PyTorch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.config import TrainingConfig
from regard.config.captioning import ImageConfig, TimmConfig
from regard.errors import ConfigError
from regard.models.image_encoder import TimmEncoder, build_image_encoder
from regard.tasks.captioning_prediction import Captioner
from regard.tasks.captioning_training import train_captioning
from regard.training.optimizer import build_optimizer
from tests.tasks.tiny_captions import SHOW, configuration, write_set

FETCHED = 7.0  # what the weights that are fetched look like


class Backbone(nn.Module):
    """One stage of 5 channels and stride 8, with a norm that would learn statistics in training."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 8, stride=8)
        self.norm = nn.BatchNorm2d(5)
        self.output_fmt = "NHWC" if last else "NCHW"
        self.feature_info = SimpleNamespace(channels=lambda: [5])

    def forward(self, images: Tensor) -> list[Tensor]:
        found = self.norm(self.convolution(images))
        return [found.movedim(1, -1) if self.output_fmt == "NHWC" else found]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Put the stand-in in timm's place; the list says of each model whether its weights were fetched."""
    asked: list[bool] = []

    def create_model(name: str, *, pretrained: bool, **_: Any) -> nn.Module:
        if name == "nothing":
            raise RuntimeError("Unknown model (nothing)")
        asked.append(pretrained)
        model = Backbone(last=name == "swin")
        if pretrained:
            nn.init.constant_(model.convolution.weight, FETCHED)
        return model

    wanted = {"input_size": (3, 24, 24), "interpolation": "bicubic", "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "crop_pct": 0.95}
    stand_in = SimpleNamespace(create_model=create_model, data=SimpleNamespace(resolve_model_data_config=lambda model: wanted))
    monkeypatch.setattr("regard.models.image_encoder.import_timm", lambda: stand_in)
    monkeypatch.setattr("regard.tasks.captioning_data.import_timm", lambda: stand_in)
    return asked


def model_settings(factor: float) -> dict[str, Any]:
    return {**SHOW, "encoder": {"type": "timm", "name": "resnet", "learning_rate_factor": factor}}


@pytest.mark.parametrize("name", ["resnet", "swin"])
def test_a_stage_becomes_a_grid_of_features_in_either_order(fetched: list[bool], name: str) -> None:
    torch.manual_seed(1)
    encoder = build_image_encoder(TimmConfig(name=name), image_size=40)
    assert isinstance(encoder, TimmEncoder)
    assert (encoder.grid, encoder.output_dim) == ((5, 5), 5)
    images = torch.randn(2, 3, 40, 40)
    expected = encoder.backbone.norm(encoder.backbone.convolution(images)).movedim(1, -1).flatten(1, 2)
    torch.testing.assert_close(encoder(images), expected)
    assert fetched == [False]


def test_a_frozen_encoder_learns_nothing_and_a_tuned_one_more_slowly(fetched: list[bool]) -> None:
    for factor in (0.0, 0.25):
        encoder = build_image_encoder(TimmConfig(name="resnet", learning_rate_factor=factor), image_size=24).train()
        assert isinstance(encoder, TimmEncoder)
        assert not encoder.backbone.training, "its norms keep their statistics"
        assert encoder(torch.randn(1, 3, 24, 24)).requires_grad == bool(factor)
        model = nn.Sequential(encoder, nn.Linear(5, 2))
        groups = build_optimizer(model, TrainingConfig(weight_decay=0.1)).param_groups
        found = sorted((group["factor"], group["weight_decay"], len(group["params"])) for group in groups)
        own = [(0.25, 0.0, 3), (0.25, 0.1, 1)] if factor else []
        assert found == [*own, (1.0, 0.0, 1), (1.0, 0.1, 1)]


@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_weights_are_fetched_once_and_kept_with_the_run(fetched: list[bool], tmp_path: Path, factor: float) -> None:
    captions, _ = write_set(tmp_path)
    tree = configuration(captions, model_settings(factor), training={"save_every": 1}).model_dump(exclude={"image"})
    config = type(configuration(captions)).model_validate(tree)
    train_captioning(config, tmp_path / "run")
    assert fetched.count(True) == 1
    train_captioning(config, tmp_path / "run")
    assert fetched.count(True) == 1, "a run that has checkpoints has its weights"
    captioner = Captioner.open(tmp_path / "run")
    assert fetched.count(True) == 1
    expected = ImageConfig(size=24, fit="crop", keep=0.95, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert captioner.run.config.image == expected, "preprocessing is what the model asks for"
    kept = load_file(tmp_path / "run" / "model" / "model.safetensors")["image_encoder.backbone.convolution.weight"]
    assert bool((kept == FETCHED).all()) == (factor == 0)
    assert (kept - FETCHED).abs().max() < 0.1


def test_an_unknown_model_is_one_line(fetched: list[bool]) -> None:
    with pytest.raises(ConfigError, match=r"model\.encoder\.name nothing: timm cannot make it as a grid of features \(Unknown model"):
        build_image_encoder(TimmConfig(name="nothing"), image_size=24)
