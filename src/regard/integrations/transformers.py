"""Area attention in Hugging Face `transformers` models; needs the extra `hf`.

    handle = enable_area(model, max_area=5, layers=2)     # the model's own attention layers now attend to areas
    with regard.watch(model, areas=True) as seen:         # what every layer attends to, as in any other model
        model(**inputs)

`docs/transformers.md` lists the supported model families and caveats.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Collection
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from regard.attention import Areas
from regard.attention.recorder import is_recording, note_weights
from regard.errors import CheckpointError, ConfigError, missing_extra, shown
from regard.integrations.calls import AreaLayer, attend_to_areas, attend_with_weights, read_call
from regard.integrations.families import (
    attention_layers,
    check_family,
    head_size,
    image_grid,
    leading_tokens,
    restore_attention,
    select_layers,
    switch_attention,
)
from regard.ops.area_windows import check_areas
from regard.ops.materialized_areas import LEARNED_KEY_MODES
from regard.strict_json import parse_json

try:
    from transformers import PreTrainedConfig
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface
except ImportError as error:
    raise missing_extra("regard.integrations.transformers needs transformers 5.20 or newer", "hf") from error

__all__ = ["AREA", "AreaHandle", "enable_area", "register", "restore"]

AREA = "regard_area"
SETTINGS = ("max_area", "grid", "key_mode", "value_mode", "layers", "class_tokens")
SAVED = re.compile(r"(?:^|\.)regard_area\.(\d+)\.(.+)$")


def register() -> None:
    """Register `regard_area` and its mask function with transformers; repeated calls have no effect.

    `enable_area` and `restore` call it. Call it before `from_pretrained` loads a model saved with areas: its configuration names
    `regard_area`.

    Example:
        >>> register()
        >>> AREA in AttentionInterface().valid_keys()
        True
    """
    AttentionInterface.register(AREA, _area_attention)
    # Without a mask function of the same name, every layer would silently get no mask for padding and the future.
    AttentionMaskInterface.register(AREA, _visible_mask)


def _visible_mask(*args: Any, **options: Any) -> Tensor | None:
    """Build transformers' boolean mask without skipping a causal one: area attention gets no causal flag."""
    options["allow_is_causal_skip"] = False
    return sdpa_mask(*args, **options)


def _area_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    layer = module._modules.get("regard_area")
    if not isinstance(layer, AreaLayer):
        raise ConfigError(
            f"{type(module).__name__}: asked for {AREA!r}, but it was not given any areas; call "
            "regard.integrations.transformers.enable_area(model, ...), or restore(model, folder) for a model that was saved with them"
        )
    if not torch.compiler.is_compiling():  # avoids recompiling the graph
        layer.reached = True
    call = read_call(module, (query, key, value), attention_mask, options)
    if is_recording():

        def weigh(need_areas: bool) -> tuple[Tensor, Tensor | None]:
            return attend_with_weights(call, layer)[1:]

        note_weights(module, weigh)
    if options.get("output_attentions"):
        context, weights, _ = attend_with_weights(call, layer)
    else:
        context, weights = attend_to_areas(call, layer), None
    return context.transpose(1, 2).contiguous(), weights


