"""Load YAML and `key.sub=value` overrides into a validated, frozen configuration."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from regard.config.base import Frozen, RunConfig, WrongValue
from regard.config.captioning import CaptioningConfig
from regard.config.classification import ClassificationConfig, EntailmentConfig
from regard.config.language import LanguageConfig
from regard.config.problems import LONGEST_NAME, Problem, locate, problems, written
from regard.config.strict_yaml import MAX_BYTES, MAX_ENTRIES, NOT_YAML, dump_yaml, parse_yaml
from regard.config.suggestions import exists, families, suggested_mechanism, suggested_path
from regard.config.translation import TranslationConfig
from regard.errors import LONGEST_SHOWN, ConfigError, listed, os_reason, shown
from regard.input_files import open_input

AnyConfig = TypeVar("AnyConfig", bound=RunConfig)
AnyFrozen = TypeVar("AnyFrozen", bound=Frozen)

# Maximum nesting of keys; settings have six levels. A file that refers to itself may be endless.
MAX_DEPTH = 6
MAX_ERRORS = 5
MAX_KEYS = 12
"""Number of known keys that an error lists."""
# What people write for null.
NOTHING = ("none", "no", "off", "false", "nil")

TASKS: dict[str, type[RunConfig]] = {
    config.model_fields["task"].default: config
    for config in (TranslationConfig, CaptioningConfig, ClassificationConfig, EntailmentConfig, LanguageConfig)
}
"""The configuration of each task, by its name."""


@overload
def load_config(
    path: str | Path | None = None, overrides: Iterable[str] = (), *, base: Mapping[str, Any] | None = None
) -> TranslationConfig: ...
@overload
def load_config(
    path: str | Path | None = None, overrides: Iterable[str] = (), *, base: Mapping[str, Any] | None = None, kind: type[AnyConfig]
) -> AnyConfig: ...
def load_config(
    path: str | Path | None = None,
    overrides: Iterable[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
    kind: type[RunConfig] = TranslationConfig,
) -> RunConfig:
    """Read a configuration: `base`, then the YAML file, then `key.sub=value` overrides; later ones win.

    Args:
        path: a YAML file, or None for the defaults.
        overrides: strings `key.sub=value`; the value is read as YAML (`null`, `0.1`, `[0.9, 0.98]`).
        base: nested mapping applied before the file.
        kind: configuration class of a task, one of `TASKS`.

    Returns:
        The validated, frozen configuration, of type `kind`.

    Raises:
        ConfigError: the file is missing, not YAML or of another task, a key is unknown, or a value does not fit.

    Example:
        >>> load_config(None, ["model.type=transformer", "training.epochs=3"]).model.embed_dim
        256
    """
    tree: dict[str, Any] = {}
    if base:
        _merge(tree, base, "configuration")
    file = {} if path is None else read_yaml(Path(path))
    _merge(tree, file, str(path))
    overrides = list(overrides)
    for item, nested in read_overrides(overrides, kind):
        _merge(tree, nested, f"override {shown(item)}")
    before, after = (_family(settings) for settings in (base or {}, tree))
    if before is not None and after != before:
        raise ConfigError(f"model.type: {before} -> {shown(after).strip(chr(39))}: --from keeps the model; train a new one without --from")
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        keys = [item.partition("=")[0] for item in overrides]
        of_file = [path is not None and _is_of_file(locate(item["loc"], kind).names, file, keys) for item in error.errors()]
        where = str(path) if all(of_file) else f"{path} and overrides" if any(of_file) else "configuration"
        raise _refused(error, where, kind) from error


def read_overrides(overrides: Iterable[str], kind: type[RunConfig] = TranslationConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each `key.sub=value` with its nested mapping.

    Raises:
        ConfigError: one is not of this form, or its value is not YAML; `kind` is the configuration that is searched for what was meant.

    Example:
        >>> list(read_overrides(["a.b=3"]))
        [('a.b=3', {'a': {'b': 3}})]
    """
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {shown(item)} is not of the form key.sub=value{_meant(suggested_mechanism(kind, item))}")
        if len(text) > MAX_BYTES:
            raise ConfigError(f"override {shown(item)}: more than {MAX_BYTES:,} characters, expected a value")
        try:
            nested: Any = parse_yaml(text) if text else ""
        except NOT_YAML as error:
            raise ConfigError(f"override {shown(item)}: the value is not YAML{_problem(error)}") from error
        for part in reversed(key.split(".")):
            nested = {part: nested}
        yield item, nested


def _is_of_file(names: list[str], file: Mapping[str, Any], overrides: list[str]) -> bool:
    # Whether a file has a value, and no override replaces it.
    path, place = ".".join(names), file
    if any(path == key or path.startswith(f"{key}.") for key in overrides):
        return False
    for name in names:
        if not isinstance(place, Mapping):
            return True
        found = {str(key): value for key, value in place.items()}
        if name not in found:
            return False
        place = found[name]
    return True


def _family(tree: Mapping[str, Any]) -> object:
    model = tree.get("model")
    return model.get("type") if isinstance(model, Mapping) else None


