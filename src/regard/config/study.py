"""Configuration of studies: a grid of data sets, variants and seeds under one budget."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from regard.config.base import MAX_COUNT, MAX_RATE, Frozen, RunConfig
from regard.config.load import TASKS, merge_configs, read_yaml, validate
from regard.errors import ConfigError, listed, shortened, shown

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.]*")
PLACEHOLDER = "{data}"
TEST_FILES = {
    "translation": ("source", "target", "second_source", "links", "link_unit"),
    "captioning": ("captions", "images", "split", "features"),
    "classification": ("examples",),
    "entailment": ("examples",),
    "lm": ("text",),
}
"""Files of each task's test set; the first is required."""
METRICS = {
    "translation": ("BLEU", "chrF2", "exact match"),
    "captioning": ("CIDEr-D", "CIDEr", "ROUGE-L", "BLEU-4"),
    "classification": ("accuracy", "macro-F1"),
    "entailment": ("accuracy", "macro-F1"),
    "lm": ("perplexity", "bits per byte"),
}
"""Metrics for comparing runs of each task; the first is the default."""
OTHER_SPELLINGS = {"macro_f1": "macro-F1"}
"""Metrics as `training.metric` spells them."""
Line = Annotated[str, BeforeValidator(lambda text: " ".join(text.split()) if isinstance(text, str) else text)]
"""Text for a report: one line, whatever its line ends in YAML."""
SCALE_FIELDS = ("title", "source", "config", "settings", "data", "variants", "seeds", "budget", "baseline", "hypotheses")
"""Parts of a study that a scale may replace; its settings are merged."""


Seed = Annotated[int, Field(ge=0, lt=2**63)]
FigureName = Annotated[float, Field(ge=-1e12, le=1e12)]


class StudyDataConfig(Frozen):
    """A data set of a study."""

    title: Line | None = Field(default=None, description="in the report; absent: its name")
    settings: dict[str, Any] = Field(default={}, description="settings of its runs: `data` at least")
    test: dict[str, str] = Field(
        description="the test set, named as `regard evaluate` takes it: source and target, captions, examples, text"
    )
    published: dict[str, FigureName | str] = Field(default={}, description="published figures, by variant")


class VariantConfig(Frozen):
    """A variant, trained on each data set."""

    title: Line | None = Field(default=None, description="in the report; absent: its name")
    settings: dict[str, Any] = Field(default={}, description="settings in which it differs")
    seeds: tuple[Seed, ...] | None = Field(
        default=None, min_length=1, description="some of the study's, for a variant that costs much; absent: all"
    )


class HypothesisConfig(Frozen):
    """A hypothesis: one variant is better than another by the main score. State it before there are results."""

    says: Line = Field(min_length=1, description="text for the report")
    better: str = Field(description="the variant claimed to be better")
    than: str = Field(description="the variant it is compared with")
    data: tuple[str, ...] = Field(default=(), description="on these data sets; none: on each")
    published: FigureName | str | None = Field(
        default=None,
        description="the difference in a paper, a number that words may follow; absent: that of the data set's figures, if it has both",
    )

    @field_validator("published")
    @classmethod
    def _begins_with_a_number(cls, published: float | str | None) -> float | str | None:
        if isinstance(published, str) and not re.match(r"\s*[+-]?[0-9]", published):
            raise ValueError(f"{shown(published)}: expected a number, which words may follow")
        return published


class BudgetConfig(Frozen):
    """Budget of every run of a study: one of the three."""

    updates: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="updates")
    tokens: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="target tokens, about; a trial of each variant decides how many updates"
    )
    seconds: float | None = Field(
        default=None, gt=0, le=MAX_RATE, description="of training; a timed trial of each variant decides how many updates"
    )

    @model_validator(mode="after")
    def _one(self) -> Self:
        if [self.updates, self.tokens, self.seconds].count(None) != 2:
            raise ValueError("give updates, tokens or seconds, one of them")
        return self


