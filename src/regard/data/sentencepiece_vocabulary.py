"""Vocabularies that split text with a SentencePiece model, as Marian does; needs the extra `sentencepiece`."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from regard.data.lines import single_line, whole_characters
from regard.data.vocabulary import BOS, EOS, FORMAT, IMPORTED, PAD, UNK, TokenizedText, Vocabulary
from regard.errors import missing_extra

_SPACE = "\u2581"


class SentencePieceVocabulary(Vocabulary):
    """The vocabulary of an imported model.

    A SentencePiece model normalizes and splits the text. Ids are those of `entries`, not the model's: Marian trains one model per language
    and numbers the sub-words of both in one list. Other sub-words are UNK. A language code at the start of a text (`>>deu<<`) is one token,
    as for Marian.

    Args:
        entries: all tokens in the order of their ids; the special ones first, as in the file.
        model: the bytes of an `.spm` file.

    Raises:
        ValueError: the entries are not unique or lack the special ones, or the model is damaged.
        MissingExtraError: the package sentencepiece is not installed.
    """

    def __init__(self, entries: Sequence[str], model: bytes) -> None:
        self.kind = IMPORTED
        self._set_entries(entries)
        self._entries, self._model = list(entries), model
        self._ids = {entry: number for number, entry in enumerate(entries)}
        if len(self._ids) != len(self._entries):
            raise ValueError("an entry is duplicated")
        self._processor = _processor(model)

    def encode_batch(self, texts: Iterable[str]) -> list[TokenizedText]:
        """Return `encode` of each text, in order; no texts give an empty list."""
        return [self._encode(whole_characters(text)) for text in texts]

    def encode_ids(self, texts: Iterable[str]) -> list[list[int]]:
        """Return only the ids of each text, in order."""
        result = []
        for text in texts:
            code, rest = split_code(whole_characters(text))
            result.append([self._ids.get(piece, UNK) for piece in [*code, *self._processor.encode(rest, out_type=str)]])
        return result

    def decode(self, ids: Sequence[int], words: Mapping[int, str] | None = None) -> str:
        """Decode token ids to one line, without special tokens, UNK as "<unk>"; sub-words name no unknown `words`.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        parts: list[str] = []
        pieces: list[str] = []
        for index in [*self._checked_ids(ids), UNK]:  # the last one closes the last part
            if index == UNK:
                parts += [self._processor.decode_pieces(pieces).replace(_SPACE, " ").strip(), "<unk>"]
                pieces = []
            elif index not in (PAD, BOS, EOS):
                pieces.append(self._entries[index])
        return single_line(" ".join(filter(None, parts[:-1])))

    def to_bytes(self) -> bytes:
        """Serialise: the entries, and the SentencePiece model in base64."""
        content = {"format": FORMAT, "kind": IMPORTED, "entries": self._entries, "model": base64.b64encode(self._model).decode("ascii")}
        return (json.dumps(content, ensure_ascii=False, indent=None, separators=(",", ":")) + "\n").encode("utf-8")

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> SentencePieceVocabulary:
        """Load from the parsed output of `to_bytes`.

        Raises:
            ValueError: it is damaged.
        """
        entries, model = content.get("entries"), content.get("model")
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries) or not isinstance(model, str):
            raise ValueError("expected a list of entries and a model in base64")
        return cls(entries, base64.b64decode(model, validate=True))

    def _encode(self, text: str) -> TokenizedText:
        code, rest = split_code(text)
        found = self._processor.encode(rest, return_type="offset_mapping")
        start = len(text) - len(rest)
        offsets = [(0, start)] * len(code) + [(start + first, start + last) for first, last in found["offsets"]]
        pieces = [*code, *found["pieces"]]
        ids = [self._ids.get(piece, UNK) for piece in pieces]
        return TokenizedText(ids, [piece.replace(_SPACE, " ") for piece in pieces], offsets)


def split_code(text: str) -> tuple[list[str], str]:
    """Split a language code off the start of a text, by Marian's rule.

    Returns:
        A list with the code, if any, and the rest.

    Example:
        >>> split_code(">>deu<< a dog"), split_code("a >> dog")
        ((['>>deu<<'], ' a dog'), ([], 'a >> dog'))
    """
    end = text.find("<<")
    return ([text[: end + 2]], text[end + 2 :]) if text.startswith(">>") and end != -1 else ([], text)


def _processor(model: bytes) -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise missing_extra("a vocabulary of the kind sentencepiece needs sentencepiece 0.2.3 or newer", "sentencepiece") from error
    if not model:
        raise ValueError("the SentencePiece model is empty")
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=model)
    except (RuntimeError, OSError, TypeError) as error:
        raise ValueError(f"the SentencePiece model is damaged ({error})") from error
