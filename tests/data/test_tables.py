"""Tables: what spreadsheets write is read back, and what is no table is an error that names the line."""

from __future__ import annotations

import csv
import gzip
import io
import random
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from regard.data import read_entailment, read_pairs, read_sentences
from regard.data.captions import read_captions
from regard.data.lines import read_lines, scan_lines
from regard.data.parallel import stream_pairs
from regard.data.shards import ParallelText
from regard.data.tables import DELIMITERS
from regard.errors import ConfigError, DataError


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
        ('source,target\n"a,b\n' + "a dog,ein Hund\n" * 10_000, "line 2: not CSV: a quote is not closed"),
        ("source,target\na\rb,c\n", "line 2: not CSV: a carriage return within a line; such a cell stands in double quotes"),
        ('source,target\na,"b"c\n', "line 2: not CSV: .*; a quote within quotes is written twice"),
        ("source,source,target\na,b,c\n", "line 1: 2 columns are named source"),
        ("source,target\n", "no lines, expected at least one sentence pair"),
        ("source,target\ra,b\r", "line 1: expected a header .*; its lines end in carriage returns"),
        ("a,b\n", r"line 1: expected a header .*; data\.languages=\[A, B\] takes columns A and B"),
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
    (tmp_path / "a.tsv").write_text("sources\ttargets\na\tb\n")
    assert read_pairs(tmp_path / "a.tsv") == [("sources", "targets"), ("a", "b")]


@pytest.mark.parametrize(
    ("text", "languages", "message"),
    [
        ("source\ttarget\na\n", None, "line 2: 1 column, but the first line names 2"),
        ("id\tsource\ttarget\tnote\n1\ta\tb\tok\nc\td\tok\n", None, "line 3: 3 columns, but the first line names 4"),
        ("translation\tsource\na\tb\n", None, "line 1: a column is named source, but none target or tgt"),
        ("trg\tsrc\na\tb\n", None, "line 1: a column is named src, but none target or tgt"),
        ('"target"\t"source"\n"a"\t"b"\n', None, "line 1: names columns in quotes; name the file .csv"),
        ('"German"\t"English"\na\tb\n', ("English", "German"), "line 1: names columns in quotes; name the file .csv"),
        ("a\tb\nc\td\n", ("en", "de"), "line 1: names no columns, but data.languages is [en, de]"),
    ],
)
def test_a_header_that_is_not_understood_is_no_pair(tmp_path: Path, text: str, languages: tuple[str, str] | None, message: str) -> None:
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_pairs(tmp_path / "a.tsv", languages=languages)


