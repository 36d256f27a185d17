"""Pure functions of tensors; they import torch only.

Axis letters, everywhere: B batch, T target or query length, S source or key length, H heads, D features, E embedding, A attention width, K
hypotheses of a beam, V vocabulary. Masks are boolean, True = may attend. A row with nothing to attend to gives zero weights, a zero context
and zero gradients. Errors state the sizes they found.
"""

from regard.ops.area_attention import area_attention, area_path, native_takes_items
from regard.ops.area_windows import area_count, area_spans, window_maxima, window_moments, window_sums
from regard.ops.attention_penalties import coverage_loss, doubly_stochastic_penalty, redundancy_penalty
from regard.ops.cached_attention import cached_attention
from regard.ops.copying import copy_goals, copy_log_probs, copy_loss, copy_places
from regard.ops.cross_entropy import SequenceLoss, consistent_cross_entropy, linear_cross_entropy
from regard.ops.flex_attention import attention, attention_blocks
from regard.ops.hard import (
    greedy_positions,
    normalized_weights,
    position_log_prob,
    sample_positions,
    score_function_loss,
    weights_entropy,
)
from regard.ops.lazy_logits import LazyLogits, OutputShortlist, RunningTotals, lazy_logits
from regard.ops.linear import Linear, bfloat16_path, cached_by_owner, joint_linear, linear, matmul_path, packed_weights, recurrent_steps
from regard.ops.link_loss import link_loss
from regard.ops.masks import block_mask, causal_mask, length_mask, window_mask
from regard.ops.materialized_areas import AreaWeights, area_keys, area_mask, area_softmax, area_values, item_weights
from regard.ops.ngram import ngram_parts
from regard.ops.nonfinite import FiniteKeyValue, mask_nonfinite
from regard.ops.nonlocal_attention import NonLocalResult, nonlocal_attention
from regard.ops.reference import AreaResult
from regard.ops.residual import Dropout, dropout, residual
from regard.ops.rnn_gates import gru_gates, lstm_gates
from regard.ops.scores import additive_scores, cosine_scores, dot_scores, location_scores, scaled_dot_scores
from regard.ops.softmax import gaussian_window, masked_softmax
from regard.ops.sparsemax import entmax15, normalize, sparsemax
from regard.ops.summed_areas import AreaFeatures, area_features, area_sums, summed_area_table
from regard.ops.topk import TopLogProbs, top_log_probs, top_tokens

__all__ = [
    "AreaFeatures",
    "AreaResult",
    "AreaWeights",
    "Dropout",
    "FiniteKeyValue",
    "LazyLogits",
    "Linear",
    "NonLocalResult",
    "OutputShortlist",
    "RunningTotals",
    "SequenceLoss",
    "TopLogProbs",
    "additive_scores",
    "area_attention",
    "area_count",
    "area_features",
    "area_keys",
    "area_mask",
    "area_path",
    "area_softmax",
    "area_spans",
    "area_sums",
    "area_values",
    "attention",
    "attention_blocks",
    "bfloat16_path",
    "block_mask",
    "cached_attention",
    "cached_by_owner",
    "causal_mask",
    "consistent_cross_entropy",
    "copy_goals",
    "copy_log_probs",
    "copy_loss",
    "copy_places",
    "cosine_scores",
    "coverage_loss",
    "dot_scores",
    "doubly_stochastic_penalty",
    "dropout",
    "entmax15",
    "gaussian_window",
    "greedy_positions",
    "gru_gates",
    "item_weights",
    "joint_linear",
    "lazy_logits",
    "length_mask",
    "linear",
    "linear_cross_entropy",
    "link_loss",
    "location_scores",
    "lstm_gates",
    "mask_nonfinite",
    "masked_softmax",
    "matmul_path",
    "native_takes_items",
    "ngram_parts",
    "nonlocal_attention",
    "normalize",
    "normalized_weights",
    "packed_weights",
    "position_log_prob",
    "recurrent_steps",
    "redundancy_penalty",
    "residual",
    "sample_positions",
    "scaled_dot_scores",
    "score_function_loss",
    "sparsemax",
    "summed_area_table",
    "top_log_probs",
    "top_tokens",
    "weights_entropy",
    "window_mask",
    "window_maxima",
    "window_moments",
    "window_sums",
]


def __dir__() -> list[str]:
    return sorted(__all__)
