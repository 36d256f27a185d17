"""The harness of the benchmarks; every script starts."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import typer

from regard.commands import translation
from regard.config import validate
from regard.config.study import StudyConfig, load_study
from regard.training import automatic_micro_batches
from regard.training.micro_batch import MIN_TOKENS

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks"
# In one process: nearly all the time of one goes into importing torch.
HELP_OF_ALL = """
import contextlib, io, runpy, sys
for script in sys.argv[1:]:
    sys.argv, said, code = [script, "--help"], io.StringIO(), None
    with contextlib.redirect_stdout(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as leaving:
            code = leaving.code
    if code or "usage:" not in said.getvalue():
        print(script, code)
"""
WORKER = """
import sys
sys.path.insert(0, {folder!r})
import harness

def prepare(name, what):
    kept = []
    return lambda: kept.append(bytearray(int(what))) or kept

if not harness.serve(prepare):
    worker = harness.Worker("any", 1)
    assert worker.ask("prepare", 5 * 2**20) == 0.0
    print(worker.ask("peak"), worker.ask("warm"), worker.ask("go"))
    worker.close()
"""


@pytest.fixture(scope="module")
def harness() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        import harness

        yield harness


def test_every_script_with_a_command_line_starts() -> None:
    scripts = [
        str(path) for path in sorted(FOLDER.glob("*.py")) if "options(" in path.read_text(encoding="utf-8") and path.stem != "harness"
    ]
    assert len(scripts) > 29
    environment = {**os.environ, "PYTHONPATH": str(FOLDER), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", HELP_OF_ALL, *scripts], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_contenders_are_interleaved_and_warm_up_is_not_counted(harness: ModuleType) -> None:
    seen: list[tuple[str, int]] = []
    found = harness.interleaved({name: lambda number, name=name: seen.append((name, number)) or number for name in "AB"}, 2, warm_up=1)
    assert seen == [("A", 0), ("B", 0), ("A", 1), ("B", 1), ("A", 2), ("B", 2)]
    assert found == {"A": [1, 2], "B": [1, 2]}


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians(harness: ModuleType) -> None:
    assert harness.ratio([2.0, 9.0, 5.0], [1.0, 3.0, 10.0]) == (2.0, 0.5, 3.0)


def test_a_spread_has_its_ends_where_there_are_several(harness: ModuleType) -> None:
    assert harness.spread([3.0], 1) == "3.0"
    assert harness.spread([3.0, 1.0, 7.0], 1) == "3.0 (1.0-7.0)"
    assert harness.spread([3.0, 1.0], 2, "{} [{}, {}]") == "2.00 [1.00, 3.00]"


def test_a_table_is_whole_after_each_row_and_goes_on_with_the_rows_its_file_holds(harness: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.json"
    harness.Table(path, ["what", "how", "s"], "here", key=2).add(["a", "x", 1.5], {"raw": 1})
    first = json.loads(path.read_text(encoding="utf-8"))
    assert first == {"columns": ["what", "how", "s"], "rows": [["a", "x", 1.5]], "note": "here", "results": [{"raw": 1}]}
    again = harness.Table(path, ["what", "how", "s"], "here", key=2)
    again.add(["a", "y", 2.5], {"raw": 2})
    again.add(["a", "x", 3.5], {"raw": 3})
    held = harness.read(path)
    assert held["rows"] == [["a", "x", 3.5], ["a", "y", 2.5]]
    assert held["results"] == [{"raw": 3}, {"raw": 2}]
    harness.Table(path, ["what", "how", "s"], "on another machine", key=2).add(["a", "y", 4.5])
    assert harness.read(path)["rows"] == [["a", "y", 4.5]]


def test_a_worker_measures_the_memory_and_the_time_of_what_it_prepared(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(WORKER.format(folder=str(FOLDER)), encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    peak, *times = map(float, done.stdout.split())
    assert 4.5 < peak < 9
    assert min(times) > 0


def test_what_contenders_are_given_they_know(harness: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import peers
    import transformer_contenders

    given: dict[str, list[str]] = {}
    monkeypatch.setattr(transformer_contenders, "run", lambda command, *_: given.update(loop=command[3:]))
    monkeypatch.setattr(transformer_contenders, "last_line", lambda _: {})
    monkeypatch.setattr(transformer_contenders, "regard_translate", lambda *all_: given.update(translate=all_[-1]))
    setting = peers.Setting(work=tmp_path, python="python", kind="bf16", threads=1)
    transformer_contenders.marian_run(setting, tmp_path, peers.Amount(1, 1), ["--evaluate"])
    transformer_contenders.regard_decode(SimpleNamespace(setting=setting, model=None, source=None), 5, tmp_path)
    known = {"loop": set(re.findall(r'add_argument\("(--[\w-]+)', transformer_contenders.LOOP.read_text(encoding="utf-8")))}
    known["translate"] = {name for option in typer.main.get_command(translation.commands).params for name in option.opts}
    for program, words in given.items():
        options = {word for word in words if word.startswith("--")}
        assert len(options) > 3
        assert options <= known[program]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_nothing_is_measured(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / "gpu.py"), "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "no CUDA device" in done.stderr


def test_a_failed_test_is_counted_and_named(tmp_path: Path, gpu: ModuleType) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest\n\n@pytest.mark.parametrize('n', range(7))\ndef test_it(n):\n"
        "    assert n != 3\n    pytest.skip('') if n > 4 else None\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run([*command, str(tmp_path / "test_it.py")], capture_output=True, text=True, check=False)
    assert gpu.counted(done.stdout, re.compile("")) == (4, 1, 2, "test_it[3]")
    assert gpu.counted(done.stdout, re.compile(r"(?!.*\[[34])")) == (3, 0, 2, None)


@pytest.fixture
def gpu(harness: ModuleType) -> ModuleType:
    return importlib.import_module("gpu")


def gpu_main(gpu: ModuleType, patch: pytest.MonkeyPatch, stage: Callable[..., int | None], *words: object) -> int:
    """Run gpu.py as a rehearsal on a machine that has Triton, with a stand-in for the processes of its stages."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    patch.setattr(gpu, "alone", stage)
    patch.setattr(sys, "argv", ["gpu.py", "--rehearse", *map(str, words)])
    try:
        return gpu.main()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--minutes", "0"], "--minutes: expected more than 0, found 0"),
        (["--minutes", "-1.5"], "--minutes: expected more than 0, found -1.5"),
        (["--minutes", "nan"], "--minutes: expected more than 0, found nan"),
        (["--data", "{}/nowhere"], "--data: expected the folder of Multi30k's raw text, found no file {}/nowhere/train.en.gz"),
        (["--out", "{}/file/below"], "--out: cannot write to {}/file/below: Not a directory"),
    ],
)
def test_options_of_gpu_are_checked_before_the_first_stage(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    given = [word.format(tmp_path) for word in ["--out", "{}", *words]]
    assert gpu_main(gpu, monkeypatch, lambda *_: pytest.fail("a stage was started"), *given) == 2
    assert capsys.readouterr() == ("", said.format(tmp_path) + "\n")


def test_a_rehearsal_without_triton_names_the_extra_and_runs_what_needs_none(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert gpu_main(gpu, monkeypatch, lambda *_: pytest.fail("a stage was started"), "--out", tmp_path) == 2
    assert "pip install '.[triton]'" in capsys.readouterr().err
    assert gpu_main(gpu, monkeypatch, lambda *_: 0, "--out", tmp_path, "--stages", "step", "resume") == 0


def test_gpu_takes_fractions_of_minutes_and_lists_the_stages_that_failed(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    codes = iter([1, 0, 0, 124, 0])
    assert gpu_main(gpu, monkeypatch, lambda *_: next(codes), "--out", tmp_path, "--minutes", "1.5") == 1
    said = capsys.readouterr().out.splitlines()
    assert (said[0], said[-1]) == ("== tests: 27 s at most", "== failed: tests, decoding")


def test_a_signal_to_gpu_leaves_through_the_running_stage(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The way out ends the stage's processes; the default of SIGTERM would not. A second signal must not cut it short.
    def stage(*_: object) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit) as left:
        gpu_main(gpu, monkeypatch, stage, "--out", tmp_path, "--stages", "step")
    assert left.value.code == 128 + signal.SIGTERM


STAGE = """
import pathlib, subprocess, sys, tempfile
child = subprocess.Popen(["sleep", "100"])
new = pathlib.Path(sys.argv[1] + ".new")
new.write_text(f"{child.pid} {tempfile.mkdtemp()}")
new.rename(sys.argv[1])
child.wait()
"""


@pytest.mark.parametrize("how", ["out of time", "interrupted"])
def test_nothing_of_a_stage_that_is_ended_goes_on_or_stays(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    said = tmp_path / "said"

    def wait(process: subprocess.Popen[bytes], seconds: float | None = None) -> int:
        while not said.exists():
            time.sleep(0.02)
        monkeypatch.undo()
        raise KeyboardInterrupt if how == "interrupted" else subprocess.TimeoutExpired("stage", 1)

    monkeypatch.setattr(subprocess.Popen, "wait", wait)
    command = [sys.executable, "-c", STAGE, str(said)]
    if how == "interrupted":
        with pytest.raises(KeyboardInterrupt):
            gpu.alone(command, 60, {**os.environ})
    else:
        assert gpu.alone(command, 60, {**os.environ}) == 124
    child, folder = said.read_text(encoding="utf-8").split()
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    assert not Path(folder).parent.exists()


def test_a_stage_ends_with_the_program_that_began_it_however_that_ends(tmp_path: Path) -> None:
    said = tmp_path / "said"
    stage = f"import gpu; gpu.follow(){STAGE}"
    program = f"import os, sys, gpu; gpu.alone([sys.executable, '-c', {stage!r}, {str(said)!r}], 60, {{**os.environ}})"
    path = os.pathsep.join([str(ROOT / "benchmarks"), str(ROOT / "src")])
    with subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}) as process:
        wait_until(said.exists)
        process.kill()
    child, folder = said.read_text(encoding="utf-8").split()
    wait_until(lambda: not Path(f"/proc/{child}").exists() and not Path(folder).parent.exists())


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("No module named pytest", "interpreted kernels: no test ran, 0 skipped"),
        ("[gw0] [100%] SKIPPED tests/test_it.py::test_it", "interpreted kernels: no test ran, 1 skipped"),
        ("[gw0] [ 50%] PASSED tests/t.py::test_a\n[gw0] [100%] FAILED tests/t.py::test_b", "interpreted kernels: 1 failed"),
        ("[gw0] [100%] PASSED tests/test_it.py::test_it", ""),
    ],
)
def test_a_stage_in_which_a_test_failed_or_none_ran_has_failed(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, report: str, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{report}\nEND\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    stage = gpu.Stage("tests", SimpleNamespace(rehearse=True, data=None, seconds=20, out=tmp_path))
    with pytest.raises(SystemExit, match=re.escape(said)) if said else nullcontext():
        gpu.tests(stage)
    assert len(json.loads((tmp_path / "gpu_tests.json").read_text(encoding="utf-8"))["rows"]) == 1


def test_workers_are_behind_the_better_number_of_threads_beside_one_program_only(harness: ModuleType) -> None:
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    assert "Workers of the Transformer and the recurrent model are as fast as that or faster, but beside one program." in page
    rows = [row for row in harness.read(ROOT / "docs" / "results" / "busy.json")["rows"] if row[0] in ("Transformer", "recurrent")]
    behind = {row[1] for row in rows if row[2] < max(row[3], row[4])}
    assert behind == {"1"}


def test_the_note_of_the_table_of_busy_machines_is_that_of_its_script(harness: ModuleType) -> None:
    import busy

    held = harness.read(ROOT / "docs" / "results" / "busy.json")
    assert held["note"].startswith(busy.about(held["measured"], held["demo"]))
    assert [row[:2] + row[5:8] for row in busy.rows(held["measured"])] == [row[:2] + row[5:8] for row in held["rows"]]
    assert any(None in row for row in held["rows"])
    assert "a dash: in some round one of the two made no update" in held["note"]
    assert "beside nothing, a ratio of medians" in held["note"]


def test_the_page_says_from_which_size_a_batch_is_divided() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    page = " ".join(page.split())
    assert f"no more than leave each {MIN_TOKENS} padded tokens. Batches of fewer than {2 * MIN_TOKENS:,} are not divided" in page
    assert "Two threads are 1.4 times as fast alone, but a third as fast beside another program (medians, the last rows below)." in page
    measured = json.loads((ROOT / "docs" / "results" / "busy.json").read_text(encoding="utf-8"))["measured"]["trec"]
    idle, beside = (
        [two / one for two, one in zip(measured[company]["threads"], measured[company]["workers"], strict=True)]
        for company in ("nothing", "1")
    )
    assert (round(sorted(idle)[1], 1), round(1 / sorted(beside)[1])) == (1.4, 3)
    divided = [automatic_micro_batches(tokens, width=512, sequential=False, workers=8) for tokens in (2 * MIN_TOKENS - 1, 2 * MIN_TOKENS)]
    assert divided == [1, 2]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_wants_a_gpu_is_rehearsed(tmp_path: Path) -> None:
    rows = {"gpu_tests": 1, "gpu_area": 20} if importlib.util.find_spec("triton") else {}
    rows |= {"gpu_step": 3, "gpu_decoding": 2, "gpu_resume": 2}
    stages = [name.removeprefix("gpu_") for name in rows]
    command = [sys.executable, str(FOLDER / "gpu.py"), "--rehearse", "--minutes", "25", "--out", str(tmp_path), "--stages", *stages]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    tables = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("*.json")}
    assert {name: len(table["rows"]) for name, table in tables.items()} == rows
    assert all(row[1] > 0 and row[2] == 0 for name in rows if name == "gpu_tests" for row in tables[name]["rows"])
    assert {row[-1] for row in tables["gpu_resume"]["rows"]} == {"equal"}


