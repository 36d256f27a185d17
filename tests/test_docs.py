"""What the documents say is run: every Python block, every command, every table, every file named in the tree of ARCHITECTURE.md.

Each console block says on the line above it how it is held to its word:

- `<!-- runs -->`: its `regard` lines are run in order, in a folder with the small files of `sample_files`, and must succeed.
- `<!-- parses: reason -->`: its `regard` lines are only parsed: the verb and every option must exist. The reason says why they do not run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

from benchmarks.fill_tables import EMPTY, fill, stale_documents
from benchmarks.targets import long_work, speed, translation
from regard.cli import app
from regard.commands.examples import EXAMPLES
from regard.commands.shared_options import with_shared_options
from regard.config import TASKS, AttentionConfig
from regard.config.study import METRICS, TEST_FILES

ROOT = Path(__file__).parents[1]
# What stands in docs/results is written by commands.
DOCUMENTS = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
FENCE = re.compile(r"(?:^<!-- (?P<marker>runs|parses: [^\n]+?) -->\n)?^```(?P<language>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
# One process for all blocks and commands: nearly all the time of one goes into importing torch.
RUN_ALL = """
import json, os, runpy, sys, traceback
from regard.cli import main

failed, (result, plan) = {}, sys.argv[1:]
with open(plan, encoding="utf-8") as file:
    scripts, documents = json.load(file)
for script in scripts:
    os.chdir(os.path.dirname(script))
    sys.argv = [script]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        failed[script] = traceback.format_exc()
