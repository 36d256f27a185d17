"""Explanation methods for Hugging Face models, as maps of records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from regard.errors import ConfigError, listed, shown
from regard.explanations import METHODS, input_times_gradient, integrated_gradients, leave_one_out, replace_one
from regard.explanations.flow import maximum_flows
from regard.explanations.methods import Method
from regard.explanations.rollout import Shares, compose
from regard.observe.call import AttentionCall
from regard.observe.images import patch_places
from regard.observe.layer_shares import layer_graph, layer_shares
from regard.observe.pretrained_batch import PretrainedBatch
from regard.observe.recording import Recording
from regard.observe.within import gradient_times_weights, norms_of_values
from regard.viewer import AttentionMap, AttentionRecord

ALL = "all"
"""Stands for all methods that can be computed for the model."""


def explain_calls(calls: Sequence[AttentionCall], method: str) -> Tensor:
    """Explain the states of the last layer by the attention of all layers: rollout or flow.

    Args:
        calls: the maps of one forward pass, in order. For an encoder-decoder the encoder's come first, and each cross-attention follows the
            self-attention of its layer.
        method: "rollout" or "flow".

    Returns:
        (B, T, S) for T states of the decoder, or of the only stack, and S inputs.

    Raises:
        ConfigError: the maps do not compose, as for layers that pool or attend in windows.

    Example:
        >>> explain_calls([AttentionCall("0", "self", torch.full((1, 2, 2, 2), 0.5))], "rollout")[0].tolist()
        [[0.75, 0.25], [0.25, 0.75]]
    """
    first = next((number for number, call in enumerate(calls) if call.kind == "cross"), None)
    split = len(calls) if first is None else max(0, first - 1)
    streams = ["source" if number < split else "target" for number in range(len(calls))]
    queries, keys = calls[-1].weights.shape[2], calls[0].weights.shape[3]
    sizes, steps = {"source": keys, "target": queries}, list[Shares]()
    for call, stream in zip(calls, streams, strict=True):
        weights, other = call.weights.mean(1), "source" if call.kind == "cross" else stream
        if weights.shape[1:] != (sizes[stream], sizes[other]):
            raise ConfigError(
                f"{method}: {call.layer} attends from {weights.shape[1]} to {weights.shape[2]}: its map continues none before it"
            )
        half = torch.eye(weights.shape[1]).expand(len(weights), -1, -1) / 2
        steps.append({stream: {stream: half + weights / 2} if other == stream else {stream: half, other: weights / 2}})
    graph = layer_graph(steps, keys, None if first is None else queries, len(calls[0].weights))
    if method == "rollout":
        return compose(graph)[..., :keys]
    there = [torch.ones(len(calls[0].weights), count, dtype=torch.bool) for count in (keys, queries)]
    return maximum_flows(graph, *there)


def check_methods(methods: str | Sequence[str]) -> list[str]:
    """Return method names as a list.

    Raises:
        ConfigError: one is unknown; the message lists those available.

    Example:
        >>> check_methods("rollout")
        ['rollout']
    """
    found = [methods] if isinstance(methods, str) else list(methods)
    for name in found:
        if name not in (ALL, *METHODS):
            raise ConfigError(f"method {shown(name)}: expected all, or one of {listed(METHODS)}")
    return found


def add_explanations(
    records: Sequence[AttentionRecord], seen: Recording, batch: PretrainedBatch | ConfigError, methods: Sequence[str]
) -> list[AttentionRecord]:
    """Add the scores of methods to the record of each example.

    Args:
        records: one per example, with weights.
        seen: the recording.
        batch: the same examples, or why there is none.
        methods: names, or "all".

    Raises:
        ConfigError: a requested method cannot be computed; the message says why.
    """
    found, every = list(records), ALL in methods
    for method in get_args(Method) if every else dict.fromkeys(methods):
        if method == "weights":
            continue
        try:
            scores, states = _explain(method, seen, batch)
        except ConfigError:
            if every:
                continue
            raise
        rows = None if states or isinstance(batch, ConfigError) else batch
        found = [_with_map(record, method, scores[number], rows, number) for number, record in enumerate(found)]
    return found


def _explain(method: str, seen: Recording, batch: PretrainedBatch | ConfigError) -> tuple[Tensor, bool]:
    # Scores, and whether they belong to states or to outputs.
    if method in ("rollout", "flow"):
        return _of_inputs(explain_calls(seen.maps(), method), seen), True
    if method == "leave-one-area-out":
        raise ConfigError(f"{method}: {seen.model} attends to single items, not to areas; take leave-one-out")
    if isinstance(batch, ConfigError):
        raise ConfigError(f"{method}: {batch}")
    if method == "alti":
        return _of_inputs(layer_shares(batch), seen), True
    if method.startswith("value-norms"):
        return _of_inputs(norms_of_values(batch, every_layer=method.endswith("layers")), seen), True
    if method == "gradient-attention":
        return _of_inputs(gradient_times_weights(batch), seen) * batch.inputs.unsqueeze(1), False
    functions = {
        "input-gradient": input_times_gradient,
        "integrated-gradients": integrated_gradients,
        "leave-one-out": leave_one_out,
        "replace-one": replace_one,
    }
    return functions[method](batch).detach() * batch.inputs.unsqueeze(1), False


def _of_inputs(found: Tensor, seen: Recording) -> Tensor:
    # Without the keys of an image that are no patches.
    return found if seen.patches.grid is None else found[..., patch_places(found.shape[-1], seen.patches)]


def _with_map(record: AttentionRecord, method: str, scores: Tensor, batch: PretrainedBatch | None, number: int) -> AttentionRecord:
    # Rows are the goals of a batch, or without it the states of the last layer.
    if batch is not None:
        record = _with_goal_items(record, batch, number)
    key = next(name for name in ("source", "image", "tokens") if name in record.items)
    query = batch.rows if batch is not None else next(name for name in ("target", "patches", "tokens") if name in record.items)
    kind = "image" if key == "image" else "cross" if query != key else "self"
    own = scores[: len(record.items[query]), : len(record.items[key])].double().cpu().numpy()
    return replace(record, maps=[*record.maps, AttentionMap(method, kind, query, key, own, method=method)])


def _with_goal_items(record: AttentionRecord, batch: PretrainedBatch, number: int) -> AttentionRecord:
    # The goals as items, with their probabilities.
    if batch.rows in record.items:
        return record
    with torch.no_grad():
        found = batch.log_probs()[number, : len(batch.names[number])].tolist()
    more = {batch.rows: batch.alternatives[number]} if batch.alternatives else {}
    items, scores = {**record.items, batch.rows: batch.names[number]}, {**record.scores, batch.rows: found}
    return replace(record, items=items, scores=scores, alternatives={**record.alternatives, **more})
