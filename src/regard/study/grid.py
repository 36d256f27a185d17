"""Run a study: each run is trained in its own process and measured."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

from regard import progress
from regard.config import LanguageConfig, RunConfig, TranslationConfig, describe_changes, dump_config, load_config, validate
from regard.config.study import StudyCell, StudyConfig, cell_config, study_cells, training_settings
from regard.data.lines import read_lines, write_files
from regard.data.vocabulary import check_vocabulary
from regard.errors import ConfigError, RegardError, TrainingError
from regard.jobs import Pool, WorkerLost
from regard.jobs.pool import Answer, Job
from regard.jobs.process_worker import child_command
from regard.strict_json import parse_json
from regard.study.copies import copied_from, reuse_training, rounds
from regard.study.explained import check_methods, check_weights, explained_run, is_measured
from regard.study.live import LiveTable
from regard.study.measure import attention_of, checkpoint_selection, known_links, measure_run, most_frequent_class, pairs_of, seen_items
from regard.study.results import (
    CONFIGS,
    RESULTS,
    RUNS,
    VALUES,
    Outdated,
    Tested,
    TestSets,
    difference,
    earlier_files,
    failure_file,
    result_file,
    trained_on,
    was_set_aside,
)
from regard.study.training_figures import count_parameters, read_events, training_figures, was_done
from regard.tasks.language_training import bytes_undefined
from regard.tasks.run_folder import DATA
from regard.tasks.table import TASKS
from regard.tasks.translation_evaluation import check_known_links
from regard.training import StopSignal, run_lock

TRIALS = "trials"
TRIAL_UPDATES = (10, 30)  # before the clock starts, and with it
POLL = 0.2
PATIENCE = 1.0  # seconds to hear of a signal that has stopped a training
# Exit codes of a training that was killed, or was stopped and has saved.
ENDED = {-signal.SIGKILL: signal.SIGKILL} | {
    code: number for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1) for code in (-number, 128 + number)
}

Trainer = Callable[[Sequence[str], Path], float | None]
"""Runs a training from its command and log file; returns its memory in MiB."""


class StudyStopped(Exception):
    """A training was stopped and has saved."""


def run_study(
    study: StudyConfig,
    folder: Path,
    *,
    beside: Path,
    only: str | None = None,
    on_result: Callable[[], None] | None = None,
    train: Trainer | None = None,
    pool: Pool | None = None,
) -> int:
    """Do the missing runs of a study.

    Every run is a resumable `regard train` in its own process. If a worker is lost, another one resumes its run from the latest checkpoint.
    Finished runs whose test set or metric has changed are measured again, see `regard.study.results.Outdated`.

    Args:
        study: the study.
        folder: folder of runs and results; created if needed. Workers on other machines need it at the same path.
        beside: the folder of the study's file, for relative paths.
        only: pattern of the names of the runs to do, see `regard.config.study.study_cells`; None: all.
        on_result: called after each run.
        train: runs a training; None: `train_apart`.
        pool: workers that run `regard.study.worker`; None: runs are done here, one by one.

    Returns:
        0 if all runs are done, otherwise the number of the signal that stopped it.

    Raises:
        ConfigError: see `check_study`; or no run is named so, a test file is missing, or the weights of a run that is to be
            measured again.
        DataError: a training file cannot be read, or a test file.
        TrainingError: runs failed (the others are done), or another process runs this study.

    Example:
        >>> from regard.config import validate
        >>> tree = {"name": "s", "task": "lm", "data": {"a": {"test": {"text": "a.txt"}}}, "variants": {"x": {}}}
        >>> study = validate(tree, "here", kind=StudyConfig)
        >>> run_study(study, Path("runs/s"), beside=Path())
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: s: data.a.test.text: a.txt: no such file; no run could be measured
    """
    plan, failed, unreported = study_cells(study, only), list[str](), list[RegardError]()
    check_study(study, folder, beside=beside)
    check_weights(study, folder, plan)
    _check_test_files(study, beside)
    with run_lock(folder), StopSignal() as stop:
        outdated = Outdated(study, folder, beside=beside)
        outdated.set_aside()
        for left in (*(folder / RUNS).glob(".*"), *(folder / TRIALS).glob("tmp*")):  # copies and trials of a killed study
            shutil.rmtree(left, ignore_errors=True)
        plan += [cell for cell in study_cells(study) if cell not in plan and was_set_aside(folder, cell)]
        waiting = [cell for cell in plan if not is_measured(study, folder, cell)]
        _check_training_files(study, beside, waiting)
        _name_present_data(study, folder, beside, waiting)
        pool, cells = pool or Pool(lambda number: _Here(train), 1), {cell.name: cell for cell in plan}
        with LiveTable(folder / RUNS, pool, total=len(plan), done=len(plan) - len(waiting)) as table:

            def done(name: str, answer: Answer) -> None:
                if answer.get("stopped"):
                    return
                if error := answer.get("error"):
                    failed.append(name)
                    write_files({failure_file(folder, cells[name]): f"{error}\n".encode()})
                    progress.message(f"{name}: {error}", warning=True)
                else:
                    table.advance(name)
                if on_result is not None and any(result_file(folder, cell).exists() for cell in study_cells(study)):
                    unreported[:] = _error_of(on_result)

            def tick() -> None:
                table.look()
                if stop.received:
                    pool.stop()

            job = {"study": study.model_dump(mode="json"), "folder": str(folder.resolve()), "beside": str(beside.resolve())}
            for part in rounds(study, waiting, beside=beside):
                jobs = {cell.name: {**job, "cell": cell.model_dump(), "tested": outdated.tested[cell.name]} for cell in part}
                if not stop.received:
                    pool.run(jobs, done, tick)
        if stop.received:
            return stop.received
    if failed:
        raise TrainingError(f"{len(failed)} of {len(plan)} runs failed: {', '.join(failed)}; the same command tries them again")
    if unreported:
        raise unreported[0]
    return 0


def _error_of(act: Callable[[], None]) -> list[RegardError]:
    # The runs that are left go on.
    try:
        act()
    except RegardError as error:
        progress.message(f"report: {error}")
        return [error]
    return []


def do_run(job: Job, train: Trainer) -> Answer:
    """Do or resume a run of a study.

    Args:
        job: study, its folder, the folder of its file, the run, and its test set, from `run_study`.
        train: see `run_study`.

    Returns:
        {}; or {"stopped": True}, or {"error": why the run failed}.

    Raises:
        WorkerLost: see `train_apart`.
    """
    study = validate(job["study"], "the study", kind=StudyConfig)
    cell, folder, beside = StudyCell(**job["cell"]), Path(job["folder"]), Path(job["beside"])
    try:
        updates = _updates(study, folder, cell, beside, train)
        figures = _do(study, folder, cell, cell_config(study, cell, folder=beside, updates=updates), train, tested=job["tested"])
        write_files({result_file(folder, cell): (json.dumps(figures) + "\n").encode()})
    except StudyStopped:
        return {"stopped": True}
    except RegardError as error:
        return {"error": str(error)}
    return {}


class _Here:
    """This process as a worker."""

    def __init__(self, train: Trainer | None) -> None:
        self._stopped = threading.Event()
        self._train = train or partial(train_apart, stop=self._stopped.is_set)

    def ready(self, seconds: float) -> bool:
        return True

    def call(self, job: Job) -> Answer:
        return do_run(job, self._train)

    def stop(self) -> None:
        self._stopped.set()

    close = stop


def check_study(study: StudyConfig, folder: Path, *, beside: Path) -> None:
    """Check the settings of every run, and that finished runs match the study.

    Variants, data sets and seeds may be added to a running study.

    Raises:
        ConfigError: settings that do not fit or match.
    """
    check_methods(study)
    vocabularies: dict[str, tuple[StudyCell, list[Any]]] = {}
    for cell in study_cells(study):
        config = cell_config(study, cell, folder=beside, updates=_known_updates(study, folder, cell, beside))
        if study.compared_by == "perplexity" and isinstance(config, LanguageConfig):
            learned_from = (config.data.text, config.data.valid_text, config.data.valid_text or config.data.valid_size)
            own = [config.vocabulary, learned_from, config.start and config.start.run]
            first, expected = vocabularies.setdefault(cell.data, (cell, own))
            if own != expected:
                raise ConfigError(
                    f"{study.name}: the runs {first.name} and {cell.name} differ in vocabulary, training text or start.run; perplexity per "
                    "token compares only models of one vocabulary (metric: bits per byte compares others)"
                )
        try:
            TASKS[study.task].training.check(config)
            if config.start is None:
                check_vocabulary(config.vocabulary.kind, config.vocabulary.size, config.vocabulary.min_count)
            if study.checkpoints and cast(TranslationConfig, config).data.valid_source is None:
                raise ConfigError("checkpoints: true needs data.valid_source and data.valid_target")
        except ConfigError as error:
            raise ConfigError(f"{study.name}: the run {cell.name}: {error}") from error
        if result_file(folder, cell).exists():
            try:
                done = load_config(folder / CONFIGS / f"{cell.name}.yaml", kind=type(config))
            except ConfigError as error:
                raise ConfigError(f"{folder}: the run {cell.name} is damaged or of another study; take another folder ({error})") from error
            # Data may have moved; `Outdated` compares the contents of what the run was trained on.
            moved = tuple(f"data.{name}:" for name in trained_on(folder / RUNS / cell.name / DATA) if _is_compared(done, config, name))
            if changed := [item for item in describe_changes(done, config) if not item.startswith(moved)]:
                weights = "" if training_settings(done) == training_settings(config) else f" and {folder / RUNS / cell.name}"
                raise ConfigError(
                    f"{folder}: the run {cell.name} was done with other settings: {'; '.join(changed[:5])}; take another folder, or remove "
                    f"{result_file(folder, cell)}{weights}"
                )


def _is_compared(done: RunConfig, config: RunConfig, name: str) -> bool:
    # Files by their contents; folders of images, whose contents take long to read, by their place.
    before, now = (str(getattr(each.data, name, None)) for each in (done, config))
    return Path(now).is_file() or (Path(now).is_dir() and os.path.realpath(before) == os.path.realpath(now))


def _check_test_files(study: StudyConfig, beside: Path) -> None:
    first = {cell.data: cell for cell in reversed(study_cells(study))}
    for name, data in study.data.items():
        for key, value in data.test.items():
            if key in VALUES:
                continue
            if not Path(value).exists():
                raise ConfigError(f"{study.name}: data.{name}.test.{key}: {value}: no such file; no run could be measured")
            if Path(value).is_dir() and key != "images":
                raise ConfigError(f"{study.name}: data.{name}.test.{key}: {value}: expected a file, found a folder")
        if study.task == "lm":
            configs = [cast(LanguageConfig, cell_config(study, cell, folder=beside)) for cell in study_cells(study) if cell.data == name]
            _check_test_text(f"{study.name}: data.{name}.test.text", study, configs, data.test["text"])
        if study.task == "translation":
            configs = [cast(TranslationConfig, cell_config(study, cell, folder=beside)) for cell in study_cells(study) if cell.data == name]
            for config in {config.pair_columns: config for config in configs}.values():
                _check_pairs(f"{study.name}: data.{name}.test", study, config, data.test)
        if (links := known_links(data.test)) is not None:
            check_known_links(pairs_of(cast(TranslationConfig, cell_config(study, first[name], folder=beside)), data.test), links)


def _check_training_files(study: StudyConfig, beside: Path, waiting: Sequence[StudyCell]) -> None:
    # As a run reads them when it is measured. Of one run per data set: all would fail alike, one after another.
    with progress.stage("Reading training files"):
        for cell in {cell.data: cell for cell in reversed(waiting)}.values():
            seen_items(cell_config(study, cell, folder=beside), study.data[cell.data].test)


def _check_test_text(name: str, study: StudyConfig, configs: Sequence[LanguageConfig], text: str) -> None:
    """Check that a test text has lines, and no unknown tokens if bits per byte are compared."""
    lines = list(read_lines(text))
    if not lines:
        raise ConfigError(f"{name}: {text}: no lines, expected one or more")
    if study.compared_by == "bits per byte":
        for config in {str((config.vocabulary, config.data, config.start)): config for config in configs}.values():
            if reason := bytes_undefined(config, lines):
                raise ConfigError(
                    f"{name}: {text}: {reason} (a vocabulary of kind {config.vocabulary.kind} learned from {config.data.text}): "
                    "bits per byte are not defined; vocabulary.kind=bpe knows every text"
                )


def _name_present_data(study: StudyConfig, folder: Path, beside: Path, waiting: Sequence[StudyCell]) -> None:
    # The data of finished runs may have moved, and reports print commands with these files.
    for cell in study_cells(study):
        if cell not in waiting and result_file(folder, cell).exists():
            text = dump_config(cell_config(study, cell, folder=beside, updates=_known_updates(study, folder, cell, beside)))
            if (path := folder / CONFIGS / f"{cell.name}.yaml").read_text(encoding="utf-8") != text:
                write_files({path: text.encode()})


def _check_pairs(name: str, study: StudyConfig, config: TranslationConfig, test: Mapping[str, str]) -> None:
    """Read a test set, and check that the study's metric is defined, and that it has both inputs of a model that needs them."""
    from regard.metrics.translation import has_four_words

    pairs = pairs_of(config, test)
    if pairs and study.compared_by == "BLEU" and not has_four_words(target for _, target in pairs):
        raise ConfigError(f"{name}: no target has four words, so BLEU is 0 whatever the output; set metric: chrF2 or metric: exact match")
    for number, (line, _) in enumerate(pairs, start=1):
        first, _, second = line.partition("\t")
        if config.second is not None and not config.second.drop and line.strip() and not (first.strip() and second.strip()):
            raise ConfigError(
                f"{name}: line {number} lacks one of its two inputs (source: {test['source']}, second_source: {test.get('second_source')})"
            )


