"""Configurations: frozen pydantic models, read from YAML, overridden by `key.sub=value`.

An unknown key is an error that names its path and the nearest known key. A configuration stops at the builder: modules
take ints, floats and bools.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from regard.errors import ConfigError

# What the reader raises: its own error, a date that is none, lists within lists without end.
NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
# Levels of keys within keys that are read; the settings have three. A file can refer to its own parts, and so be endless.
MAX_DEPTH = 5
MAX_ERRORS = 5

Score = Literal["additive", "concat", "dot", "scaled_dot", "general", "location", "cosine"]
KeyMode = Literal["mean", "features", "max", "sample", "concat", "max_concat", "sum", "sample_concat", "sample_sum"]


class Frozen(BaseModel):
    """Base of every configuration: immutable, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataConfig(Frozen):
    """Which files a run reads. Paths are kept as given; `.gz` is read as it is."""

    source: str | None = Field(default=None, description="training source sentences, one a line; or one .jsonl / .tsv file of pairs")
    target: str | None = Field(default=None, description="training target sentences, line by line with `source`")
    valid_source: str | None = Field(default=None, description="validation sources; absent: `held_out` training pairs are held out")
    valid_target: str | None = Field(default=None, description="validation targets")
    held_out: int = Field(default=500, ge=1, description="pairs held out (at most a tenth) when there are no validation files")
    max_length: int = Field(default=200, ge=1, description="longer sequences, in tokens, are left out of training and counted")


class VocabularyConfig(Frozen):
    """How text becomes tokens; trained on the run's own training text."""

    kind: Literal["bpe", "unigram", "word", "character"] = Field(default="bpe", description="byte-level BPE is lossless")
    size: int = Field(default=8000, ge=8, description="entries at most, special tokens included")
    shared: bool = Field(default=True, description="one vocabulary for both sides")
    min_count: int = Field(default=1, ge=1, description="rarer words or characters become the unknown token (word, character)")


class AreaSettings(Frozen):
    """Area attention (Li et al. 2018): runs of tokens instead of single ones."""

    max_area: int = Field(default=5, ge=1, description="A: an area is a run of 1 to A tokens")
    key_mode: KeyMode = Field(default="mean", description="mean: Eq. 3; features: Eq. 9, learned; the others as in the authors' code")
    value_mode: Literal["sum", "mean", "max"] = Field(default="sum", description="sum: Eq. 4")
    top_k: int | None = Field(default=None, ge=1, description="attend to the best areas of each query only")
    temperature: float = Field(default=1.0, gt=0, description="scores of areas are divided by it")


class AttentionConfig(Frozen):
    """The decoder's attention over the source."""

    score: Score = Field(default="additive", description="how a query meets a key")
    heads: int | None = Field(default=None, ge=1, description="null: one, without projections; a number: multi-head attention")
    area: AreaSettings | None = Field(default=None, description="null: single source tokens")
    query_state: Literal["previous", "current"] = Field(
        default="previous", description="previous: Bahdanau, attend before the cell; current: Luong, attend after it"
    )
    attention_dim: int = Field(default=256, ge=1, description="width of additive and concat scores")
    window: Literal["global", "local_m", "local_p"] = Field(default="global", description="Luong's monotonic or predicted window")
    radius: int = Field(default=10, ge=1, description="D: a local window spans 2D+1 positions")
    input_feeding: bool = Field(default=False, description="feed the last attentional state to the next step (current only)")
    max_source_length: int = Field(default=200, ge=1, description="positions a location score can reach")

    @model_validator(mode="after")
    def _check(self) -> AttentionConfig:
        if self.input_feeding and self.query_state == "previous":
            raise ValueError("input_feeding needs query_state: current (with previous, the context already enters the cell)")
        if self.heads is not None and (self.score, self.window) != ("scaled_dot", "global"):
            raise ValueError(f"heads needs score: scaled_dot and window: global, found {self.score} and {self.window}")
        if self.area is not None and self.score == "location":
            raise ValueError("area: a location score has no keys that an area could be made of")
        return self


