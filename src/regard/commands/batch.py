"""Batch processing of whole files: `--input` and `--output` of the commands that answer lines."""

from __future__ import annotations

import errno
import glob
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, cast

from regard import progress
from regard.commands.options import refuse
from regard.commands.streaming import WORKER
from regard.commands.terminal import write_line
from regard.errors import ConfigError, DataError, RegardError, TrainingError, counted, listed, os_reason
from regard.jobs import open_pool
from regard.jobs.pool import Answer, Job
from regard.jobs.process_worker import answer_jobs
from regard.strict_json import parse_json

MANIFEST = "manifest.jsonl"
ALONE = (
    *("images", "listing", "features", "source", "target", "second_source", "links", "prefix", "document", "timing", "choose"),
    *("captions", "examples", "text", "json_file"),
)
"""Parameters of commands for another input or output than lines."""
PLACES = ("run", "what", "others", "baseline")
"""Parameters that name runs."""
FIELDS = {"input": str, "size": int, "changed": int, "input_sha256": str, "lines": int, "unreadable": int, "bytes": int, "sha256": str}
"""Facts of a finished shard, and their types."""

ONE_PATTERN = "--input takes one pattern, and no other files; quote it, or the shell expands it: --input 'shards/*.en'"


def run_batch(
    command: str,
    parameters: Mapping[str, Any],
    shards: str,
    output: Path | None,
    *,
    words: Sequence[str] | None = None,
    option: str = "--output",
    **where: Any,
) -> None:
    """Process many files, each into its own output file.

    The content of an output file is byte for byte what the command writes for that input alone. Files are written completely or not at all;
    `manifest.jsonl` in the output folder lists finished ones, and the same command resumes.

    Args:
        command: name of the command.
        parameters: its options.
        shards: pattern of the input files.
        output: output folder.
        words: the command line of a worker; None: this one's.
        option: the option that names the folder, for errors.
        where: see `regard.jobs.open_pool`.

    Raises:
        ConfigError: invalid options, or the folder holds the outputs of another command, model or options.
        TrainingError: some files failed; the message names them. The others are processed.
    """
    from regard.data.lines import leftovers
    from regard.training import run_lock

    if any(isinstance(parameters.get(name), list | tuple) and parameters[name] for name in ("files", "images")):
        raise ConfigError(ONE_PATTERN)
    called = {"json_file": "--json"}
    given = {called.get(name, f"--{name.replace('_', '-')}"): parameters.get(name) or None for name in ALONE}
    if str(given["--links"]) == "-":  # written into the objects, not into a file
        del given["--links"]
    refuse(given, "not with --input, which takes lines and writes lines")
    if output is None:
        raise ConfigError("--output FOLDER: needed, where the answers to --input go")
    inputs = _find(shards, output)
    unchanged = _Unchanged(parameters, option)
    about = _about(command, parameters)
    with run_lock(output):
        for killed in leftovers(output / MANIFEST):
            killed.unlink(missing_ok=True)
        done = _read_manifest(output, about, option)
        if left := [name for name in done if name not in inputs and (output / name).exists()]:
            names = listed(left, most=3)
            progress.message(f"{output}: also has answers of shards that --input no longer names: {names}", warning=True)
        with progress.stage("Checking finished shards", total=len(inputs), unit="shards") as checking:
            kept = {
                name: done[name] for name in checking.track(inputs, block=1) if name in done and _is_done(done[name], inputs[name], output)
            }
        jobs = {name: {"input": str(path), "output": str(output / name)} for name, path in inputs.items() if name not in kept}
        words = ["regard", *sys.argv[1:], *(["--list", "-"] if command == "caption" else [])] if words is None else list(words)
        failed = _work(output, about, kept, jobs, words=words, check=unchanged.check, **where)
        _write_manifest(output, about, [kept[name] for name in inputs if name in kept])
    unreadable = sum(entry["unreadable"] for entry in kept.values())
    lines = sum(entry["lines"] for entry in kept.values())
    left_out = f", {unreadable} not read" if unreadable else ""
    write_line(f"{len(kept)} of {counted(len(inputs), 'shard')}, {counted(lines, 'line')}{left_out}: {output / MANIFEST}")
    if failed:
        names = listed((f"{name} ({why})" for name, why in failed.items()), most=3)
        raise TrainingError(f"{len(failed)} of {counted(len(inputs), 'shard')} failed: {names}; the same command tries them again")
    if unreadable:
        raise TrainingError(
            f"{counted(unreadable, 'line')} could not be read; {'its answer is' if unreadable == 1 else 'their answers are'} empty"
        )


