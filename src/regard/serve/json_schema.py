"""The subset of JSON Schema that requests need: one schema documents and checks a body."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from regard import strict_json
from regard.serve.http_errors import HTTPError

Schema = Mapping[str, Any]

NAMES = {
    "object": "an object",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
}
# Checked keywords, and documentation keywords. Any other would be documented but not checked.
CHECKED = {"type", "anyOf", "properties", "required", "additionalProperties", "items", "minItems", "maxItems", "maxLength", "pattern"}
CHECKED |= {"minimum", "maximum"}
TELLING = {"title", "description", "default", "examples", "contentEncoding"}


def parse_json(data: bytes) -> Any:
    """Parse JSON strictly: UTF-8, no NaN or infinity, no duplicate keys, limited depth.

    Raises:
        HTTPError: 422; the message names the problem and, if known, its place.

    Example:
        >>> parse_json(b'{"text": "a"}')
        {'text': 'a'}
    """
    try:
        return strict_json.parse_json(data, allow_nan=False)
    except UnicodeDecodeError as error:
        raise HTTPError(422, f"body: expected JSON in UTF-8, found other bytes at {error.start}") from error
    except json.JSONDecodeError as error:
        raise HTTPError(422, f"body: expected JSON, found something else in line {error.lineno}, column {error.colno}") from error
    except ValueError as error:  # such as a key given twice, or an integer of thousands of digits
        raise HTTPError(422, f"body: {error}") from error


def validate_schema(value: Any, schema: Schema, field: str = "") -> Any:
    """Validate a value and return it, with integers written as 5.0 as int.

    Args:
        value: as `parse_json` returns it.
        schema: of the keywords above.
        field: the path of the value, for messages; "" for the body itself.

    Raises:
        HTTPError: 422; the message names the field, what was expected and what was found.

    Example:
        >>> validate_schema({"beam_size": 5.0}, {"type": "object", "properties": {"beam_size": {"type": "integer"}}})
        {'beam_size': 5}
    """
    shown = field or "body"
    branches = schema.get("anyOf", (schema,))
    branch = next((each for each in branches if _is(value, each["type"])), None)
    if branch is None:
        expected = " or ".join(NAMES[each["type"]] for each in branches)
        raise HTTPError(422, f"{shown}: expected {expected}, found {_name(value)}")
    match branch["type"]:
        case "object":
            return _check_object(value, branch, field)
        case "array":
            return _check_list(value, branch, shown)
        case "string":
            _check_text(value, branch, shown)
        case "integer":
            value = int(value)
            _check_range(value, branch, shown)
        case "number":
            _check_range(value, branch, shown)
    return value


def _check_object(value: dict[str, Any], schema: Schema, field: str) -> dict[str, Any]:
    known = schema.get("properties", {})
    for name in value:
        if name not in known and schema.get("additionalProperties") is False:
            raise HTTPError(422, f"{_path(field, _short(name))}: unknown field; known ones: {', '.join(known)}")
    for name in schema.get("required", ()):
        if name not in value:
            raise HTTPError(422, f"{_path(field, name)}: missing")
    return {name: validate_schema(each, known[name], _path(field, name)) if name in known else each for name, each in value.items()}


def _check_list(value: list[Any], schema: Schema, shown: str) -> list[Any]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise HTTPError(422, f"{shown}: expected {least} to {most} items, found {len(value)}")
    return [validate_schema(each, schema["items"], f"{shown}[{index}]") for index, each in enumerate(value)]


def _check_text(value: str, schema: Schema, shown: str) -> None:
    if len(value) > schema.get("maxLength", math.inf):
        raise HTTPError(422, f"{shown}: expected at most {schema['maxLength']} characters, found {len(value)}")
    # Anchored at both ends, as JSON Schema needs it; `$` alone means something else in Python.
    if "pattern" in schema and not re.fullmatch(schema["pattern"].removeprefix("^").removesuffix("$"), value):
        raise HTTPError(422, f"{shown}: expected {schema['description']}")


def _check_range(value: float, schema: Schema, shown: str) -> None:
    least, most = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    if not least <= value <= most:
        raise HTTPError(422, f"{shown}: expected {NAMES[schema['type']]} from {least} to {most}, found {_short(repr(value))}")


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, list)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "integer":
            # JSON has one kind of number: 5.0 is an integer.
            return (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
        case _:
            return _is(value, "integer") or (isinstance(value, float) and math.isfinite(value))


def _name(value: Any) -> str:
    return "a number out of range" if isinstance(value, float) and not math.isfinite(value) else strict_json.kind_of(value)


def _path(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name


def _short(text: str) -> str:
    # A client's text is returned and logged: keep it short and on one line.
    return ascii(text)[1:-1][:40]
