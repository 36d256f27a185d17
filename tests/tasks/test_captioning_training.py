"""Captioners through all that a run is: trained, resumed, opened, used, measured, looked at; and what their data may be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from benchmarks.scenes import conventional as told_by_convention
from benchmarks.scenes import measure
from regard.cli import app
from regard.config import DecodingConfig
from regard.data.captions import CaptionExample, CaptionSet, read_captions
from regard.data.image_cache import ImageCache
from regard.data.image_features import FeatureFile, write_features
from regard.data.images import Preprocessing
from regard.data.synthetic.scene_files import read_scenes, write_scenes
from regard.data.synthetic.scenes import SceneSettings, generate_scenes
from regard.data.vocabulary import UNK, Vocabulary
from regard.decoding import Hypothesis, SamplingOptions
from regard.errors import CheckpointError, ConfigError, DataError
from regard.tasks.captioning_data import build_preprocessing, derangement, encode_captions
from regard.tasks.captioning_evaluation import attention_scores, describe_captions, evaluate_captioning
from regard.tasks.captioning_prediction import Caption, Captioner
from regard.tasks.captioning_run import open_caption_run
from regard.tasks.captioning_training import check_captioning_settings, train_captioning
from regard.tasks.translation_prediction import Translator
from regard.viewer import read_records
from tests.tasks.tiny_captions import FAMILIES, SHOW, configuration, conventional, trained, write_set
from tests.training import tiny


def stop_at(moment: str) -> Callable[[str], None]:
    def on_event(name: str) -> None:
        if name == moment:
            raise tiny.Killed

    return on_event


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates; nobody changes it."""
    return trained(tmp_path_factory.mktemp("captions"))


@pytest.mark.parametrize("name", FAMILIES)
def test_a_killed_run_resumes_exactly(tmp_path: Path, name: str) -> None:
    captions, _ = write_set(tmp_path)
    together = {"captions_per_image": 2} if "hard" in name or "areas" in name else {}
    limits = {"max_updates": 5, "save_every": 1, "evaluate_every": 2, "metric": "cider", "eval_metrics": ["bleu"]}
    config = configuration(captions, FAMILIES[name], training=limits, data=together)
    straight = train_captioning(config, tmp_path / "straight")
    for moment in ("update 3", "evaluate 4"):
        with pytest.raises(tiny.Killed):
            train_captioning(config, tmp_path / "killed", on_event=stop_at(moment))
    resumed = train_captioning(config, tmp_path / "killed")
    assert resumed.weights_sha256 == straight.weights_sha256
    assert resumed.metrics == straight.metrics
    assert {"loss", "cider", "bleu"} <= straight.metrics.keys()
    weights = [(tmp_path / kind / "model" / "model.safetensors").read_bytes() for kind in ("straight", "killed")]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_trained_run_captions_measures_and_shows_where_it_looked(tmp_path: Path, name: str) -> None:
    folder = trained(tmp_path, FAMILIES[name])
    captioner = Captioner.open(folder)
    captions, regions = write_set(tmp_path, "test", 7, start=100)
    examples = read_captions(captions, regions=regions)
    together = captioner.caption(examples.images, need_attention=True)
    for image, item in zip(examples.images, together, strict=True):
        (alone,) = captioner.caption([image])
        assert alone.text == item.text
        assert item.hypotheses[0].attention is not None
        assert item.hypotheses[0].attention.sum(1) == pytest.approx(1.0, abs=1e-5)
    evaluation = evaluate_captioning(captioner, examples)
    names = [score.name for score in evaluation.scores]
    assert names[:9] == ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D", "CIDEr", "perplexity", "token accuracy"]
    assert [item.text for item in evaluation.captions] == [item.text for item in together]
    assert len(evaluation.to_json()["scores"]) == len(names)
    lines: list[str] = []
    describe_captions(evaluation, lines.append)
    assert len(lines) == len(names)
    for record in (captioner.record(examples.images[0]), captioner.record(examples.images[0], text="a red circle")):
        assert (record.items["image"].rows, record.items["image"].columns) == (8, 8)
        assert record.items["image"].image.startswith("data:image/png;base64,")
        assert record.maps[0].kind == "image"
        assert record.matrix("image").weights.sum(1) == pytest.approx(1.0, abs=1e-5)
        has_areas = [each for each in record.maps if each.areas is not None]
        assert bool(has_areas) == ("area" in FAMILIES[name])
        assert json.loads(json.dumps(record.to_json()))["items"]["caption"]["tokens"] == record.target
    assert record.target == ["a", "red", "circle", "</s>"]


