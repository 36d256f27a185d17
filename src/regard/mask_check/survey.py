"""The base of all comparisons: one batch, what every module makes of it, which axis is which, and how much is rounding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
"""How many times the rounding that is measured a difference must be to count, and how many roundings of one number besides."""
CAST_SAFETY = 2
"""The same of a tensor in half precision in a model that computes in more: it is rounded once, in the cast, and hardly ever otherwise."""
MOST_OF_CAST = 0.1
"""The largest part of its deviation that such a tensor may be off where double precision is computed in."""
CAP = 1000
"""Roundings of one number that the measured ones can be, at most, where double precision is computed in: more is a model that keeps
something from run to run, which must not pass for rounding."""
EXACT = 2.0**-23
"""The part of a limit, which is of single precision, that double precision does not exceed by its own rounding."""


class Place(NamedTuple):
    """One tensor of one event."""

    key: Key
    name: str


Views = dict[Place, Tensor]
"""The tensors of a run, in the order in which they came to be."""


class Plan(NamedTuple):
    """How one of two runs to compare is made.

    Attributes:
        batch: what the model is called on.
        train: in training mode.
        seed: of what is drawn, or None for the usual one.
    """

    batch: Batch
    train: bool = False
    seed: int | None = None


def sizes_of(batch: Batch) -> Sizes:
    """Return the sizes of a batch."""
    return Sizes(len(batch.examples), batch.widths)


class Survey:
    """What is known of a model before anything is changed.

    Args:
        runs: of the model.
        template: how examples are written.
        examples: the rows of the base.

    Attributes:
        base: the batch, padded as the user's is.
        outputs: what the model gives for it.
        layouts: of the outputs, by name.
        noise: of each output, how far rounding moves it.
        events: of the base, in order.
        fixed: sequences whose length cannot be changed, with what the model said to it.
        modules: those that were called again, by whatever `regard.mask_check.dependence` knows them by.
        confirmed: places that were found to be where a leak begins, each with the sequence that leaks.
        one_size: the error of the model when it was given an example less, and where it was raised; or None.
    """

    def __init__(self, runs: Runs, template: Template, examples: list[Example]) -> None:
        self.runs, self.template, self.examples = runs, template, examples
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
        recorder = Recorder()
        self.outputs = runs.run(self.base, recorder)
        self.events, counts = recorder.events, recorder.counts
        self._base_runs = {False: (self.events, self.outputs)}
        fewer, shorter = self._fewer(), {s.name: found for s in template.sequences if (found := self._shorter(s.name)) is not None}
        self._find_lists([found for _, found in ([fewer] if fewer else [])], {key: found for key, (_, found) in shorter.items()})
        # A module called once for each position, as the cell of a recurrent network: its calls are an axis.
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
        except Exception as error:  # whatever a model raises is a finding
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
        """Find lists of outputs that have a tensor for each position, and make tensors of them."""
        for name in {key.rpartition(".")[0] for key in self.outputs}:
            count = len(parts_of(self.outputs, name))
            if any(count == self.widths[key] == len(parts_of(outputs, name)) + 1 for key, outputs in shorter.items()):
                self.runs.lists.add(name)
        for outputs in (self.outputs, *others, *shorter.values()):
            self.runs.stacked(outputs)

    def view(self, events: Iterable[Event]) -> Views:
        """Return the tensors of a run by place; the calls of a module that is called for each position are stacked."""
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
        # Every tensor that a module returns is moved by one rounding, up or down: what that does further on is what rounding can do.
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
        """Return the relative size of one rounding: of float32 for double precision, otherwise of the tensor's own type."""
        return torch.finfo(torch.float32 if tensor.dtype == torch.float64 else tensor.dtype).eps

    def limit(self, name: str) -> float:
        """Return how far an output may be off before it counts."""
        return self._limit(self.outputs[name], self.noise.get(name, 0.0))

    def exact_limit(self, name: str) -> float:
        """Return how far rounding moves an output in double precision; infinity where another one is computed in."""
        exact = self.computed_in == self.outputs[name].dtype == torch.float64
        return EXACT * self.limit(name) if exact else float("inf")

    def limit_at(self, place: Place) -> float:
        """Return how far a tensor inside of the model may be off before it counts."""
        tensor = self.views[place]
        return self._limit(tensor, self._noise.get(place, 0.0)) if tensor.is_floating_point() else 0.0

    def _limit(self, tensor: Tensor, noise: float) -> float:
        one = self.unit(tensor) * spread(tensor)
        most = CAP * one if tensor.dtype == torch.float64 else noise
        total = one + (min(noise, most) if noise < float("inf") else 0.0)
        if tensor.dtype not in HALVES or self.computed_in in HALVES:
            return SAFETY * total
        limit = CAST_SAFETY * total
        return min(limit, MOST_OF_CAST * spread(tensor)) if self.computed_in == torch.float64 else limit

    def layout(self, place: Place) -> Layout | None:
        """Return what the axes of a tensor inside of the model hold; None: unknown."""
        return self._layouts.get(place)

    def compare_outputs(
        self, name: str, pair: tuple[Tensor, Tensor], match: Match, sizes: tuple[Sizes, Sizes], *, farthest: bool = False
    ) -> Difference:
        """Compare an output in two runs; `farthest`: see `difference`."""
        return difference(pair, self.layouts.get(name), match, sizes, farthest=farthest)

    def compare_at(self, place: Place, pair: tuple[Tensor, Tensor], match: Match) -> Difference:
        """Compare a tensor inside of the model in two runs of the sizes of the base."""
        return difference(pair, self.layout(place), match, (self.sizes, self.sizes))

    def learns(self, module: str) -> bool:
        """Tell whether a module has parameters."""
        return next(self.runs.model.get_submodule(module).parameters(), None) is not None

    def base_outputs(self, *, train: bool) -> dict[str, Tensor]:
        """Return the outputs for the base batch, without listeners: what a fused path gives may differ."""
        if train not in self._outputs:
            self._outputs[train] = self.runs.run(self.base, train=train)
        return self._outputs[train]

    def base_run(self, *, train: bool) -> tuple[list[Event], dict[str, Tensor]]:
        """Return what happens in the model for the base batch, and the outputs, with listeners."""
        if train not in self._base_runs:
            recorder = Recorder()
            outputs = self.runs.run(self.base, recorder, train=train)
            self._base_runs[train] = recorder.events, outputs
        return self._base_runs[train]

    def comparable(self) -> list[str]:
        """Return the names of outputs that can be compared."""
        return [name for name, layout in self.layouts.items() if layout is not None and any(axis.label == "batch" for axis in layout)]
