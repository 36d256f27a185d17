"""Draw docs/plots/area-speed.svg from docs/results/area.json: the time of area attention over its length, and over the largest area.

python benchmarks/area_plot.py
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
PLAIN = {"size": 64, "grid": 0, "mask": "causal", "features": False}
WAYS = {
    "materialised": ("areas written out", "s", "#b5521b"),
    "torch": ("PyTorch alone", "^", "#7a7a7a"),
    "cpu": ("native", "o", "#14507a"),
}


def ratios(result: dict[str, Any], way: str) -> list[float] | None:
    """Return a way's times over those of ordinary attention, round by round; None where it was not measured."""
    seconds = result["seconds"]
    return [a / b for a, b in zip(seconds[way], seconds["sdpa"], strict=True)] if way in seconds and "sdpa" in seconds else None


def curves(axes: Axes, results: list[dict[str, Any]], key: str) -> None:
    """Draw the median of each way over a setting of the cases, with bars from the least to the largest round."""
    for way, style in WAYS.items():
        points = sorted((result["case"][key], found) for result in results if (found := ratios(result, way)))
        middle = [statistics.median(found) for _, found in points]
        below = [m - min(found) for m, (_, found) in zip(middle, points, strict=True)]
        above = [max(found) - m for m, (_, found) in zip(middle, points, strict=True)]
        axes.errorbar([x for x, _ in points], middle, [below, above], capsize=2, linewidth=1.2, markersize=4, **style)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_yticks([0.25, 0.5, 1, 2, 5, 10, 20, 50], labels=["0.25", "0.5", "1", "2", "5", "10", "20", "50"])
    axes.minorticks_off()


def main() -> None:
    measured = json.loads((ROOT / "docs" / "results" / "area.json").read_text(encoding="utf-8"))
    results = [r for r in measured["results"] if r["backward"] and PLAIN.items() <= r["case"].items()]
    plt.rcParams.update({"svg.hashsalt": "regard", "svg.fonttype": "none", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
    curves(left, [r for r in results if r["case"]["area"] == 5], "length")
    left.set_xscale("log", base=2)
    lengths = sorted({r["case"]["length"] for r in results if r["case"]["area"] == 5})
    left.set_xticks(lengths, labels=list(map(str, lengths)), rotation=45)
    left.set_xlabel("length, areas of up to 5")
    left.set_ylabel("time over ordinary attention's")
    curves(right, [r for r in results if r["case"]["length"] == 256], "area")
    right.set_xticks([2, 3, 5, 8])
    right.set_xlabel("largest area, length 256")
    left.legend(frameon=False, loc="center", bbox_to_anchor=(0.6, 0.44), ncols=1)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    path = ROOT / "docs" / "plots" / "area-speed.svg"
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
