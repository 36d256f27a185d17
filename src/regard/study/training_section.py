"""How a study's runs were trained, for its report: settings, numbers of examples, and the weights that were scored; and a table of runs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from regard.config.base import LOWER_IS_BETTER
from regard.config.load import flatten
from regard.config.study import StudyConfig
from regard.errors import counted, listed
from regard.study.report import Report, run_name
from regard.study.training_figures import SIZES

SETTINGS = (
    "model.type",
    "model.encoder.type",
    "vocabulary.kind",
    "vocabulary.size",
    "training.optimizer",
    "training.learning_rate",
    "training.schedule",
    "training.warmup_updates",
    "training.batch_tokens",
    "training.epochs",
    "training.max_updates",
    "training.precision",
    "decoding.beam_size",
)
"""Settings that a description of the runs needs."""
REPLACED = ("training.seed", "training.keep_checkpoints", "training.workers")
"""Settings that a study replaces, or that change no result."""
EXAMPLES = {"translation": "pairs", "captioning": "images", "classification": "examples", "entailment": "pairs", "lm": "lines"}
"""What the numbers of examples count."""
MOST = 4
INTERVAL = re.compile(r"(\|ci95:[^ |]+) [^|]*")
"""Method and limits of the interval in a signature. The limits are a run's own, not a setting."""


class Scored(NamedTuple):
    """The weights of a run that were scored.

    Attributes:
        metric: metric of the validation that chose them.
        value: its value; None if not known.
        update: the update after which they were evaluated; of several, the last.
        averaged: number of evaluations whose weights were averaged; 1: those of a single one.
    """

    metric: str
    value: float | None
    update: int
    averaged: int


def scored_weights(run: Mapping[str, Any], settings: Mapping[str, Any]) -> Scored | None:
    """Return which weights of a run were scored; None if that is not known.

    Args:
        run: its result. Those of earlier versions do not say it: then the evaluations do, where no weights were averaged.
        settings: its settings, by key path.

    Example:
        >>> curve = [{"step": 5, "loss": 2.5}, {"step": 10, "loss": 2.0}, {"step": 15, "loss": 2.25}]
        >>> scored_weights({"curve": curve}, {"training.metric": "loss"})
        Scored(metric='loss', value=2.0, update=10, averaged=1)
        >>> scored_weights({"curve": [{"step": 5, "loss": 0.0}, {"step": 10, "loss": 0.5}]}, {"training.metric": "loss"}).update
        5
    """
    if found := run.get("scored"):
        return Scored(found["metric"], found["value"], found["updates"][-1], len(found["updates"]))
    return None if settings.get("training.average_checkpoints", 1) > 1 else _best_evaluation(run, settings)


def _best_evaluation(run: Mapping[str, Any], settings: Mapping[str, Any]) -> Scored | None:
    # The first of the best ones by the validation metric; None without the metric or without a finite value.
    metric, sign = settings.get("training.metric"), -1 if settings.get("training.metric") in LOWER_IS_BETTER else 1
    measured = [(point.get(metric), point["step"]) for point in run["curve"]]
    points = [(sign * value, -step) for value, step in measured if value is not None and math.isfinite(value)]
    if metric is None or not points:
        return None
    value, step = max(points)
    return Scored(metric, sign * value, -step, 1)


def run_table(report: Report) -> list[list[Any]]:
    """Return a row per finished run, after the names of the columns; None where a value is not known."""
    others = sorted({name for run in report.runs for name in run["scores"]} - {report.metric})
    head = ["data", "variant", "seed", report.metric, *others, "parameters", "updates", "seconds"]
    head += ["validation_metric", "validation_score", "scored_update", "averaged_evaluations"]
    rows: list[list[Any]] = [head]
    for run in report.runs:
        scored = scored_weights(run, report.settings.get(run_name(run), {}))
        own = [*(run["cell"][name] for name in head[:3]), *(run["scores"].get(name) for name in (report.metric, *others))]
        own += [run.get(name) for name in ("parameters", "updates", "seconds")]
        rows.append([*own, *(scored or [None] * len(Scored._fields))])
    return rows


def training_table(report: Report) -> tuple[list[str], list[list[str]]] | None:
    """Return settings of the runs, and those of each variant, as columns and rows; None without the runs' settings."""
    names = [*SETTINGS, *_set_by(report.study)]
    if all(settings.get("training.epochs") == settings.get("training.max_updates") for settings in report.settings.values()):
        names.remove("training.epochs")  # both are the budget in updates
    rows = [[name, told] for name in names if (told := _told(report, name))]
    ran = {run["cell"]["variant"] for run in report.runs}
    for name, variant in ((name, variant) for name, variant in report.study.variants.items() if name in ran):
        own = ", ".join(
            f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in flatten(variant.settings).items()
        )
        rows.append([variant.title or name, own or "no settings of its own"])
    return (["setting, or variant", "value, or settings of its own"], rows) if report.settings else None


def _set_by(study: StudyConfig) -> list[str]:
    # Other settings of the model and of training that a study, or a data set of it, makes for all variants.
    common = [path for settings in (study.settings, *(data.settings for data in study.data.values())) for path in flatten(settings)]
    return [path for path in dict.fromkeys(common) if path.startswith(("model.", "training.")) and path not in (*SETTINGS, *REPLACED)]


