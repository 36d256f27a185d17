"""The command `regard train`, with one subcommand per task."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.commands.options import Config, From, Out, Overrides, PrintConfig
from regard.commands.terminal import write_line, write_message
from regard.errors import ConfigError, counted, listed
from regard.progress.stages import is_later_rank

if TYPE_CHECKING:
    from regard.config import RunConfig

training = typer.Typer(
    help="Train a model; the same command resumes it. After SIGTERM, SIGUSR1 or Ctrl-C, training saves and exits with 143, 138 or 130.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

LIMITS = {"epochs": "all epochs", "max_updates": "training.max_updates"}
"""Settings that end a training, and how the result names them."""
LABELLED = {
    "train": "labelled examples: .jsonl, .tsv, .csv, or lines of a label and a text (may be .gz)",
    "valid": "validation examples; default: hold out some training examples",
    "test": "test examples; evaluate the trained model on them",
    "vectors": "initial word vectors in the text format of GloVe and word2vec (may be .gz)",
}
COMMANDS: dict[str, tuple[str, dict[str, str]]] = {
    "captioning": (
        "Train an image captioning model.",
        {
            "captions": "captions: Karpathy or COCO JSON, Flickr8k.token.txt, .csv, .jsonl, or image<TAB>caption",
            "images": "folder or tar of the images; default: the folder of the captions",
            "split": "part to train on: a Karpathy split, or a file of image names",
            "valid_captions": "validation captions; default: the same file",
            "valid_images": "validation images; default: the same folder or tar",
            "valid_split": "part to validate on; default: hold out some images",
            "features": "precomputed features of all images (model.encoder.type=features)",
        },
    ),
    "classification": ("Train a sentence classifier.", LABELLED),
    "entailment": ("Train a classifier of premise and hypothesis.", LABELLED),
    "translation": (
        "Train a translation model.",
        {
            "source": "training sources, one per line (may be .gz), or a .jsonl, .tsv, .csv or .tmx file of pairs",
            "target": "training targets, line by line with the sources",
            "second_source": "a second input beside the sources, line by line with them (model.second); text, or names of images",
            "images": "folder of the images that the second inputs name (model.second.image); default: the folder of these files",
            "valid_source": "validation sources; default: hold out some training pairs",
            "valid_target": "validation targets",
            "valid_second_source": "second inputs of the validation sources",
        },
    ),
    "lm": (
        "Train a language model.",
        {"text": "training text (may be .gz)", "valid_text": "validation text; default: hold out the last lines"},
    ),
}
"""Description of a task's command, and the options that name its files: settings under `data`, and `test`."""


def _add_command(task: str, about: str, files: Mapping[str, str]) -> None:
    def command(**given: Any) -> None:
        _train(task, {name: given.pop(name) for name in files}, **given)

    options: dict[str, Any] = {"overrides": Overrides, "out": Out, "config": Config, "start": From}
    options |= {name: Annotated[str | None, typer.Option(help=text)] for name, text in files.items()}
    options["print_config"] = PrintConfig
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False if kind is PrintConfig else None, annotation=kind)
        for name, kind in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__, command.__doc__ = options, about
    training.command(task)(command)


for _task, _described in COMMANDS.items():
    _add_command(_task, *_described)


def _train(
    task: str,
    files: dict[str, str | None],
    overrides: Sequence[str] | None,
    out: Path | None,
    config: Path | None,
    start: Path | None,
    print_config: bool,
) -> None:
    """Train and report the result.

    Raises:
        ConfigError: `out` is missing, or the settings are incompatible.
    """
    test = files.pop("test", None)
    settings: Any = settings_for(task, config, overrides, files, start=start)
    if print_config:
        _print_config(settings)
        return
    from regard.config.unused import unused_settings
    from regard.tasks.classification_data import read_labelled_file
    from regard.tasks.classification_evaluation import describe_labels, evaluate_labels
    from regard.tasks.classification_run import open_sentence_run
    from regard.tasks.glibc_memory import TRAINING_BYTES, bound_free_memory
    from regard.tasks.table import TASKS
    from regard.tasks.train import train_task

    examples = None if test is None else read_labelled_file(settings, test)
    if out is None:
        raise ConfigError("--out RUN: needed, the folder the run goes to")
    for note in unused_settings(settings).values():
        write_message(note)
    bound_free_memory(TRAINING_BYTES)  # every batch has tensors of other sizes
    result = train_task(TASKS[task].training, settings, out)
    if result.interrupted is not None:
        write_message(f"stopped by signal {result.interrupted} after update {result.step}; the same command resumes")
        raise typer.Exit(128 + result.interrupted)
    if is_later_rank():  # the first process tells the result
        return
    why = {**LIMITS, "patience": "training.patience"}.get(result.reason, result.reason)
    write_line(
        f"{counted(result.step, 'update', form=',')} ({why}); model in {result.model}; sha256 of the last weights {result.weights_sha256}"
    )
    if result.reason in LIMITS and result.best_step == result.step:
        limit, metric = getattr(settings.training, result.reason), settings.training.metric
        write_message(f"{metric} was best at the last evaluation: training.{result.reason} above {limit:,} may give a better model")
    if examples is not None:
        describe_labels(evaluate_labels(open_sentence_run(out), examples), write_line)


