"""Guided alignment: links of words become links of tokens beside their pairs, and the taught head is the one that links come from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import TranslationConfig
from regard.data.parallel import read_pairs
from regard.data.vocabulary import TokenizedText
from regard.errors import ConfigError, DataError
from regard.metrics import alignment_error_rate
from regard.models import build
from regard.models.loss_guides import LinkGuide, TaughtHead
from regard.tasks import generate, train_translation, translation_data
from regard.tasks.run_folder import read_config
from regard.tasks.translation_data import open_corpus
from regard.tasks.translation_evaluation import read_links
from regard.tasks.translation_run import load_vocabularies, open_translation_run
from regard.tasks.translation_training import check_translation_settings, taught_head
from regard.tasks.word_links import FILE, find_links, link_pairs, read_choice
from regard.training.atomic_folder import file_sha256
from tests.tasks.tiny import ATTENTIVE, FAMILIES, TEXTS, configuration, trained, write_pairs

TAUGHT = [name for name in FAMILIES if name != "no attention"]


def write_links(folder: Path, *, repeats: int = 4) -> str:
    """Write the links of `write_pairs`: word i of a source is the last but i of its target."""
    counts = [len(text.split()) for text in TEXTS] * repeats
    lines = [" ".join(f"{word}-{count - 1 - word}" for word in range(count)) for count in counts]
    path = folder / "train.links"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def guided(folder: Path, **parts: Any) -> Path:
    """Train a tiny model with links and return its run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    training = {"links": write_links(folder), **parts.pop("training", {})}
    return trained(folder, training=training, **parts)


def words_of(text: str, tokens: TokenizedText) -> list[set[int]]:
    """Return the numbers of the words that each token has a character of."""
    owner, word = [], -1
    for place, character in enumerate(text):
        word += not character.isspace() and (place == 0 or text[place - 1].isspace())
        owner.append(None if character.isspace() else word)
    return [{number for number in owner[start:end] if number is not None} for start, end in tokens.offsets]


@pytest.mark.parametrize("kind", ["bpe", "character", "word"])
def test_tokens_inherit_the_links_of_their_words_whichever_pairs_are_held_out(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation_data, "BLOCK", 7)
    run = guided(tmp_path, kind=kind, data={"valid_size": 2, "max_length": 20})
    config = read_config(run, TranslationConfig)
    vocabularies, corpus = load_vocabularies(run, config), open_corpus(config, run)
    pairs = {
        tuple(vocabularies.source.encode(source).ids): (source, target)
        for source, target in read_pairs(tmp_path / "source", tmp_path / "target")
    }
    assert 0 < corpus.size < 20
    for planned in corpus.plan(batch_tokens=60, seed=1, epoch=0):
        batch = corpus.batch(planned)
        assert batch.links is not None
        for row in range(len(planned.indices)):
            source, target = pairs[tuple(batch.source[row, : batch.source_lengths[row] - 1].tolist())]
            sides = [words_of(text, vocabularies.source.encode(text)) for text in (source, target)]
            last = len(source.split()) - 1
            wanted = {(t, s) for t, of in enumerate(sides[1]) for s, own in enumerate(sides[0]) if any(last - word in own for word in of)}
            assert {(t, s) for r, t, s in batch.links.tolist() if r == row} == wanted


