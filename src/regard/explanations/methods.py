"""The methods by name, for the command line and the tables."""

from __future__ import annotations

from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor

from regard.errors import ConfigError, listed, shown
from regard.explanations.attention_based import attention_weights, gradient_times_attention, shown_attentions, value_norms
from regard.explanations.batches import CaptionBatch, ModelBatch, TranslationBatch
from regard.explanations.flow import attention_flow
from regard.explanations.gradients import input_times_gradient, integrated_gradients
from regard.explanations.input_pairs import TwoInputBatch
from regard.explanations.method_arguments import takes_batch
from regard.explanations.occlusion import leave_one_area_out, leave_one_out, replace_one
from regard.explanations.rollout import alti, attention_rollout

Method = Literal[
    "weights",
    "rollout",
    "flow",
    "value-norms",
    "value-norms-layers",
    "alti",
    "input-gradient",
    "integrated-gradients",
    "gradient-attention",
    "leave-one-out",
    "leave-one-area-out",
    "replace-one",
]
METHODS: tuple[Method, ...] = get_args(Method)
"""Names of the methods."""


@takes_batch
def explain(batch: ModelBatch, method: Method) -> Tensor:
    """Explain each output of a batch by its inputs.

    Args:
        batch: B examples of a model.
        method: a name in `METHODS`.

    Returns:
        (B, T, S) float: the importance of each input for each output, in the method's own units; 0 where `batch.inputs` is False.

    Raises:
        ConfigError: the method is unknown, or not defined for this model; the message says why.
        DataError: `batch` is no batch.

    Example:
        >>> import torch
        >>> from regard.config import ClassifierConfig
        >>> from regard.models import build_classifier
        >>> from regard.explanations import LabelBatch
        >>> model = build_classifier(ClassifierConfig(), vocab_size=11, classes=3, unknown=1).eval()
        >>> batch = LabelBatch(model, [torch.tensor([[4, 5]])], [torch.tensor([2])], torch.tensor([1]))
        >>> explain(batch, "weights").shape
        torch.Size([1, 1, 2])
        >>> explain(batch, "rollout")
        Traceback (most recent call last):
            ...
        regard.errors.ConfigError: rollout: SentenceClassifier is no Transformer: one attention without layers and residual connections ...
    """
    size = batch.inputs.shape[1]
    match method:
        case "weights":
            found = attention_weights(batch)
        case "rollout":
            found = attention_rollout(batch)[..., :size]
        case "flow":
            found = attention_flow(batch)
        case "value-norms":
            found = value_norms(batch)
        case "value-norms-layers":
            found = value_norms(batch, every_layer=True)
        case "alti":
            found = alti(batch)[..., :size]
        case "input-gradient":
            found = input_times_gradient(batch)
        case "integrated-gradients":
            found = integrated_gradients(batch)
        case "gradient-attention":
            found = gradient_times_attention(batch)
        case "leave-one-out":
            found = leave_one_out(batch)
        case "leave-one-area-out":
            found = _areas_left_out(batch)
        case "replace-one":
            found = replace_one(batch)
        case _:
            raise ConfigError(f"method {shown(method)}: expected one of {listed(METHODS)}")
    # A joined source ends where its longest row does.
    return F.pad(found, (0, size - found.shape[-1])) * batch.inputs.unsqueeze(1)


def _areas_left_out(batch: ModelBatch) -> Tensor:
    areas = None
    if isinstance(batch, TwoInputBatch):
        raise ConfigError("leave-one-area-out: an area has no meaning across two inputs; take leave-one-out")
    if isinstance(batch, TranslationBatch | CaptionBatch):
        areas = getattr(shown_attentions(batch, "leave-one-area-out")[0], "areas", None)
    if areas is None:
        raise ConfigError(f"leave-one-area-out: {type(batch.model).__name__} attends to single items, not to areas; take leave-one-out")
    return leave_one_area_out(batch, areas.max_area, grid=areas.grid).inputs