def _print_config(settings: RunConfig) -> None:
    from regard.config import TranslationConfig, dump_config, unsettled_settings

    unsettled = unsettled_settings(settings) if isinstance(settings, TranslationConfig) else set()
    if isinstance(settings, TranslationConfig) and unsettled and settings.data.source is not None:
        from regard.tasks.translation_training import settle_recipe

        settings, unsettled = settle_recipe(settings), set()
    sys.stdout.write(dump_config(settings, unsettled))
    if unsettled:
        write_message(f"recipe: auto: a training fills in {listed(sorted(unsettled))} by its number of pairs; name its files to print them")


def settings_for(
    task: str, config: Path | None, overrides: Sequence[str] | None, files: Mapping[str, str | None], *, start: Path | None = None
) -> RunConfig:
    """Return the settings of a command line.

    Args:
        task: name of the task.
        config: a YAML file, or None.
        overrides: `key.sub=value`.
        files: `data` settings given as options; None if not given.
        start: the run to continue from, or None. Its files are used unless others are given.

    Raises:
        ConfigError: see `load_config`; or other settings contradict `start`.
        CheckpointError: `start` is not a run of this task.
    """
    from regard.config import TASKS, StartConfig, load_config

    kind, given = TASKS[task], {name: path for name, path in files.items() if path is not None}
    # A configuration file replaces the recipe.
    base: dict[str, Any] | None = {"recipe": "auto"} if config is None and "recipe" in kind.model_fields else None
    if start is not None:
        from regard.tasks.fine_tuning import data_files, settings_from_run

        base = settings_from_run(start, kind, keep_data=not {*given, *_names_of_data(config, overrides or [])} & set(data_files(kind)))
    settings = load_config(config, overrides or [], base=base, kind=kind)
    if start is not None:
        recipe = getattr(settings, "recipe", "none")
        if recipe == "auto" or (recipe != "none" and any(item.startswith("recipe=") for item in overrides or [])):
            raise ConfigError(
                f"recipe={recipe}: --from keeps the settings of its run; name those that should change, such as training.epochs=3"
            )
        named = settings.start or StartConfig(run=str(start))  # a file of another run has none
        if named.run != str(start) or (settings.start is None and any(item.startswith("start") for item in overrides or [])):
            other = f"start.run={named.run}" if settings.start else "start=null"
            raise ConfigError(f"--from {start} and {other} contradict each other; give one of them")
        settings = settings.model_copy(update={"start": named})
    return settings.model_copy(update={"data": settings.data.model_copy(update=given)})


def _names_of_data(config: Path | None, overrides: Sequence[str]) -> list[str]:
    from regard.config.load import read_overrides, read_yaml

    names = []
    for tree in ({} if config is None else read_yaml(config), *(tree for _, tree in read_overrides(overrides))):
        data = tree.get("data")
        names += map(str, data) if isinstance(data, Mapping) else []
    return names


def setting_meant(option: str | None, words: Sequence[str]) -> str:
    """Return a hint where an unknown option of a training has the name of a setting; else "".

    Args:
        option: the option.
        words: of the command line.

    Example:
        >>> setting_meant("--epochs", ["train", "translation", "--epochs", "3"])
        '; settings are given as training.epochs=3'
    """
    if option is None or words[:1] != ["train"]:
        return ""
    from regard.config import TASKS
    from regard.config.strict_yaml import NOT_YAML, parse_yaml
    from regard.config.suggestions import suggested_path

    at = next((number for number, word in enumerate(words) if word.partition("=")[0] == option), None)
    kind = TASKS.get(next((word for word in words[1:] if word in TASKS), ""))
    if at is None or kind is None:
        return ""
    _, equals, value = words[at].partition("=")
    try:
        given = parse_yaml(value if equals else "".join(words[at + 1 : at + 2]))
    except NOT_YAML:
        return ""
    meant = suggested_path(kind, option.lstrip("-").replace("-", "_"), given)
    return f"; settings are given as {meant}" if meant else ""