class StudyConfig(Frozen):
    """A study, the input of `regard compare`.

    Settings are merged in this order, later ones win: `config`, `settings`, the data set's, the variant's, then the budget and the seed.
    """

    name: str = Field(description="letters a to z, digits, dots and underscores")
    task: str = Field(default="translation", description="of all runs")
    title: Line | None = None
    source: Line | None = Field(default=None, description="subject of the study, such as a table of a paper")
    config: str | None = Field(default=None, description="configuration to begin with; relative to the study's file")
    settings: dict[str, Any] = Field(default={}, description="settings of all runs")
    metric: str | None = Field(default=None, description="metric of the comparison; absent: the first of the task's")
    checkpoints: bool = Field(
        default=False, description="translations: also measure every kept checkpoint; report the test rank of the one chosen by validation"
    )
    methods: tuple[str, ...] = Field(
        default=(), description="explanation methods to compare on each run (see `regard explain`); all: those defined for its model"
    )
    method_examples: int = Field(default=32, ge=1, le=MAX_COUNT, description="test examples for the comparison of methods")
    scales: dict[str, dict[str, Any]] = Field(
        default={}, description="other settings, data, variants, seeds, budget, by a name that --scale chooses"
    )
    data: dict[str, StudyDataConfig] = Field(min_length=1)
    variants: dict[str, VariantConfig] = Field(min_length=1)
    seeds: tuple[Seed, ...] = Field(default=(1, 2, 3), min_length=1)
    budget: BudgetConfig | None = Field(default=None, description="absent: what the settings say")
    baseline: str | None = Field(default=None, description="the variant that others are compared with; absent: the first")
    hypotheses: tuple[HypothesisConfig, ...] = Field(default=(), description="hypotheses to test: one variant is better than another")

    @field_validator("metric", mode="before")
    @classmethod
    def _spelled(cls, metric: object) -> object:
        return OTHER_SPELLINGS.get(metric, metric) if isinstance(metric, str) else metric

    @field_validator("data", "variants")
    @classmethod
    def _named(cls, named: dict[str, Any]) -> dict[str, Any]:
        for name in named:
            if not NAME.fullmatch(name):
                raise ValueError(f"{shown(name)}: expected letters a to z, digits, dots and underscores")
        return named

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if not NAME.fullmatch(self.name):
            raise ValueError(f"name: {shown(self.name)}, expected letters a to z, digits, dots and underscores")
        if self.task not in TASKS:
            raise ValueError(f"task: {shown(self.task)}, expected one of {', '.join(TASKS)}")
        if self.metric is not None and self.metric not in METRICS[self.task]:
            raise ValueError(f"metric: {shown(self.metric)}, expected one of {', '.join(METRICS[self.task])}")
        if self.checkpoints and self.task != "translation":
            raise ValueError(f"checkpoints: these are measured for translation, not for {self.task}")
        for name, scale in self.scales.items():
            if unknown := sorted(set(scale) - set(SCALE_FIELDS)):
                raise ValueError(f"scales.{shortened(name, 40)}: {shown(unknown[0])}, expected some of {', '.join(SCALE_FIELDS)}")
        if self.baseline is not None and self.baseline not in self.variants:
            raise ValueError(f"baseline: {shown(self.baseline)}, expected one of {listed(self.variants)}")
        for number, hypothesis in enumerate(self.hypotheses):
            for key, name in (("better", hypothesis.better), ("than", hypothesis.than)):
                if name not in self.variants:
                    raise ValueError(f"hypotheses.{number}.{key}: {shown(name)}, expected one of {listed(self.variants)}")
            if hypothesis.better == hypothesis.than:
                raise ValueError(f"hypotheses.{number}: {shown(hypothesis.better)} cannot be better than itself")
            if unknown := [name for name in hypothesis.data if name not in self.data]:
                raise ValueError(f"hypotheses.{number}.data: {shown(unknown[0])}, expected some of {listed(self.data)}")
        if twice := [seed for number, seed in enumerate(self.seeds) if seed in self.seeds[:number]]:
            raise ValueError(f"seeds: {twice[0]} is there twice")
        for name, variant in self.variants.items():
            if unknown := sorted(set(variant.seeds or ()) - set(self.seeds)):
                raise ValueError(f"variants.{name}.seeds: {unknown[0]}, expected some of {', '.join(map(str, self.seeds))}")
        known = TEST_FILES[self.task]
        for name, data in self.data.items():
            if unknown := [key for key in data.test if key not in known]:
                raise ValueError(f"data.{name}.test: unknown key {shown(unknown[0])}; known keys: {', '.join(known)}")
            if unknown := [key for key in data.published or () if key not in self.variants]:
                raise ValueError(f"data.{name}.published: {shown(unknown[0])}, expected some of {listed(self.variants)}")
            if known[0] not in data.test:
                raise ValueError(f"data.{name}.test: {known[0]} is missing")
            if data.test.get("link_unit", "word") not in ("word", "character"):
                raise ValueError(f"data.{name}.test.link_unit: {shown(data.test['link_unit'])}, expected word or character")
        return self

    @property
    def compared_with(self) -> str:
        """The baseline."""
        return self.baseline or next(iter(self.variants))

    @property
    def compared_by(self) -> str:
        """The main score."""
        return self.metric or METRICS[self.task][0]


class StudyCell(Frozen):
    """One run of a study."""

    data: str
    variant: str
    seed: Seed

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.data}-{self.variant}-{self.seed}"


