"""A document comes back as it was where nothing is translated, and what is translated holds no code, address or markup of a block."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.documents import Block, read_document
from regard.errors import DataError

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
        "A paragraph that is wrapped, with {~1} and a <m2>link to <m4>it</m4></m2>. Hard break<m0/>here. See {~6} and snake_case_name.",
        "item one goes on",
        "item two with {~0}",
        "nested",
        "quoted text goes on",
        "a",
        "b {~0} c",
        "red ball",
        "Setext",
        "<m0>bold and em</m0> and <m2>gone</m2>.",
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


def test_a_document_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match=r"a\.docx: no document that can be read; its name must end in \.txt, \.md"):
        read_document("x", "a.docx")


@given(st.text(st.sampled_from("ab *_`~[]()!#|-+1.\\\n<>/&;{}\t\"'"), max_size=60), st.sampled_from(["a.txt", "a.md", "a.html"]))
def test_nothing_is_lost_of_any_document(document: str, name: str) -> None:
    def bare(text: str) -> str:
        return re.sub(r"[\s>]", "", text)

    assert bare(same(document, name)) == bare(document)
