"""Several runs that translate as one: the same vocabularies, any families, and a refusal that names the runs where they do not mix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.errors import CheckpointError, ConfigError
from regard.models import Ensemble
from regard.tasks import Translator, evaluate_translation
from regard.tasks.translation_run import open_ensemble
from tests.tasks.tiny import FAMILIES, TEXTS, trained


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return runs on the same text: of four families, of another kind of vocabulary, with the two vocabularies apart."""
    parts: dict[str, dict[str, Any]] = {name: {"model": FAMILIES[name]} for name in ("gru", "no attention", "lstm area", "crossed")}
    parts |= {"words": {"kind": "word"}, "apart": {"vocabulary": {"shared": False}}}
    return {name: trained(tmp_path_factory.mktemp("run"), **changes) for name, changes in parts.items()}


def test_a_run_with_itself_translates_as_alone(runs: dict[str, Path]) -> None:
    alone, twice = Translator.open(runs["crossed"]), Translator.open(runs["crossed"], runs["crossed"])
    assert isinstance(twice.run.model, Ensemble)
    assert not twice.run.model.training
    for one, other in zip(alone.translate(TEXTS, n_best=3), twice.translate(TEXTS, n_best=3), strict=True):
        assert one.texts == other.texts
        assert [found.tokens for found in one.hypotheses] == [found.tokens for found in other.hypotheses]
        assert [found.score for found in one.hypotheses] == pytest.approx([found.score for found in other.hypotheses], abs=1e-5)


def test_several_families_translate_as_one_whatever_the_batch(runs: dict[str, Path]) -> None:
    subject = Translator.open(runs["gru"], runs["lstm area"], runs["crossed"])
    lines = [*TEXTS, "", "Hund"]
    together = subject.translate(lines)
    assert [item.text for item in together] == [subject.translate([line])[0].text for line in lines]
    assert together[5].text == ""
    item = subject.translate(["ein Hund"], need_attention=True)[0]
    attention = item.hypotheses[0].attention
    assert attention is not None
    assert attention.sum(1).tolist() == pytest.approx([1.0] * len(attention), abs=1e-5)
    assert subject.align("ein Hund", "Haus") is not None


def test_an_ensemble_is_measured_like_a_run(runs: dict[str, Path]) -> None:
    pairs = [(text, text[::-1]) for text in TEXTS]
    both = evaluate_translation(Translator.open(runs["gru"], runs["crossed"]), pairs)
    each = [evaluate_translation(Translator.open(runs[name]), pairs) for name in ("gru", "crossed")]
    losses = [next(score.value for score in found.scores if score.name == "perplexity") for found in (both, *each)]
    assert losses[0] < max(losses[1:])  # the mean of two is never as bad as the worse of them
    same = evaluate_translation(Translator.open(runs["gru"], runs["gru"]), pairs)
    assert [score.value for score in same.scores] == pytest.approx([score.value for score in each[0].scores], rel=1e-5)


def test_sources_are_cut_to_what_every_run_can_read(runs: dict[str, Path], tmp_path: Path) -> None:
    shorter = trained(tmp_path, training={"max_updates": 1}, data={"max_length": 31})
    found = [open_ensemble(folders).config.data.max_length for folders in ([runs["gru"], shorter], [shorter, runs["gru"]], [runs["gru"]])]
    assert found == [31, 31, 37]


def test_what_needs_attention_is_refused_where_one_model_has_none(runs: dict[str, Path]) -> None:
    subject = Translator.open(runs["gru"], runs["no attention"])
    with pytest.raises(ConfigError, match="coverage_penalty: this model has no attention"):
        subject.translate(TEXTS, decoding=subject.run.config.decoding.model_copy(update={"coverage_penalty": 0.2}))
    assert subject.translate(["Hund"], need_attention=True)[0].hypotheses[0].attention is None
    assert subject.align("ein Hund", "Haus") is None


def test_runs_with_other_vocabularies_are_named(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "cyrillic").write_text("слово\n" * 20)
    other = trained(tmp_path, vocabulary={"shared": False}, data={"target": str(tmp_path / "cyrillic")})
    for first, second, side in (("gru", runs["words"], "source"), ("words", runs["gru"], "source"), ("apart", other, "target")):
        with pytest.raises(ConfigError) as refused:
            open_ensemble([runs[first], runs[first], second])
        assert str(refused.value).startswith(f"{second}: its {side} vocabulary differs from that of {runs[first]}")


def test_it_is_what_vocabularies_hold_that_counts(runs: dict[str, Path]) -> None:
    # A vocabulary for both sides, and two that happen to be the same.
    model = open_ensemble([runs["gru"], runs["apart"]]).model
    assert isinstance(model, Ensemble)
    assert len(model.models) == 2


def test_a_folder_that_is_no_run_is_named(runs: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such run folder"):
        Translator.open(runs["gru"], "nowhere")
