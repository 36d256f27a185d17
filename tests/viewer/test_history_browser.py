"""The slider over the updates of a training, in a real browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from regard.viewer import AttentionMap, AttentionRecord, Grid, Tokens, TrainingPoint
from tests.viewer import samples
from tests.viewer.test_history import trained

pytest.importorskip("selenium", reason="selenium drives the browser")
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.viewer.browser import brightness, choose, data, every, one, press, shown, style, texts


def said(page: Any) -> str:
    return one(page, "#update-value").text


def test_an_example_opens_at_its_last_update_and_the_slider_goes_back(opened):
    page = opened(trained(5))
    assert said(page) == "update 400 · validation loss 1.5"
    assert one(page, "#update").get_attribute("value") == "4"
    sharp = [brightness(color) for color in style(page, "#matrix tbody td", "backgroundColor")]
    choose(page, "#update", 0)
    assert said(page) == "update 0 · validation loss not measured"
    even = [brightness(color) for color in style(page, "#matrix tbody td", "backgroundColor")]
    assert max(even) - min(even) < 1, "before training every weight is the same"
    assert min(sharp) < min(even) < max(sharp), "the colours are those of all updates"
    assert data(page, "#update", "aria-valuetext") == ["update 0, validation loss not measured"]


def test_the_keyboard_is_enough(opened):
    page = opened(trained(5))
    slider = one(page, "#update")
    slider.send_keys(Keys.ARROW_LEFT)
    assert said(page) == "update 300 · validation loss 2.5"
    slider.send_keys(Keys.HOME)
    assert said(page).startswith("update 0 ")
    assert page.switch_to.active_element.get_attribute("id") == "update", "drawing leaves the focus where it is"
    slider.send_keys(Keys.END)
    assert said(page).startswith("update 400 ")
    press(page, "U")
    assert said(page).startswith("update 300 ")
    press(page, "u", "u", "u")
    assert said(page).startswith("update 400 ")
    assert data(page, "#update", "aria-valuetext") == ["update 400, validation loss 1.5"]


def test_map_head_and_view_stay_while_the_update_changes(opened):
    page = opened([replace(samples.transformer(), point=TrainingPoint(update, 1.0)) for update in (0, 10, 20)])
    choose(page, "#map", 2)
    choose(page, "#head", 1)
    one(page, "#tab-flow").click()
    before = [one(page, name).get_attribute("value") for name in ("#map", "#head")]
    assert before == ["2", "1"]
    choose(page, "#update", 0)
    assert [one(page, name).get_attribute("value") for name in ("#map", "#head")] == before
    assert data(page, "[role=tab][aria-selected=true]", "data-view") == ["flow"]


def test_the_curve_marks_the_update_at_hand(opened):
    page = opened(trained(5))
    assert shown(page, "#curve")
    assert data(page, "#curve", "aria-label") == ["Validation loss from 4.5 to 1.5, lowest 1.5"]
    last = float(data(page, "#curve .now", "x1")[0])
    choose(page, "#update", 2)
    assert 0 < float(data(page, "#curve .now", "x1")[0]) < last
    assert len(every(page, "#curve circle")) == 1
    choose(page, "#update", 0)
    assert every(page, "#curve circle") == [], "no loss was measured before training"


def test_playing_ends_at_the_last_update_and_stops_when_asked(opened):
    page = opened(trained(3))
    play = one(page, "#play")
    play.click()
    assert (play.text, play.get_attribute("aria-pressed")) == ("Pause", "true")
    WebDriverWait(page, 10).until(lambda _: play.text == "Play")
    assert said(page).startswith("update 200 ")
    press(page, "p")
    assert play.text == "Pause"
    press(page, "p")
    assert play.text == "Play"


def test_the_list_holds_each_example_once_and_others_have_no_slider(opened):
    page = opened([*trained(3, title="one"), *trained(2, title="two"), samples.alignment()])
    assert texts(page, "#found") == ["3 examples"]
    assert texts(page, "#examples b")[:2] == ["one", "two"]
    assert data(page, "#examples button", "aria-current") == ["true", "false", "false"]
    choose(page, "#update", 0)
    assert data(page, "#examples button", "aria-current") == ["true", "false", "false"]
    press(page, "]")
    assert (one(page, "#title").text, said(page)) == ("two", "update 100 · validation loss 4.5")
    press(page, "]")
    assert not shown(page, "#history")
    press(page, "[", "[")
    assert one(page, "#title").text == "one"
    assert shown(page, "#history")


def test_two_updates_can_be_compared(opened):
    page = opened(trained(3))
    one(page, "#tab-compare").click()
    assert len(every(page, "#rival option")) == 2
    choose(page, "#rival", "0:0")
    assert [text.split(" · ")[-2] for text in texts(page, ".pair h3")[:2]] == ["update 200", "update 0"]


def test_an_image_is_stored_once_and_drawn_at_every_update(opened, tmp_path):
    image = samples.picture(60, 40)
    records = []
    for update in (0, 5, 9):
        items = {"image": Grid(2, 3, image, (60, 40)), "caption": Tokens(["a", "disc"])}
        found = AttentionMap("image", "image", "caption", "image", samples.rows_of(2, 6, update))
        records.append(AttentionRecord(items, [found], title="validation image 1", point=TrainingPoint(update, 3.0)))
    page = opened(records)
    assert (tmp_path / "page.html").read_text().count(image) == 1
    for at in (0, 1, 2):
        choose(page, "#update", at)
        assert data(page, "[role=tab][aria-selected=true]", "data-view") == ["image"]
        assert image in page.execute_script("return document.getElementById('view').innerHTML")


def test_an_address_names_the_update(opened):
    page = opened(trained(4), "#example=2&view=matrix&map=1&head=0")
    assert said(page).startswith("update 100 ")
    choose(page, "#update", 3)
    assert "example=4" in page.current_url
