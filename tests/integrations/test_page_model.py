"""A page with the model inside divides, decodes and attends as the run does: in a real browser, from a file, without a network."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from selenium.common.exceptions import JavascriptException
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait
from typer.testing import CliRunner

from regard.cli import app
from regard.data import Vocabulary
from regard.data.shortlist import Shortlist
from regard.errors import ConfigError, DataError, RegardError
from regard.integrations.graph_models import model_graphs
from regard.integrations.page_model import PageWeights, export_page, page_model
from regard.integrations.portable_run import OpenedRun, check_weights
from regard.tasks import Translator
from regard.tasks.long_lines import divide_line
from regard.tasks.translation_run import Vocabularies
from regard.viewer import page_records
from regard.viewer.page import render_page
from tests.integrations.firefox import FIREFOX, firefox
from tests.tasks.tiny import FAMILIES, FURTHER, KINDS, TEXTS, trained, translator
from tests.viewer.conftest import driver  # noqa: F401 - a fixture

LINES = [*TEXTS, *(text[::-1] for text in TEXTS), *(f"{one} {two}" for one in TEXTS[:3] for two in TEXTS)]
# Text that no vocabulary here was trained on.
STRANGE = ["  A dog's  ball, 12 it'll. ", "東京 🙂", "a\tb\u00a0c", "ﬁ İstanbul e\u0301", "</s> <pad>", "don\u2019t x\u200by", "\ufeffHund"]
ATTENDING = [name for name in FAMILIES if name != "no attention"]
# Whose operators the other families lack.
OTHERS = ["gelu", "local m", "location", "score cosine", "value max"]
WITHIN = 2e-3  # of weights after a search over large random numbers


def opened(found: Translator, folder: Path) -> OpenedRun:
    found.run.vocabularies.source.save(folder / "vocabulary.json")
    return OpenedRun(folder, found.run.config, found.run.model, {"source": "vocabulary.json", "target": "vocabulary.json"}, ())


def page_of(found: Translator, folder: Path, weights: PageWeights = "float32") -> Path:
    run = opened(found, folder)
    path = folder / "model.html"
    path.write_text(render_page([], live=True, models=[folder.name], embedded=page_model(run, weights=weights)), encoding="utf-8")
    return path


def answers(driver: Any, path: Path, call: str, given: Sequence[str]) -> list[Any]:  # noqa: F811
    """Call a function of the page's script, which is closed to all others: it runs once more, with a door."""
    driver.get(path.as_uri())
    (script,) = re.findall(r"<script>(.*?)</script>", path.read_text(encoding="utf-8"), re.DOTALL)
    assert script.count("return answer;") == 1
    driver.execute_script(script.replace("return answer;", f"window.door = (text) => {call};\nreturn answer;"))
    plain = "JSON.stringify(arguments[0].map(door), (_, value) => (ArrayBuffer.isView(value) ? Array.from(value) : value))"
    return json.loads(driver.execute_script(f"return {plain}", list(given)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_gets_the_same_tokens_and_text_back(driver: Any, kind: str, tmp_path: Path) -> None:  # noqa: F811
    found = translator(kind)
    vocabulary: Vocabulary = found.run.vocabularies.source
    lines = [*LINES, *STRANGE]
    expected = [vocabulary.encode(line) for line in lines]
    path = page_of(found, tmp_path)
    there = answers(driver, path, "networks().vocabularies.source.encode(text)", lines)
    assert [item["ids"] for item in there] == [item.ids for item in expected]
    assert [item["pieces"] for item in there] == [item.pieces for item in expected]
    decoded = answers(driver, path, "networks().vocabularies.source.decode(networks().vocabularies.source.encode(text).ids)", lines)
    assert decoded == [vocabulary.decode(item.ids) for item in expected]


def test_a_vocabulary_may_be_large(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    found = translator("unigram")
    content = json.loads(found.run.vocabularies.source.to_bytes())
    content["tokenizer"]["model"]["vocab"] += [[f"\u2581hund{number}", -13.0] for number in range(150_001)]
    (tmp_path / "large.json").write_text(json.dumps(content), encoding="utf-8")
    large = Vocabulary.load(tmp_path / "large.json")
    page = page_of(Translator(found.run._replace(vocabularies=Vocabularies(large, large))), tmp_path)
    lines = [*TEXTS, "hund149999 Haus"]
    assert answers(driver, page, "networks().vocabularies.source.encode(text).ids", lines) == [large.encode(line).ids for line in lines]


LONG = ("Hundehausbellt\u6771\u4eac" * 16, "Hundehausbellt\u6771\u4eac" * 64)
# How often the ranks of merges are looked up, and how many characters are walked through.
LOOKED_UP = """{ const found = networks().vocabularies.source; let count = 0; const ranks = found.ranks;
    found.ranks = { get: (pair) => { count++; return ranks.get(pair); } }; found.encode(text); found.ranks = ranks; return count; }"""
WALKED = """{ const own = String.prototype[Symbol.iterator]; let count = 0;
    String.prototype[Symbol.iterator] = function () { count += this.length; return own.call(this); };
    try { divided(text, 7); } finally { String.prototype[Symbol.iterator] = own; } return count; }"""


def test_a_long_word_is_merged_as_by_the_run_in_nearly_linear_time(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    found = translator("bpe")
    page, vocabulary = page_of(found, tmp_path), found.run.vocabularies.source
    letters = np.random.default_rng(3).choice(list("ABHadeghnust "), (20, 97))
    lines = [*LONG, *("".join(row) for row in letters)]
    there = answers(driver, page, "networks().vocabularies.source.encode(text).ids", lines)
    assert there == [vocabulary.encode(line).ids for line in lines]
    assert len(there[0]) < len(LONG[0].encode()) * 0.8, "something was merged"
    short, long = answers(driver, page, LOOKED_UP, LONG)
    assert long < 6 * short


def test_a_long_line_is_divided_in_nearly_linear_time(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    page = page_of(translator("word", model=FAMILIES["transformer"]), tmp_path)
    short, long = answers(driver, page, WALKED, ["ein Haus, " * 256, "ein Haus, " * 1024])
    assert long < 8 * short


@pytest.mark.parametrize("family", [*ATTENDING, *OTHERS])
def test_the_page_finds_the_texts_of_the_run(driver: Any, family: str, tmp_path: Path) -> None:  # noqa: F811
    found = translator(model={**FAMILIES, **FURTHER}[family])
    there = answers(driver, page_of(found, tmp_path), "translate(text).hypotheses", LINES)
    # A map shows one attention: what is too long is cut, unless it was divided before.
    expected = found.translate(LINES, n_best=found.run.config.decoding.beam_size, need_attention=True)
    assert len({item.text for item in expected}) > 2
    assert [hypotheses[0]["text"] for hypotheses in there] == [item.text for item in expected]
    for hypotheses, item in zip(there, expected, strict=True):
        np.testing.assert_allclose([one["score"] for one in hypotheses], [one.score for one in item.hypotheses], atol=WITHIN)


SETTINGS: list[dict[str, Any]] = [
    {"beam_size": 1},
    {"min_length": 7, "length_penalty": 0.0},
    {"no_repeat_ngram_size": 2},
    {"coverage_penalty": 0.4},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_the_page_decodes_by_the_settings_of_the_run(driver: Any, settings: dict[str, Any], tmp_path: Path) -> None:  # noqa: F811
    found = translator("bpe", model=FAMILIES["transformer"], decoding=settings)
    there = answers(driver, page_of(found, tmp_path), "translate(text).hypotheses[0].text", LINES)
    assert there == [item.text for item in found.translate(LINES)]


PARTED = [
    "der Hund sieht ein Haus, ein grünes Haus und bellt",
    "  ein Hund. Ein Haus! (ein Hund) bellt; der Hund sieht. ",
    "🙂 🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂🙂, 🙂🙂🙂🙂🙂🙂🙂",
    "Hundehaus" * 11,
    "ein\u00a0Hund\x1csieht ein\u3000Haus\ufeff und\x85noch ein Haus",
    "der Hund bellt" + " " * 43,
    "ein Haus: " * 157,
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_line_is_divided_as_by_the_command(driver: Any, kind: str, tmp_path: Path) -> None:  # noqa: F811
    found = translator(kind, model=FAMILIES["transformer"], data={"max_length": 7})
    limit, vocabulary = found.run.config.data.max_length, found.run.vocabularies.source
    page = page_of(found, tmp_path)
    parts = answers(driver, page, f"partsOf(text, {limit})", [*PARTED, *LINES])
    expected = found.translate([*PARTED, *LINES])
    assert sum(len(own) > 1 for own in parts) > 3
    for line, own, item in zip([*PARTED, *LINES], parts, expected, strict=True):
        assert own == ([part.strip() for part in divide_line(line, vocabulary, limit)] if item.parts else [line])
    whole, first = answers(driver, page, "answer({ text })", [PARTED[0], "ein"])
    assert [(record["title"], record["items"]["source"]["text"]) for record in first] == [("", "ein")]
    assert [record["title"] for record in whole] == [f"Part {place} of {len(whole)}" for place in range(1, len(whole) + 1)]
    assert [record["items"]["target"]["text"] for record in whole] == expected[0].part_texts()
    assert {record["meta"]["whole translation"] for record in whole} == {expected[0].text}


def test_the_page_generates_only_what_the_shortlist_of_the_run_has(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    settings: dict[str, Any] = {"shortlist": True, "batch_size": 64}  # all parts of a line in one
    found = translator(model=FAMILIES["transformer"], decoding=settings, data={"max_length": 7})
    with pytest.raises(ConfigError, match=r"decoding\.shortlist: .* has none"):
        page_model(opened(found, tmp_path))
    own = {token: [token, 4 + (token * 5) % 13] for token in range(4, len(found.run.vocabularies.source))}
    (tmp_path / "shortlist.json").write_bytes(Shortlist([11], own).to_bytes())
    found = Translator(found.run._replace(folder=tmp_path))
    there = answers(driver, page_of(found, tmp_path), "answer({ text }).map((record) => record.items.target.text).join(' ')", LINES)
    expected = [found.translate([line])[0] for line in LINES]  # candidates are those of a batch
    assert sum(bool(item.parts) for item in expected) > 3
    assert there == [item.text for item in expected]
    every = found.run.config.decoding.model_copy(update={"shortlist": False})
    assert sum(item.text != said for item, said in zip(found.translate(LINES, decoding=every), there, strict=True)) > 3


def test_a_blank_text_is_one_that_is_blank_to_the_command(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    found = translator(model=FAMILIES["gru"])
    blank, text = ["\x1c", " \u0085", "\u3000"], "\ufeff"
    assert [item.text for item in found.translate(blank)] == [""] * 3
    page = page_of(found, tmp_path)
    for line in blank:
        with pytest.raises(JavascriptException, match="Type a text"):
            answers(driver, page, "answer({ text })", [line])
    assert answers(driver, page, "translate(text).hypotheses[0].text", [text]) == [found.translate([text])[0].text]


def test_an_unknown_word_is_replaced_by_what_the_model_looked_at(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    found = translator("word", model=FAMILIES["gru"], decoding={"replace_unknown": True}, vocabulary={"size": 8})
    expected = [item.text for item in found.translate(LINES)]
    assert answers(driver, page_of(found, tmp_path), "translate(text).hypotheses[0].text", LINES) == expected
    assert expected != [item.text for item in translator("word", model=FAMILIES["gru"], vocabulary={"size": 8}).translate(LINES)]


@pytest.mark.parametrize("family", ["lstm area", "area", "area features", "crossed", "gru"])
def test_the_record_is_that_of_the_run(driver: Any, family: str, tmp_path: Path) -> None:  # noqa: F811
    found = translator("bpe", model=FAMILIES[family])
    found = Translator(found.run._replace(folder=tmp_path))
    line = TEXTS[1]
    ((there,),) = answers(driver, page_of(found, tmp_path), "answer({ text })", [line])
    decoding = found.run.config.decoding
    (translation,) = found.translate([line], n_best=decoding.beam_size, need_attention=True)
    record = found.record(line, translation)
    assert record is not None
    here = json.loads(json.dumps(page_records([record])[0]))
    assert there["items"] == here["items"]
    assert [each["text"] for each in there["hypotheses"]] == [each["text"] for each in here["hypotheses"]]
    assert there["hypotheses"][0]["labels"] == here["hypotheses"][0]["labels"]
    assert set(there) == set(here)
    assert len(there["maps"]) == len(here["maps"]) > (0 if family == "gru" else 1)
    for own, other in zip(there["maps"], here["maps"], strict=True):
        compare_maps(own, other)
    for own, other in zip(there["alternatives"]["target"], here["alternatives"]["target"], strict=True):
        np.testing.assert_allclose([p for _, p in own], [p for _, p in other], atol=WITHIN)
        assert own[0][0] == other[0][0]
    np.testing.assert_allclose(there["scores"]["target"], here["scores"]["target"], atol=WITHIN)


@pytest.mark.parametrize("kind", KINDS)
def test_signs_of_other_tokenizers_in_a_text_mark_no_words(driver: Any, kind: str, tmp_path: Path) -> None:  # noqa: F811
    found = translator(kind, model=FAMILIES["transformer"])
    line = "\u0120ein Hu@@ ## </w>Hund"
    ((there,),) = answers(driver, page_of(found, tmp_path), "answer({ text })", [line])
    (translation,) = found.translate([line], need_attention=True)
    record = found.record(line, translation)
    assert record is not None
    here = json.loads(json.dumps(page_records([record])[0]))
    assert there["items"] == here["items"]
    assert ("words" in there["items"]["source"]) == (kind != "word")


def compare_maps(own: dict[str, Any], other: dict[str, Any]) -> None:
    plain = [name for name in other if name not in ("weights", "areas")]
    assert {name: own[name] for name in plain} == {name: other[name] for name in plain}
    np.testing.assert_allclose(own["weights"]["numbers"], other["weights"]["numbers"], atol=WITHIN, err_msg=own["name"])
    assert (own["areas"] is None) == (other["areas"] is None)
    if own["areas"] is not None:
        assert own["areas"]["extents"] == other["areas"]["extents"]
        np.testing.assert_allclose(own["areas"]["weights"]["numbers"], other["areas"]["weights"]["numbers"], atol=WITHIN)


def test_a_typed_sentence_is_shown_in_every_view_and_nothing_is_asked_of_anyone(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    run = trained(tmp_path, model=FAMILIES["area"])
    found = CliRunner().invoke(app, ["export", str(run), "--out", str(tmp_path / "model.html")])
    assert found.exit_code == 0, found.output
    driver.get("about:blank")
    driver.get_log("browser")
    driver.get((tmp_path / "model.html").as_uri())
    driver.find_element(By.ID, "text").send_keys("  ")
    driver.find_element(By.ID, "ask").click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: page.find_element(By.ID, "live-error").text == "Type a text.")
    driver.find_element(By.ID, "text").send_keys(TEXTS[1])
    driver.find_element(By.ID, "ask").click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#tabs [role=tab]"))
    assert driver.find_element(By.ID, "live-error").text == ""
    (expected,) = Translator.open(run).translate([TEXTS[1]])
    assert expected.text in driver.find_element(By.ID, "main").text
    views = [tab.get_attribute("data-view") for tab in driver.find_elements(By.CSS_SELECTOR, "#tabs [role=tab]")]
    assert {"matrix", "flow", "heads", "areas", "beam", "text", "table"} <= set(views)
    for view in views:
        driver.find_element(By.CSS_SELECTOR, f"#tabs [data-view={view}]").click()
        assert driver.find_element(By.ID, "view").get_attribute("childElementCount") != "0", view
    word = driver.find_element(By.CSS_SELECTOR, ".leave")
    left = TEXTS[1].replace(word.text, "", 1).strip()
    word.click()
    WebDriverWait(driver, 60, 0.05).until(lambda page: page.find_elements(By.CSS_SELECTOR, "#without .look"))
    said = driver.find_element(By.CSS_SELECTOR, "#without li:last-child bdi[dir]").text
    assert (left, said) == (left, Translator.open(run).translate([left])[0].text)
    assert driver.get_log("browser") == []
    asked = driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name.slice(0, 80))")
    assert [name for name in asked if not name.startswith("data:")] == []


@pytest.mark.skipif(FIREFOX is None, reason="no Firefox on PATH")
@pytest.mark.parametrize("weights", ["float32", "float16"])
def test_firefox_shows_the_same(weights: PageWeights, tmp_path: Path) -> None:
    found = translator("bpe", model=FAMILIES["area features"])
    path = page_of(found, tmp_path, weights)
    (tmp_path / "profile").mkdir()
    with firefox(tmp_path / "profile") as session:
        session.do("WebDriver:Navigate", url=path.as_uri())
        session.script("document.getElementById('text').value = arguments[0]; document.getElementById('ask').click()", TEXTS[1])
        for _ in range(600):
            if session.script("return document.getElementById('live').getAttribute('aria-busy')") == "false":
                break
            time.sleep(0.1)
        assert session.script("return document.getElementById('live-error').textContent") == ""
        assert found.translate([TEXTS[1]])[0].text in session.script("return document.getElementById('main').textContent")


def test_smaller_weights_make_a_smaller_page_that_says_nearly_the_same(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    found = translator("bpe", model={**FAMILIES["transformer"], "embed_dim": 96, "ff_dim": 211})
    there = {}
    for weights in ("float32", "float16"):
        folder = tmp_path / weights
        folder.mkdir()
        path = page_of(found, folder, weights)
        scores = answers(driver, path, "translate(text).hypotheses[0].score", TEXTS)
        size = len(page_model(opened(found, folder), weights=weights).weights)
        assert path.stat().st_size < 500_000 + 4 * (size + 2) / 3  # all but the weights
        there[weights] = (scores, size)
    np.testing.assert_allclose(there["float16"][0], there["float32"][0], rtol=0.05)
    assert there["float16"][1] < 0.55 * there["float32"][1]


def test_logits_that_are_no_numbers_are_an_error_as_in_the_run(driver: Any, tmp_path: Path) -> None:  # noqa: F811
    found = translator(model=FAMILIES["gru"])
    with torch.no_grad():
        for parameter in found.run.model.output.parameters():
            parameter.fill_(3e38)  # finite, but not its products
    with pytest.raises(RegardError, match=r"logits .* hold NaN"):
        found.translate(TEXTS[:1])
    page = page_of(found, tmp_path)
    with pytest.raises(JavascriptException, match="logits hold NaN or infinity"):
        answers(driver, page, "answer({ text })", TEXTS[:1])


@pytest.mark.parametrize(
    ("value", "weights", "said"), [(math.nan, "float32", "NaN"), (-7e4, "float16", "holds 70000"), (7e4, "float32", None)]
)
def test_weights_that_cannot_be_stored_are_named(value: float, weights: PageWeights, said: str | None, tmp_path: Path) -> None:
    found = translator(model=FAMILIES["transformer"])
    named = dict(found.run.model.named_parameters())
    name = next(each for each in named if named[each].dim() > 1 and "encoder" in each)
    named[name].data[0, 1] = value
    run = opened(found, tmp_path)
    if said is None:
        assert page_model(run, weights=weights).weights
        return
    with pytest.raises(ConfigError, match=rf"{re.escape(name)}.*{said}|{said}.*{re.escape(name)}"):
        page_model(run, weights=weights)
    with pytest.raises(ConfigError, match=re.escape(name)):
        check_weights(model_graphs(found.run.model), weights)


def test_what_the_page_cannot_run_is_named(tmp_path: Path) -> None:
    cases = [(FAMILIES["no attention"], "model.attention"), ({**FAMILIES["area"], "area": {"top_k": 2}}, "area.top_k")]
    for model, named in cases:
        with pytest.raises(ConfigError, match=named):
            page_model(opened(translator(model=model), tmp_path))
    run = trained(tmp_path, model=FAMILIES["gru"])
    with pytest.raises(DataError, match=r"\.html"):
        export_page(run, tmp_path / "model.txt")
    quarter = CliRunner().invoke(app, ["export", str(run), "--format", "html", "--weights", "int8", "-o", str(tmp_path / "a.html")])
    assert isinstance(quarter.exception, ConfigError)
