"""Files that nobody vouches for: damage is found, the checkpoint before is used, and what does not fit is refused at once."""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from regard.data.vocabulary import Vocabulary
from regard.errors import RegardError
from regard.serve.routes import TASKS
from regard.tasks.captioning_run import open_caption_run
from regard.tasks.classification_run import open_sentence_run
from regard.tasks.language_training import open_language_run
from regard.tasks.translation_run import open_translation_run
from regard.training import latest_checkpoint
from regard.training.atomic_folder import FORMAT, MANIFEST, file_sha256
from regard.training.checkpoint import list_checkpoints
from tests.conftest import Answer
from tests.tasks import tiny_language, tiny_sentences
from tests.trust import wrong_models
from tests.trust.conftest import FULL, Check
from tests.trust.golden import make
from tests.trust.measure import attempt, refused, spending

Checks = Callable[..., Check]
Call = Callable[..., Answer]
CUTS, FLIPS = (100, 400) if FULL else (1, 3)
OWN = ["config.yaml", "vocabulary.json", "model/model.safetensors", "model/state.json", "model/manifest.json"]
SAVED = ["model.safetensors", "optimizer.safetensors", "ema.safetensors", "carried.safetensors", "state.json", "manifest.json"]
SECONDS, MEGABYTES = 2.0, 200.0
OPEN: dict[str, Callable[[Path], Any]] = {
    "translation": open_translation_run,
    "captioning": open_caption_run,
    "classification": open_sentence_run,
    "entailment": open_sentence_run,
    "lm": open_language_run,
}


@pytest.fixture(scope="module", autouse=True)
def _on_the_cpu_without_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_DEVICE", "cpu")
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run whose checkpoints hold all that a checkpoint can hold."""
    folder = tmp_path_factory.mktemp("language")
    train_again(folder)
    return folder


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    tiny_sentences.train(tiny_sentences.configuration(folder, training={"max_updates": 2}), folder / "run")
    return folder


def train_again(folder: Path) -> str:
    """Train, or go on with, the language model in a folder; return the hash of its last weights."""
    training = {"ema_decay": 0.5, "max_updates": 6, "save_every": 2, "evaluate_every": 2, "keep_checkpoints": 3}
    return tiny_language.run(folder, training=training).weights_sha256


def damages(path: Path, cuts: int, flips: int) -> Iterator[tuple[str, bytes]]:
    """Yield what to call a damage, and the file with it: cut off at random places, then with one bit of it turned."""
    whole, draw = path.read_bytes(), random.Random(path.name)
    for length in draw.sample(range(len(whole)), cuts) if len(whole) >= cuts else draw.choices(range(len(whole)), k=cuts):
        yield f"{path.name} cut to {length} bytes", whole[:length]
    bits = draw.sample(range(8 * len(whole)), 8 * len(whole))
    for place in itertools.islice(itertools.cycle(bits), flips):  # of the smallest files every bit, and some twice
        turned = bytearray(whole)
        turned[place // 8] ^= 1 << place % 8
        yield f"{path.name} with bit {place} turned", bytes(turned)


def same_json(one: bytes, other: bytes) -> bool:
    """Say whether two files hold the same, but for what JSON does not count, such as the last line feed."""
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


class Damage:
    """Counts damages as cases of two checks."""

    def __init__(self, check: Checks, what: str, files: int) -> None:
        self._cuts = check("files", f"truncations of each of {files} {what}", cases=100 * files, quick=1 * files)
        self._flips = check("files", f"one-bit flips in each of {files} {what}", cases=400 * files, quick=3 * files)
        self.harmless = 0

    def of(self, path: Path, judge: Callable[[], str | None]) -> None:
        """Damage a file in every way, and put it back."""
        whole = path.read_bytes()
        try:
            for name, data in damages(path, CUTS, FLIPS):
                path.write_bytes(data)
                wrong = judge()
                if wrong is not None and path.name == MANIFEST and same_json(data, whole):
                    self.harmless, wrong = self.harmless + 1, None
                (self._cuts if " cut to " in name else self._flips).case(name, happened=path.read_bytes() != whole, wrong=wrong)
        finally:
            path.write_bytes(whole)

    def close(self) -> None:
        if self.harmless:
            self._cuts.note(f"{self.harmless} took only the line feed at the end of the manifest, which then says the same")


def not_opened(open_it: Callable[[Path], Any], run: Path, path: Path) -> str | None:
    """Return what is wrong where a damaged file is not refused by its name."""
    try:
        open_it(run)
    except RegardError as error:
        told = str(error)
        # Where it is the task that cannot be read any more, the run is named.
        named = str(path) in told or (path.name == "config.yaml" and f"{run}: a run of the task" in told)
        return None if named and "\n" not in told else f"told as {told}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "not found"


@pytest.mark.timeout(1800)
def test_damage_to_any_file_of_a_run_is_found(check: Checks, tmp_path: Path, language: Path, classifier: Path) -> None:
    damage = Damage(check, "files of a run", len(OWN) + 2)
    folder = Path(shutil.copytree(language, tmp_path / "language"))
    for name in OWN:
        damage.of(folder / "run" / name, lambda name=name: not_opened(open_language_run, folder / "run", folder / "run" / name))
    labelled = Path(shutil.copytree(classifier, tmp_path / "classifier")) / "run"
    damage.of(labelled / "labels.json", lambda: not_opened(open_sentence_run, labelled, labelled / "labels.json"))
    # What was trained on is asked for when training goes on.
    damage.of(folder / "run" / "data.json", lambda: not_opened(lambda run: train_again(run.parent), folder / "run", folder / "run"))
    damage.close()


@pytest.mark.timeout(1800)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    check: Checks, tmp_path: Path, language: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage = Damage(check, "files of the last checkpoint: the previous one is used, with a message", len(SAVED))
    run = Path(shutil.copytree(language / "run", tmp_path / "run"))
    before, newest = list_checkpoints(run)[-2:]

    def judge(path: Path) -> str | None:
        caplog.clear()
        try:
            found = latest_checkpoint(run)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        if found != before:
            return f"{found} was taken"
        told = caplog.text
        return None if str(path) in told and f"falling back to {before.name}" in told else f"said {told!r}"

    with caplog.at_level(logging.WARNING):
        for name in SAVED:
            damage.of(newest / name, lambda name=name: judge(newest / name))
    damage.close()


@pytest.mark.timeout(1800)
def test_training_goes_on_from_the_checkpoint_before_and_ends_the_same(
    check: Checks, tmp_path: Path, language: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A run resumed on top of a damaged checkpoint ends with the weights of one that nothing happened to."""
    each = 10
    resumed = check("files", "damaged checkpoints: training ends with the same weights", cases=each * len(SAVED), quick=2)
    logs = check("files", "damaged log.jsonl: training ends with the same weights", cases=20, quick=1)
    known = (language / "run" / "model" / "model.safetensors").read_bytes()

    def again(change: Callable[[Path], Path], data: bytes) -> tuple[bool, str | None]:
        folder = tmp_path / "again"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(language, folder)
        path = change(folder / "run")
        happened = path.read_bytes() != data
        path.write_bytes(data)
        (folder / "run" / "model" / MANIFEST).unlink()  # as if it had ended before its final weights
        caplog.clear()
        try:
            train_again(folder)
        except Exception as error:
            return happened, f"{type(error).__name__}: {error}"
        if (folder / "run" / "model" / "model.safetensors").read_bytes() != known:
            return happened, "other weights"
        return happened, None

    names = SAVED if FULL else SAVED[:2]
    for name in names:
        path = list_checkpoints(language / "run")[-1] / name
        for told, data in damages(path, each // 2 if FULL else 1, each // 2 if FULL else 0):
            happened, wrong = again(lambda run, name=name: list_checkpoints(run)[-1] / name, data)
            if wrong is None and "falling back to" not in caplog.text and not same_json(data, path.read_bytes()):
                wrong = "the fall back was not said"
            resumed.case(told, happened=happened, wrong=wrong)
    for told, data in damages(language / "run" / "log.jsonl", 10 if FULL else 0, 10 if FULL else 1):
        happened, wrong = again(lambda run: run / "log.jsonl", data)
        logs.case(told, happened=happened, wrong=wrong)


def seal(run: Path) -> None:
    """Write a manifest that vouches for a run as it now is: what an attacker would do."""
    folder = run / "model"
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir()) if path.is_file() and path.name != MANIFEST}
    own = {path.name: file_sha256(path) for path in sorted(run.iterdir()) if path.is_file()}
    write_manifest(folder, {"format": FORMAT, "files": files, "run_files": own})


