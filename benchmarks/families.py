"""Small runs of every kind of model, trained on generated data: what exports are compared on.

    python benchmarks/families.py --folder FOLDER

Texts are dates in many languages and formats, the targets their ISO form; labels are the month; a pair is entailed if both are one date;
the two inputs of a sentence are its halves. Images are scenes. Each run takes a minute or two; what FOLDER holds is kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from explain import GENERATED, SMALL_RECURRENT
from explain import SMALL as SMALL_TRANSFORMER
from harness import options

from regard.config import (
    CaptioningConfig,
    ClassificationConfig,
    EntailmentConfig,
    LanguageConfig,
    RunConfig,
    TranslationConfig,
    load_config,
)
from regard.data.lines import read_lines
from regard.tasks import (
    generate,
    train_captioning,
    train_classification,
    train_entailment,
    train_language,
    train_translation,
)

PAIRS, SCENES = 10_000, 2_000
TRAINING = [
    *("training.learning_rate=0.003", "training.schedule=cosine", "training.warmup_updates=50", "training.evaluate_every=100"),
    *("training.keep_checkpoints=1", "training.epochs=1000", "training.workers=1"),
]
DECODING = ["decoding.beam_size=5", "decoding.max_length=40"]
TEXT = [
    "recipe=none",
    "vocabulary.kind=character",
    "vocabulary.shared=true",
    "training.batch_tokens=2000",
    "data.valid_size=200",
    *DECODING,
]
IMAGE = [
    "image.size=32",
    "model.encoder.channels=[8,16]",
    "vocabulary.kind=word",
    "training.batch_tokens=600",
    "data.valid_size=100",
    *DECODING,
]
MODELS = {name: trained.settings for name, trained in GENERATED.items()}
SMALL = ["model.embed_dim=32", "model.decoder_dim=64", "model.feature_dim=32", "model.attention_dim=32"]
GRID = [
    "model.type=transformer",
    "model.embed_dim=32",
    "model.ff_dim=64",
    "model.num_heads=4",
    "model.encoder_layers=2",
    "model.decoder_layers=2",
]
SENTENCE = ["model.embed_dim=32", "vocabulary.kind=character", "training.batch_tokens=2000", "model.hops=4", "model.attention_dim=32"]
LANGUAGE = ["vocabulary.kind=character", "model.embed_dim=32", "model.hidden_size=48", "training.streams=32", "training.chunk_length=32"]
HEADS = ["model.attention.score=scaled_dot", "model.attention.num_heads=4", "model.attention.query_state=current"]
TWO = ["model.type=transformer", *SMALL_TRANSFORMER]

# By task, and by the name of the model: the data, and the settings.
FAMILIES: dict[tuple[str, str], tuple[str, list[str]]] = {
    **{("translation", name): ("dates", [*TEXT, *settings]) for name, settings in MODELS.items()},
    ("translation", "areas, Eq. 9"): ("dates", [*TEXT, *MODELS["areas"], "model.area.key_mode=features"]),
    ("translation", "LSTM, areas by head"): (
        "dates",
        [*TEXT, *SMALL_RECURRENT, *HEADS, "model.cell=lstm", "model.attention.area.max_area=3"],
    ),
    ("translation", "two texts, serial"): ("halves", [*TEXT, *TWO, "model.second.kind=serial"]),
    ("translation", "two texts, one sequence"): ("halves", [*TEXT, *TWO, "model.second.kind=joined"]),
    ("translation", "two texts, recurrent"): ("halves", [*TEXT, *SMALL_RECURRENT, "model.second.kind=hierarchical"]),
    ("translation", "sentence and image"): ("scene-sentences", [*TEXT, "vocabulary.kind=word", *TWO, "model.second.image.size=32"]),
    ("captioning", "soft attention"): ("scenes", [*IMAGE, *SMALL]),
    ("captioning", "hard attention"): ("scenes", [*IMAGE, *SMALL, "model.attention=hard"]),
    ("captioning", "areas"): ("scenes", [*IMAGE, *SMALL, "model.area.height=2", "model.area.width=2"]),
    ("captioning", "Transformer"): ("scenes", [*IMAGE, *GRID]),
    ("classification", "structured attention"): ("months", [*SENTENCE, "model.encoder.hidden_size=32"]),
    ("classification", "Transformer"): ("months", [*SENTENCE, "model.encoder.type=transformer", "model.pooling=max"]),
    ("entailment", "structured attention"): ("same", [*SENTENCE, "model.encoder.hidden_size=32"]),
    ("entailment", "crossed"): ("same", [*SENTENCE, "model.encoder.type=crossed", "model.fusion=features"]),
    ("lm", "key-value"): ("lines", [*LANGUAGE, "model.attention=key_value"]),
    ("lm", "key-value-predict"): ("lines", [*LANGUAGE, "model.attention=key_value_predict"]),
}
UPDATES = 200
TASKS: dict[str, tuple[type[RunConfig], Callable[..., Any]]] = {
    "translation": (TranslationConfig, train_translation),
    "captioning": (CaptioningConfig, train_captioning),
    "classification": (ClassificationConfig, train_classification),
    "entailment": (EntailmentConfig, train_entailment),
    "lm": (LanguageConfig, train_language),
}


class Family(NamedTuple):
    """A trained run, and inputs it never saw: lines, with a tab between two, or image files."""

    task: str
    name: str
    run: Path
    inputs: list[str]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    """Write lines to a file."""
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def derive(folder: Path) -> None:
    """Write the sets that are made of the dates."""
    draw = random.Random(1)
    for split in ("train", "test"):
        texts, dates = (read_lines(folder / "dates" / f"{split}.{side}") for side in ("source", "target"))
        halves = [(text[: len(text) // 2].strip(), text[len(text) // 2 :].strip()) for text in texts]
        whole = [row for row, parts in enumerate(halves) if all(parts)]
        write_lines(folder / f"{split}.first", [halves[row][0] for row in whole])
        write_lines(folder / f"{split}.second", [halves[row][1] for row in whole])
        write_lines(folder / f"{split}.iso", [dates[row] for row in whole])
        write_lines(folder / f"{split}.months.tsv", [f"{date[5:7]}\t{text}" for text, date in zip(texts, dates, strict=True)])
        others = [date if draw.random() < 0.5 else draw.choice(dates) for date in dates]
        labels = ["same" if one == other else "other" for one, other in zip(dates, others, strict=True)]
        write_lines(folder / f"{split}.same.tsv", ["\t".join(row) for row in zip(labels, texts, others, strict=True)])
        write_lines(folder / f"{split}.lines", texts)


def prepare(folder: Path) -> None:
    """Generate the data, where it is not there."""
    if not (folder / "test.lines").exists():
        generate("dates", folder / "dates", train=PAIRS, test=1_100, seed=1)
        for kind in ("scenes", "scene-sentences"):
            generate(kind, folder / kind, train=SCENES, test=1_000, seed=1)
        derive(folder)


def files_of(data: str, folder: Path) -> list[str]:
    """Return the settings that name the training files of a set."""
    match data:
        case "dates":
            found = {"source": f"{data}/train.source", "target": f"{data}/train.target"}
        case "halves":
            found = {"source": "train.first", "target": "train.iso", "second_source": "train.second"}
        case "scene-sentences":
            found = {"source": f"{data}/train.source", "target": f"{data}/train.target", "second_source": f"{data}/train.images"}
        case "scenes":
            found = {"captions": f"{data}/train.tsv"}
        case "lines":
            found = {"text": "train.lines", "valid_text": "test.lines"}
        case _:
            found = {"train": f"train.{data}.tsv", "valid": f"test.{data}.tsv"}
    return [f"data.{name}={folder / path}" for name, path in found.items()]


def inputs_of(data: str, folder: Path) -> list[str]:
    """Return the inputs of a set's test part."""
    match data:
        case "dates" | "lines":
            return read_lines(folder / "dates" / "test.source")
        case "halves":
            return ["\t".join(both) for both in zip(read_lines(folder / "test.first"), read_lines(folder / "test.second"), strict=True)]
        case "scene-sentences":
            names = read_lines(folder / data / "test.images")
            return [f"{line}\t{folder / data / name}" for line, name in zip(read_lines(folder / data / "test.source"), names, strict=True)]
        case "scenes":
            return [str(folder / data / line.partition("\t")[0]) for line in read_lines(folder / data / "test.tsv")]
        case _:
            return [line.partition("\t")[2] for line in read_lines(folder / f"test.{data}.tsv")]


def families(folder: Path, count: int) -> Iterator[Family]:
    """Train each run where it is not there; give it with so many inputs."""
    prepare(folder)
    for (task, name), (data, settings) in FAMILIES.items():
        run, (kind, train) = folder / f"{task}-{name}".replace(", ", "-").replace(" ", "-"), TASKS[task]
        if not (run / "model").exists():
            given = [*files_of(data, folder), *TRAINING, *settings, f"training.max_updates={UPDATES}"]
            train(load_config(None, given, kind=kind), run)
        yield Family(task, name, run, inputs_of(data, folder)[:count])


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for data and runs")
    for family in families(parser.parse_args().folder.resolve(), 1):
        print(family.task, family.name, family.run, sep="\t", flush=True)
