"""Labelled sentences and pairs in every format the collections come in; what does not fit is named by file and line."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from regard import progress
from regard.data.labelled import (
    LabelledExample,
    hold_out_labelled,
    lowercase_text,
    plan_labelled,
    read_entailment,
    read_sentences,
)
from regard.errors import ConfigError, DataError


def put(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "good\ta joy , really\nbad\t\n"),
        ("a.tsv", "label\ttext\ngood\ta joy , really\nbad\t\n"),
        ("a.tsv", "label\ttext\tTEXT\tLabel\ngood\ta joy , really\tc\td\nbad\t\te\tf\n"),
        ("a.tsv", "Label\tTEXT\ngood\ta joy , really\nbad\t\n"),
        ("a.tsv", "sentence\tnumber\tlabel\na joy , really\t7\tgood\n\t8\tbad\n"),
        ("a.jsonl", '{"label": "good", "text": "a joy , really", "other": 3}\n{"sentence": "", "label": "bad"}\n'),
        ("a.all", "good a joy , really\nbad \n"),
        ("a", "good a joy , really\r\nbad \r\n"),
    ],
)
def test_every_format_gives_the_same_examples(tmp_path: Path, name: str, text: str) -> None:
    first = 2 if text.lower().startswith(("label\t", "sentence\t")) else 1
    expected = [LabelledExample("good", ("a joy , really",), first), LabelledExample("bad", ("",), first + 1)]
    assert read_sentences(put(tmp_path / name, text)).examples == expected
    assert read_sentences(put(tmp_path / f"{name}.gz", gzip.compress(text.encode()))).examples == expected
    assert read_sentences(tmp_path / f"{name}.gz", encoding="latin-1").examples == expected


def test_a_label_of_json_may_be_a_whole_number(tmp_path: Path) -> None:
    assert read_sentences(put(tmp_path / "a.jsonl", '{"label": 1, "text": "a"}\n')).examples[0].label == "1"


def test_a_file_that_may_be_latin_1_is_told_of_the_setting(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "a.txt").write_bytes("pos café\nneg b\n".encode("latin-1"))
    read_sentences(tmp_path / "a.txt")
    told = "has characters U+FFFD, as where bytes are not UTF-8; an old collection may need data.encoding=latin-1"
    assert messages[-1] == f"{tmp_path / 'a.txt'}: {told}"
    messages.clear()
    read_sentences(tmp_path / "a.txt", encoding="latin-1")
    assert messages == []


def test_latin_1_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "a.all", b"1 caf\xe9 \x85 x\n0 b\n")
    assert [example.texts for example in read_sentences(path, encoding="latin-1").examples] == [("caf\xe9 \x85 x",), ("b",)]


SICK = (
    "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    "1\ta dog\tan animal\t4.5\tentailment\n2\ta dog\ta cat\t3\tneutral\n"
)
SNLI = (
    "gold_label\tsentence1_parse\tsentence1\tsentence2\nentailment\t(a)\ta dog\tan animal\n-\t(a)\ta dog\tx\nneutral\t(a)\ta dog\ta cat\n"
)
OFFICIAL = [
    {
        "gold_label": "entailment",
        "sentence1": "a dog",
        "sentence2": "an animal",
        "pairID": "3",
        "annotator_labels": ["entailment", "neutral"],
    },
    {"gold_label": "-", "sentence1": "a dog", "sentence2": "x"},
    {"gold_label": "neutral", "sentence1": "a dog", "sentence2": "a cat"},
]


@pytest.mark.parametrize(
    ("name", "text", "dropped"),
    [
        ("a.tsv", "entailment\ta dog\tan animal\nneutral\ta dog\ta cat\n", 0),
        ("a.tsv", "label\tpremise\thypothesis\nentailment\ta dog\tan animal\nneutral\ta dog\ta cat\n", 0),
        ("SICK.txt", SICK, 0),
        ("SICK.txt", SICK.replace("\n", "\r\n"), 0),
        ("snli.txt", SNLI, 1),
        ("snli.jsonl", "".join(json.dumps(item) + "\n" for item in OFFICIAL), 1),
        (
            "a.jsonl",
            '{"label": "entailment", "premise": "a dog", "hypothesis": "an animal"}\n'
            '{"label": "neutral", "premise": "a dog", "hypothesis": "a cat"}',
            0,
        ),
    ],
)
def test_every_format_gives_the_same_pairs(tmp_path: Path, name: str, text: str, dropped: int) -> None:
    file = read_entailment(put(tmp_path / name, text))
    assert [(label, texts) for label, texts, _ in file.examples] == [
        ("entailment", ("a dog", "an animal")),
        ("neutral", ("a dog", "a cat")),
    ]
    assert file.dropped == dropped


@pytest.mark.parametrize(
    ("read", "name", "text", "message"),
    [
        (read_sentences, "a.tsv", "good\ta\ngood\n", "a.tsv, line 2: 1 column, expected 2"),
        (read_sentences, "a.tsv", "good\ta\tb\n", "a.tsv, line 1: 3 columns, expected 2"),
        (read_sentences, "a.tsv", "label\ttext\tx\nbad\n", "a.tsv, line 2: 1 column, but the first line names 3"),
        (read_sentences, "a.tsv", "label\ttext\ttext\nbad\ta\tb\n", "a.tsv, line 1: 2 columns are named text"),
        (read_sentences, "a.tsv", " \ta\n", "a.tsv, line 1: the label is empty"),
        (read_sentences, "a.txt", "good a\n\n", "a.txt, line 2: an empty line; remove it"),
        (read_sentences, "a.txt", "", "a.txt: no lines"),
        (read_sentences, "a.tsv", "label\ttext\n", "a.tsv: no lines"),
        (read_sentences, "a.tsv", "label\treview\n", "a.tsv, line 1: a column is named label, but none text or sentence"),
        (read_sentences, "a.jsonl", '{"label": "a"\n', "a.jsonl, line 1: not JSON"),
        (read_sentences, "a.jsonl", "[" * 100_000, "a.jsonl, line 1: more than 64 levels"),
        (read_sentences, "a.jsonl", "3\n", "a.jsonl, line 1: expected an object with a label and texts, found a whole number"),
        (
            read_sentences,
            "a.jsonl",
            '{"text": "a"}\n',
            "line 1: expected one of the keys label, gold_label, entailment_judgment, class, category, found text",
        ),
        (read_sentences, "a.jsonl", '{"label": 0.5, "text": "a"}\n', "a label that is text or a whole number, found a number"),
        (read_sentences, "a.jsonl", '{"label": true, "text": "a"}\n', "a label that is text or a whole number, found true or false"),
        (read_sentences, "a.jsonl", '{"label": "a", "text": ["b"]}\n', "expected text, found a list"),
        (read_entailment, "a.tsv", "yes\ta\n", "a.tsv, line 1: 2 columns, expected 3"),
        (read_entailment, "a.tsv", "-\ta\tb\n", "a.tsv: every pair is labelled '-'"),
        (read_entailment, "a.jsonl", '{"label": "a", "premise": "b"}\n', "expected one of the keys hypothesis, sentence2, sentence_B"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, read: Callable[..., object], name: str, text: str, message: str) -> None:
    with pytest.raises(DataError) as refused:
        read(put(tmp_path / name, text))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named_in_either_encoding(tmp_path: Path) -> None:
    for encoding in ("utf-8", "latin-1"):
        with pytest.raises(DataError, match=r"nowhere\.tsv: no such file"):
            read_sentences(tmp_path / "nowhere.tsv", encoding=encoding)
        with pytest.raises(DataError, match=r"a\.tsv\.gz: damaged or truncated gzip data"):
            read_sentences(put(tmp_path / "a.tsv.gz", gzip.compress(b"good\ta\n" * 99)[:-9]), encoding=encoding)


def test_every_label_is_held_out_by_its_share_and_nothing_twice() -> None:
    examples = [LabelledExample("abbb"[number % 4], (str(number),), number + 1) for number in range(400)]
    train, held = hold_out_labelled(examples, 500, seed=7)
    assert sorted([*train, *held], key=lambda example: example.line) == examples
    assert Counter(example.label for example in held) == {"a": 10, "b": 30}
    assert [example.line for example in train] == sorted(example.line for example in train)
    assert hold_out_labelled(examples, 500, seed=7) == (train, held)
    assert hold_out_labelled(examples, 500, seed=8)[1] != held
    assert len(hold_out_labelled(examples, 13, seed=7)[1]) == 13
    assert len(hold_out_labelled(examples[:2], 500, seed=7)[1]) == 1


def test_too_little_to_hold_out_is_refused() -> None:
    with pytest.raises(DataError, match="1 labelled examples: at least 2"):
        hold_out_labelled([LabelledExample("a", ("b",), 1)], 500, seed=1)
    with pytest.raises(ConfigError, match="held_out: 0"):
        hold_out_labelled([LabelledExample("a", ("b",), 1)] * 3, 0, seed=1)


@pytest.mark.parametrize("lengths", [[[3, 11, 7, 2, 5] * 7], [[3, 11, 7, 2, 5] * 7, [13, 1, 2, 3, 4] * 7]])
def test_a_plan_holds_every_example_once_and_counts_examples(lengths: list[list[int]]) -> None:
    plan = plan_labelled(lengths, batch_tokens=40, seed=3, epoch=2)
    assert sorted(index for batch in plan for index in batch.indices) == list(range(35))
    assert all(batch.tokens == len(batch.indices) for batch in plan)
    assert plan == plan_labelled(lengths, batch_tokens=40, seed=3, epoch=2)
    assert plan != plan_labelled(lengths, batch_tokens=40, seed=3, epoch=3)


def test_lower_case_keeps_the_length() -> None:
    assert lowercase_text("Ein HAUS") == "ein haus"
    assert lowercase_text("\u0130X") == "\u0130x"  # its own lower case has two characters


def test_pairs_without_a_label_are_dropped_as_numbers_too(tmp_path: Path) -> None:
    rows = [f"{label},p,h" for label in (0, -1, 1, 2, -1)]
    (tmp_path / "a.csv").write_text("label,premise,hypothesis\n" + "\n".join(rows) + "\n")
    found = read_entailment(tmp_path / "a.csv")
    assert ([example.label for example in found.examples], found.dropped) == (["0", "1", "2"], 2)
    (tmp_path / "a.csv").write_text("label,premise,hypothesis\n-1,p,h\n1,p,h\n3,p,h\n")
    assert read_entailment(tmp_path / "a.csv").dropped == 0, "3 is no label of SNLI, so -1 may be one, too"


def test_a_mark_of_utf8_counts_more_than_the_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf1 x\n")
    assert [example.label for example in read_sentences(tmp_path / "a.txt", encoding="latin-1").examples] == ["1"]


def test_of_two_names_of_a_column_the_first_counts_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("category,Text,label,sentence\nx,two,good,one\n")
    told: list[progress.Event] = []
    with progress.listening(told.append):
        found = read_sentences(tmp_path / "a.csv").examples
    assert [(example.label, example.texts) for example in found] == [("good", ("one",))]
    lines = [event.text.partition("line 1: ")[2] for event in told if "is read" in event.text]
    assert lines == ["of the columns category, label, label is read", "of the columns Text, sentence, sentence is read"]