class RNNConfig(Frozen):
    """Recurrent encoder-decoder: without attention, additive (Bahdanau) or multiplicative (Luong)."""

    type: Literal["rnn"] = "rnn"
    cell: Literal["gru", "lstm", "tanh"] = "gru"
    embed_dim: int = Field(default=256, ge=1)
    encoder_dim: int = Field(default=256, ge=1, description="hidden size of each encoder direction")
    encoder_layers: int = Field(default=1, ge=1)
    bidirectional: bool = True
    decoder_dim: int = Field(default=512, ge=1)
    decoder_layers: int = Field(default=1, ge=1)
    attention: AttentionConfig | None = Field(default=AttentionConfig(), description="null: a fixed context vector")
    readout: Literal["deep", "tanh"] = Field(default="deep", description="deep output with maxout (Bahdanau) or tanh(W[c;h]) (Luong)")
    readout_dim: int = Field(default=256, ge=1, description="size of what the output layer sees")
    tie_embeddings: bool = Field(default=False, description="output layer = target embedding; needs readout_dim = embed_dim")
    share_embeddings: bool = Field(default=False, description="source embedding = target embedding; needs a shared vocabulary")
    init: Literal["scaled", "bahdanau", "luong"] = Field(default="scaled", description="how weights start; the papers' own by name")
    dropout: float = Field(default=0.2, ge=0.0, lt=1.0)

    @model_validator(mode="after")
    def _check(self) -> RNNConfig:
        if self.tie_embeddings and self.readout_dim != self.embed_dim:
            raise ValueError(f"tie_embeddings needs readout_dim ({self.readout_dim}) = embed_dim ({self.embed_dim})")
        return self

    @property
    def attends(self) -> bool:
        """Whether there is an attention over the source to look at."""
        return self.attention is not None


class AreaConfig(AreaSettings):
    """Area attention in a Transformer's first layers, in each of their attentions."""

    layers: int = Field(default=2, ge=1, description="the first so many layers of encoder and decoder; more than there are: all")


class TransformerSettings(Frozen):
    """What every model of the Transformer family has."""

    embed_dim: int = Field(default=256, ge=1)
    ff_dim: int = Field(default=1024, ge=1, description="hidden size of the feed-forward layers")
    num_heads: int = Field(default=4, ge=1)
    encoder_layers: int = Field(default=3, ge=1)
    decoder_layers: int = Field(default=3, ge=1)
    norm: Literal["post", "pre"] = Field(default="post", description="LayerNorm after each residual (as published) or before each part")
    norm_eps: float = Field(default=1e-5, gt=0, description="what LayerNorm adds to a variance")
    activation: Literal["relu", "swish", "gelu"] = Field(default="relu", description="inside the feed-forward layers")
    positions: Literal["paper", "fairseq"] = Field(default="paper", description="wavelengths and first position of the sines")
    output_bias: bool = Field(default=False, description="whether the output layer has one")
    area: AreaConfig | None = Field(default=None, description="null: every layer attends to single tokens")
    tie_embeddings: bool = Field(default=True, description="output layer = target embedding")
    share_embeddings: bool = Field(default=True, description="source embedding = target embedding; needs a shared vocabulary")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="on embeddings and on what is added to a residual")
    attention_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="on attention weights")
    relu_dropout: float = Field(default=0.0, ge=0.0, lt=1.0, description="inside the feed-forward layers")
    shown_layer: int | None = Field(default=None, ge=1, description="decoder layer whose attention is shown, from 1; null: the last")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.embed_dim % self.num_heads:
            raise ValueError(f"embed_dim ({self.embed_dim}) must be a multiple of num_heads ({self.num_heads})")
        if self.shown_layer is not None and self.shown_layer > self.decoder_layers:
            raise ValueError(f"shown_layer ({self.shown_layer}) must be one of the decoder_layers ({self.decoder_layers})")
        return self

    @property
    def attends(self) -> bool:
        """Whether there is an attention over the source to look at: always."""
        return True


class TransformerConfig(TransformerSettings):
    """Transformer (Vaswani et al. 2017), with or without area attention."""

    type: Literal["transformer"] = "transformer"


class CrossedConfig(TransformerSettings):
    """Crossed co-attention network (Li et al. 2019): a Transformer with two encoder branches that read each other."""

    type: Literal["crossed"] = "crossed"
    corruption: float = Field(default=0.1, ge=0, le=1, description="probability of two swapped tokens, for each sentence and branch")
    residual: Literal["own", "asking"] = Field(
        default="own", description="where a branch's answers are added: to its own stream, or to the one that asked"
    )


ModelConfig = RNNConfig | TransformerConfig | CrossedConfig


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
    metric: Literal["loss", "perplexity", "token_accuracy", "bleu", "chrf", "exact_match"] = "loss"
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
    """All a run is: stored, resolved, as `config.yaml` in its folder."""

    task: Literal["translation"] = "translation"
    data: DataConfig = DataConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    model: ModelConfig = Field(default=RNNConfig(), discriminator="type")
    training: TrainingConfig = TrainingConfig()
    decoding: DecodingConfig = DecodingConfig()

    @field_validator("model", mode="before")
    @classmethod
    def _recurrent_unless_said(cls, model: Any) -> Any:
        return {"type": RNNConfig().type, **model} if isinstance(model, Mapping) else model


