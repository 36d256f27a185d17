"""The results of a study's runs: their files, and the test sets on which they were measured."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard import progress
from regard.config import CaptioningConfig, RunConfig, TranslationConfig
from regard.config.study import StudyCell, StudyConfig, cell_config, study_cells
from regard.data.captions import read_captions
from regard.data.file_digests import FILES, FileDigest, find_digest, read_digests, write_digests
from regard.data.image_tokens import find_images, images_digest
from regard.errors import ConfigError, counted, listed, os_reason
from regard.strict_json import parse_json
from regard.study.result_fields import wrong_fields
from regard.tasks.captioning_data import caption_images_digest
from regard.tasks.run_folder import DATA

CONFIGS, RUNS, RESULTS, EARLIER, FAILED = "configs", "runs", "results", "earlier_results", "failed"
VALUES = ("link_unit", "split")
"""Entries of a test set that are no files; `split` may be one."""
Tested = dict[str, str]
"""The test set of a run: per key of `data.NAME.test` the sha256 of its file or its value, and of `images` that of names and sizes."""


def failure_file(folder: Path, cell: StudyCell) -> Path:
    """Return the file with the reason of a run's failure; obsolete once the run is done."""
    return folder / FAILED / f"{cell.name}.txt"


def result_file(folder: Path, cell: StudyCell) -> Path:
    """Return the result file of a run."""
    return folder / RESULTS / f"{cell.name}.json"


def earlier_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a run's results on earlier test sets or by earlier metrics, the latest last: NAME.json, NAME.2.json and so on."""
    found = []
    while (path := _earlier_file(folder, name, len(found))).exists():
        found.append(path)
    return found


def _earlier_file(folder: Path, name: str, number: int) -> Path:
    return folder / EARLIER / f"{name}{f'.{number + 1}' * (number > 0)}.json"


def was_set_aside(folder: Path, cell: StudyCell) -> bool:
    """Return whether a run has earlier results alone, as it is still to be measured again."""
    return bool(earlier_files(folder, cell.name)) and not result_file(folder, cell).exists()


def has_weights(run: Path) -> bool:
    """Return whether the weights of a finished run are there."""
    return (run / "model" / "model.safetensors").is_file()


def read_result(path: Path, metric: str | None = None) -> dict[str, Any]:
    """Return the figures of a run.

    Raises:
        ConfigError: the file is damaged, or its main score is not this metric.
    """
    again = "remove it to measure the run again"
    try:
        found = parse_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({os_reason(path, error)})") from error
    except ValueError as error:
        raise ConfigError(f"{path}: damaged result: {error}; {again}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: damaged result: expected an object; {again}")
    if wrong := wrong_fields(found):
        raise ConfigError(f"{path}: damaged result: {listed(wrong, most=3)} missing or wrong; {again}")
    if metric is not None and found["main"] != metric:
        measure = "without --report, the command measures again"
        raise ConfigError(f"{path}: its main score is {found['main']}, the study compares by {metric}; {measure}")
    return found


def other_results(study: StudyConfig, folder: Path) -> list[str]:
    """Return the names of finished runs in a folder that are not of the study: of a seed, variant or data set that it no longer has.

    Example:
        >>> from regard.config import validate
        >>> tree = {"name": "s", "task": "lm", "data": {"a": {"test": {"text": "a.txt"}}}, "variants": {"x": {}}}
        >>> other_results(validate(tree, "here", kind=StudyConfig), Path("no-such-folder"))
        []
    """
    return sorted({path.stem for path in (folder / RESULTS).glob("*.json")} - {cell.name for cell in study_cells(study)})


