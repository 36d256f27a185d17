"""Scores of methods and alternatives in the records that a run shows, for every task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.commands.explain import METHOD_NAMES
from regard.errors import ConfigError
from regard.explanations import METHODS, LanguageBatch, explain
from regard.tasks import attention_records
from regard.tasks.attention_records import translation_records
from regard.tasks.explained_examples import ExplainedExample, batches_of_run, describe_example, explain_batches
from regard.tasks.explained_records import ALTERNATIVES
from regard.tasks.language_prediction import LanguageModel
from regard.tasks.method_faithfulness import measure_methods
from regard.viewer import AttentionRecord
from tests.tasks import tiny_captions, tiny_language, tiny_sentences
from tests.tasks.tiny import FAMILIES, translator


def _methods(record: AttentionRecord) -> dict[str, Any]:
    return {found.name: found for found in record.maps if found.method}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = translator(model=FAMILIES["area"])
    monkeypatch.setattr(attention_records.Translator, "open", lambda folder: found)
    return found


def test_translations_have_the_scores_of_every_method_that_is_defined(opened: Any) -> None:
    (record,) = translation_records("run", ["ein Hund"], methods=["all"])
    found = _methods(record)
    assert list(found) == [name for name in METHODS if name != "weights"]
    size = (len(record.items["target"]), len(record.items["source"]))
    assert {each.weights.shape for each in found.values()} == {(1, *size)}
    assert found["leave-one-out"].weights[0, :, -1].tolist() == [0.0] * size[0], "the end of the source is no input"
    assert found["alti"].weights.min() >= 0
    assert found["leave-one-out"].weights.min() < 0


def test_a_method_of_a_given_translation_is_that_of_its_tokens(opened: Any) -> None:
    (record,) = translation_records("run", ["ein Hund"], target="Hund", methods=["leave-one-out", "alti", "leave-one-out"])
    assert list(_methods(record)) == ["leave-one-out", "alti"]
    run = opened.run
    target = run.vocabularies.target.encode("Hund").ids

    def log_probs(source: list[int]) -> torch.Tensor:
        given = torch.tensor([[2, *target]])
        with torch.inference_mode():
            readout = run.model.decode(torch.tensor([[*source, 3]]), torch.tensor([len(source) + 1]), given).readout
            return run.model.logits(readout)[0].log_softmax(-1)[range(len(target) + 1), [*target, 3]]

    ids = run.vocabularies.source.encode("ein Hund").ids
    expected = log_probs(list(ids)) - log_probs([*ids[:2], *ids[3:]])
    found = _methods(record)["leave-one-out"].weights[0, :, 2]
    assert found == pytest.approx(expected.numpy(), abs=1e-5)


def test_alternatives_are_the_most_probable_tokens_after_those_before(opened: Any) -> None:
    (record,) = translation_records("run", ["ein Hund"])
    found = record.alternatives["target"]
    assert {len(pairs) for pairs in found} == {ALTERNATIVES}
    for token, pairs, score in zip(record.target, found, record.scores["target"], strict=True):
        values = [value for _, value in pairs]
        assert values == sorted(values, reverse=True)
        assert sum(values) <= 1 + 1e-6
        if token in dict(pairs):
            assert dict(pairs)[token] == pytest.approx(np.exp(score), abs=1e-4)
    assert any(token == pairs[0][0] for token, pairs in zip(record.target, found, strict=True))


def test_an_unknown_or_undefined_method_is_refused(opened: Any, run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--method 'guess': expected all, or one of weights, rollout"):
        attention_records.attention_records(run_folder, ["ein Hund"], methods=["guess"])
    recurrent = translator()
    monkeypatch.setattr(attention_records.Translator, "open", lambda folder: recurrent)
    with pytest.raises(ConfigError, match=r"rollout: .* is no Transformer"):
        translation_records("run", ["ein Hund"], methods=["rollout"])
    (record,) = translation_records("run", ["ein Hund"], methods=["all"])
    assert "rollout" not in _methods(record)
    assert "leave-one-out" in _methods(record)


@pytest.mark.parametrize("task", ["classification", "entailment"])
def test_a_label_is_explained_by_the_words_of_each_text(tmp_path: Path, task: str) -> None:
    tiny_sentences.train(tiny_sentences.configuration(tmp_path, task=task, training={"max_updates": 2}), tmp_path / "run")
    line = "the film is a joy" if task == "classification" else "the dog sees\ta saw"
    (record,) = attention_records.attention_records(tmp_path / "run", [line], methods=["leave-one-out", "input-gradient"])
    assert record.prediction is not None
    assert record.items["label"].tokens == [record.prediction.label]
    sides = ["text"] if task == "classification" else ["premise", "hypothesis"]
    names = ["leave-one-out", "input-gradient"] if task == "classification" else [f"leave-one-out, {side}" for side in sides]
    assert set(names) <= set(_methods(record))
    for side in sides:
        maps = [found for found in record.maps if found.method and found.key == side]
        assert [found.weights.shape for found in maps] == [(1, 1, len(record.items[side]))] * 2
        assert any(np.abs(found.weights).max() > 0 for found in maps)
    assert record.main is not None
    assert not record.main.method


def test_a_line_is_explained_by_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_language.language_model(model={"attention": "plain"})
    assert isinstance(model, LanguageModel)
    monkeypatch.setattr(attention_records, "run_task", lambda folder: "lm")
    monkeypatch.setattr(attention_records, "open_language_run", lambda folder: model.run)
    monkeypatch.setattr(attention_records, "language_records", lambda folder, lines: [model.record(line) for line in lines])
    (record,) = attention_records.attention_records(tmp_path, ["ein Hund"], methods=["leave-one-out"])
    (found,) = _methods(record).values()
    assert (found.query, found.key) == ("text", "read")
    ids = [2, *model.run.vocabulary.encode("ein Hund").ids]
    batch = LanguageBatch(model.run.model, torch.tensor([ids]), torch.tensor([[*ids[1:], 3]]), torch.tensor([len(ids)]))
    assert found.weights[0] == pytest.approx(explain(batch, "leave-one-out")[0].numpy(), abs=1e-5)
    assert [len(pairs) for pairs in record.alternatives["text"]] == [ALTERNATIVES] * len(ids)


def test_a_caption_is_explained_by_cells(tmp_path: Path) -> None:
    folder = tiny_captions.trained(tmp_path)
    image = next(tmp_path.rglob("*.png"))
    (record,) = attention_records.attention_records(folder, [image], methods=["all"])
    found = _methods(record)
    assert {"leave-one-out", "integrated-gradients", "gradient-attention"} <= set(found)
    rows, columns = record.items["image"].rows, record.items["image"].columns
    assert {each.weights.shape for each in found.values()} == {(1, len(record.items["caption"]), rows * columns)}
    assert len(record.alternatives["caption"]) == len(record.items["caption"])


def test_captions_of_a_file_are_explained_by_cells_and_measured(tmp_path: Path, call: Any) -> None:
    folder = tiny_captions.trained(tmp_path, model=tiny_captions.FAMILIES["soft areas"])
    captions, _ = tiny_captions.write_set(tmp_path, "test", count=5)
    (batch,) = batches_of_run(folder, captions)
    found = explain_batches([batch], ["leave-one-out", "leave-one-area-out"]).examples
    run = batch.batch.model
    rows, columns = run.grid  # type: ignore[union-attr,misc]
    cells = rows * columns  # type: ignore[operator]
    assert [example.inputs[0] for example in found] == ["1,1"] * 5
    assert {table.shape[1] for example in found for table in example.scores.values()} == {cells}
    assert all(example.outputs[-1] == "</s>" for example in found)
    # By hand: the first cell is the mean of all.
    with torch.inference_mode():
        given = batch.batch.select(torch.tensor([3]))
        kept = torch.ones(1, cells, dtype=torch.bool)
        kept[0, 0] = False
        expected = given.log_probs() - given.keep(kept).log_probs()
    assert found[3].scores["leave-one-out"][:, 0] == pytest.approx(expected[0, : len(found[3].outputs)].numpy(), abs=1e-5)
    table = measure_methods([batch], ["weights", "leave-one-area-out"], outputs=1, samples=20)
    assert [figures.method for figures in table.methods][:2] == ["weights", "leave-one-area-out"]
    assert all(figures.comprehensiveness is not None for figures in table.methods)
    told = call("explain", folder, "--method", "weights", "--examples", captions)
    assert told.code == 0
    assert told.out.decode().splitlines()[1].startswith(f"1: image of {rows} x {columns} cells, named row,column -> ")
    assert call("explain", folder, "--method", "weights", "--examples", tmp_path / "none.tsv").code != 0


def test_pointing_counts_the_words_whose_best_cell_lies_on_what_they_name(tmp_path: Path, call: Any) -> None:
    folder = tiny_captions.trained(tmp_path)
    captions, regions = tiny_captions.write_set(tmp_path, "test", count=5)
    (batch,) = batches_of_run(folder, captions, regions=regions)
    assert len(batch.regions) == 5
    assert any(batch.regions)
    table = measure_methods([batch], ["leave-one-out", "weights"], outputs=1, samples=20)
    figures = {each.method: each.pointing for each in table.methods}
    scores = explain(batch.batch, "leave-one-out")
    hits, chance = [], []
    for number, words in enumerate(batch.regions):
        for place, cells in words.items():
            assert batch.outputs[number][place] in ("red", "blue", "green", "yellow", "circle", "square", "triangle") or cells.any()
            hits.append(bool(cells[int(scores[number, place].argmax())]))
            chance.append(cells.mean())
    assert figures["leave-one-out"] is not None
    assert figures["leave-one-out"].value == pytest.approx(np.mean(hits))
    assert figures["random order"] is not None
    assert figures["random order"].value == pytest.approx(np.mean(chance))
    assert figures["greedy leave-one-out"] is None
    told = call("explain", folder, "--method", "weights", "--faithfulness", captions, "--regions", regions).out.decode()
    assert "pointing" in told
    tiny_sentences.train(tiny_sentences.configuration(tmp_path, training={"max_updates": 2}), tmp_path / "labels")
    with pytest.raises(ConfigError, match=r"--regions: .* is a run of the task classification"):
        batches_of_run(tmp_path / "labels", captions, regions=regions)


def test_only_what_stands_before_an_output_of_a_line_is_printed() -> None:
    lines: list[str] = []
    scores = np.array([[0.0, 0.0, 0.0], [0.0, -0.5, 0.0], [0.0, -0.25, -0.75]])  # later inputs have no effect, earlier ones harm
    example = ExplainedExample(["<s>", "a", "b"], ["a", "b", "</s>"], {"leave-one-out": scores}, after_inputs=True)
    describe_example(example, lines.append)
    assert [line.partition(" <- ")[2] for line in lines] == ["no input", "a -0.5", "a -0.25, b -0.75"]


def test_the_cells_of_an_image_are_told_by_their_number() -> None:
    cells, told = ["1,1", "1,2", "2,1", "2,2"], "image of 2 x 2 cells, named row,column"
    assert ExplainedExample(cells, ["red"], {}, grid=(2, 2)).to_line() == f"1: {told} -> red"
    assert ExplainedExample(["it", *cells], ["red"], {}, start=1, grid=(2, 2)).to_line() == f"1: it | {told} -> red"
    assert ExplainedExample(["it"], ["red"], {}, start=1, grid=(2, 2)).to_line() == "1: it | -> red"  # without its image


def test_printed_tokens_show_spaces_and_no_control_character() -> None:
    lines: list[str] = []
    describe_example(ExplainedExample([" a", " b"], ["\x1b[1m"], {"weights": np.array([[0.25, 0.75]])}), lines.append)
    assert lines == ["weights: \u241b[1m <- \u2423b 0.75, \u2423a 0.25"]


def test_printed_scores_have_three_digits_and_repeated_inputs_their_place() -> None:
    lines: list[str] = []
    scores = {"gradient-attention": np.array([[0.0000123456, 12.3456, -0.000999, 5.0]])}
    describe_example(ExplainedExample(["the", "dog", "the", "cat"], ["Hund"], scores), lines.append)
    assert lines == ["gradient-attention: Hund <- dog 12.3, cat 5, the #1 1.23e-05"]


def test_the_help_names_every_method() -> None:
    assert tuple(METHODS) == METHOD_NAMES


def test_a_bar_stands_between_premise_and_hypothesis(tmp_path: Path) -> None:
    tiny_sentences.train(tiny_sentences.configuration(tmp_path, task="entailment", training={"max_updates": 2}), tmp_path / "run")
    found = explain_batches(batches_of_run(tmp_path / "run", tmp_path / "train.tsv"), ["leave-one-out"]).examples[0]
    assert found.start is not None
    first, bar, last = found.to_line().partition(" | ")
    assert (len(first.split()) - 1, bar) == (found.start, " | ")
    assert len(last.partition(" -> ")[0].split()) == len(found.inputs) - found.start > 0