def write_manifest(folder: Path, tree: dict[str, Any]) -> None:
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps({**tree, "sha256": digest}), encoding="utf-8")


def run_of(task: str, folder: Path) -> Path:
    """Return a copy of the golden run of a task that may be changed."""
    return Path(shutil.copytree(make.golden(make.versions()[-1], task) / "run", folder))


def ask(call: Call, task: str, run: Path) -> Answer:
    """Ask a run what its golden run was asked first."""
    words = make.filled(make.ASKED[task][0]["words"], run, make.images(make.versions()[-1]))
    return attempt(call, *words, stdin=b"a\tb\n")


@pytest.mark.timeout(900)
def test_a_valid_but_wrong_model_is_refused_at_once(check: Checks, tmp_path: Path, call: Call) -> None:
    known = wrong_models.all_cases()
    if not FULL:
        known = known[::7]
    c = check("files", "valid but wrong models, refused within 2 s and 200 MB", cases=len(known), quick=len(known))
    for task in make.ASKED:  # what is imported and kept at the first use is not counted
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        assert ask(call, task, run_of(task, tmp_path / "run")).code == 0
    slowest = largest = 0.0
    for number, case in enumerate(known):
        run = run_of(case.task, tmp_path / f"{number}" / "run")
        before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
        case.change(run)
        if case.sealed:
            seal(run)
        after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.stat().st_size < 10**9}
        links = any(path.is_symlink() or not (path.is_file() or path.is_dir()) for path in run.rglob("*"))
        with spending() as spent:
            answer = ask(call, case.task, run)
        slowest, largest = max(slowest, spent.seconds), max(largest, spent.megabytes)
        wrong = refused(answer)
        if wrong is None and (spent.seconds > SECONDS or spent.megabytes > MEGABYTES):
            wrong = f"took {spent.seconds:.1f} s and {spent.megabytes:.0f} MB"
        c.case(f"{case.task}: {case.name}", happened=links or after != before, wrong=wrong)
        shutil.rmtree(tmp_path / f"{number}")
    c.note(f"slowest {slowest:.2f} s, largest {largest:.0f} MB")


