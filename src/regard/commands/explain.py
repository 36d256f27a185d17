"""The command `regard explain`: a classifier by its attention, and any run by explanation methods."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from regard.commands.options import ImageFolder, Languages, LinkUnit, RunFolder, named_files, refuse, refuse_languages, refuse_overwriting
from regard.commands.terminal import write_line
from regard.errors import ConfigError, counted
from regard.strict_json import dump_json

commands = typer.Typer()

METHOD_NAMES = (
    *("weights", "rollout", "flow", "value-norms", "value-norms-layers", "alti", "input-gradient", "integrated-gradients"),
    *("gradient-attention", "leave-one-out", "leave-one-area-out", "replace-one"),
)
"""The methods of `regard.explanations`, which needs torch."""
DEFAULT = "leave-one-out"
"""The method for a sentence where none is named: its scores have a meaning of their own."""
OUTPUTS, MAX_WORDS, RANDOM_DRAWS = 3, 5, 5
"""Defaults of options that go with some explanations only."""


@commands.command()
def explain(
    run: RunFolder,
    text: Annotated[
        list[str] | None, typer.Option(help="a sentence, or two inputs with a tab between them; may be repeated (not for captioners)")
    ] = None,
    examples: Annotated[Path | None, typer.Option(help="labelled examples, lines of text, or captions beside their images")] = None,
    source: Annotated[Path | None, typer.Option(help="translation: sources, or pairs in one .tsv, .csv or .jsonl file")] = None,
    second_source: Annotated[Path | None, typer.Option(help="second inputs, line by line with the sources")] = None,
    images: ImageFolder = None,
    target: Annotated[
        str | None, typer.Option(help="file of targets, line by line with the sources; with --text: the target; without, the run's own")
    ] = None,
    languages: Languages = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(METHOD_NAMES)}; may be repeated; or all; with --text and --source: {DEFAULT}"),
    ] = None,
    faithfulness: Annotated[
        Path | None, typer.Option(help="with --method: measure on these examples how faithful the methods are, instead of showing them")
    ] = None,
    links: Annotated[Path | None, typer.Option(help="with --faithfulness: known links of the pairs (source-target, source?target)")] = None,
    regions: Annotated[Path | None, typer.Option(help="with --faithfulness of a model of images: the boxes that words name, JSONL")] = None,
    link_unit: Annotated[LinkUnit, typer.Option(help="unit of the links")] = "word",
    outputs: Annotated[
        int | None, typer.Option(min=1, help=f"with --faithfulness: outputs measured per example (default: {OUTPUTS})")
    ] = None,
    max_words: Annotated[
        int | None, typer.Option(min=1, help=f"without --method: remove 1 up to this many words (default: {MAX_WORDS})")
    ] = None,
    random_draws: Annotated[
        int | None, typer.Option(min=1, help=f"without --method: random draws of words per example (default: {RANDOM_DRAWS})")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="seed of the random draws")] = 1,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results to this JSON file")] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="without --method: .html page or .json records, the most attended words of each label"),
    ] = None,
) -> None:
    """Explain the outputs of a run.

    With --text or --source: which inputs an output depends on. With --method: by one method or all of them, and with --faithfulness how
    faithful each is to the model. Without: a classifier by its attention, that is the most attended words of each label, the overlap of
    the hops, and whether the attended words decide the label.
    """
    read = [run, examples, source, second_source, None if text else target, faithfulness, links, regions]
    refuse_overwriting({"--json": json_file, "--output": output}, read, named=named_files(second_source, images))
    seconds: dict[str, Path | None] = {"--second-source": second_source, "--images": images}
    if text is not None:
        others = {
            "--examples": examples,
            "--source": source,
            "--faithfulness": faithfulness,
            "--languages": languages,
            "--regions": regions,
        }
        refuse({**others, **seconds, "--links": links, "--outputs": outputs}, "not with --text")
    else:
        refuse_languages(languages, source or faithfulness, target)
    if text is not None or (source is not None and faithfulness is None):
        method = method or [DEFAULT]
    if not method:
        refuse({**seconds, "--target": target, "--languages": languages}, "goes with --source FILE, or with --method")
        given = {"--faithfulness": faithfulness, "--links": links, "--regions": regions, "--outputs": outputs}
        refuse(given, "goes with --method NAME, or --method all")
        if examples is None:
            raise ConfigError("explain: give --text SENTENCE, or --examples FILE of labelled examples, or --method and files")
        _explain_labels(run, examples, (max_words or MAX_WORDS, random_draws or RANDOM_DRAWS, seed), json_file, output)
        return
    way = "--method" if text is None else "--text"
    refuse({"--output": output}, f"not with {way}; `regard view RUN --method NAME -o page.html` draws the scores, --json writes them")
    refuse({"--max-words": max_words, "--random-draws": random_draws}, f"not with {way}")
    methods = _methods(method)
    from regard.tasks.explained_examples import batches_of_run, batches_of_texts

    if text is not None:
        _explain(run, batches_of_texts(run, text, target=target), (method, methods), json_file)
        return
    if faithfulness is None:
        refuse({"--links": links, "--regions": regions, "--outputs": outputs}, "goes with --faithfulness FILE")
        found = batches_of_run(run, _only_one(examples, source), target=target, second=second_source, images=images, languages=languages)
        _explain(run, found, (method, methods), json_file)
        return
    refuse({"--examples": examples, "--source": source}, "not with --faithfulness, which names the examples")
    from regard.tasks.method_faithfulness import describe_table, measure_methods
    from regard.tasks.translation_evaluation import read_links

    files = {"target": target, "second": second_source, "images": images, "regions": regions}
    batches = batches_of_run(run, faithfulness, **files, languages=languages)
    known = None if links is None else read_links(links, link_unit)
    table = measure_methods(batches, methods, links=known, outputs=outputs or OUTPUTS, seed=seed)
    _refuse_undefined(method, [each.refused for each in table.methods if each.refused])
    describe_table(table, write_line)
    _write(json_file, {"run": str(run), **table.to_json()})


def _explain(run: Path, batches: Sequence[Any], asked: tuple[list[str], list[Any]], json_file: Path | None) -> None:
    from regard.tasks.explained_examples import describe_example, explain_batches
    from regard.tasks.method_faithfulness import undefined_lines

    names, methods = asked
    found = explain_batches(batches, methods)
    _refuse_undefined(names, found.refused.values())
    if found.examples:
        write_line("number: inputs -> outputs; below, for each method and output, the inputs with the highest scores")
        if DEFAULT in methods:
            write_line(f"{DEFAULT}: how much less probable the output is without the input, in nats; e^1 = 2.7 times for 1")
    for example in found.examples:
        write_line(example.to_line())
        describe_example(example, write_line)
    for line in undefined_lines(found.refused):
        write_line(line)
    _write(json_file, {"run": str(run), "examples": [example.to_json() for example in found.examples], "not_defined": found.refused})


def _explain_labels(run: Path, examples: Path, settings: tuple[int, int, int], json_file: Path | None, output: Path | None) -> None:
    from regard.tasks.attention_records import save_records
    from regard.tasks.classifier_attention import describe_explanation, explain_run

    if output is not None and output.suffix.lower() not in (".html", ".json"):
        raise ConfigError(f"{output}: expected a name ending in .html or .json")
    max_words, random_draws, seed = settings
    found = explain_run(run, examples, max_words=max_words, random_draws=random_draws, seed=seed)
    describe_explanation(found, write_line)
    _write(json_file, {"run": str(run), **found.to_json()})
    if output is not None:
        save_records(found.records, output)
        write_line(f"{output}: {counted(len(found.records), 'label')}")


def _methods(names: list[str]) -> list[Any]:
    from regard.explanations import METHODS
    from regard.tasks.explained_records import ALL, check_methods

    check_methods(names)
    return list(METHODS if ALL in names else dict.fromkeys(names))


def _refuse_undefined(asked: list[str], refused: Iterable[str]) -> None:
    """Refuse methods that were asked for by name but are not defined for the model."""
    from regard.tasks.explained_records import ALL

    if ALL not in asked and (first := next(iter(refused), None)):
        raise ConfigError(first)


def _only_one(examples: Path | None, source: Path | None) -> Path:
    found = [path for path in (examples, source) if path is not None]
    if len(found) != 1:
        raise ConfigError("--method: needs --source FILE for translation, --examples FILE for other tasks, or --faithfulness FILE")
    return found[0]


def _write(path: Path | None, figures: dict[str, Any]) -> None:
    from regard.data.lines import write_files

    if path is not None:
        write_files({path: (dump_json(figures, indent=1) + "\n").encode()})
