"""Records: what they hold, what they refuse, and their file."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.errors import DataError
from regard.viewer import (
    AreaMap,
    AttentionMap,
    AttentionRecord,
    Grid,
    HypothesisRecord,
    PredictionRecord,
    Tokens,
    read_records,
    write_records,
)
from tests.viewer import samples

WEIGHTS = [[0.7, 0.2, 0.1], [0.0, 0.25, 0.75]]
ITEMS = {"source": ["a", " b", "\u2028"], "target": ["x", "y"], "image": Grid(2, 3)}


def _alignment(**changes) -> AttentionRecord:
    return AttentionRecord.alignment(**{"source": ["a", " b", "\u2028"], "target": ["x", "y"], "weights": WEIGHTS, **changes})


def _map(**changes) -> AttentionMap:
    return AttentionMap(**{"name": "cross", "kind": "cross", "query": "target", "key": "source", "weights": WEIGHTS, **changes})


def _record(**changes) -> AttentionRecord:
    return AttentionRecord(**{"items": ITEMS, "maps": [_map()], **changes})


@pytest.mark.parametrize(
    "weights",
    [WEIGHTS, np.array(WEIGHTS), torch.tensor(WEIGHTS, dtype=torch.float64, requires_grad=True), torch.tensor([WEIGHTS])],
    ids=["lists", "array", "tensor with gradient", "tensor of one head"],
)
def test_weights_of_any_kind_become_one_array_of_the_same_values(weights):
    record = _alignment(weights=weights)
    assert record.weights.dtype == np.float32
    assert record.weights.tolist() == np.array(WEIGHTS, np.float32).tolist()
    with pytest.raises(ValueError, match="read-only"):
        record.weights[0, 0] = 1.0


def test_the_callers_array_is_copied():
    weights = np.array(WEIGHTS, np.float32)
    record = _alignment(weights=weights)
    weights[0, 0] = 0.0
    assert record.weights[0, 0] == np.float32(0.7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_weights_are_taken(dtype):
    assert _alignment(weights=torch.tensor(WEIGHTS, dtype=dtype)).weights.shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": [[0.5, 0.5, 0.0]]}, r"expected 2 x 3 numbers \(target x source\), found shape 1 x 3"),
        ({"weights": [[0.1, 0.9], [0.2, 0.8], [0.5, 0.5]]}, "found shape 3 x 2"),
        ({"weights": [[0.1, 0.9, 0.0], [0.5, 0.5]]}, "rows of unequal length"),
        ({"weights": 0.5}, "one number"),
        ({"weights": [["a", "b", "c"]] * 2}, "other things than numbers"),
        ({"weights": [[True, False, False]] * 2}, "other things than numbers"),
        ({"weights": [[10**400, 0, 0]] * 2}, "other things than numbers"),
        ({"weights": [[1e39, 0, 0]] * 2}, r"weights\[0\]\[0\] is inf"),
        ({"weights": [[0.5, 0.5, 0.0], [float("nan"), 0.0, 1.0]]}, r"weights\[1\]\[0\] is nan"),
        ({"weights": [[0.5, float("inf"), 0.0], [0.0, 0.0, 1.0]]}, r"weights\[0\]\[1\] is inf"),
        ({"weights": [[0.5, 0.5, 0.0], [0.0, -0.25, 1.0]]}, r"weights\[1\]\[1\] is -0.25"),
        ({"weights": [WEIGHTS, [[0.5, 0.5]] * 2]}, "rows of unequal length"),
        ({"weights": [[[0.5, 0.5]] * 2] * 5}, r"expected 5 x 2 x 3 numbers \(heads x target x source\), found shape 5 x 2 x 2"),
        ({"source": "abc"}, "source: tokens: expected a list of tokens"),
        ({"target": ["x", 3]}, "target: tokens: expected a list of tokens"),
        ({"scores": [-0.1]}, "scores: target: expected 2 numbers"),
        ({"scores": [-0.1, float("-inf")]}, "scores: target: expected finite"),
        ({"scores": ["a", "b"]}, "scores: target: expected a number"),
        ({"title": None}, "title: expected text, found NoneType"),
        ({"texts": (1, "")}, "source: text: expected text, found int"),
    ],
)
def test_an_alignment_that_does_not_fit_is_a_data_error_that_names_the_field(changes, message):
    with pytest.raises(DataError, match=message):
        _alignment(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"items": [["a"]]}, "items: expected an object"),
        ({"items": {"image": {"rows": 0, "columns": 2}}}, "items: image: rows: expected a whole number of 1 or more, found 0"),
        ({"items": {"image": {"rows": 2, "columns": 2, "image": "https://a.b/c.png"}}}, "image: expected a data:image"),
        ({"items": {"image": {"rows": 2, "columns": 2, "image": "data:image/svg+xml;base64,PHN2Zy8+"}}}, "image: expected a data:image"),
        ({"items": {"image": {"rows": 2, "columns": 2, "size": [3]}}}, "size: expected 2 numbers"),
        ({"items": {"image": {"rows": 2, "columns": 2, "colour": 1}}}, "colour: unknown field"),
        ({"items": {"source": {"text": "a"}}}, "items: source: tokens: missing"),
        ({"items": {"source": 3}}, "items: source: expected tokens or a grid"),
        ({"maps": {}}, "maps: expected a list, found dict"),
        ({"maps": [{"name": "a"}]}, r"maps\[0\]: kind: missing"),
        ({"maps": [{"name": "a", "kind": "cross", "query": "target", "key": "source"}]}, r"maps\[0\]: weights: missing"),
        ({"maps": [_map(), _map()]}, r"maps\[1\]: name 'cross': another map has it"),
        ({"maps": [_map(query="words")]}, r"maps\[0\]: query 'words': no such items; known ones: source, target, image"),
        ({"maps": [_map(key="target")]}, r"expected 2 x 2 numbers \(target x target\), found shape 2 x 3"),
        ({"maps": [_map(heads=["one", "two"])]}, "heads: expected 1 names"),
        ({"maps": [_map(areas=AreaMap([[0, 1], [2, 2]], [[0.5, 0.5]] * 2))]}, r"extents\[1\] is \[2, 2\]: expected an area within 3 items"),
        ({"maps": [_map(areas=AreaMap([[-1, 1]], [[0.5]] * 2))]}, "expected an area within 3 items"),
        ({"maps": [_map(areas=AreaMap([[0, 0, 1, 1]], [[0.5]] * 2))]}, "rows of 2 numbers for a sequence"),
        ({"maps": [_map(areas=AreaMap([[0, 1]], [[0.5]] * 3))]}, "areas: weights: expected 1 x 2 x 1 numbers"),
        (
            {"maps": [_map(key="image", weights=None, areas=AreaMap([[1, 1, 2, 1]], [[0.5]] * 2))]},
            "expected an area within 2 x 3 cells",
        ),
        ({"scores": {"words": [1.0]}}, "scores: words: no such items"),
        ({"scores": [1.0]}, "scores: expected an object"),
        ({"hypotheses": [{"tokens": ["a"]}]}, r"hypotheses\[0\]: score: missing"),
        ({"hypotheses": [{"tokens": ["a"], "score": float("nan")}]}, r"hypotheses\[0\]: score: expected a finite number"),
        ({"hypotheses": [{"tokens": ["a"], "score": 0, "weights": [[0.5]]}]}, r"hypotheses\[0\]: weights: expected 1 x 3 numbers"),
        ({"hypotheses": [{"tokens": ["a"], "score": 0, "weights": [[0.5]], "key": "b"}]}, "key 'b': no such items"),
        ({"hypotheses": [{"tokens": ["a"], "score": 0, "log_probs": []}]}, "log_probs: expected 1 numbers"),
        ({"prediction": {"label": 1}}, "prediction: label: expected text"),
        ({"prediction": {"label": "a", "probabilities": {"a": -0.5}}}, "probabilities: a: expected a number of 0 or more"),
        ({"prediction": {"label": "a", "probabilities": [0.5]}}, "probabilities: expected an object"),
        ({"meta": {"epoch": 3}}, "meta: expected an object of text to text"),
        ({"meta": ["a"]}, "meta"),
        ({"model": 7}, "model: expected text, found int"),
    ],
)
def test_what_does_not_fit_is_a_data_error_that_says_where(changes, message):
    with pytest.raises(DataError, match=message):
        _record(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "rectangles"}, "kind 'rectangles': expected alignment, .* or self"),
        ({"name": ""}, "name: expected text, found none"),
        ({"layer": -1}, "layer: expected a whole number of 0 or more"),
        ({"layer": True}, "layer: expected a whole number"),
        ({"areas": [1]}, "areas: expected areas .an object., found list"),
        ({"areas": {"extents": [[0, 1]]}}, "weights: missing"),
        ({"areas": {"extents": [[0, 1, 2]], "weights": [[0.5]]}}, "extents: expected rows of 2 .* or 4"),
        ({"areas": {"extents": [[0, 1.5]], "weights": [[0.5]]}}, "extents: expected rows of 2"),
        ({"areas": {"extents": [[0, 1]], "weights": [[0.5, 0.5]]}}, "areas: weights: expected H x T x 1 numbers"),
        ({"weights": {"shape": [2, 3], "float32": "AAAA"}}, "expected 24 bytes for shape 2 x 3, found 3"),
        ({"weights": {"shape": [2, 3], "float32": "?"}}, "float32: expected base64"),
        ({"weights": {"shape": [2, -3], "float32": ""}}, "shape: expected a whole number"),
        ({"weights": {"shape": 6, "float32": ""}}, "shape: expected a list"),
    ],
)
def test_a_map_that_means_nothing_is_a_data_error(changes, message):
    with pytest.raises(DataError, match=message):
        _map(**changes)


def test_areas_alone_give_each_item_the_weights_of_the_areas_that_hold_it():
    record = _record(maps=[_map(weights=None, areas=AreaMap([[0, 1], [0, 2], [1, 2]], [[0.5, 0.3, 0.2], [0.0, 0.0, 1.0]]))])
    assert record.maps[0].weights[0] == pytest.approx(np.array([[0.8, 0.5, 0.2], [0.0, 1.0, 1.0]]))
    boxes = AreaMap([[0, 0, 1, 1], [0, 1, 2, 2]], [[0.25, 0.75], [1.0, 0.0]])
    record = _record(maps=[_map(key="image", weights=None, areas=boxes)])
    assert record.maps[0].weights[0] == pytest.approx(np.array([[0.25, 0.75, 0.75, 0.0, 0.75, 0.75], [1.0, 0, 0, 0, 0, 0]]))


def test_the_main_map_is_the_alignment_then_a_cross_attention():
    maps = [_map(name="self", kind="self", query="source", weights=np.eye(3)), _map(), _map(name="last", kind="alignment")]
    assert [_record(maps=maps[:count]).main.name for count in (1, 2, 3)] == ["self", "cross", "last"]  # type: ignore[union-attr]
    assert _record(maps=[]).main is None


def test_one_head_or_the_mean_of_all_can_be_taken_by_name():
    record = _record(maps=[_map(), _map(name="second", weights=[WEIGHTS, np.ones((2, 3))], heads=["left", "right"])])
    assert record.matrix("second", 1).weights.tolist() == [[1, 1, 1]] * 2
    assert record.matrix("second").weights[0] == pytest.approx([0.85, 0.6, 0.55])
    assert (record.matrix("second", 0).name, record.matrix().name) == ("second, head left", "cross")
    assert record.matrix().key == ["a", "␣b", "↵"]
    for name, head, message in (
        ("third", None, "known ones: cross, second"),
        ("second", 2, "map 'second' has only 2 heads"),
        (None, -1, "head -1: expected a number of 0"),
    ):
        with pytest.raises(DataError, match=message):
            record.matrix(name, head)
    with pytest.raises(DataError, match="the record holds no attention"):
        _record(maps=[]).matrix()


@pytest.mark.parametrize(("source", "target"), [([], ["x", "y"]), (["a", "b", "c"], []), ([], [])])
@pytest.mark.parametrize("empty", [[], "rows", "heads"])
def test_a_side_without_tokens_has_weights_without_cells(source, target, empty):
    weights = {"rows": [[] for _ in target], "heads": np.zeros((1, len(target), len(source)))}.get(empty, []) if empty else []
    record = AttentionRecord.alignment(source, target, weights)
    assert record.weights.shape == (len(target), len(source))
    assert AttentionRecord.from_json(record.to_json()).weights.shape == record.weights.shape


TEXT = st.text(st.characters(), max_size=7)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), source=st.lists(TEXT, max_size=5), target=st.lists(TEXT, max_size=3), title=TEXT, meta=st.dictionaries(TEXT, TEXT))
def test_json_gives_every_record_back_unchanged(data, source, target, title, meta):
    number = st.floats(0, 1e6, width=32)
    rows = st.lists(st.lists(number, min_size=len(source), max_size=len(source)), min_size=len(target), max_size=len(target))
    scores = data.draw(st.none() | st.lists(st.floats(-1e3, 0), min_size=len(target), max_size=len(target)))
    record = AttentionRecord(
        {"source": Tokens(source, title), "target": target, "image": Grid(1, 2, size=(3, 5))},
        [AttentionMap("a", "alignment", "target", "source", data.draw(rows)), AttentionMap("b", "self", "image", "image", np.eye(2))],
        scores={} if scores is None else {"target": scores},
        hypotheses=[HypothesisRecord(target, -1.5, title, scores, weights=data.draw(st.none() | rows))],
        prediction=PredictionRecord(title, {title: 0.5}),
        model=title,
        title=title,
        meta=meta,
    )
    values = record.to_json()
    assert (values["format"], values["version"]) == ("regard.record", 2)
    assert AttentionRecord.from_json(json.loads(json.dumps(values))).to_json() == values


def test_every_sample_comes_back_from_json_large_ones_packed_and_exact():
    for record in samples.everything():
        values = json.loads(json.dumps(record.to_json()))
        again = AttentionRecord.from_json(values)
        assert again.to_json() == values
        for one, two in zip(record.maps, again.maps, strict=True):
            assert np.array_equal(one.weights, two.weights)
    assert set(samples.large(53, 61).to_json()["maps"][0]["weights"]) == {"shape", "float32"}
    assert samples.alignment().to_json()["maps"][0]["weights"][0][5][4] == 0.8


def test_a_file_gives_all_records_back_in_order(tmp_path):
    records = [_alignment(title=f"{i}\n\u2028\ud800", scores=[-0.5, -1.5]) for i in range(3)]
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
        (b'{"format": "regard.record"}', "line 2: version None: this reader knows version 2"),
        (b'{"format": "regard.record", "version": 1}', "line 2: version 1: this reader knows version 2"),
        (b'{"format": "regard.record", "version": true}', "line 2: version True"),
        (b'{"format": "regard.record", "version": 2}', "line 2: items: missing"),
        (b'{"format": "regard.record", "version": 2, "items": {}, "wieghts": 1}', "line 2: wieghts: unknown"),
        (
            b'{"format": "regard.record", "version": 2, "items": {"a": ["x"]}, '
            b'"maps": [{"name": "n", "kind": "self", "query": "a", "key": "a", "weights": [[NaN]]}]}',
            r"line 2: maps\[0\]: weights.*nan",
        ),
    ],
)
def test_a_damaged_line_is_a_data_error_with_file_and_line(tmp_path, line, message):
    path = tmp_path / "records.jsonl"
    write_records(path, [_alignment()])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(DataError, match=message) as caught:
        read_records(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_data_error_with_its_name(tmp_path):
    with pytest.raises(DataError, match=r"nothing\.jsonl: cannot be read"):
        read_records(tmp_path / "nothing.jsonl")


def test_scores_of_a_method_may_be_below_zero_and_attention_may_not():
    items = {"source": ["a", "b"], "target": ["c"]}
    effects = AttentionMap("leave-one-out", "cross", "target", "source", [[-0.5, 1.25]], method="leave-one-out")
    own = AttentionMap("self", "self", "source", "source", np.eye(2))
    record = AttentionRecord(items, [effects, own])
    assert record.main is record.maps[1], "attention comes before explanations"
    assert AttentionRecord.from_json(record.to_json()).maps[0].method == "leave-one-out"
    assert "method" not in record.to_json()["maps"][1]
    with pytest.raises(DataError, match=r"weights\[0\]\[0\] is -0.5: expected a finite number of 0 or more"):
        AttentionMap("cross", "cross", "target", "source", [[-0.5, 1.25]])
    with pytest.raises(DataError, match=r"is nan: expected a finite number$"):
        AttentionMap("m", "cross", "target", "source", [[np.nan, 1.25]], method="m")


def test_alternatives_belong_to_each_item():
    pairs = [[("x", 0.75), ("y", 0.125)], []]
    record = AttentionRecord({"target": ["x", "z"]}, alternatives={"target": pairs})
    assert AttentionRecord.from_json(record.to_json()).alternatives == {"target": pairs}
    assert "alternatives" not in AttentionRecord({"target": ["x"]}).to_json()
    for wrong, message in (
        ({"source": []}, "alternatives: source: no such items"),
        ({"target": [[]]}, "alternatives: target: expected 2 lists of tokens"),
        ({"target": [["x"], []]}, r"alternatives: target\[0\]: expected pairs of a token and its probability"),
        ({"target": [[("x", 1.5)], []]}, r"target\[0\]: expected probabilities from 0 to 1"),
        ({"target": [[(3, 0.5)], []]}, r"target\[0\]: expected text, found int"),
    ):
        with pytest.raises(DataError, match=message):
            AttentionRecord({"target": ["x", "z"]}, alternatives=wrong)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([" gro", "ße", " Hund", "."], [(0, "große"), (2, "Hund"), (3, ".")]),
        (["[CLS]", "play", "##ing", ".", "[SEP]"], [(0, "[CLS]"), (1, "playing"), (3, "."), (4, "[SEP]")]),
        (["\u2581un", "real", "</s>"], [(0, "unreal"), (2, "</s>")]),
        (["\u0120do", "n", "'", "t"], [(0, "don't")]),
        (["lo@@", "wer", "x"], [(0, "lower"), (2, "x")]),
        (["lo", "wer</w>", "x</w>"], [(0, "lower"), (2, "x")]),
        ([" ", "M", "a", " ", "2"], [(0, "Ma"), (3, "2")]),
        (["two", "words"], []),
        ([" two", " words"], []),
        ([], []),
    ],
)
def test_words_are_read_from_the_signs_of_tokenizers(tokens, words):
    assert Tokens(tokens).words == words


@pytest.mark.parametrize(
    ("tokens", "marks", "words"),
    [
        ([" fil", "-\u0120", "ermanja", " \u010aipru"], "space", [(0, "fil-\u0120ermanja"), (3, "\u010aipru")]),
        (["\u2581see", "##ch", "an@@"], "space", [(0, "see##chan@@")]),
        (["huwa", "mill-", "\u0120ermanja"], "space", [(0, "huwamill-\u0120ermanja")]),
        (["huwa", "mill-", "\u0120ermanja", "\u2581x"], "none", []),
        (["##", "Title", "a</w>"], "none", []),
    ],
)
def test_known_marks_of_words_leave_the_signs_of_the_text_alone(tokens, marks, words):
    assert Tokens(tokens, marks=marks).words == words


def test_marks_of_words_are_part_of_a_record_and_a_file_without_them_is_read():
    record = AttentionRecord.alignment([" a"], ["b"], [[1.0]], marks="space")
    items = json.loads(json.dumps(record.to_json()))["items"]
    assert items["source"] == {"tokens": [" a"], "text": "", "marks": "space"}
    assert AttentionRecord.from_json(record.to_json()).items == record.items
    for own in items.values():
        del own["marks"]
    assert AttentionRecord({"source": items["source"]}).items["source"] == Tokens([" a"])
    assert Tokens([" a"]).to_json() == {"tokens": [" a"], "text": ""}
    with pytest.raises(DataError, match="marks: 'dots', expected space or none"):
        Tokens([" a"], marks="dots")


def _over_both(steps: int) -> AttentionRecord:
    items = {"source": ["a", "b"], "image": Grid(1, 2), "target": ["x"] * steps}
    kinds = [("text", "cross", "source"), ("first", "image", "image"), ("second", "image", "image")]
    return AttentionRecord(items, [AttentionMap(name, kind, "target", key, np.full((2, steps, 2), 0.5)) for name, kind, key in kinds])


def test_a_picture_shows_the_text_and_the_first_map_over_the_image_unless_one_is_chosen() -> None:
    record = _over_both(60)
    assert [found.name for found in record.matrices()] == ["text", "first"]
    assert [found.grid for found in record.matrices()] == [None, record.items["image"]]
    assert [found.name for found in record.matrices("second")] == ["second"]
    assert [found.name for found in record.matrices(head=1)] == ["text, head 2"]
    assert [found.name for found in _over_both(61).matrices()] == ["text"]
    assert _over_both(61).matrix("first").grid is None