def task_of(path: Path) -> str:
    """Return the task of a configuration file: "translation" if it names none.

    Raises:
        ConfigError: the file is missing or not YAML, or names no task of `TASKS`.

    Example:
        >>> task_of(Path("no-such.yaml"))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: no-such.yaml: no such configuration file
    """
    task = read_yaml(path).get("task", TranslationConfig.model_fields["task"].default)
    if not isinstance(task, str) or task not in TASKS:
        raise ConfigError(f"{path}: task: expected one of {', '.join(TASKS)}, found {shown(task)}")
    return task


@overload
def validate(tree: Mapping[str, Any], where: str) -> TranslationConfig: ...
@overload
def validate(tree: Mapping[str, Any], where: str, *, kind: type[AnyFrozen]) -> AnyFrozen: ...
def validate(tree: Mapping[str, Any], where: str, *, kind: type[Frozen] = TranslationConfig) -> Frozen:
    """Validate a nested mapping; `where` names it in errors, `kind` is the configuration class.

    Raises:
        ConfigError: a wrong key; the message suggests the nearest known one.

    Example:
        >>> validate({"training": {"seed": 7}}, "here").training.seed
        7
    """
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        raise _refused(error, where, kind) from error


def _refused(error: ValidationError, where: str, kind: type[Frozen], options: Collection[str] = ()) -> ConfigError:
    # `options` are names of settings that were given on the command line.
    lines, found = list[str](), problems(error, kind)
    for problem in found[:MAX_ERRORS]:
        line = _explain(problem, kind)
        if (name := line.partition(":")[0]) in options:
            line = line.replace(name, f"--{name.replace('_', '-')}", 1)
        # List the known keys only once.
        lines.append(line.split("; known keys:")[0] if any("; known keys:" in before for before in lines) else line)
    more = f"; and {len(found) - MAX_ERRORS} more" if len(found) > MAX_ERRORS else ""
    return ConfigError((f"{where}: " if where else "") + "; ".join(lines) + more)


def with_options(config: AnyFrozen, options: Mapping[str, Any]) -> AnyFrozen:
    """Return settings with the options that are not None, validated; `model_copy` would accept any value.

    Raises:
        ConfigError: as `validate`, with the names of the options.

    Example:
        >>> from regard.config import DecodingConfig
        >>> with_options(DecodingConfig(), {"beam_size": 3, "max_length": None}).beam_size
        3
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return type(config).model_validate({**config.model_dump(), **given}) if given else config
    except ValidationError as error:
        raise _refused(error, "", type(config), options=given) from error


def dump_config(config: RunConfig, without: Iterable[str] = ()) -> str:
    """Return the resolved configuration as YAML; `load_config` reads it back to an equal object.

    Args:
        config: the settings.
        without: key paths to leave out.

    Example:
        >>> "cell: gru" in dump_config(TranslationConfig()), "cell: gru" in dump_config(TranslationConfig(), ["model.cell"])
        (True, False)
    """
    tree = config.model_dump(mode="json")
    for path in without:
        *sections, name = path.split(".")
        part = tree
        for section in sections:
            part = part.get(section) or {}
        part.pop(name, None)
    return dump_yaml(tree)


def describe_changes(old: Frozen, new: Frozen) -> list[str]:
    """Return the key paths in which two configurations differ, as `key: old -> new`.

    Example:
        >>> describe_changes(TranslationConfig(), load_config(None, ["training.seed=2"]))
        ['training.seed: 1 -> 2']
    """
    return [f"{key}: {_plain(before)} -> {_plain(after)}" for key, (before, after) in changed_values(old, new).items()]


def changed_values(old: Frozen, new: Frozen) -> dict[str, tuple[Any, Any]]:
    """Return the changed values of two configurations, old and new, by key path.

    Example:
        >>> changed_values(TranslationConfig(), load_config(None, ["training.seed=2"]))
        {'training.seed': (1, 2)}
    """
    a, b = flatten(old.model_dump(mode="json")), flatten(new.model_dump(mode="json"))
    return {key: (a.get(key), b.get(key)) for key in {**a, **b} if a.get(key) != b.get(key)}


def _plain(value: object) -> str:
    return shown(value) if len(str(value)) > LONGEST_SHOWN else str(value)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a nested mapping by key path.

    Example:
        >>> flatten({"model": {"dropout": 0.1}})
        {'model.dropout': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the keys and values of a YAML file.

    Raises:
        ConfigError: the file is missing, not UTF-8, not YAML, or no mapping.

    Example:
        >>> read_yaml(Path("no-such.yaml"))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: no-such.yaml: no such configuration file
    """
    try:
        with open_input(path) as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f"{path}: more than {MAX_BYTES:,} bytes, expected settings")
        tree = parse_yaml(data.decode("utf-8"))
    except ConfigError:
        raise
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such configuration file") from error
    except IsADirectoryError as error:
        inside = Path(path) / "config.yaml"
        raise ConfigError(f"{path}: is a folder, expected a configuration file{f', such as {inside}' * inside.is_file()}") from error
    except OSError as error:
        raise ConfigError(f"{path}: {os_reason(path, error)}") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}, line {line}: not UTF-8; save the file in UTF-8") from error
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not valid YAML{_problem(error)}") from error
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path}: expected keys and values, found {written(tree)}")
    if sum(1 for _ in itertools.islice(_entries(tree), MAX_ENTRIES + 1)) > MAX_ENTRIES:
        raise ConfigError(f"{path}: more than {MAX_ENTRIES:,} keys and values, expected settings")
    return tree


