"""Attention mechanisms as modules, thin over `regard.ops`."""

from regard.attention.area import Areas
from regard.attention.attention import Attention
from regard.attention.crossed import CrossedAttention, CrossedOutput
from regard.attention.hard import Chosen, HardChoice, ScoreFunctionEstimator
from regard.attention.items import ItemMemory, source_items
from regard.attention.key_value import KeyValueAttention, KeyValueMemory
from regard.attention.multihead import HeadMemory, MultiHeadAttention
from regard.attention.nonlocal_block import NonLocal
from regard.attention.protocol import AttentionOutput, HardOutput, Memory
from regard.attention.score import AdditiveScore, ConcatScore, CosineScore, DotScore, GeneralScore, LocationScore, Score
from regard.attention.structured import StructuredAttention
from regard.attention.watch import Sight, watch
from regard.attention.window import MonotonicWindow, PredictiveWindow, Window

__all__ = [
    "AdditiveScore",
    "Areas",
    "Attention",
    "AttentionOutput",
    "Chosen",
    "ConcatScore",
    "CosineScore",
    "CrossedAttention",
    "CrossedOutput",
    "DotScore",
    "GeneralScore",
    "HardChoice",
    "HardOutput",
    "HeadMemory",
    "ItemMemory",
    "KeyValueAttention",
    "KeyValueMemory",
    "LocationScore",
    "Memory",
    "MonotonicWindow",
    "MultiHeadAttention",
    "NonLocal",
    "PredictiveWindow",
    "Score",
    "ScoreFunctionEstimator",
    "Sight",
    "StructuredAttention",
    "Window",
    "source_items",
    "watch",
]
