"""Explanations of models that read two inputs, against rows and image cells changed by hand, differences, and explicit products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.data.vocabulary import EOS
from regard.errors import ConfigError
from regard.explanations import (
    METHODS,
    TranslationBatch,
    TwoInputBatch,
    attention_flow,
    attention_rollout,
    explain,
    input_gradients,
    integrated_gradients,
    leave_one_out,
    replace_one,
)
from regard.models.image_embedding import ImageEmbedding
from tests.models import test_image_inputs as pictures
from tests.models import test_rnn_two_inputs as recurrent
from tests.models import test_two_inputs as texts

TARGET_OUTPUT = torch.tensor([[6, 7, EOS], [5, 9, EOS], [2, 4, EOS]])
TARGET_LENGTHS = torch.tensor([3, 3, 3])
AREA = {"height": 2, "width": 3}
OF_TEXTS = {
    **{kind: (texts.model_of, kind) for kind in texts.KINDS},
    **{f"recurrent {kind}": (recurrent.model_of, kind) for kind in recurrent.KINDS},
}
OF_IMAGES: dict[str, tuple[Callable[..., Any], Any]] = {
    **{kind: (pictures.transformer, (kind, None)) for kind in texts.KINDS},
    "serial, areas": (pictures.transformer, ("serial", AREA)),
    "crossed, areas": (pictures.transformer, ("crossed", AREA)),
    "recurrent flat": (pictures.recurrent, ("flat",)),
    "recurrent parallel, areas": (pictures.recurrent, ("parallel", AREA)),
}


def of_texts(name: str) -> TwoInputBatch:
    """Return rows of two texts, the last one without a second."""
    make, kind = OF_TEXTS[name]
    return TwoInputBatch(make(kind).double(), texts.ROWS, texts.LENGTHS, texts.TARGET, TARGET_OUTPUT, TARGET_LENGTHS)


def of_images(name: str) -> TwoInputBatch:
    """Return rows of a sentence and an image of nine cells, the last one without an image."""
    make, settings = OF_IMAGES[name]
    model = make(*settings).double()
    for module in model.modules():
        if isinstance(module, ImageEmbedding):
            module.images = lambda numbers, read=module.images: read(numbers).double()
    return TwoInputBatch(model, pictures.ROWS, pictures.LENGTHS, pictures.TARGET, TARGET_OUTPUT, TARGET_LENGTHS)


def every_batch() -> list[Any]:
    """Return the names of all batches, with the functions that make them."""
    return [pytest.param(of_texts, name, id=f"texts, {name}") for name in OF_TEXTS] + [
        pytest.param(of_images, name, id=f"image, {name}") for name in OF_IMAGES
    ]


def log_probs_of(batch: TwoInputBatch, source: Tensor, lengths: Tensor) -> Tensor:
    readout = batch.model.decode(source, lengths, batch.target_input).readout
    return batch.model.logits(readout).log_softmax(-1).gather(2, batch.target_output.unsqueeze(-1)).squeeze(-1)


@pytest.mark.parametrize(("make", "name"), every_batch())
def test_own_vectors_give_the_models_own_probabilities(make: Callable[[str], TwoInputBatch], name: str) -> None:
    batch = make(name)
    expected = log_probs_of(batch, batch.source, batch.source_lengths)
    torch.testing.assert_close(batch.log_probs(), expected)
    torch.testing.assert_close(batch.log_probs(batch.embed()), expected)
    assert batch.embed().shape[:2] == batch.source.shape
    assert not batch.inputs[batch.source == EOS].any()
    assert torch.equal(batch.inputs.sum(1), batch.source_lengths - 2)


@pytest.mark.parametrize("name", OF_TEXTS)
def test_a_token_is_left_out_of_either_text(name: str) -> None:
    batch = of_texts(name)
    found = leave_one_out(batch)
    for example, place in batch.inputs.nonzero().tolist():
        row = batch.source[example, : batch.source_lengths[example]].tolist()
        del row[place]
        one = batch.select(torch.tensor([example]))
        shorter = log_probs_of(one, torch.tensor([row]), torch.tensor([len(row)]))
        torch.testing.assert_close(found[example, :, place], (one.log_probs() - shorter)[0])


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_cell_that_is_left_out_becomes_the_mean_of_its_image(name: str) -> None:
    batch = of_images(name)
    found, (module,) = leave_one_out(batch), [each for each in batch.model.modules() if isinstance(each, ImageEmbedding)]
    first = batch.split.first_lengths.tolist()
    for example, cell in ((0, 0), (0, 8), (1, 4)):
        one = batch.select(torch.tensor([example]))

        def changed(_: Any, __: Any, cells: Tensor, cell: int = cell) -> Tensor:
            cells = cells.clone()
            cells[:, cell] = cells[:, : pictures.CELLS].mean(1)
            return cells

        handle = module.register_forward_hook(changed)
        try:
            without = log_probs_of(one, one.source, one.source_lengths)
        finally:
            handle.remove()
        torch.testing.assert_close(found[example, :, first[example] + cell], (one.log_probs() - without)[0])
    assert (found[2, :, 3:] == 0).all(), "no image"
    row = torch.tensor([[6, 11, EOS, *[4] * pictures.CELLS, EOS]])
    shorter = log_probs_of(batch.select(torch.tensor([0])), row, torch.tensor([row.shape[1]]))
    torch.testing.assert_close(found[0, :, 1], (batch.log_probs()[:1] - shorter)[0])


@pytest.mark.parametrize(("make", "name"), every_batch())
def test_gradients_are_the_limits_of_differences(make: Callable[[str], TwoInputBatch], name: str) -> None:
    batch = make(name)
    vectors, step = batch.embed().detach(), 1e-6
    found = input_gradients(batch, vectors)
    generator = torch.Generator().manual_seed(3)
    for example, place in batch.inputs.nonzero().tolist()[::3]:
        way = torch.zeros_like(vectors)
        way[example, place] = torch.randn(vectors.shape[2], generator=generator, dtype=torch.float64)
        expected = (batch.log_probs(vectors + step * way) - batch.log_probs(vectors - step * way)) / (2 * step)
        torch.testing.assert_close(found[example, :, place] @ way[example, place], expected[example], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(("make", "name"), every_batch())
def test_integrated_gradients_are_complete_over_both_inputs(make: Callable[[str], TwoInputBatch], name: str) -> None:
    batch = make(name)
    start = batch.embed().detach() / 2  # from zeros, the LayerNorms need many more steps
    found = integrated_gradients(batch, steps=32, baseline=start)
    # ReLU and maxout have kinks, over which quadrature is less exact.
    torch.testing.assert_close(found.sum(2), batch.log_probs() - batch.log_probs(start), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("make", "name"), every_batch())
def test_every_method_explains_or_says_why_not_and_a_row_alone_as_in_a_batch(make: Callable[[str], TwoInputBatch], name: str) -> None:
    batch, defined, refused = make(name), set[str](), dict[str, str]()
    for method in METHODS:
        if method == "flow":  # its graph is that of rollout
            continue
        try:
            found = explain(batch, method)
        except ConfigError as error:
            refused[method] = str(error)
            continue
        defined.add(method)
        assert found.shape == (3, 3, batch.source.shape[1])
        assert (found * ~batch.inputs.unsqueeze(1) == 0).all()
        alone = explain(batch.select(torch.tensor([1])), method)
        size = min(found.shape[2], alone.shape[2])
        torch.testing.assert_close(found[1:2, :, :size], alone[..., :size])
    reasons = (
        "two inputs",
        "has an embedding of its own",
        "each of its inputs by itself",
        "reads two encoders",
        "more than a linear map",
        "no Transformer",
    )
    assert all(any(reason in said for reason in (*reasons, "the only attention it has")) for said in refused.values()), refused
    assert defined >= {"weights", "input-gradient", "integrated-gradients", "leave-one-out"}
    assert ("rollout" in defined) == (name.partition(",")[0] in ("joined", "parallel", "crossed"))


def maps_of(batch: TwoInputBatch) -> dict[str, Tensor]:
    found = batch.model.attention_maps(batch.source, batch.source_lengths, batch.target_input)
    return {each.name: each.weights.mean(1).double() for each in found}


def test_rollout_of_two_encoders_is_the_product_of_their_layers() -> None:
    whole = of_texts("parallel")
    batch = whole.select(torch.tensor([0]))
    maps, found = maps_of(batch), attention_rollout(batch)

    def rolled(name: str) -> Tensor:
        result = torch.eye(maps[f"{name}.0.attention"].shape[-1], dtype=torch.float64)
        for layer in range(2):
            result = (maps[f"{name}.{layer}.attention"] + torch.eye(len(result[0]), dtype=torch.float64)) / 2 @ result
        return result[0] if result.dim() == 3 else result

    first, second, target = rolled("encoder.first.layers"), rolled("encoder.second.layers"), torch.eye(3, dtype=torch.float64)
    total = torch.cat([torch.zeros(3, 7, dtype=torch.float64), target], 1)
    read = {
        "left": torch.cat([first, torch.zeros(3, 7, dtype=torch.float64)], 1),
        "right": torch.cat([torch.zeros(4, 3, dtype=torch.float64), second, torch.zeros(4, 3, dtype=torch.float64)], 1),
    }
    for layer in range(2):
        own = maps[f"decoder.layers.{layer}.attention"][0]
        total = (own + torch.eye(3, dtype=torch.float64)) / 2 @ total
        asked = [maps[f"decoder.layers.{layer}.cross_attention.{side}"][0] @ read[side] for side in read]
        total = total / 2 + sum(asked) / 4
    torch.testing.assert_close(found[0], total, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["joined", "parallel", "crossed"])
def test_all_that_is_rolled_out_comes_from_somewhere(name: str) -> None:
    found = attention_rollout(of_texts(name))
    torch.testing.assert_close(found.sum(2), torch.ones(3, 3, dtype=found.dtype), rtol=1e-5, atol=1e-5)
    flow = attention_flow(of_texts(name).select(torch.tensor([1])))
    assert (flow[..., :4].sum(2) > 0).all()


def test_the_flow_through_two_parallel_attentions_ties_most_words() -> None:
    flow = attention_flow(of_texts("parallel").select(torch.tensor([0])))[0]
    words = flow[:, flow[0] > 0]
    assert words.shape[1] > 3
    assert (words == words[:, :1]).all()  # as docs/explain.md warns


@pytest.mark.parametrize("name", ["serial", "parallel", "crossed"])
def test_weights_of_attentions_apart_give_either_input_a_half(name: str) -> None:
    batch = of_texts(name).select(torch.tensor([0]))
    weights = batch.model.decode(batch.source, batch.source_lengths, batch.target_input).weights
    assert weights is not None
    end = int(batch.split.first_lengths[0])
    for part in (weights[0, :, :end], weights[0, :, end:]):
        torch.testing.assert_close(part.sum(1), torch.full((3,), 0.5, dtype=part.dtype))


def test_a_word_replaces_others_where_both_inputs_have_one_embedding() -> None:
    batch = of_texts("serial")
    assert (replace_one(batch, draws=2)[batch.inputs.unsqueeze(1).expand(-1, 3, -1)] != 0).all()
    with pytest.raises(ConfigError, match="each input has an embedding of its own"):
        replace_one(of_images("serial"))
    apart = texts.model_of("serial", sizes=(19, 23, 19), share_embeddings=False, tie_embeddings=False)
    with pytest.raises(ConfigError, match="each input has an embedding of its own"):
        replace_one(TwoInputBatch(apart, texts.ROWS, texts.LENGTHS, texts.TARGET, TARGET_OUTPUT, TARGET_LENGTHS))


def test_the_wrong_batch_is_refused_and_names_the_right_one() -> None:
    batch = of_texts("serial")
    rest = (texts.ROWS, texts.LENGTHS, texts.TARGET, TARGET_OUTPUT, TARGET_LENGTHS)
    with pytest.raises(ConfigError, match="TwoInputTransformer reads two inputs; take TwoInputBatch"):
        TranslationBatch(batch.model, *rest)
    from tests.explanations.models import FAMILIES, translator

    with pytest.raises(ConfigError, match="Transformer reads one input; take TranslationBatch"):
        TwoInputBatch(translator(FAMILIES["transformer"]), *rest)
    with pytest.raises(ConfigError, match="training mode"):
        TwoInputBatch(batch.model.train(), *rest)
