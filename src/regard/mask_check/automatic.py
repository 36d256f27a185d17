"""Infers from the model and the batch how to call the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, DataError, listed
from regard.mask_check.adapter import Adapter, Inputs, Sequence
from regard.mask_check.examples import counts_columns, is_padding_mask

MASKS = ("mask",)
LENGTHS = ("len",)
LABELS = ("labels", "targets", "lm_labels")
COMPANIONS = ("token_type", "position", "segment", "document", "doc_id")
DOCUMENTS = ("document", "doc_id")
Causal = bool | Literal["strict"] | None
Calling = Callable[[nn.Module, Inputs], Any]
TRANSFORMERS = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def named(model: nn.Module, batch: Any, *, called: bool) -> tuple[Inputs, bool]:
    """Name the tensors of a batch by its own keys, or by the parameters of the model's `forward`.

    Args:
        model: the model.
        batch: a tensor, several tensors, or a mapping.
        called: whether a user's `call` takes the batch and relies on its names.

    Returns:
        The batch by name, and whether the model takes the names as keywords.

    Raises:
        ConfigError: the batch has another type.
        DataError: one of its tensors is empty.
    """
    if isinstance(batch, Mapping):
        return _filled({str(key): value for key, value in batch.items()}), True
    values = (batch,) if isinstance(batch, Tensor) else batch
    if not isinstance(values, Several) or isinstance(values, str | bytes) or not values:
        raise ConfigError(f"batch: expected a tensor, a tuple of tensors or a dictionary of them, found {type(batch).__name__}")
    if called:
        raise ConfigError("batch: with call= give a dictionary, whose keys your call reads")
    kinds = inspect.Parameter
    parameters = list(inspect.signature(model.forward).parameters.values())
    names = [p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    if len(names) < len(values):
        names = [f"arg{number}" for number in range(len(values))]
        return _filled(dict(zip(names, values, strict=True))), False
    return _filled(dict(zip(names, values, strict=False))), not any(p.kind is kinds.POSITIONAL_ONLY for p in parameters)


def _filled(batch: Inputs) -> Inputs:
    for name, value in batch.items():
        if isinstance(value, Tensor) and value.ndim > 1 and not value.numel():
            raise DataError(f"batch[{name!r}] has shape {tuple(value.shape)} and holds nothing; give rows and positions")
    return batch


def plain_adapter(model: nn.Module, batch: Inputs, *, keywords: bool, causal: Causal, pad: int | None, call: Calling | None) -> Adapter:
    """Build the adapter of a model that is neither from Hugging Face nor from Regard.

    Sequences are integer tensors (B, T) and floating ones (B, T, F); with two, the second is the target and causal. Masks are boolean
    tensors (B, T), tensors with "mask" in their name, and numbers that are constant up to the end of each row and constant after it; each
    belongs to the sequence of its shape, singleton axes allowed. Integer tensors (B,) with "len" in their name are lengths. Time comes
    first, (T, B), if the shapes say so. A batch of images (B, C, ...) alone has rows only.

    Raises:
        ConfigError: something cannot be inferred; the message asks for it.
    """
    images = [name for name, value in batch.items() if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 3]
    names = _sequence_names(batch)
    if not names and images:
        names, causal = images, False  # images: the axes after the first are not positions
    if not names:
        shapes = [f"{name} {tuple(value.shape)}" if isinstance(value, Tensor) else name for name, value in batch.items()]
        alone = any(isinstance(value, Tensor) and value.ndim == 1 for value in batch.values())
        raise ConfigError(
            f"batch: found no tokens (integers, B x T) and no features (numbers, B x T x F) among {listed(shapes)}; "
            f"{'add a batch axis, or ' if alone else ''}give adapter=Adapter(...)"
        )
    if len(names) > 2:
        raise ConfigError(f"batch: found {len(names)} sequences, {listed(names)}; give adapter=Adapter(sequences=...)")
    if isinstance(model, nn.TransformerDecoder | nn.TransformerDecoderLayer):
        names = sorted(names, key=lambda name: name == "tgt")  # `forward` takes the target first
    if causal is None and len(names) == 1:
        raise ConfigError(f"causal: may an output see later tokens of {names[0]!r}? Say causal=True, causal=False, or causal='strict'")
    first = _time_first(model, batch, names)
    sequences = []
    for number, name in enumerate(names):
        last = number == len(names) - 1
        seen: bool | Literal["strict"] = (True if causal is None else causal) if last else False
        rows, width = batch[name].transpose(0, 1).shape[:2] if first[name] else batch[name].shape[:2]
        companions = companions_of(batch, name, time_first=first[name])
        documents = next((key for key in companions if _numbers_documents(key, batch[key].T if first[name] else batch[key])), None)
        sequences.append(
            Sequence(
                name,
                mask=_masks(batch, names, name, (rows, width), time_first=first[name]),
                lengths=_lengths(batch, names, name, rows),
                pad=_pad(model, batch[name].transpose(0, 1) if first[name] else batch[name]) if pad is None else pad,
                causal=seen,
                labels=next((key for key in LABELS if key in batch and key != name and batch[key].shape == batch[name].shape), None),
                companions=tuple(key for key in companions if key != documents),
                documents=documents,
                time_first=first[name],
            )
        )
    if call is None and not keywords:
        call = _by_position
    return Adapter(tuple(_without_needless_pad(sequence, batch) for sequence in sequences), call)


def _by_position(model: nn.Module, inputs: Inputs) -> Any:
    return model(*inputs.values())


def _batch_first(model: nn.Module) -> bool:
    if isinstance(model, TRANSFORMERS):
        layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
        return bool(layers) and layers[0].batch_first
    return bool(getattr(model, "batch_first", True))


def _time_first(model: nn.Module, batch: Inputs, names: list[str]) -> dict[str, bool]:
    """Return which sequences are (T, B, ...), by the module or because only this fits."""
    told = None if isinstance(model, TRANSFORMERS) else _first_axis_is_time(batch, names, batch_first=_layers_are_batch_first(model))
    if told is not None:
        return dict.fromkeys(names, told)
    return {name: not _batch_first(model) and batch[name].ndim == 3 for name in names}


def _layers_are_batch_first(model: nn.Module) -> bool:
    told = [module.batch_first for module in model.modules() if isinstance(module, nn.MultiheadAttention | nn.RNNBase)]
    return bool(told) and all(told)


def _first_axis_is_time(batch: Inputs, names: list[str], *, batch_first: bool) -> bool | None:
    """Return whether batch sizes of sequences, masks and lengths agree only if time comes first; None: unclear.

    Raises:
        ConfigError: a mask reads as (T, B), or as (B, T) with a hole.
    """
    shapes = [tuple(batch[name].shape[:2]) for name in names]
    if len({rows for rows, _ in shapes}) > 1:
        return True if len({second for _, second in shapes}) == 1 else None
    rows, width = shapes[0]
    for key, value in batch.items():
        if not isinstance(value, Tensor) or key in names:
            continue
        if is_mask(key, value) and tuple(value.shape) == (rows, width) and not batch_first:
            # Its rows end in padding only if they are columns; a row of padding alone is none of those that do not.
            holes = int(((value[:, 1:] != value[:, :-1]).sum(1) > 1).sum())
            if holes and _marks_ends("", value.T) and not _marks_ends("", value):
                if holes == 1:
                    advice = "give a batch whose rows only end in padding, or adapter=Adapter(...) with Sequence(..., time_first=...)"
                    raise ConfigError(f"batch: {key!r} {tuple(value.shape)} is (T, B), or hides a position within a row; {advice}")
                return True
        if is_mask(key, value) and value.ndim > 1:
            either = is_padding_mask(tuple(value.shape), rows, width), is_padding_mask(tuple(value.shape), width, rows)
            if either[0] != either[1]:
                return either[1]
        if (
            value.ndim == 1
            and not value.is_floating_point()
            and any(word in key.lower() for word in LENGTHS)
            and len(value) in (rows, width)
            and rows != width
        ):
            return len(value) == width
    return None


def companions_of(batch: Inputs, name: str, *, time_first: bool = False) -> tuple[str, ...]:
    """Return the keys of tensors with a value per token that must move with it; position ids that count columns do not.

    Example:
        >>> tokens = torch.tensor([[5, 6, 7], [8, 9, 0]])
        >>> companions_of({"idx": tokens, "token_type_ids": 0 * tokens, "position_ids": torch.arange(3).expand(2, 3)}, "idx")
        ('token_type_ids',)
    """
    found = [key for key, value in batch.items() if key != name and _is_companion(key) and isinstance(value, Tensor)]
    found = [key for key in found if batch[key].shape == batch[name].shape[:2]]
    return tuple(key for key in found if not counts_columns(batch[key], batch[name], time_first=time_first))


def _is_companion(name: str) -> bool:
    return any(word in name.lower() for word in COMPANIONS)


def _numbers_documents(name: str, value: Tensor) -> bool:
    """Return whether a tensor (B, T) holds document ids of packed rows: each id is contiguous, and some have several tokens."""
    changes = (value[:, 1:] != value[:, :-1]).sum(1) + 1
    whole = all(int(count) - len(row.unique()) < 2 for row, count in zip(value, changes, strict=True))  # padding may repeat an id
    return any(word in name.lower() for word in DOCUMENTS) and whole and bool((changes < value.shape[1]).any())


def is_mask(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor of a batch is a mask, by its type, name or values.

    Example:
        >>> is_mask("m", torch.tensor([[1, 1, 1], [1, 0, 0]])), is_mask("idx", torch.tensor([[4, 7, 1], [4, 0, 0]]))
        (True, False)
    """
    return tensor.dtype == torch.bool or any(word in name.lower() for word in MASKS) or _marks_ends(name, tensor)


