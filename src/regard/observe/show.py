"""The page of anything that attends: records, recordings, weights, what a Hugging Face model returned, or the model itself."""

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
    """Make the page that shows what attends to what.

    With a Hugging Face model: `view(model, tokenizer, "text")` runs it on the text without gradients, in evaluation mode, inside
    `regard.watch`. An encoder-decoder also needs an output: its own greedy one, or that of `view(model, tokenizer, ("text", "output"))`;
    its rows are the decoder's input tokens. Several texts are a list. `view(model, image_processor, image=image)` shows a vision model.

    With what such a model returned with `output_attentions=True`, from `forward` or `generate`: `view(outputs, tokens)`; steps of a
    generation become one map, a beam search shows the hypotheses that were returned.

    Args:
        what: one record or several; a recording of `regard.watch`; weights (T, S) or (H, T, S), as lists, an array or a tensor, or such
            numbers by method of explanation, {"weights": ..., "alti": ...}; outputs of a Hugging Face model that hold attention weights; or
            such a model.
        key_tokens: S tokens that are attended to, of a batch a list for each example; with a model its tokenizer or image processor.
        query_tokens: T tokens that attend; None: `key_tokens` (self-attention). With a model the text, a list of texts, or pairs.
        image: with a vision model or a recording of one: the image it is given, a file, a picture of Pillow, an array or a tensor.
        grid: (rows, columns) of the image's patches, where the model does not tell.
        method: with a model: methods of explanation whose scores are shown beside its attention, such as "input-gradient"; "all": all that
            can be computed for it.
        path: write the page to this file, too.
        title: a name for the example.

    Returns:
        The page; a notebook shows it.

    Raises:
        DataError: tokens are missing or do not fit, the outputs hold no weights, a text is longer than the model takes, or a file cannot be
            written.
        ConfigError: a method cannot be computed for the model; says why.

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
