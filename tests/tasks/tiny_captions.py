"""Small captioning runs on generated scenes for the tests of tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.config import validate
from regard.config.captioning import CaptioningConfig
from regard.data.synthetic.scene_files import write_scenes
from regard.data.synthetic.scenes import SceneSettings, generate_scenes
from regard.tasks.captioning_training import train_captioning

SCENES = SceneSettings(size=32, objects=(2, 2), radius=(3, 4), captions=2)
ENCODER = {"channels": [3, 5]}
SHOW: dict[str, Any] = {"embed_dim": 7, "decoder_dim": 11, "attention_dim": 5, "feature_dim": 6, "dropout": 0.2, "encoder": ENCODER}
TRANSFORMER: dict[str, Any] = {
    "type": "transformer",
    "embed_dim": 8,
    "ff_dim": 11,
    "num_heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder": ENCODER,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "soft": {**SHOW, "doubly_stochastic": 0.5},
    "hard": {**SHOW, "attention": "hard", "hard": {"soft_batches": 3}},
    "soft areas": {**SHOW, "area": {"height": 2, "width": 2}},
    "looks last": {**SHOW, "query_state": "current"},
    "non-local": {**SHOW, "encoder": {**ENCODER, "non_local": "dot"}},
    "transformer": TRANSFORMER,
    "transformer areas": {**TRANSFORMER, "bag_of_words_weight": 0.5, "area": {"height": 3, "width": 3, "key_mode": "features"}},
}


def write_set(folder: Path, name: str = "train", count: int = 13, start: int = 0) -> tuple[Path, Path]:
    """Write scenes with two captions each; return the files of captions and of regions."""
    return write_scenes(folder, name, generate_scenes(count, seed=3, start=start, settings=SCENES))


def configuration(captions: Path, model: dict[str, Any] | None = None, **parts: Any) -> CaptioningConfig:
    """Return small settings; each keyword is a part of the configuration, merged into them."""
    tree: dict[str, Any] = {
        "task": "captioning",
        "data": {"captions": str(captions), "valid_size": 2},
        "image": {"size": 32},
        "vocabulary": {"kind": "word"},
        "model": SHOW if model is None else model,
        "training": {"max_updates": 2, "batch_tokens": 60},
        "decoding": {"max_length": 11, "beam_size": 3, "batch_size": 4},
    }
    return validate({**tree, **{name: {**tree.get(name, {}), **values} for name, values in parts.items()}}, "test", kind=CaptioningConfig)


def trained(folder: Path, model: dict[str, Any] | None = None, **parts: Any) -> Path:
    """Train for two updates in `folder`/run, on scenes beside it, and return the run folder."""
    captions, _ = write_set(folder)
    train_captioning(configuration(captions, model, **parts), folder / "run")
    return folder / "run"


def conventional(scene: Any) -> Any:
    """Return the scene with one caption that the image decides: the object whose colour comes first in the alphabet."""
    first = min(scene.objects, key=lambda thing: thing.colour)
    return replace(scene, captions=(f"a {first.colour} {first.shape}",))
