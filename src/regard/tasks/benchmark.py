"""Quick benchmark of this machine: area attention, a training step and decoding, each compared with standard attention."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F

from regard import ops, progress
from regard.config import AreaConfig, TrainingConfig, TransformerConfig
from regard.cores import processor, usable_cores
from regard.data.batching import SequenceBatch, collate
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding import DecodingOptions, beam_search, greedy_search
from regard.errors import counted
from regard.models import Transformer, build
from regard.training.optimizer import build_optimizer

LENGTHS = {32: 256, 64: 128, 256: 64, 1024: 16}  # and heads times examples, as in docs/performance.md
HEAD_SIZE = 64
AREAS = {"standard attention": None, "areas of up to 5": AreaConfig(max_area=5, layers=2)}
# Transformer Small (Li et al. 2018, section 4.1.1) on sentences of made-up tokens.
SIZES: dict[str, Any] = {"embed_dim": 256, "ff_dim": 1024, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
VOCABULARY, SENTENCES, LENGTH = 8000, 64, 23
MIN_SECONDS = 0.05  # a round repeats a shorter call
MAX_WAIT = 0.1  # share of time that threads wait for a core; beside another program on two cores it is several times that
_SELF = Path("/proc/self")


def measure_speed(rounds: int = 5) -> Iterator[str]:
    """Yield the lines of a report: medians of interleaved rounds, and ratios round by round, on the CPU in float32.

    The last line warns if the processor was not free, for the ratios are then wrong.

    Args:
        rounds: measurements per contender, 1 or more.

    Example:
        >>> "float32" in next(measure_speed(rounds=1))
        True
    """
    yield f"{processor()}, {counted(torch.get_num_threads(), 'thread')}, float32; medians of {counted(rounds, 'interleaved round')}"
    before = _thread_seconds()
    for length, heads in LENGTHS.items():
        with progress.stage(f"Measuring attention over {length:,} positions"):
            times = interleaved(_attention(heads, length), rounds)
        title = f"attention, length {length:,}, forward and backward; heads x batch {heads}, heads of {HEAD_SIZE}, causal mask"
        yield from _rows(title, times, lambda seconds: f"{1000 * seconds:9.1f} ms")
    with progress.stage("Measuring a training step"):
        times = interleaved({name: _training(area) for name, area in AREAS.items()}, rounds)
    layers = f"{SIZES['encoder_layers']} + {SIZES['decoder_layers']} layers of {SIZES['embed_dim']}"
    title = f"training a Transformer, {layers}, {SENTENCES * LENGTH:,} target tokens a batch; one process, not the workers of regard train"
    yield from _rows(title, times, lambda seconds: f"{SENTENCES * LENGTH / seconds:9,.0f} target tokens/s")
    for name, beam_size in (("greedy decoding", 1), ("beam search, beam 5", 5)):
        with progress.stage(f"Measuring {name}"):
            times = interleaved({kind: _decoding(area, beam_size) for kind, area in AREAS.items()}, rounds)
        title = f"{name}, the same model, {SENTENCES} sentences of {LENGTH} tokens"
        yield from _rows(title, times, lambda seconds: f"{SENTENCES / seconds:9,.0f} sentences/s")
    if busy := _why_wrong(before, _thread_seconds()):
        yield f"{busy}: other programs, or a CPU quota, limited these figures; repeat it with nothing else running"


def _thread_seconds() -> tuple[float, float] | None:
    # What all threads have computed, and waited for a core while they could have computed: Linux alone says it.
    computed = waited = 0
    for path in _SELF.glob("task/*/schedstat"):
        with suppress(OSError):  # a thread that has just ended
            own = path.read_text(encoding="ascii").split()
            computed, waited = computed + int(own[0]), waited + int(own[1])
    return (computed / 1e9, waited / 1e9) if computed else None


def _why_wrong(before: tuple[float, float] | None, after: tuple[float, float] | None) -> str:
    # What shows that the processor was not free, or "".
    if before and after:
        computed, waited = after[0] - before[0], after[1] - before[1]
        share = waited / max(computed + waited, 1e-9)
        return f"the threads waited {share:.0%} of their time for a core" if share > MAX_WAIT else ""
    if sys.platform == "win32":
        return ""
    # Over the last minute, about what the benchmark takes; its own threads are part of it.
    load = os.getloadavg()[0]
    return f"the system's load is {load:.1f} on {counted(usable_cores(), 'core')}" if load > usable_cores() + 1 else ""


def interleaved(contenders: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a call in each round, by contender: A B A B ..., after a warm-up that is not counted.

    Example:
        >>> {name: len(times) for name, times in interleaved({"ours": int, "theirs": int}, 3).items()}
        {'ours': 3, 'theirs': 3}
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, call in contenders.items():
            start, calls = time.perf_counter(), 0
            while calls == 0 or time.perf_counter() - start < MIN_SECONDS:
                call()
                calls += 1
            if number:
                times[name].append((time.perf_counter() - start) / calls)
    return times


def _rows(title: str, times: dict[str, list[float]], show: Callable[[float], str]) -> Iterator[str]:
    # The first contender is the baseline.
    first = next(iter(times.values()))
    yield title
    for name, values in times.items():
        ratios = sorted(own / other for own, other in zip(values, first, strict=True))
        beside = "" if values is first else f"   {statistics.median(ratios):.2f} of its time ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        yield f"  {name:<24}{show(statistics.median(values))}{beside}"


def _attention(heads: int, length: int) -> dict[str, Callable[[], object]]:
    generator = torch.Generator().manual_seed(1)
    query, key, value, grad = (torch.randn(heads // 4, 4, length, HEAD_SIZE, generator=generator) for _ in range(4))
    parts = [part.requires_grad_() for part in (query, key, value)]
    mask = ops.causal_mask(length, length)[None, None]

    def one(attend: Callable[[], Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(attend(), parts, grad)

    return {
        "PyTorch's attention": one(lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask)),
        "areas of up to 5": one(lambda: ops.area_attention(query, key, value, max_area=5, mask=mask)),
    }


def _model(area: AreaConfig | None) -> Transformer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return cast(Transformer, build(TransformerConfig(**SIZES, area=area), source_size=VOCABULARY, target_size=VOCABULARY))


def _batch() -> SequenceBatch:
    ids = torch.randint(4, VOCABULARY, (2, SENTENCES, LENGTH), generator=torch.Generator().manual_seed(1)).tolist()
    return collate(ids[0], ids[1], tuple(range(SENTENCES)))


def _training(area: AreaConfig | None) -> Callable[[], object]:
    model, batch = _model(area).train(), _batch()
    optimizer = build_optimizer(model, TrainingConfig(learning_rate=1e-4))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        sums = model(*batch[:5], label_smoothing=0.1)
        (sums.loss / sums.tokens).backward()
        optimizer.step()

    return step


def _decoding(area: AreaConfig | None, beam_size: int) -> Callable[[], object]:
    # Random weights do not generate EOS.
    model, batch = _model(area).eval(), _batch()
    options = DecodingOptions(bos=BOS, eos=EOS, beam_size=beam_size, min_length=LENGTH, max_length=LENGTH, banned=(PAD, BOS))
    search = partial(greedy_search, at_once=model.greedy) if beam_size == 1 else beam_search

    def decode() -> None:
        with torch.inference_mode(), ops.packed_weights():
            search(model.decoding_step, model.start(batch.source, batch.source_lengths), batch_size=SENTENCES, options=options)

    return decode
