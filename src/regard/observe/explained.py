"""Explanation methods for Hugging Face models: batches for `regard.explanations`, and maps for records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, listed, shown
from regard.explanations import METHODS, ModelBatch, input_times_gradient, integrated_gradients, leave_one_out
from regard.explanations.flow import maximum_flows
from regard.explanations.methods import Method
from regard.explanations.rollout import LayerGraph, compose
from regard.observe.call import AttentionCall
from regard.observe.images import patch_places
from regard.observe.predictions import class_names, generates, is_of_tokens, most_probable, token_names
from regard.observe.recording import Recording
from regard.viewer import AttentionMap, AttentionRecord

ALL = "all"
"""Stands for all methods that can be computed for the model."""
WITHIN = ("value-norms", "value-norms-layers", "alti", "gradient-attention")
"""Methods that need projections or gradients inside an attention, whose names differ between architectures."""


@dataclass(frozen=True)
class PretrainedBatch(ModelBatch):
    """B texts or images of a Hugging Face model, and the outputs whose probability is explained.

    Generative models: the outputs are the next token at each position, and the most probable one at the last. Other models: the most
    probable token at each position, or the most probable class. A removed token becomes a zero vector and, unless the model generates it,
    is masked; a removed patch becomes the mean patch.

    Args:
        model: in evaluation mode, with the interface and configuration of Hugging Face; its output has `logits`.
        given: its other inputs by name, each (B, ...).
        vectors: (B, S, E) embedded tokens, or pixels of patches.
        goals: (B, T) token or class ids.
        real: (B, T) bool: goals that are not padding.
        ranked: (B, S) bool: inputs without padding and special tokens.
        kept: (B, S) bool: inputs that are not removed.
        grid: (rows, columns) of the patches of an image, or None.
        rows: what the goals are: "label", "next token", "predicted token", or "predicted label" of each token.
        names: text of each goal, per example.
        alternatives: most probable tokens in place of each goal, per example; empty for classes.
    """

    model: nn.Module
    given: Mapping[str, Tensor]
    vectors: Tensor
    goals: Tensor
    real: Tensor
    ranked: Tensor
    kept: Tensor
    grid: tuple[int, int] | None = None
    rows: str = "label"
    names: Sequence[Sequence[str]] = ()
    alternatives: Sequence[Sequence[Sequence[tuple[str, float]]]] = ()

    @property
    def inputs(self) -> Tensor:
        """(B, S) bool: tokens or patches."""
        return self.ranked

    @property
    def outputs(self) -> Tensor:
        """(B, T) bool: goals that are not padding."""
        return self.real

    @property
    def attends_to_itself(self) -> bool:
        """Whether it generates after its inputs."""
        return generates(self.model) and "decoder_input_ids" not in self.given

    def select(self, rows: Tensor) -> Self:
        """Return the examples `rows` (B',)."""
        names = ("vectors", "goals", "real", "ranked", "kept")
        given = {name: tensor[rows] for name, tensor in self.given.items()}
        texts = {name: [own[row] for row in rows.tolist()] for name in ("names", "alternatives") if (own := getattr(self, name))}
        return replace(self, given=given, **texts, **{name: getattr(self, name)[rows] for name in names})

    def keep(self, kept: Tensor) -> Self:
        """Remove the inputs where `kept` is False."""
        return replace(self, kept=self.kept & (kept | ~self.ranked))

    def embed(self) -> Tensor:
        """Return the input vectors (B, S, E)."""
        return self.vectors

    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of each goal (B, T)."""
        found = self.logits(embedded).log_softmax(-1)
        return found.gather(-1, self.goals.unsqueeze(-1)).squeeze(-1) * self.real

    def logits(self, embedded: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) of tokens, or (B, 1, C) of classes."""
        vectors, given = self.vectors if embedded is None else embedded, dict(self.given)
        if self.grid is not None:
            mean = self.vectors.mean(1, keepdim=True)
            given["pixel_values"] = _image_of(torch.where(self.kept.unsqueeze(-1), vectors, mean), self.grid, given["pixel_values"].shape)
        else:
            given["inputs_embeds"] = vectors * self.kept.unsqueeze(-1)
            if not self.attends_to_itself:
                given["attention_mask"] = given["attention_mask"] * self.kept
        kind = type(self.model).__name__
        try:
            logits = getattr(self.model(**given), "logits", None)
        except NotImplementedError as error:  # a classifier of the BART family
            raise ConfigError(f"{kind} takes no vectors in place of tokens: {error}") from error
        if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
            raise ConfigError(f"{kind} returns no probabilities to explain; load it with a head, such as AutoModelForMaskedLM")
        return logits if logits.dim() == 3 else logits.unsqueeze(1)


def text_batch(model: Any, tokenizer: Any, inputs: Mapping[str, Tensor]) -> PretrainedBatch:
    """Build a batch of texts.

    Args:
        model: a Hugging Face model.
        tokenizer: its tokenizer.
        inputs: `input_ids` (B, S), `attention_mask`, for an encoder-decoder `decoder_input_ids` (B, T), and other outputs of the tokenizer.

    Raises:
        ConfigError: the model returns no logits.
    """
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    special = [tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in ids.tolist()]
    ranked = mask.bool() & ~torch.tensor(special, dtype=torch.bool, device=ids.device)
    given = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")} | {"attention_mask": mask}
    written = inputs.get("decoder_input_ids", ids if generates(model) else None)
    real = mask.bool()
    if "decoder_input_ids" in inputs:
        real = inputs["decoder_input_ids"] != tokenizer.pad_token_id
        real[:, 0] = True
    vectors = model.get_input_embeddings()(ids).detach()
    batch, logits = _with_goals(PretrainedBatch(model, given, vectors, ids, real, ranked, torch.ones_like(ranked)), written)
    goals = [row[own].tolist() for row, own in zip(batch.goals, batch.real, strict=True)]
    if is_of_tokens(model, logits):
        rows = "next token" if generates(model) else "predicted token"
        best = [most_probable(row[own], tokenizer) for row, own in zip(logits, batch.real, strict=True)]
        return replace(batch, rows=rows, names=[token_names(tokenizer, own) for own in goals], alternatives=best)
    labels = class_names(model, logits.shape[-1])
    if logits.shape[1] == 1:
        return replace(batch, names=[[labels[number] for number in own] for own in goals])
    tokens = [token_names(tokenizer, row[own].tolist()) for row, own in zip(ids, batch.real, strict=True)]
    names = [[f"{token}: {labels[n]}" for token, n in zip(own, row, strict=True)] for own, row in zip(tokens, goals, strict=True)]
    return replace(batch, rows="predicted label", names=names)


def image_batch(model: Any, pixels: Tensor, grid: tuple[int, int]) -> PretrainedBatch:
    """Build a batch of images (B, C, H, W) with a grid of patches.

    Raises:
        ConfigError: the model returns no logits.
    """
    patches = _patches_of(pixels, grid)
    there = torch.ones(patches.shape[:2], dtype=torch.bool, device=pixels.device)
    batch, logits = _with_goals(PretrainedBatch(model, {"pixel_values": pixels}, patches, there, there, there, there, grid), None)
    labels = class_names(model, logits.shape[-1])
    return replace(batch, names=[[labels[number] for number in own] for own in batch.goals.tolist()])


def _with_goals(batch: PretrainedBatch, written: Tensor | None) -> tuple[PretrainedBatch, Tensor]:
    # And the logits.
    with torch.no_grad():
        logits = batch.logits()
    best = logits.argmax(-1)
    if best.shape[1] == 1:
        return replace(batch, goals=best, real=torch.ones_like(best, dtype=torch.bool)), logits
    if written is not None:
        last = torch.arange(best.shape[1], device=best.device) == batch.real.sum(1, keepdim=True) - 1
        best = torch.where(last, best, torch.cat([written[:, 1:], best[:, -1:]], 1))
    return replace(batch, goals=best), logits


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
    sizes, steps = {"source": keys, "target": queries}, list[dict[str, dict[str, Tensor]]]()
    for call, stream in zip(calls, streams, strict=True):
        weights, other = call.weights.mean(1), "source" if call.kind == "cross" else stream
        if weights.shape[1:] != (sizes[stream], sizes[other]):
            raise ConfigError(
                f"{method}: {call.layer} attends from {weights.shape[1]} to {weights.shape[2]}: its map continues none before it"
            )
        half = torch.eye(weights.shape[1]).expand(len(weights), -1, -1) / 2
        steps.append({stream: {stream: half + weights / 2} if other == stream else {stream: half, other: weights / 2}})
    # After the inputs come the target tokens, which the decoder reads.
    more = 0 if first is None else queries
    start = {"source": torch.eye(keys, keys + more).expand(len(calls[0].weights), -1, -1)}
    if first is not None:
        start["target"] = torch.eye(keys + more)[keys:].expand(len(calls[0].weights), -1, -1)
    graph = LayerGraph(start, steps, streams[-1])
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
        found = explain_calls(seen.maps(), method)
        if seen.patches.grid is not None:
            found = found[..., patch_places(found.shape[-1], seen.patches)]
        return found, True
    if method in WITHIN:
        raise ConfigError(
            f"{method}: needs the projections inside each attention, which {seen.model} has under names of its own; take rollout, "
            "input-gradient, integrated-gradients or leave-one-out"
        )
    if method == "leave-one-area-out":
        raise ConfigError(f"{method}: {seen.model} attends to single items, not to areas; take leave-one-out")
    if method == "replace-one":
        raise ConfigError(f"{method}: only for Regard's own models; take leave-one-out, which puts a zero vector in place of a token")
    if isinstance(batch, ConfigError):
        raise ConfigError(f"{method}: {batch}")
    functions = {"input-gradient": input_times_gradient, "integrated-gradients": integrated_gradients, "leave-one-out": leave_one_out}
    return functions[method](batch).detach() * batch.inputs.unsqueeze(1), False


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


def _patches_of(pixels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Cut images (B, C, H, W) into patches (B, rows * columns, C * h * w)."""
    rows, columns = grid
    if pixels.shape[2] % rows or pixels.shape[3] % columns:
        raise ConfigError(f"image: {tuple(pixels.shape[2:])} pixels do not make {rows} x {columns} patches of one size")
    parts = pixels.unflatten(3, (columns, -1)).unflatten(2, (rows, -1))  # (B, C, rows, h, columns, w)
    return parts.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def _image_of(patches: Tensor, grid: tuple[int, int], shape: Sequence[int]) -> Tensor:
    rows, columns = grid
    parts = patches.view(-1, rows, columns, shape[1], shape[2] // rows, shape[3] // columns)
    return parts.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)
