"""What the configurations of all tasks share."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Metric = Literal["loss", "perplexity", "token_accuracy", "bleu", "chrf", "exact_match", "accuracy", "macro_f1", "cider"]


class Frozen(BaseModel):
    """Base of every configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class VocabularyConfig(Frozen):
    """How text becomes tokens; trained on the run's own training text."""

    kind: Literal["bpe", "unigram", "word", "character"] = Field(default="bpe", description="byte-level BPE is lossless")
    size: int = Field(default=8000, ge=8, description="entries at most, special tokens included")
    shared: bool = Field(default=True, description="one vocabulary for both sides")
    min_count: int = Field(default=1, ge=1, description="rarer words or characters become the unknown token (word, character)")


class TrainingConfig(Frozen):
    """How a run trains. Lengths are in target tokens or updates, never in wall time, so that a run can be repeated."""

    seed: int = Field(default=1, ge=0, lt=2**63)
    epochs: int = Field(default=10, ge=1)
    max_updates: int | None = Field(default=None, ge=1, description="stop after so many updates, whatever the epoch")
    batch_tokens: int = Field(default=4096, ge=1, description="padded tokens of the longer side in a batch, at most")
    accumulation: int = Field(default=1, ge=1, description="batches per update and process")
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    learning_rate: float = Field(default=1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "inverse_sqrt", "cosine", "linear"] = "constant"
    warmup: int = Field(default=0, ge=0, description="updates of linear warm-up")
    final_fraction: float = Field(default=0.0, ge=0, le=1, description="cosine, linear: the last rate as a part of the first")
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    compile: bool = Field(default=False, description="compile the model with torch.compile")
    distributed: Literal["ddp", "fsdp"] = Field(default="ddp", description="used under torchrun")
    evaluate_every: int | None = Field(default=None, ge=1, description="updates between evaluations; absent: once an epoch")
    save_every: int | None = Field(default=None, ge=1, description="updates between checkpoints; absent: at each evaluation")
    metric: Metric = Field(default="loss", description="what decides which weights are best; a task has some of these")
    patience: int | None = Field(default=None, ge=1, description="stop after so many evaluations without a better metric")
    keep: int = Field(default=2, ge=1, description="newest checkpoints kept, beside the best")
    average: int = Field(default=1, ge=1, description="average the weights of the last so many evaluations at the end")
    ema: float | None = Field(default=None, gt=0, lt=1, description="decay of an exponential moving average of the weights")
    log_every: int = Field(default=20, ge=1)
    tensorboard: bool = False


class DecodingConfig(Frozen):
    """How text is generated."""

    beam: int = Field(default=5, ge=1)
    length_penalty: float = Field(default=1.0, ge=0, description="alpha: scores are divided by ((5 + length) / 6) ** alpha")
    coverage_penalty: float = Field(default=0.0, ge=0, description="beta of the GNMT coverage penalty")
    max_length: int = Field(default=200, ge=1, description="tokens generated at most")
    min_length: int = Field(default=0, ge=0)
    no_repeat_ngram: int = Field(default=0, ge=0)
    replace_unknown: bool = Field(default=False, description="an unknown word becomes the source word most attended to")
    batch_size: int = Field(default=64, ge=1, description="sentences decoded together")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", description="of the matrix products")


class RunConfig(Frozen):
    """What a run of any task has: the base of `TranslationConfig` and the others; stored, resolved, as `config.yaml` in its folder."""

    task: str = ""
    data: Frozen = Frozen()
    vocabulary: VocabularyConfig = VocabularyConfig()
    model: Frozen = Frozen()
    training: TrainingConfig = TrainingConfig()
