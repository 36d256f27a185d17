"""Vocabularies: text to token ids and back, trained on text, stored as JSON."""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from regard.data.lines import single_line, unreadable, whole_characters, write_files
from regard.data.scripts import UNSPACED, UNSPACED_BYTES
from regard.data.unigram import train_unigram
from regard.errors import ConfigError, DataError, MissingExtraError, shown
from regard.input_files import open_input
from regard.progress import Stage, stage
from regard.strict_json import parse_json

PAD = 0
UNK = 1
BOS = 2
EOS = 3
SPECIALS = ("<pad>", "<unk>", "<s>", "</s>")
_UNSEEN = (PAD, BOS, EOS)
KINDS = ("bpe", "unigram", "word", "character")
IMPORTED = "sentencepiece"  # imported with a model; see `regard.data.sentencepiece_vocabulary`

# Names of special tokens in the file. The space keeps them distinct from any text: no pre-tokenizer puts a space into a token of several
# characters (byte-level writes U+0120, unigram U+2581), so text such as "</s>" can never become the special token.
STORED = tuple(" " + name for name in SPECIALS)
_SPACE = "\u2581"
FORMAT = "regard vocabulary 1"
NAMES = 2**30
"""Ids from here on name unknown words, for models that copy: `NAMES` plus a hash of the word."""


class TokenizedText(NamedTuple):
    """A text as tokens, without BOS and EOS; `pieces[i]` covers the characters `offsets[i]` of the text."""

    ids: list[int]
    pieces: list[str]
    offsets: list[tuple[int, int]]

    def words(self) -> dict[int, str]:
        """Return the unknown words that have ids of their own, by id."""
        return {index: piece for index, piece in zip(self.ids, self.pieces, strict=True) if index >= NAMES}

    def first(self, count: int) -> TokenizedText:
        """Return the first `count` tokens, or of two inputs (separated by EOS) the first `count` of each.

        Example:
            >>> TokenizedText([4, 6], ["ein", "Hund"], [(0, 3), (4, 8)]).first(1)
            TokenizedText(ids=[4], pieces=['ein'], offsets=[(0, 3)])
        """
        if EOS not in self.ids:
            return TokenizedText(self.ids[:count], self.pieces[:count], self.offsets[:count])
        end = self.ids.index(EOS)
        first, rest = slice(min(count, end)), slice(end, end + 1 + count)
        return TokenizedText(
            self.ids[first] + self.ids[rest], self.pieces[first] + self.pieces[rest], self.offsets[first] + self.offsets[rest]
        )


