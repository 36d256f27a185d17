"""Estimate training cost: operations of an update from the configuration, and the rates of machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from torch import nn

from regard.config.base import RunConfig
from regard.config.captioning import CaptioningConfig, FeaturesConfig, SmallCNNConfig
from regard.config.classification import ClassificationConfig, EntailmentConfig
from regard.config.language import LanguageConfig
from regard.config.models import CrossedConfig, RNNConfig, TransformerConfig
from regard.config.study import StudyCell, StudyConfig, cell_config, study_cells, training_settings
from regard.config.translation import TranslationConfig
from regard.data.vocabulary import UNK
from regard.errors import ConfigError
from regard.models import build_for_run
from regard.training.memory_check import meta_device

LENGTH = {"character": 150.0}
"""Tokens per sentence for vocabularies other than `SUBWORDS`."""
SUBWORDS, CAPTION = 30.0, 12.0
BACKWARD = 3.0
"""Cost of forward and backward relative to forward: the backward pass has two products of the same size for each."""


class Rate(NamedTuple):
    """Training speed of a machine.

    Attributes:
        machine: description.
        flops: floating-point operations of products per second in training.
        source: source of the figure.
    """

    machine: str
    flops: float
    source: str


class TrainingCost(NamedTuple):
    """Training cost of a run.

    Attributes:
        parameters: number of parameters.
        updates: number of updates; None if epochs decide.
        tokens: padded tokens per update, of the longer side.
        flops: floating-point operations of an update's products, two for each multiplication with its addition.
        attention: the share of these in products of queries with keys and weights with values.
    """

    parameters: int
    updates: int | None
    tokens: int
    flops: float
    attention: float

    def seconds(self, rate: Rate) -> float:
        """Return the seconds per update."""
        return self.flops / rate.flops


RATES = (
    Rate("2 cores of an EPYC server, bfloat16", 2.5e11, "measured, the median of ten models, docs/results/cost_model.json"),
    Rate("8 NVIDIA P100", 1.56e13, "Li et al. 2018: 0.4 s a step of Base; their 0.5 s of Big would be 0.68"),
    Rate("1 NVIDIA H100", 4.0e14, "not measured: 40 % of 989e12 in bfloat16"),
)


ESTIMATE_NOTE = (
    "PFLOP, hours: of one run, the matrix products of its updates alone. Evaluations and measuring come on top. Models of less than two "
    "million parameters take longer: what is no matrix product counts for more in them."
)


def training_cost(config: RunConfig) -> TrainingCost:
    """Count the operations of an update.

    Counts products with weights at every position, and attention for sentences of `SUBWORDS` tokens, 150 characters, or captions of
    `CAPTION` words; the backward pass counts twice. Sums over areas are not counted.

    Returns:
        The `TrainingCost`, for vocabularies of `vocabulary.size`; fewer words have fewer parameters.

    Raises:
        ConfigError: timm networks are not supported.

    Example:
        >>> from regard.config import TranslationConfig, validate
        >>> base = {"type": "transformer", "embed_dim": 512, "ff_dim": 2048, "num_heads": 8, "encoder_layers": 6, "decoder_layers": 6}
        >>> work = training_cost(validate({"model": base, "vocabulary": {"size": 37000}, "training": {"batch_tokens": 16384}}, "here"))
        >>> work.parameters, round(work.flops / 1e12, 1)
        (63082496, 6.2)
    """
    size, tokens = config.vocabulary.size, _batch_tokens(config) * config.training.gradient_accumulation_steps
    with meta_device():
        model = build_for_run(config, source_size=size, target_size=size, classes=2, unknown=UNK)
    passes = 2 if isinstance(config, TranslationConfig) and config.training.r_drop else 1
    positions = _positions(config, passes * tokens)
    products = sum(_products(name, parameter, positions, config) for name, parameter in model.named_parameters())
    output = getattr(model, "output", None)
    if isinstance(output, nn.Module) and isinstance(output.weight, nn.Parameter) and not _named(model, output.weight).startswith("output."):
        products += output.weight.numel() * positions["target"]  # tied to an embedding, which is not a product
    attention = 2 * BACKWARD * (_attention(config, positions) + _block(config, positions))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return TrainingCost(parameters, config.training.max_updates, tokens, 2 * BACKWARD * products + attention, attention)


def estimate(study: StudyConfig, *, beside: Path, only: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Return the cost per variant and data set of a study as columns and rows of text; see `ESTIMATE_NOTE`.

    Runs of the same training count once.

    Args:
        study: the study.
        beside: the folder of the study's file, for relative paths.
        only: pattern of the names of the runs, see `regard.config.study.study_cells`; None: all.

    Raises:
        ConfigError: see `training_cost`, and `regard.config.study`: `cell_config`, `study_cells`.
    """
    columns = [
        "data",
        "variant",
        "parameters, at most",
        "tokens per update",
        "runs",
        "updates of each",
        "PFLOP",
        *(f"hours, {rate.machine}" for rate in RATES),
    ]
    rows, first, known = [], dict[tuple[str, str], StudyCell](), dict[str, list[str]]()
    runs = Counter[tuple[str, str]]()
    for cell in study_cells(study, only):
        first.setdefault((cell.data, cell.variant), cell)
        runs[cell.data, cell.variant] += 1
    for cell in first.values():
        config = cell_config(study, cell, folder=beside)
        try:
            work = training_cost(config)
        except ConfigError as error:
            raise ConfigError(f"{study.name}: the run {cell.name}: {error}") from error
        row = [study.data[cell.data].title or cell.data, study.variants[cell.variant].title or cell.variant, f"{work.parameters:,}"]
        row += [f"{work.tokens:,}", str(runs[cell.data, cell.variant])]
        if (equal := known.setdefault(training_settings(config), row)) is not row:
            row += [f"trained once, as {equal[0]}: {equal[1]}", *("0" for _ in columns[len(row) + 1 :])]
        elif (updates := _updates(study, work)) is None:
            row += [
                "by epochs" if study.budget is None else "by seconds",
                f"{work.flops / 1e15:.3g} per update",
                *(f"{work.seconds(rate):.3g} s per update" for rate in RATES),
            ]
        else:
            row += [f"{updates:,}", _figure(updates * work.flops / 1e15)]
            row += [_figure(updates * work.seconds(rate) / 3600) for rate in RATES]
        rows.append(row)
    return columns, rows


