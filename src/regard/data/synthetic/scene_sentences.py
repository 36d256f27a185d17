"""Scenes with a sentence: a picture, a caption of it with two words blanked, and the two words. Neither alone is enough.

    sentence = phrase relation phrase        phrase = "a" colour "_" | "a _" shape        answer = two words

A phrase names its object by the word that is left, which fits one object of the picture only; the blanked word has to be found there.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from regard.data.lines import write_files
from regard.data.synthetic.scene_files import scene_record
from regard.data.synthetic.scenes import COLOURS, RELATIONS, SHAPES, Scene, SceneSettings, generate_scenes
from regard.errors import ConfigError, DataError, shown

BLANK = "_"
SETTINGS = SceneSettings(size=48, objects=(3, 3), radius=(4, 6))
_PHRASE = rf"a (?:({'|'.join(COLOURS)}) {BLANK}|{BLANK} ({'|'.join(SHAPES)}))"
_RELATION = re.compile(rf" (?:{'|'.join(RELATIONS)}) ")
_SENTENCE = re.compile(rf"{_PHRASE} ({'|'.join(RELATIONS)}) {_PHRASE}")


class SceneSentence(NamedTuple):
    """A scene, and a caption of it with two words blanked.

    Attributes:
        scene: with the whole caption.
        sentence: with the blanks.
        answer: the two words, in order.
        objects: the number of the object that each word speaks of.
    """

    scene: Scene
    sentence: str
    answer: str
    objects: tuple[int, int]


def fill_blanks(scene: Scene, sentence: str) -> list[str]:
    """Return every pair of words that makes a sentence true of a scene.

    The truth is found by trying all words, without knowledge of how the sentence was made.

    Raises:
        DataError: the sentence is outside the grammar.

    Example:
        >>> from regard.data.synthetic.scenes import SceneObject
        >>> scene = Scene(31, (SceneObject("red", "circle", 7, 9, 5), SceneObject("blue", "square", 23, 11, 5)))
        >>> fill_blanks(scene, "a red _ left of a _ square"), fill_blanks(scene, "a red _ below a _ square")
        (['circle blue'], [])
    """
    found = _SENTENCE.fullmatch(sentence)
    if found is None:
        raise DataError(f"sentence {shown(sentence)}: expected two phrases with a blank each, such as 'a red _ left of a _ square'")
    choices = [SHAPES if colour else tuple(COLOURS) for colour in (found[1], found[4])]
    return [" ".join(words) for words in product(*choices) if scene.is_true(_filled(sentence, words))]


def _filled(sentence: str, words: Sequence[str]) -> str:
    first, second, rest = sentence.split(BLANK)
    return f"{first}{words[0]}{second}{words[1]}{rest}"


def scene_sentences(scene: Scene) -> list[SceneSentence]:
    """Return every sentence with blanks about two objects of a scene that has one answer, and whose phrases fit one object each.

    Example:
        >>> from regard.data.synthetic.scenes import SceneObject
        >>> scene = Scene(31, (SceneObject("red", "circle", 7, 9, 5), SceneObject("blue", "square", 23, 11, 5)))
        >>> [(item.sentence, item.answer) for item in scene_sentences(scene)][1]
        ('a red _ left of a _ square', 'circle blue')
    """
    things, found = scene.objects, []
    phrases: list[list[tuple[str, str]]] = []
    for thing in things:
        own = [(f"a {thing.colour} {BLANK}", thing.shape)]
        if [other.shape for other in things].count(thing.shape) == 1:
            own.append((f"a {BLANK} {thing.shape}", thing.colour))
        phrases.append(own)
    numbers = range(len(things))
    for i, relation, j in product(numbers, RELATIONS, numbers):
        if i == j or not scene.holds(i, relation, j):
            continue
        caption = f"a {things[i].colour} {things[i].shape} {relation} a {things[j].colour} {things[j].shape}"
        for (one, first), (other, second) in product(phrases[i], phrases[j]):
            whole = Scene(scene.size, things, (caption,))
            found.append(SceneSentence(whole, f"{one} {relation} {other}", f"{first} {second}", (i, j)))
    return found


def generate_scene_sentences(count: int, *, seed: int, start: int = 0, settings: SceneSettings = SETTINGS) -> list[SceneSentence]:
    """Generate scenes `start` to `start + count - 1` with a sentence each, drawn from all of its sentences, each as likely.

    Raises:
        ConfigError: count or start is below 0, or scenes have fewer than two objects.

    Example:
        >>> item = generate_scene_sentences(1, seed=2)[0]
        >>> item.sentence, item.answer
        ('a purple _ above a red _', 'cross triangle')
    """
    if settings.objects[0] < 2:
        raise ConfigError(f"objects {settings.objects}: expected 2 or more, a sentence speaks of two")
    found, generator = [], random.Random()
    for number, scene in enumerate(generate_scenes(count, seed=seed, start=start, settings=settings), start=start):
        generator.seed(f"sentences {seed} {number}")
        found.append(generator.choice(scene_sentences(scene)))
    return found


def best_guesses(scenes: Iterable[Scene]) -> dict[str, float]:
    """Return which part of the sentences about scenes the best guess gets right that sees the sentence alone, or the picture alone.

    All sentences of a scene count, together as one. The guess by the sentence is the answer that its two phrases most often have in these
    scenes; of few scenes it knows too much, so take thousands.

    Example:
        >>> {name: round(part, 2) for name, part in best_guesses(generate_scenes(3000, seed=1, settings=SETTINGS)).items()}
        {'sentence alone': 0.09, 'picture alone': 0.21}
    """
    by_phrases: dict[str, dict[str, float]] = {}
    seen, count = 0.0, 0
    for scene in scenes:
        items = scene_sentences(scene)
        answers = Counter(item.answer for item in items)
        seen += max(answers.values()) / len(items)
        count += 1
        for item in items:
            # Where objects stand says nothing of what they are.
            phrases = _RELATION.sub(" ", item.sentence)
            weights = by_phrases.setdefault(phrases, {})
            weights[item.answer] = weights.get(item.answer, 0.0) + 1 / len(items)
    return {"sentence alone": sum(max(answers.values()) for answers in by_phrases.values()) / count, "picture alone": seen / count}


def write_scene_sentences(folder: str | Path, name: str, items: Iterable[SceneSentence]) -> list[Path]:
    """Write NAME/000000.png and so on, NAME.images (a name per line), NAME.source, NAME.target and NAME.regions.jsonl.

    A line of NAME.regions.jsonl is that of `write_scenes`, and has `objects_of_words`: which object each word of the target speaks of.

    Args:
        folder: made if it is not there.
        name: the start of the file names; no folder in it.
        items: at least one.

    Returns:
        The paths of the four lists.

    Raises:
        ConfigError: `name` holds a folder.
        DataError: there is nothing to write, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths = write_scene_sentences(folder, "test", generate_scene_sentences(2, seed=2))
        ...     [path.name for path in paths], paths[0].read_text().split()
        (['test.images', 'test.source', 'test.target', 'test.regions.jsonl'], ['test/000000.png', 'test/000001.png'])
    """
    if not name or Path(name).name != name:
        raise ConfigError(f"name: {shown(name)}, expected the start of a file name without a folder")
    lists: dict[str, list[str]] = {"images": [], "source": [], "target": [], "regions.jsonl": []}
    for number, item in enumerate(items):
        image, buffer = f"{name}/{number:06}.png", io.BytesIO()
        Image.fromarray(item.scene.image()).save(buffer, "PNG")
        write_files({Path(folder, image): buffer.getvalue()})
        record = {**scene_record(image, item.scene), "objects_of_words": item.objects}
        for lines, line in zip(lists.values(), (image, item.sentence, item.answer, json.dumps(record)), strict=True):
            lines.append(line + "\n")
    if not lists["images"]:
        raise DataError(f"{Path(folder) / name}: no scenes to write")
    paths = [Path(folder, f"{name}.{ending}") for ending in lists]
    write_files({path: "".join(lines).encode() for path, lines in zip(paths, lists.values(), strict=True)})
    return paths
