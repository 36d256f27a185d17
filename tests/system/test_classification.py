"""The verbs of labelled sentences from end to end on small files: one line out for each line in, and one line for a mistake."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.tasks.tiny_sentences import pairs, sentences, write

SMALL = [
    "model.embed_dim=6",
    "model.encoder.hidden_size=5",
    "model.hops=3",
    "model.attention_dim=4",
    "model.mlp_dim=7",
    "training.max_updates=3",
    "training.batch_tokens=200",
    "data.max_length=50",
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DEVICE", "cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with small runs of both tasks and several vocabularies, and their files."""
    from regard.config import ClassificationConfig, EntailmentConfig, load_config
    from regard.tasks.classification_training import train_classification, train_entailment

    folder = tmp_path_factory.mktemp("runs")
    write(folder / "sentences.tsv", sentences(40, 5))
    write(folder / "pairs.tsv", pairs(40, 5))
    for kind in ("bpe", "unigram", "word", "character"):
        settings = [f"data.train={folder}/sentences.tsv", f"vocabulary.kind={kind}", "vocabulary.size=300", *SMALL]
        train_classification(load_config(None, settings, kind=ClassificationConfig), folder / kind)
    settings = [f"data.train={folder}/pairs.tsv", *SMALL]
    train_entailment(load_config(None, settings, kind=EntailmentConfig), folder / "pairs")
    return folder


def hostile_lines() -> list[bytes]:
    return [
        b"",
        b"   ",
        b"\xff\xfe broken \xc3",
        b"nul \x00 here",
        b"carriage\r",
        b"lone \r inside",
        "line\u2028separator".encode(),
        "next\u0085line".encode(),
        b"tab\x0b\x0cfeed",
        b"\x1c\x1d\x1e",
        "zero\u200bwidth".encode(),
        "\u200b".encode(),
        "\U0001f468\u200d\U0001f469 \u0645\u0631\u062d\u0628\u0627 \u6771\u4eac".encode(),
        b"x" * 1_000_000,
        b"x " * 100_000,
        b"</s> <pad> <unk>",
        b"\t",
        b"a\tb\tc",
    ]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character", "pairs"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_hostile_lines_give_one_line_each(call, runs, kind, options):
    lines = hostile_lines() if kind != "pairs" else [*hostile_lines(), *(line + b"\t" + line for line in hostile_lines()), b"a dog\ta cat"]
    answer = call("classify" if kind != "pairs" else "entail", runs / kind, *options, stdin=b"\xef\xbb\xbf" + b"\n".join(lines))
    assert answer.code == (1 if kind == "pairs" else 0), answer.err
    found = answer.out.decode().split("\n")
    assert len(found) == len(lines) + 1
    assert found[:2] == (['{"label": null, "probabilities": {}}'] * 2 if options else ["", ""])
    assert " at the end (data.max_length)" in answer.err
    if kind == "pairs":
        assert "error: line 18: expected a premise, a tab and a hypothesis, found 3 columns\n" in answer.err


def test_the_terminal_names_the_maps_that_it_does_not_draw(call, runs):
    answer = call("view", runs / "pairs", "--text", "a dog\ta cat")
    assert answer.out.decode().startswith("hops on the premise (others, by --map: hops on the hypothesis)\n"), answer.out


def test_a_word_outside_the_vocabulary_is_told_where_its_attention_is_shown(call, runs):
    for words in (["view"], ["view", "--method", "leave-one-out"], ["explain"]):
        answer = call(*words[:1], runs / "word", *words[1:], "--text", "zebra Zebra")
        told = "line 1: 2 of 2 words unknown to the vocabulary: 'zebra', 'Zebra' (the run expects words separated by spaces)"
        assert (answer.code, answer.err.count(told)) == (0, 1), answer.err
    Path("two.tsv").write_text("good\tzebra\ngood\tzebra\n")
    answer = call("explain", runs / "word", "--examples", "two.tsv", "--method", "leave-one-out")
    assert "2 of 2 words unknown to the vocabulary, in 2 of 2 lines; most often 'zebra'" in answer.err


