"""Runs that are killed, warned, fed with NaN, out of memory, out of disk, or of another number of processes: what they lose is nothing."""

from __future__ import annotations

import itertools
import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.errors import RegardError, TrainingError
from regard.ops import SequenceLoss
from regard.training import TrainingJob, TrainResult, train
from regard.training.atomic_folder import verify_folder
from regard.training.checkpoint import list_checkpoints
from regard.training.optimizer import build_optimizer
from tests.tasks import tiny_language
from tests.tasks.tiny import FAMILIES, write_pairs
from tests.training import tiny
from tests.training.conftest import _on_the_cpu_without_waiting_for_the_disk  # noqa: F401  # pyright: ignore[reportPrivateUsage]
from tests.training.test_checkpoint import files_no_larger_than
from tests.training.test_distributed import ROOT
from tests.training.test_loop import spoiled
from tests.training.test_resume import FEATURES, files, lines
from tests.trust import faults
from tests.trust.conftest import FULL, Check
from tests.trust.faults import Ended, Server

Checks = Callable[..., Check]
WHOLE = pytest.mark.timeout(1500 if FULL else 120)
TRIES = 4  # a signal at a random moment may come too late: so many times the cases are tried


class Undisturbed(NamedTuple):
    """A run that nothing was done to: its folder, the hash of its last weights, and its length in seconds."""

    folder: Path
    sha256: str
    seconds: float


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture(scope="module")
def undisturbed(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Undisturbed]:
    """Return a maker of undisturbed runs, each made once."""
    made: dict[str, Undisturbed] = {}

    def make(**trial: Any) -> Undisturbed:
        name = json.dumps(trial, sort_keys=True)
        if name not in made:
            folder = tmp_path_factory.mktemp("undisturbed")
            ended = server.run(folder, **trial)
            assert set(ended.codes) == {0}, ended
            seconds = [json.loads(line)["seconds"] for line in (folder / "log.jsonl").read_text().splitlines() if '"seconds"' in line]
            made[name] = Undisturbed(folder, ended.answer["sha256"], max(seconds))
        return made[name]

    return make


def difference(folder: Path, ended: Ended | TrainResult, expected: Undisturbed) -> str | None:
    """Say what differs from the undisturbed run: weights, log, final files; None: nothing."""
    if isinstance(ended, Ended) and set(ended.codes) != {0}:
        return f"it did not resume: {ended}"
    found = ended.answer["sha256"] if isinstance(ended, Ended) else ended.weights_sha256
    if found != expected.sha256:
        return f"other weights, {found[:9]} for {expected.sha256[:9]}"
    if lines(folder) != lines(expected.folder):
        return "another log"
    return None if files(folder) == files(expected.folder) else "other files in model/"


def leftovers(folder: Path) -> list[Path]:
    """Return the half-written checkpoints."""
    return list((folder / "checkpoints").glob(".tmp-*"))


# SIGKILL.


