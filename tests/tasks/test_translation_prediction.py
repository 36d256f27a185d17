"""Using a run: a line for a line whatever it holds, and a translation that depends on its line alone."""

from __future__ import annotations

import gc
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.config import DecodingConfig
from regard.data import BOS, EOS, PAD, UNK, collate
from regard.decoding import DecodingOptions, SamplingOptions, beam_search
from regard.errors import ConfigError, RegardError
from regard.tasks import Translation, Translator, open_translation_run
from tests.tasks.tiny import FAMILIES, KINDS, TEXTS, translator

# Each breaks some reader's idea of a line. The rest of them is tested through the command line.
NASTY = [
    "",
    "  ",
    "\t",
    "a\0b",
    "a\rb",
    "a\x0b\x0cb",
    "a\x1cb\x1d\x1e",
    "a\x85b",
    "a\u2028b\u2029",
    "a\ufffd\ufffdb",
    "\ud800",
    "e\u0301 \u00e9",
]
LINES = [*TEXTS, "Hund", "ein ein ein Haus ?", "", "Haus Hund bellt"]
WAYS: dict[str, dict[str, Any]] = {
    "beam_size": {},
    "greedy": {"decoding": DecodingConfig(beam_size=1, max_length=13)},
    "n best": {"n_best": 3},
    "drawn": {"sampling": SamplingOptions(num_samples=2)},
}


LATER = [name for name in FAMILIES if name != "gru"]


def outcome(item: Translation) -> list[tuple[list[int], str]]:
    return [(hypothesis.tokens, text) for hypothesis, text in zip(item.hypotheses, item.texts, strict=True)]


def test_the_collector_pauses_while_lines_are_translated_and_goes_on_after() -> None:
    tool, seen = translator(), list[bool]()
    watched = Translator(tool.run, poll=lambda: seen.append(gc.isenabled()))
    assert gc.isenabled()
    watched.translate(TEXTS)
    assert gc.isenabled()
    gc.disable()
    try:
        watched.translate(TEXTS)
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert set(seen) == {False}


@pytest.mark.parametrize(
    ("kind", "way", "family"),
    [*((kind, way, "gru") for kind in KINDS for way in WAYS), *(("character", way, family) for way in WAYS for family in LATER)],
)
def test_every_text_is_one_line_for_every_reader(kind: str, way: str, family: str) -> None:
    items = translator(kind, model=FAMILIES[family]).translate(NASTY, **WAYS[way])
    texts = [text for item in items for text in [item.text, *item.texts]]
    assert len(items) == len(NASTY)
    assert len(texts) >= len(NASTY)
    assert [text for text in texts if len(text.splitlines()) > 1 or "\0" in text] == []


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_a_blank_line_gives_an_empty_one(way: str, family: str) -> None:
    items = translator(model=FAMILIES[family]).translate(["", "Hund", " \t "], **WAYS[way])
    assert [item.text == "" and not item.hypotheses for item in items] == [True, False, True]


@pytest.mark.parametrize(
    ("kind", "way", "family"),
    [
        *(("word", way, "gru") for way in ("beam_size", "greedy", "n best")),
        *(("character", way, family) for way in ("beam_size", "greedy") for family in FAMILIES),
        *(pytest.param("character", "n best", family, marks=pytest.mark.slow) for family in FAMILIES),
    ],
)
def test_neither_the_batch_nor_the_order_changes_a_translation(kind: str, way: str, family: str) -> None:
    subject, generator = translator(kind, model=FAMILIES[family]), random.Random(5)
    alone = {line: outcome(subject.translate([line], **WAYS[way])[0]) for line in LINES}
    assert len({str(found) for found in alone.values()}) > 4  # else the comparison below says nothing
    for _ in range(5):
        lines = generator.choices(LINES, k=generator.randint(1, 11))
        decoding = WAYS[way].get("decoding", subject.run.config.decoding).model_copy(update={"batch_size": generator.randint(1, 7)})
        items = subject.translate(lines, **{**WAYS[way], "decoding": decoding})
        assert [outcome(item) for item in items] == [alone[line] for line in lines]


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_drawn_for_a_line_depends_on_the_seed_and_its_number_alone(family: str) -> None:
    subject = translator(model=FAMILIES[family])

    def draw(lines: list[str], batch_size: int, seed: int = 7) -> list[str]:
        torch.manual_seed(seed)
        decoding = DecodingConfig(max_length=13, batch_size=batch_size)
        return [item.text for item in subject.translate(lines, decoding=decoding, sampling=SamplingOptions())]

    drawn = draw(LINES, batch_size=64)
    assert draw(LINES, batch_size=2) == drawn
    assert draw([LINES[0], "Haus", *LINES[2:]], batch_size=3)[2:] == drawn[2:]
    assert draw(LINES, batch_size=64, seed=8) != drawn


