"""Training and measuring the language model: attention learns what the LSTM alone does not, and figures count what they say."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import LanguageConfig, load_config
from regard.data.running_text import encode_text
from regard.errors import CheckpointError, ConfigError, DataError
from regard.models import build_language_model
from regard.tasks.language_training import evaluate_language, open_language_run, text_likelihood, train_language
from tests.tasks.tiny_language import ATTENTIONS, TEXTS, configuration, language_model, run, write_text

CONFIGS = Path(__file__).parents[2] / "configs"


def copies(path: Path, count: int, seed: int) -> None:
    """Write lines of five different words, a sign, and the same five words again."""
    draw, words = random.Random(seed), [f"w{number}" for number in range(50)]
    lines = []
    for _ in range(count):
        chosen = draw.sample(words, 5)
        lines.append(" ".join([*chosen, "=", *chosen]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def accuracy_on_copies(folder: Path, attention: str) -> float:
    copies(folder / "text", 1500, 1)
    copies(folder / "valid_text", 50, 2)
    training = {"streams": 16, "chunk_length": 24, "max_updates": 110, "epochs": 9, "evaluate_every": 110, "save_every": 110}
    result = run(
        folder / attention,
        kind="word",
        data={name: str(folder / name) for name in ("text", "valid_text")},
        model={"attention": attention, "embed_dim": 16, "hidden_size": 48, "window": 7, "num_layers": 1, "dropout": 0.0},
        training=training,
    )
    return result.metrics["token_accuracy"]


def test_attention_to_the_window_learns_to_copy_and_the_lstm_alone_does_not(tmp_path: Path) -> None:
    # Of 12 tokens 7 can be known: the sign, the copies and the end.
    assert accuracy_on_copies(tmp_path, "key_value") > 0.5
    assert accuracy_on_copies(tmp_path, "none") < 0.4


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_likelihood_is_the_sum_over_all_tokens(attention: str) -> None:
    model = language_model(model={"attention": attention})
    text = encode_text(TEXTS, model.run.vocabulary)
    scores = model.score(TEXTS)
    nll = -sum(item.total for item in scores)
    figures = text_likelihood(model.run.model, text, lines="separate")
    assert len(text.tokens) == sum(len(line) + 1 for line in TEXTS)
    assert figures["loss"] == pytest.approx(nll / len(text.tokens), rel=1e-5)
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    assert figures["bits_per_byte"] == pytest.approx(nll / math.log(2) / len("".join(line + "\n" for line in TEXTS).encode()), rel=1e-5)


def test_a_running_text_is_one_long_line_with_begin_signs() -> None:
    model = language_model()
    text = encode_text(TEXTS, model.run.vocabulary)
    inputs = torch.tensor([3, *text.tokens[:-1]]).masked_fill(torch.tensor([3, *text.tokens[:-1]]) == 3, 2)
    with torch.no_grad():
        logits = model.run.model.logits(model.run.model.decode(inputs.unsqueeze(0)).readout[0])
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(text.tokens).long())
    figures = text_likelihood(model.run.model, text, lines="continuous")
    assert figures["loss"] == pytest.approx(expected.item(), rel=1e-5)
    assert figures["loss"] != pytest.approx(text_likelihood(model.run.model, text, lines="separate")["loss"], rel=1e-3)


def test_more_streams_than_tokens_are_as_many_as_there_are() -> None:
    model = language_model()
    text = encode_text(["ein"], model.run.vocabulary)
    assert text_likelihood(model.run.model, text, lines="continuous", streams=99)["loss"] > 0


def test_unknown_characters_have_no_bits_per_byte() -> None:
    model = language_model()
    names = [score.name for score in evaluate_language(model.run, ["ein Hund", "*"])]
    assert names == ["perplexity, continuous", "token accuracy, continuous", "perplexity, separate", "token accuracy, separate"]
    scores = evaluate_language(model.run, ["ein Hund"])
    assert scores[2].name == "bits per byte, continuous"
    assert scores[2].signature == "tokens:9|lines:1|unknown:0|eos:yes|text:continuous|bytes:9|newlines:yes"


def test_a_line_that_no_batch_holds_is_named(tmp_path: Path) -> None:
    write_text(tmp_path)
    text = (tmp_path / "text").read_text(encoding="utf-8").splitlines()
    (tmp_path / "text").write_text("\n".join([text[0], "ein " * 30, *text[1:]]), encoding="utf-8")
    settings = {"training": {"batch_tokens": 100, "max_updates": 1}}
    with pytest.raises(
        DataError, match=r"text: line 2 has 121 tokens, more than a batch has \(training\.batch_tokens=100\): divide the line"
    ):
        run(tmp_path, data={"context": "separate"}, **settings)
    run(tmp_path / "run-on", data={"text": str(tmp_path / "text")}, **settings)


def test_a_text_without_lines_is_not_measured() -> None:
    with pytest.raises(DataError, match="no lines"):
        evaluate_language(language_model().run, [])


@pytest.mark.parametrize("lines", ["continuous", "separate"])
@pytest.mark.parametrize("kind", ["bpe", "unigram", "word", "character"])
def test_every_vocabulary_and_way_of_reading_trains_and_opens(tmp_path: Path, kind: str, lines: str) -> None:
    result = run(tmp_path, kind=kind, data={"context": lines}, training={"max_updates": 2, "batch_tokens": 40})
    opened = open_language_run(tmp_path / "run")
    assert result.step == 2
    assert opened.config.vocabulary.kind == opened.vocabulary.kind == kind
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert files == {"config.yaml", "data.json", "vocabulary.json", "tokens", "checkpoints", "model", "log.jsonl"}
    assert (next((tmp_path / "run" / "checkpoints").iterdir()) / "carried.safetensors").exists() == (lines == "continuous")


def test_without_validation_text_the_last_lines_are_held_out(tmp_path: Path, messages: list[str]) -> None:
    (tmp_path / "text").write_text("a b c d\n" * 30, encoding="utf-8")
    settings: dict[str, Any] = {"data": {"text": str(tmp_path / "text"), "valid_size": 7}, "training": {"max_updates": 1}}
    train_language(configuration(kind="word", **settings), tmp_path / "run")
    assert messages[0].endswith("27 training lines, 3 validation lines")
    assert messages[1] == "135 training tokens, 15 validation tokens, ends of lines included"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "0 lines: at least 2"),
        ("one\n", "1 line: at least 2"),
        (" \n\n" * 9, "text: no text to train a vocabulary on"),
        ("a\nb\n", "has 2 tokens, too few for training.stream_groups x training.streams = 3 streams"),
    ],
)
def test_a_text_that_cannot_be_trained_on_is_refused_and_leaves_no_run(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "text").write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        train_language(configuration(data={"text": str(tmp_path / "text")}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_encoded_text_is_used_again_until_it_is_damaged_or_of_another_text(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b c d\n" * 29 + "e f\n", encoding="utf-8")
    settings: dict[str, Any] = {"data": {"text": str(tmp_path / "text")}, "training": {"max_updates": 1}}
    config = configuration(kind="word", **settings)
    weights = train_language(config, tmp_path / "run").weights_sha256
    ids = tmp_path / "run" / "tokens" / "train.ids"
    made, content = ids.stat().st_ino, ids.read_bytes()
    assert train_language(config, tmp_path / "run").weights_sha256 == weights
    assert ids.stat().st_ino == made
    ids.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    assert train_language(config, tmp_path / "run").weights_sha256 == weights
    assert ids.read_bytes() == content
    (tmp_path / "text").write_text("a b d c\n" * 29 + "e f\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="the text file has other content"):
        train_language(config, tmp_path / "run")


def test_the_vocabulary_is_made_of_a_sample_of_the_training_lines(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("".join(f"w{number}\n" for number in range(400)), encoding="utf-8")
    settings: dict[str, Any] = {"data": {"text": str(tmp_path / "text"), "valid_size": 40}, "training": {"max_updates": 1}}
    train_language(configuration(kind="word", vocabulary={"sample": 90, "size": 1000}, **settings), tmp_path / "run")
    vocabulary = open_language_run(tmp_path / "run").vocabulary
    taken = [int(word[1:]) for word in vocabulary.pieces(range(4, len(vocabulary)))]
    assert len(taken) == 90
    assert max(taken) < 360
    assert [sum(start <= number < start + 120 for number in taken) > 10 for start in (0, 120, 240)] == [True] * 3


def test_a_missing_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="--text FILE"):
        train_language(LanguageConfig(), tmp_path / "run")
    with pytest.raises(DataError, match="nowhere: no such file"):
        train_language(configuration(data={"text": "nowhere"}), tmp_path / "run")


def test_a_changed_text_is_noticed_and_a_moved_one_is_not(tmp_path: Path) -> None:
    training = {"max_updates": 2}
    run(tmp_path, training=training)
    moved = write_text(tmp_path / "moved")
    run(tmp_path, data=moved, training=training)
    (tmp_path / "moved" / "text").write_text("etwas anderes\n" * 9, encoding="utf-8")
    with pytest.raises(ConfigError, match="the text file has other content"):
        run(tmp_path, data=moved, training=training)


def test_a_run_of_another_task_is_named(run_folder: Path) -> None:
    with pytest.raises(CheckpointError, match="a run of the task translation; expected a run of the task lm"):
        open_language_run(run_folder)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("lm_*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_says_how_it_is_run_and_is_as_large_as_the_others(path: Path) -> None:
    config = load_config(path, kind=LanguageConfig)
    assert path.read_text().startswith(f"# regard train lm --config configs/{path.name} ")
    assert path.stem == f"lm_{config.model.attention}"
    with torch.device("meta"):
        built = build_language_model(config.model, vocab_size=config.vocabulary.size)
    assert sum(parameter.numel() for parameter in built.parameters()) == pytest.approx(2_045_000, rel=0.005)
