"""Every verb from end to end on small files, in this process: what comes out, one line for each line, and what bad input gets."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import sacrebleu

from regard.commands import options
from regard.tasks import captioning_run, classification_run, confidence, language_training, shortlist, word_links
from regard.training import attention_history, log

SMALL = [
    "model.embed_dim=8",
    "model.encoder_dim=8",
    "model.decoder_dim=16",
    "model.readout_dim=8",
    "model.attention.attention_dim=8",
    "training.max_updates=4",
    "training.batch_tokens=200",
]
KINDS = ("bpe", "unigram", "word", "character")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with a small run of each kind of vocabulary and one without attention, on generated copies."""
    from regard.config import load_config
    from regard.tasks import generate, train_translation

    folder = tmp_path_factory.mktemp("runs")
    generate("copy", folder, train=60, test=7, seed=5)
    files = [f"data.source={folder}/train.source", f"data.target={folder}/train.target", "vocabulary.size=300", "data.max_length=50"]
    for kind in KINDS:
        train_translation(load_config(None, [*files, *SMALL, f"vocabulary.kind={kind}"]), folder / kind)
    plain = [setting for setting in SMALL if "attention" not in setting]
    train_translation(load_config(None, [*files, *plain, "model.attention=null"]), folder / "plain")
    return folder


def test_the_files_of_a_run_are_those_that_no_output_replaces(runs):
    written = {path.name for kind in (*KINDS, "plain") for path in (runs / kind).iterdir() if path.is_file() and path.name[0] != "."}
    named = {name for task in (captioning_run, classification_run, language_training) for name in task.RUN_FILES}
    named |= {each.FILE for each in (word_links, confidence, shortlist, attention_history, log)}
    assert {"config.yaml", "log.jsonl"} <= written
    assert not {name for name in written | named if not any(Path(name).match(known) for known in options.RUN_FILES)}


