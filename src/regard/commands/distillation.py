"""The commands `regard shortlist` and `regard distill`: faster decoding with a trained model, and by a smaller one that it teaches."""

from __future__ import annotations

import glob
import json
import shlex
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.commands.options import (
    BatchSize,
    Beam,
    Cpus,
    DecodingPrecision,
    EnsembleRuns,
    Gpus,
    Languages,
    On,
    RunFolder,
    Workers,
    refuse_languages,
)
from regard.commands.terminal import write_line, write_message
from regard.errors import ConfigError, DataError, counted
from regard.input_files import folder_names
from regard.progress import stage

if TYPE_CHECKING:
    from regard.metrics.alignment import Links

commands = typer.Typer()

_BLOCK, _APART, _MOST_MEASURED = 4096, 20, 1000
# Folders and file in the folder of a distillation.
SOURCE, TARGET, ABOUT = "source", "target", "distill.json"


@commands.command()
def shortlist(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="sources to learn from, such as the training text, or a .jsonl, .tsv, .csv or .tmx file")],
    target: Annotated[Path | None, typer.Option(help="targets, line by line with the sources")] = None,
    languages: Languages = None,
    links: Annotated[Path | None, typer.Option(help="word links of the pairs; default: those of the run's attention")] = None,
    candidates: Annotated[int, typer.Option(min=1, help="target tokens per source token")] = 50,
    frequent: Annotated[int, typer.Option(min=0, help="most frequent target tokens, for every sentence")] = 100,
) -> None:
    """Learn the likely target words of each source word.

    The list is stored in the run.

    `regard translate --shortlist` and decoding.shortlist=true then compute only these outputs; `regard export --format ctranslate2` writes
    them as vmap.txt. Every 20th pair is left out, and up to 1,000 of these are measured.
    """
    from regard.tasks.shortlist import FILE, ShortlistCounts, measure_shortlist, write_shortlist
    from regard.tasks.translation_run import open_translation_run

    refuse_languages(languages, source, target)
    opened = open_translation_run(run)
    counts = ShortlistCounts(opened)
    if links is None and not opened.model.attends:
        raise ConfigError(f"--links FILE: needed, because {run} has no attention over the source to link words by")
    apart: list[tuple[str, str]] = []
    with stage("Counting linked words", unit="pairs") as counting:
        for pairs, own in _blocks(source, target, links, languages or opened.config.data.languages):
            kept = [number for number in range(len(pairs)) if number % _APART != _APART - 1]
            apart += pairs[_APART - 1 :: _APART]
            counts.add([pairs[number] for number in kept], None if own is None else [own[number] for number in kept])
            counting.advance(len(pairs))
    learned = counts.shortlist(candidates=candidates, frequent=frequent)
    if not learned.tokens:
        raise ConfigError(f"{source}: no word of these pairs is linked")
    write_shortlist(run, learned)
    write_line(f"{run / FILE}: {counted(len(learned.tokens), 'source token')}")
    with stage("Measuring the shortlist"):
        found = measure_shortlist(opened, learned, apart[:_MOST_MEASURED])
    if found.pairs:
        write_message(
            f"measured on {counted(found.pairs, 'pair')} held out: {found.tokens:.0f} of {len(opened.vocabularies.target)} tokens "
            f"per sentence, with {found.covered:.2%} of the tokens of the targets"
        )


def _blocks(
    source: Path, target: Path | None, links: Path | None, languages: tuple[str, str] | None
) -> Iterator[tuple[list[tuple[str, str]], list[Links] | None]]:
    from regard.data.lines import stream_lines
    from regard.data.link_lines import parse_links
    from regard.data.shards import ParallelText
    from regard.tasks.word_links import check_links

    text = ParallelText(str(source), None if target is None else str(target), languages=languages)
    if links is not None and (count := sum(1 for _ in stream_lines(links))) != text.pairs:
        raise DataError(f"{links}: {counted(count, 'line')}, but {source} has {counted(text.pairs, 'pair')}")
    lines, pairs = None if links is None else enumerate(stream_lines(links), start=1), iter(text)
    while block := list(islice(pairs, _BLOCK)):
        own: list[Links] | None = None
        if lines is not None:
            own = []
            for (number, line), (left, right) in zip(islice(lines, len(block)), block, strict=True):
                where = f"{links}, line {number}"
                own.append(parse_links(line, where)[1])
                check_links(own[-1], (left, right), "word", where, setting=None)
        yield block, own


