"""Labellers: padding is exact, each part does what its equation says, and every kind learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from regard import ops
from regard.attention import record_weights
from regard.config import ClassifierConfig, EntailmentModelConfig, SentenceModelSettings
from regard.models.classifier import SentenceClassifier, build_classifier
from regard.models.pooling import FeatureFusion, GatedFusion, LabelHead, StatePooling
from tests.tasks.tiny_sentences import CLASSIFIERS, ENTAILERS

SMALL: dict[str, Any] = {"embed_dim": 6, "hops": 3, "attention_dim": 5, "mlp_dim": 11, "encoder": {"hidden_size": 7}}
KINDS = [("classification", name) for name in CLASSIFIERS] + [("entailment", name) for name in ENTAILERS]


def labeller(task: str, name: str, **changes: Any) -> SentenceClassifier:
    kind = ClassifierConfig if task == "classification" else EntailmentModelConfig
    tree = {**SMALL, **(CLASSIFIERS if task == "classification" else ENTAILERS)[name], **changes}
    torch.manual_seed(5)
    return build_classifier(kind.model_validate(tree), vocab_size=13, classes=5, unknown=1)


def texts(task: str) -> list[list[list[int]]]:
    first = [[4, 5, 6, 7, 8, 9, 10], [11], [5, 5, 12], [12, 4, 6, 8, 10]]
    second = [[7, 4], [9, 9, 9, 4, 12, 5], [6], [4, 5, 6, 7]]
    return [first] if task == "classification" else [first, second]


def padded(rows: list[list[int]], size: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    size = max(map(len, rows)) if size is None else size
    return torch.tensor([row + [0] * (size - len(row)) for row in rows]), torch.tensor([len(row) for row in rows])


@pytest.mark.parametrize(("task", "name"), KINDS)
def test_an_example_gives_the_same_alone_and_in_a_padded_batch(task: str, name: str) -> None:
    model = labeller(task, name).double().eval()
    sides = texts(task)
    batch = [padded(rows, 11) for rows in sides]
    # What padding holds must not matter.
    tokens = [ids.masked_fill(~ops.length_mask(count, 11), 3) for ids, count in batch]
    together = model.classify(tokens, [count for _, count in batch])
    for row in range(4):
        alone = [padded([rows[row]]) for rows in sides]
        single = model.classify([ids for ids, _ in alone], [count for _, count in alone])
        torch.testing.assert_close(together.logits[row], single.logits[0], rtol=1e-10, atol=1e-10)
        for rows, own, one in zip(sides, together.pooled, single.pooled, strict=True):
            torch.testing.assert_close(own.context[row], one.context[0], rtol=1e-10, atol=1e-10)
            if own.weights is not None and one.weights is not None:
                size = len(rows[row])
                torch.testing.assert_close(own.weights[row, :, :size], one.weights[0], rtol=1e-10, atol=1e-10)
                assert not own.weights[row, :, size:].any()
                torch.testing.assert_close(one.weights.sum(-1), torch.ones_like(one.weights[..., 0]))


@pytest.mark.parametrize(("task", "name"), KINDS)
@pytest.mark.parametrize("size", [0, 4])
def test_a_text_without_words_is_all_zeros_and_harms_nobody(task: str, name: str, size: int) -> None:
    model = labeller(task, name)
    count = 1 + (task == "entailment")
    rows, lengths = [torch.full((2, size), 5)] * count, [torch.tensor([0, size])] * count
    sums = model(rows, lengths, torch.tensor([1, 2]))
    sums.loss.backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in model.parameters())
    reading = model.eval().classify(rows, lengths)
    assert not any(pooled.context[0].any() for pooled in reading.pooled)
    assert bool(reading.logits.isfinite().all())


@pytest.mark.parametrize(("task", "name"), KINDS)
def test_the_loss_is_the_sum_over_examples_and_every_parameter_learns(task: str, name: str) -> None:
    model = labeller(task, name, dropout=0.0, embed_dropout=0.0, penalty=0.0)
    batch = [padded(rows) for rows in texts(task)]
    tokens, lengths = [ids for ids, _ in batch], [count for _, count in batch]
    labels, weights = torch.tensor([3, 0, 4, 1]), torch.tensor([1.0, 0.5, 2.0, 0.0])
    model.eval()
    logits = model.classify(tokens, lengths).logits
    expected = F.cross_entropy(logits, labels, reduction="none", label_smoothing=0.1)
    sums = model(tokens, lengths, labels, weights, label_smoothing=0.1)
    torch.testing.assert_close(sums.loss, (expected * weights).sum())
    torch.testing.assert_close(sums.nll, F.cross_entropy(logits, labels, reduction="sum"))
    assert int(sums.tokens) == 4
    assert int(sums.correct) == int((logits.argmax(-1) == labels).sum())
    model(tokens, lengths, labels).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None or not parameter.grad.any()] == []


def test_the_penalty_is_that_of_the_weights_for_each_example_and_text() -> None:
    for task in ("classification", "entailment"):
        name = "structured" if task == "classification" else "gated"
        batch = [padded(rows) for rows in texts(task)]
        tokens, lengths = [ids for ids, _ in batch], [count for _, count in batch]
        labels = torch.tensor([3, 0, 4, 1])
        for reduction in ("sum", "mean"):
            plain = labeller(task, name, penalty=0.0).eval()
            model = labeller(task, name, penalty=0.7, penalty_reduction=reduction).eval()
            weights = [pooled.weights for pooled in model.classify(tokens, lengths).pooled]
            penalty = sum(ops.redundancy_penalty(own, reduction=reduction) for own in weights if own is not None)
            difference = model(tokens, lengths, labels).loss - plain(tokens, lengths, labels).loss
            torch.testing.assert_close(difference, torch.as_tensor(0.7 * 4 * penalty))


def test_poolings_are_what_their_equations_say() -> None:
    states = torch.randn(2, 5, 4)
    mask = torch.tensor([[True] * 5, [True, True, True, False, False]])
    for row, size in ((0, 5), (1, 3)):
        own = states[row, :size]
        pooled = {kind: StatePooling(kind, 1)(states, mask) for kind in ("max", "mean", "last")}  # type: ignore[arg-type]
        torch.testing.assert_close(pooled["max"].context[row, 0], own.max(0).values)
        torch.testing.assert_close(pooled["mean"].context[row, 0], own.mean(0))
        torch.testing.assert_close(pooled["last"].context[row, 0], torch.cat([own[-1, :3], own[0, 3:]]))
        shares = torch.stack([(own.argmax(0) == place).sum() / 4 for place in range(size)])
        weights = pooled["max"].weights
        assert weights is not None
        torch.testing.assert_close(weights[row, 0, :size], shares)
    assert pooled["last"].weights is None
    for kind in ("max", "mean", "last"):
        assert not StatePooling(kind, 1)(states, torch.zeros(2, 5, dtype=torch.bool)).context.any()  # type: ignore[arg-type]


def test_the_last_states_are_those_the_recurrent_reader_ended_with() -> None:
    model = labeller("classification", "last").eval()
    tokens, lengths = padded(texts("classification")[0])
    encoded = model.encoder.encoder(model.embedding(tokens), lengths)
    torch.testing.assert_close(
        model.classify([tokens], [lengths]).pooled[0].context[:, 0], torch.cat([final[0] for final in encoded.final], -1)
    )


def test_fusions_are_what_their_equations_say() -> None:
    premise, hypothesis = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    gated = GatedFusion(3, 5, 7)
    for row in range(2):
        expected = [(premise[row, hop] @ gated.premise[hop]) * (hypothesis[row, hop] @ gated.hypothesis[hop]) for hop in range(3)]
        torch.testing.assert_close(gated(premise, hypothesis)[row], torch.cat(expected))
    p, h = premise.flatten(1), hypothesis.flatten(1)
    torch.testing.assert_close(FeatureFusion()(premise, hypothesis), torch.cat([p, h, abs(p - h), p * h], 1))
    linear = LabelHead(5, None, 3, dropout=0.9).eval()
    torch.testing.assert_close(linear(p[:, :5]), p[:, :5] @ linear.output.weight.T + linear.output.bias)


def test_word_dropout_reads_words_as_unknown_in_training_only() -> None:
    model = labeller("classification", "mean", word_dropout=0.5, dropout=0.0, embed_dropout=0.0, encoder={"hidden_size": 7})
    seen: list[torch.Tensor] = []
    model.embedding.register_forward_hook(lambda module, given, result: seen.append(given[0]))
    tokens, lengths = torch.full((31, 17), 7), torch.full((31,), 17)
    model.classify([tokens], [lengths])
    assert set(seen[0].flatten().tolist()) == {1, 7}
    assert (seen[0] == 1).float().mean().item() == pytest.approx(0.5, abs=0.1)
    model.eval().classify([tokens], [lengths])
    assert bool((seen[1] == 7).all())


def test_the_weights_of_layers_that_ask_each_other_can_be_watched() -> None:
    model = labeller("entailment", "crossed").eval()
    batch = [padded([[4, 5, 6]]), padded([[7, 8, 9, 10, 11]])]
    with record_weights() as recorded:
        model.classify([ids for ids, _ in batch], [count for _, count in batch])
    pooled = [(1, 1, 3, 3), (1, 1, 3, 5)]  # three hops over each sentence
    assert [tuple(each.weights.shape) for each in recorded] == [(1, 2, 5, 3), (1, 2, 3, 5)] * 2 + pooled


def test_embeddings_that_are_not_tuned_get_no_gradient() -> None:
    assert not labeller("classification", "structured", tune_embeddings=False).embedding.weight.requires_grad


@pytest.mark.parametrize("task", ["classification", "entailment"])
def test_the_names_of_parameters_are_those_documented(task: str) -> None:
    names = set(labeller(task, "structured" if task == "classification" else "gated").state_dict())
    encoder = [
        f"encoder.encoder.{part}.{n}.{kind}"
        for n in (0, 1)
        for part, kind in (("inputs", "weight"), ("inputs", "bias"), ("cells", "weight"))
    ]
    expected = {"embedding.weight", *encoder, "pooling.first.weight", "pooling.second.weight"}
    expected |= {f"head.{part}.{kind}" for part in ("hidden", "output") for kind in ("weight", "bias")}
    assert names == expected | ({"fusion.premise", "fusion.hypothesis"} if task == "entailment" else set())


@pytest.mark.parametrize("kind", [ClassifierConfig, EntailmentModelConfig])
def test_heads_must_divide_the_width(kind: type[SentenceModelSettings]) -> None:
    with pytest.raises(ValueError, match=r"embed_dim \(7\) must be a multiple of encoder\.num_heads \(2\)"):
        kind.model_validate({"embed_dim": 7, "encoder": {"type": "transformer", "num_heads": 2}})


def test_under_autocast_the_loss_stays_in_float32() -> None:
    model = labeller("classification", "structured")
    tokens, lengths = padded(texts("classification")[0])
    with torch.autocast("cpu", torch.bfloat16):
        sums = model([tokens], [lengths], torch.tensor([3, 0, 4, 1]))
    assert sums.loss.dtype == torch.float32
    sums.loss.backward()
