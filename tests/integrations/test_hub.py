"""Models and runs go to the Hub and come back as they were; nothing is sent anywhere here."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors import safe_open

from regard.errors import CheckpointError, ConfigError, MissingExtraError
from regard.integrations import hub
from regard.integrations.hub import HubModel, fetch_run, publish_run
from regard.tasks import Translator
from regard.tasks.translation_run import open_translation_run
from tests.tasks.tiny import TEXTS, trained

SIZES: dict[str, Any] = {"embed_dim": 14, "ff_dim": 11, "num_heads": 7, "encoder_layers": 1, "decoder_layers": 1}
FAMILY: dict[str, dict[str, Any]] = {
    "recurrent": {"type": "rnn", "embed_dim": 7, "encoder_dim": 5, "decoder_dim": 11, "readout_dim": 7, "tie_embeddings": True},
    "regular": {"type": "transformer", **SIZES},
    "area features": {"type": "transformer", "area": {"max_area": 3, "key_mode": "features"}, "tie_embeddings": False, **SIZES},
    "crossed": {"type": "crossed", "share_embeddings": False, **SIZES},
}
SOURCE, LENGTHS, TARGET = torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0]]), torch.tensor([4, 3]), torch.tensor([[2, 6, 7], [2, 9, 4]])


@pytest.mark.parametrize("name", FAMILY)
def test_a_saved_model_comes_back_with_the_same_weights_and_outputs(tmp_path: Path, name: str) -> None:
    model = HubModel(FAMILY[name], source_size=11, target_size=11).eval()
    model.save_pretrained(tmp_path)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1  # others may read the weights, too
    again = HubModel.from_pretrained(tmp_path)
    assert not again.training
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(again.state_dict()[key], tensor) for key, tensor in model.state_dict().items())
    one, other = (each.model.decode(SOURCE, LENGTHS, TARGET).readout for each in (model, again))
    assert torch.equal(one, other)
    tied = {id(parameter) for parameter in again.model.parameters()}
    assert len(tied) == len({id(parameter) for parameter in model.model.parameters()})


def test_a_folder_holds_our_names_once_and_nothing_that_can_run_code(tmp_path: Path) -> None:
    HubModel(FAMILY["regular"], source_size=11, target_size=11).save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
    assert "encoder.layers.0.attention.query.weight" in names
    assert len(names & {"source_embedding.weight", "target_embedding.weight", "output.weight"}) == 1
    settings = json.loads((tmp_path / "config.json").read_text())
    assert settings == {"model": FAMILY["regular"], "source_size": 11, "target_size": 11, "second_size": None}


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    HubModel(FAMILY["regular"], source_size=11, target_size=11).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: cannot be read as safetensors"):
        HubModel.from_pretrained(tmp_path)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.*embed_dims"):
        HubModel({"type": "transformer", "embed_dims": 7}, source_size=11, target_size=11)
    HubModel(FAMILY["regular"], source_size=11, target_size=11).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"is \(11, 14\), the model has \(13, 14\)"):
        HubModel.from_pretrained(tmp_path, source_size=13, target_size=13)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing, or lacks model, source_size, target_size"):
        HubModel.from_pretrained(tmp_path)


class Api:
    """Stands for the Hub: a folder."""

    folder: Path

    def create_repo(self, repo: str, *, private: bool, exist_ok: bool) -> Any:
        assert private
        assert exist_ok
        return type("Repo", (), {"repo_id": f"me/{repo}"})()

    def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: list[str]) -> str:
        for pattern in allow_patterns:
            for path in folder_path.glob(pattern):
                target = self.folder / path.relative_to(folder_path)
                target.parent.mkdir(exist_ok=True, parents=True)
                shutil.copy(path, target)
        return f"there/{repo_id}"


def test_a_published_run_translates_where_it_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trained(tmp_path, model=FAMILY["regular"])
    monkeypatch.setattr(Api, "folder", tmp_path / "hub", raising=False)
    monkeypatch.setattr(hub, "HfApi", Api)
    monkeypatch.setattr(hub, "snapshot_download", lambda repo, *, revision, allow_patterns: str(Api.folder))
    assert publish_run(run, "model") == "there/me/model"
    assert not (tmp_path / "hub" / "checkpoints").exists()
    assert not (tmp_path / "hub" / "log.jsonl").exists()
    fetched = fetch_run("me/model")
    here, there = (Translator.open(folder).translate(TEXTS) for folder in (run, fetched))
    assert [item.text for item in there] == [item.text for item in here]
    model = HubModel.of(open_translation_run(run))
    model.save_pretrained(tmp_path / "alone")
    assert torch.equal(HubModel.from_pretrained(tmp_path / "alone").model.output.weight, open_translation_run(fetched).model.output.weight)
    (run / "model").rename(run / "elsewhere")
    with pytest.raises(CheckpointError, match="has no final weights yet"):
        publish_run(run, "model")


def test_an_older_library_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "__version__", "0.36.2")
    with pytest.raises(MissingExtraError, match=r"needs huggingface_hub 1\.0 or newer, found 0\.36\.2: pip install '\.\[hf\]'"):
        runpy.run_path(hub.__file__)


def test_a_model_of_two_inputs_comes_back_with_the_tables_of_both(tmp_path: Path) -> None:
    model = {"type": "transformer", "embed_dim": 8, "ff_dim": 7, "num_heads": 2, "share_embeddings": False, "second": {"kind": "flat"}}
    hub = HubModel(model, source_size=11, target_size=13, second_size=17)
    hub.save_pretrained(tmp_path)
    again = HubModel.from_pretrained(tmp_path)
    assert again.model.second_embedding.num_embeddings == 17
    assert torch.equal(again.model.second_embedding.weight, hub.model.second_embedding.weight)
