"""A document comes back as it was where nothing is translated, and what is translated holds no code, address or markup of a block."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from regard.data.document_blocks import Block
from regard.data.documents import read_document
from regard.errors import DataError

pytest.importorskip("mdit_py_plugins", reason="the extra documents reads Markdown")

MARKDOWN = """---
title: kept
---
# A *red* title

A paragraph that is
wrapped, with `code x` and a [link to **it**](http://a.b/c_(d)).
Hard break{}
here. See <https://x.y> and snake_case_name.

- item one
  goes on
- [ ] item two with ![alt](i.png)
  1. nested

> quoted text
> goes on

| a | b \\| c |
|---|---|
| 1 | red ball |

```python
x = 1
```

    indented code

Setext
======
<!-- runs -->
***bold and em*** and ~~gone~~.
""".format("  ")
HTML = """<!doctype html><html><head><title>A page</title><style>p{a:b}</style></head>
<body><p class="x">A <b>red</b> ball &amp; caf&eacute; <code>x<y</code>.<br>
Second line</p><!-- kept --><ul><li>one<li>two</ul><pre>a
 b</pre><script>if (a<b) {}</script><p>3 &lt; 5</p></body></html>
"""


def texts(document: str, name: str) -> list[str]:
    return [part.text for part in read_document(document, name) if isinstance(part, Block)]


def same(document: str, name: str) -> str:
    return "".join(part.finish(part.text) if isinstance(part, Block) else part for part in read_document(document, name))


def test_markdown_gives_its_sentences_and_keeps_the_rest() -> None:
    assert texts(MARKDOWN, "a.md") == [
        "A <m0>red</m0> title",
        "A paragraph that is wrapped, with {~0} and a <m1>link to <m2>it</m2></m1>. Hard break<m5/>here. See {~6} and snake_case_name.",
        "item one goes on",
        "item two with {~0}",
        "nested",
        "quoted text goes on",
        "a",
        "b {~0} c",
        "red ball",
        "Setext",
        "<m0><m1>bold and em</m1></m0> and <m4>gone</m4>.",
    ]
    joined = re.sub(r"(?<=\w)\n(?:wrapped|  goes|> goes)", lambda line: " " + line[0].split()[-1], MARKDOWN)
    assert same(MARKDOWN, "a.md") == joined.replace("(d)).\nHard", "(d)). Hard")


def test_html_gives_its_sentences_and_keeps_the_rest() -> None:
    assert texts(HTML, "a.HTM") == ["A page", "A <b>red</b> ball &amp; café {~0}.<br> Second line", "one", "two"]
    assert same(HTML, "a.html") == HTML.replace("&eacute;", "é").replace("<br>\n", "<br> ")


def test_plain_text_is_wrapped_as_its_paragraphs_are() -> None:
    document = "Title\n\nA paragraph that\nis wrapped here.\n\n- one\n- two\n\n***\n"
    assert texts(document, "a.txt") == ["Title", "A paragraph that is wrapped here.", "one", "two"]
    assert same(document, "a.txt") == document
    (paragraph,) = (part for part in read_document(document, "a.txt") if isinstance(part, Block) and part.width)
    assert paragraph.finish("ein viel breiterer Absatz ist das") == "ein viel\nbreiterer Absatz\nist das"


def test_lines_that_end_sentences_are_no_wrapped_paragraph() -> None:
    assert texts("A man walks.\nA dog runs!\nCats", "a.txt") == ["A man walks.", "A dog runs!", "Cats"]
    assert same("A man walks.\nA dog runs!\n", "a.txt") == "A man walks.\nA dog runs!\n"
    # The break after "sleeps." was written on purpose, that after "walks." is one of wrapping.
    wrapped = "The dog that ran to\nthe other man walks.\nA dog sleeps.\nA cat is not at home"
    assert texts(wrapped, "a.txt") == ["The dog that ran to the other man walks. A dog sleeps.", "A cat is not at home"]
    assert texts("我看见猫。\n他看见狗。", "a.txt") == ["我看见猫。", "他看见狗。"]


def test_html_that_is_not_to_be_translated_is_kept() -> None:
    page = "<p translate='no'>Red <p>x</p></p><div class=\"a notranslate\"><div>Red</div> ball</div>"
    page += "<p translate=yes>A <b class=notranslate>Red</b> ball"
    assert texts(page, "a.html") == ["A {~0} ball"]
    assert same(page, "a.html") == page
    voids = "ball<br translate=no>ball<img translate='no'>"
    assert texts(f"<p class='notranslated'>Red</p>{voids}", "a.html") == ["Red", voids]
    assert texts("<p translate=no>Red", "a.html") == []


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match=r"a\.docx: no document that can be read; its name must end in \.txt, \.md"):
        read_document("x", "a.docx")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("---\n\nA rule, then *text*.", ["A rule, then <m0>text</m0>."]),
        ("---\ntitle: kept\n...\nRead", ["Read"]),
        ("+++\ntitle = 'kept'\n+++\n\nRead", ["Read"]),
        ("\ufeff# Read", ["Read"]),
        ("A note.[^1]\n\n[^1]: Read *this*\n    too.", ["A note.{~0}", "Read <m0>this</m0> too."]),
        ("> > twice quoted\n> > read\n", ["twice quoted read"]),
        ("word\n: its *meaning*\n", ["word", "its <m0>meaning</m0>"]),
        ("a | b\n--|--\nred | ball\n", ["a", "b", "red", "ball"]),
        ("- item\n\n      code\n", ["item"]),
        ("<script>\nvar x\n</script>\n\nRead <!-- a > b --> it.", ["Read <m0/> it."]),
        ("`code\ntoo` and *two\nlines*", ["{~0} and <m1>two lines</m1>"]),
        ("[a](u 'title') [b](u (title)) [c](<u v>) [d][r]\n\n[r]: u", ["<m0>a</m0> <m2>b</m2> <m4>c</m4> <m6>d</m6>"]),
        ("The area is $x^2$, it costs $5 or $6.", ["The area is {~0}, it costs $5 or $6."]),
        ("Press <kbd>Ctrl *x*</kbd> *now*", ["Press {~0} <m1>now</m1>"]),
        ("A *mark* {~0} and <m0>tags</m0>", ["A <mm0>mark</mm0> {~0} and <m0>tags</m0>"]),
        ("> [!NOTE]\n> Read it", ["Read it"]),
        ("<div>\n<p>In a <b>block</b></p>\n</div>\n", ["In a <b>block</b>"]),
        ("- [x] a *task*", ["a <m0>task</m0>"]),
        ("[![badge](i.png)](url) and &amp; \\*star\\*", ["<m0>{~1}</m0> and &amp; {~3}star{~4}"]),
    ],
)
def test_markdown_as_it_is_written_elsewhere(document: str, expected: list[str]) -> None:
    assert texts(document, "a.md") == expected
    assert same(document, "a.md").split() == document.replace("\n> > read", " read").split()


def test_a_break_keeps_its_line_in_a_quote_and_a_cell_escapes_its_bars() -> None:
    assert same("> one\\\n> two", "a.md") == "> one\\\n> two"
    assert same("&amp;<script>```\n\t***", "a.md") == "&amp;<script>```\n\t***"
    assert same("> see `a\n> b` [here](u\n> 'title')", "a.md") == "> see `a\n> b` [here](u\n> 'title')"
    (cell,) = (part for part in read_document("|red|\n|---|\n", "a.md") if isinstance(part, Block))
    assert cell.finish("rot | rouge") == "rot \\| rouge"


@pytest.mark.parametrize("document", ["> 1\n> 2\n", "- [ ]\n  12 %s\n", "1\n    - ``<b>\n"])
def test_markdown_without_letters_is_kept_as_it_is(document: str) -> None:
    assert texts(document, "a.md") == []
    assert same(document, "a.md") == document


def test_entities_that_would_become_markup_stay_entities() -> None:
    assert texts("<p>caf&eacute; &#x3c;b&#62; &LT;i&gt; &AMP;amp; &#233;</p>", "a.html") == ["café &#x3c;b&#62; &LT;i&gt; &AMP;amp; é"]


PIECES = (
    *("a", "word", " ", "\n", "\n\n", "\r\n", "\t", "*", "**", "***", "_", "~~", "`", "``", "```\n", "~~~", "[", "]", "(", ")", "](x)"),
    *("![i](j)", "<b>", "</b>", "<code>", "</code>", "<!-- c -->", "<div>", "<script>", "</script>", "> ", "- ", "1. ", "# ", "|", "\\"),
    *("|---|---|", "\\|", "&amp;", "&lt;", "$", "[^1]", "[^1]: ", ": ", "---", "===", "+++", "    ", "é", "{~0}", "<m0>", "</m0>", "[r]"),
    *("https://x.y", "<https://a.b>", "[r]: /u\n", "[ ] ", "[!NOTE]", "%s"),
)


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_markdown_says_the_same_after_an_identical_translation(document: str) -> None:
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    before, after = (re.sub(r"\s", "", parser.render(text)) for text in (document, same(document, "a.md")))
    assert after == before


@given(st.text(st.sampled_from("ab *_`~[]()!#|-+1.\\\n<>/&;{}\t\"'"), max_size=60), st.sampled_from(["a.txt", "a.md", "a.html"]))
def test_nothing_is_lost_of_any_document(document: str, name: str) -> None:
    def bare(text: str) -> str:
        return re.sub(r"[\s>]", "", text)

    assert bare(same(document, name)) == bare(document)
