"""Greedy search, sampling and beam search over a step function and a state, never over a model."""

from regard.decoding.beam import beam_search
from regard.decoding.greedy import greedy_search
from regard.decoding.options import SearchOptions
from regard.decoding.protocol import Hypothesis, State, Step
from regard.decoding.sample import SamplingOptions, sample

__all__ = ["Hypothesis", "SamplingOptions", "SearchOptions", "State", "Step", "beam_search", "greedy_search", "sample"]