def _told(report: Report, name: str) -> str:
    # The values of a setting, with the data sets or variants of each if there are several; empty if no run has it.
    runs = [(run, _hashable(report.settings[run_name(run)].get(name))) for run in report.runs if run_name(run) in report.settings]
    values = list(dict.fromkeys(value for _, value in runs))
    if len(values) < 2:
        return "".join(_plain(value) for value in values if value is not None)
    for title in (report.data_title, report.variant_title):
        found = dict.fromkeys((title(run), value) for run, value in runs)
        if len({named for named, _ in found}) == len(found):
            return "; ".join(f"{_plain(value)} ({listed((named for named, own in found if own == value), most=MOST)})" for value in values)
    return f"differs between runs: {listed(map(_plain, values), most=MOST)}"


def training_notes(report: Report) -> list[str]:
    """Return seeds, and what is known of score, scored weights, best evaluations and numbers of examples, a sentence each."""
    seeds = sorted({run["cell"]["seed"] for run in report.runs})
    notes = [f"Seeds: {', '.join(map(str, seeds))}."] if seeds else []
    own = [(run.get("signatures") or {}).get(report.metric) for run in report.runs]
    if signatures := dict.fromkeys(INTERVAL.sub(r"\1", signature) for signature in own if signature):
        notes.append(f"{report.metric}: {' or '.join(signatures)}.")
    known = [scored for run in report.runs if (scored := scored_weights(run, report.settings.get(run_name(run), {})))]
    if ways := list(dict.fromkeys(filter(None, map(_chosen, report.settings.values())))):
        means = sum(each.averaged > 1 for each in known)
        notes.append(f"Scored weights: {'; or '.join(ways)}{f' (a mean in {means} of {len(known)} runs)' if means else ''}.")
    best = [(run, found) for run in report.runs if (found := _best_evaluation(run, report.settings.get(run_name(run), {})))]
    notes += _passes(report)
    if last := sum(_improves(run["curve"], found) for run, found in best):
        runs = f"{last} of {counted(len(best), 'run')}"
        notes.append(f"Best at the last evaluation, in its metric or loss: {runs}. Longer training may improve their scores.")
    sizes: dict[str, list[str]] = {}
    for run in report.runs:
        if all(name in run for name in SIZES):
            sizes.setdefault(report.data_title(run), []).append(" and ".join(f"{run[name]:,}" for name in SIZES))
    if sizes:
        parts = [f"{' or '.join(dict.fromkeys(counts))} ({title})" for title, counts in sizes.items()]
        notes.append(f"Training and validation {EXAMPLES[report.study.task]}: {', '.join(parts)}.")
    return notes


def _passes(report: Report) -> list[str]:
    # How often each data set was seen and evaluated; nothing for results of earlier versions.
    found: dict[str, list[tuple[float, int]]] = {}
    for run in report.runs:
        if "epochs" in run:
            found.setdefault(report.data_title(run), []).append((run["epochs"], len(run["curve"])))
    parts = list[str]()
    for name, runs in found.items():
        epochs, evaluations = zip(*runs, strict=True)
        several = "s" * (max(evaluations) > 1)
        parts.append(f"{_range(epochs, '.1f')} epochs, {_range(evaluations, 'd')} evaluation{several} ({name})")
    return [f"Each run: {'; '.join(parts)}."] if parts else []


def _range(values: Sequence[float], form: str) -> str:
    low, high = (format(value, form) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _improves(curve: Sequence[Mapping[str, Any]], best: Scored) -> bool:
    # By the metric, or by the loss: a metric may stand still while the model still learns.
    losses = [loss for point in curve if (loss := point.get("loss")) is not None and math.isfinite(loss)]
    return best.update == curve[-1]["step"] or (bool(losses) and curve[-1].get("loss") == min(losses))


def most_frequent_notes(report: Report) -> list[str]:
    """Return the accuracies of the most frequent class as a sentence, and the variants that are not above; none if not known."""
    baselines: dict[str, list[str]] = {}
    behind: dict[str, list[tuple[float, float]]] = {}
    for run in report.runs:
        if found := run.get("most_frequent"):
            title = report.data_title(run)
            baselines.setdefault(title, []).append(f"{found['accuracy']:.1f} %")
            behind.setdefault(f"{report.variant_title(run)} ({title})", []).append((run["scores"]["accuracy"], found["accuracy"]))
    if not baselines:
        return []
    parts = [f"{' or '.join(dict.fromkeys(values))} ({title})" for title, values in baselines.items()]
    notes = [f"Most frequent class: {', '.join(parts)} (the accuracy of always giving the most frequent label of the training data)."]
    if not_above := [name for name, pairs in behind.items() if sum(own for own, _ in pairs) <= sum(other for _, other in pairs)]:
        notes.append(f"The mean accuracy does not exceed that of the most frequent class: {', '.join(not_above)}.")
    return notes


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | list | dict) else value


def _plain(value: Any) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _chosen(settings: Mapping[str, Any]) -> str | None:
    # How a run chooses the weights that are scored.
    metric, count, decay = (settings.get(f"training.{name}") for name in ("metric", "average_checkpoints", "ema_decay"))
    if metric is None:
        return None
    best = f"those of the best evaluation by validation {metric}"
    chosen = best if count in (None, 1) else f"the mean of the last {count} evaluations, or {best} if it is better"
    return chosen if decay is None else f"{chosen}, each a moving average with decay {decay:g}"
