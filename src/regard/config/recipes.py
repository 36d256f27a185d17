"""Recipes: default settings of translation runs by model and amount of training data.

Class defaults fit no particular data. A recipe fits one order of magnitude of sentence pairs: small data needs a small vocabulary, small
batches (for enough updates) and more dropout; large data the opposite. User settings win over the recipe, key by key.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from regard.config.load import flatten, merge_configs, validate
from regard.config.translation import TranslationConfig
from regard.errors import ConfigError


class Recipe(NamedTuple):
    """Settings for one model and one amount of data.

    Attributes:
        model: value of `model.type`.
        size: amount of data: "3k", "30k", "300k" or "3M" sentence pairs.
        below: upper limit of pairs.
        settings: nested settings, as in a YAML file.
        evidence: how it was chosen.
    """

    model: str
    size: str
    below: float
    settings: Mapping[str, Any]
    evidence: str

    @property
    def name(self) -> str:
        """The value of `recipe` in a run's `config.yaml`, e.g. "transformer-30k"."""
        return f"{self.model}-{self.size}"


# Settings shared by several recipes.
_ADAM = {"betas": [0.9, 0.98], "eps": 1e-9}
_COSINE = {"schedule": "cosine", "warmup_updates": 200, "final_fraction": 0.05, "label_smoothing": 0.1, "precision": "auto"}
_INVERSE_ROOT = {"schedule": "inverse_sqrt", "warmup_updates": 4000, "label_smoothing": 0.1, "precision": "auto"}
# Beyond 100,000 pairs an epoch takes hours: evaluate and save more often than once per epoch.
_LONG = {"evaluate_every": 1000, "save_every": 1000}

# By size: (settings, evidence).
_TRANSFORMER: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "3k": (
        {
            "vocabulary": {"size": 2000},
            "model": {"embed_dim": 128, "ff_dim": 256, "encoder_layers": 3, "decoder_layers": 3, "norm": "pre", "dropout": 0.3},
            "training": {**_COSINE, **_ADAM, "epochs": 40, "batch_tokens": 1024, "learning_rate": 3e-3, "average_checkpoints": 5},
        },
        "trials on 3,000 pairs of Multi30k",
    ),
    "30k": (
        {
            "vocabulary": {"size": 8000},
            "model": {"embed_dim": 128, "ff_dim": 256, "encoder_layers": 4, "decoder_layers": 4, "norm": "pre", "dropout": 0.2},
            "training": {
                **_COSINE,
                **_ADAM,
                "warmup_updates": 500,
                "epochs": 20,
                "batch_tokens": 2048,
                "learning_rate": 3e-3,
                "average_checkpoints": 5,
            },
        },
        "trials on Multi30k (configs/multi30k_transformer.yaml), after Wu et al. 2021",
    ),
    "300k": (
        {
            "vocabulary": {"size": 10000},
            "model": {"embed_dim": 256, "ff_dim": 1024, "encoder_layers": 6, "decoder_layers": 6, "norm": "pre", "dropout": 0.3},
            "training": {**_INVERSE_ROOT, **_ADAM, **_LONG, "epochs": 20, "learning_rate": 1e-3, "average_checkpoints": 5},
        },
        "sizes of the published IWSLT'14 Transformers (fairseq, JoeyNMT); not trained here",
    ),
    "3M": (
        {
            "vocabulary": {"size": 32000},
            "model": {"embed_dim": 512, "ff_dim": 2048, "num_heads": 8, "encoder_layers": 6, "decoder_layers": 6, "norm": "pre"},
            "training": {
                **_INVERSE_ROOT,
                **_ADAM,
                **_LONG,
                "gradient_accumulation_steps": 6,
                "learning_rate": 7e-4,
                "average_checkpoints": 5,
            },
        },
        "Transformer Base (Vaswani et al. 2017) with 25,000 tokens per update; not trained here",
    ),
}
_RECURRENT: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "3k": (
        {
            "vocabulary": {"size": 3000},
            "model": {"embed_dim": 128, "encoder_dim": 128, "decoder_dim": 256, "readout_dim": 128, "dropout": 0.3},
            "training": {**_COSINE, "epochs": 20, "batch_tokens": 1024, "learning_rate": 2e-3, "average_checkpoints": 3},
        },
        "trials on 3,000 pairs of Multi30k",
    ),
    "30k": (
        {
            "vocabulary": {"size": 6000},
            "model": {"dropout": 0.4},
            "training": {**_COSINE, "epochs": 16, "batch_tokens": 2000, "average_checkpoints": 3},
        },
        "trials on Multi30k (configs/multi30k_bahdanau.yaml)",
    ),
    "300k": (
        {
            "vocabulary": {"size": 10000},
            "model": {"encoder_dim": 512, "decoder_dim": 1024},
            "training": {**_COSINE, **_LONG, "epochs": 12, "learning_rate": 5e-4, "average_checkpoints": 3},
        },
        "sizes of Luong et al. 2015 and JoeyNMT's IWSLT'14 model; not trained here",
    ),
    "3M": (
        {
            "vocabulary": {"size": 32000},
            "model": {"embed_dim": 620, "encoder_dim": 1000, "decoder_dim": 1000, "readout_dim": 500, "attention": {"attention_dim": 1000}},
            "training": {**_COSINE, **_LONG, "epochs": 5, "learning_rate": 3e-4, "average_checkpoints": 3},
        },
        "sizes of Bahdanau et al. 2015, A.2; not trained here",
    ),
}
# The crossed network is a Transformer with two encoder branches: both use the same recipes.
_MODELS = {"rnn": _RECURRENT, "transformer": _TRANSFORMER, "crossed": _TRANSFORMER}
# A size reaches half an order of magnitude up and down.
_BELOW = {"3k": 10_000, "30k": 100_000, "300k": 1_000_000, "3M": math.inf}

