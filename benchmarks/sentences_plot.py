"""Draw docs/plots/hops.svg from docs/results/sentences_runs.json: where hops overlap without and with the penalty, and words taken away.

python benchmarks/sentences_plot.py --data sst2
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

ROOT = Path(__file__).resolve().parents[1]
PARTS = {"comprehensiveness": ("without the words", "#b5521b"), "sufficiency": ("with only the words", "#14507a")}


def matrix(axes: Axes, runs: list[dict[str, Any]], title: str) -> None:
    """Draw the mean of A A^T over the texts of the first run, its numbers in the cells."""
    values = runs[0]["overlap"]["matrix"]
    axes.imshow(values, cmap="Greys", vmin=0, vmax=1)
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if value > 0.5 else "black")
    names = [str(hop + 1) for hop in range(len(values))]
    axes.set_xticks(range(len(names)), labels=names)
    axes.set_yticks(range(len(names)), labels=names)
    axes.set_title(f"{title}\nmean of A Aᵀ, by hop", fontsize=9)


def curves(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """Draw what the label's probability loses over the number of words, attended ones and random ones: means over the runs."""
    points = [run["faithfulness"]["points"] for run in runs]
    counts = [point["removed"] for point in points[0]]
    for part, (name, color) in PARTS.items():
        for suffix, style, kind in (("", "-o", "most attended"), ("_random", ":s", "random")):
            means = [statistics.mean(curve[place][part + suffix] for curve in points) for place in range(len(counts))]
            axes.plot(counts, means, style, color=color, markersize=4, linewidth=1.2, label=f"{name}, {kind}")
    axes.set_xticks(counts)
    axes.set_xlabel("words")
    axes.set_ylabel("probability lost")
    axes.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="sst2", help="which data set")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results" / "sentences_runs.json")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "plots" / "hops.svg")
    arguments = parser.parse_args()
    runs = [run for run in json.loads(arguments.results.read_text(encoding="utf-8")) if run["data"] == arguments.data]
    variants = {name: [run for run in runs if run["variant"] == name] for name in ("structured", "penalty 1")}
    plt.rcParams.update({"svg.hashsalt": "regard", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    matrix(axes[0], variants["structured"], "penalty 0")
    matrix(axes[1], variants["penalty 1"], "penalty 1")
    curves(axes[2], variants["structured"])
    figure.savefig(arguments.out, metadata={"Date": None, "Creator": None})
    print(arguments.out)


if __name__ == "__main__":
    main()
