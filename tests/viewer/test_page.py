"""The page as text: one file, nothing from outside, and no way out of its data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from regard.viewer import AttentionRecord, render_page, save_page
from regard.viewer.picture import COLORS

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
    return AttentionRecord(
        tokens, tokens[:1], [[1.0 / 3] * len(tokens)], title=tokens[0], source_text=tokens[0], meta={tokens[0]: tokens[0]}
    )


@pytest.mark.parametrize("token", HOSTILE)
def test_no_token_can_leave_the_data_block(token):
    tame, wild = _parse(render_page([_record(["a"])])), _parse(render_page([_record([token])]))
    assert wild.tags == tame.tags
    (record,) = json.loads(wild.data)["records"]
    assert (record["source"], record["title"], record["meta"]) == ([token], token, {token: token})


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
    assert len(render_page([]).encode()) < 150_000


def test_labels_show_white_space_while_tokens_stay_as_they_are():
    (record,) = json.loads(_parse(render_page([_record([" the", "\t"])])).data)["records"]
    assert record["source"] == [" the", "\t"]
    assert record["labels"] == {"source": ["␣the", "⇥"], "target": ["␣the"]}
    assert record["weights"] == [[0.333333, 0.333333]]


def test_the_page_and_the_picture_use_the_same_colours():
    assert json.dumps(COLORS) in render_page([])


def test_a_saved_page_is_the_rendered_one(tmp_path):
    save_page([_record(["東京"])], tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render_page([_record(["東京"])])
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