@commands.command()
def distill(
    teacher: Annotated[Path, typer.Argument(metavar="TEACHER", help="the run that teaches")],
    source: Annotated[str, typer.Option(help="sources to translate, such as the training sources; a file (may be .gz) or a pattern")],
    out: Annotated[Path, typer.Option(help="folder of the student's training text")],
    others: EnsembleRuns = None,
    beam_size: Beam = None,
    batch_size: BatchSize = None,
    precision: Annotated[DecodingPrecision | None, typer.Option(help="precision of matrix products; int8 is fastest")] = None,
    shard_lines: Annotated[int, typer.Option(min=1, help="lines per file; a killed command goes on with the next file")] = 4096,
    on: On = None,
    workers: Workers = None,
    cpus: Cpus = None,
    gpus: Gpus = None,
) -> None:
    """Translate text as training data for a smaller model.

    Sequence-level knowledge distillation (Kim and Rush 2016): the student learns the teacher's translations by beam search. OUT/source has
    the sources in files, OUT/target their translations. The same command resumes.
    """
    from regard.commands.batch import run_batch
    from regard.commands.translation import chosen_decoding
    from regard.config import TranslationConfig
    from regard.tasks.run_folder import read_config

    given = {"beam_size": beam_size, "batch_size": batch_size, "precision": precision}
    chosen_decoding(read_config(teacher, TranslationConfig), **given)
    _split(source, out, shard_lines)
    options = [word for name, value in given.items() if value is not None for word in (f"--{name.replace('_', '-')}", str(value))]
    options += [word for other in others or [] for word in ("--ensemble", str(other))]
    where = {"on": on, "workers": workers, "cpus": cpus, "gpus": gpus}
    parameters = {"run": teacher, "others": others, **given}
    words = ["regard", "translate", str(teacher), *options]
    run_batch("translate", parameters, f"{glob.escape(str(out / SOURCE))}/*.txt", out / TARGET, words=words, option="--out", **where)
    files = [shlex.quote(f"{glob.escape(str(out / part))}/*.txt") for part in (SOURCE, TARGET)]
    write_line(f"train a student: regard train translation --source {files[0]} --target {files[1]} --out STUDENT")


def _split(source: str, out: Path, lines: int) -> None:
    """Write the sources as files of so many lines, unless they are there."""
    from regard.data.lines import stream_bytes, write_files
    from regard.data.parallel import file_digest
    from regard.data.shards import find_shards

    paths = [path for (path,) in find_shards(source, None)]
    about = json.dumps({"sources": [file_digest(path) for path in paths], "lines": lines}).encode() + b"\n"
    mark = out / ABOUT
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out}: expected a folder, found a file; choose another --out")
    if mark.exists():
        if mark.read_bytes() != about:
            raise ConfigError(f"{out}: holds translations of other sources, or in files of another length; choose another --out")
        return
    if out.exists() and folder_names(out) - {SOURCE}:
        raise ConfigError(f"{out}: exists and holds something else; choose another --out")
    shutil.rmtree(out / SOURCE, ignore_errors=True)  # of a killed command
    every, number = (line for path in paths for line in stream_bytes(path)), 0
    while block := list(islice(every, lines)):
        write_files({out / SOURCE / f"{number:06d}.txt": b"\n".join(block) + b"\n"})
        number += 1
    if not number:
        raise DataError(f"{source}: no lines")
    write_files({mark: about})  # last: complete
