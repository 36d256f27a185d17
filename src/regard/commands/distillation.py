"""The commands `regard shortlist` and `regard distill`: faster decoding with a trained model, and by a smaller one that it teaches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.commands.options import RunFolder
from regard.commands.terminal import write_line, write_message
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.metrics.alignment import Links

commands = typer.Typer()

_BLOCK, _APART, _MOST_MEASURED = 4096, 20, 1000


@commands.command()
def shortlist(
    run: RunFolder,
    source: Annotated[Path, typer.Option(help="sources to learn from, such as the training text, or a .jsonl or .tsv file of pairs")],
    target: Annotated[Path | None, typer.Option(help="targets, line by line with the sources")] = None,
    links: Annotated[Path | None, typer.Option(help="word links of the pairs; default: those of the run's attention")] = None,
    candidates: Annotated[int, typer.Option(min=1, help="target tokens per source token")] = 50,
    frequent: Annotated[int, typer.Option(min=0, help="most frequent target tokens, for every sentence")] = 100,
) -> None:
    """Learn which target words may translate each source word, and store it in the run.

    `regard translate --shortlist` and decoding.shortlist=true then compute only these outputs; `regard export --format ctranslate2` writes
    them as vmap.txt. Every 20th pair is left out, and up to 1,000 of these are measured.
    """
    from regard.tasks.shortlist import FILE, ShortlistCounts, measure_shortlist, write_shortlist
    from regard.tasks.translation_run import open_translation_run

    opened = open_translation_run(run)
    counts = ShortlistCounts(opened)
    apart: list[tuple[str, str]] = []
    for pairs, own in _blocks(source, target, links):
        kept = [number for number in range(len(pairs)) if number % _APART != _APART - 1]
        apart += pairs[_APART - 1 :: _APART]
        counts.add([pairs[number] for number in kept], None if own is None else [own[number] for number in kept])
    learned = counts.shortlist(candidates=candidates, frequent=frequent)
    if not learned.tokens:
        raise ConfigError(f"{source}: no word of these pairs is linked")
    write_shortlist(run, learned)
    write_line(f"{run / FILE}: {len(learned.tokens)} source tokens")
    found = measure_shortlist(opened, learned, apart[:_MOST_MEASURED])
    if found.pairs:
        write_message(
            f"{found.pairs} pairs left out: {found.tokens:.0f} of {len(opened.vocabularies.target)} tokens per sentence, "
            f"with {found.covered:.2%} of the tokens of the targets"
        )


def _blocks(source: Path, target: Path | None, links: Path | None) -> Iterator[tuple[list[tuple[str, str]], list[Links] | None]]:
    from regard.data.lines import stream_lines
    from regard.data.link_lines import parse_links
    from regard.data.shards import ParallelText

    text = ParallelText(str(source), None if target is None else str(target))
    if links is not None:
        ParallelText(str(source), str(links))  # has as many lines
    lines, pairs = None if links is None else enumerate(stream_lines(links), start=1), iter(text)
    while block := list(islice(pairs, _BLOCK)):
        own: list[Links] | None = None
        if lines is not None:
            own = [parse_links(line, f"{links}, line {number}")[1] for number, line in islice(lines, len(block))]
        yield block, own
