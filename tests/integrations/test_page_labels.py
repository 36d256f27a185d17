"""A page with a labelling model inside tells the labels, probabilities and weights of the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from regard.errors import ConfigError
from regard.integrations.page_model import page_model
from regard.integrations.portable_run import OpenedRun
from regard.tasks.classification_prediction import label_texts
from regard.tasks.classification_run import SentenceRun
from regard.tasks.hop_attention import example_record
from regard.viewer import page_records
from regard.viewer.page import render_page
from tests.integrations.test_page_model import WITHIN, answers, compare_maps
from tests.tasks.tiny_sentences import CLASSIFIERS, ENTAILERS, pairs, sentences, untrained
from tests.viewer.conftest import driver  # noqa: F401 - a fixture

SENTENCES = [(text,) for _, text in sentences(11, 5)]
PAIRS = [(premise, hypothesis) for _, premise, hypothesis in pairs(11, 5)]
STRANGE = [("  The JOY of a\tfilm ",), ("GR\u00dcN \u0130stanbul \u03a3\u0391\u03a3 gem",), ("\u6771\u4eac the \U0001f642 bore ",)]
ASKED = {"classification": "answer({ text: text[0] })", "entailment": "answer({ pair: { premise: text[0], hypothesis: text[1] } })"}
CASES = [*(("classification", name) for name in CLASSIFIERS if name != "last"), *(("entailment", name) for name in ENTAILERS)]


def labeller(folder: Path, task: str, **parts: Any) -> SentenceRun:
    return untrained(folder, task=task, **parts)._replace(folder=folder)


def opened(run: SentenceRun) -> OpenedRun:
    run.vocabulary.save(run.folder / "vocabulary.json")
    return OpenedRun(run.folder, run.config, run.model, {"text": "vocabulary.json"}, run.labels)


def page_of(run: SentenceRun) -> Path:
    path = run.folder / "model.html"
    page = render_page([], live=True, models=[run.folder.name], task=run.config.task, embedded=page_model(opened(run)))
    path.write_text(page, encoding="utf-8")
    return path


def compare(driver: Any, run: SentenceRun, examples: Sequence[tuple[str, ...]]) -> None:  # noqa: F811
    labellings = label_texts(run, examples, need_weights=True)
    assert len({item.probabilities[run.labels[0]] for item in labellings}) > len(examples) // 2
    records = answers(driver, page_of(run), ASKED[run.config.task], examples)
    for texts, labelling, (there,) in zip(examples, labellings, records, strict=True):
        record = example_record(run, texts, labelling)
        assert record is not None
        here = json.loads(json.dumps(page_records([record])[0]))
        assert (there["items"], there["main"]) == (here["items"], here["main"])
        assert [each["name"] for each in there["maps"]] == [each["name"] for each in here["maps"]]
        for own, other in zip(there["maps"], here["maps"], strict=True):
            compare_maps(own, other)
        assert there["prediction"]["label"] == here["prediction"]["label"]
        named, probabilities = zip(*there["prediction"]["probabilities"], strict=True)
        expected = dict(here["prediction"]["probabilities"])
        assert list(named) == list(expected)
        np.testing.assert_allclose(probabilities, list(expected.values()), atol=WITHIN)


@pytest.mark.parametrize(("task", "name"), CASES)
def test_the_page_labels_as_the_run_and_shows_the_same_maps(driver: Any, task: str, name: str, tmp_path: Path) -> None:  # noqa: F811
    run = labeller(tmp_path, task, model=(CLASSIFIERS if task == "classification" else ENTAILERS)[name])
    compare(driver, run, SENTENCES if task == "classification" else PAIRS)


@pytest.mark.parametrize("vocabulary", [{"lowercase": True}, {"kind": "bpe", "lowercase": True}, {"kind": "character"}])
def test_the_page_reads_text_as_the_run(driver: Any, vocabulary: dict[str, Any], tmp_path: Path) -> None:  # noqa: F811
    run = labeller(tmp_path, "classification", vocabulary=vocabulary, data={"max_length": 13})
    compare(driver, run, [*SENTENCES, *STRANGE])


def test_a_typed_pair_is_labelled(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    run = labeller(tmp_path, "entailment", model=ENTAILERS["crossed"])
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get(page_of(run).as_uri())
    for box, text in zip(("text", "second"), PAIRS[0], strict=True):
        driver.find_element(By.ID, box).send_keys(text)
    driver.find_element(By.ID, "ask").click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#tabs [role=tab]"))
    assert driver.find_element(By.ID, "live-error").text == ""
    assert label_texts(run, [PAIRS[0]])[0].label in driver.find_element(By.ID, "main").text
    assert driver.get_log("browser") == []


def test_a_model_without_attention_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.pooling"):
        page_model(opened(labeller(tmp_path, "classification", model=CLASSIFIERS["last"])))
