"""Whatever a file or a command line holds, it is refused in a short message and at once: no traceback, no endless reading, no abort."""

from __future__ import annotations

import contextlib
import json
import re
import time
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated_types import Le, Lt

from regard.config import TASKS, Frozen, LanguageConfig, TranslationConfig, load_config, validate
from regard.config.load import read_yaml
from regard.config.strict_yaml import MAX_ALIASES, MAX_BYTES
from regard.config.study import StudyConfig, load_study
from regard.data.captions import read_captions
from regard.data.labelled import read_sentences
from regard.data.parallel import read_pairs
from regard.data.vocabulary import Vocabulary
from regard.errors import LONGEST_MESSAGE, ConfigError, DataError, MissingExtraError, RegardError, ShapeError, listed, shown
from regard.integrations.migrate_files import load_joeynmt, load_marian
from regard.serve.http_errors import HTTPError
from regard.serve.json_schema import parse_json as parse_body
from regard.serve.json_schema import validate_schema as check_schema
from regard.strict_json import MAX_DEPTH, parse_json
from regard.tasks.language_training import check_language_settings
from regard.tasks.translation_training import check_translation_settings
from regard.training.memory_check import check_memory, format_bytes, total_memory
from regard.viewer import AttentionRecord, read_records
from regard.viewer.maps import AreaMap
from tests.conftest import Answer

SHORT = 500
LONG = "x" * 50_000
NESTED: Any = []
for _ in range(900):
    NESTED = [NESTED]
ABSURD: dict[str, Any] = {
    "text": LONG,
    "integer": 10**400,
    "minus": -(10**30),
    "wide": [LONG] * 1000,
    "keys": {f"{LONG}{number}": LONG for number in range(20)},
    "deep": NESTED,
}
Call = Callable[..., Answer]


def refused(action: Callable[[], object]) -> str:
    """Return the message with which something is refused; it must be one short line, and come soon."""
    start = time.process_time()
    with pytest.raises((RegardError, HTTPError, ValueError)) as error:
        action()
    assert time.process_time() - start < 5
    message = str(error.value)
    assert len(message) < SHORT, message[:2000]
    assert "\n" not in message
    return message


# Messages.


@pytest.mark.parametrize("name", ABSURD)
def test_a_value_is_shown_in_a_few_letters(name: str) -> None:
    assert 0 < len(shown(ABSURD[name])) <= 80


def test_a_short_value_is_shown_as_it_is_and_a_long_one_by_its_ends() -> None:
    assert [shown(value) for value in ("gru", 3, None, [1, "a"], 2**100)] == ["'gru'", "3", "None", "[1, 'a']", str(2**100)]
    text = shown("a" + LONG + "z")
    assert text.startswith("'axxx")
    assert text.endswith("xx'")  # its end is that of the part that was looked at
    assert shown("a\nb") == "'a\\nb'"
    assert listed(["a"] * 30) == ", ".join(["a"] * 20) + " and 10 more"


@pytest.mark.parametrize("kind", [RegardError, ConfigError, DataError, ShapeError, MissingExtraError])
def test_no_message_is_longer_than_the_limit(kind: type[RegardError]) -> None:
    message = str(kind(f"a.yaml: found {LONG}, expected 3"))
    assert len(message) == LONGEST_MESSAGE
    assert message.startswith("a.yaml: found xxx")
    assert message.endswith("xxx, expected 3")
    assert str(kind("short")) == "short"


# Settings.


