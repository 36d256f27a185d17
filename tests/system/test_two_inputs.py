"""Two inputs on the command line: two files in and one line out per line, pipes, JSON, errors that name the line, evaluate, view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data.link_lines import format_links
from regard.data.parallel import join_inputs
from regard.tasks import Translator
from regard.tasks.word_links import find_links
from tests.tasks import tiny
from tests.tasks.test_image_inputs import CELLS, IMAGE
from tests.tasks.test_two_inputs import CROSSED, LINES, SECOND, two, write_second

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two inputs, one of one, one that was trained without either, and the files of all."""
    place = tmp_path_factory.mktemp("two")
    two(place, decoding={"min_length": 3})
    two(place / "optional", model={**CROSSED, "second": {"drop": 0.3}})
    tiny.trained(place / "one", kind="word", decoding={"min_length": 3})
    return place


def lines_of(answer: Any) -> list[str]:
    assert answer.code == 0, answer.err
    return answer.out.decode().splitlines()


def test_training_takes_the_files_by_option_and_says_what_is_missing(call: Call, tmp_path: Path) -> None:
    files = {**tiny.write_pairs(tmp_path), **write_second(tmp_path)}
    named = [word for name, path in files.items() for word in (f"--{name.replace('_', '-')}", path)]
    small = ["recipe=none", "vocabulary.kind=word", "training.max_updates=1", "model.embed_dim=12", "model.ff_dim=13"]
    two_of = ["model.type=transformer", "model.second.kind=flat"]
    answer = call("train", "translation", "--out", tmp_path / "run", *named, *small, *two_of)
    assert answer.code == 0, answer.err
    assert "second_source" in (tmp_path / "run" / "config.yaml").read_text()
    answer = call("train", "translation", "--out", tmp_path / "other", *named, "recipe=none")
    assert answer.code != 0
    assert "data.second_source: needs a model of two inputs" in answer.err
    (tmp_path / "second").write_text("a\n", encoding="utf-8")
    answer = call("train", "translation", "--out", tmp_path / "other", *named, *small, *two_of)
    assert answer.code != 0
    assert "second: 1 line, but" in answer.err
    assert "line 2 is missing" in answer.err
    assert not (tmp_path / "other" / "config.yaml").exists()


def test_two_files_a_pipe_and_json_give_the_same_lines(call: Call, folder: Path) -> None:
    expected = [item.text for item in Translator.open(folder / "run").translate(LINES * 4)]
    assert len(set(expected)) > 1
    source, second = folder / "source", folder / "second"
    assert lines_of(call("translate", folder / "run", source, "--second-source", second)) == expected
    assert lines_of(call("translate", folder / "run", source, "--second-source", "-", stdin=second.read_bytes())) == expected
    assert lines_of(call("translate", folder / "run", "--second-source", second, stdin=source.read_bytes())) == expected
    assert lines_of(call("translate", folder / "run", stdin="".join(line + "\n" for line in LINES * 4).encode())) == expected
    asked = [{"id": i, "text": text, "second": other} for i, (text, other) in enumerate(zip(tiny.TEXTS, SECOND, strict=True))]
    found = lines_of(call("translate", folder / "run", "--json-input", stdin="".join(json.dumps(o) + "\n" for o in asked).encode()))
    assert [json.loads(line)["text"] for line in found] == expected[: len(asked)]
    assert lines_of(call("translate", folder / "run", source, "--second-source", second, "--ensemble", folder / "run")) == expected


def test_a_line_without_its_second_input_is_named_and_answered_by_an_empty_line(call: Call, folder: Path) -> None:
    answer = call("translate", folder / "run", stdin=f"{LINES[0]}\n{tiny.TEXTS[1]}\n\n{LINES[2]}\n".encode())
    assert answer.code == 1
    assert len(answer.out.decode().splitlines()) == 4
    assert answer.out.decode().splitlines()[1] == ""
    assert answer.out.decode().splitlines()[3] != ""
    assert "line 2: the second input is missing" in answer.err
    answer = call("translate", folder / "run", "--json-input", stdin=b'{"id": 7, "text": "ein Hund"}\n')
    assert answer.code == 1
    assert json.loads(answer.out)["id"] == 7
    told = 'line 1: the second input is missing; this model reads two, "text" and "second" (model.second.drop trains for one alone)'
    assert json.loads(answer.out)["error"] == told
    (folder / "blank").write_text("\n" * 20)
    answer = call("translate", folder / "run", folder / "source", "--second-source", folder / "blank")
    assert f"line 1: the second input is missing; this model reads two, the second from --second-source {folder / 'blank'} (" in answer.err
    # A run that was trained to do without it needs none.
    assert len(lines_of(call("translate", folder / "optional" / "run", stdin="".join(f"{t}\n" for t in tiny.TEXTS).encode()))) == 5


