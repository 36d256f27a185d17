"""`regard.check`: tests which inputs the outputs of a model depend on, and finds mask errors."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError, listed, shown
from regard.mask_check.adapter import Adapter, Inputs
from regard.mask_check.automatic import Calling, Causal, named, plain_adapter
from regard.mask_check.examples import ROOM, ROWS, Example, Template, choose, collate, read_batch, widths_of
from regard.mask_check.huggingface import hugging_face_adapter, hugging_face_batch, is_hugging_face, reads_text, told
from regard.mask_check.judge import failed, finite
from regard.mask_check.own import own_adapter, own_batch
from regard.mask_check.recording import Recorder
from regard.mask_check.report import Report, Result
from regard.mask_check.runs import HALVES, Runs, exact_of, model_copy, precisions_of
from regard.mask_check.steps import SecondOpinion, steps
from regard.mask_check.survey import MOST_OF_CAST, Survey

MIN_NUMBERS = 2


def check(
    model: nn.Module,
    batch: Any = None,
    *,
    adapter: Adapter | None = None,
    causal: Causal = None,
    pad: int | None = None,
    call: Calling | None = None,
    dtype: torch.dtype | None = None,
) -> Report:
    """Check a model's masks: report what leaks, by how much, the first module that leaks, and the most likely cause.

    A copy of the model runs on a few short rows of the batch, then on the same rows with one change: later tokens, the content, amount or
    side of padding, the other rows, their order, training mode (without dropout), or decoding one token at a time with a cache. Outputs
    that must not change are compared in double precision; if one does, all module outputs are compared in execution order. The model itself
    is not modified. A difference counts if it exceeds 16 times the effect of one float32 rounding per module on the same tensor (2 times
    for tensors in half precision within a model of higher precision). Finally, attention must depend on some earlier token.

    Args:
        model: any module that maps a batch to tensors, on any device.
        batch: a tensor, a tuple as `forward` takes it, or a dictionary: tokens (B, T) or features (B, T, F) with their masks (B, T),
            lengths (B,) and any other inputs; or images (B, C, ...) alone. None: random tokens, for models of Hugging Face and of Regard.
        adapter: describes how to call the model and what its tensors are, if the batch does not tell.
        causal: whether output t of the last sequence may depend on tokens up to t; "strict": only on those before t. None: known for models
            of Hugging Face and of Regard, True for the second of two sequences, otherwise required.
        pad: the padding token.
        call: `call(model, batch)` runs the model on the batch as a dictionary and may build masks itself. None: `model(**batch)`.
        dtype: precision of the check. None: float64 for models of up to 2**26 parameters on a CPU and 2**29 on CUDA; otherwise the model's
            own, with float32 in place of half precision.

    Returns:
        The `Report`; print it. `report.ok` is False if something leaks.

    Raises:
        ConfigError: the batch is ambiguous, arguments contradict each other, a causal model cannot be checked for causality, or half
            precision is too coarse to exclude a leak; the message says what to pass.
        DataError: the model fails on the batch; the message holds its error.

    Example:
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.embedding, self.rnn = nn.Embedding(11, 6), nn.GRU(6, 6, batch_first=True, bidirectional=True)
        ...     def forward(self, tokens):
        ...         return self.rnn(self.embedding(tokens))[0]
        >>> report = check(Model(), torch.randint(11, (4, 7)), causal=True)
        >>> report.ok, report["future tokens"].module, report["future tokens"].cause
        (False, 'rnn', 'it reads the sequence backwards, too (bidirectional=True)')
    """
    started = time.perf_counter()
    said = adapter is not None or not (is_hugging_face(model) or own_adapter(model) is not None)  # some of those return no positions
    _check_numbers(pad, dtype)
    adapter, inputs = _resolved(model, batch, adapter, causal, pad, call)
    if broken := [name for name, value in inputs.items() if isinstance(value, Tensor) and value.isnan().any()]:
        raise DataError(f"batch[{broken[0]!r}]: holds NaN, so that no output tells of the model; give finite numbers")
    runs, template, examples, filled = _prepared(model, inputs, adapter, dtype)
    results: list[Result] = []
    survey = _survey(runs, template, examples, results)
    if survey is not None and dtype is None:
        survey = _without_overflow(model, survey)
    second = None
    if survey is not None:
        if not survey.comparable():
            raise ConfigError(
                f"{type(model).__name__}: it returns no floating tensor with an axis of examples (a loss alone?); return one from call="
            )
        second = SecondOpinion(model, survey)
        results += second.all(steps(survey, inputs, sees_all=causal is False))
    unseen = [result for result in results if result.check == "future tokens" and result.verdict == "not checked"]
    if causal and not any(result.check == "future tokens" for result in results) and survey is not None:
        raise ConfigError(f"causal: the batch of {type(model).__name__} holds no tokens (B, T) and no features (B, T, F); leave it out")
    if (causal or said) and unseen and not any(result.bad for result in results):
        raise ConfigError(
            f"causal: {type(model).__name__} cannot be checked for it: {unseen[0].cause}; "
            "call= may return another output, and Adapter(outputs=...) says what its axes are"
        )
    still = [result for result in results if result.check == "other rows" and result.verdict == "not checked" and "depends" in result.cause]
    if still and not any(result.bad for result in results):  # if all is NaN, no dependence is visible
        raise ConfigError(f"{type(model).__name__}: no output depends on the batch at all, so it cannot be checked; look for a wrong axis")
    if survey is None:
        _check_padding(adapter, inputs, results)
    runs = runs if survey is None else survey.runs
    if survey is not None:
        _check_limits(model, survey, results)
    passes = runs.passes + (0 if second is None else second.passes)
    sizes = {} if survey is None else {"batch": survey.sizes.rows, **survey.widths}
    used = next((p.dtype for p in runs.model.parameters()), torch.get_default_dtype()) if runs.dtype is None else runs.dtype
    seconds = time.perf_counter() - started
    return Report(type(model).__name__, tuple(results), sizes, str(used).removeprefix("torch."), passes, seconds, filled)


def _check_numbers(pad: Any, dtype: Any) -> None:
    if pad is not None and (isinstance(pad, bool) or not isinstance(pad, int)):
        raise ConfigError(f"pad: expected the number of the padding token, found {shown(pad)}")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ConfigError(f"dtype: expected a floating dtype such as torch.float64, found {shown(dtype)}")


def _check_padding(adapter: Adapter, inputs: Inputs, results: list[Result]) -> None:
    """Refuse a padding token that the batch does not hold if an index is out of range."""
    for sequence in adapter.sequences:
        tokens = inputs[sequence.name]
        foreign = sequence.pad is not None and not tokens.is_floating_point() and not (tokens == sequence.pad).any()
        if foreign and any("out of range" in result.cause for result in results if result.verdict == "error"):
            raise ConfigError(
                f"pad: the model has no token {sequence.pad}, and batch[{sequence.name!r}] holds none; give its padding token"
            )


def _check_limits(model: nn.Module, survey: Survey, results: list[Result]) -> None:
    """Refuse to report "ok" if the computation was so coarse that a leak would pass as rounding."""
    widest = max((result.limit for result in results if result.verdict == "ok"), default=0.0)
    if not any(result.bad for result in results) and (survey.computed_in in HALVES or widest > MOST_OF_CAST):
        precision = str(survey.computed_in).removeprefix("torch.")
        raise ConfigError(
            f"dtype: whether {type(model).__name__} leaks cannot be told in {precision}: a difference of up to {100 * widest:.2g} % of the "
            "output's deviation passes for rounding; give dtype=torch.float32 or torch.float64"
        )


def _resolved(
    model: nn.Module, batch: Any, adapter: Adapter | None, causal: Causal, pad: int | None, call: Calling | None
) -> tuple[Adapter, Inputs]:
    if not isinstance(model, nn.Module):
        raise ConfigError(f"check: expected a torch.nn.Module, found {type(model).__name__}")
    if causal is not None and not isinstance(causal, bool) and causal != "strict":
        raise ConfigError(f"causal: expected True, False or 'strict', found {shown(causal)}")
    if adapter is not None:
        if not isinstance(adapter, Adapter):
            raise ConfigError(f"adapter: expected a regard.mask_check.Adapter, found {shown(adapter)}")
        if (causal, pad, call) != (None, None, None):
            raise ConfigError("check: an adapter says what causal, pad and call would say; give them there")
        if batch is None:
            raise ConfigError("check: an adapter needs a batch")
        return adapter, named(model, batch, called=False)[0]
    own = own_adapter(model) if call is None else None
    if own is not None:
        return own, own_batch(model, own) if batch is None else named(model, batch, called=False)[0]
    if is_hugging_face(model):
        given = None if batch is None else named(model, batch, called=call is not None)[0]
        if reads_text(model, given):
            found = hugging_face_adapter(model, given)
            return told(found, causal, pad, call), hugging_face_batch(model) if given is None else given
    if batch is None:
        raise ConfigError(f"check: {type(model).__name__} is neither of Hugging Face nor of Regard; give a batch")
    inputs, keywords = named(model, batch, called=call is not None)
    return plain_adapter(model, inputs, keywords=keywords, causal=causal, pad=pad, call=call), inputs


class _Prepared(NamedTuple):
    runs: Runs
    template: Template
    examples: list[Example]
    filled: int


def _prepared(model: nn.Module, inputs: Inputs, adapter: Adapter, dtype: torch.dtype | None) -> _Prepared:
    """Copy the model and run the user's batch unchanged: in double precision, or else in the model's own."""
    template, examples = read_batch(inputs, adapter)
    for sequence in adapter.sequences:
        if not inputs[sequence.name].is_floating_point() and len(template.pools[sequence.name]) < MIN_NUMBERS:
            raise DataError(f"batch[{sequence.name!r}]: all its tokens are the same; a check needs others to put in their place")
    # Some operators do not support double precision: then the model's own.
    wanted = precisions_of(model) if dtype is None else [dtype]
    error: Exception | None = None
    for precision in wanted:
        try:
            twin, filled = model_copy(model, precision)
        except ConfigError:
            if precision is wanted[-1]:
                raise
            continue  # memory may suffice without a copy in higher precision
        runs = Runs(twin, adapter, precision)
        try:
            _verify(runs, inputs)
            return _Prepared(runs, template, examples, filled)
        except ConfigError:
            raise
        except Exception as failed_with:  # any exception of the model
            error = failed_with
    raise DataError(f"batch: {type(model).__name__} cannot run it: {_said(error)}") from error


def _verify(runs: Runs, inputs: Inputs) -> None:
    recorder = Recorder(keep=False)
    found = runs.apply(runs.adapter.run, inputs, recorder)
    for name, axes in (runs.adapter.outputs or {}).items():
        if name not in found or found[name].ndim < len(axes):
            shapes = listed(f"{key or 'the only one'} {tuple(tensor.shape)}" for key, tensor in found.items())
            raise ConfigError(f"Adapter.outputs: {name!r} with axes {axes} is none of the model's outputs: {shapes}")
    if not recorder.events:
        raise ConfigError("call: it did not run the model it was given; take the model from its first argument")


def _said(error: Exception | None) -> str:
    told = " ".join(str(error).split())
    return f"{type(error).__name__}: {told}" if isinstance(error, KeyError) else told or type(error).__name__


def _survey(runs: Runs, template: Template, examples: list[Example], results: list[Result]) -> Survey | None:
    """Survey the model on a few short rows; on the user's batch if the model accepts one length only."""
    check, says = "batch size", f"{ROWS} rows instead of {len(examples)}, and fewer positions"
    why = (
        "something depends on how many rows and positions there are, most often a mask (B, S) that is read as (T, S) or (H, T, S), "
        "which fits only where these numbers are equal"
    )
    errors: list[Exception] = []
    for room in (ROOM, 0):
        chosen = choose(template, examples, rows=ROWS, room=room, generator=torch.Generator().manual_seed(5))
        try:
            survey = Survey(runs, template, chosen, examples)
        except Exception as error:  # an exception of the model is a finding
            errors.append(error)
            continue
        if survey.one_size is None:
            results.append(Result(check, check, "ok", says))
            return survey
        results.append(failed(runs, check, check, says, *survey.one_size, _refusal(survey.one_size[0]) or why))
        return None
    recorder = Recorder(keep=False)
    with suppress(Exception):
        runs.run(collate(template, chosen, widths_of(template, chosen), side=template.side), recorder)
    results.append(failed(runs, check, check, says, errors[0], recorder, _refusal(errors[0]) or why))
    return None


def _refusal(error: Exception) -> str:
    """Return the model's own refusal of other sizes, which no torch operator raises; "" for another error."""
    refused = isinstance(error, ValueError | AssertionError | NotImplementedError)
    return "the model refuses other sizes than the batch's, so it cannot be checked, or a mask has a wrong one" if refused else ""


def _without_overflow(model: nn.Module, survey: Survey) -> Survey:
    """Survey the model in its own precision if only double precision gives NaN: see `SecondOpinion`."""
    if survey.runs.dtype is None or finite(survey).verdict == "ok":
        return survey
    precision = exact_of(model)[0]
    twin, _ = model_copy(model, precision)
    try:
        own = Survey(Runs(twin, survey.runs.adapter, precision), survey.template, survey.examples, survey.given)
    except Exception:
        return survey
    return own if finite(own).verdict == "ok" else survey