def configurations() -> list[type[Frozen]]:
    """Return every configuration there is."""

    def below(kind: type[Frozen]) -> Iterator[type[Frozen]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    return sorted({kind for kind in below(Frozen) if kind.__module__.startswith("regard.")}, key=lambda kind: kind.__name__)


def unbounded(annotation: Any, metadata: list[Any]) -> bool:
    """Say whether a field takes a number without a largest one."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        first, *more = typing.get_args(annotation)
        return unbounded(first, [*metadata, *(part for each in more for part in getattr(each, "metadata", [each]))])
    if annotation in (int, float):
        return not any(isinstance(part, Le | Lt) for part in metadata)
    if origin is typing.Literal:
        return False
    # What stands beside a union is meant for each of its members, what stands beside a list or a tuple for the whole of it.
    own = metadata if origin in (typing.Union, types.UnionType) else []
    return any(unbounded(part, own) for part in typing.get_args(annotation))


def test_every_number_of_every_configuration_has_a_largest_value() -> None:
    assert {*TASKS.values(), StudyConfig} < set(configurations())
    fields = [(kind, name, field) for kind in configurations() for name, field in kind.model_fields.items()]
    assert len(fields) > 100
    assert [f"{kind.__name__}.{name}" for kind, name, field in fields if unbounded(field.annotation, field.metadata)] == []


def numbers() -> list[tuple[type[Frozen], str]]:
    """Return the settings of all configurations that are one number."""
    found = []
    for kind in configurations():
        for name, field in kind.model_fields.items():
            members = typing.get_args(field.annotation) or (field.annotation,)
            if (int in members or float in members) and str not in members:
                found.append((kind, name))
    return found


@pytest.mark.parametrize("value", [10**12 + 1, 2**63, 10**400, -(10**400)], ids=["trillion", "2**63", "10**400", "-10**400"])
def test_a_number_beyond_all_bounds_is_refused_by_every_setting(value: int) -> None:
    assert len(numbers()) > 60
    for kind, name in numbers():
        if name == "seed" and value < 2**63:
            continue
        message = refused(lambda kind=kind, name=name: validate({name: value}, "here", kind=kind))
        assert name in message


@pytest.mark.parametrize("name", ABSURD)
@pytest.mark.parametrize("key", ["model.embed_dim", "model.cell", "model", "training.betas", "data.source", "vocabulary.kind", "nonsense"])
def test_an_absurd_setting_is_refused_in_a_short_message(key: str, name: str) -> None:
    if key == "data.source" and name == "text":
        pytest.skip("any text may be the name of a file")
    tree: Any = ABSURD[name]
    for part in reversed(key.split(".")):
        tree = {part: tree}
    refused(lambda: validate(tree, "here"))


@pytest.mark.parametrize(
    "override",
    [
        LONG,
        f"{LONG}=3",
        f"model.{LONG}=3",
        f"model.cell={LONG}",
        "model.embed_dim=" + "9" * 5000,
        "model.embed_dim=" + "9" * 300,
        "a." * 20_000 + "b=1",
        "model.cell=" + "[" * 300 + "]" * 300,
        "model=" + "{a: " * 300 + "1" + "}" * 300,
        "model.cell=" + "x" * (MAX_BYTES + 1),
    ],
    ids=range(10),
)
def test_an_absurd_override_is_refused_in_a_short_message(override: str) -> None:
    refused(lambda: load_config(None, [override]))


def test_a_file_that_is_named_by_50_kB_is_refused_in_a_message_of_the_limit() -> None:
    with pytest.raises(DataError) as error:
        read_pairs(LONG, LONG)
    assert len(str(error.value)) <= LONGEST_MESSAGE


# Sizes that pass one by one.


@pytest.mark.parametrize(
    ("kind", "check", "settings"),
    [
        (TranslationConfig, check_translation_settings, {"model": {"type": "transformer", "embed_dim": 2**20, "ff_dim": 2**20}}),
        (TranslationConfig, check_translation_settings, {"model": {"decoder_dim": 2**20, "decoder_layers": 1000}}),
        (TranslationConfig, check_translation_settings, {"model": {"encoder_dim": 2**20}}),
        (LanguageConfig, check_language_settings, {"model": {"hidden_size": 2**20, "num_layers": 1000}}),
    ],
)
def test_a_model_that_no_memory_holds_is_refused_by_its_bytes(kind: Any, check: Callable[[Any], None], settings: Any) -> None:
    config = validate(settings, "here", kind=kind)
    message = refused(lambda: check(config))
    assert f"this machine has {format_bytes(total_memory())}" in message
    assert "of memory" in message


def test_what_training_adds_to_the_weights_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    from regard.config import TrainingConfig

    monkeypatch.setattr("regard.training.memory_check.total_memory", lambda: 100_000)
    check_memory(lambda: nn.Linear(100, 100))
    check_memory(lambda: nn.Linear(100, 99), TrainingConfig(optimizer="sgd"))
    with pytest.raises(ConfigError, match=r"model: 9,999 parameters need 160\.0 kB of memory to train \(4 times the weights\)"):
        check_memory(lambda: nn.Linear(100, 99), TrainingConfig())
    with pytest.raises(ConfigError, match="5 times the weights"):
        check_memory(lambda: nn.Linear(100, 99), TrainingConfig(ema_decay=0.9))


def test_a_container_has_the_memory_of_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nSwapTotal:       24 kB\nHugePages_Total:       0\n")
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("5000\n")
    monkeypatch.setattr("regard.training.memory_check.MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr("regard.training.memory_check.LIMITS", (tmp_path / "max", tmp_path / "none"))
    assert total_memory() == 1024 * 1024
    monkeypatch.setattr("regard.training.memory_check.LIMITS", (tmp_path / "max", tmp_path / "limit"))
    assert total_memory() == 5000


# YAML.


def merges(levels: int, references: int) -> str:
    """Return YAML in which each part takes in the one before several times."""
    lines = ["a0: &a0 {p: 1, q: 2, r: 3}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * references)}]}}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (merges(10, 9), "more than 10,000 merged keys"),
        (merges(3, 2000), f"more than {MAX_ALIASES} references"),
        ("a: &a [1]\nb: [" + "*a, " * 500 + "]\n", f"more than {MAX_ALIASES} references"),
        ("model: " + "9" * 5000 + "\n", "not valid YAML"),
        ("a: " + "[" * 400 + "\n", "not valid YAML"),
    ],
    ids=range(5),
)
def test_a_yaml_file_that_stands_for_more_than_memory_holds_is_refused_at_once(tmp_path: Path, text: str, message: str) -> None:
    for name in ("config.yaml", "study.yaml"):
        (tmp_path / name).write_text(text)
    assert message in refused(lambda: read_yaml(tmp_path / "config.yaml"))
    # Everyone who reads YAML has the same reader.
    assert message in refused(lambda: load_config(tmp_path / "config.yaml"))
    assert message in refused(lambda: load_study(tmp_path / "study.yaml"))
    assert message in refused(lambda: load_joeynmt(tmp_path))


def test_yaml_has_one_reader() -> None:
    source = Path(load_config.__code__.co_filename).parents[1]
    readers = ("yaml.safe_load", "yaml.load", "yaml.SafeLoader", "yaml.compose", "yaml.parse")
    assert [path.name for path in source.rglob("*.py") if any(name in path.read_text() for name in readers)] == ["strict_yaml.py"]


# JSON.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1" * 5000, "an integer of 5000 digits"),
        ("[-" + "1" * 25 + "]", "an integer of 25 digits"),
        (str(2**64), "at most 64 bits"),
        (str(-(2**63) - 1), "at most 64 bits"),
        ("[" * 100_000, "levels of lists"),
        ("[" * 500 + "]" * 500, "levels of lists"),
        ('{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1), "levels of lists"),
        ("{", "Expecting"),
        ('[{"a": 1, "b": {"c": 1, "c": 2}}]', "the key 'c' stands twice in an object"),
    ],
)
def test_json_is_bounded(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_what_json_may_hold_is_read() -> None:
    assert parse_json(f"[{2**64 - 1}, {-(2**63)}, 1e5, null]".encode()) == [2**64 - 1, -(2**63), 1e5, None]
    deep: Any = 1
    for _ in range(MAX_DEPTH - 1):
        deep = [deep]
    assert parse_json(json.dumps(deep)) == deep


def test_json_has_one_reader() -> None:
    """A reader of its own must say why: these read what a library of ours has just written."""
    source = Path(load_config.__code__.co_filename).parents[1]
    own = sorted(
        path.relative_to(source).as_posix() for path in source.rglob("*.py") if re.search(r"= json\.load|JSONDecoder\(", path.read_text())
    )
    assert own == ["data/vocabulary.py", "strict_json.py"]


JSON_FILES: dict[str, Callable[[Path], object]] = {
    "vocabulary": Vocabulary.load,
    "pairs.jsonl": read_pairs,
    "labelled.jsonl": read_sentences,
    "captions.json": lambda path: read_captions(path, path.parent),
    "records.jsonl": read_records,
    "config.json": lambda path: load_marian(path.parent),
}


@pytest.mark.parametrize("name", JSON_FILES)
@pytest.mark.parametrize(
    "text", ["9" * 5000, "[" * 20_000, "[" * 300 + "]" * 300, json.dumps(LONG), "{}", json.dumps({LONG: LONG})], ids=range(6)
)
def test_an_absurd_json_file_is_refused_in_a_short_message(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert name in refused(lambda: JSON_FILES[name](tmp_path / name))


@pytest.mark.parametrize("body", [b"9" * 5000, b"[" * 20_000, b"[" * 300 + b"]" * 300], ids=range(3))
def test_an_absurd_request_is_refused_in_a_short_message(body: bytes) -> None:
    refused(lambda: parse_body(body))


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_field_of_a_request_is_refused_in_a_short_message(name: str) -> None:
    schema = {"type": "object", "additionalProperties": False, "properties": {"beam_size": {"type": "integer", "minimum": 1, "maximum": 9}}}
    refused(lambda: check_schema({"beam_size": ABSURD[name]}, schema))
    refused(lambda: check_schema({LONG: ABSURD[name]}, schema))


# Records.

RECORD: dict[str, Any] = {
    "format": "regard.record",
    "version": 2,
    "items": {"a": {"rows": 1, "columns": 2}, "b": ["x"]},
    "maps": [{"name": "m", "kind": "cross", "query": "b", "key": "a", "weights": [[[0.5, 0.5]]], "layer": 0}],
    "scores": {"b": [-1.0]},
    "hypotheses": [{"tokens": ["x"], "score": -1.0}],
}


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of a tree."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


class Accepted(Exception):
    """Says that a record was read."""


def accept(tree: dict[str, Any]) -> None:
    AttentionRecord.from_json(tree)
    raise Accepted


def test_the_record_is_one() -> None:
    assert AttentionRecord.from_json(RECORD).maps[0].weights.shape == (1, 1, 2)


@pytest.mark.parametrize("name", [*ABSURD, "huge float", "2**63"])
@pytest.mark.parametrize("path", list(places(RECORD)), ids=str)
def test_an_absurd_part_of_a_record_is_refused_in_a_short_message(path: tuple[Any, ...], name: str) -> None:
    """Or taken: a text may be any text."""
    tree = json.loads(json.dumps(RECORD))
    *outer, last = path
    part = tree
    for key in outer:
        part = part[key]
    part[last] = {**ABSURD, "huge float": 1e300, "2**63": 2**63}[name]
    with contextlib.suppress(Accepted):
        refused(lambda: accept(tree))


def test_a_grid_of_more_cells_than_a_page_can_draw_is_refused() -> None:
    message = refused(lambda: AttentionRecord({"a": {"rows": 2**20, "columns": 2**20}}))
    assert "at most 1,000,000 cells" in message


def test_extents_beyond_all_bounds_are_refused() -> None:
    for extents in ([[0, 2**40]], [[0, 10**400]], [[0, 1e300]], np.array([[0, 2**63]], dtype=np.uint64), [[0, -(2**40)]]):
        refused(lambda extents=extents: AreaMap(extents, np.ones((1, 1, 1))))


def test_the_command_line_prints_one_short_line(call: Call, tmp_path: Path) -> None:
    for words in (
        ["train", "translation", f"{LONG}=3"],
        ["train", "translation", "--source", LONG, "--target", LONG, "--out", str(tmp_path / "run")],
        ["train", "translation", "vocabulary.size=1000000000000"],
        ["train", "translation", "model.embed_dim=9223372036854775808"],
        ["translate", LONG],
        ["view", LONG, "-o", str(tmp_path / "a.html")],
    ):
        answer = call(*words)
        assert answer.code == 2, answer
        assert len(answer.err) < LONGEST_MESSAGE + 50
        assert "Traceback" not in answer.err
