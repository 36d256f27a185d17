"""Shortlists: learned from links, stored with the run, and nothing outside of them is generated."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard import ops
from regard.config import DecodingConfig
from regard.data.shortlist import Shortlist
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding import DecodingOptions, SamplingOptions, beam_search, greedy_search, sampling
from regard.errors import CheckpointError, ConfigError
from regard.models import Ensemble
from regard.ops import OutputShortlist
from regard.ops.kernels import native
from regard.tasks import Translator
from regard.tasks.forced_text import Glossary, Term
from regard.tasks.shortlist import FILE, ShortlistCounts, measure_shortlist, read_shortlist, write_shortlist
from regard.tasks.translation_run import open_translation_run
from tests.tasks.tiny import FAMILIES, TEXTS, trained, translator

DECODING = {
    "greedy": {"beam_size": 1},
    "beam": {"beam_size": 3},
    "int8": {"beam_size": 1, "precision": "int8"},
    "no repeats": {"no_repeat_ngram_size": 2},
}


def given(folder: Path, own: Translator, shortlist: Shortlist) -> Translator:
    """Return the translator of a run in this folder, with a shortlist."""
    write_shortlist(folder, shortlist)
    return Translator(own.run._replace(folder=folder))


def texts(own: Translator, *, shortlist: bool, **settings: Any) -> list[list[int]]:
    decoding = DecodingConfig(**{"max_length": 11, "beam_size": 3, **settings, "shortlist": shortlist})
    return [item.hypotheses[0].tokens for item in own.translate(TEXTS, decoding=decoding)]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", DECODING)
def test_a_shortlist_of_all_tokens_changes_nothing(tmp_path: Path, family: str, how: str) -> None:
    own = translator(model=FAMILIES[family])
    every = Shortlist(range(len(own.run.vocabularies.target)), {})
    assert texts(given(tmp_path, own, every), shortlist=True, **DECODING[how]) == texts(own, shortlist=False, **DECODING[how])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("how", DECODING)
def test_nothing_outside_is_generated(tmp_path: Path, family: str, how: str) -> None:
    own = translator(model=FAMILIES[family])
    free = texts(own, shortlist=False, **DECODING[how])
    # Without its most frequent token.
    tokens = [token for row in free for token in row if token != EOS]
    wanted = {1, 3, 5, 8, 9, 13} - {max(set(tokens), key=tokens.count)}
    found = texts(given(tmp_path, own, Shortlist(wanted, {})), shortlist=True, **DECODING[how])
    assert all(set(row) <= wanted | {1} for row in found)


@pytest.mark.skipif(native.library() is None, reason="no native library here")
@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("family", ["student", "transformer"])
def test_greedy_search_of_a_translator_stays_native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, precision: str) -> None:
    own = translator(model=FAMILIES[family])
    own = given(tmp_path, own, Shortlist(range(len(own.run.vocabularies.target)), {}))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("step by step, which is slower than without a shortlist")

    monkeypatch.setattr(sampling, "decode_stepwise", refuse)
    assert texts(own, shortlist=True, beam_size=1, precision=precision)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("family", ["student", "transformer", "area features"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_search_finds_what_it_finds_where_all_other_logits_are_masked(family: str, beam_size: int, packed: bool) -> None:
    model = translator(model=FAMILIES[family]).run.model
    source, lengths, kept = torch.tensor([[5, 7, 6, EOS], [9, 8, EOS, PAD]]), torch.tensor([4, 3]), torch.tensor([1, 2, 3, 5, 8, 9, 13])
    options = DecodingOptions(bos=BOS, eos=EOS, pad=PAD, max_length=9, beam_size=beam_size, banned=(PAD, BOS))
    search = greedy_search if beam_size == 1 else beam_search

    def masked(tokens: Tensor, state: Any) -> Any:
        logits, weights, state = model.step(tokens, state)
        return OutputShortlist(kept, None).keep(logits), weights, state

    with torch.inference_mode():
        wanted = search(masked, model.start(source, lengths), batch_size=2, options=options)
        with ops.packed_weights() if packed else nullcontext():
            shortlist = OutputShortlist.of(model.output, kept)
            assert (shortlist.plan is not None) == packed
            step, at_once = (partial(one, shortlist=shortlist) for one in (model.decoding_step, model.greedy))
            more = {"at_once": at_once} if beam_size == 1 else {}
            found = search(step, model.start(source, lengths), batch_size=2, options=options, **more)
    assert [each[0].tokens for each in found] == [each[0].tokens for each in wanted]
    assert [each[0].score for each in found] == pytest.approx([each[0].score for each in wanted], abs=1e-4)


def test_forced_words_and_samples(tmp_path: Path) -> None:
    own = given(tmp_path, translator(model=FAMILIES["student"], kind="word"), Shortlist([5, 6], {}))
    decoding = DecodingConfig(max_length=9, beam_size=4, shortlist=True)
    found = own.translate(TEXTS[:2], decoding=decoding, terms=Glossary([Term("Hund", "Häuser")]), prefixes=["sehen", "sehen"])
    assert all(item.text.startswith("sehen") and "Häuser" in item.text and not item.unplaced for item in found)
    ids = set(own.run.vocabularies.target.encode("sehen Häuser").ids)
    assert all(set(item.hypotheses[0].tokens) <= {1, 3, 5, 6} | ids for item in found)
    drawn = own.translate(TEXTS, decoding=decoding, sampling=SamplingOptions(num_samples=3))
    assert all(set(each.tokens) <= {1, 3, 5, 6} for item in drawn for each in item.hypotheses)


def test_it_is_learned_from_links_most_frequent_first(tmp_path: Path) -> None:
    run = open_translation_run(trained(tmp_path, kind="word", model=FAMILIES["gru"]))
    counts = ShortlistCounts(run)
    pairs = [("ein Hund", "Hund ein"), ("ein Hund", "bellt der"), ("ein Haus", "Hund Haus")]
    counts.add(pairs, [{(0, 1), (1, 0)}, {(0, 1)}, {(0, 1), (1, 1)}])
    number = {word: run.vocabularies.source.encode(word).ids[0] for word in ["ein", "Hund", "bellt", "der", "Haus"]}
    one, two = (counts.shortlist(candidates=most, frequent=1) for most in (1, 2))
    assert one.always == [1, 2, 3, number["Hund"]]
    assert one.tokens[number["ein"]] == [number["ein"]]
    assert two.tokens[number["Hund"]] == sorted([number["Hund"], number["bellt"]])
    assert set(one.tokens) == {number["ein"], number["Hund"], number["Haus"]}
    found = measure_shortlist(run, one, [("ein", "ein Hund der")])
    assert (found.pairs, found.tokens, found.covered) == (1, 5.0, pytest.approx(2 / 3))
    write_shortlist(run.folder, two)
    assert read_shortlist(run).tokens == two.tokens


def test_one_of_other_vocabularies_is_refused(tmp_path: Path) -> None:
    smaller, larger = (trained(tmp_path / name, kind="word", vocabulary={"size": size}) for name, size in (("smaller", 8), ("larger", 11)))
    write_shortlist(larger, ShortlistCounts(open_translation_run(smaller)).shortlist(candidates=1, frequent=1))
    with pytest.raises(CheckpointError, match=r"larger.*shortlist.json: damaged, or of another vocabulary"):
        read_shortlist(open_translation_run(larger))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b'{"format":2,"vocabularies":[],"always":[],"tokens":{}}',
        b'{"format":1,"vocabularies":[],"always":[99],"tokens":{}}',
        b'{"format":1,"vocabularies":[],"always":[],"tokens":{"4":["a"]}}',
        b'{"format":1,"vocabularies":["e3b0c442"],"always":[],"tokens":{}}',
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"shortlist.json: damaged, or of another vocabulary"):
        read_shortlist(translator().run._replace(folder=tmp_path))


def test_a_model_that_copies_learns_none() -> None:
    run = translator("word", model={**FAMILIES["gru"], "copy_attention": True}, vocabulary={"shared": True}).run
    with pytest.raises(ConfigError, match=r"shortlist: not with model\.copy_attention"):
        ShortlistCounts(run)


def test_a_run_without_one_and_an_ensemble_are_refused(tmp_path: Path) -> None:
    own = translator()
    with pytest.raises(ConfigError, match=r"has none; .*regard shortlist"):
        texts(Translator(own.run._replace(folder=tmp_path)), shortlist=True)
    both = given(tmp_path, Translator(own.run._replace(model=Ensemble([own.run.model] * 2))), Shortlist([], {}))
    with pytest.raises(ConfigError, match="not in an ensemble"):
        texts(both, shortlist=True)
