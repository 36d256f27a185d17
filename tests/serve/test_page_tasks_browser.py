"""A typed sentence, two texts and a dropped image, each in a real browser: asked of this server, shown, and asked of nobody else."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from regard.tasks.captioning_prediction import Captioner
from regard.tasks.classification_prediction import Classifier, Entailer
from regard.tasks.forced_text import Glossary, Term
from regard.tasks.translation_prediction import Translator
from tests.serve.driver import Server, Site, hosted, serving
from tests.tasks.tiny import TEXTS, trained, translator
from tests.tasks.tiny_sentences import untrained
from tests.viewer.browser import choose, texts
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
    assert one(driver, "file").get_attribute("value") == ""
    # The picture, as the model saw it, is on the page, and the tree of the search is among the views.
    assert driver.execute_script("return document.querySelectorAll('#view [href^=\"data:image/png\"], #view img, #view canvas').length")
    assert one(driver, "tab-beam").is_displayed()
    before = len(driver.find_elements(By.CSS_SELECTOR, "#examples button"))
    one(driver, "file").send_keys(str(path))
    wait(driver)
    assert one(driver, "chosen").text == ""  # the browser's field names the file
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


def test_a_word_is_left_out_by_a_click_and_what_the_model_says_then_is_told(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    entailer = Entailer(untrained(tmp_path, task="entailment", model={"pooling": "max"}))
    with hosted(Site(entailer)) as address:
        visit(driver, address)
        one(driver, "text").send_keys("the dog, sees")
        one(driver, "second").send_keys("a saw", Keys.ENTER)
        wait(driver)
        words = driver.find_elements(By.CSS_SELECTOR, ".leave")
        assert [word.text for word in words] == ["the", "dog", "sees", "a", "saw"]
        assert one(driver, "without").is_displayed() is False
        words[1].click()
        wait_for(driver, "#without .look")
        probabilities = [
            found.to_json()["probabilities"] for found in entailer.entail([("the dog, sees", "a saw"), ("the, sees", "a saw")])
        ]
        said = [f"{max(each, key=each.get)} {max(each.values()):.3f}" for each in probabilities]
        lines = [line.text for line in driver.find_elements(By.CSS_SELECTOR, "#without li")]
        assert lines == [f"with every word: {said[0]}", f"without dog: {said[1]} Show"]
        driver.find_element(By.CSS_SELECTOR, "#without .look").click()
        assert "the, sees" in one(driver, "texts").text
        assert not one(driver, "without").is_displayed()
        driver.find_element(By.CSS_SELECTOR, ".leave[data-items=hypothesis]").click()
        wait_for(driver, "#without .look")
        driver.find_element(By.CSS_SELECTOR, "#without .look").click()
        driver.find_element(By.CSS_SELECTOR, ".leave[data-items=hypothesis]").click()
        assert driver.find_element(By.CSS_SELECTOR, "#without li:last-child").text == "without saw: nothing is left to read"
        require_silence(driver, address)


def wait_for(page: Any, selector: str) -> None:
    WebDriverWait(page, 60, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, selector))


def test_a_translation_without_a_word_marks_what_is_new_in_it(driver: Any) -> None:  # noqa: F811
    found = translator()
    with hosted(Site(found)) as address:
        visit(driver, address)
        one(driver, "text").send_keys(TEXTS[1], Keys.ENTER)
        wait(driver)
        driver.find_elements(By.CSS_SELECTOR, ".leave")[1].click()
        wait_for(driver, "#without .look")
        words = TEXTS[1].split()
        shorter = " ".join([words[0], *words[2:]])
        expected = found.translate([shorter])[0].text
        assert driver.find_element(By.CSS_SELECTOR, "#without li:last-child bdi:nth-of-type(2)").text == expected
        # Tokens that could have been written instead stand beside each.
        driver.find_element(By.ID, "tab-matrix").click()
        assert len(driver.find_elements(By.CSS_SELECTOR, "#alternatives li")) == 5
        require_silence(driver, address)


def target_of(page: Any) -> str:
    return page.execute_script("return [...document.querySelectorAll('#texts dd')].at(-1).textContent")


@pytest.mark.parametrize("kind", ["character", "bpe", "word"])
def test_a_click_on_a_word_of_the_translation_keeps_what_comes_before_and_the_rest_changes(driver: Any, kind: str) -> None:  # noqa: F811
    found = translator(kind)
    with hosted(Site(found)) as address:
        visit(driver, address)
        one(driver, "text").send_keys(TEXTS[1])
        one(driver, "terms").send_keys("Hund = bellt; ein Haus=Haus Häuser", Keys.ENTER)
        wait(driver)
        terms = Glossary([Term("Hund", "bellt"), Term("ein Haus", "Haus Häuser")])
        (first,) = found.translate([TEXTS[1]], terms=terms)
        assert target_of(driver) == first.text
        words = driver.find_elements(By.CSS_SELECTOR, ".accept")
        word = next(word for word in words if word.text == "bellt")
        accepted = first.text[: int(word.get_attribute("data-end"))]
        assert accepted.endswith("bellt")
        one(driver, "terms").clear()
        word.click()
        wait(driver)
        (second,) = found.translate([TEXTS[1]], prefixes=[accepted])
        assert one(driver, "prefix").get_attribute("value") == accepted
        assert target_of(driver) == second.text
        assert second.text.startswith(accepted)
        assert second.text != first.text
        fresh = driver.find_elements(By.CSS_SELECTOR, ".fresh")
        assert fresh
        assert all(int(word.get_attribute("data-end")) > len(accepted) for word in fresh)
        # A changed prefix is sent as it is typed.
        one(driver, "prefix").clear()
        one(driver, "prefix").send_keys("Häu", Keys.ENTER)
        wait(driver)
        assert target_of(driver).startswith("Häu") or kind == "word"
        # Another text has no prefix.
        one(driver, "text").send_keys(" x")
        assert one(driver, "prefix").get_attribute("value") == ""
        require_silence(driver, address)


def without_words(driver: Any, *numbers: int) -> list[dict[str, Any]]:  # noqa: F811
    """Leave out words of the input one after the other; return what is asked for each."""
    driver.execute_script(
        "globalThis.asked = []; const plain = fetch; globalThis.fetch = (...a) => (globalThis.asked.push(a[1].body), plain(...a))"
    )
    for done, number in enumerate(numbers, 1):
        driver.find_elements(By.CSS_SELECTOR, ".leave")[number].click()
        WebDriverWait(driver, 60, 0.05).until(
            lambda page, done=done: len(page.find_elements(By.CSS_SELECTOR, "#without .look, #without .error")) == done
        )
    return [json.loads(body) for body in driver.execute_script("return globalThis.asked")]


@pytest.mark.parametrize("text", ["ein <b>Hund</b> bellt", "ein <b Hund bellt Hund x> Hund"])
def test_what_looks_like_a_tag_is_text_where_tags_are_not_kept(driver: Any, text: str) -> None:  # noqa: F811
    with hosted(Site(translator("word"))) as address:
        visit(driver, address)
        one(driver, "text").send_keys(text, Keys.ENTER)
        wait(driver)
        words = [word.text for word in driver.find_elements(By.CSS_SELECTOR, ".leave")]
        bodies = without_words(driver, *range(len(words)))
        assert len(bodies) == len(words)
        for number, (word, body) in enumerate(zip(words, bodies, strict=True)):
            place = -1
            for each in words[: number + 1]:
                place = text.index(each, place + 1)
            assert body["text"].split() == (text[:place] + text[place + len(word) :]).split()


def test_unsure_words_are_marked_and_what_cannot_be_placed_is_told(driver: Any) -> None:  # noqa: F811
    found = translator("word")
    with hosted(Site(found)) as address:
        visit(driver, address)
        one(driver, "text").send_keys("ein <b>Hund</b> bellt 5")
        one(driver, "keep-tags").click()
        one(driver, "terms").send_keys("Hund = Zebra", Keys.ENTER)
        wait(driver)
        (item,) = found.translate(["ein Hund bellt 5"])
        chances = [math.exp(value) for value in item.hypotheses[0].log_probs]
        words = driver.find_elements(By.CSS_SELECTOR, ".accept")
        written = [(word, chance) for word, chance in zip(item.text.split(), chances, strict=False) if word != "?"]
        assert [word.text for word in words] == [word for word, _ in written]
        marked = ["unsure" in word.get_attribute("class").split() for word in words]
        assert marked == [chance < 0.5 for _, chance in written]
        assert True in marked
        told = one(driver, "meta").text
        assert "could not be placed\nZebra" in told
        assert found.translate_tagged(["ein <b>Hund</b> bellt 5"])[0].text == target_of(driver)
        bodies = without_words(driver, 1, 0)  # "Hund", within the tags, and "ein", before them
        assert [body["text"] for body in bodies] == ["ein <b></b> bellt 5", "<b>Hund</b> bellt 5"]
        assert all(body["keep_tags"] for body in bodies)
        one(driver, "link").click()
        linked = driver.execute_script("return location.href")
        visit(driver, linked)
        wait_for(driver, ".accept")
        assert [one(driver, name).get_attribute("value") for name in ("text", "terms")] == ["ein <b>Hund</b> bellt 5", "Hund = Zebra"]
        assert "Zebra" in one(driver, "meta").text
        one(driver, "terms").send_keys("; Hund", Keys.ENTER)
        wait(driver)
        assert one(driver, "live-error").text == "Terms: expected a term, = and its translation, found “Hund”."
        require_silence(driver, address)


def test_an_empty_page_offers_examples_of_the_run(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    folder = trained(tmp_path)
    with hosted(Site(Translator.open(folder), examples=2)) as address:
        visit(driver, address)
        offered = [button.text for button in driver.find_elements(By.CSS_SELECTOR, "#starts button")]
        assert offered == [line for line in (tmp_path / "source").read_text().splitlines() if len(line.split()) > 2][:2]
        driver.find_element(By.CSS_SELECTOR, "#starts li:nth-child(2) button").click()
        wait(driver)
        assert one(driver, "text").get_attribute("value") == offered[1]
        assert offered[1] in one(driver, "texts").text
        require_silence(driver, address)


def test_an_image_of_the_run_can_be_started_from(driver: Any, captioner_folder: Path) -> None:  # noqa: F811
    captioner = Captioner.open(captioner_folder)
    with hosted(Site(captioner, examples=1)) as address:
        visit(driver, address)
        driver.find_element(By.CSS_SELECTOR, "#starts button").click()
        wait(driver)
        assert one(driver, "tab-image").is_displayed()
        assert not one(driver, "link").is_displayed(), "an address does not hold an image"
        require_silence(driver, address)


def test_a_link_asks_again_what_was_typed(driver: Any) -> None:  # noqa: F811
    with hosted(Site(translator(), translator())) as address:
        visit(driver, address)
        choose(driver, "#explain", "leave-one-out")
        one(driver, "text").send_keys(TEXTS[1], Keys.ENTER)
        wait(driver)
        assert texts(driver, "#method option:checked") == ["leave-one-out"], "the page opens with the scores that were asked for"
        one(driver, "tab-table").click()
        one(driver, "link").click()
        linked = driver.execute_script("return location.href")
        visit(driver, linked)
        wait_for(driver, "#table")
        assert TEXTS[1] in one(driver, "texts").text
        assert one(driver, "tab-table").get_attribute("aria-selected") == "true"
        assert texts(driver, "#method option:checked") == ["leave-one-out"]
        require_silence(driver, address)
