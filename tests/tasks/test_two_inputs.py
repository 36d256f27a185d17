"""Runs that read two inputs: trained from three files, resumed exactly, used line by line, alone and as an ensemble."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.config import load_config
from regard.data.parallel import join_inputs, read_pairs
from regard.errors import ConfigError, DataError
from regard.tasks import Translator, train_translation
from regard.tasks.explained_examples import batches_of_run, explain_batches
from regard.tasks.pair_scores import score_pairs
from regard.tasks.translation_evaluation import evaluate_translation
from regard.tasks.translation_run import open_translation_run
from regard.tasks.word_links import find_links, leave_one_out
from tests.tasks.tiny import ATTENTIVE, MODEL, TEXTS, configuration, trained, write_pairs

SECOND = [" ".join(word.upper() for word in text.split()[:2]) for text in TEXTS]
SERIAL: dict[str, Any] = {**ATTENTIVE, "type": "transformer", "second": {"kind": "serial"}}
CROSSED: dict[str, Any] = {**ATTENTIVE, "type": "crossed", "second": {}}
RECURRENT: dict[str, Any] = {**MODEL, "second": {"kind": "flat"}}
LINES = [join_inputs(*both) for both in zip(TEXTS, SECOND, strict=True)]


def write_second(folder: Path, *, lines: list[str] = SECOND * 4) -> dict[str, str]:
    """Write second inputs beside the files of `write_pairs`; returns their part of `data`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "second").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return {"second_source": str(folder / "second")}


