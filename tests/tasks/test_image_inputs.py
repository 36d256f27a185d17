"""Runs that read a sentence and an image: trained from a list of names, resumed exactly, used by name and by content, refused by name."""

from __future__ import annotations

import base64
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.config import dump_config, load_config, validate
from regard.data.lines import read_lines
from regard.data.parallel import join_inputs, read_pairs
from regard.data.vocabulary import EOS, UNK
from regard.errors import ConfigError, DataError
from regard.explanations import explain
from regard.progress import listening
from regard.tasks import Translator, generate, train_translation
from regard.tasks.attention_records import translation_records
from regard.tasks.explained_examples import batches_of_run, explain_batches, translation_batches
from regard.tasks.translation_evaluation import evaluate_translation
from regard.tasks.translation_run import open_translation_run
from tests.tasks.tiny import ATTENTIVE, MODEL, configuration

IMAGE: dict[str, Any] = {"size": 16, "encoder": {"channels": [5, 7], "coordinates": 1.0}}
CELLS = 16
ROOT = Path(__file__).parents[2]
KINDS = ("joined", "serial", "parallel", "flat", "hierarchical", "crossed")
NON_LOCAL: dict[str, Any] = {**IMAGE, "encoder": {**IMAGE["encoder"], "non_local": "embedded_gaussian"}}
AREAS = ("hierarchical of areas", "crossed of areas", "crossed of runs")
RECURRENT = ("recurrent joined", "recurrent flat", "recurrent serial", "recurrent hierarchical of areas")


def model_of(named: str, **second: Any) -> dict[str, Any]:
    """Return the settings of a model by its kind; before it "recurrent" or nothing, behind it "of runs", "of areas" (both) or nothing."""
    before, _, areas = named.partition(" of ")
    family, _, kind = before.rpartition(" ")
    runs = {"area": {"max_area": 2}} if areas else {}
    image = {**IMAGE, "area": {"height": 2, "width": 3, "key_mode": "features"}} if areas == "areas" else IMAGE
    image = NON_LOCAL if kind in ("parallel", "flat") else image
    second = {"kind": kind, "image": image, **second}
    if family == "recurrent":
        return {**MODEL, "attention": {"attention_dim": 5, **runs}, "second": second}
    return {**ATTENTIVE, **runs, "type": "crossed" if kind == "crossed" else "transformer", "second": second}


def settings(folder: Path, kind: str = "crossed", *, second: dict[str, Any] | None = None, **training: Any) -> Any:
    files = {"source": str(folder / "train.source"), "target": str(folder / "train.target"), "second_source": str(folder / "train.images")}
    given = {"max_updates": 2, "batch_tokens": 150, "warmup_updates": 1, **training}
    return configuration(kind="word", model=model_of(kind, **(second or {})), data={"max_length": 23, **files}, training=given)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    generate("scene-sentences", folder, train=23, test=5, seed=3)
    return folder