def _marks_ends(name: str, tensor: Tensor) -> bool:
    # One value up to the end of each row, another after it or before its beginning: no text looks like that.
    if name in LABELS or _is_companion(name) or tensor.ndim < 2 or tensor.is_complex() or sum(size != 1 for size in tensor.shape[1:]) > 1:
        return False
    rows = tensor.flatten(1)
    if rows.shape[1] < 2 or len(rows.unique()) != 2:
        return False
    changes = rows[:, 1:] != rows[:, :-1]
    return bool((changes.sum(1) <= 1).all()) and any(len(rows[:, column].unique()) == 1 for column in (0, -1))


def _sequence_names(batch: Inputs) -> list[str]:
    found = []
    for name, value in batch.items():
        if not isinstance(value, Tensor) or is_mask(name, value):
            continue
        tokens = value.ndim == 2 and not value.is_floating_point() and not value.is_complex()
        if tokens or (value.ndim == 3 and value.is_floating_point()):
            found.append(name)
    counting = [
        name for name in found if _counts(batch[name]) and any(_goes_along(batch[name], batch[key]) for key in found if key != name)
    ]
    partners = [name for name in found if name not in (*LABELS, *counting) and not _is_companion(name)]
    shapes = [batch[name].shape for name in partners]
    return partners + [name for name in found if name not in (*partners, *counting) and batch[name].shape not in shapes]


