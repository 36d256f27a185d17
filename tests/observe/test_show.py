"""`regard.view` of Hugging Face models and of what they return."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.cli import main
from regard.errors import ConfigError, DataError
from regard.observe.outputs import recording_of
from regard.observe.pretrained import records_of, text_records, watch_text
from regard.viewer import read_records

transformers = pytest.importorskip("transformers", reason="the extra hf is not installed")

WORDS = ["[PAD]", "[UNK]", "[BOS]", "[EOS]", "the", "cat", "sat", "on", "a", "mat", "der", "Hund"]
TEXT = "the cat sat on the mat"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "bos_token": "[BOS]", "eos_token": "[EOS]"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)


@pytest.fixture
def bert() -> Any:
    config = {"vocab_size": 12, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8}
    return transformers.BertModel(transformers.BertConfig(**config, max_position_embeddings=13), add_pooling_layer=False)


@pytest.fixture
def gpt2() -> Any:
    config = transformers.GPT2Config(vocab_size=12, n_embd=12, n_layer=2, n_head=3, bos_token_id=2, eos_token_id=3, pad_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


@pytest.fixture
def marian() -> Any:
    sizes = {
        f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("attention_heads", 3), ("ffn_dim", 8))
    }
    special = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 0, "forced_eos_token_id": 3}
    return transformers.MarianMTModel(
        transformers.MarianConfig(vocab_size=12, d_model=12, max_position_embeddings=32, **sizes, **special)
    ).eval()


def weights(model: Any, tokenizer: Any, text: str) -> Any:
    """What the model itself returns for one text alone."""
    model.set_attn_implementation("eager")
    return model.eval()(**tokenizer(text, return_tensors="pt"), output_attentions=True)


def test_an_encoder_shows_each_text_of_a_batch_as_it_is_alone(bert: Any, tokenizer: Any) -> None:
    bert.train()
    seen, keys, queries, *_ = watch_text(bert, tokenizer, [TEXT, "a mat"])
    assert (keys, queries) == ([TEXT.split(), ["a", "mat"]], None)
    assert all(module.training for module in bert.modules())  # left as it was
    for record, text in zip(seen.records(keys), (TEXT, "a mat"), strict=True):
        assert len(record.maps) == 2
        for found, expected in zip(record.maps, weights(bert, tokenizer, text).attentions, strict=True):
            np.testing.assert_allclose(found.weights, expected[0].detach().numpy(), atol=1e-6)
    assert "the cat" not in regard.view(bert, tokenizer, "a mat").html
    assert '"sat"' in regard.view(bert, tokenizer, TEXT).html


def test_left_padding_keeps_its_columns(gpt2: Any, tokenizer: Any) -> None:
    tokenizer.padding_side = "left"
    try:
        _, keys, *_ = watch_text(gpt2, tokenizer, [TEXT, "a mat"])
    finally:
        tokenizer.padding_side = "right"
    assert keys == [TEXT.split(), ["[PAD]"] * 4 + ["a", "mat"]]


def test_an_encoder_decoder_reads_its_own_greedy_output_or_a_given_one(marian: Any, tokenizer: Any) -> None:
    ids = tokenizer(TEXT, return_tensors="pt")
    written = marian.generate(**ids, do_sample=False, num_beams=1, max_new_tokens=6)[0]
    marian.generation_config.max_new_tokens = 6
    seen, _, queries, *_ = watch_text(marian, tokenizer, TEXT)
    assert queries == [tokenizer.convert_ids_to_tokens(written[:-1])]
    assert seen.map("model.decoder.layers.0.encoder_attn").weights.shape == (1, 3, len(written) - 1, 6)
    _, keys, queries, *_ = watch_text(marian, tokenizer, [(TEXT, "der Hund sat"), ("a mat", "der")])
    assert (keys[1], queries) == (["a", "mat"], [["[PAD]", "der", "Hund"], ["[PAD]", "der"]])
    assert '"Hund"' in regard.view(marian, tokenizer, (TEXT, "der Hund sat")).html


@pytest.mark.parametrize("beams", [1, 3])
def test_outputs_of_a_generation_are_what_watch_sees(gpt2: Any, marian: Any, tokenizer: Any, beams: int) -> None:
    ids = tokenizer(TEXT, return_tensors="pt")
    how = {"num_beams": beams, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    for model in (gpt2, marian):
        model.set_attn_implementation("eager")
        model.generation_config.forced_eos_token_id = None
        with regard.watch(model) as seen:
            outputs = model.generate(**ids, **how, output_attentions=True)
        found = recording_of(outputs).maps()
        expected = (seen if beams == 1 else seen.of_beams(outputs.beam_indices)).maps()
        assert len(found) == len(expected) == (2 if model is gpt2 else 6)
        for one, other in zip(found, expected, strict=True):
            assert one.kind == other.kind
            torch.testing.assert_close(one.weights, other.weights, atol=1e-6, rtol=0)
    tokens = tokenizer.convert_ids_to_tokens(outputs.sequences[0])[:-1]
    assert "decoder.layers.1.cross" in regard.view(outputs, TEXT.split(), tokens).html


def test_outputs_of_a_forward_pass_are_shown(bert: Any, tokenizer: Any) -> None:
    outputs = weights(bert, tokenizer, TEXT)
    (record,) = recording_of(outputs).records(TEXT.split())
    assert [found.name for found in record.maps] == ["layers.0.self", "layers.1.self"]
    np.testing.assert_array_equal(record.maps[1].weights, outputs.attentions[1][0].detach().numpy())


@pytest.mark.parametrize(
    ("attentions", "message"),
    [
        ("abc", r"attentions\[0\]: expected weights \(B, H, T, S\), found 'a'"),
        ((1, 2), r"attentions\[0\]: expected weights \(B, H, T, S\), found shape \(\)"),
        ((None, torch.ones(2, 3, 3)), r"attentions\[1\]: expected weights \(B, H, T, S\), found shape \(2, 3, 3\)"),
        (torch.ones(2, 3, 3, 3), r"attentions\[0\]: expected weights \(B, H, T, S\), found shape \(3, 3, 3\)"),
    ],
)
def test_outputs_of_another_kind_are_named(attentions: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        regard.view(SimpleNamespace(attentions=attentions), ["a", "b", "c"])


def test_layers_may_be_one_tensor_or_arrays() -> None:
    layers = torch.rand(2, 1, 3, 3, 3).softmax(-1)
    pages = [regard.view(SimpleNamespace(attentions=each), ["a", "b", "c"]).html for each in (tuple(layers), layers, [*layers.numpy()])]
    assert pages[0] == pages[1] == pages[2]


def test_outputs_as_a_tuple_are_refused(bert: Any) -> None:
    outputs = bert(torch.tensor([[5, 6, 7]]), output_attentions=True, return_dict=False)
    assert outputs[0].requires_grad
    with pytest.raises(DataError, match="found rows of unequal length or other things than numbers"):
        regard.view(outputs, ["a", "b", "c"])


def test_two_texts_of_a_classifier_are_one_input_and_its_classes_are_shown(tokenizer: Any) -> None:
    names = {0: "yes", 1: "no", 2: "maybe", 3: "no", 4: "never", 5: "always"}
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8}
    model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=12, id2label=names, label2id={}, **sizes)).eval()
    for given in ("the cat\ta mat", ("the cat", "a mat")):
        (record,) = records_of(model, tokenizer, [given]) if isinstance(given, str) else text_records(model, tokenizer, given)
        assert record.items["tokens"].tokens == ["the", "cat", "a", "mat"]
        with torch.no_grad():
            expected = model(**tokenizer("the cat", "a mat", return_tensors="pt")).logits[0].softmax(-1)
        assert record.prediction is not None
        distinct = ["yes", "no", "maybe", "no (3)", "never", "always"]
        best = expected.topk(5)
        assert list(record.prediction.probabilities) == [distinct[number] for number in best.indices]
        np.testing.assert_allclose(list(record.prediction.probabilities.values()), best.values, atol=1e-6)
        assert record.prediction.label == distinct[int(expected.argmax())]
    model.config.problem_type = "multi_label_classification"
    (record,) = text_records(model, tokenizer, "the cat")
    assert record.prediction is not None
    assert sum(record.prediction.probabilities.values()) > 1.5, "each class has a probability of its own"


def test_texts_of_a_decoder_without_padding_are_shown_with_the_alternatives_of_their_tokens(gpt2: Any, tokenizer: Any) -> None:
    padding, tokenizer.pad_token = tokenizer.pad_token, None
    try:
        records = text_records(gpt2, tokenizer, [TEXT, "a mat"])
    finally:
        tokenizer.pad_token = padding
    assert [len(record.items["tokens"]) for record in records] == [6, 2]
    first, second = records[1].alternatives["tokens"]
    assert first == [], "nothing before the first token predicts it"
    ids = tokenizer("a mat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        best = gpt2(ids).logits[0, 0].softmax(-1).topk(5)
    assert [token for token, _ in second] == tokenizer.convert_ids_to_tokens(best.indices.tolist())
    np.testing.assert_allclose([value for _, value in second], best.values, atol=1e-6)


def test_a_classifier_with_a_decoder_reads_its_input_twice(tokenizer: Any) -> None:
    names = {"layers": 1, "attention_heads": 3, "ffn_dim": 8}
    sizes = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in names.items()}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 9, "decoder_start_token_id": 9}
    config = transformers.BartConfig(vocab_size=12, d_model=12, max_position_embeddings=32, num_labels=3, **sizes, **special)
    model = transformers.BartForSequenceClassification(config).eval()
    (record,) = text_records(model, tokenizer, ("the cat", "a mat"))
    assert record.items["target"].tokens == ["mat", "the", "cat", "a"], "the last token starts the decoder's input"
    with torch.no_grad():
        expected = model(**tokenizer("the cat", "a mat", return_tensors="pt")).logits[0].softmax(-1)
    assert record.prediction is not None
    assert max(record.prediction.probabilities.values()) == pytest.approx(float(expected.max()))
    with pytest.raises(ConfigError, match=r"leave-one-out: BartForSequenceClassification takes no vectors in place of tokens"):
        text_records(model, tokenizer, "the cat mat", methods=["leave-one-out"])


def test_a_vision_model_is_shown_over_its_image(tmp_path: Path) -> None:
    from PIL import Image

    sizes = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 8, "image_size": 12, "patch_size": 4}
    model = transformers.ViTModel(transformers.ViTConfig(**sizes), add_pooling_layer=False).eval()
    Image.fromarray(np.arange(432, dtype=np.uint8).reshape(12, 12, 3)).save(tmp_path / "it.png")

    def processor(images: Any, return_tensors: str) -> dict[str, torch.Tensor]:
        assert (images.mode, return_tensors) == ("RGB", "pt")
        return {"pixel_values": torch.from_numpy(np.array(images)).permute(2, 0, 1)[None] / 255}

    (record,) = records_of(model, processor, [tmp_path / "it.png"])
    assert [found.weights.shape for found in record.maps] == [(3, 10, 9)] * 2
    assert "image" in regard.view(model, processor, image=tmp_path / "it.png").html
    (tmp_path / "no.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"no\.png: cannot be read as an image"):
        records_of(model, processor, [tmp_path / "no.png"])


def test_what_cannot_be_shown_is_said(bert: Any, gpt2: Any, tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"view\(model, tokenizer"):
        regard.view(bert)
    with pytest.raises(DataError, match="20 tokens, and the model takes at most 13"):
        regard.view(bert, tokenizer, "a " * 20)
    with pytest.raises(DataError, match="has no tokens"):
        regard.view(bert, tokenizer, "")
    with pytest.raises(DataError, match="only pairs"):
        regard.view(gpt2, tokenizer, (TEXT, "der Hund"))
    with pytest.raises(DataError, match="expected a text or a pair of texts, found 3"):
        regard.view(bert, tokenizer, 3)
    with pytest.raises(DataError, match=r"hold no attention weights.*output_attentions"):
        regard.view(SimpleNamespace(attentions=None), ["a"])


def test_the_command_shows_a_folder(
    bert: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*words: object) -> int:
        monkeypatch.setattr("sys.argv", ["regard", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return int(left.value.code or 0)

    folder, records = tmp_path / "bert", tmp_path / "records.json"
    bert.save_pretrained(folder)
    for settings in (None, "tokenizer_config.json"):
        if settings is not None:
            (folder / settings).write_text("{}")
        capsys.readouterr()
        assert call("view", "--hf", folder, "--text", TEXT) == 2
        assert f"{folder}: holds no tokenizer; expected tokenizer.json or vocab.txt" in capsys.readouterr().err
    (folder / "tokenizer.json").write_text("{}")
    assert call("view", "--hf", folder, "--text", TEXT) == 2
    assert "its tokenizer cannot be read" in capsys.readouterr().err
    tokenizer.save_pretrained(folder)
    assert call("view", "--hf", folder, "--text", TEXT, "--text", "a mat", "-o", records) == 0
    assert capsys.readouterr().out == f"{records}: 2 examples\n"
    assert [record.title for record in read_records(records)] == [TEXT, "a mat"]
    assert call("view", "--hf", folder, "--text", TEXT, "--method", "rollout", "--method", "flow", "-o", records) == 0
    assert [found.method for found in read_records(records)[0].maps] == ["", "", "rollout", "flow"]
    capsys.readouterr()
    assert call("view", "--hf", folder, "--text", TEXT, "--method", "rollout") == 0
    assert capsys.readouterr().out.startswith("rollout\n"), "the terminal draws the scores that were asked for"
    assert call("view", "--hf", folder, "--text", TEXT, "--method", "rollout", "--map", "encoder.layer.1.attention.self") == 0
    assert capsys.readouterr().out.startswith("encoder.layer.1.attention.self")
    assert call("view", "--hf", folder, "--text", TEXT, "--method", "alti") == 2
    assert "alti: BertModel returns no probabilities" in capsys.readouterr().err
    assert call("view", "--hf", folder, "--image", tmp_path / "a.png") == 2
    assert "has a tokenizer and no image processor; give texts, not images" in capsys.readouterr().err
    assert call("view", folder, "--text", TEXT) == 2
    assert f"to show a Hugging Face model, say --hf {folder}" in capsys.readouterr().err
    assert call("view", "--hf", folder, tmp_path) == 2
    assert "give run folders or record files, or --hf" in capsys.readouterr().err
    assert call("view", "--hf", folder, "--text", "a", "--image", "b.png") == 2
    assert "no model here reads both" in capsys.readouterr().err
