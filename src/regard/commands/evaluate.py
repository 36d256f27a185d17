"""The command `regard evaluate`; inputs and scores depend on the run's task."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from regard import progress
from regard.commands.options import (
    BatchSize,
    Beam,
    BleuTokens,
    EnsembleRuns,
    Languages,
    LengthPenalty,
    LinkUnit,
    MaxLength,
    Precision,
    RunFolder,
    named_files,
    refuse,
    refuse_languages,
    refuse_overwriting,
)
from regard.commands.streaming import WORKER
from regard.commands.terminal import write_line
from regard.commands.translation import usable_decoding
from regard.errors import ConfigError, DataError
from regard.strict_json import dump_json

commands = typer.Typer()

DECODING = ("--beam-size", "--length-penalty", "--max-length", "--batch-size", "--precision")
OPTIONS = {
    "translation": (
        "--source",
        "--target",
        "--second-source",
        "--languages",
        "--images",
        "--ensemble",
        "--baseline",
        "--links",
        "--link-unit",
        "--tokenize",
        "--output",
        *DECODING,
    ),
    "captioning": (
        *("--captions", "--images", "--split", "--features", "--regions", "--frequencies", "--frequencies-split", "--meteor"),
        *("--output", *DECODING),
    ),
    "classification": ("--examples", "--baseline", "--output"),
    "entailment": ("--examples", "--baseline", "--output"),
    "lm": ("--text",),
}
"""Options of each task; the first is required."""


@commands.command()
def evaluate(
    run: RunFolder,
    source: Annotated[
        str | None,
        typer.Option(help="translation: test sources; or one .jsonl, .tsv or .csv file of pairs, with both inputs for a model of two"),
    ] = None,
    target: Annotated[str | None, typer.Option(help="translation: references")] = None,
    second_source: Annotated[str | None, typer.Option(help="translation: second inputs, for a model that reads two")] = None,
    languages: Languages = None,
    others: EnsembleRuns = None,
    baseline: Annotated[
        Path | None,
        typer.Option(help="another run, decoded with the same options, or this one without them: is the difference significant?"),
    ] = None,
    links: Annotated[
        Path | None, typer.Option(help="translation: known alignments, lines of 3-4 (sure) and 3?4 (possible), source-target from 0")
    ] = None,
    link_unit: Annotated[LinkUnit | None, typer.Option(help="translation: unit of the links; default: words")] = None,
    tokenize: Annotated[
        BleuTokens | None,
        typer.Option(help="translation: how BLEU divides text (sacreBLEU); zh and char for text without spaces; default: 13a"),
    ] = None,
    captions: Annotated[str | None, typer.Option(help="captioning: test captions, in any format of training")] = None,
    images: Annotated[
        str | None, typer.Option(help="captioning: folder or tar of the images; translation: folder of the second inputs")
    ] = None,
    split: Annotated[str | None, typer.Option(help="captioning: part to test on")] = None,
    features: Annotated[str | None, typer.Option(help="captioning: features of the images, for a model of precomputed features")] = None,
    regions: Annotated[str | None, typer.Option(help="captioning: image regions of words, as `regard generate scenes` writes them")] = None,
    frequencies: Annotated[
        str | None, typer.Option(help="captioning: captions for the n-gram frequencies of CIDEr; default: the test captions")
    ] = None,
    frequencies_split: Annotated[str | None, typer.Option(help="captioning: part of these")] = None,
    meteor: Annotated[bool | None, typer.Option("--meteor", help="captioning: also METEOR 1.5 (needs the extra coco, and Java)")] = None,
    examples: Annotated[str | None, typer.Option(help="classification, entailment: labelled test examples")] = None,
    text: Annotated[str | None, typer.Option(help="lm: test text")] = None,
    beam_size: Beam = None,
    length_penalty: LengthPenalty = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = None,
    precision: Precision = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the results to this JSON file")] = None,
    output: Annotated[
        Path | None, typer.Option(help="write the outputs to this file, one per line; with --input: folder of the scores")
    ] = None,
) -> None:
    """Evaluate a run on a test set, or with --input on each of many.

    Prints each score with its signature.
    """
    from regard.data.lines import write_files
    from regard.tasks.run_folder import run_task

    task = run_task(run)
    search: dict[str, Any] = {"--beam-size": beam_size, "--length-penalty": length_penalty, "--max-length": max_length}
    search |= {"--batch-size": batch_size, "--precision": precision}
    given: dict[str, Any] = {"--source": source, "--target": target, "--ensemble": others, "--baseline": baseline, "--links": links}
    given |= {"--second-source": second_source, "--languages": languages, "--link-unit": link_unit, "--tokenize": tokenize}
    given |= {"--captions": captions, "--images": images, "--split": split, "--features": features}
    given |= {"--regions": regions, "--frequencies": frequencies, "--frequencies-split": frequencies_split, "--meteor": meteor}
    given |= {"--examples": examples, "--text": text, "--output": output, **search}
    refuse({name: value for name, value in given.items() if name not in OPTIONS[task]}, f"not for a run of the task {task}")
    needed = OPTIONS[task][0]
    if WORKER in os.environ:
        _evaluate_shards(run, task, given)
    if given[needed] is None:
        raise ConfigError(f"{needed}: needed, to measure a run of the task {task}")
    read = [run, source, target, second_source, links, captions, frequencies, features, regions, examples, text, split, frequencies_split]
    read += [baseline, *(others or [])]
    refuse_overwriting({"--json": json_file, "--output": output}, read, named=named_files(second_source, images))
    report, outputs = _measure(run, task, given)
    contents = {}
    if json_file is not None:
        contents[json_file] = (dump_json({"run": str(run), **report}, indent=1) + "\n").encode()
    if output is not None:
        contents[output] = "".join(line + "\n" for line in outputs).encode()
    write_files(contents)


def _measure(run: Path, task: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Print the scores; return scores and outputs."""
    match task:
        case "translation":
            return _translation(run, given)
        case "captioning":
            return _captioning(run, given)
        case "lm":
            return _language(run, given), []
        case _:
            return _labels(run, given)


