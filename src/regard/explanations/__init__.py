"""Explanation methods from the literature for a model's outputs, and their faithfulness."""

from regard.explanations.attention_based import attention_weights, gradient_times_attention, value_norms
from regard.explanations.batches import CaptionBatch, LabelBatch, LanguageBatch, ModelBatch, TranslationBatch
from regard.explanations.flow import attention_flow
from regard.explanations.gradients import input_gradients, input_times_gradient, integrated_gradients
from regard.explanations.input_pairs import TwoInputBatch
from regard.explanations.methods import METHODS, explain
from regard.explanations.occlusion import AreaEffects, greedy_order, leave_one_area_out, leave_one_out, replace_one
from regard.explanations.rollout import alti, attention_rollout

__all__ = [
    "METHODS",
    "AreaEffects",
    "CaptionBatch",
    "LabelBatch",
    "LanguageBatch",
    "ModelBatch",
    "TranslationBatch",
    "TwoInputBatch",
    "alti",
    "attention_flow",
    "attention_rollout",
    "attention_weights",
    "explain",
    "gradient_times_attention",
    "greedy_order",
    "input_gradients",
    "input_times_gradient",
    "integrated_gradients",
    "leave_one_area_out",
    "leave_one_out",
    "replace_one",
    "value_norms",
]


def __dir__() -> list[str]:
    return sorted(__all__)
