"""The commands `regard score` and `regard align`: log-probabilities of given texts, and word links of given pairs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from regard import progress
from regard.commands.options import BatchSize, EnsembleRuns, ImageFolder, Languages, LinkUnit, RunFolder, refuse, refuse_languages
from regard.commands.streaming import SECOND, InputItem, answer_lines, complete_reader, input_chunks, text_reader
from regard.commands.terminal import write_message
from regard.errors import ConfigError, counted

if TYPE_CHECKING:
    from regard.tasks.translation_run import TranslationRun

commands = typer.Typer()

# Pairs of a file to search for short ones, on which `align --choose` measures.
MOST_TO_CHOOSE = 10_000

Source = Annotated[
    Path | None, typer.Option(help="translation: sources, one per line (may be .gz); default: standard input with source, tab, target")
]
LinkMethod = Literal["attention", "leave-one-out"]
Target = Annotated[Path | None, typer.Option(help="translation: targets, line by line with the sources")]
PAIR = '{"id": ..., "source": "...", "target": "..."}'


class WordLinks(NamedTuple):
    """The links of a pair, for output."""

    links: list[tuple[int, int]]
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return the links as [source, target]."""
        return {"links": [[source, target] for target, source in self.links]}


@commands.command()
def score(
    run: RunFolder,
    source: Source = None,
    target: Target = None,
    languages: Languages = None,
    images: ImageFolder = None,
    others: EnsembleRuns = None,
    batch_size: BatchSize = None,
    json_lines: Annotated[bool, typer.Option("--json", help="one JSON object per line: text, tokens, their log-probabilities")] = False,
    json_input: Annotated[
        bool, typer.Option("--json-input", help=f'read JSON objects, {PAIR} ("text" for a language model); answer with JSON')
    ] = False,
) -> None:
    """Print log-probabilities of lines or pairs.

    Each line has the log-probability and, after a tab, the log-probability per token, in nats. A language model scores the lines of
    standard input, a translation model scores targets given their sources.
    """
    from regard.tasks.run_folder import run_task

    task = run_task(run)
    if task == "translation":
        _score_pairs(run, (source, target, languages, images), others, batch_size or 64, json_lines=json_lines, json_input=json_input)
        return
    if task != "lm":
        raise ConfigError(f"{run}: a run of the task {task}; `regard score` needs a language model or a translation model")
    refuse(
        {"--source": source, "--target": target, "--languages": languages, "--images": images, "--ensemble": others},
        "not for a run of the task lm, which reads standard input",
    )
    _score_lines(run, batch_size or 64, json_lines=json_lines, json_input=json_input)


def _score_lines(run: Path, batch_size: int, *, json_lines: bool, json_input: bool) -> None:
    from regard.tasks.language_prediction import LanguageModel, LineScore
    from regard.tasks.unknown_tokens import UnknownTokenWarning

    model = LanguageModel.open(run)
    vocabulary = model.run.vocabulary
    unknown = UnknownTokenWarning(vocabulary.kind, "vocabulary")

    def score(lines: list[str]) -> list[LineScore]:
        for line in lines:
            unknown.add(vocabulary.encode(line))
        return model.score(lines, batch_size=batch_size)

    _, bad = answer_lines(
        input_chunks("a line"),
        text_reader(("text",) if json_input else None),
        score,
        lambda _, item: f"{item.total:.4f}\t{item.mean:.4f}",
        json_lines=json_lines or json_input,
    )
    unknown.tell()
    if bad:
        raise typer.Exit(1)


def _score_pairs(
    run: Path, given: tuple[Any, ...], others: list[Path] | None, batch_size: int, *, json_lines: bool, json_input: bool
) -> None:
    from regard.tasks.pair_scores import PairScore, score_pairs
    from regard.tasks.translation_prediction import Translator
    from regard.tasks.unknown_tokens import UnknownPairTokens

    source, target, languages, images = given
    translator = Translator.open(run, *(others or []))
    translator.use_images(images)
    opened = translator.run.reading(languages)
    chunks, unknown = _pair_chunks(opened, source, target, languages, json_input), UnknownPairTokens(opened.vocabularies)

    def score(pairs: list[tuple[str, str]]) -> list[PairScore]:
        unknown.add(pairs)
        return score_pairs(opened, pairs, batch_size=batch_size)

    def show(number: int, item: PairScore) -> str:
        for side, cut in zip(("source", "target"), item.truncated, strict=True):
            if cut:
                write_message(f"line {number}: cut off the last {counted(cut, 'token')} of the {side} (data.max_length)")
        return f"{item.total:.4f}\t{item.mean:.4f}"

    _, bad = answer_lines(
        chunks,
        _pair_reader(opened, source, json_input),
        score,
        show,
        json_lines=json_lines or json_input,
        files=source and [source],
    )
    unknown.tell()
    translator.run.vocabularies.tell_missing_images()
    if bad:
        raise typer.Exit(1)


