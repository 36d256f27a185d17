"""All layers, heads, areas and hypotheses of a run in the record of an example."""

from __future__ import annotations

import numpy as np
import pytest

from regard.tasks import record_layers
from regard.tasks.attention_records import side_by_side
from regard.tasks.word_links import LinkAttention
from regard.viewer import AttentionRecord, render_page
from tests.tasks.tiny import FAMILIES, translator


def _record(**parts: object) -> AttentionRecord:
    subject = translator(**parts)  # type: ignore[arg-type]
    (item,) = subject.translate(["ein Hund"], n_best=3, need_attention=True)
    record = subject.record("ein Hund", item)
    assert record is not None
    return record


def test_a_transformer_shows_every_layer_and_head_after_its_alignment() -> None:
    record = _record(model=FAMILIES["transformer"])
    stacks = [f"{stack} {layer}" for stack in ("encoder self", "decoder self", "cross") for layer in (1, 2)]
    assert record.maps[0].name == "alignment"
    assert sorted(found.name for found in record.maps[1:]) == sorted(stacks)
    assert {len(found.weights) for found in record.maps[1:]} == {2}
    for found in record.maps:
        assert found.weights.sum(-1) == pytest.approx(np.ones(found.weights.shape[:2]), abs=1e-4)
    assert (record.model, record.main) == ("in memory", record.maps[0])
    # What is being produced looks at what was written before it, never at itself or what comes after.
    own = next(found for found in record.maps if found.name == "decoder self 1")
    assert (own.query, own.key) == ("target", "written")
    assert list(record.items["written"].tokens) == ["<s>", *record.items["target"].tokens[:-1]]
    assert np.triu(own.weights, 1).max() == 0


def test_the_attention_of_word_links_is_named_as_its_map_is(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = LinkAttention("decoder.layers.1.cross_attention.attention", 1, "reads", 0.5, 7)
    monkeypatch.setattr(record_layers, "read_choice", lambda _: choice)
    record = _record(model=FAMILIES["transformer"])
    assert record.meta["word links"] == "cross 2, head 2, of the step that reads the token"
    assert "cross 2" in [found.name for found in record.maps]
    monkeypatch.setattr(record_layers, "read_choice", lambda _: choice._replace(head=None, step="predicts"))
    assert _record(model=FAMILIES["transformer"]).meta["word links"] == "cross 2, mean of the heads, of the step that predicts the token"
    monkeypatch.setattr(record_layers, "read_choice", lambda _: None)
    assert "word links" not in _record(model=FAMILIES["transformer"]).meta


def test_areas_come_with_their_spans_and_project_to_the_items_weights() -> None:
    record = _record(model=FAMILIES["area"])
    layers = [found for found in record.maps if found.name != "alignment"]
    assert all(found.areas is not None for found in layers)
    for found in layers:
        assert found.areas is not None
        projected = np.zeros_like(found.weights)
        for number, (start, length) in enumerate(found.areas.extents.tolist()):
            projected[..., start : start + length] += found.areas.weights[..., number, None]
        assert projected == pytest.approx(found.weights, abs=1e-4)


def test_two_branches_of_co_attention_are_told_apart() -> None:
    record = _record(model=FAMILIES["crossed"])
    found = [each.name for each in record.maps if each.kind == "co-attention"]
    assert found == ["left co-attention 1", "right co-attention 1", "left co-attention 2", "right co-attention 2"]


def test_a_recurrent_model_with_heads_shows_each_and_one_without_only_its_alignment() -> None:
    assert [found.name for found in _record().maps] == ["alignment"]
    record = _record(model=FAMILIES["lstm area"])
    assert [(found.name, found.weights.shape[0]) for found in record.maps] == [("alignment", 1), ("alignment by head", 2)]
    assert record.maps[1].areas is not None


def test_all_hypotheses_of_a_search_are_in_the_record() -> None:
    record = _record()
    assert len(record.hypotheses) == 3
    scores = [found.score for found in record.hypotheses]
    assert scores == sorted(scores, reverse=True)
    assert list(record.hypotheses[0].tokens) == list(record.items["target"].tokens)
    assert record.hypotheses[0].weights == pytest.approx(record.weights)
    for found in record.hypotheses:
        assert found.weights.shape == (len(found.tokens), len(record.items["source"]))
        assert found.log_probs is not None


def test_maps_too_large_for_a_page_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_layers, "MAX_WEIGHTS", 600)
    record = _record(model=FAMILIES["transformer"])
    assert record.meta["left out"] == f"{7 - len(record.maps)} of 6 maps, too large for one page"
    assert 1 <= len(record.maps) < 7


def test_several_runs_stand_side_by_side_line_by_line(run_folder) -> None:
    records = side_by_side([run_folder, run_folder], ["ein Hund", "Haus"])
    assert [record.source_text for record in records] == ["ein Hund", "ein Hund", "Haus", "Haus"]
    assert {record.model for record in records} == {str(run_folder)}
    (record,) = side_by_side([run_folder], ["ein Hund"], target="Haus")
    assert record.model == run_folder.name
    assert "left out" not in record.meta
    assert len(render_page(records)) > 10_000


@pytest.mark.parametrize(("kind", "marks"), [("bpe", "space"), ("unigram", "space"), ("character", "space"), ("word", "none")])
def test_a_record_tells_how_the_vocabulary_marks_words(kind: str, marks: str) -> None:
    record = _record(kind=kind, model=FAMILIES["transformer"])
    assert {name: items.marks for name, items in record.items.items()} == dict.fromkeys(("source", "target", "written"), marks)
