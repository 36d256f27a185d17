"""The verbs of labelled sentences: `regard train classification` and `entailment`, `regard classify`, `entail` and `explain`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.commands.options import Config, Out, Overrides, PrintConfig, RunFolder
from regard.commands.terminal import note, read_input, say, write
from regard.commands.train import run_training, settings_for, training
from regard.config import ClassificationConfig, EntailmentConfig
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.tasks.labelling import Labelling

commands = typer.Typer()

Train = Annotated[str | None, typer.Option(help="labelled examples: .jsonl, .tsv, or lines of a label and a text (.gz too)")]
Valid = Annotated[str | None, typer.Option(help="validation examples; without, some training examples are held out")]
Test = Annotated[str | None, typer.Option(help="measure the trained run on these examples at the end")]
Vectors = Annotated[str | None, typer.Option(help="word vectors to start from: the text format of GloVe and word2vec (.gz too)")]
Files = Annotated[list[Path] | None, typer.Argument(metavar="[FILE]...", help="files of lines; without, standard input")]
JsonLines = Annotated[bool, typer.Option("--json", help="one JSON object a line: the label and the probability of each")]
Timing = Annotated[bool, typer.Option("--timing", help="report sentences per second on standard error, as JSON")]


@training.command("classification")
def train_classification(
    overrides: Overrides = None,
    out: Out = None,
    config: Config = None,
    train: Train = None,
    valid: Valid = None,
    test: Test = None,
    vectors: Vectors = None,
    print_config: PrintConfig = False,
) -> None:
    """Train a model that labels sentences."""
    settings = settings_for(ClassificationConfig, config, overrides, {"train": train, "valid": valid, "vectors": vectors}, print_config)
    _train(settings, out, test)


@training.command("entailment")
def train_entailment(
    overrides: Overrides = None,
    out: Out = None,
    config: Config = None,
    train: Train = None,
    valid: Valid = None,
    test: Test = None,
    vectors: Vectors = None,
    print_config: PrintConfig = False,
) -> None:
    """Train a model that labels pairs of a premise and a hypothesis."""
    settings = settings_for(EntailmentConfig, config, overrides, {"train": train, "valid": valid, "vectors": vectors}, print_config)
    _train(settings, out, test)


@commands.command()
def classify(run: RunFolder, files: Files = None, json_lines: JsonLines = False, timing: Timing = False) -> None:
    """Label each line: one label out for each line in, always; an empty line gives an empty line."""
    from regard.tasks.classification import Classifier

    classifier = Classifier.open(run)
    _write_labels(classifier.stream(_lines(files)), json_lines, timing)


@commands.command()
def entail(run: RunFolder, files: Files = None, json_lines: JsonLines = False, timing: Timing = False) -> None:
    """Label each line of a premise, a tab and a hypothesis: one label out for each line in, always; any other line gives an empty line."""
    from regard.tasks.entailment import Entailer, Pair, split_pair

    entailer = Entailer.open(run)

    def pairs() -> Iterator[Pair]:
        for number, line in enumerate(_lines(files), start=1):
            pair = split_pair(line)
            if pair is None and line.strip():
                note(f"line {number}: expected a premise, a tab and a hypothesis, found {line.count(chr(9)) + 1} columns; no label for it")
            yield pair or ("", "")

    _write_labels(entailer.stream(pairs()), json_lines, timing)


@commands.command()
def explain(
    run: RunFolder,
    examples: Annotated[str, typer.Option(help="labelled examples to explain the run on")],
    most: Annotated[int, typer.Option(min=1, help="take away 1 up to so many words")] = 5,
    draws: Annotated[int, typer.Option(min=1, help="random choices of words for each example")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="of these")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures to this file")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=".html page or .json records: the most attended words of each label")
    ] = None,
) -> None:
    """Tell what a run that labels sentences looks at: the words of each label, whether hops look apart, whether it counts."""
    from regard.data.lines import write_files
    from regard.tasks.explain import describe_explanation, explain_run
    from regard.tasks.look import save_records

    if json_file is not None and json_file == output:
        raise ConfigError(f"--json and --output: both name {output}")
    if output is not None and output.suffix.lower() not in (".html", ".json"):
        raise ConfigError(f"{output}: expected a name ending in .html or .json")
    found = explain_run(run, examples, most=most, draws=draws, seed=seed)
    describe_explanation(found, say)
    if json_file is not None:
        write_files({json_file: (json.dumps({"run": str(run), **found.to_json()}, indent=1, ensure_ascii=False) + "\n").encode()})
    if output is not None:
        save_records(found.records, output)
        say(f"{output}: {len(found.records)} labels")


def _train(settings: ClassificationConfig | EntailmentConfig, out: Path | None, test: str | None) -> None:
    from regard.tasks.label_scores import describe_labels, evaluate_labels
    from regard.tasks.sentences import open_sentences, read_labelled, train_sentences

    examples = None if test is None else read_labelled(settings, test)
    run_training(train_sentences, settings, out)
    if examples is not None and out is not None:
        describe_labels(evaluate_labels(open_sentences(out, type(settings)), examples), say)


def _lines(files: list[Path] | None) -> Iterable[str]:
    from regard.data.lines import read_lines

    return (line for path in files for line in read_lines(path)) if files else read_input()


def _write_labels(found: Iterable[Labelling], json_lines: bool, timing: bool) -> None:
    from regard.data.lines import single_line

    started, count = time.perf_counter(), 0
    for count, item in enumerate(found, start=1):
        if item.truncated:
            note(f"line {count}: {item.truncated} tokens at the end were cut off (data.max_length)")
        write(json.dumps(item.to_json(), ensure_ascii=False) if json_lines else single_line(item.label))
    if timing:
        seconds = time.perf_counter() - started
        print(json.dumps({"lines": count, "seconds": seconds, "sentences_per_second": count / seconds}), file=sys.stderr)
