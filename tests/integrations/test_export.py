"""A run exported to CTranslate2 gives the hypotheses and scores that it gives here."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ctranslate2
import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.config import CrossedConfig, RNNConfig, TransformerConfig, load_config, validate
from regard.data.batching import collate
from regard.data.lines import read_lines
from regard.data.shortlist import Shortlist
from regard.data.vocabulary import BOS, EOS, PAD
from regard.decoding import DecodingOptions, Hypothesis, beam_search, greedy_search
from regard.errors import CheckpointError, ConfigError, DataError
from regard.integrations.ctranslate2 import check_config, export_run, vocabulary_entries
from regard.ops import OutputShortlist
from regard.tasks import generate, train_translation
from regard.tasks.shortlist import read_shortlist, write_shortlist
from regard.tasks.translation_run import TranslationRun, open_translation_run
from tests.tasks.tiny import trained

# Written down in the module's docstring: no score changes, it stops when we do, and an empty translation is possible.
SAME = {"length_penalty": 1e-9, "min_decoding_length": 0, "return_scores": True, "return_end_token": True}
LENGTH = 29


class Pair(NamedTuple):
    run: TranslationRun
    engine: Any
    entries: list[str]
    sources: list[list[int]]


def opened(run: Path, folder: Path, sources: list[list[int]]) -> Pair:
    export_run(run, folder)
    engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=1)
    return Pair(open_translation_run(run), engine, vocabulary_entries(folder / "vocabulary.json"), sources)


@pytest.fixture(scope="module", params=["post", "pre"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Return a model that has learned something about reversing, here and there."""
    folder = tmp_path_factory.mktemp("export")
    generate("reverse", folder, train=2000, test=97, seed=3)
    settings = {
        "data": {"source": str(folder / "train.source"), "target": str(folder / "train.target"), "valid_size": 13},
        "vocabulary": {"kind": "word"},
        "model": {"type": "transformer", "embed_dim": 26, "ff_dim": 53, "num_heads": 2, "encoder_layers": 2, "decoder_layers": 1},
        "training": {"max_updates": 120, "epochs": 100, "batch_tokens": 400, "learning_rate": 0.008, "evaluate_every": 120},
    }
    settings["model"] |= {"norm": request.param, "dropout": 0.0, **({"activation": "swish"} if request.param == "pre" else {})}
    train_translation(validate(settings, "test"), folder / "run")
    lines = read_lines(folder / "test.source")
    run = open_translation_run(folder / "run")
    return opened(folder / "run", folder / "out", run.vocabularies.source.encode_ids(lines))


def search(pair: Pair, *, step: Any = None, **options: Any) -> list[list[Hypothesis]]:
    batch = collate(pair.sources, [[] for _ in pair.sources], tuple(range(len(pair.sources))))
    found = DecodingOptions(bos=BOS, eos=EOS, pad=PAD, max_length=LENGTH, length_penalty=0.0, **options)
    model = pair.run.model
    with torch.inference_mode():
        function = greedy_search if found.beam_size == 1 else beam_search
        return function(step or model.step, model.start(batch.source, batch.source_lengths), batch_size=len(pair.sources), options=found)


def there(pair: Pair, **options: Any) -> list[Any]:
    tokens = [[pair.entries[number] for number in ids] for ids in pair.sources]
    return pair.engine.translate_batch(tokens, max_decoding_length=LENGTH, **SAME, **options)


def numbers(pair: Pair, tokens: list[str]) -> list[int]:
    return [pair.entries.index(token) for token in tokens]


@pytest.mark.parametrize("beam_size", [1, 5])
def test_the_hypotheses_and_their_scores_are_the_same(pair: Pair, beam_size: int) -> None:
    ours, theirs = search(pair, beam_size=beam_size), there(pair, beam_size=beam_size)
    assert len({tuple(own[0].tokens) for own in ours}) > 40  # the model has something to say to each
    for own, other in zip(ours, theirs, strict=True):
        assert own[0].tokens == numbers(pair, other.hypotheses[0])
        assert own[0].score == pytest.approx(other.scores[0], abs=1e-4)


def test_all_hypotheses_of_a_beam_are_the_same(pair: Pair) -> None:
    # n_best = beam takes our early stop away: it then waits for as many ended hypotheses as CTranslate2 does.
    for own, other in zip(search(pair, beam_size=3, n_best=3), there(pair, beam_size=3, num_hypotheses=3), strict=True):
        assert [hypothesis.tokens for hypothesis in own] == [numbers(pair, tokens) for tokens in other.hypotheses]
        assert [hypothesis.score for hypothesis in own] == pytest.approx(other.scores, abs=1e-4)


