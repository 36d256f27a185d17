"""Prediction with a trained run: parallel batches, and text generation by beam search or sampling."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import nn

from regard import ops, progress
from regard.config import DecodingConfig
from regard.config.base import MAX_BEAM
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding import DecodingOptions, ForcedPhrases, Hypothesis, SamplingOptions, beam_search, greedy_search, sample
from regard.decoding.options import whole_number
from regard.decoding.protocol import GreedySearch
from regard.errors import ConfigError
from regard.ops.kernels import native
from regard.tasks.batch_threads import cut_batches, map_batches
from regard.tasks.run_folder import device_of

Result = TypeVar("Result")
AnyRun = TypeVar("AnyRun")


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return row indices, longest first: little padding, and an out-of-memory error comes early.

    Example:
        >>> longest_first([3, 5, 3])
        [1, 0, 2]
    """
    return sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))


def predict(
    model: nn.Module,
    function: Callable[[list[int]], Sequence[Result]],
    rows: list[int],
    batch_size: int,
    *,
    stage: progress.Stage,
    poll: Callable[[], None] | None = None,
    precision: str = "float32",
) -> dict[int, Result]:
    """Apply a function to rows in batches of at most `batch_size`, several at a time on a CPU.

    Args:
        model: the model that the function uses.
        function: rows of a batch in, a result for each out; called in other threads.
        rows: row indices, in processing order.
        batch_size: rows per batch.
        stage: progress stage.
        poll: called before each batch; may raise to stop.
        precision: precision of matrix products on a CPU.

    Raises:
        ConfigError: `batch_size` is no whole number of 1 or more; or see `check_precision`.
    """
    batch_size = whole_number("batch_size", batch_size, least=1)
    device = device_of(model)
    check_precision(precision, device)
    batches = cut_batches(rows, batch_size, device=device)
    with ops.packed_weights(getattr(torch, precision)), collector_paused():
        results = map_batches(function, batches, device=device, poll=poll, stage=stage, size=len)
    return {row: own for numbers, found in zip(batches, results, strict=True) for row, own in zip(numbers, found, strict=True)}


def check_precision(precision: str, device: torch.device) -> None:
    """Check that this machine decodes in a precision.

    Args:
        precision: float32, bfloat16 or int8.
        device: the device of the model.

    Raises:
        ConfigError: int8 on another device than a CPU, or without the native library.

    Example:
        >>> check_precision("int8", torch.device("meta"))
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: decoding.precision=int8: computes on a CPU, the model is on meta; use float32 or bfloat16 there
    """
    if precision != "int8":
        return
    if device.type != "cpu":
        raise ConfigError(f"decoding.precision=int8: computes on a CPU, the model is on {device}; use float32 or bfloat16 there")
    if not native.status().usable:
        raise ConfigError(f"decoding.precision=int8: needs the native library ({native.status().reason}); use float32")


@contextmanager
def collector_paused() -> Generator[None, None, None]:
    """Pause Python's search for reference cycles in a block, or as a decorator in a function.

    A collection scans every imported object, up to a fifth of the time of a small model; decoding creates no cycles.

    Example:
        >>> with collector_paused():
        ...     gc.isenabled()
        False
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


class Predictor(Generic[AnyRun]):
    """Base of predictors of all tasks.

    Methods take several inputs as a list, any other iterable, or an open text file, whose lines they are; see
    `regard.tasks.argument_types.takes_inputs`.

    Args:
        run: a loaded run.
        poll: called before each batch; may raise to stop.
    """

    def __init__(self, run: AnyRun, *, poll: Callable[[], None] | None = None) -> None:
        self.run = run
        self._poll = poll


class Generation(NamedTuple):
    """Settings of text generation.

    Attributes:
        sampling: sampling options; None: beam search.
        seeds: a generator per row, so that samples do not depend on the batch.
        precision: precision of matrix products on a CUDA device; on a CPU that of the packed weights, see `predict`.
    """

    sampling: SamplingOptions | None
    seeds: list[int]
    precision: str

    @classmethod
    def of(cls, sampling: SamplingOptions | None, rows: int, precision: str = "float32") -> Generation:
        """Return the settings for this number of rows."""
        return cls(sampling, torch.randint(2**62, (rows,)).tolist() if sampling is not None else [], precision)

    def options(
        self,
        decoding: DecodingConfig,
        n_best: int,
        *,
        max_length: int | Sequence[int],
        source_lengths: Sequence[int],
        need_attention: bool,
        prefix: Sequence[Sequence[int]] | None = None,
        phrases: ForcedPhrases | None = None,
    ) -> DecodingOptions:
        """Return decoding options from the settings of a run and additional values; see `regard.decoding.DecodingOptions`.

        Raises:
            ConfigError: more than `MAX_BEAM` hypotheses, or with sampling another number than that of its samples.
        """
        samples = 1 if self.sampling is None else self.sampling.num_samples
        if max(n_best, samples) > MAX_BEAM:
            raise ConfigError(f"n_best: expected at most {MAX_BEAM:,} hypotheses, found {max(n_best, samples):,}")
        if self.sampling is not None and n_best not in (1, samples):
            raise ConfigError(f"n_best: {n_best} hypotheses, and sampling of {samples}; give it num_samples={n_best}")
        return DecodingOptions(
            bos=BOS,
            eos=EOS,
            pad=PAD,
            beam_size=max(decoding.beam_size, n_best) if self.sampling is None else 1,
            n_best=n_best if self.sampling is None else 1,
            min_length=decoding.min_length,
            length_penalty=decoding.length_penalty,
            coverage_penalty=decoding.coverage_penalty,
            no_repeat_ngram_size=decoding.no_repeat_ngram_size,
            banned=(PAD, BOS),
            max_length=max_length,
            source_lengths=source_lengths,
            need_attention=need_attention,
            prefix=prefix,
            phrases=phrases,
        )

    def run(
        self,
        start: Callable[[], Any],
        step: Any,
        rows: Sequence[int],
        options: DecodingOptions,
        *,
        device: torch.device,
        at_once: GreedySearch[Any] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each row of a batch.

        Args:
            start: returns the initial state.
            step: see `regard.decoding.Step`.
            rows: of the batch.
            options: see `options`.
            device: of the model.
            at_once: see `regard.decoding.greedy_search`.
        """
        half = device.type == "cuda" and self.precision == "bfloat16"
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=half):
            state, count = start(), len(rows)
            if self.sampling is not None:
                own = [torch.Generator().manual_seed(self.seeds[row]) for row in rows]
                return sample(step, state, batch_size=count, options=options, sampling=self.sampling, generator=own, device=device)
            if options.beam_size == 1:
                return greedy_search(step, state, batch_size=count, options=options, device=device, at_once=at_once)
            return beam_search(step, state, batch_size=count, options=options, device=device)


def hypotheses_json(texts: Sequence[str], hypotheses: Sequence[Hypothesis]) -> list[dict[str, Any]]:
    """Return texts and scores as a JSON value."""
    return [
        {"text": text, "score": found.score, "token_ids": found.tokens, "log_probs": found.log_probs}
        for text, found in zip(texts, hypotheses, strict=True)
    ]
