"""A schema refuses what does not fit, names the field, and checks every word it says."""

from __future__ import annotations

import time
from typing import Any

import pytest

from regard.serve.endpoints import ServedModel
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import CHECKED, TELLING, parse_json, validate_schema
from regard.serve.limits import Limits
from regard.serve.routes import endpoints
from tests.tasks.tiny import translator

LINE = {"type": "string", "maxLength": 5, "pattern": "^[^\\n]*$", "description": "one line"}
SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"anyOf": [LINE, {"type": "array", "items": LINE, "minItems": 1, "maxItems": 2}]},
        "count": {"type": "integer", "minimum": 1, "maximum": 7},
        "rate": {"type": "number", "minimum": 0, "maximum": 1.5},
        "flag": {"type": "boolean"},
        "none": {"type": "null"},
    },
    "required": ["text"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "body: expected an object, found null"),
        ([], "body: expected an object, found a list"),
        ({}, "text: missing"),
        ({"text": 3}, "text: expected text or a list, found a whole number"),
        ({"text": 3.5}, "text: expected text or a list, found a number"),
        ({"text": True}, "text: expected text or a list, found true or false"),
        ({"text": {"a": 1}}, "text: expected text or a list, found an object"),
        ({"text": "abcdef"}, "text: expected at most 5 characters, found 6"),
        ({"text": "a\nb"}, "text: expected one line"),
        ({"text": "ab\n"}, "text: expected one line"),
        ({"text": []}, "text: expected 1 to 2 items, found 0"),
        ({"text": ["a", "b", "c"]}, "text: expected 1 to 2 items, found 3"),
        ({"text": ["a", None]}, "text[1]: expected text, found null"),
        ({"text": ["a", "b\n"]}, "text[1]: expected one line"),
        ({"text": "a", "count": 0}, "count: expected a whole number from 1 to 7, found 0"),
        ({"text": "a", "count": 8}, "count: expected a whole number from 1 to 7, found 8"),
        ({"text": "a", "count": 10**400}, f"count: expected a whole number from 1 to 7, found 1{'0' * 39}"),
        ({"text": "a", "count": 2.5}, "count: expected a whole number, found a number"),
        ({"text": "a", "count": True}, "count: expected a whole number, found true or false"),
        ({"text": "a", "count": "2"}, "count: expected a whole number, found text"),
        ({"text": "a", "rate": -0.1}, "rate: expected a number from 0 to 1.5, found -0.1"),
        ({"text": "a", "rate": float("inf")}, "rate: expected a number, found a number out of range"),
        ({"text": "a", "rate": 10**400}, f"rate: expected a number from 0 to 1.5, found 1{'0' * 39}"),
        ({"text": "a", "flag": 1}, "flag: expected true or false, found a whole number"),
        ({"text": "a", "none": 1}, "none: expected null, found a whole number"),
        ({"text": "a", "extra": 1}, "extra: unknown field; known ones: text, count, rate, flag, none"),
        ({"text": "a", "e\n\x1b" + "x" * 99: 1}, f"e\\n\\x1b{'x' * 33}: unknown field; known ones: text, count, rate, flag, none"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(value: Any, message: str) -> None:
    with pytest.raises(HTTPError) as refused:
        validate_schema(value, SCHEMA)
    assert (refused.value.status, refused.value.message) == (422, message)


@pytest.mark.parametrize(
    "value",
    [{"text": ""}, {"text": "abcde"}, {"text": ["", "\r\u2028"]}, {"text": "a", "count": 7, "rate": 1, "flag": False, "none": None}],
)
def test_what_fits_comes_back(value: Any) -> None:
    assert validate_schema(value, SCHEMA) == value


def test_a_whole_number_may_be_written_with_a_point() -> None:
    found = validate_schema({"text": "a", "count": 5.0}, SCHEMA)["count"]
    assert (found, type(found)) == (5, int)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "body: expected JSON, found something else in line 1, column 1"),
        (b'{"a": }', "body: expected JSON, found something else in line 1, column 7"),
        (b'{"a": 1} x', "body: expected JSON, found something else in line 1, column 10"),
        (b'"\xff"', "body: expected JSON in UTF-8, found other bytes at 1"),
        ('{"a": 1}'.encode("utf-16"), "body: expected JSON in UTF-8, found other bytes at 0"),
        (b'\xef\xbb\xbf{"a": 1}', "body: expected JSON, found something else in line 1, column 1"),
        (b"NaN", "body: NaN is not JSON"),
        (b"[-Infinity]", "body: -Infinity is not JSON"),
        (b"1" * 5000, "body: an integer of 5000 digits, expected at most 64 bits"),
        (b"[" * 100_000, "body: more than 64 levels of lists and objects"),
        (b'{"a":' * 100_000, "body: more than 64 levels of lists and objects"),
        (b'{"a": 1, "a": 2}', "body: the key 'a' stands twice in an object"),
    ],
)
def test_what_is_not_json_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(HTTPError) as refused:
        parse_json(data)
    assert (refused.value.status, refused.value.message) == (422, message)


def test_many_names_are_compared_at_once() -> None:
    # Of 40,000 names, comparing each with all others takes half a minute, during which a server answers nobody.
    body = "{" + ",".join(f'"{number:x}":0' for number in range(40_000)) + ',"zz":0,"zz":0}'
    start = time.perf_counter()
    with pytest.raises(HTTPError, match="the key 'zz' stands twice"):
        parse_json(body.encode())
    assert time.perf_counter() - start < 5


def keywords(schema: Any) -> set[str]:
    """Return every keyword of a schema and of those within it; names of fields are none."""
    found = set(schema)
    for inner in [*schema.get("anyOf", ()), *schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]:
        found |= keywords(inner)
    return found


def test_every_word_of_a_request_is_checked_or_only_tells_something() -> None:
    for job in endpoints([ServedModel("a", translator())], Limits()):
        assert keywords(job.request) - CHECKED - TELLING == set()
    assert keywords({**SCHEMA, "properties": {"a": {"multipleOf": 3}}}) - CHECKED - TELLING == {"multipleOf"}
