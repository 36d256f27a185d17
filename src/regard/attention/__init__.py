"""Attention mechanisms as modules, thin over `regard.ops`."""

from regard.attention.protocol import AttentionOutput, Memory
from regard.attention.score import AdditiveScore, ConcatScore, CosineScore, DotScore, GeneralScore, LocationScore, Score
from regard.attention.source import SourceAttention
from regard.attention.window import MonotonicWindow, PredictiveWindow, Window

__all__ = [
    "AdditiveScore",
    "AttentionOutput",
    "ConcatScore",
    "CosineScore",
    "DotScore",
    "GeneralScore",
    "LocationScore",
    "Memory",
    "MonotonicWindow",
    "PredictiveWindow",
    "Score",
    "SourceAttention",
    "Window",
]
