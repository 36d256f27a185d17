"""Adapters for models of Regard, and batches of random tokens for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import ConfigError
from regard.mask_check.adapter import Adapter, Inputs, Sequence
from regard.models import CaptionModel, EncoderDecoder, GivenFeatures, RecurrentLanguageModel, SentenceClassifier

LENGTH, ROWS = 9, 4
FIRST = 4
"""First token id that is not a special token (padding, unknown, BOS, EOS)."""


def own_adapter(model: nn.Module) -> Adapter | None:
    """Return the adapter of a model of Regard; None for any other model."""
    target = Sequence("target_input", causal=True)
    if isinstance(model, CaptionModel):
        return Adapter((target,), _decode, _start, _step)
    if isinstance(model, EncoderDecoder):
        return Adapter((Sequence("source", lengths="source_lengths", pad=0), target), _decode, _start, _step)
    if isinstance(model, RecurrentLanguageModel):
        return Adapter((Sequence("inputs", causal=True),), _read, _start_text, _step)
    if isinstance(model, SentenceClassifier):
        texts = ("tokens", "hypothesis") if model.fusion is not None else ("tokens",)
        return Adapter(tuple(Sequence(name, lengths=f"{name}_lengths", pad=0) for name in texts), _label)
    return None


def own_batch(model: nn.Module, adapter: Adapter, *, image_size: int | None = None) -> Inputs:
    """Return a batch of random tokens for a model of Regard, with rows of different lengths.

    Args:
        model: a model of Regard.
        adapter: its adapter.
        image_size: side in pixels of a captioner's images.

    Raises:
        ConfigError: a captioner without `image_size`.
    """
    generator = torch.Generator().manual_seed(3)
    device = next(model.parameters()).device
    batch: Inputs = {}
    if isinstance(model, CaptionModel):
        cells = model.grid[0] * model.grid[1]
        shape = (cells, model.image_encoder.output_dim) if isinstance(model.image_encoder, GivenFeatures) else (3, image_size, image_size)
        if None in shape:
            raise ConfigError("batch: a captioner needs images; give batch={'source': ..., 'source_lengths': ..., 'target_input': ...}")
        batch["source"] = torch.randn(ROWS, *[int(size or 0) for size in shape], generator=generator).to(device)
        batch["source_lengths"] = torch.full((ROWS,), cells, device=device)
    for number, sequence in enumerate(adapter.sequences):
        size = _vocabulary(model, sequence.name)
        tokens = torch.randint(min(FIRST, size - 2), size, (ROWS, LENGTH - number), generator=generator)
        if sequence.lengths is not None:
            lengths = torch.tensor([tokens.shape[1] - 2 * row for row in range(ROWS)])
            batch[sequence.name] = torch.where(torch.arange(tokens.shape[1]) < lengths.unsqueeze(1), tokens, 0).to(device)
            batch[sequence.lengths] = lengths.to(device)
        else:
            batch[sequence.name] = tokens.to(device)
    return batch


def _vocabulary(model: nn.Module, name: str) -> int:
    if isinstance(model, EncoderDecoder):
        embedding = getattr(model, "source_embedding", None) if name == "source" else None
        return embedding.num_embeddings if isinstance(embedding, nn.Embedding) else model.output.weight.shape[0]
    embedding = getattr(model, "embedding", None)
    if not isinstance(embedding, nn.Embedding):
        raise ConfigError(f"{type(model).__name__}: the size of its vocabulary cannot be told; give a batch")
    return embedding.num_embeddings


def _decode(model: Any, inputs: Inputs) -> Tensor:
    output = model.decode(inputs["source"], inputs["source_lengths"], inputs["target_input"], need_weights=False)
    return model.logits(output.readout)


def _start(model: Any, inputs: Inputs) -> Any:
    return model.start(inputs["source"], inputs["source_lengths"])


def _step(model: Any, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
    logits, _, state = model.step(tokens, state)
    return logits, state


def _read(model: Any, inputs: Inputs) -> Tensor:
    return model.logits(model.decode(inputs["inputs"]).readout)


def _start_text(model: Any, inputs: Inputs) -> Any:
    return model.start(len(inputs["inputs"]))


def _label(model: Any, inputs: Inputs) -> Tensor:
    names = [name for name in ("tokens", "hypothesis") if name in inputs]
    return model.classify([inputs[name] for name in names], [inputs[f"{name}_lengths"] for name in names], need_weights=False).logits
