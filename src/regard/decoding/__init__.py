"""Greedy decoding, sampling and beam search over a step function and a state, independent of models."""

from regard.decoding.beam_search import beam_search
from regard.decoding.options import DecodingOptions
from regard.decoding.phrases import ForcedPhrases, Phrase
from regard.decoding.protocol import Hypothesis, State, Step
from regard.decoding.sampling import SamplingOptions, greedy_search, sample

__all__ = [
    "DecodingOptions",
    "ForcedPhrases",
    "Hypothesis",
    "Phrase",
    "SamplingOptions",
    "State",
    "Step",
    "beam_search",
    "greedy_search",
    "sample",
]


def __dir__() -> list[str]:
    return sorted(__all__)
