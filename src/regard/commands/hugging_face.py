"""Models of Hugging Face, read from folders, those with areas included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.commands.terminal import write_message


def load_model(folder: Path) -> Any:
    """Read a model from a folder of `save_pretrained`, with the areas it was saved with (`regard.integrations.transformers`).

    Raises:
        CheckpointError: see `regard.integrations.transformers.restore`.
        DataError: see `regard.mask_check.load_folder`.
        MissingExtraError: transformers is not installed.

    Example:
        >>> load_model(Path("no-such-folder"))
        Traceback (most recent call last):
            ...
        regard.errors.DataError: no-such-folder: no such folder
    """
    from regard.mask_check import load_folder

    areas = _names_areas(folder / "config.json")
    if areas:
        from regard.integrations.transformers import register

        register()  # transformers refuses a configuration that names an attention it does not know
    model = load_folder(folder)
    if areas:
        from regard.integrations.transformers import restore

        restore(model, folder)
        write_message(
            f"{folder}: its areas are restored; if transformers called weights of regard_area unexpected, they were read after that"
        )
    return model


def _names_areas(file: Path) -> bool:
    try:
        return '"regard_area"' in file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # told by `load_folder`
        return False
