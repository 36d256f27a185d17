"""Encoded examples in the run folder: read once, the same batches in the same order, whole or made again."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.data.batching import PlannedBatch, plan_batches
from regard.data.captions import CaptionExample, CaptionSet, read_captions
from regard.data.image_features import write_features
from regard.data.token_arrays import FlatTokens, PackedTexts, TokenFile, write_tokens
from regard.data.token_cache import TOKENS
from regard.errors import ConfigError, DataError
from regard.tasks import captioning_data, classification_data, classification_training
from regard.tasks.captioning_data import CaptionCorpus, encode_captions, open_caption_sets, open_encoded
from regard.tasks.captioning_run import open_caption_run
from regard.tasks.captioning_training import train_captioning
from regard.tasks.classification_data import encode_labelled, open_labelled
from regard.tasks.classification_run import open_sentence_run
from tests.tasks import tiny_captions, tiny_sentences
from tests.training import tiny

LABELLED = ("classification", "entailment")


def kill(event: str) -> None:
    if event == "update 2":
        raise tiny.Killed


def grouped(lengths: np.ndarray, picks: list[int], together: int, batch_tokens: int, seed: int) -> list[PlannedBatch]:
    """Plan captions of an image together, with a list for each image and each group."""
    generator = random.Random(f"captions together {seed} 3")
    images: dict[int, list[int]] = {}
    for row, pick in enumerate(picks):
        images.setdefault(pick, []).append(row)
    groups: dict[int, list[list[int]]] = {}
    for own in images.values():
        generator.shuffle(own)
        for start in range(0, len(own), together):
            group = own[start : start + together]
            groups.setdefault(len(group), []).append(group)
    batches = []
    for size, found in sorted(groups.items()):
        longest = np.array([max(lengths[group]) for group in found])
        budget = max(1, batch_tokens // size)
        for planned in plan_batches(np.zeros_like(longest), longest, batch_tokens=budget, seed=seed, epoch=3, part=size):
            rows = [row for group in planned.indices for row in found[group]]
            batches.append(PlannedBatch(tuple(rows), int(lengths[rows].sum()) + len(rows)))
    generator.shuffle(batches)
    return batches


@pytest.mark.parametrize("seed", range(7))
def test_captions_come_together_as_lists_of_them_would(seed: int) -> None:
    chance = random.Random(seed)
    together, images = chance.randint(2, 5), chance.sample(range(29), 29)
    picks = [image for image in images for _ in range(chance.choice((1, 2, 5, 5, 5, 7, 11)))]
    targets = FlatTokens.of([[4] * chance.randint(1, 13) for _ in picks])
    corpus = CaptionCorpus(torch.zeros(29, 1), np.array(picks), targets, 0, 1, together)
    expected = grouped(targets.lengths, picks, together, 67, seed)
    assert list(corpus.plan(batch_tokens=67, seed=seed, epoch=3)) == expected
    assert len({len(planned.indices) for planned in expected}) > 1


@pytest.mark.parametrize("task", LABELLED)
@pytest.mark.parametrize("held_out", [False, True])
def test_kept_examples_are_those_of_the_files_and_train_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, held_out: bool
) -> None:
    parts: dict[str, Any] = {"data": {"valid": None}} if held_out else {}
    config = tiny_sentences.configuration(tmp_path, task=task, training={"max_updates": 5}, **parts)
    rows = Path(str(config.data.train)).read_text().splitlines()
    rows[3] = rows[3].replace(rows[3].split("\t")[-1], " ")
    rows[11] += " film" * 23
    Path(str(config.data.train)).write_text("\n".join(rows) + "\n")
    weights = tiny_sentences.train(config, tmp_path / "run").weights_sha256
    run = open_sentence_run(tmp_path / "run")
    files = classification_data.LabelledText(config, tmp_path / "new").parts
    in_memory = [encode_labelled(file, config, run.vocabulary, run.labels) for file in files]
    kept = open_labelled(tmp_path / "run", len(files[1].examples[0].texts))
    assert sum(in_memory[0].left_out.values()) + sum(in_memory[1].left_out.values()) == 2
    for one, other in zip(in_memory, kept[:2], strict=True):
        assert (one.left_out, one.weights.tolist(), one.lines.tolist()) == (other.left_out, other.weights.tolist(), other.lines.tolist())
        plans = [list(corpus.plan(batch_tokens=100, seed=3, epoch=1)) for corpus in (one, other)]
        assert plans[0] == plans[1]
        for planned in plans[0]:
            for found, expected in zip(other.batch(planned)[:4], one.batch(planned)[:4], strict=True):
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
    by_line = {example.line: example.texts for example in files[1].examples}
    assert [tuple(side[number] for side in kept.texts) for number in range(len(kept.valid.lines))] == [
        by_line[line] for line in kept.valid.lines.tolist()
    ]
    # The corpora as they were before they were kept: in memory.
    in_place = kept._replace(train=in_memory[0], valid=in_memory[1])
    monkeypatch.setattr(classification_training, "open_labelled", lambda folder, sides: in_place)
    assert tiny_sentences.train(config, tmp_path / "in memory").weights_sha256 == weights


@pytest.mark.parametrize("task", LABELLED)
def test_labelled_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str) -> None:
    config = tiny_sentences.configuration(tmp_path, task=task, training={"max_updates": 3, "save_every": 1})
    weights = tiny_sentences.train(config, tmp_path / "run").weights_sha256
    with pytest.raises(tiny.Killed):
        tiny_sentences.train(config, tmp_path / "killed", on_event=kill)
    with monkeypatch.context() as patched:
        patched.setattr(classification_data, "read_labelled_file", None)
        assert tiny_sentences.train(config, tmp_path / "killed").weights_sha256 == weights
    ids = tmp_path / "run" / TOKENS / "train-0.ids"
    content = ids.read_bytes()
    ids.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert tiny_sentences.train(config, tmp_path / "run").weights_sha256 == weights
    assert ids.read_bytes() == content
    shutil.rmtree(tmp_path / "run" / TOKENS)
    assert tiny_sentences.train(config, tmp_path / "run").weights_sha256 == weights
    assert ids.read_bytes() == content
    tiny_sentences.write(tmp_path / "train.tsv", (tiny_sentences.sentences if task == "classification" else tiny_sentences.pairs)(60, 4))
    with pytest.raises(ConfigError, match="the train file has other content"):
        tiny_sentences.train(config, tmp_path / "run")


@pytest.mark.parametrize("source", ["folder", "tar", "features"])
def test_captions_are_read_once_and_train_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    captions, _ = tiny_captions.write_set(tmp_path)
    data: dict[str, Any] = {"captions_per_image": 2, "max_length": 7}
    model: dict[str, Any] = tiny_captions.SHOW
    if source == "tar":
        data["images"] = shutil.make_archive(str(tmp_path / "images"), "tar", tmp_path, "train")
    if source == "features":
        data["features"], model = str(tmp_path / "f.safetensors"), {**model, "encoder": {"type": "features"}}
        ids = read_captions(captions).ids
        write_features(data["features"], ids, (np.full((6, 5), number, np.float32) for number in range(len(ids))), grid=(2, 3))
    config = tiny_captions.configuration(captions, model, data=data, training={"max_updates": 3, "save_every": 1, "metric": "cider"})
    first = train_captioning(config, tmp_path / "run")
    vocabulary = open_caption_run(tmp_path / "run").vocabulary
    for part, examples in zip(captioning_data.PARTS, open_caption_sets(config, tmp_path / "run"), strict=True):
        expected = encode_captions(examples, torch.zeros(1), vocabulary, config, cells=1, name="test")
        found = open_encoded(tmp_path / "run", part)
        assert (found.picks.tolist(), found.left_out) == (expected.picks.tolist(), expected.left_out)
        assert list(map(list, found.targets)) == list(map(list, expected.targets))
    assert expected.left_out + open_encoded(tmp_path / "run", "training").left_out > 0
    with pytest.raises(tiny.Killed):
        train_captioning(config, tmp_path / "killed", on_event=kill)
    with monkeypatch.context() as patched:
        patched.setattr(captioning_data, "read_caption_set", None)
        again = train_captioning(config, tmp_path / "killed")
    assert (again.weights_sha256, again.metrics) == (first.weights_sha256, first.metrics)
    ids = tmp_path / "run" / TOKENS / "training-tokens.ids"
    content = ids.read_bytes()
    ids.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert train_captioning(config, tmp_path / "run").weights_sha256 == first.weights_sha256
    assert ids.read_bytes() == content


def test_images_may_move_and_missing_ones_are_named(tmp_path: Path) -> None:
    captions, _ = tiny_captions.write_set(tmp_path / "one")
    config = tiny_captions.configuration(captions)
    weights = train_captioning(config, tmp_path / "run").weights_sha256
    (tmp_path / "one").rename(tmp_path / "two")
    moved = tiny_captions.configuration(tmp_path / "two" / "train.tsv")
    assert train_captioning(moved, tmp_path / "run").weights_sha256 == weights
    (tmp_path / "two" / "train" / "000005.png").unlink()
    with pytest.raises(DataError, match=r"train\.tsv, line 11: no image train/000005\.png in .*two \(1 of 13 images is missing\)"):
        train_captioning(moved, tmp_path / "run")


def test_a_set_of_captions_is_what_was_packed(tmp_path: Path) -> None:
    captions, regions = tiny_captions.write_set(tmp_path)
    found = read_captions(captions, regions=regions)
    examples = list(found)
    packed = CaptionSet.of(examples)
    assert list(packed) == examples
    assert packed.pairs == [(number, caption) for number, each in enumerate(examples) for caption in each.captions]
    assert packed.references == [each.captions for each in examples]
    assert list(packed[3:11:2]) == examples[3:11:2]
    assert packed[-1] == examples[-1]
    flags = np.arange(len(examples)) % 3 == 1
    assert list(packed.chosen(flags)) == [each for each, flag in zip(examples, flags, strict=True) if flag]
    with pytest.raises(IndexError):
        packed[len(examples)]
    odd = CaptionExample("a\udcff", Path("b\udcfe", "c"), ("\u00e4", "b"))
    assert list(CaptionSet.of([odd])) == [odd]


def test_memory_of_captions_is_that_of_their_text(tmp_path: Path) -> None:
    for number in range(603):
        (tmp_path / f"{number}.png").touch()
    lines = [f"{number // 5}.png\ta dog number {number} runs" for number in range(3011)]
    (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
    read_captions(tmp_path / "a.tsv")  # what is imported and cached stays
    tracemalloc.start()
    try:
        found = read_captions(tmp_path / "a.tsv")
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found.captions) == 3011
    text = sum(len(packed.utf8.ids) for packed in (found.names, found.files, found.captions))
    assert grown < 1.3 * text + 8 * (2 * 3011 + 3 * len(found)) + 20_000


def test_rows_of_mapped_files_stay_readable_when_pages_are_let_go(tmp_path: Path) -> None:
    rows = [[number % 251] * (number % 7) for number in range(1009)]
    write_tokens(tmp_path / "a", FlatTokens.of(rows))
    mapped = TokenFile(tmp_path / "a", "int32").whole()
    for start in range(0, 1009, 101):
        numbers = range(start, min(start + 101, 1009))
        assert [row.tolist() for row in mapped.rows(numbers)] == [rows[number] for number in numbers]
    assert PackedTexts.of(["a", "\u00e4b", ""]).chosen(np.array([2, 1])).utf8.lengths.tolist() == [0, 3]