@pytest.mark.parametrize("family", FAMILIES)
def test_a_beam_of_one_is_greedy_search(family: str) -> None:
    subject = translator(model=FAMILIES[family])
    model, vocabulary = subject.run.model, subject.run.vocabularies.source
    sources = [vocabulary.encode(line).ids for line in TEXTS]
    batch = collate(sources, [[] for _ in sources], range(len(sources)))
    options = DecodingOptions(bos=BOS, eos=EOS, pad=PAD, beam_size=1, max_length=13, banned=(PAD, BOS))
    with torch.inference_mode():
        found = beam_search(model.step, model.start(batch.source, batch.source_lengths), batch_size=len(sources), options=options)
    greedy = subject.translate(TEXTS, decoding=DecodingConfig(beam_size=1, max_length=13))
    assert [item.hypotheses[0].tokens for item in greedy] == [hypotheses[0].tokens for hypotheses in found]


def test_the_n_best_are_sorted_and_distinct_and_begin_with_the_best() -> None:
    subject = translator()
    best = subject.translate(TEXTS)
    for item, one in zip(subject.translate(TEXTS, n_best=3), best, strict=True):
        scores = [hypothesis.score for hypothesis in item.hypotheses]
        assert len(scores) == 3
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.tokens) for hypothesis in item.hypotheses}) == 3
        assert item.text == item.texts[0] == one.text


def test_more_hypotheses_than_the_beam_are_found_by_a_wider_one() -> None:
    assert len(translator().translate(["Hund"], n_best=5)[0].texts) == 5


def test_an_unknown_word_becomes_the_source_word_attended_to_most() -> None:
    subject = translator("word")
    with torch.no_grad():
        subject.run.model.output.bias[UNK] += 100.0  # nothing but unknown words
    line = "der Hund\x1cx zebra"
    plain = subject.translate([line], need_attention=True)[0]
    looked = plain.hypotheses[0].attention[: len(plain.hypotheses[0].tokens), :3].argmax(-1).tolist()
    replacing = subject.run.config.decoding.model_copy(update={"replace_unknown": True})
    assert set(plain.text.split()) == {"<unk>"}
    assert subject.translate([line], decoding=replacing)[0].text == " ".join(["der", "Hund x", "zebra"][at] for at in looked)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_translation_begins_with_what_it_is_told_to(beam_size: int) -> None:
    subject = translator()
    decoding = DecodingConfig(beam_size=beam_size, max_length=5)
    forced = subject.translate(["ein Hund", "Haus", "Hund"], decoding=decoding, prefixes=["der", "", "der Hund bellt "])
    assert [item.text[: len(prefix)] for item, prefix in zip(forced, ["der", "", "der Hund bellt"], strict=True)] == [
        "der",
        "",
        "der Hund bellt",
    ]
    assert forced[1].text == subject.translate(["Haus"], decoding=decoding)[0].text
    assert len(forced[2].hypotheses[0].tokens) > len("der Hund bellt ")  # room for more than what is forced


