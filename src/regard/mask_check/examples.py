"""Splits batches into examples without padding, and collates them again with other padding, neighbours or order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.errors import ConfigError, DataError
from regard.mask_check.adapter import BATCH, Adapter, Inputs, Sequence, Side

ROWS = 3
"""Number of examples per check: one as long as the batch is wide, and shorter ones."""
ROOM = 2
"""Columns kept free for extra padding: no batch is wider than the user's, which the model is known to accept."""


@dataclass(frozen=True)
class Example:
    """One row of a batch, without padding.

    Attributes:
        sequences: (L, ...) per sequence.
        along: (L, ...) per companion tensor.
        constants: other values of the row.
    """

    sequences: dict[str, Tensor]
    along: dict[str, Tensor]
    constants: dict[str, Tensor]

    def length(self, name: str) -> int:
        """Return the number of positions of a sequence."""
        return len(self.sequences[name])


class MaskValues(NamedTuple):
    """Values of a padding mask.

    Attributes:
        real: its value at a real position.
        padding: its value at padding.
        between: number of singleton axes between batch and position axis.
        time_first: whether it is (T, B).
    """

    real: Tensor
    padding: Tensor
    between: int = 0
    time_first: bool = False


@dataclass(frozen=True)
class Template:
    """How to write examples as a batch.

    Attributes:
        sequences: the adapter's sequences.
        keys: the batch's keys, in order.
        masks: the values of each mask.
        lengths: of each sequence that has them, those of the user's batch.
        fills: the fill value of the padding of each sequence and companion.
        pools: where replacement tokens are drawn from: ids (N,), or mean and standard deviation of features.
        shared: tensors common to all examples, with the sequence names of their axes, and "batch" for an axis as long as the batch.
        others: inputs that are not tensors.
        side: padding side of the user's batch.
    """

    sequences: tuple[Sequence, ...]
    keys: tuple[str, ...]
    masks: dict[str, MaskValues]
    lengths: dict[str, Tensor]
    fills: dict[str, Tensor]
    pools: dict[str, Tensor]
    shared: dict[str, tuple[Tensor, tuple[str | None, ...]]]
    others: dict[str, Any]
    side: Side


class Batch(NamedTuple):
    """A batch for the model, with its real positions.

    Attributes:
        inputs: the model's inputs.
        positions: real columns (L,) per sequence and row.
        widths: number of columns per sequence.
        examples: the rows.
    """

    inputs: Inputs
    positions: dict[str, list[Tensor]]
    widths: dict[str, int]
    examples: list[Example]


