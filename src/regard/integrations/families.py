"""Properties of a Hugging Face model: which layers use the attention registry, and what their own attention does."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Collection
from functools import cache
from numbers import Integral
from typing import Any, cast

from torch import nn

from regard.errors import ConfigError, shown

# Options of the models' own attention functions, some read from the layer, that calls.py supports.
KNOWN_OPTIONS = {
    *("module", "query", "key", "value", "attention_mask", "scaling", "dropout", "kwargs"),
    *("position_bias", "softcap", "sliding_window", "s_aux", "is_causal", "head_mask"),
}
KNOWN_ATTRIBUTES = {"num_key_value_groups", "training", "head_dim", "sinks", "is_causal"}
CLASS_TOKENS = ("cls_token", "class_embedding", "distillation_token", "register_tokens")


def attention_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that use the registry of attention functions, by name, in the model's order.

    Raises:
        ConfigError: there is none: the model would silently ignore any function.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(f"expected a model of transformers, found {shown(model)}")
    found = {name: module for name, module in model.named_modules() if _asks_the_registry(type(module))}
    if not found:
        raise ConfigError(
            f"{type(model).__name__}: none of its layers asks the registry of attention functions (ALL_ATTENTION_FUNCTIONS), "
            "so its attention cannot be replaced or recorded; docs/transformers.md lists families that can"
        )
    return found


@cache
def _asks_the_registry(kind: type) -> bool:
    if hasattr(kind, "set_attn_implementation"):  # a whole model: its base class names the registry, but computes nothing
        return False
    classes = [base for base in kind.__mro__ if base not in (object, nn.Module)]
    return any("ALL_ATTENTION_FUNCTIONS" in _source(base) for base in classes)


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def check_family(module: nn.Module) -> None:
    """Refuse a layer whose own attention function does more than area attention supports.

    Raises:
        ConfigError: the message names the options or attributes that would be ignored.
    """
    own = getattr(sys.modules.get(type(module).__module__), "eager_attention_forward", None)
    if own is None:
        return
    options = set(inspect.signature(own).parameters) - KNOWN_OPTIONS
    attributes = set(re.findall(r"\bmodule\.(\w+)", _source(own))) - KNOWN_ATTRIBUTES
    if options or attributes:
        raise ConfigError(
            f"{type(module).__name__}: the model's own attention also uses {', '.join(sorted(options | attributes))}, which area attention "
            "does not know and will not drop"
        )


def select_layers(layers: dict[str, nn.Module], wanted: int | Collection[int] | None) -> set[str]:
    """Select layers by the first number in their name: all, the first `wanted`, or those in `wanted`.

    Raises:
        ConfigError: a number does not exist; the message lists the existing ones.
    """
    if wanted is None:
        return set(layers)
    several = list(wanted) if isinstance(wanted, Collection) and not isinstance(wanted, str | bytes) else None
    if not all(isinstance(each, Integral) and not isinstance(each, bool) for each in ([wanted] if several is None else several)):
        raise ConfigError(f"layers: expected a whole number, or numbers of layers, found {shown(wanted)}")
    numbers = {name: next((int(part) for part in name.split(".") if part.isdigit()), None) for name in layers}
    there = {number for number in numbers.values() if number is not None}
    # A range, as a large number is no reason to make a large set.
    asked = range(int(cast(int, wanted))) if several is None else set(map(int, several))
    if not asked or len(asked) > len(there) or not there.issuperset(asked):
        most = f"this model has {len(there)} layers" if several is None else f"the layers of this model are {sorted(there)}"
        raise ConfigError(f"layers: found {shown(wanted)}; {most}")
    return {name for name, number in numbers.items() if number in asked}


def head_size(module: nn.Module) -> int:
    """Return D, the size of one head's key.

    Raises:
        ConfigError: the layer does not declare it.
    """
    for name in ("head_dim", "attention_head_size", "key_value_proj_dim"):
        size = getattr(module, name, None)
        if isinstance(size, int):
            return size
    raise ConfigError(f"{type(module).__name__}: the size of a head is not known, which learned area keys need")


def image_grid(model: nn.Module) -> tuple[int, int]:
    """Return (rows, columns) of the patches from the model's configuration.

    Raises:
        ConfigError: the configuration has no image_size or patch_size.
    """
    config = getattr(model, "config", None)
    image, patch = (_pair(getattr(config, name, None)) for name in ("image_size", "patch_size"))
    if image is None or patch is None:
        raise ConfigError(f"{type(model).__name__}: areas (height, width) need a grid, and the configuration has no image and patch size")
    return image[0] // patch[0], image[1] // patch[1]


def _pair(size: Any) -> tuple[int, int] | None:
    if isinstance(size, int):
        return size, size
    return (size[0], size[1]) if isinstance(size, list | tuple) and len(size) == 2 else None


def leading_tokens(model: nn.Module) -> int:
    """Return the number of class, distillation and register tokens before a vision model's patches.

    Raises:
        ConfigError: the model also has tokens after the patches.
    """
    if getattr(getattr(model, "config", None), "num_detection_tokens", 0):
        raise ConfigError(f"{type(model).__name__}: it has tokens before and after the patches; say class_tokens=(before, after)")
    found = [parameter for name, parameter in model.named_parameters() if name.rsplit(".", 1)[-1] in CLASS_TOKENS]
    return sum(parameter.shape[-2] if parameter.dim() > 1 else 1 for parameter in found)


def implementations(model: Any) -> list[tuple[Any, str | None]]:
    """List (configuration, name of its attention function) of a model and its parts, outer ones first."""
    found: list[tuple[Any, str | None]] = []
    seen: set[int] = set()
    queue = [module.config for module in model.modules() if hasattr(module, "set_attn_implementation")]
    while queue:
        config = queue.pop(0)
        if config is None or id(config) in seen:
            continue
        seen.add(id(config))
        found.append((config, config._attn_implementation))
        queue += [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return found


def switch_attention(model: Any, name: str) -> list[tuple[Any, str | None]]:
    """Select the attention function `name`; return the previous one for `restore_attention`.

    Raises:
        ConfigError: the model does not allow it.
    """
    before = implementations(model)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        restore_attention(before)
        raise ConfigError(f"{type(model).__name__}: transformers does not let this model change its attention")
    return before


def restore_attention(before: list[tuple[Any, str | None]]) -> None:
    """Undo `switch_attention`."""
    for config, name in before:  # outer ones first: setting one also sets its parts
        config._attn_implementation = name
