"""Vocabularies: there and back, offsets, specials out of reach of text, the same file from the same text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.data.lines import read_lines, single_line
from regard.data.vocabulary import BOS, EOS, KINDS, PAD, SPECIALS, UNK, Vocabulary
from regard.errors import ConfigError, DataError
from regard.progress import Event, listening

TEXTS = [
    "Zwei junge weiße Männer sind im Freien in der Nähe vieler Büsche.",
    "Two young, White males are outside near many bushes.",
    "Ein kleines Mädchen klettert in ein Spielhaus aus Holz.",
    "A little girl climbing into a wooden playhouse.",
    "二人の若い男が外にいる。",
    "",
]
SIZES = {"bpe": 400, "unigram": 150, "word": 60, "character": 90}


def trained(kind: str, texts: list[str] | None = None) -> Vocabulary:
    return Vocabulary.train(texts if texts is not None else TEXTS * 3, kind=kind, size=SIZES[kind])


@pytest.fixture(scope="module", params=KINDS)
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return trained(request.param)


BPE = trained("bpe")


def test_training_text_comes_back(vocabulary: Vocabulary) -> None:
    for text in TEXTS:
        assert vocabulary.decode(vocabulary.encode(text).ids) == text
    assert vocabulary.unknown_rate(TEXTS) == 0.0
    assert 5 < len(vocabulary) <= SIZES[vocabulary.kind]


@given(st.text(max_size=53))
@settings(max_examples=101, deadline=None)
def test_any_text_comes_back_from_byte_level_pieces(text: str) -> None:
    encoded = BPE.encode(text)
    assert BPE.decode(encoded.ids) == single_line(text)
    assert UNK not in encoded.ids


@given(st.text(alphabet=st.sampled_from("aeinß日本 😀\n\u2028\0<>/s"), max_size=29))
@settings(max_examples=101, deadline=None)
def test_offsets_are_character_spans_of_the_text(text: str) -> None:
    encoded = BPE.encode(text)
    assert len(encoded.ids) == len(encoded.pieces) == len(encoded.offsets)
    for piece, (start, stop) in zip(encoded.pieces, encoded.offsets, strict=True):
        assert 0 <= start < stop <= len(text)
        assert piece == text[start:stop] or "\\x" in piece or text[start:stop] in piece
    assert {place for span in encoded.offsets for place in range(*span)} == set(range(len(text)))


def test_byte_level_offsets_count_characters_not_bytes() -> None:
    encoded = BPE.encode("é😀 x")
    spans = dict.fromkeys(encoded.offsets)
    assert list(spans) == [(0, 1), (1, 2), (2, 4)] or list(spans) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert encoded.offsets.count((1, 2)) == 4  # the four bytes of a character that was not in training
    assert [piece for piece, span in zip(encoded.pieces, encoded.offsets, strict=True) if span == (1, 2)] == [
        "\\xf0",
        "\\x9f",
        "\\x98",
        "\\x80",
    ]


def test_pieces_stand_at_their_offsets(vocabulary: Vocabulary) -> None:
    for text in TEXTS:
        encoded = vocabulary.encode(text)
        spans = [text[slice(*span)] for span in encoded.offsets]
        if vocabulary.kind != "bpe":  # whose pieces may be parts of a character
            # A unigram piece that is only the space put before the first word stands at that word's first letter.
            words = [(piece.lstrip(" "), span.lstrip(" ")) for piece, span in zip(encoded.pieces, spans, strict=True)]
            assert all(piece == span for piece, span in words[encoded.pieces[:1] == [" "] :])
        assert vocabulary.pieces(encoded.ids) == encoded.pieces


def test_empty_text_has_no_tokens(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode("") == ([], [], [])
    assert vocabulary.encode_batch([]) == []
    assert vocabulary.encode_ids([]) == []
    assert vocabulary.decode([]) == ""
    assert vocabulary.pieces([]) == []
    assert vocabulary.unknown_rate([]) == 0.0


def test_batch_gives_what_single_texts_give(vocabulary: Vocabulary) -> None:
    batch = vocabulary.encode_batch(TEXTS)
    assert batch == [vocabulary.encode(text) for text in TEXTS]
    assert vocabulary.encode_ids(TEXTS) == [encoded.ids for encoded in batch]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("trained_on_them", [False, True])
def test_text_that_reads_like_a_special_token_is_text(kind: str, trained_on_them: bool) -> None:
    # Often enough that a merge learned from them would be the special token, were it stored under its plain name.
    marked = ["<s> a </s> <pad> <unk>", "</s></s> <pad>", "<s>", " </s>", " <pad> <unk>"] * 50
    vocabulary = trained(kind, TEXTS + marked if trained_on_them else TEXTS + ["<>/spadunk"] * 3)
    for text in [*marked[:5], " ".join(SPECIALS), "".join(SPECIALS), "a </s>"]:
        ids = vocabulary.encode(text).ids
        assert not {PAD, BOS, EOS} & set(ids), text
        if kind != "word" or (trained_on_them and " " in text):  # or words that were not in training
            assert UNK not in ids, text
            assert vocabulary.decode(ids).strip() == text.strip(), text


def test_special_tokens_are_left_out_but_unknown_shows(vocabulary: Vocabulary) -> None:
    ids = vocabulary.encode("Zwei").ids
    assert vocabulary.decode([BOS, *ids, EOS, PAD, PAD]) == "Zwei"
    assert "<unk>" in vocabulary.decode([*ids, UNK])
    assert vocabulary.pieces([PAD, UNK, BOS, EOS]) == list(SPECIALS)


@pytest.mark.parametrize("kind", ["unigram", "word", "character"])
def test_what_was_not_seen_is_unknown_and_counted(kind: str) -> None:
    vocabulary = trained(kind, ["a b c a b"] * 7)
    encoded = vocabulary.encode("a Ω b")
    assert encoded.ids.count(UNK) == 1
    assert encoded.pieces[encoded.ids.index(UNK)].strip() == "Ω"
    assert vocabulary.unknown_rate(["a Ω b"]) == pytest.approx(1 / len(encoded.ids))


@pytest.mark.parametrize(("kind", "text", "kept"), [("word", "a a a b b c", ["a", "b"]), ("character", "aaabbc", ["a", "b"])])
def test_rare_words_and_characters_are_left_out(kind: str, text: str, kept: list[str]) -> None:
    by_count = Vocabulary.train([text], kind=kind, size=50, min_count=2)
    by_size = Vocabulary.train([text], kind=kind, size=6)
    for vocabulary in (by_count, by_size):
        assert vocabulary.pieces(range(4, len(vocabulary))) == kept


def test_byte_level_entries_hold_every_byte() -> None:
    smallest = Vocabulary.train(["a"], kind="bpe", size=260)
    assert len(smallest) == 260
    text = "".join(map(chr, [*range(1, 0x300), 0xFFFD, 0x10FFFF]))
    assert smallest.decode(smallest.encode(text).ids) == single_line(text)


def test_broken_bytes_and_lone_surrogates_do_no_harm(vocabulary: Vocabulary) -> None:
    encoded = vocabulary.encode("Zwei \ud800 \udfff")
    assert vocabulary.decode(encoded.ids).startswith("Zwei ")
    first = BPE.encode("\U0001f600").ids[0]
    assert BPE.decode([first, *BPE.encode("a").ids]) == "\ufffda"
    assert BPE.pieces([first]) == ["\\xf0"]


def test_decoded_text_is_one_line(vocabulary: Vocabulary) -> None:
    vocabulary = trained(vocabulary.kind, ["a\nb\u2028c\x85 d\re\0f"] * 3)
    assert len(vocabulary.decode(vocabulary.encode("a\nb\u2028c\x85 d\re\0f").ids).splitlines()) == 1


def test_same_texts_give_the_same_file_in_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{TEXTS[number % 5]} {number * 7919 % 1013} {number:b}" for number in range(211)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    program = (
        "import json, sys; from regard.data.vocabulary import Vocabulary\n"
        "for kind in sys.argv[3:]: Vocabulary.train(json.load(open(sys.argv[1])), kind=kind, size=400).save(f'{sys.argv[2]}-{kind}.json')"
    )
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    for kind in KINDS:
        Vocabulary.train(iter(texts), kind=kind, size=400).save(tmp_path / f"0-{kind}.json")
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": os.pathsep.join(sys.path)}
    arguments = [sys.executable, "-c", program, tmp_path / "texts.json", tmp_path / "1", *KINDS]
    subprocess.run([str(argument) for argument in arguments], env=environment, check=True, timeout=60)
    for kind in KINDS:
        assert (tmp_path / f"0-{kind}.json").read_bytes() == (tmp_path / f"1-{kind}.json").read_bytes(), kind


def test_loaded_vocabulary_is_the_saved_one(vocabulary: Vocabulary, tmp_path: Path) -> None:
    vocabulary.save(tmp_path / "vocabulary.json")
    loaded = Vocabulary.load(tmp_path / "vocabulary.json")
    assert (loaded.kind, len(loaded)) == (vocabulary.kind, len(vocabulary))
    assert loaded.encode_batch([*TEXTS, "</s> Ω"]) == vocabulary.encode_batch([*TEXTS, "</s> Ω"])
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "vocabulary.json").read_bytes()


def test_damaged_file_is_named(vocabulary: Vocabulary, tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.json"
    vocabulary.save(path)
    whole = path.read_bytes()
    content = json.loads(whole)
    model = content["tokenizer"]["model"]
    stored = [
        {**content, "format": "other"},
        {**content, "kind": "syllable"},
        {**content, "kind": ["bpe"]},
        {**content, "tokenizer": {}},
        [],
        7,
    ]
    stored += [
        {**content, "tokenizer": {"model": {**model, **change}}}
        for change in ({"vocab": {}}, {"vocab": None}, {"type": "x"}, {"vocab": "abc"})
    ]
    other = "bpe" if vocabulary.kind in ("word", "character") else "word"
    damaged = [b"", b"{", whole[: len(whole) // 2], b"\xff" + whole, b"[" * 100_000]
    damaged += [json.dumps(item).encode() for item in [*stored, {**content, "kind": other}]]
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"vocabulary\.json: "):
            Vocabulary.load(path)
    with pytest.raises(DataError, match=r"none\.json: no such file"):
        Vocabulary.load(tmp_path / "none.json")


def test_wrong_entries_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    trained("word").save(path)
    content = json.loads(path.read_bytes())
    vocab = content["tokenizer"]["model"]["vocab"]
    name = next(word for word, number in vocab.items() if number == 7)
    for entries in (
        {**vocab, name: 70_000},
        {**vocab, name: 8},
        {word: number for word, number in vocab.items() if number != 3},
        {**vocab, name: -1},
    ):
        content["tokenizer"]["model"]["vocab"] = entries
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"v\.json: damaged vocabulary"):
            Vocabulary.load(path)


def test_file_cannot_change_how_text_is_split(tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    trained("word").save(path)
    content = json.loads(path.read_bytes())
    content["tokenizer"]["normalizer"] = {"type": "Lowercase"}
    content["tokenizer"]["added_tokens"] = [
        {"id": 3, "content": "Zwei", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    ]
    path.write_text(json.dumps(content))
    assert Vocabulary.load(path).encode(TEXTS[0]) == trained("word").encode(TEXTS[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], ["", "  ", "\t"]])
def test_nothing_to_train_on_is_refused(kind: str, texts: list[str]) -> None:
    with pytest.raises(DataError, match="no text to train"):
        trained(kind, texts)


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"vocabulary\.kind: 'syllable', expected one of bpe"):
        Vocabulary.train(TEXTS, kind="syllable", size=100)
    with pytest.raises(ConfigError, match=r"^vocabulary\.size: 259, bpe needs at least 260$"):
        Vocabulary.train(TEXTS, kind="bpe", size=259)
    with pytest.raises(ConfigError, match="word needs at least 5"):
        Vocabulary.train(TEXTS, kind="word", size=4)
    with pytest.raises(ConfigError, match=r"^vocabulary\.min_count: 0, expected at least 1$"):
        Vocabulary.train(TEXTS, kind="word", size=40, min_count=0)
    with pytest.raises(ConfigError, match=r"size: 4, word needs at least 5; vocabulary\.min_count: 0"):
        Vocabulary.train(TEXTS, kind="word", size=4, min_count=0)


def test_unknown_ids_are_refused(vocabulary: Vocabulary) -> None:
    for ids in ([len(vocabulary)], [-1]):
        with pytest.raises(DataError, match=f"token id {ids[0]}: expected 0 to {len(vocabulary) - 1}"):
            vocabulary.decode(ids)
        with pytest.raises(DataError, match="token id"):
            vocabulary.pieces(ids)


def test_very_long_line_is_encoded(vocabulary: Vocabulary) -> None:
    text = "Männer " * 20_011
    assert vocabulary.decode(vocabulary.encode(text).ids).strip() == text.strip()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_after_parallel_encoding_warns_nobody(tmp_path: Path) -> None:
    program = """
