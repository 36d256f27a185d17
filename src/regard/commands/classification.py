"""The commands `regard classify` and `regard entail`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.commands.options import Files, JsonInput, RunFolder
from regard.commands.streaming import InputItem, answer_lines, input_chunks, text_reader
from regard.commands.terminal import write_message
from regard.errors import counted

if TYPE_CHECKING:
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
    from regard.tasks.classification_prediction import Classifier

    classifier = Classifier.open(run)
    read = text_reader(("text",) if json_input else None)
    _write_labels(files, "a text", read, classifier.classify, json_lines or json_input, timing)


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

    Each line holds a premise, a tab and a hypothesis. Writes one label per input line, always. A line with an empty
    premise or hypothesis gives an empty line; so does any other line, with an error, and exit code 1 at the end.
    """
    from regard.tasks.classification_prediction import Entailer, split_pair

    entailer = Entailer.open(run)

    def read(number: int, line: str) -> InputItem:
        pair = split_pair(line)
        if pair is None and line.strip():
            found = counted(line.count("\t") + 1, "column")
            error = f"line {number}: expected a premise, a tab and a hypothesis, found {found}"
            write_message(f"error: {error}")
            return InputItem(None, {"error": error})
        return InputItem(pair or ("", ""), {})

    reader = text_reader(("premise", "hypothesis")) if json_input else read
    _write_labels(files, "a premise, a tab and a hypothesis", reader, entailer.entail, json_lines or json_input, timing)


def _write_labels(
    files: Files,
    awaited: str,
    read: Callable[[int, str], InputItem],
    work: Callable[[list[Any]], Iterable[LabelPrediction]],
    json_lines: bool,
    timing: bool,
) -> None:
    from regard.data.lines import single_line

    def show(number: int, item: LabelPrediction) -> str:
        if item.truncated:
            write_message(f"line {number}: cut off {counted(item.truncated, 'token')} at the end (data.max_length)")
        return single_line(item.label)

    started = time.perf_counter()
    count, bad = answer_lines(input_chunks(awaited, files), read, work, show, json_lines=json_lines, files=files)
    if timing:
        seconds = time.perf_counter() - started
        print(json.dumps({"lines": count, "seconds": seconds, "sentences_per_second": count / seconds}), file=sys.stderr)
    if bad:
        raise typer.Exit(1)
