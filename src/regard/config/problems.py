"""What pydantic refuses in settings, in plain words: the place of a value, and what is expected there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from regard.errors import counted, shown

# Maximum characters of a key in a message.
LONGEST_NAME = 30
FAMILY = "union_tag_invalid"
"""The type of a problem with an unknown model family."""
KEY = "[key]"
"""The last part of a location whose key is refused, not its value."""


class Place(NamedTuple):
    """A place in settings.

    Attributes:
        names: its keys, from the root.
        known: the keys of the section that holds it; none outside of sections.
        hint: the type of its value; None if not known.
        chosen: settings that select the model families on the way, such as `model.type=rnn`.
        union: number of keys up to a value of one of several types, on the way; None if there is none.
    """

    names: list[str]
    known: list[str]
    hint: Any
    chosen: set[str]
    union: int | None

    @property
    def nullable(self) -> bool:
        """Whether the value may be null."""
        return NoneType in _members(self.hint)


class Problem(NamedTuple):
    """A refused value.

    Attributes:
        place: its place.
        type: pydantic's name of the problem.
        message: what is expected, and what was found.
        values: the texts that a setting of a few values takes.
        given: the value.
        error: the error of a validator of ours, or None.
    """

    place: Place
    type: str
    message: str
    values: list[str]
    given: Any
    error: Exception | None

    @property
    def path(self) -> str:
        """The keys of its place, with dots between them; long ones are shortened."""
        return ".".join(name if len(name) <= LONGEST_NAME else shown(name, longest=LONGEST_NAME) for name in self.place.names)


def locate(location: Iterable[Any], kind: type[BaseModel]) -> Place:
    """Find the place of an error of pydantic, whose location has the names of model families and of types, too.

    Args:
        location: the location.
        kind: the class of the settings.

    Example:
        >>> from regard.config import TranslationConfig
        >>> locate(("model", "rnn", "cell"), TranslationConfig).names
        ['model', 'cell']
    """
    hint: Any = kind
    names, known, chosen, union = list[str](), list[str](), set[str](), None
    for part in location:
        if part == KEY:
            continue
        members = [member for member in _members(hint) if member is not NoneType]
        families = {member.model_fields["type"].default: member for member in members if _is_model(member) and len(members) > 1}
        if families:
            chosen.add(f"{'.'.join(names)}.type={part}")
            hint = families.get(part)
        elif len(members) > 1:
            union = len(names) if union is None else union
            hint = next((each for each in members if str(part).startswith(f"{getattr(get_origin(each), '__name__', '')}[")), None)
        else:
            [member] = members or [None]
            known = list(member.model_fields) if _is_model(member) else []
            names.append(str(part))
            hint = _inside(member, part)
    return Place(names, known, hint, chosen, union)


def problems(error: ValidationError, kind: type[BaseModel]) -> list[Problem]:
    """Return the problems of an error, one per refused value.

    Args:
        error: the error.
        kind: the class that was validated.

    Example:
        >>> from pydantic import create_model
        >>> kind = create_model("Kind", seeds=(tuple[int, ...], ...))
        >>> try:
        ...     kind.model_validate({"seeds": 3})
        ... except ValidationError as error:
        ...     [problem.path + ": " + problem.message for problem in problems(error, kind)]
        ['seeds: expected a list, such as [1, 2, 3], found 3']
    """
    found = list[Problem]()
    items = [(locate(item["loc"], kind), item) for item in error.errors()]
    for union, group in groupby(items, lambda each: each[0].names[: each[0].union] if each[0].union is not None else None):
        alike = list(group)
        if union is None:
            found += [_problem([each]) for each in alike]
            continue
        # Each type of a union has its own problem; that of the type meant is the deepest.
        deepest = max(len(place.names) for place, _ in alike)
        for _, same in groupby((each for each in alike if len(each[0].names) == deepest), lambda each: each[0].names):
            found.append(_problem(list(same)))
    # A list whose entries are refused is not short of them.
    refused = [tuple(each.place.names) for each in found]
    return [
        each
        for each, own in zip(found, refused, strict=True)
        if each.type != "too_short" or not any(len(other) > len(own) and other[: len(own)] == own for other in refused)
    ]


def _problem(items: Sequence[tuple[Place, Mapping[str, Any]]]) -> Problem:
    # Of one value, whose type may be one of several.
    place, first = items[0]
    context, given = first.get("ctx", {}), first["input"]
    error = context.get("error")
    listed = context.get("expected_tags" if first["type"] == FAMILY else "expected")
    values = re.findall(r"'([^']*)'", listed) if isinstance(listed, str) else []
    if first["type"] == FAMILY:
        place, given = place._replace(names=[*place.names, "type"]), given.get("type")
    if first["loc"][-1:] == (KEY,) or first["type"] == "invalid_key":
        key = written(given)
        place = place._replace(names=[*place.names[:-1], key])
        message = f"expected text as a key, such as '{key}' in quotes"
    elif first["type"] in _OF_KEYS:
        message = _OF_KEYS[first["type"]]
    else:
        wanted = ", or ".join(dict.fromkeys(_expected(item, of.hint) for of, item in items))
        message = f"expected {wanted}, found {written(given)}"
    return Problem(place, first["type"], message, values, given, error if isinstance(error, Exception) else None)


_OF_KEYS = {"missing": "missing", "extra_forbidden": "unknown key", "unexpected_keyword_argument": "unknown key"}
_PLAIN = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "bool": "true or false",
    "string": "text",
    "dict": "keys and values",
    "model": "keys and values",
    "dataclass": "keys and values",
    "none_required": "null",
}
_BOUNDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than": lambda context: f"more than {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"at least {_number(context['ge'])}",
    "less_than": lambda context: f"less than {_number(context['lt'])}",
    "less_than_equal": lambda context: f"at most {_number(context['le'])}",
    "too_short": lambda context: f"at least {counted(context['min_length'], 'value')}",
    "too_long": lambda context: f"at most {counted(context['max_length'], 'value')}",
    "string_too_short": lambda context: f"at least {counted(context['min_length'], 'character')}",
}


def _expected(item: Mapping[str, Any], hint: Any) -> str:
    name, context = str(item["type"]), item.get("ctx", {})
    if name in _BOUNDS:
        return _BOUNDS[name](context)
    if name in ("literal_error", FAMILY):
        values = str(context["expected_tags" if name == FAMILY else "expected"]).replace("'", "")
        first, comma, last = values.rpartition(", ") if " or " not in values else (values, "", "")
        return f"{first} or {last}" if comma else values
    if name in ("tuple_type", "list_type", "set_type", "frozen_set_type"):
        return f"a list{_example(hint)}"
    return _PLAIN.get(name) or _PLAIN.get(name.partition("_")[0]) or "another value"


def _example(hint: Any) -> str:
    # Of a list of this type.
    lists = [member for member in _members(hint) if get_origin(member) in (tuple, list)]
    if not lists or not get_args(lists[0]):
        return ""
    entries = get_args(lists[0])
    [entry, *_], count = _members(entries[0]), 3 if Ellipsis in entries else len(entries)
    if _is_model(entry):
        return ""
    values = ["1", "2", "3"] if entry is int else ["0.1", "0.2", "0.3"] if entry is float else ["a", "b", "c"]
    if get_origin(entry) is Literal:
        values = [str(value) for value in get_args(entry)]
    return f", such as [{', '.join(values[:count])}]"


def _members(hint: Any) -> list[Any]:
    # The types of a union, without what is said of them.
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return [member for each in get_args(hint) for member in _members(each)]
    return [] if hint is None else [hint]


def _is_model(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _inside(hint: Any, part: Any) -> Any:
    # The type of what a value of this type holds.
    if _is_model(hint):
        field = hint.model_fields.get(str(part))
        return None if field is None else field.annotation
    kinds = get_args(hint)
    if get_origin(hint) is dict:
        return kinds[1]
    if get_origin(hint) in (tuple, list) and isinstance(part, int) and kinds:
        return kinds[0] if Ellipsis in kinds or part >= len(kinds) else kinds[part]
    return None


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


def written(value: Any) -> str:
    """Return a value as YAML has it, shortened.

    Example:
        >>> written(True), written(float("nan")), written("a")
        ('true', '.nan', "'a'")
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value).replace("nan", ".nan").replace("inf", ".inf")
    return shown(value)
