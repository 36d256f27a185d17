"""A model learns a generated task to a threshold, and its attention points where the answer comes from."""

from __future__ import annotations

import pytest

from regard.config import validate
from regard.data import read_pairs
from regard.tasks import Translator, evaluate_translation, generate, train_translation
from regard.tasks.translation_evaluation import read_links

ATTENTIONS = {
    "bahdanau": {"score": "additive", "attention_dim": 32},
    "luong": {"score": "general", "query_state": "current", "input_feeding": True},
    "area heads": {"score": "scaled_dot", "num_heads": 2, "query_state": "current", "area": {"max_area": 2}},
}


@pytest.mark.parametrize("name", ["bahdanau", *(pytest.param(name, marks=pytest.mark.slow) for name in ("luong", "area heads"))])
def test_reversing_is_learned_and_attended_backwards(tmp_path, name):
    generate("reverse", tmp_path, train=3000, test=200, seed=11)
    config = validate(
        {
            "data": {"source": str(tmp_path / "train.source"), "target": str(tmp_path / "train.target"), "valid_size": 100},
            "vocabulary": {"kind": "word"},
            "model": {
                "embed_dim": 24,
                "encoder_dim": 32,
                "decoder_dim": 64,
                "readout_dim": 32,
                "dropout": 0.0,
                "cell": "lstm" if name == "area heads" else "gru",
                "attention": ATTENTIONS[name],
                "readout": "tanh" if name == "luong" else "deep",
            },
            "training": {"epochs": 7, "batch_tokens": 600, "learning_rate": 0.008, "schedule": "cosine", "warmup_updates": 30},
            "decoding": {"beam_size": 1},
        },
        "test",
    )
    train_translation(config, tmp_path / "run")
    pairs = read_pairs(tmp_path / "test.source", tmp_path / "test.target")
    evaluation = evaluate_translation(Translator.open(tmp_path / "run"), pairs, links=read_links(tmp_path / "test.links", "character"))
    scores = {score.name: score.value for score in evaluation.scores}
    assert scores["exact match"] >= 95
    assert scores["AER"] <= 20
