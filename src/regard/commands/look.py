"""The verbs `regard evaluate` and `regard view`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from regard.choices import LinkUnit
from regard.commands.options import BatchSize, Beam, LengthPenalty, MaxLength, Others, RunFolder
from regard.commands.terminal import read_input, say, width
from regard.commands.translation import chosen_decoding
from regard.errors import ConfigError, DataError

commands = typer.Typer()


@commands.command()
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
    decoding = chosen_decoding(translator.run.config, **changes)
    evaluation = evaluate_translation(translator, pairs, decoding=decoding, links=known)
    describe(evaluation, say)
    report = {
        "run": str(run),
        "with": [str(path) for path in others or []],
        "source": source,
        "decoding": decoding.model_dump(mode="json"),
        **evaluation.to_json(),
    }
    if other is not None:
        outputs = [
            item.text for item in other.translate([pair[0] for pair in pairs], decoding=chosen_decoding(other.run.config, **changes))
        ]
        found = paired_bootstrap(evaluation.outputs, outputs, [pair[1] for pair in pairs])
        report["against"] = describe_comparison(found, str(against), say)
    contents = {}
    if json_file is not None:
        contents[json_file] = (json.dumps(report, indent=1, ensure_ascii=False) + "\n").encode()
    if output is not None:
        contents[output] = "".join(line + "\n" for line in evaluation.outputs).encode()
    write_files(contents)


@commands.command()
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
        records = side_by_side(runs, text if text is not None else list(read_input()), target=target, beam=beam)
    chosen: dict[str, Any] = {"map": map_, "head": None if head is None else head - 1}
    if output is not None:
        save_records(records, output, **chosen)
        say(f"{output}: {len(records)} {'example' if len(records) == 1 else 'examples'}")
        return
    say("\n\n".join(render_alignment(record, width=width(), color=sys.stdout.isatty(), **chosen) for record in records))
