"""Captioners: the paper's equations, all at once equals step by step, one image alone equals a batch, and what trains hard attention."""

from __future__ import annotations

import sys
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F

from regard import ops
from regard.config.captioning import (
    CaptionTransformerConfig,
    FeaturesConfig,
    GridAreaConfig,
    HardConfig,
    ImageEncoderConfig,
    ShowConfig,
    SmallCNNConfig,
    TimmConfig,
)
from regard.config.images import NonLocalForm
from regard.decoding import DecodingOptions, beam_search
from regard.errors import ConfigError, MissingExtraError, ShapeError
from regard.models.captioning import CaptionModel, CaptionTransformer, ShowAttendTell, build_captioner, grid_positions
from regard.models.image_encoder import SmallCNN, build_image_encoder
from tests.reference import show

VOCABULARY, SIZE = 17, 23
CNN = SmallCNNConfig(channels=(5, 7))
CELLS = 36  # 6 x 6 of 23 pixels
SHOW: dict[str, Any] = {"embed_dim": 11, "decoder_dim": 13, "attention_dim": 5, "feature_dim": 6, "dropout": 0.0, "encoder": CNN}
TRANSFORMER: dict[str, Any] = {
    "embed_dim": 10,
    "ff_dim": 11,
    "num_heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "dropout": 0.0,
    "encoder": CNN,
}
ALONE: dict[str, Any] = {**TRANSFORMER, "encoder_layers": 0}
KINDS = {
    "soft": ShowConfig(**SHOW),
    "soft, looks last": ShowConfig(**SHOW, query_state="current"),
    "soft, areas": ShowConfig(**SHOW, area=GridAreaConfig(height=2, width=3)),
    "soft, learned areas": ShowConfig(**SHOW, area=GridAreaConfig(key_mode="features", value_mode="max")),
    "hard": ShowConfig(**SHOW, attention="hard"),
    "hard, areas": ShowConfig(**SHOW, attention="hard", area=GridAreaConfig()),
    "hard, expected": ShowConfig(**SHOW, attention="hard", hard=HardConfig(mode="expected")),
    "transformer": CaptionTransformerConfig(**TRANSFORMER),
    "transformer, post-norm": CaptionTransformerConfig(**TRANSFORMER, norm="post"),
    "transformer, areas": CaptionTransformerConfig(**TRANSFORMER, area=GridAreaConfig()),
    "transformer, learned areas": CaptionTransformerConfig(**TRANSFORMER, area=GridAreaConfig(height=3, width=2, key_mode="features")),
    "transformer, area shown": CaptionTransformerConfig(**TRANSFORMER, area=GridAreaConfig(), alignment_layer=1),
    "transformer, cells alone": CaptionTransformerConfig(**ALONE),
}
KIND = pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)


def model_of(config: ShowConfig | CaptionTransformerConfig, dtype: torch.dtype = torch.float64) -> CaptionModel[Any]:
    torch.manual_seed(31)
    model = build_captioner(config, image_size=SIZE, vocab_size=VOCABULARY).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # from small random weights all cells look alike
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype)


def images(count: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(7)).to(dtype)


def cells(count: int) -> torch.Tensor:
    return torch.full((count,), CELLS)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("look_last", [False, True])
def test_the_soft_captioner_is_that_of_the_paper(look_last: bool) -> None:
    model = model_of(KINDS["soft, looks last" if look_last else "soft"])
    assert isinstance(model, ShowAttendTell)
    words = [2, 9, 4, 16, 7]
    features = model.project(model.image_encoder(images(2)))
    output = model.decode(images(2), cells(2), torch.tensor([words, words[::-1]]))
    weights = {name: value.detach() for name, value in model.named_parameters()}
    for row, read in enumerate((words, words[::-1])):
        logits, attention = show.caption(weights, features[row].detach(), read, look_last=look_last)
        close(model.logits(output.readout[row]), logits)
        assert output.weights is not None
        close(output.weights[row], attention)


def test_without_areas_larger_than_a_cell_area_attention_is_the_ordinary_one() -> None:
    one = ShowConfig(**SHOW, area=GridAreaConfig(height=1, width=1))
    plain, areas = model_of(KINDS["soft"]), model_of(one)
    words = torch.tensor([[2, 5, 6]])
    close(areas.decode(images(1), cells(1), words).readout, plain.decode(images(1), cells(1), words).readout)


