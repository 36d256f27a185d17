"""The printed tables agree with the library: every class exists, every setting can be set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import regard.attention
from regard.config import RunConfig, load_config
from regard.listing import MECHANISMS, mechanisms, settings
from regard.models import build

# Settings that a mechanism's own needs: sizes that fit, or the order it is defined in.
NEEDS = {
    "model.attention.score=dot": ["model.encoder_dim=256", "model.decoder_dim=512"],
    "model.attention.input_feeding=true": ["model.attention.query_state=current"],
}


@pytest.mark.parametrize("row", MECHANISMS, ids=lambda row: row.name)
def test_a_mechanism_can_be_chosen_and_its_class_imported(row) -> None:
    config = load_config(None, [row.setting, *NEEDS.get(row.setting, [])])
    build(config.model, source_size=11, target_size=13)
    for name in re.findall(r"^\w+", row.where):
        assert hasattr(regard.attention, name)
    assert row.source


def test_the_table_of_the_readme_is_the_one_that_is_printed() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    rows = [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    assert [list(row) for row in MECHANISMS if list(row) not in rows] == []


def test_the_columns_stand_below_each_other() -> None:
    heading, *lines = mechanisms()
    assert len(lines) == len(MECHANISMS)
    at = heading.index("setting")
    assert all(line[at:].startswith("model.attention") and line[at - 1] == " " for line in lines)


def test_every_setting_is_listed_with_a_default_that_can_be_given() -> None:
    lines = list(settings(RunConfig))
    keys = [line.split(" = ")[0] for line in lines]
    assert {"task", "data.source", "model.attention.score", "training.betas", "decoding.beam"} <= set(keys)
    assert len(set(keys)) == len(keys)
    given = [line.split("    # ")[0].replace(" = ", "=", 1).replace("(", "[").replace(")", "]") for line in lines]
    assert load_config(None, given) == RunConfig()
