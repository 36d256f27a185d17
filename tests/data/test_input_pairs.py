"""Two inputs as one line and one row of tokens: the same tokens from both encoders, offsets into the line, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from regard.data import Vocabulary
from regard.data.input_pairs import PairEncoder, PairVocabulary, line_encoder
from regard.data.parallel import join_inputs, read_pairs
from regard.data.shards import ParallelText
from regard.data.text_encoder import TextEncoder
from regard.data.vocabulary import EOS
from regard.errors import DataError

FIRST, SECOND = ["ein Hund bellt", "das  Haus", "Hund"], ["a dog barks", "the house ", "no"]
VOCABULARIES = {kind: [Vocabulary.train(side, kind=kind, size=290) for side in (FIRST, SECOND)] for kind in ("bpe", "word", "character")}


def pair_of(kind: str, *, optional: bool = False) -> PairVocabulary:
    return PairVocabulary(*VOCABULARIES[kind], optional=optional)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_line_becomes_the_tokens_of_both_with_an_end_sign_between_them(kind: str) -> None:
    vocabulary, (one, two) = pair_of(kind), VOCABULARIES[kind]
    lines = [join_inputs(*both) for both in zip(FIRST, SECOND, strict=True)]
    expected = [[*one.encode(first).ids, EOS, *two.encode(second).ids] for first, second in zip(FIRST, SECOND, strict=True)]
    assert vocabulary.encode_ids(lines) == expected
    fast = PairEncoder(vocabulary).encode_bytes([line.encode() for line in lines])
    assert [row.tolist() for row in fast.tokens] == expected
    assert fast.lengths.tolist() == [max(ids.index(EOS), len(ids) - ids.index(EOS) - 1) for ids in expected]
    assert not fast.blank.any()


def test_offsets_point_into_the_line() -> None:
    line = join_inputs("ein\tHund", "a dog")
    found = pair_of("word").encode(line)
    assert [line[slice(*span)] for span in found.offsets] == ["ein", "Hund", "\t", "a", "dog"]
    assert found.pieces == ["ein", "Hund", "</s>", "a", "dog"]


def test_each_input_is_cut_to_a_length_of_its_own() -> None:
    found = pair_of("word").encode("ein Hund bellt\ta dog barks")
    assert found.first(2).pieces == ["ein", "Hund", "</s>", "a", "dog"]
    assert found.first(3) == found
    assert found.first(1).offsets == [(0, 3), (14, 15), (15, 16)]


@pytest.mark.parametrize(("line", "which"), [("ein Hund", "second"), ("ein Hund\t ", "second"), ("\ta dog", "first")])
def test_a_missing_input_is_named_unless_it_may_be_missing(line: str, which: str) -> None:
    with pytest.raises(DataError, match=f"the {which} input is missing.*model.second.drop"):
        pair_of("word").encode(line)
    assert PairEncoder(pair_of("word")).encode_bytes([line.encode()]).blank.tolist() == [True]
    optional = pair_of("word", optional=True)
    kept = [4 + place for place in range(2)]
    ids = optional.encode(line).ids
    assert len(ids) == 1 + len(kept)
    assert ids.index(EOS) == (0 if which == "first" else 2)
    fast = PairEncoder(optional).encode_bytes([line.encode()])
    assert fast.tokens[0].tolist() == ids
    assert fast.blank.tolist() == [False]


@pytest.mark.parametrize(("optional", "wanted"), [(False, "2"), (True, "at most 2")])
def test_a_line_of_more_columns_is_refused(optional: bool, wanted: str) -> None:
    with pytest.raises(DataError, match=f"found 3 columns, expected {wanted}: the two inputs, with a tab between them"):
        pair_of("word", optional=optional).encode("ein Hund\ta dog\tno")


def test_a_line_without_either_is_blank() -> None:
    for optional in (False, True):
        vocabulary = pair_of("word", optional=optional)
        assert [vocabulary.encode(line).ids for line in ("", " \t ", "\t")] == [[], [], []]
        assert PairEncoder(vocabulary).encode_bytes([b"", b" \t ", b"\t"]).blank.tolist() == [True, True, True]


def test_one_input_has_the_encoder_of_one() -> None:
    assert isinstance(line_encoder(VOCABULARIES["word"][0]), TextEncoder)
    assert isinstance(line_encoder(pair_of("word")), PairEncoder)


def write(folder: Path, name: str, lines: list[str]) -> Path:
    path = folder / name
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def test_files_are_read_line_by_line_in_shards_and_whole(tmp_path: Path) -> None:
    for shard in ("1", "2"):
        for side, lines in (("de", FIRST), ("en", ["a\tdog barks", *SECOND[1:]]), ("fr", ["un\tchien", "maison", "non"])):
            write(tmp_path, f"{shard}.{side}", [f"{line} {shard}" for line in lines])
    text = ParallelText(*(f"{tmp_path}/*.{side}" for side in ("de", "fr", "en")))
    assert list(text.digests) == ["source", "target", "second_source"]
    expected = read_pairs(*(tmp_path / f"1.{side}" for side in ("de", "fr", "en")))
    assert expected[0] == ("ein Hund bellt 1\ta dog barks 1", "un\tchien 1")
    assert list(text)[:3] == expected
    blocks = [block for _, block in text.blocks(2)]
    assert [line.decode() for sources, _ in blocks for line in sources] == [source for source, _ in text]
    assert [line.decode() for _, targets in blocks for line in targets] == [target for _, target in text]
    assert [line.decode() for line in text.side(2)] == [f"{line} {shard}" for shard in "12" for line in ("a\tdog barks", *SECOND[1:])]
    assert [line.decode() for line in text.side(0)] == [f"{line} {shard}" for shard in "12" for line in FIRST]


@pytest.mark.parametrize("read", [read_pairs, ParallelText])
def test_files_of_differing_counts_are_named_with_the_line_that_is_missing(tmp_path: Path, read: type) -> None:
    source, target = (str(write(tmp_path, name, FIRST)) for name in ("a.de", "a.fr"))
    short, long = str(write(tmp_path, "short.en", SECOND[:2])), str(write(tmp_path, "long.en", [*SECOND, "x"]))
    with pytest.raises(DataError, match=r"short\.en: 2 lines, but .*a\.de has 3; line 3 is missing"):
        read(source, target, short)
    with pytest.raises(DataError, match=r"long\.en: 4 lines, but .*a\.de has 3$"):
        read(source, target, long)
    with pytest.raises(DataError, match=r"no\.en: no such file"):
        read(source, target, str(tmp_path / "no.en"))


def test_a_file_of_pairs_may_have_second_inputs_beside_it(tmp_path: Path) -> None:
    pairs = write(tmp_path, "a.tsv", ["ein Hund\tun chien", "Haus\tmaison"])
    second = write(tmp_path, "a.en", ["a dog", "house"])
    expected = [("ein Hund\ta dog", "un chien"), ("Haus\thouse", "maison")]
    assert read_pairs(pairs, None, second) == expected
    assert list(ParallelText(str(pairs), None, str(second))) == expected


def test_a_file_of_pairs_may_hold_second_inputs(tmp_path: Path) -> None:
    pairs = write(tmp_path, "a.tsv", ["ein Hund\ta dog\tun chien", "Haus\t\tmaison"])
    objects = [{"source": "ein Hund", "second": "a dog", "target": "un chien"}, {"source": "Haus", "second": "", "target": "maison"}]
    expected = [("ein Hund\ta dog", "un chien"), ("Haus\t", "maison")]
    for path in (pairs, write(tmp_path, "a.jsonl", list(map(json.dumps, objects)))):
        assert read_pairs(path, columns=(3,)) == read_pairs(path, columns=(2, 3)) == expected
    with pytest.raises(DataError, match=r"a\.tsv, line 1: 3 columns, expected 2: the source, a tab, the target"):
        read_pairs(pairs)
    for line, columns, told in (
        ("a\tb", (3,), "line 1: 2 columns, expected 3: the source, its second input and the target, with tabs between them"),
        ("a", (2, 3), "line 1: 1 column, expected 2 or 3: the source, its second input"),
    ):
        with pytest.raises(DataError, match=told):
            read_pairs(write(tmp_path, "b.tsv", [line]), columns=columns)
    lacking = write(tmp_path, "b.jsonl", ['{"source": "a", "target": "b"}'])
    assert read_pairs(lacking, columns=(2, 3)) == [("a", "b")]
    with pytest.raises(DataError, match='line 1: expected a text under "second", found the keys'):
        read_pairs(lacking, columns=(3,))


def test_a_second_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    source, target, second = (str(write(tmp_path, name, FIRST)) for name in ("a.de", "a.fr", "a.en"))
    text = ParallelText(source, target, second)
    write(tmp_path, "a.en", FIRST[:2])
    with pytest.raises(DataError, match=r"a\.en: changed while it was read"):
        list(text.blocks(2))
