"""The page as text: one file, nothing from outside, and no way out of its data."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import regard
from regard.errors import DataError
from regard.viewer import (
    AttentionMap,
    AttentionRecord,
    HypothesisRecord,
    PredictionRecord,
    Tokens,
    group_by_example,
    page_records,
    render_page,
    save_page,
    view,
    write_records,
)
from regard.viewer import page as page_module
from regard.viewer.picture import COLORS
from tests.viewer import samples

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--",
    "<!--<script>",
    "-->",
    "]]>",
    "\u2028\u2029",
    "&lt;/script&gt;",
    "\ud800",
    "@@REGARD_DATA@@",
    "@@REGARD_POLICY@@",
    "\\u003c",
    "'\"`${1}",
]


class _Parts(HTMLParser):
    """Collects start tags, and the text of the data block."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.tags and self.tags[-1] == ("script", {"type": "application/json", "id": "regard-data"}):
            self.data += data


def _parse(page: str) -> _Parts:
    parts = _Parts()
    parts.feed(page)
    return parts


def _record(tokens: list[str]) -> AttentionRecord:
    found = AttentionMap(tokens[0] or "a", "alignment", "target", tokens[0], [[1.0 / 3] * len(tokens)], heads=[tokens[0]])
    return AttentionRecord(
        {tokens[0]: Tokens(tokens, tokens[0]), "target": tokens[:1]},
        [found],
        hypotheses=[HypothesisRecord(tokens, -0.5, tokens[0])],
        prediction=PredictionRecord(tokens[0], {tokens[0]: 0.5}),
        model=tokens[0],
        title=tokens[0],
        meta={tokens[0]: tokens[0]},
    )


@pytest.mark.parametrize("token", HOSTILE)
def test_no_token_can_leave_the_data_block(token):
    tame, wild = _parse(render_page([_record(["a"])])), _parse(render_page([_record([token])]))
    assert wild.tags == tame.tags
    (record,) = json.loads(wild.data)["records"]
    assert (record["items"][token]["tokens"], record["title"], record["meta"]) == ([token], token, {token: token})
    assert (record["model"], record["maps"][0]["heads"], record["prediction"]["label"]) == (token, [token], token)


def test_the_data_block_holds_no_markup_character_and_only_ascii():
    data = re.search(r'id="regard-data">(.*?)</script>', render_page([_record(HOSTILE)]), re.DOTALL)
    assert data is not None
    assert data.group(1).isascii()
    assert not set("<>&") & set(data.group(1))