def train_command(study: StudyConfig, config: Path, run: Path) -> list[str]:
    """Return the training command of a run, without the Python interpreter."""
    return ["regard", "train", study.task, "--config", str(config), "--out", str(run)]


def _put_once(path: Path, text: str) -> None:
    # Atomic, and never overwriting.
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{uuid.uuid4().hex}")
        draft.write_text(text, encoding="utf-8")
        with suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()


def _do(study: StudyConfig, folder: Path, cell: StudyCell, config: RunConfig, train: Trainer, *, tested: Tested) -> dict[str, Any]:
    """Train and measure a run; return its result."""
    path, run, test = folder / CONFIGS / f"{cell.name}.yaml", folder / RUNS / cell.name, study.data[cell.data].test
    write_files({path: dump_config(config).encode()})
    (folder / RUNS).mkdir(exist_ok=True)
    reuse_training(study, folder, cell, config)
    copied = copied_from(folder, cell.name)
    command = train_command(study, _from_here(path), _from_here(run))
    done_before = was_done(run)
    megabytes = train(command, folder / RUNS / f"{cell.name}.log")
    if changed := difference(tested, TestSets(folder).of(config, test)):
        raise TrainingError(f"data.{cell.data}.test: {', '.join(changed)} changed during the study, whose runs need one test set")
    measured = measure_run(study.task, run, test, metric=study.metric)
    figures = training_figures(run)
    # A run that was done before, or was copied, started only to find that out.
    earlier = _earlier_result(folder, copied or cell.name) if done_before else {"megabytes": megabytes, "seconds": figures.get("seconds")}
    return figures | {
        "cell": cell.model_dump(),
        "command": shlex.join(command),
        "tested": tested,
        "scores": {score.name: score.value for score in measured.scores},
        "signatures": {score.name: score.signature for score in measured.scores},
        "metric": measured.metric,
        "main": measured.main,
        "by_length": measured.by_length,
        "counts": measured.counts.tolist(),
        "seen": seen_items(config, test),
        "most_frequent": most_frequent_class(config, test),
        "lines_per_second": measured.lines / measured.seconds if measured.seconds else None,
        "parameters": count_parameters(run),
        "megabytes": earlier.get("megabytes"),
        "seconds": earlier.get("seconds"),
        "equal_to": copied,
        "attention": attention_of(study.task, run, test),
        "selection": checkpoint_selection(run, test, metric=study.metric)._asdict() if study.checkpoints else None,
        "methods": explained_run(study, cell, run) if study.methods else None,
    }


