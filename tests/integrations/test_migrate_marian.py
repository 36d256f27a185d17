"""A Marian model imported with its SentencePiece models reads and writes raw text, as Hugging Face's tokenizer and model would."""

from __future__ import annotations

import io
import json
import random
import re
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import GenerationConfig
from typer.testing import CliRunner

from regard.cli import app
from regard.config import load_config
from regard.data.sentencepiece_vocabulary import SentencePieceVocabulary
from regard.data.text_encoder import TextEncoder
from regard.data.vocabulary import BOS, EOS, PAD, STORED, UNK, Vocabulary
from regard.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from regard.integrations.ctranslate2 import export_run, vocabulary_entries
from regard.integrations.migrate_files import read_marian
from regard.integrations.migrate_run import write_run
from regard.tasks import Translator, train_translation
from tests.integrations.test_migrate import marian
from tests.serve.driver import Site

sentencepiece = pytest.importorskip("sentencepiece", reason="the extra sentencepiece is not installed")

ENGLISH = ["a red dog sleeps", "the old man reads a book", "two dogs run on the grass", "½ of ﬁve (5) is 2.5!", "a café in Zürich"] * 20
GERMAN = ["ein roter Hund schläft", "der alte Mann liest ein Buch", "zwei Hunde rennen im Gras", "¿Größe? 3,5 m²!", "straße"] * 20
ODD = "aeidoghstrn  ,.!?-\u00df\u00e9\u0301\u00bd\ufb01\u2581\u3000\u00a0\u200b\u200d"
ODD += "\u2028\t\r\0\x07<>/&\u6f22\u5b57\uff21\uff76\uff9e\U0001f600\U0001f468\u0130\u1e9e\u05d0\u0627\ufffd"


class Folder(NamedTuple):
    """A Marian folder, the run made of it, and what both are compared with."""

    path: Path
    run: Path
    numbers: dict[str, int]
    model: Any
    tokenizer: Any


def trained(lines: list[str], size: int) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=size, hard_vocab_limit=False, minloglevel=2, num_threads=1
    )
    return out.getvalue()