def test_links_and_beginnings_stay_with_their_lines_beside_one_without_an_answer(call: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "begin").write_text("Hund\nbellt\nHaus\n", encoding="utf-8")
    options = ("--links", tmp_path / "links", "--prefix", tmp_path / "begin")
    answer = call("translate", folder / "run", *options, stdin=f"{LINES[0]}\n{tiny.TEXTS[1]}\n{LINES[2]}\n".encode())
    own = Translator.open(folder / "run")
    expected = own.translate([LINES[0], LINES[2]], prefixes=["Hund", "Haus"])
    assert (answer.code, answer.out.decode().splitlines()) == (1, [expected[0].text, "", expected[1].text])
    links = find_links(own.run, [(line, item.text) for line, item in zip((LINES[0], LINES[2]), expected, strict=True)])
    assert (tmp_path / "links").read_text().split("\n") == [format_links(links[0]), "", format_links(links[1]), ""]
    assert all(links)


def test_a_line_of_three_columns_is_named_and_answered_by_an_empty_line(call: Call, folder: Path) -> None:
    for run, wanted in (("run", "2"), ("optional/run", "at most 2")):
        answer = call("translate", folder / run, stdin=f"{LINES[0]}\ta\n{LINES[1]}\n".encode())
        assert (answer.code, [bool(line) for line in answer.out.splitlines()]) == (1, [False, True])
        assert f"line 1: found 3 columns, expected {wanted}: the two inputs, with a tab between them" in answer.err
        answer = call("translate", folder / run, "--json-input", stdin=b'{"text": "ein Hund", "second": 3}\n')
        assert (answer.code, json.loads(answer.out)) == (1, {"error": "line 1: second: expected text, found a whole number"})
    answer = call("translate", folder / "one" / "run", "--json-input", stdin=b'{"text": "ein Hund", "second": "a"}\n')
    assert json.loads(answer.out) == {"error": "line 1: 'second': unknown field; known ones: id, text, prefix"}
    answer = call("score", folder / "run", "--json-input", stdin=b'{"source": "ein Hund", "target": "a"}\n')
    assert 'this model reads two, "source" and "second" (' in json.loads(answer.out)["error"]


def test_files_of_three_columns_are_read_by_evaluate_and_score(call: Call, folder: Path, tmp_path: Path) -> None:
    files = ("--source", folder / "source", "--target", folder / "target", "--second-source", folder / "second")
    expected = lines_of(call("evaluate", folder / "run", *files))
    columns = [(folder / name).read_text(encoding="utf-8").splitlines() for name in ("source", "second", "target")]
    (tmp_path / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)), encoding="utf-8")
    for run in ("run", "optional/run"):
        found = lines_of(call("evaluate", folder / run, "--source", tmp_path / "a.tsv"))
        assert found == (expected if run == "run" else lines_of(call("evaluate", folder / run, *files)))
    assert call("evaluate", folder / "run", "--input", tmp_path / "*.tsv", "--output", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "a.tsv").read_text(encoding="utf-8").splitlines() == expected
    piped = lines_of(call("score", folder / "run", stdin=(tmp_path / "a.tsv").read_bytes()))
    assert lines_of(call("score", folder / "run", "--source", tmp_path / "a.tsv")) == piped
    pairs = "".join(f"{one}\t{other}\n" for one, _, other in zip(*columns, strict=True)).encode()
    assert len(lines_of(call("score", folder / "optional" / "run", stdin=pairs))) == 20
    for words, told in (
        ((folder / "one" / "run",), "a.tsv, line 1: 3 columns, expected 2: the source, a tab, the target"),
        ((folder / "run", "--baseline", folder / "one" / "run"), "one reads two inputs, the other one"),
        ((folder / "run", "--second-source", folder / "second"), "a.tsv, line 1: 3 columns, expected 2"),
    ):
        answer = call("evaluate", *words, "--source", tmp_path / "a.tsv")
        assert answer.code == 2
        assert told in answer.err


