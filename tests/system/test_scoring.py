"""`regard score`, `regard align`, `regard translate` with its options: a line out for each pair in, from files, pipes and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data.link_lines import format_links
from regard.data.markup import split_markup
from regard.data.markup_placement import place_markup
from regard.tasks import Translator
from regard.tasks.forced_text import Glossary, read_terms
from regard.tasks.translation_run import open_translation_run
from regard.tasks.word_links import FILE, find_links
from tests.tasks import tiny, tiny_sentences

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Transformer, a model without attention, a labeller, and files of pairs."""
    place = tmp_path_factory.mktemp("pairs")
    tiny.trained(place, kind="word", model=tiny.FAMILIES["transformer"], decoding={"min_length": 3})
    tiny.trained(place / "plain", kind="word", model={"attention": None})
    tiny_sentences.train(tiny_sentences.configuration(place / "labels", training={"max_updates": 2}), place / "labels-run")
    return place


def pairs_of(folder: Path) -> list[tuple[str, str]]:
    sides = [(folder / name).read_text(encoding="utf-8").splitlines() for name in ("source", "target")]
    return list(zip(*sides, strict=True))


def lines_of(answer: Any) -> list[str]:
    assert answer.code == 0, answer.err
    return answer.out.decode().splitlines()


def test_pairs_get_the_same_score_from_files_from_a_pipe_and_as_json(call: Call, folder: Path) -> None:
    pairs = pairs_of(folder)
    files = lines_of(call("score", folder / "run", "--source", folder / "source", "--target", folder / "target"))
    assert len(files) == len(pairs)
    typed = "".join(f"{source}\t{target}\n" for source, target in pairs).encode()
    assert lines_of(call("score", folder / "run", stdin=typed)) == files
    (folder / "pairs.tsv").write_bytes(typed)
    assert lines_of(call("score", folder / "run", "--source", folder / "pairs.tsv")) == files
    asked = "".join(json.dumps({"id": i, "source": source, "target": target}) + "\n" for i, (source, target) in enumerate(pairs))
    found = [json.loads(line) for line in lines_of(call("score", folder / "run", "--json-input", stdin=asked.encode()))]
    assert [f"{item['log_prob']:.4f}\t{item['log_prob_per_token']:.4f}" for item in found] == files
    assert [item["id"] for item in found] == list(range(len(pairs)))
    assert all(len(item["tokens"]) == len(item["log_probs"]) for item in found)


@pytest.mark.parametrize("command", ["score", "align"])
def test_words_of_pairs_that_the_model_does_not_know_are_told(call: Call, folder: Path, command: str) -> None:
    answer = call(command, folder / "run", stdin=b"ein zebra bellt\tbellt ein zebu\nein Hund\tHund ein\n")
    assert len(lines_of(answer)) == 2
    hint = " (the run expects words separated by spaces)"
    assert f"1 of 5 words unknown to the source vocabulary, in 1 of 2 lines; most often 'zebra'{hint}" in answer.err
    assert f"1 of 5 words unknown to the target vocabulary, in 1 of 2 lines; most often 'zebu'{hint}" in answer.err


def test_an_ensemble_of_a_model_with_itself_scores_as_the_model(call: Call, folder: Path) -> None:
    files = ("--source", folder / "source", "--target", folder / "target")
    alone, both = (lines_of(call("score", folder / "run", *files, *more)) for more in ((), ("--ensemble", folder / "run")))
    for one, two in zip(alone, both, strict=True):
        assert [float(cell) for cell in one.split("\t")] == pytest.approx([float(cell) for cell in two.split("\t")], abs=2e-4)


def test_links_of_given_pairs_and_of_translations_are_those_of_python(call: Call, folder: Path, tmp_path: Path) -> None:
    run, pairs = open_translation_run(folder / "run"), pairs_of(folder)
    for words, options in (
        ((), {}),
        (("--method", "leave-one-out"), {"method": "leave-one-out"}),
        (("--link-unit", "character"), {"unit": "character"}),
    ):
        found = lines_of(call("align", folder / "run", "--source", folder / "source", "--target", folder / "target", *words))
        assert found == [format_links(links) for links in find_links(run, pairs, **options)]  # type: ignore[arg-type]
    sources = ["ein Hund bellt", "", "Häuser"]
    texts = lines_of(call("translate", folder / "run", "--links", tmp_path / "links", stdin="\n".join(sources).encode()))
    written = (tmp_path / "links").read_text().split("\n")
    assert written == [*(format_links(links) for links in find_links(run, list(zip(sources, texts, strict=True)))), ""]
    assert written[0]
    asked = json.dumps({"source": sources[0], "target": texts[0]}).encode()
    (answer,) = lines_of(call("align", folder / "run", "--json-input", stdin=asked))
    assert " ".join(f"{source}-{target}" for source, target in json.loads(answer)["links"]) == written[0]