def hostile_lines() -> list[bytes]:
    return [
        b"",
        b"   ",
        b"\xff\xfe broken \xc3",
        b"nul \x00 here",
        b"carriage\r",
        b"lone \r inside",
        "line\u2028separator".encode(),
        "next\u0085line".encode(),
        "paragraph\u2029separator".encode(),
        b"tab\x0b\x0cfeed",
        b"\x1c\x1d\x1e",
        "zero\u200bwidth".encode(),
        "\U0001f468\u200d\U0001f469\u200d\U0001f467 \u0645\u0631\u062d\u0628\u0627 \u6771\u4eac".encode(),
        b"x" * 1_000_000,
        "e\u0301 \u00e9".encode(),
        b"</s> <pad> <unk>",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_lines_give_one_line_each(call, runs, kind):
    stdin = b"\xef\xbb\xbf" + b"\n".join(hostile_lines())
    answer = call("translate", runs / kind, "--max-length", 5, stdin=stdin)
    assert answer.code == 0, answer.err
    assert answer.out.count(b"\n") == 16
    assert len(answer.out.decode().splitlines()) == 16
    assert answer.out.startswith(b"\n\n")
    if kind in ("bpe", "character"):  # for the others a million unknown letters are one token
        assert "line 14" in answer.err


def test_random_bytes_give_one_line_each(call, runs):
    generator = random.Random(7)
    lines = [bytes(generator.choice([b for b in range(256) if b != 10]) for _ in range(generator.randrange(30))) for _ in range(500)]
    answer = call("translate", runs / "bpe", "--max-length", 3, "--beam-size", 1, stdin=b"".join(line + b"\n" for line in lines))
    assert answer.code == 0
    assert answer.out.count(b"\n") == len(answer.out.decode().splitlines()) == 500


def test_no_input_gives_no_output(call, runs):
    assert call("translate", runs / "bpe") == (0, b"", "")


@pytest.mark.parametrize("options", [["--batch-size", 1], ["--batch-size", 3], ["--batch-size", 100]])
def test_the_batch_never_changes_a_translation(call, runs, options):
    source = (runs / "test.source").read_bytes()
    together = call("translate", runs / "character", "--max-length", 9, *options, stdin=source).out.splitlines()
    lines = source.splitlines(keepends=True)
    alone = [call("translate", runs / "character", "--max-length", 9, stdin=line).out.strip(b"\n") for line in lines]
    assert together == alone


def test_hypotheses_come_sorted_and_distinct(call, runs):
    answer = call("translate", runs / "character", "--n-best", 3, "--beam-size", 4, "--max-length", 6, stdin=b"a b\n\nc\n")
    first, second, third = (json.loads(line) for line in answer.out.splitlines())
    assert second == {"text": "", "hypotheses": []}
    for found in (first, third):
        scores = [hypothesis["score"] for hypothesis in found["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis["token_ids"]) for hypothesis in found["hypotheses"]}) == 3
        assert found["text"] == found["hypotheses"][0]["text"]


def test_drawn_translations_repeat_with_their_seed(call, runs):
    def draw(seed):
        return call("translate", runs / "character", "--sample", "--seed", seed, "--max-length", 8, stdin=b"a b c\nd e\n").out

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_several_runs_translate_as_one(call, runs):
    words = ("--beam-size", 2, "--max-length", 6, "--json")
    alone, twice, both = (
        [json.loads(line) for line in call("translate", runs / "bpe", *others, *words, stdin=b"a b c\n\nd\n").out.splitlines()]
        for others in ((), ("--ensemble", runs / "bpe"), ("--ensemble", runs / "plain", "--ensemble", runs / "bpe"))
    )
    assert [found["text"] for found in alone] == [found["text"] for found in twice]
    assert len(alone) == len(twice) == len(both) == 3
    for one, two, three in zip(alone[::2], twice[::2], both[::2], strict=True):
        assert one["hypotheses"][0]["score"] == pytest.approx(two["hypotheses"][0]["score"], abs=1e-5)
        assert one["hypotheses"][0]["log_probs"] != pytest.approx(three["hypotheses"][0]["log_probs"], abs=1e-5)


def test_several_runs_are_measured_as_one(call, runs):
    files = ("--source", runs / "test.source", "--target", runs / "test.target")
    assert call("evaluate", runs / "bpe", "--ensemble", runs / "plain", *files, "--max-length", 5, "--json", "scores.json").code == 0
    assert json.loads(Path("scores.json").read_text())["with"] == [str(runs / "plain")]


def test_runs_that_do_not_mix_are_named(call, runs):
    answer = call("translate", runs / "bpe", "--ensemble", runs / "character", stdin=b"a\n")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, b"", 1)
    assert f"{runs / 'character'}: its source vocabulary differs from that of {runs / 'bpe'}" in answer.err


def test_an_unknown_word_becomes_the_source_word_attended_to(call, runs):
    answer = call("translate", runs / "word", "--replace-unknown", "--json", "--max-length", 6, stdin=b"zebra zebra\n")
    found = json.loads(answer.out)
    written = found["text"].split()
    tokens = [token for token in found["hypotheses"][0]["token_ids"] if token != 3]
    assert len(written) == len(tokens)
    for word, token in zip(written, tokens, strict=True):
        assert (word == "zebra") == (token == 1)


def test_the_figures_of_evaluate_are_sacrebleus(call, runs):
    answer = call(
        *("evaluate", runs / "character", "--source", runs / "test.source", "--target", runs / "test.target"),
        *(
            "--json",
            "scores.json",
            "--output",
            "out.txt",
            "--links",
            runs / "test.links",
            "--link-unit",
            "character",
            "--baseline",
            runs / "bpe",
        ),
    )
    assert answer.code == 0, answer.err
    report = json.loads(Path("scores.json").read_text())
    outputs = Path("out.txt").read_text().splitlines()
    references = (runs / "test.target").read_text().splitlines()
    scores = {score["name"]: score["value"] for score in report["scores"]}
    assert scores["BLEU"] == pytest.approx(sacrebleu.corpus_bleu(outputs, [references]).score)
    assert scores["chrF2"] == pytest.approx(sacrebleu.corpus_chrf(outputs, [references]).score)
    assert 0 <= scores["AER"] <= 100
    assert 0 < report["against"]["p_value"] <= 1


def test_the_baseline_of_a_run_itself_has_its_own_settings(call, runs):
    words = ["evaluate", runs / "character", "--source", runs / "test.source", "--tokenize", "char", "--target"]
    assert call(*words, runs / "test.target", "--output", "own").code == 0
    answer = call(*words, "own", "--max-length", 1, "--baseline", runs / "character", "--json", "scores.json")
    assert answer.code == 0, answer.err
    against = json.loads(Path("scores.json").read_text())["against"]
    assert f"of {runs / 'character'} with its own decoding settings" in answer.out.decode()
    assert against["run"] == str(runs / "character")
    assert against["decoding"]["max_length"] > 1
    assert against["bleu"] == pytest.approx(100)
    assert against["difference"] < 0


@pytest.mark.parametrize("name", ["a.html", "a.json", "a.png", "a.svg", "a.pdf"])
def test_an_alignment_can_be_kept_in_each_form(call, runs, name):
    assert call("view", runs / "character", "--text", "a b c", "-o", name).code == 0
    assert Path(name).stat().st_size > 500
    if name == "a.json":
        assert b"a b c" in call("view", name, "-o", "again.html").out + Path("again.html").read_bytes()


def test_a_given_translation_can_be_looked_at(call, runs):
    answer = call("view", runs / "character", "--text", "a b", "--target", "b a")
    assert answer.code == 0
    assert [line.split()[0] for line in answer.out.decode().splitlines()[1:5]] == ["b", "\u2423", "a", "</s>"]


def test_a_given_translation_can_be_explained(call, runs):
    run = runs / "character"
    answer = call("explain", run, "--text", "a b", "--target", "b a")
    assert answer.code == 0, answer.err
    Path("a.source").write_text("a b\n")
    Path("a.target").write_text("b a\n")
    assert call("explain", run, "--source", "a.source", "--target", "a.target").out == answer.out  # by the same method
    assert b"leave-one-out" in answer.out
    answer = call("explain", run, "--text", "a b", "--text", "b", "--target", "b a")
    assert answer.code == 2
    assert "--target: goes with one --text, found 2" in answer.err
    answer = call("explain", runs / "word", "--text", "a zebra", "--target", "Zebra")
    assert "line 1: 1 of 2 words unknown to the source vocabulary: 'zebra' (the run expects words separated by spaces)" in answer.err
    assert "line 1: 1 of 1 words unknown to the target vocabulary: 'Zebra' (the run expects words separated by spaces)" in answer.err
    answer = call("view", runs / "word", "--text", "a b", "--target", "Zebra")
    assert "unknown to the target vocabulary: 'Zebra'" in answer.err
    for command in ("score", "align", "evaluate"):
        answer = call(command, runs / "word", "--source", "a.source", "--target", "a.target", "--languages", "en", "de")
        assert (answer.code, "--languages: goes with --source FILE alone, a table of pairs" in answer.err) == (2, True)
    assert call("score", runs / "word", "--languages", "en", "de", stdin=b"a\tb\n").code == 2


def test_the_same_command_goes_on_and_other_settings_are_refused(call, runs):
    files = ["--source", runs / "train.source", "--target", runs / "train.target", "--out", "run"]
    words = ["train", "translation", *files, *SMALL, "vocabulary.kind=character"]
    first, second = call(*words), call(*words)
    assert first.code == second.code == 0
    assert first.out.split(b"sha256 of the last weights ")[1] == second.out.split(b"sha256 of the last weights ")[1]
    other = call(*words, "training.seed=2")
    assert other.code == 2
    assert "training.seed: 1 -> 2" in other.err


def test_configurations_print_and_count(call):
    printed = call("train", "translation", "--print-config", "model.cell=lstm").out.decode()
    assert "cell: lstm" in printed
    Path("settings.yaml").write_text(printed)
    counted = call("parameters", "settings.yaml", "model.decoder_dim=32").out.decode().splitlines()
    assert counted[-1].startswith("total")


def test_printed_settings_are_those_of_a_training(call, runs):
    files = ["--source", runs / "train.source", "--target", runs / "train.target"]
    words = ["train", "translation", *files, *SMALL, "vocabulary.kind=character"]
    Path("settings.yaml").write_bytes(call(*words, "--print-config").out)
    assert call(*words, "--out", "one").code == 0
    assert call("train", "translation", "--config", "settings.yaml", "--out", "two").code == 0
    assert Path("one/config.yaml").read_text() == Path("two/config.yaml").read_text()


def test_settings_printed_without_data_leave_out_what_depends_on_it(call, runs):
    answer = call("train", "translation", "--print-config", *SMALL, "vocabulary.kind=character")
    assert "recipe: auto: a training fills in " in answer.err
    assert b"label_smoothing" not in answer.out
    Path("settings.yaml").write_bytes(answer.out)
    files = ["--source", runs / "train.source", "--target", runs / "train.target"]
    assert call("train", "translation", "--config", "settings.yaml", *files, "--out", "one").code == 0
    assert call("train", "translation", *files, *SMALL, "vocabulary.kind=character", "--out", "two").code == 0
    assert Path("one/config.yaml").read_text() == Path("two/config.yaml").read_text()


@pytest.mark.parametrize("config", sorted((Path(__file__).parents[2] / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_configuration_builds(call, config):
    assert call("parameters", config).code == 0


def test_generated_sets_are_written(call):
    for kind in ("dates", "copy", "reverse", "sort"):
        assert call("generate", kind, "--out", kind, "--count", 5, "--test", 3).code == 0
        assert len(Path(kind, "train.source").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate", "nowhere"], "nowhere: no such run folder"),
        (["translate", "folder"], "folder: not a run folder"),
        (["view", "{runs}/plain", "--text", "a"], "no attention"),
        (["view", "{runs}/bpe", "--text", "a", "-o", "a.bmp"], "a.bmp: expected a name ending in"),
        (["view", "{runs}/bpe", "--text", "a", "--text", "b", "-o", "a.png"], "one example, found 2"),
        (["view", "{runs}/bpe", "--text", " "], "no attention to show"),
        (["translate", "{runs}/bpe", "--replace-unknown"], "needs vocabulary.kind word"),
        (["translate", "{runs}/bpe", "--beam-size", "0"], "beam-size"),
        (["evaluate", "{runs}/bpe", "--source", "three.txt", "--target", "two.txt"], "two.txt: 2 lines, but three.txt has 3"),
        (["evaluate", "{runs}/bpe", "--source", "wide.tsv"], "wide.tsv, line 2"),
        (["evaluate", "{runs}/bpe", "--source", "broken.jsonl"], "broken.jsonl, line 2"),
        (["evaluate", "{runs}/bpe", "--source", "three.txt", "--target", "three.txt", "--links", "two.txt"], "two.txt, line 1"),
        (
            ["evaluate", "{runs}/bpe", "--source", "three.txt", "--target", "three.txt", "--links", "far.links"],
            "far.links, line 2: 0-1, but the target has 1 word, numbered from 0",
        ),
        (["evaluate", "{runs}/bpe", "--source", "empty.txt", "--target", "empty.txt"], "empty.txt"),
        (["train", "translation", "--out", "r"], "no training data"),
        (["train", "translation", "--source", "nowhere.en", "--target", "two.txt", "--out", "r"], "nowhere.en"),
        (["train", "translation", "--source", "blank.txt", "--target", "blank.txt", "--out", "r"], "blank"),
        (["train", "translation", "--source", "three.txt", "--target", "three.txt", "--out", "folder"], "exists and is not a run"),
        (["train", "translation", "--source", "three.txt", "--target", "three.txt", "--out", "two.txt"], "two.txt"),
        (
            ["train", "translation", "--source", "three.txt", "--target", "three.txt", "--out", "r", "model.cel=gru"],
            "mean model.cell?",
        ),
        (["train", "translation", "nonsense"], "key.sub=value"),
        (["train", "nonsense"], "nonsense"),
        (["nonsense"], "nonsense"),
    ],
)
def test_a_mistake_gets_one_line_and_exit_code_2(call, runs, words, message):
    Path("folder").mkdir()
    Path("folder/file").write_text("x")
    for name, text in {
        "three.txt": "a\nb\nc\n",
        "two.txt": "x y\nb\n",
        "far.links": "0-0\n0?1\n0-0\n",
        "wide.tsv": "a\tb\na\tb\tc\n",
        "broken.jsonl": '{"source": "a", "target": "b"}\n{"source"\n',
        "empty.txt": "",
        "blank.txt": "\n \n\n",
    }.items():
        Path(name).write_text(text)
    answer = call(*(word.replace("{runs}", str(runs)) for word in words))
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("regard: error: ")
    assert not Path("r").exists() or not any(Path("r").iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["translate", "{runs}/bpe", "a.txt", "--links", "a.txt"],
        ["translate", "{runs}/bpe", "b.txt", "--prefix", "a.txt", "--links", "a.txt"],
        ["translate", "{runs}/bpe", "b.txt", "--links", "same.txt", "--terms", "a.txt"],
        ["evaluate", "{runs}/bpe", "--source", "a.txt", "--target", "b.txt", "--output", "a.txt"],
        ["evaluate", "{runs}/bpe", "--source", "b.txt", "--target", "a.txt", "--json", "a.txt"],
        ["explain", "{runs}/bpe", "--method", "weights", "--source", "a.txt", "--json", "a.txt"],
        ["view", "a.txt", "-o", "a.txt"],
        ["view", "{runs}/bpe", "--image", "a.txt", "-o", "same.txt"],
    ],
)
def test_no_output_replaces_an_input(call, runs, words):
    for name in ("a.txt", "b.txt"):
        Path(name).write_text("a b\tb a\n")
    Path("same.txt").symlink_to("a.txt")
    answer = call(*(word.replace("{runs}", str(runs)) for word in words))
    assert (answer.code, Path("a.txt").read_text()) == (2, "a b\tb a\n")
    assert "is an input of this command, which it would replace" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "run", "--method", "weights", "--source", "a.txt", "--target", "a.txt", "--json", "run/config.yaml"],
        ["evaluate", "run", "--source", "a.txt", "--target", "a.txt", "--json", "run/vocabulary.json"],
        ["evaluate", "run", "--source", "a.txt", "--target", "a.txt", "--output", "run/tokens/a.txt"],
        ["translate", "run", "a.txt", "--links", "run/confidence.json"],
        ["view", "run", "--text", "a", "-o", "run/data.json"],
        ["view", "--hf", "folder", "--text", "a", "-o", "folder/tokenizer.json"],
    ],
)
def test_no_output_replaces_a_file_of_a_run_or_model(call, runs, words):
    shutil.copytree(runs / "bpe", "run")
    Path("a.txt").write_text("a\n")
    Path("folder").mkdir()
    kept = Path(words[-1])
    kept.parent.mkdir(exist_ok=True)
    if not kept.exists():
        kept.write_text("kept")
    before = kept.read_bytes()
    answer = call(*words)
    assert (answer.code, kept.read_bytes()) == (2, before)
    assert f"{kept}: is a file of an input folder of this command, which it would replace" in answer.err