@pytest.mark.parametrize("family", TAUGHT)
@pytest.mark.parametrize("step", ["predicts", "reads"])
def test_the_loss_of_links_reaches_only_the_attention_that_learns_them(family: str, step: Any) -> None:
    model = build(configuration(model=FAMILIES[family]).model, source_size=17, target_size=17).eval()
    source, target = torch.tensor([[5, 7, 6, 3], [9, 8, 3, 0]]), torch.tensor([[2, 5, 6], [2, 7, 0]])
    batch = (source, torch.tensor([4, 3]), target, torch.tensor([[5, 6, 3], [7, 3, 0]]), torch.tensor([3, 2]))
    guide = LinkGuide(torch.tensor([[0, 0, 1], [0, 1, 2], [1, 0, 0]]), TaughtHead(1, 1, step, 0.7))
    plain, sums = model(*batch), model(*batch, guide=guide)
    name = model.taught_name(guide.taught)
    (found,) = (each for each in model.attention_maps(*batch[:3]) if each.name == name)
    # A head of a Transformer; of a recurrent decoder the mean of the heads, which is the weights that it returns.
    weights = found.weights[:, 1] if name.startswith("decoder.layers") else model.decode(*batch[:3]).weights
    assert weights is not None
    wanted = 0.0
    for row, t, s in guide.links.tolist():
        own = weights[row, t + (step == "reads")]
        wanted -= 0.7 * torch.log(own[s] / own.sum()).item()
    assert (sums.loss - plain.loss).item() == pytest.approx(wanted, abs=1e-4)
    assert torch.allclose(sums.nll, plain.nll, atol=1e-5)  # other kernels
    (sums.loss - plain.loss).backward()
    assert model.source_embedding.weight.grad is not None
    assert model.source_embedding.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("family", TAUGHT)
def test_the_taught_attention_is_stored_and_used(tmp_path: Path, family: str) -> None:
    run = open_translation_run(guided(tmp_path, model=FAMILIES[family], training={"links_step": "reads"}))
    choice, taught = read_choice(run), taught_head(run.config)
    assert choice is not None
    assert (choice.name, choice.step) == (run.model.taught_name(taught), "reads")
    pair = (TEXTS[1], " ".join(TEXTS[1].split()[::-1]))
    assert find_links(run, [pair]) == link_pairs(run, [pair])


def test_links_of_a_batch_are_those_of_each_pair(tmp_path: Path) -> None:
    run = open_translation_run(trained(tmp_path, model=FAMILIES["gru"]))
    pairs = [(text, " ".join(text.split()[::-1])) for text in TEXTS] + [("", "ein"), ("ein", "")]
    assert link_pairs(run, pairs) == find_links(run, pairs)


def test_links_of_another_run_are_computed_once_and_train_the_same_model_as_their_file(tmp_path: Path) -> None:
    teacher = trained(tmp_path / "teacher", kind="word", model=FAMILIES["gru"])
    run = trained(tmp_path / "own", kind="word", model={"type": "transformer", **ATTENTIVE}, training={"links_from": str(teacher)})
    lines = (run / "links" / "all.links").read_text(encoding="utf-8")
    pairs = read_pairs(tmp_path / "own" / "source", tmp_path / "own" / "target")
    assert len(lines.splitlines()) == len(pairs)
    assert lines.split()
    path = tmp_path / "copy.links"
    path.write_text(lines, encoding="utf-8")
    other = trained(tmp_path / "file", kind="word", model={"type": "transformer", **ATTENTIVE}, training={"links": str(path)})
    assert file_sha256(run / "model" / "model.safetensors") == file_sha256(other / "model" / "model.safetensors")


