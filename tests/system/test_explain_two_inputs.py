"""`regard explain` and `view --method` for models of two inputs: what is left out is told, errors name file and line, no image is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.explanations import explain
from regard.tasks.explained_examples import batches_of_run
from regard.tasks.method_faithfulness import measure_methods
from tests.tasks import tiny
from tests.tasks.test_image_inputs import CELLS, IMAGE
from tests.tasks.test_two_inputs import CROSSED, LINES, SECOND, two

Call = Callable[..., Any]
SMALL = ["recipe=none", "vocabulary.kind=word", "training.max_updates=1", "model.embed_dim=12", "model.ff_dim=13", "model.num_heads=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two texts: `run`, crossed, and `one`, of one input."""
    place = tmp_path_factory.mktemp("two")
    two(place, decoding={"min_length": 3})
    tiny.trained(place / "one", kind="word", decoding={"min_length": 3})
    return place


@pytest.fixture
def scenes(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scenes in `s`, in the current folder; the run `run` needs an image, `optional` does without."""
    monkeypatch.chdir(tmp_path)
    assert call("generate", "scene-sentences", "--out", "s", "--count", 23, "--test", 3, "--seed", 3).code == 0
    files = ["--source", "s/train.source", "--second-source", "s/train.images", "--target", "s/train.target"]
    image = [f"model.second.image.size={IMAGE['size']}", "model.second.image.encoder.channels=[5,7]"]
    for run, more in (("run", []), ("optional", ["model.second.drop=0.2"])):
        kind = ["model.type=transformer", "model.second.kind=flat"]
        answer = call("train", "translation", "--out", run, *files, *SMALL, *kind, *image, *more)
        assert answer.code == 0, answer.err
    return tmp_path


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def first(path: str, count: int = 3) -> list[str]:
    return Path(path).read_text(encoding="utf-8").splitlines()[:count]


def test_no_output_replaces_an_image_that_an_input_names(call: Call, scenes: Path) -> None:
    write(Path("o.source"), first("s/test.source", 1)[0])
    write(Path("o.images"), "test/000001.png")
    image = Path("s/test/000001.png")
    Path("here.jpg").symlink_to(image)
    before, files = image.read_bytes(), ["--source", "o.source", "--second-source", "o.images", "--images", "s"]
    for output in (image, Path("here.jpg")):
        answer = call("explain", "run", "--method", "leave-one-out", *files, "--json", output)
        assert (answer.code, image.read_bytes()) == (2, before)
        assert f"--json {output}: is named in an input of this command, which it would replace" in answer.err
    shutil.copy("s/test/000001.png", "s/named.PNG")
    for words in (
        ["explain", "run", "--method", "leave-one-out", *files, "--json", "s/named.PNG"],
        ["evaluate", "run", *files, "--target", "o.source", "--output", "s/named.PNG"],
        ["translate", "run", "o.source", "--second-source", "o.images", "--images", "s", "--links", "s/named.PNG"],
    ):
        answer = call(*words)
        assert (answer.code, Path("s/named.PNG").read_bytes()) == (2, before)
        assert "s/named.PNG: is an image, which this command would replace by text" in answer.err
    answer = call("view", "run", "--text", f"a red _\t{image}", "--method", "leave-one-out", "-o", image)
    assert (answer.code, image.read_bytes()) == (2, before)
    assert "is named in an input of this command, which it would replace" in answer.err


def test_missing_images_are_told_where_a_run_does_without(call: Call, scenes: Path) -> None:
    source, target = write(Path("m.source"), *first("s/test.source")), write(Path("m.target"), *first("s/test.target"))
    images = write(Path("m.images"), "test/000000.png", "test/nope.png", "test/000002.png")
    files = ["--second-source", images, "--images", "s"]
    told = "test/nope.png: no such image in s; read as sentences without an image"
    for words in (["--source", source, "--target", target], ["--source", source], ["--faithfulness", source, "--target", target]):
        answer = call("explain", "optional", "--method", "leave-one-out", *words, *files)
        assert answer.code == 0, answer.err
        assert answer.err.count(told) == 1
    assert told.replace(" in s;", " in .;") in call("view", "optional", "--text", "a red _\ttest/nope.png").err
    answer = call("view", "optional", "--text", "a red _", "--image", "nope.png")
    assert answer.code == 2
    assert "--image nope.png: no such file" in answer.err
    for words in (["--source", source, "--target", target], ["--source", source]):
        answer = call("explain", "run", "--method", "leave-one-out", *words, *files)
        assert answer.code == 2
        assert "m.images, line 2: no image s/test/nope.png" in answer.err


def test_pointing_is_of_the_best_cell_of_all(call: Call, scenes: Path) -> None:
    files = {"target": "s/test.target", "second": "s/test.images", "regions": "s/test.regions.jsonl"}
    (batch,) = batches_of_run("run", "s/test.source", **files)
    scores, hits, chance = explain(batch.batch, "leave-one-out"), [], []
    for number, words in enumerate(batch.regions):
        start = len(first("s/test.source")[number].split()) + 1
        for place, cells in words.items():
            assert len(cells) == CELLS
            hits.append(bool(cells[int(scores[number, place, start : start + CELLS].argmax())]))
            chance.append(cells.mean())
    assert len(hits) > 3
    figures = {each.method: each.pointing for each in measure_methods([batch], ["leave-one-out"], outputs=1, samples=20).methods}
    assert figures["leave-one-out"] is not None
    assert figures["leave-one-out"].value == pytest.approx(sum(hits) / len(hits))
    assert figures["random order"] is not None
    assert figures["random order"].value == pytest.approx(sum(chance) / len(chance))
    words = ["explain", "optional", "--method", "leave-one-out", "--second-source", "s/test.images", "--target", "s/test.target"]
    answer = call(*words, "--faithfulness", "s/test.source", "--regions", "s/test.regions.jsonl")
    assert "pointing" in answer.out.decode()
    half = write(Path("s/half.images"), first("s/test.images")[0], "", "")
    answer = call(*words[:4], "--second-source", half, *words[6:], "--faithfulness", "s/test.source", "--regions", "s/test.regions.jsonl")
    assert answer.code == 0, answer.err
    answer = call(*words, "--faithfulness", "s/test.source", "--regions", "s/train.regions.jsonl")
    assert answer.code == 2
    assert "s/train.regions.jsonl: has none of the images of s/test.images" in answer.err


def test_regions_need_images(call: Call, folder: Path, tmp_path: Path) -> None:
    files = ["--faithfulness", folder / "source", "--second-source", folder / "second", "--target", folder / "target"]
    answer = call("explain", folder / "run", "--method", "weights", *files, "--regions", write(tmp_path / "r"))
    assert answer.code == 2
    assert f"--regions: {folder / 'run'} reads no images" in answer.err


def test_both_halves_of_a_method_are_drawn(call: Call, scenes: Path) -> None:
    words = ["view", "run", "--text", "a red _ above a _ circle", "--image", "s/test/000001.png", "--method", "leave-one-out"]
    shown = call(*words).out.decode()
    assert shown.index("leave-one-out, source") < shown.index("leave-one-out, image")
    answer = call(*words, "-o", "one.svg")
    assert answer.code == 0, answer.err
    assert "one.svg: draws leave-one-out, source; for the others: --map 'leave-one-out, image'" in answer.err


def test_a_missing_input_is_named_by_file_and_line(call: Call, folder: Path, tmp_path: Path) -> None:
    source, target = write(tmp_path / "a.src", *tiny.TEXTS[:3]), write(tmp_path / "a.tgt", *tiny.TEXTS[:3])
    half = write(tmp_path / "half", SECOND[0], "", SECOND[2])
    for more in (["--target", target], []):
        answer = call("explain", folder / "run", "--method", "leave-one-out", "--source", source, "--second-source", half, *more)
        assert answer.code == 2
        assert f"{half}, line 2: the second input is missing; this model reads two, the second from --second-source {half} (" in answer.err
    lines = write(tmp_path / "lines", LINES[0], f"{LINES[1]}\tEIN")
    for more in (["--target", write(tmp_path / "two", *tiny.TEXTS[:2])], []):
        answer = call("explain", folder / "run", "--method", "leave-one-out", "--source", lines, *more)
        assert answer.code == 2
        assert f"{lines}, line 2: found 3 columns, expected 2" in answer.err


def test_a_second_input_is_given_once(call: Call, folder: Path, tmp_path: Path) -> None:
    pair = {"source": tiny.TEXTS[0], "second": SECOND[0], "target": tiny.TEXTS[0]}
    source, second = write(tmp_path / "a.jsonl", json.dumps(pair)), write(tmp_path / "other", SECOND[1])
    for words in (["explain", folder / "run", "--method", "leave-one-out"], ["evaluate", folder / "run"]):
        answer = call(*words, "--source", source, "--second-source", second)
        assert answer.code == 2
        assert f'a.jsonl, line 1: has a "second" input, and so has {second}; give one of them' in answer.err
    # The key of another program is still ignored where the model reads one input.
    assert call("evaluate", folder / "one" / "run", "--source", source).code == 0


def test_methods_that_are_not_defined_are_named(call: Call, folder: Path, tmp_path: Path) -> None:
    source, second = write(tmp_path / "a", tiny.TEXTS[0]), write(tmp_path / "b", SECOND[0])
    files = ["--source", source, "--second-source", second]
    answer = call("explain", folder / "run", "--method", "leave-one-out", "--method", "alti", *files, "--json", tmp_path / "out.json")
    assert answer.code == 2
    assert "ALTI: not for a decoder that reads two encoders" in answer.err
    assert not (tmp_path / "out.json").exists()
    answer = call("explain", folder / "run", "--method", "all", *files, "--json", tmp_path / "out.json")
    assert answer.code == 0, answer.err
    found = json.loads((tmp_path / "out.json").read_text())
    assert "alti" in found["not_defined"]
    assert {*found["not_defined"], *found["examples"][0]["scores"]} >= {"alti", "rollout", "weights"}
    lines = answer.out.decode().splitlines()
    assert [line.split(": ")[1] for line in lines if line.startswith("not defined: ")] == [*found["not_defined"]]


def test_the_output_says_where_the_second_input_begins(call: Call, folder: Path, tmp_path: Path) -> None:
    source, second = write(tmp_path / "a", tiny.TEXTS[0]), write(tmp_path / "b", SECOND[0])
    files = ["--source", source, "--second-source", second, "--json", tmp_path / "out.json"]
    answer = call("explain", folder / "run", "--method", "leave-one-out", *files)
    lines = answer.out.decode().splitlines()[2:]  # below what the lines and the scores are
    assert lines[0].startswith(f"1: {tiny.TEXTS[0]} | {SECOND[0]} -> ")
    (example,) = json.loads((tmp_path / "out.json").read_text())["examples"]
    assert example["first_inputs"] == (count := len(tiny.TEXTS[0].split()))
    row = example["scores"]["leave-one-out"][0]
    assert lines[1].endswith(f"; first {sum(row[:count]):.3g}, second {sum(row[count:]):.3g}")
    answer = call("explain", folder / "one" / "run", "--method", "leave-one-out", "--source", source, "--json", tmp_path / "one.json")
    assert answer.code == 0, answer.err
    assert "first_inputs" not in json.loads((tmp_path / "one.json").read_text())["examples"][0]


def test_pairs_without_text_are_left_out_told_and_keep_their_links(call: Call, folder: Path, tmp_path: Path) -> None:
    source, second = write(tmp_path / "a", tiny.TEXTS[0], "", tiny.TEXTS[2]), write(tmp_path / "b", SECOND[0], "", SECOND[2])
    target = write(tmp_path / "c", tiny.TEXTS[0], tiny.TEXTS[1], tiny.TEXTS[2])
    files = ["--second-source", second, "--target", target]
    answer = call("explain", folder / "run", "--method", "leave-one-out", "--source", source, *files, "--json", tmp_path / "out.json")
    assert answer.code == 0, answer.err
    assert "1 example without text left out, the first is number 2" in answer.err
    assert [each["number"] for each in json.loads((tmp_path / "out.json").read_text())["examples"]] == [1, 3]
    empty = write(tmp_path / "d", tiny.TEXTS[0], "", "")
    answer = call("explain", folder / "run", "--method", "leave-one-out", "--source", source, "--second-source", second, "--target", empty)
    assert "1 example with an empty target or translation left out, the first is number 3" in answer.err
    links = write(tmp_path / "links", "0-0", "", "9-0")
    answer = call("explain", folder / "run", "--method", "weights", "--faithfulness", source, *files, "--links", links)
    assert answer.code == 2
    assert f"{links}, line 3: 9-0, but the source has" in answer.err
    write(links, "0-0", "", "1-0")
    answer = call("explain", folder / "run", "--method", "weights", "--faithfulness", source, *files, "--links", links)
    assert answer.code == 0, answer.err
    write(links, "0-0", "1-0")
    answer = call("explain", folder / "run", "--method", "weights", "--faithfulness", source, *files, "--links", links)
    assert f"{links}: 2 lines, but 3 sentence pairs" in answer.err


def test_each_method_asked_for_is_drawn(call: Call, folder: Path, tmp_path: Path) -> None:
    words = ["view", folder / "run", "--text", LINES[0], "--method", "leave-one-out", "--method", "input-gradient"]
    shown = call(*words).out.decode()
    assert 0 <= shown.index("leave-one-out") < shown.index("input-gradient")
    answer = call(*words, "--method", "weights", "-o", tmp_path / "a.svg")
    assert "a.svg: draws the alignment; for the others: --map 'leave-one-out', --map 'input-gradient'" in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-words", 2], "--max-words: not with --method"),
        (["--random-draws", 2], "--random-draws: not with --method"),
        (["--outputs", 2], "--outputs: goes with --faithfulness FILE"),
        (["--regions", "r"], "--regions: goes with --faithfulness FILE"),
    ],
)
def test_options_of_other_explanations_are_refused(call: Call, folder: Path, options: list[Any], message: str) -> None:
    files = ["--source", folder / "source", "--second-source", folder / "second"]
    answer = call("explain", folder / "run", "--method", "leave-one-out", *files, *options)
    assert answer.code == 2
    assert message in answer.err


def test_a_word_in_place_of_another_needs_one_embedding(call: Call, tmp_path: Path) -> None:
    two(tmp_path, model={**CROSSED, "share_embeddings": False})
    words = ["--source", write(tmp_path / "a", tiny.TEXTS[0]), "--second-source", write(tmp_path / "b", SECOND[0])]
    answer = call("explain", tmp_path / "run", "--method", "replace-one", *words)
    assert answer.code == 2
    assert "explanations: each input has an embedding of its own" in answer.err


def test_a_baseline_reads_the_images_of_the_test_set(call: Call, scenes: Path) -> None:
    Path("moved/test").parent.mkdir()
    shutil.move("s/test", "moved/test")
    files = ["--source", "s/test.source", "--target", "s/test.target", "--second-source", "s/test.images", "--images", "moved"]
    for run in ("optional", "run"):
        answer = call("evaluate", run, *files, "--baseline", run, "--json", f"{run}.json")
        assert answer.code == 0, answer.err
        against = json.loads(Path(f"{run}.json").read_text())["against"]
        assert (against["difference"], against["p_value"]) == (0.0, 1.0)
    answer = call("evaluate", "optional", *files[:-2], "--baseline", "optional")
    assert answer.err.count("no such images in s; read as sentences without an image") == 2  # by both