class AreaHandle:
    """A model whose attention layers attend to areas; returned by `enable_area` and `restore`.

    Attributes:
        layers: areas of each attention layer by its name.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=6, num_attention_heads=3, num_hidden_layers=1, intermediate_size=5, vocab_size=7)
        >>> handle = enable_area(BertModel(config), max_area=3)
        >>> handle.remove()
    """

    def __init__(self, model: Any, layers: dict[str, AreaLayer], before: list[tuple[Any, str | None]]) -> None:
        self.model, self.layers = model, layers
        self._before, self._removed = before, False
        self._hook = model.register_forward_hook(self._after_forward)

    @property
    def reached(self) -> list[str]:
        """Names of the attention layers that have called area attention so far; calls inside `torch.compile` are not counted."""
        return [name for name, layer in self.layers.items() if layer.reached]

    def parameters(self) -> list[nn.Parameter]:
        """Return the learned weights of the areas; they also belong to the model's parameters."""
        return [parameter for layer in self.layers.values() for parameter in layer.parameters()]

    def check(self) -> None:
        """Check that the model has called area attention, and still will.

        Raises:
            ConfigError: it has not: its layers use another path; or another attention was set, or the areas were removed, since. The areas
                have no effect.
        """
        if self._removed:
            raise ConfigError(f"{type(self.model).__name__}: its areas were removed")
        for config, _ in self._before:
            if config._attn_implementation != AREA:
                found = shown(config._attn_implementation)
                raise ConfigError(
                    f"{type(self.model).__name__}: its attention was set to {found}: the areas have no effect; "
                    f"set_attn_implementation({AREA!r}) brings them back"
                )
        if not self.reached:
            raise ConfigError(
                f"{type(self.model).__name__}: none of its {len(self.layers)} attention layers asked for {AREA!r}: the areas have no effect"
            )

    def remove(self) -> None:
        """Restore the model's own attention, and discard the areas and their learned weights; once removed, do nothing."""
        if self._removed:
            return
        self._removed = True
        self._hook.remove()
        restore_attention(self._before)
        for name in self.layers:
            del self.model.get_submodule(name).regard_area
        for name in ("regard_area", "attn_implementation"):
            delattr(self.model.config, name)

    def _after_forward(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling() and module.config._attn_implementation == AREA:
            self.check()


def enable_area(
    model: Any,
    *,
    max_area: int | tuple[int, int],
    grid: tuple[int, int] | None = None,
    key_mode: str = "mean",
    value_mode: str = "sum",
    layers: int | Collection[int] | None = None,
    class_tokens: int | tuple[int, int] | None = None,
) -> AreaHandle:
    """Make the attention layers of a Hugging Face model attend to areas instead of single items.

    Li et al. 2018, "Area Attention" (arXiv:1810.10126); self-attention and cross-attention, caches and generation included. Call it before
    you create an optimizer: learned key modes add parameters to the model. The settings are stored in `model.config`, so `save_pretrained`
    keeps them; `restore` loads them and the learned weights.

    Args:
        model: a `PreTrainedModel`. Its `config` becomes a copy, so that other models built from the same object stay as they are.
        max_area: max length of an area in items; for images the max (height, width) in patches. 1 changes nothing.
        grid: (rows, columns) of an image's patches; None: from the configuration if `max_area` is a pair, otherwise a sequence.
        key_mode: see `regard.ops.area_keys`; "features" is Eq. 9, with learned weights in every layer.
        value_mode: "sum", "mean" or "max".
        layers: the number of layers, from the first (the paper: 2 each of encoder and decoder), or their indices, the first number in their
            names; None: all. The others keep standard attention.
        class_tokens: number of items at the front, or at (front, back), that are areas of their own; None: for images the model's class,
            distillation and register tokens, otherwise 0.

    Returns:
        `AreaHandle`. After every forward it checks that the model called area attention.

    Raises:
        ConfigError: the model's attention cannot be replaced or has unsupported features, or a setting is invalid; the message says which.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> config = BertConfig(hidden_size=6, num_attention_heads=3, num_hidden_layers=2, intermediate_size=5, vocab_size=7)
        >>> model = BertModel(config)
        >>> handle = enable_area(model, max_area=3, key_mode="features", layers=1)
        >>> model(torch.tensor([[1, 2, 3, 4, 5]])).last_hidden_state.shape
        torch.Size([1, 5, 6])
        >>> [tuple(parameter.shape) for parameter in handle.parameters()]
        [(3, 1), (1, 1), (2, 6), (2, 2)]
    """
    register()
    found = attention_layers(model)
    if hasattr(model.config, "regard_area") and any(hasattr(module, "regard_area") for module in found.values()):
        raise ConfigError(f"{type(model).__name__}: it attends to areas already; remove() its handle first")
    chosen = select_layers(found, layers)
    own = _own_tokens(model, max_area, class_tokens)
    grid = image_grid(model) if grid is None and isinstance(max_area, tuple) else grid
    added: dict[str, AreaLayer] = {}
    for number, (name, module) in enumerate(found.items()):
        check_family(module)
        areas = _areas(module, max_area, grid, (key_mode, value_mode)) if name in chosen else None
        added[name] = AreaLayer(number, areas, own if areas else (0, 0)).to(model.device)
    _copy_configurations(model)  # another model may have been built from the same object
    # A model saved with areas already requests them; without them its own attention is the only fallback.
    before = [(config, "eager" if name == AREA else name) for config, name in switch_attention(model, AREA)]
    for name, layer in added.items():
        found[name].regard_area = layer
    wanted = sorted(map(int, layers)) if isinstance(layers, Collection) else None if layers is None else int(layers)
    max_area, grid = check_areas(max_area, grid)
    front = None if class_tokens is None else own if isinstance(class_tokens, tuple | list) else own[0]
    model.config.regard_area = dict(zip(SETTINGS, (max_area, grid, key_mode, value_mode, wanted, front), strict=True))
    # Saved with the configuration: loading without these areas fails with a message instead of silently using standard attention.
    model.config.attn_implementation = AREA
    return AreaHandle(model, added, before)


def _copy_configurations(model: Any) -> None:
    # Models built from one object share it, and with it the name of their attention function.
    copies: dict[int, Any] = {}  # shared parts stay shared
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PreTrainedConfig):
                vars(module)[name] = copy.deepcopy(value, copies)