def read_batch(batch: Mapping[str, Any], adapter: Adapter) -> tuple[Template, list[Example]]:
    """Split a batch into examples.

    Raises:
        ConfigError: a key of the adapter is not in the batch, or its padding is ambiguous.
        DataError: an example has no token.
    """
    names = [sequence.name for sequence in adapter.sequences]
    for sequence in adapter.sequences:
        wanted = [sequence.name, *sequence.mask, *sequence.along, *([sequence.lengths] if sequence.lengths else [])]
        for key in wanted:
            if batch.get(key) is not None and not isinstance(batch[key], Tensor):
                raise ConfigError(f"batch[{key!r}]: expected a tensor, found {type(batch[key]).__name__}; torch.tensor makes one")
            if not isinstance(batch.get(key), Tensor):
                raise ConfigError(f"the batch has no tensor {key!r}, which the sequence {sequence.name!r} needs; it has {', '.join(batch)}")
    counts = {s.name: _first(batch[s.name], s).shape[0] for s in adapter.sequences}
    count = counts[names[0]]
    if len(set(counts.values())) > 1:
        shapes = ", ".join(f"{name} {tuple(batch[name].shape)}" for name in names)
        raise ConfigError(
            f"batch: its sequences have different numbers of examples, {shapes}; where time comes first, (T, B), give "
            f"adapter=Adapter((Sequence({names[0]!r}, time_first=True), ...))"
        )
    spans = {sequence.name: _spans(batch, sequence) for sequence in adapter.sequences}
    per_sequence = {key for s in adapter.sequences for key in (s.name, *s.mask, *s.along, *([s.lengths] if s.lengths else []))}
    shared, constants, others = {}, {}, {}
    for key, value in batch.items():
        if key in per_sequence:
            continue
        if not isinstance(value, Tensor):
            others[key] = value
        elif (axes := _shared_axes(key, value, batch, adapter)) is not None:
            # Values common to all examples are stored once.
            shared[key] = (value[tuple(slice(0, 1) if axis == BATCH else slice(None) for axis in axes)], axes)
        elif value.ndim and value.shape[0] == count:
            constants[key] = value
        else:
            raise ConfigError(
                f"batch: cannot tell what {key!r} of shape {tuple(value.shape)} is; leave it out and make it in call=, from the tokens"
            )
    template = Template(
        adapter.sequences,
        tuple(batch),
        {
            key: _mask_values(batch[key], spans[s.name], key, s, _first(batch[s.name], s).shape[1])
            for s in adapter.sequences
            for key in s.mask
        },
        {s.lengths: batch[s.lengths] for s in adapter.sequences if s.lengths},
        {key: fill for s in adapter.sequences for key, fill in _fills(batch, s, spans[s.name]).items()},
        {s.name: _pool(_first(batch[s.name], s), spans[s.name]) for s in adapter.sequences},
        shared,
        others,
        _side(spans, {s.name: _first(batch[s.name], s).shape[1] for s in adapter.sequences}),
    )
    examples = [
        Example(
            {s.name: _first(batch[s.name], s)[row, slice(*spans[s.name][row])] for s in adapter.sequences},
            {key: _first(batch[key], s)[row, slice(*spans[s.name][row])] for s in adapter.sequences for key in s.along},
            {key: value[row] for key, value in constants.items()},
        )
        for row in range(count)
    ]
    return template, examples


def _first(tensor: Tensor, sequence: Sequence) -> Tensor:
    return tensor.transpose(0, 1) if sequence.time_first else tensor


def _spans(batch: Mapping[str, Any], sequence: Sequence) -> list[tuple[int, int]]:
    """Return the first real column of each row, and the one after its last."""
    if batch[sequence.name].ndim < 2:
        found = tuple(batch[sequence.name].shape)
        raise DataError(
            f"batch[{sequence.name!r}]: expected tokens (B, T) or features (B, T, F), found {found}; unsqueeze(0) makes one row"
        )
    tokens = _first(batch[sequence.name], sequence)
    rows, width = tokens.shape[:2]
    if sequence.lengths is not None:
        given = batch[sequence.lengths]
        ends = [int(end) for end in given.tolist()] if given.ndim == 1 else []
        if given.ndim != 1:
            raise DataError(f"batch[{sequence.lengths!r}]: lengths are (B,), here ({rows},); found {tuple(given.shape)}")
        if len(ends) != rows or not all(1 <= end <= width for end in ends):
            raise DataError(f"batch[{sequence.lengths!r}]: expected {rows} lengths of 1 to {width}, found {ends}")
        return [(0, end) for end in ends]
    by_token = tokens != sequence.pad if sequence.pad is not None and tokens.ndim == 2 else None
    if sequence.mask:
        key = sequence.mask[0]
        real = _real_by_mask(_flat(batch[key], key, (rows, width), sequence), key, by_token)
    elif by_token is not None:
        real = by_token
    else:
        return [(0, width)] * rows
    spans = []
    for row in range(rows):
        columns = real[row].nonzero().flatten().tolist()
        if not columns:
            raise DataError(f"batch[{sequence.name!r}]: row {row} is padding alone; every example needs a token")
        spans.append((columns[0], columns[-1] + 1))
    return spans


def is_padding_mask(shape: tuple[int, ...], rows: int, width: int) -> bool:
    """Return whether a mask of this shape has one value per position: (B, T), or with singleton axes, such as (B, 1, 1, T).

    Example:
        >>> is_padding_mask((5, 1, 1, 7), 5, 7), is_padding_mask((5, 1, 7, 7), 5, 7)
        (True, False)
    """
    return len(shape) > 1 and (shape[0], shape[-1]) == (rows, width) and all(size == 1 for size in shape[1:-1])


