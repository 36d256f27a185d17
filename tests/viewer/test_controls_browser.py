"""Every control and key of the page in a real browser, inputs of two thousand tokens, notebooks, and the live page."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import regard
from regard.viewer import AttentionRecord, page_records, render_page

pytest.importorskip("selenium", reason="selenium drives the browser")
import itertools

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from tests.viewer import samples
from tests.viewer.browser import brightness, choose, data, every, hover, one, press, shown, style, texts, views


def test_numbers_and_the_whole_scale_can_be_asked_for(opened):
    page = opened([samples.alignment()])
    assert style(page, "#matrix tbody td", "fontSize")[0] == "0px"
    one(page, "#numbers").click()
    assert float(style(page, "#matrix tbody td", "fontSize")[0].removesuffix("px")) > 8
    before = style(page, "#matrix tbody td", "backgroundColor")[0]
    assert texts(page, ".ramped span")[-2:] != ["1.00"]
    choose(page, "#scale", "one")
    assert "1.00" in texts(page, ".ramped > span")
    assert brightness(style(page, "#matrix tbody td", "backgroundColor")[0]) > brightness(before)


def test_every_palette_grows_ever_darker_on_light_and_ever_lighter_on_dark(opened):
    weights = [[step / 10 for step in range(11)]]
    page = opened([AttentionRecord.alignment([str(step) for step in range(11)], ["x"], weights)])
    assert texts(page, "#palette option") == ["Viridis", "Cividis", "Grey"]
    seen = set()
    for palette in ("viridis", "cividis", "gray"):
        choose(page, "#palette", palette)
        for theme, sign in (("light", -1), ("dark", 1)):
            choose(page, "#theme", theme)
            colors = style(page, "#matrix tbody td", "backgroundColor")
            steps = [brightness(color) for color in colors]
            assert all(sign * (b - a) > 3 for a, b in itertools.pairwise(steps)), (palette, theme, steps)
            seen.add(tuple(colors))
    assert len(seen) == 6


def test_light_and_dark_can_be_chosen_against_the_system_and_text_stays_readable(opened):
    page = opened(samples.everything()[:2])

    def contrast(selector: str) -> float:
        ink, ground = style(page, selector, "color")[0], style(page, "html", "backgroundColor")[0]
        levels = []
        for color in (ink, ground):
            parts = [float(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
            linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
            levels.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
        return (max(levels) + 0.05) / (min(levels) + 0.05)

    for theme, light in (("dark", False), ("light", True), ("dark", False)):
        choose(page, "#theme", theme)
        assert (brightness(style(page, "html", "backgroundColor")[0]) > 128) == light
        for selector in ("h1", "#meta, .texts dt", "#tab-flow", ".scale", "footer p"):
            assert contrast(selector) > 4.5, (theme, selector)


def test_keys_reach_everything(opened):
    page = opened(samples.everything())
    press(page, "]", "]")
    assert one(page, "#title").text == "Transformer small"
    press(page, "[")
    assert one(page, "#title").text == "Transformer base"
    press(page, "3")
    assert one(page, "#tab-heads").get_attribute("aria-selected") == "true"
    press(page, "1", "h", "h")
    assert one(page, "#head").get_attribute("value") == "1"
    press(page, "m")
    assert (one(page, "#map").get_attribute("value"), one(page, "#head").get_attribute("value")) == ("1", "1")
    press(page, "H", "M")
    assert (one(page, "#map").get_attribute("value"), one(page, "#head").get_attribute("value")) == ("0", "0")
    press(page, "c")
    assert one(page, "#palette").get_attribute("value") == "cividis"
    press(page, "d", "d")
    assert one(page, "#theme").get_attribute("value") == "dark"
    press(page, "?")
    assert shown(page, "#keys")
    press(page, Keys.ESCAPE)
    # The browser closes it and gives the keyboard back to the page, each in its own time.
    WebDriverWait(page, 10, 0.05).until_not(lambda _: page.execute_script("return document.activeElement.closest('#keys')"))
    assert not shown(page, "#keys")
    press(page, "]", "]")
    assert one(page, "#title").text == "Areas of a sentence"
    press(page, "3")
    assert one(page, "#tab-areas").get_attribute("aria-selected") == "true"
    press(page, ".")
    assert one(page, "#step").get_attribute("value") == "1"
    press(page, ",")
    assert one(page, "#step").get_attribute("value") == "0"
    assert page.execute_script("return document.querySelectorAll('#tabs [tabindex=\"0\"]').length") == 1


def test_every_control_has_a_name(opened):
    page = opened(samples.everything())
    script = """const named = (node) => node.ariaLabel || node.title || node.textContent.trim() || node.labels?.[0]?.textContent.trim();
                const controls = document.querySelectorAll('button, select, input, textarea');
                return [...controls].filter((node) => !named(node)).map((node) => node.outerHTML)"""
    for view in views(page, 10):
        assert page.execute_script(script) == [], view


def test_on_paper_only_the_example_is_left_and_it_is_light(opened):
    page = opened(samples.everything()[:2])
    choose(page, "#theme", "dark")
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert [shown(page, selector) for selector in ("#shelf", ".tools", "#options", "#focus", "#tabs")] == [False] * 5
        assert shown(page, "#matrix")
        assert brightness(style(page, "html", "backgroundColor")[0]) > 200
    finally:
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert brightness(style(page, "html", "backgroundColor")[0]) < 60
    printed = page.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert base64.b64decode(printed["data"]).startswith(b"%PDF")
    assert one(page, "#theme").get_attribute("value") == "dark"


def test_two_thousand_by_two_thousand_is_drawn_and_read_without_a_stall(opened):
    record = samples.large()
    weights = record.weights
    page = opened([record])
    painted = page.execute_script("return performance.getEntriesByType('paint').at(-1)?.startTime ?? performance.now()")
    assert painted < 5000
    wait = WebDriverWait(page, 10, 0.05)
    wait.until(lambda _: page.execute_script("const c = document.querySelector('.big canvas'); return c && c.width > 300"))
    box = one(page, "#matrix")
    hover(page, box, 60, 80)
    row, column = page.execute_script(
        "return [document.getElementById('focus-word').textContent, document.querySelector('#focus-exact bdi').textContent]"
    )
    shown_weight = float(one(page, "#focus-weight").text)
    assert shown_weight == pytest.approx(float(weights[int(row[1:]), int(column[1:])]), rel=2e-3, abs=2e-6)
    assert int(row[1:]) > 100
    page.execute_script("arguments[0].focus()", box)
    press(page, "+", "+", "+")
    ActionChains(page).key_down(Keys.CONTROL).send_keys(Keys.END).key_up(Keys.CONTROL).perform()
    assert (one(page, "#focus-word").text, texts(page, "#focus-exact bdi")) == ("t1999", ["s1999"])
    assert float(one(page, "#focus-weight").text) == pytest.approx(float(weights[1999, 1999]), rel=2e-3)
    press(page, Keys.ARROW_UP, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert (one(page, "#focus-word").text, texts(page, "#focus-exact bdi")) == ("t1998", ["s1997"])
    # Scrolling draws a frame at a time, each within a moment.
    script = """const done = arguments[0], box = document.getElementById('matrix'), times = [];
                let last = performance.now(), left = 30;
                const step = () => {
                    const now = performance.now(); times.push(now - last); last = now;
                    box.scrollTop -= 40; box.scrollLeft -= 25;
                    if (left--) requestAnimationFrame(step); else done(times.sort((a, b) => a - b)[Math.floor(times.length / 2)]);
                }; requestAnimationFrame(step);"""
    page.set_script_timeout(20)
    assert page.execute_async_script(script) < 250
    assert "kept to 3 digits" in one(page, ".ramped").text


def test_the_canvas_shows_the_weights_where_they_are_at_any_size_and_scrolled(opened):
    weights = [[0.0] * 101 for _ in range(97)]
    weights[41][73] = 1.0
    page = opened([AttentionRecord.alignment([f"s{i}" for i in range(101)], [f"t{i}" for i in range(97)], weights)])
    # Reads a copy: a canvas that is read twice would be moved off the graphics card, with a warning.
    find = """const from = document.querySelector('.big canvas'), copy = document.createElement('canvas');
              [copy.width, copy.height] = [from.width, from.height];
              const pen = copy.getContext('2d', {willReadFrequently: true}); pen.drawImage(from, 0, 0);
              const pixels = pen.getImageData(0, 0, copy.width, copy.height).data, found = [];
              const violet = (i) => pixels[i] < 70 && pixels[i + 1] < 50 && pixels[i + 2] > 80 && pixels[i + 3] === 255;
              for (let i = 0; i < pixels.length; i += 4) if (violet(i)) found.push([(i / 4) % copy.width, Math.floor(i / 4 / copy.width)]);
              return found"""
    aim = """const box = document.getElementById('matrix'), frame = box.getBoundingClientRect();
             const place = {clientX: frame.left + arguments[0], clientY: frame.top + arguments[1], bubbles: true};
             box.dispatchEvent(new PointerEvent('pointermove', place)); return [box.scrollLeft, box.scrollTop]"""
    frames = "requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(arguments[0])))"
    areas = []
    for larger in (0, 2, 1):
        page.execute_script("document.getElementById('matrix').focus()")
        press(page, *["+"] * larger)
        page.execute_async_script(frames)
        found = page.execute_script(find)
        scrolled = page.execute_script(aim, *found[len(found) // 2])
        assert (one(page, "#focus-word").text, one(page, "#focus-weight").text) == ("t41", "1")
        areas.append(len(found))
    assert areas == sorted(set(areas))
    assert min(scrolled) > 0


def test_a_narrow_window_needs_no_sideways_scrolling(opened, driver):
    size = driver.get_window_size()
    try:
        driver.set_window_size(520, 900)
        page = opened(samples.everything())
        for view in views(page, 10):
            assert page.execute_script("return document.documentElement.scrollWidth - innerWidth") <= 0, view
    finally:
        driver.set_window_size(size["width"], size["height"])


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(driver, tmp_path):
    frame = regard.view([samples.alignment(), samples.hops()])._repr_html_()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8><p>cell</p>{frame}", encoding="utf-8")
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get((tmp_path / "notebook.html").as_uri())
    driver.switch_to.frame(one(driver, "iframe"))
    WebDriverWait(driver, 20).until(lambda page: every(page, "#matrix tbody td"))  # its script is unpacked first
    assert len(every(driver, "#matrix tbody td")) == 30
    page_title = one(driver, "#title").text
    one(driver, "#tab-table").click()
    assert (page_title, len(every(driver, "#table tbody tr"))) == ("Additive attention", 6)
    driver.switch_to.default_content()
    assert driver.get_log("browser") == []


class _Answers(BaseHTTPRequestHandler):
    """Gives the live page, and answers what it asks; keeps every request."""

    asked: list[tuple[str, str, bytes]]

    def do_GET(self) -> None:
        self.asked.append(("GET", self.path, b""))
        self._send(
            200, "text/html; charset=utf-8", render_page([], live=True, models=["small", "large"], methods=["alti", "rollout"]).encode()
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append(("POST", self.path, body))
        asked = json.loads(body)
        if asked["text"] == "too long":
            return self._send(413, "application/json", json.dumps({"error": "at most <b>100</b> tokens"}).encode())
        if asked["text"] == "broken":
            return self._send(500, "text/plain", b"oh")
        words = asked["text"].split()
        weights = [[1.0 if row == column else 0.0 for column in range(len(words))] for row in range(len(words))]
        written, title = words[::-1] if asked["model"] else words, f"{asked['text']} by {asked['model']}"
        record = AttentionRecord.alignment(words, written, weights, texts=(asked["text"], " ".join(written)), title=title)
        return self._send(200, "application/json", json.dumps({"records": page_records([record])}).encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[str, str, bytes]]]]:
    asked: list[tuple[str, str, bytes]] = []
    serving = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"asked": asked}))
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{serving.server_address[1]}/", asked
    serving.shutdown()
    serving.server_close()
    thread.join()


def test_typed_text_is_asked_of_the_server_and_its_answer_shown(driver, server):
    address, asked = server
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get(address)
    wait = WebDriverWait(driver, 10, 0.05)
    assert "Type a text" in one(driver, "#view").text
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]})
    wait.until(lambda _: brightness(style(driver, "html", "backgroundColor")[0]) < 60)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert texts(driver, "#model option") == ["small", "large"]
    one(driver, "#text").send_keys("eins zwei drei", Keys.ENTER)
    wait.until(lambda _: one(driver, "#title").text == "eins zwei drei by 0")
    assert len(every(driver, "#matrix tbody td")) == 9
    choose(driver, "#model", 1)
    choose(driver, "#against", 0)
    assert texts(driver, "#explain option") == ["attention alone", "alti", "rollout"]
    choose(driver, "#explain", "alti")
    one(driver, "#text").clear()
    one(driver, "#text").send_keys("vier fünf")
    one(driver, "#ask").click()
    wait.until(lambda _: one(driver, "#title").text == "vier fünf by 1")
    assert [button.text.split("\n")[0] for button in every(driver, "#examples button")] == [
        "vier fünf by 1",
        "vier fünf by 0",
        "eins zwei drei by 0",
    ]
    one(driver, "#tab-compare").click()
    assert texts(driver, "#rival option:checked") == ["vier fünf by 0 · alignment"]
    assert [json.loads(body) for method, _, body in asked if method == "POST"] == [
        {"text": "eins zwei drei", "model": 0},
        {"text": "vier fünf", "model": 1, "method": "alti"},
        {"text": "vier fünf", "model": 0, "method": "alti"},
    ]
    assert {path for _, path, _ in asked} == {"/", "/attention"}
    assert driver.get_log("browser") == []


def test_what_the_server_refuses_is_said_as_text(driver, server):
    address, _ = server
    driver.get(address)
    wait = WebDriverWait(driver, 10, 0.05)
    for text, message in (("too long", "413: at most <b>100</b> tokens"), ("broken", "500: Internal Server Error")):
        one(driver, "#text").clear()
        one(driver, "#text").send_keys(text, Keys.ENTER)
        wait.until(lambda _, message=message: one(driver, "#live-error").text == message)
    assert not every(driver, "#live-error b")
    driver.execute_script("globalThis.fetch = () => Promise.reject(new TypeError())")
    one(driver, "#text").send_keys(Keys.ENTER)
    wait.until(lambda _: one(driver, "#live-error").text == "The server does not answer.")
    assert data(driver, "#live", "aria-busy") == ["false"]
    driver.get_log("browser")


def test_a_text_without_a_word_is_asked_with_the_same_forced_words(driver, server):
    address, asked = server
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get(address)
    wait = WebDriverWait(driver, 10, 0.05)
    one(driver, "#text").send_keys("fünf sechs sieben")
    driver.execute_script("prefix.value = 'acht'; terms.value = 'sechs = six'; document.getElementById('keep-tags').checked = true")
    one(driver, "#ask").click()
    wait.until(lambda _: every(driver, ".leave"))
    choose(driver, "#terms", "neun = nine")  # typed, but not asked yet
    every(driver, ".leave")[2].click()
    wait.until(lambda _: every(driver, "#without .look"))
    one(driver, "#without .look").click()
    every(driver, ".leave")[0].click()
    wait.until(lambda _: every(driver, "#without .look"))
    forced = {"model": 0, "prefix": "acht", "terms": [{"source": "sechs", "target": "six"}], "keep_tags": True}
    bodies = [json.loads(body) for method, _, body in asked if method == "POST"]
    assert bodies == [{"text": text, **forced} for text in ("fünf sechs sieben", "fünf sechs", "sechs")]
    assert driver.get_log("browser") == []


def test_a_link_with_one_input_of_two_is_asked(driver, tmp_path):
    page = tmp_path / "page.html"
    page.write_text(render_page([], live=True, models=["one"], task="two inputs"), encoding="utf-8")
    for text, second in (("", "zehn"), ("elf", "")):
        driver.get("about:blank")
        driver.get(f"{page.as_uri()}#text={text}&second={second}&model=0")
        WebDriverWait(driver, 10, 0.05).until(lambda _: one(driver, "#live-error").text == "The server does not answer.")
        assert [one(driver, f"#{name}").get_attribute("value") for name in ("text", "second")] == [text, second]
        assert (driver.title, one(driver, "#title").text) == ("one · Regard", "one")
    driver.get_log("browser")
