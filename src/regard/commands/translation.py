"""The verbs `regard train translation` and `regard translate`."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated, Any

import typer

from regard.choices import Precision
from regard.commands.options import BatchSize, Beam, Config, LengthPenalty, MaxLength, Others, Out, Overrides, PrintConfig, RunFolder
from regard.commands.terminal import note, read_input, write
from regard.commands.train import run_training, settings_for, training
from regard.config import DecodingConfig, TranslationConfig
from regard.errors import ConfigError

commands = typer.Typer()


@training.command("translation")
def train_translation(
    overrides: Overrides = None,
    out: Out = None,
    config: Config = None,
    source: Annotated[str | None, typer.Option(help="training sources, one a line (.gz too); or one .jsonl or .tsv file of pairs")] = None,
    target: Annotated[str | None, typer.Option(help="training targets, line by line with the sources")] = None,
    valid_source: Annotated[str | None, typer.Option(help="validation sources; without, some training pairs are held out")] = None,
    valid_target: Annotated[str | None, typer.Option(help="validation targets")] = None,
    print_config: PrintConfig = False,
) -> None:
    """Train a model that translates sentences."""
    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    settings = settings_for(TranslationConfig, config, overrides, files, print_config)
    from regard.tasks.translation import train_translation as train

    run_training(train, settings, out)


@commands.command()
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
    decoding = chosen_decoding(
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
    for number, item in enumerate(translator.stream(read_input(), decoding=decoding, n_best=n_best, sampling=sampling), start=1):
        if item.truncated:
            note(f"line {number}: {item.truncated} tokens past the first {len(item.source.ids)} were cut off (data.max_length)")
        write(json.dumps(item.to_json(), ensure_ascii=False) if json_lines or n_best > 1 else item.text)
        lines, tokens = number, tokens + (len(item.hypotheses[0].tokens) if item.hypotheses else 0)
    if timing:
        seconds = time.perf_counter() - started
        rates = {"sentences_per_second": lines / seconds, "tokens_per_second": tokens / seconds}
        print(json.dumps({"lines": lines, "tokens": tokens, "seconds": seconds, **rates}), file=sys.stderr)


def chosen_decoding(config: TranslationConfig, **changes: Any) -> DecodingConfig:
    """Return a run's decoding settings with those changed that are not None.

    Raises:
        ConfigError: see `regard.tasks.translate.check_decoding`.
    """
    from regard.tasks.translate import check_decoding

    decoding = config.decoding.model_copy(update={name: value for name, value in changes.items() if value is not None})
    check_decoding(config, decoding)
    return decoding