def test_given_targets_get_the_same_probabilities(pair: Pair) -> None:
    ours = search(pair, beam_size=1)
    tokens = [[pair.entries[number] for number in ids] for ids in pair.sources]
    targets = [[pair.entries[number] for number in own[0].tokens if number != EOS] for own in ours]
    for own, scored in zip(ours, pair.engine.score_batch(tokens, targets), strict=True):
        # Theirs end with the end of the sentence, ours at the greatest length without it.
        assert own[0].log_probs == pytest.approx(scored.log_probs[: len(own[0].tokens)], abs=1e-4)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_a_shortlist_goes_along_as_a_vocabulary_map(pair: Pair, tmp_path: Path, beam_size: int) -> None:
    run = tmp_path / "run"
    shutil.copytree(pair.run.folder, run)
    letters = range(4, len(pair.entries))
    # A letter may become the next but one only, and every sentence may have the first.
    write_shortlist(run, Shortlist([letters[0]], {own: [letters[(place + 2) % len(letters)]] for place, own in enumerate(letters)}))
    here = opened(run, tmp_path / "out", pair.sources[:40])
    changed = 0
    for ids in here.sources:
        one = here._replace(sources=[ids])
        (free,), (other,) = search(one, beam_size=beam_size), there(one, beam_size=beam_size, use_vmap=True)
        tokens = torch.from_numpy(read_shortlist(here.run).candidates([ids]))
        step = partial(here.run.model.decoding_step, shortlist=OutputShortlist.of(here.run.model.output, tokens))
        (own,) = search(one, step=step, beam_size=beam_size)
        assert own[0].tokens == numbers(here, other.hypotheses[0])
        assert own[0].score == pytest.approx(other.scores[0], abs=1e-4)
        changed += own[0].tokens != free[0].tokens
    assert changed


@pytest.mark.parametrize("kind", ["bpe", "unigram", "character"])
def test_every_kind_of_vocabulary_and_separate_tables_go_along(tmp_path: Path, kind: str) -> None:
    model = {"type": "transformer", "embed_dim": 14, "ff_dim": 11, "num_heads": 7, "encoder_layers": 1, "decoder_layers": 2}
    model |= {"share_embeddings": False, "tie_embeddings": False, "output_bias": True, "positions": "fairseq", "norm_eps": 1e-3}
    run = trained(tmp_path, kind=kind, model=model, vocabulary={"kind": kind, "size": 300, "shared": False})
    export_run(run, tmp_path / "out")
    here = open_translation_run(run)
    lines = ["ein Hund bellt", "Häuser", "sieht ein"]
    sources = here.vocabularies.source.encode_ids(lines)
    texts, targets = (vocabulary_entries(tmp_path / "out" / f"{side}.vocabulary.json") for side in ("source", "target"))
    engine = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    both = Pair(here, engine, texts, sources)
    for own, other in zip(search(both, beam_size=2), there(both, beam_size=2), strict=True):
        assert own[0].tokens == [targets.index(token) for token in other.hypotheses[0]]
        assert own[0].score == pytest.approx(other.scores[0], abs=1e-4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (RNNConfig(), "model.type: rnn, but CTranslate2 runs standard Transformers only"),
        (TransformerConfig(decoder="recurrent"), "model.decoder: recurrent, but CTranslate2 runs standard Transformers only"),
        (CrossedConfig(), "model.type: crossed, but CTranslate2 runs standard Transformers only"),
        (
            load_config(None, ["model.type=transformer", "model.area.max_area=3"]).model,
            "model.area: set, but CTranslate2 has no area attention",
        ),
        (
            load_config(None, ["model.type=transformer", "model.normalizer=sparsemax"]).model,
            "model.normalizer: sparsemax, but CTranslate2 computes the softmax only",
        ),
    ],
)
def test_what_ctranslate2_cannot_do_is_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(config)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    run = trained(tmp_path / "rnn")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(ConfigError, match="out: exists and is not empty"):
        export_run(run, tmp_path / "out")
    with pytest.raises(ConfigError, match=r"model\.type: rnn"):
        export_run(run, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(CheckpointError, match="nowhere: no such run folder"):
        export_run(tmp_path / "nowhere", tmp_path / "new")
    with pytest.raises(DataError, match="mine: missing, damaged or no vocabulary"):
        vocabulary_entries(tmp_path / "out" / "mine")


def test_a_run_of_another_task_is_refused_with_the_formats_that_export_it(tmp_path: Path) -> None:
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "config.yaml").write_text("task: classification\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"labels: a run of the task classification, but CTranslate2 .* --format onnx or html"):
        export_run(tmp_path / "labels", tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--out", "engine"], "--format: missing; expected ctranslate2, onnx or html"),
        (["--format", "onnx", "--out", "model.html"], "--out model.html: the name of a page, but --format onnx writes a folder"),
    ],
)
def test_the_format_is_never_guessed_from_the_name_of_a_folder(tmp_path: Path, given: list[str], message: str) -> None:
    found = CliRunner().invoke(app, ["export", str(tmp_path), *given])
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception) == message


def test_the_command_writes_the_folder(tmp_path: Path) -> None:
    model = {"type": "transformer", "embed_dim": 14, "ff_dim": 11, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    run = trained(tmp_path, kind="word", model=model)
    done = CliRunner().invoke(app, ["export", str(run), "--format", "ctranslate2", "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, f"{tmp_path / 'out'}: a model for CTranslate2\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"config.json", "model.bin", "shared_vocabulary.json", "vocabulary.json"}
