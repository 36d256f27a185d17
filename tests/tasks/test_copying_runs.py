"""Runs that copy: unknown words keep their text from the line to the translation, the record and the scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import DecodingConfig, load_config
from regard.data.text_encoder import TextEncoder
from regard.data.vocabulary import NAMES, UNK, Vocabulary, has_unknown
from regard.decoding import SamplingOptions
from regard.errors import ConfigError
from regard.tasks import Translator, train_translation
from regard.tasks.forced_text import Glossary, Term
from regard.tasks.pair_scores import score_pairs
from regard.tasks.translation_run import open_ensemble, open_translation_run

SIZES = ["model.embed_dim=8", "model.encoder_dim=8", "model.decoder_dim=16", "model.readout_dim=8", "model.attention.attention_dim=8"]
LINES = ["call Zoe from Max now", "Zoe saw Zoe", ""]


def settings(folder: Path, kind: str, *more: str) -> Any:
    words = [f"name{number}" for number in range(90)]
    lines = [(f"call {a} from {b} now", f"jetzt {b} ruft {a} an") for a, b in zip(words, reversed(words), strict=True)]
    for side, name in enumerate(("source", "target")):
        (folder / name).write_text("".join(line[side] + "\n" for line in lines), encoding="utf-8")
    files = [f"data.source={folder}/source", f"data.target={folder}/target", f"vocabulary.kind={kind}", "vocabulary.size=300"]
    files += ["vocabulary.min_count=2", "training.max_updates=2", "training.workers=1", "data.valid_size=9", "model.copy_attention=true"]
    return load_config(None, [*files, *SIZES, *more])


def trained(folder: Path, kind: str = "word", *more: str) -> Path:
    train_translation(settings(folder, kind, *more), folder / "run")
    return folder / "run"


def always_copying(run: Path) -> Translator:
    translator = Translator(open_translation_run(run))
    with torch.no_grad():
        translator.run.model.gate.bias.fill_(-30.0)
    return translator


def test_copied_words_are_in_the_text_the_record_and_the_hypotheses(tmp_path):
    translator = always_copying(trained(tmp_path))
    for sampling in (None, SamplingOptions(num_samples=2)):
        found = translator.translate(LINES, n_best=2, sampling=sampling, need_attention=True, decoding=DecodingConfig(min_length=3))
        assert found[2].text == ""
        for line, item in zip(LINES[:2], found, strict=False):
            assert item.text
            assert set(item.text.split()) <= set(line.split())
            record = translator.record(line, item)
            assert set(record.items["target"].tokens) <= {*line.split(), "</s>"}
            assert {"Zoe", "Max"} & {name for step in record.alternatives["target"] for name, _ in step} if line == LINES[0] else True
    greedy = translator.translate(LINES, decoding=DecodingConfig(beam_size=1))
    assert [item.source.ids[1] >= NAMES for item in greedy[:1]] == [True]
    assert all(token < 2 * NAMES for item in greedy for one in item.hypotheses for token in one.tokens)


def test_prefixes_and_terms_of_known_words_are_kept_and_unknown_ones_are_reported(tmp_path):
    translator = always_copying(trained(tmp_path))
    found = translator.translate(LINES[:1], prefixes=["now"], terms=Glossary([Term("Zoe", "call"), Term("Max", "Moritz")]))[0]
    assert found.text.split()[0] == "now"
    assert "call" in found.text.split()
    assert found.unplaced == ["Moritz"]


def test_pairs_with_unknown_words_are_scored_and_aligned(tmp_path):
    run = trained(tmp_path)
    copied, missing = score_pairs(open_translation_run(run), [(LINES[0], "jetzt Max"), (LINES[0], "jetzt Moritz")])
    assert copied.log_probs[1] != missing.log_probs[1]
    assert copied.total > -50
    record = Translator(open_translation_run(run)).align_layers(LINES[0], "jetzt Max")
    assert record.items["target"].tokens == ["jetzt", "Max", "</s>"]


def test_runs_that_copy_decode_together(tmp_path):
    run = trained(tmp_path)
    both = Translator(open_ensemble([run, run]))
    assert [item.text for item in both.translate(LINES)] == [item.text for item in Translator(open_translation_run(run)).translate(LINES)]


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_sub_words_and_characters_are_copied_too(tmp_path, kind):
    translator = always_copying(trained(tmp_path, kind))
    found = translator.translate(["call Zoë ☃ now"], decoding=DecodingConfig(min_length=5))[0]
    assert found.text
    assert set(found.text) <= set("call Zoë ☃ now" + "\ufffd")


def test_separate_vocabularies_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"model\.copy_attention: needs vocabulary\.shared true"):
        trained(tmp_path, "word", "vocabulary.shared=false")


def test_an_unknown_word_has_one_id_wherever_it_stands():
    vocabulary = Vocabulary.train(["ein Hund", "ein Haus"], kind="word", size=20)
    vocabulary.names_unknown = True
    ids = vocabulary.encode("ein Wal ein Zoo Wal").ids
    assert ids[1] == ids[4] != ids[3] >= NAMES
    rows = TextEncoder(vocabulary).encode(["Wal ein", "Wal  Zoo", "Zoo"])
    assert [row.tolist() for row in rows] == [[ids[1], ids[0]], [ids[1], ids[3]], [ids[3]]]
    words = vocabulary.encode("Wal ein").words()
    assert vocabulary.decode([ids[1], ids[0], UNK, ids[3]], words) == "Wal ein <unk> <unk>"
    assert vocabulary.pieces([ids[1], ids[3]], words) == ["Wal", "<unk>"]
    assert has_unknown(ids)
    assert not has_unknown([4, 5])
    assert vocabulary.unknown_rate(["ein Wal", "Hund Zoo"]) == 0.5
