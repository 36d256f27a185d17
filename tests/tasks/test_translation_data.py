"""Training text in the run folder: every pair once an epoch, exact after a kill, encoded once, whole or remade."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.config import TranslationConfig
from regard.cores import torch_threads
from regard.data import shards
from regard.data.parallel import hold_out
from regard.data.token_arrays import FlatTokens
from regard.data.vocabulary import EOS
from regard.errors import ConfigError, DataError
from regard.tasks import Translator, train_translation, translation_training
from regard.tasks import translation_data as module
from regard.tasks.translation_data import FILES, HELD_OUT, TOKENS, Corpus, TrainingText, open_corpus
from regard.tasks.translation_run import load_vocabularies
from tests.tasks.tiny import TEXTS, configuration

LINES = [TEXTS[number % 5] + " Hund" * (number % 4) for number in range(83)]
LINES[7], LINES[30], LINES[82] = "", " \t", "Haus " * 60


def turned(line: str) -> str:
    return " ".join(line.split()[::-1])


def write_shards(folder: Path, sizes: tuple[int, ...] = (40, 1, 42), *, packed: bool = False) -> dict[str, Any]:
    """Write three shards of pairs and a validation set; returns the `data` part of a configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    start = 0
    for number, size in enumerate(sizes):
        for side in ("source", "target"):
            lines = [line if side == "source" else turned(line) for line in LINES[start : start + size]]
            content = "".join(line + "\n" for line in lines).encode()
            (folder / f"{number}.{side}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
        start += size
    for side in ("valid_source", "valid_target"):
        (folder / side).write_text("".join(line + "\n" for line in TEXTS))
    files = {side: f"{folder}/*.{side}{'.gz' if packed else ''}" for side in ("source", "target")}
    return {**files, **{side: str(folder / side) for side in ("valid_source", "valid_target")}, "max_length": 100, "block_size": 16}


def settings(folder: Path, **data: Any) -> TranslationConfig:
    return configuration(data={**write_shards(folder), **data}, training={"batch_tokens": 150, "max_updates": 9, "save_every": 2})


def trained(config: TranslationConfig, folder: Path, **arguments: Any) -> Any:
    return train_translation(config, folder, **arguments)


@pytest.mark.parametrize("block", [16, 1000])
def test_an_epoch_holds_every_usable_pair_once_and_its_own_text(tmp_path: Path, block: int) -> None:
    config = settings(tmp_path / "text", block_size=block)
    trained(config, tmp_path / "run")
    subject = open_corpus(config, tmp_path / "run")
    assert (subject.left_out, subject.size) == ({"empty": 2, "too long": 1}, 80)
    vocabulary = load_vocabularies(tmp_path / "run", config).source
    usable = [line for number, line in enumerate(LINES) if number not in (7, 30, 82)]
    plans = [subject.plan(batch_tokens=150, seed=3, epoch=epoch) for epoch in (0, 0, 1)]
    assert list(plans[0]) == list(plans[1])
    assert list(plans[0]) != list(plans[2])
    assert len(plans[0]) == len(plans[2])
    for plan in plans[1:]:
        assert sorted(index for planned in plan for index in planned.indices) == list(range(80))
        for planned in plan:
            batch = subject.batch(planned)
            assert batch.indices == planned.indices
            assert max(batch.source.numel(), batch.target_output.numel()) <= 150 or len(planned.indices) == 1
            assert planned.tokens == int(batch.target_lengths.sum())
            for row, index in enumerate(planned.indices):
                expected = vocabulary.encode_ids([usable[index], turned(usable[index])])
                assert batch.source[row, : batch.source_lengths[row]].tolist() == [*expected[0], EOS]
                assert batch.target_output[row, : batch.target_lengths[row]].tolist() == [*expected[1], EOS]
    assert plans[0][2:4] == [plans[0][2], plans[0][3]]
    assert plans[0][-1] == list(plans[0])[-1]


def test_blocks_are_taken_whole_and_in_another_order_each_epoch() -> None:
    rows = FlatTokens.of([[4] * (1 + number % 7) for number in range(100)])
    subject = Corpus(rows, rows, {}, block=20)
    orders = []
    for epoch in range(4):
        blocks = [{index // 20 for index in planned.indices} for planned in subject.plan(batch_tokens=40, seed=1, epoch=epoch)]
        assert all(len(found) == 1 for found in blocks)
        order = [found.pop() for found in blocks]
        orders.append(tuple(dict.fromkeys(order)))
        assert order == sorted(order, key=orders[-1].index)
    assert {tuple(sorted(order)) for order in orders} == {(0, 1, 2, 3, 4)}
    assert len(set(orders)) > 1


def test_the_text_may_be_packed_or_in_one_file(tmp_path: Path) -> None:
    plain = trained(settings(tmp_path / "plain"), tmp_path / "a")
    packed = trained(settings(tmp_path / "packed", **write_shards(tmp_path / "packed", packed=True)), tmp_path / "b")
    (tmp_path / "all.jsonl").write_text("".join(json.dumps({"source": line, "target": turned(line)}) + "\n" for line in LINES))
    single = trained(settings(tmp_path / "plain", source=f"{tmp_path}/all.jsonl", target=None), tmp_path / "c")
    assert plain.weights_sha256 == packed.weights_sha256 == single.weights_sha256


@pytest.mark.parametrize("event", ["update 5", "update 8"])
@pytest.mark.parametrize("remade", [False, True])
def test_a_killed_training_goes_on_as_if_it_never_was(tmp_path: Path, event: str, remade: bool) -> None:
    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == event:
            raise Killed

    config = settings(tmp_path / "text")
    whole = trained(config, tmp_path / "whole")
    with pytest.raises(Killed):
        trained(config, tmp_path / "run", on_event=kill)
    if remade:
        shutil.rmtree(tmp_path / "run" / TOKENS)
    found = trained(config, tmp_path / "run")
    assert (found.step, found.weights_sha256) == (whole.step, whole.weights_sha256)


def test_held_out_pairs_are_those_of_hold_out_and_train_nothing(tmp_path: Path, messages: list[str]) -> None:
    config = settings(tmp_path / "text", valid_source=None, valid_target=None, valid_size=6)
    trained(config, tmp_path / "run")
    kept, held = hold_out([(line, turned(line)) for line in LINES], 6, config.training.seed)
    written = [json.loads(line) for line in (tmp_path / "run" / TOKENS / HELD_OUT).read_text().splitlines()]
    assert [(pair["source"], pair["target"]) for pair in written] == held
    usable = [pair for pair in kept if pair[0].strip() and len(pair[0]) <= 100]
    subject, vocabulary = open_corpus(config, tmp_path / "run"), load_vocabularies(tmp_path / "run", config).source
    assert [ids.tolist() for ids in subject.source.part(0, subject.size)] == vocabulary.encode_ids([source for source, _ in usable])
    assert [ids.tolist() for ids in subject.target.part(0, subject.size)] == vocabulary.encode_ids([target for _, target in usable])
    assert any(f"{len(usable)} training pairs, " in line for line in messages)
    # Nothing that is held out is learned from, however large the sample.
    text = TrainingText(config, tmp_path / "run")
    assert list(text.sample(1, 10**6)) == [target for _, target in kept]
    assert len(list(text.sample(0, 40))) == pytest.approx(40, abs=6)
    assert text.size == len(kept)


def test_what_is_encoded_is_read_again_only_if_it_has_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path / "text", valid_source=None, valid_target=None)
    for path in (tmp_path / "text").iterdir():
        os.utime(path, (1, 1))
    whole = trained(config, tmp_path / "run")
    facts = tmp_path / "run" / TOKENS / FILES
    # The files were written just now; as if that were some time ago.
    facts.write_text(facts.read_text().replace("false", "true"))
    touched: list[str] = []
    for place, name in ((shards, "scan_lines"), (shards, "stream_pairs"), (shards, "stream_bytes")):
        original = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *args, name=name, original=original: touched.append(name) or original(*args))
    assert trained(config, tmp_path / "run").weights_sha256 == whole.weights_sha256
    assert touched == []
    ids = tmp_path / "run" / TOKENS / "source.ids"
    content = ids.read_bytes()
    for damage in (lambda: ids.write_bytes(content[:-2]), lambda: ids.write_bytes(bytes([content[0] ^ 1]) + content[1:]), ids.unlink):
        touched.clear()
        damage()
        assert trained(config, tmp_path / "run").weights_sha256 == whole.weights_sha256
        assert "stream_bytes" in touched
        assert ids.read_bytes() == content


def test_what_does_not_fit_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "text")
    for side in ("valid_source", "valid_target"):
        (tmp_path / "text" / side).write_text("a\n")
    with pytest.raises(DataError, match=r"training data: no sentence pair can be used: 2 with an empty side, 81 longer than"):
        trained(configuration(data={**data, "max_length": 1}), tmp_path / "run")
    (tmp_path / "text" / "2.target").write_text("x\n")
    with pytest.raises(DataError, match=r"2\.target: 1 line, but .*2\.source has 42"):
        trained(configuration(data=data), tmp_path / "run")
    with pytest.raises(DataError, match=r"data\.valid_target: given without data\.valid_source"):
        trained(configuration(data={**data, "valid_source": None}), tmp_path / "run")
    with pytest.raises(DataError, match=r"data\.source: no training data given"):
        trained(configuration(), tmp_path / "run")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_other_blocks_or_another_text_are_another_run(tmp_path: Path) -> None:
    trained(settings(tmp_path / "text"), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"data\.block_size: 16 -> 32"):
        trained(settings(tmp_path / "text", block_size=32), tmp_path / "run")
    config = settings(tmp_path / "text")
    (tmp_path / "text" / "1.source").write_text("ein anderer Hund\n")
    with pytest.raises(ConfigError, match="the source file has other content"):
        trained(config, tmp_path / "run")


