"""Fine-tuning: start a run from another run's weights, vocabularies and, if it fits, optimizer state.

The new run keeps the settings of model, vocabulary and image, their files and the weights; training settings and data may change. Epochs,
updates and the learning rate schedule start at 0.
"""

from __future__ import annotations

import glob
import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from regard import progress
from regard.config import RunConfig, changed_values
from regard.data.vocabulary import Vocabulary
from regard.errors import CheckpointError, ConfigError, DataError, listed
from regard.tasks.run_folder import CONFIG, DATA, read_config
from regard.training.atomic_folder import STATE, file_sha256, read_state, verify_folder
from regard.training.checkpoint import EMA, MODEL, OPTIMIZER, TrainingState, check_run_files, checkpoint_path, read_optimizer, weights_file
from regard.training.weights import read_weights

AnyConfig = TypeVar("AnyConfig", bound=RunConfig)

FIXED_SETTINGS = ("model", "vocabulary", "image")
"""Parts of a configuration that a run that starts from another keeps."""
MAY_CHANGE = (
    "drop",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "embed_dropout",
    "word_dropout",
    "swap_probability",
    "penalty",
    "penalty_reduction",
    "doubly_stochastic",
    "class_weights",
    "alignment_layer",
    "augment",
    "half_soft",
    "half_soft_per",
    "soft_batches",
    "reward",
    "reward_weight",
    "entropy_weight",
    "scaling",
    "learning_rate_factor",
    "start",
)
"""Settings of a model that its weights do not depend on."""
GROWABLE = ("training.epochs", "training.max_updates")


def settings_from_run(run: str | Path, kind: type[AnyConfig], *, keep_data: bool = True) -> dict[str, Any]:
    """Return the settings of a run that fine-tunes another: `base` for `regard.config.load_config`.

    Args:
        run: folder of the initial run, finished or not, trained or imported.
        kind: the configuration of its task.
        keep_data: include its data files; False if new ones are named.

    Raises:
        CheckpointError: the folder is not a run of this task.
        DataError: its training file is kept, has a relative path, and is not there.

    Example:
        >>> from regard.config import TranslationConfig
        >>> settings_from_run("no-such-run", TranslationConfig)
        Traceback (most recent call last):
            ...
        regard.errors.CheckpointError: no-such-run: no such run folder
    """
    config = read_config(Path(run), kind)
    tree = config.model_dump(mode="json")
    if keep_data:
        name = data_files(kind)[0]
        path = tree["data"][name]
        if path is not None and not os.path.isabs(path) and not glob.glob(path) and not Path(path).exists():
            raise DataError(
                f"{run}: its data.{name}, {path}, is not here; relative paths start where its training began: go there, or give the files"
            )
    dropped = [] if keep_data else data_files(kind, parts=True)
    tree["data"] = {name: value for name, value in tree["data"].items() if name not in dropped and name != "vectors"}
    if not keep_data and "links" in tree.get("training", {}):
        tree["training"]["links"] = None  # of the other pairs
    tree["start"] = {"run": str(run)}
    return {**tree, "recipe": "none"} if "recipe" in tree else tree


def data_files(kind: type[RunConfig], *, parts: bool = False) -> list[str]:
    """Return the settings under `data` of a task that name files, with `parts` also those that name a part of one.

    Example:
        >>> from regard.config import LanguageConfig
        >>> data_files(LanguageConfig)
        ['text', 'valid_text']
    """
    data: Any = kind.model_fields["data"].annotation
    named = [name for name, field in data.model_fields.items() if field.annotation == str | None]
    return [name for name in named if parts or not name.endswith("split")]


def resolve_start(config: AnyConfig, folder: Path) -> AnyConfig:
    """Check the initial run, and record the sha256 of its weights in the configuration.

    Args:
        config: the requested configuration.
        folder: the new run's folder. An existing run keeps its recorded start; the initial run may be gone.

    Raises:
        ConfigError: the run is `folder` itself, or differs in model, vocabulary or image.
        CheckpointError: there is no such run, or it is damaged.
    """
    start = config.start
    if start is None:
        return config
    run = Path(start.run)
    if run.resolve() == folder.resolve():
        raise ConfigError(f"{folder}: named by both --from and --out; the new run needs its own folder")
    if (folder / CONFIG).exists():
        known = read_config(folder, type(config)).start
        if known is None or start.weights not in (None, known.weights):
            return config
        same = start.run == known.run or (run.is_dir() and file_sha256(weights_file(run)) == known.weights)
        return (
            config.model_copy(update={"start": start.model_copy(update={"run": known.run, "weights": known.weights})}) if same else config
        )
    before = read_config(run, type(config))
    unlike = [
        f"{key}: {old} -> {new}"
        for key, (old, new) in changed_values(before, config).items()
        if key.split(".")[0] in FIXED_SETTINGS and not set(key.split(".")) & set(MAY_CHANGE)
    ]
    if unlike:
        raise ConfigError(
            f"--from {run}: --from keeps the model and vocabulary ({listed(unlike, most=5)}); of the model's settings "
            f"{listed(MAY_CHANGE[:6])} and the like may change"
        )
    found = file_sha256(weights_file(run))
    if start.weights not in (None, found):
        raise CheckpointError(f"{run}: its weights have the sha256 {found}, start.weights expects {start.weights}")
    _tell_held_out(run, before, config)
    return config.model_copy(update={"start": start.model_copy(update={"weights": found})})


