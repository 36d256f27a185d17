"""Suggestions for unknown settings, all of them valid."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from regard.config.base import Frozen
from regard.config.strict_yaml import dump_yaml, parse_yaml
from regard.mechanisms import MECHANISMS

Setting = tuple[str, Any]
LONGEST = 80
"""Max characters of a key or value for a suggestion."""


SYNONYMS = {
    "lr": "learning_rate",
    "warmup": "warmup_updates",
    "warmup_steps": "warmup_updates",
    "max_steps": "max_updates",
    "max_epochs": "epochs",
    "batch_size": "batch_tokens",
    "beam": "beam_size",
    "heads": "num_heads",
    "nhead": "num_heads",
    "d_model": "embed_dim",
    "hidden_size": "decoder_dim",
    "dim_feedforward": "ff_dim",
}
"""Settings of other toolkits, and their names here; both without sections."""
WHOLE = {
    "luong": "model.attention.score=general model.attention.query_state=current model.attention.input_feeding=true model.readout=tanh",
    "lstm": "model.cell=lstm",
    "gru": "model.cell=gru",
}
"""Names of models that need several settings, or a setting that names no mechanism."""


def submodels(annotation: Any) -> list[type[BaseModel]]:
    """Return the configuration classes of a field, from its annotation.

    Example:
        >>> [model.__name__ for model in submodels(Frozen | None)]
        ['Frozen']
    """
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]


def exists(kind: type[Frozen], path: str) -> bool:
    """Return whether a key path is a setting of any model family.

    Example:
        >>> from regard.config import TranslationConfig
        >>> exists(TranslationConfig, "model.cell"), exists(TranslationConfig, "model.sell")
        (True, False)
    """
    return any(path == known for known, _ in _paths(kind))


def families(kind: type[Frozen], path: str) -> list[list[str]]:
    """Return, for each model family that has a setting or section, the command-line words that select the family.

    Example:
        >>> from regard.config import TranslationConfig
        >>> families(TranslationConfig, "model.cell"), families(TranslationConfig, "model.attention")
        ([['model.type=rnn']], [['model.type=rnn']])
    """
    found: list[list[str]] = []
    for known, needed in _paths(kind):
        words = [f"{name}={value}" for name, value in needed]
        if (known == path or known.startswith(f"{path}.")) and words not in found:
            found.append(words)
    return found


def suggested_path(kind: type[Frozen], key: str, value: Any, *, cutoff: float = 1.0) -> str | None:
    """Return the command-line words that set a key given without or in a wrong section, or None.

    Only a key without a section may suggest another model family.

    Args:
        kind: the configuration of a task.
        key: the given key, "epochs" or "model.epochs".
        value: its value.
        cutoff: minimum similarity of the suggested key, up to 1 (equal).

    Example:
        >>> from regard.config import TranslationConfig
        >>> suggested_path(TranslationConfig, "epochs", 2), suggested_path(TranslationConfig, "num_heads", 8)
        ('training.epochs=2', 'model.type=transformer model.num_heads=8')
    """
    if isinstance(value, Mapping | list) or len(key) > LONGEST or (isinstance(value, str) and len(value) > LONGEST):
        return None
    paths = list(_paths(kind))
    names = {path.rpartition(".")[2] for path, _ in paths}
    section, _, given = key.rpartition(".")
    # Another toolkit's name in its own section, before the same name in another section.
    own = f"{section}.{SYNONYMS.get(given, '')}"
    if any(path == own for path, _ in paths) and (words := _accepted(kind, [(own, value)], [])):
        return words
    given = given if given in names else SYNONYMS.get(given, given)
    for name in difflib.get_close_matches(given, names, n=3, cutoff=cutoff):
        for path, needed in sorted(paths, key=lambda item: item[0].count(".")):
            if path.rpartition(".")[2] == name and (words := _accepted(kind, [(path, value)], [] if section else needed)):
                return words
    return None


def suggested_mechanism(kind: type[Frozen], name: Any) -> str | None:
    """Return the command-line words that select a mechanism by one of its names, or None.

    Args:
        kind: the configuration of a task.
        name: common name, such as "bahdanau" or "Luong attention".

    Example:
        >>> from regard.config import TranslationConfig
        >>> suggested_mechanism(TranslationConfig, "bahdanau"), suggested_mechanism(TranslationConfig, "area attention")
        ('model.attention.score=additive', 'model.attention.area.max_area=5')
        >>> suggested_mechanism(TranslationConfig, "LSTM")
        'model.cell=lstm'
    """
    wanted = str(name).lower().replace("_", " ").replace("-", " ").strip() if isinstance(name, str) else ""
    if not wanted or len(wanted) > LONGEST:
        return None
    if whole := WHOLE.get(wanted.removesuffix(" attention")):
        settings = [(path, parse_yaml(text)) for path, _, text in (word.partition("=") for word in whole.split())]
        if words := _accepted(kind, settings, []):
            return words
    # The whole name first, then "NAME attention", then names that contain the word.
    for fits in (
        lambda known: known == wanted,
        lambda known: known == f"{wanted} attention",
        # "a" and "attention" are words of many.
        lambda known: len(wanted) > 2 and wanted != "attention" and (wanted in known.split() or (" " in wanted and wanted in known)),
    ):
        for row in MECHANISMS:
            known = [each.strip().lower().replace("-", " ") for each in (row.name, *row.aliases.split(","))]
            if row.setting and any(map(fits, known)):
                path, _, text = row.setting.partition("=")
                needed = next((needed for found, needed in _paths(kind) if found == path), [])
                if words := _accepted(kind, [(path, parse_yaml(text))], needed):
                    return words
    return None


def _paths(model: type[BaseModel], prefix: str = "", needed: list[Setting] | None = None) -> Iterator[tuple[str, list[Setting]]]:
    """Yield the path of each setting, and the settings that select its model family."""
    for name, field in model.model_fields.items():
        inner = submodels(field.annotation)
        if not inner:
            yield f"{prefix}{name}", needed or []
        for one in inner:
            family = [(f"{prefix}{name}.type", one.model_fields["type"].default)] if len(inner) > 1 else []
            yield from _paths(one, f"{prefix}{name}.", [*(needed or []), *family])


def _accepted(kind: type[Frozen], settings: list[Setting], needed: list[Setting]) -> str | None:
    for tried in (settings, [*needed, *settings]):
        tree: dict[str, Any] = {}
        for path, value in tried:
            *sections, last = path.split(".")
            place = tree
            for section in sections:
                place = place.setdefault(section, {})
            place[last] = value
        try:
            kind.model_validate(tree)
        except ValidationError:
            continue
        return " ".join(f"{path}={_written(value)}" for path, value in tried)
    return None


def _written(value: Any) -> str:
    return dump_yaml(value, flow=True).removesuffix("\n").removesuffix("\n...")
