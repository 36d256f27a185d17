"""Atomic writes of folders of tensors and JSON, with a sha256 of every file."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import CheckpointError, WriteError, os_reason
from regard.strict_json import parse_json

FORMAT = 1
MANIFEST, STATE = "manifest.json", "state.json"
TEMPORARY = ".tmp-"
REPLACED = ".old-"


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file that others may read as any new file; safetensors alone lets nobody but its owner.

    Raises:
        OSError: the file cannot be written.
        SafetensorError: likewise.
    """
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata=None if metadata is None else dict(metadata))
    if path.stat().st_mode != mode:
        with suppress(OSError):  # some file systems have no modes
            path.chmod(mode)


def write_folder(
    target: Path,
    files: Mapping[str, Mapping[str, Tensor]],
    *,
    state: Mapping[str, Any],
    run_files: Mapping[str, str],
    on_event: Callable[[str], None],
) -> None:
    """Write a folder under a temporary name, sync it to disk, and rename it.

    If the process dies, `target` is either unchanged or complete. (Replacing an existing folder takes two renames; `remove_leftovers`
    undoes the first without the second.)

    Args:
        target: the folder to make or replace.
        files: file name -> tensors by name.
        state: becomes `state.json`.
        run_files: name -> sha256 of the run's own files, kept in the manifest.
        on_event: called with each file's name once it is written, and with "rename".

    Raises:
        WriteError: writing failed; the previous folder is unchanged.
    """
    temporary, replaced = target.with_name(TEMPORARY + target.name), target.with_name(REPLACED + target.name)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, tensors in files.items():
            write_tensors(temporary / name, tensors)
            to_disk(temporary / name)
            on_event(name)
        _write_json(temporary / STATE, state)
        on_event(STATE)
        sums = {path.name: file_sha256(path) for path in sorted(temporary.iterdir())}
        _write_manifest(temporary / MANIFEST, {"format": FORMAT, "files": sums, "run_files": dict(run_files)})
        on_event(MANIFEST)
        to_disk(temporary)
        on_event("rename")
        if target.exists():
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        temporary.rename(target)
        to_disk(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise WriteError(f"{target}: cannot be saved ({_cause(target, error)}); what was saved before is untouched") from error


def read_state(folder: Path) -> dict[str, Any]:
    """Return the `state.json` of a verified folder."""
    return _read_json(folder / STATE)


def verify_folder(folder: Path, only: Iterable[str] | None = None) -> dict[str, Any]:
    """Compare the files of a folder with its manifest and return the manifest.

    Args:
        folder: written by `write_folder`.
        only: names to check; all by default. Names the manifest lacks are an error.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    path = folder / MANIFEST
    manifest = _read_json(path)
    own = manifest.pop("sha256", None)
    if own != _own_sha256(manifest):
        raise CheckpointError(f"{path}: is damaged (its sha256 of itself does not match)")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path}: has format {manifest.get('format')}, this version reads format {FORMAT}")
    sums = manifest.get("files")
    if not isinstance(sums, dict) or not isinstance(manifest.get("run_files"), dict) or not all(map(_plain, sums)):
        raise CheckpointError(f"{path}: expected names of files in this folder under files and run_files")
    for name in sums if only is None else only:
        file = folder / name
        if name not in sums:
            raise CheckpointError(f"{file}: is not listed in {MANIFEST}")
        try:
            found = file_sha256(file)
        except (OSError, ValueError) as error:  # ValueError: a name that no file can have
            raise CheckpointError(f"{file}: cannot be read ({_cause(file, error)})") from error
        if found != sums[name]:
            raise CheckpointError(f"{file}: is damaged (its sha256 is not the one in {MANIFEST})")
    return manifest


def seal_run_files(folder: Path, run_files: Mapping[str, str]) -> None:
    """Put other sums of the run's own files into the manifest of a folder.

    Args:
        folder: written by `write_folder`.
        run_files: name -> sha256.

    Raises:
        CheckpointError: see `verify_folder`.
    """
    manifest = verify_folder(folder, only=())
    _write_manifest(folder / (TEMPORARY + MANIFEST), {**manifest, "run_files": {**manifest["run_files"], **run_files}})
    (folder / (TEMPORARY + MANIFEST)).replace(folder / MANIFEST)


def _write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    _write_json(path, {**manifest, "sha256": _own_sha256(manifest)})


def _plain(name: str) -> bool:
    # A printable name of a file in the folder itself.
    return Path(name).name == name and name.isprintable()


def remove_leftovers(parent: Path) -> None:
    """Remove leftovers of an interrupted `write_folder`, or restore the folder it was replacing."""
    if not parent.is_dir():
        return
    for path in parent.iterdir():
        if path.name.startswith(TEMPORARY):
            shutil.rmtree(path, ignore_errors=True)
        elif path.name.startswith(REPLACED):
            target = path.with_name(path.name.removeprefix(REPLACED))
            if target.exists():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.rename(target)


def _own_sha256(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    to_disk(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        tree = parse_json(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not JSON ({error})") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{path}: expected keys and values, found {type(tree).__name__}")
    return tree


def to_disk(path: Path) -> None:
    """Sync a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cause(path: Path, error: Exception) -> str:
    if isinstance(error, OSError):
        return os_reason(path, error)
    if number := re.search(r"\(os error (\d+)\)", str(error)):  # as safetensors words it
        return os.strerror(int(number[1]))
    return " ".join(str(error).split())