RECIPES: tuple[Recipe, ...] = tuple(
    Recipe(model, size, _BELOW[size], settings, evidence)
    for model, sizes in _MODELS.items()
    for size, (settings, evidence) in sizes.items()
)
"""Every recipe, smallest data first for each model."""


def recipe_for(model: str, pairs: int) -> Recipe:
    """Return the recipe of a model and an amount of data.

    Args:
        model: value of `model.type`: "rnn", "transformer" or "crossed".
        pairs: sentence pairs to train on, at least 0.

    Raises:
        ConfigError: no recipe for this model.

    Example:
        >>> recipe_for("transformer", 29_000).name
        'transformer-30k'
    """
    for recipe in RECIPES:
        if recipe.model == model and pairs < recipe.below:
            return recipe
    raise ConfigError(f"model.type: no recipe for {model!r}; expected one of {', '.join(_MODELS)}")


def with_recipe(config: TranslationConfig, pairs: int) -> TranslationConfig:
    """Complete unset settings from a recipe.

    Args:
        config: `recipe` is "auto" for `recipe_for(config.model.type, pairs)`, a recipe's name, or "none". A setting counts as set if a
            file, an override or an argument names it, even with the default value. With `training.max_updates` the recipe's warm-up takes a
            fifth of them at most.
        pairs: sentence pairs to train on.

    Returns:
        The configuration with `recipe` set to the recipe's name.

    Raises:
        ConfigError: the recipe is unknown, or does not fit the settings.

    Example:
        >>> config = with_recipe(TranslationConfig.model_validate({"recipe": "auto", "training": {"epochs": 3}}), 3_000)
        >>> config.recipe, config.vocabulary.size, config.training.epochs
        ('rnn-3k', 3000, 3)
    """
    if config.recipe == "none":
        return config
    if config.recipe == "auto":
        recipe = recipe_for(config.model.type, pairs)
    else:
        named = {recipe.name: recipe for recipe in RECIPES}
        if config.recipe not in named:
            raise ConfigError(f"recipe: expected auto, none or one of {', '.join(named)}, found {reprlib.repr(config.recipe)}")
        recipe = named[config.recipe]
    if recipe.model != config.model.type:
        raise ConfigError(f"recipe: {recipe.name} is for model.type={recipe.model}, found model.type={config.model.type}")
    given = config.model_dump(exclude_unset=True)
    warm_up = {"training": {"warmup_updates": _warm_up(recipe, config.training.max_updates)}}
    merged = merge_configs(recipe.settings, warm_up, given, {"recipe": recipe.name})
    return validate(merged, f"recipe {recipe.name}", kind=TranslationConfig)


def unsettled_settings(config: TranslationConfig) -> set[str]:
    """Return the key paths that the recipe `auto` may fill in: not set, and in a recipe of this model.

    Args:
        config: as it was given.

    Returns:
        No path for another value of `recipe`.

    Example:
        >>> config = TranslationConfig.model_validate({"recipe": "auto", "vocabulary": {"size": 99}})
        >>> sorted(unsettled_settings(config))[:2], "vocabulary.size" in unsettled_settings(config)
        (['model.attention.attention_dim', 'model.decoder_dim'], False)
    """
    if config.recipe != "auto":
        return set()
    filled = {key for recipe in RECIPES if recipe.model == config.model.type for key in flatten(recipe.settings)}
    return filled - set(flatten(config.model_dump(exclude_unset=True)))


def _warm_up(recipe: Recipe, max_updates: int | None) -> int:
    updates: int = recipe.settings["training"]["warmup_updates"]
    return updates if max_updates is None else min(updates, max_updates // 5)