def test_objects_have_the_links_of_their_lines_and_may_have_beginnings(call: Call, folder: Path, tmp_path: Path) -> None:
    own = Translator.open(folder / "run")
    texts, begins = ["ein Hund bellt", "", "H\u00e4user bellt"], ["der", "", ""]
    expected = own.translate(texts, prefixes=begins)
    links = [format_links(found) for found in find_links(own.run, [(one, item.text) for one, item in zip(texts, expected, strict=True)])]
    assert links[0]
    assert links[2]
    asked = [{"id": 5, "text": texts[0], "prefix": "der"}, {"id": 6}, {"text": texts[1]}, {"text": texts[2], "prefix": ""}, {"text": 3}]
    stdin = "".join(json.dumps(one) + "\n" for one in asked).encode()
    code, out, err = call("translate", folder / "run", "--json-input", "--links", tmp_path / "links", stdin=stdin)
    answers = [json.loads(line) for line in out.decode().splitlines()]
    assert (code, [answer.get("text") for answer in answers]) == (1, [expected[0].text, None, "", expected[2].text, None]), err
    assert ["error" in answer for answer in answers] == [False, True, False, False, True]
    assert (tmp_path / "links").read_text().split("\n") == [links[0], "", "", links[2], "", ""]
    found = [" ".join(f"{source}-{target}" for source, target in answer.get("links", [])) for answer in answers]
    assert found == [links[0], "", "", links[2], ""]
    assert ["links" in answer for answer in answers] == [True, False, True, True, False]
    wrong = json.dumps({"id": 1, "text": "Hund", "prefix": "a\nb"}).encode()
    answer = call("translate", folder / "run", "--json-input", stdin=wrong)
    assert json.loads(answer.out) == {"id": 1, "error": "line 1: prefix: expected one line of text, without a line feed"}


def test_a_file_of_beginnings_has_a_line_for_each_object_also_an_unreadable_one(call: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "begin").write_text("der\nein\nHaus\n")
    own = Translator.open(folder / "run")
    expected = own.translate(["Hund", "bellt"], prefixes=["der", "Haus"])
    stdin = b'{"text": "Hund"}\n{"text": "Hund", "prefix": "der"}\n{"text": "bellt"}\n'
    words = ("translate", folder / "run", "--json-input", "--prefix", tmp_path / "begin", "--links", "-")
    answer = call(*words, stdin=stdin)
    found = [json.loads(line) for line in answer.out.decode().splitlines()]
    assert (answer.code, [item.get("text") for item in found]) == (1, [expected[0].text, None, expected[1].text])
    assert found[1]["error"] == "line 2: 'prefix': unknown field; known ones: id, text"
    assert found[0]["links"]
    assert not Path("-").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_names_the_file_of_links(call: Call, folder: Path) -> None:
    code, _, err = call("translate", folder / "run", "--links", "/dev/full", stdin=b"a dog\n")
    assert (code, err.splitlines()[-1]) == (2, "regard: error: /dev/full: cannot be written (No space left on device)")


@pytest.mark.parametrize("more", [(), ("--ensemble", "run")])
def test_tags_are_carried_over_by_the_links_of_the_plain_line(call: Call, folder: Path, more: tuple[str, ...]) -> None:
    sources = ["ein <b>Hund</b> bellt {x}<br/>", "", "Häuser", "<hr/>"]
    options = [folder / word if word == "run" else word for word in more]
    answer = call("translate", folder / "run", "--keep-tags", *options, stdin="\n".join(sources).encode())
    texts = lines_of(answer)
    marked, own = split_markup(sources[0]), Translator.open(folder / "run", *(options[1:]))
    plain = [item.text for item in own.translate([marked.plain, sources[2]])]
    assert texts == [place_markup(marked, plain[0], find_links(own.run, [(marked.plain, plain[0])])[0]), "", plain[1], "<hr/>"]
    assert [texts[0].count(part) for part in ("<b>", "</b>", "{x}", "<br/>")] == [1] * 4
    asked = "\n".join(json.dumps({"text": source}) for source in sources).encode()
    found = [json.loads(line) for line in lines_of(call("translate", folder / "run", "--keep-tags", "--json-input", *options, stdin=asked))]
    assert [item["text"] for item in found] == texts
    broken = json.dumps({"text": "ein Hund\nbellt"}).encode()
    (answer,) = (
        json.loads(line) for line in lines_of(call("translate", folder / "run", "--keep-tags", "--json-input", *options, stdin=broken))
    )
    assert answer["text"].count("\n") == 1
    several = lines_of(call("translate", folder / "run", "--keep-tags", "--n-best", 2, *options, stdin=sources[0].encode()))
    hypotheses = json.loads(several[0])["hypotheses"]
    assert [item["text"].count("<b>") for item in hypotheses] == [1, 1]
    assert hypotheses[0]["text"] == texts[0]


