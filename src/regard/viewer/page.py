"""One self-contained page: the records and all that shows them in a single HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from regard.viewer.files import write_whole
from regard.viewer.record import AttentionRecord
from regard.viewer.text import visible

DATA_MARK = "@@REGARD_DATA@@"
POLICY_MARK = "@@REGARD_POLICY@@"
# Characters that could end the data block or start markup, and the line ends of older JavaScript.
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
DECIMALS = 6


def render_page(records: Sequence[AttentionRecord]) -> str:
    """Return one HTML page that shows the records, without any other file and without a network.

    The page holds its own style and script, allowed by their hashes; its policy forbids everything else. Tokens travel as
    escaped JSON and are only ever set as text.

    Args:
        records: what to show; none gives a page that says so. Weights are rounded to 6 decimals.

    Returns:
        The page as HTML text, to be stored as UTF-8.

    Example:
        >>> page = render_page([AttentionRecord(["</script>"], ["b"], [[1.0]])])
        >>> page.count("</script>")
        2
    """
    template = resources.files("regard.viewer").joinpath("page.html").read_text(encoding="utf-8")
    data = json.dumps({"records": [_page_record(record) for record in records]}, allow_nan=False, separators=(",", ":"))
    for character, escape in UNSAFE.items():
        data = data.replace(character, escape)
    # The data comes last, so that nothing within it is taken for a mark.
    return template.replace(POLICY_MARK, _policy(template)).replace(DATA_MARK, data)


def save_page(records: Sequence[AttentionRecord], path: str | Path) -> None:
    """Write `render_page` to a file, whole or not at all.

    Args:
        records: what to show.
        path: the file.

    Raises:
        DataError: the file cannot be written; names it.

    Example:
        >>> save_page([], "/no/such/folder/page.html")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/page.html: cannot be written (No such file or directory)
    """
    write_whole(path, render_page(records).encode("utf-8"))


def _page_record(record: AttentionRecord) -> dict[str, Any]:
    values = record.to_json()
    values["weights"] = [[round(weight, DECIMALS) for weight in row] for row in values["weights"]]
    labels = {"source": [visible(token) for token in record.source], "target": [visible(token) for token in record.target]}
    return {**values, "labels": labels}


def _policy(template: str) -> str:
    hashes = {}
    for tag in ("style", "script"):
        found = re.search(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
        if found is None:  # the template is our own file: only a broken installation comes here
            raise RuntimeError(f"page.html holds no <{tag}>")
        digest = hashlib.sha256(found.group(1).encode("utf-8")).digest()
        hashes[tag] = f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
    # data: is the empty icon, without which a browser asks the server for one.
    allowed = f"style-src {hashes['style']}; script-src {hashes['script']}; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
