"""Draw docs/plots from docs/results: nothing is measured here, and the same results give the same bytes.

    python benchmarks/plots.py

- area-speed.svg: the time of area attention over its length, and over the max area (area.json);
- length.svg: time and memory of a training step over the length of the sentences (length.json);
- growth.svg: time and memory as the work grows tenfold and tenfold again (growth.json);
- hops.svg: where hops overlap without and with the penalty, and words taken away (sentences_runs.json).
"""

from __future__ import annotations

import statistics
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from harness import RESULTS, ROOT, options, read
from matplotlib.axes import Axes
from matplotlib.figure import Figure

STYLES = (("o", "#14507a"), ("s", "#b5521b"), ("^", "#7a7a7a"), ("D", "#2c7a3f"))

WAYS = {"materialized": "materialized areas", "torch": "PyTorch alone", "cpu": "native"}


def area_speed() -> Figure:
    """Draw each way's time over that of standard attention, with bars from the fastest to the slowest round."""
    plain = {"size": 64, "grid": 0, "mask": "causal", "features": False}
    results = [each for each in read(RESULTS / "area.json")["results"] if each["backward"] and plain.items() <= each["case"].items()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")

    def curves(axes: Axes, key: str, chosen: dict[str, int]) -> None:
        found = [each for each in results if chosen.items() <= each["case"].items()]
        for (way, label), (marker, color) in zip(WAYS.items(), (*STYLES[1:3], STYLES[0]), strict=True):
            points = sorted(
                (each["case"][key], [a / b for a, b in zip(each["seconds"][way], each["seconds"]["sdpa"], strict=True)])
                for each in found
                if way in each["seconds"] and "sdpa" in each["seconds"]
            )
            middle = [statistics.median(ratios) for _, ratios in points]
            ends = [[abs(end(ratios) - m) for m, (_, ratios) in zip(middle, points, strict=True)] for end in (min, max)]
            style: dict[str, Any] = {"marker": marker, "color": color, "capsize": 2, "linewidth": 1.2, "markersize": 4}
            axes.errorbar([x for x, _ in points], middle, ends, label=label, **style)
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
        axes.set_yscale("log")
        axes.set_yticks([0.25, 0.5, 1, 2, 5, 10, 20, 50], labels=["0.25", "0.5", "1", "2", "5", "10", "20", "50"])
        axes.minorticks_off()

    curves(left, "length", {"area": 5})
    left.set_xscale("log", base=2)
    _ticks(left, sorted({each["case"]["length"] for each in results if each["case"]["area"] == 5}), "length, areas of up to 5")
    left.set_ylabel("time / standard attention")
    curves(right, "area", {"length": 256})
    _ticks(right, [2, 3, 5, 8], "max area, length 256", rotation=0)
    left.legend(frameon=False, loc="center", bbox_to_anchor=(0.6, 0.44), ncols=1)
    return figure


def length() -> Figure:
    """Draw time on the left and memory on the right."""
    results = read(RESULTS / "length.json")["results"]
    figure, panels = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    lengths = list(map(int, results))
    for axes, label in zip(panels, ("seconds a step", "MiB at the peak"), strict=True):
        for name, (marker, color) in zip(next(iter(results.values())), STYLES, strict=True):
            found = [results[str(each)][name] for each in lengths]
            values = [statistics.median(each["seconds"]) if label.startswith("seconds") else each["mib"] for each in found]
            axes.plot(lengths, values, label=name, marker=marker, color=color, linewidth=1.2, markersize=4)
        axes.set_xscale("log", base=2)
        _ticks(axes, lengths, "tokens of a sentence, 4,096 in a batch")
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    panels[0].legend(frameon=False)
    return figure


def growth() -> Figure:
    """Draw a panel for each kind of work, logarithmic both ways: time and memory relative to the smallest size."""
    results: dict[str, list[dict[str, float]]] = read(RESULTS / "growth.json")["results"]
    rows = -(-len(results) // 3)
    figure, panels = plt.subplots(rows, 3, figsize=(9, 2.5 * rows), layout="constrained")
    for axes in panels.flat[len(results) :]:
        axes.set_visible(False)
    for axes, (name, points) in zip(panels.flat, results.items(), strict=False):
        counts = [point["count"] for point in points]
        axes.plot(counts, [count / counts[0] for count in counts], ":", color="black", linewidth=0.8, label="proportional")
        for what, label, (marker, color) in zip(("seconds", "mb"), ("time", "memory"), STYLES, strict=False):
            axes.plot(counts, [point[what] / points[0][what] for point in points], label=label, marker=marker, color=color, markersize=4)
        axes.set(xscale="log", yscale="log", title=name)
        axes.set_ylim(bottom=0.5)
        axes.minorticks_off()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0, 0].legend(frameon=False)
    for axes in panels[:, 0]:
        axes.set_ylabel("relative to smallest")
    return figure


def hops() -> Figure:
    """Draw the overlap of hops without and with the penalty, and what the label's probability loses without words (SST-2)."""
    runs: Any = read(RESULTS / "sentences_runs.json")
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    for axes, variant, title in ((left, "structured", "penalty 0"), (middle, "penalty 1", "penalty 1")):
        values = next(run for run in runs if (run["data"], run["variant"]) == ("sst2", variant))["overlap"]["matrix"]
        axes.imshow(values, cmap="Greys", vmin=0, vmax=1)
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color="white" if value > 0.5 else "black")
        names = [str(hop + 1) for hop in range(len(values))]
        axes.set_xticks(range(len(names)), labels=names)
        axes.set_yticks(range(len(names)), labels=names)
        axes.set_title(f"{title}\nmean of A Aᵀ, by hop", fontsize=9)
    points = [run["faithfulness"]["points"] for run in runs if (run["data"], run["variant"]) == ("sst2", "structured")]
    counts = [point["removed"] for point in points[0]]
    for part, name, color in (("comprehensiveness", "without the words", "#b5521b"), ("sufficiency", "with only the words", "#14507a")):
        for suffix, style, kind in (("", "-o", "most attended"), ("_random", ":s", "random")):
            means = [statistics.mean(curve[place][part + suffix] for curve in points) for place in range(len(counts))]
            right.plot(counts, means, style, color=color, markersize=4, linewidth=1.2, label=f"{name}, {kind}")
    _ticks(right, counts, "words", rotation=0)
    right.set_ylabel("probability lost")
    right.legend(frameon=False, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return figure


def _ticks(axes: Axes, at: list[int], label: str, rotation: int = 45) -> None:
    axes.set_xticks(at, labels=list(map(str, at)), rotation=rotation)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    out = options(__doc__, out=ROOT / "docs" / "plots").parse_args().out
    plt.rcParams.update({"svg.hashsalt": "regard", "svg.fonttype": "none", "font.size": 9})
    for name, draw in {"area-speed": area_speed, "length": length, "growth": growth, "hops": hops}.items():
        draw().savefig(out / f"{name}.svg", metadata={"Date": None, "Creator": None})
        print(out / f"{name}.svg")


if __name__ == "__main__":
    main()
