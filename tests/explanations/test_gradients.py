"""Gradients of inputs: completeness, captum, and plain loops."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.config import ClassifierConfig
from regard.errors import ConfigError, ShapeError
from regard.explanations import (
    METHODS,
    LabelBatch,
    ModelBatch,
    explain,
    gradient_times_attention,
    input_gradients,
    input_times_gradient,
    integrated_gradients,
    value_norms,
)
from regard.models import build_classifier
from tests.explanations.models import CAPTIONERS, NAMES, batch_of

# A choice, a window's edge and a norm of very little make sharp bends, for which an integral needs more points.
BENT = ("show hard", "luong", "caption transformer", "area features", "crossed")


def test_an_empty_batch_has_no_scores() -> None:
    model, none = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval(), torch.zeros(0).long()
    batch = LabelBatch(model, [torch.zeros(0, 2).long()], [none], none)
    assert {method(batch).shape[:3] for method in (integrated_gradients, input_times_gradient)} == {(0, 1, 2)}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_explains_no_examples(name: str, method: str) -> None:
    whole = batch_of(name)

    def told(batch: ModelBatch) -> str | torch.Size:
        try:
            return explain(batch, method).shape[1:]
        except ConfigError as error:  # for a model of this kind
            return str(error)

    assert told(whole.select(torch.arange(0))) == told(whole)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_ids_that_index_no_embedding_are_named(dtype: torch.dtype) -> None:
    model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
    tokens, one = torch.ones(1, 2).to(dtype), torch.tensor([1])
    with pytest.raises(ShapeError, match=r"LabelBatch: .*must be int64 or int32, found torch\.u?int"):
        LabelBatch(model, [tokens], [one], one)


@pytest.mark.parametrize("name", NAMES)
def test_integrated_gradients_sum_to_what_the_inputs_bring(name: str) -> None:
    batch = batch_of(name)
    # Between cells and nothing a hard choice jumps; the mean cell is nearer.
    start = batch.embed().mean(1, keepdim=True) if name in CAPTIONERS else torch.zeros_like(batch.embed())
    found = integrated_gradients(batch, steps=128, baseline=start).sum(2)
    expected = batch.log_probs() - batch.log_probs(start.expand_as(batch.embed()))
    tolerance = 0.05 if name in BENT else 2e-3
    torch.testing.assert_close(found, expected.detach(), atol=tolerance, rtol=tolerance)  # an integral of so many points


@pytest.mark.parametrize("name", ["gru", "luong", "transformer", "area", "crossed", "label lstm", "entailment crossed", "language"])
def test_integrated_gradients_and_input_times_gradient_are_those_of_captum(name: str) -> None:
    captum = pytest.importorskip("captum.attr", reason="captum, an oracle of the development extra")
    batch = batch_of(name)
    vectors, start = batch.embed().detach(), 0.1 * torch.ones_like(batch.embed())
    size = len(vectors)

    def forward(read: Tensor, output: int) -> Tensor:
        return batch.select(torch.arange(size).repeat(len(read) // size)).log_probs(read)[:, output]

    found, product = integrated_gradients(batch, steps=11, baseline=start), input_times_gradient(batch)
    for output in range(found.shape[1]):
        theirs = captum.IntegratedGradients(lambda read, at=output: forward(read, at)).attribute(vectors, start, n_steps=11)
        torch.testing.assert_close(found[:, output], theirs.sum(-1), atol=1e-5, rtol=1e-5)
        theirs = captum.InputXGradient(lambda read, at=output: forward(read, at)).attribute(vectors.clone().requires_grad_())
        torch.testing.assert_close(product[:, output], theirs.sum(-1), atol=1e-5, rtol=1e-5)


def test_a_gradient_is_the_difference_that_a_small_step_makes() -> None:
    batch, step = batch_of("transformer"), 1e-6
    vectors = batch.embed().detach()
    found = input_gradients(batch, vectors)
    for place in ((0, 1, 3), (2, 5, 7)):
        moved = vectors.clone()
        moved[place] += step
        change = (batch.log_probs(moved) - batch.log_probs(vectors))[place[0]] / step
        torch.testing.assert_close(found[(place[0], slice(None), *place[1:])], change.detach(), atol=1e-5, rtol=1e-4)  # a finite step


METHODS = (value_norms, input_times_gradient, partial(integrated_gradients, steps=2), gradient_times_attention)


def _all_of(batch: ModelBatch) -> tuple[list[Tensor], list[str]]:
    found, refused = [], []
    for method in METHODS:
        try:
            found.append(method(batch))
        except ConfigError as error:
            refused.append(str(error))
    return found, refused


@pytest.mark.parametrize(
    "name", ["gru", "area", "crossed", "label lstm", "entailment crossed", "language", "show soft", "show hard", "caption transformer"]
)
@pytest.mark.parametrize("around", ["no_grad", "inference_mode", "batch made in inference_mode", "frozen"])
def test_gradients_need_neither_grad_mode_nor_weights_that_learn(name: str, around: str) -> None:
    batch = batch_of(name)
    expected = _all_of(batch)
    weights = list(batch.model.parameters())
    if around == "frozen":
        batch.model.requires_grad_(False)
    grad_mode = torch.no_grad() if around == "no_grad" else torch.inference_mode(around.endswith("inference_mode"))
    with grad_mode:
        if around.startswith("batch"):
            batch = batch.select(torch.arange(len(batch.inputs)))
        found = _all_of(batch)
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]
    assert {weight.requires_grad for weight in weights} == {around != "frozen"}
    assert all(weight.grad is None for weight in weights)


def test_weights_made_in_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        batch = batch_of("gru")
    with pytest.raises(ConfigError, match=r"made inside torch\.inference_mode and have no gradient; build or load the model outside it"):
        input_times_gradient(batch)


@pytest.mark.parametrize("steps", [0, "5", 2.5, None, True])
def test_what_is_no_number_of_steps_is_refused(steps: Any) -> None:
    with pytest.raises(ConfigError, match="integrated_gradients: steps must be a whole number of at least 1, found "):
        integrated_gradients(batch_of("gru"), steps=steps)


@pytest.mark.parametrize(
    "vectors",
    ["x", [1.0], torch.ones(2), torch.ones(3, 9, 7).double(), torch.ones(1, 1, 1, dtype=torch.long)],
    ids=["text", "a list", "one axis", "more inputs", "whole numbers"],
)
def test_vectors_of_another_shape_are_refused(vectors: Any) -> None:
    with pytest.raises(ShapeError, match="integrated_gradients: baseline must "):
        integrated_gradients(batch_of("gru"), baseline=vectors)
    with pytest.raises(ShapeError, match="input_gradients: vectors must "):
        input_gradients(batch_of("gru"), vectors)
