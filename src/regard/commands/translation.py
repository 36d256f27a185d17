"""The command `regard translate`."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from regard.commands.options import (
    BatchSize,
    Beam,
    EnsembleRuns,
    Files,
    ImageFolder,
    JsonInput,
    LengthPenalty,
    MaxLength,
    Precision,
    RunFolder,
    SecondSource,
    named_files,
    refuse_overwriting,
)
from regard.commands.streaming import PREFIX, SECOND, InputItem, answer_lines, complete_reader, input_chunks, paired_chunks, text_reader
from regard.commands.terminal import write_message, write_text
from regard.errors import ConfigError, counted, shown

if TYPE_CHECKING:
    from regard.config import DecodingConfig, TranslationConfig
    from regard.decoding import SamplingOptions
    from regard.metrics.alignment import Links
    from regard.tasks.forced_text import Beginnings, Glossary
    from regard.tasks.links_file import LinksFile
    from regard.tasks.translation_prediction import Translation, Translator
    from regard.tasks.translation_run import TranslationRun
    from regard.tasks.unknown_tokens import UnknownTokenWarning

commands = typer.Typer()
DOCUMENT_ALONE = "--document: not with FILE, --second-source, --prefix, --links, --json, --json-input, --sample or --n-best"


@commands.command()
def translate(
    run: RunFolder,
    files: Files = None,
    second_source: SecondSource = None,
    images: ImageFolder = None,
    others: EnsembleRuns = None,
    beam_size: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    coverage_penalty: Annotated[float | None, typer.Option(min=0.0, help="beta of the GNMT coverage penalty")] = None,
    no_repeat_ngram_size: Annotated[int | None, typer.Option(min=0, help="never generate the same n tokens twice")] = None,
    replace_unknown: Annotated[bool | None, typer.Option(help="replace an unknown word by the source word it attends to most")] = None,
    precision: Precision = None,
    shortlist: Annotated[
        bool | None, typer.Option("--shortlist/--no-shortlist", help="generate only words of the run's shortlist (`regard shortlist`)")
    ] = None,
    n_best: Annotated[int, typer.Option(min=1, help="hypotheses per line, written as JSON")] = 1,
    sample: Annotated[bool, typer.Option("--sample", help="sample instead of beam search")] = False,
    temperature: Annotated[float, typer.Option(help="with --sample: log-probabilities are divided by it")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="with --sample: only from the k most probable tokens")] = 0,
    top_p: Annotated[float, typer.Option(help="with --sample: only from the fewest tokens that have this probability together")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="with --sample: seed of the random draws")] = 1,
    json_lines: Annotated[bool, typer.Option("--json", help="one JSON object per line: text, tokens, log-probabilities, score")] = False,
    json_input: JsonInput = False,
    links: Annotated[
        Path | None,
        typer.Option(help="write source-target word links of each line to this file, such as 0-0 2-1; - writes them only into JSON output"),
    ] = None,
    keep_tags: Annotated[
        bool, typer.Option("--keep-tags", help="carry tags, placeholders, numbers and addresses over, by word links")
    ] = False,
    prefix: Annotated[Path | None, typer.Option(help="file with the beginning of each translation, line by line")] = None,
    terms: Annotated[Path | None, typer.Option(help="file of terms: source, tab and required translation per line")] = None,
    document: Annotated[Path | None, typer.Option(help="translate a whole document: .txt, .md, .html")] = None,
    language: Annotated[str, typer.Option(help="language of --document, for sentence splitting")] = "en",
    timing: Annotated[bool, typer.Option("--timing", help="print sentences per second to standard error, as JSON")] = False,
) -> None:
    """Translate files or standard input.

    Writes one line to standard output per input line, always. A model of two inputs reads both from a line, with a tab between them, or the
    second from --second-source.
    """
    from regard.tasks.forced_text import Beginnings, Glossary, read_terms
    from regard.tasks.translation_prediction import Translator
    from regard.tasks.unknown_tokens import UnknownTokenWarning

    drawing, as_json = (temperature, top_k, top_p, seed) != (1.0, 0, 1.0, 1), json_lines or json_input or n_best > 1
    _refuse_together(
        (drawing and not sample, "--temperature, --top-k, --top-p, --seed: only with --sample"),
        (str(links) == "-" and not as_json, "--links -: only with --json, --json-input or --n-best, whose objects then have the links"),
        (links and keep_tags, "--links: not with --keep-tags, which takes the tags out of the lines that links count the words of"),
        (terms and sample, "--terms: not with --sample; what is drawn may not come to hold them"),
        (document and (files or second_source or prefix or links or json_lines or json_input or sample or n_best > 1), DOCUMENT_ALONE),
        (language != "en" and not document, "--language: only with --document"),
    )
    read = [run, *(files or []), second_source, prefix, terms]
    refuse_overwriting({"--links": None if links == Path("-") else links}, read, named=named_files(second_source, images))
    beginnings, glossary = Beginnings(prefix), Glossary(read_terms(terms)) if terms else None
    translator = Translator.open(run, *(others or []))
    translator.use_images(images, names=second_source)
    decoding = usable_decoding(
        translator.run,
        beam_size=beam_size,
        length_penalty=length_penalty,
        max_length=max_length,
        batch_size=batch_size,
        coverage_penalty=coverage_penalty,
        no_repeat_ngram_size=no_repeat_ngram_size,
        replace_unknown=replace_unknown,
        precision=precision,
        shortlist=shortlist,
    )
    if document is not None:
        _translate_document(translator, document, language, decoding, glossary)
        return
    sampling = _sampling(seed, temperature=temperature, top_k=top_k, top_p=top_p, num_samples=n_best) if sample else None
    started, tokens, unknown = time.perf_counter(), 0, UnknownTokenWarning(translator.run.vocabularies.source.kind)

    def show(number: int, answer: _Answer) -> str:
        nonlocal tokens
        item = answer.item
        tokens += len(item.hypotheses[0].tokens) if item.hypotheses else 0
        _tell(number, item, translator.run)
        unknown.add(item.source, at_once=number)
        linked.write(number, answer.links)
        return item.text

    def work(chunk: list[tuple[str, str]]) -> list[_Answer]:
        ask = translator.translate_tagged if keep_tags else translator.translate
        lines, begins = map(list, zip(*chunk, strict=True))
        found = ask(lines, decoding=decoding, n_best=n_best, sampling=sampling, prefixes=begins if any(begins) else None, terms=glossary)
        return _answers(translator.run, lines, found, linked=links is not None)

    chunks, read = _questions(translator, files, second_source, json_input, breaks=keep_tags, prefixes=prefix is None)
    with _links_file(links, translator) as linked:
        lines, bad = answer_lines(chunks, _forced_reader(read, beginnings), work, show, json_lines=as_json, files=files)
        linked.finish(lines)
    _tell_at_the_end(translator, unknown, beginnings)
    if timing:
        _write_rates(lines, tokens, time.perf_counter() - started)
    if bad:
        raise typer.Exit(1)


def _tell_at_the_end(translator: Translator, unknown: UnknownTokenWarning, beginnings: Beginnings) -> None:
    unknown.tell()
    translator.run.vocabularies.tell_missing_images()
    beginnings.finish()


class _Answer(NamedTuple):
    """The translation of a line, and its word links if they are asked for."""

    item: Translation
    links: Links | None

    def to_json(self) -> dict[str, Any]:
        """Return the translation as JSON, and the links as [source, target]."""
        links = {} if self.links is None else {"links": [[source, target] for target, source in sorted(self.links)]}
        return {**self.item.to_json(), **links}


def _answers(run: TranslationRun, lines: list[str], found: list[Translation], *, linked: bool) -> list[_Answer]:
    if not linked:
        return [_Answer(item, None) for item in found]
    from regard.tasks.word_links import find_part_links

    links = find_part_links(run, [(line, item.part_texts()) for line, item in zip(lines, found, strict=True)])
    return list(map(_Answer, found, links))


def _forced_reader(read: Callable[[int, str], InputItem], beginnings: Beginnings) -> Callable[[int, str], InputItem]:
    # Items with the beginning of the translation: the object's own, or the file's next line, which an unreadable line uses up, too.
    def forced(number: int, line: str) -> InputItem:
        found, begin = read(number, line), beginnings.take()
        return found if found.item is None or isinstance(found.item, tuple) else found._replace(item=(found.item, begin))

    return forced


def _translate_document(translator: Translator, path: Path, language: str, decoding: DecodingConfig, terms: Glossary | None) -> None:
    from regard.data.lines import iter_lines, stream_chunks
    from regard.tasks.document_translation import translate_document

    content = b"".join(stream_chunks(path))  # once: it may be a pipe
    lines = list(iter_lines(io.BytesIO(content), path))
    found = translate_document(translator, "\n".join(lines), path, language=language, decoding=decoding, terms=terms)
    for sentence, parts in found.divided:
        limit = translator.run.config.data.max_length
        write_message(f"{path}: {shown(sentence)}: longer than {limit} tokens (data.max_length), translated in {parts} parts")
    if lines:
        first, feed, _ = content.partition(b"\n")
        dos = feed and first.endswith(b"\r")
        write_text(found.text.replace("\n", "\r\n") + "\r" if dos else found.text)


def _questions(
    translator: Translator, files: list[Path] | None, second: Path | None, json_input: bool, *, breaks: bool, prefixes: bool
) -> tuple[Iterator[list[str]], Callable[[int, str], InputItem]]:
    # The lines of one or two inputs in chunks, and their reader; objects may have prefixes.
    two = translator.run.config.second is not None
    if second is not None and not two:
        raise ConfigError(f"--second-source: {translator.run.folder} reads one input")
    if second is not None and json_input:
        raise ConfigError('--second-source: not with --json-input, whose objects have both inputs: {"text": "...", "second": "..."}')
    chunks = input_chunks("a sentence, a tab and its second input" if two and second is None else "a sentence", files)
    how = ['"text" and "second"'] if json_input else [] if second is None else [f"the second from --second-source {second}"]
    optional = ((SECOND,) if two else ()) + ((PREFIX,) if prefixes else ())
    reader = text_reader(("text",) if json_input else None, optional=optional, breaks=breaks)
    read = complete_reader(reader, translator.run.vocabularies.source, *how)
    return chunks if second is None else paired_chunks(chunks, files, second), read


def _links_file(path: Path | None, translator: Translator) -> LinksFile:
    from regard.tasks.links_file import LinksFile

    if path is not None and not translator.run.model.attends:
        raise ConfigError("links: this model has no attention over the source")
    return LinksFile(None if str(path) == "-" else path)


def _refuse_together(*wrong: tuple[object, str]) -> None:
    for found, message in wrong:
        if found:
            raise ConfigError(message)


def _sampling(seed: int, **options: Any) -> SamplingOptions:
    import torch

    from regard.decoding import SamplingOptions

    torch.manual_seed(seed)
    return SamplingOptions(**options)


def _tell(number: int, item: Translation, run: TranslationRun) -> None:
    from regard.data.vocabulary import has_unknown

    vocabulary = run.vocabularies.target
    if item.parts:
        write_message(
            f"line {number}: longer than {run.config.data.max_length} tokens (data.max_length), translated in {len(item.parts)} parts"
        )
    if item.truncated:
        write_message(f"line {number}: cut off {counted(item.truncated, 'token')} past the first {len(item.source.ids)} (data.max_length)")
    for text, ids in zip(item.unplaced, vocabulary.encode_ids(item.unplaced), strict=True):
        why = f"left out {text!r}, the vocabulary lacks one of its words" if has_unknown(ids) else f"no room for {text!r}"
        write_message(f"line {number}: {why}")


def _write_rates(lines: int, tokens: int, seconds: float) -> None:
    rates = {"sentences_per_second": lines / seconds, "tokens_per_second": tokens / seconds}
    print(json.dumps({"lines": lines, "tokens": tokens, "seconds": seconds, **rates}), file=sys.stderr)


def usable_decoding(run: TranslationRun, **changes: Any) -> DecodingConfig:
    """Return the settings of `chosen_decoding` if this machine can decode with them, before it reads a line.

    Raises:
        ConfigError: see `chosen_decoding` and `regard.tasks.predict.check_precision`.
    """
    from regard.tasks.predict import check_precision
    from regard.tasks.run_folder import device_of

    decoding = chosen_decoding(run.config, **changes)
    check_precision(decoding.precision, device_of(run.model))
    return decoding


def chosen_decoding(config: TranslationConfig, **changes: Any) -> DecodingConfig:
    """Return a run's decoding settings, overridden by those that are not None.

    Raises:
        ConfigError: see `regard.config.with_options` and `regard.tasks.translation_prediction.check_decoding`.
    """
    from regard.config import with_options
    from regard.tasks.translation_prediction import check_decoding

    decoding = with_options(config.decoding, changes)
    check_decoding(config, decoding)
    return decoding
