"""The base run of all comparisons: one batch, the tensors of every module, their layouts, and their rounding noise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.mask_check.examples import Batch, Example, Template, collate, cut, widths_of
from regard.mask_check.layout import (
    Axis,
    Difference,
    Layout,
    Match,
    Shapes,
    Sizes,
    difference,
    layout_of,
    same_rows,
    spread,
)
from regard.mask_check.recording import Call, Event, Key, Recorder
from regard.mask_check.runs import HALVES, Runs, parts_of

SAFETY = 16
"""A difference counts if it exceeds this many times the measured rounding, plus this many roundings of one number."""
CAST_SAFETY = 2
"""The same factor for a half-precision tensor in a model of higher precision: it is rounded once, in the cast."""
MOST_OF_CAST = 0.1
"""Largest relative error allowed for such a tensor when the check computes in double precision."""
CAP = 1000
"""Max noise, in roundings of one number, when the check computes in double precision: more means that the model keeps state between runs,
which must not pass as rounding.
"""
EXACT = 2.0**-23
"""Part of a single-precision limit that rounding in double precision stays below."""


class Place(NamedTuple):
    """One tensor of one event."""

    key: Key
    name: str


Views = dict[Place, Tensor]
"""The tensors of a run, in execution order."""


def sizes_of(batch: Batch) -> Sizes:
    """Return the sizes of a batch."""
    return Sizes(len(batch.examples), batch.widths)


class Survey:
    """Results of the unmodified model, the base of all comparisons.

    Args:
        runs: of the model.
        template: how to write examples as a batch.
        examples: the rows of the base batch.
        given: all rows of the user's batch.

    Attributes:
        base: the batch, padded like the user's.
        outputs: its outputs.
        layouts: layouts of the outputs by name.
        noise: rounding noise of each output.
        events: events of the base run, in order.
        fixed: sequences whose length the model cannot change, with its error.
        modules: cache of modules called again, by the keys of `regard.mask_check.dependence`.
        confirmed: tensors where a leak is known to begin, each with the sequence that leaks.
        one_size: the model's error for a smaller batch, and where it was raised; or None.
    """

    def __init__(self, runs: Runs, template: Template, examples: list[Example], given: list[Example]) -> None:
        self.runs, self.template, self.examples, self.given = runs, template, examples, given
        self.widths = widths_of(template, examples)
        self.base = collate(template, examples, self.widths, side=template.side)
        self.sizes = sizes_of(self.base)
        self.fixed: dict[str, str] = {}
        self.modules: dict[Any, Any] = {}
        self.confirmed: set[tuple[Place, str | None]] = set()
        self.one_size: tuple[Exception, Recorder] | None = None
        own = (p.dtype for p in runs.model.parameters() if p.is_floating_point())
        self.computed_in = next(own, torch.get_default_dtype()) if runs.dtype is None else runs.dtype
        self._outputs: dict[bool, dict[str, Tensor]] = {}
        self._part = 1.0
        self._last: tuple[Batch, bool, dict[str, Tensor]] | None = None
        recorder = Recorder()
        self.outputs = runs.run(self.base, recorder)
        self.events, counts = recorder.events, recorder.counts
        self._base_runs = {False: (self.events, self.outputs)}
        fewer, shorter = self._fewer(), {s.name: found for s in template.sequences if (found := self._shorter(s.name)) is not None}
        self._find_lists([found for _, found in ([fewer] if fewer else [])], {key: found for key, (_, found) in shorter.items()})
        # Calls of a module that runs once per position, such as a recurrent cell, form an axis.
        self.stacked = {
            module for other, _ in shorter.values() for module, number in counts.items() if number - other.counts.get(module, 0) == 1
        }
        self.views = self.view(self.events)
        self._layouts = self._of_views(fewer, shorter)
        self.layouts = {} if runs.adapter.outputs is not None else self._of_outputs(fewer, shorter)
        if runs.adapter.outputs is not None:
            for name, axes in runs.adapter.outputs.items():
                rest = (None,) * (self.outputs[name].ndim - len(axes))
                self.layouts[name] = tuple(Axis(label) for label in (*axes, *rest))
        self.noise, self._noise = self._rounding()

    def _fewer(self) -> tuple[Recorder, dict[str, Tensor]] | None:
        recorder = Recorder()
        batch = collate(self.template, self.examples[:-1], self.widths, side=self.template.side)
        try:
            return recorder, self.runs.run(batch, recorder)
        except Exception as error:  # an exception of the model is a finding
            self.one_size = error, recorder
            return None

    def _shorter(self, name: str) -> tuple[Recorder, dict[str, Tensor]] | None:
        recorder = Recorder()
        examples = cut(self.template, self.examples, name, self.widths[name] - 1)
        batch = collate(self.template, examples, self.widths | {name: self.widths[name] - 1}, side=self.template.side)
        try:
            return recorder, self.runs.run(batch, recorder)
        except Exception as error:
            self.fixed[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
            return None

    def _find_lists(self, others: list[dict[str, Tensor]], shorter: Mapping[str, dict[str, Tensor]]) -> None:
        """Find lists of outputs with one tensor per position, and stack them."""
        for name in {key.rpartition(".")[0] for key in self.outputs}:
            count = len(parts_of(self.outputs, name))
            if any(count == self.widths[key] == len(parts_of(outputs, name)) + 1 for key, outputs in shorter.items()):
                self.runs.lists.add(name)
        for outputs in (self.outputs, *others, *shorter.values()):
            self.runs.stacked(outputs)

    def view(self, events: Iterable[Event]) -> Views:
        """Return the tensors of a run; calls of a module that runs once per position are stacked."""
        found: Views = {}
        many: dict[Place, list[Tensor]] = {}
        for event in events:
            call, side = event.key
            for name, tensor in event.tensors.items():
                if call.module in self.stacked:
                    place = Place(Key(Call(call.module, 0), side), name)
                    many.setdefault(place, []).append(tensor)
                    found.setdefault(place, tensor)
                else:
                    found[Place(event.key, name)] = tensor
        for place, tensors in many.items():
            if all(tensor.shape == tensors[0].shape for tensor in tensors):
                found[place] = torch.stack(tensors)
            else:
                del found[place]
        return found

    def _of_views(
        self, fewer: tuple[Recorder, object] | None, shorter: Mapping[str, tuple[Recorder, object]]
    ) -> dict[Place, Layout | None]:
        less = None if fewer is None else self.view(fewer[0].events)
        short = {name: self.view(recorder.events) for name, (recorder, _) in shorter.items()}
        layouts: dict[Place, Layout | None] = {}
        for place, tensor in self.views.items():
            if (less is not None and place not in less) or any(place not in views for views in short.values()):
                continue
            shapes = Shapes(tensor.shape, None if less is None else less[place].shape, {n: v[place].shape for n, v in short.items()})
            layouts[place] = layout_of(shapes, self.sizes)
        return layouts

    def _of_outputs(
        self, fewer: tuple[object, dict[str, Tensor]] | None, shorter: Mapping[str, tuple[object, dict[str, Tensor]]]
    ) -> dict[str, Layout | None]:
        layouts: dict[str, Layout | None] = {}
        for name, tensor in self.outputs.items():
            less = None if fewer is None else fewer[1].get(name)
            short = {key: outputs[name].shape for key, (_, outputs) in shorter.items() if name in outputs}
            shapes = Shapes(tensor.shape, None if less is None else less.shape, short)
            layouts[name] = layout_of(shapes, self.sizes)
        return layouts

    def _rounding(self) -> tuple[dict[str, float], dict[Place, float]]:
        # Every module output is rounded up or down by one unit: the effect on later tensors is what rounding can do.
        generator = torch.Generator().manual_seed(1)

        def rounded(_: str, tensor: Tensor) -> Tensor:
            if not tensor.is_floating_point():
                return tensor
            signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor) * 2 - 1
            return tensor * (1 + self.unit(tensor) * signs)

        recorder = Recorder(every=rounded)
        outputs = self.runs.run(self.base, recorder)
        match = same_rows(self.sizes.rows, self.base.positions)
        moved = {
            name: self.compare_outputs(name, (self.outputs[name], tensor), match, (self.sizes, self.sizes)).size
            for name, tensor in outputs.items()
            if name in self.outputs
        }
        views = self.view(recorder.events)
        inner = {
            place: difference((self.views[place], tensor), self._layouts.get(place), match, (self.sizes, self.sizes)).size
            for place, tensor in views.items()
            if place in self.views and tensor.is_floating_point()
        }
        return moved, inner

    def unit(self, tensor: Tensor) -> float:
        """Return the relative size of one rounding: of float32 for double precision, otherwise of the tensor's own dtype."""
        return torch.finfo(torch.float32 if tensor.dtype == torch.float64 else tensor.dtype).eps

    @contextmanager
    def limits_of_double(self) -> Iterator[None]:
        """Let limits be those of double precision, which hold for runs of which every tensor has it."""
        self._part = EXACT
        try:
            yield
        finally:
            self._part = 1.0

    def limit(self, name: str) -> float:
        """Return how far an output may differ by rounding."""
        return self._limit(self.outputs[name], self.noise.get(name, 0.0))

    def exact_limit(self, name: str) -> float:
        """Return the rounding noise of an output in double precision; infinity if computed in another one."""
        exact = self.computed_in == self.outputs[name].dtype == torch.float64
        return EXACT * self.limit(name) if exact else float("inf")

    def limit_at(self, place: Place) -> float:
        """Return how far an inner tensor may differ by rounding."""
        tensor = self.views[place]
        return self._limit(tensor, self._noise.get(place, 0.0)) if tensor.is_floating_point() else 0.0

    def _limit(self, tensor: Tensor, noise: float) -> float:
        one = self.unit(tensor) * spread(tensor)
        most = CAP * one if tensor.dtype == torch.float64 else noise
        total = one + (min(noise, most) if noise < float("inf") else 0.0)
        if tensor.dtype not in HALVES or self.computed_in in HALVES:
            return SAFETY * total * self._part
        limit = CAST_SAFETY * total
        return min(limit, MOST_OF_CAST * spread(tensor)) if self.computed_in == torch.float64 else limit

    def layout(self, place: Place) -> Layout | None:
        """Return the meaning of the axes of an inner tensor; None: unknown."""
        return self._layouts.get(place)

    def compare_outputs(
        self, name: str, pair: tuple[Tensor, Tensor], match: Match, sizes: tuple[Sizes, Sizes], *, farthest: bool = False
    ) -> Difference:
        """Compare an output in two runs; `farthest`: see `difference`."""
        return difference(pair, self.layouts.get(name), match, sizes, farthest=farthest)

    def compare_at(self, place: Place, pair: tuple[Tensor, Tensor], match: Match) -> Difference:
        """Compare an inner tensor in two runs of the base sizes."""
        return difference(pair, self.layout(place), match, (self.sizes, self.sizes))

    def learns(self, module: str) -> bool:
        """Return whether a module has parameters."""
        return next(self.runs.model.get_submodule(module).parameters(), None) is not None

    def base_outputs(self, *, train: bool) -> dict[str, Tensor]:
        """Return the outputs for the base batch without hooks: a fused path may give others."""
        if train not in self._outputs:
            self._outputs[train] = self.runs.run(self.base, train=train)
        return self._outputs[train]

    def outputs_for(self, batch: Batch, *, train: bool) -> dict[str, Tensor]:
        """Return the outputs for a batch without hooks, kept until another batch is asked for."""
        if self._last is None or self._last[0] is not batch or self._last[1] != train:
            self._last = None  # the outputs of two batches at once may be too large
            self._last = batch, train, self.runs.run(batch, train=train)
        return self._last[2]

    def base_run(self, *, train: bool) -> tuple[list[Event], dict[str, Tensor]]:
        """Return the events and outputs of the base batch, with hooks."""
        if train not in self._base_runs:
            recorder = Recorder()
            outputs = self.runs.run(self.base, recorder, train=train)
            self._base_runs[train] = recorder.events, outputs
        return self._base_runs[train]

    def comparable(self) -> list[str]:
        """Return the names of comparable outputs."""
        return [name for name, layout in self.layouts.items() if layout is not None and any(axis.label == "batch" for axis in layout)]
