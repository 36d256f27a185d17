"""Attention weights that Hugging Face models return with `output_attentions=True`, from a forward pass or `generate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.errors import DataError, shown
from regard.observe.call import AttentionCall
from regard.observe.recording import Recording

# Output fields: the names of their layers and the kind of attention, in call order within a block.
FIELDS = {
    "encoder_attentions": ("encoder.layers.{}.self", "self"),
    "attentions": ("layers.{}.self", "self"),
    "decoder_attentions": ("decoder.layers.{}.self", "self"),
    "cross_attentions": ("decoder.layers.{}.cross", "cross"),
}


def has_attention(outputs: Any) -> bool:
    """Return whether an object has a field for attention weights, as Hugging Face outputs do.

    Example:
        >>> has_attention([[0.5, 0.5]])
        False
    """
    return any(hasattr(outputs, name) for name in FIELDS)


def recording_of(outputs: Any) -> Recording:
    """Return the weights in a Hugging Face output as a recording like that of `regard.watch`.

    Args:
        outputs: of a forward pass, or of `generate(..., output_attentions=True, return_dict_in_generate=True)`: fields `attentions`,
            `encoder_attentions`, `decoder_attentions`, `cross_attentions`, each a tuple of (B, H, T, S) tensors by layer, or for a
            generation a tuple of such tuples by step.

    Returns:
        The calls; for a beam search those of the returned hypotheses.

    Raises:
        DataError: no field holds weights.

    Example:
        >>> import torch
        >>> from types import SimpleNamespace
        >>> recording_of(SimpleNamespace(attentions=(torch.ones(1, 2, 3, 3) / 3,)))
        <1 call of outputs in 1 layer>
    """
    fields = {name: value for name in FIELDS if (value := getattr(outputs, name, None)) is not None and len(value)}
    calls = list(_encoder(fields))
    steps = max((len(value) for value in fields.values() if _by_step(value)), default=1)
    for step in range(steps):
        calls += _calls({name: value[step] if _by_step(value) else value for name, value in fields.items()})
    if not calls:
        raise DataError(
            "the outputs hold no attention weights: pass output_attentions=True to a model loaded with attn_implementation='eager', or use "
            "regard.watch, which sees every implementation"
        )
    found = Recording("outputs", calls)
    beams = getattr(outputs, "beam_indices", None)
    return found if beams is None else found.of_beams(beams)


def _by_step(value: Sequence[Any]) -> bool:
    return isinstance(value[0], tuple | list)


def _encoder(fields: dict[str, Sequence[Any]]) -> Iterator[AttentionCall]:
    # It runs once, before all steps.
    yield from _calls({"encoder_attentions": fields.pop("encoder_attentions", ())})


def _calls(fields: dict[str, Sequence[Tensor | None]]) -> Iterator[AttentionCall]:
    """Yield the calls of one forward pass, layer by layer."""
    for number in range(max(map(len, fields.values()), default=0)):
        for name, (layer, kind) in FIELDS.items():
            weights = fields[name][number] if number < len(fields.get(name, ())) else None
            if weights is not None:
                yield AttentionCall(layer.format(number), kind, _weights(weights, f"{name}[{number}]"))


def _weights(values: Any, name: str) -> Tensor:
    try:
        found = torch.as_tensor(values).detach().float().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: expected weights (B, H, T, S), found {shown(values)}") from error
    if found.dim() != 4:
        raise DataError(f"{name}: expected weights (B, H, T, S), found shape {tuple(found.shape)}")
    return found