def test_the_policy_forbids_everything_but_the_pages_own_style_and_script():
    page = render_page([_record(["a"])])
    policy = next(attributes["content"] for tag, attributes in _parse(page).tags if "http-equiv" in attributes)
    rules = dict(rule.strip().split(" ", 1) for rule in (policy or "").split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in str(rules)
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{digest}'"
    assert set(rules) == {"default-src", "style-src", "script-src", "img-src", "base-uri", "form-action"}


def test_the_page_names_no_other_file_and_no_address():
    page = render_page([_record(["a"])])
    for tag, attributes in _parse(page).tags:
        assert "src" not in attributes, tag
        assert (attributes.get("href") or "#").startswith(("#", "data:,")), tag
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
    assert set(re.findall(r"https?://[^\"'\s]+", page)) == {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert "@import" not in page
    assert "url(" not in page


def test_data_are_never_set_as_markup():
    page = render_page([])
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "DOMParser"):
        assert word not in page


def test_the_page_is_small():
    assert len(render_page([]).encode()) < 300_000


def test_labels_show_white_space_while_tokens_stay_as_they_are():
    (record,) = json.loads(_parse(render_page([_record([" the", "\t"])])).data)["records"]
    assert record["items"][" the"]["tokens"] == [" the", "\t"]
    assert [items["labels"] for items in record["items"].values()] == [["␣the", "⇥"], ["␣the"]]
    assert record["maps"][0]["weights"] == {"numbers": [0.333333, 0.333333]}


def test_names_of_hops_keep_their_spaces():
    (record,) = page_records([samples.hops()])
    assert record["items"]["hops"]["labels"] == ["hop 1", "hop 2", "hop 3"]


def test_many_weights_travel_as_halves_and_very_many_in_255_steps(monkeypatch):
    record = samples.large(73, 61)
    weights = record.maps[0].weights
    (packed,) = [found["weights"] for found in page_records([record])[0]["maps"]]
    halves = np.frombuffer(base64.b64decode(packed["float16"]), "<f2").astype(float) * packed["scale"]
    assert halves.reshape(weights.shape) == pytest.approx(weights, rel=1e-3, abs=1e-7)
    monkeypatch.setattr(page_module, "HALF", 4000)
    (packed,) = [found["weights"] for found in page_records([record])[0]["maps"]]
    steps = (np.frombuffer(base64.b64decode(packed["uint8"]), np.uint8) / 255) ** 2 * packed["scale"]
    assert steps.reshape(weights.shape) == pytest.approx(weights, abs=float(weights.max()) / 254)
    small = weights.ravel() < 0.01 * weights.max()
    assert np.abs(steps - weights.ravel())[small].max() < weights.max() / 2500
    assert steps.max() == pytest.approx(weights.max())


def test_a_page_of_many_maps_counts_them_together(monkeypatch):
    record = samples.large(73, 61)
    monkeypatch.setattr(page_module, "HALF", 2 * 73 * 61 - 1)
    assert "float16" in page_records([record])[0]["maps"][0]["weights"]
    assert ["uint8" in found["maps"][0]["weights"] for found in page_records([record, record])] == [True, True]


def test_scores_below_zero_keep_their_sign(monkeypatch):
    monkeypatch.setattr(page_module, "HALF", 4000)
    weights = np.linspace(-2, 1, 73 * 61).reshape(73, 61)
    items = {"source": ["a"] * 61, "target": ["b"] * 73}
    (packed,) = page_records([AttentionRecord(items, [AttentionMap("m", "cross", "target", "source", weights, method="m")])])[0]["maps"]
    assert (packed["signed"], packed["method"]) == (True, "m")
    halves = np.frombuffer(base64.b64decode(packed["weights"]["float16"]), "<f2")
    assert halves.reshape(weights.shape) == pytest.approx(weights, rel=1e-3, abs=1e-6)


def test_weights_beyond_the_range_of_halves_are_scaled():
    record = AttentionRecord.alignment(["a"] * 71, ["b"] * 61, np.full((61, 71), 2e5))
    (packed,) = [found["weights"] for found in page_records([record])[0]["maps"]]
    assert packed["scale"] == 2e5
    assert np.frombuffer(base64.b64decode(packed["float16"]), "<f2").max() == 1


def test_a_live_page_may_ask_its_own_server_and_no_other():
    plain, live = render_page([]), render_page([], live=True, models=["<one>", "two"])
    assert "connect-src" not in plain
    assert "; connect-src 'self';" in live
    data = json.loads(_parse(live).data)
    assert (data["live"], data["models"], data["records"]) == (True, ["<one>", "two"], [])


def test_the_joined_script_leaves_no_name_behind_and_every_part_is_used():
    folder = resources.files("regard.viewer").joinpath("page")
    found = {path.name for path in folder.iterdir() if path.name.endswith(".js")}
    assert found == {f"{name}.js" for name in page_module.SCRIPTS}
    (script,) = re.findall(r"<script>(.*?)</script>", render_page([]), re.DOTALL)
    assert script.strip().startswith('"use strict";\n(() => {')
    assert script.strip().endswith("})();")
    assert "@@" not in render_page([])


def test_the_parts_of_the_page_stay_small():
    folder = resources.files("regard.viewer").joinpath("page")
    lines = {path.name: path.read_text(encoding="utf-8").count("\n") for path in folder.iterdir()}
    assert {name: count for name, count in lines.items() if count > 400} == {}


def test_a_script_or_a_notebook_shows_records_or_bare_weights(tmp_path):
    page = regard.view(np.array([[0.25, 0.75]]), ["a", "b"], ["x"], path=tmp_path / "a.html", title="one")
    assert (tmp_path / "a.html").read_text(encoding="utf-8") == page.html
    frame = _parse(page._repr_html_())
    (tag, attributes) = frame.tags[0]
    assert (tag, attributes["srcdoc"]) == ("iframe", page_module.compact_page(page.html))
    assert len(page._repr_html_()) < 100_000 < len(page.html)
    (packed,) = re.findall(r'atob\("([^"]+)"\)', page_module.compact_page(page.html))
    assert f"<script>{gzip.decompress(base64.b64decode(packed)).decode()}</script>" in page.html
    assert "allow-same-origin" not in (attributes["sandbox"] or "")
    own = json.loads(_parse(regard.view(np.eye(3), ["a", "b", "c"]).html).data)["records"][0]["maps"][0]
    assert (own["kind"], own["query"], own["key"]) == ("self", "tokens", "tokens")
    assert view(samples.hops()).html == view([samples.hops()]).html == render_page([samples.hops()])
    by_method = regard.view({"weights": np.eye(2), "alti": -np.eye(2)}, ["a", "b"], ["c", "d"]).html
    found = json.loads(_parse(by_method).data)["records"][0]["maps"]
    assert [(each["name"], each["method"], each["signed"]) for each in found] == [("weights", "", False), ("alti", "alti", True)]
    for wrong in (np.eye(2), [samples.hops(), 3], 7):
        with pytest.raises(DataError, match=r"records\[\d\]: expected an AttentionRecord, found .*; weights need their tokens"):
            view(wrong)
    with pytest.raises(AttributeError, match="no attribute 'views'"):
        _ = regard.views


def test_the_page_and_the_picture_use_the_same_colours():
    assert json.dumps(COLORS) in render_page([])


def test_a_saved_page_is_the_rendered_one(tmp_path):
    save_page([_record(["東京"])], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render_page([_record(["東京"])])
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


SEVERAL: dict[str, Callable[[Any, Path], Any]] = {
    "save_page": save_page,
    "render_page": lambda records, path: render_page(records),
    "page_records": lambda records, path: page_records(records),
    "write_records": lambda records, path: write_records(path, records),
    "group_by_example": lambda records, path: group_by_example(records),
    "view": lambda records, path: view(records, path=path).html,
}


@pytest.mark.parametrize("name", SEVERAL)
def test_records_of_a_generator_are_all_taken(name: str, tmp_path: Path) -> None:
    call, path, records = SEVERAL[name], tmp_path / "file", [_record(["a"]), _record(["b"])]
    expected = call(records, path)
    written = path.read_bytes() if path.exists() else b""
    path.unlink(missing_ok=True)
    assert call((record for record in records), path) == expected
    assert (path.read_bytes() if path.exists() else b"") == written


@pytest.mark.parametrize("name", SEVERAL)
def test_what_is_no_list_of_records_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^{name}: records\[1\]: expected an AttentionRecord, found NoneType"):
        SEVERAL[name]([_record(["a"]), None], tmp_path / "file")
    if name != "view":  # which shows one, too
        with pytest.raises(DataError, match=rf"^{name}: records: expected a list of records, found one; write \[record\]"):
            SEVERAL[name](_record(["a"]), tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("name", ["save_page", "view"])
def test_an_empty_page_is_not_written(name: str, tmp_path: Path) -> None:
    for none in ([], iter([])):
        with pytest.raises(DataError, match=f"^{name}: records: expected one or more, found none; the page would be empty"):
            SEVERAL[name](none, tmp_path / "file")
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("ending", ["png", "PDF", "svg", "gif"])
def test_a_page_is_not_written_as_a_picture(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{ending}"
    with pytest.raises(DataError, match=r"a page is HTML, and \.\w+ is not; name it \.html, or .* draw a picture"):
        regard.view([[1.0]], ["a"], path=path)
    assert not path.exists()
