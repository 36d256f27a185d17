"""The printed tables agree with the library: every class exists, every setting can be set, every mechanism has its section and picture."""

from __future__ import annotations

import inspect
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import regard.attention
import regard.models
from benchmarks.fill_tables import fill
from regard import ops
from regard.commands import info
from regard.commands.info import COLUMNS, mechanism_cells, mechanism_table, setting_lines
from regard.config import CrossedConfig, RNNConfig, TransformerConfig, TranslationConfig, load_config
from regard.config.captioning import CaptioningConfig
from regard.mechanisms import MECHANISMS, Mechanism
from regard.models import build
from regard.models.captioning import build_captioner

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "mechanisms.md"
PICTURES = ROOT / "docs" / "pictures"
# Settings that a mechanism's own needs: sizes that fit, or the order it is defined in.
NEEDS = {
    "model.attention.score=dot": ["model.encoder_dim=256", "model.decoder_dim=512"],
    "model.attention.input_feeding=true": ["model.attention.query_state=current"],
    **{row.setting: ["model.type=transformer"] for row in MECHANISMS if row.setting.startswith("model.area.")},
}
OF_CAPTIONERS = {row.setting for row in MECHANISMS if row.setting.startswith("model.encoder.") or row.setting == "model.attention=hard"}
# What the papers call their mechanisms: a reader looks for one of these.
SOUGHT = (
    "Bahdanau,Luong dot,Luong concat,Luong attention,Luong location,Luong local-m,Luong local-p,Luong input feeding,Vaswani,NTM,"
    "soft attention,stochastic,multi-head,self-attention,structured,key-value-predict,Eq. 9,sample_concat,2-D areas,top-k,temperature,"
    "Two-Headed Monster,co-attention,gaussian,embedded gaussian,non-local dot,non-local concat,causal,padding,block"
)


def thing(name: str) -> object:
    """Find what a table calls `Name` or `ops.name`."""
    if name.startswith("ops."):
        return getattr(ops, name[4:])
    return getattr(regard.attention, name, None) or getattr(regard.models, name)


