"""Programs on the stand-in for a GPU find what they find on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GROUPS = {"search": 15, "translation": 16, "captions": 7, "classification": 6, "entailment": 5, "language": 5, "explanations": 6}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", GROUPS)
def test_what_runs_on_another_device_mixes_no_devices_and_finds_the_same(group: str) -> None:
    # A process of its own: the stand-in changes torch.
    program = "from tests.far import device; device.install(); from tests.far import cases; cases.main()"
    command = [sys.executable, "-c", program, f"{group}, "]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "REGARD_DEVICE": "cpu", "REGARD_QUIET": "1"}
    done = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    wrong = json.loads(done.stdout.splitlines()[-1])
    assert len(wrong) == GROUPS[group]
    assert not {name: what for name, what in wrong.items() if what}


def test_the_stand_in_refuses_to_mix_devices() -> None:
    code = """
from tests.far.device import far_device, install, near
import torch
install()
with far_device() as device:
    far = torch.ones(2, 3).to(device)
    assert (far.device.type, far.is_cpu, type((far + 1).to("cpu"))) == ("far", False, torch.Tensor)
    assert near(far[torch.tensor([1])] * 2).tolist() == [[2.0] * 3]
    try:
        far + torch.ones(2, 3)
    except RuntimeError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "aten.add.Tensor: expected all tensors to be on the same device, found far and cpu\n"