def test_every_way_computes_the_same_keys_by_eq_9_over_a_grid(harness: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    import area

    monkeypatch.setenv("REGARD_KERNELS", "")  # restored afterwards: each way sets it
    case = area.Case(1, 25, size=16, area=3, grid=5, mask="none", features=True)
    inputs, found = torch.randn(3, 1, 1, 25, 16).unbind(), []
    for way in ("reference", "torch", "cpu"):
        torch.manual_seed(1)
        attend, weights = area.make(way, case)
        assert len(weights) == 4
        found.append(attend(*inputs).detach())
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


@pytest.fixture
def two_inputs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("two_inputs")


def test_hidden_words_are_a_share_the_same_each_time_and_never_all(two_inputs: ModuleType) -> None:
    line = "a red _ above a _ circle now and then"
    found = two_inputs.hide_words(line, 0.4, "1 0.4")
    assert found == two_inputs.hide_words(line, 0.4, "1 0.4")
    assert len(found.split()) == 6
    kept = iter(line.split())
    assert all(word in kept for word in found.split()), "in their order"
    assert two_inputs.hide_words("alone", 0.6, "1 0.6") == "alone"


def test_the_table_of_two_inputs_has_a_column_for_each_share_of_hidden_words_and_a_row_for_each_image(two_inputs: ModuleType) -> None:
    tree = {"name": "s", "data": {"a": {"test": {"source": "s", "target": "t"}}}, "variants": {"x": {}, "y": {}}, "seeds": [1, 2]}
    study = validate(tree, "here", kind=StudyConfig)
    runs = {
        "a-x-1": {"as it is": {"BLEU": 30.0}, "20% hidden": {"BLEU": 20.0}},
        "a-x-2": {"as it is": {"BLEU": 32.0}, "20% hidden": {"BLEU": 23.0}},
        "a-y-1": {"as it is": {"BLEU": 7.0}, "20% hidden": {"BLEU": 5.0}, "as it is, no image": {"BLEU": 3.0}},
    }
    assert two_inputs.table(study, runs)[0] == {
        "data": "a",
        "variant": "x",
        "image": None,
        "runs": 2,
        "BLEU": "31.0 ± 1.4",
        "20% hidden": "21.5 ± 2.1",
        **dict.fromkeys(two_inputs.LOOKED),
    }
    found = [(row["image"], row["runs"], row["BLEU"], row.get("20% hidden")) for row in two_inputs.table(study, runs)[1:]]
    assert found == [("its own", 1, "7.0", "5.0"), ("no image", 1, "3.0", None)]


def test_conditions_hide_words_of_the_first_input_and_change_the_image(two_inputs: ModuleType) -> None:
    sources, images = ["a red car", "two dogs run"], ["1.jpg", "2.jpg"]
    found = two_inputs.conditions(sources, images, images=True, optional=True, colours=True)
    assert found["as it is"] == ["a red car\t1.jpg", "two dogs run\t2.jpg"]
    assert found["as it is, another image"] == ["a red car\t2.jpg", "two dogs run\t1.jpg"]
    assert found["colours hidden, no image"] == ["a car\t", "two dogs run\t"]
    assert len(found) == 3 * 5
    assert list(two_inputs.conditions(sources, [], images=False, optional=False, colours=False)) == [
        "as it is",
        "20% hidden",
        "40% hidden",
        "60% hidden",
    ]


def test_rows_of_two_inputs_are_means_over_the_runs_that_are_done(two_inputs: ModuleType) -> None:
    study = load_study(ROOT / "studies" / "scene_sentences.yaml", data="data")
    scores = [{"as it is": {"exact match": value, "pointing": value - 50, "random cell": 15.0}} for value in (90.0, 94.0)]
    alone = {"as it is": {"exact match": 7.0}}
    found = two_inputs.table(study, {"both-crossed-1": scores[0], "both-crossed-3": scores[1], "both-sentence-1": alone})
    assert [[*row.values()] for row in found] == [
        ["scenes with a sentence", "crossed", None, 2, "92.0 ± 2.8", "42.0 ± 2.8", None, None, "15.0 ± 0.0"],
        ["scenes with a sentence", "the sentence alone", None, 1, "7.0", None, None, None, None],
    ]


def test_removal_scores_stay_with_their_sentences_and_gains_are_no_costs(two_inputs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = SimpleNamespace(batch=None, numbers=[1, 3], starts=[1, 2])
    scores = torch.tensor([[[9.0, 9.0, 0.5, -0.5, 9.0]], [[9.0, 9.0, 9.0, -1.0, 2.0]]])  # the second sentence was left out
    monkeypatch.setattr(two_inputs, "translation_batches", lambda run, pairs: [batch])
    monkeypatch.setattr(two_inputs, "explain", lambda batch, method: scores)
    found = two_inputs.removal_scores(None, ["a", "", "a b"], ["x", "", "y"], 2)
    assert [table.tolist() for table in found] == [[[0.5, 0.0]], [], [[0.0, 2.0]]]


def test_the_weights_of_a_crossed_network_are_followed_through_its_encoder(two_inputs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    # One word that saw only the second cell, a decoder that looks at the word and the cells with 3 : 1.
    maps = {
        "left co-attention 1": [[[1.0]] * 2],
        "right co-attention 1": [[[0.0, 1.0]]],
        "contribution of each input, cross 1": [[[0.75, 0.25]]],
        "first input, cross 1": [[[1.0]]],
        "image, cross 1": [[[1.0, 0.0]]],
        "alignment, image": [[[1.0, 0.0]]],
    }
    record = SimpleNamespace(maps=[SimpleNamespace(name=name, weights=weights) for name, weights in maps.items()])
    monkeypatch.setattr(two_inputs, "attention_records", lambda run, lines: [record])
    # Half of the word's state is the second cell; half of a cell's state is itself, the other half the word, which held no cell yet.
    (found,) = two_inputs.followed_weights(Path(), ["any"])
    assert found.tolist() == [[0.125, 0.375]]


def test_the_page_says_what_all_threads_cost_a_single_line() -> None:
    page = " ".join((ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split())
    assert "For lines, all threads are no faster alone, and beside another program two to three times slower" in page
    table = json.loads((ROOT / "docs" / "results" / "busy_lines.json").read_text(encoding="utf-8"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    assert all(row["few / all"] > 0.95 for row in rows if row["beside"] == "nothing")
    assert sorted(round(row["few / all"]) for row in rows if row["beside"] == "1") == [2, 3]