def _flat(mask: Tensor, key: str, shape: tuple[int, int], sequence: Sequence) -> Tensor:
    if _turned(mask, shape, sequence):
        return mask.T
    if not is_padding_mask(tuple(mask.shape), *shape):
        raise ConfigError(
            f"batch[{key!r}]: a padding mask is (B, T), here {shape}, or has axes of 1 between; found {tuple(mask.shape)}: make it in call="
        )
    return mask.reshape(shape)


def _turned(mask: Tensor, shape: tuple[int, int], sequence: Sequence) -> bool:
    """Return whether a mask is (T, B) like its sequence; an ambiguous one is (B, T)."""
    return sequence.time_first and tuple(mask.shape) == shape[::-1] != shape


def _real_by_mask(mask: Tensor, key: str, by_token: Tensor | None) -> Tensor:
    values = mask.unique().tolist()
    if len(values) > 2:
        raise ConfigError(f"batch[{key!r}]: a padding mask has two values, found {len(values)}")
    if len(values) == 1:
        return torch.ones_like(mask, dtype=torch.bool)
    # Every row has real tokens in its first or its last column. If both values fit, the padding token or the name decides.
    fitting = [value for value in values if (mask[:, 0] == value).all() or (mask[:, -1] == value).all()]
    if len(fitting) != 1 and by_token is not None:
        return by_token
    usual = values[0] if any(word in key.lower() for word in ("padding_mask", "pad_mask")) else _usual_real(mask, values)
    value = fitting[0] if len(fitting) == 1 else usual
    return mask == value


def _usual_real(mask: Tensor, values: list[float]) -> float:
    # A keep mask holds 1 at real positions; an additive one 0 there and a very low value elsewhere.
    return values[1] if mask.dtype == torch.bool or values[0] >= 0 else max(values)


def _mask_values(given: Tensor, spans: list[tuple[int, int]], key: str, sequence: Sequence, width: int) -> MaskValues:
    shape = len(spans), width
    mask, between, turned = _flat(given, key, shape, sequence), given.ndim - 2, _turned(given, shape, sequence)
    inside = torch.zeros_like(mask, dtype=torch.bool)
    for row, (start, end) in enumerate(spans):
        inside[row, start:end] = True
    real, padding = mask[inside].unique(), mask[~inside].unique()
    if len(real) != 1 or len(padding) > 1 or (len(padding) and padding[0] == real[0]):
        raise ConfigError(
            f"batch[{key!r}]: it disagrees with the tokens about what is padding: {real.tolist()} at tokens, {padding.tolist()} elsewhere"
        )
    if len(padding):
        return MaskValues(real[0], padding[0], between, turned)
    if mask.dtype == torch.bool:
        return MaskValues(real[0], ~real[0], between, turned)
    additive = mask.is_floating_point() and float(real[0]) == 0
    return MaskValues(real[0], torch.full_like(real[0], -torch.inf) if additive else 1 - real[0], between, turned)


def _fills(batch: Mapping[str, Any], sequence: Sequence, spans: list[tuple[int, int]]) -> dict[str, Tensor]:
    # The content of the user's padding; without any, the padding token, or zeros.
    fills = {}
    for key in (sequence.name, *sequence.along):
        tensor = _first(batch[key], sequence)
        fills[key] = tensor.new_zeros(tensor.shape[2:])
        if key == sequence.name and sequence.pad is not None and not tensor.is_floating_point():
            fills[key] = fills[key] + sequence.pad
            continue
        for row, (start, end) in enumerate(spans):
            if start > 0 or end < tensor.shape[1]:
                fills[key] = tensor[row, 0 if start > 0 else -1].clone()
                break
    return fills