def _problem(error: Exception) -> str:
    problem = getattr(error, "problem", None)
    return f": {problem}" if problem else ""


def _entries(tree: Any, depth: int = 0) -> Iterator[Any]:
    values = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, list) else ()
    for value in values:
        yield value
        if depth < MAX_DEPTH:  # deeper levels are refused anyway, and may be endless
            yield from _entries(value, depth + 1)


def merge_configs(*parts: Mapping[str, Any], where: str = "settings") -> dict[str, Any]:
    """Merge nested mappings; later ones win, key by key.

    Raises:
        ConfigError: nesting is too deep, or settings meet what is no section; begins with `where`.

    Example:
        >>> merge_configs({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
        {'a': {'b': 3, 'c': 2}}
    """
    tree: dict[str, Any] = {}
    for part in parts:
        _merge(tree, part, where)
    return tree


def _merge(tree: dict[str, Any], other: Mapping[str, Any], where: str, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: keys within keys, more than {MAX_DEPTH} levels deep")
    for key, value in other.items():
        if isinstance(value, Mapping):
            before = tree.get(key)
            if not isinstance(before, dict):
                # Parts of a section may be null or a word before; whole sections may not, except for the run to start from.
                allowed = before is None or isinstance(before, str) if depth > 1 else key == "start" and before is None
                if key in tree and not allowed:
                    raise ConfigError(
                        f"{where}: {key}: settings within it replace {written(before)}, expected keys and values in both places"
                    )
                tree[key] = {}
            _merge(tree[key], value, where, depth + 1)
        else:
            tree[key] = value


def _explain(problem: Problem, kind: type[Frozen]) -> str:
    place, path = problem.place, problem.path
    names = place.names
    if problem.error is not None:  # from our own validator, with its own message
        path = ".".join([*filter(None, [path]), problem.error.key]) if isinstance(problem.error, WrongValue) else path
        return f"{path}: {problem.error}" if path else str(problem.error)
    if problem.type != "extra_forbidden":
        return f"{path}: {problem.message}{_meant(_meant_value(problem, kind))}" if path else problem.message
    if "." in names[-1] and exists(kind, path):
        nested = f"{': {'.join(path.split('.'))}: {written(problem.given)}{'}' * path.count('.')}"
        return f"{path}: unknown key; in a file, keys stand within keys: {nested}"
    if names == ["device"]:
        return "device: no setting of a run; --device cpu|cuda, or REGARD_DEVICE in the environment, chooses where it is trained"
    others = [[word for word in words if word not in place.chosen] for words in families(kind, path)]
    if fewest := [" ".join(words) for words in others if words and not any(set(words) > set(fewer) for fewer in others)]:
        return f"{path}: unknown key: a setting of {' or '.join(fewest)}"
    if meant := suggested_path(kind, path, problem.given):
        return f"{path}: unknown key{_meant(meant)}"
    if close := difflib.get_close_matches(names[-1], place.known, n=1):
        return f"{path}: unknown key{_meant('.'.join([*names[:-1], close[0]]))}"
    if "attention" in names[-1] and (meant := suggested_mechanism(kind, problem.given)):
        return f"{path}: unknown key{_meant(meant)}"
    if meant := suggested_path(kind, path, problem.given, cutoff=0.8) or suggested_mechanism(kind, names[-1]):
        return f"{path}: unknown key{_meant(meant)}"
    if tasks := [task for task, other in TASKS.items() if kind in TASKS.values() and exists(other, path)]:
        return f"{path}: unknown key: a setting of the task {' or '.join(tasks)}"
    return f"{path}: unknown key{f'; known keys: {listed(place.known, most=MAX_KEYS)}' if place.known else ''}"


def _meant_value(problem: Problem, kind: type[Frozen]) -> str | None:
    # The setting that a refused value probably means.
    path, given = problem.path, problem.given
    if str(given).lower() in NOTHING and problem.place.nullable:
        return f"{path}=null"
    if problem.type in ("missing", "int_parsing", "float_parsing", "bool_parsing"):  # "two" is also a word of an alias
        return None
    if meant := suggested_mechanism(kind, given):
        return meant
    if not isinstance(given, str) or len(given) > LONGEST_NAME:
        return None
    *section, last = path.split(".")
    if last.isdigit() and "," in given:  # a list without brackets
        return f"{'.'.join(section)}=[{given}]"
    close = difflib.get_close_matches(given.lower(), problem.values, n=1)
    return f"{path}={close[0]}" if close else None


def _meant(words: str | None) -> str:
    return f"; did you mean {words}?" if words else ""
