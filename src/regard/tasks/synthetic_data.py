"""Write synthetic data: parallel files with known links, or images with captions and known regions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.data.lines import write_files
from regard.data.parallel import write_parallel
from regard.data.synthetic import GeneratedSet
from regard.data.synthetic.dates import DateExample, split_dates
from regard.data.synthetic.scene_files import write_scenes
from regard.data.synthetic.scene_sentences import generate_scene_sentences, write_scene_sentences
from regard.data.synthetic.scenes import SceneSettings, generate_scenes
from regard.data.synthetic.toys import ToyExample, split_toys
from regard.errors import ConfigError

SIZES = SceneSettings(objects=(2, 2), cells=(1, 2, 3))


def generate(kind: GeneratedSet, folder: str | Path, *, train: int, test: int, seed: int) -> list[Path]:
    """Write train.source, train.target, test.source, test.target, test.links and train.links into a folder.

    The links count characters and are all of the possible kind (`source?target`): each source character of the span that determines a
    target character. No test source occurs twice or in the training set.

    *scenes* are images with captions: train.tsv and test.tsv, their images in the folders train and test, and train.regions.jsonl and
    test.regions.jsonl with what is where (`regard.data.synthetic.scene_files.write_scenes`).

    *scene-sizes* are scenes whose objects cover 1, 2 x 2 or 3 x 3 cells of 8 pixels, for areas of a grid.

    *scene-sentences* are images, sentences with two blanks and the words for these, for a model of two inputs: train.images, train.source,
    train.target and train.regions.jsonl, and the same of test (`regard.data.synthetic.scene_sentences.write_scene_sentences`).

    Args:
        kind: "dates", "copy", "reverse", "sort", "scenes", "scene-sizes" or "scene-sentences".
        folder: created if needed.
        train: training pairs or images, at least 1.
        test: test pairs or images, at least 1.
        seed: of the set.

    Returns:
        The files written.

    Raises:
        ConfigError: a number below 1.
        DataError: the folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.name for path in generate("dates", folder, train=3, test=2, seed=1)]
        ['train.source', 'train.target', 'test.source', 'test.target', 'test.links', 'train.links']
    """
    if train < 1 or test < 1:
        raise ConfigError(f"expected at least 1 training and 1 test pair, found {train} and {test}")
    folder = Path(folder)
    written: list[Path] = []
    if kind == "scenes" or kind == "scene-sizes":
        settings = SIZES if kind == "scene-sizes" else None
        for name, count, start in (("train", train, 0), ("test", test, train)):
            written += write_scenes(folder, name, generate_scenes(count, seed=seed, start=start, settings=settings))
        return written
    if kind == "scene-sentences":
        for name, count, start in (("train", train, 0), ("test", test, train)):
            written += write_scene_sentences(folder, name, generate_scene_sentences(count, seed=seed, start=start))
        return written
    parts: tuple[Sequence[DateExample | ToyExample], ...]
    parts = split_dates(train, test, seed) if kind == "dates" else split_toys(kind, train, test, seed)
    for name, part in zip(("train", "test"), parts, strict=True):
        written += write_parallel(folder, name, [(item.source, item.target) for item in part])
    for name, part in zip(("test", "train"), reversed(parts), strict=True):
        lines = [" ".join(f"{s}?{t}" for t, span in enumerate(item.links) if span for s in range(*span)) for item in part]
        written.append(folder / f"{name}.links")
        write_files({written[-1]: ("\n".join(lines) + "\n").encode()})
    return written