@KIND
def test_step_by_step_equals_all_at_once(config: ShowConfig | CaptionTransformerConfig) -> None:
    model = model_of(config)
    words = torch.tensor([[2, 9, 4, 16], [2, 3, 3, 5], [2, 7, 8, 9]])
    with torch.no_grad():
        whole = model.decode(images(3), cells(3), words)
        state = model.start(images(3), cells(3))
        for place in range(words.shape[1]):
            logits, weights, state = model.step(words[:, place : place + 1], state)
            close(logits[:, 0], model.logits(whole.readout)[:, place])
            assert weights is not None
            assert whole.weights is not None
            close(weights[:, 0], whole.weights[:, place])
    assert whole.weights is not None
    close(whole.weights.sum(-1), torch.ones(3, 4, dtype=torch.float64))
    assert whole.weights.shape == (3, 4, CELLS)


@KIND
def test_captions_of_one_image_may_share_it(config: ShowConfig | CaptionTransformerConfig) -> None:
    model = model_of(config)
    read = torch.tensor([[2, 9, 4, 16], [2, 3, 3, 5], [2, 7, 8, 9], [2, 5, 5, 5], [2, 6, 4, 2], [2, 9, 4, 16]])
    goals, lengths = read.roll(-1, 1), torch.tensor([4, 2, 3, 1, 4, 4])
    copies = images(2).repeat_interleave(3, 0)
    together, apart = model.decode(images(2), cells(2), read), model.decode(copies, cells(6), read)
    close(together.readout, apart.readout)
    assert together.weights is not None
    assert apart.weights is not None
    close(together.weights, apart.weights)
    with torch.no_grad():
        loss = model(images(2), cells(2), read, goals, lengths)
        expected = model(copies, cells(6), read, goals, lengths)
    close(loss.loss, expected.loss)
    assert loss.tokens == expected.tokens == 18
    with pytest.raises(ShapeError, match="5 targets of 2 sources"):
        model.decode(images(2), cells(2), read[:5])


def test_the_coin_of_hard_attention_is_tossed_for_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(KINDS["hard"]).train()
    assert isinstance(model, ShowAttendTell)
    choice = model.decoder.attention.choice
    assert choice is not None
    monkeypatch.setattr(choice, "soft_rows", lambda size, device=None: torch.tensor([True, False])[:size])
    _, look = model.decoder(torch.full((6, 3), 5), model.start(images(2), cells(2)), soft=choice.soft_rows(2))
    assert look.sampled is not None
    assert look.sampled.tolist() == [[False] * 3] * 3 + [[True] * 3] * 3


@KIND
def test_an_image_alone_gets_the_caption_it_gets_in_a_batch(config: ShowConfig | CaptionTransformerConfig) -> None:
    model = model_of(config)
    options = DecodingOptions(bos=2, eos=3, beam_size=3, n_best=2, max_length=9, banned=(0, 2), need_attention=True)

    def search(pictures: torch.Tensor) -> list[Any]:
        with torch.no_grad():
            return beam_search(model.step, model.start(pictures, cells(len(pictures))), batch_size=len(pictures), options=options)

    together = search(images(5))
    for number in range(5):
        (alone,) = search(images(5)[number : number + 1])
        assert [found.tokens for found in alone] == [found.tokens for found in together[number]]
        for one, other in zip(alone, together[number], strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-9)
            torch.testing.assert_close(one.attention, other.attention)
    assert len({round(found[0].score, 9) for found in together}) == 5, "the images make a difference"


@KIND
def test_packed_weights_change_no_caption(config: ShowConfig | CaptionTransformerConfig) -> None:
    model = model_of(config, torch.float32)
    options = DecodingOptions(bos=2, eos=3, beam_size=2, max_length=7, banned=(0, 2), need_attention=True)

    def search() -> list[list[int]]:
        with torch.inference_mode():
            state = model.start(images(4, torch.float32), cells(4))
            return [found[0].tokens for found in beam_search(model.decoding_step, state, batch_size=4, options=options)]

    plain = search()
    with ops.packed_weights():
        assert search() == plain


