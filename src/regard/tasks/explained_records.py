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
from regard.viewer import AttentionMap, AttentionRecord

ALL = "all"
"""In place of methods: all that are defined for the model."""
WEIGHTS = "weights"
ASKED = tuple(name for name in METHODS if name not in (WEIGHTS, "flow"))
"""Methods that a request to a server may name: the weights are there anyway, and flow takes minutes."""
ALTERNATIVES = 5
"""Tokens told for each that was written."""
ROWS = 256
"""Rows of logits alive at a time."""


def check_methods(methods: Sequence[str]) -> None:
    """Refuse names of no method.

    Raises:
        ConfigError: names it, and those there are.

    Example:
        >>> check_methods(["guessing"])
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: --method 'guessing': expected all, or one of weights, rollout, flow, value-norms, alti, ...
    """
    for name in methods:
        if name not in (ALL, *METHODS):
            raise ConfigError(f"--method {shown(name)}: expected all, or one of {listed(METHODS)}")


def add_methods(
    record: AttentionRecord, batch: ModelBatch, methods: Sequence[str], *, query: str, keys: Sequence[str], kind: str
) -> AttentionRecord:
    """Add explanation scores of an example to its record.

    Args:
        record: of the example.
        batch: the same as the only example of a batch.
        methods: names, or "all".
        query: the name of its outputs among the items.
        keys: the names of its inputs, one behind the other.
        kind: of the maps.

    Raises:
        ConfigError: a method that was named is not defined for the model; says why.
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
            maps.append(AttentionMap(name, kind, query, key, own, method=method))
    return replace(record, maps=[*record.maps, *maps])


def token_alternatives(model: Any, readout: Tensor, vocabulary: Vocabulary) -> list[list[tuple[str, float]]]:
    """Return the most probable tokens at each place, with their probabilities.

    Args:
        model: with an output layer, `logits`.
        readout: (T, R).
        vocabulary: of its outputs.
    """
    found = []
    with torch.inference_mode():
        for rows in readout.split(ROWS):
            probabilities = model.logits(rows).float().softmax(-1)
            best = probabilities.topk(min(ALTERNATIVES, probabilities.shape[-1]))
            for values, ids in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                names = ["</s>" if token == EOS else piece for token, piece in zip(ids, vocabulary.pieces(ids), strict=True)]
                found.append(list(zip(names, values, strict=True)))
    return found
