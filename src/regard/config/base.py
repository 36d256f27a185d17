"""Settings shared by the configurations of all tasks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Metric = Literal["loss", "perplexity", "token_accuracy", "bleu", "chrf", "exact_match", "accuracy", "macro_f1", "cider"]
LOWER_IS_BETTER = frozenset({"loss", "perplexity", "bits per byte"})
"""Metrics of training and studies for which lower is better."""


# Maximum of all settings: far above any trained model, far below values that crash libraries. `regard.training.memory_check` refuses
# combinations that need too much memory.
MAX_SIZE = 2**20
"""A dimension, number of heads, area size or window."""
MAX_LAYERS = 1000
MAX_ENTRIES = 5_000_000
"""Size of a vocabulary."""
MAX_LENGTH = 10_000_000
"""Length of a sequence in tokens."""
MAX_BEAM = 10_000
MAX_COUNT = 10**12
"""Number of updates, epochs, examples, or tokens of a batch."""
MAX_WATCHED = 64
"""Number of examples whose attention is recorded during training."""
MAX_RATE = 1e6
"""A rate, weight or penalty."""


NormalizerName = Literal["softmax", "sparsemax", "entmax15"]
"""How attention scores become weights."""
Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay of an optimizer's running mean."""


class Frozen(BaseModel):
    """Base of every configuration: immutable, and an unknown key is an error."""

    # Built when it is first used: a program uses few of all.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, values: Any) -> Any:
        # pydantic accepts true as the number 1.
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if isinstance(value, bool) and key in cls.model_fields and bool not in _types(cls, key):
                meant = "; did you mean null?" if not value and type(None) in _types(cls, key) else ""
                raise WrongValue(key, f"{str(value).lower()} is neither a number nor a name{meant}")
            for number, entry in enumerate(value if isinstance(value, list | tuple) and key in cls.model_fields else ()):
                if isinstance(entry, bool):  # no setting is a list of them
                    raise WrongValue(f"{key}.{number}", f"{str(entry).lower()} is neither a number nor a name")
        return values


def unused_if(**values: tuple[Any, ...]) -> dict[str, Any]:
    """Return the `json_schema_extra` of a setting that has no effect while others have these values, all of them.

    Args:
        values: of settings of the same section, or `**{"model.kind": ...}` from the root; null if there is no such setting.

    Example:
        >>> Field(default=1, json_schema_extra=unused_if(kind=("plain",))).json_schema_extra
        {'unused_if': {'kind': ('plain',)}}
    """
    return {"unused_if": values}


class WrongValue(ValueError):
    """Raised by a validator of several settings, for one of them.

    Attributes:
        key: the setting.

    Example:
        >>> WrongValue("epochs", "true is neither a number nor a name").key
        'epochs'
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@cache
def _types(model: type[BaseModel], field: str) -> tuple[Any, ...]:
    """Return the types of a field: those of a union, and itself."""
    annotation = model.model_fields[field].annotation
    return (annotation, *get_args(annotation))


class VocabularyConfig(Frozen):
    """Tokenization; trained on the run's training text."""

    kind: Literal["bpe", "unigram", "word", "character"] = Field(default="bpe", description="byte-level BPE is lossless")
    size: int = Field(default=8000, ge=8, le=MAX_ENTRIES, description="max entries, special tokens included")
    shared: bool = Field(default=True, description="one vocabulary for both sides")
    min_count: int = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        description="rarer words or characters become the unknown token (word, character)",
        json_schema_extra=unused_if(kind=("bpe", "unigram")),
    )
    sample: int = Field(
        default=250_000,
        ge=1,
        le=MAX_COUNT,
        description="training examples to learn the vocabulary from, about this many, evenly from all of the text",
    )


