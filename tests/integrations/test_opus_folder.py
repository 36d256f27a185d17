"""A folder as OPUS-MT models are published: the import translates as Hugging Face's `generate` does, with the same log-probabilities."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.integrations.migrate_files import read_marian
from regard.integrations.migrate_run import write_run
from regard.tasks import Translator
from regard.tasks.pair_scores import score_pairs
from regard.tasks.translation_run import open_translation_run

pytest.importorskip("sentencepiece", reason="the extra sentencepiece is not installed")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAIRS = [
    ("a red dog sleeps", "ein roter Hund schläft"),
    ("the old man reads a book", "der alte Mann liest ein Buch"),
    ("two dogs run on the grass", "zwei Hunde rennen im Gras"),
    ("a café in Zürich", "ein Café in Zürich"),
] * 20
LINES = ["a red dog sleeps", "two old dogs", "the café reads a book on the grass", "Zürich", "x"]
CODES = (">>deu<<", ">>fra<<")
SIZES = {"dim": 22, "hidden": 13, "layers": 3, "heads": 2}


@pytest.fixture(scope="module")
def opus() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import opus_folder

        yield opus_folder


@pytest.fixture(scope="module")
def folder(opus: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random weights. Words have small logits, as published ones may: that of `<pad>`, 0, is among the largest."""
    path = tmp_path_factory.mktemp("opus") / "opus-mt-en-mul"
    config = opus.published_config(opus.write_tokenizer(path, PAIRS, 60, CODES), **SIZES, beam_size=6)
    torch.manual_seed(7)
    model = opus.new_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) / 5)
        model.model.shared.weight[-1] = 0
        model.final_logits_bias.copy_(torch.randn_like(model.final_logits_bias) - 6)
        model.final_logits_bias[0, 0] += 2  # more translations end
        model.final_logits_bias[0, -1] = 0
    opus.write_model(path, model, config)
    return path


@pytest.fixture(scope="module")
def run(folder: Path) -> Path:
    run = folder.parent / "run"
    done = CliRunner().invoke(app, ["import", str(folder), "--from", "marian", "--out", str(run)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return run


@pytest.mark.parametrize("beam_size", [1, 4, 6])
def test_outputs_and_log_probabilities_are_those_of_hugging_face(opus: ModuleType, folder: Path, run: Path, beam_size: int) -> None:
    lines = [f"{code}{line}" for code in ("", *(f"{code} " for code in CODES)) for line in LINES]
    expected = opus.generate(folder, lines, beam_size=beam_size)
    translator = Translator.open(run)
    decoding = translator.run.config.decoding.model_copy(update={"beam_size": beam_size, "length_penalty": 0.0})
    found = translator.translate(lines, decoding=decoding)
    assert [item.text for item in found] == [item.text for item in expected]
    assert [item.hypotheses[0].score for item in found] == pytest.approx([item.score for item in expected], abs=1e-4)
    assert len({item.text for item in found}) > 5
    assert len({item.hypotheses[0].score for item in found[:: len(LINES)]}) == 1 + len(CODES)


def test_the_entry_that_marian_does_not_have_takes_no_share_of_the_probability(opus: ModuleType, folder: Path, run: Path) -> None:
    from transformers import MarianMTModel

    (scored,) = score_pairs(open_translation_run(run), PAIRS[:1])
    ((source, target),) = opus.encode(folder, PAIRS[:1])
    model = MarianMTModel.from_pretrained(folder).eval()
    pad = model.config.pad_token_id
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[pad, *target[:-1]]])).logits
    whole, without = (logits[0, :, :size].log_softmax(-1)[range(len(target)), target].sum().item() for size in (pad + 1, pad))
    assert scored.total == pytest.approx(without, abs=1e-4)
    assert without - whole > 1


def test_the_published_settings_are_read(opus: ModuleType, folder: Path, run: Path, tmp_path: Path) -> None:
    config = Translator.open(run).run.config
    assert (config.decoding.beam_size, config.model.activation, config.model.share_embeddings) == (6, "swish", True)
    shutil.copytree(folder, tmp_path / "older")
    (tmp_path / "older" / "generation_config.json").unlink()
    changed = json.loads((folder / "config.json").read_text()) | {"num_beams": 3}
    (tmp_path / "older" / "config.json").write_text(json.dumps(changed))
    assert write_run(read_marian(tmp_path / "older"), tmp_path / "run", origin="marian").decoding.beam_size == 3


def test_a_folder_that_hugging_face_loads_and_saves_makes_the_same_run(opus: ModuleType, folder: Path, run: Path, tmp_path: Path) -> None:
    from transformers import MarianMTModel

    MarianMTModel.from_pretrained(folder).save_pretrained(tmp_path / "saved")
    opus.tokenizer_of(folder).save_pretrained(tmp_path / "saved")
    write_run(read_marian(tmp_path / "saved"), tmp_path / "run", origin="marian")
    for name in ("config.yaml", "source.vocabulary.json", "target.vocabulary.json", "model/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (run / name).read_bytes(), name


def test_language_codes_are_named_at_the_import_and_where_they_are_unknown(folder: Path, run: Path, tmp_path: Path) -> None:
    from regard import progress

    told: list[str] = []
    with progress.listening(lambda event: told.append(event.text) if event.kind == "message" else None):
        write_run(read_marian(folder), tmp_path / "run", origin="marian")
        assert told == [f"{tmp_path / 'run'}: begin each line with the code of a target language: >>deu<<, >>fra<<"]
        CliRunner().invoke(app, ["translate", str(run)], input=">>ita<< a dog\n>>fra<< a dog\n", catch_exceptions=False)
    assert any("unknown to the source vocabulary: '>>ita<<'" in text for text in told)
    assert not any(">>fra<<" in text for text in told[1:])