@pytest.mark.parametrize(
    ("parts", "setting", "message"),
    [
        ({"kind": "bpe"}, {"replace_unknown": True}, "needs vocabulary.kind word, this run has bpe"),
        ({"kind": "word", "model": {"attention": None}}, {"replace_unknown": True}, "no attention to tell which"),
        ({"model": {"attention": None}}, {"coverage_penalty": 0.2}, "coverage_penalty: this model has no attention"),
    ],
)
def test_decoding_that_does_not_fit_the_run_is_refused(parts: dict[str, Any], setting: dict[str, Any], message: str) -> None:
    subject = translator(**parts)
    with pytest.raises(ConfigError, match=message):
        subject.translate([], decoding=subject.run.config.decoding.model_copy(update=setting))


def test_each_batch_is_announced_so_that_a_signal_can_end_it() -> None:
    calls = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    subject = Translator(translator().run, poll=poll)
    with pytest.raises(KeyboardInterrupt):
        subject.translate(TEXTS, decoding=DecodingConfig(batch_size=1, max_length=2))
    assert len(calls) == 3


def test_the_record_of_a_translation_has_a_row_for_each_token_and_a_column_for_each_source_token() -> None:
    subject = translator()
    line = "ein Hund"
    item = subject.translate([line, "ein viel laengeres Haus"], need_attention=True)[0]
    record = subject.record(line, item)
    assert record is not None
    assert record.source == [*line, "</s>"]
    assert (record.source_text, record.target_text) == (line, item.text)
    assert record.weights.shape == (len(item.hypotheses[0].tokens), len(line) + 1)
    assert record.weights.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert record.scores["target"] == pytest.approx(item.hypotheses[0].log_probs)
    assert subject.record("", subject.translate([""])[0]) is None
    assert subject.record(line, subject.translate([line])[0]) is None


@pytest.mark.parametrize(("rank", "message"), [(2, "expected 0 to 1, found 2"), (-1, "expected a whole number of 0 or more, found -1")])
def test_a_rank_without_a_hypothesis_is_refused(rank: int, message: str) -> None:
    subject = translator()
    item = subject.translate(["ein Hund"], n_best=2, need_attention=True)[0]
    assert subject.record("ein Hund", item, rank=1) is not None
    with pytest.raises(RegardError, match=f"record: rank: {message}"):
        subject.record("ein Hund", item, rank)


def test_a_given_translation_is_aligned_as_if_the_model_had_written_it() -> None:
    subject = translator()
    item = subject.translate(["ein Hund"], need_attention=True)[0]
    found, own = subject.align("ein Hund", item.text), subject.record("ein Hund", item)
    assert found is not None
    assert own is not None
    rows = min(len(own.target), len(found.target))
    assert found.weights[:rows] == pytest.approx(own.weights[:rows], abs=1e-5)


def test_what_is_too_long_to_read_is_cut_before_it_is_aligned() -> None:
    record = translator().align("Hund" * 10, "Haus" * 10)
    assert record is not None
    assert record.weights.shape == (24, 24)


def test_there_is_nothing_to_align_without_text_or_attention() -> None:
    assert translator().align("", "Hund") is None
    assert translator().align("Hund", "") is None
    assert translator(model={"attention": None}).align("Hund", "Haus") is None


def test_an_opened_run_translates_like_the_one_that_was_trained(run_folder: Path) -> None:
    first, second = Translator.open(run_folder), Translator(open_translation_run(str(run_folder)))
    assert not first.run.model.training
    assert [item.text for item in first.translate(TEXTS)] == [item.text for item in second.translate(TEXTS)]


def test_a_translation_as_json_holds_what_it_was_chosen_by() -> None:
    item = translator().translate(["Hund"], n_best=2)[0]
    values = item.to_json()
    assert values["text"] == values["hypotheses"][0]["text"] == item.text
    assert [sorted(hypothesis) for hypothesis in values["hypotheses"]] == [["log_probs", "score", "text", "token_ids"]] * 2
