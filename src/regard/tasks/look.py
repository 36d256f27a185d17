"""Records of what a run attended to, and where they go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from regard.errors import ConfigError, DataError
from regard.tasks.attended import with_layers
from regard.tasks.translate import Translator
from regard.viewer import AttentionRecord, save_page, save_picture, write_records


def records_of(folder: str | Path, lines: Sequence[str], *, target: str | None = None, beam: int | None = None) -> list[AttentionRecord]:
    """Translate lines with a run and record what it attended to.

    Args:
        folder: a run folder.
        lines: sentences.
        target: look at this translation of the only line instead of the model's own.
        beam: hypotheses of the search; None takes the run's setting.

    Returns:
        One record a line that has anything in it.

    Raises:
        ConfigError: the model has no attention, or `target` comes with several lines.
        DataError: no line holds anything to translate.
    """
    translator = Translator.open(folder)
    if not translator.run.config.model.attends:
        raise ConfigError(f"{folder}: this model has no attention to look at")
    if target is not None:
        if len(lines) != 1:
            raise ConfigError(f"--target: goes with one sentence, found {len(lines)}")
        found = [_aligned(translator, lines[0], target)]
    else:
        decoding = translator.run.config.decoding
        if beam is not None:
            decoding = decoding.model_copy(update={"beam": beam})
        translations = translator.translate(lines, decoding=decoding, n_best=decoding.beam, need_attention=True)
        found = [translator.record(line, item) for line, item in zip(lines, translations, strict=True)]
    records = [record for record in found if record is not None]
    if not records:
        raise DataError("nothing to look at: the input holds no text")
    return records


def side_by_side(
    folders: Sequence[str | Path], lines: Sequence[str], *, target: str | None = None, beam: int | None = None
) -> list[AttentionRecord]:
    """Record what several runs attended to: for each line one record of each run, named after its folder.

    Args:
        folders: run folders; the sentences are in a language that all of them read.
        lines: sentences.
        target: see `records_of`.
        beam: see `records_of`.

    Raises:
        ConfigError: see `records_of`.
        DataError: see `records_of`.
    """
    found = [records_of(folder, lines, target=target, beam=beam) for folder in folders]
    names = [Path(folder).name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return [replace(record, model=name) for same in zip(*found, strict=True) for record, name in zip(same, names, strict=True)]


def _aligned(translator: Translator, line: str, target: str) -> AttentionRecord | None:
    record = translator.align(line, target)
    if record is None:
        return None
    limit = translator.run.config.data.max_length
    source, forced = (
        vocabulary.encode(text).ids[:limit] for vocabulary, text in zip(translator.run.vocabularies, (line, target), strict=True)
    )
    return with_layers(translator.run, record, source, forced)


def save_records(records: Sequence[AttentionRecord], path: Path, *, map: str | None = None, head: int | None = None) -> None:
    """Write records as the file's ending says: .html a page, .json records, .png .svg .pdf a picture of the only one.

    Args:
        records: what to write.
        path: the file.
        map: for a picture the name of a map, see `AttentionRecord.matrix`.
        head: for a picture which head, from 0.

    Raises:
        DataError: another ending, a picture of several records, or no such map or head.
    """
    match path.suffix.lower():
        case ".html":
            save_page(records, path)
        case ".json":
            write_records(path, records)
        case ".png" | ".svg" | ".pdf":
            if len(records) != 1:
                raise DataError(f"{path}: a picture shows one example, found {len(records)}; write a .html page instead")
            save_picture(records[0], path, map=map, head=head)
        case _:
            raise DataError(f"{path}: expected a name ending in .html, .json, .png, .svg or .pdf")