def _own_tokens(model: Any, max_area: int | tuple[int, int], class_tokens: int | tuple[int, int] | None) -> tuple[int, int]:
    if class_tokens is None:
        return (leading_tokens(model), 0) if isinstance(max_area, tuple) else (0, 0)
    both = tuple(class_tokens) if isinstance(class_tokens, tuple | list) else (class_tokens, 0)
    if len(both) != 2 or not all(isinstance(part, Integral) and not isinstance(part, bool) and part >= 0 for part in both):
        raise ConfigError(f"class_tokens: a number of tokens from 0 on, or (front, back), found {shown(class_tokens)}")
    return int(both[0]), int(both[1])


def _areas(module: nn.Module, max_area: int | tuple[int, int], grid: tuple[int, int] | None, modes: tuple[str, str]) -> Areas:
    key_mode, value_mode = modes
    learned = key_mode in LEARNED_KEY_MODES
    areas = Areas(max_area, grid, key_mode=key_mode, value_mode=value_mode, dim=head_size(module) if learned else None)
    like = next((parameter for parameter in module.parameters() if parameter.is_floating_point()), None)
    areas.train(module.training)
    return areas if like is None else areas.to(like.device, like.dtype)


def restore(model: Any, folder: str | Path | None = None) -> AreaHandle:
    """Restore the areas of a model saved with them and loaded by `from_pretrained`, learned weights included.

    Args:
        model: the result of `from_pretrained`; its configuration holds the settings.
        folder: the folder of `save_pretrained`; needed for learned key modes only.

    Returns:
        `AreaHandle`; the outputs equal those of the saved model bit for bit.

    Raises:
        ConfigError: the configuration has no areas; or see `enable_area`.
        CheckpointError: a learned weight is missing from the folder's safetensors files, or has another shape; the message names both.

    Example:
        >>> import tempfile
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(hidden_size=6, num_attention_heads=3, num_hidden_layers=1, intermediate_size=5, vocab_size=7))
        >>> _ = enable_area(model, max_area=3, key_mode="features")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save_pretrained(folder)
        ...     again = BertModel.from_pretrained(folder)
        ...     list(restore(again, folder).layers)
        ['encoder.layer.0.attention.self']
    """
    settings = getattr(model.config, "regard_area", None)
    if not isinstance(settings, dict):
        raise ConfigError(f"{type(model).__name__}: its configuration holds no areas (regard_area); it was not saved with them")
    if set(settings) != set(SETTINGS):
        raise ConfigError(f"regard_area in the configuration: {', '.join(SETTINGS)} are expected, found {', '.join(settings) or 'nothing'}")
    # JSON has lists only.
    again: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    handle = enable_area(model, **again)
    expected = {
        f"{layer.number}.{name}": parameter
        for layer in handle.layers.values()
        if layer.areas is not None
        for name, parameter in layer.areas.named_parameters()
    }
    if expected and folder is None:
        raise CheckpointError("restore: these areas have learned weights; pass the folder written by save_pretrained")
    if expected:
        _load(expected, Path(folder or ""))
    return handle


def _load(expected: dict[str, nn.Parameter], folder: Path) -> None:
    """Load the learned weights by layer number; names in files may differ from the model's."""
    missing = dict(expected)
    for path in _weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                for saved in file.keys():  # noqa: SIM118 (not a dictionary)
                    match = SAVED.search(saved)
                    parameter = missing.pop(f"{match[1]}.{match[2]}", None) if match else None
                    if parameter is None:
                        continue
                    tensor = file.get_tensor(saved)
                    if tensor.shape != parameter.shape:
                        raise CheckpointError(f"{path}: {saved} is {tuple(tensor.shape)}, but {tuple(parameter.shape)} is expected")
                    with torch.no_grad():
                        parameter.copy_(tensor)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: {error}") from error
    if missing:
        raise CheckpointError(f"{folder}: no learned area weights for {', '.join(sorted(missing))} in its safetensors files")


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [folder / "model.safetensors"]
    try:
        names = set(parse_json(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{index}: a JSON object with a weight_map is expected") from error
    return [folder / Path(name).name for name in sorted(names)]