def test_a_pair_without_one_of_its_texts_has_no_label(call, runs):
    answer = call("entail", runs / "pairs", stdin=b"\ta dog\na cat\t \n\t\na dog\ta cat\n")
    assert (answer.code, answer.out.decode().split("\n")[:3]) == (0, ["", "", ""])


def test_random_bytes_give_one_line_each(call, runs):
    generator = random.Random(7)
    lines = [bytes(generator.choice([b for b in range(256) if b != 10]) for _ in range(generator.randrange(30))) for _ in range(500)]
    for verb, run in (("classify", "bpe"), ("entail", "pairs")):
        answer = call(verb, runs / run, stdin=b"".join(line + b"\n" for line in lines))
        assert answer.code == (1 if verb == "entail" else 0)
        assert answer.out.count(b"\n") == len(answer.out.decode().splitlines()) == 500


def test_no_input_gives_no_output(call, runs):
    assert call("classify", runs / "word") == (0, b"", "")
    assert call("entail", runs / "pairs") == (0, b"", "")


def test_files_are_read_one_after_the_other_and_the_rate_is_told(call, runs):
    Path("a.txt").write_text("a joy\n\n")
    Path("b.txt").write_text("the mess with it\n")
    answer = call("classify", runs / "word", "a.txt", "b.txt", "--json", "--timing")
    found = [json.loads(line) for line in answer.out.splitlines()]
    assert [item["label"] is None for item in found] == [False, True, False]
    assert sum(found[0]["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert max(found[0]["probabilities"], key=found[0]["probabilities"].get) == found[0]["label"]
    timing = json.loads(answer.err)
    assert timing["lines"] == 3
    assert timing["sentences_per_second"] > 0
    assert call(
        "classify",
        runs / "word",
        stdin=b"a joy\n\nthe mess with it\n",
    ).out.split(b"\n")[:3] == [(item["label"] or "").encode() for item in found]


@pytest.mark.parametrize(("task", "rows", "verb"), [("classification", sentences, "classify"), ("entailment", pairs, "entail")])
def test_a_run_is_trained_measured_explained_and_resumed(call, task, rows, verb, monkeypatch):
    monkeypatch.delenv("REGARD_QUIET")
    write(Path("train.tsv"), rows(40, 3))
    write(Path("test.tsv"), rows(11, 4))
    Path("vectors.txt").write_text("joy 1 2 3 4 5 6\ndog 6 5 4 3 2 1\n")
    words = ["train", task, "--train", "train.tsv", "--test", "test.tsv", "--vectors", "vectors.txt", "--out", "run", *SMALL]
    first = call(*words)
    assert first.code == 0, first.err
    told = first.err if isinstance(first.err, str) else first.err.decode()
    assert "vectors.txt: vectors for 1 of " in told
    assert "accuracy " in told + first.out.decode()
    assert call(*words).code == 0
    lines = "".join("\t".join(row[1:]) + "\n" for row in rows(11, 4))
    assert call(verb, "run", stdin=lines.encode()).out.count(b"\n") == 11
    explained = call("explain", "run", "--examples", "train.tsv", "--max-words", 1, "--json", "e.json", "-o", "page.html")
    assert explained.code == 0, explained.err
    assert b"k = 1: without" in explained.out
    assert json.loads(Path("e.json").read_text())["overlap"]["hops"] == 3
    assert Path("page.html").read_text().startswith("<!doctype html>")
    measured = call("explain", "run", "--method", "all", "--faithfulness", "test.tsv", "--outputs", 1, "--json", "m.json")
    assert measured.code == 0, measured.err
    found = {item["method"]: item for item in json.loads(Path("m.json").read_text())["methods"]}
    assert found["leave-one-out"]["comprehensiveness"]["low"] <= found["leave-one-out"]["comprehensiveness"]["value"]
    assert "is no Transformer" in found["rollout"]["refused"]
    shown = call("explain", "run", "--method", "leave-one-out", "--examples", "test.tsv")
    assert shown.code == 0, shown.err
    assert shown.out.count(b"leave-one-out: ") == 11 + 1  # and what its scores are


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["classify", "nowhere"], "nowhere: no such run folder"),
        (["classify", "{runs}/pairs"], "a run of the task entailment; expected a run of the task classification; regard entail takes it"),
        (["entail", "{runs}/word"], "a run of the task classification; expected a run of the task entailment"),
        (["classify", "{runs}/word", "nowhere.txt"], "nowhere.txt: no such file"),
        (["explain", "{runs}/word", "--examples", "wide.tsv"], "wide.tsv, line 2: 3 columns, expected 2"),
        (["explain", "{runs}/word", "--examples", "strange.tsv", "-o", "a.png"], "a.png: expected a name ending in .html or .json"),
        (["explain", "{runs}/word", "--examples", "strange.tsv", "-o", "a.json", "--json", "a.json"], "both name a.json"),
        (["explain", "{runs}/word", "--examples", "strange.tsv"], "no example has more than 5 tokens"),
        (["explain", "{runs}/word"], "explain: give --text SENTENCE, or --examples FILE of labelled examples"),
        (["explain", "{runs}/word", "--text", "fine", "--examples", "good.tsv"], "--examples: not with --text"),
        (["explain", "{runs}/pairs", "--text", "fine"], "--text 'fine': expected the premise, a tab, the hypothesis"),
        (["explain", "{runs}/word", "--faithfulness", "good.tsv"], "--faithfulness: goes with --method NAME"),
        (["explain", "{runs}/word", "--method", "lime", "--examples", "good.tsv"], "--method 'lime': expected all, or one of weights"),
        (["explain", "{runs}/word", "--method", "all"], "--method: needs --source FILE for translation"),
        (["explain", "{runs}/bpe", "--method", "rollout", "--examples", "good.tsv"], "rollout: SentenceClassifier is no Transformer"),
        (["explain", "{runs}/bpe", "--method", "rollout", "--faithfulness", "strange.tsv"], "rollout: SentenceClassifier is no"),
        (["explain", "{runs}/word", "--method", "all", "--faithfulness", "good.tsv", "--seed", str(2**63)], "Invalid value for '--seed'"),
        (["explain", "{runs}/word", "--method", "all", "--source", "nowhere.txt"], ": error: nowhere.txt: no such file"),
        (["explain", "{runs}/word", "--method", "all", "--source", "good.tsv", "--target", "a"], "which has no targets"),
        (["explain", "{runs}/word", "--method", "all", "--examples", "good.tsv", "-o", "a.html"], "--output: not with --method"),
        (["train", "classification", "--out", "r"], "no training data given (--train FILE)"),
        (["train", "classification", "--train", "wide.tsv", "--out", "r"], "wide.tsv, line 2"),
        (["train", "classification", "--train", "good.tsv", "--test", "nowhere", "--out", "r"], "nowhere: no such file"),
        (
            ["train", "classification", "--train", "good.tsv", "--out", "r", "model.hop=3"],
            "did you mean model.hops?",
        ),
        (
            ["train", "classification", "--train", "good.tsv", "--out", "r", "model.encoder.type=crossed"],
            "model.encoder.type: expected rnn or transformer, found 'crossed'",
        ),
        (["train", "entailment", "--train", "good.tsv", "--out", "r"], "good.tsv, line 1: 2 columns, expected 3"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(call, runs, words, message):
    for name, text in {"wide.tsv": "good\ta\ngood\ta\tb\n", "good.tsv": "good\ta\nbad\tb\n", "strange.tsv": "good\ta b\n"}.items():
        Path(name).write_text(text)
    answer = call(*(word.replace("{runs}", str(runs)) for word in words))
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert not Path("r").exists()