def _from_here(path: Path) -> Path:
    # The report shows the command: without the names of the folders above.
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _earlier_result(folder: Path, name: str) -> dict[str, Any]:
    # What only the training of a run tells is in its earlier measurement.
    for path in (folder / RESULTS / f"{name}.json", *reversed(earlier_files(folder, name))):
        with suppress(OSError, ValueError, TypeError):
            return dict(parse_json(path.read_bytes()))
    return {}


def train_apart(command: Sequence[str], log: Path, stop: Callable[[], bool] = lambda: False) -> float | None:
    """Train in a separate process, which ends with this one; the same command resumes it.

    Args:
        command: the command, without the Python interpreter.
        log: file for its output.
        stop: returns whether to stop the training, which then saves.

    Returns:
        Peak memory of the process in MiB, None if unknown.

    Raises:
        StudyStopped: it was stopped.
        WorkerLost: something else killed or stopped it, as when its machine shuts down.
        TrainingError: it failed.
    """
    most, told = None, False
    with (
        log.open("ab") as file,
        subprocess.Popen(child_command(command), stdout=file, stderr=file, stdin=subprocess.PIPE) as process,
    ):
        while process.poll() is None:
            most = max(filter(None, (most, _peak(process.pid))), default=None)
            if stop() and not told:
                process.send_signal(signal.SIGTERM)  # the terminal may have signalled it already, which is harmless
                told = True
            time.sleep(POLL)
    if process.returncode in ENDED and process.returncode != -signal.SIGKILL:
        # Ctrl-C reaches the training, too, which may end before this process hears of it.
        until = time.monotonic() + PATIENCE
        while not stop() and time.monotonic() < until:
            time.sleep(POLL / 4)
    if told or (process.returncode in ENDED and stop()):
        raise StudyStopped
    if process.returncode in ENDED:
        raise WorkerLost(f"its training ended by {ENDED[process.returncode].name}")
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise TrainingError(f"{shlex.join(command)}: ended with {process.returncode}: {lines[-1] if lines else 'it said nothing'} ({log})")
    return most


