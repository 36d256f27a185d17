"""Generated sets as files: they read back, repeat, and their links point at what decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.data import read_lines, read_pairs
from regard.errors import ConfigError, DataError
from regard.tasks import generate
from regard.tasks.translation_evaluation import read_links


@pytest.mark.parametrize("kind", ["dates", "copy", "reverse", "sort"])
def test_a_set_reads_back_with_the_lengths_asked_for(tmp_path: Path, kind: Any) -> None:
    written = generate(kind, tmp_path / "deep" / "set", train=17, test=5, seed=3)
    assert sorted(written) == sorted((tmp_path / "deep" / "set").iterdir())
    assert len(read_pairs(written[0], written[1])) == 17
    assert len(read_pairs(written[2], written[3])) == len(read_links(written[4], "character").possible) == 5


@pytest.mark.parametrize("kind", ["copy", "reverse", "sort"])
def test_a_link_joins_equal_letters_and_each_letter_has_one(tmp_path: Path, kind: Any) -> None:
    written = generate(kind, tmp_path, train=1, test=13, seed=3)
    for (source, target), links in zip(read_pairs(written[2], written[3]), read_links(written[4], "character").possible, strict=True):
        assert {row for row, _ in links} == {place for place, letter in enumerate(target) if letter != " "}
        assert all(target[row] == source[column] != " " for row, column in links)
        assert len({column for _, column in links}) == len(links)


def test_the_links_of_a_date_lie_within_it(tmp_path: Path) -> None:
    written = generate("dates", tmp_path, train=1, test=13, seed=3)
    for (source, target), links in zip(read_pairs(written[2], written[3]), read_links(written[4], "character").possible, strict=True):
        assert links
        assert all(row < len(target) and column < len(source) and target[row].isdigit() for row, column in links)


def test_the_seed_decides(tmp_path: Path) -> None:
    def content(name: str, seed: int) -> list[list[str]]:
        return [read_lines(path) for path in generate("sort", tmp_path / name, train=7, test=5, seed=seed)]

    assert content("a", 3) == content("b", 3)
    assert content("c", 5) != content("a", 3)


def test_training_and_test_pairs_are_drawn_one_after_the_other(tmp_path: Path) -> None:
    small, large = (generate("copy", tmp_path / str(count), train=count, test=3, seed=3) for count in (5, 8))
    assert read_lines(small[0]) + read_lines(small[2]) == read_lines(large[0])


def test_nothing_is_written_for_a_number_below_one_or_where_nothing_can_be(tmp_path: Path) -> None:
    for train, test in ((0, 1), (1, 0)):
        with pytest.raises(ConfigError, match="at least 1 training and 1 test pair"):
            generate("copy", tmp_path / "set", train=train, test=test, seed=1)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot be written"):
        generate("copy", tmp_path / "file", train=2, test=2, seed=1)
