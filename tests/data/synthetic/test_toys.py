"""Copy, reverse and sort: right answers, right links."""

from __future__ import annotations

import pytest

from regard.data.synthetic.toys import TOYS, Toy, generate_toys, split_toys
from regard.errors import ConfigError


@pytest.mark.parametrize("kind", TOYS)
def test_answer_and_links_are_right(kind: Toy) -> None:
    expected = {"copy": list, "reverse": lambda letters: letters[::-1], "sort": sorted}[kind]
    for source, target, links in generate_toys(kind, 211, seed=3, lengths=(1, 13)):
        assert target.split(" ") == expected(source.split(" "))
        assert len(links) == len(target)
        spans = [span for span in links if span is not None]
        assert [source[start:stop] for start, stop in spans] == target.split(" ")
        assert sorted(spans) == [(2 * place, 2 * place + 1) for place in range(len(source.split(" ")))]
        assert all((span is None) == (character == " ") for span, character in zip(links, target, strict=True))


def test_equal_letters_keep_their_order_when_sorted() -> None:
    for _, target, links in generate_toys("sort", 53, seed=3, symbols="ba", lengths=(7, 7)):
        starts = [span[0] for span in links if span is not None]
        letters = target.split(" ")
        assert letters == sorted(letters, reverse=True)  # in the order of the symbols: b before a
        assert all(starts[i] < starts[i + 1] for i in range(6) if letters[i] == letters[i + 1])


@pytest.mark.parametrize("kind", TOYS)
def test_example_depends_on_seed_and_number_only(kind: Toy) -> None:
    whole = generate_toys(kind, 101, seed=5)
    assert generate_toys(kind, 41, seed=5) == whole[:41]
    assert generate_toys(kind, 41, seed=5, start=17) == whole[17:58]
    assert generate_toys(kind, 101, seed=6) != whole
    assert generate_toys(kind, 0, seed=5) == []


@pytest.mark.parametrize("kind", TOYS)
def test_no_held_out_source_was_seen_or_occurs_twice(kind: Toy) -> None:
    train, held_out = split_toys(kind, 3001, 503, seed=7)
    assert train == generate_toys(kind, 3001, seed=7)
    sources = {item.source for item in held_out}
    assert (len(held_out), len(sources), sources & {item.source for item in train}) == (503, 503, set())
    behind = generate_toys(kind, 901, seed=7, start=3001)
    assert len(sources & {item.source for item in behind}) == 503
    assert len({item.source for item in behind[:503]} & sources) < 480, "some of the next were seen"
    assert split_toys(kind, 3001, 101, seed=7)[1] == held_out[:101]
    with pytest.raises(ConfigError, match="held_out -1: expected 0 or more"):
        split_toys(kind, 1, -1, seed=7)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match="kind 'shuffle'"):
        generate_toys("shuffle", 1, seed=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="count -1"):
        generate_toys("copy", -1, seed=1)
    for symbols in ("", "aa", "a b"):
        with pytest.raises(ConfigError, match="symbols"):
            generate_toys("copy", 1, seed=1, symbols=symbols)
    with pytest.raises(ConfigError, match="lengths"):
        generate_toys("copy", 1, seed=1, lengths=(5, 3))