def test_beginnings_and_terms_are_held_and_what_is_not_is_told(call: Call, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "begin").write_text("der\n\nein\n")
    (tmp_path / "terms.tsv").write_text("Hund\tHaus\nbellt\tZebra\n")
    own = Translator.open(folder / "run")
    sources = ["ein Hund bellt", "Hund", ""]
    expected = own.translate(sources, prefixes=["der", "", "ein"], terms=Glossary(read_terms(tmp_path / "terms.tsv")))
    words = ("translate", folder / "run", "--prefix", tmp_path / "begin", "--terms", tmp_path / "terms.tsv")
    answer = call(*words, stdin="\n".join(sources).encode() + b"\n")
    assert lines_of(answer) == [item.text for item in expected]
    assert expected[0].text.split()[0] == "der"
    assert all("Haus" in item.text.split() for item in expected[:2])
    assert "line 1: left out 'Zebra', the vocabulary lacks one of its words" in answer.err
    assert "line 2" not in answer.err
    assert "line 3: no room for 'ein'" in answer.err
    found = [json.loads(line) for line in lines_of(call(*words, "--json", stdin="\n".join(sources).encode() + b"\n"))]
    assert [item.get("unplaced") for item in found] == [["Zebra"], None, ["ein"]]
    for stdin, told in ((b"Hund\n", "has more lines"), (b"Hund\n" * 4, "has fewer lines")):
        short = call(*words, stdin=stdin)
        assert short.code == 2
        assert told in short.err


def test_an_empty_document_has_an_empty_translation(call: Call, folder: Path, tmp_path: Path) -> None:
    for name, text in (("a.txt", b""), ("a.md", b""), ("a.html", b""), ("b.txt", b"\n")):
        (tmp_path / name).write_bytes(text)
        answer = call("translate", folder / "run", "--document", tmp_path / name)
        assert (answer.code, answer.out) == (0, text)


def test_a_document_keeps_its_line_ends(call: Call, folder: Path, tmp_path: Path) -> None:
    for name, text in (("a.txt", "ein Hund\n\nHaus\n"), ("a.md", "# ein Hund\n\n- Haus\n")):
        found = []
        for end in ("\n", "\r\n"):
            (tmp_path / name).write_bytes(text.replace("\n", end).encode())
            found.append(call("translate", folder / "run", "--document", tmp_path / name).out)
        assert found[1] == found[0].replace(b"\n", b"\r\n")


def test_a_choice_can_be_made_again(call: Call, folder: Path) -> None:
    before = (folder / "run" / FILE).read_bytes()
    (folder / "run" / FILE).write_text("{}")
    damaged = call("align", folder / "run", "--source", folder / "source", "--target", folder / "target")
    assert (damaged.code, damaged.out) == (2, b"")
    assert f"{FILE}: damaged" in damaged.err
    answer = call("align", folder / "run", "--source", folder / "source", "--target", folder / "target", "--choose")
    assert "links come from decoder.layers." in answer.err
    assert len(lines_of(answer)) == 20
    assert json.loads((folder / "run" / FILE).read_bytes()).keys() == json.loads(before).keys()


@pytest.mark.parametrize("command", ["score", "align"])
def test_a_line_that_is_no_pair_gets_an_empty_line_and_the_exit_code_says_so(call: Call, folder: Path, command: str) -> None:
    answer = call(command, folder / "run", stdin=b"ein Hund\nein Hund\tHund ein\na\tb\tc\n")
    assert answer.code == 1
    lines = answer.out.decode().split("\n")
    assert (lines[0], bool(lines[1]), lines[2:]) == ("", True, ["", ""])
    assert "line 1: expected a source, a tab and a target, found 1 column" in answer.err
    assert "line 3: expected a source, a tab and a target, found 3 columns" in answer.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("score {}/run --target {}/target", "--target: needs --source"),
        (
            "score {}/run --source {}/source",
            "source: expected a .jsonl, .tsv, .csv or .tmx file of pairs, or a second file with the targets (--",
        ),
        ("score {}/run --source {}/source --target {}/short", "short: 1 line, but "),
        ("score {}/run --source {}/source --target {}/none", "none: no such file"),
        ("score {}/run --source {}/source --target {}/target --json-input", "--json-input: reads standard input, not --source"),
        ("score {}/labels-run", "a run of the task classification; `regard score` needs a language model or a translation model"),
        ("align {}/plain/run --source {}/source --target {}/target", "no attention over the source; the method leave-one-out needs none"),
        ("align {}/run --choose", "--choose: needs --source"),
        ("align {}/plain/run --choose --source {}/source --target {}/target", "--choose: no attention over the source to choose from"),
        ("translate {}/plain/run --links {}/new.links", "no attention over the source"),
        ("translate {}/run --links {}", "cannot be written"),
        ("translate {}/run --links {}/new.links --keep-tags", "--links: not with --keep-tags"),
        ("translate {}/plain/run {}/source --keep-tags", "keep tags: this model has no attention over the source"),
        ("translate {}/run --terms {}/short --sample", "--terms: not with --sample"),
        ("translate {}/run --terms {}/short", "short, line 1: expected a term, a tab and its translation"),
        ("translate {}/run --prefix -", "-: expected a file, not standard input"),
        ("translate {}/run --links -", "--links -: only with --json, --json-input or --n-best, whose objects then have the links"),
        ("translate {}/plain/run --links - --json", "links: this model has no attention over the source"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(call: Call, folder: Path, words: str, told: str) -> None:
    (folder / "short").write_text("Hund\n")
    answer = call(*words.replace("{}", str(folder)).split())
    assert (answer.code, answer.out) == (2, b"")
    assert told in answer.err
    assert answer.err.count("\n") == 1
