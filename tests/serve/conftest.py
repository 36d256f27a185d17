"""What the tests of the server run under: the processor, a run that nobody changes, and a server that stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from regard.tasks.translation_run import open_translation_run, run_files
from regard.training.atomic_folder import file_sha256, write_folder
from regard.training.checkpoint import MODEL
from regard.training.weights import named_tensors
from tests.serve.driver import Server, serving
from tests.tasks import tiny_captions, tiny_sentences
from tests.tasks.tiny import SPREAD, trained


@pytest.fixture(scope="package", autouse=True)
def _on_the_cpu_without_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="package")
def run_folder(tmp_path_factory: pytest.TempPathFactory, _on_the_cpu_without_waiting_for_the_disk: None) -> Path:
    """Return a run of nearly random weights, whose translations tell their sources apart."""
    folder = trained(tmp_path_factory.mktemp("trained"))
    run = open_translation_run(folder)
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter.mul_(SPREAD)
    shutil.rmtree(folder / "model")
    sums = {name: file_sha256(folder / name) for name in run_files(run.config)}
    tensors = named_tensors(run.model)
    write_folder(folder / "model", {MODEL: tensors}, state={"weights": "spread"}, run_files=sums, on_event=lambda _: None)
    return folder


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, run_folder: Path) -> Iterator[Server]:
    """Return a server of one run that is impatient with slow clients."""
    options = ["--header-timeout", 1, "--body-timeout", 1, "--max-body", 100_000, "--allowed-host", "box.lan"]
    with serving(tmp_path_factory.mktemp("server"), *options, runs=[run_folder]) as started:
        yield started


@pytest.fixture(scope="package")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory, _on_the_cpu_without_waiting_for_the_disk: None) -> Path:
    """Return a classifier of two updates with structured attention."""
    folder = tmp_path_factory.mktemp("classifier")
    tiny_sentences.train(tiny_sentences.configuration(folder, training={"max_updates": 2}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="package")
def entailer_folder(tmp_path_factory: pytest.TempPathFactory, _on_the_cpu_without_waiting_for_the_disk: None) -> Path:
    """Return a run of entailment of two updates."""
    folder = tmp_path_factory.mktemp("entailer")
    tiny_sentences.train(tiny_sentences.configuration(folder, task="entailment", training={"max_updates": 2}), folder / "run")
    return folder / "run"


@pytest.fixture(scope="package")
def captioner_folder(tmp_path_factory: pytest.TempPathFactory, _on_the_cpu_without_waiting_for_the_disk: None) -> Path:
    """Return a captioner of two updates; beside it lie the images it was trained on."""
    return tiny_captions.trained(tmp_path_factory.mktemp("captioner"))