def answer_shards(answer: Callable[[Path, Iterable[list[str]], int], tuple[int, int]]) -> NoReturn:
    """Process the shards sent by the parent process.

    Args:
        answer: writes the answers of a file to standard output, given its path, its lines in chunks, and their number; returns how many it
            read, and how many were unreadable.
    """
    import torch

    from regard.data.lines import leftovers, open_whole, scan_lines, stream_lines
    from regard.tasks.chunking import in_chunks

    begin = torch.get_rng_state()  # each shard draws the same samples as alone

    def work(job: Job) -> Answer:
        path, output = Path(job["input"]), Path(job["output"])
        torch.set_rng_state(begin)
        state = _state(path)
        digest, lines = scan_lines(path)
        for left in leftovers(output):  # of a killed worker
            left.unlink(missing_ok=True)
        with open_whole(output) as stream:
            written = _Digested(stream)
            before, sys.stdout = sys.stdout, io.TextIOWrapper(cast(BinaryIO, io.BufferedWriter(written)))
            try:
                found, unreadable = answer(path, in_chunks(stream_lines(path), len), lines)
                sys.stdout.flush()
            finally:
                sys.stdout = before
            if found != lines or _state(path) != state:
                raise DataError(f"{path}: changed while it was read")
        values = (str(path), *state, digest, lines, unreadable, written.size, written.sha256.hexdigest())
        return dict(zip(FIELDS, values, strict=True))

    answer_jobs(work)


