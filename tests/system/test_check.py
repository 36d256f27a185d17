"""`regard check`: runs of every task, folders of Hugging Face models, and what it leaves with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.mask_check import check as check_model
from tests.tasks import tiny, tiny_captions, tiny_language, tiny_sentences

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")
# Resolved here: importing a model sets variables of the environment.
CONFIG, MODEL = transformers.GPT2Config, transformers.GPT2LMHeadModel


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run of every task, named after it, and a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("checked")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        tiny.trained(folder, model=tiny.FAMILIES["area"]).rename(folder / "translation")
        for task in ("classification", "entailment"):
            config = tiny_sentences.configuration(folder / f"{task} data", task=task, training={"max_updates": 2})
            tiny_sentences.train(config, folder / task)
        tiny_language.run(folder / "language", training={"max_updates": 2})
        (folder / "language" / "run").rename(folder / "lm")
        (folder / "scenes").mkdir()
        tiny_captions.trained(folder / "scenes").rename(folder / "captioning")
        settings = {"vocab_size": 40, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}
        MODEL(CONFIG(**settings)).save_pretrained(folder / "hf")
    return folder


@pytest.mark.parametrize("task", ["translation", "classification", "entailment", "lm", "captioning"])
def test_a_run_of_every_task_is_clean(call: Callable[..., Any], runs: Path, tmp_path: Path, task: str) -> None:
    answer = call("check", runs / task, "--json", tmp_path / "found.json")
    assert (answer.code, answer.err) == (0, "")
    assert b": no leak in " in answer.out
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["ok"]
    assert len([result for result in found["results"] if result["verdict"] == "ok"]) >= 10


def test_a_folder_of_hugging_face_is_clean(call: Callable[..., Any], runs: Path) -> None:
    answer = call("check", "--hf", runs / "hf")
    assert answer.code == 0
    assert b"GPT2LMHeadModel: no leak in 20 checks" in answer.out


def test_a_leak_is_told_with_exit_code_1(call: Callable[..., Any], runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(folder: Path) -> torch.nn.Module:
        model = MODEL.from_pretrained(folder)
        model.transformer.h[0].attn.forward = lambda hidden_states, **_: (hidden_states.mean(1, keepdim=True) + 0 * hidden_states, None)
        return model

    monkeypatch.setattr("regard.mask_check.load_folder", loaded)
    answer = call("check", "--hf", runs / "hf")
    assert answer.code == 1
    found = [line.split() for line in answer.out.decode().splitlines() if line.startswith("future tokens")]
    assert found[0][2] == "LEAK", found
    assert found[0][3].startswith("transformer.h.0"), found


def test_a_file_of_the_run_is_not_overwritten(call: Callable[..., Any], runs: Path) -> None:
    before = (runs / "lm" / "config.yaml").read_bytes()
    answer = call("check", runs / "lm", "--json", runs / "lm" / "config.yaml")
    assert (answer.code, "is a file of an input folder of this command" in answer.err) == (2, True)
    assert (runs / "lm" / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "check: give a run folder, or --hf and the folder of a Hugging Face model"),
        (["{runs}/lm", "--hf", "{runs}/hf"], "check: give a run folder, or --hf and the folder of a Hugging Face model"),
        (["{runs}/none"], "none: no such run folder"),
        (["{runs}/hf"], "hf: not a run folder, it has no config.yaml; to check a Hugging Face model, say --hf"),
        (["--hf", "{runs}/none"], "none: no such folder"),
        (["--hf", "{runs}/lm"], "lm: not the folder of a Hugging Face model, it has no config.json"),
        (["--hf", "{runs}/empty"], "empty: cannot be loaded as a Hugging Face model"),
        (["--hf", "{runs}/strange"], "strange: cannot be loaded as a Hugging Face model"),
        (["--hf", "{runs}/unknown"], "unknown: transformers has no model 'NoSuchModel'"),
        (["--hf", "{runs}/image"], "ViTModel: it takes no input_ids with an attention_mask"),
    ],
)
def test_what_cannot_be_checked_is_one_line_and_exit_code_2(call: Callable[..., Any], runs: Path, words: list[str], message: str) -> None:
    folders = {
        "empty": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
        "strange": {"model_type": "no-such-type"},
        "unknown": {"model_type": "gpt2", "architectures": ["NoSuchModel"]},
    }
    for name, config in folders.items():
        (runs / name).mkdir(exist_ok=True)
        (runs / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if "{runs}/image" in words and not (runs / "image").exists():
        sizes = {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 8,
            "image_size": 8,
            "patch_size": 4,
        }
        transformers.ViTModel(transformers.ViTConfig(**sizes)).save_pretrained(runs / "image")
    answer = call("check", *(word.format(runs=runs) for word in words))
    assert (answer.code, answer.out) == (2, b"")
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_the_command_finds_what_the_function_finds(call: Callable[..., Any], runs: Path) -> None:
    out = call("check", "--hf", runs / "hf").out.decode()
    assert out == f"{check_model(MODEL.from_pretrained(runs / 'hf'))}\n"