def test_a_quoted_table_with_tabs_is_read_as_csv(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('"target"\t"source"\n"a"\t"b"\n')
    assert read_pairs(tmp_path / "a.csv") == [("b", "a")]


HEADERS = [
    ("German,English,source", ("German", "English"), ("a", "b")),
    ("English,German,source", ("German", "English"), ("b", "a")),
    ("target,source,German", ("target", "source"), ("a", "b")),
    ("source,target,note", ("German", "English"), ("a", "b")),
    ("German,source,target", ("German", "English"), None),
]


@pytest.mark.parametrize(("header", "languages", "expected"), HEADERS)
@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_columns_of_languages_come_before_all_others(
    tmp_path: Path, header: str, languages: tuple[str, str], expected: tuple[str, str] | None, ending: str
) -> None:
    text = f"{header}\na,b,c\n"
    path = tmp_path / f"a.{ending}"
    path.write_text(text if ending == "csv" else text.replace(",", "\t"))
    if expected is not None:
        assert read_pairs(path, languages=languages) == [expected]
        return
    with pytest.raises(DataError, match=r"line 1: (expected a header that names|names languages)"):
        read_pairs(path, languages=languages)


def test_languages_that_a_first_line_does_not_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("English\tDeutsch\na\tb\n")
    with pytest.raises(DataError, match=r"line 1: expected a header that names the columns German and English, .*move it down"):
        read_pairs(tmp_path / "a.tsv", languages=("German", "English"))
    with pytest.raises(DataError, match=r"line 1: names languages, but data\.languages is \[German, French\]; .*move it down"):
        read_pairs(tmp_path / "a.tsv", languages=("German", "French"))
    with pytest.raises(ConfigError, match="expected two different ones"):
        read_pairs(tmp_path / "a.tsv", languages=("English", "english"))


def test_objects_may_have_the_names_of_languages(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"translation": {"de": "ein", "en": "one"}}\n{"de": "zwei", "en": "two"}\n')
    assert read_pairs(path, languages=("en", "de")) == [("one", "ein"), ("two", "zwei")]
    with pytest.raises(DataError, match=r'line 1: expected a text under "source", found the keys de, en; data\.languages=\[A'):
        read_pairs(path)
    path.write_text('{"de": "ein", "en": "one"}\n{"source": "zwei", "target": "two"}\n')
    with pytest.raises(DataError, match='line 2: expected a text under "en", found the keys source, target'):
        read_pairs(path, languages=("en", "de"))
    path.write_text('{"source": "zwei", "target": "two"}\n{"de": "ein", "en": "one"}\n')
    with pytest.raises(DataError, match='line 2: expected a text under "source", found the keys de, en'):
        read_pairs(path, languages=("en", "de"))


def test_objects_may_have_the_short_names(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"src": "one", "tgt": "ein"}\n{"source": "two", "target": "zwei"}\n')
    assert read_pairs(tmp_path / "a.jsonl") == [("one", "ein"), ("two", "zwei")]


@pytest.mark.parametrize(
    ("encoding", "form"),
    [("utf-16-le", "UTF-16LE"), ("utf-16-be", "UTF-16BE"), ("utf-16", "UTF-16"), ("utf-32", "UTF-32"), ("utf-32-le", "UTF-32LE")],
)
def test_wide_characters_are_refused_with_and_without_a_mark(tmp_path: Path, encoding: str, form: str) -> None:
    (tmp_path / "a.tsv").write_bytes("der Hund\tthe dog\n".encode(encoding) * 3)
    for read in (read_pairs, read_lines, lambda path: read_sentences(path, encoding="latin-1")):
        with pytest.raises(DataError, match=rf"a\.tsv: is {form[:6]}.* iconv -f {form} -t UTF-8$"):
            read(tmp_path / "a.tsv")


def test_captions_with_more_columns_are_refused(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "a.tsv").write_text("a.png\ta dog\ta cat\n")
    with pytest.raises(DataError, match=r"a\.tsv, line 1: expected image, a tab, the caption, found 3 columns"):
        read_captions(tmp_path / "a.tsv")


def test_cells_may_be_long_and_have_any_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('source,target\n"a\rb\r\nc\nd",' + "x" * 300_000 + "\n", newline="")
    assert read_pairs(path) == [("a b c d", "x" * 300_000)]


@pytest.mark.parametrize(("name", "text"), [("a.tsv", "sep=\t\nsource\ttarget\na\tb\n"), ("a.csv", '"SEP=;"\nsource;target\na;b\n')])
def test_a_line_may_tell_the_separator(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert read_pairs(tmp_path / name) == [("a", "b")]


def test_languages_may_follow_a_line_that_tells_the_separator(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("sep=;\nGerman;English;source\na;b;c\n")
    assert read_pairs(tmp_path / "a.csv", languages=("English", "German")) == [("b", "a")]


def test_a_separator_that_a_tsv_file_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("sep=;\nsource;target\na;b\n")
    with pytest.raises(DataError, match=r"line 1: 'sep=;', but cells of a \.tsv file have tabs between them"):
        read_pairs(tmp_path / "a.tsv")


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.CSV.GZ"])
def test_gzip_data_is_read_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"source,target\na,b\n"))
    assert read_pairs(tmp_path / name) == [("a", "b")]


def test_text_in_utf_16_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("source,target\na,b\n".encode("utf-16"))
    with pytest.raises(DataError, match=r"a\.csv: is UTF-16.* iconv -f UTF-16 -t UTF-8"):
        read_pairs(tmp_path / "a.csv")


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
    path.write_text("label,premise,hypothesis\nneutral,a,b\n-,a,b\n")
    found = read_entailment(path)
    assert ([own.texts for own in found.examples], found.dropped) == ([("a", "b")], 1)
    path.write_text("label,premise,hypothesis\n+,a,b\n-,a,b\n")
    found = read_entailment(path)
    assert ([own.label for own in found.examples], found.dropped) == (["+", "-"], 0)
    (tmp_path / "a.tsv").write_text("label\ttext\na\tb\tc\n")
    with pytest.raises(DataError, match="line 2: 3 columns, but the first line names 2; a text has no tab"):
        read_sentences(tmp_path / "a.tsv")
    (tmp_path / "a.txt").write_text("label,text\na,b c\n")
    with pytest.raises(DataError, match=r"a\.txt, line 1: names the columns of a table: name the file \.csv"):
        read_sentences(tmp_path / "a.txt")
    path.write_text("good,a joy\n")
    with pytest.raises(DataError, match=r"a\.csv, line 1: expected a header that names the columns label .* and text \(or sentence\)"):
        read_sentences(path)


def test_a_first_line_in_other_words_is_told(tmp_path: Path, messages: list[str]) -> None:
    for first, told in (("sentiment\treview", True), ("good\treview", False)):
        (tmp_path / "a.tsv").write_text(f"{first}\n" + "good\tfine\nbad\tawful\n" * 6)
        assert len(read_sentences(tmp_path / "a.tsv").examples) == 13
        assert any("line 1: no other line has its label, 'sentiment'; if it is a header" in text for text in messages) == told
        messages.clear()


def test_utf_8_is_read_so_whatever_the_setting(tmp_path: Path, messages: list[str]) -> None:
    text = "gut\tschön\nschlecht\tübel\n"
    for encoding in ("utf-8", "latin-1"):
        (tmp_path / "a.tsv").write_bytes(text.encode(encoding))
        examples = read_sentences(tmp_path / "a.tsv", encoding="latin-1").examples
        assert [own.texts for own in examples] == [("schön",), ("übel",)]
    assert [text for text in messages if "is UTF-8, and read so, despite data.encoding=latin-1" in text] == messages[:1]


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
        ("a.jsonl", "[]\n", "line 1: expected an object with an image and its caption, found a list"),
        ("a.jsonl", '{"image": "a.png"}\n', "line 1: expected one of the keys caption, text, comment, captions, found image"),
        ("a.jsonl", '{"image": "a.png", "captions": []}\n', 'line 1: expected a text, or a list of at least one, under "captions"'),
        ("a.jsonl", '{"image": "a.png", "text": "x", "captions": ["y"]}\n', "line 1: has both text and captions; give one of them"),
        ("a.jsonl", '{"image": "a.png", "caption": 3}\n', 'line 1: expected a text under "caption"'),
    ],
)
def test_what_is_no_file_of_captions_names_its_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_captions(tmp_path / name)


