"""Scenes with a sentence: one answer, found by trying all words; neither the sentence nor the picture alone gives it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from regard.data.lines import read_lines
from regard.data.synthetic.scene_files import read_scenes
from regard.data.synthetic.scene_sentences import (
    SETTINGS,
    best_guesses,
    fill_blanks,
    generate_scene_sentences,
    scene_sentences,
    write_scene_sentences,
)
from regard.data.synthetic.scenes import COLOURS, SHAPES, Scene, SceneObject, SceneSettings, generate_scenes
from regard.errors import ConfigError, DataError

ITEMS = generate_scene_sentences(307, seed=5)
RED, BLUE, GREEN = SceneObject("red", "circle", 7, 9, 5), SceneObject("blue", "square", 23, 11, 5), SceneObject("green", "circle", 8, 29, 5)


def test_each_sentence_has_one_answer_and_it_makes_the_caption() -> None:
    for item in ITEMS:
        assert fill_blanks(item.scene, item.sentence) == [item.answer]
        first, second, rest = item.sentence.split("_")
        one, other = item.answer.split(" ")
        assert item.scene.captions == (first + one + second + other + rest,)


def test_each_word_speaks_of_the_object_that_its_phrase_names_alone() -> None:
    for item in ITEMS:
        things = item.scene.objects
        for word, number, phrase in zip(item.answer.split(" "), item.objects, item.sentence.replace("_", " ").split(" a "), strict=True):
            left = next(part for part in phrase.split(" ") if part in (*COLOURS, *SHAPES))
            assert [place for place, thing in enumerate(things) if left in thing] == [number]
            assert word in things[number]


def test_a_shape_that_comes_twice_names_no_object() -> None:
    sentences = {item.sentence for item in scene_sentences(Scene(41, (RED, BLUE, GREEN)))}
    assert "a red _ left of a _ square" in sentences
    assert not any("a _ circle" in sentence for sentence in sentences)


def test_all_kinds_of_sentences_are_drawn() -> None:
    kinds = {(item.answer.split(" ")[0] in COLOURS, item.answer.split(" ")[1] in COLOURS) for item in ITEMS}
    assert len(kinds) == 4
    assert {item.answer.split(" ")[0] for item in ITEMS} == {*COLOURS, *SHAPES}


def test_a_sentence_depends_on_its_number_alone() -> None:
    assert generate_scene_sentences(3, seed=5, start=11) == ITEMS[11:14]
    assert generate_scene_sentences(3, seed=7) != ITEMS[:3]


def test_neither_alone_gives_the_answer() -> None:
    guesses = best_guesses(generate_scenes(4001, seed=1, settings=SETTINGS))
    # Two shapes of four, where the rest of the picture leaves them open; more often seven colours.
    assert 1 / 16 < guesses["sentence alone"] < 0.09
    assert guesses["picture alone"] < 0.25


def test_files_are_line_by_line_and_hold_what_is_drawn(tmp_path: Path) -> None:
    images, source, target, regions = write_scene_sentences(tmp_path, "test", ITEMS[:7])
    lists = [read_lines(path) for path in (images, source, target)]
    assert lists[1:] == [[item.sentence for item in ITEMS[:7]], [item.answer for item in ITEMS[:7]]]
    assert read_scenes(regions) == [item.scene for item in ITEMS[:7]]
    for name, item, line in zip(lists[0], ITEMS, read_lines(regions), strict=False):
        assert np.array_equal(np.asarray(Image.open(tmp_path / name)), item.scene.image())
        assert tuple(json.loads(line)["objects_of_words"]) == item.objects


@pytest.mark.parametrize("sentence", ["a red circle", "a red _", "a _ _ above a red _", "a mauve _ above a red _"])
def test_a_sentence_outside_the_grammar_is_named(sentence: str) -> None:
    with pytest.raises(DataError, match="expected two phrases with a blank each"):
        fill_blanks(ITEMS[0].scene, sentence)


def test_what_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a sentence speaks of two"):
        generate_scene_sentences(1, seed=1, settings=SceneSettings(objects=(1, 2)))
    with pytest.raises(ConfigError, match="without a folder"):
        write_scene_sentences(tmp_path, "a/b", ITEMS[:1])
    with pytest.raises(DataError, match="no scenes to write"):
        write_scene_sentences(tmp_path, "test", [])