def _peak(pid: int) -> float | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")), None)


def _known_updates(study: StudyConfig, folder: Path, cell: StudyCell, beside: Path) -> int | None:
    # Result of the trial for a budget of seconds or tokens.
    budget = study.budget
    if budget is None or budget.updates is not None or not (kept := _trial_file(study, folder, cell, beside)).exists():
        return None
    try:
        found = parse_json(kept.read_bytes())
        if budget.tokens is not None:
            return max(1, round(budget.tokens / found["tokens_per_update"]))
        return max(1, int((budget.seconds or 0.0) / found["seconds_per_update"]))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError) as error:
        raise ConfigError(f"{kept}: damaged; remove it to measure the variant again") from error


def _trial_file(study: StudyConfig, folder: Path, cell: StudyCell, beside: Path) -> Path:
    # One trial for all seeds, and for all variants of the same training.
    first = cell.model_copy(update={"seed": 0})
    own = training_settings(cell_config(study, first, folder=beside))
    return folder / TRIALS / f"{cell.data}-{hashlib.sha256(own.encode()).hexdigest()[:16]}.json"


def _updates(study: StudyConfig, folder: Path, cell: StudyCell, beside: Path, train: Trainer) -> int | None:
    """Return the updates that a budget of seconds or tokens allows, measured once by a short training; otherwise None."""
    if study.budget is None or study.budget.updates is not None:
        return None
    if (known := _known_updates(study, folder, cell, beside)) is not None:
        return known
    config = cell_config(study, cell, folder=beside, updates=sum(TRIAL_UPDATES))
    limits = {"log_every": TRIAL_UPDATES[0], "evaluate_every": 10**9, "save_every": 10**9}
    config = config.model_copy(update={"training": config.training.model_copy(update=limits)})
    path, log = (folder / TRIALS / f"{cell.name}.{end}" for end in ("yaml", "log"))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_files({path: dump_config(config).encode()})
    with tempfile.TemporaryDirectory(dir=folder / TRIALS) as name:
        run = Path(name) / "run"
        train(train_command(study, path, run), log)
        trained = [event for event in read_events(run) if event["event"] == "train"]
        seconds = (trained[-1]["seconds"] - trained[0]["seconds"]) / (trained[-1]["step"] - trained[0]["step"])
        tokens = seconds * statistics.mean(event["tokens_per_second"] for event in trained[1:])
    # One figure for all seeds, from the first worker.
    _put_once(_trial_file(study, folder, cell, beside), json.dumps({"seconds_per_update": seconds, "tokens_per_update": tokens}) + "\n")
    return _known_updates(study, folder, cell, beside)
