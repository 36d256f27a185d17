"""How a model is called, found out from the model and the batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.errors import ConfigError, listed
from regard.mask_check.adapter import Adapter, Inputs, Sequence

MASKS = ("mask",)
LENGTHS = ("len",)
LABELS = ("labels", "targets", "lm_labels")
COMPANIONS = ("token_type_ids", "position_ids")
Causal = bool | Literal["strict"] | None
Calling = Callable[[nn.Module, Inputs], Any]
TRANSFORMERS = (nn.Transformer, nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def named(model: nn.Module, batch: Any, *, called: bool) -> tuple[Inputs, bool]:
    """Name the tensors of a batch: by its own keys, or by the parameters of the model's `forward`.

    Args:
        model: takes the batch.
        batch: a tensor, several, or a mapping.
        called: whether a `call` of the user's takes it, which must know the names.

    Returns:
        The batch by name, and whether the model takes the names as keywords.

    Raises:
        ConfigError: the batch is nothing of these.
    """
    if isinstance(batch, Mapping):
        return {str(key): value for key, value in batch.items()}, True
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
        return dict(zip(names, values, strict=True)), False
    return dict(zip(names, values, strict=False)), not any(p.kind is kinds.POSITIONAL_ONLY for p in parameters)


def plain_adapter(model: nn.Module, batch: Inputs, *, keywords: bool, causal: Causal, pad: int | None, call: Calling | None) -> Adapter:
    """Make the adapter of a model that is neither of Hugging Face nor of Regard.

    Sequences are integer tensors (B, T) and floating ones (B, T, F); the last of two is the target and causal. Boolean tensors (B, T), and
    those with "mask" in their name, are masks of the sequence of their shape; integer tensors (B,) with "len" in their name are lengths.

    Raises:
        ConfigError: what cannot be told is asked for.
    """
    time_first = not _batch_first(model)
    names = _sequence_names(batch)
    if not names:
        raise ConfigError(f"batch: found no tokens (B, T) and no features (B, T, F) among {listed(batch)}; give adapter=Adapter(...)")
    if len(names) > 2:
        raise ConfigError(f"batch: found {len(names)} sequences, {listed(names)}; give adapter=Adapter(sequences=...)")
    if isinstance(model, nn.TransformerDecoder | nn.TransformerDecoderLayer):
        names = sorted(names, key=lambda name: name == "tgt")  # `forward` takes the target first
    if causal is None and len(names) == 1:
        raise ConfigError(f"causal: may an output see later tokens of {names[0]!r}? Say causal=True, causal=False, or causal='strict'")
    first = {name: time_first and batch[name].ndim == 3 for name in names}
    sequences = []
    for number, name in enumerate(names):
        last = number == len(names) - 1
        seen: bool | Literal["strict"] = (True if causal is None else causal) if last else False
        rows, width = batch[name].transpose(0, 1).shape[:2] if first[name] else batch[name].shape[:2]
        sequences.append(
            Sequence(
                name,
                mask=_masks(batch, names, name, (rows, width)),
                lengths=_lengths(batch, names, name, rows),
                pad=_pad(model, batch[name]) if pad is None else pad,
                causal=seen,
                labels=next((key for key in LABELS if key in batch and key != name and batch[key].shape == batch[name].shape), None),
                companions=tuple(key for key in COMPANIONS if key in batch and batch[key].shape == batch[name].shape),
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


def _is_mask(name: str, tensor: Tensor) -> bool:
    return tensor.dtype == torch.bool or any(word in name.lower() for word in MASKS)


def _sequence_names(batch: Inputs) -> list[str]:
    found = []
    for name, value in batch.items():
        if not isinstance(value, Tensor) or _is_mask(name, value):
            continue
        tokens = value.ndim == 2 and not value.is_floating_point() and not value.is_complex()
        if tokens or (value.ndim == 3 and value.is_floating_point()):
            found.append(name)
    partners = [name for name in found if name not in (*LABELS, *COMPANIONS)]
    shapes = [batch[name].shape for name in partners]
    return partners + [name for name in found if name not in partners and batch[name].shape not in shapes]


def _masks(batch: Inputs, names: list[str], name: str, shape: tuple[int, int]) -> tuple[str, ...]:
    found = []
    for key, value in batch.items():
        if not isinstance(value, Tensor) or not _is_mask(key, value) or tuple(value.shape) != shape:
            continue
        # (T, T) is as likely a mask of who sees whom, unless its name says that it is of padding.
        lower = key.lower()
        if shape[0] == shape[1] and lower in ("src_mask", "tgt_mask", "memory_mask", "attn_mask") and "pad" not in lower:
            continue
        if _owner(key, names, {other: tuple(batch[other].shape[:2]) for other in names}, name):
            found.append(key)
    return tuple(found)


def _owner(key: str, names: list[str], shapes: dict[str, tuple[int, ...]], name: str) -> bool:
    """Tell whether a mask or lengths named `key` go with a sequence: by name where one is named, otherwise by shape."""
    lower = key.lower()
    if lower.startswith("memory"):  # of nn.Transformer: a mask of what the encoder makes of the source
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
    """Return the padding token of the model's embeddings, where the batch ends or begins with it."""
    if tokens.ndim != 2:
        return None
    known = {module.padding_idx for module in model.modules() if isinstance(module, nn.Embedding) and module.padding_idx is not None}
    found = [pad for pad in known if bool((tokens[:, [0, -1]] == pad).any())]
    return found[0] if len(found) == 1 else None


def _without_needless_pad(sequence: Sequence, batch: Inputs) -> Sequence:
    # The pad token of a model with two sequences may be meant for one of them; features have none.
    tokens = batch[sequence.name]
    if sequence.pad is None or not tokens.is_floating_point():
        return sequence
    return Sequence(
        sequence.name, sequence.mask, sequence.lengths, None, sequence.causal, sequence.labels, sequence.companions, sequence.time_first
    )
