"""Methods of explanation, alternatives, words and links of the page, in a real browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from regard.viewer import AreaMap, AttentionMap, AttentionRecord, HypothesisRecord, Tokens

pytest.importorskip("selenium", reason="selenium drives the browser")
from tests.viewer import samples
from tests.viewer.browser import brightness, choose, data, every, one, press, shown, style, texts

MINUS = "\u2212"


def _numbers(page: Any, selector: str) -> list[float]:
    return [0.0 if text in ("", "·") else float(text.replace(MINUS, "-")) for text in texts(page, selector)]


def test_a_method_is_chosen_beside_the_map_and_every_view_shows_it(opened):
    record = samples.explained()
    page = opened([record])
    assert texts(page, "#method option") == ["attention weights", "alti", "leave-one-out"]
    assert texts(page, "#map option") == ["alignment", "cross 1"]
    choose(page, "#method", "leave-one-out")
    assert not shown(page, "#map")
    effects = record.maps[3].weights[0]
    assert _numbers(page, "#matrix tbody tr:nth-child(2) td") == pytest.approx(effects[1], abs=0.0051)
    top = f"{np.abs(effects).max():.2f}"
    assert texts(page, ".ramped > span:not(.ramp, .said)") == [f"{MINUS}{top}", f"+{top}"]
    assert one(page, ".ramped").text.startswith("score")
    # Two ends of one scale: what speaks for and what speaks against are told apart by hue, none of both is pale.
    colors = style(page, "#matrix tbody td", "backgroundColor")
    low, high, least = (colors[int(at)] for at in (effects.argmin(), effects.argmax(), np.abs(effects).argmin()))
    assert brightness(least) > max(brightness(low), brightness(high))
    assert low != high
    best = np.argsort(-effects[0], kind="stable")
    assert texts(page, "#rank bdi")[0] == record.items["source"].labels[best[0]]
    for view in ("flow", "text", "table"):
        one(page, f"#tab-{view}").click()
        assert texts(page, "#method option:checked") == ["leave-one-out"]
    one(page, "#tab-text").click()
    assert [float(value) for value in data(page, "#highlights section:nth-child(2) bdi[data-weight]", "data-weight")] == pytest.approx(
        effects[1], abs=1e-6
    )
    one(page, "#tab-matrix").click()
    press(page, "E")
    assert texts(page, "#method option:checked") == ["alti"]
    assert one(page, ".ramped").text.startswith("score\n0\n")
    press(page, "E")
    assert texts(page, "#map option:checked") == ["alignment"]
    assert not every(page, "#no-method")


def test_scores_that_are_small_together_are_told_apart(opened):
    record = samples.explained()
    small = np.random.default_rng(67).normal(size=(7, 6)) * 2e-7
    page = opened([replace(record, maps=[record.maps[0], replace(record.maps[3], weights=small)])])
    choose(page, "#method", "leave-one-out")
    expected = sorted((value for value in small[0] if value > 0), reverse=True)
    assert len(expected) > 1
    assert _numbers(page, "#rank em") == pytest.approx(expected, rel=0.006)
    assert texts(page, "#rank i[hidden]") == []
    one(page, "#tab-table").click()
    column = texts(page, "#table thead th").index("Highest scores in source") + 1
    assert _numbers(page, f"#table tbody tr:first-child :nth-child({column}) em") == pytest.approx(expected[:4], rel=0.006)


def test_methods_stand_side_by_side_and_are_compared_without_a_difference(opened):
    page = opened([samples.explained()], "#map=4&view=heads")
    assert texts(page, "#heads b") == ["alti", "leave-one-out"]
    assert not every(page, "#heads h3")
    page.execute_script("document.querySelector('#heads button').click()")
    assert texts(page, "#method option:checked") == ["alti"]
    one(page, "#tab-compare").click()
    choose(page, "#rival", "0:3")
    assert every(page, "#other")
    assert not every(page, "#difference")
    assert "units of their own" in one(page, "#no-difference").text
    choose(page, "#method", "")
    one(page, "#tab-heads").click()
    assert texts(page, "#heads h3") == ["cross 1"]


def test_one_colour_says_the_same_in_every_row_unless_each_is_asked_for(opened):
    weights = [[0.97, 0.02, 0.01], [0.14, 0.13, 0.13]]
    record = AttentionRecord.alignment(["a", "b", "c"], ["x", "y"], weights)
    page = opened([record], "#view=text")
    first, second = (f"#highlights section:nth-child({row}) p bdi:first-child" for row in (1, 2))
    darkest, pale = (brightness(style(page, selector, "backgroundColor")[0]) for selector in (first, second))
    assert pale > darkest + 80
    assert "0.97" in texts(page, ".ramped > span")
    choose(page, "#scale", "row")
    again = [brightness(style(page, selector, "backgroundColor")[0]) for selector in (first, second)]
    assert again == pytest.approx([darkest, darkest])
    assert "largest of each row" in texts(page, ".ramped > span")
    one(page, "#tab-matrix").click()
    colors = style(page, "#matrix tbody td", "backgroundColor")
    assert colors[0] == colors[3]
    choose(page, "#scale", "map")
    assert style(page, "#matrix tbody td", "backgroundColor")[3] != colors[0]


def test_alternatives_of_a_token_stand_beside_it_with_their_probabilities(opened):
    page = opened([samples.explained()])
    assert one(page, "#alternatives-title").text == "Most probable in place of The"
    assert texts(page, "#alternatives bdi") == ["The", "The?", "␣<b>"]
    assert texts(page, "#alternatives em") == ["0.600", "0.250", "0.125"]
    assert texts(page, "#alternatives li.here bdi") == ["The"]
    every(page, "#matrix tbody tr:nth-child(3) td")[0].click()
    assert texts(page, "#alternatives bdi")[0] == "␣dog"
    one(page, "#tab-table").click()
    assert texts(page, "#table thead th")[:3] == ["Target", "Probability", "Most probable"]
    assert texts(page, "#table tbody tr:nth-child(2) td:nth-child(3) em") == ["0.600", "0.250", "0.125"]
    assert not every(page, "#view b")
    choose(page, "#map", 0)


def test_sub_words_are_merged_to_words_by_a_switch(opened):
    record = samples.explained()
    page = opened([record])
    every(page, "#matrix tbody tr:nth-child(5) td")[0].click()
    assert one(page, "#focus-word").text == "eeps"
    one(page, "#words").click()
    assert texts(page, "#matrix thead th") == ["Der", "große", "Hund", "schläft", "."]
    assert texts(page, "#matrix tbody th") == ["The", "big", "dog", "sleeps", ".", "</s>"]
    weights = record.maps[0].weights[0]
    columns = np.stack([weights[:, 0], weights[:, 1] + weights[:, 2], weights[:, 3], weights[:, 4], weights[:, 5]], 1)
    words = np.concatenate([columns[:3], columns[3:5].mean(0, keepdims=True), columns[5:]])
    assert _numbers(page, "#matrix tbody tr:nth-child(4) td") == pytest.approx(words[3], abs=0.0051)
    assert one(page, "#focus-word").text == "sleeps", "the row stays"
    assert one(page, "#focus-exact").text.endswith(f"probability {np.exp(-0.3 - 0.4):.3f}")
    assert one(page, "#alternatives-title").text == "Most probable in place of ␣sl"
    one(page, "#tab-heads").click()
    assert len(every(page, "#heads button")) == 3
    one(page, "#tab-table").click()
    assert len(every(page, "#table tbody tr")) == 6
    one(page, "#tab-matrix").click()
    one(page, "#words").click()
    assert len(every(page, "#matrix thead th")) == 6
    example = opened([samples.alignment()])
    assert not shown(example, "#words"), "each token is a word"


def test_only_the_marks_of_a_tokenizer_are_left_out_of_the_names_of_words(opened):
    source, target = Tokens(["\u0120ermanja", "u"], marks="none"), Tokens([" un", "real", " \u010aipru"], marks="space")
    cross = AttentionMap("cross", "cross", "target", "source", samples.rows_of(3, 2, 80))
    page = opened([AttentionRecord({"source": source, "target": target}, [cross])], "#words=1")
    assert texts(page, "#matrix thead th") == ["\u0120ermanja", "u"]
    assert texts(page, "#matrix tbody th") == ["unreal", "\u010aipru"]


def sub_words_with_areas() -> AttentionRecord:
    record = samples.explained()
    extents = samples.spans(len(samples.PIECES), 2)
    areas = AreaMap(extents, samples.rows_of(7, len(extents), 81)[None])
    outputs = [
        HypothesisRecord(samples.WRITTEN, -1.0, weights=record.weights),
        HypothesisRecord(samples.WRITTEN[:3], -2.0, weights=record.weights[:3]),
    ]
    first = AttentionMap("alignment", "alignment", "target", "source", areas=areas)
    return replace(record, maps=[first, *record.maps[1:]], hypotheses=outputs)


@pytest.mark.parametrize("view", ["matrix", "flow", "table"])
def test_the_selected_cell_stays_where_views_of_tokens_and_of_words_take_turns(opened, view):
    page = opened([sub_words_with_areas()], "#view=areas&words=1&row=5")
    assert texts(page, "#step option:checked") == ["eeps"]
    one(page, f"#tab-{view}").click()
    one(page, "#tab-matrix").click()
    assert data(page, "#matrix td.on", "data-row") == ["3"]
    assert one(page, "#focus-word").text == "sleeps"
    every(page, "#matrix tbody tr:nth-child(6) td")[1].click()
    one(page, "#tab-areas").click()
    assert texts(page, "#step option:checked") == ["</s>"]
    choose(page, "#method", "alti")
    assert data(page, "#tabs [aria-selected=true]", "data-view") == ["matrix"]
    assert one(page, "#focus-word").text == "</s>"
    one(page, "#tab-beam").click()
    one(page, "#tree .node[data-depth='7']").click()
    one(page, f"#tab-{view}").click()
    one(page, "#tab-matrix").click()
    assert one(page, "#focus-word").text == "</s>"


def test_small_maps_of_all_heads_are_those_of_the_merged_words(opened):
    page = opened([samples.explained()], "#view=heads&map=2&words=1")
    script = """const pen = arguments[0].getContext('2d'), [wide, high] = [pen.canvas.width, pen.canvas.height];
                return [wide, high, ...pen.getImageData(0, 0, wide, high).data]"""
    pictures = [page.execute_script(script, canvas) for canvas in every(page, "#heads canvas")]
    assert [picture[:2] for picture in pictures] == [[5, 6]] * 3
    for head, (wide, high, *pixels) in enumerate(pictures):
        page.execute_script("document.querySelectorAll('#heads button')[arguments[0]].click()", head)
        weights = np.array(_numbers(page, "#matrix tbody td")).reshape(high, wide)
        lightness = np.array(pixels).reshape(high, wide, 4)[..., :3].sum(-1)
        assert np.corrcoef(lightness.ravel(), weights.ravel())[0, 1] < -0.9
        one(page, "#tab-heads").click()


def test_areas_stay_areas_of_tokens_while_words_are_merged(opened):
    record = samples.areas()
    pieces = ["Der", " gro", "ße", " Hund", "."]
    page = opened([replace(record, items={**record.items, "source": Tokens(pieces)})], "#view=table&words=1")
    areas = record.maps[0].areas
    assert areas is not None
    start, length = areas.extents[areas.weights[0, 2].argmax()]
    labels = Tokens(pieces).labels
    assert texts(page, "#table tbody tr:nth-child(3) td:nth-child(3) bdi")[0] == " ".join(labels[start : start + length])
    one(page, "#tab-areas").click()
    assert not shown(page, "#words")
    assert len(every(page, ".words .token")) == 5


def test_two_outputs_are_compared_where_they_agree(opened):
    source = ["a", "b", "c"]
    first = AttentionRecord.alignment(source, ["x", "y", "z"], samples.rows_of(3, 3, 70), title="one")
    second = AttentionRecord.alignment(source, ["x", "q", "r", "z"], samples.rows_of(4, 3, 71), title="other")
    page = opened([first, second], "#view=compare")
    assert len(every(page, "#one tbody tr")) == 3
    assert len(every(page, "#other tbody tr")) == 4
    assert texts(page, "#difference tbody th") == ["x", "z"]
    expected = first.weights[[0, 2]] - second.weights[[0, 3]]
    aria = [
        page.execute_script("arguments[0].dispatchEvent(new PointerEvent('pointerover', {bubbles: true})); return tip.textContent", cell)
        for cell in every(page, "#difference tbody td")
    ]
    found = [float(text.rsplit("= ", 1)[1].replace(MINUS, "-")) for text in aria]
    assert found == pytest.approx(expected.ravel(), abs=2e-6)
    assert "the 2 rows that both have, of 3 and 4" in one(page, "#distance").text


def test_models_that_read_other_tokens_stand_side_by_side_and_words_make_them_alike(opened):
    text = ("Der große Hund", "The dog")
    one_way = AttentionRecord.alignment(["Der", " gro", "ße", " Hund"], ["The", " dog"], samples.rows_of(2, 4, 72), texts=text, title="x")
    other = AttentionRecord.alignment(["Der", " große", " Hund"], ["The", " do", "g"], samples.rows_of(3, 3, 73), texts=text, title="x")
    page = opened([replace(one_way, model="small"), replace(other, model="large")], "#view=compare")
    assert [len(every(page, f"#{side} tbody tr")) for side in ("one", "other")] == [2, 3]
    assert one(page, "#no-difference").text.endswith("Whole words may be the same: see Words.")
    one(page, "#words").click()
    assert texts(page, "#difference thead th") == ["Der", "große", "Hund"]
    assert texts(page, "#difference tbody th") == ["The", "dog"]


def test_a_copied_link_opens_what_was_shown(opened, driver):
    records = [samples.alignment(), samples.explained()]
    page = opened(records, "#example=2&map=2")
    choose(page, "#head", 2)
    choose(page, "#scale", "one")
    choose(page, "#palette", "cividis")
    one(page, "#numbers").click()
    every(page, "#matrix tbody tr:nth-child(3) td")[3].click()
    one(page, "#link").click()
    assert texts(page, "#said") == ["Link copied"]
    fragment = page.execute_script("return location.hash")
    page = opened(records, fragment)
    assert page.execute_script("return location.hash").startswith("#example=2&view=matrix&map=2&head=3")
    chosen = [one(page, f"#{name}").get_attribute("value") for name in ("map", "head", "scale", "palette")]
    assert chosen == ["1", "2", "one", "cividis"]
    assert one(page, "#numbers").is_selected()
    assert (one(page, "#focus-word").text, texts(page, "#focus-exact bdi")) == ("␣dog", ["␣Hund"])
    # A link that is followed within the page, and one that leads nowhere.
    page.execute_script("location.hash = '#example=1&view=table'")
    assert (one(page, "#title").text, len(every(page, "#table tbody tr"))) == ("Additive attention", 6)
    page.execute_script("location.hash = '#example=9&view=none&map=x&head=77&row=-3&column=1e9&rival=7.7.7&scale=q&theme=x'")
    assert one(page, "#title").text == "Additive attention"
    choose(page, "#palette", "viridis")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (400, 800)])
def test_the_picture_stands_above_the_fold(opened, driver, width, height):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    records = [
        samples.explained(),
        replace(samples.transformer(), meta={"corpus": "newstest", "update": "30,000", "loss": "1.5"}),
        *samples.everything(),
    ]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = opened(records)
        bottoms = {}
        for index, record in enumerate(records):
            page.execute_script("document.querySelector(`#examples button[data-index='${arguments[0]}']`).click()", index)
            script = """const view = document.querySelector('#view').getBoundingClientRect();
                        const drawn = document.querySelector('#view table, #view svg, #view canvas, #highlights').getBoundingClientRect();
                        return [scrollY, view.top, Math.min(drawn.bottom, drawn.top + arguments[0])]"""
            scrolled, top, bottom = page.execute_script(script, height / 2)
            assert scrolled == 0
            assert top < 0.45 * height, record.title
            bottoms[record.title] = bottom
        assert {title: bottom for title, bottom in bottoms.items() if bottom > height} == {}
        assert page.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_map_below_zero_is_drawn_on_the_canvas_and_over_an_image(opened):
    effects = np.zeros((73, 61))
    effects[40, 50], effects[11, 7] = -3.0, 1.0
    items = {"source": [f"s{i}" for i in range(61)], "target": [f"t{i}" for i in range(73)]}
    found = AttentionMap("leave-one-out", "cross", "target", "source", effects, method="leave-one-out")
    image = samples.image()
    below = AttentionMap("leave-one-out", "image", "caption", "image", -image.maps[0].weights, method="leave-one-out")
    page = opened([AttentionRecord(items, [found], title="large"), replace(image, maps=[below])])
    script = """const from = document.querySelector('.big canvas'), copy = document.createElement('canvas');
                [copy.width, copy.height] = [from.width, from.height];
                const pen = copy.getContext('2d', {willReadFrequently: true}); pen.drawImage(from, 0, 0);
                const pixels = pen.getImageData(0, 0, copy.width, copy.height).data, found = new Set();
                for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] === 255) found.add(`${pixels.slice(i, i + 3)}`);
                return [...found]"""
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])))")
    colors = page.execute_script(script)
    assert "138,61,6" in colors, "the end of the arm below 0"
    assert "67,36,111" not in colors, "1 is a third of the way to the other end"
    page.execute_script("document.querySelector(\"#examples button[data-index='1']\").click()")
    one(page, "#tab-image").click()
    veils = [float(value) for value in data(page, "#overlay .cell", "fill-opacity")]
    assert set(veils) == {0.78}
    assert "in the dark: 0 or less" in one(page, ".scale").text


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "values",
    [
        *(f"palette={name}" for name in ("constructor", "__proto__")),
        *(f"{name}={value}" for name in ("head", "row", "column", "hypothesis", "map", "example") for value in ("1.5", "Infinity")),
        *(f"rival={value}" for value in ("1.1.99", "1.1.-7", "1.1.x")),
        "threshold=Infinity",
    ],
)
def test_a_link_with_impossible_values_draws_a_page_like_any_other(opened, values, place):
    records = [samples.transformer(2, 3), samples.beam(), samples.transformer(2, 3, "large", 5)]
    for view in ("compare", "flow"):
        page = opened(records, f"#example={place + 1}&view={view}&{values}")
        page.execute_script("document.getElementById('link').click()")
        assert "NaN" not in page.execute_script("return document.body.innerText + location.hash")
        assert page.execute_script("return location.hash").count(".5") == 0