def _updates(study: StudyConfig, work: TrainingCost) -> int | None:
    # Those of a budget of tokens, too: about as many as the trial will find.
    if study.budget is not None and study.budget.tokens is not None:
        return max(1, round(study.budget.tokens / work.tokens))
    return work.updates


def _figure(value: float) -> str:
    # A large one without decimals, a small one with two digits.
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value >= 0.001 else "< 0.001"


def _batch_tokens(config: RunConfig) -> int:
    if isinstance(config, LanguageConfig) and config.data.context == "continuous":
        return config.training.streams * config.training.chunk_length
    return config.training.batch_tokens


def _positions(config: RunConfig, tokens: int) -> dict[str, float]:
    # Source positions, target positions and sentences of an update.
    if isinstance(config, CaptioningConfig):
        captions = tokens / CAPTION
        images = captions / config.data.captions_per_image
        return {"source": images * _cells(config), "target": tokens, "once": images, "length": _cells(config)}
    length = LENGTH.get(config.vocabulary.kind, SUBWORDS)
    if isinstance(config, EntailmentConfig):  # a batch counts the longer of two texts
        return {"source": 2 * tokens, "target": tokens, "once": tokens / length, "length": length}
    return {"source": tokens, "target": tokens, "once": tokens / length, "length": length}


