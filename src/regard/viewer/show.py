"""Show records from a script or a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from regard.errors import DataError
from regard.viewer.files import write_whole
from regard.viewer.maps import AttentionMap
from regard.viewer.page import render_page
from regard.viewer.record import AttentionRecord


class Page:
    """A page that a notebook shows inline.

    Args:
        html: the whole page.
        height: of the frame in a notebook, in pixels.

    Example:
        >>> Page("<!doctype html>").save("/no/such/folder/page.html")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/page.html: cannot be written (No such file or directory)
    """

    def __init__(self, html: str, *, height: int = 720) -> None:
        self.html = html
        self.height = height

    def save(self, path: str | Path) -> None:
        """Write the page to a file, whole or not at all.

        Raises:
            DataError: the file cannot be written; names it.
        """
        write_whole(path, self.html.encode("utf-8"))

    def _repr_html_(self) -> str:
        # The sandbox keeps the page's script away from the notebook; without an origin of its own it can only draw and save.
        frame = f'width="100%" height="{self.height}" sandbox="allow-scripts allow-downloads allow-modals" style="border:0"'
        return f'<iframe srcdoc="{escape(self.html, quote=True)}" {frame} title="Attention"></iframe>'

    def __repr__(self) -> str:
        return f"<a page of {len(self.html.encode('utf-8', 'replace')):,} bytes: .save('page.html') writes it, a notebook shows it>"


def view(
    records: AttentionRecord | Iterable[AttentionRecord] | Any,
    source: Sequence[str] | None = None,
    target: Sequence[str] | None = None,
    *,
    path: str | Path | None = None,
    title: str = "",
) -> Page:
    """Make the page of some records, or of one matrix of weights with its tokens.

    Args:
        records: one record or several; or weights (T, S) or (H, T, S), as lists, an array or a tensor, with `source` and `target`.
        source: with weights: S tokens that were looked at.
        target: with weights: T tokens that look; None takes `source` (self-attention).
        path: write the page to this file, too.
        title: with weights: a name for the example.

    Returns:
        The page; a notebook shows it.

    Raises:
        DataError: weights without tokens or that do not fit them, something else than records, or a file that cannot be written.

    Example:
        >>> view([[0.9, 0.1], [0.2, 0.8]], ["das", "Haus"], ["the", "house"]).html[:15]
        '<!doctype html>'
    """
    if source is not None:
        found = [AttentionRecord.alignment(source, target, records, title=title) if target is not None else _own(source, records, title)]
    elif isinstance(records, AttentionRecord):
        found = [records]
    else:
        found = list(records) if isinstance(records, Iterable) else [records]
        for number, record in enumerate(found):
            if not isinstance(record, AttentionRecord):
                raise DataError(f"records[{number}]: expected an AttentionRecord, found {type(record).__name__}; weights need their tokens")
    page = Page(render_page(found))
    if path is not None:
        page.save(path)
    return page


def _own(tokens: Sequence[str], weights: Any, title: str) -> AttentionRecord:
    return AttentionRecord({"tokens": tokens}, [AttentionMap("self", "self", "tokens", "tokens", weights)], title=title)
