"""Words by number: the same as a dictionary would say, whatever their bytes, their lengths and the places where they are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import word_table
from regard.data.word_table import LONGEST, WordTable, split_words

WORD = st.one_of(
    st.sampled_from([b"", b"a", b"a\0", b"\0", b"ab", b"\xff" * 8, b"x" * 7, b"x" * 8, b"x" * 9, b"x" * LONGEST, b"x" * (LONGEST + 1)]),
    st.binary(max_size=LONGEST + 5).map(lambda word: word.replace(b" ", b"").replace(b"\n", b"")),
)
LINES = st.lists(st.lists(WORD, min_size=1, max_size=7).map(b" ".join), min_size=1, max_size=7)


@given(lines=LINES)
def test_words_are_what_stands_between_single_spaces(lines: list[bytes]) -> None:
    words = split_words(b"".join(line + b"\n" for line in lines))
    expected = [(word, place == 0) for line in lines for place, word in enumerate(line.split(b" "))]
    rows = np.arange(len(words.starts))
    assert words.names(rows) == [word + b" " * first for word, first in expected]
    assert words.sizes.tolist() == [len(word) for word, _ in expected]
    assert words.ends.tolist() == (np.cumsum([len(line.split(b" ")) for line in lines]) - 1).tolist()
    for number in range(LONGEST // 8):
        parts = [word[8 * number : 8 * number + 8] for word, _ in expected]
        assert words.column(number, rows).tolist() == [int.from_bytes(part, "little") for part in parts]


@pytest.mark.parametrize("crowded", [False, True])
@given(blocks=st.lists(LINES, min_size=1, max_size=4))
def test_a_table_says_what_a_dictionary_would(crowded: bool, blocks: list[list[bytes]]) -> None:
    known: dict[bytes, int] = {}
    with pytest.MonkeyPatch.context() as patch:
        if crowded:  # every word begins its search at one of sixteen slots
            patch.setattr(word_table, "_SPREAD", np.uint64(0))
        table = WordTable(room=500)
        for lines in blocks:
            words = split_words(b"".join(line + b"\n" for line in lines))
            names = words.names(np.arange(len(words.starts)))
            assert table.find(words).tolist() == [known.get(name, 0) for name in names]
            new = {name: row for row, name in enumerate(names) if name not in known and words.sizes[row] <= LONGEST}
            table.add(words, np.array(list(new.values()), np.int64))
            known |= dict(zip(new, range(len(known) + 1, len(known) + len(new) + 1), strict=True))
            assert len(table) == len(known)
            assert table.find(words).tolist() == [known.get(name, 0) for name in names]
    table.clear()
    assert not table.find(words).any()