def test_a_killed_run_with_links_resumes_exactly(tmp_path: Path) -> None:
    class Killed(BaseException): ...

    def kill(event: str) -> None:
        if event == "update 5":
            raise Killed

    write_pairs(tmp_path)
    training = {"max_updates": 8, "save_every": 2, "batch_tokens": 100, "links": write_links(tmp_path)}
    data = {"source": str(tmp_path / "source"), "target": str(tmp_path / "target"), "block_size": 7}
    config = configuration(kind="word", model={"type": "transformer", **ATTENTIVE}, data=data, training=training)
    whole = train_translation(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train_translation(config, tmp_path / "killed", on_event=kill)
    shutil.rmtree(tmp_path / "killed" / "tokens")  # encoded again
    assert train_translation(config, tmp_path / "killed").weights_sha256 == whole.weights_sha256


def test_sharded_files_of_links_belong_to_the_shards_of_the_sources(tmp_path: Path) -> None:
    one = guided(tmp_path / "one", kind="word")
    parts = tmp_path / "parts"
    parts.mkdir()
    for name in ("source", "target", "train.links"):
        lines = (tmp_path / "one" / name).read_text(encoding="utf-8").splitlines(keepends=True)
        for part, chosen in enumerate((lines[:9], lines[9:])):
            (parts / f"{part}.{name}").write_text("".join(chosen), encoding="utf-8")
    data = {"source": f"{parts}/*.source", "target": f"{parts}/*.target"}
    other = trained(tmp_path / "other", kind="word", data=data, training={"links": f"{parts}/*.train.links"})
    assert file_sha256(one / "model" / "model.safetensors") == file_sha256(other / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "0-0 7-1",
            "train.links, line 4: 7-1, but the source has 3 words, numbered from 0; for characters: training.links_unit=character",
        ),
        ("0-9", "train.links, line 4: 0-9, but the target has 3 words"),
        ("0:0", "train.links, line 4: expected links like 3-4 or 3.4, found '0:0'"),
        ("0-0\n0-0", "train.links: 21 lines, but .*source has 20"),
    ],
)
def test_a_bad_line_of_links_is_named_and_leaves_no_run(tmp_path: Path, line: str, message: str) -> None:
    lines = Path(write_links(tmp_path)).read_text(encoding="utf-8").splitlines()
    lines[3] = line
    (tmp_path / "train.links").write_text("\n".join(lines) + "\n", encoding="utf-8")
    valid = {f"valid_{name}": path for name, path in write_pairs(tmp_path).items()}
    with pytest.raises(DataError, match=message):
        trained(tmp_path, kind="word", data=valid, training={"links": str(tmp_path / "train.links")})
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_file_without_any_link_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.links"
    path.write_text("\n" * 20, encoding="utf-8")
    with pytest.raises(DataError, match=r"empty.links: links no words"):
        trained(tmp_path, training={"links": str(path)})


@pytest.mark.parametrize(
    ("model", "training", "message"),
    [
        ({"attention": None}, {"links": "a"}, "no attention"),
        ({"type": "transformer", "second": {"kind": "flat"}}, {"links_from": "a"}, "training.links_from: needs a model of one input"),
        ({"type": "transformer", "decoder_layers": 2}, {"links": "a", "links_layer": 3}, "links_layer: 3, but model.decoder_layers is 2"),
        ({"type": "crossed", "num_heads": 2}, {"links": "a", "links_head": 3}, "links_head: 3, but model.num_heads is 2"),
        ({"type": "rnn"}, {"links": "a", "links_head": 1}, "recurrent decoder has one attention"),
    ],
)
def test_settings_that_do_not_fit_are_refused(model: dict[str, Any], training: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_translation_settings(configuration(model=model, training=training))
    with pytest.raises(ConfigError, match="give one"):
        configuration(training={"links": "a", "links_from": "b"})


@pytest.mark.slow
def test_a_taught_head_points(tmp_path: Path) -> None:
    generate("reverse", tmp_path, train=3000, test=200, seed=11)
    model = {"type": "transformer", "embed_dim": 32, "ff_dim": 64, "num_heads": 4, "encoder_layers": 2, "decoder_layers": 2, "norm": "pre"}
    training = {"links": str(tmp_path / "train.links"), "links_unit": "character", "links_weight": 1.0}
    training |= {"max_updates": 500, "epochs": 1000, "batch_tokens": 1500, "learning_rate": 3e-3, "evaluate_every": 250}
    data = {name: str(tmp_path / f"train.{name}") for name in ("source", "target")}
    train_translation(configuration(kind="word", model=model, training=training, data=data), tmp_path / "run")
    run = open_translation_run(tmp_path / "run")
    assert (tmp_path / "run" / FILE).exists()
    known = read_links(tmp_path / "test.links", "character")
    found = find_links(run, read_pairs(tmp_path / "test.source", tmp_path / "test.target"), unit="character")
    assert alignment_error_rate(found, known.sure, known.possible).value <= 1
