"""The page in a real browser, from a file, without a network."""

from __future__ import annotations

from typing import Any

import pytest

from regard.viewer import AttentionMap, AttentionRecord, HypothesisRecord, PredictionRecord, Tokens, render_page, save_page

pytest.importorskip("selenium", reason="selenium drives the browser")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.viewer.browser import choose, every, one, press, tabs, texts

HOSTILE = ["</script><script>window.broken = 1</script>", "<img src=x onerror='window.broken = 1'>", "<!--", "\u2028", "\u202eevil", ""]
MARKUP = HOSTILE[0]
WEIGHTS = [[0.7, 0.2, 0.1], [0.0, 0.123456, 0.876544]]
RECORDS = [
    AttentionRecord.alignment(
        ["das", " Haus", "."], ["the", " house"], WEIGHTS, title="first", texts=("das Haus.", ""), scores=[-0.1, -0.2]
    ),
    AttentionRecord(
        {MARKUP: Tokens(HOSTILE, MARKUP), "target": HOSTILE[:5]},
        [AttentionMap(MARKUP, "alignment", "target", MARKUP, [[[1 / 6] * 6] * 5] * 2, heads=HOSTILE[:2])],
        hypotheses=[
            HypothesisRecord(HOSTILE, -1, MARKUP, key=MARKUP, weights=[[1 / 6] * 6] * 6),
            HypothesisRecord(HOSTILE[1:], -2, MARKUP),
        ],
        prediction=PredictionRecord(MARKUP, {MARKUP: 0.5}),
        title="<b>hostile</b>",
        model=MARKUP,
        meta={"<i>": "</dl>"},
    ),
    AttentionRecord.alignment(["שלום", "عالم"], ["x"], [[0.25, 0.75]], title="right to left", texts=("שלום عالم", "")),
    AttentionRecord.alignment(["a"], [], [], title="nothing written"),
    AttentionRecord.alignment([f"s{i}" for i in range(61)], [f"t{i}" for i in range(53)], [[1 / 61] * 61] * 53, title="long"),
]


@pytest.fixture
def page(opened) -> Any:
    return opened(RECORDS)


def _choose(driver, index: int) -> None:
    one(driver, f"#examples button[data-index='{index}']").click()


def _weight(driver) -> str:
    return one(driver, "#focus-weight").text


def test_the_matrix_has_a_cell_for_each_weight_and_names_both_sides(page):
    assert len(every(page, "#matrix tbody td")) == 6
    assert [head.text for head in every(page, "#matrix thead th")] == ["das", "␣Haus", "."]
    assert [head.text for head in every(page, "#matrix tbody th")] == ["the", "␣house"]
    colors = [cell.value_of_css_property("background-color") for cell in every(page, "#matrix tbody td")]
    assert len(set(colors)) == 6
    assert page.title == "first · Regard"


def test_hovering_a_cell_shows_its_exact_weight(page):
    cells = every(page, "#matrix tbody td")
    ActionChains(page, duration=0).move_to_element(cells[4]).perform()
    tip = one(page, "#tip")
    assert tip.is_displayed()
    assert tip.text.split() == ["␣house", "←", "␣Haus", "0.123456"]
    assert _weight(page) == "0.123456"
    ActionChains(page, duration=0).move_to_element(one(page, "#title")).perform()
    assert not tip.is_displayed()


def test_arrow_keys_move_the_focused_cell_and_stop_at_the_edges(page):
    every(page, "#matrix tbody td")[0].click()
    seen = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.END, Keys.HOME, Keys.ARROW_LEFT, Keys.ARROW_UP):
        page.switch_to.active_element.send_keys(key)
        seen.append(_weight(page))
    assert seen == ["0.2", "0.123456", "0.123456", "0.876544", "0", "0", "0.7"]
    active = page.switch_to.active_element
    assert active.get_attribute("aria-label") == "the, from das: 0.7"
    assert len(every(page, "#matrix td[tabindex='0']")) == 1


def test_the_search_narrows_the_list_and_a_click_chooses(page):
    assert len(every(page, "#examples button")) == len(RECORDS)
    page.switch_to.active_element.send_keys("/")
    assert page.switch_to.active_element.get_attribute("id") == "search"
    page.switch_to.active_element.send_keys("LEFT right")
    assert [button.get_attribute("data-index") for button in every(page, "#examples button")] == ["2"]
    assert one(page, "#found").text == "1 of 5 found"
    press(page, Keys.ARROW_DOWN, Keys.ENTER)
    assert one(page, "#title").text == "right to left"


def test_the_flow_draws_a_line_for_each_weight_above_the_threshold(page):
    one(page, "#tab-flow").click()
    links = {(path.get_attribute("data-target"), path.get_attribute("data-source")) for path in every(page, "#links path")}
    assert links == {("0", "0"), ("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")}
    choose(page, "#threshold", 0.5)
    assert len(every(page, "#links path")) == 2
    assert one(page, "#shown").text == "2 of 6 links shown"
    widths = {path.get_attribute("data-target"): float(path.get_attribute("stroke-width")) for path in every(page, "#links path")}
    assert widths["1"] > widths["0"]
    ActionChains(page, duration=0).move_to_element(one(page, "#flow button[data-side=target][data-at='1']")).perform()
    assert [path.get_attribute("data-target") for path in every(page, "#links path.lit")] == ["1"]
    assert one(page, "#focus-word").text == "␣house"