def test_scenes_are_learned_in_seconds_and_attention_points(tmp_path: Path) -> None:
    settings = SceneSettings(size=32, objects=(2, 2), radius=(4, 5), colours=("red", "blue", "white"), shapes=("square", "cross"))
    for name, count, start in (("train", 400, 0), ("test", 60, 5000)):
        write_scenes(tmp_path, name, map(conventional, generate_scenes(count, seed=5, start=start, settings=settings)))
    model = {
        **{"embed_dim": 24, "decoder_dim": 32, "attention_dim": 24, "feature_dim": 24, "dropout": 0.0},
        "encoder": {"channels": [12, 16], "depth": 1},
    }
    training = {"max_updates": 220, "evaluate_every": 220, "epochs": 99, "batch_tokens": 200}
    training |= {"learning_rate": 0.006, "schedule": "cosine", "warmup_updates": 30}
    config = configuration(tmp_path / "train.tsv", model, training=training, decoding={"beam_size": 1})
    train_captioning(config, tmp_path / "run")
    examples = read_captions(tmp_path / "test.tsv", regions=tmp_path / "test.regions.jsonl")
    evaluation = evaluate_captioning(Captioner.open(tmp_path / "run"), examples)
    scenes = read_scenes(tmp_path / "test.regions.jsonl")
    true = np.mean([scene.is_true(item.text) for scene, item in zip(scenes, evaluation.captions, strict=True)])
    scores = {score.name: score.value for score in evaluation.scores}
    assert true >= 0.8
    assert scores["pointing accuracy"] >= 2 * scores["random cell"]


def test_bad_images_get_an_error_each_and_the_others_a_caption(run: Path, tmp_path: Path) -> None:
    good, broken, empty = tmp_path / "good.png", tmp_path / "broken.jpg", tmp_path / "empty.png"
    Image.new("L", (40, 30), 90).save(good)
    broken.write_bytes(good.read_bytes()[:60])
    empty.touch()
    captioner = Captioner.open(run)
    found = captioner.caption([broken, good, empty, tmp_path / "missing.png", good, good, good])
    assert [item.error is None for item in found] == [False, True, False, False, True, True, True]
    assert [item.source for item in found][:4] == [broken, good, empty, tmp_path / "missing.png"]
    assert len({item.text for item in found if item.error is None}) == 1
    for item in found[0], found[2], found[3]:
        assert str(item.source) in str(item.error)
        assert item.to_json() == {"image": str(item.source), "error": item.error}
    assert captioner.caption([]) == []
    assert [item.error is None for item in captioner.caption([empty])] == [False]