def _evaluate_shards(run: Path, task: str, given: Mapping[str, Any]) -> NoReturn:
    """Evaluate on the files sent by the parent process: `evaluate --input`."""
    from regard.commands.batch import answer_shards

    if task == "captioning":
        raise ConfigError(f"--input: not for a run of the task captioning ({run}); captions need --images")

    def answer(path: Path, _: Any, lines: int) -> tuple[int, int]:
        _measure(run, task, {**given, OPTIONS[task][0]: str(path)})
        return lines, 0

    answer_shards(answer)


def _changes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("--").replace("-", "_"): given[name] for name in DECODING}


def _translation(run: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from regard.data.parallel import read_pairs
    from regard.metrics import paired_bootstrap
    from regard.tasks.translation_evaluation import describe_comparison, describe_translation_scores, evaluate_translation, read_links
    from regard.tasks.translation_prediction import Translator
    from regard.tasks.translation_run import check_inputs

    refuse_languages(given["--languages"], given["--source"], given["--target"])
    known = read_links(given["--links"], given["--link-unit"] or "word") if given["--links"] is not None else None
    others, baseline = given["--ensemble"] or [], given["--baseline"]
    translator = Translator.open(run, *others)
    translator.use_images(given["--images"], names=given["--second-source"])
    other = Translator.open(baseline) if baseline is not None else None
    if other is not None and other.run.vocabularies.images is not None:
        other.use_images(given["--images"], names=given["--second-source"])
    columns = {2, 3} if given["--second-source"] is None else {2}
    for opened in filter(None, (translator, other)):
        second = opened.run.config.second
        if given["--second-source"] is None:
            columns &= {*opened.run.config.pair_columns}
            if given["--target"] is not None and second is not None and not second.drop:
                raise ConfigError(f"--second-source: needed, {opened.run.folder} reads two inputs")
        elif second is None:
            raise ConfigError(f"--second-source: {opened.run.folder} reads one input")
    if not columns:
        raise ConfigError(f"--baseline: of {run} and {baseline} one reads two inputs, the other one")
    pairs = read_pairs(
        given["--source"],
        given["--target"],
        given["--second-source"],
        columns=sorted(columns),
        languages=given["--languages"] or translator.run.config.data.languages,
    )
    for opened in filter(None, (translator, other)):
        check_inputs(opened.run, [line for line, _ in pairs], given["--source"], given["--second-source"])
    decoding = usable_decoding(translator.run, **_changes(given))
    tokenize = given["--tokenize"] or "13a"
    evaluation = evaluate_translation(translator, pairs, decoding=decoding, links=known, tokenize=tokenize)
    translator.run.vocabularies.tell_missing_images()
    describe_translation_scores(evaluation, write_line)
    report = {
        "with": [str(path) for path in others],
        "source": given["--source"],
        "decoding": decoding.model_dump(mode="json"),
        **evaluation.to_json(),
    }
    if other is not None and baseline is not None:
        alone = not others and baseline.samefile(run)  # what do these options cost?
        search = usable_decoding(other.run, **({} if alone else _changes(given)))
        with progress.stage(f"Evaluating the baseline {baseline}"):
            outputs = [item.text for item in other.translate([pair[0] for pair in pairs], decoding=search)]
        other.run.vocabularies.tell_missing_images()
        found = paired_bootstrap(evaluation.outputs, outputs, [pair[1] for pair in pairs], tokenize=tokenize)
        figures = describe_comparison(found, f"{baseline}{' with its own decoding settings' * alone}", write_line)
        report["against"] = {**figures, "run": str(baseline), "decoding": search.model_dump(mode="json")}
    return report, evaluation.outputs


def _captioning(run: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from regard.config import with_options
    from regard.data.caption_formats import read_entries
    from regard.data.image_features import FeatureFile
    from regard.metrics.caption import document_frequencies
    from regard.tasks.captioning_data import read_caption_set
    from regard.tasks.captioning_evaluation import describe_captions, evaluate_captioning
    from regard.tasks.captioning_prediction import Captioner

    counted, part = given["--frequencies"], given["--frequencies-split"]
    if part is not None and counted is None:
        raise ConfigError("--frequencies-split: only with --frequencies")
    captioner = Captioner.open(run)
    decoding = with_options(captioner.run.config.decoding, _changes(given))
    features = None if given["--features"] is None else FeatureFile(given["--features"])
    files = given["--captions"], given["--images"], given["--split"]
    examples = read_caption_set(*files, features=given["--features"], regions=given["--regions"])
    counts = None if counted is None else document_frequencies([entry.captions for entry in read_entries(Path(counted), "auto", part)])
    evaluation = evaluate_captioning(
        captioner, examples, decoding=decoding, features=features, frequencies=counts, with_meteor=bool(given["--meteor"])
    )
    describe_captions(evaluation, write_line)
    report = {"captions": given["--captions"], "decoding": decoding.model_dump(mode="json"), **evaluation.to_json()}
    return report, [item.text for item in evaluation.captions]


def _labels(run: Path, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from regard.tasks.classification_data import read_labelled_file
    from regard.tasks.classification_evaluation import describe_label_comparison, describe_labels, evaluate_labels
    from regard.tasks.classification_run import open_sentence_run

    opened = open_sentence_run(run)
    file = read_labelled_file(opened.config, given["--examples"])
    evaluation = evaluate_labels(opened, file)
    describe_labels(evaluation, write_line)
    report = {"examples": given["--examples"], **evaluation.to_json()}
    if (baseline := given["--baseline"]) is not None:
        with progress.stage(f"Evaluating the baseline {baseline}"):
            other = evaluate_labels(open_sentence_run(baseline, type(opened.config)), file)
        expected = [example.label for example in file.examples]
        report["against"] = describe_label_comparison(evaluation, other, expected, str(baseline), write_line)
    return report, evaluation.outputs


def _language(run: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    from regard.data.lines import read_lines
    from regard.tasks.attention_distance import attention_by_distance
    from regard.tasks.language_training import evaluate_language, open_language_run

    opened, lines = open_language_run(run), list(read_lines(given["--text"]))
    if not lines:
        raise DataError(f"{given['--text']}: no lines, expected one or more")
    scores, distances = evaluate_language(opened, lines), attention_by_distance(opened, lines)
    for score in scores:
        write_line(f"{score.name:<26}{score.value:9.3f} {score.unit:<10}{score.signature}")
    report = {"text": given["--text"], "scores": [asdict(score) for score in scores]}
    if distances is None:
        return report
    write_line("attention by distance     " + ", ".join(f"{back}: {100 * weight:.1f} %" for back, weight in enumerate(distances, start=1)))
    return {**report, "attention_by_distance": distances}