def test_files_of_differing_counts_are_an_error_that_names_the_line(call: Call, folder: Path, tmp_path: Path) -> None:
    for name, lines, message in (
        ("short", SECOND[:3], "short: 3 lines, but there are more first inputs; line 4 is missing"),
        ("long", SECOND * 5, "long: more than 20 lines, but there is no first input for line 21"),
    ):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        answer = call("translate", folder / "run", folder / "source", "--second-source", tmp_path / name)
        assert answer.code != 0
        assert message in answer.err


def test_options_that_do_not_go_together_are_refused(call: Call, folder: Path) -> None:
    second = ("--second-source", folder / "second")
    for words, message in (
        ((folder / "run", "--second-source", "-"), "the first inputs are standard input already"),
        ((folder / "run", "--json-input", *second), "--second-source: not with --json-input"),
        ((folder / "one" / "run", *second), "reads one input"),
        ((folder / "run", "--keep-tags"), "keep tags: not with a model of two inputs"),
        ((folder / "run", "--ensemble", folder / "one" / "run"), "one reads two inputs, the other one"),
    ):
        answer = call("translate", *words, stdin=LINES[0].encode() + b"\n")
        assert answer.code not in (0, 1), words
        assert message in answer.err
    files = ("--source", folder / "source", "--target", folder / "target")
    for words, message in (
        ((folder / "run", *files), "reads two inputs"),
        ((folder / "one" / "run", *files, *second), "reads one input"),
    ):
        answer = call("evaluate", *words)
        assert answer.code != 0
        assert message in answer.err


def test_evaluate_score_and_view_read_both_inputs(call: Call, folder: Path, tmp_path: Path) -> None:
    files = ("--source", folder / "source", "--target", folder / "target", "--second-source", folder / "second")
    lines_of(call("evaluate", folder / "run", *files, "--output", tmp_path / "out", "--json", tmp_path / "scores.json"))
    expected = [item.text for item in Translator.open(folder / "run").translate(LINES * 4)]
    assert (tmp_path / "out").read_text(encoding="utf-8").splitlines() == expected
    typed = "".join(f"{line}\t{text}\n" for line, text in zip(LINES, tiny.TEXTS, strict=True))
    scored = lines_of(call("score", folder / "run", stdin=typed.encode()))
    asked = [{"source": t, "second": s, "target": t} for t, s in zip(tiny.TEXTS, SECOND, strict=True)]
    told = lines_of(call("score", folder / "run", "--json-input", stdin="".join(json.dumps(o) + "\n" for o in asked).encode()))
    assert [f"{json.loads(line)['log_prob']:.4f}" for line in told] == [line.split("\t")[0] for line in scored]
    answer = call("align", folder / "run", stdin=f"{tiny.TEXTS[0]}\t{tiny.TEXTS[0]}\n".encode())
    assert answer.code == 1
    assert "expected two inputs and a target, with tabs between them, found 2 columns" in answer.err
    lines_of(call("view", folder / "run", "--text", LINES[1], "-o", tmp_path / "record.json"))
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["items"]["second"]["tokens"] == [*SECOND[1].split(), "</s>"]
    assert "second input, cross 1" in [found["name"] for found in record["maps"]]
    answer = call("view", folder / "run", "--text", tiny.TEXTS[1])
    assert answer.code != 0
    assert "line 1: the second input is missing" in answer.err
    assert join_inputs(tiny.TEXTS[1], SECOND[1]) == LINES[1]


