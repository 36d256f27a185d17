"""Whole files in, whole files out: each is what the command writes for it alone, once, whatever happens meanwhile."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from regard.commands import batch
from regard.errors import DataError
from tests.system.test_streaming import COMMANDS, IMAGES, words_of

SENTENCES = ["ein Hund schläft", "das Haus", "", "ein Haus sieht ein grünes Haus", "der Hund"]
Call = Callable[..., tuple[int, bytes, str]]


def write_shards(folder: Path, lines: list[str], count: int, *, each: int = 1) -> list[Path]:
    """Write files of lines, each with others, the last without a line feed at its end."""
    folder.mkdir()
    paths = [folder / f"{number:02d}.en" for number in range(count)]
    for number, path in enumerate(paths):
        chosen = [lines[(number + place) % len(lines)] for place in range(each * (number + 1))]
        path.write_text("\n".join(chosen) + ("\n" if number < count - 1 else ""), encoding="utf-8")
    return paths


def manifest(output: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    about, *entries = [json.loads(line) for line in (output / "manifest.jsonl").read_text().splitlines()]
    return about, entries


def times(output: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in output.iterdir() if path.suffix == ".en"}


@pytest.mark.parametrize(
    "command", ["translate", "caption", *(pytest.param(name, marks=pytest.mark.slow) for name in ("score", "classify"))]
)
def test_a_shard_gets_what_the_command_writes_for_it_alone(command: str, tmp_path: Path, call: Call) -> None:
    lines = COMMANDS[command][2] if command != "translate" else SENTENCES
    paths = write_shards(tmp_path / "shards", lines, 3)
    words = words_of(command)
    batch = [word for word in words if word not in ("--list", "-")]
    code, told, err = call(*batch, "--input", f"{tmp_path}/shards/*.en", "--output", tmp_path / "out", "--workers", "2")
    assert code == 0, err
    assert told.decode() == f"3 of 3 shards, 6 lines: {tmp_path}/out/manifest.jsonl\n"
    about, entries = manifest(tmp_path / "out")
    assert about["command"] == command
    assert [entry["shard"] for entry in entries] == [path.name for path in paths]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["00.en", "01.en", "02.en", "manifest.jsonl"]
    for path, entry in zip(paths, entries, strict=True):
        alone = call(*words, stdin=path.read_bytes()).out  # type: ignore[attr-defined]
        assert (tmp_path / "out" / path.name).read_bytes() == alone
        assert entry["sha256"] == hashlib.sha256(alone).hexdigest()
        assert (entry["bytes"], entry["unreadable"], entry["input"]) == (len(alone), 0, str(path))
        assert entry["lines"] == alone.count(b"\n") == len(path.read_text().split("\n")) - path.read_text().endswith("\n")
        assert entry["input_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_command_does_what_is_new_changed_or_damaged_and_nothing_else(tmp_path: Path, call: Call) -> None:
    paths, output = write_shards(tmp_path / "shards", SENTENCES, 5), tmp_path / "out"
    words = [*words_of("translate"), "--beam-size", "2", "--input", f"{tmp_path}/shards/*", "--output", output]
    assert call(*words)[0] == 0
    before, kept = times(output), {path.name: path.read_bytes() for path in output.glob("*.en")}
    (output / "01.en").write_bytes(b"damaged" + kept["01.en"][7:])
    paths[2].write_text("das Haus\ndas Haus\n", encoding="utf-8")
    os.utime(paths[3], (1, 1))  # of the same content
    (output / "04.en").unlink()
    (output / ".00.en.77").write_bytes(b"left by a worker that was killed")
    with open(output / "manifest.jsonl", "a") as stream:
        stream.write('{"shard": "00.en", "in')  # left by a process that was killed
    with gzip.open(tmp_path / "shards" / "05.en.gz", "wt") as stream:
        stream.write("der Hund\n")
    code, told, err = call(*words)
    assert code == 0, err
    assert told.startswith(b"6 of 6 shards, 15 lines")
    after = times(output)
    assert {name for name in after if after[name] != before.get(name)} == {"01.en", "02.en", "04.en", "05.en"}
    assert [(output / name).read_bytes() for name in ("01.en", "04.en")] == [kept["01.en"], kept["04.en"]]
    assert [entry["shard"] for entry in manifest(output)[1]] == [f"0{number}.en" for number in range(6)]
    assert call(*words)[:2] == (0, told)
    assert times(output) == after
    code, _, err = call(*words, "--beam-size", "3")
    assert code == 2
    assert "manifest.jsonl: written with other options (beam-size); choose another --output, or remove it" in err


def test_a_shard_that_cannot_be_read_keeps_no_other_from_being_done(tmp_path: Path, call: Call) -> None:
    paths, output = write_shards(tmp_path / "shards", SENTENCES, 3), tmp_path / "out"
    (tmp_path / "shards" / "01.en.gz").write_bytes(paths[1].read_bytes())  # by its name, gzip data
    paths[1].unlink()
    words = [*words_of("translate"), "--input", f"{tmp_path}/shards/*", "--output", output]
    code, told, err = call(*words)
    assert code == 1
    assert told.startswith(b"2 of 3 shards, 4 lines")
    assert "error: 1 of 3 shards failed: 01.en (" in err
    assert "01.en.gz: expected gzip data (by its name), found something else" in err
    assert sorted(path.name for path in output.iterdir()) == ["00.en", "02.en", "manifest.jsonl"]


def test_a_changed_option_terms_or_settings_need_another_folder(tmp_path: Path, call: Call) -> None:
    write_shards(tmp_path / "shards", SENTENCES, 1)
    words = [*words_of("translate"), "--input", f"{tmp_path}/shards/*.en", "--output", tmp_path / "out"]
    terms = tmp_path / "terms.tsv"
    terms.write_text("Hund\tHaus\n", encoding="utf-8")
    assert call(*words, "--terms", terms)[0] == 0
    assert call(*words, "--terms", terms)[0] == 0
    assert call(*words, "--terms", terms, "--length-penalty", "0")[0] == 2
    terms.write_text("Hund\tKatze\n", encoding="utf-8")
    code, told, err = call(*words, "--terms", terms)
    assert (code, told) == (2, b"")
    assert "other options" in err


@pytest.mark.parametrize("command", ["translate", "caption"])
def test_a_precision_that_this_machine_lacks_ends_the_work_at_once(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    write_shards(tmp_path / "shards", SENTENCES, 3)
    monkeypatch.setenv("REGARD_KERNELS", "torch")
    words = [word for word in words_of(command) if word not in ("--list", "-")]
    code, told, err = call(*words, "--precision", "int8", "--input", f"{tmp_path}/shards/*.en", "--output", tmp_path / "out")
    expected = "regard: error: decoding.precision=int8: needs the native library (REGARD_KERNELS=torch); use float32"
    assert (code, told, [line for line in err.splitlines() if "int8" in line]) == (2, b"", [expected])


def test_links_to_nothing_are_reported_and_what_is_no_file_refused(tmp_path: Path, call: Call) -> None:
    write_shards(tmp_path / "shards", SENTENCES, 1)
    words = [*words_of("translate"), "--input", f"{tmp_path}/shards/*.en", "--output", tmp_path / "out"]
    (tmp_path / "shards" / "01.en").symlink_to(tmp_path / "nowhere")
    code, told, err = call(*words)
    assert (code, told.startswith(b"1 of 2 shards")) == (1, True)
    assert "01.en: " in err
    (tmp_path / "shards" / "01.en").unlink()
    os.mkfifo(tmp_path / "shards" / "02.en")
    code, told, err = call(*words)
    assert (code, told) == (2, b"")
    assert "02.en is not a file" in err


def test_answers_whose_shards_are_gone_and_edited_manifests_are_told_of(tmp_path: Path, call: Call) -> None:
    paths, output = write_shards(tmp_path / "shards", SENTENCES, 3), tmp_path / "out"
    words = [*words_of("translate"), "--input", f"{tmp_path}/shards/*.en", "--output", output]
    assert call(*words)[0] == 0
    lines = (output / "manifest.jsonl").read_text().splitlines()
    edited = {**json.loads(lines[1]), "unreadable": None}
    (output / "manifest.jsonl").write_text("\n".join([lines[0], json.dumps(edited), "5", "[1]", *lines[2:]]) + "\n")
    paths[2].unlink()
    code, told, err = call(*words)
    assert (code, told.startswith(b"2 of 2 shards")) == (0, True), err
    assert "also has answers of shards that --input no longer names: 02.en" in err


def test_lines_that_cannot_be_read_are_counted(tmp_path: Path, call: Call) -> None:
    write_shards(tmp_path / "shards", ['{"id": 3, "text": "das Haus"}', "no JSON"], 2)
    output = tmp_path / "out"
    code, told, err = call(*words_of("translate"), "--json-input", "--links", "-", "--input", f"{tmp_path}/shards/*", "--output", output)
    assert code == 1
    assert told.startswith(b"2 of 2 shards, 3 lines, 1 not read: ")
    assert "01.en: error: line 1: expected a JSON object" in err
    assert [entry["unreadable"] for entry in manifest(output)[1]] == [0, 1]
    found = json.loads((output / "00.en").read_text())
    assert (found["id"], bool(found["links"])) == (3, True)


def test_images_that_cannot_be_read_are_counted(tmp_path: Path, call: Call) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.txt").write_text(f"{IMAGES[0]}\nno-such.png\n")
    code, told, err = call("caption", words_of("caption")[1], "--input", f"{tmp_path}/shards/*", "--output", tmp_path / "out")
    assert code == 1, err
    assert told.startswith(b"1 of 1 shard, 2 lines, 1 not read: ")
    assert "a.txt: error: no-such.png: no such file" in err


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, call: Call) -> None:
    paths, run = write_shards(tmp_path / "shards", SENTENCES, 2), words_of("translate")
    (tmp_path / "manifest.jsonl").write_text("x\n")
    shutil.copy(paths[0], tmp_path / "shards" / "00.en.gz")
    (tmp_path / "deep" / "a.en").mkdir(parents=True)
    for name in ("a.en.gz", "a.en/b.en"):
        shutil.copy(paths[0], tmp_path / "deep" / name)
    (tmp_path / "taken" / "manifest.jsonl").mkdir(parents=True)
    pattern, output, full = f"{tmp_path}/shards/*", tmp_path / "out", tmp_path / "full"
    for name in (
        "own/manifest.jsonl/x",
        "own/b",
        "locked/.lock",
        "full/00.en/x",
        "filed/deep",
        "nested/x/a.en",
        "nested/a.en",
        "nested/y/b.en",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(paths[0], tmp_path / name)
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "full").write_text("")
    os.mkfifo(tmp_path / "terms")
    for words, error in (
        (
            ["--input", paths[0], "--output", output, "--terms", tmp_path / "terms"],
            f"{tmp_path}/terms: expected a file, which is read more than once, found a pipe; write its content to a file",
        ),
        (
            ["--input", f"{tmp_path}/own/**", "--output", output],
            f"the output of {tmp_path}/own/manifest.jsonl/x, {output}/manifest.jsonl/x, "
            f"would take the place of the list of finished shards, {output}/manifest.jsonl; rename the input",
        ),
        (
            ["--input", tmp_path / "locked" / ".lock", "--output", output],
            f"the output of {tmp_path}/locked/.lock, {output}/.lock, would take the place of the lock, {output}/.lock",
        ),
        (["--input", paths[0], "--output", full], f"the output of {paths[0]}, {full}/00.en, is a folder; choose another --output"),
        (
            ["--input", f"{tmp_path}/nested/**", "--output", tmp_path / "nested" / "x"],
            f"the output of {tmp_path}/nested/a.en, {tmp_path}/nested/x/a.en, would replace the input {tmp_path}/nested/x/a.en",
        ),
        (
            ["--input", f"{tmp_path}/nested/**", "--output", tmp_path / "nested" / "y"],
            f"--output {tmp_path}/nested/y: has the input {tmp_path}/nested/y/b.en; choose another folder",
        ),
        (
            ["--input", f"{tmp_path}/f*/**/*", "--output", tmp_path / "blocked"],
            f"the output of {tmp_path}/full/00.en/x, {tmp_path}/blocked/full/00.en/x, "
            f"needs the folder {tmp_path}/blocked/full, which is a file",
        ),
        (
            ["--input", f"{tmp_path}/deep/**/*en*", "--output", output],
            f"the output of {tmp_path}/deep/a.en.gz, {output}/a.en, would be the folder of that of {tmp_path}/deep/a.en/b.en",
        ),
        (
            ["--input", paths[0], "--output", tmp_path / "taken"],
            f"{tmp_path}/taken/manifest.jsonl: expected the list of finished shards, found a folder; remove it",
        ),
        (["--output", output], "--output: only with --input"),
        (["--workers", 2], "--workers: only with --input"),
        (["--input", paths[1]], "--output FOLDER: needed, where the answers to --input go"),
        (["--input", paths[1], "--input", paths[0], "--output", output], "--input takes one pattern, and no other files; quote it"),
        ([paths[1], "--input", paths[0], "--output", output], "--input takes one pattern, and no other files; quote it"),
        (
            ["--input", tmp_path / "shards", "--output", output],
            f"--input {tmp_path}/shards: a folder; for the files in it: --input '{tmp_path}/shards/*'",
        ),
        (["--timing", "--input", paths[0], "--output", output], "--timing: not with --input, which takes lines and writes lines"),
        (["--document", paths[0], "--input", paths[0], "--output", output], "--document: not with --input, which takes lines"),
        (["--prefix", paths[0], "--input", paths[0], "--output", output], "--prefix: not with --input, which takes lines"),
        (["--input", f"{tmp_path}/no*", "--output", output], f"--input {tmp_path}/no*: no such file, and no file has a name like this"),
        (["--input", pattern, "--output", output], f"{paths[0]} and {paths[0]}.gz would have one output, {output}/00.en"),
        (
            ["--input", f"{tmp_path}/shards/*.en", "--output", tmp_path / "shards"],
            f"{paths[0]}, would replace the input {paths[0]}",
        ),
        (
            ["--input", tmp_path / "manifest.jsonl", "--output", output],
            f"would take the place of the list of finished shards, {output}/manifest.jsonl",
        ),
    ):
        code, told, err = call(*run, *words)
        assert (code, told) == (2, b""), words
        assert error in err
    code, _, err = call("translate", tmp_path / "no-run", "--input", paths[0], "--output", output)
    assert code == 2
    assert f"{tmp_path}/no-run" in err
    assert not output.exists()


def children(pid: int) -> list[int]:
    found = list[int]()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):  # of each thread its own
        with suppress(OSError):
            found += [int(word) for word in path.read_text().split()]
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers in /proc")
def test_workers_and_their_parent_may_be_killed_at_any_time(tmp_path: Path, call: Call) -> None:
    paths, output = write_shards(tmp_path / "shards", SENTENCES, 23, each=31), tmp_path / "out"
    words = [*words_of("translate"), "--input", f"{tmp_path}/shards/*", "--output", output, "--workers", "2", "--cpus", "1"]

    def kill(whom: Callable[[int], int | None], after: int) -> tuple[int, str]:
        with subprocess.Popen([sys.executable, "-m", "regard", *map(str, words)], stderr=subprocess.PIPE, text=True) as process:
            deadline, killed = time.monotonic() + 120, False
            while process.poll() is None and time.monotonic() < deadline:
                if not killed and len(list(output.glob("*.en"))) >= after and (pid := whom(process.pid)) is not None:
                    os.kill(pid, signal.SIGKILL)
                    killed = True
                time.sleep(0.002)
            assert killed
            return process.returncode, process.stderr.read() if process.stderr else ""

    code, _ = kill(lambda pid: pid, 3)
    assert code == -signal.SIGKILL
    done = times(output)
    assert 3 <= len(done) < 23
    code, err = kill(lambda pid: next(iter(children(pid)), None), len(done))
    assert code == 0, err
    assert "its worker was lost (signal 9); another worker takes it" in err
    listed = {entry["shard"] for entry in manifest(output)[1]}
    assert listed == {path.name for path in paths}
    # One shard at most had been written, and not yet listed, when the parent was killed.
    assert len([name for name, moment in done.items() if times(output)[name] != moment]) <= 2
    assert sorted(path.name for path in output.iterdir()) == sorted([*listed, "manifest.jsonl"])
    alone = tmp_path / "alone"
    assert call(*words[:-6], "--input", f"{tmp_path}/shards/*", "--output", alone)[0] == 0
    for path in paths:
        assert (output / path.name).read_bytes() == (alone / path.name).read_bytes()


def test_the_leftovers_of_a_shard_are_not_those_of_one_with_a_longer_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"one\n")
    output = tmp_path / "out"
    output.mkdir()
    (output / ".a.0123456789ab").touch()
    (output / ".a.en.0123456789ab").touch()
    monkeypatch.setattr(batch, "answer_jobs", lambda work: work({"input": str(tmp_path / "a"), "output": str(output / "a")}))
    batch.answer_shards(lambda path, chunks, lines: (lines, 0))
    assert sorted(path.name for path in output.iterdir()) == [".a.en.0123456789ab", "a"]


def test_an_input_that_vanishes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"one\n")
    monkeypatch.setattr(batch, "answer_jobs", lambda work: work({"input": str(path), "output": str(tmp_path / "out" / "a")}))

    def answer(path: Path, chunks: Any, lines: int) -> tuple[int, int]:
        path.unlink()
        return lines, 0

    with pytest.raises(DataError, match=f"^{path}: no such file$"):
        batch.answer_shards(answer)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_with_the_name_of_the_manifest() -> None:
    with (
        open("/dev/full", "ab", buffering=0) as full,
        pytest.raises(DataError, match=r"^out/manifest\.jsonl: cannot be written \(No space left on device\)$"),
    ):
        batch._append(full, Path("out/manifest.jsonl"), {"shard": "a"})


def test_answers_inside_the_folder_of_the_inputs_are_no_inputs(tmp_path: Path, call: Call) -> None:
    shards = tmp_path / "shards"
    paths, output = write_shards(shards, SENTENCES, 2), shards / "out"
    words = [*words_of("translate"), "--input", f"{shards}/**/*", "--output", output]
    assert call(*words)[0] == 0
    before = times(output)
    (output / "manifest.jsonl").write_text("\n".join((output / "manifest.jsonl").read_text().splitlines()[:2]) + "\n")  # killed
    code, told, err = call(*words)
    assert (code, told.startswith(b"2 of 2 shards")) == (0, True), err
    assert times(output)["00.en"] == before["00.en"]
    assert sorted(times(output)) == [path.name for path in paths]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    for name in ("open", "locked", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
        write_shards(tmp_path / name / "shards", SENTENCES, 1)
    for pattern, folder, lacking in (
        ("**/*.en", "locked", os.R_OK),
        ("*/shards/*.en", "open", os.X_OK),
        ("deep/er/*/*", "deep/er", os.R_OK),
        ("locked/none/*", "locked", os.X_OK),
    ):
        closed = f"{tmp_path}/{folder}/"
        # The superuser may read every folder.
        monkeypatch.setattr(batch.os, "access", lambda path, mode, closed=closed, lacking=lacking: path != closed or not mode & lacking)
        code, told, err = call(*words_of("translate"), "--input", f"{tmp_path}/{pattern}", "--output", tmp_path / "out")
        assert (code, told) == (2, b""), pattern
        assert f"error: --input {tmp_path}/{pattern}: {closed}: no permission to read this folder" in err
    monkeypatch.setattr(batch.os, "access", lambda path, mode: not mode & os.R_OK)
    batch._check_folders(f"{tmp_path}/locked/shards/00.en")  # to enter a folder, no list of it is needed


def test_a_model_that_is_trained_meanwhile_ends_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    run, output = tmp_path / "run", tmp_path / "out"
    shutil.copytree(words_of("translate")[1], run)
    write_shards(tmp_path / "shards", SENTENCES, 3)

    class Changing:
        def run(self, jobs: dict[str, Any], done: Callable[[str, dict[str, Any]], None]) -> None:
            facts = {name: kind() for name, kind in batch.FIELDS.items()}
            done("00.en", dict(facts))
            shutil.copy(run / "model" / "model.safetensors", run / "model" / "new")
            os.replace(run / "model" / "new", run / "model" / "model.safetensors")  # as a training does; the next worker reads it
            done("01.en", dict(facts))

    monkeypatch.setattr(batch, "open_pool", lambda *_, **__: Changing())
    code, _, err = call("translate", run, "--input", f"{tmp_path}/shards/*", "--output", output)
    assert code == 1
    assert f"{run}/model/model.safetensors: changed or removed while shards were answered; use a copy, and another --output" in err
    assert [entry["shard"] for entry in manifest(output)[1]] == ["00.en"]


def test_evaluate_measures_on_each_of_many_files(tmp_path: Path, call: Call) -> None:
    (tmp_path / "pairs").mkdir()
    for number, lines in enumerate((["das Haus\tthe house"], ["ein Hund\ta dog", "der Hund schläft\tthe dog sleeps"])):
        (tmp_path / "pairs" / f"{number}.tsv").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    words, output = ["evaluate", words_of("translate")[1], "--beam-size", "2"], tmp_path / "out"
    code, told, err = call(*words, "--input", f"{tmp_path}/pairs/*.tsv", "--output", output)
    assert code == 0, err
    assert told.decode() == f"2 of 2 shards, 3 lines: {output}/manifest.jsonl\n"
    for path in sorted((tmp_path / "pairs").iterdir()):
        alone = call(*words, "--source", path).out  # type: ignore[attr-defined]
        assert alone.startswith(b"BLEU")
        assert (output / path.name).read_bytes() == alone


def test_evaluate_refuses_what_it_cannot_do_with_many_files(tmp_path: Path, call: Call) -> None:
    run, paths = words_of("translate")[1], write_shards(tmp_path / "shards", SENTENCES, 2)
    common = ["--input", paths[0], "--output", tmp_path / "out"]
    for words, error in (
        ([run, "--source", paths[1], *common], "--source: not with --input"),
        ([run, "--json", tmp_path / "a.json", *common], "--json: not with --input"),
        ([run, "--source", paths[1], "--workers", 2], "--workers: only with --input"),
        ([words_of("caption")[1], *common], "--input: not for a run of the task captioning"),
    ):
        code, told, err = call("evaluate", *words)
        assert (code, told) == (2, b""), (words, err)
        assert error in err