import os
from regard.data.vocabulary import Vocabulary
vocabulary = Vocabulary.train(["a b c"] * 99, kind="word", size=9)
ids = vocabulary.encode_ids(["a b c"] * 999)
child = os.fork()
if child == 0:
    same = vocabulary.encode_ids(["a b c"] * 999) == ids
    os._exit(0 if same and os.environ["TOKENIZERS_PARALLELISM"] == "false" else 1)
assert os.waitpid(child, 0)[1] == 0
assert "TOKENIZERS_PARALLELISM" not in os.environ
"""
    environment = {key: item for key, item in os.environ.items() if key != "TOKENIZERS_PARALLELISM"} | {
        "PYTHONPATH": os.pathsep.join(sys.path)
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.data
@pytest.mark.parametrize("kind", KINDS)
def test_captions_come_back_from_a_vocabulary_trained_on_them(kind: str, data_folder: Path) -> None:
    texts = [line for side in ("en", "de") for line in read_lines(data_folder / f"multi30k/task1/raw/train.{side}.gz")]
    assert len(texts) == 58_000
    vocabulary = Vocabulary.train(texts, kind=kind, size=8000)
    decoded = [vocabulary.decode(ids) for ids in vocabulary.encode_ids(texts)]
    if kind == "word":
        assert 0.02 < vocabulary.unknown_rate(texts) < 0.1
    else:
        assert decoded == texts


@pytest.mark.parametrize("kind", ["bpe", "unigram", "word"])
def test_learning_a_vocabulary_tells_how_far_it_is(kind: str) -> None:
    told: list[tuple[str, str, int, int | None]] = []
    texts = [f"a line of {number} {7 * number}" for number in range(307)]

    def listener(event: Event) -> None:
        if event.stage is not None:
            told.append((event.kind, event.stage.name, event.stage.done, event.stage.total))

    with listening(listener):
        Vocabulary.train(texts, kind=kind, size=300, name="source vocabulary", total=311)
    name, choosing = "Learning the source vocabulary", "Choosing entries of the source vocabulary"
    assert told[:3] == [("start", name, 0, 311), ("end", name, 307, 307), ("start", choosing, 0, None)]
    kind_, last, done, total = told[-1]
    assert (kind_, last) == ("end", choosing)
    assert (total is not None and done == total > 1) if kind == "unigram" else total is None
