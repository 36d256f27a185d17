"""A run exported to ONNX gives the logits, attention and texts that it gives here, whatever its kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

pytest.importorskip("onnx", reason="the extra onnx is not installed")
pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")

from regard.cli import app
from regard.config import (
    CaptioningConfig,
    ClassificationConfig,
    EntailmentConfig,
    LanguageConfig,
    LanguageModelConfig,
    RunConfig,
    TransformerConfig,
    validate,
)
from regard.config.captioning import CaptionTransformerConfig, ShowConfig
from regard.config.images import NonLocalForm
from regard.data.shortlist import Shortlist
from regard.data.vocabulary import BOS, EOS
from regard.errors import CheckpointError, ConfigError
from regard.integrations.graph_models import model_graphs
from regard.integrations.onnx import OnnxModel, OnnxState, WeightKind, export_run, write_graphs
from regard.integrations.portable_run import OpenedRun, describe
from regard.models import EncoderDecoder, build
from regard.models.captioning import build_captioner
from regard.models.classifier import build_classifier
from regard.models.input_rows import split_inputs
from regard.models.language_model import build_language_model
from regard.models.rnn_decoder import DecoderOutput
from regard.tasks import Translator
from tests.tasks.tiny import ATTENTIVE, FAMILIES, FURTHER, MODEL, RECURRENT, TEXTS, configuration, trained, translator

VOCABULARY = 23
TOLERANCE = 1e-4
SECOND = {**ATTENTIVE, "type": "transformer"}
LATER = {"attention_dim": 3, "query_state": "current"}


def engine(model: nn.Module, config: RunConfig, folder: Path, weights: WeightKind = "float32") -> OnnxModel:
    graphs = model_graphs(model)
    write_graphs(graphs, folder, weights=weights)
    described = describe(OpenedRun(folder, config, model, {}, ()), graphs)
    for name, graph in described["graphs"].items():
        graph["file"] = f"{name}.onnx"
    (folder / "interface.json").write_text(json.dumps(described))
    return OnnxModel(folder)


@torch.inference_mode()
def steps_agree(model: Any, given: tuple[Any, ...], other: OnnxModel, inputs: Mapping[str, Tensor], *, batch: int, within: float) -> None:
    """Seven steps of three hypotheses, reordered after each, and a sentence that leaves: logits and weights are the same."""
    random = torch.Generator().manual_seed(1)
    state, there, tokens = model.start(*given), other.start(**inputs), torch.full((batch, 1), BOS)
    for number in range(7):
        logits, weights, state = model.step(tokens, state)
        found, attended, there = other.step(tokens, there)
        torch.testing.assert_close(found, logits, atol=within, rtol=0)
        if weights is not None:
            assert attended is not None
            torch.testing.assert_close(attended[..., : weights.shape[-1]], weights, atol=within, rtol=0)
        beams = torch.randint(0, tokens.shape[1], (batch, 3), generator=random)
        rows = torch.arange(batch)
        if number == 4:
            rows, beams, batch = rows[1:], beams[1:], batch - 1
        state, there = state.select(rows, beams), there.select(rows, beams)
        tokens = torch.randint(4, logits.shape[-1], (batch, 3), generator=random)


@pytest.mark.parametrize("family", [*FAMILIES, *FURTHER])
@pytest.mark.parametrize("size", [2, 11])
def test_a_translation_model_gives_the_same_logits_and_weights(family: str, size: int, tmp_path: Path) -> None:
    config = configuration(model={**FAMILIES, **FURTHER}[family])
    torch.manual_seed(3)
    model = build(config.model, source_size=VOCABULARY, target_size=VOCABULARY).eval()
    source, lengths = torch.randint(4, VOCABULARY, (3, size)), torch.tensor([size, max(1, size - 4), 1])
    other = engine(model, config, tmp_path)
    steps_agree(model, (source, lengths), other, {"tokens": source, "lengths": lengths}, batch=3, within=TOLERANCE)


# What combines two inputs, in every kind of model.
AREAS = {"max_area": 3, "key_mode": "features"}
PAIR: dict[str, Any] = {**RECURRENT, "cell": "lstm", "attention": {"attention_dim": 3, "query_state": "current"}}
PAIRS: dict[str, dict[str, Any]] = {
    **{
        f"{kind}{' of areas' * bool(area)}": {**SECOND, "area": area, "second": {"kind": kind}}
        for kind in ("joined", "serial", "parallel", "flat", "hierarchical")
        for area in (None, AREAS)
    },
    "serial, pre": {**SECOND, "norm": "pre", "second": {"kind": "serial"}},
    "crossed": {**ATTENTIVE, "type": "crossed", "residual": "asking", "second": {}},
    **{f"recurrent {kind}": {**PAIR, "second": {"kind": kind}} for kind in ("joined", "serial", "parallel", "flat", "hierarchical")},
    "recurrent, no attention": {**MODEL, "attention": None, "second": {"kind": "flat"}},
    "recurrent, window": {
        **PAIR,
        "attention": {**LATER, "score": "general", "window": "local_p", "radius": 2, "area": {"max_area": 2}},
        "second": {"kind": "hierarchical"},
    },
    "recurrent, heads": {
        **{**PAIR, "encoder_dim": 6, "decoder_dim": 12},
        "attention": {"score": "scaled_dot", "num_heads": 2, "query_state": "current", "area": {"max_area": 2}},
        "second": {"kind": "hierarchical"},
    },
}


def rows_of(parts: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Return rows with two inputs of so many tokens each, each followed by EOS; none: the row ends before the second."""

    def some(count: int) -> list[int]:
        return torch.randint(4, VOCABULARY, (max(0, count),)).tolist()

    rows = [[*some(one), EOS, *some(two), *[EOS] * (two >= 0)] for one, two in parts]
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True), lengths


