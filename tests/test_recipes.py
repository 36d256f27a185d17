"""Recipes: what a user sets wins, every recipe is a valid configuration, and a resumed run keeps the one it began with."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from regard.config import RECIPES, Recipe, TranslationConfig, load_config, recipe_for, with_recipe
from regard.errors import ConfigError
from regard.models import build
from regard.tasks import generate, train_translation
from regard.tasks.run_folder import resolve_precision
from regard.training.precision import fastest_precision


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_every_recipe_builds_a_model(recipe: Recipe) -> None:
    config = with_recipe(load_config(None, ["recipe=auto", f"model.type={recipe.model}"]), int(min(recipe.below, 10**9)) - 1)
    assert config.recipe == recipe.name
    with torch.device("meta"):
        model = build(config.model, source_size=config.vocabulary.size, target_size=config.vocabulary.size)
    assert sum(parameter.numel() for parameter in model.parameters()) > 0


@pytest.mark.parametrize("model", ["rnn", "transformer", "crossed"])
def test_more_data_never_means_a_smaller_model_or_vocabulary_or_less_text_in_a_batch(model: str) -> None:
    configs = [with_recipe(load_config(None, ["recipe=auto", f"model.type={model}"]), pairs) for pairs in (10, 10**4, 10**5, 10**6)]
    assert len({config.recipe for config in configs}) == 4
    for small, large in pairwise(configs):
        assert small.vocabulary.size < large.vocabulary.size
        assert (
            small.training.batch_tokens * small.training.gradient_accumulation_steps
            <= large.training.batch_tokens * large.training.gradient_accumulation_steps
        )
        assert small.model.embed_dim <= large.model.embed_dim
        assert small.training.epochs >= large.training.epochs


def test_what_a_user_sets_wins_even_where_it_is_the_default() -> None:
    defaults = TranslationConfig()
    settings = [f"vocabulary.size={defaults.vocabulary.size}", f"training.epochs={defaults.training.epochs}", "model.attention=null"]
    config = with_recipe(load_config(None, ["recipe=auto", *settings]), 3_000)
    assert (config.vocabulary.size, config.training.epochs) == (defaults.vocabulary.size, defaults.training.epochs)
    assert config.model.attends is False
    assert config.training.batch_tokens == recipe_for("rnn", 3_000).settings["training"]["batch_tokens"] != defaults.training.batch_tokens


@pytest.mark.parametrize(
    ("settings", "updates"),
    [
        ([], 200),
        (["training.max_updates=9999"], 200),
        (["training.max_updates=200"], 40),
        (["training.max_updates=200", "training.warmup_updates=150"], 150),
    ],
)
def test_the_warm_up_of_a_recipe_takes_a_fifth_of_the_updates_at_most(settings: list[str], updates: int) -> None:
    assert with_recipe(load_config(None, ["recipe=rnn-3k", *settings]), 3_000).training.warmup_updates == updates


def test_no_recipe_changes_nothing() -> None:
    config = load_config(None, ["training.epochs=3"])
    assert with_recipe(config, 3_000) is config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["recipe=rnn-4k"], "recipe: expected auto, none or one of rnn-3k"),
        (["recipe=transformer-3k"], "recipe: transformer-3k is for model.type=transformer, found model.type=rnn"),
        (
            ["recipe=auto", "model.type=transformer", "model.num_heads=256"],
            "recipe transformer-3k: model: embed_dim (128) must be a multiple",
        ),
    ],
)
def test_a_recipe_that_does_not_fit_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_recipe(load_config(None, overrides), 3_000)
    assert message in str(refused.value)


def test_a_run_says_its_recipe_and_a_second_start_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: list[str]) -> None:
    source, target, *_ = generate("copy", tmp_path, train=40, test=1, seed=1)
    small = ["model.embed_dim=4", "model.encoder_dim=4", "model.decoder_dim=8", "model.readout_dim=4", "training.max_updates=2"]
    config = load_config(None, ["recipe=auto", f"data.source={source}", f"data.target={target}", "vocabulary.kind=word", *small])
    train_translation(config, tmp_path / "run")
    stored = load_config(tmp_path / "run" / "config.yaml")
    assert stored.recipe == "rnn-3k"
    assert stored.training.batch_tokens == recipe_for("rnn", 40).settings["training"]["batch_tokens"]
    assert any("rnn-3k" in line and "recipe=none" in line for line in messages)
    # Another release, or a processor with other instructions, would choose otherwise.
    monkeypatch.setattr("regard.config.recipes.recipe_for", lambda model, pairs: pytest.fail("chosen again"))
    monkeypatch.setattr("regard.tasks.run_folder.fastest_precision", lambda device: pytest.fail("chosen again"))
    assert train_translation(config, tmp_path / "run").step == 2


@pytest.mark.parametrize(
    ("flags", "expected"), [({"avx2", "avx512f"}, "fp32"), ({"avx512_bf16"}, "bf16"), ({"amx_bf16"}, "bf16"), (set(), "fp32")]
)
def test_automatic_precision_is_bfloat16_only_where_the_processor_multiplies_it(
    flags: set[str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("regard.training.precision.cpu_flags", lambda: flags)
    assert fastest_precision(torch.device("cpu")) == expected
    config = resolve_precision(load_config(None, ["training.precision=auto"]), tmp_path / "none", torch.device("cpu"))
    assert config.training.precision == expected
