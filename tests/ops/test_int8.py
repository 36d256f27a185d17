"""8-bit products: whole numbers are summed exactly, row by row, on every instruction set; what cannot be rounded stays visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from regard import ops
from regard.commands import options
from regard.config import DecodingConfig, load_config
from regard.errors import ConfigError, RangeError, ShapeError
from regard.models import Ensemble
from regard.ops.kernels import native
from regard.ops.kernels.panels import Affine, PackedLinear, PackedWeights
from regard.serve import command
from regard.tasks import Translator, train_translation
from regard.tasks.forced_text import Glossary, Term
from regard.tasks.predict import predict
from tests.ops.targets import TARGETS, instructions
from tests.tasks.tiny import FAMILIES, TEXTS, translator

pytestmark = pytest.mark.skipif(native.library() is None, reason="the native library is not built")
AVX2, AVX512 = 1, 2


def rounded(x: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return whole numbers up to `most` for each row, and the row's scale."""
    greatest = x.abs().amax(-1, keepdim=True)
    return (x * (most / greatest)).round().double(), (greatest / most).double()


def expected(x: Tensor, weight: Tensor, target: int) -> Tensor:
    (rows, scales), (outputs, sizes) = rounded(x, 127), rounded(weight, 63 if target in (AVX2, AVX512) else 127)
    return rows @ outputs.T * scales * sizes.T


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(1, 3, 2), (7, 67, 131), (129, 64, 32), (31, 192, 37), (55, 320, 70), (11, 5003, 3)]
)
def test_a_product_is_that_of_whole_numbers(target: int, rows: int, inputs: int, outputs: int) -> None:
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs) * torch.rand(outputs, 1), torch.randn(outputs)
    with instructions(target):
        found = PackedLinear(Affine(weight, bias), torch.int8)(x)
    right = expected(x, weight, target) + bias
    torch.testing.assert_close(found.double(), right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("inputs", [4002, 4096])
def test_the_greatest_sums_do_not_overflow(target: int, inputs: int) -> None:
    signs = torch.tensor([1.0, -1.0]).repeat(inputs // 2)
    x = torch.stack([torch.ones(inputs), -torch.ones(inputs), signs]).repeat(6, 1)
    with instructions(target):
        found = PackedLinear(Affine(x.clone(), None), torch.int8)(x)
    torch.testing.assert_close(found, x @ x.T, rtol=1e-6, atol=0)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("inputs", [67, 128])
def test_a_row_does_not_depend_on_those_beside_it(target: int, inputs: int) -> None:
    x = torch.randn(53, inputs)
    with instructions(target):
        product = PackedLinear(Affine(torch.randn(37, inputs), None), torch.int8)
        together = product(x)
        for row in range(53):
            assert torch.equal(product(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_seen_where_it_is(target: int, wrong: float) -> None:
    x, weight = torch.randn(5, 19), torch.randn(7, 19)
    x[3], x[1, 18], weight[2, 17] = 0, wrong, wrong
    with instructions(target):
        found = PackedLinear(Affine(weight, None), torch.int8)(x)
    bad = torch.zeros(5, 7, dtype=torch.bool)
    bad[1], bad[:, 2] = True, True
    assert torch.equal(found.isnan(), bad)
    assert found.isinf().sum() == 0
    assert torch.equal(found[3, 3:], torch.zeros(4))


def test_numbers_too_small_to_scale_are_zeros() -> None:
    found = PackedLinear(Affine(torch.full((3, 5), 1e-42), None), torch.int8)(torch.full((2, 5), 1e-40))
    assert torch.equal(found, torch.zeros(2, 3))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RangeError, match=r"8-bit products take at most 65,536 inputs, found 65,537"):
        PackedWeights(torch.int8).linear(Affine(torch.zeros(1, 65_537), None))
    with pytest.raises(ShapeError, match="x has 4 features, the packed weight takes 5"):
        PackedLinear(Affine(torch.zeros(3, 5), None), torch.int8)(torch.zeros(2, 4))


def test_without_the_library_there_are_no_8_bit_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    with pytest.raises(ConfigError, match="8-bit products need the native library: REGARD_KERNELS=torch"), ops.packed_weights(torch.int8):
        pass


def test_a_run_that_would_decode_in_them_is_not_trained_without_the_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    (tmp_path / "lines").write_text("ein Hund bellt\n" * 7)
    given = [f"data.source={tmp_path / 'lines'}", f"data.target={tmp_path / 'lines'}", "decoding.precision=int8", "training.max_updates=1"]
    given += ["vocabulary.kind=word", "model.embed_dim=8", "model.encoder_dim=8", "model.decoder_dim=8", "data.valid_size=2"]
    with pytest.raises(ConfigError, match=r"decoding.precision=int8: needs the native library \(REGARD_KERNELS=torch\); use float32"):
        train_translation(load_config(None, [*given, "training.eval_metrics=bleu"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    # Where validation does not decode, another machine may: a run is trained on a GPU and decodes in int8 elsewhere.
    assert train_translation(load_config(None, given), tmp_path / "run").step == 1


def test_the_command_line_offers_the_precisions_of_the_configuration() -> None:
    offered = {get_args(options.DecodingPrecision), get_args(command.DecodingPrecision)}
    assert offered == {get_args(DecodingConfig.model_fields["precision"].annotation)}


def test_on_another_device_they_are_refused() -> None:
    model = torch.nn.Linear(2, 3, device="meta")
    with pytest.raises(ConfigError, match=r"precision=int8: computes on a CPU, the model is on meta"):
        predict(model, lambda rows: rows, [0], 1, stage=None, precision="int8")  # type: ignore[arg-type]


def test_layers_alone_joined_and_with_the_best_outputs_round_alike() -> None:
    x, layers = torch.randn(3, 5, 67), [ops.Linear(67, 131), ops.Linear(67, 29)]
    with torch.no_grad(), ops.packed_weights(torch.int8):
        alone = [layer(x) for layer in layers]
        for found, joined, layer in zip(alone, ops.joint_linear(x, layers), layers, strict=True):
            assert torch.equal(found, joined)
            exact = F.linear(x, layer.weight, layer.bias)
            error = (found - exact).norm() / exact.norm()
            assert 1e-4 < error < 3e-2
        lazy = ops.lazy_logits(x, layers[0])
        assert lazy is not None
        best = lazy.best(4, torch.tensor([0]), instead=1, least=-1e9)
    right = alone[0].log_softmax(-1)
    right[..., 0] = -torch.inf
    torch.testing.assert_close(best[0], right.topk(4).values, rtol=1e-5, atol=1e-5)
    assert torch.equal(best[1], right.topk(4).indices)


def first_logits(model: Any) -> Tensor:
    """Return the logits of three steps over sources of several lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([7, 5, 2])
    source = torch.randint(4, 12, (3, 7), generator=generator) * ops.length_mask(lengths, 7)
    state, found = model.start(source, lengths), []
    for token in (1, 5, 6):
        logits, _, state = model.step(torch.full((3, 1), token), state)
        found.append(logits)
    return torch.stack(found)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_native_step_rounds_as_the_layers_do(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = translator(model=FAMILIES[family]).run.model

    def error(found: Tensor, right: Tensor) -> float:
        return float((found - right).norm() / right.norm())

    with torch.no_grad():
        with ops.packed_weights():
            exact = first_logits(model)
        with ops.packed_weights(torch.int8):
            found = first_logits(model)
        for module, name in (("transformer_decoder", "plan_of"), ("rnn_decoder", "plan_of"), ("rnn_encoder", "plan_of_cell")):
            monkeypatch.setattr(f"regard.models.{module}.{name}", lambda *_: None)
        with ops.packed_weights(torch.int8):
            layers = first_logits(model)
    # A number between two steps of the scale may be rounded either way.
    assert error(found, layers) < 0.05
    assert error(found, exact) > 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_every_model_decodes_in_8_bits(family: str) -> None:
    items = translator(model=FAMILIES[family]).translate(
        TEXTS, decoding=DecodingConfig(max_length=5, beam_size=3, precision="int8"), n_best=3
    )
    assert [len(item.hypotheses) for item in items] == [3] * len(TEXTS)


TERMS = Glossary([Term("Hund", "ein Haus"), Term("bellt", "Zebra")])


def ensemble(*families: str) -> Translator:
    """Return a translator of several models at once."""
    tools = [translator("bpe", model=FAMILIES[family]) for family in families]
    return Translator(tools[0].run._replace(model=Ensemble([tool.run.model for tool in tools]).eval()))


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("families", [*((family,) for family in FAMILIES), ("gru", "transformer")])
def test_terms_come_in_8_bits(families: tuple[str, ...], beam_size: int) -> None:
    tool = translator("bpe", model=FAMILIES[families[0]]) if len(families) == 1 else ensemble(*families)
    decoding = DecodingConfig(max_length=61, beam_size=beam_size, batch_size=2, precision="int8")
    found = tool.translate(TEXTS, decoding=decoding, terms=TERMS)
    wanted = [TERMS.find(line) for line in TEXTS]
    assert sum(map(len, wanted)) == 5
    for item, terms in zip(found, wanted, strict=True):
        assert item.unplaced == []
        assert all(term in item.text for term in terms)


@pytest.mark.parametrize("family", ["gru", "transformer", "crossed"])
def test_a_model_with_itself_decodes_in_8_bits_as_alone(family: str) -> None:
    decoding = DecodingConfig(max_length=11, beam_size=3, precision="int8")
    for one, other in zip(
        translator("bpe", model=FAMILIES[family]).translate(TEXTS, decoding=decoding, n_best=3),
        ensemble(family, family).translate(TEXTS, decoding=decoding, n_best=3),
        strict=True,
    ):
        assert [found.tokens for found in one.hypotheses] == [found.tokens for found in other.hypotheses]
        assert [found.score for found in one.hypotheses] == pytest.approx([found.score for found in other.hypotheses], abs=1e-5)


def test_an_ensemble_rounds_each_of_its_models() -> None:
    model = ensemble("gru", "transformer").run.model
    with torch.no_grad():
        with ops.packed_weights():
            exact = first_logits(model).exp()
        with ops.packed_weights(torch.int8):
            found = first_logits(model).exp()
            each = torch.stack([first_logits(one).softmax(-1) for one in model.models])  # type: ignore[union-attr]
    torch.testing.assert_close(found, each.mean(0), rtol=1e-4, atol=1e-6)
    assert 1e-4 < float((found - exact).norm() / exact.norm()) < 0.3