@WHOLE
def test_a_process_killed_at_a_random_moment_resumes_exactly(
    check: Checks, server: Server, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    every = check("training", "SIGKILL at a random moment, up to three times a run: the same weights, log and files", cases=50, quick=3)
    inside = check("training", "SIGKILL inside a save, a half-written folder seen", cases=10, quick=2)
    chance, missed = random.Random(7), 0
    for number in range(TRIES * every.wanted):
        if every.cases >= every.wanted and inside.cases >= inside.wanted:
            break
        feature, folder = chance.choice(sorted(FEATURES)), tmp_path / str(number)
        changes = FEATURES[feature]
        expected = undisturbed(changes=changes)
        # Saves are slowed down, so that about half of the time is spent in them.
        slow = expected.seconds / 50
        kills: list[bool] = []
        for _ in range(chance.randint(1, 3)):
            after = chance.uniform(0, 2 * expected.seconds)
            if server.run(folder, changes=changes, after=after, slow=slow).codes == [-signal.SIGKILL]:
                kills.append(bool(leftovers(folder)))
        missed += not kills
        wrong = difference(folder, server.run(folder, changes=changes), expected)
        for was_inside in kills:
            every.case(f"{feature}, {number}", wrong=wrong)
            if was_inside:
                inside.case(f"{feature}, {number}", wrong=wrong)
    every.note(f"{inside.cases} of {every.cases} inside a save; {missed} runs ended before the signal and count for nothing")


@WHOLE
def test_a_process_killed_at_each_event_of_a_save_resumes_exactly(
    check: Checks, server: Server, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    events = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", "rename"]
    # With two batches an update 12 updates are all.
    places = list(itertools.product((6, 12), events, sorted(FEATURES)))
    random.Random(5).shuffle(places)
    c = check("training", "SIGKILL at every event of a save: the half-written folder is not used", cases=len(places), quick=2)
    for step, event, feature in places[: c.wanted]:
        folder, changes = tmp_path / f"{step} {event} {feature}", FEATURES[feature]
        ended = server.run(folder, changes=changes, at=f"save {step} {event}")
        happened = ended.codes == [-signal.SIGKILL] and bool(leftovers(folder))
        c.case(folder.name, happened=happened, wrong=difference(folder, server.run(folder, changes=changes), undisturbed(changes=changes)))


def kinds(folder: Path) -> dict[str, dict[str, Any]]:
    """Return a trial for every kind of model, on files that are written to the folder."""
    training = {"max_updates": 12, "epochs": 99, "evaluate_every": 5, "save_every": 3, "log_every": 1}
    pairs = {**write_pairs(folder), "max_length": 37}
    found: dict[str, dict[str, Any]] = {
        family: {
            "task": "translation",
            "changes": {"kind": "character", "data": pairs, "model": model, "training": {**training, "batch_tokens": 300}},
        }
        for family, model in FAMILIES.items()
    }
    text = tiny_language.write_text(folder / "text")
    for attention in tiny_language.ATTENTIONS:
        parts = {"data": text, "model": {"attention": attention}, "training": training}
        found[f"language, {attention}"] = {"task": "language", "changes": parts}
    return found


@WHOLE
def test_every_kind_of_model_resumes_exactly(
    check: Checks, server: Server, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    trials = list(itertools.product(kinds(tmp_path).items(), range(3)))
    c = check("training", "SIGKILL of every kind of model: the same weights, log and files", cases=len(trials), quick=1)
    chance = random.Random(3)
    moments = ["update {}", "save 6 optimizer.safetensors", "evaluate 5", "saved 9"]
    for number, ((name, trial), _) in enumerate(trials[: c.wanted]):
        folder = tmp_path / str(number)
        ended = server.run(folder, **trial, at=chance.choice(moments).format(chance.randint(1, 12)))
        wrong = difference(folder, server.run(folder, **trial), undisturbed(**trial))
        c.case(f"{name}, {number}", happened=ended.codes == [-signal.SIGKILL], wrong=wrong)


# Signals that ask.

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


def stopped(folder: Path, ended: Ended, number: signal.Signals, step: int | None) -> str | None:
    """Say what was not as it should be where a signal asked a run to stop; at this step, if it is known."""
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    if ended.codes != [128 + number]:
        return f"left otherwise than by saving: {ended}"
    if events[-1]["event"] != "stop" or ended.answer["interrupted"] != number:
        return f"the log ends with {events[-1]}"
    if step is not None and ended.answer["step"] != step:
        return f"stopped after update {ended.answer['step']}"
    saved = [path.name for path in list_checkpoints(folder)]
    # A run that has done nothing yet has nothing to save.
    return None if not ended.answer["step"] or saved[-1] == f"step-{ended.answer['step']:08d}" else f"saved {saved}"


@WHOLE
def test_a_signal_while_training_evaluating_or_saving_saves_and_leaves(
    check: Checks, server: Server, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    c = check("training", "SIGTERM, SIGINT, SIGUSR1 while training, evaluating, saving: saved, exited, resumed exactly", cases=54, quick=6)
    chance = random.Random(11)
    for number in range(c.wanted):
        asking, doing = ASKING[number % 3], ("update", "evaluate", "save")[number // 3 % 3]
        feature = chance.choice(["fp32", "averages"])
        step = chance.choice({"update": range(1, 22), "evaluate": range(3, 22, 3), "save": range(2, 21, 2)}[doing])
        event = f"{doing} {step}" + chance.choice(["", " model.safetensors", " rename"]) * (doing == "save")
        folder, changes = tmp_path / str(number), FEATURES[feature]
        ended = server.run(folder, changes=changes, at=event, number=asking)
        wrong = stopped(folder, ended, asking, step)
        resumed = server.run(folder, changes=changes)
        # That it was interrupted by this signal is what it told itself, and its exit code; or it died of it, which is wrong but happened.
        happened = ended.codes in ([128 + asking], [-asking])
        c.case(f"{asking.name} at {event}", happened=happened, wrong=wrong or difference(folder, resumed, undisturbed(changes=changes)))


@WHOLE
def test_a_signal_from_outside_at_a_random_moment_saves_and_leaves(
    check: Checks, server: Server, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    c = check("training", "the same signals from another process at a random moment", cases=30, quick=2)
    chance, expected = random.Random(13), undisturbed(changes={})
    for number in range(TRIES * c.wanted):
        if c.cases >= c.wanted:
            break
        asking, folder = ASKING[number % 3], tmp_path / str(number)
        ended = server.run(folder, number=asking, after=chance.uniform(0, expected.seconds), slow=expected.seconds / 50)
        if ended.codes == [0]:
            continue  # it was done already
        wrong = stopped(folder, ended, asking, None)
        c.case(f"{asking.name}, {number}", wrong=wrong or difference(folder, server.run(folder), expected))


# NaN and infinity.


class Injected(NamedTuple):
    """A job that a bad number is put into, its model, the epoch and batch (from 0) where it is met, and `done`, which tells if it was."""

    job: TrainingJob
    model: nn.Module
    epoch: int
    batch: int
    done: list[bool]


class Line(nn.Module):
    """A linear map of numbers, for bad ones among the data."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 1)
        nn.init.ones_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, batch: Tensor) -> SequenceLoss:
        error = (self.map(batch) - 1).square().sum()
        return SequenceLoss(error, error.detach(), torch.tensor(len(batch)), torch.tensor(0))


def of_numbers(bad: float | None = None, example: int = 0) -> tuple[TrainingJob, list[bool]]:
    """Return a job for `Line`; one number of an example may be a bad one."""
    data = torch.randn(tiny.EXAMPLES, 3, generator=torch.Generator().manual_seed(1))
    done: list[bool] = []
    if bad is not None:
        data[example, 1] = bad

    def collate(planned: tiny.Planned) -> Tensor:
        done.extend([True] * (bad is not None and example in planned.indices))
        return data[list(planned.indices)]

    evaluate = lambda model: {"loss": 0.0}  # noqa: E731
    return TrainingJob(plan=tiny.plan, collate=collate, loss=lambda model, batch: model(batch), evaluate=evaluate), done


def injected(where: str, bad: float, chance: random.Random) -> Injected:
    """Put a bad number somewhere."""
    if where == "data":
        example = chance.randrange(tiny.EXAMPLES)
        job, done = of_numbers(bad, example)
        batch = next(n for n, planned in enumerate(tiny.plan(0)) if example in planned.indices)
        return Injected(job, Line(), 0, batch, done)
    step, done = chance.randint(1, 21), []

    def spoil(sums: SequenceLoss) -> SequenceLoss:
        done.append(True)
        if where == "loss":
            return sums._replace(loss=sums.loss + bad)
        sums.loss.register_hook(lambda gradient: gradient * bad)
        return sums

    return Injected(spoiled(step, spoil), tiny.model(), (step - 1) // tiny.BATCHES, (step - 1) % tiny.BATCHES, done)


def spoilt_files(folder: Path) -> list[str]:
    """Return the names of saved tensors that hold a number that is not finite."""
    paths = folder.rglob("*.safetensors")
    return [f"{path.parent.name} {name}" for path in paths for name, x in load_file(path).items() if not x.isfinite().all()]


@WHOLE
def test_a_number_that_is_not_finite_ends_the_run_and_is_never_saved(check: Checks, tmp_path: Path) -> None:
    c = check(
        "training", "NaN, inf, -inf in loss, gradient, data: the run ends, names step and examples; resumes exactly", cases=90, quick=9
    )
    chance = random.Random(17)
    clean = train(Line(), of_numbers()[0], config=tiny.config(), folder=tmp_path / "clean").weights_sha256
    expected = {"data": clean, "loss": tiny.run(tmp_path / "tiny").weights_sha256}
    for number in range(c.wanted):
        where, bad = ("loss", "gradient", "data")[number % 3], (float("nan"), float("inf"), -float("inf"))[number // 3 % 3]
        found, folder, told = injected(where, bad, chance), tmp_path / str(number), ""
        precision = "bf16" if number >= 9 and number % 2 and where != "data" else "fp32"
        try:
            train(found.model, found.job, config=tiny.config(precision=precision), folder=folder)
        except TrainingError as error:
            told = str(error)
        step, examples = found.epoch * tiny.BATCHES + found.batch + 1, ", ".join(map(str, tiny.plan(found.epoch)[found.batch].indices))
        what = "norm of the gradient" if where == "gradient" else "loss"
        right = rf"step {step}, epoch {found.epoch + 1}, batch {found.batch + 1}: the {what} is not finite \(examples {examples}\); [^\n]*"
        wrong = None if re.fullmatch(right, told) else f"told {told!r}"
        wrong = wrong or (f"saved: {spoilt_files(folder)}" if spoilt_files(folder) else None)
        if precision == "fp32":
            job = of_numbers()[0] if where == "data" else tiny.job()
            model = Line() if where == "data" else tiny.model()
            again = train(model, job, config=tiny.config(), folder=folder).weights_sha256
            wrong = wrong or (None if again == expected["data" if where == "data" else "loss"] else "it resumed to other weights")
        c.case(f"{bad} in {where}, {number}", happened=bool(found.done), wrong=wrong)


# Memory.


def exhausted(kind: str) -> None:
    """Run out of memory."""
    if kind == "allocator":  # for real: no machine has so much
        torch.empty(1 << 60, dtype=torch.uint8)
    elif kind == "cuda":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.77 GiB\nand more")
    else:
        raise MemoryError


class Hungry(torch.autograd.Function):
    """The identity, whose gradient does not fit into memory."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kind: str) -> Tensor:
        ctx.kind = kind
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        exhausted(ctx.kind)
        return gradients[0], None


def hungry(where: str, kind: str, step: int, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    """Return the tiny job, which runs out of memory in a step."""
    job, calls = tiny.job(), iter(range(1, 10**6))

    def fail(given: Any) -> Any:
        if next(calls) == step:
            exhausted(kind)
        return given

    if where == "forward":
        return replace(job, loss=lambda model, batch: fail(job.loss(model, batch)))
    if where == "batch":
        return replace(job, collate=lambda planned: fail(job.collate(planned)))
    if where == "evaluation":
        return replace(job, on_event=lambda name: exhausted(kind) if name == f"evaluate {step // 3 * 3 + 3}" else None)
    if where == "optimizer":
        kind_of_optimizer = type(build_optimizer(torch.nn.Linear(1, 1), tiny.config()))
        own = kind_of_optimizer.step
        monkeypatch.setattr(kind_of_optimizer, "step", lambda *given: fail(None) or own(*given))
        return job
    return spoiled(step, lambda sums: sums._replace(loss=Hungry.apply(sums.loss, kind)))


@WHOLE
def test_memory_that_runs_out_ends_the_run_with_advice(check: Checks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = list(itertools.product(("forward", "backward", "batch", "evaluation", "optimizer"), ("allocator", "cuda", "python")))
    c = check("training", "a batch that does not fit into memory: one line of advice; resumes exactly", cases=2 * len(places), quick=5)
    chance, expected = random.Random(19), tiny.run(tmp_path / "expected").weights_sha256
    chance.shuffle(places)
    for number in range(c.wanted):
        where, kind = places[number % len(places)]
        step, folder, cause, told = chance.randint(1, 18), tmp_path / str(number), "", ""
        try:
            with monkeypatch.context() as patch:
                train(tiny.model(), hungry(where, kind, step, patch), config=tiny.config(), folder=folder)
        except RegardError as error:
            told, cause = str(error), repr(error.__cause__)
        except (MemoryError, RuntimeError) as error:
            told, cause = "no advice\n", repr(error)
        right = r"step \d+, epoch \d, batch \d: not enough memory; a smaller training\.batch_tokens [^\n]*"
        wrong = None if re.fullmatch(right, told) else f"told {told!r}"
        again = tiny.run(folder).weights_sha256
        c.case(
            f"{kind} in {where}, step {step}", happened="emory" in cause, wrong=wrong or (None if again == expected else "other weights")
        )


# Disks.


def unharmed(folder: Path) -> str | None:
    """Say which checkpoint is not whole; None: all are."""
    for path in list_checkpoints(folder):
        try:
            verify_folder(path)
        except RegardError as error:
            return str(error)
    return None


def ends_with(
    folder: Path, cause: str, at: str | None = None, act: Callable[[], None] | None = None, **changes: Any
) -> tuple[bool, str | None]:
    """Train; return whether the run met `cause`, and what was wrong in how it ended."""
    try:
        tiny.run(folder, at, act, **changes)
    except TrainingError as error:
        told = str(error)
        return cause in told, unharmed(folder) if str(folder) in told and "\n" not in told else f"told {told!r}"
    except OSError as error:
        return cause in str(error), f"no line of advice: {error!r}"
    return False, None


@WHOLE
def test_a_full_disk_ends_the_run_and_harms_nothing(check: Checks, undisturbed: Callable[..., Undisturbed], tmp_path: Path) -> None:
    c = check("training", "a full disk: one line, checkpoints unharmed; with room again it resumes exactly", cases=30, quick=3)
    chance, mounted = random.Random(23), True
    for number in range(TRIES * c.wanted):
        if c.cases >= c.wanted:
            break
        feature = chance.choice(["fp32", "averages", "bf16"])
        changes, folder = {**FEATURES[feature], "keep_checkpoints": 1}, tmp_path / str(number)
        pages, expected = chance.randint(1, 24), undisturbed(changes=changes)
        try:
            with faults.small_disk(folder, pages):
                full, wrong = ends_with(folder, "No space left on device", **changes)
                faults.grow(folder)
                resumed = tiny.run(folder, **changes)
                wrong = wrong or difference(folder, resumed, expected)
        except PermissionError:
            # A stand-in: the limit is that of one file, and what is told differs in its words.
            mounted = False
            with files_no_larger_than(512 * pages):
                full, wrong = ends_with(folder, "too large", **changes)
            wrong = wrong or difference(folder, tiny.run(folder, **changes), expected)
        if full:
            c.case(f"{feature}, {pages} pages", wrong=wrong)
        else:
            assert wrong is None, wrong  # there was room for all
    c.note("a tmpfs that was full" if mounted else "RLIMIT_FSIZE in place of a full disk, for nothing may be mounted here")


@WHOLE
def test_a_folder_that_becomes_read_only_ends_the_run_and_harms_nothing(
    check: Checks, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    probe = tmp_path / "probe"
    try:
        with faults.own_mount(probe):
            faults.writable(probe, False)
    except PermissionError as error:
        pytest.skip(f"not run: a folder cannot be made read-only here ({error})")
    c = check("training", "a read-only folder, from the start or all at once: one line, unharmed, resumes exactly", cases=20, quick=3)
    chance, expected = random.Random(29), undisturbed(changes={})
    moments = ["update 6", "evaluate 9", "save 8", "save 8 model.safetensors", "save 8 manifest.json", "save 8 rename"]
    for number in range(c.wanted):
        folder = tmp_path / str(number)
        checkpoints = folder / "checkpoints"
        if number % 3 == 0:
            folder.mkdir()
            with faults.own_mount(folder):
                if number % 2:  # there is something in it
                    with pytest.raises(tiny.Killed):
                        tiny.run(folder, f"update {chance.randint(2, 15)}")
                faults.writable(folder, False)
                happened, wrong = ends_with(folder, "Read-only file system")
                faults.writable(folder, True)
                wrong = wrong or difference(folder, tiny.run(folder), expected)
        else:
            with faults.own_mount(checkpoints):
                act = lambda: faults.writable(checkpoints, False)  # noqa: B023, E731
                happened, wrong = ends_with(folder, "Read-only file system", chance.choice(moments), act)
                faults.writable(checkpoints, True)
                wrong = wrong or difference(folder, tiny.run(folder), expected)
        c.case(str(number), happened=happened, wrong=wrong)
    c.note("a mount made read-only, which holds for root too")


# Several processes.


@WHOLE
def test_a_lost_process_ends_the_others_soon(
    check: Checks, server: Server, undisturbed: Callable[..., Undisturbed], tmp_path: Path
) -> None:
    c = check("training", "DDP, one of two processes killed: the other ends within 30 s; the pair resumes exactly", cases=20, quick=1)
    chance, longest = random.Random(31), 0.0
    expected = undisturbed(processes=2)
    moments = {
        0: ["update 7", "evaluate 6", "save 8", "save 8 optimizer.safetensors", "save 8 rename"],
        1: ["update 7", "evaluate 6", "save 8"],
    }
    for number in range(TRIES * c.wanted):
        if c.cases >= c.wanted:
            break
        folder, rank = tmp_path / str(number), number % 2
        when = {"at": chance.choice(moments[rank])} if number % 4 < 2 else {"after": chance.uniform(0, expected.seconds)}
        ended = server.run(folder, processes=2, rank=rank, **when)
        if ended.codes[1 - rank] == 0 and "after" in when:
            continue  # they were done, or had nothing left to tell each other
        longest = max(longest, ended.apart)
        told = ended.answers[1 - rank]
        wrong = f"{ended.apart:.0f} s" if ended.late or ended.apart > 30 else None
        if ended.codes[1 - rank] != 1 or not told or not re.search("lost contact|gave up", told[-1].get("error", "")):
            wrong = wrong or f"ended otherwise than with a line: {ended}"
        happened = ended.codes[rank] == -signal.SIGKILL
        resumed = server.run(folder, processes=2)
        c.case(f"rank {rank}, {when}", happened=happened, wrong=wrong or difference(folder, resumed, expected))
    c.note(f"at most {longest:.1f} s until the other ended")


@WHOLE
@pytest.mark.skipif(not FULL, reason="make trust")
def test_torchrun_starts_again_and_resumes_exactly(check: Checks, undisturbed: Callable[..., Undisturbed], tmp_path: Path) -> None:
    trials = list(itertools.product((0, 1), ("update 7", "save 8")))
    c = check("training", "torchrun starts both again when one is killed: resumed exactly", cases=len(trials), quick=0)
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "--max-restarts=2", "-m", "tests.trust.worker"]
    for rank, event in trials:
        folder = tmp_path / f"{rank} {event}"
        trial = {"folder": str(folder), "rank": rank, "at": event, "once": True}
        done = subprocess.run(
            [sys.executable, *launcher, json.dumps(trial)],
            env=faults.environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        last = answers[-1] if answers else {}
        # That it was killed is the word of torchrun, and the number of the try.
        happened = last.get("try") == "1" and "exitcode: -9" in done.stderr.replace("exitcode  : -9", "exitcode: -9")
        found = Ended([done.returncode], [answers], [done.stderr], 0.0, False)
        c.case(f"rank {rank} at {event}", happened=happened, wrong=difference(folder, found, undisturbed(processes=2)))


@WHOLE
def test_each_example_counts_once_an_epoch_whatever_the_number_of_processes(check: Checks, server: Server, tmp_path: Path) -> None:
    c = check("training", "one process, two, one again: every example counts exactly once an epoch", cases=30, quick=1)
    chance = random.Random(37)
    for number in range(c.wanted):
        folder, first = tmp_path / str(number), chance.randint(1, 10)
        second, rank = first + chance.randint(1, 6), chance.randrange(2)
        signals = [chance.choice([signal.SIGTERM, signal.SIGKILL]) for _ in range(2)]
        one = server.run(folder, task="counting", at=f"update {first}", number=signals[0])
        two = server.run(folder, task="counting", at=f"update {second}", number=signals[1], rank=rank, processes=2)
        last = server.run(folder, task="counting")
        codes = [-each if each == signal.SIGKILL else 128 + each for each in signals]
        happened = one.codes == [codes[0]] and two.codes[rank] == codes[1]
        seen = list(dict.fromkeys((folder / "epochs.jsonl").read_text().splitlines())) if last.codes == [0] else []
        right = [json.dumps([float(epoch), float(epoch)]) for epoch in range(1, 5)]
        name = f"{signals[0].name} at {first}, {signals[1].name} of rank {rank} at {second}"
        c.case(name, happened=happened, wrong=None if seen == right else f"least and most seen after each epoch: {seen}; {last}")