@KIND
def test_padding_a_caption_changes_no_loss_of_another(config: ShowConfig | CaptionTransformerConfig) -> None:
    model = model_of(config)
    words, goal = torch.tensor([[2, 9, 4], [2, 5, 0]]), torch.tensor([[9, 4, 3], [5, 3, 0]])
    both = model(images(2), cells(2), words, goal, torch.tensor([3, 2]))
    first = model(images(2)[:1], cells(1), words[:1], goal[:1], torch.tensor([3]))
    second = model(images(2)[1:], cells(1), words[1:, :2], goal[1:, :2], torch.tensor([2]))
    close(both.loss, first.loss + second.loss)
    assert int(both.tokens) == 5


@KIND
def test_everything_is_seen_by_name_and_side(config: ShowConfig | CaptionTransformerConfig) -> None:
    model = model_of(config)
    layers = model.attention_maps(images(1), cells(1), torch.tensor([[2, 5, 6]]), areas=True)
    looking = [layer for layer in layers if layer.kind in ("alignment", "cross")]
    assert len(looking) == (1 if isinstance(config, ShowConfig) else config.decoder_layers)
    for layer in looking:
        assert layer.weights.shape[2:] == (3, CELLS)
    with_areas = [layer for layer in layers if layer.area_weights is not None]
    assert bool(with_areas) == (config.area is not None)
    for layer in with_areas:
        assert config.area is not None
        assert layer.area_weights is not None
        assert layer.area_weights.shape[3] == ops.area_count((6, 6), (config.area.height, config.area.width))
    if isinstance(config, CaptionTransformerConfig) and config.area is not None:
        found = [layer.name for layer in with_areas]
        assert found == [f"encoder.layers.{n}.attention" for n in (0, 1)] + [
            f"decoder.layers.{n}.cross_attention.attention" for n in (0, 1)
        ]


def test_the_doubly_stochastic_term_is_added_in_training_and_not_in_evaluation() -> None:
    words, goal, lengths = torch.tensor([[2, 9, 4], [2, 5, 0]]), torch.tensor([[9, 4, 3], [5, 3, 0]]), torch.tensor([3, 2])
    plain = model_of(KINDS["soft"])
    for reduction in ("paper", "mean"):
        model = model_of(ShowConfig(**SHOW, doubly_stochastic=0.7, penalty=reduction))
        expected = plain(images(2), cells(2), words, goal, lengths).loss
        close(model(images(2), cells(2), words, goal, lengths).loss, expected)
        looked = plain.decode(images(2), cells(2), words).weights
        assert looked is not None
        missing = torch.stack([(1 - looked[0].sum(0)) ** 2, (1 - looked[1, :2].sum(0)) ** 2]).sum(1)
        if reduction == "mean":
            missing = missing / (CELLS * 2)  # the mean over the batch's cells, once for each caption
            missing = missing.sum().expand(2)
        model.train()
        model.image_encoder.eval()  # the statistics of one batch are not those of all
        close(model(images(2), cells(2), words, goal, lengths).loss, expected + 0.7 * missing.sum())


def test_hard_attention_looks_at_one_cell_and_its_three_modes_differ() -> None:
    words = torch.tensor([[2, 9, 4, 5, 6, 7]]).expand(3, -1)
    found = {}
    for mode in ("argmax", "sample", "expected"):
        model = model_of(ShowConfig(**SHOW, attention="hard", hard=HardConfig(mode=mode)))
        torch.manual_seed(5)
        weights = model.decode(images(3), cells(3), words).weights
        assert weights is not None
        found[mode] = weights
    for mode in ("argmax", "sample"):
        assert ((found[mode] == 0) | (found[mode] == 1)).all()
        close(found[mode].sum(-1), torch.ones(3, 6, dtype=torch.float64))
    soft = model_of(KINDS["soft"]).decode(images(3), cells(3), words).weights
    assert soft is not None
    close(found["expected"], soft)
    assert (found["sample"] != found["argmax"]).any()
    # The first look does not depend on earlier ones: its argmax is that of the expected weights.
    assert (found["argmax"][:, 0].argmax(-1) == soft[:, 0].argmax(-1)).all()


