"""R-Drop in training: two passes with different dropout, for every family; and what it does not go with."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from regard import ops
from regard.data.batching import collate
from regard.errors import ConfigError
from regard.models import build
from regard.models.loss_guides import RDrop
from regard.ops.cross_entropy import MOST_CONSISTENCY
from regard.tasks.translation_run import open_translation_run
from regard.training.atomic_folder import file_sha256
from tests.tasks import tiny
from tests.tasks.test_two_inputs import LINES, two
from tests.tasks.tiny import ATTENTIVE, FAMILIES, MODEL, configuration, trained

ALPHA = 3.0
SOURCE, SOURCE_LENGTHS = torch.tensor([[5, 7, 6, 3], [9, 8, 3, 0]]), torch.tensor([4, 3])
TARGET, OUTPUT, TARGET_LENGTHS = torch.tensor([[2, 5, 6], [2, 7, 0]]), torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([3, 2])
BATCH = (SOURCE, SOURCE_LENGTHS, TARGET, OUTPUT, TARGET_LENGTHS)


def model_of(family: str, dropout: float) -> Any:
    torch.manual_seed(4)
    model = {**FAMILIES[family], "dropout": dropout}
    if family == "crossed":
        model["swap_probability"] = 0.0
    return build(configuration(model=model).model, source_size=17, target_size=17).train()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_that_of_two_passes_with_their_own_dropout(family: str) -> None:
    model = model_of(family, 0.3)
    torch.manual_seed(7)
    found = model(*BATCH, label_smoothing=0.1, guide=RDrop(ALPHA))
    torch.manual_seed(7)
    readout = model.decode(*(torch.cat((part, part)) for part in BATCH[:3]), need_weights=False).readout
    real = ops.length_mask(TARGET_LENGTHS, 3)
    first, second = (half[real] for half in readout.chunk(2))
    assert (first - second).abs().max() > 1e-3
    weights = model.output.weight, model.output.bias
    wanted = ops.consistent_cross_entropy(first, second, *weights, OUTPUT[real], consistency=ALPHA, label_smoothing=0.1)
    torch.testing.assert_close((found.loss, found.nll), (wanted.loss, wanted.nll))
    assert found.tokens == 5


@pytest.mark.parametrize("family", FAMILIES)
def test_without_dropout_the_loss_and_its_gradient_are_the_plain_ones(family: str) -> None:
    model = model_of(family, 0.0)
    plain, found = model(*BATCH), model(*BATCH, guide=RDrop(ALPHA))
    torch.testing.assert_close(found.loss, plain.loss, rtol=1e-5, atol=1e-5)
    parameters = list(model.parameters())
    gradients = [torch.autograd.grad(sums.loss, parameters, allow_unused=True) for sums in (plain, found)]
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"training": {"links": "links.txt"}}, r"training\.r_drop: not with training\.links"),
        ({"training": {"links_from": "run"}}, r"training\.r_drop: not with training\.links"),
        ({"model": {"copy_attention": True}}, r"training\.r_drop: not with model\.copy_attention"),
        ({"model": {"attention": {"coverage": True, "coverage_loss": 1.0}}}, r"training\.r_drop: not with .*coverage_loss"),
        ({"model": {"dropout": 0.0}}, r"training\.r_drop: compares two passes with different dropout; set model.dropout"),
        ({"training": {"r_drop": -1.0}}, "r_drop"),
        ({"training": {"r_drop": MOST_CONSISTENCY + 1.0}}, "r_drop"),
        ({"training": {"r_drop": float("nan")}}, "r_drop"),
    ],
)
def test_what_it_does_not_go_with_is_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configuration(**{**parts, "training": {"r_drop": ALPHA, **parts.get("training", {})}})


def test_a_setting_may_be_as_large_as_the_loss_takes() -> None:
    assert configuration(training={"r_drop": MOST_CONSISTENCY}).training.r_drop == MOST_CONSISTENCY


def test_models_that_it_does_not_go_with_refuse_it_in_python_too() -> None:
    copying = build(configuration(model={**MODEL, "copy_attention": True}).model, source_size=17, target_size=17)
    covered = {**MODEL, "attention": {"attention_dim": 3, "coverage": True, "coverage_loss": 1.0}}
    for model in (copying, build(configuration(model=covered).model, source_size=17, target_size=17)):
        with pytest.raises(ConfigError, match="is not trained with R-Drop"):
            model(*BATCH, guide=RDrop(ALPHA))
    plain = build(configuration(model=MODEL).model, source_size=17, target_size=17)
    with pytest.raises(ConfigError, match=r"guide: expected a LinkGuide, RDrop or None, found 3\.0"):
        plain(*BATCH, guide=cast(Any, ALPHA))


def test_training_with_it_learns_otherwise(tmp_path: Path) -> None:
    model = {**FAMILIES["transformer"], "dropout": 0.3}
    runs = [trained(tmp_path / str(alpha), model=model, training={"r_drop": alpha}) for alpha in (0.0, ALPHA)]
    weights = [file_sha256(run / "model" / "model.safetensors") for run in runs]
    assert weights[0] != weights[1]


@pytest.mark.parametrize("kind", ["serial", "joined", "flat"])
def test_two_inputs_are_read_twice(tmp_path: Path, kind: str) -> None:
    model = {**ATTENTIVE, "type": "transformer", "dropout": 0.0, "attention_dropout": 0.2, "second": {"kind": kind}}
    run = open_translation_run(two(tmp_path, model=model, training={"r_drop": ALPHA}))
    batch = collate(run.vocabularies.source.encode_ids(LINES[:3]), run.vocabularies.target.encode_ids(tiny.TEXTS[:3]), range(3))[:5]
    alone, twice = run.model(*batch), run.model(*batch, guide=RDrop(ALPHA))  # in evaluation mode: nothing is dropped
    torch.testing.assert_close(twice.loss, alone.loss)
    run.model.train()
    losses = []
    for alpha in (0.0, ALPHA):
        torch.manual_seed(7)
        losses.append(run.model(*batch, guide=RDrop(alpha)).loss.item())
    assert losses[1] > losses[0] + 1e-6
