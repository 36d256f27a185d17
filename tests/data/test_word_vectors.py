"""Word vectors: what was asked for is found, whatever form the file has; what is broken is named by file and line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from regard.data.word_vectors import read_vectors
from regard.errors import DataError

WORDS = ["dog", "Cat", "DOG", ". . .", "7", "cow"]
LINES = ["dog 1 2 3", "cat 4 5 6", ". . . 7 8 9", "dog 9 9 9", "7 1e-1 -2 .5"]


@pytest.mark.parametrize("heading", ["", "5 3\n"])
@pytest.mark.parametrize("end", ["\n", " \n", "\r\n"])
def test_the_words_asked_for_are_found_as_written_or_in_lower_case(tmp_path: Path, heading: str, end: str) -> None:
    text = heading + end.join(LINES) + end
    for path, data in ((tmp_path / "a.txt", text.encode()), (tmp_path / "a.txt.gz", gzip.compress(text.encode()))):
        path.write_bytes(data)
        found = read_vectors(path, WORDS)
        assert {word: vector.tolist() for word, vector in found.vectors.items()} == {
            "dog": [1, 2, 3],
            "DOG": [1, 2, 3],
            "Cat": [4, 5, 6],
            ". . .": [7, 8, 9],
            "7": pytest.approx([0.1, -2, 0.5]),
        }
        assert (found.dim, found.lines) == (3, 5)


def test_a_word_as_written_goes_before_its_lower_case(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("cat 1 2\nCat 3 4\n")
    assert read_vectors(tmp_path / "a.txt", ["Cat"]).vectors["Cat"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog 1 2\ncat 3\n", "a.txt, line 2: expected a word and 2 numbers"),
        ("dog 1 2\n\ncat 3 4\n", "a.txt, line 2: expected a word and 2 numbers"),
        ("dog 1 2\ncat x 4\n", "a.txt, line 2: expected numbers behind the word"),
        ("dog 1 2\ncat nan 4\n", "a.txt, line 2: expected finite numbers"),
        ("dog\n", "a.txt, line 1: expected a word and its numbers"),
        ("dog x\n", "a.txt, line 1: expected numbers behind the word"),
        ("", "a.txt: no lines"),
        ("3 2\n", "a.txt: no lines"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError) as refused:
        read_vectors(tmp_path / "a.txt", ["dog", "cat"])
    assert message in str(refused.value)


def test_truncated_gzip_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"dog 1 2\n" * 9999)[:-9])
    with pytest.raises(DataError, match=r"a\.gz: damaged or truncated gzip data after line"):
        read_vectors(tmp_path / "a.gz", ["dog"])
    with pytest.raises(DataError, match=r"nowhere: no such file"):
        read_vectors(tmp_path / "nowhere", ["dog"])