def check_vocabulary(kind: str, size: int, min_count: int) -> None:
    """Check the settings of a vocabulary before it is trained.

    Raises:
        ConfigError: the kind is unknown, or `size` or `min_count` too small.

    Example:
        >>> check_vocabulary("bpe", 60, 1)
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: vocabulary.size: 60, bpe needs at least 260
    """
    if kind == IMPORTED:
        raise ConfigError(f"vocabulary.kind: {kind} comes with an imported model (`regard import`); train one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise ConfigError(f"vocabulary.kind: {shown(kind)}, expected one of {', '.join(KINDS)}")
    least = 260 if kind == "bpe" else 5
    found = [f"vocabulary.size: {size}, {kind} needs at least {least}"] if size < least else []
    found += [f"vocabulary.min_count: {min_count}, expected at least 1"] if min_count < 1 else []
    if found:
        raise ConfigError("; ".join(found))


class Vocabulary:
    """A trained vocabulary of one kind; PAD, UNK, BOS, EOS are the ids 0 to 3.

    - `bpe`: byte-level byte-pair encoding. Lossless and without unknowns: all 256 bytes are entries.
    - `unigram`: sub-words by a unigram language model (Kudo 2018). Spaces belong to the word behind them. A character not
      seen in training is UNK; a space at the very start, and U+2581, are not given back. A first piece that is only a
      space stands at the first character.
    - `word`: the text split at white space. A word not seen in training is UNK; decoding joins with one space.
    - `character`: every Unicode character is a token, spaces too. Characters not seen in training are UNK.

    With `names_unknown`, for models that copy, an unknown word gets an id of `NAMES` and more instead of UNK, the same in every text.

    Nothing is normalized or lower-cased. Text that reads "</s>" or "<pad>" is ordinary text.

    Example:
        >>> vocabulary = Vocabulary.train(["ein Hund", "ein Haus"], kind="word", size=20)
        >>> vocabulary.encode("ein Hund bellt")
        TokenizedText(ids=[4, 6, 1], pieces=['ein', 'Hund', 'bellt'], offsets=[(0, 3), (4, 8), (9, 14)])
        >>> vocabulary.decode([4, 6, 1, EOS])
        'ein Hund <unk>'
    """

    kind: str
    names_unknown = False

    def __init__(self, kind: str, tokenizer: Tokenizer) -> None:
        """Wrap a tokenizer made by `train` or `load`."""
        self.kind = kind
        self._tokenizer = tokenizer
        self._set_entries([tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())])

    def _set_entries(self, tokens: Sequence[str | None]) -> None:
        if any(token is None for token in tokens) or tuple(tokens[:4]) != STORED:
            raise ValueError(f"the entries are not numbered from 0 to {len(tokens) - 1} with the special tokens in front")
        self._bytes = [_token_bytes(self.kind, token) for token in tokens if token is not None]
        for index, name in enumerate(SPECIALS):
            self._bytes[index] = name.encode()
        self._pieces = [data.decode("utf-8", errors="backslashreplace") for data in self._bytes]

    def __len__(self) -> int:
        """Return the number of entries, special tokens included."""
        return len(self._bytes)

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        *,
        kind: str,
        size: int,
        min_count: int = 1,
        name: str = "vocabulary",
        total: int | None = None,
        files: Sequence[str] = (),
    ) -> Vocabulary:
        """Learn a vocabulary from texts; the same texts give the same vocabulary.

        Args:
            texts: the training texts, read once.
            kind: "bpe", "unigram", "word" or "character".
            size: maximum entries, special tokens included; >= 260 for bpe (4 and all bytes), else >= 5.
            min_count: minimum count for word and character; >= 1.
            name: its name in progress reports.
            total: about how many texts there are, for the same; None: unknown.
            files: where the texts come from, for error messages.

        Returns:
            The vocabulary, possibly smaller than `size`.

        Raises:
            DataError: the texts are blank.
            ConfigError: the kind is unknown, or `size` or `min_count` too small.
        """
        check_vocabulary(kind, size, min_count)
        with ExitStack() as stack:
            choosing = stage(f"Choosing entries of the {name}", unit="rounds")
            checked = _Checked(_tracked(texts, stage(f"Learning the {name}", total=total, unit="lines"), choosing, stack))
            tokenizer = _frame(kind)
            options: dict[str, Any] = {"vocab_size": size, "special_tokens": list(STORED), "show_progress": False}
            if kind == "unigram":
                tokenizer.model = models.Unigram(train_unigram(checked, size=size, specials=STORED, tell=choosing.update), UNK)
            elif kind == "bpe":
                trainer = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
                tokenizer.train_from_iterator(checked, trainer)
            else:
                tokenizer.train_from_iterator(checked, trainers.WordLevelTrainer(min_frequency=min_count, **options))
        if not checked.any_text:
            where = f"{', '.join(files)}: " if files else ""
            raise DataError(f"{where}no text to train a vocabulary on: expected at least one line that is not blank")
        # Trainers register special tokens as strings to match in any text; a tokenizer rebuilt from the model does not.
        return cls(kind, _frame(kind, json.loads(tokenizer.to_str())["model"]))

    def missing(self, text: str, how: str = "") -> str:
        """Name a missing input of a line or its surplus columns, or "". See `regard.data.input_pairs.PairVocabulary`."""
        return ""

    def encode(self, text: str) -> TokenizedText:
        """Return the tokens of a text; an empty text has none. Offsets count characters, also inside byte-level pieces."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Return `encode` of each text, in order; no texts give an empty list."""
        batch = [whole_characters(text) for text in texts]
        return [self._encoded(text, item) for text, item in zip(batch, self._tokenizer.encode_batch(batch), strict=True)]

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return only the ids of each text, in order: less time and a fraction of the memory of `encode_batch`."""
        if self.names_unknown:
            return [item.ids for item in self.encode_batch(texts)]
        return [item.ids for item in self._tokenizer.encode_batch_fast([whole_characters(text) for text in texts])]

    def decode(self, ids: Sequence[int], words: Mapping[int, str] | None = None) -> str:
        """Decode token ids to one line, without special tokens, UNK as "<unk>".

        Invalid UTF-8 becomes U+FFFD; line breaks become spaces (see `single_line`).

        Args:
            ids: the tokens.
            words: texts of ids of `NAMES` and more; others of these are "<unk>", too.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        named = {index: word.encode() for index, word in (words or {}).items()}
        known = self._checked_ids(ids)
        parts = [named.get(index, self._bytes[UNK]) if index >= NAMES else self._bytes[index] for index in known if index not in _UNSEEN]
        text = (b" " if self.kind == "word" else b"").join(parts).decode("utf-8", errors="replace")
        return single_line(text.removeprefix(" ") if self.kind == "unigram" else text)

    def sizes(self) -> np.ndarray:
        """Return the bytes of each entry, int64."""
        return np.array([len(entry) for entry in self._bytes])

    def spaced(self) -> np.ndarray:
        """Return whether each entry begins with a space, bool."""
        return np.array([entry.startswith(b" ") for entry in self._bytes])

    def pieces(self, ids: Sequence[int], words: Mapping[int, str] | None = None) -> list[str]:
        r"""Return the readable text of each token; a byte of an incomplete character appears as `\xe4`. `words` as in `decode`.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        named = words or {}
        return [named.get(index, SPECIALS[UNK]) if index >= NAMES else self._pieces[index] for index in self._checked_ids(ids)]

    def may_follow_word(self) -> list[bool]:
        """Return per token whether it may follow a whole word: it begins with a space, punctuation or a Chinese or
        Japanese letter, or ends the text."""
        last = [self.kind == "word" or not _continues_word(data) for data in self._bytes]
        last[PAD], last[UNK], last[BOS] = False, self.kind == "word", False
        return last

    def unknown_rate(self, texts: Iterable[str]) -> float:
        """Return the share of tokens that are UNK, in [0, 1]; 0.0 when the texts have no tokens."""
        total = unknown = 0
        lines = iter(texts)
        while block := list(islice(lines, 4096)):
            for ids in self.encode_ids(block):
                total += len(ids)
                unknown += sum(index == UNK or index >= NAMES for index in ids)
        return unknown / total if total else 0.0

    def save(self, path: str | Path) -> None:
        """Write the vocabulary as JSON: our kind, and under "tokenizer" the format of the tokenizers library.

        Raises:
            DataError: the file cannot be written.
        """
        write_files({Path(path): self.to_bytes()})

    def to_bytes(self) -> bytes:
        """Serialise the vocabulary."""
        content = {"format": FORMAT, "kind": self.kind, "tokenizer": json.loads(self._tokenizer.to_str())}
        text = json.dumps(content, ensure_ascii=False, indent=None, separators=(",", ":"))
        return (text + "\n").encode("utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Load a saved vocabulary. Only entries are read from the file; the kind determines how text is split.

        Raises:
            DataError: the file is missing, of another format or damaged.
        """
        try:
            with open_input(path) as file:
                content = parse_json(file.read())
        except OSError as error:
            raise unreadable(path, error) from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: damaged or no vocabulary (not JSON)") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("kind") not in (*KINDS, IMPORTED):
            raise DataError(f"{path}: expected a vocabulary file ({FORMAT!r})")
        kind = content["kind"]
        try:
            if kind == IMPORTED:
                from regard.data.sentencepiece_vocabulary import SentencePieceVocabulary

                return SentencePieceVocabulary.from_content(content)
            model = content["tokenizer"]["model"]
            _check_model(kind, model)
            return cls(kind, _frame(kind, model))
        except MissingExtraError:
            raise
        # The library raises a bare Exception for unreadable input.
        except Exception as error:
            raise DataError(f"{path}: damaged vocabulary ({type(error).__name__}: {error})") from error

    def _encoded(self, text: str, item: Any) -> TokenizedText:
        ids, offsets = item.ids, item.offsets
        pieces = [text[slice(*span)] if index == UNK else self._pieces[index] for index, span in zip(ids, offsets, strict=True)]
        if self.names_unknown:
            ids = [_name(piece) if index == UNK else index for index, piece in zip(ids, pieces, strict=True)]
        return TokenizedText(ids, pieces, offsets)

    def _checked_ids(self, ids: Sequence[int]) -> Sequence[int]:
        size = len(self)
        for index in ids:
            if not (0 <= index < size or (self.names_unknown and NAMES <= index < 2 * NAMES)):
                raise DataError(f"token id {index}: expected 0 to {size - 1}")
        return ids


