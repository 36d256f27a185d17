"""Every view in a real browser: what it draws is what its record says, read back from the page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from regard.viewer import AreaMap, AttentionMap, AttentionRecord, Grid, HypothesisRecord

pytest.importorskip("selenium", reason="selenium drives the browser")
from selenium.webdriver.common.keys import Keys

from tests.viewer import samples
from tests.viewer.browser import brightness, choose, data, every, example, hover, one, press, shown, style, tabs, texts

MINUS = "\u2212"


def _numbers(driver: Any, selector: str, name: str = "data-weight") -> list[float]:
    return [float(value) for value in data(driver, selector, name)]


def _tip(driver: Any) -> str:
    return " ".join(one(driver, "#tip").text.split())


def test_views_and_controls_are_those_that_the_record_needs(opened):
    page = opened(samples.everything())
    found = {}
    for index, name in enumerate(samples.ORDER):
        example(page, index)
        found[name] = tabs(page)
    basic = ["matrix", "flow", "text"]
    assert found["alignment"] == [*basic, "compare", "table"]
    assert found["transformer"] == ["matrix", "flow", "heads", "text", "compare", "table"]
    assert found["areas"] == ["matrix", "flow", "areas", "text", "compare", "table"]
    assert found["image areas"] == ["matrix", "image", "compare", "table"]
    assert found["hops"] == [*basic, "table"]
    assert found["both"] == [*basic, "both", "table"]
    assert found["beam"] == [*basic, "beam", "compare", "table"]
    example(page, 0)
    one(page, "#tab-matrix").click()
    assert [shown(page, f"#{name}") for name in ("map", "head", "stepping", "choice", "numbers", "threshold")] == [False] * 4 + [
        True,
        False,
    ]
    example(page, 1)
    assert [shown(page, f"#{name}") for name in ("map", "head")] == [True, True]


def test_a_head_is_one_of_a_map_and_the_mean_of_all_comes_first(opened):
    record = samples.transformer()
    page = opened([record])
    assert texts(page, "#map option") == [found.name for found in record.maps]
    assert texts(page, "#head option") == ["mean of 8", *(f"head {head}" for head in range(1, 9))]

    def cells(row: int) -> list[float]:
        script = "return [...document.querySelectorAll(arguments[0])].map((cell) => cell.textContent)"
        found = page.execute_script(script, f"#matrix tbody tr:nth-child({row + 1}) td")
        return [0.0 if text in ("", "·") else float(text) for text in found]

    assert cells(2) == pytest.approx(record.maps[0].weights.mean(0)[2], abs=0.0051)
    choose(page, "#head", 5)
    assert cells(2) == pytest.approx(record.maps[0].weights[5, 2], abs=0.0051)
    choose(page, "#map", 9)
    assert cells(2) == pytest.approx(record.maps[9].weights[5, 2], abs=0.0051)
    assert texts(page, "#matrix tbody th") == ["Der", "␣große", "␣Hund", "␣schläft", "."]
    page.refresh()
    assert cells(2) == pytest.approx(record.maps[9].weights[5, 2], abs=0.0051)


def test_the_grid_shows_every_layer_and_head_and_one_can_be_looked_at_closely(opened):
    record = samples.transformer()
    page = opened([record], "#view=heads")
    assert len(every(page, "#heads button")) == 6 * 8
    assert texts(page, "#heads h3") == [f"cross {layer}" for layer in range(1, 7)]
    weights = record.maps[2].weights[3].astype(float)
    entropy = float(-(weights * np.log2(np.where(weights > 0, weights, 1))).sum(-1).mean())
    button = one(page, "#heads button[data-map='2'][data-head='3']")
    assert button.text.split() == ["head", "4", f"{entropy:.2f}", "bits"]
    # The pixels of a small map are the colours of its weights: the strongest is the darkest.
    script = """const pen = arguments[0].querySelector('canvas').getContext('2d'), [wide, high] = [pen.canvas.width, pen.canvas.height];
                return [wide, high, ...pen.getImageData(0, 0, wide, high).data]"""
    wide, high, *pixels = page.execute_script(script, button)
    lightness = np.array(pixels).reshape(high, wide, 4)[..., :3].sum(-1)
    assert (high, wide) == weights.shape
    assert lightness.argmin() == weights.argmax()
    assert np.corrcoef(lightness.ravel(), weights.ravel())[0, 1] < -0.9
    page.execute_script("arguments[0].focus()", button)
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ENTER)
    assert one(page, "#tab-matrix").get_attribute("aria-selected") == "true"
    assert (one(page, "#map").get_attribute("value"), one(page, "#head").get_attribute("value")) == ("3", "4")
    one(page, "#tab-heads").click()
    choose(page, "#map", 6)
    assert len(every(page, "#heads button")) == 6 * 8
    assert texts(page, "#heads h3")[0] == "encoder self 1"


def test_a_view_that_the_map_at_hand_does_not_have_takes_one_that_has_it(opened):
    weights = samples.rows_of(6, 5, 40)
    mean = AttentionMap("alignment", "alignment", "target", "source", weights)
    found = samples.areas().maps[0]
    deep = [mean, *samples.transformer(2, 3).maps[2:], *samples.transformer(2, 3).maps[:2], found]
    items = {"source": samples.SOURCE, "target": samples.TARGET}
    page = opened([AttentionRecord(items, deep, title=title) for title in ("one", "two")])
    assert tabs(page) == ["matrix", "flow", "heads", "areas", "text", "compare", "table"]
    assert texts(page, "#map option:checked") == ["alignment"]
    one(page, "#tab-heads").click()
    assert texts(page, "#heads h3") == ["cross 1", "cross 2", "area cross"]  # before the encoder's own
    one(page, "#tab-areas").click()
    assert texts(page, "#map option:checked") == ["area cross"]
    assert every(page, ".bracket")
    press(page, "]")
    assert one(page, "#title").text == "two"
    assert every(page, ".bracket")
    choose(page, "#map", 0)
    assert one(page, "#tab-matrix").get_attribute("aria-selected") == "true"
    choose(page, "#map", 3)
    choose(page, "#head", 2)
    press(page, "[")
    assert (texts(page, "#map option:checked"), one(page, "#head").get_attribute("value")) == (["cross 1"], "2")


def test_brackets_stand_under_the_words_of_their_area_with_its_weight(opened):
    record = samples.areas()
    page = opened([record], "#view=areas")
    found = record.maps[0]
    assert found.areas is not None
    weights = found.areas.weights[0]
    for row in (0, 3):
        choose(page, "#step", row)
        strong = [i for i in weights[row].argsort()[::-1] if weights[row, i] >= 0.005]
        spans = list(zip(_numbers(page, ".bracket", "data-start"), _numbers(page, ".bracket", "data-length"), strict=True))
        assert spans == [tuple(found.areas.extents[i]) for i in strong]
        assert _numbers(page, ".bracket") == pytest.approx(weights[row][strong], abs=1e-6)
    script = """const bracket = document.querySelector('.bracket'), word = document.querySelectorAll('.words > .word');
                const [start, length] = [Number(bracket.dataset.start), Number(bracket.dataset.length)];
                const line = bracket.querySelector('path').getBoundingClientRect();
                const ends = [word[start].getBoundingClientRect().left, word[start + length - 1].getBoundingClientRect().right];
                return [ends[0] - line.left, line.right - ends[1]]"""
    assert page.execute_script(script) == pytest.approx([0, 0], abs=8)
    heights = [
        box["y"] for box in page.execute_script("return [...document.querySelectorAll('.bracket .hit')].map((box) => box.getBBox())")
    ]
    assert len(set(heights)) > 1  # areas that overlap stand on different lines
    page.execute_script("document.querySelector('.bracket').focus()")
    assert len(every(page, ".words .lit")) == int(data(page, ".bracket", "data-length")[0])
    choose(page, "#areas", 2)
    assert len(every(page, ".bracket")) == 2


def test_areas_can_be_seen_as_the_weights_of_their_items(opened):
    record = samples.areas()
    page = opened([record], "#view=areas")
    one(page, "#choice label:nth-child(2)").click()
    assert not every(page, ".bracket")
    assert _numbers(page, ".words .token") == pytest.approx(record.maps[0].weights[0, 0], abs=1e-6)
    press(page, ".")
    assert _numbers(page, ".words .token") == pytest.approx(record.maps[0].weights[0, 1], abs=1e-6)
    grounds = style(page, ".words .token", "backgroundColor")
    assert min(grounds, key=brightness) == grounds[int(record.maps[0].weights[0, 1].argmax())]
    press(page, "a")
    assert every(page, ".bracket")


def test_boxes_lie_on_the_image_where_their_areas_are(opened):
    record = samples.image_areas()
    page = opened([record])
    assert one(page, "#tab-image").get_attribute("aria-selected") == "true"
    found = record.maps[0]
    assert found.areas is not None
    assert data(page, "#overlay image", "href") == [record.items["image"].image]
    size = [float(data(page, "#overlay", name)[0]) for name in ("width", "height")]
    assert size[0] / size[1] == pytest.approx(350 / 250)
    for row in (0, 4):
        one(page, f"#caption button[data-at='{row}']").click()
        weights = found.areas.weights[0, row]
        strong = [i for i in weights.argsort()[::-1][:12] if weights[i] >= 0.005]
        assert set(data(page, "#overlay .box", "data-extent")) == {",".join(map(str, found.areas.extents[i])) for i in strong}
        for box in every(page, "#overlay .box"):
            top, left, height, width = (int(part) for part in box.get_attribute("data-extent").split(","))
            drawn = [float(box.get_attribute(name)) for name in ("x", "y", "width", "height")]
            expected = [left / 7 * size[0], top / 5 * size[1], width / 7 * size[0], height / 5 * size[1]]
            assert drawn == pytest.approx(expected, abs=4)
    one(page, "#choice label:nth-child(2)").click()
    assert not every(page, "#overlay .box")
    assert _numbers(page, "#overlay .cell") == pytest.approx(found.weights[0, 4], abs=1e-6)


def test_an_image_is_stepped_through_word_by_word(opened):
    record = samples.image()
    page = opened([record], "#view=image")
    weights = record.maps[0].weights[0]
    assert _numbers(page, "#overlay .cell") == pytest.approx(weights[0], abs=1e-6)
    width, height = (float(data(page, "#overlay", name)[0]) for name in ("width", "height"))
    assert _numbers(page, "#overlay .cell", "x") == pytest.approx([width * (i % 7) / 7 for i in range(35)])
    assert _numbers(page, "#overlay .cell", "y") == pytest.approx([height * (i // 7) / 5 for i in range(35)])
    veils = np.array(_numbers(page, "#overlay .cell", "fill-opacity"))
    assert veils.argmin() == weights[0].argmax()
    one(page, "#next").click()
    press(page, ".")
    assert texts(page, "#caption [aria-pressed=true]") == ["over"]
    assert (one(page, "#focus-word").text, one(page, "#step").get_attribute("value")) == ("over", "2")
    assert _numbers(page, "#overlay .cell") == pytest.approx(weights[2], abs=1e-6)
    assert texts(page, "#rank bdi")[0] == record.items["image"].labels[int(weights[2].argmax())]
    one(page, "#every").click()
    assert len(every(page, "#film figure")) == 5
    assert texts(page, "#film figcaption") == samples.CAPTION
    assert _numbers(page, "#film figure:nth-child(4) .cell") == pytest.approx(weights[3], abs=1e-6)


def test_a_grid_without_an_image_is_drawn_in_colours(opened):
    items = {"cells": Grid(2, 3), "words": ["a"]}
    page = opened([AttentionRecord(items, [AttentionMap("m", "image", "words", "cells", [[0.05, 0.1, 0.15, 0.2, 0.2, 0.3]])])])
    fills = data(page, "#overlay .cell", "fill")
    assert len(fills) == 6
    assert sorted(fills, key=brightness, reverse=True)[-1] == fills[5]


def test_each_hop_highlights_the_words_it_looked_at(opened):
    record = samples.hops()
    page = opened([record])
    assert one(page, "#tab-text").get_attribute("aria-selected") == "true"
    assert texts(page, "#highlights button") == ["hop 1", "hop 2", "hop 3"]
    for hop in range(3):
        words = f"#highlights section:nth-child({hop + 1}) p bdi"
        assert texts(page, words) == samples.REVIEW
        weights = record.maps[0].weights[0, hop]
        assert _numbers(page, words) == pytest.approx(weights, abs=1e-6)
        grounds = [ground for ground in style(page, words, "backgroundColor") if ground != "rgba(0, 0, 0, 0)"]
        assert min(grounds, key=brightness) == style(page, words, "backgroundColor")[int(weights.argmax())]
        assert len(grounds) == int((weights / record.maps[0].weights.max() > 0.02).sum())
    assert texts(page, "#prediction .word") == ["positive"]
    assert texts(page, "#prediction em") == ["0.875", "0.125"]
    every(page, "#highlights button")[2].click()
    assert one(page, "#focus-word").text == "hop 3"


def test_both_directions_of_a_co_attention_point_at_the_same_pair(opened):
    record = samples.both_ways()
    page = opened([record], "#view=both")
    there, back = (found.weights[0] for found in record.maps)
    assert len(every(page, "#there tbody td")) == len(every(page, "#back tbody td")) == 12
    assert texts(page, "#back tbody th") == ["someone", "makes", "music"]
    hover(page, one(page, "#there td[data-row='2'][data-column='1']"))
    assert data(page, "#back td.on", "data-row") + data(page, "#back td.on", "data-column") == ["1", "2"]
    assert float(one(page, "#gave").text) == pytest.approx(there[2, 1], abs=1e-6)
    assert float(one(page, "#got").text) == pytest.approx(back[1, 2], abs=1e-6)
    assert _tip(page).startswith("plays → makes")
    one(page, "#back td[data-row='2'][data-column='3']").click()
    assert data(page, "#there td.on", "data-row") + data(page, "#there td.on", "data-column") == ["3", "2"]
    assert "guitar gives music" in one(page, "#told").text


def test_hypotheses_share_the_beginning_of_their_path_and_each_has_its_attention(opened):
    record = samples.beam()
    page = opened([record], "#view=beam")
    prefixes = {tuple(found.tokens[: end + 1]) for found in record.hypotheses for end in range(len(found.tokens))}
    assert len(every(page, "#tree .node")) == len(prefixes)
    assert texts(page, "#tree .score") == [f"#1  {MINUS}0.830", f"#2  {MINUS}1.210", f"#3  {MINUS}1.540", f"#4  {MINUS}2.070"]
    assert sorted(data(page, "#tree .node[data-depth='1']", "data-through")) == ["0 1 2", "3"]
    assert len(every(page, "#tree path")) == len(prefixes) - 2
    one(page, "#tree .score[data-place='1']").click()
    assert one(page, "#hypothesis").text == "The big dog is asleep ."
    assert len(every(page, "#tree .node.own")) == 7
    weights = record.hypotheses[1].weights
    assert len(every(page, "#beam-matrix tbody td")) == 7 * 5
    one(page, "#tree .node[data-through='1'][data-depth='4']").click()
    assert one(page, "#focus-word").text == "is"
    assert float(one(page, "#focus-weight").text) == pytest.approx(weights[3].max(), abs=1e-6)
    press(page, Keys.ARROW_LEFT)
    assert page.switch_to.active_element.text == "dog"
    one(page, "#tab-matrix").click()
    assert len(every(page, "#matrix tbody td")) == 6 * 5


def test_views_follow_a_token_of_a_hypothesis_that_is_longer_than_the_map(opened):
    page = opened([samples.beam()], "#view=beam")
    for view in ("matrix", "flow", "text"):
        one(page, "#tab-beam").click()
        one(page, "#tree .node[data-through='1'][data-depth='7']").click()
        one(page, f"#tab-{view}").click()
        assert shown(page, "#view"), view
        assert page.get_log("browser") == [], view
    one(page, "#tab-matrix").click()
    assert data(page, "#matrix td.on", "data-row") == ["5"]


def test_a_hypothesis_over_an_image_shows_where_each_of_its_words_looked(opened):
    weights = samples.rows_of(3, 35, 21)
    found = [
        HypothesisRecord(["a", "red", "sun"], -0.5, "a red sun", key="image", weights=weights),
        HypothesisRecord(["a", "ball"], -1.5, "a ball"),
    ]
    items = {"image": Grid(5, 7, samples.picture(70, 50), (70, 50))}
    page = opened([AttentionRecord(items, hypotheses=found, title="captions")])
    assert _numbers(page, "#beam-below .cell") == pytest.approx(weights[0], abs=1e-6)
    one(page, "#tree .node[data-depth='3']").click()
    assert _numbers(page, "#beam-below .cell") == pytest.approx(weights[2], abs=1e-6)
    assert one(page, "#focus-word").text == "sun"
    one(page, "#tree .score[data-place='1']").click()
    assert not every(page, "#beam-below .cell")


def test_a_hypothesis_that_ends_where_others_go_on_and_one_without_attention_are_shown(opened):
    found = [HypothesisRecord(["a"], -1.0), HypothesisRecord(["a", "b"], -2.0), HypothesisRecord([], -3.0)]
    page = opened([AttentionRecord({"source": ["x"]}, hypotheses=found, title="ends")])
    assert tabs(page) == ["beam"]
    assert sorted(texts(page, "#tree .score")) == [f"#1  {MINUS}1.000", f"#2  {MINUS}2.000", f"#3  {MINUS}3.000"]
    assert not shown(page, "#focus")
    places = {
        box["top"] for box in page.execute_script("return [...document.querySelectorAll('.score')].map((node) => ({top: node.style.top}))")
    }
    assert len(places) == 3


def test_two_models_stand_side_by_side_with_their_difference(opened):
    base, small = samples.transformer(), samples.transformer(2, 8, "small", 30)
    page = opened([base, small], "#view=compare")
    assert one(page, "#rival").get_attribute("value") == "1:0"
    first, second = base.maps[0].weights.mean(0), small.maps[0].weights.mean(0)
    assert [len(every(page, f"#{name} tbody td")) for name in ("one", "other", "difference")] == [30, 30, 30]
    assert texts(page, "#view h3") == ["A: base · cross 1, mean", "B: small · cross 1, mean", f"A {MINUS} B"]
    hover(page, one(page, "#difference td[data-row='4'][data-column='2']"))
    delta = first[4, 2] - second[4, 2]
    assert float(_tip(page).split()[-1].replace(MINUS, "-")) == pytest.approx(delta, abs=2e-6)
    assert data(page, "#one td.on", "data-row") == ["4"]
    assert float(one(page, "#distance b").text) == pytest.approx(np.abs(first - second).sum(-1).mean() / 2, abs=0.001)
    script = "return [...document.querySelectorAll('#difference tbody td')].map((cell) => getComputedStyle(cell).backgroundColor)"
    colors = np.array([[int(part) for part in color[4:-1].split(",")] for color in page.execute_script(script)])
    flat = (first - second).ravel()
    assert colors[flat.argmax()][2] > colors[flat.argmax()][0]  # more in A: violet
    assert colors[flat.argmin()][0] > colors[flat.argmin()][2]  # more in B: orange
    choose(page, "#rival", "1:1")
    choose(page, "#rival-head", 3)
    choose(page, "#head", 0)
    hover(page, one(page, "#other td[data-row='1'][data-column='3']"))
    assert float(_tip(page).split()[-1]) == pytest.approx(small.maps[1].weights[3, 1, 3], abs=1e-6)


def test_two_outputs_that_differ_have_no_difference(opened):
    one_way = AttentionRecord.alignment(["a", "b"], ["x"], [[0.25, 0.75]], title="one")
    other = AttentionRecord.alignment(["a", "b"], ["y", "z"], [[0.25, 0.75]] * 2, title="other")
    page = opened([one_way, other], "#view=compare")
    assert every(page, "#one")
    assert every(page, "#other")
    assert not every(page, "#difference")
    assert "no difference to draw" in one(page, "#no-difference").text


def test_every_script_comes_through_whole(opened):
    page = opened([samples.scripts()])
    labels = ["שלום", "عالم", "東京都", "한국어", "e\u0301", "👩\u200d👩\u200d👧", "🇫🇷", "ไทย", "⇥", "␣"]
    for view in ("matrix", "flow", "text", "table"):
        one(page, f"#tab-{view}").click()
        found = page.execute_script("return document.getElementById('view').textContent")
        assert [label for label in labels if label not in found] == []
    one(page, "#tab-matrix").click()
    assert texts(page, "#matrix thead th") == labels
    assert style(page, "#matrix tbody th bdi", "direction")[:3] == ["rtl", "rtl", "ltr"]


def test_the_table_names_areas_and_entropy(opened):
    record = samples.areas()
    page = opened([record], "#view=table")
    assert texts(page, "#table thead th") == ["Target", "Largest weights in source", "Areas", "Entropy"]
    assert len(every(page, "#table tbody tr")) == 6
    areas = record.maps[0].areas
    assert isinstance(areas, AreaMap)
    start, length = areas.extents[areas.weights[0, 2].argmax()]
    words = " ".join(record.items["source"].labels[start : start + length])
    assert texts(page, "#table tbody tr:nth-child(3) td:nth-child(3) bdi")[0] == words
