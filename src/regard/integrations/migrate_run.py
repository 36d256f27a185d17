"""Writes a run folder for a model that was trained elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, models, pre_tokenizers

from regard import progress
from regard.config import TranslationConfig, dump_config, validate
from regard.data.sentencepiece_vocabulary import SentencePieceVocabulary, split_code
from regard.data.vocabulary import STORED, UNK, Vocabulary
from regard.errors import DataError, listed, shown
from regard.integrations.migrate import Converted, reorder_vocabulary
from regard.integrations.migrate_files import Imported, ToolkitVocabulary
from regard.tasks.run_folder import CONFIG, DATA, create_run
from regard.tasks.translation_run import SHARED, SOURCE, TARGET, run_files
from regard.training import run_lock
from regard.training.atomic_folder import file_sha256, write_folder
from regard.training.checkpoint import MODEL
from regard.training.weights import named_tensors, whole_tensors

FINE_TUNING = {
    "learning_rate": 1e-4,
    "schedule": "cosine",
    "warmup_updates": 50,
    "final_fraction": 0.05,
    "betas": [0.9, 0.98],
    "eps": 1e-9,
    "label_smoothing": 0.1,
    "batch_tokens": 2048,
    "epochs": 5,
}
"""Training settings for a run that continues an imported one: gentle, because its weights are trained.

A few thousand pairs are 30 updates per epoch: a longer warm-up would not end.
"""


class Numbering(NamedTuple):
    """Old id of each new entry in the embedding and in the output layer; and the new entries after the special ones."""

    embedding: list[int]
    output: list[int]
    words: list[str]


def write_run(imported: Imported, folder: str | Path, *, origin: str) -> TranslationConfig:
    """Write a run folder that translates like the imported model.

    With SentencePiece models it reads and writes raw text: the vocabularies are of kind "sentencepiece" and contain their models. Otherwise
    they are of kind "word": a line holds the tokens of the toolkit's own tokenizer, separated by spaces, and so does its translation.
    Special tokens get Regard's ids, and the embedding rows are permuted.

    Args:
        imported: the imported files.
        folder: must not exist, or must be empty.
        origin: where the weights come from, one line for the folder's records.

    Returns:
        The saved configuration.

    Raises:
        ConfigError: the folder is not empty.
        DataError: a vocabulary has a duplicate token or another size than the model, or a SentencePiece model is damaged.
        MissingExtraError: SentencePiece models are present, and the package sentencepiece is not installed.
    """
    folder = Path(folder)
    sides = [numbering(tokens, name) for tokens, name in ((imported.source, "source"), (imported.target, "target"))]
    for side, tokens in zip(("source", "target"), (imported.source, imported.target), strict=True):
        size = imported.converted.weights[f"{side}_embedding.weight"].shape[0]
        if len(tokens.words) != size:
            raise DataError(f"{side} vocabulary: has {len(tokens.words)} tokens, the model {size}")
    shared = imported.source == imported.target and (imported.models is None or imported.models[0] == imported.models[1])
    converted: Converted = reorder_vocabulary(imported.converted, [side.embedding for side in sides], sides[1].output, never=imported.never)
    vocabularies = _vocabularies(imported, [side.words for side in sides])
    settings = {"kind": vocabularies[0].kind, "size": max(8, *map(len, vocabularies)), "shared": shared}
    parts = {"vocabulary": settings, "model": converted.config.model_dump(mode="json"), "training": FINE_TUNING}
    config = validate(parts | {"decoding": imported.decoding}, "imported model")
    model = converted.build()
    names = [SHARED] if shared else [SOURCE, TARGET]
    files = {name: vocabulary.to_bytes() for name, vocabulary in zip(names, vocabularies, strict=False)}
    files |= {DATA: b"{}\n", CONFIG: dump_config(config).encode()}

    def complete(staging: Path) -> None:
        sums = {name: file_sha256(staging / name) for name in run_files(config)}
        tensors = whole_tensors(named_tensors(model))
        write_folder(staging / "model", {MODEL: tensors}, state={"weights": origin}, run_files=sums, on_event=lambda _: None)

    with run_lock(folder):
        create_run(folder, lambda: files, complete=complete, wanted="empty")
    if imported.models is None:
        progress.message(f"{folder}: no SentencePiece models; the run expects tokens separated by spaces")
    if codes := [word for word in sides[0].words if split_code(word) == ([word], "")]:
        progress.message(f"{folder}: begin each line with the code of a target language: {listed(codes, most=5)}")
    return config


def numbering(tokens: ToolkitVocabulary, name: str) -> Numbering:
    """Return the new ids of the entries, Regard's special tokens first; `name` names the side in errors.

    Raises:
        DataError: a token is duplicated, or a special token is missing.

    Example:
        >>> numbering(ToolkitVocabulary(["<s>", "<pad>", "</s>", "<unk>", "ein"], pad=1, unk=3, eos=2, start=2, bos=0), "source")
        Numbering(embedding=[1, 3, 2, 2, 4], output=[1, 3, 0, 2, 4], words=['ein'])
    """
    special = {tokens.pad, tokens.unk, tokens.eos, tokens.start, tokens.bos}
    if min(special) < 0 or max(special) >= len(tokens.words):
        raise DataError(f"{name} vocabulary: has {len(tokens.words)} tokens, and the special ones are {sorted(special)}")
    others = [number for number in range(len(tokens.words)) if number not in special]
    words = [tokens.words[number] for number in others]
    if len(set(words)) != len(words):
        seen: set[str] = set()
        twice = next(word for word in words if word in seen or seen.add(word))
        raise DataError(f"{name} vocabulary: {shown(twice)} is duplicated")
    first = [tokens.pad, tokens.unk]
    return Numbering([*first, tokens.start, tokens.eos, *others], [*first, tokens.bos, tokens.eos, *others], words)


def _vocabularies(imported: Imported, words: Sequence[list[str]]) -> list[Vocabulary]:
    if imported.models is None:
        return [word_vocabulary(side) for side in words]
    found: list[Vocabulary] = []
    for name, side, model in zip(("source", "target"), words, imported.models, strict=True):
        try:
            found.append(SentencePieceVocabulary([*STORED, *side], model))
        except ValueError as error:
            raise DataError(f"{name}.spm, or the {name} vocabulary: {error}") from error
    return found


def word_vocabulary(words: list[str]) -> Vocabulary:
    """Return a vocabulary of kind "word" with these entries after the special ones.

    Example:
        >>> word_vocabulary(["ein", "Hund"]).encode("ein Hund bellt").ids
        [4, 5, 1]
    """
    entries = [*STORED, *words]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(entries)}, unk_token=entries[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return Vocabulary("word", tokenizer)
