"""A run made of what another toolkit left translates as that toolkit would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from transformers import GenerationConfig
from typer.testing import CliRunner

from regard import progress
from regard.cli import app
from regard.errors import CheckpointError, ConfigError, DataError, RegardError
from regard.integrations.migrate_files import (
    Imported,
    ToolkitVocabulary,
    load_joeynmt,
    load_marian,
    read_any,
    read_joeynmt,
    read_marian,
)
from regard.integrations.migrate_run import write_run
from regard.tasks import Translator
from tests.integrations.foreign import HEADS, fairseq_state, joeynmt_state
from tests.integrations.test_migrate import marian
from tests.reference import fairseq, joeynmt

SIZE = 31
LINES = ["w5 w9 w7", "w20 w4 w4 w11 w6", "w8", "never w5"]


def words() -> list[str]:
    return [f"w{number}" for number in range(4, SIZE)]


def numbers_of(line: str, entries: list[str], unk: int) -> list[int]:
    return [entries.index(word) if word in entries else unk for word in line.split()]


def marian_folder(folder: Path) -> tuple[Any, list[str]]:
    theirs = marian()
    theirs.save_pretrained(folder)
    entries = ["</s>", "<unk>", *(f"w{number}" for number in range(4, SIZE + 1)), "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(entries)}))
    return theirs, entries


def save(state: dict[str, Any], path: Path) -> None:
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, path)


def joeynmt_folder(folder: Path, **changes: Any) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    state = joeynmt_state(pre=True, source_size=SIZE, target_size=SIZE, tied=False)
    save(state, folder / "model.safetensors")
    side = {"type": "transformer", "num_heads": HEADS, "layer_norm": "pre", "embeddings": {"embedding_dim": 18, "scale": True}}
    settings = {"model": {"encoder": {**side, **changes}, "decoder": side}}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    for name in ("src_vocab.txt", "trg_vocab.txt"):
        (folder / name).write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *words()]) + "\n")
    return state


def greedy(logits: Any, source: list[int], *, start: int, eos: int, banned: list[int], length: int) -> tuple[list[int], list[float]]:
    """Take the best token again and again; probabilities are of all tokens, the banned included."""
    target, log_probs = [start], []
    while len(target) <= length:
        step = logits(torch.tensor([source]), torch.tensor([target])).detach()[0, -1].log_softmax(-1)
        allowed = step.clone()
        allowed[banned] = -torch.inf
        target.append(int(allowed.argmax()))
        log_probs.append(float(step[target[-1]]))
        if target[-1] == eos:
            break
    return target[1:], log_probs


def check(run: Path, lines: list[str], expected: list[tuple[list[str], list[float]]]) -> None:
    assert len({" ".join(tokens) for tokens, _ in expected}) > 1
    translator = Translator.open(run)
    decoding = translator.run.config.decoding.model_copy(update={"beam_size": 1, "max_length": 13})
    for item, (tokens, log_probs) in zip(translator.translate(lines, decoding=decoding), expected, strict=True):
        assert item.text.split() == tokens
        assert item.hypotheses[0].log_probs == pytest.approx(log_probs, abs=1e-4)


def test_a_marian_run_translates_as_marian_generates(tmp_path: Path) -> None:
    theirs, entries = marian_folder(tmp_path / "marian")
    write_run(read_marian(tmp_path / "marian"), tmp_path / "run", origin="marian")
    expected, generated = [], []
    for line in LINES:
        source = [*numbers_of(line, entries, 1), 0]
        # Without <pad>, the last entry, which Marian's own softmax does not have.
        found = greedy(
            lambda s, t: theirs(input_ids=s, decoder_input_ids=t).logits[..., :-1], source, start=SIZE - 1, eos=0, banned=[], length=13
        )
        expected.append(([entries[number] for number in found[0] if number != 0], found[1]))
        settings = GenerationConfig(
            max_new_tokens=13, num_beams=1, do_sample=False, bad_words_ids=[[SIZE - 1]], eos_token_id=0, pad_token_id=SIZE - 1
        )
        settings.decoder_start_token_id = SIZE - 1
        settings.forced_eos_token_id = None
        output = theirs.generate(torch.tensor([source]), generation_config=settings)[0, 1:].tolist()
        generated.append([entries[number] for number in output if number not in (0, SIZE - 1)])
    # At the greatest length Marian is made to end the sentence.
    assert [tokens[:12] for tokens, _ in expected] == generated
    check(tmp_path / "run", LINES, expected)
    assert load_marian(tmp_path / "marian").config.activation == "swish"


def test_a_joeynmt_run_translates_as_joeynmt_would(tmp_path: Path) -> None:
    state = joeynmt_folder(tmp_path / "joey")
    write_run(read_joeynmt(tmp_path / "joey"), tmp_path / "run", origin="joeynmt")
    entries = ["<unk>", "<pad>", "<s>", "</s>", *words()]
    expected = []
    for line in LINES:
        source = [*numbers_of(line, entries, 0), 3]
        tokens, log_probs = greedy(lambda s, t: joeynmt.logits(state, s, t, heads=HEADS), source, start=2, eos=3, banned=[1, 2], length=13)
        expected.append(([entries[number] for number in tokens if number != 3], log_probs))
    check(tmp_path / "run", LINES, expected)


@pytest.mark.parametrize("shared", [True, False])
def test_a_fairseq_run_translates_as_fairseq_would(tmp_path: Path, shared: bool) -> None:
    state = fairseq_state(pre=False, source_size=SIZE, target_size=SIZE, shared=shared)
    save(state, tmp_path / "model.safetensors")
    (tmp_path / "dict.a.txt").write_text("".join(f"{word} 9\n" for word in words()))
    target = words() if shared else words()[::-1]
    (tmp_path / "dict.b.txt").write_text("".join(f"{word} 9\n" for word in target))
    run, files = tmp_path / "run", [tmp_path / "dict.a.txt", tmp_path / "dict.b.txt"]
    command = ["import", str(tmp_path / "model.safetensors"), "--from", "fairseq", "--out", str(run)]
    command += ["--source-vocabulary", str(files[0]), "--target-vocabulary", str(files[1]), "--heads", str(HEADS)]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, f"{run}: 31 source and 31 target tokens\n")
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    expected = []
    for line in LINES:
        source = [*numbers_of(line, special + words(), 3), 2]
        # fairseq begins with the end of a sentence, and <s> is an entry like any other that is never chosen here.
        tokens, log_probs = greedy(lambda s, t: fairseq.logits(state, s, t, heads=HEADS), source, start=2, eos=2, banned=[0, 1], length=13)
        expected.append(([(special + target)[number] for number in tokens if number != 2], log_probs))
    check(run, LINES, expected)
    config = Translator.open(run).run.config
    assert config.vocabulary.shared == shared
    assert config.model.share_embeddings == shared
    assert not config.model.tie_embeddings


def told_by(command: list[str], lines: str = "") -> tuple[str, list[str]]:
    """Return what a command writes, and its warnings."""
    told: list[str] = []
    with progress.listening(lambda event: told.append(event.text) if event.warning else None):
        done = CliRunner().invoke(app, command, input=lines, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout, told


def test_unknown_words_are_told_once_and_counted_at_the_end(tmp_path: Path) -> None:
    joeynmt_folder(tmp_path / "joey")
    run = str(tmp_path / "run")
    write_run(read_joeynmt(tmp_path / "joey"), run, origin="joeynmt")
    command = ["translate", run, "--beam-size", "1", "--max-length", "3"]
    written, told = told_by(command, "w5 w9\n" + "w5 dog the dog\n" * 400)
    assert written.count("\n") == 401
    assert "unknown" not in written
    assert told == [
        "line 2: 3 of 4 words unknown to the source vocabulary: 'dog', 'the' (the run expects words separated by spaces)",
        "1200 of 1602 words unknown to the source vocabulary, in 400 of 401 lines; most often 'dog', 'the'",
    ]
    assert told_by(command, "w5 w9\n" * 3)[1] == []
    assert len(told_by(command, "w5\nw6 dog\n")[1]) == 1
    (tmp_path / "a.txt").write_text("w5 dog\nw6 cat\n")
    (tmp_path / "b.txt").write_text("w5 w5 w5 w5\nw6\n")
    expected = "2 of 4 words unknown to the source vocabulary, in 2 of 2 lines; most often 'dog', 'cat'"
    expected += " (the run expects words separated by spaces)"
    evaluating = ["evaluate", run, "--source", str(tmp_path / "a.txt"), "--target", str(tmp_path / "b.txt"), "--max-length", "3"]
    smoothing = "no output has four words in a row of its reference, so BLEU is smoothing alone; see chrF"
    assert told_by(evaluating)[1] == [expected, smoothing]
    looking = ["view", run, "--text", "w5 dog", "--text", "w6 cat", "-o", str(tmp_path / "records.json")]
    assert told_by(looking)[1] == [expected]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_norm": None}, r"model.encoder.layer_norm: None, expected pre or post"),
        ({"alpha": 0.7}, r"model.encoder.alpha: 0.7, expected 1.0"),
        ({"type": "recurrent"}, r"model.encoder.type: 'recurrent', expected 'transformer'"),
        ({"activation": "tanh"}, r"model.decoder.activation: 'relu', expected 'tanh'"),
        ({"num_heads": 2}, r"model.decoder.num_heads: 3, expected 2"),
    ],
)
def test_a_joeynmt_model_that_ours_is_not_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    joeynmt_folder(tmp_path, **changes)
    with pytest.raises(ConfigError, match=message):
        load_joeynmt(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bart"}, "model_type: 'bart', expected 'marian'"),
        ({"normalize_before": True}, "normalize_before: True, expected False"),
        ({"static_position_embeddings": False}, "static_position_embeddings: False, expected True"),
        ({"activation_function": "gelu_new"}, "activation_function: 'gelu_new', expected one of relu, swish, silu, gelu"),
        ({"decoder_attention_heads": 2}, "decoder_attention_heads: 2, expected 3"),
    ],
)
def test_a_marian_model_that_ours_is_not_is_refused_by_its_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    marian_folder(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=message):
        load_marian(tmp_path)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_heads": HEADS, "activation": None}
    files = (tmp_path / "dict.txt", tmp_path / "dict.txt")
    cases: list[tuple[type[RegardError], str, Any]] = [
        (
            CheckpointError,
            r"checkpoint_best.pt: only .safetensors files are read; docs/migration.md",
            lambda: read_any(tmp_path / "checkpoint_best.pt", "fairseq", *files, **options),
        ),
        (
            CheckpointError,
            r"x.safetensors: no such file; docs/migration.md",
            lambda: read_any(tmp_path / "x.safetensors", "fairseq", *files, **options),
        ),
        (CheckpointError, r"config.json: cannot be read \(No such file", lambda: load_marian(tmp_path)),
        (ConfigError, r"config.yaml: no such configuration file", lambda: load_joeynmt(tmp_path)),
        (
            ConfigError,
            "--heads: needed, a fairseq model does not tell",
            lambda: read_any(tmp_path, "fairseq", *files, num_heads=None, activation=None),
        ),
        (
            ConfigError,
            "--heads, --activation: a marian folder tells them itself",
            lambda: read_any(tmp_path, "marian", None, None, **options),
        ),
    ]
    for error, message, call in cases:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("trg_vocab.txt", "ein\n<pad>\n<s>\n</s>\n", r"trg_vocab.txt: lines 1 to 4: expected <unk>, <pad>, <s> and </s>, found ein"),
        ("trg_vocab.txt", "<unk>\n<pad>\n<s>\n</s>\nein\n", "target vocabulary: has 5 tokens, the model 31"),
        ("src_vocab.txt", "<unk>\n<pad>\n<s>\n</s>\nein\nein\n", "source vocabulary: 'ein' is duplicated"),
    ],
)
def test_a_vocabulary_that_does_not_fit_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    joeynmt_folder(tmp_path / "joey")
    (tmp_path / "joey" / name).write_text(text)
    with pytest.raises(DataError, match=message):
        write_run(read_joeynmt(tmp_path / "joey"), tmp_path / "run", origin="joeynmt")
    assert not (tmp_path / "run").exists()


def test_a_dictionary_line_without_a_count_is_named(tmp_path: Path) -> None:
    save(fairseq_state(pre=False, source_size=SIZE, target_size=SIZE), tmp_path / "model.safetensors")
    (tmp_path / "dict.txt").write_text("ein 3\nHund\n")
    files = (tmp_path / "dict.txt", tmp_path / "dict.txt")
    with pytest.raises(DataError, match=r"dict.txt: line 2: expected a token and its count, found 'Hund'"):
        read_any(tmp_path / "model.safetensors", "fairseq", *files, num_heads=HEADS, activation=None)


def test_a_run_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    joeynmt_folder(tmp_path / "joey")
    imported = read_joeynmt(tmp_path / "joey")
    with pytest.raises(ConfigError, match="exists and is not empty; choose another --out"):
        write_run(imported, tmp_path / "joey", origin="joeynmt")
    outside = Imported(imported.converted, imported.source, ToolkitVocabulary(imported.target.words, pad=1, unk=0, eos=99, start=2, bos=2))
    with pytest.raises(DataError, match=r"target vocabulary: has 31 tokens, and the special ones are \[0, 1, 2, 99\]"):
        write_run(outside, tmp_path / "run", origin="joeynmt")