def _cells(config: CaptioningConfig) -> int:
    encoder = config.model.encoder
    if isinstance(encoder, FeaturesConfig) and encoder.grid is not None:
        return encoder.grid[0] * encoder.grid[1]
    if isinstance(encoder, SmallCNNConfig):
        rows, columns = encoder.grid(config.image.size)
        return rows * columns
    raise ConfigError(f"model.encoder.type {encoder.type}: its cost is unknown before it is downloaded")


def _products(name: str, parameter: nn.Parameter, positions: Mapping[str, float], config: RunConfig) -> float:
    if parameter.dim() < 2 or name.endswith("embedding.weight") or ".areas." in name:
        return 0.0  # looked up, or added
    if isinstance(config, CaptioningConfig) and name.startswith("image_encoder.stages."):
        side = -(-config.image.size // 2 ** (int(name.split(".")[2]) + 1))
        return parameter.numel() * side * side * positions["once"]
    labels = isinstance(config, ClassificationConfig | EntailmentConfig)
    at_source = ("encoder.", "pooling.") if labels else ("encoder.", "image_encoder.", "project.")
    if name.startswith(("fusion.", "head.") if labels else ("bridge.", "decoder.first_")):
        place = "once"
    elif name == "decoder.stack.extra.weight" and _summarizes(config):
        place = "once"  # of the same context at every step
    elif name.startswith(at_source) or (("cross_attention." in name or "score." in name) and (".key." in name or ".value." in name)):
        place = "source"
    else:
        place = "target"
    return parameter.numel() * positions[place]


def _summarizes(config: RunConfig) -> bool:
    """Return whether a decoder reads one context of the whole source."""
    return isinstance(config, TranslationConfig) and isinstance(config.model, RNNConfig) and config.model.attention is None


def _named(model: nn.Module, wanted: nn.Parameter) -> str:
    return next(name for name, parameter in model.named_parameters() if parameter is wanted)


def _block(config: RunConfig, positions: Mapping[str, float]) -> float:
    # Multiplications of queries with keys and of weights with values in the non-local block of a captioner's image network.
    if not isinstance(config, CaptioningConfig) or not isinstance(config.model.encoder, SmallCNNConfig):
        return 0.0
    dim, length = config.model.encoder.channels[-1], positions["length"]
    inner = max(1, dim // 2)
    products = {
        None: 0.0,
        "gaussian": length * (dim + inner),
        "embedded_gaussian": 2 * length * inner,
        "dot": 2.0 * inner**2,  # keys with values first
        "concat": length * inner,  # a sum for each pair instead of a product
    }
    return positions["source"] * products[config.model.encoder.non_local]


def _attention(config: RunConfig, positions: Mapping[str, float]) -> float:
    # Multiplications of queries with keys and of weights with values.
    length, target = positions["length"], positions["target"]
    match config:
        case TranslationConfig(model=RNNConfig(attention=None)):
            return 0.0
        case TranslationConfig(model=RNNConfig() as model):
            return 2 * target * length * model.encoder_dim * (1 + model.bidirectional)
        case TranslationConfig(model=TransformerConfig(decoder="recurrent") as model):
            return 2 * target * length * model.embed_dim * (1 + model.encoder_layers)
        case TranslationConfig(model=TransformerConfig() | CrossedConfig() as model):
            branches = 2 if isinstance(model, CrossedConfig) else 1
            layers = branches * (model.encoder_layers + model.decoder_layers) + model.decoder_layers / 2  # causal: half of the pairs
            return 2 * target * length * model.embed_dim * layers
        case CaptioningConfig() if config.model.type == "transformer":
            own = positions["source"] * length * config.model.encoder_layers
            words = target * (CAPTION / 2 + length) * config.model.decoder_layers
            return 2 * config.model.embed_dim * (own + words)
        case CaptioningConfig() if config.model.type == "show":
            return 2 * target * length * config.model.feature_dim
    return 0.0
