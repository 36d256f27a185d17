"""A typed sentence, two texts and a dropped image, each in a real browser: asked of this server, shown, and asked of nobody else."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification import Classifier, Entailer
from tests.serve.driver import Server, Site, hosted, serving
from tests.tasks.tiny_sentences import untrained
from tests.viewer.conftest import driver  # noqa: F401 - a fixture

DROP = """
const [name, type, data] = arguments;
const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
const carried = new DataTransfer();
carried.items.add(new File([bytes], name, { type }));
const event = new DragEvent("drop", { dataTransfer: carried, bubbles: true, cancelable: true });
document.body.dispatchEvent(event);
return event.defaultPrevented;
"""


def one(page: Any, identity: str) -> Any:
    return page.find_element(By.ID, identity)


def visit(page: Any, address: str) -> None:
    page.get("about:blank")
    page.get_log("browser")
    page.get(address)


def wait(page: Any) -> None:
    WebDriverWait(page, 60, 0.05).until(lambda page: one(page, "live").get_attribute("aria-busy") == "false")


def require_silence(page: Any, address: str) -> None:
    asked = page.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert {name for name in asked if not name.startswith("data:")} == {f"{address}attention"}
    assert page.get_log("browser") == []


@pytest.fixture(scope="module")
def captioning(tmp_path_factory: pytest.TempPathFactory, captioner_folder: Path) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server"), "--max-image", 50_000, runs=[captioner_folder]) as started:
        yield started


def test_a_typed_sentence_is_labelled_and_its_hops_shown(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    classifier = Classifier(untrained(tmp_path))
    with hosted(Site(classifier)) as address:
        visit(driver, address)
        assert [one(driver, name).is_displayed() for name in ("text", "second", "drop")] == [True, False, False]
        one(driver, "text").send_keys("the film is a joy", Keys.ENTER)
        wait(driver)
        (expected,) = classifier.classify(["the film is a joy"])
        assert expected.label in one(driver, "prediction").text
        assert "hop 3" in one(driver, "main").text
        require_silence(driver, address)


def test_a_premise_and_a_hypothesis_are_asked_about_together(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    entailer = Entailer(untrained(tmp_path, task="entailment", model={"pooling": "max"}))
    with hosted(Site(entailer)) as address:
        visit(driver, address)
        one(driver, "text").send_keys("the dog", Keys.ENTER)
        wait(driver)
        # Half of a pair is not asked about.
        assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
        one(driver, "second").send_keys("a saw", Keys.ENTER)
        wait(driver)
        (expected,) = entailer.entail([("the dog", "a saw")])
        assert expected.label in one(driver, "prediction").text
        assert "a saw" in one(driver, "main").text
        require_silence(driver, address)


def test_an_image_is_dropped_or_chosen_and_shown_with_its_caption(driver: Any, captioning: Server, captioner_folder: Path) -> None:  # noqa: F811
    address = f"http://127.0.0.1:{captioning.port}/"
    path = next(captioner_folder.parent.rglob("*.png"))
    visit(driver, address)
    assert [one(driver, name).is_displayed() for name in ("text", "second", "drop")] == [False, False, True]
    data = base64.b64encode(path.read_bytes()).decode()
    assert driver.execute_script(DROP, path.name, "image/png", data)  # the browser stays on the page
    wait(driver)
    (caption,) = Captioner.open(captioner_folder).caption([path])
    assert caption.text in one(driver, "main").text
    assert one(driver, "chosen").text == path.name
    # The picture, as the model saw it, is on the page, and the tree of the search is among the views.
    assert driver.execute_script("return document.querySelectorAll('#view [href^=\"data:image/png\"], #view img, #view canvas').length")
    assert one(driver, "tab-beam").is_displayed()
    before = len(driver.find_elements(By.CSS_SELECTOR, "#examples button"))
    one(driver, "file").send_keys(str(path))
    wait(driver)
    assert len(driver.find_elements(By.CSS_SELECTOR, "#examples button")) > before
    require_silence(driver, address)


def test_what_is_no_image_or_too_large_is_told_on_the_page(driver: Any, captioning: Server) -> None:  # noqa: F811
    visit(driver, f"http://127.0.0.1:{captioning.port}/")
    driver.execute_script(DROP, "a.png", "image/png", base64.b64encode(b"<svg onload='window.broken = 1'/>").decode())
    wait(driver)
    assert one(driver, "live-error").text.startswith("422: image: not an image, expected JPEG, PNG")
    driver.execute_script(DROP, "b.png", "image/png", base64.b64encode(b"x" * 50_001).decode())
    wait(driver)
    assert one(driver, "live-error").text == "This image has 50,001 bytes; at most 50,000 bytes can be sent."
    driver.get_log("browser")  # where the browser notes the 422