class TrainingConfig(Frozen):
    """Training settings. Lengths are in target tokens or updates, never in wall time, so that runs are reproducible."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    epochs: int = Field(default=10, ge=1, le=MAX_COUNT)
    max_updates: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="stop after this many updates, in any epoch")
    batch_tokens: int = Field(default=4096, ge=1, le=MAX_COUNT, description="max padded tokens per batch, of the longer side")
    gradient_accumulation_steps: int = Field(default=1, ge=1, le=MAX_COUNT, description="batches per update and process")
    micro_batches: int | None = Field(
        default=None, ge=1, le=64, description="parts of a batch, for the workers; absent: chosen when the run starts, on a GPU 1"
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        le=MAX_COUNT,
        description="processes on a CPU, one thread each; absent: one per core",
    )
    optimizer: Literal["adamw", "adam", "sgd", "adadelta", "rmsprop", "adagrad"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0, le=MAX_RATE)
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.999), json_schema_extra=unused_if(optimizer=("sgd", "adadelta", "rmsprop", "adagrad")))
    rho: Beta = Field(
        default=0.95,
        description="adadelta, rmsprop: decay of the running mean of squared gradients",
        json_schema_extra=unused_if(optimizer=("adamw", "adam", "sgd", "adagrad")),
    )
    eps: float = Field(
        default=1e-8,
        gt=0,
        le=MAX_RATE,
        description="adadelta starts too slowly with less than 1e-6",
        json_schema_extra=unused_if(optimizer=("sgd",)),
    )
    weight_decay: float = Field(default=0.0, ge=0, le=MAX_RATE)
    schedule: Literal["constant", "inverse_sqrt", "cosine", "linear", "halving"] = "constant"
    warmup_updates: int = Field(default=0, ge=0, le=MAX_COUNT, description="updates of linear warm-up")
    halve_after: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="halving: updates at the full learning rate")
    halve_every: int | None = Field(
        default=None, ge=1, le=MAX_COUNT, description="halving: updates between halvings, the first right after `halve_after`"
    )
    final_fraction: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="cosine, linear: last learning rate as a fraction of the peak",
        json_schema_extra=unused_if(schedule=("constant", "inverse_sqrt", "halving")),
    )
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    clip_norm: float | None = Field(default=1.0, gt=0, le=MAX_RATE)
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="fp32", description="auto: bf16 where the device multiplies bfloat16 in hardware, else fp32"
    )
    compile: bool = Field(default=False, description="compile the model with torch.compile")
    distributed: Literal["ddp", "fsdp"] = Field(default="ddp", description="under torchrun")
    evaluate_every: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="updates between evaluations; absent: once per epoch")
    save_every: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="updates between checkpoints; absent: at each evaluation")
    metric: Metric = Field(default="loss", description="chooses the best weights; each task has some of these")
    eval_metrics: tuple[Metric, ...] = Field(
        default=(), description="more metrics logged at each evaluation, such as [bleu, chrf]; they do not choose weights"
    )
    patience: int | None = Field(default=None, ge=1, le=MAX_COUNT, description="stop after this many evaluations without a better metric")
    keep_checkpoints: int = Field(default=2, ge=1, le=MAX_COUNT, description="latest checkpoints to keep, in addition to the best")
    average_checkpoints: int = Field(
        default=1,
        ge=1,
        le=MAX_COUNT,
        description="at the end, average the weights of this many last evaluations; kept if better than the best one",
    )
    ema_decay: float | None = Field(default=None, gt=0, lt=1, description="decay of an exponential moving average of the weights")
    log_every: int = Field(default=20, ge=1, le=MAX_COUNT)
    tensorboard: bool = False
    watch: int = Field(
        default=0,
        ge=0,
        le=MAX_WATCHED,
        description="validation examples whose attention is recorded before training and at each evaluation; 0: none",
    )

    @model_validator(mode="after")
    def _check_halving(self) -> Self:
        halving = self.schedule == "halving"
        if any((value is not None) != halving for value in (self.halve_after, self.halve_every)):
            raise ValueError("schedule: halving needs halve_after and halve_every, and no other schedule has them")
        return self

    @field_validator("eval_metrics", mode="before")
    @classmethod
    def _listed(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value  # eval_metrics=bleu

    @property
    def measured(self) -> tuple[Metric, ...]:
        """The metrics of every evaluation besides the loss: `metric`, which selects the best weights, and `eval_metrics`."""
        return (self.metric, *self.eval_metrics)

    @property
    def measures_outputs(self) -> bool:
        """Whether evaluations measure outputs, which the decoding settings change, and not only likelihoods."""
        return not {"loss", "perplexity", "token_accuracy"}.issuperset(self.measured)


class DecodingConfig(Frozen):
    """Decoding settings."""

    beam_size: int = Field(default=5, ge=1, le=MAX_BEAM)
    length_penalty: float = Field(default=1.0, ge=0, le=MAX_RATE, description="alpha: scores are divided by ((5 + length) / 6) ** alpha")
    coverage_penalty: float = Field(default=0.0, ge=0, le=MAX_RATE, description="beta of the GNMT coverage penalty")
    max_length: int = Field(default=200, ge=1, le=MAX_LENGTH, description="max number of generated tokens")
    min_length: int = Field(default=0, ge=0, le=MAX_LENGTH)
    no_repeat_ngram_size: int = Field(default=0, ge=0, le=MAX_LENGTH)
    replace_unknown: bool = Field(default=False, description="replace an unknown word by the source word it attends to most")
    shortlist: bool = Field(
        default=False, description="translation: generate only tokens that the run's shortlist has for the batch (`regard shortlist`)"
    )
    batch_size: int = Field(default=64, ge=1, le=MAX_COUNT, description="sentences per batch")
    precision: Literal["float32", "bfloat16", "int8"] = Field(default="float32", description="precision of matrix products; int8: on a CPU")


class StartConfig(Frozen):
    """The run that a new one starts from (`--from RUN`): its weights and vocabularies."""

    run: str = Field(min_length=1, description="its folder")
    weights: str | None = Field(default=None, description="sha256 of its weights; filled in when the new run is created")
    optimizer: bool = Field(default=True, description="take the state of its optimizer, too, where it fits")


class RunConfig(Frozen):
    """Settings common to the runs of all tasks; the resolved ones are stored as `config.yaml` in the run folder."""

    task: str = ""
    data: Frozen = Frozen()
    vocabulary: VocabularyConfig = VocabularyConfig()
    model: Frozen = Frozen()
    training: TrainingConfig = TrainingConfig()
    start: StartConfig | None = Field(default=None, description="the run to start from (--from); null: none")