@pytest.mark.parametrize("family", PAIRS)
@pytest.mark.parametrize("parts", [[(2, 5), (7, 1), (3, 0)], [(1, 2), (4, -1), (0, 6)]], ids=["whole", "missing"])
def test_a_model_of_two_inputs_gives_the_same_logits_and_weights(family: str, parts: list[tuple[int, int]], tmp_path: Path) -> None:
    config = configuration(model=PAIRS[family])
    torch.manual_seed(3)
    model = build(config.model, source_size=VOCABULARY, target_size=VOCABULARY, second_size=VOCABULARY).eval()
    rows, lengths = rows_of(parts)
    inputs = split_inputs(rows, lengths)
    given = {"tokens": inputs.first, "lengths": inputs.first_lengths}
    given |= {"second.tokens": inputs.second, "second.lengths": inputs.second_lengths}
    steps_agree(model, (rows, lengths), engine(model, config, tmp_path), given, batch=3, within=TOLERANCE)


# A grid of 4 x 4 cells, alone or in rectangles, in every kind of model.
PICTURE: dict[str, Any] = {"size": 8, "encoder": {"channels": [5], "depth": 1}}
BOXES: dict[str, Any] = {**PICTURE, "area": {"height": 2, "width": 3, "key_mode": "features", "layers": 1}}
CO_ATTENTION: dict[str, Any] = {**ATTENTIVE, "type": "crossed", "residual": "asking"}
PICTURES: dict[str, dict[str, Any]] = {
    **{kind: {**SECOND, "second": {"kind": kind, "image": PICTURE}} for kind in ("joined", "serial", "hierarchical")},
    "crossed": {**CO_ATTENTION, "second": {"image": PICTURE}},
    "crossed, non-local": {**CO_ATTENTION, "second": {"image": {**PICTURE, "encoder": {"channels": [5], "non_local": "concat"}}}},
    "hierarchical of areas": {**SECOND, "area": AREAS, "second": {"kind": "hierarchical", "image": BOXES}},
    "crossed of areas": {**CO_ATTENTION, "area": {"max_area": 2}, "second": {"image": BOXES}},
    **{f"recurrent {kind}": {**PAIR, "second": {"kind": kind, "image": PICTURE}} for kind in ("joined", "flat", "parallel")},
    "recurrent serial of areas": {**PAIR, "second": {"kind": "serial", "image": {**PICTURE, "area": {"height": 2, "width": 3}}}},
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_model_of_a_sentence_and_an_image_gives_the_same_logits_and_weights(kind: str, tmp_path: Path) -> None:
    config = configuration(model=PICTURES[kind])
    torch.manual_seed(3)
    model: Any = build(config.model, source_size=VOCABULARY, target_size=VOCABULARY).eval()
    images = torch.randn(3, 3, 8, 8)
    model.second_embedding.images = lambda numbers: images[numbers]
    cells = model.second_embedding.image_encoder.grid[0] ** 2
    rows = [[5, 6, EOS, *[0] * cells, EOS], [7, EOS, EOS], [8, 9, 4, EOS, *[2] * cells, EOS]]  # the second has no image
    lengths = torch.tensor([len(row) for row in rows])
    source = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    inputs = split_inputs(source, lengths)
    given = {"tokens": inputs.first, "lengths": inputs.first_lengths, "second.images": images, "second.lengths": inputs.second_lengths}
    steps_agree(model, (source, lengths), engine(model, config, tmp_path), given, batch=3, within=TOLERANCE)


SMALL = {"encoder": {"channels": [5, 7], "depth": 1}, "embed_dim": 12}
SHOWN = {**SMALL, "decoder_dim": 11, "feature_dim": 13, "attention_dim": 5}
CELLS = {**SMALL, "num_heads": 2, "ff_dim": 13, "encoder_layers": 2, "decoder_layers": 2}
CAPTIONERS = {
    "show": ShowConfig(**cast(Any, {**SHOWN, "area": None})),
    "show areas": ShowConfig(**cast(Any, {**SHOWN, "query_state": "current", "area": {"height": 3, "width": 2, "key_mode": "features"}})),
    "hard": ShowConfig(**cast(Any, {**SHOWN, "attention": "hard"})),
    "hard areas": ShowConfig(**cast(Any, {**SHOWN, "attention": "hard", "area": {"height": 2, "width": 3}})),
    "expected": ShowConfig(**cast(Any, {**SHOWN, "attention": "hard", "hard": {"mode": "expected"}})),
    "features": ShowConfig(**cast(Any, {**SHOWN, "encoder": {"type": "features", "grid": [2, 3], "dim": 5}, "area": {"height": 3}})),
    **{
        f"non-local {form}": ShowConfig(**cast(Any, {**SHOWN, "encoder": {"channels": [5, 7], "non_local": form}}))
        for form in get_args(NonLocalForm)
    },
    "transformer": CaptionTransformerConfig(**cast(Any, {**CELLS, "area": None})),
    "transformer areas": CaptionTransformerConfig(**cast(Any, {**CELLS, "area": {"width": 3, "value_mode": "mean"}, "norm": "pre"})),
}


@pytest.mark.parametrize("name", CAPTIONERS)
def test_a_captioner_gives_the_same_logits_and_weights(name: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = build_captioner(CAPTIONERS[name], image_size=19, vocab_size=VOCABULARY).eval()
    for path, statistic in model.named_buffers():
        if "running" in path:  # as training leaves them: not 0 and 1
            statistic.uniform_(0.5, 1.5)
    for path, weight in model.named_parameters():
        if path.endswith("non_local.output.weight"):  # not 0, which returns the input
            torch.nn.init.normal_(weight)
    images = torch.randn(3, 6, 5) if name == "features" else torch.randn(3, 3, 19, 19)
    other = engine(model, CaptioningConfig(), tmp_path)
    cells = torch.full((3,), model.grid[0] * model.grid[1])
    inputs = {"features" if name == "features" else "images": images}
    steps_agree(model, (images, cells), other, inputs, batch=3, within=TOLERANCE)


@pytest.mark.parametrize("attention", ["none", "plain", "key_value", "key_value_predict", "ngram"])
def test_a_language_model_gives_the_same_logits(attention: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    config = LanguageModelConfig(**cast(Any, {"embed_dim": 8, "hidden_size": 12, "window": 3, "num_layers": 2, "attention": attention}))
    model = build_language_model(config, vocab_size=VOCABULARY).eval()
    other = engine(model, LanguageConfig(), tmp_path)
    steps_agree(model, (3,), other, {"batch": torch.tensor([3])}, batch=3, within=TOLERANCE)


ENCODERS: dict[str, dict[str, Any]] = {
    "lstm": {"type": "rnn", "hidden_size": 5},
    "gru": {"type": "rnn", "cell": "gru", "num_layers": 2, "bidirectional": False, "hidden_size": 5},
    "transformer": {"type": "transformer", "num_heads": 2, "ff_dim": 13},
    "crossed": {"type": "crossed", "num_heads": 2, "ff_dim": 13, "shared": False},
    "crossed own": {"type": "crossed", "num_heads": 2, "ff_dim": 13, "residual": "own", "norm": "post"},
}


@pytest.mark.parametrize("pooling", ["structured", "max", "mean", "last"])
@pytest.mark.parametrize(
    ("texts", "encoder"), [(count, name) for count in (1, 2) for name in ENCODERS if count == 2 or "crossed" not in name]
)
def test_a_labeller_gives_the_same_logits_and_weights(texts: int, encoder: str, pooling: str, tmp_path: Path) -> None:
    model: dict[str, Any] = {"embed_dim": 8, "encoder": ENCODERS[encoder], "pooling": pooling, "attention_dim": 5, "hops": 3}
    model |= {"fusion": "features" if pooling == "max" else "gated", "mlp_dim": None} if texts == 2 else {"mlp_dim": 7}
    config = validate({"model": model}, "test", kind=EntailmentConfig if texts == 2 else ClassificationConfig)
    torch.manual_seed(3)
    own = build_classifier(config.model, vocab_size=VOCABULARY, classes=3, unknown=1).eval()
    tokens = [torch.randint(4, VOCABULARY, (3, size)) for size in (11, 7)][:texts]
    lengths = [torch.tensor([11, 5, 1]), torch.tensor([2, 7, 3])][:texts]
    names = ["premise.", "hypothesis."] if texts == 2 else [""]
    given = {f"{name}tokens": ids.numpy() for name, ids in zip(names, tokens, strict=True)}
    given |= {f"{name}lengths": count.numpy() for name, count in zip(names, lengths, strict=True)}
    found = engine(own, config, tmp_path).run("model", given)
    with torch.inference_mode():
        expected = own.classify(tokens, lengths)
    np.testing.assert_allclose(found["logits"], expected.logits, atol=TOLERANCE, rtol=0)
    for name, pooled in zip(names, expected.pooled, strict=True):
        if pooled.weights is not None:
            np.testing.assert_allclose(found[f"{name}weights"], pooled.weights, atol=TOLERANCE, rtol=0)


class There(EncoderDecoder[OnnxState]):
    """An exported model in the place of a run's own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.other = OnnxModel(folder)
        self.output = nn.Linear(1, 1)  # tells the device
        self.calls = 0

    def start(self, source: Tensor, source_lengths: Tensor) -> OnnxState:
        return self.other.start(tokens=source, lengths=source_lengths)

    def decoding_step(self, tokens: Tensor, state: OnnxState) -> tuple[Tensor, Tensor | None, OnnxState]:
        self.calls += 1
        return self.other.step(tokens, state)

    def decoder_step(self, tokens: Tensor, state: OnnxState) -> tuple[Tensor, Tensor | None, OnnxState]:
        raise NotImplementedError

    def decode(self, source: Tensor, source_lengths: Tensor, target_input: Tensor, *, need_weights: bool = True) -> DecoderOutput:
        raise NotImplementedError


@pytest.mark.parametrize("beam_size", [1, 5])
@pytest.mark.parametrize("family", ["gru", "luong", "transformer", "area", "crossed"])
def test_the_one_beam_search_finds_the_same_texts(family: str, beam_size: int, tmp_path: Path) -> None:
    own = translator(model=FAMILIES[family], decoding={"beam_size": beam_size})
    engine(own.run.model, own.run.config, tmp_path)
    model = There(tmp_path)
    other = Translator(own.run._replace(model=model))
    lines = [*TEXTS, *(text[::-1] for text in TEXTS), *(f"{one} {two}" for one in TEXTS for two in TEXTS)]
    expected = own.translate(lines)
    assert len({found.text for found in expected}) > 5
    assert [found.text for found in other.translate(lines)] == [found.text for found in expected]
    assert model.calls > 5


def test_outputs_that_are_not_asked_for_are_left_out(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = build(TransformerConfig(**cast(Any, ATTENTIVE)), source_size=VOCABULARY, target_size=VOCABULARY).eval()
    other = engine(model, configuration(model=SECOND), tmp_path)
    state = other.start(tokens=torch.tensor([[4, 5, 3]]), lengths=torch.tensor([3]))
    given = {"tokens": np.array([[BOS]]), "position": np.array(0), **state.sources, **state.states}
    assert list(other.run("step", given, ["logits"])) == ["logits"]


def test_the_interface_names_what_the_files_take_and_give(tmp_path: Path) -> None:
    import onnx

    run, folder = trained(tmp_path, model=FAMILIES["area"]), tmp_path / "out"
    export_run(run, folder)
    described = json.loads((folder / "interface.json").read_text(encoding="utf-8"))
    for graph in described["graphs"].values():
        model = onnx.load(str(folder / graph["file"]))
        onnx.checker.check_model(model, full_check=True)
        assert [port["name"] for port in graph["inputs"]] == [port.name for port in model.graph.input]
        assert [port["name"] for port in graph["outputs"]] == [port.name for port in model.graph.output]
    assert described["special"] == {"pad": 0, "unknown": 1, "begin": 2, "end": 3}
    assert described["max_source_length"] == 37
    assert (folder / described["vocabularies"]["source"]).read_bytes() == (run / "vocabulary.json").read_bytes()


def test_the_shortlist_that_a_run_decodes_with_comes_along(tmp_path: Path) -> None:
    run = trained(tmp_path, decoding={"shortlist": True})
    with pytest.raises(ConfigError, match=r"decoding\.shortlist: .* has none"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    content = Shortlist([5], {6: [7, 4]}).to_bytes()
    (run / "shortlist.json").write_bytes(content)
    export_run(run, tmp_path / "out")
    assert (tmp_path / "out" / "shortlist.json").read_bytes() == content


def test_smaller_weights_make_smaller_files_and_nearly_the_same_logits(tmp_path: Path) -> None:
    sizes, model = {}, {**SECOND, "embed_dim": 96, "ff_dim": 211}
    torch.manual_seed(3)
    own = build(configuration(model=model).model, source_size=503, target_size=503).eval()
    source, lengths = torch.randint(4, 503, (3, 7)), torch.tensor([7, 5, 1])
    kinds: tuple[tuple[WeightKind, float], ...] = (("float32", 1e-4), ("float16", 5e-3), ("int8", 0.3))
    for kind, within in kinds:
        folder = tmp_path / kind
        folder.mkdir()
        other = engine(own, configuration(model=model), folder, kind)
        steps_agree(own, (source, lengths), other, {"tokens": source, "lengths": lengths}, batch=3, within=within)
        sizes[kind] = (folder / "step.onnx").stat().st_size
    assert sizes["float16"] < 0.6 * sizes["float32"]
    assert sizes["int8"] < 0.45 * sizes["float32"]


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ({**SECOND, "area": {"top_k": 2}}, r"area\.top_k"),
        ({**SECOND, "copy_attention": True}, r"model\.copy_attention"),
        ({**SECOND, "normalizer": "entmax15"}, "normalizer: entmax15"),
        ({**MODEL, "attention": {"attention_dim": 3, "coverage": True}}, r"attention\.coverage"),
    ],
)
def test_what_cannot_be_exported_is_named(model: dict[str, Any], named: str) -> None:
    built = build(configuration(model=model).model, source_size=VOCABULARY, target_size=VOCABULARY)
    with pytest.raises(ConfigError, match=named):
        model_graphs(built)


def test_sampled_attention_and_unknown_modules_are_named() -> None:
    hard = ShowConfig(**cast(Any, {**SHOWN, "attention": "hard", "hard": {"mode": "sample"}}))
    with pytest.raises(ConfigError, match=r"model\.hard\.mode"):
        model_graphs(build_captioner(hard, image_size=19, vocab_size=VOCABULARY))
    with pytest.raises(ConfigError, match="Linear"):
        model_graphs(nn.Linear(2, 3))


def test_the_command_writes_a_folder_and_names_what_is_wrong(tmp_path: Path) -> None:
    run, out = trained(tmp_path), tmp_path / "out"
    given = ["export", str(run), "--format", "onnx", "--out", str(out)]
    found = CliRunner().invoke(app, given)
    assert (found.exit_code, found.stdout) == (0, f"{out}: ONNX graphs, described in interface.json\n"), found.output
    assert {path.name for path in out.iterdir()} == {"encoder.onnx", "step.onnx", "interface.json", "vocabulary.json"}
    again = CliRunner().invoke(app, given)
    assert (again.exit_code, "not empty" in str(again.exception)) == (1, True)
    halved = CliRunner().invoke(app, ["export", str(run), "--format", "ctranslate2", "--weights", "int8", "--out", str(tmp_path / "more")])
    assert isinstance(halved.exception, ConfigError)
    with pytest.raises(CheckpointError, match=r"interface\.json"):
        OnnxModel(run)
    (out / "step.onnx").write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match=r"step\.onnx: missing or damaged; export it again"):
        OnnxModel(out)
    for content in ('{"graphs": []}', '{"graphs": {}}', '{"graphs": 3}'):
        (out / "interface.json").write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match=r"interface\.json: missing or damaged"):
            OnnxModel(out)
