"""The command `regard generate`, which also writes the generated data sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from regard import progress
from regard.commands.options import JsonInput, refuse
from regard.commands.streaming import answer_lines, input_chunks, text_reader
from regard.commands.terminal import write_line, write_message
from regard.data.synthetic import GeneratedSet
from regard.errors import ConfigError, counted

if TYPE_CHECKING:
    from regard.tasks.language_prediction import Continuation

commands = typer.Typer()
GENERATED_SETS = ", ".join(get_args(GeneratedSet))


@commands.command()
def generate(
    what: Annotated[str, typer.Argument(metavar="RUN|SET", help=f"a language model, or a set: {GENERATED_SETS}")],
    max_length: Annotated[int | None, typer.Option(min=1, help="RUN: max number of generated tokens; default: 100")] = None,
    beam_size: Annotated[int | None, typer.Option(min=1, help="RUN: beam width; default: greedy decoding")] = None,
    n_best: Annotated[int | None, typer.Option(min=1, help="RUN: hypotheses per line, written as JSON")] = None,
    sample: Annotated[bool, typer.Option("--sample", help="RUN: sample instead of greedy decoding or beam search")] = False,
    temperature: Annotated[float | None, typer.Option(help="with --sample; default: 1")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="with --sample: only from the k most probable tokens")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="with --sample: only from the fewest tokens that have this probability together")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="RUN: lines per batch")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="RUN: one JSON object per line: texts, tokens, log-probabilities")] = False,
    json_input: JsonInput = False,
    out: Annotated[Path | None, typer.Option(help="SET: output folder")] = None,
    count: Annotated[int | None, typer.Option(min=1, max=10_000_000, help="SET: training pairs; default: 10000")] = None,
    test: Annotated[int | None, typer.Option(min=1, max=1_000_000, help="SET: test pairs; default: 1000")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of the set, or of --sample; default: 1")] = None,
) -> None:
    """Continue text, or generate a data set.

    A language model continues each line of standard input. The name of a set writes parallel text, or images with captions.
    """
    drawing = {"--temperature": temperature, "--top-k": top_k, "--top-p": top_p}
    searching = {"--max-length": max_length, "--beam-size": beam_size, "--n-best": n_best, "--batch-size": batch_size}
    writing = {"--out": out, "--count": count, "--test": test}
    if what in get_args(GeneratedSet):
        refuse(
            {**drawing, **searching, "--sample": sample or None, "--json": json_lines or None, "--json-input": json_input or None},
            f"{what} is a set",
        )
        _write_set(cast(GeneratedSet, what), out, count, test, seed)
        return
    if not Path(what).is_dir():
        raise ConfigError(f"{what}: expected a run folder or one of the sets {GENERATED_SETS}")
    refuse(writing, f"{what} is a run, not a set")
    if not sample:
        refuse({**drawing, "--seed": seed}, "only with --sample")
    elif beam_size is not None:
        raise ConfigError("--beam-size: not with --sample, which draws instead of searching")
    chosen = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "num_samples": n_best}
    options = {"max_length": max_length, "beam_size": beam_size, "n_best": n_best, "batch_size": batch_size}
    options = {key: value for key, value in options.items() if value is not None}
    _continue_lines(Path(what), options, chosen if sample else None, seed, json_lines, json_input)


def _continue_lines(
    run: Path, options: dict[str, Any], chosen: Mapping[str, Any] | None, seed: int | None, json_lines: bool, json_input: bool
) -> None:
    from regard.decoding import SamplingOptions
    from regard.tasks.language_prediction import LanguageModel

    model = LanguageModel.open(run)
    if chosen is not None:
        import torch

        if seed is not None and not 0 <= seed < 2**63:
            raise ConfigError(f"--seed: expected 0 to 2^63 - 1, found {seed}")
        torch.manual_seed(1 if seed is None else seed)
        options["sampling"] = SamplingOptions(**{key: value for key, value in chosen.items() if value is not None})

    def show(number: int, item: Continuation) -> str:
        if item.truncated:
            write_message(f"line {number}: left out the first {counted(item.truncated, 'token')} of the prompt")
        return item.text

    _, bad = answer_lines(
        input_chunks("the beginning of a line"),
        text_reader(("text",) if json_input else None),
        lambda prompts: model.generate(prompts, **options),
        show,
        json_lines=json_lines or json_input or "n_best" in options,
    )
    if bad:
        raise typer.Exit(1)


def _write_set(kind: GeneratedSet, out: Path | None, count: int | None, test: int | None, seed: int | None) -> None:
    from regard.tasks.synthetic_data import generate as write_set

    if out is None:
        raise ConfigError("--out FOLDER: needed, where the set goes")
    if held := [path for path in sorted(out.glob("*")) if path.name.partition(".")[0] in ("train", "test")]:
        raise ConfigError(f"{held[0]}: exists, and a set may have a file of that name; choose another --out")
    with progress.stage(f"Generating {kind}"):
        paths = write_set(kind, out, train=count or 10_000, test=test or 1_000, seed=1 if seed is None else seed)
    for path in paths:
        write_line(str(path))
