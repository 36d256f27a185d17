"""Kill a training run at chosen moments, start the same command again, and compare the final weights with an undisturbed run's.

    python benchmarks/resume_matrix.py --out docs/results/resume.json

Precision x processes x moment, the moments being: in the middle of an epoch, at an epoch's end, and inside a save. Every kill is SIGKILL
from within, at an exact event; a run that was never killed where it should have been counts as failed. The model is the recurrent
one with additive attention and dropout, on generated dates; two processes are two `torchrun` workers with DDP over gloo.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from harness import Table, machine, options

from regard.config import validate
from regard.tasks.synthetic_data import generate
from regard.tasks.translation_training import train_translation

EPOCHS = 3
MOMENTS = ("mid-epoch", "epoch end", "during a save")


def event_at(moment: str, updates: int) -> str:
    """Return the event at which a run of so many updates is killed."""
    epoch = updates // EPOCHS
    match moment:
        case "mid-epoch":
            return f"update {epoch + epoch // 2}"
        case "epoch end":
            return f"evaluate {2 * epoch}"
        case _:
            return f"save {epoch + 1} optimizer.safetensors"


def worker(folder: str, data: str, precision: str, event: str) -> None:
    """Train one run in this process, which kills itself at `event` ("" for never); print the hash of the last weights."""
    torch.set_num_threads(1)

    def on_event(name: str) -> None:
        if name == event and os.environ.get("RANK", "0") == "0":
            os.kill(os.getpid(), signal.SIGKILL)

    config = validate(
        {
            "data": {"source": f"{data}/train.source", "target": f"{data}/train.target", "valid_size": 20},
            "vocabulary": {"kind": "character", "size": 500, "shared": False},
            "model": {"embed_dim": 16, "encoder_dim": 16, "decoder_dim": 32, "readout_dim": 16, "dropout": 0.3},
            "training": {
                "epochs": EPOCHS,
                # one process takes two batches an update, two processes one each: the same global batch
                "gradient_accumulation_steps": 2 // int(os.environ.get("WORLD_SIZE", "1")),
                "batch_tokens": 900,
                "learning_rate": 0.003,
                "label_smoothing": 0.1,
                "precision": precision,
                "save_every": 1,
                "schedule": "cosine",
            },
        },
        "resume matrix",
    )
    result = train_translation(config, folder, on_event=on_event)
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps({"sha256": result.weights_sha256, "step": result.step}), flush=True)


def start(folder: Path, data: Path, precision: str, processes: int, event: str) -> tuple[int, dict[str, object]]:
    """Start a run as its own process or processes; return the exit code and what it printed."""
    script = [str(Path(__file__).resolve()), "--worker", str(folder), str(data), precision, event]
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    done = subprocess.run([sys.executable, *launcher, *script], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, json.loads(lines[-1]) if lines else {}


def cell(work: Path, data: Path, precision: str, processes: int, moment: str, expected: dict[str, object]) -> str:
    """Kill at the moment, resume, compare; return "equal" or what went wrong."""
    folder = work / f"{precision}-{processes}-{moment.replace(' ', '-')}"
    code, answer = start(folder, data, precision, processes, event_at(moment, int(str(expected["step"]))))
    if code == 0 or answer:
        return "not killed"
    # A leftover says that the kill fell inside the save; a finished one would have been renamed.
    if moment == "during a save" and not list((folder / "checkpoints").glob(".tmp*")):
        return "not inside a save"
    code, answer = start(folder, data, precision, processes, "")
    shutil.rmtree(folder)
    if code != 0:
        return f"resume failed ({code})"
    return "equal" if answer == expected else "different"


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--worker", nargs=4, metavar=("FOLDER", "DATA", "PRECISION", "EVENT"))
    arguments = parser.parse_args()
    if arguments.worker:
        worker(*arguments.worker)
        return 0
    note = (
        f"`python benchmarks/resume_matrix.py`: {EPOCHS} epochs, killed by SIGKILL, the same command again; each process: {machine(1)}. "
        "*equal*: the sha256 of all weights is that of the run that was never stopped."
    )
    table = Table(arguments.out, ["model", "precision", "processes", *MOMENTS, "sha256 of the weights"], note, key=3)
    with tempfile.TemporaryDirectory() as name:
        work, data = Path(name), Path(name, "data")
        generate("dates", data, train=520, test=1, seed=3)
        for precision in ("fp32", "bf16"):
            for processes in (1, 2):
                code, expected = start(work / f"{precision}-{processes}", data, precision, processes, "")
                if code != 0:
                    raise SystemExit(f"the undisturbed run failed: {precision}, {processes} processes")
                cells = [cell(work, data, precision, processes, moment, expected) for moment in MOMENTS]
                table.add(["RNN", precision, processes, *cells, str(expected["sha256"])[:12]])
    return int(any(value != "equal" for row in table.rows for value in row[3:6]))


if __name__ == "__main__":
    sys.exit(main())
