"""A setting that does not exist: what is suggested works when it is typed."""

from __future__ import annotations

import re

import pytest

from regard.config import TASKS, RunConfig, load_config
from regard.config.suggestions import _paths
from regard.errors import ConfigError

LUONG = "model.attention.score=general model.attention.query_state=current model.attention.input_feeding=true model.readout=tanh"


def suggested(override: str, task: str = "translation") -> str | None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, [override], kind=TASKS[task])
    found = re.search(r"; did you mean (.*)\?$", str(refused.value))
    return None if found is None else found[1]


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("epochs=2", "training.epochs=2"),
        ("lr=0.1", "training.learning_rate=0.1"),
        ("training.lr=0.1", "training.learning_rate=0.1"),
        ("max_steps=5", "training.max_updates=5"),
        ("model.hidden_size=64", "model.decoder_dim=64"),
        ("beam=4", "decoding.beam_size=4"),
        ("model.type=lstm", "model.cell=lstm"),
        ("model.cell=LSTM", "model.cell=lstm"),
        ("epoch=2", "training.epochs=2"),
        ("model.epochs=2", "training.epochs=2"),
        ("embed_dim=64", "model.embed_dim=64"),
        ("dropout=0.3", "model.dropout=0.3"),
        ("clip_norm=null", "training.clip_norm=null"),
        ("shared=false", "vocabulary.shared=false"),
        ("num_heads=8", "model.type=transformer model.num_heads=8"),
        ("bahdanau", "model.attention.score=additive"),
        ("bahdanau=true", "model.attention.score=additive"),
        ("luong", LUONG),
        ("model.attention.score=bahdanau", "model.attention.score=additive"),
        ("model.attention=luong", LUONG),
        ("model.type=bahdanau", "model.attention.score=additive"),
        ("model.type=luong", LUONG),
        ("model=transformer", "model.type=transformer"),
        ("model.type=transfomer", "model.type=transformer"),
        ("model.attention.score=aditive", "model.attention.score=additive"),
        ("vocabulary.kind=Unigramm", "vocabulary.kind=unigram"),
        ("transformer", "model.type=transformer"),
        ("area_attention", "model.attention.area.max_area=5"),
        ("luong-local-p", "model.attention.window=local_p"),
    ],
)
def test_a_suggestion_works_when_it_is_typed(typed: str, expected: str) -> None:
    words = suggested(typed)
    assert words == expected
    load_config(None, words.split())


@pytest.mark.parametrize("task", TASKS)
def test_a_name_of_another_toolkit_is_looked_for_in_its_section_first(task: str) -> None:
    assert suggested("training.batch_size=8", task) == "training.batch_tokens=8"
    assert suggested("training.beam_size=3") == "decoding.beam_size=3"


@pytest.mark.parametrize("typed", ["nonsense", "nonsense=1", "model.cell=foo", "epochs=[1, 2]", "training.epochs=two", "model.type=3"])
def test_where_nothing_would_work_nothing_is_suggested(typed: str) -> None:
    assert suggested(typed) is None


@pytest.mark.parametrize("task", TASKS)
def test_every_setting_of_every_task_is_found_without_its_section(task: str) -> None:
    kind: type[RunConfig] = TASKS[task]
    top = set(kind.model_fields)
    leaves = {path.rpartition(".")[2] for path, _ in _paths(kind)} - top
    assert len(leaves) > 30
    for leaf in leaves:
        for value in ("3", "0.3", "true", "word"):
            words = suggested(f"{leaf}={value}", task)
            if words is not None and "=" in words:  # not "did you mean model?", of a section
                load_config(None, words.split(), kind=kind)


def test_a_device_is_no_setting_and_told_where_it_is_chosen() -> None:
    with pytest.raises(ConfigError, match=r"device: no setting of a run; --device cpu\|cuda"):
        load_config(None, ["device=cpu"])
