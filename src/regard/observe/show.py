"""Builds the page for records, recordings, weights, Hugging Face outputs, or a model itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from torch import nn

from regard import viewer
from regard.errors import DataError
from regard.observe.explained import check_methods
from regard.observe.outputs import has_attention, recording_of
from regard.observe.pretrained import image_records, text_records
from regard.observe.recording import Recording
from regard.viewer import AttentionRecord, Page


def view(
    what: AttentionRecord | Iterable[AttentionRecord] | Recording | nn.Module | Any,
    key_tokens: Any = None,
    query_tokens: Any = None,
    *,
    image: Any = None,
    grid: tuple[int, int] | None = None,
    method: str | Sequence[str] = (),
    path: str | Path | None = None,
    title: str = "",
) -> Page:
    """Build the page that shows attention.

    With a Hugging Face model: `view(model, tokenizer, "text")` runs it on the text without gradients, in evaluation mode, inside
    `regard.watch`. An encoder-decoder also needs an output: its own greedy one, or that of `view(model, tokenizer, ("text", "output"))`;
    the rows are the decoder's input tokens. Several texts are a list. `view(model, image_processor, image=image)` shows a vision model.

    With the result of such a model with `output_attentions=True`, from `forward` or `generate`: `view(outputs, tokens)`; the steps of a
    generation form one map, a beam search shows the returned hypotheses.

    Args:
        what: one record or several; a recording of `regard.watch`; weights (T, S) or (H, T, S), as lists, an array or a tensor, or a
            mapping of explanation methods to such weights, {"weights": ..., "alti": ...}; outputs of a Hugging Face model with attention
            weights; or such a model.
        key_tokens: the S attended tokens, for a batch a list per example; with a model its tokenizer or image processor.
        query_tokens: the T attending tokens; None: `key_tokens` (self-attention). With a model the text, a list of texts, or pairs.
        image: for a vision model or a recording of one: its input, as a file, a Pillow image, an array or a tensor.
        grid: (rows, columns) of the image's patches, if the model does not declare them.
        method: with a model: explanation methods to show beside its attention, such as "input-gradient"; "all": all that can be computed.
        path: also write the page to this file.
        title: a name for the example.

    Returns:
        The page; a notebook displays it.

    Raises:
        DataError: tokens are missing or do not fit, the outputs hold no weights, a text is longer than the model takes, or a file cannot be
            written.
        ConfigError: a method cannot be computed for the model; the message says why.

    Example:
        >>> view([[0.9, 0.1], [0.2, 0.8]], ["das", "Haus"], ["the", "house"]).html[:15]
        '<!doctype html>'
    """
    if isinstance(what, AbstractContextManager):
        raise DataError(
            "regard.watch(model) records inside its block: `with regard.watch(model) as seen: model(...)`, then view(seen, tokens)"
        )
    if isinstance(what, nn.Module):
        if key_tokens is None or (query_tokens is None) == (image is None):
            raise DataError('a model is shown by view(model, tokenizer, "text") or view(model, image_processor, image=image)')
        methods = check_methods(method)
        if image is None:
            what = text_records(what, key_tokens, query_tokens, methods=methods, title=title)
        else:
            what = image_records(what, key_tokens, image, grid=grid, methods=methods, title=title)
        return viewer.view(what, path=path)
    if method:
        raise DataError('method: only with a model: view(model, tokenizer, "text", method=...)')
    if has_attention(what):
        what = recording_of(what)
    return viewer.view(what, key_tokens, query_tokens, image=image, grid=grid, path=path, title=title)