def test_a_run_says_how_many_were_left_out_at_every_start(tmp_path: Path, messages: list[str]) -> None:
    for _ in range(2):
        messages.clear()
        trained(settings(tmp_path / "text"), tmp_path / "run")
        assert any("80 training pairs, 5 validation pairs" in line for line in messages)
        assert "training pairs left out: 2 empty, 1 too long" in messages


def test_a_limit_of_the_training_pairs_is_none_of_what_is_translated(tmp_path: Path, messages: list[str]) -> None:
    line = " ".join(TEXTS)
    for limits in ({"max_length": 40}, {"max_length": 400, "max_training_length": 40}):
        config = settings(tmp_path / "text", **limits)
        messages.clear()
        trained(config, tmp_path / f"run-{config.data.max_length}")
        assert "training pairs left out: 2 empty, 1 too long" in messages
    divided, whole = (Translator.open(tmp_path / f"run-{limit}").translate([line * 4])[0] for limit in (40, 400))
    assert len(divided.parts) > 1
    assert not whole.parts
    with pytest.raises(DataError, match=r"81 longer than data\.max_training_length \(1 tokens\)"):
        trained(settings(tmp_path / "text", max_training_length=1), tmp_path / "none")


def test_the_blocks_of_reading_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path / "text", valid_source=None, valid_target=None)
    whole = trained(config, tmp_path / "a")
    monkeypatch.setattr(module, "BLOCK", 7)
    assert trained(config, tmp_path / "b").weights_sha256 == whole.weights_sha256
    for name in ("source.ids", "source.offsets", "target.ids", "target.offsets", HELD_OUT):
        assert (tmp_path / "a" / TOKENS / name).read_bytes() == (tmp_path / "b" / TOKENS / name).read_bytes()