def two(folder: Path, *, lines: list[str] = SECOND * 4, **parts: Any) -> Path:
    """Train a run of two inputs for two updates in `folder`/run."""
    data = {**write_second(folder, lines=lines), **parts.pop("data", {})}
    return trained(folder, data=data, **{"kind": "word", "model": SERIAL, **parts})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return two(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def optional(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = {**CROSSED, "second": {"drop": 0.3}}
    return two(tmp_path_factory.mktemp("optional"), model=model, vocabulary={"shared": False}, lines=["", *SECOND[1:]] * 4)


def test_the_files_of_a_run_are_its_own_and_each_input_may_have_its_own_vocabulary(run: Path, optional: Path) -> None:
    assert (run / "vocabulary.json").exists()
    opened = open_translation_run(optional)
    assert {path.name for path in optional.glob("*vocabulary.json")} == {
        "source.vocabulary.json",
        "second.vocabulary.json",
        "target.vocabulary.json",
    }
    words = opened.vocabularies.named
    assert words["second source"].encode("HUND").pieces != words["source"].encode("HUND").ids
    assert words["second source"].unknown_rate(SECOND) == 0
    assert words["source"].unknown_rate(SECOND[1:2]) == 1


def test_lines_are_translated_one_by_one_and_an_input_that_changes_changes_the_scores(run: Path) -> None:
    translator = Translator.open(run)
    found = translator.translate([*LINES, "", " \t "])
    assert len(found) == len(LINES) + 2
    assert [item.text for item in found[-2:]] == ["", ""]
    for line, item in zip(LINES, found, strict=False):
        alone = translator.translate([line])[0]
        assert alone.text == item.text
        assert alone.hypotheses[0].score == pytest.approx(item.hypotheses[0].score, abs=1e-4)
        assert item.source.pieces.count("</s>") == 1
    other = translator.translate([join_inputs(TEXTS[0], SECOND[1])])[0]
    assert other.hypotheses[0].score != pytest.approx(found[0].hypotheses[0].score, abs=1e-6)


def test_a_line_that_lacks_an_input_is_named(run: Path) -> None:
    translator = Translator.open(run)
    with pytest.raises(DataError, match=r"line 2: the second input is missing"):
        translator.translate([LINES[0], TEXTS[0]])
    with pytest.raises(DataError, match=r"line 1: the first input is missing"):
        translator.translate(["\t" + SECOND[0]])
    with pytest.raises(ConfigError, match="keep tags: not with a model of two inputs"):
        translator.translate_tagged(LINES[:1])


def test_a_model_that_was_trained_without_takes_either_alone(optional: Path) -> None:
    translator = Translator.open(optional)
    lines = [LINES[1], TEXTS[1], "\t" + SECOND[1]]
    scores = [item.hypotheses[0].score for item in translator.translate(lines)]
    assert len({round(score, 6) for score in scores}) == 3
    # In training the examples without a second input were taken, too.
    assert evaluate_translation(translator, [(TEXTS[1], TEXTS[2])]).outputs == [translator.translate([TEXTS[1]])[0].text]


def test_examples_that_lack_an_input_are_left_out_and_counted(tmp_path: Path, messages: list[str]) -> None:
    two(tmp_path, lines=["", *SECOND[1:]] * 4)
    left = [text for text in messages if "left out" in text]
    assert left
    assert all("empty" in text for text in left)
    total = sum(int(part.split()[-2]) for text in left for part in text.split(",") if "empty" in part)
    assert total == 4


def test_examples_of_one_input_are_counted_where_the_model_does_without(tmp_path: Path, messages: list[str]) -> None:
    data = {"valid_source": str(tmp_path / "source"), "valid_target": str(tmp_path / "target")}
    two(
        tmp_path,
        lines=["", *SECOND[1:]] * 4,
        model={**CROSSED, "second": {"drop": 0.3}},
        data=data | {"valid_second_source": str(tmp_path / "second")},
    )
    told = [text for text in messages if "without the first input" in text]
    assert told == [f"{name} pairs without the first input: 0, without the second: 4" for name in ("training", "validation")]


def test_a_killed_run_resumes_exactly(tmp_path: Path) -> None:
    model = {**CROSSED, "second": {"drop": 0.4}, "swap_probability": 0.5, "dropout": 0.2}
    data = {"max_length": 37, **write_pairs(tmp_path), **write_second(tmp_path)}
    config = configuration(kind="word", model=model, data=data, training={"max_updates": 4, "save_every": 1, "batch_tokens": 150})
    straight = train_translation(config, tmp_path / "straight")

    class Killed(Exception):
        pass

    def kill(event: str) -> None:
        if event == "update 3":
            raise Killed

    with pytest.raises(Killed):
        train_translation(config, tmp_path / "killed", on_event=kill)
    resumed = train_translation(config, tmp_path / "killed")
    assert (resumed.weights_sha256, resumed.metrics) == (straight.weights_sha256, straight.metrics)


@pytest.mark.parametrize("kind", ["flat", "joined", "serial", "hierarchical"])
def test_a_recurrent_model_reads_two_inputs(tmp_path: Path, kind: str) -> None:
    folder = two(tmp_path, model={**RECURRENT, "second": {"kind": kind, "drop": 0.3}}, vocabulary={"shared": False})
    translator = Translator.open(folder)
    found = translator.translate([LINES[1], TEXTS[1], "\t" + SECOND[1]], need_attention=True)
    assert len({round(item.hypotheses[0].score, 6) for item in found}) == 3
    record = translator.record(LINES[1], found[0])
    assert record is not None
    assert record.matrix().weights.shape[1] == len(LINES[1].split()) + 2
    assert train_translation(load_config(folder / "config.yaml"), folder).step == 2


def test_a_second_file_that_changed_is_not_resumed_on(tmp_path: Path) -> None:
    run = two(tmp_path)
    write_second(tmp_path, lines=SECOND[::-1] * 4)
    with pytest.raises(ConfigError, match="second_source"):
        train_translation(load_config(run / "config.yaml", ["training.max_updates=3"]), run)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({}, {"second_source": "b"}, r"data\.second_source: needs a model of two inputs"),
        (SERIAL, {}, r"model\.second: needs data\.second_source"),
        (SERIAL, {"second_source": "b", "valid_source": "v", "valid_target": "w"}, r"model\.second: needs data\.valid_second_source"),
        (SERIAL, {"second_source": "b", "valid_second_source": "v"}, r"data\.valid_second_source: given without data\.valid_source"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, model: dict[str, Any], data: dict[str, str], message: str
) -> None:
    config = configuration(kind="word", model=model, data={**write_pairs(tmp_path), **data})
    with pytest.raises(ConfigError, match=message):
        train_translation(config, tmp_path / "run")
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_validation_reads_second_inputs_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "valid").mkdir()
    files = {f"valid_{name}": path for name, path in (write_pairs(tmp_path / "valid") | write_second(tmp_path / "valid")).items()}
    run = two(tmp_path, data=files)
    config = open_translation_run(run).config.data
    assert config.valid_second_source == files["valid_second_source"]
    with pytest.raises(DataError, match=r"second: 5 lines, but .*source has 20; line 6 is missing"):
        two(tmp_path / "short", data={**files, **{f"valid_{k}": v for k, v in write_second(tmp_path / "valid", lines=SECOND).items()}})


def test_an_ensemble_reads_what_its_models_read(run: Path, tmp_path: Path) -> None:
    joined = two(tmp_path, model={**SERIAL, "second": {"kind": "joined"}})
    alone, both = Translator.open(run), Translator.open(run, joined)
    twice = Translator.open(run, run)
    assert [item.text for item in twice.translate(LINES)] == [item.text for item in alone.translate(LINES)]
    (one,), (mean,) = (translator.translate(LINES[:1], need_attention=True) for translator in (alone, both))
    assert mean.hypotheses[0].score != one.hypotheses[0].score
    assert mean.hypotheses[0].attention is not None
    assert mean.hypotheses[0].attention.shape[1] == one.hypotheses[0].attention.shape[1]
    with pytest.raises(ConfigError, match="one reads two inputs, the other one"):
        Translator.open(run, trained(tmp_path / "one", kind="word"))


def test_a_record_shows_target_by_first_target_by_second_and_what_the_inputs_see_of_each_other(run: Path, optional: Path) -> None:
    for folder, names in (
        (
            run,
            {
                "first input, cross 1",
                "second input, cross 1",
                "contribution of each input, cross 1",
                "first input, encoder self 1",
                "second input, encoder self 2",
            },
        ),
        (optional, {"first input, cross 2", "second input, cross 2", "left co-attention 1", "right co-attention 1"}),
    ):
        translator = Translator.open(folder)
        translation = translator.translate(LINES[1:2], n_best=3, need_attention=True)[0]
        record = translator.record(LINES[1], translation)
        assert record is not None
        assert names <= {found.name for found in record.maps}
        first, second = TEXTS[1].split(), SECOND[1].split()
        assert record.items["source"].tokens == [*first, "</s>", *second, "</s>"]
        assert record.items["first"].tokens == [*first, "</s>"]
        assert record.items["second"].tokens == [*second, "</s>"]
        assert record.matrix().weights.shape[1] == len(first) + len(second) + 2
        assert record.to_json()
    hierarchical = Translator.open(two(optional.parent / "hierarchical", model={**SERIAL, "second": {"kind": "hierarchical"}}))
    record = hierarchical.align_layers(LINES[0], TEXTS[1])
    assert record is not None
    found = next(each for each in record.maps if each.name == "division between inputs, cross 1")
    assert record.items["inputs"].tokens == ["first", "second"]
    assert found.weights.sum(-1) == pytest.approx(1, abs=1e-5)


def test_scores_and_links_count_both_inputs(run: Path) -> None:
    opened = open_translation_run(run)
    pairs = list(zip(LINES, TEXTS[::-1], strict=True))
    apart = [score_pairs(opened, [pair])[0].total for pair in pairs]
    assert [item.total for item in score_pairs(opened, pairs)] == pytest.approx(apart, abs=1e-4)
    other = score_pairs(opened, [(join_inputs(TEXTS[0], SECOND[2]), pairs[0][1])])[0]
    assert other.total != pytest.approx(apart[0], abs=1e-6)
    words = len(LINES[0].split())
    for method in ("attention", "leave-one-out"):
        links = find_links(opened, pairs[:1], method=method)[0]
        assert links
        assert all(source < words for _, source in links)
    # The end sign between the inputs is never left out.
    source = opened.vocabularies.source.encode(LINES[0])
    effect = leave_one_out(opened, source.ids, [5, 6])
    place = source.pieces.index("</s>")
    assert not effect[:, place].any()
    assert effect.any()


def test_evaluation_counts_the_words_of_the_first_input(run: Path, tmp_path: Path) -> None:
    long = " ".join(["Hund"] * 20)
    pairs = [(join_inputs("ein Hund", long), "a b c d"), (join_inputs("ein Haus", long), "b")]
    found = evaluate_translation(Translator.open(run), pairs)
    assert [row[0] for row in found.by_length] == ["0-8"]
    files = write_pairs(tmp_path) | write_second(tmp_path)
    assert read_pairs(files["source"], files["target"], files["second_source"])[0][0] == LINES[0]


def test_methods_explain_by_the_words_of_both_inputs(run: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES[:3]), encoding="utf-8")
    found = explain_batches(batches_of_run(run, tmp_path / "lines"), ["weights", "leave-one-out"]).examples
    own = [item.text for item in Translator.open(run).translate(LINES[:3])]
    for example, line, text in zip(found, LINES, own, strict=False):
        assert example.inputs == line.split()
        assert example.outputs == [*text.split(), "</s>"]
        assert example.scores["leave-one-out"].shape == (len(example.outputs), len(example.inputs))
        assert (example.scores["leave-one-out"] != 0).all(1).any()
    (tmp_path / "texts").write_text("".join(f"{line}\n" for line in TEXTS[:3]), encoding="utf-8")
    (tmp_path / "second").write_text("".join(f"{line}\n" for line in SECOND[:3]), encoding="utf-8")
    apart = explain_batches(batches_of_run(run, tmp_path / "texts", second=tmp_path / "second"), ["leave-one-out"]).examples
    for one, other in zip(found, apart, strict=True):
        assert one.inputs == other.inputs
        assert one.scores["leave-one-out"] == pytest.approx(other.scores["leave-one-out"])


def test_methods_name_an_input_that_is_missing_or_too_many(run: Path, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("ein Hund\nein Haus\n", encoding="utf-8")
    (tmp_path / "second").write_text("EIN\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"second: 1 line, .*texts.* 2"):
        batches_of_run(run, tmp_path / "texts", second=tmp_path / "second")
    with pytest.raises(DataError, match="the second input is missing"):
        batches_of_run(run, tmp_path / "texts", target=tmp_path / "texts")
    one = trained(tmp_path / "one", kind="word")
    with pytest.raises(ConfigError, match=r"--second-source: .* reads one input"):
        batches_of_run(one, tmp_path / "texts", second=tmp_path / "second")
    with pytest.raises(ConfigError, match=r"--images: .* reads no images"):
        batches_of_run(run, tmp_path / "texts", second=tmp_path / "second", images=tmp_path)
