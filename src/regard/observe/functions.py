"""Names of torch functions and classes that say what becomes of attention weights."""

from __future__ import annotations

import re

SOFTMAX = {"softmax", "special_softmax", "_softmax", "softmin", "gumbel_softmax"}
EXP = {"exp", "exp_"}
DIVIDE = {"div", "div_", "__truediv__", "__itruediv__", "divide", "true_divide"}
MULTIPLY = {"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"}
ADD = {"add", "add_", "__add__", "__radd__", "__iadd__"}
DROPOUT = {"dropout", "dropout_"}
# Functions after which weights are still weights: a change of dtype, or a factor per weight.
CAST = {"to", "type", "type_as", "float", "half", "bfloat16", "double"}
EACH = {
    *CAST,
    *("masked_fill", "masked_fill_", "where", "nan_to_num", "normalize"),
    *DIVIDE,
    *MULTIPLY,
    *DROPOUT,
}
SUM = {"sum", "nansum"}
CHOOSE = {"argmax", "argmin", "max", "topk", "sort", "argsort", "multinomial"}
PICK = {"__getitem__", "gather", "index_select", "take", "take_along_dim", "embedding"}
# Functions that may sum weighted values in a way that is not followed.
OTHER_SUMS = {
    *(
        "conv1d",
        "conv2d",
        "conv3d",
        "bilinear",
        "embedding_bag",
        "linalg_multi_dot",
        "chain_matmul",
        "addcmul",
        "addcmul_",
        "addr",
        "outer",
    ),
    *("index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "segment_reduce", "cumsum", "mean"),
}
EXPERTS = re.compile(r"M[oO]E|Moe|Expert|Mixture|Rout(?:er|ing)|Gat(?:e|ing)(?![a-z])|Loss|Hyper_?Conn|MHC|mHC")
"""Class names whose softmax is no attention: routers of experts, losses, hyper-connections that mix residual streams."""
STATE_SPACES = re.compile(r"Mamba|BambaMixer|H1Mixer|SSM|DeltaNet")
"""Class names whose exponentials and other factors are no attention: decays of states. Their softmax is, as in a block of both."""
