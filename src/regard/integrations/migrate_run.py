"""A run folder made of a model that was trained elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tokenizers import Tokenizer, models, pre_tokenizers

from regard.config import TranslationConfig, dump_config, validate
from regard.data.lines import write_files
from regard.data.vocabulary import SPECIALS, UNK, Vocabulary
from regard.errors import ConfigError, DataError
from regard.integrations.migrate import Converted, rows
from regard.integrations.migrate_files import Imported, Tokens
from regard.tasks.run import SHARED, SOURCE, TARGET, run_files
from regard.tasks.run_folder import CONFIG, DATA
from regard.training.checkpoint import MODEL
from regard.training.folder import file_sha256, write_folder
from regard.training.weights import named_tensors, whole_tensors


class Numbering(NamedTuple):
    """The old number of each new entry: in an embedding, in the output layer; and the new entries behind the special ones."""

    embedding: list[int]
    output: list[int]
    words: list[str]


def write_run(imported: Imported, folder: str | Path, *, origin: str) -> TranslationConfig:
    """Write a run folder that translates as the imported model does, from tokens to tokens.

    The vocabularies are of the kind "word": what a line holds are the tokens of the other toolkit's own tokenizer, separated by spaces, and
    so is what is translated. The special tokens get our numbers, and the rows of the tables are put in their order.

    Args:
        imported: what was read.
        folder: must not exist, or be empty.
        origin: where the weights come from, one line for the folder's records.

    Returns:
        The configuration written.

    Raises:
        ConfigError: the folder holds something.
        DataError: a vocabulary has a token twice, or not as many as the model.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder}: exists and is not empty; choose another --out")
    sides = [numbering(tokens, name) for tokens, name in ((imported.source, "source"), (imported.target, "target"))]
    for side, tokens in zip(("source", "target"), (imported.source, imported.target), strict=True):
        size = imported.converted.weights[f"{side}_embedding.weight"].shape[0]
        if len(tokens.words) != size:
            raise DataError(f"{side} vocabulary: has {len(tokens.words)} tokens, the model {size}")
    shared = imported.source == imported.target
    converted: Converted = rows(imported.converted, [side.embedding for side in sides], sides[1].output)
    vocabularies = [word_vocabulary(side.words) for side in sides]
    settings = {"kind": "word", "size": max(8, *map(len, vocabularies)), "shared": shared}
    config = validate({"vocabulary": settings, "model": converted.config.model_dump(mode="json")}, "imported model")
    model = converted.build()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror})") from error
    for name, vocabulary in zip([SHARED] if shared else [SOURCE, TARGET], vocabularies, strict=False):
        vocabulary.save(folder / name)
    write_files({folder / DATA: b"{}\n", folder / CONFIG: dump_config(config).encode()})
    sums = {name: file_sha256(folder / name) for name in run_files(config)}
    tensors = whole_tensors(named_tensors(model))
    write_folder(folder / "model", {MODEL: tensors}, state={"weights": origin}, run_files=sums, on_event=lambda _: None)
    return config


def numbering(tokens: Tokens, name: str) -> Numbering:
    """Return how the entries are numbered anew, our special tokens in front; `name` says which side in an error.

    Raises:
        DataError: a token stands there twice, or a special one is no entry.

    Example:
        >>> numbering(Tokens(["<s>", "<pad>", "</s>", "<unk>", "ein"], pad=1, unk=3, eos=2, start=2, bos=0), "source")
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
        raise DataError(f"{name} vocabulary: {twice!r} stands there twice")
    first = [tokens.pad, tokens.unk]
    return Numbering([*first, tokens.start, tokens.eos, *others], [*first, tokens.bos, tokens.eos, *others], words)


def word_vocabulary(words: list[str]) -> Vocabulary:
    """Return the vocabulary of the kind "word" with these entries behind the special ones.

    Example:
        >>> word_vocabulary(["ein", "Hund"]).encode("ein Hund bellt").ids
        [4, 5, 1]
    """
    # The space keeps a special token out of reach of any text; see `regard.data.vocabulary`.
    entries = [*(f" {name}" for name in SPECIALS), *words]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(entries)}, unk_token=entries[UNK]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return Vocabulary("word", tokenizer)
