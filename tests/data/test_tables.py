"""Tables: what spreadsheets write is read back, and what is no table is an error that names the line."""

from __future__ import annotations

import csv
import gzip
import io
import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from regard.data import read_entailment, read_pairs, read_sentences
from regard.data.captions import read_captions
from regard.data.tables import DELIMITERS
from regard.errors import DataError


def table(rows: list[list[str]], delimiter: str = ",", **options: Any) -> str:
    stream = io.StringIO()
    csv.writer(stream, delimiter=delimiter, **options).writerows(rows)
    return stream.getvalue()


@pytest.mark.parametrize("delimiter", DELIMITERS)
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_what_a_csv_writer_writes_is_read_back(tmp_path: Path, delimiter: str, quoting: Any, mark: str) -> None:
    drawn = random.Random(f"{delimiter}{quoting}")
    texts = ["".join(drawn.choices('ab "' + "".join(DELIMITERS) + "'ü\u2028#\\", k=drawn.randrange(12))) for _ in range(80)]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    rows = [["id", "Target", "note", " source "], *([str(at), b, "", a] for at, (a, b) in enumerate(pairs))]
    path = tmp_path / "a.CSV"
    path.write_text(mark + table(rows, delimiter, quoting=quoting), encoding="utf-8", newline="")
    assert read_pairs(path) == pairs
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_pairs(tmp_path / "a.csv.gz") == pairs


def test_a_line_break_in_a_cell_is_a_space_and_later_errors_name_the_right_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'sep=;\r\nsource;target\r\n"a\r\nb";c\r\nd;"e\n\nf"\r\n')
    assert read_pairs(path) == [("a b", "c"), ("d", "e  f")]
    path.write_bytes(path.read_bytes() + b"g\r\n")
    with pytest.raises(DataError, match=r"a\.csv, line 8: 1 column, expected 2 as in line 2$"):
        read_pairs(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\nc,d\n", "line 1: expected a header that names the columns source .* and target .*, found 'a,b'; data.languages="),
        ("source,target\na,b,c\n", "line 2: 3 columns, expected 2 as in line 1; a text with ',' stands in double quotes"),
        ("source,target\na,b\n\nc,d\n", "line 3: an empty line, expected 2 columns as in line 1"),
        ('source,target\na,"b\nc,d\n', "line 2: not CSV: a quote is not closed"),
        ('source,target\na,"b"c\n', "line 2: not CSV: .*; a quote within quotes is written twice"),
        ("source,source,target\na,b,c\n", "line 1: 2 columns are named source"),
        ("source,target\n", "no lines, expected at least one sentence pair"),
        ("source,target\ra,b\r", "line 1: expected a header"),
    ],
)
def test_what_is_no_table_of_pairs_names_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    with pytest.raises(DataError, match=rf"a\.csv(, |: ){message}"):
        read_pairs(tmp_path / "a.csv")


def test_languages_name_columns_and_a_tsv_file_may_have_a_header(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("German,English\na,b\n")
    assert read_pairs(tmp_path / "a.csv", languages=("English", "German")) == [("b", "a")]
    (tmp_path / "a.tsv").write_text('note\tSource\tTarget\n\ta "\tb\n')
    assert read_pairs(tmp_path / "a.tsv") == [('a "', "b")]
    (tmp_path / "a.tsv").write_text("source\ttargets\na\tb\n")
    assert read_pairs(tmp_path / "a.tsv") == [("source", "targets"), ("a", "b")]
    (tmp_path / "a.tsv").write_text("source\ttarget\na\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 2: 1 column, but the first line names at least 2"):
        read_pairs(tmp_path / "a.tsv")


def test_two_inputs_are_columns(tmp_path: Path) -> None:
    path, other = tmp_path / "a.csv", tmp_path / "b.txt"
    path.write_text("target,second,source\nz,y,x\n")
    assert read_pairs(path, columns=(3,)) == read_pairs(path, columns=(2, 3)) == [("x\ty", "z")]
    assert read_pairs(path) == [("x", "z")]
    other.write_text("y\n")
    with pytest.raises(DataError, match=r"a\.csv, line 2: has a second input, and so has .*b\.txt; give one of them"):
        read_pairs(path, None, other)
    path.write_text("source,target\nx,z\n")
    assert read_pairs(path, columns=(2, 3)) == [("x", "z")]
    with pytest.raises(DataError, match=r"names the columns source .* and target .* and second"):
        read_pairs(path, columns=(3,))


def test_labelled_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('Sentence;Label\n"so; so";good\nbad;"no ""fun"""\n')
    assert [(own.label, own.texts, own.line) for own in read_sentences(path).examples] == [
        ("good", ("so; so",), 2),
        ('no "fun"', ("bad",), 3),
    ]
    path.write_text("label,premise,hypothesis\nyes,a,b\n-,a,b\n")
    found = read_entailment(path)
    assert ([own.texts for own in found.examples], found.dropped) == ([("a", "b")], 1)
    path.write_text("good,a joy\n")
    with pytest.raises(DataError, match=r"a\.csv, line 1: expected a header that names the columns label .* and text \(or sentence\)"):
        read_sentences(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("captions.txt", 'image,caption\na.png,"A dog , a cat"\nb.png,x\na.png,A dog .\n'),
        ("results.csv", "image_name| comment_number| comment\na.png| 0| A dog , a cat\na.png| 1| A dog .\nb.png| 0| x\n"),
        ("a.tsv", "caption\timage\nA dog , a cat\ta.png\nA dog .\ta.png\nx\tb.png\n"),
        (
            "metadata.jsonl",
            '{"file_name": "a.png", "text": "A dog , a cat"}\n{"image": "a.png", "captions": ["A dog ."]}\n'
            '{"image": "b.png", "caption": "x"}\n',
        ),
    ],
)
def test_captions_as_they_are_passed_around(tmp_path: Path, name: str, text: str) -> None:
    for image in "ab":
        Image.new("RGB", (4, 4)).save(tmp_path / f"{image}.png")
    (tmp_path / name).write_text(text)
    assert read_captions(tmp_path / name).references == [("A dog , a cat", "A dog ."), ("x",)]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "image,caption\n ,x\n", "line 2: expected the name of an image"),
        ("a.csv", "image,caption\na.png,\n", "line 2: an empty caption"),
        ("a.csv", "image,text,caption\na.png,x\n", "line 2: 2 columns, expected 3"),
        ("a.jsonl", "[]\n", "line 1: expected an object with an image and its caption, found list"),
        ("a.jsonl", '{"image": "a.png"}\n', "line 1: expected one of the keys caption, text, comment, captions, found image"),
        ("a.jsonl", '{"image": "a.png", "captions": []}\n', 'line 1: expected a text, or a list of at least one, under "captions"'),
        ("a.jsonl", '{"image": "a.png", "caption": 3}\n', 'line 1: expected a text under "caption"'),
    ],
)
def test_what_is_no_file_of_captions_names_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_captions(tmp_path / name)