def _pool(tokens: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    real = torch.cat([tokens[row, start:end] for row, (start, end) in enumerate(spans)])
    if tokens.is_floating_point():
        return torch.stack([real.mean(), real.std().clamp(min=1e-3)])
    return real.unique()


def _side(spans: dict[str, list[tuple[int, int]]], widths: dict[str, int]) -> Side:
    left = any(start > 0 for rows in spans.values() for start, _ in rows)
    right = any(end < widths[name] for name, rows in spans.items() for _, end in rows)
    if left and right:
        raise ConfigError("batch: it is padded on the left and on the right; give one padded on one side")
    return "left" if left else "right"


def counts_columns(value: Tensor, sequence: Tensor, *, time_first: bool = False) -> bool:
    """Return whether a tensor shaped like a sequence holds position ids that count columns, equal in all examples.

    Example:
        >>> counts_columns(torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.tensor([[5, 6, 7], [8, 9, 0]]))
        True
    """
    if value.ndim != 2 or value.shape != sequence.shape[:2] or value.is_floating_point() or value.dtype == torch.bool:
        return False
    rows = value.T if time_first else value
    return bool((rows == rows[0, 0] + torch.arange(rows.shape[1], device=rows.device)).all())


def _shared_axes(key: str, value: Tensor, batch: Mapping[str, Any], adapter: Adapter) -> tuple[str | None, ...] | None:
    """Return the sequence names of the axes of a tensor common to all examples; None if it is not common."""
    for sequence in adapter.sequences:
        if counts_columns(value, batch[sequence.name], time_first=sequence.time_first):
            return (sequence.name, BATCH) if sequence.time_first else (BATCH, sequence.name)
    first = adapter.sequences[0]
    if value.ndim == 0 or (value.ndim > 1 and value.shape[0] == 1 and _first(batch[first.name], first).shape[0] > 1):
        inner = _shared_axes(key, value[0], batch, adapter) if value.ndim else ()
        return None if inner is None else (None, *inner) if value.ndim else ()
    widths = {s.name: _first(batch[s.name], s).shape[1] for s in adapter.sequences}
    if value.ndim == 1 and value.shape[0] != _first(batch[adapter.sequences[0].name], adapter.sequences[0]).shape[0]:
        fitting = [name for name, width in widths.items() if value.shape[0] == width]
        return (fitting[0],) if len(fitting) == 1 else None
    if value.ndim == 2 and value.shape[0] in widths.values() and value.shape[1] in widths.values():
        names = list(widths)
        named = [name for name in names if key.lower().startswith(name.lower())]
        source, target = named or names[:1], named or names[-1:]
        if key == "memory_mask":
            source, target = names[:1], names[-1:]
        if value.shape == (widths[target[0]], widths[source[0]]):
            return target[0], source[0]
        square = [name for name in reversed(names) if value.shape == (widths[name], widths[name])]
        return (square[0], square[0]) if square else None
    return None


def choose(template: Template, examples: list[Example], *, rows: int, room: int, generator: torch.Generator) -> list[Example]:
    """Choose a few examples and cut them to different lengths if the model is told what is padding.

    Args:
        template: of the batch.
        examples: of the user's batch.
        rows: number of examples; missing ones are made of other tokens.
        room: number of columns to keep free below the longest length.
        generator: draws the tokens of new examples.

    Raises:
        DataError: a sequence is too short for a change.
    """
    main = template.sequences[-1].name
    packed = template.sequences[-1].documents
    found = sorted(examples, key=lambda e: (-e.length(main), 0 if packed is None else -len(e.along[packed].unique())))[:rows]
    while len(found) < rows:
        found.append(_made(template, found[0], generator))
    for sequence in template.sequences:
        longest = max(example.length(sequence.name) for example in examples)
        if longest < 4 and (sequence.causal or sequence.paddable):
            raise DataError(f"batch[{sequence.name!r}]: its longest row has {longest} positions; a check needs 4 or more")
        width = longest - min(room, longest // 3) if room else longest
        plan = [width if row == 0 or not sequence.paddable else max(2, width - 3 * row) for row in range(rows)]
        if not sequence.paddable:
            plan = [min(width, *(example.length(sequence.name) for example in found))] * rows
        found = [_cut(example, sequence, plan[row]) for row, example in enumerate(found)]
    return found


def _made(template: Template, like: Example, generator: torch.Generator) -> Example:
    changed = like
    for sequence in template.sequences:
        changed = with_other(template, changed, sequence.name, range(changed.length(sequence.name)), generator)
    return changed


def _cut(example: Example, sequence: Sequence, length: int) -> Example:
    sequences = example.sequences | {sequence.name: example.sequences[sequence.name][:length]}
    along = example.along | {key: example.along[key][:length] for key in sequence.along}
    return replace(example, sequences=sequences, along=along)


def cut(template: Template, examples: list[Example], name: str, length: int) -> list[Example]:
    """Cut a sequence of all examples to a length."""
    sequence = next(s for s in template.sequences if s.name == name)
    return [_cut(example, sequence, length) for example in examples]


def with_other(
    template: Template, example: Example, name: str, where: Iterable[int], generator: torch.Generator, key: str | None = None
) -> Example:
    """Replace the tokens of a sequence, or its companion `key`, at some positions."""
    values = (example.sequences[name] if key is None else example.along[key]).clone()
    at = torch.tensor(list(where), dtype=torch.long, device=values.device)
    values[at] = other(values[at], template.pools[name], generator)
    if key is None:
        return replace(example, sequences=example.sequences | {name: values})
    return replace(example, along=example.along | {key: values})


def other(values: Tensor, pool: Tensor, generator: torch.Generator) -> Tensor:
    """Draw tokens that all differ from those they replace, or features with the spread of the batch."""
    if values.is_floating_point():
        noise = torch.randn(values.shape, generator=generator, dtype=torch.float64)
        return (pool[0].cpu() + pool[1].cpu() * noise).to(values)
    # A step of 1 to N - 1 through the sorted pool never returns to its start.
    ids = pool.cpu()
    places = torch.searchsorted(ids, values.cpu().clamp(max=int(ids[-1])))
    steps = torch.randint(1, len(ids), values.shape, generator=generator)
    return ids[(places + steps) % len(ids)].to(values)


def collate(
    template: Template,
    examples: list[Example],
    widths: Mapping[str, int],
    *,
    side: Side = "right",
    junk: str | None = None,
    generator: torch.Generator | None = None,
) -> Batch:
    """Write examples as a batch.

    Args:
        template: the template.
        examples: the rows.
        widths: columns of each sequence.
        side: padding side.
        junk: a sequence whose padding is filled with random tokens.
        generator: draws these.
    """
    made: Inputs = {}
    positions: dict[str, list[Tensor]] = {}
    for sequence in template.sequences:
        width = widths[sequence.name]
        at = []
        for example in examples:
            length = example.length(sequence.name)
            at.append(torch.arange(length) + (width - length if side == "left" else 0))
        positions[sequence.name] = at
        for key in (sequence.name, *sequence.along):
            rows = [example.sequences[key] if key == sequence.name else example.along[key] for example in examples]
            filled = template.fills[key].expand(len(rows), width, *template.fills[key].shape).clone()
            if junk == key and generator is not None:
                filled = other(filled, template.pools[key], generator)
            for row, values in enumerate(rows):
                filled[row, at[row].to(filled.device)] = values
            made[key] = filled.transpose(0, 1).contiguous() if sequence.time_first else filled
        for key in sequence.mask:
            values = template.masks[key]
            mask = values.padding.expand(len(examples), width).clone()
            for row, columns in enumerate(at):
                mask[row, columns.to(mask.device)] = values.real
            made[key] = mask.T.contiguous() if values.time_first else mask.reshape(len(examples), *(1,) * values.between, width)
        if sequence.lengths is not None:
            like = template.lengths[sequence.lengths]
            made[sequence.lengths] = torch.tensor([len(columns) for columns in at], dtype=like.dtype, device=like.device)
    for key in examples[0].constants:
        made[key] = torch.stack([example.constants[key] for example in examples])
    for key, (value, axes) in template.shared.items():
        part = value[tuple(slice(0, widths[name]) if name not in (None, BATCH) else slice(None) for name in axes)]
        made[key] = part.expand(*(len(examples) if name == BATCH else -1 for name in axes)).clone()
    made |= template.others
    return Batch({key: made[key] for key in template.keys}, positions, dict(widths), examples)


def widths_of(template: Template, examples: list[Example]) -> dict[str, int]:
    """Return the length of the longest example of each sequence."""
    return {s.name: max(example.length(s.name) for example in examples) for s in template.sequences}