def own_tokenizer(folder: Path) -> Any:
    from transformers import MarianTokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it recommends sacremoses, which it does not use here
        return MarianTokenizer(str(folder / "source.spm"), str(folder / "target.spm"), str(folder / "vocab.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("marian")
    models = {"source": trained(ENGLISH, 60), "target": trained(GERMAN, 70)}
    pieces: dict[str, None] = {}
    for name, model in models.items():
        (path / f"{name}.spm").write_bytes(model)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        # Some pieces are in neither list: Marian takes them for unknown.
        pieces |= dict.fromkeys(processor.id_to_piece(number) for number in range(3, processor.get_piece_size()) if number % 17)
    # A character that the source's model does not know, but the list does.
    words = ["</s>", "<unk>", ">>deu<<", *pieces, "\u6f22", "<pad>"]
    numbers = {word: number for number, word in enumerate(words)}
    (path / "vocab.json").write_text(json.dumps(numbers))
    pad = len(words) - 1
    model = marian(vocab_size=len(words), pad_token_id=pad, decoder_start_token_id=pad)
    model.save_pretrained(path)
    run = path.parent / "run"
    done = CliRunner().invoke(app, ["import", str(path), "--from", "marian", "--out", str(run)], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, f"{run}: {len(words)} source and {len(words)} target tokens\n")
    return Folder(path, run, numbers, model, own_tokenizer(path))


def odd_lines(count: int) -> list[str]:
    draw = random.Random(11)
    lines = ["".join(draw.choice(ODD) for _ in range(draw.randrange(25))) for _ in range(count)]
    mixed = [" ".join(draw.choice([*ENGLISH, *GERMAN, "  ", *lines]) for _ in range(draw.randrange(4))) for _ in range(count)]
    codes = [">>deu<< a dog", ">>deu<<a", ">>xx<<a", ">>", "<<", ">>a", "a >>deu<<", " >>deu<< a", "", " ", "\u6f22", "\u5b57\u6f22"]
    return lines + mixed + codes


def their_numbers(folder: Folder, vocabulary: Vocabulary, ids: list[int]) -> list[int]:
    entries = json.loads(vocabulary.to_bytes())["entries"]
    return [folder.numbers["<unk>"] if number == UNK else folder.numbers[entries[number]] for number in ids]


@pytest.mark.parametrize("side", ["source", "target"])
def test_ids_of_raw_text_are_those_of_marians_own_tokenizer(folder: Folder, side: str) -> None:
    vocabulary = Vocabulary.load(folder.run / f"{side}.vocabulary.json")
    lines = odd_lines(400)
    assert len(set(lines)) > 500
    expected = [folder.tokenizer(**{"text" if side == "source" else "text_target": line}).input_ids for line in lines]
    found = vocabulary.encode_batch(lines)
    assert [[*their_numbers(folder, vocabulary, item.ids), 0] for item in found] == expected
    ids = [item.ids for item in found]
    assert vocabulary.encode_ids(lines) == ids
    assert [row.tolist() for row in TextEncoder(vocabulary).encode(lines)] == ids
    known = [number for ids in expected for number in ids if number != folder.numbers["<unk>"]]
    assert len(known) > 2000
    assert folder.numbers[">>deu<<"] in known
    assert folder.numbers["\u6f22"] in known
    assert vocabulary.unknown_rate(lines) > 0.05


def test_text_of_ids_is_that_of_marians_own_tokenizer(folder: Folder) -> None:
    vocabulary = Vocabulary.load(folder.run / "target.vocabulary.json")
    draw = random.Random(12)
    several = [vocabulary.encode(line).ids for line in odd_lines(200)]
    several += [[draw.randrange(4, len(vocabulary)) for _ in range(draw.randrange(12))] for _ in range(300)]
    for ids in several:
        known = [number for number in ids if number != UNK]
        expected = folder.tokenizer.decode(their_numbers(folder, vocabulary, known), use_source_tokenizer=False)
        assert vocabulary.decode([BOS, *known, EOS, PAD]) == expected.replace("\0", " ").translate({ord(c): " " for c in "\r\u2028"})
    assert vocabulary.decode([UNK, *vocabulary.encode("ein Hund").ids, UNK]) == "<unk> ein Hund <unk>"


def test_every_piece_stands_somewhere_in_its_text(folder: Folder) -> None:
    vocabulary = Vocabulary.load(folder.run / "source.vocabulary.json")
    for line in odd_lines(200):
        item = vocabulary.encode(line)
        assert len(item.ids) == len(item.pieces) == len(item.offsets)
        flat = [place for span in item.offsets for place in span]
        assert flat == sorted(flat)
        assert not flat or (flat[0] >= 0 and flat[-1] <= len(line))
    item = vocabulary.encode(">>deu<< a red dog")
    assert (item.pieces[0], item.offsets[0]) == (">>deu<<", (0, 7))
    assert "".join(item.pieces[1:]) == " a red dog"


def test_text_that_reads_like_a_special_token_is_text(folder: Folder) -> None:
    vocabulary = Vocabulary.load(folder.run / "source.vocabulary.json")
    for name in ("</s>", "<pad>", "<unk>", " <pad>", " </s>"):
        assert not {PAD, BOS, EOS} & set(vocabulary.encode(name).ids)
    assert PAD not in vocabulary.encode("\ud800 a\udfff").ids


def test_raw_text_is_translated_as_marian_does(folder: Folder) -> None:
    lines = ["a red dog sleeps", "the old man reads a book", "  two   caf\u00e9s ", "dogs run!"]
    theirs, pad = folder.model, folder.numbers["<pad>"]
    settings = GenerationConfig(max_new_tokens=13, num_beams=1, do_sample=False, bad_words_ids=[[pad]], eos_token_id=0, pad_token_id=pad)
    settings.decoder_start_token_id = pad
    settings.forced_eos_token_id = None
    expected = []
    for line in lines:
        output = theirs.generate(torch.tensor([folder.tokenizer(line).input_ids]), generation_config=settings)[0]
        expected.append(folder.tokenizer.decode([number for number in output if number not in (0, pad)], skip_special_tokens=False))
    assert len(set(expected)) > 1
    command = ["translate", str(folder.run), "--beam-size", "1", "--max-length", "12"]
    done = CliRunner().invoke(app, command, input="\n".join(lines) + "\n", catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [" ".join(text.split(" ")) for text in expected]


def test_the_other_commands_take_raw_text(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a red dog sleeps\nthe old man reads\n")
    (tmp_path / "b.txt").write_text("ein roter Hund\nder alte Mann liest\n")
    files = ["--source", str(tmp_path / "a.txt"), "--target", str(tmp_path / "b.txt")]
    done = CliRunner().invoke(app, ["evaluate", str(folder.run), *files, "--max-length", "5"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "pairs:2/2" in done.stdout
    page = tmp_path / "records.json"
    command = ["view", str(folder.run), "--text", "a red dog", "--target", "ein Hund", "-o", str(page)]
    assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert "ein Hund" in page.read_text(encoding="utf-8")


def test_the_server_and_an_export_know_the_vocabulary(folder: Folder, tmp_path: Path) -> None:
    translator = Translator.open(folder.run)
    lines = ["a red dog sleeps", "two  dogs"]
    answer = Site(translator).post("/translate", {"text": lines})
    assert answer.status == 200
    served = [item["text"] for item in answer.json["translations"]]
    assert served == [item.text for item in translator.translate(lines)]
    assert all(served)
    export_run(folder.run, tmp_path / "engine")
    tokens = vocabulary_entries(tmp_path / "engine" / "target.vocabulary.json")
    assert tokens[:4] == list(STORED)
    assert set(tokens[4:]) == set(folder.numbers) - {"</s>", "<unk>", "<pad>"}


def test_training_goes_on_from_an_imported_run(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(ENGLISH) + "\n")
    (tmp_path / "b.txt").write_text("\n".join(GERMAN) + "\n")
    from regard.config import TranslationConfig
    from regard.tasks.fine_tuning import settings_from_run

    changes = [f"data.source={tmp_path}/a.txt", f"data.target={tmp_path}/b.txt", "training.max_updates=2", "data.valid_size=9"]
    config = load_config(None, changes, base=settings_from_run(folder.run, TranslationConfig))
    train_translation(config, tmp_path / "run")
    assert config.model.share_embeddings
    assert Translator.open(tmp_path / "run").translate(["a red dog"])[0].source.ids
    for name in ("source.vocabulary.json", "target.vocabulary.json"):
        assert (tmp_path / "run" / name).read_bytes() == (folder.run / name).read_bytes()
    files = [f"data.source={tmp_path}/a.txt", f"data.target={tmp_path}/b.txt"]
    with pytest.raises(ConfigError, match=r"vocabulary\.kind: sentencepiece comes with an imported model .*train one of bpe"):
        train_translation(load_config(None, [*files, "vocabulary.kind=sentencepiece"]), tmp_path / "new")


def test_the_documented_way_from_a_marian_folder_to_a_translated_document(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentencex", reason="the extra documents splits sentences")
    text = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"### From OPUS-MT to your own documents\n.*?```console\n(.*?)```", text, re.DOTALL)
    shutil.copytree(folder.path, tmp_path / "opus-mt-en-de")
    for name, lines in {"own.en": ENGLISH, "own.de": GERMAN, "test.en": ENGLISH[:3], "test.de": GERMAN[:3]}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "letter.md").write_text("# A red dog\n\nThe **old** man reads. Two dogs sleep.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = []
    for line in block.splitlines():
        typed, _, command = line.rpartition(" | ")
        words = shlex.split(command.partition(" > ")[0])[1:]
        # A model with random weights stands in for the one that would be downloaded, and two updates for hours.
        more = ["training.max_updates=2", "data.valid_size=9", "decoding.max_length=7"] if words[0] == "train" else []
        done = CliRunner().invoke(app, [*words, *more], input=typed.removeprefix("echo ").strip('"'), catch_exceptions=False)
        assert done.exit_code == 0, (line, done.output)
        said.append(done.stdout)
    assert len(said) == 6
    assert "BLEU" in said[1]
    assert "BLEU" in said[3]
    assert said[4].count("\n") == 1
    assert re.fullmatch(r"# .*\n\n.*\*\*.+\*\*.*\n+", said[5])


def test_one_model_for_both_sides_makes_one_vocabulary(folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(folder.path, tmp_path / "marian")
    shutil.copy(folder.path / "source.spm", tmp_path / "marian" / "target.spm")
    assert write_run(read_marian(tmp_path / "marian"), tmp_path / "run", origin="marian").vocabulary.shared
    assert not Translator.open(folder.run).run.config.vocabulary.shared
    assert (tmp_path / "run" / "vocabulary.json").is_file()


def test_without_the_models_the_run_says_what_it_expects(folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(folder.path, tmp_path / "marian")
    (tmp_path / "marian" / "source.spm").unlink()
    with pytest.raises(CheckpointError, match=r"source.spm: no such file, expected source.spm and target.spm, or neither of them"):
        read_marian(tmp_path / "marian")
    (tmp_path / "marian" / "target.spm").unlink()
    command = ["import", str(tmp_path / "marian"), "--from", "marian", "--out", str(tmp_path / "run")]
    from regard import progress

    told: list[str] = []
    with progress.listening(lambda event: told.append(event.text) if event.kind == "message" else None):
        assert CliRunner().invoke(app, command, catch_exceptions=False).exit_code == 0
    assert [line for line in told if "tokens separated by spaces" in line]
    assert Translator.open(tmp_path / "run").run.config.vocabulary.kind == "word"


def test_damaged_models_and_files_are_named(folder: Folder, tmp_path: Path) -> None:
    shutil.copytree(folder.path, tmp_path / "marian")
    for content in (b"", b"nonsense", (folder.path / "target.spm").read_bytes()[:-9]):
        (tmp_path / "marian" / "target.spm").write_bytes(content)
        with pytest.raises(DataError, match=r"target\.spm, or the target vocabulary: the SentencePiece model is (empty|damaged)"):
            write_run(read_marian(tmp_path / "marian"), tmp_path / "run", origin="marian")
        assert not (tmp_path / "run").exists()
    good = json.loads((folder.run / "source.vocabulary.json").read_bytes())
    entries = good["entries"]
    path = tmp_path / "vocabulary.json"
    changes = [{"entries": entries[1:]}, {"entries": [*entries, entries[9]]}, {"entries": 5}, {"entries": [*entries, 7]}]
    for change in [*changes, {"model": "?"}, {"model": ""}, {"model": None}, {"model": good["model"][:400]}]:
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(DataError, match=r"vocabulary\.json: damaged vocabulary"):
            Vocabulary.load(path)
    path.write_text(json.dumps(good))
    assert isinstance(Vocabulary.load(path), SentencePieceVocabulary)
    assert tuple(entries[:4]) == STORED


def test_without_the_package_the_extra_is_named(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match=r"pip install '\.\[sentencepiece\]'"):
        Translator.open(folder.run)
