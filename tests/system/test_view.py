"""`regard view` from end to end: from runs to pages, pictures and records, and from records on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from regard.viewer import read_records
from tests.tasks.tiny import FAMILIES, trained


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    """A Transformer with areas and a recurrent model, both hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    area = trained(folder / "one", model=FAMILIES["area"])
    return area.rename(folder / "area"), trained(folder / "two").rename(folder / "recurrent")


def _data(page: str) -> list[dict]:
    (block,) = re.findall(r'id="regard-data">(.*?)</script>', page, re.DOTALL)
    return json.loads(block)["records"]


def test_a_page_of_a_run_has_every_layer_head_area_and_hypothesis(call, runs):
    assert call("view", runs[0], "-o", "page.html", "--beam-size", 2, stdin=b"ein Hund\nHaus\n").code == 0
    records = _data(Path("page.html").read_text())
    assert [record["items"]["source"]["text"] for record in records] == ["ein Hund", "Haus"]
    kinds = [found["kind"] for found in records[0]["maps"]]
    assert kinds.count("cross") == 2
    assert kinds.count("self") == 4
    assert all(found["areas"] for found in records[0]["maps"] if found["kind"] != "alignment")
    assert len(records[0]["hypotheses"]) == 2
    assert records[0]["model"] == "area"


def test_two_runs_go_into_one_page_side_by_side(call, runs):
    assert call("view", *runs, "-o", "page.html", "--text", "ein Hund").code == 0
    records = _data(Path("page.html").read_text())
    assert [record["model"] for record in records] == ["area", "recurrent"]
    sources = [record["items"]["source"]["labels"] for record in records]
    assert sources[0] == sources[1]


def test_records_of_several_files_make_one_page(call, runs):
    for run, name in zip(runs, ("a.json", "b.json"), strict=True):
        assert call("view", run, "--text", "Haus", "-o", name).code == 0
    assert call("view", "a.json", "b.json", "-o", "page.html").out == b"page.html: 2 examples\n"
    assert [record["model"] for record in _data(Path("page.html").read_text())] == ["area", "recurrent"]


def test_one_map_and_head_can_be_drawn(call, runs):
    assert call("view", runs[0], "--text", "ein Hund", "-o", "a.json").code == 0
    (record,) = read_records("a.json")
    for words in ([], ["--map", "cross 2"], ["--map", "cross 2", "--head", 1], ["--map", "cross 2", "--head", 2]):
        assert call("view", "a.json", *words, "-o", f"{len(words)}{words[-1:]}.svg").code == 0
    assert len({path.read_bytes() for path in Path().glob("*.svg")}) == 4
    drawn = call("view", "a.json", "--map", "encoder self 1", "--head", 2).out.decode()
    assert drawn.splitlines()[1].split()[0] == record.items["source"].labels[0]
    assert drawn != call("view", "a.json", "--map", "encoder self 1", "--head", 1).out.decode()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--map", "cross 7"], "map 'cross 7': no such map; known ones: alignment, "),
        (["--map", "cross 1", "--head", 3], "head: map 'cross 1' has only 2 heads"),
        (["--head", 0], "--head"),
    ],
)
def test_a_map_or_head_that_is_not_there_is_said_in_one_line(call, runs, words, message):
    assert call("view", runs[0], "--text", "ein Hund", "-o", "a.json").code == 0
    for more in ([], ["-o", "a.png"]):
        answer = call("view", "a.json", *words, *more)
        assert (answer.code, answer.out) == (2, b"")
        assert message in answer.err
        assert answer.err.count("\n") == 1
    assert not Path("a.png").exists()


def test_a_file_of_another_version_is_refused_by_name(call):
    Path("old.json").write_text('{"format": "regard.record", "version": 1, "source": [], "target": [], "weights": []}\n')
    answer = call("view", "old.json")
    assert (answer.code, answer.err) == (2, "regard: error: old.json, line 1: version 1: this reader knows version 2\n")


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Path:
    """Two runs of the same folder name that recorded attention while they were trained."""
    folder = tmp_path_factory.mktemp("watched")
    for name in ("one", "two"):
        trained(folder / name, training={"max_updates": 4, "evaluate_every": 2, "watch": 2})
    return folder


def test_the_history_of_a_training_is_a_page_an_animation_and_a_picture(call, watched):
    run = watched / "one" / "run"
    assert call("view", run, "--history", "-o", "page.html").out == b"page.html: 2 examples\n"
    records = _data(Path("page.html").read_text())
    assert [record["point"]["update"] for record in records] == [0, 0, 2, 2, 4, 4]
    assert {record["model"] for record in records} == {"run"}
    assert call("view", run, "--history", "--example", 2, "-o", "a.gif").out == b"a.gif: 1 example\n"
    assert call("view", run, "--history", "--example", 1, "-o", "a.png").code == 0
    assert call("view", run / "attention.jsonl", "-o", "again.html").out == b"again.html: 2 examples\n"
    shown = call("view", run, "--history").out.decode()
    assert shown.count("validation sentence") == 2
    assert shown.count(", update 4\n") == 2


def test_the_histories_of_two_runs_of_one_name_are_told_apart(call, watched):
    assert call("view", watched / "one" / "run", watched / "two" / "run", "--history", "-o", "page.html").out == b"page.html: 4 examples\n"
    assert len({record["model"] for record in _data(Path("page.html").read_text())}) == 2


def test_a_history_that_cannot_be_shown_says_why(call, runs, watched):
    run = watched / "one" / "run"
    for words, message in [
        (("view", runs[0], "--history"), "no attention was recorded in training; train with training.watch=3"),
        (("view", watched, "--history"), "not a run folder"),
        (("view", run, "--history", "--text", "Haus"), "--text: not with --history"),
        (("view", run, "--history", "--example", 3), "--example 3: there are 2 examples"),
        (("view", run, "--history", "-o", "a.gif"), "a.gif: an animation shows one example, found 2; choose one by --example"),
    ]:
        found = call(*words)
        assert found.code != 0
        assert message in found.err
