"""Batches of models that read two inputs: two texts, or a text and an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.errors import ConfigError, DataError
from regard.explanations.batch_checks import check_model, known_ids
from regard.explanations.batch_tensors import take_away
from regard.explanations.batches import TranslationBatch, changed
from regard.explanations.patches import patched
from regard.models import EncoderDecoder, TwoInputRecurrent, TwoInputTransformer
from regard.models.image_embedding import ImageEmbedding
from regard.models.input_rows import END, TwoInputs, join_rows, split_inputs


@dataclass(frozen=True)
class TwoInputBatch(TranslationBatch):
    """Examples of a model of two inputs: the inputs are the tokens of the first, then the tokens or image cells of the second.

    A removed token closes the gap; a removed cell becomes the mean of the image's cells.

    Args:
        model: a `TwoInputTransformer` or a `TwoInputRecurrent`.
        source: (B, S) rows of both inputs, EOS after each; see `regard.models.input_rows.split_inputs`.
        source_lengths: (B,).
        target_input: (B, T), BOS first.
        target_output: (B, T), EOS last.
        target_lengths: (B,), EOS included.
        cells: (B, L, E) embedded cells of the images, with what follows them; None: those of the images.

    Raises:
        ConfigError: a model of one input; or see `regard.explanations.batch_checks.check_model`.
        ShapeError, RangeError: as of `TranslationBatch`.
        DataError: a row without EOS after each input, or with more.

    Example:
        >>> from regard.config import TransformerConfig
        >>> from regard.models import build
        >>> model = build(TransformerConfig(second={"kind": "serial"}), source_size=11, target_size=11).eval()
        >>> source, lengths = torch.tensor([[4, 5, 3, 7, 3]]), torch.tensor([5])
        >>> batch = TwoInputBatch(model, source, lengths, torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2]))
        >>> batch.inputs.tolist(), batch.log_probs().shape
        ([[True, True, False, True, False]], torch.Size([1, 2]))
    """

    cells: Tensor | None = None

    def __post_init__(self) -> None:
        check_model("TwoInputBatch", self.model, EncoderDecoder)
        if not isinstance(self.model, TwoInputTransformer | TwoInputRecurrent):
            raise ConfigError(f"TwoInputBatch: {type(self.model).__name__} reads one input; take TranslationBatch")
        checks = self._check_pairs(max(map(known_ids, self._embeddings)))
        if self.cells is not None:
            checks.floating("cells", self.cells, "B L E")
        ends = (ops.length_mask(self.source_lengths, self.source.shape[1]) & (self.source == END)).sum(1)
        if (wrong := (ends != 2).nonzero()).numel():
            row = int(wrong[0])
            raise DataError(f"TwoInputBatch: row {row} of source has {int(ends[row])} times EOS ({END}), expected 2: one after each input")

    @property
    def inputs(self) -> Tensor:
        """(B, S) bool: the tokens and cells of both inputs without EOS."""
        return ops.length_mask(self.source_lengths, self.source.shape[1]) & (self.source != END)

    @property
    def split(self) -> TwoInputs:
        """The tokens of each input."""
        return split_inputs(self.source, self.source_lengths)

    @property
    def reads_images(self) -> bool:
        """Whether the second input is an image."""
        return isinstance(self._embeddings[1], ImageEmbedding)

    @property
    def _embeddings(self) -> tuple[nn.Module, nn.Module]:
        model = cast(Any, self.model)
        return model.source_embedding, model.second_embedding

    def select(self, rows: Tensor) -> Self:
        """Return the examples `rows` (B',)."""
        found = super().select(rows)
        return changed(found, cells=self._second_vectors()[rows]) if self.reads_images else found

    def keep(self, kept: Tensor) -> Self:
        """Remove tokens and close the gaps; replace cells by the mean cell."""
        tokens = kept | ~self.inputs
        if not self.reads_images:
            source, lengths = take_away(self.source, self.source_lengths, tokens)
            return changed(self, source=source, source_lengths=lengths)
        starts = self.split.first_lengths.unsqueeze(1)
        of_text = torch.arange(self.source.shape[1], device=self.source.device) < starts
        source, lengths = take_away(self.source, self.source_lengths, tokens | ~of_text)
        cells = self._second_vectors()
        places = starts + torch.arange(cells.shape[1], device=cells.device)
        columns = places.clamp(max=self.source.shape[1] - 1)
        own = self.inputs.gather(1, columns) & (places < self.source.shape[1])
        mean = (cells * own.unsqueeze(-1)).sum(1, keepdim=True) / own.sum(1).clamp(min=1)[:, None, None]
        gone = own & ~kept.gather(1, columns)
        return changed(self, source=source, source_lengths=lengths, cells=torch.where(gone.unsqueeze(-1), mean, cells))

    def embed(self) -> Tensor:
        """Return the vectors of both inputs (B, S, E), in the order of `source`, the smaller ones zero-padded to E.

        Those of cells include their positions.
        """
        split, first, second = self.split, self._first_vectors(), self._second_vectors()
        lengths = torch.stack([split.first_lengths, split.second_lengths], 1)
        size = max(first.shape[2], second.shape[2])
        second = F.pad(second, (0, size - second.shape[2], 0, max(0, int(lengths[:, 1].max()) - second.shape[1])))
        joined = join_rows(F.pad(first, (0, size - first.shape[2])), second, lengths)
        return F.pad(joined, (0, 0, 0, self.source.shape[1] - joined.shape[1]))

    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of each target token (B, T)."""
        if embedded is None and self.cells is None:
            return self._log_probs()
        first, second = self._first_vectors(), self._second_vectors()
        if embedded is not None:
            places = self.split.first_lengths.unsqueeze(1) + torch.arange(second.shape[1], device=embedded.device)
            columns = places.clamp(max=embedded.shape[1] - 1).unsqueeze(-1).expand(-1, -1, embedded.shape[2])
            first, second = embedded[:, : first.shape[1], : first.shape[2]], embedded.gather(1, columns)[..., : second.shape[2]]
        with _returning(self._embeddings, (first, second)):
            return self._log_probs()

    def word_embedding(self) -> nn.Module:
        """Return the embedding of both inputs.

        Raises:
            ConfigError: each has its own.
        """
        first, second = self._embeddings
        if first is not second:
            raise ConfigError("explanations: each input has an embedding of its own, so no random word stands in for both")
        return first

    def _first_vectors(self) -> Tensor:
        return self._embeddings[0](self.split.first)

    def _second_vectors(self) -> Tensor:
        if self.cells is not None:
            return self.cells
        split, embedding = self.split, self._embeddings[1]
        return embedding(split.second, split.second_lengths) if self.reads_images else embedding(split.second)


@contextmanager
def _returning(embeddings: tuple[nn.Module, nn.Module], vectors: tuple[Tensor, Tensor]) -> Iterator[None]:
    """Let the next call of each embedding return these vectors; an encoder embeds its first input first. Later calls are unchanged."""
    waiting: dict[nn.Module, list[Tensor]] = {}
    for module, given in zip(embeddings, vectors, strict=True):
        waiting.setdefault(module, []).append(given)

    def make(original: Callable[..., Any], left: list[Tensor]) -> Callable[..., Any]:
        return lambda *read: left.pop(0) if left else original(*read)

    with ExitStack() as patches:
        for module, left in waiting.items():
            patches.enter_context(patched(module, "forward", partial(make, left=left)))
        yield