@pytest.mark.parametrize(
    ("name", "reason"),
    [("folder", "it is a folder"), ("a.txt/out.json", "[^ ]*a.txt is not a folder"), ("a.txt/none/out.json", "[^ ]*a.txt is not a folder")],
)
@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["explain", "{runs}/bpe", "--method", "weights", "--source", "a.txt", "--json"], "--json"),
        (["evaluate", "{runs}/bpe", "--source", "a.txt", "--target", "a.txt", "--json"], "--json"),
        (["evaluate", "{runs}/bpe", "--source", "a.txt", "--target", "a.txt", "--output"], "--output"),
        (["translate", "{runs}/bpe", "a.txt", "--links"], "--links"),
        (["check", "{runs}/bpe", "--json"], "--json"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(call, runs, words, option, name, reason, monkeypatch):
    monkeypatch.setattr("torch.nn.Module.__call__", lambda *_, **__: pytest.fail("the model has run"))
    Path("a.txt").write_text("a b\n")
    Path("folder").mkdir()
    answer = call(*(word.replace("{runs}", str(runs)) for word in words), name)
    assert (answer.code, answer.out) == (2, b"")
    assert re.fullmatch(f"regard: error: {option} {name}: cannot be written \\({reason}\\)\n", answer.err)


def test_links_stay_until_there_are_new_ones(call, runs):
    Path("old.links").write_text("0-0\n")
    assert call("translate", runs / "bpe", "nowhere.txt", "--links", "old.links").code == 2
    assert Path("old.links").read_text() == "0-0\n"
    assert call("translate", runs / "bpe", "--links", "old.links", stdin=b"").code == 0
    assert Path("old.links").read_text() == ""
    assert call("translate", runs / "bpe", "--links", "/dev/null", stdin=b"a b\n").code == 0


def test_a_folder_that_cannot_be_written_gets_one_line_and_exit_code_2(call, runs, monkeypatch):
    opening = os.open

    def read_only(path, *rest, **others):
        if Path(path).name == ".lock":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opening(path, *rest, **others)

    monkeypatch.setattr("os.open", read_only)
    Path("out").mkdir()
    answer = call("train", "translation", "--source", runs / "train.source", "--target", runs / "train.target", "--out", "out", *SMALL)
    assert (answer.code, answer.err) == (2, "regard: error: out: cannot be written (Read-only file system)\n")


def test_a_file_system_that_is_read_only_is_named_before_the_work(call, runs, monkeypatch):
    asked = os.statvfs

    def read_only(path):
        found = asked(path)
        return SimpleNamespace(f_flag=found.f_flag | os.ST_RDONLY)

    may = os.access
    monkeypatch.setattr("os.access", lambda path, mode, **more: not mode & os.W_OK and may(path, mode, **more))
    monkeypatch.setattr("os.statvfs", read_only)
    answer = call("check", runs / "bpe", "--json", "out.json")
    assert (answer.code, answer.err) == (2, "regard: error: --json out.json: cannot be written (Read-only file system)\n")


def test_only_the_first_process_of_torchrun_tells_the_result(call, runs, monkeypatch):
    files = ["--source", runs / "train.source", "--target", runs / "train.target", "--out", "run"]
    words = ["train", "translation", *files, *SMALL, "vocabulary.kind=character"]
    assert b"4 updates (training.max_updates)" in call(*words).out
    monkeypatch.setenv("RANK", "1")
    assert call(*words).out == b""


def test_the_command_for_more_updates_names_no_warm_up_of_the_recipe(call, runs):
    files = ["--source", runs / "train.source", "--target", runs / "train.target", "--out", "run"]
    words = ["train", "translation", *files, *SMALL, "vocabulary.kind=character"]
    assert call(*words).code == 0
    refused = call(*words, "training.max_updates=50")
    assert "training.max_updates=46" in refused.err
    assert "warmup_updates=" not in refused.err.partition("--from")[2]


@pytest.mark.parametrize("name", ["config.yaml", "vocabulary.json", "model/model.safetensors", "model/manifest.json"])
def test_a_damaged_run_is_refused_by_file(call, runs, tmp_path, name):
    import shutil

    shutil.copytree(runs / "bpe", tmp_path / "run")
    path = tmp_path / "run" / name
    content = bytearray(path.read_bytes())
    if name.endswith("safetensors"):
        content[-3] ^= 1
    else:
        content = content[: len(content) // 2]
    path.write_bytes(content)
    answer = call("translate", "run", stdin=b"a b\n")
    assert answer.code == 2
    assert path.name in answer.err
    assert answer.err.count("\n") == 1