@pytest.mark.parametrize("dies", [False, True])
def test_several_processes_encode_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    config = settings(tmp_path / "text", valid_source=None, valid_target=None)
    trained(config, tmp_path / "a")
    monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(module, "_BLOCKS_EACH", 2)
    encode, here, called = TrainingText._encode, os.getpid(), []

    def encoded(self: TrainingText, folder: Path, vocabularies: Any, part: int, parts: int, **arguments: Any) -> None:
        if os.getpid() == here:
            called.append(parts)
        elif dies and part == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        encode(self, folder, vocabularies, part, parts, **arguments)

    monkeypatch.setattr(TrainingText, "_encode", encoded)
    with torch_threads(3):
        trained(config, tmp_path / "b")
    assert called == ([1] if dies else [])  # where a process is lost, this one does it all
    for name in ("source.ids", "source.offsets", "target.ids", "target.offsets", HELD_OUT):
        assert (tmp_path / "a" / TOKENS / name).read_bytes() == (tmp_path / "b" / TOKENS / name).read_bytes()
    assert open_corpus(config, tmp_path / "a").left_out == open_corpus(config, tmp_path / "b").left_out
    assert sorted(path.name for path in (tmp_path / "b" / TOKENS).iterdir()) == sorted(
        path.name for path in (tmp_path / "a" / TOKENS).iterdir()
    )


def test_an_error_in_another_process_is_raised_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(tmp_path / "text")
    monkeypatch.setattr(module, "BLOCK", 5)
    monkeypatch.setattr(module, "_BLOCKS_EACH", 2)

    def shrink(*arguments: Any) -> Any:
        (tmp_path / "text" / "2.target").write_text("x\n")
        return make(*arguments)

    make = translation_training.make_vocabularies
    monkeypatch.setattr(translation_training, "make_vocabularies", shrink)
    with torch_threads(3), pytest.raises(DataError, match=r"changed while it was read"):
        trained(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


MEMORY = """
import resource, sys
from pathlib import Path
from regard.config import load_config
from regard.tasks.translation_data import TrainingText, open_corpus
from regard.tasks.translation_run import Vocabularies
from regard.data.vocabulary import Vocabulary
folder = Path(sys.argv[1])
config = load_config(None, [f"data.source={folder}/a.en", f"data.target={folder}/a.de"])
vocabulary = Vocabulary.load(folder / "vocabulary.json")
def most(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = most()
text = TrainingText(config, folder)
text.encode(Vocabularies(vocabulary, vocabulary), [folder / "vocabulary.json"] * 2)
corpus = open_corpus(config, folder)
plan = corpus.plan(batch_tokens=4096, seed=1, epoch=0)
for number in range(0, len(plan), 50):
    corpus.batch(plan[number])
print(corpus.size, most() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    # 300,000 pairs as Python strings would take 60 MB and their tokens as lists 100 MB more.
    from regard.data.vocabulary import Vocabulary

    generator = np.random.default_rng(1)
    words = np.array([f"w{number}" for number in range(3000)])
    lines = [" ".join(row) for row in words[(3000 * generator.random((300_000, 9)) ** 3).astype(int)]]
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    Vocabulary.train(lines[:5000], kind="bpe", size=2000).save(tmp_path / "vocabulary.json")
    program = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], check=True, capture_output=True, text=True)
    size, megabytes = map(float, program.stdout.split())
    assert size == 299_500
    # Mapped files count: 300,000 pairs of 9 to 20 tokens of two bytes and an offset of eight on either side.
    assert megabytes < 90
