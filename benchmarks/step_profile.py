"""Where the time of a training step of Transformer Base goes on a CPU: matrix products, and all else.

    python benchmarks/step_profile.py --out docs/results/step_profile.json

One batch of 128 pairs of 32 tokens, one thread, by torch's profiler: each operator's own time, the median of the rounds.
"""

from __future__ import annotations

import re
import statistics
from typing import Any

import torch
from gpu import BASE, VOCABULARY
from harness import Table, machine, options
from torch.profiler import ProfilerActivity, profile

from regard.config import TransformerConfig
from regard.data import collate
from regard.models import build

SENTENCES, LENGTH = 128, 32
# Names of operators; native code runs within those that begin with an underscore.
KINDS = {
    "matrix products": r"^aten::(add|b|badd)?mm$|linear_pointwise|^aten::mkldnn_linear",
    "attention": r"^_Direct",
    "residual connections and norms": r"^_Residual|layer_norm",
    "softmax and loss": r"CrossEntropy|softmax",
}


def shares(step: Any) -> dict[str, float]:
    """Return the share of each kind in the time of a step."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
    own: dict[str, float] = {}
    for event in found.key_averages():
        kind = next((kind for kind, names in KINDS.items() if re.search(names, event.key)), "all else")
        own[kind] = own.get(kind, 0.0) + event.self_cpu_time_total
    total = sum(own.values())
    return {kind: own.get(kind, 0.0) / total for kind in (*KINDS, "all else")}


def main() -> None:
    arguments = options(__doc__, rounds=3).parse_args()
    torch.set_num_threads(1)
    note = f"`python benchmarks/step_profile.py`, medians of {arguments.rounds} steps; {machine(1)}."
    table = Table(arguments.out, ["precision", *(f"{kind}, %" for kind in (*KINDS, "all else"))], note)
    torch.manual_seed(1)
    config = TransformerConfig.model_validate({"type": "transformer", **BASE, "dropout": 0.1})
    model = build(config, source_size=VOCABULARY, target_size=VOCABULARY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids = torch.randint(4, VOCABULARY, (2, SENTENCES, LENGTH - 1)).tolist()
    batch = collate(ids[0], ids[1], tuple(range(SENTENCES)))
    for precision in ("fp32", "bf16"):

        def step(precision: str = precision) -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                loss = model(*batch[:5], label_smoothing=0.1).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        step()
        found = [shares(step) for _ in range(arguments.rounds)]
        middle = {kind: statistics.median(each[kind] for each in found) for kind in found[0]}
        table.add([precision, *(round(100 * share) for share in middle.values())])


if __name__ == "__main__":
    main()