def trained_on(path: Path) -> dict[str, str]:
    """Read the digests of a run's data files, by the key of `data` that names them; empty if the file is missing or damaged.

    Example:
        >>> trained_on(Path("no-such-file"))
        {}
    """
    try:
        return dict(parse_json(path.read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}


UNKNOWN = "results of an earlier version do not say what or how they measured"


class TestSets:
    """The files of a study as they are now: its test sets, and what its runs were trained on. Digests are kept in its folder;
    files that have not changed are not read again.

    Args:
        folder: the study's.
    """

    __test__ = False  # no test of pytest

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILES
        self._known = read_digests(self._file)
        self._used: dict[str, FileDigest] = {}
        self._images: dict[tuple[Any, ...], str] = {}

    def of(self, config: RunConfig, test: Mapping[str, str]) -> Tested:
        """Return what a run is measured on.

        Args:
            config: the run's.
            test: the files, named as in `regard.config.study.TEST_FILES`.

        Raises:
            DataError: a file cannot be read, or only once.
        """
        found = {key: self._content(key, value) for key, value in test.items() if key != "images"}
        if (images := self._image_digest(config, test)) is not None:
            found["images"] = images
        return found

    def changed(self, config: RunConfig, trained: Path) -> list[str]:
        """Return the training files of a run whose content is another now; none without `trained`, what its folder says of them."""
        known = trained_on(trained)
        files = {name: getattr(config.data, name, None) for name in known if name != "images"}
        return [
            path
            for name, path in files.items()
            if isinstance(path, str) and Path(path).is_file() and self._content(name, path) != known[name]
        ]

    def keep(self) -> None:
        """Write the digests, for a later start."""
        write_digests(self._file, self._used)

    def _content(self, key: str, value: str) -> str:
        path = Path(value)
        if key in VALUES and not path.is_file():
            return value
        place = os.path.abspath(path)
        if place not in self._used:
            self._used[place] = find_digest(path, self._known)
        return self._used[place].sha256

    def _image_digest(self, config: RunConfig, test: Mapping[str, str]) -> str | None:
        # Of captioned images names and sizes: to read all of them takes long.
        captions = isinstance(config, CaptioningConfig) and "features" not in test
        second = test.get("second_source") if isinstance(config, TranslationConfig) and config.second and config.second.image else None
        if not captions and second is None:
            return None
        key = tuple(test.get(name) for name in ("captions", "images", "split", "second_source"))
        if key not in self._images:
            if second is None:
                examples = read_captions(test["captions"], test.get("images"), split=test.get("split"))
                self._images[key] = caption_images_digest(examples)
            else:
                self._images[key] = images_digest(find_images([Path(second)], None, optional=True))
        return self._images[key]


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the keys in which two test sets differ."""
    return sorted(key for key in {*before, *now} if before.get(key) != now.get(key))


class Outdated:
    """Finished runs whose test set or metric is not the study's, or whose results, of an earlier version, do not say it or how it was
    measured.

    Args:
        study: the study.
        folder: of its results.
        beside: the folder of the study's file.

    Attributes:
        tested: the test set of every run.
        changed: keys of the test set that differ, and `metric` if that does, by run; none of a run whose result does not name its test
            set or the signatures of its scores.
        retrained: the files that a finished run was trained on, and whose content is another now.
        waiting: runs that an interrupted command had still to measure again.

    Raises:
        ConfigError: a result is damaged.
        DataError: a file of a test set cannot be read.
    """

    def __init__(self, study: StudyConfig, folder: Path, *, beside: Path) -> None:
        self._study, self._folder = study, folder
        sets, self.tested = TestSets(folder), dict[str, Tested]()
        self.changed: dict[StudyCell, list[str]] = {}
        self.retrained: dict[StudyCell, list[str]] = {}
        with progress.stage("Comparing test sets with those of finished runs"):
            for cell in study_cells(study):
                config = cell_config(study, cell, folder=beside)
                now = self.tested[cell.name] = sets.of(config, study.data[cell.data].test)
                if (path := result_file(folder, cell)).exists():
                    if files := sets.changed(config, folder / RUNS / cell.name / DATA):
                        self.retrained[cell] = files
                    found = read_result(path)
                    before = found.get("tested")
                    changed = [] if before is None else difference(before, now)
                    if found.get("main") != study.compared_by:
                        changed.append("metric")
                    if changed:
                        self.changed[cell] = changed
                    elif before is None or "signatures" not in found:
                        self.changed[cell] = []
        self.waiting = [cell for cell in study_cells(study) if was_set_aside(folder, cell)]
        if folder.exists():
            sets.keep()

    def warn(self) -> None:
        """Say that a report of the finished runs is not about all of them, or not about the study's test sets or training files."""
        if self.waiting:
            runs = counted(len(self.waiting), "trained run waits", "trained runs wait")
            names = listed((cell.name for cell in self.waiting), most=3)
            where = f"without --report, the command measures; earlier results: {self._folder / EARLIER}"
            progress.message(f"{runs} to be measured again ({names}); {where}", warning=True)
        for cell, files in self.retrained.items():
            progress.message(f"{cell.name}: {', '.join(files)}: changed since it was trained", warning=True)
        for data, cells in self._by_data(list(self.changed), known=True).items():
            runs = counted(len(cells), "finished run was", "finished runs were")
            names = listed((cell.name for cell in cells), most=3)
            again = "without --report, the command measures again"
            progress.message(f"{self._test_set(data, cells)}: changed since {runs} measured ({names}); {again}", warning=True)

    def set_aside(self) -> None:
        """Move these results away, so that the runs are measured again from their weights.

        Without weights, a result that does not say how it was measured stays, with a warning.

        Raises:
            ConfigError: a run was trained on other files than the next ones would be, or its weights are not there and it was measured on
                another test set, by another metric, or in an unknown way where other runs of its variant are still to be measured.
        """
        for cell, files in self.retrained.items():
            raise ConfigError(
                f"{', '.join(files)}: changed since the run {cell.name} was trained; restore it, take another folder, or remove "
                f"{result_file(self._folder, cell)} and {self._folder / RUNS / cell.name} to train it again"
            )
        for cell in self.waiting:
            if not (run := self._folder / RUNS / cell.name).exists():
                raise ConfigError(
                    f"{cell.name}: is to be measured again, and {run} with its weights is missing; bring it back, "
                    f"take another folder, or remove {earlier_files(self._folder, cell.name)[-1]} and the like to train it again"
                )
        lost = [cell for cell in self.changed if not has_weights(self._folder / RUNS / cell.name)]
        for cell in lost:
            if self.changed[cell]:
                raise ConfigError(
                    f"{self._test_set(cell.data, [cell])}: changed since the run {cell.name} was measured, and its weights are not in "
                    f"{self._folder / RUNS / cell.name}; restore it, take another folder, or remove "
                    f"{result_file(self._folder, cell)} to train it again"
                )
        if lost:
            names = listed((cell.name for cell in lost), most=3)
            waiting = {(cell.data, cell.variant) for cell in study_cells(self._study) if not result_file(self._folder, cell).exists()}
            if beside := [cell for cell in lost if (cell.data, cell.variant) in waiting]:
                raise ConfigError(
                    f"{names}: {UNKNOWN}, and the weights are not in {self._folder / RUNS}; other runs of the variant cannot be averaged "
                    f"with them: take another folder, or remove {result_file(self._folder, beside[0])} and the like to train them again"
                )
            progress.message(f"{names}: kept; {UNKNOWN}, and the weights are not there", warning=True)
        again = [cell for cell in self.changed if cell not in lost]
        for known in (True, False):
            for data, cells in self._by_data(again, known=known).items():
                why = "changed" if known else UNKNOWN
                runs = counted(len(cells), "finished run")
                where = f"earlier results: {self._folder / EARLIER}"
                progress.message(f"{self._test_set(data, cells)}: {why}; measuring {runs} again; {where}", warning=True)
        for cell in again:
            place = _earlier_file(self._folder, cell.name, len(earlier_files(self._folder, cell.name)))
            place.parent.mkdir(exist_ok=True)
            result_file(self._folder, cell).replace(place)

    def _by_data(self, cells: list[StudyCell], *, known: bool) -> dict[str, list[StudyCell]]:
        found: dict[str, list[StudyCell]] = {}
        for cell in cells:
            if bool(self.changed[cell]) == known:
                found.setdefault(cell.data, []).append(cell)
        return found

    def _test_set(self, data: str, cells: list[StudyCell]) -> str:
        keys = sorted({key for cell in cells for key in self.changed[cell]} - {"metric"})
        metric = ["metric"] if any("metric" in self.changed[cell] for cell in cells) else []
        files = [f"data.{data}.test ({', '.join(keys)})"] if keys else [] if metric else [f"data.{data}.test"]
        return " and ".join(metric + files)


def check_one_test_set(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Refuse results of one data set that were measured on different test sets.

    Args:
        results: by the name of the run.

    Returns:
        The runs whose results do not name their test set.

    Raises:
        ConfigError: two differ in a key that both have.
    """
    first: dict[str, tuple[str, str]] = {}
    for name, result in results.items():
        for key, value in (result.get("tested") or {}).items():
            other, expected = first.setdefault(key, (name, value))
            if value != expected:
                raise ConfigError(f"{name} and {other} were measured on different test sets ({key}); without --report, measure again")
    return [name for name, result in results.items() if result.get("tested") is None]
