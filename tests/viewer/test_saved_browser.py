"""Views saved as pictures from a real browser, and the pictures taken for documents."""

from __future__ import annotations

import base64
import struct
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from benchmarks.view_pictures import places, take
from regard.viewer import AttentionRecord, HypothesisRecord

pytest.importorskip("selenium", reason="selenium drives the browser")
from tests.viewer import samples
from tests.viewer.browser import one, style, texts, views

SVG = "{http://www.w3.org/2000/svg}"
# Keeps what the page hands out instead of saving it.
CATCH = """window.caught = []; const make = URL.createObjectURL;
           URL.createObjectURL = (blob) => { window.caught.push(blob); return make(blob); };
           HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };"""
READ = """const done = arguments[0], wait = () => {
              if (!window.caught.length) return setTimeout(wait, 20);
              const reader = new FileReader();
              reader.onload = () => done([window.savedAs, reader.result]);
              reader.readAsDataURL(window.caught.pop());
          }; wait();"""


def _saved(page: Any, button: str) -> tuple[str, bytes]:
    page.set_script_timeout(20)
    page.execute_script(CATCH)
    one(page, button).click()
    name, address = page.execute_async_script(READ)
    return name, base64.b64decode(address.split(",", 1)[1])


def test_every_view_is_saved_as_svg_with_what_it_shows(opened):
    records = [samples.beam(), samples.areas(), samples.image_areas(), samples.both_ways(), samples.hops(), samples.transformer(2, 3)]
    page = opened(records)
    seen = set()
    for view in views(page, len(records)):
        seen.add(view)
        name, content = _saved(page, "#save-svg")
        picture = ElementTree.fromstring(content)
        assert picture.tag == f"{SVG}svg"
        assert name.endswith(".svg")
        written = "".join("".join(text.itertext()) for text in picture.iter(f"{SVG}text"))
        for label in texts(page, "#view bdi"):
            assert view == "image" or label in written, (view, label)
        width, height = float(picture.get("width") or 0), float(picture.get("height") or 0)
        for text in picture.iter(f"{SVG}text"):
            if text.get("x") and picture.find(f".//{SVG}svg") is None:
                assert 0 <= float(text.get("x") or 0) <= width, (view, text.text)
                assert 0 <= float(text.get("y") or 0) <= height, (view, text.text)
    assert seen == {"matrix", "flow", "heads", "areas", "image", "text", "both", "beam", "compare", "table"}


def test_a_saved_matrix_has_the_colours_of_its_cells(opened):
    page = opened([samples.alignment()])
    name, content = _saved(page, "#save-svg")
    assert name == "additive-attention-matrix.svg"
    fills = [rect.get("fill") for rect in ElementTree.fromstring(content).iter(f"{SVG}rect")]
    assert [fill for fill in style(page, "#matrix tbody td", "backgroundColor") if fill not in fills] == []


@pytest.mark.parametrize("record", [samples.alignment(), samples.image_areas(), samples.large(211, 197)], ids=["table", "image", "canvas"])
def test_a_view_is_saved_as_png_with_its_colours(opened, record):
    page = opened([record])
    name, content = _saved(page, "#save-png")
    assert name.endswith(".png")
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert 300 < width < 4000
    assert 300 < height < 4000
    script = """const done = arguments[1], image = new Image();
                image.onload = () => {
                    const canvas = document.createElement('canvas'); canvas.width = image.width; canvas.height = image.height;
                    const pen = canvas.getContext('2d'); pen.drawImage(image, 0, 0);
                    const seen = new Set(), pixels = pen.getImageData(0, 0, image.width, image.height).data;
                    for (let i = 0; i < pixels.length; i += 4) seen.add(pixels[i] << 16 | pixels[i + 1] << 8 | pixels[i + 2]);
                    done(seen.size);
                }; image.src = 'data:image/png;base64,' + arguments[0];"""
    assert page.execute_async_script(script, base64.b64encode(content).decode()) > 30


@pytest.mark.parametrize("sign", ["\x0b", "\uffff", "\ud83d"])
def test_a_picture_has_no_character_that_xml_forbids(opened, sign):
    found = HypothesisRecord(["a"], -1.0, f"said{sign}so")
    page = opened([AttentionRecord({"target": ["a"]}, hypotheses=[found, found], title=f"one{sign}two")])
    picture = ElementTree.fromstring(_saved(page, "#save-svg")[1])
    assert picture.findtext(f"{SVG}title") == "one\ufffdtwo \u00b7 Regard"
    assert "said\ufffdso" in ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")]
    assert _saved(page, "#save-png")[1].startswith(b"\x89PNG")


def test_a_picture_of_each_view_can_be_taken_for_a_document(opened, driver, tmp_path):
    size = driver.get_window_size()
    opened([samples.alignment(), samples.hops(), samples.large(101, 97)])
    address = driver.current_url.split("#")[0]
    found = places(driver, address, range(3))
    assert {name: found[name] for name in ("matrix", "flow", "text")} == {"matrix": 0, "flow": 0, "text": 0}
    take(driver, f"{address}#example=2&view=text", "dark", tmp_path / "text.png")
    take(driver, f"{address}#example=3&view=matrix", "light", tmp_path / "matrix.png")
    for name in ("text.png", "matrix.png"):
        content = (tmp_path / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert struct.unpack(">II", content[16:24])[1] > 300
    driver.set_window_size(size["width"], size["height"])