def test_hard_attention_learns_from_what_its_choices_brought() -> None:
    config = ShowConfig(**SHOW, attention="hard", hard=HardConfig(half_soft=0.0, entropy_weight=0.0))
    words, goal, lengths = torch.tensor([[2, 9, 4], [2, 5, 0]]), torch.tensor([[9, 4, 3], [5, 3, 0]]), torch.tensor([3, 2])
    model = model_of(config).train()
    assert isinstance(model, ShowAttendTell)
    assert model.estimator is not None
    torch.manual_seed(11)
    sums = model(images(2), cells(2), words, goal, lengths)
    # By hand: the same draws, the reward of a whole caption, no baseline yet.
    torch.manual_seed(11)
    soft = model.decoder.attention.choice.soft_rows(2) if model.decoder.attention.choice is not None else None
    readout, look = model.decoder(words, model.start(images(2), cells(2)), soft=soft)
    nll = F.cross_entropy(model.logits(readout).transpose(1, 2), goal, reduction="none", ignore_index=0)
    assert look.log_prob is not None
    real = torch.tensor([[True, True, True], [True, True, False]])
    chosen = (look.log_prob * real).sum(1)
    close(sums.loss, nll.sum() + (nll.sum(1).detach() * chosen).sum())
    assert model.estimator.baseline.item() == pytest.approx(-0.1 * nll.sum(1).mean().item(), rel=1e-5)
    sums.loss.backward()
    query = model.decoder.attention.get_parameter("score.query.weight")
    assert query.grad is not None
    assert query.grad.abs().sum() > 0, "no gradient goes through a draw: all of this is from the score function"


