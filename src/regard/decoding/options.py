"""Decoding options, checked once, and as tensors for a batch."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import torch
from torch import Tensor

from regard.arguments import items_of
from regard.decoding.penalties import length_penalty
from regard.decoding.phrases import ForcedPhrases, PhraseProgress
from regard.errors import ConfigError, ShapeError


def whole_number(name: str, value: Any, *, least: int | None = None) -> int:
    """Return a whole number of any type, NumPy's and torch's too, as an int.

    Raises:
        ConfigError: it is none, or below `least`; the message names it.

    Example:
        >>> whole_number("top_k", 2.0)
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: top_k: expected a whole number, found 2.0
    """
    try:
        found = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        raise ConfigError(f"{name}: expected a whole number{'' if least is None else f' of {least} or more'}, found {value!r}")
    return found


def check_number(name: str, value: object) -> None:
    """Check that a setting is a number.

    Raises:
        ConfigError: it is none; the message names it.

    Example:
        >>> check_number("top_p", "0.9")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: top_p: expected a number, found '0.9'
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ConfigError(f"{name}: expected a number, found {value!r}")


def _whole_numbers(name: str, values: Any) -> list[int]:
    if (found := items_of(values)) is None:
        raise ConfigError(f"{name}: expected whole numbers, found {values!r}")
    return [whole_number(name, value) for value in found]


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Decoding options. Lengths count generated tokens with EOS and forced prefix, without BOS; a Sequence has one entry per sentence.

    Attributes:
        bos: token fed to the first step; never part of a hypothesis.
        eos: token that ends a hypothesis.
        pad: token fed for finished samples while others of their sentence continue.
        beam_size: hypotheses kept per sentence (beam search only).
        n_best: hypotheses returned per sentence, 1 to `beam_size` (beam search only).
        max_length: maximum tokens, EOS included; a hypothesis that reaches it is finished without EOS. 0 gives the empty one.
        min_length: minimum tokens before EOS.
        length_penalty: alpha >= 0; log-probabilities are divided by ((5 + length) / 6) ** alpha.
        coverage_penalty: beta >= 0 of the GNMT coverage penalty; needs attention and `source_lengths`.
        no_repeat_ngram_size: n > 0 forbids repeated n-grams within a hypothesis; forced tokens are exempt.
        patience: a sentence is done once ceil(patience * beam) of its hypotheses have ended (Kasai et al., 2022, Eq. 2); 1 is standard beam
            search, `math.inf` continues until nothing can improve or `max_length` is reached.
        banned: tokens that are never generated unless forced (padding, BOS, ...).
        prefix: token ids that each sentence's hypotheses must begin with, None for no prefix.
        phrases: phrases that each sentence's hypotheses must contain, where possible (not for sampling), or None.
        source_lengths: source positions of each sentence, for the coverage penalty.
        need_attention: also return attention.

    If the rules allow no token, the hypothesis ends with EOS, even if banned or too early.

    Raises:
        ConfigError: a value is out of range.

    Example:
        >>> DecodingOptions(bos=2, eos=3, beam_size=4, max_length=[7, 9]).beam_size
        4
    """

    bos: int
    eos: int
    pad: int = 0
    beam_size: int = 5
    n_best: int = 1
    max_length: int | Sequence[int] = 200
    min_length: int = 0
    length_penalty: float = 1.0
    coverage_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    patience: float = 1.0
    banned: tuple[int, ...] = ()
    prefix: Sequence[Sequence[int] | None] | None = None
    phrases: ForcedPhrases | None = None
    source_lengths: Sequence[int] | None = None
    need_attention: bool = False

    def __post_init__(self) -> None:
        for name in ("bos", "eos", "pad", "beam_size", "n_best", "min_length", "no_repeat_ngram_size"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("length_penalty", "coverage_penalty", "patience"):
            check_number(name, getattr(self, name))
        object.__setattr__(self, "banned", tuple(_whole_numbers("banned", self.banned)))
        if self.source_lengths is not None:
            object.__setattr__(self, "source_lengths", _whole_numbers("source_lengths", self.source_lengths))
        if self.prefix is not None:
            rows = [self.prefix] if isinstance(self.prefix, str) or not isinstance(self.prefix, Iterable) else self.prefix
            object.__setattr__(self, "prefix", [row if row is None else _whole_numbers("prefix", row) for row in rows])
        one = not hasattr(self.max_length, "__len__") or getattr(self.max_length, "ndim", 1) == 0
        given: Any = [self.max_length] if one else self.max_length
        lengths = [whole_number("max_length", value) for value in given]
        object.__setattr__(self, "max_length", lengths[0] if one else lengths)
        if self.beam_size < 1:
            raise ConfigError(f"beam_size must be at least 1, found {self.beam_size}")
        if not 1 <= self.n_best <= self.beam_size:
            raise ConfigError(f"n_best must be 1 to beam_size ({self.beam_size}), found {self.n_best}")
        for name, values in (
            ("max_length", lengths),
            ("min_length", [self.min_length]),
            ("no_repeat_ngram_size", [self.no_repeat_ngram_size]),
            ("length_penalty", [self.length_penalty]),
            ("coverage_penalty", [self.coverage_penalty]),
            ("source_lengths", self.source_lengths or ()),
            ("bos, eos, pad and banned", [self.bos, self.eos, self.pad, *self.banned]),
        ):
            if not all(0 <= value < math.inf for value in values):
                raise ConfigError(f"{name} must be at least 0, found {next(v for v in values if not 0 <= v < math.inf)}")
        try:
            length_penalty(max(lengths, default=0), self.length_penalty)
        except OverflowError:
            raise ConfigError(f"length_penalty {self.length_penalty}: too large for {max(lengths)} tokens") from None
        if not self.patience > 0:
            raise ConfigError(f"patience must be greater than 0, found {self.patience}")
        if self.coverage_penalty and self.source_lengths is None:
            raise ConfigError("coverage_penalty needs source_lengths: padding must not count as uncovered")


@dataclass(frozen=True)
class BatchedOptions:
    """Decoding options for a batch: one entry per sentence, as tensors where steps need them.

    Attributes:
        device: of the model. The tensors, and the hypotheses of a search, are on it only where each step reads all logits or the attention;
            else they are on the CPU. A step then moves a few candidates to it, which a native call selects from, where a GPU would take
            dozens of calls and wait for several of them.
    """

    options: DecodingOptions
    device: torch.device
    limits: list[int]
    max_length: Tensor  # (B,) long
    ceiling: Tensor  # (B,) float: the length penalty at max_length
    prefix: Tensor  # (B, P) long, -1 after the end of a prefix
    progress: PhraseProgress | None  # of empty hypotheses
    source_lengths: Tensor | None  # (B,) long
    banned: Tensor  # (n,) long
    early: Tensor  # (n + 1,) long: banned, and EOS while it is too early
    highest: int  # the maximum token id in the options

    @classmethod
    def build(cls, options: DecodingOptions, batch_size: int, device: torch.device | str, *, reads_all: bool = False) -> Self:
        """Check the options against the batch size and move them to their device; `reads_all`: each step reads all logits.

        Raises:
            ShapeError: an option does not have one entry per sentence.
            ConfigError: a prefix contains EOS or a negative id, or exceeds the sentence's max_length.
        """
        limits = [options.max_length] * batch_size if isinstance(options.max_length, int) else list(options.max_length)
        prefixes = [list(prefix or ()) for prefix in options.prefix] if options.prefix is not None else [[] for _ in limits]
        phrases = options.phrases.sentences if options.phrases is not None else [()] * batch_size
        sources = options.source_lengths
        entries = {"max_length": limits, "prefix": prefixes, "phrases": phrases, "source_lengths": limits if sources is None else sources}
        for name, given in entries.items():
            if len(given) != batch_size:
                raise ShapeError(f"{name} has {len(given)} entries, but the batch has {batch_size} sentences")
        for sentence, (prefix, limit, own) in enumerate(zip(prefixes, limits, phrases, strict=True)):
            if options.eos in prefix or min(prefix, default=0) < 0:
                raise ConfigError(f"prefix of sentence {sentence} holds EOS ({options.eos}) or a negative id: {prefix}")
            if len(prefix) > limit:
                raise ConfigError(f"prefix of sentence {sentence} has {len(prefix)} tokens, but its max_length is {limit}")
            if bad := [row for phrase in own for row in phrase.rows if not row or options.eos in row or min(row) < 0]:
                raise ConfigError(f"a phrase of sentence {sentence} is empty, or holds EOS ({options.eos}) or a negative id: {bad[0]}")
        near = reads_all or options.phrases is not None or options.no_repeat_ngram_size or options.coverage_penalty
        model_device, device = torch.device(device), device if near else "cpu"
        width = max(map(len, prefixes), default=0)
        forced = [token for own in phrases for phrase in own for row in phrase.rows for token in row]
        progress = PhraseProgress.start(options.phrases, device) if options.phrases is not None and any(phrases) else None
        padded = [prefix + [-1] * (width - len(prefix)) for prefix in prefixes]
        return cls(
            options=options,
            device=model_device,
            limits=limits,
            max_length=torch.tensor(limits, dtype=torch.long, device=device),
            ceiling=torch.tensor([length_penalty(n, options.length_penalty) for n in limits], dtype=torch.float32, device=device),
            prefix=torch.tensor(padded, dtype=torch.long, device=device).view(batch_size, width),
            progress=progress,
            source_lengths=None if sources is None else torch.tensor(sources, dtype=torch.long, device=device),
            banned=torch.tensor(options.banned, dtype=torch.long, device=device),
            early=torch.tensor([*options.banned, options.eos], dtype=torch.long, device=device),
            highest=max(options.bos, options.eos, options.pad, *options.banned, *(max(p, default=0) for p in prefixes), *forced),
        )

    def forbidden(self, length: int) -> Tensor:
        """Return the forbidden tokens (n,) after `length` tokens."""
        return self.early if length < self.options.min_length else self.banned
