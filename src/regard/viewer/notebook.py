"""Shows records from a script or a notebook."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Protocol

from regard.arguments import takes_arguments
from regard.errors import DataError, shown
from regard.viewer.atomic_write import write_atomically
from regard.viewer.maps import AttentionMap
from regard.viewer.page import compact_page, render_page
from regard.viewer.record import AttentionRecord, record_list

PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".pdf"}


class Page:
    """A page that a notebook displays inline.

    Args:
        html: the whole page.
        height: height of the notebook's frame in pixels, at least 1.

    Raises:
        DataError: the page is no text, or the height no such number.

    Example:
        >>> Page("<!doctype html>").save("/no/such/folder/page.html")
        Traceback (most recent call last):
        regard.errors.DataError: /no/such/folder/page.html: cannot be written (No such file or directory)
    """

    @takes_arguments
    def __init__(self, html: str, *, height: int = 720) -> None:
        if height < 1:
            raise DataError(f"Page: height must be at least 1, found {height}")
        self.html = html
        self.height = height

    def save(self, path: str | Path) -> None:
        """Write the page to a file, completely or not at all.

        Raises:
            DataError: the file cannot be written, or has a picture's extension; the message names it.
        """
        if not isinstance(path, str | os.PathLike):
            raise DataError(f"path: expected the name of a file, found {shown(path)}")
        if (ending := Path(path).suffix.lower()) in PICTURES:
            raise DataError(
                f"{path}: a page is HTML, and {ending} is not; name it .html, or let `regard view RECORDS -o FILE.png` draw a picture"
            )
        write_atomically(path, self.html.encode("utf-8"))

    def _repr_html_(self) -> str:
        # The sandbox isolates the page's script from the notebook; it can only draw and save.
        frame = f'width="100%" height="{self.height}" sandbox="allow-scripts allow-downloads allow-modals" style="border:0"'
        return f'<iframe srcdoc="{escape(compact_page(self.html), quote=True)}" {frame} title="Attention"></iframe>'

    def __repr__(self) -> str:
        return f"<a page of {len(self.html.encode('utf-8', 'replace')):,} bytes: .save('page.html') writes it, a notebook shows it>"


class Recorded(Protocol):
    """A recording that becomes records when its tokens are given; `regard.watch` returns one."""

    def records(
        self, key_tokens: Any = None, query_tokens: Any = None, *, image: Any = None, grid: tuple[int, int] | None = None, title: str = ""
    ) -> list[AttentionRecord]:
        """Build one record per example of the batch."""
        ...


def view(
    records: AttentionRecord | Iterable[AttentionRecord] | Recorded | Any,
    key_tokens: Sequence[Any] | None = None,
    query_tokens: Sequence[Any] | None = None,
    *,
    image: Any = None,
    grid: tuple[int, int] | None = None,
    path: str | Path | None = None,
    title: str = "",
) -> Page:
    """Build the page for records, for a recording of `regard.watch`, or for one matrix of weights with its tokens.

    Args:
        records: one record or several; a recording of `regard.watch`; weights (T, S) or (H, T, S), as lists, an array or a tensor; or a
            mapping of methods to such weights, {"weights": ..., "leave-one-out": ...}, where all but "weights" may be negative.
        key_tokens: for a recording or weights: the S key tokens; for a recorded batch a list per example.
        query_tokens: likewise the T query tokens; None: `key_tokens` (self-attention).
        image: for a recording of a vision model, instead of tokens: its input image, or a list of them.
        grid: (rows, columns) of the image's patches, if the model does not declare them.
        path: also write the page to this file.
        title: for a recording or weights: a name for the example.

    Returns:
        The page; a notebook displays it.

    Raises:
        DataError: weights without matching tokens, records with arguments of weights, no records, an object of another type, or a file
            that cannot be written.

    Example:
        >>> view([[0.9, 0.1], [0.2, 0.8]], ["das", "Haus"], ["the", "house"]).html[:15]
        '<!doctype html>'
    """
    if callable(make := getattr(records, "records", None)):
        found: Any = make(key_tokens, query_tokens, image=image, grid=grid, title=title)
    elif image is not None:
        raise DataError("image: only what regard.watch recorded can be shown over one; weights need their tokens")
    elif key_tokens is not None:
        found = [_one(records, key_tokens, query_tokens, title)]
    elif title or grid is not None or query_tokens is not None:
        raise DataError("title, grid and query_tokens go with a recording, or with weights and their key_tokens")
    elif isinstance(records, AttentionRecord):
        found = [records]
    else:
        found = record_list("view", records if isinstance(records, Iterable) else [records], some=True)
    page = Page(render_page(found))
    if path is not None:
        page.save(path)
    return page


def _one(weights: Any, key_tokens: Sequence[str], query_tokens: Sequence[str] | None, title: str) -> AttentionRecord:
    items = {"tokens": key_tokens} if query_tokens is None else {"source": key_tokens, "target": query_tokens}
    kind, query, key = ("self", "tokens", "tokens") if query_tokens is None else ("alignment", "target", "source")
    found = weights if isinstance(weights, Mapping) else {kind: weights}
    own = ("", kind, "weights")
    maps = [AttentionMap(name, kind, query, key, values, method="" if name in own else name) for name, values in found.items()]
    return AttentionRecord(items, maps, title=title)