def load_study(path: str | Path, *, data: str | Path | None = None, scale: str | None = None) -> StudyConfig:
    """Read a study.

    Args:
        path: the study file.
        data: folder of the data sets, the value of `{data}` in the file.
        scale: one of its scales, applied to the study. A scale with its own data or variants has only the hypotheses it names.

    Raises:
        ConfigError: the file is missing or no study; the message names the key. Or `{data}` is used but not given, or the scale does not
            exist.

    Example:
        >>> load_study("no-such.yaml")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: no-such.yaml: no such configuration file
    """
    tree = read_yaml(Path(path))
    study = validate(tree, str(path), kind=StudyConfig)
    if scale is None:
        return validate({**_placed({**tree, "scales": {}}, data, str(path)), "scales": study.scales}, str(path), kind=StudyConfig)
    if scale not in study.scales:
        raise ConfigError(f"--scale {scale}: the study {study.name} has {listed(study.scales) or 'no scales'}")
    chosen = study.scales[scale]
    # Drop hypotheses about removed variants or data.
    dropped = {"hypotheses": []} if {"data", "variants"} & set(chosen) else {}
    whole = {**tree, **dropped, **chosen, "settings": merge_configs(study.settings, chosen.get("settings") or {})}
    placed = _placed({**whole, "scales": {}}, data, str(path))  # other scales may be of other data
    return validate({**placed, "scales": study.scales}, f"{path}, scale {scale}", kind=StudyConfig)


def _placed(part: Any, data: str | Path | None, where: str) -> Any:
    if isinstance(part, Mapping):
        return {key: _placed(value, data, where) for key, value in part.items()}
    if isinstance(part, list):
        return [_placed(value, data, where) for value in part]
    if not isinstance(part, str) or PLACEHOLDER not in part:
        return part
    if data is None:
        raise ConfigError(f"{where}: {part}: name the folder of the data sets, by --data FOLDER or as REGARD_DATA")
    return part.replace(PLACEHOLDER, str(data))


def study_cells(study: StudyConfig, only: str | None = None) -> list[StudyCell]:
    """Return the runs of a study, seed by seed, so that a stopped study can be compared.

    Args:
        study: the study.
        only: pattern of the runs' names, as of `fnmatch`; None: all.

    Raises:
        ConfigError: no run's name matches.

    Example:
        >>> data = {"a": {"settings": {}, "test": {"text": "a.txt"}}}
        >>> tree = {"name": "s", "task": "lm", "data": data, "variants": {"x": {}, "y": {}}, "seeds": [1, 2]}
        >>> study = validate(tree, "here", kind=StudyConfig)
        >>> [cell.name for cell in study_cells(study)]
        ['a-x-1', 'a-y-1', 'a-x-2', 'a-y-2']
        >>> [cell.name for cell in study_cells(study, only="*-1")]
        ['a-x-1', 'a-y-1']
    """
    cells = [
        StudyCell(data=data, variant=name, seed=seed)
        for seed in study.seeds
        for data in study.data
        for name, variant in study.variants.items()
        if variant.seeds is None or seed in variant.seeds
    ]
    chosen = [cell for cell in cells if only is None or fnmatchcase(cell.name, only)]
    if not chosen:
        raise ConfigError(f"{study.name}: no run is named {only!r}; a run's name is DATA-VARIANT-SEED, such as {cells[0].name}")
    return chosen


def cell_config(study: StudyConfig, cell: StudyCell, *, folder: Path, updates: int | None = None) -> RunConfig:
    """Return the configuration of a run.

    Args:
        study: the study.
        cell: the run.
        folder: folder of the study's file.
        updates: number of updates; None: from the budget or the settings.

    Raises:
        ConfigError: the settings do not fit.
    """
    base: Mapping[str, Any] = {} if study.config is None else read_yaml(folder / study.config)
    updates = updates if updates is not None else study.budget.updates if study.budget is not None else None
    limit = {} if updates is None else {"max_updates": updates, "epochs": updates}
    parts = [base, study.settings, study.data[cell.data].settings]
    parts += [study.variants[cell.variant].settings, {"task": study.task, "training": {**limit, "seed": cell.seed}}]
    where = f"{study.name}, run {cell.name}"
    return validate(merge_configs(*parts, where=where), where, kind=TASKS[study.task])


def training_settings(config: RunConfig) -> str:
    """Return the settings that decide the weights of a run, as text: not those of decoding, unless evaluations measure outputs.

    Evaluations decode greedily, so the beam never counts.

    Example:
        >>> from regard.config import load_config
        >>> training_settings(load_config(None)) == training_settings(load_config(None, ["decoding.max_length=9"]))
        True
    """
    tree = config.model_dump(mode="json")
    decoding = tree.pop("decoding", None)
    return json.dumps([tree, {**decoding, "beam_size": 1} if decoding and config.training.measures_outputs else None])
