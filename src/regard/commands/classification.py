"""The verbs of labelled sentences: `regard classify`, `entail` and `explain`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.commands.options import Files, JsonInput, RunFolder
from regard.commands.streaming import answer_lines, input_chunks, text_reader
from regard.commands.terminal import write_line, write_message
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.commands.streaming import InputItem
    from regard.tasks.classification_prediction import LabelPrediction

commands = typer.Typer()

JsonLines = Annotated[bool, typer.Option("--json", help="one JSON object per line: the label and all probabilities")]
Timing = Annotated[bool, typer.Option("--timing", help="print sentences per second to standard error, as JSON")]


@commands.command()
def classify(
    run: RunFolder, files: Files = None, json_lines: JsonLines = False, json_input: JsonInput = False, timing: Timing = False
) -> None:
    """Classify each line.

    Writes one label per input line, always; an empty line gives an empty line.
    """
    from regard.tasks.classification import Classifier

    classifier = Classifier.open(run)
    read = text_reader(("text",) if json_input else None)
    _write_labels(input_chunks("a text", files), read, classifier.classify, json_lines or json_input, timing)


@commands.command()
def entail(
    run: RunFolder,
    files: Files = None,
    json_lines: JsonLines = False,
    json_input: Annotated[
        bool, typer.Option("--json-input", help='read JSON objects, {"id": ..., "premise": "...", "hypothesis": "..."}; answer with JSON')
    ] = False,
    timing: Timing = False,
) -> None:
    """Classify pairs of premise and hypothesis.

    Each line holds a premise, a tab and a hypothesis. Writes one label per input line, always; any other line gives an empty line.
    """
    from regard.tasks.classification import Entailer, Pair, split_pair

    entailer = Entailer.open(run)

    def pair_of(number: int, line: str) -> Pair:
        pair = split_pair(line)
        if pair is None and line.strip():
            write_message(
                f"line {number}: expected a premise, a tab and a hypothesis, found {line.count(chr(9)) + 1} columns; no label for it"
            )
        return pair or ("", "")

    read = text_reader(("premise", "hypothesis") if json_input else None, pair_of)
    _write_labels(input_chunks("a premise, a tab and a hypothesis", files), read, entailer.entail, json_lines or json_input, timing)


@commands.command()
def explain(
    run: RunFolder,
    examples: Annotated[str, typer.Option(help="labelled examples to explain")],
    max_words: Annotated[int, typer.Option(min=1, help="remove 1 up to this many words")] = 5,
    random_draws: Annotated[int, typer.Option(min=1, help="random draws of words per example")] = 5,
    seed: Annotated[int, typer.Option(min=0, help="of the random draws")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results to this JSON file")] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=".html page or .json records: the most attended words of each label")
    ] = None,
) -> None:
    """Explain a classifier by its attention.

    Reports the most attended words of each label, the overlap of the hops, and whether the attended words decide the label.
    """
    from regard.data.lines import write_files
    from regard.tasks.attention_records import save_records
    from regard.tasks.explain import describe_explanation, explain_run

    if json_file is not None and json_file == output:
        raise ConfigError(f"--json and --output: both name {output}")
    if output is not None and output.suffix.lower() not in (".html", ".json"):
        raise ConfigError(f"{output}: expected a name ending in .html or .json")
    found = explain_run(run, examples, max_words=max_words, random_draws=random_draws, seed=seed)
    describe_explanation(found, write_line)
    if json_file is not None:
        write_files({json_file: (json.dumps({"run": str(run), **found.to_json()}, indent=1, ensure_ascii=False) + "\n").encode()})
    if output is not None:
        save_records(found.records, output)
        write_line(f"{output}: {len(found.records)} labels")


def _write_labels(
    chunks: Iterable[list[str]],
    read: Callable[[int, str], InputItem],
    work: Callable[[list[Any]], Iterable[LabelPrediction]],
    json_lines: bool,
    timing: bool,
) -> None:
    from regard.data.lines import single_line

    def show(number: int, item: LabelPrediction) -> str:
        if item.truncated:
            write_message(f"line {number}: {item.truncated} tokens at the end were cut off (data.max_length)")
        return single_line(item.label)

    started = time.perf_counter()
    count, bad = answer_lines(chunks, read, work, show, json_lines=json_lines)
    if timing:
        seconds = time.perf_counter() - started
        print(json.dumps({"lines": count, "seconds": seconds, "sentences_per_second": count / seconds}), file=sys.stderr)
    if bad:
        raise typer.Exit(1)