def test_cells_quoted_as_a_spreadsheet_does_it_are_told_in_tsv(tmp_path: Path, messages: list[str]) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('a\t"b"\n"He said ""x"""\tc\n"""d""\te"\n')
    assert len(read_pairs(path)) == 3
    assert [text for text in messages if "quoted as in CSV" in text] == [
        f"{path}: line 2 has a cell quoted as in CSV; these quotes are read as text: name the file .csv to have them removed"
    ]


@pytest.mark.parametrize(
    ("first", "refused"),
    [
        ("English\tGerman", True),
        ("Englisch\tDeutsch", True),
        ("en_GB\tde_DE", True),
        ("German\tDeutsch", False),
        ("en\tde", True),
        ("eng\tdeu", True),
        ("it\tit", False),
        ("ab\tin den", False),
        ("Dog\tGerman", False),
    ],
)
def test_a_first_line_that_names_two_languages_is_refused(tmp_path: Path, first: str, refused: bool) -> None:
    (tmp_path / "a.tsv").write_text(f"{first}\na\tb\n")
    if not refused:
        assert read_pairs(tmp_path / "a.tsv")[0] == tuple(first.split("\t"))
        return
    a, b = first.split("\t")
    with pytest.raises(DataError, match=rf"a\.tsv, line 1: names languages; data\.languages=\[{a}, {b}\] takes them as columns"):
        read_pairs(tmp_path / "a.tsv")
    assert read_pairs(tmp_path / "a.tsv", languages=(b, a)) == [("b", "a")]