def section(row: Mechanism) -> str:
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(rf"^### {row.name}\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{PAGE.name} has no section for {row.name}"
    return found[1]


@pytest.mark.parametrize("row", [row for row in MECHANISMS if row.setting], ids=lambda row: row.name)
def test_a_mechanism_with_a_setting_can_be_chosen(row: Mechanism) -> None:
    if row.setting in OF_CAPTIONERS:
        build_captioner(load_config(None, [row.setting], kind=CaptioningConfig).model, image_size=16, vocab_size=13)
    else:
        config = load_config(None, [row.setting, *NEEDS.get(row.setting, [])])
        build(config.model, source_size=13, target_size=13)


@pytest.mark.parametrize("row", MECHANISMS, ids=lambda row: row.name)
def test_what_a_row_names_is_in_the_library_and_takes_the_arguments_named(row: Mechanism) -> None:
    parts = re.findall(r"((?:ops\.)?\w+)(?:\(([^)]*)\))?(?:, |$)", row.where)
    assert parts
    for name, arguments in parts:
        found = thing(name)
        assert callable(found)
        given = {argument.split("=")[0] for argument in arguments.split(", ") if argument}
        assert given <= set(inspect.signature(found).parameters), name
    assert all(cell.isascii() for cell in mechanism_cells(row))
    assert all(cell for cell, column in zip(mechanism_cells(row), COLUMNS, strict=True) if column != "setting")


def test_every_name_of_the_papers_is_found() -> None:
    text = " ".join(f"{row.name} {row.aliases}" for row in MECHANISMS)
    assert [name for name in SOUGHT.split(",") if name not in text] == []
    assert len({row.slug for row in MECHANISMS}) == len(MECHANISMS)


def test_every_module_of_the_package_is_in_the_table() -> None:
    modules = {name for name in regard.attention.__all__ if hasattr(getattr(regard.attention, name), "forward")}
    assert modules - set(re.findall(r"\w+", " ".join(row.where for row in MECHANISMS))) == set()


def test_the_columns_stand_below_each_other() -> None:
    heading, *lines = mechanism_table()
    assert len(lines) == len(MECHANISMS)
    for column in COLUMNS[1:]:
        at = heading.index(column)
        cell = COLUMNS.index(column)
        assert all(
            line[at:].startswith(mechanism_cells(row)[cell]) and line[at - 1] == " " for line, row in zip(lines, MECHANISMS, strict=True)
        )


@pytest.mark.parametrize("width", [61, 100])
def test_a_terminal_gets_paragraphs_that_fit_and_lose_nothing(width: int) -> None:
    lines = list(mechanism_table(width))
    assert max(map(len, lines)) <= width
    text = " ".join("\n".join(lines).split())
    assert [cell for row in MECHANISMS for cell in mechanism_cells(row) if " ".join(cell.split()) not in text] == []


@pytest.mark.parametrize(("terminal", "lines"), [(True, [MECHANISMS[0].name]), (False, list(mechanism_table())[:2])])
def test_listing_asks_whether_somebody_reads(monkeypatch: pytest.MonkeyPatch, terminal: bool, lines: list[str]) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(out, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setenv("COLUMNS", "100")
    info.list_("mechanisms")
    assert out.buffer.getvalue().decode().splitlines()[: len(lines)] == lines  # type: ignore[attr-defined]


def test_every_setting_is_listed_with_a_default_that_can_be_given() -> None:
    # First all settings, with the recurrent models; then those of each other family.
    parts = [part.splitlines() for part in "\n".join(setting_lines(TranslationConfig)).split("\n\n")]
    assert [part[0][:1] for part in parts] == ["t", "#", "#"]
    for part, model in zip(parts, (RNNConfig(), TransformerConfig(), CrossedConfig()), strict=True):
        lines = [line for line in part if not line.startswith("#")]
        keys = [line.split(" = ")[0] for line in lines]
        assert set(keys) >= {"model.type"} | {
            f"model.{name}" for name in type(model).model_fields if name not in ("attention", "area", "recurrent")
        }
        assert len(set(keys)) == len(keys)
        given = [line.split("    # ")[0].replace(" = ", "=", 1).replace("(", "[").replace(")", "]") for line in lines]
        areas = ["model.recurrent.attention.area=null"] if isinstance(model, TransformerConfig) else []
        areas += [f"model.{'attention.' if isinstance(model, RNNConfig) else ''}area=null", "model.second=null"]
        assert load_config(None, [*given, *areas]) == TranslationConfig(model=model)
    assert {"task", "data.source", "model.attention.score", "training.betas"} <= {line.split(" = ")[0] for line in parts[0]}


@pytest.mark.parametrize("row", MECHANISMS, ids=lambda row: row.name)
def test_a_mechanism_has_a_section_with_its_facts_its_picture_and_a_short_snippet(row: Mechanism) -> None:
    text = section(row)
    assert f"<!-- table:mechanism-{row.slug} -->" in text
    assert re.search(rf"^!\[\w.+; darker is more\)\]\(pictures/{row.slug}\.svg\)$", text, re.MULTILINE)
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for line in code.splitlines() if line and not line.startswith(("import ", "from "))]
    assert 2 <= len(lines) <= 6
    if row.where.startswith("RecurrentDecoder"):
        assert row.setting in code
    else:
        assert any(name in code for name in re.findall(r"(?:ops\.)?\w+(?=\(|,|$)", row.where))


def test_the_page_is_what_the_table_holds_and_links_to_every_section() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert fill(text, ROOT / "docs" / "results") == text
    assert re.findall(r"^\| \[[^]]+\]\(#([\w-]+)\)", text, re.MULTILINE) == [row.slug for row in MECHANISMS]
    assert [heading.replace(" ", "-") for heading in re.findall(r"^### (.+)$", text, re.MULTILINE)] == [row.slug for row in MECHANISMS]


def test_every_mechanism_has_one_small_picture_and_there_are_no_others() -> None:
    assert {path.name for path in PICTURES.iterdir()} == {f"{row.slug}.svg" for row in MECHANISMS}
    assert [path.name for path in PICTURES.iterdir() if path.stat().st_size > 25_000] == []


def test_the_pictures_are_those_that_the_library_draws_today(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "mechanism_pictures.py"
    subprocess.run([sys.executable, str(script), "--out", str(tmp_path)], check=True, capture_output=True)
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(drawn) == {path.name for path in PICTURES.iterdir()}
    drawn.pop("hard-attention.svg")  # the same seed draws other places with other builds of torch
    assert [name for name, content in drawn.items() if (PICTURES / name).read_bytes() != content] == []