@pytest.fixture(scope="module")
def run_of(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return runs by their kind, each trained once."""
    made: dict[str, Path] = {}

    def trained(kind: str) -> Path:
        if kind not in made:
            folder = tmp_path_factory.mktemp("image") / "run"
            assert train_translation(settings(scenes, kind), folder).step == 2
            made[kind] = folder
        return made[kind]

    return trained


@pytest.fixture(scope="module")
def run(run_of: Callable[[str], Path]) -> Path:
    return run_of("crossed")


def lines_of(folder: Path) -> list[str]:
    return [pair[0] for pair in read_pairs(folder / "test.source", folder / "test.target", folder / "test.images")]


@pytest.mark.parametrize("kind", [*KINDS, *AREAS, *RECURRENT])
def test_every_kind_learns_from_pictures_and_reads_them(scenes: Path, run_of: Callable[[str], Path], kind: str) -> None:
    translator = Translator.open(run_of(kind))
    translator.use_images(scenes)
    lines = lines_of(scenes)
    found = translator.translate([lines[0], join_inputs(lines[0].split("\t")[0], "test/000001.png")], need_attention=True)
    # Another picture, another score.
    assert found[0].hypotheses[0].score != pytest.approx(found[1].hypotheses[0].score, abs=1e-7)
    assert found[0].hypotheses[0].attention is not None
    assert found[0].hypotheses[0].attention.shape[1] == len(lines[0].split("\t")[0].split()) + 1 + CELLS + 1


@pytest.mark.parametrize("kind", ["crossed", *AREAS, RECURRENT[-1]])
def test_a_line_alone_is_what_it_is_among_others(run_of: Callable[[str], Path], scenes: Path, kind: str) -> None:
    translator = Translator.open(run_of(kind))
    translator.use_images(None, names=scenes / "test.images")
    lines = lines_of(scenes)
    together = translator.translate(lines)
    for line, item in zip(lines, together, strict=True):
        assert translator.translate([line])[0].hypotheses[0].score == pytest.approx(item.hypotheses[0].score, abs=1e-4)


def test_an_image_may_come_with_the_line(run: Path, scenes: Path) -> None:
    translator = Translator.open(run)
    translator.use_images(scenes)
    text, name = lines_of(scenes)[0].split("\t")
    inline = "data:image/png;base64," + base64.b64encode((scenes / name).read_bytes()).decode()
    by_name, by_content = translator.translate([join_inputs(text, name), join_inputs(text, inline)])
    assert by_name.hypotheses[0].score == by_content.hypotheses[0].score


def test_an_unknown_word_is_replaced_by_a_word_and_by_no_image(run: Path, scenes: Path) -> None:
    translator = Translator.open(run)
    translator.use_images(scenes)
    line = lines_of(scenes)[0]
    decoding = translator.run.config.decoding.model_copy(update={"replace_unknown": True})
    (found,) = translator.translate([line], decoding=decoding, need_attention=True)
    words = line.split("\t")[0].split()
    (hypothesis,) = found.hypotheses
    for at in range(len(found.source.ids)):
        attention = torch.zeros(2, len(found.source.ids) + 1)
        attention[0, at] = 1.0
        told = translator._text(hypothesis._replace(tokens=[UNK, EOS], attention=attention), found.source, line, True)
        assert told == (words[at] if at < len(words) else words[0])


def test_a_missing_image_is_named_with_its_line(run: Path, scenes: Path, tmp_path: Path) -> None:
    translator = Translator.open(run)
    translator.use_images(scenes)
    good = lines_of(scenes)[0]
    text = good.split("\t")[0]
    with pytest.raises(DataError, match=r"line 2: no image .*nowhere\.png"):
        translator.translate([good, join_inputs(text, "nowhere.png")])
    with pytest.raises(DataError, match=r"line 1: the second input is missing"):
        translator.translate([text])
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"line 1: .*bad\.png: not an image"):
        translator.translate([join_inputs(text, str(tmp_path / "bad.png"))])
    with pytest.raises(DataError, match=r"line 1: image: no base64"):
        translator.translate([join_inputs(text, "data:image/png;base64,???")])


def test_training_names_the_line_of_a_missing_image(scenes: Path, tmp_path: Path) -> None:
    told: list[str] = []
    names = (scenes / "train.images").read_text().splitlines()
    names[6] = "train/none.png"
    (tmp_path / "list").write_text("\n".join(names) + "\n")
    config = settings(scenes)
    data = config.data.model_copy(update={"second_source": str(tmp_path / "list"), "images": str(scenes)})
    with pytest.raises(DataError, match=r"list, line 7: no image train/none\.png in"):
        train_translation(config.model_copy(update={"data": data}), tmp_path / "run")
    # With `drop` it is an example without a picture.
    config = settings(scenes, second={"drop": 0.3}).model_copy(update={"data": data})
    folder = tmp_path / "optional"
    with listening(lambda event: told.append(event.text)):
        assert train_translation(config, folder).step == 2
    assert any("list, line 7: no image train/none.png in" in text and "1 image of 23 missing" in text for text in told)
    translator = Translator.open(folder)
    translator.use_images(scenes)
    text, name = lines_of(scenes)[0].split("\t")
    scores = [item.hypotheses[0].score for item in translator.translate([join_inputs(text, name), text, "\t" + name])]
    assert len({round(score, 6) for score in scores}) == 3


@pytest.mark.parametrize("kind", ["crossed", "crossed of areas", "recurrent hierarchical of areas"])
def test_a_killed_run_resumes_exactly(scenes: Path, tmp_path: Path, kind: str) -> None:
    config = settings(scenes, kind, second={"drop": 0.4}, max_updates=4, save_every=1)
    straight = train_translation(config, tmp_path / "straight")

    class Killed(Exception):
        pass

    def kill(event: str) -> None:
        if event == "update 3":
            raise Killed

    with pytest.raises(Killed):
        train_translation(config, tmp_path / "killed", on_event=kill)
    resumed = train_translation(config, tmp_path / "killed")
    assert (resumed.weights_sha256, resumed.metrics) == (straight.weights_sha256, straight.metrics)


def test_two_processes_train_although_some_of_their_batches_have_no_image(scenes: Path, tmp_path: Path) -> None:
    config = settings(scenes, "crossed of areas", second={"drop": 0.95}, max_updates=6, batch_tokens=40)
    (tmp_path / "config.yaml").write_text(dump_config(config), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "regard"]
    command += ["train", "translation", "--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "run")]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        env={**os.environ, "REGARD_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert open_translation_run(tmp_path / "run").config.model.second is not None


def test_a_run_of_shards_is_that_of_whole_files(scenes: Path, tmp_path: Path) -> None:
    config = settings(scenes, "serial of areas")
    names = {"source": config.data.source, "second_source": config.data.second_source, "target": config.data.target}
    for name, path in names.items():
        lines = Path(path).read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"{name}.0").write_text("".join(lines[:11]), encoding="utf-8")
        (tmp_path / f"{name}.1").write_text("".join(lines[11:]), encoding="utf-8")
    sharded = {name: str(tmp_path / f"{name}.*") for name in names} | {"images": str(scenes)}
    data = config.data.model_copy(update=sharded)
    whole = train_translation(config, tmp_path / "whole")
    assert train_translation(config.model_copy(update={"data": data}), tmp_path / "shards").weights_sha256 == whole.weights_sha256


def test_images_that_changed_are_not_resumed_on(tmp_path: Path) -> None:
    generate("scene-sentences", tmp_path, train=23, test=1, seed=3)
    train_translation(settings(tmp_path), tmp_path / "run")
    path = tmp_path / "train" / "000003.png"
    # Of the same size, as uncompressed images are.
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ConfigError, match="images"):
        train_translation(load_config(tmp_path / "run" / "config.yaml", ["training.max_updates=3"]), tmp_path / "run")


def test_a_test_set_is_evaluated_and_pictures_are_forgotten(run: Path, scenes: Path) -> None:
    translator = Translator.open(run)
    translator.use_images(scenes)
    pairs = read_pairs(scenes / "test.source", scenes / "test.target", scenes / "test.images")
    scores = {score.name: score.value for score in evaluate_translation(translator, pairs).scores}
    assert scores["perplexity"] > 1
    images = translator.run.vocabularies.images
    assert images is not None
    number = images.encode("test/000001.png").ids[0]
    assert torch.equal(images.read([number]), images.read([number]))
    images._recent.clear()
    images._kept.clear()
    del number
    gc.collect()
    assert not images._pictures


def test_an_ensemble_reads_the_same_images(run: Path, run_of: Callable[[str], Path], scenes: Path, tmp_path: Path) -> None:
    for kind in ("serial", "crossed of areas", "recurrent serial"):
        both = Translator.open(run, run_of(kind))
        both.use_images(scenes)
        assert len(both.translate(lines_of(scenes), need_attention=True)) == 5
    larger = model_of("serial", image={**IMAGE, "size": 24})
    config = settings(scenes)
    data = config.data.model_copy(update={"max_length": 40})
    config = configuration(kind="word", model=larger, data=data.model_dump(), training={"max_updates": 1})
    train_translation(config, tmp_path / "larger")
    with pytest.raises(ConfigError, match=r"model\.second\.image differs"):
        Translator.open(run, tmp_path / "larger")
    with pytest.raises(ConfigError, match="reads no images"):
        Translator(open_translation_run(run)._replace(vocabularies=vocabularies_of_text(run))).use_images(scenes)


def vocabularies_of_text(run: Path) -> Any:
    found = open_translation_run(run).vocabularies
    return found._replace(source=found.target)


def test_settings_that_do_not_fit_are_refused(scenes: Path, tmp_path: Path) -> None:
    config = settings(scenes)
    short = config.model_copy(update={"data": config.data.model_copy(update={"max_length": 15})})
    with pytest.raises(ConfigError, match=r"data\.max_length: 15, but an image of 16 pixels has 16 cells"):
        train_translation(short, tmp_path / "run")
    text = validate({"model": {"type": "transformer", "second": {}}, "data": {"images": "x", "source": "y"}}, "here")
    with pytest.raises(ConfigError, match=r"data\.images: needs a model that reads images"):
        train_translation(text, tmp_path / "run")


@pytest.mark.parametrize("kind", [*KINDS, *AREAS, *RECURRENT])
def test_a_record_shows_the_sentence_the_picture_and_how_both_are_read(scenes: Path, run_of: Callable[[str], Path], kind: str) -> None:
    translator = Translator.open(run_of(kind))
    translator.use_images(scenes)
    line = lines_of(scenes)[0]
    (found,) = translator.translate([line], n_best=2, need_attention=True)
    record = translator.record(line, found)
    assert record is not None
    sentence = line.split("\t")[0]
    assert record.items["source"].text == sentence
    assert list(record.items["source"].tokens) == [*sentence.split(), "</s>"]
    grid = record.items["image"]
    assert (grid.rows, grid.columns, grid.size) == (4, 4, (16, 16))
    sides = {(each.kind, each.query, each.key) for each in record.maps}
    assert ("alignment", "target", "source") in sides
    assert ("image", "target", "image") in sides
    assert {("co-attention", "image", "source"), ("co-attention", "source", "image")} <= sides or "crossed" not in kind
    assert (("cross", "target", "inputs") in sides) == (kind != "recurrent serial")
    areas = {(each.query, each.key): each.areas.extents.shape[1] for each in record.maps if each.areas is not None}
    assert areas.get(("target", "source")) == (2 if " of " in kind else None)
    assert areas.get(("target", "image")) == (4 if "of areas" in kind else None)
    for each in record.maps:
        assert each.weights is not None
        assert each.weights.shape[1:] == (len(record.items[each.query]), len(record.items[each.key]))
    if kind.endswith("flat"):
        (division,) = [each.weights for each in record.maps if each.key == "inputs"]
        assert division.sum(-1) == pytest.approx(1, abs=1e-5)
        parts = [each.weights.sum(-1) for each in record.maps if each.name.startswith("alignment")]
        assert division[..., 0] == pytest.approx(parts[0], abs=1e-5)
    # A model that is made to produce a target looks at the picture, too.
    assert translator.align_layers(line, "circle red").items["image"] == grid


def test_methods_explain_by_words_and_cells(run: Path, scenes: Path) -> None:
    files = {"target": scenes / "test.target", "second": scenes / "test.images"}
    found = explain_batches(batches_of_run(run, scenes / "test.source", **files), ["rollout", "leave-one-out"]).examples
    assert len(found) == 5
    words = read_lines(scenes / "test.source")[0].split()
    side = int(CELLS**0.5)
    assert found[0].inputs == [*words, *(f"{row},{column}" for row in range(1, side + 1) for column in range(1, side + 1))]
    assert all(table.shape == (len(found[0].outputs), len(words) + CELLS) for table in found[0].scores.values())
    assert (found[0].scores["leave-one-out"][:, len(words) :] != 0).any()


def test_a_page_shows_methods_on_the_sentence_and_on_the_image(run: Path, scenes: Path) -> None:
    line, text = lines_of(scenes)[0], read_lines(scenes / "test.target")[0]
    (shown,) = translation_records(run, [line], target=text, methods=["leave-one-out"])
    (batch,) = translation_batches(open_translation_run(run), [(line, text)])
    expected = explain(batch.batch, "leave-one-out")[0]
    end = len(line.split("\t")[0].split()) + 1
    maps = {each.name: each for each in shown.maps if each.method}
    assert list(maps) == ["leave-one-out, source", "leave-one-out, image"]
    rows = len(shown.items["target"])
    np.testing.assert_allclose(maps["leave-one-out, source"].weights[0], expected[:rows, :end].numpy(), atol=1e-6)
    np.testing.assert_allclose(maps["leave-one-out, image"].weights[0], expected[:rows, end : end + CELLS].numpy(), atol=1e-6)
    assert maps["leave-one-out, image"].kind == "image"


def test_a_run_that_does_without_images_tells_which_are_missing(scenes: Path, tmp_path: Path) -> None:
    config = settings(scenes, second={"drop": 0.3})
    wrong = config.model_copy(update={"data": config.data.model_copy(update={"images": str(tmp_path)})})
    with pytest.raises(DataError, match=r"train\.images, line 1: no image .* in .*, and none of the others that are named there"):
        train_translation(wrong, tmp_path / "wrong")
    train_translation(config, tmp_path / "run")
    translator, told = Translator.open(tmp_path / "run"), list[str]()
    with pytest.raises(ConfigError, match=r"--images: .*nowhere: no such folder"):
        translator.use_images(tmp_path / "nowhere")
    translator.use_images(scenes)
    text, name = lines_of(scenes)[0].split("\t")
    long = f"{'x' * 300}.png"
    lines = [join_inputs(text, name), join_inputs(text, long), join_inputs(text, "none.png"), text]
    found = translator.translate([*lines, *lines])
    assert len(found) == 8
    assert found[1].text == found[2].text == found[3].text
    with listening(lambda event: told.append(event.text)):
        translator.run.vocabularies.tell_missing_images()
    assert len(told) == 1
    assert told[0].startswith("none.png, xxx")
    assert told[0].endswith(f": no such images in {scenes}; read as sentences without an image")


def test_a_name_too_long_for_a_file_is_named_with_its_line(scenes: Path, tmp_path: Path) -> None:
    names = (scenes / "train.images").read_text().splitlines()
    (tmp_path / "list").write_text("\n".join([*names[:-1], "x" * 300]) + "\n")
    config = settings(scenes)
    data = config.data.model_copy(update={"second_source": str(tmp_path / "list"), "images": str(scenes)})
    with pytest.raises(DataError, match=r"list, line 23: no image xxx"):
        train_translation(config.model_copy(update={"data": data}), tmp_path / "run")


def test_runs_that_need_both_inputs_do_not_decode_with_one_that_does_not(run: Path, scenes: Path, tmp_path: Path) -> None:
    train_translation(settings(scenes, second={"drop": 0.3}), tmp_path / "optional")
    for first, other in ((run, tmp_path / "optional"), (tmp_path / "optional", run)):
        with pytest.raises(ConfigError, match="one needs both inputs, the other does without"):
            Translator.open(first, other)
