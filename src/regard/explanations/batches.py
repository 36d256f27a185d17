"""What explanation methods need of a model: its input vectors, and the log-probabilities of the explained outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ConfigError, ShapeError, counted
from regard.explanations.batch_checks import BatchChecks, check_model, known_ids, type_name
from regard.explanations.batch_tensors import apart, goal_log_probs, take_away
from regard.explanations.patches import patched
from regard.flags import takes_flags
from regard.models import (
    CaptionModel,
    DecoderOutput,
    EncoderDecoder,
    RecurrentLanguageModel,
    SentenceClassifier,
    TwoInputRecurrent,
    TwoInputTransformer,
)

Batch = TypeVar("Batch", bound="ModelBatch")

# Ids below are no words: padding, unknown, and both ends.
FIRST_WORD = 4


class ModelBatch(ABC):
    """B examples of one model: S inputs, and T outputs whose log-probability is explained.

    Methods are functions of such a batch and use the model only through it: its own forward pass, in evaluation mode.

    Attributes:
        model: in evaluation mode.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch: ModelBatch = LabelBatch(model, [torch.tensor([[4, 5, 6]])], [torch.tensor([3])], torch.tensor([1]))
        >>> batch.keep(torch.tensor([[True, False, True]])).inputs.tolist()
        [[True, True, False]]
    """

    model: nn.Module

    @property
    @abstractmethod
    def inputs(self) -> Tensor:
        """(B, S) bool: inputs that an explanation ranks, without padding and EOS."""

    @property
    @abstractmethod
    def outputs(self) -> Tensor:
        """(B, T) bool: outputs that are not padding."""

    @abstractmethod
    def select(self, rows: Tensor) -> Self:
        """Return the examples `rows` (B',); an example may repeat."""

    @abstractmethod
    def keep(self, kept: Tensor) -> Self:
        """Remove the inputs where `kept` (B, S) bool is False. The outputs stay."""

    @abstractmethod
    def embed(self) -> Tensor:
        """Return the input vectors (B, S, E)."""

    @abstractmethod
    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of each output, in nats: (B, T), 0 at padding.

        Args:
            embedded: (B, S, E) input vectors; None: the model's own.
        """

    def words(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the vectors of random words of the vocabulary, uniformly: (count, E).

        Raises:
            ConfigError: the inputs are not words.
        """
        embedding = self.word_embedding()
        size = cast(nn.Embedding, embedding).weight.shape[0]
        ids = torch.randint(min(FIRST_WORD, size - 1), size, (count,), generator=generator).to(self.inputs.device)
        return embedding(ids.unsqueeze(0)).squeeze(0)

    def word_embedding(self) -> nn.Module:
        """Return the embedding of the inputs.

        Raises:
            ConfigError: the inputs are not words.
        """
        raise ConfigError(f"explanations: the inputs of {type(self.model).__name__} are no words of a vocabulary")

    @property
    def attends_to_itself(self) -> bool:
        """Whether output t depends on earlier inputs only, as in a language model."""
        return False

    def inputs_of(self, outputs: Tensor) -> Tensor:
        """Return the inputs (B, S) bool of `outputs` (B,), one per example."""
        if not self.attends_to_itself:
            return self.inputs
        return self.inputs & (torch.arange(self.inputs.shape[1], device=outputs.device) <= outputs.unsqueeze(1))


@contextmanager
def _reading(module: nn.Module, given: Sequence[Tensor], vectors: Sequence[Tensor]) -> Iterator[None]:
    """Make an embedding return these vectors for these tensors; other calls are unchanged."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(read: Tensor) -> Tensor:
            for one, found in zip(given, vectors, strict=True):
                if read is one:
                    return found
            return original(read)

        return forward

    with patched(module, "forward", make):
        yield


def changed(batch: Batch, **changes: Any) -> Batch:
    """Return a copy of a batch, a dataclass, with other values; unlike `dataclasses.replace` it checks none of them."""
    copy = object.__new__(type(batch))
    for each in fields(cast(Any, batch)):
        object.__setattr__(copy, each.name, changes[each.name] if each.name in changes else getattr(batch, each.name))
    return copy


@dataclass(frozen=True)
class TranslationBatch(ModelBatch):
    """Sentence pairs: the inputs are the source tokens, the outputs the target tokens with EOS under teacher forcing.

    Args:
        model: any `EncoderDecoder` but an ensemble.
        source: (B, S) tokens, EOS included.
        source_lengths: (B,).
        target_input: (B, T), BOS first.
        target_output: (B, T), EOS last.
        target_lengths: (B,), EOS included.

    Raises:
        ConfigError: a model of two inputs; or see `regard.explanations.batch_checks.check_model`.
        ShapeError: a tensor is none, or has other axes, another dtype or device.
        RangeError: on a CPU, an id or a length is out of range.

    Example:
        >>> from regard.config import RNNConfig
        >>> from regard.models import build
        >>> model = build(RNNConfig(), source_size=11, target_size=11).eval()
        >>> pair = torch.tensor([[4, 5, 3]]), torch.tensor([3]), torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2])
        >>> batch = TranslationBatch(model, *pair)
        >>> batch.inputs.tolist(), batch.log_probs().shape
        ([[True, True, False]], torch.Size([1, 2]))
    """

    model: EncoderDecoder[Any]
    source: Tensor
    source_lengths: Tensor
    target_input: Tensor
    target_output: Tensor
    target_lengths: Tensor

    def __post_init__(self) -> None:
        check_model("TranslationBatch", self.model, EncoderDecoder)
        if isinstance(self.model, TwoInputTransformer | TwoInputRecurrent):
            raise ConfigError(f"TranslationBatch: {type(self.model).__name__} reads two inputs; take TwoInputBatch")
        self._check_pairs(known_ids(getattr(self.model, "source_embedding", None)))

    def _check_pairs(self, source_ids: int) -> BatchChecks:
        checks = BatchChecks(type(self).__name__, self.model)
        checks.whole("source", self.source, "B S", high=source_ids - 1)
        checks.whole("source_lengths", self.source_lengths, "B", low=1, high=self.source.shape[1])
        checks.target(self.target_input, self.target_output, self.target_lengths)
        object.__setattr__(self, "target_input", apart([self.source, self.target_input])[1])
        return checks

    @property
    def inputs(self) -> Tensor:
        """(B, S) bool: the source tokens without EOS."""
        return ops.length_mask(self.source_lengths - 1, self.source.shape[1])

    @property
    def outputs(self) -> Tensor:
        """(B, T) bool: the target tokens with EOS."""
        return ops.length_mask(self.target_lengths, self.target_output.shape[1])

    def select(self, rows: Tensor) -> Self:
        """Return the pairs `rows` (B',)."""
        names = ("source", "source_lengths", "target_input", "target_output", "target_lengths")
        return changed(self, **{name: getattr(self, name)[rows] for name in names})

    def keep(self, kept: Tensor) -> Self:
        """Remove source tokens and close the gaps."""
        source, lengths = take_away(self.source, self.source_lengths, kept | ~self.inputs)
        return changed(self, source=source, source_lengths=lengths)

    def embed(self) -> Tensor:
        """Return the embedded source (B, S, E), without positions."""
        return self.word_embedding()(self.source)

    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of each target token (B, T)."""
        if embedded is None:
            return self._log_probs()
        with _reading(self.word_embedding(), [self.source], [embedded]):
            return self._log_probs()

    def word_embedding(self) -> nn.Module:
        """Return the embedding of the source."""
        found = getattr(self.model, "source_embedding", None)
        if not isinstance(found, nn.Module):
            raise ConfigError(f"explanations: {type(self.model).__name__} has no source_embedding to read vectors with")
        return found

    def _log_probs(self) -> Tensor:
        readout = self.model.decode(self.source, self.source_lengths, self.target_input, need_weights=False).readout
        return goal_log_probs(self.model, readout, self.target_output, self.outputs)


@dataclass(frozen=True)
class CaptionBatch(ModelBatch):
    """Images with captions: the inputs are the grid cells, the outputs the words with EOS.

    A removed cell becomes the mean of the image's cells.

    Args:
        model: the captioner.
        images: (B, 3, H, W), or features (B, L, D) for a model that reads these.
        target_input: (B, T), BOS first.
        target_output: (B, T), EOS last.
        target_lengths: (B,), EOS included.
        features: (B, L, D) the cells; None: those of the images.

    Raises:
        ConfigError: see `regard.explanations.batch_checks.check_model`.
        ShapeError, RangeError: as of `TranslationBatch`.

    Example:
        >>> from regard.config.captioning import ShowConfig
        >>> from regard.models import build_captioner
        >>> model = build_captioner(ShowConfig(), image_size=16, vocab_size=11).eval()
        >>> batch = CaptionBatch(model, torch.zeros(1, 3, 16, 16), torch.tensor([[2, 6]]), torch.tensor([[6, 3]]), torch.tensor([2]))
        >>> batch.inputs.shape, batch.log_probs().shape
        (torch.Size([1, 4]), torch.Size([1, 2]))
    """

    model: CaptionModel[Any]
    images: Tensor
    target_input: Tensor
    target_output: Tensor
    target_lengths: Tensor
    features: Tensor | None = None

    def __post_init__(self) -> None:
        check_model("CaptionBatch", self.model, CaptionModel)
        checks = BatchChecks("CaptionBatch", self.model)
        checks.floating("images", self.images, "B L D" if getattr(self.images, "ndim", 4) == 3 else "B 3 H W")
        if self.features is not None:
            checks.floating("features", self.features, f"B {self._count} D")
        checks.target(self.target_input, self.target_output, self.target_lengths)

    @property
    def inputs(self) -> Tensor:
        """(B, L) bool: every cell."""
        return torch.ones(len(self.images), self._count, dtype=torch.bool, device=self.images.device)

    @property
    def outputs(self) -> Tensor:
        """(B, T) bool: the words with EOS."""
        return ops.length_mask(self.target_lengths, self.target_output.shape[1])

    def select(self, rows: Tensor) -> Self:
        """Return the images `rows` (B',)."""
        names = ("images", "target_input", "target_output", "target_lengths")
        return changed(self, **{name: getattr(self, name)[rows] for name in names}, features=self.embed()[rows])

    def keep(self, kept: Tensor) -> Self:
        """Replace cells by the mean cell."""
        cells = self.embed()
        return changed(self, features=torch.where(kept.unsqueeze(-1), cells, cells.mean(1, keepdim=True)))

    def embed(self) -> Tensor:
        """Return the features of the cells (B, L, D)."""
        return self._cells

    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of each word (B, T)."""
        return goal_log_probs(self.model, self.decode(embedded).readout, self.target_output, self.outputs)

    @takes_flags
    def decode(self, embedded: Tensor | None = None, *, need_weights: bool = False) -> DecoderOutput:
        """Run the decoder over the captions, with given cells (B, L, D) or the image's own."""
        count = torch.full((len(self.images),), self._count, device=self.images.device)
        with _reading(self.model.image_encoder, [self.images], [self._cells if embedded is None else embedded]):
            return self.model.decode(self.images, count, self.target_input, need_weights=need_weights)

    @cached_property
    def _cells(self) -> Tensor:
        return self.model.image_encoder(self.images).detach() if self.features is None else self.features

    @property
    def _count(self) -> int:
        rows, columns = self.model.grid
        return rows * columns


@dataclass(frozen=True)
class LabelBatch(ModelBatch):
    """Texts or text pairs with labels: the inputs are the tokens, those of a second text after the first; T is 1.

    Args:
        model: of classification or entailment.
        tokens: (B, S_i) per text.
        lengths: (B,) per text.
        labels: (B,) class numbers.

    Raises:
        ConfigError: see `regard.explanations.batch_checks.check_model`.
        ShapeError, RangeError: as of `TranslationBatch`.

    Example:
        >>> from regard.config import ClassifierConfig
        >>> from regard.models import build_classifier
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1])).log_probs().shape
        torch.Size([1, 1])
    """

    model: SentenceClassifier
    tokens: Sequence[Tensor]
    lengths: Sequence[Tensor]
    labels: Tensor

    def __post_init__(self) -> None:
        check_model("LabelBatch", self.model, SentenceClassifier)
        count = 1 if self.model.fusion is None else 2
        for name in ("tokens", "lengths"):
            if not isinstance(given := getattr(self, name), list | tuple) or len(given) != count:
                found = f"{len(given)} items" if isinstance(given, list | tuple) else type_name(given)
                raise ShapeError(f"LabelBatch: {name} must be a list of {counted(count, 'tensor')}, one per text, found {found}")
        checks = BatchChecks("LabelBatch", self.model)
        for place, (tokens, lengths) in enumerate(zip(self.tokens, self.lengths, strict=True)):
            checks.whole(f"tokens[{place}]", tokens, f"B S{place + 1}", high=known_ids(self.model.embedding) - 1)
            checks.whole(f"lengths[{place}]", lengths, "B", high=tokens.shape[1])
        checks.whole("labels", self.labels, "B", high=known_ids(self.model.head.output) - 1)
        object.__setattr__(self, "tokens", apart(self.tokens))

    @property
    def inputs(self) -> Tensor:
        """(B, S) bool: all tokens."""
        return torch.cat([ops.length_mask(count, part.shape[1]) for part, count in zip(self.tokens, self.lengths, strict=True)], 1)

    @property
    def outputs(self) -> Tensor:
        """(B, 1) bool: the label."""
        return torch.ones(len(self.labels), 1, dtype=torch.bool, device=self.labels.device)

    def select(self, rows: Tensor) -> Self:
        """Return the examples `rows` (B',)."""
        return changed(
            self, tokens=[part[rows] for part in self.tokens], lengths=[part[rows] for part in self.lengths], labels=self.labels[rows]
        )

    def keep(self, kept: Tensor) -> Self:
        """Remove tokens and close the gaps. A text may lose all of them."""
        sizes = [part.shape[1] for part in self.tokens]
        left = [take_away(*part) for part in zip(self.tokens, self.lengths, kept.split(sizes, 1), strict=True)]
        return changed(self, tokens=[part[0] for part in left], lengths=[part[1] for part in left])

    def embed(self) -> Tensor:
        """Return the embedded tokens (B, S, E), without positions."""
        return torch.cat([self.model.embedding(part) for part in self.tokens], 1)

    def word_embedding(self) -> nn.Module:
        """Return the embedding of the tokens."""
        return self.model.embedding

    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of the label (B, 1)."""
        if embedded is None:
            return self._log_probs()
        with _reading(self.model.embedding, self.tokens, embedded.split([part.shape[1] for part in self.tokens], 1)):
            return self._log_probs()

    def _log_probs(self) -> Tensor:
        logits = self.model.classify(self.tokens, self.lengths, need_weights=False).logits
        return logits.log_softmax(-1).gather(1, self.labels.unsqueeze(1))


@dataclass(frozen=True)
class LanguageBatch(ModelBatch):
    """Lines of text: the inputs of each token are those before it; S = T, and the first input is not ranked.

    Args:
        model: the language model.
        read: (B, T) the input tokens; BOS at the start of a line.
        goals: (B, T) the tokens to predict.
        lengths: (B,).
        places: (B, T) index of the state that predicts each token; None: its own.

    Raises:
        ConfigError: see `regard.explanations.batch_checks.check_model`.
        ShapeError, RangeError: as of `TranslationBatch`.

    Example:
        >>> from regard.config import LanguageModelConfig
        >>> from regard.models import build_language_model
        >>> model = build_language_model(LanguageModelConfig(embed_dim=8, hidden_size=6, window=3), vocab_size=11).eval()
        >>> batch = LanguageBatch(model, torch.tensor([[2, 6, 7]]), torch.tensor([[6, 7, 3]]), torch.tensor([3]))
        >>> batch.inputs.tolist(), batch.log_probs().shape
        ([[False, True, True]], torch.Size([1, 3]))
    """

    model: RecurrentLanguageModel
    read: Tensor
    goals: Tensor
    lengths: Tensor
    places: Tensor | None = field(default=None)

    def __post_init__(self) -> None:
        check_model("LanguageBatch", self.model, RecurrentLanguageModel)
        checks = BatchChecks("LanguageBatch", self.model)
        checks.whole("read", self.read, "B T", high=known_ids(self.model.embedding) - 1)
        checks.whole("goals", self.goals, "B T", high=known_ids(self.model.output) - 1)
        checks.whole("lengths", self.lengths, "B", high=self.goals.shape[1])
        if self.places is not None:
            checks.whole("places", self.places, "B T", low=-1, high=self.goals.shape[1] - 1)

    @property
    def inputs(self) -> Tensor:
        """(B, T) bool: the input tokens without the first."""
        found = self.outputs.clone()
        found[:, :1] = False
        return found

    @property
    def outputs(self) -> Tensor:
        """(B, T) bool: the tokens to predict."""
        return ops.length_mask(self.lengths, self.goals.shape[1])

    @property
    def attends_to_itself(self) -> bool:
        """Whether output t depends on earlier inputs only."""
        return True

    def select(self, rows: Tensor) -> Self:
        """Return the lines `rows` (B',)."""
        places = None if self.places is None else self.places[rows]
        return changed(self, read=self.read[rows], goals=self.goals[rows], lengths=self.lengths[rows], places=places)

    def keep(self, kept: Tensor) -> Self:
        """Remove input tokens; each token is predicted by the state of the last remaining token before it."""
        kept = kept | ~self.inputs
        read, _ = take_away(self.read, self.lengths, kept)
        return changed(self, read=read, places=(kept & self.outputs).cumsum(1) - 1)

    def embed(self) -> Tensor:
        """Return the embedded tokens (B, T, E)."""
        return self.model.embedding(self.read)

    def word_embedding(self) -> nn.Module:
        """Return the embedding of the tokens."""
        return self.model.embedding

    def log_probs(self, embedded: Tensor | None = None) -> Tensor:
        """Return the log-probability of each token (B, T)."""
        if embedded is None:
            readout = self.model.decode(self.read).readout
        else:
            with _reading(self.model.embedding, [self.read], [embedded]):
                readout = self.model.decode(self.read).readout
        if self.places is not None:
            readout = readout.gather(1, self.places.clamp(min=0).unsqueeze(-1).expand(-1, -1, readout.shape[-1]))
        return goal_log_probs(self.model, readout, self.goals, self.outputs)