def has_unknown(ids: Sequence[int]) -> bool:
    """Return whether some of the tokens are unknown words.

    Example:
        >>> has_unknown([4, NAMES + 7])
        True
    """
    return any(index == UNK or index >= NAMES for index in ids)


def _name(word: str) -> int:
    return NAMES + zlib.crc32(word.strip().encode()) % NAMES


def _continues_word(data: bytes) -> bool:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:  # part of a character
        return data[0] not in UNSPACED_BYTES
    return text[:1].isalnum() and re.match(f"[{UNSPACED}]", text) is None


def _tracked(texts: Iterable[str], learning: Stage, choosing: Stage, stack: ExitStack) -> Iterator[str]:
    """Yield texts in a stage; at their end another one takes its place in the stack."""
    stack.enter_context(learning)
    yield from learning.track(texts)
    learning.update(total=learning.done)  # a sample has about as many as planned
    stack.close()
    stack.enter_context(choosing)


class _Checked:
    """Pass texts on to a trainer, noting whether any of them holds more than white space."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = texts
        self.any_text = False

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.any_text = self.any_text or bool(text.strip())
            yield whole_characters(text)


def _frame(kind: str, model: dict[str, Any] | None = None) -> Tokenizer:
    """Return the tokenizer of a kind, empty, or with the entries of a stored model."""
    empty: Any
    if kind == "bpe":
        empty, splitter = models.BPE(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif kind == "unigram":
        empty, splitter = models.Unigram(), pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")
    elif kind == "word":
        empty, splitter = models.WordLevel(unk_token=STORED[UNK]), pre_tokenizers.WhitespaceSplit()
    else:
        empty, splitter = models.WordLevel(unk_token=STORED[UNK]), pre_tokenizers.Split(Regex(r"(?m:.)"), "isolated")
    tokenizer = Tokenizer(empty)
    tokenizer.pre_tokenizer = splitter  # pyright: ignore[reportAttributeAccessIssue]
    if model is None:
        return tokenizer
    content = json.loads(tokenizer.to_str())
    content["model"] = model
    return Tokenizer.from_str(json.dumps(content))


def _check_model(kind: str, model: dict[str, Any]) -> None:
    """Raise ValueError for entries that the library accepts but cannot use."""
    expected = json.loads(_frame(kind).to_str())["model"]
    for key, value in expected.items():
        if key not in ("vocab", "merges", "unk_id") and model.get(key) != value:
            raise ValueError(f"{key} is {shown(model.get(key))}, expected {shown(value)}")
    numbers = range(len(model["vocab"])) if kind == "unigram" else sorted(model["vocab"].values())
    if list(numbers) != list(range(len(model["vocab"]))) or (kind == "unigram" and model.get("unk_id") != UNK):
        raise ValueError("the entries are not numbered one by one")


def _byte_of_character() -> dict[str, int]:
    """Return the byte each character of a byte-level token stands for (the table of GPT-2)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(0x100) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(0x100 + place): byte for place, byte in enumerate(moved)}


_BYTES = _byte_of_character()


def _token_bytes(kind: str, token: str) -> bytes:
    if token in STORED:
        return b""
    if kind == "bpe":
        return bytes(_BYTES[character] for character in token)
    return (token.replace(_SPACE, " ") if kind in ("unigram", IMPORTED) else token).encode("utf-8")


class _ForkGuard:
    """Set the library to one thread in forked children.

    Otherwise some releases warn on standard output, within a user's translations, and others may hang.
    """

    name = "TOKENIZERS_PARALLELISM"
    changed = False

    def before(self) -> None:
        self.changed = self.name not in os.environ
        if self.changed:
            os.environ[self.name] = "false"

    def after_in_parent(self) -> None:
        if self.changed:
            os.environ.pop(self.name, None)


_guard = _ForkGuard()
if hasattr(os, "register_at_fork"):  # Windows forks no process
    os.register_at_fork(before=_guard.before, after_in_parent=_guard.after_in_parent)