def test_a_checkpoint_that_leads_elsewhere_is_refused(check: Checks, tmp_path: Path, language: Path) -> None:
    """The same for a run that has not ended: its newest checkpoint is what is read."""
    changes = wrong_models.of_checkpoints()
    c = check("files", "checkpoints with links and names that lead elsewhere", cases=len(changes), quick=len(changes))
    for number, (name, change) in enumerate(changes):
        run = Path(shutil.copytree(language / "run", tmp_path / f"{number}" / "run"))
        shutil.rmtree(run / "model")
        open_language_run(run)  # it could be read before
        change(list_checkpoints(run)[-1], write_manifest)
        try:
            with spending() as spent:
                opened = open_language_run(run)
            # Passing a damaged one over for the one before is as good as a refusal.
            wrong = None if opened.weights.parent == list_checkpoints(run)[-2] else f"opened {opened.weights}"
        except RegardError as error:
            wrong = None if str(run) in str(error) and "\n" not in str(error) else f"told as {error}"
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if wrong is None and (spent.seconds > SECONDS or spent.megabytes > MEGABYTES):
            wrong = f"took {spent.seconds:.1f} s and {spent.megabytes:.0f} MB"
        c.case(name, wrong=wrong)


def test_nothing_that_is_read_can_run_code(check: Checks) -> None:
    from tests.test_house import ATTRIBUTES, NOT_IN_THE_PACKAGE, ROOT, forbidden, python_files

    files = [*python_files("src", "benchmarks", "examples"), ROOT / "setup.py"]
    c = check("files", "static gate: no pickle, torch.load, yaml.load, eval, exec, shell=True", cases=len(files), quick=len(files))
    for path in files:
        # A benchmark may write a pickle: some of the tools we are measured against read nothing else.
        attributes = ATTRIBUTES | NOT_IN_THE_PACKAGE if path.is_relative_to(ROOT / "src") else ATTRIBUTES
        text = path.read_text(encoding="utf-8")
        planted = forbidden(f"{text}\nimport pickle\n", attributes)
        found = forbidden(text, attributes)
        c.case(str(path.relative_to(ROOT)), happened=len(planted) == len(found) + 1, wrong="; ".join(found) or None)
    c.note(f"{sum(path.stat().st_size for path in files) // 1024} kB of code")


@pytest.mark.parametrize("version", make.versions())
def test_the_runs_of_every_released_version_answer_as_they_did(check: Checks, tmp_path: Path, call: Call, version: str) -> None:
    assert set(make.ASKED) == set(TASKS)  # of every task there is one
    asked = [(task, number) for task in make.ASKED for number in range(len(json.loads(golden_file(version, task, "asked.json"))))]
    c = check("files", f"golden runs of {version} give the same answers", cases=len(asked), quick=len(asked))
    for task, number in asked:
        run = tmp_path / f"{task}{number}"
        shutil.copytree(make.golden(version, task) / "run", run)
        question = json.loads(golden_file(version, task, "asked.json"))[number]
        words = make.filled(question["words"], run, make.images(version))
        answer = attempt(call, *words, stdin="".join(line + "\n" for line in question["lines"]).encode())
        known = json.loads(golden_file(version, task, "answers.json"))[number]
        expected = question.get("code", 0)  # 1 where a line is unreadable
        wrong = make.difference(known, make.read_answers(answer.out))
        wrong = wrong if answer.code == expected else f"exit code {answer.code}: {answer.err}"
        c.case(f"{task}: {' '.join(question['words'][:1])}", happened=len(known) > 1, wrong=wrong)


def golden_file(version: str, task: str, name: str) -> str:
    return (make.golden(version, task) / name).read_text(encoding="utf-8")


def test_a_golden_answer_that_changes_is_seen() -> None:
    known = [{"text": "a", "score": -1.5, "tokens": ["a"]}]
    assert make.difference(known, [{"text": "a", "score": -1.50001, "tokens": ["a"], "more": 1}]) is None
    for other in ([], [{"text": "b", "score": -1.5, "tokens": ["a"]}], [{"text": "a", "score": -1.6, "tokens": ["a"]}], [{"text": "a"}]):
        assert make.difference(known, other) is not None


def test_the_golden_runs_are_whole(tmp_path: Path) -> None:
    for version in make.versions():
        for task, open_it in OPEN.items():
            open_it(run_of(task, tmp_path / version / task))
            assert os.path.getsize(make.golden(version, task) / "run" / "model" / "model.safetensors") < 20_000
    assert len(Vocabulary.load(tmp_path / make.versions()[-1] / "lm" / "vocabulary.json")) > 10
