"""Attention mechanisms as modules, thin over `regard.ops`."""

from __future__ import annotations

from typing import Any

from regard.attention.areas import Areas
from regard.attention.base import AttentionOutput, HardOutput, Memory
from regard.attention.crossed import CrossedAttention, CrossedOutput
from regard.attention.hard import HardChoice, HardChoiceOutput, ScoreFunctionEstimator
from regard.attention.indexed_memory import IndexedMemory, index_sources
from regard.attention.key_value import KeyValueAttention, KeyValueMemory
from regard.attention.multi_head import HeadMemory, MultiHeadAttention
from regard.attention.ngram import NGramMemory, NGramReadout
from regard.attention.nonlocal_block import NonLocal
from regard.attention.recorder import RecordedWeights, record_weights
from regard.attention.scores import AdditiveScore, ConcatScore, CosineScore, DotScore, GeneralScore, LocationScore, ScoreModule
from regard.attention.single_head import Attention
from regard.attention.structured import StructuredAttention
from regard.attention.windows import MonotonicWindow, PredictiveWindow, WindowModule

__all__ = [
    "AdditiveScore",
    "Areas",
    "Attention",
    "AttentionOutput",
    "ConcatScore",
    "CosineScore",
    "CrossedAttention",
    "CrossedOutput",
    "DotScore",
    "GeneralScore",
    "HardChoice",
    "HardChoiceOutput",
    "HardOutput",
    "HeadMemory",
    "IndexedMemory",
    "KeyValueAttention",
    "KeyValueMemory",
    "LocationScore",
    "Memory",
    "MonotonicWindow",
    "MultiHeadAttention",
    "NGramMemory",
    "NGramReadout",
    "NonLocal",
    "PredictiveWindow",
    "RecordedWeights",
    "ScoreFunctionEstimator",
    "ScoreModule",
    "StructuredAttention",
    "WindowModule",
    "index_sources",
    "record_weights",
]


def __getattr__(name: str) -> Any:
    from regard.aliases import unknown_name

    raise unknown_name(__name__, name, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