class _Digested(io.RawIOBase):
    """A file that computes size and sha256 of its content on writing."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self.sha256, self.size = stream, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self._stream.write(data)


def _find(pattern: str, output: Path) -> dict[str, Path]:
    """Return the input files by the names of their outputs: paths relative to their common folder, without `.gz`.

    Files in an output folder with a manifest are no inputs: they are answers of an earlier call.
    """
    plain = Path(pattern).is_file()
    # A dangling link is an input that cannot be read.
    paths = [Path(pattern)] if plain else sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if not path.is_dir())
    if special := [str(path) for path in paths if path.exists() and not path.is_file()]:
        raise DataError(f"--input {pattern}: {special[0]} is not a file")
    if Path(pattern).is_dir():
        raise DataError(f"--input {pattern}: a folder; for the files in it: --input '{Path(pattern) / '*'}'")
    if not plain:
        _check_folders(pattern)
    if not paths:
        raise DataError(f"--input {pattern}: no such file, and no file has a name like this")
    outside = [path for path in paths if not path.parent.resolve().is_relative_to(output.resolve())]
    mixed = 0 < len(outside) < len(paths)
    if mixed and (output / MANIFEST).is_file():
        progress.message(f"--input {pattern}: not the files in {output}, which holds answers")
        paths, mixed = outside, False
    common = Path(os.path.commonpath([path.parent.resolve() for path in paths]))
    found: dict[str, Path] = {}
    for path in paths:
        name = str(path.parent.resolve().relative_to(common) / path.name).removesuffix(".gz")
        if name in found:
            raise ConfigError(f"--input: {found[name]} and {path} would have one output, {output / name}")
        found[name] = path
    _check_outputs(found, output)
    if mixed:  # from the first output on, the input could not be told from these
        raise ConfigError(f"--output {output}: has the input {min({*paths} - {*outside})}; choose another folder")
    return found


def _check_folders(pattern: str) -> None:
    """Refuse a pattern whose folders cannot all be read: `glob` leaves such a folder out, and the files in it would be missing."""
    parts = Path(pattern).parts
    for number, part in enumerate(parts[1:], start=1):
        needed = os.X_OK | os.R_OK if glob.has_magic(part) else os.X_OK
        for folder in glob.iglob(os.path.join(*parts[:number], ""), recursive=True):
            if not os.access(folder, needed) and Path(folder).name != "lost+found":  # of a file system itself
                raise DataError(f"--input {pattern}: {folder}: no permission to read this folder")


def _check_outputs(inputs: Mapping[str, Path], output: Path) -> None:
    """Refuse outputs that would be folders, or replace an input, another output or a file of the batch itself."""
    from regard.training.lock import LOCK

    own = {str(path.resolve()): path for path in inputs.values()}
    for name, path in inputs.items():
        place = output / name
        above = [str(parent) for parent in Path(name).parents][:-1]
        if taken := next((part for part in (name, *above) if part in (MANIFEST, LOCK)), None):
            what = "list of finished shards" if taken == MANIFEST else "lock"
            raise ConfigError(
                f"--input: the output of {path}, {place}, would take the place of the {what}, {output / taken}; rename the input"
            )
        if (replaced := own.get(str(place.resolve()))) is not None:
            raise ConfigError(
                f"--output {output}: the output of {path}, {place}, would replace the input {replaced}; choose another folder"
            )
        if place.is_dir():
            raise ConfigError(f"--input: the output of {path}, {place}, is a folder; choose another --output")
        for part in above:
            if part in inputs:
                raise ConfigError(f"--input: the output of {inputs[part]}, {output / part}, would be the folder of that of {path}")
            if (output / part).exists() and not (output / part).is_dir():
                raise ConfigError(f"--input: the output of {path}, {place}, needs the folder {output / part}, which is a file; remove it")
    for name in (MANIFEST, LOCK):
        if (replaced := own.get(str((output / name).resolve()))) is not None:
            raise ConfigError(f"--output {output}: {name} there would replace the input {replaced}; choose another folder")


def _about(command: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of the answers besides the shards: command, options with the content of their files, and the runs' weights."""
    from regard.data.lines import stat_rereadable
    from regard.data.parallel import file_digest

    def noted(value: Any) -> Any:
        if isinstance(value, Path) and value.is_file():
            return {"file": str(value), "sha256": file_digest(value)}
        if isinstance(value, Path) and value.exists() and not value.is_dir():
            stat_rereadable(value)  # by each worker
        return value if isinstance(value, int | float) else str(value)

    options = {
        name: noted(value) for name, value in parameters.items() if name not in PLACES and value is not None and value not in ((), [])
    }
    return {"command": command, "options": options, "runs": [file_digest(file) for file in _run_files(parameters)]}


def _run_files(parameters: Mapping[str, Any]) -> list[Path]:
    """Return weights and settings of the runs that a command uses; which weights may change while a run is trained."""
    from regard.training.checkpoint import weights_file

    runs: list[Any] = []
    for name in PLACES:
        given = parameters.get(name)
        runs += given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    beside = ("alignment.json", "confidence.json", "shortlist.json")  # of translation, where there are any
    own = (file for run in runs for name in beside if (file := Path(run) / name).is_file())
    return [*(file for run in runs for file in (weights_file(Path(run)), Path(run) / "config.yaml")), *own]


class _Unchanged:
    """Checks that the files that all answers depend on stay: each worker reads them, a later one than the others if one was lost.

    Args:
        parameters: the options of the command.
        option: the option that names the output folder, for errors.
    """

    def __init__(self, parameters: Mapping[str, Any], option: str) -> None:
        self._parameters, self._option = parameters, option
        self._states = self._look()

    def _look(self) -> dict[str, tuple[int, ...]]:
        given = [value for value in self._parameters.values() if isinstance(value, Path) and value.is_file()]
        found = {str(path): path.stat() for path in (*_run_files(self._parameters), *given)}
        return {name: (state.st_size, state.st_mtime_ns, state.st_ino) for name, state in found.items()}

    def check(self) -> None:
        """Raise a `TrainingError` if a file has changed since the beginning."""
        try:
            found = self._look()
        except (OSError, RegardError):
            found = {}
        if found != self._states:
            name = min(name for name in {*found, *self._states} if found.get(name) != self._states.get(name))
            raise TrainingError(f"{name}: changed or removed while shards were answered; use a copy, and another {self._option}")


