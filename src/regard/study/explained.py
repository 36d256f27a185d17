"""Explanation methods as variants of a study: their faithfulness on each run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from regard import progress
from regard.config.study import StudyCell, StudyConfig
from regard.data.captions import read_captions
from regard.data.lines import read_lines
from regard.errors import ConfigError, listed, shown
from regard.explanations import METHODS
from regard.explanations.methods import Method
from regard.study.measure import known_links, pairs_of
from regard.study.results import RUNS, has_weights, read_result, result_file
from regard.tasks.captioning_run import open_caption_run
from regard.tasks.classification_data import read_labelled_file
from regard.tasks.classification_run import open_sentence_run
from regard.tasks.explained_examples import ExplainedBatch, caption_batches, label_batches, language_batches, translation_batches
from regard.tasks.language_training import open_language_run
from regard.tasks.method_faithfulness import measure_methods
from regard.tasks.translation_prediction import Translator

ALL = "all"
FIGURES = {
    "alignment_error": ("alignment error, %", 2),
    "comprehensiveness": ("comprehensiveness", 3),
    "sufficiency": ("sufficiency", 3),
    "random_weights": ("with shuffled weights", 2),
}


def is_measured(study: StudyConfig, folder: Path, cell: StudyCell) -> bool:
    """Return whether a run has its result, with what the study asks for now: methods and checkpoints may be added to finished runs."""
    path = result_file(folder, cell)
    if not path.exists() or not (study.methods or study.checkpoints):
        return path.exists()
    found = read_result(path)
    explained = not study.methods or (found.get("methods") or {}).get("asked") == explained_as(study)
    return explained and (not study.checkpoints or found.get("selection") is not None)


def check_weights(study: StudyConfig, folder: Path, cells: Sequence[StudyCell]) -> None:
    """Refuse to add methods or checkpoints to finished runs without weights, which would be trained again.

    Raises:
        ConfigError: names the first of these runs.
    """
    for cell in cells:
        if result_file(folder, cell).exists() and not is_measured(study, folder, cell) and not has_weights(folder / RUNS / cell.name):
            raise ConfigError(
                f"{folder}: the run {cell.name} is done, but its weights are not in {folder / RUNS / cell.name}, so that its methods or "
                f"checkpoints cannot be measured; take another folder, or remove {result_file(folder, cell)} to train it again"
            )


def check_methods(study: StudyConfig) -> None:
    """Refuse methods that do not exist, and data that cannot be explained.

    Raises:
        ConfigError: the message names the key.
    """
    for name in study.methods:
        if name not in (ALL, *METHODS):
            raise ConfigError(f"{study.name}: methods: {shown(name)}, expected {ALL}, or some of {listed(METHODS)}")
    for name, data in study.data.items():
        if study.methods and "features" in data.test:
            raise ConfigError(f"{study.name}: methods: data.{name} has precomputed features, whose runs cannot be explained")


def explained_run(study: StudyConfig, cell: StudyCell, run: Path) -> dict[str, Any]:
    """Measure the study's methods on the first test examples of a run, beside a random and the greedy order.

    Args:
        study: names the methods.
        cell: of the run; its seed draws outputs and shuffled weights.
        run: its folder, finished.

    Returns:
        `asked`, what `explained_as` returns, and `figures`, see `regard.tasks.method_faithfulness.MethodFigures`, without methods that are
        not defined for the model; none for a model that cannot be explained.

    Raises:
        DataError: no test example can be explained.
    """
    test, count = study.data[cell.data].test, study.method_examples
    links = known_links(test)
    if links is not None:
        links = links._replace(sure=links.sure[:count], possible=links.possible[:count])
    methods = METHODS if ALL in study.methods else cast(Sequence[Method], tuple(dict.fromkeys(study.methods)))
    try:
        batches = _batches(study.task, run, test, count)
    except ConfigError as error:  # a model that copies
        progress.message(f"{cell.name}: {error}")
        return {"asked": explained_as(study), "figures": []}
    table = measure_methods(batches, methods, links=links, outputs=2, seed=cell.seed)
    return {"asked": explained_as(study), "figures": [each.to_json() for each in table.methods if each.refused is None]}


def explained_as(study: StudyConfig) -> list[Any]:
    """Return what decides the figures of methods: their names, and the number of examples.

    Example:
        >>> from regard.config import validate
        >>> tree = {"name": "s", "task": "lm", "data": {"a": {"test": {"text": "a.txt"}}}, "variants": {"x": {}}, "methods": ["weights"]}
        >>> explained_as(validate(tree, "here", kind=StudyConfig))
        ['weights', 32]
    """
    return [*study.methods, study.method_examples]


def _batches(task: str, run: Path, test: Mapping[str, str], count: int) -> list[ExplainedBatch]:
    match task:
        case "translation":
            opened = Translator.open(run)
            opened.use_images(None, names=test.get("second_source"))
            return translation_batches(opened.run, pairs_of(opened.run.config, test)[:count])
        case "captioning":
            images = read_captions(test["captions"], test.get("images"), split=test.get("split"))
            return caption_batches(open_caption_run(run), images[:count])
        case "lm":
            return language_batches(open_language_run(run), list(read_lines(test["text"]))[:count])
        case _:
            sentences = open_sentence_run(run)
            examples = read_labelled_file(sentences.config, test["examples"]).examples[:count]
            return label_batches(sentences, [example.texts for example in examples])


def method_table(study: StudyConfig, runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]] | None:
    """Return the methods of all runs as columns and rows, with mean ± standard deviation over the seeds; None without methods."""
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        methods = run.get("methods") or {}
        # Others were measured before the study asked for something else.
        for figures in methods.get("figures", []) if methods.get("asked") == explained_as(study) else []:
            found.setdefault((run["cell"]["data"], run["cell"]["variant"], figures["method"]), []).append(figures)
    rows = [
        [study.data[data].title or data, study.variants[variant].title or variant, method, str(len(each))]
        + [_cell([one[name]["value"] for one in each if one[name] is not None], digits) for name, (_, digits) in FIGURES.items()]
        for (data, variant, method), each in found.items()
    ]
    columns = ["data", "variant", "method", "runs", *(title for title, _ in FIGURES.values())]
    kept = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    return ([columns[number] for number in kept], [[row[number] for number in kept] for row in rows]) if rows else None


def _cell(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    middle = f"{statistics.mean(values):.{digits}f}"
    return f"{middle} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else middle
