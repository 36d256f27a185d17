"""Methods measured on runs: figures with intervals, known links, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import ConfigError, DataError
from regard.explanations import explain
from regard.metrics import alignment_error_rate
from regard.progress import listening
from regard.tasks.explained_examples import batches_of_run, batches_of_texts, explain_batches, links_of_scores, translation_batches
from regard.tasks.method_faithfulness import describe_table, measure_methods
from regard.tasks.translation_evaluation import KnownLinks
from regard.tasks.word_links import find_links
from tests.tasks import tiny_language, tiny_sentences
from tests.tasks.tiny import FAMILIES, TEXTS, trained, translator

PAIRS = [(text, " ".join(reversed(text.split()))) for text in TEXTS]


def links_of_words(pairs: list[tuple[str, str]]) -> KnownLinks:
    """Return links of texts that are written backwards, word by word."""
    known = [{(place, len(source.split()) - 1 - place) for place in range(len(source.split()))} for source, _ in pairs]
    return KnownLinks([set() for _ in known], known, "word")


def test_links_of_leave_one_out_are_those_of_word_links() -> None:
    run = translator("bpe", model=FAMILIES["gru"]).run
    (item,) = translation_batches(run, PAIRS)
    scores = explain(item.batch, "leave-one-out").double().numpy()
    assert links_of_scores(item, scores, "word") == find_links(run, PAIRS, method="leave-one-out")


def test_methods_have_figures_with_intervals_and_reasons() -> None:
    run = translator("word", model=FAMILIES["area"]).run
    batches, known = translation_batches(run, PAIRS), links_of_words(PAIRS)
    table = measure_methods(batches, ["weights", "alti", "leave-one-area-out"], links=known, outputs=2, samples=50)
    found = {figures.method: figures for figures in table.methods}
    assert list(found) == ["weights", "alti", "leave-one-area-out", "random order", "greedy leave-one-out"]
    assert table.examples == len(PAIRS)
    (item,) = batches
    for name in ("weights", "alti"):
        figures = found[name]
        assert figures.comprehensiveness is not None
        assert figures.comprehensiveness.low <= figures.comprehensiveness.value <= figures.comprehensiveness.high
        scores = explain(item.batch, name).double().numpy()  # type: ignore[arg-type]
        expected = alignment_error_rate(links_of_scores(item, scores, "word"), known.sure, known.possible)
        assert figures.alignment_error is not None
        assert figures.alignment_error.value == pytest.approx(expected.value)
    assert found["random order"].alignment_error is None
    assert found["greedy leave-one-out"].comprehensiveness is not None
    lines: list[str] = []
    describe_table(table, lines.append)
    assert len(lines) == 12, "a heading, a table of five methods with its columns, an empty line, and a table of the agreement of three"
    assert lines[1].split("  ")[0] == "method"
    for column, name in (("comprehensiveness", "comprehensiveness"), ("alignment error, %", "alignment_error")):
        start = lines[1].index(column)
        for line, figures in zip(lines[2:7], table.methods, strict=True):
            value = getattr(figures, name)
            digits = 2 if name == "alignment_error" else 3
            cell = "" if value is None else f"{value.value:.{digits}f} [{value.low:.{digits}f}, {value.high:.{digits}f}]"
            assert line[start:].startswith(cell or " ")
    assert "pointing" not in lines[1], "no region is known"
    alti, weights = (explain(item.batch, name).double() for name in ("alti", "weights"))  # type: ignore[arg-type]
    assert alti.shape == weights.shape
    assert table.agreement["alti"]["weights"] == table.agreement["weights"]["alti"]
    assert set(table.agreement["alti"]) == {"weights", "leave-one-area-out"}
    assert lines[-3].split() == ["1", "weights", *(f"{table.agreement['weights'][name]:.2f}" for name in ("alti", "leave-one-area-out"))]
    assert lines[-1].split()[:2] == ["3", "leave-one-area-out"]
    json.dumps(table.to_json())


def test_a_method_that_is_not_defined_says_why() -> None:
    run = translator("word", model=FAMILIES["gru"]).run
    table = measure_methods(translation_batches(run, PAIRS), ["rollout"], samples=5)
    assert table.methods[0].refused is not None
    assert "is no Transformer" in table.methods[0].refused
    with pytest.raises(ConfigError, match="is no Transformer"):
        explain_batches(translation_batches(run, PAIRS), ["rollout"])


@pytest.mark.parametrize(("unit", "error"), [("word", 100.0), ("character", None)])
def test_a_word_without_known_links_counts_and_a_character_does_not(unit: Any, error: float | None) -> None:
    run = translator("word", model=FAMILIES["gru"]).run
    batches = translation_batches(run, PAIRS)
    none: list[Any] = [set() for _ in PAIRS]
    (figures, *_) = measure_methods(batches, ["weights"], links=KnownLinks(none, none, unit)).methods
    assert (figures.alignment_error and figures.alignment_error.value) == error


@pytest.mark.parametrize("kind", ["classification", "lm"])
def test_an_example_without_text_is_reported_and_the_others_keep_their_numbers(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"some.{'txt' if kind == 'lm' else 'tsv'}"
    file.write_text("ein Hund\n\nder Hund sieht\n" if kind == "lm" else "good\tthe joy of it\ngood\t\ngood\tof it\n", encoding="utf-8")
    if kind == "lm":
        tiny_language.run(tmp_path, training={"max_updates": 2})
    else:
        tiny_sentences.train(tiny_sentences.configuration(tmp_path, training={"max_updates": 2}), tmp_path / "run")
    told: list[str] = []
    with listening(lambda event: told.append(event.text)):
        found = explain_batches(batches_of_run(tmp_path / "run", file), ["leave-one-out"]).examples
    assert [(example.number, example.to_json()["number"]) for example in found] == [(1, 1), (3, 3)]
    assert "1 example without text left out, the first is number 2" in told


@pytest.mark.parametrize("measure", [explain_batches, measure_methods])
@pytest.mark.parametrize("method", ["weights", "leave-one-out", "input-gradient"])
def test_scores_of_a_model_whose_training_diverged_are_refused(measure: Any, method: str) -> None:
    run = translator("word", model=FAMILIES["gru"]).run
    with torch.no_grad():
        run.model.source_embedding.weight[run.vocabularies.source.encode("sieht").ids[0]] = torch.nan
    with pytest.raises(DataError, match=f"{method}: NaN or infinite scores in example 2; the training of this model diverged"):
        measure(translation_batches(run, PAIRS), [method])


def test_a_pair_that_is_cut_is_reported() -> None:
    run = translator("word", model=FAMILIES["gru"]).run  # of up to 23 tokens
    told: list[str] = []
    with listening(lambda event: told.append(event.text)):
        (batch,) = translation_batches(run, [*PAIRS[:2], ("ein " * 24, "ein Hund"), ("ein", "Hund " * 24)])
    assert told == ["2 examples cut to data.max_length, 23 tokens"]
    assert [len(tokens) for tokens in batch.inputs][2:] == [23, 1]


def test_links_need_sentence_pairs(tmp_path: Path) -> None:
    tiny_language.run(tmp_path, training={"max_updates": 2})
    (tmp_path / "some.txt").write_text("ein Hund bellt\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="links: only for a translation run, which has sentence pairs"):
        measure_methods(batches_of_run(tmp_path / "run", tmp_path / "some.txt"), ["weights"], links=links_of_words(PAIRS[:1]))


def test_scores_of_an_example_have_a_column_for_each_token() -> None:
    run = translator("word", model=FAMILIES["transformer"]).run
    found = explain_batches(translation_batches(run, PAIRS), ["weights", "rollout"]).examples
    for example, (source, target) in zip(found, PAIRS, strict=True):
        assert example.inputs == source.split()
        assert len(example.outputs) == len(target.split()) + 1
        assert example.scores["rollout"].shape == (len(example.outputs), len(example.inputs))


def test_measuring_leaves_the_model_as_it_was() -> None:
    run = translator("word", model=FAMILIES["gru"]).run
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    measure_methods(translation_batches(run, PAIRS), samples=5)
    assert all(torch.equal(value, before[name]) for name, value in run.model.state_dict().items())
    assert not any("forward" in module.__dict__ for module in run.model.modules())


def test_what_cannot_be_measured_is_refused() -> None:
    run = translator("word", model=FAMILIES["gru"]).run
    batches = translation_batches(run, PAIRS)
    with pytest.raises(DataError, match="links: 1 line, but 5 sentence pairs"):
        measure_methods(batches, links=links_of_words(PAIRS[:1]))
    far = links_of_words(PAIRS)
    far.possible[2] = {*far.possible[2], (1, 17)}
    with pytest.raises(DataError, match=r"links, line 3: 17-1, but the source has \d words, numbered from 0"):
        measure_methods(batches, ["weights"], links=far)
    with pytest.raises(DataError, match=r"known\.links, line 3: 17-1, .*; for characters: link_unit: character"):
        measure_methods(batches, ["weights"], links=far._replace(name="known.links", setting="link_unit: "))
    with pytest.raises(DataError, match=r"known\.links: 1 line, but 5 sentence pairs"):
        measure_methods(batches, links=links_of_words(PAIRS[:1])._replace(name="known.links"))
    with pytest.raises(DataError, match="no example with an output of two inputs or more"):
        measure_methods(translation_batches(run, [("ein", "ein")]))
    with pytest.raises(ConfigError, match="outputs 0 and samples 1000 must be 1 or more"):
        measure_methods(batches, outputs=0)


@pytest.mark.parametrize("kind", ["translation", "classification", "lm"])
def test_runs_of_each_task_are_explained(kind: str, tmp_path: Path, run_folder: Path) -> None:
    folder, path = tmp_path / "run", tmp_path / ("examples.tsv" if kind == "classification" else "examples.txt")
    match kind:
        case "translation":
            folder = run_folder
            path.write_text("ein Hund bellt\nein Haus\n")
        case "classification":
            tiny_sentences.train(tiny_sentences.configuration(tmp_path, training={"max_updates": 2}), folder)
            path.write_text("good\tthe joy of it\n")
        case "lm":
            tiny_language.run(tmp_path, training={"max_updates": 2})
            path.write_text("ein Hund bellt\n\n")
    batches = batches_of_run(folder, path)
    texts = [line.rpartition("\t")[2] for line in path.read_text().splitlines() if line]
    given = explain_batches(batches_of_texts(folder, texts), ["leave-one-out"]).examples
    for example, other in zip(explain_batches(batches, ["leave-one-out"]).examples, given, strict=True):
        assert (example.inputs, example.outputs) == (other.inputs, other.outputs)
        np.testing.assert_array_equal(example.scores["leave-one-out"], other.scores["leave-one-out"])
    for example in explain_batches(batches, ["leave-one-out", "input-gradient"]).examples:
        table = example.scores["leave-one-out"]
        assert table.shape == (len(example.outputs), len(example.inputs))
        assert np.isfinite(table).all()
    figures = measure_methods(batches, ["leave-one-out"], samples=5).methods[0]
    assert figures.comprehensiveness is not None


def test_a_method_agrees_with_itself_and_not_with_its_opposite(monkeypatch: pytest.MonkeyPatch) -> None:
    run = translator("word", model=FAMILIES["area"]).run
    batches = translation_batches(run, PAIRS)
    scores = explain(batches[0].batch, "alti")
    given = {"alti": scores, "weights": 2 * scores, "value-norms": -scores}
    for name in ("method_faithfulness", "explained_examples"):
        monkeypatch.setattr(f"regard.tasks.{name}.explain", lambda batch, name: given[name])
    table = measure_methods(batches, ["alti", "weights", "value-norms"], outputs=2, samples=20)
    assert table.agreement["alti"] == pytest.approx({"weights": 1.0, "value-norms": -1.0})
    assert json.loads(json.dumps(table.to_json()))["agreement"]["alti"]["weights"] == pytest.approx(1.0)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_text_is_named(tmp_path: Path, text: str) -> None:
    run = trained(tmp_path / "run", kind="word")
    source = tmp_path / "some.source"
    source.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"some\.source: nothing to explain, there is no example with text"):
        batches_of_run(run, source)
