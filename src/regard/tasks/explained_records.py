"""Add explanation scores and token alternatives to attention records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from regard.data.vocabulary import EOS, Vocabulary
from regard.errors import ConfigError, listed, shown
from regard.explanations import METHODS, ModelBatch, explain
from regard.explanations.methods import Method
from regard.tasks.batch_threads import few_threads
from regard.viewer import AttentionMap, AttentionRecord

ALL = "all"
"""Stands for all methods that are defined for the model."""
WEIGHTS = "weights"
ASKED = tuple(name for name in METHODS if name not in (WEIGHTS, "flow"))
"""Methods that a server request may name: without the weights, which are always included, and flow, which takes minutes."""
ALTERNATIVES = 5
"""Number of alternatives per generated token."""
ROWS = 256
"""Rows of logits in memory at a time."""


def check_methods(methods: Sequence[str]) -> None:
    """Refuse unknown method names.

    Raises:
        ConfigError: the message names it and lists the available ones.

    Example:
        >>> check_methods(["guessing"])
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: --method 'guessing': expected all, or one of weights, rollout, flow, value-norms, ...
    """
    for name in methods:
        if name not in (ALL, *METHODS):
            raise ConfigError(f"--method {shown(name)}: expected all, or one of {listed(METHODS)}")


@few_threads()
def add_methods(
    record: AttentionRecord, batch: ModelBatch, methods: Sequence[str], *, query: str, keys: Sequence[str], kind: str
) -> AttentionRecord:
    """Add explanation scores of an example to its record.

    Args:
        record: of the example.
        batch: a batch of this example only.
        methods: names, or "all".
        query: name of its output items.
        keys: names of its input items, in order.
        kind: kind of the maps.

    Raises:
        ConfigError: a requested method is not defined for the model; the message says why.
    """
    maps = []
    rows = len(record.items[query])
    for method in METHODS if ALL in methods else dict.fromkeys(methods):
        if method == WEIGHTS:
            continue
        try:
            scores = explain(batch, cast(Method, method))[0].detach().double().cpu().numpy()
        except ConfigError:
            if ALL in methods:
                continue
            raise
        start = 0
        for key in keys:
            own = scores[:rows, start : start + len(record.items[key])]
            start += len(record.items[key])
            name = method if len(keys) == 1 else f"{method}, {key}"
            maps.append(AttentionMap(name, "image" if key == "image" else kind, query, key, own, method=method))
    return replace(record, maps=[*record.maps, *maps])


def token_alternatives(model: Any, readout: Tensor, vocabulary: Vocabulary, *, copied: Sequence[str] = ()) -> list[list[tuple[str, float]]]:
    """Return the most probable tokens at each position, with their probabilities.

    Args:
        model: a model with an output layer, `logits`.
        readout: (T, R).
        vocabulary: the output vocabulary.
        copied: the source words that further outputs stand for, of a model that copies.
    """
    found, size = [], len(vocabulary)
    with torch.inference_mode():
        for rows in readout.split(ROWS):
            probabilities = model.logits(rows).float().softmax(-1)
            best = probabilities.topk(min(ALTERNATIVES, probabilities.shape[-1]))
            for values, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                names = [copied[token - size] if token >= size else vocabulary.pieces([token])[0] for token in ids]
                names = ["</s>" if token == EOS else piece for token, piece in zip(ids, names, strict=True)]
                found.append(list(zip(names, values, strict=True)))
    return found
