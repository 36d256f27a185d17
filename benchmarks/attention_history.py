"""Measure what `training.watch=3` adds to a training, and write docs/results/attention_history.json.

    python benchmarks/attention_history.py --out docs/results/attention_history.json

Each model trains on generated dates with the default evaluation interval, once an epoch. The time of a recording is from the event
`record` to the next one; the share is of the whole training, evaluations and checkpoints included. Nothing else may run.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from pathlib import Path

from harness import Table, machine, options

from regard.config import load_config
from regard.tasks import generate, train_translation

MODELS = {
    "recurrent": [],
    "Transformer": ["model.type=transformer", "model.embed_dim=128", "model.ff_dim=256"],
    "area Transformer": ["model.type=transformer", "model.embed_dim=128", "model.ff_dim=256", "model.area.max_area=3"],
}


def measure(folder: Path, settings: list[str]) -> tuple[float, float, int, int]:
    """Train; return the seconds in all, those of recording, the number of recordings and the bytes of the file."""
    times: list[tuple[str, float]] = []
    begun = time.perf_counter()
    train_translation(load_config(None, settings), folder, on_event=lambda name: times.append((name, time.perf_counter())))
    ended = time.perf_counter()
    times.append(("end", ended))
    spent = [after - at for (name, at), (_, after) in itertools.pairwise(times) if name.startswith("record ")]
    return ended - begun, sum(spent), len(spent), (folder / "attention.jsonl").stat().st_size


def main() -> None:
    arguments = options(__doc__, pairs=10_000, epochs=3).parse_args()
    note = (
        f"`python benchmarks/attention_history.py`: {arguments.pairs:,} generated dates, {arguments.epochs} epochs, three examples. "
        f"{machine()}."
    )
    columns = ["model", "training, s", "recordings", "one recording, ms", "share of the training, %", "one recording, KiB"]
    table = Table(arguments.out, columns, note)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source, target, *_ = generate("dates", folder, train=arguments.pairs, test=1, seed=1)
        common = [f"data.source={source}", f"data.target={target}", "vocabulary.kind=character", "training.watch=3"]
        for model, settings in MODELS.items():
            every, recording, count, size = measure(folder / model, [*common, f"training.epochs={arguments.epochs}", *settings])
            row = [round(every, 1), count, round(1000 * recording / count), round(100 * recording / every, 2), round(size / count / 1024)]
            table.add([model, *row])


if __name__ == "__main__":
    main()