@commands.command()
def align(
    run: RunFolder,
    source: Source = None,
    target: Target = None,
    languages: Languages = None,
    images: ImageFolder = None,
    link_unit: Annotated[LinkUnit, typer.Option(help="unit of the links")] = "word",
    method: Annotated[
        LinkMethod, typer.Option(help="attention weights, or the effect of leaving out each source token (slower, often better)")
    ] = "attention",
    choose: Annotated[
        bool, typer.Option("--choose", help="choose the attention to align with on these pairs, and save the choice in the run")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="one JSON object per line")] = False,
    json_input: Annotated[
        bool, typer.Option("--json-input", help=f"read JSON objects, {PAIR}; answer with JSON objects of the same id")
    ] = False,
) -> None:
    """Align the words of given pairs.

    Writes a line of `source-target` numbers from 0 per pair, in the format of fast_align.
    """
    from regard.data.link_lines import format_links
    from regard.metrics.alignment import Links
    from regard.tasks.translation_prediction import Translator
    from regard.tasks.unknown_tokens import UnknownPairTokens
    from regard.tasks.word_links import choose_attention, find_links, write_choice

    translator = Translator.open(run)
    translator.use_images(images)
    opened = translator.run.reading(languages)
    chunks = _pair_chunks(opened, source, target, languages, json_input)
    if choose:
        if source is None:
            raise ConfigError("--choose: needs --source, and --target unless that is a file of pairs")
        choice = choose_attention(opened, islice(_stream(opened, source, target), MOST_TO_CHOOSE))
        if choice is None:
            raise ConfigError("--choose: no attention over the source to choose from, or no pair of at most 40 tokens a side")
        write_choice(run, choice)
        write_message(f"links come from {choice}: {choice.effect:.0%} of the largest effect of leaving out one token")

    unknown = UnknownPairTokens(opened.vocabularies)

    def link(pairs: list[tuple[str, str]]) -> Iterator[WordLinks]:
        unknown.add(pairs)
        found: list[Links] = find_links(opened, pairs, unit=link_unit, method=method)
        return (WordLinks(sorted(links), format_links(links)) for links in found)

    _, bad = answer_lines(
        chunks,
        _pair_reader(opened, source, json_input),
        link,
        lambda _, item: item.text,
        json_lines=json_lines or json_input,
        files=source and [source],
    )
    unknown.tell()
    translator.run.vocabularies.tell_missing_images()
    if bad:
        raise typer.Exit(1)


def _pair_chunks(
    run: TranslationRun, source: Path | None, target: Path | None, languages: tuple[str, str] | None, json_input: bool
) -> Iterator[list[Any]]:
    refuse_languages(languages, source, target)
    if source is None:
        if target is not None:
            raise ConfigError("--target: needs --source")
        return input_chunks('{"source": "...", "target": "..."}' if json_input else "a source, a tab and a target")
    if json_input:
        raise ConfigError("--json-input: reads standard input, not --source and --target")
    from regard.data.lines import scan_lines
    from regard.data.parallel import unequal_lines
    from regard.tasks.chunking import in_chunks

    if target is not None:
        with progress.stage("Counting lines", unit="lines") as counting:
            counts = [scan_lines(path, counting.advance)[1] for path in (source, target)]
        if counts[0] != counts[1]:
            raise unequal_lines(target, counts[1], source, counts[0])
    return in_chunks(_stream(run, source, target), lambda pair: len(pair[0]) + len(pair[1]))


def _stream(run: TranslationRun, source: Path, target: Path | None) -> Iterator[tuple[str, str]]:
    from regard.data.parallel import stream_pairs

    return stream_pairs(source, target, columns=run.config.pair_columns, languages=run.config.data.languages)


def _pair_reader(run: TranslationRun, source: Path | None, json_input: bool) -> Any:
    two = run.config.second is not None

    def read(number: int, line: Any) -> InputItem:
        if source is not None:  # a pair already
            return InputItem(line, {})
        *inputs, target = line.split("\t")
        if len(inputs) + 1 in run.config.pair_columns:
            return InputItem(("\t".join(inputs), target), {})
        wanted = "two inputs and a target, with tabs between them" if two else "a source, a tab and a target"
        error = f"line {number}: expected {wanted}, found {len(inputs) + 1} column{'s' if inputs else ''}"
        write_message(f"error: {error}")
        return InputItem(None, {"error": error})

    how = ['"source" and "second"'] if json_input else []
    optional = (SECOND,) if two else ()
    return complete_reader(text_reader(("source", "target"), optional=optional) if json_input else read, run.vocabularies.source, *how)
