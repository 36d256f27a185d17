"""Encoding by words: the same tokens as line by line, whatever the white space, the kind, and what is known already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import text_encoder
from regard.data.text_encoder import TextEncoder
from regard.data.vocabulary import KINDS, Vocabulary

TEXTS = [
    "ein Hund bellt laut",
    "a dog's tail , 12 3.5%",
    "\u00e4\u00f6\u00fc \u4f60\u597d",
    "don't they're we'll",
    "\u2581a b",
    "x\ty",
    "  two  spaces ",
]
VOCABULARIES = {kind: Vocabulary.train(TEXTS * 3, kind=kind, size=300) for kind in KINDS}
WORD = st.one_of(
    st.sampled_from(
        [
            "Hund",
            "a",
            "'s",
            "n't",
            "'",
            "12",
            ".",
            "\u4f60\u597d",
            "\u00e4",
            "e\u0301",
            "\ud800",
            "\u2581",
            "\u2581a",
            "a\u2581",
            "</s>",
            "x" * 50,
        ]
    ),
    st.text(max_size=5),
)
GAP = st.sampled_from([" ", " ", " ", " ", "  ", "\t", "\u00a0", "\u3000", "\n", "\r", "\x85", "\x1c", "\u200b", ""])
LINE = st.lists(st.tuples(WORD, GAP), max_size=8).map(lambda parts: "".join(word + gap for word, gap in parts))


@pytest.mark.parametrize("kind", KINDS)
@given(blocks=st.lists(st.lists(LINE, max_size=6), max_size=3))
def test_words_are_encoded_as_in_their_line(kind: str, blocks: list[list[str]]) -> None:
    vocabulary = VOCABULARIES[kind]
    encoder = TextEncoder(vocabulary)
    for lines in blocks:
        assert [ids.tolist() for ids in encoder.encode(lines)] == vocabulary.encode_ids(lines)


@pytest.mark.parametrize("kind", KINDS)
@given(
    lines=st.lists(st.one_of(st.binary(max_size=9), st.sampled_from([b"ein Hund", b"a\r", b"\xe4 b", b" ", b"\xc2\xa0", b""])), max_size=9)
)
def test_bytes_are_encoded_as_their_text(kind: str, lines: list[bytes]) -> None:
    texts = [line.decode("utf-8", errors="replace") for line in lines]
    found = TextEncoder(VOCABULARIES[kind]).encode_bytes(lines)
    assert [ids.tolist() for ids in found.tokens] == VOCABULARIES[kind].encode_ids(texts)
    assert found.blank.tolist() == [not text.strip() for text in texts]


def test_a_text_that_becomes_another_is_learned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoder, "_MAX_WORDS", 8)
    encoder = TextEncoder(VOCABULARIES["bpe"])
    encoder.encode(["ein Hund bellt laut", "ein Hund bellt nie"])
    for _ in range(2):
        assert len(encoder.encode(["a dog barks", "no dog barks"])) == 2
    lookups: list[int] = []
    learn = TextEncoder._learn
    monkeypatch.setattr(TextEncoder, "_learn", lambda self, names: lookups.append(len(names)) or learn(self, names))
    encoder.encode(["a dog barks"])
    assert lookups == []


def test_no_more_words_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_encoder, "_MAX_WORDS", 5)
    vocabulary = VOCABULARIES["bpe"]
    encoder = TextEncoder(vocabulary)
    for number in range(20):
        lines = [f"a{number} b{number}", "ein Hund"]
        assert [ids.tolist() for ids in encoder.encode(lines)] == vocabulary.encode_ids(lines)
        assert len(encoder._known) <= 5
