"""What an update costs is counted as the products that it does, and every run at a paper's scale can be built, counted and begun."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.config import EntailmentConfig, LanguageConfig, RunConfig, TranslationConfig, validate
from regard.config.captioning import CaptioningConfig
from regard.config.images import NonLocalForm
from regard.config.study import StudyConfig, cell_config, load_study, study_cells
from regard.data.batching import collate
from regard.data.vocabulary import UNK
from regard.models import build_for_run
from regard.models.image_encoder import SmallCNN, build_image_encoder
from regard.study.cost import CAPTION, RATES, estimate, training_cost
from regard.tasks.table import TASKS
from regard.training.optimizer import build_optimizer

STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))
TRANSFORMER = {"type": "transformer", "embed_dim": 48, "ff_dim": 96, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 3}
FAMILIES: dict[str, dict[str, Any]] = {
    "transformer": {"model": TRANSFORMER},
    "areas": {"model": {**TRANSFORMER, "area": {"max_area": 3}}},
    "not tied": {"model": {**TRANSFORMER, "tie_embeddings": False}},
    "crossed": {"model": {**TRANSFORMER, "type": "crossed"}},
    "additive": {"model": {"embed_dim": 40, "encoder_dim": 48, "decoder_dim": 56, "readout_dim": 40}},
    "no attention": {"model": {"attention": None, "cell": "lstm", "embed_dim": 40, "encoder_dim": 48, "decoder_dim": 56}},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_count_is_that_of_the_products_that_are_done(name: str) -> None:
    # In float64 no product is in native code, where it could not be counted, but those within some attentions.
    config = validate({**FAMILIES[name], "vocabulary": {"size": 500}, "training": {"batch_tokens": 600}}, "test")
    model = build_for_run(config, source_size=500, target_size=500, classes=2, unknown=UNK).double()
    rows = torch.randint(4, 500, (20, 29)).tolist()
    batch = collate(rows, rows, range(20))
    with FlopCounterMode(display=False) as counter:
        model(*batch[:5]).loss.backward()
    work, counted = training_cost(config), counter.get_total_flops()
    assert 0.98 * (work.flops - work.attention) < counted < 1.02 * work.flops
    assert work.attention < 0.15 * work.flops
    assert work.parameters == sum(parameter.numel() for parameter in model.parameters())


def test_the_count_of_labels_and_of_text_is_that_of_their_products() -> None:
    settings = {"vocabulary": {"size": 500}, "training": {"batch_tokens": 600}}
    config = validate({"task": "entailment", **settings, "model": {"embed_dropout": 0.0}}, "test", kind=EntailmentConfig)
    model = build_for_run(config, source_size=500, target_size=500, classes=2, unknown=UNK).double()
    texts, lengths = torch.randint(4, 500, (20, 30)), torch.full((20,), 30)
    with FlopCounterMode(display=False) as counter:
        model([texts, texts], [lengths, lengths], torch.zeros(20, dtype=torch.long)).loss.backward()
    assert 0.95 * counter.get_total_flops() < training_cost(config).flops < 1.05 * counter.get_total_flops()

    lm = validate({"task": "lm", **settings, "training": {"streams": 5, "chunk_length": 7}}, "test", kind=LanguageConfig)
    assert training_cost(lm).tokens == 35
    model = build_for_run(lm, source_size=500, target_size=500, classes=2, unknown=UNK).double()
    text = torch.randint(4, 500, (5, 7))
    with FlopCounterMode(display=False) as counter:
        model(text, text, torch.full((5,), 7))[0].loss.backward()
    # Not counted in advance: the products of attention.
    assert 0.8 * counter.get_total_flops() < training_cost(lm).flops < 1.05 * counter.get_total_flops()


def test_two_passes_cost_twice() -> None:
    plain, twice = (training_cost(validate({"model": TRANSFORMER, "training": {"r_drop": alpha}}, "test")) for alpha in (0.0, 5.0))
    assert (twice.flops, twice.tokens) == (pytest.approx(2 * plain.flops), plain.tokens)


@pytest.mark.parametrize("form", get_args(NonLocalForm))
def test_a_non_local_block_costs_its_products(form: str) -> None:
    def config(non_local: str | None) -> CaptioningConfig:
        encoder = {"channels": [12, 20], "non_local": non_local}
        return validate({"task": "captioning", "image": {"size": 40}, "model": {"encoder": encoder}}, "test", kind=CaptioningConfig)

    found = config(form)
    network = build_image_encoder(found.model.encoder, image_size=40).double()
    assert isinstance(network, SmallCNN)
    assert network.non_local is not None
    with FlopCounterMode(display=False) as counter:
        network.non_local(torch.randn(1, 100, 20, dtype=torch.float64))
    images = found.training.batch_tokens / CAPTION / found.data.captions_per_image
    more = training_cost(found).flops - training_cost(config(None)).flops
    assert more == pytest.approx(3 * images * counter.get_total_flops(), rel=0.05)


def test_captions_that_share_an_image_cost_less() -> None:
    def flops(together: int) -> float:
        return training_cost(
            validate({"task": "captioning", "data": {"captions_per_image": together}}, "test", kind=CaptioningConfig)
        ).flops

    assert flops(5) < 0.75 * flops(1)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_study_can_be_estimated_at_every_scale(path: Path) -> None:
    for scale in (None, *load_study(path, data="/sets").scales):
        study = load_study(path, data="/sets", scale=scale)
        columns, rows = estimate(study, beside=path.parent)
        assert len(rows) == len(study.data) * len(study.variants)
        assert all(len(row) == len(columns) for row in rows)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_the_settings_of_every_run_fit_together(path: Path) -> None:
    for scale in (None, *load_study(path, data="/sets").scales):
        study = load_study(path, data="/sets", scale=scale)
        for cell in study_cells(study):
            TASKS[study.task].training.check(cell_config(study, cell, folder=path.parent))


def test_the_measured_rate_is_the_one_that_was_measured() -> None:
    measured = json.loads((STUDIES[0].parents[1] / "docs" / "results" / "cost_model.json").read_text(encoding="utf-8"))["rate"]
    assert next(rate for rate in RATES if "measured" in rate.source and "not" not in rate.source).flops == pytest.approx(measured, rel=0.05)


def test_the_published_time_of_a_step_is_where_the_rate_comes_from() -> None:
    path = STUDIES[0].with_name("li2018_translation.yaml")
    study = load_study(path, data="/sets", scale="paper")
    base = next(cell for cell in study_cells(study) if cell.variant == "base_regular")
    rate = next(rate for rate in RATES if "P100" in rate.machine)
    assert training_cost(cell_config(study, base, folder=path.parent)).seconds(rate) == pytest.approx(0.4, rel=0.02)


def updated(config: RunConfig) -> float:
    """Do one update of a configuration on a little random data; return its loss."""
    size = config.vocabulary.size
    model = build_for_run(config, source_size=size, target_size=size, classes=5, unknown=UNK).train()
    optimizer = build_optimizer(model, config.training)
    rows = torch.randint(4, size, (2, int(CAPTION))).tolist()
    batch = collate(rows, rows, range(2))
    if isinstance(config, TranslationConfig):
        sums = model(*batch[:5], label_smoothing=config.training.label_smoothing)
        loss = sums.loss / sums.tokens
    elif isinstance(config, CaptioningConfig):
        encoder = model.image_encoder
        pictures = torch.randn(2, encoder.grid[0] * encoder.grid[1], encoder.output_dim)  # type: ignore[union-attr, index, operator]
        sums = model(pictures, torch.full((2,), pictures.shape[1]), *batch[2:5], label_smoothing=config.training.label_smoothing)
        loss = sums.loss / sums.tokens
    else:
        loss = model([batch.source], [batch.source_lengths], torch.tensor([0, 4])).loss
    loss.backward()
    before = [parameter.detach().clone() for parameter in list(model.parameters())[:3]]
    optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=False))
    return loss.item()


def runs(path: Path) -> list[tuple[str, RunConfig]]:
    """Return a run of each variant of a study at the scale of its paper, on the first data set."""
    study = load_study(path, data="/sets", scale="paper")
    first = next(iter(study.data))
    return [(cell.variant, cell_config(study, cell, folder=path.parent)) for cell in study_cells(study) if cell.data == first]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", [path for path in STUDIES if "paper" in load_study(path, data="/sets").scales], ids=lambda path: path.stem)
def test_every_run_at_the_scale_of_its_paper_does_an_update(path: Path) -> None:
    for variant, config in runs(path):
        assert math.isfinite(updated(config)), variant


def test_a_run_at_the_scale_of_its_paper_does_an_update() -> None:
    found = dict(runs(STUDIES[0].with_name("li2018_translation.yaml")))
    assert 0 < updated(found["tiny_area"]) < 20


@pytest.mark.parametrize(
    ("budget", "updates"), [({"tokens": 4200}, "30"), ({"seconds": 60.0}, "by seconds"), ({"updates": 7}, "7"), (None, "by epochs")]
)
def test_every_budget_is_told(budget: dict[str, float] | None, updates: str) -> None:
    settings = {"vocabulary": {"size": 500}, "training": {"streams": 4, "chunk_length": 35}}
    tree = {
        "name": "s",
        "task": "lm",
        "settings": settings,
        "data": {"a": {"test": {"text": "a.txt"}}},
        "variants": {"x": {}},
        "budget": budget,
    }
    columns, rows = estimate(validate(tree, "here", kind=StudyConfig), beside=Path())
    found = dict(zip(columns, rows[0], strict=True))
    assert (found["runs"], found["updates of each"]) == ("3", updates)
    assert ("per update" in found["PFLOP"]) == updates.startswith("by")
    figures = [value for name, value in found.items() if name.startswith(("PFLOP", "hours"))]
    assert all(float(value.removeprefix("< ").split(" ")[0].replace(",", "")) > 0 for value in figures)
