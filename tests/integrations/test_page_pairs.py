"""A page with a model of two inputs inside translates and attends as the run does."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from regard.data.parallel import join_inputs
from regard.integrations.page_model import asked_for, export_page, page_model
from regard.integrations.portable_run import open_run
from regard.tasks import Translator, generate, train_translation
from regard.viewer import page_records
from regard.viewer.page import render_page
from tests.integrations.test_page_captions import SPREAD, asked, shown
from tests.integrations.test_page_model import WITHIN, answers, compare_maps
from tests.tasks.test_image_inputs import AREAS, KINDS, RECURRENT, lines_of, settings
from tests.tasks.test_two_inputs import CROSSED, SERIAL, two
from tests.tasks.tiny import ATTENTIVE, FAMILIES, TEXTS
from tests.viewer.conftest import driver  # noqa: F401 - a fixture

WORDS = [" ".join(word.upper() for word in text.split()[:2]) for text in TEXTS]
PAIRS = [
    *zip(TEXTS, WORDS, strict=True),
    (" ".join(TEXTS * 3), WORDS[0]),  # longer than the run reads
    (TEXTS[1], f"{TEXTS[0]}\tein <s>"),
    ("東京 🙂", "bellt"),
]
HEADS = {"score": "scaled_dot", "num_heads": 2, "query_state": "current", "area": {"max_area": 2}}
MODELS: dict[str, dict[str, Any]] = {
    "serial areas": {**SERIAL, "area": {"max_area": 3}},
    "parallel": {**SERIAL, "second": {"kind": "parallel"}, "norm": "pre"},
    "flat": {**SERIAL, "second": {"kind": "flat"}, "area": {"max_area": 2, "key_mode": "features"}},
    "hierarchical": {**SERIAL, "second": {"kind": "hierarchical"}},
    "joined": {**SERIAL, "second": {"kind": "joined"}},
    "crossed": CROSSED,
    "recurrent joined": {**FAMILIES["luong"], "second": {"kind": "joined"}},
    "recurrent serial": {**FAMILIES["gru"], "second": {"kind": "serial"}},
    "recurrent hierarchical": {**FAMILIES["gru"], "second": {"kind": "hierarchical"}},
    "recurrent heads": {**FAMILIES["lstm area"], "attention": HEADS, "second": {"kind": "hierarchical"}},
}


def spread(run: Any) -> None:
    """Enlarge the weights, so that outputs differ."""
    for name, parameter in run.model.named_parameters():
        if "norm" not in name:
            parameter.data.mul_(SPREAD)


def page_of(translator: Translator, folder: Path) -> Path:
    """Write the page of a run with the weights that it has now."""
    opened = open_run(translator.run.folder)._replace(model=translator.run.model)
    page = folder / "model.html"
    page.write_text(render_page([], live=True, models=["run"], task=asked_for(opened), embedded=page_model(opened)), encoding="utf-8")
    return page


def compare_records(there: dict[str, Any], here: dict[str, Any]) -> None:
    assert set(there) == set(here)
    pictures = [record["items"].pop("image", None) for record in (there, here)]
    assert there["items"] == here["items"]
    if pictures[1] is not None:
        assert {**pictures[0], "image": None} == {**pictures[1], "image": None}
        np.testing.assert_array_equal(shown(pictures[0]["image"]), shown(pictures[1]["image"]))
    assert [each["text"] for each in there["hypotheses"]] == [each["text"] for each in here["hypotheses"]]
    for own, other in zip(there["hypotheses"], here["hypotheses"], strict=True):
        np.testing.assert_allclose(own["weights"]["numbers"], other["weights"]["numbers"], atol=WITHIN)
    assert [each["name"] for each in there["maps"]] == [each["name"] for each in here["maps"]]
    for own, other in zip(there["maps"], here["maps"], strict=True):
        compare_maps(own, other)
    np.testing.assert_allclose(there["scores"]["target"], here["scores"]["target"], atol=WITHIN)


def here_of(translator: Translator, line: str) -> dict[str, Any]:
    (found,) = translator.translate([line], n_best=translator.run.config.decoding.beam_size, need_attention=True)
    record = translator.record(line, found)
    assert record is not None
    return json.loads(json.dumps(page_records([record])[0]))


@pytest.mark.parametrize("name", MODELS)
def test_two_texts_are_translated_and_shown_as_by_the_run(driver: Any, name: str, tmp_path: Path) -> None:  # noqa: F811
    run = two(tmp_path, model=MODELS[name], data={"max_length": 11}, decoding={"min_length": 3, "replace_unknown": name == "crossed"})
    translator = Translator.open(run)
    spread(translator.run)
    given = [json.dumps(pair) for pair in PAIRS]
    records = answers(
        driver, page_of(translator, tmp_path), "((texts) => answer({ text: texts[0], second: texts[1] }))(JSON.parse(text))", given
    )
    scores = set()
    for pair, (there,) in zip(PAIRS, records, strict=True):
        here = here_of(translator, join_inputs(*pair))
        compare_records(there, here)
        scores.add(round(here["hypotheses"][0]["score"], 5))
    assert len(scores) > 2


@pytest.mark.parametrize("kind", ["joined", "serial", "parallel", "flat", "hierarchical", "crossed"])
def test_a_model_that_learned_to_read_one_input_alone_does(driver: Any, kind: str, tmp_path: Path) -> None:  # noqa: F811
    model = {**CROSSED, "second": {"drop": 0.3}} if kind == "crossed" else {**SERIAL, "second": {"kind": kind, "drop": 0.3}}
    translator = Translator.open(two(tmp_path, model=model, decoding={"min_length": 3, "max_length": 5}))
    spread(translator.run)
    page = page_of(translator, tmp_path)
    for pair in ((TEXTS[1], ""), ("", WORDS[1]), (" ", WORDS[2])):
        call = "((texts) => answer({ text: texts[0], second: texts[1] }))(JSON.parse(text))"
        ((there,),) = answers(driver, page, call, [json.dumps(pair)])
        compare_records(there, here_of(translator, join_inputs(*pair)))


def test_a_missing_input_is_named(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    export_page(two(tmp_path, model=MODELS["parallel"]), tmp_path / "model.html")
    driver.get((tmp_path / "model.html").as_uri())
    driver.find_element(By.ID, "text").send_keys(TEXTS[1])
    driver.find_element(By.ID, "ask").click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: "second input is missing" in page.find_element(By.ID, "live-error").text)


PICTURED = (*KINDS, *AREAS, *RECURRENT)


@pytest.mark.parametrize("kind", PICTURED)
def test_a_sentence_and_an_image_are_translated_and_shown_as_by_the_run(driver: Any, kind: str, tmp_path: Path) -> None:  # noqa: F811
    generate("scene-sentences", tmp_path / "scenes", train=23, test=5, seed=3)
    train_translation(settings(tmp_path / "scenes", kind), tmp_path / "run")
    translator = Translator.open(tmp_path / "run")
    spread(translator.run)
    translator.use_images(tmp_path / "scenes")
    page = page_of(translator, tmp_path)
    for line in lines_of(tmp_path / "scenes")[:3]:
        text, name = line.split("\t")
        image = base64.b64encode((tmp_path / "scenes" / name).read_bytes()).decode()
        (there,) = asked(driver, page, "answer({ text: given[0], second: given[1] })", [text, image])
        here = here_of(translator, line)
        here["items"]["source"]["text"] = text
        compare_records(there, here)


def test_both_inputs_are_typed_and_a_word_of_either_is_left_out(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    run = two(tmp_path, model={**ATTENTIVE, "type": "transformer", "second": {"kind": "parallel"}})
    export_page(run, tmp_path / "model.html")
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get((tmp_path / "model.html").as_uri())
    for box, text in zip(("text", "second"), (TEXTS[1], WORDS[1]), strict=True):
        driver.find_element(By.ID, box).send_keys(text)
    driver.find_element(By.ID, "ask").click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#tabs [role=tab]"))
    translator = Translator.open(run)
    (whole,) = translator.translate([join_inputs(TEXTS[1], WORDS[1])])
    assert whole.text in driver.find_element(By.ID, "main").text
    driver.find_element(By.CSS_SELECTOR, "#texts .leave[data-items=second]").click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: len(page.find_elements(By.CSS_SELECTOR, "#without li .look")) == 1)
    (left,) = translator.translate([join_inputs(TEXTS[1], WORDS[1].split()[1])])
    assert left.text in driver.find_element(By.ID, "without").text
    assert driver.get_log("browser") == []