def test_a_file_of_pairs_is_no_file_of_one_side(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("a\tb\n")
    (tmp_path / "a.en").write_text("a\n")
    for source, target in (("a.tsv", "a.tsv"), ("a.en", "a.tsv"), ("a.tsv", "a.en")):
        for read in (read_pairs, lambda *both: list(stream_pairs(*both)), lambda *both: ParallelText(*map(str, both))):
            with pytest.raises(DataError, match=r"a\.tsv: a file of pairs by its name; give it alone"):
                read(tmp_path / source, tmp_path / target)
    assert list(stream_pairs(tmp_path / "a.tsv", tmp_path / "a.en", columns=(3,))) == [("a\tb", "a")]


def test_text_in_another_encoding_is_refused_and_a_damaged_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.de"
    path.write_bytes("größer\n".encode("cp1252") * 30 + b"x\n" * 100)
    for read in (read_lines, lambda path: scan_lines(path, text=True)):
        with pytest.raises(DataError, match=r"a\.de: 30 of the first 130 lines are not UTF-8, perhaps Windows-1252; save it as UTF-8"):
            read(path)
    path.write_bytes("größer\n".encode("cp1252") * 19 + b"x\n" * 100)
    assert len(read_lines(path)) == 119


@pytest.mark.parametrize("head", ["sentence1\tsentence2\trelation", "premise\tx\thypothesis", "text\tkind\tx"])
def test_a_header_without_a_known_label_is_refused(tmp_path: Path, head: str) -> None:
    (tmp_path / "a.tsv").write_text(f"{head}\na\tb\tyes\n")
    read = read_sentences if head.startswith("text") else read_entailment
    with pytest.raises(DataError, match=r"a\.tsv, line 1: a column is named .*, but none label or gold_label"):
        read(tmp_path / "a.tsv")


def test_labels_with_tabs_and_json_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("neg\tthis is bad\n")
    with pytest.raises(
        DataError, match=r"a\.txt, line 1: expected a label, a space and a text; a file of columns with tabs .* is named \.tsv"
    ):
        read_sentences(tmp_path / "a.txt")
    (tmp_path / "a.TSV").write_text("neg\tthis is bad\n")
    assert read_sentences(tmp_path / "a.TSV").examples[0].label == "neg"
    (tmp_path / "a.json").write_text('[{"label": "a", "text": "b"}]')
    with pytest.raises(DataError, match=r"a\.json: expected a \.jsonl file, with an object a line"):
        read_sentences(tmp_path / "a.json")


def test_a_space_before_a_quote_is_refused_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text('label,text\n0,"a, b"\n1, "c"\n')
    with pytest.raises(DataError, match="line 3: a space before the quote that begins a cell; remove it"):
        read_sentences(file)
    file.write_text('source,target\na, "b, c"\n')
    with pytest.raises(DataError, match="line 2: a space before the quote"):
        read_pairs(file)
    file.write_text('source,target\n" ""b""", c\n')
    assert read_pairs(file) == [(' "b"', " c")]


@pytest.mark.parametrize(("name", "text"), [("a.tsv", "a\tb\n\n"), ("a.jsonl", '{"source": "a", "target": "b"}\n \n')])
def test_an_empty_line_among_pairs_is_named(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match="line 2: an empty line; remove it"):
        read_pairs(tmp_path / name)


def test_keys_count_in_any_letter_case_and_in_one_place(tmp_path: Path, messages: list[str]) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"Label": "x", "TEXT": "a"}\n')
    assert read_sentences(file).examples[0].texts == ("a",)
    file.write_text('{"EN": "a", "De": "b"}\n')
    assert read_pairs(file, languages=("en", "de")) == [("a", "b")]
    file.write_text('{"source": "a", "target": "b", "second_source": "c"}\n')
    assert list(stream_pairs(file, None, columns=(2, 3))) == [("a\tc", "b")]
    file.write_text('{"label": "x", "gold_label": "y", "text": "a"}\n')
    assert read_sentences(file).examples[0].label == "x"
    assert any("of the columns label, gold_label, label is read" in text for text in messages)
    for line in ('{"target": "b", "translation": {"source": "c"}}', '{"en": "a", "translation": {"en": "a", "de": "b"}}'):
        file.write_text(line + "\n")
        with pytest.raises(DataError, match=r'line 1: has texts under "translation", and (target|en) beside it; keep one of them'):
            read_pairs(file)