def test_images_are_named_by_a_list_from_training_to_the_page(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("generate", "scene-sentences", "--out", "s", "--count", 23, "--test", 3, "--seed", 3).code == 0
    files = ["--source", "s/train.source", "--second-source", "s/train.images", "--target", "s/train.target"]
    small = ["recipe=none", "vocabulary.kind=word", "training.max_updates=1", "model.embed_dim=12", "model.ff_dim=13", "model.num_heads=2"]
    image = ["model.type=crossed", f"model.second.image.size={IMAGE['size']}", "model.second.image.encoder.channels=[5,7]"]
    answer = call("train", "translation", "--out", "run", *files, "--images", "s", *small, *image)
    assert answer.code == 0, answer.err
    found = lines_of(call("translate", "run", "s/test.source", "--second-source", "s/test.images"))
    assert len(found) == 3
    assert lines_of(call("translate", "run", "s/test.source", "--second-source", "s/test.images", "--images", tmp_path / "s")) == found
    pairs = zip(*((tmp_path / "s" / name).read_text().splitlines() for name in ("test.source", "test.images")), strict=True)
    piped = "".join(f"{text}\ts/{name}\n" for text, name in pairs)
    assert lines_of(call("translate", "run", stdin=(piped).encode())) == found
    answer = call("translate", "run", stdin=(piped + "a red _\tnone.png\n").encode())
    assert answer.code == 1
    assert "line 4: no image none.png" in answer.err
    test = ["--source", "s/test.source", "--second-source", "s/test.images", "--target", "s/test.target"]
    assert "exact match" in call("evaluate", "run", *test, "--images", "s").out.decode()
    answer = call("view", "run", "--text", "a red _ above a _ circle", "--image", "s/test/000001.png", "--output", "page.html")
    assert answer.code == 0, answer.err
    assert "data:image/png;base64," in (tmp_path / "page.html").read_text()
    answer = call("view", "run", "--text", "a", "--image", "s/test/000001.png", "--image", "s/test/000002.png")
    assert "--text and --image: 1 and 2, expected an image for each text" in answer.err
    answer = call("train", "translation", "--out", "other", *files, *small, *image, f"data.max_length={CELLS - 1}")
    assert "but an image of 16 pixels has 16 cells" in answer.err


def test_a_model_of_text_takes_no_images(call: Call, folder: Path) -> None:
    answer = call("translate", folder / "run", folder / "source", "--second-source", folder / "second", "--images", folder)
    assert answer.code != 0
    assert f"--images: {folder / 'run'} reads no images" in answer.err


def test_json_lines_refuse_tabs_and_keys_given_twice_and_may_leave_the_first_input_out(call: Call, folder: Path) -> None:
    lines = ['{"text": "ein\\tHund"}', '{"text": "ein", "second": "EIN", "second": "DAS"}', '{"text": "ein", "second": "EIN"}']
    answer = call("translate", folder / "run", "--json-input", stdin="".join(f"{line}\n" for line in lines).encode())
    found = [json.loads(line) for line in answer.out.decode().splitlines()]
    assert answer.code == 1
    assert [found[0]["error"], found[1]["error"]] == [
        'line 1: text: found 2 columns, expected 1; the two inputs are in "text" and "second"',
        "line 2: the key 'second' stands twice in an object",
    ]
    assert found[2]["text"]
    alone = lines_of(
        call("translate", folder / "optional" / "run", "--json-input", stdin=b'{"second": "EIN"}\n{"text": "", "second": "EIN"}\n')
    )
    assert alone[0] == alone[1]


def test_an_image_is_not_read_as_words(call: Call, folder: Path, tmp_path: Path) -> None:
    for run, text in ((folder / "one" / "run", "ein Hund"), (folder / "run", "ein Hund\tEIN")):
        answer = call("view", run, "--text", text, "--image", tmp_path / "a.png")
        assert answer.code == 2
        assert f"--text and --image: {run} does not read both" in answer.err


def test_the_hint_for_a_crossed_model_is_one_it_takes(call: Call, tmp_path: Path) -> None:
    files = {**tiny.write_pairs(tmp_path), **write_second(tmp_path)}
    named = [word for name, path in files.items() for word in (f"--{name.replace('_', '-')}", path)]
    answer = call("train", "translation", "--out", tmp_path / "run", *named, "model.type=crossed", "recipe=none")
    assert "such as model.second.kind=crossed" in answer.err


def test_evaluate_names_the_file_and_the_line_without_a_second_input(call: Call, folder: Path, tmp_path: Path) -> None:
    lines = (folder / "second").read_text(encoding="utf-8").splitlines()
    (tmp_path / "half").write_text("\n".join([*lines[:2], "", *lines[3:]]) + "\n", encoding="utf-8")
    files = ("--source", folder / "source", "--target", folder / "target", "--second-source", tmp_path / "half")
    answer = call("evaluate", folder / "run", *files)
    assert answer.code == 2
    told = f"{tmp_path / 'half'}, line 3: the second input is missing; this model reads two, the second from --second-source"
    assert told in answer.err