def test_what_is_drawn_for_an_image_does_not_depend_on_its_batch(run: Path, tmp_path: Path) -> None:
    captioner = Captioner.open(run)
    captions, _ = write_set(tmp_path, "test", 6, start=200)
    images = read_captions(captions).images
    found = []
    for size in (2, 5):
        torch.manual_seed(9)
        decoding = captioner.run.config.decoding.model_copy(update={"batch_size": size})
        found.append(
            [item.texts for item in captioner.describe(tensor_of(captioner, images), decoding=decoding, sampling=SamplingOptions())]
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("soft_batches", [0, 1])
def test_hard_attention_from_the_first_batch_is_advised_against(tmp_path: Path, soft_batches: int, messages: list[str]) -> None:
    trained(tmp_path, {**SHOW, "attention": "hard", "hard": {"soft_batches": soft_batches}})
    assert any("hard attention seldom learns" in line for line in messages) == (soft_batches == 0)


def tensor_of(captioner: Captioner, images: Any) -> torch.Tensor:
    from regard.tasks.captioning_data import build_preprocessing

    how = build_preprocessing(captioner.run.config.image)
    return torch.stack([how.read(image) for image in images])


def test_hard_attention_decodes_in_three_modes(run: Path, tmp_path: Path) -> None:
    hard = trained(tmp_path, FAMILIES["hard"], training={"max_updates": 6, "learning_rate": 0.05})
    captions, _ = write_set(tmp_path, "test", 5, start=300)
    images = read_captions(captions).images
    looked = {}
    for mode in ("argmax", "sample", "expected"):
        captioner = Captioner.open(hard)
        captioner.choose(mode)
        torch.manual_seed(2)
        attention = captioner.caption(images, need_attention=True)[0].hypotheses[0].attention
        assert attention is not None
        looked[mode] = attention
    one_hot = {mode: bool(((weights == 0) | (weights == 1)).all()) for mode, weights in looked.items()}
    assert one_hot == {"argmax": True, "sample": True, "expected": False}
    with pytest.raises(ConfigError, match=r"expected sample, argmax or expected, with a run of model\.attention=hard"):
        Captioner.open(run).choose("argmax")
    with pytest.raises(ConfigError, match="attention mean: expected"):
        Captioner.open(hard).choose("mean")


def test_preprocessing_is_kept_with_the_model(tmp_path: Path) -> None:
    folder = trained(tmp_path, image={"size": 24, "fit": "crop", "keep": 0.9, "mean": [0.1, 0.2, 0.3], "std": [0.5, 0.6, 0.7]})
    captioner = Captioner.open(folder)
    image = captioner.run.config.image
    assert (image.size, image.fit, image.keep, image.mean, image.std) == (24, "crop", 0.9, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    Image.new("RGB", (50, 40), (10, 20, 30)).save(tmp_path / "a.png")
    assert captioner.record(tmp_path / "a.png").items["image"].size == (24, 24)


def test_the_image_blind_control_gives_every_image_the_captions_of_another(tmp_path: Path) -> None:
    found = derangement(11, seed=4)
    assert sorted(found) == list(range(11))
    assert all(number != other for number, other in enumerate(found))
    assert derangement(11, seed=4) == found != derangement(11, seed=5)
    captions, _ = write_set(tmp_path)
    digests = set()
    for shuffled in (False, True):
        config = configuration(captions, data={"shuffle_images": shuffled})
        digests.add(train_captioning(config, tmp_path / f"run {shuffled}").weights_sha256)
    assert len(digests) == 2


def test_captions_of_an_image_come_together_each_once_an_epoch(tmp_path: Path) -> None:
    names, rows = [f"{number}.png" for number in range(9)], []
    for number, name in enumerate(names):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name)
        rows += [f"{name}\t{'a ' * (1 + (number + place) % 5)}dog" for place in range((5, 5, 7, 4, 5, 1, 5, 6, 5)[number])]
    captions = tmp_path / "captions.tsv"
    captions.write_text("\n".join(rows) + "\n", encoding="utf-8")
    config = configuration(captions, data={"captions_per_image": 3}, image={"size": 8, "mean": [0, 0, 0], "std": [1, 1, 1]})
    examples = read_captions(captions)
    vocabulary = Vocabulary.train([text for _, text in examples.pairs], kind="word", size=50)
    store = ImageCache(examples.images, build_preprocessing(config.image), tmp_path / "cache")
    corpus = encode_captions(examples, store, vocabulary, config, cells=4, name="test")
    plans = [corpus.plan(batch_tokens=40, seed=1, epoch=epoch) for epoch in (1, 2)]
    assert corpus.plan(batch_tokens=40, seed=1, epoch=1) == plans[0] != plans[1]
    for plan in plans:
        assert sorted(row for planned in plan for row in planned.indices) == list(range(43))
        encoded = 0
        for planned in plan:
            batch = corpus.batch(planned)
            each = len(planned.indices) // len(batch.source)
            encoded += len(batch.source)
            found = [round(float(value) * 255) for value in batch.source[:, 0, 0, 0]]
            assert [number for number in found for _ in range(each)] == [corpus.picks[row] for row in planned.indices]
            assert planned.tokens == int(batch.target_lengths.sum())
            assert len(batch.source_lengths) == len(batch.source)
            assert batch.target_input.numel() <= 40 or len(batch.source) == 1
        assert encoded == 2 * 5 + 3 + 2 + 1 + 2, "43 captions, three at a time: 18 images to encode"


def test_a_run_begins_with_the_encoder_of_another(run: Path, tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path)
    start = {**FAMILIES["transformer"], "encoder": {"channels": [3, 5], "start": str(run), "dropout": 0.1}}
    # A rate of next to nothing: what it begins with is what it ends with.
    still = {"learning_rate": 1e-12, "max_updates": 1}
    train_captioning(configuration(captions, start, training=still), tmp_path / "second")
    encoders = [open_caption_run(folder).model.image_encoder for folder in (run, tmp_path / "second")]
    for (name, one), other in zip(encoders[0].named_parameters(), encoders[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    # Resumed, it goes on with its own, even where the other is gone.
    gone = {**start, "encoder": {**start["encoder"], "start": str(tmp_path / "other")}}
    shutil.copytree(run, tmp_path / "other")
    longer = configuration(captions, gone, training={"max_updates": 4, "save_every": 1})
    with pytest.raises(tiny.Killed):
        train_captioning(longer, tmp_path / "third", on_event=stop_at("update 3"))
    shutil.rmtree(tmp_path / "other")
    assert train_captioning(longer, tmp_path / "third").step == 4


@pytest.mark.parametrize(
    ("encoder", "parts", "message"),
    [
        ({"channels": [3, 6]}, {}, r"was trained with model\.encoder\.channels \(3, 5\) instead of \(3, 6\)"),
        ({"channels": [3, 5], "non_local": "dot"}, {}, r"was trained with model\.encoder\.non_local None instead of dot"),
        ({"channels": [3, 5], "coordinates": 2.0}, {"image": {"size": 40}}, r"image\.size 32 instead of 40, model\.encoder\.coordinates 1"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused_and_nothing_is_left(
    run: Path, tmp_path: Path, encoder: dict[str, Any], parts: dict[str, Any], message: str
) -> None:
    captions, _ = write_set(tmp_path)
    with pytest.raises(ConfigError, match=message):
        train_captioning(configuration(captions, {**SHOW, "encoder": {**encoder, "start": str(run)}}, **parts), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    missing = configuration(captions, {**SHOW, "encoder": {"channels": [3, 5], "start": str(tmp_path / "nothing")}})
    with pytest.raises(ConfigError, match=r"model\.encoder\.start: .*nothing: no such run folder"):
        train_captioning(missing, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_features_computed_beforehand_take_the_place_of_images(tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path)
    ids = read_captions(captions).ids
    photographs = tmp_path / "photographs"
    (tmp_path / "train").rename(photographs)  # no training needs the images
    generator = np.random.default_rng(1)
    write_features(tmp_path / "f.safetensors", ids, (generator.random((6, 5), np.float32) for _ in ids), grid=(2, 3))
    model = {**SHOW, "encoder": {"type": "features"}, "area": {"height": 2, "width": 2}}
    config = configuration(captions, model, data={"features": str(tmp_path / "f.safetensors")})
    folder = tmp_path / "run"
    first = train_captioning(config, folder)
    assert train_captioning(config, folder).weights_sha256 == first.weights_sha256
    captioner = Captioner.open(folder)
    assert captioner.run.config.model.encoder.model_dump() == {"type": "features", "grid": (2, 3), "dim": 5}
    file = FeatureFile(tmp_path / "f.safetensors")
    found = captioner.caption_features(file)
    assert [item.source for item in found] == ids
    assert captioner.caption_features(file, [ids[3]])[0].text == found[3].text
    assert [len(item.texts) for item in captioner.caption_features(file, n_best=2)] == [2] * len(ids)
    # One image, by its name or by its file, and what was looked at, drawn over the photograph.
    (name,) = (each for each in ids if each.endswith("000003.png"))
    (photographs / "train").mkdir()
    image = shutil.copy(photographs / "000003.png", photographs / name)
    for given in (name, image):
        told = CliRunner().invoke(app, ["caption", str(folder), str(given), "--features", str(file.path)])
        assert (told.exit_code, told.stdout) == (0, found[ids.index(name)].text + "\n"), told.output
    told = CliRunner().invoke(
        app, ["view", str(folder), "--image", str(image), "--features", str(file.path), "-o", str(tmp_path / "v.json")]
    )
    assert told.exit_code == 0, told.output
    (record,) = read_records(tmp_path / "v.json")
    assert (record.items["image"].rows, record.items["image"].columns) == (2, 3)
    assert record.items["image"].image.startswith("data:image/")
    assert record.items["caption"].text == found[ids.index(name)].text
    with pytest.raises(DataError, match=r"no features of other\.png; it has ids such as train/000000\.png"):
        captioner.record("other.png", features=file)
    with pytest.raises(ConfigError, match="give their file, too"):
        captioner.record(image)
    words = ["evaluate", str(folder), "--captions", str(captions), "--features"]
    told = CliRunner().invoke(app, [*words, str(file.path)])
    assert told.exit_code == 0, told.output
    write_features(tmp_path / "turned.safetensors", ids, (generator.random((6, 5), np.float32) for _ in ids), grid=(3, 2))
    refused = CliRunner().invoke(app, [*words, str(tmp_path / "turned.safetensors")])
    assert "does not read features like those of" in str(refused.exception)
    assert "(3, 2) cells of 5" in str(refused.exception)
    with pytest.raises(ConfigError, match="reads precomputed features, not images"):
        captioner.caption([tmp_path / "a.png"])
    with pytest.raises(ConfigError, match="one goes with the other"):
        train_captioning(configuration(captions, data={"features": str(tmp_path / "f.safetensors")}), tmp_path / "other")
    write_features(tmp_path / "g.safetensors", ids[1:], (generator.random((6, 5), np.float32) for _ in ids[1:]), grid=(2, 3))
    with pytest.raises(DataError, match=r"no features of train/000000.png \(1 of \d+ images have none\)"):
        train_captioning(configuration(captions, model, data={"features": str(tmp_path / "g.safetensors")}), tmp_path / "more")
    assert not (tmp_path / "more").exists()


def test_an_unreadable_training_image_is_named_and_no_run_is_left_behind(tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path)
    (tmp_path / "train" / "000007.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"000007\.png: not an image"):
        train_captioning(configuration(captions), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_the_same_images_only(tmp_path: Path) -> None:
    folder = trained(tmp_path)
    captions = tmp_path / "train.tsv"
    Image.new("RGB", (70, 70), (1, 2, 3)).save(tmp_path / "train" / "000003.png")
    with pytest.raises(ConfigError, match="the images have other content"):
        train_captioning(configuration(captions), folder)


def test_captions_longer_than_allowed_are_left_out_and_counted(tmp_path: Path, messages: list[str]) -> None:
    captions, _ = write_set(tmp_path)
    train_captioning(configuration(captions, data={"max_length": 7}), tmp_path / "run")
    assert any("captions left out" in line for line in messages)
    with pytest.raises(DataError, match=r"training data: all \d+ captions are longer than data\.max_length \(2 tokens\)"):
        train_captioning(configuration(captions, data={"max_length": 2}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_captions_are_learned_in_lower_case_unless_told_otherwise(tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path)
    captions.write_text(captions.read_text().replace("\ta ", "\tA "))
    for lowercase in (True, False):
        train_captioning(configuration(captions, data={"lowercase": lowercase}), tmp_path / f"run {lowercase}")
        vocabulary = open_caption_run(tmp_path / f"run {lowercase}").vocabulary
        assert vocabulary.encode("a").ids != [UNK]
        assert (vocabulary.encode("A").ids == [UNK]) == lowercase


def test_settings_that_mean_nothing_to_captions_are_refused(tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path)
    with pytest.raises(ConfigError, match=r"decoding\.replace_unknown: there is no source word"):
        check_captioning_settings(configuration(captions, decoding={"replace_unknown": True}))
    with pytest.raises(ConfigError, match=r"training\.metric: macro_f1; the task captioning has loss, "):
        check_captioning_settings(configuration(captions, training={"metric": "macro_f1"}))
    with pytest.raises(ConfigError, match=r"training\.eval_metrics: chrf; the task captioning has loss, .*cider"):
        check_captioning_settings(configuration(captions, training={"eval_metrics": ["cider", "chrf"]}))
    with pytest.raises(DataError, match=r"data\.captions: no training data given"):
        train_captioning(configuration(captions, data={"captions": None}), tmp_path / "run")


def test_a_run_of_another_task_is_refused(run: Path) -> None:
    with pytest.raises(CheckpointError, match="a run of the task captioning; expected a run of the task translation"):
        Translator.open(run)


def test_search_settings_change_captions_not_their_number(run: Path, tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path, "test", 3, start=50)
    images = read_captions(captions).images
    captioner = Captioner.open(run)
    found = captioner.caption(images, decoding=DecodingConfig(beam_size=4, max_length=5), n_best=3)
    assert [len(item.texts) for item in found] == [3, 3, 3]
    assert all(len(hypothesis.tokens) <= 5 for item in found for hypothesis in item.hypotheses)
    assert len(found[0].to_json()["hypotheses"]) == 3


def test_the_captions_of_the_benchmark_are_true_and_its_measure_knows_where_to_look() -> None:
    scenes = generate_scenes(60, seed=8, settings=SceneSettings(objects=(3, 3)))
    told = [told_by_convention(scene) for scene in scenes]
    assert all(scene.is_true(caption) for scene, caption in zip(scenes, told, strict=True))
    assert len({caption.split(" ", 3)[3][:5] for caption in told}) == 4, "all four relations occur"
    captions = []
    for scene, text in zip(scenes, told, strict=True):
        attention = torch.full((len(text.split()), 256), 0.001)
        for row, number in enumerate(scene.grounding(text)):
            if number is not None:
                thing = scene.objects[number]
                attention[row, 16 * (thing.y // 4) + thing.x // 4] = 1.0
        captions.append(Caption(text, [text], [Hypothesis([], 0.0, [], attention)], "image"))
    found = measure(captions, scenes, (16, 16))
    assert (found["true"], found["grammatical"], found["grounded words"]) == (100, 100, 240)
    assert found["pointing all"] == found["pointing colour"] == found["pointing shape"] == 100
    assert found["random object"] == pytest.approx(100 / 3)
    assert found["random cell"] < 15


def test_a_part_to_validate_on_needs_a_part_to_train_on(tmp_path: Path) -> None:
    captions, _ = write_set(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.valid_split=val: without data\.split all parts are trained on, this one too; name both"):
        train_captioning(configuration(captions, data={"valid_split": "val"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_attention_at_sub_words_is_not_scored_as_that_of_words(tmp_path: Path, messages: list[str]) -> None:
    run = trained(tmp_path, vocabulary={"kind": "bpe", "size": 300})
    captions, regions = write_set(tmp_path, "test", 3, start=100)
    names = [score.name for score in evaluate_captioning(Captioner.open(run), read_captions(captions, regions=regions)).scores]
    assert "pointing accuracy" not in names
    assert "pointing accuracy is of words, which a vocabulary of kind bpe has none of: not measured" in messages


def test_a_word_without_a_region_is_told_and_boxes_outside_a_crop_do_not_count(tmp_path: Path, messages: list[str]) -> None:
    run = trained(tmp_path)
    captions, _ = write_set(tmp_path, "test", 3, start=100)
    regions = [{"image": name, "regions": {"zebra": [[0, 0, 1, 1]]}} for name in read_captions(captions).ids]
    (tmp_path / "none.jsonl").write_text("".join(json.dumps(line) + "\n" for line in regions))
    examples = read_captions(captions, regions=tmp_path / "none.jsonl")
    evaluate_captioning(Captioner.open(run), examples)
    assert "no generated word has a region that its image shows: pointing accuracy is not measured" in messages

    Image.new("RGB", (64, 32)).save(tmp_path / "wide.png")
    inside, outside = (
        CaptionExample("wide.png", tmp_path / "wide.png", ("dog",), {"dog": (box,)}) for box in ((0.5, 0, 0.6, 1), (0, 0, 0.2, 1))
    )
    said: Any = SimpleNamespace(text="dog", hypotheses=[SimpleNamespace(attention=torch.eye(4)[:1])])
    for example, shown in ((inside, True), (outside, False)):
        found = attention_scores([said], CaptionSet.of([example]), (2, 2), how=Preprocessing(size=8, fit="crop"))
        assert bool(found) == shown
    assert attention_scores([said], CaptionSet.of([inside]), (2, 2))[1].value > 50  # of the whole image it lies in two cells
