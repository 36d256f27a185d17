"""Predictions of Hugging Face models in records: classes with probabilities, and the most probable tokens at each position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.viewer import AttentionRecord, PredictionRecord

MOST = 5
"""Number of classes of a prediction, and of tokens per position."""


def generates(model: Any) -> bool:
    """Return whether a model continues texts, so that its logits at a position are those of the next token."""
    return bool(getattr(model, "can_generate", lambda: False)())


def class_names(model: Any, count: int) -> list[str]:
    """Return the names of a model's classes, distinct.

    Example:
        >>> from types import SimpleNamespace
        >>> class_names(SimpleNamespace(config=SimpleNamespace(id2label={0: "crane", 1: "crane"})), 3)
        ['crane', 'crane (1)', '2']
    """
    known = getattr(getattr(model, "config", None), "id2label", None) or {}
    names = dict[str, None]()
    for number in range(count):
        name = str(known.get(number, number))
        while name in names:
            name = f"{name} ({number})"
        names[name] = None
    return list(names)


def real_outputs(tokenizer: Any, written: Tensor) -> Tensor:
    """Return which tokens (B, T) that a decoder reads are none of padding, bool; the first, which starts the output, may be that token."""
    real = torch.ones_like(written, dtype=torch.bool)
    if tokenizer.pad_token_id is not None:
        real[:, 1:] = written[:, 1:] != tokenizer.pad_token_id
    return real


def add_prediction(record: AttentionRecord, model: Any, logits: Tensor | None, tokenizer: Any = None) -> AttentionRecord:
    """Add a model's prediction to the record of an example.

    A classifier's is the most probable class, with the probabilities of the five most probable ones. For logits of tokens, the record gets
    the five most probable tokens at each position; a generative model predicts none at the first one.

    Args:
        record: of one example.
        model: a Hugging Face model.
        logits: (1, C) of classes, (1, T, V) of tokens, or None. Other logits add nothing.
        tokenizer: the model's; None for images.
    """
    if logits is None or len(logits) != 1:
        return record
    if logits.dim() == 2 and logits.shape[1] > 1:
        return replace(record, prediction=_classes(model, logits[0]))
    rows = "target" if "target" in record.items else "tokens"
    if logits.dim() == 3 and is_of_tokens(model, logits) and rows in record.items:
        found = most_probable(logits[0], tokenizer)
        if generates(model):
            found = [[], *found[:-1]]
        if len(found) == len(record.items[rows]):
            return replace(record, alternatives={**record.alternatives, rows: found})
    return record


def is_of_tokens(model: Any, logits: Tensor) -> bool:
    """Return whether the last axis of logits is the model's vocabulary, rather than classes.

    A configuration of several parts, such as a picture's and a text's, has no `vocab_size` of its own: the output layer tells.
    """
    table = getattr(getattr(model, "get_output_embeddings", lambda: None)(), "weight", None)
    sizes = (getattr(getattr(model, "config", None), "vocab_size", None), None if table is None else table.shape[0])
    return logits.shape[-1] in sizes


def most_probable(logits: Tensor, tokenizer: Any) -> list[list[tuple[str, float]]]:
    """Return the most probable tokens of each row of logits (T, V), with their probabilities."""
    best = logits.float().softmax(-1).topk(min(MOST, logits.shape[-1]))
    return [
        list(zip(token_names(tokenizer, ids), values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def token_names(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return the tokens of ids; a vocabulary may have more rows than its tokenizer has tokens."""
    return [str(number) if token is None else token for number, token in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True)]


def _classes(model: Any, logits: Tensor) -> PredictionRecord:
    several = getattr(getattr(model, "config", None), "problem_type", None) == "multi_label_classification"
    probabilities = logits.float().sigmoid() if several else logits.float().softmax(-1)
    names, best = class_names(model, len(logits)), probabilities.topk(min(MOST, len(logits)))
    found = {names[number]: value for number, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)}
    return PredictionRecord(next(iter(found)), found)