def _state(path: Path) -> tuple[int, int]:
    from regard.data.lines import stat_rereadable

    found = stat_rereadable(path)
    return found.st_size, found.st_mtime_ns


def _is_done(entry: Mapping[str, Any], path: Path, output: Path) -> bool:
    """Return whether a shard's output exists and its input is unchanged: equal size and time, or else equal content."""
    from regard.data.parallel import file_digest

    with suppress(OSError, DataError):
        written = output / entry["shard"]
        if written.stat().st_size != entry["bytes"] or file_digest(written) != entry["sha256"]:
            return False
        return _state(path) == (entry["size"], entry["changed"]) or file_digest(path) == entry["input_sha256"]
    return False


def _read_manifest(output: Path, about: Mapping[str, Any], option: str) -> dict[str, dict[str, Any]]:
    path = output / MANIFEST
    if not path.exists():
        return {}
    if not path.is_file():
        raise ConfigError(f"{path}: expected the list of finished shards, found {'a folder' if path.is_dir() else 'no file'}; remove it")
    entries: list[Any] = []
    for line in path.read_bytes().split(b"\n"):
        with suppress(ValueError, RecursionError):  # the last line of a killed process
            entries.append(parse_json(line))
    if not entries or entries[0] != about:
        why = _difference(entries[0] if entries else None, about)
        raise ConfigError(f"{path}: written with {why}; choose another {option}, or remove it")
    return {entry["shard"]: entry for entry in entries[1:] if _is_entry(entry)}


def _difference(before: Any, about: Mapping[str, Any]) -> str:
    """Name what distinguishes the answers in a folder from those of this command."""
    if not isinstance(before, dict) or before.keys() != about.keys() or not isinstance(before["options"], dict):
        return "another version, or damaged"
    if before["command"] != about["command"]:
        return f"another command ({before['command']})"
    if before["runs"] != about["runs"]:
        return "another model or other settings of it"
    old, new = before["options"], about["options"]
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return f"other options ({', '.join(names)})".replace("_", "-")


def _is_entry(entry: Any) -> bool:
    """Return whether a line of the manifest is a finished shard; any other is answered again."""
    return isinstance(entry, dict) and all(type(entry.get(name)) is kind for name, kind in {"shard": str, **FIELDS}.items())


def _write_manifest(output: Path, about: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> None:
    from regard.data.lines import write_files

    write_files({output / MANIFEST: "".join(json.dumps(entry) + "\n" for entry in (about, *entries)).encode()})


def _append(manifest: io.FileIO, path: Path, entry: Mapping[str, Any]) -> None:
    data = json.dumps(entry).encode() + b"\n"
    try:
        if manifest.write(data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({os_reason(path, error)})") from error


def _work(
    output: Path,
    about: Mapping[str, Any],
    kept: dict[str, dict[str, Any]],
    jobs: Mapping[str, Job],
    *,
    words: list[str],
    check: Callable[[], None],
    **where: Any,
) -> dict[str, str]:
    """Process what is left; add it to `kept` and the manifest after `check`, and return failures with their reasons."""
    failed: dict[str, str] = {}
    if not jobs:
        return failed
    _write_manifest(output, about, list(kept.values()))
    pool = open_pool(words, environment={WORKER: "1"}, **where)
    with (
        progress.stage("Answering shards", total=len(jobs) + len(kept), unit="shards", done=len(kept)) as answering,
        open(output / MANIFEST, "ab", buffering=0) as manifest,
    ):

        def done(name: str, answer: Answer) -> None:
            check()
            if "error" in answer:
                failed[name] = answer["error"]
                progress.message(f"{name}: {answer['error']}", warning=True)
                return
            kept[name] = {"shard": name, **answer}
            _append(manifest, output / MANIFEST, kept[name])
            answering.advance()

        pool.run(jobs, done)
    return failed
