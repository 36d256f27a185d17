"""Finds which output positions of one module depend on which input positions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.mask_check.adapter import BATCH
from regard.mask_check.automatic import is_mask
from regard.mask_check.examples import Batch
from regard.mask_check.layout import Layout, spread
from regard.mask_check.locate import Origin
from regard.mask_check.probes import Probe, changed_at
from regard.mask_check.recording import Change, Key, Recorder, changed_arguments, named_arguments, tensors_of
from regard.mask_check.survey import Place, Survey

LONGEST = 32
"""Longest sequence that is probed one position at a time."""


class Dependence(NamedTuple):
    """Which positions depend on which.

    Attributes:
        matrix: (Q, K) bool: output position q changes when input position k does; one row for an output without positions.
        real: the real columns (L,) of the probed example.
        positional: whether the rows of `matrix` are positions of the sequence.
    """

    matrix: Tensor
    real: Tensor
    positional: bool

    @property
    def among(self) -> Tensor:
        """(L, L) bool: which real positions depend on which."""
        return self.matrix[self.real][:, self.real]

    @property
    def of_padding(self) -> Tensor:
        """(L, K - L) bool: which real positions depend on padding."""
        padding = torch.ones(self.matrix.shape[1], dtype=torch.bool)
        padding[self.real] = False
        return self.matrix[self.real][:, padding]


class Module:
    """A module with the arguments of its call in the base run, for further calls.

    Args:
        survey: of the model.
        origin: the module and call.
        batch: the model's inputs.
        train: use training mode.

    Attributes:
        module: the module itself.
        named: its arguments by name; empty if another method than `forward` was called.
    """

    def __init__(self, survey: Survey, origin: Origin, batch: Batch, *, train: bool) -> None:
        self.survey, self.batch, self.train = survey, batch, train
        self.call = origin.call if origin.call is not None and origin.call.module else None
        # Within the model's own code, the state where the leak begins tells more than the outputs.
        place = Place(origin.event.key, origin.tensor)
        self.inner = place if self.call is None and place.key.side == "in" and survey.layout(place) is not None else None
        self.module: nn.Module = survey.runs.model.get_submodule(origin.module)
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        wanted = origin.call
        if wanted is not None:
            recorder = Recorder(keep=False, wanted=wanted)
            survey.runs.run(batch, recorder, train=train)
            if recorder.arguments is not None:
                self.args, self.kwargs = recorder.arguments
        self.named: dict[str, Any] = named_arguments(self.module, self.args, self.kwargs)

    def again(self, change: Change | None = None) -> dict[str, Tensor]:
        """Call the module with changed arguments and return its floating outputs by name."""
        runs = self.survey.runs
        copied: Change = lambda name, tensor: tensor.clone() if change is None else change(name, tensor.clone())  # noqa: E731
        args, kwargs = changed_arguments(self.module, self.args, self.kwargs, copied)
        with runs.conditions(train=self.train):
            output = self.module(*args, **kwargs)
        return {name: tensor.clone() for name, tensor in tensors_of(output) if tensor.is_floating_point()}

    def with_column(self, name: str, column: int) -> dict[str, Tensor]:
        """Call it with a changed input at one position of a sequence."""
        if self.call is None:
            return self._whole(changed_at(self.survey.template, self.batch, name, column))
        return self.again(self._change(name, column))

    def unchanged(self) -> dict[str, Tensor]:
        """Call it with the inputs of the base run."""
        return self._whole(self.batch) if self.call is None else self.again()

    def _whole(self, batch: Batch) -> dict[str, Tensor]:
        if self.inner is None:
            return self.survey.runs.run(batch, train=self.train)
        recorder = Recorder()
        self.survey.runs.run(batch, recorder, train=self.train)
        return {self.inner.name: self.survey.view(recorder.events)[self.inner]}

    def _change(self, name: str, column: int) -> Change:
        generator = torch.Generator().manual_seed(column)

        def change(path: str, tensor: Tensor) -> Tensor:
            axis = self._axis(path, tensor, name)
            if axis is not None and column < tensor.shape[axis]:
                part = tensor.select(axis, column)
                part += spread(tensor) * torch.randn(part.shape, generator=generator).to(part)
            return tensor

        return change

    def _axis(self, path: str, tensor: Tensor, name: str) -> int | None:
        if self.call is None or not tensor.is_floating_point() or is_mask(path, tensor):
            return None
        layout = self.survey.layout(Place(Key(self.call, "in"), path))
        if layout is None or not any(axis.label == BATCH and not axis.joined for axis in layout):
            return None
        return next((at for at, axis in enumerate(layout) if axis.label == name and not axis.offset), None)

    def reads(self, name: str) -> bool:
        """Return whether it has an input with positions of a sequence that can be changed."""
        if self.call is None:
            return True
        return any(self._axis(path, tensor, name) is not None for path, tensor in tensors_of(self.named))

    def output_layouts(self) -> dict[str, Layout]:
        """Return the layouts of outputs with their own batch axis, by name."""
        if self.inner is not None:
            found = [(self.inner.name, self.survey.layout(self.inner))]
        elif self.call is None:
            found = self.survey.layouts.items()
        else:
            key = Key(self.call, "out")
            found = [(place.name, self.survey.layout(place)) for place in self.survey.views if place.key == key]
        return {
            name: layout
            for name, layout in found
            if layout is not None and any(a.label == BATCH and not a.joined and a.factor == 1 for a in layout)
        }

    def limit(self, name: str) -> float:
        """Return how far an output may differ by rounding."""
        if self.inner is not None:
            return self.survey.limit_at(self.inner)
        return self.survey.limit(name) if self.call is None else self.survey.limit_at(Place(Key(self.call, "out"), name))


def module_of(survey: Survey, origin: Origin, probe: Probe) -> Module | None:
    """Return the module where a leak begins for further calls; None if it cannot be called."""
    key = (origin.call, probe.train)
    if key not in survey.modules:
        survey.modules[key] = _module_of(survey, origin, probe)
    return survey.modules[key]


def _module_of(survey: Survey, origin: Origin, probe: Probe) -> Module | None:
    if origin.module in survey.stacked:
        return None
    try:
        module = Module(survey, origin, probe.first, train=probe.train)
        if module.call is not None:
            module.again()
        return module
    except Exception:  # a module that cannot be called alone only gives less evidence
        return None


def dependence(module: Module, sequence: str, row: int, tensor: str | None = None) -> Dependence | None:
    """Find which positions of a module's output depend on which positions of its input.

    Args:
        module: the module.
        sequence: its positions are changed one at a time.
        row: index of the example.
        tensor: name of the output, if it has that one; otherwise the first.
    """
    width = module.batch.widths[sequence]
    layouts = module.output_layouts()
    if width > LONGEST or not layouts or not module.reads(sequence):
        return None
    name = tensor if tensor in layouts else next(iter(layouts))
    layout = layouts[name]
    batch = next(at for at, axis in enumerate(layout) if axis.label == BATCH)
    position = next((at for at, axis in enumerate(layout) if axis.label == sequence and not axis.offset), None)
    if position is None:
        position = next((at for at, axis in enumerate(layout) if axis.label not in (None, BATCH) and not axis.offset), None)
    base = module.unchanged()
    columns = []
    for column in range(width):
        gap = (module.with_column(sequence, column)[name] - base[name]).abs().nan_to_num(nan=torch.inf)
        gap = gap.select(batch, row)
        if position is None:
            columns.append(gap.amax().reshape(1))
        else:
            gap = gap.movedim(position - (batch < position), 0)
            columns.append(gap.reshape(len(gap), -1).amax(1))
    # The positions are counted on the CPU, as all that describes the inputs.
    matrix = (torch.stack(columns, 1) > module.limit(name)).cpu()
    own = position is not None and layout[position].label == sequence
    return Dependence(matrix, module.batch.positions[sequence][row], own)