def load_config(path: str | Path | None = None, overrides: Iterable[str] = (), *, base: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a configuration: `base`, then the YAML file, then `key.sub=value` overrides; later ones win.

    Args:
        path: a YAML file, or None for the defaults.
        overrides: strings `key.sub=value`; the value is read as YAML (`null`, `0.1`, `[0.9, 0.98]`).
        base: nested mapping applied before the file.

    Returns:
        The validated, frozen `RunConfig`.

    Raises:
        ConfigError: the file is missing or not YAML, a key is unknown, or a value does not fit; names the key path.

    Example:
        >>> load_config(None, ["model.type=transformer", "training.epochs=3"]).model.embed_dim
        256
    """
    tree: dict[str, Any] = {}
    if base:
        _merge(tree, base, "configuration")
    if path is not None:
        _merge(tree, _read_yaml(Path(path)), str(path))
    for item in overrides:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {item!r} is not of the form key.sub=value")
        try:
            value = yaml.safe_load(text) if text else ""
        except NOT_YAML as error:
            raise ConfigError(f"override {item!r}: the value is not YAML") from error
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        _merge(tree, nested, f"override {item!r}")
    return validate(tree, str(path) if path is not None else "configuration")


def validate(tree: Mapping[str, Any], where: str) -> RunConfig:
    """Validate a nested mapping; `where` names it in the error.

    Raises:
        ConfigError: names `where`, the first wrong key path, and for an unknown key the nearest known one.

    Example:
        >>> validate({"training": {"seed": 7}}, "here").training.seed
        7
    """
    try:
        return RunConfig.model_validate(tree)
    except ValidationError as error:
        lines = [_explain(item) for item in error.errors()[:MAX_ERRORS]]
        more = f"; and {error.error_count() - MAX_ERRORS} more" if error.error_count() > MAX_ERRORS else ""
        raise ConfigError(f"{where}: " + "; ".join(lines) + more) from error


def dump_config(config: RunConfig) -> str:
    """Return the resolved configuration as YAML text; `load_config` reads it back to an equal object.

    Example:
        >>> "cell: gru" in dump_config(RunConfig())
        True
    """
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def differences(old: Frozen, new: Frozen) -> list[str]:
    """Return the key paths in which two configurations differ, as `key: old -> new`.

    Example:
        >>> differences(RunConfig(), load_config(None, ["training.seed=2"]))
        ['training.seed: 1 -> 2']
    """
    a, b = _flatten(old.model_dump(mode="json")), _flatten(new.model_dump(mode="json"))
    return [f"{key}: {a.get(key)} -> {b.get(key)}" for key in {**a, **b} if a.get(key) != b.get(key)]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _read_yaml(path: Path) -> Mapping[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such configuration file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text ({error})") from error
    except NOT_YAML as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not valid YAML") from error
    if tree is None:
        return {}
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path}: expected keys and values, found {type(tree).__name__}")
    return tree


def _merge(tree: dict[str, Any], other: Mapping[str, Any], where: str, depth: int = 1) -> None:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: keys within keys, more than {MAX_DEPTH} levels deep")
    for key, value in other.items():
        if isinstance(value, Mapping):
            if not isinstance(tree.get(key), dict):
                tree[key] = {}
            _merge(tree[key], value, where, depth + 1)
        else:
            tree[key] = value


def _explain(item: Mapping[str, Any]) -> str:
    model: Any = RunConfig
    names, known = [], []
    for part in map(str, item["loc"]):
        if isinstance(model, dict):  # one of several families: the place holds its name, which is no key
            model = model.get(part)
            continue
        names.append(part)
        known = list(model.model_fields) if model is not None else []
        model = _submodel(model, part)
    path = ".".join(names)
    if item["type"] == "value_error":  # from a check of ours, which says what it found
        return f"{path}: {item['ctx']['error']}" if path else str(item["ctx"]["error"])
    if item["type"] != "extra_forbidden":
        return f"{path}: {item['msg']}, found {reprlib.repr(item['input'])[:80]}" if path else str(item["msg"])
    close = difflib.get_close_matches(names[-1], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; known keys: {', '.join(known)}" if known else ""
    return f"{path}: unknown key{hint}"


def _submodel(model: Any, name: str) -> Any:
    field = getattr(model, "model_fields", {}).get(name)
    if field is None:
        return None
    found = submodels(field.annotation)
    if len(found) > 1:
        return {each.model_fields["type"].default: each for each in found}
    return found[0] if found else None


def submodels(annotation: Any) -> list[type[BaseModel]]:
    """Return the configurations that a field may hold, by its annotation.

    Example:
        >>> [model.__name__ for model in submodels(AttentionConfig | None)]
        ['AttentionConfig']
    """
    candidates = [annotation, *getattr(annotation, "__args__", ())]
    return [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
