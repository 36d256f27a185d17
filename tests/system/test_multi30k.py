"""Real data: the reader, the vocabulary and a short training on Multi30k English-German."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from regard.config import validate
from regard.data.parallel import read_pairs
from regard.data.vocabulary import Vocabulary
from regard.tasks.translation_prediction import Translator
from regard.tasks.translation_training import train_translation

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def raw(data_folder: Path) -> Path:
    return data_folder / "multi30k" / "task1" / "raw"


def test_the_splits_are_read_whole(raw: Path) -> None:
    sizes = {split: len(read_pairs(raw / f"{split}.en.gz", raw / f"{split}.de.gz")) for split in ("train", "val", "test_2016_flickr")}
    assert sizes == {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


@pytest.mark.timeout(600)
def test_a_short_training_learns_more_than_word_frequencies(raw: Path, tmp_path: Path) -> None:
    config = validate(
        {
            "data": {
                "source": str(raw / "train.en.gz"),
                "target": str(raw / "train.de.gz"),
                "valid_source": str(raw / "val.en.gz"),
                "valid_target": str(raw / "val.de.gz"),
            },
            "vocabulary": {"size": 2000},
            "model": {"embed_dim": 64, "encoder_dim": 64, "decoder_dim": 128, "readout_dim": 64, "tie_embeddings": True, "dropout": 0.1},
            "training": {"max_updates": 200, "batch_tokens": 2000, "learning_rate": 0.003, "warmup_updates": 50},
        },
        "test",
    )
    run = tmp_path / "run"
    result = train_translation(config, run)
    # What the best model that knows only how frequent each token is would reach on these very targets.
    vocabulary = Vocabulary.load(run / "vocabulary.json")
    targets = vocabulary.encode_ids([target for _, target in read_pairs(raw / "val.en.gz", raw / "val.de.gz")])
    counts = Counter(token for ids in targets for token in [*ids, 3])
    total = counts.total()
    entropy = -sum(count / total * math.log(count / total) for count in counts.values())
    assert result.metrics["loss"] < entropy - 1.0
    assert json.loads((run / "data.json").read_text())["source"]
    lines = ["A man in a blue shirt is standing on a ladder.", "", "Two dogs play."]
    outputs = Translator.open(run).translate(lines)
    assert [bool(item.text) for item in outputs] == [True, False, True]
