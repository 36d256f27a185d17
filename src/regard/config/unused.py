"""Settings that are given but have no effect beside others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from regard.config.base import Frozen, RunConfig
from regard.config.load import flatten
from regard.config.study import StudyConfig, cell_config, study_cells


def unused_settings(config: RunConfig) -> dict[str, str]:
    """Return the given settings that have no effect beside others (`regard.config.base.unused_if`), by path, each with the reason.

    A setting that was not given, or has its default, is not among them.

    Example:
        >>> from regard.config import load_config
        >>> unused_settings(load_config(None, ["training.rho=0.9"]))
        {'training.rho': 'training.rho=0.9 has no effect: training.optimizer=adamw'}
    """
    return dict(_unused(config, config, ""))


def unused_in_study(study: StudyConfig, *, beside: Path) -> list[str]:
    """Return the settings of variants that have no effect in their runs, as `unused_settings` does; not those common to all variants.

    Those that the study's seeds and budget replace are among them.

    Args:
        study: the study.
        beside: folder of the study's file.

    Example:
        >>> data = {"a": {"settings": {}, "test": {"text": "a.txt"}}}
        >>> rho = {"settings": {"training": {"rho": 0.9}}}
        >>> study = StudyConfig(name="s", task="lm", data=data, variants={"x": {}, "y": rho}, seeds=[1])
        >>> unused_in_study(study, beside=Path())
        ['a-y-1: training.rho=0.9 has no effect: training.optimizer=adamw']
    """
    notes, seen = [], set[tuple[str, str]]()
    fixed = {"training.seed": f"seeds={list(study.seeds)}"}
    if study.budget is not None:
        fixed |= dict.fromkeys(("training.max_updates", "training.epochs"), f"budget.updates={study.budget.updates}")
    for cell in study_cells(study):
        own = flatten(study.variants[cell.variant].settings)
        own = own if (cell.data, cell.variant) not in seen else {}
        seen.add((cell.data, cell.variant))
        found = unused_settings(cell_config(study, cell, folder=beside)) if own else {}
        notes += [f"{cell.name}: {note}" for path, note in found.items() if any(f"{key}.".startswith(f"{path}.") for key in own)]
        notes += [f"{cell.name}: {path}={_shown(own[path])} has no effect: {says}" for path, says in fixed.items() if path in own]
    return notes


def _unused(root: Frozen, section: Frozen, prefix: str) -> Iterator[tuple[str, str]]:
    for name, field in type(section).model_fields.items():
        if name not in section.model_fields_set:
            continue
        value = getattr(section, name)
        extra: Any = field.json_schema_extra
        rule = {} if extra is None else extra["unused_if"]
        found = {key if "." in key else prefix + key: _value(root if "." in key else section, key) for key in rule}
        if rule and value != field.default and all(here in rule[key] for key, here in zip(rule, found.values(), strict=True)):
            given = prefix + name if isinstance(value, Frozen) else f"{prefix}{name}={_shown(value)}"
            yield prefix + name, f"{given} has no effect: {', '.join(f'{key}={_shown(here)}' for key, here in found.items())}"
        elif isinstance(value, Frozen):
            yield from _unused(root, value, f"{prefix}{name}.")


def _value(section: Frozen, path: str) -> Any:
    value: Any = section
    for key in path.split("."):
        value = getattr(value, key, None)
    return value


def _shown(value: object) -> str:
    return "null" if value is None else str(value)
