"""What the page shows of a run with two inputs: target over each, both directions of the co-attention, and the part of each input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("selenium", reason="selenium drives the browser")

from regard.tasks import Translator, generate, train_translation
from regard.viewer import AttentionMap, AttentionRecord, Grid
from tests.tasks.test_image_inputs import lines_of, settings
from tests.viewer.browser import choose, data, every, one, tabs, texts


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> AttentionRecord:
    """Return the record of a crossed network that attends to runs of a sentence and rectangles of an image."""
    folder = tmp_path_factory.mktemp("scenes")
    generate("scene-sentences", folder, train=23, test=5, seed=3)
    train_translation(settings(folder, "crossed of areas"), folder / "run")
    translator = Translator.open(folder / "run")
    translator.use_images(folder)
    line = lines_of(folder)[0]
    found = translator.record(line, translator.translate([line], n_best=2, need_attention=True)[0])
    assert found is not None
    return found


def show(page: Any, record: AttentionRecord, name: str) -> AttentionMap:
    """Choose a map by its name, and its second head."""
    (place,) = [place for place, found in enumerate(record.maps) if found.name == name]
    assert texts(page, "#map option")[place] == name
    choose(page, "#map", place)
    if len(record.maps[place].weights) > 1:
        choose(page, "#head", 1)
    return record.maps[place]


def matrix(page: Any, rows: int) -> list[list[float]]:
    script = "return [...document.querySelectorAll(arguments[0])].map((cell) => Number(cell.textContent))"
    return [page.execute_script(script, f"#matrix tbody tr:nth-child({row + 1}) td") for row in range(rows)]


def test_the_target_is_shown_over_the_sentence_and_over_the_image(opened: Callable[..., Any], record: AttentionRecord) -> None:
    page = opened([record])
    image = record.items["image"]
    assert isinstance(image, Grid)
    found = show(page, record, "first input, cross 1")
    assert (found.query, found.key) == ("target", "source")
    one(page, "#tab-matrix").click()
    assert matrix(page, 1)[0] == pytest.approx(np.asarray(found.weights)[1, 0], abs=0.0051)
    assert "areas" in tabs(page)
    found = show(page, record, "image, cross 1")
    assert (found.query, found.key) == ("target", "image")
    one(page, "#tab-image").click()
    assert data(page, "#overlay image", "href") == [image.image]
    assert found.areas is not None
    weights = found.areas.weights[1, 0]
    strongest = [i for i in weights.argsort()[::-1][:12] if weights[i] >= 0.005]
    assert set(data(page, "#overlay .box", "data-extent")) == {",".join(map(str, found.areas.extents[i])) for i in strongest}
    assert {len(extent.split(",")) for extent in data(page, "#overlay .box", "data-extent")} == {4}
    found = show(page, record, "alignment, image")
    assert [float(value) for value in data(page, "#overlay .cell", "data-weight")] == pytest.approx(
        np.asarray(found.weights)[0, 0], abs=1e-6
    )


def test_the_co_attention_is_shown_both_ways(opened: Callable[..., Any], record: AttentionRecord) -> None:
    page = opened([record])
    there, back = show(page, record, "right co-attention 1"), next(found for found in record.maps if found.name == "left co-attention 1")
    assert [(found.query, found.key) for found in (there, back)] == [("source", "image"), ("image", "source")]
    assert {"image", "both"} <= set(tabs(page))
    one(page, "#tab-image").click()
    words = list(record.items["source"].tokens)
    assert texts(page, "#caption button") == words
    one(page, "#tab-both").click()
    assert len(every(page, "#there tbody td")) == len(every(page, "#back tbody td")) == len(words) * 16
    show(page, record, "left co-attention 1")
    assert "areas" in tabs(page)
    one(page, "#tab-matrix").click()
    assert len(every(page, "#matrix tbody tr")) == 16


def test_the_part_of_each_input_is_shown_for_each_word(opened: Callable[..., Any], record: AttentionRecord) -> None:
    page = opened([record])
    found = show(page, record, "contribution of each input, cross 2")
    one(page, "#tab-matrix").click()
    assert texts(page, "#matrix thead th") == ["sentence", "image"]
    shares = matrix(page, len(record.items["target"]))
    assert shares == pytest.approx(np.asarray(found.weights)[0], abs=0.0051)
    assert [sum(row) for row in shares] == pytest.approx([1] * len(shares), abs=0.011)
