"""Records of what a run attended to, and where they go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import ConfigError, DataError
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
        found = [translator.align(lines[0], target)]
    else:
        decoding = translator.run.config.decoding
        if beam is not None:
            decoding = decoding.model_copy(update={"beam": beam})
        translations = translator.translate(lines, decoding=decoding, need_attention=True)
        found = [translator.record(line, item) for line, item in zip(lines, translations, strict=True)]
    records = [record for record in found if record is not None]
    if not records:
        raise DataError("nothing to look at: the input holds no text")
    return records


def save_records(records: Sequence[AttentionRecord], path: Path) -> None:
    """Write records as the file's ending says: .html a page, .json records, .png .svg .pdf a picture of the only one.

    Raises:
        DataError: another ending, or a picture of several records.
    """
    match path.suffix.lower():
        case ".html":
            save_page(records, path)
        case ".json":
            write_records(path, records)
        case ".png" | ".svg" | ".pdf":
            if len(records) != 1:
                raise DataError(f"{path}: a picture shows one example, found {len(records)}; write a .html page instead")
            save_picture(records[0], path)
        case _:
            raise DataError(f"{path}: expected a name ending in .html, .json, .png, .svg or .pdf")