@pytest.mark.parametrize("kind", ["soft", "hard", "transformer"])
def test_words_are_told_from_the_image_alone_in_training_only(kind: str) -> None:
    torch.manual_seed(3)
    model = model_of(KINDS[kind].model_copy(update={"bag_of_words_weight": 0.25}))
    assert model.bag_of_words is not None
    # Two captions of each of two images.
    read = torch.tensor([[2, 9, 4], [2, 5, 0], [2, 7, 7], [2, 9, 0]])
    goal, lengths = torch.tensor([[9, 4, 3], [5, 3, 0], [7, 7, 3], [9, 3, 0]]), torch.tensor([3, 2, 3, 2])
    given = (images(2), cells(2), read, goal, lengths)
    plain = model(*given)
    log_prob = model.bag_of_words.output(model.image_encoder(images(2)).mean(1)).log_softmax(-1)
    known = sum(log_prob[row // 2, goal[row, t]] for row in range(4) for t in range(int(lengths[row])))
    found = model.with_words(plain, model.image_encoder(images(2)), goal, lengths)
    assert found is plain, "in evaluation nothing is added"
    # The norms stay as they are, so that both see the same features.
    model.bag_of_words.train()
    model.training = True
    found = model.with_words(plain, model.image_encoder(images(2)), goal, lengths)
    close(found.loss - plain.loss, -0.25 * torch.as_tensor(known))
    assert found.tokens == plain.tokens
    # It is part of what training minimises, and reaches the encoder.
    model.train()
    model(*given).loss.backward()
    assert model.bag_of_words.output.weight.grad is not None
    assert model.bag_of_words.output.weight.grad.abs().sum() > 0


def test_evaluation_moves_no_baseline_and_adds_no_term() -> None:
    model = model_of(KINDS["hard"])
    assert isinstance(model, ShowAttendTell)
    assert model.estimator is not None
    sums = model(images(1), cells(1), torch.tensor([[2, 9]]), torch.tensor([[9, 3]]), torch.tensor([2]))
    close(sums.loss, sums.nll)
    assert model.estimator.baseline.item() == 0


@pytest.mark.parametrize(("channels", "depth"), [((11,), 0), ((7, 11), 1), ((7, 11), (0, 1)), ((5, 7, 11), 0), ((5, 7, 11), 2)])
def test_the_receptive_field_is_what_the_configuration_says(channels: tuple[int, ...], depth: int | tuple[int, ...]) -> None:
    config = SmallCNNConfig(channels=channels, depth=depth, coordinates=0)
    size = config.receptive_field * 2 + 3 * config.stride
    torch.manual_seed(3)
    encoder = SmallCNN(config, size).double().eval()
    picture = torch.randn(1, 3, size, size, dtype=torch.float64, requires_grad=True)
    rows, columns = encoder.grid
    middle = (rows // 2) * columns + columns // 2
    encoder(picture)[0, middle].sum().backward()
    assert picture.grad is not None
    seen = picture.grad[0].abs().sum(0)
    for axis in (0, 1):
        places = seen.sum(axis).nonzero().squeeze(1)
        assert int(places[-1] - places[0]) + 1 == config.receptive_field


@pytest.mark.parametrize("form", get_args(NonLocalForm))
def test_with_a_non_local_block_every_cell_sees_the_whole_image(form: Any) -> None:
    config = SmallCNNConfig(channels=(5, 7), non_local=form)
    torch.manual_seed(3)
    plain = SmallCNN(config.model_copy(update={"non_local": None}), 24).double().eval()
    encoder = SmallCNN(config, 24).double().eval()
    encoder.load_state_dict(plain.state_dict(), strict=False)
    picture = torch.randn(1, 3, 24, 24, dtype=torch.float64, requires_grad=True)
    close(encoder(picture), plain(picture))  # W_z starts at zero
    assert encoder.non_local is not None
    torch.nn.init.normal_(encoder.non_local.output.weight)
    encoder(picture)[0, 0].sum().backward()
    assert picture.grad is not None
    assert picture.grad[0, :, -1, -1].abs().sum() > 0


def test_a_depth_for_another_number_of_stages_is_refused() -> None:
    with pytest.raises(ValueError, match="depth: expected one number of 0 or more, or one for each of 2 stages"):
        SmallCNNConfig(channels=(3, 5), depth=(1,))
    for depth in ((0, -1), -1):
        with pytest.raises(ValueError, match=r"(?s)depth.*greater than or equal to 0"):
            SmallCNNConfig(channels=(3, 5), depth=depth)


def test_an_encoder_refuses_images_of_another_size() -> None:
    with pytest.raises(ShapeError, match=r"expected images \(B, 3, 23, 23\), found \(1, 3, 24, 24\)"):
        build_image_encoder(CNN, image_size=SIZE)(torch.zeros(1, 3, 24, 24))
    with pytest.raises(ShapeError, match=r"expected features \(B, 6, 5\), found \(1, 6, 7\)"):
        build_image_encoder(FeaturesConfig(grid=(2, 3), dim=5), image_size=SIZE)(torch.zeros(1, 6, 7))
    with pytest.raises(ConfigError, match="of which grid and dim"):
        build_image_encoder(FeaturesConfig(), image_size=SIZE)


def test_no_two_cells_have_the_same_position() -> None:
    positions = grid_positions((3, 5), 9)
    assert positions.shape == (15, 9)
    assert torch.cdist(positions, positions).add(torch.eye(15)).min() > 0.1
    assert torch.equal(positions[0, :4], positions[4, :4])  # one row


@pytest.mark.parametrize(
    "failure", [ModuleNotFoundError("No module named 'timm'"), RuntimeError("operator torchvision::nms does not exist")]
)
def test_a_missing_timm_or_torchvision_says_what_to_install(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "timm":
                raise failure

    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    expected = "pip install '\\.\\[vision\\]'" if isinstance(failure, ImportError) else "a torchvision made for this PyTorch"
    config: ImageEncoderConfig = TimmConfig(name="resnet18")
    with pytest.raises(MissingExtraError, match=expected):
        build_image_encoder(config, image_size=SIZE)


def test_the_names_of_parameters_are_part_of_the_file_format() -> None:
    soft = [name for name, _ in model_of(KINDS["soft"]).named_parameters()]
    assert sorted({name.split(".")[0] for name in soft}) == ["decoder", "image_encoder", "output", "project"]
    assert [name for name in soft if name.startswith("image_encoder")] == [
        *(f"image_encoder.stages.{n}.0.{name}" for n in (0, 1) for name in ("convolution.weight", "norm.weight", "norm.bias")),
        "image_encoder.cell.weight",
        "image_encoder.cell.bias",
    ]
    own = {name.removeprefix("decoder.").rpartition(".")[0] for name in soft if name.startswith("decoder")}
    parts = {"embedding", "stack.inputs.0", "stack.cells.0", "stack.extra", "attention.score.query", "attention.score.key"}
    assert own == parts | {"attention.score", "first_hidden", "first_cell", "gate", "state", "context"}
    hard = set(model_of(KINDS["hard"]).state_dict())
    assert hard - set(model_of(KINDS["soft"]).state_dict()) == {"estimator.baseline"}
    transformer = model_of(KINDS["transformer"])
    assert isinstance(transformer, CaptionTransformer)
    assert {name.split(".")[0] for name, _ in transformer.named_parameters()} == {
        *("image_encoder", "project", "encoder", "embedding", "decoder"),
    }
