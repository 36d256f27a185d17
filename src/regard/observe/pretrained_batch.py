"""Batches of texts and images of Hugging Face models for `regard.explanations`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.explanations import ModelBatch
from regard.observe.predictions import class_names, generates, is_of_tokens, most_probable, real_outputs, token_names

OTHERS = ("regression", "multi_label_classification")
"""Problem types of Hugging Face classifiers whose outputs are no probabilities of one class."""


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
        word_ids: (N,) ids of tokens that may take the place of others; None for images.
        scale: what the model multiplies the vectors of tokens by before it reads them.
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
    word_ids: Tensor | None = None
    scale: float = 1.0

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

    def words(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the vectors of random tokens: (count, E)."""
        if self.word_ids is None:
            raise ConfigError(f"replace-one: the inputs of {type(self.model).__name__} are patches, not words; take leave-one-out")
        chosen = self.word_ids[torch.randint(len(self.word_ids), (count,), generator=generator)]
        embedding: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]
        return embedding(chosen.to(self.vectors.device)).detach() * self.scale

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
        return self.log_probs_of(self.output(embedded))

    def log_probs_of(self, output: Any) -> Tensor:
        """Return the log-probabilities of an output, as `log_probs` does."""
        found = self.logits_of(output).log_softmax(-1)
        return found.gather(-1, self.goals.unsqueeze(-1)).squeeze(-1) * self.real

    def logits(self, embedded: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, V) of tokens, or (B, 1, C) of classes."""
        return self.logits_of(self.output(embedded))

    def output(self, embedded: Tensor | None = None, **more: Any) -> Any:
        """Return the output of the model; `more`: further arguments of its forward pass."""
        vectors, given = self.vectors if embedded is None else embedded, {**self.given, **more}
        if self.grid is not None:
            mean = self.vectors.mean(1, keepdim=True)
            given["pixel_values"] = _image_of(torch.where(self.kept.unsqueeze(-1), vectors, mean), self.grid, given["pixel_values"].shape)
        else:
            given["inputs_embeds"] = vectors * self.kept.unsqueeze(-1)
            if not self.attends_to_itself:
                given["attention_mask"] = given["attention_mask"] * self.kept
        try:
            return self.model(**given)
        except NotImplementedError as error:  # a classifier of the BART family
            raise ConfigError(f"{type(self.model).__name__} takes no vectors in place of tokens: {error}") from error

    def logits_of(self, output: Any) -> Tensor:
        """Return the logits of an output, as `logits` does."""
        logits, kind = getattr(output, "logits", None), type(self.model).__name__
        if not isinstance(logits, Tensor) or logits.dim() not in (2, 3):
            raise ConfigError(f"{kind} returns no probabilities to explain; load it with a head, such as AutoModelForMaskedLM")
        if logits.shape[-1] == 1 or getattr(getattr(self.model, "config", None), "problem_type", None) in OTHERS:
            raise ConfigError(f"{kind} returns a number or independent labels, no probabilities of classes to explain")
        return logits if logits.dim() == 3 else logits.unsqueeze(1)


def _special_ids(tokenizer: Any) -> list[int]:
    # Without the token of unknown words, which stands for a word, unless it marks an end or a beginning as well (GPT-2's does).
    marks = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "sep", "pad", "cls", "mask")}
    return sorted({*tokenizer.all_special_ids} - ({getattr(tokenizer, "unk_token_id", None)} - marks))


def text_batch(model: Any, tokenizer: Any, inputs: Mapping[str, Tensor]) -> PretrainedBatch:
    """Build a batch of texts.

    Args:
        model: a Hugging Face model.
        tokenizer: its tokenizer.
        inputs: `input_ids` (B, S), `attention_mask`, for an encoder-decoder `decoder_input_ids` (B, T), and other outputs of the tokenizer.

    Raises:
        ConfigError: the model returns no logits, or others from vectors than from tokens.
    """
    ids = inputs["input_ids"]
    mask = inputs.get("attention_mask", torch.ones_like(ids))
    ranked = mask.bool() & ~torch.isin(ids, torch.tensor(_special_ids(tokenizer), dtype=ids.dtype, device=ids.device))
    given = {name: value for name, value in inputs.items() if name not in ("input_ids", "attention_mask")} | {"attention_mask": mask}
    written = inputs.get("decoder_input_ids", ids if generates(model) else None)
    real = mask.bool()
    if "decoder_input_ids" in inputs:
        real = real_outputs(tokenizer, inputs["decoder_input_ids"])
    # Marian, Pegasus and MVP scale the vectors of tokens, but not vectors in their place.
    encoder = model.get_encoder() if "decoder_input_ids" in inputs and hasattr(model, "get_encoder") else None
    scale = float(getattr(encoder, "embed_scale", None) or 1.0)
    vectors = model.get_input_embeddings()(ids).detach() * scale
    special_ids = {*tokenizer.all_special_ids}
    known = min(len(tokenizer), model.get_input_embeddings().weight.shape[0])  # tables may be padded
    words = torch.tensor([number for number in range(known) if number not in special_ids])
    made = PretrainedBatch(model, given, vectors, ids, real, ranked, torch.ones_like(ranked), word_ids=words, scale=scale)
    batch, logits = _with_goals(made, written)
    _check_vectors(batch, ids)
    goals = [row[own].tolist() for row, own in zip(batch.goals, batch.real, strict=True)]
    if is_of_tokens(model, logits):
        rows = "next token" if generates(model) else "predicted token"
        best = [most_probable(row[own], tokenizer) for row, own in zip(logits, batch.real, strict=True)]
        return replace(batch, rows=rows, names=[token_names(tokenizer, own) for own in goals], alternatives=best)
    labels = class_names(model, logits.shape[-1])
    if logits.shape[1] == 1:
        return replace(batch, names=[[labels[number] for number in own] for own in goals])
    read = inputs.get("decoder_input_ids", ids)
    tokens = [token_names(tokenizer, row[own].tolist()) for row, own in zip(read, batch.real, strict=True)]
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


def _check_vectors(batch: PretrainedBatch, ids: Tensor) -> None:
    """Refuse a model that computes something else from vectors than from tokens."""
    with torch.no_grad():
        own, ours = batch.log_probs_of(batch.model(input_ids=ids, **batch.given)), batch.log_probs()
    if not torch.allclose(own, ours, rtol=1e-2, atol=1e-2, equal_nan=True):
        raise ConfigError(
            f"{type(batch.model).__name__} computes other probabilities from vectors, which explanations change, than from tokens (by up "
            f"to {float((own - ours).abs().max()):.2g} in log-probability); it cannot be explained"
        )


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
