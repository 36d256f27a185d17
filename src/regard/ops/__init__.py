"""Pure functions of tensors; they import torch only.

Axis letters, everywhere: B batch, T target or query length, S source or key length, H heads, D features, E embedding, A attention width,
K hypotheses of a beam, V vocabulary. Masks are boolean, True = may be attended. A row with nothing to attend to gives zero weights,
a zero context and zero gradients.
"""

from regard.ops.align import gaussian_window, masked_softmax
from regard.ops.cross_entropy import SequenceLoss, linear_cross_entropy
from regard.ops.gates import gru_gates, lstm_gates
from regard.ops.masks import length_mask, window_mask
from regard.ops.matmul import Linear, linear, matmul_path, recurrent_steps
from regard.ops.scores import additive_scores, cosine_scores, dot_scores, location_scores, scaled_dot_scores

__all__ = [
    "Linear",
    "SequenceLoss",
    "additive_scores",
    "cosine_scores",
    "dot_scores",
    "gaussian_window",
    "gru_gates",
    "length_mask",
    "linear",
    "linear_cross_entropy",
    "location_scores",
    "lstm_gates",
    "masked_softmax",
    "matmul_path",
    "recurrent_steps",
    "scaled_dot_scores",
    "window_mask",
]