def test_the_table_says_the_same_in_words(page):
    one(page, "#tab-matrix").send_keys(Keys.ARROW_LEFT)
    rows = [row.text for row in every(page, "#table tbody tr")]
    assert rows == ["the 0.905 das 0.700 ␣Haus 0.200 . 0.100 1.16 bits", "␣house 0.819 . 0.877 ␣Haus 0.123 0.54 bits"]
    assert page.switch_to.active_element.get_attribute("id") == "tab-table"


def test_hostile_tokens_are_shown_as_text(page):
    before = page.execute_script("return document.scripts.length")
    _choose(page, 1)
    assert tabs(page) == ["matrix", "flow", "heads", "text", "beam", "compare", "table"]
    for view in tabs(page):
        one(page, f"#tab-{view}").click()
        assert one(page, "#title").text == "<b>hostile</b>"
        assert view == "heads" or "</script><script>window.broken␣=␣1</script>" in page.execute_script(
            "return document.getElementById('view').textContent"
        )
        assert not every(page, "#main img, #main b b, #view script, dl i")
    assert MARKUP in texts(page, "#prediction .word")[0]
    assert page.execute_script("return document.scripts.length") == before == 2


def test_right_to_left_words_keep_their_own_direction(page):
    _choose(page, 2)
    heads = every(page, "#matrix thead th bdi")
    assert [head.value_of_css_property("direction") for head in heads] == ["rtl", "rtl"]
    assert one(page, "#texts dd").value_of_css_property("direction") == "rtl"
    assert one(page, "#inline").value_of_css_property("direction") == "rtl"
    assert one(page, "#matrix tbody th bdi").value_of_css_property("direction") == "ltr"


def test_a_record_without_target_tokens_says_so_in_every_view(page):
    _choose(page, 3)
    assert tabs(page) == ["matrix", "table"]
    for view in tabs(page):
        one(page, f"#tab-{view}").click()
        assert "no target tokens" in one(page, "#view").text
        assert not one(page, "#focus").is_displayed()


def test_a_long_example_is_drawn_whole_and_far_cells_scroll_into_sight(page):
    _choose(page, 4)
    assert len(every(page, "#matrix tbody td")) == 61 * 53
    page.execute_script("document.querySelector('#matrix td[tabindex=\"0\"]').focus()")
    page.switch_to.active_element.send_keys(Keys.CONTROL, Keys.END)
    inside = """const cell = document.activeElement.getBoundingClientRect();
                const box = document.querySelector('.scroll').getBoundingClientRect();
                return cell.right <= box.right + 1 && cell.bottom <= box.bottom + 1 && cell.left >= box.left"""
    assert page.switch_to.active_element.get_attribute("aria-label").startswith("t52, from s60")
    assert page.execute_script(inside)


def test_a_reload_comes_back_to_the_same_example_and_view(page):
    _choose(page, 2)
    one(page, "#tab-table").click()
    page.refresh()
    assert one(page, "#title").text == "right to left"
    assert one(page, "#tab-table").get_attribute("aria-selected") == "true"


def test_the_dark_page_is_dark_and_keeps_small_weights_near_its_ground(page):
    def sum_of(selector: str) -> int:
        script = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor.match(/\\d+/g).map(Number)"
        return sum(page.execute_script(script, selector)[:3])

    first, zero = "#matrix tbody tr:nth-child(1) td:nth-child(2)", "#matrix tbody tr:nth-child(2) td:nth-child(2)"
    assert sum_of("html") > 650
    assert sum_of(zero) > sum_of(first)
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    try:
        WebDriverWait(page, 5, 0.05).until(lambda _: sum_of("html") < 120 and sum_of(zero) < sum_of(first))
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_note_stands_on_the_page(page):
    assert "Weights are not explanations." in one(page, "footer").text


def test_one_record_needs_no_list_and_no_record_is_said(driver, tmp_path):
    save_page(RECORDS[:1], tmp_path / "one.html")
    driver.get((tmp_path / "one.html").as_uri())
    assert not one(driver, "#shelf").is_displayed()
    assert len(every(driver, "#matrix tbody td")) == 6
    (tmp_path / "none.html").write_text(render_page([]), encoding="utf-8")
    driver.get((tmp_path / "none.html").as_uri())
    assert one(driver, "#view").text == "This page holds no examples."


def test_the_policy_stops_requests_and_foreign_scripts(driver, tmp_path):
    save_page(RECORDS[:1], tmp_path / "page.html")
    driver.get((tmp_path / "page.html").as_uri())
    script = """const done = arguments[0], stopped = [];
        document.addEventListener('securitypolicyviolation', (event) => {
            stopped.push(event.effectiveDirective);
            if (stopped.length === 3) done(stopped.sort());
        });
        fetch('http://127.0.0.1:9/').catch(() => 0);
        const picture = new Image(); picture.src = 'http://127.0.0.1:9/a.png';
        const foreign = document.createElement('script'); foreign.textContent = 'window.broken = 1'; document.body.append(foreign);"""
    driver.set_script_timeout(5)
    assert driver.execute_async_script(script) == ["connect-src", "img-src", "script-src-elem"]
    assert driver.execute_script("return window.broken") is None


def test_the_page_opens_with_the_main_map_and_the_mean_of_its_heads(opened):
    words = ["a", "b", "c"]
    own = AttentionMap("self 1", "self", "text", "text", [[[1.0, 0.0, 0.0]] * 3] * 2)
    cross = AttentionMap("cross 1", "cross", "text", "text", [[[0.0, 1.0, 0.0]] * 3] * 2)
    page = opened([AttentionRecord({"text": words}, [own, cross])])
    assert texts(page, "#map option:checked") == ["cross 1"]
    assert texts(page, "#head option:checked") == ["mean of 2"]
    choose(page, "#map", 0)
    assert texts(page, "#map option:checked") == ["self 1"]
