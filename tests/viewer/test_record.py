"""Records: what they hold, what they refuse, and their file."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import DataError
from regard.viewer import AttentionRecord, read_records, write_records

WEIGHTS = [[0.7, 0.2, 0.1], [0.0, 0.25, 0.75]]


def _record(**changes) -> AttentionRecord:
    return AttentionRecord(**{"source": ["a", " b", "\u2028"], "target": ["x", "y"], "weights": WEIGHTS, **changes})


@pytest.mark.parametrize(
    "weights",
    [WEIGHTS, np.array(WEIGHTS), torch.tensor(WEIGHTS, dtype=torch.float64, requires_grad=True)],
    ids=["lists", "array", "tensor with gradient"],
)
def test_weights_of_any_kind_become_one_array_of_the_same_values(weights):
    record = _record(weights=weights)
    assert record.weights.tolist() == WEIGHTS
    with pytest.raises(ValueError, match="read-only"):
        record.weights[0, 0] = 1.0


def test_the_callers_array_is_copied():
    weights = np.array(WEIGHTS)
    record = _record(weights=weights)
    weights[0, 0] = 0.0
    assert record.weights[0, 0] == 0.7


def test_half_precision_weights_are_taken():
    assert _record(weights=torch.tensor(WEIGHTS, dtype=torch.bfloat16)).weights.shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [[0.5, 0.5, 0.0]]}, r"expected 2 x 3 numbers \(target x source tokens\), found shape 1 x 3"),
        ({"weights": [[0.1, 0.9], [0.2, 0.8], [0.5, 0.5]]}, "found shape 3 x 2"),
        ({"weights": [[0.1, 0.9, 0.0], [0.5, 0.5]]}, "rows of unequal length"),
        ({"weights": 0.5}, "one number"),
        ({"weights": [["a", "b", "c"]] * 2}, "other things than numbers"),
        ({"weights": [[True, False, False]] * 2}, "other things than numbers"),
        ({"weights": [[10**400, 0, 0]] * 2}, "other things than numbers"),
        ({"weights": [[0.5, 0.5, 0.0], [float("nan"), 0.0, 1.0]]}, r"weights\[1\]\[0\] is nan"),
        ({"weights": [[0.5, float("inf"), 0.0], [0.0, 0.0, 1.0]]}, r"weights\[0\]\[1\] is inf"),
        ({"weights": [[0.5, 0.5, 0.0], [0.0, -0.25, 1.0]]}, r"weights\[1\]\[1\] is -0.25"),
        ({"source": "abc"}, "source: expected a list of tokens"),
        ({"target": ["x", 3]}, "target: expected a list of tokens"),
        ({"scores": [-0.1]}, "scores: expected 2 numbers"),
        ({"scores": [-0.1, float("-inf")]}, "scores: expected finite"),
        ({"scores": ["a", "b"]}, "scores: expected a number"),
        ({"meta": {"epoch": 3}}, "meta: expected an object of text to text"),
        ({"meta": ["a"]}, "meta"),
        ({"title": None}, "title: expected text, found NoneType"),
        ({"kind": "rectangles"}, "kind 'rectangles': expected alignment"),
    ],
)
def test_what_does_not_fit_is_a_data_error_that_names_the_field(changes, message):
    with pytest.raises(DataError, match=message):
        _record(**changes)


@pytest.mark.parametrize(("source", "target"), [([], ["x", "y"]), (["a", "b", "c"], []), ([], [])])
@pytest.mark.parametrize("empty", [[], "rows"])
def test_a_side_without_tokens_has_weights_without_cells(source, target, empty):
    record = AttentionRecord(source, target, [[] for _ in target] if empty == "rows" else [])
    assert record.weights.shape == (len(target), len(source))
    assert AttentionRecord.from_json(record.to_json()).weights.shape == record.weights.shape


TEXT = st.text(st.characters(), max_size=7)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), source=st.lists(TEXT, max_size=5), target=st.lists(TEXT, max_size=3), title=TEXT, meta=st.dictionaries(TEXT, TEXT))
def test_json_gives_every_record_back_unchanged(data, source, target, title, meta):
    number = st.floats(0, 1e6)
    weights = data.draw(st.lists(st.lists(number, min_size=len(source), max_size=len(source)), min_size=len(target), max_size=len(target)))
    scores = data.draw(st.none() | st.lists(st.floats(-1e3, 0), min_size=len(target), max_size=len(target)))
    record = AttentionRecord(source, target, weights, title=title, source_text=title, scores=scores, meta=meta)
    values = record.to_json()
    assert (values["format"], values["version"]) == ("regard.record", 1)
    assert AttentionRecord.from_json(json.loads(json.dumps(values))).to_json() == values


def test_a_file_gives_all_records_back_in_order(tmp_path):
    records = [_record(title=f"{i}\n\u2028\ud800", scores=[-0.5, -1.5]) for i in range(3)]
    path = tmp_path / "records.jsonl"
    write_records(path, records)
    assert path.read_bytes().count(b"\n") == 3
    assert [record.to_json() for record in read_records(path)] == [record.to_json() for record in records]
    write_records(path, [])
    assert read_records(path) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "line 2: expected a record as JSON"),
        (b"", "line 2: expected a record as JSON"),
        (b"\xff", "line 2: expected a record as JSON"),
        (b"[" * 100_000, "line 2: expected a record as JSON"),
        (b"[]", "line 2: expected a record .an object., found list"),
        (b"{}", "line 2: format None: expected 'regard.record'"),
        (b'{"format": "regard.record"}', "line 2: version None: this reader knows version 1"),
        (b'{"format": "regard.record", "version": 2}', "line 2: version 2: this reader knows version 1"),
        (b'{"format": "regard.record", "version": true}', "line 2: version True"),
        (b'{"format": "regard.record", "version": 1, "source": []}', "line 2: target: missing"),
        (b'{"format": "regard.record", "version": 1, "source": [], "target": [], "weights": [], "wieghts": 1}', "line 2: wieghts: unknown"),
        (b'{"format": "regard.record", "version": 1, "source": ["a"], "target": ["b"], "weights": [[NaN]]}', "line 2: weights.*nan"),
    ],
)
def test_a_damaged_line_is_a_data_error_with_file_and_line(tmp_path, line, message):
    path = tmp_path / "records.jsonl"
    write_records(path, [_record()])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        read_records(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_data_error_with_its_name(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.jsonl: cannot be read"):
        read_records(tmp_path / "nothing.jsonl")
