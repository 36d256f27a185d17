"""Recordings: what every attention layer of a Hugging Face model looked at, call by call."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from regard.errors import ConfigError
from regard.integrations.calls import AreaLayer, Attended, attend_openly, read_call

# A layer is given these only where it attends to another sequence than its own.
OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states")


class AttentionRecord(NamedTuple):
    """One call of one attention layer.

    Attributes:
        layer: the layer's name in the model ("model.decoder.layers.0.encoder_attn").
        kind: "self" or "cross".
        weights: (B, H, T, S) float32 on the CPU, before dropout; where the layer attends to areas, see `regard.ops.item_weights`.
        areas: (B, H, T, N) float32 on the CPU, the weights of areas; None where they were not asked for or the layer has none.
    """

    layer: str
    kind: str
    weights: Tensor
    areas: Tensor | None


class Recorder:
    """Collects the calls of some layers between `start` and `stop`.

    Args:
        layers: attention layers by name.
        using_areas: the names of those that attend to areas.
        keep_areas: whether to keep the weights of areas too.
    """

    def __init__(self, layers: dict[str, nn.Module], using_areas: set[str], *, keep_areas: bool) -> None:
        self.records: list[AttentionRecord] = []
        self.ran = False
        self._layers = layers
        self._names = {id(module): name for name, module in layers.items()}
        self._using_areas, self._keep_areas = using_areas, keep_areas
        self._kinds: dict[str, str] = {}
        self._hooks: list[RemovableHandle] = []

    def start(self, model: nn.Module) -> None:
        """Listen to the layers of the model.

        Raises:
            ConfigError: another recording of this model is under way.
        """
        if any(recorder.knows(module) for recorder in _active for module in self._layers.values()):
            raise ConfigError("record_attention: this model is being recorded already")
        self._hooks = [module.register_forward_pre_hook(self._see_kind, with_kwargs=True) for module in self._layers.values()]
        self._hooks.append(model.register_forward_hook(self._see_end))
        _active.append(self)

    def stop(self) -> None:
        """Stop listening."""
        for hook in self._hooks:
            hook.remove()
        _active.remove(self)

    def knows(self, module: nn.Module) -> bool:
        """Say whether a layer is one of those recorded."""
        return id(module) in self._names

    def areas_of(self, module: nn.Module) -> AreaLayer | None:
        """Return the areas that a layer attends to, None where it attends to items."""
        layer = module._modules.get("regard_area")
        return layer if isinstance(layer, AreaLayer) and self._names[id(module)] in self._using_areas else None

    def take(self, module: nn.Module, seen: Attended) -> None:
        """Keep one call."""
        name = self._names[id(module)]
        areas = _kept(seen.areas) if seen.areas is not None and self._keep_areas else None
        self.records.append(AttentionRecord(name, self._kinds[name], _kept(seen.items), areas))

    def _see_kind(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        cross = any(given.get(name) is not None for name in OTHER_SEQUENCE)
        self._kinds[self._names[id(module)]] = "cross" if cross else "self"

    def _see_end(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.ran = True


_active: list[Recorder] = []


def _kept(weights: Tensor) -> Tensor:
    return weights.detach().to("cpu", torch.float32, copy=True)


def recording_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attend as the layer would, to its areas where it has them, and tell whoever records; an attention function for the registry."""
    recorder = next((recorder for recorder in _active if recorder.knows(module)), None)
    layer = recorder.areas_of(module) if recorder else None
    seen = attend_openly(read_call(module, (query, key, value), attention_mask, options), layer or AreaLayer(0, None))
    if recorder:
        recorder.take(module, seen)
    return seen.context.transpose(1, 2).contiguous(), seen.items
