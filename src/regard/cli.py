"""The command line: one function a verb. torch is imported inside the verbs, so that help answers at once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard import __version__
from regard.choices import Generated, LinkUnit, Precision, Table, Task
from regard.config import DecodingConfig, RunConfig, dump_config, load_config
from regard.errors import ConfigError, DataError, RegardError
from regard.integrations.command import commands as exchange_commands
from regard.serve.command import commands as serve_commands

app = typer.Typer(
    help="Attention models: train them, use them, measure them, look at them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(serve_commands)
app.add_typer(exchange_commands)

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder made by `regard train`")]
Beam = Annotated[int | None, typer.Option(min=1, help="hypotheses kept; 1 is greedy search")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="sentences decoded together")]
MaxLength = Annotated[int | None, typer.Option(min=1, help="tokens generated at most")]
Others = Annotated[
    list[Path] | None, typer.Option("--with", metavar="RUN", help="average the probabilities with another run's; may be repeated")
]
LengthPenalty = Annotated[float | None, typer.Option(min=0.0, help="alpha of ((5 + length) / 6) ** alpha")]


@app.command()
def demo(out: Annotated[Path, typer.Option(help="folder for everything it writes")] = Path("runs/demo")) -> None:
    """Train a small attention model on generated dates, score it, and show where it looked."""
    from regard.tasks.demo import run_demo

    run_demo(out, say=_say, color=sys.stdout.isatty(), width=_width())


@app.command()
def train(
    task: Annotated[Task, typer.Argument(help="what to train")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[key.sub=value]...", help="settings, see `regard list settings`")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="the run folder; an interrupted run there is resumed")] = None,
    config: Annotated[Path | None, typer.Option(help="settings in a YAML file")] = None,
    source: Annotated[str | None, typer.Option(help="training sources, one a line (.gz too); or one .jsonl or .tsv file of pairs")] = None,
    target: Annotated[str | None, typer.Option(help="training targets, line by line with the sources")] = None,
    valid_source: Annotated[str | None, typer.Option(help="validation sources; without, some training pairs are held out")] = None,
    valid_target: Annotated[str | None, typer.Option(help="validation targets")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="print the resolved settings and leave")] = False,
) -> None:
    """Train a model; the same command resumes it. Exit code 143 or 130 after SIGTERM or Ctrl-C, when all is saved."""
    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    settings = load_config(config, overrides or [], base={"task": task.value})
    given = {name: path for name, path in files.items() if path is not None}
    settings = settings.model_copy(update={"data": settings.data.model_copy(update=given)})
    if print_config:
        sys.stdout.write(dump_config(settings))
        return
    if out is None:
        raise ConfigError("--out RUN: needed, the folder the run goes to")
    from regard.tasks.translation import train_translation

    result = train_translation(settings, out, say=_say)
    if result.interrupted is not None:
        _note(f"stopped by signal {result.interrupted} after update {result.step}; the same command resumes")
        raise typer.Exit(128 + result.interrupted)
    _say(f"{result.step} updates ({result.reason}); model in {result.model}; sha256 of the last weights {result.weights_sha256}")


@app.command()
def translate(
    run: RunFolder,
    others: Others = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    coverage_penalty: Annotated[float | None, typer.Option(min=0.0, help="beta of the GNMT coverage penalty")] = None,
    no_repeat_ngram: Annotated[int | None, typer.Option(min=0, help="never generate the same n tokens twice")] = None,
    replace_unknown: Annotated[bool | None, typer.Option(help="put the source word most attended to for an unknown word")] = None,
    precision: Annotated[Precision | None, typer.Option(help="of matrix products; with bfloat16 some translations differ")] = None,
    n_best: Annotated[int, typer.Option(min=1, help="hypotheses for each line (as JSON lines)")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="draw instead of search")] = False,
    temperature: Annotated[float, typer.Option(help="with --sample")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="with --sample: from the k most probable tokens")] = 0,
    top_p: Annotated[float, typer.Option(help="with --sample: from the fewest tokens of this probability")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="with --sample")] = 1,
    json_lines: Annotated[bool, typer.Option("--json", help="one JSON object a line: text, tokens, log-probabilities, score")] = False,
    timing: Annotated[bool, typer.Option("--timing", help="report sentences per second on standard error, as JSON")] = False,
) -> None:
    """Translate standard input to standard output: one line out for each line in, always."""
    from regard.decoding import SamplingOptions
    from regard.tasks.translate import Translator

    if not sample and (temperature, top_k, top_p, seed) != (1.0, 0, 1.0, 1):
        raise ConfigError("--temperature, --top-k, --top-p, --seed: only with --sample")
    translator = Translator.open(run, *(others or []))
    decoding = _decoding(
        translator.run.config,
        beam=beam,
        length_penalty=length_penalty,
        max_length=max_length,
        batch_size=batch_size,
        coverage_penalty=coverage_penalty,
        no_repeat_ngram=no_repeat_ngram,
        replace_unknown=replace_unknown,
        precision=precision and precision.value,
    )
    sampling = None
    if sample:
        import torch

        torch.manual_seed(seed)
        sampling = SamplingOptions(temperature=temperature, top_k=top_k, top_p=top_p, num_samples=n_best)
    started, lines, tokens = time.perf_counter(), 0, 0
    for number, item in enumerate(translator.stream(_input(), decoding=decoding, n_best=n_best, sampling=sampling), start=1):
        if item.truncated:
            _note(f"line {number}: {item.truncated} tokens past the first {len(item.source.ids)} were cut off (data.max_length)")
        _write(json.dumps(item.to_json(), ensure_ascii=False) if json_lines or n_best > 1 else item.text)
        lines, tokens = number, tokens + (len(item.hypotheses[0].tokens) if item.hypotheses else 0)
    if timing:
        seconds = time.perf_counter() - started
        rates = {"sentences_per_second": lines / seconds, "tokens_per_second": tokens / seconds}
        print(json.dumps({"lines": lines, "tokens": tokens, "seconds": seconds, **rates}), file=sys.stderr)


@app.command()
def evaluate(
    run: RunFolder,
    source: Annotated[str, typer.Option(help="test sources; or one .jsonl or .tsv file of pairs")],
    target: Annotated[str | None, typer.Option(help="references")] = None,
    others: Others = None,
    against: Annotated[Path | None, typer.Option(help="another run: is the difference in BLEU significant?")] = None,
    links: Annotated[
        Path | None, typer.Option(help="known alignments, lines of 3-4 (sure) and 3?4 (possible), source-target from 0")
    ] = None,
    link_unit: Annotated[LinkUnit, typer.Option(help="what the links count")] = LinkUnit.word,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the figures to this file")] = None,
    output: Annotated[Path | None, typer.Option(help="write the translations to this file")] = None,
) -> None:
    """Measure a run on sentence pairs: BLEU, chrF, exact match, perplexity, token accuracy, alignment error rate."""
    from regard.data.lines import write_files
    from regard.data.parallel import read_pairs
    from regard.metrics import paired_bootstrap
    from regard.tasks.evaluate import describe, describe_comparison, evaluate_translation, read_links
    from regard.tasks.translate import Translator

    if json_file is not None and json_file == output:
        raise ConfigError(f"--json and --output: both name {output}")
    pairs = read_pairs(source, target)
    unit: Literal["word", "character"] = link_unit.value
    known = read_links(links, unit) if links is not None else None
    translator = Translator.open(run, *(others or []))
    other = Translator.open(against) if against is not None else None
    changes: dict[str, Any] = {"beam": beam, "length_penalty": length_penalty, "max_length": max_length, "batch_size": batch_size}
    decoding = _decoding(translator.run.config, **changes)
    evaluation = evaluate_translation(translator, pairs, decoding=decoding, links=known)
    describe(evaluation, _say)
    report = {
        "run": str(run),
        "with": [str(path) for path in others or []],
        "source": source,
        "decoding": decoding.model_dump(mode="json"),
        **evaluation.to_json(),
    }
    if other is not None:
        outputs = [item.text for item in other.translate([pair[0] for pair in pairs], decoding=_decoding(other.run.config, **changes))]
        found = paired_bootstrap(evaluation.outputs, outputs, [pair[1] for pair in pairs])
        report["against"] = describe_comparison(found, str(against), _say)
    contents = {}
    if json_file is not None:
        contents[json_file] = (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode()
    if output is not None:
        contents[output] = "".join(line + "\n" for line in evaluation.outputs).encode()
    write_files(contents)


@app.command()
def view(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN|FILE...", help="run folders to compare, or files of records")],
    text: Annotated[
        list[str] | None, typer.Option(help="a sentence to translate and look at; may be repeated; without, standard input")
    ] = None,
    target: Annotated[str | None, typer.Option(help="look at this translation instead of the model's own")] = None,
    beam: Beam = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=".html page, .png .svg .pdf picture, .json records; without, the terminal")
    ] = None,
    map_: Annotated[str | None, typer.Option("--map", help="draw this map (in the terminal or a picture), not the alignment")] = None,
    head: Annotated[int | None, typer.Option(min=1, help="draw this head, not the mean of all")] = None,
) -> None:
    """Look at what models attended to: in the terminal, as a picture, or as one offline page."""
    from regard.tasks.look import save_records, side_by_side
    from regard.viewer import read_records, render_alignment

    if runs[0].is_file():
        if (text, target, beam) != (None, None, None):
            raise ConfigError(f"--text, --target, --beam: go with a run folder, {runs[0]} is a file of records")
        records = [record for path in runs for record in read_records(path)]
        if not records:
            raise DataError(f"{runs[0]}: holds no records")
    else:
        records = side_by_side(runs, text if text is not None else list(_input()), target=target, beam=beam)
    chosen: dict[str, Any] = {"map": map_, "head": None if head is None else head - 1}
    if output is not None:
        save_records(records, output, **chosen)
        _say(f"{output}: {len(records)} {'example' if len(records) == 1 else 'examples'}")
        return
    _say("\n\n".join(render_alignment(record, width=_width(), color=sys.stdout.isatty(), **chosen) for record in records))


@app.command()
def generate(
    kind: Annotated[Generated, typer.Argument(help="which set")],
    out: Annotated[Path, typer.Option(help="the folder to write to")],
    count: Annotated[int, typer.Option(min=1, max=10_000_000, help="training pairs")] = 10_000,
    test: Annotated[int, typer.Option(min=1, max=1_000_000, help="test pairs")] = 1_000,
    seed: Annotated[int, typer.Option(help="of the set")] = 1,
) -> None:
    """Write a generated set as parallel text with its known alignment."""
    from regard.tasks.generate import generate as write

    for path in write(kind.value, out, train=count, test=test, seed=seed):
        _say(str(path))


@app.command("list")
def list_(table: Annotated[Table, typer.Argument(help="what to list")] = Table.mechanisms) -> None:
    """List the mechanisms, the tasks, or every setting with its default."""
    from regard.listing import mechanisms, settings

    match table:
        case Table.mechanisms:
            # A reader gets paragraphs, a program one line each.
            lines: Iterable[str] = mechanisms(_width() if sys.stdout.isatty() else None)
        case Table.tasks:
            lines = [item.value for item in Task]
        case Table.settings:
            lines = settings(RunConfig)
    for line in lines:
        _say(line)


@app.command()
def parameters(
    config: Annotated[Path, typer.Argument(help="settings in a YAML file")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[key.sub=value]...")] = None,
    source_size: Annotated[int | None, typer.Option(min=4, help="entries of the source vocabulary; without, vocabulary.size")] = None,
    target_size: Annotated[int | None, typer.Option(min=4, help="entries of the target vocabulary; without, vocabulary.size")] = None,
) -> None:
    """Print how many parameters a configuration has, by part."""
    from regard.models import build

    settings = load_config(config, overrides or [])
    size = settings.vocabulary.size
    model = build(settings.model, source_size=source_size or size, target_size=target_size or size)
    for name, part in model.named_children():
        _say(f"{name:<20}{sum(p.numel() for p in part.parameters()):>14,}")
    _say(f"{'total (shared once)':<20}{sum(p.numel() for p in model.parameters()):>14,}")


@app.command()
def doctor() -> None:
    """Say what this installation uses and why."""
    from regard.tasks.doctor import report

    for line in report():
        _say(line)


def main() -> None:
    """Run the command line; every error a user can cause is one line on standard error and an exit code."""
    if sys.stderr is None:  # closed: nowhere to say anything, and print would take standard output instead
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - stays open as long as the process
    # Each shape of a product leaves a megabyte in these two caches, and every batch has its own shapes: 1,024 entries are gigabytes.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "512")
    try:
        sys.exit(_run())
    except BrokenPipeError:
        _forget_output()  # the reader has gone (`| head`)
        sys.exit(141)


def _run() -> int:
    try:
        if sys.stdout is None:
            raise DataError("standard output: closed; /dev/null takes what nobody wants to read")
        code = app(standalone_mode=False) or 0
        sys.stdout.flush()  # here, where it can still be told that it failed
        return code
    except RegardError as error:
        return _fail(" ".join(str(error).splitlines()), error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except SystemExit as leaving:
        # typer makes an exit code of its own of a broken pipe.
        if isinstance(leaving.__context__, BrokenPipeError):
            raise BrokenPipeError from leaving
        raise
    except BrokenPipeError:
        raise
    except Exception as error:
        # A wrong command line. The class is click's, which typer carries under a name of its own.
        explain, code = getattr(error, "format_message", None), getattr(error, "exit_code", 2)
        if explain is not None:
            return _fail(" ".join(explain().replace("Value error, ", "").split()) or "no command given; see regard --help", code)
        if isinstance(error, MemoryError) or "not enough memory" in str(error) or "allocate memory" in str(error):
            return _fail("not enough memory; a smaller model, --batch-size, --beam or training.batch_tokens needs less", 1)
        if isinstance(error, OSError):
            return _fail(f"{error.filename or 'input or output'}: {error.strerror or error}", 2)
        raise


def _fail(message: str, code: int) -> int:
    _note(f"error: {message}")
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _forget_output()
    return code


def _forget_output() -> None:
    # Else what is still buffered is tried once more when the interpreter ends, and fails there with a message of its own.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _note(message: str) -> None:
    print(f"regard: {message}", file=sys.stderr)


def _say(line: str) -> None:
    _write(line)
    sys.stdout.flush()


def _write(line: str) -> None:
    # UTF-8 whatever the locale says: what is written must be readable by every other tool.
    sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")


def _input() -> Iterator[str]:
    from regard.data.lines import iter_lines

    if sys.stdin is None:
        raise DataError("standard input: closed; give it lines to translate")
    return iter_lines(sys.stdin.buffer)


def _width() -> int:
    return max(20, shutil.get_terminal_size((120, 40)).columns) if sys.stdout.isatty() else 120


def _decoding(config: RunConfig, **changes: Any) -> DecodingConfig:
    from regard.tasks.translate import check_decoding

    decoding = config.decoding.model_copy(update={name: value for name, value in changes.items() if value is not None})
    check_decoding(config, decoding)
    return decoding


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="print the version and leave")] = False) -> None:
    if version:
        print(f"regard {__version__}")
        raise typer.Exit
