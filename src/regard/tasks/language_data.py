"""Text of a language model's run: counted, sampled for the vocabulary, encoded into the run folder, and memory-mapped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from regard.config import LanguageConfig
from regard.data.file_digests import DataFiles
from regard.data.lines import stream_lines
from regard.data.parallel import file_digest
from regard.data.running_text import EncodedText, append_eos, lost_size, text_size
from regard.data.subsample import in_sample
from regard.data.text_encoder import TextEncoder
from regard.data.token_arrays import TokenFile, TokenWriter, smallest_dtype
from regard.data.token_cache import TOKENS, new_cache, open_cache, read_cache
from regard.data.vocabulary import UNK, Vocabulary
from regard.errors import DataError, counted
from regard.progress import stage

PARTS = ("train", "valid")
BLOCK = 16384
"""Lines that are read and encoded together."""


class TrainingLines:
    """The lines a language model is trained and validated on.

    Args:
        config: configuration of the run.
        folder: of the run. What an earlier start has kept there is used.

    Attributes:
        digests: sha256 of each data file, by the key of `data` that names it.
        size: lines to train on.

    Raises:
        DataError: no text is named, or a file cannot be read or has too few lines.
    """

    def __init__(self, config: LanguageConfig, folder: Path) -> None:
        data, self._folder = config.data, folder / TOKENS
        if data.text is None:
            raise DataError("data.text: no training text given (--text FILE)")
        self._files = DataFiles({"text": data.text, "valid_text": data.valid_text}, self._folder)
        self.digests = self._files.digests
        lines, held = self._files.lines["text"], 0
        if data.valid_text is None:
            if lines < 2:
                raise DataError(f"{data.text}: {counted(lines, 'line')}: at least 2 are needed to hold one out for validation")
            held = max(1, min(data.valid_size, lines // 10))
        for name, found in self._files.lines.items():
            if not found:
                raise DataError(f"{self._files.paths[name]}: no lines, expected at least one")
        self.size = lines - held

    def sample(self, count: int) -> Iterator[str]:
        """Yield about `count` lines to train on, from all over the text."""
        chosen = np.zeros(0, bool)
        for number, line in enumerate(self._lines("train")):
            if number % BLOCK == 0:
                chosen = in_sample(self.size, count, number, min(BLOCK, self.size - number))
            if chosen[number % BLOCK]:
                yield line

    def encode(self, vocabulary: Vocabulary, file: Path) -> None:
        """Encode the lines into the run folder, unless that is done.

        Raises:
            DataError: a file has changed meanwhile, or the folder cannot be written.
        """
        about = {"format": 2, "text": self.digests, "vocabulary": file_digest(file), "size": self.size}
        if open_cache(self._folder, about) is None:
            with new_cache(self._folder, about) as (folder, kept):
                for part in PARTS:
                    kept[part] = self._write(part, folder, vocabulary)
        self._files.keep()

    def _write(self, part: str, folder: Path, vocabulary: Vocabulary) -> dict[str, Any]:
        encoder, dtype = TextEncoder(vocabulary), smallest_dtype(len(vocabulary))
        lines, unknown, size, lost = self._lines(part), 0, 0, 0
        with TokenWriter(folder / part, dtype) as writer, stage(f"Encoding the {part} text", unit="lines") as encoding:
            while block := list(islice(lines, BLOCK)):
                tokens = append_eos(encoder.encode(block))
                writer.append(tokens)
                unknown += int((tokens.ids == UNK).sum())
                size += text_size(block)
                lost += lost_size(block, tokens, vocabulary)
                encoding.advance(len(block))
        return {"dtype": dtype, "unknown": unknown, "size": size, "lost": lost}

    def _lines(self, part: str) -> Iterator[str]:
        name = "valid_text" if part == "valid" and "valid_text" in self.digests else "text"
        found, path, expected = 0, self._files.paths[name], self._files.lines[name]
        for line in stream_lines(path):
            if name == "valid_text" or (found < self.size) == (part == "train"):
                yield line
            found += 1
        if found != expected:
            raise DataError(f"{path}: changed while it was read, {counted(found, 'line')} where {expected} were")


def open_texts(folder: Path) -> tuple[EncodedText, EncodedText]:
    """Open the encoded training and validation text in a run folder.

    Raises:
        DataError: it is not there, or it is damaged.
    """
    kept, texts = read_cache(folder / TOKENS), []
    for part in PARTS:
        tokens = TokenFile(folder / TOKENS / part, kept[part]["dtype"]).whole()
        texts.append(EncodedText(tokens.ids, tokens.offsets, *(kept[part][key] for key in ("size", "unknown", "lost"))))
    return texts[0], texts[1]