def _tell_held_out(run: Path, before: AnyConfig, config: AnyConfig) -> None:
    # Language models hold out the last lines, whatever the seed.
    old, data = cast(Any, before.data), cast(Any, config.data)
    given = any(value is not None for name, value in data if name.startswith("valid") and name != "valid_size")
    same = all(getattr(old, name) == getattr(data, name) for name in data_files(type(config), parts=True))
    drawn = [(before.training.seed, old.valid_size), (config.training.seed, data.valid_size)]
    if config.task != "lm" and same and not given and drawn[0] != drawn[1]:
        progress.message(
            f"validation: examples held out by training.seed={drawn[1][0]} and data.valid_size={drawn[1][1]}; {run} held out others, "
            "and was trained on most of them"
        )


def inherited_files(run: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the files of a run that a fine-tuned one inherits, vocabularies and labels, by name.

    Raises:
        CheckpointError: one is missing, or has changed since the weights were saved.
    """
    own = [name for name in names if name not in (CONFIG, DATA) and not (run / name).is_dir() and Path(name).suffix]
    weights = weights_file(run)
    check_run_files(verify_folder(weights.parent, only=[weights.name, STATE]), run, [CONFIG, *own])
    return {name: (run / name).read_bytes() for name in own}


def initial_state(config: RunConfig) -> Callable[[TrainingState], None]:
    """Return the initial state for `regard.training.TrainingJob`: none, or another run's weights and optimizer state.

    Args:
        config: as `resolve_start` returned it.
    """
    start = config.start
    if start is None:
        return lambda state: None

    def begin(state: TrainingState) -> None:
        run = Path(start.run)
        weights = weights_file(run)
        if (found := file_sha256(weights)) != start.weights:
            raise CheckpointError(
                f"{weights}: has the sha256 {found}, but this run was begun with {start.weights}; start it in a new folder"
            )
        read_weights(weights, state.model)
        if state.average is not None:
            for name, parameter in state.model.named_parameters():
                state.average.tensors[name].copy_(parameter.detach())
        source = _optimizer_of(run, weights)
        missing = _not_taken(config, run, source)
        if not missing:
            assert source is not None
            read_optimizer(source / OPTIMIZER, state)
        taken = f"the optimizer starts anew: {missing}" if missing else "the optimizer state is kept"
        progress.message(f"from {run}: weights (sha256 {found[:12]}) and vocabulary; {taken}")

    return begin


def report_unknown(config: RunConfig, vocabulary: Vocabulary, texts: Iterable[str], *, name: str = "vocabulary") -> None:
    """Report how much of the new training text an inherited vocabulary does not know.

    Args:
        config: configuration of the run.
        vocabulary: taken over.
        texts: the training text; read only if needed.
        name: of the vocabulary.
    """
    if config.start is not None and vocabulary.kind != "bpe":  # which knows every byte
        with progress.stage("Counting unknown tokens", unit="lines") as counting:
            rate = vocabulary.unknown_rate(counting.track(texts))
        progress.message(f"{name}: that of {config.start.run}; unknown in training text: {rate:.2%}")


def resume_advice(old: RunConfig, new: RunConfig, folder: Path) -> str:
    """Return the command that trains with other settings and keeps what a run has learned; "" where its model or vocabulary differs."""
    words = ["regard", "train", old.task, "--from", str(folder), "--out", str(_free(folder))]
    changed, files = changed_values(old, new), data_files(type(new), parts=True)
    if any(f"data.{name}" in changed for name in files):  # one replaces all
        words += [f"data.{name}={value}" for name in files if (value := getattr(new.data, name)) is not None]
    for key, (before, after) in changed.items():
        part = key.split(".")[0]
        if part in FIXED_SETTINGS and not set(key.split(".")) & set(MAY_CHANGE):
            return ""
        if part in ("decoding", "start", "recipe", "task") or key == "training.workers":  # which changes no result
            continue
        if key == "training.warmup_updates" and getattr(new, "recipe", "none") != "none" and "training.max_updates" in changed:
            continue  # that of the recipe, a part of the updates
        if part == "data" and key.removeprefix("data.") in files:
            continue
        # A fine-tuned run counts updates from 0.
        grown = key in GROWABLE and isinstance(before, int) and isinstance(after, int) and after > before
        value = after - before if grown else after
        words.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    return shlex.join(words)


def _free(folder: Path) -> Path:
    number = 2
    while (free := folder.with_name(f"{folder.name}-{number}")).exists():
        number += 1
    return free


def _optimizer_of(run: Path, weights: Path) -> Path | None:
    """Return the checkpoint with these weights, if any."""
    if weights.name != MODEL:
        return None
    if weights.parent.parent.name == "checkpoints":
        return weights.parent
    sources = read_state(weights.parent).get("sources")
    if not isinstance(sources, dict) or len(sources) != 1:
        return None
    [(name, digest)] = sources.items()
    found = checkpoint_path(run, 0).parent / Path(name).name
    # The manifest has the sha256 of moving averages, too: the optimizer belongs to other weights.
    taken_from = found / EMA if (found / EMA).is_file() and file_sha256(found / EMA) == digest else found / MODEL
    return found if taken_from.name == MODEL else None


def _not_taken(config: RunConfig, run: Path, source: Path | None) -> str:
    """Return why the optimizer state is not used, or ""."""
    assert config.start is not None
    old = read_config(run, type(config)).training
    if not config.start.optimizer:
        return "start.optimizer is false"
    if old.optimizer != config.training.optimizer:
        return f"{config.training.optimizer}, before {old.optimizer}"
    if source is None:
        return "the weights are of no single checkpoint"
    try:
        verify_folder(source)
    except CheckpointError:
        return f"{source.name} is no longer there"
    return ""
