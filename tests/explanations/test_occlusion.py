"""Leaving inputs out: against loops over shortened examples."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from regard.errors import ConfigError, RegardError
from regard.explanations import LabelBatch, TranslationBatch, greedy_order, leave_one_area_out, leave_one_out, replace_one
from tests.explanations.models import SOURCES, TARGETS, batch_of, padded, pairs


@pytest.mark.parametrize("name", ["gru", "transformer", "area", "crossed"])
def test_leave_one_out_is_a_loop_over_shortened_sources(name: str) -> None:
    batch = cast(TranslationBatch, batch_of(name))
    found = leave_one_out(batch)
    expected = torch.zeros_like(found)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        size = len(target) + 1
        whole = pairs(batch.model, [source], [target]).log_probs()[0, :size]
        for left in range(len(source)):
            rest = pairs(batch.model, [source[:left] + source[left + 1 :]], [target]).log_probs()[0, :size]
            expected[row, :size, left] = whole - rest
    torch.testing.assert_close(found, expected.detach())


@pytest.mark.parametrize("name", ["gru", "area", "label lstm", "entailment crossed", "language"])
def test_another_word_in_place_of_one_is_a_loop_over_vectors(name: str) -> None:
    batch = batch_of(name)
    found = replace_one(batch, draws=3, seed=7)
    words = batch.words(3, torch.Generator().manual_seed(7))
    whole, expected = batch.log_probs(), torch.zeros_like(found)
    for row, place in batch.inputs.nonzero().tolist():
        likely = []
        for word in words:
            vectors = batch.embed().clone()
            vectors[row, place] = word
            likely.append(batch.log_probs(vectors)[row].exp())
        expected[row, :, place] = whole[row] - torch.stack(likely).mean(0).log()
    torch.testing.assert_close(found, (expected * batch.outputs.unsqueeze(2)).detach())


def test_cells_of_an_image_are_no_words() -> None:
    with pytest.raises(ConfigError, match="are no words of a vocabulary"):
        replace_one(batch_of("show soft"))
    with pytest.raises(ConfigError, match="replace_one: draws must be a whole number of at least 1, found 0"):
        replace_one(batch_of("gru"), draws=0)


def test_several_inputs_at_once_are_those_that_hurt_most_alone() -> None:
    batch = batch_of("show soft")
    output = torch.tensor([1, 0])
    found = greedy_order(batch, output, 5, at_once=2)
    alone = leave_one_out(batch)[torch.arange(2), output]
    first = alone.topk(2).indices
    assert found.gather(1, first).tolist() == [[5.0, 4.0]] * 2
    assert found.sort(descending=True).values[:, :6].tolist() == [[5.0, 4.0, 3.0, 2.0, 1.0, 0.0]] * 2


def test_areas_left_out_are_a_loop_over_runs_of_words() -> None:
    batch = cast(LabelBatch, batch_of("label lstm"))
    found = leave_one_area_out(batch, 2)
    words = SOURCES[0]  # of 5 words, in a batch of 7 columns
    spans = [(start, length) for length in (1, 2) for start in range(7 - length + 1)]
    whole = batch.log_probs()[0, 0]
    shares = torch.zeros(7, dtype=torch.float64)
    for number, (start, length) in enumerate(spans):
        effect = torch.zeros((), dtype=torch.float64)
        if start + length <= len(words):
            tokens, lengths = padded([words[:start] + words[start + length :]])
            effect = whole - LabelBatch(batch.model, [tokens], [lengths], batch.labels[:1]).log_probs()[0, 0]
            shares[start : start + length] += effect.detach() / length
        torch.testing.assert_close(found.areas[0, 0, number], effect.detach())
    held = torch.tensor([2, 3, 3, 3, 2, 1, 1])  # areas that hold each word: itself, and one or two pairs
    torch.testing.assert_close(found.inputs[0, 0], shares / held)


def test_areas_of_a_grid_are_rectangles() -> None:
    batch = batch_of("show soft")
    found = leave_one_area_out(batch, (2, 1), grid=(3, 3))
    kept = torch.ones_like(batch.inputs)
    kept[:, [4, 7]] = False  # the pair that begins in the middle: behind 9 cells, the fifth pair of 6
    expected = batch.log_probs() - batch.keep(kept).log_probs()
    torch.testing.assert_close(found.areas[:, :, 9 + 4], expected.detach())


def test_the_greedy_order_takes_what_hurts_most_after_all_that_went_before() -> None:
    batch = cast(TranslationBatch, batch_of("transformer"))
    output = torch.tensor([2, 0, 3])
    found = greedy_order(batch, output, 3)
    for row, (source, target) in enumerate(zip(SOURCES, TARGETS, strict=True)):
        left = list(range(len(source)))
        expected = []
        for _ in range(3):
            without = {place: pairs(batch.model, [[source[i] for i in left if i != place]], [target]) for place in left}
            place = min(without, key=lambda at: without[at].log_probs()[0, output[row]].item())
            left.remove(place)
            expected.append(place)
        assert found[row].argsort(descending=True)[:3].tolist() == expected
        assert found[row].count_nonzero() == 3


@pytest.mark.parametrize(
    ("output", "most", "at_once", "message"),
    [
        (None, 2, 1, "output must be a tensor, found None"),
        (torch.zeros(3), 2, 1, "output must hold whole numbers, found torch.float32"),
        (torch.tensor([0]), 2, 1, r"output must be \(B,\) = \(3,\), found \(1,\)"),
        (torch.tensor([0, 0, 1]), 2, 1, r"output\[2\] is 1; allowed are numbers from 0 to 0"),
        (torch.tensor([0, 0, 0]), "2", 1, "most must be a whole number of at least 0, found '2'"),
        (torch.tensor([0, 0, 0]), 2, 0, "at_once must be a whole number of at least 1, found 0"),
    ],
    ids=["no output", "no whole number", "too few", "no such output", "text", "none at once"],
)
def test_an_order_of_nothing_is_refused(output: Any, most: Any, at_once: int, message: str) -> None:
    with pytest.raises(RegardError, match=f"^greedy_order: {message}"):
        greedy_order(batch_of("label lstm"), output, most, at_once=at_once)