def _counts(value: Tensor) -> bool:
    return any(counts_columns(value, value, time_first=time_first) for time_first in (False, True))


def _goes_along(value: Tensor, sequence: Tensor) -> bool:
    rows, width = sequence.shape[:2]
    return tuple(value.shape) in ((rows, width), (1, width), (rows, 1))


def _masks(batch: Inputs, names: list[str], name: str, shape: tuple[int, int], *, time_first: bool) -> tuple[str, ...]:
    found = []
    for key, value in batch.items():
        if not isinstance(value, Tensor) or key in names or not is_mask(key, value):
            continue
        if not is_padding_mask(tuple(value.shape), *shape) and not (time_first and tuple(value.shape) == shape[::-1]):
            if value.ndim > 2 and (value.shape[0], value.shape[-1]) == shape:
                raise ConfigError(
                    f"batch: {key!r} of shape {tuple(value.shape)} is a mask of pairs, from which no padding can be read; "
                    f"give the padding mask {shape} instead, and make this one from it in call="
                )
            continue
        # (T, T) may as well be an attention mask, unless its name says padding.
        lower = key.lower()
        if shape[0] == shape[1] and lower in ("src_mask", "tgt_mask", "memory_mask", "attn_mask") and "pad" not in lower:
            continue
        if _owner(key, names, {other: tuple(batch[other].shape[:2]) for other in names}, name):
            found.append(key)
    return tuple(found)


def _owner(key: str, names: list[str], shapes: dict[str, tuple[int, ...]], name: str) -> bool:
    """Return whether a mask or lengths named `key` belong to a sequence: by name if it names one, otherwise by shape."""
    lower = key.lower()
    if lower.startswith("memory"):  # of nn.Transformer: masks the encoder's output
        return name == names[0]
    named = [other for other in names if lower.startswith(other.lower()) or other.lower() in lower]
    if not named:
        prefixes = {other: other.lower().split("_")[0] for other in names}
        named = [other for other, prefix in prefixes.items() if len(prefix) > 2 and lower.startswith(prefix)]
    if named:
        return name == max(named, key=len)
    if len(names) > 1 and len(set(shapes.values())) == 1:
        raise ConfigError(f"batch: cannot tell which of {listed(names)} {key!r} belongs to; give adapter=Adapter(...)")
    return True


def _lengths(batch: Inputs, names: list[str], name: str, rows: int) -> str | None:
    for key, value in batch.items():
        integer = isinstance(value, Tensor) and value.ndim == 1 and not value.is_floating_point() and value.dtype != torch.bool
        if integer and any(word in key.lower() for word in LENGTHS) and len(value) == rows:
            same = {other: (0, 0) for other in names}
            if _owner(key, names, same, name):
                return key
    return None


def _pad(model: nn.Module, tokens: Tensor) -> int | None:
    """Return the padding index of the model's embeddings, if the rows of the batch end or begin with it."""
    if tokens.ndim != 2:
        return None
    known = {module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding) and module.padding_idx is not None}
    found = [pad for pad in known if bool((tokens[:, [0, -1]] == pad).any())]
    return found[0] if len(found) == 1 else None


def _without_needless_pad(sequence: Sequence, batch: Inputs) -> Sequence:
    # With two sequences the padding token may belong to one of them; features have none.
    tokens = batch[sequence.name]
    if sequence.pad is None or not tokens.is_floating_point():
        return sequence
    return replace(sequence, pad=None)