for folder, commands in documents.items():
    os.chdir(folder)
    for words, given, kept in commands:
        # As a process begins: descriptors of its own, and streams over them.
        for descriptor, path, flags in ((0, given, os.O_RDONLY), (1, kept, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
            opened = os.open(path, flags, 0o666)
            os.dup2(opened, descriptor)
            os.close(opened)
        sys.stdin, sys.stdout = open(0, encoding="utf-8", closefd=False), open(1, "w", encoding="utf-8", closefd=False)
        sys.argv = words
        code = 0
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code
        sys.stdout.flush()
        if code:
            failed[folder] = f"{' '.join(words)} ended with {code}"
            break
with open(result, "w", encoding="utf-8") as file:
    json.dump(failed, file)
"""
# Programs of the reader's own machine: nothing of ours to check.
READERS_OWN = {"git", "cd", "curl", "pip", "python3", "source", "export", "echo", "read", "exec"}


class Block(NamedTuple):
    document: Path
    line: int
    language: str
    marker: str
    body: str

    @property
    def name(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"

    def commands(self) -> Iterator[list[str]]:
        """Give each command as words; a leading `$ ` and comments are left out, a trailing backslash joins lines."""
        for line in self.body.replace("\\\n", " ").splitlines():
            words = words_of(line.removeprefix("$ "))
            if words:
                yield words


def words_of(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="<>|&;")
    lexer.whitespace_split = True
    return list(lexer)


def blocks(document: Path, text: str | None = None) -> list[Block]:
    text = document.read_text(encoding="utf-8") if text is None else text
    return [
        Block(document, text.count("\n", 0, match.start("language")) + 1, match["language"], match["marker"] or "", match["body"])
        for match in FENCE.finditer(text)
    ]


ALL = [block for document in DOCUMENTS for block in blocks(document)]
CONSOLE = [block for block in ALL if block.language in {"console", "bash", "sh", "shell"}]
PYTHON = [block for block in ALL if block.language == "python"]


def sample_files(folder: Path) -> None:
    """Write the files the documents speak of: pairs a model can learn something from, in seconds."""
    words = [
        ("a", "ein", "un"),
        ("red", "roter", "rouge"),
        ("big", "grosser", "grand"),
        ("dog", "Hund", "chien"),
        ("ball", "Ball", "ballon"),
        ("sleeps", "schläft", "dort"),
        ("falls", "fällt", "tombe"),
    ]
    pairs = [[words[0], words[1 + i % 2], words[3 + i // 2 % 2], words[5 + i // 4 % 2]] for i in range(8)]
    for name, repeats in (("train", 8), ("valid", 1), ("test", 1)):
        for side, suffix in enumerate(("en", "de", "fr")):
            lines = [" ".join(pair[side] for pair in sentence) for sentence in pairs] * repeats
            (folder / f"{name}.{suffix}").write_text("\n".join(lines) + "\n", encoding="utf-8")


def do_nothing(*_: Any, **__: Any) -> None:
    """Stand in for a verb, so that its command line is read and nothing happens."""


def check_parses(words: list[str]) -> None:
    """Fail unless the command line reads a `regard` command: its verb, options, values and number of arguments."""
    command: Any = with_shared_options(app)
    for verb in command.commands.values():
        for leaf in getattr(verb, "commands", {"": verb}).values():
            made = leaf.callback()
            made.invoke = do_nothing
            for parameter in made.params:
                if parameter.name == "run":
                    parameter.callback = None  # the reader's run folder need not exist
            leaf.callback = lambda made=made: made
    try:
        command.main(args=words[1:], prog_name="regard", standalone_mode=False)
    except Exception as error:  # the classes of errors belong to whichever parser typer carries
        pytest.fail(f"{shlex.join(words)}: {error}")


def without_redirections(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Split `regard x < a > b` into its words and {"<": "a", ">": "b"}; any other punctuation of a shell is refused."""
    kept, redirected = [], {}
    rest = iter(words)
    for word in rest:
        if word in {"<", ">"}:
            redirected[word] = next(rest)
        else:
            assert not re.fullmatch(r"[<>|&;]+", word), f"{shlex.join(words)}: only < and > can be run"
            kept.append(word)
    return kept, redirected


@pytest.fixture(scope="module")
def failures(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run what is asked for of all documents, in a process of its own: what went wrong, "" for nothing, by block or document.

    A Python block has a folder and a namespace of its own; the commands of a document share a folder and run in order.
    """
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    asked = {item.callspec.id for item in items if hasattr(item, "callspec")}
    scripts: dict[str, str] = {}
    documents: dict[str, str] = {}
    plan: dict[str, list[tuple[list[str], str, str]]] = {}
    for block in PYTHON:
        if block.name in asked:
            folder = tmp_path_factory.mktemp("block")
            sample_files(folder)
            scripts[str(folder / "block.py")] = block.name
            (folder / "block.py").write_text(block.body, encoding="utf-8")
    for name in documents_that_run():
        if name in asked:
            folder = tmp_path_factory.mktemp("document")
            sample_files(folder)
            documents[str(folder)] = name
            plan[str(folder)] = []
            for number, command in enumerate(commands_that_run(name)):
                words, redirected = without_redirections(command)
                plan[str(folder)].append((words, redirected.get("<", os.devnull), redirected.get(">", f".{number}.out")))
    folder = tmp_path_factory.mktemp("all")
    result = folder / "failures.json"
    (folder / "plan.json").write_text(json.dumps([list(scripts), plan]), encoding="utf-8")
    arguments = [sys.executable, "-c", RUN_ALL, str(result), str(folder / "plan.json")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    failed = json.loads(result.read_text(encoding="utf-8"))
    errors = f"\n{done.stderr}" if failed else ""
    return {subject: failed[name] + errors if name in failed else "" for name, subject in (scripts | documents).items()}


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_a_python_block_runs(block: Block, failures: dict[str, str]) -> None:
    if "regard.integrations.onnx" in block.body:
        pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    assert failures[block.name] == ""


@pytest.mark.parametrize("block", CONSOLE, ids=lambda block: block.name)
def test_a_console_block_names_only_what_exists(block: Block) -> None:
    assert block.marker, f"{block.name}: say <!-- runs --> or <!-- parses: reason --> on the line above the block"
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for words in block.commands():
        if words[0] in ("regard", "torchrun", "coproc"):  # torchrun has options of its own before ours
            check_parses(without_redirections(words[words.index("regard") :])[0])
        elif words[0] == "make":
            named = [word for word in words[1:] if "=" not in word]
            assert set(named) <= set(targets), f"{block.name}: the Makefile has no target for {named}"
        elif words[0] == "python":
            assert (ROOT / words[1]).is_file(), f"{block.name}: there is no {words[1]}"
        else:
            assert words[0] in READERS_OWN, f"{block.name}: {words[0]!r} is not a command this test knows"


def documents_that_run() -> list[str]:
    return sorted({str(block.document.relative_to(ROOT)) for block in CONSOLE if block.marker == "runs"})


def commands_that_run(document: str) -> list[list[str]]:
    return [words for block in CONSOLE if block.document == ROOT / document and block.marker == "runs" for words in block.commands()]


@pytest.mark.parametrize("document", documents_that_run())
def test_the_commands_of_a_document_run_in_order(document: str, failures: dict[str, str]) -> None:
    assert [words for words in commands_that_run(document) if words[0] != "regard"] == [], "only `regard` commands can be marked as run"
    assert failures[document] == ""


@pytest.mark.parametrize(("command", "line"), [(command, line) for command, lines in EXAMPLES.items() for line in lines])
def test_the_examples_of_the_help_parse(command: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = words_of(line)
    assert words[1 : len(command.split()) + 1] == command.split()
    check_parses(without_redirections(words)[0])
    with_shared_options(app)([*command.split(), "--help"], standalone_mode=False)
    assert f"  {line}\n" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["regard nothing", "regard demo --no-such-option x", "regard demo too many", "regard translate"])
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises(pytest.fail.Exception):
        check_parses(shlex.split(line))


def test_a_block_knows_its_marker_and_its_commands() -> None:
    text = "<!-- parses: takes an hour -->\n```console\n$ regard translate RUN \\\n    < in > out  # as a filter\n```\n\n```text\nx\n```\n"
    found = blocks(ROOT / "README.md", text)
    assert [(block.language, block.marker) for block in found] == [("console", "parses: takes an hour"), ("text", "")]
    assert list(found[0].commands()) == [["regard", "translate", "RUN", "<", "in", ">", "out"]]
    assert without_redirections(["regard", "translate", "RUN", "<", "in"]) == (["regard", "translate", "RUN"], {"<": "in"})


def test_every_table_is_what_its_file_holds() -> None:
    assert stale_documents(ROOT, write=False) == []


def test_a_table_is_written_between_its_marks(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text('{"columns": ["model", "BLEU"], "rows": [["a|b", 37.0], ["c", null]], "note": "One run."}')
    text = "x\n<!-- table:speed -->\nold\n<!-- /table -->\n<!-- table:other -->\n<!-- /table -->\ny\n"
    table = "| model | BLEU |\n| --- | --: |\n| a\\|b | 37.0 |\n| c | \u2013 |\n\nOne run."
    expected = f"x\n<!-- table:speed -->\n{table}\n<!-- /table -->\n<!-- table:other -->\n{EMPTY}\n<!-- /table -->\ny\n"
    assert fill(text, tmp_path) == expected
    assert fill(expected, tmp_path) == expected


def test_a_figure_over_its_target_is_missed(tmp_path: Path) -> None:
    again = [["restart: seconds to the next update", 9.5], ["restart: of these, the update", 2.5]]
    corpus = {"columns": ["pairs", "2,000,000"], "rows": [["first start: seconds to the first update", 90.0], *again]}
    rows = [["study", 2, by, 100, over, killed, same] for by, over, killed, same in (("Ray", 1.06, 0, "yes"), ("Ray", 2.0, 7, "NO"))]
    names = ["work", "workers", "by", "seconds", "over processes", "workers killed", "same bytes"]
    files = {"corpus": corpus, "cluster": {"columns": names, "rows": rows}}
    for name, table in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(table))
    states = {row[0]: (row[2], row[3]) for row in long_work(tmp_path)["rows"]}
    assert states["2,000,000 pairs, first start: seconds to the first update"] == (90.0, "met")
    assert states["2,000,000 pairs, restart: seconds to the next update"] == (9.5, "missed")
    assert states["2,000,000 pairs, restart: seconds until this update begins"] == (7.0, "missed")
    assert states["20,000,000 pairs, first start: peak memory"] == (None, "not measured")
    assert states["study on Ray, 2 workers: time over processes"] == (1.06, "missed")
    assert states["study on Ray, 2 workers, 7 killed"] == ("NO", "missed")
    assert states["progress: time over --quiet"] == (None, "not measured")


def test_targets_of_speed_are_met_missed_or_not_measured(tmp_path: Path) -> None:
    names = ["model", "beside", "one thread, tokens/s", "workers, tokens/s", "workers / threads", "workers / one thread", "of idle"]
    rows = [["Transformer", "nothing", 100, 150, 1.0, 1.5, 1.0, 1.6], ["Transformer", "4 at nice 19", 60, 79, 1.0, 1.5, 1.0, 1.61]]
    rows += [["Transformer", company, 100, 50, 1.0, ratio, 0.44, 1.2] for company, ratio in (("1", 0.9), ("2", 0.89), ("4", 2.0))]
    busy = {"columns": [*names, "MiB, workers / threads"], "rows": rows, "demo": {"1": 151.0}}
    (tmp_path / "busy.json").write_text(json.dumps(busy))
    states = {row[0]: (row[2], row[3]) for row in speed(tmp_path)["rows"]}
    assert states["Transformer on two idle cores: workers over threads"] == (1.0, "met")
    assert states["Transformer beside one program, over threads on idle cores"] == (0.44, "missed")
    assert states["Transformer beside four programs at nice 19, over one thread on an idle core"] == (0.79, "missed")
    assert states["Transformer beside one, two or four programs, over one thread there: the lowest"] == (0.89, "missed")
    assert states["Transformer: memory of workers over threads, at the start"] == (1.6, "met")
    assert states["Transformer: memory of workers over threads, the highest"] == (1.61, "missed")
    assert states["recurrent: memory of workers over threads, the highest"] == (None, "not measured")
    assert states["the demonstration beside one program"] == (151.0, "missed")
    assert states["start: `regard --help`"] == (None, "not measured")


def test_targets_of_translation_are_met_missed_or_not_measured(tmp_path: Path) -> None:
    columns = ["model", "decoding", "sentences/s", "over the teacher", "over no shortlist", "over the teacher in CTranslate2", "BLEU"]
    students = [["teacher", "Regard", 7, 1.0, None, 0.9, 30.1], ["small", "Regard", 17, 2.4, None, 1.4, 29.6]]
    students += [["small", "Regard, shortlist", 22, 3.1, 1.21, 1.5, 29.3], ["small", "Regard int8", 19, 2.7, None, 1.4, 29.5]]
    (tmp_path / "students.json").write_text(json.dumps({"columns": columns, "rows": students}))
    links = [["dates", "Transformer", "known", "1.01 (0.50 to 2.00)"], ["dates", "Transformer", "none", "9.00 (8.00 to 9.50)"]]
    pointing = {"columns": ["data", "model", "links in training", "alignment error, %"], "rows": links}
    (tmp_path / "pointing.json").write_text(json.dumps(pointing))
    rows = [["Transformer", "none", "30.50 (30.00 to 31.00)"], ["Transformer", "of the recurrent model", "30.21 (30.00 to 31.00)"]]
    (tmp_path / "pointing_multi30k.json").write_text(json.dumps({"columns": ["model", "links in training", "BLEU"], "rows": rows}))
    states = {row[0]: (row[2], row[3]) for row in translation(tmp_path)["rows"]}
    assert states == {
        "three terms a line: time over none": (None, "not measured"),
        "alignment error, dates, Transformer": (1.01, "missed"),
        "guided alignment on Multi30k: BLEU that it loses": (0.29, "met"),
        "shortlist, speed: small, Regard, shortlist": (1.21, "met"),
        "shortlist, BLEU that it loses: small, Regard, shortlist": (0.3, "missed"),
        "student, speed over the teacher: small, Regard, shortlist": (3.1, "met"),
        "student, BLEU below the teacher: small, Regard, shortlist": (0.8, "missed"),
        "student, speed over the teacher in CTranslate2 int8 with its vocabulary map: small, Regard, shortlist": (1.5, "met"),
    }


def test_a_table_with_a_row_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text('{"columns": ["model", "BLEU"], "rows": [["a", 1], ["b"]]}')
    with pytest.raises(ValueError, match=r"speed\.json: row 2 has 1 cells, but there are 2 columns"):
        fill("<!-- table:speed -->\n<!-- /table -->", tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"columns": []}'])
def test_a_file_that_holds_no_table_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "speed.json").write_text(text)
    with pytest.raises(ValueError, match=r"speed\.json: "):
        fill("<!-- table:speed -->\n<!-- /table -->", tmp_path)


def test_a_block_that_is_not_closed_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("<!-- table:a -->\n<!-- table:b -->\n<!-- /table -->\n")
    with pytest.raises(ValueError, match=r"README\.md: a table block"):
        stale_documents(tmp_path, write=False)


def tree_entries() -> list[str]:
    """Return the paths of the file tree of ARCHITECTURE.md, each whole."""
    body = next(block.body for block in blocks(ROOT / "ARCHITECTURE.md") if block.body.startswith("src/regard/"))
    folders: list[str] = []
    paths = []
    for line in body.splitlines():
        depth = (len(line) - len(line.lstrip(" "))) // 2
        for name in re.split(r"  +", line.strip())[0].split():
            folders = [*folders[:depth], name]
            paths.append("".join(folders))
    return paths


def test_the_file_tree_names_what_exists_and_all_of_the_package() -> None:
    entries = tree_entries()
    assert [entry for entry in entries if not (ROOT / entry).exists()] == []
    package = ROOT / "src" / "regard"
    parts = [
        path for path in package.iterdir() if not path.name.startswith("__") and (path.suffix == ".py" or (path / "__init__.py").exists())
    ]
    expected = {f"src/regard/{path.name}" + ("/" if path.is_dir() else "") for path in parts}
    assert expected - set(entries) == set()


def prose(document: Path) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(document: Path) -> set[str]:
    """Return the names by which a document's headings are linked to."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(document: Path) -> list[str]:
    """Return the links to files that are not there, and to headings that a document does not have."""
    dead = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(document)):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    assert dead_links(document) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(
        "# The *one*, then\n[a](#the-one-then) [b](#two) [c](b.md) [d](a.md#the-one-then) [e](https://x.y)\n```\n# no\n```\n[f](#no)\n"
    )
    assert dead_links(document) == ["#two", "b.md", "#no"]


def test_the_table_of_mechanisms_names_every_score_and_window_there_is() -> None:
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    fields = AttentionConfig.model_fields
    names = [*get_args(fields["score"].annotation), *get_args(fields["window"].annotation)]
    assert [name for name in names if f"={name}`" not in text] == []


def test_the_table_of_a_study_has_the_keys_and_metrics_of_each_task() -> None:
    text = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")
    rows = [re.findall(r"`([^`]+)`", line) for line in text.splitlines() if re.match(rf"\| `({'|'.join(TASKS)})` \| `", line)]
    assert rows == [[task, *type(config().data).model_fields, *TEST_FILES[task], *METRICS[task]] for task, config in TASKS.items()]
